package trainer

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/trainer/internal/wire"
	"github.com/penstock-data/penstock/trainer/store"
)

func init() {
	programs["stranger"] = stranger
	programs["large data"] = largeData
	programs["fit with large data"] = fitLargeData
}

// stranger is a worker that the controller does not let in, and which ends as if all were well. STRANGER says what is wrong with it.
func stranger() error {
	conn, err := net.Dial("unix", os.Getenv(wire.EnvSocket))
	if err != nil {
		return err
	}
	defer conn.Close()
	h := &wire.Hello{Version: wire.Version, Run: os.Getenv(wire.EnvRun), Attempt: 1, PID: os.Getpid(), Client: "test"}
	if h.Rank, err = strconv.Atoi(os.Getenv("RANK")); err != nil {
		return err
	}
	line, err := "", error(nil)
	what := os.Getenv("STRANGER")
	if r := os.Getenv("STRANGER_RANK"); r != "" && r != os.Getenv("RANK") {
		what = "" // this one is let in
	}
	switch what {
	case "version":
		h.Version = 99
	case "rank":
		h.Rank += 7
	case "same":
		h.Rank = 0
	case "language":
		line = "GET / HTTP/1.1\n"
	}
	if line == "" {
		b, err := wire.Append(nil, wire.ToController{Hello: h})
		if err != nil {
			return err
		}
		line = string(b)
	}
	if _, err := io.WriteString(conn, line); err != nil {
		return err
	}
	m, err := wire.NewReader(conn).FromController()
	if err != nil || m.Refused != nil {
		return nil
	}
	_, _ = io.Copy(io.Discard, conn) // the one that was let in stays until the run ends
	return nil
}

// A worker that is refused does not make a run finished by its exit code 0.
func TestRefusedWorker(t *testing.T) {
	for what, want := range map[string]string{"version": "version 99", "rank": "no rank ", "same": "rank 0 is connected already", "language": "no message"} {
		t.Run(what, func(t *testing.T) {
			c := quick(t, "refused")
			c.Data = nil
			c.Env = []string{"TRAINER_TEST=stranger", "STRANGER=" + what}
			c.Output, c.StopTimeout = io.Discard, time.Second
			code := map[string]fault.Code{"version": fault.Unsupported, "same": fault.Exists, "rank": fault.Invalid, "language": fault.Corrupt}[what]
			res := refused(t, Command([]string{os.Args[0]}, c), code, "it was refused, and ended all the same with exit code 0", want)
			if res == nil || res.State != store.Failed || len(res.Failures) == 0 {
				t.Errorf("%+v", res)
			}
		})
	}
}

// largeData is a data process that takes more and more memory once it serves, the first time.
func largeData() error {
	c, err := confOf()
	if err != nil {
		return err
	}
	mark := filepath.Join(c.Out, "was-large")
	if _, err := os.Stat(mark); err == nil {
		return dataProgram()
	}
	// The kernel takes this process, and not its controller while this one's memory is not free yet.
	if err := os.WriteFile("/proc/self/oom_score_adj", []byte("1000"), 0o600); err != nil {
		return err
	}
	go func() {
		for n := 0; n == 0; time.Sleep(10 * time.Millisecond) { // until a rank of the first attempt has made a step
			m, _ := filepath.Glob(filepath.Join(c.Out, "first-1-*"))
			n = len(m)
		}
		if err := os.WriteFile(mark, nil, 0o600); err != nil {
			panic(err)
		}
		for {
			b := make([]byte, 8<<20)
			for i := range b {
				b[i] = 1
			}
			hoard = append(hoard, b)
		}
	}()
	return dataProgram()
}

// fitLargeData is a run with that data process.
func fitLargeData() error {
	c, err := confOf()
	if err != nil {
		return err
	}
	cfg := c.config()
	cfg.DataProcess.Env = append(c.env(), "TRAINER_TEST=large data")
	cfg.Failures = Failures{Worker: -1, Memory: 1}
	cfg.Env = append(c.env(), "TRAINER_TEST=fit with large data")
	_, err = New(func(k *Context) error {
		if k.Attempt() > 1 {
			return c.loop(k)
		}
		s, err := k.Shard("train") // to the end of the data process
		if err != nil {
			return err
		}
		for {
			b, err := s.Next(k)
			if errors.Is(err, io.EOF) {
				continue
			}
			if err != nil {
				return err
			}
			b.Release()
			if err := os.WriteFile(filepath.Join(c.Out, fmt.Sprintf("first-1-%d", k.Rank())), nil, 0o600); err != nil {
				return err
			}
			time.Sleep(time.Duration(c.StepMS) * time.Millisecond)
		}
	}, cfg).Fit(context.Background())
	return err
}

// controlGroup makes one whose processes have so many bytes together, and returns its folder. The kernel ends one of them where they have more.
func controlGroup(t *testing.T, bytes int) string {
	t.Helper()
	for root, limit := range map[string]string{"/sys/fs/cgroup/memory": "memory.limit_in_bytes", "/sys/fs/cgroup": "memory.max"} {
		dir := filepath.Join(root, fmt.Sprintf("penstock-test-%d", os.Getpid()))
		if os.Mkdir(dir, 0o755) != nil {
			continue
		}
		t.Cleanup(func() {
			emptyGroup(dir)
			if err := os.Remove(dir); err != nil {
				t.Error(err)
			}
		})
		if f, err := os.OpenFile(filepath.Join(dir, limit), os.O_WRONLY, 0); err == nil {
			_, err = f.WriteString(strconv.Itoa(bytes))
			f.Close()
			if err == nil {
				return dir
			}
		}
	}
	t.Skip("no control group for memory can be made here") // not memtest.Skip: containers of CI cannot
	return ""
}

// emptyGroup ends the processes of a control group.
func emptyGroup(dir string) {
	for until := time.Now().Add(10 * time.Second); time.Now().Before(until); time.Sleep(5 * time.Millisecond) {
		b, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
		pids := strings.Fields(string(b))
		if err != nil || len(pids) == 0 {
			return
		}
		for _, p := range pids {
			if pid, err := strconv.Atoi(p); err == nil {
				_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
			}
		}
	}
}

// A data process that the kernel ends for memory counts as memory, not as a crash of a worker: here no crash at all is outlived.
func TestDataProcessMemory(t *testing.T) {
	dir := controlGroup(t, 400<<20)
	var c conf
	for try := 1; ; try++ {
		c = newConf(t, fmt.Sprint("large", try))
		c.DataProcess = true
		cmd := exec.Command("sh", "-c", `echo $$ > "$0/cgroup.procs" && exec "$1"`, dir, os.Args[0])
		cmd.Env = append(os.Environ(), c.env()...)
		cmd.Env = append(cmd.Env, "TRAINER_TEST=fit with large data")
		out, err := cmd.CombinedOutput()
		if err == nil {
			break
		}
		// What a process held that the kernel has ended may not be free yet when another asks for a page: then the kernel ends that one, too.
		if s, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); try == 5 || !ok || s.Signal() != syscall.SIGKILL {
			t.Fatalf("%v: %s", err, out)
		}
		t.Logf("try %d: the kernel ended the controller as well", try)
		emptyGroup(dir)
	}
	run, err := store.Open(t.Context(), c.Storage, c.Name)
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	st, err := run.Status(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if st.State != store.Finished || st.Attempt != 2 || fmt.Sprint(st.Failures) != "map[memory:1]" || st.Error == nil || st.Error.Code != fault.Exhausted.String() ||
		!strings.Contains(st.Error.Text, "the data process ended: signal killed: the kernel ended it, as the machine or the control group was out of memory") {
		t.Errorf("%+v, %+v", st, st.Error)
	}
	sameLedger(t, c.Out)
	nothingLeft(t, c)
}

// Where the data process is killed by somebody else it is a crash.
func TestDataProcessKilled(t *testing.T) {
	c := newConf(t, "killed")
	c.DataProcess = true
	cfg := c.config()
	killed := false
	cfg.Events.Committed = func(store.Manifest) {
		if !killed {
			killed = true
			_ = syscall.Kill(pids(c.Out, "data")[0], syscall.SIGKILL)
		}
	}
	res, err := New(c.loop, cfg).Fit(t.Context())
	if err != nil || len(res.Failures) != 1 || res.Failures[0].Class != "worker" {
		t.Errorf("%v, %+v", err, res)
	}
}

// A storage without room, or read-only: the run fails, names what could not be written, and the checkpoints before are whole.
func TestStorageFull(t *testing.T) {
	c := quick(t, "full")
	c.Workers = 1
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4m"); err != nil {
		memtest.Skip(t, "cannot mount a small file system: %v", err)
	}
	defer func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	}()
	c.Storage = dir
	res := refused(t, New(func(k *Context) error {
		if err := save(k, "small"); err != nil {
			return err
		}
		return save(k, strings.Repeat("x", 8<<20))
	}, c), fault.Exhausted, dir, "no space left")
	if res == nil || res.Checkpoint != 1 || len(res.Checkpoints) != 1 || res.Attempts != 1 {
		t.Errorf("%+v", res)
	}
	run, err := store.Open(t.Context(), dir, c.Name)
	if err != nil {
		t.Fatal(err)
	}
	st, err := run.Status(t.Context())
	if err != nil || st.State != store.Failed || st.Error == nil || !strings.Contains(st.Error.Text, "no space left") {
		t.Errorf("%+v, %v", st, err)
	}
	if err := run.Close(); err != nil {
		t.Error(err)
	}
	// What is there goes on elsewhere: another run begins with its checkpoint.
	next := quick(t, "next")
	next.Workers, next.From = 1, filepath.Join(dir, c.Name)
	fitOK(t, func(k *Context) error { _, err := k.Checkpoint().Dir(k); return err }, next)
	if err := syscall.Mount("", dir, "", syscall.MS_REMOUNT|syscall.MS_RDONLY, ""); err != nil {
		memtest.Skip(t, "cannot mount read-only: %v", err)
	}
	c.Name = "other"
	if res := refused(t, New(nothing, c), fault.Denied, dir, "read-only"); res != nil {
		t.Errorf("%+v", res)
	}
	c.Name, c.Resume = "full", true
	if res := refused(t, New(nothing, c), fault.Denied, dir, "read-only"); res != nil {
		t.Errorf("%+v", res)
	}
}
