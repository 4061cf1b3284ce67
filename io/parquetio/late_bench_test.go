package parquetio

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/compress"

	"github.com/penstock-data/penstock/io/driver"
)

// BenchmarkLate reads 5 of 19 columns: with a filter, and the same rows and columns, that of the filter
// among them, without.
func BenchmarkLate(b *testing.B) {
	const rows = 500_000
	trips := taxi(rows)
	defer trips.Release()
	add := make([]arrow.Array, 3)
	for i, f := range []func(r int64) int64{
		func(r int64) int64 { return r },
		func(r int64) int64 { return int64(uint64(r)*0x9e3779b97f4a7c15>>32) % 1000 },
		func(r int64) int64 { return r % 7 },
	} {
		kb := array.NewInt64Builder(memory.DefaultAllocator)
		for r := range int64(rows) {
			kb.Append(f(r))
		}
		add[i] = kb.NewArray()
	}
	fields := trips.Schema().Fields()
	for _, n := range []string{"k", "s", "m"} {
		fields = append(fields, arrow.Field{Name: n, Type: arrow.PrimitiveTypes.Int64})
	}
	rec := array.NewRecordBatch(arrow.NewSchema(fields, nil), append(trips.Columns()[:16:16], add...), rows)
	lt := func(c string, v int64) driver.Predicate {
		return driver.Predicate{{Column: c, Op: driver.Lt, Values: []any{v}}}
	}
	for _, codec := range []compress.Compression{compress.Codecs.Snappy, compress.Codecs.Zstd} {
		path := filepath.Join(b.TempDir(), fmt.Sprint(codec))
		f, err := os.Create(path)
		if err != nil {
			b.Fatal(err)
		}
		fileLayout{codec: codec, page: 128 << 10}.write(b, f, rec)
		f.Close()
		tab := mustOpen(b, nil, path)
		for _, by := range []struct {
			name, column string
			p            driver.Predicate
		}{
			{"clustered 1%", "k", lt("k", rows/100)}, {"scattered 1%", "s", lt("s", 10)}, {"scattered 0.1%", "s", lt("s", 1)},
			{"scattered 50%", "s", lt("s", 500)}, {"all but one", "k", lt("k", rows-1)}, {"none", "fare_amount", driver.Predicate{{Column: "fare_amount", Op: driver.Eq, Values: []any{0.005}}}},
		} {
			columns := []string{"fare_amount", "tip_amount", "flag", "pickup", by.column}
			var spent [2]int64
			b.Run(fmt.Sprintf("%v/%s", codec, by.name), func(b *testing.B) {
				clear(spent[:])
				for b.Loop() {
					for i, p := range []driver.Predicate{nil, by.p} {
						before := cpu()
						if err := readAll(b.Context(), tab, 0, &driver.ScanOptions{Columns: columns, Predicate: p}, nil); err != nil {
							b.Fatal(err)
						}
						spent[i] += cpu() - before
					}
				}
				b.ReportMetric(float64(spent[0])/float64(b.N)/1e6, "ms-without")
				b.ReportMetric(float64(spent[1])/float64(b.N)/1e6, "ms-with")
				b.ReportMetric(float64(spent[1])/float64(spent[0]), "ratio")
			})
		}
	}
}
