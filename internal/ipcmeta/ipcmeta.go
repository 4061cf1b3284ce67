// Package ipcmeta reads the messages of an Arrow IPC stream that comes from outside:
// arrow-go's own reader believes what the metadata claims, and so allocates without bound.
package ipcmeta

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Limits of what one message may claim.
type Limits struct {
	Meta int64 // bytes of metadata
	Body int64 // bytes of the body
}

const (
	believed  = 4 << 20 // bytes of a body that are allocated before the first has come
	maxFields = 1 << 20 // of a schema, nested ones included
	maxDepth  = 64      // nesting of types
)

// Reader is an ipc.MessageReader with limits. Not safe for concurrent use.
type Reader struct {
	r      io.Reader
	limits Limits
	alloc  memory.Allocator
	stream Stream
	last   *ipc.Message
}

// NewReader reads messages from r; bodies come from alloc.
func NewReader(r io.Reader, limits Limits, alloc memory.Allocator) *Reader {
	return &Reader{r: r, limits: limits, alloc: alloc}
}

// Message returns the next message, valid until the next call, or io.EOF.
func (r *Reader) Message() (*ipc.Message, error) {
	r.Release()
	var word [4]byte
	if _, err := io.ReadFull(r.r, word[:]); err != nil {
		return nil, err // io.EOF between messages
	}
	n := int64(binary.LittleEndian.Uint32(word[:]))
	if n == 0xffffffff { // else the form before 0.15, without a mark
		if err := r.full(word[:]); err != nil {
			return nil, err
		}
		n = int64(binary.LittleEndian.Uint32(word[:]))
	}
	if n == 0 {
		return nil, io.EOF
	}
	if n < 4 || n > r.limits.Meta {
		return nil, fmt.Errorf("a message with %d bytes of metadata; at most %d", n, r.limits.Meta)
	}
	meta := make([]byte, n)
	if err := r.full(meta); err != nil {
		return nil, err
	}
	size, err := r.stream.Check(meta)
	if err != nil {
		return nil, err
	}
	if size < 0 || size > r.limits.Body {
		return nil, fmt.Errorf("a message with a body of %d bytes; at most %d", size, r.limits.Body)
	}
	body := memory.NewResizableBuffer(r.alloc)
	defer body.Release()
	first := min(size, believed)
	body.Resize(int(first))
	if err := r.full(body.Bytes()); err != nil {
		return nil, err
	}
	if first < size {
		body.Resize(int(size))
		if err := r.full(body.Bytes()[first:]); err != nil {
			return nil, err
		}
	}
	m := memory.NewBufferBytes(meta)
	defer m.Release()
	r.last = ipc.NewMessage(m, body)
	return r.last, nil
}

func (r *Reader) full(b []byte) error {
	_, err := io.ReadFull(r.r, b)
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// Retain does nothing: the reader has one owner.
func (r *Reader) Retain() {}

// Release frees the last message. Idempotent.
func (r *Reader) Release() {
	if r.last != nil {
		r.last.Release()
		r.last = nil
	}
}

// Bounded is an allocator that refuses requests over Max by a panic, which arrow-go's reader turns into
// an error: compressed buffers claim any size.
type Bounded struct {
	memory.Allocator
	Max int
}

func (b Bounded) Allocate(n int) []byte {
	b.check(n)
	return b.Allocator.Allocate(n)
}

func (b Bounded) Reallocate(n int, p []byte) []byte {
	b.check(n)
	return b.Allocator.Reallocate(n, p)
}

func (b Bounded) check(n int) {
	if n < 0 || n > b.Max {
		panic(fmt.Errorf("a buffer of %d bytes; at most %d", n, b.Max))
	}
}

// Check is [Stream.Check] of a message of which no schema is known.
func Check(meta []byte) (body int64, err error) { return new(Stream).Check(meta) }

// Stream checks the messages of a stream. From the schema it learns how many columns of views records and dictionaries have: arrow-go reads as many numbers of
// buffers as there are such columns, however many there are, and allocates what they say. The zero Stream has no schema yet.
type Stream struct {
	record int           // columns of views of a record
	values map[int64]int // and of the values of each dictionary
}

// Check walks the metadata of a message: every vector must lie in it, types may not nest
// without end, and columns of views have no more buffers than there are. It returns the length of the body.
func (s *Stream) Check(meta []byte) (body int64, err error) {
	defer func() {
		if p := recover(); p != nil { // an offset that leaves the buffer
			err = fmt.Errorf("metadata is damaged: %v", p)
		}
	}()
	m := table{meta, u32(meta, 0)}
	if h, ok := m.table(2); ok {
		switch m.byte(1) {
		case 1: // schema
			h.vector(2, 4)
			left := maxFields
			fields(h.tables(1), 0, &left)
			s.values = map[int64]int{}
			s.record = s.views(h.tables(1))
		case 2: // dictionary
			if d, ok := h.table(1); ok {
				batch(d, s.values[h.int64(0)])
			}
		case 3:
			batch(h, s.record)
		}
	}
	return m.int64(3), nil
}

// views counts the columns of views of fields, and notes those of dictionaries.
func (s *Stream) views(ts []table) (n int) {
	for _, t := range ts {
		of := s.views(t.tables(5))
		if typ := t.byte(2); typ == 23 || typ == 24 {
			of++
		}
		if d, ok := t.table(4); ok {
			id := d.int64(0)
			s.values[id] = max(s.values[id], of)
		} else {
			n += of
		}
	}
	return n
}

func batch(t table, views int) {
	t.vector(1, 16)
	_, left := t.vector(2, 16) // buffers
	at, n := t.vector(4, 8)    // how many of them are of each column of views
	if at != 0 && n < views {
		panic(fmt.Sprintf("the buffers of %d columns of views, of %d", n, views))
	}
	for i := range n {
		v := binary.LittleEndian.Uint64(t.b[at+8*i:])
		if v > uint64(left) {
			panic(fmt.Sprintf("a column of %d buffers, of %d", v, left))
		}
		left -= int(v)
	}
}

// fields counts, as tables may be shared and so claim more than there are bytes.
func fields(ts []table, depth int, left *int) {
	if *left -= len(ts); *left < 0 || depth > maxDepth {
		panic(fmt.Sprintf("more than %d fields, or nested deeper than %d", maxFields, maxDepth))
	}
	for _, t := range ts {
		t.vector(6, 4)
		if u, ok := t.table(3); ok && t.byte(2) == 14 { // the type ids of a union
			u.vector(1, 4)
		}
		fields(t.tables(5), depth+1, left)
	}
}

// table is a table of a flatbuffer. Offsets that leave the buffer panic.
type table struct {
	b   []byte
	pos int
}

func u16(b []byte, at int) int { return int(binary.LittleEndian.Uint16(b[at:])) }
func u32(b []byte, at int) int { return int(binary.LittleEndian.Uint32(b[at:])) }

// at is the position of field id, 0 if it is absent.
func (t table) at(id int) int {
	vt := t.pos - int(int32(u32(t.b, t.pos)))
	if o := 4 + 2*id; o < u16(t.b, vt) {
		if v := u16(t.b, vt+o); v != 0 {
			return t.pos + v
		}
	}
	return 0
}

func (t table) byte(id int) byte {
	if at := t.at(id); at != 0 {
		return t.b[at]
	}
	return 0
}

func (t table) int64(id int) int64 {
	if at := t.at(id); at != 0 {
		return int64(binary.LittleEndian.Uint64(t.b[at:]))
	}
	return 0
}

func (t table) table(id int) (table, bool) {
	at := t.at(id)
	if at == 0 {
		return table{}, false
	}
	return table{t.b, at + u32(t.b, at)}, true
}

// vector finds the elements, of size bytes each: their position and number.
func (t table) vector(id, size int) (at, n int) {
	if at = t.at(id); at == 0 {
		return 0, 0
	}
	at += u32(t.b, at)
	n = u32(t.b, at)
	at += 4
	_ = t.b[at : at+n*size]
	return at, n
}

func (t table) tables(id int) []table {
	at, n := t.vector(id, 4)
	ts := make([]table, n)
	for i := range ts {
		p := at + 4*i
		ts[i] = table{t.b, p + u32(t.b, p)}
	}
	return ts
}
