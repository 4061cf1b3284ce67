package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// marked is a step of a spec, run by a child that writes its number into a fifo when it is up; then it becomes what follows.
func marked(fifo, then string) string {
	return fmt.Sprintf(`{exec: {command: [sh, -c, "echo $$ > %s; %s"], workers: 1}}`, fifo, then)
}

// A signal ends whatever is at work within a second, with its exit code, and leaves no child behind. What else the machine does
// may slow a try down, but hardly five of them.
func TestSignals(t *testing.T) {
	const endless = "version: 1\nsource: {range: {n: 20000000000}}\n"
	for _, c := range []struct {
		name   string
		args   func(spec, dir string) []string
		spec   string // %s: a step of marked
		child  string
		signal syscall.Signal
		code   int
	}{
		{"run computes", func(s, _ string) []string { return []string{"run", s} }, endless + "steps: [%s, {filter: id %% 7 == 3}]\nsink: {count: {}}\n", "exec cat", syscall.SIGINT, 130},
		{"run writes", func(s, dir string) []string { return []string{"run", s, "--json", "--set", "sink.parquet.path=" + dir} },
			endless + "steps: [%s]\nsink: {parquet: {path: x, target_size: 1MiB}}\n", "exec cat", syscall.SIGTERM, 143},
		{"run hangs in a child", func(s, _ string) []string { return []string{"run", s} }, endless + "steps: [%s]\nsink: {count: {}}\n", "exec sleep 1000", syscall.SIGINT, 130},
		{"a child does not listen", func(s, _ string) []string { return []string{"run", s} }, endless + "steps: [%s]\nsink: {count: {}}\n", "trap '' INT TERM; while :; do read x; done", syscall.SIGTERM, 143},
		{"batches", func(s, _ string) []string { return []string{"batches", s, "--ranks", "2"} },
			endless + "steps: [%s]\nshards: {global_batch: 64, shuffle: {window_rows: 4096, lanes: 4}}\n", "exec cat", syscall.SIGINT, 130},
		{"batches, told to end", func(s, _ string) []string { return []string{"batches", s} },
			endless + "steps: [%s]\nshards: {global_batch: 64}\n", "exec cat", syscall.SIGTERM, 143},
		{"batches hangs in a child", func(s, _ string) []string { return []string{"batches", s, "--format", "jsonl"} },
			endless + "steps: [%s]\nshards: {global_batch: 64}\n", "exec sleep 1000", syscall.SIGINT, 130},
		{"replay counts", func(s, _ string) []string { return []string{"replay", s, "--step", "100000000"} },
			endless + "steps: [%s, {filter: id %% 7 == 3}]\nshards: {global_batch: 64}\n", "exec cat", syscall.SIGTERM, 143},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Setenv("XDG_CACHE_HOME", t.TempDir())
			var took time.Duration
			for range 5 {
				if took = signaledRun(t, c.args, c.spec, c.child, c.signal, c.code); took < time.Second || t.Failed() {
					return
				}
				t.Logf("it took %v", took)
			}
			t.Errorf("it takes %v to end, five times", took)
		})
	}
}

// signaledRun starts a command, sends it a signal when its child is up, and returns how long it took to end.
func signaledRun(t *testing.T, args func(spec, dir string) []string, spec, child string, sig syscall.Signal, code int) time.Duration {
	t.Helper()
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo")
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	c := command(t, args(writeSpec(t, fmt.Sprintf(spec, marked(fifo, child))), filepath.Join(dir, "out"))...)
	if _, err := c.StdoutPipe(); err != nil { // that nobody reads: batches waits for room
		t.Fatal(err)
	}
	c.WaitDelay = 5 * time.Second // for who still holds stderr
	var stderr bytes.Buffer
	c.Stderr = &stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	up, err := os.OpenFile(fifo, os.O_RDWR, 0) // not O_RDONLY: a command that fails early would leave us waiting to open
	if err != nil {
		t.Fatal(err)
	}
	defer up.Close()
	if err := up.SetReadDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(up).ReadString('\n')
	if err != nil {
		_ = c.Process.Kill()
		_ = c.Wait()
		t.Fatalf("no child came up: %v; %s", err, stderr.String())
	}
	begin := time.Now()
	repeat(t, c.Process, sig)
	_ = c.Wait()
	took := time.Since(begin)
	if c.ProcessState.ExitCode() != code || !strings.Contains(stderr.String(), "penstock: "+signaled{sig}.Error()+"\n") {
		t.Errorf("exit %d, want %d: %s", c.ProcessState.ExitCode(), code, stderr.String())
	}
	var pid int
	if _, err := fmt.Sscan(line, &pid); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(pid, 0); !errors.Is(err, syscall.ESRCH) {
		t.Errorf("child %d is still there: %v", pid, err)
	}
	return took
}

// repeat sends a signal as timeout(1) and wrappers do, several times in a moment: after the first was heard, too.
func repeat(t *testing.T, p *os.Process, s os.Signal) {
	t.Helper()
	again := time.NewTicker(sameSignal / 100)
	defer again.Stop()
	for range 20 {
		if err := p.Signal(s); err != nil {
			t.Fatal(err)
		}
		<-again.C
	}
}

// A later attempt of a job asks the storage for its run first: where that does not answer, SIGTERM ends it as it ends any command.
func TestSignalBeforeRun(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	spec := writeSpec(t, "version: 1\nsource: {range: {n: 10}}\nshards: {global_batch: 2}\ntrain: {command: [sleep, 1000]}\n")
	c := command(t, "train", spec, "--storage", "s3://bucket/runs?endpoint=http://"+l.Addr().String()+"&use_path_style=true&region=us-east-1")
	c.Env = append(c.Env, "PENSTOCK_JOB=j1", "PENSTOCK_JOB_ATTEMPT=2", "PENSTOCK_JOB_CLUSTER=x", "AWS_ACCESS_KEY_ID=x", "AWS_SECRET_ACCESS_KEY=x")
	var stderr bytes.Buffer
	c.Stderr = &stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	stop := time.AfterFunc(30*time.Second, func() { c.Process.Kill() })
	defer stop.Stop()
	asks, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer asks.Close()
	if err := c.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = c.Wait()
	if code := c.ProcessState.ExitCode(); code != exitSignal+int(syscall.SIGTERM) {
		t.Errorf("exit %d: %s", code, stderr.String())
	}
}
