package parquetio

import (
	"encoding/binary"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
)

// checkArrowSchema walks a stored Arrow schema, as arrow-go allocates what a
// damaged one claims, and returns its message, in b. What arrow-go has no type for is null in it, and the columns with such
// types are told, by their place; lists of the fixed size 0 are lists; names of extension types are not known to it: see renamed. Offsets that leave the buffer panic with errStored: the caller recovers.
func checkArrowSchema(b []byte) (meta []byte, odd map[int]*driver.Unreadable, err error) {
	all := fbTable{b, 0}
	if len(b) >= 8 && binary.LittleEndian.Uint32(b) == 0xffffffff {
		all.pos = 4
	}
	msg := fbTable{all.bytes(all.pos+4, all.u32(all.pos)), 0}
	msg.pos = msg.u32(0)
	at := msg.at(2)
	if at == 0 {
		return nil, nil, errStored
	}
	schema := fbTable{msg.b, at + msg.u32(at)}
	schema.vector(2)
	c := schemaCheck{left: 4 * maxColumns, odd: map[int]*driver.Unreadable{}, put: map[int]byte{}}
	if err := c.fields(schema, 1, 0, "", -1); err != nil {
		return nil, nil, err
	}
	for at, v := range c.put { // tables may be shared: not before all were seen
		msg.b[at] = v
	}
	return msg.b, c.odd, nil
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

// bytes are n bytes at a place, or a panic.
func (t fbTable) bytes(at, n int) []byte {
	if at < 0 || n < 0 || at > len(t.b) || n > len(t.b)-at {
		panic(errStored)
	}
	return t.b[at : at+n]
}

func (t fbTable) byte(at int) byte { return t.bytes(at, 1)[0] }
func (t fbTable) u16(at int) int   { return int(binary.LittleEndian.Uint16(t.bytes(at, 2))) }
func (t fbTable) u32(at int) int   { return int(binary.LittleEndian.Uint32(t.bytes(at, 4))) }

// at is the position of field id, 0 if it is absent.
func (t fbTable) at(id int) int {
	vt := t.pos - int(int32(t.u32(t.pos)))
	if o := 4 + 2*id; o < t.u16(vt) {
		if v := t.u16(vt + o); v != 0 {
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
	_ = t.bytes(at+4, 4*n)
	return at + 4, n
}

// schemaCheck is a walk over the fields of a schema.
type schemaCheck struct {
	left int                        // fields that there may be
	odd  map[int]*driver.Unreadable // top-level columns that cannot be read
	put  map[int]byte               // what becomes of bytes of the message
}

// fields walks a vector of Field tables, number id of t, which is within column top, at path. Tables may be shared, and so claim
// more than there are bytes.
func (c *schemaCheck) fields(t fbTable, id, depth int, path string, top int) error {
	at, n := t.vector(id)
	if c.left -= n; c.left < 0 || depth > maxSchemaDepth {
		return fault.New(fault.Corrupt, "the stored Arrow schema has too many fields")
	}
	for i := range n {
		p := at + 4*i
		f := fbTable{t.b, p + t.u32(p)}
		c.renames(f)
		name, top := f.text(0), top
		if depth == 0 {
			top = i
		} else {
			name = path + "." + name
		}
		if what, advice := f.unreadable(); what != "" {
			if c.odd[top] == nil {
				c.odd[top] = driver.NewUnreadable("", name, what, advice)
			}
			c.put[f.at(2)] = fbNull
		} else if f.listOfNone() {
			c.put[f.at(2)] = fbList
		}
		if err := c.fields(f, 5, depth+1, name, top); err != nil {
			return err
		}
	}
	return nil
}

// renamed is what keys of the names of extension types become in a checked schema, so that arrow-go takes their
// storage for what it is.
var renamed = "_" + ipc.ExtensionTypeKeyName[1:]

// renames does that for the metadata of a Field table.
func (c *schemaCheck) renames(f fbTable) {
	at, n := f.vector(6)
	if c.left -= n; c.left < 0 {
		panic(errStored)
	}
	for i := range n {
		p := at + 4*i
		if kv := (fbTable{f.b, p + f.u32(p)}); kv.text(0) == ipc.ExtensionTypeKeyName {
			k := kv.at(0)
			c.put[k+kv.u32(k)+4] = renamed[0]
		}
	}
}

// listOfNone says that the type of a Field table is a list of the fixed size 0, which Arrow's Go types do not have.
func (t fbTable) listOfNone() bool {
	k, at := t.at(2), t.at(3)
	if k == 0 || at == 0 || t.byte(k) != fbFixedSizeList {
		return false
	}
	typ := fbTable{t.b, at + t.u32(at)}
	n := typ.at(0)
	return n == 0 || typ.u32(n) == 0
}

// text is the string of field id, "" if it is absent.
func (t fbTable) text(id int) string {
	at := t.at(id)
	if at == 0 {
		return ""
	}
	at += t.u32(at)
	return string(t.bytes(at+4, t.u32(at)))
}

// Numbers of Arrow's types in its schemas.
const (
	fbNull          = 1
	fbInt           = 2
	fbList          = 12
	fbUnion         = 14
	fbFixedSizeList = 16
	fbLast          = 26 // large list views
)

// unreadable says of the type of a Field table what it is and what it may be cast to, if it cannot be read.
func (t fbTable) unreadable() (what, advice string) {
	k, at := t.at(2), t.at(3)
	if k == 0 || at == 0 {
		return "", ""
	}
	typ := fbTable{t.b, at + t.u32(at)}
	switch number := t.byte(k); {
	case number == fbInt:
		sign := "uint"
		if s := typ.at(1); s != 0 && typ.byte(s) != 0 {
			sign = "int"
		}
		if w := typ.at(0); w != 0 && typ.u32(w) > 64 {
			return fmt.Sprintf("%s%d", sign, typ.u32(w)), "int64, double or decimal(38, 0)"
		}
	case number == fbUnion:
		return "a union", "a struct"
	case number > fbLast:
		return fmt.Sprintf("number %d of Arrow", number), "one of the older types"
	}
	return "", ""
}
