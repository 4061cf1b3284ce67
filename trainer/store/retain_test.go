package store

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// What is kept, computed in another way: a rule at a time, by counting who is better or later.
func TestPolicy(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 1))
	values := []float64{math.NaN(), math.Inf(1), math.Inf(-1), 0, 1, 1, 2, -3}
	for range 3000 {
		var list []*Manifest
		report := int64(0)
		for i := range rnd.IntN(12) {
			report += int64(rnd.IntN(8))
			m := &Manifest{Number: i + 1, Report: report}
			if rnd.IntN(4) > 0 {
				m.Metrics = Metrics{"x": values[rnd.IntN(len(values))]}
			}
			list = append(list, m)
		}
		p := Policy{KeepLast: rnd.IntN(6) - 1, KeepBest: rnd.IntN(4), Metric: "x", Order: []string{"", "min", "max"}[rnd.IntN(3)], KeepEvery: int64(rnd.IntN(7))}
		better := func(a, b *Manifest) bool { // a is better than b
			x, y := a.Metrics["x"], b.Metrics["x"]
			if p.Order == "max" {
				x, y = -x, -y
			}
			if x != x || y != y {
				return x == x || y != y && a.Number < b.Number
			}
			return x < y || x == y && a.Number < b.Number
		}
		got := p.keep(list)
		for i, m := range list {
			later, ahead := len(list)-1-i, 0
			_, has := m.Metrics["x"]
			for _, o := range list {
				if _, ok := o.Metrics["x"]; ok && o != m && better(o, m) {
					ahead++
				}
			}
			n := p.KeepLast
			if n == 0 {
				n = 3
			}
			want := n < 0 || later < n || later == 0 || has && ahead < p.KeepBest
			if k := p.KeepEvery; k > 0 && m.Report >= k {
				want = want || i == 0 || list[i-1].Report/k < m.Report/k
			}
			if got[i] != want {
				t.Fatalf("%+v: %d of %d is kept: %v, want %v\n%v", p, i, len(list), got[i], want, list)
			}
		}
		// What was kept once is kept again when the others are gone, but for later and better ones.
		var rest []*Manifest
		for i, m := range list {
			if got[i] {
				rest = append(rest, m)
			}
		}
		if again := p.keep(rest); slices.Contains(again, false) {
			t.Fatalf("%+v is not stable: %v of %v", p, again, rest)
		}
	}
	for _, bad := range []Policy{{Order: "asc"}, {KeepBest: -1}, {KeepBest: 1}, {KeepEvery: -1}} {
		wantErr(t, bad.Check(), fault.Invalid)
	}
	if err := (Policy{}).Check(); err != nil {
		t.Fatal(err)
	}
}

func TestBest(t *testing.T) {
	list := []Manifest{{Number: 1}, {Number: 2, Metrics: Metrics{"x": math.NaN()}}, {Number: 3, Metrics: Metrics{"x": 2}}, {Number: 4, Metrics: Metrics{"x": 1}},
		{Number: 5, Metrics: Metrics{"x": 1, "y": math.NaN()}}}
	for _, c := range []struct {
		metric, order string
		want          int
	}{{"x", "min", 4}, {"x", "", 4}, {"x", "max", 3}, {"y", "max", 5}, {"z", "min", 0}} {
		m, ok := Best(list, c.metric, c.order)
		if ok != (c.want > 0) || ok && m.Number != c.want {
			t.Errorf("%s %s: %v %v", c.metric, c.order, m, ok)
		}
	}
	if m, ok := Best(list, "x", "min"); !ok || m != &list[3] {
		t.Error("it points into the list")
	}
}

func TestPrune(t *testing.T) {
	storages(t, func(t *testing.T, storage string) {
		r := newRun(t, storage, "x")
		begin(t, r)
		for i := range int64(8) {
			m, err := r.Commit(t.Context(), Commit{Report: 10 * (i + 1), World: 1, Metrics: map[string]float64{"acc": []float64{1, 9, 3, 8, 2, 2, 2, 0}[i]},
				Parts: []Part{{0, tree(t, map[string]string{"a/b": fmt.Sprint(i), "c": ""})}}})
			if err != nil || m.Number != int(i+1) {
				t.Fatal(m, err)
			}
		}
		p := Policy{KeepLast: 1, KeepBest: 2, Metric: "acc", Order: "max", KeepEvery: 25}
		if err := r.Prune(t.Context(), p); err != nil {
			t.Fatal(err)
		}
		// Last: 8; best: 2, 4; every 25 reports: 3 (30), 5 (50), 8 (80).
		if got := checkWhole(t, r); !slices.Equal(got, []int{2, 3, 4, 5, 8}) {
			t.Fatal(got)
		}
		checkClean(t, r)
		if n := commit(t, r, 90, map[string]string{"x": ""}).Number; n != 9 {
			t.Fatal(n)
		}
		// Killed between manifest and files: nothing is seen, and Sweep clears.
		list, err := r.Checkpoints(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if err := r.b.Delete(t.Context(), r.prefix+entryName(list[0].Number)); err != nil {
			t.Fatal(err)
		}
		if err := r.Sweep(t.Context()); err != nil {
			t.Fatal(err)
		}
		checkClean(t, r)
		if got := checkWhole(t, r); !slices.Equal(got, []int{3, 4, 5, 8, 9}) {
			t.Fatal(got)
		}
		wantErr(t, r.Prune(t.Context(), Policy{KeepBest: 1}), fault.Invalid, "Name a metric")
		o := openRun(t, storage, "x")
		for _, err := range []error{o.Prune(t.Context(), p), o.Sweep(t.Context())} {
			if fault.CodeOf(err) != fault.Internal || errors.Is(err, ErrSuperseded) {
				t.Fatal("a run that has not begun:", err)
			}
		}
	})
}
