package dataset

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/plan"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/shard"
)

// ShardOptions of Shards and Iterator; exactly one of GlobalBatch and BatchPerRank is set.
type ShardOptions struct {
	RunOptions
	shard.Options
}

// or is o with defaults.
func (o *ShardOptions) or(mode shard.Mode) (opt ShardOptions) {
	if o != nil {
		opt = *o
	}
	if opt.Shuffle == nil {
		opt.Shuffle = &shard.Shuffle{Mode: mode}
	}
	return opt
}

// Shards deals the samples of a dataset to n ranks: the same ones in the same order whatever
// n is, epoch after epoch, resumable from any step. It returns an iterator for each rank
// of ShardOptions.Ranks (nil: all); close each of them. They advance together. Reading begins
// with the first Next, and ends with ctx. See docs/order.md.
func (d *Dataset) Shards(ctx context.Context, n int, o *ShardOptions) ([]*shard.Iterator, error) {
	opt := o.or(shard.ModeWindow)
	j, err := d.shardJob(ctx, n, opt)
	if err != nil {
		return nil, err
	}
	return shard.Open(ctx, j)
}

// Iterator is Shards for one consumer, in canonical order by default.
func (d *Dataset) Iterator(ctx context.Context, o *ShardOptions) (*shard.Iterator, error) {
	opt := o.or(shard.ModeNone)
	j, err := d.shardJob(ctx, 1, opt)
	if err != nil {
		return nil, err
	}
	its, err := shard.Open(ctx, j)
	if err != nil {
		return nil, err
	}
	return its[0], nil
}

// CheckShards reports what Shards(n, o) would refuse, and reads metadata only: where rows must be counted
// before they can be laid out (compressed text, JSON arrays), lanes and windows are left unchecked, and laid is false.
func (d *Dataset) CheckShards(ctx context.Context, n int, o *ShardOptions) (laid bool, err error) {
	root, err := d.plan(ctx)
	if err != nil {
		return false, err
	}
	for _, r := range ops.Reads(root) {
		off, ok := r.Table.(driver.Offsetter)
		for i, s := range r.Table.Splits() {
			if s.Rows < 0 && !(ok && off.Offsets(i)) {
				return false, nil
			}
		}
	}
	if o != nil && o.Nodes != nil { // nobody is met
		alone := *o
		alone.Nodes = nil
		o = &alone
	}
	its, err := d.Shards(ctx, n, o)
	if err != nil {
		return true, err
	}
	for _, it := range its {
		err = errors.Join(err, it.Close())
	}
	return true, err
}

// StateAt finds the state of Shards(n, o) before a step, without making the batches before it: restored,
// iterators give that step next. Where rows are known without running steps, and on_error does not skip, it supposes that no row before
// it fails. See [shard.StateAt].
func (d *Dataset) StateAt(ctx context.Context, n int, o *ShardOptions, at shard.At) (shard.State, error) {
	opt := o.or(shard.ModeWindow)
	j, err := d.shardJob(ctx, n, opt)
	if err != nil {
		return shard.State{}, err
	}
	return shard.StateAt(ctx, j, at)
}

// shardJob translates the plan for package shard.
func (d *Dataset) shardJob(ctx context.Context, ranks int, o ShardOptions) (j shard.Job, err error) {
	root, err := d.plan(ctx)
	if err != nil {
		return j, err
	}
	if o.Unordered {
		return j, fault.New(fault.Invalid, "shards have an order: leave Unordered out")
	}
	sources, mix, err := ops.Sources(root)
	if err != nil {
		return j, err
	}
	e, err := o.exec()
	if err != nil {
		return j, err
	}
	j = shard.Job{Ranks: ranks, Schema: root.Schema(), Runner: o.runner(), Exec: *e, Log: o.Log, Options: o.Options}
	shuffle := *o.Shuffle
	if shuffle.Mode == "" {
		shuffle.Mode = shard.ModeWindow
	}
	off, err := o.noRules(root)
	if err != nil {
		return j, err
	}
	columns := shardColumns(root, sources, o.Form, o.OnError)
	if columns != nil {
		var fields []arrow.Field
		for _, c := range columns {
			fields = append(fields, j.Schema.Field(j.Schema.FieldIndices(c)[0]))
		}
		j.Schema = arrow.NewSchema(fields, nil)
	}
	for _, s := range sources {
		src, err := d.shardSource(ctx, s, o, off, shuffle, len(sources), columns)
		if err != nil && mix != nil {
			return j, fault.New(fault.CodeOf(err), "source %q of the mix: %w", s.Name, err)
		}
		if err != nil {
			return j, err
		}
		j.Sources = append(j.Sources, src)
	}
	if mix != nil {
		if mix.Endless() && o.StepsPerEpoch == 0 {
			return j, fault.New(fault.Invalid, "no source ends the epoch, as those that are drawn from repeat: give steps_per_epoch").At(fault.Place{Step: mix.Step()})
		}
		j.StopAll = mix.Stop == ops.StopAll
		j.Weights = append(j.Weights, shard.WeightsAt{Weights: mix.Weights})
		for _, w := range mix.Schedule {
			j.Weights = append(j.Weights, shard.WeightsAt(w))
		}
	}
	skip := o.OnError != nil && o.OnError.Policy == "skip"
	j.Plan, j.Unnamed = orderFingerprint(sources, j.StopAll, shuffle.Mode, o.ID, skip)
	j.OtherPolicy, _ = orderFingerprint(sources, j.StopAll, shuffle.Mode, o.ID, !skip)
	j.GoesOn = skip && !parseSkips(root, o.OnError)
	if j.Data, err = dataFingerprint(ctx, root); fault.CodeOf(err) == fault.Unsupported { // data without identity
		j.Plan, j.OtherPolicy, j.Unnamed = "", "", err
	} else if err != nil {
		return j, err
	}
	if o.DeadLetter != "" {
		return j, fault.New(fault.Unsupported, "dead letters of shards: windows are made ahead of the samples, and again after a resume, so letters would be written that nobody's samples are about, or twice: leave dead_letter out here, and collect the rows in a run of the same steps (penstock run --set sink='{count: {}}', or Dataset.Drain)")
	}
	return j, nil
}

// shardSource translates one source.
func (d *Dataset) shardSource(ctx context.Context, s ops.Source, o ShardOptions, off map[string]bool, shuffle shard.Shuffle, sources int, columns []string) (shard.Source, error) {
	src := shard.Source{Name: s.Name, Repeat: s.Repeat, Limit: -1}
	n := s.Plan
	if l, ok := n.(*ops.Limit); ok && shuffle.Mode == shard.ModeNone {
		src.Limit, n = l.N, l.In
	}
	graph := func(n ops.Node, off map[string]bool) (*exec.Graph, error) {
		n, _, err := ops.Optimize(n, off)
		if err != nil {
			return nil, err
		}
		return plan.Translate(ctx, n, nil)
	}
	var err error
	if src.Graph, err = graph(n, nil); err != nil {
		return src, err
	}
	if p := s.Pack; p != nil {
		src.Pack = &shard.Packing{Column: p.Column, MaskColumn: p.MaskColumn, PackOptions: shard.PackOptions{
			Length: p.Length, Method: shard.PackMethod(p.Method), Overlong: shard.PackOverlong(p.Overlong), Pad: p.PadID, EOS: p.EOS,
			LossMask: p.LossMask || p.MaskColumn != "",
		}}
	}
	src.KeepsRows = keepsRows(n) && (o.OnError == nil || o.OnError.Policy != "skip") && !skips(src.Graph.Root)
	if src.Layout, err = shard.NewLayout(ctx, src.Graph, shuffle, sources); err != nil || columns == nil && len(off) == 0 {
		return src, err
	}
	// The layout is that of the plan by all rules, whatever is left out of them, or by the form.
	if columns != nil {
		if n, err = ops.Narrow(n, columns); err != nil {
			return src, err
		}
	}
	if src.Graph, err = graph(n, off); err != nil {
		return src, err
	}
	return src, src.Layout.Runs(src.Graph)
}

// shardColumns are the columns that shards of a form need of a plan with these sources; nil: all.
func shardColumns(root ops.Node, sources []ops.Source, f shard.Form, run *ops.OnError) []string {
	packed := slices.ContainsFunc(sources, func(s ops.Source) bool { return s.Pack != nil })
	if packed || parseSkips(root, run) { // a form that read fewer columns would skip fewer rows, and be another order
		return nil
	}
	return formColumns(root.Schema(), f)
}

// formColumns are the columns of rows that become tensors, in their order; nil: all, or there is a mistake
// for others to find.
func formColumns(schema *arrow.Schema, f shard.Form) []string {
	if !f.Tensors || f.Columns == nil {
		return nil
	}
	used := map[string]bool{}
	for name, c := range f.Columns {
		if c.Stack == nil {
			used[name] = true
		}
		for _, name := range c.Stack {
			used[name] = true
		}
	}
	var cols []string
	for _, field := range schema.Fields() {
		if used[field.Name] {
			cols = append(cols, field.Name)
		}
	}
	if len(cols) < len(used) || len(cols) == schema.NumFields() {
		return nil
	}
	return cols
}

// keepsRows reports whether no step of a plan changes the number of rows.
func keepsRows(n ops.Node) bool {
	keeps := true
	ops.Walk(n, func(n ops.Node) {
		switch n := n.(type) {
		case *ops.Read, *ops.Union:
		default:
			keeps = keeps && n.Props().KeepsRows
		}
	})
	return keeps
}

// skips reports whether a step may leave rows out that it cannot process.
func skips(st *exec.Stage) bool {
	for _, op := range st.Ops {
		if op.OnError != nil && op.OnError.Policy == exec.Skip {
			return true
		}
	}
	return slices.ContainsFunc(st.Inputs, skips)
}

// orderFingerprint identifies all of a plan that decides the samples, but for the data. skip: the run leaves out rows
// that it cannot process.
func orderFingerprint(sources []ops.Source, stopAll bool, mode shard.Mode, id string, skip bool) (string, error) {
	type source struct {
		Name, Plan string
		Repeat     bool
		Pack       *ops.PackSpec
	}
	var all []source
	for _, s := range sources {
		fp, err := ops.FingerprintSteps(s.Plan)
		if err != nil {
			return "", err
		}
		x := source{Name: s.Name, Plan: fp, Repeat: s.Repeat}
		if s.Pack != nil {
			x.Pack = &s.Pack.PackSpec
		}
		all = append(all, x)
	}
	plan := map[string]any{"sources": all, "stop_all": stopAll, "mode": mode, "id": id}
	if skip {
		plan["on_error"] = "skip"
	}
	b, err := json.Marshal(plan)
	if err != nil {
		return "", fault.New(fault.Internal, "plan: %w", err)
	}
	sum := sha256.Sum256(append([]byte("penstock/shards/1\n"), b...))
	return hex.EncodeToString(sum[:]), nil
}

// dataFingerprint identifies the data of all sources.
func dataFingerprint(ctx context.Context, root ops.Node) (string, error) {
	h := sha256.New()
	err := eachRead(root, func(r *ops.Read) error {
		fp, err := r.Table.Fingerprint(ctx)
		if err != nil {
			return fault.Wrap(err, fault.Place{Step: r.Step()})
		}
		fmt.Fprintln(h, fp)
		return nil
	})
	return hex.EncodeToString(h.Sum(nil)), err
}
