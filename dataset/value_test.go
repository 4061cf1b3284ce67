package dataset

import (
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/drivertest"
)

// TestValue: a value that is short reads as Arrow writes it, whatever it is made of.
func TestValue(t *testing.T) {
	list := arrow.ListOf(arrow.StructOf(arrow.Field{Name: "z <b>", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
		arrow.Field{Name: "a", Type: arrow.ListOf(arrow.BinaryTypes.String), Nullable: true}))
	var fields []arrow.Field
	for i, typ := range []arrow.DataType{arrow.FixedWidthTypes.Boolean, arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Uint8, arrow.PrimitiveTypes.Int64,
		arrow.PrimitiveTypes.Float32, arrow.BinaryTypes.String, arrow.BinaryTypes.Binary, &arrow.FixedSizeBinaryType{ByteWidth: 7},
		arrow.FixedWidthTypes.Date32, arrow.FixedWidthTypes.Time64us, arrow.FixedWidthTypes.Duration_ms, arrow.FixedWidthTypes.Timestamp_us,
		&arrow.Decimal128Type{Precision: 20, Scale: 3}} {
		fields = append(fields, arrow.Field{Name: fmt.Sprint("l", i), Type: arrow.ListOf(typ), Nullable: true}, arrow.Field{Name: fmt.Sprint("v", i), Type: typ, Nullable: true})
	}
	fields = append(fields, arrow.Field{Name: "nested", Type: list, Nullable: true})
	seed := rand.Uint64()
	rec := drivertest.Records(arrow.NewSchema(fields, nil), seed, 0, 500)
	defer rec.Release()
	rec = rec.NewSlice(3, 490)
	defer rec.Release()
	for j, c := range rec.Columns() {
		for i := range c.Len() {
			want := c.ValueStr(i)
			switch c.DataType().ID() {
			case arrow.BINARY, arrow.TIMESTAMP:
				continue
			}
			if c.IsNull(i) {
				want = "null"
			}
			if got := value(c, i); got != want && len(want) < valueBytes {
				t.Fatalf("seed %d, column %s, row %d: %s, want %s", seed, rec.ColumnName(j), i, got, want)
			}
		}
	}
}

// TestLongValues: of a value no more is rendered than is shown, however it is nested.
func TestLongValues(t *testing.T) {
	mem := memtest.New(t)
	const n = 1 << 20
	ints := array.NewInt8Builder(mem)
	defer ints.Release()
	for range n {
		ints.Append(1)
	}
	leaf := ints.NewArray()
	defer leaf.Release()
	texts := array.NewStringBuilder(mem)
	defer texts.Release()
	texts.Append(strings.Repeat("\x00", n))
	text := texts.NewArray()
	defer text.Release()
	fixed := array.NewFixedSizeBinaryBuilder(mem, &arrow.FixedSizeBinaryType{ByteWidth: n})
	defer fixed.Release()
	fixed.Append(make([]byte, n))
	bytes := fixed.NewArray()
	defer bytes.Release()
	wide := make([]arrow.Array, 50_000)
	names := make([]string, len(wide))
	for i := range wide {
		wide[i], names[i] = text, fmt.Sprint("f", i)
	}
	structs, err := array.NewStructArray(wide, names)
	if err != nil {
		t.Fatal(err)
	}
	defer structs.Release()
	index, _, err := array.FromJSON(mem, arrow.PrimitiveTypes.Int8, strings.NewReader(`[0]`))
	if err != nil {
		t.Fatal(err)
	}
	defer index.Release()
	listOf := func(typ arrow.DataType, of arrow.Array) arrow.Array {
		offsets := memory.NewBufferBytes(arrow.Int32Traits.CastToBytes([]int32{0, int32(of.Len())}))
		buffers := []*memory.Buffer{nil, offsets}
		if typ.ID() == arrow.FIXED_SIZE_LIST {
			buffers = buffers[:1]
		}
		d := array.NewData(typ, 1, buffers, []arrow.ArrayData{of.Data()}, 0, 0)
		defer d.Release()
		return array.MakeFromData(d)
	}
	typ, err := extensions.NewJSONType(arrow.BinaryTypes.String)
	if err != nil {
		t.Fatal(err)
	}
	long := []arrow.Array{listOf(arrow.ListOf(leaf.DataType()), leaf), listOf(arrow.FixedSizeListOf(n, leaf.DataType()), leaf), array.NewExtensionArrayWithStorage(typ, text)}
	for _, a := range long {
		defer a.Release()
	}
	for _, a := range append(long, text, bytes, structs) {
		d := array.NewDictionaryArray(&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: a.DataType()}, index, a)
		one := listOf(arrow.ListOf(a.DataType()), a)
		for _, x := range []arrow.Array{a, d, one} {
			value(x, 0) // arrays of dictionaries are made once
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got := value(x, 0)
			runtime.ReadMemStats(&after)
			if took := after.TotalAlloc - before.TotalAlloc; took > 1<<20 || len(got) < 40 || len(got) > 8*valueBytes {
				t.Errorf("%s of %s: %d bytes of memory for %d of text", x.DataType().Name(), a.DataType().Name(), took, len(got))
			}
		}
		d.Release()
		one.Release()
	}
}

// lines counts what is written.
type lines struct {
	n     int
	bytes int
	long  int // bytes of the longest write
}

func (l *lines) Write(p []byte) (int, error) {
	l.n += strings.Count(string(p), "\n")
	l.bytes += len(p)
	l.long = max(l.long, len(p))
	return len(p), nil
}

// TestShow: rows are printed as they come, whatever their number, below each other.
func TestShow(t *testing.T) {
	build := func(rows int) arrow.RecordBatch {
		b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{{Name: "a", Type: arrow.PrimitiveTypes.Int64}}, nil))
		defer b.Release()
		for i := range rows {
			b.Field(0).(*array.Int64Builder).Append(int64(i))
		}
		return b.NewRecordBatch()
	}
	rec := build(100)
	defer rec.Release()
	var out lines
	p := newPrinter(&out, rec.Schema())
	var before, after runtime.MemStats
	for i := range 3_000 {
		if i == 100 { // what is measured is printed
			runtime.GC()
			runtime.ReadMemStats(&before)
		}
		if err := p.add(rec); err != nil {
			t.Fatal(err)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if kept := int64(after.HeapAlloc) - int64(before.HeapAlloc); kept > 1<<20 || p.first != nil || out.long > bufferBytes {
		t.Errorf("%d bytes are kept of rows that are printed, writes of %d", kept, out.long)
	}
	if err := p.flush(); err != nil || out.n != 300_003 {
		t.Errorf("%d lines, %v", out.n, err)
	}

	ds := FromRecords(rec.Schema(), rec, rec)
	var text strings.Builder
	if err := ds.Show(t.Context(), &text, 150, nil); err != nil || strings.Count(text.String(), "\n") != 153 || !strings.HasPrefix(text.String(), "    a\nint64\n-----\n    0\n    1\n") {
		t.Errorf("%v:\n%s", err, text.String())
	}
}
