package trainer

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/near"
	"github.com/penstock-data/penstock/trainer/collective"
	"github.com/penstock-data/penstock/trainer/internal/wire"
)

// Context is a worker's place in its run. It is done when the worker is told to end, or the controller is gone. Safe for concurrent use, but reports, collectives, and
// the calls of one Shard are made one after another.
type Context struct {
	context.Context
	cancel context.CancelCauseFunc

	id       identity
	w        wire.Welcome
	config   map[string]any
	conn     *net.UnixConn
	reading  sync.WaitGroup
	reported chan *wire.Reported // room for all that may be unanswered
	restored chan *wire.Restored
	met      chan *wire.Met
	sending  sync.Mutex
	pipe     *wire.Pipe   // guarded by sending
	aliveAt  atomic.Int64 // ns since the epoch
	steps    atomic.Int64 // of training sets

	asking   sync.Mutex     // held by a report or restore
	answered int64          // reports that the controller has answered; guarded by asking
	files    *wire.Restored // the answer; guarded by asking
	awaiting bool           // it was asked for

	mu       sync.Mutex
	reports  int64
	preempt  *wire.Preempt
	deadline time.Time // of the preemption
	shards   map[string]*Shard
	ring     *collective.Group
}

// identity is what a worker says to the controller.
type identity struct {
	socket  string
	run     string
	attempt int
	rank    int
	gang    *gang.Gang // of this process, where the run has several nodes
	aide    string     // folder of the gang of the process that started this one; "": none
}

const (
	helloTime = 10 * time.Second
	ahead     = 64 // reports that may be unanswered
)

// join connects a worker with its controller. Call leave.
func join(ctx context.Context, id identity) (*Context, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: id.socket, Net: "unix"})
	if err != nil {
		return nil, fault.New(fault.Unavailable, "the controller of run %q does not answer: %w", id.run, err)
	}
	c := &Context{id: id, conn: conn, reported: make(chan *wire.Reported, ahead+1), restored: make(chan *wire.Restored, 1), met: make(chan *wire.Met, 1), shards: map[string]*Shard{}}
	c.Context, c.cancel = context.WithCancelCause(ctx)
	fail := func(err error) (*Context, error) {
		c.cancel(err)
		conn.Close()
		if c.pipe != nil {
			c.pipe.Close()
		}
		return nil, err
	}
	if c.pipe, err = wire.NewPipe(); err != nil {
		return fail(err)
	}
	stop := context.AfterFunc(ctx, func() { conn.SetReadDeadline(time.Unix(1, 0)) })
	hello, err := wire.Append(nil, wire.ToController{Hello: &wire.Hello{Version: wire.Version, Run: id.run, Attempt: id.attempt, Rank: id.rank, PID: os.Getpid(), Client: "go"}})
	if err == nil {
		err = c.pipe.Hello(conn, hello)
	}
	if err != nil {
		return fail(c.gone(err))
	}
	r := wire.NewReader(conn)
	m, err := r.FromController()
	switch {
	case !stop():
		return fail(fault.WithCode(fault.Canceled, context.Cause(ctx)))
	case err != nil:
		return fail(fault.New(fault.Unavailable, "the controller of run %q is gone: %w", id.run, err))
	case m.Refused != nil:
		return fail(m.Refused.Err())
	case m.Welcome == nil:
		return fail(fault.New(fault.Corrupt, "the controller of run %q does not say welcome: use one release for all", id.run))
	}
	c.w = *m.Welcome
	c.reports, c.answered = c.w.Reports, c.w.Reports
	if err := json.Unmarshal(c.w.Config, &c.config); err != nil {
		return fail(fault.New(fault.Corrupt, "the config of run %q: %w", id.run, err))
	}
	c.reading.Go(func() { c.read(r) })
	return c, nil
}

// read takes what the controller says.
func (c *Context) read(r *wire.Reader) {
	for {
		m, err := r.FromController()
		switch {
		case err != nil:
			if errors.Is(err, io.EOF) || errors.Is(err, net.ErrClosed) {
				err = errors.New("it ended the connection")
			}
			c.cancel(fault.New(fault.Unavailable, "the controller of run %q is gone: %w", c.w.Run, err))
			return
		case m.Reported != nil:
			select {
			case c.reported <- m.Reported:
			default:
				c.cancel(fault.New(fault.Corrupt, "the controller of run %q answers more reports than were made", c.w.Run))
				return
			}
		case m.Restored != nil:
			c.restored <- m.Restored
		case m.Met != nil:
			select {
			case c.met <- m.Met:
			default:
				c.cancel(fault.New(fault.Corrupt, "the controller of run %q answers what was not asked", c.w.Run))
				return
			}
		case m.Preempt != nil:
			c.mu.Lock()
			c.preempt, c.deadline = m.Preempt, time.Now().Add(time.Duration(m.Preempt.Grace*float64(time.Second)))
			c.mu.Unlock()
		case m.Refused != nil:
			c.cancel(m.Refused.Err())
			return
		}
	}
}

func (c *Context) send(m wire.ToController) error {
	b, err := wire.Append(nil, m)
	if err != nil {
		return err
	}
	c.sending.Lock()
	defer c.sending.Unlock()
	if _, err := c.conn.Write(b); err != nil {
		return c.gone(err)
	}
	c.pipe.Said(m.Report)
	return nil
}

// report sends a report, or leaves it in the pipe.
func (c *Context) report(r *wire.Report) error {
	c.sending.Lock()
	left := c.pipe.Leave(r, r.N-1-c.answered)
	c.sending.Unlock()
	if left {
		return nil
	}
	return c.send(wire.ToController{Report: r})
}

// gone is the error of a lost connection: the context knows better, if it has ended.
func (c *Context) gone(err error) error {
	if c.Context.Err() != nil {
		return fault.WithCode(fault.Canceled, context.Cause(c.Context))
	}
	return fault.New(fault.Unavailable, "the controller of run %q is gone: %w", c.w.Run, err)
}

// leave ends what the worker has open.
func (c *Context) leave() {
	c.mu.Lock()
	all, ring := slices.Collect(maps.Values(c.shards)), c.ring
	c.mu.Unlock()
	for _, s := range all {
		_ = s.f.Close() // never an error
	}
	if ring != nil {
		_ = ring.Close()
	}
	c.conn.Close()
	c.pipe.Close()
	c.reading.Wait()
	c.cancel(errEnded)
}

// Rank of this worker among all.
func (c *Context) Rank() int { return c.w.Rank }

// World is the number of workers.
func (c *Context) World() int { return c.w.World }

// LocalRank is the rank among the workers of this machine.
func (c *Context) LocalRank() int { return c.w.LocalRank }

// LocalWorld is the number of workers of this machine.
func (c *Context) LocalWorld() int { return c.w.LocalWorld }

// Node is the number of this machine, of Nodes.
func (c *Context) Node() int { return c.w.Node }

// Nodes is the number of machines.
func (c *Context) Nodes() int { return c.w.Nodes }

// Devices leased to this worker, as CUDA_VISIBLE_DEVICES names them.
func (c *Context) Devices() []string { return slices.Clone(c.w.Devices) }

// Run is the name of the run.
func (c *Context) Run() string { return c.w.Run }

// Storage is the URL of the run's folder.
func (c *Context) Storage() string { return c.w.Storage }

// Attempt counts the starts of the group, from 1.
func (c *Context) Attempt() int { return c.w.Attempt }

// Config are the run's settings. The map is the caller's.
func (c *Context) Config() map[string]any { return maps.Clone(c.config) }

// Decode sets v, a pointer to a struct for one, from the run's settings, as package encoding/json does.
func (c *Context) Decode(v any) error {
	if err := json.Unmarshal(c.w.Config, v); err != nil {
		return fault.New(fault.Invalid, "the settings of the run: %w", err)
	}
	return nil
}

// Checkpoint is what the group goes on from.
type Checkpoint struct {
	Number  int
	Metrics map[string]float64

	c *Context
}

// Checkpoint to go on from; nil: there is none, the training begins. The position in the data is restored without it.
func (c *Context) Checkpoint() *Checkpoint {
	if c.w.Checkpoint == 0 {
		return nil
	}
	return &Checkpoint{Number: c.w.Checkpoint, Metrics: maps.Clone(c.w.Metrics), c: c}
}

// Dir is a folder with the files of the checkpoint: read only, shared by all ranks of this machine, and there until the worker ends.
func (k *Checkpoint) Dir(ctx context.Context) (string, error) {
	c := k.c
	c.asking.Lock()
	defer c.asking.Unlock()
	if !c.awaiting {
		if err := c.send(wire.ToController{Restore: &wire.Restore{}}); err != nil {
			return "", err
		}
		c.awaiting = true
	}
	if c.files == nil {
		select {
		case c.files = <-c.restored:
		case <-ctx.Done():
			return "", fault.WithCode(fault.Canceled, context.Cause(ctx))
		case <-c.Done():
			return "", c.gone(nil)
		}
	}
	return c.files.Dir, c.files.Error.Err()
}

// Report makes the next report: every rank reports equally often, after the same steps. metrics are kept, those of the lowest rank where several have the same name. dir is a folder whose files
// become a checkpoint, together with those of other ranks and the position in the data; "": none of this rank. With files, Report returns when the checkpoint is committed (Checkpointing.Async: when
// the files are taken over: dir is gone then); it waits for the other ranks. Without, and where the worker has training sets open, it returns when the report is sent. An error says that the report, or the
// checkpoint, is not kept; that of a report which was only sent is returned by a later call, at most 64 reports or a second on, or becomes the loop's.
func (c *Context) Report(metrics map[string]float64, dir string) error {
	c.asking.Lock()
	defer c.asking.Unlock()
	r := &wire.Report{At: time.Now().UnixNano(), Metrics: metrics}
	if dir != "" {
		abs, err := filepath.Abs(dir)
		if err != nil {
			return fault.New(fault.Invalid, "the folder of a report: %w", err)
		}
		r.Dir = abs
	}
	if err := c.settle(c.answered + int64(len(c.reported))); err != nil {
		return err
	}
	c.mu.Lock()
	r.N = c.reports + 1
	training := false
	for name, s := range c.shards {
		if s.eval {
			continue
		}
		training = true
		st := s.f.State()
		p := wire.Place{Epoch: st.Epoch, Step: st.Step}
		if dir != "" {
			b, err := st.MarshalJSON()
			if err != nil {
				c.mu.Unlock()
				return fault.New(fault.Internal, "the state of data set %q: %w", name, err)
			}
			p.State = b
		}
		if r.Data == nil {
			r.Data = map[string]wire.Place{}
		}
		r.Data[name] = p
	}
	c.mu.Unlock()
	if err := c.report(r); err != nil {
		return err
	}
	c.aliveAt.Store(time.Now().UnixNano())
	var err error
	if dir == "" && training {
		err = c.settle(r.N - ahead)
	} else {
		err = c.settle(r.N) // without data a notice counts from a report on, which is the controller's to say
	}
	c.mu.Lock()
	c.reports = r.N
	c.mu.Unlock()
	return err
}

// settle waits for the answers to all reports up to n. It needs asking.
func (c *Context) settle(n int64) (err error) {
	if c.answered+int64(len(c.reported)) < n {
		c.sending.Lock()
		quiet := c.pipe.Quiet()
		c.sending.Unlock()
		if quiet {
			c.alive(true)
		}
	}
	for c.answered < n {
		var a *wire.Reported
		select {
		case a = <-c.reported:
		case <-c.Done():
			select {
			case a = <-c.reported: // what the controller said counts
			default:
				return cmp.Or(err, c.gone(nil))
			}
		}
		if c.answered++; a.N != c.answered {
			return fault.New(fault.Corrupt, "the controller answers report %d, report %d is due", a.N, c.answered)
		}
		err = cmp.Or(err, a.Error.Err())
	}
	return err
}

// settled waits for the answers to all reports.
func (c *Context) settled() error {
	c.asking.Lock()
	defer c.asking.Unlock()
	return c.settle(c.Reports())
}

// Reports made so far by the run.
func (c *Context) Reports() int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.reports
}

// Preempted reports whether the machine will be taken away: save, report, and return nil. It becomes true at the same step on all ranks: with the batch that carries
// the notice where the worker has training sets open, else with a report.
func (c *Context) Preempted() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	training := false
	for _, s := range c.shards {
		if !s.eval {
			if s.f.Noticed() {
				return true
			}
			training = true
		}
	}
	return !training && c.preempt != nil && c.reports >= c.preempt.Report
}

// PreemptDeadline is when workers are ended, once there is a notice; ranks may know of it before Preempted says so.
func (c *Context) PreemptDeadline() (t time.Time, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.deadline, c.preempt != nil
}

// Alive says that the loop is getting somewhere: for stretches longer than Config.HangTimeout without a batch or a report. Calls cost little.
func (c *Context) Alive() { c.alive(false) }

// alive is sent at most once a second, unless it must be.
func (c *Context) alive(must bool) {
	now, last := time.Now().UnixNano(), c.aliveAt.Load()
	if must || now-last >= int64(time.Second) && c.aliveAt.CompareAndSwap(last, now) {
		_ = c.send(wire.ToController{Alive: &wire.Alive{Step: c.steps.Load()}}) // a controller that is gone ends the context
	}
}

// Shard opens a data set of the run: what this rank gets of it. A training set goes on from the checkpoint. One that is open is returned again.
func (c *Context) Shard(name string) (*Shard, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	d, ok := c.w.Data[name]
	if !ok {
		names := slices.Sorted(maps.Keys(c.w.Data))
		switch like := near.Name(name, names); {
		case len(names) == 0:
			return nil, fault.New(fault.NotFound, "there is no data set %q: the run has none; name them in Config.Data, or in the spec", name)
		case like != "":
			return nil, fault.New(fault.NotFound, "there is no data set %q: is it %q?", name, like)
		default:
			return nil, fault.New(fault.NotFound, "there is no data set %q: the run has %q", name, names)
		}
	}
	if s := c.shards[name]; s != nil && !s.closed.Load() {
		return s, nil
	} else if s != nil && !s.eval {
		return nil, fault.New(fault.Invalid, "data set %q was closed by this rank: it is open until the loop ends", name)
	}
	s, err := openShard(c, name, d)
	if err == nil {
		c.shards[name] = s
	}
	return s, err
}
