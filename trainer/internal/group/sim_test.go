package group

import (
	"flag"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

var (
	simSeed  = flag.Uint64("sim.seed", 0, "run this seed alone, with a trace")
	simSeeds = flag.Uint64("sim.seeds", 4000, "how many seeds to run")
)

// TestSimulate runs groups in a world whose workers crash, hang, disagree and are slow, whose uploads fail, and whose machine may be taken
// away; every action is checked against what happened.
func TestSimulate(t *testing.T) {
	seeds, first := *simSeeds, uint64(1)
	if *simSeed != 0 {
		seeds, first = 1, *simSeed
	}
	ends := map[string]int{}
	for s := first; s < first+seeds; s++ {
		w := newWorld(s)
		if err := w.run(); err != nil {
			t.Fatalf("seed %d: %v\n%s", s, err, tail(w.trace.String()))
		}
		ends[string(w.end.State)]++
		ends["restarts"] += w.attempt - 1
		ends["commits"] += w.newest
		if *simSeed != 0 {
			t.Log(w.trace.String())
		}
	}
	t.Log(ends)
	for _, how := range []string{"finished", "failed", "preempted", "restarts", "commits"} {
		if ends[how] < int(seeds/50) && seeds > 1000 {
			t.Errorf("%s: %d", how, ends[how])
		}
	}
}

// TestDeterministic: the same events give the same actions.
func TestDeterministic(t *testing.T) {
	for s := range uint64(100) {
		a, b := newWorld(s), newWorld(s)
		_, _ = a.run(), b.run()
		if a.trace.String() != b.trace.String() {
			t.Fatalf("seed %d: two runs differ", s)
		}
	}
}

func tail(s string) string {
	lines := strings.Split(s, "\n")
	return strings.Join(lines[max(0, len(lines)-60):], "\n")
}

type worker struct {
	alive   bool
	hello   bool
	made    int64
	waiting int64 // report without an answer
	told    bool  // to end
	stuck   bool
	done    bool // said that its loop returned
	acked   map[int64]bool
}

type world struct {
	r       *rand.Rand
	g       *Group
	cfg     Config
	total   int64 // reports of the loop
	every   int64 // reports with files
	saves   []int // ranks that give them
	crash   float64
	now     time.Duration
	workers []worker
	attempt int
	pending bool  // Start has no answer
	next    int   // number of the next checkpoint
	upload  int64 // report under way; 0: none
	quiet   bool  // a worker ended early without a failure
	taken   bool
	newest  int
	reports int64
	files   map[int64][]int // report -> ranks that gave files in this attempt
	counted int64           // Complete in this attempt
	fails   map[Class]int
	notice  bool
	stop    bool
	lost    bool
	end     *Action
	trace   strings.Builder
}

func newWorld(seed uint64) *world {
	r := rand.New(rand.NewPCG(seed, 6))
	w := &world{r: r, total: 1 + r.Int64N(30), every: 1 + r.Int64N(6), crash: []float64{0, 0.002, 0.02}[r.IntN(3)], fails: map[Class]int{}}
	w.cfg = Config{World: 1 + r.IntN(4), Library: r.IntN(2) == 0, Async: r.IntN(2) == 0, StartTimeout: 5 * time.Minute, HangTimeout: 30 * time.Minute, ReportTimeout: time.Hour,
		StopTimeout: 10 * time.Second, Worker: r.IntN(4), Hang: r.IntN(3), Memory: r.IntN(2), Lag: int64(r.IntN(4))}
	for i := range w.cfg.World {
		if r.IntN(2) == 0 || i == 0 {
			w.saves = append(w.saves, i)
		}
	}
	w.next = 1
	w.g = New(w.cfg)
	return w
}

func (w *world) run() error {
	if err := w.send(Event{Kind: Tick}); err != nil {
		return err
	}
	for step := 0; w.end == nil; step++ {
		if step > 20000 {
			return fmt.Errorf("does not end")
		}
		e, ok := w.happens()
		if !ok {
			return fmt.Errorf("nobody moves, and no deadline")
		}
		if err := w.send(e); err != nil {
			return err
		}
	}
	if acts := w.g.Step(Event{Kind: Tick, At: w.now + time.Hour}); len(acts) > 0 {
		return fmt.Errorf("actions after the end: %v", acts)
	}
	switch {
	case w.pending || w.upload > 0:
		return fmt.Errorf("over, but something is under way")
	case w.end.State == Finished && w.counted != w.total && !w.quiet:
		return fmt.Errorf("finished after %d of %d reports", w.counted, w.total)
	case (w.end.Err == nil) != (w.end.State == Finished):
		return fmt.Errorf("%s with %v", w.end.State, w.end.Err)
	case w.end.State == Preempted && !w.notice && !w.lost:
		return fmt.Errorf("preempted without notice")
	}
	for i, x := range w.workers {
		if x.alive && !x.stuck {
			return fmt.Errorf("over, but rank %d runs", i)
		}
	}
	return nil
}

// happens picks what comes next.
func (w *world) happens() (Event, bool) {
	r := w.r
	w.now += time.Duration(r.IntN(1000)) * time.Microsecond
	rare := func(p float64) bool { return r.Float64() < p }
	switch {
	case !w.notice && rare(w.crash/8):
		w.notice = true
		return Event{Kind: Notice, Grace: 30 * time.Second, Err: fault.New(fault.Canceled, "notice")}, true
	case !w.stop && rare(w.crash/16):
		w.stop = true
		return Event{Kind: Stop, Err: fault.New(fault.Canceled, "stop")}, true
	case !w.lost && rare(w.crash/16):
		w.lost = true
		return Event{Kind: Lost, Err: fault.New(fault.Canceled, "lost")}, true
	case rare(w.crash / 4):
		return Event{Kind: DataLost, Err: fault.New([]fault.Code{fault.Unavailable, fault.WorkerLost, fault.Exhausted, fault.Corrupt}[r.IntN(4)], "data")}, true
	case w.attempt > 1 && rare(0.02):
		return Event{Kind: Exit, Attempt: w.attempt - 1, Rank: r.IntN(w.cfg.World), Signal: "killed"}, true // late news of an earlier attempt
	}
	var moves []func() Event
	if w.pending {
		moves = append(moves, func() Event {
			w.pending = false
			if rare(w.crash) {
				return Event{Kind: LaunchFailed, Err: fault.New([]fault.Code{fault.Unavailable, fault.NotFound}[r.IntN(2)], "launch")}
			}
			for i := range w.workers {
				w.workers[i].alive = true
			}
			return Event{Kind: Launched}
		})
	}
	if w.upload > 0 {
		moves = append(moves, func() Event {
			e := Event{Kind: Uploaded, N: w.upload, Checkpoint: w.next}
			if w.cfg.Async && !w.taken {
				w.taken = true
				e.Kind = Taken
				return e
			}
			w.upload = 0
			if rare(w.crash) {
				e.Err = fault.New([]fault.Code{fault.Unavailable, fault.Denied}[r.IntN(2)], "upload")
				return e
			}
			w.newest, w.reports = w.next, e.N
			w.next += 1 + r.IntN(3)
			w.fails = map[Class]int{}
			return e
		})
	}
	for i := range w.workers {
		x := &w.workers[i]
		switch {
		case !x.alive || x.stuck && !x.told:
		case x.told:
			moves = append(moves, func() Event {
				x.alive = false
				return Event{Kind: Exit, Rank: i, Signal: "terminated", Ours: true}
			})
		case rare(w.crash):
			x.alive = false
			if x.hello && rare(0.2) { // who never connects may take as long as it likes
				x.stuck, x.alive = true, true
				continue
			}
			e := Event{Kind: Exit, Rank: i, Code: []int{1, 0, 0}[r.IntN(3)], Signal: []string{"", "killed"}[r.IntN(2)]}
			e.Memory = (e.Code > 0 || e.Signal != "") && rare(0.2)
			w.quiet = w.quiet || e.Code == 0 && e.Signal == ""
			return e, true
		case !x.hello:
			moves = append(moves, func() Event { x.hello = true; return Event{Kind: Hello, Rank: i} })
		case x.waiting > 0:
		case !x.done && x.made == w.total && r.IntN(2) == 0: // an end in two steps, the second of which may never come
			moves = append(moves, func() Event {
				x.done = true
				x.stuck = rare(w.crash * 8)
				return Event{Kind: Done, Rank: i}
			})
		case x.made == w.total || w.notice && x.made > w.counted: // sees the notice sooner or later
			moves = append(moves, func() Event { x.alive = false; return Event{Kind: Exit, Rank: i} })
		default:
			moves = append(moves, func() Event {
				x.made++
				x.waiting = x.made
				e := Event{Kind: Report, Rank: i, N: x.made, Sets: []Set{{Name: "train", Step: x.made}}}
				if x.made%w.every == 0 && slices.Contains(w.saves, i) {
					e.Files, e.Sets[0].Key = true, fmt.Sprint(x.made)
					w.files[x.made] = append(w.files[x.made], i)
				}
				return e
			})
		}
	}
	ending := slices.ContainsFunc(w.workers, func(x worker) bool { return x.alive && x.told }) // in time: that some never do is in testdata
	if len(moves) == 0 || !ending && rare(0.01) {
		at, ok := w.g.Deadline()
		if !ok && len(moves) == 0 {
			return Event{}, false
		}
		if ok {
			w.now = max(w.now, at)
		}
		return Event{Kind: Tick}, true
	}
	return moves[r.IntN(len(moves))](), true
}

// send takes a step, and does what it says.
func (w *world) send(e Event) error {
	if e.At = w.now; e.Attempt == 0 {
		e.Attempt = w.attempt
	}
	fmt.Fprintf(&w.trace, "%v %+v\n", w.now, e)
	for _, a := range w.g.Step(e) {
		fmt.Fprintf(&w.trace, "    %v\n", a)
		if err := w.do(a); err != nil {
			return fmt.Errorf("%v: %w", a, err)
		}
	}
	return nil
}

func (w *world) do(a Action) error {
	if w.end != nil {
		return fmt.Errorf("after the end")
	}
	switch a.Do {
	case Start:
		switch {
		case a.Checkpoint != w.newest || a.Reports != w.reports:
			return fmt.Errorf("the newest commit is %d of report %d", w.newest, w.reports)
		case w.pending || w.upload > 0:
			return fmt.Errorf("something is under way")
		case w.stop || w.notice || w.lost:
			return fmt.Errorf("the run is to end")
		case a.Attempt != w.attempt+1:
			return fmt.Errorf("attempt %d follows %d", a.Attempt, w.attempt)
		}
		for i, x := range w.workers {
			if x.alive {
				return fmt.Errorf("rank %d still runs", i)
			}
		}
		w.pending, w.attempt, w.counted = true, a.Attempt, a.Reports
		w.workers = make([]worker, w.cfg.World)
		w.files = map[int64][]int{}
		for i := range w.workers {
			w.workers[i] = worker{made: a.Reports, acked: map[int64]bool{}}
		}
	case Complete:
		if w.counted++; a.N != w.counted {
			return fmt.Errorf("follows %d", w.counted-1)
		}
		for i, x := range w.workers {
			if x.made < a.N {
				return fmt.Errorf("rank %d did not make it", i)
			}
		}
	case Commit:
		slices.Sort(w.files[a.N])
		switch {
		case w.upload > 0:
			return fmt.Errorf("%d is under way", w.upload)
		case a.N > w.counted || a.N <= w.reports || !slices.Equal(a.Ranks, w.files[a.N]):
			return fmt.Errorf("not the next: newest of %d, counted %d, files of %v", w.reports, w.counted, w.files[a.N])
		}
		w.upload, w.taken = a.N, false
	case Ack:
		x := &w.workers[a.Rank]
		switch {
		case x.acked[a.N] || a.N > x.made:
			return fmt.Errorf("twice, or not made")
		case (a.Checkpoint > 0) != (a.Err == nil && slices.Contains(w.files[a.N], a.Rank)):
			return fmt.Errorf("a checkpoint goes with files")
		case a.Checkpoint > 0 && a.Checkpoint != w.newest && (!w.cfg.Async || a.Checkpoint != w.next || !w.taken || a.N != w.upload):
			return fmt.Errorf("it is not committed")
		}
		x.acked[a.N] = true
		x.waiting = 0
	case StopGroup:
		for i := range w.workers {
			w.workers[i].told = true
		}
	case Failure:
		w.fails[a.Class]++
		budget := map[Class]int{Worker: w.cfg.Worker, Hang: w.cfg.Hang, Memory: w.cfg.Memory, Fatal: 0}[a.Class]
		if !a.Final && w.fails[a.Class] > budget {
			return fmt.Errorf("beyond its budget")
		}
	case Finish:
		w.end = &a
	}
	return nil
}
