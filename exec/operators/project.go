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

// Project computes columns.
// Order kept. Rows kept. Memory: the computed columns; plain ones are passed on without a copy.
type Project struct {
	op
	cols   []int           // index in the input of plain columns, -1 for others
	progs  []*expr.Program // of the others
	random bool
}

// NewProject binds the items to in. schema is that of the result; its types are those of
// the items.
func NewProject(step Step, in *arrow.Schema, items []ops.Named, schema *arrow.Schema) (*Project, error) {
	p := &Project{op: newOp(step, schema), cols: make([]int, len(items)), progs: make([]*expr.Program, len(items))}
	for i, it := range items {
		if c, ok := it.Expr.IsCol(); ok {
			idx := in.FieldIndices(c)
			if len(idx) != 1 {
				return nil, fault.New(fault.Internal, "%s: no column %q", step.Step, c)
			}
			p.cols[i] = idx[0]
			continue
		}
		p.cols[i] = -1
		var err error
		if p.progs[i], err = it.Expr.Bind(in, ItemSite(step.Site, it.Name)); err != nil {
			return nil, fault.Wrap(err, fault.Place{Step: step.Step, Column: it.Name})
		}
		p.random = p.random || it.Expr.Random()
	}
	return p, nil
}

// ItemSite is the site of one computed column of a step, whose low 32 bits are 0: by its name,
// so that columns left out by a rule move no other's random numbers.
func ItemSite(site int, name string) int {
	h := uint32(2166136261) // FNV-1a
	for i := range len(name) {
		h = (h ^ uint32(name[i])) * 16777619
	}
	return site | int(h)
}

// NeedsRows: random() is keyed by positions.
func (p *Project) NeedsRows() bool { return p.random }

func (p *Project) NewTask(env *exec.Env) (exec.Task, error) {
	return &projectTask{p: p, env: env, arrs: make([]arrow.Array, len(p.cols))}, nil
}

type projectTask struct {
	noClose
	p    *Project
	env  *exec.Env
	arrs []arrow.Array // reused
}

func (t *projectTask) Process(_ context.Context, in *exec.Block, emit exec.Emit) error {
	p := t.p
	n := int(in.Batch.NumRows())
	if n == 0 {
		return p.none(in, emit)
	}
	rows := rowsOf(t.env, in, 0, n)
	for i, c := range p.cols {
		if c >= 0 {
			t.arrs[i] = in.Batch.Column(c)
			continue
		}
		a, err := p.progs[i].Eval(in.Batch, &rows, t.env.Alloc)
		if err != nil {
			t.free(i)
			err = p.fail(err, in, 0)
			return fault.Wrap(err, fault.Place{Column: p.schema.Field(i).Name})
		}
		t.arrs[i] = a
	}
	out := array.NewRecordBatch(p.schema, t.arrs, int64(n))
	t.free(len(p.cols))
	return emit(in.With(out, in.Rows, in.Ords))
}

// free gives up the computed columns before item n.
func (t *projectTask) free(n int) {
	for i := range n {
		if t.p.cols[i] < 0 {
			t.arrs[i].Release()
		}
		t.arrs[i] = nil
	}
}

// Relabel gives blocks a schema with other nullability or metadata: what the
// inputs of a union need.
// Order kept. Rows kept. Memory: none.
type Relabel struct{ op }

// NewRelabel checks that schema has the columns of in.
func NewRelabel(step Step, in, schema *arrow.Schema) (*Relabel, error) {
	if !ops.SameColumns(in, schema) {
		return nil, fault.New(fault.Internal, "%s: %v is not %v", step.Step, in, schema)
	}
	return &Relabel{newOp(step, schema)}, nil
}

func (r *Relabel) NewTask(*exec.Env) (exec.Task, error) { return relabelTask{r: r}, nil }

type relabelTask struct {
	noClose
	r *Relabel
}

func (t relabelTask) Process(_ context.Context, in *exec.Block, emit exec.Emit) error {
	return emit(in.With(relabel(in.Batch, t.r.schema), in.Rows, in.Ords))
}
