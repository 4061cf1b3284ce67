package sched

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
)

var (
	simSeed  = flag.Uint64("sim.seed", 0, "run this seed alone, with a trace")
	simSeeds = flag.Uint64("sim.seeds", 6000, "how many seeds to run; with PENSTOCK_SOAK=1 100,000 at least")
)

// failed once; kept.
var seedsThatFailed = []uint64{
	42, 7025, // the head had no CPU while others waited for its memory
	35351, 37114, // a head goes beyond the CPUs, then one of the next stage does
}

// TestSimulate runs random stage trees in a world that delays, reorders, fails,
// loses and leaves behind attempts, and checks every step.
func TestSimulate(t *testing.T) {
	if *simSeed != 0 {
		w := newWorld(*simSeed)
		if err := w.run(); err != nil {
			t.Fatalf("seed %d: %v\n%s", *simSeed, err, w.trace.String())
		}
		t.Log(w.trace.String())
		return
	}
	ends := map[string]int{}
	seeds := slices.Clone(seedsThatFailed)
	n := *simSeeds
	if os.Getenv("PENSTOCK_SOAK") != "" {
		n = max(n, 100_000)
	}
	for s := range n {
		seeds = append(seeds, s+1)
	}
	for _, s := range seeds {
		w := newWorld(s)
		if err := w.run(); err != nil {
			t.Fatalf("seed %d: %v (run with -sim.seed=%d for a trace)", s, err, s)
		}
		ends[w.how]++
	}
	t.Log(ends)
	for _, how := range []string{"end", "aborted", "poison", "stopped"} {
		if ends[how] == 0 && n > 1000 {
			t.Errorf("no run was %s", how)
		}
	}
}

// TestDeterministic: the same events give the same actions.
func TestDeterministic(t *testing.T) {
	for s := range uint64(50) {
		a, b := newWorld(s), newWorld(s)
		_, _ = a.run(), b.run()
		if a.trace.String() != b.trace.String() {
			t.Fatalf("seed %d: two runs differ", s)
		}
	}
}

// life is an attempt in the world.
type life struct {
	Task
	n      int
	script [][]int // blocks it will make
	at     int
	parked bool
	told   bool // to stop
	zombie bool // given up, still alive
	memory bool // waits for memory: goes on only when it is the head and everything waits for it
}

type sleep struct {
	Task
	n int
}

type world struct {
	r      *rand.Rand
	s      *Sched
	cfg    Config
	rows   [][][]int // per scan stage, per task
	want   []int
	out    []int
	queue  map[Task][][]int
	input  map[Task][]int
	lives  []*life
	sleeps []sleep
	fails  map[Task]int
	failAt float64
	tight  float64 // how likely an attempt runs into the budget
	head   Action
	pulled bool
	how    string
	at     int // task of an Abort
	trace  strings.Builder
	step   int
}

func newWorld(seed uint64) *world {
	w := &world{r: rand.New(rand.NewPCG(seed, 7)), queue: map[Task][][]int{}, input: map[Task][]int{}, fails: map[Task]int{}}
	r := w.r
	next := 0
	var build func(depth int) int
	build = func(depth int) int {
		if depth == 0 || r.IntN(3) == 0 {
			st := Stage{Limit: -1, Tasks: r.IntN(7), Max: r.IntN(6) * r.IntN(2)}
			var tasks [][]int
			for range st.Tasks {
				var rows []int
				for range r.IntN(12) {
					rows = append(rows, next)
					next++
				}
				empty := r.IntN(6) == 0
				st.Empty = append(st.Empty, empty)
				if empty {
					rows = nil
				}
				tasks = append(tasks, rows)
			}
			if r.IntN(2) == 0 {
				st.Empty = nil
			}
			w.cfg.Stages = append(w.cfg.Stages, st)
			w.rows = append(w.rows, tasks)
			return len(w.cfg.Stages) - 1
		}
		st := Stage{Limit: -1, Chain: r.IntN(2) == 0, Inputs: []int{}}
		for range 1 + r.IntN(3) {
			st.Inputs = append(st.Inputs, build(depth-1))
		}
		if r.IntN(2) == 0 {
			st.Limit = int64(r.IntN(25))
		}
		w.cfg.Stages = append(w.cfg.Stages, st)
		w.rows = append(w.rows, nil)
		return len(w.cfg.Stages) - 1
	}
	root := build(r.IntN(4))
	w.cfg.CPUs = 1 + r.IntN(4)
	w.cfg.Unordered = r.IntN(4) == 0
	w.cfg.OwnBytes = 1 + r.Int64N(8)
	w.cfg.AheadBytes = 1 + r.Int64N(20)
	w.cfg.EnoughBytes = 1 + rand.New(rand.NewPCG(seed, 8)).Int64N(20)
	w.cfg.WholeBytes = 4 * w.cfg.EnoughBytes
	w.cfg.AheadTasks = 1 + r.IntN(6)
	for c := range w.cfg.Retry {
		w.cfg.Retry[c] = r.IntN(3)
	}
	w.cfg.Retry[Fatal] = 0
	w.failAt = []float64{0, 0, 0.01, 0.05, 0.3}[r.IntN(5)]
	w.tight = []float64{0, 0.1, 0.5}[r.IntN(3)]
	w.want = w.eval(root)
	w.s = New(w.cfg)
	return w
}

// eval is the reference: what a stage yields in canonical order.
func (w *world) eval(i int) []int {
	st := w.cfg.Stages[i]
	var all []int
	if st.Inputs == nil {
		return slices.Concat(w.rows[i]...)
	}
	for _, in := range st.Inputs {
		all = append(all, w.eval(in)...)
	}
	if st.Limit >= 0 && int64(len(all)) > st.Limit {
		all = all[:st.Limit]
	}
	if st.Chain {
		all = chain(all)
	}
	return all
}

// chain is what the operators of a cut make of rows: some fall out, some double.
func chain(rows []int) []int {
	var out []int
	for _, v := range rows {
		for range v * 7 % 3 {
			out = append(out, v)
		}
	}
	return out
}

// blocks cuts rows into blocks, the same way every time.
func blocks(t Task, rows []int) [][]int {
	r := rand.New(rand.NewPCG(uint64(t.Stage), uint64(t.N)))
	var b [][]int
	for len(rows) > 0 {
		n := min(1+r.IntN(4), len(rows))
		if r.IntN(5) == 0 {
			n = 0
		}
		b = append(b, rows[:n])
		rows = rows[n:]
	}
	if r.IntN(3) == 0 {
		b = append(b, nil)
	}
	return b
}

func (w *world) send(e Event, emitted []int) error {
	w.step++
	fmt.Fprintf(&w.trace, "%s\n", eventString(e))
	for _, a := range w.s.Step(e) {
		fmt.Fprintf(&w.trace, "    %s\n", actionString(a))
		if err := w.do(a, e, emitted); err != nil {
			return fmt.Errorf("step %d: %s -> %s: %w", w.step, eventString(e), actionString(a), err)
		}
	}
	return w.check()
}

func (w *world) find(t Task, n int) *life {
	for _, l := range w.lives {
		if l.Task == t && l.n == n && !l.zombie {
			return l
		}
	}
	return nil
}

func (w *world) do(a Action, e Event, emitted []int) error {
	switch a.Kind {
	case Start:
		if w.find(a.Task, a.Attempt) != nil {
			return fmt.Errorf("started twice")
		}
		for _, l := range w.lives {
			if l.Task == a.Task && !l.zombie {
				return fmt.Errorf("two attempts at once")
			}
		}
		var rows []int
		if st := w.cfg.Stages[a.Task.Stage]; st.Inputs == nil {
			rows = w.rows[a.Task.Stage][a.Task.N]
		} else {
			if a.From != a.Task {
				q := w.queue[a.From]
				if len(q) == 0 {
					return fmt.Errorf("no block queued")
				}
				w.queue[a.From] = q[1:]
				w.input[a.Task] = q[0][:a.Take]
			}
			rows = chain(w.input[a.Task])
		}
		w.lives = append(w.lives, &life{Task: a.Task, n: a.Attempt, script: blocks(a.Task, rows)})
	case Queue:
		w.queue[a.Task] = append(w.queue[a.Task], emitted)
	case Drop:
		if e.Kind != Emit {
			return fmt.Errorf("nothing to drop")
		}
	case Park, Resume:
		l := w.find(a.Task, a.Attempt)
		if l == nil || l.parked == (a.Kind == Park) || l.told {
			return fmt.Errorf("not possible now")
		}
		l.parked = a.Kind == Park
	case Cancel:
		l := w.find(a.Task, a.Attempt)
		if l == nil || l.told {
			return fmt.Errorf("no such attempt, or told before")
		}
		l.told, l.parked = true, false
	case Discard:
		if len(w.queue[a.Task]) == 0 {
			return fmt.Errorf("nothing to discard")
		}
		delete(w.queue, a.Task)
	case Sleep:
		w.sleeps = append(w.sleeps, sleep{a.Task, a.Attempt})
	case Deliver:
		q := w.queue[a.From]
		if len(q) == 0 || !w.pulled {
			return fmt.Errorf("nothing to deliver, or not wanted")
		}
		w.out = append(w.out, q[0][:a.Take]...)
		w.queue[a.From] = q[1:]
		w.pulled = false
	case Head:
		w.head = a
	case End:
		if !w.pulled || w.how != "" {
			return fmt.Errorf("not wanted")
		}
		w.pulled = false
		w.how = "end"
	case Abort:
		w.at = a.Task.N
		w.how = map[Reason]string{TaskFailed: "aborted", Poison: "poison", Unstable: "unstable"}[a.Reason]
	}
	return nil
}

func (w *world) check() error {
	working := 0
	for _, l := range w.lives {
		if !l.parked && !l.told && !l.zombie {
			working++
		}
		if sum := w.cfg.Retry[1] + w.cfg.Retry[2] + w.cfg.Retry[3]; l.n > 1+sum {
			return fmt.Errorf("%v: attempt %d with %d retries allowed", l.Task, l.n, sum)
		}
	}
	most := w.cfg.CPUs
	for _, st := range w.cfg.Stages {
		most = max(most, st.Max)
	}
	for _, st := range w.cfg.Stages {
		most++ // its first, when it was the head
		if st.Chain {
			most++ // its only one, so that scans cannot hold all CPUs
		}
	}
	if working > most {
		return fmt.Errorf("%d attempts at work, %d allowed", working, most)
	}
	if working != w.s.running && w.how == "" {
		return fmt.Errorf("scheduler counts %d at work, there are %d", w.s.running, working)
	}
	var queued int64
	for _, q := range w.queue {
		for _, b := range q {
			queued += size(b)
		}
	}
	if queued != w.s.queued {
		return fmt.Errorf("scheduler counts %d bytes queued, there are %d", w.s.queued, queued)
	}
	if w.cfg.Unordered {
		return nil
	}
	if len(w.out) > len(w.want) || !slices.Equal(w.out, w.want[:len(w.out)]) {
		return fmt.Errorf("delivered %v, want %v", w.out, w.want)
	}
	return nil
}

func size(b []int) int64 { return int64(max(len(b), 1)) }

// run plays until the end of everything.
func (w *world) run() error {
	stopAt := -1
	if w.r.IntN(4) == 0 {
		stopAt = w.r.IntN(60)
	}
	for w.step < 20000 {
		if w.how != "" && w.how != "end" || w.how == "end" && w.r.IntN(2) == 0 {
			break
		}
		if w.step == stopAt {
			if err := w.send(Event{Kind: Stop}, nil); err != nil {
				return err
			}
			if w.how == "" {
				w.how = "stopped"
			}
			continue
		}
		// What can happen next.
		var can []func() error
		if !w.pulled && w.how == "" {
			can = append(can, func() error {
				w.pulled = true
				return w.send(Event{Kind: Pull}, nil)
			})
		}
		for _, l := range w.lives {
			if !l.parked && (!l.memory || l.told || l.zombie || w.head.Task == l.Task && w.head.Starved) {
				can = append(can, func() error { return w.live(l) })
			}
		}
		for i, z := range w.sleeps {
			can = append(can, func() error {
				w.sleeps = slices.Delete(w.sleeps, i, i+1)
				return w.send(Event{Kind: Timer, Task: z.Task, Attempt: z.n}, nil)
			})
		}
		if len(can) == 0 {
			if w.how == "end" {
				break
			}
			return fmt.Errorf("stuck: nothing is under way; delivered %v of %v", w.out, w.want)
		}
		if err := can[w.r.IntN(len(can))](); err != nil {
			return err
		}
	}
	if w.how == "" {
		return fmt.Errorf("no end after %d steps", w.step)
	}
	if len(w.cfg.Stages) == 1 && !w.cfg.Unordered && (w.how == "aborted" || w.how == "poison") {
		if before := slices.Concat(w.rows[0][:w.at]...); len(w.out) < len(before) {
			return fmt.Errorf("aborted at task %d after %v", w.at, w.out)
		}
	}
	if w.how == "unstable" {
		return fmt.Errorf("blames steps that are stable")
	}
	// Let the rest die, as it may.
	if w.how == "end" {
		if err := w.send(Event{Kind: Stop}, nil); err != nil {
			return err
		}
	}
	for len(w.lives) > 0 {
		l := w.lives[0]
		if !l.told && !l.zombie {
			return fmt.Errorf("%v was not told to stop", l.Task)
		}
		l.parked = false
		if err := w.live(l); err != nil {
			return err
		}
	}
	for t, q := range w.queue {
		if len(q) > 0 {
			return fmt.Errorf("%v has blocks left", t)
		}
	}
	if w.how == "end" {
		got, want := slices.Clone(w.out), w.want
		if w.cfg.Unordered {
			if !w.anyLimit() {
				want = slices.Clone(want)
				slices.Sort(got)
				slices.Sort(want)
			} else if len(got) != len(want) && !w.chainBelowLimit() {
				return fmt.Errorf("%d rows, want %d", len(got), len(want))
			} else {
				return nil
			}
		}
		if !slices.Equal(got, want) {
			return fmt.Errorf("delivered %v, want %v", got, want)
		}
	}
	return nil
}

func (w *world) anyLimit() bool {
	return slices.ContainsFunc(w.cfg.Stages, func(s Stage) bool { return s.Inputs != nil && s.Limit >= 0 })
}

// chainBelowLimit: in an unordered run a chain makes other rows of other blocks that a limit let pass.
func (w *world) chainBelowLimit() bool {
	return slices.ContainsFunc(w.cfg.Stages, func(s Stage) bool { return s.Chain })
}

// live does the next thing of an attempt's life.
func (w *world) live(l *life) error {
	die := func() { w.lives = slices.DeleteFunc(w.lives, func(x *life) bool { return x == l }) }
	e := Event{Task: l.Task, Attempt: l.n}
	l.memory = !l.memory && w.r.Float64() < w.tight
	if l.memory && !l.told && !l.zombie {
		w.step++
		return nil
	}
	switch x := w.r.Float64(); {
	case l.told && x < 0.5:
		die()
		e.Kind, e.Class = Fail, Class(w.r.IntN(int(NumClasses)))
		if x < 0.25 {
			e.Kind = Finish
		}
		return w.send(e, nil)
	case l.zombie && x < 0.3:
		die()
		return nil
	case !l.told && !l.zombie && x < w.failAt:
		e.Kind, e.Class = Fail, Class(1+w.r.IntN(int(NumClasses)-1))
		if w.r.IntN(20) == 0 {
			e.Class = Fatal
		}
		if w.r.IntN(4) == 0 {
			l.zombie = true
		} else {
			die()
		}
		return w.send(e, nil)
	case l.at < len(l.script):
		b := l.script[l.at]
		l.at++
		e.Kind, e.Block = Emit, Meta{Row: int64(l.at), Rows: int64(len(b)), Bytes: size(b)}
		return w.send(e, b)
	}
	die()
	if l.zombie {
		return nil
	}
	e.Kind = Finish
	return w.send(e, nil)
}

func eventString(e Event) string {
	name := [...]string{"pull", "emit", "finish", "fail", "timer", "stop"}[e.Kind]
	if e.Kind == Pull || e.Kind == Stop {
		return name
	}
	s := fmt.Sprintf("%s task=%d/%d attempt=%d", name, e.Task.Stage, e.Task.N, e.Attempt)
	switch e.Kind {
	case Emit:
		s += fmt.Sprintf(" row=%d span=%d rows=%d bytes=%d", e.Block.Row, e.Block.Span, e.Block.Rows, e.Block.Bytes)
	case Fail:
		s += " class=" + className[e.Class]
	}
	return s
}

var className = [...]string{"fatal", "unavailable", "worker_lost", "exhausted"}

func actionString(a Action) string {
	name := [...]string{"start", "queue", "drop", "park", "resume", "cancel", "discard", "sleep", "head", "deliver", "end", "abort"}[a.Kind]
	s := fmt.Sprintf("%s task=%d/%d", name, a.Task.Stage, a.Task.N)
	switch a.Kind {
	case Start, Sleep:
		s += fmt.Sprintf(" attempt=%d", a.Attempt)
		if a.Kind == Start && a.From != a.Task {
			s += fmt.Sprintf(" from=%d/%d take=%d", a.From.Stage, a.From.N, a.Take)
		}
	case Deliver:
		s = fmt.Sprintf("deliver from=%d/%d take=%d", a.From.Stage, a.From.N, a.Take)
	case Head:
		if a.Starved {
			s += " starved"
		}
	case End:
		s = "end"
	case Abort:
		s += " reason=" + [...]string{"failed", "poison", "unstable"}[a.Reason]
	}
	if a.Cut {
		s += " cut"
	}
	return s
}
