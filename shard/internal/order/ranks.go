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

// Deal says which samples of a step each rank gets: lanes[i] is the lane, numbered
// through all sources, of its i-th sample, and the lists returned hold values of i,
// ascending. A rank first takes the samples of its own lanes (lane mod ranks) up to
// its share of len(lanes); the rest fills the lowest rank that is short, in order.
// len(lanes) is at most g, the samples of a full step; it is less only in a last
// step that is padded, and each list has room for the full share. The memory of out
// is used again; nil is fine.
func Deal(lanes []int32, g, ranks int, out [][]int32) [][]int32 {
	var buf [2 * 64]int32 // per rank: own samples that it may still take, places for others
	room := buf[:]
	if ranks > len(buf)/2 {
		room = make([]int32, 2*ranks)
	}
	own, rest := room[:ranks], room[ranks:2*ranks]
	if cap(out) < ranks {
		out = append(out[:cap(out)], make([][]int32, ranks-cap(out))...)
	}
	out = out[:ranks]
	for r := range out {
		rest[r] = int32(share(len(lanes), ranks, r))
		if full := max(share(g, ranks, r), int(rest[r])); cap(out[r]) < full {
			out[r] = make([]int32, 0, full)
		}
		out[r] = out[r][:0]
	}
	for _, v := range lanes {
		if r := int(v) % ranks; rest[r] > 0 {
			rest[r]--
			own[r]++
		}
	}
	short := 0
	for i, v := range lanes {
		r := int(v) % ranks
		if own[r] > 0 {
			own[r]--
		} else {
			for rest[short] == 0 {
				short++
			}
			r = short
			rest[r]--
		}
		out[r] = append(out[r], int32(i))
	}
	return out
}
