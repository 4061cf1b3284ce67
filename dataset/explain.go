package dataset

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/plan"
	"github.com/penstock-data/penstock/internal/procs"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/shard"
)

// ExplainOptions of Explain; nil means defaults.
type ExplainOptions struct {
	RunOptions
	// Analyze runs the plan, throws its rows away, and adds what was measured; where the run fails, up to there, beside the error.
	Analyze bool
	// Form, if not nil, has the plan be that which Shards run for batches of this form: it reads what becomes tensors.
	Form *shard.Form
}

// Explain describes the plan: as written, as rewritten (with the rules that did
// it), and as it will run: what goes to the source, splits kept of total,
// expected bytes and memory; of every source for itself where the plan ends with pack or mix.
func (d *Dataset) Explain(ctx context.Context, o *ExplainOptions) (string, error) {
	if o == nil {
		o = &ExplainOptions{}
	}
	if _, err := o.exec(); err != nil {
		return "", err
	}
	n, err := d.plan(ctx)
	if err != nil {
		return "", err
	}
	if o.Form != nil {
		if d, n, err = d.shaped(ctx, n, o); err != nil {
			return "", err
		}
	}
	off, err := o.noRules(n)
	if err != nil {
		return "", err
	}
	opt, applied, err := ops.Optimize(n, off)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "logical plan\n%s", indent(ops.Format(n)))
	if len(applied) > 0 {
		fmt.Fprintf(&b, "rewritten\n%s", indent(ops.Format(opt)))
		for _, a := range applied {
			fmt.Fprintf(&b, "  - %s: %s\n", a.Rule, a.What)
		}
	}
	graphs, err := physical(ctx, &b, n, off, o.Unordered)
	if err != nil {
		return "", err
	}
	b.WriteString(o.costs())
	if o.Analyze {
		st, err := d.Drain(ctx, &o.RunOptions)
		switch {
		case err == nil:
			b.WriteString("measured\n")
			WriteStats(&b, st)
		case len(st.Ops) > 0: // it began
			b.WriteString("measured, until it failed\n")
			WriteStats(&b, st)
		}
		for _, g := range graphs {
			if text := plan.Ignored(g); text != "" {
				b.WriteString(indent(text))
			}
		}
		return b.String(), err
	}
	return b.String(), nil
}

// shaped is what shards of a form run of a dataset, whose plan is n.
func (d *Dataset) shaped(ctx context.Context, n ops.Node, o *ExplainOptions) (*Dataset, ops.Node, error) {
	sources, _, err := ops.Sources(n)
	if err != nil {
		return nil, nil, err
	}
	columns := shardColumns(n, sources, *o.Form, o.OnError)
	if columns == nil {
		return d, n, nil
	}
	d = d.then("shards", func(in ops.Node, _ ops.Meta) (ops.Node, error) { return ops.Narrow(in, columns) })
	n, err = d.plan(ctx)
	return d, n, err
}

// costs says what a run may take.
func (o RunOptions) costs() string {
	memory := exec.Bytes(o.Memory)
	if o.Memory == 0 {
		memory = exec.Bytes(exec.DefaultMemory()) + " (default: half of what is available, at most 4 GiB)"
	}
	cpus := fmt.Sprint(o.CPUs)
	if o.CPUs == 0 {
		cpus = fmt.Sprintf("%d (default: all)", procs.CPUs())
	}
	return fmt.Sprintf("run\n  memory: at most %s\n  cpus: %s\n", memory, cpus)
}

// physical describes what runs: the plan, or those of the sources of a plan for shards.
func physical(ctx context.Context, b *strings.Builder, n ops.Node, off map[string]bool, unordered bool) (graphs []*exec.Graph, err error) {
	sources, _, err := ops.Sources(n)
	if err != nil {
		return nil, err
	}
	for _, s := range sources {
		opt, _, err := ops.Optimize(s.Plan, off)
		if err != nil {
			return nil, err
		}
		g, err := plan.Translate(ctx, opt, &plan.Options{NoFuse: off[ops.Fuse]})
		if err != nil {
			return nil, err
		}
		graphs = append(graphs, g)
		b.WriteString("physical plan")
		if ops.Plain(n) != nil {
			fmt.Fprintf(b, " of source %q", s.Name)
		}
		fmt.Fprintf(b, "\n%s", indent(plan.Describe(g, unordered)))
		if s.Pack != nil {
			fmt.Fprintf(b, "  then in each window: %s    [%s]\n", s.Pack, s.Pack.Step())
		}
	}
	return graphs, nil
}

func indent(s string) string {
	s = strings.TrimRight(s, "\n")
	return "  " + strings.ReplaceAll(s, "\n", "\n  ") + "\n"
}

// WriteStats prints a run's statistics as a table, one line per operator, and
// names the bottleneck. The peak of an operator is the most that one of its tasks held.
func WriteStats(w io.Writer, st exec.Stats) {
	t := tabwriter.NewWriter(w, 2, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  operator\trows in\trows out\tMiB out\tbusy\twait in\twait out\twait mem\tpeak MiB\t")
	for _, o := range st.Ops {
		fmt.Fprintf(t, "  %s\t%d\t%d\t%.1f\t%s\t%s\t%s\t%s\t%.1f\t\n", o.Name, o.RowsIn, o.RowsOut, float64(o.BytesOut)/(1<<20),
			short(o.Busy), short(o.WaitIn), short(o.WaitOut), short(o.WaitMem), float64(o.PeakBytes)/(1<<20))
	}
	t.Flush()
	fmt.Fprintf(w, "  %d rows in, %d out, %.1f MiB read, %s, peak %.1f MiB of the budget, %d retries, %d rows skipped\n",
		st.RowsIn, st.RowsOut, float64(st.BytesRead)/(1<<20), short(st.Elapsed), float64(st.PeakBytes)/(1<<20), st.Retries, st.Skipped)
	if st.StorageRetries > 0 {
		fmt.Fprintf(w, "  requests to storage made again after an error: %d\n", st.StorageRetries)
	}
	if st.Bottleneck != "" {
		fmt.Fprintf(w, "  bottleneck: %s\n", st.Bottleneck)
	} else {
		fmt.Fprintln(w, "  bottleneck: none that takes more than half of the time")
	}
}

func short(d time.Duration) string {
	switch {
	case d == 0:
		return "-"
	case d < time.Millisecond:
		return d.Round(time.Microsecond).String()
	case d < time.Second:
		return d.Round(100 * time.Microsecond).String()
	}
	return d.Round(10 * time.Millisecond).String()
}
