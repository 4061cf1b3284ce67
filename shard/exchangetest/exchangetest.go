// Package exchangetest has what tests of [shard.Exchange] need: one that connects the nodes of a job within a
// process, and the conformance suite that every transport must pass.
package exchangetest

import (
	"bytes"
	"context"
	"io"
	"slices"
	"sync"

	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/mem"
	"github.com/penstock-data/penstock/shard"
)

// Net connects nodes within a process. As on a wire, what is received is a copy.
type Net struct {
	nodes []*Port
	pipes [][]*pipe // from, to
}

// Port is the exchange of one node of a Net.
type Port struct {
	net  *Net
	node int
	once sync.Once
	done chan struct{} // closed by Close
	dead chan struct{} // closed by Net.Kill
	kill sync.Once
}

// pipe goes one way. It holds at most its room of messages.
type pipe struct{ msgs chan wire }

// wire is a message on its way.
type wire struct{ head, packed, record []byte }

// New connects n nodes; room is how many messages are on their way between two nodes, at least 0, before a Send waits.
func New(n, room int) *Net {
	t := &Net{}
	for i := range n {
		t.nodes = append(t.nodes, &Port{net: t, node: i, done: make(chan struct{}), dead: make(chan struct{})})
		t.pipes = append(t.pipes, nil)
		for range n {
			t.pipes[i] = append(t.pipes[i], &pipe{make(chan wire, room)})
		}
	}
	return t
}

// Node is the exchange of node i. Close it.
func (t *Net) Node(i int) *Port { return t.nodes[i] }

// Kill makes a node vanish: what is on its way to or from it is lost.
func (t *Net) Kill(i int) {
	n := t.nodes[i]
	n.kill.Do(func() { close(n.dead) })
}

// Node implements shard.Exchange.
func (n *Port) Node() int { return n.node }

// Nodes implements shard.Exchange.
func (n *Port) Nodes() int { return len(n.net.nodes) }

// Close says that nothing more is sent or received. What was sent can still be received. Idempotent.
func (n *Port) Close() error {
	n.once.Do(func() { close(n.done) })
	return nil
}

var errKilled = fault.New(fault.Unavailable, "the connection is broken")

// Send implements shard.Exchange.
func (n *Port) Send(ctx context.Context, to int, m shard.Message) error {
	defer m.Release()
	w := wire{head: slices.Clone(m.Head), packed: slices.Clone(m.Packed)}
	if m.Packed != nil && w.packed == nil {
		w.packed = []byte{}
	}
	if m.Record != nil {
		var b bytes.Buffer
		out := ipc.NewWriter(&b, ipc.WithSchema(m.Record.Schema()), ipc.WithAllocator(mem.Zeroed{Allocator: memory.DefaultAllocator}))
		if err := out.Write(m.Record); err != nil {
			return err
		}
		if err := out.Close(); err != nil {
			return err
		}
		w.record = b.Bytes()
	}
	other := n.net.nodes[to]
	for _, c := range []chan struct{}{n.done, n.dead, other.done, other.dead} {
		select {
		case <-c:
			return errKilled
		default:
		}
	}
	select {
	case n.net.pipes[n.node][to].msgs <- w:
		return nil
	case <-n.done:
	case <-n.dead:
	case <-other.done:
	case <-other.dead:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return errKilled
}

// Receive implements shard.Exchange.
func (n *Port) Receive(ctx context.Context, from int, alloc memory.Allocator) (shard.Message, error) {
	other, p := n.net.nodes[from], n.net.pipes[from][n.node]
	for _, c := range []chan struct{}{n.done, n.dead, other.dead} {
		select {
		case <-c:
			return shard.Message{}, errKilled
		default:
		}
	}
	select {
	case w := <-p.msgs:
		return w.message(alloc)
	case <-other.done:
		select { // it was sent before
		case w := <-p.msgs:
			return w.message(alloc)
		default:
			return shard.Message{}, io.EOF
		}
	case <-n.done:
	case <-n.dead:
	case <-other.dead:
	case <-ctx.Done():
		return shard.Message{}, context.Cause(ctx)
	}
	return shard.Message{}, errKilled
}

// message is what came, in memory of alloc.
func (w *wire) message(alloc memory.Allocator) (m shard.Message, err error) {
	m.Head = w.head
	if w.packed != nil {
		buf := memory.NewResizableBuffer(alloc)
		buf.Resize(len(w.packed))
		copy(buf.Bytes(), w.packed)
		m.Packed, m.Free = buf.Bytes(), buf.Release
	}
	if w.record != nil {
		rd, err := ipc.NewReader(bytes.NewReader(w.record), ipc.WithAllocator(alloc))
		if err != nil {
			return m, err
		}
		defer rd.Release()
		rec, err := rd.Read()
		if err != nil {
			return m, err
		}
		rec.Retain()
		m.Record = rec
	}
	return m, nil
}
