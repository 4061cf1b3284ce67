package shard

import (
	"errors"
	"fmt"
	"slices"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard/internal/order"
)

// State is where a job stands: after which step, and which sample of every source.
// It is the same for all ranks, depends on no machine, and holds no data. Its JSON
// form is versioned, and has a sum by which an edited one is noticed; docs/order.md describes it.
type State struct {
	Version     int           `json:"version"` // 1
	Order       int           `json:"order"`   // order version: 1
	Plan        string        `json:"plan"`    // SHA-256 of the plan, in hex; empty: it cannot be restored, see [Job]
	Data        string        `json:"data"`    // SHA-256 of the data's fingerprints
	Seed        uint64        `json:"seed"`
	Epoch       uint64        `json:"epoch"`
	Step        int64         `json:"step"`         // steps given in this epoch
	Sample      int64         `json:"sample"`       // samples given in this epoch, without padded and repeated ones
	GlobalBatch int64         `json:"global_batch"` // of the last step
	Length      int64         `json:"length,omitempty"`
	Weights     []WeightsAt   `json:"weights"`
	Sources     []SourceState `json:"sources"`
}

// WeightsAt are the weights of all sources from sample At of the epoch on. In JSON: [at, [w, ...]].
type WeightsAt struct {
	At      int64
	Weights []int64
}

// SourceState is the position in one source.
type SourceState struct {
	Name   string     `json:"name"`
	Mode   Mode       `json:"mode"`
	Lanes  int        `json:"lanes"`
	Window int64      `json:"window"` // units per window
	Pass   uint64     `json:"pass"`
	Pos    [][2]int64 `json:"pos"` // per lane: last window that begins before the last sample given, samples given of it
}

// maxCount bounds all that is counted. No job comes to epoch maxCount.
const maxCount = 1 << 62

// snap is a position of a job, as cheap as can be: one is made for every step.
type snap struct {
	epoch        uint64
	step, sample int64
	global       int64 // of the last step; of the job where there was none
	length       int64 // 0: none
	weights      []WeightsAt
	sources      []snapSource  // nil: the epoch's beginning
	over         bool          // no epoch follows
	shapes       []order.Shape // of a restored state; nil otherwise
}

type snapSource struct {
	pass uint64
	pos  []order.Pos
}

func (a *snap) equal(b *snap) bool {
	return slices.Equal(a.shapes, b.shapes) && a.epoch == b.epoch && a.step == b.step && a.sample == b.sample && a.length == b.length &&
		slices.EqualFunc(a.weights, b.weights, WeightsAt.equal) &&
		slices.EqualFunc(a.sources, b.sources, func(x, y snapSource) bool { return x.pass == y.pass && slices.Equal(x.pos, y.pos) })
}

func (w WeightsAt) equal(v WeightsAt) bool { return w.At == v.At && slices.Equal(w.Weights, v.Weights) }

// begin is where the job begins.
func (j *job) begin() (snap, error) {
	if j.Options.State != nil {
		return j.restore(*j.Options.State)
	}
	at := j.following(nil)
	at.epoch = j.Exec.Epoch
	return at, nil
}

// following is the beginning of the epoch after that of at.
func (j *job) following(at *snap) snap {
	g := int64(j.global)
	n := snap{weights: j.Weights, global: g, length: min(j.StepsPerEpoch, maxCount/g) * g} // of any number: some mean that there is no end
	if at != nil {
		n.epoch = at.epoch + 1
	}
	return n
}

// state gives a position its public form.
func (j *job) state(at snap) State {
	s := State{
		Version: StateVersion, Order: order.Version, Plan: j.Plan, Data: j.Data, Seed: j.Exec.Seed,
		Epoch: at.epoch, Step: at.step, Sample: at.sample, GlobalBatch: at.global, Length: at.length, Weights: at.weights,
	}
	for i := range j.Sources {
		src := &j.Sources[i]
		x := SourceState{Name: src.Name, Mode: src.Layout.Mode, Lanes: src.Layout.shape.Lanes, Window: src.Layout.shape.Window,
			Pos: make([][2]int64, src.Layout.shape.Lanes)}
		if at.sources != nil {
			x.Pass = at.sources[i].pass
			for v, p := range at.sources[i].pos {
				x.Pos[v] = [2]int64{p.Window, p.Given}
			}
		}
		s.Sources = append(s.Sources, x)
	}
	return s
}

// ErrOtherJob is in the tree of an error about a state that is whole, but of another plan, other data or another seed.
var ErrOtherJob = errors.New("not a state of this job")

// restore checks a state against the job. What differs is named.
func (j *job) restore(s State) (snap, error) {
	bad := func(format string, args ...any) (snap, error) {
		return snap{}, fault.New(fault.Invalid, "restore: "+format, args...)
	}
	switch {
	case s.Version != StateVersion:
		return snap{}, fault.New(fault.Unsupported, "restore: the state has version %d, this program reads version %d", s.Version, StateVersion)
	case s.Order != order.Version:
		return snap{}, fault.New(fault.Unsupported, "restore: the state has order version %d, this program knows version %d", s.Order, order.Version)
	case j.Plan == "":
		return snap{}, fault.New(fault.Unsupported, "restore: this plan cannot be compared with that of the state: %w", j.Unnamed)
	case s.Plan == "":
		return bad("%w: it has no plan, as the data of its run have no identity, or a function of it has no name: nothing says that these are the same", ErrOtherJob)
	case s.Plan != j.Plan && s.Plan == j.OtherPolicy && !j.GoesOn:
		return bad("%w: %s", ErrOtherJob, j.otherPolicy())
	case s.Plan != j.Plan && s.Plan != j.OtherPolicy:
		return bad("%w: it is of another plan (%.12s, this one is %.12s): sources, steps, pack and shuffle must be as they were", ErrOtherJob, s.Plan, j.Plan)
	case s.Data != j.Data:
		return bad("%w: the data is not what it was (%.12s, now %.12s): a file was added, removed or changed since the state was taken", ErrOtherJob, s.Data, j.Data)
	case s.Seed != j.Exec.Seed:
		return bad("%w: it is of seed %d, this job has %d", ErrOtherJob, s.Seed, j.Exec.Seed)
	case s.Step < 0 || s.Sample < 0 || s.Length < 0 || s.GlobalBatch < 0:
		return bad("the state was edited: a count is negative")
	case s.Step > maxCount || s.Sample > maxCount || s.Length > maxCount || s.GlobalBatch > maxStep || s.Epoch > maxCount:
		return bad("the state was edited: a count is beyond reason")
	case len(s.Sources) != len(j.Sources):
		return bad("the state has %d sources, this job has %d", len(s.Sources), len(j.Sources))
	case s.Length > 0 && s.Sample > s.Length:
		return bad("the state was edited: sample %d of an epoch of %d", s.Sample, s.Length)
	}
	at := snap{epoch: s.Epoch, step: s.Step, sample: s.Sample, global: s.GlobalBatch, length: s.Length}
	var given int64
	for i, x := range s.Sources {
		src := &j.Sources[i]
		l := src.Layout
		switch {
		case x.Name != src.Name:
			return bad("source %d of the state is %q, here it is %q", i, x.Name, src.Name)
		case x.Mode != l.Mode || x.Lanes != l.shape.Lanes && l.named.Lanes != 0 || x.Window != l.shape.Window && (l.named.WindowRows != 0 || l.named.WindowBytes != 0):
			return bad("source %q was shuffled as %s with %d lanes and windows of %d, here it is %s with %d and %d: a job keeps its shuffle; leave it out of the spec, or begin anew",
				x.Name, x.Mode, x.Lanes, x.Window, l.Mode, l.shape.Lanes, l.shape.Window)
		case x.Lanes < 1 || x.Lanes > laneLimit || x.Lanes > 1 && x.Mode != ModeWindow || x.Window < 1 || x.Window > maxWindow:
			return bad("the state was edited: source %q has %d lanes and windows of %d", x.Name, x.Lanes, x.Window)
		case len(x.Pos) != x.Lanes:
			return bad("the state was edited: source %q has %d positions for %d lanes", x.Name, len(x.Pos), x.Lanes)
		case x.Pass > maxCount:
			return bad("the state was edited: source %q is at its pass %d of the epoch", x.Name, x.Pass)
		case x.Pass > 0 && !src.Repeat && !(j.StopAll && len(j.Sources) > 1):
			return bad("the state was edited: source %q is at its pass %d of the epoch, but does not repeat", x.Name, x.Pass)
		}
		at.shapes = append(at.shapes, order.Shape{Mode: l.shape.Mode, Lanes: x.Lanes, Window: x.Window})
		t := snapSource{pass: x.Pass, pos: make([]order.Pos, len(x.Pos))}
		for v, p := range x.Pos {
			if p[0] < 0 || p[1] < 0 || p[0] > maxCount || p[1] > maxCount {
				return bad("the state was edited: lane %d of source %q is at window %d, sample %d", v, x.Name, p[0], p[1])
			}
			t.pos[v] = order.Pos{Window: p[0], Given: p[1]}
			given += min(p[1], maxCount-given)
		}
		if x.Pass == 0 && s.Sample == 0 && given > 0 {
			return bad("the state was edited: no sample was given, but source %q is under way", x.Name)
		}
		at.sources = append(at.sources, t)
	}
	if given > s.Sample {
		return bad("the state was edited: it says that %d samples were given, but the windows under way alone gave %d", s.Sample, given)
	}
	if s.Sample == 0 {
		at.sources = nil
	}
	if err := j.positions(&at); err != nil {
		return snap{}, err
	}
	at.over = s.Epoch >= j.end()
	if len(s.Weights) == 0 || s.Weights[0].At != 0 {
		return bad("the state was edited: it has no weights from sample 0 on")
	}
	for i, w := range s.Weights {
		if len(w.Weights) != len(j.Sources) || i > 0 && w.At <= s.Weights[i-1].At {
			return bad("the state was edited: its weights are not those of %d sources in ascending order", len(j.Sources))
		}
	}
	at.weights = reweigh(s.Weights, j.Weights, s.Sample)
	return at, nil
}

// otherPolicy says how a job differs from one whose plan is j.OtherPolicy.
func (j *job) otherPolicy() string {
	was, is := "skips rows that cannot be processed", "does not"
	if j.skips() {
		was, is = "does not skip rows that cannot be processed", "does"
	}
	return fmt.Sprintf("it is of a run that %s, and this one %s: on_error of the run must be as it was, as it decides which rows are samples", was, is)
}

// skips reports whether the run leaves out rows that it cannot process.
func (j *job) skips() bool { return j.Exec.OnError.Policy == exec.Skip }

// positions checks that the positions of a state are some that its epoch has, and where no step changes the
// number of rows, that they fit its sample.
func (j *job) positions(at *snap) error {
	var n int64
	counted := true
	for i, x := range at.sources {
		s := &j.Sources[i]
		o, err := order.NewPass(order.Key{Seed: j.Exec.Seed, Epoch: at.epoch, Pass: x.pass, Source: s.Name}, at.shapes[i], s.Layout.flat())
		if err != nil {
			return err
		}
		if err := o.CheckPos(x.pos); err != nil {
			return err
		}
		counted = counted && s.KeepsRows && s.Pack == nil && !s.Layout.Bytes
		n += int64(x.pass) * s.Layout.total
		for v, p := range x.pos {
			if o.Windows(v) > 0 {
				from, _ := o.Bounds(v, p.Window)
				n += from + p.Given
			}
		}
	}
	if at.sources != nil && counted && n != at.sample {
		return fault.New(fault.Invalid, "restore: the state was edited: it says that %d samples were given, but its sources gave %d", at.sample, n)
	}
	return nil
}

// reweigh is the schedule of an epoch that was begun with old and goes on from sample n
// with what a spec says now: a change takes effect at n, and is recorded there.
func reweigh(old, now []WeightsAt, n int64) []WeightsAt {
	at := func(ws []WeightsAt) (i int) {
		for i+1 < len(ws) && ws[i+1].At <= n {
			i++
		}
		return i
	}
	was, is := at(old), at(now)
	out := slices.Clone(old[:was+1])
	if !slices.Equal(old[was].Weights, now[is].Weights) {
		if old[was].At == n {
			out = out[:was]
		}
		out = append(out, WeightsAt{At: n, Weights: now[is].Weights})
	}
	return append(out, now[is+1:]...)
}
