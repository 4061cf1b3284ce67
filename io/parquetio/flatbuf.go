package parquetio

import (
	"encoding/binary"

	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/fault"
)

// checkArrowSchema walks a stored Arrow schema, as arrow-go allocates what a
// damaged one claims, and returns its message. Offsets that leave the buffer
// panic: the caller recovers.
func checkArrowSchema(b []byte) (meta []byte, err error) {
	if len(b) >= 8 && binary.LittleEndian.Uint32(b) == 0xffffffff {
		b = b[4:]
	}
	n := int(binary.LittleEndian.Uint32(b))
	msg := fbTable{b[4 : 4+n], 0}
	msg.pos = msg.u32(0)
	at := msg.at(2)
	if at == 0 {
		return nil, fault.New(fault.Corrupt, "the stored Arrow schema is damaged")
	}
	schema := fbTable{msg.b, at + msg.u32(at)}
	left := 4 * maxColumns
	schema.vector(2)
	return msg.b, schema.checkFields(1, 0, &left)
}

// oneMessage is an ipc.MessageReader of one message without a body.
type oneMessage struct{ meta []byte }

func (m *oneMessage) Message() (*ipc.Message, error) {
	return ipc.NewMessage(memory.NewBufferBytes(m.meta), memory.NewBufferBytes(nil)), nil
}
func (*oneMessage) Retain()  {}
func (*oneMessage) Release() {}

// fbTable is a table of a flatbuffer.
type fbTable struct {
	b   []byte
	pos int
}

func (t fbTable) u32(at int) int { return int(binary.LittleEndian.Uint32(t.b[at:])) }

// at is the position of field id, 0 if it is absent.
func (t fbTable) at(id int) int {
	vt := t.pos - int(int32(t.u32(t.pos)))
	if o := 4 + 2*id; o < int(binary.LittleEndian.Uint16(t.b[vt:])) {
		if v := int(binary.LittleEndian.Uint16(t.b[vt+o:])); v != 0 {
			return t.pos + v
		}
	}
	return 0
}

// vector is the first element and the number of a vector of 4 byte elements.
func (t fbTable) vector(id int) (at, n int) {
	if at = t.at(id); at == 0 {
		return 0, 0
	}
	at += t.u32(at)
	n = t.u32(at)
	_ = t.b[at+4 : at+4+4*n]
	return at + 4, n
}

// checkFields walks a vector of Field tables. Tables may be shared, and so claim
// more than there are bytes.
func (t fbTable) checkFields(id, depth int, left *int) error {
	at, n := t.vector(id)
	if *left -= n; *left < 0 || depth > maxSchemaDepth {
		return fault.New(fault.Corrupt, "the stored Arrow schema has too many fields")
	}
	for i := range n {
		p := at + 4*i
		f := fbTable{t.b, p + t.u32(p)}
		f.vector(6) // metadata
		if u := f.at(3); u != 0 {
			if k := f.at(2); k != 0 && f.b[k] == 14 { // a union's type ids
				fbTable{f.b, u + f.u32(u)}.vector(1)
			}
		}
		if err := f.checkFields(5, depth+1, left); err != nil {
			return err
		}
	}
	return nil
}
