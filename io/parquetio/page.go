package parquetio

import (
	"context"

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
	encByteSplit   = 9

	maxPageHeader = 4 << 20
	maxPage       = 1 << 30 // uncompressed bytes
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

// pageReader reads the headers of the pages of one column chunk.
type pageReader struct {
	win  *window
	c    *chunk
	leaf *leaf
	pos  int64 // file offset of the next page
	end  int64 // of the chunk
	hdr  pageHeader
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
