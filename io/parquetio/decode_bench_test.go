package parquetio

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/penstock-data/penstock/internal/mem"
	"github.com/penstock-data/penstock/io/driver"
)

// workload is a file to be scanned, whole.
type workload struct {
	name  string
	make  func() arrow.RecordBatch
	props []parquet.WriterProperty
}

func workloads() []workload {
	none, snappy, zstd := compress.Codecs.Uncompressed, compress.Codecs.Snappy, compress.Codecs.Zstd
	with := func(c compress.Compression, more ...parquet.WriterProperty) []parquet.WriterProperty {
		return append([]parquet.WriterProperty{parquet.WithCompression(c), parquet.WithDataPageVersion(parquet.DataPageV1)}, more...)
	}
	noDict := parquet.WithDictionaryDefault(false)
	bss, delta := parquet.WithEncoding(parquet.Encodings.ByteStreamSplit), parquet.WithEncoding(parquet.Encodings.DeltaBinaryPacked)
	taxi := func() arrow.RecordBatch { return taxi(500_000) }
	return []workload{
		{"taxi-snappy", taxi, with(snappy)},
		{"taxi-zstd", taxi, with(zstd)},
		{"taxi-none-v2", taxi, append(with(none), parquet.WithDataPageVersion(parquet.DataPageV2))},
		{"floats-none", floatRows, with(none, noDict)},
		{"floats-snappy", floatRows, with(snappy, noDict)},
		{"floats-zstd-split", floatRows, with(zstd, noDict, bss)},
		{"text-zstd", textRows, with(zstd, noDict)},
		{"text-none", textRows, with(none, noDict)},
		{"embeddings-snappy", embeddingRows, with(snappy, noDict)},
		{"embeddings-zstd-split", embeddingRows, with(zstd, noDict, bss)},
		{"tokens-zstd", tokenRows, with(zstd, noDict)},
		{"tokens-zstd-delta", tokenRows, with(zstd, noDict, delta)},
		{"tokens-snappy-dict", tokenRows, with(snappy)},
		{"nulls-snappy", nullRows, with(snappy)},
		{"nulls-zstd-v2", nullRows, append(with(zstd), parquet.WithDataPageVersion(parquet.DataPageV2))},
		{"images-none", imageRows, with(none, noDict)},
		{"structs-snappy", structRows, with(snappy)},
		{"nested-snappy", nestedRows, with(snappy)},
	}
}

func rowsOf(fields []arrow.Field, rows int, add func(rng *rand.Rand, r int, b *array.RecordBuilder)) arrow.RecordBatch {
	rng := rand.New(rand.NewPCG(11, 12))
	b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
	defer b.Release()
	b.Reserve(rows)
	for r := range rows {
		add(rng, r, b)
	}
	return b.NewRecordBatch()
}

func floatRows() arrow.RecordBatch {
	var fs []arrow.Field
	for i := range 40 {
		fs = append(fs, arrow.Field{Name: fmt.Sprint("f", i), Type: arrow.PrimitiveTypes.Float32, Nullable: true})
	}
	return rowsOf(fs, 500_000, func(rng *rand.Rand, _ int, b *array.RecordBuilder) {
		for i := range fs {
			b.Field(i).(*array.Float32Builder).Append(rng.Float32())
		}
	})
}

func textRows() arrow.RecordBatch {
	words := strings.Fields("the of and to in is that it was for on are as with his they at be this from have or by one had not but what all were when")
	return rowsOf([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "text", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "label", Type: arrow.PrimitiveTypes.Int32}}, 150_000, func(rng *rand.Rand, r int, b *array.RecordBuilder) {
		var s strings.Builder
		for range 40 + rng.IntN(120) {
			s.WriteString(words[rng.IntN(len(words))])
			s.WriteByte(" .,abcdefgh"[rng.IntN(11)])
		}
		b.Field(0).(*array.Int64Builder).Append(int64(r))
		b.Field(1).(*array.StringBuilder).Append(s.String())
		b.Field(2).(*array.Int32Builder).Append(rng.Int32N(10))
	})
}

func embeddingRows() arrow.RecordBatch {
	return rowsOf([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "v", Type: arrow.ListOf(arrow.PrimitiveTypes.Float32), Nullable: true}},
		30_000, func(rng *rand.Rand, r int, b *array.RecordBuilder) {
			b.Field(0).(*array.Int64Builder).Append(int64(r))
			l := b.Field(1).(*array.ListBuilder)
			l.Append(true)
			for range 768 {
				l.ValueBuilder().(*array.Float32Builder).Append(rng.Float32() - 0.5)
			}
		})
}

func tokenRows() arrow.RecordBatch {
	return rowsOf([]arrow.Field{{Name: "tokens", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32), Nullable: true}},
		12_000, func(rng *rand.Rand, r int, b *array.RecordBuilder) {
			l := b.Field(0).(*array.ListBuilder)
			l.Append(true)
			z := rand.NewZipf(rng, 1.2, 4, 50_000)
			for range 2048 {
				l.ValueBuilder().(*array.Int32Builder).Append(int32(z.Uint64()))
			}
		})
}

func nullRows() arrow.RecordBatch {
	fs := []arrow.Field{}
	for i, t := range []arrow.DataType{
		arrow.PrimitiveTypes.Int64, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Float64, arrow.PrimitiveTypes.Float32, arrow.BinaryTypes.String, arrow.BinaryTypes.String,
		arrow.FixedWidthTypes.Boolean, arrow.FixedWidthTypes.Date32, &arrow.TimestampType{Unit: arrow.Microsecond}, arrow.PrimitiveTypes.Int16,
	} {
		fs = append(fs, arrow.Field{Name: fmt.Sprint("c", i), Type: t, Nullable: true})
	}
	return rowsOf(fs, 500_000, func(rng *rand.Rand, r int, b *array.RecordBuilder) {
		for i := range fs {
			if rng.IntN(10) == 0 {
				b.Field(i).AppendNull()
				continue
			}
			switch f := b.Field(i).(type) {
			case *array.Int64Builder:
				f.Append(rng.Int64N(1 << 40))
			case *array.Int32Builder:
				f.Append(rng.Int32N(1000))
			case *array.Float64Builder:
				f.Append(rng.NormFloat64())
			case *array.Float32Builder:
				f.Append(float32(rng.IntN(5000)))
			case *array.StringBuilder:
				if i == 4 {
					f.Append(fmt.Sprint("category ", rng.IntN(200)))
				} else {
					f.Append(fmt.Sprintf("%016x%016x", rng.Uint64(), rng.Uint64()))
				}
			case *array.BooleanBuilder:
				f.Append(rng.IntN(3) == 0)
			case *array.Date32Builder:
				f.Append(arrow.Date32(18000 + rng.IntN(900)))
			case *array.TimestampBuilder:
				f.Append(arrow.Timestamp(int64(r)*1_000_000 + rng.Int64N(1e6)))
			case *array.Int16Builder:
				f.Append(int16(rng.IntN(300)))
			}
		}
	})
}

func imageRows() arrow.RecordBatch {
	return rowsOf([]arrow.Field{{Name: "image", Type: arrow.BinaryTypes.Binary}}, 2000, func(rng *rand.Rand, _ int, b *array.RecordBuilder) {
		p := make([]byte, 40_000+rng.IntN(20_000))
		for i := 0; i+8 <= len(p); i += 8 {
			v := rng.Uint64()
			for k := range 8 {
				p[i+k] = byte(v >> (8 * k))
			}
		}
		b.Field(0).(*array.BinaryBuilder).Append(p)
	})
}

func structRows() arrow.RecordBatch {
	t := arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
		arrow.Field{Name: "y", Type: arrow.PrimitiveTypes.Int32, Nullable: true}, arrow.Field{Name: "s", Type: arrow.BinaryTypes.String, Nullable: true})
	return rowsOf([]arrow.Field{{Name: "st", Type: t, Nullable: true}}, 500_000, func(rng *rand.Rand, r int, b *array.RecordBuilder) {
		st := b.Field(0).(*array.StructBuilder)
		if rng.IntN(10) == 0 {
			st.AppendNull()
			return
		}
		st.Append(true)
		st.FieldBuilder(0).(*array.Float64Builder).Append(rng.Float64())
		if rng.IntN(10) == 0 {
			st.FieldBuilder(1).AppendNull()
		} else {
			st.FieldBuilder(1).(*array.Int32Builder).Append(rng.Int32N(1000))
		}
		st.FieldBuilder(2).(*array.StringBuilder).Append(fmt.Sprint("name ", rng.IntN(3000)))
	})
}

func nestedRows() arrow.RecordBatch {
	t := arrow.ListOf(arrow.StructOf(arrow.Field{Name: "k", Type: arrow.BinaryTypes.String, Nullable: true},
		arrow.Field{Name: "v", Type: arrow.PrimitiveTypes.Float32, Nullable: true}))
	return rowsOf([]arrow.Field{{Name: "l", Type: t, Nullable: true}}, 200_000, func(rng *rand.Rand, r int, b *array.RecordBuilder) {
		l := b.Field(0).(*array.ListBuilder)
		l.Append(true)
		st := l.ValueBuilder().(*array.StructBuilder)
		for range rng.IntN(12) {
			st.Append(true)
			st.FieldBuilder(0).(*array.StringBuilder).Append(fmt.Sprint("name ", rng.IntN(3000)))
			st.FieldBuilder(1).(*array.Float32Builder).Append(rng.Float32())
		}
	})
}

// BenchmarkDecode scans files of many kinds with this package and with pqarrow; compare
// their cpu-ns/op. Both have a pool of memory.
func BenchmarkDecode(b *testing.B) {
	dir := b.TempDir()
	for _, w := range workloads() {
		var path string
		var rows, size int64
		for _, engine := range []string{"penstock", "pqarrow"} {
			b.Run(w.name+"/"+engine, func(b *testing.B) {
				if path == "" {
					rec := w.make()
					path = filepath.Join(dir, w.name+".parquet")
					rows = rec.NumRows()
					for _, c := range rec.Columns() {
						size += int64(c.Data().SizeInBytes())
					}
					writeWith(b, path, rec, append(w.props, parquet.WithMaxRowGroupLength(max(rows/4, 1)))...)
					rec.Release()
				}
				pool := mem.New(256 << 20)
				defer pool.Close()
				scan := func() int64 { return scanNative(b, path, pool) }
				if engine == "pqarrow" {
					scan = func() int64 { return scanArrow(b, path, pool) }
				}
				b.SetBytes(size)
				b.ReportAllocs()
				before := cpu()
				for b.Loop() {
					if n := scan(); n != rows {
						b.Fatalf("%d rows of %d", n, rows)
					}
				}
				b.ReportMetric(float64(cpu()-before)/float64(b.N), "cpu-ns/op")
			})
		}
		_ = os.Remove(path) // of some size
	}
}

func writeWith(b testing.TB, path string, rec arrow.RecordBatch, props ...parquet.WriterProperty) {
	b.Helper()
	var out bytes.Buffer
	w, err := pqarrow.NewFileWriter(rec.Schema(), &out, parquet.NewWriterProperties(props...), pqarrow.DefaultWriterProps())
	if err != nil {
		b.Fatal(err)
	}
	if err := w.Write(rec); err != nil {
		b.Fatal(err)
	}
	if err := w.Close(); err != nil {
		b.Fatal(err)
	}
	if err := os.WriteFile(path, out.Bytes(), 0o600); err != nil {
		b.Fatal(err)
	}
}

func scanNative(b testing.TB, path string, alloc memory.Allocator) (rows int64) {
	tab := mustOpen(b, nil, path)
	defer tab.Close()
	for i := range tab.Splits() {
		err := readAll(b.Context(), tab, i, &driver.ScanOptions{Alloc: alloc}, func(x driver.Batch) { rows += x.Record.NumRows() })
		if err != nil {
			b.Fatal(err)
		}
	}
	return rows
}

func scanArrow(b testing.TB, path string, alloc memory.Allocator) (rows int64) {
	f, err := os.Open(path)
	if err != nil {
		b.Fatal(err)
	}
	pf, err := file.NewParquetReader(f, file.WithReadProps(parquet.NewReaderProperties(alloc)))
	if err != nil {
		b.Fatal(err)
	}
	defer pf.Close()
	fr, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{BatchSize: driver.DefaultBatchRows}, alloc)
	if err != nil {
		b.Fatal(err)
	}
	rr, err := fr.GetRecordReader(context.Background(), nil, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer rr.Release()
	for {
		rec, err := rr.Read()
		if err == io.EOF {
			return rows
		}
		if err != nil {
			b.Fatal(err)
		}
		rows += rec.NumRows()
	}
}
