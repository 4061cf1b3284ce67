package place

import (
	"cmp"
	"encoding/binary"
	"maps"
	"slices"
	"sort"
)

// Machine is the state. The zero value has no nodes and no demands.
type Machine struct {
	nodes   map[NodeID]*node
	order   []*node // by id; the lost ones are not in it
	byKey   map[string]*class
	key     []byte   // for a key
	classes []*class // in no order that counts
	shelves []*shelf
	asked   int64 // for shelves
	placed  map[DemandID]*demand
	waits   map[DemandID]*demand
	lines   map[string]*line
	kinds   []*line // lines by the arrival of their first
	came    int64   // demands so far

	first *demand // the one that nodes are reserved for; nil: none
	kept  []*node // which
	stale bool    // first, or its reservation, may be another
	out   []Action
}

type standing uint8

const (
	up standing = iota
	suspect
	draining
)

type node struct {
	Node
	rank     int // in Machine.order
	shape    string
	class    *class
	is       standing
	free     Resources      // capacity less what is booked; below 0 where the node came back with less
	kept     Resources      // reserved for Machine.first
	used     map[string]int // devices, by how many hold them: more than one only where a head that starts again finds them so
	holds    map[member]Placement
	draining bool // also while it is suspect
}

type member struct {
	demand DemandID
	index  int
}

type demand struct {
	Demand
	groups []group
	at     int64 // of its arrival
	line   *line
	where  map[int]Placement // of a placed one: members that have not ended
}

// group is members that are alike.
type group struct {
	first, n int // of Demand.Members
	Member
}

// line is waiting demands of the same groups, in order of arrival. room has, per group and for each node, how many members would fit there now: so it is known without a look at the nodes when a try is of use.
type line struct {
	key    string
	queue  []*demand
	groups []group
	most   int64 // members on one node
	room   []map[NodeID]int64
	sum    []int64
	tried  bool // in vain, and no node has more room since
	never  bool // the nodes there are could not take its first
}

// Step takes an event, and says what to do. The actions are valid until the next call.
func (m *Machine) Step(e Event) []Action {
	m.out = m.out[:0]
	if m.nodes == nil {
		m.nodes, m.placed, m.waits, m.lines, m.byKey = map[NodeID]*node{}, map[DemandID]*demand{}, map[DemandID]*demand{}, map[string]*line{}, map[string]*class{}
	}
	switch e.Kind {
	case NodeUp:
		m.arrive(e.Node)
	case NodeSuspect, NodeBack, NodeDrain:
		if n := m.nodes[e.Node.ID]; n != nil {
			m.stand(n, e.Kind)
		}
	case NodeLost:
		if n := m.nodes[e.Node.ID]; n != nil {
			m.lose(n)
		}
	case Want:
		m.want(e.Demand)
	case Restore:
		m.restore(e.Demand, e.Placed)
	case Cancel:
		m.cancel(e.Demand.ID)
	case Ended:
		if d := m.placed[e.Demand.ID]; d != nil {
			m.end(d, e.Member)
		}
	}
	m.serve()
	return m.out
}

// arrive takes up a node, or what a known one offers now.
func (m *Machine) arrive(x Node) {
	n := m.nodes[x.ID]
	if n == nil {
		n = &node{used: map[string]int{}, holds: map[member]Placement{}}
		m.nodes[x.ID] = n
		i, _ := slices.BinarySearchFunc(m.order, x.ID, func(n *node, id NodeID) int { return cmp.Compare(n.ID, id) })
		n.Node = x
		m.order = slices.Insert(m.order, i, n)
		m.rerank()
	}
	n.Node = x
	n.Capacity.GPUs = min(x.Capacity.GPUs, int64(len(x.Devices)))
	n.shape = shape(n.Node)
	n.free = n.Capacity
	n.free.Named = maps.Clone(x.Capacity.Named)
	for k := range n.holds {
		n.free.take(m.placed[k.demand].Members[k.index].Needs, -1)
	}
	n.is = up
	if n.draining {
		n.is = draining
	}
	m.stale = true
	m.recount(n)
}

func (m *Machine) stand(n *node, e EventKind) {
	switch e {
	case NodeSuspect:
		n.is = suspect
	case NodeDrain:
		n.draining = true
		if n.is == up {
			n.is = draining
		}
	case NodeBack:
		n.draining = false
		if n.is == draining {
			n.is = up
		}
	}
	m.stale = true
	m.recount(n)
}

func (m *Machine) lose(n *node) {
	held := map[DemandID][]Placement{}
	for k, p := range n.holds {
		held[k.demand] = append(held[k.demand], p)
	}
	for _, id := range slices.Sorted(maps.Keys(held)) {
		lost := held[id]
		slices.SortFunc(lost, func(a, b Placement) int { return cmp.Compare(a.Member, b.Member) })
		d := m.placed[id]
		for _, p := range lost {
			m.end(d, p.Member)
		}
		m.out = append(m.out, Action{Do: Lost, Demand: id, Placed: lost})
	}
	delete(m.nodes, n.ID)
	m.unclassify(n)
	for _, s := range m.shelves {
		s.drop(n)
	}
	m.order = slices.Delete(m.order, n.rank, n.rank+1)
	m.rerank()
	for _, l := range m.kinds {
		l.forget(n.ID)
	}
	m.stale = true
}

// want takes up a demand. One whose id is there already changes nothing.
func (m *Machine) want(x Demand) {
	if m.placed[x.ID] != nil || m.waits[x.ID] != nil || len(x.Members) == 0 {
		return
	}
	m.came++
	d := &demand{Demand: x, groups: groups(x.Members), at: m.came}
	key := keyOf(d)
	l := m.lines[key]
	if l == nil {
		if placed := m.try(d, m.first != nil); placed != nil { // nobody like it waits
			m.settle(d, placed)
			return
		}
		l = &line{key: key, groups: d.groups, most: d.most(), room: make([]map[NodeID]int64, len(d.groups)), sum: make([]int64, len(d.groups)), tried: true}
		for i := range l.room {
			l.room[i] = map[NodeID]int64{}
		}
		m.lines[key] = l
		m.kinds = append(m.kinds, l)
		for _, n := range m.order {
			l.count(n)
		}
		l.tried = true
	}
	d.line = l
	l.queue = append(l.queue, d)
	m.waits[x.ID] = d
}

// restore takes up a demand that is placed.
func (m *Machine) restore(x Demand, placed []Placement) {
	if m.placed[x.ID] != nil || m.waits[x.ID] != nil {
		return
	}
	d := &demand{Demand: x, groups: groups(x.Members), where: map[int]Placement{}}
	m.placed[x.ID] = d
	for _, p := range placed {
		if n := m.nodes[p.Node]; n != nil && p.Member >= 0 && p.Member < len(x.Members) {
			m.book(d, n, p)
			m.recount(n)
		}
	}
	if len(d.where) == 0 {
		delete(m.placed, x.ID)
	}
}

func (m *Machine) cancel(id DemandID) {
	if d := m.waits[id]; d != nil {
		m.leave(d)
	}
	if d := m.placed[id]; d != nil {
		for _, i := range slices.Sorted(maps.Keys(d.where)) {
			m.end(d, i)
		}
	}
}

// leave takes a demand out of its line.
func (m *Machine) leave(d *demand) {
	delete(m.waits, d.ID)
	l := d.line
	if l.queue[0] == d {
		l.queue[0] = nil
		l.queue = l.queue[1:]
		m.sorted()
	} else {
		l.queue = slices.DeleteFunc(l.queue, func(x *demand) bool { return x == d })
	}
	if len(l.queue) == 0 {
		delete(m.lines, l.key)
		m.kinds = slices.DeleteFunc(m.kinds, func(x *line) bool { return x == l })
	}
	if m.first == d {
		m.stale = true
	}
}

// sorted puts the lines in the order of their first demands, after one has changed.
func (m *Machine) sorted() {
	slices.SortStableFunc(m.kinds, func(a, b *line) int { return cmp.Compare(a.head(), b.head()) })
}

func (l *line) head() int64 {
	if len(l.queue) == 0 {
		return 0
	}
	return l.queue[0].at
}

// end gives back what a member holds. Twice is once.
func (m *Machine) end(d *demand, index int) {
	p, ok := d.where[index]
	if !ok {
		return
	}
	delete(d.where, index)
	if len(d.where) == 0 {
		delete(m.placed, d.ID)
	}
	n := m.nodes[p.Node]
	delete(n.holds, member{d.ID, index})
	for _, x := range p.Devices {
		if n.used[x]--; n.used[x] == 0 {
			delete(n.used, x)
		}
	}
	n.free.take(d.Members[index].Needs, 1)
	m.recount(n)
}

// book gives a member what it needs of a node.
func (m *Machine) book(d *demand, n *node, p Placement) {
	k := member{d.ID, p.Member}
	if _, ok := n.holds[k]; ok {
		return
	}
	n.holds[k], d.where[p.Member] = p, p
	for _, x := range p.Devices {
		n.used[x]++
	}
	n.free.take(d.Members[p.Member].Needs, -1)
}

// Booked is what the processes on a node need.
func (m *Machine) Booked(id NodeID) (r Resources) {
	if n := m.nodes[id]; n != nil {
		for k := range n.holds {
			r.take(m.placed[k.demand].Members[k.index].Needs, 1)
		}
	}
	return r
}

// serve places what fits, the oldest first. What the oldest that the nodes there are could take needs, and does not get, is kept for it: it goes to nobody who came later.
func (m *Machine) serve() {
	for again := true; again; {
		again = false
		m.refresh()
		for _, l := range m.kinds {
			d := l.queue[0]
			if !l.tried && l.mayFit() {
				if placed := m.try(d, m.first != nil && m.first != d); placed != nil {
					m.leave(d)
					m.settle(d, placed)
					again = true
					break
				}
				l.tried = true
			}
			if m.first == nil && !l.never {
				m.keep(l)
			}
		}
	}
}

// settle books what was found for a demand.
func (m *Machine) settle(d *demand, placed []Placement) {
	d.where = map[int]Placement{}
	m.placed[d.ID] = d
	for _, p := range placed {
		m.book(d, m.nodes[p.Node], p)
	}
	for _, p := range placed {
		m.recount(m.nodes[p.Node])
	}
	m.out = append(m.out, Action{Do: Place, Demand: d.ID, Placed: placed})
}

// refresh gives up the reservation where it may be another now.
func (m *Machine) refresh() {
	if !m.stale {
		return
	}
	m.stale, m.first = false, nil
	for _, n := range m.kept {
		n.kept = Resources{}
		if m.nodes[n.ID] == n {
			m.classify(n)
		}
	}
	m.kept = m.kept[:0]
	for _, l := range m.kinds {
		l.tried, l.never = false, false
	}
}

// keep reserves nodes for the first of a line, if those there are could take it.
func (m *Machine) keep(l *line) {
	d := l.queue[0]
	placed := m.ever(d)
	if l.never = placed == nil; l.never {
		return
	}
	m.first = d
	for _, p := range placed {
		n := m.nodes[p.Node]
		n.kept.take(d.Members[p.Member].Needs, 1)
		m.kept = append(m.kept, n)
	}
	for _, n := range m.kept {
		m.classify(n)
	}
}

// ever says where d would go if nothing else ran, on the freest of nodes that are alike; nil: the nodes there are could never take it. One that is suspect may be back.
func (m *Machine) ever(d *demand) []Placement {
	return m.fit(d, m.classes, func(n *node) bool { return !n.draining }, func(n *node) Resources { return n.Capacity }, func(n *node) int64 { return n.free.MilliCPUs + 64_000*n.free.GPUs })
}

// Most is the most memory, from least up to most, that each of n members of a demand, from first on, could have on the nodes there are beside the others, if nothing else ran; least, where that is too much already.
func (m *Machine) Most(x Demand, first, n int, least, most int64) int64 {
	fits := func(memory int64) bool {
		d := &demand{Demand: x}
		d.Members = slices.Clone(x.Members)
		for i := range n {
			d.Members[first+i].Needs.Memory = memory
		}
		d.groups = groups(d.Members)
		return m.ever(d) != nil
	}
	if fits(most) {
		return most
	}
	have := []int64{least} // what it can come to is all of a node's
	for _, n := range m.order {
		if c := n.Capacity.Memory; c > least && c < most {
			have = append(have, c)
		}
	}
	slices.Sort(have)
	have = slices.Compact(have)
	i := sort.Search(len(have)-1, func(i int) bool { return !fits(have[i+1]) })
	return have[i]
}

func (l *line) mayFit() bool {
	for i, g := range l.groups {
		if l.sum[i] < int64(g.n) {
			return false
		}
	}
	return true
}

// recount brings the lines, and the classes, up to date with a node.
func (m *Machine) recount(n *node) {
	m.classify(n)
	for _, l := range m.kinds {
		l.count(n)
	}
}

func (l *line) count(n *node) {
	for i, g := range l.groups {
		var c int64
		if n.is == up && n.has(g.Labels) {
			c = n.free.holds(g.Needs, min(l.most, int64(g.n)))
		}
		l.tried = l.tried && c <= l.room[i][n.ID] && (c == 0 || n.kept.zero()) // of what is free beside a reservation, the count says too little
		l.sum[i] += c - l.room[i][n.ID]
		if c == 0 {
			delete(l.room[i], n.ID)
		} else {
			l.room[i][n.ID] = c
		}
	}
}

func (l *line) forget(id NodeID) {
	for i := range l.groups {
		l.sum[i] -= l.room[i][id]
		delete(l.room[i], id)
	}
}

func (n *node) has(labels map[string]string) bool {
	for k, v := range labels {
		if have, ok := n.Labels[k]; !ok || have != v {
			return false
		}
	}
	return true
}

// most is how many members may be on one node.
func (d *demand) most() int64 {
	if d.Distinct {
		return 1
	}
	return plenty
}

// groups cuts a gang into groups of equal members.
func groups(members []Member) []group {
	var gs []group
	for i, x := range members {
		if k := len(gs) - 1; k >= 0 && gs[k].Needs.equal(x.Needs) && maps.Equal(gs[k].Labels, x.Labels) {
			gs[k].n++
			continue
		}
		gs = append(gs, group{first: i, n: 1, Member: x})
	}
	slices.SortStableFunc(gs, func(a, b group) int {
		return cmp.Or(cmp.Compare(b.Needs.GPUs, a.Needs.GPUs), cmp.Compare(b.Needs.MilliCPUs, a.Needs.MilliCPUs), cmp.Compare(b.Needs.Memory, a.Needs.Memory))
	})
	return gs
}

// keyOf names what a demand asks for.
func keyOf(d *demand) string {
	b := []byte{byte(d.Spread), 0}
	if d.Distinct {
		b[1] = 1
	}
	b = binary.AppendVarint(b, int64(len(d.Avoid)))
	for _, id := range d.Avoid {
		b = appendText(b, string(id))
	}
	for _, g := range d.groups {
		b = binary.AppendVarint(binary.AppendVarint(b, int64(g.first)), int64(g.n))
		b = appendLabels(g.Needs.key(b), g.Labels)
	}
	return string(b)
}
