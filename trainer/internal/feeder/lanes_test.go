package feeder

import (
	"context"
	"sync"
	"testing"

	"github.com/penstock-data/penstock/shard"
)

// Where a node reads for all, the ranks of the others get what they get on one machine, and their nodes read nothing.
func TestLanes(t *testing.T) {
	const ranks, steps = 4, 30
	want, _ := alone(t, ranks, steps)
	var mu sync.Mutex
	opened := map[int]*shard.Iterator{} // of the training set, by node
	fs := locals(t, 3, func(node int) (all []Set) {
		for _, s := range sets() {
			open := s.Open
			s.Open = func(ctx context.Context, ranks int, at *At, nodes *shard.Nodes) ([]*shard.Iterator, error) {
				its, err := open(ctx, ranks, at, nodes)
				if err == nil && !s.Eval {
					mu.Lock()
					opened[node] = its[0]
					mu.Unlock()
				}
				return its, err
			}
			all = append(all, s)
		}
		return all
	})
	s := &spread{t: t, nodeOf: []int{0, 0, 1, 1}}
	s.Spread = Over(fs, s.nodeOf, []int{2})
	defer s.Close()
	s.start(nil)
	all := s.dial("train")
	for i := range steps {
		if d, _ := step(t, all); d != want[i] {
			t.Fatalf("step %d is %s, want %s", i, d, want[i])
		}
	}
	s.fine()
	for node := range fs {
		st := opened[node].Stats()
		if (st.Nodes.Sent > 0) != (node >= 2) || (st.Engine.RowsIn > 0) != (node >= 2) || (st.Nodes.Received > 0) == (node >= 2) {
			t.Errorf("node %d read %d rows, sent %d samples, received %d", node, st.Engine.RowsIn, st.Nodes.Sent, st.Nodes.Received)
		}
	}
	s.stop()
	for node, sockets := range s.sockets {
		if (len(sockets) == 0) != (node >= 2) {
			t.Errorf("node %d serves %v", node, sockets)
		}
	}
}
