package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// summaryOf is the last line of what a command printed, an object.
func summaryOf(t *testing.T, r result) (m map[string]any) {
	t.Helper()
	all := strings.Split(strings.TrimSpace(r.out), "\n")
	if err := json.Unmarshal([]byte(all[len(all)-1]), &m); err != nil {
		t.Fatalf("exit %d: %v: %q, %s", r.code, err, r.out, r.err)
	}
	return m
}

// badRows is a spec whose first file of three, of 1000 rows each, has so many rows that do not parse; it writes CSV.
func badRows(t *testing.T, bad int) string {
	t.Helper()
	dir := t.TempDir()
	for f := range 3 {
		var text strings.Builder
		text.WriteString("id,x\n")
		for i := range 1000 {
			if f == 0 && i < bad {
				text.WriteString("1,bad\n")
			} else {
				fmt.Fprintf(&text, "%d,%d\n", i, i)
			}
		}
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("e%d.csv", f)), []byte(text.String()), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return writeSpec(t, fmt.Sprintf("version: 1\nsource: {csv: {paths: [%[1]q], types: {id: int, x: int}}}\nsink: {csv: {path: %[1]q, target_size: 1}}\n"+
		"run: {cpus: 1, on_error: {policy: skip, max_rows: 5, dead_letter: %[2]q}}\n", dir+"/*.csv", dir+"/bad"))
}

// To run a command again is no way round its limits, larger ones let it go on, and the line of --json has the rows of the whole job.
func TestSummaryOfAJob(t *testing.T) {
	s, out := badRows(t, 201), t.TempDir()
	run := func(code int, sets ...string) (result, map[string]any) {
		t.Helper()
		a := []string{"run", s, "--json", "--set", "sink.csv.path=" + out}
		for _, x := range sets {
			a = append(a, "--set", x)
		}
		r := penstock(t, a...)
		if r.code != code {
			t.Errorf("%q: exit %d, %s", sets, r.code, r.err)
		}
		return r, summaryOf(t, r)
	}
	if r, m := run(1); !strings.Contains(r.err, "6 rows skipped, more than max_rows 5") || strings.Count(r.err, "e0.csv, row group 0, row ") != 6 || m["status"] != "failed" || m["code"] != "exhausted" {
		t.Errorf("%s, %v", r.err, m)
	}
	for set, want := range map[string]string{
		"run.on_error.max_rows=5":                             "201 rows skipped (201 of them by an earlier run of this job), more than max_rows 5: raise max_rows to go on",
		"run.on_error={policy: skip, max_rate: 0.05}":         "had the dead letter folder ",
		"run.on_error.policy=fail":                            "policy fail, and an earlier run of this job has skipped 201 rows",
		"run.on_error.dead_letter=" + t.TempDir() + "/others": "set that to go on, or remove the folder to start over",
	} {
		r, m := run(1, set)
		if !strings.Contains(r.err, want) || strings.Contains(r.err, "mode=") || m["status"] != "failed" || m["error"] == nil {
			t.Errorf("%s: %s, %v", set, r.err, m)
		}
	}
	more := "run.on_error.max_rows=201"
	for _, status := range []string{"ok", "already_done"} {
		_, m := run(0, more)
		if m["status"] != status || m["rows_in"] != 2799.0 || m["rows_out"] != 2799.0 || m["skipped_rows"] != 201.0 || m["files"] != 3.0 || m["retries"] != 0.0 || m["storage_retries"] != 0.0 {
			t.Errorf("%v", m)
		}
		if status == "already_done" && m["bytes_read"] != 0.0 {
			t.Errorf("%v", m)
		}
	}
}

// The line of --json comes with every end, also of a command that is wrong.
func TestSummaryOfMistakes(t *testing.T) {
	misspelt := writeSpec(t, "version: 1\nsource: {range: {n: 5}}\nsteps: [{filtr: id > 1}]\nsink: {count: {}}\n")
	column := writeSpec(t, "version: 1\nsource: {range: {n: 5}}\nsteps: [{filter: idd > 1}]\nsink: {count: {}}\n")
	for _, a := range [][]string{
		{"run", "--json"},
		{"run", "--json", "a", "b"},
		{"run", "--json", misspelt},
		{"run", "--json", column},
		{"run", "--json", "nosuch.yaml"},
		{"run", "--json", column, "--set", "run.memory=1KiB"},
		{"run", "--json", column, "--detach"},
		{"run", "--json", column, "--nosuch"},
		{"run", "--json", misspelt, "--cluster", "local"},
	} {
		r := penstock(t, a...)
		m := summaryOf(t, r)
		if r.code != 2 || strings.Count(r.out, "\n") != 1 || m["status"] != "failed" || m["code"] != "invalid" || !strings.Contains(r.err, m["error"].(string)) || m["rows_out"] != 0.0 {
			t.Errorf("%q: exit %d, %v, %s", a, r.code, m, r.err)
		}
	}
	for _, a := range [][]string{{"run", column}, {"run", "--nosuch", "--json"}} { // not given, or not understood
		if r := penstock(t, a...); r.code != 2 || r.out != "" {
			t.Errorf("%q: exit %d, %s", a, r.code, r.out)
		}
	}
}

// A mode is offered where it helps.
func TestModeHints(t *testing.T) {
	s, out := badRows(t, 0), t.TempDir()
	if err := os.WriteFile(out+"/mine.txt", []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := penstock(t, "run", s, "--set", "sink.csv.path="+out)
	if r.code != 1 || !strings.HasSuffix(r.err, "; to set it: --set sink.csv.mode=append\n") {
		t.Errorf("exit %d, %s", r.code, r.err)
	}
}

// Of a job whose process did not tell its numbers the line says how it ended, and no more.
func TestSummaryOfElsewhere(t *testing.T) {
	var out bytes.Buffer
	c := &cobra.Command{}
	c.SetOut(&out)
	c.SetContext(t.Context())
	if err := (&summary{elsewhere: true}).print(c, nil); err != nil || out.String() != `{"status":"ok"}`+"\n" {
		t.Errorf("%v, %s", err, &out)
	}
}
