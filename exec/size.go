package exec

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// SizeOf returns the bytes of the rows of rec: of a slice only its own rows.
// (arrow/util.TotalRecordSize counts whole buffers.) Of a dictionary as many entries count as there are rows, if it has
// more: batches share it, and what a few rows inflate to is told from their size.
// It depends on the data alone, not on how it is laid out.
func SizeOf(rec arrow.RecordBatch) int64 {
	var n int64
	for _, c := range rec.Columns() {
		d := c.Data()
		n += sizeOf(d, d.Offset(), d.Len())
	}
	return n
}

// sizeOf of n values from off, counted from the start of the buffers.
func sizeOf(d arrow.ArrayData, off, n int) int64 {
	if n == 0 {
		return 0
	}
	var size int64
	bufs := d.Buffers()
	if len(bufs) > 0 && bufs[0] != nil {
		size = int64(n+7) / 8
	}
	child := func(i, off, n int) int64 {
		c := d.Children()[i]
		return sizeOf(c, c.Offset()+off, n)
	}
	list32 := func(i, k int) (int, int) {
		o := arrow.Int32Traits.CastFromBytes(bufs[i].Bytes())
		return int(o[k]), int(o[k+n])
	}
	list64 := func(i, k int) (int, int) {
		o := arrow.Int64Traits.CastFromBytes(bufs[i].Bytes())
		return int(o[k]), int(o[k+n])
	}
	switch t := d.DataType().(type) {
	case arrow.ExtensionType:
		s := array.NewData(t.StorageType(), d.Len(), bufs, d.Children(), d.NullN(), d.Offset())
		defer s.Release()
		return sizeOf(s, off, n)
	case *arrow.DictionaryType:
		size += int64(n) * int64(t.BitWidth()) / 8
		if v := d.Dictionary(); v != nil {
			size += sizeOf(v, v.Offset(), v.Len()) * int64(min(n, v.Len())) / int64(max(v.Len(), 1))
		}
	case *arrow.FixedSizeListType:
		size += child(0, off*int(t.Len()), n*int(t.Len()))
	case *arrow.StructType:
		for i := range d.Children() {
			size += child(i, off, n)
		}
	case *arrow.StringType, *arrow.BinaryType:
		lo, hi := list32(1, off)
		size += int64(n+1)*4 + int64(hi-lo)
	case *arrow.LargeStringType, *arrow.LargeBinaryType:
		lo, hi := list64(1, off)
		size += int64(n+1)*8 + int64(hi-lo)
	case *arrow.ListType, *arrow.MapType:
		lo, hi := list32(1, off)
		size += int64(n+1)*4 + child(0, lo, hi-lo)
	case *arrow.LargeListType:
		lo, hi := list64(1, off)
		size += int64(n+1)*8 + child(0, lo, hi-lo)
	case arrow.FixedWidthDataType:
		size += int64(n) * int64(t.BitWidth()) / 8
	default: // views, unions, run ends, null: whole buffers, in proportion where it can be told
		for _, b := range bufs {
			if b != nil {
				size += int64(b.Len())
			}
		}
		for i, c := range d.Children() {
			size += child(i, 0, c.Len())
		}
	}
	return size
}
