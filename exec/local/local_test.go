package local_test

import (
	"context"
	"errors"
	"fmt"
	"github.com/penstock-data/penstock/internal/fault"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// collect runs g and returns its ids; it checks that all memory comes back.
func collect(t *testing.T, g *exec.Graph, o *exec.Options) ([]int64, exec.Stats, error) {
	t.Helper()
	var opt exec.Options
	if o != nil {
		opt = *o
	}
	if opt.Budget == nil {
		limit := opt.Memory
		if limit == 0 {
			limit = 64 << 20
		}
		opt.Budget = exec.NewBudget(limit)
		defer opt.Budget.Close()
	}
	s, err := local.New(nil).Run(t.Context(), g, &opt)
	if err != nil {
		t.Fatal(err)
	}
	var ids []int64
	for {
		b, e := s.Next(t.Context())
		if e != nil {
			if e != io.EOF {
				err = e
			}
			break
		}
		ids = append(ids, exectest.Ids(b.Batch)...)
		b.Release()
	}
	if e := s.Close(); e != nil {
		t.Errorf("Close: %v", e)
	}
	checkEmpty(t, opt.Budget)
	return ids, s.Stats(), err
}

func checkEmpty(t *testing.T, b *exec.Budget) {
	t.Helper()
	if b.Used() != 0 || b.Allocated() != 0 || b.Leased() != 0 {
		t.Errorf("%d bytes charged, %d allocated, %d leased after the end: %s", b.Used(), b.Allocated(), b.Leased(), b.Holders())
	}
}

func count(n int) []int64 {
	ids := make([]int64, n)
	for i := range ids {
		ids[i] = int64(i)
	}
	return ids
}

func TestOrdered(t *testing.T) {
	for _, cpus := range []int{1, 4} {
		ids, st, err := collect(t, exectest.Scan(exectest.NewTable(20, 1000), exectest.Pass(), exectest.Halves()), &exec.Options{CPUs: cpus, BatchRows: 100})
		if err != nil || !slices.Equal(ids, count(20000)) {
			t.Fatalf("cpus %d: %d rows, %v", cpus, len(ids), err)
		}
		if st.RowsIn != 20000 || st.RowsOut != 20000 || st.Splits != 20 || st.SplitsDone != 20 {
			t.Errorf("stats %+v", st)
		}
	}
}

func TestCanceled(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	s, err := local.New(nil).Run(ctx, exectest.Scan(exectest.NewTable(5, 100)), nil)
	if err != nil {
		t.Fatal(err)
	}
	why := errors.New("enough")
	cancel(why)
	for err == nil {
		var b *exec.Block
		if b, err = s.Next(t.Context()); b != nil {
			b.Release()
		}
	}
	if !errors.Is(err, why) {
		t.Errorf("got %v", err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}

func TestPrunedSplits(t *testing.T) {
	tb := exectest.NewTable(6, 10)
	g := exectest.Scan(tb)
	g.Root.Scan.Keep = []bool{true, false, false, true, false, true}
	ids, st, err := collect(t, g, nil)
	if want := slices.Concat(count(10), count(40)[30:], count(60)[50:]); err != nil || !slices.Equal(ids, want) {
		t.Errorf("%v %v", ids, err)
	}
	if o := tb.Opens(); !slices.Equal(o, []int{1, 0, 0, 1, 0, 1}) || st.SplitsDone != 6 {
		t.Errorf("opened %v, %d done", o, st.SplitsDone)
	}
}

// TestBottleneck names who the others wait for.
func TestBottleneck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, st, err := collect(t, exectest.Scan(exectest.NewTable(8, 100), exectest.Pass(), exectest.Slow(time.Second), exectest.Pass()), &exec.Options{CPUs: 2})
		if err != nil || st.Bottleneck != "slow" || st.Ops[2].Busy != time.Duration(st.Ops[2].Batches)*time.Second {
			t.Errorf("%q %v: %+v", st.Bottleneck, err, st.Ops)
		}
		// What waits for the slow step is the consumer, all the time: nothing else takes any here.
		if last := st.Ops[len(st.Ops)-1]; last.Name != "consumer" || last.WaitIn < 4*time.Second || last.WaitIn != st.Elapsed || last.Busy != 0 {
			t.Errorf("in %v: %+v", st.Elapsed, last)
		}
		s, err := local.New(nil).Run(t.Context(), exectest.Scan(exectest.NewTable(8, 1000)), &exec.Options{CPUs: 2, Memory: 32 << 10, BatchRows: 10})
		if err != nil {
			t.Fatal(err)
		}
		for {
			b, err := s.Next(t.Context())
			if err != nil {
				break
			}
			time.Sleep(time.Second)
			b.Release()
		}
		s.Close()
		st = s.Stats()
		if last := st.Ops[len(st.Ops)-1]; st.Bottleneck != "consumer" || last.Busy < 799*time.Second || last.WaitIn > time.Second {
			t.Errorf("%q: %+v", st.Bottleneck, st.Ops)
		}
	})
}

// Tasks go on ahead of one that does not get on: as many as all other CPUs have for long, where the budget has room for them.
func TestAheadOfASlowTask(t *testing.T) {
	for _, c := range []struct {
		cpus   int
		memory int64
		want   int64
	}{{8, 1 << 30, 256}, {8, 512 << 20, 128}, {8, 128 << 20, 64}, {16, 1 << 30, 256}, {16, 4 << 30, 512}, {16, 128 << 20, 128}} {
		synctest.Test(t, func(t *testing.T) {
			var begun atomic.Int64
			release := make(chan struct{})
			b := exec.NewBudget(c.memory)
			s, err := local.New(nil).Run(t.Context(), exectest.Scan(exectest.NewTable(1000, 1), exectest.Count(&begun, new(atomic.Int64)), exectest.Block(func(id int64) bool { return id == 0 }, release)), &exec.Options{CPUs: c.cpus, Budget: b})
			if err != nil {
				t.Fatal(err)
			}
			drained := make(chan error)
			go func() {
				for {
					blk, err := s.Next(t.Context())
					if err != nil {
						drained <- err
						return
					}
					blk.Release()
				}
			}()
			synctest.Wait()
			if n := begun.Load(); n != c.want {
				t.Errorf("%d CPUs, %d MiB: %d tasks have begun, want %d", c.cpus, c.memory>>20, n, c.want)
			}
			close(release)
			err = <-drained
			if cerr := s.Close(); err != io.EOF || cerr != nil || begun.Load() != 1000 {
				t.Errorf("%v, %v after %d tasks", err, cerr, begun.Load())
			}
			checkEmpty(t, b)
			b.Close()
		})
	}
}

// TestCancelNow: a cancel ends the run at once, wherever its tasks are.
func TestCancelNow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, op := range []exec.Operator{exectest.Slow(time.Hour), exectest.Block(func(int64) bool { return true }, nil), exectest.Inflate(1000, false)} {
			ctx, cancel := context.WithCancel(t.Context())
			b := exec.NewBudget(1 << 20)
			s, err := local.New(nil).Run(ctx, exectest.Scan(exectest.NewTable(8, 1000), op), &exec.Options{CPUs: 4, Budget: b})
			if err != nil {
				t.Fatal(err)
			}
			time.AfterFunc(time.Minute, cancel)
			start := time.Now()
			for err == nil {
				var blk *exec.Block
				if blk, err = s.Next(t.Context()); blk != nil {
					blk.Release()
					if time.Since(start) == 0 {
						time.Sleep(time.Minute) // others wait for memory meanwhile
					}
				}
			}
			if d := time.Since(start); d != time.Minute || fault.CodeOf(err) != fault.Canceled && err != io.EOF {
				t.Errorf("%s: %v after %v", op.Name(), err, d)
			}
			if err := s.Close(); err != nil || time.Since(start) != time.Minute {
				t.Errorf("%s: Close: %v after %v", op.Name(), err, time.Since(start))
			}
			checkEmpty(t, b)
			b.Close()
		}
	})
}

// Close waits for the ends of steps, as of large child processes, longer than for calls that do not obey, but not without end.
func TestSlowEnd(t *testing.T) {
	for takes, want := range map[time.Duration]string{5 * time.Second: "", time.Minute: "the end of a step"} {
		synctest.Test(t, func(t *testing.T) {
			op := exectest.Pass()
			op.OnClose = func() error { time.Sleep(takes); return nil }
			s, err := local.New(nil).Run(t.Context(), exectest.Scan(exectest.NewTable(1, 10), op), &exec.Options{CPUs: 1})
			if err != nil {
				t.Fatal(err)
			}
			for err == nil {
				var b *exec.Block
				if b, err = s.Next(t.Context()); b != nil {
					b.Release()
				}
			}
			if err != io.EOF {
				t.Fatal(err)
			}
			if err := s.Close(); want == "" && err != nil || want != "" && (fault.CodeOf(err) != fault.Stalled || !strings.Contains(err.Error(), want)) {
				t.Errorf("an end that takes %v: %v", takes, err)
			}
			time.Sleep(takes) // of the bubble: everything ends
		})
	}
}

// With Spans the consumer can tell, for every task, which rows it covered and when it is through.
func TestSpans(t *testing.T) {
	for _, cpus := range []int{1, 3} {
		tb := exectest.NewTable(5, 100)
		tb.Rows[2] = 0
		g := exectest.Scan(tb, exectest.Halves())
		g.Root.Scan.Keep = []bool{true, false, true, true, true}
		s, err := local.New(nil).Run(t.Context(), g, &exec.Options{CPUs: cpus, BatchRows: 30, Spans: true})
		if err != nil {
			t.Fatal(err)
		}
		var ended []int
		next := int64(0)
		for {
			b, err := s.Next(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if b.Row != next || b.Origin.Split != fmt.Sprintf("mem#%d", b.Origin.Task) {
				t.Errorf("block at row %d of %s, task %d; want row %d", b.Row, b.Origin.Split, b.Origin.Task, next)
			}
			next += b.Span
			if b.End {
				if next != int64(tb.Rows[b.Origin.Task]) {
					t.Errorf("task %d ended at row %d", b.Origin.Task, next)
				}
				ended = append(ended, b.Origin.Task)
				next = 0
			}
			b.Release()
		}
		if !slices.Equal(ended, []int{0, 2, 3, 4}) {
			t.Errorf("ended %v", ended)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}
}
