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
