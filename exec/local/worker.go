package local

import (
	"context"
	"math"
	"time"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/internal/sched"
	"github.com/penstock-data/penstock/internal/fault"
)

// Worker runs tasks of a graph that the run of another process schedules: the far side of a [Node]. Safe for concurrent use.
type Worker struct{ r *run }

// Settings are what attempts at a task must agree on, wherever they run, so that they make the same blocks.
type Settings struct {
	BatchRows  int   `json:"batch_rows"`
	BatchBytes int64 `json:"batch_bytes"`
	Track      bool  `json:"track"` // rows of blocks are known
}

// SettingsOf are those of a run with these options, and the bytes of its budget.
func SettingsOf(o *exec.Options) (set Settings, memory int64, err error) {
	s, err := withDefaults(o)
	return Settings{s.BatchRows, s.BatchBytes, s.trackAll}, s.Memory, err
}

// Worker makes a worker for g. A sink that has joined gets the parts; nil: rows are wanted. Seed, Epoch, OnError, Memory, CPUs and CallTimeout of o count. Close it.
func (n *Runner) Worker(ctx context.Context, g *exec.Graph, sink exec.Joint, o *exec.Options, set Settings) (*Worker, error) {
	var opt exec.Options
	if o != nil {
		opt = *o
	}
	opt.BatchRows, opt.BatchBytes = set.BatchRows, set.BatchBytes
	opt.Events, opt.Observe, opt.DeadLetter = nil, nil, nil
	if set.Track {
		opt.DeadLetter = func(context.Context, *exec.Skipped) error { return nil } // the other process sends them
	}
	var parts *partition
	if sink != nil {
		parts = &partition{sink: sink}
	}
	r, err := (&Runner{log: n.log}).newRun(ctx, g, &opt, parts)
	if err != nil {
		return nil, err
	}
	if r.opt.BatchBytes != set.BatchBytes || r.opt.BatchRows != set.BatchRows {
		r.opt.BatchRows, r.opt.BatchBytes = set.BatchRows, set.BatchBytes // where this process has less memory
	}
	return &Worker{r}, nil
}

// Join has the sink join that of the leader.
func (w *Worker) Join(ctx context.Context, sink exec.Joint) error {
	r := w.r
	return safely(func() error { return sink.Join(ctx, r.schema, r.sinkSplits()) })
}

// CPUs is how many tasks compute at once.
func (w *Worker) CPUs() int { return w.r.opt.CPUs }

// Tasks is how many tasks to run at once: more than CPUs where they wait for something else.
func (w *Worker) Tasks() int {
	n := w.r.opt.CPUs
	for _, c := range w.r.cfg.Stages {
		if c.Inputs == nil {
			n = max(n, c.Max)
		}
	}
	return n
}

// Job is a task at work, as whoever called Do sees it.
type Job struct {
	// Emit takes over what the task makes, as Hand.Emit. One goroutine calls it.
	Emit func(b *exec.Block, read int64) error
	a    *attempt
}

// Prepare readies a task; Do runs it, Urge and Read may be called meanwhile.
func (w *Worker) Prepare(t *Task, emit func(b *exec.Block, read int64) error) (*Job, error) {
	r := w.r
	if t.Stage < 0 || t.Stage >= len(r.stages) || r.stages[t.Stage].scan == nil {
		return nil, fault.New(fault.Corrupt, "there is no scan %d", t.Stage)
	}
	s := r.stages[t.Stage]
	bad := t.Split < 0 || t.From < 0 || t.Attempt < 1 || t.Ratio < 0 || (t.Part >= 0) != (r.sink != nil)
	if t.Part >= 0 {
		last, _ := r.scanOf(t.End - 1)
		bad = bad || t.End <= t.Split || last == nil
	} else {
		bad = bad || t.Split >= len(s.splits) || t.To >= 0 && t.To < t.From || t.From > math.MaxInt64/2
	}
	if bad {
		return nil, fault.New(fault.Corrupt, "there is no such task: %+v", *t)
	}
	k := &work{Task: sched.Task{Stage: t.Stage, N: t.Split}, stage: s, ratio: t.Ratio, isPart: t.Part >= 0, part: t.Part, first: t.Split, end: t.End,
		piece: piece{t.Split, t.From, t.To}}
	a := r.newAttempt(k, t.Attempt)
	j := &Job{Emit: emit, a: a}
	a.job, a.done = j, make(chan struct{})
	k.current = a
	j.Urge(t.Urgent)
	return j, nil
}

// Urge says whether everything waits for the task.
func (j *Job) Urge(on bool) {
	if on {
		j.a.acct.SetPriority(exec.Overdraw)
	} else {
		j.a.acct.SetPriority(exec.Ahead)
	}
}

// Read is how many rows the task has read.
func (j *Job) Read() int64 { return j.a.work.counted.Load() }

// Cancel ends the task soon. Idempotent; safe at any time.
func (j *Job) Cancel() { j.a.cancel(exec.ErrDone) }

// Do runs the task. It ends a second after ctx at the latest, also where code does not obey it, but for a part: nobody else may write
// that before.
func (w *Worker) Do(ctx context.Context, j *Job) (*Result, error) {
	r, a := w.r, j.a
	stop := context.AfterFunc(ctx, func() { a.cancel(context.Cause(ctx)) })
	defer stop()
	r.live.Go(func() { r.attempt(a) })
	select {
	case <-a.done:
	case <-a.ctx.Done():
		if a.work.isPart {
			<-a.done
			break
		}
		grace := time.NewTimer(closeGrace)
		defer grace.Stop()
		select {
		case <-a.done:
		case <-grace.C:
			if _, late := context.Cause(a.ctx).(*timeout); !late {
				return nil, context.Cause(a.ctx)
			}
			<-a.done // giveUp has as much patience, and says what it was
		}
	}
	if a.err != nil {
		return nil, a.err
	}
	res := &Result{Rows: a.rows, Ratio: a.stage.inflated.Load()}
	if a.work.isPart {
		var err error
		if res.Report, err = r.sink.(exec.Joint).Report(a.work.part); err != nil {
			return nil, err
		}
	}
	return res, nil
}

// Drop gives up a task that was prepared and is not to be done.
func (j *Job) Drop() {
	j.a.cancel(exec.ErrDone)
	j.a.acct.Close()
}

// Counts are the statistics of all tasks so far, in an order that both sides know.
func (w *Worker) Counts() []int64 { return w.r.counts() }

// Memory is what the budget holds now, and held at most.
func (w *Worker) Memory() (held, peak int64) { return w.r.budget.Used(), w.r.budget.Peak() }

// Moves is a number that grows while something moves.
func (w *Worker) Moves() int64 { return w.r.moved.Load() }

// Close ends all tasks, waits for them and frees everything: as exec.Stream's.
func (w *Worker) Close() error { return w.r.Close() }

// counts flattens the statistics.
func (r *run) counts() []int64 {
	var all []int64
	for _, o := range r.ops {
		for _, c := range o.all() {
			all = append(all, c.Load())
		}
	}
	for _, s := range r.stages {
		if s.scan != nil {
			c := &s.scanned
			all = append(all, c.BytesRead.Load(), c.Requests.Load(), c.Retries.Load(), c.Rows.Load(), c.Pruned.Load())
		}
	}
	return all
}

// add adds what the counts of a worker of the same graph grew by.
func (r *run) add(grown []int64) {
	next := func() (n int64) {
		if len(grown) > 0 {
			n, grown = grown[0], grown[1:]
		}
		return n
	}
	for _, o := range r.ops {
		for _, c := range o.all() {
			c.Add(next())
		}
	}
	for _, s := range r.stages {
		if s.scan != nil {
			c := &s.scanned
			c.BytesRead.Add(next())
			c.Requests.Add(next())
			c.Retries.Add(next())
			c.Rows.Add(next())
			c.Pruned.Add(next())
		}
	}
}
