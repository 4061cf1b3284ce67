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

// samples of an epoch that follow each other.
type samples struct {
	lanes.Samples
	lane int32 // numbered through all sources
	n    int64 // number of the first
	pass pass
}

// pass is a way through a source: a *lanes.Pass, or one that only counts.
type pass interface {
	Start()
	Drained() bool
	Next(max int64) (lanes.Samples, error)
	Take(lanes.Samples)
	Pos([]order.Pos) []order.Pos
	Close() error
}

// taken is the pass of samples that are given back elsewhere.
type taken struct{ pass }

func (taken) Take(lanes.Samples) {}

// openPass opens a pass of source i.
func (j *job) openPass(i int, epoch, num uint64, pos []order.Pos) (pass, error) {
	if j.dry {
		return j.openCount(i, epoch, num, pos)
	}
	return j.sources[i].Open(j.work, epoch, num, pos)
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

// next gives the next samples, at most max; N is 0 at the end of the epoch.
func (e *epoch) next(max int64) (samples, error) {
	if e.length >= 0 {
		max = min(max, e.length-e.n)
	}
	if max <= 0 {
		return samples{}, nil
	}
	i := 0
	if len(e.passes) > 1 {
		i, max = e.mixer.Next(), 1
	}
	p := &e.passes[i]
	for {
		s, err := p.pass.Next(max)
		if err != nil {
			return samples{}, err
		}
		if s.N > 0 {
			n := e.n
			p.given += int64(s.N)
			e.n += int64(s.N)
			return samples{s, int32(e.j.lane0[i]) + s.Lane, n, p.pass}, nil
		}
		src := &e.j.Sources[i]
		switch {
		case src.Repeat:
		case e.j.StopAll:
			if e.allEnded(i) {
				return samples{}, nil
			}
		default:
			return samples{}, nil
		}
		if p.given == 0 && p.fresh {
			return samples{}, fault.New(fault.Invalid, "source %q gave no sample in a whole pass, so it cannot be repeated: is everything filtered out?", src.Name)
		}
		if err := e.turn(i); err != nil {
			return samples{}, err
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
		next.Start()
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
				p.pass.Start()
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
	samples []samples
	count   int64
	lanes   []int32
	deal    [][]int32
	parts   []part
	stamp   uint64
}

// part is the rows of one rank.
type part struct {
	recs []arrow.RecordBatch
	runs []gather.Run
	ns   []int64 // sample numbers
}

// add appends samples.
func (w *assembly) add(s samples) {
	w.samples = append(w.samples, s)
	w.count += int64(s.N)
}

// begin starts a part.
func (w *assembly) begin(p *part) {
	w.stamp++
	*p = part{recs: p.recs[:0], runs: p.runs[:0], ns: make([]int64, 0, cap(p.ns))}
}

// take appends samples to a part, which no other was begun since.
func (w *assembly) take(p *part, s *samples) {
	for i, end := s.Index, s.Index+int64(s.N); i < end; {
		rec, row, n := s.Window.Sample(i)
		n = int32(min(int64(n), end-i))
		if rec.Stamp != w.stamp {
			rec.Stamp, rec.Slot = w.stamp, int32(len(p.recs))
			p.recs = append(p.recs, rec.Batch)
		}
		if k := len(p.runs); k > 0 && p.runs[k-1].Rec == rec.Slot && p.runs[k-1].Row+p.runs[k-1].N == row {
			p.runs[k-1].N += n
		} else {
			p.runs = append(p.runs, gather.Run{Rec: rec.Slot, Row: row, N: n})
		}
		i += int64(n)
	}
	for k := range s.N {
		p.ns = append(p.ns, s.n+int64(k))
	}
}

// step makes the next step of e, one item per iterator; nil where there is none. full: it is not the
// last one of the epoch.
func (w *assembly) step(e *epoch, at *snap) (items []item, full bool, err error) {
	j := w.j
	g := int64(j.global)
	w.samples, w.count = w.samples[:0], 0
	defer func() {
		for i := range w.samples {
			w.samples[i].pass.Take(w.samples[i].Samples)
		}
		clear(w.samples)
	}()
	for w.count < g {
		s, err := e.next(g - w.count)
		if err != nil {
			return nil, false, err
		}
		if s.N == 0 {
			break
		}
		w.add(s)
	}
	full = w.count == g
	if w.count == 0 || !full && j.Tail == TailDrop {
		return nil, false, nil
	}
	after := e.snap(at, at.step+1)
	if !full && j.Tail == TailRepeat {
		done, err := w.repeat(e, g-w.count)
		defer done()
		if err != nil {
			return nil, false, err
		}
	}
	items, err = w.batches(e.num, at.step, after)
	j.steps.Add(1)
	j.samples.Add(w.count)
	return items, full, err
}

// repeat appends the first k samples of the epoch, over and over; what they come from stays
// open until done is called.
func (w *assembly) repeat(e *epoch, k int64) (done func(), err error) {
	j := w.j
	began := j.following(nil)
	began.epoch, began.weights = e.num, e.weights
	if w.count == e.n { // the whole epoch is in this step
		w.single()
		for i, n := 0, len(w.samples); k > 0; i, k = i+1, k-1 {
			s := w.samples[i%n]
			s.pass = taken{}
			w.add(s)
		}
		return func() {}, nil
	}
	var open []*epoch
	done = func() {
		for _, x := range open {
			if err := x.close(); err != nil {
				j.fail(err)
			}
		}
	}
	for k > 0 {
		first, err := j.openAt(&began)
		if err != nil {
			return done, err
		}
		open = append(open, first)
		for first.n < e.n && k > 0 {
			s, err := first.next(min(k, e.n-first.n))
			if err != nil {
				return done, err
			}
			if s.N == 0 {
				return done, fault.New(fault.Internal, "the epoch had %d samples, but only %d when it was read again", e.n, first.n)
			}
			w.add(s)
			k -= int64(s.N)
		}
	}
	return done, nil
}

// dealt finds what each iterator gets.
func (w *assembly) dealt() {
	j := w.j
	for len(w.parts) < len(j.iters) {
		w.parts = append(w.parts, part{})
	}
	if j.Job.Ranks == 1 {
		for i := range j.iters {
			w.begin(&w.parts[i])
			for k := range w.samples {
				w.take(&w.parts[i], &w.samples[k])
			}
		}
		return
	}
	w.single()
	w.lanes = w.lanes[:0]
	for i := range w.samples {
		w.lanes = append(w.lanes, w.samples[i].lane)
	}
	w.deal = order.Deal(w.lanes, j.global, j.Job.Ranks, w.deal)
	for i, it := range j.iters {
		w.begin(&w.parts[i])
		for _, k := range w.deal[it.rank] {
			w.take(&w.parts[i], &w.samples[k])
		}
	}
}

// single makes every sample an entry of its own.
func (w *assembly) single() {
	if int64(len(w.samples)) == w.count {
		return
	}
	var out []samples
	for _, s := range w.samples {
		for k := range s.N {
			x := s
			x.Index, x.N, x.n = s.Index+int64(k), 1, s.n+int64(k)
			out = append(out, x)
		}
	}
	w.samples = out
}

// batches assembles what each iterator gets.
func (w *assembly) batches(num uint64, step int64, after snap) ([]item, error) {
	j := w.j
	items := make([]item, len(j.iters))
	var lengths map[string]int
	if j.globalPad() { // the longest lists of all ranks, also of those that are read elsewhere
		var p part
		w.begin(&p)
		for k := range w.samples {
			w.take(&p, &w.samples[k])
		}
		lengths = j.iters[0].collate.Longest(p.recs, p.runs)
	}
	w.dealt()
	errs := make([]error, len(j.iters))
	one := func(i int) {
		it := j.iters[i]
		p := &w.parts[i]
		b, err := it.collate.Batch(p.recs, p.runs, BatchShape{Rows: j.shares[it.rank], Masked: j.Tail == TailPad, Lengths: lengths})
		if err != nil {
			errs[i] = fault.Wrap(err, fault.Place{Step: fmt.Sprintf("batch of rank %d, step %d", it.rank, step)})
			return
		}
		b.epoch, b.step, b.rank, b.samples = num, step, it.rank, p.ns
		if j.Lineage {
			b.lineage = w.lineage(num, it.rank)
			if b.record != nil {
				b.record = withLineage(j.memory, b.record, b.lineage)
			}
		}
		items[i] = item{batch: b, at: after}
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
