package parquetio

import (
	"cmp"
	"context"
	"slices"

	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
)

const (
	maxIndexBytes = 16 << 20 // of one column's index; larger ones are not used
	maxPages      = 1 << 20
)

// pageLoc is a data page, from the offset index or its own header.
type pageLoc struct {
	off  int64 // in the file
	row  int64 // first row, in the row group
	size int64 // to the next page, or the end of the chunk
}

// parseOffsetIndex returns nil if the index cannot be right for the chunk.
func parseOffsetIndex(b []byte, c *chunk, rows int64) []pageLoc {
	r := &thriftReader{b: b}
	var ps []pageLoc
	r.fields(func(id int16, typ byte) {
		if id != 1 || typ != tList {
			r.skip(typ, false)
			return
		}
		r.each(tStruct, func(int) {
			var p pageLoc
			r.fields(func(id int16, typ byte) {
				switch {
				case id == 1 && typ == tI64:
					p.off = r.int()
				case id == 2 && typ == tI32:
					p.size = int64(r.i32())
				case id == 3 && typ == tI64:
					p.row = r.int()
				default:
					r.skip(typ, false)
				}
			})
			ps = append(ps, p)
		})
	})
	if r.bad || len(ps) == 0 || len(ps) > maxPages || ps[0].row != 0 {
		return nil
	}
	if (c.flags&hasDict != 0) == (ps[0].off == c.start) { // it counts the dictionary among the pages, or leaves one out
		return nil
	}
	end := c.start
	for i, p := range ps {
		if p.off < end || p.size <= 0 || p.size > c.start+c.size-p.off ||
			p.row >= rows || i > 0 && p.row < ps[i-1].row {
			return nil
		}
		end = p.off + p.size
	}
	// Some writers leave the headers out of the sizes: where pages begin says as much.
	end = c.start + c.size
	for i := range slices.Backward(ps) {
		ps[i].size, end = end-ps[i].off, ps[i].off
	}
	return ps
}

// pageRows is the rows of page i.
func pageRows(ps []pageLoc, i int, rows int64) rowRange {
	if i+1 < len(ps) {
		rows = ps[i+1].row
	}
	return rowRange{ps[i].row, rows}
}

// pageOf is the page that holds row.
func pageOf(ps []pageLoc, row int64) int {
	i, found := slices.BinarySearchFunc(ps, row, func(p pageLoc, row int64) int { return cmp.Compare(p.row, row) })
	if !found {
		return i - 1
	}
	for i+1 < len(ps) && ps[i+1].row == row { // pages before are without rows
		i++
	}
	return i
}

// columnIndex holds the statistics of a column's pages.
type columnIndex struct {
	null     []bool
	min, max [][]byte
	nulls    []int64 // nil: unknown
}

func parseColumnIndex(b []byte, pages int) *columnIndex {
	r := &thriftReader{b: b}
	ci := new(columnIndex)
	r.fields(func(id int16, typ byte) {
		switch {
		case id == 1 && typ == tList:
			t, n := r.list()
			for i := 0; i < n && !r.bad; i++ {
				v := r.byte()
				ci.null = append(ci.null, v == tTrue)
			}
			if t != tTrue && t != tFalse && n > 0 {
				r.fail()
			}
		case id == 2 && typ == tList:
			r.each(tBinary, func(int) { ci.min = append(ci.min, r.bin()) })
		case id == 3 && typ == tList:
			r.each(tBinary, func(int) { ci.max = append(ci.max, r.bin()) })
		case id == 5 && typ == tList:
			r.each(tI64, func(int) { ci.nulls = append(ci.nulls, r.int()) })
		default:
			r.skip(typ, false)
		}
	})
	if r.bad || len(ci.null) != pages || len(ci.min) != pages || len(ci.max) != pages ||
		ci.nulls != nil && len(ci.nulls) != pages {
		return nil
	}
	return ci
}

func (ci *columnIndex) bounds(page int, k kind, rows int64) bounds {
	b := bounds{kind: k, nulls: -1, values: rows}
	if ci.nulls != nil {
		b.nulls = ci.nulls[page]
	}
	if ci.null[page] {
		b.nulls = rows
		return b
	}
	b.min, b.max, b.hasMin, b.hasMax = string(ci.min[page]), string(ci.max[page]), true, true
	b.minExact, b.maxExact = k != kindBytes, k != kindBytes
	return b
}

// rowRange is [from, to).
type rowRange struct{ from, to int64 }

// intersect keeps what is in both; both are sorted and disjoint.
func intersect(a, b []rowRange) []rowRange {
	var out []rowRange
	for len(a) > 0 && len(b) > 0 {
		from, to := max(a[0].from, b[0].from), min(a[0].to, b[0].to)
		if from < to {
			out = append(out, rowRange{from, to})
		}
		if a[0].to < b[0].to {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return out
}

// indexes fetches the offset indexes of leaves (nil where there is none that can
// be used) and, if columns, the column indexes of the same.
func (g *rowGroup) indexes(ctx context.Context, f *input, s *fileSchema, leaves []int, columns bool) (ois map[int][]pageLoc, cis map[int]*columnIndex, err error) {
	var rs []blobio.Range
	for _, l := range leaves {
		c := &g.chunks[l]
		if c.oiLen > 0 && c.oiLen <= maxIndexBytes {
			rs = append(rs, blobio.Range{Off: c.oi, Len: int64(c.oiLen)})
		}
		if columns && c.ciLen > 0 && c.ciLen <= maxIndexBytes {
			rs = append(rs, blobio.Range{Off: c.ci, Len: int64(c.ciLen)})
		}
	}
	bufs, err := f.readRanges(ctx, rs)
	if err != nil {
		return nil, nil, err
	}
	ois, cis = map[int][]pageLoc{}, map[int]*columnIndex{}
	for _, l := range leaves {
		c := &g.chunks[l]
		if ps := parseOffsetIndex(bufs[blobio.Range{Off: c.oi, Len: int64(c.oiLen)}], c, g.rows); ps != nil {
			ois[l] = ps
			if !columns || c.ciLen <= 0 || c.ciLen > maxIndexBytes {
				continue
			}
			ci := parseColumnIndex(bufs[blobio.Range{Off: c.ci, Len: int64(c.ciLen)}], len(ps))
			if s.gate.index(&s.leaves[l], c, g.rows, ps, ci) {
				cis[l] = ci
			}
		}
	}
	return ois, cis, nil
}

// matching returns the rows of pages in which t may be true.
func matching(t *driver.Term, k kind, rows int64, ps []pageLoc, ci *columnIndex) []rowRange {
	var out []rowRange
	for i := range ps {
		r := pageRows(ps, i, rows)
		b := ci.bounds(i, k, r.to-r.from)
		switch {
		case r.from == r.to || !b.keep(t):
		case len(out) > 0 && out[len(out)-1].to == r.from:
			out[len(out)-1].to = r.to
		default:
			out = append(out, r)
		}
	}
	return out
}
