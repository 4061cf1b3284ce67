package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/memtest"
)

// The first attempt has a child, a grandchild that SIGTERM does not end, and one in a session of its own. The second says which of them live.
const leaves = `#!/bin/sh
if [ -e $1/first ]; then
	left=none
	for p in $(cat $1/pids); do
		if grep -qs 'State:.[^ZX]' /proc/$p/status; then left=$p; kill -9 $p; fi
	done
	echo $left > $2
	exit
fi
touch $1/first
(
	trap : TERM
	sh -c 'echo $PPID' >> $1/pids
	sh -c 'trap "" TERM; echo $$ >> $0/pids; echo ready > $1; while :; do sleep 1; done' $1 $2 &
	while :; do wait; done
) &
setsid sh -c 'echo $$ >> $0/pids; echo ready > $1; exec sleep 1000' $1 $2 &
wait
`

// What the agent of a node leaves that is killed with SIGKILL ends before the node has work again.
func TestAgentKilled(t *testing.T) {
	c := newTestCluster(t)
	a := c.join("a", "--token", strings.TrimSpace(c.ok("token", "create")))
	tmp := t.TempDir()
	up, wait := fifo(t, tmp, "up")
	work := t.TempDir()
	if err := os.WriteFile(filepath.Join(work, "job.sh"), []byte(leaves), 0o755); err != nil {
		t.Fatal(err)
	}
	r := penstock(t, "submit", "--cluster", c.head, "--working-dir", work, "--detach", "--", "./job.sh", tmp, up)
	if r.code != 0 {
		t.Fatalf("%+v", r)
	}
	id := strings.TrimSpace(r.out)
	wait()
	wait()
	a.signal(syscall.SIGKILL)
	a.code()
	b := c.join("a")
	if left := wait(); left != "none" {
		t.Errorf("beside the second attempt process %s of the first runs", left)
	}
	if j := c.until(id, func(j jobJSON) bool { return j.State == "finished" || j.State == "failed" }); j.State != "finished" || j.Attempts != 2 {
		t.Errorf("%+v", j)
	}
	if !strings.Contains(b.String(), "processes were ended that an agent before this one") {
		t.Errorf("the node does not say what it ended:\n%s", b)
	}
}

// stop --all does not say that everything has ended where a node was not heard.
func TestStopAllWithoutNode(t *testing.T) {
	c := newTestCluster(t)
	c.join("a", "--token", strings.TrimSpace(c.ok("token", "create")))
	b := c.join("b", "--token", strings.TrimSpace(c.ok("token", "create")))
	b.signal(syscall.SIGSTOP)
	if !memtest.Poll(30*time.Second, func() bool { return strings.Contains(c.ok("status"), " lost ") }) {
		t.Fatal("node b is not lost")
	}
	r := c.call("stop", "--all", "--grace", "5s")
	if r.code != 1 || r.out != "" || !strings.Contains(r.err, "n2 (b, lost, ") || strings.Contains(r.err, "n1") || !strings.Contains(r.err, "end its penstock join (SIGTERM) on its machine") {
		t.Errorf("%+v", r)
	}
	if code := c.first.code(); code != 0 {
		t.Errorf("the head: exit %d", code)
	}
	b.signal(syscall.SIGCONT)
	b.signal(syscall.SIGTERM)
	b.code()
}
