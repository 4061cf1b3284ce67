package parquetio

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet/compress"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// TestChecksums: a page of either version with a checksum is read if it is whole, and if a bit of its levels or values is another one, the
// error says which file, row group and column it is: of local files, of buckets, in slices, and if it is compressed.
func TestChecksums(t *testing.T) {
	const rows = 100_000
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	sliced := 0
	for _, typ := range []arrow.DataType{arrow.PrimitiveTypes.Float64, arrow.BinaryTypes.String, arrow.ListOf(arrow.PrimitiveTypes.Int32)} {
		for _, l := range []fileLayout{{}, {v2: true}, {codec: compress.Codecs.Snappy}, {codec: compress.Codecs.Snappy, v2: true}} {
			whole, f := onePageOf(t, arrow.Field{Name: "c", Type: typ, Nullable: true}, l)
			c := f.group(0).chunks[0]
			whole, head := withChecksum(whole, &c, 0)
			head += c.size - f.group(0).chunks[0].size // with the checksum
			for _, at := range []int64{-1, head, head + rng.Int64N(1000), head + rng.Int64N(c.size-head), c.size - 1} {
				data := slices.Clone(whole)
				if at >= 0 {
					data[c.start+at] ^= 1 << rng.IntN(8)
				}
				path := filepath.Join(t.TempDir(), "f.parquet")
				if err := os.WriteFile(path, data, 0o600); err != nil {
					t.Fatal(err)
				}
				for _, p := range []string{path, bucketFile(t, path)} {
					name := fmt.Sprintf("%v, %v, %s, damaged at %d of %d", typ, l, p, at, c.size)
					tab := mustOpen(t, nil, p).(*table)
					ft := tab.footers[0] // says how long the page was without a checksum
					ft.chunks = packed{leaves: 1}
					ft.chunks.add(&ft.groups[0], &c)
					o := &driver.ScanOptions{Alloc: memtest.New(t), BatchRows: 1 + rng.IntN(9000), AheadBytes: 1}
					r, err := tab.Open(t.Context(), 0, o)
					if err != nil {
						t.Fatal(err)
					}
					read := int64(0)
					for err == nil {
						var b driver.Batch
						if b, err = r.Next(t.Context()); err == nil {
							read += b.Record.NumRows()
							b.Record.Release()
						}
						if dec := r.(*reader).dec; dec.cols[0].slices.open && at >= 0 {
							sliced++
						}
					}
					if err := r.Close(); err != nil {
						t.Error(err)
					}
					if at < 0 {
						if read != rows {
							t.Errorf("%s: %d rows, %v", name, read, err)
						}
						continue
					}
					where := fault.PlaceOf(err)
					group, known := where.RowGroup.Get()
					if fault.CodeOf(err) != fault.Corrupt || where.File != tab.Splits()[0].File || !known || group != 0 || where.Column != "c" || read == rows {
						t.Errorf("%s: %d rows, then %v: %v", name, read, fault.CodeOf(err), err)
					}
					// Levels that cannot be are found before the checksum if the page is read in slices.
					if !strings.Contains(err.Error(), "checksum of a page is wrong") && (p == path || l.codec != compress.Codecs.Uncompressed) {
						t.Errorf("%s: %v", name, err)
					}
				}
			}
		}
	}
	if t.Logf("%d batches of damaged pages in slices", sliced); sliced < 50 {
		t.Error("the test does not test")
	}
}
