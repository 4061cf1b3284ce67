package parquetio

import (
	"context"
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"

	"github.com/penstock-data/penstock/internal/fault"
)

// Many files have no page index. To begin at a later row of their row groups, pages
// are passed one by one: by their headers alone where these tell rows; pages of lists in
// version 1 are decompressed and the lists that begin in them counted.

// walk finds the page that holds row in columns without an offset index, so that
// pages before it need not be decoded, and adds to pages those that it saw. It returns
// how many rows they hold, by leaf.
func (c *scan) walk(ctx context.Context, row int64, wins map[int]*window, pages map[int][]pageLoc) (map[int][]pageLoc, map[int]int64, error) {
	if row == 0 {
		return pages, nil, nil
	}
	all, known := map[int][]pageLoc{}, map[int]int64{}
	for l, ps := range pages {
		all[l] = ps
	}
	for _, i := range c.fields {
		f := &c.s.fields[i]
		if f.repeated && len(f.leaves) > 1 {
			continue // pages of the leaves begin at different rows
		}
		for _, l := range f.leaves {
			if all[l] != nil {
				continue
			}
			ch := &c.g.chunks[l]
			p := pageReader{win: wins[l], c: ch, leaf: &c.s.leaves[l], pos: ch.start, end: ch.start + ch.size}
			ps, rows, err := p.walk(ctx, row, c.o.Alloc)
			if err != nil {
				return nil, nil, fault.Wrap(err, fault.Place{Column: c.s.leaves[l].name})
			}
			if ps != nil {
				all[l], known[l] = ps, rows
			}
		}
	}
	return all, known, nil
}

// walk lists the data pages of a chunk up to the one in which row begins, and keeps
// the dictionary. So no page listed begins inside row or a later one. It returns how many rows begin in these pages. None are listed if
// the pages end before, or hold what is not understood.
func (p *pageReader) walk(ctx context.Context, row int64, alloc memory.Allocator) (ps []pageLoc, rows int64, err error) {
	dec := decompressor{alloc: alloc}
	defer dec.close()
	p.dec = &dec
	for rows <= row {
		if p.win.runEnd(p.pos) == p.pos {
			return nil, 0, nil
		}
		n, err := p.header(ctx)
		if err != nil {
			return nil, 0, err
		}
		h := &p.hdr
		if err := h.check(p.c, p.end-p.pos-int64(n)); err != nil {
			return nil, 0, err
		}
		loc := pageLoc{off: p.pos, row: rows, size: int32(min(int64(n)+int64(h.comp), math.MaxInt32))}
		p.pos += int64(n) + int64(h.comp)
		switch {
		case h.typ == pageDict && len(ps) == 0:
			b, err := p.win.bytes(ctx, loc.off, p.pos-loc.off)
			if err != nil {
				return nil, 0, err
			}
			p.win.keepDict(b, loc.off)
		case h.typ == pageData && h.values > 0 && p.leaf.maxRep > 0:
			p.pos, p.values = loc.off, -1
			body, ok, err := p.next(ctx)
			if err != nil || !ok {
				return nil, 0, err
			}
			begun, mid, ok := h.rowsBegun(p.leaf, body)
			if !ok || mid && rows == 0 {
				return nil, 0, nil
			}
			if loc.mid = mid; mid {
				loc.row--
			}
			ps = append(ps, loc)
			rows += begun
		case (h.typ == pageData || h.typ == pageV2) && h.values > 0:
			k := h.values
			if p.leaf.maxRep > 0 {
				k = h.rows
			}
			ps = append(ps, loc)
			rows += int64(k)
		}
	}
	return ps, rows, nil
}

// rowsBegun counts the rows that begin in a page of version 1 of a list, by its repetition
// levels; mid says that it begins inside one.
func (h *pageHeader) rowsBegun(l *leaf, body []byte) (rows int64, mid, ok bool) {
	if h.repEnc != encRLE || len(body) < 4 || l.maxDef > 255 { // rowStart's levels are bytes
		return 0, false, false
	}
	size := int64(binary.LittleEndian.Uint32(body))
	if size > int64(len(body)-4) {
		return 0, false, false
	}
	width := bits.Len16(uint16(l.maxRep))
	r := &thriftReader{b: body[4 : 4+size]}
	for left, first := int64(h.values), true; left > 0; first = false {
		run := r.uvarint()
		if r.bad || run>>1 == 0 || run>>1 > math.MaxInt32 {
			return 0, false, false
		}
		if run&1 == 0 { // one level, repeated
			var v byte
			for range (width + 7) / 8 {
				v |= r.byte()
			}
			n := min(left, int64(run>>1))
			if left -= n; v == 0 {
				rows += n
			}
			mid = mid || first && v != 0
			continue
		}
		at := r.i // groups of 8 levels, packed
		r.advance(int(run>>1) * width)
		if r.bad {
			return 0, false, false
		}
		packed := r.b[at:r.i]
		n := min(left, int64(run>>1)*8)
		mid = mid || first && level(packed, 0, width) != 0
		k := int64(0)
		if width == 1 {
			for ; k+8 <= n; k += 8 {
				rows += 8 - int64(bits.OnesCount8(packed[k/8]))
			}
		}
		for ; k < n; k++ {
			if level(packed, k, width) == 0 {
				rows++
			}
		}
		left -= n
	}
	return rows, mid, !r.bad
}

// level is the k-th of packed levels, of at most 16 bits.
func level(packed []byte, k int64, width int) (v uint32) {
	bit := k * int64(width)
	for i := min(bit/8+2, int64(len(packed)-1)); i >= bit/8; i-- {
		v = v<<8 | uint32(packed[i])
	}
	return v >> (bit % 8) & (1<<width - 1)
}

// rowStart is a page of version 1 that begins a list of one value: what precedes a page
// that begins inside a list, so that its first values belong to one. The row is
// not to be used.
func rowStart(l *leaf) (pageHeader, []byte) {
	var b []byte
	for _, lv := range [2]struct{ max, v int16 }{{l.maxRep, 0}, {l.maxDef, l.maxDef}} {
		if lv.max > 0 {
			b = append(b, 2, 0, 0, 0, 1<<1, byte(lv.v)) // a run of one level
		}
	}
	switch l.physical {
	case parquet.Types.Boolean:
		b = append(b, 0)
	case parquet.Types.Int64, parquet.Types.Double:
		b = append(b, make([]byte, 8)...)
	case parquet.Types.Int96:
		b = append(b, make([]byte, 12)...)
	case parquet.Types.FixedLenByteArray:
		b = append(b, make([]byte, l.width)...)
	default: // 4 bytes, or the length of an empty text
		b = append(b, make([]byte, 4)...)
	}
	return pageHeader{typ: pageData, raw: int32(len(b)), values: 1, enc: encPlain, defEnc: encRLE, repEnc: encRLE}, b
}
