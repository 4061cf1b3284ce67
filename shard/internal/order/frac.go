package order

import (
	"cmp"
	"math"
	"math/bits"
)

// wide is an unsigned integer of 128 bits.
type wide struct{ hi, lo uint64 }

func (a wide) add(b wide) wide {
	lo, c := bits.Add64(a.lo, b.lo, 0)
	return wide{a.hi + b.hi + c, lo}
}

func (a wide) sub(b wide) wide {
	lo, c := bits.Sub64(a.lo, b.lo, 0)
	return wide{a.hi - b.hi - c, lo}
}

func (a wide) cmp(b wide) int {
	if a.hi != b.hi {
		return cmp.Compare(a.hi, b.hi)
	}
	return cmp.Compare(a.lo, b.lo)
}

func mul(a, b uint64) wide {
	hi, lo := bits.Mul64(a, b)
	return wide{hi, lo}
}

// mul returns the 256 bits of a product, high half first.
func (a wide) mul(b wide) (hi, lo wide) {
	ll, lh, hl, hh := mul(a.lo, b.lo), mul(a.lo, b.hi), mul(a.hi, b.lo), mul(a.hi, b.hi)
	x1, c := bits.Add64(ll.hi, lh.lo, 0)
	x2, c := bits.Add64(lh.hi, hh.lo, c)
	x3 := hh.hi + c
	x1, c = bits.Add64(x1, hl.lo, 0)
	x2, c = bits.Add64(x2, hl.hi, c)
	return wide{x3 + c, x2}, wide{x1, ll.lo}
}

// frac is a time in [0, 1), exactly: (key + rem/q) / 2^64 with rem < q < 2^126. The
// key alone decides nearly every comparison, and going on by a constant step takes no
// division.
type frac struct {
	key    uint64
	rem, q wide
}

// newFrac is n/q, n < q.
func newFrac(n, q wide) frac {
	f := frac{q: q}
	if q.hi == 0 {
		f.key, f.rem.lo = bits.Div64(n.lo, 0, q.lo)
		return f
	}
	for range 64 { // long division, bit by bit: rare, and once per window
		n = n.add(n)
		f.key <<= 1
		if n.cmp(q) >= 0 {
			n = n.sub(q)
			f.key |= 1
		}
	}
	f.rem = n
	return f
}

// add goes on by d, which has the same q. The sum must stay below 1. Whether the
// remainder runs over cannot be predicted, hence no branch.
func (f *frac) add(dkey uint64, drem wide) {
	lo, c := bits.Add64(f.rem.lo, drem.lo, 0)
	hi, _ := bits.Add64(f.rem.hi, drem.hi, c)
	l, b := bits.Sub64(lo, f.q.lo, 0)
	h, b := bits.Sub64(hi, f.q.hi, b)
	over := b - 1 // all ones if the remainder is q or more
	f.rem = wide{hi&^over | h&over, lo&^over | l&over}
	f.key += dkey - over
}

func (f *frac) cmp(g *frac) int {
	if f.key != g.key {
		return cmp.Compare(f.key, g.key)
	}
	return f.tie(g)
}

// tie compares what is below the keys.
func (f *frac) tie(g *frac) int {
	switch {
	case f.q == g.q:
		return f.rem.cmp(g.rem)
	case f.q.hi|g.q.hi == 0:
		return mul(f.rem.lo, g.q.lo).cmp(mul(g.rem.lo, f.q.lo))
	}
	ah, al := f.rem.mul(g.q)
	bh, bl := g.rem.mul(f.q)
	if c := ah.cmp(bh); c != 0 {
		return c
	}
	return al.cmp(bl)
}

// tree is a tournament of lanes by (time, lane): a binary tree whose leaves are the
// lanes and whose inner nodes hold the lesser of their two children. Any leaf can
// change, at the cost of one comparison per level.
type tree struct {
	leaves int    // a power of two
	node   []node // node 1 is the root, node leaves+v is lane v
	at     []frac // per lane; valid where its leaf is set
}

type node struct {
	key  uint64 // of at[lane]; the greatest where there is no lane
	lane int    // -1: none
}

func newTree(lanes int) tree {
	n := 1 << bits.Len(uint(lanes-1))
	t := tree{leaves: n, node: make([]node, 2*n), at: make([]frac, lanes)}
	for i := range t.node {
		t.node[i] = node{math.MaxUint64, -1}
	}
	return t
}

// top returns the first lane, -1 if there is none.
func (t *tree) top() int { return t.node[1].lane }

func (t *tree) set(lane int, f frac) {
	t.at[lane] = f
	t.fix(lane)
}

// fix restores the tree after at[lane] changed.
func (t *tree) fix(lane int) { t.put(t.leaves+lane, node{t.at[lane].key, lane}) }

// build makes the tree of the lanes that are in, at their times.
func (t *tree) build(in func(lane int) bool) {
	for v := range t.at {
		t.node[t.leaves+v] = node{math.MaxUint64, -1}
		if in(v) {
			t.node[t.leaves+v] = node{t.at[v].key, v}
		}
	}
	for i := t.leaves - 1; i > 0; i-- {
		x, y := t.node[2*i], t.node[2*i+1]
		if y.key < x.key || y.key == x.key && t.before(y.lane, x.lane) {
			x = y
		}
		t.node[i] = x
	}
}

func (t *tree) drop(lane int) { t.put(t.leaves+lane, node{math.MaxUint64, -1}) }

func (t *tree) put(i int, x node) {
	t.node[i] = x
	key, lane := x.key, x.lane
	for i > 1 {
		y := &t.node[i^1]
		k, v := y.key, y.lane
		if k == key {
			if t.before(v, lane) {
				lane = v
			}
		} else if k < key { // a conditional move: which way it goes cannot be predicted
			key, lane = k, v
		}
		i >>= 1
		t.node[i] = node{key, lane}
	}
}

// before orders two lanes of equal keys.
func (t *tree) before(v, w int) bool {
	if v < 0 || w < 0 {
		return w < 0
	}
	f, g := &t.at[v], &t.at[w]
	if f.q == g.q && f.rem == g.rem {
		return v < w
	}
	c := f.tie(g)
	return c < 0 || c == 0 && v < w
}
