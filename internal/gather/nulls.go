package gather

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/mem"
)

// None is a record batch without rows, of any types: arrow's builders lack some. It holds no memory.
func None(schema *arrow.Schema) arrow.RecordBatch {
	cols := make([]arrow.Array, schema.NumFields())
	for i, f := range schema.Fields() {
		cols[i] = Nulls(memory.DefaultAllocator, f.Type, 0)
		defer cols[i].Release()
	}
	return array.NewRecordBatch(schema, cols, 0)
}

// Nulls is n nulls of any type. array.MakeArrayOfNull takes memory for zeroed, and panics where type null lies in a struct, a list of
// fixed size, a union or a dictionary.
func Nulls(alloc memory.Allocator, t arrow.DataType, n int) arrow.Array {
	d := nulls(mem.Zeroed{Allocator: alloc}, t, n)
	defer d.Release()
	return array.MakeFromData(d)
}

func nulls(alloc memory.Allocator, dt arrow.DataType, n int) arrow.ArrayData {
	var b build
	defer b.release()
	buffer := func(size int) *memory.Buffer {
		x := memory.NewResizableBuffer(alloc)
		x.Resize(size)
		b.bufs = append(b.bufs, x)
		return x
	}
	valid := int(bitutil.BytesForBits(int64(n)))
	switch t := layout(dt).(type) {
	case *arrow.NullType:
		b.bufs = append(b.bufs, nil)
	case *arrow.DictionaryType:
		buffer(valid)
		buffer(int(bitutil.BytesForBits(int64(n) * int64(t.BitWidth()))))
		values := nulls(alloc, t.ValueType, 0)
		defer values.Release()
		return array.NewDataWithDictionary(dt, n, b.bufs, n, 0, values.(*array.Data))
	case *arrow.StructType:
		buffer(valid)
		for _, f := range t.Fields() {
			b.children = append(b.children, nulls(alloc, f.Type, n))
		}
	case *arrow.FixedSizeListType:
		buffer(valid)
		b.children = append(b.children, nulls(alloc, t.Elem(), n*int(t.Len())))
	case *arrow.ListType, *arrow.LargeListType, *arrow.MapType: // the library's way takes time by the square of an element's fields
		size := arrow.Int32SizeBytes
		if t.ID() == arrow.LARGE_LIST {
			size = arrow.Int64SizeBytes
		}
		buffer(valid)
		buffer((n + 1) * size)
		b.children = append(b.children, nulls(alloc, t.(arrow.ListLikeType).Elem(), 0))
	case arrow.UnionType: // it has no nulls of its own: those of its first child
		b.bufs = append(b.bufs, nil)
		memory.Set(buffer(n).Bytes(), byte(t.TypeCodes()[0]))
		rows := n
		if t.Mode() == arrow.DenseMode {
			buffer(n * arrow.Int32SizeBytes)
			rows = min(n, 1)
		}
		for _, f := range t.Fields() {
			b.children = append(b.children, nulls(alloc, f.Type, rows))
		}
		return array.NewData(dt, n, b.bufs, b.children, 0, 0)
	default:
		a := array.MakeArrayOfNull(alloc, t, n)
		defer a.Release()
		d := a.Data()
		return array.NewData(dt, n, d.Buffers(), d.Children(), d.NullN(), 0)
	}
	return array.NewData(dt, n, b.bufs, b.children, n, 0)
}
