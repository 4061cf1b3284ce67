//go:build linux

package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster"
	"github.com/penstock-data/penstock/internal/freeport"
	"github.com/penstock-data/penstock/internal/hosttest"
	"github.com/penstock-data/penstock/internal/memtest"
)

// chaosEnv is in the environment of every process of a world: WORLD/NODE. Its name lets agents pass it on.
const chaosEnv = "CHAOS_OF"

// world is a cluster of processes with leases of 2 s, and one job.
type world struct {
	t     *testing.T
	id    string
	dir   string
	rnd   *rand.Rand
	began time.Time
	late  time.Duration  // after which a job hangs
	wire  *hosttest.Wire // nil: all nodes are at 127.0.0.1
	etcd  *actor         // nil: in the head
	brief bool           // worldOptions.brief
	small string         // size of the file systems that the folders of nodes are on; "": they are folders

	addr, store string
	head        *actor
	client      *cluster.Client
	nodes       map[string]*actor // by name
	ids         map[string]string // of nodes, by name
	submission  string            // of the job
	job         *actor            // the command that follows it
	faults      []string          // that happened
}

// worldOptions say what a world is of beside a head.
type worldOptions struct {
	seed       uint64
	wire, etcd bool
	small      string
	limit      time.Duration
	brief      bool // the job may be over before what was drawn is done to it
}

func newWorld(t *testing.T, o worldOptions) *world {
	t.Helper()
	addr, err := freeport.Address()
	if err != nil {
		t.Fatal(err)
	}
	var wire *hosttest.Wire
	if o.wire {
		wire = hosttest.New(t)
		addr = wire.At(1) + ":0"
	} else {
		hosttest.Alone(t)
	}
	dir, err := os.MkdirTemp("", "pc") // short: sockets are in it
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, id: fmt.Sprintf("%d-%s", os.Getpid(), filepath.Base(dir)), dir: dir, rnd: rand.New(rand.NewPCG(o.seed, 7)), began: time.Now(), late: o.limit, small: o.small, brief: o.brief,
		wire: wire, addr: addr, submission: "job", nodes: map[string]*actor{}, ids: map[string]string{}}
	_ = t.TempDir() // those of the test go after its processes, which write there
	t.Cleanup(w.end)
	if o.etcd {
		w.etcd = w.start("-store", []string{"PENSTOCK_TEST_MAIN=etcd"}, nil, filepath.Join(dir, "etcd"))
		w.store = "etcd://" + strings.Fields(w.hear(w.etcd, "ready "))[1]
	}
	w.startHead()
	return w
}

// hear waits for a line that begins so.
func (w *world) hear(a *actor, begin string) (line string) {
	w.t.Helper()
	w.until(begin, func() bool {
		line = a.line(begin)
		if line == "" && a.over() {
			w.t.Fatalf("%v ended before it said %q:\n%s", a.cmd.Args, begin, a)
		}
		return line != ""
	})
	return line
}

func (w *world) startHead() {
	w.t.Helper()
	args := []string{"start", "--head", "--dir", filepath.Join(w.dir, "head"), "--listen", w.addr, "--lease", "2s", "--cpus", "0"}
	if w.store != "" {
		args = append(args, "--store", w.store)
	}
	w.head = w.start("-head", nil, nil, args...)
	w.addr = strings.Fields(w.hear(w.head, "  penstock join "))[2]
	if w.client != nil {
		w.client.Close()
	}
	var err error
	if w.client, err = cluster.DialLocal(w.t.Context(), filepath.Join(w.dir, "head")); err != nil {
		w.t.Fatal(err)
	}
}

// join starts a node, for the first time or again.
func (w *world) join(name string) {
	w.t.Helper()
	dir := filepath.Join(w.dir, name)
	args := []string{"join", w.addr, "--dir", dir, "--name", name, "--cpus", "2", "--gpus", "0"}
	var before []string
	if w.nodes[name] == nil {
		if w.small != "" {
			hosttest.Small(w.t, dir, w.small)
		}
		token, err := w.client.CreateJoinToken(w.t.Context(), name, 0)
		if err != nil {
			w.t.Fatal(err)
		}
		args = append(args, "--token", token)
		if w.wire != nil {
			w.wire.Plug(name)
		}
	}
	if w.wire != nil {
		before = w.wire.In(name)
	}
	a := w.start(name, nil, before, args...)
	id := strings.Fields(w.hear(a, "node "))[1]
	if was := w.ids[name]; was != "" && was != id {
		w.t.Errorf("node %s came back as %s", was, id)
	}
	w.nodes[name], w.ids[name] = a, id
}

// name of a node, by its id.
func (w *world) name(id string) string {
	for name, i := range w.ids {
		if i == id {
			return name
		}
	}
	w.t.Fatalf("there is no node %s", id)
	return ""
}

// until waits. Where that takes too long all processes say where they are, and the test fails.
func (w *world) until(what string, ok func() bool) {
	w.t.Helper()
	if !memtest.Poll(w.late-time.Since(w.began), ok) {
		s := w.status()
		w.dump()
		w.t.Fatalf("it hangs: no %q after %v; the job: %+v", what, w.late, s)
	}
}

// before waits for what must come before the job is over; false: it did not, where that may be (worldOptions.brief).
func (w *world) before(what string, ok func() bool) (came bool) {
	w.t.Helper()
	w.until(what, func() bool {
		over := w.job.over()
		if came = ok(); over && !came && !w.brief {
			w.t.Fatalf("the job was over before %q:\n%s", what, w.job)
		}
		return came || over
	})
	return came
}

// status is how the job stands; nothing while the head is away.
func (w *world) status() (s cluster.JobStatus) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	if js, err := w.client.Jobs(ctx, w.submission); err == nil && len(js) == 1 {
		s = js[0]
	}
	return s
}

// nodeIs waits for a node to stand so.
func (w *world) nodeIs(name, state string) {
	w.t.Helper()
	w.until("node "+name+" "+state, func() bool {
		ctx, cancel := context.WithTimeout(w.t.Context(), 5*time.Second)
		defer cancel()
		s, err := w.client.Status(ctx)
		return err == nil && slices.ContainsFunc(s.Nodes, func(n cluster.NodeStatus) bool { return n.Name == name && n.State == state })
	})
}

// again kills the agent of a node, which comes back.
func (w *world) again(node string) {
	w.t.Helper()
	w.nodes[node].kill()
	w.happened("the agent of node %s was killed", node)
	w.join(node)
}

func (w *world) headAgain() {
	w.t.Helper()
	w.head.kill()
	w.happened("the head was killed")
	w.startHead()
}

func (w *world) happened(format string, args ...any) {
	w.t.Helper()
	w.faults = append(w.faults, fmt.Sprintf(format, args...))
	w.t.Logf("%v: %s", time.Since(w.began).Round(10*time.Millisecond), w.faults[len(w.faults)-1])
}

// end ends the world. Everything ends when it is told to, and nothing of a job is left.
func (w *world) end() {
	if !w.t.Failed() && !memtest.Poll(10*time.Second, func() bool { return len(w.of("", "")) == 0 }) {
		w.t.Errorf("processes that are left: %+v", w.of("", ""))
		w.dump()
	}
	if w.client != nil {
		w.client.Close()
	}
	all := []*actor{w.head, w.etcd, w.job}
	for _, a := range w.nodes {
		all = append(all, a)
	}
	for _, a := range all {
		if a != nil {
			_ = a.cmd.Process.Signal(syscall.SIGCONT)
			_ = a.cmd.Process.Signal(syscall.SIGTERM)
		}
	}
	for _, a := range all {
		if a == nil {
			continue
		}
		select {
		case <-a.ended:
		case <-time.After(20 * time.Second):
			w.t.Errorf("%v does not end", a.cmd.Args)
			_ = a.cmd.Process.Signal(syscall.SIGQUIT)
			select {
			case <-a.ended:
			case <-time.After(2 * time.Second):
			}
			a.kill()
		}
		if w.t.Failed() {
			w.t.Logf("%v said:\n%s", a.cmd.Args[1:], a)
		}
	}
	for _, p := range w.processes() {
		_ = syscall.Kill(p.pid, syscall.SIGKILL)
	}
	if w.t.Failed() {
		w.logs(8 << 10)
	}
	memtest.Poll(time.Second, func() bool { return os.RemoveAll(w.dir) == nil }) // a process that was killed may still have files
}

// fill takes all that is left in dir, and returns what gives it back.
func (w *world) fill(dir string) (free func()) {
	w.t.Helper()
	free = hosttest.Fill(w.t, dir)
	w.happened("%s is full", filepath.Base(dir))
	return free
}
