//go:build linux

package main

import (
	"bytes"
	"crypto/rand"
	"fmt"
	mrand "math/rand/v2"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/hosttest"
	"github.com/penstock-data/penstock/internal/testserver"
)

// trouble is one fault, that happens to a job on two of three nodes, a, b and c.
type trouble struct {
	name  string
	quick bool // make test has it, with shards
	o     worldOptions
	free  bool // the job is not held in its midst
	s3    bool // the storage of a training run is a bucket
	alone bool // the nodes come, and the job is submitted, in do
	do    func(j *chaosJob) wants
}

// troubles are what must not change any result.
var troubles = []trouble{
	{name: "a worker is killed", do: func(j *chaosJob) wants {
		j.midst(1)
		j.kill("", workerKind)
		j.letGo()
		return wants{restart: true}
	}},
	{name: "faults exhaust the retries", quick: true, do: func(j *chaosJob) wants {
		j.note("fault", "always")
		j.letGo()
		j.happened("workers panic always")
		if j.kind == scanJob {
			return wants{why: []string{"gave up after losing 3 workers", "flights.parquet, row group"}}
		}
		return wants{why: []string{"rank 1", "a fault of the test"}}
	}},
	{name: "a worker panics", do: func(j *chaosJob) wants {
		j.note("fault", "once")
		j.letGo()
		j.before("a panic", func() bool {
			_, err := os.Stat(filepath.Join(j.notes, "fault"))
			return os.IsNotExist(err)
		})
		j.happened("a worker panicked")
		return wants{restart: true}
	}},
	{name: "a member is killed in its midst", quick: true, do: func(j *chaosJob) wants {
		j.midst(1)
		j.kill(j.on(j.rnd.IntN(2)), memberKind)
		j.letGo()
		return wants{again: true}
	}},
	{name: "a member is killed when it has saved", quick: true, free: true, s3: true, do: func(j *chaosJob) wants {
		n := int64(1)
		if j.kind != scanJob {
			j.hold() // not far behind
			n = int64(j.holdAt / chaosEvery)
		}
		node := j.on(j.rnd.IntN(2))
		j.saved(n)
		if j.kind == scanJob {
			j.hold()
		}
		j.kill(node, memberKind)
		j.letGo()
		return wants{again: true}
	}},
	{name: "an agent is killed and comes back", quick: true, do: func(j *chaosJob) wants {
		j.midst(1)
		j.again(j.on(j.rnd.IntN(2)))
		j.letGo()
		return wants{again: true}
	}},
	{name: "all processes are killed at once", quick: true, do: func(j *chaosJob) wants {
		j.midst(1)
		j.killAll()
		j.letGo()
		return wants{again: true}
	}},
	{name: "the head is killed and comes back", quick: true, do: func(j *chaosJob) wants {
		j.midst(1)
		j.headAgain()
		for _, n := range []string{"a", "b", "c"} {
			j.nodeIs(n, "alive")
		}
		j.letGo()
		return wants{}
	}},
	{name: "a node is frozen", quick: true, do: func(j *chaosJob) wants {
		j.midst(1)
		node := j.on(j.rnd.IntN(2))
		j.freeze(node)
		j.nodeIs(node, "lost")
		j.midst(2)
		if j.rnd.IntN(2) == 0 {
			j.letGo()
			j.until("the end of the job", j.job.over)
			j.thaw(node)
			j.nodeIs(node, "alive")
			return wants{again: true}
		}
		j.thaw(node)
		j.nodeIs(node, "alive")
		j.letGo()
		return wants{again: true}
	}},
	{name: "the head does not hear a job's nodes, which go on", quick: true, o: worldOptions{wire: true}, alone: true, do: func(j *chaosJob) wants {
		j.join("a")
		j.join("b")
		j.submit()
		j.midst(1)
		j.join("c")
		j.join("d")
		j.wire.ToHead("a")
		j.wire.ToHead("b")
		j.happened("the head does not hear nodes a and b")
		j.nodeIs("a", "lost")
		j.nodeIs("b", "lost")
		j.midst(2)
		// Both copies; but one of PyTorch, whose second copy takes its time to import that, may have seen that it was overtaken.
		if n := len(j.of("", memberKind)); n != 4 && j.kind != torchJob {
			j.t.Errorf("%d members: %+v", n, j.of("", ""))
		}
		j.letGo() // both copies
		j.until("the end of the job", j.job.over)
		j.wire.Heal()
		j.nodeIs("a", "alive")
		j.nodeIs("b", "alive")
		return wants{again: true}
	}},
	{name: "a node's cable is out", o: worldOptions{wire: true}, do: func(j *chaosJob) wants {
		j.midst(1)
		node := j.on(j.rnd.IntN(2))
		j.wire.Cable(node, "down")
		j.happened("the cable of node %s is out", node)
		j.nodeIs(node, "lost")
		j.midst(2)
		j.wire.Cable(node, "up")
		j.letGo()
		j.nodeIs(node, "alive")
		return wants{again: true}
	}},
	{name: "one node does not hear the other", o: worldOptions{wire: true}, do: func(j *chaosJob) wants {
		j.midst(1)
		from := j.rnd.IntN(2)
		j.wire.Between(j.on(from), j.on(1-from))
		j.happened("node %s does not hear node %s", j.on(1-from), j.on(from))
		j.before("an attempt that failed", func() bool { s := j.status(); return s.Attempts > 1 || s.State == "restarting" })
		j.wire.Heal() // until then the next one is started on the same nodes, which wait for each other
		j.letGo()
		return wants{again: true}
	}},
	{name: "a disk is full", o: worldOptions{small: "24m"}, do: func(j *chaosJob) wants {
		if j.kind == scanJob {
			return j.fullOutput()
		}
		j.midst(1)
		free := j.fill(filepath.Join(j.dir, j.on(0))) // rank 0 saves there
		j.letGo()
		j.before("a worker's next start", func() bool {
			logs, _ := filepath.Glob(filepath.Join(j.notes, "logs", "attempt-2", "rank-0.log"))
			return len(logs) > 0
		})
		free()
		b, _ := os.ReadFile(filepath.Join(j.notes, "logs", "attempt-1", "rank-0.log"))
		if !bytes.Contains(b, []byte("o space left")) && (j.kind != torchJob || !bytes.Contains(b, []byte(", in save\n"))) { // torch.save does not say why it cannot write
			j.t.Errorf("rank 0 did not see it: %s", b)
		}
		return wants{restart: true}
	}},
	{name: "a link is slow", o: worldOptions{wire: true}, free: true, alone: true, do: func(j *chaosJob) wants {
		for _, n := range []string{"a", "b"} {
			j.join(n)
			j.wire.Slow(n, "2mbit")
		}
		b := make([]byte, 512<<10) // which every node fetches
		_, _ = rand.Read(b)
		if err := os.WriteFile(filepath.Join(filepath.Dir(j.spec), "data"), b, 0o644); err != nil {
			j.t.Fatal(err)
		}
		j.submit()
		j.until("the end of the job", j.job.over)
		for _, n := range []string{"a", "b"} {
			if j.wire.Slowed(n) > 0 {
				j.happened("%d packets to node %s had to wait", j.wire.Slowed(n), n)
			}
		}
		return wants{}
	}},
	{name: "links lose packets", quick: true, o: worldOptions{wire: true}, free: true, alone: true, do: func(j *chaosJob) wants {
		for _, n := range []string{"a", "b"} {
			j.join(n)
			j.wire.Lossy(n, 3)
		}
		j.happened("of a hundred packets each cable loses 3")
		j.submit()
		j.until("the end of the job", j.job.over)
		j.wire.Heal()
		return wants{}
	}},
	{name: "links are late", o: worldOptions{wire: true}, free: true, alone: true, do: func(j *chaosJob) wants {
		for _, n := range []string{"a", "b"} {
			j.join(n)
			j.wire.Delay(n, 10*time.Millisecond, 10*time.Millisecond) // each way: an answer of the other node takes 40 to 80
		}
		j.happened("what comes through a cable is late")
		j.submit()
		j.until("the end of the job", j.job.over)
		j.wire.Heal()
		return wants{}
	}},
	{name: "the store is away", o: worldOptions{etcd: true}, do: func(j *chaosJob) wants {
		const away = 30 * time.Second
		j.midst(1)
		_ = j.etcd.cmd.Process.Signal(syscall.SIGSTOP)
		j.happened("the store is away for %v", away)
		over := time.After(away)
		j.until("a head that misses its store", func() bool { return strings.Contains(j.head.String(), "leases are not renewed") })
		<-over
		_ = j.etcd.cmd.Process.Signal(syscall.SIGCONT)
		j.letGo()
		return wants{}
	}},
}

// fullOutput fills the file system that a scan writes to: the job fails and says so, or starts again until there is room. Submitted again it goes on.
func (j *chaosJob) fullOutput() wants {
	j.t.Helper()
	j.midst(1)
	free := j.fill(j.storage)
	j.letGo()
	j.before("a job that says why", func() bool { return strings.Contains(j.job.String(), "no space left") })
	free()
	if j.until("the end of the job", j.job.over); j.status().State == "failed" {
		j.submission = "again"
		j.submit()
		j.until("the end of the job", j.job.over)
	}
	return wants{any: true}
}

// chaosSeed is that of a case: of the environment, or drawn.
func chaosSeed(t *testing.T) uint64 {
	if s := os.Getenv("PENSTOCK_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return seed
	}
	return mrand.Uint64()
}

// TestChaos: whatever fails, and whenever, a job on two nodes ends with what it gives when nothing does, or says why it cannot.
func TestChaos(t *testing.T) {
	kinds, soak := []string{shardJob}, os.Getenv("PENSTOCK_SOAK") != ""
	if soak {
		kinds = []string{scanJob, shardJob, torchJob}
	}
	s3 := testserver.S3(t)
	for _, kind := range kinds {
		t.Run(kind, func(t *testing.T) {
			referenceOf(t, kind)
			for i, f := range troubles {
				if !f.quick && !soak {
					continue
				}
				storage := ""
				if f.s3 && kind == shardJob {
					bucket := fmt.Sprintf("%s-%d", kind, i)
					s3.CreateBucket(t, bucket)
					storage = s3.URL(bucket)
				}
				t.Run(f.name, func(t *testing.T) { f.run(t, kind, storage) })
			}
		})
	}
}

func (f trouble) run(t *testing.T, kind, storage string) {
	seed := chaosSeed(t)
	t.Logf("PENSTOCK_SEED=%d repeats what is drawn", seed)
	o := f.o
	o.seed, o.limit = seed, 2*time.Minute
	if kind == torchJob { // eight processes import PyTorch
		o.limit = 6 * time.Minute
	}
	w := newWorld(t, o)
	if storage == "" {
		storage = t.TempDir()
		if o.small != "" && kind == scanJob {
			hosttest.Small(t, storage, o.small)
		}
	}
	j := newJob(w, kind, storage, !f.free, 5*time.Millisecond)
	if !f.alone {
		for _, n := range []string{"a", "b", "c"} {
			w.join(n)
		}
		j.submit()
	}
	j.finish(f.do(j))
}

// TestChaosKills: a schedule of kills that is drawn, each when the job has come so far.
func TestChaosKills(t *testing.T) {
	n, err := 0, error(nil)
	if os.Getenv("PENSTOCK_SOAK") != "" {
		n = 200
	}
	if s := os.Getenv("PENSTOCK_CHAOS"); s != "" {
		if n, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	if n == 0 {
		t.Skip("PENSTOCK_CHAOS=N runs N schedules, PENSTOCK_SOAK=1 200 of them")
	}
	began := time.Now()
	t.Run("schedules", func(t *testing.T) {
		for i := range n {
			kind := []string{shardJob, scanJob}[i%2]
			seed := chaosSeed(t)
			t.Run(fmt.Sprintf("%d %s", seed, kind), func(t *testing.T) { killSchedule(t, kind, seed) })
		}
	})
	t.Logf("%d schedules, %v each", n, (time.Since(began) / time.Duration(n)).Round(100*time.Millisecond))
}

func killSchedule(t *testing.T, kind string, seed uint64) {
	w := newWorld(t, worldOptions{seed: seed, limit: 3 * time.Minute, brief: true})
	j := newJob(w, kind, t.TempDir(), false, time.Duration(20+w.rnd.IntN(20))*time.Millisecond)
	names := []string{"a", "b", "c"}
	for _, n := range names {
		w.join(n)
	}
	frozen := ""
	thaw := func() {
		if frozen != "" {
			w.thaw(frozen)
			frozen = ""
		}
	}
	j.submit()
	crashes, most := 0, 3 // that a job survives
	if kind == scanJob {
		most = 2 // three at one row group would be poison
	}
	for at := range 3 + w.rnd.IntN(2) {
		step := at*7 + w.rnd.IntN(7)
		if !j.before(fmt.Sprintf("step %d", step), func() bool { return j.progress() >= step }) {
			break
		}
		thaw()
		what := w.rnd.IntN(5)
		if crashes == most && (what == 1 || what == 2) {
			what = 3
		}
		switch what {
		case 0:
			w.kill("", workerKind)
		case 1:
			w.kill("", memberKind)
			crashes++
		case 2:
			var ps []process
			if w.before("processes", func() bool { ps = w.of("", ""); return len(ps) >= 4 }) {
				w.killAll()
				crashes++
			}
		case 3:
			if w.rnd.IntN(2) == 0 {
				w.headAgain()
			} else {
				w.again(names[w.rnd.IntN(3)])
			}
		case 4:
			frozen = names[w.rnd.IntN(3)]
			w.freeze(frozen)
			if w.rnd.IntN(2) == 0 { // for longer than its lease
				w.nodeIs(frozen, "lost")
			}
			thaw()
		}
	}
	j.finish(wants{any: true})
}
