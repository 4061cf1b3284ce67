package remote_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/remote"
	"github.com/penstock-data/penstock/internal/fault"
)

// What the members of a simulated job stand on: a network, disks and an output in memory, in the time of a bubble. See sim_test.go.

// window is how much may be on its way on a connection before its sender waits.
const window = 256 << 10

// logUniform draws a time whose order of magnitude is uniform.
func logUniform(r *rand.Rand, from, to time.Duration) time.Duration {
	return time.Duration(float64(from) * math.Pow(float64(to)/float64(from), r.Float64()))
}

// wire is one direction of a connection. What is sent comes in order, late. Under world.mu.
type wire struct {
	delay   time.Duration
	slow    time.Time // what is sent before it comes after it
	under   []chunk
	size    int // of under, and of what nobody gets
	last    time.Time
	ended   bool // by its sender
	refused bool // its receiver is gone, and its sender knows
	lost    bool // the connection broke, with all that was under way
	deaf    bool // half open: nothing of what is sent comes, and nobody is told
	come    chan struct{}
	room    chan struct{} // both room 1: one goroutine reads, one writes
}

type chunk struct {
	b   []byte
	due time.Time
}

func newWire(w *world) *wire {
	return &wire{delay: logUniform(w.dice, 20*time.Microsecond, 20*time.Millisecond), come: make(chan struct{}, 1), room: make(chan struct{}, 1)}
}

func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// wake has both ends look again.
func (x *wire) wake() {
	signal(x.come)
	signal(x.room)
}

func (x *wire) cut() {
	x.lost, x.under = true, nil
	x.wake()
}

// end is one end of a connection: a net.Conn, as far as links use one.
type end struct {
	net.Conn
	m        *machine
	peer     *machine
	in, out  *wire
	closed   bool
	shut     chan struct{} // closed with it
	deadline time.Time     // of its reader
	timer    *time.Timer   // of its reader
}

// pair connects two machines; it needs world.mu.
func pair(a, b *machine) (*end, *end) {
	there, back := newWire(a.w), newWire(a.w)
	x := &end{m: a, peer: b, in: back, out: there, shut: make(chan struct{}), timer: time.NewTimer(time.Hour)}
	y := &end{m: b, peer: a, in: there, out: back, shut: make(chan struct{}), timer: time.NewTimer(time.Hour)}
	a.ends, b.ends = append(a.ends, x), append(b.ends, y)
	there.deaf, back.deaf = a.cutOff || b.cutOff, a.cutOff || b.cutOff
	return x, y
}

func (c *end) SetReadDeadline(t time.Time) error {
	c.deadline = t
	return nil
}

func (c *end) Read(p []byte) (int, error) {
	for {
		c.m.thawed(c.shut)
		n, wait, err := c.take(p)
		if n > 0 || err != nil {
			return n, err
		}
		c.timer.Reset(wait)
		select {
		case <-c.in.come:
		case <-c.timer.C:
		case <-c.shut:
		}
	}
}

// take is a Read that does not wait, or how long to.
func (c *end) take(p []byte) (n int, wait time.Duration, err error) {
	c.m.w.mu.Lock()
	defer c.m.w.mu.Unlock()
	in, now := c.in, time.Now()
	wait = time.Hour
	if !c.deadline.IsZero() {
		wait = c.deadline.Sub(now)
	}
	for n < len(p) && len(in.under) > 0 && !in.under[0].due.After(now) {
		k := copy(p[n:], in.under[0].b)
		n += k
		in.size -= k
		if in.under[0].b = in.under[0].b[k:]; len(in.under[0].b) == 0 {
			in.under = in.under[1:]
		}
		signal(in.room)
	}
	switch {
	case n > 0:
		return n, 0, nil
	case c.closed:
		return 0, 0, net.ErrClosed
	case c.m.dead || in.lost:
		return 0, 0, syscall.ECONNRESET
	case len(in.under) == 0 && in.ended && !in.last.After(now):
		return 0, 0, io.EOF
	case wait <= 0: // also where something is on its way
		return 0, 0, os.ErrDeadlineExceeded
	case len(in.under) > 0:
		return 0, min(wait, in.under[0].due.Sub(now)), nil
	case in.ended:
		return 0, min(wait, in.last.Sub(now)), nil
	}
	return 0, wait, nil
}

func (c *end) Write(p []byte) (int, error) {
	for {
		c.m.thawed(c.shut)
		if done, err := c.put(p); err != nil {
			return 0, err
		} else if done {
			return len(p), nil
		}
		select {
		case <-c.out.room:
		case <-c.shut:
		}
	}
}

func (c *end) put(p []byte) (done bool, err error) {
	w := c.m.w
	w.mu.Lock()
	defer w.mu.Unlock()
	out := c.out
	switch {
	case c.closed:
		return false, net.ErrClosed
	case c.m.dead || out.lost || out.refused:
		return false, syscall.EPIPE
	case out.size >= window:
		return false, nil
	}
	out.size += len(p)
	if out.deaf {
		return true, nil
	}
	due := time.Now()
	if due.Before(out.slow) {
		due = out.slow
	}
	due = due.Add(out.delay + time.Duration(w.dice.Int64N(int64(out.delay))))
	if due.Before(out.last) {
		due = out.last
	}
	out.under, out.last = append(out.under, chunk{bytes.Clone(p), due}), due
	signal(out.come)
	return true, nil
}

func (c *end) Close() error {
	w := c.m.w
	w.mu.Lock()
	defer w.mu.Unlock()
	if c.closed {
		return nil
	}
	c.closed = true
	close(c.shut)
	if !c.out.deaf {
		c.out.ended, c.in.refused = true, true
		if soon := time.Now().Add(c.out.delay); c.out.last.Before(soon) {
			c.out.last = soon
		}
		c.out.wake()
		c.in.wake()
	}
	return nil
}

// machine is a member of an attempt of the job, on which things fail. It is what a Runner has for a gang.
type machine struct {
	w       *world
	node    int
	members []*machine
	ctx     context.Context
	cancel  context.CancelCauseFunc
	port    *port // of node 0

	// under world.mu
	ends   []*end
	dead   bool          // it does nothing any more
	cutOff bool          // nobody hears it, and it hears nobody
	ice    chan struct{} // it is frozen until this is closed
	slow   time.Time     // its disks are slow until then

	gone chan struct{} // closed when the head knows that it is lost
	done chan struct{} // closed when its program is over
	err  error         // of its program
	got  result        // of node 0

	budget *exec.Budget
	plan   *exectest.Plan
	files  *simFiles
}

// machines makes the members of an attempt.
func (w *world) machines() []*machine {
	ms := make([]*machine, w.nodes)
	for i := range ms {
		m := &machine{w: w, node: i, members: ms, gone: make(chan struct{}), done: make(chan struct{}), budget: exec.NewBudget(w.o.Memory)}
		m.ctx, m.cancel = context.WithCancelCause(context.Background())
		m.files = newSimFiles(m)
		ms[i] = m
	}
	ms[0].port = &port{m: ms[0], conns: make(chan *end, 64), open: true}
	return ms
}

// runner is the one of a machine.
func (m *machine) runner(o *remote.Options) *remote.Runner {
	if m.port == nil {
		return remote.NewOver(m, nil, o)
	}
	return remote.NewOver(m, m.port, o)
}

var errDead = errors.New("this machine is dead")

func (m *machine) Node() int  { return m.node }
func (m *machine) Nodes() int { return len(m.members) }

// thawed waits while the machine is frozen.
func (m *machine) thawed(stop <-chan struct{}) {
	m.w.mu.Lock()
	ice := m.ice
	m.w.mu.Unlock()
	if ice != nil {
		select {
		case <-ice:
		case <-stop:
		}
	}
}

// crash ends the machine between any two of its steps: with its connections, or so that nothing is heard of it.
func (m *machine) crash(silent bool) {
	m.w.mu.Lock()
	defer m.w.mu.Unlock()
	if m.dead {
		return
	}
	m.dead = true
	for _, e := range m.ends {
		if silent {
			e.in.deaf, e.out.deaf = true, true
			e.in.under = nil
			e.in.wake()
			e.out.wake()
		} else {
			e.in.cut()
			e.out.cut()
		}
	}
	m.cancel(errDead)
	if !silent {
		m.lostBy(0)
	}
}

// lostBy lets the head know of it.
func (m *machine) lostBy(d time.Duration) {
	time.AfterFunc(d, sync.OnceFunc(func() {
		m.w.mu.Lock()
		defer m.w.mu.Unlock()
		select {
		case <-m.gone:
		default:
			close(m.gone)
		}
	}))
}

// Dial reaches node 0, as a gang does: again and again.
func (m *machine) Dial(ctx context.Context, node int, _ string) (net.Conn, error) {
	leader, since := m.members[node], time.Now()
	for wait := 10 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		var c *end
		m.w.mu.Lock()
		alone := leader.dead || leader.cutOff || m.cutOff
		if !alone && leader.port.open {
			mine, its := pair(m, leader)
			select {
			case leader.port.conns <- its:
				c = mine
			default:
			}
		}
		m.w.mu.Unlock()
		switch {
		case c != nil:
			return c, nil
		case !alone:
			since = time.Now()
		case time.Since(since) > 30*time.Second:
			return nil, fault.New(fault.Unavailable, "nobody answers")
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return nil, fault.New(fault.Unavailable, "it is not reached: %w", context.Cause(ctx))
		}
	}
}

// port is where node 0 listens.
type port struct {
	m     *machine
	conns chan *end
	open  bool // under world.mu
}

func (p *port) Accept(ctx context.Context) (net.Conn, int, error) {
	select {
	case c := <-p.conns:
		return c, c.peer.node, nil
	case <-ctx.Done():
		return nil, 0, fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
}

func (p *port) Close() error {
	p.m.w.mu.Lock()
	p.open = false
	p.m.w.mu.Unlock()
	for {
		select {
		case c := <-p.conns:
			c.Close()
		default:
			return nil
		}
	}
}
