package order

import (
	"sort"

	"github.com/penstock-data/penstock/internal/fault"
)

const maxBlock = 1 << 20 // sum of the weights of a stage

// Stage gives weights to the sources from sample At of the epoch on.
type Stage struct {
	At      int64
	Weights []int64 // one per source; 0: none of its samples
}

// Schedule is the weights of an epoch: stages in ascending order of At, the first at 0.
type Schedule []Stage

// Mixer says which source gives sample n. For one goroutine.
type Mixer struct {
	stages Schedule
	block  [][]int32 // per stage, made when the stage is first reached
	stage  int
	n      int64 // next sample
	at     int   // its place in the stage's block
}

// NewMixer checks a schedule and starts at sample 0. The schedule must not be changed
// afterwards. Errors are fault.Invalid.
func NewMixer(s Schedule) (*Mixer, error) {
	if len(s) == 0 || s[0].At != 0 {
		return nil, fault.New(fault.Invalid, "the weights must begin at sample 0")
	}
	for i, stage := range s {
		if len(stage.Weights) != len(s[0].Weights) {
			return nil, fault.New(fault.Invalid, "the weights from sample %d on are for %d sources, there are %d", stage.At, len(stage.Weights), len(s[0].Weights))
		}
		if i > 0 && stage.At <= s[i-1].At {
			return nil, fault.New(fault.Invalid, "weights from sample %d on follow those from sample %d on: put them in ascending order", stage.At, s[i-1].At)
		}
		q := int64(0)
		for source, w := range stage.Weights {
			if w < 0 || w > maxBlock-q {
				return nil, fault.New(fault.Invalid, "the weight %d of source %d: weights must be 0 or more, and at most %d in all; divide them by a common factor", w, source, maxBlock)
			}
			q += w
		}
		if q == 0 {
			return nil, fault.New(fault.Invalid, "the weights from sample %d on are all 0: at least one source needs a weight", stage.At)
		}
	}
	m := &Mixer{stages: s, block: make([][]int32, len(s))}
	m.SeekTo(0)
	return m, nil
}

// SeekTo makes n >= 0 the next sample.
func (m *Mixer) SeekTo(n int64) {
	m.stage = sort.Search(len(m.stages), func(i int) bool { return m.stages[i].At > n }) - 1
	if m.block[m.stage] == nil {
		m.block[m.stage] = pattern(m.stages[m.stage].Weights)
	}
	m.n = n
	m.at = int((n - m.stages[m.stage].At) % int64(len(m.block[m.stage])))
}

// Next returns the source of the next sample and goes on to the one after it.
func (m *Mixer) Next() int {
	if m.stage+1 < len(m.stages) && m.n == m.stages[m.stage+1].At {
		m.SeekTo(m.n)
	}
	b := m.block[m.stage]
	source := b[m.at]
	m.n++
	if m.at++; m.at == len(b) {
		m.at = 0
	}
	return int(source)
}

// pattern is one block of samples by the rule: q the sum of the weights, c the
// samples that a source has in the block, the source of the n-th (from 1) is, of
// those with c*q < w*n, the one of least (c+1)*q/w, ties to the first.
//
// The weights are first divided by their greatest common divisor g, which leaves the
// rule as it is and makes the block one g-th as long. That is the same sequence:
// where n is a multiple of q/g every w*n/q is an integer, no source can have passed
// it, and their sum is n, so each has exactly that many: the rule starts anew there.
//
// A source enters at its first n, waits in a heap for its turn, and enters again: log
// of the number of sources per sample.
func pattern(weights []int64) []int32 {
	var g, q int64
	for _, w := range weights {
		g = int64(gcd(uint64(g), uint64(w)))
		q += w
	}
	q /= g
	block := make([]int32, q)
	enter := make([]int32, q) // sources that enter at n: a list through next, 0 for none, else source+1
	next := make([]int32, len(weights))
	h := turns{w: make([]int64, len(weights)), c: make([]int64, len(weights))}
	for s, w := range weights {
		h.w[s] = w / g
		if w > 0 {
			enter[0], next[s] = int32(s)+1, enter[0]
		}
	}
	for n := range q {
		for e := enter[n]; e > 0; e = next[e-1] {
			h.push(e - 1)
		}
		s := h.pop()
		block[n] = s
		h.c[s]++
		if at := h.c[s] * q / h.w[s]; at < q { // the least n' = at+1, from 1, with c*q < w*n'
			enter[at], next[s] = s+1, enter[at]
		}
	}
	return block
}

// turns is a heap of sources by ((c+1)/w, source).
type turns struct {
	w, c []int64
	heap []int32
}

func (h *turns) less(a, b int32) bool {
	x, y := (h.c[a]+1)*h.w[b], (h.c[b]+1)*h.w[a] // below 2^41
	return x < y || x == y && a < b
}

func (h *turns) push(s int32) {
	h.heap = append(h.heap, s)
	i := len(h.heap) - 1
	for i > 0 && h.less(s, h.heap[(i-1)/2]) {
		h.heap[i] = h.heap[(i-1)/2]
		i = (i - 1) / 2
	}
	h.heap[i] = s
}

// pop takes the least; there is always one, or the weights could not all be kept.
func (h *turns) pop() int32 {
	top, n := h.heap[0], len(h.heap)-1
	x, i := h.heap[n], 0
	h.heap = h.heap[:n]
	for 2*i+1 < n {
		c := 2*i + 1
		if c+1 < n && h.less(h.heap[c+1], h.heap[c]) {
			c++
		}
		if !h.less(h.heap[c], x) {
			break
		}
		h.heap[i], i = h.heap[c], c
	}
	if n > 0 {
		h.heap[i] = x
	}
	return top
}
