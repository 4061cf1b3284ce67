package order

import (
	"math"
	"math/bits"
	"sort"

	"github.com/penstock-data/penstock/internal/fault"
)

const (
	maxUnits = 1 << 62 // of a source in all, and samples of a window
	maxLanes = 1 << 20
)

// Pass is one pass over one source: which lane reads which splits and where its
// windows lie. It is immutable, safe for concurrent use, and takes memory in
// proportion to splits and lanes, whatever the number of windows.
type Pass struct {
	window int64 // units per window
	units  int64 // of all lanes
	lanes  []lane
	split  []int32 // of all lanes, lane after lane, each in its order; those without units left out
	end    []int64 // units of the lane up to and with that split
}

type lane struct {
	units   int64
	first   int64 // units of window 0, before the lane's end cuts it
	windows int64
	lo, hi  int // its splits are Pass.split[lo:hi]
}

// NewPass deals the splits of a source, of which split i (in canonical order) has
// units[i] rows or bytes. The slice is not kept. Errors are fault.Invalid.
func NewPass(k Key, s Shape, units []int64) (*Pass, error) {
	switch {
	case s.Mode > Window:
		return nil, fault.New(fault.Invalid, "shuffle mode %d is unknown: use none, blocks or window", s.Mode)
	case s.Lanes < 1 || s.Lanes > maxLanes:
		return nil, fault.New(fault.Invalid, "lanes is %d: use 1 to %d", s.Lanes, maxLanes)
	case s.Mode != Window && s.Lanes != 1:
		return nil, fault.New(fault.Invalid, "lanes is %d: without a window shuffle there is one lane", s.Lanes)
	case s.Window < 1 || s.Window > maxUnits:
		return nil, fault.New(fault.Invalid, "a window of %d units: use at least 1", s.Window)
	case len(units) > math.MaxInt32:
		return nil, fault.New(fault.Invalid, "%d splits are more than %d: use larger row groups or fewer files", len(units), math.MaxInt32)
	}
	p := &Pass{window: s.Window, lanes: make([]lane, s.Lanes)}
	for i, u := range units {
		if u < 0 {
			return nil, fault.New(fault.Invalid, "split %d has %d units", i, u)
		}
		if u > maxUnits-p.units {
			return nil, fault.New(fault.Invalid, "the splits have more than %d units in all: split the source", int64(maxUnits))
		}
		p.units += u
	}

	order := make([]int32, len(units))
	if s.Mode == None {
		for i := range order {
			order[i] = int32(i)
		}
	} else {
		Perm(k.Splits(), order)
	}
	of, splits := deal(order, units, s.Lanes)
	n := 0
	for v := range p.lanes {
		p.lanes[v].lo, p.lanes[v].hi = n, n
		n += splits[v]
	}
	p.split, p.end = make([]int32, n), make([]int64, n)
	for i, split := range order {
		if u := units[split]; u > 0 {
			l := &p.lanes[of[i]]
			l.units += u
			p.split[l.hi], p.end[l.hi] = split, l.units
			l.hi++
		}
	}
	for v := range p.lanes {
		l := &p.lanes[v]
		// ceil(W(v+1)/V) is at most W, so the quotient of the 128 bits fits.
		hi, lo := bits.Mul64(uint64(s.Window), uint64(v)+1)
		lo, c := bits.Add64(lo, uint64(s.Lanes)-1, 0)
		first, _ := bits.Div64(hi+c, lo, uint64(s.Lanes))
		l.first = int64(first)
		switch {
		case l.units == 0:
		case l.units <= l.first:
			l.windows = 1
		default:
			l.windows = 2 + (l.units-l.first-1)/p.window
		}
	}
	return p, nil
}

// Lanes returns V.
func (p *Pass) Lanes() int { return len(p.lanes) }

// Len returns the units of all lanes.
func (p *Pass) Len() (units int64) { return p.units }

// Units returns the units of a lane.
func (p *Pass) Units(lane int) int64 { return p.lanes[lane].units }

// Windows returns the number of windows of a lane; 0 for a lane without units.
func (p *Pass) Windows(lane int) int64 { return p.lanes[lane].windows }

// Bounds returns the units [from, to) of the lane that window w covers; for a window
// that does not exist it is empty and lies at the lane's end.
func (p *Pass) Bounds(lane int, w int64) (from, to int64) {
	l := &p.lanes[lane]
	if w < 0 || w >= l.windows {
		return l.units, l.units
	}
	to = l.first
	if w > 0 {
		from = l.first + (w-1)*p.window
		to = p.window
	}
	return from, from + min(to, l.units-from)
}

// Segments appends to dst what window w of the lane reads, in the lane's order: runs
// of units of splits, none of them empty.
func (p *Pass) Segments(lane int, w int64, dst []Segment) []Segment {
	from, to := p.Bounds(lane, w)
	l := &p.lanes[lane]
	split, end := p.split[l.lo:l.hi], p.end[l.lo:l.hi]
	for i := sort.Search(len(end), func(i int) bool { return end[i] > from }); from < to; i++ {
		begin := int64(0) // of the split, in the lane
		if i > 0 {
			begin = end[i-1]
		}
		stop := min(end[i], to)
		dst = append(dst, Segment{Split: int(split[i]), From: from - begin, To: stop - begin})
		from = stop
	}
	return dst
}

// CheckPos says whether pos can be a position of this pass, as far as can be known
// before its windows are: one entry per lane, each in range, and no lane ahead of
// another. The rest is checked by [Merge.Publish]. Errors are fault.Invalid.
func (p *Pass) CheckPos(pos []Pos) error {
	if len(pos) != len(p.lanes) {
		return fault.New(fault.Invalid, "the state has positions of %d lanes, the source has %d: use the state of this job", len(pos), len(p.lanes))
	}
	started, given := false, false
	latest, soonest := frac{}, frac{key: math.MaxUint64, rem: wide{0, 1}, q: wide{0, 1}} // begins of current and of next windows
	late, soon := 0, 0
	for v, x := range pos {
		n := p.lanes[v].windows
		if x.Window < 0 || x.Given < 0 || x.Given > maxUnits || x.Window >= max(n, 1) || n == 0 && x.Given > 0 {
			return fault.New(fault.Invalid, "the state's position [%d, %d] of lane %d does not exist, the lane has %d windows: use the state of this job", x.Window, x.Given, v, n)
		}
		started, given = started || x.Window > 0, given || x.Given > 0
		if n > 0 {
			if f := p.begin(v, x.Window); latest.cmp(&f) < 0 {
				latest, late = f, v
			}
		}
		if x.Window+1 < n {
			if f := p.begin(v, x.Window+1); f.cmp(&soonest) < 0 {
				soonest, soon = f, v
			}
		}
	}
	if latest.cmp(&soonest) >= 0 {
		return fault.New(fault.Invalid, "the state's positions do not belong together: lane %d is in window %d while lane %d is still in window %d; use a state as it was written",
			late, pos[late].Window, soon, pos[soon].Window)
	}
	if started && !given {
		return fault.New(fault.Invalid, "the state's positions do not belong together: lanes have begun later windows, but no sample was given; use a state as it was written")
	}
	return nil
}

// begin is the time at which a window that exists begins.
func (p *Pass) begin(lane int, w int64) frac {
	from, _ := p.Bounds(lane, w)
	return newFrac(wide{0, uint64(from)}, wide{0, uint64(p.lanes[lane].units)})
}

// Production returns the windows in the order in which they are to be produced, from
// pos on (nil: from the start): by their begin, then lane. pos must have passed
// CheckPos; otherwise Production panics.
func (p *Pass) Production(pos []Pos) *Production {
	return &Production{newBegins(p, pos)}
}

// Production is an iterator over windows; for one goroutine.
type Production struct{ b begins }

// Next returns the next window; false at the end.
func (p *Production) Next() (lane int, window int64, ok bool) {
	lane, window, ok = p.b.least()
	if ok {
		p.b.advance(lane)
	}
	return lane, window, ok
}

// begins holds one window per lane, by (begin, lane).
type begins struct {
	p    *Pass
	tree tree
	next []int64 // per lane
}

func newBegins(p *Pass, pos []Pos) begins {
	b := begins{p: p, tree: newTree(len(p.lanes)), next: make([]int64, len(p.lanes))}
	if pos != nil {
		if err := p.CheckPos(pos); err != nil {
			panic(err)
		}
	}
	for v := range b.next {
		if pos != nil {
			b.next[v] = pos[v].Window
		}
		if b.next[v] < p.lanes[v].windows {
			b.tree.set(v, p.begin(v, b.next[v]))
		}
	}
	return b
}

func (b *begins) least() (lane int, window int64, ok bool) {
	lane = b.tree.top()
	if lane < 0 {
		return 0, 0, false
	}
	return lane, b.next[lane], true
}

// advance moves a lane to its next window.
func (b *begins) advance(lane int) {
	b.next[lane]++
	if b.next[lane] < b.p.lanes[lane].windows {
		b.tree.set(lane, b.p.begin(lane, b.next[lane]))
	} else {
		b.tree.drop(lane)
	}
}
