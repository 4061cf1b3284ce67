package gang

import (
	"bufio"
	"crypto/tls"
	"net"
	"sync"
)

// TLS reads and writes a record at a time, of 16 KiB at most. What lies under it makes one call of the system of several.
const (
	readAhead   = 256 << 10
	gatherMost  = 320 << 10
	gatherLeast = 16 << 10 // what is written in one record goes out as it is
)

// Corker is what connections of a gang have beside net.Conn's methods.
type Corker interface {
	// Cork lets what is written wait, until there is much of it or Uncork is called. Whoever writes large things in pieces makes fewer calls of the system that way.
	Cork()
	// Uncork writes what waits. After an error the connection may have ended anywhere.
	Uncork() error
}

// conn is a connection of a gang.
type conn struct {
	*tls.Conn
	wire    *wire
	writing sync.Mutex
	corked  bool // needs writing
}

// client and server are conns over a connection whose handshake is to come.
func client(raw net.Conn, cfg *tls.Config) *conn {
	w := newWire(raw)
	return &conn{Conn: tls.Client(w, cfg), wire: w}
}

func server(raw net.Conn, cfg *tls.Config) *conn {
	w := newWire(raw)
	return &conn{Conn: tls.Server(w, cfg), wire: w}
}

// Cork implements Corker.
func (c *conn) Cork() {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.corked = true
	c.wire.gather(true)
}

// Uncork implements Corker.
func (c *conn) Uncork() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	c.corked = false
	return c.wire.gather(false)
}

// Write implements net.Conn. Nothing of b waits when it returns, unless the connection is corked.
func (c *conn) Write(b []byte) (int, error) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if c.corked || len(b) <= gatherLeast {
		return c.Conn.Write(b)
	}
	c.wire.gather(true)
	n, err := c.Conn.Write(b)
	if werr := c.wire.gather(false); werr != nil && err == nil {
		n, err = 0, werr
	}
	return n, err
}

// Close implements net.Conn. Where a write is under way, which may be one that nobody reads, there is no goodbye: TLS would wait for it. None begins during one.
func (c *conn) Close() error {
	if !c.writing.TryLock() {
		return c.wire.Conn.Close()
	}
	defer c.writing.Unlock()
	if c.corked {
		return c.wire.Conn.Close()
	}
	return c.Conn.Close()
}

// CloseWrite says that nothing follows.
func (c *conn) CloseWrite() error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return c.Conn.CloseWrite()
}

// wire is the connection under TLS.
type wire struct {
	net.Conn
	r *bufio.Reader

	mu        sync.Mutex
	gathering bool
	buf       []byte
	err       error // of what was gathered: it may have ended anywhere
}

func newWire(raw net.Conn) *wire { return &wire{Conn: raw, r: bufio.NewReaderSize(raw, readAhead)} }

func (w *wire) Read(b []byte) (int, error) { return w.r.Read(b) }

func (w *wire) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	if !w.gathering {
		return w.Conn.Write(b)
	}
	if len(w.buf)+len(b) > gatherMost {
		if err := w.flush(); err != nil {
			return 0, err
		}
	}
	w.buf = append(w.buf, b...)
	return len(b), nil
}

// gather begins to keep what is written, or ends that and writes it.
func (w *wire) gather(on bool) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gathering = on; on {
		return w.err
	}
	return w.flush()
}

// flush needs mu.
func (w *wire) flush() error {
	if w.err == nil && len(w.buf) > 0 {
		_, w.err = w.Conn.Write(w.buf)
		w.buf = w.buf[:0]
	}
	return w.err
}
