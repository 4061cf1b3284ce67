package parquetio

import (
	"encoding/binary"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/fault"
)

// checkArrowSchema walks a stored Arrow schema, as arrow-go allocates what a
// damaged one claims, and returns its message. A column of a type that arrow-go has not is an Unsupported error that names it. Offsets that leave the buffer
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
		if what := f.unreadable(); what != "" {
			return fault.New(fault.Unsupported, "%s", what).At(fault.Place{Column: f.text(0)})
		}
		if err := f.checkFields(5, depth+1, left); err != nil {
			if e, ok := err.(*fault.Error); ok && e.Column != "" {
				e.Column = f.text(0) + "." + e.Column
			}
			return err
		}
	}
	return nil
}

// text is the string of field id, "" if it is absent.
func (t fbTable) text(id int) string {
	at := t.at(id)
	if at == 0 {
		return ""
	}
	at += t.u32(at)
	return string(t.b[at+4 : at+4+t.u32(at)])
}

// Numbers of Arrow's types in its schemas.
const (
	fbInt           = 2
	fbUnion         = 14
	fbFixedSizeList = 16
	fbLast          = 26 // large list views
)

// unreadable says what is wrong with the type of a Field table, "" if nothing is.
func (t fbTable) unreadable() string {
	const advice = ", which cannot be read; where the file is made, cast the column to "
	k, at := t.at(2), t.at(3)
	if k == 0 || at == 0 {
		return ""
	}
	typ := fbTable{t.b, at + t.u32(at)}
	switch number := t.b[k]; {
	case number == fbInt:
		sign := "uint"
		if s := typ.at(1); s != 0 && typ.b[s] != 0 {
			sign = "int"
		}
		if w := typ.at(0); w != 0 && typ.u32(w) > 64 {
			return fmt.Sprintf("the type is %s%d%sint64, double or decimal(38, 0)", sign, typ.u32(w), advice)
		}
	case number == fbUnion:
		return "the type is a union" + advice + "a struct"
	case number == fbFixedSizeList:
		if n := typ.at(0); n == 0 || typ.u32(n) == 0 {
			return "the type is a fixed-size list of 0 values" + advice + "a list"
		}
	case number > fbLast:
		return fmt.Sprintf("the type is number %d of Arrow%sone of the older types", number, advice)
	}
	return ""
}
