//go:build unix

package launch

import (
	"context"
	"maps"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/units"
	"github.com/penstock-data/penstock/trainer/internal/oom"
)

const (
	lookEvery   = 500 * time.Millisecond // at trees, if nothing happens
	leftFor     = 2 * time.Second        // what a worker leaves behind has so long to end
	drainFor    = 300 * time.Millisecond // output after the end of a worker, should another process hold its pipes
	readersFor  = 2 * time.Second        // for its readers, should a disk or a terminal be stuck
	forceFor    = 30 * time.Second       // after SIGKILL, until a process is given up
	quitCounts  = 5 * time.Second        // an end so soon after SIGQUIT is ours
	busyEvery   = 5 * time.Millisecond   // at trees that are to end, at first
	busyAtMost  = 100 * time.Millisecond
	shareOfLook = 50 // a look may cost one part in so many of the time
)

// group is workers that are processes. tend is the one goroutine that looks at them and ends them; each has one that waits for it, and two that read.
type group struct {
	workers []*worker
	term    *terminal // nil: none
	main    bool      // Options.Main
	joined  bool      // Options.Joined
	confine *Confine  // Options.Confine
	exits   chan Exit
	nudge   chan struct{} // have tend look now
	done    chan struct{} // closed when nothing is left

	mu       sync.Mutex // guards what follows, and what workers say it does
	tree     *tree
	members  []member // at the last look
	lookedAt time.Time
	force    time.Time // everything is ended from then on; zero: not asked to
	reported int       // workers that have their Exit
}

type worker struct {
	Worker
	name    string
	path    string
	p       *os.Process // nil: not started
	pid     int
	out     *output
	streams []*stream
	cgroup  *cgroup // nil: memory is looked at only

	// under group.mu
	usage     Usage
	deadCPU   time.Duration // of processes that were waited for
	asked     bool          // to end
	quit      time.Time     // when it got SIGQUIT for its stacks
	killed    bool          // we sent SIGKILL to the main process
	used      int64         // the memory for which it is ended; 0: it is not
	ended     time.Time     // when the main process did; zero: it runs
	reaped    bool          // it was waited for: its id may be another's
	hasExit   bool
	farewells map[procID]bool // of what it left behind: has got SIGTERM
}

// alive are the groups of this process that have processes.
var alive = &live{groups: map[*group]bool{}}

type live struct {
	mu     sync.Mutex
	groups map[*group]bool
}

func (l *live) add(g *group) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.groups[g] = true
}

func (l *live) remove(g *group) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.groups, g)
}

// KillAll ends all workers of all groups that this process has launched, with every process that descends from them, by SIGKILL. It returns when none is left, or ctx ends: for a
// program that ends at once, as the kernel ends its children only.
func KillAll(ctx context.Context) {
	alive.mu.Lock()
	all := slices.Collect(maps.Keys(alive.groups))
	alive.mu.Unlock()
	gone := make(chan struct{}, len(all))
	for _, g := range all {
		go func() {
			g.Stop(0)
			gone <- struct{}{}
		}()
	}
	for range all {
		select {
		case <-gone:
		case <-ctx.Done():
			return
		}
	}
}

func (g *group) Exits() <-chan Exit { return g.exits }

func (g *group) Usage() []Usage {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]Usage, len(g.workers))
	for i, w := range g.workers {
		out[i] = w.usage
	}
	return out
}

func (g *group) Signal(rank int, s os.Signal) error {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, w := range g.workers {
		switch {
		case rank != -1 && rank != w.Rank:
			continue
		case !w.ended.IsZero() || w.p == nil:
			if rank == -1 {
				continue
			}
			return fault.New(fault.NotFound, "%s has ended", w.name)
		}
		if asks(s) {
			w.asked = true
			w.killed = w.killed || s == syscall.SIGKILL
		}
		if err := w.p.Signal(s); err != nil && rank != -1 {
			return fault.New(fault.NotFound, "%s: signal %v: %w", w.name, s, err)
		}
		if rank != -1 {
			return nil
		}
	}
	if rank != -1 {
		return errNoRank(rank)
	}
	return nil
}

// Stop: SIGTERM to every process of every worker (Options.Main: to the main ones), and SIGKILL after grace until none is left. A process that the kernel does not let end (it waits for a disk or a device) is given up 30 s later, which
// its Exit says.
func (g *group) Stop(grace time.Duration) {
	g.mu.Lock()
	first := g.force.IsZero()
	if force := time.Now().Add(max(grace, 0)); first || force.Before(g.force) {
		g.force = force
	}
	if first {
		for _, w := range g.workers {
			w.asked = w.asked || w.ended.IsZero()
		}
		if grace > 0 {
			g.look()
			for _, m := range g.members {
				if w := g.workers[m.worker]; g.main && m.id.pid != w.pid {
					continue
				} else if g.main { // not its process group
					_ = w.p.Signal(syscall.SIGTERM) // gone is fine
					_ = w.p.Signal(syscall.SIGCONT)
				} else {
					g.tree.send(m, syscall.SIGTERM)
					g.tree.send(m, syscall.SIGCONT) // one that is stopped cannot end
				}
				g.farewell(m)
			}
		}
	}
	g.mu.Unlock()
	poke(g.nudge)
	<-g.done
}

// farewell notes that m was told to end, and reports whether it had been before.
func (g *group) farewell(m member) bool {
	w := g.workers[m.worker]
	if w.farewells == nil {
		w.farewells = map[procID]bool{}
	}
	was := w.farewells[m.id]
	w.farewells[m.id] = true
	return was
}

// wait is the goroutine of a worker: it reports its end.
func (g *group) wait(i int) {
	w := g.workers[i]
	held := waitDead(w.pid) // and leaves it to be waited for, so that its id stays taken
	e := Exit{Rank: w.Rank, Name: w.name, PID: w.pid, At: time.Now()}
	g.mu.Lock()
	if held && g.lookedAt.Before(e.At) {
		g.look() // what it leaves behind
	}
	g.mu.Unlock()

	state, err := w.p.Wait()
	g.mu.Lock()
	w.ended, w.reaped = e.At, true
	if state != nil {
		w.deadCPU += state.UserTime() + state.SystemTime()
	}
	g.explain(w, &e, state, err)
	g.mu.Unlock()
	poke(g.nudge)

	for _, s := range w.streams {
		s.drain(time.Now().Add(drainFor))
	}
	patience := time.NewTimer(readersFor)
	defer patience.Stop()
	for _, s := range w.streams {
		select {
		case <-s.done:
		case <-patience.C:
		}
	}
	w.out.closeFile()
	w.out.mu.Lock()
	e.Tail, e.Lacks = w.out.tail.last(), w.out.lacks
	w.out.mu.Unlock()
	g.mu.Lock()
	g.report(i, e)
	g.mu.Unlock()
	poke(g.nudge)
}

// explain fills in how a worker ended.
func (g *group) explain(w *worker, e *Exit, state *os.ProcessState, err error) {
	e.Ours = w.asked
	ws, ok := syscall.WaitStatus(0), false
	if state != nil {
		ws, ok = state.Sys().(syscall.WaitStatus)
	}
	switch {
	case !ok:
		e.Code, e.Detail = -1, "its end cannot be seen: "+err.Error()
		return
	case ws.Signaled():
		e.Code, e.Signal = -1, ws.Signal()
	default:
		e.Code = ws.ExitStatus()
	}
	e.Ours = e.Ours || !w.quit.IsZero() && e.At.Sub(w.quit) < quitCounts
	if !e.OK() && !e.Ours && w.cgroup.killed() {
		_, _ = oom.Killed() // it is not another's
		e.Memory, e.OverLimit, e.Detail = true, w.cgroup.full(), "the kernel ended one of its processes at its limit of "+units.Bytes(w.Memory)
		if !e.OverLimit {
			e.Detail = "the kernel ended one of its processes below its limit of " + units.Bytes(w.Memory) + ", as the machine or a control group around it was out of memory"
		}
		return
	}
	if e.Signal != syscall.SIGKILL {
		return
	}
	switch {
	case w.used > 0:
		e.Memory, e.OverLimit = true, true
		e.Detail = "it used " + units.Bytes(w.used) + ", its limit is " + units.Bytes(w.Memory)
	case !w.killed:
		e.Memory, e.Detail = oom.Killed()
	}
}

// report sends an Exit once. Under mu, or before others know the group.
func (g *group) report(i int, e Exit) {
	w := g.workers[i]
	if w.hasExit {
		return
	}
	w.hasExit = true
	e.Name = w.name
	g.exits <- e
	if g.reported++; g.reported == len(g.workers) {
		close(g.exits)
	}
}

// look finds the processes of all workers and what they use.
func (g *group) look() {
	g.lookedAt = time.Now()
	g.members = g.tree.look(func(worker int, cpu time.Duration) { g.workers[worker].deadCPU += cpu })
	for i, w := range g.workers {
		u := Usage{Rank: w.Rank, PID: w.pid}
		for _, m := range g.members {
			if m.worker == i {
				u.Processes++
				u.Memory += m.memory
				u.CPU += m.cpu
			}
		}
		u.CPU = max(u.CPU+w.deadCPU, w.usage.CPU) // what a process has waited for is lost if nobody waits for it
		w.usage = u
	}
	oom.Look()
}

// limit finds workers that use too much. What their processes share is counted once before that is said.
func (g *group) limit() {
	for i, w := range g.workers {
		if w.Memory <= 0 || w.used > 0 || !w.ended.IsZero() {
			continue
		}
		if w.cgroup.killed() { // what is left of it ends, too
			w.used = w.Memory
		}
		if w.usage.Memory <= w.Memory {
			continue
		}
		exact, ok := int64(0), true
		for _, m := range g.members {
			if m.worker == i && ok {
				var n int64
				n, ok = m.exact()
				exact += n
			}
		}
		if ok {
			w.usage.Memory = exact
		}
		if w.usage.Memory > w.Memory {
			w.used = w.usage.Memory
		}
	}
}

// end sends the signals that are due, and reports whether any was, or will soon be.
func (g *group) end() bool {
	busy := false
	now := time.Now()
	force := !g.force.IsZero() && !now.Before(g.force)
	for _, m := range g.members {
		w := g.workers[m.worker]
		left := !w.ended.IsZero()
		busy = busy || left || force || w.used > 0 || !g.force.IsZero()
		switch {
		case force, w.used > 0, left && now.Sub(w.ended) >= leftFor:
			w.killed = w.killed || m.id.pid == w.pid
			g.tree.send(m, syscall.SIGKILL)
		case left && !g.farewell(m):
			g.tree.send(m, syscall.SIGTERM)
			g.tree.send(m, syscall.SIGCONT)
		}
	}
	return busy
}

// tend is the goroutine that looks after the group until nothing of it is left.
func (g *group) tend() {
	defer close(g.done)
	pause, empty := busyEvery, 0
	usual := time.Hour // what a look costs when the machine has nothing better to do
	for {
		g.mu.Lock()
		began := time.Now()
		g.look()
		g.limit()
		busy := g.end()
		empty++
		if g.reported < len(g.workers) || len(g.members) > 0 {
			empty = 0
		}
		over := empty == 2 // once more: a process may have forked and ended during one look
		if !over && !g.force.IsZero() && time.Since(g.force) > forceFor {
			g.giveUp()
			over = true
		}
		force, cost := g.force, time.Since(began)
		g.mu.Unlock()
		if over {
			break
		}
		usual = min(cost, usual/4*5)
		wait := max(lookEvery, min(shareOfLook*usual, 4*lookEvery))
		if busy || empty > 0 {
			wait, pause = max(pause, usual), min(2*pause, busyAtMost)
		}
		if till := time.Until(force); !force.IsZero() && till > 0 {
			wait = min(wait, till)
		}
		t := time.NewTimer(wait)
		select {
		case <-g.nudge:
			pause = busyEvery
		case <-t.C:
		}
		t.Stop()
	}
	if g.term != nil {
		g.term.close()
	}
	for _, w := range g.workers {
		w.cgroup.remove()
	}
	alive.remove(g)
	adopt(false)
}

// giveUp reports workers that the kernel does not let end.
func (g *group) giveUp() {
	for i, w := range g.workers {
		if !w.hasExit {
			g.report(i, Exit{Rank: w.Rank, PID: w.pid, Code: -1, Ours: w.asked, At: time.Now(), Detail: "SIGKILL has no effect, its state is " + whereabouts(w.pid)})
		}
	}
}
