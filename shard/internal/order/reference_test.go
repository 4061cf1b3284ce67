package order_test

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/penstock-data/penstock/shard/internal/order"
	"github.com/penstock-data/penstock/shard/internal/order/ordertest"
)

// one random case: a key, a shape, splits and a number of samples per window.
type sample struct {
	key   order.Key
	shape order.Shape
	units []int64
	m     func(lane int, window int64) int64
}

func draw(r *rand.Rand) sample {
	c := sample{key: order.Key{Seed: r.Uint64(), Epoch: r.Uint64N(3), Pass: r.Uint64N(3), Source: []string{"", "train", "é"}[r.IntN(3)]}}
	c.shape = order.Shape{Mode: order.Mode(r.IntN(3)), Lanes: 1, Window: 1 + r.Int64N(1+r.Int64N(40))}
	if c.shape.Mode == order.Window {
		c.shape.Lanes = 1 + r.IntN(1+r.IntN(20))
	}
	c.units = make([]int64, r.IntN(1+r.IntN(30)))
	kind := r.IntN(4)
	for i := range c.units {
		switch {
		case kind == 0: // equal, so that lanes tie
			c.units[i] = 8
		case kind == 1 && r.IntN(3) == 0: // some empty
		case kind == 2 && i == 0: // one huge beside tiny ones
			c.units[i] = 400
		case kind == 2:
			c.units[i] = r.Int64N(3)
		default:
			c.units[i] = r.Int64N(20)
		}
	}
	// How many samples: as many as units, a filter, a flat-map, all of it mixed, nothing.
	lanes := ordertest.Lay(c.key, c.shape, c.units)
	how := r.IntN(5)
	m := make([][]int64, len(lanes))
	for v := range lanes {
		for _, w := range lanes[v] {
			n := w.To - w.From
			switch k := how; {
			case k == 4:
				n = 0
			case k == 1 || k == 3 && r.IntN(2) == 0:
				n = r.Int64N(n + 1)
			case k == 2 || k == 3 && r.IntN(2) == 0:
				n *= r.Int64N(3)
			}
			if k := r.IntN(4); how != 0 && k == 0 {
				n = 0
			}
			m[v] = append(m[v], n)
		}
	}
	c.m = func(lane int, window int64) int64 { return m[lane][window] }
	return c
}

func newPass(t testing.TB, c sample) *order.Pass {
	t.Helper()
	p, err := order.NewPass(c.key, c.shape, c.units)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func runs(t *testing.T, n int, f func(t *testing.T, r *rand.Rand)) {
	t.Helper()
	if os.Getenv("PENSTOCK_SOAK") == "1" {
		n *= 50
	}
	base := rand.Uint64()
	for i := range n {
		seed := base + uint64(i)
		f(t, rand.New(rand.NewPCG(seed, 0)))
		if t.Failed() {
			t.Fatalf("seed %d", seed)
		}
	}
}

// Lanes, windows and segments are those of the reference, and production goes by begin.
func TestPassEqualsReference(t *testing.T) {
	runs(t, 3000, func(t *testing.T, r *rand.Rand) {
		c := draw(r)
		p, want := newPass(t, c), ordertest.Lay(c.key, c.shape, c.units)
		if p.Lanes() != len(want) {
			t.Fatalf("%d lanes, want %d", p.Lanes(), len(want))
		}
		var units int64
		type at struct {
			lane   int
			window int64
		}
		var production []at
		for v, lane := range want {
			if int(p.Windows(v)) != len(lane) {
				t.Fatalf("lane %d has %d windows, want %d", v, p.Windows(v), len(lane))
			}
			var n int64
			for w, x := range lane {
				from, to := p.Bounds(v, int64(w))
				if from != x.From || to != x.To {
					t.Fatalf("window %d of lane %d is [%d, %d), want [%d, %d)", w, v, from, to, x.From, x.To)
				}
				if got := p.Segments(v, int64(w), nil); !slices.Equal(got, x.Segments) {
					t.Fatalf("window %d of lane %d reads %v, want %v", w, v, got, x.Segments)
				}
				n = x.To
				production = append(production, at{v, int64(w)})
			}
			if units += n; p.Units(v) != n {
				t.Fatalf("lane %d has %d units, want %d", v, p.Units(v), n)
			}
			if s := p.Segments(v, int64(len(lane)), nil); len(s) > 0 {
				t.Fatalf("beyond the end: %v", s)
			}
		}
		if p.Len() != units {
			t.Fatalf("%d units, want %d", p.Len(), units)
		}
		slices.SortStableFunc(production, func(a, b at) int {
			return ordertest.Begin(want[a.lane], a.window).Cmp(ordertest.Begin(want[b.lane], b.window))
		})
		q := p.Production(nil)
		for _, x := range production {
			if lane, w, ok := q.Next(); !ok || lane != x.lane || w != x.window {
				t.Fatalf("produced (%d, %d), %v; want %v", lane, w, ok, x)
			}
		}
		if _, _, ok := q.Next(); ok {
			t.Fatal("windows beyond the end")
		}
	})
}

// The engine gives the reference's sequence, and so it does when it is stopped after
// any sample and made anew from its position, whether windows are published when they
// are asked for or earlier, and its positions are those of the reference.
func TestMergeEqualsReference(t *testing.T) {
	samples, restarts := 0, 0
	runs(t, 2000, func(t *testing.T, r *rand.Rand) {
		c := draw(r)
		p, lanes := newPass(t, c), ordertest.Lay(c.key, c.shape, c.units)
		want := ordertest.Sequence(lanes, c.m)
		stop := []float64{0, 0.02, 0.3, 1}[r.IntN(4)]
		ahead := r.IntN(2) * r.IntN(10)
		g := order.NewMerge(p, nil)
		published := make([]int64, p.Lanes())
		publish := func(lane int, w int64) {
			if err := g.Publish(lane, w, c.m(lane, w)); err != nil {
				t.Fatal(err)
			}
			published[lane] = w + 1
		}
		for n := 0; n <= len(want); n++ {
			wantPos := ordertest.Pos(lanes, want, n)
			if pos := g.Pos(nil); !slices.Equal(pos, wantPos) {
				t.Fatalf("after %d samples at %v, want %v", n, pos, wantPos)
			}
			if r.Float64() < stop {
				restarts++
				if err := p.CheckPos(wantPos); err != nil {
					t.Fatalf("after %d samples: %v", n, err)
				}
				g = order.NewMerge(p, wantPos)
				for v := range published {
					published[v] = wantPos[v].Window
				}
				if pos := g.Pos(nil); !slices.Equal(pos, wantPos) {
					t.Fatalf("restored from %v at %v", wantPos, pos)
				}
			}
			for lane, w, ok := g.Needs(); ok; lane, w, ok = g.Needs() {
				if from := ordertest.Begin(lanes[lane], w); w > wantPos[lane].Window && n < len(want) && from.Cmp(want[n].Time) >= 0 {
					t.Fatalf("window %d of lane %d is asked for before it is needed", w, lane)
				}
				publish(lane, w)
			}
			for range ahead {
				if v := r.IntN(p.Lanes()); published[v] < p.Windows(v) {
					publish(v, published[v])
				}
			}
			if pos := g.Pos(nil); !slices.Equal(pos, wantPos) {
				t.Fatalf("after publishing at %v, want %v", pos, wantPos)
			}
			some := g.Ahead(1 + r.Int64N(30))
			if len(some) == 0 != (n == len(want)) {
				t.Fatalf("%d samples after %d of %d", len(some), n, len(want))
			}
			for i, v := range some {
				if v != want[n+i].Lane {
					t.Fatalf("sample %d is of lane %d, want %v", n+i, v, want[n+i])
				}
			}
			if len(some) > 0 {
				k := 1 + r.IntN(len(some))
				given := g.Give(k)
				for _, x := range want[n : n+k] {
					i := slices.IndexFunc(given, func(o order.Given) bool { return o.Lane == x.Lane })
					if i < 0 || given[i].N == 0 || given[i].Window != x.Window || given[i].Index != x.Index {
						t.Fatalf("given %v from sample %d on, of which one is %v", given, n, x)
					}
					given[i].N--
					given[i].Index++
				}
				n += k - 1
				samples += k
			}
		}
	})
	if samples < 50_000 || restarts < 5_000 {
		t.Fatalf("only %d samples and %d restarts", samples, restarts)
	}
}

// Production from a position gives the windows from there on, current ones first.
func TestProductionFromPos(t *testing.T) {
	runs(t, 500, func(t *testing.T, r *rand.Rand) {
		c := draw(r)
		p, lanes := newPass(t, c), ordertest.Lay(c.key, c.shape, c.units)
		want := ordertest.Sequence(lanes, c.m)
		pos := ordertest.Pos(lanes, want, r.IntN(len(want)+1))
		all, some := p.Production(nil), p.Production(pos)
		for v, w, ok := all.Next(); ok; v, w, ok = all.Next() {
			if w < pos[v].Window {
				continue
			}
			if lane, window, ok := some.Next(); !ok || lane != v || window != w {
				t.Fatalf("from %v: (%d, %d), %v; want (%d, %d)", pos, lane, window, ok, v, w)
			}
		}
		if _, _, ok := some.Next(); ok {
			t.Fatal("windows beyond the end")
		}
	})
}

func TestPermEqualsReference(t *testing.T) {
	runs(t, 300, func(t *testing.T, r *rand.Rand) {
		k := draw(r).key
		p := make([]int32, r.IntN(100))
		check := func(key [32]byte, want []int) {
			order.Perm(key, p)
			for i := range p {
				if int(p[i]) != want[i] {
					t.Fatalf("%v, want %v", p, want)
				}
			}
		}
		check(k.Splits(), ordertest.Perm(k, "splits", "", "", len(p)))
		check(k.Rows(3, 1<<40), ordertest.Perm(k, "rows", "3", "1099511627776", len(p)))
	})
}

func TestMixEqualsReference(t *testing.T) {
	runs(t, 500, func(t *testing.T, r *rand.Rand) {
		s := order.Schedule{{}}
		sources := 1 + r.IntN(6)
		for at := int64(0); len(s) < 1+r.IntN(3); {
			at += 1 + r.Int64N(60)
			s = append(s, order.Stage{At: at})
		}
		for i := range s {
			s[i].Weights = make([]int64, sources)
			for j := range s[i].Weights {
				s[i].Weights[j] = r.Int64N(1 + r.Int64N(20))
			}
			s[i].Weights[r.IntN(sources)]++
		}
		want := ordertest.Mix(s, 250)
		m, err := order.NewMixer(s)
		if err != nil {
			t.Fatal(err)
		}
		for n, x := range want {
			if r.IntN(10) == 0 {
				m.SeekTo(r.Int64N(200))
				m.SeekTo(int64(n))
			}
			if got := m.Next(); got != x {
				t.Fatalf("%v: source %d for sample %d, want %d", s, got, n, x)
			}
		}
	})
}

func TestDealEqualsReference(t *testing.T) {
	runs(t, 3000, func(t *testing.T, r *rand.Rand) {
		g, ranks, v := 1+r.IntN(100), 1+r.IntN(1+r.IntN(100)), 1+r.IntN(100)
		d := order.NewDealer(v, ranks)
		for range 2 {
			lanes := make([]int32, g-r.IntN(2)*r.IntN(g))
			for i := range lanes {
				lanes[i] = int32(r.IntN(v))
			}
			want, shares := ordertest.Deal(lanes, ranks), order.Shares(len(lanes), ranks)
			got, cut := deal(d, lanes, r.IntN(len(lanes)+1)), make([]int, ranks)
			for i := range want {
				cut[i] = len(got[i])
				if !slices.Equal(got[i], want[i]) {
					t.Fatalf("lanes %v: rank %d of %d gets %v, want %v", lanes, i, ranks, got[i], want[i])
				}
			}
			if !slices.Equal(cut, shares) {
				t.Fatalf("shares of %v, want %v", cut, shares)
			}
		}
	})
}

// deal is what each rank gets of a step, dealt in two parts.
func deal(d *order.Dealer, lanes []int32, first int) map[int][]int32 {
	d.Begin(lanes)
	ranks := slices.Clone(d.Deal(lanes[:first], nil))
	ranks = append(ranks, d.Deal(lanes[first:], nil)...)
	got := map[int][]int32{}
	for i, r := range ranks {
		got[int(r)] = append(got[int(r)], int32(i))
	}
	return got
}
