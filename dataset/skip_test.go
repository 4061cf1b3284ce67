package dataset_test

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/csvio"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/jsonio"
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

// Rows that do not parse are left out whatever the form of the batches is: a column that no tensor needs counts, too.
func TestSkippedInEveryForm(t *testing.T) {
	ds := sometimes(t)
	ids := func(f shard.Form, from *shard.State, steps int) (ids []int64, s shard.State) {
		o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{OnError: &ops.OnError{Policy: "skip"}},
			Options: shard.Options{GlobalBatch: 20, Tail: shard.TailPad, Epochs: 1, Form: f, State: from, Shuffle: &shard.Shuffle{Lanes: 2, WindowBytes: 512}}}
		its, err := ds.Shards(t.Context(), 1, o)
		if err != nil {
			t.Fatal(err)
		}
		defer its[0].Close()
		for range steps {
			b, err := its[0].Next(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if f.Tensors {
				x, _ := b.Tensor("id")
				for i := range b.Real() {
					ids = append(ids, int64(binary.LittleEndian.Uint64(x.Data[8*i:])))
				}
			} else {
				ids = append(ids, b.Record().Column(0).(*array.Int64).Int64Values()[:b.Real()]...)
			}
			b.Release()
		}
		return ids, its[0].State()
	}
	tensor := shard.Form{Tensors: true, Columns: map[string]shard.Column{"id": {}}}
	want, _ := ids(shard.Form{}, nil, 100)
	if len(want) != 450 {
		t.Fatalf("%d rows", len(want))
	}
	if got, _ := ids(tensor, nil, 100); !slices.Equal(got, want) {
		t.Errorf("%d rows as tensors, or others", len(got))
	}
	first, s := ids(shard.Form{}, nil, 7)
	if rest, _ := ids(tensor, &s, 100); !slices.Equal(append(first, rest...), want) {
		t.Errorf("%d rows after a change of the form, or others", len(first)+len(rest))
	}
}

// Rows that do not parse behind the last one of a split are rows that were seen, once, whatever the text and its windows are.
func TestBadRowsAtTheEnd(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir := t.TempDir()
	text := func(head, good string, n, bad int) []byte {
		b := []byte(head)
		for i := range n {
			b = fmt.Appendf(b, good, i)
		}
		return append(b, strings.Repeat("bad\n", bad)...)
	}
	put := func(name string, b []byte) {
		if strings.HasSuffix(name, ".gz") {
			var z bytes.Buffer
			w := gzip.NewWriter(&z)
			if _, err := w.Write(b); err != nil {
				t.Fatal(err)
			}
			if err := w.Close(); err != nil {
				t.Fatal(err)
			}
			b = z.Bytes()
		}
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	some, many, none := text("", "{\"id\": %d}\n", 7, 3), text("", "{\"id\": %d}\n", 315, 135), text("", "", 0, 45)
	table := text("id\n", "%d\n", 315, 135)
	for name, b := range map[string][]byte{
		"plain/a.jsonl": many, "plain/b.jsonl": many, "packed/a.jsonl.gz": many, "beside/a.jsonl": many, "beside/b.jsonl.gz": some, "beside/c.jsonl": none, "beside/d.jsonl.gz": none,
		"nothing/a.jsonl": none, "nothing/b.jsonl": many, "nothing/c.jsonl": none, "table/a.csv": table, "table/b.csv": table,
	} {
		put(name, b)
	}
	ints := map[string]string{"id": "int64"}
	for _, c := range []struct {
		folder     string
		counted    bool
		good, rows int64
	}{{"plain", false, 630, 900}, {"packed", true, 315, 450}, {"beside", true, 322, 550}, {"nothing", false, 315, 540}, {"table", false, 630, 900}, {"table", true, 630, 900}} { // fewer than 1,000 are judged at the end
		files := fileset.Options{Paths: []string{filepath.Join(dir, c.folder) + "/"}, Types: ints}
		ds := dataset.Read(jsonio.New(jsonio.Options{Options: files}))
		if c.folder == "table" {
			ds = dataset.Read(csvio.New(csvio.Options{Options: files, Multiline: c.counted}))
		}
		said := fmt.Sprintf("on_error: %d of %d rows", c.rows-c.good, c.rows)
		exact := float64(c.rows-c.good) / float64(c.rows)
		shuffles := []shard.Shuffle{{Mode: shard.ModeNone}, {}, {Lanes: 2, WindowBytes: 100}, {Lanes: 3, WindowBytes: 4000}}
		if c.counted {
			shuffles = []shard.Shuffle{{Mode: shard.ModeNone}, {}, {Lanes: 2, WindowRows: 16}, {Lanes: 1, WindowRows: 333}}
		}
		for _, s := range shuffles {
			var log strings.Builder
			o := dataset.ShardOptions{RunOptions: dataset.RunOptions{OnError: &ops.OnError{Policy: "skip", MaxRate: exact + 0.0001}, Log: slog.New(slog.NewTextHandler(&log, nil)), Memory: 64 << 20},
				Options: shard.Options{GlobalBatch: 50, Tail: shard.TailPad, Shuffle: &s}}
			if rows, _ := dealt(t, ds, o, 0); int64(len(rows)) != c.good || !strings.Contains(log.String(), said) {
				t.Errorf("%s, %+v: %d samples, want %d; %s", c.folder, s, len(rows), c.good, log.String())
			}
			o.OnError.MaxRate = exact - 0.0001
			if _, err := epoch(t, ds, o); fault.CodeOf(err) != fault.Exhausted || !strings.Contains(err.Error(), said) {
				t.Errorf("%s, %+v: %v", c.folder, s, err)
			}
		}
		run := &dataset.RunOptions{OnError: &ops.OnError{Policy: "skip", MaxRate: exact + 0.0001}, Memory: 64 << 20}
		if st, err := ds.Drain(t.Context(), run); err != nil || st.RowsOut != c.good || st.Skipped != c.rows-c.good {
			t.Errorf("%s: %+v, %v", c.folder, st, err)
		}
		run.OnError.MaxRate = exact - 0.0001
		if _, err := ds.Drain(t.Context(), run); fault.CodeOf(err) != fault.Exhausted {
			t.Errorf("%s: %v", c.folder, err)
		}
	}
}

// epoch is how many samples an epoch has.
func epoch(t *testing.T, ds *dataset.Dataset, o dataset.ShardOptions) (samples int, err error) {
	t.Helper()
	o.Epochs = 1
	its, err := ds.Shards(t.Context(), 1, &o)
	if err != nil {
		return 0, err
	}
	defer its[0].Close()
	for {
		b, err := its[0].Next(t.Context())
		if err == io.EOF {
			return samples, nil
		}
		if err != nil {
			return samples, err
		}
		samples += b.Real()
		b.Release()
	}
}
