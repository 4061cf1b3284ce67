package ipcio

import (
	"encoding/binary"
	"runtime"
	"runtime/debug"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
)

// A small reader of flatbuffers: enough for Arrow's metadata, without copies.
// Offsets that leave the buffer panic with a runtime error; guard turns that
// into a Corrupt error, and every exported path runs under guard.

// guard runs f and turns panics over outside bytes into Corrupt errors, and a memory fault into an errFault.
func guard(what string, f func() error) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if p := recover(); p != nil {
			if e, ok := p.(*fault.Error); ok { // the allocator's, when memory is out
				err = e
				return
			}
			if e, ok := p.(interface{ Addr() uintptr }); ok {
				err = errFault(e.Addr())
				return
			}
			if e, ok := p.(runtime.Error); ok {
				err = driver.Errorf(driver.Corrupt, "%s: the metadata is damaged: it points outside of itself; write the file again (%w)", what, e)
				return
			}
			if e, ok := p.(error); ok {
				err = driver.Errorf(driver.Corrupt, "%s: %w", what, e)
				return
			}
			err = driver.Errorf(driver.Corrupt, "%s: %v", what, p)
		}
	}()
	return f()
}

// errFault is an access to memory that faulted, at this address.
type errFault uintptr

func (errFault) Error() string { return "memory fault" }

func u16(b []byte, at int) int   { return int(binary.LittleEndian.Uint16(b[at:])) }
func u32(b []byte, at int) int   { return int(binary.LittleEndian.Uint32(b[at:])) }
func i64(b []byte, at int) int64 { return int64(binary.LittleEndian.Uint64(b[at:])) }

type table struct {
	b   []byte
	pos int
}

func root(b []byte) table { return table{b, u32(b, 0)} }

// at is the position of field id, 0 if it is absent. It must find whatever the
// library's own reader finds.
func (t table) at(id int) int {
	vt := t.pos - int(int32(u32(t.b, t.pos)))
	if o := 4 + 2*id; o < u16(t.b, vt) {
		if v := u16(t.b, vt+o); v != 0 {
			return t.pos + v
		}
	}
	return 0
}

func (t table) int8(id int) int8 {
	if at := t.at(id); at != 0 {
		return int8(t.b[at])
	}
	return 0
}

func (t table) int16(id int) int16 {
	if at := t.at(id); at != 0 {
		return int16(u16(t.b, at))
	}
	return 0
}

func (t table) int64(id int) int64 {
	if at := t.at(id); at != 0 {
		return i64(t.b, at)
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

// vector returns the elements, size bytes each.
func (t table) vector(id, size int) []byte {
	at := t.at(id)
	if at == 0 {
		return nil
	}
	at += u32(t.b, at)
	n := u32(t.b, at)
	return t.b[at+4 : at+4+n*size : at+4+n*size]
}

// tables returns the elements of a vector of tables.
func (t table) tables(id int) []table {
	v := t.vector(id, 4)
	if v == nil {
		return nil
	}
	at := t.at(id)
	at += u32(t.b, at) + 4
	ts := make([]table, len(v)/4)
	for i := range ts {
		p := at + 4*i
		ts[i] = table{t.b, p + u32(t.b, p)}
	}
	return ts
}

// Message headers and bounds of what metadata may claim.
const (
	headerSchema     = 1
	headerDictionary = 2
	headerRecord     = 3

	maxMeta   = 64 << 20 // bytes of one message's metadata
	maxFields = 1 << 20  // fields of a schema, nested ones included
	maxDepth  = 64       // nesting of types
	maxRows   = 1<<31 - 1
)

// field mirrors a field of the schema: what arrow.Schema does not keep.
type field struct {
	dict     int64 // id of the dictionary, -1 if it is not encoded
	children []field
}

// schemaOf reads a Schema table. The tree of fields is walked under bounds first,
// as tables may be shared and so claim more than there are bytes.
func schemaOf(t table) (*arrow.Schema, []field, error) {
	if t.int16(0) != 0 {
		return nil, nil, driver.Errorf(driver.Unsupported, "the file is big-endian; rewrite it on this machine")
	}
	t.vector(2, 4) // custom metadata: claims no more than there is
	left := maxFields
	fields, err := walk(t.tables(1), 0, &left)
	if err != nil {
		return nil, nil, err
	}
	r, err := ipc.NewReaderFromMessageReader(&oneMessage{schemaMessage(t)}, ipc.WithEnsureNativeEndian(false))
	if err != nil {
		return nil, nil, driver.Errorf(driver.Corrupt, "the schema is damaged, or of a kind that is not read; write the file again: %w", err)
	}
	defer r.Release()
	s := r.Schema()
	seen := map[string]bool{}
	for i, f := range s.Fields() {
		if seen[f.Name] {
			return nil, nil, driver.Errorf(driver.Unsupported, "two columns are called %q; rename one", f.Name).At(driver.Place{Column: f.Name})
		}
		seen[f.Name] = true
		if err := supported(f.Type, fields[i]); err != nil {
			return nil, nil, driver.Wrap(err, driver.Place{Column: f.Name})
		}
	}
	return s, fields, nil
}

func walk(ts []table, depth int, left *int) ([]field, error) {
	if *left -= len(ts); *left < 0 || depth > maxDepth {
		return nil, driver.Errorf(driver.Corrupt, "the schema has more than %d fields, or is nested deeper than %d", maxFields, maxDepth)
	}
	fs := make([]field, len(ts))
	for i, t := range ts {
		fs[i].dict = -1
		if d, ok := t.table(4); ok {
			fs[i].dict = d.int64(0)
		}
		t.vector(6, 4)
		if u, ok := t.table(3); ok && t.int8(2) == 14 { // a union's type ids
			u.vector(1, 4)
		}
		var err error
		if fs[i].children, err = walk(t.tables(5), depth+1, left); err != nil {
			return nil, err
		}
	}
	return fs, nil
}

// schemaMessage puts a Message in front of a Schema table, whose offsets, being
// relative, hold.
func schemaMessage(t table) []byte {
	const head = 40
	b := make([]byte, head, head+len(t.b))
	put16 := func(at int, v uint16) { binary.LittleEndian.PutUint16(b[at:], v) }
	put32 := func(at int, v uint32) { binary.LittleEndian.PutUint32(b[at:], v) }
	put32(0, 16) // root
	// vtable at 4: version, header type, header, body length
	put16(4, 12)
	put16(6, 24)
	put16(8, 4)
	put16(10, 6)
	put16(12, 8)
	put16(14, 16)
	put32(16, 12) // the table, back to its vtable
	put16(20, 4)  // V5
	b[22] = headerSchema
	put32(24, uint32(head+t.pos-24))
	return append(b, t.b...)
}

// oneMessage is an ipc.MessageReader of one message without a body.
type oneMessage struct{ meta []byte }

func (m *oneMessage) Message() (*ipc.Message, error) {
	return ipc.NewMessage(memory.NewBufferBytes(m.meta), memory.NewBufferBytes(nil)), nil
}
func (*oneMessage) Retain()  {}
func (*oneMessage) Release() {}

// message is the metadata of a dictionary or record batch.
type message struct {
	header  int8
	bodyLen int64
	dict    int64 // dictionaries: id
	delta   bool
	batch
}

// batch is a RecordBatch table.
type batch struct {
	rows     int64
	nodes    []byte // {length, nulls int64} each
	buffers  []byte // {offset, length int64} each
	variadic []byte // int64 each
	codec    int8   // codecNone, codecLZ4, codecZstd
}

const (
	codecNone = int8(-1)
	codecLZ4  = int8(0)
	codecZstd = int8(1)
)

// messageOf parses the metadata of a message.
func messageOf(meta []byte) (m message, t table, err error) {
	t = root(meta)
	m.header, m.bodyLen = t.int8(1), t.int64(3)
	h, ok := t.table(2)
	if !ok || m.bodyLen < 0 {
		return m, t, driver.Errorf(driver.Corrupt, "a message has no header, or a body of %d bytes", m.bodyLen)
	}
	version := t.int16(0)
	switch m.header {
	case headerSchema:
		return m, h, nil
	case headerDictionary:
		m.dict, m.delta = h.int64(0), h.int8(2) != 0
		if h, ok = h.table(1); !ok {
			return m, t, driver.Errorf(driver.Corrupt, "a dictionary has no data")
		}
	case headerRecord:
	default:
		return m, t, driver.Errorf(driver.Unsupported, "a message of type %d; tables hold record batches and dictionaries", m.header)
	}
	if version < 3 || version > 4 {
		return m, t, driver.Errorf(driver.Unsupported, "metadata version %d; 4 and 5 are read", version+1)
	}
	m.batch = batch{rows: h.int64(0), nodes: h.vector(1, 16), buffers: h.vector(2, 16), variadic: h.vector(4, 8), codec: codecNone}
	if c, ok := h.table(3); ok {
		m.codec = c.int8(0)
		if m.codec != codecLZ4 && m.codec != codecZstd || c.int8(1) != 0 {
			return m, t, driver.Errorf(driver.Unsupported, "compression codec %d, method %d; lz4 and zstd per buffer are read", m.codec, c.int8(1))
		}
	}
	if m.codec == codecNone && version == 3 {
		if m.codec, err = earlyCodec(t); err != nil {
			return m, t, err
		}
	}
	if m.rows < 0 || m.rows > maxRows {
		return m, t, driver.Errorf(driver.Corrupt, "a batch claims %d rows", m.rows)
	}
	return m, h, nil
}

// earlyCodec is the codec that Arrow 0.17 names in the metadata of the message t. Buffers are laid out as
// they are today.
func earlyCodec(t table) (int8, error) {
	for _, kv := range t.tables(4) {
		if string(kv.text(0)) != "ARROW:experimental_compression" {
			continue
		}
		switch name := strings.ToLower(string(kv.text(1))); name {
		case "uncompressed":
			return codecNone, nil
		case "lz4", "lz4_frame":
			return codecLZ4, nil
		case "zstd":
			return codecZstd, nil
		default:
			return 0, driver.Errorf(driver.Unsupported, "buffers compressed with %q; lz4 and zstd are read", name)
		}
	}
	return codecNone, nil
}

// text returns the bytes of a string.
func (t table) text(id int) []byte { return t.vector(id, 1) }
