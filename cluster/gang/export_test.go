package gang

import (
	"net"
	"sync/atomic"
	"time"
)

// SetAlone shortens how long Dial tries where nobody answers.
func (g *Gang) SetAlone(d time.Duration) { g.alone = d }

// Calls counts the calls of the system that write to a connection, from now on.
func Calls(c net.Conn) *atomic.Int64 {
	n := &atomic.Int64{}
	w := c.(*conn).wire
	w.Conn = counted{w.Conn, n}
	return n
}

type counted struct {
	net.Conn
	n *atomic.Int64
}

func (c counted) Write(b []byte) (int, error) {
	c.n.Add(1)
	return c.Conn.Write(b)
}
