package group

import (
	"fmt"
	"strings"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// cause is why an attempt fails. Of several that are heard within a second the least rank counts, then the first.
type cause struct {
	rank  int // -1: none
	class Class
	level int
	sure  bool   // nothing that comes later can be the cause of it
	same  string // equal for failures that look alike; "": of those that need not come again
	err   error
}

const (
	own  = iota // a crash, a failure of the data
	loop        // an error of the loop: perhaps because a peer was lost, which the framework noticed
	exit        // an exit code without a word: the same
	data        // the data process was lost, or a consumer of it
	peer        // the loss of a peer, or of the data process, was seen
	ours        // ended by us
)

const (
	aborted = "aborted" // a worker's end by its own hand, as that of frameworks which lost a peer is
	killed  = "killed"
)

func fatalCause(rank int, err error) *cause {
	return &cause{rank: rank, class: Fatal, level: own, sure: true, err: err}
}

func uploadCause(n int64, err error) *cause {
	c := &cause{rank: -1, class: Fatal, level: own, sure: true, same: "upload", err: fault.New(fault.CodeOf(err), "the checkpoint of report %d: %w", n, err)}
	if code := fault.CodeOf(err); code == fault.Unavailable || code == fault.WorkerLost {
		c.class = Worker
	}
	return c
}

// dataCause: a lost consumer of the data is the loss of a worker; errors that come again end the run.
func dataCause(err error) *cause {
	c := &cause{rank: -1, level: data, same: "data", err: err}
	switch code := fault.CodeOf(err); {
	case code == fault.WorkerLost:
		c.level = peer
	case code == fault.Unavailable:
		c.sure = true // no worker ends it
	case code == fault.Exhausted:
		c.class, c.level, c.sure = Memory, own, true
	case !code.Retryable() && code != fault.Unknown && code != fault.Canceled && code != fault.Stalled:
		c.class, c.level, c.sure = Fatal, own, true
	}
	return c
}

// done: a loop returned.
func (g *Group) done(e Event) {
	r := &g.ranks[e.Rank]
	if e.Err == nil {
		r.done = true
		return
	}
	r.failed = true
	code := fault.CodeOf(e.Err)
	c := &cause{rank: e.Rank, level: own, sure: true, same: "loop: " + code.String(), err: e.Err}
	switch code {
	case fault.UserCode, fault.Unknown:
		if g.cfg.World > 1 {
			c.level, c.sure = loop, false
		}
	case fault.WorkerLost, fault.Unavailable, fault.Canceled:
		c.level, c.sure = peer, false
	case fault.Invalid, fault.NotFound, fault.Exists, fault.Unsupported, fault.Denied, fault.Corrupt, fault.Changed:
		if !g.progress {
			c.class = Fatal // what was asked for is refused: it would be again
		}
	}
	g.hear(c)
}

// exit: a worker ended.
func (g *Group) exit(e Event) {
	r := &g.ranks[e.Rank]
	if !r.running {
		return
	}
	r.running = false
	if e.Code == 0 && e.Signal == "" && !r.failed {
		r.ended, r.done = true, true
		return
	}
	if fault.CodeOf(e.Err) == fault.Stalled && e.Ours {
		g.end = &ending{state: Failed, err: e.Err} // it runs on: no other attempt can be made
		if w := g.why(); w != nil && w != e.Err {
			g.end.err = fault.New(fault.CodeOf(w), "%w; and %w", w, e.Err)
		}
	}
	c := &cause{rank: e.Rank, level: exit, err: e.Err, same: fmt.Sprintf("exit %d %s", e.Code, e.Signal)}
	switch {
	case e.Memory:
		c.class, c.level, c.sure = Memory, own, true
	case e.Ours, r.failed: // said before why
		c.level = ours
	case e.Signal != "" && e.Signal != aborted:
		c.level, c.sure = own, true
		if e.Signal == killed { // from outside: no property of the program
			c.same = ""
		}
	}
	if c.err == nil {
		c.err = fault.New(fault.WorkerLost, "rank %d ended with exit code %d %s", e.Rank, e.Code, e.Signal)
	}
	// A program that never connects may have run for long.
	if !r.hello && g.now-g.launched > quick {
		g.progress = true
	}
	g.hear(c)
}

// hear takes a failure.
func (g *Group) hear(c *cause) {
	switch g.phase {
	case up:
		if g.notice != nil && c.class != Fatal {
			return // workers end now, one way or the other
		}
		g.cause, g.phase, g.heard, g.until = c, settling, g.now, g.now+settle
	case launching:
		g.cause, g.heard = c, g.now
		g.halt()
	case settling, stopping:
		// Workers that failed before they all ran are ended once they do.
		if (g.phase == settling || g.open || g.untold()) && g.cause != nil && !g.cause.sure && c.level < g.cause.level {
			g.cause = c
		}
	}
}

// untold: workers saw a loss, and what was lost may yet be told, though they have all ended by it.
func (g *Group) untold() bool {
	return g.cause != nil && g.cause.level == peer && g.now < g.heard+settle
}

// watch looks at the clock while workers run.
func (g *Group) watch() {
	if g.notice != nil && g.now >= g.by {
		g.late = g.which(func(r *rank) bool { return r.running })
		g.halt()
		return
	}
	if t, ok := g.startDue(); ok && g.now >= t {
		missing := g.which(func(r *rank) bool { return !r.hello && r.running })
		g.cause = &cause{rank: missing[0], class: Hang, same: "start", err: fault.New(fault.Stalled, "%s did not connect within %v of the start, the others have: see the log, or raise start_timeout", list(missing), g.cfg.StartTimeout)}
		if len(missing) == g.cfg.World {
			g.cause.err = fault.New(fault.Stalled, "no worker connected within %v of the start: see the logs, or raise start_timeout", g.cfg.StartTimeout)
		}
		g.ask(missing)
		return
	}
	var late *rank
	culprit := -1
	for i := range g.ranks {
		r := &g.ranks[i]
		if t, ok := g.hangDue(r); ok && g.now >= t && (late == nil || r.sign < late.sign) {
			late, culprit = r, i
		}
	}
	if late != nil {
		silent := g.which(func(r *rank) bool { t, ok := g.hangDue(r); return ok && g.now >= t })
		g.cause = &cause{rank: culprit, class: Hang, same: "hang", err: fault.New(fault.Stalled, "rank %d gave no sign (a report, a batch, alive) for %v, the longest of all: it hangs after step %d. Its stacks are in the log folder, %s; raise hang_timeout where steps take that long",
			culprit, (g.now - late.sign).Round(time.Second), late.step, StacksName(g.attempt, culprit))}
		if late.done {
			g.cause.err = fault.New(fault.Stalled, "the loop of rank %d has returned, but its process did not end within %v: what it does at its exit hangs. Its stacks are in the log folder, %s; raise hang_timeout where that takes so long",
				culprit, (g.now - late.sign).Round(time.Second), StacksName(g.attempt, culprit))
		}
		g.ask(silent)
		return
	}
	for i := range g.ranks {
		if t, ok := g.reportDue(&g.ranks[i]); ok && g.now >= t {
			g.lateReport(i)
			return
		}
	}
	g.unequal()
}

// StacksName is the file of a rank's stacks, below the folder of logs.
func StacksName(attempt, rank int) string {
	return fmt.Sprintf("attempt-%d/rank-%d.stacks", attempt, rank)
}

// ask collects stacks before the group is ended.
func (g *Group) ask(ranks []int) {
	g.phase, g.until = asked, g.now+asking
	g.act(Action{Do: Stacks, Attempt: g.attempt, Ranks: ranks, Err: g.cause.err})
}

func (g *Group) startDue() (time.Duration, bool) {
	any := g.cfg.Library
	all := true
	for i := range g.ranks {
		r := &g.ranks[i]
		any = any || r.hello
		all = all && (r.hello || !r.running)
	}
	return g.launched + g.cfg.StartTimeout, any && !all && g.cfg.StartTimeout > 0
}

// hangDue: a rank that has connected gives signs until its loop returns, and ends soon after all loops have. What it does at its exit may wait for other ranks.
func (g *Group) hangDue(r *rank) (time.Duration, bool) {
	if g.cfg.HangTimeout <= 0 || !r.hello || !r.running || r.owed > 0 || r.idle > 0 {
		return 0, false
	}
	last := r.sign
	if r.done {
		for i := range g.ranks {
			o := &g.ranks[i]
			if o.hello && !o.done {
				return 0, false
			}
			last = max(last, o.sign)
		}
	}
	return last + g.cfg.HangTimeout, true
}

// reportDue: a rank waits in a report for other ranks, not for an upload.
func (g *Group) reportDue(r *rank) (time.Duration, bool) {
	return r.since + g.cfg.ReportTimeout, g.cfg.ReportTimeout > 0 && r.owed > 0 && r.running && r.made > g.base
}

// lateReport: the reports that rank i waits for did not come.
func (g *Group) lateReport(i int) {
	n := g.ranks[i].made
	missing := g.which(func(r *rank) bool { return r.made < n })
	if g.ranks[i].held > 0 {
		missing = g.which(func(r *rank) bool { return r.made == g.least() })
	}
	err := fault.New(fault.Stalled, "rank %d waits for %v in its report %d, which %s did not make (the slowest is at report %d): every rank reports equally often. Raise report_timeout where ranks are that far apart",
		i, g.cfg.ReportTimeout, n, list(missing), g.least())
	if !g.together {
		g.hear(fatalCause(missing[0], fault.New(fault.Invalid, "%w. No report of this run was made by all ranks: call report on every rank, also on those that give no files", err)))
		return
	}
	g.cause = &cause{rank: missing[0], class: Hang, same: "report", err: err}
	g.ask(missing)
}

func (g *Group) which(f func(*rank) bool) (out []int) {
	for i := range g.ranks {
		if f(&g.ranks[i]) {
			out = append(out, i)
		}
	}
	return out
}

// list names ranks: "rank 1", "ranks 0, 2".
func list(ranks []int) string {
	s := strings.Trim(strings.Join(strings.Fields(fmt.Sprint(ranks)), ", "), "[]")
	if len(ranks) == 1 {
		return "rank " + s
	}
	return "ranks " + s
}

// unequal: a rank that has ended made fewer reports than another.
func (g *Group) unequal() {
	least, most := -1, 0
	for i := range g.ranks {
		r := &g.ranks[i]
		if !r.running && (least < 0 || r.made < g.ranks[least].made) {
			least = i
		}
		if r.made > g.ranks[most].made {
			most = i
		}
	}
	if least < 0 || g.ranks[least].made == g.ranks[most].made {
		return
	}
	err := fault.New(fault.Invalid, "rank %d ended after report %d, rank %d made report %d: every rank reports equally often", least, g.ranks[least].made, most, g.ranks[most].made)
	if g.notice != nil {
		g.release(g.ranks[least].made, err) // the notice came between them
		return
	}
	g.hear(fatalCause(least, err))
}

func (g *Group) connected() bool { return len(g.which(func(r *rank) bool { return r.hello })) > 0 }

// release answers ranks that wait for reports after n, which will not be complete.
func (g *Group) release(n int64, err error) {
	for i := range g.pending {
		p := &g.pending[i]
		if at := g.base + int64(i) + 1; at > n {
			for _, r := range p.files {
				g.ack(r, Action{N: at, Err: err})
			}
			p.files = nil
		}
	}
	for i := range g.ranks {
		if r := &g.ranks[i]; r.held > 0 && r.held-n > g.cfg.Lag {
			g.ack(i, Action{N: r.held, Err: err})
			r.held = 0
		}
	}
}

// allEnded: no worker runs, and none failed, or the machine is taken away.
func (g *Group) allEnded() {
	if g.upload != nil || len(g.queue) > 0 {
		return // their results decide
	}
	if g.notice == nil {
		g.end = &ending{state: Finished}
	}
	g.halt()
}

// ended decides what follows once all workers have ended, and what was being written is.
func (g *Group) ended() {
	if n := g.running(); n > 0 && g.told && g.now >= g.until {
		which := g.which(func(r *rank) bool { return r.running })
		err := fault.New(fault.Stalled, "%s did not end within %v of being told to: a loop watches its context", list(which), g.cfg.StopTimeout+stuck)
		if w := g.why(); w != nil {
			err = fault.New(fault.CodeOf(w), "%w; and %w", w, err)
		}
		g.finish(Failed, err)
		return
	}
	if g.open || g.running() > 0 || g.upload != nil || g.end == nil && g.untold() {
		return
	}
	switch {
	case g.end != nil && (g.end.state == Finished || g.cause == nil):
		g.finish(g.end.state, g.end.err)
	case g.cause == nil && len(g.late) > 0:
		after := "the last checkpoint"
		if g.newest == 0 {
			after = "the start"
		}
		g.finish(Preempted, fault.New(fault.CodeOf(g.notice.Err), "%w; %s did not end within the grace of %v, and had to be ended: what came after %s is lost", g.notice.Err, list(g.late), g.notice.Grace, after))
	case g.cause == nil:
		g.finish(Preempted, g.notice.Err)
	default:
		g.judge()
	}
}

// judge counts a failure and makes another attempt, or none.
func (g *Group) judge() {
	c := g.cause
	err := c.err
	again := false
	switch {
	case g.end != nil || c.class == Fatal:
	case g.notice != nil:
	case !g.progress && g.last != "" && g.last == c.same:
		err = fault.New(fault.CodeOf(err), "twice before the first report or batch, so it would come again: %w", err)
	default:
		g.fails[c.class]++
		budget := [Fatal]int{g.cfg.Worker, g.cfg.Hang, g.cfg.Memory}[c.class]
		if again = g.fails[c.class] <= budget; !again && budget > 0 {
			err = fault.New(fault.CodeOf(err), "failure %d without a checkpoint in between, of which %d are outlived (failures.%s): %w", g.fails[c.class], budget, c.class, err)
		}
	}
	g.act(Action{Do: Failure, Attempt: g.attempt, Rank: c.rank, Class: c.class, Final: !again, Err: err})
	if !again {
		switch {
		case g.end != nil:
			g.finish(g.end.state, g.end.err)
		case g.notice != nil && c.class != Fatal:
			g.finish(Preempted, g.notice.Err)
		default:
			g.finish(Failed, err)
		}
		return
	}
	g.last = ""
	if !g.progress {
		g.last = c.same
	}
	g.until = g.now + g.pause()
	g.phase, g.cause = waiting, nil
	g.status(Restarting, err)
	g.starts++
	if g.now >= g.until {
		g.start()
	}
}

// pause before another attempt.
func (g *Group) pause() time.Duration {
	d := g.cfg.Delay
	if d <= 0 {
		if g.progress || g.connected() {
			return 0
		}
		d = time.Second
	}
	return min(d<<min(g.starts, 10), time.Minute)
}

func (g *Group) finish(s State, err error) {
	g.phase, g.state = over, s
	g.act(Action{Do: Finish, Attempt: g.attempt, Checkpoint: g.newest, State: s, Ranks: g.late, Err: err})
}
