package shard

import (
	"context"
	"io"
	"iter"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
)

// Iterator gives one rank its batches. Iterators of one call advance together: one
// that gets ahead of another by more than Options.Prefetch waits for it, so read all
// of them, or close those that you do not read. One goroutine calls an iterator at
// a time; different iterators may be used at once.
type Iterator struct {
	j       *job
	rank    int
	collate *Collator
	ready   chan struct{} // room 1: something changed
	waited  atomic.Int64  // in Next, ns

	// guarded by job.mu
	queue    []item
	waiting  bool
	closed   bool
	restored bool             // to where the job began, by its own Restore
	took     bool             // a batch or an end since then
	last     snap             // after the last batch given
	memory   memory.Allocator // of tensors; nil: the job's
}

// item is a batch, or the end of an epoch.
type item struct {
	batch *Batch
	at    snap
	eof   bool
}

func (i *item) release() {
	if i.batch != nil {
		i.batch.Release()
		i.batch = nil
	}
}

// drop forgets what is queued; it needs job.mu.
func (it *Iterator) drop() {
	for i := range it.queue {
		it.queue[i].release()
	}
	it.queue = nil
}

// Feed gives other nodes what this one reads for them, until the epochs are over or no node has a rank that is read: each has closed its iterators, or called Feed for
// the last of them, too. That of a node without ranks does what a loop around its Next does. A rank's is given up by it, as by Close, but that the others go on: it is for a rank that is
// through while those of other nodes may not be, and for the last that is open here (Invalid otherwise). On one machine it returns at once. The iterator is to be closed all the same.
func (it *Iterator) Feed(ctx context.Context) error {
	if it.j.mesh == nil {
		return nil
	}
	if it.rank != feeder {
		if err := it.yield(); err != nil {
			return err
		}
	}
	for {
		if _, err := it.Next(ctx); err != io.EOF {
			return err
		}
		it.j.mu.Lock()
		over := it.last.over
		it.j.mu.Unlock()
		if over {
			return nil
		}
	}
}

// yield gives the rank up, the last of this node.
func (it *Iterator) yield() error {
	j := it.j
	j.mu.Lock()
	switch {
	case it.closed:
		j.mu.Unlock()
		return fault.New(fault.Invalid, "the iterator of rank %d is closed", it.rank)
	case j.open > 1:
		j.mu.Unlock()
		return fault.New(fault.Invalid, "feed: rank %d is not the last of this node that is read: close it; the node feeds others while it reads for its own", it.rank)
	}
	if n := len(it.queue); n > 0 { // perhaps the end of the last epoch, after which nothing comes
		it.last = it.queue[n-1].at
	}
	it.drop()
	j.idle.Store(true)
	j.mu.Unlock()
	signal(j.room)
	j.mesh.rest()
	return nil
}

// Rank is the rank whose batches the iterator gives.
func (it *Iterator) Rank() int { return it.rank }

// Next gives the next batch, which the caller owns until Release, or io.EOF at the end
// of an epoch: the call after it begins the next one (where Options.Epochs are over, it
// is io.EOF for good). A failure of the job is returned by every later call.
func (it *Iterator) Next(ctx context.Context) (*Batch, error) {
	j := it.j
	begin := time.Now()
	j.first.CompareAndSwap(0, max(int64(begin.Sub(j.opened)), 1))
	defer func() { it.waited.Add(int64(time.Since(begin))) }()
	var stall *time.Timer
	for {
		j.mu.Lock()
		if it.closed {
			j.mu.Unlock()
			return nil, fault.New(fault.Invalid, "the iterator of rank %d is closed", it.rank)
		}
		if len(it.queue) > 0 {
			x := it.queue[0]
			it.queue[0] = item{}
			it.queue = it.queue[1:]
			it.last, it.waiting, it.took = x.at, false, true
			j.mu.Unlock()
			signal(j.room)
			if x.eof {
				return nil, io.EOF
			}
			return x.batch, nil
		}
		if j.err != nil {
			defer j.mu.Unlock()
			return nil, j.err
		}
		if it.last.over {
			it.took = true
			j.mu.Unlock()
			return nil, io.EOF
		}
		it.waiting = true
		j.launch()
		j.mu.Unlock()
		signal(j.room)
		var stalled <-chan time.Time
		if j.stall > 0 {
			if stall == nil {
				stall = time.NewTimer(j.stall)
				defer stall.Stop()
			}
			stalled = stall.C
		}
		select {
		case <-it.ready:
		case <-ctx.Done():
			return nil, fault.WithCode(fault.Canceled, context.Cause(ctx))
		case <-j.ctx.Done():
			j.fail(fault.WithCode(fault.Canceled, context.Cause(j.ctx)))
		case <-stalled:
			j.mu.Lock()
			who := j.unread()
			j.mu.Unlock()
			if who != "" {
				err := fault.New(fault.Stalled, "rank %d waits for %v for %s, which is not read: all ranks advance together. Read all, close those that are not wanted, or open only the ranks that are read (ShardOptions.Ranks, penstock.open(rank=, world_size=))", it.rank, j.stall, who)
				j.fail(err)
				continue
			}
			if j.mesh != nil && !j.feeds() { // whom it feeds may take their time; they look after themselves
				if what, since := j.mesh.waiting(); what != "" && since >= j.stall {
					j.fail(fault.New(fault.Stalled, "rank %d waits for %v for %s, and nothing is heard of other nodes: all nodes of a job advance together. Are all its ranks read there?", it.rank, since.Round(time.Second), what))
					continue
				}
			}
			stall.Reset(j.stall) // the engine watches over itself
		}
	}
}

// All iterates over one epoch. A batch is valid until the next turn; Retain to keep it. After
// the loop, State is that of the last batch given; another All goes on from there.
func (it *Iterator) All(ctx context.Context) iter.Seq2[*Batch, error] { return All(ctx, it.Next) }

// All iterates over what next gives up to io.EOF, for iterators of other packages.
func All(ctx context.Context, next func(context.Context) (*Batch, error)) iter.Seq2[*Batch, error] {
	return func(yield func(*Batch, error) bool) {
		for {
			b, err := next(ctx)
			if err == io.EOF {
				return
			}
			if err != nil {
				yield(nil, err)
				return
			}
			more := yield(b, nil)
			b.Release()
			if !more {
				return
			}
		}
	}
}

// Epoch is the epoch of the next batch.
func (it *Iterator) Epoch() uint64 {
	it.j.mu.Lock()
	defer it.j.mu.Unlock()
	return it.last.epoch
}

// Step is how many steps of the epoch were given.
func (it *Iterator) Step() int64 {
	it.j.mu.Lock()
	defer it.j.mu.Unlock()
	return it.last.step
}

// State is where the job stands after the last batch that this iterator gave. Batches
// made ahead do not count. It takes a few microseconds.
func (it *Iterator) State() State {
	it.j.mu.Lock()
	defer it.j.mu.Unlock()
	return it.j.state(it.last)
}

// Restore makes the job, with all its iterators, go on from a state: batches made ahead are forgotten. Others
// may restore the same state after it, and need not; that of another step is refused until the
// job has gone on. So is one of another plan, other data or another seed, with what
// differs. [Options.State] does the same from the start.
func (it *Iterator) Restore(s State) error {
	j := it.j
	j.restoring.Lock()
	defer j.restoring.Unlock()
	j.mu.Lock()
	at, err := j.restore(s)
	if err != nil {
		j.mu.Unlock()
		return err
	}
	if it.closed || j.closed {
		j.mu.Unlock()
		return fault.New(fault.Invalid, "the iterator of rank %d is closed", it.rank)
	}
	if !it.restored && !it.took && j.restored() { // another rank was, and this one follows
		defer j.mu.Unlock()
		if !at.equal(&j.start) {
			return fault.New(fault.Invalid, "restore: rank %d has the state of epoch %d, step %d, sample %d, but another rank was restored to epoch %d, step %d, sample %d: all ranks go on from the same state",
				it.rank, at.epoch, at.step, at.sample, j.start.epoch, j.start.step, j.start.sample)
		}
		it.restored = true
		return nil
	}
	if j.mesh != nil && j.begun {
		j.mu.Unlock()
		return fault.New(fault.Unsupported, "restore: the nodes of a job go on together, so this one cannot go elsewhere once it has begun: restore before the first Next, or close the iterators of all nodes and open them anew with Options.State")
	}
	j.begun = true // until the new place is known
	j.mu.Unlock()
	j.halt()
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.closed {
		return errClosed
	}
	err = j.place(at)
	j.err, j.begun = nil, false
	for _, x := range j.iters {
		x.restored, x.took = x == it, false
		signal(x.ready) // a Next that waits starts the producer again
	}
	return err
}

// Close gives up the rank; with the last one everything is freed but batches given
// out. Idempotent.
func (it *Iterator) Close() error {
	j := it.j
	j.mu.Lock()
	if it.closed {
		j.mu.Unlock()
		return nil
	}
	it.closed = true
	it.drop()
	signal(it.ready) // of a Next that waits
	j.open--
	last := j.open == 0
	if last {
		j.closed = true
	}
	j.mu.Unlock()
	signal(j.room)
	if !last {
		return nil
	}
	j.cancel(errClosed)
	j.halt()
	return j.free()
}

// Ledger is how many samples each window had that the job has read, of this epoch and the
// one before. With it [StateAt] finds any step of an epoch without reading.
func (it *Iterator) Ledger() *Ledger { return it.j.ledger }

// Len is the number of batches of the current epoch where it follows from metadata: one source that
// does not repeat, no step that changes the number of rows; or every source repeats. Also the last, padded one counts. After a state
// of another batch size these are the steps of the state and those to come.
func (it *Iterator) Len() (int64, bool) {
	it.j.mu.Lock()
	defer it.j.mu.Unlock()
	return it.j.extent().Steps(it.last.step, it.last.sample, it.last.length)
}

// Extent is what Len follows from, wherever the job stands.
func (it *Iterator) Extent() Extent {
	it.j.mu.Lock()
	defer it.j.mu.Unlock()
	return it.j.extent()
}

// Extent is what the number of steps of an epoch follows from.
type Extent struct {
	Samples int64 `json:"samples"` // of an epoch that no length ends before; -1: not known
	Batch   int64 `json:"batch"`   // samples of a step
	Rest    bool  `json:"rest"`    // those that do not fill a step are one, too
}

// Steps returns how many steps an epoch has in all where the job stands behind so many steps and samples of it; it ends after
// length samples, if that is not 0. ok: that is known.
func (x Extent) Steps(step, sample, length int64) (n int64, ok bool) {
	if x.Samples < 0 {
		return 0, false
	}
	left := x.Samples - sample
	if length > 0 {
		left = min(left, length-sample)
	}
	n = step + left/x.Batch
	if x.Rest && left%x.Batch > 0 {
		n++
	}
	return n, true
}

// extent needs mu.
func (j *job) extent() Extent {
	x := Extent{Samples: -1, Batch: int64(j.global), Rest: j.Tail != TailDrop}
	s := &j.Sources[0]
	switch {
	case j.repeats():
		x.Samples = maxCount
	case len(j.Sources) == 1 && s.KeepsRows && s.Pack == nil && !s.Layout.Bytes:
		x.Samples = s.Layout.total
		if s.Limit >= 0 {
			x.Samples = min(x.Samples, s.Limit)
		}
	}
	return x
}

// Explain describes the order: lanes, windows, what they cost and how well they shuffle; and the batches: their tensors, and
// what they take.
func (it *Iterator) Explain() string {
	it.j.mu.Lock()
	defer it.j.mu.Unlock()
	return it.j.explain() + it.j.explainNodes() + it.explainForm()
}
