package local

import (
	"context"
	"fmt"
	"io"
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"time"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/whereabouts"
	"github.com/penstock-data/penstock/io/driver"
)

// attempt is one go at a task. Its goroutine alone uses it, but for the fields
// below "shared".
type attempt struct {
	r      *run
	id     uint64
	work   *work
	stage  *stage // of the split being read
	n      int    // 1 is the first
	ctx    context.Context
	cancel context.CancelCauseFunc
	acct   *exec.Account
	origin exec.Origin // of the split being read
	read   int64       // rows read
	rows   int64       // of a part: written
	place  *place      // nil: here
	job    *Job        // of a Worker: who gets what is made, and err once done is closed; nil: the scheduler
	done   chan struct{}
	err    error

	op     *opStats // whose code runs, nil: the engine's
	since  time.Time
	waited time.Duration // of acct, when op began
	calls  *time.Timer   // CallTimeout

	// shared
	room   chan struct{}               // closed by Resume; guarded by run.mu
	where  atomic.Pointer[exec.Origin] // origin, for reports
	at     atomic.Pointer[opStats]     // op, for reports
	atTime atomic.Int64                // since, for reports: ns from the start of the run
	atMem  atomic.Int64                // how long acct had waited then, ns
	parked atomic.Bool
	ended  atomic.Bool // finish was called, by whoever was first
	urgent atomic.Bool // everything waits for it; for another process
}

func (r *run) newAttempt(w *work, n int) *attempt {
	a := &attempt{r: r, work: w, stage: w.stage, n: n}
	a.id = r.ids.Add(1)
	a.ctx, a.cancel = context.WithCancelCause(r.ctx)
	a.ctx = exec.WithWait(a.ctx, func() func() {
		op := a.enter(nil)
		return func() { a.enter(op) }
	})
	switch s := w.stage; {
	case w.input != nil:
		a.origin = w.input.Origin
	case w.isPart:
		a.origin = r.originOf(w.first)
	default:
		a.origin = s.origin(w.piece.split)
	}
	a.setOrigin(a.origin)
	a.acct = r.budget.Account(a.ctx, w.stage.account(a.origin, w))
	return a
}

func (a *attempt) setOrigin(o exec.Origin) {
	a.origin = o
	a.where.Store(&o)
}

func (s *stage) origin(split int) exec.Origin {
	p := s.splits[split]
	return exec.Origin{Source: s.scan.Source, Split: p.ID, File: p.File, Index: p.Index, Task: split}
}

func (a *attempt) info() exec.TaskInfo {
	return exec.TaskInfo{Stage: a.work.Stage, Task: a.work.N, Attempt: a.n, Origin: *a.where.Load()}
}

// attempt runs a, from start to finish; the body of its goroutine.
func (r *run) attempt(a *attempt) {
	ev := r.opt.Events
	if f := ev.TaskStarted; f != nil {
		f(a.info())
	}
	debug.SetPanicOnFault(true) // of this goroutine: files are mapped, and others may truncate them
	a.since = time.Now()
	returned := false
	defer func() {
		if !returned {
			a.over(fault.New(fault.UserCode, "user code ended its goroutine (runtime.Goexit; in tests t.FailNow and t.Fatal do)"))
		}
	}()
	err := safely(func() error {
		switch {
		case a.place != nil && a.place.node != nil:
			return a.runElsewhere()
		case a.work.isPart:
			return a.writePart()
		case a.work.input != nil:
			return a.runBlock()
		}
		return a.runSplit()
	})
	returned = true
	a.over(err)
}

// over ends an attempt that has come to err; on its own goroutine.
func (a *attempt) over(err error) {
	ev := a.r.opt.Events
	a.enter(nil)
	if a.calls != nil {
		a.calls.Stop()
	}
	switch cause := context.Cause(a.ctx).(type) {
	case *timeout:
		err = cause.err
	default:
		if err != nil && cause == exec.ErrDone {
			err = cause // told to stop: whatever came of it
		}
	}
	err = a.placed(err)
	a.cancel(exec.ErrDone)
	a.acct.Close()
	if f := ev.TaskFinished; f != nil {
		f(a.info(), err)
	}
	a.finish(err)
}

// finish tells how the attempt ended, unless that was told before.
func (a *attempt) finish(err error) {
	switch {
	case !a.ended.CompareAndSwap(false, true):
	case a.job != nil:
		a.err = err
		close(a.done)
	case a.r.finish(a, err):
		a.retried(err)
	}
}

// retried says that a, which came to err, will run again.
func (a *attempt) retried(err error) {
	i := a.info()
	a.r.log.Warn("a task is tried again", "split", i.Origin.Split, "task", i.Task, "attempt", i.Attempt, "error", err)
	if f := a.r.opt.Events.TaskRetried; f != nil {
		f(i, err)
	}
}

// placed says where err happened.
func (a *attempt) placed(err error) error {
	if err == nil || err == exec.ErrDone {
		return err
	}
	return placeOf(a.origin, a.n, err)
}

func placeOf(o exec.Origin, attempt int, err error) error {
	p := splitPlace(o)
	p.Attempt = attempt
	if c := fault.CodeOf(err); c == fault.NotFound || c == fault.Denied { // the whole file
		p.RowGroup = 0
	}
	return fault.Wrap(err, p)
}

// splitPlace is where a split is.
func splitPlace(o exec.Origin) fault.Place {
	if o.File == "" {
		return fault.Place{File: o.Split}
	}
	return fault.Place{File: o.File, RowGroup: fault.N(o.Index)}
}

// safely turns a panic into an error: a *fault.Error that was thrown keeps its
// code (the allocator's when memory is out), anything else is UserCode with its
// stack. The one place that recovers, but for tellTruncated.
func safely(f func() error) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case *fault.Error:
			err = p
		case interface{ Addr() uintptr }: // debug.SetPanicOnFault
			if err = truncated(p.Addr()); err != nil {
				return
			}
			err = fault.New(fault.Changed, "memory fault: a file that is mapped was truncated while it was read, or memory was used after its release: %v\n%s", p, debug.Stack())
		default:
			err = fault.New(fault.UserCode, "panic: %v\n%s", p, debug.Stack())
		}
	}()
	return f()
}

// tellTruncated, deferred, makes of a fault in a file that was cut short what truncated says, while the file is mapped still.
func tellTruncated() {
	p := recover()
	if f, ok := p.(interface{ Addr() uintptr }); ok {
		if err := truncated(f.Addr()); err != nil {
			panic(err)
		}
	}
	if p != nil {
		panic(p)
	}
}

// truncated is an error if a file is mapped where at is that ends before that; nil also where the system does not tell.
func truncated(at uintptr) error {
	maps, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		return nil
	}
	for line := range strings.Lines(string(maps)) {
		var from, to uintptr
		var perms, dev, inode string
		var off int64
		n, _ := fmt.Sscanf(line, "%x-%x %s %x %s %s", &from, &to, &perms, &off, &dev, &inode)
		if n < 6 || at < from || at >= to {
			continue
		}
		i := strings.IndexByte(line, '/')
		if i < 0 {
			return nil
		}
		file := strings.TrimSuffix(line[i:], "\n")
		if fi, err := os.Stat(file); err != nil || !fi.Mode().IsRegular() || fi.Size() > off+int64(at-from) {
			return nil
		}
		return fault.New(fault.Changed, "the file was cut short while it was read: list again, and do not replace data that is being read").At(fault.Place{File: file})
	}
	return nil
}

// timeout is the cause of an attempt that was ended by CallTimeout.
type timeout struct{ err *fault.Error }

func (t *timeout) Error() string { return t.err.Error() }

// enter notes whose code runs from now on, and returns whose did.
func (a *attempt) enter(op *opStats) (before *opStats) {
	now := time.Now()
	before = a.op
	if before != nil {
		w := a.acct.Waited()
		mem := w - a.waited
		a.waited = w
		before.waitMem.Add(int64(mem))
		before.busy.Add(int64(max(now.Sub(a.since)-mem, 0)))
		before.sawPeak(a.acct.TakePeak())
	}
	a.op, a.since = op, now
	a.at.Store(op)
	a.atMem.Store(int64(a.acct.Waited()))
	at := int64(now.Sub(a.r.started))
	a.atTime.Store(at)
	a.r.moved.Store(at)
	a.watch(op, before)
	return before
}

// watch arms the timer that ends a call that takes too long.
func (a *attempt) watch(op, before *opStats) {
	switch l := a.limit(op); {
	case l > 0 && a.calls == nil:
		a.calls = time.AfterFunc(l, a.giveUp)
	case l > 0:
		a.calls.Reset(l)
	case a.calls != nil && a.limit(before) > 0:
		a.calls.Stop()
	}
}

// limit is how long a call of op may take; 0 means for ever.
func (a *attempt) limit(op *opStats) time.Duration {
	switch {
	case op == nil:
		return 0
	case a.r.opt.CallTimeout == 0 && op.reads:
		return readTimeout
	}
	return max(a.r.opt.CallTimeout, 0)
}

// giveUp ends an attempt stuck in a call: by its context, and if it does not
// obey that, by leaving it behind. That a call waits for memory is not its fault.
func (a *attempt) giveUp() {
	op, took := a.at.Load(), time.Since(a.r.started)-time.Duration(a.atTime.Load())
	l := a.limit(op)
	if l == 0 || took < l {
		return // the call came back just now
	}
	if a.acct.Waiting() {
		time.AfterFunc(l, a.giveUp)
		return
	}
	if took -= a.acct.Waited() - time.Duration(a.atMem.Load()); took < l { // of all goroutines of the call
		time.AfterFunc(min(l-took, l), a.giveUp)
		return
	}
	e := fault.New(fault.Unavailable, "%s took longer than %v", op.name, took.Round(time.Millisecond))
	e.Step = op.step
	if a.work.isPart {
		e.Code = fault.Stalled // its writer may still be at work: no other may begin
	}
	a.cancel(&timeout{e})
	time.AfterFunc(closeGrace, func() {
		if !a.ended.Load() {
			err := a.placed(e)
			a.r.log.Warn("a call that does not obey its context is left behind", "split", a.where.Load().Split, "error", err)
			a.finish(err)
		}
	})
}

// park waits for room in the queue.
func (a *attempt) park(room chan struct{}) error {
	start := time.Now()
	op := a.enter(nil)
	a.parked.Store(true)
	select {
	case <-room:
	case <-a.ctx.Done():
	}
	a.parked.Store(false)
	if op == nil {
		op = a.stage.lastOp()
	}
	op.waitOut.Add(int64(time.Since(start)))
	a.enter(op)
	return context.Cause(a.ctx)
}

// runSplit reads the task's split, or piece of one, through the chain.
func (a *attempt) runSplit() error {
	return a.readSplit(a.work.piece, func(b *exec.Block) error { return a.r.emit(a, b) })
}

// readSplit reads p through the chain into out, which takes blocks over.
func (a *attempt) readSplit(p piece, out func(*exec.Block) error) (err error) {
	s, i := a.stage, p.split
	a.setOrigin(s.origin(i))
	if !a.r.opt.Spans { // what waits in a split for a trainer says little about an end
		defer whereabouts.Begin(func() string { return splitPlace(a.origin).String() })()
	}
	c, err := a.newChain(out)
	if err != nil {
		return err
	}
	defer c.close()
	defer a.enter(a.enter(s.scanOp))
	s.scanOp.tasks.Add(1)
	o := &driver.ScanOptions{
		Columns: s.scan.Columns, Predicate: s.scan.Predicate, Limit: s.scan.Limit,
		BatchRows: a.r.opt.BatchRows, BatchBytes: a.r.opt.BatchBytes, Gaps: true,
		Alloc: a.acct, Stats: &s.scanned,
	}
	if a.r.opt.OnError.Policy == exec.Skip {
		o.OnBadRow = func(err error) error { return c.badRow(p, err) }
	}
	end := s.splits[i].Rows
	c.next, o.FromRow = p.from, p.from
	if p.to >= 0 {
		end, o.Limit = p.to, p.to-p.from
	}
	rd, err := s.scan.Table.Open(a.ctx, i, o)
	if err != nil {
		return a.scanErr(err)
	}
	defer func() {
		if e := rd.Close(); e != nil && err == nil {
			err = a.scanErr(e)
		}
	}()
	defer tellTruncated() // before the reader ends its mapping
	done := false         // the piece is at its end: what is behind it is another's
	for first := true; ; first = false {
		if err := context.Cause(a.ctx); err != nil {
			return err
		}
		a.enter(s.scanOp) // steps were at work meanwhile, and each call has its own time
		batch, err := driver.Batch{}, io.EOF
		if !done {
			batch, err = rd.Next(a.ctx)
		}
		if err == nil && p.to >= 0 {
			done = batch.End() >= p.to
			err = p.within(&batch)
		}
		if err == io.EOF {
			if n := len(c.pending); n > 0 && !a.r.opt.Spans { // rows that do not parse, behind the last batch
				end = max(end, c.pending[n-1].Row+1)
			}
			if err := c.flush(end); err != nil || !a.r.opt.Spans {
				return err
			}
			return c.end()
		}
		if err != nil {
			return a.scanErr(err)
		}
		n := batch.Record.NumRows()
		a.countRead(n)
		s.scanOp.count(n, batch.Record)
		b := &exec.Block{Batch: batch.Record, Origin: a.origin, Row: batch.Row, Span: batch.End() - batch.Row, Rows: batch.Rows}
		if first && a.r.opt.Spans {
			c.next = batch.Row // a slice of a split need not begin with its first row
		}
		if err := c.feed(b); err != nil {
			return err
		}
	}
}

// countRead counts rows once, however many attempts read them.
func (a *attempt) countRead(n int64) {
	a.read += n
	if c := &a.work.counted; a.read > c.Load() && !a.ended.Load() {
		a.r.rowsIn.Add(a.read - c.Swap(a.read))
	}
}

func (a *attempt) scanErr(err error) error {
	if c := context.Cause(a.ctx); c != nil {
		return c
	}
	return fault.Wrap(err, fault.Place{Step: a.stage.scan.Step})
}

// runBlock runs the task's input block through the chain.
func (a *attempt) runBlock() error {
	c, err := a.newChain(func(b *exec.Block) error { return a.r.emit(a, b) })
	if err != nil {
		return err
	}
	defer c.close()
	in := a.work.input
	for i := range in.Skipped { // carried along; a later attempt finds them again
		sk := in.Skipped[i]
		if sk.Record != nil {
			sk.Record.Retain()
		}
		c.pending = append(c.pending, sk)
	}
	c.next = in.Row
	in.Batch.Retain() // a reference of the attempt: it may outlive the task when it is left behind
	if err := c.feed(in.With(in.Batch, in.Rows, in.Ords)); err != nil {
		return err
	}
	return c.flush(in.Row + in.Span)
}

// describe is the attempt's state for reports.
func (a *attempt) describe() string {
	switch op := a.at.Load(); {
	case a.acct.Waiting():
		return "waiting for memory: " + a.r.budget.Holders()
	case a.place != nil && a.place.node != nil:
		return "on another node"
	case a.parked.Load():
		return "waiting for room in its queue"
	case op == nil:
		return "running"
	case op.reads:
		return "reading"
	default:
		return op.name
	}
}

// freed notes memory of the Go heap that blocks gave up, and has it collected
// before it amounts to much of the budget (or, where that is small, of what a
// process takes anyway: a collection looks at the whole heap).
func (r *run) freed(n int64) {
	if r.garbage.Add(n) > max(r.opt.Memory/16, 32<<20) {
		r.garbage.Store(0)
		runtime.GC()
	}
}
