// Package remote runs a graph on all nodes of a job (cluster/gang). Node 0 leads: it has the run, as exec/local has it, and sends tasks of its scans to the
// other nodes, which have the same graph and serve. What tasks make comes back as blocks, under the leader's budget, or is written where they run; order, limits,
// retries, dead letters and commits are the leader's alone. See docs/design/0006-nodes-of-a-job.md.
//
// All processes make the same calls of a Runner, in the same order, as they do where they run one program:
//
//	g, err := gang.Join()
//	r, err := remote.New(g, nil)
//	defer r.Close()
//	stats, err := r.Write(ctx, graph, sink, opts) // exec.ErrServed on all nodes but the first
package remote

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/procs"
	"github.com/penstock-data/penstock/internal/program"
)

// service is what nodes dial.
const service = "plan"

var (
	// ErrLost says that this process lost the others, or they never came: the next attempt of the job may do better.
	ErrLost = errors.New("the other nodes of the job are not reached")
	// ErrEnded says that the run failed on node 0, which says why.
	ErrEnded = errors.New("the run ended on node 0")
)

// Options may be nil.
type Options struct {
	Log *slog.Logger // nil discards
	// Gather is how long the leader waits for all nodes, and they for it; 0 means 10 minutes. They plan beforehand, which takes as long as
	// listing does, and a program may work alone before its next run. Who waits for a minute says so in Log.
	Gather time.Duration
	// Departures end that wait where it is in vain; nil: nobody says that it leaves. The caller closes them.
	Departures *Departures
}

// Runner runs graphs on the nodes of a gang. One run at a time: a second one is refused until the stream of the first is closed. Close it; the gang stays the caller's.
type Runner struct {
	g       members
	o       Options
	l       listener // of the leader
	program string   // its name: nodes of another one are refused
	busy    atomic.Bool
	// Of who is busy:
	runs  int    // so far
	spare func() // gives back the processor beside those that compute
}

var _ exec.Runner = (*Runner)(nil)

// members is what a Runner needs of a *gang.Gang.
type members interface {
	Node() int
	Nodes() int
	Dial(ctx context.Context, node int, service string) (net.Conn, error)
}

// listener is what it needs of a *gang.Listener.
type listener interface {
	Accept(ctx context.Context) (c net.Conn, node int, err error)
	Close() error
}

// New makes the Runner of this process's member.
func New(g *gang.Gang, o *Options) (*Runner, error) {
	name, err := program.Name()
	if err != nil {
		return nil, err
	}
	var l listener
	if g.Node() == 0 {
		if l, err = g.Listen(service); err != nil {
			return nil, err
		}
	}
	r := newRunner(g, l, o)
	r.program = name
	return r, nil
}

// newRunner makes the Runner of a member; l is of the leader.
func newRunner(g members, l listener, o *Options) *Runner {
	r := &Runner{g: g, l: l}
	if o != nil {
		r.o = *o
	}
	if r.o.Log == nil {
		r.o.Log = slog.New(slog.DiscardHandler)
	}
	if r.o.Gather == 0 {
		r.o.Gather = 10 * time.Minute
	}
	return r
}

// Leads reports whether results are this process's.
func (r *Runner) Leads() bool { return r.g.Node() == 0 }

// Close ends the listening. Idempotent.
func (r *Runner) Close() error {
	if r.l != nil {
		r.l.Close()
	}
	return nil
}

// take makes this the one run of the process; free makes room for the next.
func (r *Runner) take() error {
	if !r.busy.CompareAndSwap(false, true) {
		return fault.New(fault.Invalid, "a run of this process on the nodes of its job is not over: close its stream, or wait for its end, before the next one")
	}
	r.spare = procs.Spare()
	return nil
}

func (r *Runner) free() {
	r.spare()
	r.busy.Store(false)
}

// Run implements exec.Runner. On all nodes but the first it returns when the run is over there, with exec.ErrServed. Invalid: another one is not over.
func (r *Runner) Run(ctx context.Context, g *exec.Graph, o *exec.Options) (exec.Stream, error) {
	if err := r.take(); err != nil {
		return nil, err
	}
	st, err := r.run(ctx, g, o)
	if err != nil {
		r.free()
	}
	return st, err
}

func (r *Runner) run(ctx context.Context, g *exec.Graph, o *exec.Options) (exec.Stream, error) {
	if !r.Leads() {
		return nil, r.serve(ctx, g, nil, o)
	}
	s, ctx, err := r.lead(ctx, g, nil, o)
	if err != nil {
		return nil, err
	}
	st, err := s.runner.Run(ctx, g, o)
	if err != nil {
		s.end(err)
		s.cancel(nil)
		return nil, err
	}
	return &led{Stream: st, s: s, free: sync.OnceFunc(r.free)}, nil
}

// Write implements exec.Runner. Unsupported where the sink is none that several processes can write (exec.Joint).
func (r *Runner) Write(ctx context.Context, g *exec.Graph, sink exec.Sink, o *exec.Options) (exec.Stats, error) {
	joint, ok := sink.(exec.Joint)
	if !ok && g.InParts() {
		return exec.Stats{}, fault.New(fault.Unsupported, "a sink of type %T cannot be written by several nodes: it must be an exec.Joint", sink)
	}
	if err := r.take(); err != nil {
		return exec.Stats{}, err
	}
	defer r.free()
	if !r.Leads() {
		return exec.Stats{}, r.serve(ctx, g, joint, o)
	}
	s, ctx, err := r.lead(ctx, g, joint, o)
	if err != nil {
		return exec.Stats{}, err
	}
	if g.InParts() {
		sink = begin{joint, s}
	}
	st, err := s.runner.Write(ctx, g, sink, o)
	s.end(err)
	s.cancel(nil)
	return st, err
}

// session is a run of the leader.
type session struct {
	peers  []*peer
	runner *local.Runner
	cancel context.CancelCauseFunc
	once   sync.Once
}

// begin is a sink whose other processes join it once it has begun.
type begin struct {
	exec.Joint
	s *session
}

func (b begin) Begin(ctx context.Context, schema *arrow.Schema, splits []exec.SinkSplit) (*exec.SinkPlan, error) {
	p, err := b.Joint.Begin(ctx, schema, splits)
	if err == nil && !p.Committed {
		for _, n := range b.s.peers {
			n.l.say(kindBegin, nil)
		}
	}
	return p, err
}

// Commit implements exec.Sink. The other processes leave first, so that nothing of theirs is in use.
func (b begin) Commit(ctx context.Context, env *exec.CommitEnv) error {
	b.s.end(nil)
	return b.Joint.Commit(ctx, env)
}

// Abort implements exec.Sink. Why the run ended, if it was not just stopped, its own process says.
func (b begin) Abort(ctx context.Context) error {
	b.s.end(fault.New(fault.Canceled, "it did not come to its end there"))
	return b.Joint.Abort(ctx)
}

// led is a run whose nodes are told of its end.
type led struct {
	exec.Stream
	s    *session
	free func() // once
}

// Alloc is the stream's.
func (s *led) Alloc() memory.Allocator {
	return s.Stream.(interface{ Alloc() memory.Allocator }).Alloc()
}

// Next implements exec.Stream.
func (s *led) Next(ctx context.Context) (*exec.Block, error) {
	b, err := s.Stream.Next(ctx)
	if err != nil {
		if err == io.EOF {
			s.s.end(nil)
		} else if ctx.Err() == nil {
			s.s.end(err)
		}
	}
	return b, err
}

func (s *led) Close() error {
	err := s.Stream.Close()
	s.s.end(nil)
	s.s.cancel(nil)
	s.free()
	return err
}

// end tells all nodes that the run is over, and joins what listens to them. Idempotent.
func (s *session) end(err error) {
	s.once.Do(func() {
		var all sync.WaitGroup
		for _, p := range s.peers {
			all.Go(func() { p.end(err) })
		}
		all.Wait()
	})
}

// hello is what a leader says first, and ready what a node answers.
type hello struct {
	Words    [][2]string    `json:"words"`
	Settings local.Settings `json:"settings"`
	Parts    bool           `json:"parts"`
	Inline   int64          `json:"inline"` // bytes of blocks of all tasks that may come unasked
}

type ready struct {
	CPUs int    `json:"cpus"`
	Room int    `json:"room"`
	Code string `json:"code,omitempty"` // of Text
	Text string `json:"text,omitempty"` // why not
}

// words are all that must be the same on all nodes.
func (r *Runner) words(ctx context.Context, g *exec.Graph, joint exec.Joint, o *exec.Options) (h hello, err error) {
	if o == nil {
		o = &exec.Options{}
	}
	if o.Spans {
		return h, fault.New(fault.Unsupported, "spans of rows are not sent between nodes: shards of several nodes are read by each of them (shard.Nodes)")
	}
	var memory int64
	if h.Settings, memory, err = local.SettingsOf(o); err != nil {
		return h, err
	}
	h.Inline = inlineOf(memory, r.g.Nodes()-1)
	h.Parts = joint != nil && g.InParts()
	h.Words = [][2]string{{"protocol", "1"}, {"program", r.program}, {"number of runs before", fmt.Sprint(r.runs)}}
	r.runs++
	if g.Words == nil {
		return h, fault.New(fault.Unsupported, "this graph cannot be compared with that of another process (Graph.Words), so it runs on one node")
	}
	more, err := g.Words(ctx)
	if err != nil {
		return h, err
	}
	h.Words = append(h.Words, more...)
	return h, shape(&h, g, joint, o)
}

// shape adds the stages, and the options that decide rows.
func shape(h *hello, g *exec.Graph, joint exec.Joint, o *exec.Options) error {
	var b strings.Builder
	var walk func(s *exec.Stage)
	walk = func(s *exec.Stage) {
		if s == nil {
			return
		}
		if s.Scan != nil {
			kept := 0
			for _, k := range s.Scan.Keep {
				if k {
					kept++
				}
			}
			fmt.Fprintf(&b, "scan %d: %d splits, %d kept, columns %q, where %v, limit %d", s.Scan.Source, len(s.Scan.Table.Splits()), kept, s.Scan.Columns, s.Scan.Predicate, s.Scan.Limit)
		} else {
			fmt.Fprintf(&b, "first %d of %d", s.Limit, len(s.Inputs))
		}
		for _, f := range s.Ops {
			fmt.Fprintf(&b, " -> %s", f.Name())
			if f.OnError != nil {
				fmt.Fprintf(&b, " %+v", *f.OnError)
			}
		}
		b.WriteByte('\n')
		for _, in := range s.Inputs {
			walk(in)
		}
	}
	walk(g.Root)
	schema := ""
	if g.Schema != nil {
		schema = g.Schema.String()
	}
	h.Words = append(h.Words, [2]string{"steps", b.String()}, [2]string{"schema", schema}, [2]string{"seed", fmt.Sprint(o.Seed)}, [2]string{"epoch", fmt.Sprint(o.Epoch)},
		[2]string{"on_error", fmt.Sprintf("%+v", o.OnError)}, [2]string{"sink", fmt.Sprintf("%T", joint)})
	for i := range h.Words {
		if w := &h.Words[i]; len(w[1]) > 64<<10 {
			w[1] = digest(w[1])
		}
	}
	return nil
}

func digest(s string) string {
	sum := sha256.Sum256([]byte(s))
	return hex.EncodeToString(sum[:])
}

// differs names what another node has otherwise.
func differs(mine, theirs [][2]string) error {
	short := func(s string) string {
		if len(s) > 120 {
			s = s[:117] + "..."
		}
		return s
	}
	for i := range max(len(mine), len(theirs)) {
		var a, b [2]string
		if i < len(mine) {
			a = mine[i]
		}
		if i < len(theirs) {
			b = theirs[i]
		}
		if a != b {
			name := a[0]
			if name == "" {
				name = b[0]
			}
			at := 0 // from about where they differ
			for at < min(len(a[1]), len(b[1])) && a[1][at] == b[1][at] {
				at++
			}
			at = max(at-40, 0)
			return fault.New(fault.Invalid, "it does not run the same as node 0: %s is %q here, %q there; all nodes run the same program and plan on the same files: name a bucket, or a folder that they share", name, short(a[1][at:]), short(b[1][at:]))
		}
	}
	return nil
}

// lead gathers the nodes and readies a run that sends them tasks.
func (r *Runner) lead(ctx context.Context, g *exec.Graph, joint exec.Joint, o *exec.Options) (*session, context.Context, error) {
	h, err := r.words(ctx, g, joint, o)
	if err != nil {
		return nil, nil, err
	}
	said, err := json.Marshal(h)
	if err != nil {
		return nil, nil, fault.New(fault.Internal, "hello: %w", err)
	}
	s := &session{}
	var sctx context.Context
	sctx, s.cancel = context.WithCancelCause(ctx)
	gather, stop := context.WithTimeoutCause(ctx, r.o.Gather, fault.New(fault.Unavailable, "%w: not all came within %v", ErrLost, r.o.Gather))
	defer stop()
	gather, stopWatch := r.o.Departures.watch(gather, -1)
	defer stopWatch()
	conns, err := r.accept(gather)
	if err == nil {
		var mu sync.Mutex
		var all sync.WaitGroup
		for node, c := range conns {
			all.Go(func() {
				p, e := greet(gather, node, c, said, h.Inline, s.cancel, r.o.Log)
				mu.Lock()
				defer mu.Unlock()
				if e != nil && err == nil {
					err = fault.Wrap(e, fault.Place{Node: fmt.Sprint(node)})
				}
				if p != nil {
					s.peers = append(s.peers, p)
				}
			})
		}
		all.Wait()
	}
	if err = departure(gather, err); err != nil {
		s.end(err)
		s.cancel(nil)
		return nil, nil, err
	}
	nodes := make([]local.Node, len(s.peers))
	for i, p := range s.peers {
		nodes[i] = p
	}
	s.runner = local.New(&local.Options{Log: r.o.Log, Nodes: nodes})
	return s, sctx, nil
}

// accept waits until all nodes have come. A node comes for a run when it has heard of the end of the one before.
func (r *Runner) accept(ctx context.Context) (map[int]net.Conn, error) {
	conns := map[int]net.Conn{}
	var mu sync.Mutex // what is said of who is missing
	defer r.waiting(func() string {
		mu.Lock()
		defer mu.Unlock()
		var missing []string
		for node := 1; node < r.g.Nodes(); node++ {
			if conns[node] == nil {
				missing = append(missing, fmt.Sprint(node))
			}
		}
		return strings.Join(missing, ", ")
	})()
	for len(conns) < r.g.Nodes()-1 {
		c, node, err := r.l.Accept(ctx)
		if err != nil {
			err = departure(ctx, fault.New(fault.CodeOf(err), "%d of %d nodes of the job have come: %w", len(conns)+1, r.g.Nodes(), err))
			var all sync.WaitGroup
			for _, c := range conns { // they wait for the hello of a run
				all.Go(func() { endLink(newLink(c), err) })
			}
			all.Wait()
			return nil, err
		}
		mu.Lock()
		old := conns[node]
		conns[node] = c
		mu.Unlock()
		if old != nil { // it gave that up
			old.Close()
		}
	}
	return conns, nil
}

// sayEnd tells a node that the run is over. Of the loss of others nothing is said: whoever loses the connection by it knows as much (ErrLost), and its process ends as this one does.
func sayEnd(l *link, err error) {
	if errors.Is(err, ErrLost) {
		return
	}
	l.say(kindEnd, func(b []byte) []byte {
		if err == nil {
			return putFlag(b, true)
		}
		return putError(putFlag(b, false), err)
	})
}

// endLink ends the link to a node that no run has.
func endLink(l *link, err error) {
	sayEnd(l, err)
	l.close()
}

// waitSays and waitEvery are when a process says for whom it waits: once, and again.
const (
	waitSays  = time.Minute
	waitEvery = 10 * time.Minute
)

// waiting says from time to time for which nodes this one waits, until stop.
func (r *Runner) waiting(nodes func() string) (stop func()) {
	over := make(chan struct{})
	var saying sync.WaitGroup
	saying.Go(func() {
		began, t := time.Now(), time.NewTimer(waitSays)
		defer t.Stop()
		for {
			select {
			case <-t.C:
				r.o.Log.Warn("this node waits for others to make the same call", "nodes", nodes(), "for", time.Since(began).Round(time.Second).String())
				t.Reset(waitEvery)
			case <-over:
				return
			}
		}
	})
	return func() {
		close(over)
		saying.Wait()
	}
}

// greet says hello to a node and hears whether it is ready.
func greet(ctx context.Context, node int, c net.Conn, said []byte, inline int64, fatal func(error), log *slog.Logger) (*peer, error) {
	l := newLink(c)
	stop := context.AfterFunc(ctx, func() { l.fail(context.Cause(ctx)) })
	defer stop()
	l.say(kindHello, func(b []byte) []byte { return append(b, said...) })
	var a ready
	err := l.hear(kindReady, &a)
	if err != nil && err != errWords {
		err = fault.New(fault.WorkerLost, "%w: %w", ErrLost, err)
	}
	if err == nil && a.Text != "" {
		err = fault.New(fault.ParseCode(a.Code), "%s", a.Text)
	}
	if err == nil && (a.CPUs < 1 || a.CPUs > maxOpen || a.Room < 1 || a.Room > maxOpen) {
		err = errWords
	}
	if err != nil {
		l.close()
		if cause := context.Cause(ctx); cause != nil {
			err = fault.WithCode(fault.Canceled, cause)
		}
		return nil, err
	}
	return newPeer(node, l, a.CPUs, a.Room, inline, fatal, log), nil
}

// hear reads a message of a kind, pings aside, that is JSON.
func (l *link) hear(kind byte, to any) error {
	for {
		k, said, err := l.next(nil)
		switch {
		case err == io.EOF || err == io.ErrUnexpectedEOF:
			return fault.New(fault.WorkerLost, "the connection ended: %w", err)
		case err != nil:
			return err
		case k == kindPing:
			continue
		case k == kindEnd && kind == kindHello: // it did not begin
			w := &words{b: said}
			if w.flag() {
				return errWords
			}
			e := takeError(w)
			if err := w.end(); err != nil {
				return err
			}
			return fault.New(e.Code, "%w: %w", ErrEnded, e)
		case k != kind || json.Unmarshal(said, to) != nil:
			return errWords
		}
		return nil
	}
}
