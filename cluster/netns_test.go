//go:build linux

package cluster

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/memtest"
)

// wire is a network of this machine: a bridge, at whose host side the head is, and nodes in network namespaces of their own behind it. Everything of it is named after the process, so that several tests
// can run at once, and what a killed one left is found and removed by the next.
type wire struct {
	*chaos
	id    string // of process and network
	base  net.IP // of its 14 addresses; the first is the head's
	order []string
}

var (
	wires   atomic.Int64
	netName = regexp.MustCompile(`(?:penstock-|penstock_|pb)([0-9]+)x[0-9]+`)
)

// command runs one of the tools; its output is in the error.
func command(argv ...string) (string, error) {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
	}
	return string(out), err
}

func (w *wire) run(argv ...string) {
	w.t.Helper()
	if _, err := command(argv...); err != nil {
		w.t.Fatal(err)
	}
}

// sweep removes what processes that are not there any more have left.
func sweep() {
	for _, x := range []struct{ list, remove []string }{
		{[]string{"ip", "netns", "list"}, []string{"ip", "netns", "del"}},
		{[]string{"ip", "-o", "link", "show", "type", "bridge"}, []string{"ip", "link", "del"}},
		{[]string{"nft", "list", "tables", "inet"}, []string{"nft", "delete", "table", "inet"}},
	} {
		out, err := command(x.list...)
		if err != nil {
			continue
		}
		for line := range strings.Lines(out) {
			for name := range strings.FieldsSeq(line) {
				name = strings.TrimSuffix(name, ":")
				m := netName.FindStringSubmatch(name)
				if m == nil || !strings.HasPrefix(name, m[0]) {
					continue
				}
				if _, err := os.Stat("/proc/" + m[1]); err == nil {
					continue
				}
				if x.list[1] == "netns" {
					removeSpace(name)
				} else {
					command(append(x.remove, name)...)
				}
			}
		}
	}
}

// removeSpace removes a namespace with what still runs in it.
func removeSpace(name string) {
	out, _ := command("ip", "netns", "pids", name)
	for f := range strings.FieldsSeq(out) {
		if pid, err := strconv.Atoi(f); err == nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	}
	command("ip", "netns", "del", name)
}

// lacks skips a test that this machine does not allow: where CI=true only what root may not do there.
func lacks(t *testing.T, err error, what string) {
	t.Helper()
	if errors.Is(err, os.ErrPermission) || strings.Contains(err.Error(), "Operation not permitted") {
		t.Skipf("%s: %v", what, err)
	}
	memtest.Skip(t, "%s: %v", what, err)
}

// newWire starts a head on a network.
func newWire(t *testing.T, lease time.Duration) *wire {
	if os.Geteuid() != 0 {
		t.Skip("only root can make network namespaces")
	}
	for _, tool := range []string{"ip", "nft", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			memtest.Skip(t, "nodes in network namespaces need the program %s (of iproute2, nftables)", tool)
		}
	}
	sweep()
	w := &wire{chaos: &chaos{nodes: map[string]*actor{}, results: t.TempDir()}, id: fmt.Sprintf("%dx%d", os.Getpid(), wires.Add(1))}
	w.t, w.dir = t, shortDir(t)
	w.base = w.subnet()
	bridge, table := "pb"+w.id, "penstock_"+w.id
	if _, err := command("ip", "link", "add", bridge, "type", "bridge"); err != nil {
		lacks(t, err, "no network can be made here")
	}
	t.Cleanup(func() { command("ip", "link", "del", bridge) })
	w.run("ip", "addr", "add", w.at(1)+"/28", "dev", bridge)
	w.run("ip", "link", "set", bridge, "up")
	t.Cleanup(func() { command("nft", "delete", "table", "inet", table) })
	if _, err := command("nft", fmt.Sprintf("add table inet %[1]s; add chain inet %[1]s in { type filter hook input priority 0; }; add chain inet %[1]s out { type filter hook output priority 0; }", table)); err != nil {
		lacks(t, err, "packets cannot be dropped here")
	}
	w.cfg = HeadConfig{Dir: filepath.Join(w.dir, "head"), Listen: w.at(1) + ":0", Lease: lease}
	w.startHead()
	return w
}

// subnet is a /28 of 198.18.0.0/15, which is for tests of networks, that nobody on this machine has.
func (w *wire) subnet() net.IP {
	taken := map[string]bool{}
	addrs, err := net.InterfaceAddrs()
	must(w.t, err)
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			taken[n.IP.Mask(net.CIDRMask(28, 32)).String()] = true
		}
	}
	for k := os.Getpid() * 4; ; k++ {
		if ip := net.IPv4(198, 18+byte(k>>12&1), byte(k>>4), byte(k<<4)); !taken[ip.String()] {
			return ip
		}
	}
}

// at is an address of the network.
func (w *wire) at(i int) string {
	ip := slices.Clone(w.base.To4())
	ip[3] += byte(i)
	return ip.String()
}

// addr is that of a node.
func (w *wire) addr(node string) string { return w.at(2 + slices.Index(w.order, node)) }

func (w *wire) space(node string) string { return "penstock-" + w.id + "-" + node }

// link is our end of a node's cable.
func (w *wire) link(node string) string {
	return fmt.Sprintf("pv%s%d", w.id, slices.Index(w.order, node))
}

// join starts a node in a namespace of its own.
func (w *wire) join(node string) *actor {
	w.t.Helper()
	w.order = append(w.order, node)
	space := w.space(node)
	w.run("ip", "netns", "add", space)
	w.t.Cleanup(func() { removeSpace(space) }) // the cable goes with it
	w.run("ip", "link", "add", w.link(node), "type", "veth", "peer", "name", "eth0", "netns", space)
	w.run("ip", "link", "set", w.link(node), "master", "pb"+w.id, "up")
	w.run("ip", "-n", space, "addr", "add", w.addr(node)+"/28", "dev", "eth0")
	w.run("ip", "-n", space, "link", "set", "eth0", "up")
	w.run("ip", "-n", space, "link", "set", "lo", "up")
	return w.start(node, "ip", "netns", "exec", space)
}

// toHead drops what a node says to the head.
func (w *wire) toHead(node string) {
	w.t.Helper()
	w.run("nft", "add rule inet penstock_"+w.id+" in ip saddr "+w.addr(node)+" counter drop")
}

// toNode drops what the head says to a node.
func (w *wire) toNode(node string) {
	w.t.Helper()
	w.run("nft", "add rule inet penstock_"+w.id+" out ip daddr "+w.addr(node)+" counter drop")
}

// heal lets everything through again. What dropped nothing was no fault.
func (w *wire) heal() {
	w.t.Helper()
	rules, err := command("nft", "list", "table", "inet", "penstock_"+w.id)
	must(w.t, err)
	if !strings.Contains(rules, "counter packets ") || strings.Contains(rules, "counter packets 0 ") {
		w.t.Errorf("nothing was dropped: %s", rules)
	}
	w.run("nft", "flush table inet penstock_"+w.id)
}

// slow limits both directions of a node's cable to a rate.
func (w *wire) slow(node, rate string) {
	w.t.Helper()
	tbf := []string{"root", "tbf", "rate", rate, "burst", "16kb", "latency", "200ms"}
	w.run(append([]string{"tc", "qdisc", "add", "dev", w.link(node)}, tbf...)...)
	w.run(append([]string{"tc", "-n", w.space(node), "qdisc", "add", "dev", "eth0"}, tbf...)...)
}

// waits submits a job that ends when it is let go.
func (w *wire) waits() {
	w.t.Helper()
	name := fmt.Sprintf("job%d", len(w.jobs))
	j := sh(fmt.Sprintf(`echo "$PENSTOCK_NODE $$" >> %[1]s/%[2]s.ran; while [ ! -e %[1]s/go ]; do sleep 0.05; done; ( set -C; echo %[2]s > %[1]s/%[2]s ) 2>/dev/null; exit 0`, w.results, name))
	j.Name, j.ID = name, name
	w.jobs = append(w.jobs, w.submit(j))
}

// never watches for a time, or until f has ended the wait, that a node is never in one of some states.
func (w *wire) never(node string, most time.Duration, enough func() bool, states ...string) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.ctx(), most)
	defer cancel()
	err := w.client.Watch(ctx, true, func(s *Status) error {
		for _, n := range s.Nodes {
			if n.Name == node && slices.Contains(states, n.State) {
				return fmt.Errorf("node %s is %s", node, n.State)
			}
		}
		if enough() {
			return errEnough
		}
		return nil
	})
	if err != errEnough && ctx.Err() == nil {
		w.t.Error(err)
	}
}

// A node that the head does not hear, or that does not hear the head, or both, for longer than its lease, is lost: its job runs elsewhere. When they hear each other again, what the node still runs is ended, and it is there.
func TestPartition(t *testing.T) {
	for _, x := range []struct {
		name string
		cut  []func(*wire, string)
	}{
		{"the head does not hear the node", []func(*wire, string){(*wire).toHead}},
		{"the node does not hear the head", []func(*wire, string){(*wire).toNode}},
		{"neither hears the other", []func(*wire, string){(*wire).toHead, (*wire).toNode}},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			w := newWire(t, 2*time.Second)
			w.join("a")
			w.waits()
			_, pid := w.begun(0)
			w.join("b")
			for _, cut := range x.cut {
				cut(w, "a")
			}
			began := time.Now()
			w.nodeIs("a", "lost")
			t.Logf("lost after %v, with a lease of 2 s", time.Since(began).Round(10*time.Millisecond))
			w.until(w.jobs[0], func(s *JobStatus) bool { return s.State == "running" && s.Attempts == 2 })
			if err := syscall.Kill(pid, 0); err != nil {
				t.Errorf("a node that nobody could tell anything ended what it ran: %v", err)
			}
			w.heal()
			began = time.Now()
			w.nodeIs("a", "alive")
			t.Logf("back after %v", time.Since(began).Round(10*time.Millisecond))
			w.gone(pid)
			w.letGo()
			w.all(2)
		})
	}
}

// A connection on which nothing comes for less than a lease goes on, and nobody was lost.
func TestHalfOpen(t *testing.T) {
	t.Parallel()
	w := newWire(t, 4*time.Second)
	w.join("a")
	w.waits()
	w.begun(0)
	w.toHead("a")
	w.toNode("a")
	w.waits() // what the node is told of it comes late
	w.never("a", time.Second, func() bool { return false }, "lost")
	w.heal()
	w.begun(1)
	w.never("a", 4500*time.Millisecond, func() bool { return false }, "lost")
	w.letGo()
	w.all(1)
	for i := range w.jobs {
		if nodes, _ := w.ran(i); len(nodes) != 1 {
			t.Errorf("job %d ran on %v", i, nodes)
		}
	}
}

// Over a slow link a node fetches what its job needs, and is heard meanwhile.
func TestSlowLink(t *testing.T) {
	t.Parallel()
	w := newWire(t, 2*time.Second)
	w.join("a")
	s, err := w.client.Status(w.ctx())
	must(t, err)
	if s.Nodes[0].Address != w.addr("a") {
		t.Errorf("the node is at %s, not %s", s.Nodes[0].Address, w.addr("a"))
	}
	w.slow("a", "6mbit")
	data := make([]byte, 4<<20)
	_, _ = rand.Read(data)
	work := t.TempDir()
	must(t, os.WriteFile(filepath.Join(work, "data"), data, 0o644))
	j := sh("wc -c < data")
	j.WorkingDir = work
	id := w.submit(j)
	began := time.Now()
	w.never("a", 50*time.Second, func() bool {
		js, err := w.client.Jobs(w.ctx(), id)
		return err == nil && js[0].Over()
	}, "lost", "suspect")
	took := time.Since(began)
	if s := w.over(id); s.State != "finished" || s.Attempts != 1 {
		t.Errorf("%+v", s)
	}
	if got := strings.TrimSpace(w.logs(id, false)); got != strconv.Itoa(len(data)) {
		t.Errorf("logs: %q", got)
	}
	if took < 3*time.Second {
		t.Errorf("the link was not slow: %v", took)
	}
	t.Logf("4 MiB at 6 Mbit/s: %v", took.Round(10*time.Millisecond))
}

// The members of a gang are reached at the addresses of their nodes, also that on the head's machine; where one of them is not reached any more the job goes on elsewhere.
func TestGangAddresses(t *testing.T) {
	t.Parallel()
	w := newWire(t, 2*time.Second)
	w.join("a")
	w.join("b")
	w.order = append(w.order, "") // the third address is nobody's
	own := w.start("own")         // beside the head
	id := w.gang(3)
	where := map[string]string{w.nodes["a"].ready: w.addr("a"), w.nodes["b"].ready: w.addr("b"), own.ready: w.at(1)}
	var lost meeting
	for i, m := range w.met(id, 1, 3) {
		if m.Host != where[m.Node] || !strings.HasPrefix(m.Addresses[i], m.Host+":") {
			t.Errorf("member %d on %s is at %s (%v), not %s", i, m.Node, m.Host, m.Addresses, where[m.Node])
		}
		if m.Node == w.nodes["b"].ready {
			lost = m
		}
	}
	w.join("c")
	w.run("ip", "link", "set", w.link("b"), "down") // nobody hears it, and nobody is told
	for _, m := range w.met(id, 2, 3) {
		if m.Node == lost.Node {
			t.Errorf("%+v is on the node that is not reached", m)
		}
	}
	w.run("ip", "link", "set", w.link("b"), "up")
	w.nodeIs("b", "alive")
	w.gone(lost.PID)
	w.letGo()
	if s := w.over(id); s.State != "finished" || s.Attempts != 2 || len(s.Failures) != 1 {
		t.Errorf("%+v", s)
	}
}
