package order

import (
	"math"
	"math/bits"
	"slices"
)

// blockSamples is how many samples are put in order at once, where there are not more lanes.
const blockSamples = 2048

// block finds the order of many samples at once. In one window the times of a lane's samples are an
// arithmetic progression, so those of all lanes up to a time before which no window begins are
// known, and nearly uniform: they are put into buckets by time, and in order within these. What a bucket
// holds is one word per sample, the time since the block's beginning above the lane; only where
// times agree in all those bits exact fractions decide. Where a block would hold but
// few samples, they come one by one from the tree.
type block struct {
	most   int      // samples of a block; 0: none is made, all comes from the tree
	each   int      // samples taken from the tree since a block was tried; it is not before there were as many as lanes
	entry  []uint64 // lane after lane
	sorted []uint64
	bucket []int32 // where each bucket's entries begin in sorted
	begin  []frac  // time of each lane's first sample in the block

	shift, laneBits int // an entry is (time - from) >> shift << laneBits | lane
	buckets, down   int // bucket of an entry: its time >> down
	from            uint64
	exact           bool // entries whose times agree are at the same time: the lesser comes first
}

// draw fills next, which is empty, where anything is left. Nothing is needed.
func (g *Merge) draw() {
	g.next, g.at = g.next[:0], 0
	switch {
	case g.waiting.top() < 0:
	case len(g.lanes) == 1:
		g.drawOne()
	case !g.drawBlock():
		g.drawEach()
	}
}

// drawOne is draw where there is one lane.
func (g *Merge) drawOne() {
	l := &g.lanes[0]
	n := int(min(l.samples-l.drawn, blockSamples))
	if cap(g.next) < n {
		g.next = make([]int32, n, blockSamples)
	}
	g.next = g.next[:n] // all of lane 0
	if l.drawn += int64(n); l.drawn < l.samples {
		t, _ := g.time(0, l.cur, l.samples, l.drawn)
		g.waiting.set(0, t)
	} else {
		g.end(0)
	}
}

// end notes that all samples of a lane's window are in next.
func (g *Merge) end(v int) {
	g.ended = append(g.ended, int32(v))
	g.waiting.drop(v)
}

// drawEach takes samples from the tree, up to the end of a window or to where one begins.
func (g *Merge) drawEach() {
	defer func() { g.block.each += len(g.next) }()
	most := blockSamples
	if g.block.most > 0 {
		most = max(len(g.lanes), 16)
	}
	begin, least := &g.begins.tree.node[1], &g.waiting.node[1]
	for len(g.next) < most {
		v := least.lane
		if v < 0 || begin.key <= least.key && begin.lane >= 0 && (begin.key < least.key || g.begins.tree.at[begin.lane].tie(&g.waiting.at[v]) < 0) {
			return
		}
		l := &g.lanes[v]
		g.next = append(g.next, int32(v))
		if l.drawn++; l.drawn == l.samples {
			g.end(v)
			return
		}
		g.waiting.at[v].add(l.step, l.stepRem)
		g.waiting.fix(v)
	}
}

// drawBlock puts the samples of the next stretch of time in order; false where that is not worth the while.
func (g *Merge) drawBlock() bool {
	b := &g.block
	if b.most == 0 || b.each < len(g.lanes) {
		return false
	}
	b.each = 0
	from := g.waiting.node[1].key
	to := g.begins.tree.node[1].key // what is before it comes before that window; the greatest where none is left
	var rate float64                // samples per unit of the keys
	for v := range g.lanes {
		l := &g.lanes[v]
		if !l.open {
			continue
		}
		if l.samples > 1 {
			if l.step < 1<<24 {
				return false // of numbers beyond all practice, as those below
			}
			rate += 1 / float64(l.step)
		}
		if q := &g.waiting.at[v].q; q.hi != 0 || q.lo >= 1<<62 {
			return false
		}
		if len(l.ahead) > 0 { // published before it was needed
			f := g.p.begin(v, l.ahead[0].window)
			to = min(to, f.key)
		}
	}
	if to <= from {
		return false
	}
	span := to - from
	all := float64(span) * rate
	if all < float64(len(g.lanes)) {
		return false
	}
	if most := float64(max(b.most, len(g.lanes))); all > most {
		span = uint64(most / rate)
	}
	if span == 0 {
		return false
	}
	g.sort(g.fill(from, span))
	b.each = len(g.lanes)
	return true
}

// fill makes entries of the samples before time from+span, and counts them by bucket.
func (g *Merge) fill(from, span uint64) int {
	b := &g.block
	b.from = from
	b.laneBits = bits.Len(uint(len(g.lanes) - 1))
	b.shift = max(0, bits.Len64(span)+b.laneBits-64)
	if b.begin == nil {
		b.begin = make([]frac, len(g.lanes))
	}
	b.buckets = 2 << bits.Len(uint(max(b.most, len(g.lanes))-1))
	down := max(0, bits.Len64(span)+1-bits.Len(uint(b.buckets))) // span >> down < buckets
	b.down = max(0, down-b.shift)
	down = b.down + b.shift
	if len(b.bucket) < b.buckets+1 {
		b.bucket = make([]int32, b.buckets+1)
	}
	clear(b.bucket)
	var least, most wide // denominators
	n := 0
	for v := range g.lanes {
		l := &g.lanes[v]
		t := &g.waiting.at[v]
		if !l.open || l.drawn == l.samples || t.key-from >= span {
			continue
		}
		left := uint64(l.samples - l.drawn)
		if l.samples > 1 {
			left = min(left, (span-1-(t.key-from))/l.step+1)
		}
		if len(b.entry) < n+int(left) {
			b.entry = append(b.entry, make([]uint64, n+int(left)-len(b.entry)+blockSamples)...)
		}
		b.begin[v] = *t
		if least.lo == 0 || t.q.lo < least.lo {
			least = t.q
		}
		most.lo = max(most.lo, t.q.lo)
		// add, of numbers of one word, without branches.
		key, rem, q, step, stepRem := t.key-from, t.rem.lo, t.q.lo, l.step, l.stepRem.lo
		shift, laneBits, lane := uint(b.shift)&63, uint(b.laneBits)&63, uint64(v)
		entry := b.entry[n : n+int(left)]
		k := 0
		for k < len(entry) && key < span {
			entry[k] = key>>shift<<laneBits | lane
			b.bucket[key>>(uint(down)&63)+1]++
			k++
			rem += stepRem
			less := rem - q
			under := uint64(int64(less) >> 63) // all ones if the remainder is less than q
			rem -= q &^ under
			key += step + 1 + under
		}
		n += k
		if l.drawn += int64(k); l.drawn == l.samples {
			g.ended = append(g.ended, int32(v))
		} else {
			t.key, t.rem.lo = key+from, rem
		}
	}
	b.exact = least == most && b.tells(most) || b.tells(mul(most.lo, most.lo))
	return n
}

// crowded is how many entries of a bucket are put in order by insertion.
const crowded = 32

// sort puts the first n entries in order, into next, and the tree right.
func (g *Merge) sort(n int) {
	b := &g.block
	if len(b.sorted) < n {
		b.sorted = make([]uint64, len(b.entry))
	}
	most, sum := int32(0), int32(0)
	begin := b.bucket[:b.buckets+1]
	for i, k := range begin {
		most = max(most, k)
		sum += k
		begin[i] = sum
	}
	sorted, down := b.sorted[:n], uint(b.down+b.laneBits)&63
	for _, e := range b.entry[:n] {
		at := &begin[e>>down]
		sorted[*at] = e
		*at++ // where the next bucket begins, in the end
	}
	if most > crowded {
		for i, from := 0, int32(0); i < b.buckets; i++ {
			if to := begin[i]; to-from > crowded && !slices.IsSorted(sorted[from:to]) {
				slices.Sort(sorted[from:to])
			}
			from = begin[i]
		}
	}
	if cap(g.next) < n {
		g.next = make([]int32, 0, len(b.sorted))
	}
	bits := uint(b.laneBits) & 63
	if b.exact {
		bits = 0
	}
	for i := 1; i < len(sorted); i++ {
		e, last := sorted[i], sorted[i-1]
		if e>>bits > last>>bits || e>>bits == last>>bits && (b.exact || !g.before(e, last)) {
			continue
		}
		k := i
		for k > 0 && (e>>bits < sorted[k-1]>>bits || e>>bits == sorted[k-1]>>bits && !b.exact && g.before(e, sorted[k-1])) {
			sorted[k] = sorted[k-1]
			k--
		}
		sorted[k] = e
	}
	next, lane := g.next[:n], uint64(1)<<b.laneBits-1
	for i, e := range sorted {
		next[i] = int32(e & lane)
	}
	g.next = next
	g.waiting.build(func(v int) bool { l := &g.lanes[v]; return l.open && l.drawn < l.samples })
}

// tells says that entries tell times apart that differ by 1/d or more.
func (b *block) tells(d wide) bool { return d.hi == 0 && d.lo <= math.MaxUint64>>b.shift }

// before orders two entries whose times agree in all bits that entries have.
func (g *Merge) before(e, f uint64) bool {
	b := &g.block
	lane := uint64(1)<<b.laneBits - 1
	v, w := int(e&lane), int(f&lane)
	p, q := b.begin[v].q, b.begin[w].q
	if p == q && b.tells(q) || b.tells(mul(p.lo, q.lo)) { // times are multiples of 1/p and of 1/q
		return v < w
	}
	x, y := g.entryTime(e), g.entryTime(f)
	c := x.cmp(&y)
	return c < 0 || c == 0 && v < w
}

// entryTime is the time of an entry: as many steps after the lane's first as fit, for a step is longer than
// what the entry leaves out and all remainders together.
func (g *Merge) entryTime(e uint64) frac {
	b := &g.block
	v := int(e & (1<<b.laneBits - 1))
	l, t := &g.lanes[v], b.begin[v]
	if l.samples == 1 {
		return t
	}
	key := (e>>b.laneBits+1)<<b.shift - 1
	n := (key - (t.key - b.from)) / l.step
	rem := mul(n, l.stepRem.lo).add(t.rem)
	over, left := bits.Div64(rem.hi, rem.lo, t.q.lo)
	return frac{key: t.key + n*l.step + over, rem: wide{0, left}, q: t.q}
}
