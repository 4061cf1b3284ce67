package place

import (
	"cmp"
	"maps"
	"slices"
)

// try says where the members of d go now; nil: they do not fit. later keeps off what is reserved.
func (m *Machine) try(d *demand, later bool) []Placement {
	var placed []Placement
	found := false
	if later || m.first == nil { // else what is reserved is its own
		placed, found = m.ready(d)
	}
	if !found {
		offer := func(n *node) Resources { return n.free }
		if later {
			offer = (*node).offers
		}
		placed = m.fit(d, m.classes, func(n *node) bool { return n.is == up }, offer, nil)
	}
	taken := map[string]bool{} // of the last node
	for i := range placed {
		p := &placed[i]
		n := m.nodes[p.Node]
		if i > 0 && placed[i-1].Node != p.Node {
			clear(taken)
			for _, o := range placed[:i] {
				if o.Node == p.Node {
					for _, x := range o.Devices {
						taken[x] = true
					}
				}
			}
		}
		for _, x := range n.Devices {
			if int64(len(p.Devices)) == d.Members[p.Member].Needs.GPUs {
				break
			}
			if _, used := n.used[x]; !used && !taken[x] {
				p.Devices = append(p.Devices, x)
				taken[x] = true
			}
		}
	}
	return placed
}

// offers is what is free of a node beside what is reserved.
func (n *node) offers() Resources {
	if n.kept.zero() {
		return n.free
	}
	left := n.free
	left.Named = maps.Clone(n.free.Named)
	left.take(n.kept, -1)
	return left
}

// fit finds usable nodes of classes for all members, in the order of members, or none. offer is what a node has to give; of nodes that are as good as each other the one of most prefer is taken (nil: where each member has a node of its
// own, the one with the least room), then the one of the lowest id. All three are the same for nodes of a class.
//
// Members of two kinds that each have a node of their own are placed whenever there is a way: where the best nodes for the first kind leave too few for the second, the first takes those first that are of no use to the second.
func (m *Machine) fit(d *demand, classes []*class, usable func(*node) bool, offer func(*node) Resources, prefer func(*node) int64) []Placement {
	placed := m.search(d, classes, usable, offer, prefer, nil)
	if placed == nil && d.Distinct && len(d.groups) == 2 {
		second := d.groups[1]
		placed = m.search(d, classes, usable, offer, prefer, func(n *node) bool { return n.has(second.Labels) && offer(n).holds(second.Needs, 1) > 0 })
	}
	return placed
}

// search is one try of fit. The first group keeps off nodes that are shared, as far as there are others; nil: none is.
func (m *Machine) search(d *demand, classes []*class, usable func(*node) bool, offer func(*node) Resources, prefer func(*node) int64, shared func(*node) bool) []Placement {
	var left map[NodeID]Resources // after the groups before
	if len(d.groups) > 1 {
		left = map[NodeID]Resources{}
	}
	bad := map[NodeID]int{}
	for i, id := range d.Avoid {
		bad[id] = i + 1
	}
	placed := make([]Placement, 0, len(d.Members))
	for k, g := range d.groups {
		var rooms []room
		sum := int64(0)
		add := func(n *node, has Resources) bool {
			c := has.holds(g.Needs, plenty)
			if c == 0 {
				return false
			}
			r := room{n: n, c: min(c, d.most()), shared: k == 0 && shared != nil && shared(n), bad: bad[n.ID], waste: g.Needs.GPUs == 0 && n.Capacity.GPUs > 0}
			switch {
			case prefer != nil:
				r.prefer = prefer(n)
			case d.Distinct:
				r.prefer = -c
			}
			rooms = append(rooms, r)
			sum += r.c
			return true
		}
		fits := func(n *node) bool { return usable(n) && n.has(g.Labels) }
		for _, c := range classes { // of each, as many as all members could be on
			like := m.one(c)
			if !fits(like) {
				continue
			}
			has, taken := offer(like), 0
			for n := range m.of(c) {
				if bad[n.ID] > 0 || in(left, n.ID) {
					continue
				}
				if !add(n, has) {
					break
				}
				if taken++; taken == g.n {
					break
				}
			}
		}
		for id := range bad {
			if n := m.nodes[id]; n != nil && fits(n) && !in(left, id) {
				add(n, offer(n))
			}
		}
		for id, has := range left { // not like their classes any more
			if n := m.nodes[id]; fits(n) && !d.Distinct {
				add(n, has)
			}
		}
		if sum < int64(g.n) {
			return nil
		}
		share(rooms, int64(g.n), d.Spread)
		next := g.first
		for _, r := range rooms {
			for range r.take {
				placed = append(placed, Placement{Member: next, Node: r.n.ID})
				next++
			}
			if left != nil && r.take > 0 {
				has, ok := left[r.n.ID]
				if !ok {
					has = offer(r.n)
					has.Named = maps.Clone(has.Named)
				}
				for range r.take {
					has.take(g.Needs, -1)
				}
				left[r.n.ID] = has
			}
		}
	}
	slices.SortFunc(placed, func(a, b Placement) int { return cmp.Compare(a.Member, b.Member) })
	return placed
}

func in(left map[NodeID]Resources, id NodeID) bool {
	_, ok := left[id]
	return ok
}

// plenty is how many of those fit that need nothing.
const plenty = 1 << 30

// room is how many members of a group fit on a node, and how many go there.
type room struct {
	n       *node
	c, take int64
	shared  bool // the next group could have it
	bad     int  // from 1 on, where the demand failed: the later, the more
	waste   bool
	prefer  int64
}

// share deals n members to rooms, which have room for them, and puts the rooms in order.
func share(rooms []room, n int64, spread Spread) {
	if best := one(rooms, n); best >= 0 && (spread == Pack || n == 1) {
		rooms[best].take = n
		return
	}
	slices.SortFunc(rooms, before)
	if spread == Spaced {
		for n > 0 {
			for i := range rooms {
				if r := &rooms[i]; n > 0 && r.take < r.c {
					r.take++
					n--
				}
			}
		}
		return
	}
	for i := 0; n > 0; i++ {
		// The last ones go where least is left over: the smallest room of this kind that takes them all.
		best := i
		for k := i; k < len(rooms) && kind(&rooms[k], &rooms[i]) == 0 && rooms[k].c >= n; k++ {
			if rooms[k].c < rooms[best].c {
				best = k
			}
		}
		rooms[i], rooms[best] = rooms[best], rooms[i]
		if best != i { // the order of the others stays
			slices.SortFunc(rooms[i+1:], before)
		}
		rooms[i].take = min(n, rooms[i].c)
		n -= rooms[i].take
	}
}

// before is the order in which rooms are filled.
func before(a, b room) int {
	return cmp.Or(kind(&a, &b), cmp.Compare(b.c, a.c), cmp.Compare(b.prefer, a.prefer), cmp.Compare(a.n.ID, b.n.ID))
}

// kind puts rooms of a better kind first.
func kind(a, b *room) int {
	return cmp.Or(compare(a.shared, b.shared), cmp.Compare(a.bad, b.bad), compare(a.waste, b.waste))
}

// one is the room of the best kind that takes all n with the least left over; -1: none does.
func one(rooms []room, n int64) int {
	best, least := -1, 0
	for i := range rooms {
		r := &rooms[i]
		switch c := kind(r, &rooms[least]); {
		case c < 0:
			best, least = -1, i
		case c > 0:
			continue
		}
		if r.c >= n && (best < 0 || cmp.Or(cmp.Compare(r.c, rooms[best].c), cmp.Compare(rooms[best].prefer, r.prefer), cmp.Compare(r.n.ID, rooms[best].n.ID)) < 0) {
			best = i
		}
	}
	return best
}

// compare puts false before true.
func compare(a, b bool) int {
	switch {
	case a == b:
		return 0
	case b:
		return -1
	}
	return 1
}

// holds is how many times needs fit, at most most.
func (r Resources) holds(needs Resources, most int64) int64 {
	times := func(have, need int64) {
		if need > 0 {
			most = min(most, max(have, 0)/need)
		}
	}
	times(r.MilliCPUs, needs.MilliCPUs)
	times(r.GPUs, needs.GPUs)
	times(r.Memory, needs.Memory)
	for k, need := range needs.Named {
		times(r.Named[k], need)
	}
	return most
}

// take adds sign times x. Its map must be r's own.
func (r *Resources) take(x Resources, sign int64) {
	r.MilliCPUs += sign * x.MilliCPUs
	r.GPUs += sign * x.GPUs
	r.Memory += sign * x.Memory
	for k, v := range x.Named {
		if r.Named == nil {
			r.Named = map[string]int64{}
		}
		r.Named[k] += sign * v
	}
}

func (r Resources) zero() bool { return r.equal(Resources{}) }

func (r Resources) equal(o Resources) bool {
	if r.MilliCPUs != o.MilliCPUs || r.GPUs != o.GPUs || r.Memory != o.Memory {
		return false
	}
	for k, v := range r.Named {
		if o.Named[k] != v {
			return false
		}
	}
	for k, v := range o.Named {
		if r.Named[k] != v {
			return false
		}
	}
	return true
}
