package dataset

import (
	"context"
	"errors"
	"slices"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/sink"
	"github.com/penstock-data/penstock/ops"
)

// countFromMetadata follows the plan down to sources that know their rows; run is the policy of steps without their own.
func countFromMetadata(n ops.Node, run *ops.OnError) (int64, bool) {
	switch n := n.(type) {
	case *ops.Read:
		if n.Predicate != nil || n.Limit > 0 {
			break
		}
		total := int64(0)
		for _, s := range n.Table.Splits() {
			if s.Rows < 0 {
				return 0, false
			}
			total += s.Rows
		}
		return total, true
	case *ops.Limit:
		in, ok := countFromMetadata(n.In, run)
		return min(in, n.N), ok
	case *ops.Union:
		total := int64(0)
		for _, in := range n.Ins {
			c, ok := countFromMetadata(in, run)
			if !ok {
				return 0, false
			}
			total += c
		}
		return total, true
	case *ops.Project:
		policy := n.OnError
		if policy == nil {
			policy = run
		}
		computes := slices.ContainsFunc(n.Items, func(it ops.Named) bool { _, col := it.Expr.IsCol(); return !col })
		if computes && policy != nil && policy.Policy == "skip" {
			return 0, false // what cannot be computed is no row
		}
		return countFromMetadata(n.In, run)
	}
	return 0, false
}

// Drain decodes and computes everything and throws it away: the measure of a
// pipeline by itself. Rows that a skip policy leaves out go to the dead letter.
func (d *Dataset) Drain(ctx context.Context, o *RunOptions) (exec.Stats, error) {
	run := o.or()
	_, g, err := d.optimized(ctx, run)
	if err != nil {
		return exec.Stats{}, err
	}
	e, err := run.exec()
	if err != nil {
		return exec.Stats{}, err
	}
	dl, err := d.letters(ctx, run, e)
	if err != nil {
		return exec.Stats{}, err
	}
	st, err := run.runner().Write(ctx, g, sink.NewCount(), e)
	if dl != nil {
		err = errors.Join(err, dl.Close(ctx, err == nil))
	}
	return st, err
}
