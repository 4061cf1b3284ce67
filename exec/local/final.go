package local

import (
	"math"
	"slices"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
)

// final sends b, which it takes over, out of the chain: its memory counted, what
// was skipped in its span attached.
func (c *chain) final(b *exec.Block) error {
	if b.Row > c.next {
		if err := c.cover(b.Row); err != nil {
			b.Release()
			return err
		}
	}
	if err := c.own(b); err != nil {
		b.Release()
		return err
	}
	c.next = max(c.next, b.Row+b.Span)
	b.Skipped = c.takeSkipped(c.next)
	return c.out(b)
}

// cover sends out an empty block for the rows up to end of which nothing is left.
func (c *chain) cover(end int64) error {
	if end <= c.next && (len(c.pending) == 0 || c.pending[0].Row >= c.next) {
		return nil
	}
	none := c.a.stage.none()
	none.Retain()
	b := &exec.Block{Batch: none, Origin: c.a.origin, Row: c.next, Span: max(end-c.next, 0)}
	c.next = max(end, c.next)
	b.Skipped = c.takeSkipped(c.next)
	return c.out(b)
}

// flush ends the task's input at position end: nothing stays pending, not even
// what was skipped of a row that this input shares with the next.
func (c *chain) flush(end int64) error {
	if err := c.cover(end); err != nil || len(c.pending) == 0 {
		return err
	}
	none := c.a.stage.none()
	none.Retain()
	return c.out(&exec.Block{Batch: none, Origin: c.a.origin, Row: c.next, Skipped: c.takeSkipped(math.MaxInt64)})
}

// end sends out the block that ends a task.
func (c *chain) end() error {
	none := c.a.stage.none()
	none.Retain()
	return c.out(&exec.Block{Batch: none, Origin: c.a.origin, Row: c.next, End: true})
}

// takeSkipped removes what is pending before position end.
func (c *chain) takeSkipped(end int64) []exec.Skipped {
	n := 0
	for n < len(c.pending) && c.pending[n].Row < end {
		n++
	}
	if n == 0 {
		return nil
	}
	s := slices.Clone(c.pending[:n])
	c.pending = slices.Delete(c.pending, 0, n)
	return s
}

// skip leaves the one row of b out.
func (c *chain) skip(b *exec.Block, err error) error {
	row := b.RowAt(0)
	p := fault.Place{Row: fault.N(row)}
	s := exec.Skipped{Err: fault.Wrap(c.a.placed(err), p), Origin: b.Origin, Row: row}
	rec, err := copyBatch(b.Batch, c.a.acct, func(arrow.Array) bool { return true })
	if err != nil {
		return err
	}
	s.Record = rec
	c.addSkipped(s)
	return nil
}

func (c *chain) addSkipped(s exec.Skipped) {
	i := len(c.pending)
	for i > 0 && c.pending[i-1].Row > s.Row {
		i--
	}
	c.pending = slices.Insert(c.pending, i, s)
}

// badRow is driver.ScanOptions.OnBadRow under Skip, of a pass over p. A row behind p is left to who
// reads that.
func (c *chain) badRow(p piece, err error) error {
	if !fault.CodeOf(err).Skippable() {
		return err
	}
	err = fault.Wrap(c.a.placed(err), fault.Place{Step: c.a.stage.scan.Step})
	row, ok := fault.PlaceOf(err).Row.Get()
	if !ok {
		return fault.New(fault.Internal, "bad row without a number: %w", err)
	}
	if p.to < 0 || row < p.to {
		c.addSkipped(exec.Skipped{Err: err, Origin: c.a.origin, Row: row})
	}
	return nil
}

// smallBuffer is the size from which buffers count; the allocator does not tell smaller ones apart.
const smallBuffer = 4 << 10

// exempt notes which memory of the block being fed is not from the allocator:
// in-memory sources, mapped files. Who made it pays for it.
func (c *chain) exempt(b *exec.Block) {
	c.foreign = c.foreign[:0]
	if b.Lends() {
		return // charged to the stage before, until the block is released
	}
	for _, col := range b.Batch.Columns() {
		c.eachForeign(col.Data(), func(at uintptr, _ int) { c.foreign = append(c.foreign, at) })
	}
	slices.Sort(c.foreign)
}

// eachForeign calls f for every large buffer of d that neither the budget's
// allocator made nor exempt noted. Dictionaries are left out: they belong to
// whoever shares them between blocks.
func (c *chain) eachForeign(d arrow.ArrayData, f func(at uintptr, size int)) {
	for _, b := range d.Buffers() {
		if b == nil || b.Len() < smallBuffer {
			continue
		}
		for b.Parent() != nil {
			b = b.Parent()
		}
		p := b.Buf()
		if len(p) == 0 || !c.a.r.budget.OffHeap() || c.a.r.budget.Owns(p) {
			continue
		}
		at := uintptr(unsafe.Pointer(unsafe.SliceData(p)))
		if _, ok := slices.BinarySearch(c.foreign, at); !ok {
			f(at, len(p))
		}
	}
	for _, ch := range d.Children() {
		c.eachForeign(ch, f)
	}
}

// own makes sure that the memory of b is paid for. What a user's function
// allocated on the Go heap is copied into the budget's memory, so that it is
// counted exactly and the collector gets rid of it soon; only where a copy
// would be large is it charged as it is.
func (c *chain) own(b *exec.Block) error {
	var seen []uintptr
	var held int64
	for _, col := range b.Batch.Columns() {
		c.eachForeign(col.Data(), func(at uintptr, size int) {
			if !slices.Contains(seen, at) {
				seen = append(seen, at)
				held += int64(size)
			}
		})
	}
	if held == 0 {
		return nil
	}
	c.heap += held
	r := c.a.r
	if exec.SizeOf(b.Batch) < r.opt.Memory/16 {
		rec, err := copyBatch(b.Batch, c.a.acct, func(col arrow.Array) bool {
			foreign := false
			c.eachForeign(col.Data(), func(uintptr, int) { foreign = true })
			return foreign
		})
		if err == nil {
			b.Batch.Release()
			b.Batch = rec
			r.freed(held)
			return nil
		}
	}
	c.advance()
	back := c.a.acct.Borrow(held)
	b.OnRelease(func() {
		r.freed(held)
		back() // now, not before: what is to be collected still takes memory
	})
	return nil
}

// copyBatch copies the rows of the columns for which which is true into memory of
// alloc, and returns a reference.
func copyBatch(rec arrow.RecordBatch, alloc memory.Allocator, which func(arrow.Array) bool) (arrow.RecordBatch, error) {
	cols := make([]arrow.Array, rec.NumCols())
	defer func() {
		for _, c := range cols {
			if c != nil {
				c.Release()
			}
		}
	}()
	for i, c := range rec.Columns() {
		if !which(c) {
			c.Retain()
			cols[i] = c
			continue
		}
		n, err := array.Concatenate([]arrow.Array{c}, alloc)
		if err != nil {
			return nil, err
		}
		cols[i] = n
	}
	return array.NewRecordBatch(rec.Schema(), cols, rec.NumRows()), nil
}
