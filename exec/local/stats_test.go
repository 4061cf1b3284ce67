package local_test

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/internal/fault"
)

// TestOpStats: every operator counts rows, bytes and the most that it held, and for what it waited: for memory where the budget is
// small, for room where the consumer is slow.
func TestOpStats(t *testing.T) {
	run := func(t *testing.T, memory int64, pause time.Duration) (scan, inflate, consumer exec.OpStats) {
		tb := exectest.NewTable(4, 800)
		tb.Width = func(int) int { return 1000 }
		b := exec.NewBudget(memory)
		defer b.Close()
		s, err := local.New(nil).Run(t.Context(), exectest.Scan(tb, exectest.Inflate(20, false)), &exec.Options{CPUs: 2, Budget: b, BatchRows: 10})
		if err != nil {
			t.Fatal(err)
		}
		for {
			blk, err := s.Next(t.Context())
			if err != nil {
				break
			}
			time.Sleep(pause)
			blk.Release()
		}
		ops := s.Stats().Ops
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		checkEmpty(t, b)
		const rows, out = 3200, 3200 * 20 * 1000 // of the map
		scan, inflate, consumer = ops[0], ops[1], ops[2]
		if scan.RowsOut != rows || inflate.RowsIn != rows || inflate.RowsOut != rows || inflate.Tasks != 4 || scan.BytesOut < rows*1000 || scan.BytesOut > rows*1100 ||
			inflate.BytesOut < out || inflate.BytesOut > out*11/10 || consumer.RowsIn != rows {
			t.Errorf("%+v", ops)
		}
		// An output is 10 rows of 20 kB; the input and a few more of them may be held beside it.
		if inflate.PeakBytes < 10*20*1000 || inflate.PeakBytes > memory || scan.PeakBytes < 10*1000 {
			t.Errorf("the map held %d bytes at most, the scan %d", inflate.PeakBytes, scan.PeakBytes)
		}
		return scan, inflate, consumer
	}
	synctest.Test(t, func(t *testing.T) {
		scan, inflate, consumer := run(t, 64<<20, 0)
		if scan.WaitMem+inflate.WaitMem+scan.WaitOut+inflate.WaitOut != 0 {
			t.Errorf("with room for all: %+v, %+v", scan, inflate)
		}
		scan, inflate, consumer = run(t, 1<<20, time.Second)
		if scan.WaitMem+inflate.WaitMem < time.Minute || consumer.Busy < 319*time.Second {
			t.Errorf("with little memory: %+v, %+v, %+v", scan, inflate, consumer)
		}
		scan, inflate, consumer = run(t, 64<<20, time.Second)
		if inflate.WaitOut < 30*time.Second || scan.WaitMem+inflate.WaitMem != 0 || consumer.WaitIn > time.Second {
			t.Errorf("with a slow consumer: %+v, %+v, %+v", scan, inflate, consumer)
		}
	})
}

// TestEventsAndLog: each attempt begins and ends once, each skipped row is told once; the log says what was tried again, with its
// cause, which rows were skipped, and what is stuck.
func TestEventsAndLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var text bytes.Buffer
		log := slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: slog.LevelDebug}))
		tb := exectest.NewTable(5, 100)
		tb.Faults = []exectest.Fault{{Split: 3, Batch: 1, Code: fault.Unavailable, Times: 2}}
		var mu sync.Mutex
		var started, finished, retried, failed []int
		var skipped []int64
		note := func(to *[]int, ti exec.TaskInfo) {
			mu.Lock()
			*to = append(*to, ti.Task*10+ti.Attempt)
			mu.Unlock()
		}
		s, err := local.New(&local.Options{Log: log}).Run(t.Context(), exectest.Scan(tb, exectest.FailRows(fault.RowError, func(id int64) bool { return id == 123 })), &exec.Options{
			CPUs: 2, BatchRows: 10, OnError: exec.OnError{Policy: exec.Skip}, Events: &exec.Events{
				TaskStarted: func(ti exec.TaskInfo) { note(&started, ti) },
				TaskFinished: func(ti exec.TaskInfo, err error) {
					note(&finished, ti)
					if err != nil {
						note(&failed, ti)
					}
				},
				TaskRetried: func(ti exec.TaskInfo, err error) { note(&retried, ti) },
				RowSkipped:  func(s *exec.Skipped) { skipped = append(skipped, s.Origin.Index*100+s.Row) },
			}})
		if err != nil {
			t.Fatal(err)
		}
		if n := drain(t, s); n != 499 {
			t.Errorf("%d rows", n)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		slices.Sort(started)
		slices.Sort(finished)
		slices.Sort(retried)
		slices.Sort(failed)
		want := []int{1, 11, 21, 31, 32, 33, 41}
		if !slices.Equal(started, want) || !slices.Equal(finished, want) || !slices.Equal(retried, want[3:5]) || !slices.Equal(failed, want[3:5]) || !slices.Equal(skipped, []int64{123}) {
			t.Errorf("started %v, finished %v, retried %v, failed %v, skipped %v", started, finished, retried, failed, skipped)
		}
		for _, want := range []string{
			`level=WARN msg="a task is tried again" split=mem#3 task=3 attempt=1 error="step 1 (read), mem, row group 3: scripted fault`,
			`level=WARN msg="a task is tried again" split=mem#3 task=3 attempt=2`,
			`level=DEBUG msg="a row is skipped" split=mem#1 row=23 error=`,
		} {
			if strings.Count(text.String(), want) != 1 {
				t.Errorf("the log has not one line %s:\n%s", want, text.String())
			}
		}
		text.Reset()
		s, err = local.New(&local.Options{Log: log}).Run(t.Context(), exectest.Scan(exectest.NewTable(1, 10), exectest.Block(func(int64) bool { return true }, nil)), &exec.Options{StallTimeout: time.Minute})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Next(t.Context()); fault.CodeOf(err) != fault.Stalled {
			t.Error(err)
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
		if got := text.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, `level=ERROR msg="the run makes no progress" report="mem#0: block for 1m`) {
			t.Errorf("the log of a stuck run: %s", got)
		}
	})
}
