package store

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"golang.org/x/sys/unix"
)

// edit replaces text in a record of a run that is a folder.
func edit(t testing.TB, name, old, text string) {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Contains(data, []byte(old)) {
		t.Fatalf("%s is not in %s", old, data)
	}
	if err := os.WriteFile(name, bytes.Replace(data, []byte(old), []byte(text), 1), 0o600); err != nil {
		t.Fatal(err)
	}
}

func symlink(t testing.TB, to, name string) {
	t.Helper()
	if err := os.RemoveAll(name); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(to, name); err != nil {
		t.Fatal(err)
	}
}

// A run whose record has a path as its id is somebody's way to have a folder removed by who begins
// with its checkpoint: nothing is, and nothing is written there.
func TestIDIsNoPath(t *testing.T) {
	top := t.TempDir()
	storage, home := filepath.Join(top, "shared"), filepath.Join(top, "home")
	write(t, filepath.Join(home, "thesis", "text"), "years of work")
	r := newRun(t, storage, "x")
	begin(t, r)
	commit(t, r, 1, map[string]string{"authorized_keys": "theirs"})
	r.Close()
	edit(t, filepath.Join(storage, "x", runFile), r.Record().ID, "/../../../home")
	foreign, err := Open(t.Context(), storage, "x")
	if err == nil { // then go on as a run with --from does
		m, merr := foreign.Latest(t.Context())
		if merr != nil {
			t.Fatal(merr)
		}
		_, ferr := foreign.Fetch(t.Context(), m, filepath.Join(top, "cache", "penstock"))
		foreign.Close()
		t.Error("it was opened; fetched:", ferr)
	}
	sameFiles(t, readTree(t, home), map[string]string{"thesis/text": "years of work"})
	wantErr(t, err, fault.Corrupt, runFile, `"id"`)
	all, err := List(t.Context(), storage)
	if err != nil || len(all) != 1 {
		t.Fatal(all, err)
	}
	wantErr(t, all[0].Err, fault.Corrupt, runFile, `"id"`)
}

// Every field of a record is checked where it is read, and the error names file and field.
func TestFieldsOfRecords(t *testing.T) {
	const status, start, ckpt = statusDir + "000001.json", checkpointsDir + "000000.json", checkpointsDir + "000001.json"
	for _, c := range []struct{ file, old, text, field string }{
		{runFile, `"name": "x"`, `"name": "../x"`, "name"},
		{runFile, `"id": "`, `"id": "0`, "id"},
		{runFile, `"id": "`, `"id": "../`, "id"},
		{runFile, `"workers": 2`, `"workers": 2000000000`, "workers"},
		{runFile, `"workers": 2`, `"workers": -2`, "workers"},
		{runFile, `"host": "`, `"host": "\u001b]0;`, "host"},
		{runFile, `"program": "`, `"program": "` + strings.Repeat("p", 300), "program"},
		{runFile, `"workers": 2`, `"workers": 2, "command": ["a\u0000b"]`, "command"},
		{runFile, `"workers": 2`, `"workers": 2, "dir": "` + strings.Repeat("d", 5000) + `"`, "dir"},
		{runFile, `"workers": 2`, `"workers": 2, "from": "a\nb"`, "from"},
		{status, `"state": "running"`, `"state": "\u009b2J"`, "state"},
		{status, `"attempt": 1`, `"attempt": 2`, "attempt"},
		{status, `"pid": `, `"pid": -`, "pid"},
		{status, `"reports": 0`, `"reports": -9`, "reports"},
		{status, `"reports": 0`, `"reports": 0, "failures": {"\u202e": 1}`, "failures"},
		{status, `"reports": 0`, `"reports": 0, "failures": {"crash": -1}`, "failures"},
		{status, `"reports": 0`, `"reports": 0, "job": "` + strings.Repeat("j", 300) + `"`, "job"},
		{status, `"reports": 0`, `"reports": 0, "error": {"code": "\n"}`, "error.code"},
		{start, `"attempt": 1`, `"attempt": 5000000000`, "attempt"},
		{start, `"controller": "`, `"controller": "../`, "controller"},
		{start, `"host": "`, `"host": "\u001b`, "host"},
		{start, `"report": 0`, `"report": 9223372036854775807`, "report"},
		{start, `"report": 0`, `"report": 0, "job_attempt": -1`, "job_attempt"},
		{ckpt, `"world": 2`, `"world": 2000000000`, "world"},
		{ckpt, `"report": 1`, `"report": 9223372036854775807`, "report"},
		{ckpt, `"path": "f"`, `"path": "../../f"`, "files"},
		{ckpt, `"path": "f"`, `"path": "` + strings.Repeat("f", 5000) + `"`, "files"},
		{ckpt, `"size": 1`, `"size": 9223372036854775807`, "files"},
		{ckpt, `"rank": 0`, `"rank": -1`, "files"},
		{ckpt, `"bytes": 2`, `"bytes": 2, "data": {"\u001b": {"state": null}}`, "data"},
		{ckpt, `"bytes": 2`, `"bytes": 2, "data": {"a": {"state": null, "ledger": {"path": "../x", "size": 1, "sum": "xxh3:00000000000000000000000000000000"}}}`, "files"},
		{ckpt, `"bytes": 2`, `"bytes": 2, "data": {"a": {"state": null, "ledger": {"path": "data/b.ledger", "size": 1, "sum": "xxh3:00000000000000000000000000000000"}}}`, "data"},
		{ckpt, `"bytes": 2`, `"bytes": 2, "data": {"a": {"state": null, "ledger": {"path": "data/a.ledger", "size": 1000000000000, "sum": "xxh3:00000000000000000000000000000000"}}}`, "data"},
	} {
		dir := t.TempDir()
		r := newRun(t, dir, "x")
		begin(t, r)
		if err := r.SetStatus(t.Context(), Status{State: Running}); err != nil {
			t.Fatal(err)
		}
		commit(t, r, 1, map[string]string{"f": "1", "g": "2"})
		r.Close()
		edit(t, filepath.Join(dir, "x", c.file), c.old, c.text)
		read := func() error {
			r, err := Open(t.Context(), dir, "x")
			if err != nil {
				return err
			}
			defer r.Close()
			if _, err := r.Status(t.Context()); err != nil {
				return err
			}
			_, err = r.Checkpoints(t.Context())
			return err
		}
		if err := read(); fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), filepath.Base(c.file)) || !strings.Contains(err.Error(), `"`+c.field+`"`) {
			t.Errorf("%.80s for %s in %s: %v, want Corrupt with the file and %q", c.text, c.old, c.file, err, c.field)
		}
	}
}

// What others put into the folder of a run leads to nothing outside of it: not what is read, nor
// what is written or removed.
func TestLinksOfRuns(t *testing.T) {
	const secret = "what nobody else may see"
	for _, c := range []struct{ name, to string }{
		{runFile, "run.json"},
		{"checkpoints", "checkpoints"},
		{"status", "status"},
		{"metrics", "metrics"},
		{"checkpoints/000000.json", "run.json"},
		{"checkpoints/000001.json", "run.json"},
		{"status/000001.json", "run.json"},
		{"metrics/000001-000001.jsonl", "run.json"},
		{"checkpoints/TRY", "checkpoints"},
		{"checkpoints/TRY/files", "checkpoints"},
		{"checkpoints/TRY/files/f", "secret"},
	} {
		top := t.TempDir()
		storage, home := filepath.Join(top, "shared"), filepath.Join(top, "home")
		mine := newRun(t, filepath.Join(top, "mine"), "x") // with names that a run has
		begin(t, mine)
		if err := mine.SetStatus(t.Context(), Status{State: Running}); err != nil {
			t.Fatal(err)
		}
		commit(t, mine, 1, map[string]string{"f": secret})
		mine.Close()
		if err := os.Rename(filepath.Join(top, "mine", "x"), home); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(home, "secret"), secret)
		write(t, filepath.Join(home, "metrics", "000001-000001.jsonl"), secret)
		write(t, filepath.Join(home, "checkpoints", "000009-1-00000000", "f"), secret)
		before := readTree(t, home)

		r := newRun(t, storage, "x")
		begin(t, r)
		if err := r.SetStatus(t.Context(), Status{State: Running}); err != nil {
			t.Fatal(err)
		}
		m := commit(t, r, 1, map[string]string{"f": strings.Repeat("x", len(secret))})
		r.Metrics(1).Append(Row{Report: 1})
		if err := r.flushMetrics(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.Close()
		link := filepath.Join(storage, "x", strings.Replace(c.name, "TRY", m.Try, 1))
		symlink(t, filepath.Join(home, c.to), link)

		seen, met := use(t, storage, filepath.Join(top, "cache"))
		sameFiles(t, readTree(t, home), before)
		if strings.Contains(seen, secret) {
			t.Errorf("through %s: %s", c.name, seen)
		}
		found := false
		for _, err := range met {
			found = found || strings.Contains(err.Error(), "a link that leads out") && strings.Contains(err.Error(), link)
		}
		if !found {
			t.Errorf("%s: no error of %v names the link", c.name, met)
		}
	}
}

// use does all that can be done with the run x, and returns what it saw and which errors it met.
func use(t testing.TB, storage, cache string) (seen string, met []error) {
	ctx := t.Context()
	note := func(v any, err error) {
		seen += fmt.Sprintf("%+v\n", v)
		if err != nil {
			seen += err.Error() + "\n"
			met = append(met, err)
		}
	}
	all, err := List(ctx, storage)
	note(all, err)
	r, err := Open(ctx, storage, "x")
	note(nil, err)
	if err != nil {
		return seen, met
	}
	defer r.Close()
	s, err := r.Status(ctx)
	note(s, err)
	for row, err := range r.History(ctx) {
		note(row, err)
	}
	list, err := r.Checkpoints(ctx)
	note(list, err)
	for i := range list {
		note(nil, r.Verify(ctx, &list[i]))
		for name := range list[i].Data {
			b, err := r.Ledger(ctx, &list[i], name)
			note(string(b), err)
		}
		dir, err := r.Fetch(ctx, &list[i], cache)
		note(dir, err)
		if err == nil {
			note(readTree(t, dir), nil)
		}
	}
	_, err = r.Begin(ctx, BeginOptions{TakeOver: true})
	note(nil, err)
	if err != nil {
		return seen, met
	}
	note(nil, r.SetStatus(ctx, Status{State: Running}))
	r.Metrics(r.own.attempt).Append(Row{Report: 2})
	_, err = r.Commit(ctx, Commit{Report: 2, World: 1, Parts: []Part{{0, tree(t, map[string]string{"f": "new"})}}})
	note(nil, err)
	note(nil, r.Prune(ctx, Policy{KeepLast: 1}))
	note(nil, r.Sweep(ctx))
	note(nil, r.Discard(ctx))
	return seen, met
}

// What is no record and has the name of the log's next one ends Begin and Commit, which try again
// where a record is gone.
func TestObstacleInLog(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for what, put := range map[string]func(path string) error{
		"a link to nowhere":     func(p string) error { return os.Symlink("nowhere", p) },
		"a link to a record":    func(p string) error { return os.Symlink("../run.json", p) },
		"a folder":              func(p string) error { return os.Mkdir(p, 0o700) },
		"a pipe":                func(p string) error { return unix.Mkfifo(p, 0o600) },
		"a link to the outside": func(p string) error { return os.Symlink("/dev/null", p) },
	} {
		dir := t.TempDir()
		r := newRun(t, dir, "x")
		begin(t, r)
		next := filepath.Join(dir, "x", entryName(r.own.next))
		if err := put(next); err != nil {
			t.Fatal(err)
		}
		_, err := r.Commit(ctx, Commit{Report: 1, World: 1, Parts: []Part{{0, tree(t, map[string]string{"f": "new"})}}})
		if err == nil || fault.CodeOf(err) == fault.Canceled || ctx.Err() != nil {
			t.Errorf("%s: Commit ends with %v", what, err)
		}
		_, err = r.Begin(ctx, BeginOptions{TakeOver: true})
		if err == nil || fault.CodeOf(err) == fault.Canceled || ctx.Err() != nil {
			t.Errorf("%s: Begin ends with %v", what, err)
		}
		r.Close()
	}
}

// What was downloaded of a run's folder is not what a copy of it elsewhere has, whatever the copy
// says: sums without a key can be forged.
func TestCacheOfACopy(t *testing.T) {
	top := t.TempDir()
	r := newRun(t, filepath.Join(top, "runs"), "x")
	begin(t, r)
	m := commit(t, r, 1, map[string]string{"f": "1"})
	if err := os.CopyFS(filepath.Join(top, "theirs"), os.DirFS(filepath.Join(top, "runs"))); err != nil {
		t.Fatal(err)
	}
	theirs := openRun(t, filepath.Join(top, "theirs"), "x")
	cache := filepath.Join(top, "cache")
	foreign, err := theirs.Fetch(t.Context(), m, cache)
	if err != nil {
		t.Fatal(err)
	}
	dir, err := r.Fetch(t.Context(), m, cache)
	if err != nil || dir == foreign {
		t.Errorf("%s of the run and of its copy, %v", dir, err)
	}
	symlink(t, filepath.Join(top, "runs"), filepath.Join(top, "link"))
	linked := openRun(t, filepath.Join(top, "link"), "x")
	if same, err := linked.Fetch(t.Context(), m, cache); err != nil || same != dir {
		t.Errorf("%s through a link, %v, want %s", same, err, dir)
	}
}

// A cache in which others can put something is refused, what is not of its own form stays, and no
// link in it is followed.
func TestForeignCache(t *testing.T) {
	top := t.TempDir()
	r := newRun(t, filepath.Join(top, "runs"), "x")
	begin(t, r)
	m := commit(t, r, 1, map[string]string{"d/f": "1"})
	home := filepath.Join(top, "home")
	write(t, filepath.Join(home, "tmp-00000000", "text"), "years of work")
	before := readTree(t, home)
	own := "x-" + r.Record().ID
	chmod := func(name string, mode os.FileMode) {
		t.Helper()
		if err := os.MkdirAll(name, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}

	cache := filepath.Join(top, "a")
	chmod(cache, 0o700)
	symlink(t, home, filepath.Join(cache, own))
	_, err := r.Fetch(t.Context(), m, cache)
	wantErr(t, err, fault.Denied, filepath.Join(cache, own), "another cache")

	cache = filepath.Join(top, "b")
	chmod(filepath.Join(cache, own), 0o777)
	_, err = r.Fetch(t.Context(), m, cache)
	wantErr(t, err, fault.Denied, own, "of your own")

	cache = filepath.Join(top, "c")
	chmod(cache, 0o777)
	_, err = r.Fetch(t.Context(), m, cache)
	wantErr(t, err, fault.Denied, "of your own")

	cache = filepath.Join(top, "d")
	write(t, filepath.Join(cache, own, "notes", "f"), "mine")
	symlink(t, home, filepath.Join(cache, own, "tmp-12345678"))
	symlink(t, home, filepath.Join(cache, own, "000001-1-00000000-"+strings.Repeat("0", 32)))
	symlink(t, home, filepath.Join(cache, own, r.downloadName(m)))
	dir, err := r.Fetch(t.Context(), m, cache)
	if err != nil {
		t.Fatal(err)
	}
	sameFiles(t, readTree(t, dir), map[string]string{"d/f": "1"})
	sameFiles(t, readTree(t, home), before)
	if _, err := os.Stat(filepath.Join(cache, own, "notes", "f")); err != nil {
		t.Error("what is not of the cache's form was removed:", err)
	}
	if left, _ := filepath.Glob(filepath.Join(cache, own, "tmp-*")); len(left) > 0 {
		t.Error(left)
	}
	if os.Getuid() != 0 {
		memtest.Skip(t, "a folder of another user, which only root can make")
	}
	cache = filepath.Join(top, "e")
	chmod(filepath.Join(cache, own), 0o700)
	if err := os.Chown(filepath.Join(cache, own), 12345, -1); err != nil {
		t.Fatal(err)
	}
	_, err = r.Fetch(t.Context(), m, cache)
	wantErr(t, err, fault.Denied, "another user", "of your own")
}

// A checkpoint of somebody else whose files are holes fills no disk: what has no room is not begun.
func TestNoRoomForHoles(t *testing.T) {
	top := t.TempDir()
	storage, cache := filepath.Join(top, "runs"), filepath.Join(top, "cache")
	r := newRun(t, storage, "x")
	begin(t, r)
	m := commit(t, r, 1, map[string]string{"f": "1"})
	r.Close()
	here, err := os.Open(top)
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	free, all, known := disk(here)
	if !known || free <= 0 || all < free {
		t.Fatal(free, all, known)
	}
	size := free - min(spared, all/20) + 1<<30 // of a disk that others use meanwhile
	if err := os.Truncate(filepath.Join(storage, "x", checkpointsDir, m.Try, objectName("f")), size); err != nil {
		t.Fatal(err)
	}
	entry := filepath.Join(storage, "x", entryName(m.Number))
	edit(t, entry, `"bytes": 1`, fmt.Sprintf(`"bytes": %d`, size))
	edit(t, entry, `"size": 1`, fmt.Sprintf(`"size": %d`, size))
	foreign, err := Open(t.Context(), storage, "x")
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	if m, err = foreign.Latest(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second) // without the check it writes for long
	defer cancel()
	_, err = foreign.Fetch(ctx, m, cache)
	wantErr(t, err, fault.Exhausted, "make room", cache)
	for name := range readTree(t, cache) {
		if filepath.Base(name) != "lock" {
			t.Errorf("there is %s", name)
		}
	}
}

// Where a pipe is in the place of a run's folder, or of one in it, nothing waits for who writes to it.
func TestPipesOfRuns(t *testing.T) {
	for _, name := range []string{"", "run.json", "checkpoints", "status", "metrics", "checkpoints/000000.json", "checkpoints/000001.json", "status/000001.json", "metrics/000001-000001.jsonl", "checkpoints/TRY", "checkpoints/TRY/files", "checkpoints/TRY/files/f"} {
		top := t.TempDir()
		storage := filepath.Join(top, "runs")
		r := newRun(t, storage, "x")
		begin(t, r)
		if err := r.SetStatus(t.Context(), Status{State: Running}); err != nil {
			t.Fatal(err)
		}
		m := commit(t, r, 1, map[string]string{"f": "1"})
		r.Metrics(1).Append(Row{Report: 1})
		if err := r.flushMetrics(t.Context()); err != nil {
			t.Fatal(err)
		}
		r.Close()
		pipe := filepath.Join(storage, "x", strings.Replace(name, "TRY", m.Try, 1))
		if _, err := os.Stat(pipe); err != nil {
			t.Fatal(err)
		}
		if err := os.RemoveAll(pipe); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			use(t, storage, filepath.Join(top, "cache"))
			close(done)
		}()
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Fatalf("%q: something waits for the pipe", name)
		}
	}
}
