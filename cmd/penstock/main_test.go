package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

// The tests run the real program: this binary, which is penstock when asked to be, or given arguments that are not of a test: nodes start their own binary with an environment of their own.
func TestMain(m *testing.M) {
	switch os.Getenv("PENSTOCK_TEST_MAIN") {
	case "1":
		os.Exit(run())
	case "worker": // of a training run
		if err := worker(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if role := roles[os.Getenv("PENSTOCK_TEST_MAIN")]; role != nil { // of a system's own tests
		if err := role(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if len(os.Args) > 1 && !strings.HasPrefix(os.Args[1], "-test.") {
		os.Exit(run())
	}
	code := m.Run()
	for _, f := range atEnd {
		f()
	}
	os.Exit(code)
}

// atEnd is called when all tests have ended: several of them share something.
var atEnd []func()

// roles are what else this binary is, by the value of PENSTOCK_TEST_MAIN.
var roles = map[string]func() error{}

type result struct {
	out, err string
	code     int
}

func command(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := exec.Command(self, args...)
	c.Env = append(os.Environ(), "PENSTOCK_TEST_MAIN=1")
	c.Dir = "../.."
	return c
}

func penstock(t *testing.T, args ...string) result {
	t.Helper()
	c := command(t, args...)
	var out, stderr bytes.Buffer
	c.Stdout, c.Stderr = &out, &stderr
	err := c.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{out.String(), stderr.String(), c.ProcessState.ExitCode()}
}

const flights = "examples/data/flights/"

func writeSpec(t *testing.T, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "s.yaml")
	if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestRunTheExample(t *testing.T) {
	out := t.TempDir()
	set := []string{"--set", "sink.parquet.path=" + out, "--set", "sink.parquet.mode=error"}
	r := penstock(t, append([]string{"run", "examples/flights.yaml", "--json"}, set...)...)
	if r.code != 0 || r.err != "" {
		t.Fatalf("exit %d: %s", r.code, r.err)
	}
	lines := strings.Split(strings.TrimSpace(r.out), "\n")
	var sum map[string]any
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &sum); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"status", "rows_in", "rows_out", "bytes_read", "seconds", "peak_budget_bytes", "peak_rss_bytes", "retries", "skipped_rows"} {
		if _, ok := sum[key]; !ok {
			t.Errorf("the summary has no %s: %v", key, sum)
		}
	}
	// Of the 20,000 rows the reader leaves out some that cannot pass the filter.
	if in := sum["rows_in"].(float64); sum["status"] != "ok" || in > 20000 || in < sum["rows_out"].(float64) || sum["rows_out"].(float64) <= 0 || sum["peak_budget_bytes"].(float64) <= 0 || sum["bytes_read"].(float64) <= 0 {
		t.Errorf("summary %v", sum)
	}
	c := penstock(t, "count", out)
	if c.code != 0 || strings.TrimSpace(c.out) != jsonInt(sum["rows_out"]) {
		t.Errorf("count says %q, the run %v (%s)", c.out, sum["rows_out"], c.err)
	}
	again := penstock(t, append([]string{"run", "examples/flights.yaml", "--json"}, set...)...)
	if again.code != 0 || !strings.Contains(again.out, `"status":"already_done"`) {
		t.Errorf("again: exit %d, %s%s", again.code, again.out, again.err)
	}
	other := penstock(t, append([]string{"run", "examples/flights.yaml", "--set", "steps.1.filter=delay > 60"}, set...)...)
	if other.code != 1 || !strings.Contains(other.err, " (1 file, ") || !strings.HasSuffix(other.err, "; to set it: --set sink.parquet.mode=append, or --set sink.parquet.mode=overwrite\n") {
		t.Errorf("another job: exit %d, %s", other.code, other.err)
	}
}

func jsonInt(v any) string {
	b, _ := json.Marshal(int64(v.(float64)))
	return string(b)
}

func TestLook(t *testing.T) {
	if r := penstock(t, "count", flights); r.out != "20000\n" || r.code != 0 {
		t.Errorf("count: %+v", r)
	}
	r := penstock(t, "schema", flights)
	if r.code != 0 || !strings.Contains(r.out, "delay") || !strings.Contains(r.out, "month") || !strings.Contains(r.out, "timestamp") {
		t.Errorf("schema: %+v", r)
	}
	r = penstock(t, "show", "-n", "2", flights)
	if lines := strings.Split(strings.TrimSpace(r.out), "\n"); r.code != 0 || len(lines) != 5 {
		t.Errorf("show: %+v", r)
	}
	r = penstock(t, "explain", "--analyze", "examples/flights.yaml")
	for _, want := range []string{"logical plan", "physical plan", "measured\n", "delay > 15"} {
		if r.code != 0 || !strings.Contains(r.out, want) {
			t.Errorf("explain has no %q: %+v", want, r)
		}
	}
	// A condition on a hive column decides what is listed.
	r = penstock(t, "explain", "examples/flights.yaml", "--set", "steps.1.filter=month > 1 && delay > 15")
	if r.code != 0 || !strings.Contains(r.out, "files month > 1") || !strings.Contains(r.out, "splits: 7 of 7") {
		t.Errorf("explain of a hive filter: %+v", r)
	}
	if r := penstock(t, "validate", "examples/flights.yaml"); r.code != 0 || !strings.Contains(r.out, "is valid") {
		t.Errorf("validate: %+v", r)
	}
	if r := penstock(t, "version"); r.code != 0 || !strings.HasPrefix(r.out, "penstock ") {
		t.Errorf("version: %+v", r)
	}
}

// TestAnalyze: explain --analyze has a row per operator with its rows, bytes and time, and names the step that takes the time.
func TestAnalyze(t *testing.T) {
	const slow = `matches(string(id), "^(?:[0-9]?){80}x") ? 1.5 : double(id)` // some hundreds of steps of an automaton per row
	s := writeSpec(t, "version: 1\nsource: {range: {n: 100000}}\nsteps:\n  - filter: id % 10 == 1\n  - with_columns: {z: '"+slow+"'}\n  - filter: z < 90000.0\nsink: {count: {}}\n")
	_, table, measured := strings.Cut(ok(t, "explain", "--analyze", s), "measured\n")
	if !measured {
		t.Fatal("nothing was measured")
	}
	lines := strings.Split(table, "\n")
	for i, want := range [][]string{ // rows in, rows out, MiB out
		{"scan", "0", "100000", "0.8"},
		{"filter id % 10 == 1", "100000", "10000", "0.1"},
		{"project id, z = " + slow, "10000", "10000", "0.2"},
		{"filter z < 90000.0", "10000", "9000", "0.1"},
		{"write", "9000", "9000", "0.0"},
	} {
		cells := regexp.MustCompile(`\s{2,}`).Split(strings.TrimSpace(lines[i+1]), -1)
		if len(cells) != 9 || !slices.Equal(cells[:4], want) || cells[8] == "0.0" {
			t.Errorf("a row is %q, want %q", cells, want)
			continue
		}
		if busy, err := time.ParseDuration(cells[4]); err != nil || busy <= 0 {
			t.Errorf("%s: busy %s", cells[0], cells[4])
		}
	}
	if !strings.Contains(table, "\n  100000 rows in, 9000 out, ") || !strings.HasSuffix(table, "\n  bottleneck: project id, z = "+slow+"\nsink\n  count: rows are computed and not kept\n") {
		t.Errorf("the table is\n%s", table)
	}
}

func TestExitCodes(t *testing.T) {
	misspelt := writeSpec(t, "version: 1\nsource: {range: {n: 5}}\nsteps: [{filtr: id > 1}]\nsink: {count: {}}\n")
	column := writeSpec(t, "version: 1\nsource: {range: {n: 5}}\nsteps: [{filter: idd > 1}]\nsink: {count: {}}\n")
	overflow := writeSpec(t, "version: 1\nsource: {range: {n: 5}}\nsteps: [{with_columns: {x: id + 9223372036854775807}}]\nsink: {count: {}}\n")
	sink := writeSpec(t, "version: 1\nsource: {range: {n: 5}}\nsink: {parquet: {path: x, partition_by: [idd]}}\n")
	file := writeSpec(t, "version: 1\nsource: {range: {n: 5}}\nsink: {parquet: {path: "+misspelt+"}}\n")
	bad := writeSpec(t, "version: 1\nsource: {range: {n: 5}}\nsink: {parquet: {path: x}}\nrun: {on_error: {policy: skip, dead_letter: "+misspelt+"}}\n")
	level := writeSpec(t, "version: 1\nsource: {range: {n: 5}}\nsink: {parquet: {path: x, level: 99}}\n")
	rate := writeSpec(t, "version: 1\nsource: {range: {n: 5}}\nsink: {count: {}}\nrun: {on_error: {max_rate: 3}}\n")
	split := writeSpec(t, "version: 1\nsource: {range: {n: 5}}\nsteps: [{split: {fractions: [0.9, 0.3], take: 0}}]\nsink: {count: {}}\n")
	missing := writeSpec(t, "version: 1\nsource: {parquet: {paths: [no/such.parquet]}}\nsink: {count: {}}\n")
	lanes := writeSpec(t, "version: 1\nsource: {range: {n: 5}}\nshards: {global_batch: 5, shuffle: {lanes: 70000}}\n")
	window := writeSpec(t, "version: 1\nsource: {range: {n: 5}}\nshards: {global_batch: 5, shuffle: {resident: 1MiB, window_rows: 1048576}}\n")
	letters := writeSpec(t, "version: 1\nsource: {range: {n: 5}}\nshards: {global_batch: 5}\nrun: {on_error: {policy: skip, dead_letter: bad/}}\n")
	memory := writeSpec(t, "version: 1\nsource: {range: {n: 5}}\nsink: {parquet: {path: mem://x/out}}\n")
	inside := writeSpec(t, "version: 1\nsource: {range: {n: 5}}\nsink: {parquet: {path: out/}}\nrun: {on_error: {policy: skip, dead_letter: out/bad}}\n")
	mixed := t.TempDir()
	for _, f := range []string{"a.csv", "b.json"} {
		if err := os.WriteFile(filepath.Join(mixed, f), []byte("{\"a\": 1}\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"validate", sink}, 2, `:3:42: sink: partition_by: unknown column "idd"; did you mean "id"?; have id`},
		{[]string{"explain", sink}, 2, `:3:42: sink: partition_by: unknown column "idd"`},
		{[]string{"run", sink}, 2, `:3:42: sink: partition_by: unknown column "idd"`},
		{[]string{"run", file}, 2, ":3:24: " + misspelt + ": this is a file, not a folder"},
		{[]string{"run", "--set", "sink.parquet.path=" + misspelt + "/below", file}, 2, ": --set sink.parquet.path: " + misspelt + "/below/: a part of this path is a file"},
		{[]string{"run", bad}, 2, ":4:45: " + misspelt + ": this is a file, not a folder"},
		{[]string{"validate", level}, 2, "level"},
		{[]string{"validate", memory}, 2, ":3:24: sink.parquet.path: mem://x/out is in the memory of one process"},
		{[]string{"run", memory}, 2, ":3:24: sink.parquet.path: mem://x/out is in the memory of one process"},
		{[]string{"train", "examples/train.yaml", "--storage", "mem://x"}, 2, "--storage: mem://x is in the memory of one process"},
		{[]string{"validate", inside}, 2, ":4:45: the dead letter folder out/bad and the output out/ must lie apart"},
		{[]string{"run", inside}, 2, ":4:45: the dead letter folder out/bad and the output out/ must lie apart"},
		{[]string{"validate", rate}, 2, "max_rate"},
		{[]string{"validate", split}, 2, "sum at most 1"},
		{[]string{"count", mixed}, 2, "several formats, csv ("},
		{[]string{"show", "examples/data/flights/", filepath.Join(mixed, "a.csv")}, 2, "several formats, parquet (examples/data/flights/"},
		{[]string{"run", rate}, 2, ":4:"},
		{[]string{"run", "examples/data/flights/month=1/flights.parquet"}, 2, "is data, and no spec: penstock show prints"},
		{[]string{"run", "no-such.parquet"}, 2, "no such file"},
		{[]string{"run", "--json=maybe", rate}, 2, "for \"--json\" flag: want true or false"},
		{[]string{"run"}, 2, "penstock: run: SPEC is missing; for example: penstock run examples/flights.yaml\n"},
		{[]string{"replay"}, 2, "penstock: replay: SPEC is missing; for example: penstock replay examples/shards.yaml --epoch 0 --step 17\n"},
		{[]string{"show"}, 2, "penstock: show: SPEC or PATH is missing; for example: penstock show examples/data/flights/\n"},
		{[]string{"validate", "a", "b"}, 2, "penstock: validate: it takes one SPEC, but there is also \"b\"; for example: penstock validate examples/flights.yaml\n"},
		{[]string{"validate", "--json-schema", "a"}, 2, "penstock: validate: it takes no arguments, but there is \"a\"\n"},
		{[]string{"version", "1"}, 2, "penstock: version: it takes no arguments"},
		{[]string{"completion"}, 2, "penstock: completion: SHELL is missing; for example: penstock completion bash > penstock.bash\n"},
		{[]string{"completion", "tcsh"}, 2, "penstock: completion: no shell \"tcsh\"; have bash, fish, powershell, zsh\n"},
		{[]string{"runn"}, 2, "penstock: unknown command \"runn\"; did you mean \"run\"?\n"},
		{[]string{"help", "nosuch"}, 2, "penstock: unknown command \"nosuch\"; have audit, batches, ca, checkpoints, count, "},
		{[]string{"run", "--set"}, 2, "penstock: run: flag needs an argument: --set; see: penstock run --help\n"},
		{[]string{"show", "-n", "x", "y"}, 2, "for \"-n, --rows\" flag: want a whole number; see: penstock show --help\n"},
		{[]string{"batches", "x", "--epoch", "-1"}, 2, "want a whole number, not negative"},
		{[]string{"show", "-n", "99999999999999999999", "y"}, 2, "it is too large"},
		{[]string{"run", "nosuch.yaml"}, 2, "nosuch.yaml"},
		{[]string{"run", t.TempDir()}, 2, "is a directory"},
		{[]string{"run", missing}, 1, "2:9: source (parquet), no/such.parquet: no such file or folder"},
		{[]string{"validate", missing}, 1, "no/such.parquet"},
		{[]string{"batches", "nosuch.yaml"}, 2, "nosuch.yaml"},
		{[]string{"batches", "examples/shards.yaml", "--from", "nosuch.state"}, 2, "nosuch.state"},
		{[]string{"replay", "examples/shards.yaml", "--step", "1", "--ledger", "nosuch.ledger"}, 2, "nosuch.ledger"},
		{[]string{"validate", lanes}, 2, "3:44: shuffle: lanes must be"},
		{[]string{"batches", lanes}, 2, "3:44: shuffle: lanes must be"},
		{[]string{"explain", lanes}, 2, "3:44: shuffle: lanes must be"},
		{[]string{"validate", window}, 2, "3:47: shuffle: one window of 1048576 rows"},
		{[]string{"validate", letters}, 2, "4:45: dead letters of shards"},
		{[]string{"validate", lanes, "--set", "shards.shuffle.lanes=4"}, 0, ""},
		{[]string{"validate", "examples/flights.yaml", "--set", "steps.1.filter=nosuch > 1"}, 2, "flights.yaml: --set steps.1.filter: step 1 (filter): unknown column"},
		{[]string{"run", column, "--set", "run.memory=1KiB"}, 2, "run.memory: must be at least 1.0 MiB"},
		{[]string{"validate", "examples/flights.yaml", "--set", "run.memory=1000TiB"}, 0, "warning: run.memory is 1000 TiB"},
		{[]string{"run", misspelt}, 2, `did you mean "filter"`},
		{[]string{"run", column}, 2, `s.yaml:3:18: step 1 (filter): unknown column "idd"`},
		{[]string{"run", overflow}, 1, "row 1"},
		{[]string{"run", overflow, "--set", "run.on_error.policy=skip"}, 0, ""},
		{[]string{"run", "--nosuch"}, 2, "--help"},
		{[]string{"nosuch"}, 2, "nosuch"},
		{[]string{"count", "no/such/file.parquet"}, 1, "no/such/file.parquet"},
		{[]string{"show", "-n", "0", flights}, 2, "at least 1"},
	} {
		if r := penstock(t, c.args...); r.code != c.code || !strings.Contains(r.err, c.want) {
			t.Errorf("%v: exit %d, want %d with %q: %s", c.args, r.code, c.code, c.want, r.err)
		}
	}
}

// Data that changes while it is read is no mistake in the spec.
func TestDataChanges(t *testing.T) {
	dir := t.TempDir()
	for i := range 20 {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%02d.csv", i)), []byte("a\n1\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := writeSpec(t, fmt.Sprintf("version: 1\nsource: {csv: {paths: [%[1]q]}}\nsteps: [{exec: {command: [sh, -c, 'for f in %[1]s/*; do echo 2 >> $f; done; exec cat']}}]\nsink: {count: {}}\nrun: {cpus: 1}\n", dir))
	r := penstock(t, "run", "--json", s)
	if r.code != exitFailed || !strings.Contains(r.err, "changed after it was listed") || summaryOf(t, r)["code"] != "changed" {
		t.Errorf("exit %d: %s%s", r.code, r.out, r.err)
	}
}

// A run that only counts writes its dead letter, once; who looks writes none.
func TestDeadLetterOfCount(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "bad")
	s := writeSpec(t, "version: 1\nsource: {range: {n: 100}}\nsteps: [{with_columns: {x: id + 9223372036854775777}}]\nsink: {count: {}}\n"+
		"run: {on_error: {policy: skip, dead_letter: "+dir+"}}\n")
	if got := ok(t, "count", s); got != "31\n" {
		t.Errorf("count: %s", got)
	}
	ok(t, "show", s)
	ok(t, "explain", "--analyze", s)
	if r := penstock(t, "explain", "--analyze", "--set", "run.on_error.max_rows=30", s); r.code != 1 || !strings.Contains(r.out, "measured, until it failed\n") || !strings.Contains(r.out, "range") {
		t.Errorf("a run that fails: %+v", r)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("looking wrote: %v", err)
	}
	for range 2 {
		if got := ok(t, "run", s); !strings.Contains(got, "69 rows skipped") {
			t.Errorf("run: %s", got)
		}
		if got := ok(t, "count", dir); got != "69\n" {
			t.Errorf("dead letters: %s", got)
		}
	}
}
