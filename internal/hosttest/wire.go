//go:build linux

// Package hosttest makes of this machine what tests need of several: networks of nodes in namespaces, whose packets are lost or late, whose cables are out or slow, and file systems that are full.
// Root may make them. Where nobody may, the test is skipped; where only a program is missing it fails when CI=true.
package hosttest

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/penstock-data/penstock/internal/memtest"
)

// Wire is a network of this machine: a bridge, at whose host side the head is, and nodes in network namespaces of their own behind it. Everything of it is named after the process, so that several tests
// can run at once, and what a killed one left is found and removed by the next. A wire is one goroutine's. What fails ends the test.
type Wire struct {
	t      testing.TB
	id     string // of process and network
	base   net.IP // of its 14 addresses; the first is the head's
	order  []string
	broken bool     // something stands that [Wire.Heal] ends
	cuts   []string // namespaces of nodes where packets are dropped
	late   []*delay
}

var (
	wires   atomic.Int64
	netName = regexp.MustCompile(`(?:penstock-|penstock_|pb)([0-9]+)x[0-9]+`)
)

// New makes a network without nodes. It needs the programs ip, nft and tc. When the test ends, and what was registered with Cleanup after this has run, it is removed, and processes that are left on its nodes are killed.
func New(t testing.TB) *Wire {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("only root can make network namespaces") // not memtest.Skip: CI may be another user
	}
	for _, tool := range []string{"ip", "nft", "tc"} {
		if _, err := exec.LookPath(tool); err != nil {
			memtest.Skip(t, "nodes in network namespaces need the program %s (of iproute2, nftables)", tool)
		}
	}
	Alone(t)
	sweep()
	n := wires.Add(1)
	w := &Wire{t: t, id: fmt.Sprintf("%dx%d", os.Getpid(), n)}
	w.base = w.subnet(os.Getpid()*4 + int(n))
	t.Cleanup(func() {
		for _, node := range w.order {
			removeSpace(w.space(node)) // its cable goes with it
		}
	})
	bridge := "pb" + w.id
	if _, err := command("ip", "link", "add", bridge, "type", "bridge"); err != nil {
		lacks(t, err, "no network can be made here")
	}
	t.Cleanup(func() { command("ip", "link", "del", bridge) })
	w.run("ip", "addr", "add", w.At(1)+"/28", "dev", bridge)
	w.run("ip", "link", "set", bridge, "up")
	t.Cleanup(func() { command("nft", "delete", "table", "inet", w.table()) })
	if _, err := command("nft", fmt.Sprintf("add table inet %[1]s; add chain inet %[1]s in { type filter hook input priority 0; }; add chain inet %[1]s out { type filter hook output priority 0; }", w.table())); err != nil {
		lacks(t, err, "packets cannot be dropped here")
	}
	t.Cleanup(func() {
		if w.broken {
			w.Heal()
		}
	})
	return w
}

// lacks skips a test that this machine does not allow. When CI=true it fails, but for what its containers may not do even as root.
func lacks(t testing.TB, err error, what string) {
	t.Helper()
	if errors.Is(err, os.ErrPermission) || strings.Contains(err.Error(), "Operation not permitted") {
		t.Skipf("%s: %v", what, err)
	}
	memtest.Skip(t, "%s: %v", what, err)
}

// command runs one of the tools; its output is in the error.
func command(argv ...string) (string, error) {
	out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, out)
	}
	return string(out), err
}

func (w *Wire) run(argv ...string) string {
	w.t.Helper()
	out, err := command(argv...)
	if err != nil {
		w.t.Fatal(err)
	}
	return out
}

// sweep removes what processes that are not there any more have left.
func sweep() {
	for _, x := range []struct{ list, remove []string }{
		{[]string{"ip", "netns", "list"}, nil},
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
				if x.remove == nil {
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

// subnet is a /28 of 198.18.0.0/15, which is for tests of networks, that nobody on this machine has: the k-th, or one after it.
func (w *Wire) subnet(k int) net.IP {
	taken := map[string]bool{}
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		w.t.Fatal(err)
	}
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok {
			taken[n.IP.Mask(net.CIDRMask(28, 32)).String()] = true
		}
	}
	for ; ; k++ {
		if ip := net.IPv4(198, 18+byte(k>>12&1), byte(k>>4), byte(k<<4)); !taken[ip.String()] {
			return ip
		}
	}
}

// At is an address of the network; At(1) is the head's.
func (w *Wire) At(i int) string {
	ip := slices.Clone(w.base.To4())
	ip[3] += byte(i)
	return ip.String()
}

// Addr is that of a node.
func (w *Wire) Addr(node string) string { return w.At(2 + slices.Index(w.order, node)) }

func (w *Wire) space(node string) string { return "penstock-" + w.id + "-" + node }

func (w *Wire) table() string { return "penstock_" + w.id }

// link is our end of a node's cable.
func (w *Wire) link(node string) string {
	return fmt.Sprintf("pv%s%d", w.id, slices.Index(w.order, node))
}

// Plug makes the namespace of a node.
func (w *Wire) Plug(node string) {
	w.t.Helper()
	w.order = append(w.order, node)
	space := w.space(node)
	w.run("ip", "netns", "add", space)
	w.run("ip", "link", "add", w.link(node), "type", "veth", "peer", "name", "eth0", "netns", space)
	w.run("ip", "link", "set", w.link(node), "master", "pb"+w.id, "up")
	w.run("ip", "-n", space, "addr", "add", w.Addr(node)+"/28", "dev", "eth0")
	w.run("ip", "-n", space, "link", "set", "eth0", "up")
	w.run("ip", "-n", space, "link", "set", "lo", "up")
}

// In is what stands before a command that runs on a node.
func (w *Wire) In(node string) []string { return []string{"ip", "netns", "exec", w.space(node)} }

// ToHead drops what a node says to the head.
func (w *Wire) ToHead(node string) {
	w.t.Helper()
	w.broken = true
	w.run("nft", "add rule inet "+w.table()+" in ip saddr "+w.Addr(node)+" counter drop")
}

// ToNode drops what the head says to a node.
func (w *Wire) ToNode(node string) {
	w.t.Helper()
	w.broken = true
	w.run("nft", "add rule inet "+w.table()+" out ip daddr "+w.Addr(node)+" counter drop")
}

// Between drops what a node says to another.
func (w *Wire) Between(from, to string) {
	w.t.Helper()
	w.cut(to, "in", "input", "ip saddr "+w.Addr(from))
}

// Lossy loses so many of a hundred packets, at most 99, on a node's cable, each way, whoever they are from or for.
func (w *Wire) Lossy(node string, percent int) {
	w.t.Helper()
	lost := fmt.Sprintf("meta protocol ip numgen random mod 100 < %d", percent) // not what a network says to itself by IPv6: it would count as a fault
	w.cut(node, "lost", "ingress device eth0", lost)
	w.run("nft", fmt.Sprintf("add chain inet %[1]s %[2]s { type filter hook ingress device %[2]s priority 0; }; add rule inet %[1]s %[2]s %[3]s counter drop", w.table(), w.link(node), lost))
}

// cut drops what a rule says in the namespace of a node.
func (w *Wire) cut(node, chain, hook, what string) {
	w.t.Helper()
	w.broken = true
	w.run(append(w.In(node), "nft", fmt.Sprintf("add table inet cut; add chain inet cut %[1]s { type filter hook %[2]s priority 0; }; add rule inet cut %[1]s %[3]s counter drop", chain, hook, what))...)
	if !slices.Contains(w.cuts, node) {
		w.cuts = append(w.cuts, node)
	}
}

// Heal ends what [Wire.ToHead], [Wire.ToNode], [Wire.Between], [Wire.Lossy] and [Wire.Delay] do. What dropped or delayed nothing was no fault, and fails the test. What still stands when the test ends is healed then.
func (w *Wire) Heal() {
	w.t.Helper()
	rules := w.run("nft", "list", "table", "inet", w.table())
	w.run("nft", "flush", "table", "inet", w.table())
	for _, node := range w.cuts {
		rules += w.run(append(w.In(node), "nft", "list", "table", "inet", "cut")...)
		w.run(append(w.In(node), "nft", "delete", "table", "inet", "cut")...)
	}
	if !w.broken || strings.Contains(rules, "counter packets 0 ") {
		w.t.Errorf("nothing was dropped: %s", rules)
	}
	for _, d := range w.late {
		w.inTime(d)
	}
	w.broken, w.cuts, w.late = false, nil, nil
}

// Cable takes a node's cable away ("down"), of which nobody on the node is told, or brings it back ("up").
func (w *Wire) Cable(node, how string) {
	w.t.Helper()
	w.run("ip", "link", "set", w.link(node), how)
}

// Slow limits both directions of a node's cable to a rate, as tc writes it.
func (w *Wire) Slow(node, rate string) {
	w.t.Helper()
	tbf := []string{"root", "tbf", "rate", rate, "burst", "16kb", "latency", "200ms"}
	w.run(append([]string{"tc", "qdisc", "add", "dev", w.link(node)}, tbf...)...)
	w.run(append([]string{"tc", "-n", w.space(node), "qdisc", "add", "dev", "eth0"}, tbf...)...)
}

// Slowed is how many packets to a node had to wait.
func (w *Wire) Slowed(node string) (n int) {
	w.t.Helper()
	_, rest, _ := strings.Cut(w.run("tc", "-s", "qdisc", "show", "dev", w.link(node)), "overlimits ")
	_, _ = fmt.Sscan(rest, &n)
	return n
}
