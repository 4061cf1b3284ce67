package local_test

import (
	"context"
	"fmt"
	"io"
	"runtime"
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
	"github.com/penstock-data/penstock/io/driver"
)

func TestTransientRead(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tb := exectest.NewTable(8, 1000)
		for _, code := range []fault.Code{fault.Unavailable, fault.WorkerLost, fault.Exhausted} {
			for split := range 8 {
				tb.Faults = append(tb.Faults, exectest.Fault{Split: split, Batch: 2 + int(code)%4, Code: code, Times: 1})
			}
		}
		var retried atomic.Int64
		ids, st, err := collect(t, exectest.Scan(tb, exectest.Pass()), &exec.Options{CPUs: 3, BatchRows: 100, Events: &exec.Events{
			TaskRetried: func(ti exec.TaskInfo, err error) {
				retried.Add(1)
				if ti.Origin.File != "mem" || err == nil {
					t.Errorf("%+v %v", ti, err)
				}
			},
		}})
		if err != nil || !slices.Equal(ids, count(8000)) {
			t.Fatalf("%d rows, %v", len(ids), err)
		}
		if st.Retries != 24 || retried.Load() != 24 || st.RowsIn != 8000 {
			t.Errorf("%d retries, %d events, %d rows in", st.Retries, retried.Load(), st.RowsIn)
		}
		if r := tb.Readers(); r != 0 {
			t.Errorf("%d readers open", r)
		}
	})
}

func TestOutOfRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, c := range []struct {
			code  fault.Code
			opens int
			text  string
		}{{fault.Unavailable, 4, "mem, row group 3, attempt 4: scripted fault"}, {fault.WorkerLost, 3, "gave up after losing 3 workers"}, {fault.Corrupt, 1, "step 1 (read), mem, row group 3: scripted fault"}} {
			tb := exectest.NewTable(5, 100)
			tb.Faults = []exectest.Fault{{Split: 3, Batch: 0, Code: c.code}}
			ids, _, err := collect(t, exectest.Scan(tb), &exec.Options{CPUs: 1})
			if fault.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.text) || !strings.Contains(err.Error(), "mem, row group 3") {
				t.Errorf("%v: got %v", c.code, err)
			}
			if got := tb.Opens()[3]; got != c.opens {
				t.Errorf("%v: %d attempts, want %d", c.code, got, c.opens)
			}
			if !slices.Equal(ids, count(len(ids))) {
				t.Errorf("%v: wrong rows before the failure", c.code)
			}
		}
	})
}

func TestUnstableStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tb := exectest.NewTable(1, 1000)
		tb.Faults = []exectest.Fault{{Batch: 3, Code: fault.Unavailable, Times: 1}}
		var calls atomic.Int64
		odd := &exectest.Op{Label: "odd", Process: func(_ context.Context, _ *exec.Env, in *exec.Block, emit exec.Emit) error {
			return emit(in.Slice(0, int(in.Batch.NumRows()-calls.Add(1)%3)))
		}}
		_, _, err := collect(t, exectest.Scan(tb, odd), &exec.Options{BatchRows: 100})
		if fault.CodeOf(err) != fault.UserCode || !strings.Contains(err.Error(), "other rows") {
			t.Errorf("got %v", err)
		}
	})
}

// TestRetriedSlices: how batches that inflate are sliced does not depend on calls that failed
// before, so that an attempt made again makes the same blocks.
func TestRetriedSlices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tb := exectest.NewTable(3, 3000)
		for s := range 3 {
			tb.Faults = append(tb.Faults, exectest.Fault{Split: s, Batch: 2, Code: fault.Unavailable, Times: 1}, exectest.Fault{Split: s, Batch: 5, Code: fault.WorkerLost, Times: 1})
		}
		var calls atomic.Int64
		inflate := exectest.Inflate(50, false)
		inner := inflate.Process
		inflate.Process = func(ctx context.Context, env *exec.Env, in *exec.Block, emit exec.Emit) error {
			if err := inner(ctx, env, in, emit); err != nil {
				return err
			}
			if calls.Add(1)%5 == 0 {
				return fault.New(fault.UserCode, "fails after it has emitted")
			}
			return nil
		}
		ids, st, err := collect(t, exectest.Scan(tb, inflate), &exec.Options{CPUs: 2, Memory: 512 << 10, BatchRows: 500, OnError: exec.OnError{Retries: 3}})
		if err != nil || !slices.Equal(ids, count(9000)) || st.Retries != 6 {
			t.Fatalf("%d rows, %d retries: %v", len(ids), st.Retries, err)
		}
	})
}

func TestPanic(t *testing.T) {
	bad := func(id int64) bool { return id == 4321 }
	_, _, err := collect(t, exectest.Scan(exectest.NewTable(10, 1000), exectest.Pass(), exectest.PanicRows(bad), exectest.Pass()), nil)
	if fault.CodeOf(err) != fault.UserCode || fault.PlaceOf(err).Step != "step (panic)" ||
		!strings.Contains(err.Error(), "id 4321") || !strings.Contains(err.Error(), "PanicRows") {
		t.Errorf("got %v", err)
	}
	tb := exectest.NewTable(2, 10)
	tb.Faults = []exectest.Fault{{Split: 1, Kind: exectest.Panic}}
	if _, _, err = collect(t, exectest.Scan(tb), nil); fault.CodeOf(err) != fault.UserCode || !strings.Contains(err.Error(), "scripted panic") {
		t.Errorf("got %v", err)
	}
}

// TestSkip: the rows left out are exactly the bad ones, reported once, in
// order, with their place and record, whatever the batches.
func TestSkip(t *testing.T) {
	bad := func(id int64) bool { return id%97 == 5 || id >= 2000 && id < 2010 }
	worse := func(id int64) bool { return id%101 == 7 }
	for _, rows := range []int{1, 7, 1024} {
		for _, cpus := range []int{1, 4} {
			for _, chained := range []bool{false, true} {
				tb := exectest.NewTable(7, 500)
				tb.Faults = []exectest.Fault{{Split: 2, Batch: 0, Kind: exectest.BadRows}}
				var letters []string
				o := &exec.Options{CPUs: cpus, BatchRows: rows, OnError: exec.OnError{Policy: exec.Skip}, DeadLetter: func(_ context.Context, s *exec.Skipped) error {
					p := fault.PlaceOf(s.Err)
					row, _ := p.Row.Get()
					id := int64(-1)
					if s.Record != nil {
						id = exectest.Ids(s.Record)[0]
					}
					letters = append(letters, fmt.Sprint(s.Origin.Index, s.Row, row, id, p.Step, fault.CodeOf(s.Err)))
					return nil
				}}
				ops := []exec.Operator{exectest.Pass(), exectest.FailRows(fault.RowError, bad), exectest.Halves(), exectest.PanicRows(worse)}
				g := exectest.Scan(tb, ops...)
				if chained {
					g = exectest.Graph(exectest.Cut(-1, []*exec.Stage{exectest.ScanStage(0, tb, ops[:2]...)}, ops[2:]...))
				}
				ids, st, err := collect(t, g, o)
				var want []int64
				var wantLetters []string
				for id := range int64(3500) {
					split, row := id/500, id%500
					switch {
					case id == 1000:
						wantLetters = append(wantLetters, fmt.Sprint(split, row, row, -1, "step 1 (read)", "row_error"))
					case bad(id):
						wantLetters = append(wantLetters, fmt.Sprint(split, row, row, id, "step (fail rows)", "row_error"))
					case worse(id):
						wantLetters = append(wantLetters, fmt.Sprint(split, row, row, id, "step (panic)", "user_code"))
					default:
						want = append(want, id)
					}
				}
				if err != nil || !slices.Equal(ids, want) {
					t.Fatalf("batch %d cpus %d chained %v: %d rows, want %d: %v", rows, cpus, chained, len(ids), len(want), err)
				}
				if !slices.Equal(letters, wantLetters) {
					t.Fatalf("batch %d cpus %d chained %v: letters\n%v\nwant\n%v", rows, cpus, chained, letters, wantLetters)
				}
				if st.Skipped != int64(len(letters)) {
					t.Errorf("%d skipped", st.Skipped)
				}
			}
		}
	}
}

// TestNoneFails: a step that fails for many rows together, and for none of them alone, is not cured by smaller batches unless the policy says to go on.
func TestNoneFails(t *testing.T) {
	many := &exectest.Op{Label: "many", Process: func(_ context.Context, _ *exec.Env, in *exec.Block, emit exec.Emit) error {
		if n := in.Batch.NumRows(); n > 100 {
			return fault.New(fault.UserCode, "%d rows are too many", n)
		}
		in.Batch.Retain()
		return emit(in.With(in.Batch, in.Rows, in.Ords))
	}}
	tb := exectest.NewTable(2, 1000)
	_, _, err := collect(t, exectest.Scan(tb, many), &exec.Options{CPUs: 1, BatchRows: 500})
	if fault.CodeOf(err) != fault.UserCode || !strings.Contains(err.Error(), "rows are too many") || !strings.Contains(err.Error(), "on together, of which none fails alone: step (many): ") {
		t.Error(err)
	}
	ids, st, err := collect(t, exectest.Scan(tb, many), &exec.Options{CPUs: 1, BatchRows: 500, OnError: exec.OnError{Policy: exec.Skip}})
	if err != nil || len(ids) != 2000 || st.Skipped != 0 {
		t.Errorf("under skip: %d rows, %d skipped, %v", len(ids), st.Skipped, err)
	}
	ids, _, err = collect(t, exectest.Scan(tb, many), &exec.Options{CPUs: 1, BatchRows: 100})
	if err != nil || len(ids) != 2000 {
		t.Errorf("in batches that it takes: %d rows, %v", len(ids), err)
	}
}

// TestSkipLimits: a run ends at the same row, whatever the batches and tasks.
func TestSkipLimits(t *testing.T) {
	bad := func(id int64) bool { return id%10 == 3 }
	for _, c := range []struct {
		o    exec.OnError
		text string
	}{
		{exec.OnError{Policy: exec.Skip, MaxRows: 25}, "26 rows skipped, more than max_rows 25: raise max_rows, or mend the data; the last one: step (fail rows), mem, row group 0, row 253: "},
		{exec.OnError{Policy: exec.Skip, MaxRows: 1}, "; the last one: step (fail rows), mem, row group 0, row 13: bad id 13\nthe first ones:\n  step (fail rows), mem, row group 0, row 3: bad id 3"},
		{exec.OnError{Policy: exec.Skip, MaxRate: 0.05}, "more than max_rate 0.05"},
		{exec.OnError{Policy: exec.Skip, MaxRows: 400, MaxRate: 0.11}, ""},
		{exec.OnError{Policy: exec.Fail}, "bad id 3"},
	} {
		for _, cpus := range []int{1, 4} {
			n := 0
			_, _, err := collect(t, exectest.Scan(exectest.NewTable(4, 1000), exectest.FailRows(fault.RowError, bad)), &exec.Options{
				CPUs: cpus, BatchRows: 16 << cpus, OnError: c.o,
				DeadLetter: func(context.Context, *exec.Skipped) error { n++; return nil },
			})
			if c.text == "" && err != nil || c.text != "" && (err == nil || !strings.Contains(err.Error(), c.text)) {
				t.Errorf("%+v: got %v", c.o, err)
			}
			if c.o.MaxRows == 25 && n != 25 || c.o.MaxRate == 0.05 && n != 100 {
				t.Errorf("%+v: %d letters", c.o, n)
			}
		}
	}
	// A step's own policy counts apart.
	g := exectest.Scan(exectest.NewTable(4, 1000), exectest.FailRows(fault.RowError, bad))
	g.Root.Ops[0].OnError = &exec.OnError{Policy: exec.Skip, MaxRows: 5}
	if _, _, err := collect(t, g, nil); err == nil || !strings.Contains(err.Error(), "by step (fail rows), more than max_rows 5") {
		t.Errorf("got %v", err)
	}
}

// Under the policy fail the rows before the first that fails are delivered, and
// it is the one that is named, wherever batches are cut and whichever step comes to it.
func TestFailDeliversWhatComesBefore(t *testing.T) {
	late := func(id int64) bool { return id == 511 }
	early := func(id int64) bool { return id == 700 }
	for _, rows := range []int{1, 3, 64, 1000} {
		g := exectest.Scan(exectest.NewTable(1, 1000), exectest.FailRows(fault.RowError, early), exectest.FailRows(fault.UserCode, late))
		ids, _, err := collect(t, g, &exec.Options{BatchRows: rows})
		if fault.CodeOf(err) != fault.UserCode || !slices.Equal(ids, count(511)) {
			t.Errorf("batches of %d: %d rows, then %v", rows, len(ids), err)
		}
	}
}

// A function that ends its goroutine is an error, not a hang.
func TestGoexit(t *testing.T) {
	gone := &exectest.Op{Label: "gone", Process: func(context.Context, *exec.Env, *exec.Block, exec.Emit) error {
		runtime.Goexit()
		return nil
	}}
	_, _, err := collect(t, exectest.Scan(exectest.NewTable(1, 10), gone), nil)
	if fault.CodeOf(err) != fault.UserCode || !strings.Contains(err.Error(), "Goexit") {
		t.Errorf("got %v", err)
	}
}

func TestRetryPolicy(t *testing.T) {
	var left atomic.Int64
	left.Store(30)
	flaky := exectest.Flaky(fault.UserCode, 3, &left)
	ids, st, err := collect(t, exectest.Scan(exectest.NewTable(10, 1000), flaky), &exec.Options{BatchRows: 100, CPUs: 1, OnError: exec.OnError{Retries: 2}})
	if err != nil || !slices.Equal(ids, count(10000)) || st.Retries != 0 {
		t.Fatalf("%d rows, %d retries: %v", len(ids), st.Retries, err)
	}
	calls := 0
	always := &exectest.Op{Label: "always", Process: func(context.Context, *exec.Env, *exec.Block, exec.Emit) error {
		calls++
		return fault.New(fault.UserCode, "no")
	}}
	_, _, err = collect(t, exectest.Scan(exectest.NewTable(1, 1), always), &exec.Options{OnError: exec.OnError{Retries: 4}})
	if calls != 5 || fault.CodeOf(err) != fault.UserCode {
		t.Errorf("%d calls, %v", calls, err)
	}
}

// TestStall: a run in which a task hangs fails after StallTimeout, naming it;
// one that is slow does not.
func TestStall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var report string
		hang := exectest.Block(func(id int64) bool { return id == 350 }, nil)
		start := time.Now()
		ids, _, err := collect(t, exectest.Scan(exectest.NewTable(10, 100), hang), &exec.Options{
			CPUs: 2, BatchRows: 100, StallTimeout: time.Minute, Events: &exec.Events{Stalled: func(r string) { report = r }},
		})
		if fault.CodeOf(err) != fault.Stalled || len(ids) != 300 || !strings.Contains(err.Error(), "mem#3: block for 1m1s") || !strings.Contains(report, "memory: ") {
			t.Errorf("%d rows, report %q: %v", len(ids), report, err)
		}
		if d := time.Since(start); d > 2*time.Minute+time.Second {
			t.Errorf("took %v", d)
		}
		ids, _, err = collect(t, exectest.Scan(exectest.NewTable(2, 1000), exectest.Slow(50*time.Second)), &exec.Options{CPUs: 1, BatchRows: 100, StallTimeout: time.Minute})
		if err != nil || len(ids) != 2000 {
			t.Errorf("%d rows, %v", len(ids), err)
		}
	})
}

// TestStallMemory: the report says who holds what others wait for.
func TestStallMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := exec.NewBudget(1 << 20)
		defer b.Close()
		l, _ := b.Acquire(t.Context(), "somebody else", 1<<20)
		s, err := local.New(nil).Run(t.Context(), exectest.Scan(exectest.NewTable(4, 10000)), &exec.Options{CPUs: 2, Budget: b})
		if err != nil {
			t.Fatal(err)
		}
		blk, err := s.Next(t.Context()) // the head goes beyond the budget
		if err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		found := ""
		for _, f := range s.Stats().Inflight {
			if strings.Contains(f.State, "waiting for memory") {
				found = f.State
			}
		}
		if !strings.Contains(found, "of 1.0 MiB held by somebody else (1.0 MiB)") {
			t.Errorf("state %q", found)
		}
		blk.Release()
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		l.Release()
		checkEmpty(t, b)
	})
}

// TestCallTimeout: a call that takes too long is ended by its context or, if
// it does not obey, left behind; the task runs again.
func TestCallTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, kind := range []exectest.FaultKind{exectest.Hang, exectest.Stuck} {
			tb := exectest.NewTable(4, 100)
			release := make(chan struct{})
			tb.Faults = []exectest.Fault{{Split: 2, Batch: 1, Kind: kind, Times: 1, Release: release}}
			time.AfterFunc(5*time.Minute-time.Millisecond, func() { close(release) })
			start := time.Now()
			b := exec.NewBudget(1 << 20)
			s, err := local.New(nil).Run(t.Context(), exectest.Scan(tb), &exec.Options{BatchRows: 10, Budget: b, CallTimeout: time.Minute})
			if err != nil {
				t.Fatal(err)
			}
			n := drain(t, s)
			if st := s.Stats(); n != 400 || st.Retries != 1 {
				t.Errorf("kind %d: %d rows, %+v", kind, n, st)
			}
			if d := time.Since(start); d > time.Minute+5*time.Second {
				t.Errorf("kind %d: took %v", kind, d)
			}
			err = s.Close()
			if kind == exectest.Stuck {
				if fault.CodeOf(err) != fault.Stalled {
					t.Errorf("Close with a stuck read: %v", err)
				}
				time.Sleep(5 * time.Minute)
				synctest.Wait()
				if err := s.Close(); err != nil {
					t.Error(err)
				}
			} else if err != nil {
				t.Error(err)
			}
			checkEmpty(t, b)
			b.Close()
		}
	})
}

func TestCallTimeoutNames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hang := exectest.Block(func(id int64) bool { return id == 5 }, nil)
		_, _, err := collect(t, exectest.Scan(exectest.NewTable(1, 10), exectest.Pass(), hang), &exec.Options{CallTimeout: time.Minute, Retry: exec.RetryBudget{Unavailable: -1}})
		if fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "step (block), mem, row group 0: block took longer than 1m0s") {
			t.Errorf("got %v", err)
		}
	})
}

func drain(t *testing.T, s exec.Stream) (rows int64) {
	t.Helper()
	for {
		b, err := s.Next(t.Context())
		if err == io.EOF {
			return rows
		}
		if err != nil {
			t.Error(err)
			return rows
		}
		rows += b.Batch.NumRows()
		b.Release()
	}
}

// TestCloseStuck: Close returns within about a second from code that obeys
// nothing, and says so; all is freed once it returns.
func TestCloseStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		stuck := exectest.Block(func(id int64) bool { return id == 150 }, release)
		b := exec.NewBudget(1 << 20)
		defer b.Close()
		s, err := local.New(nil).Run(t.Context(), exectest.Scan(exectest.NewTable(4, 100), stuck), &exec.Options{CPUs: 2, Budget: b})
		if err != nil {
			t.Fatal(err)
		}
		blk, err := s.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		blk.Release()
		synctest.Wait()
		start := time.Now()
		err = s.Close()
		if d := time.Since(start); d > 1100*time.Millisecond {
			t.Errorf("Close took %v", d)
		}
		if fault.CodeOf(err) != fault.Stalled || !strings.Contains(err.Error(), "mem#1: block") {
			t.Errorf("Close: %v", err)
		}
		close(release)
		synctest.Wait()
		if err := s.Close(); err != nil {
			t.Errorf("second Close: %v", err)
		}
		checkEmpty(t, b)
	})
}

// waitTable's second split waits for the first to be read, however long that takes.
type waitTable struct {
	*exectest.Table
	first chan struct{}
}

func (w *waitTable) Open(ctx context.Context, i int, o *driver.ScanOptions) (driver.Reader, error) {
	if i == 1 {
		end := exec.Waiting(ctx)
		select {
		case <-w.first:
		case <-ctx.Done():
		}
		end()
	}
	return w.Table.Open(ctx, i, o)
}

// A call that waits for another task is not timed out.
func TestWaitingIsNotTimedOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &waitTable{exectest.NewTable(2, 10), make(chan struct{})}
		s, err := local.New(nil).Run(t.Context(), &exec.Graph{Root: &exec.Stage{Limit: -1, Scan: &exec.Scan{Step: "source", Table: w}}},
			&exec.Options{CPUs: 2, CallTimeout: time.Minute, StallTimeout: -1, Retry: exec.RetryBudget{Unavailable: -1}})
		if err != nil {
			t.Fatal(err)
		}
		rows := int64(0)
		for {
			b, err := s.Next(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			rows += b.Batch.NumRows()
			b.Release()
			if rows == 10 {
				time.Sleep(time.Hour) // the clock of the test
				close(w.first)
			}
		}
		if rows != 20 {
			t.Errorf("%d rows", rows)
		}
		s.Close()
	})
}
