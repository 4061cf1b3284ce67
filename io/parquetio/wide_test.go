package parquetio

import (
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"

	"github.com/penstock-data/penstock/io/driver"
)

// Memory is not in proportion to the number of columns times the size of their pages.
func TestWidePages(t *testing.T) {
	const columns, rows, each, page = 60, 2000, 1500, 2000 * 1500
	mapFrom(t, math.MaxInt64) // as for users
	var fs []arrow.Field
	for i := range columns {
		fs = append(fs, arrow.Field{Name: fmt.Sprint("c", i), Type: arrow.BinaryTypes.String})
	}
	text := strings.Repeat("x", each)
	rec := rowsOf(fs, rows, func(_ *rand.Rand, _ int, b *array.RecordBuilder) {
		for i := range columns {
			b.Field(i).(*array.StringBuilder).Append(text)
		}
	})
	defer rec.Release()
	path := filepath.Join(t.TempDir(), "wide.parquet")
	writeWith(t, path, rec, parquet.WithDictionaryDefault(false), parquet.WithDataPageSize(64<<20))
	alloc := &peak{Allocator: memory.DefaultAllocator}
	if err := readAll(t.Context(), mustOpen(t, nil, path), 0, &driver.ScanOptions{Alloc: alloc, BatchRows: 16}, nil); err != nil {
		t.Fatal(err)
	}
	if t.Logf("at most %d MiB", alloc.most>>20); alloc.most > columns*page/4 || alloc.now != 0 {
		t.Errorf("%d of %d bytes in memory at once, %d left", alloc.most, columns*page, alloc.now)
	}
}
