package exchange

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/ipcrecord"
	"github.com/penstock-data/penstock/shard"
)

// incoming is what comes from a node. The goroutine that listens reads small messages, and of others the header: these are due then, and it waits until Receive has taken the rest.
type incoming struct {
	r      *bufio.Reader
	schema []byte        // of records
	queue  chan []byte   // heads of small messages; nil: one is due
	taken  chan struct{} // room 1

	body  sync.Mutex // held by Receive while it reads, and by the listener before it drops a message
	half  message    // guarded by body
	begun bool       // Receive has begun a message; its own

	mu     sync.Mutex // of deadlines
	set    time.Time  // when there was one
	cut    bool       // it has passed on purpose
	header [headerSize]byte
}

// message is one that is being read.
type message struct {
	header
	at struct{ head, meta, rows []byte } // what has come; rows: before the reading was interrupted
}

// left is how many bytes have not.
func (m *message) left() int64 {
	return m.header.left() - int64(len(m.at.head)) - int64(len(m.at.meta)) - int64(len(m.at.rows))
}

// Of messages without rows, and a head of at most smallHead bytes, room are read before anybody receives them.
const (
	smallHead = 4 << 10
	room      = 128
)

// believed is how many bytes are allocated before the first has come; growth is by how much more each time these have.
const (
	believed = 8 << 20
	growth   = 8
)

// listen reads until the connection ends.
func (p *peer) listen() {
	defer p.abort()
	for {
		h, err := p.next()
		if err == nil {
			err = p.take(h)
		}
		if err != nil {
			p.fail(p.lost(err))
			return
		}
	}
}

func (p *peer) next() (header, error) {
	b := &p.in.header
	if _, err := io.ReadFull((*reader)(p), b[:]); err != nil {
		return header{}, err
	}
	return parseHeader(b)
}

// take takes a frame in.
func (p *peer) take(h header) error {
	switch h.kind {
	case framePing:
	case frameSchema:
		p.in.schema = nil
		return p.bytes(&p.in.schema, h.meta)
	case frameEnd:
		p.stop(fault.New(fault.WorkerLost, "node %d has closed its exchange: %w", p.node, io.EOF))
		p.c.SetWriteDeadline(time.Now().Add(Silence))
		p.out.turn <- struct{}{} // whoever has it comes to an end: what this node sends is dropped there
		err := p.out.frame(&header{kind: frameEnded})
		<-p.out.turn
		return err
	case frameEnded:
		if !p.closing() {
			return damaged("an answer to nothing")
		}
		close(p.acked)
		return io.EOF
	default:
		return p.offer(h)
	}
	return nil
}

// offer leaves a message to Receive, or drops it where nobody calls that any more.
func (p *peer) offer(h header) error {
	in := &p.in
	var head []byte
	if h.kind == framePlain && h.head <= smallHead {
		head = make([]byte, 0, max(h.head, 1)) // not nil
		if err := p.bytes(&head, h.head); err != nil {
			return err
		}
		h.head = 0
	} else {
		in.body.Lock()
		in.half = message{header: h}
		in.body.Unlock()
	}
	if !p.closing() { // else nothing takes it
		select {
		case in.queue <- head:
			if head != nil {
				return nil
			}
			select {
			case <-in.taken:
				return nil
			case <-p.done:
				return p.err
			case <-p.x.closing:
			}
		case <-p.done:
			return p.err
		case <-p.x.closing:
		}
	}
	if head != nil {
		return nil
	}
	p.cut()
	in.body.Lock() // Receive has left
	in.uncut()
	left := in.half.left()
	in.body.Unlock()
	_, err := io.CopyN(io.Discard, (*reader)(p), left)
	return err
}

// receive gives the next message.
func (p *peer) receive(ctx context.Context, alloc memory.Allocator) (m shard.Message, err error) {
	in := &p.in
	if !in.begun {
		head, err := p.due(ctx)
		if err != nil || head != nil {
			return shard.Message{Head: head}, err
		}
		in.begun = true
	}
	in.body.Lock()
	defer in.body.Unlock()
	if err := p.why(); err != nil {
		return m, err
	}
	was, err := p.read(ctx, &m, alloc)
	switch {
	case err == nil:
		in.half, in.begun = message{}, false
		in.taken <- struct{}{}
		return m, nil
	case p.closing():
		return m, errClosed
	case was:
		return m, canceled(ctx)
	}
	return m, p.fail(p.lost(err))
}

// due waits for the head of a small message, or nil for another. What came before the other side closed is there to the last.
func (p *peer) due(ctx context.Context) (head []byte, err error) {
	if p.closing() {
		return nil, errClosed
	}
	select {
	case head = <-p.in.queue:
		return head, nil
	default:
	}
	select {
	case head = <-p.in.queue:
		return head, nil
	case <-p.done:
	case <-p.x.closing:
		return nil, errClosed
	case <-ctx.Done():
		return nil, canceled(ctx)
	}
	select {
	case head = <-p.in.queue: // it came before
		return head, nil
	default:
		return nil, p.why()
	}
}

// read is message, until ctx ends; it reports whether it did.
func (p *peer) read(ctx context.Context, m *shard.Message, alloc memory.Allocator) (was bool, err error) {
	if in := &p.in; in.half.left() > int64(in.r.Buffered()) {
		settle := interrupt(ctx, p.cut)
		defer func() { // also where alloc panics
			if was = settle(); was {
				in.uncut()
			}
		}()
	}
	*m, err = p.message(&p.in.half, alloc)
	return false, err
}

// message reads what is left of a message. After an error it can be called again.
func (p *peer) message(s *message, alloc memory.Allocator) (m shard.Message, err error) {
	if err := p.bytes(&s.at.head, s.head); err != nil {
		return m, err
	}
	if err := p.bytes(&s.at.meta, s.meta); err != nil {
		return m, err
	}
	rows := memory.NewBufferBytes([]byte{})
	if s.rows > 0 {
		if rows, err = p.rows(s, alloc); err != nil {
			return m, err
		}
	}
	m.Head = s.at.head
	switch s.kind {
	case framePacked:
		m.Packed, m.Free = rows.Bytes(), rows.Release
	case frameRecord:
		m.Record, err = p.record(s.at.meta, rows)
	}
	return m, err
}

// record takes over rows.
func (p *peer) record(meta []byte, rows *memory.Buffer) (rec arrow.RecordBatch, err error) {
	l := &lent{rows: rows}
	view := memory.NewBufferWithAllocator(rows.Bytes(), l)
	if p.in.schema == nil {
		err = damaged("a record before its schema")
	} else {
		rec, err = ipcrecord.Decode(p.in.schema, meta, view)
	}
	if err != nil {
		l.rows = nil
		rows.Release()
		return nil, err
	}
	view.Release() // the record's buffers are parts of it
	return rec, nil
}

// lent gives memory back when the record in it is released. Where there is none, what was made of it counts for nothing: arrow-go forgets buffers of records that do not decode.
type lent struct {
	memory.Allocator // unused
	rows             *memory.Buffer
}

func (l *lent) Free([]byte) {
	if l.rows != nil {
		l.rows.Release()
	}
}

// bytes reads up to n bytes in all.
func (p *peer) bytes(b *[]byte, n int) error {
	for len(*b) < n {
		want := min(n, max(believed, growth*len(*b)))
		*b = slices.Grow(*b, want-len(*b))
		for len(*b) < want {
			m, err := (*reader)(p).Read((*b)[len(*b):want])
			*b = (*b)[:len(*b)+m]
			if m == 0 && err != nil {
				return err
			}
		}
	}
	return nil
}

// rows reads the rows of a message into memory of alloc, which the caller owns.
func (p *peer) rows(s *message, alloc memory.Allocator) (_ *memory.Buffer, err error) {
	n, got := int(s.header.rows), 0
	buf := memory.NewResizableBuffer(alloc)
	defer func() {
		if got < n { // also where alloc panics
			if got > 0 {
				s.at.rows = bytes.Clone(buf.Bytes()[:got])
			}
			buf.Release()
		}
	}()
	for got < n {
		buf.Resize(min(n, max(believed, growth*max(got, len(s.at.rows)))))
		if got == 0 {
			got = copy(buf.Bytes(), s.at.rows)
		}
		for got < buf.Len() {
			m, err := (*reader)(p).Read(buf.Bytes()[got:])
			if got += m; m == 0 && err != nil {
				return nil, err
			}
		}
	}
	return buf, nil
}

// reader is a peer as what comes from it. A read fails where nothing comes for the time of Silence.
type reader peer

func (r *reader) Read(b []byte) (int, error) {
	in := &r.in
	if in.r.Buffered() == 0 {
		in.mu.Lock()
		if now := time.Now(); !in.cut && now.Sub(in.set) > Silence/64 { // not for every read
			in.set = now
			r.c.SetReadDeadline(now.Add(Silence))
		}
		in.mu.Unlock()
	}
	return in.r.Read(b)
}

// cut makes reads fail, until uncut.
func (p *peer) cut() {
	p.in.mu.Lock()
	defer p.in.mu.Unlock()
	p.in.cut = true
	p.c.SetReadDeadline(past)
}

func (in *incoming) uncut() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.cut, in.set = false, time.Time{}
}
