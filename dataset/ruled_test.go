package dataset_test

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/csvio"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/shard"
)

// dealt are the rows of an epoch of one rank, and the states after its steps. With every > 0 the job is opened anew from
// its state after so many steps.
func dealt(t *testing.T, ds *dataset.Dataset, o dataset.ShardOptions, every int) (rows []string, states []shard.State) {
	t.Helper()
	o.Epochs = 1
	var it *shard.Iterator
	defer func() { it.Close() }()
	for step := 0; ; step++ {
		if it == nil || every > 0 && step%every == 0 {
			if it != nil {
				s := it.State()
				o.State = &s
				if err := it.Close(); err != nil {
					t.Fatal(err)
				}
			}
			its, err := ds.Shards(t.Context(), 1, &o)
			if err != nil {
				t.Fatal(err)
			}
			it = its[0]
		}
		b, err := it.Next(t.Context())
		if err == io.EOF {
			return rows, states
		}
		if err != nil {
			t.Fatal(err)
		}
		for i := range b.Real() {
			var row []string
			for _, c := range b.Record().Columns() {
				row = append(row, c.ValueStr(i))
			}
			rows = append(rows, strings.Join(row, " "))
		}
		b.Release()
		states = append(states, it.State())
	}
}

// Beside text, bytes stand for the rows of other sources, also for those that take none: no row is lost, none comes twice,
// and no window has more rows than bytes, wherever the job stops and goes on.
func TestRowsBesideText(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "a.txt")
	if err := os.WriteFile(text, []byte(strings.Repeat("some text\n", 200)), 0o600); err != nil {
		t.Fatal(err)
	}
	same := dataset.Range(3200).WithColumns(`text = "the same"`).Select("text") // half a byte for a row
	if _, err := same.WriteParquet(t.Context(), filepath.Join(dir, "p"), nil); err != nil {
		t.Fatal(err)
	}
	nothing := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "text", Type: arrow.Null, Nullable: true}}, nil), []arrow.Array{array.NewNull(500)}, 500)
	for name, c := range map[string]struct {
		ds   *dataset.Dataset
		rows int
	}{
		"compressed": {dataset.ReadParquet(filepath.Join(dir, "p")), 3200},
		"nulls":      {dataset.FromRecords(nothing.Schema(), nothing).WithColumns(`text = cast(text, "string")`), 500},
		"range":      {same, 3200},
	} {
		ds := c.ds.Union(dataset.ReadText(text))
		for _, window := range []int64{7, 50, 4096} {
			o := dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 3}, Options: shard.Options{GlobalBatch: 23, Tail: shard.TailPad, Shuffle: &shard.Shuffle{Lanes: 1, WindowBytes: window}}}
			want, states := dealt(t, ds, o, 0)
			if len(want) != c.rows+200 {
				t.Errorf("%s, windows of %d: %d rows", name, window, len(want))
			}
			for _, s := range states {
				if at := s.Sources[0].Pos[0]; at[1] > window {
					t.Fatalf("%s, windows of %d: one has given %d rows", name, window, at[1])
				}
			}
			if name == "nulls" { // records in memory are of this process alone
				continue
			}
			for _, every := range []int{1, 5} {
				if got, again := dealt(t, ds, o, every); !reflect.DeepEqual(got, want) || !reflect.DeepEqual(again, states) {
					t.Errorf("%s, windows of %d: other rows, or states, when it goes on every %d steps: %d rows of %d", name, window, every, len(got), len(want))
				}
			}
		}
	}
}

// Rules leave the order alone: default windows, too, are those of the plan, whatever is left out of it by which rule.
func TestShardsWithoutRules(t *testing.T) {
	dir := t.TempDir()
	wide := dataset.Range(60_000).WithColumns(`s = "` + strings.Repeat("x", 400) + `" + string(id)`)
	if _, err := wide.WriteParquet(t.Context(), dir, nil); err != nil {
		t.Fatal(err)
	}
	ds := dataset.ReadParquet(dir).Filter("id % 3 > 0").Select("id")
	o := dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 3}, Options: shard.Options{GlobalBatch: 1000}}
	want, states := dealt(t, ds, o, 0)
	if len(want) != 40_000 || states[0].Sources[0].Window < 1<<18 {
		t.Fatalf("%d rows, windows of %d: those of numbers alone are larger", len(want), states[0].Sources[0].Window)
	}
	o.NoRules = ops.RuleNames()
	if got, again := dealt(t, ds, o, 0); !reflect.DeepEqual(got, want) || !reflect.DeepEqual(again, states) {
		t.Errorf("other rows without rules: windows of %d, %d with them", again[0].Sources[0].Window, states[0].Sources[0].Window)
	}
}

// sometimes is a CSV file of 500 rows, of which 50 have an x that is no number: those whose id ends with 3.
func sometimes(t *testing.T) *dataset.Dataset {
	var text strings.Builder
	text.WriteString("id,x\n")
	for i := range 500 {
		if i%10 == 3 {
			fmt.Fprintf(&text, "%d,bad\n", i)
		} else {
			fmt.Fprintf(&text, "%d,%d\n", i, 2*i)
		}
	}
	file := filepath.Join(t.TempDir(), "a.csv")
	if err := os.WriteFile(file, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	return dataset.Read(csvio.New(csvio.Options{Options: fileset.Options{Paths: []string{file}, Types: map[string]string{"id": "int", "x": "int"}}}))
}

// Which rows are skipped depends on which columns are parsed, so rules that decide on those stay on; others may be left out.
func TestRulesUnderSkip(t *testing.T) {
	skip := &ops.OnError{Policy: "skip"}
	for used, want := range map[string]int64{"id": 400, "id,x": 360} {
		ds := sometimes(t).Filter("id >= 100").Select(strings.Split(used, ",")...)
		for _, r := range ops.RuleNames() {
			o := dataset.RunOptions{OnError: skip, NoRules: []string{r}}
			n, err := ds.Count(t.Context(), &o)
			if r == "fold" || r == "projection" {
				if fault.CodeOf(err) != fault.Unsupported || !strings.Contains(err.Error(), r) {
					t.Errorf("without %s: %d rows, %v", r, n, err)
				}
				if _, err := ds.Shards(t.Context(), 1, &dataset.ShardOptions{RunOptions: o, Options: shard.Options{GlobalBatch: 8}}); fault.CodeOf(err) != fault.Unsupported {
					t.Errorf("shards without %s: %v", r, err)
				}
				continue
			}
			if err != nil || n != want {
				t.Errorf("%s without %s: %d rows, %v", used, r, n, err)
			}
			rows, _ := dealt(t, ds, dataset.ShardOptions{RunOptions: o, Options: shard.Options{GlobalBatch: 50, Tail: shard.TailPad, Shuffle: &shard.Shuffle{Lanes: 2, WindowBytes: 512}}}, 3)
			if int64(len(rows)) != want {
				t.Errorf("%s without %s: %d rows of shards", used, r, len(rows))
			}
		}
	}
	if n, err := sometimes(t).Select("id").Count(t.Context(), &dataset.RunOptions{NoRules: []string{"merge"}}); err != nil || n != 500 {
		t.Errorf("%d rows, %v", n, err)
	}
}

// Which rows of text are samples depends on the run's policy, so a state or a ledger of the other one is refused with what differs,
// and what was counted for one is not taken for the other. Limits of what is skipped are no part of it.
func TestOtherPolicy(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	ds := sometimes(t)
	skip, fail := &ops.OnError{Policy: "skip"}, &ops.OnError{Policy: "fail"}
	options := func(p *ops.OnError) dataset.ShardOptions {
		return dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 3, OnError: p}, Options: shard.Options{GlobalBatch: 10, Epochs: 1, Tail: shard.TailPad,
			Form: shard.Form{Tensors: true, Columns: map[string]shard.Column{"id": {}}}, Shuffle: &shard.Shuffle{Lanes: 2, WindowBytes: 512}}}
	}
	read := func(o dataset.ShardOptions, steps int) (*shard.Iterator, shard.State, *shard.Ledger, error) {
		its, err := ds.Shards(t.Context(), 1, &o)
		if err != nil {
			return nil, shard.State{}, nil, err
		}
		t.Cleanup(func() {
			if err := its[0].Close(); err != nil {
				t.Error(err)
			}
		})
		for range steps {
			b, err := its[0].Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			b.Release()
		}
		return its[0], its[0].State(), its[0].Ledger(), nil
	}
	counted := map[int64]bool{}
	for _, c := range []struct {
		was, is *ops.OnError
		says    string
	}{
		{nil, skip, "it is of a run that does not skip rows that cannot be processed, and this one does: on_error"},
		{skip, nil, "it is of a run that skips rows that cannot be processed, and this one does not: on_error"},
		{skip, fail, "this one does not"}, {nil, fail, ""}, {skip, &ops.OnError{Policy: "skip", MaxRows: 499}, ""},
	} {
		_, s, l, err := read(options(c.was), 30)
		if err != nil {
			t.Fatal(err)
		}
		o := options(c.is)
		other, _, _, err := read(o, 0)
		if err != nil {
			t.Fatal(err)
		}
		restored := other.Restore(s)
		o.State = &s
		_, _, _, opened := read(o, 0)
		o.State, o.Ledger = nil, l
		_, _, _, with := read(o, 0)
		o.Ledger = nil
		_, found := ds.StateAt(t.Context(), 1, &o, shard.At{Step: 30, Ledger: l})
		for how, err := range map[string]error{"restored": restored, "opened": opened, "with its ledger": with, "replayed": found} {
			if c.says == "" && err != nil || c.says != "" && (fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.says)) {
				t.Errorf("%v, %s as %v: %v, want %q", c.was, how, c.is, err, c.says)
			}
		}
		if c.says != "" && !errors.Is(opened, shard.ErrOtherJob) {
			t.Errorf("%v is no error of another job", opened)
		}
		at, err := ds.StateAt(t.Context(), 1, &o, shard.At{Step: 30})
		if _, want, _, _ := read(o, 30); err != nil || !reflect.DeepEqual(at, want) {
			t.Errorf("counted as %v: %+v, %v; it was %+v", c.is, at, err, want)
		}
		counted[at.Sources[0].Pos[0][1]<<32|at.Sources[0].Pos[0][0]] = true
	}
	if len(counted) != 2 {
		t.Errorf("after 30 steps there are %d places, of two policies", len(counted))
	}
}

// Of an epoch without a step is said why.
func TestEmptyEpochIsSaid(t *testing.T) {
	var said strings.Builder
	o := dataset.ShardOptions{RunOptions: dataset.RunOptions{Log: slog.New(slog.NewTextHandler(&said, nil))}, Options: shard.Options{GlobalBatch: 451}}
	for _, c := range []struct{ filter, want string }{
		{"id < 450", "epoch 0 has no step: 450 samples are fewer than a global batch of 451, and tail drop leaves them out: make global_batch smaller, or give tail: pad"},
		{"id < 0", "epoch 0 has no step: it has no samples"}, {"id < 451", ""},
	} {
		said.Reset()
		dealt(t, dataset.Range(1000).Filter(c.filter), o, 0)
		if got := said.String(); strings.Contains(got, "has no step") != (c.want != "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: %q", c.filter, got)
		}
	}
}

// A job whose steps fail for a row goes on from its state, and ledger, with a policy that skips it: no sample was made of a window with such rows. The
// other way round it may have been.
func TestSkipFromAState(t *testing.T) {
	ds := dataset.Range(1_000_000).WithColumns(`x = cast(id == 900000 ? 300 : 3, "uint8")`)
	skip, fail := &ops.OnError{Policy: "skip"}, &ops.OnError{Policy: "fail"}
	for _, c := range []struct{ was, is *ops.OnError }{{fail, skip}, {nil, skip}, {skip, fail}} {
		o := dataset.ShardOptions{RunOptions: dataset.RunOptions{OnError: c.was}, Options: shard.Options{GlobalBatch: 10_000, Shuffle: &shard.Shuffle{Mode: shard.ModeNone}, Epochs: 1, Prefetch: 1}}
		it, err := ds.Iterator(t.Context(), &o)
		if err != nil {
			t.Fatal(err)
		}
		for range 20 {
			b, err := it.Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			b.Release()
		}
		s := it.State()
		o.OnError, o.State, o.Ledger = c.is, &s, it.Ledger()
		if err := it.Close(); err != nil {
			t.Fatal(err)
		}
		it, err = ds.Iterator(t.Context(), &o)
		if c.is == fail {
			if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "it is of a run that skips rows") {
				t.Errorf("%v after %v: %v", c.is, c.was, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		rows, first := 0, int64(-1)
		for err == nil {
			var b *shard.Batch
			if b, err = it.Next(t.Context()); err == nil {
				if rows == 0 {
					first = b.Record().Column(0).(*array.Int64).Value(0)
				}
				rows += b.Real()
				b.Release()
			}
		}
		then := it.State()
		if err := it.Close(); err != nil {
			t.Error(err)
		}
		if first != 200_000 || err != io.EOF || rows != 790_000 { // what is left of the last step is dropped
			t.Errorf("%v after %v: %d rows from %d on, %v", c.is, c.was, rows, first, err)
		}
		o.State, o.Ledger = &then, nil
		if it, err = ds.Iterator(t.Context(), &o); err != nil { // it is one of skip now
			t.Fatal(err)
		}
		if err := it.Close(); err != nil {
			t.Error(err)
		}
	}
}

// The label entropy is that of the order of the job, also where a column that is no label decides which rows there are.
func TestLabelEntropyUnderSkip(t *testing.T) {
	o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{OnError: &ops.OnError{Policy: "skip"}}, Options: shard.Options{GlobalBatch: 45, Shuffle: &shard.Shuffle{Mode: shard.ModeNone}}}
	q, err := sometimes(t).WithColumns("label = id % 10").LabelEntropy(t.Context(), "label", 1, o)
	if err != nil || q.Labels != 9 || q.Steps != 10 {
		t.Errorf("%+v, %v: no row whose label is 3 has a number for x", q, err)
	}
	_, err = sometimes(t).LabelEntropy(t.Context(), "idd", 1, o)
	if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), `did you mean "id"`) {
		t.Error(err)
	}
}

// Limits of skipped rows are those of an epoch, and of what was read since the job was opened.
func TestLimitsOfShards(t *testing.T) {
	ds := dataset.Range(20_000).WithColumns(`c = int(id % 100 == 0 ? "bad" : "1")`)
	o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{OnError: &ops.OnError{Policy: "skip", MaxRows: 150}}, Options: shard.Options{GlobalBatch: 198, Prefetch: -1, Shuffle: &shard.Shuffle{Lanes: 1, WindowRows: 500}}}
	read := func(steps int) (shard.State, error) {
		its, err := ds.Shards(t.Context(), 1, o)
		if err != nil {
			t.Fatal(err)
		}
		defer its[0].Close()
		for range steps {
			b, err := its[0].Next(t.Context())
			if err != nil {
				return its[0].State(), err
			}
			b.Release()
		}
		return its[0].State(), nil
	}
	if _, err := read(100); fault.CodeOf(err) != fault.Exhausted || !strings.Contains(err.Error(), "in this epoch, more than max_rows 150") {
		t.Errorf("200 rows of an epoch do not parse: %v", err)
	}
	half, err := read(50)
	if err != nil {
		t.Fatal(err)
	}
	o.State = &half
	if _, err := read(50); err != nil {
		t.Errorf("100 rows of the rest do not parse: %v", err)
	}
}

// What an epoch skipped is said once, when it has been read.
func TestSkippedIsSaid(t *testing.T) {
	var said strings.Builder
	log := slog.New(slog.NewTextHandler(&said, nil))
	o := dataset.ShardOptions{RunOptions: dataset.RunOptions{OnError: &ops.OnError{Policy: "skip"}, Log: log}, Options: shard.Options{GlobalBatch: 45, Shuffle: &shard.Shuffle{Lanes: 2, WindowBytes: 512}}}
	if rows, _ := dealt(t, sometimes(t), o, 0); len(rows) != 450 {
		t.Errorf("%d rows", len(rows))
	}
	if got := said.String(); strings.Count(got, "were skipped") != 1 || !strings.Contains(got, `msg="on_error: 50 of 500 rows were skipped in epoch 0" source=data epoch=0 pass=0 skipped=50 rows=500`) {
		t.Error(got)
	}
	said.Reset()
	if dealt(t, sometimes(t).Select("id"), o, 0); said.Len() > 0 {
		t.Error(said.String())
	}
}
