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
)

// Durations are integers in Parquet, and a type in the Arrow schema beside them: arrow-go writes none, other writers do.
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
