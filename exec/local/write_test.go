package local_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/internal/fault"
)

func write(t *testing.T, g *exec.Graph, s *exectest.Sink, o exec.Options) (ids []int64, st exec.Stats, err error) {
	t.Helper()
	o.Budget = exec.NewBudget(64 << 20)
	defer o.Budget.Close()
	st, err = local.New(nil).Write(t.Context(), g, s, &o)
	ids, commits, aborts, problems := s.Result()
	for _, p := range problems {
		t.Error(p)
	}
	if err == nil && (commits != 1 || aborts != 0) || err != nil && (commits != 0 || aborts != 1) {
		t.Errorf("%d commits, %d aborts after %v", commits, aborts, err)
	}
	checkEmpty(t, o.Budget)
	return ids, st, err
}

func TestWrite(t *testing.T) {
	for _, c := range []struct {
		name string
		g    func(*exectest.Table) *exec.Graph
	}{
		{"parts", func(tb *exectest.Table) *exec.Graph { return exectest.Scan(tb, exectest.Pass()) }},
		{"one", func(tb *exectest.Table) *exec.Graph {
			return exectest.Graph(exectest.Cut(-1, []*exec.Stage{exectest.ScanStage(0, tb)}, exectest.Pass()))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := &exectest.Sink{PerPart: 3}
			ids, st, err := write(t, c.g(exectest.NewTable(20, 1000)), s, exec.Options{CPUs: 4, BatchRows: 100})
			if err != nil || !slices.Equal(ids, count(20000)) {
				t.Fatalf("%d rows, %v", len(ids), err)
			}
			if st.RowsIn != 20000 || st.RowsOut != 20000 || st.SplitsDone != st.Splits || st.Splits != 20 {
				t.Errorf("stats %+v", st)
			}
			var fails atomic.Int64
			s = &exectest.Sink{PerPart: 3, FailWrite: func(part, attempt int) error {
				if attempt == 1 && fails.Add(1)%7 == 0 {
					return fault.New(fault.Unavailable, "flaky")
				}
				return nil
			}}
			ids, st, err = write(t, c.g(exectest.NewTable(20, 1000)), s, exec.Options{CPUs: 4, BatchRows: 100})
			if err != nil || !slices.Equal(ids, count(20000)) || st.Retries == 0 {
				t.Fatalf("flaky writer: %d rows, %d retries, %v", len(ids), st.Retries, err)
			}
			s = &exectest.Sink{FailPart: func(part, attempt int) error { return fault.New(fault.Invalid, "no") }}
			if _, _, err = write(t, c.g(exectest.NewTable(20, 10)), s, exec.Options{}); fault.CodeOf(err) != fault.Invalid {
				t.Fatalf("got %v", err)
			}
		})
	}
}

func TestWriteDoneParts(t *testing.T) {
	tb := exectest.NewTable(6, 10)
	s := &exectest.Sink{PerPart: 2, Done: []int{1}}
	ids, st, err := write(t, exectest.Scan(tb), s, exec.Options{})
	want := slices.Concat(count(20), count(60)[40:])
	if err != nil || !slices.Equal(ids, want) || st.SplitsDone != 6 {
		t.Fatalf("%v %v %+v", ids, err, st)
	}
	if o := tb.Opens(); !slices.Equal(o, []int{1, 1, 0, 0, 1, 1}) {
		t.Errorf("opened %v", o)
	}
}

// TestWriteUnion: the inputs of a union are written part by part, too, and a part may have splits of two of them.
func TestWriteUnion(t *testing.T) {
	union := func(ops ...exec.Operator) (*exec.Graph, []*exectest.Table) {
		tables := []*exectest.Table{exectest.NewTable(4, 10), exectest.NewTable(0, 0), exectest.NewTable(5, 20)}
		var in []*exec.Stage
		for i, tb := range tables {
			in = append(in, exectest.ScanStage(i, tb, ops...))
		}
		in[2].Scan.Keep = []bool{true, true, false, true, true}
		return exectest.Graph(exectest.Cut(-1, []*exec.Stage{exectest.Cut(-1, in[:2]), in[2]})), tables
	}
	last := slices.Concat(count(40), count(100)[60:])
	for _, c := range []struct {
		done []int
		want []int64
		open [2][]int
	}{
		{nil, slices.Concat(count(40), last), [2][]int{{1, 1, 1, 1}, {1, 1, 0, 1, 1}}},
		{[]int{1}, slices.Concat(count(30), last[40:]), [2][]int{{1, 1, 1, 0}, {0, 0, 0, 1, 1}}},
		{[]int{0, 2}, slices.Concat(count(40)[30:], count(40)), [2][]int{{0, 0, 0, 1}, {1, 1, 0, 0, 0}}},
	} {
		g, tables := union(exectest.Pass())
		ids, st, err := write(t, g, &exectest.Sink{PerPart: 3, Done: c.done}, exec.Options{CPUs: 3, BatchRows: 7})
		if err != nil || !slices.Equal(ids, c.want) || st.Splits != 9 || st.SplitsDone != 9 || st.RowsOut != int64(len(c.want)) {
			t.Errorf("%v done: %v %v %+v", c.done, ids, err, st)
		}
		if a, b := tables[0].Opens(), tables[2].Opens(); !slices.Equal(a, c.open[0]) || !slices.Equal(b, c.open[1]) {
			t.Errorf("%v done: opened %v %v", c.done, a, b)
		}
	}

	g, _ := union(exectest.FailRows(fault.RowError, func(id int64) bool { return id%10 == 7 }))
	var letters []string
	o := exec.Options{CPUs: 3, OnError: exec.OnError{Policy: exec.Skip, MaxRows: 12, MaxRate: 0.1}, DeadLetter: func(_ context.Context, s *exec.Skipped) error {
		letters = append(letters, fmt.Sprintf("%d %d:%d", s.Origin.Source, s.Origin.Index, s.Row))
		return nil
	}}
	ids, st, err := write(t, g, &exectest.Sink{PerPart: 3}, o)
	if err != nil || len(ids) != 120-12 || st.Skipped != 12 ||
		strings.Join(letters, ", ") != "0 0:7, 0 1:7, 0 2:7, 0 3:7, 2 0:7, 2 0:17, 2 1:7, 2 1:17, 2 3:7, 2 3:17, 2 4:7, 2 4:17" {
		t.Errorf("%d rows, %d skipped, %q: %v", len(ids), st.Skipped, letters, err)
	}
	o.OnError.MaxRows = 11
	if _, _, err = write(t, g, &exectest.Sink{PerPart: 3}, o); fault.CodeOf(err) != fault.Exhausted {
		t.Errorf("too many rows: %v", err)
	}
}

// TestWriteUnionInflates: that rows of one input stay small does not say that those of the next do.
func TestWriteUnionInflates(t *testing.T) {
	flat := exectest.ScanStage(0, exectest.NewTable(20, 5000), exectest.Pass())
	grows := exectest.ScanStage(1, exectest.NewTable(4, 5000), exectest.Inflate(1000, false))
	b := exec.NewBudget(16 << 20)
	defer b.Close()
	st, err := local.New(nil).Write(t.Context(), exectest.Graph(exectest.Cut(-1, []*exec.Stage{flat, grows})), &exectest.Sink{PerPart: 3}, &exec.Options{CPUs: 1, Budget: b})
	if err != nil || st.RowsOut != 120_000 {
		t.Fatalf("%d rows: %v", st.RowsOut, err)
	}
	if b.Peak() > b.Limit() {
		t.Errorf("%s were held, more than %s", exec.Bytes(b.Peak()), exec.Bytes(b.Limit()))
	}
	checkEmpty(t, b)
}

// TestWriteUnordered: behind a limit no row waits for those before it.
func TestWriteUnordered(t *testing.T) {
	slow := exectest.Block(func(id int64) bool { return id/10 == 1 }, nil)
	g := exectest.Graph(exectest.Cut(25, []*exec.Stage{exectest.Scan(exectest.NewTable(4, 10), slow).Root}))
	ids, _, err := write(t, g, &exectest.Sink{}, exec.Options{CPUs: 2, Unordered: true})
	if err != nil || len(ids) != 25 || slices.ContainsFunc(ids, func(id int64) bool { return id/10 == 1 }) {
		t.Errorf("%v %v", ids, err)
	}

	tries, letters := 0, 0
	flaky := &exectest.Sink{FailWrite: func(int, int) error {
		if tries++; tries == 2 {
			return fault.New(fault.Unavailable, "flaky")
		}
		return nil
	}}
	g = exectest.Graph(exectest.Cut(25, []*exec.Stage{exectest.Scan(exectest.NewTable(4, 10), exectest.FailRows(fault.RowError, func(id int64) bool { return id%10 == 0 })).Root}))
	_, _, err = write(t, g, flaky, exec.Options{CPUs: 2, Unordered: true, OnError: exec.OnError{Policy: exec.Skip}, DeadLetter: func(context.Context, *exec.Skipped) error {
		letters++
		return nil
	}})
	if fault.CodeOf(err) != fault.Unavailable || tries != 2 || letters == 0 { // another attempt might leave out other rows
		t.Errorf("%d tries, %d letters: %v", tries, letters, err)
	}
}

// TestWriteSkips: dead letters come once and in order, whatever is written again.
func TestWriteSkips(t *testing.T) {
	for _, one := range []bool{false, true} {
		tb := exectest.NewTable(12, 100)
		g := exectest.Scan(tb, exectest.FailRows(fault.RowError, func(id int64) bool { return id%50 == 7 }))
		if one {
			g = exectest.Graph(exectest.Cut(1<<40, []*exec.Stage{g.Root}))
		}
		var letters []int64
		var fails atomic.Int64
		s := &exectest.Sink{PerPart: 3, FailWrite: func(part, attempt int) error {
			if attempt == 1 && fails.Add(1) == 40 {
				return fault.New(fault.Unavailable, "flaky")
			}
			return nil
		}}
		ids, st, err := write(t, g, s, exec.Options{CPUs: 3, BatchRows: 10, OnError: exec.OnError{Policy: exec.Skip, MaxRows: 24, MaxRate: 0.03}, DeadLetter: func(_ context.Context, sk *exec.Skipped) error {
			letters = append(letters, sk.Origin.Index*100+sk.Row)
			return nil
		}})
		var want []int64
		for i := range int64(24) {
			want = append(want, i*50+7)
		}
		if err != nil || len(ids) != 1200-24 || !slices.Equal(letters, want) || st.Skipped != 24 || fails.Load() < 40 {
			t.Errorf("one part %v: %d rows, %d skipped, letters %v: %v", one, len(ids), st.Skipped, letters, err)
		}
		if s.Skipped() < 24 {
			t.Errorf("one part %v: the writers saw %d skipped rows", one, s.Skipped())
		}
	}
}

// TestWriteStuck: a writer that hangs is named; Write returns.
func TestWriteStuck(t *testing.T) {
	for _, one := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			g := exectest.Scan(exectest.NewTable(4, 100))
			if one {
				g = exectest.Graph(exectest.Cut(1<<40, []*exec.Stage{g.Root}))
			}
			release := make(chan struct{})
			s := &exectest.Sink{FailWrite: func(part, attempt int) error {
				<-release
				return nil
			}}
			start := time.Now()
			_, err := local.New(nil).Write(t.Context(), g, s, &exec.Options{CPUs: 2, StallTimeout: time.Minute, Memory: 1 << 20})
			if fault.CodeOf(err) != fault.Stalled || !strings.Contains(err.Error(), "writ") {
				t.Errorf("one part %v: %v", one, err)
			}
			if d := time.Since(start); d > time.Minute+5*time.Second {
				t.Errorf("one part %v: took %v", one, d)
			}
			close(release)
			synctest.Wait()
		})
	}
}

func TestObserve(t *testing.T) {
	for _, one := range []bool{false, true} {
		g := exectest.Scan(exectest.NewTable(4, 100))
		if one {
			g = exectest.Graph(exectest.Cut(1<<40, []*exec.Stage{g.Root}))
		}
		calls := 0
		var stats func() exec.Stats
		_, st, err := write(t, g, &exectest.Sink{}, exec.Options{Observe: func(f func() exec.Stats) { calls, stats = calls+1, f }})
		if err != nil || calls != 1 || stats().RowsOut != 400 || st.RowsOut != 400 {
			t.Errorf("one part %v: %d calls, %v", one, calls, err)
		}
		last := st.Ops[len(st.Ops)-1]
		if last.Name != "write" || last.RowsIn != 400 {
			t.Errorf("one part %v: %+v", one, last)
		}
	}
}

// TestCanceledBefore: a run whose caller has given up already begins nothing.
func TestCanceledBefore(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range 100 {
		tables := []*exectest.Table{exectest.NewTable(3, 10), exectest.NewTable(3, 10)}
		for i, g := range []*exec.Graph{exectest.Scan(tables[0]), exectest.Graph(exectest.Cut(1<<40, []*exec.Stage{exectest.ScanStage(0, tables[1])}))} {
			if _, err := local.New(nil).Write(ctx, g, &exectest.Sink{}, &exec.Options{CPUs: 2}); fault.CodeOf(err) != fault.Canceled {
				t.Error(err)
			}
			if n := tables[i].Opens(); slices.Max(n) > 0 {
				t.Fatalf("splits were opened: %v", n)
			}
		}
	}
}

// TestCanceledForAReason: a run whose caller gives up was canceled, whatever the caller's reason is (one with a code keeps it) and whoever of the run notices first.
func TestCanceledForAReason(t *testing.T) {
	why := errors.New("somebody wants the machine")
	block := exectest.Block(func(id int64) bool { return id == 5 }, nil)
	for name, g := range map[string]*exec.Graph{
		"parts": exectest.Scan(exectest.NewTable(3, 10), block),
		"one":   exectest.Graph(exectest.Cut(1<<40, []*exec.Stage{exectest.ScanStage(0, exectest.NewTable(3, 10))})),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				s := &exectest.Sink{FailWrite: func(int, int) error { // of "one"; in "parts" it is the step that notices
					cancel(why)
					synctest.Wait()
					return why
				}}
				time.AfterFunc(time.Second, func() { cancel(why) })
				if _, err := local.New(nil).Write(ctx, g, s, &exec.Options{CPUs: 1}); fault.CodeOf(err) != fault.Canceled || !errors.Is(err, why) {
					t.Errorf("%v: %v", fault.CodeOf(err), err)
				}
			})
		})
	}
}
