package order

// share of rank r of n samples: the first n mod ranks have one more.
func share(n, ranks, r int) int {
	s := n / ranks
	if r < n%ranks {
		s++
	}
	return s
}

// Shares returns how many of the g samples of a step each of the ranks gets: as equal
// as can be, the first ones one more.
func Shares(g, ranks int) []int {
	s := make([]int, ranks)
	for r := range s {
		s[r] = share(g, ranks, r)
	}
	return s
}

// Dealer says which rank gets each sample of a step: a rank first takes the samples of its own
// lanes (lane mod ranks, of lanes numbered through all sources) up to its share of the step; the rest
// fills the lowest rank that is short, in order. For one goroutine.
type Dealer struct {
	rank  []int32 // by lane
	own   []int32 // by rank: samples of its own lanes that it may still take
	rest  []int32 // and places for others
	short int     // the lowest rank that may have such places
}

// NewDealer deals the samples of so many lanes.
func NewDealer(lanes, ranks int) *Dealer {
	d := &Dealer{rank: make([]int32, lanes), own: make([]int32, ranks), rest: make([]int32, ranks)}
	for v := range d.rank {
		d.rank[v] = int32(v % ranks)
	}
	return d
}

// Begin starts a step: lanes are those of its samples, in their order.
func (d *Dealer) Begin(lanes []int32) {
	d.short = 0
	clear(d.own)
	for _, v := range lanes {
		d.own[d.rank[v]]++
	}
	for r, n := range d.own {
		s := int32(share(len(lanes), len(d.own), r))
		d.own[r] = min(n, s)
		d.rest[r] = s - d.own[r]
	}
}

// Deal returns the ranks of the next samples of the step, of these lanes. The memory of out is used
// again; nil is fine.
func (d *Dealer) Deal(lanes []int32, out []int32) []int32 {
	out = out[:0]
	for _, v := range lanes {
		r := d.rank[v]
		if d.own[r] > 0 {
			d.own[r]--
		} else {
			for d.rest[d.short] == 0 {
				d.short++
			}
			r = int32(d.short)
			d.rest[r]--
		}
		out = append(out, r)
	}
	return out
}
