package main

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock-data/penstock/shard"
)

var update = flag.Bool("update", false, "rewrite testdata")

// ok runs a command that must succeed, and returns what it printed.
func ok(t *testing.T, args ...string) string {
	t.Helper()
	r := penstock(t, args...)
	if r.code != 0 || r.err != "" {
		t.Fatalf("penstock %v: exit %d, %s", args, r.code, r.err)
	}
	return r.out
}

func lines(s string) []string { return slices.Collect(strings.Lines(s)) }

// byN sorts the lines of --format jsonl by n and forgets which rank had them.
func byN(t *testing.T, out string) []string {
	t.Helper()
	type sample struct {
		n    int64
		text string
	}
	var all []sample
	for _, l := range lines(out) {
		var x struct {
			Step, N int64
			Row     json.RawMessage
		}
		if err := json.Unmarshal([]byte(l), &x); err != nil {
			t.Fatalf("%s: %v", l, err)
		}
		all = append(all, sample{x.N, fmt.Sprintf("%d %s", x.N, x.Row)})
	}
	slices.SortStableFunc(all, func(a, b sample) int { return cmp.Compare(a.n, b.n) })
	texts := make([]string, len(all))
	for i, s := range all {
		texts[i] = s.text
	}
	return texts
}

// documents writes n documents of tokens as JSON lines, in files of 200, and returns their folder.
func documents(t *testing.T, n int) string {
	t.Helper()
	dir := t.TempDir()
	var b bytes.Buffer
	for i := range n {
		tokens := make([]int, i*7919%23)
		for k := range tokens {
			tokens[k] = 1000*i + k
		}
		doc, _ := json.Marshal(tokens)
		fmt.Fprintf(&b, `{"id": %d, "x": %d.25, "tokens": %s}`+"\n", i, i, doc)
		if i%200 == 199 || i == n-1 {
			if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("%05d.jsonl", i)), b.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
			b.Reset()
		}
	}
	return dir
}

// specs to deal: all kinds of sources, steps and forms. Steps have 40 samples.
func dealtSpecs(t *testing.T) map[string]string {
	docs := documents(t, 900)
	pq := t.TempDir()
	ok(t, "run", writeSpec(t, fmt.Sprintf("version: 1\nsource: {json: {paths: [%q]}}\nsink: {parquet: {path: %q, target_size: 4KiB, row_group_rows: 100}}\n", docs, pq)))
	return map[string]string{
		"flights": "version: 1\nsource: {parquet: {paths: [examples/data/flights/month=2/]}}\nsteps: [{filter: delay > 30}]\n" +
			"shards: {global_batch: 40, seed: 3, shuffle: {lanes: 3, window_rows: 100}}\n",
		"text": fmt.Sprintf("version: 1\nsource: {json: {paths: [%q]}}\nsteps: [{explode: tokens}, {filter: tokens %% 5 == 0}]\n"+
			"shards: {global_batch: 40, shuffle: {lanes: 4, window_bytes: 2KiB}}\n", docs),
		"tensors": fmt.Sprintf("version: 1\nsource: {parquet: {paths: [%q]}}\nsteps: [{with_columns: {r: random()}}]\n"+
			"shards: {global_batch: 40, shuffle: {window_rows: 64, lanes: 2}, columns: {id: int64, x: {dtype: bfloat16, scale: 0.5, offset: 1}, r: auto, tokens: {lists: ragged}, v: {stack: [x, id], dtype: float32}}}\n", pq),
		"padded": fmt.Sprintf("version: 1\nsource: {parquet: {paths: [%q]}}\n"+
			"shards: {global_batch: 40, shuffle: blocks, columns: {x: float32, tokens: {dtype: int64, lists: pad, length: 24, fill: -1}}}\n", pq),
		"mix": fmt.Sprintf(`version: 1
source:
  mix:
    sources:
      - {name: docs, weight: 3, source: {parquet: {paths: [%q]}}, steps: [{pack: {column: tokens, length: 32, eos: 7, loss_mask: true}}]}
      - {name: text, weight: 2, repeat: true, source: {json: {paths: [%q]}}, steps: [{filter: id < 300}, {pack: {column: tokens, length: 32, method: best_fit, overlong: drop, loss_mask: true}}]}
    schedule: [{at: 100, weights: [1, 1]}]
shards: {global_batch: 40, shuffle: {window_rows: 50}}
`, pq, docs),
		"none": "version: 1\nsource: {range: {n: 1000}}\nsteps: [{limit: 777}]\nshards: {global_batch: 40, shuffle: none}\n",
	}
}

// However many ranks there are, wherever a job stops, whatever its batches: the samples and their order
// are the same.
func TestBatches(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	for name, text := range dealtSpecs(t) {
		t.Run(name, func(t *testing.T) {
			s := writeSpec(t, text)
			state := filepath.Join(t.TempDir(), "state")
			tail := []string{"--set", "shards.tail=pad"}
			batches := func(args ...string) string { return ok(t, append([]string{"batches", s}, args...)...) }
			jsonl := func(args ...string) []string {
				return byN(t, batches(append(append(args, "--format", "jsonl"), tail...)...))
			}
			want := jsonl()
			if len(want) < 120 {
				t.Fatalf("only %d samples", len(want))
			}
			global := batches("--format", "global")
			for _, ranks := range []string{"2", "3", "8"} {
				if got := jsonl("--ranks", ranks); !slices.Equal(got, want) {
					t.Errorf("%s ranks: other samples", ranks)
				}
				if got := batches("--format", "global", "--ranks", ranks); got != global {
					t.Errorf("%s ranks: other global lines", ranks)
				}
			}
			all := batches("--ranks", "3")
			if n := len(want) / 40; len(lines(global)) != n || len(lines(all)) != 3*n {
				t.Errorf("%d samples, but %d global lines and %d of 3 ranks", len(want), len(lines(global)), len(lines(all)))
			}
			if got, want := batches("--ranks", "3", "--rank", "2", "--steps", "2"), lines(all)[2]+lines(all)[5]; got != want {
				t.Errorf("--rank 2: %s, want %s", got, want)
			}

			first := batches("--ranks", "8", "--steps", "1", "--state-out", state, "--format", "jsonl")
			if got := batches("--ranks", "3", "--from", state); got != strings.Join(lines(all)[3:], "") {
				t.Errorf("from step 1, other lines: %s", got)
			}
			if got := batches("--from", state, "--format", "global"); got != strings.Join(lines(global)[1:], "") {
				t.Errorf("from step 1, other global lines: %s", got)
			}
			second := batches("--from", state, "--ranks", "2", "--set", "shards.global_batch=7", "--steps", "3", "--state-out", state, "--format", "jsonl")
			rest := batches(append(tail, "--from", state, "--ranks", "5", "--format", "jsonl")...)
			if got := byN(t, first+second+rest); !slices.Equal(got, want) {
				t.Errorf("in three parts: other samples")
			}

			// The end of an epoch is the beginning of the next one.
			if got := batches("--state-out", state, "--format", "global"); got != global {
				t.Errorf("another run, other lines")
			}
			next := batches("--from", state, "--format", "global")
			if next != batches("--epoch", "1", "--format", "global") || name != "none" && next == global {
				t.Errorf("the epoch after the first is not epoch 1")
			}

			// The last step without its pads is what a job gets that asks for just so much.
			padded := lines(batches(append(tail, "--format", "global", "--ranks", "3")...))
			if k := len(want) % 40; k > 0 {
				batches("--steps", fmt.Sprint(len(padded)-1), "--state-out", state)
				if got := batches("--from", state, "--set", fmt.Sprint("shards.global_batch=", k), "--format", "global"); got != padded[len(padded)-1] {
					t.Errorf("the last step is %s, padded %s", got, padded[len(padded)-1])
				}
			} else {
				t.Errorf("%d samples: choose data with a tail", len(want))
			}
		})
	}
}

// Replay prints the lines of batches, and counts only where nobody knows.
func TestReplay(t *testing.T) {
	for name, text := range dealtSpecs(t) {
		t.Run(name, func(t *testing.T) {
			t.Setenv("XDG_CACHE_HOME", t.TempDir())
			s := writeSpec(t, text)
			dir := t.TempDir()
			ledger, state := filepath.Join(dir, "ledger"), filepath.Join(dir, "state")
			all := lines(ok(t, "batches", s, "--epoch", "1", "--ranks", "3", "--ledger-out", ledger))
			lineage := ok(t, "batches", s, "--epoch", "1", "--ranks", "3", "--format", "lineage")
			known := name == "none" || name == "tensors" || name == "padded"
			for i, step := range []int{2, 0, 1, len(all)/3 - 1} {
				want := strings.Join(all[3*step:3*step+3], "")
				replay := func(args ...string) result {
					return penstock(t, append([]string{"replay", s, "--epoch", "1", "--ranks", "3", "--step", fmt.Sprint(step)}, args...)...)
				}
				if r := replay("--ledger", ledger); r.out != want || r.err != "" || r.code != 0 {
					t.Errorf("step %d with a ledger: %+v, want %s", step, r, want)
				}
				// Steps before one that was counted are known then.
				r := replay()
				counted := strings.Contains(r.err, "to count")
				if r.out != want || r.code != 0 || counted != (!known && (i == 0 || i == 3)) {
					t.Errorf("step %d: %+v, want %s", step, r, want)
				}
				if r := replay("--rank", "1"); r.out != all[3*step+1] || r.err != "" {
					t.Errorf("step %d of rank 1: %+v, want %s", step, r, all[3*step+1])
				}
			}
			if r := penstock(t, "replay", s, "--epoch", "1", "--ranks", "3", "--step", "1", "--format", "lineage"); !strings.Contains(lineage, r.out) || r.out == "" {
				t.Errorf("lineage of a step: %+v", r)
			}
			// Steps after a change of the batch: from a state after it, or by sample.
			ok(t, "batches", s, "--epoch", "1", "--steps", "1", "--state-out", state, "--set", "shards.global_batch=30")
			next := lines(ok(t, "batches", s, "--from", state, "--format", "global"))
			for _, r := range []result{
				penstock(t, "replay", s, "--from", state, "--step", "2", "--format", "global"),
				penstock(t, "replay", s, "--epoch", "1", "--sample", "70", "--format", "global", "--ledger", ledger),
			} {
				// Counted from the epoch's beginning the step has another number.
				_, got, _ := strings.Cut(r.out, " ")
				if _, want, _ := strings.Cut(next[1], " "); got != want || r.code != 0 {
					t.Errorf("%+v, want %s", r, next[1])
				}
			}
			if r := penstock(t, "replay", s, "--epoch", "1", "--step", fmt.Sprint(len(all)/3), "--ledger", ledger); r.code != 2 || !strings.Contains(r.err, "too few samples") && !strings.Contains(r.err, "there is no step") {
				t.Errorf("a step after the last: %+v", r)
			}
		})
	}
}

// Explain says how the shards are dealt, and measures a label.
func TestExplainShards(t *testing.T) {
	out := ok(t, "explain", "examples/shards.yaml", "--label", "late")
	for _, want := range []string{"8 ranks, steps of 256 samples, tail drop, seed 7\n", "8 lanes, windows of 256 rows", "resident: about", "quality: ", "label late: 2 values; entropy of a step 0.", "(78 steps read)"} {
		if !strings.Contains(out, want) {
			t.Errorf("explain has no %q: %s", want, out)
		}
	}
	out = ok(t, "explain", writeSpec(t, "version: 1\nsource: {range: {n: 1000}}\nshards: {batch_per_rank: 30, ranks: 4, tail: pad, shuffle: none}\n"))
	if !strings.Contains(out, "4 ranks, steps of 120 samples, tail pad, seed 0, 9 steps per epoch") {
		t.Errorf("explain: %s", out)
	}
	if r := penstock(t, "explain", "--label", "delay", "examples/flights.yaml"); r.code != 2 || !strings.Contains(r.err, "spec with shards") {
		t.Errorf("--label without shards: %+v", r)
	}
	if r := penstock(t, "explain", "--label", "lat", "examples/shards.yaml"); r.code != 2 || !strings.Contains(r.err, "--label lat: unknown column; did you mean \"late\"?; have distance, delay, late") {
		t.Errorf("--label of no column: %+v", r)
	}
}

// What the commands print, byte for byte: the order is a promise. Rewrite with -update.
func TestTranscript(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	var b strings.Builder
	for _, args := range []string{
		"batches examples/shards.yaml --steps 2",
		"batches examples/shards.yaml --steps 3 --format global --epoch 1",
		"batches examples/shards.yaml --steps 2 --ranks 64 --rank 5 --format jsonl",
		"batches examples/shards.yaml --steps 2 --ranks 64 --rank 5 --format lineage",
		"replay examples/shards.yaml --epoch 1 --step 70 --format global",
	} {
		r := penstock(t, strings.Fields(args)...)
		if r.code != 0 {
			t.Fatalf("%s: %+v", args, r)
		}
		fmt.Fprintf(&b, "$ penstock %s\n%s%s", args, r.err, r.out)
	}
	const file = "testdata/transcript.txt"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if b.String() != string(want) {
		t.Errorf("not what %s says:\n%s", file, b.String())
	}
}

// The lineage of a sample is the row that it was made of, through filter, explode and shuffle.
func TestLineage(t *testing.T) {
	s := writeSpec(t, dealtSpecs(t)["text"])
	rows := lines(ok(t, "batches", s, "--ranks", "2", "--format", "jsonl"))
	places := lines(ok(t, "batches", s, "--ranks", "2", "--format", "lineage"))
	if len(rows) != len(places) || len(rows) < 100 {
		t.Fatalf("%d rows, %d places", len(rows), len(places))
	}
	for i := range rows {
		var r struct {
			Step, Rank, N int64
			Row           struct{ ID int64 }
		}
		var p struct {
			Step, Rank, N, Row int64
			File               string
		}
		if err := errors.Join(json.Unmarshal([]byte(rows[i]), &r), json.Unmarshal([]byte(places[i]), &p)); err != nil {
			t.Fatal(err)
		}
		// Documents are 200 a file, which is named after its last one.
		file := fmt.Sprintf("%05d.jsonl", min(r.Row.ID/200*200+199, 899))
		if p.Step != r.Step || p.Rank != r.Rank || p.N != r.N || filepath.Base(p.File) != file || p.Row != r.Row.ID%200 {
			t.Errorf("%s comes from %s", rows[i], places[i])
		}
	}
}

// Each sample of packed documents names them; the rows are those that the source has.
func TestLineageOfPacked(t *testing.T) {
	s := writeSpec(t, dealtSpecs(t)["mix"])
	samples := 0
	for _, l := range lines(ok(t, "batches", s, "--steps", "2", "--format", "lineage")) {
		var x struct {
			Source, File string
			Row          *int64
			Documents    []struct {
				Source, File string
				Row          *int64
			}
		}
		if err := json.Unmarshal([]byte(l), &x); err != nil {
			t.Fatal(err)
		}
		if len(x.Documents) == 0 || x.Documents[0].File != x.File || *x.Documents[0].Row != *x.Row || x.Source != "docs" && x.Source != "text" || x.File == "" {
			t.Errorf("lineage %s", l)
		}
		samples++
	}
	if samples != 80 {
		t.Errorf("%d samples", samples)
	}
}

// States that cannot be gone on from are refused, and say why.
func TestBadStates(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	dir := t.TempDir()
	write := func(name, text string) string {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return p
	}
	const text = "version: 1\nsource: {range: {n: 100000}}\nsteps: [{filter: id % 3 == 0}]\nshards: {global_batch: 100, seed: 5, shuffle: {lanes: 2}}\n"
	s := writeSpec(t, text)
	state, ledger := filepath.Join(dir, "state"), filepath.Join(dir, "ledger")
	ok(t, "batches", s, "--steps", "7", "--state-out", state, "--ledger-out", ledger)
	b, err := os.ReadFile(state)
	if err != nil {
		t.Fatal(err)
	}
	good := string(b)
	edit := func(name, from, to string) string {
		if !strings.Contains(good, from) {
			t.Fatalf("the state has no %s: %s", from, good)
		}
		return write(name, strings.Replace(good, from, to, 1))
	}
	whole := func(file string) string { // its sum is made to fit
		type fields shard.State
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var f fields
		if err := json.Unmarshal(b, &f); err != nil {
			t.Fatal(err)
		}
		if b, err = json.Marshal(shard.State(f)); err != nil {
			t.Fatal(err)
		}
		return write(filepath.Base(file), string(b))
	}
	l, err := os.ReadFile(ledger)
	if err != nil {
		t.Fatal(err)
	}
	other := writeSpec(t, strings.Replace(text, "% 3", "% 2", 1))
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"batches", s, "--from", filepath.Join(dir, "none")}, 2, "none"},
		{[]string{"batches", s, "--from", dir}, 2, "is a folder"},
		{[]string{"batches", s, "--from", write("empty", "")}, 1, "cut short"},
		{[]string{"batches", s, "--from", write("cut", good[:len(good)/2])}, 1, "cut short"},
		{[]string{"batches", s, "--from", write("list", "[1]")}, 1, "not a state"},
		{[]string{"batches", s, "--from", write("text", good+"x")}, 1, "not a state"},
		{[]string{"batches", s, "--from", edit("newer", `"version":1`, `"version":2`)}, 2, "version 2"},
		{[]string{"batches", s, "--from", edit("step", `"step":7`, `"step":8`)}, 1, "edited or damaged"},
		{[]string{"batches", s, "--from", edit("sum", `,"sum":`, `,"some":`)}, 1, "no sum"},
		{[]string{"batches", s, "--from", whole(edit("order", `"order":1`, `"order":9`))}, 2, "order version 9"},
		{[]string{"batches", s, "--from", whole(edit("sample", `"sample":700`, `"sample":-700`))}, 2, "edited"},
		{[]string{"batches", s, "--from", whole(edit("lanes", `"lanes":2`, `"lanes":3`))}, 2, "3 lanes"},
		{[]string{"batches", s, "--from", whole(edit("pass", `"pass":0`, `"pass":1`))}, 2, "does not repeat"},
		{[]string{"batches", s, "--from", whole(edit("pos", `"pos":[[`, `"pos":[[9,0],[`))}, 2, "edited"},
		{[]string{"batches", s, "--from", whole(edit("deep", `"pos":[[`, `"pos":[[9999999`))}, 2, ""},
		{[]string{"batches", other, "--from", state}, 2, "another plan"},
		{[]string{"batches", s, "--from", state, "--set", "shards.seed=6"}, 2, "seed 5"},
		{[]string{"batches", s, "--from", state, "--set", "source.range.n=99999"}, 2, "another plan|the data"},
		{[]string{"batches", s, "--from", state, "--set", "shards.shuffle.lanes=1"}, 2, "2 lanes"},
		{[]string{"batches", s, "--from", state, "--epoch", "3"}, 2, "in epoch 0"},
		{[]string{"batches", s, "--epoch", "3", "--set", "shards.epochs=3"}, 2, "the spec has 3, from epoch 0"},
		{[]string{"batches", s, "--from", whole(edit("over", `"epoch":0`, `"epoch":3`)), "--set", "shards.epochs=3"}, 2, "no epoch 3"},
		{[]string{"replay", s, "--step", "1", "--epoch", "4", "--set", "shards.epochs=1", "--set", "run.epoch=5"}, 2, "no epoch 4"},
		{[]string{"batches", s, "--state-out", filepath.Join(dir, "no", "state")}, 1, "cannot be written"},
		{[]string{"batches", s, "--ledger-out", dir}, 2, "no regular file"},
		{[]string{"batches", s, "--ranks", "0"}, 2, "at least 1"},
		{[]string{"batches", s, "--ranks", "101"}, 2, "101 ranks"},
		{[]string{"batches", s, "--rank", "1"}, 2, "rank 1 of 1"},
		{[]string{"batches", s, "--rank", "0", "--format", "global"}, 2, "leave --rank out"},
		{[]string{"batches", s, "--format", "yaml"}, 2, "digest, global, jsonl, lineage"},
		{[]string{"batches", s, "--steps", "-1"}, 2, "not be negative"},
		{[]string{"replay", s}, 2, "--step or --sample"},
		{[]string{"replay", s, "--step", "1", "--sample", "1"}, 2, "--step or --sample"},
		{[]string{"replay", s, "--step", "-1"}, 2, "from 0"},
		{[]string{"replay", s, "--from", state, "--step", "6"}, 2, "comes before the state"},
		{[]string{"replay", s, "--step", "1", "--ledger", write("cutledger", string(l[:len(l)-1]))}, 1, "cut short"},
		{[]string{"replay", s, "--step", "1", "--ledger", state}, 1, "not a ledger"},
		{[]string{"replay", other, "--step", "1", "--ledger", ledger}, 2, "another plan"},
		{[]string{"replay", s, "--step", "1", "--ledger", ledger, "--set", "shards.shuffle.lanes=3"}, 2, "2 lanes"},
		{[]string{"replay", s, "--step", "1", "--ledger", ledger, "--set", "shards.shuffle.window_rows=100"}, 2, "windows of"},
		{[]string{"replay", s, "--step", "1", "--ledger", write("oldledger", "penstock/ledger/1\n"+string(l[18:]))}, 2, "version \"1\""},
		{[]string{"run", s}, 2, "penstock batches"},
		{[]string{"batches", "examples/flights.yaml"}, 2, "has no shards"},
	} {
		r := penstock(t, c.args...)
		found := false
		for _, w := range strings.Split(c.want, "|") {
			found = found || strings.Contains(r.err, w)
		}
		if r.code != c.code || !found || r.out != "" || strings.Contains(r.err, "internal") {
			t.Errorf("%v: exit %d, want %d with %q: %s%.200s", c.args, r.code, c.code, c.want, r.err, r.out)
		}
	}
	after, err := os.ReadFile(state)
	if err != nil || string(after) != good {
		t.Errorf("the state was changed: %v", err)
	}
	left, err := filepath.Glob(filepath.Join(dir, ".penstock-*"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// An interrupt leaves whole steps and the state after them.
func TestInterruptedBatches(t *testing.T) {
	s := writeSpec(t, "version: 1\nsource: {range: {n: 2000000000}}\nshards: {global_batch: 64, shuffle: {window_rows: 4096, lanes: 4}}\n")
	state := filepath.Join(t.TempDir(), "state")
	c := command(t, "batches", s, "--ranks", "2", "--state-out", state)
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr, text bytes.Buffer
	c.Stderr = &stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	first := make([]byte, 1<<16)
	n, err := out.Read(first) // it is at work
	if err != nil {
		t.Fatal(err)
	}
	text.Write(first[:n])
	if err := c.Process.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if _, err := text.ReadFrom(out); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	if c.ProcessState.ExitCode() != 130 || !strings.Contains(stderr.String(), "interrupted") {
		t.Fatalf("exit %d: %s", c.ProcessState.ExitCode(), stderr.String())
	}
	got := lines(text.String())
	var step, rank int
	if _, err := fmt.Sscan(got[len(got)-1], &step, &rank); err != nil || rank != 1 {
		t.Fatalf("the last line is %q", got[len(got)-1])
	}
	next := ok(t, "batches", s, "--ranks", "2", "--from", state, "--steps", "1")
	if want := fmt.Sprintf("%d 0 ", step+1); !strings.HasPrefix(next, want) {
		t.Errorf("after step %d comes %s", step, next)
	}
}

// An epoch without a step is said to have none, and why.
func TestNoStep(t *testing.T) {
	s := writeSpec(t, "version: 1\nsource: {range: {n: 9}}\nshards: {global_batch: 10}\n")
	for args, want := range map[string]string{"": "tail drop leaves them out", "shards.tail=pad": "", "source.range.n=0 shards.tail=pad": "has no samples", "source.range.n=0 shards.tail=repeat": "has no samples"} {
		call := []string{"batches", s}
		for _, a := range strings.Fields(args) {
			call = append(call, "--set", a)
		}
		if r := penstock(t, call...); r.code != 0 || !strings.Contains(r.err, want) || (want == "") != (r.out != "") {
			t.Errorf("%s: %+v", args, r)
		}
	}
}

// From a state in which its epoch has no step left, the next one is printed, as after the end of an epoch.
func TestFromTheLastStep(t *testing.T) {
	s, state, next := writeSpec(t, "version: 1\nsource: {range: {n: 25}}\nshards: {global_batch: 10}\n"), filepath.Join(t.TempDir(), "state"), filepath.Join(t.TempDir(), "next")
	ok(t, "batches", s, "--steps", "2", "--state-out", state) // 5 samples do not fill a step
	want := ok(t, "batches", s, "--epoch", "1")
	if got := ok(t, "batches", s, "--from", state); got != want || len(lines(got)) != 2 {
		t.Errorf("%s, want %s", got, want)
	}
	if got := ok(t, "batches", s, "--from", state, "--ranks", "2", "--rank", "1", "--steps", "1", "--state-out", next); len(lines(got)) != 1 {
		t.Error(got)
	}
	if got := ok(t, "batches", s, "--from", next); got != lines(want)[1] {
		t.Errorf("after a step of the next one: %s, want %s", got, lines(want)[1])
	}
	if r := penstock(t, "batches", s, "--from", state, "--epoch", "0"); r.code != 0 || r.out != "" || !strings.Contains(r.err, "is at the end of epoch 0: leave --epoch out to go on with epoch 1") {
		t.Errorf("%+v", r)
	}
	if r := penstock(t, "batches", s, "--from", state, "--set", "shards.epochs=1"); r.code != 2 || r.out != "" || !strings.Contains(r.err, "there is no epoch 1: the spec has 1") {
		t.Errorf("%+v", r)
	}
	if got := ok(t, "batches", s, "--from", state, "--set", "shards.epochs=2"); got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// A step whose lists are all empty is padded to none.
func TestEmptyLists(t *testing.T) {
	file, pq, ledger := filepath.Join(t.TempDir(), "a.jsonl"), t.TempDir(), filepath.Join(t.TempDir(), "ledger")
	if err := os.WriteFile(file, []byte(`{"id": 1, "a": [], "b": []}`+"\n"+`{"id": 2, "a": [], "b": []}`+"\n"+`{"id": 3, "a": [1], "b": []}`+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ok(t, "run", writeSpec(t, fmt.Sprintf("version: 1\nsource: {json: {paths: [%q], types: {b: 'list<int>'}}}\nsink: {parquet: {path: %q}}\n", file, pq)))
	s := writeSpec(t, fmt.Sprintf("version: 1\nsource: {parquet: {paths: [%q]}}\nshards: {global_batch: 2, tail: pad, shuffle: none, columns: {id: int64, a: {lists: pad}, b: {lists: pad}}}\n", pq))
	want := `{"step":0,"rank":0,"n":0,"row":{"id":1,"a":[],"a.lengths":0,"b":[],"b.lengths":0}}` + "\n" +
		`{"step":0,"rank":0,"n":1,"row":{"id":2,"a":[],"a.lengths":0,"b":[],"b.lengths":0}}` + "\n" +
		`{"step":1,"rank":0,"n":2,"row":{"id":3,"a":[1],"a.lengths":1,"b":[],"b.lengths":0}}` + "\n"
	if got := ok(t, "batches", s, "--format", "jsonl", "--ledger-out", ledger); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got := ok(t, "replay", s, "--step", "0", "--format", "jsonl", "--ledger", ledger); got != strings.Join(lines(want)[:2], "") {
		t.Error(got)
	}
}
