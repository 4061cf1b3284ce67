package trainer

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/internal/wire"
)

// accept takes the connections of this node's workers.
func (h *hand) accept() {
	for {
		conn, err := h.listener.AcceptUnix()
		if err != nil {
			select {
			case <-h.ctx.Done():
				return
			case <-time.After(50 * time.Millisecond): // out of descriptors
				continue
			}
		}
		if !h.hold(conn) {
			conn.Close()
			continue
		}
		h.others.Go(func() {
			h.relay(conn)
			h.drop(conn)
		})
	}
}

// hold has conn closed with the run; false: that is over.
func (h *hand) hold(conn net.Conn) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.conns == nil {
		return false
	}
	h.conns[conn] = true
	return true
}

func (h *hand) drop(conn net.Conn) {
	conn.Close()
	h.mu.Lock()
	defer h.mu.Unlock()
	delete(h.conns, conn)
}

// relay is a worker's line to the controller. What it says goes there as it is, but for folders of reports, which are looked at here: the controller judges the rest.
func (h *hand) relay(conn *net.UnixConn) {
	ear := wire.NewEar(conn)
	defer ear.Close()
	conn.SetReadDeadline(time.Now().Add(helloTime))
	line, err := ear.Line()
	if err != nil {
		if code := fault.CodeOf(err); code != fault.Invalid && code != fault.Corrupt {
			return // it hung up
		}
		line = []byte("\n") // which is no hello either
	}
	conn.SetReadDeadline(time.Time{})
	ctx, cancel := context.WithTimeout(h.ctx, helloTime)
	up, err := h.cfg.Gang.Dial(ctx, 0, serviceWorker)
	cancel()
	if err != nil {
		if b, aerr := wire.Append(nil, wire.ToWorker{Refused: wire.FromError(err)}); aerr == nil {
			conn.SetWriteDeadline(time.Now().Add(time.Second))
			_, _ = conn.Write(b) // who does not listen need not know
		}
		return
	}
	if !h.hold(up) {
		up.Close()
		return
	}
	defer h.drop(up)
	defer h.passes(line, ear)()
	ended := make(chan struct{})
	h.others.Go(func() {
		defer close(ended)
		down(conn, up)
		conn.Close() // the worker sees that it is given up
	})
	defer func() { // what was said must arrive
		if c, ok := up.(interface{ CloseWrite() error }); ok && c.CloseWrite() == nil {
			select {
			case <-ended:
			case <-time.After(sendTime):
			}
		}
	}()
	for err == nil {
		up.SetWriteDeadline(time.Now().Add(sendTime))
		if _, err = up.Write(line); err != nil {
			return
		}
		if line, err = ear.Line(); err == nil {
			line = h.looked(line)
		}
	}
	if fault.CodeOf(err) == fault.Invalid { // a line that does not end
		if b, aerr := wire.Append(nil, wire.ToController{Done: &wire.Done{Error: wire.FromError(err)}}); aerr == nil {
			_, _ = up.Write(b)
		}
	}
}

// relayed is the line of a worker that is passed on.
type relayed struct {
	all chan struct{} // closed when all that it said was
	ear *wire.Ear
}

// passes notes that the worker which says hello has its line passed on, until the function that it returns is called.
func (h *hand) passes(hello []byte, ear *wire.Ear) (over func()) {
	var m wire.ToController
	if json.Unmarshal(hello, &m) != nil || m.Hello == nil {
		return func() {}
	}
	who := teller{m.Hello.PID, m.Hello.Rank}
	passed := relayed{make(chan struct{}), ear}
	h.mu.Lock()
	h.relays[who] = passed
	h.mu.Unlock()
	return func() {
		close(passed.all)
		h.mu.Lock()
		defer h.mu.Unlock()
		if h.relays[who] == passed {
			delete(h.relays, who)
		}
	}
}

// down gives a worker what the controller says, until that hangs up. A worker that does not read is told nothing more.
func down(conn *net.UnixConn, up net.Conn) {
	b := make([]byte, 16<<10)
	for {
		n, err := up.Read(b)
		if n > 0 {
			conn.SetWriteDeadline(time.Now().Add(time.Second)) // it asks for one line at a time: there is room
			if _, werr := conn.Write(b[:n]); werr != nil {
				_ = conn.CloseWrite() // what it has said is passed on all the same
			}
		}
		if err != nil {
			return
		}
	}
}

// looked is a line whose report says what is wrong with its folder.
func (h *hand) looked(line []byte) []byte {
	if !bytes.Contains(line, []byte(`"dir"`)) {
		return line
	}
	var m wire.ToController
	if json.Unmarshal(line, &m) != nil || m.Report == nil || m.Report.Dir == "" {
		return line // the controller says what is wrong with it
	}
	m.Report.Error = wire.FromError(h.checkDir(m.Report.Dir))
	b, err := wire.Append(nil, m)
	if err != nil {
		return line
	}
	return b
}
