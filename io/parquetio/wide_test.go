package parquetio

import (
	"fmt"
	"io"
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

// mostHeld knows the most that was allocated at once.
type mostHeld struct {
	memory.Allocator
	now, most int64
}

func (m *mostHeld) Allocate(n int) []byte {
	m.now += int64(n)
	m.most = max(m.most, m.now)
	return m.Allocator.Allocate(n)
}

func (m *mostHeld) Free(b []byte) {
	m.now -= int64(len(b))
	m.Allocator.Free(b)
}

func (m *mostHeld) Reallocate(n int, b []byte) []byte {
	p := m.Allocate(n)
	copy(p, b)
	m.Free(b)
	return p
}

// Memory is not in proportion to the number of columns times the size of their pages.
func TestWidePages(t *testing.T) {
	const columns, rows, each, page = 60, 2000, 1500, 2000 * 1500
	m, b := minMap, minBeside
	minMap, minBeside = math.MaxInt64, 256<<10 // as they are for users
	defer func() { minMap, minBeside = m, b }()
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
	alloc := &mostHeld{Allocator: memory.DefaultAllocator}
	r, err := mustOpen(t, nil, path).Open(t.Context(), 0, &driver.ScanOptions{Alloc: alloc, BatchRows: 16})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	got := int64(0)
	for {
		b, err := r.Next(t.Context())
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		got += b.Record.NumRows()
		b.Record.Release()
	}
	if t.Logf("at most %d MiB", alloc.most>>20); got != rows || alloc.most > columns*page/4 {
		t.Errorf("%d rows, with %d of %d bytes in memory at once", got, alloc.most, columns*page)
	}
}
