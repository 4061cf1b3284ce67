package trainer

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/trainer/internal/wire"
	"github.com/penstock-data/penstock/trainer/launch"
)

// talk says lines to the controller of a run and returns what it answers first.
func talk(t *testing.T, socket string, lines ...string) (wire.ToWorker, error) {
	t.Helper()
	conn, err := net.Dial("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := conn.Write([]byte(strings.Join(lines, "\n") + "\n")); err != nil {
		t.Fatal(err)
	}
	return wire.NewReader(conn).FromController()
}

// Who is no worker of the run is told why, and changes nothing.
func TestRefused(t *testing.T) {
	c := quick(t, "refused")
	c.Data = nil
	watch := &spy{Launcher: launch.Goroutines()}
	c.Launcher = watch
	defer func() {
		if len(watch.workers) != 2 || watch.workers[1].Rank != 1 {
			t.Errorf("launched: %+v", watch.workers)
		}
	}()
	fitOK(t, func(k *Context) error {
		if err := k.Barrier(); err != nil { // all are connected
			return err
		}
		if k.Rank() > 0 {
			return k.Report(nil, "")
		}
		hello := func(change func(*wire.Hello)) string {
			h := &wire.Hello{Version: wire.Version, Run: "refused", Attempt: 1, Rank: 1, Client: "test"}
			change(h)
			b, err := wire.Append(nil, wire.ToController{Hello: h})
			if err != nil {
				t.Error(err)
			}
			return strings.TrimSpace(string(b))
		}
		socket := k.conn.RemoteAddr().String()
		for _, x := range []struct {
			line, want string
			code       fault.Code
		}{
			{hello(func(*wire.Hello) {}), "rank 1 is connected already", fault.Exists},
			{hello(func(h *wire.Hello) { h.Rank = 2 }), "no rank 2 in a group of 2", fault.Invalid},
			{hello(func(h *wire.Hello) { h.Rank = -1 }), "no rank -1", fault.Invalid},
			{hello(func(h *wire.Hello) { h.Attempt = 7 }), "attempt 7", fault.Canceled},
			{hello(func(h *wire.Hello) { h.Run = "other" }), "is over", fault.Canceled},
			{hello(func(h *wire.Hello) { h.Version = 99 }), "version 99", fault.Unsupported},
			{`{"alive":{}}`, "hello first", fault.Invalid},
			{`GET / HTTP/1.1`, "no message", fault.Corrupt},
		} {
			m, err := talk(t, socket, x.line)
			if err != nil || m.Refused == nil || fault.CodeOf(m.Refused.Err()) != x.code || !strings.Contains(m.Refused.Text, x.want) {
				t.Errorf("%s: %+v, %v; want %v with %q", x.line, m.Refused, err, x.code, x.want)
			}
		}
		if st, err := os.Stat(filepath.Dir(socket)); err != nil || st.Mode().Perm() != 0o700 {
			t.Errorf("%v, %v", st, err)
		}
		return k.Report(nil, "")
	}, c)
}

// A worker that speaks another language is a failure that says so.
func TestNonsense(t *testing.T) {
	c := quick(t, "nonsense")
	c.Data = nil
	refused(t, New(onRank(0, func(k *Context) error {
		k.sending.Lock()
		fmt.Fprintln(k.conn, `{"report":{"n":1,"metrics":{"loss":"low"}}}`)
		k.sending.Unlock()
		<-k.Done()
		return context.Cause(k)
	}), c), fault.Invalid, `rank 0: metric "loss"`)
	c.Name = "order"
	refused(t, New(onRank(0, func(k *Context) error {
		k.mu.Lock()
		k.reports, k.answered = 5, 5
		k.mu.Unlock()
		if err := k.Report(nil, ""); fault.CodeOf(err) != fault.Invalid && fault.CodeOf(err) != fault.Canceled { // told, or ended at once
			t.Error(err)
		}
		<-k.Done()
		return context.Cause(k)
	}), c), fault.Invalid, "report 6 does not follow report 0")
}

// spy is a launcher that sees what is launched.
type spy struct {
	launch.Launcher
	workers []launch.Worker
}

func (s *spy) Launch(ctx context.Context, w []launch.Worker) (launch.Group, error) {
	s.workers = w
	return s.Launcher.Launch(ctx, w)
}

// spanning is a launcher over two machines.
type spanning struct{ launch.Launcher }

func (spanning) Machines() []string { return []string{"a", "b"} }

// A folder of one machine is refused where workers are on several, before anything starts.
func TestStorageOfOneMachine(t *testing.T) {
	for _, scheme := range []string{"", "file://"} {
		c := quick(t, "spans")
		c.Data = nil
		dir := c.Storage
		c.Storage = scheme + dir
		started := &spy{Launcher: launch.Goroutines()}
		c.Launcher = spanning{started}
		loop := func(*Context) error { return nil }
		refused(t, New(loop, c), fault.Invalid, "a folder of one machine", "(a, b)")
		if _, err := os.Stat(filepath.Join(dir, "spans")); err == nil || started.workers != nil {
			t.Error("something was begun")
		}
		c.SharedStorage = true
		fitOK(t, loop, c)
	}
}

// What is left of killed processes is removed; what others use is not.
func TestTempFolders(t *testing.T) {
	base := t.TempDir()
	name := folderPrefix + strconv.Itoa(os.Getuid()) + "-"
	dead, young, other := filepath.Join(base, name+"1"), filepath.Join(base, name+"2"), filepath.Join(base, folderPrefix+"other")
	for _, dir := range []string{dead, young, other} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(dead, lockName), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := newTempFolder(base)
	if err != nil {
		t.Fatal(err)
	}
	b, err := newTempFolder(base)
	if err != nil {
		t.Fatal(err)
	}
	left, _ := filepath.Glob(filepath.Join(base, "*"))
	want := []string{a.path, b.path, young, other}
	slices.Sort(left)
	slices.Sort(want)
	if !slices.Equal(left, want) {
		t.Errorf("%v, want %v", left, want)
	}
	old := time.Now().Add(-time.Hour)
	if err := os.Chtimes(young, old, old); err != nil {
		t.Fatal(err)
	}
	sweepFolders(base)
	if _, err := os.Stat(young); err == nil {
		t.Error("a folder without a lock is there after an hour")
	}
	for _, f := range []*tempFolder{a, b} {
		if err := f.remove(); err != nil {
			t.Error(err)
		}
		if _, err := os.Stat(f.path); err == nil {
			t.Errorf("%s is there", f.path)
		}
	}
	// Sockets need a short path.
	t.Setenv("XDG_RUNTIME_DIR", filepath.Join(base, strings.Repeat("x", 60)))
	t.Setenv("TMPDIR", filepath.Join(base, strings.Repeat("y", 60)))
	if dir := socketBase(); dir != "/tmp" {
		t.Error(dir)
	}
}

func TestFreePort(t *testing.T) {
	for range 20 {
		port, err := freePort("127.0.0.1")
		if err != nil {
			t.Fatal(err)
		}
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		if err != nil {
			t.Fatal(err)
		}
		if canListen("127.0.0.1", port) {
			t.Errorf("port %d is free and used", port)
		}
		l.Close()
	}
}

// moveDir copies where a rename cannot be.
func TestMoveDir(t *testing.T) {
	from := filepath.Join(t.TempDir(), "from")
	if err := os.MkdirAll(filepath.Join(from, "a", "b"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(from, "a", "b", "f"), []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	shm, err := os.MkdirTemp("/dev/shm", "penstock-test-")
	if err != nil {
		memtest.Skip(t, "no other file system")
	}
	defer os.RemoveAll(shm)
	to := filepath.Join(shm, "to")
	if err := moveDir(from, to); err != nil {
		t.Fatal(err)
	}
	if b, err := os.ReadFile(filepath.Join(to, "a", "b", "f")); err != nil || string(b) != "x" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := os.Stat(from); err == nil {
		t.Error("what was copied is there still")
	}
	if err := os.Symlink("x", filepath.Join(to, "link")); err != nil {
		t.Fatal(err)
	}
	if err := moveDir(to, from); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "link") {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(to, "a", "b", "f")); err != nil {
		t.Errorf("what could not be moved is gone: %v", err)
	}
	if _, err := os.Stat(from); err == nil {
		t.Error("half of what could not be moved is there")
	}
}

// Processes that start at one moment sweep each other's folders: each must have its own nevertheless.
func TestFoldersAtOnce(t *testing.T) {
	base := t.TempDir()
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			for range 100 {
				f, err := newTempFolder(base)
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := os.Stat(f.path); err != nil {
					t.Error(err)
				}
				if err := f.remove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
}

// A folder that another process removed before its lock file was made is no failure: another one is made.
func TestFolderGoneBeforeItsLock(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "gone")
	if f, err := lockFolder(&dir); f != nil || err != nil {
		t.Errorf("%v, %v", f, err)
	}
}

// Without a home, downloads lie where no other user can put anything.
func TestDownloadsWithoutHome(t *testing.T) {
	tmp := t.TempDir()
	for name, v := range map[string]string{"HOME": "", "XDG_CACHE_HOME": "", "TMPDIR": tmp} {
		t.Setenv(name, v)
	}
	dir, err := downloads()
	if err != nil {
		t.Fatal(err)
	}
	mine := filepath.Join(tmp, folderPrefix+strconv.Itoa(os.Getuid()))
	if st, err := os.Stat(mine); err != nil || st.Mode().Perm() != 0o700 || dir != filepath.Join(mine, "checkpoints") {
		t.Errorf("%s: %v, %v", dir, st, err)
	}
	if err := os.Chmod(mine, 0o777); err != nil {
		t.Fatal(err)
	}
	if _, err := downloads(); fault.CodeOf(err) != fault.Denied {
		t.Errorf("a folder that others can write to: %v", err)
	}
	if err := os.Remove(mine); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(t.TempDir(), mine); err != nil {
		t.Fatal(err)
	}
	if _, err := downloads(); fault.CodeOf(err) != fault.Denied {
		t.Errorf("a link: %v", err)
	}
}
