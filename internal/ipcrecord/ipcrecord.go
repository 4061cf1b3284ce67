// Package ipcrecord says a record batch in the words of Arrow IPC, for two processes that both know its schema: the metadata of its dictionaries and of
// itself apart from the bytes of their bodies, which are neither copied on their way out nor, once they lie in memory, on their way in.
package ipcrecord

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/ipcmeta"
	"github.com/penstock-data/penstock/internal/mem"
)

// MaxMeta bounds the metadata of one record.
const MaxMeta = 64 << 20

// Record is a batch on its way out. It keeps the batch's buffers until End.
type Record struct {
	Meta   []byte // metadata of each message, with its length in front
	Size   int64  // bytes that Write writes: a multiple of 8
	bodies [][]byte
	last   ipc.Payload
}

var zeroed = mem.Zeroed{Allocator: memory.DefaultAllocator}

// New takes rec in, which it borrows. Unsupported: a type that IPC cannot hold.
func New(rec arrow.RecordBatch) (_ *Record, err error) {
	r := &Record{}
	defer func() {
		if p := recover(); p != nil { // arrow-go's writer, on types and layouts it does not know
			err = fmt.Errorf("%v", p)
		}
		if err != nil {
			r.End()
			err = fault.WithCode(fault.Unsupported, fmt.Errorf("a record that cannot be sent to another process: %w", err))
		}
	}()
	for _, f := range rec.Schema().Fields() {
		if HasDictionary(f.Type) {
			w := ipc.NewWriterWithPayloadWriter(&spool{r: r}, ipc.WithSchema(rec.Schema()), ipc.WithAllocator(zeroed))
			if err = w.Write(rec); err == nil {
				err = w.Close()
			}
			return r, err
		}
	}
	if r.last, err = ipc.GetRecordBatchPayload(rec, ipc.WithAllocator(zeroed)); err != nil {
		return nil, err
	}
	return r, r.note(&r.last)
}

// note adds what is said of a payload.
func (r *Record) note(p *ipc.Payload) error {
	m := p.Meta()
	defer m.Release()
	r.Meta = binary.LittleEndian.AppendUint32(r.Meta, uint32(m.Len()))
	r.Meta = append(r.Meta, m.Bytes()...)
	n, err := ipcmeta.Check(m.Bytes())
	r.Size += n
	if err == nil && len(r.Meta) > MaxMeta {
		err = fault.New(fault.Exhausted, "it takes %d bytes to describe it, at most %d: take smaller batches", len(r.Meta), MaxMeta)
	}
	return err
}

// Write writes the bodies.
func (r *Record) Write(w io.Writer) error {
	for _, b := range r.bodies {
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return r.last.SerializeBody(w)
}

// End lets go of the batch. Idempotent.
func (r *Record) End() {
	r.last.Release()
	r.last, r.bodies = ipc.Payload{}, nil
}

// spool takes a stream's messages: both sides know the schema; the bodies of the others are copied, as payloads end with the call.
type spool struct {
	r    *Record
	seen bool // the schema
}

func (s *spool) Start() error { return nil }
func (s *spool) Close() error { return nil }

func (s *spool) WritePayload(p ipc.Payload) error {
	if !s.seen {
		s.seen = true
		return nil
	}
	before := s.r.Size
	if err := s.r.note(&p); err != nil {
		return err
	}
	b := body{b: make([]byte, 0, s.r.Size-before)}
	err := p.SerializeBody(&b)
	s.r.bodies = append(s.r.bodies, b.b)
	return err
}

type body struct{ b []byte }

func (b *body) Write(p []byte) (int, error) {
	b.b = append(b.b, p...)
	return len(p), nil
}

// HasDictionary reports whether a type has one anywhere.
func HasDictionary(t arrow.DataType) bool {
	switch t := t.(type) {
	case *arrow.DictionaryType:
		return true
	case arrow.ExtensionType:
		return HasDictionary(t.StorageType())
	case arrow.NestedType:
		for _, f := range t.Fields() {
			if HasDictionary(f.Type) {
				return true
			}
		}
	}
	return false
}

// Schema is a schema as Decode wants it.
func Schema(s *arrow.Schema) []byte {
	p := ipc.GetSchemaPayload(s, memory.DefaultAllocator)
	defer p.Release()
	m := p.Meta()
	defer m.Release()
	return append([]byte(nil), m.Bytes()...)
}

// Decode makes the record that Meta describes; its buffers are parts of rows, of which the caller keeps its reference. Corrupt: they do not fit.
func Decode(schema, meta []byte, rows *memory.Buffer) (arrow.RecordBatch, error) {
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

func damaged(format string, args ...any) error {
	return fault.New(fault.Corrupt, "a record of another process is damaged: "+format, args...)
}

// validate checks the columns, so that nothing later reads outside of buffers.
func validate(rec arrow.RecordBatch) (err error) {
	defer func() {
		if p := recover(); p != nil { // some checks of arrow-go read what they are to check
			err = fmt.Errorf("%v", p)
		}
	}()
	for i, c := range rec.Columns() {
		if int64(c.Len()) != rec.NumRows() {
			return fmt.Errorf("column %q has %d rows, the record %d", rec.ColumnName(i), c.Len(), rec.NumRows())
		}
		if err := check(c.Data()); err != nil {
			return fmt.Errorf("column %q: %w", rec.ColumnName(i), err)
		}
	}
	return nil
}

// messages are a schema, and what came of a record, as ipc.MessageReader.
type messages struct {
	schema []byte // nil: it was read
	stream ipcmeta.Stream
	meta   []byte // what is left of it
	rows   *memory.Buffer
	at     int // in rows
	last   *ipc.Message
}

func (m *messages) Message() (*ipc.Message, error) {
	m.Release()
	if m.schema != nil {
		if _, err := m.stream.Check(m.schema); err != nil {
			return nil, err
		}
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
	size, err := m.stream.Check(meta)
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
