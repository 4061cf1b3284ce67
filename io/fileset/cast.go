package fileset

import (
	"fmt"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/gather"
)

// caster converts arrays of one type to another. What the other does not hold exactly is an error, but
// for floats and what is made a float, which round as cast does; integers that do not fit a float are
// an error, too. A null stays null, and nothing else becomes one.
type caster struct {
	to arrow.DataType
	// array returns a reference. Rows that it cannot convert it reports; they have any value, or
	// null. An error is of the whole array.
	array func(a arrow.Array, alloc memory.Allocator, bad report) (arrow.Array, error)
	fails bool // whether it reports rows
}

// castTo is nil where there is no way.
func castTo(from, to arrow.DataType) *caster {
	c := &caster{to: to}
	switch {
	case arrow.TypeEqual(from, to):
		c.array = func(a arrow.Array, _ memory.Allocator, _ report) (arrow.Array, error) {
			a.Retain()
			return a, nil
		}
		return c
	case from.ID() == arrow.EXTENSION || to.ID() == arrow.EXTENSION:
		return nil
	case from.ID() == arrow.NULL:
		c.array = func(a arrow.Array, alloc memory.Allocator, _ report) (arrow.Array, error) {
			return gather.Nulls(alloc, to, a.Len()), nil
		}
		return c
	case from.ID() == arrow.DICTIONARY:
		return castDictionary(from.(*arrow.DictionaryType), to)
	case sameShape(from, to):
		return retyped(to)
	case numberOf(from).bits > 0 && numberOf(to).bits > 0:
		return castNumber(from, to)
	case timeOf(from).kind != noTime && timeOf(to).kind != noTime:
		return castTime(timeOf(from), timeOf(to))
	case isDecimal(from):
		return castDecimal(from.(arrow.DecimalType), to)
	case isDecimal(to) && isInteger(from):
		return decimalOf(from, to.(arrow.DecimalType))
	case isText(from) && !isText(to) && !isBytes(to):
		return parsed(from, to)
	case (isText(from) || isBytes(from)) && (isText(to) || isBytes(to)):
		return castBytes(from, to)
	case isText(to):
		return formatted(from, to)
	case isList(from) && isList(to):
		return castList(from.(arrow.ListLikeType), to.(arrow.ListLikeType))
	case from.ID() == arrow.STRUCT && to.ID() == arrow.STRUCT:
		return castStruct(from.(*arrow.StructType), to.(*arrow.StructType))
	case from.ID() == arrow.MAP && to.ID() == arrow.MAP:
		return castMap(from.(*arrow.MapType), to.(*arrow.MapType))
	}
	return nil
}

func isDecimal(t arrow.DataType) bool {
	_, ok := t.(arrow.DecimalType)
	return ok
}

func isInteger(t arrow.DataType) bool { n := numberOf(t); return n.bits > 0 && !n.float }

// then makes one caster of two.
func (c *caster) then(d *caster) *caster {
	if c == nil || d == nil {
		return nil
	}
	return &caster{to: d.to, fails: c.fails || d.fails, array: func(a arrow.Array, alloc memory.Allocator, bad report) (arrow.Array, error) {
		m, err := c.array(a, alloc, bad)
		if err != nil {
			return nil, err
		}
		defer m.Release()
		return d.array(m, alloc, bad)
	}}
}

func castDictionary(from *arrow.DictionaryType, to arrow.DataType) *caster {
	values := &caster{to: from.ValueType, array: func(a arrow.Array, alloc memory.Allocator, _ report) (arrow.Array, error) {
		return gather.Values(alloc, a.(*array.Dictionary))
	}}
	return values.then(castTo(from.ValueType, to))
}

func newBuffer(alloc memory.Allocator, n int) *memory.Buffer {
	b := memory.NewResizableBuffer(alloc)
	b.Resize(n)
	return b
}

// validity returns a reference to a's null bits at offset 0; nil if there are none.
func validity(a arrow.Array, alloc memory.Allocator) *memory.Buffer {
	b := a.Data().Buffers()[0]
	if b == nil || a.NullN() == 0 {
		return nil
	}
	if a.Data().Offset() == 0 {
		b.Retain()
		return b
	}
	out := newBuffer(alloc, int(bitutil.BytesForBits(int64(a.Len()))))
	clear(out.Bytes())
	bitutil.CopyBitmap(b.Bytes(), a.Data().Offset(), a.Len(), out.Bytes(), 0)
	return out
}

// retyped is the caster for types that share a layout.
func retyped(to arrow.DataType) *caster {
	return &caster{to: to, array: func(a arrow.Array, _ memory.Allocator, _ report) (arrow.Array, error) {
		d := retype(a.Data(), to)
		defer d.Release()
		return array.MakeFromData(d), nil
	}}
}

// retype gives d a type of the same shape; buffers are shared. Returns a
// reference.
func retype(d arrow.ArrayData, to arrow.DataType) *array.Data {
	var kids []arrow.ArrayData
	if n, ok := to.(arrow.NestedType); ok {
		fs := n.Fields()
		if m, ok := to.(*arrow.MapType); ok {
			fs = []arrow.Field{{Type: m.Elem()}}
		}
		for i, k := range d.Children() {
			r := retype(k, fs[i].Type)
			defer r.Release()
			kids = append(kids, r)
		}
	}
	return array.NewData(to, d.Len(), d.Buffers(), kids, d.NullN(), d.Offset())
}

// fixed are the values of an array of a fixed width.
func fixed[T any](a arrow.Array) []T {
	d := a.Data()
	if d.Len() == 0 {
		return nil
	}
	return valuesIn[T](d.Buffers()[1].Bytes())[d.Offset() : d.Offset()+d.Len()]
}

func valuesIn[T any](b []byte) []T {
	var z T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(z)))
}

// mapped makes a caster of a function of values, which reports what has no result.
func mapped[A, B any](to arrow.DataType, fails bool, f func(A) (B, bool), why func(A) string) *caster {
	width := to.(arrow.FixedWidthDataType).BitWidth() / 8
	return &caster{to: to, fails: fails, array: func(a arrow.Array, alloc memory.Allocator, bad report) (arrow.Array, error) {
		in := fixed[A](a)
		buf := newBuffer(alloc, width*len(in))
		out := valuesIn[B](buf.Bytes())[:len(in)]
		for i, v := range in {
			var ok bool
			if out[i], ok = f(v); !ok && a.IsValid(i) && !bad.has(i) {
				bad.add(i, why(v))
			}
		}
		return fromBuffers(to, len(in), a.NullN(), validity(a, alloc), buf), nil
	}}
}

func unfit(v any, to string) string { return fmt.Sprintf("%v does not fit %s", v, to) }
