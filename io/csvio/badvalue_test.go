package csvio

import (
	"bytes"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/fault"
)

// A value that its type does not allow is an error with its row in the file and its column, not
// another value.
func TestValuesOutOfTheirTypes(t *testing.T) {
	for _, c := range []struct {
		t         arrow.DataType
		good, bad func(array.Builder)
		text      string
	}{
		{arrow.FixedWidthTypes.Time32s, func(b array.Builder) { b.(*array.Time32Builder).Append(86399) }, func(b array.Builder) { b.(*array.Time32Builder).Append(86400) }, "23:59:59"},
		{arrow.FixedWidthTypes.Time64us, func(b array.Builder) { b.(*array.Time64Builder).Append(0) }, func(b array.Builder) { b.(*array.Time64Builder).Append(-1) }, "00:00:00.000000"},
		{arrow.FixedWidthTypes.Date64, func(b array.Builder) { b.(*array.Date64Builder).Append(86_400_000) }, func(b array.Builder) { b.(*array.Date64Builder).Append(1) }, "1970-01-02"},
		{&arrow.Decimal128Type{Precision: 5, Scale: 2}, func(b array.Builder) { b.(*array.Decimal128Builder).Append(decimal128.FromI64(-99999)) },
			func(b array.Builder) { b.(*array.Decimal128Builder).Append(decimal128.FromI64(100000)) }, "-999.99"},
		{&arrow.FixedSizeBinaryType{ByteWidth: 2}, func(b array.Builder) { b.(*array.FixedSizeBinaryBuilder).Append([]byte("ab")) }, nil, "YWI="},
	} {
		b := array.NewBuilder(memory.DefaultAllocator, c.t)
		c.good(b)
		good := b.NewArray()
		c.good(b)
		if c.bad != nil {
			c.bad(b)
		}
		bad := b.NewArray()
		b.Release()
		s := arrow.NewSchema([]arrow.Field{{Name: "x", Type: c.t, Nullable: true}}, nil)
		enc, err := NewEncoding(nil)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		e, err := enc.NewEncoder(&out, s, nil)
		if err != nil {
			t.Errorf("%v: %v", c.t, err)
			continue
		}
		if err := e.Write(array.NewRecordBatch(s, []arrow.Array{good}, 1)); err != nil {
			t.Error(err)
		}
		err = e.Write(array.NewRecordBatch(s, []arrow.Array{bad}, int64(bad.Len())))
		at := fault.PlaceOf(err)
		if row, _ := at.Row.Get(); c.bad != nil && (fault.CodeOf(err) != fault.RowError || at.Column != "x" || row != 2) || c.bad == nil && err != nil {
			t.Errorf("%v: %v", c.t, err)
		}
		if err == nil {
			err = e.Close()
		} else {
			e.Abort()
			continue
		}
		if want := "x\n" + c.text + "\n" + c.text + "\n"; err != nil || out.String() != want {
			t.Errorf("%v: %q, %v, want %q", c.t, out.String(), err, want)
		}
		good.Release()
		bad.Release()
	}
}
