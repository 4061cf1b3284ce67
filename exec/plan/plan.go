// Package plan translates a logical plan into stages of operators: [Translate]
// holds the one exhaustive switch over the node types.
package plan

import (
	"context"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/operators"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/ops/expr"
)

// Options of a translation; nil means defaults.
type Options struct {
	// NoPrune leaves Scan.Keep nil: no statistics are read now, and every split is opened.
	NoPrune bool
	// NoFuse leaves the rule [ops.Fuse] out: each step is a cut with tasks of its own, one for each block.
	NoFuse bool
}

// Translate makes a graph of a plan (usually an optimised one). Narrow steps are fused
// into the stage before them; a limit is a cut; a union is a cut at the root or below a limit, and otherwise
// the steps behind it run in each of its inputs. It starts nothing; tables may read statistics
// to find the splits that a predicate excludes. The tables stay the caller's, and must live as
// long as the graph runs. A pack or mix is an Unsupported error: shards translate their sources ([ops.Sources]).
func Translate(ctx context.Context, n ops.Node, o *Options) (*exec.Graph, error) {
	t := translator{}
	if o != nil {
		t.Options = *o
	}
	p, err := t.build(ctx, n, nil, 0)
	if err != nil {
		return nil, err
	}
	root := p.stages[0]
	if len(p.stages) > 1 {
		root = &exec.Stage{Inputs: p.stages, Limit: -1}
	}
	return &exec.Graph{Root: root, Schema: p.schema}, nil
}

type translator struct{ Options }

// part is a translated node: stages whose blocks follow one another, all of one schema.
type part struct {
	stages []*exec.Stage
	schema *arrow.Schema
}

// then appends an operator to every stage of p. The stages share it.
func (t *translator) then(p *part, op exec.Operator, e *ops.OnError) {
	if t.NoFuse {
		p.stages = []*exec.Stage{{Inputs: p.stages, Limit: -1}}
	}
	for _, s := range p.stages {
		s.Ops = append(s.Ops, exec.Fused{Operator: op, OnError: OnError(e)})
	}
	p.schema = op.Schema()
}

// build translates n. need names the columns of n that are used above, in n's order; nil means all
// of them, exactly. More may come back, never less. unions counts the unions above n.
func (t *translator) build(ctx context.Context, n ops.Node, need []string, unions int) (*part, error) {
	switch n := n.(type) {
	case *ops.Read:
		return t.read(ctx, n)

	case *ops.Filter:
		var below []string
		if n.Expr != nil {
			below = with(n.In.Schema(), need, n.Expr.Columns())
		}
		p, err := t.build(ctx, n.In, below, unions)
		if err != nil {
			return nil, err
		}
		var op exec.Operator
		if n.Func != nil {
			op, err = operators.NewFilterFunc(step(n, n.Meta, unions), p.schema, n.Func, need)
		} else {
			op, err = operators.NewFilter(step(n, n.Meta, unions), p.schema, n.Expr, need)
		}
		if err != nil {
			return nil, err
		}
		t.then(p, op, n.OnError)
		return p, nil

	case *ops.Project:
		used := []string{}
		for _, it := range n.Items {
			used = append(used, it.Expr.Columns()...)
		}
		p, err := t.build(ctx, n.In, with(n.In.Schema(), []string{}, used), unions)
		if err != nil {
			return nil, err
		}
		if p.schema.Equal(n.Schema()) && passes(n) {
			return p, nil // a filter has left out the columns already
		}
		op, err := operators.NewProject(step(n, n.Meta, unions), p.schema, n.Items, n.Schema())
		if err != nil {
			return nil, err
		}
		t.then(p, op, n.OnError)
		return p, nil

	case *ops.Limit:
		p, err := t.build(ctx, n.In, need, unions)
		if err != nil {
			return nil, err
		}
		p.stages = []*exec.Stage{{Inputs: p.stages, Limit: n.N}}
		return p, nil

	case *ops.Explode:
		p, err := t.build(ctx, n.In, nil, unions)
		if err != nil {
			return nil, err
		}
		col := p.schema.FieldIndices(n.Column)[0]
		t.then(p, operators.NewExplode(step(n, n.Meta, unions), col, n.KeepEmpty, n.Schema()), n.OnError)
		return p, nil

	case *ops.Map:
		p, err := t.build(ctx, n.In, nil, unions)
		if err != nil {
			return nil, err
		}
		t.then(p, operators.NewMap(step(n, n.Meta, unions), n.Func, n.BatchRows, n.Schema()), n.OnError)
		return p, nil

	case *ops.Exec:
		p, err := t.build(ctx, n.In, nil, unions)
		if err != nil {
			return nil, err
		}
		t.then(p, operators.NewExec(step(n, n.Meta, unions), p.schema, &n.ExecSpec), n.OnError)
		return p, nil

	case *ops.Sample:
		p, err := t.build(ctx, n.In, with(n.In.Schema(), need, n.Key), unions)
		if err != nil {
			return nil, err
		}
		op, err := operators.NewSample(step(n, n.Meta, unions), p.schema, n.Lo, n.Hi, n.Seed, n.Key, need)
		if err != nil {
			return nil, err
		}
		t.then(p, op, n.OnError)
		return p, nil

	case *ops.Union:
		return t.union(ctx, n, need, unions)

	case *ops.Pack, *ops.Mix:
		return nil, ops.Plain(n)
	}
	return nil, fault.New(fault.Internal, "no operator for %T", n)
}

func (t *translator) read(ctx context.Context, n *ops.Read) (*part, error) {
	if err := driver.CheckReadable(n.Table.Schema(), n.Columns); err != nil {
		return nil, fault.Wrap(err, fault.Place{Step: n.Step()})
	}
	s := &exec.Scan{Source: n.Ordinal, Step: n.Step(), Table: n.Table, Columns: n.Columns, Predicate: n.Predicate, Limit: n.Limit}
	if r, ok := n.Table.(driver.Remote); ok && r.Remote() {
		s.Tasks = remoteTasks
	}
	if pr, ok := n.Table.(driver.Pruner); ok && n.Predicate != nil && !t.NoPrune {
		keep, err := pr.Keep(ctx, n.Predicate)
		if err != nil {
			return nil, fault.Wrap(err, fault.Place{Step: n.Step()})
		}
		if len(keep) != len(n.Table.Splits()) {
			return nil, fault.New(fault.Internal, "%s: pruning gave %d splits of %d", n.Step(), len(keep), len(n.Table.Splits()))
		}
		s.Keep = keep
	}
	return &part{[]*exec.Stage{{Scan: s, Limit: -1}}, n.Schema()}, nil
}

func (t *translator) union(ctx context.Context, n *ops.Union, need []string, unions int) (*part, error) {
	all := &part{schema: n.Schema()}
	if need != nil {
		all.schema = pick(n.Schema(), need)
	}
	for _, in := range n.Ins {
		p, err := t.build(ctx, in, need, unions+1)
		if err != nil {
			return nil, err
		}
		st := step(n, n.Meta, unions)
		var op exec.Operator
		switch {
		case p.schema.Equal(all.schema):
		case ops.SameColumns(p.schema, all.schema):
			st.Name = "relabel"
			op, err = operators.NewRelabel(st, p.schema, all.schema)
		default: // an input that could not leave columns out
			var items []ops.Named
			for _, f := range all.schema.Fields() {
				items = append(items, ops.Named{Name: f.Name, Expr: expr.Col(f.Name)})
			}
			st.Name = "choose columns"
			op, err = operators.NewProject(st, p.schema, items, all.schema)
		}
		if err != nil {
			return nil, err
		}
		if op != nil {
			t.then(p, op, n.OnError)
		}
		all.stages = append(all.stages, p.stages...)
	}
	return all, nil
}

// step places an operator. Its site follows from the user's position and the unions above it, which no
// rule changes for a step that uses random numbers.
func step(n ops.Node, m ops.Meta, unions int) operators.Step {
	return operators.Step{Name: n.String(), Step: m.Step(), Site: (unions<<20 | m.Pos&(1<<20-1)) << 32}
}

// with are the columns of s that are in need or more, in the order of s; nil if need is nil.
func with(s *arrow.Schema, need, more []string) []string {
	if need == nil {
		return nil
	}
	want := make(map[string]bool, len(need)+len(more))
	for _, c := range need {
		want[c] = true
	}
	for _, c := range more {
		want[c] = true
	}
	out := []string{}
	for _, f := range s.Fields() {
		if want[f.Name] {
			out = append(out, f.Name)
		}
	}
	return out
}

// pick is s with the columns of need only.
func pick(s *arrow.Schema, need []string) *arrow.Schema {
	fields := make([]arrow.Field, len(need))
	for i, c := range need {
		fields[i] = s.Field(s.FieldIndices(c)[0])
	}
	md := s.Metadata()
	return arrow.NewSchema(fields, &md)
}

// passes reports whether n computes and renames nothing.
func passes(n *ops.Project) bool {
	for _, it := range n.Items {
		if c, ok := it.Expr.IsCol(); !ok || c != it.Name {
			return false
		}
	}
	return true
}

// remoteTasks is how many splits of a bucket are read at once: enough to keep a
// connection of some 10 ms busy beside the computing, few enough for the budget.
const remoteTasks = 16

// retries is how often a policy "retry" tries again when it does not say.
const retries = 3

// OnError is the engine's form of a policy; nil for nil.
func OnError(e *ops.OnError) *exec.OnError {
	if e == nil {
		return nil
	}
	o := &exec.OnError{Retries: e.Retries, MaxRows: e.MaxRows, MaxRate: e.MaxRate}
	switch e.Policy {
	case "skip":
		o.Policy = exec.Skip
	case "retry":
		if o.Retries == 0 {
			o.Retries = retries
		}
	}
	return o
}
