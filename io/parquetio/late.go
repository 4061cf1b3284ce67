package parquetio

import (
	"context"
	"encoding/binary"
	"errors"
	"math/bits"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/io/driver"
)

const (
	gapBytes = 128 << 10 // decoded for nothing cost less than a batch more
	maxGap   = 2048      // rows
	leastCut = 16        // a window is cut if it loses one row of that many
)

// late judges rows by the columns of the predicate's terms before the other columns are decoded.
//
// A window, the rows that would be a batch, is cut to ranges of rows that may match; the
// other columns are decoded for these alone, and each range is a batch. Ranges that
// are near each other are one; of their rows those that match are chosen, if batches may have gaps. A window that loses few
// rows is left whole. What is cut of a window depends on its values and sizes alone.
type late struct {
	terms  []rowTerm
	first  []int // of the decoder's fields: those of the terms, ascending
	rest   []int // those wanted besides
	want   []int // for every wanted field, its place in first, or -1-its place in rest
	gap    int64 // rows that do not match between two ranges, at least
	mask   []byte
	ranges []rowRange // scratch

	// The window being read.
	from, to int64
	held     []arrow.Array // fields of first, all rows
	left     []leftRange
	together bool          // fields of rest are to be decoded for all rows at once
	whole    []arrow.Array // they are
}

// leftRange is rows of a window that are left: all, or those that are chosen.
type leftRange struct {
	rowRange
	keep *chosen // from row from-done on
	done int
}

// newLate returns the columns that are decoded besides c.fields, and nil if
// no row can be judged or nothing is won by that.
func newLate(c *scan) (l *late, extra []int) {
	if len(c.fields) == 0 {
		return nil, nil
	}
	l = new(late)
	for i := range c.terms {
		leaf, ok := c.s.term(&c.terms[i])
		if !ok || c.g.chunks[leaf].readable() != nil {
			continue
		}
		if _, err := layoutOf(&c.s.leaves[leaf]); err != nil {
			continue
		}
		f := c.s.arrow.FieldIndices(c.terms[i].Column)[0]
		t, ok := newRowTerm(&c.terms[i], c.s.arrow.Field(f).Type)
		if !ok {
			continue
		}
		if t.field = slices.Index(c.fields, f); t.field < 0 {
			if t.field = slices.Index(extra, f); t.field < 0 {
				t.field = len(extra)
				extra = append(extra, f)
			}
			t.field += len(c.fields)
		}
		l.terms = append(l.terms, t)
		if !slices.Contains(l.first, t.field) {
			l.first = append(l.first, t.field)
		}
	}
	slices.Sort(l.first)
	var rest []int
	for k, f := range c.fields {
		if i, ok := slices.BinarySearch(l.first, k); ok {
			l.want = append(l.want, i)
			continue
		}
		l.want = append(l.want, -1-len(l.rest))
		l.rest = append(l.rest, k)
		rest = append(rest, f)
	}
	if len(l.terms) == 0 || len(l.rest) == 0 {
		return nil, nil
	}
	perRow := c.s.decodedBytes(c.g, rest) / max(c.g.rows, 1)
	l.gap = min(max(gapBytes/max(perRow, 1), 1), maxGap)
	return l, extra
}

// judge sets the ranges that are left of the n rows at row, whose columns are held, and returns how many rows are
// cut. With gaps rows are cut also in the midst of ranges.
func (l *late) judge(row, n int64, gaps bool) (cut int64) {
	m := scratch(&l.mask, int(n))
	setAll(m, 1)
	for i := range l.terms {
		t := &l.terms[i]
		k, _ := slices.BinarySearch(l.first, t.field)
		t.mark(m, l.held[k])
	}
	l.from, l.to = row, row+n
	cut = n
	l.ranges = matches(l.ranges[:0], m, row, l.gap)
	for _, x := range l.ranges {
		left := leftRange{rowRange: x}
		rows := x.to - x.from
		if gaps {
			keep := chooseFrom(m[x.from-row : x.to-row])
			if n := int64(keep.n); (rows-n)*leastCut >= rows {
				left.keep, rows = keep, n
			}
		}
		l.left = append(l.left, left)
		cut -= rows
	}
	if cut*leastCut < n { // that costs more than decoding them
		l.left, cut = append(l.left[:0], leftRange{rowRange: rowRange{row, row + n}}), 0
	}
	return cut
}

// matches appends the ranges of rows whose byte in m, which begins at row, is 1. Those
// with fewer than gap rows between them are one.
func matches(out []rowRange, m []byte, row, gap int64) []rowRange {
	for i := 0; i < len(m); {
		if len(m)-i >= 8 {
			w := binary.LittleEndian.Uint64(m[i:])
			if w == 0 || gap >= 8 {
				if w != 0 {
					out = joined(out, rowRange{row + int64(i+bits.TrailingZeros64(w)/8), row + int64(i+8-bits.LeadingZeros64(w)/8)}, gap)
				}
				i += 8
				continue
			}
		}
		if m[i] != 0 {
			out = joined(out, rowRange{row + int64(i), row + int64(i) + 1}, gap)
		}
		i++
	}
	return out
}

// joined appends x, or makes the last range longer.
func joined(out []rowRange, x rowRange, gap int64) []rowRange {
	if n := len(out); n > 0 && x.from-out[n-1].to < gap {
		out[n-1].to = x.to
		return out
	}
	return append(out, x)
}

// release gives back what is held of the window.
func (l *late) release() {
	releaseAll(l.held)
	releaseAll(l.whole)
	l.held, l.whole, l.left = nil, nil, l.left[:0]
}

// judge decodes the columns of the terms for the n rows at row, or for fewer if they take too much
// memory, and says for how many.
func (r *reader) judge(ctx context.Context, row, n int64) (int64, error) {
	l := r.late
	var err error
	if l.held, n, err = r.columns(ctx, l.first, row, n, nil, 2); err != nil {
		return 0, err
	}
	r.o.Stats.Pruned.Add(l.judge(row, n, r.o.Gaps))
	l.together = r.dec.sharers > 0
	if len(l.left) == 0 {
		l.release()
	}
	return n, nil
}

// survivors decodes the other columns of the first range that is left of the window, or of some of it.
func (r *reader) survivors(ctx context.Context) error {
	l := r.late
	x := &l.left[0]
	from, n := x.from, min(x.to-x.from, r.batch)
	if l.together && l.whole == nil {
		if err := r.wholeWindow(ctx); err != nil {
			return err
		}
	}
	keep := x.keep.part(x.done, int(n))
	var rest []arrow.Array
	var err error
	switch {
	case keep.count(int(n)) == 0:
	case l.whole != nil:
		rest, err = r.parts(l.whole, from, n, keep)
	default:
		rows := n
		if rest, n, err = r.columns(ctx, l.rest, from, n, keep, 2); n < rows {
			keep = x.keep.part(x.done, int(n))
		}
	}
	if err != nil {
		return err
	}
	defer releaseAll(rest)
	var first []arrow.Array
	if len(rest) > 0 {
		if first, err = r.parts(l.held, from, n, keep); err != nil {
			return err
		}
	}
	defer releaseAll(first)
	x.from, x.done = x.from+n, x.done+int(n)
	if x.from == x.to {
		l.left = l.left[1:]
	}
	if len(l.left) == 0 {
		l.release()
	}
	if len(rest) == 0 { // none of these rows is chosen
		return nil
	}
	cols := make([]arrow.Array, len(l.want))
	for i, k := range l.want {
		if k >= 0 {
			cols[i] = first[k]
		} else {
			cols[i] = rest[-1-k]
		}
	}
	b := driver.Batch{Row: from}
	if keep != nil {
		b.Rows = keep.positions(from)
		b.Row = b.Rows[0]
	}
	return r.record(cols, b, int64(keep.count(int(n))))
}

// leave leaves out a row of the first range that is left.
func (l *late) leave(row int64) {
	x := l.left[0]
	var left []leftRange
	if x.from < row {
		left = append(left, leftRange{rowRange{x.from, row}, x.keep, x.done})
	}
	if row+1 < x.to {
		left = append(left, leftRange{rowRange{row + 1, x.to}, x.keep, x.done + int(row+1-x.from)})
	}
	if l.left = append(left, l.left[1:]...); len(l.left) == 0 {
		l.release()
	}
}

// wholeWindow decodes the other columns of all rows of the window at once: columns that share memory
// for a page would decompress it again for every range. If that takes too much memory, each range is decoded by itself.
func (r *reader) wholeWindow(ctx context.Context) error {
	l := r.late
	l.together = false
	whole, err := r.dec.readFields(ctx, l.rest, l.from, int(l.to-l.from), nil, max(maxBatchGrow*r.o.BatchBytes, leastLimit)/2)
	_, large := errors.AsType[errTooLarge](err)
	if _, bad := badRow(err); large || bad {
		return nil
	}
	l.whole = whole
	return err
}

// parts are the n rows at from of the window's arrays, or the chosen ones.
func (r *reader) parts(as []arrow.Array, from, n int64, keep *chosen) (out []arrow.Array, err error) {
	defer func() {
		if err != nil {
			releaseAll(out)
		}
	}()
	at := from - r.late.from
	for _, a := range as {
		var part arrow.Array
		if keep != nil {
			all := array.NewSlice(a, at, at+n)
			part, err = keep.of(all, &r.dec.acct)
			all.Release()
		} else {
			part, err = partOf(a, at, n, r.o.Alloc)
		}
		if err != nil {
			return out, err
		}
		out = append(out, part)
	}
	return out, nil
}

// partOf are n rows of an array, as a reference. A small part is copied, so that it holds no memory of the others.
func partOf(a arrow.Array, at, n int64, alloc memory.Allocator) (arrow.Array, error) {
	if at == 0 && n == int64(a.Len()) {
		a.Retain()
		return a, nil
	}
	part := array.NewSlice(a, at, at+n)
	if n >= int64(a.Len())*3/4 || a.DataType().ID() == arrow.DICTIONARY { // its indexes are small, and the dictionary is shared
		return part, nil
	}
	defer part.Release()
	return array.Concatenate([]arrow.Array{part}, alloc)
}

func releaseAll(as []arrow.Array) {
	for _, a := range as {
		a.Release()
	}
}
