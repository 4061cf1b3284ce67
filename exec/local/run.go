package local

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/internal/sched"
	"github.com/penstock-data/penstock/internal/fault"
)

// run is a Stream. Locks: mu, then those of the budget; mu is never held while
// user code runs.
type run struct {
	opt       settings
	log       *slog.Logger
	schema    *arrow.Schema
	stages    []*stage
	cfg       sched.Config
	budget    *exec.Budget
	ownBudget bool
	batches   *exec.Account // of the consumer
	sink      exec.Sink
	inParts   bool             // Graph.InParts
	parts     []exec.PartRange // of sink
	partOf    []int            // task -> part
	ctx       context.Context  // of all attempts
	cancel    context.CancelCauseFunc
	unwatch   func() bool
	started   time.Time

	ops       []*opStats
	consumer  *opStats
	policies  map[string]*policy // of steps with their own, by exec.ByStep of every source whose rows they see
	runPolicy *policy
	rowsSeen  int64       // spans delivered, or passed; consumer only
	judged    atomic.Bool // too many rows were skipped
	passed    int         // parts before it are judged, where earlier runs have finished them; consumer only
	rowsIn    atomic.Int64
	rowsOut   atomic.Int64
	skipped   atomic.Int64
	splits    atomic.Int64 // done inside parts
	moved     atomic.Int64 // when something last did, ns from the start
	garbage   atomic.Int64 // bytes of released memory that the collector has to find
	live      sync.WaitGroup
	ids       *atomic.Uint64 // of attempts
	nodes     []Node

	mu     sync.Mutex
	places *places    // nil: all is here
	far    [][2]int64 // of each node: what its budget holds, and held at most

	sched      *sched.Sched
	work       map[sched.Task]*work
	head       sched.Task
	prio       exec.Priority
	out        *exec.Block // delivered, not yet taken
	pulled     bool        // Pull is on its way
	end        bool
	err        error // first failure
	closed     bool
	closeError error // of operators; read after done
	active     map[*attempt]struct{}
	wake       chan struct{} // room 1: something changed for the consumer
	idle       chan struct{} // closed once no attempt is at work; made by Close
	done       chan struct{} // closed once every goroutine is gone and all is freed; made by Close

	lastReturn time.Time // consumer only
	elapsed    atomic.Int64
}

// work is a task with its queue.
type work struct {
	sched.Task
	stage   *stage
	input   *exec.Block // of a cut
	piece   piece       // of a scan whose rows are wanted
	isPart  bool        // of a scan that is written: part, which has splits first to end-1
	part    int
	first   int
	end     int
	queue   []*exec.Block
	current *attempt
	timer   *time.Timer  // of a Sleep
	ratio   int64        // inflation assumed at the first attempt; kept for later ones. 0 of a part
	counted atomic.Int64 // rows read that are in the statistics
	err     error        // of the last attempt
	origin  exec.Origin
	over    bool // finished; forgotten once queue is empty
}

func (n *Runner) newRun(ctx context.Context, g *exec.Graph, o *exec.Options, parts *partition) (*run, error) {
	opt, err := withDefaults(o)
	if err != nil {
		return nil, err
	}
	r := &run{
		opt: opt, log: n.log, budget: opt.Budget, started: time.Now(), nodes: n.nodes, ids: &n.ids,
		work: make(map[sched.Task]*work), active: make(map[*attempt]struct{}),
		wake: make(chan struct{}, 1),
	}
	if err := r.layout(g, parts == nil && !opt.Spans); err != nil {
		return nil, err
	}
	r.takeRead()
	if parts != nil {
		r.partition(parts)
	} else {
		r.consumer = r.addOp("consumer", "")
	}
	if r.budget == nil {
		r.budget, r.ownBudget = exec.NewBudget(opt.Memory), true
	}
	r.sched = sched.New(r.cfg)
	r.ctx, r.cancel = context.WithCancelCause(context.WithoutCancel(ctx)) // fail ends it, with a code
	r.lastReturn = r.started
	r.unwatch = context.AfterFunc(ctx, func() {
		r.fail(fault.WithCode(fault.Canceled, context.Cause(ctx)))
	})
	r.batches = r.budget.Account(r.ctx, "consumer")
	r.batches.SetPriority(exec.Overdraw)
	if parts != nil {
		if err := r.takeOver(); err != nil {
			r.fail(err)
		}
	}
	r.far = make([][2]int64, len(r.nodes))
	for i, o := range r.nodes {
		o.Watch(watch{r, i})
		watch{r, i}.RoomChanged() // perhaps it has, since it was asked
	}
	if opt.Observe != nil {
		opt.Observe(r.Stats)
	}
	if ctx.Err() != nil { // at once: nothing begins
		r.fail(fault.WithCode(fault.Canceled, context.Cause(ctx)))
	}
	return r, nil
}

// Alloc gives memory of the budget for what the consumer makes of blocks. It
// never waits, since only the consumer frees what it waited for; what is
// allocated may outlive the stream.
func (r *run) Alloc() memory.Allocator { return r.batches }

func (r *run) Schema() *arrow.Schema { return r.schema }

// Next implements exec.Stream. Blocks have rows, or rows that were skipped, or both.
func (r *run) Next(ctx context.Context) (*exec.Block, error) {
	now := time.Now()
	r.consumer.busy.Add(int64(now.Sub(r.lastReturn)))
	b, err := r.next(ctx)
	r.lastReturn = time.Now()
	r.consumer.waitIn.Add(int64(r.lastReturn.Sub(now)))
	return b, err
}

func (r *run) next(ctx context.Context) (*exec.Block, error) {
	for {
		b, err := r.pull(ctx)
		if err == io.EOF {
			if err := r.judgeEnd(); err != nil {
				r.fail(err)
				return nil, err
			}
			r.elapsed.CompareAndSwap(0, int64(time.Since(r.started)))
			return nil, io.EOF
		}
		if err != nil {
			return nil, err
		}
		if err := r.deliver(ctx, b); err != nil {
			b.Release()
			r.fail(err)
			return nil, err
		}
		if b.Batch.NumRows() > 0 || len(b.Skipped) > 0 || r.opt.Spans {
			return b, nil
		}
		b.Release()
	}
}

// deliver accounts for a block in canonical order.
func (r *run) deliver(ctx context.Context, b *exec.Block) error {
	if r.sink != nil {
		if err := r.pass(b.Origin.Task); err != nil {
			return err
		}
	}
	before := r.rowsSeen
	defer func() { r.rowsSeen = before + b.Span }()
	n := b.Batch.NumRows()
	r.rowsOut.Add(n)
	if r.sink == nil {
		r.consumer.rowsIn.Add(n)
		r.consumer.batches.Add(1)
	}
	for i := range b.Skipped {
		s := &b.Skipped[i]
		r.skipped.Add(1)
		r.policyOf(s.By()).count(s)
		r.rowsSeen = before + min(max(s.Row-b.Row+1, 0), b.Span)
		err := r.judge(tooMany)
		if err == nil && r.sink == nil {
			err = r.judge(r.tooLarge)
		}
		if err != nil {
			return err
		}
		r.log.Debug("a row is skipped", "split", s.Origin.Split, "row", s.Row, "error", s.Err)
		if f := r.opt.Events.RowSkipped; f != nil {
			f(s)
		}
		if r.opt.DeadLetter != nil {
			if err := r.opt.DeadLetter(ctx, s); err != nil {
				return fmt.Errorf("dead letter: %w", err)
			}
		}
	}
	if r.sink != nil && r.endsPart(b.Origin.Task) {
		r.rowsSeen = before + b.Span
		return r.judge(r.tooLarge)
	}
	return nil
}

// pull returns the next block of the scheduler, io.EOF, or the run's failure.
func (r *run) pull(ctx context.Context) (*exec.Block, error) {
	var stall *time.Timer
	var stalled <-chan time.Time
	var second bool
	var since time.Time
	for {
		r.mu.Lock()
		switch {
		case r.out != nil:
			b := r.out
			r.out, r.pulled = nil, false
			r.mu.Unlock()
			return b, nil
		case r.err != nil:
			r.mu.Unlock()
			return nil, r.err
		case r.closed:
			r.mu.Unlock()
			return nil, fault.New(fault.Canceled, "the stream is closed")
		case r.end:
			r.mu.Unlock()
			return nil, io.EOF
		case !r.pulled:
			r.pulled = true
			r.step(sched.Event{Kind: sched.Pull})
			r.mu.Unlock()
			continue
		}
		r.mu.Unlock()
		if stall == nil && r.opt.StallTimeout > 0 {
			since = time.Now()
			stall = time.NewTimer(r.opt.StallTimeout)
			defer stall.Stop()
			stalled = stall.C
		}
		select {
		case <-r.wake:
		case <-ctx.Done():
			return nil, fault.WithCode(fault.Canceled, context.Cause(ctx))
		case <-stalled:
			if last := r.started.Add(time.Duration(r.moved.Load())); last.After(since) {
				since = last
			}
			if left := r.opt.StallTimeout - time.Since(since); left > 0 {
				second = false
				stall.Reset(left)
				break
			}
			if !second { // a process that was stopped for a while finds its time over: look again when it has run for a moment
				second = true
				stall.Reset(min(r.opt.StallTimeout/10, time.Second))
				break
			}
			report := r.report()
			r.stalled(report)
			r.fail(fault.New(fault.Stalled, "no progress for %v:\n%s", r.opt.StallTimeout, report))
		}
	}
}

// stalled says that nothing moves, and why.
func (r *run) stalled(report string) {
	r.log.Error("the run makes no progress", "report", report)
	if f := r.opt.Events.Stalled; f != nil {
		f(report)
	}
}

// fail ends the run with err unless it has ended.
func (r *run) fail(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failLocked(err)
}

func (r *run) failLocked(err error) {
	if r.err != nil || r.closed {
		return
	}
	r.err = err
	r.elapsed.CompareAndSwap(0, int64(time.Since(r.started)))
	r.step(sched.Event{Kind: sched.Stop})
	r.cancel(err)
	r.signal()
}

func (r *run) signal() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

// step feeds the scheduler and does what it says; it needs mu. emitted is the
// block of an Emit.
func (r *run) step(e sched.Event, emitted ...*exec.Block) {
	for _, a := range r.sched.Step(e) {
		w := r.work[a.Task]
		switch a.Kind {
		case sched.Start:
			r.start(a)
		case sched.Queue:
			w.queue = append(w.queue, emitted[0])
		case sched.Drop:
			emitted[0].Release()
		case sched.Park:
			w.current.room = make(chan struct{})
		case sched.Resume:
			close(w.current.room)
			w.current.room = nil
		case sched.Cancel:
			w.current.cancel(exec.ErrDone)
		case sched.Discard:
			for _, b := range w.queue {
				b.Release()
			}
			w.queue = nil
			r.forget(w)
		case sched.Sleep:
			w.timer = time.AfterFunc(backoff(a.Attempt), func() {
				r.mu.Lock()
				defer r.mu.Unlock()
				r.step(sched.Event{Kind: sched.Timer, Task: a.Task, Attempt: a.Attempt})
			})
		case sched.Head:
			r.setPriority(r.head, exec.Ahead)
			r.head, r.prio = a.Task, exec.First
			if a.Starved {
				r.prio = exec.Overdraw
			}
			r.setPriority(r.head, r.prio)
		case sched.Deliver:
			r.out = cut(r.shift(a.From), a.Take, a.Cut)
			r.signal()
		case sched.End:
			r.end = true
			r.signal()
		case sched.Abort:
			err := w.err
			switch a.Reason {
			case sched.Poison:
				err = fault.Wrap(fmt.Errorf("gave up after losing %d workers: %w", a.Lost, err), fault.Place{})
			case sched.Unstable:
				err = placeOf(w.origin, a.Attempt, fault.New(fault.UserCode, "a new attempt made other rows than the one before: a step depends on something else than its rows"))
			}
			if r.err == nil && !r.closed {
				r.err = err
				r.elapsed.CompareAndSwap(0, int64(time.Since(r.started)))
				r.cancel(err)
				r.signal()
			}
		}
	}
}

func (r *run) setPriority(t sched.Task, p exec.Priority) {
	if w := r.work[t]; w != nil && w.current != nil {
		w.current.acct.SetPriority(p)
		if at := w.current.place; at != nil && at.node != nil {
			w.current.urgent.Store(p != exec.Ahead) // first: what is sent after Urge says so itself
			at.node.Urge(w.current.id, p != exec.Ahead)
		}
	}
}

// shift takes the first block of a queue.
func (r *run) shift(t sched.Task) *exec.Block {
	w := r.work[t]
	b := w.queue[0]
	w.queue = w.queue[1:]
	r.forget(w)
	return b
}

// forget drops what is finished and empty.
func (r *run) forget(w *work) {
	if w.over && len(w.queue) == 0 {
		delete(r.work, w.Task)
	}
}

// cut returns the first take rows of b, whose reference it takes over. Where a
// limit was reached with them, what was skipped behind them is left out, so that
// it does not depend on where a block ends.
func cut(b *exec.Block, take int64, last bool) *exec.Block {
	if !last {
		return b
	}
	c := b.Slice(0, int(take))
	end := c.Row
	if take > 0 {
		end = c.RowAt(int(take) - 1)
		c.Span = end - c.Row + 1
	}
	for _, s := range b.Skipped {
		if s.Row < end {
			c.Skipped = append(c.Skipped, s)
		} else if s.Record != nil {
			s.Record.Release()
		}
	}
	b.Skipped = nil
	c.OnRelease(b.Release)
	return c
}

// start begins an attempt; it needs mu.
func (r *run) start(a sched.Action) {
	w := r.work[a.Task]
	if w == nil {
		w = &work{Task: a.Task, stage: r.stages[a.Task.Stage]}
		switch s := w.stage; {
		case r.sink != nil:
			w.isPart, w.part = true, r.partOf[w.N]
			w.first, w.end = r.parts[w.part].First, r.parts[w.part].End
		case s.scan != nil:
			w.piece, w.ratio = s.piece(w.N), s.inflated.Load()
		default:
			w.ratio = s.inflated.Load()
		}
		r.work[a.Task] = w
	}
	if a.From != a.Task {
		w.input = cut(r.shift(a.From), a.Take, a.Cut)
	}
	at := r.newAttempt(w, a.Attempt)
	if r.head == a.Task && r.prio != exec.Ahead {
		at.acct.SetPriority(r.prio)
		at.urgent.Store(true)
	}
	if r.places != nil && w.stage.scan != nil {
		at.place = r.places.take()
	}
	w.current, w.origin = at, at.origin
	r.active[at] = struct{}{}
	r.live.Go(func() { r.attempt(at) })
}

// finish tells the scheduler how an attempt ended. Called once per attempt, by
// its own goroutine, or by the timer that gave it up.
func (r *run) finish(a *attempt, err error) (retried bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.active, a)
	if a.place != nil {
		r.places.free(a.place)
	}
	w := a.work
	e := sched.Event{Kind: sched.Finish, Task: w.Task, Attempt: a.n}
	if err != nil && err != exec.ErrDone {
		e.Kind, e.Class = sched.Fail, classOf(fault.CodeOf(err))
		if errors.Is(err, ErrMoved) {
			e.Class = sched.Moved
		}
		w.err = err
	}
	before := r.sched.Retries()
	r.step(e)
	if w.current == a {
		w.current = nil
	}
	if e.Kind == sched.Finish && !r.sched.Failed(w.Task) {
		if w.input != nil {
			w.input.Release()
			w.input = nil
		}
		w.over = true
		r.forget(w)
	}
	return r.sched.Retries() > before
}

// emit hands a block to the scheduler, taking it over, and waits for room.
func (r *run) emit(a *attempt, b *exec.Block) error {
	if a.job != nil {
		if a.ended.Load() { // left behind
			b.Release()
			return exec.ErrDone
		}
		op := a.enter(nil) // the leader may let it wait
		defer a.enter(op)
		return a.job.Emit(b, a.read)
	}
	m := sched.Meta{Row: b.Row, Span: b.Span, Rows: b.Batch.NumRows(), Bytes: max(exec.SizeOf(b.Batch), 1<<10)}
	r.mu.Lock()
	r.step(sched.Event{Kind: sched.Emit, Task: a.work.Task, Attempt: a.n, Block: m}, b)
	room := a.room
	r.mu.Unlock()
	if room != nil {
		return a.park(room)
	}
	return context.Cause(a.ctx)
}

// Close implements exec.Stream.
func (r *run) Close() error {
	r.mu.Lock()
	if !r.closed {
		r.closed = true
		r.elapsed.CompareAndSwap(0, int64(time.Since(r.started)))
		r.unwatch()
		r.step(sched.Event{Kind: sched.Stop})
		r.cancel(exec.ErrDone)
		for _, w := range r.work {
			if w.timer != nil {
				w.timer.Stop()
			}
		}
		if r.out != nil {
			r.out.Release()
			r.out = nil
		}
		r.signal()
		r.idle, r.done = make(chan struct{}), make(chan struct{})
		go r.drain()
	}
	r.mu.Unlock()
	const parts = 10 // a process that stood still itself, as SIGSTOP has it, loses one of them
	within := func(c chan struct{}, d time.Duration) bool {
		grace := time.NewTicker(d / parts)
		defer grace.Stop()
		for range parts {
			select {
			case <-c:
				return true
			case <-grace.C:
			}
		}
		return false
	}
	switch {
	case !within(r.idle, closeGrace):
		return fault.New(fault.Stalled, "closed, but code that does not obey its context still runs and holds its memory:\n%s", r.report())
	case !within(r.done, opsGrace):
		return fault.New(fault.Stalled, "closed, but the end of a step (of a function's, or of child processes) takes longer than %v", opsGrace)
	}
	return r.closeErr()
}

// drain waits for all attempts and frees what they share; Close joins it.
func (r *run) drain() {
	defer close(r.done)
	r.live.Wait()
	close(r.idle)
	for _, w := range r.work {
		if w.input != nil {
			w.input.Release()
			w.input = nil
		}
	}
	r.closeOps()
	r.batches.Close()
	if r.ownBudget {
		r.budget.Close()
	}
}
