package ipcio

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// The file is unmapped by the release of the last buffer on it, not before, and
// batches point into the mapping.
func TestUnmap(t *testing.T) {
	path := numbered(t, 100)
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

// numbered is a file of rows in one frame: the numbers up to that, and a text.
func numbered(t *testing.T, rows int) (path string) {
	s := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}, {Name: "s", Type: arrow.BinaryTypes.String}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	for i := range rows {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		b.Field(1).(*array.StringBuilder).Append("text")
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	path = filepath.Join(t.TempDir(), "x.arrow")
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
	return path
}

// changing is a table over a file of 100,000 rows, which is mapped.
func changing(t *testing.T) (path string, tab driver.Table) {
	path = numbered(t, 100_000)
	old := time.Now().Add(-time.Hour) // what is written later has another time, whatever the clock's ticks
	if err := os.Chtimes(path, old, old); err != nil {
		t.Fatal(err)
	}
	tab, err := New(Options{Options: fileset.Options{Paths: []string{path}}}).Resolve(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tab.Close() })
	return path, tab
}

// A file that is cut short, or written to, while it is read is an error that says so and names the file, on a goroutine without
// SetPanicOnFault too. Batches that were read with Own stay as they are.
func TestChangedWhileRead(t *testing.T) {
	for name, change := range map[string]func(path string) error{
		"cut short": func(path string) error { return os.Truncate(path, 4096) },
		"emptied":   func(path string) error { return os.Truncate(path, 0) },
		"written to": func(path string) error {
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				return err
			}
			defer f.Close()
			fi, err := f.Stat()
			if err == nil {
				_, err = f.WriteAt(bytes.Repeat([]byte{0xA5}, int(fi.Size())), 0)
			}
			return err
		},
	} {
		for _, own := range []bool{true, false} {
			for _, before := range []int64{50_000, 0} {
				path, tab := changing(t)
				r, err := tab.Open(t.Context(), 0, &driver.ScanOptions{BatchRows: 50_000, Own: own, Alloc: memtest.New(t)})
				if err != nil {
					t.Fatal(err)
				}
				var b driver.Batch
				if before > 0 {
					if b, err = r.Next(t.Context()); err != nil {
						t.Fatal(err)
					}
				}
				if err := change(path); err != nil {
					t.Fatal(err)
				}
				_, err = r.Next(t.Context())
				if fault.CodeOf(err) != fault.Changed || !strings.Contains(err.Error(), "the object changed") || fault.PlaceOf(err).File != path {
					t.Errorf("%s, own %t, behind %d rows: %v", name, own, before, err)
				}
				for i := int64(0); own && i < before; i++ {
					if n, s := b.Record.Column(0).(*array.Int64).Value(int(i)), b.Record.Column(1).(*array.String).Value(int(i)); n != i || s != "text" {
						t.Fatalf("%s: row %d is %d, %q", name, i, n, s)
					}
				}
				if b.Record != nil {
					b.Record.Release()
				}
				r.Close()
			}
		}
	}
}
