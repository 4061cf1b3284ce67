package local

import (
	"context"
	"sync"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
)

// chain is the operators of a stage at work on one split or block. What it
// gives to out covers the span of its input without gaps, whatever operators
// drop: rows that nothing came of form an empty block.
type chain struct {
	a     *attempt
	ops   []link
	out   func(*exec.Block) error // takes over
	err   error                   // of something downstream of an operator, or out
	ratio int64                   // bytes out per 1024 bytes in: the next slice is cut by it

	pending []exec.Skipped // not yet attached to a block; by row
	next    int64          // first position not covered by what went out
	foreign []uintptr      // of the block being fed: memory that is not ours to count
	heap    int64          // bytes that came out for this slice on the Go heap
	advance func()         // gives back what was charged for them beforehand
}

type link struct {
	*stageOp
	task exec.Task
	emit exec.Emit
	made int64         // bytes out for the block being fed
	hold bool          // what a Process emits waits until it has succeeded
	gave bool          // the last Process emitted something
	held []*exec.Block // emitted by a Process that has not succeeded yet
}

func (a *attempt) newChain(out func(*exec.Block) error) (*chain, error) {
	s := a.stage
	c := &chain{a: a, out: out, ratio: a.work.ratio, ops: make([]link, len(s.ops))}
	if a.work.isPart { // of several scans, perhaps; its blocks go to a writer, and need not be those of another attempt
		c.ratio = s.inflated.Load()
	}
	for i := range s.ops {
		op := &s.ops[i]
		env := &exec.Env{
			Alloc: a.acct, Seed: a.r.opt.Seed, Epoch: a.r.opt.Epoch, Origin: a.origin,
			Attempt: a.n, TrackRows: op.track, Log: a.r.log,
		}
		l := &c.ops[i]
		l.stageOp = op
		err := safely(func() (err error) {
			l.task, err = op.NewTask(env)
			return err
		})
		if err != nil {
			c.ops = c.ops[:i]
			c.close()
			return nil, opErr(op, err)
		}
		op.stats.tasks.Add(1)
		l.hold = op.policy.guarded()
		l.emit = func(b *exec.Block) error {
			l.gave = true
			if l.hold { // counted when the call has succeeded: the slices must not depend on failures
				l.held = append(l.held, b)
				return nil
			}
			l.count(b)
			return c.pass(i+1, b)
		}
	}
	return c, nil
}

func (l *link) count(b *exec.Block) {
	l.made += l.stats.count(b.Batch.NumRows(), b.Batch)
}

func (c *chain) close() {
	for i := range c.ops {
		l := &c.ops[i]
		_ = safely(l.task.Close) // an error of it has no consequence
		release(l.held)
		l.held = nil
	}
	for _, s := range c.pending {
		if s.Record != nil {
			s.Record.Release()
		}
	}
	c.pending = nil
}

func release(bs []*exec.Block) {
	for _, b := range bs {
		b.Release()
	}
}

// feed runs b through the chain, slice by slice where it inflates, and takes it
// over. The slices are a function of the rows and of the ratio at the start.
func (c *chain) feed(b *exec.Block) error {
	c.exempt(b)
	end := b.Row + b.Span
	n := int(b.Batch.NumRows())
	size := exec.SizeOf(b.Batch)
	if n == 0 {
		b.Release()
	} else if c.slice(n, size) >= n {
		if err := c.feedSlice(b, size); err != nil {
			return err
		}
	} else {
		defer b.Release()
		for i := 0; i < n; {
			j := min(i+c.slice(n, size), n)
			part := b.Slice(i, j)
			if err := c.feedSlice(part, exec.SizeOf(part.Batch)); err != nil {
				return err
			}
			i = j
		}
	}
	return c.cover(end)
}

// probeRows is what a chain gets first, before it is known how much it inflates.
const probeRows = 8

// slice returns how many rows of a batch to process at once.
func (c *chain) slice(rows int, size int64) int {
	if c.ratio == 0 && size > 0 && len(c.ops) > 0 {
		return min(rows, probeRows)
	}
	want := c.a.r.opt.BatchBytes * 2 // of the largest output
	out := size * c.ratio >> 10
	if len(c.ops) == 0 || out <= want {
		return rows
	}
	return max(int(int64(rows)*want/out), 1)
}

func (c *chain) feedSlice(b *exec.Block, size int64) error {
	for i := range c.ops {
		c.ops[i].made = 0
	}
	c.heap = 0
	if n := size * c.a.stage.heap.Load() >> 10; n >= 1<<20 { // it is there before it can be charged
		back := c.a.acct.Borrow(n)
		c.advance = sync.OnceFunc(back)
		defer c.advance()
	} else {
		c.advance = func() {}
	}
	err := c.step(0, b)
	if err != nil {
		return err
	}
	if size > 0 {
		c.a.stage.heap.Store(c.heap << 10 / size)
	}
	var most, sum int64
	for i := range c.ops {
		most = max(most, c.ops[i].made)
		sum += c.ops[i].made
	}
	if len(c.ops) > 0 && size > 0 {
		seen := most << 10 / max(size, 1)
		c.ratio = max(seen, c.ratio-c.ratio/8, 1) // at once up, slowly down; known from now on
		c.a.stage.inflated.Store(c.ratio)
		c.a.r.budget.Reserve(size + sum)
	}
	return nil
}

// pass gives b to operator i, from within the one before. An error sticks: the
// operator that sees it may wrap or swallow it.
func (c *chain) pass(i int, b *exec.Block) error {
	if c.err != nil {
		b.Release()
		return c.err
	}
	before := c.a.op
	c.err = c.step(i, b)
	c.a.enter(before)
	return c.err
}

// step runs b, which it takes over, through operator i and all behind it.
func (c *chain) step(i int, b *exec.Block) error {
	if i == len(c.ops) {
		return c.final(b)
	}
	defer b.Release()
	l := &c.ops[i]
	l.stats.rowsIn.Add(b.Batch.NumRows())
	if l.hold {
		return c.guard(i, b, true)
	}
	l.gave = false
	err := c.process(l, b)
	if err == nil || c.err != nil || l.gave || b.Batch.NumRows() < 2 || !c.findable(err) {
		return err
	}
	// What comes before the first row that cannot be processed goes on, so that what is delivered,
	// and which failure of several is met, does not depend on where batches are cut.
	l.hold = true
	defer func() { l.hold = false }()
	if alone := c.halves(i, b); alone != nil {
		return alone
	}
	return fault.New(fault.CodeOf(err), "%d rows from row %d on together, of which none fails alone: %w", b.Batch.NumRows(), b.RowAt(0), err)
}

// findable reports whether running less rows shows which one err is about.
func (c *chain) findable(err error) bool {
	return fault.CodeOf(err).Skippable() && context.Cause(c.a.ctx) == nil
}

// process calls the operator. An error of its own comes with its step.
func (c *chain) process(l *link, b *exec.Block) error {
	c.a.enter(l.stats)
	err := safely(func() error { return l.task.Process(c.a.ctx, b, l.emit) })
	switch {
	case c.err != nil:
		return c.err
	case err == nil:
		return nil
	}
	if cause := context.Cause(c.a.ctx); cause != nil {
		return cause
	}
	return opErr(l.stageOp, err)
}

// opErr names the step. What has no code comes from a user's function.
func opErr(op *stageOp, err error) error {
	if fault.CodeOf(err) == fault.Unknown {
		err = fault.WithCode(fault.UserCode, err)
	}
	return fault.Wrap(err, fault.Place{Step: op.Step()})
}

// guard runs operator i on b such that a failure leaves nothing behind: again,
// if the policy allows it, then on halves, until the rows are found that cannot
// be processed.
func (c *chain) guard(i int, b *exec.Block, whole bool) error {
	l := &c.ops[i]
	n := int(b.Batch.NumRows())
	tries := 1
	if whole || n == 1 {
		tries += l.policy.Retries
	}
	var err error
	for ; tries > 0; tries-- {
		err = c.process(l, b)
		if err == nil {
			outs := l.held
			l.held = nil
			for _, o := range outs {
				l.count(o)
			}
			for k, o := range outs {
				if err := c.pass(i+1, o); err != nil {
					release(outs[k+1:])
					return err
				}
			}
			return nil
		}
		release(l.held)
		l.held = nil
		if context.Cause(c.a.ctx) != nil || fault.CodeOf(err) != fault.UserCode {
			break
		}
	}
	switch {
	case n == 0 || !c.findable(err):
		return err
	case n == 1 && l.policy.Policy == exec.Skip:
		return c.skip(b, err)
	case n == 1:
		return err
	}
	return c.halves(i, b)
}

// halves is guard on one half of b, then on the other.
func (c *chain) halves(i int, b *exec.Block) error {
	n := int(b.Batch.NumRows())
	for _, h := range [2][2]int{{0, n / 2}, {n / 2, n}} {
		half := b.Slice(h[0], h[1])
		err := c.guard(i, half, false)
		half.Release()
		if err != nil {
			return err
		}
	}
	return nil
}
