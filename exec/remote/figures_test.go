package remote

import (
	"bytes"
	"context"
	"fmt"
	"io"
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
	"github.com/penstock-data/penstock/io/memio"
	"github.com/penstock-data/penstock/io/parquetio"
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

// Held is a plan of n empty splits behind one that is not read before let is closed: where that takes the only place of the leader, all others go to other processes.
func Held(n int, let chan struct{}) *plan.Graph {
	first := exectest.NewTable(1, 0)
	first.Reads = []chan struct{}{let}
	g := exectest.Graph(exectest.Cut(-1, []*plan.Stage{exectest.ScanStage(0, first), exectest.ScanStage(1, exectest.NewTable(n, 0))}))
	g.Words = func(context.Context) ([][2]string, error) { return [][2]string{{"plan", "test"}}, nil }
	return g
}

// figureTasks sends empty tasks to another process: as a plan does, and over its link alone.
func figureTasks(t *testing.T, b *strings.Builder) {
	gs, dirs := gangtest.WithFolders(t, 2)
	const n = 200_000
	c := again(t, "held", gang.EnvDir+"="+dirs[1], "PENSTOCK_REMOTE_TASKS="+strconv.Itoa(n))
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	defer c.Wait()
	r, err := New(gs[0], nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	s, ctx, err := r.lead(t.Context(), Held(n, nil), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer s.cancel(nil)
	defer s.end(nil)
	p := s.peers[0]
	figurePlans(t, b, p, n)
	p.Watch(deaf{})
	none := exectest.NewTable(1, 0)
	hand := &local.Hand{Schema: none.Schema(), None: func() arrow.RecordBatch { return nil }, Alloc: memory.DefaultAllocator, Take: func(n int) ([]byte, bool) { return memory.DefaultAllocator.Allocate(n), true }, Read: func(int64) {}, Urgent: func() bool { return false }, Charge: func(int64) func() { return func() {} }, Emit: func(*plan.Block) error { return nil }}
	var id atomic.Uint64
	do := func() {
		i := id.Add(1)
		if _, err := p.Do(ctx, &local.Task{ID: i, Stage: 1, Split: int(i) % n, Part: -1, To: -1, Attempt: 1}, hand); err != nil {
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
	fmt.Fprintf(b, "| over the link alone, past the scheduler: round trip of an empty task to another process, idle, p50 | %s | <= 150 us |\n| the same, p99 | %s | <= 2 ms |\n", middle(p50), middle(p99))
	for _, c := range []struct {
		lanes int
		name  string
		goal  string
	}{{16, "over the link alone: dispatch of empty tasks, 16 at a time", ">= 20,000/s"}, {512, "over the link alone: 512 at a time, as a node of short tasks asks for", ">= 50,000/s"}} {
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
		fmt.Fprintf(b, "| %s | %s | %s |\n", c.name, perSecond(rates), c.goal)
	}
}

// perSecond is how many there are of what takes so long each.
func perSecond(each []time.Duration) string {
	slices.Sort(each)
	last := len(each) - 1
	return fmt.Sprintf("%.0f/s (%.0f to %.0f)", 1/each[last/2].Seconds(), 1/each[last].Seconds(), 1/each[0].Seconds())
}

// figurePlans has plans send their tasks to p, which has n of them: scheduler, attempt, link, the other process, and back.
func figurePlans(t *testing.T, b *strings.Builder, p *peer, n int) {
	// run takes the tasks of a plan, so many at a time, all there, and gives when each of them ended.
	run := func(n, most int) (ended []time.Time, took time.Duration) {
		ended = make([]time.Time, n)
		let := make(chan struct{})
		g := Held(n, let)
		var over atomic.Int64
		there := &limited{Node: p}
		o := &plan.Options{CPUs: 1, Events: &plan.Events{TaskStarted: func(i plan.TaskInfo) {
			if i.Stage == 0 {
				there.widen(most)
			}
		}, TaskFinished: func(i plan.TaskInfo, err error) {
			if i.Stage == 0 {
				return
			}
			if err != nil {
				t.Error(err)
			}
			k := over.Add(1)
			if ended[k-1] = time.Now(); k == int64(n) {
				close(let)
			}
		}}}
		took = through(t, there, g, o)
		if d := there.did.Load(); d != int64(n) {
			t.Errorf("%d of %d tasks were sent", d, n)
		}
		return ended, took
	}
	quantiles := func(took []time.Duration) (p50, p99 time.Duration) {
		slices.Sort(took)
		return took[len(took)/2], took[len(took)*99/100]
	}
	run(2000, 1)
	var p50, p99, rates []time.Duration
	for range turns() {
		ended, all := run(min(n, 20_000), 1)
		var took []time.Duration
		for i := range ended[1:] {
			took = append(took, ended[i+1].Sub(ended[i]))
		}
		mid, tail := quantiles(took)
		p50, p99, rates = append(p50, mid), append(p99, tail), append(rates, all/time.Duration(len(ended)))
	}
	fmt.Fprintf(b, "| round trip of an empty task of a plan to another process, idle: from the end of one to the end of the next, one at a time, p50 | %s | <= 150 us |\n| the same, p99 | %s | <= 2 ms |\n", middle(p50), middle(p99))
	fmt.Fprintf(b, "| the same as a rate: a plan of empty splits, one after the other | %s | |\n", perSecond(rates))
	for _, c := range []struct {
		most int
		name string
		goal string
	}{{16, "16 at a time", ">= 20,000/s"}, {maxOpen, "as many at a time as it asks for", ">= 50,000/s"}} {
		rates = nil
		for range turns() {
			_, took := run(n, c.most)
			rates = append(rates, took/time.Duration(n))
		}
		fmt.Fprintf(b, "| dispatch of a plan of %d empty splits to another process, %s | %s | %s |\n", n, c.name, perSecond(rates), c.goal)
	}
	// A plan without the split that holds the place of the leader.
	free := func(n int) (took time.Duration, there int64) {
		g := Held(n, nil)
		g.Root.Inputs[0].Scan.Keep = []bool{false}
		far := &limited{Node: p}
		far.most.Store(maxOpen)
		took = through(t, far, g, &plan.Options{CPUs: 1})
		return took, far.did.Load()
	}
	rates = nil
	var share int64
	for range turns() {
		took, there := free(n)
		rates, share = append(rates, took/time.Duration(n)), share+there
	}
	fmt.Fprintf(b, "| the same where the leader does tasks, too | %s, %d %% of them there | |\n", perSecond(rates), share*100/int64(n*turns()))
	p50, p99 = nil, nil
	for range turns() {
		var took []time.Duration
		for range 2000 {
			d, there := free(1)
			if there != 1 {
				t.Fatal("it was not sent")
			}
			took = append(took, d)
		}
		mid, tail := quantiles(took)
		p50, p99 = append(p50, mid), append(p99, tail)
	}
	fmt.Fprintf(b, "| a plan of one empty split, done in another process that waits for it: from Run to the end of its stream, p50 | %s | |\n| the same, p99 | %s | |\n", middle(p50), middle(p99))
}

// through runs g here and at a node, from Run to the end of its stream.
func through(t *testing.T, there local.Node, g *plan.Graph, o *plan.Options) time.Duration {
	at := time.Now()
	s, err := local.New(&local.Options{Nodes: []local.Node{there}}).Run(t.Context(), g, o)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Next(t.Context()); err != io.EOF {
		t.Fatal(err)
	}
	took := time.Since(at)
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	return took
}

// limited is a node that wants so many tasks at most: none before that is said. It counts them.
type limited struct {
	local.Node
	most, did atomic.Int64
	watch     local.Watcher
}

func (n *limited) widen(most int) {
	n.most.Store(int64(most))
	n.watch.RoomChanged()
}

func (n *limited) Room() int { return min(n.Node.Room(), int(n.most.Load())) }
func (n *limited) Watch(w local.Watcher) {
	n.watch = w
	n.Node.Watch(w)
}
func (n *limited) Do(ctx context.Context, t *local.Task, h *local.Hand) (*local.Result, error) {
	n.did.Add(1)
	return n.Node.Do(ctx, t, h)
}

// figureSplits queues a million of them: of a table that is there, and planned, by two processes that are nodes.
func figureSplits(t *testing.T, b *strings.Builder) {
	const n = 1_000_000
	// sized gives how long a call took and the bytes for each split that what it gave holds on to.
	sized := func(run func() (plan.Stream, error)) (took time.Duration, bytes int64) {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		at := time.Now()
		s, err := run()
		if err != nil {
			t.Fatal(err)
		}
		took = time.Since(at)
		runtime.GC()
		runtime.ReadMemStats(&after)
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
		return took, (int64(after.HeapAlloc) - int64(before.HeapAlloc)) / n
	}
	took, bytes := sized(func() (plan.Stream, error) {
		return local.New(&local.Options{Nodes: []local.Node{idle{}}}).Run(t.Context(), empty(n), nil)
	})
	fmt.Fprintf(b, "| 1 M splits of a table in memory queued, nothing planned | %.1f s, %d bytes each | <= 10 s, <= 1 KB |\n", took.Seconds(), bytes)
	const files = 100
	dir := t.TempDir()
	enc, err := parquetio.NewEncoding(&parquetio.EncodingOptions{RowGroupRows: 1})
	if err != nil {
		t.Fatal(err)
	}
	res, err := dataset.Range(n/files).WithColumns("x = 1.0").Write(t.Context(), dir, enc, nil)
	if err != nil {
		t.Fatal(err)
	}
	made, err := filepath.Glob(filepath.Join(dir, "*.parquet"))
	if err != nil || len(made) != 1 {
		t.Fatalf("%v: %v, %v", res, made, err)
	}
	for i := range files - 1 {
		if err := os.Link(made[0], filepath.Join(dir, fmt.Sprintf("copy-%d.parquet", i))); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct{ what, name string }{{"range", "of a range"}, {dir, fmt.Sprintf("of %d Parquet files of %d row groups", files, n/files)}} {
		gs, dirs := gangtest.WithFolders(t, 2)
		other := again(t, "scan "+c.what, gang.EnvDir+"="+dirs[1])
		if err := other.Start(); err != nil {
			t.Fatal(err)
		}
		r, err := New(gs[0], nil)
		if err != nil {
			t.Fatal(err)
		}
		splits := 0
		took, bytes := sized(func() (plan.Stream, error) {
			return Scanned(c.what).Stream(t.Context(), &dataset.RunOptions{Runner: &noted{r, &splits}})
		})
		r.Close()
		if err := other.Wait(); err != nil || splits != n {
			t.Fatalf("%d splits: %v", splits, err)
		}
		fmt.Fprintf(b, "| 1 M splits %s, with a filter, listed, planned and compared by 2 nodes, and queued | %.1f s, %d bytes each in the leader | <= 10 s, <= 1 KB |\n", c.name, took.Seconds(), bytes)
	}
}

// noted is a Runner that counts splits that are kept.
type noted struct {
	*Runner
	splits *int
}

func (r *noted) Run(ctx context.Context, g *plan.Graph, o *plan.Options) (plan.Stream, error) {
	scan := g.Root.Scan
	*r.splits = len(scan.Table.Splits())
	for _, k := range scan.Keep {
		if !k {
			*r.splits--
		}
	}
	return r.Runner.Run(ctx, g, o)
}

// Scanned is what figures read and filter: the Parquet files of a folder, or of "range" as many splits as figureSplits has.
func Scanned(what string) *dataset.Dataset {
	if what == "range" {
		return dataset.Range(1_000_000 * memio.SplitRows).Filter("id % 2 == 0")
	}
	return dataset.ReadParquet(what).Filter("x > 0.5")
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

// figureScan reads, filters and batches on two nodes of a CPU each, in turns with a process that has both: of what takes less than a second, and of more.
func figureScan(t *testing.T, b *strings.Builder) {
	for _, millions := range []int64{32, 128} {
		scanRows(t, b, millions)
	}
}

func scanRows(t *testing.T, b *strings.Builder, millions int64) {
	dir := t.TempDir()
	defer os.RemoveAll(dir)
	ds := dataset.Range(millions*1e6).WithColumns("x = random()", "y = double(id) * 0.25", "k = id % 1000", `s = concat("row ", string(id % 5000))`)
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
	fmt.Fprintf(b, "| scan, filter and batches of %d M rows, half of which pass: speed on 2 nodes with 1 CPU each against 1 process with 2 | %.2fx (%s against %s; the process against itself %.2fx) | >= 0.85x |\n",
		millions, float64(both[len(both)/2])/float64(w[len(w)/2]), middle(w), middle(both), float64(a[len(a)/2])/float64(a2[len(a2)/2]))
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
