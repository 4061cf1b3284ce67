package parquetio

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/mem"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
)

// bucketFile puts a copy of a local file into a bucket in memory.
func bucketFile(t testing.TB, path string) string {
	t.Helper()
	name := "mem://" + filepath.Base(t.TempDir())
	b, err := blobio.Open(t.Context(), name, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { b.Close() })
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Put(t.Context(), "f.parquet", data, nil); err != nil {
		t.Fatal(err)
	}
	return name + "/f.parquet"
}

// allOf is what a scan of split 0 gives, as one record.
func allOf(t testing.TB, tab driver.Table, o driver.ScanOptions) arrow.RecordBatch {
	t.Helper()
	return allOfSplit(t, tab, 0, o)
}

func allOfSplit(t testing.TB, tab driver.Table, split int, o driver.ScanOptions) arrow.RecordBatch {
	t.Helper()
	var parts [][]arrow.Array
	var schema *arrow.Schema
	var rows int64
	if err := readAll(t.Context(), tab, split, &o, func(b driver.Batch) {
		schema, rows = b.Record.Schema(), rows+b.Record.NumRows()
		for i, c := range b.Record.Columns() {
			if len(parts) == i {
				parts = append(parts, nil)
			}
			c.Retain()
			parts[i] = append(parts[i], c)
		}
	}); err != nil {
		t.Fatal(err)
	}
	cols := make([]arrow.Array, len(parts))
	for i, p := range parts {
		var err error
		if cols[i], err = array.Concatenate(p, o.Alloc); err != nil {
			t.Fatal(err)
		}
		releaseAll(p)
	}
	defer releaseAll(cols)
	return array.NewRecordBatch(schema, cols, rows)
}

// TestSlices: pages that are larger than what is read at once give what they give to a reader of the local file, whatever
// their types, nulls, lists, versions and indexes, from any row on, in batches of any size, and if what was read before must be read again.
func TestSlices(t *testing.T) {
	const rows = 40_000
	sliced := 0
	for seed := range uint64(16) {
		rng := rand.New(rand.NewPCG(seed, 2024))
		fields := []arrow.Field{{Name: "text", Type: arrow.BinaryTypes.String, Nullable: true}, {Name: "number", Type: arrow.PrimitiveTypes.Int64, Nullable: seed%2 == 0}}
		for i := range 3 {
			fields = append(fields, randomField(rng, fmt.Sprint("c", i), 2))
		}
		nulls, few := rng.IntN(16), 1+rng.IntN(100_000)
		b := array.NewRecordBuilder(memory.DefaultAllocator, arrow.NewSchema(fields, nil))
		for range rows {
			for i, f := range fields {
				appendRandom(rng, b.Field(i), f.Nullable, nulls, few)
			}
		}
		rec := b.NewRecordBatch()
		b.Release()
		l := fileLayout{index: seed%3 == 0, v2: rng.IntN(2) == 0, codec: compress.Codecs.Uncompressed, page: []int64{1 << 30, 300_000}[rng.IntN(2)]}
		path := filepath.Join(t.TempDir(), "f.parquet")
		var file bytes.Buffer
		l.write(t, &file, rec)
		if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		local, remote := mustOpen(t, nil, path), mustOpen(t, nil, bucketFile(t, path))
		for range 4 {
			o := driver.ScanOptions{Alloc: memtest.New(t), AheadBytes: 1, BatchRows: 1 + rng.IntN(9000)}
			if rng.IntN(2) == 0 {
				o.FromRow = rng.Int64N(rows)
			}
			name := fmt.Sprintf("seed %d: %v, %v from %d, batches of %d", seed, l, fields, o.FromRow, o.BatchRows)
			all := allOf(t, local, o)
			r, err := remote.Open(t.Context(), 0, &o)
			if err != nil {
				t.Fatal(err)
			}
			again := rng.IntN(2) == 0
			at := o.FromRow
			for {
				if dec := r.(*reader).dec; dec != nil && again && at < rows {
					// As if the batch took too much memory, at some value of some column.
					as, err := dec.readFields(t.Context(), nil, at, int(min(int64(o.BatchRows), rows-at)), nil, rng.Int64N(100_000))
					if _, ok := errors.AsType[errTooLarge](err); err != nil && !ok {
						t.Fatalf("%s: row %d: %v", name, at, err)
					}
					releaseAll(as)
				}
				b, err := r.Next(t.Context())
				if err == io.EOF {
					break
				}
				if err != nil {
					t.Fatalf("%s: row %d: %v", name, at, err)
				}
				for _, c := range r.(*reader).dec.cols {
					if c.slices.open {
						sliced++
					}
				}
				want := all.NewSlice(b.Row-o.FromRow, b.Row-o.FromRow+b.Record.NumRows())
				for i, c := range b.Record.Columns() {
					if !array.Equal(c, want.Column(i)) {
						t.Fatalf("%s: rows [%d, +%d) of %s differ", name, b.Row, b.Record.NumRows(), b.Record.ColumnName(i))
					}
				}
				want.Release()
				at = b.Row + b.Record.NumRows()
				b.Record.Release()
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
			all.Release()
		}
		rec.Release()
	}
	if sliced < 500 {
		t.Errorf("%d times a page was open in slices: the test does not test", sliced)
	}
}

// TestSlicesInMemory: a reader of a bucket's file of one page of 64 MiB for each column holds no more of it than it may.
func TestSlicesInMemory(t *testing.T) {
	const rows = 64 << 17
	fs := []arrow.Field{{Name: "f", Type: arrow.PrimitiveTypes.Float64}, {Name: "s", Type: arrow.BinaryTypes.String}}
	rec := rowsOf(fs, rows, func(rng *rand.Rand, r int, b *array.RecordBuilder) {
		b.Field(0).(*array.Float64Builder).Append(rng.Float64())
		b.Field(1).(*array.StringBuilder).Append("abcdefg"[:r%8])
	})
	defer rec.Release()
	path := filepath.Join(t.TempDir(), "f.parquet")
	writeWith(t, path, rec, parquet.WithCompression(compress.Codecs.Uncompressed), parquet.WithDictionaryDefault(false),
		parquet.WithDataPageSize(1<<30), parquet.WithMaxRowGroupLength(rows), parquet.WithBatchSize(rows))
	tab := mustOpen(t, nil, bucketFile(t, path))
	for _, ahead := range []int64{0, 4 << 20} {
		for _, from := range []int64{0, rows - 1000} {
			pool := mem.New(1 << 30)
			defer pool.Close()
			peak, at := int64(0), from
			var st driver.ScanStats
			err := readAll(t.Context(), tab, 0, &driver.ScanOptions{Alloc: pool, AheadBytes: ahead, FromRow: from, Stats: &st}, func(b driver.Batch) {
				peak = max(peak, pool.Live())
				want := rec.NewSlice(at, at+b.Record.NumRows())
				defer want.Release()
				for i, c := range b.Record.Columns() {
					if !array.Equal(c, want.Column(i)) {
						t.Fatalf("column %d differs in rows %d to %d", i, at, at+b.Record.NumRows())
					}
				}
				at += b.Record.NumRows()
			})
			if err != nil || at != rows {
				t.Fatalf("row %d, %v", at, err)
			}
			most := ahead
			if most == 0 {
				most = 2 * remoteAhead
			}
			most += most/2 + 8<<20 // what is read at last while the next is under way; a batch, and a row group's rows decoded
			t.Logf("hint %d, from row %d: %d KiB held, at most %d KiB; %d MiB fetched of %d", ahead, from, peak>>10, most>>10, st.BytesRead.Load()>>20, rows*8*2>>20)
			if peak > most {
				t.Errorf("hint %d: %d bytes are held, want at most %d", ahead, peak, most)
			}
			if n := pool.Live(); n != 0 {
				t.Errorf("%d bytes leak", n)
			}
		}
	}
}

// fetching is a file in memory that is read as those of buckets are.
type fetching struct{ bytesBlob }

func (fetching) Fetch(context.Context, []blobio.Range, memory.Allocator) (*blobio.Fetched, error) {
	return nil, fault.New(fault.Internal, "not used")
}

func (fetching) Gap() int64 { return 1 << 20 }

// onePage writes a column of 100,000 rows that is one page, without compression.
func onePage(t testing.TB, field arrow.Field) (file []byte, f *footer) {
	t.Helper()
	return onePageOf(t, field, fileLayout{codec: compress.Codecs.Uncompressed})
}

func onePageOf(t testing.TB, field arrow.Field, l fileLayout) (file []byte, f *footer) {
	t.Helper()
	rec := rowsOf([]arrow.Field{field}, 100_000, func(rng *rand.Rand, r int, b *array.RecordBuilder) {
		appendRandom(rng, b.Field(0), field.Nullable, 3, 1000)
	})
	defer rec.Release()
	var out bytes.Buffer
	l.page = 1 << 30
	l.write(t, &out, rec)
	f, err := readFooter(t.Context(), bytesBlob(out.Bytes()), make([]byte, tailBytes), new(schemaCache))
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes(), f
}

// sliceDecoder decodes the first column of a file in memory in slices, with these places of pages, if any.
func sliceDecoder(t testing.TB, data []byte, s *fileSchema, g *rowGroup, pages map[int][]pageLoc) *decoder {
	t.Helper()
	c := &g.chunks[0]
	in := &input{blob: fetching{data}, fetch: fetching{data}}
	win := &window{f: in, alloc: memtest.New(t), runs: []blobio.Range{{Off: c.start, Len: c.size}}, step: minStep}
	d, err := newDecoder(s, g, []int{0}, map[int]*window{0: win}, pages, win.alloc)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestSlicesChecked: the checksum of a page that is read in slices is checked, at its last slice, also where rows are passed over,
// and where the page has bytes behind its values.
func TestSlicesChecked(t *testing.T) {
	const rows = 100_000
	for _, field := range []arrow.Field{{Name: "f", Type: arrow.PrimitiveTypes.Float64}, {Name: "s", Type: arrow.BinaryTypes.String, Nullable: true}} {
		for _, more := range []int{0, 300} {
			file, f := onePage(t, field)
			g := f.group(0)
			c := &g.chunks[0]
			file, head := withChecksum(file, c, more)
			for _, from := range []int64{0, 70_000} {
				for _, damage := range []int64{-1, head + 100, c.size / 2, c.size - 1} {
					data := slices.Clone(file)
					if damage >= 0 {
						data[c.start+damage] ^= 1
					}
					d := sliceDecoder(t, data, f.schema, g, nil)
					var err error
					read := int64(0)
					for row := from; row < rows && err == nil; row += 1000 {
						var as []arrow.Array
						if as, err = d.read(t.Context(), row, 1000, maxRowBytes); err == nil {
							read++
						}
						releaseAll(as)
					}
					if !d.cols[0].hdr.hasCRC || d.cols[0].slices.end == 0 {
						t.Fatal("the page has no checksum, or was not read in slices")
					}
					d.close()
					if damage < 0 && err != nil || damage >= 0 && (fault.CodeOf(err) != fault.Corrupt || read == (rows-from)/1000) {
						t.Errorf("%s and %d bytes from row %d, damaged at %d: %d batches, then %v", field.Name, more, from, damage, read, err)
					}
				}
			}
		}
	}
}

// TestSlicesCheckedAtJump: a page of which rows were read is checked before the page index leads into another one.
func TestSlicesCheckedAtJump(t *testing.T) {
	file, f := onePage(t, arrow.Field{Name: "f", Type: arrow.PrimitiveTypes.Float64})
	g := f.group(0)
	c := &g.chunks[0]
	file, _ = withChecksum(file, c, 0)
	for _, damaged := range []bool{false, true} {
		data := slices.Clone(file)
		if damaged {
			data[c.start+c.size-1] ^= 1
		}
		// The page once more is the second page, of the rows behind.
		d := sliceDecoder(t, data, f.schema, g, map[int][]pageLoc{0: {{off: c.start, size: c.size}, {off: c.start, size: c.size, row: 100_000}}})
		as, err := d.read(t.Context(), 0, 1000, maxRowBytes)
		if err != nil {
			t.Fatal(err)
		}
		releaseAll(as)
		if !d.cols[0].slices.more() {
			t.Fatal("the page is not read in slices")
		}
		as, err = d.read(t.Context(), 100_000, 1000, maxRowBytes)
		releaseAll(as)
		if damaged != (fault.CodeOf(err) == fault.Corrupt) || !damaged && err != nil {
			t.Errorf("damaged %t: %v", damaged, err)
		}
		d.close()
	}
}

// withChecksum returns file with a checksum in the header of the one page of c, its first column, of either version, and this many bytes more behind
// its values; and the bytes of the header before.
func withChecksum(file []byte, c *chunk, more int) (with []byte, head int64) {
	// Fields 1 to 3, the last two of which are sizes, are numbers of 32 bits, and so is field 4, the checksum.
	var h pageHeader
	head = int64(h.parse(file[c.start:]))
	at := c.start
	for range 3 {
		for at++; file[at] >= 0x80; at++ {
		}
		at++
	}
	page := slices.Concat(file[c.start+head:c.start+c.size], make([]byte, more))
	with = append(slices.Clone(file[:c.start]), file[c.start:c.start+2]...)
	for _, n := range []int32{h.raw + int32(more), h.comp + int32(more), int32(crc32.ChecksumIEEE(page))} {
		with = binary.AppendVarint(append(with, 0x15), int64(n))
	}
	with = slices.Concat(with, []byte{file[at] - 0x10}, file[at+1:c.start+head], page)
	end := c.start + c.size
	c.size = int64(len(with)) - c.start
	return append(with, file[end:]...), head
}

// TestSlicesCheckedAtEnd: a reader that ends within a page checks it before it says that it has read everything.
func TestSlicesCheckedAtEnd(t *testing.T) {
	for _, field := range []arrow.Field{{Name: "f", Type: arrow.PrimitiveTypes.Float64}, {Name: "l", Type: arrow.ListOf(arrow.BinaryTypes.String), Nullable: true}} {
		file, f := onePage(t, field)
		g := f.group(0)
		c := &g.chunks[0]
		file, _ = withChecksum(file, c, 0)
		for _, damaged := range []bool{false, true} {
			if damaged {
				file[c.start+c.size-1] ^= 1
			}
			path := filepath.Join(t.TempDir(), "f.parquet")
			if err := os.WriteFile(path, file, 0o600); err != nil {
				t.Fatal(err)
			}
			tab := mustOpen(t, nil, bucketFile(t, path)).(*table)
			o := (&driver.ScanOptions{Alloc: memtest.New(t), Limit: 2000, BatchRows: 1000, AheadBytes: 1}).WithDefaults()
			r, err := newReader(t.Context(), scan{in: tab.input(0, o.Stats), s: f.schema, g: g, fields: []int{0}, o: o})
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
			}
			if read != 2000 || damaged == (err == io.EOF) || damaged && fault.CodeOf(err) != fault.Corrupt {
				t.Errorf("%s, damaged: %t: %d rows, %v", field.Name, damaged, read, err)
			}
			if err := r.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestSlicesDamaged: damage to the levels or values of a page that is read in slices is an error or other values, never a
// panic, and leaks nothing.
func TestSlicesDamaged(t *testing.T) {
	const rows = 100_000
	for _, typ := range []arrow.DataType{arrow.PrimitiveTypes.Int64, arrow.BinaryTypes.String, arrow.ListOf(arrow.BinaryTypes.String)} {
		file, f := onePage(t, arrow.Field{Name: "x", Type: typ, Nullable: true})
		g := f.group(0)
		start, size := g.chunks[0].start, g.chunks[0].size
		failed := 0
		for seed := range uint64(60) {
			rng := rand.New(rand.NewPCG(seed, 3))
			data := slices.Clone(file)
			for range 1 + rng.IntN(4) {
				near := []int64{200, 20_000, size - 50}[rng.IntN(3)]
				data[start+50+rng.Int64N(near)] ^= byte(1 + rng.IntN(255))
			}
			d := sliceDecoder(t, data, f.schema, g, nil)
			var err error
			for row := int64(0); row < rows && err == nil; row += 1000 {
				var as []arrow.Array
				as, err = d.read(t.Context(), row, 1000, maxRowBytes)
				releaseAll(as)
			}
			d.close()
			if code := fault.CodeOf(err); err != nil {
				if failed++; code != fault.Corrupt && code != fault.Unsupported {
					t.Errorf("%v, seed %d: %v", typ, seed, err)
				}
			}
		}
		t.Logf("%v: %d of 60 are errors", typ, failed)
		if failed == 0 {
			t.Errorf("%v: no damage is seen", typ)
		}
	}
}
