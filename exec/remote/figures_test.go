package remote

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/cluster/gang/gangtest"
	"github.com/penstock-data/penstock/dataset"
	plan "github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
)

// TestFigures measures, where PENSTOCK_FIGURES names a file for the table (ONLY=nodes bench/run.sh). Other processes are this binary again.
func TestFigures(t *testing.T) {
	out := os.Getenv("PENSTOCK_FIGURES")
	if out == "" {
		t.Skip("set PENSTOCK_FIGURES to a file")
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# A plan on several nodes, measured\n\n%s, %d cores, %s. Made by `ONLY=nodes bench/run.sh`: real processes and certificates, over the loopback; the middle of the turns, and their ends.\n\n| what | figure | goal |\n|---|---|---|\n",
		time.Now().UTC().Format(time.DateOnly), runtime.NumCPU(), runtime.Version())
	for _, x := range figures {
		if only := os.Getenv("PENSTOCK_FIGURE"); only == "" || only == x.name {
			x.f(t, &b)
		}
	}
	t.Log("\n" + b.String())
	if err := os.WriteFile(out, []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
}

// figures are the parts of the table; PENSTOCK_FIGURE names one.
var figures = []struct {
	name string
	f    func(*testing.T, *strings.Builder)
}{{"tasks", figureTasks}, {"splits", figureSplits}, {"scan", figureScan}}

func empty(n int) *plan.Graph {
	g := exectest.Scan(exectest.NewTable(n, 0))
	g.Words = func(context.Context) ([][2]string, error) { return [][2]string{{"plan", "test"}}, nil }
	return g
}

// figureTasks sends empty tasks to another process.
func figureTasks(t *testing.T, b *strings.Builder) {
	gs, dirs := gangtest.WithFolders(t, 2)
	const n = 64
	c := again(t, "empty", gang.EnvDir+"="+dirs[1], "PENSTOCK_REMOTE_TASKS="+strconv.Itoa(n))
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	r, err := New(gs[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s, ctx, err := r.lead(t.Context(), empty(n), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.cancel(nil)
	defer s.end(nil)
	p := s.peers[0]
	p.Watch(deaf{})
	none := exectest.NewTable(1, 0)
	hand := &local.Hand{Schema: none.Schema(), None: func() arrow.RecordBatch { return nil }, Alloc: memory.DefaultAllocator, Read: func(int64) {}, Urgent: func() bool { return false }, Charge: func(int64) func() { return func() {} }, Emit: func(*plan.Block) error { return nil }}
	var id atomic.Uint64
	do := func() {
		i := id.Add(1)
		if _, err := p.Do(ctx, &local.Task{ID: i, Split: int(i) % n, Part: -1, To: -1, Attempt: 1}, hand); err != nil {
			t.Error(err)
		}
	}
	for range 2000 {
		do()
	}
	var p50, p99 []time.Duration
	for range 5 {
		var took []time.Duration
		for range 4000 {
			at := time.Now()
			do()
			took = append(took, time.Since(at))
		}
		slices.Sort(took)
		p50, p99 = append(p50, took[len(took)/2]), append(p99, took[len(took)*99/100])
	}
	fmt.Fprintf(b, "| round trip of an empty task to another process, idle, p50 | %s | <= 150 us |\n| the same, p99 | %s | <= 2 ms |\n", middle(p50), middle(p99))
	for _, c := range []struct {
		lanes int
		name  string
		goal  string
	}{{16, "dispatch of empty tasks, one by one: 16 at a time", ">= 20,000/s"}, {512, "in batches: 512 at a time, as a node of short tasks asks for", ">= 50,000/s"}} {
		var rates []time.Duration
		for range 5 {
			const each = 40000
			at := time.Now()
			var all sync.WaitGroup
			for range c.lanes {
				all.Go(func() {
					for range each / c.lanes {
						do()
					}
				})
			}
			all.Wait()
			rates = append(rates, time.Since(at)/each)
		}
		slices.Sort(rates)
		fmt.Fprintf(b, "| %s | %.0f/s (%.0f to %.0f) | %s |\n", c.name, 1/rates[2].Seconds(), 1/rates[4].Seconds(), 1/rates[0].Seconds(), c.goal)
	}
}

// figureSplits plans and queues a million of them.
func figureSplits(t *testing.T, b *strings.Builder) {
	const n = 1_000_000
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	at := time.Now()
	s, err := local.New(&local.Options{Nodes: []local.Node{idle{}}}).Run(t.Context(), empty(n), nil)
	if err != nil {
		t.Fatal(err)
	}
	took := time.Since(at)
	runtime.GC()
	runtime.ReadMemStats(&after)
	s.Close()
	fmt.Fprintf(b, "| 1 M splits planned and queued | %.1f s, %d bytes each | <= 10 s, <= 1 KB |\n", took.Seconds(), (int64(after.HeapAlloc)-int64(before.HeapAlloc))/n)
}

// idle is a node that does nothing.
type idle struct{}

func (idle) CPUs() int           { return 1 }
func (idle) Room() int           { return 0 }
func (idle) Watch(local.Watcher) {}
func (idle) Urge(uint64, bool)   {}
func (idle) Do(context.Context, *local.Task, *local.Hand) (*local.Result, error) {
	return nil, local.ErrMoved
}

// figureScan reads, filters and batches on two nodes of a CPU each, in turns with a process that has both.
func figureScan(t *testing.T, b *strings.Builder) {
	dir := os.Getenv("PENSTOCK_FIGURE_DATA") // kept
	if dir == "" {
		dir = t.TempDir()
	}
	ds := dataset.Range(32_000_000).WithColumns("x = random()", "y = double(id) * 0.25", "k = id % 1000", `s = concat("row ", string(id % 5000))`)
	if _, err := ds.WriteParquet(t.Context(), dir, &dataset.WriteOptions{TargetBytes: 16 << 20, RunOptions: dataset.RunOptions{Seed: 1}}); err != nil {
		t.Fatal(err)
	}
	var cpuOne, cpuTwo time.Duration
	cpu := func(c *exec.Cmd) time.Duration { return c.ProcessState.UserTime() + c.ProcessState.SystemTime() }
	one := func() time.Duration {
		c := again(t, "scan "+dir, "GOMAXPROCS=2")
		d := seconds(t, c)
		cpuOne += cpu(c)
		return d
	}
	two := func() time.Duration {
		gs, dirs := gangtest.WithFolders(t, 2)
		other := pinned(t, again(t, "scan "+dir, gang.EnvDir+"="+dirs[1]), 1)
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		lead := pinned(t, again(t, "scan "+dir), 0)
		gangtest.Place(t, lead, gs[0], dirs[0])
		d := seconds(t, lead)
		other.Wait()
		t.Logf("CPU of the nodes: %v, %v", cpu(lead), cpu(other))
		cpuTwo += cpu(lead) + cpu(other)
		return d
	}
	one()
	cpuOne = 0
	var a, a2, w []time.Duration
	for range turns() {
		a, w, a2 = append(a, one()), append(w, two()), append(a2, one())
	}
	for _, s := range [][]time.Duration{a, a2, w} {
		slices.Sort(s)
	}
	both := slices.Sorted(slices.Values(slices.Concat(a, a2)))
	fmt.Fprintf(b, "| scan, filter and batches of 32 M rows, half of which pass: speed on 2 nodes with 1 CPU each against 1 process with 2 | %.2fx (%s against %s; the process against itself %.2fx) | >= 0.85x |\n",
		float64(both[len(both)/2])/float64(w[len(w)/2]), middle(w), middle(both), float64(a[len(a)/2])/float64(a2[len(a2)/2]))
	fmt.Fprintf(b, "| the same in CPU time: of the process against that of both nodes | %.2fx | |\n", cpuOne.Seconds()/2/cpuTwo.Seconds())
}

// turns is how often scans are measured: PENSTOCK_FIGURE_TURNS, or 5.
func turns() int {
	if n, err := strconv.Atoi(os.Getenv("PENSTOCK_FIGURE_TURNS")); err == nil {
		return n
	}
	return 5
}

// again is this binary as another process.
func again(t *testing.T, what string, env ...string) *exec.Cmd {
	c := exec.Command(os.Args[0])
	c.Env = append(append(os.Environ(), "PENSTOCK_REMOTE_CHILD="+what), env...)
	c.Stderr = os.Stderr
	t.Cleanup(func() {
		if c.Process != nil {
			c.Process.Kill()
		}
	})
	return c
}

// pinned is c on one CPU of the machine, as if there were no other.
func pinned(t *testing.T, c *exec.Cmd, cpu int) *exec.Cmd {
	t.Helper()
	path, err := exec.LookPath("taskset")
	if err != nil {
		t.Fatal(err)
	}
	c.Args = append([]string{"taskset", "-c", strconv.Itoa(cpu), c.Path}, c.Args[1:]...)
	c.Path = path
	return c
}

// seconds is what a process says that it took.
func seconds(t *testing.T, c *exec.Cmd) time.Duration {
	t.Helper()
	var said bytes.Buffer
	c.Stdout = &said
	if err := c.Run(); err != nil {
		t.Fatalf("%s: %v", filepath.Base(c.Path), err)
	}
	d, err := time.ParseDuration(strings.TrimSpace(said.String()))
	if err != nil {
		t.Fatal(err)
	}
	return d
}

func middle(d []time.Duration) string {
	slices.Sort(d)
	r := func(d time.Duration) time.Duration { return d.Round(d / 100).Round(time.Microsecond) }
	return fmt.Sprintf("%v (%v to %v)", r(d[len(d)/2]), r(d[0]), r(d[len(d)-1]))
}
