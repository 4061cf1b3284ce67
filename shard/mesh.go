package shard

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/units"
	"github.com/penstock-data/penstock/shard/internal/lanes"
)

// mesh is what a job says to other nodes and hears from them. All nodes do the same arithmetic: the order and the dealing
// of steps. What must travel for it is
//
//	hello    once, at the beginning: the job, compared by everyone
//	count    the samples of a window, from the node that reads its lane to all, where they do not follow from metadata
//	parcel   the samples of a step that are dealt to ranks of another node: one message per step and pair of nodes
//	lengths  the longest lists of a step, where lists are padded to the same length for all ranks
//	done     that a step is made
//	idle     that a node has no rank any more that is read, and goes on for others
//	failed, bye
//
// Nobody waits in a circle. A message is never waited for by its sender: queues to other nodes have no bound of their own,
// and what comes is taken in at once, by a goroutine for each node. What a job waits for is a window's count, its parcels
// of a step, or a node that is behind; these, and its consumers, are all. Take the nodes that are at the earliest step
// that any is at. None of them waits for a node that is behind. Of the windows that they wait for take the first in the order
// in which all nodes need them. Its owner is at that step or beyond, and needs all windows in the same order. If it is beyond
// that window, it has told its count. If not, it has been given all windows before it, which makes it the next that its own
// engine reads, and it waits for nothing else. So all windows of the step get known; then each of these nodes sends its
// parcels, and those beyond the step have sent theirs. So the step is made, and all go on.
//
// What is held at a time is bounded: the parcels of at most prefetch + 1 steps that came, and as many that go; and counts
// of the epochs under way, as in the ledger.
type mesh struct {
	j      *job
	x      Exchange
	self   int
	peers  []*peer                         // nil where this node is
	told   *Ledger                         // counts of windows that others read
	skips  map[ledgerKey]map[int64][]int64 // and of rows that were skipped in them, where there are limits; guarded by mu
	ctx    context.Context
	cancel context.CancelFunc
	memory *exec.Account // of parcels
	schema *arrow.Schema // of those that are records
	work   sync.WaitGroup
	out    sync.WaitGroup // those that send
	step   int64          // steps begun, and ends of epochs
	heard  chan struct{}  // room 1: something came; for the producer

	mu       sync.Mutex
	started  bool
	closed   bool
	err      error // of another node
	waits    func() string
	since    time.Time
	waited   time.Duration
	failed   bool // the others know, or told us
	resting  bool // the ranks of this node were given up
	sent     exchanged
	received exchanged
}

// exchanged counts what went one way.
type exchanged struct{ samples, bytes int64 }

// peer is another node. Guarded by mesh.mu, but for its number.
type peer struct {
	node    int
	hello   [][2]string // nil: nothing was heard of it
	depth   int64       // steps that it makes ahead
	done    int64       // steps made
	parcels []*parcel   // in the order of steps
	lengths []lengths
	idle    bool // its ranks were given up; it feeds others
	left    bool // it said bye
	failed  bool // after a failure, of which all hear
	last    time.Time
	queue   []Message // to it
	more    chan struct{}
	lost    error // of sending to it
	ctx     context.Context
	cancel  context.CancelFunc // once nothing more comes from it, nothing is sent
}

// lengths are the longest lists that a node has in a step.
type lengths struct {
	step int64
	most []int
}

func newMesh(j *job) *mesh {
	x := j.Nodes.Exchange
	m := &mesh{j: j, x: x, schema: lanes.Nullable(j.Schema), self: x.Node(), peers: make([]*peer, x.Nodes()), heard: make(chan struct{}, 1)}
	for i := range m.peers {
		if i != m.self {
			m.peers[i] = &peer{node: i, more: make(chan struct{}, 1)}
		}
	}
	m.ctx, m.cancel = context.WithCancel(context.WithoutCancel(j.ctx))
	for p := range m.others {
		p.ctx, p.cancel = context.WithCancel(m.ctx)
	}
	m.memory = j.budget.Account(m.ctx, "samples of other nodes")
	m.memory.SetPriority(exec.Overdraw) // a step cannot be made without
	return m
}

// others are all peers.
func (m *mesh) others(yield func(*peer) bool) {
	for _, p := range m.peers {
		if p != nil && !yield(p) {
			return
		}
	}
}

// await waits for something of a node; have needs mu. The producer's.
func (m *mesh) await(ctx context.Context, p *peer, what func() string, have func() bool) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	for begin := (time.Time{}); ; {
		switch {
		case have():
			if !begin.IsZero() {
				m.waits = nil
				m.waited += time.Since(begin)
			}
			return nil
		case m.err != nil:
			return m.err
		case m.j.feeds() && m.deserted():
			return m.left()
		case p.left && !p.failed && !m.j.feeds():
			return m.leftError(p, what())
		}
		if begin.IsZero() {
			begin = time.Now()
			m.waits, m.since = func() string { return fmt.Sprintf("node %d: %s%s", p.node, what(), m.whereabouts(p)) }, begin
		}
		m.mu.Unlock()
		var err error
		select {
		case <-m.heard:
		case <-ctx.Done():
			err = fault.WithCode(fault.Canceled, context.Cause(ctx))
		}
		m.mu.Lock()
		if err != nil {
			m.waits = nil
			return err
		}
	}
}

// goneError is the failure of a job that goes on where another node has closed its iterators. All nodes see that for
// themselves, each at the step that it can come to.
type goneError struct{ error }

func (e goneError) Unwrap() error        { return e.error }
func (e goneError) Is(target error) bool { return target == ErrElsewhere }

func (m *mesh) leftError(p *peer, what string) error {
	return goneError{fault.New(fault.WorkerLost, "node %d closed its iterators after %s; this one still needs %s: read as far on all nodes, and go on from a state", p.node, units.Count(int(p.done), "step"), what)}
}

// whereabouts says where a node is; it needs mu.
func (m *mesh) whereabouts(p *peer) string {
	switch {
	case p.hello == nil:
		return ""
	case p.done == m.step-1:
		return " (it makes the same step)"
	}
	return fmt.Sprintf(" (it has made %d steps, this node %d)", p.done, m.step-1)
}

// waiting says what the producer waits for of others, for how long, and for how long nothing was heard of any of them; "" if nothing.
func (m *mesh) waiting() (what string, since time.Duration) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waits == nil {
		return "", 0
	}
	since = time.Since(m.since)
	for p := range m.others {
		if !p.last.IsZero() {
			since = min(since, time.Since(p.last))
		}
	}
	return m.waits(), since
}

// begin begins a step, or the end of an epoch, once the others are near.
func (m *mesh) begin(ctx context.Context) error {
	for p := range m.others {
		err := m.await(ctx, p, func() string { return "it is behind" },
			func() bool { return p.left || p.done >= m.step-min(p.depth, int64(m.j.depth)) })
		if err != nil {
			return err
		}
	}
	m.mu.Lock()
	m.step++
	m.mu.Unlock()
	return nil
}

// done says that the step is made.
func (m *mesh) done() { m.tell(nil, sayDone, uint64(m.step)) }

// collected tells the samples of a window of source i.
func (m *mesh) collected(i int, epoch, pass uint64, lane int, window, samples int64, skipped []int64) {
	nums := []uint64{epoch, pass, uint64(i), uint64(lane), uint64(window), uint64(samples)}
	for _, n := range skipped {
		nums = append(nums, uint64(n))
	}
	m.tell(nil, sayCount, nums...)
}

// count waits for the samples of a window of source i, and what was skipped in it.
func (m *mesh) count(ctx context.Context, i int, epoch, pass uint64, lane int, window int64) (n int64, skipped []int64, err error) {
	var ok bool
	p := m.peers[m.j.Nodes.owner(m.j.lane0[i]+lane)]
	err = m.await(ctx, p, func() string {
		return fmt.Sprintf("lane %d, window %d of source %q", lane, window, m.j.Sources[i].Name)
	}, func() bool {
		n, ok = m.told.Samples(epoch, pass, i, lane, window)
		skipped = m.skips[ledgerKey{epoch, pass, i, lane}][window]
		return ok
	})
	return n, skipped, err
}

// forget drops what is known of epochs before one.
func (m *mesh) forget(before uint64) {
	m.told.Forget(before)
	m.mu.Lock()
	defer m.mu.Unlock()
	for k := range m.skips {
		if k.epoch < before {
			delete(m.skips, k)
		}
	}
}

// parcel waits for the samples of this step that come from a node, so many. The caller releases it.
func (m *mesh) parcel(ctx context.Context, from int, rows int) (*parcel, error) {
	p := m.peers[from]
	err := m.await(ctx, p, func() string { return fmt.Sprintf("its %s of this step", units.Count(rows, "sample")) }, func() bool { return len(p.parcels) > 0 })
	if err != nil {
		return nil, err
	}
	m.mu.Lock()
	x := p.parcels[0]
	p.parcels[0] = nil
	p.parcels = p.parcels[1:]
	m.mu.Unlock()
	if x.step != m.step || x.rows != rows {
		defer x.Release()
		return nil, fault.New(fault.Internal, "node %d sent %d samples of step %d where %d of step %d were due", from, x.rows, x.step, rows, m.step)
	}
	return x, nil
}

// parcelOut sends a parcel, which it takes over.
func (m *mesh) parcelOut(to int, msg Message, samples int) {
	m.mu.Lock()
	m.sent.samples += int64(samples)
	if msg.Record != nil {
		m.sent.bytes += exec.SizeOf(msg.Record)
	} else {
		m.sent.bytes += int64(len(msg.Packed))
	}
	m.mu.Unlock()
	m.send(to, msg)
}

func (m *mesh) stats() NodeStats {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := NodeStats{Sent: m.sent.samples, Received: m.received.samples, SentBytes: m.sent.bytes, ReceivedBytes: m.received.bytes, Waited: m.waited}
	if m.waits != nil {
		s.Waits = m.waits()
	}
	return s
}

// longest makes the lengths of this step those of the longest lists of the nodes that have samples in it.
func (m *mesh) longest(ctx context.Context, mine map[string]int, with []bool) error {
	var names []string
	for name := range mine {
		names = append(names, name)
	}
	slices.Sort(names)
	if with[m.self] {
		nums := []uint64{uint64(m.step)}
		for _, name := range names {
			nums = append(nums, uint64(mine[name]))
		}
		m.tell(nil, sayLengths, nums...)
	}
	for p := range m.others {
		if !with[p.node] {
			continue
		}
		err := m.await(ctx, p, func() string { return "the lengths of its lists of this step" }, func() bool { return len(p.lengths) > 0 })
		if err != nil {
			return err
		}
		m.mu.Lock()
		x := p.lengths[0]
		p.lengths = p.lengths[1:]
		m.mu.Unlock()
		if x.step != m.step || len(x.most) != len(names) {
			return fault.New(fault.Internal, "node %d sent the lengths of %d columns in step %d where %d of step %d were due", p.node, len(x.most), x.step, len(names), m.step)
		}
		for i, name := range names {
			mine[name] = max(mine[name], x.most[i])
		}
	}
	return nil
}

// abandoned is left where no node has a rank that is read; nil: one has.
func (m *mesh) abandoned() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.deserted() {
		return nil
	}
	return m.left()
}

// deserted reports whether no node has a rank that is read; it needs mu.
func (m *mesh) deserted() bool {
	for _, node := range m.j.Nodes.Ranks {
		if p := m.peers[node]; p == nil && !m.resting || p != nil && !p.idle && (!p.left || p.failed) {
			return false
		}
	}
	return true
}

// left is why a node that only feeds others ends when they have left; it needs mu: errLeft, or the failure of one of them.
func (m *mesh) left() error {
	if m.err != nil {
		return m.err
	}
	return errLeft
}

var errLeft = fault.New(fault.WorkerLost, "no node has a rank that is read")

// rest says that the ranks of this node were given up, now or when the others are met.
func (m *mesh) rest() {
	m.mu.Lock()
	tell := m.started && !m.resting
	m.resting = true
	m.mu.Unlock()
	if tell {
		m.tell(nil, sayIdle)
	}
	signal(m.heard)
}
