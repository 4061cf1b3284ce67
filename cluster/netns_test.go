//go:build linux

package cluster

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/hosttest"
)

// wire is a cluster whose head is at the host side of a network, and its nodes behind it.
type wire struct {
	*chaos
	*hosttest.Wire
}

// newWire starts a head on a network.
func newWire(t *testing.T, lease time.Duration) *wire {
	w := &wire{&chaos{nodes: map[string]*actor{}, results: t.TempDir()}, hosttest.New(t)}
	w.t, w.dir = t, shortDir(t)
	w.cfg = HeadConfig{Dir: filepath.Join(w.dir, "head"), Listen: w.At(1) + ":0", Lease: lease}
	w.startHead()
	return w
}

// join starts a node in a namespace of its own.
func (w *wire) join(node string) *actor {
	w.t.Helper()
	w.Plug(node)
	return w.start(node, w.In(node)...)
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
	ctx, cancel := context.WithCancel(w.ctx())
	defer cancel()
	defer time.AfterFunc(most, cancel).Stop() // no deadline: the head would end the call at it, too, and sometimes first
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
		cut  []func(*hosttest.Wire, string)
	}{
		{"the head does not hear the node", []func(*hosttest.Wire, string){(*hosttest.Wire).ToHead}},
		{"the node does not hear the head", []func(*hosttest.Wire, string){(*hosttest.Wire).ToNode}},
		{"neither hears the other", []func(*hosttest.Wire, string){(*hosttest.Wire).ToHead, (*hosttest.Wire).ToNode}},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			w := newWire(t, 2*time.Second)
			w.join("a")
			w.waits()
			_, pid := w.begun(0)
			w.join("b")
			for _, cut := range x.cut {
				cut(w.Wire, "a")
			}
			began := time.Now()
			w.nodeIs("a", "lost")
			t.Logf("lost after %v, with a lease of 2 s", time.Since(began).Round(10*time.Millisecond))
			w.until(w.jobs[0], func(s *JobStatus) bool { return s.State == "running" && s.Attempts == 2 })
			if err := syscall.Kill(pid, 0); err != nil {
				t.Errorf("a node that nobody could tell anything ended what it ran: %v", err)
			}
			w.Heal()
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
	w.ToHead("a")
	w.ToNode("a")
	w.waits() // what the node is told of it comes late
	w.never("a", time.Second, func() bool { return false }, "lost")
	w.Heal()
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
	if s.Nodes[0].Address != w.Addr("a") {
		t.Errorf("the node is at %s, not %s", s.Nodes[0].Address, w.Addr("a"))
	}
	w.Slow("a", "6mbit")
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
	w.finished(id, 1)
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
	own := w.start("own") // beside the head
	id := w.gang(3)
	where := map[string]string{w.nodes["a"].ready: w.Addr("a"), w.nodes["b"].ready: w.Addr("b"), own.ready: w.At(1)}
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
	w.Cable("b", "down") // nobody hears it, and nobody is told
	for _, m := range w.met(id, 2, 3) {
		if m.Node == lost.Node {
			t.Errorf("%+v is on the node that is not reached", m)
		}
	}
	w.Cable("b", "up")
	w.nodeIs("b", "alive")
	w.gone(lost.PID)
	w.letGo()
	if s := w.finished(id, 2); len(s.Failures) != 1 {
		t.Errorf("%+v", s)
	}
}
