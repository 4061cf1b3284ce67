// Package ordertest is the reference model of the order: docs/order.md written down
// literally, slow and with fractions of any size, so that it is obviously right. Tests
// compare package order, and the engine on top of it, with it. It shares no code with
// package order but its types.
package ordertest

import (
	"crypto/sha256"
	"fmt"
	"math/big"
	"math/rand/v2"
	"sort"
	"strings"

	"github.com/penstock-data/penstock/shard/internal/order"
)

// Window of a lane: it covers the units [From, To) of the lane, and these are of the
// splits in Segments.
type Window struct {
	From, To int64
	Segments []order.Segment
}

// Perm is the permutation of 0..n-1 by a key of the tuple; lane and window are empty
// where they are absent.
func Perm(k order.Key, purpose, lane, window string, n int) []int {
	key := sha256.Sum256([]byte(strings.Join([]string{"penstock/order/1", fmt.Sprint(k.Seed), fmt.Sprint(k.Epoch), fmt.Sprint(k.Pass),
		k.Source, purpose, lane, window}, "\x00")))
	r := rand.NewChaCha8(key)
	two64 := new(big.Int).Lsh(big.NewInt(1), 64)
	p := make([]int, n)
	for i := range p {
		p[i] = i
	}
	for i := n - 1; i > 0; i-- {
		bound := big.NewInt(int64(i) + 1)
		reject := new(big.Int).Mod(two64, bound)
		for {
			x := new(big.Int).Mul(new(big.Int).SetUint64(r.Uint64()), bound)
			high, low := new(big.Int).DivMod(x, two64, new(big.Int))
			if low.Cmp(reject) >= 0 {
				j := high.Int64()
				p[i], p[j] = p[j], p[i]
				break
			}
		}
	}
	return p
}

// Lay deals splits of these units to lanes and cuts the lanes into windows.
func Lay(k order.Key, s order.Shape, units []int64) [][]Window {
	turn := make([]int, len(units))
	for i := range turn {
		turn[i] = i
	}
	if s.Mode != order.None {
		turn = Perm(k, "splits", "", "", len(units))
	}
	has := make([]int64, s.Lanes)
	splits := make([][]int, s.Lanes)
	for _, split := range turn {
		least := 0
		for v := range has {
			if has[v] < has[least] {
				least = v
			}
		}
		has[least] += units[split]
		splits[least] = append(splits[least], split)
	}
	lanes := make([][]Window, s.Lanes)
	for v := range lanes {
		size := (s.Window*int64(v+1) + int64(s.Lanes) - 1) / int64(s.Lanes)
		for from := int64(0); from < has[v]; {
			w := Window{From: from, To: min(from+size, has[v])}
			begin := int64(0) // of the split in the lane
			for _, split := range splits[v] {
				a, b := max(w.From, begin), min(w.To, begin+units[split])
				if a < b {
					w.Segments = append(w.Segments, order.Segment{Split: split, From: a - begin, To: b - begin})
				}
				begin += units[split]
			}
			lanes[v] = append(lanes[v], w)
			from, size = w.To, s.Window
		}
	}
	return lanes
}

// Sample names one sample of a pass: the Index-th, from 0, of a window.
type Sample struct {
	Lane          int32
	Window, Index int64
}

// Timed is a sample at its time.
type Timed struct {
	Sample
	Time *big.Rat
}

// Begin is the time at which a window of a lane begins.
func Begin(lane []Window, w int64) *big.Rat {
	return big.NewRat(lane[w].From, lane[len(lane)-1].To)
}

// Sequence is the pass: all samples by (time, lane), where window w of lane v has m(v, w) of them.
func Sequence(lanes [][]Window, m func(lane int, window int64) int64) []Timed {
	var all []Timed
	for v, lane := range lanes {
		for w, x := range lane {
			a := Begin(lane, int64(w))
			size := new(big.Rat).Sub(big.NewRat(x.To, lane[len(lane)-1].To), a)
			n := m(v, int64(w))
			for i := range n {
				t := new(big.Rat).Mul(size, big.NewRat(2*i+1, 2*n))
				all = append(all, Timed{Sample{Lane: int32(v), Window: int64(w), Index: i}, t.Add(t, a)})
			}
		}
	}
	sort.SliceStable(all, func(i, j int) bool { // stable: they are in order of lanes
		return all[i].Time.Cmp(all[j].Time) < 0
	})
	return all
}

// Pos is the position after the first n samples of a sequence.
func Pos(lanes [][]Window, all []Timed, n int) []order.Pos {
	pos := make([]order.Pos, len(lanes))
	if n == 0 {
		return pos
	}
	for v, lane := range lanes {
		for w := range lane {
			if Begin(lane, int64(w)).Cmp(all[n-1].Time) < 0 {
				pos[v].Window = int64(w)
			}
		}
	}
	for _, s := range all[:n] {
		if s.Window == pos[s.Lane].Window {
			pos[s.Lane].Given++
		}
	}
	return pos
}

// Mix is the sources of the first n samples of an epoch.
func Mix(s order.Schedule, n int64) []int {
	var out []int
	for len(out) < int(n) {
		stage := s[0]
		for _, x := range s {
			if x.At <= int64(len(out)) {
				stage = x
			}
		}
		q := int64(0)
		for _, w := range stage.Weights {
			q += w
		}
		block := out[int64(len(out))-(int64(len(out))-stage.At)%q:]
		best, least := -1, (*big.Rat)(nil)
		for source, w := range stage.Weights {
			c := int64(0)
			for _, x := range block {
				if x == source {
					c++
				}
			}
			if w > 0 && c*q < w*int64(len(block)+1) {
				if due := big.NewRat((c+1)*q, w); best < 0 || due.Cmp(least) < 0 {
					best, least = source, due
				}
			}
		}
		out = append(out, best)
	}
	return out
}

// Deal is the lists of the ranks, of the samples of a step in these lanes.
func Deal(lanes []int32, ranks int) [][]int32 {
	out := make([][]int32, ranks)
	full := func(r int) bool { return len(out[r]) >= (len(lanes)+ranks-1-r)/ranks }
	var rest []int32
	for i, v := range lanes {
		if r := int(v) % ranks; !full(r) {
			out[r] = append(out[r], int32(i))
		} else {
			rest = append(rest, int32(i))
		}
	}
	for r := range out {
		for !full(r) {
			out[r], rest = append(out[r], rest[0]), rest[1:]
		}
		sort.Slice(out[r], func(i, j int) bool { return out[r][i] < out[r][j] })
	}
	return out
}
