package sched

// heap has numbers of tasks of a stage for which something came to hold. One for which it holds no more is forgotten when it
// is the lowest.
type heap []int

func (h *heap) push(n int) {
	q := append(*h, n)
	*h = q
	i := len(q) - 1
	for ; i > 0 && q[(i-1)/2] > n; i = (i - 1) / 2 {
		q[i] = q[(i-1)/2]
	}
	q[i] = n
}

// pop removes the lowest.
func (h *heap) pop() {
	last := len(*h) - 1
	q, n := (*h)[:last], (*h)[last]
	*h = q
	if last == 0 {
		return
	}
	i := 0
	for c := 1; c < last; c = 2*i + 1 {
		if c+1 < last && q[c+1] < q[c] {
			c++
		}
		if n <= q[c] {
			break
		}
		q[i] = q[c]
		i = c
	}
	q[i] = n
}

// lowest returns the first open task of h for which it still holds; nil: there is none.
func (st *stage) lowest(h *heap, holds func(*task) bool) *task {
	for ; len(*h) > 0; h.pop() {
		if t := st.get((*h)[0]); t != nil && holds(t) {
			return t
		}
	}
	return nil
}

func (t *task) isParked() bool { return t.state == Parked }

// isReady leaves out a task that ran out of memory: it starts again as the head only.
func (t *task) isReady() bool { return t.state == Ready && t.last != Exhausted }

func (t *task) hasBlock() bool { return len(t.queue) > 0 }
