package parquetio

import (
	"io"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/decimal256"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

// Values that their types do not allow, which files of others and answers of programs may have, are
// errors where they would be written as others: wherever they are, but not where a null hides them.
func TestValuesOutOfTheirTypes(t *testing.T) {
	mem := memory.DefaultAllocator
	for _, c := range []struct {
		t    arrow.DataType
		good func(array.Builder)
		bad  []func(array.Builder)
	}{
		{arrow.FixedWidthTypes.Time32s, func(b array.Builder) { b.(*array.Time32Builder).Append(86399) }, []func(array.Builder){
			func(b array.Builder) { b.(*array.Time32Builder).Append(86400) },
			func(b array.Builder) { b.(*array.Time32Builder).Append(1e9) },
			func(b array.Builder) { b.(*array.Time32Builder).Append(-1) }}},
		{arrow.FixedWidthTypes.Time64ns, func(b array.Builder) { b.(*array.Time64Builder).Append(86400e9 - 1) }, []func(array.Builder){
			func(b array.Builder) { b.(*array.Time64Builder).Append(86400e9) },
			func(b array.Builder) { b.(*array.Time64Builder).Append(-1) }}},
		{arrow.FixedWidthTypes.Date64, func(b array.Builder) { b.(*array.Date64Builder).Append(86_400_000) }, []func(array.Builder){
			func(b array.Builder) { b.(*array.Date64Builder).Append(1) }}},
		{&arrow.Decimal128Type{Precision: 5, Scale: 2}, func(b array.Builder) { b.(*array.Decimal128Builder).Append(decimal128.FromI64(-99999)) }, []func(array.Builder){
			func(b array.Builder) { b.(*array.Decimal128Builder).Append(decimal128.FromI64(100000)) },
			func(b array.Builder) { b.(*array.Decimal128Builder).Append(decimal128.New(1<<62, 0)) },
			func(b array.Builder) { b.(*array.Decimal128Builder).Append(decimal128.New(-1<<63, 0)) }}},
		{&arrow.Decimal256Type{Precision: 50, Scale: 2}, func(b array.Builder) { b.(*array.Decimal256Builder).Append(decimal256.FromI64(-99999)) }, []func(array.Builder){
			func(b array.Builder) { b.(*array.Decimal256Builder).Append(decimal256.New(1, 0, 0, 0)) }}},
	} {
		for _, bad := range c.bad {
			for where, hidden := range map[string]bool{"plain": false, "list": false, "struct": false, "null struct": true} {
				b := array.NewBuilder(mem, c.t)
				c.good(b)
				bad(b)
				values := b.NewArray()
				a := values
				switch where {
				case "list":
					b := array.NewListBuilder(mem, c.t)
					b.Append(true)
					c.good(b.ValueBuilder())
					b.Append(true)
					b.Append(true)
					c.good(b.ValueBuilder())
					bad(b.ValueBuilder())
					a = b.NewArray()
				case "struct", "null struct":
					bits := []byte{3}
					nulls := 0
					if hidden {
						bits, nulls = []byte{1}, 1
					}
					typ := arrow.StructOf(arrow.Field{Name: "a", Type: c.t, Nullable: true})
					a = array.MakeFromData(array.NewData(typ, 2, []*memory.Buffer{memory.NewBufferBytes(bits)}, []arrow.ArrayData{values.Data()}, nulls, 0))
				}
				s := arrow.NewSchema([]arrow.Field{{Name: "x", Type: a.DataType(), Nullable: true}}, nil)
				rec := array.NewRecordBatch(s, []arrow.Array{a}, int64(a.Len()))
				enc, err := NewEncoding(nil)
				if err != nil {
					t.Fatal(err)
				}
				e, err := enc.NewEncoder(io.Discard, s, memtest.New(t))
				if err != nil {
					t.Fatal(err)
				}
				if err = e.Write(rec); err == nil {
					err = e.Close()
				} else {
					e.Abort()
				}
				want := fault.RowError
				if hidden {
					want = fault.Unknown
				}
				at := fault.PlaceOf(err)
				if row, _ := at.Row.Get(); fault.CodeOf(err) != want || !hidden && (at.Column != "x" || row != int64(a.Len()-1)) {
					t.Errorf("%v, %s, %v: %v", c.t, where, values, err)
				}
			}
		}
	}
}
