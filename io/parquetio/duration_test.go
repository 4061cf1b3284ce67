package parquetio

import (
	"bytes"
	"encoding/base64"
	"os"
	"path/filepath"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/drivertest"
)

// What is written is read by the suite of drivers, too.
func TestDurationDriver(t *testing.T) {
	h := harness(&EncodingOptions{RowGroupRows: 500, PageBytes: 1 << 10})
	h.FileRows = []int64{300, 1, 1200}
	fields := []arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}
	for _, u := range arrow.TimeUnitValues {
		d := &arrow.DurationType{Unit: u}
		fields = append(fields, arrow.Field{Name: u.String(), Type: d, Nullable: true},
			arrow.Field{Name: "list of " + u.String(), Type: arrow.ListOf(d), Nullable: true})
	}
	h.Schema = arrow.NewSchema(fields, nil)
	drivertest.Run(t, h, 0)
}

// A dictionary of durations is read as durations.
func TestDurationDictionary(t *testing.T) {
	typ := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int16, ValueType: arrow.FixedWidthTypes.Duration_us}
	values := array.NewDurationBuilder(memory.DefaultAllocator, arrow.FixedWidthTypes.Duration_us.(*arrow.DurationType))
	defer values.Release()
	values.AppendValues([]arrow.Duration{7, -1}, nil)
	indices := array.NewInt16Builder(memory.DefaultAllocator)
	defer indices.Release()
	indices.AppendValues([]int16{1, 0, 0, 1}, []bool{true, true, false, true})
	v, i := values.NewArray(), indices.NewArray()
	defer v.Release()
	defer i.Release()
	col := array.NewDictionaryArray(typ, i, v)
	defer col.Release()
	rec := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "d", Type: typ, Nullable: true}}, nil), []arrow.Array{col}, 4)
	defer rec.Release()
	path := filepath.Join(t.TempDir(), "d.parquet")
	writeFile(t, path, nil, memtest.New(t), rec)
	rows := 0
	err := readAll(t.Context(), mustOpen(t, nil, path), 0, &driver.ScanOptions{Alloc: memtest.New(t)}, func(b driver.Batch) {
		rows += int(b.Record.NumRows())
		if got := b.Record.Column(0); !arrow.TypeEqual(got.DataType(), typ.ValueType) || got.String() != "[-1 7 (null) -1]" {
			t.Errorf("read %v", got)
		}
	})
	if err != nil || rows != 4 {
		t.Error(rows, err)
	}
}

// Durations are integers in Parquet, and a type in the Arrow schema beside them, as arrow's other writers do it.
func TestDuration(t *testing.T) {
	rb := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema([]arrow.Field{{Name: "d", Type: arrow.PrimitiveTypes.Int64, Nullable: true}}, nil))
	rb.Field(0).(*array.Int64Builder).AppendValues([]int64{0, -1, 0, 1 << 62}, []bool{true, true, false, true})
	rec := rb.NewRecordBatch()
	var stored, out bytes.Buffer
	if err := ipc.NewWriter(&stored, ipc.WithSchema(arrow.NewSchema([]arrow.Field{{Name: "d", Type: arrow.FixedWidthTypes.Duration_ms, Nullable: true}}, nil))).Close(); err != nil {
		t.Fatal(err)
	}
	w, err := pqarrow.NewFileWriter(rec.Schema(), &out, parquet.NewWriterProperties(), pqarrow.DefaultWriterProps())
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{w.Write(rec), w.AppendKeyValueMetadata(arrowSchemaKey, base64.StdEncoding.EncodeToString(stored.Bytes())), w.Close()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	path := filepath.Join(t.TempDir(), "d.parquet")
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	want := array.NewData(arrow.FixedWidthTypes.Duration_ms, 4, rec.Column(0).Data().Buffers(), nil, 1, 0)
	rows := 0
	err = readAll(t.Context(), mustOpen(t, nil, path), 0, &driver.ScanOptions{Alloc: memtest.New(t)}, func(b driver.Batch) {
		rows += int(b.Record.NumRows())
		if got := b.Record.Column(0); !array.Equal(got, array.NewDurationData(want)) {
			t.Errorf("read %v", got)
		}
	})
	if err != nil || rows != 4 {
		t.Error(rows, err)
	}
}
