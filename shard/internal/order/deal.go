package order

// deal gives the splits, in the order given, in turn to the lane with the fewest
// units so far (ties to the lowest lane). It returns the lane of each place of order
// and how many splits with units each lane has.
func deal(order []int32, units []int64, lanes int) (lane []int32, splits []int) {
	h := make(least, lanes)
	for v := range h {
		h[v].lane = int32(v) // equal units, ascending lanes: a heap already
	}
	lane, splits = make([]int32, len(order)), make([]int, lanes)
	for i, s := range order {
		v := h[0].lane
		lane[i] = v
		if units[s] > 0 {
			splits[v]++
			h[0].units += units[s]
			h.down()
		}
	}
	return lane, splits
}

// least is a heap of lanes by (units, lane).
type least []struct {
	units int64
	lane  int32
}

// down restores the heap after its first entry grew.
func (h least) down() {
	x, i := h[0], 0
	for {
		c := 2*i + 1
		if c >= len(h) {
			break
		}
		if r := c + 1; r < len(h) && (h[r].units < h[c].units || h[r].units == h[c].units && h[r].lane < h[c].lane) {
			c = r
		}
		if x.units < h[c].units || x.units == h[c].units && x.lane < h[c].lane {
			break
		}
		h[i], i = h[c], c
	}
	h[i] = x
}
