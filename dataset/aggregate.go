package dataset

import (
	"context"
	"slices"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/near"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/ops"
)

// Agg is one aggregate of a column.
type Agg struct{ Fn, Column string }

// The aggregates. Nulls do not count, NaN does: with one, sum, mean, std, min
// and max of floats are NaN. Without a value sum is 0 and the others are nil. Sum, min and max of decimals
// are exact, and given as text of the column's scale: "12.50".
func Sum(column string) Agg  { return Agg{"sum", column} }  // int64, uint64 (overflow is an error), float64, or string of decimals
func Mean(column string) Agg { return Agg{"mean", column} } // float64
// Std is the standard deviation of a sample (n-1); nil for fewer than 2 values.
func Std(column string) Agg   { return Agg{"std", column} }
func Min(column string) Agg   { return Agg{"min", column} }   // in the column's own type
func Max(column string) Agg   { return Agg{"max", column} }   // in the column's own type
func Nulls(column string) Agg { return Agg{"nulls", column} } // int64

// Values counts the values that are not null.
func Values(column string) Agg { return Agg{"count", column} }

// String is the key of the result: "sum(fare)".
func (a Agg) String() string { return a.Fn + "(" + a.Column + ")" }

// Aggregate runs the plan once and computes aggregates of whole columns, keyed by
// Agg.String. Splits are aggregated in parallel and merged in canonical order, so
// the result does not depend on parallelism. Values are Go values: int64, uint64,
// float64, bool, string, time in the column's unit as int64, decimals as text.
func (d *Dataset) Aggregate(ctx context.Context, o *RunOptions, aggs ...Agg) (map[string]any, error) {
	if err := d.plain(ctx); err != nil {
		return nil, err
	}
	schema, err := d.Schema(ctx)
	if err != nil {
		return nil, err
	}
	if len(aggs) == 0 {
		return nil, fault.New(fault.Invalid, "no aggregate is asked for: give dataset.Sum(\"x\"), dataset.Mean(\"x\"), ...")
	}
	var cols []string
	for _, a := range aggs {
		at := schema.FieldIndices(a.Column)
		if len(at) == 0 {
			return nil, fault.New(fault.Invalid, "%s: unknown column %q%s", a, a.Column, near.Column(a.Column, schema))
		}
		if err := aggregable(a, schema.Field(at[0]).Type); err != nil {
			return nil, err
		}
		if !slices.Contains(cols, a.Column) {
			cols = append(cols, a.Column)
		}
	}
	sel := d.then("aggregate", func(in ops.Node, m ops.Meta) (ops.Node, error) { return ops.Select(in, cols, m) })
	sch, err := sel.Schema(ctx)
	if err != nil {
		return nil, err
	}
	run := o.or()
	_, g, err := sel.optimized(ctx, run)
	if err != nil {
		return nil, err
	}
	e, err := run.exec()
	if err != nil {
		return nil, err
	}
	s := &aggSink{schema: sch}
	if _, err := run.runner().Write(ctx, g, s, e); err != nil {
		return nil, err
	}
	res := make(map[string]any, len(aggs))
	for _, a := range aggs {
		v, err := s.total[slices.Index(cols, a.Column)].result(a.Fn)
		if err != nil {
			return nil, fault.Wrap(err, fault.Place{Column: a.Column})
		}
		res[a.String()] = v
	}
	return res, nil
}

// aggregable refuses what has no meaning for a type.
func aggregable(a Agg, t arrow.DataType) error {
	switch a.Fn {
	case "count", "nulls":
		return nil
	}
	switch k := kindOf(t); {
	case k == kindNone:
		return fault.New(fault.Invalid, "%s: columns of type %s have no %s", a, typename.Name(t), a.Fn)
	case k == kindString || k == kindBool || k == kindTime:
		if a.Fn != "min" && a.Fn != "max" {
			return fault.New(fault.Invalid, "%s: columns of type %s have no %s; cast it to a number first", a, typename.Name(t), a.Fn)
		}
	}
	return nil
}

// aggSink is a sink whose parts are splits and whose output is a summary each.
type aggSink struct {
	schema *arrow.Schema
	mu     sync.Mutex
	parts  [][]summary
	total  []summary
}

func (s *aggSink) Begin(_ context.Context, _ *arrow.Schema, splits []exec.SinkSplit) (*exec.SinkPlan, error) {
	p := &exec.SinkPlan{}
	for i := range splits {
		p.Parts = append(p.Parts, exec.PartRange{First: i, End: i + 1})
	}
	s.parts = make([][]summary, len(splits))
	return p, nil
}

func (s *aggSink) NewPart(_ context.Context, part int, _ *exec.Env) (exec.PartWriter, error) {
	return &aggPart{s: s, part: part, sums: make([]summary, s.schema.NumFields())}, nil
}

func (s *aggSink) Commit(context.Context, *exec.CommitEnv) error {
	s.total = make([]summary, s.schema.NumFields())
	for _, p := range s.parts {
		for i := range p {
			if err := s.total[i].merge(&p[i]); err != nil {
				return fault.Wrap(err, fault.Place{Column: s.schema.Field(i).Name})
			}
		}
	}
	return nil
}

func (s *aggSink) Abort(context.Context) error { return nil }

type aggPart struct {
	s    *aggSink
	part int
	sums []summary
}

func (p *aggPart) Write(_ context.Context, b *exec.Block) error {
	for i := range p.sums {
		if err := p.sums[i].add(b.Batch.Column(i)); err != nil {
			return fault.Wrap(err, fault.Place{Column: p.s.schema.Field(i).Name})
		}
	}
	return nil
}

func (p *aggPart) Finish(context.Context, exec.Tally) error {
	p.s.mu.Lock()
	defer p.s.mu.Unlock()
	p.s.parts[p.part] = p.sums
	return nil
}

func (p *aggPart) Abort(context.Context) error { return nil }
