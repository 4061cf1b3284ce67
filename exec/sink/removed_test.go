package sink

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

// Who removes the folder of an output has removed the output: its records, which lie beside it, bring nothing of it back, and are in nobody's way.
func TestRemovedOutput(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	run := func(job, mode string) {
		t.Helper()
		o := Options{Path: path, Job: job, Mode: mode, TargetBytes: 4 << 20}
		if err := (runSpec{Data: small, Workers: 2, Batch: 100}).run(t.Context(), newFiles(t, o)); err != nil {
			t.Fatalf("%s, %s: %v", job, mode, err)
		}
	}
	remove := func() {
		t.Helper()
		if err := os.RemoveAll(path); err != nil {
			t.Fatal(err)
		}
	}
	run("a", "")
	run("b", ModeAppend)
	exact(t, path, small, small)
	remove()
	run("b", ModeAppend)
	exact(t, path, small)
	run("a", ModeAppend) // it went with the folder
	exact(t, path, small, small)
	remove()
	run("c", ModeOverwrite)
	exact(t, path, small)
	remove()
	run("d", "") // another job: nothing is there
	exact(t, path, small)
	leftovers(t, path)
}

// Two jobs that find the folder removed both get in, once each.
func TestRemovedAndRaced(t *testing.T) {
	path := filepath.Join(t.TempDir(), "out")
	files := func(job string) *Files {
		return newFiles(t, Options{Path: path, Job: job, Mode: ModeAppend, TargetBytes: 4 << 20})
	}
	spec := runSpec{Data: small, Workers: 2, Batch: 100}
	if err := spec.run(t.Context(), files("a")); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(path); err != nil {
		t.Fatal(err)
	}
	s, others := files("a"), 0
	s.hook = func(step, rel string) {
		if step == "put" && strings.HasSuffix(rel, receiptName(0)) {
			others++
			if err := spec.run(t.Context(), files("b")); err != nil {
				t.Error(err)
			}
		}
	}
	if err := spec.run(t.Context(), s); err != nil || others != 1 {
		t.Fatalf("%d others: %v", others, err)
	}
	exact(t, path, small, small)
}

// Records lie beside the folder itself, whatever path leads there.
func TestWhereRecordsAre(t *testing.T) {
	top := t.TempDir()
	if err := os.MkdirAll(filepath.Join(top, "disk", "real"), 0o777); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(top, "out")
	if err := os.Symlink(filepath.Join(top, "disk", "real"), link); err != nil {
		t.Fatal(err)
	}
	t.Chdir(filepath.Join(top, "disk", "real"))
	want := filepath.Join(top, "disk", "_penstock-real")
	for i, p := range []string{link, filepath.Join(top, "disk", "real"), ".", "../real", "file://" + link} {
		s := newFiles(t, Options{Path: p})
		if err := (runSpec{Data: small, Workers: 1, Batch: 100}).run(t.Context(), s); err != nil || s.Result().Already != (i > 0) {
			t.Errorf("%s: %+v, %v", p, s.Result(), err)
		}
		if _, err := os.Stat(filepath.Join(want, numbered(1, "json"))); err != nil {
			t.Error(err)
		}
	}
	exact(t, ".", small)
	for _, p := range []string{"/", "mem://b", "mem://b/", "mem://b/x//"} {
		_, err := newFiles(t, Options{Path: p}).Begin(t.Context(), dataSchema, small.splits())
		if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "name a folder in it") {
			t.Errorf("%s: %v", p, err)
		}
	}
	for _, o := range []Options{{Path: "x/_penstock-out/y"}, {Path: "mem://b/_penstock-x"}, {Path: "x", DeadLetter: "_penstock-x/"}} {
		o.Encoding, o.Job = ipcEncoding{}, "a"
		if _, err := New(o); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "records of outputs") {
			t.Errorf("%+v: %v", o, err)
		}
	}
}

// An output that is a mount point has no folder beside it on its file system: that is said before anything is read, and one in it will do.
func TestMountPoint(t *testing.T) {
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=20m"); err != nil {
		memtest.Skip(t, "cannot mount a small file system: %v", err)
	}
	defer func() {
		if err := syscall.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	}()
	run := runSpec{Data: small, Workers: 1, Batch: 100}
	err := run.run(t.Context(), newFiles(t, Options{Path: dir}))
	if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "such as "+dir+"/rows") {
		t.Errorf("%v", err)
	}
	if err := run.run(t.Context(), newFiles(t, Options{Path: dir + "/rows"})); err != nil {
		t.Error(err)
	}
	untouched(t, dir, "_penstock-rows", "rows")
}

// Where others may write, records that somebody else put beside an output are not gone by: in a
// folder for everybody, for a group that is not only the owner's, or of somebody else.
func TestRecordsOfOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		memtest.Skip(t, "only root can give a folder to another user")
	}
	top := t.TempDir()
	out := filepath.Join(top, "out")
	if err := os.MkdirAll(recordsDir(out), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Chown(recordsDir(out), 65534, 65534); err != nil {
		t.Fatal(err)
	}
	run := func() error {
		return (runSpec{Data: small, Workers: 1, Batch: 100}).run(t.Context(), newFiles(t, Options{Path: out}))
	}
	for _, c := range []struct {
		mode     os.FileMode
		uid, gid int
	}{{0o777 | os.ModeSticky, 0, 0}, {0o777, 0, 0}, {0o770, 0, 65534}, {0o775 | os.ModeSticky, 0, 65534}, {0o755, 65534, 0}} {
		if err := errors.Join(os.Chmod(top, c.mode), os.Chown(top, c.uid, c.gid)); err != nil {
			t.Fatal(err)
		}
		if err := run(); fault.CodeOf(err) != fault.Denied || !strings.Contains(err.Error(), "_penstock-out") {
			t.Errorf("%v: %v", c, err)
		}
	}
	if err := os.Chown(top, 0, 0); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(top, 0o775); err != nil { // whoever may write here, alone, may do anything to the output
		t.Fatal(err)
	}
	if err := run(); err != nil {
		t.Error(err)
	}
}
