package trainer

import (
	"errors"
	"net"
	"sync"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/internal/wire"
)

// Services of a run between the processes of its gang, all at node 0: the lines of hands, of their workers, and of their feeders.
const (
	serviceHand   = "hand"
	serviceWorker = "worker"
	serviceFeeder = "feeder"
)

const (
	beatEvery = 3 * time.Second
	silence   = 15 * time.Second // after which the other side of a hand's line is lost
	sendTime  = 10 * time.Second // for a line to leave
)

// handLine is a connection between the controller and a hand: each side says every few seconds that it is there, so that the loss of the other is seen soon. Lines are sent from any goroutine, and read by one.
type handLine struct {
	conn    net.Conn
	read    *wire.Reader
	sending sync.Mutex
	once    sync.Once
	closed  chan struct{}
}

func newHandLine(conn net.Conn) *handLine {
	return &handLine{conn: conn, read: wire.NewReader(heard{conn}), closed: make(chan struct{})}
}

// heard is a connection whose other side is not silent for long.
type heard struct{ net.Conn }

func (h heard) Read(b []byte) (int, error) {
	h.SetReadDeadline(time.Now().Add(silence))
	n, err := h.Conn.Read(b)
	if ne, ok := errors.AsType[net.Error](err); ok && ne.Timeout() {
		err = fault.New(fault.Unavailable, "nothing was heard of it for %v", silence)
	}
	return n, err
}

// send sends a line. One that does not leave is the end of the connection.
func (l *handLine) send(m any) error {
	b, err := wire.Append(nil, m)
	if err != nil {
		return err
	}
	l.sending.Lock()
	defer l.sending.Unlock()
	l.conn.SetWriteDeadline(time.Now().Add(sendTime))
	if _, err = l.conn.Write(b); err != nil {
		l.close()
		return fault.New(fault.Unavailable, "the connection is lost: %w", err)
	}
	return nil
}

// beats says that this side is there, until the line is closed.
func (l *handLine) beats(beat any) {
	t := time.NewTicker(beatEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			_ = l.send(beat) // its end is seen by who reads
		case <-l.closed:
			return
		}
	}
}

func (l *handLine) close() {
	l.once.Do(func() {
		close(l.closed)
		l.conn.Close()
	})
}
