package parquetio

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"math/bits"
	"slices"

	"github.com/apache/arrow-go/v18/parquet"

	"github.com/penstock-data/penstock/internal/fault"
)

const (
	pageData  = 0
	pageIndex = 1
	pageDict  = 2
	pageV2    = 3

	encPlain       = 0
	encPlainDict   = 2
	encRLE         = 3
	encBitPacked   = 4
	encDelta       = 5
	encDeltaLength = 6
	encDeltaBytes  = 7
	encRLEDict     = 8

	maxPageHeader = 4 << 20
	maxPage       = 1 << 30 // uncompressed bytes
	maxDeltaBlock = 1 << 16 // values
)

// pageHeader is what precedes every page.
type pageHeader struct {
	typ        int32
	raw, comp  int32 // bytes uncompressed, compressed
	crc        uint32
	hasCRC     bool
	values     int32
	nulls      int32 // V2
	rows       int32 // V2
	enc        int32
	defEnc     int32
	repEnc     int32
	defLen     int32 // V2
	repLen     int32 // V2
	plainBody  bool  // V2: values are not compressed
	hasDetails bool
}

// parse reads a header from the front of b and returns its length; 0 if b is too
// short or damaged.
func (h *pageHeader) parse(b []byte) int {
	*h = pageHeader{}
	r := &thriftReader{b: b}
	seen := 0
	r.fields(func(id int16, typ byte) {
		switch {
		case id == 1 && typ == tI32:
			h.typ = r.i32()
			seen |= 1
		case id == 2 && typ == tI32:
			h.raw = r.i32()
			seen |= 2
		case id == 3 && typ == tI32:
			h.comp = r.i32()
			seen |= 4
		case id == 4 && typ == tI32:
			h.crc, h.hasCRC = uint32(r.i32()), true
		case (id == 5 || id == 7 || id == 8) && typ == tStruct:
			h.hasDetails = true
			r.fields(func(f int16, typ byte) { h.detail(r, id, f, typ) })
		default:
			r.skip(typ, false)
		}
	})
	if r.bad || seen != 7 {
		return 0
	}
	return r.i
}

func (h *pageHeader) detail(r *thriftReader, kind, id int16, typ byte) {
	var to *int32
	switch kind {
	case 5:
		to = [...]*int32{nil, &h.values, &h.enc, &h.defEnc, &h.repEnc}[min(max(id, 0), 4)]
		if id > 4 {
			to = nil
		}
	case 7:
		to = [...]*int32{nil, &h.values, &h.enc}[min(max(id, 0), 2)]
		if id > 2 {
			to = nil
		}
	case 8:
		if id == 7 {
			h.plainBody = typ == tFalse
		}
		if id >= 0 && id < 7 {
			to = [...]*int32{nil, &h.values, &h.nulls, &h.rows, &h.enc, &h.defLen, &h.repLen}[id]
		}
	}
	if to != nil && typ == tI32 {
		*to = r.i32()
		return
	}
	r.skip(typ, false)
}

// encode writes the header of a page whose body is not compressed.
func (h *pageHeader) encode(b []byte) []byte {
	w := &thriftWriter{b: b}
	w.i32(1, h.typ)
	w.i32(2, h.raw)
	w.i32(3, h.raw)
	switch h.typ {
	case pageData:
		o := w.begin(5)
		w.i32(1, h.values)
		w.i32(2, h.enc)
		w.i32(3, h.defEnc)
		w.i32(4, h.repEnc)
		w.end(o)
	case pageDict:
		o := w.begin(7)
		w.i32(1, h.values)
		w.i32(2, h.enc)
		w.end(o)
	case pageV2:
		o := w.begin(8)
		w.i32(1, h.values)
		w.i32(2, h.nulls)
		w.i32(3, h.rows)
		w.i32(4, h.enc)
		w.i32(5, h.defLen)
		w.i32(6, h.repLen)
		w.bool(7, false)
		w.end(o)
	}
	return append(w.b, tStop)
}

// check refuses what no page can be; room is what the chunk has left behind the
// header.
func (h *pageHeader) check(c *chunk, room int64) error {
	switch {
	case h.raw < 0 || h.comp < 0 || h.values < 0 || h.nulls < 0 || h.rows < 0 || h.defLen < 0 || h.repLen < 0:
		return fault.New(fault.Corrupt, "a page has a negative size")
	case int64(h.comp) > room:
		return fault.New(fault.Corrupt, "a page claims %d bytes where %d are left", h.comp, room)
	case h.raw > maxPage:
		return fault.New(fault.Unsupported, "a page of %d bytes is over the limit of %d", h.raw, maxPage)
	case h.raw > 64<<20 && int64(h.raw) > c.raw+64<<10:
		return fault.New(fault.Corrupt, "a page claims %d bytes, its column chunk %d", h.raw, c.raw)
	case !h.hasDetails && h.typ != pageIndex:
		return fault.New(fault.Corrupt, "a page header lacks its details")
	case h.typ == pageV2 && int64(h.defLen)+int64(h.repLen) > int64(min(h.comp, h.raw)):
		return fault.New(fault.Corrupt, "a page claims %d bytes of levels in %d", int64(h.defLen)+int64(h.repLen), h.comp)
	}
	return nil
}

// noDelta is a DELTA_BYTE_ARRAY run of no values.
var noDelta = []byte{0x80, 1, 4, 0, 0, 0x80, 1, 4, 0, 0}

// checkBody looks at claims in a page that the decoder would believe, and
// returns the body that it is given.
func (h *pageHeader) checkBody(l *leaf, body []byte) ([]byte, error) {
	if h.typ == pageDict {
		width := 4 // of a length
		switch l.physical {
		case parquet.Types.Int64, parquet.Types.Double:
			width = 8
		case parquet.Types.Int96:
			width = 12
		case parquet.Types.FixedLenByteArray:
			width = l.width
		case parquet.Types.Boolean:
			return nil, fault.New(fault.Corrupt, "a dictionary of booleans")
		}
		if int64(h.values)*int64(width) > int64(len(body)) {
			return nil, fault.New(fault.Corrupt, "a dictionary claims %d values in %d bytes", h.values, len(body))
		}
		return body, nil
	}
	switch h.enc {
	case encDelta, encDeltaLength, encDeltaBytes:
		values, ok := h.valuesOf(l, body)
		if !ok {
			return nil, fault.New(fault.Corrupt, "a page is too small for its levels")
		}
		rest, total, ok := skipDelta(values)
		if ok && h.enc == encDeltaBytes {
			if total == 0 && len(values) > 0 { // arrow-go writes rubbish behind no values
				h.raw = int32(len(body) - len(values) + len(noDelta))
				return slices.Concat(body[:len(body)-len(values)], noDelta), nil
			}
			_, _, ok = skipDelta(rest)
		}
		if !ok {
			return nil, fault.New(fault.Corrupt, "a page has damaged delta-encoded values")
		}
	}
	return body, nil
}

// valuesOf returns what follows the levels.
func (h *pageHeader) valuesOf(l *leaf, body []byte) ([]byte, bool) {
	if h.typ == pageV2 {
		return body[h.defLen+h.repLen:], true // checked
	}
	for _, lv := range [2]struct {
		max int16
		enc int32
	}{{l.maxRep, h.repEnc}, {l.maxDef, h.defEnc}} {
		if lv.max == 0 {
			continue
		}
		var n int64
		if lv.enc == encBitPacked {
			n = (int64(h.values)*int64(bits.Len16(uint16(lv.max))) + 7) / 8
		} else {
			if len(body) < 4 {
				return nil, false
			}
			n = 4 + int64(binary.LittleEndian.Uint32(body))
		}
		if n > int64(len(body)) {
			return nil, false
		}
		body = body[n:]
	}
	return body, true
}

// skipDelta walks over a DELTA_BINARY_PACKED run and refuses blocks that are out
// of proportion. Nothing at all is right for a page of nulls.
func skipDelta(b []byte) (rest []byte, total uint64, ok bool) {
	if len(b) == 0 {
		return b, 0, true
	}
	r := &thriftReader{b: b}
	block, minis := r.uvarint(), r.uvarint()
	total = r.uvarint()
	r.uvarint() // first value
	if r.bad || block == 0 || block > maxDeltaBlock || minis == 0 || minis > block || block%minis != 0 || total > 1<<31 {
		return nil, 0, false
	}
	perMini := block / minis
	for left := total; left > 1; { // the first is in the header
		r.uvarint() // least delta
		at := r.i
		r.advance(int(minis))
		if r.bad {
			return nil, 0, false
		}
		for m := uint64(0); m < minis && left > 1; m++ {
			w := uint64(b[at+int(m)])
			if w > 64 {
				return nil, 0, false
			}
			r.advance(int(perMini * w / 8))
			left -= min(left-1, perMini)
		}
		if r.bad {
			return nil, 0, false
		}
	}
	return b[r.i:], total, true
}

// pageReader walks the pages of one column chunk: it checks them and hands out
// their bodies uncompressed.
type pageReader struct {
	win  *window
	c    *chunk
	leaf *leaf
	dec  *decompressor

	pos    int64 // file offset of the next page
	end    int64 // of the chunk
	values int64 // seen since the chunk's begin, -1 after a seek
	hdr    pageHeader
}

// next reads the page at pos and steps over it; index pages and pages without
// values are left out. The body is valid until the next call of any page reader
// of the same decompressor. ok is false at the end of the chunk.
func (p *pageReader) next(ctx context.Context) (body []byte, ok bool, err error) {
	for {
		if p.pos >= p.end || p.values >= 0 && p.values >= p.c.values || p.win.runEnd(p.pos) == p.pos {
			return nil, false, nil
		}
		n, err := p.header(ctx)
		if err != nil {
			return nil, false, err
		}
		h := &p.hdr
		if err := h.check(p.c, p.end-p.pos-int64(n)); err != nil {
			return nil, false, err
		}
		if h.typ < 0 || h.typ == pageIndex || h.typ > pageV2 || h.typ != pageDict && h.values == 0 {
			p.pos += int64(n) + int64(h.comp)
			continue
		}
		// Header and body together, as a page may be loaded again from its begin.
		comp, err := p.win.bytes(ctx, p.pos, int64(n)+int64(h.comp))
		if err != nil {
			return nil, false, err
		}
		comp = comp[n:]
		if h.hasCRC && crc32.ChecksumIEEE(comp) != h.crc {
			return nil, false, fault.New(fault.Corrupt, "the checksum of a page is wrong")
		}
		plain := 0
		if h.typ == pageV2 {
			plain = int(h.defLen + h.repLen)
		}
		codec := p.c.codec
		if h.typ == pageV2 && h.plainBody {
			codec = codecNone
		}
		if body, err = p.dec.page(codec, comp, plain, int(h.raw)); err != nil {
			return nil, false, err
		}
		if body, err = h.checkBody(p.leaf, body); err != nil {
			return nil, false, err
		}
		p.pos += int64(n) + int64(h.comp)
		if p.values >= 0 && h.typ != pageDict {
			p.values += int64(h.values)
		}
		return body, true, nil
	}
}

// header parses the header at pos.
func (p *pageReader) header(ctx context.Context) (int, error) {
	room := min(p.end, p.win.runEnd(p.pos)) - p.pos
	for n := int64(256); ; n *= 8 {
		b, err := p.win.bytes(ctx, p.pos, min(n, room))
		if err != nil {
			return 0, err
		}
		if k := p.hdr.parse(b); k > 0 {
			return k, nil
		}
		if n >= room || n > maxPageHeader {
			return 0, fault.New(fault.Corrupt, "a page header is damaged")
		}
	}
}
