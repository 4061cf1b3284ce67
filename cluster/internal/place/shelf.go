package place

import (
	"cmp"
	"slices"
)

// mostShelves are kept: those of the processes that were asked for last.
const mostShelves = 8

// shelf has the nodes with room for a process of some needs and labels, beside what is reserved, in the order in which they are taken: no GPUs for who needs none, the least room, the lowest id. Where nodes differ, as they do in memory, and are
// as many kinds as nodes, the next process of those needs is placed without a look at all of them.
type shelf struct {
	Member
	key   string
	used  int64           // counts up
	slots []slot          // in order
	of    map[*node]*slot // nil: nobody asked for it a second time, and it is empty
}

// slot is what a node is known by in a shelf.
type slot struct {
	n     *node
	waste bool
	room  int64
}

func (a slot) compare(b slot) int {
	return cmp.Or(compare(a.waste, b.waste), cmp.Compare(a.room, b.room), cmp.Compare(a.n.ID, b.n.ID))
}

// shelf finds that of x. nil: it was not asked for lately, and is put up when it is again.
func (m *Machine) shelf(x Member) *shelf {
	m.asked++
	m.key = appendLabels(x.Needs.key(m.key[:0]), x.Labels)
	i := slices.IndexFunc(m.shelves, func(s *shelf) bool { return s.key == string(m.key) })
	if i < 0 {
		if len(m.shelves) == mostShelves {
			oldest := slices.MinFunc(m.shelves, func(a, b *shelf) int { return cmp.Compare(a.used, b.used) })
			at := slices.Index(m.shelves, oldest)
			m.shelves = slices.Delete(m.shelves, at, at+1)
		}
		m.shelves = append(m.shelves, &shelf{Member: x, key: string(m.key), used: m.asked})
		return nil
	}
	s := m.shelves[i]
	if s.used = m.asked; s.of == nil {
		s.of = map[*node]*slot{}
		for _, n := range m.order {
			if x, fits := s.slot(n); fits {
				s.slots = append(s.slots, x)
				s.of[n] = &x
			}
		}
		slices.SortFunc(s.slots, slot.compare)
	}
	return s
}

// slot is what a node would be in the shelf, if it has room.
func (s *shelf) slot(n *node) (x slot, fits bool) {
	if n.is != up || !n.has(s.Labels) {
		return x, false
	}
	x = slot{n: n, waste: s.Needs.GPUs == 0 && n.Capacity.GPUs > 0, room: n.offers().holds(s.Needs, plenty)}
	return x, x.room > 0
}

// put brings the shelf up to date with a node.
func (s *shelf) put(n *node) {
	if s.of == nil {
		return
	}
	x, fits := s.slot(n)
	was := s.of[n]
	switch {
	case was != nil && fits && *was == x:
		return
	case was != nil:
		s.drop(n)
	}
	if fits {
		i, _ := slices.BinarySearchFunc(s.slots, x, slot.compare)
		s.slots = slices.Insert(s.slots, i, x)
		s.of[n] = &x
	}
}

// drop takes out a node, if it is there.
func (s *shelf) drop(n *node) {
	if was := s.of[n]; was != nil {
		i, _ := slices.BinarySearchFunc(s.slots, *was, slot.compare)
		s.slots = slices.Delete(s.slots, i, i+1)
		delete(s.of, n)
	}
}

// ready does what fit does, beside what is reserved, for one process, or equal ones that each have a node of their own. ok: it can say.
func (m *Machine) ready(d *demand) (placed []Placement, ok bool) {
	if len(d.groups) != 1 || len(d.Members) > 1 && !d.Distinct {
		return nil, false
	}
	s := m.shelf(d.groups[0].Member)
	if s == nil {
		return nil, false
	}
	for _, x := range s.slots {
		if len(placed) == len(d.Members) {
			break
		}
		if len(d.Avoid) == 0 || !slices.Contains(d.Avoid, x.n.ID) {
			placed = append(placed, Placement{Member: len(placed), Node: x.n.ID})
		}
	}
	if len(placed) == len(d.Members) {
		return placed, true
	}
	return nil, len(d.Avoid) == 0
}
