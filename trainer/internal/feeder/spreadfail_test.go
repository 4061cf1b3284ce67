package feeder

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/cluster/gang/gangtest"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
)

// A data process that is killed is the failure, by its node, also where another node says first that it is gone; then all go on with the same batches, the other with what it knows.
func TestNodesKilled(t *testing.T) {
	var log logged
	fs, processes := machines(t, 2, &log)
	want, states := alone(t, 4, 10)
	s := over(t, fs, 4)
	s.start(nil)
	for k, p := range processes {
		all := s.dial("train")
		step(t, all)
		if err := p.current().cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		err := <-s.failed
		if text := fmt.Sprintf("node %d: the data process ended: signal killed", k); !errors.Is(err, ErrDied) || fault.CodeOf(err) != fault.WorkerLost || !strings.HasPrefix(err.Error(), text) {
			t.Errorf("%v (%v), want %s", err, fault.CodeOf(err), text)
		}
		if err := s.Notice(t.Context()); !errors.Is(err, ErrDied) {
			t.Errorf("notice: %v", err)
		}
		s.stop()
		s.start(map[string]At{"train": {State: states[4]}})
		all = s.dial("train")
		for i := 5; i < 8; i++ {
			if d, _ := step(t, all); d != want[i] {
				t.Fatalf("step %d is %s, want %s", i, d, want[i])
			}
			if all[0].Noticed() {
				t.Error("noticed")
			}
		}
		s.stop()
		s.start(nil)
	}
	if n := log.count("a warning"); n != 4 {
		t.Errorf("%d processes were started, want two and one for each that was killed", n)
	}
}

// dies is a data process that is killed once it has said where it listens.
type dies struct{ *process }

func (d dies) Listen(ctx context.Context) (string, error) {
	a, err := d.process.Listen(ctx)
	d.current().kill()
	return a, err
}

// One that dies between the two is a data process that has died, and the next start has another.
func TestNodesDiedListening(t *testing.T) {
	fs, processes := machines(t, 2, nil)
	s := over(t, []Feeder{dies{processes[0]}, fs[1]}, 4)
	_, _, err := s.Start(t.Context(), 4, nil)
	if !errors.Is(err, ErrDied) || fault.CodeOf(err) != fault.WorkerLost || !strings.HasPrefix(err.Error(), "node 0: the data process ended: signal killed") {
		t.Fatalf("%v (%v)", err, fault.CodeOf(err))
	}
	want, _ := alone(t, 4, 2)
	s = over(t, fs, 4)
	s.start(nil)
	if d, _ := step(t, s.dial("train")); d != want[0] {
		t.Errorf("step 0 is %s, want %s", d, want[0])
	}
}

// A consumer that is lost is the failure of its node; what the others lose by that is none.
func TestNodesConsumerLost(t *testing.T) {
	for k := range 2 {
		s := over(t, locals(t, 2, func(int) []Set { return sets() }), 2)
		s.start(nil)
		lost := consumer(t, s.sockets[k]["train"], k)
		read := reader(t, s.sockets[1-k]["train"], 1-k)
		for range 3 {
			b, err := read.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			b.Release()
		}
		if err := lost.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		err := <-s.failed
		if want := fmt.Sprintf(`node %d: data set "train": rank %d: its consumer`, k, k); fault.CodeOf(err) != fault.WorkerLost || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// waiting is a set that waits to be opened until its context ends, and says that it does.
func waiting(at chan<- struct{}) Set {
	return Set{Name: "train", Open: func(ctx context.Context, _ int, _ *At, _ *shard.Nodes) ([]*shard.Iterator, error) {
		at <- struct{}{}
		<-ctx.Done()
		return nil, fault.WithCode(fault.Canceled, context.Cause(ctx))
	}}
}

// A node that cannot start ends the start of the others, which wait for it or are open already; its error is what is returned, and another start can follow. So a start ends
// that is stopped, or whose context ends, while nodes wait for each other.
func TestNodesStartEnds(t *testing.T) {
	at := make(chan struct{}, 10)
	bad := fault.New(fault.NotFound, "no such file")
	refuse := Set{Name: "train", Open: func(context.Context, int, *At, *shard.Nodes) ([]*shard.Iterator, error) { return nil, bad }}
	slow := func(node int) []Set {
		if node == 1 {
			return []Set{waiting(at)}
		}
		return sets()[:1]
	}
	for name, c := range map[string]struct {
		sets func(node int) []Set
		end  func(s *Spread, cancel func())
		code fault.Code
		text string
	}{
		"one fails": {sets: func(node int) []Set {
			if node == 1 {
				return []Set{refuse}
			}
			return sets()[:1]
		}, code: fault.NotFound, text: `node 1: data set "train": no such file`},
		"one fails before it meets the others": {sets: func(node int) []Set {
			if node == 1 {
				return append(sets(), sets()...)
			}
			return sets()
		}, code: fault.Invalid, text: "node 1: two data sets"},
		"canceled": {sets: slow, end: func(_ *Spread, cancel func()) { cancel() }, code: fault.Canceled, text: "context canceled"},
		"stopped": {sets: slow, end: func(s *Spread, _ func()) {
			if err := s.Stop(); err != nil {
				t.Error(err)
			}
		}, code: fault.Canceled, text: "context canceled"},
	} {
		t.Run(name, func(t *testing.T) {
			fs := locals(t, 2, c.sets)
			for k := range fs { // over a line, too
				if k == 1 {
					near, far := net.Pipe()
					f := fs[k]
					done := make(chan error, 1)
					go func() { done <- Relay(context.Background(), far, f) }()
					t.Cleanup(func() {
						near.Close()
						if err := <-done; err != nil {
							t.Error(err)
						}
					})
					fs[k] = Remote(near)
				}
			}
			s := over(t, fs, 2)
			for range 2 {
				ctx, cancel := context.WithCancel(t.Context())
				var ends sync.WaitGroup
				if c.end != nil {
					ends.Go(func() {
						<-at
						c.end(s.Spread, cancel)
					})
				}
				_, _, err := s.Start(ctx, 2, nil)
				if fault.CodeOf(err) != c.code || !strings.Contains(fmt.Sprint(err), c.text) {
					t.Errorf("%v (%v), want %v with %q", err, fault.CodeOf(err), c.code, c.text)
				}
				ends.Wait()
				cancel()
			}
		})
	}
}

// Stop ends an evaluation set that waits for the others to open it again.
func TestNodesStopReopening(t *testing.T) {
	s := over(t, locals(t, 2, func(int) []Set { return sets() }), 2)
	s.start(nil)
	val := s.dial("val")
	step(t, val)
	val[0].Close() // the other keeps it
	s.stop()
	s.start(nil)
	val = s.dial("val")
	step(t, val)
	for _, c := range val {
		c.Close()
	}
	s.stop()
}

// A process of no gang, and nodes that are not its gang's, are refused.
func TestNodesRefused(t *testing.T) {
	n := &Nodes{Ranks: []int{0, 1}, Addresses: []string{"a", "b"}, Opening: "x"}
	f := Local(folder(t), sets(), nil)
	if _, _, err := f.Start(t.Context(), Start{Ranks: 2, Nodes: n}); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "of no gang") {
		t.Errorf("%v", err)
	}
	g := Local(folder(t), sets(), gangtest.New(t, 3)[0])
	if _, err := g.Listen(t.Context()); err != nil {
		t.Error(err)
	}
	if _, _, err := g.Start(t.Context(), Start{Ranks: 2, Nodes: n}); fault.CodeOf(err) != fault.Internal {
		t.Errorf("%v", err)
	}
	_, _, err := Over([]Feeder{g, f}, []int{0, 1}, nil).Start(t.Context(), 2, nil)
	if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "node 1: what feeds it is of no gang") {
		t.Errorf("%v", err)
	}
	closure := dataset.Range(trainRows).MapBatches(func(_ context.Context, b arrow.RecordBatch) (arrow.RecordBatch, error) {
		b.Retain()
		return b, nil
	}, nil)
	s := over(t, locals(t, 2, func(int) []Set { return []Set{Of("train", closure, trainOptions(), false)} }), 2)
	_, _, err = s.Start(t.Context(), 2, nil)
	if fault.CodeOf(err) != fault.Unsupported || !strings.Contains(err.Error(), "nodes: they cannot know that they run the same plan") || !strings.Contains(err.Error(), "register it") {
		t.Errorf("a closure: %v", err)
	}
}

// What is about another node gives way to what that one says itself, in whatever order they come, and counts where that says nothing.
func TestCause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own, other := errors.New("own"), fmt.Errorf("%w: node 1", shard.ErrElsewhere)
		for i, c := range []struct {
			first, then error
			after, most time.Duration
			node        int
		}{
			{own, other, 0, 0, 1},
			{other, own, causeTime / 2, causeTime / 2, 0},
			{other, nil, 0, causeTime, 1},
			{other, own, 2 * causeTime, causeTime, 1},
			{other, other, causeTime / 2, causeTime, 1},
		} {
			fs := []*fake{{failed: make(chan error, 1)}, {failed: make(chan error, 1)}}
			s := Over([]Feeder{fs[0], fs[1]}, []int{0, 1}, nil)
			_, failed, err := s.Start(t.Context(), 2, nil)
			if err != nil {
				t.Fatal(err)
			}
			begin := time.Now()
			fs[1].failed <- c.first
			synctest.Wait()
			go func() {
				time.Sleep(c.after)
				if c.then != nil {
					fs[0].failed <- c.then
				}
			}()
			err = <-failed
			if want := fmt.Sprintf("node %d: ", c.node); !strings.HasPrefix(err.Error(), want) || time.Since(begin) > c.most {
				t.Errorf("%d: %v after %v, want %s", i, err, time.Since(begin), want)
			}
			time.Sleep(3 * causeTime)
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	})
}
