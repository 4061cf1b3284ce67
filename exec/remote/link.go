package remote

import (
	"bufio"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"runtime"
	"sync"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/narrow"
)

const (
	// pingEvery is how often a process that has nothing to say says that it lives; one that is silent for silence is lost.
	pingEvery = 5 * time.Second
	silence   = 30 * time.Second
	// lastWords is how long what is still to be said may take when a link ends.
	lastWords = 2 * time.Second

	readBuffer, writeBuffer = narrow.Buffer, 16 << 10
	// deadlineEvery is how often silence begins anew, at most.
	deadlineEvery = time.Second
)

// link is one connection. Whoever has something to say leaves it to the writer and never waits. One goroutine reads.
type link struct {
	c  net.Conn
	br *bufio.Reader
	// patient waits for the other side, which says nothing yet, as long as the connection is there. Of the goroutine that reads.
	patient bool
	silent  time.Time // since when the other side may be silent; the same

	mu     sync.Mutex
	said   []byte  // messages to be written
	blocks []*long // and those that are followed by bytes: each behind so many bytes of said
	err    error   // why the link ended
	ending bool    // nothing is said any more: what there is, is written
	mute   bool    // nothing can be said any more

	wake chan struct{} // room 1
	done chan struct{} // the writer is gone
}

// long is a message with bytes behind it, in a narrow form.
type long struct {
	at    int // bytes of said before it
	head  []byte
	write func(w io.Writer) error
	over  func() // called once, also where it is not written
}

func newLink(c net.Conn) *link {
	l := &link{c: c, wake: make(chan struct{}, 1), done: make(chan struct{})}
	l.br = bufio.NewReaderSize((*living)(l), readBuffer)
	go l.write()
	return l
}

// living reads from a connection whose other side says something at least every pingEvery.
type living link

func (l *living) Read(p []byte) (int, error) {
	if l.patient {
		l.silent = time.Time{}
		l.c.SetReadDeadline(time.Time{})
	} else if now := time.Now(); now.Sub(l.silent) >= deadlineEvery {
		l.silent = now
		l.c.SetReadDeadline(now.Add(silence))
	}
	n, err := l.c.Read(p)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fault.New(fault.WorkerLost, "nothing came for %v", silence)
	}
	return n, err
}

// message puts a message around what f appends.
func message(b []byte, kind byte, f func(b []byte) []byte) []byte {
	at := len(b)
	b = append(b, kind, 0, 0, 0, 0)
	if f != nil {
		b = f(b)
	}
	binary.LittleEndian.PutUint32(b[at+1:], uint32(len(b)-at-headSize))
	return b
}

// say leaves a message to the writer.
func (l *link) say(kind byte, f func(b []byte) []byte) {
	l.mu.Lock()
	if l.err == nil && !l.ending && !l.mute {
		l.said = message(l.said, kind, f)
	}
	l.mu.Unlock()
	l.signal()
}

// sayLong leaves a message with bytes to the writer. over is called when they are written, or will not be.
func (l *link) sayLong(kind byte, f func(b []byte) []byte, write func(w io.Writer) error, over func()) {
	l.mu.Lock()
	if l.err != nil || l.ending || l.mute {
		l.mu.Unlock()
		over()
		return
	}
	l.blocks = append(l.blocks, &long{at: len(l.said), head: message(nil, kind, f), write: write, over: over})
	l.mu.Unlock()
	l.signal()
}

func (l *link) signal() {
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// write is the goroutine that writes.
func (l *link) write() {
	defer close(l.done)
	bw := bufio.NewWriterSize(l.c, writeBuffer)
	nw := narrow.NewWriter(bw)
	ping := time.NewTicker(pingEvery)
	defer ping.Stop()
	var spare []byte
	for {
		l.mu.Lock()
		said, blocks, end := l.said, l.blocks, l.err != nil || l.ending && len(l.said) == 0 && len(l.blocks) == 0
		l.said, l.blocks = spare[:0], nil
		l.mu.Unlock()
		if end {
			for _, b := range blocks {
				b.over()
			}
			return
		}
		if len(said) == 0 && len(blocks) == 0 {
			select {
			case <-l.wake:
				spare = said
				runtime.Gosched() // what others are about to say goes with it
				continue
			case <-ping.C:
				said = message(said, kindPing, nil)
			}
		}
		if err := l.pour(bw, nw, said, blocks); err != nil {
			l.listenOn(err)
			return
		}
		if spare = said; cap(spare) > 1<<20 {
			spare = nil
		}
	}
}

// listenOn keeps a link of which nothing can be written for who reads it, so that the last words of the other side are heard: they may have come before. It returns when the
// link has ended, after silence at the latest.
func (l *link) listenOn(err error) {
	l.mu.Lock()
	blocks := l.blocks
	l.mute, l.said, l.blocks = true, nil, nil
	l.mu.Unlock()
	for _, b := range blocks {
		b.over()
	}
	late := time.NewTimer(silence)
	defer late.Stop()
	for {
		l.mu.Lock()
		end := l.err != nil || l.ending
		l.mu.Unlock()
		if end {
			return
		}
		select {
		case <-l.wake:
		case <-late.C:
			l.fail(err)
		}
	}
}

// pour writes messages, and flushes them. nw writes to bw.
func (l *link) pour(bw *bufio.Writer, nw *narrow.Writer, said []byte, blocks []*long) (err error) {
	if c, ok := l.c.(gang.Corker); ok && len(blocks) > 0 {
		c.Cork()
		defer func() {
			if e := c.Uncork(); err == nil {
				err = e
			}
		}()
	}
	at := 0
	for _, b := range blocks {
		if err == nil {
			_, err = bw.Write(said[at:b.at])
			at = b.at
		}
		if err == nil {
			_, err = bw.Write(b.head)
		}
		if err == nil {
			err = b.write(nw)
		}
		b.over()
	}
	if err == nil {
		_, err = bw.Write(said[at:])
	}
	if err == nil {
		err = bw.Flush()
	}
	return err
}

// next reads the head of a message and what it says, valid until the next call.
func (l *link) next(buf []byte) (kind byte, said []byte, err error) {
	var head [headSize]byte
	if _, err := io.ReadFull(l.br, head[:]); err != nil {
		return 0, nil, err
	}
	kind, n := head[0], int(binary.LittleEndian.Uint32(head[1:]))
	most := maxWords
	if kind == kindBlock {
		most = maxBlockWords
	}
	if kind == 0 || kind >= kinds || n > most {
		return 0, nil, errWords
	}
	said = buf[:0]
	for len(said) < n { // nothing is allocated for a claim alone
		k := min(n-len(said), max(64<<10, len(said)))
		at := len(said)
		said = append(said, make([]byte, k)...)
		if _, err := io.ReadFull(l.br, said[at:]); err != nil {
			return 0, nil, noEOF(err)
		}
	}
	return kind, said, nil
}

// noEOF is err in the middle of something.
func noEOF(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

// fail ends the link at once. The first reason counts.
func (l *link) fail(err error) {
	l.mu.Lock()
	if l.err == nil {
		l.err = err
	}
	l.mu.Unlock()
	l.c.Close()
	l.signal()
}

// close says what is to be said, waits for that lastWords at most, and ends the link. Whoever reads sees its end.
func (l *link) close() {
	l.mu.Lock()
	l.ending = true
	l.mu.Unlock()
	l.signal()
	late := time.NewTimer(lastWords)
	defer late.Stop()
	select {
	case <-l.done:
	case <-late.C:
	}
	l.fail(net.ErrClosed)
	<-l.done
}
