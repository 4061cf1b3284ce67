package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster"
	"github.com/penstock-data/penstock/internal/freeport"
	"github.com/penstock-data/penstock/internal/memtest"
)

// daemon is a penstock that stays.
type daemon struct {
	t     *testing.T
	name  string
	cmd   *exec.Cmd
	lines chan string // of its stdout
	ended chan struct{}
	mu    sync.Mutex
	said  bytes.Buffer // stdout and stderr
}

func (d *daemon) Write(p []byte) (int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.said.Write(p)
}

func (d *daemon) String() string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.said.String()
}

func stay(t *testing.T, args ...string) *daemon {
	t.Helper()
	return stayBy(t, func(*exec.Cmd) {}, args...)
}

// stayBy has set say how it is started.
func stayBy(t *testing.T, set func(*exec.Cmd), args ...string) *daemon {
	t.Helper()
	d := &daemon{t: t, name: strings.Join(args[:2], " "), cmd: command(t, args...), lines: make(chan string, 1000), ended: make(chan struct{})}
	out, err := d.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	d.cmd.Stderr = d
	set(d.cmd)
	if err := d.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(d.ended)
		for s := bufio.NewScanner(out); s.Scan(); {
			fmt.Fprintln(d, s.Text())
			d.lines <- s.Text()
		}
		_ = d.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = d.cmd.Process.Kill()
		<-d.ended
		if t.Failed() {
			t.Logf("%s said:\n%s", d.name, d)
		}
	})
	return d
}

// hear waits for a line of stdout that begins so.
func (d *daemon) hear(begin string) string {
	d.t.Helper()
	late := time.After(30 * time.Second)
	for {
		select {
		case l := <-d.lines:
			if strings.HasPrefix(l, begin) {
				return l
			}
		case <-d.ended:
			d.t.Fatalf("%s ended before it said %q:\n%s", d.name, begin, d)
		case <-late:
			d.t.Fatalf("%s does not say %q:\n%s", d.name, begin, d)
		}
	}
}

// code waits for its end.
func (d *daemon) code() int {
	d.t.Helper()
	select {
	case <-d.ended:
		return d.cmd.ProcessState.ExitCode()
	case <-time.After(30 * time.Second):
		d.t.Fatalf("%s goes on:\n%s", d.name, d)
		return 0
	}
}

func (d *daemon) signal(s os.Signal) {
	d.t.Helper()
	if err := d.cmd.Process.Signal(s); err != nil {
		d.t.Error(err)
	}
}

// testCluster is a head that decides only, with nodes, as processes.
type testCluster struct {
	t         *testing.T
	dir, head string // head: its folder
	addr      string
	used      string // token
	first     *daemon
	nodes     map[string]*daemon // by id
}

func newTestCluster(t *testing.T) *testCluster {
	dir, err := os.MkdirTemp("", "pc") // short: sockets are in it
	if err != nil {
		t.Fatal(err)
	}
	addr, err := freeport.Address()
	if err != nil {
		t.Fatal(err)
	}
	c := &testCluster{t: t, dir: dir, head: filepath.Join(dir, "head"), addr: addr, nodes: map[string]*daemon{}}
	t.Cleanup(func() { os.RemoveAll(dir) }) // after all daemons have ended
	c.start()
	return c
}

func (c *testCluster) start() {
	c.t.Helper()
	c.first = stay(c.t, "start", "--head", "--dir", c.head, "--listen", c.addr, "--lease", "2s", "--cpus", "0")
	c.addr = strings.Fields(c.first.hear("  penstock join "))[2]
}

func (c *testCluster) join(name string, more ...string) *daemon {
	c.t.Helper()
	return c.joinBy(name, func(*exec.Cmd) {}, more...)
}

// joinBy has set say how the node is started.
func (c *testCluster) joinBy(name string, set func(*exec.Cmd), more ...string) *daemon {
	c.t.Helper()
	d := stayBy(c.t, set, append([]string{"join", c.addr, "--dir", filepath.Join(c.dir, name), "--name", name, "--cpus", "1", "--gpus", "0"}, more...)...)
	id := strings.Fields(d.hear("node "))[1]
	c.nodes[id] = d
	return d
}

// kill kills a node, which comes back by its certificate when it is lost.
func (c *testCluster) kill(id string) {
	c.t.Helper()
	c.nodes[id].signal(syscall.SIGKILL)
	c.nodes[id].code()
	for end := time.Now().Add(30 * time.Second); !strings.Contains(c.ok("status"), " lost "); {
		if time.Now().After(end) {
			c.t.Fatalf("node %s is not lost", id)
		}
	}
	c.join(map[string]string{"n1": "a", "n2": "b"}[id])
}

// call runs a command about the cluster, in the test's process's place.
func (c *testCluster) call(args ...string) result {
	c.t.Helper()
	return penstock(c.t, append(args, "--cluster", c.head)...)
}

func (c *testCluster) ok(args ...string) string {
	c.t.Helper()
	r := c.call(args...)
	if r.code != 0 {
		c.t.Fatalf("%v: exit %d: %s", args, r.code, r.err)
	}
	return r.out
}

// until waits for a job to be as wanted.
func (c *testCluster) until(id string, ok func(jobJSON) bool) jobJSON {
	c.t.Helper()
	for end := time.Now().Add(30 * time.Second); ; {
		var j jobJSON
		if err := json.Unmarshal([]byte(c.ok("jobs", id, "--json")), &j); err != nil {
			c.t.Fatal(err)
		}
		if ok(j) {
			return j
		}
		if time.Now().After(end) {
			c.t.Fatalf("job %+v", j)
		}
	}
}

// spec writes one into a folder of its own, with a step that is a shell's.
func (c *testCluster) spec(script, out string) (dir, file string) {
	c.t.Helper()
	dir = c.t.TempDir()
	file = filepath.Join(dir, "s.yaml")
	text := fmt.Sprintf("version: 1\nname: test\nsource: {range: {n: 100}}\nsteps: [{exec: {command: [sh, -c, %q], workers: 1}}]\nsink: {ipc: {path: %s}}\n", script, out)
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		c.t.Fatal(err)
	}
	return dir, file
}

// follow starts a job of that spec, and follows it.
func (c *testCluster) follow(dir, file string, more ...string) *daemon {
	c.t.Helper()
	return stay(c.t, append([]string{"run", file, "--working-dir", dir, "--cluster", c.head}, more...)...)
}

// fifo makes one; the reader waits for a line of the job.
func fifo(t *testing.T, dir, name string) (path string, wait func() string) {
	t.Helper()
	path = filepath.Join(dir, name)
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	r := bufio.NewReader(f)
	return path, func() string {
		t.Helper()
		_ = f.SetReadDeadline(time.Now().Add(30 * time.Second))
		line, err := r.ReadString('\n')
		if err != nil {
			t.Fatalf("the job does not come up: %v", err)
		}
		return strings.TrimSpace(line)
	}
}

// What a cluster is for: jobs run on nodes, survive the death of these and of the head, and everything ends when it is told to.
func TestCluster(t *testing.T) {
	c := newTestCluster(t)
	c.used = strings.TrimSpace(c.ok("token", "create"))
	c.join("a", "--token", c.used)
	second := strings.TrimSpace(c.ok("token", "create"))
	c.join("b", "--token", second)

	t.Run("run", func(t *testing.T) {
		here, there := filepath.Join(t.TempDir(), "out"), filepath.Join(t.TempDir(), "out")
		ok(t, "run", "examples/flights.yaml", "--set", "sink.parquet.path="+here)
		work := t.TempDir()
		if err := os.CopyFS(filepath.Join(work, "examples"), os.DirFS("../../examples")); err != nil {
			t.Fatal(err)
		}
		r := c.call("run", filepath.Join(work, "examples", "flights.yaml"), "--set", "sink.parquet.path="+there, "--working-dir", work, "--json")
		if r.code != 0 || !strings.Contains(r.out, `"status":"ok"`) || !strings.Contains(r.err, "is submitted") {
			t.Fatalf("%+v", r)
		}
		if a, b := ok(t, "count", here), ok(t, "count", there); a != b || a == "0\n" {
			t.Errorf("%s rows here, %s on a node", a, b)
		}
		// The exit code is the job's, and so is what it says.
		dir, file := c.spec("exec cat", there)
		r = c.call("run", file, "--working-dir", dir, "--set", "steps.1={filter: nosuch > 1}")
		if r.code != exitUsage || !strings.Contains(r.out, `unknown column "nosuch"`) || !strings.Contains(r.err, "failed after 1 attempt") {
			t.Errorf("%+v", r)
		}
	})

	t.Run("a node is killed", func(t *testing.T) {
		tmp := t.TempDir()
		up, wait := fifo(t, tmp, "up")
		out := filepath.Join(tmp, "out")
		dir, file := c.spec(fmt.Sprintf("if [ ! -e %[1]s/first ]; then touch %[1]s/first; echo up > %[2]s; exec sleep 1000; fi; exec cat", tmp, up), out)
		d := c.follow(dir, file, "--id", "lives")
		wait()
		j := c.until("lives", func(j jobJSON) bool { return j.State == "running" && len(j.Nodes) == 1 })
		c.kill(j.Nodes[0])
		if code := d.code(); code != 0 {
			t.Errorf("exit %d: %s", code, d)
		}
		if n := ok(t, "count", out); n != "100\n" {
			t.Errorf("%s rows", n)
		}
		if j := c.until("lives", func(jobJSON) bool { return true }); j.State != "finished" || j.Attempts != 2 || j.Failures["node"] != 1 {
			t.Errorf("%+v", j)
		}
	})

	t.Run("a training run's node is killed", func(t *testing.T) {
		tmp := t.TempDir()
		up, wait := fifo(t, tmp, "up")
		work := t.TempDir()
		if err := os.CopyFS(filepath.Join(work, "examples"), os.DirFS("../../examples")); err != nil {
			t.Fatal(err)
		}
		script := fmt.Sprintf("if [ ! -e %[1]s/first ]; then touch %[1]s/first; echo up > %[2]s; exec sleep 1000; fi; echo again", tmp, up)
		d := stay(t, "train", filepath.Join(work, "examples", "train.yaml"), "--cluster", c.head, "--working-dir", work, "--workers", "1", "--storage", tmp, "--name", "deep", "--id", "deep", "--", "sh", "-c", script)
		wait()
		j := c.until("deep", func(j jobJSON) bool { return j.State == "running" && len(j.Nodes) == 1 })
		c.kill(j.Nodes[0])
		if code := d.code(); code != 0 || !strings.Contains(d.String(), "again") {
			t.Errorf("exit %d: %s", code, d)
		}
		if s := ok(t, "status", "deep", "--storage", tmp); !strings.Contains(s, "finished") {
			t.Errorf("the run: %s", s)
		}
	})

	t.Run("the head is killed", func(t *testing.T) {
		tmp := t.TempDir()
		up, wait := fifo(t, tmp, "up")
		dir, file := c.spec(fmt.Sprintf("echo up > %s; while [ ! -e %s/go ]; do sleep 0.05; done; exec cat", up, tmp), filepath.Join(tmp, "out"))
		d := c.follow(dir, file, "--id", "waits")
		wait()
		c.until("waits", func(j jobJSON) bool { return j.State == "running" })
		c.first.signal(syscall.SIGKILL)
		c.first.code()
		c.start()
		if err := os.WriteFile(filepath.Join(tmp, "go"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
		if code := d.code(); code != 0 || strings.Count(d.String(), "test: 100 rows in") != 1 {
			t.Errorf("exit %d: %s", code, d)
		}
		if j := c.until("waits", func(jobJSON) bool { return true }); j.State != "finished" || j.Attempts != 1 {
			t.Errorf("%+v", j)
		}
	})

	t.Run("interrupted", func(t *testing.T) {
		tmp := t.TempDir()
		up, wait := fifo(t, tmp, "up")
		dir, file := c.spec(fmt.Sprintf("echo $$ > %s; exec sleep 1000", up), filepath.Join(tmp, "out"))
		d := c.follow(dir, file, "--id", "stops")
		pid := wait()
		d.signal(os.Interrupt)
		if code := d.code(); code != 130 || !strings.Contains(d.String(), "stopping job") {
			t.Errorf("exit %d: %s", code, d)
		}
		if j := c.until("stops", func(jobJSON) bool { return true }); j.State != "stopped" {
			t.Errorf("%+v", j)
		}
		isGone(t, pid)
	})

	t.Run("too few nodes", func(t *testing.T) {
		dir, file := c.spec("cat", filepath.Join(t.TempDir(), "out"))
		id := strings.TrimSpace(c.ok("run", file, "--working-dir", dir, "--nodes", "3", "--cpus", "0.5", "--detach"))
		j := c.until(id, func(jobJSON) bool { return true })
		if j.State != "queued" || j.Size != 3 || j.Needs.CPUs != 0.5 || len(j.Nodes) != 0 {
			t.Errorf("%+v", j)
		}
		const why = "0.5 CPUs on each of 3 nodes; there would be room on 2, if nothing else ran"
		// Who leaves at once hears why it waits, beside the id.
		for quiet, want := range map[string]string{"--quiet": "", "--detach": "it needs 9 CPUs, 1 TiB on one node; the most that one has is "} {
			r := c.call("run", file, "--working-dir", dir, "--cpus", "9", "--memory", "1TiB", "--detach", quiet)
			id := strings.TrimSpace(r.out)
			if r.code != 0 || !strings.HasPrefix(id, "j") || strings.Contains(id, " ") || !strings.HasPrefix(r.err, map[string]string{"": "", "--detach": "penstock: job " + id + " is queued: "}[quiet]+want) || want == "" && r.err != "" {
				t.Errorf("%+v", r)
			}
			c.ok("stop", id)
		}
		if jobs, status := c.ok("jobs", id), c.ok("status"); !strings.Contains(jobs, " - of 3 ") || !strings.Contains(jobs, why) || !strings.Contains(status, why) {
			t.Errorf("%s\n%s", jobs, status)
		}
		if got := c.ok("stop", id); got != "job "+id+" is stopped\n" {
			t.Error(got)
		}
		for want, x := range map[string]cluster.JobStatus{"-": {Size: 1}, "n3": {Size: 1, Nodes: []string{"n3"}}, "n1,n2": {Size: 2, Nodes: []string{"n1", "n2"}}, "n1,n2,n3,n4,n5 and 2 more": {Size: 7, Nodes: []string{"n1", "n2", "n3", "n4", "n5", "n6", "n7"}}} {
			if got := nodesText(&x); got != want {
				t.Errorf("%+v is on %q, not %q", x, got, want)
			}
		}
	})

	t.Run("mistakes", c.mistakes)

	t.Run("a node ends in order", func(t *testing.T) {
		d := c.join("c", "--token", strings.TrimSpace(c.ok("token", "create")))
		id := ""
		for n := range c.nodes {
			if c.nodes[n] == d {
				id = n
			}
		}
		if got := c.ok("drain", "c", "--grace", "1s"); !strings.HasPrefix(got, "node "+id+" (c) gets no new work") {
			t.Error(got)
		}
		if got := c.ok("drain", id, "--undo"); got != "node "+id+" gets work again\n" {
			t.Error(got)
		}
		d.signal(os.Interrupt)
		if code := d.code(); code != 0 || !strings.Contains(d.String(), "node "+id+" has ended: penstock join makes it a node again") {
			t.Errorf("exit %d: %s", code, d)
		}
		delete(c.nodes, id)
		if r := c.call("stop", "c"); r.code != 1 || !strings.Contains(r.err, "node "+id+", which is called c, is lost") {
			t.Errorf("%+v", r)
		}
		if got := c.ok("stop", id); got != "node "+id+" is gone\n" {
			t.Error(got)
		}
	})

	t.Run("everything ends", func(t *testing.T) {
		tmp := t.TempDir()
		up, wait := fifo(t, tmp, "up")
		dir, file := c.spec(fmt.Sprintf("echo $$ > %s; exec sleep 1000", up), filepath.Join(tmp, "out"))
		if id := c.ok("run", file, "--working-dir", dir, "--detach"); !strings.HasPrefix(id, "j") {
			t.Errorf("it printed %q", id)
		}
		pid := wait()
		c.ok("stop", "--all", "--grace", "5s")
		isGone(t, pid)
		if code := c.first.code(); code != 0 {
			t.Errorf("the head: exit %d", code)
		}
		for id, d := range c.nodes {
			if code := d.code(); code != 0 || !strings.Contains(d.String(), "node "+id+" has ended: it was stopped") {
				t.Errorf("node %s: exit %d: %s", id, code, d)
			}
		}
	})
}

// What people call a node or a job is one thing that is there, or it is said what else it is.
func TestNamed(t *testing.T) {
	nodes := []cluster.NodeStatus{{ID: "n1", Name: "vm", State: "alive"}, {ID: "n2", Name: "vm", State: "draining"}, {ID: "n3", Name: "gone", State: "lost"}, {ID: "n4", Name: "left", State: "left"},
		{ID: "n5", Name: "back", State: "lost"}, {ID: "n6", Name: "back", State: "suspect"}, {ID: "n7", Name: "both", State: "alive"}}
	jobs := []cluster.JobStatus{{ID: "j1", Name: "both", State: "running"}, {ID: "j2", Name: "old", State: "finished"}, {ID: "j3", Name: "it", Submission: "nightly", State: "queued"}}
	for name, x := range map[string]struct{ job, node, says string }{
		"n3": {node: "n3"}, "back": {node: "n6"}, "n1": {node: "n1"}, "j2": {job: "j2"}, "it": {job: "j3"}, "nightly": {job: "j3"},
		"vm":   {says: "vm is the name of node n1 and node n2: give an id"},
		"both": {says: "both is the name of job j1 and node n7: give an id"},
		"gone": {says: "node n3, which is called gone, is lost, and nothing runs there for the cluster: penstock join on its machine brings it back, penstock stop n3 takes it out"},
		"left": {says: "no job and no node is called left"}, "old": {says: "no job and no node is called old"},
	} {
		job, node, err := named(name, "no job and no node", jobs, nodes)
		if job != x.job || node != x.node || (err != nil) != (x.says != "") || err != nil && !strings.Contains(err.Error(), x.says) {
			t.Errorf("%s: %q, %q, %v", name, job, node, err)
		}
	}
	if _, _, err := named("both", "no node", nil, nodes[:1]); err == nil || !strings.Contains(err.Error(), "no node is called both") {
		t.Error(err)
	}
}

// isGone waits for the end of a process.
func isGone(t *testing.T, pid string) {
	t.Helper()
	var n int
	if _, err := fmt.Sscan(pid, &n); err != nil {
		t.Fatal(err)
	}
	if !memtest.Poll(10*time.Second, func() bool { return errors.Is(syscall.Kill(n, 0), syscall.ESRCH) }) {
		t.Errorf("process %d is still there", n)
	}
}

// mistakes are told, each with what to do.
func (c *testCluster) mistakes(t *testing.T) {
	revoked := strings.TrimSpace(c.ok("token", "create", "--name", "rack 1"))
	c.ok("token", "revoke", strings.Split(revoked, ".")[1])
	ended := strings.TrimSpace(c.ok("token", "create", "--ttl", "1ms"))
	fresh := strings.TrimSpace(c.ok("token", "create"))
	read := filepath.Join(c.dir, "read.token")
	if err := os.WriteFile(read, []byte(c.ok("token", "create", "--scope", "read")), 0o600); err != nil {
		t.Fatal(err)
	}
	if list := c.ok("token", "list"); !strings.Contains(list, "rack 1") || !strings.Contains(list, "used by n1") || strings.Contains(list, strings.Split(fresh, ".")[2]) {
		t.Errorf("tokens: %s", list)
	}
	killed := filepath.Join(c.dir, "killed") // the folder of a head that was: its socket is there
	if err := os.Mkdir(killed, 0o700); err != nil {
		t.Fatal(err)
	}
	socket, err := net.ListenUnix("unix", &net.UnixAddr{Name: cluster.SocketIn(killed), Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	socket.SetUnlinkOnClose(false)
	socket.Close()
	odd := t.TempDir() // cannot be packed
	if err := syscall.Mkfifo(filepath.Join(odd, "pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(odd, "s.yaml"), []byte("version: 1\nsource: {range: {n: 5}}\nsink: {count: {}}\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	other := strings.Split(fresh, ".")
	other[3] = strings.Repeat("A", len(other[3]))
	join := func(token string) []string {
		return []string{"join", c.addr, "--dir", filepath.Join(c.dir, "x"), "--name", "x", "--gpus", "0", "--token", token}
	}
	at := []string{"--cluster", c.head}
	net := []string{"--cluster", c.addr, "--token-file", read}
	for _, m := range []struct {
		args []string
		code int
		want string
	}{
		{join("nonsense"), 2, "the token begins with neither"},
		{join(strings.Join(other, ".")), 1, c.addr}, // another pin: it is not said to this head
		{join(c.used), 1, "used by node n1"},
		{join(revoked), 1, "revoked"},
		{join(ended), 1, "ended"},
		{join(""), 2, "--token"},
		{[]string{"join", "127.0.0.1:1", "--dir", filepath.Join(c.dir, "x"), "--gpus", "0", "--token", fresh, "--wait", "1s"}, 1, "127.0.0.1:1"},
		{append(join(fresh), "--name", "a"), 1, "--name"},
		{append(join(fresh), "--dir", filepath.Join(c.dir, "a")), 1, "another agent has the folder"},
		{append(join(fresh), "--cpus", "0"), 2, "--cpus 0: a node without CPUs runs no jobs"},
		{append(join(fresh), "--cpus", "0.0001"), 2, "--cpus 0.0001: want a number of CPUs"},
		{append(join(fresh), "--cpus", "NaN"), 2, "--cpus NaN: want a number of CPUs"},
		{append(join(fresh), "--cpus", "1e300"), 2, "--cpus 1e+300: want a number of CPUs"},
		{append(join(fresh), "--memory", "0"), 2, "--memory 0: a node without memory runs no jobs"},
		{append(join(fresh), "--labels", "a=b,a=c"), 2, "--labels: a is given twice"},
		{append(join(fresh), "--resource", "a=1", "--resource", "a=2"), 2, "--resource: a is given twice"},
		{[]string{"start", "--head", "--lease", "0s"}, 2, "--lease 0s: it is between a second and an hour"},
		{[]string{"start", "--head", "--keep-jobs", "-1"}, 2, "--keep-jobs -1: at least 1"},
		{[]string{"start"}, 2, "--head is missing"},
		{[]string{"start", "--head", "--dir", filepath.Join(c.dir, "h2"), "--cpus", "0", "--listen", c.addr}, 1, "address already in use: give another port with --listen"},
		{[]string{"start", "--head", "--dir", c.head, "--cpus", "0"}, 1, "another process has the store"},
		{[]string{"start", "--head", "--store", "http://x"}, 2, "write etcd://host:port"},
		{[]string{"start", "--head", "--store", ""}, 2, "--store is empty"},
		{[]string{"start", "--head", "--store", "etcd://etcd.example:2379"}, 2, "--store-insecure"},
		{[]string{"start", "--head", "--store", "etcd://127.0.0.1:1", "--store-ca", "ca.pem"}, 2, "write etcds://127.0.0.1:1"},
		{[]string{"start", "--head", "--store-ca", "ca.pem"}, 2, "give its address"},
		{[]string{"start", "--head", "--store", "etcds://127.0.0.1:1", "--store-login-file", filepath.Join(odd, "s.yaml")}, 1, "chmod o= it"},
		{append([]string{"run", filepath.Join(odd, "s.yaml"), "--working-dir", odd}, at...), 2, "pipe"},
		{append([]string{"run", filepath.Join(odd, "s.yaml"), "--working-dir", filepath.Join(odd, "none")}, at...), 2, "is not in"},
		{append([]string{"run", filepath.Join(odd, "s.yaml")}, at...), 2, "--working-dir"},
		{append([]string{"run", "examples/flights.yaml"}, at...), 2, "sink.parquet.path is out/flights/"},
		{append([]string{"run", "examples/train.yaml"}, at...), 2, "the spec has shards and no sink"},
		{[]string{"run", "examples/flights.yaml", "--detach"}, 2, "--detach goes with --cluster"},
		{append([]string{"train", "examples/train.yaml"}, at...), 2, "--storage"},
		{append([]string{"train", "examples/train.yaml", "--storage", "runs"}, at...), 2, "--storage is runs, in the job's copy"},
		{append([]string{"train", "examples/train.yaml", "--storage", c.dir, "--nodes", "3"}, at...), 2, "--nodes 3: 2 workers cannot be spread evenly over them; give --workers 3, or another multiple"},
		{append([]string{"train", "examples/train.yaml", "--storage", c.dir, "--nodes", "0"}, at...), 2, "--nodes 0"},
		{[]string{"train", "examples/train.yaml", "--nodes", "2"}, 2, "--nodes goes with --cluster"},
		{[]string{"run", "examples/flights.yaml", "--nodes", "2"}, 2, "--nodes goes with --cluster"},
		{[]string{"status", "--cluster", "127.0.0.1:1", "--token-file", read}, 1, "127.0.0.1:1: connect: connection refused; is the head running there? penstock start --head"},
		{[]string{"jobs", "--cluster", killed}, 1, "no head runs here any more (nobody answers at " + cluster.SocketIn(killed) + "): penstock start --head --dir " + killed},
		{[]string{"status", "--cluster", c.addr}, 2, "PENSTOCK_TOKEN"},
		{append([]string{"status"}, net...), 0, ""},
		{append([]string{"drain", "a"}, net...), 1, "scope admin"},
		{append([]string{"stop", "nosuch"}, net...), 1, "no job and no node"},
		{append([]string{"drain", "nosuch"}, at...), 1, "nosuch"},
		{append([]string{"logs", "j99"}, at...), 1, "j99"},
		{append([]string{"drain", "a"}, at...), 0, ""},
		{append([]string{"drain", "a", "--undo"}, at...), 0, ""},
	} {
		begin := time.Now()
		if r := penstock(t, m.args...); r.code != m.code || !strings.Contains(r.err, m.want) {
			t.Errorf("%v: exit %d, want %d with %q: %s", m.args, r.code, m.code, m.want, r.err)
		}
		if took := time.Since(begin); took > 20*time.Second {
			t.Errorf("%v: it took %v", m.args, took)
		}
	}
	for _, dir := range []string{"x", "h2"} {
		if _, err := os.Lstat(filepath.Join(c.dir, dir)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("what was refused left the folder %s: %v", dir, err)
		}
	}
	refused := regexp.MustCompile(`(?m)^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\S+ penstock: warning: a newcomer at 127\.0\.0\.1 was refused: the join token was revoked`)
	if !memtest.Poll(10*time.Second, func() bool { return refused.MatchString(c.first.String()) }) {
		t.Errorf("the head's log does not say who was refused, and when: %s", c.first)
	}
}
