package dataset_test

import (
	"io"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/shard"
)

// overflowing is 1000 rows of which the last 900 cannot be computed.
func overflowing() *dataset.Dataset {
	return dataset.Range(1000).WithColumns("x = id + 9223372036854775708")
}

// letters is how many rows the dead letters of a folder have, and what they say.
func letters(t *testing.T, dir string) (rows int64, places []int64) {
	t.Helper()
	for rec, err := range dataset.ReadParquet(dir).Records(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		rows += rec.NumRows()
		col := rec.Column(rec.Schema().FieldIndices("row")[0])
		for i := range col.Len() {
			places = append(places, col.GetOneForMarshal(i).(int64))
		}
	}
	return rows, places
}

// A run that keeps nothing has its dead letter too: each row once, however often it runs.
func TestDrainDeadLetter(t *testing.T) {
	dir := t.TempDir() + "/bad"
	for range 2 {
		st, err := overflowing().Drain(t.Context(), &dataset.RunOptions{OnError: &ops.OnError{Policy: "skip"}, DeadLetter: dir, Memory: 64 << 20})
		if err != nil || st.Skipped != 900 || st.RowsOut != 100 {
			t.Fatalf("%+v, %v", st, err)
		}
		rows, places := letters(t, dir)
		slices.Sort(places)
		if rows != 900 || places[0] != 100 || places[899] != 999 || len(slices.Compact(places)) != 900 {
			t.Errorf("%d letters, of rows %v", rows, places)
		}
	}
	// What a failed run left out is not made visible.
	none := t.TempDir() + "/none"
	_, err := overflowing().Drain(t.Context(), &dataset.RunOptions{OnError: &ops.OnError{Policy: "skip", MaxRows: 10}, DeadLetter: none})
	if fault.CodeOf(err) != fault.Exhausted {
		t.Errorf("max_rows 10: %v", err)
	}
	if n, err := dataset.ReadParquet(none).Count(t.Context(), nil); err == nil {
		t.Errorf("%d letters of a failed run", n)
	}
}

// Rows that would be skipped do not count, whoever says that they are.
func TestCountSkipped(t *testing.T) {
	skip := &ops.OnError{Policy: "skip"}
	for _, c := range []struct {
		name string
		ds   *dataset.Dataset
		run  *ops.OnError
		want int64
	}{
		{"of the run", overflowing(), skip, 100},
		{"of the step", overflowing().OnError(*skip), nil, 100},
		{"of the run, below", overflowing().Select("id", "x"), skip, 100},
		{"nobody", overflowing(), nil, 1000},
		{"nothing to compute", dataset.Range(1000).Rename(map[string]string{"id": "n"}), skip, 1000},
	} {
		if n, err := c.ds.Count(t.Context(), &dataset.RunOptions{OnError: c.run}); err != nil || n != c.want {
			t.Errorf("%s: %d rows, %v; want %d", c.name, n, err, c.want)
		}
	}
}

// Shards refuse a dead letter and say what to do; a program can see what they skip.
func TestShardsSkip(t *testing.T) {
	o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{OnError: &ops.OnError{Policy: "skip"}, DeadLetter: t.TempDir(), Memory: 64 << 20}, Options: shard.Options{GlobalBatch: 10, Epochs: 1}}
	if _, err := overflowing().Shards(t.Context(), 1, o); fault.CodeOf(err) != fault.Unsupported || !strings.Contains(err.Error(), "Dataset.Drain") {
		t.Errorf("%v", err)
	}
	o.DeadLetter = ""
	var mu sync.Mutex
	seen := map[int64]int{}
	o.Events = &exec.Events{RowSkipped: func(s *exec.Skipped) {
		mu.Lock()
		defer mu.Unlock()
		seen[s.Row]++
	}}
	its, err := overflowing().Shards(t.Context(), 1, o)
	if err != nil {
		t.Fatal(err)
	}
	samples := 0
	for {
		b, err := its[0].Next(t.Context())
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		samples += b.Real()
		b.Release()
	}
	if err := its[0].Close(); err != nil {
		t.Fatal(err)
	}
	if samples != 100 || len(seen) != 900 {
		t.Errorf("%d samples, %d rows skipped", samples, len(seen))
	}
}
