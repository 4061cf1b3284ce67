//go:build linux

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/internal/spec"
	"github.com/penstock-data/penstock/trainer"
	"github.com/penstock-data/penstock/trainer/store"
	"golang.org/x/sys/unix"
)

// trainSpec writes the spec of a run whose workers are those of worker_test.go; config is what they are told beside its steps.
func trainSpec(t *testing.T, dir, config string) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf(`version: 1
source: {range: {n: 9000}}
steps: [{filter: id %% 3 != 0}]
shards: {global_batch: 60, seed: 3, columns: {id: int64}, shuffle: {lanes: 3, window_rows: 100}}
train:
  command: [%s]
  env: [PENSTOCK_TEST_MAIN=worker]
  workers: 2
  storage: %s/runs
  config: {every: 5, steps: 30, %s}
  stop_timeout: 2s
  failures: {worker: 5}
`, self, dir, config)
	name := filepath.Join(dir, "t.yaml")
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// stepsIn is what all ranks had of each step: the numbers of its samples, in order of rank, and the digests by rank where world is 2.
func stepsIn(t *testing.T, dir string) (samples map[string][]int64, digests map[string]string) {
	t.Helper()
	all, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	byWorld := map[string]map[string][]int64{} // world, step
	digests = map[string]string{}
	for _, e := range all { // in order of step and rank
		if strings.HasPrefix(e.Name(), ".") {
			continue // of a worker that was ended
		}
		step, rest, _ := strings.Cut(e.Name(), "-")
		_, world, _ := strings.Cut(rest, "-of-")
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		var f stepFile
		if err := json.Unmarshal(b, &f); err != nil {
			t.Fatal(e.Name(), err)
		}
		digests[e.Name()] = f.Digest
		if byWorld[world] == nil {
			byWorld[world] = map[string][]int64{}
		}
		byWorld[world][step] = append(byWorld[world][step], f.N...)
	}
	samples = map[string][]int64{}
	for world, steps := range byWorld {
		for step, n := range steps {
			slices.Sort(n)
			if old := samples[step]; old != nil && !slices.Equal(old, n) && len(old) == len(n) {
				t.Errorf("step %s has other samples on %s workers", step, world)
			}
			if len(n) > len(samples[step]) { // a step in which a rank died has fewer
				samples[step] = n
			}
		}
	}
	return samples, digests
}

// started is a penstock that runs: its output so far.
type started struct {
	*exec.Cmd
	out, err bytes.Buffer
}

func startPenstock(t *testing.T, args ...string) *started {
	t.Helper()
	s := &started{Cmd: command(t, args...)}
	s.Stdout, s.Stderr, s.WaitDelay = &s.out, &s.err, 10*time.Second
	if err := s.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.Process.Kill()
		_ = s.Wait()
	})
	return s
}

// steps are told by rank 0, as it makes them, through a fifo.
type steps struct {
	path string // for the config of the workers: tell
	file *os.File
	in   *bufio.Reader
}

func listen(t *testing.T, dir string) *steps {
	t.Helper()
	path := filepath.Join(dir, "steps")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0) // which workers come and go does not matter to one that may write, too
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return &steps{path, f, bufio.NewReader(f)}
}

// wait waits until a step was made.
func (l *steps) wait(t *testing.T, s *started, step int) {
	t.Helper()
	err := l.file.SetReadDeadline(time.Now().Add(time.Minute))
	for line := ""; err == nil && line != fmt.Sprintln(step); {
		line, err = l.in.ReadString('\n')
	}
	if err != nil {
		_ = s.Process.Kill()
		_ = s.Wait()
		t.Fatalf("step %d does not come: %v: %s%s", step, err, s.out.String(), s.err.String())
	}
}

// childrenOf lists the processes that a process has started.
func childrenOf(t *testing.T, pid int) (all []int) {
	t.Helper()
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	if tasks == nil {
		memtest.Skip(t, "the system does not tell the children of a process")
	}
	for _, file := range tasks {
		b, _ := os.ReadFile(file)
		for f := range strings.FieldsSeq(string(b)) {
			n, err := strconv.Atoi(f)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, n)
		}
	}
	return all
}

// dataProcessOf finds the data process of a controller.
func dataProcessOf(t *testing.T, pid int) int {
	t.Helper()
	for _, p := range childrenOf(t, pid) {
		if b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p)); bytes.Contains(b, []byte("\x00--control\x00")) {
			return p
		}
	}
	t.Fatalf("no data process among %v", childrenOf(t, pid))
	return 0
}

// gone waits until processes have ended, which are not ours, and fails where one does not.
func gone(t *testing.T, pids []int) {
	t.Helper()
	for _, pid := range pids {
		fd, err := unix.PidfdOpen(pid, 0)
		if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) { // EINVAL: older kernels, of one that ends just now
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		defer unix.Close(fd)
		poll, n := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, 0
		for end := time.Now().Add(10 * time.Second); n == 0; {
			left := time.Until(end).Milliseconds()
			if left <= 0 {
				t.Fatalf("process %d is still there", pid)
			}
			if n, err = unix.Poll(poll, int(left)); err != nil && !errors.Is(err, unix.EINTR) {
				t.Fatal(err)
			}
			n = max(n, 0)
		}
	}
}

// A run that nothing happens to, and what can be said of it after.
func TestTrain(t *testing.T) {
	dir := t.TempDir()
	spec := trainSpec(t, dir, "")
	runs := dir + "/runs"
	r := penstock(t, "train", spec, "--name", "first", "--set", "train.config.steps=20")
	if r.code != 0 || !strings.Contains(r.out, "first: finished after 4 reports in 1 attempt, last checkpoint 4 in ") || !strings.Contains(r.out, "; loss 0.05, steps 20\n") ||
		!strings.Contains(r.out, "rank 1: 20 steps\n") || !strings.HasPrefix(r.err, "penstock: run first in "+runs+"/first: 2 workers\n") || !strings.Contains(r.err, "\npenstock: checkpoint 4 at report 4 (2 B): loss 0.05, steps 20\n") {
		t.Fatalf("exit %d: %s%s", r.code, r.out, r.err)
	}
	r = penstock(t, "train", spec, "--name", "first")
	if r.code != exitUsage || !strings.Contains(r.err, `there is a run "first"`) || !strings.Contains(r.err, "penstock resume first --storage "+runs) || strings.Contains(r.err, "--resume") {
		t.Errorf("the same name: %d %s", r.code, r.err)
	}
	// What is finished is not done again.
	for _, args := range [][]string{{"train", spec, "--name", "first", "--resume"}, {"resume", runs + "/first"}} {
		if r = penstock(t, args...); r.code != 0 || r.err != "" || !strings.HasPrefix(r.out, "first is finished: 4 reports, last checkpoint 4; nothing was done. ") || strings.Contains(r.out, "rank") {
			t.Errorf("%q: %+v", args, r)
		}
	}
	r = penstock(t, "runs", "--storage", runs)
	if l := lines(r.out); r.code != 0 || len(l) != 2 || !strings.HasPrefix(l[0], "NAME   STATE     ATTEMPT  CHECKPOINT  AGE") || !strings.HasPrefix(l[1], "first  finished  1 ") || r.err != "" {
		t.Errorf("runs: %+v", r)
	}
	var run runJSON
	r = penstock(t, "status", runs+"/first", "--json")
	if err := json.Unmarshal([]byte(r.out), &run); err != nil || run.State != "finished" || run.Attempt != 1 || run.Reports != 4 || run.Metrics["steps"] != 20 || run.Workers != 2 || len(run.Command) != 1 {
		t.Errorf("status: %+v, %v", run, err)
	}
	r = penstock(t, "status", "first", "--storage", runs)
	for _, want := range []string{"run              first\n", "state            finished\n", "attempts         1\n", "failures         none\n", "last metrics     loss 0.05, steps 20\n"} {
		if r.code != 0 || !strings.Contains(r.out, want) {
			t.Errorf("status has no %q: %+v", want, r)
		}
	}
	r = penstock(t, "checkpoints", "first", "--storage", runs)
	if l := lines(r.out); r.code != 0 || len(l) != 4 || !strings.HasPrefix(l[0], "NUMBER  REPORT  AGE") || !strings.HasSuffix(l[3], "loss 0.05, steps 20\n") {
		t.Errorf("checkpoints: %+v", r)
	}
	var best checkpointJSON
	r = penstock(t, "checkpoints", "first", "--storage", runs, "--best", "steps", "--order", "max", "--json")
	if err := json.Unmarshal([]byte(r.out), &best); err != nil || best.Report != 4 || !slices.Equal(best.Files, []string{"steps"}) || !slices.Equal(best.Data, []string{"train"}) {
		t.Errorf("best: %+v, %v, %s", best, err, r.err)
	}
	if b, err := os.ReadFile(filepath.Join(best.Run, best.Folder, "steps")); err != nil || string(b) != "20" {
		t.Errorf("its file holds %q, %v", b, err)
	}
	// Another run begins with its checkpoint.
	r = penstock(t, "train", spec, "--name", "second", "--from", "first#4", "--set", "train.checkpoints.keep_best={metric: los}")
	if r.code != 0 || !strings.Contains(r.out, "second: finished after 2 reports in 1 attempt,") || !strings.Contains(r.err, ": 2 workers, from checkpoint 4 of run first\n") {
		t.Errorf("from another: exit %d: %s%s", r.code, r.out, r.err)
	}
	if strings.Count(r.err, `penstock: warning: checkpoint 1 has no metric "los", by which the best are kept (keep_best.metric): its metrics are loss, steps`) != 1 ||
		strings.Count(r.err, "warning: ") != 2 || !strings.Contains(r.err, `none of the checkpoints has metric "los"`) {
		t.Errorf("no such metric: %s", r.err)
	}
	if r = penstock(t, "train", spec, "--from", "firs"); r.code != exitFailed || !strings.Contains(r.err, `there is no run "firs" in `+runs+`: is it "first"?`) {
		t.Errorf("from none: %+v", r)
	}
	// One that trains on other data has the files, and begins anew with the data.
	r = penstock(t, "train", spec, "--name", "third", "--from", runs+"/first#4", "--set", "steps.1.filter=id > 100", "--set", "train.config.steps=25")
	if r.code != 0 || !strings.Contains(r.out, "third: finished after 1 report ") || !strings.Contains(r.err, "a data set begins anew: that of the checkpoint has another plan") {
		t.Errorf("other data: exit %d: %s%s", r.code, r.out, r.err)
	}
	if r = penstock(t, "runs", "--storage", runs, "--json"); strings.Count(r.out, "\n") != 3 || !strings.Contains(lines(r.out)[0], `"name":"third"`) {
		t.Errorf("runs: %+v", r)
	}
}

// What the data process says, as how many rows an epoch skipped, is on the terminal, and in its log.
func TestTrainSkips(t *testing.T) {
	dir := t.TempDir()
	r := penstock(t, "train", trainSpec(t, dir, ""), "--name", "skips", "--set", `steps.1.filter=cast(id % 3 * 200, "uint8") >= 0`, "--set", "run.on_error=skip", "--set", "shards.epochs=2", "--set", "train.config.steps=200")
	const said = "on_error: 3000 of 9000 rows were skipped in epoch 0"
	if r.code != 0 || strings.Count(r.out, "[data] penstock: warning: "+said+"\n") != 1 {
		t.Errorf("%+v", r)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "runs", "skips", "logs", "data.log")); err != nil || strings.Count(string(b), said) != 1 {
		t.Errorf("its log: %q, %v", b, err)
	}
}

// Commands that are suggested are in the storage of the run, and what resume does not take says what does.
func TestTrainHints(t *testing.T) {
	dir := t.TempDir()
	spec := trainSpec(t, dir, "")
	if r := penstock(t, "train", spec, "--name", "first", "--set", "train.config.steps=5"); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	for _, args := range [][]string{{"train", spec, "--name", "first", "--resume"}, {"resume", dir + "/runs/first"}, {"resume", "first", "--storage", dir + "/runs"}} {
		if r := penstock(t, args...); r.code != 0 || !strings.HasSuffix(r.out, ": penstock train SPEC --from first --storage "+dir+"/runs\n") {
			t.Errorf("%q: %+v", args, r)
		}
	}
	if r := penstock(t, "resume", dir+"/runs/first", "--set", "train.workers=1"); r.code != exitUsage || !strings.Contains(r.err, "keeps its spec") || !strings.Contains(r.err, "penstock train SPEC --name RUN --resume --set key=value") {
		t.Errorf("%+v", r)
	}
	if r := penstock(t, "resume", "first", "--sett", "x"); r.code != exitUsage || !strings.Contains(r.err, "unknown flag: --sett") {
		t.Errorf("%+v", r)
	}
}

// Of a program that ends with an exit code and never connects, the line that says why is its last one: the error has it, and the status.
func TestTrainLastPrinted(t *testing.T) {
	dir := t.TempDir()
	spec := trainSpec(t, dir, "")
	for name, want := range map[string]string{
		"penstock": "install the package into this interpreter: make wheel, then pip install python/dist/penstock-*.whl (log: ",
		"torch":    " (log: ",
	} {
		last := fmt.Sprintf("ModuleNotFoundError: No module named '%s'", name)
		script := fmt.Sprintf(`echo "Traceback (most recent call last):" >&2; echo "%s" >&2; echo >&2; exit 1`, last)
		r := penstock(t, "train", spec, "--name", name, "--workers", "1", "--", "sh", "-c", script)
		if all := lines(r.err); r.code != exitFailed || !strings.Contains(all[len(all)-1], " ended with exit code 1, and printed last: "+last) || !strings.Contains(all[len(all)-1], want) || strings.Contains(r.err, "Traceback") {
			t.Errorf("%+v", r)
		}
		if r = penstock(t, "status", dir+"/runs/"+name); !strings.Contains(r.out, "last error ") || !strings.Contains(r.out, last) || !strings.Contains(r.out, want) {
			t.Errorf("%+v", r)
		}
	}
	r := penstock(t, "train", spec, "--name", "long", "--workers", "1", "--", "sh", "-c", `printf 'é%.0s' $(seq 1000); exit 1`)
	if !strings.Contains(r.err, "printed last: "+strings.Repeat("é", 150)+"... (log: ") {
		t.Errorf("%+v", r)
	}
}

// Of workers that do not heed a notice it is said that they were ended, and what is lost; that the run was preempted is said once.
func TestTrainDeaf(t *testing.T) {
	dir := t.TempDir()
	made := listen(t, dir)
	script := fmt.Sprintf(`trap "" TERM USR2; echo 0 > %s; while :; do sleep 1; done`, made.path)
	s := startPenstock(t, "train", trainSpec(t, dir, ""), "--name", "deaf", "--set", "train.preemption.grace=50ms", "--set", "train.stop_timeout=50ms", "--", "sh", "-c", script)
	made.wait(t, s, 0)
	made.wait(t, s, 0)
	send(t, s.Cmd, syscall.SIGTERM)
	_ = s.Wait()
	said := "ranks 0, 1 did not end within the grace"
	if code := s.ProcessState.ExitCode(); code != exitPreempted || !strings.Contains(s.out.String(), "deaf: preempted after 0 reports in 1 attempt, no checkpoint in ") ||
		!strings.Contains(s.out.String(), "; "+said+", and had to be ended: what came after the start is lost\n") || !strings.Contains(s.err.String(), said) {
		t.Errorf("exit %d: %s%s", code, s.out.String(), s.err.String())
	}
	if r := penstock(t, "status", dir+"/runs/deaf"); !strings.Contains(r.out, "state            preempted (terminated; "+said+" of 50ms, and had to be ended: what came after the start is lost)\n") || strings.Contains(r.out, "was preempted") {
		t.Errorf("%+v", r)
	}
}

// Whatever is killed, and whenever, the run goes on with the batches that come next: the same ones on as many workers, the same samples on
// others.
func TestTrainKilled(t *testing.T) {
	whole := t.TempDir()
	if r := penstock(t, "train", trainSpec(t, t.TempDir(), "out: "+whole)); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	want, digests := stepsIn(t, whole)
	if len(want) != 30 || len(digests) != 60 {
		t.Fatalf("%d steps, %d files", len(want), len(digests))
	}
	for _, c := range []struct {
		name, config string
		kill         func(t *testing.T, s *started, spec, dir string) // may end it and resume
	}{
		{name: "worker", config: "die: 13"},
		{name: "data process", kill: func(t *testing.T, s *started, _, _ string) {
			if err := syscall.Kill(dataProcessOf(t, s.Process.Pid), syscall.SIGKILL); err != nil {
				t.Error(err)
			}
		}},
		{name: "controller", kill: func(t *testing.T, s *started, _, dir string) {
			children := childrenOf(t, s.Process.Pid)
			if len(children) < 3 {
				t.Errorf("children %v", children)
			}
			_ = s.Process.Kill()
			_ = s.Wait()
			gone(t, children)
			r := penstock(t, "runs", "--storage", dir+"/runs")
			if !strings.Contains(r.out, "lost") || !strings.Contains(r.err, "go on with: penstock resume run --storage "+dir+"/runs") {
				t.Errorf("runs: %+v", r)
			}
			if r := penstock(t, "status", dir+"/runs/run"); !strings.Contains(r.out, "lost") || !strings.Contains(r.out, "go on with: ") {
				t.Errorf("status: %+v", r)
			}
			if r = penstock(t, "resume", dir+"/runs/run"); r.code != 0 || !strings.Contains(r.out, "30 steps") {
				t.Errorf("resume: %+v", r)
			}
		}},
		{name: "controller and number of workers", kill: func(t *testing.T, s *started, spec, dir string) {
			_ = s.Process.Kill()
			_ = s.Wait()
			if err := os.Remove(spec); err != nil { // the record is enough
				t.Error(err)
			}
			if r := penstock(t, "resume", "run", "--storage", dir+"/runs", "--workers", "3"); r.code != 0 || !strings.Contains(r.out, "rank 2: 30 steps") || !strings.Contains(r.out, " in 2 attempts (this time 1), ") {
				t.Errorf("resume: %+v", r)
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			dir, out := t.TempDir(), t.TempDir()
			made := listen(t, dir)
			spec := trainSpec(t, dir, "out: "+out+", wait: 10, tell: "+made.path+", "+c.config)
			s := startPenstock(t, "train", spec, "--name", "run")
			if c.kill != nil {
				made.wait(t, s, 12)
				c.kill(t, s, spec, dir)
			}
			if s.ProcessState == nil {
				if err := s.Wait(); err != nil || !strings.Contains(s.out.String(), "2 attempts") || !strings.Contains(s.err.String(), "penstock: warning: attempt 1 failed: ") || strings.Contains(s.err.String(), "class") {
					t.Errorf("%v: %s%s", err, s.out.String(), s.err.String())
				}
			}
			got, gotDigests := stepsIn(t, out)
			if len(got) != len(want) {
				t.Errorf("%d steps", len(got))
			}
			for step, n := range want {
				if !slices.Equal(got[step], n) {
					t.Errorf("step %s has samples %v, want %v", step, got[step], n)
				}
			}
			for name, d := range gotDigests {
				if strings.HasSuffix(name, "-of-2") && digests[name] != d {
					t.Errorf("%s is another batch", name)
				}
			}
		})
	}
}

// An interrupt ends a run, a notice lets the workers save; both say how to go on, and it does.
func TestTrainSignals(t *testing.T) {
	for _, c := range []struct {
		signal syscall.Signal
		code   int
		state  string
		saves  bool
	}{
		{syscall.SIGINT, 130, "interrupted", false},
		{syscall.SIGTERM, exitPreempted, "preempted", true},
		{syscall.SIGUSR2, exitPreempted, "preempted", true},
	} {
		t.Run(c.signal.String(), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			made := listen(t, dir)
			// The workers compare what they get with what is in out.
			s := startPenstock(t, "train", trainSpec(t, dir, "wait: 20, tell: "+made.path+", out: "+t.TempDir()), "--name", "run")
			made.wait(t, s, 6)
			children := childrenOf(t, s.Process.Pid)
			repeat(t, s.Process, c.signal)
			_ = s.Wait()
			if s.ProcessState.ExitCode() != c.code || !strings.Contains(s.out.String(), "run: "+c.state+" after ") || !strings.Contains(s.out.String(), "go on with: penstock resume run --storage "+dir+"/runs\n") {
				t.Errorf("exit %d: %s%s", s.ProcessState.ExitCode(), s.out.String(), s.err.String())
			}
			if n := strings.Count(s.out.String(), "noticed"); c.saves != (n == 2) {
				t.Errorf("%d workers saw a notice: %s", n, s.out.String())
			}
			gone(t, children)
			if r := penstock(t, "status", dir+"/runs/run"); !strings.Contains(r.out, "state            "+c.state) || !strings.Contains(r.out, "go on with: penstock resume run --storage "+dir+"/runs\n") {
				t.Errorf("status: %+v", r)
			}
			if r := penstock(t, "resume", dir+"/runs/run"); r.code != 0 || !strings.Contains(r.out, "run: finished") || !strings.Contains(r.out, "rank 1: 30 steps") {
				t.Errorf("resume: %+v", r)
			}
		})
	}
}

// A failure is told by what the worker printed, as it came, and once by the last line: a sentence with what it printed last and the path of its log. What failed is known to those who come later.
func TestTrainFails(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "w.sh")
	if err := os.WriteFile(script, []byte("echo the reason >&2\nexit $(cat code)\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	code := func(n string) {
		if err := os.WriteFile(filepath.Join(dir, "code"), []byte(n), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	code("7")
	spec := trainSpec(t, dir, "")
	r := penstock(t, "train", spec, "--name", "a", "--workers", "1", "--set", "train.working_dir="+dir, "--set", "train.failures={worker: 0}", "--", "sh", "w.sh")
	log := dir + "/runs/a/logs/attempt-1/rank-0.log"
	if l := lines(r.err); r.code != exitFailed || strings.Count(r.out, "the reason") != 1 || strings.Count(r.err, "the reason") != 1 || strings.Contains(r.err, "warning") || !strings.HasPrefix(l[len(l)-1], "penstock: rank 0") || !strings.HasSuffix(l[len(l)-1], "exit code 7, and printed last: the reason (log: "+log+")\n") {
		t.Errorf("exit %d: %s%s", r.code, r.out, r.err)
	}
	code("0")
	if r = penstock(t, "resume", dir+"/runs/a", "--workers", "2"); r.code != 0 || !strings.Contains(r.out, "a: finished after 0 reports in 2 attempts (this time 1), no checkpoint") {
		t.Errorf("resume: %+v", r)
	}
	r = penstock(t, "status", dir+"/runs/a")
	for _, want := range []string{"workers          2\n", "attempts         2\n", "failures         1 of a worker\n", "recovered from   rank 0", "exit code 7, and printed last: the reason"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("status has no %q: %+v", want, r)
		}
	}
	// What train --resume has changed, penstock resume would change back.
	code("7")
	flags := []string{"train", spec, "--name", "b", "--workers", "1", "--set", "train.working_dir=" + dir, "--set", "train.failures={worker: 0}"}
	for _, want := range []string{"\ngo on with: penstock resume b --storage ", "\ngo on with the same command; penstock resume b --storage " + dir + "/runs takes the spec that the run began with\n"} {
		if r = penstock(t, append(flags, "--", "sh", "w.sh")...); r.code != exitFailed || !strings.Contains(r.out, want) {
			t.Errorf("not %q: %+v", want, r)
		}
		flags = append(flags, "--resume")
	}
}

// Mistakes are told before anything starts, with what would be right.
func TestTrainMistakes(t *testing.T) {
	dir := t.TempDir()
	spec := trainSpec(t, dir, "")
	runs := "train.storage=" + dir + "/other"
	plain := writeSpec(t, "version: 1\nsource: {range: {n: 5}}\nshards: {global_batch: 1}\n")
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"train"}, exitUsage, "train: SPEC is missing"},
		{[]string{"train", spec, "python"}, exitUsage, "put the command of the workers behind --"},
		{[]string{"train", spec, "--"}, exitUsage, "a command is missing behind --"},
		{[]string{"train", plain}, exitUsage, "the spec has no train section"},
		{[]string{"train", plain, "--set", "train={}"}, exitUsage, "what do the workers run? Add train.command"},
		{[]string{"train", plain, "--set", "train.commands=[x]"}, exitUsage, `--set train.commands: train: unknown key "commands": did you mean "command"?`},
		{[]string{"train", "examples/flights.yaml", "--", "true"}, exitUsage, "examples/flights.yaml: the command behind --: train: the spec has no shards"},
		{[]string{"train", "examples/flights.yaml", "--workers", "2"}, exitUsage, "examples/flights.yaml: --workers: train: the spec has no shards"},
		{[]string{"train", "examples/flights.yaml", "--set", "train.command=[true]"}, exitUsage, "--set train.command"},
		{[]string{"train", spec, "--workers", "0"}, exitUsage, "--workers must be at least 1"},
		{[]string{"train", spec, "--data-nodes", "1"}, exitUsage, "train: --data-nodes goes with --cluster"},
		{[]string{"train", spec, "--data-cpus", "1"}, exitUsage, "train: --data-cpus goes with --cluster"},
		{[]string{"train", spec, "--cluster", "local", "--data-cpus", "1"}, exitUsage, "--data-cpus, --data-memory and --data-labels go with --data-nodes"},
		{[]string{"train", spec, "--cluster", "local", "--data-nodes", "-1"}, exitUsage, "--data-nodes -1: a job has 0 or more"},
		{[]string{"train", spec, "--cluster", "local", "--data-nodes", "1", "--data-memory", "much"}, exitUsage, "--data-memory: "},
		{[]string{"train", spec, "--cluster", "local", "--data-nodes", "1", "--data-labels", "x"}, exitUsage, "--data-labels x: want key=value"},
		{[]string{"run", spec, "--cluster", "local", "--data-nodes", "1"}, exitUsage, "unknown flag: --data-nodes"},
		{[]string{"train", spec, "--resume"}, exitUsage, "--resume of which run?"},
		{[]string{"train", spec, "--resume", "--name", "x", "--set", runs}, exitFailed, `there is no run "x"`},
		{[]string{"train", spec, "--name", "a/b", "--set", runs}, exitUsage, "a/b"},
		{[]string{"train", spec, "--set", "train.env=[PENSTOCK_NO_SUCH]"}, exitUsage, "variable PENSTOCK_NO_SUCH is not set here"},
		{[]string{"train", spec, "--set", "train.data={val: {spec: none.yaml}}"}, exitUsage, `data set "val": open `},
		{[]string{"train", spec, "--set", "steps=[{map: {function: none}}]"}, exitUsage, "none"},
		{[]string{"train", spec, "--set", "steps=[{filter: ida > 3}]", "--set", runs, "--set", "train.name=a"}, exitUsage, `ida`},
		{[]string{"train", spec, "--set", "train.command=[/nowhere/prog]", "--set", runs, "--set", "train.name=b"}, exitUsage, "/nowhere/prog"},
		{[]string{"train", spec, "--set", runs, "--name", "b", "--", "no-such-program"}, exitUsage, "program no-such-program is not in PATH"},
		{[]string{"train", spec, "--set", runs, "--name", "b", "--set", "train.working_dir=/nowhere"}, exitUsage, "working directory /nowhere is not there"},
		{[]string{"train", spec, "--set", runs, "--name", "b", "--set", "source={parquet: {paths: [/nowhere/*.parquet]}}"}, exitFailed, "/nowhere"},
		{[]string{"train", spec, "--set", runs, "--name", "b", "--set", "shards.columns={z: float32}"}, exitUsage, `: --set shards.columns: column "z": no such column; have id`},
		{[]string{"train", spec, "--set", runs, "--name", "b", "--set", "steps=[{with_columns: {z: string(id)}}, {select: [z]}]", "--set", "shards.columns={z: auto}"}, exitUsage, `data set "train": ` + spec + `: --set shards.columns: column "z": string has no tensor form: drop the column, convert it`},
		{[]string{"train", spec, "--set", runs, "--name", "same", "--set", "train.config.same=true"}, exitFailed, "both gave a file"},
		{[]string{"train", spec, "--set", "train.command=[sh, -c, 'echo a reason >&2; exit 7']", "--set", runs, "--set", "train.name=c"}, exitFailed, "exit code 7"},
		{[]string{"resume", "none", "--storage", dir + "/other"}, exitFailed, `there is no run "none"`},
		{[]string{"resume"}, exitUsage, "resume: RUN is missing"},
		{[]string{"status", "x y"}, exitUsage, "x y"},
		{[]string{"checkpoints", "x", "--order", "best"}, exitUsage, "--order is min or max"},
		{[]string{"checkpoints", "x", "--order", "max"}, exitUsage, "goes with --best"},
		{[]string{"runs", "--storage", "nope://x"}, exitUsage, "nope"},
		{[]string{"data", spec}, exitUsage, "where to listen? Give --socket"},
		{[]string{"data", spec, "--socket", dir + "/feed/s", "--rank", "5"}, exitUsage, "--rank 5 of 1 rank"},
	} {
		r := penstock(t, c.args...)
		if r.code != c.code || !strings.Contains(r.err, c.want) {
			t.Errorf("%q: exit %d, want %d with %q: %s%s", c.args, r.code, c.code, c.want, r.out, r.err)
		}
	}
	// What never started has left its name free.
	if r := penstock(t, "runs", "--storage", dir+"/other", "--json"); strings.Count(r.out, "\n") != 2 || !strings.Contains(r.out, `"name":"c"`) || !strings.Contains(r.out, `"name":"same"`) {
		t.Errorf("%+v", r)
	}
	val := filepath.Join(dir, "val.yaml")
	if err := os.WriteFile(val, []byte("version: 1\nsource: {range: {n: 5}}\nsteps: [{filter: idd > 1}]\nshards: {global_batch: 4}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		sets []string
		code int
		want string
	}{
		{nil, exitUsage, "val.yaml:3:18: step 1 (filter): unknown column \"idd\""},
		{[]string{"--set", "train.data.val.spec=none.yaml"}, exitUsage, `--set train.data.val.spec: data set "val": open `},
		{[]string{"--set", "train.workers=61"}, exitUsage, "less than one sample for each of 61 ranks"},
		{[]string{"--set", "train.data={}"}, 0, ""},
	} {
		r := penstock(t, append([]string{"validate", spec, "--set", "train.data={val: {spec: val.yaml, eval: true}}"}, c.sets...)...)
		if r.code != c.code || !strings.Contains(r.err, c.want) {
			t.Errorf("validate %q: exit %d: %s%s", c.sets, r.code, r.out, r.err)
		}
	}
	if r := penstock(t, "runs", "--storage", dir+"/none"); r.code != 0 || !strings.Contains(r.err, "no runs in") {
		t.Errorf("%+v", r)
	}
}

// Ranks that wait in the data for one that hangs do so for longer than it takes to find it, unless the spec says otherwise.
func TestTrainStalls(t *testing.T) {
	path := trainSpec(t, t.TempDir(), "")
	for set, want := range map[string]time.Duration{
		"train.hang_timeout=8s": 19 * time.Second, "train.hang_timeout=0s": -1, "train.workers=2": trainer.StallTimeout(30 * time.Minute), "run.stall_timeout=7s": 7 * time.Second,
	} {
		o, _, err := spec.LoadOriginal(path, []string{set}, spec.Trust{})
		if err != nil {
			t.Fatal(err)
		}
		sets, err := dataSets(o, spec.Trust{}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := sets[spec.TrainName].Options.StallTimeout; got != want {
			t.Errorf("%s: ranks wait for %v, want %v", set, got, want)
		}
	}
}

// Every key of the train section is a part of the configuration: what it says, and that it says something.
func TestConfigure(t *testing.T) {
	n := func(i int) *int { return &i }
	hang := spec.Duration(3 * time.Second)
	full := func() *spec.Train {
		return &spec.Train{
			Workers: 4, Resources: &spec.Resources{CPUs: 1.5, GPUs: 2, Memory: 3 << 30}, Storage: "runs", Env: []string{"A=1"}, WorkingDir: "src", Logs: "logs",
			Config:       map[string]json.RawMessage{"lr": json.RawMessage("0.1")},
			StartTimeout: spec.Duration(time.Second), HangTimeout: &hang, ReportTimeout: spec.Duration(5 * time.Second), StopTimeout: spec.Duration(7 * time.Second),
			Failures:    &spec.Failures{Worker: n(11), Hang: n(12), Memory: n(13), Delay: spec.Duration(14 * time.Second)},
			Checkpoints: &spec.Checkpoints{KeepLast: 15, KeepBest: &spec.Best{Metric: "m", Order: "max", N: 16}, KeepEvery: 17, Upload: "async", Parallel: 18},
			Preemption:  &spec.Preemption{Grace: spec.Duration(19 * time.Second)},
		}
	}
	of := func(s *spec.Train) trainer.Config {
		t.Helper()
		var c trainer.Config
		if err := configure(&c, s, true); err != nil {
			t.Fatal(err)
		}
		return c
	}
	want := trainer.Config{
		Workers: 4, Resources: trainer.Resources{CPUs: 1.5, GPUs: 2, Memory: 3 << 30}, Storage: "runs", Env: []string{"A=1"}, Dir: "src", Logs: "logs", Settings: map[string]any{"lr": json.RawMessage("0.1")},
		StartTimeout: time.Second, HangTimeout: 3 * time.Second, ReportTimeout: 5 * time.Second, StopTimeout: 7 * time.Second,
		Failures:   trainer.Failures{Worker: 11, Hang: 12, Memory: 13, Delay: 14 * time.Second},
		Checkpoint: trainer.Checkpointing{Policy: store.Policy{KeepLast: 15, KeepBest: 16, Metric: "m", Order: "max", KeepEvery: 17}, Async: true, Parallel: 18},
		Preemption: trainer.Preemption{Grace: 19 * time.Second},
	}
	if got := of(full()); !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	elsewhere := map[string]bool{"Command": true, "Name": true, "Data": true} // see training.run
	var leaves func(path []int, s reflect.Type)
	leaves = func(path []int, s reflect.Type) {
		for i := range s.NumField() {
			f, at := s.Field(i), append(path[:len(path):len(path)], i)
			if typ := f.Type; typ.Kind() == reflect.Pointer && typ.Elem().Kind() == reflect.Struct {
				leaves(at, typ.Elem())
				continue
			}
			s := full()
			v := reflect.ValueOf(s).Elem().FieldByIndex(at)
			if f.Type.Kind() == reflect.Bool {
				v.SetBool(true)
			} else {
				v.SetZero()
			}
			if reflect.DeepEqual(of(s), want) != elsewhere[f.Name] {
				t.Errorf("%s: without it the configuration is the same: %v", f.Name, !elsewhere[f.Name])
			}
		}
	}
	leaves(nil, reflect.TypeFor[spec.Train]())
	zero := spec.Duration(0)
	c := of(&spec.Train{HangTimeout: &zero, Failures: &spec.Failures{Worker: n(0), Hang: n(0), Memory: n(0)}})
	if c.Workers != 1 || c.Storage != defaultStorage || c.HangTimeout >= 0 || c.Failures.Worker >= 0 || c.Failures.Hang >= 0 || c.Failures.Memory >= 0 {
		t.Errorf("0 is none: %+v", c)
	}
	if c := of(&spec.Train{Checkpoints: &spec.Checkpoints{KeepAll: true}}); c.Checkpoint.KeepLast >= 0 {
		t.Errorf("%+v", c)
	}
	var missing trainer.Config
	if err := configure(&missing, &spec.Train{Env: []string{"PENSTOCK_TEST_NOT_SET"}}, true); err == nil || !strings.Contains(err.Error(), "PENSTOCK_TEST_NOT_SET is not set here") {
		t.Error(err)
	}
}
