package parquetio

import (
	"math"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet"

	"github.com/penstock-data/penstock/internal/mem"
	"github.com/penstock-data/penstock/io/driver"
)

// TestDecodeAllocations: four times the rows take no more allocations on the Go heap but for some in each batch and column, whatever the
// types, encodings and codecs: none for rows or values.
func TestDecodeAllocations(t *testing.T) {
	const most = 24 // allocations of a column in a batch, which has at least 50 rows
	pool := mem.New(256 << 20)
	defer pool.Close()
	recs := map[string]arrow.RecordBatch{}
	for _, w := range workloads() {
		kind, _, _ := strings.Cut(w.name, "-")
		if recs[kind] == nil {
			recs[kind] = w.make()
			defer recs[kind].Release()
		}
		n := max(recs[kind].NumRows()/40, 400)
		var allocs, batches [2]int64
		leaves := 0
		for i, rows := range []int64{n, 4 * n} {
			path := filepath.Join(t.TempDir(), "f.parquet")
			rec := recs[kind].NewSlice(0, rows)
			writeWith(t, path, rec, append(w.props, parquet.WithMaxRowGroupLength(rows))...)
			rec.Release()
			tab := mustOpen(t, nil, path).(*table)
			leaves = len(tab.footers[0].schema.leaves)
			allocs[i] = math.MaxInt64
			for range 4 { // the first fills pools; some are disturbed
				batches[i] = 0
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				err := readAll(t.Context(), tab, 0, &driver.ScanOptions{Alloc: pool, BatchRows: int(n / 8)}, func(driver.Batch) { batches[i]++ })
				runtime.ReadMemStats(&after)
				if err != nil {
					t.Fatal(err)
				}
				allocs[i] = min(allocs[i], int64(after.Mallocs-before.Mallocs))
			}
		}
		more, per := allocs[1]-allocs[0], float64(allocs[1]-allocs[0])/float64(int64(leaves)*max(batches[1]-batches[0], 1))
		t.Logf("%s: %d and %d rows in %d and %d batches of %d columns: %d and %d allocations, %.1f a batch and column", w.name, n, 4*n, batches[0], batches[1], leaves, allocs[0], allocs[1], per)
		if per > most {
			t.Errorf("%s: %d allocations more for %d rows more", w.name, more, 3*n)
		}
	}
}
