//go:build unix

package launch

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/internal/oom"
	"github.com/penstock-data/penstock/trainer/internal/wire"
	"golang.org/x/sys/unix"
)

// Launch looks at everything that can be looked at before it starts the first worker.
func (p *processes) Launch(ctx context.Context, workers []Worker) (Group, error) {
	if err := checkRanks(workers); err != nil {
		return nil, err
	}
	if !watchable() {
		return nil, fault.New(fault.Unsupported, "processes cannot be watched: /proc is not there, or hides them")
	}
	g := &group{
		exits: make(chan Exit, len(workers)), nudge: make(chan struct{}, 1), done: make(chan struct{}),
		tree: newTree(), main: p.Main, joined: p.Joined, confine: p.Confine,
	}
	var ranks []int
	for i, w := range workers {
		ranks = append(ranks, w.Rank)
		path, err := resolve(w)
		if err == nil {
			err = p.Confine.sees(path)
		}
		if err == nil && w.Memory > 0 && !watchesMemory {
			err = fault.New(fault.Unsupported, "the memory of workers can be limited on Linux only")
		}
		if err != nil {
			return nil, fault.New(fault.CodeOf(err), "%s: %w", p.Name(w.Rank), err)
		}
		g.workers = append(g.workers, &worker{Worker: w, name: p.Name(w.Rank), path: path, out: &output{slot: i}, usage: Usage{Rank: w.Rank}})
	}
	if err := p.openLogs(g); err != nil {
		return nil, err
	}
	if p.Terminal != nil {
		g.term = newTerminal(p.Terminal, &p.screen, ranks, p.Name)
		for _, w := range g.workers {
			w.out.term = g.term
		}
	}
	adopt(true)
	alive.add(g)
	oom.Look()
	started := make(chan error, 1)
	go g.keep(ctx, started) // joined through g.done
	if err := <-started; err != nil {
		g.Stop(0)
		return nil, err
	}
	return g, nil
}

// openLogs makes the log files of all workers, or none stays open.
func (p *processes) openLogs(g *group) error {
	if p.Logs == "" {
		return nil
	}
	for i, w := range g.workers {
		attempt := lookEnv(w.Env, wire.EnvAttempt)
		if attempt == "" {
			attempt = "1"
		}
		file := strings.Map(func(r rune) rune {
			if r == ' ' || r == '/' {
				return '-'
			}
			return r
		}, w.name)
		f, err := p.openLog(filepath.Join("attempt-"+filepath.Base(attempt), file+".log"))
		if err != nil {
			for _, w := range g.workers[:i] {
				w.out.file.close()
			}
			return fault.New(fault.Denied, "%s: its log file cannot be made: %w; choose another folder for logs", w.name, err)
		}
		w.out.file = f
	}
	return nil
}

// keep starts the workers and stays, on one thread, until the group is over: the kernel ends the workers when the thread that started them ends.
func (g *group) keep(ctx context.Context, started chan<- error) {
	runtime.LockOSThread()
	// The process's memory goes where its first thread does, and this one enters the control groups
	// of workers. One that confines ends, and has no other children then.
	if firstThread() || g.confine != nil && hasChildren() {
		defer runtime.UnlockOSThread()
		go g.keep(ctx, started)
		<-g.done
		return
	}
	var err error
	if g.confine == nil {
		defer runtime.UnlockOSThread()
	} else { // the thread is not like the others any more, and ends with this goroutine
		err = g.confine.enter()
	}
	for i, w := range g.workers {
		if err != nil {
			break
		}
		if ctx.Err() != nil {
			err = fault.WithCode(fault.Canceled, context.Cause(ctx))
		} else if err = g.start(i); err != nil {
			err = fault.New(fault.CodeOf(err), "%s: %w", w.name, err)
		}
	}
	g.mu.Lock()
	for i, w := range g.workers {
		if w.p == nil {
			g.report(i, Exit{Rank: w.Rank, Code: -1, Ours: true, Detail: "it was not started"})
			w.out.closeFile()
			continue
		}
		for _, s := range w.streams {
			go s.read() // joined by wait
		}
		go g.wait(i) // joined through exits
	}
	if len(g.workers) == 0 {
		close(g.exits)
	}
	g.mu.Unlock()
	go g.tend() // closes done
	started <- err
	<-g.done
}

// start starts worker i and gives it to the tree.
func (g *group) start(i int) error {
	w := g.workers[i]
	null, err := os.Open(os.DevNull)
	if err != nil {
		return startError(w, err)
	}
	defer null.Close()
	files := []*os.File{null}
	for _, fd := range []int{1, 2} {
		if fd == 2 && g.joined {
			files = append(files, files[1])
			break
		}
		r, wr, err := os.Pipe()
		if err != nil {
			for _, s := range w.streams {
				s.r.Close()
			}
			return startError(w, err)
		}
		defer wr.Close()
		w.streams = append(w.streams, newStream(w.out, r, fd == 2 || g.joined))
		files = append(files, wr)
	}
	files = append(files, w.Files...)
	name := fmt.Sprintf("%s%d", g.tree.token, i)
	env := lastOnly(append(w.Env[:len(w.Env):len(w.Env)], EnvLaunch+"="+name))
	if w.Memory > 0 {
		w.cgroup = newCgroup(name, w.Memory)
	}
	attr := &os.ProcAttr{Dir: w.Dir, Env: env, Files: files, Sys: g.confine.as(procAttr())}
	var p *os.Process
	start := func() (err error) {
		p, err = os.StartProcess(w.path, w.Argv, attr)
		return err
	}
	if err = w.cgroup.born(attr.Sys, start); err != nil && w.cgroup != nil { // perhaps for the group
		w.cgroup.remove()
		w.cgroup, attr.Sys = nil, g.confine.as(procAttr())
		err = start()
	}
	if err != nil {
		for _, s := range w.streams {
			s.r.Close()
		}
		return startError(w, err)
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	w.p, w.pid = p, p.Pid
	w.usage.PID = p.Pid
	g.tree.add(i, p.Pid)
	return nil
}

// startError says what the kernel's errors mean.
func startError(w *worker, err error) error {
	code, why := fault.Invalid, ""
	switch {
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		code, why = fault.Exhausted, "; this user or machine has too many processes or open files, or too little memory"
	case errors.Is(err, syscall.ENOENT):
		code, why = fault.NotFound, "; the file is there, but the interpreter that its first line or its header names is not"
	case errors.Is(err, syscall.ENOEXEC):
		why = "; a script needs a first line like #!/bin/sh, a program must be made for this machine"
	case errors.Is(err, syscall.EACCES):
		code, why = fault.Denied, "; its folder may not be entered, or its file system does not allow programs"
	case errors.Is(err, syscall.E2BIG):
		why = "; arguments and environment are too long"
	}
	return fault.New(code, "cannot start %s: %w%s", w.path, err, why)
}

// Check is the error that Launch of processes would have for a worker's program, its script or its working directory.
func Check(w Worker) error {
	_, err := resolve(w)
	return err
}

// resolve finds the program of a worker and checks what would keep it from starting.
func resolve(w Worker) (string, error) {
	dir, err := filepath.Abs(w.Dir)
	if err != nil {
		return "", fault.New(fault.NotFound, "the working directory: %w", err)
	}
	switch st, err := os.Stat(dir); {
	case errors.Is(err, os.ErrNotExist):
		return "", fault.New(fault.NotFound, "working directory %s is not there", dir)
	case err != nil:
		return "", fault.New(fault.Denied, "working directory: %w", err)
	case !st.IsDir():
		return "", fault.New(fault.Invalid, "working directory %s is a file", dir)
	}
	if len(w.Argv) == 0 || w.Argv[0] == "" {
		return "", fault.New(fault.Invalid, "no program to run: the command is empty")
	}
	path, err := program(w, dir)
	if err != nil {
		return "", err
	}
	if python := strings.TrimRight(filepath.Base(w.Argv[0]), "0123456789."); python == "python" && len(w.Argv) > 1 && w.Argv[1] != "" && w.Argv[1][0] != '-' {
		if _, err := os.Stat(below(dir, w.Argv[1])); errors.Is(err, os.ErrNotExist) {
			return "", fault.New(fault.NotFound, "script %s is not there (working directory %s)", w.Argv[1], dir)
		}
	}
	return path, nil
}

func below(dir, path string) string {
	if filepath.IsAbs(path) {
		return path
	}
	return filepath.Join(dir, path)
}

// program is the absolute path of what Argv[0] names.
func program(w Worker, dir string) (string, error) {
	name := w.Argv[0]
	if strings.Contains(name, "/") {
		return executable(below(dir, name))
	}
	path := lookEnv(w.Env, "PATH")
	if path == "" {
		return "", fault.New(fault.NotFound, "program %s: the environment has no PATH to look in; give its full path", name)
	}
	var first error
	for _, d := range filepath.SplitList(path) {
		file, err := executable(below(dir, filepath.Join(d, name)))
		if err == nil {
			return file, nil
		}
		if first == nil && fault.CodeOf(err) != fault.NotFound {
			first = err
		}
	}
	if first != nil {
		return "", first
	}
	hint := ""
	if _, err := os.Stat(below(dir, name)); err == nil {
		hint = fmt.Sprintf("; the file in %s is ./%s", dir, name)
	}
	return "", fault.New(fault.NotFound, "program %s is not in PATH (%s)%s", name, path, hint)
}

func executable(file string) (string, error) {
	st, err := os.Stat(file)
	switch {
	case errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ENOTDIR):
		return "", fault.New(fault.NotFound, "program %s is not there", file)
	case err != nil:
		return "", fault.New(fault.Denied, "program: %w", err)
	case st.IsDir():
		return "", fault.New(fault.Invalid, "program %s is a folder", file)
	case unix.Access(file, unix.X_OK) != nil:
		return "", fault.New(fault.Denied, "program %s is not executable: chmod +x it, or start it by its interpreter (python FILE, sh FILE)", file)
	}
	return file, nil
}

// lastOnly is an environment in which each name has the last of its values: of several, programs see the first, or the last.
func lastOnly(env []string) []string {
	at := make(map[string]int, len(env))
	out := make([]string, 0, len(env))
	for _, kv := range env {
		name, _, _ := strings.Cut(kv, "=")
		if i, ok := at[name]; ok {
			out[i] = kv
			continue
		}
		at[name] = len(out)
		out = append(out, kv)
	}
	return out
}

// lookEnv is the value that a process sees, which is the last; "": none.
func lookEnv(env []string, name string) string {
	for i := len(env) - 1; i >= 0; i-- {
		if v, ok := strings.CutPrefix(env[i], name+"="); ok {
			return v
		}
	}
	return ""
}
