package local_test

import (
	"context"
	"io"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/internal/fault"
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

// swarm is nodes that take their time, want less and more, give tasks back, and die and come back.
type swarm struct {
	w *local.Worker

	mu    sync.Mutex
	r     *rand.Rand
	nodes []*bee
	busy  int
	most  int // at once, on all nodes
	lost  int // tasks at work on a node that died
	moved int // tasks given back
}

type bee struct {
	s     *swarm
	watch local.Watcher
	room  int
	life  int
}

func (b *bee) CPUs() int             { return 1 }
func (b *bee) Urge(uint64, bool)     {}
func (b *bee) Watch(w local.Watcher) { b.watch = w }

func (b *bee) Room() int {
	b.s.mu.Lock()
	defer b.s.mu.Unlock()
	return b.room
}

// turn has the node want n tasks.
func (b *bee) turn(n int) {
	b.s.mu.Lock()
	b.room = n
	b.s.mu.Unlock()
	b.watch.RoomChanged()
}

func (b *bee) Do(ctx context.Context, t *local.Task, h *local.Hand) (*local.Result, error) {
	s := b.s
	s.mu.Lock()
	life, dice, takes := b.life, s.r.IntN(1000), time.Duration(s.r.IntN(20))*time.Millisecond
	down := b.room == 0 || dice == 1 // or it wants no more just now
	s.busy++
	s.most = max(s.most, s.busy)
	s.mu.Unlock()
	defer func() {
		s.mu.Lock()
		s.busy--
		s.mu.Unlock()
	}()
	if down {
		s.mu.Lock()
		s.moved++
		s.mu.Unlock()
		return nil, local.ErrMoved
	}
	switch {
	case dice == 0 && t.Attempt == 1: // it dies
		s.mu.Lock()
		b.life++
		s.lost++
		s.mu.Unlock()
		b.turn(0)
		time.AfterFunc(time.Second, func() { b.turn(2) })
		return nil, fault.New(fault.WorkerLost, "the node is lost")
	case dice < 20:
		b.turn(1 + dice%4)
	}
	time.Sleep(takes) // of the bubble
	s.mu.Lock()
	dead := b.life != life
	if dead && t.Attempt == 1 {
		s.lost++
	}
	s.mu.Unlock()
	if dead && t.Attempt == 1 {
		return nil, fault.New(fault.WorkerLost, "the node is lost")
	}
	job, err := s.w.Prepare(t, func(b *exec.Block, read int64) error { return h.Emit(b) })
	if err != nil {
		return nil, err
	}
	return s.w.Do(ctx, job)
}

// cpu is what this process has computed.
func cpu(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestManyNodes: a plan over many nodes that come and go gives each row once and in order. With PENSTOCK_SOAK=1 it is a million splits on a thousand nodes, within a minute of CPU time.
func TestManyNodes(t *testing.T) {
	nodes, splits := 50, 20_000
	if os.Getenv("PENSTOCK_SOAK") != "" {
		nodes, splits = 1000, 1_000_000
		defer debug.SetGCPercent(debug.SetGCPercent(800)) // a small heap of short lives
	}
	seed := rand.Uint64()
	began := cpu(t)
	synctest.Test(t, func(t *testing.T) {
		s := &swarm{r: rand.New(rand.NewPCG(seed, 0))}
		var all []local.Node
		for range nodes {
			b := &bee{s: s, room: 2}
			s.nodes = append(s.nodes, b)
			all = append(all, b)
		}
		tb := exectest.NewTable(splits, 1)
		g := exectest.Scan(tb, exectest.Slow(5*time.Millisecond))
		o := &exec.Options{CPUs: 2, Memory: 1 << 30}
		set, _, err := local.SettingsOf(o)
		if err != nil {
			t.Fatal(err)
		}
		if s.w, err = local.New(nil).Worker(t.Context(), g, nil, o, set); err != nil {
			t.Fatal(err)
		}
		st, err := local.New(&local.Options{Nodes: all}).Run(t.Context(), g, o)
		if err != nil {
			t.Fatal(err)
		}
		next := int64(0)
		for {
			b, err := st.Next(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			for _, id := range exectest.Ids(b.Batch) {
				if id != next {
					t.Fatalf("seed %d: row %d, want %d", seed, id, next)
				}
				next++
			}
			b.Release()
		}
		if err := st.Close(); err != nil || next != int64(splits) {
			t.Errorf("seed %d: %d of %d rows, %v", seed, next, splits, err)
		}
		if err := s.w.Close(); err != nil {
			t.Error(err)
		}
		if n := tb.Readers(); n != 0 {
			t.Errorf("%d readers are open", n)
		}
		if s.lost == 0 || s.moved == 0 || s.most < nodes {
			t.Errorf("seed %d: %d tasks lost, %d moved, %d at once on %d nodes", seed, s.lost, s.moved, s.most, nodes)
		}
		t.Logf("%d tasks lost with their node, %d given back, %d at once", s.lost, s.moved, s.most)
		time.Sleep(2 * time.Second) // nodes that come back
	})
	took := cpu(t) - began
	t.Logf("%d splits on %d nodes: %v of CPU time", splits, nodes, took.Round(time.Millisecond))
	if most := time.Minute; took > most {
		t.Errorf("it took %v of CPU time, more than %v", took, most)
	}
}
