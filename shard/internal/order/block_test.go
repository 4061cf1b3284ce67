package order

import (
	"math/rand/v2"
	"slices"
	"testing"
)

// Blocks give what the tree gives, sample by sample: lanes that tie all the time, sometimes, nearly and never, windows that
// lose and gain samples, lanes of very different density, few bits to tell times apart.
func TestBlockEqualsTree(t *testing.T) {
	base := rand.Uint64()
	inBlocks, ties, exact := 0, 0, 0
	for i := range 150 {
		seed := base + uint64(i)
		r := rand.New(rand.NewPCG(seed, 0))
		s := Shape{Mode: Window, Lanes: 2 + r.IntN(1+r.IntN(100)), Window: 1 + r.Int64N(1+r.Int64N(4000))}
		units := make([]int64, s.Lanes*(1+r.IntN(6)))
		kind := r.IntN(6)
		size := 1 + r.Int64N(3000)
		for k := range units {
			switch kind {
			case 0: // of equal splits: lanes tie, or as 3 to 5 do
				units[k] = size
			case 1: // nearly equal
				units[k] = size + r.Int64N(3)
			case 2: // denominators of which no product fits 64 bits
				units[k] = 1<<40 + r.Int64N(1<<20)
			case 5: // times that differ in less than a key shows
				units[k] = 1<<50 + r.Int64N(4)
			case 3:
				units[k] = r.Int64N(size + 1)
			default:
				units[k] = r.Int64N(1 << r.IntN(16))
			}
		}
		if kind == 0 && r.IntN(2) == 0 {
			units = units[:max(s.Lanes*3/2, 1)%len(units)+1]
		}
		if kind == 5 {
			s.Window, units = int64(s.Lanes)<<34, units[:s.Lanes]
		}
		if kind == 2 {
			s.Window = 1<<36 + r.Int64N(1<<40)
		}
		p, err := NewPass(Key{Seed: seed}, s, units)
		if err != nil {
			t.Fatal(err)
		}
		how, ratio := r.IntN(4), 1+r.Int64N(7)
		m := func(lane int, w int64) int64 {
			from, to := p.Bounds(lane, w)
			x := rand.New(rand.NewPCG(seed, uint64(lane)<<32+uint64(w)))
			n := to - from
			switch kind {
			case 2:
				n = min(n, 3000)
			case 5:
				return 999 * int64(lane+1)
			}
			switch how {
			case 1:
				n = x.Int64N(n + 1)
			case 2:
				n /= ratio // denominators alike
			case 3:
				if x.IntN(4) == 0 {
					n *= x.Int64N(30)
				}
			}
			return n
		}
		fast, slow := NewMerge(p, nil), NewMerge(p, nil)
		slow.block.most = 0
		if r.IntN(2) == 0 {
			fast.block.most = 1 + r.IntN(300)
		}
		next := func(g *Merge, most int64) []int32 {
			for v, w, ok := g.Needs(); ok; v, w, ok = g.Needs() {
				if err := g.Publish(v, w, m(v, w)); err != nil {
					t.Fatalf("seed %d: %v", seed, err)
				}
			}
			return g.Ahead(most)
		}
		for n := 0; n < 30_000; {
			a := next(fast, 1+r.Int64N(3000))
			if fast.block.each == len(fast.lanes) && len(a) > 0 {
				inBlocks += len(a)
				if fast.block.exact {
					exact++
				} else {
					ties++
				}
			}
			for at := 0; ; {
				b := next(slow, max(int64(len(a)-at), 1))
				if len(b) == 0 && len(a) > 0 || len(a) == 0 && len(b) > 0 || !slices.Equal(a[at:at+len(b)], b) {
					t.Fatalf("seed %d: from sample %d on %v, want %v", seed, n+at, a[at:], b)
				}
				if len(b) > 0 {
					slow.Give(len(b))
				}
				if at += len(b); at == len(a) {
					break
				}
			}
			if len(a) == 0 {
				break
			}
			fast.Give(len(a))
			if x, y := fast.Pos(nil), slow.Pos(nil); !slices.Equal(x, y) {
				t.Fatalf("seed %d: at %v, want %v", seed, x, y)
			}
			n += len(a)
		}
	}
	if inBlocks < 500_000 || exact < 1000 || ties < 1000 {
		t.Errorf("only %d samples in blocks; %d blocks whose times are told apart, %d others", inBlocks, exact, ties)
	}
}
