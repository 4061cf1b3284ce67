package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// figures are what a case measured, by name.
type figures map[string]float64

// run is one process to measure.
type run struct {
	args  []string
	env   []string
	cores int           // 1: pinned to the last core; 0: all
	limit time.Duration // from its @start
}

var (
	errMissing = errors.New("not installed")
	errTimeout = errors.New("timeout")
)

// supervise runs a case that marks its work with @start and @end (py/peer.py), and measures between
// the marks: cpu seconds of all processes, and over its life peak memory in bytes (the largest sample
// of all processes, or what the main one had at most) and the number of processes. start is the seconds from exec to @start.
func supervise(r run) (figures, error) {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	cmd := exec.CommandContext(ctx, r.args[0], r.args[1:]...)
	cmd.Env = append(append(os.Environ(), fmt.Sprintf("PEERS_LIMIT=%g", 0.8*r.limit.Seconds())), r.env...)
	var stderr tail
	cmd.Stderr = &stderr
	cmd.WaitDelay = 5 * time.Second
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	began := time.Now()
	if err := startPinned(cmd, r.cores); err != nil {
		return nil, err
	}
	t := newTree(cmd.Process.Pid)
	defer func() {
		in.Close()
		t.kill()
		cmd.Wait()
		for range 100 {
			if t.drained() {
				break
			}
			time.Sleep(20 * time.Millisecond) // what was killed needs a moment
		}
	}()
	lines := make(chan string)
	done := make(chan error, 1)
	go func() {
		s := bufio.NewScanner(out)
		s.Buffer(nil, 1<<20)
		for s.Scan() {
			if strings.HasPrefix(s.Text(), "@") {
				lines <- s.Text()
			}
		}
		close(lines)
		done <- s.Err()
	}()
	timer := time.NewTimer(r.limit + 60*time.Second) // for imports
	defer timer.Stop()
	f := figures{}
	var cpu0 float64
	pause := 50 * time.Millisecond
	for {
		tick := time.NewTimer(pause)
		select {
		case line, ok := <-lines:
			tick.Stop()
			switch {
			case !ok:
				<-done
				err := cmd.Wait()
				var exit *exec.ExitError
				if errors.As(err, &exit) && exit.ExitCode() == 3 {
					return nil, fmt.Errorf("%w: %s", errMissing, stderr.last())
				}
				return nil, fmt.Errorf("ended early (%v): %s", err, stderr.last())
			case line == "@start":
				t.sample(true)
				cpu0 = t.cpu()
				f["start"] = time.Since(began).Seconds()
				timer.Reset(r.limit)
				if _, err := io.WriteString(in, "\n"); err != nil {
					return nil, err
				}
			case strings.HasPrefix(line, "@end "):
				t.sample(true)
				if err := json.Unmarshal([]byte(line[5:]), &f); err != nil {
					return nil, err
				}
				if _, ok := f["cpu"]; !ok {
					f["cpu"] = t.cpu() - cpu0
				}
				f["peak"], f["procs"], f["watch"] = float64(max(t.peak, highWater(t.main))), float64(t.most), t.overhead.Seconds()
				io.WriteString(in, "\n")
				return f, nil
			default:
				return nil, fmt.Errorf("%s", strings.TrimPrefix(line, "@fail "))
			}
		case <-tick.C:
			s := time.Now()
			t.sample(true)
			pause = max(50*time.Millisecond, 20*time.Since(s)) // at most 5 % of a core
		case <-timer.C:
			return f, fmt.Errorf("%w after %.0f s", errTimeout, r.limit.Seconds())
		}
	}
}

// startPinned starts a command on all cores, or on the last one.
func startPinned(cmd *exec.Cmd, cores int) error {
	if cores == 0 || cores >= runtime.NumCPU() {
		return cmd.Start()
	}
	runtime.LockOSThread() // a child inherits the mask of the thread that starts it
	defer runtime.UnlockOSThread()
	var old, one unix.CPUSet
	if err := unix.SchedGetaffinity(0, &old); err != nil {
		return err
	}
	for i, n := 1023, 0; i >= 0 && n < cores; i-- {
		if old.IsSet(i) {
			one.Set(i)
			n++
		}
	}
	if err := unix.SchedSetaffinity(0, &one); err != nil {
		return err
	}
	defer unix.SchedSetaffinity(0, &old)
	return cmd.Start()
}

// server is a process that answers one line per job; it lives through a whole workload, so that its
// start is not measured.
type server struct {
	cmd   *exec.Cmd
	waits float64 // CPU seconds of processes that it had waited for when it was ready
	in    io.WriteCloser
	out   *bufio.Scanner
	err   tail
}

func startServer(cores int, env []string, args ...string) (*server, error) {
	s := &server{cmd: exec.Command(args[0], args[1:]...)}
	s.cmd.Env = append(os.Environ(), env...)
	s.cmd.Stderr = &s.err
	var err error
	if s.in, err = s.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := s.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	s.out = bufio.NewScanner(out)
	if err := startPinned(s.cmd, cores); err != nil {
		return nil, err
	}
	if _, err := s.answer(); err != nil {
		s.close()
		return nil, err
	}
	s.waits = allProcs()[s.cmd.Process.Pid].waits
	return s, nil
}

func (s *server) answer() (figures, error) {
	for s.out.Scan() {
		switch l := s.out.Text(); {
		case l == "@start":
			return nil, nil
		case strings.HasPrefix(l, "@end "):
			f := figures{}
			return f, json.Unmarshal([]byte(l[5:]), &f)
		case strings.HasPrefix(l, "@fail "):
			return nil, errors.New(l[6:])
		}
	}
	err := s.cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() == 3 {
		return nil, errMissing
	}
	return nil, fmt.Errorf("ended early (%v): %s", err, s.err.last())
}

// do has a job done. peak is the high-water mark so far: of this process, as there are no others; its CPU time is its own count.
func (s *server) do(job string) (figures, error) {
	if _, err := io.WriteString(s.in, job+"\n"); err != nil {
		return nil, fmt.Errorf("%v: %s", err, s.err.last())
	}
	f, err := s.answer()
	if err != nil {
		return nil, err
	}
	if err := s.alone(); err != nil {
		return nil, err
	}
	f["peak"] = float64(highWater(s.cmd.Process.Pid))
	return f, nil
}

// alone is an error where the server has started processes: they would not be measured.
func (s *server) alone() error {
	all, pid := allProcs(), s.cmd.Process.Pid
	if all[pid].waits > s.waits {
		return errors.New("other processes worked for it")
	}
	for _, p := range all {
		if p.parent == pid {
			return errors.New("other processes work for it")
		}
	}
	return nil
}

func (s *server) close() {
	s.in.Close()
	s.cmd.Process.Kill()
	s.cmd.Wait()
}

// tail keeps the end of what is written.
type tail struct{ buf bytes.Buffer }

func (t *tail) Write(p []byte) (int, error) {
	t.buf.Write(p)
	if t.buf.Len() > 1<<14 {
		t.buf.Next(t.buf.Len() - 1<<13)
	}
	return len(p), nil
}

// last is the last line with text.
func (t *tail) last() string {
	ls := strings.Split(strings.TrimSpace(t.buf.String()), "\n")
	return ls[len(ls)-1]
}
