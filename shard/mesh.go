package shard

import (
	"cmp"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard/internal/lanes"
	"github.com/penstock-data/penstock/shard/internal/order"
)

// mesh is what a job says to other nodes and hears from them. All nodes do the same arithmetic: the order and the dealing
// of steps. What must travel for it is
//
//	hello    once, at the beginning: the job, compared by everyone
//	count    the samples of a window, from the node that reads its lane to all, where they do not follow from metadata
//	parcel   the samples of a step that are dealt to ranks of another node: one message per step and pair of nodes
//	lengths  the longest lists of a step, where lists are padded to the same length for all ranks
//	done     that a step is made
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
	left    bool // it said bye
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

const (
	sayHello = iota + 1
	sayCount
	sayDone
	sayParcel
	sayLengths
	sayFailed
	sayBye
)

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

// start connects the job: it returns when all nodes have begun the same one.
func (m *mesh) start(ctx context.Context, at *snap) error {
	m.mu.Lock()
	m.started, m.told, m.skips = true, newLedger(m.j), map[ledgerKey]map[int64][]int64{}
	m.mu.Unlock()
	mine := m.j.hello(at)
	text, err := json.Marshal(mine)
	if err != nil {
		return fault.New(fault.Internal, "%w", err)
	}
	for p := range m.others {
		m.work.Go(func() { m.listen(p) })
		m.out.Go(func() { m.deliver(p) })
	}
	m.tell(text, sayHello, uint64(m.j.depth))
	for p := range m.others {
		err := m.await(ctx, p, func() string { return "to begin" }, func() bool { return p.hello != nil })
		if err == nil {
			err = differs(p.node, mine, p.hello)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// close says bye and waits until all was sent, if the others take it, at most for a while.
func (m *mesh) close() {
	m.mu.Lock()
	started := m.started && !m.closed
	m.closed = true
	m.mu.Unlock()
	if started {
		m.tell(nil, sayBye)
		for p := range m.others {
			close(p.more)
		}
		stop := time.AfterFunc(farewell, m.cancel)
		m.out.Wait()
		stop.Stop()
	}
	m.cancel()
	m.work.Wait()
	for p := range m.others {
		for _, x := range p.parcels {
			x.Release()
		}
		p.parcels = nil
	}
	m.memory.Close()
}

// farewell is how long what was said is delivered after a job has ended.
const farewell = 5 * time.Second

// say makes the head of a message.
func say(what int, nums ...uint64) []byte {
	b := []byte{byte(what)}
	for _, n := range nums {
		b = binary.AppendUvarint(b, n)
	}
	return b
}

// tell sends a few numbers and a text to all.
func (m *mesh) tell(text []byte, what int, nums ...uint64) {
	head := append(say(what, nums...), text...)
	for p := range m.others {
		m.send(p.node, Message{Head: head})
	}
}

// send queues a message, which it takes over.
func (m *mesh) send(to int, msg Message) {
	p := m.peers[to]
	m.mu.Lock()
	defer m.mu.Unlock()
	if p.left || p.lost != nil || !m.started || m.closed && msg.Head[0] != sayBye {
		msg.Release()
		return
	}
	p.queue = append(p.queue, msg)
	if !m.closed {
		signal(p.more)
	}
}

// deliver sends what is queued for a node.
func (m *mesh) deliver(p *peer) {
	for open := true; open; {
		_, open = <-p.more
		m.mu.Lock()
		for len(p.queue) > 0 {
			msg := p.queue[0]
			p.queue[0] = Message{}
			p.queue = p.queue[1:]
			drop := p.lost != nil || p.left || msg.Head[0] == sayParcel && m.closed && m.err != nil
			m.mu.Unlock()
			var err error
			if drop {
				msg.Release()
			} else {
				err = m.x.Send(p.ctx, p.node, msg)
			}
			m.mu.Lock()
			if err != nil && p.lost == nil {
				p.lost = err // Receive fails, too, and says more
			}
		}
		m.mu.Unlock()
	}
}

// listen takes in what a node says, until it has left or is lost. After a failure what comes is dropped.
func (m *mesh) listen(p *peer) {
	defer p.cancel()
	for failed := false; ; {
		msg, err := m.receive(p)
		if err != nil {
			if m.ctx.Err() == nil {
				m.end(err)
			}
			return
		}
		left := len(msg.Head) == 1 && msg.Head[0] == sayBye
		if failed {
			msg.Release()
		} else if err = m.take(p, &msg); err != nil {
			failed = true
			m.end(err)
		}
		if left {
			return
		}
	}
}

func (m *mesh) receive(p *peer) (msg Message, err error) {
	defer func() {
		if x := recover(); x != nil {
			f, ok := x.(*fault.Error) // the allocator's
			if !ok {
				panic(x)
			}
			err = f
		}
	}()
	if msg, err = m.x.Receive(m.ctx, p.node, m.memory); err != nil {
		m.mu.Lock()
		when := ""
		if p.hello == nil {
			when = " before it began"
		}
		m.mu.Unlock()
		err = fault.New(fault.WorkerLost, "node %d is lost%s: %w; go on from the last state, on the nodes that there are", p.node, when, err)
	}
	return msg, err
}

// end fails the job because of another node, unless it is at its end here.
func (m *mesh) end(err error) {
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return
	}
	if m.err == nil {
		m.err = err
	}
	m.mu.Unlock()
	signal(m.heard)
	m.j.fail(err)
}

// fail tells the others, once, why this node's job has failed.
func (m *mesh) fail(err error) {
	var gone goneError
	if errors.As(err, &gone) || errors.Is(err, errClosed) {
		return
	}
	m.mu.Lock()
	if m.failed {
		m.mu.Unlock()
		return
	}
	m.failed = true
	if m.err == nil {
		m.err = err
	}
	m.mu.Unlock()
	code := fault.CodeOf(err)
	if code == fault.Canceled {
		code = fault.WorkerLost
	}
	m.tell([]byte(code.String()+" "+err.Error()), sayFailed)
}

// take takes over a message.
func (m *mesh) take(p *peer, msg *Message) error {
	defer msg.Release()
	damaged := func() error {
		return fault.New(fault.Corrupt, "node %d sent what is no message: is another release of this program running there?", p.node)
	}
	if len(msg.Head) == 0 {
		return damaged()
	}
	r := header{b: msg.Head[1:]}
	m.mu.Lock()
	defer m.mu.Unlock()
	defer signal(m.heard)
	p.last = time.Now()
	switch msg.Head[0] {
	case sayHello:
		depth := r.next()
		var h [][2]string
		if r.bad || p.hello != nil || json.Unmarshal(r.b, &h) != nil || h == nil {
			return damaged()
		}
		p.hello, p.depth = h, int64(min(depth, 1<<30))
	case sayCount:
		epoch, pass, source, lane, window, samples := r.next(), r.next(), r.next(), r.next(), r.next(), r.next()
		j := m.j
		if r.bad || source >= uint64(len(j.Sources)) || lane >= uint64(j.Sources[source].Layout.shape.Lanes) || window > maxCount || samples > maxCount ||
			j.Nodes.owner(j.lane0[source]+int(lane)) != p.node {
			return damaged()
		}
		if len(r.b) > 0 {
			k := ledgerKey{epoch, pass, int(source), int(lane)}
			if m.skips[k] == nil {
				m.skips[k] = map[int64][]int64{}
			}
			var skipped []int64
			for len(r.b) > 0 {
				skipped = append(skipped, int64(r.next()))
			}
			m.skips[k][int64(window)] = skipped
		}
		m.told.add(epoch, pass, int(source), int(lane), int64(window), int64(samples))
	case sayDone:
		p.done = int64(r.next())
	case sayParcel:
		x, err := m.j.unpack(&r, msg)
		if err != nil {
			return fault.New(fault.CodeOf(err), "node %d: %w", p.node, err)
		}
		p.parcels = append(p.parcels, x)
		m.received.samples += int64(x.rows)
		m.received.bytes += x.size()
	case sayLengths:
		x := lengths{step: int64(r.next())}
		for len(r.b) > 0 && !r.bad {
			x.most = append(x.most, int(r.next()))
		}
		p.lengths = append(p.lengths, x)
	case sayFailed:
		code, text, _ := strings.Cut(string(r.b), " ")
		m.failed = true // they all know
		return fault.New(fault.ParseCode(code), "node %d failed: %s", p.node, text)
	case sayBye:
		p.left = true
	default:
		return damaged()
	}
	if r.bad {
		return damaged()
	}
	return nil
}

// header reads numbers and texts from the head of a message.
type header struct {
	b   []byte
	bad bool
}

func (r *header) next() uint64 {
	v, n := binary.Uvarint(r.b)
	if n <= 0 {
		r.bad, r.b = true, nil
		return 0
	}
	r.b = r.b[n:]
	return v
}

func (r *header) text() string {
	n := r.next()
	if n > uint64(len(r.b)) {
		r.bad, r.b = true, nil
		return ""
	}
	s := string(r.b[:n])
	r.b = r.b[n:]
	return s
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
		case p.left && (m.j.iters[0].rank != feeder || m.deserted()):
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

func (e goneError) Unwrap() error { return e.error }

func (m *mesh) leftError(p *peer, what string) error {
	return goneError{fault.New(fault.WorkerLost, "node %d closed its iterators after %s; this one still needs %s: read as far on all nodes, and go on from a state", p.node, some(int(p.done), "step"), what)}
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
	err := m.await(ctx, p, func() string { return fmt.Sprintf("its %s of this step", some(rows, "sample")) }, func() bool { return len(p.parcels) > 0 })
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

// abandoned reports whether all nodes with ranks have left.
func (m *mesh) abandoned() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.deserted()
}

// deserted is abandoned; it needs mu.
func (m *mesh) deserted() bool {
	for _, node := range m.j.Nodes.Ranks {
		if p := m.peers[node]; p == nil || !p.left {
			return false
		}
	}
	return true
}

// left is why a node that only feeds others ends when they have left.
func (m *mesh) left() error {
	return fault.New(fault.WorkerLost, "all nodes with ranks have closed their iterators")
}

// hello is all that must be the same on all nodes, in words.
func (j *job) hello(at *snap) [][2]string {
	n := j.Nodes
	h := [][2]string{
		{"version of the exchange", "1"}, {"order version", fmt.Sprint(order.Version)},
		{"plan", j.Plan}, {"data", j.Data}, {"seed", fmt.Sprint(j.Exec.Seed)}, {"schema", j.Schema.String()}, {"form of batches", fmt.Sprintf("%+v", j.Form)},
		{"lineage", fmt.Sprint(j.Lineage)}, {"ranks", fmt.Sprint(j.Job.Ranks)}, {"global batch", fmt.Sprint(j.global)}, {"tail", string(j.Tail)},
		{"steps per epoch", fmt.Sprint(j.StepsPerEpoch)}, {"epochs", fmt.Sprintf("%d from %d", j.Epochs, j.Exec.Epoch)}, {"endless", fmt.Sprint(j.Endless)},
		{"nodes", fmt.Sprint(n.Exchange.Nodes())}, {"nodes of ranks", fmt.Sprint(n.Ranks)}, {"nodes of lanes", fmt.Sprint(n.Lanes)},
		{"place", fmt.Sprintf("epoch %d, step %d, sample %d", at.epoch, at.step, at.sample)}, {"length of the epoch", fmt.Sprint(at.length)},
		{"weights", fmt.Sprint(at.weights)}, {"positions", fmt.Sprint(at.sources)},
	}
	for i := range j.Sources {
		s := &j.Sources[i]
		h = append(h, [2]string{"source " + s.Name, fmt.Sprintf("%s, %d lanes, windows of %d, limit %d, rows kept %v, repeats %v",
			s.Layout.Mode, s.Layout.shape.Lanes, s.Layout.shape.Window, s.Limit, s.KeepsRows, s.Repeat)})
	}
	return append(h, [2]string{"stop", fmt.Sprint("all ", j.StopAll)})
}

// differs names what another node's job has otherwise.
func differs(node int, mine, theirs [][2]string) error {
	short := func(s string) string {
		if len(s) > 80 {
			s = s[:77] + "..."
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
			return fault.New(fault.Invalid, "node %d does not run the same job: %s is %q there, %q here", node, cmp.Or(a[0], b[0]), short(b[1]), short(a[1]))
		}
	}
	return nil
}
