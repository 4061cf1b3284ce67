package ipcio

import (
	"bytes"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// TestSmallFileManyRows: a record of as many nulls as a batch may have, which takes no bytes at
// all, is refused, in files and in streams, with and without columns that are wanted.
func TestSmallFileManyRows(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{{Name: "a", Type: arrow.Null, Nullable: true}}, nil)
	nulls := array.NewNull(math.MaxInt32)
	defer nulls.Release()
	rec := array.NewRecordBatch(schema, []arrow.Array{nulls}, math.MaxInt32)
	defer rec.Release()
	var stream bytes.Buffer
	w := ipc.NewWriter(&stream, ipc.WithSchema(schema))
	file, err := os.Create(filepath.Join(t.TempDir(), "a.arrow"))
	if err != nil {
		t.Fatal(err)
	}
	fw, err := ipc.NewFileWriter(file, ipc.WithSchema(schema))
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range []interface {
		Write(arrow.RecordBatch) error
		Close() error
	}{w, fw} {
		if err := w.Write(rec); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
	}
	streamed := filepath.Join(t.TempDir(), "a.arrows")
	if err := os.WriteFile(streamed, stream.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{file.Name(), streamed} {
		for _, columns := range [][]string{nil, {}} {
			table, err := New(Options{Options: fileset.Options{Paths: []string{path}}}).Resolve(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			r, err := table.Open(t.Context(), 0, &driver.ScanOptions{Columns: columns, BatchRows: 1 << 20, Alloc: memtest.New(t)})
			if err != nil {
				t.Fatal(err)
			}
			var rows int64
			for err == nil {
				var b driver.Batch
				if b, err = r.Next(t.Context()); err == nil {
					rows += b.Record.NumRows()
					b.Record.Release()
				}
			}
			if err == io.EOF || fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), "max_growth") || rows > 1<<30 {
				t.Errorf("%s, columns %v: %d rows, then %v; want an error that names max_growth", filepath.Base(path), columns, rows, err)
			}
			r.Close()
			table.Close()
		}
	}
}
