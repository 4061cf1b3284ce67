package spec

import (
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
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
	s, err := Parse("taxi.yaml", []byte(taxi), []string{"run.memory=1GiB", "steps.0.filter=fare_amount > 5", "sink.parquet.mode=append", "run.id=abc"})
	if err != nil {
		t.Fatal(err)
	}
	if s.Run.Memory != 1<<30 || *s.Steps[0].Filter != "fare_amount > 5" || s.Sink.Parquet.Mode != "append" || s.Sink.Parquet.TargetSize != 1<<30 ||
		s.Run.ID != "abc" || s.Run.Seed != 7 || s.Steps[2].OnError.Policy != "skip" || s.Run.OnError.DeadLetter != "bad/" {
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
		{"  - filter:", "  - filtr:", `taxi.yaml:5:5: steps[0]: unknown key "filtr": did you mean "filter"?`},
		{"version: 1\n", "", `key "version" is missing`},
		{"version: 1", "version: 2", "reads version 1, not 2"},
		{"memory: 512MiB", "memory: 512 parsecs", `taxi.yaml:10:15: run.memory: want a size such as 512MiB, not "512 parsecs"`},
		{"cpus: 2", "cpus: two", `run.cpus: want a whole number, not "two"`},
		{"seed: 7", "seed: -7", "not negative"},
		{"seed: 7", "seed: 7, sed: 8", `unknown key "sed": did you mean "seed"?`},
		{"seed: 7", "seed: 7, seed: 8", `already defined|appears twice`},
		{"policy: skip, max_rows: 3", "policy: skp", `want one of fail, skip, retry, not "skp": did you mean "skip"?`},
		{"{parquet: {paths", "{csv: {paths: [x]}, parquet: {paths", "want exactly one of these keys, not csv and parquet"},
		{"  - select: [tip_rate, log_dist, passenger_count]", "  - drop: [a]\n    select: [b]", "want exactly one of these keys, not drop and select"},
		{"sink: {parquet: {path: out/,", "sink: {parquet: {", `key "path" is missing`},
		{"select: [tip_rate, log_dist, passenger_count]", "select: tip_rate", `want a list, not "tip_rate"`},
		{"stall_timeout: 90s", "stall_timeout: soon", "want a duration"},
		{"name: taxi", "name: ${env:PENSTOCK_NO_SUCH}", "environment variable PENSTOCK_NO_SUCH is not set"},
		{"name: taxi", "name: ${secret}", "references are"},
		{"name: taxi", "name: ${file:/dev/zero}", "no regular file"},
		{"name: taxi", "name: [a]", "want text, not a list"},
		{"name: taxi", "name: {{", "did not find|flow mapping"},
		{"source: {parquet", "source: &a {parquet", ""}, // anchors are fine
		{"name: taxi", "name: ${env:PENSTOCK_TEST_SECRET}", ""},
	} {
		text := strings.Replace(taxi, c.from, c.to, 1)
		if text == taxi {
			t.Fatalf("%q is not in the spec", c.from)
		}
		_, err := Parse("taxi.yaml", []byte(text), nil)
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

func TestReferences(t *testing.T) {
	t.Setenv("PENSTOCK_TEST_SECRET", "hush")
	f := t.TempDir() + "/secret"
	if err := os.WriteFile(f, []byte("quiet\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	s, err := Parse("x", []byte(strings.Replace(taxi, "name: taxi", "name: a-${env:PENSTOCK_TEST_SECRET}-${file:"+f+"}-$${x}", 1)), nil)
	if err != nil {
		t.Fatal(err)
	}
	if s.Name != "a-hush-quiet-${x}" {
		t.Errorf("name %q", s.Name)
	}
}

func TestSetMistakes(t *testing.T) {
	for _, set := range []string{"x", "=1", "run.memory.x=1", "steps.9.filter=x", "steps.x=1", "run.memroy=1GiB", "run.cpus=many"} {
		if _, err := Parse("x", []byte(taxi), []string{set}); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("--set %s: %v", set, err)
		}
	}
}

// A few lines of aliases must not become gigabytes.
func TestAliasBomb(t *testing.T) {
	var b strings.Builder
	b.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < 10; i++ {
		b.WriteString(strings.NewReplacer("N", string(rune('0'+i)), "P", string(rune('0'+i-1))).Replace("aN: &aN [*aP,*aP,*aP,*aP,*aP,*aP,*aP,*aP,*aP,*aP]\n"))
	}
	if _, err := Parse("x", []byte(b.String()), nil); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "too large") {
		t.Errorf("error %v", err)
	}
	deep := strings.Repeat("[", 10_000) + strings.Repeat("]", 10_000)
	if _, err := Parse("x", []byte("version: "+deep), nil); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("deep: %v", err)
	}
	big := strings.Repeat("# x\n", 1<<20)
	if _, err := Parse("x", []byte(big), nil); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("long: %v", err)
	}
}

func TestParseSize(t *testing.T) {
	for in, want := range map[string]Size{"0": 0, "1024": 1024, "512MiB": 512 << 20, "1.5GB": 1_500_000_000, "2 KiB": 2048, "1_000": 1000, "3g": 3 << 30} {
		if got, err := ParseSize(in); err != nil || got != want {
			t.Errorf("%s: %d %v", in, got, err)
		}
	}
	for _, in := range []string{"", "x", "-1", "1XB", "1e9", "99999999TiB", "1.2.3"} {
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
	f.Add("a: &x [*x]")
	f.Add("${env:X}")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := Parse("f", []byte(text), nil)
		if err != nil {
			if c := fault.CodeOf(err); c != fault.Invalid {
				t.Fatalf("code %v: %v", c, err)
			}
			return
		}
		_, _ = s.Dataset()
	})
}
