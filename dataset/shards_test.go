package dataset_test

import (
	"context"
	"io"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
)

// ids reads one epoch of all ranks and returns the id that each sample has.
func ids(t *testing.T, its []*shard.Iterator) map[int64]int64 {
	t.Helper()
	out := map[int64]int64{}
	for {
		ends := 0
		for _, it := range its {
			b, err := it.Next(t.Context())
			if err == io.EOF {
				ends++
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			col := b.Record().Column(0).(*array.Int64)
			for i, n := range b.Samples() {
				if _, ok := out[n]; ok {
					t.Fatalf("sample %d is given twice", n)
				}
				out[n] = col.Value(i)
			}
			b.Release()
		}
		if ends == len(its) {
			return out
		}
		if ends > 0 {
			t.Fatalf("the epoch is at its end for %d of %d ranks", ends, len(its))
		}
	}
}

// An epoch has every row that a filter leaves once, but for the tail, in another order than that of the data, and every sample
// has the same row on any number of ranks.
func TestShards(t *testing.T) {
	const rows, kept = 599_990, 399_993
	ds := dataset.Range(rows).Filter("id % 3 != 0")
	var want map[int64]int64
	for _, ranks := range []int{3, 1} {
		its, err := ds.Shards(t.Context(), ranks, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 1000}, RunOptions: dataset.RunOptions{Seed: 7}})
		if err != nil {
			t.Fatal(err)
		}
		got := ids(t, its)
		for _, it := range its {
			if s := it.State(); s.Epoch != 1 || s.Step != 0 || s.Sample != 0 {
				t.Errorf("after the epoch rank %d is at epoch %d, step %d, sample %d", it.Rank(), s.Epoch, s.Step, s.Sample)
			}
			if err := it.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if want == nil {
			want = got
		} else if !maps.Equal(got, want) {
			t.Errorf("%d ranks are given other rows", ranks)
		}
	}
	if len(want) != kept/1000*1000 {
		t.Errorf("%d samples, want %d", len(want), kept/1000*1000)
	}
	seen := map[int64]bool{}
	inPlace := 0
	for n := range int64(len(want)) {
		id, ok := want[n]
		if !ok || id < 0 || id >= rows || id%3 == 0 || seen[id] {
			t.Fatalf("sample %d is row %d (there: %v; once more: %v)", n, id, ok, seen[id])
		}
		if seen[id] = true; id/3 == n/2 {
			inPlace++
		}
	}
	if inPlace > 1000 {
		t.Errorf("%d samples are where they are in the data", inPlace)
	}
}

// A step found by StateAt is the one that comes in its turn. Where no step changes the number of rows nothing is counted for it; else it
// is once, and what it found is kept.
func TestStateAt(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	for name, c := range map[string]struct {
		ds     *dataset.Dataset
		counts int
	}{
		"all rows": {dataset.Range(300000), 0},
		"filtered": {dataset.Range(300000).Filter("id % 3 != 0"), 1},
	} {
		o := &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 1000, Shuffle: &shard.Shuffle{Lanes: 4, WindowRows: 5000}}, RunOptions: dataset.RunOptions{Seed: 7}}
		its, err := c.ds.Shards(t.Context(), 1, o)
		if err != nil {
			t.Fatal(err)
		}
		var want [32]byte
		var at shard.State
		for range 78 {
			at = its[0].State()
			b, err := its[0].Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			want = b.Digest()
			b.Release()
		}
		counted := 0
		for range 2 {
			s, err := c.ds.StateAt(t.Context(), 1, o, shard.At{Step: 77, Counting: func(string) { counted++ }})
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(at, s); d != "" {
				t.Errorf("%s: the state before the step is another one (- as it was): %s", name, d)
			}
			if err := its[0].Restore(s); err != nil {
				t.Fatal(err)
			}
			b, err := its[0].Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if b.Digest() != want || b.Step() != 77 {
				t.Errorf("%s: another batch, of step %d", name, b.Step())
			}
			b.Release()
		}
		if counted != c.counts {
			t.Errorf("%s: counted %d times, want %d", name, counted, c.counts)
		}
		if err := its[0].Close(); err != nil {
			t.Error(err)
		}
	}
}

// Windows that do not fit the budget wait on disk; the batches are the same.
func TestSpill(t *testing.T) {
	dir := t.TempDir()
	t.Setenv("TMPDIR", dir)
	ds := dataset.Range(400000).WithColumns(`s = "a rather long text that takes place, number " + string(id)`).Filter("id % 5 != 0")
	var want [][32]byte
	for _, memory := range []int64{1 << 30, 8 << 20} {
		peak := int64(0)
		o := &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 1000, Epochs: 1, Lineage: true, Shuffle: &shard.Shuffle{Lanes: 8, WindowRows: 16384}},
			RunOptions: dataset.RunOptions{Seed: 7, Memory: memory}}
		its, err := ds.Shards(t.Context(), 1, o)
		if err != nil {
			t.Fatal(err)
		}
		step := 0
		for b, err := range its[0].All(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if memory > 1<<29 {
				want = append(want, b.Digest())
			} else if b.Digest() != want[step] {
				t.Fatalf("step %d differs", step)
			}
			step++
			peak = max(peak, its[0].Stats().Engine.HeldBytes)
		}
		if step != len(want) {
			t.Errorf("%d steps, want %d", step, len(want))
		}
		t.Logf("budget %d MiB: at most %.1f MiB held", memory>>20, float64(peak)/(1<<20))
		if err := its[0].Close(); err != nil {
			t.Error(err)
		}
	}
	if left, _ := os.ReadDir(dir); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

// A state is of the same plan and data wherever the files lie.
func TestStateMoves(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	if _, err := dataset.Range(50000).WriteParquet(t.Context(), a, nil); err != nil {
		t.Fatal(err)
	}
	if err := os.CopyFS(b, os.DirFS(a)); err != nil {
		t.Fatal(err)
	}
	var states []shard.State
	for _, dir := range []string{a, b} {
		its, err := dataset.ReadParquet(dir).Shards(t.Context(), 1, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 100}})
		if err != nil {
			t.Fatal(err)
		}
		states = append(states, its[0].State())
		if err := its[0].Restore(states[0]); err != nil {
			t.Error(err)
		}
		if err := its[0].Close(); err != nil {
			t.Error(err)
		}
	}
	if states[0].Plan != states[1].Plan || states[0].Data != states[1].Data {
		t.Errorf("%v\n%v", states[0], states[1])
	}
}

// Data whose identity cannot be found for now is an error of its kind; data that has none runs, and says so of its states.
func TestShardsIdentity(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.csv")
	if err := os.WriteFile(path, []byte("id,x\n"+strings.Repeat("1,2\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	ds := dataset.ReadCSV(path)
	schema, err := ds.Schema(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	o := &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 10}}
	openBoth := func(ctx context.Context, code fault.Code) {
		t.Helper()
		its, err := ds.Shards(ctx, 2, o)
		if fault.CodeOf(err) != code || its != nil {
			t.Errorf("Shards: %v (%v), want %v", err, fault.CodeOf(err), code)
		}
		it, err := ds.Iterator(ctx, o)
		if fault.CodeOf(err) != code || it != nil {
			t.Errorf("Iterator: %v (%v), want %v", err, fault.CodeOf(err), code)
		}
	}
	if err := os.Rename(path, path+".away"); err != nil {
		t.Fatal(err)
	}
	openBoth(t.Context(), fault.NotFound)
	if err := os.Rename(path+".away", path); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	openBoth(ctx, fault.Canceled)

	state := func(ds *dataset.Dataset) shard.State {
		t.Helper()
		it, err := ds.Iterator(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer it.Close()
		if b, err := it.Next(t.Context()); err != nil {
			t.Fatal(err)
		} else {
			b.Release()
		}
		return it.State()
	}
	resume := func(ds *dataset.Dataset, s shard.State) error {
		it, err := ds.Iterator(t.Context(), &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 10, State: &s}})
		if err == nil {
			err = it.Close()
		}
		return err
	}
	if err := resume(ds, state(ds)); err != nil {
		t.Error(err)
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for range 100 {
		b.Field(0).(*array.Int64Builder).Append(1)
		b.Field(1).(*array.Int64Builder).Append(2)
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	nameless := dataset.FromRecords(schema, rec)
	s := state(nameless)
	if s.Plan != "" {
		t.Errorf("the plan is %q", s.Plan)
	}
	for want, err := range map[string]error{"has no identity that another run could check": resume(nameless, s), "it has no plan, as the data of its run have no identity": resume(ds, s)} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// Sorted labels, ten classes, 64 lanes, steps of 256: nearly the label entropy of a full shuffle.
func TestLabelEntropy(t *testing.T) {
	ds := dataset.Range(256 * 65536).Filter("id % 64 == 0").WithColumns("label = id / 1677722")
	for _, c := range []struct {
		shuffle  shard.Shuffle
		from, to float64
	}{
		{shard.Shuffle{Lanes: 64, WindowRows: 16384}, 0.95, 1.01},
		{shard.Shuffle{Mode: shard.ModeNone}, 0, 0.2},
	} {
		q, err := ds.LabelEntropy(t.Context(), "label", 4, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 256, Shuffle: &c.shuffle}})
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", q)
		if r := q.Entropy / q.Full; q.Labels != 10 || r < c.from || r > c.to {
			t.Errorf("%v: %.3f of a full shuffle", c.shuffle, r)
		}
	}
}

// The labels of a final limit are those of its rows.
func TestLabelEntropyOfALimit(t *testing.T) {
	ds := dataset.Range(10_000).WithColumns("label = id / 100").Limit(400)
	q, err := ds.LabelEntropy(t.Context(), "label", 1, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 200, Shuffle: &shard.Shuffle{Mode: shard.ModeNone}}})
	if err != nil || q.Labels != 4 || q.Steps != 2 || q.Entropy != 1 {
		t.Errorf("%+v, %v: want two steps of two labels each", q, err)
	}
}

// CheckShards sees what Shards refuses, and reads no data: rows that only reading would count are left alone.
func TestCheckShards(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "a.json"), []byte(`[{"a": 1}, {"a": 2}]`), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		ds   *dataset.Dataset
		s    *shard.Shuffle
		laid bool
		want string
	}{
		{dataset.Range(1000), nil, true, ""},
		{dataset.Range(1000), &shard.Shuffle{WindowRows: 1 << 20, Resident: 1 << 20}, true, "one window of 1048576 rows"},
		{dataset.Range(1000), &shard.Shuffle{Lanes: 1 << 20}, true, "lanes must be"},
		{dataset.Range(1000), &shard.Shuffle{WindowBytes: 5}, true, "give window_rows"},
		{dataset.Range(1000).Limit(5), nil, true, "limit"},
		{dataset.Range(1000).Filter("idd > 1"), nil, false, "idd"},
		{dataset.ReadJSON(dir), nil, false, ""},
		{dataset.Mix(dataset.MixSource{Name: "a", Weight: 1, Data: dataset.Range(9)}, dataset.MixSource{Name: "b", Weight: 1, Data: dataset.Range(9)}),
			&shard.Shuffle{WindowRows: 1 << 24, Resident: 1 << 20}, true, `source "a" of the mix: shuffle: one window`},
	} {
		laid, err := c.ds.CheckShards(t.Context(), 2, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 20, Shuffle: c.s}})
		if laid != c.laid || (c.want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: laid %v, error %v, want %v and %q", c.s, laid, err, c.laid, c.want)
		}
	}
	// It is asked before the nodes of a job are connected, and leaves them out.
	o := &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 20, Nodes: &shard.Nodes{Ranks: []int{0, 1}}}}
	if laid, err := dataset.Range(1000).CheckShards(t.Context(), 2, o); !laid || err != nil || o.Nodes == nil {
		t.Errorf("with nodes: laid %v, error %v", laid, err)
	}
	if _, err := dataset.Range(1000).Shards(t.Context(), 2, o); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "no exchange") {
		t.Errorf("shards of nodes that are not connected: %v", err)
	}
}

// Columns that the form leaves out are not read, and the order is that of the whole plan.
func TestFormColumns(t *testing.T) {
	dir := t.TempDir()
	if _, err := dataset.Range(200000).WithColumns(`s = string(random())`, "x = double(id)").WriteParquet(t.Context(), dir, nil); err != nil {
		t.Fatal(err)
	}
	read := func(f shard.Form) (first [32]byte, bytes int64, s shard.State) {
		its, err := dataset.ReadParquet(dir).Filter("id % 2 == 0").Shards(t.Context(), 1, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 1000, Epochs: 1, Form: f,
			Shuffle: &shard.Shuffle{Lanes: 2}}})
		if err != nil {
			t.Fatal(err)
		}
		defer its[0].Close()
		for b, err := range its[0].All(t.Context()) {
			if err != nil {
				t.Fatal(err)
			}
			if b.Step() == 3 {
				if x, ok := b.Tensor("x"); ok {
					first = shard.DigestTensors([]shard.Tensor{x})
				} else {
					rec := b.Record().Column(2).(*array.Float64)
					vals := rec.Float64Values()
					first = shard.DigestTensors([]shard.Tensor{{Name: "x", DType: shard.Float64, Shape: []int{len(vals)}, Data: arrow.Float64Traits.CastToBytes(vals)}})
				}
				s = its[0].State()
			}
		}
		return first, its[0].Stats().Engine.BytesRead, s
	}
	all, allBytes, allState := read(shard.Form{})
	one, oneBytes, oneState := read(shard.Form{Tensors: true, Columns: map[string]shard.Column{"x": {}}})
	if all != one || !cmp.Equal(allState, oneState) {
		t.Error("another order")
	}
	if oneBytes > allBytes*3/4 {
		t.Errorf("%d of %d bytes read", oneBytes, allBytes)
	}
}
