package fileset

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/float16"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// widenArray converts a to a type that widen gave for it. Values under nulls are
// converted as they are. Returns a reference.
func widenArray(a arrow.Array, to arrow.DataType, alloc memory.Allocator) arrow.Array {
	d := a.Data()
	if _, nested := to.(arrow.NestedType); nested {
		r := retype(d, to)
		defer r.Release()
		return array.MakeFromData(r)
	}
	n := a.Len()
	switch to.ID() {
	case arrow.LARGE_STRING, arrow.LARGE_BINARY:
		offs := newBuffer(alloc, 8*(n+1))
		out := arrow.Int64Traits.CastFromBytes(offs.Bytes())
		out[0] = 0
		var in []int32
		if n > 0 {
			in = arrow.Int32Traits.CastFromBytes(d.Buffers()[1].Bytes())[d.Offset() : d.Offset()+n+1]
		}
		for i, o := range in {
			out[i] = int64(o)
		}
		data := d.Buffers()[2]
		if data != nil {
			data.Retain()
		} else {
			data = newBuffer(alloc, 0)
		}
		return fromBuffers(to, n, a.NullN(), validity(a, alloc), offs, data)
	}
	width := to.(arrow.FixedWidthDataType).BitWidth() / 8
	buf := newBuffer(alloc, width*n)
	if n > 0 {
		widenValues(a, buf.Bytes(), to)
	}
	return fromBuffers(to, n, a.NullN(), validity(a, alloc), buf)
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

type number8 interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float32 | ~float64
}

func widenValues(a arrow.Array, out []byte, to arrow.DataType) {
	switch a := a.(type) {
	case *array.Int8:
		widenTo(a.Int8Values(), out, to)
	case *array.Int16:
		widenTo(a.Int16Values(), out, to)
	case *array.Int32:
		widenTo(a.Int32Values(), out, to)
	case *array.Int64:
		widenTo(a.Int64Values(), out, to)
	case *array.Uint8:
		widenTo(a.Uint8Values(), out, to)
	case *array.Uint16:
		widenTo(a.Uint16Values(), out, to)
	case *array.Uint32:
		widenTo(a.Uint32Values(), out, to)
	case *array.Uint64:
		widenTo(a.Uint64Values(), out, to)
	case *array.Float32:
		widenTo(a.Values(), out, to)
	case *array.Float16:
		vs := make([]float32, a.Len())
		for i, v := range a.Values() {
			vs[i] = v.Float32()
		}
		widenTo(vs, out, to)
	default:
		panic("fileset: cannot widen " + a.DataType().String())
	}
}

func widenTo[T number8](in []T, out []byte, to arrow.DataType) {
	switch to.ID() {
	case arrow.INT16:
		convert(in, arrow.Int16Traits.CastFromBytes(out))
	case arrow.INT32:
		convert(in, arrow.Int32Traits.CastFromBytes(out))
	case arrow.INT64:
		convert(in, arrow.Int64Traits.CastFromBytes(out))
	case arrow.UINT16:
		convert(in, arrow.Uint16Traits.CastFromBytes(out))
	case arrow.UINT32:
		convert(in, arrow.Uint32Traits.CastFromBytes(out))
	case arrow.UINT64:
		convert(in, arrow.Uint64Traits.CastFromBytes(out))
	case arrow.FLOAT32:
		convert(in, arrow.Float32Traits.CastFromBytes(out))
	case arrow.FLOAT64:
		convert(in, arrow.Float64Traits.CastFromBytes(out))
	case arrow.FLOAT16:
		for i, o := 0, arrow.Float16Traits.CastFromBytes(out); i < len(in); i++ {
			o[i] = float16.New(float32(in[i]))
		}
	default:
		panic("fileset: cannot widen to " + to.String())
	}
}

func convert[T, U number8](in []T, out []U) {
	out = out[:len(in)]
	for i, v := range in {
		out[i] = U(v)
	}
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
