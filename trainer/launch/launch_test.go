//go:build linux

package launch

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// children are what this program is when a test starts it again, by the value of LAUNCH_TEST.
var children = map[string]func(){}

func TestMain(m *testing.M) {
	if f := children[os.Getenv("LAUNCH_TEST")]; f != nil {
		f()
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func init() {
	children["hog"] = func() { // touches LAUNCH_BYTES, and stays
		n, _ := strconv.Atoi(os.Getenv("LAUNCH_BYTES"))
		b := bytes.Repeat([]byte{1}, n)
		fmt.Println("ready")
		time.Sleep(time.Hour)
		fmt.Println(b[0])
	}
	children["print"] = func() { // LAUNCH_BYTES of lines
		n, _ := strconv.Atoi(os.Getenv("LAUNCH_BYTES"))
		b := []byte(strings.Repeat(strings.Repeat("x", 79)+"\n", 800))
		for ; n > 0; n -= len(b) {
			os.Stdout.Write(b[:min(n, len(b))])
		}
	}
	children["ignore"] = func() {
		signal.Ignore(syscall.SIGTERM)
		fmt.Println("ready")
		time.Sleep(time.Hour)
	}
	children["hang"] = func() {
		fmt.Println("ready")
		hangsHere()
	}
}

func hangsHere() { time.Sleep(time.Hour) }

// again is a worker that is this program as a child.
func again(t testing.TB, rank int, what string, env ...string) Worker {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return Worker{Rank: rank, Argv: []string{self}, Env: append(append(os.Environ(), "LAUNCH_TEST="+what), env...)}
}

func sh(rank int, script string, env ...string) Worker {
	return Worker{Rank: rank, Argv: []string{"sh", "-c", script}, Env: append(os.Environ(), env...)}
}

// launch fails the test unless the group starts, and stops it at the end.
func launch(t *testing.T, o Options, workers ...Worker) Group {
	t.Helper()
	g, err := Processes(o).Launch(t.Context(), workers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.Stop(0) })
	return g
}

// exits waits for all.
func exits(t *testing.T, g Group) map[int]Exit {
	t.Helper()
	out := map[int]Exit{}
	late := time.After(60 * time.Second)
	for {
		select {
		case e, ok := <-g.Exits():
			if !ok {
				return out
			}
			if _, twice := out[e.Rank]; twice {
				t.Errorf("rank %d ended twice", e.Rank)
			}
			out[e.Rank] = e
		case <-late:
			t.Fatalf("not all workers have ended: %v", out)
		}
	}
}

// until waits for something that happens outside of this process.
func until(t *testing.T, what string, f func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(30 * time.Second)
	for !f() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("%s: not within 30 s", what)
		}
	}
}

// pids reads ids of processes that children write to files of a folder.
func pids(t *testing.T, dir string, n int) []int {
	t.Helper()
	var out []int
	until(t, fmt.Sprintf("%d processes", n), func() bool {
		out = out[:0]
		files, _ := filepath.Glob(filepath.Join(dir, "*.pid"))
		for _, f := range files {
			b, _ := os.ReadFile(f)
			if pid, err := strconv.Atoi(strings.TrimSpace(string(b))); err == nil {
				out = append(out, pid)
			}
		}
		return len(out) == n
	})
	return out
}

// lives reports whether a process is there, be it as a zombie.
func lives(pid int) bool { return syscall.Kill(pid, 0) == nil }

func wantGone(t *testing.T, ids []int) {
	t.Helper()
	for _, pid := range ids {
		if lives(pid) {
			b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			t.Errorf("process %d is still there: %s", pid, b)
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
}

// fds counts open files of this process.
func fds(t *testing.T) int {
	t.Helper()
	d, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	return len(d)
}
