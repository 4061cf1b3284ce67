package operators

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/ops/expr"
)

// Filter keeps the rows for which an expression is true.
// Order kept. Rows dropped. Memory: at most one copy of the block, of the columns
// kept; where every row stays, none.
type Filter struct {
	op
	prog   *expr.Program
	cols   []int // of the input, that the output has; nil: all
	random bool
}

// NewFilter binds e to in. out names the columns that later steps read, in the order of
// in (nil: all): the others are not gathered.
func NewFilter(step Step, in *arrow.Schema, e *expr.Expr, out []string) (*Filter, error) {
	prog, err := e.Bind(in, step.Site)
	if err != nil {
		return nil, fault.Wrap(err, fault.Place{Step: step.Step})
	}
	schema, cols, err := narrow(in, out)
	if err != nil {
		return nil, err
	}
	return &Filter{newOp(step, schema), prog, cols, e.Random()}, nil
}

// narrow is in with the columns out only, and their indices.
func narrow(in *arrow.Schema, out []string) (*arrow.Schema, []int, error) {
	if out == nil || len(out) == in.NumFields() {
		return in, nil, nil
	}
	cols := make([]int, len(out))
	fields := make([]arrow.Field, len(out))
	for i, name := range out {
		idx := in.FieldIndices(name)
		if len(idx) != 1 {
			return nil, nil, fault.New(fault.Internal, "no column %q to keep", name)
		}
		cols[i], fields[i] = idx[0], in.Field(idx[0])
	}
	md := in.Metadata()
	return arrow.NewSchema(fields, &md), cols, nil
}

// choose is rec with the columns cols only, under schema. Returns a reference.
func choose(rec arrow.RecordBatch, cols []int, schema *arrow.Schema) arrow.RecordBatch {
	if cols == nil {
		rec.Retain()
		return rec
	}
	arrs := make([]arrow.Array, len(cols))
	for i, c := range cols {
		arrs[i] = rec.Column(c)
	}
	return array.NewRecordBatch(schema, arrs, rec.NumRows())
}

// NeedsRows: random() is keyed by positions.
func (f *Filter) NeedsRows() bool { return f.random }

func (f *Filter) NewTask(env *exec.Env) (exec.Task, error) { return &filterTask{f: f, env: env}, nil }

type filterTask struct {
	noClose
	f   *Filter
	env *exec.Env
}

func (t *filterTask) Process(_ context.Context, in *exec.Block, emit exec.Emit) error {
	n := int(in.Batch.NumRows())
	if n == 0 {
		return t.f.none(in, emit)
	}
	rows := rowsOf(t.env, in, 0, n)
	mask, err := t.f.prog.Eval(in.Batch, &rows, t.env.Alloc)
	if err != nil {
		return t.f.fail(err, in, 0)
	}
	defer mask.Release()
	return t.f.keep(t.env, in, t.f.cols, mask.(*array.Boolean), emit)
}

// keep emits the rows of in that mask says, of the columns cols.
func (o *op) keep(env *exec.Env, in *exec.Block, cols []int, mask *array.Boolean, emit exec.Emit) error {
	sel := expr.Select(mask)
	if sel.Len() == 0 {
		return o.none(in, emit)
	}
	rec := choose(in.Batch, cols, o.schema)
	defer rec.Release()
	out, err := expr.Filter(rec, sel, env.Alloc)
	if err != nil {
		return o.fail(err, in, 0)
	}
	rows, ords := kept(env, in, sel)
	return emit(in.With(out, rows, ords))
}

// FilterFunc keeps the rows for which a user's function says true.
// Order kept. Rows dropped. Memory: that of the function, and one copy of the block.
type FilterFunc struct {
	op
	fn   *ops.Func
	cols []int
}

// NewFilterFunc: out as in [NewFilter].
func NewFilterFunc(step Step, in *arrow.Schema, fn *ops.Func, out []string) (*FilterFunc, error) {
	schema, cols, err := narrow(in, out)
	if err != nil {
		return nil, err
	}
	return &FilterFunc{newOp(step, schema), fn, cols}, nil
}

// NeedsRows: the function's generators are keyed by positions.
func (f *FilterFunc) NeedsRows() bool { return f.fn.UsesRandom }

func (f *FilterFunc) NewTask(env *exec.Env) (exec.Task, error) {
	return &filterFuncTask{f: f, env: env}, nil
}

type filterFuncTask struct {
	noClose
	f   *FilterFunc
	env *exec.Env
}

func (t *filterFuncTask) Process(ctx context.Context, in *exec.Block, emit exec.Emit) error {
	n := int(in.Batch.NumRows())
	if n == 0 {
		return t.f.none(in, emit)
	}
	mask, err := t.f.fn.Filter(callContext(ctx, t.env, &t.f.op, t.f.fn, in, 0, n), in.Batch)
	if mask != nil {
		defer mask.Release()
	}
	if err != nil {
		return t.f.userFail(ctx, err, in, 0)
	}
	if mask == nil || mask.Len() != n {
		got := 0
		if mask != nil {
			got = mask.Len()
		}
		return t.f.fail(fault.New(fault.Invalid, "the function returned %d values for %d rows", got, n), in, 0)
	}
	return t.f.keep(t.env, in, t.f.cols, mask, emit)
}
