package order_test

import (
	"flag"
	"fmt"
	"math"
	"math/big"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard/internal/order"
	"github.com/penstock-data/penstock/shard/internal/order/ordertest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var update = flag.Bool("update", false, "write the golden file anew: only together with a new order version")

// What order version 1 gives. The file must never change while Version is 1.
func TestGolden(t *testing.T) {
	const file = "testdata/version1.txt"
	var b strings.Builder
	k := order.Key{Seed: 7, Epoch: 2, Pass: 1, Source: "train"}
	fmt.Fprintf(&b, "splits %x\nrows %x\nplain %x\n", k.Splits(), k.Rows(3, 120), order.Key{}.Splits())
	for _, n := range []int{1, 2, 3, 10, 100} {
		p := make([]int32, n)
		order.Perm(k.Rows(0, int64(n)), p)
		fmt.Fprintf(&b, "perm %d %v\n", n, p)
	}
	p := make([]int32, 1<<16)
	order.Perm(k.Rows(1, 0), p)
	sum := uint64(0)
	for i, x := range p {
		sum = sum*31 + uint64(x)*uint64(i+1)
	}
	fmt.Fprintf(&b, "perm 65536 begins %v sum %x\n", p[:8], sum)
	units := []int64{30, 0, 7, 50, 12, 1, 25, 9, 16, 40}
	for _, s := range []order.Shape{{Mode: order.None, Lanes: 1, Window: 64}, {Mode: order.Blocks, Lanes: 1, Window: 64}, {Mode: order.Window, Lanes: 4, Window: 16}} {
		p, err := order.NewPass(k, s, units)
		if err != nil {
			t.Fatal(err)
		}
		fmt.Fprintf(&b, "shape %+v\n", s)
		q := p.Production(nil)
		for v, w, ok := q.Next(); ok; v, w, ok = q.Next() {
			fmt.Fprintf(&b, "  window %d/%d %v\n", v, w, p.Segments(v, w, nil))
		}
		g := order.NewMerge(p, nil)
		fmt.Fprint(&b, "  samples")
		for n := int64(0); ; n++ {
			ok, err := run(g, 1, func(lane int, window int64) int64 { return (int64(lane)*5 + window*3) % 7 })
			if err != nil {
				t.Fatal(err)
			}
			if ok == 0 {
				break
			}
			pos := g.Pos(nil)
			if n%5 == 0 {
				fmt.Fprintf(&b, "\n   ")
			}
			fmt.Fprintf(&b, " %v", pos)
		}
		fmt.Fprintln(&b)
	}
	m, err := order.NewMixer(order.Schedule{{0, []int64{5, 3, 1}}, {25, []int64{0, 2, 4}}})
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(&b, "mix")
	for range 50 {
		fmt.Fprintf(&b, " %d", m.Next())
	}
	lanes := []int32{0, 1, 5, 1, 1, 4, 2, 0, 0, 3, 3}
	dealt := deal(order.NewDealer(6, 3), lanes, 0)
	fmt.Fprintf(&b, "\ndeal %v\n", [][]int32{dealt[0], dealt[1], dealt[2]})
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got := b.String(); got != string(want) {
		t.Errorf("the order changed: a state of version %d would continue with other samples. Got:\n%s", order.Version, got)
	}
}

// The keys by another program: printf 'penstock/order/1\000...' | sha256sum.
func TestKeyTuple(t *testing.T) {
	k := order.Key{Seed: math.MaxUint64, Epoch: 10, Pass: 3, Source: "a b"}
	for name, x := range map[string]struct {
		got  [32]byte
		want string
	}{
		"splits": {k.Splits(), "f618b5efde0d1f3ff634d9e1392acfbacf7f56d9d6df88ed5bc3f5bf3388cbf2"},
		"rows":   {k.Rows(12, 345), "c25df30be568b7a206860efe4d2219c096f78f90db97c5f1b87893c1d51608f3"},
	} {
		if got := fmt.Sprintf("%x", x.got); got != x.want {
			t.Errorf("%s: %s, want %s", name, got, x.want)
		}
	}
}

// Every permutation of four comes up as often as it should: 24 cells, chi squared.
func TestPermUniform(t *testing.T) {
	count := map[[4]int32]int{}
	const n = 24_000
	for i := range n {
		var p [4]int32
		order.Perm(order.Key{Seed: 1}.Rows(0, int64(i)), p[:])
		count[p]++
	}
	chi := 0.0
	for _, c := range count {
		chi += float64((c-1000)*(c-1000)) / 1000
	}
	if len(count) != 24 || chi > 60 { // 23 degrees of freedom: above 60 has probability 4e-5; the seed is fixed
		t.Fatalf("%d permutations, chi squared %f", len(count), chi)
	}
}

// Fractions at the limits of their range: the merge of two lanes with as many units and
// samples as there can be is that of exact rationals.
func TestMergeHugeNumbers(t *testing.T) {
	runs(t, 300, func(t *testing.T, r *rand.Rand) {
		wide := func() int64 { return 1 + r.Int64N(1<<(1+r.IntN(60))) }
		units := make([]int64, 3)
		for i := range units {
			units[i] = wide()
		}
		if r.IntN(3) == 0 {
			units[1] = units[0]
		}
		s := order.Shape{Mode: order.Window, Lanes: 3, Window: 1 + units[0]/(1+r.Int64N(4))}
		p, err := order.NewPass(order.Key{Seed: r.Uint64()}, s, units)
		if err != nil {
			t.Fatal(err)
		}
		g := order.NewMerge(p, nil)
		m := map[[2]int64]int64{}
		last, lane := new(big.Rat), -1
		for range 2000 {
			for v, w, ok := g.Needs(); ok; v, w, ok = g.Needs() {
				n := wide()
				if from, to := p.Bounds(v, w); r.IntN(3) == 0 {
					n = to - from
				}
				m[[2]int64{int64(v), w}] = n
				if err := g.Publish(v, w, n); err != nil {
					t.Fatal(err)
				}
			}
			some := g.Ahead(1)
			if len(some) == 0 {
				break
			}
			x := g.Give(1)[0]
			from, to := p.Bounds(int(x.Lane), x.Window)
			n, all := big.NewInt(m[[2]int64{int64(x.Lane), x.Window}]), big.NewInt(p.Units(int(x.Lane)))
			at := new(big.Rat).SetFrac(big.NewInt(2*x.Index+1), new(big.Int).Mul(n, big.NewInt(2)))
			at.Mul(at, new(big.Rat).SetFrac(big.NewInt(to-from), all)).Add(at, new(big.Rat).SetFrac(big.NewInt(from), all))
			if c := at.Cmp(last); c < 0 || c == 0 && int(x.Lane) <= lane {
				t.Fatalf("%+v at %v after lane %d at %v", x, at, lane, last)
			}
			last, lane = at, int(x.Lane)
		}
	})
}

// Positions that no run can have been in are refused: every change of one number of a
// valid position is, by CheckPos or when the windows are known, unless it is a
// position of the same sequence.
func TestEditedPos(t *testing.T) {
	refused := 0
	runs(t, 400, func(t *testing.T, r *rand.Rand) {
		c := draw(r)
		p, lanes := newPass(t, c), ordertest.Lay(c.key, c.shape, c.units)
		want := ordertest.Sequence(lanes, c.m)
		valid := map[string]bool{}
		for n := range len(want) + 1 {
			valid[fmt.Sprint(ordertest.Pos(lanes, want, n))] = true
		}
		pos := ordertest.Pos(lanes, want, r.IntN(len(want)+1))
		if x := &pos[r.IntN(len(pos))]; r.IntN(2) == 0 {
			x.Window += r.Int64N(5) - 2
		} else {
			x.Given += r.Int64N(5) - 2
		}
		err := p.CheckPos(pos)
		if err == nil {
			g := order.NewMerge(p, pos)
			for v, w, ok := g.Needs(); ok && err == nil; v, w, ok = g.Needs() {
				err = g.Publish(v, w, c.m(v, w))
			}
		}
		if (err == nil) != valid[fmt.Sprint(pos)] {
			t.Fatalf("position %v: valid is %v, but %v", pos, valid[fmt.Sprint(pos)], err)
		}
		if err != nil {
			refused++
			if fault.CodeOf(err) != fault.Invalid {
				t.Fatal(err)
			}
		}
	})
	if refused < 100 {
		t.Fatalf("only %d positions were refused", refused)
	}
}

func TestBadInput(t *testing.T) {
	one := order.Shape{Mode: order.Window, Lanes: 1, Window: 1}
	for _, c := range []struct {
		shape order.Shape
		units []int64
		text  string
	}{
		{order.Shape{Mode: 3, Lanes: 1, Window: 1}, nil, "mode 3"},
		{order.Shape{Mode: order.Window, Window: 1}, nil, "lanes is 0"},
		{order.Shape{Mode: order.Blocks, Lanes: 2, Window: 1}, nil, "one lane"},
		{order.Shape{Mode: order.Window, Lanes: 1 << 21, Window: 1}, nil, "lanes is"},
		{order.Shape{Mode: order.Window, Lanes: 2}, nil, "window of 0"},
		{one, []int64{1, -1}, "split 1 has -1"},
		{one, []int64{math.MaxInt64, math.MaxInt64}, "in all"},
		{one, []int64{1 << 62, 1}, "in all"},
	} {
		if _, err := order.NewPass(order.Key{}, c.shape, c.units); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.text) {
			t.Errorf("%+v %v: %v", c.shape, c.units, err)
		}
	}
	for text, s := range map[string]order.Schedule{
		"begin at sample 0":      nil,
		"begin at sample 0 ":     {{1, []int64{1}}},
		"all 0":                  {{0, []int64{0, 0}}},
		"ascending":              {{0, []int64{1}}, {5, []int64{1}}, {5, []int64{2}}},
		"for 1 sources":          {{0, []int64{1, 2}}, {5, []int64{1}}},
		"the weight -1":          {{0, []int64{1, -1}}},
		"at most 1048576 in all": {{0, []int64{1 << 19, 1<<19 + 1}}},
	} {
		if _, err := order.NewMixer(s); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), strings.TrimSpace(text)) {
			t.Errorf("%v: %v", s, err)
		}
	}

	p, err := order.NewPass(order.Key{}, order.Shape{Mode: order.Window, Lanes: 2, Window: 4}, []int64{10, 10})
	if err != nil {
		t.Fatal(err)
	}
	g := order.NewMerge(p, nil)
	for _, x := range [][3]int64{{0, 1, 1}, {2, 0, 1}, {-1, 0, 1}, {0, 0, -1}, {0, 3, 1}} {
		if err := g.Publish(int(x[0]), x[1], x[2]); fault.CodeOf(err) != fault.Internal {
			t.Errorf("publish %v: %v", x, err)
		}
	}
	defer func() {
		if err, _ := recover().(error); fault.CodeOf(err) != fault.Internal {
			t.Errorf("Ahead before Publish: %v", err)
		}
	}()
	g.Ahead(1)
}

// The windows of 2^62 units in windows of one are all there without being counted.
func TestManyWindows(t *testing.T) {
	p, err := order.NewPass(order.Key{}, order.Shape{Mode: order.Window, Lanes: 2, Window: 1}, []int64{1 << 61, 1 << 61})
	if err != nil {
		t.Fatal(err)
	}
	if n := p.Windows(1); n != 1<<61 {
		t.Fatalf("%d windows", n)
	}
	s := p.Segments(1, 1<<61-1, nil)
	if len(s) != 1 || s[0].From != 1<<61-1 || s[0].To != 1<<61 {
		t.Fatal(s)
	}
	p, err = order.NewPass(order.Key{}, order.Shape{Mode: order.Window, Lanes: 1024, Window: 1 << 62}, []int64{1 << 62})
	if err != nil {
		t.Fatal(err)
	}
	if from, to := p.Bounds(0, 0); from != 0 || to != 1<<52 {
		t.Fatalf("[%d, %d)", from, to)
	}
}

// At any prefix every source is within one sample of its weight.
func TestMixWithinOne(t *testing.T) {
	runs(t, 200, func(t *testing.T, r *rand.Rand) {
		w := make([]int64, 1+r.IntN(8))
		q := int64(0)
		for i := range w {
			w[i] = 1 + r.Int64N(1<<r.IntN(14))
			q += w[i]
		}
		m, err := order.NewMixer(order.Schedule{{0, w}})
		if err != nil {
			t.Fatal(err)
		}
		c := make([]int64, len(w))
		for n := int64(1); n <= 2*q+5; n++ {
			c[m.Next()]++
			for i := range c {
				if d := c[i]*q - w[i]*n; d >= q || d <= -q {
					t.Fatalf("weights %v: source %d has %d of %d samples", w, i, c[i], n)
				}
			}
		}
	})
}

// Rank correlation of epochs, for equal splits: below the bound. And the sum for one
// huge split, by hand.
func TestCorrelationBound(t *testing.T) {
	const splits, rows = 256, 100
	units := slices.Repeat([]int64{rows}, splits)
	sequence := func(epoch uint64) []float64 { // the place in the epoch, by row
		k := order.Key{Seed: 3, Epoch: epoch}
		p, err := order.NewPass(k, order.Shape{Mode: order.Window, Lanes: 64, Window: 64}, units)
		if err != nil {
			t.Fatal(err)
		}
		at := make([]float64, splits*rows)
		g := order.NewMerge(p, nil)
		rowsOf := func(lane int, w int64) (rows []int) {
			for _, s := range p.Segments(lane, w, nil) {
				for u := s.From; u < s.To; u++ {
					rows = append(rows, s.Split*100+int(u))
				}
			}
			perm := make([]int32, len(rows))
			order.Perm(k.Rows(lane, w), perm)
			out := make([]int, len(rows))
			for i, j := range perm {
				out[i] = rows[j]
			}
			return out
		}
		windows := map[[2]int64][]int{}
		for n := range at {
			for v, w, ok := g.Needs(); ok; v, w, ok = g.Needs() {
				x := rowsOf(v, w)
				windows[[2]int64{int64(v), w}] = x
				if err := g.Publish(v, w, int64(len(x))); err != nil {
					t.Fatal(err)
				}
			}
			g.Ahead(1)
			s := g.Give(1)[0]
			at[windows[[2]int64{int64(s.Lane), s.Window}][s.Index]] = float64(n)
		}
		return at
	}
	var all [][]float64
	for epoch := range 6 {
		all = append(all, sequence(uint64(epoch)))
	}
	bound := order.CorrelationBound(units, 64) // splits as long as a quarter of a lane
	limit := 3 / math.Sqrt(splits)
	if math.Abs(bound-limit-1.0/16) > 1e-9 {
		t.Errorf("bound %f, want %f", bound, limit+1.0/16)
	}
	for i := range all {
		for j := range i {
			if c := correlation(all[i], all[j]); math.Abs(c) >= limit {
				t.Errorf("epochs %d and %d correlate by %f, limit %f", i, j, c, limit)
			}
		}
	}
	if got := order.CorrelationBound([]int64{80, 0, 10, 10}, 2); math.Abs(got-(3/math.Sqrt(3)+0.8+0.2*0.04)) > 1e-9 {
		t.Errorf("bound %f", got)
	}
	if got := order.CorrelationBound([]int64{0}, 2); got != 0 {
		t.Errorf("bound %f of nothing", got)
	}
}

func correlation(a, b []float64) float64 {
	mean := float64(len(a)-1) / 2
	var ab, aa float64
	for i := range a {
		ab += (a[i] - mean) * (b[i] - mean)
		aa += (a[i] - mean) * (a[i] - mean)
	}
	return ab / aa
}

// What Expect says against what a pass does.
func TestExpect(t *testing.T) {
	for _, s := range []order.Shape{{Mode: order.Window, Lanes: 8, Window: 32}, {Mode: order.Window, Lanes: 8, Window: 256}, {Mode: order.Window, Lanes: 1, Window: 1 << 30}, {Mode: order.Window, Lanes: 64, Window: 50}} {
		units := slices.Repeat([]int64{100}, 40)
		q := order.Expect(units, s)
		p, err := order.NewPass(order.Key{}, s, units)
		if err != nil {
			t.Fatal(err)
		}
		touched, windows := 0, 0
		for v := range p.Lanes() {
			for w := range p.Windows(v) {
				if from, to := p.Bounds(v, w); to-from == min(s.Window, p.Units(v)) {
					touched += len(p.Segments(v, w, nil))
					windows++
				}
			}
		}
		got := float64(touched) / float64(windows)
		if q.SplitsPerWindow < 0.8*got || q.SplitsPerWindow > 1.25*got {
			t.Errorf("%+v: %f splits per window expected, %f found", s, q.SplitsPerWindow, got)
		}
		if want := min(s.Window*int64(min(s.Lanes, 40)), 4000); q.ResidentUnits != want {
			t.Errorf("%+v: %d units resident, want %d", s, q.ResidentUnits, want)
		}
	}
	if q := order.Expect(nil, order.Shape{Lanes: 4, Window: 10}); q != (order.Quality{}) {
		t.Errorf("of nothing: %+v", q)
	}
}

// The hot paths take no memory.
func TestNoAllocations(t *testing.T) {
	p, g := benchPass(t, 1)
	pos := make([]order.Pos, 0, p.Lanes())
	lanes, out := make([]int32, 256), make([]int32, 256)
	dealer := order.NewDealer(1, 8)
	for name, f := range map[string]func(){
		"Give": func() {
			if _, err := run(g, 1000, full(p)); err != nil {
				t.Fatal(err)
			}
		},
		"Pos": func() { pos = g.Pos(pos[:0]) },
		"Deal": func() {
			dealer.Begin(lanes)
			out = dealer.Deal(lanes, out)
		},
	} {
		if n := testing.AllocsPerRun(10, f); n != 0 {
			t.Errorf("%s allocates %f times", name, n)
		}
	}
}

// benchPass has 64 lanes and 1024 splits, equal (spread 1) or of random size.
func benchPass(t testing.TB, spread int64) (*order.Pass, *order.Merge) {
	r := rand.New(rand.NewPCG(1, 2))
	units := make([]int64, 1024)
	for i := range units {
		units[i] = 1<<20 + r.Int64N(spread)
	}
	p, err := order.NewPass(order.Key{Seed: 1}, order.Shape{Mode: order.Window, Lanes: 64, Window: 16384}, units)
	if err != nil {
		t.Fatal(err)
	}
	return p, order.NewMerge(p, nil)
}

func full(p *order.Pass) func(lane int, w int64) int64 {
	return func(lane int, w int64) int64 {
		from, to := p.Bounds(lane, w)
		return to - from
	}
}

func BenchmarkMerge(b *testing.B) {
	for _, c := range []struct {
		name   string
		spread int64
		m      func(p *order.Pass) func(lane int, w int64) int64
	}{
		{"equal", 1, full},
		{"unequal", 1 << 20, full},
		{"filtered", 1 << 20, func(p *order.Pass) func(lane int, w int64) int64 {
			return func(lane int, w int64) int64 { return 5000 + (int64(lane)*977+w*131)%9000 }
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			p, g := benchPass(b, c.spread)
			m := c.m(p)
			b.ReportAllocs()
			for b.Loop() {
				n, err := run(g, 256, m)
				if err != nil {
					b.Fatal(err)
				}
				if n < 256 {
					g = order.NewMerge(p, nil)
				}
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/256, "ns/sample")
		})
	}
}

func BenchmarkPos(b *testing.B) {
	p, g := benchPass(b, 1<<20)
	var pos []order.Pos
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		if _, err := run(g, 256, full(p)); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
		pos = g.Pos(pos[:0])
	}
}

func BenchmarkPerm16384(b *testing.B) {
	p := make([]int32, 16384)
	b.ReportAllocs()
	for b.Loop() {
		order.Perm([32]byte{7}, p)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/16384, "ns/row")
}

func BenchmarkNewPass(b *testing.B) {
	for _, lanes := range []int{64, 1024} {
		b.Run(fmt.Sprint(lanes), func(b *testing.B) {
			units := make([]int64, 1_000_000)
			r := rand.New(rand.NewPCG(1, 2))
			for i := range units {
				units[i] = r.Int64N(1 << 20)
			}
			b.ReportAllocs()
			for b.Loop() {
				if _, err := order.NewPass(order.Key{}, order.Shape{Mode: order.Window, Lanes: lanes, Window: 16384}, units); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkSegments(b *testing.B) {
	p, _ := benchPass(b, 1<<20)
	var dst []order.Segment
	b.ReportAllocs()
	for w := int64(0); b.Loop(); w++ {
		dst = p.Segments(int(w%64), w%p.Windows(int(w%64)), dst[:0])
	}
}

func BenchmarkMix(b *testing.B) {
	m, err := order.NewMixer(order.Schedule{{0, []int64{70, 20, 9, 1}}})
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		m.Next()
	}
}

func BenchmarkMixerOf1e6(b *testing.B) {
	for b.Loop() {
		if _, err := order.NewMixer(order.Schedule{{0, []int64{1<<19 + 1, 1 << 18, 1<<17 + 1, 5}}}); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDeal(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 2))
	lanes := make([]int32, 4096)
	for i := range lanes {
		lanes[i] = r.Int32N(64)
	}
	var out []int32
	d := order.NewDealer(64, 8)
	b.ReportAllocs()
	for b.Loop() {
		d.Begin(lanes)
		out = d.Deal(lanes, out)
	}
}

// run publishes what is needed with the numbers that m returns and gives up to n
// samples, to skip them or to count: it returns how many there were.
func run(g *order.Merge, n int64, m func(lane int, window int64) int64) (int64, error) {
	for i := int64(0); i < n; {
		for lane, w, ok := g.Needs(); ok; lane, w, ok = g.Needs() {
			if err := g.Publish(lane, w, m(lane, w)); err != nil {
				return i, err
			}
		}
		some := g.Ahead(n - i)
		if len(some) == 0 {
			return i, nil
		}
		g.Give(len(some))
		i += int64(len(some))
	}
	return n, nil
}
