package parquetio

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"

	"github.com/penstock-data/penstock/internal/mem"
	"github.com/penstock-data/penstock/io/driver"
)

// BenchmarkDictionary scans a column of strings, with and without the option: of few values, in pages with
// a dictionary and without; of many; and of values that hardly repeat. Compare cpu-ns/op, which is of 1,000,000 rows.
func BenchmarkDictionary(b *testing.B) {
	const rows = 1_000_000
	for _, c := range []struct {
		name            string
		distinct, width int
		dict            bool
	}{
		{"50", 50, 12, true}, {"50-plain", 50, 12, false}, {"20k", 20_000, 12, true}, {"20k-plain", 20_000, 12, false}, {"unique", rows, 12, false},
		{"50-wide", 50, 60, true},
	} {
		rng := rand.New(rand.NewPCG(1, 1))
		path := textColumn(b, b.TempDir(), "f.parquet", arrow.BinaryTypes.String,
			texts2(rows, func(int) string { return fmt.Sprintf("%0*d", c.width, rng.IntN(c.distinct)) }),
			parquet.WithDictionaryDefault(c.dict), parquet.WithCompression(compress.Codecs.Snappy))
		for _, d := range []Dictionary{{}, {All: true}} {
			b.Run(fmt.Sprintf("%s/dictionary=%t", c.name, d.All), func(b *testing.B) {
				tab := mustOpen(b, &Options{Dictionary: d}, path)
				pool := mem.New(256 << 20)
				defer pool.Close()
				before := cpu()
				for b.Loop() {
					if n := scanned(b, tab, pool); n != rows {
						b.Fatal(n)
					}
				}
				b.ReportMetric(float64(cpu()-before)/float64(b.N), "cpu-ns/op")
			})
		}
	}
}

func scanned(b *testing.B, tab driver.Table, alloc memory.Allocator) (n int64) {
	for i := range tab.Splits() {
		if err := readAll(b.Context(), tab, i, &driver.ScanOptions{Alloc: alloc}, func(x driver.Batch) { n += x.Record.NumRows() }); err != nil {
			b.Fatal(err)
		}
	}
	return n
}
