package ops

import (
	"fmt"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/ops/expr"
)

// DefaultSource is the name of the only source of a plan without a mix.
const DefaultSource = "data"

// Values of MixSpec.Stop.
const (
	StopFirst = "first"
	StopAll   = "all"
)

// Limits of a mix.
const (
	maxWeights    = 1 << 20 // sum: the length of a block of the mixing order
	maxSourceName = 100     // bytes
	maxSources    = 10_000
	maxSchedule   = 10_000
)

// MixSpec says how a [Mix] draws from its sources. Names, Weights and Repeat have one entry for
// each.
type MixSpec struct {
	Names   []string // unique; letters, digits, and _ . -
	Weights []int64  // samples of each in a block of as many as they sum to; 0: none
	// Schedule are later weights, by sample of the epoch.
	Schedule []WeightsAt
	// Repeat marks sources that go on with their next pass when they have ended, for as long as
	// the epoch lasts, and never end it; nil: none.
	Repeat []bool
	// Stop says which of the other sources end the epoch: "first", the default, ends it
	// where the first of them is to give a sample and has none; "all" repeats each of
	// them until every one has ended once.
	Stop string
}

// WeightsAt are the weights from sample At of an epoch on.
type WeightsAt struct {
	At      int64 // > 0
	Weights []int64
}

// NewMix draws samples from its inputs by weights. Their schemas unify as in [NewUnion], and reads are
// numbered anew through all of them; packed sources must have equal columns. Defaults of s
// are filled in.
func NewMix(in []Node, s MixSpec, m Meta) (*Mix, error) {
	if err := s.check(); err != nil {
		return nil, fault.Wrap(err, m.place())
	}
	if len(in) != len(s.Names) {
		return nil, m.wrong("a mix of %d sources with %d names", len(in), len(s.Names))
	}
	if err := m.OnError.Check(); err != nil {
		return nil, fault.Wrap(err, m.place())
	}
	name := func(i int) string { return fmt.Sprintf("source %q", s.Names[i]) }
	packed := -1
	for i, n := range in {
		if _, ok := n.(*Mix); ok {
			return nil, m.wrong("%s is a mix itself: give all sources to one mix", name(i))
		}
		if _, ok := n.(*Pack); ok && packed < 0 {
			packed = i
		}
		if err := noLimit(n, m, name(i)+": "); err != nil {
			return nil, err
		}
	}
	if packed >= 0 { // no step may follow a pack, so nothing can make the columns alike
		want := in[packed].Schema()
		for i, n := range in {
			if _, ok := n.(*Pack); !ok {
				return nil, m.wrong("%s is packed and %s is not: pack all sources of a mix, or none", name(packed), name(i))
			}
			if !SameColumns(n.Schema(), want) {
				return nil, m.wrong("%s is packed to %s, %s to %s: pack all sources of a mix to the same length, token type and loss mask",
					name(packed), columnsOf(want), name(i), columnsOf(n.Schema()))
			}
		}
	}
	schema, err := unified(in, m, name)
	if err != nil {
		return nil, err
	}
	x := &Mix{Meta: m, MixSpec: s, schema: schema}
	x.Ins, err = alike(in, schema, 0, m)
	return x, err
}

// Check reports what can be seen to be wrong without the sources' plans.
func (s MixSpec) Check() error { return s.check() }

// check copies the slices, fills in defaults, and reports what is wrong.
func (s *MixSpec) check() error {
	n := len(s.Names)
	if n == 0 || n > maxSources {
		return fault.New(fault.Invalid, "a mix needs 1 to %d sources, have %d", maxSources, n)
	}
	seen := map[string]bool{}
	for i, name := range s.Names {
		switch {
		case name == "":
			return fault.New(fault.Invalid, "source %d of the mix has no name", i+1)
		case len(name) > maxSourceName:
			return fault.New(fault.Invalid, "the name of source %d has %d bytes; at most %d", i+1, len(name), maxSourceName)
		case strings.ContainsFunc(name, notInName):
			return fault.New(fault.Invalid, "source name %q; only letters, digits and the characters _ . - may be used", name)
		case seen[name]:
			return fault.New(fault.Invalid, "two sources of the mix have the name %q", name)
		}
		seen[name] = true
	}
	if err := s.weights(s.Weights, "weights"); err != nil {
		return err
	}
	if len(s.Schedule) > maxSchedule {
		return fault.New(fault.Invalid, "%d changes of weights; at most %d", len(s.Schedule), maxSchedule)
	}
	schedule, last := []WeightsAt(nil), int64(0)
	for _, w := range s.Schedule {
		if w.At <= last {
			return fault.New(fault.Invalid, "weights change at sample %d after sample %d; samples must be more than 0 and ascend", w.At, last)
		}
		last = w.At
		if err := s.weights(w.Weights, fmt.Sprintf("weights from sample %d on", w.At)); err != nil {
			return err
		}
		schedule = append(schedule, WeightsAt{w.At, slices.Clone(w.Weights)})
	}
	s.Schedule = schedule
	if len(s.Repeat) != 0 && len(s.Repeat) != n {
		return fault.New(fault.Invalid, "a mix of %d sources with %d values of repeat", n, len(s.Repeat))
	}
	if s.Stop == "" {
		s.Stop = StopFirst
	}
	if s.Stop != StopFirst && s.Stop != StopAll {
		return fault.New(fault.Invalid, "stop %q; have %s, %s (repeat belongs to single sources)", s.Stop, StopFirst, StopAll)
	}
	s.Names, s.Weights = slices.Clone(s.Names), slices.Clone(s.Weights)
	repeat := make([]bool, n)
	copy(repeat, s.Repeat)
	s.Repeat = repeat
	return nil
}

func (s *MixSpec) weights(ws []int64, what string) error {
	if len(ws) != len(s.Names) {
		return fault.New(fault.Invalid, "%s: %d for %d sources", what, len(ws), len(s.Names))
	}
	sum := int64(0)
	for i, w := range ws {
		if w < 0 || w > maxWeights {
			return fault.New(fault.Invalid, "%s: source %q has %d; must be 0 to %d", what, s.Names[i], w, maxWeights)
		}
		sum += w
	}
	if sum == 0 || sum > maxWeights {
		return fault.New(fault.Invalid, "%s: they sum to %d; must be 1 to %d", what, sum, maxWeights)
	}
	return nil
}

func notInName(r rune) bool {
	return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("_.-", r))
}

// Endless reports whether no source is sure to end an epoch, so that its length must be given: every source
// repeats, or those that do not are drawn no more under the last weights.
func (n *Mix) Endless() bool {
	ws := n.Weights
	if k := len(n.Schedule); k > 0 {
		ws = n.Schedule[k-1].Weights
	}
	ends, waits := 0, 0 // sources that will end, and that will not
	for i, repeat := range n.Repeat {
		switch {
		case repeat:
		case ws[i] > 0:
			ends++
		default:
			waits++
		}
	}
	return ends == 0 || n.Stop == StopAll && waits > 0
}

// Source is one source of a plan for shards: what its lanes read and compute, and how the
// rows of a window become samples.
type Source struct {
	Name   string
	Weight int64 // at the beginning of an epoch; see MixSpec.Schedule
	Repeat bool
	// Plan holds the steps of the windows: no Pack, Mix or Limit, but in a plan without a mix
	// and pack, whose Plan is all of it. It ends with the columns that Pack reads, in
	// Pack.Needs, so that [Optimize] leaves out all others.
	Plan Node
	Pack *Pack // nil: each row is a sample
}

// Sources splits a plan into its sources, in the order of the mix. mix is nil, and the only source is called
// [DefaultSource] with weight 1, where the plan has none. The reads keep the ordinals that they have in
// root, also through Optimize(Plan). Samples of the sources have the columns of root.Schema(), but for
// nullability and metadata.
func Sources(root Node) (sources []Source, mix *Mix, err error) {
	ins := []Node{root}
	if x, ok := root.(*Mix); ok {
		mix, ins = x, x.Ins
	}
	for i, n := range ins {
		s := Source{Name: DefaultSource, Weight: 1, Plan: n}
		if mix != nil {
			s.Name, s.Weight, s.Repeat = mix.Names[i], mix.Weights[i], mix.Repeat[i]
		}
		if p, ok := n.(*Pack); ok {
			s.Pack, s.Plan = p, p.In
			if needs := p.Needs(); len(needs) < p.In.Schema().NumFields() {
				if s.Plan, err = Select(p.In, needs, p.Meta); err != nil {
					return nil, nil, err
				}
			}
		}
		sources = append(sources, s)
	}
	return sources, mix, nil
}

// Narrow is what shards run of a plan where they need these columns only: of a mix, of each source. The plan packs nothing.
func Narrow(root Node, columns []string) (Node, error) {
	x, ok := root.(*Mix)
	if !ok {
		return Select(root, columns, shards)
	}
	ins := make([]Node, len(x.Ins))
	for i, in := range x.Ins {
		n, err := Select(in, columns, shards)
		if err != nil {
			return nil, err
		}
		ins[i] = n
	}
	return NewMix(ins, x.MixSpec, x.Meta)
}

// Plain reports, as an Unsupported error, that a plan ends with a step that only shards have: then it
// cannot be run, counted or written as it is.
func Plain(root Node) error {
	switch n := root.(type) {
	case *Mix:
		return fault.New(fault.Unsupported, "mix works on shards and iterators (Shards, Iterator, penstock batches), not in a plain run; use union to concatenate").At(n.place())
	case *Pack:
		return fault.New(fault.Unsupported, "pack works on shards and iterators (Shards, Iterator, penstock batches), not in a plain run; leave it out").At(n.place())
	}
	return nil
}

// columnsOf lists names and types for messages.
func columnsOf(s *arrow.Schema) string {
	parts := make([]string, s.NumFields())
	for i, f := range s.Fields() {
		parts[i] = f.Name + " " + expr.TypeName(f.Type)
	}
	return abbreviate(parts, 6)
}

func (n *Mix) String() string {
	var b strings.Builder
	b.WriteString("mix ")
	for i, name := range n.Names {
		if i > 0 {
			b.WriteString(", ")
		}
		if i == 20 {
			fmt.Fprintf(&b, "... %d more", len(n.Names)-i)
			break
		}
		fmt.Fprintf(&b, "%s %d", name, n.Weights[i])
		if n.Repeat[i] {
			b.WriteString(" repeat")
		}
	}
	for i, w := range n.Schedule {
		if i == 4 {
			fmt.Fprintf(&b, "; ... %d more changes", len(n.Schedule)-i)
			break
		}
		fmt.Fprintf(&b, "; from sample %d: %s", w.At, numbers(w.Weights, 20))
	}
	return b.String() + "; stop " + n.Stop
}

func numbers(ws []int64, most int) string {
	parts := make([]string, len(ws))
	for i, w := range ws {
		parts[i] = fmt.Sprint(w)
	}
	return abbreviate(parts, most)
}
