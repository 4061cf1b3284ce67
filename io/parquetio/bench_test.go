package parquetio

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/io/driver"
)

// taxi makes rows like those of a well known data set of taxi trips.
func taxi(rows int) arrow.RecordBatch {
	col := func(n string, t arrow.DataType) arrow.Field { return arrow.Field{Name: n, Type: t, Nullable: true} }
	ts := &arrow.TimestampType{Unit: arrow.Microsecond}
	f64, i64 := arrow.PrimitiveTypes.Float64, arrow.PrimitiveTypes.Int64
	schema := arrow.NewSchema([]arrow.Field{
		col("vendor", i64), col("pickup", ts), col("dropoff", ts), col("passenger_count", f64), col("trip_distance", f64),
		col("rate", f64), col("flag", arrow.BinaryTypes.String), col("from", i64), col("to", i64), col("payment", i64),
		col("fare_amount", f64), col("extra", f64), col("tax", f64), col("tip_amount", f64), col("tolls", f64), col("total", f64),
	}, nil)
	rng := rand.New(rand.NewPCG(3, 4))
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	b.Reserve(rows)
	for r := range rows {
		for i := range schema.NumFields() {
			if rng.IntN(20) == 0 {
				b.Field(i).AppendNull()
				continue
			}
			switch f := b.Field(i).(type) {
			case *array.Int64Builder:
				f.Append(int64(rng.IntN(265)))
			case *array.TimestampBuilder:
				f.Append(arrow.Timestamp(1.7e15 + float64(r)*1e6 + float64(rng.IntN(1e9))))
			case *array.Float64Builder:
				f.Append(float64(rng.IntN(8000)) / 100)
			case *array.StringBuilder:
				f.Append([]string{"N", "Y"}[rng.IntN(50)/49])
			}
		}
	}
	return b.NewRecordBatch()
}

// cpu is the processor time so far, which a busy machine does not stretch much.
func cpu() int64 {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		return 0
	}
	return u.Utime.Nano() + u.Stime.Nano()
}

func BenchmarkScan(b *testing.B) {
	rec := taxi(500_000)
	defer rec.Release()
	var size int64
	for _, c := range rec.Columns() {
		size += int64(c.Data().SizeInBytes())
	}
	for _, codec := range []string{"zstd", "snappy", "none"} {
		path := filepath.Join(b.TempDir(), codec+".parquet")
		writeFile(b, path, &EncodingOptions{Compression: codec}, nil, rec)
		fi, err := os.Stat(path)
		if err != nil {
			b.Fatal(err)
		}
		for name, cols := range map[string][]string{"all": nil, "3 columns": {"fare_amount", "tip_amount", "passenger_count"}} {
			b.Run(codec+"/"+name, func(b *testing.B) {
				tab := mustOpen(b, nil, path)
				b.SetBytes(size) // of Arrow memory, all columns
				if cols != nil {
					_, n := tab.(driver.Sizer).Size(0, cols)
					b.SetBytes(n)
				}
				b.ReportAllocs()
				before := cpu()
				for b.Loop() {
					for i := range tab.Splits() {
						if err := readAll(b.Context(), tab, i, &driver.ScanOptions{Columns: cols}, nil); err != nil {
							b.Fatal(err)
						}
					}
				}
				b.ReportMetric(float64(fi.Size()), "file-bytes")
				b.ReportMetric(float64(cpu()-before)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

func BenchmarkEncode(b *testing.B) {
	rec := taxi(200_000)
	defer rec.Release()
	var size int64
	for _, c := range rec.Columns() {
		size += int64(c.Data().SizeInBytes())
	}
	for _, codec := range []string{"zstd", "snappy", "none"} {
		b.Run(codec, func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "f.parquet")
			b.SetBytes(size)
			b.ReportAllocs()
			for b.Loop() {
				writeFile(b, path, &EncodingOptions{Compression: codec}, nil, rec)
			}
		})
	}
}
