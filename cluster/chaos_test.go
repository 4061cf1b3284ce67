//go:build linux

package cluster

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/penstock-data/penstock/internal/etcdtest"
	"github.com/penstock-data/penstock/internal/hosttest"
)

// role is what a process of a test is: heads and nodes are processes of their own here, that can be killed.
type role struct {
	Head *HeadConfig
	Node *NodeConfig
	Addr string
	Join string
	Etcd string // folder of an external store
}

const roleEnv = "PENSTOCK_CLUSTER_TEST_ROLE"

// play is main of such a process: it says in a line when it is ready, and ends at SIGTERM.
func play(text string) error {
	var r role
	if err := json.Unmarshal([]byte(text), &r); err != nil {
		return err
	}
	os.Unsetenv(roleEnv)
	go func() { // the test has ended, however it did
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	log := slog.New(slog.NewTextHandler(os.Stderr, nil))
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	switch {
	case r.Head != nil:
		r.Head.Log = log
		h, err := StartHead(ctx, *r.Head)
		if err != nil {
			return err
		}
		fmt.Println("ready", h.Addr())
		select {
		case <-ctx.Done():
		case <-h.Done():
		}
		return h.Close()
	case r.Node != nil:
		r.Node.Log = log
		n, err := Join(ctx, r.Addr, r.Join, *r.Node)
		if err != nil {
			return err
		}
		fmt.Println("ready", n.ID())
		select {
		case <-ctx.Done():
		case <-n.Done():
		}
		return n.Close()
	}
	certs, scheme := "", "etcd"
	if _, err := os.Stat(filepath.Join(r.Etcd, "cert.pem")); err == nil {
		certs, scheme = r.Etcd, "etcds"
	}
	e, err := etcdtest.Start(ctx, filepath.Join(r.Etcd, "data"), "", certs)
	if err != nil {
		return err
	}
	defer e.Close()
	fmt.Printf("ready %s://%s\n", scheme, e.Clients[0].Addr())
	<-ctx.Done()
	return nil
}

// actor is such a process, seen from the test.
type actor struct {
	t     *testing.T
	cmd   *exec.Cmd
	ready string
	ended chan struct{}

	mu   sync.Mutex
	said []byte        // its log
	more chan struct{} // closed when it says more
}

// Write takes what it logs.
func (a *actor) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.said = append(a.said, p...)
	close(a.more)
	a.more = make(chan struct{})
	if testing.Verbose() {
		os.Stderr.Write(p)
	}
	return len(p), nil
}

// says waits until it has logged something.
func (a *actor) says(what string) {
	a.t.Helper()
	late := time.After(30 * time.Second)
	for {
		a.mu.Lock()
		said, more := bytes.Contains(a.said, []byte(what)), a.more
		a.mu.Unlock()
		if said {
			return
		}
		select {
		case <-more:
		case <-late:
			a.t.Fatalf("%s does not say %q", a.ready, what)
		}
	}
}

// hasSaid looks whether it has logged something by now.
func (a *actor) hasSaid(what string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return bytes.Contains(a.said, []byte(what))
}

func (a *actor) signal(s syscall.Signal) { _ = a.cmd.Process.Signal(s) }

func (a *actor) kill() {
	a.signal(syscall.SIGKILL)
	<-a.ended
}

// act starts one, by a command before it (ip netns exec NAME), and waits until it is ready.
func act(t *testing.T, r role, before ...string) *actor {
	t.Helper()
	text, err := json.Marshal(r)
	must(t, err)
	exe, err := os.Executable()
	must(t, err)
	argv := append(before, exe)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), roleEnv+"="+string(text))
	a := &actor{t: t, cmd: cmd, ended: make(chan struct{}), more: make(chan struct{})}
	cmd.Stderr = a
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // where the test dies
	out, err := cmd.StdoutPipe()
	must(t, err)
	_, err = cmd.StdinPipe() // its end tells the process that we are gone
	must(t, err)
	must(t, cmd.Start())
	lines := make(chan string, 1)
	go func() {
		s := bufio.NewScanner(out)
		for s.Scan() {
			if rest, ok := strings.CutPrefix(s.Text(), "ready "); ok {
				lines <- rest
			}
		}
		cmd.Wait()
		close(a.ended)
	}()
	t.Cleanup(func() {
		a.signal(syscall.SIGCONT)
		a.signal(syscall.SIGTERM)
		select {
		case <-a.ended:
		case <-time.After(20 * time.Second):
			t.Errorf("%v does not end", argv)
			a.signal(syscall.SIGQUIT) // where it is
			select {
			case <-a.ended:
			case <-time.After(5 * time.Second):
				a.kill()
			}
		}
		if t.Failed() && !testing.Verbose() {
			t.Logf("%v (%s) said:\n%s", argv, a.ready, a.said)
		}
	})
	select {
	case a.ready = <-lines:
	case <-a.ended:
		t.Fatalf("%v ended before it was ready", r)
	case <-time.After(30 * time.Second):
		t.Fatalf("%v is not ready", r)
	}
	return a
}

// chaos is a cluster of such processes, and a folder in which jobs commit what they did, create-only.
type chaos struct {
	testCluster
	h       *actor
	nodes   map[string]*actor
	results string
	jobs    []string
}

func newChaos(t *testing.T, listen string, store ...string) *chaos {
	t.Helper()
	return leased(t, 2*time.Second, listen, store...)
}

// leased is newChaos with a lease of nodes.
func leased(t *testing.T, lease time.Duration, listen string, store ...string) *chaos {
	t.Helper()
	c := &chaos{nodes: map[string]*actor{}, results: t.TempDir()}
	c.t, c.dir = t, shortDir(t)
	c.cfg = HeadConfig{Dir: filepath.Join(c.dir, "head"), Listen: listen, Lease: lease, Store: StoreConfig{Address: strings.Join(store, ",")}}
	c.startHead()
	return c
}

func (c *chaos) startHead() {
	c.t.Helper()
	c.h = act(c.t, role{Head: &c.cfg})
	c.addr, c.cfg.Listen = c.h.ready, c.h.ready
	var err error
	c.client, err = DialLocal(c.ctx(), c.cfg.Dir)
	must(c.t, err)
	client := c.client
	c.t.Cleanup(func() { client.Close() })
}

// start starts a node, for the first time or again.
func (c *chaos) start(name string, before ...string) *actor {
	c.t.Helper()
	cfg := c.node(name, Resources{CPUs: 2, Memory: 1 << 30})
	cfg.Grace = time.Second
	r := role{Node: &cfg, Addr: c.addr}
	if c.nodes[name] == nil {
		var err error
		r.Join, err = c.client.CreateJoinToken(c.ctx(), name, 0)
		must(c.t, err)
	}
	a := act(c.t, r, before...)
	c.nodes[name] = a
	return a
}

// work submits n jobs that take a while, and then write their result, if nobody has.
func (c *chaos) work(n, steps int) {
	for range n {
		name := fmt.Sprintf("job%d", len(c.jobs))
		j := sh(fmt.Sprintf(`echo "$PENSTOCK_NODE $$" >> %[1]s/%[2]s.ran; n=0; while [ $n -lt %[3]d ]; do sleep 0.05; n=$((n+1)); done; ( set -C; echo %[2]s > %[1]s/%[2]s ) 2>/dev/null; exit 0`, c.results, name, steps))
		j.Name, j.ID = name, name
		c.jobs = append(c.jobs, c.submit(j))
	}
}

// ran is where the attempts of a job ran: node and process id.
func (c *chaos) ran(job int) (nodes []string, pids []int) {
	raw, _ := os.ReadFile(filepath.Join(c.results, fmt.Sprintf("job%d.ran", job)))
	for line := range strings.Lines(string(raw)) {
		f := strings.Fields(line)
		if len(f) == 2 {
			pid, _ := strconv.Atoi(f[1])
			nodes, pids = append(nodes, f[0]), append(pids, pid)
		}
	}
	return nodes, pids
}

// begun waits until a job runs, and says where.
func (c *chaos) begun(job int) (node string, pid int) {
	c.t.Helper()
	c.until(c.jobs[job], func(s *JobStatus) bool {
		nodes, _ := c.ran(job)
		return s.State == "running" && len(nodes) > 0
	})
	nodes, pids := c.ran(job)
	return nodes[len(nodes)-1], pids[len(pids)-1]
}

// all waits until every job has ended well, and its result is there; most is how many attempts one may have taken, 0: any number.
func (c *chaos) all(most int64) {
	c.t.Helper()
	for i, id := range c.jobs {
		s := c.over(id)
		raw, err := os.ReadFile(filepath.Join(c.results, fmt.Sprintf("job%d", i)))
		if s.State != "finished" || err != nil || string(raw) != fmt.Sprintf("job%d\n", i) || most > 0 && s.Attempts > most {
			c.t.Errorf("%+v; result %q, %v", s, raw, err)
		}
	}
	for i := range c.jobs { // nothing is left of any attempt
		_, pids := c.ran(i)
		for _, pid := range pids {
			c.gone(pid)
		}
	}
}

// gone waits for a process of a job to be gone.
func (c *chaos) gone(pid int) {
	c.t.Helper()
	fd, err := unix.PidfdOpen(pid, 0)
	if err != nil {
		return
	}
	defer unix.Close(fd)
	raw, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	if err != nil || !strings.Contains(string(raw), c.results) {
		return // it is gone, and another has its number
	}
	if !readable(fd, 15*time.Second) {
		c.t.Errorf("process %d of a job is left: %s", pid, raw)
	}
}

// readable waits until a descriptor has something to read: of a pidfd, the end of its process.
func readable(fd int, most time.Duration) bool {
	for end := time.Now().Add(most); ; {
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(max(time.Until(end), 0)/time.Millisecond))
		if err != unix.EINTR {
			return n > 0
		}
	}
}

// changes counts what happens to the files in a folder. Close it.
type changes struct {
	fd  int
	buf [4096]byte
	n   int // seen, and not waited for
}

func watch(dir string) (*changes, error) {
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, err
	}
	if _, err := unix.InotifyAddWatch(fd, dir, unix.IN_CREATE|unix.IN_MODIFY|unix.IN_MOVED_TO); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &changes{fd: fd}, nil
}

// wait until n more have happened, for up to most.
func (x *changes) wait(n int, most time.Duration) bool {
	for end := time.Now().Add(most); x.n < n; {
		if !readable(x.fd, time.Until(end)) {
			return false
		}
		k, err := unix.Read(x.fd, x.buf[:])
		for at := 0; err == nil && at < k; x.n++ {
			at += unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(x.buf[at+12:])) // the length of the name
		}
	}
	x.n -= n
	return true
}

func (x *changes) close() { unix.Close(x.fd) }

func (c *chaos) state(node string) string {
	s, err := c.client.Status(c.ctx())
	must(c.t, err)
	for _, n := range s.Nodes {
		if n.Name == node || n.ID == node {
			return n.State
		}
	}
	return ""
}

// nodeIs waits for a node to stand so.
func (c *chaos) nodeIs(node, state string) {
	c.t.Helper()
	err := c.client.Watch(c.ctx(), true, func(s *Status) error {
		for _, n := range s.Nodes {
			if (n.Name == node || n.ID == node) && n.State == state {
				return errEnough
			}
		}
		return nil
	})
	if err != errEnough {
		c.t.Fatalf("node %s is %s, not %s: %v", node, c.state(node), state, err)
	}
}

// nameOf a node's id, of the nodes that were started as "a", "b", in this order.
func nameOf(id string) string { return string(rune('a' + id[1] - '1')) }

// A node is killed in the middle of its jobs: they run elsewhere; it comes back as the node it was.
func TestNodeKilled(t *testing.T) {
	c := newChaos(t, free(t))
	c.start("a")
	c.start("b")
	c.work(4, 60)
	node, _ := c.begun(0)
	began := time.Now()
	c.nodes[nameOf(node)].kill()
	c.nodeIs(node, "lost")
	t.Logf("lost after %v, with a lease of 2 s", time.Since(began).Round(10*time.Millisecond))
	again := c.start(nameOf(node))
	if again.ready != node {
		t.Errorf("node %s came back as %s", node, again.ready)
	}
	c.all(0)
}

// The head is killed in the middle: jobs run on, none runs twice.
func TestHeadKilled(t *testing.T) {
	c := newChaos(t, free(t))
	c.start("a")
	c.start("b")
	c.work(6, 60) // two of them wait
	c.begun(0)
	c.h.kill()
	began := time.Now()
	c.startHead()
	c.nodeIs("a", "alive")
	c.nodeIs("b", "alive")
	t.Logf("nodes are back after %v", time.Since(began).Round(10*time.Millisecond))
	c.all(1)
}

// The head stands still for longer than the leases: nodes are not taken for lost.
func TestHeadFrozen(t *testing.T) {
	c := newChaos(t, free(t))
	c.start("a")
	c.start("b")
	c.work(4, 80)
	c.begun(0)
	c.h.signal(syscall.SIGSTOP)
	for _, n := range c.nodes {
		n.says("has not answered for 2s") // a lease
	}
	c.h.signal(syscall.SIGCONT)
	c.all(1)
}

// A node stands still for longer than its lease, and comes back: what it still runs is ended, the job has run elsewhere.
func TestNodeFrozen(t *testing.T) {
	c := newChaos(t, free(t))
	c.start("a")
	c.work(1, 100)
	node, pid := c.begun(0)
	c.start("b")
	c.nodes["a"].signal(syscall.SIGSTOP)
	c.nodeIs(node, "lost")
	c.until(c.jobs[0], func(s *JobStatus) bool { return s.State == "running" && s.Attempts == 2 })
	c.nodes["a"].signal(syscall.SIGCONT)
	c.nodeIs(node, "alive")
	c.gone(pid)
	c.all(2)
}

// A process of a job is killed: it is counted as a crash, and starts again.
func TestWorkerKilled(t *testing.T) {
	c := newChaos(t, free(t))
	c.start("a")
	c.work(1, 60)
	_, pid := c.begun(0)
	must(t, syscall.Kill(pid, syscall.SIGKILL))
	c.all(2)
	js, err := c.client.Jobs(c.ctx(), c.jobs[0])
	must(t, err)
	if js[0].Failures["worker"] != 1 {
		t.Errorf("%+v", js[0])
	}
}

// A job that crashes more often than its budget fails with its cause; the cluster goes on.
func TestExhausted(t *testing.T) {
	c := newChaos(t, free(t))
	c.start("a")
	j := sh("echo poison; kill -9 $$")
	j.Crashes = 1
	id := c.submit(j)
	if s := c.over(id); s.State != "failed" || s.Attempts != 2 || !strings.Contains(s.Why, "signal 9") || !strings.Contains(s.Why, "poison") {
		t.Errorf("%+v", s)
	}
	c.work(1, 1)
	c.all(1)
}

// All nodes are killed: jobs wait, and say why; another node takes them.
func TestAllKilled(t *testing.T) {
	c := newChaos(t, free(t))
	c.start("a")
	c.start("b")
	c.work(3, 40)
	c.begun(0)
	c.nodes["a"].kill()
	c.nodes["b"].kill()
	c.nodeIs("a", "lost")
	c.nodeIs("b", "lost")
	s := c.until(c.jobs[0], func(s *JobStatus) bool { return strings.Contains(s.Why, "there are no nodes") })
	if s.Over() {
		t.Errorf("%+v", s)
	}
	c.start("c")
	c.all(0)
}

// The store stands still for longer than the leases: nodes are not taken for lost, jobs run on.
func TestStoreAway(t *testing.T) {
	dir := shortDir(t)
	etcd := act(t, role{Etcd: dir})
	c := newChaos(t, free(t), etcd.ready)
	c.start("a")
	c.start("b")
	away := 5 * time.Second // it takes so long until the head says it, of which leases have ended
	if os.Getenv("PENSTOCK_SOAK") != "" {
		away = 30 * time.Second
	}
	c.work(4, int(away/(50*time.Millisecond))/2)
	c.begun(0)
	etcd.signal(syscall.SIGSTOP)
	over := time.After(away)
	c.h.says("leases are not renewed")
	<-over
	etcd.signal(syscall.SIGCONT)
	c.all(1)
}

// Nodes, the head and workers are killed at random; every job ends well, that on several nodes too.
func TestRandomKills(t *testing.T) {
	seeds := 1
	if os.Getenv("PENSTOCK_SOAK") != "" {
		seeds = 200
	}
	for seed := range seeds {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			hosttest.Alone(t)
			r := rand.New(rand.NewPCG(uint64(seed), 3))
			c := newChaos(t, free(t))
			names := []string{"a", "b", "c"}
			for _, n := range names {
				c.start(n)
			}
			x, err := watch(c.results)
			must(t, err)
			defer x.close()
			c.work(8, 20+r.IntN(30))
			gang := c.gang(2 + r.IntN(2))
			for kills := 0; kills < 4; kills++ {
				x.wait(1+r.IntN(5), 3*time.Second) // jobs that begin and end
				switch n := names[r.IntN(3)]; r.IntN(4) {
				case 0:
					c.h.kill()
					c.startHead()
				case 1:
					if _, pids := c.ran(r.IntN(8)); len(pids) == 0 || syscall.Kill(pids[len(pids)-1], syscall.SIGKILL) != nil {
						kills-- // it has not begun, or has ended
					}
				case 2:
					c.nodes[n].kill()
					c.start(n)
				case 3:
					c.nodes[n].signal(syscall.SIGSTOP)
					if r.IntN(2) == 0 {
						c.nodeIs(n, "lost")
					} else {
						x.wait(1+r.IntN(3), 3*time.Second) // of the others
					}
					c.nodes[n].signal(syscall.SIGCONT)
				}
			}
			c.letGo()
			c.finished(gang, 0)
			c.membersGone()
			c.all(0)
		})
	}
}
