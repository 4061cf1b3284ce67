package operators

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/ops"
)

// Map runs a user's function: ops.MapFunc or ops.FlatMapFunc.
// Order kept. Rows kept, or multiplied by a FlatMapFunc. Memory: that of the function; with
// BatchRows, blocks are given to it in slices, and emitted so.
type Map struct {
	op
	fn        *ops.Func
	batchRows int
}

// NewMap: schema is what the function returns.
func NewMap(step Step, fn *ops.Func, batchRows int, schema *arrow.Schema) *Map {
	return &Map{newOp(step, schema), fn, batchRows}
}

// NeedsRows: generators are keyed by positions, and slices must end between rows.
func (m *Map) NeedsRows() bool { return m.fn.UsesRandom || m.batchRows > 0 }

func (m *Map) NewTask(env *exec.Env) (exec.Task, error) { return &mapTask{m: m, env: env}, nil }

type mapTask struct {
	noClose
	m   *Map
	env *exec.Env
}

func (t *mapTask) Process(ctx context.Context, in *exec.Block, emit exec.Emit) error {
	n := int(in.Batch.NumRows())
	if n == 0 {
		return t.m.none(in, emit)
	}
	size := n
	if t.m.batchRows > 0 {
		size = min(n, t.m.batchRows)
	}
	p := pieces{in: in, alloc: t.env.Alloc, emit: emit, track: t.env.TrackRows}
	defer p.close()
	for lo := 0; lo < n; lo += size {
		hi := min(lo+size, n)
		out, rows, ords, err := t.call(ctx, in, lo, hi)
		if err != nil {
			return t.m.userFail(ctx, err, in, lo)
		}
		if err := p.add(hi, out, rows, ords); err != nil {
			return err
		}
	}
	return nil
}

// call gives rows lo to hi-1 to the function and checks what it returns.
func (t *mapTask) call(ctx context.Context, in *exec.Block, lo, hi int) (arrow.RecordBatch, []int64, []uint64, error) {
	rec := in.Batch
	if hi-lo < int(rec.NumRows()) {
		rec = rec.NewSlice(int64(lo), int64(hi))
		defer rec.Release()
	}
	m := t.m
	ctx = callContext(ctx, t.env, &m.op, m.fn, in, lo, hi)
	var out arrow.RecordBatch
	var parents []int32
	var err error
	if m.fn.Map != nil {
		out, err = m.fn.Map(ctx, rec)
	} else {
		out, parents, err = m.fn.FlatMap(ctx, rec)
	}
	if out != nil {
		defer out.Release()
	}
	if err != nil {
		return nil, nil, nil, err
	}
	if out == nil {
		return nil, nil, nil, fault.New(fault.Invalid, "the function returned no batch")
	}
	if err := checkColumns(out.Schema(), m.schema); err != nil {
		return nil, nil, nil, fault.New(fault.Invalid, "the function returned other columns than it should: %w", err)
	}
	if m.fn.Map != nil {
		if out.NumRows() != int64(hi-lo) {
			return nil, nil, nil, fault.New(fault.Invalid, "the function made %d rows of %d; use a flat map for that", out.NumRows(), hi-lo)
		}
		rows, ords := in.Rows, in.Ords
		if rows != nil { // nil: the piece's Row says it all
			rows = rows[lo:hi]
		}
		if ords != nil {
			ords = ords[lo:hi]
		}
		return relabel(out, m.schema), rows, ords, nil
	}
	if err := checkParents(parents, out.NumRows(), hi-lo); err != nil {
		return nil, nil, nil, fault.New(fault.Invalid, "the function returned wrong parents: %w", err)
	}
	rows, ords := multiplied(t.env, in, lo, parents)
	return relabel(out, m.schema), rows, ords, nil
}

// checkParents: one per row, ascending, within 0 and n-1.
func checkParents[I int32 | int64](parents []I, rows int64, n int) error {
	if int64(len(parents)) != rows {
		return fmt.Errorf("%d for %d rows", len(parents), rows)
	}
	var last I
	for k, p := range parents {
		if p < last || int64(p) >= int64(n) {
			return fmt.Errorf("row %d has parent %d; parents are row numbers of the input (%d rows), ascending", k, p, n)
		}
		last = p
	}
	return nil
}

// callContext is the context of one call of a user's function with rows lo to hi-1 of in.
func callContext(ctx context.Context, env *exec.Env, o *op, fn *ops.Func, in *exec.Block, lo, hi int) context.Context {
	c := &ops.Call{Alloc: env.Alloc, Random: fn.UsesRandom, Site: o.step.Site}
	if fn.UsesRandom {
		c.Rows = rowsOf(env, in, lo, hi)
	}
	return ops.WithCall(ctx, c)
}
