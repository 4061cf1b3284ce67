package shard

import (
	"errors"
	"fmt"
	"runtime"
	"sync"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/shard/internal/lanes"
	"github.com/penstock-data/penstock/shard/internal/order"
)

// assembly makes the batches of steps, one after another. What it keeps of a step is 4 bytes per sample, stretches of rows per
// lane, and 12 bytes for each sample that is read here.
type assembly struct {
	j      *job
	dealer *order.Dealer // nil where there is one rank

	seq     []int32 // lanes of the samples, in their order
	numbers []number
	rows    []stretch
	lanes   []laneRows // of all sources
	touched []int32    // lanes with samples in the step
	given   []given
	recs    []*lanes.Rec // that the samples are rows of
	stamp   uint64

	parts []part
	of    []*part // by rank; nil where it is not read here
	ranks []int32
	far   *far // of samples that other nodes read, or get; nil: there are none
}

// number says that the samples of the step from the at-th on have the numbers n, n+1, ... of the epoch.
type number struct {
	at int
	n  int64
}

// stretch is samples of a lane that follow each other, also in a record.
type stretch struct{ rec, row, n, next int32 } // next one of the lane, in assembly.rows; -1: none

// laneRows is the stretches of a lane in a step, and which of its samples is the next.
type laneRows struct {
	rec, row, left int32 // of the stretch begun
	at             int32 // the one after it
	first, last    int32 // in assembly.rows
	any            bool  // there is one
}

// given is samples to give back.
type given struct {
	pass  pass
	piece lanes.Piece
}

// part is what one rank gets.
type part struct {
	recs []*lanes.Rec
	rows []Rows
	slot []int32 // by record of the assembly: where it is in recs, or -1; not where one rank gets all
	runs []gather.Run
	ns   []int64 // sample numbers
}

func newAssembly(j *job) *assembly {
	n := j.lane0[len(j.lane0)-1] + j.Sources[len(j.Sources)-1].Layout.shape.Lanes
	w := &assembly{j: j, lanes: make([]laneRows, n), parts: make([]part, len(j.iters)), of: make([]*part, j.Job.Ranks)}
	if j.Job.Ranks > 1 || j.mesh != nil {
		w.dealer = order.NewDealer(n, j.Job.Ranks)
	}
	for i, it := range j.iters {
		if it.rank != feeder {
			w.of[it.rank] = &w.parts[i]
		}
	}
	if j.mesh != nil {
		w.far = newFar(j.mesh, n)
	}
	return w
}

// count is the number of samples.
func (w *assembly) count() int64 { return int64(len(w.seq)) }

// begin starts a step.
func (w *assembly) begin() {
	w.stamp++
	w.seq, w.numbers, w.rows, w.recs = w.seq[:0], w.numbers[:0], w.rows[:0], w.recs[:0]
	for _, v := range w.touched {
		w.lanes[v] = laneRows{}
	}
	w.touched = w.touched[:0]
}

// end gives everything back.
func (w *assembly) end() {
	for _, g := range w.given {
		g.pass.Take(g.piece)
	}
	clear(w.given)
	clear(w.recs)
	w.given = w.given[:0]
}

// order implements taker.
func (w *assembly) order(lane0 int32, lanes []int32) {
	if lane0 == 0 {
		w.seq = append(w.seq, lanes...)
		return
	}
	for _, v := range lanes {
		w.seq = append(w.seq, lane0+v)
	}
}

// pieces implements taker.
func (w *assembly) pieces(p pass, lane0 int32, pieces []lanes.Piece) error {
	for _, x := range pieces {
		w.given = append(w.given, given{p, x})
		for i, left := x.Index, x.N; left > 0; {
			rec, row, n, err := x.Window.At(i)
			if err != nil {
				return err
			}
			if rec.Stamp != w.stamp {
				rec.Stamp, rec.Slot = w.stamp, int32(len(w.recs))
				w.recs = append(w.recs, rec)
			}
			n = min(n, left)
			w.add(lane0+x.Lane, rec.Slot, row, n)
			i, left = i+int64(n), left-n
		}
	}
	return nil
}

// add appends samples to those of a lane.
func (w *assembly) add(lane, rec, row, n int32) {
	l, k := &w.lanes[lane], int32(len(w.rows))
	if l.any {
		w.rows[l.last].next = k
	} else {
		l.any, l.first = true, k
		w.touched = append(w.touched, lane)
	}
	l.last = k
	w.rows = append(w.rows, stretch{rec, row, n, -1})
}

// rewind makes the first sample of each lane the next one.
func (w *assembly) rewind() {
	for _, v := range w.touched {
		l := &w.lanes[v]
		l.at, l.left = l.first, 0
	}
}

// next begins the next stretch of a lane.
func (w *assembly) next(l *laneRows) {
	s := &w.rows[l.at]
	l.rec, l.row, l.left, l.at = s.rec, s.row, s.n, s.next
}

// step makes the next step of e, one item per iterator; nil where there is none. full: it is not the
// last one of the epoch.
func (w *assembly) step(e *epoch, at *snap) (items []item, full bool, err error) {
	j := w.j
	g := int64(j.global)
	w.begin()
	defer w.end()
	w.numbers = append(w.numbers, number{0, e.n})
	for w.count() < g {
		n, err := e.next(g-w.count(), w)
		if err != nil {
			return nil, false, err
		}
		if n == 0 {
			break
		}
	}
	full = w.count() == g
	if w.count() == 0 || !full && j.Tail == TailDrop {
		return nil, false, nil
	}
	after := e.snap(at, at.step+1)
	if !full && j.Tail == TailRepeat {
		done, err := w.repeat(e, g-w.count())
		defer done()
		if err != nil {
			return nil, false, err
		}
	}
	items, err = w.batches(e.num, at.step, after)
	j.steps.Add(1)
	j.samples.Add(w.count())
	return items, full, err
}

// repeat appends the first k samples of the epoch, over and over; what they come from stays
// open until done is called.
func (w *assembly) repeat(e *epoch, k int64) (done func(), err error) {
	j := w.j
	if w.count() == e.n { // the whole epoch is in this step
		w.again(int(k))
		return func() {}, nil
	}
	began := j.following(nil)
	began.epoch, began.weights = e.num, e.weights
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
		w.numbers = append(w.numbers, number{len(w.seq), 0})
		for first.n < e.n && k > 0 {
			n, err := first.next(min(k, e.n-first.n), w)
			if err != nil {
				return done, err
			}
			if n == 0 {
				return done, fault.New(fault.Internal, "the epoch had %d samples, but only %d when it was read again", e.n, first.n)
			}
			k -= n
		}
	}
	return done, nil
}

// again appends the samples of the step, over and over, up to k more.
func (w *assembly) again(k int) {
	n := len(w.seq)
	for i := range k {
		if i%n == 0 {
			w.numbers = append(w.numbers, number{len(w.seq), 0})
			w.rewind()
		}
		v := w.seq[i%n]
		l := &w.lanes[v]
		if w.far != nil && !l.any { // read elsewhere
			w.seq = append(w.seq, v)
			continue
		}
		if l.left == 0 {
			w.next(l)
		}
		rec, row := l.rec, l.row
		l.row, l.left = l.row+1, l.left-1
		w.seq = append(w.seq, v)
		w.add(v, rec, row, 1)
	}
	w.rewind()
}

// clear begins a part of n samples.
func (p *part) clear(n int) {
	clear(p.recs)
	clear(p.rows)
	p.recs, p.rows, p.slot, p.runs, p.ns = p.recs[:0], p.rows[:0], p.slot[:0], p.runs[:0], make([]int64, 0, n)
	if cap(p.runs) < n {
		p.runs = make([]gather.Run, 0, n)
	}
}

// take appends a row of a record of the assembly.
func (p *part) take(w *assembly, rec, row int32) {
	slot := p.slot[rec]
	if slot < 0 {
		slot = int32(len(p.recs))
		p.slot[rec] = slot
		r := w.recs[rec]
		p.recs, p.rows = append(p.recs, r), append(p.rows, rowsOf(r))
	}
	if k := len(p.runs) - 1; k >= 0 && p.runs[k].Rec == slot && p.runs[k].Row+p.runs[k].N == row {
		p.runs[k].N++
		return
	}
	p.runs = append(p.runs, gather.Run{Rec: slot, Row: row, N: 1})
}

// all puts all samples into p.
func (w *assembly) all(p *part) {
	p.clear(len(w.seq))
	p.recs = append(p.recs, w.recs...)
	for _, r := range w.recs {
		p.rows = append(p.rows, rowsOf(r))
	}
	w.rewind()
	runs := p.runs
	if len(w.touched) == 1 {
		for k := w.lanes[w.touched[0]].first; k >= 0; k = w.rows[k].next {
			s := &w.rows[k]
			runs = append(runs, gather.Run{Rec: s.rec, Row: s.row, N: s.n})
		}
	} else {
		lanes := w.lanes
		for _, v := range w.seq {
			l := &lanes[v]
			if l.left == 0 {
				w.next(l)
			}
			runs = append(runs, gather.Run{Rec: l.rec, Row: l.row, N: 1})
			l.row++
			l.left--
		}
	}
	p.runs = runs
	p.ns = p.ns[:len(w.seq)]
	for i, x := range w.numbers {
		end := len(w.seq)
		if i+1 < len(w.numbers) {
			end = w.numbers[i+1].at
		}
		ns := p.ns[x.at:end]
		for k := range ns {
			ns[k] = x.n + int64(k)
		}
	}
}

// dealChunk is how many samples are dealt at once.
const dealChunk = 4096

// dealt finds what each iterator gets.
func (w *assembly) dealt() {
	if w.dealer == nil {
		for i := range w.parts {
			w.all(&w.parts[i])
		}
		return
	}
	for i, it := range w.j.iters {
		p := &w.parts[i]
		p.clear(w.j.shares[it.rank])
		for range w.recs {
			p.slot = append(p.slot, -1)
		}
	}
	w.rewind()
	w.dealer.Begin(w.seq)
	for i, x := range w.numbers {
		end := len(w.seq)
		if i+1 < len(w.numbers) {
			end = w.numbers[i+1].at
		}
		n := x.n
		for at := x.at; at < end; at += dealChunk {
			seq := w.seq[at:min(end, at+dealChunk)]
			w.ranks = w.dealer.Deal(seq, w.ranks)
			for k, v := range seq {
				l := &w.lanes[v]
				if l.left == 0 {
					w.next(l)
				}
				if p := w.of[w.ranks[k]]; p != nil {
					p.take(w, l.rec, l.row)
					p.ns = append(p.ns, n)
				}
				l.row, l.left = l.row+1, l.left-1
				n++
			}
		}
	}
}

// batches assembles what each iterator gets.
func (w *assembly) batches(num uint64, step int64, after snap) ([]item, error) {
	j := w.j
	items := make([]item, len(j.iters))
	var lengths map[string]int
	if j.globalPad() { // the longest lists of all ranks, also of those that are read elsewhere
		var p part
		if w.far == nil {
			w.all(&p)
		} else {
			w.mine(&p)
		}
		lengths = j.iters[0].collate.LongestOf(p.rows, p.runs)
	}
	if w.far == nil {
		w.dealt()
	} else {
		defer w.far.release()
		if err := w.exchange(lengths); err != nil {
			return nil, err
		}
	}
	errs := make([]error, len(j.iters))
	one := func(i int) {
		it := j.iters[i]
		p := &w.parts[i]
		if j.feeds() {
			items[i] = item{at: after}
			return
		}
		defer func() {
			if p := recover(); p != nil {
				f, ok := p.(*fault.Error) // an allocator's
				if !ok {
					panic(p)
				}
				errs[i] = f
			}
		}()
		j.mu.Lock()
		memory := it.memory
		j.mu.Unlock()
		b, err := it.collate.BatchOf(p.rows, p.runs, BatchShape{Rows: j.shares[it.rank], Masked: j.Tail == TailPad, Lengths: lengths, Memory: memory})
		if err != nil {
			errs[i] = fault.Wrap(it.blame(p, lengths, err), fault.Place{Step: fmt.Sprintf("batch of rank %d, step %d", it.rank, step)})
			return
		}
		b.epoch, b.step, b.rank, b.samples = num, step, it.rank, p.ns
		if j.Lineage {
			b.lineage = p.lineage(num)
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
