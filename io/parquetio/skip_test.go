package parquetio

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
)

// samples are rows as trainers read them: numbers, a label, text and tokens.
func samples(rows int) arrow.RecordBatch {
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64},
		{Name: "x", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
		{Name: "label", Type: arrow.PrimitiveTypes.Int64},
		{Name: "text", Type: arrow.BinaryTypes.String, Nullable: true},
		{Name: "pair", Type: arrow.StructOf(arrow.Field{Name: "a", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
			arrow.Field{Name: "b", Type: arrow.BinaryTypes.String, Nullable: true}), Nullable: true},
		{Name: "tokens", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32), Nullable: true},
	}, nil)
	rng := rand.New(rand.NewPCG(5, 6))
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	b.Reserve(rows)
	pair, tokens := b.Field(4).(*array.StructBuilder), b.Field(5).(*array.ListBuilder)
	word := make([]byte, 24)
	text := func() string {
		for i := range word {
			word[i] = 'a' + byte(rng.IntN(26))
		}
		return string(word[:8+rng.IntN(17)])
	}
	for r := range rows {
		b.Field(0).(*array.Int64Builder).Append(int64(r)*1_000_003 + rng.Int64N(1<<40))
		b.Field(2).(*array.Int64Builder).Append(int64(rng.IntN(1000)))
		if r%17 == 3 {
			b.Field(1).AppendNull()
			b.Field(3).AppendNull()
			pair.AppendNull()
			tokens.AppendNull()
			continue
		}
		b.Field(1).(*array.Float64Builder).Append(rng.NormFloat64())
		b.Field(3).(*array.StringBuilder).Append(text())
		pair.Append(true)
		pair.FieldBuilder(0).(*array.Int32Builder).Append(int32(rng.Uint32()))
		pair.FieldBuilder(1).(*array.StringBuilder).Append(text())
		tokens.Append(true)
		for range rng.IntN(8) {
			tokens.ValueBuilder().(*array.Int32Builder).Append(rng.Int32N(50_000))
		}
	}
	return b.NewRecordBatch()
}

// fileLayout is how a file of one row group is written, by arrow-go alone.
type fileLayout struct {
	index bool
	v2    bool
	codec compress.Compression
	page  int64
}

func (l fileLayout) String() string {
	return fmt.Sprintf("index=%t,v2=%t,%v,pages=%dKiB", l.index, l.v2, l.codec, l.page>>10)
}

func (l fileLayout) write(t testing.TB, out io.Writer, rec arrow.RecordBatch) {
	t.Helper()
	props := []parquet.WriterProperty{
		parquet.WithCompression(l.codec), parquet.WithDataPageSize(l.page), parquet.WithPageIndexEnabled(l.index),
		parquet.WithMaxRowGroupLength(1 << 40), parquet.WithDictionaryDefault(false), parquet.WithDictionaryFor("label", true),
		parquet.WithDataPageVersion(parquet.DataPageV1), parquet.WithBatchSize(256),
	}
	if l.v2 {
		props = append(props, parquet.WithDataPageVersion(parquet.DataPageV2))
	}
	w, err := pqarrow.NewFileWriter(rec.Schema(), out, parquet.NewWriterProperties(props...), pqarrow.DefaultWriterProps())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.WriteBuffered(rec); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

// pass reads rows from o.FromRow on with a context of its own for each call, compares them with
// rec, and returns the bytes fetched.
func pass(t testing.TB, tab driver.Table, rec arrow.RecordBatch, o driver.ScanOptions) int64 {
	t.Helper()
	o.Stats, o.Alloc = new(driver.ScanStats), memtest.New(t)
	ctx, cancel := context.WithCancel(t.Context())
	r, err := tab.Open(ctx, 0, &o)
	cancel()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	row := o.FromRow
	for {
		ctx, cancel := context.WithCancel(t.Context())
		b, err := r.Next(ctx)
		cancel()
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		n := b.Record.NumRows()
		want := rec.NewSlice(row, row+n)
		if b.Row != row {
			t.Fatalf("row %d, want %d", b.Row, row)
		}
		for c, a := range b.Record.Columns() {
			at := rec.Schema().FieldIndices(b.Record.ColumnName(c))[0]
			if !array.Equal(a, want.Column(at)) {
				t.Fatalf("column %q differs in rows %d to %d", b.Record.ColumnName(c), row, row+n)
			}
		}
		want.Release()
		b.Record.Release()
		row += n
	}
	if row != rec.NumRows() {
		t.Fatalf("ends at row %d", row)
	}
	return o.Stats.BytesRead.Load()
}

// TestFetchedOnce: one reader, kept over many calls, fetches no byte of a row group twice,
// and one that begins at a later row little more than it needs, if there is a page index.
func TestFetchedOnce(t *testing.T) {
	const rows = 300_000
	rec := samples(rows)
	defer rec.Release()
	ctx := t.Context()
	bucket, err := blobio.Open(ctx, "mem://skip", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer bucket.Close()
	for k, l := range []fileLayout{
		{true, false, compress.Codecs.Snappy, 64 << 10},
		{true, true, compress.Codecs.Uncompressed, 64 << 10},
		{false, false, compress.Codecs.Snappy, 1 << 20},
		{false, true, compress.Codecs.Snappy, 64 << 10},
	} {
		var file bytes.Buffer
		l.write(t, &file, rec)
		path := filepath.Join(t.TempDir(), "f.parquet")
		if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		key := fmt.Sprintf("%d/f.parquet", k)
		out, err := bucket.Create(ctx, key, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := out.Write(file.Bytes()); err != nil {
			t.Fatal(err)
		}
		if err := out.Close(); err != nil {
			t.Fatal(err)
		}
		for _, place := range []string{path, "mem://skip/" + key} {
			name := fmt.Sprintf("%v,remote=%t", l, place != path)
			tab := mustOpen(t, nil, place)
			g := tab.(*table).footers[0].group(0)
			var total int64
			for i := range g.chunks {
				total += g.chunks[i].size
			}
			whole := pass(t, tab, rec, driver.ScanOptions{BatchRows: 5000})
			t.Logf("%s: %d bytes of %d fetched", name, whole, total)
			if whole != total {
				t.Errorf("%s: %d bytes fetched of %d", name, whole, total)
			}
			for _, share := range []int64{50, 90} {
				from := rows*share/100 + 7
				got := pass(t, tab, rec, driver.ScanOptions{BatchRows: 5000, FromRow: from})
				need := total * (rows - from) / rows
				t.Logf("%s: from %d %%: %d bytes fetched, %.3f of those needed", name, share, got, float64(got)/float64(need))
				most := total
				if l.index {
					most = need + int64(len(g.chunks))*(l.page+l.page/4) + total/200 // pages begun, dictionary and index
					if place != path {
						most += total / 10 // gaps under 1 MiB are fetched with what is around them
					}
				}
				if got > most {
					t.Errorf("%s: from row %d: %d bytes fetched, want at most %d", name, from, got, most)
				}
			}
		}
	}
}

// TestSkipsByHeaders: without a page index, pages before the first row wanted are not
// even decompressed.
func TestSkipsByHeaders(t *testing.T) {
	rec := samples(20_000)
	defer rec.Release()
	for _, v2 := range []bool{false, true} {
		l := fileLayout{false, v2, compress.Codecs.Zstd, 4 << 10}
		var file bytes.Buffer
		l.write(t, &file, rec)
		path := filepath.Join(t.TempDir(), "f.parquet")
		if err := os.WriteFile(path, file.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		tab := mustOpen(t, nil, path)
		cols := []string{"id", "x", "text", "pair"}
		if v2 {
			cols = append(cols, "tokens")
		}
		f := tab.(*table).footers[0]
		b := file.Bytes()
		for i := range f.group(0).chunks {
			if f.schema.leaves[i].name != "label" {
				c := &f.group(0).chunks[i]
				copy(b[c.start+200:c.start+1000], bytes.Repeat([]byte{0xA5}, 800)) // inside the first page
			}
		}
		bad := filepath.Join(t.TempDir(), "bad.parquet")
		if err := os.WriteFile(bad, b, 0o600); err != nil {
			t.Fatal(err)
		}
		tab = mustOpen(t, nil, bad)
		for _, c := range cols {
			pass(t, tab, rec, driver.ScanOptions{Columns: []string{c}, FromRow: 12_345})
			if err := readAll(t.Context(), tab, 0, &driver.ScanOptions{Columns: []string{c}}, nil); err == nil {
				t.Errorf("column %q: the damage does not show", c)
			}
		}
		pass(t, tab, rec, driver.ScanOptions{Columns: append(cols, "label"), FromRow: 12_345})
	}
}

// BenchmarkFromRow is the time until the first batch at 0 and 90 % of a row group
// of a million rows, and that of reading all of it.
func BenchmarkFromRow(b *testing.B) {
	const rows = 1_000_000
	rec := samples(rows)
	defer rec.Release()
	for _, l := range []fileLayout{
		{true, false, compress.Codecs.Snappy, 1 << 20},
		{false, false, compress.Codecs.Snappy, 1 << 20},
		{false, true, compress.Codecs.Snappy, 1 << 20},
	} {
		path := filepath.Join(b.TempDir(), "f.parquet")
		f, err := os.Create(path)
		if err != nil {
			b.Fatal(err)
		}
		l.write(b, f, rec) // closes it
		tab := mustOpen(b, nil, path)
		for _, cols := range [][]string{{"id", "x", "label", "text", "pair"}, {"tokens"}} {
			for _, o := range []struct {
				name        string
				from, limit int64
			}{{"all", 0, 0}, {"first at 0 %", 0, 16384}, {"first at 90 %", rows * 9 / 10, 16384}} {
				b.Run(fmt.Sprintf("%v/%s/%s", l, cols[len(cols)-1], o.name), func(b *testing.B) {
					st := new(driver.ScanStats)
					before := cpu()
					for b.Loop() {
						so := &driver.ScanOptions{Columns: cols, FromRow: o.from, Stats: st}
						if o.limit == 0 {
							if err := readAll(b.Context(), tab, 0, so, nil); err != nil {
								b.Fatal(err)
							}
							continue
						}
						r, err := tab.Open(b.Context(), 0, so)
						if err != nil {
							b.Fatal(err)
						}
						x, err := r.Next(b.Context())
						if err != nil {
							b.Fatal(err)
						}
						x.Record.Release()
						r.Close()
					}
					b.ReportMetric(float64(cpu()-before)/float64(b.N), "cpu-ns/op")
					b.ReportMetric(float64(st.BytesRead.Load())/float64(b.N), "fetched-bytes/op")
				})
			}
		}
	}
}

// pageBegins lists the pages of the only column of tab, a list in version 1: how many rows begin before each,
// and how many pages begin inside a row.
func pageBegins(t *testing.T, tab *table) (begins []int64, mid int) {
	t.Helper()
	f := tab.footers[0]
	g := f.group(0)
	in := tab.input(0, nil)
	defer in.close()
	win := &window{f: in, alloc: memtest.New(t), runs: []blobio.Range{{Off: g.chunks[0].start, Len: g.chunks[0].size}}, step: 1 << 16}
	d, err := newDecoder(f.schema, g, []int{0}, map[int]*window{0: win}, nil, win.alloc)
	if err != nil {
		t.Fatal(err)
	}
	defer d.close()
	c := d.cols[0]
	for {
		ok, err := c.open(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if !ok {
			break
		}
		begins = append(begins, c.row)
		if err := c.load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if k, _, ok := c.rep.Rows(0, 1); !ok || k > 0 {
			mid++
		}
		c.body = nil
		if err := c.load(t.Context()); err != nil { // the levels once more
			t.Fatal(err)
		}
		_, rows, ok := c.rep.Rows(c.left, c.left)
		if !ok {
			t.Fatal("damaged levels")
		}
		c.row += int64(rows)
	}
	if c.row != g.rows {
		t.Fatalf("%d rows in %d pages, want %d", c.row, len(begins), g.rows)
	}
	return begins, mid
}

// TestListsWithoutIndex: pages of version 1 may begin inside a list, and lists may
// be longer than pages; any row can be the first.
func TestListsWithoutIndex(t *testing.T) {
	for seed := range uint64(6) {
		rng := rand.New(rand.NewPCG(seed, 7))
		elem := []arrow.DataType{arrow.PrimitiveTypes.Int32, arrow.BinaryTypes.String, arrow.FixedWidthTypes.Boolean, arrow.ListOf(arrow.PrimitiveTypes.Int64),
			&arrow.FixedSizeBinaryType{ByteWidth: 5}, arrow.PrimitiveTypes.Float64}[seed]
		schema := arrow.NewSchema([]arrow.Field{{Name: "l", Type: arrow.ListOf(elem), Nullable: true}}, nil)
		b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
		defer b.Release()
		lb := b.Field(0).(*array.ListBuilder)
		for range 1500 {
			if rng.IntN(9) == 0 {
				lb.AppendNull()
				continue
			}
			lb.Append(true)
			n := rng.IntN(6)
			if rng.IntN(100) == 0 {
				n = 4000
			}
			for range n {
				if rng.IntN(7) == 0 {
					lb.ValueBuilder().AppendNull()
					continue
				}
				switch v := lb.ValueBuilder().(type) {
				case *array.Int32Builder:
					v.Append(rng.Int32N(500))
				case *array.StringBuilder:
					v.Append(fmt.Sprint("w", rng.IntN(1000)))
				case *array.BooleanBuilder:
					v.Append(rng.IntN(2) == 0)
				case *array.FixedSizeBinaryBuilder:
					v.Append([]byte(fmt.Sprintf("%05d", rng.IntN(1e5))))
				case *array.Float64Builder:
					v.Append(rng.Float64())
				case *array.ListBuilder:
					v.Append(true)
					for range rng.IntN(4) {
						v.ValueBuilder().(*array.Int64Builder).Append(rng.Int64N(50))
					}
				}
			}
		}
		rec := b.NewRecordBatch()
		defer rec.Release()
		var file bytes.Buffer
		props := parquet.NewWriterProperties(parquet.WithCompression(compress.Codecs.Snappy), parquet.WithDataPageSize(1<<10), parquet.WithBatchSize(100),
			parquet.WithDictionaryDefault(seed%2 == 0), parquet.WithDataPageVersion(parquet.DataPageV1), parquet.WithDictionaryPageSizeLimit(1<<11))
		w, err := pqarrow.NewFileWriter(schema, &file, props, pqarrow.DefaultWriterProps())
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
		tab := mustOpen(t, nil, path).(*table)
		ps, mid := pageBegins(t, tab)
		t.Logf("seed %d: %d of %d pages begin inside a row", seed, mid, len(ps))
		if mid == 0 {
			t.Errorf("seed %d: no page begins inside a row", seed)
		}
		for range 20 {
			pass(t, tab, rec, driver.ScanOptions{FromRow: rng.Int64N(rec.NumRows()), BatchRows: 1 + rng.IntN(900)})
		}
		for _, x := range ps { // at and around the begins of pages
			for d := int64(-1); d < 2; d++ {
				if from := x + d; from > 0 && rng.IntN(1+len(ps)/8) == 0 {
					pass(t, tab, rec, driver.ScanOptions{FromRow: from})
				}
			}
		}
	}
}

// TestDamagedSkip: a damaged file entered in the middle gives an error or rows, never a
// panic or a leak.
func TestDamagedSkip(t *testing.T) {
	const rows = 2000
	rec := samples(rows)
	defer rec.Release()
	for _, v2 := range []bool{false, true} {
		var file bytes.Buffer
		fileLayout{false, v2, compress.Codecs.Snappy, 1 << 10}.write(t, &file, rec)
		path := filepath.Join(t.TempDir(), "f.parquet")
		rng := rand.New(rand.NewPCG(8, 9))
		failed := 0
		for try := range 300 {
			b := bytes.Clone(file.Bytes())
			for range 1 + rng.IntN(20) {
				b[4+rng.IntN(len(b)*3/4)] = byte(rng.Uint32()) // pages, not the footer
			}
			if err := os.WriteFile(path, b, 0o600); err != nil {
				t.Fatal(err)
			}
			tab, err := open(t, nil, path)
			if err != nil {
				continue
			}
			alloc := memtest.New(t)
			err = readAll(t.Context(), tab, 0, &driver.ScanOptions{FromRow: 1 + rng.Int64N(rows-1), Alloc: alloc}, nil)
			if err != nil && fault.CodeOf(err) == fault.Unknown {
				t.Errorf("try %d: an error without a code: %v", try, err)
			}
			if n := alloc.CurrentAlloc(); n != 0 {
				t.Fatalf("try %d: %d bytes leak (%v)", try, n, err)
			}
			if err != nil {
				failed++
			}
			if err := tab.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if failed == 0 {
			t.Error("no damage was seen")
		}
	}
}
