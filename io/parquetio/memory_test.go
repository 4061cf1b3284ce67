package parquetio

import (
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"

	"github.com/penstock-data/penstock/internal/mem"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// TestHugePages: of a file with one page per column, some writers' habit, a reader holds one page at a
// time beyond what it may keep, not one per column.
func TestHugePages(t *testing.T) {
	const rows, cols, page = 2 << 20, 16, 16 << 20
	one := rowsOf([]arrow.Field{{Name: "f", Type: arrow.PrimitiveTypes.Float64}}, rows, func(rng *rand.Rand, _ int, b *array.RecordBuilder) {
		b.Field(0).(*array.Float64Builder).Append(rng.Float64())
	})
	defer one.Release()
	var fs []arrow.Field
	var same []arrow.Array
	for i := range cols {
		fs, same = append(fs, arrow.Field{Name: fmt.Sprint("f", i), Type: arrow.PrimitiveTypes.Float64}), append(same, one.Column(0))
	}
	rec := array.NewRecordBatch(arrow.NewSchema(fs, nil), same, rows)
	defer rec.Release()
	path := filepath.Join(t.TempDir(), "f.parquet")
	writeWith(t, path, rec, parquet.WithCompression(compress.Codecs.Snappy), parquet.WithDictionaryDefault(false),
		parquet.WithDataPageSize(1<<30), parquet.WithMaxRowGroupLength(rows))
	tab := mustOpen(t, nil, path)
	for _, ahead := range []int64{0, 1 << 20, 8 << 20} {
		pool := mem.New(1 << 30)
		defer pool.Close()
		peak, at := int64(0), int64(0)
		err := readAll(t.Context(), tab, 0, &driver.ScanOptions{Alloc: pool, AheadBytes: ahead}, func(b driver.Batch) {
			peak = max(peak, pool.Live())
			want := rec.NewSlice(at, at+b.Record.NumRows())
			defer want.Release()
			for i, c := range b.Record.Columns() {
				if !array.Equal(c, want.Column(i)) {
					t.Fatalf("column %d differs in rows %d to %d", i, at, at+b.Record.NumRows())
				}
			}
			at += b.Record.NumRows()
		})
		if err != nil || at != rows {
			t.Fatalf("%d rows, %v", at, err)
		}
		// What may be held, one page, its bytes in the file, a batch and what rows decoded ahead are more than they may.
		most := ahead
		if ahead == 0 {
			most = maxKept + maxAhead
		}
		most += 2*page + 8<<20
		t.Logf("hint %d: %d MiB held, at most %d; pages have %d", ahead, peak>>20, most>>20, cols*page>>20)
		if peak > most {
			t.Errorf("%d bytes are held, want at most %d", peak, most)
		}
		if n := pool.Live(); n != 0 {
			t.Errorf("%d bytes leak", n)
		}
	}
}

// TestUniqueColumns: a column without repeated values gets no dictionary, also
// where the first batches are small, and what is held of 100,000 rows is what
// they are encoded, not a hash table. Bloom filters have the size of their groups.
func TestUniqueColumns(t *testing.T) {
	alloc := memtest.New(t)
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "few", Type: arrow.PrimitiveTypes.Int64}}, nil)
	enc, err := NewEncoding(&EncodingOptions{RowGroupRows: 20_000, Bloom: []string{"id"}})
	if err != nil {
		t.Fatal(err)
	}
	e, err := enc.NewEncoder(io.Discard, schema, alloc)
	if err != nil {
		t.Fatal(err)
	}
	b := array.NewRecordBuilder(alloc, schema)
	defer b.Release()
	next := int64(0)
	for _, n := range []int64{8, 8, 1000, 98_984} {
		for range n {
			b.Field(0).(*array.Int64Builder).Append(next * 0x9e3779b9)
			b.Field(1).(*array.Int64Builder).Append(next % 50)
			next++
		}
		rec := b.NewRecordBatch()
		err := e.Write(rec)
		rec.Release()
		if err != nil {
			t.Fatal(err)
		}
	}
	p := e.(*encoder)
	if len(p.dicts) != 1 || p.dicts[0] != 100 {
		t.Errorf("dictionaries of %d entries, want one of 100", p.dicts)
	}
	if held := p.Held(); held > 1<<20 {
		t.Errorf("%d bytes are held", held)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}
