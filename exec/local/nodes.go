package local

import (
	"context"
	"errors"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/internal/sched"
	"github.com/penstock-data/penstock/internal/fault"
)

// Node runs tasks of scans in another process, where a [Worker] has the same graph. Everything else (order, limits,
// retries, dead letters) is the run's, which does not know where a task is but for this. Safe for concurrent use; no method but Do waits.
type Node interface {
	// CPUs is how many tasks compute there at once.
	CPUs() int
	// Room is how many tasks it wants, at work and waiting there; 0 once it is lost. More may be sent.
	Room() int
	// Watch says which run is told what happens there, before the first Do of it.
	Watch(w Watcher)
	// Do runs a task and returns when it is over there, or soon after ctx ended. WorkerLost: the node is lost, and the task was at
	// work there. ErrMoved: it is lost, or wants no more, and the task had not begun.
	Do(ctx context.Context, t *Task, h *Hand) (*Result, error)
	// Urge says whether everything waits for a task. One that was not sent yet is not known there: see Hand.Urgent.
	Urge(id uint64, on bool)
}

// ErrMoved says that a task was not begun where it was sent. It runs elsewhere, and no attempt is counted.
var ErrMoved = errors.New("the task was not begun")

// Watcher is told what happens at a node beside its tasks.
type Watcher interface {
	// RoomChanged says that Node.Room gives another number.
	RoomChanged()
	// Count adds to the statistics what a Worker's Counts grew by, and sets what its budget holds and has held at most.
	Count(grown []int64, held, peak int64)
	// Moved says that something moves there.
	Moved()
}

// Task is an attempt at a task, in words that the process of a Worker understands.
type Task struct {
	ID       uint64 // of the attempt, of all that the Runner made
	Stage    int
	Part     int   // of the sink; -1: the rows are wanted
	Split    int   // of a part: the first
	End      int   // of a part: behind its last split
	From, To int64 // rows of Split; To -1: to the end
	Attempt  int
	Ratio    int64 // by which batches are cut into slices, so that attempts make the same blocks; 0 of a part
	Urgent   bool  // as Hand.Urgent says when the task is sent
}

// Result is what a task that ended well leaves, beside its blocks.
type Result struct {
	Rows   int64  // of a part: written
	Report []byte // of a part: of exec.Joint
	Ratio  int64  // as last seen; 0: unknown. Not of a part
}

// Hand is what Do calls, on its own goroutine.
type Hand struct {
	Schema *arrow.Schema            // of the blocks
	None   func() arrow.RecordBatch // one without rows; borrowed
	Alloc  memory.Allocator         // for them: waits while memory is short
	// Take is Alloc.Allocate for a block that comes; false: the attempt is over, and nothing is taken. Alloc frees it.
	Take func(n int) (p []byte, ok bool)
	// Charge takes n bytes of the budget, free or not, for memory that is somebody's already, and returns what gives them back. Any goroutine may call it.
	Charge func(n int64) (release func())
	// Emit takes a block over, with the place of its split set in Origin.Task alone, and waits until there is room for another.
	Emit func(b *exec.Block) error
	// Over is closed once the run ends: nobody writes a part again, so its end is not waited for any more.
	Over <-chan struct{}
	// Read says how many rows the attempt has read by now.
	Read func(rows int64)
	// Urgent is what Urge said of the task, or would have said before there was one. Do asks when it sends the task, so that no Urge gets between; it never waits.
	Urgent func() bool
}

// spread makes r a run of several processes; layout calls it.
func (r *run) spread() {
	here := r.opt.CPUs
	for i := range r.cfg.Stages {
		c := &r.cfg.Stages[i]
		if c.Inputs == nil {
			here = max(here, c.Max)
		} else { // runs here only
			c.Most = max(r.opt.CPUs, c.Max)
		}
		c.Max = 0
	}
	r.places = newPlaces(here, r.nodes)
	for _, n := range r.nodes {
		r.cfg.EnoughBytes += int64(n.CPUs()) * enoughElsewhere
	}
	r.cfg.CPUs = r.places.rooms
	r.cfg.AheadTasks = max(r.cfg.AheadTasks*len(r.places.all), aheadElsewhere)
}

// enoughElsewhere is how much may wait for each task at work elsewhere: about what a split gives, so that one that is not the head is not held up until its turn. It
// comes through memory anyway.
const enoughElsewhere = 64 << 20

// aheadElsewhere is how many tasks may be open where some run in other processes: short ones keep nodes busy only if many are under way.
const aheadElsewhere = 2048

// allCPUs is how many tasks compute at once, wherever.
func (r *run) allCPUs() int {
	n := r.opt.CPUs
	for _, o := range r.nodes {
		n += o.CPUs()
	}
	return n
}

// Moved implements Watcher.
func (r *run) Moved() { r.moved.Store(int64(time.Since(r.started))) }

// watch is a node seen by a run.
type watch struct {
	*run
	node int
}

// RoomChanged implements Watcher.
func (w watch) RoomChanged() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.places.look(w.node+1) && w.err == nil && !w.closed {
		w.step(sched.Event{Kind: sched.Room, CPUs: w.places.rooms})
	}
}

// Count implements Watcher.
func (w watch) Count(grown []int64, held, peak int64) {
	w.add(grown)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.far[w.node] = [2]int64{held, peak}
}

// runElsewhere runs the task in another process.
func (a *attempt) runElsewhere() error {
	r, s, w := a.r, a.stage, a.work
	t := &Task{ID: a.id, Stage: s.id, Part: -1, Split: w.piece.split, From: w.piece.from, To: w.piece.to, Attempt: a.n, Ratio: w.ratio}
	if w.isPart {
		t.Part, t.Split, t.End = w.part, w.first, w.end
	}
	res, err := a.place.node.Do(a.ctx, t, &Hand{Schema: s.schema, None: s.none, Alloc: a.acct, Take: a.acct.AllocateOrQuit, Over: r.ctx.Done(), Read: a.sawRead, Urgent: a.urgent.Load, Charge: r.charge, Emit: func(b *exec.Block) error {
		r.Moved()
		if w.isPart {
			b.Origin = r.originOf(b.Origin.Task)
		} else {
			b.Origin = s.origin(b.Origin.Task)
		}
		for i := range b.Skipped {
			b.Skipped[i].Origin = b.Origin
		}
		return r.emit(a, b)
	}})
	if err != nil {
		if c := context.Cause(a.ctx); c != nil {
			return c
		}
		return err
	}
	if res.Ratio > 0 && !w.isPart {
		s.inflated.Store(res.Ratio)
	}
	if !w.isPart {
		return nil
	}
	joint, ok := r.sink.(exec.Joint)
	if !ok {
		return fault.New(fault.Internal, "a sink of one process was written by another")
	}
	if err := joint.Adopt(a.ctx, w.part, res.Report); err != nil {
		return a.sinkErr(err)
	}
	r.wrotePart(w.part, res.Rows)
	return nil
}

// charge takes memory for what came from another process unasked.
func (r *run) charge(n int64) func() {
	return r.budget.Charge("blocks that came from other nodes", n).Release
}

// sawRead counts rows that another process has read.
func (a *attempt) sawRead(rows int64) {
	if rows > a.read {
		a.countRead(rows - a.read)
	}
}
