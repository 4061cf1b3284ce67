package shard

import (
	"context"
	"errors"
	"fmt"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard/internal/lanes"
	"github.com/penstock-data/penstock/shard/internal/order"
)

// epoch is an epoch under way: the samples of all sources, in order.
type epoch struct {
	j      *job
	num    uint64
	n      int64 // samples given
	length int64 // samples after which it ends; -1: when the data ends
	ended  bool  // a mix came to the end of the data
	mixer  *order.Mixer
	passes []passage
	pieces []lanes.Piece // scratch

	weights []WeightsAt
}

// passage is the pass that a source is at.
type passage struct {
	num   uint64
	pass  pass
	next  pass  // the one after it, begun to be read
	given int64 // samples that it gave, since it was opened
	fresh bool  // it was opened at its beginning

	ahead []int32 // lanes of its next samples, in a mix
	used  int     // how many of them the mix took
}

// pass is a way through a source: a *lanes.Pass, or one that only counts.
type pass interface {
	Start()
	Drained() bool
	Ahead(max int64) ([]int32, error)
	Give(n int, dst []lanes.Piece) []lanes.Piece
	Take(lanes.Piece)
	Pos([]order.Pos) []order.Pos
	Close() error
}

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

// taker gets the samples of an epoch: their lanes, numbered through all sources, in order; then what they are of each lane's
// windows, which is to be given back to its pass.
type taker interface {
	order(lane0 int32, lanes []int32)
	pieces(p pass, lane0 int32, pieces []lanes.Piece) error
}

// next gives the next samples, at most max, and returns how many: 0 at the end of the epoch.
func (e *epoch) next(max int64, to taker) (int64, error) {
	if e.length >= 0 {
		max = min(max, e.length-e.n)
	}
	if max <= 0 || e.ended {
		return 0, nil
	}
	if len(e.passes) > 1 {
		return e.mix(max, to)
	}
	lanes, err := e.aheadOf(0, max)
	if err != nil || len(lanes) == 0 {
		return 0, err
	}
	to.order(0, lanes)
	n := len(lanes)
	e.n += int64(n)
	return int64(n), e.give(0, n, to)
}

// mix is next where there are several sources.
func (e *epoch) mix(max int64, to taker) (n int64, err error) {
	for n < max {
		i := e.mixer.Next()
		p := &e.passes[i]
		if p.used == len(p.ahead) {
			if err := e.flush(i, to); err != nil {
				return n, err
			}
			if p.ahead, err = e.aheadOf(i, max-n); err != nil {
				return n, err
			}
			if e.ended = len(p.ahead) == 0; e.ended {
				break
			}
		}
		to.order(int32(e.j.lane0[i]), p.ahead[p.used:p.used+1])
		p.used++
		n++
	}
	e.n += n
	for i := range e.passes {
		if err := e.flush(i, to); err != nil {
			return n, err
		}
	}
	return n, nil
}

// flush gives what the mix took of source i.
func (e *epoch) flush(i int, to taker) error {
	p := &e.passes[i]
	n := p.used
	p.ahead, p.used = nil, 0
	if n == 0 {
		return nil
	}
	return e.give(i, n, to)
}

// give gives the next n samples of source i.
func (e *epoch) give(i, n int, to taker) error {
	p := &e.passes[i]
	p.given += int64(n)
	e.pieces = p.pass.Give(n, e.pieces[:0])
	err := to.pieces(p.pass, int32(e.j.lane0[i]), e.pieces)
	clear(e.pieces)
	return err
}

// aheadOf returns the lanes of the next samples of source i, in its next pass where there is one; none at the end of the epoch.
func (e *epoch) aheadOf(i int, max int64) ([]int32, error) {
	p := &e.passes[i]
	for {
		lanes, err := p.pass.Ahead(max)
		if err != nil || len(lanes) > 0 {
			return lanes, err
		}
		src := &e.j.Sources[i]
		switch {
		case src.Repeat:
		case e.j.StopAll:
			if e.allEnded(i) {
				return nil, nil
			}
		default:
			return nil, nil
		}
		if p.given == 0 && p.fresh {
			return nil, fault.New(fault.Invalid, "source %q gave no sample in a whole pass, so it cannot be repeated: is everything filtered out?", src.Name)
		}
		if err := e.turn(i); err != nil {
			return nil, err
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
	w := newAssembly(j)
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
		if j.mesh != nil {
			if j.feeds() {
				if err := j.mesh.abandoned(); err != nil {
					return err
				}
			}
			if err := j.mesh.begin(j.work); err != nil {
				return err
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
		if j.mesh != nil {
			j.mesh.done()
		}
		if full {
			continue
		}
		if at.step == 0 && j.Endless {
			return fault.New(fault.Invalid, "epoch %d has %d samples, not enough for one step of %d with tail %s: endless iteration would never give a batch", e.num, e.n, j.global, j.Tail)
		}
		if at.step == 0 && j.Log != nil {
			j.Log.Warn(emptyEpoch(e.num, e.n, j.global, j.Tail), "epoch", e.num, "samples", e.n)
		}
		j.ledger.Forget(e.num)
		if j.mesh != nil {
			j.mesh.forget(e.num)
		}
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
	return num+1 >= j.end()
}

// end is the first epoch that the job does not have.
func (j *job) end() uint64 {
	if j.Epochs == 0 {
		return maxCount
	}
	return min(j.Exec.Epoch+uint64(j.Epochs), maxCount)
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

// emptyEpoch says why an epoch of n samples has no step.
func emptyEpoch(epoch uint64, n int64, global int, tail Tail) string {
	if n == 0 {
		return fmt.Sprintf("epoch %d has no step: it has no samples", epoch)
	}
	return fmt.Sprintf("epoch %d has no step: %d samples are fewer than a global batch of %d, and tail %s leaves them out: make global_batch smaller, or give tail: pad", epoch, n, global, tail)
}
