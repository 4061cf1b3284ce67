package rpc

import (
	"container/list"
	"crypto/x509"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-data/penstock/cluster/internal/pki"
	"github.com/penstock-data/penstock/internal/fault"
)

// conns are the TCP connections of a server. Those that have not proved who calls, strangers, have
// a share for each network that they come from; where there is no room for another, the oldest of
// them go, after a second in which whoever can prove something does. Nodes and people keep theirs,
// each up to a share: so neither strangers, nor one node or token, keep others out.
type conns struct {
	max, perNetwork int
	now             func() time.Time
	mu              sync.Mutex
	strangers       *list.List            // of *tcpConn, the oldest first
	from            map[string]*list.List // the same by network
	known           map[string]int        // by who calls
	open            map[*tcpConn]struct{} // all
}

const (
	// grace is how long a stranger's connection is not closed for another.
	grace = time.Second
	// perNode is the most connections of a node: one, and those that broke and were not missed yet.
	perNode = 16
	// leastPerToken is the least share that an access token has; it is an eighth of all.
	leastPerToken = 8
)

func newConns(most, perNetwork int, now func() time.Time) *conns {
	return &conns{max: most, perNetwork: perNetwork, now: now, strangers: list.New(), from: map[string]*list.List{}, known: map[string]int{}, open: map[*tcpConn]struct{}{}}
}

// add takes up a connection; nil: there is no room.
func (s *conns) add(raw *net.TCPConn, unproved time.Duration) *tcpConn {
	c := &tcpConn{TCPConn: raw, all: s, network: network(hostOf(raw.RemoteAddr()))}
	s.mu.Lock()
	defer s.mu.Unlock()
	for {
		of := s.from[c.network]
		crowd := of // that c would be one too many of
		if of == nil || of.Len() < s.perNetwork {
			crowd = s.strangers
			if len(s.open) < s.max {
				break
			}
		}
		oldest := crowd.Front()
		if oldest == nil || s.now().Sub(oldest.Value.(*tcpConn).since) < grace {
			return nil
		}
		x := oldest.Value.(*tcpConn)
		s.drop(x)
		x.TCPConn.Close()
	}
	s.open[c] = struct{}{}
	c.since = s.now()
	of := s.from[c.network]
	if of == nil {
		of = list.New()
		s.from[c.network] = of
	}
	c.inAll, c.inNetwork = s.strangers.PushBack(c), of.PushBack(c)
	c.unproved = time.AfterFunc(unproved, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		if c.inAll != nil {
			s.drop(c)
			c.TCPConn.Close()
		}
	})
	return c
}

// drop gives the place of a connection back. Under mu.
func (s *conns) drop(c *tcpConn) {
	c.closed = true
	c.unproved.Stop()
	s.forget(c)
	delete(s.open, c)
	if c.who != "" {
		if s.known[c.who]--; s.known[c.who] == 0 {
			delete(s.known, c.who)
		}
	}
}

// forget takes a connection out of the strangers. Under mu.
func (s *conns) forget(c *tcpConn) {
	if c.inAll == nil {
		return
	}
	s.strangers.Remove(c.inAll)
	of := s.from[c.network]
	if of.Remove(c.inNetwork); of.Len() == 0 {
		delete(s.from, c.network)
	}
	c.inAll, c.inNetwork = nil, nil
}

// proved: the caller is known, by a name, as one of most: the connection may stay. Only the first
// one counts.
func (c *tcpConn) proved(who string, most int) error {
	s := c.all
	s.mu.Lock()
	defer s.mu.Unlock()
	if c.inAll == nil { // it is known already, or closed
		return nil
	}
	if s.known[who] >= most {
		return fault.New(fault.Exhausted, "%s has %d connections open, as many as it may have: close some", who, most)
	}
	c.unproved.Stop()
	s.forget(c)
	s.known[who]++
	c.who = who
	return nil
}

// provedNode and provedToken say who calls.
func (c *tcpConn) provedNode(id string) error { return c.proved("node "+id, perNode) }
func (c *tcpConn) provedToken(id string) error {
	return c.proved("access token "+id, max(c.all.max/8, leastPerToken))
}

// Close closes the connection, once. Idempotent.
func (c *tcpConn) Close() error {
	s := c.all
	s.mu.Lock()
	if !c.closed {
		s.drop(c)
	}
	s.mu.Unlock()
	return c.TCPConn.Close()
}

// tcpConn is a connection over the network.
type tcpConn struct {
	*net.TCPConn
	all     *conns
	network string
	since   time.Time
	shown   atomic.Pointer[x509.Certificate] // a node's; nil: none yet

	// under all.mu
	inAll, inNetwork *list.Element // nil: it is no stranger's
	unproved         *time.Timer
	who              string
	closed           bool
}

// believed says that the other side showed no certificate of an authority that is believed no more.
func (c *tcpConn) believed(ca *pki.CA) bool {
	shown := c.shown.Load()
	if shown == nil {
		return true
	}
	_, ok := ca.IssuerOf(shown)
	return ok
}

// cut closes those whose certificate is of an authority that is believed no more.
func (s *conns) cut(ca *pki.CA) {
	s.mu.Lock()
	var gone []*tcpConn
	for c := range s.open {
		if !c.believed(ca) {
			gone = append(gone, c)
		}
	}
	s.mu.Unlock()
	for _, c := range gone {
		c.Close()
	}
}
