package parquetio

import (
	"encoding/binary"
	"errors"
)

// errThrift says that bytes are not the thrift structure they should be.
var errThrift = errors.New("damaged thrift structure")

// Types of the compact protocol.
const (
	tStop   = 0
	tTrue   = 1
	tFalse  = 2
	tByte   = 3
	tI16    = 4
	tI32    = 5
	tI64    = 6
	tDouble = 7
	tBinary = 8
	tList   = 9
	tSet    = 10
	tMap    = 11
	tStruct = 12
	tUUID   = 13
)

// maxThriftDepth bounds nested structures: Parquet's own nest six deep.
const maxThriftDepth = 24

// thriftReader walks the compact protocol without building objects. The first
// error sticks; every method then returns zero. No claimed length is believed
// beyond the bytes that are left.
type thriftReader struct {
	b     []byte
	i     int
	depth int
	bad   bool
}

func (r *thriftReader) fail() { r.bad, r.i = true, len(r.b) }

func (r *thriftReader) byte() byte {
	if r.i >= len(r.b) {
		r.fail()
		return 0
	}
	c := r.b[r.i]
	r.i++
	return c
}

func (r *thriftReader) uvarint() uint64 {
	v, n := binary.Uvarint(r.b[r.i:])
	if n <= 0 {
		r.fail()
		return 0
	}
	r.i += n
	return v
}

// int reads any of i16, i32 and i64.
func (r *thriftReader) int() int64 {
	v := r.uvarint()
	return int64(v>>1) ^ -int64(v&1)
}

func (r *thriftReader) i32() int32 {
	v := r.int()
	if v != int64(int32(v)) {
		r.fail()
		return 0
	}
	return int32(v)
}

// bin returns a view of the bytes.
func (r *thriftReader) bin() []byte {
	n := r.uvarint()
	if n > uint64(len(r.b)-r.i) {
		r.fail()
		return nil
	}
	b := r.b[r.i : r.i+int(n)]
	r.i += int(n)
	return b
}

// list returns the type and number of elements; each takes at least one byte.
func (r *thriftReader) list() (typ byte, n int) {
	h := r.byte()
	size := uint64(h >> 4)
	if size == 15 {
		size = r.uvarint()
	}
	if size > uint64(len(r.b)-r.i) {
		r.fail()
		return 0, 0
	}
	return h & 15, int(size)
}

// each reads a list of typ elements with f, and skips a list of another type.
func (r *thriftReader) each(typ byte, f func(i int)) {
	t, n := r.list()
	for i := 0; i < n && !r.bad; i++ {
		if t == typ {
			f(i)
		} else {
			r.skip(t, true)
		}
	}
}

// fields reads a struct: f is called with every field and reads its value, or
// skips it. Booleans have no value: their type is it.
func (r *thriftReader) fields(f func(id int16, typ byte)) {
	if r.depth++; r.depth > maxThriftDepth {
		r.fail()
	}
	var id int16
	for !r.bad {
		h := r.byte()
		typ := h & 15
		if typ == tStop {
			break
		}
		if d := int16(h >> 4); d != 0 {
			id += d
		} else {
			id = int16(r.int())
		}
		f(id, typ)
	}
	r.depth--
}

func (r *thriftReader) skip(typ byte, inList bool) {
	switch typ {
	case tTrue, tFalse:
		if inList {
			r.byte()
		}
	case tByte:
		r.byte()
	case tI16, tI32, tI64:
		r.uvarint()
	case tDouble:
		r.advance(8)
	case tUUID:
		r.advance(16)
	case tBinary:
		r.bin()
	case tList, tSet:
		if r.depth++; r.depth > maxThriftDepth {
			r.fail()
			return
		}
		t, n := r.list()
		for i := 0; i < n && !r.bad; i++ {
			r.skip(t, true)
		}
		r.depth--
	case tMap:
		n := r.uvarint()
		if n == 0 {
			return
		}
		if n > uint64(len(r.b)-r.i) {
			r.fail()
			return
		}
		if r.depth++; r.depth > maxThriftDepth {
			r.fail()
			return
		}
		kv := r.byte()
		for i := uint64(0); i < n && !r.bad; i++ {
			r.skip(kv>>4, true)
			r.skip(kv&15, true)
		}
		r.depth--
	case tStruct:
		r.fields(func(_ int16, t byte) { r.skip(t, false) })
	default:
		r.fail()
	}
}

func (r *thriftReader) advance(n int) {
	if n > len(r.b)-r.i {
		r.fail()
		return
	}
	r.i += n
}
