package local_test

import (
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
)

// late is a node that sends the task of split 1 only when everything waits for it.
type late struct {
	entered chan struct{} // Do of split 1
	urged   chan struct{}
	once    sync.Once

	mu    sync.Mutex
	split map[uint64]int // of tasks
	sent  bool           // what Urgent said
}

func (n *late) CPUs() int           { return 2 }
func (n *late) Room() int           { return 4 }
func (n *late) Watch(local.Watcher) {}

func (n *late) Urge(id uint64, on bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if split, ok := n.split[id]; ok && split == 1 && on {
		n.once.Do(func() { close(n.urged) })
	}
}

func (n *late) Do(ctx context.Context, t *local.Task, h *local.Hand) (*local.Result, error) {
	n.mu.Lock()
	n.split[t.ID] = t.Split
	n.mu.Unlock()
	await := func(c chan struct{}) {
		select {
		case <-c:
		case <-ctx.Done():
		}
	}
	switch t.Split {
	case 0:
		await(n.entered)
	case 1:
		if h.Urgent() {
			panic("split 0 is the head")
		}
		close(n.entered)
		await(n.urged)
		n.mu.Lock()
		n.sent = h.Urgent()
		n.mu.Unlock()
	}
	return &local.Result{}, nil
}

// TestUrgedBeforeSent: a task for which everything waits before it was sent to its node is sent as one: what was said before, the node did not understand.
func TestUrgedBeforeSent(t *testing.T) {
	n := &late{entered: make(chan struct{}), urged: make(chan struct{}), split: map[uint64]int{}}
	s, err := local.New(&local.Options{Nodes: []local.Node{n}}).Run(t.Context(), exectest.Scan(exectest.NewTable(2, 10)), &exec.Options{CPUs: 1, StallTimeout: 20 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if b, err := s.Next(t.Context()); err != io.EOF {
		t.Errorf("%v, %v", b, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	if !n.sent {
		t.Error("the task is sent as one that is not urgent")
	}
}
