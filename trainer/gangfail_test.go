package trainer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/cluster/gang/gangtest"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/shard/feed"
	"github.com/penstock-data/penstock/trainer/internal/wire"
	"github.com/penstock-data/penstock/trainer/launch"
	"github.com/penstock-data/penstock/trainer/store"
)

// crew is a gang of processes.
type crew struct {
	t    *testing.T
	k    conf
	cmds []*exec.Cmd
	outs []*bytes.Buffer
	ends []chan error
}

// newCrew starts a gang of n processes, and one for each data node. They are killed with the test. exes are their files; none: this binary's.
func newCrew(t *testing.T, k conf, n int, exes ...string) *crew {
	t.Helper()
	gs, dirs := gangtest.WithData(t, n+k.DataNodes, k.DataNodes)
	c := &crew{t: t, k: k}
	for i, g := range gs {
		g.Close() // the process listens there
		exe := os.Args[0]
		if exes != nil {
			exe = exes[i]
		}
		cmd, out := exec.Command(exe), &bytes.Buffer{}
		cmd.Env = append(append(os.Environ(), k.env()...), "TRAINER_TEST=member", gang.EnvDir+"="+dirs[i])
		cmd.Stdout, cmd.Stderr, cmd.WaitDelay = out, out, 5*time.Second
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		ended := make(chan error, 1)
		go func() { ended <- cmd.Wait() }()
		c.cmds, c.outs, c.ends = append(c.cmds, cmd), append(c.outs, out), append(c.ends, ended)
	}
	t.Cleanup(func() {
		for i, cmd := range c.cmds {
			_ = cmd.Process.Kill()
			if t.Failed() {
				t.Logf("--- node %d\n%s", i, c.outs[i])
			}
		}
	})
	return c
}

// code waits for the end of a member: its exit code, -1 for a signal.
func (c *crew) code(node int, within time.Duration) int {
	c.t.Helper()
	select {
	case <-c.ends[node]:
	case <-time.After(within):
		c.t.Fatalf("node %d has not ended after %v", node, within)
	}
	return c.cmds[node].ProcessState.ExitCode()
}

// until waits for a file of the run's to be there.
func (c *crew) until(pattern string) {
	c.t.Helper()
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if m, _ := filepath.Glob(pattern); len(m) > 0 {
			return
		}
		if time.Now().After(end) {
			c.t.Fatalf("%s does not come", pattern)
		}
	}
}

// checkpoint is a pattern of the n-th checkpoint of the run.
func (k conf) checkpoint(n int) string {
	return filepath.Join(k.Storage, k.Name, "checkpoints", fmt.Sprintf("%06d.json", n))
}

func (k conf) kill(t *testing.T, kind string, s syscall.Signal) {
	t.Helper()
	all := pids(k.Out, kind)
	if len(all) == 0 {
		t.Fatalf("no %s lives", kind)
	}
	for _, pid := range all {
		if err := syscall.Kill(pid, s); err != nil {
			t.Fatal(err)
		}
	}
}

// allGone waits for the processes of a member that was killed: the kernel ends them.
func (k conf) allGone(t *testing.T) {
	t.Helper()
	left := func() []int { return append(pids(k.Out, "worker"), pids(k.Out, "data")...) }
	if !memtest.Poll(5*time.Second, func() bool { return len(left()) == 0 }) {
		t.Errorf("processes that are left: %v", left())
	}
}

// Whichever process is killed: the run goes on, in the same gang or the next, with the losses of one that was left alone, and nothing is left running.
func TestGangKilled(t *testing.T) {
	for _, c := range []struct {
		victim string
		signal syscall.Signal
		again  bool // a new gang goes on
	}{
		{"rank3", syscall.SIGKILL, false},
		{"rank0", syscall.SIGKILL, false},
		{"node1", syscall.SIGKILL, false}, // data processes
		{"node0", syscall.SIGKILL, false},
		{"member1", syscall.SIGKILL, true},
		{"member0", syscall.SIGKILL, true},
		{"member1", syscall.SIGSTOP, true},
	} {
		async := rand.IntN(2) == 0
		t.Run(fmt.Sprintf("%s %s, async %v", c.victim, c.signal, async), func(t *testing.T) {
			k := newConf(t, "killed")
			k.Workers, k.DataProcess, k.SaveAll, k.StepMS, k.Async = 4, true, true, 5, async
			k.outlives(t, c.victim, c.signal, c.again, onOne(t, 4))
		})
	}
}

// outlives kills a process of a run on two nodes after its second checkpoint, and wants the outcome of one that was left alone: in the same gang, or in a new one (again).
func (k conf) outlives(t *testing.T, victim string, signal syscall.Signal, again bool, want outcome) {
	t.Helper()
	m := newCrew(t, k, 2)
	m.until(k.checkpoint(2))
	began := time.Now()
	k.kill(t, victim, signal)
	if again {
		killed := int(victim[len(victim)-1] - '0')
		for node := range m.cmds {
			if node == killed {
				continue
			}
			if code := m.code(node, 25*time.Second); code != 75 || !strings.Contains(m.outs[node].String(), "RESULT preempted") || !strings.Contains(m.outs[node].String(), "is lost") {
				t.Errorf("node %d: exit code %d", node, code)
			}
			t.Logf("node %d ended %v after the loss", node, time.Since(began))
		}
		_ = m.cmds[killed].Process.Kill()
		m.code(killed, time.Second)
		k.allGone(t)
		k.Resume = true
		m = newCrew(t, k, 2)
	}
	for node := range m.cmds {
		if code := m.code(node, 30*time.Second); code != 0 || !strings.Contains(m.outs[node].String(), "RESULT finished") {
			t.Errorf("node %d: exit code %d", node, code)
		}
	}
	if !strings.Contains(m.outs[0].String(), "attempt=2") {
		t.Error("there was no second attempt")
	}
	sameLedger(t, k.Out)
	sameOutcome(t, outcomeOf(t, k, k.Storage), want)
	kept, _ := filepath.Glob(filepath.Join(os.TempDir(), keptPrefix+"*")) // of a report that was not committed when its node's leader was lost
	for _, dir := range kept {
		os.RemoveAll(dir)
	}
	if len(kept) > 0 && !(k.Async && again) {
		t.Errorf("files are kept: %v", kept)
	}
	nothingLeft(t, k)
}

// noticed runs an attempt on so many nodes, and notices it at one of them once all ranks have made a step, by which all end as preempted; at -1 none does, and they finish.
func (k conf) noticed(t *testing.T, attempt, nodes, at int) *crew {
	t.Helper()
	m := newCrew(t, k, nodes)
	want, state := 0, "RESULT finished"
	if at >= 0 {
		want, state = 75, "RESULT preempted"
		for r := range k.Workers {
			m.until(filepath.Join(k.Out, fmt.Sprintf("first-%d-%d", attempt, r)))
		}
		if err := m.cmds[at].Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
	}
	for node := range m.cmds {
		if got := m.code(node, 30*time.Second); got != want || !strings.Contains(m.outs[node].String(), state) {
			t.Errorf("%d workers, node %d: exit code %d", k.Workers, node, got)
		}
	}
	return m
}

// A notice at one member is a notice for all: they save after the same step, and end as preempted. The run goes on with other numbers of nodes and workers.
func TestGangNotice(t *testing.T) {
	k := newConf(t, "notice")
	k.DataProcess, k.SaveAll, k.StepMS = true, true, 8
	for i, c := range []struct{ workers, nodes, at int }{{4, 2, 1}, {3, 3, 0}, {2, 1, 0}, {4, 2, -1}} {
		k.Workers, k.Resume = c.workers, i > 0
		m := k.noticed(t, i+1, c.nodes, c.at)
		if c.at > 0 && !strings.Contains(m.outs[0].String(), fmt.Sprintf("terminated at node %d", c.at)) {
			t.Error("the notice does not say where it came")
		}
		run, err := store.Open(t.Context(), k.Storage, k.Name)
		if err != nil {
			t.Fatal(err)
		}
		last, err := run.Latest(t.Context())
		if err != nil || last.World != c.workers || len(last.Files) < c.workers {
			t.Errorf("%+v, %v", last, err)
		}
		run.Close()
	}
	sameLedger(t, k.Out)
	nothingLeft(t, k)
}

// A worker that fails on another node is what it is on this one: the cause, with the last lines of its log.
func TestGangWorkerFails(t *testing.T) {
	for _, c := range []struct {
		fail string
		code fault.Code
		want []string
	}{
		{"exit", fault.UserCode, []string{"rank 3", "exit code 3", "it is broken", "on node 1"}},
		{"panic", fault.UserCode, []string{"rank 3", "all is lost"}},
		{"hang", fault.Stalled, []string{"rank 3 gave no sign"}},
		{"memory", fault.Exhausted, []string{"rank 3", "memory"}},
	} {
		t.Run(c.fail, func(t *testing.T) {
			k := newConf(t, "fails")
			k.Workers, k.Fail, k.FailRank = 4, c.fail, 3
			all, errs := together(t, 2, func(g *gang.Gang, dir string) Config {
				cfg := k.quiet(t, g, dir)
				cfg.Failures = Failures{Worker: -1, Hang: -1, Memory: -1}
				if cfg.HangTimeout = 0; c.fail == "hang" {
					cfg.HangTimeout = 3 * time.Second
				}
				if c.fail == "memory" {
					cfg.Resources.Memory = 256 << 20
				}
				return cfg
			})
			for i, err := range errs {
				if fault.CodeOf(err) != c.code || all[i] == nil || all[i].State != store.Failed {
					t.Fatalf("node %d: %v, %+v", i, err, all[i])
				}
				for _, w := range c.want {
					if !strings.Contains(err.Error(), w) {
						t.Errorf("node %d: %v: want %q", i, err, w)
					}
				}
			}
			if f := all[0].Failures; len(f) != 1 || f[0].Rank != 3 {
				t.Errorf("%+v", f)
			}
			if b, err := os.ReadFile(filepath.Join(k.Out, "logs1", "attempt-1", "rank-3.log")); err != nil || c.fail == "exit" && !bytes.Contains(b, []byte("it is broken")) {
				t.Errorf("%s, %v", b, err)
			}
			if c.fail == "hang" {
				if b, err := os.ReadFile(filepath.Join(k.Out, "logs0", "attempt-1", "rank-3.stacks")); err != nil || !bytes.Contains(b, []byte("conf.fail(")) {
					t.Errorf("%.300s, %v", b, err)
				}
			}
			nothingLeft(t, k)
		})
	}
}

// A worker on another node that the controller refuses does not make a run finished.
func TestGangRefusedWorker(t *testing.T) {
	for what, want := range map[string]string{"version": "version 99", "rank": "no rank ", "same": "on node 0 of the job, not on node 1", "language": "no message"} {
		t.Run(what, func(t *testing.T) {
			k := newConf(t, "refused")
			k.Workers = 2
			_, errs := together(t, 2, func(g *gang.Gang, dir string) Config {
				cfg := k.quiet(t, g, dir)
				cfg.Data, cfg.Env = nil, []string{"TRAINER_TEST=stranger", "STRANGER=" + what, "STRANGER_RANK=1"}
				cfg.StopTimeout = time.Second
				return cfg
			})
			for _, err := range errs {
				if err == nil || !strings.Contains(err.Error(), "it was refused, and ended all the same with exit code 0") || !strings.Contains(err.Error(), want) {
					t.Errorf("%v, want %q", err, want)
				}
			}
		})
	}
}

// What members cannot do together is refused on all of them, and the name of the run is free again.
func TestGangBadInput(t *testing.T) {
	for name, c := range map[string]struct {
		change func(cfg *Config, node int)
		code   fault.Code
		want   string
	}{
		"folder":    {func(cfg *Config, _ int) { cfg.SharedStorage = false }, fault.Invalid, "is a folder of one machine"},
		"elsewhere": {func(cfg *Config, node int) { cfg.Storage += strings.Repeat("x", 2*node) }, fault.Invalid, "another storage than node 0"},
		"workers":   {func(cfg *Config, _ int) { cfg.Workers = 3 }, fault.Invalid, "3 workers on 2 nodes"},
		"number":    {func(cfg *Config, node int) { cfg.Workers = 2 + 2*node }, fault.Invalid, `another number of workers than node 0: "4" there, "2" here`},
		"spec":      {func(cfg *Config, node int) { cfg.Spec = fmt.Sprintf("a: 1\nb: %d\nc: 2\n", node) }, fault.Invalid, `"b: 1" there, "b: 0" here`},
		"env":       {func(cfg *Config, node int) { cfg.Env = append(cfg.Env, fmt.Sprintf("A=%d", node)) }, fault.Invalid, "another environment"},
		"program":   {func(cfg *Config, _ int) { cfg.Dir = "none" }, fault.NotFound, "is not there"},
	} {
		t.Run(name, func(t *testing.T) {
			k := newConf(t, "bad")
			all, errs := together(t, 2, func(g *gang.Gang, dir string) Config {
				cfg := k.quiet(t, g, dir)
				cfg.Logs = filepath.Join(k.Out, "logs")
				c.change(&cfg, g.Node())
				return cfg
			})
			for i, err := range errs {
				if all[i] != nil || fault.CodeOf(err) != c.code || !strings.Contains(err.Error(), c.want) {
					t.Errorf("node %d: %v, %v, want %q", i, all[i], err, c.want)
				}
			}
			if left, _ := filepath.Glob(filepath.Join(k.Storage, "*")); len(left) > 0 {
				t.Errorf("the name is taken: %v", left)
			}
			nothingLeft(t, k)
		})
	}
}

// A node on which another program was started, or another build of it, is refused before anything begins.
func TestGangRefusedProgram(t *testing.T) {
	binary, err := os.ReadFile(os.Args[0])
	if err != nil {
		t.Fatal(err)
	}
	other := filepath.Join(t.TempDir(), filepath.Base(os.Args[0]))
	if err := os.WriteFile(other, append(binary, 0), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, loop := range []string{"goroutines", "processes"} {
		k := newConf(t, "refused")
		k.Loop = loop
		m := newCrew(t, k, 2, os.Args[0], other)
		for node := range 2 {
			if code := m.code(node, 30*time.Second); code == 0 {
				t.Errorf("%q: node %d ended with exit code %d", loop, node, code)
			}
			if said := m.outs[node].String(); !strings.Contains(said, "node 1 (") || !strings.Contains(said, `was started with another program than node 0: "xxh3:`) {
				t.Errorf("%q: node %d says %s", loop, node, said)
			}
		}
		if left, _ := filepath.Glob(filepath.Join(k.Storage, "*")); len(left) > 0 {
			t.Errorf("%q: the name is taken: %v", loop, left)
		}
	}
}

// Files that were taken over, and are in no checkpoint, are kept on the node where they are.
func TestGangAsyncKept(t *testing.T) {
	k := newConf(t, "kept")
	k.Workers, k.Async, k.SaveAll, k.SameFile = 2, true, true, true
	all, errs := together(t, 2, func(g *gang.Gang, dir string) Config { return k.quiet(t, g, dir) })
	kept, err := filepath.Glob(filepath.Join(os.TempDir(), keptPrefix+"kept-report-1-*"))
	if err != nil || len(kept) != 2 {
		t.Fatalf("%v, %v, %v", kept, err, errs)
	}
	for i, err := range errs {
		if err == nil || !strings.Contains(err.Error(), "ranks 0 and 1 both gave a file") || all[i].State != store.Failed || !strings.Contains(err.Error(), "on node 1") {
			t.Errorf("node %d: %v", i, err)
		}
		for _, dir := range kept {
			if !strings.Contains(err.Error(), dir) {
				t.Errorf("%v does not name %s", err, dir)
			}
		}
	}
	var files []string
	for _, dir := range kept {
		m, _ := filepath.Glob(filepath.Join(dir, "rank-*", "same"))
		files = append(files, m...)
	}
	slices.Sort(files)
	if len(files) != 2 {
		t.Error(files)
	}
}

// The end of a member's context ends the run on all of them.
func TestGangCancel(t *testing.T) {
	for node := range 2 {
		k := newConf(t, fmt.Sprintf("cancel%d", node))
		k.StepMS = 20
		gs, dirs := gangtest.WithFolders(t, 2)
		ctxs := []context.Context{t.Context(), t.Context()}
		var cancel context.CancelFunc
		ctxs[node], cancel = context.WithCancel(t.Context())
		defer cancel()
		results := make(chan error, 2)
		for i, g := range gs {
			cfg := k.quiet(t, g, dirs[i])
			cfg.Events.Committed = func(store.Manifest) { cancel() }
			go func() {
				res, err := Command([]string{os.Args[0]}, cfg).Fit(ctxs[i])
				if res == nil || res.State != store.Failed || res.Checkpoint == 0 {
					err = fmt.Errorf("node %d: %+v, %w", i, res, err)
				}
				results <- err
			}()
		}
		for range 2 {
			if err := <-results; fault.CodeOf(err) != fault.Canceled {
				t.Error(err)
			}
		}
		nothingLeft(t, k)
	}
}

func init() {
	programs["sleeper"] = func() error {
		if err := os.WriteFile(filepath.Join(os.Getenv("OUT"), fmt.Sprintf("pid-worker-%d", os.Getpid())), nil, 0o600); err != nil {
			return err
		}
		time.Sleep(time.Hour)
		return nil
	}
}

// broken is a launcher that starts nothing, but waits until others have.
type broken struct{ out string }

func (b broken) Launch(context.Context, []launch.Worker) (launch.Group, error) {
	for end := time.Now().Add(20 * time.Second); len(pids(b.out, "worker")) < 2 && time.Now().Before(end); time.Sleep(time.Millisecond) {
	}
	return nil, fault.New(fault.Denied, "it is full here")
}

// Workers that cannot be started on one node are started on none.
func TestGangLaunch(t *testing.T) {
	for node := range 2 {
		k := newConf(t, "launch")
		k.Workers = 4
		all, errs := together(t, 2, func(g *gang.Gang, dir string) Config {
			cfg := k.quiet(t, g, dir)
			cfg.Env = []string{"TRAINER_TEST=sleeper", "OUT=" + k.Out}
			if g.Node() == node {
				cfg.Launcher = broken{k.Out}
			}
			return cfg
		})
		for i, err := range errs {
			if all[i] != nil || fault.CodeOf(err) != fault.Denied || !strings.Contains(err.Error(), "it is full here") || (node == 1) != strings.Contains(err.Error(), "node 1") {
				t.Errorf("node %d cannot, node %d: %+v, %v", node, i, all[i], err)
			}
		}
		nothingLeft(t, k)
	}
}

// slow is a launcher that takes its time, whatever becomes of ctx.
type slow struct{ entered, release chan struct{} }

func (s slow) Launch(context.Context, []launch.Worker) (launch.Group, error) {
	close(s.entered)
	<-s.release
	return launch.Processes(launch.Options{}).Launch(context.Background(), []launch.Worker{{Argv: []string{"/bin/sleep", "1000"}}})
}

// A hand whose controller is lost while workers are started ends them, too.
func TestHandEndsLaunching(t *testing.T) {
	dir, err := newTempFolder(socketBase())
	if err != nil {
		t.Fatal(err)
	}
	l, err := feed.Listen(filepath.Join(dir.path, "c"))
	if err != nil {
		t.Fatal(err)
	}
	near, far := net.Pipe()
	defer far.Close()
	s := slow{make(chan struct{}), make(chan struct{})}
	h := &hand{site: site{cfg: Config{Workers: 1}, launcher: s, sockets: dir}, line: newHandLine(near), listener: l, conns: map[net.Conn]bool{}, relays: map[teller]relayed{}}
	h.ctx, h.stop = context.WithCancelCause(t.Context())
	h.others.Go(func() {
		if err := h.launch(h.ctx, &wire.HandLaunch{Attempt: 1}); err != nil {
			t.Error(err)
		}
	})
	<-s.entered
	closed := make(chan error, 1)
	go func() { closed <- h.close() }()
	for over := false; !over; time.Sleep(time.Millisecond) {
		h.mu.Lock()
		over = h.conns == nil
		h.mu.Unlock()
	}
	close(s.release)
	select {
	case err := <-closed:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(10 * time.Second):
		h.group.Stop(0)
		t.Errorf("it waits for workers that nobody ends: %v", <-closed)
	}
}

// A hand that does not reach node 0 says so, as a run that can be started again: other nodes may.
func TestHandAlone(t *testing.T) {
	gs := gangtest.New(t, 2)
	gs[0].Close()
	cfg := Config{Name: "alone", Storage: t.TempDir(), SharedStorage: true, Workers: 2, Gang: gs[1], StartTimeout: 100 * time.Millisecond}
	res, err := Command([]string{"true"}, cfg).Fit(t.Context())
	if res != nil || fault.CodeOf(err) != fault.Canceled || !strings.Contains(err.Error(), "node 0 of the job") {
		t.Errorf("%+v, %v", res, err)
	}
}

// A run that its caller stops on a node whose node 0 does not answer any more is stopped, and not to be started again; one that loses node 0 by itself is.
func TestHandStopped(t *testing.T) {
	for _, stops := range []bool{true, false} {
		gs := gangtest.New(t, 2)
		storage := t.TempDir()
		run, err := store.Create(t.Context(), storage, store.Record{Name: "stopped", Workers: 2, Program: "test"})
		if err != nil {
			t.Fatal(err)
		}
		defer run.Close()
		hands, err := gs[0].Listen(serviceHand)
		if err != nil {
			t.Fatal(err)
		}
		defer hands.Close()
		feeders, err := gs[0].Listen(serviceFeeder)
		if err != nil {
			t.Fatal(err)
		}
		defer feeders.Close()
		ctx, stop := context.WithCancelCause(t.Context())
		defer stop(nil)
		go func() { // a controller that says welcome and no more
			conn, _, err := hands.Accept(t.Context())
			if err != nil {
				return
			}
			l := newHandLine(conn)
			defer l.close()
			_ = l.send(wire.ToHand{ID: 1, Welcome: &wire.HandWelcome{Run: "stopped", ID: run.Record().ID}})
			for {
				m, err := l.read.FromHand()
				if err != nil || m.Stopped != nil {
					return
				}
				if m.Answer != nil {
					if err := m.Answer.Error.Err(); err != nil {
						t.Error(err)
					}
					if !stops {
						return
					}
					stop(errors.New("enough"))
				}
			}
		}()
		res, err := Command([]string{"true"}, Config{Name: "stopped", Storage: storage, SharedStorage: true, Workers: 2, Gang: gs[1]}).Fit(ctx)
		state, text := store.Preempted, "node 0 of the job"
		if stops {
			state, text = store.Failed, "enough"
		}
		if res == nil || res.State != state || errors.Is(err, ErrPreempted) == stops || fault.CodeOf(err) != fault.Canceled || !strings.Contains(err.Error(), text) {
			t.Errorf("it stops (%v): %+v, %v", stops, res, err)
		}
	}
}
