package exchange

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/internal/fault"
)

// Connect connects this node of a gang with all others, which call it with the same service, a name that no other exchange of the attempt has: a node dials those with higher numbers. addresses[k] is where the
// process of node k listens (gang.Gang.Address); nil: where the members do. It waits until all are there, or ctx ends. After an error nothing is left open.
func Connect(ctx context.Context, g *gang.Gang, service string, addresses []string) (*Exchange, error) {
	self, n := g.Node(), g.Nodes()
	if addresses != nil && len(addresses) != n {
		return nil, fault.New(fault.Invalid, "addresses of %d nodes; the job has %d", len(addresses), n)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	m := &meeting{ctx: ctx, cancel: cancel, self: self, conns: make([]net.Conn, n), missing: self}
	if self > 0 {
		l, err := g.Listen(service)
		if err != nil {
			return nil, err
		}
		m.work.Go(func() { m.accept(l) })
	}
	for k := self + 1; k < n; k++ {
		m.work.Go(func() {
			var c net.Conn
			var err error
			if addresses == nil {
				c, err = g.Dial(ctx, k, service)
			} else {
				c, err = g.DialAt(ctx, k, addresses[k], service)
			}
			if err == nil {
				err = m.hello(c, k)
			}
			if err != nil {
				m.cancel(err)
				return
			}
			m.add(c, k)
		})
	}
	m.work.Wait()
	if ctx.Err() != nil {
		for _, c := range m.conns {
			if c != nil {
				c.Close()
			}
		}
		return nil, fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
	return New(self, m.conns), nil
}

// meeting is the making of connections.
type meeting struct {
	ctx    context.Context
	cancel context.CancelCauseFunc // the first reason counts
	self   int
	work   sync.WaitGroup

	mu      sync.Mutex
	conns   []net.Conn
	missing int // nodes that are to dial
}

// accept takes connections until every lower node has one. One that ends before it was greeted is nothing: whoever dialled tries again.
func (m *meeting) accept(l *gang.Listener) {
	defer l.Close()
	var greeting sync.WaitGroup
	defer greeting.Wait()
	ctx, all := context.WithCancel(m.ctx)
	defer all()
	for {
		c, k, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() == nil {
				m.cancel(err)
			}
			return
		}
		if k >= m.self {
			c.Close()
			continue
		}
		greeting.Go(func() {
			if err := m.hello(c, k); err != nil {
				if code := fault.CodeOf(err); code == fault.Unsupported || code == fault.Invalid {
					m.cancel(err)
				}
				return
			}
			if m.add(c, k) == 0 {
				all()
			}
		})
	}
}

// add notes a connection, and says how many are to come by being dialled. A node that dials again has given up the one before.
func (m *meeting) add(c net.Conn, k int) (missing int) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if old := m.conns[k]; old != nil {
		old.Close()
	} else if k < m.self {
		m.missing--
	}
	m.conns[k] = c
	return m.missing
}

const (
	// version is that of frames.
	version   = 1
	helloSize = 32
	// helloTime is how long a hello may take, once there is a connection.
	helloTime = 10 * time.Second
)

// hello is what each side says first: what it speaks, how many nodes it knows, its number and whom it takes the other for.
func hello(nodes, self, peer int) []byte {
	b := append(make([]byte, 0, helloSize), "penstock exchg\r\n"...)
	for _, n := range []int{version, nodes, self, peer} {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	return b
}

// hello greets node k, and closes the connection where that is not it.
func (m *meeting) hello(c net.Conn, k int) (err error) {
	stop := context.AfterFunc(m.ctx, func() { c.Close() })
	defer func() {
		if !stop() && err == nil {
			err = context.Cause(m.ctx)
		}
		if err != nil {
			c.Close()
		}
	}()
	c.SetDeadline(time.Now().Add(helloTime))
	mine, want := hello(len(m.conns), m.self, k), hello(len(m.conns), k, m.self)
	var got [helloSize]byte
	if _, err = c.Write(mine); err == nil {
		_, err = io.ReadFull(c, got[:])
	}
	if err != nil {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return fault.New(fault.Unavailable, "node %d ended the connection before it was greeted: %w", k, err)
		}
		return fault.New(fault.Unavailable, "node %d does not greet: %w", k, err)
	}
	if string(got[:16]) != string(want[:16]) {
		return fault.New(fault.Unsupported, "node %d is no exchange: use one release on all nodes", k)
	}
	if v := binary.LittleEndian.Uint32(got[16:]); v != version {
		return fault.New(fault.Unsupported, "node %d exchanges by version %d, this one by %d: use one release on all nodes", k, v, version)
	}
	if got != [helloSize]byte(want) {
		return fault.New(fault.Invalid, "node %d is not of the same job: it has other numbers of nodes", k)
	}
	return c.SetDeadline(time.Time{})
}
