package dataset

import (
	"context"
	"maps"
	"math"
	"slices"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/ops/expr"
)

// Filter keeps the rows for which the expression is true; null is not. See
// docs/expressions.md. Directly behind a read, conditions on hive partition
// columns decide which files are listed.
func (d *Dataset) Filter(text string) *Dataset {
	e, err := expr.Parse(text)
	if err != nil {
		return d.fail("filter", err)
	}
	n := d.then("filter", func(in ops.Node, m ops.Meta) (ops.Node, error) { return ops.NewFilter(in, e, m) })
	n.filter = e
	return n
}

// WithColumns adds or replaces columns: "name = expression". Every entry sees the
// columns of the input; a replaced column keeps its place, others are appended.
func (d *Dataset) WithColumns(entries ...string) *Dataset {
	items, errs := make([]ops.Named, len(entries)), make([]error, len(entries))
	for i, text := range entries {
		items[i], errs[i] = ops.ParseNamed(text)
	}
	if err := fault.Join(errs...); err != nil {
		return d.fail("with_columns", err)
	}
	return d.then("with_columns", func(in ops.Node, m ops.Meta) (ops.Node, error) { return ops.WithItems(in, items, m) })
}

// Select keeps these columns, in this order.
func (d *Dataset) Select(columns ...string) *Dataset {
	return d.then("select", func(in ops.Node, m ops.Meta) (ops.Node, error) { return ops.Select(in, columns, m) })
}

// Drop leaves these columns out.
func (d *Dataset) Drop(columns ...string) *Dataset {
	return d.then("drop", func(in ops.Node, m ops.Meta) (ops.Node, error) { return ops.Drop(in, columns, m) })
}

// Rename gives columns other names: old to new.
func (d *Dataset) Rename(names map[string]string) *Dataset {
	return d.then("rename", func(in ops.Node, m ops.Meta) (ops.Node, error) { return ops.Rename(in, names, m) })
}

// Cast changes the types of columns: name to type name, as in cast(x, "float32"). A value
// that the type cannot hold is a row error.
func (d *Dataset) Cast(types map[string]string) *Dataset {
	var errs []error
	for _, c := range slices.Sorted(maps.Keys(types)) {
		_, err := expr.ParseType(types[c])
		errs = append(errs, fault.Wrap(err, fault.Place{Column: c}))
	}
	if err := fault.Join(errs...); err != nil {
		return d.fail("cast", err)
	}
	return d.then("cast", func(in ops.Node, m ops.Meta) (ops.Node, error) { return ops.Cast(in, types, m) })
}

// Limit keeps the first n rows in canonical order.
func (d *Dataset) Limit(n int64) *Dataset {
	if n < 0 {
		return d.fail("limit", fault.New(fault.Invalid, "the limit must not be negative, have %d", n))
	}
	return d.then("limit", func(in ops.Node, m ops.Meta) (ops.Node, error) { return ops.NewLimit(in, n, m) })
}

// Explode makes a row of every element of a list column; rows whose list is null
// or empty go away.
func (d *Dataset) Explode(column string) *Dataset {
	return d.then("explode", func(in ops.Node, m ops.Meta) (ops.Node, error) { return ops.NewExplode(in, column, false, m) })
}

// Sample keeps about this fraction of the rows: the same ones for the same seed,
// in every epoch, however the run is cut up.
func (d *Dataset) Sample(fraction float64, seed uint64) *Dataset {
	return d.then("sample", func(in ops.Node, m ops.Meta) (ops.Node, error) { return ops.NewSample(in, 0, fraction, seed, nil, m) })
}

// SplitOptions say how Split divides.
type SplitOptions struct {
	Fractions []float64 // of the rows, e.g. 0.9, 0.1; their sum is at most 1
	Seed      uint64
	Key       []string // rows with equal values here stay together; nil: every row by itself
}

// Split divides the rows by hash into disjoint datasets, one per fraction: train
// and test, the same in every run and epoch.
func (d *Dataset) Split(o SplitOptions) []*Dataset {
	out := make([]*Dataset, len(o.Fractions))
	lo, sum := 0.0, 0.0
	for _, f := range o.Fractions {
		if !(f > 0 && f <= 1) {
			sum = math.NaN()
		}
		sum += f
	}
	if !(sum <= 1+1e-9) {
		for i := range out {
			out[i] = d.fail("split", fault.New(fault.Invalid, "fractions %v: each must be more than 0, and their sum at most 1", o.Fractions))
		}
		return out
	}
	for i, f := range o.Fractions {
		hi := lo + f
		if i == len(o.Fractions)-1 && hi > 1-1e-9 && hi < 1+1e-9 {
			hi = 1
		}
		hi = min(hi, 1)
		from := lo
		out[i] = d.then("split", func(in ops.Node, m ops.Meta) (ops.Node, error) {
			return ops.NewSample(in, from, hi, o.Seed, o.Key, m)
		})
		lo = hi
	}
	return out
}

// Union gives the rows of d, then those of the others. Columns that one lacks are
// null there; numbers widen where no value is lost; other differences are an error.
func (d *Dataset) Union(others ...*Dataset) *Dataset {
	n := d.then("union", nil)
	n.ins = append(n.ins, others...)
	for _, o := range others {
		n.meta.Pos = max(n.meta.Pos, o.meta.Pos+1)
	}
	n.step = func(_ context.Context, in []ops.Node, m ops.Meta) (ops.Node, error) { return ops.NewUnion(in, m) }
	return n
}

// OnError sets the policy of the last verb; others keep the run's.
func (d *Dataset) OnError(p ops.OnError) *Dataset {
	if d.step == nil || d.err != nil {
		if d.err != nil {
			return d
		}
		return d.fail("on_error", fault.New(fault.Invalid, "on_error belongs behind the verb that it is for; for bad input rows set the run's OnError"))
	}
	n := d.copy()
	n.meta.OnError = &p
	return n
}
