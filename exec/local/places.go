package local

import "container/heap"

// place is where attempts run.
type place struct {
	node Node // nil: here
	room int  // how many attempts are to be there, as was last heard
	busy int  // attempts
	id   int  // in places.all
	at   int  // in places.heap
}

// places are where the attempts of a run may be. To take one, to give one back, and to hear of another room cost the logarithm of their number. Under run.mu.
type places struct {
	all   []*place // here, then the nodes
	heap  byShare
	rooms int // of all
}

func newPlaces(here int, nodes []Node) *places {
	ps := &places{all: []*place{{room: here}}, rooms: here}
	for i, n := range nodes {
		p := &place{node: n, room: max(n.Room(), 0), id: i + 1, at: i + 1}
		ps.all = append(ps.all, p)
		ps.rooms += p.room
	}
	ps.heap = append(ps.heap, ps.all...)
	heap.Init(&ps.heap)
	return ps
}

// take returns the place of the next attempt: where the smallest share of the room is taken, of those the first.
func (ps *places) take() *place {
	p := ps.heap[0]
	p.busy++
	heap.Fix(&ps.heap, p.at)
	return p
}

// free gives a place back.
func (ps *places) free(p *place) {
	p.busy--
	heap.Fix(&ps.heap, p.at)
}

// look asks a node again how much room it has, and reports whether that is another.
func (ps *places) look(id int) bool {
	p := ps.all[id]
	now := max(p.node.Room(), 0)
	was := p.room
	p.room = now
	ps.rooms += now - was
	heap.Fix(&ps.heap, p.at)
	return now != was
}

// byShare is a heap.
type byShare []*place

func (h byShare) Len() int { return len(h) }

// Less compares the shares that would be taken with one attempt more. Places without room are last.
func (h byShare) Less(i, j int) bool {
	a, b := h[i], h[j]
	x, y := (a.busy+1)*b.room, (b.busy+1)*a.room
	return x < y || x == y && a.id < b.id
}

func (h byShare) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

func (h *byShare) Push(any) { panic("places do not come later") }
func (h *byShare) Pop() any { panic("places do not go") }
