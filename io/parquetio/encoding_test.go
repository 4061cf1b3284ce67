package parquetio

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/metadata"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// everyType has all types that can be written.
func everyType() *arrow.Schema {
	ts := []arrow.DataType{
		arrow.FixedWidthTypes.Boolean, arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Int16, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64,
		arrow.PrimitiveTypes.Uint8, arrow.PrimitiveTypes.Uint16, arrow.PrimitiveTypes.Uint32, arrow.PrimitiveTypes.Uint64,
		arrow.FixedWidthTypes.Float16, arrow.PrimitiveTypes.Float32, arrow.PrimitiveTypes.Float64,
		arrow.BinaryTypes.String, arrow.BinaryTypes.LargeString, arrow.BinaryTypes.Binary, arrow.BinaryTypes.LargeBinary,
		&arrow.FixedSizeBinaryType{ByteWidth: 5}, &arrow.Decimal128Type{Precision: 9, Scale: 2}, &arrow.Decimal128Type{Precision: 30, Scale: 4},
		&arrow.Decimal256Type{Precision: 60, Scale: 3},
		arrow.FixedWidthTypes.Date32, arrow.FixedWidthTypes.Time32ms, arrow.FixedWidthTypes.Time64us, arrow.FixedWidthTypes.Time64ns,
		&arrow.TimestampType{Unit: arrow.Millisecond}, &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"},
		&arrow.TimestampType{Unit: arrow.Nanosecond, TimeZone: "Europe/Berlin"},
		arrow.Null, extensions.NewUUIDType(),
		arrow.ListOf(arrow.BinaryTypes.String), arrow.LargeListOfField(arrow.Field{Name: "element", Type: arrow.PrimitiveTypes.Int16, Nullable: true}), arrow.FixedSizeListOf(3, arrow.PrimitiveTypes.Float32),
		arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int64),
		arrow.StructOf(arrow.Field{Name: "a", Type: arrow.PrimitiveTypes.Int32, Nullable: true},
			arrow.Field{Name: "b", Type: arrow.ListOf(arrow.FixedWidthTypes.Date32), Nullable: true}),
		arrow.ListOf(arrow.ListOf(arrow.PrimitiveTypes.Float64)),
		arrow.FixedWidthTypes.Duration_s, arrow.FixedWidthTypes.Duration_ns, arrow.FixedSizeListOf(3, arrow.FixedWidthTypes.Duration_ms),
		arrow.MapOf(arrow.BinaryTypes.String, arrow.FixedWidthTypes.Duration_us),
		arrow.LargeListOfField(arrow.Field{Name: "element", Type: arrow.StructOf(arrow.Field{Name: "d", Type: arrow.FixedWidthTypes.Duration_us, Nullable: true}), Nullable: true}),
	}
	var fields []arrow.Field
	for i, t := range ts {
		fields = append(fields, arrow.Field{Name: strings.Repeat("c", i+1), Type: t, Nullable: true})
	}
	return arrow.NewSchema(fields, nil)
}

// fill appends a value to any builder; n decides on it.
func fill(b array.Builder, n int) {
	if n%7 == 3 {
		b.AppendNull()
		return
	}
	switch b := b.(type) {
	case *array.StructBuilder:
		b.Append(true)
		for i := range b.NumField() {
			fill(b.FieldBuilder(i), n+i)
		}
	case *array.MapBuilder:
		b.Append(true)
		for k := range n % 3 {
			b.KeyBuilder().(*array.StringBuilder).Append(strings.Repeat("k", k))
			fill(b.ItemBuilder(), n+k)
		}
	case *array.FixedSizeListBuilder:
		b.Append(true)
		for k := range 3 {
			fill(b.ValueBuilder(), n+k)
		}
	case *array.ListBuilder:
		b.Append(true)
		for k := range n % 4 {
			fill(b.ValueBuilder(), n+k)
		}
	case *array.LargeListBuilder:
		b.Append(true)
		for k := range n % 4 {
			fill(b.ValueBuilder(), n+k)
		}
	case *array.StringBuilder:
		b.Append(strings.Repeat("é", n%5))
	case *array.LargeStringBuilder:
		b.Append(strings.Repeat("long", n%50))
	case *array.BinaryBuilder:
		b.Append(bytes.Repeat([]byte{byte(n)}, n%9))
	case *array.FixedSizeBinaryBuilder:
		b.Append(bytes.Repeat([]byte{byte(n)}, b.Type().(*arrow.FixedSizeBinaryType).ByteWidth))
	case *array.Decimal128Builder:
		b.Append(decimal128.FromI64(int64(n*n - 50)))
	case *array.ExtensionBuilder:
		b.Builder.(*array.FixedSizeBinaryBuilder).Append(bytes.Repeat([]byte{byte(n)}, 16))
	case *array.Float64Builder:
		b.Append([]float64{0, math.Copysign(0, -1), math.NaN(), math.Inf(-1), float64(n)}[n%5])
	case *array.NullBuilder:
		b.AppendNull()
	case *array.DurationBuilder:
		b.Append(arrow.Duration([]int64{0, -1, math.MinInt64, math.MaxInt64, int64(n)}[n%5]))
	default:
		if err := b.AppendValueFromString("1"); err != nil {
			b.AppendEmptyValue()
		}
	}
}

func everyRow(schema *arrow.Schema, rows int) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for r := range rows {
		for i := range schema.NumFields() {
			fill(b.Field(i), r+i)
		}
	}
	return b.NewRecordBatch()
}

func TestRoundTrip(t *testing.T) {
	schema := everyType()
	rec := everyRow(schema, 500)
	defer rec.Release()
	for _, codec := range []string{"zstd", "snappy", "gzip", "lz4_raw", "none"} {
		t.Run(codec, func(t *testing.T) {
			alloc := memtest.New(t)
			path := filepath.Join(t.TempDir(), "f.parquet")
			// Sliced batches: offsets are not zero.
			a, b := rec.NewSlice(0, 123), rec.NewSlice(123, 500)
			defer a.Release()
			defer b.Release()
			writeFile(t, path, &EncodingOptions{Compression: codec, RowGroupRows: 200, PageBytes: 1 << 10}, alloc, a, b)
			tab := mustOpen(t, nil, path)
			for i, f := range tab.Schema().Fields() {
				if !arrow.TypeEqual(f.Type, storageType(schema.Field(i).Type)) || !f.Nullable { // extension types are their storage
					t.Errorf("column %v, want %v", f, schema.Field(i))
				}
			}
			if len(tab.Splits()) != 3 {
				t.Errorf("%d row groups", len(tab.Splits()))
			}
			at := int64(0)
			for i := range tab.Splits() {
				err := readAll(t.Context(), tab, i, &driver.ScanOptions{Alloc: alloc, BatchRows: 77}, func(got driver.Batch) {
					n := got.Record.NumRows()
					want := rec.NewSlice(at, at+n)
					defer want.Release()
					at += n
					for c := range got.Record.NumCols() {
						g, w := text(got.Record.Column(int(c))), text(want.Column(int(c)))
						for r := range g {
							if g[r] != w[r] {
								t.Fatalf("row %d, %v: %s, want %s", at-n+int64(r), schema.Field(int(c)).Type, g[r], w[r])
							}
						}
					}
				})
				if err != nil {
					t.Fatal(err)
				}
			}
			if at != 500 {
				t.Errorf("%d rows", at)
			}
		})
	}
}

// bare is an array of no values that has no buffers: the format wants no offsets of it.
func bare(t arrow.DataType) arrow.ArrayData {
	var kids []arrow.ArrayData
	buffers := 1
	switch t := t.(type) {
	case *arrow.StructType:
		for _, f := range t.Fields() {
			kids = append(kids, bare(f.Type))
		}
	case arrow.ListLikeType:
		kids, buffers = []arrow.ArrayData{bare(t.Elem())}, 2
	case arrow.BinaryDataType:
		buffers = 3
	default:
		buffers = 2
	}
	return array.NewData(t, 0, make([]*memory.Buffer, buffers), kids, 0, 0)
}

// Lists without any value, of any type, are written where their values have no offsets.
func TestEmptyLists(t *testing.T) {
	text := arrow.BinaryTypes.String
	for _, elem := range []arrow.DataType{
		text, arrow.BinaryTypes.LargeString, arrow.BinaryTypes.Binary, arrow.BinaryTypes.LargeBinary, arrow.PrimitiveTypes.Int32, arrow.FixedWidthTypes.Boolean,
		&arrow.FixedSizeBinaryType{ByteWidth: 3}, arrow.ListOf(text), arrow.ListOf(arrow.PrimitiveTypes.Int32), arrow.LargeListOf(text), arrow.MapOf(text, text), arrow.FixedSizeListOf(3, text),
		arrow.StructOf(arrow.Field{Name: "a", Type: text, Nullable: true}, arrow.Field{Name: "b", Type: arrow.ListOf(text), Nullable: true}),
	} {
		for _, list := range []arrow.DataType{arrow.ListOf(elem), arrow.LargeListOf(elem), arrow.StructOf(arrow.Field{Name: "s", Type: arrow.ListOf(elem), Nullable: true})} {
			const rows = 300
			zeros := memory.NewBufferBytes(make([]byte, 8*(rows+1)))
			lists := func(t arrow.DataType) arrow.ArrayData {
				return array.NewData(t, rows, []*memory.Buffer{nil, zeros}, []arrow.ArrayData{bare(t.(arrow.ListLikeType).Elem())}, 0, 0)
			}
			var data arrow.ArrayData
			if s, ok := list.(*arrow.StructType); ok {
				data = array.NewData(s, rows, []*memory.Buffer{nil}, []arrow.ArrayData{lists(s.Field(0).Type)}, 0, 0)
			} else {
				data = lists(list)
			}
			schema := arrow.NewSchema([]arrow.Field{{Name: "c", Type: list, Nullable: true}}, nil)
			rec := array.NewRecordBatch(schema, []arrow.Array{array.MakeFromData(data)}, rows)
			some := everyRow(schema, 10)
			path := filepath.Join(t.TempDir(), "f.parquet")
			alloc := memtest.New(t)
			writeFile(t, path, &EncodingOptions{RowGroupRows: 50}, alloc, rec, some, rec, rec)
			tab := mustOpen(t, nil, path)
			got := int64(0)
			for i := range tab.Splits() {
				if err := readAll(t.Context(), tab, i, &driver.ScanOptions{Alloc: alloc}, func(b driver.Batch) { got += b.Record.NumRows() }); err != nil {
					t.Fatal(err)
				}
			}
			if got != 3*rows+10 {
				t.Errorf("%s: %d rows", list, got)
			}
			some.Release()
			rec.Release()
		}
	}
}

// TestDictionaries are read as their values, also where the Arrow schema says otherwise.
func TestDictionaries(t *testing.T) {
	dict := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}
	schema := arrow.NewSchema([]arrow.Field{{Name: "d", Type: dict, Nullable: true}, {Name: "l", Type: arrow.LargeListOf(arrow.PrimitiveTypes.Int8), Nullable: true}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for i := range 10 {
		if err := b.Field(0).(*array.BinaryDictionaryBuilder).AppendString([]string{"x", "y"}[i%2]); err != nil {
			t.Fatal(err)
		}
		b.Field(1).AppendNull()
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	path := filepath.Join(t.TempDir(), "f.parquet")
	writeFile(t, path, nil, memtest.New(t), rec)
	tab := mustOpen(t, nil, path)
	if got := tab.Schema().Field(0).Type; got.ID() != arrow.STRING {
		t.Errorf("type %v", got)
	}
	err := readAll(t.Context(), tab, 0, &driver.ScanOptions{Alloc: memtest.New(t)}, func(got driver.Batch) {
		if s := got.Record.Column(0).String(); s != `["x" "y" "x" "y" "x" "y" "x" "y" "x" "y"]` {
			t.Error(s)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestSameBytes: the same batches give the same bytes, dictionaries that are
// given up included.
func TestSameBytes(t *testing.T) {
	// A column that falls back from its dictionary has three kinds of pages in its statistics, which arrow-go keeps in a map.
	b := array.NewStringBuilder(memory.DefaultAllocator)
	defer b.Release()
	for i := range 60_000 {
		if i < 20_000 {
			b.Append("same")
		} else {
			b.Append(fmt.Sprintf("another value, number %d", i))
		}
	}
	col := b.NewArray()
	defer col.Release()
	rec := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "k", Type: arrow.BinaryTypes.String}}, nil), []arrow.Array{col}, int64(col.Len()))
	defer rec.Release()
	var first []byte
	for range 12 {
		e, err := NewEncoding(&EncodingOptions{Bloom: []string{"k"}, PageBytes: 4 << 10})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		w, err := e.NewEncoder(&out, rec.Schema(), memtest.New(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write(rec); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = out.Bytes()
		} else if !bytes.Equal(first, out.Bytes()) {
			t.Fatal("the bytes differ")
		}
	}
}

type failingWriter struct{ left int }

func (w *failingWriter) Write(p []byte) (int, error) {
	if w.left -= len(p); w.left < 0 {
		return 0, errors.New("disk full")
	}
	return len(p), nil
}

func TestEncoderErrors(t *testing.T) {
	rec := everyRow(everyType(), 300)
	defer rec.Release()
	e, err := NewEncoding(&EncodingOptions{RowGroupRows: 50})
	if err != nil {
		t.Fatal(err)
	}
	t.Run("abort", func(t *testing.T) {
		w, err := e.NewEncoder(&bytes.Buffer{}, rec.Schema(), memtest.New(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write(rec); err != nil {
			t.Fatal(err)
		}
		if w.Size() < 1000 {
			t.Errorf("size %d", w.Size())
		}
		w.Abort()
	})
	t.Run("full", func(t *testing.T) {
		w, err := e.NewEncoder(&failingWriter{5000}, rec.Schema(), memtest.New(t))
		if err != nil {
			t.Fatal(err)
		}
		err = w.Write(rec)
		if err == nil {
			err = w.Close()
		} else {
			w.Abort()
		}
		if err == nil || !strings.Contains(err.Error(), "disk full") {
			t.Errorf("error %v", err)
		}
	})
	t.Run("empty", func(t *testing.T) {
		path := filepath.Join(t.TempDir(), "f.parquet")
		none := rec.NewSlice(0, 0)
		defer none.Release()
		writeFile(t, path, nil, memtest.New(t), none)
		if tab := mustOpen(t, nil, path); len(tab.Splits()) != 0 || tab.Schema().NumFields() != rec.Schema().NumFields() {
			t.Errorf("%d splits, schema %v", len(tab.Splits()), tab.Schema())
		}
	})
	t.Run("schema", func(t *testing.T) {
		w, err := e.NewEncoder(&bytes.Buffer{}, arrow.NewSchema([]arrow.Field{{Name: "x", Type: arrow.PrimitiveTypes.Int64}}, nil), memtest.New(t))
		if err != nil {
			t.Fatal(err)
		}
		defer w.Abort()
		if err := w.Write(rec); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("error %v", err)
		}
	})
	for _, typ := range []arrow.DataType{arrow.BinaryTypes.StringView, arrow.FixedWidthTypes.MonthInterval, arrow.RunEndEncodedOf(arrow.PrimitiveTypes.Int16, arrow.PrimitiveTypes.Int8),
		arrow.StructOf(), arrow.ListOf(arrow.BinaryTypes.BinaryView), arrow.ListViewOf(arrow.PrimitiveTypes.Int8)} {
		err := e.Check(arrow.NewSchema([]arrow.Field{{Name: "ok", Type: arrow.PrimitiveTypes.Int8}, {Name: "bad one", Type: typ, Nullable: true}}, nil))
		if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "bad one") {
			t.Errorf("%v: error %v", typ, err)
		}
	}
	for _, o := range []EncodingOptions{{Compression: "brotli"}, {Level: 23}, {Compression: "snappy", Level: 1}, {PageBytes: 5}, {RowGroupRows: -1}} {
		if _, err := NewEncoding(&o); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%+v: error %v", o, err)
		}
	}
	c := e.Config()
	if e2, err := OpenEncoding(c); err != nil || !bytes.Equal(e2.Config(), c) {
		t.Errorf("config %s: %v", c, err)
	}
}

// TestDictionaryPolicy: floats, binary and long text have no dictionary.
func TestDictionaryPolicy(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{
		{Name: "f", Type: arrow.PrimitiveTypes.Float32}, {Name: "b", Type: arrow.BinaryTypes.Binary},
		{Name: "long", Type: arrow.BinaryTypes.String}, {Name: "short", Type: arrow.BinaryTypes.String}, {Name: "i", Type: arrow.PrimitiveTypes.Int32}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for i := range 1000 {
		b.Field(0).(*array.Float32Builder).Append(float32(i % 3))
		b.Field(1).(*array.BinaryBuilder).Append([]byte{byte(i % 3)})
		b.Field(2).(*array.StringBuilder).Append(strings.Repeat("x", 60+i%50))
		b.Field(3).(*array.StringBuilder).Append(strings.Repeat("x", i%5))
		b.Field(4).(*array.Int32Builder).Append(int32(i % 3))
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	path := filepath.Join(t.TempDir(), "f.parquet")
	writeFile(t, path, nil, memtest.New(t), rec)
	tab := mustOpen(t, nil, path).(*table)
	for i, want := range []bool{false, false, false, true, true} {
		if got := tab.footers[0].group(0).chunks[i].flags&hasDict != 0; got != want {
			t.Errorf("column %s: dictionary %v", schema.Field(i).Name, got)
		}
	}
	raw, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if bytes.Contains(raw, []byte(arrowSchemaKey)) {
		t.Error("the Arrow schema is stored without need")
	}
}

// TestEncodingOptions looks at footers: the codec is that of the options in every column, its level makes a difference, row groups end where their bytes do, pages are small
// where they should be, and statistics are left out where they should be.
func TestEncodingOptions(t *testing.T) {
	const rows = 20_000
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "s", Type: arrow.BinaryTypes.String}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for i := range rows {
		b.Field(0).(*array.Int64Builder).Append(int64(i))
		b.Field(1).(*array.StringBuilder).Append(fmt.Sprintf("a text, number %d of some: %d", i*i, i%7))
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	var recs []arrow.RecordBatch
	for at := int64(0); at < rows; at += 500 {
		part := rec.NewSlice(at, at+500)
		defer part.Release()
		recs = append(recs, part)
	}
	write := func(o *EncodingOptions) (f *metadata.FileMetaData, size int64, pages int) {
		path := filepath.Join(t.TempDir(), "f.parquet")
		writeFile(t, path, o, memtest.New(t), recs...)
		r, err := file.OpenParquetFile(path, false) // arrow-go's: not this package, which might be wrong in the same way
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for g := range r.NumRowGroups() {
			group, err := r.GetPageIndexReader().RowGroup(g)
			if err != nil {
				t.Fatal(err)
			}
			index, err := group.GetOffsetIndex(0)
			if err != nil {
				t.Fatal(err)
			}
			pages += len(index.GetPageLocations())
		}
		return r.MetaData(), r.MetaData().GetSourceFileSize(), pages
	}
	chunks := func(f *metadata.FileMetaData, check func(g, c int, chunk *metadata.ColumnChunkMetaData)) {
		for g := range f.RowGroups {
			for c := range schema.NumFields() {
				chunk, err := f.RowGroup(g).ColumnChunk(c)
				if err != nil {
					t.Fatal(err)
				}
				check(g, c, chunk)
			}
		}
	}
	for name, codec := range map[string]compress.Compression{"": compress.Codecs.Zstd, "zstd": compress.Codecs.Zstd, "snappy": compress.Codecs.Snappy, "gzip": compress.Codecs.Gzip,
		"lz4_raw": compress.Codecs.Lz4Raw, "none": compress.Codecs.Uncompressed} {
		f, _, _ := write(&EncodingOptions{Compression: name})
		chunks(f, func(g, c int, chunk *metadata.ColumnChunkMetaData) {
			small := chunk.TotalCompressedSize() < chunk.TotalUncompressedSize()*9/10
			if stats, err := chunk.StatsSet(); chunk.Compression() != codec || small != (name != "none") || !stats || err != nil {
				t.Errorf("%q: column %d has the codec %v, %d bytes of %d, statistics %v, %v", name, c, chunk.Compression(), chunk.TotalCompressedSize(), chunk.TotalUncompressedSize(), stats, err)
			}
		})
		if len(f.RowGroups) != 1 {
			t.Errorf("%q: %d row groups", name, len(f.RowGroups))
		}
	}
	for codec, level := range map[string]int{"zstd": 19, "gzip": 9} {
		_, least, _ := write(&EncodingOptions{Compression: codec, Level: 1})
		_, most, _ := write(&EncodingOptions{Compression: codec, Level: level})
		if most >= least {
			t.Errorf("%s: %d bytes with level 1, %d with %d", codec, least, most, level)
		}
	}
	const bytes = 100_000
	f, _, few := write(&EncodingOptions{Compression: "none", RowGroupBytes: bytes, PageBytes: 32 << 10})
	for g := range f.RowGroups {
		// A batch of 500 rows has some 20 kB; of each column a page waits to be encoded.
		if n := f.RowGroup(g).TotalCompressedSize(); n < bytes && g < len(f.RowGroups)-1 || n > bytes+150_000 {
			t.Errorf("row group %d of %d has %d bytes", g, len(f.RowGroups), n)
		}
	}
	if len(f.RowGroups) < 5 {
		t.Errorf("%d row groups", len(f.RowGroups))
	}
	if _, _, many := write(&EncodingOptions{Compression: "none", RowGroupBytes: bytes, PageBytes: 8 << 10}); many < 2*few {
		t.Errorf("%d pages of 32 KiB, %d of 8 KiB", few, many)
	}
	f, _, _ = write(&EncodingOptions{NoStatistics: true})
	chunks(f, func(g, c int, chunk *metadata.ColumnChunkMetaData) {
		if stats, err := chunk.StatsSet(); stats || err != nil {
			t.Errorf("column %d has statistics: %v, %v", c, stats, err)
		}
	})
}
