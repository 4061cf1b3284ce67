package parquetio

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/parquet/compress"

	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// TestDeferredHoles: columns that share memory for their pages are read where pages in the middle of a window were not fetched, and
// batches end where whoever reads takes a pause.
func TestDeferredHoles(t *testing.T) {
	const rows, width = 12_000, 1000
	fs := []arrow.Field{{Name: "k", Type: arrow.PrimitiveTypes.Int64}, {Name: "a", Type: &arrow.FixedSizeBinaryType{ByteWidth: width}},
		{Name: "b", Type: &arrow.FixedSizeBinaryType{ByteWidth: width}}}
	wide := make([]byte, width)
	rec := rowsOf(fs, rows, func(rng *rand.Rand, r int, b *array.RecordBuilder) {
		b.Field(0).(*array.Int64Builder).Append(int64(r % 3900))
		for k := 1; k < 3; k++ {
			for i := 0; i < width; i += 2 {
				wide[i] = byte(rng.Uint32())
			}
			b.Field(k).(*array.FixedSizeBinaryBuilder).Append(wide)
		}
	})
	defer rec.Release()
	path := filepath.Join(t.TempDir(), "f.parquet")
	var file bytes.Buffer
	fileLayout{index: true, codec: compress.Codecs.Zstd, page: 128 << 10}.write(t, &file, rec)
	if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
	tab := mustOpen(t, nil, bucketFile(t, path))
	holes := 0
	for seed := range uint64(20) {
		rng := rand.New(rand.NewPCG(seed, 5))
		k := rng.Int64N(3900)
		o := driver.ScanOptions{Alloc: memtest.New(t), AheadBytes: []int64{200 << 10, 1 << 20}[seed%2], BatchBytes: 32 << 20, BatchRows: 1000 + rng.IntN(9000),
			Predicate: between("k", k, k+1+rng.Int64N(300))}
		if rng.IntN(2) == 0 {
			o.StopRow, o.StopEvery = 1+rng.Int64N(rows), 700
		}
		name := fmt.Sprintf("seed %d: k=%d, batches of %d, pauses before %d", seed, k, o.BatchRows, o.StopRow)
		got := map[int64]bool{}
		r, err := tab.Open(t.Context(), 0, &o)
		if err != nil {
			t.Fatal(err)
		}
		for {
			b, err := r.Next(t.Context())
			if err != nil {
				if len(got) == 0 || r.Close() != nil || r.(*reader).err != err {
					t.Fatalf("%s: %v", name, err)
				}
				if err.Error() != "EOF" {
					t.Errorf("%s: %v", name, err)
				}
				break
			}
			if dec := r.(*reader).dec; dec.sharers > 0 {
				for _, c := range dec.cols {
					if len(c.win.runs) > 1 {
						holes++
					}
				}
			}
			n := b.Record.NumRows()
			want := rec.NewSlice(b.Row, b.Row+n)
			if !array.RecordEqual(b.Record, want) {
				t.Fatalf("%s: rows [%d, +%d) differ", name, b.Row, n)
			}
			want.Release()
			for i := range n {
				got[b.Row+i] = true
			}
			if e := o.StopEvery; e > 0 && (b.Row-o.StopRow+100*e)/e != (b.Row+n-1-o.StopRow+100*e)/e {
				t.Errorf("%s: a batch has rows [%d, +%d)", name, b.Row, n)
			}
			b.Record.Release()
		}
		for row := k; row < rows; row += 3900 {
			if !got[row] {
				t.Errorf("%s: row %d is missing", name, row)
			}
		}
	}
	if holes == 0 {
		t.Error("no window has holes: the test does not test")
	}
}
