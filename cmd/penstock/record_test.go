package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/store"
)

// foreignable makes a run that was interrupted by its own failure, and returns its folder.
func foreignable(t *testing.T, dir string) string {
	t.Helper()
	spec := writeSpec(t, "version: 1\nsource: {range: {n: 64}}\nshards: {global_batch: 8}\ntrain: {command: [sh, -c, 'touch \"$OUT\"; exit 3'], env: ['OUT="+dir+"/ran'], failures: {worker: 0}}\n")
	if r := penstock(t, "train", spec, "--name", "first", "--storage", dir+"/runs"); r.code != exitFailed {
		t.Fatalf("%+v", r)
	}
	if err := os.Remove(dir + "/ran"); err != nil {
		t.Fatal(err)
	}
	return dir + "/runs/first"
}

// alter changes the record of a run.
func alter(t *testing.T, run string, f func(rec map[string]any)) {
	t.Helper()
	file := filepath.Join(run, recordFile)
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var rec map[string]any
	if err := json.Unmarshal(b, &rec); err != nil {
		t.Fatal(err)
	}
	f(rec)
	if b, err = json.Marshal(rec); err == nil {
		err = os.WriteFile(file, b, 0o644)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// What status shows is what resume runs: a record that names two commands is refused by both, also
// with --trust.
func TestResumeRunsWhatStatusShows(t *testing.T) {
	dir := t.TempDir()
	run := foreignable(t, dir)
	r := penstock(t, "resume", run)
	if _, err := os.Stat(dir + "/ran"); err != nil || !strings.Contains(r.err, "penstock: run first runs sh -c 'touch \"$OUT\"; exit 3' in ") {
		t.Errorf("%+v", r)
	}
	if err := os.Remove(dir + "/ran"); err != nil {
		t.Fatal(err)
	}
	alter(t, run, func(rec map[string]any) { rec["command"] = []string{"python", "train.py"} })
	for _, args := range [][]string{{"status", run}, {"status", run, "--json"}, {"resume", run}, {"resume", run, "--trust"}} {
		r := penstock(t, args...)
		if r.code != exitFailed || !strings.Contains(r.err, `was altered: it names the command python train.py, and its spec sh -c `) {
			t.Errorf("%q: %+v", args, r)
		}
	}
	// A set of the record is part of what it runs.
	alter(t, run, func(rec map[string]any) {
		rec["command"] = []string{"sh", "-c", `touch "$OUT"; exit 3`}
		var o map[string]any
		if err := json.Unmarshal([]byte(rec["spec"].(string)), &o); err != nil {
			t.Fatal(err)
		}
		o["sets"] = []string{"train.command=[touch, " + dir + "/other]"}
		b, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		rec["spec"] = string(b)
	})
	if r := penstock(t, "resume", run); r.code != exitFailed || !strings.Contains(r.err, "was altered") {
		t.Errorf("%+v", r)
	}
	for _, file := range []string{"/ran", "/other"} {
		if _, err := os.Stat(dir + file); err == nil {
			t.Errorf("%s was made", file)
		}
	}
}

// The record of a run that may be somebody else's is looked at and begun from, but runs nothing
// without a word of the person.
func TestForeignRecord(t *testing.T) {
	dir := t.TempDir()
	run := foreignable(t, dir)
	for name, change := range map[string][2]func() error{
		"a folder that everybody writes to": {func() error { return os.Chmod(run, 0o777) }, func() error { return os.Chmod(run, 0o755) }},
		"a record that everybody writes to": {func() error { return os.Chmod(run+"/run.json", 0o666) }, func() error { return os.Chmod(run+"/run.json", 0o644) }},
		"another user's folder":             {func() error { return os.Chown(run, 12345, -1) }, func() error { return os.Chown(run, 0, -1) }},
		"another user's record":             {func() error { return os.Chown(run+"/run.json", 12345, -1) }, func() error { return os.Chown(run+"/run.json", 0, -1) }},
		"another user's storage":            {func() error { return os.Chown(dir+"/runs", 12345, -1) }, func() error { return os.Chown(dir+"/runs", 0, -1) }},
	} {
		if strings.HasPrefix(name, "another user's") && os.Getuid() != 0 {
			t.Logf("%s: left out: files of another user, which only root can make", name)
			continue
		}
		if err := change[0](); err != nil {
			t.Fatal(err)
		}
		r := penstock(t, "resume", run)
		if r.code != exitUsage || !strings.Contains(r.err, "may be somebody else's") || !strings.Contains(r.err, "--trust") || !strings.Contains(r.err, `sh -c 'touch "$OUT"; exit 3'`) {
			t.Errorf("%s: %+v", name, r)
		}
		for _, args := range [][]string{{"status", run}, {"checkpoints", run}, {"runs", "--storage", dir + "/runs"}} {
			if r := penstock(t, args...); r.code != 0 {
				t.Errorf("%s: %q: %+v", name, args, r)
			}
		}
		if _, err := os.Stat(dir + "/ran"); err == nil {
			t.Fatalf("%s: it ran", name)
		}
		if err := change[1](); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(run, 0o777); err != nil {
		t.Fatal(err)
	}
	r := penstock(t, "resume", run, "--trust")
	if _, err := os.Stat(dir + "/ran"); err != nil {
		t.Errorf("with --trust it runs: %+v", r)
	}
}

// A record gets nothing that its maker could not have typed: no reference in a URL, no server.
func TestRecordIsNotTyped(t *testing.T) {
	l := overhear(t)
	dir := t.TempDir()
	run := foreignable(t, dir)
	alter(t, run, func(rec map[string]any) {
		var o map[string]any
		if err := json.Unmarshal([]byte(rec["spec"].(string)), &o); err != nil {
			t.Fatal(err)
		}
		o["sets"] = []string{"source={text: {paths: ['s3://b/${env:DB_PASSWORD}?endpoint=" + l.URL + "&use_path_style=true']}}"}
		b, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		rec["spec"] = string(b)
	})
	for _, more := range [][]string{nil, {"--trust"}, {"--endpoint", l.URL}} {
		r := penstock(t, append([]string{"resume", run}, more...)...)
		if r.code != exitUsage || strings.Contains(r.err+r.out, "hunter2") {
			t.Errorf("%q: %+v", more, r)
		}
	}
	if heard := l.heard(); heard != nil {
		t.Errorf("asked %q", heard)
	}
}

func TestAskYes(t *testing.T) {
	for answer, want := range map[string]bool{"y\n": true, "Yes\n": true, "\n": false, "": false, "y": false, "n\n": false, "no\ny\n": false, strings.Repeat(" ", 2000) + "y\n": false} {
		var out strings.Builder
		got, err := askYes(strings.NewReader(answer), &out, "Run it? ")
		if got != want || err != nil || out.String() != "Run it? " {
			t.Errorf("%.10q: %v, %v", answer, got, err)
		}
	}
}

func TestLocalFolder(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for storage, want := range map[string]string{"/a/b": "/a/b", "runs": filepath.Join(here, "runs"), "file:///a/b/": "/a/b", "s3://b/k": "", "mem://x": ""} {
		if got, local := localFolder(storage); got != want || local != (want != "") {
			t.Errorf("%s: %q, %v", storage, got, local)
		}
	}
	// Nobody can say by its owner whose a record in a bucket is.
	if err := foreignRun(&store.Run{}, "s3://b/runs", "first"); fault.CodeOf(err) != fault.Denied {
		t.Error(err)
	}
}

// A link that leads to a record of somebody else when it is read, and to one of this user's own
// when it is judged.
func TestRecordIsSwapped(t *testing.T) {
	dir := t.TempDir()
	foreignable(t, dir)
	evil, link := filepath.Join(dir, "evil"), filepath.Join(dir, "link")
	if err := os.CopyFS(evil, os.DirFS(filepath.Join(dir, "runs"))); err != nil {
		t.Fatal(err)
	}
	alter(t, filepath.Join(evil, "first"), func(rec map[string]any) { rec["host"] = "eve" })
	lead := func(to string) {
		t.Helper()
		if err := os.Symlink(filepath.Join(dir, to), link+".new"); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(link+".new", link); err != nil {
			t.Fatal(err)
		}
	}
	for _, swap := range []bool{true, false} {
		lead("evil")
		if !swap {
			lead("runs")
		}
		r, err := store.Open(t.Context(), link, "first")
		if err != nil {
			t.Fatal(err)
		}
		lead("runs")
		if err := foreignRun(r, link, "first"); swap != (fault.CodeOf(err) == fault.Denied) || !swap && err != nil {
			t.Errorf("swapped %v: %v", swap, err)
		}
		if err := r.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
