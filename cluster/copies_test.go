//go:build linux

package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// copyOf copies a folder.
func copyOf(t *testing.T, from, to string) {
	t.Helper()
	if out, err := exec.Command("cp", "-a", from, to).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

// A head that is started with an older copy of its folder gives the number of a job again: what a node still has of the job that had it before is ended, and says nothing of the new one, which runs and has a log of its own.
func TestOlderFolder(t *testing.T) {
	c := newChaos(t, free(t))
	c.start("a")
	c.h.kill()
	older := filepath.Join(c.dir, "older")
	copyOf(t, c.cfg.Dir, older)
	c.startHead()
	c.nodeIs("a", "alive")
	at := func(name string) string { return filepath.Join(c.results, name) }
	first := c.submit(sh(fmt.Sprintf(`trap 'while [ ! -e %[1]s ]; do sleep 0.05; done; exit 0' TERM; echo "$PENSTOCK_NODE $$" >> %[2]s; echo of the first; while :; do sleep 0.05; done`, at("go"), at("job0.ran"))))
	c.jobs = []string{first}
	_, pid := c.begun(0)
	c.h.kill()
	must(t, os.RemoveAll(c.cfg.Dir))
	must(t, os.Rename(older, c.cfg.Dir))
	c.startHead()
	c.nodeIs("a", "alive")
	c.nodes["a"].says("a process that nobody wants any more is ended")
	second := c.submit(sh("echo of the second; touch " + at("second")))
	if second != first {
		t.Fatalf("job %s after %s: the folder is not older", second, first)
	}
	must(t, os.WriteFile(at("go"), nil, 0o600))
	c.finished(second, 1)
	if _, err := os.Stat(at("second")); err != nil {
		t.Errorf("it did not run: %v", err)
	}
	if got := c.logs(second, false); got != "of the second\n" {
		t.Errorf("its log: %q", got)
	}
	c.gone(pid)
}

// Of two agents with copies of one folder the second is refused, and ends; the first one's jobs go on. One that follows another takes its place: at once where that one is gone, within the lease where it is silent.
func TestCopiedNode(t *testing.T) {
	c := leased(t, 4*time.Second, free(t))
	first := c.start("a")
	c.work(1, 120) // longer than it takes to refuse two
	c.begun(0)
	cfg := c.node("a", Resources{CPUs: 2, Memory: 1 << 30})
	cfg.Dir = filepath.Join(c.dir, "copy")
	copyOf(t, filepath.Join(c.dir, "a"), cfg.Dir)
	for _, name := range []string{"a", "b"} { // whatever it is called
		cfg.Name = name
		n, err := Join(c.ctx(), c.addr, "", cfg)
		must(t, err)
		select {
		case <-n.Done():
		case <-c.ctx().Done():
			t.Fatal("the second goes on")
		}
		wantCode(t, n.Err(), fault.Invalid, "another agent with the identity of node n1 (name a) is attached from 127.0.0.1", "penstock token create", "--dir")
		n.Close()
	}
	c.h.says("a second agent with its identity is refused")
	if first.hasSaid("is not reached") {
		t.Error("the first was thrown out")
	}
	c.all(1)

	// It is killed, and comes again.
	first.kill()
	again := c.start("a")
	again.says("attached to the head as node n1")
	if c.h.hasSaid("node n1 (a) is lost") {
		t.Error("it waited for the lease")
	}
	// It stands still, and the copy takes its place.
	again.signal(syscall.SIGSTOP)
	began := time.Now()
	cfg.Name = "a"
	n, err := Join(c.ctx(), c.addr, "", cfg)
	must(t, err)
	t.Cleanup(func() { n.Close() })
	select {
	case <-n.attached:
		t.Logf("it is attached after %v, with a lease of 4 s", time.Since(began).Round(10*time.Millisecond))
	case <-n.Done():
		t.Fatal(n.Err())
	case <-c.ctx().Done():
		t.Fatal("it is not attached")
	}
	// Now that one is the node, and the first is refused.
	again.signal(syscall.SIGCONT)
	again.says("another agent with the identity of node n1 (name a)")
	<-again.ended
	c.work(1, 1)
	c.all(1)
}
