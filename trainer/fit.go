package trainer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard/feed"
	"github.com/penstock-data/penstock/trainer/internal/feeder"
	"github.com/penstock-data/penstock/trainer/internal/group"
	"github.com/penstock-data/penstock/trainer/internal/wire"
	"github.com/penstock-data/penstock/trainer/launch"
	"github.com/penstock-data/penstock/trainer/store"
)

// controller is the shell around the state machine of a run. Its loop alone (see loop) touches the fields below "the loop's"; what takes time is done by goroutines that
// post what comes of it.
type controller struct {
	site
	settings []byte

	listener *net.UnixListener
	feeder   *feeder.Spread
	nodes    *nodes // the others; nil: there are none
	begun    *store.Attempt
	before   store.Status  // that the last controller left; zero where this is the first
	ready    chan struct{} // closed once it has begun
	noticed  error         // a notice that came before the loop; nil: none
	queueing sync.Mutex    // orders what is said of waiting
	gone     chan struct{} // closed by close

	connsMu sync.Mutex
	conns   map[net.Conn]bool // of workers; nil once the run is over

	ctx    context.Context // ends with that of Fit, or with the run
	stop   context.CancelCauseFunc
	posts  chan func()
	over   chan struct{} // closed with the loop
	others sync.WaitGroup
	status *statusWriter

	// the loop's
	g       *group.Group
	began   time.Time
	clock   group.Clock
	a       *attempt             // the current one; nil before the first
	first   int                  // attempt
	metrics *store.MetricsWriter // of the attempt
	some    bool                 // workers were launched
	last    map[string]float64   // metrics of the last report
	ended   *group.Action
	reports int64
	newest  int                        // checkpoint
	devices map[int]map[string]float64 // measured last, by node
	reason  string                     // of the state
	warned  bool                       // of a checkpoint without the metric of KeepBest
	failed  []Failure
}

// fit is Fit of a process that is no worker, and no hand.
func fit(ctx context.Context, s site) (_ *Result, err error) {
	c := &controller{site: s, posts: make(chan func(), 64), over: make(chan struct{}), ready: make(chan struct{}), gone: make(chan struct{}), conns: map[net.Conn]bool{},
		last: map[string]float64{}, devices: map[int]map[string]float64{}}
	c.ctx, c.stop = context.WithCancelCause(ctx)
	defer c.stop(errEnded)
	var res *Result
	if c.cfg.nodes() > 1 {
		err = c.listenNodes()
	}
	if err == nil {
		wait, heard := c.listens(ctx)
		err = c.open(ctx, wait)
		c.noticed = heard()
	}
	lost := lostOf(c.ctx)
	switch {
	case errors.Is(err, errFinished):
		res, err = c.finished(ctx)
	case err == nil, (c.noticed != nil || lost != nil) && c.status != nil && fault.CodeOf(err) == fault.Canceled:
		c.loop(ctx)
		res = c.result()
		err = res.Err
	}
	if c.noticed != nil && c.ended == nil && fault.CodeOf(err) == fault.Canceled {
		err = fault.New(fault.Canceled, "the run was preempted before it began: start it again")
	}
	if lost != nil && c.ended == nil && err != nil {
		err = lost
	}
	if err != nil && (c.ended == nil || res.State == store.Failed && !c.some && fault.CodeOf(err) != fault.Canceled) {
		res = nil // nothing was started
		c.forget()
	}
	if cerr := c.close(ctx, overOf(res, err)); res != nil && cerr != nil {
		c.cfg.Log.Warn("what is left of a run", "run", c.cfg.Name, "error", cerr)
	}
	return res, err
}

// listens hears a notice while nothing else does: a run may wait long for its devices. What is returned ends with it, once the run has begun; heard ends the listening, and returns the notice, if one came.
func (c *controller) listens(ctx context.Context) (_ context.Context, heard func() error) {
	ctx, cancel := context.WithCancelCause(ctx)
	over, notice := make(chan struct{}), make(chan error, 1)
	stop := context.AfterFunc(c.ctx, func() { cancel(context.Cause(c.ctx)) })
	go func() {
		defer close(notice)
		defer stop()
		select {
		case reason, ok := <-c.cfg.Preemption.Notice:
			if ok {
				err := preempted(reason)
				notice <- err
				grace := time.NewTimer(c.cfg.Preemption.Grace)
				defer grace.Stop()
				select { // a run that has begun can be resumed
				case <-c.ready:
				case <-grace.C:
				case <-over:
				}
				cancel(err)
			}
		case <-over:
		}
	}()
	return ctx, func() error {
		close(over)
		defer cancel(nil)
		return <-notice
	}
}

func preempted(reason string) error {
	return fault.New(fault.Canceled, "%w", &noticeError{reason})
}

// noticeError is a notice as the error of the run.
type noticeError struct{ reason string }

func (n *noticeError) Error() string {
	return "the run was preempted (" + n.reason + "): it can be resumed"
}

// reasonOf is an error as the reason of a state: the state says that the run was preempted.
func reasonOf(err error) string {
	if err == nil {
		return ""
	}
	text := err.Error()
	if n, ok := errors.AsType[*noticeError](err); ok {
		text = strings.Replace(text, n.Error(), n.reason, 1)
	}
	return text
}

// errFinished says that there is nothing to go on with.
var errFinished = errors.New("the run is finished")

// finished is the result of a run that an earlier controller has finished.
func (c *controller) finished(ctx context.Context) (*Result, error) {
	list, err := c.run.Checkpoints(ctx)
	if err != nil {
		return nil, err
	}
	b := &c.before
	return &Result{Run: c.run.Name(), Storage: c.run.URL(), State: b.State, Reports: b.Reports, Metrics: b.Metrics, Attempt: b.Attempt, Checkpoint: b.Checkpoint, Checkpoints: list}, nil
}

// forget frees the name of a run that this call has made, and none of whose workers was started.
func (c *controller) forget() {
	if c.run == nil || c.cfg.Resume {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), last)
	defer cancel()
	if c.status != nil {
		_ = c.status.close() // what it says is removed
	}
	if c.served != nil {
		_ = c.served.Close() // fit's end closes it again, which is nothing
	}
	if c.dataLog != nil {
		_ = c.dataLog.Close() // has all that the data process said
		c.dataLog = nil
	}
	if c.logs != "" { // what is not empty stays
		if file := filepath.Join(c.logs, c.dataName()+".log"); isEmpty(file) {
			_ = os.Remove(file)
		}
		_ = os.Remove(c.logs)
	}
	if err := c.run.Discard(ctx); err != nil {
		c.cfg.Log.Warn("the name of a run that did not begin stays taken", "run", c.cfg.Name, "error", err)
	}
}

// open gets together all that a run needs, and refuses what cannot be. A notice ends wait, not ctx, which buckets may keep.
func (c *controller) open(ctx, wait context.Context) (err error) {
	cfg := &c.cfg
	if c.settings, err = cfg.settings(); err != nil {
		return err
	}
	if err = c.folders(); err != nil {
		return err
	}
	if cfg.From != "" {
		if c.from, err = openOrigin(ctx, cfg.From, cfg.Storage); err != nil {
			return err
		}
	}
	if err = c.openRun(ctx); err != nil {
		return err
	}
	if c.before.State == store.Finished && cfg.ResumeAt == 0 {
		return errFinished
	}
	if err = c.equip(); err != nil {
		return err
	}
	feeders := []feeder.Feeder{c.served}
	var nodeOf []int // of each rank
	if c.nodes != nil {
		c.launcher = &spread{local: c.launcher, nodes: c.nodes}
		for r := range cfg.Workers {
			nodeOf = append(nodeOf, r/cfg.perNode())
		}
		others, err := c.nodes.meet(wait)
		if err != nil {
			return err
		}
		feeders = append(feeders, others...)
	}
	c.feeder = feeder.Over(feeders, nodeOf, cfg.reads())
	if c.listener, err = feed.Listen(filepath.Join(c.sockets.path, "c")); err != nil {
		return err
	}
	if c.begun, err = c.run.Begin(wait, store.BeginOptions{Checkpoint: cfg.ResumeAt, TakeOver: cfg.TakeOver, Job: cfg.Job, JobAttempt: cfg.JobAttempt}); err != nil {
		return err
	}
	if m := c.begun.From; m != nil {
		c.last, c.reports, c.newest = m.Metrics, m.Report, m.Number
	}
	c.status = newStatusWriter(c.ctx, c.run, func(err error) { c.stop(err) })
	close(c.ready)
	if cfg.Resume {
		if _, err := launch.Sweep(wire.EnvRun, cfg.Name); err != nil {
			c.cfg.Log.Warn("processes of an earlier controller", "run", cfg.Name, "error", err)
		}
		err := c.nodes.each(wait, func(ctx context.Context, n *node) error {
			if _, err := n.ask(ctx, wire.ToHand{Sweep: &wire.HandSweep{}}); err != nil && ctx.Err() == nil {
				c.cfg.Log.Warn("processes of an earlier controller", "run", cfg.Name, "node", n.number, "error", err)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if err := c.run.Sweep(wait); err != nil {
			return err
		}
	}
	if cfg.Resources.GPUs > 0 {
		err := c.leaseDevices(wait)
		if err != nil && (wait.Err() == nil || ctx.Err() != nil) { // else a notice came, which is no failure
			err = errors.Join(err, c.fail(err))
		}
		return err
	}
	return nil
}

func isEmpty(file string) bool {
	st, err := os.Stat(file)
	return err == nil && st.Size() == 0
}

// openRun makes the run, or opens that to go on with.
func (c *controller) openRun(ctx context.Context) (err error) {
	cfg := &c.cfg
	if cfg.Resume {
		if c.run, err = store.Open(ctx, cfg.Storage, cfg.Name); err != nil {
			return err
		}
		if c.before, err = c.run.Status(ctx); fault.CodeOf(err) == fault.NotFound {
			return nil // it never began
		}
		return err
	}
	dir, err := os.Getwd()
	if err != nil {
		return fault.New(fault.Unsupported, "the working directory: %w", err)
	}
	c.run, err = store.Create(ctx, cfg.Storage, store.Record{Name: cfg.Name, Command: c.argv, Dir: dir, Workers: cfg.Workers, Config: c.settings, Spec: cfg.Spec, From: cfg.From, Program: "penstock"})
	return err
}

// refused says that err is a mistake in what a person asked for, told before a worker was started of a run that had ended: that stands where it stood.
func (c *controller) refused(err error) bool {
	switch fault.CodeOf(err) {
	case fault.Invalid, fault.NotFound, fault.Exists, fault.Unsupported:
		return c.before.Over() && c.cfg.Job == "" && !c.some
	}
	return false
}

// fail writes that a run failed before its loop began.
func (c *controller) fail(err error) error {
	if c.refused(err) {
		c.status.set(c.before)
		return c.status.close()
	}
	s := c.standing(store.Failed)
	s.Error = statusError(err)
	c.status.set(c.masked(s))
	return c.status.close()
}

// loop runs the state machine.
func (c *controller) loop(ctx context.Context) {
	c.began = time.Now()
	c.first = c.begun.Number
	cfg := group.Config{World: c.cfg.Workers, Library: c.work != nil, Async: c.cfg.Checkpoint.Async, StartTimeout: c.cfg.StartTimeout, HangTimeout: c.cfg.HangTimeout, ReportTimeout: c.cfg.ReportTimeout,
		StopTimeout: c.cfg.StopTimeout, Worker: c.cfg.Failures.Worker, Hang: c.cfg.Failures.Hang, Memory: c.cfg.Failures.Memory, Delay: c.cfg.Failures.Delay, Attempt: c.begun.Number - 1}
	if m := c.begun.From; m != nil {
		cfg.Checkpoint, cfg.Reports = m.Number, m.Report
	}
	c.begins(cfg.Checkpoint, cfg.Reports)
	c.g = group.New(cfg)
	c.reason = ""
	c.others.Go(c.accept)
	c.others.Go(c.flush)
	if c.measure != nil {
		c.others.Go(c.sampleDevices)
	}
	defer close(c.over)
	timer := time.NewTimer(0)
	defer timer.Stop()
	beat := time.NewTicker(store.Heartbeat / 2)
	defer beat.Stop()
	stopped := ctx.Done()
	lost := c.ctx.Done()
	notice := c.cfg.Preemption.Notice
	if c.noticed != nil {
		c.notice(c.noticed)
	}
	for c.ended == nil {
		select {
		case f := <-c.posts:
			f()
		case <-timer.C:
			c.step(group.Event{Kind: group.Tick})
		case reason, ok := <-notice:
			if !ok {
				notice = nil
				break
			}
			c.notice(preempted(reason))
		case <-stopped:
			stopped, lost = nil, nil
			c.step(group.Event{Kind: group.Stop, Err: fault.WithCode(fault.Canceled, context.Cause(ctx))})
		case <-lost: // a node is gone, its caller gave up, or another controller has the run
			stopped, lost = nil, nil
			e := group.Event{Kind: group.Stop, Err: fault.WithCode(fault.Canceled, context.Cause(c.ctx))}
			if err := lostOf(c.ctx); err != nil {
				e = group.Event{Kind: group.Lost, Err: err}
			}
			c.step(e)
		case <-beat.C:
			c.write(string(c.g.State()))
		}
		timer.Reset(c.due())
	}
}

// notice tells the state machine that the machine will be taken away.
func (c *controller) notice(err error) {
	c.step(group.Event{Kind: group.Notice, Grace: c.cfg.Preemption.Grace, Err: err})
}

// begins says what the run is.
func (c *controller) begins(checkpoint int, reports int64) {
	workers := "1 worker"
	if c.cfg.Workers > 1 {
		workers = fmt.Sprintf("%d workers", c.cfg.Workers)
	}
	from := ""
	switch {
	case checkpoint > 0:
		from = fmt.Sprintf(", from its checkpoint %d at report %d", checkpoint, reports)
	case c.from != nil:
		from = fmt.Sprintf(", from checkpoint %d of run %s", c.from.manifest.Number, c.from.run.Name())
	}
	c.cfg.Log.Info(fmt.Sprintf("run %s in %s: %s%s", c.cfg.Name, c.run.URL(), workers, from), "run", c.cfg.Name)
}

// due says in how long the state machine is to know the time.
func (c *controller) due() time.Duration {
	now := c.now() // looks, also where nothing is due
	if at, ok := c.g.Deadline(); ok {
		return min(max(at-now, time.Millisecond), group.Look)
	}
	return group.Look
}

// now is the time of events.
func (c *controller) now() time.Duration { return c.clock.At(time.Since(c.began)) }

// post has the loop call f. After the loop nothing is called any more.
func (c *controller) post(f func()) {
	select {
	case c.posts <- f:
	case <-c.over:
	}
}

// step gives the state machine an event, and does what it says.
func (c *controller) step(e group.Event) {
	e.At = c.now()
	for _, a := range slices.Clone(c.g.Step(e)) {
		c.act(a)
	}
}

func (c *controller) act(a group.Action) {
	switch a.Do {
	case group.Start:
		c.start(a)
	case group.Complete:
		c.complete(a.N)
	case group.Commit:
		c.commit(a.N, a.Ranks)
	case group.Ack:
		r := &wire.Reported{N: a.N, Error: wire.FromError(a.Err)}
		if a.Err == nil {
			r.Checkpoint = a.Checkpoint
		}
		c.tell(a.Rank, wire.ToWorker{Reported: r})
	case group.Stacks:
		c.stacks(a.Ranks)
	case group.StopGroup:
		at := c.a
		c.others.Go(func() { at.group.Stop(a.Grace) })
	case group.Warn:
		c.warn(a)
	case group.Status:
		c.setStatus(a)
	case group.Failure:
		f := Failure{Attempt: a.Attempt, Rank: a.Rank, Class: a.Class.String(), Final: a.Final, Err: a.Err, Log: c.logOf(a.Attempt, a.Rank)}
		c.failed = append(c.failed, f)
		if !a.Final || c.g.State() == group.Preempting { // else it is the run's error
			c.cfg.Log.Warn(fmt.Sprintf("attempt %d failed", a.Attempt), "run", c.cfg.Name, "attempt", a.Attempt, "rank", a.Rank, "class", f.Class, "error", a.Err)
		}
		if h := c.cfg.Events.Failed; h != nil {
			h(f)
		}
	case group.Finish:
		c.ended = &a
	}
}

// setStatus writes where the run stands.
func (c *controller) setStatus(a group.Action) {
	c.reason = reasonOf(a.Err)
	c.write(string(a.State))
	c.cfg.Log.Info(fmt.Sprintf("attempt %d: %s", a.Attempt, a.State), "run", c.cfg.Name, "state", a.State, "attempt", a.Attempt)
	if h := c.cfg.Events.Status; h != nil {
		h(string(a.State), a.Attempt, a.Err)
	}
}

// write has the status written.
func (c *controller) write(state string) {
	c.status.set(c.standing(state))
}

// standing is where the run stands, with the failures of earlier controllers.
func (c *controller) standing(state string) store.Status {
	s := store.Status{State: state, Workers: c.cfg.Workers, Reports: c.reports, Checkpoint: c.newest, Metrics: maps.Clone(c.last), Reason: c.reason, Failures: maps.Clone(c.before.Failures), Preemptions: c.before.Preemptions}
	if c.ended != nil && c.ended.State == group.Preempted {
		s.Preemptions++
	}
	if e := c.before.Error; e != nil && e.Code != fault.Canceled.String() { // which was no failure
		s.Error = e
	}
	if n := len(c.failed); n > 0 {
		s.Error = statusError(c.failed[n-1].Err)
		if s.Failures == nil {
			s.Failures = map[string]int{}
		}
		for _, f := range c.failed {
			s.Failures[f.Class]++
		}
	}
	if c.ended != nil && c.ended.State == group.Failed && fault.CodeOf(c.ended.Err) == fault.Canceled {
		s.Error = statusError(c.ended.Err)
	}
	return c.masked(s)
}

// masked is a status as it may be kept.
func (c *controller) masked(s store.Status) store.Status {
	if mask := c.cfg.Mask; mask != nil {
		s.Reason = mask(s.Reason)
		if s.Error != nil {
			s.Error = &store.Error{Code: s.Error.Code, Text: mask(s.Error.Text), Trace: mask(s.Error.Trace)}
		}
	}
	return s
}

func statusError(err error) *store.Error {
	if err == nil {
		return nil
	}
	e := wire.FromError(err)
	text, trace, _ := strings.Cut(e.Text, "\n")
	return &store.Error{Code: e.Code, Text: text, Trace: trace}
}

// result is what came of the run, once the loop has ended. It writes the last status.
func (c *controller) result() *Result {
	if c.ended == nil {
		return nil
	}
	c.finishAttempt()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(c.ctx), last)
	defer cancel()
	res := &Result{Run: c.run.Name(), Storage: c.run.URL(), State: string(c.ended.State), Reports: c.reports, Metrics: c.last, Attempts: c.ended.Attempt - c.first + 1, Attempt: c.ended.Attempt, Failures: c.failed,
		Checkpoint: c.ended.Checkpoint, Late: c.ended.Ranks, Err: c.ended.Err}
	superseded := errors.Is(context.Cause(c.ctx), store.ErrSuperseded)
	if c.metrics != nil && !superseded {
		if err := c.metrics.Flush(ctx); err != nil && res.Err == nil {
			res.State, res.Err = store.Failed, err
		}
	}
	c.reason = reasonOf(res.Err)
	if c.refused(res.Err) {
		c.status.set(c.before)
	} else {
		c.write(res.State)
	}
	if err := c.status.close(); err != nil && res.Err == nil {
		res.State, res.Err = store.Failed, err
	}
	list, err := c.run.Checkpoints(ctx)
	if err != nil && res.Err == nil {
		res.Err = err
	}
	res.Checkpoints = list
	if k := c.cfg.Checkpoint; k.KeepBest > 0 && len(list) > 0 && !superseded {
		if _, ok := res.Best(k.Metric, k.Order); !ok {
			c.cfg.Log.Warn(fmt.Sprintf("none of the checkpoints has metric %q, so the best of them are not known, and the last are kept", k.Metric), "run", c.cfg.Name)
		}
	}
	if h := c.cfg.Events.Status; h != nil {
		h(res.State, c.ended.Attempt, res.Err)
	}
	return res
}

// last is how long the end of a run may take to be written, whatever becomes of the context.
const last = 30 * time.Second

// close frees what open took, tells hands how the run ended, and waits for all goroutines.
func (c *controller) close(ctx context.Context, over *wire.HandOver) (err error) {
	c.stop(errEnded)
	if c.listener != nil {
		err = errors.Join(err, c.listener.Close())
	}
	if c.ended == nil { // the loop did not run
		close(c.over)
	}
	c.hangUp()
	c.others.Wait()
	if c.status != nil {
		err = errors.Join(err, c.status.close())
	}
	switch {
	case c.feeder != nil:
		err = errors.Join(err, c.feeder.Close())
	case c.served != nil:
		err = errors.Join(err, c.served.Close())
	}
	if c.nodes != nil {
		c.nodes.bye(ctx, over)
	}
	close(c.gone)
	if c.nodes != nil {
		c.nodes.close()
	}
	return errors.Join(err, c.site.close())
}

// flush writes metrics from time to time.
func (c *controller) flush() {
	t := time.NewTicker(10 * time.Second)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			done := make(chan *store.MetricsWriter, 1)
			c.post(func() { done <- c.metrics })
			select {
			case w := <-done:
				if w == nil {
					continue
				}
				if err := w.Flush(c.ctx); err != nil && c.ctx.Err() == nil {
					c.cfg.Log.Warn("metrics wait to be written", "run", c.cfg.Name, "error", err)
				}
			case <-c.over:
				return
			}
		case <-c.over:
			return
		}
	}
}
