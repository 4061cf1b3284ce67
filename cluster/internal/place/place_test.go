package place

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func gpus(id string, cpus, n int64) Node {
	x := Node{ID: NodeID(id), Capacity: Resources{MilliCPUs: 1000 * cpus, GPUs: n, Memory: 64 << 30}}
	for i := range n {
		x.Devices = append(x.Devices, fmt.Sprintf("%s-%d", id, i))
	}
	return x
}

func gang(id string, n int, needs Resources) Demand {
	d := Demand{ID: DemandID(id)}
	for range n {
		d.Members = append(d.Members, Member{Needs: needs})
	}
	return d
}

func up1(n Node) Event                  { return Event{Kind: NodeUp, Node: n} }
func want(d Demand) Event               { return Event{Kind: Want, Demand: d} }
func of(k EventKind, node string) Event { return Event{Kind: k, Node: Node{ID: NodeID(node)}} }
func ended(demand string, member int) Event {
	return Event{Kind: Ended, Demand: Demand{ID: DemandID(demand)}, Member: member}
}
func cancelled(demand string) Event           { return Event{Kind: Cancel, Demand: Demand{ID: DemandID(demand)}} }
func labelled(n Node, k, v string) Node       { n.Labels = map[string]string{k: v}; return n }
func where(d Demand, k, v string) Demand      { d.Members[0].Labels = map[string]string{k: v}; return d }
func spaced(d Demand) Demand                  { d.Spread = Spaced; return d }
func distinct(d Demand) Demand                { d.Distinct = true; return d }
func avoiding(d Demand, ids ...NodeID) Demand { d.Avoid = ids; return d }

// text of actions: "place a: 0@n1[n1-0] 1@n2".
func text(as []Action) string {
	var b strings.Builder
	for _, a := range as {
		fmt.Fprintf(&b, "%s %s:", []string{"place", "lost"}[a.Do], a.Demand)
		for _, p := range a.Placed {
			fmt.Fprintf(&b, " %d@%s", p.Member, p.Node)
			if len(p.Devices) > 0 {
				fmt.Fprintf(&b, "%v", p.Devices)
			}
		}
		b.WriteString("; ")
	}
	return strings.TrimSuffix(b.String(), "; ")
}

func TestPlaces(t *testing.T) {
	one, gpu := Resources{MilliCPUs: 1000}, Resources{MilliCPUs: 1000, GPUs: 1}
	type step struct {
		e    Event
		want string
	}
	for name, steps := range map[string][]step{
		"first come, first served": {
			{up1(gpus("n1", 2, 0)), ""},
			{want(gang("a", 1, one)), "place a: 0@n1"},
			{want(gang("b", 2, one)), ""},
			{want(gang("b", 1, one)), ""}, // the id is known
			{ended("a", 0), "place b: 0@n1 1@n1"},
			{ended("a", 0), ""},
		},
		"all at once or not at all": {
			{up1(gpus("n1", 8, 2)), ""}, {up1(gpus("n2", 8, 1)), ""},
			{want(gang("a", 4, gpu)), ""},
			{up1(gpus("n3", 8, 1)), "place a: 0@n1[n1-0] 1@n1[n1-1] 2@n2[n2-0] 3@n3[n3-0]"},
		},
		"few nodes, then little waste": {
			{up1(gpus("n1", 8, 8)), ""}, {up1(gpus("n2", 8, 4)), ""}, {up1(gpus("n3", 8, 1)), ""},
			{want(gang("a", 1, gpu)), "place a: 0@n3[n3-0]"},
			{want(gang("b", 4, gpu)), "place b: 0@n2[n2-0] 1@n2[n2-1] 2@n2[n2-2] 3@n2[n2-3]"},
			{want(gang("c", 2, gpu)), "place c: 0@n1[n1-0] 1@n1[n1-1]"},
		},
		"GPUs are left to those who need them": {
			{up1(gpus("n1", 8, 8)), ""}, {up1(gpus("n2", 4, 0)), ""},
			{want(gang("a", 1, one)), "place a: 0@n2"},
			{want(gang("b", 4, one)), "place b: 0@n2 1@n2 2@n2 3@n1"},
		},
		"spread": {
			{up1(gpus("n1", 8, 0)), ""}, {up1(gpus("n2", 8, 0)), ""},
			{want(spaced(gang("a", 3, one))), "place a: 0@n1 1@n1 2@n2"},
		},
		"labels": {
			{up1(gpus("n1", 8, 0)), ""}, {want(where(gang("a", 1, one), "zone", "b")), ""},
			{up1(labelled(gpus("n2", 8, 0), "zone", "b")), "place a: 0@n2"},
		},
		"avoid": {
			{up1(gpus("n1", 1, 0)), ""}, {up1(gpus("n2", 1, 0)), ""},
			{want(avoiding(gang("a", 1, one), "n1")), "place a: 0@n2"},
			{want(avoiding(gang("b", 1, one), "n2", "n1")), "place b: 0@n1"},
		},
		"avoid what failed last": {
			{up1(gpus("n1", 1, 0)), ""}, {up1(gpus("n2", 1, 0)), ""}, {up1(gpus("n3", 1, 0)), ""},
			{want(avoiding(distinct(gang("a", 2, one)), "n3", "n1", "n2")), "place a: 0@n3 1@n1"},
		},
		"a large gang is not starved": {
			{up1(gpus("n1", 2, 0)), ""}, {up1(gpus("n2", 2, 0)), ""},
			{want(gang("a", 1, one)), "place a: 0@n1"},
			{want(gang("b", 1, one)), "place b: 0@n1"},
			{want(gang("big", 3, one)), ""}, // reserves all of n2 and one of n1
			{want(gang("c", 1, one)), ""},
			{ended("a", 0), "place big: 0@n2 1@n2 2@n1"},
			{ended("b", 0), "place c: 0@n1"},
		},
		"what a reservation leaves": {
			{up1(gpus("n1", 4, 0)), ""}, {up1(gpus("n2", 4, 0)), ""},
			{want(gang("a", 1, Resources{MilliCPUs: 2000})), "place a: 0@n1"},
			{want(gang("b", 1, Resources{MilliCPUs: 2000})), "place b: 0@n1"},
			{want(gang("c", 1, Resources{MilliCPUs: 2000})), "place c: 0@n2"},
			{want(gang("big", 1, Resources{MilliCPUs: 4000})), ""},
			{want(gang("small", 1, one)), ""}, // n2 is kept
			{want(where(gang("never", 1, one), "x", "y")), ""},
			{ended("a", 0), "place small: 0@n1"},
			{ended("c", 0), "place big: 0@n2"},
		},
		"what becomes free beside a reservation": {
			{up1(Node{ID: "a", Capacity: Resources{MilliCPUs: 4000}}), ""}, {up1(Node{ID: "b", Capacity: Resources{MilliCPUs: 2000}}), ""},
			{want(gang("z", 1, Resources{MilliCPUs: 2000})), "place z: 0@b"},
			{want(gang("y", 3, one)), "place y: 0@a 1@a 2@a"},
			{want(distinct(gang("big", 2, Resources{MilliCPUs: 2000}))), ""},
			{want(gang("small", 1, one)), ""}, // one is free, and kept
			{ended("y", 0), ""},
			{ended("y", 1), "place small: 0@a"},
		},
		"nodes come and go": {
			{up1(gpus("n1", 1, 0)), ""}, {want(gang("a", 1, one)), "place a: 0@n1"},
			{of(NodeSuspect, "n1"), ""}, {want(gang("b", 1, one)), ""},
			{of(NodeLost, "n1"), "lost a: 0@n1"},
			{up1(gpus("n1", 2, 0)), "place b: 0@n1"},
			{of(NodeDrain, "n1"), ""}, {want(gang("c", 1, one)), ""},
			{of(NodeSuspect, "n1"), ""}, {up1(gpus("n1", 2, 0)), ""},
			{of(NodeBack, "n1"), "place c: 0@n1"},
			{of(NodeLost, "n9"), ""},
		},
		"a node that comes back with less": {
			{up1(gpus("n1", 2, 2)), ""}, {want(gang("a", 2, gpu)), "place a: 0@n1[n1-0] 1@n1[n1-1]"},
			{up1(gpus("n1", 1, 1)), ""}, {want(gang("b", 1, gpu)), ""},
			{ended("a", 1), ""}, {ended("a", 0), "place b: 0@n1[n1-0]"},
		},
		"more GPUs than devices is a mistake": {
			{up1(Node{ID: "n1", Capacity: Resources{MilliCPUs: 9000, GPUs: 4}, Devices: []string{"x"}}), ""},
			{want(gang("a", 2, gpu)), ""}, {want(gang("b", 1, gpu)), "place b: 0@n1[x]"},
		},
		"a head starts again": {
			{up1(gpus("n1", 4, 2)), ""}, {of(NodeSuspect, "n1"), ""},
			{Event{Kind: Restore, Demand: gang("a", 2, gpu), Placed: []Placement{{0, "n1", []string{"n1-1"}}}}, ""},
			{want(gang("b", 1, gpu)), ""},
			{up1(gpus("n1", 4, 2)), "place b: 0@n1[n1-0]"},
			{want(gang("c", 1, gpu)), ""},
			{ended("a", 0), "place c: 0@n1[n1-1]"},
		},
		"cancelled": {
			{up1(gpus("n1", 1, 0)), ""}, {want(gang("a", 1, one)), "place a: 0@n1"}, {want(gang("b", 1, one)), ""}, {want(gang("c", 1, one)), ""},
			{cancelled("b"), ""}, {cancelled("a"), "place c: 0@n1"}, {cancelled("x"), ""},
		},
		"each on a node of its own": {
			{up1(gpus("n1", 8, 0)), ""}, {up1(gpus("n2", 8, 0)), ""},
			{want(distinct(gang("a", 3, one))), ""},
			{want(gang("b", 15, one)), "place b: 0@n1 1@n1 2@n1 3@n1 4@n1 5@n1 6@n1 7@n1 8@n2 9@n2 10@n2 11@n2 12@n2 13@n2 14@n2"},
			{up1(gpus("n3", 2, 0)), ""}, // on n1 there is no room
			{ended("b", 3), "place a: 0@n1 1@n2 2@n3"},
			{want(distinct(gang("c", 2, one))), ""}, // n3 has room for two, and takes one
			{ended("a", 1), "place c: 0@n2 1@n3"},
		},
		"each on a node of its own, where least room is": {
			{up1(gpus("n1", 8, 2)), ""}, {up1(gpus("n2", 8, 1)), ""}, {up1(gpus("n3", 8, 1)), ""},
			{want(distinct(gang("a", 2, gpu))), "place a: 0@n2[n2-0] 1@n3[n3-0]"},
			{want(distinct(gang("b", 1, gpu))), "place b: 0@n1[n1-0]"},
			{of(NodeLost, "n1"), "lost b: 0@n1[n1-0]"},
			{want(avoiding(distinct(gang("c", 2, one)), "n2")), "place c: 0@n3 1@n2"},
		},
		"unequal members, each on a node of its own": {
			{up1(gpus("n1", 4, 1)), ""}, {up1(gpus("n2", 4, 1)), ""},
			{want(distinct(Demand{ID: "a", Members: []Member{{Needs: one}, {Needs: gpu}, {Needs: gpu}}})), ""},
			{up1(gpus("n3", 4, 0)), "place a: 0@n3 1@n1[n1-0] 2@n2[n2-0]"},
		},
		"unequal members": {
			{up1(gpus("n1", 4, 1)), ""}, {up1(gpus("n2", 4, 0)), ""},
			{want(Demand{ID: "a", Members: []Member{{Needs: one}, {Needs: one}, {Needs: gpu}}}), "place a: 0@n2 1@n2 2@n1[n1-0]"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			var m Machine
			for i, s := range steps {
				if got := text(m.Step(s.e)); got != s.want {
					t.Fatalf("step %d: %q, want %q; waiting: %+v", i, got, s.want, m.Waiting())
				}
			}
		})
	}
}

// A demand that could run but for nodes that drain is told so.
func TestWaitingForDrains(t *testing.T) {
	one := Resources{MilliCPUs: 1000}
	var m Machine
	for _, n := range []string{"n1", "n2", "n3", "n4"} {
		m.Step(up1(gpus(n, 2, 0)))
	}
	say := func(x Event) string {
		m.Step(x)
		defer m.Step(cancelled("d"))
		if w := m.Waiting(); len(w) == 1 && w[0].Never {
			return w[0].Why
		}
		return fmt.Sprint(m.Waiting())
	}
	m.Step(of(NodeDrain, "n2"))
	for i, c := range []struct {
		drain, why string
		d          Event
	}{
		{"", "it needs 2 CPUs on each of 4 nodes; there would be room on 3, if nothing else ran; node n2, which has room for it, drains", want(distinct(gang("d", 4, Resources{MilliCPUs: 2000})))},
		{"", "it needs 9 CPUs on one node; the most that one has is 2 CPUs", want(gang("d", 1, Resources{MilliCPUs: 9000}))}, // not of the drain
		{"n3", "it needs 5 times 1 CPU; the nodes there are have room for 4, if nothing else ran; nodes n2, n3, which have room for it, drain", want(gang("d", 5, one))},
		{"n1", "it needs 3 times 1 CPU; the nodes there are have room for 2, if nothing else ran; nodes n1, n2, n3, which have room for it, drain", want(gang("d", 3, one))},
		{"n4", "no node takes work: all are draining", want(gang("d", 1, one))},
	} {
		if c.drain != "" {
			m.Step(of(NodeDrain, c.drain))
		}
		if got := say(c.d); got != c.why {
			t.Errorf("%d: %q, want\n%q", i, got, c.why)
		}
	}
}

func TestResourcesString(t *testing.T) {
	for n, want := range map[int64]string{1 << 40: "1 TiB", 1<<40 - 1: "1 TiB", 4 << 30: "4 GiB", 3 << 29: "1.5 GiB", 1 << 20: "1 MiB", 512: "512 B", 2000 << 40: "2000 TiB"} {
		if got := (Resources{Memory: n}).String(); got != want {
			t.Errorf("%d: %q, want %q", n, got, want)
		}
	}
}

func TestWaiting(t *testing.T) {
	gpu := Resources{MilliCPUs: 1000, GPUs: 1}
	var m Machine
	say := func() (s string) {
		for _, w := range m.Waiting() {
			s += fmt.Sprintf("%s: %s (%v)\n", w.Demand, w.Why, w.Never)
		}
		return s
	}
	m.Step(want(gang("a", 2, gpu)))
	got := say()
	m.Step(up1(gpus("n1", 4, 2)))
	m.Step(want(gang("b", 1, Resources{MilliCPUs: 1000, GPUs: 4})))
	m.Step(want(gang("c", 4, gpu)))
	m.Step(want(where(gang("d", 1, gpu), "zone", "b")))
	m.Step(want(gang("e", 2, gpu)))
	m.Step(want(gang("f", 1, Resources{Named: map[string]int64{"tpu": 2}})))
	m.Step(ended("a", 0))
	m.Step(want(gang("g", 1, gpu)))
	m.Step(want(distinct(gang("h", 2, gpu))))
	got += say()
	m.Step(up1(gpus("n2", 4, 2)))
	m.Step(want(distinct(gang("i", 2, Resources{GPUs: 2}))))
	got += say()
	m.Step(of(NodeLost, "n2"))
	for _, x := range []string{"h", "i"} {
		m.Step(cancelled(x))
	}
	m.Step(of(NodeDrain, "n1"))
	m.Step(cancelled("d"))
	got += say()
	const golden = `a: there are no nodes (true)
b: it needs 1 CPU, 4 GPUs on one node; the most that one has is 4 CPUs, 2 GPUs (true)
c: it needs 4 times 1 CPU, 1 GPU; the nodes there are have room for 2, if nothing else ran (true)
d: no node that takes work has the labels zone=b (true)
e: it needs 2 times 1 CPU, 1 GPU; there is room for 1 now (false)
f: it needs 2 tpu on one node; the most that one has is nothing (true)
g: what is free is kept for e, which came first (false)
h: it needs 1 CPU, 1 GPU on each of 2 nodes; there would be room on 1, if nothing else ran (true)
b: it needs 1 CPU, 4 GPUs on one node; the most that one has is 4 CPUs, 2 GPUs (true)
c: it needs 4 times 1 CPU, 1 GPU; there is room for 3 now (false)
d: no node that takes work has the labels zone=b (true)
e: what is free is kept for c, which came first (false)
f: it needs 2 tpu on one node; the most that one has is nothing (true)
g: what is free is kept for c, which came first (false)
h: what is free is kept for c, which came first (false)
i: it needs 2 GPUs on each of 2 nodes; there is room on 1 now (false)
b: no node takes work: all are draining (true)
c: no node takes work: all are draining (true)
e: no node takes work: all are draining (true)
f: no node takes work: all are draining (true)
g: no node takes work: all are draining (true)
`
	if got != golden {
		t.Errorf("got\n%swant\n%s", got, golden)
	}
}

// world is a second account of what a machine did, as simple as can be.
type world struct {
	t      *testing.T
	m      Machine
	nodes  map[NodeID]Node
	is     map[NodeID]EventKind // NodeUp, NodeSuspect, NodeDrain
	waits  map[DemandID]Demand
	placed map[DemandID]map[int]Placement
	all    map[DemandID]Demand
	log    []string
	ready  int // answers of shelves
}

func (w *world) step(e Event) {
	switch e.Kind {
	case NodeUp:
		if w.is[e.Node.ID] != NodeDrain {
			w.is[e.Node.ID] = NodeUp
		}
		w.nodes[e.Node.ID] = e.Node
	case NodeDrain, NodeSuspect:
		if w.is[e.Node.ID] != NodeDrain {
			w.is[e.Node.ID] = e.Kind
		}
	case NodeLost:
		delete(w.nodes, e.Node.ID)
		delete(w.is, e.Node.ID)
	case Want:
		w.waits[e.Demand.ID], w.all[e.Demand.ID] = e.Demand, e.Demand
	case Cancel:
		delete(w.waits, e.Demand.ID)
		delete(w.placed, e.Demand.ID)
	case Ended:
		delete(w.placed[e.Demand.ID], e.Member)
	}
	as := w.m.Step(e)
	w.log = append(w.log, text(as))
	for _, a := range as {
		switch a.Do {
		case Place:
			d, ok := w.waits[a.Demand]
			if !ok || len(a.Placed) != len(d.Members) {
				w.t.Fatalf("placed %v, which waits: %v", a, ok)
			}
			delete(w.waits, a.Demand)
			w.placed[a.Demand] = map[int]Placement{}
			for i, p := range a.Placed {
				n := w.nodes[p.Node]
				if p.Member != i || w.is[p.Node] != NodeUp || n.ID == "" || int64(len(p.Devices)) != d.Members[i].Needs.GPUs {
					w.t.Fatalf("placed %v on %v", a, n)
				}
				for k, v := range d.Members[i].Labels {
					if n.Labels[k] != v {
						w.t.Fatalf("%v has not the labels of %v", n, d)
					}
				}
				for _, o := range w.placed[a.Demand] {
					if d.Distinct && o.Node == p.Node {
						w.t.Fatalf("two of %v are on %s", d, p.Node)
					}
				}
				w.placed[a.Demand][i] = p
			}
		case Lost:
			for _, p := range a.Placed {
				if p.Node != e.Node.ID || w.placed[a.Demand][p.Member].Node != p.Node {
					w.t.Fatalf("lost %v", a)
				}
				delete(w.placed[a.Demand], p.Member)
			}
		}
	}
	w.check()
}

// free is what is left of a node; it ends the test where that is less than nothing, or a device has two owners.
func (w *world) free() map[NodeID]Resources {
	left := map[NodeID]Resources{}
	for id, n := range w.nodes {
		left[id] = n.Capacity
	}
	owner := map[string]DemandID{}
	for id, ps := range w.placed {
		for i, p := range ps {
			r, ok := left[p.Node]
			if !ok {
				w.t.Fatalf("%s is on %s, which is not there", id, p.Node)
			}
			r.take(w.all[id].Members[i].Needs, -1)
			left[p.Node] = r
			if r.MilliCPUs < 0 || r.GPUs < 0 || r.Memory < 0 {
				w.t.Fatalf("too much is on %s: %v", p.Node, r)
			}
			for _, x := range p.Devices {
				if owner[x] != "" {
					w.t.Fatalf("device %s is of %s and of %s", x, owner[x], id)
				}
				owner[x] = id
				if !slices.Contains(w.nodes[p.Node].Devices, x) {
					w.t.Fatalf("device %s is not of %s", x, p.Node)
				}
			}
		}
	}
	return left
}

// check: the machine's account is that of the world, and the oldest that the nodes could take does not fit.
func (w *world) check() {
	left := w.free()
	for _, n := range w.m.order {
		if !n.free.equal(left[n.ID]) {
			w.t.Fatalf("%s has %v free, not %v", n.ID, left[n.ID], n.free)
		}
	}
	classed := 0
	for i, c := range w.m.classes {
		of := slices.Collect(w.m.of(c))
		for k, n := range of {
			classed++
			if c.at != i || c.n != len(of) || n.class != c || w.m.byKey[c.key] != c || string(n.key(nil)) != c.key || w.m.order[n.rank] != n || k > 0 && of[k-1].ID >= n.ID {
				w.t.Fatalf("%s is in the wrong class, or place", n.ID)
			}
		}
	}
	if classed != len(w.nodes) || len(w.m.byKey) != len(w.m.classes) {
		w.t.Fatalf("%d of %d nodes are in %d classes", classed, len(w.nodes), len(w.m.byKey))
	}
	if len(w.m.order) != len(w.nodes) || len(w.m.waits) != len(w.waits) {
		w.t.Fatalf("%d nodes, %d wait; want %d and %d", len(w.m.order), len(w.m.waits), len(w.nodes), len(w.waits))
	}
	for _, wait := range w.m.Waiting() {
		if wait.Never {
			continue
		}
		d := w.waits[wait.Demand]
		room := int64(0)
		for id, n := range w.nodes {
			if x := (node{Node: n}); w.is[id] == NodeUp && x.has(d.Members[0].Labels) {
				most := int64(len(d.Members))
				if d.Distinct {
					most = 1
				}
				room += left[id].holds(d.Members[0].Needs, most)
			}
		}
		if room >= int64(len(d.Members)) {
			w.t.Fatalf("%s waits (%s), and there is room for %d of %d", d.ID, wait.Why, room, len(d.Members))
		}
		return // others may be kept back for it
	}
}

// sameAlone: what is found in classes, and on shelves, is what a look at every single node finds.
func (w *world) sameAlone(x Demand) {
	var alone []*class
	for _, n := range w.m.order {
		c, was := &class{}, n.class
		c.add(n)
		n.class = was
		alone = append(alone, c)
	}
	d := &demand{Demand: x, groups: groups(x.Members)}
	for _, f := range []func(cs []*class) []Placement{
		func(cs []*class) []Placement {
			return w.m.fit(d, cs, func(n *node) bool { return n.is == up }, func(n *node) Resources { return n.free }, nil)
		},
		func(cs []*class) []Placement {
			return w.m.fit(d, cs, func(n *node) bool { return !n.draining }, func(n *node) Resources { return n.Capacity }, func(n *node) int64 { return n.free.MilliCPUs })
		},
	} {
		if got, want := f(w.m.classes), f(alone); !reflect.DeepEqual(got, want) {
			w.t.Fatalf("%+v goes to %v, and with a look at each node to %v", x, got, want)
		}
	}
	want := w.m.fit(d, alone, func(n *node) bool { return n.is == up }, (*node).offers, nil)
	for range 2 { // the second time there is a shelf
		if got, ok := w.m.ready(d); ok && !reflect.DeepEqual(got, want) {
			w.t.Fatalf("%+v goes to %v, and with a look at each node to %v", x, got, want)
		} else if ok {
			w.ready++
		}
	}
	for _, s := range w.m.shelves {
		if !slices.IsSortedFunc(s.slots, slot.compare) || len(s.of) != len(s.slots) {
			w.t.Fatalf("%+v", s)
		}
	}
}

// Random nodes, demands and failures: nothing is booked twice, the oldest never waits for what is free, all that the nodes can take is placed in the end, and the same events give the same actions.
func TestSimulated(t *testing.T) {
	seeds := uint64(300)
	if testing.Short() {
		seeds = 30
	}
	ready := 0
	for seed := range seeds {
		var logs [2][]string
		for again := range logs {
			w := &world{t: t, nodes: map[NodeID]Node{}, is: map[NodeID]EventKind{}, waits: map[DemandID]Demand{}, placed: map[DemandID]map[int]Placement{}, all: map[DemandID]Demand{}}
			ok := t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
				w.t = t
				simulate(w, rand.New(rand.NewPCG(seed, 1)))
			})
			if !ok {
				return
			}
			logs[again] = w.log
			ready += w.ready
		}
		if !reflect.DeepEqual(logs[0], logs[1]) {
			t.Fatalf("seed %d: the same events gave other actions", seed)
		}
	}
	if ready == 0 {
		t.Error("no shelf was asked")
	}
}

func simulate(w *world, r *rand.Rand) {
	id := 0
	node := func() Node {
		id++
		n := gpus(fmt.Sprintf("n%03d", id), 1+r.Int64N(8), r.Int64N(3)*r.Int64N(5))
		if r.IntN(2) == 0 { // like others
			n = gpus(string(n.ID), 4, 2)
		}
		if r.IntN(3) == 0 {
			n.Labels = map[string]string{"zone": string(rune('a' + r.IntN(2)))}
		}
		return n
	}
	pick := func() string {
		if ids := slices.Sorted(maps.Keys(w.nodes)); len(ids) > 0 {
			return string(ids[r.IntN(len(ids))])
		}
		return "none"
	}
	for range 120 {
		switch k := r.IntN(20); {
		case k < 2 && len(w.nodes) < 20:
			w.step(up1(node()))
		case k < 3:
			w.step(of(NodeLost, pick()))
		case k < 4:
			if x := pick(); x != "none" && w.is[NodeID(x)] == NodeUp {
				w.step(of(NodeSuspect, x))
				if r.IntN(2) == 0 {
					w.step(up1(w.nodes[NodeID(x)]))
				}
			}
		case k < 5:
			w.step(of(NodeDrain, pick()))
		case k < 13:
			id++
			d := gang(fmt.Sprintf("d%03d", id), 1+r.IntN(6)*r.IntN(3), Resources{MilliCPUs: 500 * r.Int64N(8), GPUs: r.Int64N(2) * r.Int64N(4)})
			if r.IntN(5) == 0 {
				for i := range d.Members {
					d.Members[i].Labels = map[string]string{"zone": "a"}
				}
			}
			d.Spread, d.Distinct = Spread(r.IntN(2)), r.IntN(3) == 0
			for range r.IntN(3) {
				d.Avoid = append(d.Avoid, NodeID(pick()))
			}
			mixed := d
			for range r.IntN(3) {
				mixed.Members = append(slices.Clip(mixed.Members), Member{Needs: Resources{MilliCPUs: 500 * r.Int64N(8), GPUs: r.Int64N(2)}})
			}
			w.sameAlone(mixed)
			w.sameAlone(d)
			w.step(want(d))
		case k < 14:
			if ids := slices.Sorted(maps.Keys(w.waits)); len(ids) > 0 {
				w.step(cancelled(string(ids[r.IntN(len(ids))])))
			}
		default:
			w.endOne(r)
		}
	}
	for len(w.placed) > 0 {
		w.endOne(r)
	}
	for _, x := range w.m.Waiting() {
		if !x.Never && !slices.ContainsFunc(slices.Collect(maps.Values(w.is)), func(k EventKind) bool { return k == NodeSuspect }) {
			w.t.Fatalf("all has ended, and %s waits: %s", x.Demand, x.Why)
		}
	}
}

func (w *world) endOne(r *rand.Rand) {
	ids := slices.Sorted(maps.Keys(w.placed))
	if len(ids) == 0 {
		return
	}
	id := ids[r.IntN(len(ids))]
	if members := slices.Sorted(maps.Keys(w.placed[id])); len(members) > 0 {
		w.step(ended(string(id), members[r.IntN(len(members))]))
	}
	if len(w.placed[id]) == 0 {
		delete(w.placed, id)
	}
}

// A demand comes, is placed and ends, on many nodes, where another waits in vain.
func BenchmarkStep(b *testing.B) {
	for _, n := range []int{10, 100, 1000} {
		b.Run(fmt.Sprintf("nodes=%d", n), func(b *testing.B) {
			var m Machine
			for i := range n {
				m.Step(up1(gpus(fmt.Sprintf("n%04d", i), 64, 8)))
			}
			one := Resources{MilliCPUs: 1000, GPUs: 1}
			for i := range n * 8 {
				m.Step(want(gang(fmt.Sprintf("full%d", i), 1, one)))
			}
			m.Step(want(gang("large", n*8, one)))
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ { // one ends and one comes, which waits behind the large one
				m.Step(ended("full0", 0))
				m.Step(Event{Kind: Restore, Demand: gang("full0", 1, one), Placed: []Placement{{0, "n0000", []string{"n0000-0"}}}})
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(2*b.N), "ns/event")
		})
	}
}

// How much memory each member of a gang could have: all of a node's at most, of as many nodes as it needs.
func TestMost(t *testing.T) {
	var m Machine
	if got := m.Most(gang("d", 1, Resources{}), 0, 1, 1, 9); got != 1 {
		t.Errorf("%d without nodes", got)
	}
	for i, memory := range []int64{10, 20, 30, 40} {
		n := gpus(fmt.Sprintf("n%d", i), 4, 0)
		n.Capacity.Memory = memory
		m.Step(up1(n))
	}
	m.Step(want(gang("other", 1, Resources{MilliCPUs: 4000, Memory: 40}))) // what runs is no matter
	for _, x := range []struct {
		members           int
		least, most, want int64
	}{{1, 8, 16, 16}, {1, 16, 32, 32}, {1, 32, 64, 40}, {2, 16, 32, 30}, {4, 8, 16, 10}, {4, 10, 20, 10}, {5, 8, 16, 8}} {
		if got := m.Most(distinct(gang("d", x.members, Resources{MilliCPUs: 1000, Memory: x.least})), 0, x.members, x.least, x.most); got != x.want {
			t.Errorf("%+v: %d", x, got)
		}
	}
}

// Of the needs that were asked for, those of the last ones stay, and only the one asked for longest ago goes.
func TestShelves(t *testing.T) {
	m := &Machine{}
	ask := func(cpus int64) *shelf { return m.shelf(Member{Needs: Resources{MilliCPUs: cpus}}) }
	for i := range int64(mostShelves) {
		ask(i + 1)
	}
	for i := range int64(mostShelves - 2) {
		ask(i + 2)
	}
	ask(100) // the first goes, and the last, which is the oldest then, does not
	if len(m.shelves) != mostShelves || ask(mostShelves) == nil || ask(2) == nil || ask(100) == nil || ask(1) != nil {
		t.Errorf("%d are kept", len(m.shelves))
	}
}

// TestSuspectDrained: a node that is suspect stays so where it is drained, and the drain is undone.
func TestSuspectDrained(t *testing.T) {
	m := &Machine{}
	m.Step(up1(gpus("n1", 4, 0)))
	for _, e := range []EventKind{NodeSuspect, NodeDrain, NodeBack} {
		m.Step(of(e, "n1"))
	}
	if s := text(m.Step(want(gang("a", 1, Resources{MilliCPUs: 1000})))); s != "" {
		t.Errorf("placed on a suspect node: %s", s)
	}
	if s := text(m.Step(up1(gpus("n1", 4, 0)))); s == "" {
		t.Error("not placed when the node is back")
	}
	for _, drained := range [][]EventKind{{NodeDrain}, {NodeSuspect, NodeDrain}, {NodeDrain, NodeSuspect}} {
		m := &Machine{}
		m.Step(up1(gpus("n1", 4, 0)))
		m.Step(up1(gpus("n2", 4, 0)))
		m.Step(of(NodeSuspect, "n2")) // alike but for the drain
		for _, e := range drained {
			m.Step(of(e, "n1"))
		}
		for i, never := range []bool{false, true} { // one may wait for n2 to come back, two may not
			m.Step(want(gang(fmt.Sprint("never", i), i+1, Resources{MilliCPUs: 4000})))
			if w := m.Waiting(); len(w) != i+1 || w[i].Never != never {
				t.Errorf("%v: %d of 4 CPUs: %+v", drained, i+1, w)
			}
		}
		w := m.Waiting()
		m.Step(of(NodeDrain, "n2"))
		all := m.Waiting()
		if len(w) != 2 || len(all) != 2 || strings.Contains(w[0].Why, "all are draining") || !strings.Contains(all[0].Why, "all are draining") {
			t.Errorf("%v: %+v, and with both drained %+v", drained, w, all)
		}
	}
}
