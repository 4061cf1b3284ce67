//go:build linux

package cluster

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
)

// memberEnv names the folder of results of a process that is one of several: what this program is as such.
const memberEnv = "PENSTOCK_CLUSTER_TEST_MEMBER"

// meeting is what a member has seen, written when it has met all others.
type meeting struct {
	Node      string // of the cluster
	PID       int
	Host      string
	Addresses []string
	Others    []string // what those say of themselves
	Cert      string   // hash of its certificate
}

// playMember meets all others, and then says "on" to them, by node 0, until the folder has a file go. Where another is gone it ends with 75.
func playMember(results string) error {
	g, err := gang.Join()
	if err != nil {
		return err
	}
	if g == nil {
		return fmt.Errorf("no member of a gang: %v", os.Environ())
	}
	defer g.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	fmt.Printf("meets %d\n", g.Nodes())
	l, err := g.Listen("hello")
	if err != nil {
		return err
	}
	conns := make([]net.Conn, g.Nodes())
	for k := g.Node() + 1; k < g.Nodes(); k++ {
		if conns[k], err = g.Dial(ctx, k, "hello"); err != nil {
			return err
		}
	}
	for range g.Node() {
		c, k, err := l.Accept(ctx)
		if err != nil {
			return err
		}
		conns[k] = c
	}
	var info gang.Info
	b, err := os.ReadFile(filepath.Join(os.Getenv(gang.EnvDir), gang.FileName))
	if err == nil {
		err = json.Unmarshal(b, &info)
	}
	if err != nil {
		return err
	}
	cert, err := os.ReadFile(filepath.Join(os.Getenv(gang.EnvDir), gang.CertName))
	if err != nil {
		return err
	}
	m := meeting{Node: os.Getenv("PENSTOCK_NODE"), PID: os.Getpid(), Host: g.Host(g.Node()), Addresses: info.Addresses, Cert: fmt.Sprintf("%x", sha256.Sum256(cert))}
	lines := make([]*bufio.Reader, len(conns))
	for k, c := range conns {
		if c == nil {
			continue
		}
		lines[k] = bufio.NewReader(c)
		fmt.Fprintf(c, "%s/%d/%d\n", g.Job(), g.Attempt(), g.Node())
		s, err := lines[k].ReadString('\n')
		if err != nil {
			os.Exit(75)
		}
		m.Others = append(m.Others, strings.TrimSpace(s))
	}
	if b, err = json.Marshal(m); err != nil {
		return err
	}
	name := filepath.Join(results, fmt.Sprintf("met-%d-%d", g.Attempt(), g.Node()))
	if err = os.WriteFile(name+".tmp", b, 0o644); err == nil {
		err = os.Rename(name+".tmp", name)
	}
	if err != nil {
		return err
	}
	files, err := watch(results)
	if err != nil {
		return err
	}
	defer files.close()
	for say := "on\n"; say == "on\n"; {
		if g.Node() > 0 {
			if say, err = lines[0].ReadString('\n'); err == nil {
				_, err = fmt.Fprint(conns[0], say)
			}
			if err != nil {
				os.Exit(75)
			}
			continue
		}
		files.wait(1, 10*time.Millisecond) // or the next round
		if _, err := os.Stat(filepath.Join(results, "go")); err == nil {
			say = "end\n"
		}
		for k := 1; k < len(conns); k++ {
			fmt.Fprint(conns[k], say)
			if s, err := lines[k].ReadString('\n'); err != nil || s != say {
				os.Exit(75)
			}
		}
	}
	fmt.Printf("ends\nof attempt %d", g.Attempt())
	return nil
}

// gangJob is such a job on n nodes.
func gangJob(t *testing.T, results string, n int) Job {
	exe, err := os.Executable()
	must(t, err)
	return Job{Argv: []string{exe, results}, Env: map[string]string{memberEnv: results}, Nodes: n, Needs: Resources{CPUs: 1}, Crashes: 3}
}

// gang submits one.
func (c *chaos) gang(n int) string {
	c.t.Helper()
	return c.submit(gangJob(c.t, c.results, n))
}

// waiting submits one to nodes a and b, of which b is frozen, and waits until a waits for it.
func (c *chaos) waiting() (b *actor, id string) {
	c.t.Helper()
	a, b := c.start("a"), c.start("b")
	c.nodeIs("a", "alive")
	c.nodeIs("b", "alive")
	b.says("attached to the head") // and has nothing to say to it: that would reset the connection of a head that is killed, with what b has not read yet
	b.signal(syscall.SIGSTOP)
	id = c.gang(2)
	a.says("process " + id + "/1/0/")
	a.says(" waits for the other nodes")
	return b, id
}

// met waits until the members of an attempt have met, and says what each has seen.
func (c *chaos) met(id string, attempt int64, n int) []meeting {
	c.t.Helper()
	return metIn(&c.testCluster, c.results, id, attempt, n)
}

func metIn(c *testCluster, results, id string, attempt int64, n int) []meeting {
	c.t.Helper()
	ms := make([]meeting, n)
	files, err := watch(results)
	must(c.t, err)
	defer files.close()
	for {
		have := 0
		for i := range ms {
			b, err := os.ReadFile(filepath.Join(results, fmt.Sprintf("met-%d-%d", attempt, i)))
			if err == nil {
				must(c.t, json.Unmarshal(b, &ms[i]))
				have++
			}
		}
		if have == n {
			break
		}
		if !files.wait(1, 40*time.Second) {
			js, err := c.client.Jobs(c.ctx(), id)
			c.t.Fatalf("%d of %d members have met: %+v, %v", have, n, js, err)
		}
	}
	nodes := map[string]bool{}
	for i, m := range ms {
		nodes[m.Node] = true
		var others []string
		for k := range n {
			if k != i {
				others = append(others, fmt.Sprintf("%s/%d/%d", id, attempt, k))
			}
		}
		if !slices.Equal(m.Others, others) || !slices.Equal(m.Addresses, ms[0].Addresses) || len(m.Addresses) != n {
			c.t.Errorf("member %d has met %v, %+v", i, m.Others, m)
		}
	}
	if len(nodes) != n {
		c.t.Errorf("%d members are on %d nodes: %+v", n, len(nodes), ms)
	}
	return ms
}

// membersGone waits for all that have ever met to be gone.
func (c *chaos) membersGone() {
	c.t.Helper()
	names, err := filepath.Glob(filepath.Join(c.results, "met-*-*"))
	must(c.t, err)
	for _, name := range names {
		var m meeting
		b, err := os.ReadFile(name)
		must(c.t, err)
		if json.Unmarshal(b, &m) == nil { // else it was killed as it wrote
			c.gone(m.PID)
		}
	}
}

func (c *chaos) letGo() {
	c.t.Helper()
	must(c.t, os.WriteFile(filepath.Join(c.results, "go"), nil, 0o644))
}

// A job on three nodes is a process on each, which meet and talk; its log says which node a line is of. A job on one node has nothing of that.
func TestGang(t *testing.T) {
	c := newChaos(t, free(t))
	c.start("a")
	c.start("b")
	id := c.gang(3)
	s := c.until(id, func(s *JobStatus) bool { return true })
	if s.State != "queued" || s.Size != 3 || !strings.Contains(s.Why, "1 CPU on each of 3 nodes; there would be room on 2, if nothing else ran") {
		t.Errorf("%+v", s)
	}
	c.start("c")
	ms := c.met(id, 1, 3)
	s = c.until(id, func(s *JobStatus) bool { return s.State == "running" })
	if nodes := []string{ms[0].Node, ms[1].Node, ms[2].Node}; !slices.Equal(s.Nodes, nodes) || s.Size != 3 {
		t.Errorf("%+v, members are on %v", s, nodes)
	}
	follow := make(chan string, 1)
	go func() { follow <- c.logs(id, true) }()
	c.letGo()
	if s := c.finished(id, 1); !slices.Equal(s.Nodes, []string{ms[0].Node, ms[1].Node, ms[2].Node}) { // where it was
		t.Errorf("%+v", s)
	}
	var want string
	for i := range 3 {
		want += fmt.Sprintf("node %[1]d | meets 3\nnode %[1]d | ends\nnode %[1]d | of attempt 1\n", i)
	}
	if got := c.logs(id, false); got != want {
		t.Errorf("logs: %q, want %q", got, want)
	}
	got := strings.SplitAfter(<-follow, "\n")
	slices.SortStableFunc(got, func(a, b string) int { return strings.Compare(a[:min(8, len(a))], b[:min(8, len(b))]) })
	if got := strings.Join(got, ""); got != want {
		t.Errorf("logs as they came: %q, want %q", got, want)
	}
	c.membersGone()
	alone := c.submit(sh(`env | grep GANG; ls -l /proc/$$/fd | grep -c socket`))
	c.over(alone)
	if got := c.logs(alone, false); got != "0\n" {
		t.Errorf("a job on one node has %q", got)
	}
}

// A node is killed: the others are ended, and the next attempt is on other nodes, with certificates of its own.
func TestGangNodeKilled(t *testing.T) {
	c := newChaos(t, free(t))
	for _, n := range []string{"a", "b", "c"} {
		c.start(n)
	}
	id := c.gang(2)
	first := c.met(id, 1, 2)
	lost := first[1].Node
	c.nodes[nameOf(lost)].kill()
	second := c.met(id, 2, 2)
	for i, m := range second {
		if m.Node == lost || m.Cert == first[0].Cert || m.Cert == first[1].Cert {
			t.Errorf("member %d: %+v, before: %+v", i, m, first)
		}
	}
	c.letGo()
	if s := c.finished(id, 2); s.Failures["worker"]+s.Failures["user"] > 0 {
		t.Errorf("%+v", s)
	}
	c.membersGone()
}

// A node is killed, and the other process fails as it has lost it, before the head knows what was lost: that is no failure of the job, also for a head that was started since.
func TestGangFailsForLost(t *testing.T) {
	for name, again := range map[string]bool{"one head": false, "another head": true} {
		t.Run(name, func(t *testing.T) {
			c := leased(t, time.Hour, free(t)) // the node is lost when it says so itself
			for _, n := range []string{"a", "b", "c"} {
				c.start(n)
			}
			lost := filepath.Join(c.results, "lost")
			j := sh(fmt.Sprintf(`[ $PENSTOCK_JOB_ATTEMPT = 1 ] || exit 0; while ! [ -e %s ]; do sleep 0.05; done; exit 1`, lost))
			j.Nodes = 2
			id := c.submit(j)
			s := c.until(id, func(s *JobStatus) bool { return s.State == "running" })
			other := nameOf(s.Nodes[1])
			c.nodes[other].kill()
			must(t, os.WriteFile(lost, nil, 0o600))
			c.until(id, func(s *JobStatus) bool {
				return s.Failures["user"] == 1 && strings.Contains(s.Why, "node 0 of the job")
			})
			if again {
				c.h.kill()
				c.startHead()
			}
			c.start(other) // without the process
			if s := c.over(id); s.State != "finished" || s.Attempts != 2 || s.Failures["node"] != 1 || len(s.Failures) != 1 {
				t.Errorf("%+v", s)
			}
		})
	}
}

// The head is killed when one node has said where its process is, and the other has not: the next head hears it of both, and the attempt goes on. Where the other one never heard of its process, as it wrote to the connection before it read
// what the killed head had left there, which is gone then, the next attempt does, and no failure but of the node counts.
func TestGangHeadKilledBefore(t *testing.T) {
	c := newChaos(t, free(t))
	b, id := c.waiting()
	c.h.kill()
	b.signal(syscall.SIGCONT)
	c.startHead()
	s := c.until(id, func(s *JobStatus) bool { return s.State == "running" })
	if s.Attempts != 1 && (b.hasSaid("process "+id+"/1/1/") || s.Attempts != 2 || s.Failures["node"] != 1 || len(s.Failures) != 1) {
		t.Errorf("%+v", s)
	}
	c.met(id, s.Attempts, 2)
	c.letGo()
	c.finished(id, s.Attempts)
}

// The head is away while a gang works: it goes on to its end.
func TestGangHeadAway(t *testing.T) {
	c := newChaos(t, free(t))
	c.start("a")
	c.start("b")
	id := c.gang(2)
	c.met(id, 1, 2)
	c.h.kill()
	c.letGo()
	c.membersGone()
	c.startHead()
	c.finished(id, 1)
}

// A node of a gang drains: all of it starts elsewhere, which is no failure.
func TestGangDrained(t *testing.T) {
	c := newChaos(t, free(t))
	for _, n := range []string{"a", "b", "c"} {
		c.start(n)
	}
	id := c.gang(2)
	first := c.met(id, 1, 2)
	must(t, c.client.Drain(c.ctx(), first[0].Node, time.Second))
	for _, m := range c.met(id, 2, 2) {
		if m.Node == first[0].Node {
			t.Errorf("%+v is on the node that drains", m)
		}
	}
	c.letGo()
	if s := c.finished(id, 2); s.Failures["preemption"] != 1 || len(s.Failures) != 1 {
		t.Errorf("%+v", s)
	}
}

// A node is lost before its process has said where it is: the other one, which waits, is ended, and the next attempt meets.
func TestGangNodeLostBefore(t *testing.T) {
	c := newChaos(t, free(t))
	b, id := c.waiting()
	c.nodeIs("b", "lost")
	s := c.until(id, func(s *JobStatus) bool { return strings.Contains(s.Why, "there would be room on 1") })
	if s.State != "restarting" || s.Failures["node"] != 1 || len(s.Failures) != 1 || !strings.Contains(s.Why, "node 1 of the job (n2), node: node n2 was lost") {
		t.Errorf("%+v", s)
	}
	b.kill() // for good
	c.start("c")
	for _, m := range c.met(id, 2, 2) {
		if m.Node == "n2" {
			t.Errorf("%+v is on the node that was lost", m)
		}
	}
	c.letGo()
	c.finished(id, 2)
	if got := c.logs(id, false); !strings.Contains(got, "node 1 | penstock: the log of attempt 1 is on node n2, which is not attached\n") {
		t.Errorf("logs: %q", got)
	}
}

// The node in the head's own process is one of several as any other.
func TestGangWithHead(t *testing.T) {
	c := &testCluster{t: t, dir: shortDir(t)}
	own := c.node("own", Resources{CPUs: 1})
	c.cfg = HeadConfig{Dir: filepath.Join(c.dir, "head"), Listen: free(t), Lease: 2 * time.Second, Node: &own, Log: logTo(t)}
	c.start()
	t.Cleanup(c.stop)
	c.join("a", Resources{CPUs: 1})
	results := t.TempDir()
	id := c.submit(gangJob(t, results, 2))
	metIn(c, results, id, 1, 2)
	must(t, os.WriteFile(filepath.Join(results, "go"), nil, 0o644))
	c.finished(id, 1)
}
