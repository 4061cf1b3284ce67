package parquetio

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"math/bits"

	"github.com/apache/arrow-go/v18/parquet"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/parquetio/internal/kernel"
)

// sliceLevels is how many levels of text are tried at a time for whether their values are in a slice.
const sliceLevels = 1024

// slicing is a page of a remote file that is read, and decoded, in pieces of about a step of its window: as much of it as
// a step is in memory, whatever its size. Pages of PLAIN values that are not compressed can be read so; local ones
// are mapped instead. Its levels, which are a small part, are read first and kept.
//
// A slice is to the column as a page is: left counts its levels, vals has its values. It is planned without being
// read where the values have a width, so that slices before the row wanted are passed by arithmetic; but those of a page
// with a checksum are all read, until its end.
type slicing struct {
	sliceMark
	open   bool   // the open page is read in slices
	page   int64  // file offset of the page that levels are of; 0: none
	levels []byte // from the allocator
	end    int64  // file offset behind the page

	begin sliceMark // of the slice that is open
	after pagePos   // the page behind
	hdr   pageHeader
	size  int // bytes of the slice
}

// sliceMark is a place between two slices of a page.
type sliceMark struct {
	off      int64 // file offset of the values behind
	rest     int   // levels behind
	rep, def kernel.Hybrid
	row      int64 // rows that begin before
	crc      uint32
}

// sliced reports whether the open page is to be read in slices.
func (c *column) sliced() bool {
	h := &c.hdr
	return c.win.f.fetch != nil && int64(h.comp) > 2*max(c.win.step, minStep) && h.enc == encPlain && h.comp == h.raw &&
		(c.c.codec == codecNone || h.typ == pageV2 && h.plainBody) &&
		c.form != formNull && (c.pw > 0 || c.physical == parquet.Types.ByteArray)
}

// slicePage makes the open page, at whose begin the cursor is, one that is read in slices.
func (c *column) slicePage(ctx context.Context) error {
	h, s := &c.hdr, &c.slices
	at := c.page.pos + int64(c.head)
	n, err := c.levelBytes(ctx, at)
	if err != nil {
		return err
	}
	src, err := c.win.bytes(ctx, at, n)
	if err != nil {
		return err
	}
	c.dropSlices()
	if n > 0 {
		s.levels = c.d.acct.alloc.Allocate(int(n))
		copy(s.levels, src)
	}
	if _, err := c.levels(s.levels); err != nil {
		return err
	}
	if c.d.user == c { // the shared page that it had is not this one
		c.d.user = nil
	}
	s.open, s.page, s.end, s.hdr, s.after = true, c.page.pos, at+int64(h.comp), *h, c.here()
	s.sliceMark = sliceMark{off: at + n, rest: c.left, rep: c.rep, def: c.def, row: c.row, crc: crc32.ChecksumIEEE(s.levels)}
	return c.nextSlice(ctx)
}

// levelBytes is the length of the levels of the open page, whose body is at file offset at.
func (c *column) levelBytes(ctx context.Context, at int64) (int64, error) {
	h := &c.hdr
	if h.typ == pageV2 {
		return int64(h.repLen) + int64(h.defLen), nil
	}
	n := int64(0)
	for _, l := range [...]struct {
		most int16
		enc  int32
	}{{c.leaf.maxRep, h.repEnc}, {c.leaf.maxDef, h.defEnc}} {
		switch {
		case l.most == 0:
		case l.enc == encRLE:
			if n+4 > int64(h.comp) {
				return 0, errLevels
			}
			b, err := c.win.bytes(ctx, at+n, 4)
			if err != nil {
				return 0, err
			}
			n += 4 + int64(binary.LittleEndian.Uint32(b))
		case l.enc == encBitPacked:
			size, _ := kernel.BitPackedSize(int(h.values), uint(bits.Len16(uint16(l.most))))
			n += int64(size)
		default:
			return 0, fault.New(fault.Unsupported, "levels in encoding %d are not supported", l.enc)
		}
		if n > int64(h.comp) {
			return 0, errLevels
		}
	}
	return n, nil
}

// nextSlice opens the slice behind the one that was open.
func (c *column) nextSlice(ctx context.Context) error {
	s := &c.slices
	s.rep, s.row = c.rep, c.row
	s.begin = s.sliceMark
	c.def, c.body = s.def, nil
	most := max(c.win.step, minStep)
	if c.pw == 0 {
		if err := c.textSlice(ctx, most); err != nil {
			return err
		}
	} else {
		k := min(s.rest, max(int(most)/c.pw, 1))
		defined := k
		if c.leaf.maxDef > 0 {
			var ok bool
			if defined, ok = s.def.Count(k, uint32(c.leaf.maxDef)); !ok {
				return errLevels
			}
		}
		c.left, s.size = k, defined*c.pw
	}
	if int64(s.size) > s.end-s.off {
		return errValues
	}
	s.off += int64(s.size)
	s.rest -= c.left
	if s.hdr.hasCRC {
		return c.loadSlice(ctx)
	}
	return nil
}

// textSlice finds out how many levels have all their values in the next most bytes, or more bytes if the first value is
// longer.
func (c *column) textSlice(ctx context.Context, most int64) error {
	s := &c.slices
	for ; ; most *= 2 {
		n := min(most, s.end-s.off)
		b, err := c.win.bytes(ctx, s.off, n)
		if err != nil {
			return err
		}
		def := s.def
		levels, used := 0, 0
		for k := sliceLevels; k > 0 && levels < s.rest; {
			k = min(k, s.rest-levels)
			probe, defined, ok := def, k, true
			if c.leaf.maxDef > 0 {
				if defined, ok = probe.Count(k, uint32(c.leaf.maxDef)); !ok {
					return errLevels
				}
			}
			_, size, ok := kernel.PlainBytesSize(b[used:], defined)
			if !ok {
				k /= 2
				continue
			}
			def, levels, used = probe, levels+k, used+size
		}
		if levels > 0 {
			s.def, c.left, s.size = def, levels, used
			return nil
		}
		if n == s.end-s.off {
			return errValues
		}
	}
}

// loadSlice makes the open slice ready to be decoded.
func (c *column) loadSlice(ctx context.Context) error {
	s := &c.slices
	n := int64(s.size)
	if s.hdr.hasCRC && s.rest == 0 {
		n = s.end - s.begin.off // what else is in the page
	}
	b, err := c.win.bytes(ctx, s.begin.off, n)
	if err != nil {
		return err
	}
	if s.hdr.hasCRC {
		if s.crc = crc32.Update(s.begin.crc, crc32.IEEETable, b); s.rest == 0 && s.crc != s.hdr.crc {
			return errChecksum
		}
	}
	c.vals = values{c: c, enc: encPlain, src: b[:s.size]}
	if c.body = b[:s.size:s.size]; b == nil {
		c.body = []byte{}
	}
	return nil
}

// backTo moves the cursor to the slice that was open at mark, which is not behind row; false if it is in another page.
func (c *column) backTo(m *sliceMark, page, row int64) bool {
	s := &c.slices
	if s.page != page || m.rest == 0 || m.row > row {
		return false
	}
	s.sliceMark, s.open = *m, true
	c.hdr, c.rep, c.row = s.hdr, m.rep, m.row
	c.pos, c.seen, c.next = s.after.pos, s.after.seen, s.after.next
	c.left, c.body, c.mid = 0, nil, c.leaf.maxRep > 0 && m.rest < int(s.hdr.values)
	return true
}

// finish checks the checksum of the open page if it is read in slices, rows of which have been handed out: it reads what is left of it.
func (c *column) finish(ctx context.Context) (err error) {
	defer recovered(&err, "the column")
	for c.slices.more() && c.slices.hdr.hasCRC {
		c.rep, c.left = kernel.Hybrid{}, 0
		if err := ctx.Err(); err != nil {
			return fault.WithCode(fault.Canceled, context.Cause(ctx))
		}
		if err := c.nextSlice(ctx); err != nil {
			return err
		}
	}
	return nil
}

// finish does so for all columns, behind the last row that is wanted.
func (d *decoder) finish(ctx context.Context) error {
	if d == nil {
		return nil
	}
	for i := range d.fields {
		for _, c := range d.fields[i].cols {
			if err := c.finish(ctx); err != nil {
				return fault.Wrap(err, fault.Place{Column: d.s.arrow.Field(d.fields[i].i).Name})
			}
		}
	}
	return nil
}

// more reports whether the open page goes on behind the open slice.
func (s *slicing) more() bool { return s.open && s.rest > 0 }

// leave closes the open page.
func (c *column) leave() { c.left, c.body, c.slices.open = 0, nil, false }

// dropSlices frees what is kept of a page.
func (c *column) dropSlices() {
	if c.slices.levels != nil {
		c.d.acct.alloc.Free(c.slices.levels)
	}
	c.slices = slicing{}
}
