package parquetio

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/parquet/compress"
	_ "gocloud.dev/blob/s3blob"

	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/internal/testserver"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
)

// clusters are the values of column c, but for 0 and 1000 in turn elsewhere, which no statistics tell from each other.
var clusters = map[int64][]rowRange{
	1: {{100_000, 103_000}},
	2: {{50_000, 51_000}, {200_000, 201_000}},
	3: {{150_000, 151_000}, {156_000, 157_000}},
}

// heavy are rows of which k, which counts up, s, which is scattered over 0 to 999, and c take 24 bytes and the rest 150.
func heavy(rows int) arrow.RecordBatch {
	fs := []arrow.Field{
		{Name: "a", Type: &arrow.FixedSizeBinaryType{ByteWidth: 100}, Nullable: true}, {Name: "k", Type: arrow.PrimitiveTypes.Int64},
		{Name: "s", Type: arrow.PrimitiveTypes.Int64}, {Name: "c", Type: arrow.PrimitiveTypes.Int64}, {Name: "text", Type: arrow.BinaryTypes.String},
	}
	wide := make([]byte, 100)
	return rowsOf(fs, rows, func(rng *rand.Rand, r int, b *array.RecordBuilder) {
		for i := range 10 {
			wide[rng.IntN(100)] = byte(i)
		}
		if r%11 == 0 {
			b.Field(0).AppendNull()
		} else {
			b.Field(0).(*array.FixedSizeBinaryBuilder).Append(wide)
		}
		b.Field(1).(*array.Int64Builder).Append(int64(r))
		b.Field(2).(*array.Int64Builder).Append(rng.Int64N(1000))
		c := int64(r % 2 * 1000)
		for v, in := range clusters {
			for _, x := range in {
				if int64(r) >= x.from && int64(r) < x.to {
					c = v
				}
			}
		}
		b.Field(3).(*array.Int64Builder).Append(c)
		b.Field(4).(*array.StringBuilder).Append(string(wide[r%50 : 50+r%50]))
	})
}

// between is lo <= column < hi.
func between(column string, lo, hi int64) driver.Predicate {
	return driver.Predicate{{Column: column, Op: driver.Ge, Values: []any{lo}}, {Column: column, Op: driver.Lt, Values: []any{hi}}}
}

// TestDeferredEqualsLocal: a file in a bucket whose other columns are fetched after rows are judged gives the batches of the local
// file, whatever is cut, with a page index and without, from any row on, and whatever may be held.
func TestDeferredEqualsLocal(t *testing.T) {
	const rows = 60_000
	rec := heavy(rows)
	defer rec.Release()
	used := 0
	for seed := range uint64(12) {
		rng := rand.New(rand.NewPCG(seed, 8))
		l := fileLayout{index: seed%2 == 0, v2: seed%3 == 0, codec: compress.Codecs.Snappy, page: 16 << rng.IntN(5) << 10}
		if seed%4 > 1 {
			l.codec = compress.Codecs.Uncompressed
		}
		path := filepath.Join(t.TempDir(), "f.parquet")
		var file bytes.Buffer
		l.write(t, &file, rec)
		if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		local, remote := mustOpen(t, nil, path), mustOpen(t, nil, bucketFile(t, path))
		for range 10 {
			o := driver.ScanOptions{Alloc: memtest.New(t), BatchRows: 200 + rng.IntN(9000), AheadBytes: []int64{0, 1 << 20}[rng.IntN(2)]}
			from := rng.Int64N(rows)
			switch rng.IntN(4) {
			case 0:
				o.Predicate = between("k", from, from+rng.Int64N(rows/4))
			case 1:
				o.Predicate = between("s", 0, rng.Int64N(1000))
			case 2:
				o.Predicate = between("s", 7, 8)
			case 3:
				o.Predicate = append(between("k", from, from+20_000), between("s", 100, 100+rng.Int64N(100))...)
			}
			if rng.IntN(2) == 0 {
				o.FromRow = rng.Int64N(rows)
			}
			if rng.IntN(3) > 0 {
				o.Columns = [][]string{{"text"}, {"a", "s"}, {"text", "a"}}[rng.IntN(3)]
			}
			name := fmt.Sprintf("seed %d: %v, columns %q where %v from %d, batches of %d, hint %d", seed, l, o.Columns, o.Predicate, o.FromRow, o.BatchRows, o.AheadBytes)
			var want []driver.Batch
			if err := readAll(t.Context(), local, 0, &o, func(b driver.Batch) {
				b.Record.Retain()
				want = append(want, b)
			}); err != nil {
				t.Fatal(err)
			}
			r, err := remote.Open(t.Context(), 0, &o)
			if err != nil {
				t.Fatal(err)
			}
			if r.(*reader).deferred != nil {
				used++
			}
			for _, w := range want {
				b, err := r.Next(t.Context())
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if b.Row != w.Row || !array.RecordEqual(b.Record, w.Record) {
					t.Fatalf("%s: rows [%d, +%d) where the local file gives [%d, +%d), or others", name, b.Row, b.Record.NumRows(), w.Row, w.Record.NumRows())
				}
				b.Record.Release()
				w.Record.Release()
			}
			if _, err := r.Next(t.Context()); err == nil {
				t.Fatalf("%s: more rows than of the local file", name)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	if used < 30 {
		t.Errorf("columns are deferred in %d of 120 passes", used)
	}
}

// TestDeferredRequests: of the other columns only the pages that hold rows that are left are fetched, those closer than 1 MiB in one
// request; nothing where there are none; everything where most is left.
func TestDeferredRequests(t *testing.T) {
	const rows = 300_000
	rec := heavy(rows)
	defer rec.Release()
	srv := testserver.S3(t)
	srv.CreateBucket(t, "data")
	proxy := testserver.NewProxy(t, srv, testserver.Faults{})
	var gets, size atomic.Int64
	proxy.Set(testserver.Faults{Only: func(r *http.Request) bool {
		var from, to int64
		if n, _ := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); n == 2 {
			gets.Add(1)
			size.Add(to - from + 1)
		}
		return false
	}})
	bucket, err := blobio.Open(t.Context(), srv.URL("data"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer bucket.Close()
	for _, index := range []bool{true, false} {
		var file bytes.Buffer
		fileLayout{index: index, codec: compress.Codecs.Uncompressed, page: 64 << 10}.write(t, &file, rec)
		key := fmt.Sprintf("index-%t.parquet", index)
		if err := bucket.Put(t.Context(), key, file.Bytes(), nil); err != nil {
			t.Fatal(err)
		}
		base, query, _ := strings.Cut(srv.Via(proxy).URL("data"), "?")
		tab := mustOpen(t, nil, base+"/"+key+"?"+query)
		g := tab.(*table).footers[0].group(0)
		own, other := g.chunks[3].size, g.chunks[0].size // of c, and of a
		for _, c := range []struct {
			name string
			p    driver.Predicate
			// With an index, and without, at most: requests, and the share of a that is fetched.
			gets, bare   int64
			share, whole float64
		}{
			{"no row", between("c", 4, 5), 2, 1, 0, 0},
			{"one place", between("c", 1, 2), 4, 5, 0.02, 1},
			{"two places", between("c", 2, 3), 5, 5, 0.02, 1},
			{"two places that are near", between("c", 3, 4), 4, 5, 0.03, 1},
			{"all rows", between("c", 0, 1001), 6, 5, 1, 1},
		} {
			want, share := c.gets, c.share
			if !index {
				want, share = c.bare, c.whole
			}
			gets.Store(0)
			size.Store(0)
			o := driver.ScanOptions{Predicate: c.p, Columns: []string{"a"}, Alloc: memtest.New(t)}
			if err := readAll(t.Context(), tab, 0, &o, nil); err != nil {
				t.Fatal(err)
			}
			t.Logf("index=%t, %s: %d requests for %d KiB; c has %d KiB, a %d", index, c.name, gets.Load(), size.Load()>>10, own>>10, other>>10)
			if n := gets.Load(); index && n != want || n > want { // without one, the last read may be called off
				t.Errorf("index=%t, %s: %d requests, want %d", index, c.name, n, want)
			}
			if got, most := size.Load()-own, int64(share*float64(other))+200<<10; got > most { // 200 KiB: of the index
				t.Errorf("index=%t, %s: %d KiB of the other column are fetched, want at most %d", index, c.name, got>>10, most>>10)
			}
		}
	}
}
