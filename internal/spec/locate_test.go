package spec

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
)

const numbers = `version: 1
source: {range: {n: 100}}
steps:
  - filter: id > 3
  - with_columns:
      half: id / 2
      text: string(id)
  - union:
      - source: {range: {n: 5}}
        steps:
          - filter: id > 4
sink: {csv: {path: out/, partition_by: [text]}}
`

// What resolving finds wrong with a step, a source, the sink or the shards has its file and line, and so
// has what --set brought.
func TestLines(t *testing.T) {
	for _, c := range []struct {
		from, to string
		sets     []string
		want     string
	}{
		{"id > 3", "idd > 3", nil, `s.yaml:4:13: step 1 (filter): unknown column "idd"`},
		{"id > 3", "id +", nil, `s.yaml:4:13: step 1 (filter): expression: unexpected end`},
		{"id / 2", "idd / 2", nil, `s.yaml:6:13: step 2 (with_columns)`},
		{"string(id)", "nosuch(id)", nil, `s.yaml:7:13: step 2 (with_columns)`},
		{"id > 4", "idd > 4", nil, `s.yaml:11:21: step 1 (filter)`},
		{"union:\n", "map: {function: nosuch}\n  - union:\n", nil, `s.yaml:8:10: step 3: `},
		{"{range: {n: 100}}", "{parquet: {paths: [no/such.parquet]}}", nil, `s.yaml:2:9: source (parquet)`},
		{"[text]", "[txt]", nil, `s.yaml:12:41: sink: partition_by: unknown column "txt"; did you mean "text"?; have id, half, text`},
		{"[text]", "[text, half]", []string{"steps.2.with_columns={text: string(id), half: double(id)}"}, `s.yaml:12:47: sink, column "half": partition_by: a column of type double`},
		{"[text]", "[text, text]", nil, `s.yaml:12:47: sink, column "text": partition_by: column "text" is named twice`},
		{"[text]", "[text, id]", []string{"steps.2.with_columns={text: string(id)}"}, `s.yaml:12:47: sink: partition_by: no column would be left`},
		{"path: out/", "path: 'out/*'", nil, `s.yaml:12:20: sink: output path "out/*": a glob cannot be written to`},
		{"path: out/", "path: s4://b/out", nil, `s.yaml:12:20: sink, s4://b/out: unknown scheme "s4"`},
		{"path: out/", "path: s3://", nil, `s.yaml:12:20: sink: "s3://" lacks the name of a bucket`},
		{"sink:", "run: {on_error: {policy: skip, dead_letter: s4://b}}\nsink:", nil, `s.yaml:12:45: s4://b: unknown scheme "s4"`},
		{"sink:", "train: {storage: s4://b}\nshards: {global_batch: 4, columns: {id: int64}}\nsink:", nil, `s.yaml:12:18: s4://b: unknown scheme "s4"`},
		{"path: out/", "path: mem://b/out", nil, `s.yaml:12:20: sink.csv.path: mem://b/out is in the memory of one process, and is lost when it ends: name a folder`},
		{"", "", []string{"sink.csv.path=MEM://b"}, `s.yaml: --set sink.csv.path: MEM://b is in the memory`},
		{"sink:", "run: {on_error: {policy: skip, dead_letter: mem://b}}\nsink:", nil, `s.yaml:12:45: run.on_error.dead_letter: mem://b is in the memory`},
		{"sink:", "train: {storage: mem://b}\nshards: {global_batch: 4, columns: {id: int64}}\nsink:", nil, `s.yaml:12:18: train.storage: mem://b is in the memory`},
		{"sink:", "run: {on_error: {policy: skip, dead_letter: out/bad}}\nsink:", nil, `s.yaml:12:45: the dead letter folder out/bad and the output out/ must lie apart`},
		{"path: out/", "path: bad/out", []string{"run.on_error={policy: skip, dead_letter: bad}"}, `s.yaml: --set run.on_error: the dead letter folder bad and the output bad/out must lie apart`},
		{"", "", []string{"steps.1.filter=idd > 1"}, `s.yaml: --set steps.1.filter: step 1 (filter): unknown column "idd"`},
		{"", "", []string{"run.memory=5 parsecs"}, `s.yaml: --set run.memory: want a size such as 512MiB, not "5 parsecs"`},
		{"", "", []string{"run.cpus=2", "run.on_error={policy: skp}"}, `s.yaml: --set run.on_error: run.on_error.policy: want one of`},
		{"sink:", "run: {on_error: skip}\nsink:", []string{"run.on_error.max_rows=2"}, `--set run.on_error.max_rows=2: run.on_error holds a value, not keys: set the whole of it, as --set 'run.on_error={max_rows: ...}'`},
		{"", "", []string{"steps.8.filter=id > 1"}, `"8" is no item of a list of 3`},
		{"id > 3", "idd > 3", []string{"run.cpus=2"}, `s.yaml:4:13: step 1 (filter)`},
		{"", "", []string{"source={mix: {sources: [{name: a, weight: 1, source: {range: {n: 1}}, steps: [{filter: idd > 1}]}]}}", "steps=[]"},
			`source "a" of the mix: s.yaml: --set source: step 1 (filter)`},
		{"sink:", "shards: {global_batch: 4, columns: {half: float32, text: auto}}\nsink:", nil, `s.yaml:12:58: shards, column "text"`},
		{"- filter: id > 3", "- {filter: id > 3, on_error: {policy: skip, dead_letter: bad}}", nil, `s.yaml:4:60: a run has one dead letter, for all its steps: give run.on_error.dead_letter`},
		{"{range: {n: 100}}", "{csv: {paths: [x.csv], columns: []}}", nil, `s.yaml:2:9: source (csv): columns: there are none`},
		{"sink:", "run: {on_error: {max_rate: 3}}\nsink:", nil, `s.yaml:12:28: on_error: max_rate`},
	} {
		s, err := parse(t, "s.yaml", []byte(strings.Replace(numbers, c.from, c.to, 1)), c.sets)
		if err == nil {
			err = check(t, s)
		}
		if code := fault.CodeOf(err); err == nil || !strings.Contains(err.Error(), c.want) || code != fault.Invalid && code != fault.Unsupported && code != fault.NotFound {
			t.Errorf("%q %v: error %v (%v), want %q", c.to, c.sets, err, code, c.want)
		}
	}
}

func check(t *testing.T, s *Spec) error {
	ds, err := s.Dataset()
	if err != nil {
		return err
	}
	defer ds.Close()
	return s.Check(t.Context(), ds)
}

// What is wrong with the shards only when they are laid out has the line of the key that it is about.
func TestAtShards(t *testing.T) {
	const text = "version: 1\nsource: {range: {n: 5}}\nshards:\n  global_batch: 2\n  shuffle:\n    window_rows: 7\n    lanes: 3\n  columns: {id: auto}\nrun: {on_error: {policy: skip, dead_letter: bad/}}\n"
	s, err := parse(t, "s.yaml", []byte(text), nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		err  *fault.Error
		want string
	}{
		{fault.New(fault.Invalid, "shuffle: lanes must be 1 to 5, have 6"), "s.yaml:7:12: "},
		{fault.New(fault.Invalid, "shuffle: give window_bytes instead of window_rows"), "s.yaml:6:18: "},
		{fault.New(fault.Invalid, "shuffle: one window takes too much"), "s.yaml:6:5: "},
		{fault.New(fault.Unsupported, "dead letters of shards"), "s.yaml:9:45: "},
		{fault.New(fault.Invalid, "no tensor form").At(fault.Place{Column: "id"}), "s.yaml:8:17: "},
		{fault.New(fault.Invalid, "no such column; it has lanes of its own").At(fault.Place{Column: "id"}), "s.yaml:8:17: "},
		{fault.New(fault.Invalid, "an epoch has no end: give steps_per_epoch"), "s.yaml:4:3: "},
		{fault.New(fault.Unavailable, "the bucket is away"), "the bucket"},
		{fault.New(fault.Invalid, "restore: the state is of seed 0"), "restore: "},
	} {
		got := s.AtShards(c.err)
		if !strings.HasPrefix(got.Error(), c.want) || fault.CodeOf(got) != c.err.Code || s.AtShards(got) != got {
			t.Errorf("%v: %v, want %q", c.err, got, c.want)
		}
	}
}

// Every size takes every form, also in the options of formats.
func TestSizesEverywhere(t *testing.T) {
	s, err := parse(t, "s", []byte(`version: 1
source: {csv: {paths: [x], split_bytes: 64KiB, sample_bytes: 1.5MB}}
sink: {parquet: {path: y, row_group_bytes: 8MiB, page_bytes: 65536, target_size: 1g}}
`), nil)
	if err != nil {
		t.Fatal(err)
	}
	c, p := s.Source.CSV, s.Sink.Parquet
	if c.SplitBytes != 64<<10 || c.SampleBytes != 1_500_000 || p.RowGroupBytes != 8<<20 || p.PageBytes != 65536 || p.TargetSize != 1<<30 {
		t.Errorf("%+v %+v", c, p)
	}
}

// Folders that go with a job are no places to write to.
func TestFoldersOfAJob(t *testing.T) {
	t.Setenv(EnvTemps, "/tmp:/var/tmp")
	for place, lost := range map[string]bool{
		"/tmp": true, "/tmp/out/": true, "/srv/../tmp/x": true, "file:///var/tmp/x": true,
		"/tmpx/out": false, "/srv/tmp/": false, "out/tmp": false, "s3://tmp/out": false, "": false,
	} {
		if err := Lasting(place); (err != nil) != lost {
			t.Errorf("%q: %v", place, err)
		}
	}
}

// A variable that was there where a job was submitted, and is not on its node, is named with what
// sends it along.
func TestVariablesOfAJob(t *testing.T) {
	t.Setenv("PENSTOCK_JOB", "j1")
	file := filepath.Join(t.TempDir(), "s.yaml")
	if err := os.WriteFile(file, []byte("version: 1\nname: ${env:PENSTOCK_NO_SUCH}\nsource: {range: {n: 1}}\nsink: {count: {}}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(file, nil, Trust{}); err == nil || !strings.Contains(err.Error(), "--env PENSTOCK_NO_SUCH") {
		t.Error(err)
	}
}
