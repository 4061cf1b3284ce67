package shard

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/shard/internal/lanes"
	"github.com/penstock-data/penstock/shard/internal/order"
	"github.com/penstock-data/penstock/shard/internal/rows"
)

// Job is what Open opens: sources, and who gets their samples. Package dataset
// makes it of a plan.
type Job struct {
	Sources []Source
	Schema  *arrow.Schema // of samples
	// Weights of the sources by sample of the epoch; nil: one source.
	Weights []WeightsAt
	// StopAll ends an epoch when every source that does not repeat has ended once, and
	// repeats them until then; otherwise it ends with the first.
	StopAll bool
	// Plan is the fingerprint of all that decides the samples. Where it is empty, Unnamed says
	// why, and states cannot be restored.
	Plan    string
	Unnamed error
	// OtherPolicy is what Plan would be if the run's OnError were the other one of skip and fail. A state or ledger that has it differs
	// in nothing else, and is told so; with GoesOn this job goes on from it: a run that would have failed for a row has given
	// nothing of the row's window.
	OtherPolicy string
	GoesOn      bool
	Data        string // fingerprint of the data
	Ranks       int
	Runner      exec.Runner
	Exec        exec.Options // of the runs; Seed and Epoch are the job's, Epoch the first
	Log         *slog.Logger // hears how many rows of an epoch a policy left out, and of epochs without a step; nil: nobody does
	Options
}

// Source is a source of a job.
type Source struct {
	Name   string
	Repeat bool // goes on with its next pass when it ends, and never ends the epoch
	Graph  *exec.Graph
	// KeepsRows says that no step changes the number of rows.
	KeepsRows bool
	Pack      *Packing // nil: samples are rows
	Limit     int64    // samples of an epoch; -1: all. With mode none, and no other source.
	Layout    *Layout
}

// job runs. One goroutine, the producer, makes steps for all ranks.
type job struct {
	Job
	sources  []*lanes.Source
	lane0    []int // first lane of each source, numbered through all
	budget   *exec.Budget
	own      bool // of budget
	memory   *exec.Account
	layout   *rows.Layout // of the rows of windows; nil: they wait as records
	meter    lanes.Meter
	steps    atomic.Int64 // made
	samples  atomic.Int64
	opened   time.Time
	first    atomic.Int64 // when the first batch was asked for, ns since opened
	old      []pass       // at their end, but a step may still need their rows; the producer's
	iters    []*Iterator  // of Ranks, in their order
	shares   []int
	global   int // samples of a step
	depth    int // steps made ahead
	stall    time.Duration
	ledger   *Ledger
	dry      bool        // samples are counted from the ledger and metadata, none is read
	mesh     *mesh       // with other nodes; nil: none
	idle     atomic.Bool // all ranks of this node were given up, and it feeds others; guarded by mu, but for looks
	ctx      context.Context
	cancel   context.CancelCauseFunc
	work     context.Context // of the producer at work
	stop     context.CancelCauseFunc
	producer sync.WaitGroup
	room     chan struct{} // room 1: a queue became shorter, or a consumer waits

	restoring sync.Mutex // held by a Restore from its checks to its end; before mu

	mu     sync.Mutex
	start  snap          // where the producer began
	gone   chan struct{} // closed to end the producer
	begun  bool          // the producer runs, or must not yet
	err    error
	open   int // iterators not closed
	closed bool
}

// Open makes the iterators of a job: one per rank of Options.Ranks. Nothing is
// read before the first Next. ctx ends everything.
func Open(ctx context.Context, o Job) ([]*Iterator, error) {
	j, err := newJob(ctx, o)
	if err != nil {
		return nil, err
	}
	ranks := j.Options.Ranks
	if ranks == nil {
		for r := range j.Job.Ranks {
			ranks = append(ranks, r)
		}
	}
	if len(ranks) == 0 {
		ranks = []int{feeder}
	}
	for _, r := range ranks {
		c, err := NewCollator(j.Schema, j.Form, j.memory)
		if err == nil && j.Tail == TailPad {
			err = c.CheckMask()
		}
		if err != nil {
			return nil, errors.Join(err, j.free())
		}
		j.iters = append(j.iters, &Iterator{j: j, rank: r, collate: c, ready: make(chan struct{}, 1), last: j.start})
	}
	j.open = len(j.iters)
	return j.iters, nil
}

// newJob makes a job that nobody consumes yet; free it.
func newJob(ctx context.Context, o Job) (*job, error) {
	j := &job{Job: o, budget: o.Exec.Budget, room: make(chan struct{}, 1), gone: make(chan struct{}), stall: o.Exec.StallTimeout, opened: time.Now()}
	if err := j.check(); err != nil {
		return nil, err
	}
	at, err := j.begin()
	if err != nil {
		return nil, err
	}
	if j.budget == nil {
		limit := o.Exec.Memory
		if limit == 0 {
			limit = exec.DefaultMemory()
		}
		j.budget, j.own = exec.NewBudget(limit), true
	}
	j.ctx, j.cancel = context.WithCancelCause(ctx)
	j.work = j.ctx
	j.memory = j.budget.Account(j.ctx, "batches")
	j.memory.SetPriority(exec.Overdraw)
	j.ledger = newLedger(j)
	if f := o.Exec.Observe; f != nil {
		f(j.meter.Stats)
	}
	c, err := NewCollator(j.Schema, j.Form, j.memory)
	if err == nil {
		j.layout = c.Layout()
		err = j.place(at)
	}
	if err == nil && o.Ledger != nil {
		if err = o.Ledger.check(j); err == nil {
			j.ledger = o.Ledger.clone()
		}
	}
	if err != nil {
		return nil, errors.Join(err, j.free())
	}
	if n := o.Nodes; n != nil && n.Exchange.Nodes() > 1 {
		j.mesh = newMesh(j)
	}
	return j, nil
}

// restored reports whether a rank was restored to where the job began; it needs mu.
func (j *job) restored() bool {
	for _, it := range j.iters {
		if it.restored {
			return true
		}
	}
	return false
}

// place makes the job begin at a position, with the lanes and windows that it was taken with. The
// producer is not at work; it needs mu, but in Open.
func (j *job) place(at snap) error {
	var err error
	for _, s := range j.sources {
		err = errors.Join(err, s.Close())
	}
	j.sources, j.lane0 = nil, nil
	lane := 0
	for i := range j.Sources {
		if at.shapes != nil {
			l := *j.Sources[i].Layout
			l.shape = at.shapes[i]
			j.Sources[i].Layout = &l
		}
		j.lane0 = append(j.lane0, lane)
		lane += j.Sources[i].Layout.shape.Lanes
		j.sources = append(j.sources, lanes.New(j.lanes(i)))
	}
	j.ledger.reshape(j.ledgerShapes())
	j.start = at
	for _, it := range j.iters {
		it.last = at
	}
	return err
}

// lanes is source i as package lanes wants it.
func (j *job) lanes(i int) lanes.Config {
	s := &j.Sources[i]
	e := j.Exec
	e.Budget, e.Observe = j.budget, nil
	ahead := int64(0)
	if s.Layout.shape.Lanes > 1 {
		e.BatchBytes, ahead = s.Layout.laneBatch(), groupBytes
	}
	c := lanes.Config{
		Name: s.Name, Shape: s.Layout.shape, Seed: e.Seed, Bytes: s.Layout.Bytes, KeepsRows: s.KeepsRows && s.Pack == nil,
		Meter: &j.meter, Sources: len(j.Sources), Lineage: j.Lineage, AheadBytes: ahead, Layout: j.layout, Runner: j.Runner, Exec: e,
		Published: func(epoch, pass uint64, lane int, window, samples int64) {
			j.ledger.add(epoch, pass, i, lane, window, samples)
		},
	}
	if j.Log != nil {
		c.Skipped = func(epoch, pass uint64, skipped, rows int64) {
			of := ""
			if len(j.Sources) > 1 {
				of = fmt.Sprintf(" of source %s", s.Name)
			}
			were := "were"
			if skipped == 1 {
				were = "was"
			}
			j.Log.Warn(fmt.Sprintf("on_error: %d of %d rows%s %s skipped in epoch %d", skipped, rows, of, were, epoch), "source", s.Name, "epoch", epoch, "pass", pass, "skipped", skipped, "rows", rows)
		}
	}
	if j.Nodes != nil && j.Nodes.Exchange.Nodes() > 1 {
		c.Elsewhere = j.elsewhere(i, j.lane0[i])
	}
	for k, st := range s.Layout.scans {
		c.Leaves = append(c.Leaves, s.Layout.leaf(k, st))
	}
	if s.Pack != nil {
		c.Transform = s.Pack.transform(s.Graph.Schema, !j.Form.Tensors || c.Elsewhere != nil, j.Lineage)
	}
	return c
}

// laneBatch bounds what is read at once of one of several lanes: what a reader has beyond a
// window waits for the lane's next one, unless readers stop at the ends of windows.
func (l *Layout) laneBatch() int64 {
	for _, st := range l.scans {
		if s, ok := st.Scan.Table.(driver.Stopper); !ok || !s.Stops() {
			return 512 << 10
		}
	}
	return 1 << 20
}

// check completes the options.
func (j *job) check() error {
	if len(j.Sources) == 0 {
		return fault.New(fault.Internal, "a job without sources")
	}
	if j.Job.Ranks < 1 {
		return fault.New(fault.Invalid, "shards: ranks must be at least 1, have %d", j.Job.Ranks)
	}
	if j.Nodes != nil {
		if err := j.checkNodes(); err != nil {
			return err
		}
	} else if j.Options.Ranks != nil && len(j.Options.Ranks) == 0 {
		return errNoRank
	}
	seen := map[int]bool{}
	for _, r := range j.Options.Ranks {
		if r < 0 || r >= j.Job.Ranks || seen[r] {
			return fault.New(fault.Invalid, "shards: rank %d of %d: ranks are 0 to %d, each once", r, j.Job.Ranks, j.Job.Ranks-1)
		}
		seen[r] = true
	}
	switch g, b := j.GlobalBatch, j.BatchPerRank; {
	case g < 0 || b < 0:
		return fault.New(fault.Invalid, "shards: batch sizes must not be negative")
	case g > 0 && b > 0:
		return fault.New(fault.Invalid, "shards: global_batch and batch_per_rank are both given: give one of them")
	case g == 0 && b == 0:
		return fault.New(fault.Invalid, "shards: how large is a batch? Give global_batch (samples of a step, all ranks together) or batch_per_rank")
	case g > 0:
		j.global = g
	default:
		j.global = b * j.Job.Ranks
		if j.global/j.Job.Ranks != b {
			return fault.New(fault.Invalid, "shards: batch_per_rank %d is too large", b)
		}
	}
	if j.global < j.Job.Ranks {
		return fault.New(fault.Invalid, "shards: global_batch %d is less than one sample for each of %d ranks", j.global, j.Job.Ranks)
	}
	if j.global > maxStep {
		return fault.New(fault.Invalid, "shards: a step of %d samples; at most %d", j.global, maxStep)
	}
	if j.Exec.Budget == nil {
		if err := CheckMemory(j.Exec.Memory); err != nil {
			return fault.Wrap(err, fault.Place{Step: "shards"})
		}
	}
	j.shares = order.Shares(j.global, j.Job.Ranks)
	switch j.Tail {
	case "":
		j.Tail = TailDrop
	case TailDrop, TailPad, TailRepeat:
	default:
		return fault.New(fault.Invalid, "shards: tail %q; have drop, pad, repeat", j.Tail)
	}
	if j.depth = j.Prefetch; j.depth == 0 {
		j.depth = 2
	}
	j.depth = max(j.depth, 0)
	if j.stall == 0 {
		j.stall = 5 * time.Minute
	}
	if j.StepsPerEpoch < 0 || j.Epochs < 0 {
		return fault.New(fault.Invalid, "shards: steps_per_epoch and epochs must not be negative")
	}
	if j.Exec.Epoch >= maxCount {
		return fault.New(fault.Invalid, "shards: epoch %d is too large; at most %d", j.Exec.Epoch, maxCount-1)
	}
	if j.Weights == nil {
		j.Weights = []WeightsAt{{Weights: []int64{1}}}
	}
	if j.Lineage && !j.Form.Tensors {
		for _, f := range LineageFields {
			if len(j.Schema.FieldIndices(f.Name)) > 0 {
				return fault.New(fault.Invalid, "shards: lineage adds a column %q, which is there already: rename yours, or leave with_lineage out", f.Name)
			}
		}
	}
	all := true
	for i := range j.Sources {
		s := &j.Sources[i]
		all = all && s.Repeat
		schema := s.Graph.Schema
		if s.Pack != nil {
			var err error
			if schema, err = s.Pack.schema(schema); err != nil {
				return err
			}
		}
		if !sameTypes(schema, j.Schema) {
			return fault.New(fault.Internal, "source %q has %v, not %v", s.Name, schema, j.Schema)
		}
		if s.Limit >= 0 && (len(j.Sources) > 1 || s.Layout.Mode != ModeNone) {
			return fault.New(fault.Invalid, "limit: shards in an order other than that of the files have no first rows; use sample for a fraction of them, or shuffle none")
		}
	}
	if all && j.StepsPerEpoch == 0 {
		return fault.New(fault.Invalid, "mix: every source repeats, so an epoch has no end: give steps_per_epoch")
	}
	return nil
}

var errNoRank = fault.New(fault.Invalid, "shards: no rank is read here: leave Ranks out for all of them")

// MinMemory is the smallest budget of a run, in bytes: what its buffers need whatever the data are.
const MinMemory = 64 << 10

// CheckMemory refuses a budget with which nothing can run. Most often its unit is missing.
func CheckMemory(n int64) error {
	switch {
	case n < 0:
		return fault.New(fault.Invalid, "memory must not be negative; 0 is half of what is available")
	case n > 0 && n < MinMemory:
		return fault.New(fault.Invalid, "memory must be at least %s, not %s: it is in bytes, so 512 MiB are 512 << 20", exec.Bytes(MinMemory), exec.Bytes(n))
	}
	return nil
}

// maxStep bounds the samples of a step: they are held at once.
const maxStep = 1 << 24

func sameTypes(a, b *arrow.Schema) bool {
	if a.NumFields() != b.NumFields() {
		return false
	}
	for i, f := range a.Fields() {
		if g := b.Field(i); f.Name != g.Name || !arrow.TypeEqual(f.Type, g.Type) {
			return false
		}
	}
	return true
}

// free ends the job for good; the producer has ended.
func (j *job) free() error {
	var err error
	if j.mesh != nil {
		j.mesh.close()
	}
	for _, s := range j.sources {
		err = errors.Join(err, s.Close())
	}
	j.sources = nil
	j.memory.Close()
	if j.own {
		j.budget.Close()
	}
	j.cancel(errClosed)
	return err
}

// signal wakes who waits at c.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// fail gives err to every consumer.
func (j *job) fail(err error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.err == nil {
		j.err = err
		if j.mesh != nil {
			j.mesh.fail(err)
		}
	}
	for _, it := range j.iters {
		signal(it.ready)
	}
}

// launch starts the producer where it is not at work; it needs mu.
func (j *job) launch() {
	if j.begun || j.closed {
		return
	}
	j.begun = true
	at, gone := j.start, j.gone
	j.work, j.stop = context.WithCancelCause(j.ctx)
	j.producer.Go(func() {
		defer j.stop(errGone)
		defer func() {
			if p := recover(); p != nil {
				if f, ok := p.(*fault.Error); ok { // the allocator's
					j.fail(f)
					return
				}
				panic(p)
			}
		}()
		var err error
		if j.mesh != nil {
			err = j.mesh.start(j.work, &at)
		}
		if err == nil {
			err = j.produce(at, gone)
		}
		select {
		case <-gone: // what came of being stopped is nobody's failure
		default:
			if err != nil && !j.fed() {
				j.fail(err)
			}
		}
	})
}

// halt ends the producer and forgets what it made. Who calls it has seen to it, by begun or closed, that none is
// launched meanwhile: a Next of another rank must not start one at the old place.
func (j *job) halt() {
	j.mu.Lock()
	gone := j.gone
	select {
	case <-gone:
	default:
		close(gone)
	}
	if j.stop != nil {
		j.stop(errGone) // also where it waits for a read
	}
	j.mu.Unlock()
	signal(j.room)
	j.producer.Wait()
	j.mu.Lock()
	defer j.mu.Unlock()
	for _, it := range j.iters {
		it.drop()
	}
	j.gone = make(chan struct{})
}

// push gives a step to all open iterators; it waits until none is more than depth steps ahead.
func (j *job) push(items []item, gone chan struct{}) error {
	for {
		j.mu.Lock()
		if j.fits() {
			for i, it := range j.iters {
				if it.closed {
					items[i].release()
					continue
				}
				if j.feeds() && !items[i].eof {
					items[i].release()
					it.last = items[i].at
					continue
				}
				it.queue = append(it.queue, items[i])
				signal(it.ready)
			}
			j.mu.Unlock()
			return nil
		}
		j.mu.Unlock()
		select {
		case <-j.room:
		case <-gone:
			for i := range items {
				items[i].release()
			}
			return errGone
		case <-j.ctx.Done():
			for i := range items {
				items[i].release()
			}
			return fault.WithCode(fault.Canceled, context.Cause(j.ctx))
		}
	}
}

var errGone = errors.New("the producer is told to stop")

// errClosed is why the job's context ends. Not exec.ErrDone: to a task that means that nothing more is
// wanted of it, and it would end as if it were through.
var errClosed = fault.New(fault.Canceled, "all iterators of the job are closed")

// fits reports whether there is room for one more step; it needs mu.
func (j *job) fits() bool {
	waits := false
	for _, it := range j.iters {
		if !it.closed && len(it.queue) > max(j.depth-1, 0) {
			return false
		}
		waits = waits || it.waiting
	}
	return j.depth > 0 || waits
}

// unread names the ranks that hold the others up; it needs mu.
func (j *job) unread() string {
	s := ""
	for _, it := range j.iters {
		if !it.closed && len(it.queue) > max(j.depth-1, 0) {
			s += fmt.Sprintf(", rank %d", it.rank)
		}
	}
	if s == "" {
		return ""
	}
	return s[2:]
}
