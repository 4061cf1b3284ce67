package parquetio

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

var mixSeeds = flag.Int("mix", 6, "seeds of TestShrinkMix")

// mixRows have a column of each kind that readers treat in a way of its own: those of terms, dictionaries that end in the middle of the
// chunk, lists, and values of 1 KiB that do not compress.
func mixRows(rows int) arrow.RecordBatch {
	fs := []arrow.Field{
		{Name: "k", Type: arrow.PrimitiveTypes.Int64}, {Name: "s", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
		{Name: "few", Type: arrow.BinaryTypes.String, Nullable: true}, {Name: "mixed", Type: arrow.BinaryTypes.Binary},
		{Name: "wide", Type: arrow.BinaryTypes.String, Nullable: true}, {Name: "fixed", Type: &arrow.FixedSizeBinaryType{ByteWidth: 300}},
		{Name: "list", Type: arrow.ListOf(arrow.BinaryTypes.String), Nullable: true},
		{Name: "deep", Type: arrow.ListOf(arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
			arrow.Field{Name: "y", Type: arrow.ListOf(arrow.PrimitiveTypes.Float32), Nullable: true})), Nullable: true},
	}
	return rowsOf(fs, rows, func(rng *rand.Rand, r int, b *array.RecordBuilder) {
		random := func(n int) string {
			p := make([]byte, n)
			for i := range p {
				p[i] = byte(33 + rng.IntN(90))
			}
			return string(p)
		}
		b.Field(0).(*array.Int64Builder).Append(int64(r))
		for i, f := range fs[1:] {
			if f.Nullable && rng.IntN(5) == 0 {
				b.Field(i + 1).AppendNull()
				continue
			}
			switch f.Name {
			case "s":
				b.Field(1).(*array.Int64Builder).Append(rng.Int64N(1000))
			case "few":
				b.Field(2).(*array.StringBuilder).Append(strings.Repeat("v", rng.IntN(9)))
			case "mixed":
				b.Field(3).(*array.BinaryBuilder).Append([]byte(fmt.Sprint("value", rng.IntN(10+r/4))))
			case "wide":
				b.Field(4).(*array.StringBuilder).Append(random(500 + rng.IntN(1000)))
			case "fixed":
				b.Field(5).(*array.FixedSizeBinaryBuilder).Append([]byte(random(300)))
			default:
				appendRandom(rng, b.Field(i+1), f.Nullable, 3, 50)
			}
		}
	})
}

// TestShrinkMix: whatever a reader is asked for, of a local file or one in a bucket, with dictionaries, slices of pages and columns fetched late, and
// whenever it is told to shrink or is given up, it gives the rows that were written and all that match, and leaves no memory and no file.
func TestShrinkMix(t *testing.T) {
	const rows = 9000
	rec := mixRows(rows)
	defer rec.Release()
	types := rec.Schema()
	var shrunk, put, deferred, sliced, held, whole int
	fds := openFiles(t)
	for seed := range uint64(*mixSeeds) {
		rng := rand.New(rand.NewPCG(seed, 77))
		if tmp := rng.IntN(3); tmp == 0 {
			t.Setenv("TMPDIR", "/dev/null/none")
		} else {
			t.Setenv("TMPDIR", t.TempDir())
		}
		page := int64(4<<10) << rng.IntN(14)
		props := []parquet.WriterProperty{
			parquet.WithCompression([]compress.Compression{compress.Codecs.Uncompressed, compress.Codecs.Snappy, compress.Codecs.Zstd}[rng.IntN(3)]),
			parquet.WithDataPageSize(page), parquet.WithPageIndexEnabled(rng.IntN(2) == 0), parquet.WithMaxRowGroupLength(rows),
			parquet.WithDictionaryDefault(false), parquet.WithDictionaryFor("few", true), parquet.WithDictionaryFor("mixed", rng.IntN(4) > 0),
			parquet.WithDictionaryPageSizeLimit(int64(1 << (8 + rng.IntN(10)))), parquet.WithBatchSize(int64(1 + rng.IntN(500))),
			parquet.WithDataPageVersion([]parquet.DataPageVersion{parquet.DataPageV1, parquet.DataPageV2}[rng.IntN(2)]),
		}
		var file bytes.Buffer
		w, err := pqarrow.NewFileWriter(types, &file, parquet.NewWriterProperties(props...), pqarrow.DefaultWriterProps())
		if err != nil {
			t.Fatal(err)
		}
		if err := w.WriteBuffered(rec); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), "f.parquet")
		if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		opts := Options{Dictionary: Dictionary{All: rng.IntN(3) > 0}}
		local, remote := mustOpen(t, &opts, path), mustOpen(t, &opts, bucketFile(t, path))
		for try := range 16 {
			tab, where := local, "local"
			if try%4 > 0 {
				tab, where = remote, "remote"
			}
			o := driver.ScanOptions{Alloc: memtest.New(t), BatchRows: 1 + rng.IntN(3000), BatchBytes: int64(1) << (16 + rng.IntN(10)),
				AheadBytes: []int64{0, 1, 300 << 10, 2 << 20}[rng.IntN(4)]}
			from := rng.Int64N(rows)
			switch rng.IntN(5) {
			case 0:
				o.Predicate = between("k", from, from+rng.Int64N(rows/4))
			case 1:
				o.Predicate = between("s", 7, 7+rng.Int64N(5))
			case 2:
				o.Predicate = driver.Predicate{{Column: "few", Op: driver.Eq, Values: []any{"vvv"}}, {Column: "s", Op: driver.Lt, Values: []any{int64(10 + rng.IntN(50))}}}
			case 3:
				o.Predicate = driver.Predicate{{Column: "few", Op: []driver.Op{driver.IsNull, driver.NotNull}[rng.IntN(2)]}}
			}
			if rng.IntN(2) == 0 {
				o.FromRow = rng.Int64N(rows)
			}
			if rng.IntN(4) == 0 {
				o.Limit = 1 + rng.Int64N(rows)
			}
			if rng.IntN(2) == 0 {
				o.StopRow, o.StopEvery = o.FromRow+1+rng.Int64N(1000), 1+rng.Int64N(4000)
			}
			if rng.IntN(2) == 0 {
				for _, i := range rng.Perm(types.NumFields())[:1+rng.IntN(types.NumFields())] {
					o.Columns = append(o.Columns, types.Field(i).Name)
				}
			}
			often, stopAt := []int{0, 1, 2, 5}[rng.IntN(4)], int64(rows)
			if rng.IntN(4) == 0 {
				stopAt = rng.Int64N(rows) // given up there, or canceled
			}
			name := fmt.Sprintf("seed %d, try %d: pages of %d, %s, dictionaries %t, columns %q where %v from %d limit %d, pauses %d+%d, batches of %d rows, %d bytes, ahead %d, shrinks 1 in %d, until %d",
				seed, try, page, where, opts.Dictionary.All, o.Columns, o.Predicate, o.FromRow, o.Limit, o.StopRow, o.StopEvery, o.BatchRows, o.BatchBytes, o.AheadBytes, often, stopAt)
			ctx, cancel := context.WithCancel(t.Context())
			rd, err := tab.Open(ctx, 0, &o)
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			r := rd.(*reader)
			got := make([]bool, rows)
			count := int64(0)
			var kept []driver.Batch
			check := func(b driver.Batch) {
				for c, a := range b.Record.Columns() {
					u := undone(t, a)
					want := array.NewSlice(rec.Column(types.FieldIndices(b.Record.ColumnName(c))[0]), b.Row, b.Row+b.Record.NumRows())
					if !array.Equal(u, want) {
						t.Fatalf("%s: rows [%d, +%d) of %s differ", name, b.Row, b.Record.NumRows(), b.Record.ColumnName(c))
					}
					want.Release()
					u.Release()
				}
				b.Record.Release()
			}
			for {
				if often > 0 && rng.IntN(often) == 0 {
					was := r.Kept()
					if r.Shrink(); was > 0 && r.Kept() < was {
						shrunk++
					}
					for _, c := range r.columnsOpen() {
						if c.out.f != nil {
							put++
						}
					}
				}
				b, err := rd.Next(ctx)
				if err == io.EOF {
					break
				}
				if err != nil {
					if ctx.Err() == nil || fault.CodeOf(err) != fault.Canceled {
						t.Fatalf("%s: %v", name, err)
					}
					break
				}
				for _, c := range r.columnsOpen() {
					if c.slices.open {
						sliced++
					}
				}
				if l := r.late; l != nil && l.whole != nil {
					whole++
				}
				for i := range b.Record.NumRows() {
					if got[b.Row+i] {
						t.Fatalf("%s: row %d twice", name, b.Row+i)
					}
					got[b.Row+i] = true
				}
				count += b.Record.NumRows()
				if rng.IntN(3) == 0 { // outlives others, and the reader
					kept = append(kept, b)
					held++
				} else {
					check(b)
				}
				if b.Row >= stopAt {
					if rng.IntN(2) == 0 {
						break
					}
					cancel()
				}
			}
			if r.deferred != nil {
				deferred++
			}
			if err := rd.Close(); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			cancel()
			for _, b := range kept {
				check(b)
			}
			if stopAt < rows {
				continue
			}
			if len(o.Predicate) == 0 {
				if want := rows - o.FromRow; count != want && (o.Limit == 0 || count < min(o.Limit, want)) {
					t.Errorf("%s: %d rows", name, count)
				}
			}
			for i := o.FromRow; i < rows; i++ {
				match := true
				for k := range o.Predicate {
					match = match && holds(&o.Predicate[k], rec.Column(types.FieldIndices(o.Predicate[k].Column)[0]), int(i))
				}
				if match && !got[i] && o.Limit == 0 {
					t.Fatalf("%s: row %d is missing", name, i)
				}
			}
		}
		local.Close()
		remote.Close()
	}
	t.Logf("%d times shrunk, %d pages on disk, %d passes with columns fetched late, %d batches out of slices, %d outlived their reader, %d out of whole windows", shrunk, put, deferred, sliced, held, whole)
	if min(shrunk, put, deferred, sliced, held) == 0 {
		t.Error("the test does not test everything")
	}
	if n := openFiles(t); n > fds {
		t.Errorf("%d files are open, %d were before", n, fds)
	}
	if maps, err := os.ReadFile("/proc/self/maps"); err == nil && bytes.Contains(maps, []byte("penstock-page")) {
		t.Error("a page is still mapped")
	}
}

// openFiles is how many descriptors are open; 0 where that cannot be seen.
func openFiles(t testing.TB) int {
	t.Helper()
	es, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	return len(es)
}
