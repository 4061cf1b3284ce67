package parquetio

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/drivertest"
)

// manyFiles writes n equal files of 10 row groups.
func manyFiles(t testing.TB, n int) string {
	dir := t.TempDir()
	rec := drivertest.Records(drivertest.Schema(), 1, 0, 1000)
	defer rec.Release()
	b := array.NewStringBuilder(memory.DefaultAllocator)
	for i := range 1000 {
		b.Append(fmt.Sprintf("%060d", i)) // bounds of 60 bytes
	}
	long := b.NewArray()
	rec = array.NewRecordBatch(arrow.NewSchema(append(rec.Schema().Fields(), arrow.Field{Name: "long", Type: arrow.BinaryTypes.String}), nil), append(slices.Clone(rec.Columns()), long), 1000)
	path := filepath.Join(dir, "f00000.parquet")
	writeFile(t, path, &EncodingOptions{RowGroupRows: 100}, nil, rec)
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := 1; i < n; i++ {
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("f%05d.parquet", i)), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// TestFirstBatch: 1,000 local files of 10 row groups give the first batch within
// a second (here with room for a busy machine), and footers are kept small.
func TestFirstBatch(t *testing.T) {
	const files = 1000
	dir := manyFiles(t, files)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	start := time.Now()
	tab := mustOpen(t, nil, dir)
	resolved := time.Since(start)
	r, err := tab.Open(t.Context(), 0, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := r.Next(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	b.Record.Release()
	took := time.Since(start)
	runtime.GC()
	runtime.ReadMemStats(&after)
	chunks := 0
	for _, f := range tab.(*table).footers {
		chunks += len(f.groups) * len(f.schema.leaves)
	}
	if c := tab.(*table).footers[0].group(0).chunks; len(c[len(c)-1].max) != 60 {
		t.Errorf("the bound of a long value has %d bytes", len(c[len(c)-1].max))
	}
	per := int64(after.HeapAlloc-before.HeapAlloc) / int64(chunks)
	t.Logf("%d splits; resolved in %v, first batch after %v; %d column chunks take %d bytes each", len(tab.Splits()), resolved, took, chunks, per)
	if len(tab.Splits()) != 10*files {
		t.Errorf("%d splits", len(tab.Splits()))
	}
	if took > 5*time.Second {
		t.Errorf("the first batch came after %v", took)
	}
	if per > 100 {
		t.Errorf("a column chunk takes %d bytes, splits and all; the goal is 100", per)
	}
}

// BenchmarkFirstBatch is the time until the first batch of 1,000 files.
func BenchmarkFirstBatch(b *testing.B) {
	dir := manyFiles(b, 1000)
	b.ReportAllocs()
	for b.Loop() {
		tab, err := New(Options{Options: fileOptions(dir)}).Resolve(b.Context(), nil)
		if err != nil {
			b.Fatal(err)
		}
		r, err := tab.Open(b.Context(), 0, nil)
		if err != nil {
			b.Fatal(err)
		}
		bt, err := r.Next(b.Context())
		if err != nil {
			b.Fatal(err)
		}
		bt.Record.Release()
		r.Close()
		tab.Close()
	}
}

// BenchmarkCount is count: footers only.
func BenchmarkCount(b *testing.B) {
	dir := manyFiles(b, 1000)
	for b.Loop() {
		tab, err := (&Source{Options{Options: fileOptions(dir)}}).Resolve(b.Context(), nil)
		if err != nil {
			b.Fatal(err)
		}
		var n int64
		for _, s := range tab.Splits() {
			n += s.Rows
		}
		if n != 1_000_000 {
			b.Fatal(n)
		}
		tab.Close()
	}
}

var _ driver.Table = (*table)(nil)
