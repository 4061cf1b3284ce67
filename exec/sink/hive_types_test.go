package sink

import (
	"bytes"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/ipcio"
	"github.com/penstock-data/penstock/io/parquetio"
)

// Files say which types the values of their folders have.
func TestPartitionTypes(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "zip", Type: arrow.BinaryTypes.String},
		{Name: "at", Type: &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "Europe/Berlin"}},
		{Name: "d", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}},
		{Name: "x", Type: arrow.PrimitiveTypes.Int64},
	}, nil)
	p, err := newPartitioning(schema, []string{"zip", "at", "d"})
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"at":"timestamp[us, Europe/Berlin]","d":"string","zip":"string"}`
	b := array.NewRecordBuilder(memory.DefaultAllocator, p.file)
	defer b.Release()
	b.Field(0).(*array.Int64Builder).Append(1)
	rec := b.NewRecordBatch()
	defer rec.Release()
	write := func(e driver.Encoding) []byte {
		var out bytes.Buffer
		enc, err := e.NewEncoder(&out, p.file, memory.DefaultAllocator)
		if err == nil {
			err = enc.Write(rec)
		}
		if err == nil {
			err = enc.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		return out.Bytes()
	}
	pe, err := parquetio.NewEncoding(nil)
	if err != nil {
		t.Fatal(err)
	}
	pf, err := file.NewParquetReader(bytes.NewReader(write(pe)))
	if err != nil {
		t.Fatal(err)
	}
	defer pf.Close()
	if got := pf.MetaData().KeyValueMetadata().FindValue(driver.PartitionTypes); got == nil || *got != want {
		t.Errorf("parquet: %v", got)
	}
	ie, err := ipcio.NewEncoding(nil)
	if err != nil {
		t.Fatal(err)
	}
	ir, err := ipc.NewFileReader(bytes.NewReader(write(ie)))
	if err != nil {
		t.Fatal(err)
	}
	defer ir.Close()
	if got, _ := ir.Schema().Metadata().GetValue(driver.PartitionTypes); got != want {
		t.Errorf("ipc: %q", got)
	}
}

// A value that is no text names no folder; nor does such a name of a column.
func TestPartitionNotUTF8(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{{Name: "k", Type: arrow.BinaryTypes.String}, {Name: "x", Type: arrow.PrimitiveTypes.Int64}}, nil)
	p, err := newPartitioning(schema, []string{"k"})
	if err != nil {
		t.Fatal(err)
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	b.Field(0).(*array.StringBuilder).Append("caf\xe9")
	b.Field(1).(*array.Int64Builder).Append(1)
	rec := b.NewRecordBatch()
	defer rec.Release()
	if _, _, err := p.assign(rec); fault.CodeOf(err) != fault.Corrupt || fault.PlaceOf(err).Column != "k" || !strings.Contains(err.Error(), "UTF-8") {
		t.Errorf("%v", err)
	}
	odd := arrow.NewSchema([]arrow.Field{{Name: "k\xe9", Type: arrow.BinaryTypes.String}, schema.Field(1)}, nil)
	if _, err := newPartitioning(odd, []string{"k\xe9"}); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "UTF-8") {
		t.Errorf("%v", err)
	}
}

// A date or time that has no four digits of a year names no folder that could be read back.
func TestPartitionYearEnds(t *testing.T) {
	for _, c := range []struct {
		typ  arrow.DataType
		good []int64
		bad  []int64
	}{
		{arrow.FixedWidthTypes.Date32, []int64{-719528, 2932896}, []int64{-719529, 2932897, -1 << 31, 1<<31 - 1}},
		{arrow.FixedWidthTypes.Date64, []int64{-719528 * 86400000, 2932896 * 86400000}, []int64{-719529 * 86400000, 2932897 * 86400000, -1 << 63, 1<<63 - 1}},
		{&arrow.TimestampType{Unit: arrow.Second}, []int64{-719528 * 86400, 2932897*86400 - 1}, []int64{-719528*86400 - 1, 2932897 * 86400, -1 << 63, 1<<63 - 1}},
		{&arrow.TimestampType{Unit: arrow.Millisecond, TimeZone: "UTC"}, []int64{0}, []int64{2932897 * 86400000, -1 << 63, 1<<63 - 1}},
	} {
		schema := arrow.NewSchema([]arrow.Field{{Name: "k", Type: c.typ}, {Name: "x", Type: arrow.PrimitiveTypes.Int64}}, nil)
		p, err := newPartitioning(schema, []string{"k"})
		if err != nil {
			t.Fatal(err)
		}
		for i, v := range append(c.good, c.bad...) {
			b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
			switch b := b.Field(0).(type) {
			case *array.Date32Builder:
				b.Append(arrow.Date32(v))
			case *array.Date64Builder:
				b.Append(arrow.Date64(v))
			case *array.TimestampBuilder:
				b.Append(arrow.Timestamp(v))
			}
			b.Field(1).AppendNull()
			rec := b.NewRecordBatch()
			_, keys, err := p.assign(rec)
			if bad := i >= len(c.good); bad != (err != nil) || bad && (fault.CodeOf(err) != fault.Invalid || fault.PlaceOf(err).Column != "k") {
				t.Errorf("%v %d: %v, %v", c.typ, v, keys, err)
			}
			rec.Release()
			b.Release()
		}
	}
}
