package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard/feed"
	"github.com/penstock-data/penstock/trainer/internal/feeder"
	"github.com/penstock-data/penstock/trainer/internal/wire"
	"github.com/penstock-data/penstock/trainer/launch"
	"github.com/penstock-data/penstock/trainer/store"
)

// hand is what a node of a run has that is not the controller's: it launches and ends workers, feeds them, and uploads and downloads files, as the controller says over one line. It decides
// nothing: without the controller it ends everything.
type hand struct {
	site
	line     *handLine
	listener *net.UnixListener // of workers
	ctx      context.Context   // ends with the run
	stop     context.CancelCauseFunc
	others   sync.WaitGroup

	mu      sync.Mutex
	cancels map[int64]context.CancelCauseFunc // of requests under way
	group   launch.Group                      // of the current attempt; nil: none
	attempt int
	exited  chan struct{}            // closed when all exits of group were sent
	relays  map[teller]relayed       // of workers
	conns   map[net.Conn]bool        // of workers; nil once the run is over
	staged  map[int64][]stagedFolder // that were taken, by report
}

// stagedFolder is the files of a report that are the hand's.
type stagedFolder struct {
	dir   string
	parts []store.Part
}

const (
	stopTime  = 15 * time.Second // beyond StopTimeout, for the controller to end a run whose caller here gave up
	lastWords = time.Second      // for what a worker said to be passed on, before its end is
)

// teller is who says something: a process, or one of its goroutines, as a rank.
type teller struct{ pid, rank int }

// lend is Fit of a process of a gang that is not node 0.
func lend(ctx context.Context, s site) (_ *Result, err error) {
	h := &hand{site: s, cancels: map[int64]context.CancelCauseFunc{}, relays: map[teller]relayed{}, conns: map[net.Conn]bool{},
		staged: map[int64][]stagedFolder{}}
	h.ctx, h.stop = context.WithCancelCause(context.WithoutCancel(ctx))
	defer h.stop(errEnded)
	over, err := h.serve(ctx)
	if cerr := h.close(); cerr != nil {
		h.cfg.Log.Warn("what is left of a run", "run", h.cfg.Name, "error", cerr)
	}
	if over != nil {
		return resultOf(over)
	}
	if h.run == nil { // nothing was begun here
		return nil, err
	}
	state := store.Preempted
	if ctx.Err() != nil { // its caller has ended it, which is no reason to start it again
		state, err = store.Failed, fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
	return &Result{Run: h.run.Name(), Storage: h.run.URL(), State: state, Attempt: h.attempt, Err: err}, err
}

// serve does what the controller says until it says that the run is over, or is lost.
func (h *hand) serve(ctx context.Context) (*wire.HandOver, error) {
	if err := h.folders(); err != nil {
		return nil, err
	}
	var err error
	if h.listener, err = feed.Listen(filepath.Join(h.sockets.path, "c")); err != nil {
		return nil, err
	}
	if err := h.connect(ctx); err != nil {
		return nil, err
	}
	h.others.Go(func() { h.line.beats(wire.FromHand{Beat: &wire.Beat{}}) })
	h.others.Go(h.accept)
	h.others.Go(func() { h.tell(ctx) })
	for {
		m, err := h.line.read.ToHand()
		if err != nil {
			if err == io.EOF {
				err = errors.New("its process has ended")
			}
			return nil, fault.New(fault.Canceled, "node 0 of the job (%s), which leads the run, is lost (%w): the run can be resumed", h.cfg.Gang.Host(0), err)
		}
		switch {
		case m.Over != nil:
			return m.Over, nil
		case m.Cancel != nil:
			h.mu.Lock()
			if cancel := h.cancels[m.Cancel.ID]; cancel != nil {
				cancel(fault.New(fault.Canceled, "the controller gave it up"))
			}
			h.mu.Unlock()
		case m.Want != nil:
			h.mu.Lock()
			for _, r := range h.relays {
				r.ear.Want(m.Want.Report)
			}
			h.mu.Unlock()
		case m.ID > 0:
			rctx, cancel := context.WithCancelCause(h.ctx)
			h.mu.Lock()
			h.cancels[m.ID] = cancel
			h.mu.Unlock()
			h.others.Go(func() {
				h.answer(rctx, m)
				h.mu.Lock()
				delete(h.cancels, m.ID)
				h.mu.Unlock()
				cancel(nil)
			})
		}
	}
}

// connect says hello to the controller, which may not be there yet. A notice until then ends it.
func (h *hand) connect(ctx context.Context) error {
	dial, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	dialled := make(chan struct{})
	var notice sync.WaitGroup
	var preempt error
	notice.Go(func() {
		select {
		case reason, ok := <-h.cfg.Preemption.Notice:
			if ok {
				preempt = fault.New(fault.Canceled, "the run was preempted before it began (%s): start it again", reason)
				cancel(preempt)
			}
		case <-dialled:
		}
	})
	late, done := context.WithTimeout(dial, h.cfg.StartTimeout)
	conn, err := h.cfg.Gang.Dial(late, 0, serviceHand)
	done()
	close(dialled)
	notice.Wait()
	if err == nil && preempt != nil {
		conn.Close()
		err = preempt
	}
	if err != nil {
		if dial.Err() != nil {
			err = fault.WithCode(fault.Canceled, context.Cause(dial))
		} else if fault.CodeOf(err) == fault.Unavailable { // no failure of the program: other nodes may reach each other
			err = fault.New(fault.Canceled, "%w", err)
		}
		return err
	}
	h.line = newHandLine(conn)
	host, _ := os.Hostname() // for people
	return h.line.send(wire.FromHand{Hello: &wire.HandHello{Version: wire.HandVersion, Host: host, Config: h.fields()}})
}

// tell passes on what happens to this process: a notice, and that its caller gives up.
func (h *hand) tell(ctx context.Context) {
	notice, gaveUp := h.cfg.Preemption.Notice, ctx.Done()
	var late <-chan time.Time
	for {
		select {
		case reason, ok := <-notice:
			if ok {
				_ = h.line.send(wire.FromHand{Notice: &wire.HandNotice{Reason: reason}}) // a controller that is gone is heard of
			} else {
				notice = nil
			}
		case <-gaveUp:
			gaveUp = nil
			late = time.After(h.cfg.StopTimeout + stopTime)
			_ = h.line.send(wire.FromHand{Stopped: &wire.HandStopped{Error: wire.FromError(context.Cause(ctx))}})
		case <-late:
			h.line.close()
		case <-h.line.closed:
			return
		}
	}
}

// answer does what a request says.
func (h *hand) answer(ctx context.Context, m wire.ToHand) {
	a := wire.HandAnswer{}
	var err error
	switch {
	case m.Welcome != nil:
		a.Sockets = h.sockets.path
		a.Logs, err = h.welcome(ctx, m.Welcome)
	case m.Sweep != nil:
		_, err = launch.Sweep(wire.EnvRun, h.run.Name())
	case m.Lease != nil:
		a.Devices, err = h.leases(ctx)
	case m.Launch != nil:
		err = h.launch(ctx, m.Launch)
	case m.Take != nil:
		err = h.takeOver(m.Take)
	case m.Upload != nil:
		a.Files, err = h.upload(ctx, m.Upload)
	case m.Settle != nil:
		a.Dir, err = h.settle(m.Settle)
	case m.Fetch != nil:
		a.Dir, err = h.fetchNumber(ctx, m.Fetch)
	default:
		err = h.workers(ctx, m, &a)
	}
	a.ID, a.Error = m.ID, wire.FromError(err)
	for len(a.Files) > 0 { // a line holds so much
		files := a.Files
		n, size := 0, 0
		for n < len(files) && size < wire.MaxLine/8 {
			size += len(files[n].Path) + len(files[n].Sum)
			n++
		}
		if n == len(files) {
			break
		}
		_ = h.line.send(wire.FromHand{Answer: &wire.HandAnswer{ID: m.ID, Files: files[:n], More: true}})
		a.Files = files[n:]
	}
	if err := h.line.send(wire.FromHand{Answer: &a}); err != nil && fault.CodeOf(err) != fault.Unavailable { // too long: it is answered all the same
		_ = h.line.send(wire.FromHand{Answer: &wire.HandAnswer{ID: m.ID, Error: wire.FromError(err)}})
	}
}

// welcome opens the run, which must be the controller's, and makes what this node has for it.
func (h *hand) welcome(ctx context.Context, w *wire.HandWelcome) (logs string, err error) {
	h.cfg.Name = w.Run
	run, err := store.Open(ctx, h.cfg.Storage, w.Run)
	if err == nil && run.Record().ID != w.ID {
		run.Close()
		err = fault.New(fault.NotFound, "there is another run %q in %s", w.Run, h.cfg.Storage)
	}
	if fault.CodeOf(err) == fault.NotFound {
		err = fault.New(fault.Invalid, "the storage of the run, %s, is not the same one on this machine as on node 0: use a bucket, or a folder on a file system that all nodes have at the same place (%w)", h.cfg.Storage, err)
	}
	if err != nil {
		return "", err
	}
	h.run = run
	h.mu.Lock()
	if err = fault.New(fault.Canceled, "%w", errEnded); h.conns != nil { // else the hand is being closed
		err = h.equip()
	}
	h.mu.Unlock()
	if err != nil {
		return "", err
	}
	conn, err := h.cfg.Gang.Dial(ctx, 0, serviceFeeder)
	if err != nil {
		return "", err
	}
	h.others.Go(func() {
		defer conn.Close()
		if err := feeder.Relay(h.ctx, conn, h.served); err != nil && h.ctx.Err() == nil {
			h.cfg.Log.Warn("the line of the feeder", "run", h.cfg.Name, "error", err)
		}
	})
	return h.logs, nil
}

func (h *hand) leases(ctx context.Context) (of [][]string, err error) {
	err = h.leaseDevices(ctx, func(reason string) {
		_ = h.line.send(wire.FromHand{Waits: &wire.HandWaits{Reason: reason}}) // for people
	})
	if err != nil {
		return nil, err
	}
	_, n := h.ranks()
	for w := range n {
		of = append(of, h.lease.Visible(w))
	}
	h.others.Go(func() {
		sample(h.ctx, h.measure, func(m map[string]float64) {
			_ = h.line.send(wire.FromHand{Devices: &wire.HandDevices{Metrics: m}}) // the next ones may
		})
	})
	return of, nil
}

// launch starts the workers of an attempt, and tells of their ends.
func (h *hand) launch(ctx context.Context, m *wire.HandLaunch) error {
	first, n := h.ranks()
	if err := h.meetings(m.Attempt); err != nil {
		return err
	}
	base, socket := h.environ(os.Environ()), h.listener.Addr().String()
	var workers []launch.Worker
	for _, w := range m.Workers {
		if w.Rank < first || w.Rank >= first+n {
			return fault.New(fault.Internal, "rank %d is not of node %d", w.Rank, h.node)
		}
		workers = append(workers, h.starts(w.Rank, base, w.Env, socket, m.Attempt))
	}
	h.mu.Lock()
	running := h.group
	h.mu.Unlock()
	if running != nil {
		running.Stop(0) // the controller has done so
	}
	g, err := h.launcher.Launch(ctx, workers)
	if err != nil {
		return err
	}
	exited := make(chan struct{})
	h.mu.Lock()
	h.group, h.attempt, h.exited = g, m.Attempt, exited
	over := h.conns == nil
	h.mu.Unlock()
	if over { // close has not seen them
		g.Stop(0)
	}
	h.others.Go(func() {
		defer close(exited)
		for e := range g.Exits() {
			h.heardAll(e)
			_ = h.line.send(wire.FromHand{Exit: &wire.HandExit{Attempt: m.Attempt, Rank: e.Rank, Name: e.Name, PID: e.PID, Code: e.Code, Signal: int(e.Signal), Memory: e.Memory, Ours: e.Ours, Tail: e.Tail, Detail: e.Detail,
				Error: wire.FromError(e.Err)}})
		}
	})
	return nil
}

// heardAll waits until what a worker said was passed on.
func (h *hand) heardAll(e launch.Exit) {
	who := teller{e.PID, e.Rank}
	if e.PID == 0 { // a goroutine
		who.pid = os.Getpid()
	}
	h.mu.Lock()
	passed, ok := h.relays[who]
	h.mu.Unlock()
	if !ok {
		return
	}
	passed.ear.Finish()
	select {
	case <-passed.all:
	case <-time.After(time.Until(e.At.Add(lastWords))): // the controller does not hear it
	}
}

// workers answers what is about the workers of an attempt.
func (h *hand) workers(ctx context.Context, m wire.ToHand, a *wire.HandAnswer) (err error) {
	h.mu.Lock()
	g, attempt, exited := h.group, h.attempt, h.exited
	h.mu.Unlock()
	of := func(n int) error {
		if g == nil || n != attempt {
			return fault.New(fault.NotFound, "attempt %d has no workers here", n)
		}
		return nil
	}
	switch {
	case m.Signal != nil:
		if err = of(m.Signal.Attempt); err == nil {
			err = g.Signal(m.Signal.Rank, syscall.Signal(m.Signal.Signal))
		}
	case m.Stacks != nil:
		if err = of(m.Stacks.Attempt); err == nil {
			a.Stacks, err = g.Stacks(ctx, m.Stacks.Rank)
			a.Stacks = a.Stacks[:min(len(a.Stacks), wire.MaxLine/8)]
		}
	case m.Stop != nil:
		if of(m.Stop.Attempt) == nil { // else nothing is there to end
			g.Stop(time.Duration(m.Stop.Grace * float64(time.Second)))
			<-exited
		}
	case m.Usage != nil:
		if err = of(m.Usage.Attempt); err == nil {
			for _, u := range g.Usage() {
				a.Usage = append(a.Usage, wire.HandUse{Rank: u.Rank, PID: u.PID, Processes: u.Processes, Memory: u.Memory, CPU: u.CPU.Seconds()})
			}
		}
	default:
		err = fault.New(fault.Unsupported, "a request that this release does not know: use one release for all nodes")
	}
	return err
}

// close ends everything that the hand has, whoever is gone.
func (h *hand) close() (err error) {
	h.stop(errEnded)
	h.mu.Lock()
	g := h.group
	conns, served := h.conns, h.served
	h.conns = nil
	h.mu.Unlock()
	if g != nil {
		g.Stop(0)
	}
	if h.listener != nil {
		err = h.listener.Close()
	}
	for conn := range conns {
		conn.Close()
	}
	if served != nil {
		err = errors.Join(err, served.Close())
	}
	if h.line != nil {
		h.line.close()
	}
	h.others.Wait()
	for n, folders := range h.staged { // that nobody has settled: perhaps they are in a checkpoint
		for _, f := range folders {
			if _, kerr := h.keep(f.dir, n); kerr != nil {
				err = errors.Join(err, fmt.Errorf("the files of report %d, which were taken over, are lost: %w", n, kerr))
			}
		}
	}
	return errors.Join(err, h.site.close())
}
