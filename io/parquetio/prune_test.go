package parquetio

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"

	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// wide is rows of 50 columns: "k" counts up, the others are random.
func wide(rows int) arrow.RecordBatch { return wideRows().NewSlice(0, int64(rows)) }

var wideRows = sync.OnceValue(func() arrow.RecordBatch { return makeWide(200_000) })

func makeWide(rows int) arrow.RecordBatch {
	rng := rand.New(rand.NewPCG(1, 2))
	words := make([]string, 5000)
	for i := range words {
		words[i] = fmt.Sprintf("word-%06d", i)
	}
	fields := []arrow.Field{{Name: "k", Type: arrow.PrimitiveTypes.Int64}}
	for i := 1; i < 50; i++ {
		f := arrow.Field{Name: fmt.Sprintf("c%02d", i), Type: arrow.PrimitiveTypes.Float64, Nullable: true}
		if i%5 == 0 {
			f.Type = arrow.BinaryTypes.String
		}
		fields = append(fields, f)
	}
	schema := arrow.NewSchema(fields, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	b.Reserve(rows)
	for i := range fields {
		switch c := b.Field(i).(type) {
		case *array.Int64Builder:
			for r := range rows {
				c.Append(int64(r))
			}
		case *array.Float64Builder:
			for range rows {
				c.Append(rng.Float64())
			}
		case *array.StringBuilder:
			for range rows {
				c.Append(words[rng.IntN(len(words))])
			}
		}
	}
	return b.NewRecordBatch()
}

// TestPageIndexBytes: a filter that keeps 1 % of a sorted column, over 3 of 50
// columns, reads at most 1 % of the file beside footer and indexes.
func TestPageIndexBytes(t *testing.T) {
	const rows = 200_000
	rec := wide(rows)
	defer rec.Release()
	path := filepath.Join(t.TempDir(), "wide.parquet")
	writeFile(t, path, nil, nil, rec)
	fi, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	tab := mustOpen(t, nil, path)
	p := driver.Predicate{
		{Column: "k", Op: driver.Ge, Values: []any{int64(rows / 2)}},
		{Column: "k", Op: driver.Lt, Values: []any{int64(rows/2 + rows/100)}},
	}
	var st driver.ScanStats
	var got, index int64
	tb := tab.(*table)
	for i, at := range tb.at {
		g := tb.footers[at.file].group(at.group)
		for _, l := range []int{0, 1, 5} {
			index += int64(g.chunks[l].ciLen) + int64(g.chunks[l].oiLen)
		}
		o := &driver.ScanOptions{Columns: []string{"k", "c01", "c05"}, Predicate: p, Stats: &st, Alloc: memtest.New(t)}
		err := readAll(t.Context(), tab, i, o, func(b driver.Batch) {
			k := b.Record.Column(0).(*array.Int64)
			v := b.Record.Column(1).(*array.Float64)
			w := rec.Column(1).(*array.Float64)
			for r := range k.Len() {
				if k.Value(r) >= rows/2 && k.Value(r) < rows/2+rows/100 {
					got++
				}
				if v.Value(r) != w.Value(int(k.Value(r))) {
					t.Fatalf("row %d: wrong value", k.Value(r))
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if got != rows/100 {
		t.Errorf("%d rows of %d", got, rows/100)
	}
	share := float64(st.BytesRead.Load()-index) / float64(fi.Size())
	t.Logf("file %d bytes in %d row groups, read %d of which index %d: %.3f %%; %d rows not decoded, %d requests",
		fi.Size(), len(tb.splits), st.BytesRead.Load(), index, 100*share, st.Pruned.Load(), st.Requests.Load())
	if share > 0.01 {
		t.Errorf("%.2f %% of the file is read", 100*share)
	}
}

// TestBoundsOfParquetGo: parquet-go's bounds of floats are not believed, those of other types are, and those of floats that others wrote.
func TestBoundsOfParquetGo(t *testing.T) {
	rec := rowsOf([]arrow.Field{{Name: "f", Type: arrow.PrimitiveTypes.Float64}, {Name: "g", Type: arrow.PrimitiveTypes.Float32}, {Name: "i", Type: arrow.PrimitiveTypes.Int64}}, 1000, func(_ *rand.Rand, r int, b *array.RecordBuilder) {
		b.Field(0).(*array.Float64Builder).Append(float64(r))
		b.Field(1).(*array.Float32Builder).Append(float32(r))
		b.Field(2).(*array.Int64Builder).Append(int64(r))
	})
	defer rec.Release()
	for by, floats := range map[string]bool{"github.com/parquet-go/parquet-go version 0.32.0(build )": true, "github.com/segmentio/parquet-go version 0.0.0(build )": true, "parquet-cpp-arrow version 25.0.1": false, parquet.DefaultCreatedBy: false} {
		path := filepath.Join(t.TempDir(), "f.parquet")
		writeWith(t, path, rec, parquet.WithCreatedBy(by), parquet.WithPageIndexEnabled(true), parquet.WithDataPageSize(500), parquet.WithBatchSize(100))
		tab := mustOpen(t, nil, path)
		for c, none := range []any{-1.0, -1.0, int64(-1)} { // no bounds admit it; the indexes of pages leave out the second half
			name := rec.ColumnName(c)
			keep, err := tab.(driver.Pruner).Keep(t.Context(), driver.Predicate{{Column: name, Op: driver.Le, Values: []any{none}}})
			if want := floats && c < 2; err != nil || keep[0] != want {
				t.Errorf("%s: %s is kept: %v, %v; want %t", by, name, keep, err, want)
			}
			half := any(500.0)
			if c == 2 {
				half = int64(500)
			}
			r, err := tab.Open(t.Context(), 0, &driver.ScanOptions{Alloc: memtest.New(t), Predicate: driver.Predicate{{Column: name, Op: driver.Le, Values: []any{half}}}})
			if err != nil {
				t.Fatal(err)
			}
			if all := r.(*reader).ranges[0].to == 1000; all != (floats && c < 2) {
				t.Errorf("%s: %s: rows %v are read", by, name, r.(*reader).ranges)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// BenchmarkPageBytes shows what the size of pages costs.
func BenchmarkPageBytes(b *testing.B) {
	rec := wide(200_000)
	defer rec.Release()
	for _, kib := range []int64{32, 64, 128, 256, 1024} {
		b.Run(fmt.Sprint(kib), func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "f.parquet")
			writeFile(b, path, &EncodingOptions{PageBytes: kib << 10}, nil, rec)
			fi, _ := os.Stat(path)
			tab := mustOpen(b, nil, path)
			b.SetBytes(fi.Size())
			b.ReportAllocs()
			defer func() { b.ReportMetric(float64(fi.Size()), "file-bytes") }()
			for b.Loop() {
				for i := range tab.Splits() {
					if err := readAll(b.Context(), tab, i, nil, nil); err != nil {
						b.Fatal(err)
					}
				}
			}
		})
	}
}
