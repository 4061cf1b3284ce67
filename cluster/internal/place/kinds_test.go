package place

import (
	"math/rand/v2"
	"reflect"
	"testing"
)

// twoKinds is a gang of so many members of each kind, all on nodes of their own.
func twoKinds(id string, a int, first Member, b int, second Member) Demand {
	d := Demand{ID: DemandID(id), Distinct: true}
	for range a {
		d.Members = append(d.Members, first)
	}
	for range b {
		d.Members = append(d.Members, second)
	}
	return d
}

// A gang of two kinds is placed exactly when there is a way: enough nodes for each kind, and enough for both together (P. Hall, On Representatives of Subsets, 1935).
func TestTwoKinds(t *testing.T) {
	placed, not := 0, 0
	for seed := range uint64(3000) {
		r := rand.New(rand.NewPCG(seed, 7))
		var m Machine
		nodes := map[NodeID]Node{}
		for i := range 3 + r.IntN(8) {
			n := gpus(string(rune('a'+i)), 1+r.Int64N(8), r.Int64N(3))
			if r.IntN(3) == 0 {
				n = labelled(n, "role", "data")
			}
			nodes[n.ID] = n
			m.Step(up1(n))
		}
		kind := func() (x Member) {
			x.Needs = Resources{MilliCPUs: 1000 * (1 + r.Int64N(5)), GPUs: r.Int64N(2)}
			if r.IntN(3) == 0 {
				x.Labels = map[string]string{"role": "data"}
			}
			return x
		}
		d := twoKinds("d", 1+r.IntN(3), kind(), 1+r.IntN(3), kind())
		for range r.IntN(3) {
			d.Avoid = append(d.Avoid, NodeID(rune('a'+r.IntN(8))))
		}
		var fits [3]int // the first kind, the second, either
		first, second := d.Members[0], d.Members[len(d.Members)-1]
		a, b := 0, 0
		for _, x := range d.Members {
			if reflect.DeepEqual(x, first) {
				a++
			} else {
				b++
			}
		}
		for _, n := range nodes {
			holds := func(x Member) bool {
				return (&node{Node: n}).has(x.Labels) && n.Capacity.holds(x.Needs, 1) > 0
			}
			if holds(first) {
				fits[0]++
			}
			if holds(second) {
				fits[1]++
			}
			if holds(first) || holds(second) {
				fits[2]++
			}
		}
		way := fits[0] >= a && fits[1] >= b && fits[2] >= a+b
		if b == 0 {
			way = fits[0] >= a
		}
		as := m.Step(want(d))
		if got := len(as) > 0; got != way {
			t.Fatalf("seed %d: placed %v, and there is a way: %v; %+v on %v", seed, got, way, d, nodes)
		}
		if !way {
			not++
			if len(m.Waiting()) != 1 || !m.Waiting()[0].Never {
				t.Fatalf("seed %d: %+v", seed, m.Waiting())
			}
			continue
		}
		placed++
		used := map[NodeID]bool{}
		for i, p := range as[0].Placed {
			x, n := d.Members[i], nodes[p.Node]
			if p.Member != i || used[p.Node] || !(&node{Node: n}).has(x.Labels) || n.Capacity.holds(x.Needs, 1) == 0 || int64(len(p.Devices)) != x.Needs.GPUs {
				t.Fatalf("seed %d: member %d is on %+v", seed, i, n)
			}
			used[p.Node] = true
		}
	}
	if placed < 300 || not < 300 {
		t.Errorf("%d were placed, %d not: draw others", placed, not)
	}
}

// Nodes that did not do before are avoided where both kinds find others.
func TestTwoKindsAvoid(t *testing.T) {
	var m Machine
	for _, n := range []Node{gpus("a", 4, 1), gpus("b", 4, 0), gpus("c", 4, 1)} {
		m.Step(up1(n))
	}
	d := avoiding(twoKinds("d", 1, Member{Needs: Resources{MilliCPUs: 1000, GPUs: 1}}, 1, Member{Needs: Resources{MilliCPUs: 2000}}), "a")
	if got, want := text(m.Step(want(d))), "place d: 0@c[c-0] 1@b"; got != want {
		t.Errorf("%s, not %s", got, want)
	}
}

// The memory of one kind grows up to what the nodes have beside the other.
func TestMostOfAKind(t *testing.T) {
	var m Machine
	for i, memory := range []int64{30, 80} {
		n := gpus(string(rune('a'+i)), 4, 0)
		n.Capacity.Memory = memory
		m.Step(up1(n))
	}
	needs := func(memory int64) Member { return Member{Needs: Resources{MilliCPUs: 1000, Memory: memory}} }
	d := twoKinds("d", 1, needs(30), 1, needs(20))
	for _, x := range []struct{ first, least, most, want int64 }{
		{1, 20, 40, 40}, {1, 60, 120, 80}, // the first is on the small one
		{0, 30, 60, 60}, {0, 60, 120, 80},
	} {
		if got := m.Most(d, int(x.first), 1, x.least, x.most); got != x.want {
			t.Errorf("%+v: %d", x, got)
		}
	}
	if d.Members[0].Needs.Memory != 30 || d.Members[1].Needs.Memory != 20 {
		t.Error("the demand was changed")
	}
	d.Members[0] = needs(70) // on the large one
	if got := m.Most(d, 1, 1, 20, 40); got != 30 {
		t.Error(got)
	}
}
