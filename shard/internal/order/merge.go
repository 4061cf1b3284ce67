package order

import (
	"github.com/penstock-data/penstock/internal/fault"
)

// Given are N samples of a window that follow each other in it, from the Index-th on.
type Given struct {
	Lane, N       int32
	Window, Index int64
}

// Merge gives the samples of a pass in the order by progress. The caller says how
// many samples each window has ([Merge.Publish]) and Merge says which of these
// numbers it needs before it can go on ([Merge.Needs]):
//
//	for {
//		for lane, w, ok := g.Needs(); ok; lane, w, ok = g.Needs() {
//			err := g.Publish(lane, w, samplesOf(lane, w))
//			...
//		}
//		lanes := g.Ahead(max)
//		...
//		for _, x := range g.Give(len(lanes)) {
//			...
//		}
//	}
//
// The lanes of the next samples are found many at a time, see block.go; no lane goes on to another
// window among them, so a sample is the next one of its lane's window. Merge
// allocates nothing but what a block takes, and for windows that are published before they are
// needed. For one goroutine.
type Merge struct {
	p        *Pass
	begins   begins // windows not yet published
	waiting  tree   // the first sample of each lane that is not in next
	lanes    []progress
	next     []int32 // lanes of the next samples
	at       int     // how many of them were given
	ended    []int32 // lanes whose current window ends with next
	count    []int32 // scratch of Give, by lane; nought between calls
	given    []Given // by the last Give
	last     Given   // the sample given last; N is 0 before the first
	lastOf   int64   // samples of its window
	block    block
	restored []Pos // what it was made with; nil once checked against the windows
	unseen   int   // lanes whose restored window is not yet published
}

// progress of a lane. cur is the window of its next sample, where open; done the last window before cur
// that had samples.
type progress struct {
	open                bool
	cur, samples, given int64
	drawn               int64  // given, or in next
	step                uint64 // from one sample of cur to the next
	stepRem             wide
	done, doneSamples   int64
	base                int64   // the last window known to begin before the time of the sample given last
	ahead               []count // published windows with samples beyond cur
}

type count struct{ window, samples int64 }

// NewMerge starts a merge at pos (nil: at the start), which must have passed
// [Pass.CheckPos]; otherwise it panics. pos is copied.
func NewMerge(p *Pass, pos []Pos) *Merge {
	g := &Merge{p: p, begins: newBegins(p, pos), waiting: newTree(len(p.lanes)), lanes: make([]progress, len(p.lanes)), count: make([]int32, len(p.lanes))}
	for v := range g.lanes {
		l := &g.lanes[v]
		l.cur, l.done = -1, -1
		if pos != nil {
			l.base, l.done, l.doneSamples = pos[v].Window, pos[v].Window, pos[v].Given
			if p.lanes[v].windows > 0 {
				g.unseen++
			}
		}
	}
	g.block.most, g.block.each = blockSamples, len(p.lanes)
	if g.unseen > 0 {
		g.restored = append(g.restored, pos...)
	}
	return g
}

// Needs returns the window that must be published before the next sample is known,
// if there is one. Of several it is the one that begins first. After a restore the
// current window of every lane comes first.
func (g *Merge) Needs() (lane int, window int64, ok bool) {
	if g.at < len(g.next) {
		return 0, 0, false
	}
	g.settle()
	b, s := &g.begins.tree.node[1], &g.waiting.node[1]
	if b.lane < 0 || g.known() {
		return 0, 0, false
	}
	if s.lane >= 0 && g.unseen == 0 && (b.key > s.key || b.key == s.key && g.begins.tree.at[b.lane].tie(&g.waiting.at[s.lane]) >= 0) {
		return 0, 0, false // samples of a window come after its begin
	}
	return b.lane, g.begins.next[b.lane], true
}

// known says, of nearly all samples, that nothing is needed. Where no sample waits its key
// is the greatest.
func (g *Merge) known() bool {
	return g.begins.tree.node[1].key > g.waiting.node[1].key && g.unseen == 0
}

// Publish says that the next unpublished window of the lane has m samples. It may
// come before Needs asks, at the cost of 16 bytes until the window is reached. An
// error is fault.Invalid where the positions that the merge was restored from do not
// fit to the windows; the merge is of no use after it. Anything else is a
// mistake of the caller, fault.Internal.
func (g *Merge) Publish(lane int, window, m int64) error {
	switch {
	case lane < 0 || lane >= len(g.lanes) || window != g.begins.next[lane] || window >= g.p.lanes[lane].windows:
		return fault.New(fault.Internal, "window %d of lane %d is published out of turn", window, lane)
	case m < 0 || m > maxUnits:
		return fault.New(fault.Internal, "window %d of lane %d is published with %d samples", window, lane, m)
	}
	l := &g.lanes[lane]
	first := g.restored != nil && window == g.restored[lane].Window
	given := int64(0)
	if first {
		given = g.restored[lane].Given
		if given > m {
			return fault.New(fault.Invalid, "the state says that %d samples of window %d of lane %d were given, but it has %d: the data or the plan is another one, or the state was edited", given, window, lane, m)
		}
	}
	g.begins.advance(lane)
	switch {
	case m == given:
		if m > 0 {
			l.done, l.doneSamples = window, m // only when restored: all of it was given
		}
	case l.open:
		l.ahead = append(l.ahead, count{window, m})
	default:
		g.start(lane, window, m, given)
	}
	if first {
		if g.unseen--; g.unseen == 0 {
			err := g.checkRestored()
			g.restored = nil
			return err
		}
	}
	return nil
}

// start makes sample i of a window the lane's next one; i < m.
func (g *Merge) start(lane int, window, m, i int64) {
	l := &g.lanes[lane]
	l.open, l.cur, l.samples, l.given, l.drawn = true, window, m, i, i
	l.step, l.stepRem = 0, wide{}
	t, step := g.time(lane, window, m, i)
	if m > 1 {
		d := newFrac(wide{0, step}, t.q)
		l.step, l.stepRem = d.key, d.rem
	}
	g.waiting.set(lane, t)
}

// time of sample i of the m > 0 of a window [a, b) of a lane with R units:
// a/R + (b-a)/R * (2i+1)/2m, as one fraction. Only the ratio of (b-a) and m counts:
// reduced, windows from which nothing was filtered have the denominator 2R, and so
// the lanes of equal length, whose samples tie all the time, compare at once. The
// sample after it is later by step/t.q.
func (g *Merge) time(lane int, window, m, i int64) (t frac, step uint64) {
	a, b := g.p.Bounds(lane, window)
	d := gcd(uint64(b-a), uint64(m))
	size, n := uint64(b-a)/d, uint64(m)/d
	t = newFrac(mul(2*n, uint64(a)).add(mul(size, 2*uint64(i)+1)), mul(2*n, uint64(g.p.lanes[lane].units)))
	return t, 2 * size
}

func gcd(a, b uint64) uint64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// Ahead returns the lanes of the next samples in their order, at most max > 0: at least one, unless the
// pass is at its end. They are valid until the next call of Give. Calling it while Needs asks for a
// window is a mistake of the caller: it panics.
func (g *Merge) Ahead(max int64) []int32 {
	if g.at == len(g.next) {
		if lane, window, ok := g.Needs(); ok {
			panic(fault.New(fault.Internal, "the next sample is not known before window %d of lane %d is published", window, lane))
		}
		g.draw()
	}
	n := int64(len(g.next) - g.at)
	return g.next[g.at : g.at+int(min(n, max))]
}

// Give says that the first n > 0 samples of Ahead were given, and returns them by lane; the
// slice is valid until the next call.
func (g *Merge) Give(n int) []Given {
	g.given = g.given[:0]
	next := g.next[g.at : g.at+n]
	g.at += n
	v := next[n-1]
	if len(g.lanes) == 1 {
		g.given = append(g.given, Given{N: int32(n)})
	} else {
		for _, v := range next {
			if g.count[v] == 0 {
				g.given = append(g.given, Given{Lane: v})
			}
			g.count[v]++
		}
	}
	for i := range g.given {
		x := &g.given[i]
		l := &g.lanes[x.Lane]
		if len(g.lanes) > 1 {
			x.N, g.count[x.Lane] = g.count[x.Lane], 0
		}
		x.Window, x.Index = l.cur, l.given
		l.given += int64(x.N)
		l.base = l.cur
	}
	l := &g.lanes[v]
	g.last, g.lastOf = Given{Lane: v, N: 1, Window: l.cur, Index: l.given - 1}, l.samples
	return g.given
}

// settle goes on to the next published windows of lanes whose current one was given.
func (g *Merge) settle() {
	for _, v := range g.ended {
		g.leave(int(v))
	}
	g.ended = g.ended[:0]
}

// leave goes on to the next published window with samples, if there is one.
func (g *Merge) leave(lane int) {
	l := &g.lanes[lane]
	l.done, l.doneSamples, l.open = l.cur, l.samples, false
	if len(l.ahead) == 0 {
		return
	}
	c := l.ahead[0]
	if l.ahead = l.ahead[1:]; len(l.ahead) == 0 {
		l.ahead = nil
	}
	g.start(lane, c.window, c.samples, 0)
}

// Pos appends the position after the sample given last, one entry per lane: the last
// window that begins before that sample's time, and how many of its samples were
// given. Before the first sample it is the position that the merge was made with.
func (g *Merge) Pos(dst []Pos) []Pos {
	var last frac // time of the sample given last, once that must be known
	for v := range g.lanes {
		l := &g.lanes[v]
		if end := g.begins.next[v] - 1; g.last.N > 0 && l.base < end { // else nothing beyond base is published
			if last.q == (wide{}) {
				last, _ = g.time(int(g.last.Lane), g.last.Window, g.lastOf, g.last.Index)
			}
			if g.begun(v, end, &last) {
				l.base = end
			}
			for l.base < end && g.begun(v, l.base+1, &last) {
				l.base++
			}
		}
		x := Pos{Window: l.base}
		if l.base == l.cur && l.open {
			x.Given = l.given
		} else if l.base == l.done {
			x.Given = l.doneSamples
		}
		dst = append(dst, x)
	}
	return dst
}

// begun says whether a window begins before a time.
func (g *Merge) begun(lane int, window int64, at *frac) bool {
	f := g.p.begin(lane, window)
	return f.cmp(at) < 0
}

// checkRestored is called when the windows of the restored position are all known. It
// refuses a position that no run can have been in: the samples given are exactly those
// up to one (time, lane), and the windows those that begin before it.
func (g *Merge) checkRestored() error {
	var last frac
	at := -1 // lane of the sample given last
	for v, x := range g.restored {
		if x.Given > 0 {
			l := &g.lanes[v]
			m := l.doneSamples // all of them given
			if l.open && l.cur == x.Window {
				m = l.samples
			}
			if t, _ := g.time(v, x.Window, m, x.Given-1); at < 0 || t.cmp(&last) >= 0 {
				last, at = t, v
			}
		}
	}
	if at < 0 {
		return nil // the start: CheckPos saw that every lane is in window 0
	}
	for v, x := range g.restored {
		ok := true
		if n := g.p.lanes[v].windows; n > 0 {
			f := g.p.begin(v, x.Window)
			ok = f.cmp(&last) < 0
			if x.Window+1 < n {
				f = g.p.begin(v, x.Window+1)
				ok = ok && f.cmp(&last) >= 0
			}
		}
		if l := &g.lanes[v]; l.open {
			c := g.waiting.at[v].cmp(&last)
			ok = ok && (c > 0 || c == 0 && v > at)
		}
		if !ok {
			return fault.New(fault.Invalid, "the state's positions do not belong together: [%d, %d] of lane %d and [%d, %d] of lane %d; use a state as it was written, with the data and plan of its job",
				x.Window, x.Given, v, g.restored[at].Window, g.restored[at].Given, at)
		}
	}
	return nil
}
