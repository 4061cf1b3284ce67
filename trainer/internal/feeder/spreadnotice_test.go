package feeder

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/feed"
)

// A notice is seen from the same step on by all ranks of all nodes, whatever their pace, and it is one that nobody had been given. PENSTOCK_SEED=n runs one.
func TestNodesNotice(t *testing.T) {
	base := rand.Uint64()
	n := uint64(12)
	if s := os.Getenv("PENSTOCK_SEED"); s != "" {
		n = 1
		if _, err := fmt.Sscan(s, &base); err != nil {
			t.Fatal(err)
		}
	}
	for seed := base; seed < base+n; seed++ {
		rng := rand.New(rand.NewPCG(seed, 0))
		nodes := 2 + rng.IntN(2)
		ranks := nodes * (1 + rng.IntN(2))
		var fs []Feeder
		if seed%4 == 3 {
			fs, _ = machines(t, nodes, nil)
		} else {
			fs = locals(t, nodes, func(int) []Set { return sets() })
		}
		s := over(t, fs, ranks)
		s.start(nil)
		when, twice := int64(rng.IntN(200)), rng.IntN(2) == 0
		var mu sync.Mutex
		var last feed.Step // the furthest that was given before the notice
		var given int64
		told := make(chan struct{})
		tell := func(at feed.Step) {
			mu.Lock()
			defer mu.Unlock()
			if given <= when && last.Before(at) {
				last = at
			}
			if given == when {
				close(told)
			}
			given++
		}
		tell(feed.Step{})
		from := make([]feed.Step, ranks)
		var all sync.WaitGroup
		all.Go(func() {
			<-told
			for range 1 + map[bool]int{true: 1}[twice] {
				if err := s.Notice(t.Context()); err != nil {
					t.Error(err)
				}
			}
		})
		for r, node := range s.nodeOf {
			rng := rand.New(rand.NewPCG(seed, uint64(r)+1))
			pace, ahead := 1+rng.IntN(3000), rng.IntN(4)
			all.Go(func() {
				c, err := feed.Dial(t.Context(), s.sockets[node]["train"], r, &feed.DialOptions{Prefetch: ahead})
				if err != nil {
					t.Error(err)
					return
				}
				defer c.Close()
				for !c.Noticed() {
					b, err := c.Next(t.Context())
					if err == io.EOF {
						continue
					}
					if err != nil {
						t.Error(err)
						return
					}
					from[r] = feed.Step{Epoch: b.Epoch(), Step: b.Step()}
					b.Release()
					tell(from[r])
					for range rng.IntN(pace) {
						runtime.Gosched()
					}
				}
			})
		}
		all.Wait()
		s.fine()
		for r, f := range from {
			if f != from[0] || when > 0 && f.Before(last) {
				t.Errorf("PENSTOCK_SEED=%d: rank %d of node %d is told at %+v, rank 0 at %+v; %+v was given before, notice after %d batches", seed, r, s.nodeOf[r], f, from[0], last, when)
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}

// fake is a feeder that does as it is told.
type fake struct {
	Feeder
	steps  map[string]feed.Step
	held   func(ctx context.Context) error
	failed chan error
	marks  []map[string]feed.Step
}

func (f *fake) Listen(context.Context) (string, error) { return "here", nil }
func (f *fake) Start(context.Context, Start) (map[string]string, <-chan error, error) {
	return nil, f.failed, nil
}
func (f *fake) Hold(ctx context.Context) (map[string]feed.Step, error) {
	if f.held != nil {
		if err := f.held(ctx); err != nil {
			return nil, err
		}
	}
	return f.steps, nil
}
func (f *fake) Mark(_ context.Context, steps map[string]feed.Step) error {
	f.marks = append(f.marks, steps)
	return nil
}
func (f *fake) Stop() error  { return nil }
func (f *fake) Close() error { return nil }

// The latest step of each set counts. Where one feeder does not hold, or not in time, all are let go, and nobody was told.
func TestNoticeHalves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &fake{steps: map[string]feed.Step{"x": {Epoch: 1, Step: 2}, "y": {Epoch: 0, Step: 9}}}
		b := &fake{steps: map[string]feed.Step{"x": {Epoch: 0, Step: 7}, "y": {Epoch: 0, Step: 10}}}
		c := &fake{}
		s := Over([]Feeder{a, b, c}, []int{0, 1, 2}, nil)
		if err := s.Notice(t.Context()); err != nil {
			t.Error(err)
		}
		for _, f := range []*fake{a, b, c} {
			if len(f.marks) != 1 || len(f.marks[0]) != 2 || f.marks[0]["x"] != (feed.Step{Epoch: 1, Step: 2}) || f.marks[0]["y"] != (feed.Step{Epoch: 0, Step: 10}) {
				t.Errorf("marked %v", f.marks)
			}
			f.marks = nil
		}
		for _, held := range []func(context.Context) error{
			func(context.Context) error { return ErrDied },
			func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
		} {
			b.held = held
			begin := time.Now()
			if err := s.Notice(t.Context()); err == nil || !strings.HasPrefix(err.Error(), "node 1: ") || time.Since(begin) > noticeTime {
				t.Errorf("%v after %v", err, time.Since(begin))
			}
			for _, f := range []*fake{a, b, c} {
				if len(f.marks) != 1 || f.marks[0] != nil {
					t.Errorf("marked %v", f.marks)
				}
				f.marks = nil
			}
		}
	})
}

// The steps of a notice are of training sets only, and a hold ends with a line.
func TestHoldEndsWithTheLine(t *testing.T) {
	f := Local(folder(t), sets(), nil)
	defer f.Close()
	near, far := net.Pipe()
	done := make(chan error, 1)
	go func() { done <- Relay(context.Background(), far, f) }()
	r := Remote(near)
	sockets, _ := start(t, r, 1, nil)
	c := reader(t, sockets["train"], 0)
	step(t, []*feed.Client{c})
	steps, err := r.Hold(t.Context())
	if err != nil || len(steps) != 1 || !slices.Contains(keys(steps), "train") {
		t.Errorf("%v, %v", steps, err)
	}
	near.Close()
	if err := <-done; err != nil {
		t.Error(err)
	}
	for err = nil; err == nil; { // what was sent, and then that nothing is served any more
		var b *shard.Batch
		if b, err = c.Next(t.Context()); err == nil {
			b.Release()
		}
	}
	if fault.CodeOf(err) != fault.Unavailable {
		t.Error(err)
	}
	if _, err := r.Ledger(t.Context(), "train"); !errors.Is(err, ErrDied) || !strings.Contains(err.Error(), "the connection to its machine is lost") {
		t.Errorf("%v", err)
	}
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}
