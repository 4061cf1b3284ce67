package shard_test

import (
	"bytes"
	"encoding/json"
	"io"
	"math/big"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/shard"
)

// jobOptions is a job of windows that the tests below disturb.
func jobOptions(seed uint64) *dataset.ShardOptions {
	return &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: seed}, Options: shard.Options{GlobalBatch: 16,
		Shuffle: &shard.Shuffle{Mode: shard.ModeWindow, Lanes: 4, WindowRows: 8}}}
}

func open(t testing.TB, ds *dataset.Dataset, ranks int, o *dataset.ShardOptions) []*shard.Iterator {
	t.Helper()
	its, err := ds.Shards(t.Context(), ranks, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, it := range its {
			if err := it.Close(); err != nil {
				t.Error(err)
			}
		}
	})
	return its
}

// digests reads up to n steps of all ranks, to the epoch's end at most.
func digests(t testing.TB, its []*shard.Iterator, n int) (out [][32]byte) {
	t.Helper()
	for range n {
		for _, it := range its {
			b, err := it.Next(t.Context())
			if err == io.EOF {
				if it == its[len(its)-1] {
					return out
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			out = append(out, b.Digest())
			b.Release()
		}
	}
	return out
}

func wantError(t testing.TB, err error, code fault.Code, parts ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want %v with %q", code, parts)
	}
	if fault.CodeOf(err) != code {
		t.Errorf("%v: code %v, want %v", err, fault.CodeOf(err), code)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%v\ndoes not say %q", err, p)
		}
	}
}

// A state that a program has edited, in any place, is refused with what is wrong, or, where the edit makes another
// true position, goes on there; it never gives a batch of a position that no run can have. Of a text, every edit is
// noticed: see TestEditedText.
func TestEditedStates(t *testing.T) {
	ds := dataset.Read(cells{0, []int{40, 30, 50, 20, 60, 10}}).Filter("id % 3 != 0")
	its := open(t, ds, 2, jobOptions(7))
	digests(t, its, 3)
	good, err := json.Marshal(its[0].State())
	if err != nil {
		t.Fatal(err)
	}
	pos := func(s *shard.State) [][2]int64 { return s.Sources[0].Pos }
	for name, c := range map[string]struct {
		edit func(s *shard.State)
		code fault.Code
		says string
	}{
		"version":         {func(s *shard.State) { s.Version = 2 }, fault.Unsupported, "version 2"},
		"order":           {func(s *shard.State) { s.Order = 2 }, fault.Unsupported, "order version 2"},
		"plan":            {func(s *shard.State) { s.Plan = strings.Repeat("0", 64) }, fault.Invalid, "another plan"},
		"no plan":         {func(s *shard.State) { s.Plan = "" }, fault.Invalid, "it has no plan"},
		"data":            {func(s *shard.State) { s.Data = strings.Repeat("0", 64) }, fault.Invalid, "added, removed or changed"},
		"seed":            {func(s *shard.State) { s.Seed++ }, fault.Invalid, "seed 8"},
		"negative step":   {func(s *shard.State) { s.Step = -1 }, fault.Invalid, "negative"},
		"negative sample": {func(s *shard.State) { s.Sample = -48 }, fault.Invalid, "negative"},
		"negative batch":  {func(s *shard.State) { s.GlobalBatch = -1 }, fault.Invalid, "negative"},
		"negative length": {func(s *shard.State) { s.Length = -1 }, fault.Invalid, "negative"},
		"beyond length":   {func(s *shard.State) { s.Length = 3 }, fault.Invalid, "sample 48 of an epoch of 3"},
		"no sources":      {func(s *shard.State) { s.Sources = nil }, fault.Invalid, "0 sources"},
		"two sources":     {func(s *shard.State) { s.Sources = append(s.Sources, s.Sources[0]) }, fault.Invalid, "2 sources"},
		"other name":      {func(s *shard.State) { s.Sources[0].Name = "x" }, fault.Invalid, `"x"`},
		"other mode":      {func(s *shard.State) { s.Sources[0].Mode = shard.ModeNone }, fault.Invalid, "shuffled as none"},
		"other lanes":     {func(s *shard.State) { s.Sources[0].Lanes = 3 }, fault.Invalid, "3 lanes"},
		"other window":    {func(s *shard.State) { s.Sources[0].Window = 9 }, fault.Invalid, "windows of 9"},
		"few positions":   {func(s *shard.State) { s.Sources[0].Pos = s.Sources[0].Pos[:3] }, fault.Invalid, "3 positions for 4 lanes"},
		"no positions":    {func(s *shard.State) { s.Sources[0].Pos = nil }, fault.Invalid, "0 positions"},
		"negative window": {func(s *shard.State) { pos(s)[2][0] = -1 }, fault.Invalid, "window -1"},
		"negative given":  {func(s *shard.State) { pos(s)[2][1] = -1 }, fault.Invalid, "sample -1"},
		"window too far":  {func(s *shard.State) { pos(s)[1][0] = 1 << 40 }, fault.Invalid, "does not exist"},
		"lane ahead":      {func(s *shard.State) { pos(s)[1][0] += 2 }, fault.Invalid, "do not belong together"},
		"no sample given": {func(s *shard.State) { s.Sample = 0 }, fault.Invalid, "under way"},
		"no weights":      {func(s *shard.State) { s.Weights = nil }, fault.Invalid, "weights"},
		"late weights":    {func(s *shard.State) { s.Weights[0].At = 5 }, fault.Invalid, "weights"},
		"wrong weights":   {func(s *shard.State) { s.Weights[0].Weights = []int64{1, 1} }, fault.Invalid, "weights"},
		"same weights":    {func(s *shard.State) { s.Weights = append(s.Weights, s.Weights[0]) }, fault.Invalid, "weights"},
		"negative weight": {func(s *shard.State) { s.Weights[0].Weights = []int64{-1} }, fault.Invalid, "weight"},
		"no weight":       {func(s *shard.State) { s.Weights[0].Weights = []int64{0} }, fault.Invalid, "weight"},
		"too many given":  {func(s *shard.State) { pos(s)[0][1] += 100 }, fault.Invalid, ""},
		"one more given":  {func(s *shard.State) { pos(s)[0][1]++ }, fault.Invalid, "do"},
		"other pass":      {func(s *shard.State) { s.Sources[0].Pass = 3 }, fault.Invalid, "pass 3"},
		"next pass":       {func(s *shard.State) { s.Sources[0].Pass = 1 }, fault.Invalid, "does not repeat"},
		"few samples":     {func(s *shard.State) { s.Sample = 5 }, fault.Invalid, "5 samples were given"},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := shard.ParseState(good)
			if err != nil {
				t.Fatal(err)
			}
			c.edit(&s)
			o := jobOptions(7)
			its, err := ds.Shards(t.Context(), 2, o)
			if err != nil {
				t.Fatal(err)
			}
			defer closeAll(t, its)
			if err = its[0].Restore(s); err == nil { // what needs the data is found with the first step
				var b *shard.Batch
				if b, err = its[0].Next(t.Context()); err == nil {
					b.Release()
				}
			}
			wantError(t, err, c.code, c.says)
		})
	}
}

// editedStates are states of jobs of every kind, for what is done to their texts.
func editedStates(t *testing.T) (all []shard.State) {
	t.Helper()
	long := jobOptions(7)
	long.StepsPerEpoch = 5
	for _, c := range []struct {
		ds    *dataset.Dataset
		o     *dataset.ShardOptions
		steps int
	}{
		{dataset.Read(cells{0, []int{40, 30, 50, 20, 60, 10}}).Filter("id % 3 != 0"), jobOptions(1<<63 + 9), 3},
		{dataset.Range(1000), jobOptions(0), 0},
		{dataset.Range(1000), long, 2},
		{dataset.MixWith(dataset.MixOptions{Schedule: []ops.WeightsAt{{At: 20, Weights: []int64{1, 3}}}},
			dataset.MixSource{Name: "a-z", Weight: 1, Data: dataset.Range(100), Repeat: true},
			dataset.MixSource{Name: "b", Weight: 1, Data: dataset.Read(cells{5000, []int{300}}).Select("id")}), jobOptions(7), 20},
	} {
		its := open(t, c.ds, 2, c.o)
		digests(t, its, c.steps)
		all = append(all, its[0].State())
	}
	return all
}

// Of a state's text every number that is changed is noticed, and every byte: the text is refused, or says the
// same (a letter of a field's name in upper case; another name for one that is 0).
func TestEditedText(t *testing.T) {
	number := regexp.MustCompile(`[0-9]+`)
	for i, want := range editedStates(t) {
		good, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		same := 0
		try := func(text []byte) {
			t.Helper()
			got, err := shard.ParseState(text)
			switch {
			case err == nil && !cmp.Equal(got, want):
				t.Errorf("state %d: %s\nis taken for\n%s", i, text, good)
			case err == nil:
				same++
			case fault.CodeOf(err) != fault.Corrupt && fault.CodeOf(err) != fault.Unsupported || !cmp.Equal(got, shard.State{}):
				t.Errorf("state %d: %s: %v, and %+v", i, text, err, got)
			}
		}
		for at := range good {
			for _, b := range append([]byte("0123456789"), good[at]^1, good[at]^2, good[at]^4, good[at]^8, good[at]^16, good[at]^32, good[at]^64, good[at]^128) {
				if bad := bytes.Clone(good); b != good[at] {
					bad[at] = b
					try(bad)
				}
			}
			try(slices.Delete(bytes.Clone(good), at, at+1))
			try(slices.Insert(bytes.Clone(good), at, good[at]))
		}
		if same == 0 || same > 2*len(good) { // names of fields: in upper case, or of those that are 0
			t.Errorf("state %d: %d edits of %d bytes are of no importance", i, same, len(good))
		}
		numbers := number.FindAllIndex(good, -1)
		for _, x := range numbers {
			same = 0
			n := new(big.Int)
			n.SetString(string(good[x[0]:x[1]]), 10)
			for _, d := range []int64{1, -1, 10, -10, 1 << 32} {
				try(slices.Concat(good[:x[0]], []byte(new(big.Int).Add(n, big.NewInt(d)).String()), good[x[1]:]))
			}
			if same > 0 {
				t.Errorf("state %d: %s may be another number", i, good[x[0]:x[1]])
			}
		}
		if len(numbers) < 15 {
			t.Errorf("state %d has %d numbers: %s", i, len(numbers), good)
		}
	}
}

// Texts that were only laid out anew say the same; those of which a field was left out, or exchanged, are refused.
func TestStateFields(t *testing.T) {
	for i, want := range editedStates(t) {
		var held struct{ At shard.State } // within something else, as in a checkpoint
		var wide bytes.Buffer
		enc := json.NewEncoder(&wide)
		enc.SetIndent("", "\t")
		enc.SetEscapeHTML(false)
		if err := enc.Encode(map[string]any{"at": &want}); err != nil {
			t.Fatal(err)
		}
		if err := json.Unmarshal(wide.Bytes(), &held); err != nil || !cmp.Equal(held.At, want) {
			t.Errorf("state %d in %s: %v", i, wide.Bytes(), err)
		}
		good, err := json.Marshal(want)
		if err != nil {
			t.Fatal(err)
		}
		var fields map[string]json.RawMessage
		if err := json.Unmarshal(good, &fields); err != nil {
			t.Fatal(err)
		}
		sorted, _ := json.Marshal(fields) // in another order
		if got, err := shard.ParseState(sorted); err != nil || !cmp.Equal(got, want) {
			t.Errorf("state %d: %v", i, err)
		}
		for name, value := range fields {
			delete(fields, name)
			text, _ := json.Marshal(fields)
			fields[name] = value
			_, err := shard.ParseState(text)
			switch says := map[string]string{"version": "no version", "sum": "no sum"}[name]; {
			case says != "":
				wantError(t, err, fault.Corrupt, says)
			case string(value) != "0" && string(value) != `""`: // else it says the same
				wantError(t, err, fault.Corrupt, "edited or damaged")
			}
		}
		other := want
		other.Sample, other.Step = want.Step, want.Sample
		if text, _ := json.Marshal(other); want.Step != want.Sample {
			sum := func(b []byte) []byte { return b[bytes.LastIndexByte(b, ':'):] }
			_, err := shard.ParseState(slices.Concat(text[:len(text)-len(sum(text))], sum(good)))
			wantError(t, err, fault.Corrupt, "edited or damaged")
		}
	}
}

// What is no state is refused; every prefix of one is.
func TestParseState(t *testing.T) {
	its := open(t, dataset.Read(cells{0, []int{40, 30}}), 1, jobOptions(7))
	digests(t, its, 2)
	good, err := json.Marshal(its[0].State())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := shard.ReadState(strings.NewReader(string(good))); err != nil {
		t.Fatal(err)
	}
	for i := range good {
		if _, err := shard.ParseState(good[:i]); fault.CodeOf(err) != fault.Corrupt {
			t.Fatalf("the first %d bytes: %v", i, err)
		}
	}
	for text, code := range map[string]fault.Code{
		`[]`: fault.Corrupt, `{}`: fault.Corrupt, `null`: fault.Corrupt, `{"version":"1"}`: fault.Corrupt, `{"version":1,"weights":[[0]]}`: fault.Corrupt,
		`{"version":1,"seed":-1}`: fault.Corrupt, `{"version":1,"sources":[{"pos":[[1]]}]} x`: fault.Corrupt,
		`{"version":2,"sources":"new","sum":5}`: fault.Unsupported, `{"version":1}`: fault.Corrupt, `{"version":1,"sum":null}`: fault.Corrupt,
		`{"version":1,"sum":"00000000"}`: fault.Corrupt, `{"version":0}`: fault.Unsupported, `{"version":1,"weights":[0,[1]]}`: fault.Corrupt,
	} {
		if _, err := shard.ParseState([]byte(text)); fault.CodeOf(err) != code {
			t.Errorf("%s: %v, want %v", text, err, code)
		}
	}
	if _, err := shard.ReadState(io.LimitReader(zeros{}, 1<<30)); fault.CodeOf(err) != fault.Invalid {
		t.Error(err)
	}
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { clear(p); return len(p), nil }

// All ranks go on from one state; states of two steps are refused together.
func TestMixedStates(t *testing.T) {
	ds := dataset.Read(cells{0, []int{40, 30, 50, 20}})
	its := open(t, ds, 2, jobOptions(7))
	digests(t, its, 1)
	one := its[0].State()
	want := digests(t, its, 1)
	two := its[0].State()
	again := open(t, ds, 2, jobOptions(7))
	if err := again[0].Restore(one); err != nil {
		t.Fatal(err)
	}
	wantError(t, again[1].Restore(two), fault.Invalid, "rank 1", "step 2", "step 1", "same state")
	if err := again[1].Restore(one); err != nil {
		t.Fatal(err)
	}
	for i, d := range digests(t, again, 1) {
		if d != want[i] {
			t.Errorf("rank %d gets another batch", i)
		}
	}
}

// A plan with a closure runs, and refuses to go on from a state, as do other plans, seeds and data.
func TestRestoreElsewhere(t *testing.T) {
	dir := t.TempDir()
	file := func(name string, groups ...int) {
		writeGroups(t, filepath.Join(dir, name), int64(len(name))*1000, groups, true)
	}
	file("a.parquet", 40, 30)
	file("bb.parquet", 20)
	plan := func() *dataset.Dataset { return dataset.ReadParquet(dir).Filter("id % 3 != 0") }
	its := open(t, plan(), 1, jobOptions(7))
	digests(t, its, 1)
	s := its[0].State()
	refuse := func(ds *dataset.Dataset, seed uint64, code fault.Code, parts ...string) {
		t.Helper()
		o := jobOptions(seed)
		o.State = &s
		_, err := ds.Shards(t.Context(), 1, o)
		wantError(t, err, code, parts...)
	}
	refuse(plan().Filter("id > 5"), 7, fault.Invalid, "another plan")
	refuse(plan(), 8, fault.Invalid, "seed 7")
	closure := plan().MapBatches(echoRows, nil)
	if n := len(digests(t, open(t, closure, 1, jobOptions(7)), 2)); n != 2 {
		t.Errorf("%d batches of a plan with a closure", n)
	}
	refuse(closure, 7, fault.Unsupported, "cannot be compared")

	file("ccc.parquet", 5)
	refuse(plan(), 7, fault.Invalid, "added, removed or changed")
	if err := os.Remove(filepath.Join(dir, "ccc.parquet")); err != nil {
		t.Fatal(err)
	}
	o := jobOptions(7)
	o.State = &s
	digests(t, open(t, plan(), 1, o), 1)
	file("bb.parquet", 21)
	refuse(plan(), 7, fault.Invalid, "added, removed or changed")
	if err := os.Remove(filepath.Join(dir, "bb.parquet")); err != nil {
		t.Fatal(err)
	}
	refuse(plan(), 7, fault.Invalid, "added, removed or changed")
}

// A text file that changed at its first or last bytes is other data. A change in its middle, of the same size, is not seen: that is
// what docs/order.md says of the fingerprint.
func TestRestoreToChangedText(t *testing.T) {
	file := filepath.Join(t.TempDir(), "a.txt")
	text := bytes.Repeat([]byte("a line of 24 bytes here\n"), 20_000)
	write := func(at int) {
		t.Helper()
		b := bytes.Clone(text)
		b[at] ^= 1
		if err := os.WriteFile(file, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		t.Fatal(err)
	}
	options := func() *dataset.ShardOptions {
		o := jobOptions(7)
		o.Shuffle = &shard.Shuffle{Lanes: 1, WindowBytes: 4096}
		return o
	}
	its := open(t, dataset.ReadText(file), 1, options())
	digests(t, its, 3)
	s := its[0].State()
	for at, seen := range map[int]bool{0: true, 64<<10 - 2: true, len(text) / 2: false, len(text) - 64<<10 + 1: true, len(text) - 2: true} {
		write(at)
		o := options()
		o.State = &s
		again, err := dataset.ReadText(file).Shards(t.Context(), 1, o)
		if closeAll(t, again); seen {
			wantError(t, err, fault.Invalid, "added, removed or changed")
		} else if err != nil {
			t.Errorf("byte %d: %v", at, err)
		}
	}
}

// A change of weights after a restore takes effect there and is in the state.
func TestReweighed(t *testing.T) {
	plan := func(w int64) *dataset.Dataset {
		return dataset.MixWith(dataset.MixOptions{Schedule: []ops.WeightsAt{{At: 100, Weights: []int64{1, 1}}}},
			dataset.MixSource{Name: "a", Weight: w, Data: dataset.Range(1000)}, dataset.MixSource{Name: "b", Weight: 1, Data: dataset.Read(cells{5000, []int{300}}).Select("id")})
	}
	its := open(t, plan(1), 1, jobOptions(7))
	digests(t, its, 2)
	s := its[0].State()
	o := jobOptions(7)
	o.State = &s
	its = open(t, plan(3), 1, o)
	if got, _ := json.Marshal(its[0].State().Weights); string(got) != `[[0,[1,1]],[32,[3,1]],[100,[1,1]]]` {
		t.Errorf("weights %s", got)
	}
	b, err := its[0].Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer b.Release()
	n := 0
	for i := range b.Real() {
		if k := keyOf(b.Record(), i); len(k) != 4 || k[0] != '5' {
			n++
		}
	}
	if n != 12 {
		t.Errorf("%d of 16 samples are of the source with weight 3 of 4", n)
	}
}

func FuzzParseState(f *testing.F) {
	f.Add([]byte(`{"version":1,"order":1,"plan":"p","data":"d","seed":7,"epoch":0,"step":2,"sample":32,"global_batch":16,"weights":[[0,[1]]],"sources":[{"name":"data","mode":"window","lanes":2,"window":8,"pass":0,"pos":[[1,3],[0,2]]}]}`))
	f.Add([]byte(`{"version":2}`))
	f.Add([]byte(`{"version":1,"weights":[[0,[1]],[5,[2]]],"length":40}`))
	ds := dataset.Read(cells{0, []int{9, 7, 12}})
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := shard.ParseState(b)
		if err != nil {
			if c := fault.CodeOf(err); c != fault.Corrupt && c != fault.Unsupported {
				t.Fatal(err)
			}
			type fields shard.State // as if its sum were right
			if json.Unmarshal(b, (*fields)(&s)) != nil || s.Version != shard.StateVersion {
				return
			}
		}
		again, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if got, err := shard.ParseState(again); err != nil || !cmp.Equal(got, s) {
			t.Fatalf("%s: %v", again, err)
		}
		// With the right fingerprints, whatever else it says is refused or gives batches.
		o := jobOptions(s.Seed)
		o.Shuffle.Lanes, o.Shuffle.WindowRows = 2, 4
		its, err := ds.Shards(t.Context(), 1, o)
		if err != nil {
			t.Fatal(err)
		}
		defer closeAll(t, its)
		mine := its[0].State()
		s.Plan, s.Data, s.Order = mine.Plan, mine.Data, mine.Order
		if its[0].Restore(s) == nil {
			if b, err := its[0].Next(t.Context()); err == nil {
				b.Release()
			} else if c := fault.CodeOf(err); err != io.EOF && c != fault.Invalid {
				t.Fatal(err)
			}
		}
	})
}

// Where no step changes the number of rows, a sample number that does not fit the positions is noticed.
func TestEditedSample(t *testing.T) {
	ds := dataset.Range(10000)
	o := &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 100, Shuffle: &shard.Shuffle{Lanes: 4, WindowRows: 50}}}
	its, err := ds.Shards(t.Context(), 1, o)
	if err != nil {
		t.Fatal(err)
	}
	defer its[0].Close()
	for range 7 {
		b, err := its[0].Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		b.Release()
	}
	s := its[0].State()
	s.Sample++
	if err := its[0].Restore(s); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("error %v", err)
	}
	s.Sample--
	if err := its[0].Restore(s); err != nil {
		t.Fatal(err)
	}
	b, err := its[0].Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if b.Step() != 7 {
		t.Errorf("step %d", b.Step())
	}
	b.Release()
}

// A state takes 2 KiB per source at 64 lanes, at most, wherever the job is, and says what it did after a way through JSON.
func TestStateSize(t *testing.T) {
	ds := dataset.Range(1 << 22)
	o := &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 256, Shuffle: &shard.Shuffle{Lanes: 64, WindowRows: 1024}}}
	for _, step := range []int64{0, 1, 100, 1 << 12, 1<<14 - 1} {
		s, err := ds.StateAt(t.Context(), 8, o, shard.At{Step: step})
		if err != nil {
			t.Fatal(err)
		}
		for name, s := range map[string]shard.State{"here": s, "far on": farOn(s)} {
			b, err := json.Marshal(s)
			if err != nil {
				t.Fatal(err)
			}
			if len(s.Sources[0].Pos) != 64 || len(b) > 2<<10 {
				t.Errorf("step %d, %s: %d bytes for %d lanes", step, name, len(b), len(s.Sources[0].Pos))
			}
			again, err := shard.ParseState(b)
			if d := cmp.Diff(s, again); err != nil || d != "" {
				t.Errorf("step %d, %s: %v %s", step, name, err, d)
			}
		}
	}
}

// farOn is a state of a job of 1e12 rows in windows of the default size.
func farOn(s shard.State) shard.State {
	s.Epoch, s.Step, s.Sample = 9999, 3_906_250_000, 1_000_000_000_000
	src := s.Sources[0]
	src.Window, src.Pos = 524288, nil
	for range 64 {
		src.Pos = append(src.Pos, [2]int64{29999, 524288})
	}
	s.Sources = []shard.SourceState{src}
	return s
}
