package shard

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// What a message says; the first byte of its head. Numbers follow as varints.
const (
	sayHello = iota + 1
	sayCount
	sayDone
	sayParcel
	sayLengths
	sayFailed
	sayBye
	sayIdle
)

// start connects the job: it returns when all nodes have begun the same one.
func (m *mesh) start(ctx context.Context, at *snap) error {
	m.mu.Lock()
	m.started, m.told, m.skips = true, newLedger(m.j), map[ledgerKey]map[int64][]int64{}
	resting, failed, why := m.resting, m.failed, m.err
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
	if resting {
		m.tell(nil, sayIdle)
	}
	if failed { // before there was anybody to hear it
		m.tellFailed(why)
	}
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
	var failed []uint64 // the word of a failure is on its way to all, perhaps from another node and behind this
	if m.failed {
		failed = []uint64{1}
	}
	m.mu.Unlock()
	if started {
		m.tell(nil, sayBye, failed...)
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

// deliver sends what is queued for a node. A message that cannot be sent fails the job, of which the node hears in place of what would have followed.
func (m *mesh) deliver(p *peer) {
	refused := false
	for open := true; open; {
		_, open = <-p.more
		m.mu.Lock()
		for len(p.queue) > 0 {
			msg := p.queue[0]
			p.queue[0] = Message{}
			p.queue = p.queue[1:]
			drop := p.lost != nil || p.left || msg.Head[0] == sayParcel && m.closed && m.err != nil || refused && msg.Head[0] != sayFailed && msg.Head[0] != sayBye
			m.mu.Unlock()
			var err error
			if drop {
				msg.Release()
			} else {
				err = m.x.Send(p.ctx, p.node, msg)
			}
			if r, ok := errors.AsType[RefusedError](err); ok {
				refused = true
				m.end(fault.New(fault.CodeOf(r.Err), "what node %d is to get from this one: %w", p.node, r.Err))
				err = nil
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
		left := len(msg.Head) > 0 && msg.Head[0] == sayBye
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
		err = elsewhere{fault.New(fault.WorkerLost, "node %d is lost%s: %w; go on from the last state, on the nodes that there are", p.node, when, err)}
	}
	return msg, err
}

// end fails the job because of what another node says or is to hear, unless it is at its end here.
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
	m.tellFailed(err)
}

func (m *mesh) tellFailed(err error) {
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
		return elsewhere{fault.New(fault.ParseCode(code), "node %d failed: %s", p.node, text)}
	case sayIdle:
		p.idle = true
	case sayBye:
		p.left, p.failed = true, len(r.b) > 0 && r.next() == 1
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
