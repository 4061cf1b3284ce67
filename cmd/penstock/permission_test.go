package main

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// nobody is the user of the tests whom files may be kept from, where they run as root.
const nobody = 65534

// publicDir is a folder that all users may enter, below a new one; test folders are closed to others.
func publicDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "penstock-permission-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		// Folders that may not be written cannot be emptied.
		err := filepath.WalkDir(dir, func(p string, d os.DirEntry, _ error) error {
			if d.IsDir() {
				return os.Chmod(p, 0o755)
			}
			return nil
		})
		if err = errors.Join(err, os.RemoveAll(dir)); err != nil {
			t.Error(err)
		}
	})
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	return dir
}

// copyFile copies a program.
func copyFile(t *testing.T, from, to string) {
	t.Helper()
	r, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	w, err := os.OpenFile(to, os.O_CREATE|os.O_WRONLY|os.O_EXCL, 0o755)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.Copy(w, r); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// What the user may not read or write is named, with what was to be done with it, and ends with the documented code.
// (Root may do all, so the tests run the program as somebody else then.)
func TestNoPermission(t *testing.T) {
	dir := publicDir(t)
	in := func(name string) string { return filepath.Join(dir, name) }
	write := func(name, text string, mode os.FileMode) string {
		if err := errors.Join(os.WriteFile(in(name), []byte(text), 0o644), os.Chmod(in(name), mode)); err != nil {
			t.Fatal(err)
		}
		return in(name)
	}
	folder := func(name string) string {
		if err := os.Mkdir(in(name), 0o755); err != nil {
			t.Fatal(err)
		}
		return in(name)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	copyFile(t, self, in("penstock"))
	var files []string // of every format, all the same rows
	for _, kind := range []string{"parquet", "csv", "json", "ipc"} {
		s := writeSpec(t, "version: 1\nsource: {range: {n: 10}}\nsink: {"+kind+": {path: "+in(kind)+"}}\n")
		ok(t, "run", s)
		found, err := filepath.Glob(filepath.Join(in(kind), "part-*"))
		if err != nil || len(found) != 1 {
			t.Fatalf("%s: %v, %v", kind, found, err)
		}
		if err := os.Chmod(found[0], 0); err != nil {
			t.Fatal(err)
		}
		files = append(files, found[0])
	}
	text := write("lines.txt", "a\n", 0)
	closed := folder("closed")
	write("closed/a.csv", "a\n1\n", 0o644)
	full := folder("readonly") // nothing can be added to it
	for _, d := range []string{closed, full} {
		mode := os.FileMode(0o555)
		if d == closed {
			mode = 0
		}
		if err := os.Chmod(d, mode); err != nil {
			t.Fatal(err)
		}
	}
	const source = "version: 1\nsource: {range: {n: 100}}\n"
	spec := write("s.yaml", source+"sink: {csv: {path: "+full+"/out}}\nshards: {global_batch: 10}\n", 0o644)
	secret := write("secret.yaml", source+"sink: {count: {}}\n", 0)
	reference := write("reference.yaml", source+"sink: {csv: {path: '${file:"+text+"}'}}\n", 0o644)
	letters := write("letters.yaml", source+"steps: [{with_columns: {x: id + 9223372036854775777}}]\nsink: {count: {}}\nrun: {on_error: {policy: skip, dead_letter: "+full+"/bad}}\n", 0o644)
	state := write("state", "{}", 0)

	type try struct {
		args []string
		code int
		path string
	}
	tries := []try{
		{[]string{"count", text}, 1, text},
		{[]string{"show", closed}, 1, closed},
		{[]string{"show", filepath.Join(closed, "a.csv")}, 1, filepath.Join(closed, "a.csv")},
		{[]string{"count", filepath.Join(closed, "*.csv")}, 1, closed},
		{[]string{"run", secret}, 2, secret},
		{[]string{"validate", secret}, 2, secret},
		{[]string{"validate", reference}, 2, text},
		{[]string{"run", spec}, 1, spec + ":3:20: " + full},
		{[]string{"run", letters}, 1, letters + ":5:45: dead letter: " + full},
		{[]string{"batches", spec, "--state-out", filepath.Join(full, "state")}, 1, filepath.Join(full, "state")},
		{[]string{"batches", spec, "--ledger-out", filepath.Join(full, "ledger")}, 1, filepath.Join(full, "ledger")},
		{[]string{"batches", spec, "--from", state}, 2, state},
		{[]string{"replay", spec, "--step", "1", "--ledger", state}, 2, state},
	}
	for _, f := range files {
		tries = append(tries, try{[]string{"show", f}, 1, f}, try{[]string{"schema", filepath.Dir(f)}, 1, f})
	}
	for _, c := range tries {
		cmd := exec.Command(in("penstock"), c.args...)
		cmd.Dir = dir
		cmd.Env = append(os.Environ(), "PENSTOCK_TEST_MAIN=1", "HOME="+dir, "TMPDIR="+dir)
		if os.Geteuid() == 0 {
			cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
		}
		var stdout, stderr bytes.Buffer
		cmd.Stdout, cmd.Stderr = &stdout, &stderr
		err := cmd.Run()
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		msg := stderr.String()
		if cmd.ProcessState.ExitCode() != c.code || !strings.Contains(msg, c.path) || !strings.Contains(msg, "permission denied") ||
			strings.Count(msg, "\n") != 1 || strings.Contains(msg, "row group") || stdout.Len() > 0 {
			t.Errorf("%v: exit %d, want %d with %s: %s%s", c.args, cmd.ProcessState.ExitCode(), c.code, c.path, msg, stdout.String())
		}
		if n := strings.Count(msg, c.path); n > 2 {
			t.Errorf("%v: the path is there %d times: %s", c.args, n, msg)
		}
	}
}
