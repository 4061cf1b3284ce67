package trainer

import (
	"maps"
	"net"
	"slices"
	"sync"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/internal/group"
	"github.com/penstock-data/penstock/trainer/internal/wire"
)

// peer is the connection of a worker.
type peer struct {
	conn    net.Conn
	writing sync.Mutex
	once    sync.Once
	gone    chan struct{}
	heard   chan struct{} // closed when all that it said was heard
	ear     *wire.Ear     // nil: its hand has one
}

func newPeer(conn net.Conn) *peer {
	return &peer{conn: conn, gone: make(chan struct{}), heard: make(chan struct{})}
}

// say sends a line. A worker asks for one at a time, so that there is room for it; one that does not read all the same is told nothing more. What it says still counts.
func (p *peer) say(m wire.ToWorker) {
	b, err := wire.Append(nil, m)
	if err == nil {
		p.writing.Lock()
		p.conn.SetWriteDeadline(time.Now().Add(time.Second))
		_, err = p.conn.Write(b)
		p.writing.Unlock()
	}
	if err == nil {
		return
	}
	if c, ok := p.conn.(interface{ CloseWrite() error }); ok {
		_ = c.CloseWrite() // of one that is gone
	} else {
		p.close()
	}
}

func (p *peer) close() {
	p.once.Do(func() {
		close(p.gone)
		p.conn.Close()
	})
}

// accept takes the connections of workers.
func (c *controller) accept() {
	for {
		conn, err := c.listener.AcceptUnix()
		if err != nil {
			select {
			case <-c.over:
				return
			case <-time.After(50 * time.Millisecond): // out of descriptors
				continue
			}
		}
		c.others.Go(func() { c.take(conn, c.node) })
	}
}

// take talks with a worker of a node, until one of both hangs up.
func (c *controller) take(conn net.Conn, node int) {
	c.connsMu.Lock()
	over := c.conns == nil
	if !over {
		c.conns[conn] = true
	}
	c.connsMu.Unlock()
	if over {
		conn.Close()
		return
	}
	c.serve(conn, node)
	c.connsMu.Lock()
	delete(c.conns, conn)
	c.connsMu.Unlock()
}

// hangUp closes all connections, and those that come.
func (c *controller) hangUp() {
	c.connsMu.Lock()
	defer c.connsMu.Unlock()
	for conn := range c.conns {
		conn.Close()
	}
	c.conns = nil
}

// serve talks with a worker.
func (c *controller) serve(conn net.Conn, node int) {
	p := newPeer(conn)
	defer p.close()
	defer close(p.heard)
	conn.SetReadDeadline(time.Now().Add(helloTime))
	var r interface {
		FromWorker() (wire.ToController, error)
	} = wire.NewReader(conn)
	if c, ok := conn.(*net.UnixConn); ok { // else its hand has an ear
		ear := wire.NewEar(c)
		defer ear.Close()
		r, p.ear = ear, ear
	}
	m, err := r.FromWorker()
	var at *attempt
	rank := 0
	if err == nil {
		at, rank, err = c.admit(m.Hello, p, node)
	}
	if err != nil {
		pid := 0
		if m.Hello != nil {
			pid = m.Hello.PID
		}
		c.refuse(err, refusedID{node, pid})
		if b, aerr := wire.Append(nil, wire.ToWorker{Refused: wire.FromError(err)}); aerr == nil {
			conn.SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = conn.Write(b) // who does not listen need not know
		}
		return
	}
	conn.SetReadDeadline(time.Time{})
	for {
		m, err := r.FromWorker()
		if err != nil {
			// The end of a worker is seen by its exit. What it says that makes no sense is its end.
			if code := fault.CodeOf(err); code == fault.Invalid || code == fault.Unsupported || code == fault.Corrupt && !p.closed() {
				c.event(at, group.Event{Kind: group.Done, Rank: rank, Err: c.ofRank(rank, err)})
			}
			return
		}
		c.hear(at, rank, p, m)
	}
}

// refusedID is a process that was not let in; pid is 0 where it did not say it.
type refusedID struct{ node, pid int }

// refuse notes that a process was not let in. One of another run, or of an attempt that is over, is nobody of this one's; who hangs up is no worker either.
func (c *controller) refuse(err error, who refusedID) {
	if code := fault.CodeOf(err); code == fault.Canceled || code == fault.Unknown {
		return
	}
	c.post(func() {
		if c.a != nil && c.a.refused == nil {
			c.a.refused, c.a.stranger = err, who
		}
	})
}

func (p *peer) closed() bool {
	select {
	case <-p.gone:
		return true
	default:
		return false
	}
}

// admit takes a worker in.
func (c *controller) admit(h *wire.Hello, p *peer, node int) (at *attempt, rank int, err error) {
	done := make(chan struct{})
	c.post(func() {
		defer close(done)
		at = c.a
		switch {
		case h == nil:
			err = fault.New(fault.Invalid, "a worker says hello first")
		case h.Version != wire.Version:
			err = fault.New(fault.Unsupported, "the worker (%s) speaks version %d of the protocol, the controller version %d: use one release for both", h.Client, h.Version, wire.Version)
		case at == nil || h.Run != c.cfg.Name || h.Attempt != at.number:
			err = fault.New(fault.Canceled, "attempt %d of run %q is over", h.Attempt, h.Run)
		case h.Rank < 0 || h.Rank >= len(at.peers):
			err = fault.New(fault.Invalid, "there is no rank %d in a group of %d", h.Rank, len(at.peers))
		case h.Rank/c.cfg.perNode() != node:
			err = fault.New(fault.Invalid, "rank %d is on node %d of the job, not on node %d", h.Rank, h.Rank/c.cfg.perNode(), node)
		case at.peers[h.Rank] != nil:
			err = fault.New(fault.Exists, "rank %d is connected already, by another process: one process per rank reports", h.Rank)
		default:
			rank = h.Rank
			at.peers[rank] = p
			w := at.welcome
			w.Rank, w.LocalRank, w.Node, w.Data = rank, rank%c.cfg.perNode(), node, at.data[node]
			if n := c.nodeOf(rank); n == nil {
				w.Devices, w.Peers = c.visible(w.LocalRank), peersDir(c.sockets.path, at.number)
			} else {
				if w.Peers = peersDir(n.sockets, at.number); n.devices != nil {
					w.Devices = n.devices[w.LocalRank]
				}
			}
			p.say(wire.ToWorker{Welcome: &w})
			c.step(group.Event{Kind: group.Hello, Attempt: at.number, Rank: rank})
		}
	})
	select {
	case <-done:
		return at, rank, err
	case <-c.over:
		return nil, 0, fault.New(fault.Canceled, "%w", errEnded)
	}
}

// nodeOf is the node of a rank where that has a hand; nil: it is this one.
func (c *controller) nodeOf(rank int) *node {
	if k := rank / c.cfg.perNode(); k != c.node {
		return c.nodes.all[k]
	}
	return nil
}

// tell says something to a rank of the current attempt.
func (c *controller) tell(rank int, m wire.ToWorker) {
	if p := c.a.peers[rank]; p != nil {
		p.say(m)
	}
}

// event gives the state machine what happened in an attempt.
func (c *controller) event(at *attempt, e group.Event) {
	e.Attempt = at.number
	c.post(func() { c.step(e) })
}

// hear takes what a worker says.
func (c *controller) hear(at *attempt, rank int, p *peer, m wire.ToController) {
	switch {
	case m.Report != nil:
		c.report(at, rank, m.Report)
	case m.Alive != nil:
		c.event(at, group.Event{Kind: group.Alive, Rank: rank, Step: m.Alive.Step})
	case m.Done != nil:
		e := group.Event{Kind: group.Done, Rank: rank}
		if err := m.Done.Error.Err(); err != nil {
			e.Err = c.ofRank(rank, err)
		}
		c.event(at, e)
	case m.Meet != nil:
		c.post(func() { c.meets(at, rank, p, m.Meet) })
	case m.Restore != nil:
		c.event(at, group.Event{Kind: group.Restoring, Rank: rank})
		c.others.Go(func() {
			dir, err := at.restore[rank/c.cfg.perNode()]()
			p.say(wire.ToWorker{Restored: &wire.Restored{Dir: dir, Error: wire.FromError(err)}})
			c.event(at, group.Event{Kind: group.Restored, Rank: rank})
		})
	}
}

// report takes a rank's report.
func (c *controller) report(at *attempt, rank int, r *wire.Report) {
	e := group.Event{Kind: group.Report, Rank: rank, N: r.N, Attempt: at.number}
	for _, name := range slices.Sorted(maps.Keys(r.Data)) {
		p := r.Data[name]
		e.Sets = append(e.Sets, group.Set{Name: name, Key: string(p.State), Epoch: p.Epoch, Step: p.Step}) // ranks of a group write equal states with equal bytes
		e.Step = max(e.Step, p.Step)
	}
	if r.Dir != "" {
		if c.nodeOf(rank) == nil {
			e.Err = c.checkDir(r.Dir)
		} else {
			e.Err = r.Error.Err() // its hand has looked
		}
		if e.Files = e.Err == nil; !e.Files {
			r.Dir = ""
		}
	}
	if now := time.Now().UnixNano(); r.At <= 0 || r.At > now {
		r.At = now
	}
	c.post(func() {
		if c.a != at {
			return
		}
		if e.Files {
			c.want(at, r.N)
		}
		all := at.reports[r.N]
		if all == nil {
			all = make([]*wire.Report, len(at.peers))
			at.reports[r.N] = all
		}
		all[rank] = r
		c.step(e)
	})
}

// want has report n of every rank heard as soon as it is made: one that gave files waits for it.
func (c *controller) want(at *attempt, n int64) {
	if n <= at.wanted {
		return
	}
	at.wanted = n
	for _, p := range at.peers {
		if p != nil && p.ear != nil {
			p.ear.Want(n)
		}
	}
	for _, k := range c.nodes.others() {
		c.others.Go(func() { _ = k.line.send(wire.ToHand{Want: &wire.HandWant{Report: n}}) }) // one that is lost is heard of
	}
}
