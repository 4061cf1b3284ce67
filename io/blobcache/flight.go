package blobcache

// flight is bytes [off, end) of an object that somebody fetches. It is over when done is closed.
type flight struct {
	off, end int64
	done     chan struct{}
}

// Claim divides spans, of a buffer that begins at offset off of id, between those who miss them at once: mine are
// the caller's to fetch, theirs are on their way to others of this process. The caller writes what it fetched, if it could, and
// calls done; only then it may wait for theirs (by their channels), reads them, and fetches what is not there after all: who
// waits holds nothing that others wait for. Done must be called, once. A cache that takes nothing leaves all to the caller.
func (c *Cache) Claim(id ID, spans []Span, off int64) (mine []Span, theirs []Wait, done func()) {
	if c.file.Load() == nil || c.noWrite.Load() {
		return spans, nil, func() {}
	}
	c.flying.Lock()
	defer c.flying.Unlock()
	others := c.flights[id]
	var own []*flight
	for _, s := range spans {
		at, end := off+int64(s.Off), off+int64(s.Off+s.Len)
		for at < end {
			// The flight that begins first of those that have something of the rest.
			var next *flight
			for _, f := range others {
				if f.end > at && f.off < end && (next == nil || f.off < next.off) {
					next = f
				}
			}
			to := end
			if next != nil {
				to = max(at, next.off)
			}
			if at < to {
				own = append(own, &flight{at, to, make(chan struct{})})
				mine = append(mine, Span{int(at - off), int(to - at)})
			}
			if at = to; next != nil {
				to = min(end, next.end)
				theirs = append(theirs, Wait{Span{int(at - off), int(to - at)}, next.done})
				at = to
			}
		}
	}
	if len(own) > 0 {
		c.flights[id] = append(others[:len(others):len(others)], own...)
	}
	return mine, theirs, func() { c.land(id, own) }
}

// Wait is a span that others fetch. Done is closed when they have it, or have given up.
type Wait struct {
	Span
	Done <-chan struct{}
}

// land ends flights of id.
func (c *Cache) land(id ID, own []*flight) {
	if len(own) == 0 {
		return
	}
	c.flying.Lock()
	defer c.flying.Unlock()
	var left []*flight
	ended := make(map[*flight]bool, len(own))
	for _, f := range own {
		ended[f] = true
		close(f.done)
	}
	for _, f := range c.flights[id] {
		if !ended[f] {
			left = append(left, f)
		}
	}
	if len(left) == 0 {
		delete(c.flights, id)
	} else {
		c.flights[id] = left
	}
}
