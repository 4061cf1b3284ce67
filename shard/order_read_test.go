package shard_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
)

// reading is a run under way, and where the reference is.
type reading struct {
	g      *graph
	t      *testing.T
	ctx    context.Context
	r      run
	rng    *rand.Rand
	its    []*shard.Iterator
	stops  int // that are left
	total  int // steps and ends of epochs, about
	states map[string]string
	sum    *tally

	epoch  uint64
	step   int64
	sample int
	over   bool           // no epoch comes any more
	inside bool           // an endless run is in an epoch of which it gave nothing yet: its state is the end of the one before
	fresh  bool           // nothing was read since the last stop
	want   [][]modelBatch // the steps that are left of the epoch
	was    *place         // of a stop before
}

// place is where a job stopped.
type place struct {
	state  shard.State
	epoch  uint64
	step   int64
	sample int
}

// read reads two epochs, stopping at some steps and going on elsewhere, in the end with another
// global batch, and compares all with the reference.
func (g *graph) read(t *testing.T, r run, rng *rand.Rand, stops int, states map[string]string, sum *tally) (err error) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute) // a run that hangs says which graph it is of
	defer cancel()
	d := &reading{g: g, t: t, ctx: ctx, r: r, rng: rng, stops: stops, states: states, sum: sum, epoch: g.first}
	for e := range uint64(2) {
		d.total += len(g.stepsAt(g.first+e, 0, g.global, 1)) + 1
	}
	d.over = r.over(g.first)
	if d.its, err = g.ds.Shards(ctx, r.ranks, g.options(r)); err != nil {
		return err
	}
	defer func() { closeAll(t, d.its) }()
	d.look()
	for d.over || d.epoch < g.first+2 {
		if stop, err := d.mayStop(); err != nil {
			return err
		} else if stop {
			continue
		}
		d.fresh = false
		ended, err := d.next()
		if err != nil {
			return fmt.Errorf("epoch %d, step %d, as %v: %w", d.epoch, d.step, d.r, err)
		}
		if ended {
			return nil
		}
	}
	return nil
}

// look finds what is left of the epoch.
func (d *reading) look() { d.want = d.g.stepsAt(d.epoch, d.sample, d.r.global, d.r.ranks) }

// next reads what comes next on all ranks. The run may end with it.
func (d *reading) next() (ended bool, err error) {
	g, r := d.g, &d.r
	switch {
	case d.over:
		d.sum.note("EOF for good", true)
		return true, d.eof(2)
	case len(d.want) > 0:
		err = d.batches(d.want[0])
		d.want = d.want[1:]
		d.step++
		d.sample = min(d.sample+r.global, len(g.epoch(d.epoch).samples))
		d.inside = false
	case d.step == 0 && r.endless:
		d.sum.note("endless without a step", true)
		return true, d.refused()
	default:
		last := r.over(d.epoch + 1)
		silent := r.endless && !last
		if !silent {
			err = d.eof(1)
		}
		d.sum.note("endless", silent)
		d.over = last
		d.epoch, d.step, d.sample = d.epoch+1, 0, 0
		if d.inside = silent; r.global != g.global && g.steps > 0 {
			return true, err // the next epoch has another length
		}
		if d.over || d.epoch < g.first+modelEpochs {
			d.look()
		}
	}
	if err == nil && !d.inside {
		err = d.sameStates()
	}
	return false, err
}

// batches reads the batches of a step.
func (d *reading) batches(want []modelBatch) error {
	for _, it := range d.its {
		b, err := it.Next(d.ctx)
		if err != nil {
			return fmt.Errorf("rank %d: %w", it.Rank(), err)
		}
		if b.Step() != d.step || b.Epoch() != d.epoch || b.Rank() != it.Rank() {
			err = fmt.Errorf("it is step %d of epoch %d, rank %d", b.Step(), b.Epoch(), b.Rank())
		} else {
			err = d.g.same(b, d.r, &want[it.Rank()])
		}
		d.sum.Batches++
		d.sum.Samples += b.Real()
		b.Release()
		if err != nil {
			return fmt.Errorf("rank %d: %w", it.Rank(), err)
		}
	}
	return nil
}

// eof reads ends of epochs.
func (d *reading) eof(times int) error {
	for range times {
		for _, it := range d.its {
			b, err := it.Next(d.ctx)
			if err == nil {
				defer b.Release()
				return fmt.Errorf("rank %d: step %d of epoch %d (samples %v), want the end", it.Rank(), b.Step(), b.Epoch(), b.Samples())
			}
			if err != io.EOF {
				return fmt.Errorf("rank %d, at the end: %w", it.Rank(), err)
			}
		}
	}
	return nil
}

// refused wants the error of an epoch that gives no batch, in an endless run.
func (d *reading) refused() error {
	for _, it := range d.its {
		b, err := it.Next(d.ctx)
		if err == nil {
			defer b.Release()
			return fmt.Errorf("rank %d: step %d of epoch %d (samples %v), want an error", it.Rank(), b.Step(), b.Epoch(), b.Samples())
		}
		if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "endless") {
			return fmt.Errorf("rank %d, of an epoch without a batch: %w", it.Rank(), err)
		}
	}
	return nil
}

// mayStop stops here, sometimes, and goes on elsewhere.
func (d *reading) mayStop() (bool, error) {
	if d.stops == 0 || d.inside {
		return false, nil
	}
	atEnd := len(d.want) == 0 && !d.over
	window := d.sample > 0 && d.g.epoch(d.epoch).samples[d.sample-1].last
	stop := d.rng.IntN(d.total) < 2
	switch {
	case d.fresh:
		stop = d.rng.IntN(4) == 0
	case atEnd:
		stop = stop || d.rng.IntN(3) == 0
	case window:
		stop = stop || d.rng.IntN(8) == 0
	}
	if !stop {
		return false, nil
	}
	d.stops--
	d.sum.Restores++
	d.sum.note("stop twice", d.fresh)
	d.sum.note("stop at an epoch's end", atEnd)
	d.sum.note("stop at an epoch's begin", d.sample == 0 && !d.over)
	d.sum.note("stop at a window's end", window)
	d.sum.note("stop when all is over", d.over)
	return true, d.stop()
}

// stop takes a state and goes on from it, or from one of a stop before.
func (d *reading) stop() error {
	g := d.g
	text, err := d.state(d.rng.IntN(len(d.its)))
	if err != nil {
		return err
	}
	parsed, err := shard.ParseState([]byte(text))
	if err != nil {
		return err
	}
	now := &place{parsed, d.epoch, d.step, d.sample}
	if d.was == nil {
		d.was = now
	} else if d.rng.IntN(4) == 0 && d.r.global == g.global {
		now = d.was
		d.sum.note("go back", true)
		b, err := json.Marshal(now.state)
		if err != nil {
			return err
		}
		text = string(b)
	}
	d.epoch, d.step, d.sample, d.fresh = now.epoch, now.step, now.sample, true
	how := d.rng.IntN(3) // 0: Restore of the same job, 1: another one with this state, 2: Restore of another one
	if how != 0 {
		global := d.r.global
		if d.stops == 0 && d.rng.IntN(2) == 0 {
			global = 1 + d.rng.IntN(2*d.r.global)
			d.sum.Regrouped++
		}
		faults := d.r.faults
		d.r = g.newRun(d.rng, global)
		d.r.faults = faults
		d.r.follow(d.rng)
		d.r.begin(d.rng, d.epoch)
		d.r.defaults = d.rng.IntN(4) == 0
		d.sum.note("lanes and windows of the state", d.r.defaults && g.lanes > 0 && g.window > 0)
		d.sum.note("endless after a resume", d.r.endless)
		d.sum.note("epochs after a resume", d.r.epochs > 0)
		d.sum.note("epochs from before a resume", d.r.epochs > 0 && d.r.o.Epoch < d.epoch)
		g.count(d.r, d.sum)
		o := g.options(d.r)
		closeAll(d.t, d.its)
		if how == 1 {
			o.State = &now.state
		}
		if d.its, err = g.ds.Shards(d.ctx, d.r.ranks, o); err != nil {
			return fmt.Errorf("restored to %s as %v: %w", text, d.r, err)
		}
	}
	d.over = d.r.over(d.epoch)
	d.look()
	if how != 1 {
		for _, it := range d.its {
			if err := it.Restore(now.state); err != nil {
				return fmt.Errorf("restore %s as %v: %w", text, d.r, err)
			}
		}
	}
	for i := range d.its {
		if again, err := d.state(i); err != nil || again != text {
			return fmt.Errorf("restored to\n%s\nit is at\n%s", text, again)
		}
	}
	return nil
}

func (d *reading) state(i int) (string, error) {
	b, err := json.Marshal(d.its[i].State())
	return string(b), err
}

// sameStates compares where the iterators are with where the reference is.
func (d *reading) sameStates() error {
	return d.g.states(d.its, d.epoch, d.step, d.sample, d.r, d.states)
}

// states compares the states of all iterators with the reference's, and with those of other runs.
func (g *graph) states(its []*shard.Iterator, epoch uint64, step int64, sample int, r run, states map[string]string) error {
	for _, it := range its {
		s := it.State()
		b, err := json.Marshal(s)
		if err != nil {
			return err
		}
		at := fmt.Sprint(epoch, step, sample, r.global)
		if states[at] == "" {
			states[at] = string(b)
			if s.Epoch != epoch || s.Step != step || s.Sample != int64(sample) || s.GlobalBatch != int64(r.global) {
				return fmt.Errorf("after epoch %d, step %d, sample %d the state is %s", epoch, step, sample, b)
			}
			if epoch < g.first+modelEpochs {
				if d := cmp.Diff(g.positions(epoch, sample), s.Sources); d != "" {
					return fmt.Errorf("state of rank %d after epoch %d, step %d, sample %d (- want): %s", it.Rank(), epoch, step, sample, d)
				}
			}
		} else if states[at] != string(b) {
			return fmt.Errorf("rank %d, epoch %d, step %d, sample %d: the state is\n%s\nin another run it was\n%s", it.Rank(), epoch, step, sample, b, states[at])
		}
	}
	return nil
}
