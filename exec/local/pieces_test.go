package local_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/internal/fault"
)

// TestPieces: fewer splits than CPUs are read by all of them, in order, and every row once.
func TestPieces(t *testing.T) {
	for _, c := range []struct {
		rows        []int
		keep        []bool
		cpus, opens int
		seek        bool
	}{
		{rows: []int{1000}, cpus: 4, opens: 4, seek: true},
		{rows: []int{1000}, cpus: 4, opens: 1},
		{rows: []int{1000}, cpus: 1, opens: 1, seek: true},
		{rows: []int{100}, cpus: 8, opens: 2, seek: true}, // 4 batches of 10 rows or more
		{rows: []int{1000, 0, 1000, 500}, cpus: 3, opens: 3*2 + 1 + 0, seek: true},
		{rows: []int{1000, 1000}, cpus: 2, opens: 2, seek: true},
		{rows: []int{1000, 1000, 1000}, keep: []bool{false, true, false}, cpus: 2, opens: 2, seek: true},
	} {
		tb := exectest.NewTable(0, 0)
		tb.Rows, tb.Seek = c.rows, c.seek
		st := exectest.ScanStage(0, tb)
		st.Scan.Keep = c.keep
		var want []int64
		for i, n := range c.rows {
			for k := range n {
				if c.keep == nil || c.keep[i] {
					want = append(want, int64(tb.First(i)+k))
				}
			}
		}
		s, err := local.New(nil).Run(t.Context(), exectest.Graph(st), &exec.Options{CPUs: c.cpus, BatchRows: 10})
		if err != nil {
			t.Fatal(err)
		}
		var ids []int64
		next := map[int]int64{} // by split: spans follow each other
		for {
			b, err := s.Next(t.Context())
			if err != nil {
				break
			}
			if b.Row != next[b.Origin.Task] || b.Origin.Split != tb.Splits()[b.Origin.Task].ID {
				t.Errorf("%v: block of %v begins at row %d, not %d", c, b.Origin, b.Row, next[b.Origin.Task])
			}
			next[b.Origin.Task] += b.Span
			ids = append(ids, exectest.Ids(b.Batch)...)
			b.Release()
		}
		st2 := s.Stats()
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		opens := 0
		for _, n := range tb.Opens() {
			opens += n
		}
		if !slices.Equal(ids, want) || opens != c.opens || st2.Splits != len(c.rows) || st2.SplitsDone != len(c.rows) || st2.RowsIn != int64(len(want)) {
			t.Errorf("%v: %d rows of %d, %d opens, %d of %d splits, %d rows in", c, len(ids), len(want), opens, st2.SplitsDone, st2.Splits, st2.RowsIn)
		}
		if tb.Readers() != 0 {
			t.Errorf("%v: readers open", c)
		}
	}
}

// TestPiecesAtOnce: pieces of one split meet at a barrier.
func TestPiecesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tb := exectest.NewTable(1, 400)
		tb.Seek = true
		ids, _, err := collect(t, exectest.Scan(tb, exectest.Barrier(4)), &exec.Options{CPUs: 4, BatchRows: 10, StallTimeout: time.Minute})
		if err != nil || !slices.Equal(ids, count(400)) {
			t.Fatalf("%d rows, %v", len(ids), err)
		}
	})
}

// TestPiecesRate: rows before a piece do not count as rows of it.
func TestPiecesRate(t *testing.T) {
	tb := exectest.NewTable(1, 1000)
	tb.Seek = true
	op := exectest.FailRows(fault.RowError, func(id int64) bool { return id%10 == 0 })
	_, _, err := collect(t, exectest.Scan(tb, op), &exec.Options{CPUs: 4, BatchRows: 10, OnError: exec.OnError{Policy: exec.Skip, MaxRate: 0.09}})
	if fault.CodeOf(err) != fault.Exhausted {
		t.Errorf("a tenth of the rows was skipped: %v", err)
	}
}
