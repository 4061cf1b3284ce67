package blobio_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// Idle connections belong to the drivers, which keep them for a while.
	goleak.VerifyTestMain(m,
		goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"),
		goleak.IgnoreAnyFunction("net/http.(*persistConn).readLoop"))
}

func TestLocal(t *testing.T)  { suite(t, "file://"+t.TempDir(), 9<<20) }
func TestMemory(t *testing.T) { suite(t, "mem://"+t.Name(), 3<<20) }

func TestMemoryIsShared(t *testing.T) {
	a := open(t, "mem://shared", nil)
	put(t, a, "k", []byte("v"))
	if err := a.Close(); err != nil {
		t.Fatal(err)
	}
	if got, err := open(t, "mem://shared", nil).ReadAll(t.Context(), "k", 10); err != nil || string(got) != "v" {
		t.Errorf("%q, %v", got, err)
	}
	_, err := open(t, "mem://other", nil).Stat(t.Context(), "k")
	wantCode(t, err, fault.NotFound, "mem://other/k")
}

func TestRelative(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	if err := os.MkdirAll("in/sub", 0o777); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ path, want string }{
		{"x.csv", "x.csv"}, {"./sub//y.csv", "sub/y.csv"}, {"sub/../x.csv", "x.csv"}, {"../in/x.csv", "../in/x.csv"},
		{dir + "/in/x.csv", dir + "/in/x.csv"}, {"file://" + dir + "/in/x%2Ecsv", dir + "/in/x.csv"},
	} {
		t.Chdir(filepath.Join(dir, "in"))
		u, key, err := blobio.Split(c.path)
		if err != nil {
			t.Fatal(err)
		}
		t.Chdir(dir) // the bucket stays where it was split
		b := open(t, u, nil)
		if got := b.Path(key); got != c.want {
			t.Errorf("Path of %q: %q, want %q", c.path, got, c.want)
		}
		if p, ok := b.Local(key); !ok || !strings.HasPrefix(p, dir+"/in/") {
			t.Errorf("Local of %q: %q, %v", c.path, p, ok)
		}
		put(t, b, key, []byte(c.path))
		if got := keys(t, b.List(t.Context(), key)); !slices.Equal(got, []string{key}) {
			t.Errorf("List of %q: %q", key, got)
		}
	}
	u, key, err := blobio.Split(".")
	if err != nil {
		t.Fatal(err)
	}
	b := open(t, u, nil)
	if got := keys(t, b.List(t.Context(), key)); !slices.Equal(got, []string{"in/sub/y.csv", "in/x.csv"}) || b.Path(key) != "." {
		t.Errorf("List of .: %q, Path %q", got, b.Path(key))
	}
}

// Local listings give what a plain walk gives, in byte order, whatever the tree.
func TestLocalListRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	var want []string
	var grow func(rel string, depth int)
	grow = func(rel string, depth int) {
		for range 1 + rnd.IntN(8) {
			name := string("ab-./0Z"[rnd.IntN(4)]) + fmt.Sprint(rnd.IntN(30))
			if strings.HasPrefix(name, ".") {
				name = "x" + name
			}
			p := filepath.Join(dir, rel, name)
			if depth < 4 && rnd.IntN(2) == 0 {
				if os.Mkdir(p, 0o777) == nil {
					grow(rel+name+"/", depth+1)
				}
			} else if _, err := os.Lstat(p); err != nil {
				if err := os.WriteFile(p, []byte(name), 0o666); err != nil {
					t.Fatal(err)
				}
				want = append(want, rel+name)
			}
		}
	}
	grow("", 0)
	for i := range 2*256 + 3 { // described by several goroutines
		name := fmt.Sprintf("many/%d", i)
		os.Mkdir(filepath.Join(dir, "many"), 0o777)
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o666); err != nil {
			t.Fatal(err)
		}
		want = append(want, name)
	}
	slices.Sort(want)
	b := open(t, "file://"+dir, nil)
	if got := keys(t, b.List(t.Context(), "")); !slices.Equal(got, want) {
		t.Errorf("seed %d:\n got %q\nwant %q", seed, got, want)
	}
	n := 0
	for range b.List(t.Context(), "") { // helpers are joined when the caller stops
		if n++; n == 5 {
			break
		}
	}
}

func TestLocalListLinks(t *testing.T) {
	dir := t.TempDir()
	do := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	do(os.MkdirAll(dir+"/data/a/b", 0o777))
	do(os.MkdirAll(dir+"/other/deep", 0o777))
	do(os.WriteFile(dir+"/data/a/b/file", []byte("xyz"), 0o666))
	do(os.WriteFile(dir+"/other/deep/file", []byte("xyz"), 0o666))
	do(os.WriteFile(dir+"/data/.penstock-tmp-abc", []byte("x"), 0o666))
	do(os.Symlink("../other", dir+"/data/link"))
	do(os.Symlink("../other/deep/file", dir+"/data/filelink"))
	do(os.Symlink("nowhere", dir+"/data/dangling"))
	do(os.Symlink(".", dir+"/data/self"))
	do(os.Symlink("self2", dir+"/data/self2"))
	do(os.Symlink("..", dir+"/data/a/up"))
	do(os.Symlink("../../..", dir+"/data/a/above"))
	do(os.Symlink("../../data", dir+"/other/deep/back")) // a ring through two trees
	do(syscall.Mkfifo(dir+"/data/fifo", 0o666))
	b := open(t, "file://"+dir, nil)
	want := []string{"data/a/b/file", "data/filelink", "data/link/deep/file"}
	if got := keys(t, b.List(t.Context(), "data/")); !slices.Equal(got, want) {
		t.Errorf("List:\n got %q\nwant %q", got, want)
	}
	if got := keys(t, b.ListDir(t.Context(), "data/")); !slices.Equal(got, []string{"data/a/", "data/filelink", "data/link/"}) {
		t.Errorf("ListDir: %q", got)
	}
	if info := stat(t, b, "data/filelink"); info.Size != 3 {
		t.Errorf("%+v", info)
	}
	_, err := b.Stat(t.Context(), "data/fifo")
	wantCode(t, err, fault.Unsupported, dir+"/data/fifo")
	_, err = b.Stat(t.Context(), "data/dangling")
	wantCode(t, err, fault.NotFound, dir+"/data/dangling")
}

func TestLocalErrors(t *testing.T) {
	dir := t.TempDir()
	b := open(t, "file://"+dir, nil)
	put(t, b, "f", []byte("x"))
	if err := os.MkdirAll(dir+"/d/e", 0o777); err != nil {
		t.Fatal(err)
	}
	wantCode(t, b.Put(t.Context(), "f/below", nil, nil), fault.Exists, dir+"/f/below")
	if err := b.Put(t.Context(), "d", nil, nil); fault.CodeOf(err) != fault.Exists && fault.CodeOf(err) != fault.Invalid {
		t.Errorf("Put over a directory: %v", err)
	}
	wantCode(t, b.Put(t.Context(), "d", nil, &blobio.PutOptions{IfNotExist: true}), fault.Exists, dir+"/d")
	if err := b.Delete(t.Context(), "d/e"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(dir + "/d/e"); err != nil {
		t.Errorf("Delete took a directory: %v", err)
	}
	// In place and of the same size: only the time tells.
	info := stat(t, b, "f")
	if err := os.Chtimes(dir+"/f", time.Time{}, info.ModTime.Add(time.Nanosecond)); err != nil {
		t.Fatal(err)
	}
	_, err := b.Object(info, nil).ReadAt(t.Context(), make([]byte, 1), 0)
	wantCode(t, err, fault.Changed, dir+"/f")
	_, _, _, err = b.Object(info, nil).Map()
	wantCode(t, err, fault.Changed, dir+"/f")
	// Nothing hidden is left of all these.
	filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if strings.Contains(p, "penstock-tmp") {
			t.Errorf("left behind: %s", p)
		}
		return err
	})
}

// A file that is written to while a stream reads it is noticed.
func TestLocalChangesUnderStream(t *testing.T) {
	b := open(t, "file://"+t.TempDir(), nil)
	info := put(t, b, "f", randomBytes(1, 1<<20))
	s := b.Object(info, nil).Stream(t.Context(), 0, info.Size)
	defer s.Close()
	if _, err := s.Read(make([]byte, 1000)); err != nil {
		t.Fatal(err)
	}
	p, _ := b.Local("f")
	if err := os.Truncate(p, 500_000); err != nil {
		t.Fatal(err)
	}
	_, err := s.Read(make([]byte, 1000))
	wantCode(t, err, fault.Changed, p)
}

func TestMap(t *testing.T) {
	b := open(t, "file://"+t.TempDir(), nil)
	want := randomBytes(5, 100_000)
	info := put(t, b, "f", want)
	m, unmap, ok, err := b.Object(info, nil).Map()
	if err != nil || !ok || !bytes.Equal(m, want) {
		t.Fatal(ok, err)
	}
	if err := unmap(); err != nil {
		t.Error(err)
	}
	mem := open(t, "mem://map", nil)
	if _, _, ok, err := mem.Object(put(t, mem, "f", want), nil).Map(); ok || err != nil {
		t.Errorf("mem: %v, %v", ok, err)
	}
}

// A file that is put in the place of another is seen, even if it has its size and time; what is only
// linked, renamed and back, or given another mode is the same.
func TestReplacedFile(t *testing.T) {
	dir := t.TempDir()
	b := open(t, "file://"+dir, nil)
	info := put(t, b, "f", []byte("one"))
	path := filepath.Join(dir, "f")
	read := func() error {
		_, err := b.Object(info, nil).ReadAt(t.Context(), make([]byte, 3), 0)
		return err
	}
	waitTick(t, b, info)
	for _, touch := range []func() error{
		func() error { return os.Link(path, path+".link") },
		func() error { return errors.Join(os.Rename(path, path+".away"), os.Rename(path+".away", path)) },
		func() error { return os.Chmod(path, 0o600) },
	} {
		if err := errors.Join(touch(), read()); err != nil {
			t.Error(err)
		}
	}
	err := errors.Join(os.WriteFile(path+".new", []byte("two"), 0o600), os.Chtimes(path+".new", info.ModTime, info.ModTime), os.Rename(path+".new", path))
	if err != nil {
		t.Fatal(err)
	}
	wantCode(t, read(), fault.Changed, b.Path("f"))
}
