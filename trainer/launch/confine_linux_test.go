package launch

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

// confined is what sh prints, in a folder of nobody's, where it is confined so.
func confined(t *testing.T, c Confine, script string) []string {
	t.Helper()
	w := sh(0, script)
	w.Dir = "/"
	g := launch(t, Options{Joined: true, Confine: &c}, w)
	e := exits(t, g)[0]
	g.Stop(time.Second)
	if !e.OK() {
		t.Fatalf("%v: %q", e, e.Tail)
	}
	return e.Tail
}

// What a process starts has no more privileges than it, whoever it is: sudo and the like are of no
// use.
func TestNoNewPrivileges(t *testing.T) {
	if got := confined(t, Confine{}, "sh -c 'grep NoNewPrivs /proc/self/status'"); len(got) != 1 || !strings.HasSuffix(got[0], "1") {
		t.Errorf("%q", got)
	}
	w := sh(0, "grep NoNewPrivs /proc/self/status")
	g := launch(t, Options{Joined: true}, w)
	if e := exits(t, g)[0]; len(e.Tail) != 1 || !strings.HasSuffix(e.Tail[0], "0") {
		t.Errorf("of a launcher that confines nobody: %q", e.Tail)
	}
	g.Stop(0)
}

// Another user, with groups of his own, who sees no processes of others, and has a /tmp for
// himself.
func TestConfine(t *testing.T) {
	if os.Geteuid() != 0 {
		memtest.Skip(t, "only root starts processes as another user")
	}
	dir := t.TempDir()
	temp, kept, file := filepath.Join(dir, "temp"), filepath.Join(dir, "kept"), filepath.Join(dir, "file")
	for _, d := range []string{temp, kept} {
		if err := os.Mkdir(d, 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(d, 65534, 65534); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, []byte("this\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	c := Confine{User: &User{UID: 65534, GID: 65534, Groups: []uint32{65534, 4242}}}
	if got, want := strings.Join(confined(t, c, `id -u; id -g; id -G; cat /proc/$PPID/environ 2>/dev/null || echo no; kill -0 $PPID 2>/dev/null || echo no`), " "), "65534 65534 65534 4242 no no"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
	c.Temp, c.Keep, c.HideProcesses = temp, []string{kept, file, "/etc"}, true
	if err := c.Try(); err != nil {
		memtest.Skip(t, "root may not mount here: %v", err)
	}
	seen := fmt.Sprintf("%s/seen-%d", os.TempDir(), os.Getpid())
	if err := os.WriteFile(seen, nil, 0o666); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(seen)
	got := confined(t, c, `ls -d /proc/1 /proc/$PPID /proc/$$ 2>/dev/null | grep -c .; test -e `+seen+` && echo seen; echo mine > /tmp/mine; cat /var/tmp/mine; cat `+file+`; echo kept > `+kept+`/kept; for i in $(seq 3); do sh -c 'readlink /proc/self/ns/mnt'; done | uniq | grep -c .`)
	if strings.Join(got, " ") != "1 mine this 1" {
		t.Errorf("%q", got)
	}
	for path, want := range map[string]string{filepath.Join(temp, "mine"): "mine\n", filepath.Join(kept, "kept"): "kept\n"} {
		if b, err := os.ReadFile(path); string(b) != want {
			t.Errorf("%s: %q, %v", path, b, err)
		}
	}
	hidden := sh(0, "true")
	if err := os.WriteFile(seen, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(seen, 0o755); err != nil {
		t.Fatal(err)
	}
	hidden.Dir, hidden.Argv = "/", []string{seen}
	if _, err := Processes(Options{Confine: &c}).Launch(t.Context(), []Worker{hidden}); fault.CodeOf(err) != fault.NotFound || !strings.Contains(err.Error(), "a /tmp and a /var/tmp for itself") {
		t.Errorf("%v", err)
	}
	// This process sees what it saw.
	if b, err := exec.Command("sh", "-c", "test -e "+seen+" && test -e /proc/1/status && grep NoNewPrivs /proc/self/status").CombinedOutput(); err != nil || !strings.HasSuffix(string(b), "0\n") {
		t.Errorf("%s, %v", b, err)
	}
	if err := (Confine{Temp: filepath.Join(dir, "absent")}).Try(); fault.CodeOf(err) != fault.Unsupported {
		t.Errorf("%v", err)
	}
	began := time.Now()
	for range 10 {
		confined(t, c, "true")
	}
	t.Logf("%v a start", time.Since(began)/10)
}

// A thread that confines processes ends with them, and with it those that it has started before for
// others: so it is one that has none.
func TestConfineSparesOthers(t *testing.T) {
	var all [16]*exec.Cmd
	var said atomic.Bool
	var ready, wg sync.WaitGroup
	ready.Add(len(all))
	for i := range all {
		wg.Go(func() {
			runtime.LockOSThread()
			defer runtime.UnlockOSThread() // whatever comes next runs on it
			ready.Done()
			ready.Wait() // so that each has a thread
			all[i] = exec.Command("sleep", "100")
			all[i].SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGUSR1}
			if err := all[i].Start(); err != nil {
				t.Error(err)
			}
			said.Store(hasChildren())
		})
	}
	wg.Wait()
	for range 20 {
		if err := (Confine{}).Try(); err != nil {
			t.Fatal(err)
		}
		confined(t, Confine{}, "true")
	}
	for _, c := range all {
		if err := c.Process.Kill(); err != nil {
			t.Error(err)
		}
		if err := c.Wait(); said.Load() && c.ProcessState.Sys().(syscall.WaitStatus).Signal() != syscall.SIGKILL {
			t.Errorf("a process of somebody else's: %v", err)
		}
	}
	if !said.Load() {
		memtest.Skip(t, "this kernel does not say which children a thread has (CONFIG_PROC_CHILDREN)")
	}
}
