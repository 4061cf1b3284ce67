package shard

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard/internal/lanes"
	"github.com/penstock-data/penstock/shard/internal/order"
)

// At is a place in a job, for [StateAt].
type At struct {
	Epoch uint64
	// Step of the epoch, counted from its beginning, or from Options.State where that is of this epoch and given,
	// with the job's global batch.
	Step int64
	// Sample, if > 0, is the sample that the step begins with; give it or Step.
	Sample int64
	// Ledger of the epoch, where steps change the number of rows; nil: what is not known is counted.
	Ledger *Ledger
	// Counting is called before a counting pass, which reads and computes the epoch up to the place; may be nil.
	// What it finds is kept in the user's cache folder.
	Counting func(text string)
}

// StateAt finds the state of a job before a step without making the batches before it: from
// metadata where no step changes the number of rows, else with a ledger, else by counting.
func StateAt(ctx context.Context, o Job, at At) (State, error) {
	o.Nodes = nil // what has to be counted is, here
	j, err := newJob(ctx, o)
	if err != nil {
		return State{}, err
	}
	s, err := j.find(at)
	return s, errors.Join(err, j.free())
}

func (j *job) find(at At) (State, error) {
	from := j.start
	if from.shapes == nil || from.epoch != at.Epoch {
		shapes := from.shapes
		from = j.following(nil)
		from.epoch, from.shapes = at.Epoch, shapes
	}
	g := int64(j.global)
	n := from.sample + (at.Step-from.step)*g
	step := at.Step
	if at.Sample > 0 {
		n, step = at.Sample, from.step+(at.Sample-from.sample)/g
	}
	switch {
	case at.Step < 0:
		return State{}, fault.New(fault.Invalid, "steps count from 0")
	case at.Step > maxCount/g:
		return State{}, fault.New(fault.Invalid, "step %d is too large; at most %d", at.Step, maxCount/g)
	case at.Epoch >= maxCount:
		return State{}, fault.New(fault.Invalid, "epoch %d is too large; at most %d", at.Epoch, maxCount-1)
	case at.Step > 0 && at.Sample > 0:
		return State{}, fault.New(fault.Invalid, "step %d and sample %d are both given: give one of them", at.Step, at.Sample)
	case n < from.sample:
		return State{}, fault.New(fault.Invalid, "step %d (sample %d) comes before the state given, which is at step %d (sample %d)", step, n, from.step, from.sample)
	}
	if at.Ledger != nil {
		if err := at.Ledger.check(j); err != nil {
			return State{}, err
		}
	}
	// What the ledger given does not know, as it is of another epoch or ends too early, was perhaps counted before.
	j.dry = true
	var unknown *unknownWindow
	file := j.cacheFile(at.Epoch) // of the files as they are now: they may change while they are counted
	kept := j.cached(file)
	if kept == nil {
		kept = newLedger(j)
	}
	for _, l := range []*Ledger{at.Ledger, kept} {
		if l == nil {
			continue
		}
		j.ledger = l
		s, err := j.skip(&from, n, step)
		if !errors.As(err, &unknown) {
			return s, err
		}
	}
	if at.Counting != nil {
		why := "a ledger saves that"
		if at.Ledger != nil {
			why = fmt.Sprintf("the ledger given %s", at.Ledger.covers(at.Epoch))
		}
		at.Counting(fmt.Sprintf("the number of samples of %s is not known: reading epoch %d up to sample %d to count (%s)", unknown.what, at.Epoch, n, why))
	}
	j.dry = false
	s, err := j.skip(&from, n, step)
	if err == nil {
		j.cache(file)
	}
	return s, err
}

// skip passes over the samples from a position to sample n.
func (j *job) skip(from *snap, n, step int64) (s State, err error) {
	e, err := j.openAt(from)
	if err != nil {
		return s, err
	}
	defer func() { err = errors.Join(err, e.close(), j.closeOld()) }()
	for e.n < n {
		k, err := e.next(min(n-e.n, dealChunk), passedOver{})
		if err != nil {
			return s, err
		}
		if k == 0 {
			return s, fault.New(fault.Invalid, "epoch %d has %d samples: there is no step %d, which begins with sample %d", e.num, e.n, step, n)
		}
		if err := j.ctx.Err(); err != nil {
			return s, fault.WithCode(fault.Canceled, context.Cause(j.ctx))
		}
	}
	at := e.snap(from, step)
	return j.state(at), nil
}

// passedOver takes samples that nobody wants.
type passedOver struct{}

func (passedOver) order(int32, []int32) {}

func (passedOver) pieces(p pass, _ int32, pieces []lanes.Piece) error {
	for _, x := range pieces {
		p.Take(x)
	}
	return nil
}

// unknownWindow says that the samples of a window do not follow from what is known.
type unknownWindow struct{ what string }

func (u *unknownWindow) Error() string { return "the samples of " + u.what + " are not known" }

// countPass is a pass whose samples are counted, not read.
type countPass struct {
	j          *job
	source     int
	epoch, num uint64
	order      *order.Pass
	merge      *order.Merge
}

func (j *job) openCount(i int, epoch, num uint64, pos []order.Pos) (pass, error) {
	o, err := j.sources[i].Order(epoch, num)
	if err != nil {
		return nil, err
	}
	if pos != nil {
		if err := o.CheckPos(pos); err != nil {
			return nil, err
		}
	}
	return &countPass{j, i, epoch, num, o, order.NewMerge(o, pos)}, nil
}

func (p *countPass) samples(lane int, window int64) (int64, error) {
	s := &p.j.Sources[p.source]
	if s.KeepsRows && s.Pack == nil && !s.Layout.Bytes {
		from, to := p.order.Bounds(lane, window)
		return to - from, nil
	}
	if n, ok := p.j.ledger.Samples(p.epoch, p.num, p.source, lane, window); ok {
		return n, nil
	}
	return 0, &unknownWindow{fmt.Sprintf("window %d of lane %d of source %q", window, lane, s.Name)}
}

func (p *countPass) Ahead(max int64) ([]int32, error) {
	for {
		lane, window, ok := p.merge.Needs()
		if !ok {
			return p.merge.Ahead(max), nil
		}
		n, err := p.samples(lane, window)
		if err != nil {
			return nil, err
		}
		if err := p.merge.Publish(lane, window, n); err != nil {
			return nil, err
		}
	}
}

func (p *countPass) Give(n int, dst []lanes.Piece) []lanes.Piece {
	p.merge.Give(n)
	return dst
}

func (p *countPass) Start()                          {}
func (p *countPass) Drained() bool                   { return false }
func (p *countPass) Take(lanes.Piece)                {}
func (p *countPass) Pos(dst []order.Pos) []order.Pos { return p.merge.Pos(dst) }
func (p *countPass) Close() error                    { return nil }

// cacheFile is where the ledger of an epoch is kept that was counted; "" where it cannot be.
func (j *job) cacheFile(epoch uint64) string {
	dir, err := os.UserCacheDir()
	if err != nil || j.Plan == "" {
		return ""
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%s\n%d\n%d\n", j.Plan, j.Data, j.Exec.Seed, epoch)
	for _, s := range j.Sources {
		fmt.Fprintln(h, s.Layout.shape)
		for _, st := range s.Layout.scans {
			writeTimes(h, st.Scan.Table)
		}
	}
	return filepath.Join(dir, "penstock", "ledgers", hex.EncodeToString(h.Sum(nil)[:16]))
}

func (j *job) cached(file string) *Ledger {
	if file == "" {
		return nil
	}
	f, err := os.Open(file)
	if err != nil {
		return nil
	}
	defer f.Close()
	l, err := ReadLedger(f)
	if err != nil || l.check(j) != nil { // cut short by a crash of the machine: counted again
		return nil
	}
	return l
}

// cache keeps what was counted; where that fails it is counted again next time.
func (j *job) cache(file string) {
	if file == "" || os.MkdirAll(filepath.Dir(file), 0o700) != nil {
		return
	}
	writeFile(file, func(f *os.File) error {
		_, err := j.ledger.WriteTo(f)
		return err
	})
}
