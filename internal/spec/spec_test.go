package spec

import (
	"encoding/json"
	"flag"
	"os"
	"reflect"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/google/go-cmp/cmp"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobcache"
	"github.com/penstock-data/penstock/shard"
)

var update = flag.Bool("update", false, "rewrite generated files")

const taxi = `version: 1
name: taxi
source: {parquet: {paths: ["data/**/*.parquet"]}}
steps:
  - filter: fare_amount > 0 && trip_distance < 100
  - with_columns: {tip_rate: tip_amount / fare_amount, log_dist: log1p(trip_distance)}
  - select: [tip_rate, log_dist, passenger_count]
    on_error: {policy: skip, max_rows: 3}
sink: {parquet: {path: out/, compression: zstd, target_size: 1GiB}}
run: {memory: 512MiB, cpus: 2, seed: 7, stall_timeout: 90s, on_error: {policy: skip, max_rows: 100, dead_letter: bad/}}
`

func TestParse(t *testing.T) {
	s, err := parse(t, "taxi.yaml", []byte(taxi), []string{"run.memory=1GiB", "steps.1.filter=fare_amount > 5", "sink.parquet.mode=append", "run.id=abc", "steps.2.on_error=skip"})
	if err != nil {
		t.Fatal(err)
	}
	if s.Run.Memory != 1<<30 || *s.Steps[0].Filter != "fare_amount > 5" || s.Sink.Parquet.Mode != "append" || s.Sink.Parquet.TargetSize != 1<<30 ||
		s.Run.ID != "abc" || s.Run.Seed != 7 || s.Steps[2].OnError.Policy != "skip" || s.Steps[1].OnError.Policy != "skip" || s.Run.OnError.DeadLetter != "bad/" {
		t.Errorf("%+v", s)
	}
	w := s.Steps[1].WithColumns
	if len(w) != 2 || w[0].Key != "tip_rate" || w[1].Key != "log_dist" {
		t.Errorf("with_columns %v", w)
	}
	if _, err := s.Dataset(); err != nil {
		t.Error(err)
	}
}

// Every mistake names its line and what would be right.
func TestMistakes(t *testing.T) {
	t.Setenv("PENSTOCK_TEST_SECRET", "hush")
	for _, c := range []struct{ from, to, want string }{
		{"  - filter:", "  - filtr:", `taxi.yaml:5:5: steps[1]: unknown key "filtr": did you mean "filter"?`},
		{"version: 1\n", "", `key "version" is missing`},
		{"version: 1", "version: 2", "taxi.yaml:1:10: version: this program reads version 1, not 2"},
		{"memory: 512MiB", "memory: 1KiB", "taxi.yaml:10:15: run.memory: must be at least 1.0 MiB, not 1.0 KiB"},
		{"memory: 512MiB", "memory: 0", "run.memory: must be at least 1.0 MiB, not 0 B"},
		{"memory: 512MiB", "memory: -5", `run.memory: want a size such as 512MiB, not "-5"`},
		{"memory: 512MiB", "memory: 512 parsecs", `taxi.yaml:10:15: run.memory: want a size such as 512MiB, not "512 parsecs"`},
		{"cpus: 2", "cache: {dir: c, max: 64MiB}", ""},
		{"cpus: 2", "cache: {dir: c}", `run.cache: key "max" is missing`},
		{"cpus: 2", "cache: {max: 1GiB}", `run.cache: key "dir" is missing`},
		{"cpus: 2", "cache: {dir: c, max: 1MiB}", "run.cache.max: must be at least"},
		{"cpus: 2", "cache: c", "run.cache: want a mapping"},
		{"cpus: 2", "cpus: two", `run.cpus: want a whole number, not "two"`},
		{"seed: 7", "seed: -7", "not negative"},
		{"seed: 7", "seed: 7, sed: 8", `unknown key "sed": did you mean "seed"?`},
		{"seed: 7", "seed: 7, seed: 8", `already defined|appears twice`},
		{"policy: skip, max_rows: 3", "policy: skp", `want one of fail, skip, retry, not "skp": did you mean "skip"?`},
		{"{parquet: {paths", "{csv: {paths: [x]}, parquet: {paths", "want exactly one of these keys, not csv and parquet"},
		{"  - select: [tip_rate, log_dist, passenger_count]", "  - drop: [a]\n    select: [b]", "want exactly one of these keys, not drop and select"},
		{"sink: {parquet: {path: out/,", "sink: {parquet: {", `key "path" is missing`},
		{"select: [tip_rate, log_dist, passenger_count]", "select: tip_rate", `want a list, not "tip_rate": put it in brackets`},
		{"cpus: 2", "cpus: -2", "taxi.yaml:10:29: run.cpus: must not be negative"},
		{"path: out/", "path: ''", "sink.parquet.path: must not be empty"},
		{"stall_timeout: 90s", "stall_timeout: soon", "want a duration"},
		{"name: taxi", "name: ${env:PENSTOCK_NO_SUCH}", "environment variable PENSTOCK_NO_SUCH is not set"},
		{"name: taxi", "name: ${secret}", "references are"},
		{"name: taxi", "name: ${file:/dev/zero}", "no regular file"},
		{"name: taxi", "name: [a]", "want text, not a list"},
		{"name: taxi", "name: {{", "did not find|flow mapping"},
		{"log1p(trip_distance)", `cast(a, "int32")`, "taxi.yaml:6: this is no YAML: an expression that holds a comma"},
		{"source: {parquet", "source: &a {parquet", ""}, // anchors are fine
		{"name: taxi", "name: ${env:PENSTOCK_TEST_SECRET}", ""},
	} {
		text := strings.Replace(taxi, c.from, c.to, 1)
		if text == taxi {
			t.Fatalf("%q is not in the spec", c.from)
		}
		_, err := parse(t, "taxi.yaml", []byte(text), nil)
		if c.want == "" {
			if err != nil {
				t.Errorf("%q: %v", c.to, err)
			}
			continue
		}
		ok := false
		for _, w := range strings.Split(c.want, "|") {
			ok = ok || err != nil && strings.Contains(err.Error(), w)
		}
		if !ok || fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%q: error %v, want %q", c.to, err, c.want)
		}
	}
}

const dealt = `version: 1
source:
  mix:
    sources:
      - {name: web, weight: 7, source: {range: {n: 100}}, steps: [{filter: id > 3}]}
      - name: books
        weight: 1
        repeat: true
        source: {range: {n: 9}}
        steps:
          - sample: {fraction: 0.5}
    stop: all
    schedule: [{at: 50, weights: [1, 1]}]
shards:
  ranks: 8
  global_batch: 256
  seed: 7
  shuffle: {window_rows: 16384, lanes: 64, resident: 1GiB}
  tail: pad
  prefetch: 0
  columns: {id: float32, x: {scale: 0.5, lists: pad, multiple: 8, fill: -1}, y: }
run: {seed: 5}
`

func TestShards(t *testing.T) {
	s, err := parse(t, "s", []byte(dealt), []string{"shards.ranks=4", "shards.shuffle.lanes=2"})
	if err != nil {
		t.Fatal(err)
	}
	ranks, o, err := s.ShardOptions()
	if err != nil {
		t.Fatal(err)
	}
	want := shard.Options{GlobalBatch: 256, Tail: shard.TailPad, Prefetch: -1,
		Shuffle: &shard.Shuffle{WindowRows: 16384, Lanes: 2, Resident: 1 << 30},
		Form: shard.Form{Tensors: true, Columns: map[string]shard.Column{
			"id": {DType: shard.Float32}, "x": {Scale: 0.5, Lists: shard.ListsPad, Multiple: 8, Fill: -1}, "y": {}}}}
	if d := cmp.Diff(want, o.Options); d != "" || ranks != 4 || o.Seed != 7 {
		t.Errorf("%d ranks, seed %d: %s", ranks, o.Seed, d)
	}
	all := strings.NewReplacer("prefetch: 0", "prefetch: 3\n  with_lineage: true\n  epochs: 5\n  steps_per_epoch: 9\n  endless: true",
		"y: }", "y: , v: {stack: [a, b], dtype: int16, offset: -2.5}, w: {lists: pad_global, length: 12}, z: {lists: ragged}}",
		"window_rows: 16384", "window_bytes: 2MiB, mode: window").Replace(dealt)
	if s, err = parse(t, "s", []byte(all), []string{"run.id=r5"}); err != nil {
		t.Fatal(err)
	}
	want.Prefetch, want.Lineage, want.Epochs, want.StepsPerEpoch, want.Endless, want.ID = 3, true, 5, 9, true, "r5"
	want.Shuffle = &shard.Shuffle{Mode: shard.ModeWindow, WindowBytes: 2 << 20, Lanes: 64, Resident: 1 << 30}
	want.Form.Columns["v"] = shard.Column{Stack: []string{"a", "b"}, DType: shard.Int16, Offset: -2.5}
	want.Form.Columns["w"] = shard.Column{Lists: shard.ListsPadGlobal, Length: 12}
	want.Form.Columns["z"] = shard.Column{Lists: shard.ListsRagged}
	ranks, o, err = s.ShardOptions()
	if d := cmp.Diff(want, o.Options); err != nil || d != "" || ranks != 8 {
		t.Errorf("%d ranks, %v: %s", ranks, err, d)
	}
	m := s.Source.Mix
	if _, err := s.Dataset(); err != nil || len(m.Sources) != 2 || !m.Sources[1].Repeat || m.Sources[0].Weight != 7 || m.Schedule[0].At != 50 || m.Stop != "all" {
		t.Errorf("%v: %+v", err, m)
	}
	for mode, want := range map[string]*shard.Shuffle{"blocks": {Mode: shard.ModeBlocks}, "none": {Mode: shard.ModeNone}, "{mode: window}": {Mode: shard.ModeWindow}, "": {}} {
		s, err := parse(t, "s", []byte("version: 1\nsource: {range: {n: 5}}\nrun: {seed: 5}\nshards:\n  batch_per_rank: 2\n  shuffle: "+mode), nil)
		if err != nil {
			t.Fatal(err)
		}
		ranks, o, err := s.ShardOptions()
		if d := cmp.Diff(want, o.Shuffle); err != nil || d != "" || ranks != 1 || o.Seed != 5 || o.BatchPerRank != 2 || o.Form.Tensors {
			t.Errorf("shuffle %s: %v %s %+v", mode, err, d, o.Options)
		}
	}
	dtype, _ := reflect.TypeFor[TensorColumn]().FieldByName("DType")
	for _, name := range strings.Split(dtype.Tag.Get("enum"), "|") {
		if d, err := shard.ParseDType(name); err != nil || d.String() != name && d.String() != map[string]string{"float": "float32", "double": "float64"}[name] {
			t.Errorf("dtype %s: %v", name, err)
		}
	}
}

// What keys of shards, mix and pack cannot say together, with its line.
func TestShardMistakes(t *testing.T) {
	for _, c := range []struct{ from, to, want string }{
		{"  global_batch: 256\n", "", "s:15:3: shards: how large is a batch? Give global_batch"},
		{"  global_batch: 256", "  batch_per_rank: 32\n  global_batch: 256", "s:16:19: shards: global_batch and batch_per_rank are both given"},
		{"  global_batch: 256", "  global_batch: 7", "s:16:17: shards.global_batch: 7 is less than one sample for each of 8 ranks"},
		{"global_batch", "batch", `unknown key "batch"`},
		{"ranks: 8", "ranks: 0", "s:15:10: shards.ranks: must be at least 1, not 0"},
		{"tail: pad", "tail: pads", `s:19:9: shards.tail: want one of drop, pad, repeat, not "pads"`},
		{"shuffle: {window_rows: 16384, lanes: 64, resident: 1GiB}", "shuffle: windows", `s:18:12: shards.shuffle.mode: want one of window, blocks, none, not "windows": did you mean "window"?`},
		{"shuffle: {window_rows: 16384, lanes: 64, resident: 1GiB}", "shuffle: [blocks]", "s:18:12: shards.shuffle: want a mapping, not a list"},
		{"lanes: 64", "lanes: 0", "shards.shuffle.lanes: must be at least 1"},
		{"id: float32", "id: float23", `s:21:17: shards.columns.id.dtype: want one of auto, bool, int8`},
		{"columns: {id: float32, x: {scale: 0.5, lists: pad, multiple: 8, fill: -1}, y: }", "columns: {}", "shards.columns: must name at least one tensor"},
		{"scale: 0.5", "scale: 0", "shards.columns.x.scale: must not be 0"},
		{"prefetch: 0", "prefetch: -1", "shards.prefetch: must be at least 0, not -1"},
		{"seed: 5", "ordered: false", "s:22:16: run.ordered: shards have an order"},
		{"shards:\n", "steps:\n  - filter: id > 1\nshards:\n", "s:15:3: steps: no step may follow a mix"},
		{"sample: {fraction: 0.5}", "limit: 5", "s:11:13: source.mix.sources[2].steps[1]: limit: with shards only as the last step"},
		{"          - sample", "          - pack: {column: id, length: 5}\n          - sample", "s:11:13: source.mix.sources[2].steps[1]: pack must be the last step"},
		{"source: {range: {n: 9}}", "source: {mix: {sources: [{name: a, weight: 1, source: {range: {n: 1}}}]}}", "s:9:17: source.mix.sources[2].source: a mix cannot be part of a mix"},
		{"sample: {fraction: 0.5}", "union: [{source: {mix: {sources: [{name: a, weight: 1, source: {range: {n: 1}}}]}}}]", "source.mix.sources[2].steps[1].union[1].source: a mix cannot be part of a union"},
		{"sample: {fraction: 0.5}", "union: [{source: {range: {n: 5}}, steps: [{pack: {column: id, length: 4}}]}]", "pack after the union"},
		{"sample: {fraction: 0.5}", "pack: {column: id, length: 0}", "pack.length: must be at least 1"},
		{"weights: [1, 1]", "weights: [1]", "s:13:34: source.mix.schedule[1].weights: 1 weights for 2 sources"},
		{"weight: 7, ", "", `key "weight" is missing`},
		{"weight: 7", "weight: -7", "source.mix.sources[1].weight: must be at least 0"},
		{"stop: all", "stop: last", "want one of first, all"},
		{"name: books", "name: web", `two sources of the mix have the name "web"`},
		{"filter: id > 3", "filter: id >", `source "web" of the mix: s:5:76: step 1 (filter)`},
	} {
		text := strings.Replace(dealt, c.from, c.to, 1)
		s, err := parse(t, "s", []byte(text), nil)
		if err == nil {
			_, err = s.Dataset()
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) || err != nil && fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%q: error %v, want %q", c.to, err, c.want)
		}
	}
	// A limit is fine as the last step of a plan in order.
	const limit = "version: 1\nsource: {range: {n: 5}}\nsteps: [{limit: 3}]\nshards: {global_batch: 2, shuffle: none}"
	if _, err := parse(t, "s", []byte(limit), nil); err != nil {
		t.Error(err)
	}
	for _, set := range []string{"shards.shuffle=blocks", "steps=[{limit: 3}, {filter: id > 1}]", "steps=[{union: [{source: {range: {n: 1}}, steps: [{limit: 1}]}]}]"} {
		if _, err := parse(t, "s", []byte(limit), []string{set}); err == nil || !strings.Contains(err.Error(), "limit: with shards only") {
			t.Errorf("--set %s: %v", set, err)
		}
	}
}

// Check sees what columns cannot become.
func TestCheckShards(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "s", Type: arrow.BinaryTypes.String}, {Name: "mask", Type: arrow.FixedWidthTypes.Boolean}}, nil)
	rows := dataset.FromRecords(schema)
	for shards, want := range map[string]string{
		"columns: {id: float32}":                    "",
		"columns: {idd: float32}":                   `column "idd": no such column; did you mean "id"?`,
		"columns: {s: auto}":                        "no tensor form",
		"columns: {id: {lists: pad}}":               "for lists of varying length",
		"tail: pad":                                 `"mask"`,
		"tail: pad, columns: {id: auto}":            "",
		"columns: {id: {length: 3}}":                "for padded lists",
		"columns: {v: {stack: [id, mask]}}":         "",
		"columns: {v: {stack: [id, maks]}}":         `unknown column "maks"`,
		"columns: {v: {stack: [id, s]}}":            "a stack takes one number of each column",
		"columns: {id: {dtype: auto, offset: 2.5}}": "",
	} {
		s, err := parse(t, "s", []byte("version: 1\nsource: {range: {n: 5}}\nshards: {global_batch: 2, "+shards+"}"), nil)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.Check(t.Context(), rows); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", shards, err, want)
		}
	}
}

func TestReferences(t *testing.T) {
	t.Setenv("PENSTOCK_TEST_SECRET", "hush")
	f := t.TempDir() + "/secret"
	if err := os.WriteFile(f, []byte("quiet\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := parse(t, "x", []byte(strings.Replace(taxi, "name: taxi", "name: a-${env:PENSTOCK_TEST_SECRET}-${file:"+f+"}-$${x}", 1)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "a-hush-quiet-${x}" {
		t.Errorf("name %q", s.Name)
	}
}

func TestSetMistakes(t *testing.T) {
	for _, set := range []string{"x", "=1", "run.memory.x=1", "steps.10.filter=x", "steps.x=1", "run.memroy=1GiB", "run.cpus=many"} {
		if _, err := parse(t, "x", []byte(taxi), []string{set}); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("--set %s: %v", set, err)
		}
	}
}

// What can never come about is refused where it stands.
func TestIdleOnError(t *testing.T) {
	const text = "version: 1\nsource: {range: {n: 1}}\nsteps: [{filter: id > 0, on_error: STEP}]\nrun: {on_error: RUN}\n"
	for _, c := range []struct{ step, run, want string }{
		{"fail", "{dead_letter: bad/}", "x:4:31: on_error: dead_letter is for rows that are skipped"},
		{"skip", "{dead_letter: bad/}", ""},
		{"fail", "{policy: skip, dead_letter: bad/, max_rows: 3}", ""},
		{"skip", "{max_rows: 3}", "x:4:28: on_error: max_rows is for policy skip"},
		{"fail", "{policy: fail, max_rate: 0.1, dead_letter: bad/}", ""}, // as --set run.on_error.policy=fail makes it
		{"skip", "{max_rate: 0.1}", "x:4:28: on_error: max_rate is for policy skip"},
		{"fail", "{retries: -1}", "x:4:27: on_error: retries must not be negative"},
	} {
		s, err := parse(t, "x", []byte(strings.NewReplacer("STEP", c.step, "RUN", c.run).Replace(text)), nil)
		if err == nil {
			_, err = s.Dataset()
		}
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("step %s, run %s: %v, want %q", c.step, c.run, err, c.want)
		}
	}
}

// A step of a union skips, too.
func TestDeadLetterOfUnion(t *testing.T) {
	s, err := parse(t, "x", []byte("version: 1\nsource: {range: {n: 1}}\nsteps: [{union: [{source: {range: {n: 1}}, steps: [{filter: id > 0, on_error: skip}]}]}]\nrun: {on_error: {dead_letter: bad/}}\n"), nil)
	if err == nil {
		_, err = s.Dataset()
	}
	if err != nil {
		t.Error(err)
	}
}

// null leaves out what the spec says; the value of a map of the user's is null.
func TestSetNull(t *testing.T) {
	s, err := parse(t, "x", []byte("version: 1\nname: a\nsource: {range: {n: 1}}\nrun: {cpus: 3, memory: 1GiB, seed: 5, on_error: skip}\nsink: {count: {}}\n"),
		[]string{"run.cpus=null", "run.memory=null", "run.on_error=null", "name=~", "sink.count=null"})
	if err != nil || s.Run.CPUs != 0 || s.Run.Memory != 0 || s.Run.OnError != nil || s.Name != "" || s.Run.Seed != 5 || s.Sink.Count == nil {
		t.Errorf("%+v, %v", s, err)
	}
	s, err = parse(t, "x", []byte("version: 1\nsource: {range: {n: 1}}\nsteps: [{filter: id > 0, on_error: fail}]\n"), []string{"steps.1.on_error=null"})
	if err != nil || s.Steps[0].OnError != nil {
		t.Errorf("%+v, %v", s, err)
	}
	for _, set := range []string{"version=null", "source=null", "run={cpus: 3, cpu: null}"} {
		if _, err := parse(t, "x", []byte("version: 1\nsource: {range: {n: 1}}\n"), []string{set}); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("--set %s: %v", set, err)
		}
	}
}

// An item of a list that the spec does not have cannot be set.
// A word may be null.
func TestNullWord(t *testing.T) {
	for _, null := range []string{"null", `"null"`} {
		s, err := parse(t, "x", []byte("version: 1\nsource: {json: {paths: [a], non_finite: "+null+"}}\n"), nil)
		if err != nil || s.Source.JSON.NonFinite != "null" {
			t.Errorf("%s: %+v, %v", null, s, err)
		}
	}
	if _, err := parse(t, "x", []byte("version: 1\nsource: {json: {paths: [a], mixed: null}}\n"), nil); err == nil || !strings.Contains(err.Error(), "want text, not null") {
		t.Errorf("%v", err)
	}
}

func TestSetItemOfNoList(t *testing.T) {
	_, err := parse(t, "x", []byte("version: 1\nsource: {range: {n: 1}}\n"), []string{"steps.1.filter=id > 1"})
	if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "--set steps.1.filter: steps: want a list, not a mapping: the spec has none whose items could be set") {
		t.Error(err)
	}
}

// A few lines of aliases must not become gigabytes.
func TestAliasBomb(t *testing.T) {
	var b strings.Builder
	b.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < 10; i++ {
		b.WriteString(strings.NewReplacer("N", string(rune('0'+i)), "P", string(rune('0'+i-1))).Replace("aN: &aN [*aP,*aP,*aP,*aP,*aP,*aP,*aP,*aP,*aP,*aP]\n"))
	}
	if _, err := parse(t, "x", []byte(b.String()), nil); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "too large") {
		t.Errorf("error %v", err)
	}
	deep := strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)
	if _, err := parse(t, "x", []byte("version: "+deep), nil); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("deep: %v", err)
	}
	big := strings.Repeat("# x\n", 1<<20)
	if _, err := parse(t, "x", []byte(big), nil); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("long: %v", err)
	}
}

func TestParseSize(t *testing.T) {
	for in, want := range map[string]Size{"64KiB": 64 << 10, "64 kib": 64 << 10, "9007199254740993": 9007199254740993, "2Ti": 2 << 40, "1t": 1 << 40, "0": 0, "1024": 1024, "512MiB": 512 << 20, "1.5GB": 1_500_000_000, "2 KiB": 2048, "1_000": 1000, "3g": 3 << 30} {
		if got, err := ParseSize(in); err != nil || got != want {
			t.Errorf("%s: %d %v", in, got, err)
		}
	}
	for _, in := range []string{"", "x", "-1", "1XB", "1e9", "0.5", "1.0001KB", "99999999TiB", "1.2.3"} {
		if got, err := ParseSize(in); err == nil {
			t.Errorf("%q: %d", in, got)
		}
	}
}

// The published schema is that of the code.
func TestJSONSchema(t *testing.T) {
	got := JSONSchema()
	const file = "../../docs/spec.schema.json"
	if *update {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != string(want) {
		t.Errorf("%s is not up to date: go test ./internal/spec -update", file)
	}
	var v map[string]any
	if err := json.Unmarshal(got, &v); err != nil {
		t.Fatal(err)
	}
	if v["$defs"].(map[string]any)["Step"].(map[string]any)["oneOf"] == nil {
		t.Error("steps have no oneOf")
	}
}

// The tables of docs/spec.md are those of the code.
func TestReference(t *testing.T) {
	const file, mark = "../../docs/spec.md", "<!-- From here on generated: go test ./internal/spec -update -->\n"
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, tail, ok := strings.Cut(string(text), mark)
	if !ok {
		t.Fatalf("%s has no line %s", file, mark)
	}
	got := string(Reference())
	if *update {
		if err := os.WriteFile(file, []byte(head+mark+got), 0o644); err != nil {
			t.Fatal(err)
		}
		tail = got
	}
	if got != tail {
		t.Errorf("%s is not up to date: go test ./internal/spec -update", file)
	}
	for line := range strings.Lines(got) {
		if strings.HasPrefix(line, "| `") && strings.HasSuffix(line, "|  |\n") {
			t.Errorf("no doc tag: %s", line)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add(taxi)
	f.Add("version: 1\nsource: {range: {n: 5}}\nsteps: [{limit: 3}, {union: [{source: {range: {n: 2}}}]}]\nsink: {count: {}}")
	f.Add(dealt)
	f.Add("version: 1\nsource: {json: {paths: [x]}}\nsteps: [{pack: {column: t, length: 8, method: best_fit, eos: 1}}]\nshards: {batch_per_rank: 2, shuffle: none, columns: {input_ids: {dtype: int32}}}")
	f.Add("version: 1\nsource: &s {range: {n: 5}}\nsteps: [{union: [{source: *s}]}, {limit: 1}]\nshards: {global_batch: 1, columns: {a: {scale: 0}}}")
	f.Add("a: &x [*x]")
	f.Add("${env:X}")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse("f", []byte(text), nil, Trust{})
		if err != nil {
			if c := fault.CodeOf(err); c != fault.Invalid {
				t.Fatalf("code %v: %v", c, err)
			}
			return
		}
		_, _ = s.Dataset()
		if s.Shards != nil {
			if _, _, err := s.ShardOptions(); err != nil {
				t.Fatal(err)
			}
		}
	})
}

// The sources of a spec share one cache, which is no part of what they read.
func TestCache(t *testing.T) {
	const text = `version: 1
source: {mix: {sources: [
  {name: a, weight: 1, source: {parquet: {paths: [x]}}},
  {name: b, weight: 1, source: {csv: {paths: [y]}}}, {name: c, weight: 1, source: {json: {paths: [y]}}}, {name: d, weight: 1, source: {ipc: {paths: [y]}}},
  {name: e, weight: 1, source: {text: {paths: [y]}}}, {name: f, weight: 1, source: {binary: {paths: [y]}}}]}}
`
	parse := func(text string) *Spec {
		s, err := parse(t, "s", []byte(text), nil)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	with, without := parse(text+"run: {cache: {dir: '"+t.TempDir()+"', max: 1GiB}}\n"), parse(text)
	c, err := with.Cache()
	if again, _ := with.Cache(); err != nil || c == nil || again != c {
		t.Fatal(c, again, err)
	}
	defer c.Close()
	if c, err := without.Cache(); c != nil || err != nil {
		t.Error(c, err)
	}
	for _, m := range with.Source.Mix.Sources {
		src, err := with.source(m.Source)
		if err != nil {
			t.Fatal(err)
		}
		plain, err := without.source(m.Source)
		if err != nil {
			t.Fatal(err)
		}
		a, aerr := src.Config()
		b, berr := plain.Config()
		if aerr != nil || berr != nil || string(a) != string(b) {
			t.Errorf("config %s, without a cache %s (%v, %v)", a, b, aerr, berr)
		}
		if reflect.DeepEqual(src, plain) {
			t.Errorf("source %s has no cache", m.Name)
		}
	}
	// What is wrong with a cache is told to who wants to know.
	bad := parse(text + "run: {cache: {dir: '/dev/null', max: 1GiB}}\n")
	var warnings []string
	bad.OnWarning(func(err error) { warnings = append(warnings, err.Error()) })
	c, err = bad.Cache()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 2 {
		c.Write(blobcache.MakeID("x"), []byte("y"), 0)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], "nothing is cached") {
		t.Errorf("warnings %q", warnings)
	}
	with.Run.Cache.Dir = ""
	with.cache = nil
	if _, err := with.Dataset(); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "dir is missing") {
		t.Error(err)
	}
}
