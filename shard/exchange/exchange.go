// Package exchange carries the messages of a shard job between its nodes ([shard.Exchange]) over one connection per pair: TLS over TCP between the members of a gang ([Connect]), or any others ([New]).
//
// What is sent is in frames (frame.go), rows as they are: packed, or as Arrow IPC whose schema is said once. A connection is one pipe each way: its flow control is all there is, and a message is copied nowhere but into the connection and
// out of it. Nodes that have nothing to say ping, so that one whose machine or cable is gone is lost after [Silence]; one whose process ends is at once.
package exchange

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
)

const (
	// Silence is how long nothing may come from a node before it is lost.
	Silence = 20 * time.Second
	// pingEvery is how often a node that says nothing else says that it lives.
	pingEvery = Silence / 4
	// farewell is how long closing waits for the others to have everything.
	farewell = 5 * time.Second
)

// Exchange is a shard.Exchange. Safe for concurrent use, as that says. Close it.
type Exchange struct {
	self    int
	peers   []*peer // nil where this node is
	work    sync.WaitGroup
	once    sync.Once
	closing chan struct{} // closed by Close
}

var _ shard.Exchange = (*Exchange)(nil)

// New exchanges over connections to the other nodes, which it takes over: conns[k] is to node k; conns[self] is not looked at.
// A connection that ends by the death of the process at its other end must end reads with io.EOF or an error.
func New(self int, conns []net.Conn) *Exchange {
	x := &Exchange{self: self, peers: make([]*peer, len(conns)), closing: make(chan struct{})}
	for k, c := range conns {
		if k == self {
			continue
		}
		p := newPeer(x, k, c)
		x.peers[k] = p
		x.work.Go(p.listen)
		x.work.Go(p.ping)
	}
	return x
}

// Node implements shard.Exchange.
func (x *Exchange) Node() int { return x.self }

// Nodes implements shard.Exchange.
func (x *Exchange) Nodes() int { return len(x.peers) }

var errClosed = fault.New(fault.Canceled, "the exchange with the other nodes is closed")

func (x *Exchange) peer(node int) (*peer, error) {
	if node < 0 || node >= len(x.peers) || node == x.self {
		return nil, fault.New(fault.Invalid, "node %d has no connection to a node %d of %d", x.self, node, len(x.peers))
	}
	return x.peers[node], nil
}

// Send implements shard.Exchange. It returns when the connection has taken all of m. Where ctx ends in the middle of that, the connection is lost.
func (x *Exchange) Send(ctx context.Context, to int, m shard.Message) error {
	defer m.Release()
	p, err := x.peer(to)
	if err != nil {
		return err
	}
	return p.send(ctx, &m)
}

// Receive implements shard.Exchange. Where ctx ends in the middle of a message, the next call goes on with it.
func (x *Exchange) Receive(ctx context.Context, from int, alloc memory.Allocator) (shard.Message, error) {
	p, err := x.peer(from)
	if err != nil {
		return shard.Message{}, err
	}
	return p.receive(ctx, alloc)
}

// Close delivers what was sent and ends the connections. What others send meanwhile is dropped. It waits until they have everything, but not for long: to one that does not read this node is
// lost then, unless the system delivers the rest. Calls that wait end. Idempotent; the error is nil.
func (x *Exchange) Close() error {
	x.once.Do(func() { close(x.closing) })
	var g sync.WaitGroup
	for _, p := range x.peers {
		if p != nil {
			g.Go(p.close)
		}
	}
	g.Wait()
	x.work.Wait()
	return nil
}
