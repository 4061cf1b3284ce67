package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/penstock-data/penstock/trainer/store"
)

// hostile is text that sets a terminal's title, clears it, turns text around, hides and overwrites.
const hostile = "a\x1b]0;owned\x07\x1b[2J\x1b[8m\u009b31m\u202eb\u2066\U000e0041\x7f"

// shows is hostile as it is shown.
const shows = `a\x1b]0;owned\x07\x1b[2J\x1b[8m\u009b31m\u202eb\u2066\U000e0041\x7f`

// prints checks that text only prints, whatever it is of.
func prints(t *testing.T, what, text string) {
	t.Helper()
	bad := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && r != '\t' && !unicode.IsGraphic(r) })
	if bad >= 0 || !utf8.ValidString(text) {
		t.Errorf("%s: it does more to a terminal than print: %q", what, text)
	}
}

// saysOnly runs a command, of which all must print; where want is not "", it is there.
func saysOnly(t *testing.T, want string, args ...string) result {
	t.Helper()
	r := penstock(t, args...)
	what := fmt.Sprintf("%.60q", args)
	prints(t, what, r.out)
	prints(t, what, r.err)
	if !strings.Contains(r.out+r.err, want) {
		t.Errorf("%s: no %s in %q, %q", what, want, r.out, r.err)
	}
	return r
}

// Names of files and columns, values, keys and commands of others print and do nothing else: in
// what commands give and in their errors.
func TestHostileData(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "data") // of one file
	if err := os.Mkdir(file, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(file, hostile+".csv"), []byte("id,\""+hostile+"\"\n1,\""+hostile+"\"\n2,x\rY\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	damaged := filepath.Join(dir, hostile+".parquet")
	if err := os.WriteFile(damaged, []byte("PAR1 it is none PAR1"), 0o644); err != nil {
		t.Fatal(err)
	}
	bad := filepath.Join(dir, "bad"+hostile+".csv")
	if err := os.WriteFile(bad, []byte("id,"+hostile+"\n1,2\n2,3,4\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	spec := filepath.Join(dir, hostile+".yaml")
	text := fmt.Sprintf("version: 1\nsource: {csv: {paths: [%s]}}\nshards: {batch_per_rank: 1, ranks: 1}\n", strconv.QuoteToASCII(file))
	if err := os.WriteFile(spec, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	wrong := writeSpec(t, "version: 1\n"+strconv.QuoteToASCII(hostile)+": 1\n")
	out := filepath.Join(dir, "out")

	for _, c := range []struct {
		want string
		args []string
	}{
		{"", []string{"show", file}},
		{"", []string{"schema", file}},
		{"", []string{"explain", file}},
		{"2", []string{"count", file}},
		{`b\u2066`, []string{"count", damaged}},
		{`b\u2066`, []string{"show", damaged}},
		{`b\u2066`, []string{"schema", damaged}},
		{`b\u2066`, []string{"explain", damaged}},
		{`b\u2066`, []string{"show", filepath.Join(dir, "none"+hostile+".csv")}},
		{`b\u2066`, []string{"count", filepath.Join(dir, "none"+hostile)}},
		{`b\u2066`, []string{"count", "--format", hostile, file}},
		{"", []string{"show", bad}},
		{"", []string{hostile}},
		{"", []string{"show", "--" + hostile}},
		{"", []string{"validate", spec}},
		{"", []string{"validate", wrong}},
		{"", []string{"explain", spec}},
		{"", []string{"run", spec, "--set", hostile + "=1"}},
		{"", []string{"run", spec, "--set", hostile + "=1", "--json"}},
		{"", []string{"run", spec, "--set", "shards=null", "--set", "steps=[{filter: '`" + "x" + hostile[:2] + "` > 1'}]", "--set", "sink={count: {}}"}},
		{"", []string{"run", spec, "--set", "shards=null", "--set", "sink={parquet: {path: " + out + "}}"}},
		{"", []string{"show", out}},
		{"", []string{"schema", out}},
		{"", []string{"batches", spec}},
		{"", []string{"batches", spec, "--format", "jsonl"}},
		{"", []string{"batches", spec, "--format", "lineage"}},
		{"", []string{"batches", spec, "--state-out", filepath.Join(dir, "no"+hostile, "x")}},
		{"", []string{"data", spec, "--socket", filepath.Join(dir, strings.Repeat(hostile, 9))}},
		{"", []string{"runs", "--storage", filepath.Join(dir, "runs"+hostile)}},
		{"", []string{"status", hostile}},
		{"", []string{"jobs", "--cluster", filepath.Join(dir, hostile)}},
	} {
		saysOnly(t, c.want, c.args...)
	}
	// What programs read has the same values.
	r := saysOnly(t, "", "batches", spec, "--format", "jsonl")
	var row struct{ Row map[string]any }
	if line, _, _ := strings.Cut(r.out, "\n"); json.Unmarshal([]byte(line), &row) != nil || row.Row[hostile] == nil {
		t.Errorf("%+v", r)
	}
	r = saysOnly(t, "", "batches", spec, "--format", "lineage")
	var where struct{ File string }
	if line, _, _ := strings.Cut(r.out, "\n"); json.Unmarshal([]byte(line), &where) != nil || !strings.HasSuffix(where.File, hostile+".csv") {
		t.Errorf("%+v: %q", r, where.File)
	}
}

// The record of a run that somebody else wrote prints.
func TestHostileRecord(t *testing.T) {
	storage := t.TempDir()
	ctx := context.Background()
	run, err := store.Create(ctx, storage, store.Record{Name: "first", Workers: 1, Command: []string{"sh", "-c", hostile}, Host: "host"})
	if err != nil {
		t.Fatal(err)
	}
	_, err = run.Begin(ctx, store.BeginOptions{})
	if err != nil {
		t.Fatal(err)
	}
	err = run.SetStatus(ctx, store.Status{State: store.Failed, Attempt: 1, Reason: "reason", Metrics: store.Metrics{"metric": 1}, Failures: map[string]int{"class": 1},
		Error: &store.Error{Code: "user_code", Text: "text"}})
	if err = errors.Join(err, run.Close()); err != nil {
		t.Fatal(err)
	}
	host, _ := os.Hostname()
	changed := 0
	err = filepath.WalkDir(filepath.Join(storage, "first"), func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".json") {
			return err
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		in, _ := json.Marshal(hostile)
		was := b
		for _, name := range []string{"host", host, "reason", "metric", "class", "text", "user_code", "penstock"} { // values of that word
			for _, blank := range []string{"", " "} {
				b = bytes.ReplaceAll(b, []byte(":"+blank+`"`+name+`"`), append([]byte(":"), in...))
				b = bytes.ReplaceAll(b, []byte(`"`+name+`":`+blank+"1"), append(bytes.Clone(in), ":1"...))
			}
		}
		if bytes.Equal(b, was) {
			return nil
		}
		changed++
		return os.WriteFile(path, b, 0o644)
	})
	if err != nil || changed == 0 {
		t.Fatal(changed, err)
	}
	for _, args := range [][]string{{"status", "first"}, {"status", "first", "--json"}, {"runs"}, {"runs", "--json"}, {"checkpoints", "first"}, {"resume", "first"}} {
		saysOnly(t, "", append(args, "--storage", storage)...)
	}
}

// The log of a head or a node has a line for each thing that it says, whatever the names in it are.
func TestHostileLogLine(t *testing.T) {
	var b bytes.Buffer
	lines := newLineLog(&b, false)
	log := slog.New(lines)
	log.Info("node "+hostile+"\npenstock: node n1 has left joined", "error", errors.New("x\x1b[2J\rpenstock: y\nz"))
	lines.close()
	prints(t, "a log", b.String())
	if strings.Count(b.String(), "\n") != 1 || !strings.HasPrefix(b.String(), "penstock: node "+shows+" penstock: node n1") {
		t.Errorf("%q", b.String())
	}
}

// Jobs of others print: their last words in lists and in the log of the head, and what they print
// themselves, which has its colours where they are wanted, and its bytes with
// --raw.
func TestHostileJob(t *testing.T) {
	c := newTestCluster(t)
	c.join("a", "--token", strings.TrimSpace(c.ok("token", "create")))
	work := t.TempDir()
	const said = hostile + "\x1b[K\x1b[31mred\x1b[0m\nover\rwritten\n"
	if err := os.WriteFile(filepath.Join(work, "said"), []byte(said), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, script := range map[string]string{"good": "cat said", "bad": "cat said >&2; exit 3"} {
		if err := os.WriteFile(filepath.Join(work, name), []byte("#!/bin/sh\n"+script+"\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	const name = "job é" // others are refused
	at := func(args ...string) []string { return append(args, "--cluster", c.head) }
	submit := func(name, program string) result {
		t.Helper()
		return saysOnly(t, "", append(at("submit", "--working-dir", work, "--name", name), "--", program)...)
	}
	for _, name := range []string{hostile, "job\u202e\u2066"} {
		if r := submit(name, "good"); r.code != exitUsage {
			t.Errorf("%+v", r)
		}
	}
	printed := strings.Replace(shows, `\x1b[2J`, "", 1) + "red\nover\nwritten\n"
	if r := submit(name, "good"); r.code != 0 || r.out != printed {
		t.Errorf("%+v", r)
	}
	if r := submit(name, "bad"); r.code != 3 || !strings.Contains(r.err, "job j2 failed") {
		t.Errorf("%+v", r)
	}
	for _, r := range []result{
		saysOnly(t, name, at("jobs")...), saysOnly(t, name, at("jobs", "j2")...), saysOnly(t, "", at("status")...),
		saysOnly(t, "", at("stop", hostile)...), saysOnly(t, "", at("drain", hostile)...), saysOnly(t, "", at("logs", hostile)...),
	} {
		if r.code != 0 && !strings.HasPrefix(r.err, "penstock: ") {
			t.Errorf("%+v", r)
		}
	}
	var j jobJSON
	if r := saysOnly(t, "", at("jobs", "j1", "--json")...); json.Unmarshal([]byte(r.out), &j) != nil || j.Name != name {
		t.Errorf("%+v: %q", r, j.Name)
	}
	for _, follow := range [][]string{{}, {"-f"}} {
		if r := saysOnly(t, "", at(append([]string{"logs", "j1"}, follow...)...)...); r.code != 0 || r.out != printed {
			t.Errorf("%+v", r)
		}
		if r := penstock(t, at(append([]string{"logs", "j1", "--color", "always"}, follow...)...)...); r.code != 0 || strings.NewReplacer("\x1b[31m", "", "\x1b[0m", "").Replace(r.out) != printed || !strings.Contains(r.out, "\x1b[31mred\x1b[0m") {
			t.Errorf("%+v", r)
		}
		if r := penstock(t, at(append([]string{"logs", "j1", "--raw"}, follow...)...)...); r.code != 0 || r.out != said {
			t.Errorf("%+v", r)
		}
	}
	if r := penstock(t, at("logs", "j1", "--color", "sometimes")...); r.code != exitUsage || !strings.Contains(r.err, "auto, always or never") {
		t.Errorf("%+v", r)
	}
	if r := penstock(t, "run", "s.yaml", "--color", "never"); r.code != exitUsage || !strings.Contains(r.err, "--color goes with --cluster") {
		t.Errorf("%+v", r)
	}
	prints(t, "the head", c.first.String())
	prints(t, "the node", c.nodes["n1"].String())
}
