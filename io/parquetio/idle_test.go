package parquetio

import (
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/mem"
	"github.com/penstock-data/penstock/io/driver"
)

// A reader that is told to shrink at random gives the same rows, out of pages of any size, and has given back what it said.
func TestShrink(t *testing.T) {
	fields := []arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "text", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "list", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32), Nullable: true}, {Name: "few", Type: arrow.BinaryTypes.String}}
	const rows = 3000
	rec := rowsOf(fields, rows, func(rng *rand.Rand, r int, b *array.RecordBuilder) {
		b.Field(0).(*array.Int64Builder).Append(rng.Int64())
		if r%7 == 0 {
			b.Field(1).AppendNull()
		} else {
			b.Field(1).(*array.StringBuilder).Append(strings.Repeat(fmt.Sprint(r), 500))
		}
		l := b.Field(2).(*array.ListBuilder)
		if l.Append(r%5 != 0); r%5 != 0 {
			for range rng.IntN(5) {
				l.ValueBuilder().(*array.Int32Builder).Append(rng.Int32())
			}
		}
		b.Field(3).(*array.StringBuilder).Append(fmt.Sprint("value", r%9))
	})
	defer rec.Release()
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	put := 0
	for _, codec := range []compress.Compression{compress.Codecs.Uncompressed, compress.Codecs.Zstd, compress.Codecs.Snappy} {
		for _, page := range []int64{16 << 10, 1 << 30} {
			for _, ahead := range []int64{0, 1 << 20} {
				path := filepath.Join(t.TempDir(), "f.parquet")
				writeWith(t, path, rec, parquet.WithCompression(codec), parquet.WithDataPageSize(page), parquet.WithBatchSize(100),
					parquet.WithDictionaryFor("text", false), parquet.WithDictionaryFor("id", false), parquet.WithMaxRowGroupLength(rows))
				pool := mem.New(1 << 30)
				rd, err := mustOpen(t, nil, path).Open(t.Context(), 0, &driver.ScanOptions{Alloc: pool, AheadBytes: ahead, BatchRows: 1 + rng.IntN(300)})
				if err != nil {
					t.Fatal(err)
				}
				r := rd.(driver.Rester)
				for at := int64(0); ; {
					if rng.IntN(2) == 0 {
						before, live := r.Kept(), pool.Live()
						r.Shrink()
						for _, c := range rd.(*reader).columnsOpen() {
							if c.out.f != nil {
								put++
							}
						}
						if n := r.Kept(); n != 0 || pool.Live() > live {
							t.Fatalf("seed %d: %d bytes of %d are kept", seed, n, before)
						}
					}
					b, err := r.Next(t.Context())
					if err == io.EOF {
						if at != rows {
							t.Fatalf("seed %d: %d rows", seed, at)
						}
						break
					}
					if err != nil {
						t.Fatalf("seed %d: %v", seed, err)
					}
					want := rec.NewSlice(at, at+b.Record.NumRows())
					for i, c := range b.Record.Columns() {
						if !array.Equal(c, want.Column(i)) {
							t.Fatalf("seed %d: column %d differs from row %d on", seed, i, at)
						}
					}
					at += b.Record.NumRows()
					want.Release()
					b.Record.Release()
				}
				if err := r.Close(); err != nil {
					t.Fatal(err)
				}
				if n := pool.Live(); n != 0 {
					t.Errorf("%d bytes leak", n)
				}
				pool.Close()
			}
		}
	}
	if put == 0 {
		t.Error("no page was put on disk")
	}
}

// columnsOpen are the columns of the decoder, if there is one.
func (r *reader) columnsOpen() []*column {
	if r.dec == nil {
		return nil
	}
	return r.dec.cols
}

// hugePageFile is a file of one page of 48 MiB, and its rows.
func hugePageFile(t *testing.T) (string, arrow.RecordBatch) {
	rec := rowsOf([]arrow.Field{{Name: "text", Type: arrow.BinaryTypes.String}}, 48, func(_ *rand.Rand, r int, b *array.RecordBuilder) {
		b.Field(0).(*array.StringBuilder).Append(strings.Repeat(fmt.Sprintf("%04d", r), 1<<18))
	})
	path := filepath.Join(t.TempDir(), "f.parquet")
	writeWith(t, path, rec, parquet.WithCompression(compress.Codecs.Snappy), parquet.WithDataPageSize(1<<30), parquet.WithDictionaryDefault(false))
	return path, rec
}

// A page that is larger than a reader of little memory may hold is in memory only while it is decompressed.
func TestHugePageIsPut(t *testing.T) {
	path, rec := hugePageFile(t)
	defer rec.Release()
	rows := rec.NumRows()
	pool := mem.New(1 << 30)
	defer pool.Close()
	rd, err := mustOpen(t, nil, path).Open(t.Context(), 0, &driver.ScanOptions{Alloc: pool, AheadBytes: 4 << 20, BatchBytes: 4 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer rd.Close()
	for at := int64(0); at < rows; {
		b, err := rd.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if got, want := b.Record.Column(0).(*array.String).Value(0), rec.Column(0).(*array.String).Value(int(at)); got != want {
			t.Fatalf("row %d differs", at)
		}
		if live, n := pool.Live(), b.Record.NumRows(); live > 48<<20 || n > 8 {
			t.Fatalf("%d rows, %d MiB are held", n, live>>20)
		}
		at += b.Record.NumRows()
		b.Record.Release()
	}
}

// TestLostPage: a page that was put on disk and cannot be read from there is an error that may be tried again, of local files and
// of those in buckets; the process lives on.
func TestLostPage(t *testing.T) {
	path, rec := hugePageFile(t)
	rec.Release()
	for _, at := range []string{path, bucketFile(t, path)} {
		pool := mem.New(1 << 30)
		rd, err := mustOpen(t, nil, at).Open(t.Context(), 0, &driver.ScanOptions{Alloc: pool, AheadBytes: 4 << 20, BatchBytes: 4 << 20})
		if err != nil {
			t.Fatal(err)
		}
		first, err := rd.Next(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		first.Record.Release()
		c := rd.(*reader).dec.cols[0]
		if c.out.f == nil {
			t.Fatalf("%s: the page was not put on disk: the test does not test", at)
		}
		if err := c.out.f.Truncate(0); err != nil {
			t.Fatal(err)
		}
		if _, err = rd.Next(t.Context()); fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "TMPDIR") {
			t.Errorf("%s: %v", at, err)
		}
		if err := rd.Close(); err != nil {
			t.Error(err)
		}
		if n := pool.Live(); n != 0 {
			t.Errorf("%s: %d bytes leak", at, n)
		}
		pool.Close()
	}
}
