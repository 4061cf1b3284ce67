package gather

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/decimal"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Wider returns a reference to d, decimals of 32 or 64 bits, as decimals of 128.
func Wider(alloc memory.Allocator, d arrow.ArrayData) arrow.ArrayData {
	if d.DataType().ID() == arrow.DECIMAL32 {
		return wider[decimal.Decimal32](alloc, d)
	}
	return wider[decimal.Decimal64](alloc, d)
}

func wider[T decimal.Decimal32 | decimal.Decimal64](alloc memory.Allocator, d arrow.ArrayData) arrow.ArrayData {
	n := d.Len()
	var b build
	defer b.release()
	if v := d.Buffers()[0]; v != nil && v.Len() > 0 {
		valid := memory.NewResizableBuffer(alloc)
		valid.Resize(int(bitutil.BytesForBits(int64(n))))
		clear(valid.Bytes())
		bitutil.CopyBitmap(v.Bytes(), d.Offset(), n, valid.Bytes(), 0)
		b.bufs = append(b.bufs, valid)
	} else {
		b.bufs = append(b.bufs, nil)
	}
	values := memory.NewResizableBuffer(alloc)
	values.Resize(n * arrow.Decimal128SizeBytes)
	b.bufs = append(b.bufs, values)
	if n > 0 {
		out := arrow.GetData[decimal128.Num](values.Bytes())
		for i, v := range arrow.GetValues[T](d, 1) {
			out[i] = decimal128.FromI64(int64(v))
		}
	}
	t := d.DataType().(arrow.DecimalType)
	return array.NewData(&arrow.Decimal128Type{Precision: t.GetPrecision(), Scale: t.GetScale()}, n, b.bufs, nil, d.NullN(), 0)
}
