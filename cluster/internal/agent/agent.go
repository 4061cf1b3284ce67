// Package agent is the part of a cluster that runs on each node: it attaches to the head, runs processes as it is told, and says what becomes of them (docs/design/0005-cluster.md, "Nodes, sessions, leases").
package agent

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"

	"github.com/penstock-data/penstock/cluster/internal/packs"
	"github.com/penstock-data/penstock/cluster/internal/pb"
	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/cluster/internal/rpc"
	"github.com/penstock-data/penstock/internal/fault"
)

// Config of an agent.
type Config struct {
	Dir       string        // the node's folder, mode 0700; the caller has taken it with Lock
	Node      string        // id, for logs
	Inventory *pb.Inventory // what the node offers
	Visible   []string      // how CUDA_VISIBLE_DEVICES names the devices of Inventory, in their order
	Cluster   string        // id
	Holder    *pki.Holder   // the node's certificate, which somebody keeps renewed; nil: the head's own node
	Conn      *rpc.Conn     // to the head; the caller closes it, after Run
	Binary    string        // what runs where argv says "penstock"
	Jobs      Confined      // how they are confined
	Grace     time.Duration // that processes get when Run is ended; 0: 10 s
	Rotate    int64         // bytes of a log file, of which three of a process are kept; 0: 64 MiB
	Log       *slog.Logger  // nil: none
	Attached  func()        // is called whenever the head has welcomed the node; may be nil
}

// agent is an agent that runs.
type agent struct {
	Config
	client pb.NodeClient
	self   string // random: tells this process from another with a copy of its folder
	folder string // Dir, by its one path
	packs  *packs.Store
	ctx    context.Context // until Run ends
	work   sync.WaitGroup
	wait   time.Duration // the most between two sessions

	welcomed atomic.Bool // once

	mu      sync.Mutex
	procs   map[string]*process
	ended   []exit // that the head has not heard, the oldest first
	queue   []*pb.FromAgent
	more    chan struct{} // room for one
	session bool          // there is one: messages are queued for it
	leaving bool
	grace   time.Duration                // of leaving
	brings  map[packs.Hash]chan struct{} // packs that are being fetched: closed when that is over
	trust   []pki.Pin                    // the authorities that the head has said last; none: nothing yet
}

var errLeft = errors.New("the head asked the node to leave")

// Run attaches to the head, again whenever the stream ends, and runs what it is told to, until ctx ends or the head asks the node to leave; then what runs is ended. It returns nil in both cases, when nothing runs any more.
//
// Before the head hears of it, what an agent of the same folder left behind that was killed is ended.
//
// Errors: Denied: the node is not of the cluster any more. Unsupported, Invalid: the head refuses what the node says about itself, or another agent with a copy of its folder is attached. Stalled: what was left behind does not end.
func Run(ctx context.Context, cfg Config) error {
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.DiscardHandler)
	}
	if cfg.Grace == 0 {
		cfg.Grace = 10 * time.Second
	}
	a := &agent{Config: cfg, client: pb.NewNodeClient(cfg.Conn), self: strings.ToLower(crand.Text()), procs: map[string]*process{}, brings: map[packs.Hash]chan struct{}{}, more: make(chan struct{}, 1), grace: cfg.Grace}
	var err error
	if a.folder, err = realPath(cfg.Dir); err != nil {
		return err
	}
	if cfg.Holder != nil {
		cfg.Holder.OnSet(a.certified)
	}
	if err := a.sweep(); err != nil {
		return err
	}
	if a.packs, err = packs.OpenStore(filepath.Join(cfg.Dir, "packs"), 16<<30, packs.Limits{}); err != nil {
		return err
	}
	inner, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	a.ctx = inner
	defer cancel(nil)
	// The head hears how everything ends, where it can be reached.
	stop := context.AfterFunc(ctx, func() {
		a.leave(cfg.Grace)
		if !a.welcomed.Load() { // it was told nothing, and has nothing to tell
			cancel(errLeft)
			return
		}
		time.AfterFunc(cfg.Grace+farewell, func() { cancel(errLeft) })
	})
	defer stop()
	err = a.attached(inner)
	a.endAll()
	cancel(errLeft)
	a.work.Wait()
	return err
}

// farewell is how long the head gets to hear the last things.
const farewell = 3 * time.Second

// attached keeps a session, until there is to be none.
func (a *agent) attached(ctx context.Context) error {
	wait := firstWait
	a.wait = mostWait
	var said string  // why it is not reached
	var at time.Time // when that was said
	for {
		began := time.Now()
		err := a.attach(ctx)
		if err == errLeft || ctx.Err() != nil {
			return nil
		}
		switch fault.CodeOf(err) {
		case fault.Denied, fault.Unsupported, fault.Invalid:
			return err
		}
		a.mu.Lock()
		over := a.leaving && len(a.procs) == 0
		a.mu.Unlock()
		if over {
			return nil
		}
		if time.Since(began) > 10*time.Second {
			wait, said = firstWait, ""
		}
		if text := err.Error(); text != said || time.Since(at) >= sayAgain {
			a.Log.Warn("the head is not reached: what runs goes on", "err", err, "again in", wait.Round(time.Millisecond))
			said, at = text, time.Now()
		}
		select {
		case <-time.After(wait/2 + rand.N(wait/2)):
		case <-ctx.Done():
			return nil
		}
		wait = min(2*wait, a.wait)
	}
}

const (
	firstWait = 200 * time.Millisecond
	mostWait  = 5 * time.Second
	// sayAgain is how often what is known is said again.
	sayAgain = time.Minute
)

// attach is one session: from hello until the stream ends.
func (a *agent) attach(ctx context.Context) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a.Conn.Hurry()
	stream, err := a.client.Attach(ctx)
	if err != nil {
		return err
	}
	a.mu.Lock()
	hello := &pb.Hello{Inventory: a.Inventory, Agent: a.self}
	for _, e := range a.ended {
		hello.Exited = append(hello.Exited, e.wire())
	}
	fit(hello.Exited)
	for id, p := range a.procs {
		hello.Running = append(hello.Running, id)
		if !p.begun() {
			hello.Waiting = append(hello.Waiting, id)
		}
	}
	// From here on what happens is queued, and follows hello.
	a.queue = nil
	for _, p := range a.procs {
		if l := p.listening(); l != nil { // also of one that waits for nothing: the head may be another, and others wait
			a.queue = append(a.queue, l)
		}
	}
	a.session = true
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		a.session = false
		a.mu.Unlock()
	}()
	if err := stream.Send(&pb.FromAgent{Say: &pb.FromAgent_Hello{Hello: hello}}); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	first, err := stream.Recv() // and why a stream has ended that cannot be written
	if err != nil {
		return err
	}
	w := first.GetWelcome()
	if w == nil {
		return fault.New(fault.Internal, "the head does not welcome the node")
	}
	a.Log.Info(fmt.Sprintf("attached to the head as node %s", a.Node), "epoch", w.GetEpoch())
	a.welcomed.Store(true)
	a.keepName()
	a.keep(w.GetKeep())
	if a.Attached != nil {
		a.Attached()
	}
	trim()
	lease := max(time.Duration(w.GetLeaseMs())*time.Millisecond, time.Second)
	a.wait = min(mostWait, lease/3) // a head that starts again gives its nodes a lease to come back in

	heard := make(chan struct{}, 1) // beats come back
	var both sync.WaitGroup
	defer both.Wait()
	defer cancel(nil)
	both.Go(func() { cancel(a.hear(ctx, stream, heard)) })
	err = a.speak(ctx, stream, lease, heard)
	if err == errLeft { // the head has it when it ends the stream
		select {
		case <-ctx.Done():
		case <-time.After(farewell):
		}
	}
	return err
}

// send says something to the head. Where the stream has ended, why is for hear to find out, which ends ctx: two that receive at once may both wait for ever.
func send(ctx context.Context, stream grpc.BidiStreamingClient[pb.FromAgent, pb.FromHead], m *pb.FromAgent) error {
	err := stream.Send(m)
	if errors.Is(err, io.EOF) {
		<-ctx.Done()
		return context.Cause(ctx)
	}
	return err
}

// speak sends beats and what is queued, until ctx ends, the head is silent for a lease, or the node leaves.
func (a *agent) speak(ctx context.Context, stream grpc.BidiStreamingClient[pb.FromAgent, pb.FromHead], lease time.Duration, heard <-chan struct{}) error {
	beat := time.NewTicker(lease / 3)
	defer beat.Stop()
	silence := time.NewTimer(lease)
	defer silence.Stop()
	for {
		a.mu.Lock()
		batch := a.queue
		a.queue = nil
		left := a.leaving && len(a.procs) == 0 && len(a.ended) == 0
		a.mu.Unlock()
		for _, m := range batch {
			if err := send(ctx, stream, m); err != nil {
				return err
			}
		}
		if left { // all has ended, and the head has heard it
			_ = stream.CloseSend()
			return errLeft
		}
		select {
		case <-a.more:
		case <-heard:
			silence.Reset(lease)
		case <-silence.C:
			return fault.New(fault.Unavailable, "the head has not answered for %v", lease)
		case <-beat.C:
			if err := send(ctx, stream, &pb.FromAgent{Say: &pb.FromAgent_Beat{Beat: &pb.Beat{Used: a.used()}}}); err != nil {
				return err
			}
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// hear does what the head says, until the stream ends.
func (a *agent) hear(ctx context.Context, stream grpc.BidiStreamingClient[pb.FromAgent, pb.FromHead], heard chan<- struct{}) error {
	for {
		m, err := stream.Recv()
		if err != nil {
			return err
		}
		select {
		case heard <- struct{}{}:
		default:
		}
		switch x := m.GetSay().(type) {
		case *pb.FromHead_Start:
			a.start(x.Start)
		case *pb.FromHead_Stop:
			a.stop(x.Stop.GetProcess(), time.Duration(x.Stop.GetGraceMs())*time.Millisecond)
		case *pb.FromHead_Peers:
			a.met(x.Peers)
		case *pb.FromHead_Believed:
			a.believe(x.Believed)
		case *pb.FromHead_Heard:
			a.mu.Lock()
			a.ended = slices.DeleteFunc(a.ended, func(e exit) bool { return e.GetProcess() == x.Heard })
			a.mu.Unlock()
			a.wake()
		case *pb.FromHead_ReadLog:
			a.work.Go(func() { a.readLog(ctx, x.ReadLog) })
		case *pb.FromHead_Leave:
			a.leave(time.Duration(x.Leave.GetGraceMs()) * time.Millisecond)
		}
	}
}

// answer queues an answer to what the session of ctx has asked. It is dropped when that session is
// over: another one has not asked.
func (a *agent) answer(ctx context.Context, m *pb.FromAgent) {
	a.mu.Lock()
	if ctx.Err() == nil { // a session that follows empties the queue after this one's ctx has ended
		a.sayLocked(m)
	}
	a.mu.Unlock()
}

// say queues a message; without a session it is dropped: hello says what matters.
func (a *agent) say(m *pb.FromAgent) {
	a.mu.Lock()
	a.sayLocked(m)
	a.mu.Unlock()
}

func (a *agent) sayLocked(m *pb.FromAgent) {
	if a.session {
		a.queue = append(a.queue, m)
	}
	a.wake()
}

func (a *agent) wake() {
	select {
	case a.more <- struct{}{}:
	default:
	}
}

// keep ends what the head does not know.
func (a *agent) keep(ids []string) {
	a.mu.Lock()
	var others []*process
	for id, p := range a.procs {
		if !slices.Contains(ids, id) {
			others = append(others, p)
		}
	}
	a.mu.Unlock()
	for _, p := range others {
		a.Log.Info("a process that nobody wants any more is ended", "process", p.id)
		p.stop(endGrace)
	}
}

// leave ends everything, then the session.
func (a *agent) leave(grace time.Duration) {
	a.mu.Lock()
	a.leaving, a.grace = true, grace
	ps := a.all()
	a.mu.Unlock()
	for _, p := range ps {
		p.stop(grace)
	}
	a.wake()
}

// all processes. Under mu.
func (a *agent) all() []*process {
	var ps []*process
	for _, p := range a.procs {
		ps = append(ps, p)
	}
	return ps
}

// endAll ends what runs, and waits for it.
func (a *agent) endAll() {
	a.mu.Lock()
	ps, grace := a.all(), a.grace
	a.leaving = true
	a.mu.Unlock()
	for _, p := range ps {
		p.stop(grace)
	}
	for _, p := range ps {
		<-p.gone
	}
}
