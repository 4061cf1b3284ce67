package shard

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/shard/internal/lanes"
	"github.com/penstock-data/penstock/shard/internal/order"
)

// epoch is an epoch under way: the samples of all sources, in order.
type epoch struct {
	j      *job
	num    uint64
	n      int64 // samples given
	length int64 // samples after which it ends; -1: when the data ends
	mixer  *order.Mixer
	passes []passage

	weights []WeightsAt
}

// passage is the pass that a source is at.
type passage struct {
	num   uint64
	pass  pass
	next  pass  // the one after it, begun to be read
	given int64 // samples that it gave, since it was opened
	fresh bool  // it was opened at its beginning
}

// sample of an epoch.
type sample struct {
	lanes.Sample
	source int
	n      int64
	pass   pass
}

// pass is a way through a source: a *lanes.Pass, or one that only counts.
type pass interface {
	Start() error
	Drained() bool
	Next() (lanes.Sample, bool, error)
	Take(lanes.Sample)
	Pos([]order.Pos) []order.Pos
	Close() error
}

// openPass opens a pass of source i.
func (j *job) openPass(i int, epoch, num uint64, pos []order.Pos) (pass, error) {
	if j.dry {
		return j.openCount(i, epoch, num, pos)
	}
	return j.sources[i].Open(j.ctx, epoch, num, pos)
}

// openAt begins an epoch at a snapshot.
func (j *job) openAt(at *snap) (*epoch, error) {
	sched := make(order.Schedule, len(at.weights))
	for i, w := range at.weights {
		sched[i] = order.Stage{At: w.At, Weights: w.Weights}
	}
	m, err := order.NewMixer(sched)
	if err != nil {
		return nil, err
	}
	m.SeekTo(at.sample)
	e := &epoch{j: j, num: at.epoch, n: at.sample, length: -1, mixer: m, weights: at.weights}
	if at.length > 0 {
		e.length = at.length
	}
	if most := j.Sources[0].Limit; most >= 0 && (e.length < 0 || most < e.length) {
		e.length = most
	}
	for i := range j.sources {
		p := passage{fresh: true}
		var pos []order.Pos
		if at.sources != nil {
			p.num, pos = at.sources[i].pass, at.sources[i].pos
		}
		for _, x := range pos {
			p.fresh = p.fresh && x == order.Pos{}
		}
		if p.pass, err = j.openPass(i, e.num, p.num, pos); err != nil {
			return nil, errors.Join(err, e.close())
		}
		e.passes = append(e.passes, p)
	}
	return e, nil
}

func (e *epoch) close() error {
	var err error
	for _, p := range e.passes {
		err = errors.Join(err, p.pass.Close())
		if p.next != nil {
			err = errors.Join(err, p.next.Close())
		}
	}
	e.passes = nil
	return err
}

// drained reports whether everything that the epoch needs has been read.
func (e *epoch) drained() bool {
	for i, p := range e.passes {
		if !p.pass.Drained() || e.goesOn(i) {
			return false
		}
	}
	return true
}

// goesOn reports whether source i has another pass in this epoch, as far as is known.
func (e *epoch) goesOn(i int) bool { return e.j.Sources[i].Repeat || e.j.StopAll && len(e.passes) > 1 }

// next gives the next sample; false at the end of the epoch.
func (e *epoch) next() (sample, bool, error) {
	if e.length >= 0 && e.n >= e.length {
		return sample{}, false, nil
	}
	i := e.mixer.Next()
	p := &e.passes[i]
	for {
		s, ok, err := p.pass.Next()
		if err != nil {
			return sample{}, false, err
		}
		if ok {
			p.given++
			e.n++
			return sample{s, i, e.n - 1, p.pass}, true, nil
		}
		src := &e.j.Sources[i]
		switch {
		case src.Repeat:
		case e.j.StopAll:
			if e.allEnded(i) {
				return sample{}, false, nil
			}
		default:
			return sample{}, false, nil
		}
		if p.given == 0 && p.fresh {
			return sample{}, false, fault.New(fault.Invalid, "source %q gave no sample in a whole pass, so it cannot be repeated: is everything filtered out?", src.Name)
		}
		if err := e.turn(i); err != nil {
			return sample{}, false, err
		}
	}
}

// allEnded reports whether every source that does not repeat has ended once, given that the pass
// of source i is at its end.
func (e *epoch) allEnded(i int) bool {
	for k := range e.passes {
		if k != i && e.passes[k].num == 0 && !e.j.Sources[k].Repeat {
			return false
		}
	}
	return true
}

// turn goes on with the next pass of source i. The last one stays open while a step still needs its rows.
func (e *epoch) turn(i int) error {
	p := &e.passes[i]
	next := p.next
	if next == nil {
		var err error
		if next, err = e.j.openPass(i, e.num, p.num+1, nil); err != nil {
			return err
		}
	}
	e.j.old = append(e.j.old, p.pass)
	*p = passage{num: p.num + 1, pass: next, fresh: true}
	return nil
}

// ahead lets passes that will be needed begin to be read, once those at work need the engine no more.
func (e *epoch) ahead() error {
	for i := range e.passes {
		p := &e.passes[i]
		if p.next != nil || !p.pass.Drained() || !e.goesOn(i) || e.length >= 0 && e.length-e.n < int64(e.j.global) {
			continue
		}
		next, err := e.j.openPass(i, e.num, p.num+1, nil)
		if err != nil {
			return err
		}
		p.next = next
		if err := next.Start(); err != nil {
			return err
		}
	}
	return nil
}

// snap is where the epoch stands.
func (e *epoch) snap(at *snap, step int64) snap {
	s := *at
	s.sample, s.step, s.global = e.n, step, int64(e.j.global)
	s.sources = make([]snapSource, len(e.passes))
	for i, p := range e.passes {
		s.sources[i] = snapSource{pass: p.num, pos: p.pass.Pos(nil)}
	}
	return s
}

// produce makes steps from at on, epoch after epoch, until gone is closed.
func (j *job) produce(at snap, gone chan struct{}) (err error) {
	var e, following *epoch
	defer func() {
		for _, x := range []*epoch{e, following} {
			if x != nil {
				err = errors.Join(err, x.close())
			}
		}
		err = errors.Join(err, j.closeOld())
		if errors.Is(err, errGone) {
			err = nil
		}
	}()
	if e, err = j.openAt(&at); err != nil {
		return err
	}
	w := &assembly{j: j}
	for {
		select {
		case <-gone:
			return errGone
		default:
		}
		if err := j.waitRoom(gone); err != nil {
			return err
		}
		if err := e.ahead(); err != nil {
			return err
		}
		if following == nil && e.drained() && !j.lastEpoch(e.num) {
			next := j.following(&at)
			if following, err = j.openAt(&next); err != nil {
				return err
			}
			for _, p := range following.passes {
				if err := p.pass.Start(); err != nil {
					return err
				}
			}
		}
		items, full, err := w.step(e, &at)
		if err != nil {
			return err
		}
		if err := j.closeOld(); err != nil {
			return err
		}
		if items != nil {
			at = items[0].at
			if err := j.push(items, gone); err != nil {
				return err
			}
		}
		if full {
			continue
		}
		if at.step == 0 && j.Endless {
			return fault.New(fault.Invalid, "epoch %d has %d samples, not enough for one step of %d with tail drop: endless iteration would never give a batch", e.num, e.n, j.global)
		}
		j.ledger.Forget(e.num)
		at = j.following(&at)
		at.over = j.lastEpoch(e.num)
		if err := e.close(); err != nil {
			return err
		}
		e = nil
		if !j.Endless || at.over {
			ends := make([]item, len(j.iters))
			for i := range ends {
				ends[i] = item{at: at, eof: true}
			}
			if err := j.push(ends, gone); err != nil {
				return err
			}
		}
		if at.over {
			return nil
		}
		if e, following = following, nil; e == nil {
			if e, err = j.openAt(&at); err != nil {
				return err
			}
		}
	}
}

// lastEpoch reports whether none is wanted after epoch num.
func (j *job) lastEpoch(num uint64) bool {
	return j.Epochs > 0 && num+1 >= j.Exec.Epoch+uint64(j.Epochs)
}

// closeOld closes passes whose samples have all been copied.
func (j *job) closeOld() error {
	var err error
	for _, p := range j.old {
		err = errors.Join(err, p.Close())
	}
	j.old = nil
	return err
}

// waitRoom waits until a step is wanted.
func (j *job) waitRoom(gone chan struct{}) error {
	for {
		j.mu.Lock()
		ok := j.fits()
		j.mu.Unlock()
		if ok {
			return nil
		}
		select {
		case <-j.room:
		case <-gone:
			return errGone
		case <-j.ctx.Done():
			return fault.WithCode(fault.Canceled, context.Cause(j.ctx))
		}
	}
}

// assembly makes the batches of a step.
type assembly struct {
	j       *job
	samples []sample
	lanes   []int32
	deal    [][]int32
	parts   []part
	stamp   uint64
}

// part is the rows of one rank.
type part struct {
	recs []arrow.RecordBatch
	runs []gather.Run
}

// collect finds the rows of the samples idx.
func (w *assembly) collect(p *part, idx []int32) {
	w.stamp++
	p.recs, p.runs = p.recs[:0], p.runs[:0]
	for _, i := range idx {
		s := &w.samples[i]
		rec, row := s.Window.Sample(s.Index)
		if rec.Stamp != w.stamp {
			rec.Stamp, rec.Slot = w.stamp, int32(len(p.recs))
			p.recs = append(p.recs, rec.Batch)
		}
		if n := len(p.runs); n > 0 && p.runs[n-1].Rec == rec.Slot && p.runs[n-1].Row+p.runs[n-1].N == row {
			p.runs[n-1].N++
			continue
		}
		p.runs = append(p.runs, gather.Run{Rec: rec.Slot, Row: row, N: 1})
	}
}

// step makes the next step of e, one item per iterator; nil where there is none. full: it is not the
// last one of the epoch.
func (w *assembly) step(e *epoch, at *snap) (items []item, full bool, err error) {
	j := w.j
	w.samples, w.lanes = w.samples[:0], w.lanes[:0]
	defer func() {
		for _, s := range w.samples {
			s.pass.Take(s.Sample)
		}
		w.samples = w.samples[:0]
	}()
	for len(w.samples) < j.global {
		s, ok, err := e.next()
		if err != nil {
			return nil, false, err
		}
		if !ok {
			break
		}
		w.samples = append(w.samples, s)
	}
	real := len(w.samples)
	full = real == j.global
	if real == 0 || !full && j.Tail == TailDrop {
		return nil, false, nil
	}
	after := e.snap(at, at.step+1)
	if !full && j.Tail == TailRepeat {
		again, err := w.repeat(e, j.global-real)
		if again != nil {
			defer func() { err = errors.Join(err, again()) }()
		}
		if err != nil {
			return nil, false, err
		}
	}
	for _, s := range w.samples {
		w.lanes = append(w.lanes, int32(j.lane0[s.source]+s.Lane))
	}
	w.deal = order.Deal(w.lanes, j.global, j.Job.Ranks, w.deal)
	items, err = w.batches(e.num, at.step, after)
	return items, full, err
}

// repeat appends the first k samples of the epoch, over and over; what they come from stays
// open until done is called.
func (w *assembly) repeat(e *epoch, k int) (done func() error, err error) {
	j := w.j
	total := e.n
	began := j.following(nil)
	began.epoch, began.weights = e.num, e.weights
	var open []*epoch
	done = func() error {
		var err error
		for _, x := range open {
			err = errors.Join(err, x.close())
		}
		return err
	}
	for k > 0 {
		first, err := j.openAt(&began)
		if err != nil {
			return done, err
		}
		open = append(open, first)
		for first.n < total && k > 0 {
			s, ok, err := first.next()
			if err != nil {
				return done, err
			}
			if !ok {
				return done, fault.New(fault.Internal, "the epoch had %d samples, but only %d when it was read again", total, first.n)
			}
			w.samples = append(w.samples, s)
			k--
		}
	}
	return done, nil
}

// batches assembles what each iterator gets.
func (w *assembly) batches(num uint64, step int64, after snap) ([]item, error) {
	j := w.j
	items := make([]item, len(j.iters))
	for len(w.parts) < len(j.iters) {
		w.parts = append(w.parts, part{})
	}
	var lengths map[string]int
	if j.globalPad() {
		// Longest lists are those of all ranks, also of those that are read elsewhere.
		var p part
		all := make([]int32, len(w.samples))
		for i := range all {
			all[i] = int32(i)
		}
		w.collect(&p, all)
		lengths = j.iters[0].collate.Longest(p.recs, p.runs)
	}
	errs := make([]error, len(j.iters))
	one := func(i int) {
		it := j.iters[i]
		p := &w.parts[i]
		b, err := it.collate.Batch(p.recs, p.runs, BatchShape{Rows: j.shares[it.rank], Masked: j.Tail == TailPad, Lengths: lengths})
		if err != nil {
			errs[i] = fault.Wrap(err, fault.Place{Step: fmt.Sprintf("batch of rank %d, step %d", it.rank, step)})
			return
		}
		ns := make([]int64, len(w.deal[it.rank]))
		for k, s := range w.deal[it.rank] {
			ns[k] = w.samples[s].n
		}
		b.epoch, b.step, b.rank, b.samples = num, step, it.rank, ns
		if j.Lineage {
			b.lineage = w.lineage(num, w.deal[it.rank])
			if b.record != nil {
				b.record = withLineage(j.memory, b.record, b.lineage)
			}
		}
		items[i] = item{batch: b, at: after}
	}
	for i, it := range j.iters {
		w.collect(&w.parts[i], w.deal[it.rank])
	}
	if len(j.iters) == 1 || runtime.GOMAXPROCS(0) == 1 {
		for i := range j.iters {
			one(i)
		}
	} else {
		var g sync.WaitGroup
		for i := range j.iters {
			g.Go(func() { one(i) })
		}
		g.Wait()
	}
	if err := errors.Join(errs...); err != nil {
		for i := range items {
			items[i].release()
		}
		return nil, err
	}
	return items, nil
}

// globalPad reports whether lists are padded to the longest of all ranks.
func (j *job) globalPad() bool {
	for _, c := range j.Form.Columns {
		if c.Lists == ListsPadGlobal {
			return true
		}
	}
	return false
}

// repeats reports whether every source repeats: an epoch ends only by its length.
func (j *job) repeats() bool {
	for i := range j.Sources {
		if !j.Sources[i].Repeat {
			return false
		}
	}
	return true
}
