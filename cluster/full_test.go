//go:build linux

package cluster

import (
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/hosttest"
)

// folder is one with a file of random bytes.
func folder(t *testing.T, size int) string {
	dir := t.TempDir()
	b := make([]byte, size)
	_, _ = rand.Read(b)
	must(t, os.WriteFile(filepath.Join(dir, "data"), b, 0o644))
	return dir
}

// What does not fit on the disk of a node runs on another, and says why; the node goes on.
func TestFullNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	dir := filepath.Join(c.dir, "a")
	hosttest.Small(t, dir, "2m,nr_inodes=100")
	c.join("a", Resources{CPUs: 1})
	j := sh(`echo on $PENSTOCK_NODE`)
	j.WorkingDir = folder(t, 3<<20)
	id := c.submit(j)
	s := c.until(id, func(s *JobStatus) bool { return s.State == "restarting" || s.Over() })
	if !strings.Contains(s.Why, "unfit: node n1 could not prepare it") || !strings.Contains(s.Why, "no space") {
		t.Errorf("%+v", s)
	}
	c.join("b", Resources{CPUs: 1})
	if s := c.over(id); s.State != "finished" || s.Failures["unfit"] < 1 {
		t.Errorf("%+v", s)
	}
	if got := c.logs(id, false); !strings.Contains(got, "on n2") {
		t.Errorf("logs: %q", got)
	}
	must(t, c.client.Drain(c.ctx(), "b", 0))
	// What is printed does not fit: the log lacks it, and the job does not fail by that.
	id = c.submit(sh(`head -c 8000000 /dev/zero | tr '\0' '\n'; echo end`))
	if s := c.finished(id, 1); !strings.HasPrefix(s.Why, "its log lacks lines: write ") || !strings.HasSuffix(s.Why, "no space left on device") {
		t.Errorf("%+v", s)
	}
	if got := c.logs(id, false); len(got) < 100_000 || len(got) > 4<<20 {
		t.Errorf("%d bytes of logs", len(got))
	}
	// There is no room for another file: however far its start comes, that is no failure of the program.
	must(t, os.RemoveAll(filepath.Join(dir, "logs")))
	var left []string
	for i := 0; ; i++ {
		name := filepath.Join(dir, fmt.Sprint("f", i))
		if err := os.WriteFile(name, nil, 0o600); err != nil {
			break
		}
		left = append(left, name)
	}
	for free := 0; ; free++ {
		id = c.submit(sh(`true`))
		s = c.until(id, func(s *JobStatus) bool { return s.State == "restarting" || s.Over() })
		if s.State == "finished" && free > 3 {
			break
		}
		if s.State != "restarting" || !strings.Contains(s.Why, "unfit: node n1 could not") || !strings.Contains(s.Why, "no space") {
			t.Fatalf("%d files fit: %+v", free, s)
		}
		must(t, c.client.StopJob(c.ctx(), id, 0))
		must(t, os.RemoveAll(filepath.Join(dir, "logs"))) // what it began takes files too
		must(t, os.Remove(left[free]))
	}
}

// The disk of the head is full: what is new is refused, and where not even the store has room the head ends, both with the reason. Nothing that was said to be done is lost, and with room it goes on.
func TestFullHead(t *testing.T) {
	t.Parallel()
	c := &chaos{nodes: map[string]*actor{}, results: t.TempDir()}
	c.t, c.dir = t, shortDir(t)
	dir := filepath.Join(c.dir, "head")
	hosttest.Small(t, dir, "160m")
	c.cfg = HeadConfig{Dir: dir, Listen: free(t), Lease: 2 * time.Second}
	c.startHead()
	c.start("a")
	runs := c.submit(sh("while [ ! -e " + c.results + "/go ]; do sleep 0.05; done"))
	c.until(runs, func(s *JobStatus) bool { return s.State == "running" })
	free := hosttest.Fill(t, dir)
	j := sh("true")
	j.WorkingDir = folder(t, 1<<20)
	_, _, err := c.client.Submit(c.ctx(), j)
	wantCode(t, err, fault.Exhausted, "no space")
	j.WorkingDir, j.Secrets = "", map[string]string{"KEY": strings.Repeat("x", 8000)}
	_, _, err = c.client.Submit(c.ctx(), j)
	wantCode(t, err, fault.Exhausted, "secrets", "no space")
	// Records go on for as long as the store has room in its files, which may be none.
	j.Secrets, j.Env = nil, map[string]string{"X": strings.Repeat("x", 30<<10)}
	var done []string
	for range 1000 {
		id := ""
		if id, _, err = c.client.Submit(c.ctx(), j); err != nil {
			break
		}
		done = append(done, id)
	}
	t.Logf("after %d jobs: %v", len(done), err)
	ended := err != nil && strings.Contains(err.Error(), "head.sock: connect: ") // between two jobs
	if err == nil || !ended && !strings.Contains(err.Error(), "disk is full") {
		t.Errorf("after %d jobs: %v", len(done), err)
	}
	free()
	select {
	case <-c.h.ended:
	case <-c.ctx().Done():
		t.Fatal("the head stays without a store")
	}
	c.h.says("its disk is full")
	c.startHead()
	must(t, os.WriteFile(filepath.Join(c.results, "go"), nil, 0o644))
	c.finished(runs, 1)
	for _, id := range done {
		c.finished(id, 0) // it was taken
	}
	j.Env = nil
	c.finished(c.submit(j), 0)
}
