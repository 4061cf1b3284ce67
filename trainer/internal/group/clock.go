package group

import "time"

// Look is how often a shell looks at its Clock, at least.
const Look = absent / 2

// absent is the least time between two looks that says that the shell was stopped (SIGSTOP, a paused machine, a callback that blocks).
const absent = time.Second

// Clock gives the time of events: that in which the shell was there to hear. Who was away for an hour has heard nobody for an hour, and must not take
// that for silence. The zero value stands at 0. Not safe for concurrent use.
type Clock struct {
	looked time.Duration // last, in real time
	lost   time.Duration // real time that does not count
	now    time.Duration
}

// At is the time of events at a real time, both counted from any fixed moment; neither goes back. A time between two looks that is longer than absent does not count, and neither does
// as much after it, in which what was said meanwhile is heard.
func (c *Clock) At(real time.Duration) time.Duration {
	if gap := real - c.looked; gap > absent {
		c.lost += gap + absent
	}
	c.looked = real
	c.now = max(c.now, real-c.lost)
	return c.now
}
