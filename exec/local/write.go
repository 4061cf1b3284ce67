package local

import (
	"context"
	"fmt"
	"io"
	"sync/atomic"
	"time"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/internal/sched"
	"github.com/penstock-data/penstock/internal/fault"
)

// abortTime is what Abort of a sink or a part has after the run's context ended.
const abortTime = 10 * time.Second

// partition makes a run of parts out of a run of splits: a task writes a part
// and emits an empty block per split when it is finished, with what was skipped.
type partition struct {
	sink  exec.Sink
	parts []exec.PartRange
}

// Write implements exec.Runner.
func (n *Runner) Write(ctx context.Context, g *exec.Graph, sink exec.Sink, o *exec.Options) (exec.Stats, error) {
	probe := &run{}
	var err error
	if probe.opt, err = withDefaults(o); err != nil {
		return exec.Stats{}, err
	}
	if err := probe.layout(g, false); err != nil {
		return exec.Stats{}, err
	}
	splits := probe.sinkSplits()
	var plan *exec.SinkPlan
	err = safely(func() (err error) {
		plan, err = sink.Begin(ctx, probe.schema, splits)
		return err
	})
	if err != nil {
		return exec.Stats{}, err
	}
	if plan.Committed {
		stats := doneStats(plan.Parts)
		stats.Splits, stats.SplitsDone = len(splits), len(splits)
		return stats, nil
	}
	stats, err := exec.Stats{}, error(nil)
	if g.InParts() {
		stats, err = n.writeParts(ctx, g, o, &partition{sink, plan.Parts})
	} else {
		stats, err = n.writeStream(ctx, g, o, sink, plan.Parts, probe)
	}
	if err == nil {
		err = commit(ctx, sink, &probe.opt.Options)
	}
	if err != nil {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTime)
		defer cancel()
		_ = safely(func() error { return sink.Abort(ctx) }) // err says more
		return stats, err
	}
	return stats, nil
}

// commit has the sink commit with the run's budget, which nobody else uses any more.
func commit(ctx context.Context, sink exec.Sink, o *exec.Options) error {
	budget := exec.NewBudget(o.Memory)
	defer budget.Close()
	acct := budget.Account(ctx, "commit")
	defer acct.Close()
	acct.SetPriority(exec.Overdraw)
	return safely(func() error { return sink.Commit(ctx, &exec.CommitEnv{Alloc: acct, CPUs: o.CPUs}) })
}

// partition replaces the splits of all scans by parts as the tasks of the run: for the scheduler they are one scan.
func (r *run) partition(p *partition) {
	r.sink, r.parts = p.sink, p.parts
	r.consumer = r.addOp("write", "")
	for i, pt := range p.parts {
		if !pt.Done {
			r.partOf = append(r.partOf, i)
		}
	}
	c := sched.Stage{Limit: -1, Tasks: len(r.partOf)}
	for _, s := range r.cfg.Stages {
		c.Max = max(c.Max, s.Max)
	}
	r.cfg.Stages = []sched.Stage{c}
	r.cfg.AheadTasks = max(c.Tasks, 1) // nothing is queued but skipped rows
	r.cfg.Unordered = false            // they are judged in order
}

// scanOf gives the scan of a split, and its number there. Splits are counted through all scans, as a sink counts them.
func (r *run) scanOf(split int) (*stage, int) {
	for _, s := range r.stages {
		if split < len(s.splits) {
			return s, split
		}
		split -= len(s.splits)
	}
	return nil, 0
}

// originOf is that of a split that is written, whose Task is its number through all scans.
func (r *run) originOf(split int) exec.Origin {
	s, i := r.scanOf(split)
	if s == nil {
		return exec.Origin{}
	}
	o := s.origin(i)
	o.Task = split
	return o
}

func (n *Runner) writeParts(ctx context.Context, g *exec.Graph, o *exec.Options, p *partition) (exec.Stats, error) {
	r, err := n.newRun(ctx, g, o, p)
	if err != nil {
		return exec.Stats{}, err
	}
	for {
		b, err := r.next(ctx)
		if err == nil {
			b.Release()
			continue
		}
		if err == io.EOF {
			err = nil
		}
		if e := r.Close(); err == nil {
			err = e
		}
		return r.Stats(), err
	}
}

// writePart reads the splits of the task's part and writes what comes out.
func (a *attempt) writePart() (err error) {
	r := a.r
	part := a.work.part
	env := &exec.Env{
		Alloc: a.acct, Seed: r.opt.Seed, Epoch: r.opt.Epoch, Origin: a.origin,
		Attempt: a.n, TrackRows: r.opt.trackAll, Log: r.log,
	}
	a.enter(r.consumer)
	r.consumer.tasks.Add(1)
	pw, err := r.sink.NewPart(a.ctx, part, env)
	if err != nil {
		return a.sinkErr(err)
	}
	open := true
	defer func() {
		if !open {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(a.ctx), abortTime)
		defer cancel()
		_ = safely(func() error { return pw.Abort(ctx) }) // what failed before says more
	}()
	var done []*exec.Block // per split: rows seen, and skipped; without the rows written
	defer func() { release(done) }()
	var rows int64
	for i := a.work.first; i < a.work.end; i++ {
		s, split := r.scanOf(i)
		if k := s.scan.Keep; k != nil && !k[split] {
			continue
		}
		a.stage = s
		s.none().Retain()
		seen := &exec.Block{Batch: s.none(), Origin: r.originOf(i)}
		done = append(done, seen)
		err := a.readSplit(whole(split), func(b *exec.Block) error {
			defer func() {
				seen.Skipped = append(seen.Skipped, b.Skipped...)
				b.Skipped = nil
				b.Release()
			}()
			seen.Span = max(seen.Span, b.Row+b.Span)
			n := b.Batch.NumRows()
			if n == 0 && len(b.Skipped) == 0 {
				return nil
			}
			before := a.enter(r.consumer)
			r.consumer.rowsIn.Add(n)
			r.consumer.batches.Add(1)
			err := pw.Write(a.ctx, b)
			a.enter(before)
			rows += n
			return a.sinkErr(err)
		})
		if err != nil {
			return err
		}
	}
	a.enter(r.consumer)
	open = false
	t := exec.Tally{Read: a.read}
	for _, b := range done {
		t.Span += b.Span
		t.Skip(b.Skipped)
	}
	if err := pw.Finish(a.ctx, t); err != nil {
		return a.sinkErr(err)
	}
	r.consumer.rowsOut.Add(rows)
	a.rows = rows
	if a.job == nil {
		r.wrotePart(part, rows)
	}
	for len(done) > 0 {
		b := done[0]
		done = done[1:]
		if err := r.emit(a, b); err != nil {
			return err
		}
	}
	return nil
}

// wrotePart counts a part that is finished.
func (r *run) wrotePart(part int, rows int64) {
	r.rowsOut.Add(rows)
	r.splits.Add(int64(r.parts[part].End - r.parts[part].First))
}

func (a *attempt) sinkErr(err error) error {
	if c := context.Cause(a.ctx); err != nil && c != nil {
		return c
	}
	return err
}

// sinkSplits are the splits as a sink sees them.
func (r *run) sinkSplits() []exec.SinkSplit {
	if !r.inParts {
		return []exec.SinkSplit{{ID: "all", Rows: -1}}
	}
	splits := []exec.SinkSplit{}
	for _, s := range r.stages {
		for i, p := range s.splits {
			if k := s.scan.Keep; k != nil && !k[i] {
				p.Rows = 0
			}
			if len(r.stages) > 1 { // inputs of a union may have the same ones
				p.ID = fmt.Sprintf("%d:%s", s.scan.Source, p.ID)
			}
			splits = append(splits, exec.SinkSplit{ID: p.ID, Rows: p.Rows, Bytes: s.expect(i)})
		}
	}
	return splits
}

// expect is how many bytes of memory split i will take, decoded; 0 if unknown.
func (s *stage) expect(i int) int64 {
	if z, ok := s.scan.Table.(interface {
		Size(i int, columns []string) (fetch, decoded int64)
	}); ok {
		_, decoded := z.Size(i, s.scan.Columns)
		return decoded
	}
	return 0
}

// writeStream writes the one part of a run that is not in parts, fed by the
// ordered stream. A part that fails for a transient reason is written again
// from the start of the run. probe has the run's policies.
func (n *Runner) writeStream(ctx context.Context, g *exec.Graph, o *exec.Options, sink exec.Sink, parts []exec.PartRange, probe *run) (exec.Stats, error) {
	if len(parts) != 1 {
		return exec.Stats{}, fault.New(fault.Internal, "sink made %d parts of one split", len(parts))
	}
	if parts[0].Done {
		stats := doneStats(parts)
		stats.Splits, stats.SplitsDone = 1, 1
		if o != nil && o.Observe != nil {
			o.Observe(func() exec.Stats { return stats })
		}
		return stats, probe.judgeWhole(&parts[0].Tally)
	}
	var opt exec.Options
	if o != nil {
		opt = *o
	}
	letters, reported := 0, 0 // of this attempt; of all: a dead letter is sent once
	if send := opt.DeadLetter; send != nil {
		opt.DeadLetter = func(ctx context.Context, s *exec.Skipped) error {
			if letters++; letters <= reported {
				return nil
			}
			reported = letters
			return send(ctx, s)
		}
	}
	var current atomic.Pointer[run] // the attempt at work
	if show := opt.Observe; show != nil {
		opt.Observe = func(func() exec.Stats) {
			show(func() exec.Stats { return current.Load().Stats() })
		}
	}
	budget := retryBudget(opt.Retry)
	var fails [sched.NumClasses]int
	for attempt := 1; ; attempt++ {
		letters = 0
		stats, err := n.writeOnce(ctx, g, &opt, sink, attempt, &current)
		opt.Observe = nil // once
		stats.Retries += int64(attempt - 1)
		c := classOf(fault.CodeOf(err))
		fails[c]++
		r := current.Load()
		if err == nil || fails[c] > budget[c] || ctx.Err() != nil || r != nil && r.judged.Load() || opt.Unordered && reported > 0 { // others may be skipped the next time
			return stats, err
		}
		t := time.NewTimer(backoff(attempt + 1))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			return stats, fault.WithCode(fault.Canceled, context.Cause(ctx))
		}
	}
}

// writeOnce runs g into one attempt at the one part.
func (n *Runner) writeOnce(ctx context.Context, g *exec.Graph, o *exec.Options, sink exec.Sink, attempt int, current *atomic.Pointer[run]) (exec.Stats, error) {
	quiet := *o
	quiet.Observe = nil
	r, err := n.newRun(ctx, g, &quiet, nil)
	if err != nil {
		return exec.Stats{}, err
	}
	r.consumer.name = "write"
	current.Store(r)
	if o.Observe != nil {
		o.Observe(r.Stats)
	}
	w := &partLoop{r: r, sink: sink, attempt: attempt, result: make(chan error, 1)}
	go func() { w.result <- safely(w.run) }()
	select {
	case err = <-w.result:
	case <-r.ctx.Done():
		grace := time.NewTimer(closeGrace)
		defer grace.Stop()
		select {
		case err = <-w.result:
		case <-grace.C: // left behind: its call does not obey the context
			err = context.Cause(r.ctx)
		}
	}
	if e := r.Close(); err == nil {
		err = e
	}
	return r.Stats(), err
}

type partLoop struct {
	r       *run
	sink    exec.Sink
	attempt int
	result  chan error
}

// run moves the stream into a PartWriter. A call of it that takes longer than
// StallTimeout fails the run.
func (w *partLoop) run() (err error) {
	r := w.r
	acct := r.budget.Account(r.ctx, "write")
	acct.SetPriority(exec.Overdraw) // what it gives out frees what waits for it
	defer acct.Close()
	env := &exec.Env{Alloc: acct, Seed: r.opt.Seed, Epoch: r.opt.Epoch, Attempt: w.attempt, TrackRows: r.opt.trackAll, Log: r.log}
	call := func(what string, f func() error) error {
		if d := r.opt.StallTimeout; d > 0 {
			t := time.AfterFunc(d, func() {
				report := what + " took longer than " + d.String()
				r.stalled(report)
				r.fail(fault.New(fault.Stalled, "no progress: %s", report))
			})
			defer t.Stop()
		}
		err := f()
		if c := context.Cause(r.ctx); err != nil && c != nil {
			return c
		}
		return err
	}
	var pw exec.PartWriter
	err = call("opening the output", func() (err error) {
		pw, err = w.sink.NewPart(r.ctx, 0, env)
		return err
	})
	if err != nil {
		return err
	}
	open := true
	defer func() {
		if !open {
			return
		}
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.ctx), abortTime)
		defer cancel()
		_ = safely(func() error { return pw.Abort(ctx) }) // err says more
	}()
	var t exec.Tally
	for {
		b, err := r.Next(r.ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		t.Skip(b.Skipped)
		err = call("writing", func() error { return pw.Write(r.ctx, b) })
		b.Release()
		if err != nil {
			return err
		}
	}
	open = false
	t.Read, t.Span = r.rowsIn.Load(), r.rowsSeen
	return call("finishing the output", func() error { return pw.Finish(r.ctx, t) })
}
