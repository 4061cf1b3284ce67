package remote_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/exectest"
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/exec/remote"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/procs"
)

const (
	gatherTime = 2 * time.Minute
	// settles is how long after the last fault a job may take: what it is at ends, as lost if need be, and one more attempt ends well.
	settles = 15 * time.Minute
)

// effects are what comes of it.
var effects = []string{"slow read or write", "part finished twice", "part kept from an attempt before", "task lost with its node", "attempt failed", "attempt beside a node of the one before", "node lost and the attempt went on"}

// kept are seeds beyond the first 2,000 that have failed.
var kept = []uint64{
	6000,                      // memory for blocks of tasks that were over was taken all at once
	7445, 16043, 31243, 42245, // tasks behind a limit needed more than those before it
	80707,              // a read whose time was over as something came tried for ever
	11245,              // tasks that waited for memory got it as they were given up
	5004, 17402, 40100, // the end of a part was waited for after that of its run
}

// world is a job on several machines, in the time of a bubble: the real code of exec/remote and exec/local over a network, disks and an output that fail. Its seed says what is drawn; how
// goroutines take turns is the scheduler's, so that a seed need not fail every time.
type world struct {
	t    *testing.T
	log  bool
	seed uint64
	r    *rand.Rand // of the goroutine that runs the job
	at   time.Time

	write  bool
	faults bool // of the plan
	nodes  int
	splits int
	o      exec.Options
	want   result
	root   *exec.Stage
	set    int64 // bytes that a task at work needs

	lives sync.WaitGroup // of machines

	mu      sync.Mutex
	dice    *rand.Rand
	counts  map[string]int
	out     *output
	current []*machine
	living  int  // machines of all attempts
	calm    bool // nothing goes wrong any more
	failed  []string
}

// wrong notes a failure; it needs mu.
func (w *world) wrong(format string, args ...any) {
	w.failed = append(w.failed, fmt.Sprintf(format, args...))
}

func (w *world) check(ok bool, format string, args ...any) {
	if !ok {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.wrong(format, args...)
	}
}

func (w *world) say(format string, args ...any) {
	if w.log {
		w.t.Logf("%12v %s", time.Since(w.at), fmt.Sprintf(format, args...))
	}
}

// draw decides what the job is.
func (w *world) draw() {
	r := w.r
	w.nodes, w.splits = 3+r.IntN(3), 50+r.IntN(31)
	if w.seed%200 == 0 {
		w.nodes, w.splits = 20, 500
	} else if w.seed%40 == 0 {
		w.nodes, w.splits = 6+r.IntN(10), 100+r.IntN(100)
	}
	w.write = r.IntN(2) == 0
	w.faults = r.IntN(3) == 0
	w.o = exec.Options{CPUs: 1 + r.IntN(3), Memory: []int64{1 << 14, 1 << 20, 16 << 20}[r.IntN(3)], BatchRows: []int{3, 16, 1024}[r.IntN(3)], OnError: exec.OnError{Policy: exec.Skip}}
	if w.faults || r.IntN(2) == 0 {
		w.o.Retry = exec.RetryBudget{Unavailable: 30, WorkerLost: 30, Exhausted: 30}
	}
	w.out = &output{perPart: 1 + r.IntN(9), finished: map[int]*finished{}}
	_, w.root = w.make(false)
	w.o.Unordered = !w.write && r.IntN(4) == 0 && !exectest.HasLimit(w.root)
}

// make makes the plan, for a machine or to compare with.
func (w *world) make(faults bool) (*exectest.Plan, *exec.Stage) {
	p := exectest.NewPlan(w.seed, faults)
	root := p.Root()
	r := rand.New(rand.NewPCG(w.seed, 31))
	wide := 1 + r.IntN(200)
	for i, tb := range p.Tables {
		n := w.splits / len(p.Tables)
		if i == 0 {
			n += w.splits % len(p.Tables)
		}
		tb.Rows = nil
		for range n {
			tb.Rows = append(tb.Rows, max(r.IntN(14)-2, 0))
		}
		if wide < 50 {
			tb.Width = func(id int) int {
				if id%(wide+10) == 0 {
					return 20 << 10
				}
				return id % 50
			}
		}
	}
	return p, root
}

// reference is what one process makes of the plan.
func (w *world) reference() {
	_, root := w.make(false)
	o := w.o
	o.Budget, o.CPUs = exec.NewBudget(1), 1 // so what it holds is the working set of one task
	defer o.Budget.Close()
	w.want = run(local.New(nil), exectest.Graph(root), o)
	if exectest.HasLimit(root) { // tasks behind it are at work, too
		_, root := w.make(false)
		unlimited(root)
		if all := run(local.New(nil), exectest.Graph(root), o); all.err != nil {
			w.t.Fatalf("seed %d, without limits: %v", w.seed, all.err)
		}
	}
	w.set = o.Budget.Peak() * min(max(w.o.Memory/16/(4<<10), 1), 11) // batches are larger in larger budgets, and splits have 11 rows
	if w.want.err != nil {
		w.t.Fatalf("seed %d: %v", w.seed, w.want.err)
	}
	if w.o.Unordered {
		slices.Sort(w.want.ids)
		slices.Sort(w.want.letters)
	}
}

// unlimited takes the limits away.
func unlimited(s *exec.Stage) {
	s.Limit = -1
	for _, in := range s.Inputs {
		unlimited(in)
	}
}

// program is what each member runs.
func (m *machine) program() error {
	w := m.w
	plan, root := w.make(w.faults)
	m.plan = plan
	var slow func(s *exec.Stage)
	slow = func(s *exec.Stage) {
		if s.Scan != nil {
			s.Scan.Table = &slowTable{s.Scan.Table.(*exectest.Table), m}
		}
		for _, in := range s.Inputs {
			slow(in)
		}
	}
	slow(root)
	g := comparable(exectest.Graph(root))
	ro := &remote.Options{Gather: gatherTime}
	if w.log {
		ro.Log = logTo(w.t).With("node", m.node)
	}
	r := m.runner(ro)
	defer r.Close()
	o := w.o
	o.Budget = m.budget
	if m.node == 0 {
		o.Events = &exec.Events{TaskRetried: func(_ exec.TaskInfo, err error) {
			if errors.Is(err, remote.ErrLost) || fault.CodeOf(err) == fault.WorkerLost && !w.faults {
				w.count("task lost with its node")
			}
		}}
	}
	if w.write {
		st, err := r.Write(m.ctx, g, m.files, &o)
		m.got.stats = st
		return err
	}
	o.DeadLetter = m.got.letter
	s, err := r.Run(m.ctx, g, &o)
	if err != nil {
		return err
	}
	for {
		b, err := s.Next(m.ctx)
		if err != nil {
			m.got.stats = s.Stats()
			return errors.Join(notEOF(err), s.Close())
		}
		m.got.ids = append(m.got.ids, exectest.Ids(b.Batch)...)
		if len(m.got.ids)%64 == 0 {
			m.io(m.ctx) // a consumer that takes its time
		}
		b.Release()
	}
}

// live is a machine from its start to its end.
func (m *machine) live(late time.Duration) {
	defer close(m.done)
	if late > 0 {
		time.Sleep(late)
	}
	m.err = m.program()
	w := m.w
	w.say("node %d: %v", m.node, m.err)
	b := m.budget
	w.check(b.Used() == 0 && b.Leased() == 0 && b.Allocated() == 0, "node %d holds %s", m.node, b.Holders())
	w.check(b.Peak() <= m.most(), "node %d held %d of %d bytes, more than %d", m.node, b.Peak(), b.Limit(), m.most())
	for _, tb := range m.plan.Tables {
		w.check(tb.Readers() == 0, "node %d: %d readers are open", m.node, tb.Readers())
	}
	for _, op := range m.plan.Ops {
		w.check(op.Open.Load() == 0, "node %d: %d tasks of %s are open", m.node, op.Open.Load(), op.Label)
	}
	b.Close()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.living--
	for part, open := range m.files.open {
		if open && !m.dead {
			w.wrong("node %d has left part %d open", m.node, part)
		}
	}
	m.allowed()
}

// allowed: a machine that lives fails for what was done to it only; it needs mu.
func (m *machine) allowed() {
	code := fault.CodeOf(m.err)
	switch {
	case m.err == nil && m.node == 0, errors.Is(m.err, exec.ErrServed) && m.node > 0, m.dead:
	case code == fault.Canceled && (m.ctx.Err() != nil || errors.Is(m.err, remote.ErrEnded)):
	case code == fault.Unavailable, code == fault.WorkerLost:
	default:
		m.w.wrong("node %d: %v: %v", m.node, code, m.err)
	}
}

// most is what the budget of a machine whose program is over may have held at most: its limit, or what one task got as nothing else was held; what comes unasked; the working sets of the task that everything
// waits for, and of the one before, which is on its way; and, where tasks were given up, of those at work: who waits for memory gets it then.
func (m *machine) most() int64 {
	w := m.w
	n := max(w.o.Memory, w.set) + w.o.Memory/16 + 2*w.set
	if m.err != nil && !errors.Is(m.err, exec.ErrServed) || exectest.HasLimit(w.root) {
		n += int64(w.o.CPUs) * w.set
	}
	return n
}

func (w *world) count(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.counts[what]++
}

var errStopped = errors.New("the head stops this attempt")

// attempt runs all members once, as the head of the cluster does, and reports whether the job is over.
func (w *world) attempt() bool {
	ms := w.machines()
	ends := make(chan *machine, len(ms))
	for _, m := range ms {
		late := time.Duration(0)
		if w.r.IntN(4) == 0 {
			late = logUniform(w.r, time.Millisecond, 10*time.Second)
		}
		w.lives.Go(func() { m.live(late) })
		w.lives.Go(func() {
			select {
			case <-m.done:
			case <-m.gone:
			}
			ends <- m
		})
	}
	w.mu.Lock()
	w.current = ms
	calm := w.calm
	if w.living > 0 {
		w.counts["attempt beside a node of the one before"]++
	}
	w.living += len(ms)
	w.mu.Unlock()
	patience := logUniform(w.r, 10*time.Millisecond, 30*time.Second) // of the head with an attempt that has lost a member
	if w.r.IntN(2) == 0 {
		patience = 3 * time.Minute // it is away
	}
	lost, told := false, false
	var late <-chan time.Time
	for left := len(ms); left > 0; {
		select {
		case m := <-ends:
			left--
			if w.ended(m) != nil && !lost {
				lost, late = true, time.After(patience)
			}
		case <-late:
			late = nil
			if !told {
				told = true
				w.say("the head ends the attempt")
				for _, m := range ms {
					m.cancel(errStopped)
				}
				late = time.After(15 * time.Second)
				continue
			}
			for _, m := range ms {
				m.crash(false)
			}
		}
	}
	w.mu.Lock()
	w.current = nil
	w.mu.Unlock()
	err := w.ended(ms[0])
	w.check(!calm || err == nil && !lost, "nothing goes wrong any more, and an attempt fails, or loses a node: %v", err)
	if err != nil {
		w.count("attempt failed")
		if !w.write && !w.o.Unordered {
			select {
			case <-ms[0].done:
				n := len(ms[0].got.ids)
				w.check(n <= len(w.want.ids) && slices.Equal(ms[0].got.ids, w.want.ids[:n]), "an attempt that failed gave other rows before it did")
			default:
			}
		}
		return false
	}
	if lost {
		w.count("node lost and the attempt went on")
		if w.write && w.r.IntN(2) == 0 {
			return false
		}
	}
	w.judge(&ms[0].got, lost)
	return true
}

// ended is why a machine is not one that did its part.
func (w *world) ended(m *machine) error {
	select {
	case <-m.done:
		if m.node > 0 && errors.Is(m.err, exec.ErrServed) {
			return nil
		}
		w.mu.Lock()
		defer w.mu.Unlock()
		if m.dead {
			return errDead
		}
		return m.err
	default:
		return errDead
	}
}

// judge compares what the job gave.
func (w *world) judge(got *result, lost bool) {
	if w.write {
		w.mu.Lock()
		skipped := int64(0)
		got.ids = nil
		for i := range w.out.parts {
			if f := w.out.finished[i]; f != nil {
				got.ids = append(got.ids, f.ids...)
				skipped += f.tally.AllSkipped()
			}
		}
		commits := w.out.commits
		w.mu.Unlock()
		w.check(commits == 1, "the job is committed %d times", commits)
		w.check(skipped == int64(len(w.want.letters)), "%d rows are skipped, want %d", skipped, len(w.want.letters))
		if w.root.Scan != nil {
			w.check(got.stats.RowsOut == int64(len(w.want.ids)) && got.stats.Skipped == skipped, "statistics of %d rows: %+v", len(w.want.ids), got.stats)
		}
	} else {
		if w.o.Unordered {
			slices.Sort(got.ids)
			slices.Sort(got.letters)
		}
		w.check(slices.Equal(got.letters, w.want.letters), "dead letters\n%v\nwant\n%v", got.letters, w.want.letters)
	}
	w.check(slices.Equal(got.ids, w.want.ids), "%d rows, want %d:\n%v\n%v", len(got.ids), len(w.want.ids), got.ids, w.want.ids)
}

func (w *world) run() {
	w.at = time.Now()
	w.draw()
	w.reference()
	w.say("%d nodes, %d splits, write %v, faults %v, %+v: %s", w.nodes, w.splits, w.write, w.faults, w.o, exectest.Describe(w.root))
	over := make(chan struct{})
	r := rand.New(rand.NewPCG(w.seed, 41))
	w.lives.Go(func() { w.trouble(r, over) })
	for n := 1; !w.attempt(); n++ {
		w.mu.Lock()
		stop := len(w.failed) > 0
		w.mu.Unlock()
		if stop {
			break
		}
		time.Sleep(logUniform(w.r, 10*time.Millisecond, 5*time.Second))
		w.say("attempt %d", n+1)
	}
	close(over)
	w.lives.Wait()
}

// simulate runs a seed, and adds what happened to counts.
func simulate(t *testing.T, seed uint64, log bool, counts map[string]int) {
	stuck := time.AfterFunc(2*time.Minute, func() { // of real time, for what takes milliseconds: no time passes in the bubble
		panic(fmt.Sprintf("seed %d (go test -run TestSimulated -seed %d) goes round in circles", seed, seed))
	})
	defer stuck.Stop()
	defer func() {
		if p := recover(); p != nil {
			fmt.Fprintf(os.Stderr, "seed %d (go test -run TestSimulated -seed %d): %v\n", seed, seed, p)
			panic(p)
		}
	}()
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, log: log, seed: seed, r: rand.New(rand.NewPCG(seed, 7)), dice: rand.New(rand.NewPCG(seed, 8)), counts: counts}
		w.run()
		for _, s := range w.failed {
			t.Errorf("seed %d (run it alone: -run TestSimulated -seed %d): %s", seed, seed, s)
		}
	})
}

// TestSimulated: whatever breaks, freezes, is slow or dies, a plan on several machines comes to its end, and gives each row once, in order. With PENSTOCK_SOAK=1 it is 100,000 seeds.
func TestSimulated(t *testing.T) {
	defer procs.Spare()()                             // no seed changes GOMAXPROCS
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // a small heap of short lives
	if *seedFlag != 0 {
		counts := map[string]int{}
		simulate(t, *seedFlag, true, counts)
		t.Log(counts)
		return
	}
	seeds, chunks := 2000, 8
	switch {
	case os.Getenv("PENSTOCK_SOAK") != "":
		seeds = 100_000
	case testing.Short():
		seeds = 100
	}
	for _, seed := range kept {
		simulate(t, seed, false, map[string]int{})
	}
	all := make([]map[string]int, chunks)
	t.Run("seeds", func(t *testing.T) {
		for i := range chunks {
			all[i] = map[string]int{}
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				for seed := 1 + i; seed <= seeds && !t.Failed(); seed += chunks {
					simulate(t, uint64(seed), false, all[i])
				}
			})
		}
	})
	counts := map[string]int{}
	for _, c := range all {
		for what, n := range c {
			counts[what] += n
		}
	}
	t.Log(counts)
	for _, what := range slices.Concat(strikes, effects) {
		if counts[what] == 0 && seeds >= 2000 && !t.Failed() {
			t.Errorf("in %d seeds: no %s", seeds, what)
		}
	}
}

// TestDeafNode: a node that does not hear its leader any more, and is heard, gives up what it is at. That is no failure of its tasks.
func TestDeafNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{nodes: 2, o: exec.Options{CPUs: 1, Memory: 1 << 20}, dice: rand.New(rand.NewPCG(1, 8)), counts: map[string]int{}}
		ms := w.machines()
		var all [2]result
		for i, m := range ms {
			w.lives.Go(func() {
				g, _ := graph(4, 10)
				g.Root.Ops = append(g.Root.Ops, exectest.Fuse(exectest.Slow(time.Minute))...)
				r := m.runner(nil)
				defer r.Close()
				o := w.o
				o.Budget = m.budget
				all[i] = run(r, g, o)
				m.budget.Close()
			})
		}
		time.AfterFunc(5*time.Second, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			ms[1].ends[0].in.deaf = true
		})
		w.lives.Wait()
		g, _ := graph(4, 10)
		if want := run(local.New(nil), g, exec.Options{}); all[0].err != nil || !slices.Equal(all[0].ids, want.ids) || all[0].stats.Retries == 0 {
			t.Errorf("%d rows, want %d: %v; %+v", len(all[0].ids), len(want.ids), all[0].err, all[0].stats)
		}
		if !errors.Is(all[1].err, remote.ErrLost) {
			t.Error(all[1].err)
		}
	})
}
