package shard

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/units"
	"github.com/penstock-data/penstock/shard/internal/lanes"
)

// Nodes divides a job among processes, called nodes and numbered from 0. Every one opens the same job (plan, data, seed,
// state, options; this field but for Exchange) and gets the iterators of its own ranks. It reads its own lanes only, so
// that over all nodes every row group is fetched once, and gets the samples of others that are dealt to its ranks from
// them. Each rank gets what it would get on one machine, byte for byte.
//
// A node without ranks gets one iterator, of rank -1: while its Next is called the node feeds the others. It never gives a
// batch; it returns io.EOF at the end of each epoch, and for good once all nodes with ranks have closed their iterators. A
// node whose ranks are through before those of others does the same (Iterator.Feed).
//
// Nodes advance together. None begins a step before every other one has made the step that lies Prefetch + 1 before it; one
// that is not read holds up the others, whose watchdog says so (exec.Options.StallTimeout). A node that is lost, fails or
// closes its iterators ends the job of all that need something of it: fault.WorkerLost with the number of the node, or the
// code of its failure. Nothing is recovered: open the job anew, over whatever nodes there are, with the last state.
type Nodes struct {
	// Exchange to the other nodes. It serves one job. Whoever made it closes it, when the iterators are closed.
	Exchange Exchange
	// Ranks is the node of each rank.
	Ranks []int
	// Lanes says where lanes are read: lane v, numbered through all sources, at node Lanes[v mod len(Lanes)]. Nil: where
	// rank v mod ranks is, which gets its samples first, so that few samples travel.
	Lanes []int
}

// ErrElsewhere is in the tree of a failure that is another node's: it failed, is lost, or has closed its iterators. What that node says itself is the cause.
var ErrElsewhere = errors.New("a failure of another node")

// elsewhere is a failure of another node.
type elsewhere struct{ error }

func (e elsewhere) Unwrap() error        { return e.error }
func (e elsewhere) Is(target error) bool { return target == ErrElsewhere }

// Exchange carries messages between the nodes of a job. It is what a transport implements; package
// shard/exchangetest has the tests that each must pass.
//
// Between two nodes messages arrive in the order in which they were sent, each once, whole and unchanged, or the
// connection is lost. Nothing is promised about those of different pairs.
type Exchange interface {
	// Node is the number of this node, from 0, and Nodes how many there are.
	Node() int
	Nodes() int

	// Send takes over m and releases it, also where it fails. It may return before m has arrived. It may wait for a slow
	// connection, but not for more than that: a job receives whatever comes at any time, whatever else it waits for, so a
	// Send comes to its end where the other node lives. Calls with the same node come from one goroutine, others at the
	// same time. It fails when ctx ends, and when the connection is lost or closed: Receive from that node fails then, too. A message that cannot be sent is refused with a RefusedError, and nothing
	// has happened to the connection.
	Send(ctx context.Context, to int, m Message) error

	// Receive waits for the next message from a node. The caller owns it. The memory of its Packed or Record comes from
	// alloc and from nothing that lives on when they are released. Calls with the same node come from one goroutine,
	// others at the same time. It fails, with what is known, when ctx ends, when the node is lost, and for good when it has
	// closed its exchange, after all that it sent before: closing delivers.
	Receive(ctx context.Context, from int, alloc memory.Allocator) (Message, error)
}

// RefusedError is that a message cannot be sent, over whatever connection: it is too large. Nothing of it was sent.
type RefusedError struct{ Err error }

func (e RefusedError) Error() string { return e.Err.Error() }
func (e RefusedError) Unwrap() error { return e.Err }

// Message is what one node says to another: a few bytes, and with them rows in one form or the other, or none.
type Message struct {
	Head   []byte            // not looked into by transports; at most MaxHead
	Packed []byte            // up to the samples of a step; nil: none
	Record arrow.RecordBatch // every column may hold nulls by its schema; nil: none
	Free   func()            // gives Packed back; nil: nothing is to be done
}

// MaxHead bounds Message.Head: beyond it a message is damaged.
const MaxHead = 1 << 28

// Release gives the memory of the rows back. Idempotent.
func (m *Message) Release() {
	if m.Record != nil {
		m.Record.Release()
	}
	if m.Free != nil {
		m.Free()
	}
	*m = Message{}
}

// check refuses what is no division of a job.
func (n *Nodes) check(ranks int) error {
	switch {
	case n.Exchange == nil:
		return fault.New(fault.Invalid, "nodes: no exchange: nothing connects the nodes")
	case n.Exchange.Nodes() < 1 || n.Exchange.Node() < 0 || n.Exchange.Node() >= n.Exchange.Nodes():
		return fault.New(fault.Invalid, "nodes: this one has number %d of %d: numbers count from 0", n.Exchange.Node(), n.Exchange.Nodes())
	case len(n.Ranks) != ranks:
		return fault.New(fault.Invalid, "nodes: Ranks has the nodes of %d ranks, the job has %d", len(n.Ranks), ranks)
	}
	for what, nodes := range map[string][]int{"rank": n.Ranks, "lane": n.Lanes} {
		for i, k := range nodes {
			if k < 0 || k >= n.Exchange.Nodes() {
				return fault.New(fault.Invalid, "nodes: %s %d is at node %d; there are %d, counted from 0", what, i, k, n.Exchange.Nodes())
			}
		}
	}
	return nil
}

// owner is the node that reads a lane.
func (n *Nodes) owner(lane int) int {
	if len(n.Lanes) > 0 {
		return n.Lanes[lane%len(n.Lanes)]
	}
	return n.Ranks[lane%len(n.Ranks)]
}

// here are the ranks of this node.
func (n *Nodes) here() []int {
	ranks := []int{}
	for r, node := range n.Ranks {
		if node == n.Exchange.Node() {
			ranks = append(ranks, r)
		}
	}
	return ranks
}

// feeder is the rank of the iterator of a node without ranks.
const feeder = -1

// feeds reports whether this node gives batches to nobody here.
func (j *job) feeds() bool { return j.iters[0].rank == feeder || j.idle.Load() }

// fed reports whether this node only feeds others, none of which has a rank that is read, nor has failed: its job is at its end.
func (j *job) fed() bool {
	if j.mesh == nil || !j.feeds() || j.mesh.abandoned() != errLeft {
		return false
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, it := range j.iters { // one is open at most
		if !it.closed {
			end := item{at: it.last, eof: true}
			end.at.over = true
			it.queue = append(it.queue, end)
			signal(it.ready)
		}
	}
	return true
}

// elsewhere is how source i, whose first lane is lane0, is divided.
func (j *job) elsewhere(i, lane0 int) *lanes.Elsewhere {
	return &lanes.Elsewhere{
		Own: func(lane int) bool { return j.Nodes.owner(lane0+lane) == j.mesh.self },
		Collected: func(epoch, pass uint64, lane int, window, samples int64, skipped []int64) {
			j.mesh.collected(i, epoch, pass, lane, window, samples, skipped)
		},
		Await: func(ctx context.Context, epoch, pass uint64, lane int, window int64) (int64, []int64, error) {
			return j.mesh.count(ctx, i, epoch, pass, lane, window)
		},
	}
}

// checkNodes completes the options of a job of several nodes.
func (j *job) checkNodes() error {
	n := j.Nodes
	if err := n.check(j.Job.Ranks); err != nil {
		return err
	}
	if n.Exchange.Nodes() == 1 {
		if j.Options.Ranks != nil && len(j.Options.Ranks) == 0 {
			return errNoRank
		}
		return nil
	}
	here := n.here()
	for _, r := range j.Options.Ranks {
		if n.Ranks[r] != n.Exchange.Node() {
			return fault.New(fault.Invalid, "nodes: rank %d is read at node %d, not here, at node %d: leave Options.Ranks out for all ranks of this node", r, n.Ranks[r], n.Exchange.Node())
		}
	}
	if j.Options.Ranks == nil {
		j.Options.Ranks = here
	}
	if len(j.Options.Ranks) == 0 && len(here) > 0 {
		return errNoRank
	}
	if j.Plan == "" {
		return fault.New(fault.Unsupported, "nodes: they cannot know that they run the same plan: %w", j.Unnamed)
	}
	return nil
}

// explainNodes says what this node has.
func (j *job) explainNodes() string {
	if j.mesh == nil {
		return ""
	}
	var b strings.Builder
	n, lanes := j.Nodes, j.lane0[len(j.lane0)-1]+j.Sources[len(j.Sources)-1].Layout.shape.Lanes
	self, own, away := n.Exchange.Node(), 0, 0
	for v := range lanes {
		if n.owner(v) == self {
			own++
			if n.Ranks[v%len(n.Ranks)] != self {
				away++
			}
		}
	}
	here := n.here()
	fmt.Fprintf(&b, "nodes: %d; node %d has %d of %s and reads %d of %s", n.Exchange.Nodes(), self, len(here), units.Count(len(n.Ranks), "rank"), own, units.Count(lanes, "lane"))
	if away > 0 {
		fmt.Fprintf(&b, ", %d of them for ranks of other nodes", away)
	}
	b.WriteByte('\n')
	return b.String()
}
