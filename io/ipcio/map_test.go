package ipcio

import (
	"os"
	"path/filepath"
	"testing"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// The file is unmapped by the release of the last buffer on it, not before, and
// batches point into the mapping.
func TestUnmap(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}, {Name: "s", Type: arrow.BinaryTypes.String}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	for i := range 100 {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		b.Field(1).(*array.StringBuilder).Append("text")
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	path := filepath.Join(t.TempDir(), "x.arrow")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w, err := ipc.NewFileWriter(f, ipc.WithSchema(s))
	if err != nil {
		t.Fatal(err)
	}
	for _, err := range []error{w.Write(rec), w.Close(), f.Close()} {
		if err != nil {
			t.Fatal(err)
		}
	}
	tab, err := New(Options{Options: fileset.Options{Paths: []string{path}}}).Resolve(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	alloc := memtest.New(t)
	r, err := tab.Open(t.Context(), 0, &driver.ScanOptions{BatchRows: 30, Alloc: alloc})
	if err != nil {
		t.Fatal(err)
	}
	own, mapping := r.(*reader).raw.owner, r.(*reader).raw.mapped
	unmapped := 0
	done := own.done
	own.done = func() { unmapped++; done() }
	var kept []arrow.Array
	for range 3 {
		batch, err := r.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		v := batch.Record.Column(1)
		p, m := uintptr(unsafe.Pointer(&v.Data().Buffers()[2].Bytes()[0])), uintptr(unsafe.Pointer(&mapping[0]))
		if p < m || p >= m+uintptr(len(mapping)) {
			t.Error("the batch was copied")
		}
		v.Retain()
		kept = append(kept, v)
		batch.Record.Release()
	}
	if alloc.CurrentAlloc() != 0 {
		t.Errorf("%d bytes were allocated for a mapped file", alloc.CurrentAlloc())
	}
	r.Close()
	tab.Close()
	for i, v := range kept {
		if unmapped != 0 {
			t.Fatalf("unmapped before the release of batch %d", i)
		}
		if v.(*array.String).Value(0) != "text" {
			t.Error("a kept column changed")
		}
		v.Release()
	}
	if unmapped != 1 {
		t.Errorf("unmapped %d times after the last release", unmapped)
	}
}
