// Package collective lets the ranks of a training loop compute together: barrier, broadcast, all-gather and all-reduce, over
// a ring: unix sockets between ranks of one machine, connections that the caller makes between those of two. It is for loops in Go and on CPUs; frameworks on GPUs bring NCCL, those in Python gloo.
//
//	g, err := collective.Join(ctx, dir, rank, world, &collective.Options{Group: run + "/" + attempt})
//	defer g.Close()
//	err = collective.AllReduce(ctx, g, gradients, collective.Mean)
//
// Every rank makes the same calls in the same order. Where they differ, every rank gets an Invalid error that says which rank called what; where a
// rank dies, WorkerLost with its number; never a hang on a rank that is gone, and never wrong numbers. Where ranks are on several machines, one of which nothing is heard for 20 seconds, as its
// process stands still or the network is cut, is lost too; not any more once a rank has left after its last call: those that are still in it wait for a silent one until their contexts
// end, as ranks of one machine do. A rank that is alive and does not call is waited for until the context ends. After an error other than a refused argument the group is of no use any more: every later call returns the first error.
//
// All-reduce is the bandwidth-optimal ring of Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations" (J. Parallel Distrib. Comput. 69, 2009), which Baidu made known among trainers: each rank sends and receives 2(N-1)/N of the bytes, in
// segments, so that sending, receiving and computing overlap.
package collective

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// Number is what can be reduced.
type Number interface {
	float32 | float64 | int32 | int64
}

// Op is how numbers of all ranks become one.
type Op uint8

const (
	Sum  Op = iota + 1 // integers wrap
	Min                // NaN if one is NaN
	Max                // NaN if one is NaN
	Mean               // of floats only: the sum over the number of ranks
)

func (o Op) String() string {
	switch o {
	case Sum:
		return "sum"
	case Min:
		return "min"
	case Max:
		return "max"
	case Mean:
		return "mean"
	}
	return fmt.Sprintf("op %d", uint8(o))
}

// Options of a group. The zero value of every field is its default.
type Options struct {
	// Group names this meeting of the ranks, such as a run and its attempt: only ranks that say the same meet. At most 4096 bytes.
	Group string
	// Timeout for all ranks to come; 0: 5 minutes.
	Timeout time.Duration
	// Nodes is the machine of each rank, by any numbers; nil: all are on one.
	Nodes []int
	// Left and Right connect a rank with its neighbours where these are on other machines, two connections each: Left waits for one that rank-1 makes, Right makes one to rank+1, counted around. They
	// are private, in order and without loss, and end with the process at the other end; the group closes them. An error of Left or Right, which obey ctx, is that of Join.
	Left, Right func(ctx context.Context) (net.Conn, error)
}

// Group is one rank's place in the ring. Its calls are for one goroutine at a time (others wait); Close may be called at any time, and is called before
// the process ends: a rank whose connection just ends is a lost one.
type Group struct {
	rank, world int
	pids        []int // of all ranks

	left, right  net.Conn // numbers come from the left and go to the right; nil: alone
	hears, tells net.Conn // notes come from the right and go to the left: by the same connections on one machine
	telling      sync.Mutex
	scratch      []uint64    // a head and a segment, aligned for every Number
	several      bool        // ranks are on more than one machine: neighbours say that they are there, also to those on their own
	packet       []byte      // what goes to a neighbour on another machine in one piece; nil: right is a socket, which takes two at once
	small        int         // bytes of a chunk up to which a rank may send it before it receives
	most         uint64      // bytes of a block that is believed
	all          atomic.Bool // the ranks have come: from now on the right neighbour of several is not silent for long

	turn chan struct{} // holds one token: whose call it is

	mu   sync.Mutex
	seq  uint64 // calls begun
	made uint64 // of them: those that are over
	over bool   // the right neighbour has left, after its call number last
	last uint64

	once    sync.Once
	failed  chan struct{} // closed when err is set
	err     error
	closing sync.Once
	work    sync.WaitGroup // who watches, and who pings
}

// Rank of this place, from 0.
func (g *Group) Rank() int { return g.rank }

// World is the number of ranks.
func (g *Group) World() int { return g.world }

// Close leaves the ring; a call in progress fails. Calls that others make afterwards fail on them, naming this rank. It may be called twice.
func (g *Group) Close() error {
	g.closing.Do(func() {
		g.mu.Lock()
		n := note{Rank: g.rank, Bye: true, Calls: g.made}
		g.mu.Unlock()
		g.end(errClosed, &n)
		g.hangUp()
		g.work.Wait()
	})
	return nil
}

// hangUp closes all connections. TLS would say so first, and wait for room: what was sent arrives without that, as nothing comes the other way that could be left unread.
func (g *Group) hangUp() {
	for _, c := range []net.Conn{g.right, g.left, g.hears, g.tells} {
		if t, ok := c.(interface{ NetConn() net.Conn }); ok {
			c = t.NetConn()
		}
		if c != nil {
			c.Close()
		}
	}
}

var errClosed = fault.New(fault.Invalid, "the group is closed")

// note is what a rank says to its left neighbour: the group has failed, or this rank leaves, which is the last one. Where ranks are on several machines it says before, each few seconds, that it is there.
type note struct {
	Rank  int    `json:"rank"` // who noticed, or leaves
	Ping  bool   `json:"ping,omitempty"`
	Code  string `json:"code,omitempty"`
	Text  string `json:"text,omitempty"`
	Bye   bool   `json:"bye,omitempty"`
	Calls uint64 `json:"calls,omitempty"` // with Bye: made before
}

// fail ends the group on this rank, and tells the others.
func (g *Group) fail(err error) {
	text := err.Error()
	if len(text) > mostText {
		text = strings.ToValidUTF8(text[:mostText], "") + "..."
	}
	g.end(err, &note{Rank: g.rank, Code: fault.CodeOf(err).String(), Text: text})
}

// mostText is how many bytes of an error go round: a note has little room.
const mostText = 4 << 10

// end sets the first error, passes the note on, and wakes whoever reads or writes.
func (g *Group) end(err error, n *note) {
	g.once.Do(func() {
		g.err = err
		if g.left == nil {
			close(g.failed)
			return
		}
		_ = g.tell(n) // who does not listen need not know
		close(g.failed)
		past := time.Unix(1, 0)
		for _, c := range []net.Conn{g.right, g.left, g.hears} {
			c.SetDeadline(past)
		}
	})
}

// tell says something to the left neighbour. Nothing but notes is sent this way, so there is room.
func (g *Group) tell(n *note) error {
	g.telling.Lock()
	defer g.telling.Unlock()
	g.tells.SetWriteDeadline(time.Now().Add(time.Second))
	return send(g.tells, n)
}

// silence is after how long a neighbour is lost that says nothing, where ranks are on several machines.
const silence = 20 * time.Second

// ping says to the left neighbour that this rank is there, until the group ends, or that neighbour has.
func (g *Group) ping() {
	t := time.NewTicker(silence / 4)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			if g.tell(&note{Rank: g.rank, Ping: true}) != nil {
				return
			}
		case <-g.failed:
			return
		}
	}
}

// listen waits for a note of the right neighbour that is no ping.
func (g *Group) listen() (n note, err error) {
	for {
		if g.several && g.all.Load() {
			g.hears.SetReadDeadline(time.Now().Add(silence))
		}
		n = note{}
		if err = receive(g.hears, &n); err != nil || !n.Ping {
			return n, err
		}
	}
}

// watch waits for what the right neighbour has to say, or for its end. Notes travel to the left from rank to rank, once around: so every rank learns the
// cause, whatever it does at the time.
func (g *Group) watch() {
	r := (g.rank + 1) % g.world
	n, err := g.listen()
	select {
	case <-g.failed: // this rank knew first
		return
	default:
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		why := "its process stands still or the network is cut"
		if g.hears == g.right {
			why = "its process stands still"
		}
		g.fail(fault.New(fault.WorkerLost, "%s is lost: nothing was heard of it for %v, as %s", g.name(r), silence, why))
	case err != nil:
		g.fail(g.lost(r))
	case !n.Bye:
		g.end(&fault.Error{Code: fault.ParseCode(n.Code), Err: errors.New(n.Text)}, &n)
	default:
		g.mu.Lock()
		g.over, g.last = true, n.Calls
		late := g.seq > n.Calls
		g.mu.Unlock()
		if late { // else its part of the call in progress is done
			g.fail(g.leftGroup(r))
		}
	}
}

// lost is the error for a rank whose connection has ended.
func (g *Group) lost(rank int) error {
	return fault.New(fault.WorkerLost, "%s is lost: its connection has ended", g.name(rank))
}

func (g *Group) leftGroup(rank int) error {
	return fault.New(fault.WorkerLost, "%s has left the group while others go on: every rank has to make the same calls before it closes", g.name(rank))
}

func (g *Group) name(rank int) string {
	if g.pids[rank] == 0 {
		return fmt.Sprintf("rank %d", rank)
	}
	return fmt.Sprintf("rank %d (process %d)", rank, g.pids[rank])
}

// enter begins a call: it takes the turn, and makes the end of ctx the end of the group. leave gives both back.
func (g *Group) enter(ctx context.Context, h *head) (leave func(), err error) {
	if ctx.Err() != nil {
		return nil, fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
	select {
	case <-g.turn:
	case <-ctx.Done():
		return nil, fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
	g.mu.Lock()
	g.seq++
	h.seq = g.seq
	late := g.over && g.seq > g.last
	g.mu.Unlock()
	if late {
		g.fail(g.leftGroup((g.rank + 1) % g.world))
	}
	select {
	case <-g.failed:
		g.turn <- struct{}{}
		return nil, g.err
	default:
	}
	stop := context.AfterFunc(ctx, func() {
		g.fail(fault.New(fault.Canceled, "rank %d gave up waiting in %s: %w", g.rank, h, context.Cause(ctx)))
	})
	return func() {
		stop()
		g.mu.Lock()
		g.made = h.seq
		g.mu.Unlock()
		g.turn <- struct{}{}
	}, nil
}

// cause is the error of a call whose reading or writing failed: the group's, which comes around the ring if another rank noticed first. Where nothing
// comes, the rank whose connection failed is the cause.
func (g *Group) cause(rank int) error {
	t := time.NewTimer(time.Second)
	defer t.Stop()
	select {
	case <-g.failed:
	case <-t.C:
		g.fail(g.lost(rank))
	}
	return g.err
}
