package feed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
)

// group is a data process in this one, and its clients.
type group struct {
	path string
	wait func() error
	its  []*shard.Iterator
	all  []*Client
}

func newGroup(t testing.TB, ctx context.Context, ranks int, so *Options, dial bool) *group {
	t.Helper()
	o := &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 64 * ranks, Shuffle: &shard.Shuffle{Lanes: 2, WindowRows: 1000}}}
	its, err := dataset.Range(200_000).Shards(context.Background(), ranks, o)
	if err != nil {
		t.Fatal(err)
	}
	g := &group{path: socket(t), its: its}
	g.wait = serving(t, ctx, g.path, its, so)
	for r := 0; r < ranks && dial; r++ {
		g.all = append(g.all, dialTest(t, g.path, r, nil))
	}
	return g
}

// step reads a batch on every client at once.
func (g *group) step(t testing.TB, n int) {
	t.Helper()
	for range n {
		var all sync.WaitGroup
		for _, c := range g.all {
			all.Go(func() {
				b, err := c.Next(t.Context())
				if err != nil {
					t.Error(err)
					return
				}
				b.Release()
			})
		}
		all.Wait()
	}
}

// A consumer that is lost ends the group: Serve, and all others, say which.
func TestConsumerLost(t *testing.T) {
	for _, restored := range []bool{false, true} {
		g := newGroup(t, t.Context(), 3, nil, true)
		if restored { // and no more
			must(t, g.all[1].Restore(g.all[1].State()))
		} else {
			// Nothing was asked for: the rank is free again.
			g.all[1].conn.Close()
			g.all[1] = dialTest(t, g.path, 1, nil)
			g.step(t, 3)
		}
		g.all[1].conn.Close() // as the system does for a process that dies
		wantError(t, g.wait(), fault.WorkerLost, "rank 1", "restore the last committed state")
		for _, r := range []int{0, 2} {
			err := drain(t, g.all[r])
			wantError(t, err, fault.WorkerLost, "rank 1", "lost")
			if _, again := g.all[r].Next(t.Context()); again != err {
				t.Errorf("then %v", again)
			}
		}
	}
}

// The end of the data process is an error at once, and State that of the last batch given.
func TestServerGone(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	g := newGroup(t, ctx, 2, nil, true)
	g.step(t, 5)
	cancel(errors.New("told to"))
	wantError(t, g.wait(), fault.Canceled, "told to")
	for _, c := range g.all {
		n := 5
		for {
			b, err := c.Next(t.Context())
			if err != nil {
				wantError(t, err, fault.Unavailable)
				break
			}
			b.Release()
			n++
		}
		if s := c.State(); s.Step != int64(n) || n > 5+aheadMost {
			t.Errorf("%d batches, but the state has step %d", n, s.Step)
		}
	}
	_, err := Dial(t.Context(), g.path, 0, &DialOptions{Wait: -1})
	wantError(t, err, fault.Unavailable, g.path, "no data process")
}

// A rank that is given up holds nobody up; the last one ends Serve.
func TestClose(t *testing.T) {
	g := newGroup(t, t.Context(), 3, nil, true)
	g.step(t, 2)
	g.all[2].Close()
	g.all[2].Close()
	_, err := g.all[2].Next(t.Context())
	wantError(t, err, fault.Invalid, "closed")
	_, err = Dial(t.Context(), g.path, 0, &DialOptions{Wait: -1})
	wantError(t, err, fault.Exists, "rank 0 is taken by process", fmt.Sprint(os.Getpid()))
	g.all = g.all[:2]
	g.step(t, 50)
	_, err = Dial(t.Context(), g.path, 2, nil) // waits until the bye has been read
	wantError(t, err, fault.Invalid, "rank 2 was given up")
	_, err = Dial(t.Context(), g.path, 3, nil)
	wantError(t, err, fault.NotFound, "rank 3 is not served here; have ranks 0, 1, 2")
	g.all[0].Close()
	g.all[1].Close()
	if err := g.wait(); err != nil {
		t.Error(err)
	}
}

// Where the listener is served again, whoever wants a rank that was given up waits for those that still have theirs.
func TestAgain(t *testing.T) {
	path := socket(t)
	l, err := Listen(path)
	must(t, err)
	defer l.Close()
	served := func() chan error {
		its := tensorJob(t, 2, 10, shard.Options{})
		done := make(chan error, 1)
		go func() { done <- Serve(t.Context(), l, its, &Options{Again: true}) }()
		return done
	}
	done := served()
	other := dialTest(t, path, 1, nil)
	must(t, dialTest(t, path, 0, nil).Close())
	for err == nil || strings.Contains(err.Error(), "is taken by") { // until the bye has been read
		_, err = Dial(t.Context(), path, 0, &DialOptions{Wait: -1})
	}
	wantError(t, err, fault.Exists, "rank 0 was given up", "free again")
	var waits sync.WaitGroup
	waits.Go(func() {
		c, err := Dial(t.Context(), path, 0, nil)
		if err != nil {
			t.Error(err)
			return
		}
		c.Close()
	})
	must(t, other.Close())
	must(t, <-done)
	done = served()
	must(t, dialTest(t, path, 1, nil).Close())
	waits.Wait()
	must(t, <-done)
}

// All ranks restore the same state, before the first batch; every deviation is named.
func TestRestore(t *testing.T) {
	g := newGroup(t, t.Context(), 2, nil, true)
	g.step(t, 7)
	at := g.all[0].State()
	wantError(t, g.all[0].Restore(at), fault.Invalid, "has begun")
	g.step(t, 1)
	other := g.all[0].State()
	g.all[0].Close()
	g.all[1].Close()
	if err := g.wait(); err != nil {
		t.Fatal(err)
	}

	g = newGroup(t, t.Context(), 3, nil, true)
	bad := at
	bad.Plan = "0"
	wantError(t, g.all[0].Restore(bad), fault.Invalid, "another plan")
	for i, c := range g.all {
		if err := c.Restore(at); err != nil {
			t.Fatal(err)
		}
		if i == 0 {
			wantError(t, g.all[2].Restore(other), fault.Invalid, "all ranks go on from the same state")
		}
		if !reflect.DeepEqual(c.State(), at) {
			t.Errorf("the state is %+v", c.State())
		}
		if n, ok := c.Len(); n != 7+(200_000-7*128)/192 || !ok { // with another batch size, in this epoch
			t.Errorf("Len is %d, %v", n, ok)
		}
	}
	g.step(t, 1)
	if s := g.all[1].State(); s.Step != 8 || s.Sample != at.Sample+192 {
		t.Errorf("goes on at step %d, sample %d", s.Step, s.Sample)
	}
	for _, c := range g.all {
		c.Close()
	}
	if err := g.wait(); err != nil {
		t.Error(err)
	}

	g = newGroup(t, t.Context(), 2, nil, true)
	if err := g.all[1].Restore(at); err != nil {
		t.Fatal(err)
	}
	go g.all[0].Next(t.Context())
	wantError(t, drain(t, g.all[1]), fault.Invalid, "rank 1 restored a state, rank 0 did not")
	wantError(t, g.wait(), fault.Invalid)
}

// Ranks that do not come are named after a while.
func TestWait(t *testing.T) {
	g := newGroup(t, t.Context(), 3, &Options{Wait: time.Millisecond}, false)
	c := dialTest(t, g.path, 1, nil)
	wantError(t, drain(t, c), fault.Stalled, "ranks 0, 2", "1ms")
	wantError(t, g.wait(), fault.Stalled)
}

// A failure of the job reaches everybody with its code.
func TestJobFails(t *testing.T) {
	its, err := dataset.Range(10_000).MapBatches(func(_ context.Context, rec arrow.RecordBatch) (arrow.RecordBatch, error) {
		if n := int(rec.NumRows()); n > 0 && rec.Column(0).(*array.Int64).Value(n-1) >= 5000 {
			return nil, errors.New("no more than this")
		}
		rec.Retain()
		return rec, nil
	}, nil).Shards(t.Context(), 2,
		&dataset.ShardOptions{Options: shard.Options{GlobalBatch: 100, Shuffle: &shard.Shuffle{Lanes: 1, WindowRows: 1000}}})
	if err != nil {
		t.Fatal(err)
	}
	path := socket(t)
	wait := serving(t, t.Context(), path, its, nil)
	var all sync.WaitGroup
	for r := range 2 {
		c := dialTest(t, path, r, nil)
		all.Go(func() {
			defer c.Close()
			for {
				b, err := c.Next(t.Context())
				if err != nil {
					wantError(t, err, fault.UserCode, "data process", "no more than this")
					return
				}
				b.Release()
			}
		})
	}
	all.Wait()
	wantError(t, wait(), fault.UserCode)
}

// A call that is given up loses nothing.
func TestNextCanceled(t *testing.T) {
	g := newGroup(t, t.Context(), 2, nil, true)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 10 { // rank 1 has not begun
		_, err := g.all[0].Next(ctx)
		wantError(t, err, fault.Canceled)
	}
	for i := range 20 {
		g.step(t, 1)
		if s := g.all[0].State(); s.Step != int64(i+1) {
			t.Fatalf("step %d after %d batches", s.Step, i+1)
		}
	}
	for _, c := range g.all {
		c.Close()
	}
	if err := g.wait(); err != nil {
		t.Error(err)
	}
}
