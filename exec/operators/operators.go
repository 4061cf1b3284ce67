// Package operators has the operators that exec/plan puts together. They compute;
// scheduling, retries and budgets are the engine's.
//
// The comment of each operator says: order kept? rows kept? memory bound? All are
// row-wise: what becomes of a row does not depend on where its block was cut.
//
// Errors are fault errors that carry the step and, where it is known, the split
// position of the row as Place.Row. The first failing row of a block is named.
package operators

import (
	"context"
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/ops/expr"
)

// Step is where an operator stands in the plan.
type Step struct {
	Name string // one line for Explain
	Step string // `step 3 (filter)`
	// Site is the place of the step that keys random numbers: the same for one step
	// of the user's plan, whatever the rules made of it. Its low 32 bits are 0.
	Site int
}

// op is what all operators have.
type op struct {
	step   Step
	schema *arrow.Schema
	empty  arrow.RecordBatch // of schema, without rows; holds no memory
}

func newOp(step Step, schema *arrow.Schema) op {
	return op{step, schema, gather.None(schema)}
}

func (o *op) Name() string          { return o.step.Name }
func (o *op) Step() string          { return o.step.Step }
func (o *op) Schema() *arrow.Schema { return o.schema }

// none emits that the span of in has no rows.
func (o *op) none(in *exec.Block, emit exec.Emit) error {
	o.empty.Retain()
	return emit(in.With(o.empty, nil, nil))
}

// noClose is for tasks that hold nothing between blocks.
type noClose struct{}

func (noClose) Close() error { return nil }

// fail gives err the step and origin, and turns Place.Row from an index in the batch that
// starts at row base of in into a split position.
func (o *op) fail(err error, in *exec.Block, base int) error {
	if err == nil || errors.Is(err, exec.ErrDone) {
		return err
	}
	p := fault.Place{Step: o.step.Step, File: in.Origin.File}
	if p.File != "" {
		p.RowGroup = fault.N(in.Origin.Index)
	}
	var fe *fault.Error
	if e, ok := err.(*fault.Error); ok {
		c := *e
		fe = &c
	} else if e, ok := errors.AsType[*fault.Error](err); ok {
		fe = &fault.Error{Code: e.Code, Place: fault.Place{Row: e.Row}, Err: err}
	} else {
		return fault.Wrap(err, p)
	}
	if i, ok := fe.Row.Get(); ok {
		fe.Row = 0
		if i += int64(base); i >= 0 && i < in.Batch.NumRows() && known(in) {
			fe.Row = fault.N(in.RowAt(int(i)))
		}
	}
	return fe.At(p)
}

// known reports whether RowAt gives the truth: no step before dropped rows untracked.
func known(in *exec.Block) bool { return in.Rows != nil || in.Batch.NumRows() == in.Span }

// userFail is fail for what a user's function returned: errors without a code are UserCode.
func (o *op) userFail(ctx context.Context, err error, in *exec.Block, base int) error {
	if ctx.Err() != nil {
		return o.fail(fault.WithCode(fault.Canceled, err), in, base)
	}
	if fault.CodeOf(err) == fault.Canceled || fault.CodeOf(err) == fault.Unknown {
		err = &fault.Error{Code: fault.UserCode, Err: err} // a deadline of the function's own, for one
	}
	return o.fail(fault.WithCode(fault.UserCode, err), in, base)
}

// rowsOf describes rows lo to hi-1 of in for random().
func rowsOf(env *exec.Env, in *exec.Block, lo, hi int) expr.Rows {
	r := expr.Rows{Seed: env.Seed, Epoch: env.Epoch, Source: in.Origin.Source, Split: in.Origin.Split, Row: in.Row + int64(lo)}
	if in.Rows != nil {
		r.At = in.Rows[lo:hi]
	}
	if in.Ords != nil {
		r.Ords = in.Ords[lo:hi]
	}
	return r
}

// kept gives positions and ordinals of the selected rows of in; nil, nil where they are not tracked.
func kept(env *exec.Env, in *exec.Block, sel *expr.Selection) ([]int64, []uint64) {
	if !env.TrackRows {
		return nil, nil
	}
	if sel.All() {
		return in.Rows, in.Ords
	}
	if in.Rows == nil && in.Ords == nil {
		rows := make([]int64, sel.Len())
		sel.Positions(rows, in.Row)
		return rows, nil
	}
	idx := sel.Rows()
	rows := make([]int64, len(idx))
	for k, i := range idx {
		rows[k] = in.RowAt(int(i))
	}
	var ords []uint64
	if in.Ords != nil {
		ords = make([]uint64, len(idx))
		for k, i := range idx {
			ords[k] = in.Ords[i]
		}
	}
	return rows, ords
}

// multiplied is kept for steps that make several rows of one: parents[k] is the row of in
// (counted from base) that out row k comes from, ascending.
func multiplied(env *exec.Env, in *exec.Block, base int, parents []int32) ([]int64, []uint64) {
	if !env.TrackRows {
		return nil, nil
	}
	rows := make([]int64, len(parents))
	ords := make([]uint64, len(parents))
	j := 0
	for k, p := range parents {
		if k > 0 && parents[k-1] == p {
			j++
		} else {
			j = 0
		}
		i := base + int(p)
		rows[k] = in.RowAt(i)
		var o uint64
		if in.Ords != nil {
			o = in.Ords[i]
		}
		ords[k] = exec.NextOrd(o, j)
	}
	return rows, ords
}

// relabel gives rec the schema s, which has the same columns but for nullability and metadata.
// Returns a reference; borrows rec.
func relabel(rec arrow.RecordBatch, s *arrow.Schema) arrow.RecordBatch {
	if rec.Schema() == s || rec.Schema().Equal(s) {
		rec.Retain()
		return rec
	}
	return array.NewRecordBatch(s, rec.Columns(), rec.NumRows())
}

// checkColumns says how got differs from what was declared.
func checkColumns(got, want *arrow.Schema) error {
	if ops.SameColumns(got, want) {
		return nil
	}
	if got.NumFields() != want.NumFields() {
		count := func(n int) string {
			if n == 1 {
				return "1 column"
			}
			return fmt.Sprintf("%d columns", n)
		}
		return fmt.Errorf("%s where %s should be", count(got.NumFields()), count(want.NumFields()))
	}
	for i := range want.NumFields() {
		g, w := got.Field(i), want.Field(i)
		if g.Name != w.Name || !arrow.TypeEqual(g.Type, w.Type) {
			return fmt.Errorf("column %d is %q %s and should be %q %s", i+1, g.Name, expr.TypeName(g.Type), w.Name, expr.TypeName(w.Type))
		}
	}
	return nil
}

// pieces emits what a step made of in piece by piece. A block must end where the
// next source row begins, so pieces that end inside of one (after an explode) are held back and
// joined with the next.
type pieces struct {
	in    *exec.Block
	alloc memory.Allocator
	emit  exec.Emit
	track bool

	lo    int // rows of in emitted so far
	parts []arrow.RecordBatch
	rows  []int64
	ords  []uint64
}

// add takes over batch: what became of the rows up to hi-1 of in.
func (p *pieces) add(hi int, batch arrow.RecordBatch, rows []int64, ords []uint64) error {
	in := p.in
	n := int(in.Batch.NumRows())
	p.parts = append(p.parts, batch)
	if len(p.parts) == 1 {
		p.rows, p.ords = rows, ords
	} else if p.track {
		p.rows, p.ords = append(p.rows[:len(p.rows):len(p.rows)], rows...), append(p.ords[:len(p.ords):len(p.ords)], ords...)
	}
	if hi < n && in.RowAt(hi) == in.RowAt(hi-1) {
		return nil
	}
	out := p.parts[0]
	if len(p.parts) > 1 {
		var err error
		if out, err = join(p.parts, p.alloc); err != nil {
			return err
		}
		p.close()
	}
	b := in.With(out, p.rows, p.ords)
	if p.lo > 0 {
		b.Row = min(in.RowAt(p.lo), in.Row+in.Span)
	}
	end := in.Row + in.Span
	if hi < n {
		end = min(in.RowAt(hi), end)
	}
	b.Span = end - b.Row
	p.lo, p.parts, p.rows, p.ords = hi, p.parts[:0], nil, nil
	return p.emit(b)
}

// close frees what was held back.
func (p *pieces) close() {
	for _, r := range p.parts {
		r.Release()
	}
	p.parts = p.parts[:0]
}

// join concatenates batches of one schema. Borrows them.
func join(parts []arrow.RecordBatch, alloc memory.Allocator) (arrow.RecordBatch, error) {
	s := parts[0].Schema()
	cols := make([]arrow.Array, 0, s.NumFields())
	defer func() {
		for _, c := range cols {
			c.Release()
		}
	}()
	var n int64
	for _, r := range parts {
		n += r.NumRows()
	}
	for i := range s.NumFields() {
		arrs := make([]arrow.Array, len(parts))
		for k, r := range parts {
			arrs[k] = r.Column(i)
		}
		c, err := array.Concatenate(arrs, alloc)
		if err != nil {
			return nil, fault.New(fault.Internal, "joining batches: %w", err)
		}
		cols = append(cols, c)
	}
	return array.NewRecordBatch(s, cols, n), nil
}
