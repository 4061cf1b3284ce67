//go:build linux

package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"go.etcd.io/etcd/server/v3/embed"

	"github.com/penstock-data/penstock/cluster"
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

// chaosEnv is in the environment of every process of a world: WORLD/NODE. Its name lets agents pass it on.
const chaosEnv = "CHAOS_OF"

// world is a cluster of processes with leases of 2 s, and one job.
type world struct {
	t     *testing.T
	id    string
	dir   string
	rnd   *rand.Rand
	began time.Time
	late  time.Duration // after which a job hangs
	wire  *wire         // nil: all nodes are at 127.0.0.1
	etcd  *actor        // nil: in the head
	small string        // size of the file systems that the folders of nodes are on; "": they are folders

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
}

func newWorld(t *testing.T, o worldOptions) *world {
	t.Helper()
	dir, err := os.MkdirTemp("", "pc") // short: sockets are in it
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, id: fmt.Sprintf("%d-%s", os.Getpid(), filepath.Base(dir)), dir: dir, rnd: rand.New(rand.NewPCG(o.seed, 7)), began: time.Now(), late: o.limit, small: o.small,
		addr: "127.0.0.1:0", submission: "job", nodes: map[string]*actor{}, ids: map[string]string{}}
	t.Cleanup(w.end)
	if o.wire {
		w.wire = newWire(t)
		w.addr = w.wire.at(1) + ":0"
	}
	if o.etcd {
		w.etcd = w.start("-store", []string{"PENSTOCK_TEST_MAIN=etcd"}, nil, filepath.Join(dir, "etcd"))
		w.store = "etcd://" + strings.Fields(w.hear(w.etcd, "ready "))[1]
	}
	w.startHead()
	return w
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
			small(w.t, dir, w.small)
		}
		token, err := w.client.CreateJoinToken(w.t.Context(), name, 0)
		if err != nil {
			w.t.Fatal(err)
		}
		args = append(args, "--token", token)
		if w.wire != nil {
			w.wire.plug(name)
		}
	}
	if w.wire != nil {
		before = []string{"ip", "netns", "exec", w.wire.space(name)}
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
	for !ok() {
		if time.Since(w.began) > w.late {
			s := w.status()
			w.dump()
			w.t.Fatalf("it hangs: no %q after %v; the job: %+v", what, w.late, s)
		}
		time.Sleep(5 * time.Millisecond) // files and the system say nothing by themselves
	}
}

// before waits for what must come before the job is over.
func (w *world) before(what string, ok func() bool) {
	w.t.Helper()
	w.until(what, func() bool {
		over := w.job.over()
		yes := ok()
		if over && !yes {
			w.t.Fatalf("the job was over before %q:\n%s", what, w.job)
		}
		return yes
	})
}

// dump lets every process of the world print its stacks, those of jobs first: their agents keep what they say.
func (w *world) dump() {
	w.t.Helper()
	for _, agents := range []bool{false, true} {
		for _, p := range w.processes() {
			if agents == (p.kind == agentKind || p.kind == headKind) {
				w.t.Logf("%s %d of node %s says where it is", p.kind, p.pid, p.node)
				_ = syscall.Kill(p.pid, syscall.SIGQUIT)
				_ = syscall.Kill(p.pid, syscall.SIGCONT)
			}
		}
		time.Sleep(time.Second) // nobody says that it has printed all
	}
	_ = filepath.WalkDir(w.dir, func(path string, e os.DirEntry, err error) error {
		if err == nil && e.Type().IsRegular() && strings.Contains(path, "/logs/") {
			if b, err := os.ReadFile(path); err == nil {
				w.t.Logf("--- %s\n%s", path, b[max(0, len(b)-64<<10):])
			}
		}
		return nil
	})
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
	w.before("a "+kind, func() bool { ps = w.of(node, kind); return len(ps) > 0 })
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
	w.happened("node %s was frozen: %d processes", node, len(stopped))
}

func (w *world) thaw(node string) {
	for _, p := range w.processes() {
		if p.node == node {
			_ = syscall.Kill(p.pid, syscall.SIGCONT)
		}
	}
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
	if !w.t.Failed() {
		for end := time.Now().Add(10 * time.Second); len(w.of("", "")) > 0; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				w.t.Errorf("processes that are left: %+v", w.of("", ""))
				w.dump()
				break
			}
		}
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
		_ = filepath.WalkDir(w.dir, func(path string, e os.DirEntry, err error) error {
			if err == nil && e.Type().IsRegular() && strings.Contains(path, "/logs/") {
				if b, err := os.ReadFile(path); err == nil {
					w.t.Logf("--- %s\n%s", path, b[max(0, len(b)-8<<10):])
				}
			}
			return nil
		})
	}
	for range 50 { // a process that was killed may still have files
		if os.RemoveAll(w.dir) == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// small makes dir a file system of a size.
func small(t *testing.T, dir, size string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("penstock-test", dir, "tmpfs", 0, "mode=0700,size="+size); err != nil {
		t.Skipf("no small file system can be made here, which needs root: %v", err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(dir, 2) }) // MNT_DETACH
}

// fill takes all that is left in dir, and returns what gives it back.
func (w *world) fill(dir string) (free func()) {
	w.t.Helper()
	name := filepath.Join(dir, "fill")
	f, err := os.Create(name)
	if err != nil {
		w.t.Fatal(err)
	}
	for size := 1 << 20; size > 0; size /= 2 {
		for err = nil; err == nil; {
			_, err = f.Write(make([]byte, size))
		}
	}
	if err := f.Close(); err != nil {
		w.t.Fatal(err)
	}
	w.happened("%s is full", filepath.Base(dir))
	return func() {
		if err := os.Remove(name); err != nil {
			w.t.Error(err)
		}
	}
}

func init() {
	roles["etcd"], roles["slow"] = playEtcd, slow
}

// playEtcd is an external store, as somebody else would run it.
func playEtcd() error {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	cfg := embed.NewConfig()
	cfg.Name, cfg.Dir, cfg.LogLevel = "external", os.Args[1], "error"
	client, peer := url.URL{Scheme: "http", Host: "127.0.0.1:0"}, url.URL{Scheme: "unix", Host: "external"}
	cfg.ListenClientUrls, cfg.AdvertiseClientUrls = []url.URL{client}, []url.URL{client}
	cfg.ListenPeerUrls, cfg.AdvertisePeerUrls = nil, []url.URL{peer}
	cfg.InitialCluster = cfg.InitialClusterFromName(cfg.Name)
	e, err := embed.StartEtcd(cfg)
	if err != nil {
		return err
	}
	defer e.Close()
	select {
	case <-e.Server.ReadyNotify():
	case <-ctx.Done():
		return nil
	}
	fmt.Println("ready", e.Clients[0].Addr())
	<-ctx.Done()
	return nil
}

// slow is the child of a step that gives back what it gets, and takes its time.
func slow() error {
	dir := os.Getenv("CHAOS_DIR")
	_, node, _ := strings.Cut(os.Getenv(chaosEnv), "/")
	chunks, err := os.OpenFile(filepath.Join(dir, "chunks"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	work, err := time.ParseDuration(os.Getenv("CHAOS_WORK"))
	if err != nil {
		return err
	}
	for buf := make([]byte, 64<<10); ; {
		n, err := os.Stdin.Read(buf)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if _, err := chunks.Write([]byte(".")); err != nil {
			return err
		}
		time.Sleep(work) // nobody waits for this
		hold(dir, fmt.Sprintf("%s-%d", node, os.Getpid()), true)
		if _, err := os.Stdout.Write(buf[:n]); err != nil {
			return err
		}
	}
}

// wire is a network of this machine: a bridge, at whose host side the head is, and nodes in network namespaces of their own behind it. Everything of it is named after the process, so that
// what a killed test left is found and removed by those of package cluster.
type wire struct {
	t     *testing.T
	id    string
	base  [4]byte // of its 14 addresses; the first is the head's
	order []string
	cuts  []string // namespaces of nodes where packets are dropped
}

var wires atomic.Int64

func tool(argv ...string) (string, error) {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
	}
	return string(out), err
}

func (w *wire) run(argv ...string) string {
	w.t.Helper()
	out, err := tool(argv...)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

func newWire(t *testing.T) *wire {
	for _, name := range []string{"ip", "nft", "tc"} {
		if _, err := exec.LookPath(name); err != nil {
			t.Skipf("nodes in network namespaces need the program %s (of iproute2, nftables)", name)
		}
	}
	if os.Geteuid() != 0 {
		t.Skip("only root can make network namespaces")
	}
	n := wires.Add(1)
	w := &wire{t: t, id: fmt.Sprintf("%dx%d", os.Getpid(), n)}
	if _, err := tool("ip", "link", "add", "pb"+w.id, "type", "bridge"); err != nil {
		t.Skipf("no network can be made here: %v", err)
	}
	t.Cleanup(func() { _, _ = tool("ip", "link", "del", "pb"+w.id) })
	for k := os.Getpid()*4 + int(n); ; k++ { // of 198.19.0.0/16, which is for tests of networks
		w.base = [4]byte{198, 19, byte(k >> 4), byte(k << 4)}
		if out, _ := tool("ip", "-o", "addr", "show", "to", w.at(0)+"/28"); out == "" {
			break
		}
	}
	w.run("ip", "addr", "add", w.at(1)+"/28", "dev", "pb"+w.id)
	w.run("ip", "link", "set", "pb"+w.id, "up")
	t.Cleanup(func() { _, _ = tool("nft", "delete", "table", "inet", "penstock_"+w.id) })
	if _, err := tool("nft", fmt.Sprintf("add table inet %[1]s; add chain inet %[1]s in { type filter hook input priority 0; }; add chain inet %[1]s out { type filter hook output priority 0; }", "penstock_"+w.id)); err != nil {
		t.Skipf("packets cannot be dropped here: %v", err)
	}
	return w
}

// at is an address of the network.
func (w *wire) at(i int) string {
	return fmt.Sprintf("%d.%d.%d.%d", w.base[0], w.base[1], w.base[2], w.base[3]+byte(i))
}

func (w *wire) addr(node string) string  { return w.at(2 + slices.Index(w.order, node)) }
func (w *wire) space(node string) string { return "penstock-" + w.id + "-" + node }

// link is our end of a node's cable.
func (w *wire) link(node string) string {
	return fmt.Sprintf("pv%s%d", w.id, slices.Index(w.order, node))
}

// plug makes the namespace of a node.
func (w *wire) plug(node string) {
	w.t.Helper()
	w.order = append(w.order, node)
	space := w.space(node)
	w.run("ip", "netns", "add", space)
	w.t.Cleanup(func() { _, _ = tool("ip", "netns", "del", space) }) // the cable goes with it
	w.run("ip", "link", "add", w.link(node), "type", "veth", "peer", "name", "eth0", "netns", space)
	w.run("ip", "link", "set", w.link(node), "master", "pb"+w.id, "up")
	w.run("ip", "-n", space, "addr", "add", w.addr(node)+"/28", "dev", "eth0")
	w.run("ip", "-n", space, "link", "set", "eth0", "up")
	w.run("ip", "-n", space, "link", "set", "lo", "up")
}

// toHead drops what a node says to the head.
func (w *wire) toHead(node string) {
	w.t.Helper()
	w.run("nft", "add rule inet penstock_"+w.id+" in ip saddr "+w.addr(node)+" counter drop")
}

// between drops what a node says to another.
func (w *wire) between(from, to string) {
	w.t.Helper()
	space := w.space(to)
	w.run("ip", "netns", "exec", space, "nft", "add table inet cut; add chain inet cut in { type filter hook input priority 0; }; add rule inet cut in ip saddr "+w.addr(from)+" counter drop")
	w.cuts = append(w.cuts, space)
}

// unplug takes a node's cable away, or brings it back.
func (w *wire) unplug(node, how string) {
	w.t.Helper()
	w.run("ip", "link", "set", w.link(node), how)
}

// heal lets everything through again. What dropped nothing was no fault.
func (w *wire) heal() {
	w.t.Helper()
	check := func(rules string) {
		if strings.Contains(rules, "counter packets 0 ") {
			w.t.Errorf("nothing was dropped: %s", rules)
		}
	}
	check(w.run("nft", "list", "table", "inet", "penstock_"+w.id))
	w.run("nft", "flush", "table", "inet", "penstock_"+w.id)
	for _, space := range w.cuts {
		check(w.run("ip", "netns", "exec", space, "nft", "list", "table", "inet", "cut"))
		w.run("ip", "netns", "exec", space, "nft", "delete", "table", "inet", "cut")
	}
	w.cuts = nil
}

// slow limits both directions of a node's cable to a rate.
func (w *wire) slow(node, rate string) {
	w.t.Helper()
	tbf := []string{"root", "tbf", "rate", rate, "burst", "16kb", "latency", "200ms"}
	w.run(append([]string{"tc", "qdisc", "add", "dev", w.link(node)}, tbf...)...)
	w.run(append([]string{"tc", "-n", w.space(node), "qdisc", "add", "dev", "eth0"}, tbf...)...)
}

// slowed is how many packets had to wait.
func (w *wire) slowed(node string) (n int) {
	w.t.Helper()
	_, rest, _ := strings.Cut(w.run("tc", "-s", "qdisc", "show", "dev", w.link(node)), "overlimits ")
	_, _ = fmt.Sscan(rest, &n)
	return n
}
