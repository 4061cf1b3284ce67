package exchange

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/ipcmeta"
	"github.com/penstock-data/penstock/internal/mem"
)

// encoder makes the frames of records. One goroutine uses it.
type encoder struct {
	schema *arrow.Schema // of the last record
	text   []byte        // it, as metadata
	plain  bool          // it has no dictionaries
	told   *arrow.Schema // what the other side knows; nil: nothing
	meta   []byte        // of the record and its dictionaries
	rows   int64         // bytes of their bodies
	bodies [][]byte      // of the dictionaries
	last   ipc.Payload   // the record
}

var zeroed = mem.Zeroed{Allocator: memory.DefaultAllocator}

// begin takes a record in: meta and rows are what is to be said of it, after its schema, where that is not told; write writes its bodies, end lets it go.
func (e *encoder) begin(rec arrow.RecordBatch) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("%v", p)
		}
		if err != nil {
			e.end()
			err = fault.WithCode(fault.Unsupported, fmt.Errorf("a record that cannot be sent to another node: %w", err))
		}
	}()
	e.meta, e.rows = e.meta[:0], 0
	s := rec.Schema()
	if s != e.schema && (e.schema == nil || !s.Equal(e.schema) || !s.Metadata().Equal(e.schema.Metadata())) {
		p := ipc.GetSchemaPayload(s, memory.DefaultAllocator)
		e.text = copyMeta(nil, &p)
		p.Release()
		e.schema, e.plain = s, true
		for _, f := range s.Fields() {
			e.plain = e.plain && !hasDictionary(f.Type)
		}
	}
	if e.plain {
		if e.last, err = ipc.GetRecordBatchPayload(rec, ipc.WithAllocator(zeroed)); err != nil {
			return err
		}
		return e.note(&e.last)
	}
	// Dictionaries go with each record: neither side holds rows of one message until another comes.
	w := ipc.NewWriterWithPayloadWriter(&spool{e: e}, ipc.WithSchema(s), ipc.WithAllocator(zeroed))
	if err = w.Write(rec); err == nil {
		err = w.Close()
	}
	return err
}

// note adds what is said of a payload.
func (e *encoder) note(p *ipc.Payload) error {
	at := len(e.meta)
	e.meta = copyMeta(append(e.meta, 0, 0, 0, 0), p)
	binary.LittleEndian.PutUint32(e.meta[at:], uint32(len(e.meta)-at-4))
	n, err := ipcmeta.Check(e.meta[at+4:])
	e.rows += n
	if err == nil && (len(e.meta) > maxMeta || len(e.text) > maxMeta || e.rows > maxRows) {
		err = fault.New(fault.Exhausted, "it takes %d bytes, and %d to describe it; at most %d and %d: take smaller batches", e.rows, len(e.meta), int64(maxRows), maxMeta)
	}
	return err
}

func copyMeta(b []byte, p *ipc.Payload) []byte {
	m := p.Meta()
	defer m.Release()
	return append(b, m.Bytes()...)
}

// write writes the bodies.
func (e *encoder) write(w io.Writer) error {
	for _, b := range e.bodies {
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return e.last.SerializeBody(w)
}

// end lets go of the record.
func (e *encoder) end() {
	e.last.Release()
	e.last = ipc.Payload{}
	clear(e.bodies)
	e.bodies = e.bodies[:0]
}

// spool takes a stream's messages: the schema is said otherwise, the bodies of the others are kept, as payloads end with the call.
type spool struct {
	e    *encoder
	seen bool // the schema
}

func (s *spool) Start() error { return nil }
func (s *spool) Close() error { return nil }

func (s *spool) WritePayload(p ipc.Payload) error {
	if !s.seen {
		s.seen = true
		return nil
	}
	before := s.e.rows
	if err := s.e.note(&p); err != nil {
		return err
	}
	b := body{b: make([]byte, 0, s.e.rows-before)}
	err := p.SerializeBody(&b)
	s.e.bodies = append(s.e.bodies, b.b)
	return err
}

type body struct{ b []byte }

func (b *body) Write(p []byte) (int, error) {
	b.b = append(b.b, p...)
	return len(p), nil
}

// hasDictionary reports whether a type has one anywhere.
func hasDictionary(t arrow.DataType) bool {
	switch t := t.(type) {
	case *arrow.DictionaryType:
		return true
	case arrow.ExtensionType:
		return hasDictionary(t.StorageType())
	case arrow.NestedType:
		for _, f := range t.Fields() {
			if hasDictionary(f.Type) {
				return true
			}
		}
	}
	return false
}

// decode makes the record whose metadata and rows came; its buffers are parts of rows, of which the caller keeps its reference.
func decode(schema, meta []byte, rows *memory.Buffer) (arrow.RecordBatch, error) {
	if schema == nil {
		return nil, damaged("a record before its schema")
	}
	ms := &messages{schema: schema, meta: meta, rows: rows}
	defer ms.Release()
	// What is read needs no memory but for its columns' descriptions: nothing is compressed.
	r, err := ipc.NewReaderFromMessageReader(ms, ipc.WithAllocator(ipcmeta.Bounded{Allocator: memory.DefaultAllocator, Max: rows.Len()}))
	if err != nil {
		return nil, damaged("%w", err)
	}
	defer r.Release()
	if !r.Next() {
		if err = r.Err(); err == nil {
			err = io.ErrUnexpectedEOF
		}
		return nil, damaged("%w", err)
	}
	rec := r.RecordBatch()
	if err := validate(rec); err != nil {
		return nil, damaged("%w", err)
	}
	if len(ms.meta) > 0 || ms.at != rows.Len() {
		return nil, damaged("%d bytes of metadata and %d of rows are left after a record", len(ms.meta), rows.Len()-ms.at)
	}
	rec.Retain()
	return rec, nil
}

// validate checks lengths, offsets and text, so that nothing later reads outside of buffers.
func validate(rec arrow.RecordBatch) (err error) {
	defer func() {
		if p := recover(); p != nil { // some checks of arrow-go read what they are to check
			err = fmt.Errorf("%v", p)
		}
	}()
	return array.ValidateRecordFull(rec)
}

// messages are a schema, and what came of a record, as ipc.MessageReader.
type messages struct {
	schema []byte // nil: it was read
	meta   []byte // what is left of it
	rows   *memory.Buffer
	at     int // in rows
	last   *ipc.Message
}

func (m *messages) Message() (*ipc.Message, error) {
	m.Release()
	if m.schema != nil {
		m.last = ipc.NewMessage(memory.NewBufferBytes(m.schema), memory.NewBufferBytes(nil))
		m.schema = nil
		return m.last, nil
	}
	if len(m.meta) == 0 {
		return nil, io.EOF
	}
	if len(m.meta) < 4 || int64(binary.LittleEndian.Uint32(m.meta)) > int64(len(m.meta)-4) {
		return nil, fmt.Errorf("%d bytes where metadata is due", len(m.meta))
	}
	n := 4 + int(binary.LittleEndian.Uint32(m.meta))
	meta := m.meta[4:n:n]
	m.meta = m.meta[n:]
	size, err := ipcmeta.Check(meta)
	if err != nil {
		return nil, err
	}
	if size < 0 || size%8 != 0 || size > int64(m.rows.Len()-m.at) {
		return nil, fmt.Errorf("a body of %d bytes; %d follow", size, m.rows.Len()-m.at)
	}
	body := memory.SliceBuffer(m.rows, m.at, int(size))
	defer body.Release()
	m.at += int(size)
	m.last = ipc.NewMessage(memory.NewBufferBytes(meta), body)
	return m.last, nil
}

// Retain does nothing: there is one owner.
func (m *messages) Retain() {}

// Release frees the last message. Idempotent.
func (m *messages) Release() {
	if m.last != nil {
		m.last.Release()
		m.last = nil
	}
}
