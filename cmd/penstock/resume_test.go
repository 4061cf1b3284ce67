//go:build linux

package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/trainer/store"
)

// checkpointsOf lists the numbers and reports of a run's checkpoints.
func checkpointsOf(t *testing.T, run string) (all []string) {
	t.Helper()
	for _, l := range lines(ok(t, "checkpoints", run, "--json")) {
		var c checkpointJSON
		if err := json.Unmarshal([]byte(l), &c); err != nil {
			t.Fatal(err)
		}
		all = append(all, fmt.Sprintf("%d/%d", c.Number, c.Report))
	}
	return all
}

// A run goes back to an earlier checkpoint, also one that is finished: with the batches that came after it, and without the checkpoints that did.
func TestResumeCheckpoint(t *testing.T) {
	dir, out := t.TempDir(), t.TempDir()
	spec := trainSpec(t, dir, "out: "+out) // workers compare their batches with those that were given before
	run := dir + "/runs/first"
	if r := penstock(t, "train", spec, "--name", "first", "--set", "train.config.steps=20"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	if got := fmt.Sprint(checkpointsOf(t, run)); got != "[2/2 3/3 4/4]" {
		t.Fatal(got)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"resume", run, "--checkpoint", "1"}, exitFailed, "there is no checkpoint 1: the run has 2, 3, 4"},
		{[]string{"resume", run, "--checkpoint", "0"}, exitUsage, "--checkpoint must be at least 1"},
		{[]string{"train", spec, "--name", "first", "--checkpoint", "3"}, exitUsage, "go with --resume; another run begins with a checkpoint by --from RUN#N"},
		{[]string{"train", spec, "--name", "first", "--take-over"}, exitUsage, "go with --resume"},
	} {
		if r := penstock(t, c.args...); r.code != c.code || !strings.Contains(r.err, c.want) || strings.Contains(r.out, "rank") {
			t.Errorf("%q: %+v", c.args, r)
		}
	}
	if got := fmt.Sprint(checkpointsOf(t, run)); got != "[2/2 3/3 4/4]" {
		t.Fatalf("mistakes changed the run: %s", got)
	}
	r := penstock(t, "resume", run, "--checkpoint", "3")
	if r.code != 0 || !strings.Contains(r.out, "first: finished after 4 reports in 2 attempts (this time 1), last checkpoint ") || !strings.Contains(r.err, "from its checkpoint 3 at report 3\n") {
		t.Errorf("%+v", r)
	}
	if got := fmt.Sprint(checkpointsOf(t, run)); got != "[2/2 3/3 6/4]" && got != "[2/2 3/3 7/4]" { // it may come before the entry that gives up 4
		t.Error(got)
	}
	// With the spec as it is now, on another number of workers.
	r = penstock(t, "train", spec, "--name", "first", "--resume", "--checkpoint", "2", "--workers", "3")
	if r.code != 0 || !strings.Contains(r.out, "rank 2: 30 steps") || !strings.Contains(r.err, "from its checkpoint 2 at report 2\n") {
		t.Errorf("%+v", r)
	}
	samples, _ := stepsIn(t, out) // equal for 2 and 3 workers
	if len(samples) != 30 {
		t.Errorf("%d steps", len(samples))
	}
}

// A run whose controller is on another host is refused for two minutes, and taken over by who says so.
func TestResumeTakeOver(t *testing.T) {
	dir := t.TempDir()
	spec := trainSpec(t, dir, "")
	run := dir + "/runs/far"
	if r := penstock(t, "train", spec, "--name", "far", "--set", "train.config.steps=10"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	elsewhere := func(file string, change map[string]any) {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var all map[string]any
		if err := json.Unmarshal(b, &all); err != nil {
			t.Fatal(err)
		}
		in := all
		if p, ok := all["process"].(map[string]any); ok {
			in = p
		}
		if in["host"] == nil {
			t.Fatalf("%s has no host: %s", file, b)
		}
		in["host"] = "elsewhere"
		for k, v := range change {
			all[k] = v
		}
		if b, err = json.Marshal(all); err == nil {
			err = os.WriteFile(file, b, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	elsewhere(run+"/checkpoints/000000.json", nil)
	elsewhere(run+"/status/000001.json", map[string]any{"state": store.Running, "updated": time.Now()})
	r := penstock(t, "resume", run)
	if r.code != exitUsage && r.code != exitFailed || !strings.Contains(r.err, `on host "elsewhere" was heard of`) || !strings.Contains(r.err, "--take-over") {
		t.Errorf("%+v", r)
	}
	if r = penstock(t, "resume", run, "--take-over"); r.code != 0 || !strings.Contains(r.out, "far: finished after 2 reports in 2 attempts (this time 1)") {
		t.Errorf("%+v", r)
	}
}

// A second SIGINT ends everything at once, with what workers have started: in a session of its own, deaf to what asks it to end.
func TestTrainInterruptedTwice(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	said, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer said.Close()
	if err := said.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	script := fmt.Sprintf(`trap 'echo 0 > %[1]s' TERM; setsid sh -c 'trap "" TERM INT; echo $$ > %[1]s; exec sleep 1000' & while :; do sleep 1 & wait $!; done`, fifo)
	s := startPenstock(t, "train", trainSpec(t, dir, ""), "--name", "deaf", "--workers", "1", "--set", "train.stop_timeout=1h", "--", "sh", "-c", script)
	in := bufio.NewReader(said)
	next := func() (n int) {
		t.Helper()
		line, err := in.ReadString('\n')
		if err == nil {
			_, err = fmt.Sscan(line, &n)
		}
		if err != nil {
			_ = s.Process.Kill()
			_ = s.Wait()
			t.Fatalf("%v: %s%s", err, s.out.String(), s.err.String())
		}
		return n
	}
	grandchild := next()
	children := childrenOf(t, s.Process.Pid)
	interrupt := func() {
		if err := s.Process.Signal(syscall.SIGINT); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Fatal(err)
		}
	}
	interrupt()
	if n := next(); n != 0 {
		t.Fatalf("the worker says %d", n)
	}
	ended := make(chan error, 1)
	go func() { ended <- s.Wait() }()
	for again := time.NewTicker(sameSignal / 10); ; { // those that come with the first are the first
		interrupt()
		select {
		case <-again.C:
			continue
		case <-ended:
		}
		break
	}
	if code := s.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit %d: %s%s", code, s.out.String(), s.err.String())
	}
	if err := syscall.Kill(grandchild, 0); err != syscall.ESRCH {
		t.Errorf("process %d of the worker: %v", grandchild, err)
		_ = syscall.Kill(grandchild, syscall.SIGKILL)
	}
	gone(t, children)
}

// twoGPUs puts an nvidia-smi first in PATH.
func twoGPUs(t *testing.T) {
	t.Helper()
	dir := t.TempDir()
	const text = `#!/bin/sh
case "$1" in
--query-gpu=index,uuid,name,memory.total)
	echo "0, GPU-5d5ba0d6, NVIDIA A100-SXM4-40GB, 40960"
	echo "1, GPU-e1b4f00d, NVIDIA A100-SXM4-40GB, 40960";;
-L)
	echo "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d5ba0d6)"
	echo "GPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-e1b4f00d)";;
*)
	echo "GPU-5d5ba0d6, 37, 1024, 45, 61.50"
	echo "GPU-e1b4f00d, 3, 2048, 40, 50";;
esac
`
	if err := os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte(text), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	t.Setenv("TMPDIR", t.TempDir()) // of the leases
	t.Setenv("CUDA_VISIBLE_DEVICES", "0,1")
}

// Of GPUs whole ones are leased, and seen by their worker alone; more than there are is refused with both numbers. A run that waits for others says for whom, and hears a notice: it is preempted, and
// resumed later. What it was before it waits, or is refused, is not forgotten.
func TestTrainGPUs(t *testing.T) {
	if _, err := os.Stat("/dev/nvidiactl"); err == nil {
		t.Skip("this machine has GPUs of its own") // NVML would list those
	}
	twoGPUs(t)
	dir := t.TempDir()
	made := listen(t, dir)
	gpus := func(name, config string, args ...string) []string {
		sub := filepath.Join(dir, name)
		if err := os.MkdirAll(sub, 0o755); err != nil {
			t.Fatal(err)
		}
		return append([]string{"train", trainSpec(t, sub, config), "--name", name, "--storage", dir + "/runs", "--set", "train.resources={gpus: 1}"}, args...)
	}
	r := penstock(t, gpus("much", "", "--workers", "3")...)
	if r.code != exitUsage || !strings.Contains(r.err, "asked for 3 GPUs (3 workers x 1), this machine has 2") {
		t.Errorf("%+v", r)
	}
	// A run that failed once, and was preempted once.
	again := startPenstock(t, gpus("again", "wait: 10, die: 12, tell: "+made.path)...)
	made.wait(t, again, 20)
	send(t, again.Cmd, syscall.SIGTERM)
	if _ = again.Wait(); again.ProcessState.ExitCode() != exitPreempted {
		t.Fatalf("exit %d: %s%s", again.ProcessState.ExitCode(), again.out.String(), again.err.String())
	}
	history := func(state string) string {
		t.Helper()
		var x runJSON
		if err := json.Unmarshal([]byte(ok(t, "status", dir+"/runs/again", "--json")), &x); err != nil {
			t.Fatal(err)
		}
		if x.State != state || x.Failures["worker"] != 1 || x.Preemptions != 1 || x.Reports == 0 || x.Checkpoint == 0 {
			t.Fatalf("%+v, want %s", x, state)
		}
		return fmt.Sprint(x.Reports, x.Checkpoint, x.Metrics)
	}
	was := history(store.Preempted)
	if text := ok(t, "status", dir+"/runs/again"); !strings.Contains(text, "failures         1 of a worker\npreemptions      1\n") {
		t.Error(text)
	}
	if r := penstock(t, "resume", dir+"/runs/again", "--workers", "3"); r.code == 0 || !strings.Contains(r.err, "asked for 3 GPUs") || history(store.Preempted) != was {
		t.Errorf("%+v", r)
	}
	holder := startPenstock(t, gpus("holder", "wait: 20, tell: "+made.path, "--set", "train.config.steps=1000000")...)
	made.wait(t, holder, 2)
	waits := fmt.Sprintf("penstock: the run waits for 2 more GPUs: 0, 1 held by run holder (process %d)\n", holder.Process.Pid)
	queue := func(args ...string) (c *exec.Cmd, out *strings.Builder, in *bufio.Reader) {
		t.Helper()
		c, out = command(t, args...), &strings.Builder{}
		stderr, err := c.StderrPipe()
		if err != nil {
			t.Fatal(err)
		}
		c.Stdout = out
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill() })
		in = bufio.NewReader(stderr)
		for line := ""; line != waits; {
			if line, err = in.ReadString('\n'); err != nil {
				t.Fatal(err, line)
			}
		}
		return c, out, in
	}
	lost, _, left := queue("resume", dir+"/runs/again")
	memtest.Poll(time.Minute, func() bool { return strings.Contains(ok(t, "status", dir+"/runs/again"), store.Queued) }) // what is said comes before what is written
	if history(store.Queued) != was {
		t.Error("it is another run")
	}
	send(t, lost, syscall.SIGKILL)
	_, _ = left.ReadString(0)
	_ = lost.Wait()
	if history(store.StateLost) != was {
		t.Error("it is another run")
	}
	c, out, in := queue(gpus("queued", "")...)
	if !memtest.Poll(time.Minute, func() bool {
		return strings.Contains(ok(t, "status", dir+"/runs/queued"), "queued (waits for 2 more GPUs: 0, 1 held by run holder")
	}) {
		t.Error(ok(t, "status", dir+"/runs/queued"))
	}
	send(t, c, syscall.SIGTERM)
	rest, _ := in.ReadString(0)
	_ = c.Wait()
	if c.ProcessState.ExitCode() != exitPreempted || !strings.Contains(out.String(), "queued: preempted after 0 reports in 0 attempts") || !strings.Contains(out.String(), "go on with: penstock resume queued") {
		t.Errorf("exit %d: %s%s", c.ProcessState.ExitCode(), out.String(), rest)
	}
	if r := penstock(t, "status", dir+"/runs/queued"); !strings.Contains(r.out, "state            preempted") {
		t.Errorf("%+v", r)
	}
	send(t, holder.Cmd, syscall.SIGINT)
	_ = holder.Wait()
	for _, name := range []string{"queued", "again"} {
		r := penstock(t, "resume", dir+"/runs/"+name)
		for _, want := range []string{"rank 1: 30 steps", "rank 0 sees GPUs 0\n", "rank 1 sees GPUs 1\n"} {
			if r.code != 0 || !strings.Contains(r.out, want) {
				t.Errorf("%s: %+v, want %q", name, r, want)
			}
		}
	}
	run, err := store.Open(t.Context(), dir+"/runs", "queued")
	if err != nil {
		t.Fatal(err)
	}
	defer run.Close()
	reports := 0
	for row, err := range run.History(t.Context()) {
		if err != nil {
			t.Fatal(err)
		}
		reports++
		for name, want := range map[string]float64{"rank0/gpu0/utilisation": 0.37, "rank0/gpu0/power": 61.5, "rank1/gpu0/temperature": 40, "rank1/gpu0/memory": 2048 << 20} {
			if got, ok := row.Metrics[name]; !ok || got != want {
				t.Errorf("report %d: %s is %v, want %v: %v", row.Report, name, got, want, row.Metrics)
			}
		}
	}
	if reports == 0 {
		t.Error("no reports")
	}
}

func send(t *testing.T, c *exec.Cmd, s syscall.Signal) {
	t.Helper()
	if err := c.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}
