package feeder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
)

// A data process feeds as this process does.
func TestProcessRestart(t *testing.T) {
	var log bytes.Buffer
	f := Process(folder(t), childArgv("data"), nil, &log)
	testRestart(t, f)
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(log.String(), "a warning"); n != 1 {
		t.Errorf("%d processes were started, want one: %s", n, log.String())
	}
}

// Killed at any time, a data process is a failure that says so; the next start has another one, which goes on with the same
// batches.
func TestProcessKilled(t *testing.T) {
	f := Process(folder(t), childArgv("data"), nil, nil)
	defer f.Close()
	var want []string
	var states []shard.State
	sockets, _ := start(t, f, 2, nil)
	all := dialAll(t, sockets["train"], 2)
	for range 20 {
		d, s := step(t, all)
		want, states = append(want, d), append(states, s)
	}
	for _, at := range []int{3, 11} {
		if err := f.Stop(); err != nil {
			t.Fatal(err)
		}
		sockets, failed := start(t, f, 2, map[string]At{"train": {State: states[at]}})
		all = dialAll(t, sockets["train"], 2)
		step(t, all)
		if err := f.(*process).child.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		err := <-failed
		if !errors.Is(err, ErrDied) || fault.CodeOf(err) != fault.WorkerLost || err.Error() != "the data process ended: signal killed; it said last:\na warning" {
			t.Errorf("%v", err)
		}
		if _, err := f.Ledger(t.Context(), "train"); !errors.Is(err, ErrDied) {
			t.Errorf("ledger: %v", err)
		}
		notice(t, f)
		begin := time.Now()
		if err := f.Stop(); err != nil {
			t.Errorf("stop: %v", err)
		}
		sockets, _ = start(t, f, 2, map[string]At{"train": {State: states[at]}})
		all = dialAll(t, sockets["train"], 2)
		for i := at + 1; i < at+4; i++ {
			if d, _ := step(t, all); d != want[i] {
				t.Fatalf("step %d is %s, want %s", i, d, want[i])
			}
		}
		t.Logf("three steps %v after the death", time.Since(begin))
	}
	// Also a start that nobody stopped the dead one for has a new process.
	_, failed := start2(t, f, states[0])
	f.(*process).child.kill()
	if err := <-failed; !errors.Is(err, ErrDied) {
		t.Errorf("%v", err)
	}
	sockets, _ = start(t, f, 2, map[string]At{"train": {State: states[0]}})
	if d, _ := step(t, dialAll(t, sockets["train"], 2)); d != want[1] {
		t.Errorf("step 1 is %s, want %s", d, want[1])
	}
}

// start2 stops what is served, and starts it for two ranks.
func start2(t *testing.T, f Feeder, at shard.State) (map[string]string, <-chan error) {
	t.Helper()
	if err := f.Stop(); err != nil {
		t.Fatal(err)
	}
	return start(t, f, 2, map[string]At{"train": {State: at}})
}

// What a data process refuses, or cannot say, is the error of the start.
func TestProcessErrors(t *testing.T) {
	for _, c := range []struct {
		argv []string
		code fault.Code
		want string
	}{
		{childArgv("refuse"), fault.Invalid, "spec.yaml:3: unknown key"},
		{childArgv("crash"), fault.WorkerLost, "the data process ended: exit code 1; it said last:\nno such library"},
		{childArgv("talk"), fault.WorkerLost, "the data process ended: what it says cannot be read"},
		{[]string{"/nowhere/penstock"}, fault.NotFound, "the data process cannot be started"},
	} {
		f := Process(folder(t), c.argv, nil, nil)
		for range 2 {
			_, _, err := f.Start(t.Context(), Start{Ranks: 1})
			if fault.CodeOf(err) != c.code || !strings.HasPrefix(fmt.Sprint(err), c.want) {
				t.Errorf("%v: %v (%v), want %v with %q", c.argv, err, fault.CodeOf(err), c.code, c.want)
			}
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// An error of a start leaves the process, for another start.
func TestProcessStartsAfterAnError(t *testing.T) {
	var log bytes.Buffer
	f := Process(folder(t), childArgv("data"), nil, &log)
	if _, _, err := f.Start(t.Context(), Start{Ranks: batch + 1}); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "less than one sample") {
		t.Errorf("%v", err)
	}
	if _, err := f.Ledger(t.Context(), "train"); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("ledger: %v", err)
	}
	sockets, failed := start(t, f, 2, nil)
	all := dialAll(t, sockets["train"], 2)
	step(t, all)
	b, err := f.Ledger(t.Context(), "train")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := shard.ReadLedger(bytes.NewReader(b)); err != nil {
		t.Error(err)
	}
	if _, err := f.Ledger(t.Context(), "val"); fault.CodeOf(err) != fault.NotFound {
		t.Errorf("ledger of val: %v", err)
	}
	lost := consumer(t, sockets["val"], 0)
	other := reader(t, sockets["val"], 1)
	b1, err := other.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b1.Release()
	if err := lost.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := <-failed; fault.CodeOf(err) != fault.WorkerLost || errors.Is(err, ErrDied) || !strings.Contains(err.Error(), `data set "val": rank 0`) {
		t.Errorf("%v", err)
	}
	if err := f.Close(); err != nil {
		t.Error(err)
	}
	if n := strings.Count(log.String(), "a warning"); n != 1 {
		t.Errorf("%d processes, want one", n)
	}
}

// Of a state that is of other data both kinds say whose it is: that set can begin anew.
func TestRefused(t *testing.T) {
	other := Local(folder(t), []Set{Of("train", dataset.Range(77), trainOptions(), false)}, nil)
	defer other.Close()
	sockets, _ := start(t, other, 1, nil)
	foreign := map[string]At{"train": {State: reader(t, sockets["train"], 0).State()}}
	for _, f := range []Feeder{Local(folder(t), sets(), nil), Process(folder(t), childArgv("data"), nil, nil)} {
		_, _, err := f.Start(t.Context(), Start{Ranks: 1, At: foreign})
		if name, ok := Refused(err); !ok || name != "train" || fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), `data set "train": restore: not a state of this job: it is of another plan`) {
			t.Errorf("%v", err)
		}
		if _, _, err := f.Start(t.Context(), Start{Ranks: batch + 1}); err == nil {
			t.Error("started")
		} else if name, ok := Refused(err); ok {
			t.Errorf("%q: %v", name, err)
		}
		start(t, f, 1, nil)
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A start that is given up ends the process that does not answer.
func TestProcessDeaf(t *testing.T) {
	f := Process(folder(t), childArgv("deaf"), nil, nil).(*process)
	f.stopping = 50 * time.Millisecond
	defer f.Close()
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		for f.current() == nil { // until Start has one
			runtime.Gosched()
		}
		cancel()
	}()
	if _, _, err := f.Start(ctx, Start{Ranks: 1}); fault.CodeOf(err) != fault.Canceled {
		t.Errorf("%v", err)
	}
	if f.current() != nil {
		t.Error("the process is still there")
	}
}

// A data process that stands still does not hold up a checkpoint for ever: it is a failure that says so.
func TestProcessStopped(t *testing.T) {
	f := Process(folder(t), childArgv("data"), nil, nil).(*process)
	defer f.Close()
	f.patience = 50 * time.Millisecond
	_, failed := start(t, f, 2, nil)
	if err := f.child.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	tasks := fmt.Sprintf("/proc/%d/task/*/stat", f.child.cmd.Process.Pid)
	for running := true; running; runtime.Gosched() { // a thread that has not stopped yet may answer
		stats, err := filepath.Glob(tasks)
		if running = err != nil || len(stats) == 0; running {
			continue
		}
		for _, path := range stats {
			stat, err := os.ReadFile(path)
			running = running || err == nil && !strings.Contains(string(stat), ") T ")
		}
	}
	if _, err := f.Ledger(t.Context(), "train"); !errors.Is(err, ErrDied) || !strings.Contains(err.Error(), "it did not answer for 50ms") {
		t.Errorf("ledger: %v", err)
	}
	if err := <-failed; !errors.Is(err, ErrDied) || fault.CodeOf(err) != fault.WorkerLost {
		t.Errorf("%v", err)
	}
}

// A data process ends with its controller, however that ends.
func TestProcessDiesWithItsParent(t *testing.T) {
	dir, err := os.MkdirTemp("", "feeder")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	argv := childArgv("parent " + dir)
	out, err := exec.Command(argv[0], argv[1:]...).Output()
	pid, perr := strconv.Atoi(strings.TrimSpace(string(out)))
	if perr != nil {
		t.Fatal(string(out), err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(10 * time.Millisecond) { // another process: there is nothing to wait on
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if errors.Is(err, os.ErrNotExist) || syscall.Kill(pid, 0) == syscall.ESRCH || strings.Contains(string(stat), ") Z ") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d is still there", pid)
		}
	}
}
