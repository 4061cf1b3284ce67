//go:build linux

package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/internal/memtest"
)

// actor is a process of a world, that the test has started.
type actor struct {
	cmd   *exec.Cmd
	ended chan struct{}
	mu    sync.Mutex
	said  bytes.Buffer
}

func (a *actor) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.said.Write(p)
}

func (a *actor) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.said.String()
}

// line is the first one that begins so; "": there is none.
func (a *actor) line(begin string) string {
	for l := range strings.Lines(a.String()) {
		if strings.HasPrefix(l, begin) && strings.HasSuffix(l, "\n") {
			return strings.TrimSpace(l)
		}
	}
	return ""
}

func (a *actor) over() bool {
	select {
	case <-a.ended:
		return true
	default:
		return false
	}
}

func (a *actor) kill() {
	_ = a.cmd.Process.Kill()
	<-a.ended
}

// start starts this binary.
func (w *world) start(node string, env, before []string, args ...string) *actor {
	w.t.Helper()
	self, err := os.Executable()
	if err != nil {
		w.t.Fatal(err)
	}
	argv := slices.Concat(before, []string{self}, args)
	a := &actor{cmd: exec.Command(argv[0], argv[1:]...), ended: make(chan struct{})}
	a.cmd.Env = append(append(os.Environ(), "PENSTOCK_TEST_MAIN=1", "XDG_RUNTIME_DIR=", "XDG_CACHE_HOME="+filepath.Join(w.dir, node+".cache"), chaosEnv+"="+w.id+"/"+node), env...)
	a.cmd.Stdout, a.cmd.Stderr, a.cmd.WaitDelay = a, a, time.Second
	a.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // where the test dies
	if err := a.cmd.Start(); err != nil {
		w.t.Fatal(err)
	}
	go func() {
		_ = a.cmd.Wait()
		close(a.ended)
	}()
	return a
}

// Kinds of processes.
const (
	headKind   = "head"
	agentKind  = "agent"
	memberKind = "member"
	dataKind   = "data process"
	workerKind = "worker" // of a training run, or of a step
)

type process struct {
	pid        int
	node, kind string
}

// processes are those of head and nodes that live.
func (w *world) processes() (all []process) {
	procs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range procs {
		b, err := os.ReadFile(dir + "/environ") // zombies have none
		if err != nil {
			continue
		}
		env := append([]byte{0}, b...)
		_, of, ok := bytes.Cut(env, []byte("\x00"+chaosEnv+"="+w.id+"/"))
		if !ok {
			continue
		}
		node, _, _ := bytes.Cut(of, []byte{0})
		pid, _ := strconv.Atoi(filepath.Base(dir))
		p := process{pid: pid, node: string(node), kind: memberKind}
		argv, _ := os.ReadFile(dir + "/cmdline")
		switch args := bytes.Split(argv, []byte{0}); {
		case p.node == "-head":
			p.kind = headKind
		case p.node[0] == '-' || len(args) < 2:
			continue
		case bytes.Contains(env, []byte("\x00LOCAL_RANK=")) || bytes.Contains(env, []byte("\x00PENSTOCK_TEST_MAIN=slow\x00")):
			p.kind = workerKind
		case string(args[1]) == "join":
			p.kind = agentKind
		case bytes.Contains(argv, []byte("\x00--control\x00")):
			p.kind = dataKind
		}
		all = append(all, p)
	}
	return all
}

// of are those of a node ("": of all), and of a kind ("": of all jobs).
func (w *world) of(node, kind string) (ps []process) {
	for _, p := range w.processes() {
		if (node == "" || p.node == node) && (kind == p.kind || kind == "" && p.kind != agentKind && p.kind != headKind) {
			ps = append(ps, p)
		}
	}
	return ps
}

// kill kills one that is drawn of those.
func (w *world) kill(node, kind string) {
	w.t.Helper()
	var ps []process
	if !w.before("a "+kind, func() bool { ps = w.of(node, kind); return len(ps) > 0 }) {
		return
	}
	p := ps[w.rnd.IntN(len(ps))]
	if err := syscall.Kill(p.pid, syscall.SIGKILL); err != nil {
		w.t.Fatal(err)
	}
	w.happened("the %s %d of node %s was killed", kind, p.pid, p.node)
}

// killAll kills all processes of jobs.
func (w *world) killAll() {
	w.t.Helper()
	ps := w.of("", "")
	for _, p := range ps {
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
	}
	if len(ps) < 4 {
		w.t.Errorf("there are only these processes: %+v", ps)
	}
	w.happened("%d processes were killed", len(ps))
}

// freeze stops all of a node; thaw lets it go on.
func (w *world) freeze(node string) {
	w.t.Helper()
	stopped := map[int]bool{}
	for more := true; more; {
		more = false
		for _, p := range w.processes() {
			if p.node == node && !stopped[p.pid] {
				stopped[p.pid], more = true, true
				_ = syscall.Kill(p.pid, syscall.SIGSTOP)
			}
		}
	}
	if len(stopped) == 0 {
		w.t.Errorf("nothing of node %s lives", node)
	}
	w.happened("node %s was frozen: %d processes", node, len(stopped))
}

func (w *world) thaw(node string) {
	for _, p := range w.processes() {
		if p.node == node {
			_ = syscall.Kill(p.pid, syscall.SIGCONT)
		}
	}
}

// dump lets every process of the world print its stacks, those of jobs first: their agents keep what they say.
func (w *world) dump() {
	w.t.Helper()
	for _, agents := range []bool{false, true} {
		var asked []int
		for _, p := range w.processes() {
			if agents == (p.kind == agentKind || p.kind == headKind) {
				w.t.Logf("%s %d of node %s says where it is", p.kind, p.pid, p.node)
				_ = syscall.Kill(p.pid, syscall.SIGQUIT)
				_ = syscall.Kill(p.pid, syscall.SIGCONT)
				asked = append(asked, p.pid)
			}
		}
		memtest.Poll(2*time.Second, func() bool { // most end by it, and none says that it has printed all
			return !slices.ContainsFunc(asked, func(pid int) bool { return syscall.Kill(pid, 0) == nil })
		})
	}
	w.logs(64 << 10)
}

// logs are those that agents keep, of each the last bytes.
func (w *world) logs(most int) {
	_ = filepath.WalkDir(w.dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && strings.Contains(path, "/logs/") {
			if b, err := os.ReadFile(path); err == nil {
				w.t.Logf("--- %s\n%s", path, b[max(0, len(b)-most):])
			}
		}
		return nil
	})
}
