package sink

import (
	"context"
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// contents are the files below dir.
func contents(t *testing.T, dir string) map[string]string {
	t.Helper()
	files := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			var b []byte
			b, err = os.ReadFile(p)
			files[p] = string(b)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

func put(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// A folder that others may write to has links that they put there: none is followed to what is not
// in it, and the error names the link.
func TestLinksOfOutputs(t *testing.T) {
	const proc = "0123456789abcdef"
	for _, c := range []struct{ link, to string }{
		{"", ""},
		{"jobs", "jobs"},
		{"jobs/job", "jobs/job"},
		{"jobs/job/stage", "jobs/job/stage"},
		{"jobs/job/stage/" + proc, "jobs/job/stage/" + proc},
		{"jobs/job/stage/" + proc + "/lock", "text"},
		{"jobs/job/job.json", "text"},
		{"0001.json", "text"},
		{"0001.pending", "text"},
	} {
		top := t.TempDir()
		out, home := filepath.Join(top, "shared", "out"), filepath.Join(top, "home")
		put(t, filepath.Join(home, "text"), "years of work")
		put(t, filepath.Join(home, "jobs", "job", "stage", proc, "00000-"+proc, "text"), "years of work")
		before := contents(t, home)
		link := filepath.Join(recordsDir(out), filepath.FromSlash(c.link))
		put(t, filepath.Join(recordsDir(out), "jobs", "job", "stage", "x"), "")
		os.RemoveAll(link)
		if err := os.MkdirAll(filepath.Dir(link), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(filepath.Join(home, c.to), link); err != nil {
			t.Fatal(err)
		}
		err := (runSpec{Data: small, Workers: 1, Batch: 100}).run(t.Context(), newFiles(t, Options{Path: out, TargetBytes: 2 << 20}))
		if fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), "a link that leads out of") || !strings.Contains(err.Error(), link) || strings.Contains(err.Error(), "years") {
			t.Errorf("%s: %v", c.link, err)
		}
		if after := contents(t, home); !maps.Equal(before, after) {
			t.Errorf("%s: there is now %q", c.link, after)
		}
	}
}

// A decision that somebody else wrote into an output sends no files to a folder that it names.
func TestDecisionNamesNoFolder(t *testing.T) {
	const tag, stage = "01234567", "/stage/0123456789abcdef/00000-0123456789abcdef/"
	top := t.TempDir()
	out, home, theirs := filepath.Join(top, "shared", "out"), filepath.Join(top, "home"), filepath.Join(top, "theirs")
	put(t, filepath.Join(home, "text"), "years of work")
	put(t, filepath.Join(recordsDir(theirs), "jobs", "evil-"+tag, filepath.FromSlash(stage), "link", "authorized_keys"+stagedExt), "ours now")
	if err := os.MkdirAll(theirs, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(home, filepath.Join(theirs, "link")); err != nil {
		t.Fatal(err)
	}
	d := decision{Version: Version, Manifest: Manifest{Version: Version, Number: 1, Job: "evil", Jobs: []string{"evil"}, Mode: ModeAppend, Format: "ids"}}
	d.Dead = &struct {
		deadRecord
		Moves []move `json:"moves"`
	}{deadRecord{URL: "file:///", Prefix: strings.TrimPrefix(theirs, "/") + "/", Tag: tag}, []move{{From: jobsDir + "evil-" + tag + stage + "link/authorized_keys" + stagedExt, To: "link/authorized_keys", Bytes: 8}}}
	data, err := json.Marshal(&d)
	if err != nil {
		t.Fatal(err)
	}
	put(t, filepath.Join(recordsDir(out), "0001.pending"), string(data))
	before := contents(t, home)
	err = (runSpec{Data: small, Workers: 1, Batch: 100}).run(t.Context(), newFiles(t, Options{Path: out, TargetBytes: 2 << 20}))
	if fault.CodeOf(err) != fault.Exists || !strings.Contains(err.Error(), theirs) || !strings.Contains(err.Error(), "this run does not") {
		t.Error(err)
	}
	if after := contents(t, home); !maps.Equal(before, after) {
		t.Errorf("there is now %q", after)
	}

	// Nor does one move a file that its job has not staged.
	for _, m := range []move{
		{From: jobsDir + "other" + stage + "x" + stagedExt, To: "x"},
		{From: jobsDir + "evil/job.json", To: "job.json"},
		{From: jobsDir + "evil" + stage + "x", To: "x"},
		{From: jobsDir + "evil" + stage + "x" + stagedExt, To: "y"},
		{From: jobsDir + "evil/stage/here/x" + stagedExt, To: "x"},
	} {
		d.Dead, d.Moves = nil, []move{m}
		data, err := json.Marshal(&d)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := decodeDecision(data); fault.CodeOf(err) != fault.Corrupt {
			t.Errorf("%+v: %v", m, err)
		}
	}
}

// What others put in the place of records, a pipe above all, is an error soon: nothing waits for who
// writes to it.
func TestPipesOfOutputs(t *testing.T) {
	for _, name := range []string{"", "jobs", "jobs/job", "jobs/job/job.json", "jobs/job/stage", "0001.json", "0001.pending", "0001.tidy"} {
		out := filepath.Join(t.TempDir(), "out")
		pipe := filepath.Join(recordsDir(out), filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(pipe), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Mkfifo(pipe, 0o600); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		err := (runSpec{Data: small, Workers: 1, Batch: 100}).run(ctx, newFiles(t, Options{Path: out, TargetBytes: 2 << 20}))
		cancel()
		if fault.CodeOf(err) == fault.Canceled || name != "0001.tidy" && (err == nil || !strings.Contains(err.Error(), pipe)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Who may write beside an output, and puts a link in its place while a run writes to it, with
// records that list what is not in it, has nothing written or removed where that leads.
func TestOutputIsSwapped(t *testing.T) {
	for _, at := range []string{"put", "publish", "remove"} {
		top := t.TempDir()
		out, home := filepath.Join(top, "shared", "out"), filepath.Join(top, "home")
		put(t, filepath.Join(home, "notes.txt"), "years of work")
		put(t, filepath.Join(out, "notes.txt"), "theirs")
		m := Manifest{Version: Version, Number: 1, Job: "evil", Jobs: []string{"evil"}, Mode: ModeAppend, Format: "ids", Files: []File{{Path: "notes.txt", Job: "evil", Bytes: 6}}, Bytes: 6}
		manifest, err := json.Marshal(&m)
		if err != nil {
			t.Fatal(err)
		}
		decided, err := json.Marshal(&decision{Version: Version, Manifest: m})
		if err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"0001.json": string(manifest), "0001.pending": string(decided), "0001.tidy": "{}\n"} {
			put(t, filepath.Join(recordsDir(out), name), text)
		}
		before := contents(t, home)
		s, swapped := newFiles(t, Options{Path: out, Mode: ModeOverwrite, TargetBytes: 2 << 20}), false
		var mu sync.Mutex
		s.hook = func(step, rel string) {
			mu.Lock()
			defer mu.Unlock()
			if step == at && !swapped {
				swapped = true
				if err := errors.Join(os.Rename(out, out+"-was"), os.Symlink(home, out)); err != nil {
					t.Error(err)
				}
			}
		}
		err = (runSpec{Data: small, Workers: 1, Batch: 100}).run(t.Context(), s)
		if !swapped || fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), out) {
			t.Errorf("%s: %v, %v", at, swapped, err)
		}
		if after := contents(t, home); !maps.Equal(before, after) {
			t.Errorf("%s: there is now %q", at, after)
		}
	}
}
