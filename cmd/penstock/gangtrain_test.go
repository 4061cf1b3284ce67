//go:build linux

package main

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/memtest"
)

// nodesOf is a cluster with two nodes of four CPUs.
func nodesOf(t *testing.T) *testCluster {
	c := newTestCluster(t)
	for _, name := range []string{"a", "b"} {
		c.join(name, "--cpus", "4", "--token", strings.TrimSpace(c.ok("token", "create")))
	}
	return c
}

// A training run on two nodes: programs see what torchrun would say, node 0 says how it ended, and all of it exits as the run did.
func TestTrainOnNodes(t *testing.T) {
	c := nodesOf(t)
	work, storage := t.TempDir(), t.TempDir()
	if err := os.CopyFS(filepath.Join(work, "examples"), os.DirFS("../../examples")); err != nil {
		t.Fatal(err)
	}
	train := func(name, script string, more ...string) result {
		return penstock(t, append(append([]string{"train", filepath.Join(work, "examples", "train.yaml"), "--cluster", c.head, "--working-dir", work, "--nodes", "2", "--workers", "4", "--storage", storage, "--name", name}, more...), "--", "sh", "-c", script)...)
	}
	r := train("echo", `echo "I am $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $GROUP_RANK/$GROUP_WORLD_SIZE $NODE_RANK at $MASTER_ADDR ${MASTER_PORT:+port} $PENSTOCK_GANG"`)
	if r.code != 0 || strings.Count(r.out, "finished after 0 reports") != 1 {
		t.Fatalf("%+v", r)
	}
	var said []string
	for line := range strings.Lines(r.out) {
		if _, what, ok := strings.Cut(line, "I am "); ok {
			said = append(said, strings.TrimSpace(what))
		}
	}
	slices.Sort(said)
	if s := strings.Join(said, "\n"); s != "0/4 0/2 0/2 0 at 127.0.0.1 port\n1/4 1/2 0/2 0 at 127.0.0.1 port\n2/4 0/2 1/2 1 at 127.0.0.1 port\n3/4 1/2 1/2 1 at 127.0.0.1 port" {
		t.Errorf("%s", s)
	}
	if s := ok(t, "status", "echo", "--storage", storage); !strings.Contains(s, "finished") {
		t.Errorf("the run: %s", s)
	}
	if r = train("echo", "true"); r.code != exitUsage || !strings.Contains(r.out+r.err, `there is a run "echo"`) || !strings.Contains(r.out+r.err, "--name echo --resume") || strings.Contains(r.out+r.err, "penstock resume") {
		t.Errorf("a name that is taken: %+v", r)
	}
	// A worker of node 1 fails: the first cause is what the job says, once for each node, and its exit code is the run's.
	r = train("fails", `[ $RANK != 3 ] || { echo "this is why"; exit 7; }`, "--set", "train.failures.worker=0")
	if r.code != exitFailed || !strings.Contains(r.out+r.err, "rank 3") || !strings.Contains(r.out, "this is why") || !strings.Contains(r.out+r.err, "exit code 7") {
		t.Errorf("%+v", r)
	}
	// What the nodes do not share is refused.
	r = c.call("train", filepath.Join(work, "examples", "train.yaml"), "--working-dir", work, "--nodes", "2", "--storage", "penstock-runs")
	if r.code != exitUsage || !strings.Contains(r.err, "a bucket, or an absolute path") {
		t.Errorf("%+v", r)
	}
}

// A training run with a data node: workers get the batches of one machine, and are all on the other node. What a data node needs is its own.
func TestTrainDataNodes(t *testing.T) {
	c := newTestCluster(t)
	join := func(name string, more ...string) {
		c.join(name, append(more, "--token", strings.TrimSpace(c.ok("token", "create")))...)
	}
	join("a", "--cpus", "1", "--labels", "role=data")
	join("b", "--cpus", "4")
	whole := t.TempDir()
	if r := penstock(t, "train", trainSpec(t, t.TempDir(), "out: "+whole)); r.code != 0 {
		t.Fatalf("%+v", r)
	}
	want, digests := stepsIn(t, whole)
	dir, out := t.TempDir(), t.TempDir()
	spec := trainSpec(t, dir, "out: "+out)
	logs := filepath.Join(dir, "logs")
	train := func(more ...string) result {
		return c.call(append([]string{"train", spec, "--working-dir", dir, "--data-nodes", "1", "--data-labels", "role=data", "--data-memory", "1GiB"}, more...)...)
	}
	if r := train("--name", "reads", "--id", "reads", "--set", "train.logs="+logs); r.code != 0 || !strings.Contains(r.err, "is on nodes n2 data n1, attempt 1") {
		t.Fatalf("%+v", r)
	}
	got, gave := stepsIn(t, out)
	if len(want) == 0 || !reflect.DeepEqual(got, want) || !maps.Equal(gave, digests) {
		t.Errorf("%d steps are not those of one machine, %d", len(got), len(want))
	}
	for _, name := range []string{"data.log", "data-1.log"} { // a data process on each node
		if _, err := os.Stat(filepath.Join(logs, name)); err != nil {
			t.Error(err)
		}
	}
	var j jobJSON
	if err := json.Unmarshal([]byte(c.ok("jobs", "reads", "--json")), &j); err != nil || j.Size != 2 || j.DataNodes != 1 || !slices.Equal(j.Nodes, []string{"n2", "n1"}) ||
		j.Needs.CPUs != 2 || j.DataNeeds == nil || j.DataNeeds.CPUs != 1 || j.DataNeeds.Memory != 1<<30 || j.Needs.Memory != 0 {
		t.Errorf("%+v, %v", j, err)
	}
	if s := c.ok("jobs"); !strings.Contains(s, "n2 data n1") {
		t.Errorf("%s", s)
	}
	// What no node has is waited for, and said.
	c.ok("train", spec, "--working-dir", dir, "--data-nodes", "1", "--data-labels", "role=reader", "--detach", "--id", "waits", "--name", "waits")
	if s := c.ok("jobs", "waits"); !strings.Contains(s, "no node that takes work has the labels role=reader") || !strings.Contains(s, "- of 2") {
		t.Errorf("%s", s)
	}
	c.ok("stop", "waits")
	c.ok("train", spec, "--working-dir", dir, "--data-nodes", "1", "--data-cpus", "3", "--data-labels", "role=data", "--detach", "--id", "large", "--name", "large")
	if s := c.ok("jobs", "large"); !strings.Contains(s, "it needs 3 CPUs on one node; the most that one with the labels role=data has is 1 CPU") {
		t.Errorf("%s", s)
	}
	c.ok("stop", "large")
}

// DDP on two nodes, of which one is killed in the midst of it, has the losses of one node, bit by bit.
func TestPyTorchOnNodes(t *testing.T) {
	const workers = 2
	p := newPytorch(t)
	ledger, losses, _ := p.whole(t, workers)
	c := nodesOf(t)
	out, storage := t.TempDir(), t.TempDir()
	spec := p.spec(t, out, storage, "sync", workers)
	d := stay(t, "train", spec, "--cluster", c.head, "--working-dir", filepath.Dir(spec), "--nodes", "2", "--name", "nodes", "--id", "nodes")
	late := time.After(4 * time.Minute) // frameworks take long to start
	if !memtest.Poll(4*time.Minute, func() bool {
		_, err := os.Stat(filepath.Join(storage, "nodes", "checkpoints", "000002.json"))
		select {
		case <-d.ended:
			t.Fatal("it ended before its node was killed")
		default:
		}
		return err == nil
	}) {
		t.Fatal("it has no checkpoint")
	}
	c.kill("n2")
	select {
	case <-d.ended:
	case <-late:
		t.Fatal("it does not end")
	}
	if code := d.cmd.ProcessState.ExitCode(); code != 0 || !strings.Contains(d.String(), "attempt 2") {
		t.Fatalf("exit %d: %s", code, d)
	}
	if got := written(t, out, "ledger", 0); !maps.Equal(got, ledger) {
		t.Errorf("%d samples are not those of one node", len(got))
	}
	if got := written(t, out, "loss", workers); !maps.Equal(got, losses) {
		t.Errorf("%d losses are not those of one node", len(got))
	}
}
