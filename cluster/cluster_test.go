package cluster

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/freeport"
)

// testCluster is a head on this machine, with nodes in this process.
type testCluster struct {
	t      *testing.T
	dir    string
	cfg    HeadConfig
	head   *Head
	client *Client
	addr   string
}

func logTo(t *testing.T) *slog.Logger {
	if !testing.Verbose() {
		return nil
	}
	return slog.New(slog.NewTextHandler(os.Stderr, nil))
}

func newCluster(t *testing.T) *testCluster {
	c := &testCluster{t: t, dir: shortDir(t)}
	c.cfg = HeadConfig{Dir: filepath.Join(c.dir, "head"), Listen: free(t), Lease: 2 * time.Second, Log: logTo(t)}
	c.start()
	t.Cleanup(func() { c.stop() })
	return c
}

// free is an address at which a head can start, and again later.
func free(t *testing.T) string {
	t.Helper()
	a, err := freeport.Address()
	must(t, err)
	return a
}

// shortDir is a folder whose sockets have names that are short enough.
func shortDir(t *testing.T) string {
	dir, err := os.MkdirTemp("", "pc")
	must(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (c *testCluster) start() {
	c.t.Helper()
	h, err := StartHead(c.ctx(), c.cfg)
	must(c.t, err)
	c.head, c.addr = h, h.Addr().String()
	c.cfg.Listen = c.addr // again at the same place
	c.client, err = DialLocal(c.ctx(), c.cfg.Dir)
	must(c.t, err)
}

func (c *testCluster) stop() {
	if c.head != nil {
		c.client.Close()
		if err := c.head.Close(); err != nil {
			c.t.Error(err)
		}
		c.head = nil
	}
}

// ctx is one that ends before the test's.
func (c *testCluster) ctx() context.Context {
	ctx, cancel := context.WithTimeout(c.t.Context(), 60*time.Second)
	c.t.Cleanup(cancel)
	return ctx
}

func (c *testCluster) join(name string, r Resources) *Node {
	c.t.Helper()
	token, err := c.head.JoinToken(c.ctx())
	must(c.t, err)
	n, err := Join(c.ctx(), c.addr, token, c.node(name, r))
	must(c.t, err)
	c.t.Cleanup(func() { n.Close() })
	return n
}

func (c *testCluster) node(name string, r Resources) NodeConfig {
	return NodeConfig{Dir: filepath.Join(c.dir, name), Name: name, CPUs: r.CPUs, Memory: r.Memory, GPUs: -1, Named: r.Named, Version: "test", Log: logTo(c.t)}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func sh(script string) Job {
	return Job{Argv: []string{"/bin/sh", "-c", script}, Needs: Resources{CPUs: 1}, Crashes: 3}
}

func (c *testCluster) submit(j Job) string {
	c.t.Helper()
	id, _, err := c.client.Submit(c.ctx(), j)
	must(c.t, err)
	return id
}

// until waits for a job to be as wanted.
func (c *testCluster) until(id string, ok func(*JobStatus) bool) *JobStatus {
	c.t.Helper()
	var last *JobStatus
	err := c.client.Watch(c.ctx(), true, func(*Status) error {
		js, err := c.client.Jobs(c.ctx(), id)
		if err != nil {
			return err
		}
		if last = &js[0]; ok(last) {
			return errEnough
		}
		return nil
	})
	if err != errEnough {
		c.t.Fatalf("%v; job %+v", err, last)
	}
	return last
}

var errEnough = fmt.Errorf("enough")

func (c *testCluster) over(id string) *JobStatus {
	c.t.Helper()
	return c.until(id, (*JobStatus).Over)
}

// finished waits for the end of a job, which is a good one after so many attempts, 0: after any number.
func (c *testCluster) finished(id string, attempts int64) *JobStatus {
	c.t.Helper()
	s := c.over(id)
	if s.State != "finished" || attempts > 0 && s.Attempts != attempts {
		c.t.Errorf("%+v", s)
	}
	return s
}

func (c *testCluster) logs(id string, follow bool) string {
	c.t.Helper()
	var b bytes.Buffer
	must(c.t, c.client.Logs(c.ctx(), id, follow, 0, &b))
	return b.String()
}

func wantCode(t *testing.T, err error, code fault.Code, parts ...string) {
	t.Helper()
	if fault.CodeOf(err) != code {
		t.Fatalf("got %v (%v), want %v", err, fault.CodeOf(err), code)
	}
	for _, p := range parts {
		if !strings.Contains(err.Error(), p) {
			t.Errorf("%v does not say %q", err, p)
		}
	}
}

// A job runs on a node, in a copy of its working directory, with its environment; its logs come back.
func TestJob(t *testing.T) {
	c := newCluster(t)
	c.join("a", Resources{CPUs: 2})
	work := t.TempDir()
	must(t, os.WriteFile(filepath.Join(work, "in.txt"), []byte("from the folder\n"), 0o644))
	j := sh(`cat in.txt; echo "$GREETING $PENSTOCK_NODE $PENSTOCK_JOB_ATTEMPT ${#PENSTOCK_JOB_CLUSTER} $PENSTOCK_JOB_CPUS $PENSTOCK_JOB_MEMORY $SECRET"; echo new > out.txt; pwd`)
	j.WorkingDir, j.Env, j.Secrets = work, map[string]string{"GREETING": "hello"}, map[string]string{"SECRET": "hidden"}
	j.Needs = Resources{CPUs: 1.5, Memory: 512 << 20}
	var sent []int64
	j.Sending = func(bytes int64) { sent = append(sent, bytes) }
	id := c.submit(j)
	if s := c.over(id); s.State != "finished" || s.Code != 0 {
		t.Errorf("%+v", s)
	}
	if s := c.over(c.submit(j)); s.State != "finished" || len(sent) != 1 || sent[0] < 16 { // the folder is there
		t.Errorf("%v bytes were sent: %+v", sent, s)
	}
	if got := c.logs(id, true); !strings.HasPrefix(got, "from the folder\nhello n1 1 13 1.5 536870912 hidden\n/") {
		t.Errorf("logs: %q", got)
	}
	if _, err := os.Stat(filepath.Join(work, "out.txt")); err == nil {
		t.Error("the job wrote into the folder it was submitted from")
	}
	s, err := c.client.Status(c.ctx())
	must(t, err)
	if len(s.Nodes) != 1 || s.Nodes[0].State != "alive" || s.Nodes[0].Processes != 0 || s.Nodes[0].Booked.CPUs != 0 {
		t.Errorf("%+v", s)
	}
}

// What a job cannot survive ends it with the first cause; what it can starts it again.
func TestFailures(t *testing.T) {
	c := newCluster(t)
	c.join("a", Resources{CPUs: 2, Memory: 1 << 30})
	for name, x := range map[string]struct {
		job  Job
		want string // state
		why  string
		runs int64
	}{
		"exit code": {sh("echo oh no; exit 3"), "failed", "exit code 3\noh no", 1},
		"says a secret": {func() Job {
			j := sh(`printf %s "$KEY"; exit 3`)
			j.Secrets = map[string]string{"KEY": "first line\nlast line\n"}
			return j
		}(), "failed", "user: exit code 3: ***\n", 1},
		"no such program": {Job{Argv: []string{"./missing"}, Needs: Resources{CPUs: 1}}, "failed", "refused: it could not be started", 1},
		"killed once":     {sh(`if [ $PENSTOCK_JOB_ATTEMPT = 1 ]; then kill -9 $$; fi`), "finished", "", 2},
		"asks for more":   {sh(`if [ $PENSTOCK_JOB_ATTEMPT = 1 ]; then exit 75; fi`), "finished", "", 2},
		"declared":        {func() Job { j := sh(`if [ $PENSTOCK_JOB_ATTEMPT = 1 ]; then exit 1; fi`); j.Retries = 1; return j }(), "finished", "", 2},
		"no crash":        {func() Job { j := sh(`kill -9 $$`); j.Crashes = 0; return j }(), "failed", "signal 9", 1},
		"memory": {func() Job {
			j := sh(`x=$(head -c 200000000 /dev/zero | tr '\0' x); sleep 1`)
			j.Needs.Memory = 64 << 20
			return j
		}(), "failed", "memory: it passed its limit of 128 MiB; give it more with --memory; attempt 2 had 128 MiB, and the first one 64 MiB", 2},
		"memory, twice": {func() Job {
			j := sh(`echo $PENSTOCK_JOB_MEMORY; if [ $PENSTOCK_JOB_MEMORY -le 67108864 ]; then x=$(head -c 200000000 /dev/zero | tr '\0' x); sleep 1; fi`)
			j.Needs.Memory = 64 << 20
			return j
		}(), "finished", "", 2},
	} {
		t.Run(name, func(t *testing.T) {
			id := c.submit(x.job)
			s := c.over(id)
			if s.State != x.want || !strings.Contains(s.Why, x.why) || s.Attempts != x.runs {
				t.Errorf("%+v, want %s after %d runs, and %q", s, x.want, x.runs, x.why)
			}
		})
	}
}

// A node that ends hands its work to others; one that is killed loses it to them when its lease ends.
func TestNodeGoes(t *testing.T) {
	c := newCluster(t)
	a := c.join("a", Resources{CPUs: 2})
	id := c.submit(sh(`echo on $PENSTOCK_NODE; if [ $PENSTOCK_NODE = n1 ]; then exec sleep 1000; fi`))
	c.until(id, func(s *JobStatus) bool { return s.State == "running" })
	c.join("b", Resources{CPUs: 2})
	must(t, a.Close())
	if s := c.finished(id, 2); s.Failures["preemption"] != 1 {
		t.Errorf("%+v", s)
	}
	if got := c.logs(id, false); !strings.Contains(got, "on n2") || !strings.Contains(got, "n1, which is not attached") {
		t.Errorf("logs: %q", got)
	}
	again, err := Join(c.ctx(), c.addr, "", c.node("a", Resources{CPUs: 2})) // its certificate is enough
	must(t, err)
	defer again.Close()
	if again.ID() != "n1" {
		t.Errorf("it came back as %s", again.ID())
	}
}

// nodes waits until the nodes are as wanted.
func (c *testCluster) nodes(ok func([]NodeStatus) bool) {
	c.t.Helper()
	var last []NodeStatus
	if err := c.client.Watch(c.ctx(), true, func(s *Status) error {
		if last = s.Nodes; ok(last) {
			return errEnough
		}
		return nil
	}); err != errEnough {
		c.t.Fatalf("%v; nodes %+v", err, last)
	}
}

// A node that joins again without a name has the one that it had, and what it offers now; it cannot have the name of a node that is there.
func TestNameIsKept(t *testing.T) {
	c := newCluster(t)
	c.join("one", Resources{CPUs: 1})
	n := c.join("two", Resources{CPUs: 1, Memory: 1 << 30})
	is := func(id, name, state string, cpus float64) func([]NodeStatus) bool {
		return func(ns []NodeStatus) bool {
			for _, n := range ns {
				if n.ID == id {
					return n.Name == name && n.State == state && n.Total.CPUs == cpus
				}
			}
			return false
		}
	}
	c.nodes(is("n1", "one", "alive", 1))
	c.nodes(is("n2", "two", "alive", 1))
	must(t, n.Close())
	cfg := c.node("two", Resources{CPUs: 3})
	again := func(name string) *Node {
		t.Helper()
		cfg.Name = name
		n, err := Join(c.ctx(), c.addr, "", cfg)
		must(t, err)
		t.Cleanup(func() { n.Close() })
		return n
	}
	n = again("")
	c.nodes(is("n2", "two", "alive", 3))
	must(t, n.Close())
	n = again("one")
	select {
	case <-n.Done():
	case <-c.ctx().Done():
		t.Fatal("it has the name of another node")
	}
	wantCode(t, n.Err(), fault.Invalid, "node n1 is called one", "--name")
	n.Close()
	n = again("") // the name that was refused is not kept
	c.nodes(is("n2", "two", "alive", 3))
	must(t, n.Close())
	n = again("deux")
	must(t, n.arrived(c.ctx())) // it has heard that the head has taken the name, and keeps it
	c.nodes(is("n2", "deux", "alive", 3))
	must(t, n.Close())
	third := c.node("two", Resources{CPUs: 1})
	third.Dir += "-new"
	token, err := c.head.JoinToken(c.ctx())
	must(t, err)
	m, err := Join(c.ctx(), c.addr, token, third) // nobody that is there is called so
	must(t, err)
	defer m.Close()
	c.nodes(is("n3", "two", "alive", 1))
	again("")
	c.nodes(is("n2", "deux", "alive", 3))
}

// A drained node gets nothing; what ran there starts elsewhere and is not counted.
func TestDrain(t *testing.T) {
	c := newCluster(t)
	c.join("a", Resources{CPUs: 1})
	id := c.submit(sh(`if [ $PENSTOCK_NODE = n1 ]; then exec sleep 1000; fi`))
	c.until(id, func(s *JobStatus) bool { return s.State == "running" })
	must(t, c.client.Drain(c.ctx(), "a", time.Second))
	s := c.until(id, func(s *JobStatus) bool { return s.State == "restarting" && strings.Contains(s.Why, "draining") })
	if s.Failures["preemption"] != 1 || !strings.Contains(s.Why, "(before: preemption: node n1 drained)") {
		t.Errorf("%+v", s)
	}
	c.join("b", Resources{CPUs: 1})
	c.finished(id, 0)
	must(t, c.client.Undrain(c.ctx(), "n1"))
	wantCode(t, c.client.Drain(c.ctx(), "n9", 0), fault.NotFound, "n9")
}

// A head that starts again finds its nodes and jobs; processes run on meanwhile.
func TestHeadRestarts(t *testing.T) {
	c := newCluster(t)
	c.join("a", Resources{CPUs: 2})
	dir := t.TempDir()
	wait := func(name string) string {
		return fmt.Sprintf("while [ ! -e %s ]; do sleep 0.02; done", filepath.Join(dir, name))
	}
	runs := c.submit(sh("echo began; " + wait("go") + "; echo ended"))
	ends := c.submit(sh("echo began; " + wait("end")))
	queued := c.submit(Job{Argv: []string{"/bin/true"}, Needs: Resources{CPUs: 2}})
	for _, id := range []string{runs, ends} {
		c.until(id, func(s *JobStatus) bool { return s.State == "running" })
	}
	c.stop()
	must(t, os.WriteFile(filepath.Join(dir, "end"), nil, 0o644)) // nobody hears it
	c.start()
	c.finished(ends, 1)
	if s := c.until(queued, func(s *JobStatus) bool { return true }); s.State != "queued" || !strings.Contains(s.Why, "room for 0") {
		t.Errorf("%+v", s)
	}
	must(t, os.WriteFile(filepath.Join(dir, "go"), nil, 0o644))
	c.finished(runs, 1)
	if got := c.logs(runs, true); got != "began\nended\n" {
		t.Errorf("logs: %q", got)
	}
	c.over(queued)
}

// The same id and content is the same job; other content is refused. A job that waits or runs can be stopped.
func TestSubmitStop(t *testing.T) {
	c := newCluster(t)
	c.join("a", Resources{CPUs: 1})
	j := sh("exec sleep 1000")
	j.ID = "nightly"
	id := c.submit(j)
	if again, existed, err := c.client.Submit(c.ctx(), j); err != nil || again != id || !existed {
		t.Errorf("%s, %v, %v", again, existed, err)
	}
	other := j
	other.Argv = []string{"/bin/true"}
	_, _, err := c.client.Submit(c.ctx(), other)
	wantCode(t, err, fault.Exists, "nightly", id)
	c.until(id, func(s *JobStatus) bool { return s.State == "running" })
	waits := c.submit(sh("true"))
	never := c.submit(Job{Argv: []string{"/bin/true"}, Needs: Resources{CPUs: 1, GPUs: 1}})
	if s := c.until(never, func(s *JobStatus) bool { return true }); !strings.Contains(s.Why, "1 GPU on one node") {
		t.Errorf("%+v", s)
	}
	must(t, c.client.StopJob(c.ctx(), waits, 0))
	must(t, c.client.StopJob(c.ctx(), never, 0))
	must(t, c.client.StopJob(c.ctx(), "nightly", time.Second))
	for _, id := range []string{waits, never, id} {
		if s := c.over(id); s.State != "stopped" {
			t.Errorf("%+v", s)
		}
	}
	must(t, c.client.StopJob(c.ctx(), id, 0)) // again
	wantCode(t, c.client.StopJob(c.ctx(), "j99", 0), fault.NotFound, "j99")
}

// Tokens: one for joining is good for one machine, one for access for what its scope says.
func TestTokens(t *testing.T) {
	c := newCluster(t)
	token, err := c.client.CreateJoinToken(c.ctx(), "rack 1", 0)
	must(t, err)
	a, err := Join(c.ctx(), c.addr, token, c.node("a", Resources{CPUs: 1}))
	must(t, err)
	defer a.Close()
	_, err = Join(c.ctx(), c.addr, token, c.node("b", Resources{CPUs: 1}))
	wantCode(t, err, fault.Denied, "used by node n1")
	_, err = Join(c.ctx(), c.addr, "", c.node("b", Resources{CPUs: 1}))
	wantCode(t, err, fault.Invalid, "--token")
	second, err := c.client.CreateJoinToken(c.ctx(), "", 0)
	must(t, err)
	_, err = Join(c.ctx(), c.addr, second, func() NodeConfig { n := c.node("b", Resources{CPUs: 1}); n.Name = "a"; return n }())
	wantCode(t, err, fault.Exists, "--name")
	must(t, c.client.RevokeToken(c.ctx(), strings.Split(second, ".")[1]))
	_, err = Join(c.ctx(), c.addr, second, c.node("c", Resources{CPUs: 1}))
	wantCode(t, err, fault.Denied, "revoked")
	_, err = Join(c.ctx(), c.addr, "nonsense", c.node("d", Resources{CPUs: 1}))
	wantCode(t, err, fault.Invalid)
	for scope, may := range map[string]int{"read": 1, "submit": 2, "admin": 3} {
		access, err := c.client.CreateAccessToken(c.ctx(), scope, scope, time.Hour)
		must(t, err)
		p, err := Dial(c.ctx(), c.addr, access)
		must(t, err)
		defer p.Close()
		_, err = p.Status(c.ctx())
		_, _, err2 := p.Submit(c.ctx(), Job{Argv: []string{"/bin/true"}, Needs: Resources{CPUs: 1}})
		err3 := p.Drain(c.ctx(), "a", 0)
		for i, err := range []error{err, err2, err3} {
			if (err == nil) != (i < may) || err != nil && fault.CodeOf(err) != fault.Denied {
				t.Errorf("%s: call %d: %v", scope, i, err)
			}
		}
	}
	ts, err := c.client.Tokens(c.ctx())
	must(t, err)
	if len(ts) != 5 || ts[0].UsedBy != "n1" || ts[0].Name != "rack 1" || !ts[1].Revoked {
		t.Errorf("%+v", ts)
	}
	if _, err := Dial(c.ctx(), c.addr, token); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("a token for joining gave access: %v", err)
	}
}

// Everything ends: the nodes with what they run, then the head.
func TestStopAll(t *testing.T) {
	c := newCluster(t)
	n := c.join("a", Resources{CPUs: 1})
	id := c.submit(sh("exec sleep 1000"))
	c.until(id, func(s *JobStatus) bool { return s.State == "running" })
	must(t, c.client.StopAll(c.ctx(), time.Second))
	for _, done := range []<-chan struct{}{n.Done(), c.head.Done()} {
		select {
		case <-done:
		case <-c.ctx().Done():
			t.Fatal("it goes on")
		}
	}
	if n.Err() != nil || c.head.Err() != nil {
		t.Error(n.Err(), c.head.Err())
	}
}
