package exchange

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// peer is another node: the connection to it, which one goroutine listens to. It takes frames between the connections themselves at once, and leaves a message to Receive.
//
// Closing is said and answered (frameEnd, frameEnded), as a connection that is closed with something unread may lose what the other side has not read either.
type peer struct {
	x    *Exchange
	node int
	c    net.Conn

	done  chan struct{} // closed by stop: nothing is sent or received any more
	acked chan struct{} // closed once the other side has everything
	once  sync.Once
	err   error // why; before done is closed

	out outgoing
	in  incoming
}

func newPeer(x *Exchange, node int, c net.Conn) *peer {
	p := &peer{x: x, node: node, c: c, done: make(chan struct{}), acked: make(chan struct{})}
	p.out.turn = make(chan struct{}, 1)
	p.out.w = bufio.NewWriterSize(c, bufferSize)
	p.in.r = bufio.NewReaderSize(c, bufferSize)
	p.in.queue, p.in.taken = make(chan []byte, room), make(chan struct{}, 1)
	return p
}

// bufferSize is that of what is gathered to be written at once, and read: a record of TLS. More goes into the connection and comes out of it directly.
const bufferSize = 16 << 10

// stop ends what goes on, for a reason; the first counts.
func (p *peer) stop(err error) error {
	p.once.Do(func() {
		p.err = err
		close(p.done)
	})
	<-p.done
	return p.err
}

// fail is stop, where the connection is no good any more.
func (p *peer) fail(err error) error {
	err = p.stop(err)
	p.abort()
	return err
}

// abort closes the connection without a word: that of TLS waits for a peer that does not read.
func (p *peer) abort() {
	c := p.c
	if t, ok := c.(interface{ NetConn() net.Conn }); ok {
		c = t.NetConn()
	}
	c.Close()
}

// lost is what an error of the connection says of the node.
func (p *peer) lost(err error) error {
	if _, ok := errors.AsType[*fault.Error](err); ok {
		return err
	}
	if e, ok := errors.AsType[net.Error](err); ok && e.Timeout() {
		return fault.New(fault.WorkerLost, "nothing came from node %d for %v: its machine or the network to it is gone", p.node, Silence)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) {
		return fault.New(fault.WorkerLost, "node %d ended the connection without a word: its process has died", p.node)
	}
	return fault.New(fault.WorkerLost, "the connection to node %d is broken: %w", p.node, err)
}

// closing reports whether this exchange is being closed.
func (p *peer) closing() bool {
	select {
	case <-p.x.closing:
		return true
	default:
		return false
	}
}

// why is the reason for which a call fails, nil if there is none.
func (p *peer) why() error {
	if p.closing() {
		return errClosed
	}
	select {
	case <-p.done:
		return p.err
	default:
		return nil
	}
}

// ping says from time to time that this node lives, where nothing else is being said.
func (p *peer) ping() {
	t := time.NewTicker(pingEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-p.done:
			return
		case <-p.x.closing:
			return
		}
		select {
		case p.out.turn <- struct{}{}:
			if err := p.out.frame(&header{kind: framePing}); err != nil {
				p.fail(p.lost(err))
			}
			<-p.out.turn
		default: // a message is on its way, or stands because the other side does not read
		}
	}
}

// close says that nothing follows, and waits until that has come.
func (p *peer) close() {
	limit := time.AfterFunc(farewell, func() { p.fail(errClosed) })
	defer limit.Stop()
	defer p.fail(errClosed)
	select {
	case p.out.turn <- struct{}{}:
	case <-p.done: // nobody is there
		return
	}
	err := p.out.frame(&header{kind: frameEnd})
	<-p.out.turn
	if err != nil {
		return
	}
	select {
	case <-p.acked:
	case <-p.done:
	}
}

// outgoing is what goes to a node.
type outgoing struct {
	turn chan struct{} // room 1: whoever has put something in may write
	w    *bufio.Writer
	rec  encoder // of the one goroutine that sends
	head [headerSize]byte
}

// frame writes a frame of a header alone. It needs the turn.
func (o *outgoing) frame(h *header) error {
	o.w.Write(h.append(o.head[:0]))
	return o.w.Flush() // says what Write said
}

// The end of time, for deadlines that have passed.
var past = time.Unix(1, 0)

// interrupt makes f end what goes on when ctx ends; settle ends that, and reports whether f was called: it has returned then.
func interrupt(ctx context.Context, f func()) (settle func() bool) {
	if ctx.Done() == nil {
		return func() bool { return false }
	}
	called := make(chan struct{})
	stop := context.AfterFunc(ctx, func() { defer close(called); f() })
	return func() bool {
		if stop() {
			return false
		}
		<-called
		return true
	}
}

func canceled(ctx context.Context) error { return fault.WithCode(fault.Canceled, context.Cause(ctx)) }
