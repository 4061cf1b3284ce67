package local_test

import (
	"context"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
)

// slowTable's readers take a while for each batch.
type slowTable struct {
	*exectest.Table
	each time.Duration
}

type slowReader struct {
	driver.Reader
	each time.Duration
}

func (t slowTable) Open(ctx context.Context, i int, o *driver.ScanOptions) (driver.Reader, error) {
	r, err := t.Table.Open(ctx, i, o)
	return slowReader{r, t.each}, err
}

func (r slowReader) Next(ctx context.Context) (driver.Batch, error) {
	select {
	case <-time.After(r.each):
	case <-ctx.Done():
		return driver.Batch{}, context.Cause(ctx)
	}
	return r.Reader.Next(ctx)
}

// drained is how many rows a stream gives, and why it ended, if not at its end. between is called between its blocks.
func drained(s exec.Stream, between func(blocks int)) (n int, err error) {
	for i := 0; ; i++ {
		b, err := s.Next(context.Background())
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return n, err
		}
		n += int(b.Batch.NumRows())
		b.Release()
		between(i)
	}
}

// TestLongSplit: a split may take as long as it takes, where none of its batches takes too long; and the time is the reader's.
func TestLongSplit(t *testing.T) {
	for name, ops := range map[string][]exec.Operator{"alone": nil, "before a step": {exectest.Pass()}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tb := slowTable{exectest.NewTable(1, 100), 20 * time.Second}
				g := exectest.Scan(tb.Table, ops...)
				g.Root.Scan.Table = tb
				s, err := local.New(nil).Run(t.Context(), g, &exec.Options{BatchRows: 10})
				if err != nil {
					t.Fatal(err)
				}
				n, err := drained(s, func(int) {})
				if st := s.Stats(); n != 100 || err != nil || st.Retries != 0 || st.Ops[0].Busy < 200*time.Second {
					t.Errorf("%d rows, %d retries, busy reading for %v: %v", n, st.Retries, st.Ops[0].Busy, err)
				}
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestHungRead: a read that hangs is made again, whichever batch of a split it is for.
func TestHungRead(t *testing.T) {
	for _, batch := range []int{0, 1} {
		synctest.Test(t, func(t *testing.T) {
			tb := exectest.NewTable(1, 100)
			tb.Faults = []exectest.Fault{{Split: 0, Batch: batch, Kind: exectest.Hang, Times: 1}}
			s, err := local.New(nil).Run(t.Context(), exectest.Scan(tb, exectest.Pass()), &exec.Options{BatchRows: 10})
			if err != nil {
				t.Fatal(err)
			}
			n, err := drained(s, func(int) {})
			if st := s.Stats(); n != 100 || err != nil || st.Retries != 1 {
				t.Errorf("batch %d: %d rows, %d retries: %v", batch, n, st.Retries, err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestWaitForMemoryIsNoCall: a reader that waits for memory, as a consumer that pauses keeps it, does not take too long.
func TestWaitForMemoryIsNoCall(t *testing.T) {
	for _, pause := range []time.Duration{119 * time.Second, 3 * time.Minute, 15 * time.Minute} {
		synctest.Test(t, func(t *testing.T) {
			b := exec.NewBudget(1 << 20)
			defer b.Close()
			tb := exectest.NewTable(8, 100)
			tb.Width = func(int) int { return 1000 }
			slow := slowTable{tb, 5 * time.Second} // a call that has waited goes on for a while
			g := exectest.Scan(tb)
			g.Root.Scan.Table = slow
			s, err := local.New(nil).Run(t.Context(), g, &exec.Options{CPUs: 4, BatchRows: 10, Budget: b})
			if err != nil {
				t.Fatal(err)
			}
			held := b.Charge("what the consumer keeps", 1<<20)
			n, err := drained(s, func(blocks int) {
				if blocks == 0 {
					time.Sleep(pause)
					held.Release()
				}
			})
			if st := s.Stats(); n != 800 || err != nil || st.Retries != 0 {
				t.Errorf("pause %v: %d rows, %d retries: %v", pause, n, st.Retries, err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}

// done is what a worker's task on tb comes to.
func done(t *testing.T, tb *exectest.Table, emit func(*exec.Block, int64) error, then func()) error {
	t.Helper()
	w, err := local.New(nil).Worker(context.Background(), exectest.Scan(tb), nil, &exec.Options{Memory: 16 << 20}, local.Settings{BatchRows: 10, BatchBytes: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	j, err := w.Prepare(&local.Task{ID: 1, Part: -1, To: -1, Attempt: 1}, emit)
	if err != nil {
		t.Fatal(err)
	}
	_, err = w.Do(context.Background(), j)
	then()
	if e := w.Close(); e != nil {
		t.Error(e)
	}
	return err
}

// TestLeaderLetsWait: a task that waits until its leader takes a block does not take too long.
func TestLeaderLetsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		err := done(t, exectest.NewTable(1, 100), func(b *exec.Block, _ int64) error {
			time.Sleep(10 * time.Minute)
			b.Release()
			return nil
		}, func() {})
		if err != nil {
			t.Error(err)
		}
	})
}

// TestStuckOnANode: of a task that is stuck its leader hears what it is stuck at, and that it can be done again.
func TestStuckOnANode(t *testing.T) {
	for range 20 { // two timers that end at the same time
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			tb := exectest.NewTable(1, 100)
			tb.Faults = []exectest.Fault{{Split: 0, Batch: 0, Kind: exectest.Stuck, Times: 1, Release: release}}
			err := done(t, tb, func(b *exec.Block, _ int64) error { b.Release(); return nil }, func() { close(release) })
			if fault.CodeOf(err) != fault.Unavailable || fault.PlaceOf(err).File == "" {
				t.Errorf("code %v, at %v: %v", fault.CodeOf(err), fault.PlaceOf(err), err)
			}
		})
	}
}
