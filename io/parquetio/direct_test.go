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
	"github.com/penstock-data/penstock/io/driver"
)

// Values of a width that are read into batches directly, lent out of pages, and copied, are those that were written, from whatever
// row on; and a batch that is kept alone holds no more than maxLent times its bytes.
func TestDirect(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	fields := []arrow.Field{{Name: "required", Type: arrow.PrimitiveTypes.Float32}, {Name: "full", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "some", Type: arrow.PrimitiveTypes.Float64, Nullable: true}, {Name: "wide", Type: &arrow.FixedSizeBinaryType{ByteWidth: 5}},
		{Name: "struct", Type: arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Int32, Nullable: true}), Nullable: true}}
	const rows = 400_000 // more than localAhead
	rec := rowsOf(fields, rows, func(_ *rand.Rand, r int, b *array.RecordBuilder) {
		b.Field(0).(*array.Float32Builder).Append(rng.Float32())
		b.Field(1).(*array.Int64Builder).Append(rng.Int64())
		if r/1000%50 == 0 && r%3 == 0 {
			b.Field(2).AppendNull()
		} else {
			b.Field(2).(*array.Float64Builder).Append(rng.Float64())
		}
		v := rng.Uint64()
		b.Field(3).(*array.FixedSizeBinaryBuilder).Append([]byte{byte(v), byte(v >> 8), byte(v >> 16), byte(v >> 24), 7})
		b.Field(4).(*array.StructBuilder).Append(true)
		b.Field(4).(*array.StructBuilder).FieldBuilder(0).(*array.Int32Builder).Append(int32(v >> 32))
	})
	defer rec.Release()
	for _, codec := range []compress.Compression{compress.Codecs.Uncompressed, compress.Codecs.Snappy} {
		for _, version := range []parquet.DataPageVersion{parquet.DataPageV1, parquet.DataPageV2} {
			for _, page := range []int64{100 << 10, 600 << 10, 1 << 30} {
				name := fmt.Sprintf("seed %d: %s %v %d", seed, codec, version, page)
				path := filepath.Join(t.TempDir(), "f.parquet")
				writeWith(t, path, rec, parquet.WithCompression(codec), parquet.WithDataPageSize(page), parquet.WithDataPageVersion(version),
					parquet.WithDictionaryDefault(false), parquet.WithMaxRowGroupLength(rows))
				direct, lent := 0, 0
				for _, batch := range []int{20_000 + rng.IntN(20_000), 1 + rng.IntN(50_000)} { // parts of pages that are lent, and any
					pool := mem.New(1 << 30)
					from := rng.Int64N(rows / 2)
					r, err := mustOpen(t, nil, path).Open(t.Context(), 0, &driver.ScanOptions{Alloc: pool, BatchRows: batch, FromRow: from})
					if err != nil {
						t.Fatal(name, err)
					}
					var kept arrow.RecordBatch
					for at := from; ; {
						b, err := r.Next(t.Context())
						if err == io.EOF {
							break
						}
						if err != nil {
							t.Fatal(name, err)
						}
						want := rec.NewSlice(at, at+b.Record.NumRows())
						if !array.RecordEqual(want, b.Record) {
							t.Fatalf("%s: rows from %d on are others", name, at)
						}
						want.Release()
						at += b.Record.NumRows()
						for _, c := range r.(*reader).columnsOpen() {
							if c.vals.at > 0 {
								direct++
							}
							if c.lent != nil {
								lent++
							}
						}
						if kept == nil || rng.IntN(4) == 0 {
							kept, b.Record = b.Record, kept
						}
						if b.Record != nil {
							b.Record.Release()
						}
					}
					if err := r.Close(); err != nil {
						t.Fatal(name, err)
					}
					var most int64
					for _, c := range kept.Columns() {
						most += int64(c.Data().SizeInBytes()) + 5<<10
						for _, k := range c.Data().Children() {
							most += int64(k.(*array.Data).SizeInBytes())
						}
					}
					if live := pool.Live(); live > maxLent*most*5/4 {
						t.Fatalf("%s: a batch of %d bytes keeps %d", name, most, live)
					}
					kept.Release()
					if live := pool.Live(); live != 0 {
						t.Fatalf("%s: %d bytes are left", name, live)
					}
					pool.Close()
				}
				if codec == compress.Codecs.Uncompressed && page > 1<<20 && direct == 0 {
					t.Errorf("%s: nothing was read directly", name)
				}
				if codec != compress.Codecs.Uncompressed && page == 600<<10 && lent == 0 {
					t.Errorf("%s: nothing was lent", name)
				}
			}
		}
	}
}
