package dataset

import (
	"context"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/sink"
	"github.com/penstock-data/penstock/ops"
)

// countFromMetadata follows the plan down to sources that know their rows.
func countFromMetadata(n ops.Node) (int64, bool) {
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
		in, ok := countFromMetadata(n.In)
		return min(in, n.N), ok
	case *ops.Union:
		total := int64(0)
		for _, in := range n.Ins {
			c, ok := countFromMetadata(in)
			if !ok {
				return 0, false
			}
			total += c
		}
		return total, true
	case *ops.Project:
		return countFromMetadata(n.In)
	}
	return 0, false
}

// Drain decodes and computes everything and throws it away: the measure of a
// pipeline by itself.
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
	return run.runner().Write(ctx, g, sink.NewCount(), e)
}
