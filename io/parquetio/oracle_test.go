package parquetio

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/decimal256"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/float16"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/arrow-go/v18/parquet/schema"

	rowgather "github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/blobio"
)

var oracleSeeds = flag.Int("oracle", 60, "seeds of TestEqualsOracle")

// leafTypes are types that arrow-go writes.
var leafTypes = []arrow.DataType{
	arrow.FixedWidthTypes.Boolean,
	arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Uint8, arrow.PrimitiveTypes.Int16, arrow.PrimitiveTypes.Uint16,
	arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Uint32, arrow.PrimitiveTypes.Int64, arrow.PrimitiveTypes.Uint64,
	arrow.FixedWidthTypes.Float16, arrow.PrimitiveTypes.Float32, arrow.PrimitiveTypes.Float64,
	arrow.BinaryTypes.String, arrow.BinaryTypes.Binary, arrow.BinaryTypes.LargeString, arrow.BinaryTypes.LargeBinary,
	&arrow.FixedSizeBinaryType{ByteWidth: 1}, &arrow.FixedSizeBinaryType{ByteWidth: 5}, &arrow.FixedSizeBinaryType{ByteWidth: 16}, extensions.NewUUIDType(),
	&arrow.Decimal128Type{Precision: 7, Scale: 2}, &arrow.Decimal128Type{Precision: 16, Scale: 2}, &arrow.Decimal128Type{Precision: 30, Scale: 4},
	&arrow.Decimal256Type{Precision: 60, Scale: 3}, &arrow.Decimal256Type{Precision: 9, Scale: 3},
	arrow.FixedWidthTypes.Date32, arrow.FixedWidthTypes.Date64, arrow.FixedWidthTypes.Time32ms, arrow.FixedWidthTypes.Time64us, arrow.FixedWidthTypes.Time64ns,
	&arrow.TimestampType{Unit: arrow.Millisecond}, &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}, &arrow.TimestampType{Unit: arrow.Nanosecond},
	arrow.Null,
}

func randomType(rng *rand.Rand, depth int) arrow.DataType {
	field := func(name string) arrow.Field { return randomField(rng, name, depth-1) }
	if depth > 0 && rng.IntN(2) == 0 {
		switch rng.IntN(5) {
		case 0:
			return arrow.ListOfField(field("element"))
		case 1:
			return arrow.LargeListOfField(field("element"))
		case 2:
			m := arrow.MapOfFields(arrow.Field{Name: "key", Type: leafTypes[rng.IntN(len(leafTypes)-1)]}, field("value"))
			return m
		default:
			var fs []arrow.Field
			for i := range 1 + rng.IntN(3) {
				fs = append(fs, field(fmt.Sprint("f", i)))
			}
			return arrow.StructOf(fs...)
		}
	}
	return leafTypes[rng.IntN(len(leafTypes))]
}

func randomField(rng *rand.Rand, name string, depth int) arrow.Field {
	t := randomType(rng, depth)
	return arrow.Field{Name: name, Type: t, Nullable: t.ID() == arrow.NULL || rng.IntN(4) > 0}
}

// appendRandom appends a value with nulls in nulls of 16; few says how many distinct values there are.
func appendRandom(rng *rand.Rand, b array.Builder, nullable bool, nulls, few int) {
	_, null := b.(*array.NullBuilder)
	if null || nullable && rng.IntN(16) < nulls {
		b.AppendNull()
		return
	}
	v := rng.Int64N(int64(few))
	wide := v * 0x9e3779b97f4a7c1
	kid := func(b array.Builder, f arrow.Field) { appendRandom(rng, b, f.Nullable, nulls, few) }
	length := func() int {
		if rng.IntN(200) == 0 {
			return rng.IntN(400)
		}
		return rng.IntN(5)
	}
	switch b := b.(type) {
	case *array.BooleanBuilder:
		b.Append(v%2 == 0)
	case *array.Int8Builder:
		b.Append(int8(v))
	case *array.Uint8Builder:
		b.Append(uint8(v))
	case *array.Int16Builder:
		b.Append(int16(wide))
	case *array.Uint16Builder:
		b.Append(uint16(wide))
	case *array.Int32Builder:
		b.Append(int32(wide))
	case *array.Uint32Builder:
		b.Append(uint32(wide))
	case *array.Int64Builder:
		b.Append(wide)
	case *array.Uint64Builder:
		b.Append(uint64(wide))
	case *array.Float16Builder:
		b.Append(float16.New(float32(v)))
	case *array.Float32Builder:
		b.Append(float32(v) / 3)
	case *array.Float64Builder:
		b.Append(float64(v) / 3)
	case *array.StringBuilder:
		b.Append(textOf(v))
	case *array.LargeStringBuilder:
		b.Append(textOf(v))
	case *array.BinaryBuilder:
		b.Append([]byte(textOf(v)))
	case *array.FixedSizeBinaryBuilder:
		w := b.Type().(*arrow.FixedSizeBinaryType).ByteWidth
		b.Append([]byte(fmt.Sprintf("%0*d", max(w, 20), v))[max(w, 20)-w:])
	case *array.Decimal128Builder:
		b.Append(decimal128.FromI64(v*v - 50))
	case *array.Decimal256Builder:
		b.Append(decimal256.FromI64(v*v - 50))
	case *array.Date32Builder:
		b.Append(arrow.Date32(v - 100))
	case *array.Date64Builder:
		b.Append(arrow.Date64((v - 100) * 86_400_000))
	case *array.Time32Builder:
		b.Append(arrow.Time32(v))
	case *array.Time64Builder:
		b.Append(arrow.Time64(v))
	case *array.TimestampBuilder:
		b.Append(arrow.Timestamp(v*1e12 - 1e9))
	case *extensions.UUIDBuilder:
		b.AppendBytes([16]byte{byte(v), byte(v >> 8), 5: byte(v >> 16)})
	case *array.StructBuilder:
		b.Append(true)
		for i, f := range b.Type().(*arrow.StructType).Fields() {
			kid(b.FieldBuilder(i), f)
		}
	case *array.MapBuilder:
		b.Append(true)
		t := b.Type().(*arrow.MapType)
		for range length() {
			appendRandom(rng, b.KeyBuilder(), false, 0, few)
			kid(b.ItemBuilder(), t.ItemField())
		}
	case *array.ListBuilder:
		b.Append(true)
		for range length() {
			kid(b.ValueBuilder(), b.Type().(*arrow.ListType).ElemField())
		}
	case *array.LargeListBuilder:
		b.Append(true)
		for range length() {
			kid(b.ValueBuilder(), b.Type().(*arrow.LargeListType).ElemField())
		}
	default:
		panic(fmt.Sprintf("no values for %T", b))
	}
}

func textOf(v int64) string {
	if v%50 == 7 {
		return strings.Repeat(fmt.Sprint("long ", v), 60)
	}
	return strings.Repeat("ab", int(v%9)) + fmt.Sprint(v)
}

// encodingsOf are the encodings that arrow-go writes values of a type in.
func encodingsOf(t parquet.Type) []parquet.Encoding {
	e := parquet.Encodings
	switch t {
	case parquet.Types.Boolean:
		return []parquet.Encoding{e.Plain, e.RLE}
	case parquet.Types.Int32, parquet.Types.Int64:
		return []parquet.Encoding{e.Plain, e.DeltaBinaryPacked, e.ByteStreamSplit}
	case parquet.Types.Float, parquet.Types.Double:
		return []parquet.Encoding{e.Plain, e.ByteStreamSplit}
	case parquet.Types.ByteArray:
		return []parquet.Encoding{e.Plain, e.DeltaLengthByteArray, e.DeltaByteArray}
	case parquet.Types.FixedLenByteArray:
		return []parquet.Encoding{e.Plain, e.ByteStreamSplit}
	}
	return []parquet.Encoding{e.Plain}
}

// randomFile writes rec with arrow-go in some random way. It fails where arrow-go cannot write.
func randomFile(t testing.TB, rng *rand.Rand, rec arrow.RecordBatch) (b *bytes.Buffer, what string, err error) {
	t.Helper()
	pick := func(name string, n int) int {
		v := rng.IntN(n)
		what += fmt.Sprintf("%s=%d ", name, v)
		return v
	}
	int96 := pick("int96", 4) == 0
	arrowProps := []pqarrow.WriterOption{pqarrow.WithDeprecatedInt96Timestamps(int96)}
	if pick("schema", 3) > 0 {
		arrowProps = append(arrowProps, pqarrow.WithStoreSchema())
	}
	ap := pqarrow.NewArrowWriterProperties(arrowProps...)
	props := []parquet.WriterProperty{
		parquet.WithDataPageSize(int64(64 << pick("page", 11))),
		parquet.WithBatchSize(int64(1 + pick("batch", 400))),
		parquet.WithPageIndexEnabled(pick("index", 2) > 0),
		parquet.WithMaxRowGroupLength(int64(100 + pick("group", 3000))),
		parquet.WithDictionaryPageSizeLimit(int64(64 << pick("dictsize", 12))),
		parquet.WithCompression([]compress.Compression{compress.Codecs.Uncompressed, compress.Codecs.Snappy, compress.Codecs.Zstd,
			compress.Codecs.Gzip, compress.Codecs.Lz4Raw, compress.Codecs.Brotli}[pick("codec", 6)]),
		parquet.WithDataPageVersion([]parquet.DataPageVersion{parquet.DataPageV1, parquet.DataPageV2}[pick("version", 2)]),
	}
	sc, err := pqarrow.ToParquet(rec.Schema(), parquet.NewWriterProperties(), ap)
	if err != nil {
		t.Fatal(err)
	}
	for i := range sc.NumColumns() {
		c := sc.Column(i)
		dict := rng.IntN(2) == 0 && c.PhysicalType() != parquet.Types.Boolean
		props = append(props, parquet.WithDictionaryPath(c.ColumnPath(), dict))
		if !dict {
			es := encodingsOf(c.PhysicalType())
			e := es[rng.IntN(len(es))]
			if c.LogicalType().Equals(schema.NullLogicalType{}) {
				e = parquet.Encodings.Plain
			}
			props = append(props, parquet.WithEncodingPath(c.ColumnPath(), e))
			what += fmt.Sprintf("%s=%v ", c.Path(), e)
		}
	}
	var out bytes.Buffer
	w, err := pqarrow.NewFileWriter(rec.Schema(), &out, parquet.NewWriterProperties(props...), ap)
	if err != nil {
		t.Fatal(err)
	}
	if err := w.WriteBuffered(rec); err != nil {
		return nil, what, err
	}
	return &out, what, w.Close()
}

// oracle reads one row group with pqarrow; it cannot decompress pages of nothing.
func oracle(t testing.TB, b []byte, s *fileSchema, group int) ([]arrow.Array, error) {
	t.Helper()
	pf, err := file.NewParquetReader(bytes.NewReader(b))
	if err != nil {
		return nil, err
	}
	fr, err := pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{}, memory.DefaultAllocator)
	if err != nil {
		return nil, err
	}
	fr.Manifest = s.manifest
	var out []arrow.Array
	for i := range s.fields {
		leaves := map[int]bool{}
		for _, l := range s.fields[i].leaves {
			leaves[l] = true
		}
		cr, err := fr.GetFieldReader(context.Background(), i, leaves, []int{group})
		if err != nil {
			return nil, err
		}
		c, err := cr.NextBatch(pf.MetaData().RowGroups[group].NumRows)
		if err != nil {
			return nil, err
		}
		a, err := array.Concatenate(c.Chunks(), memory.DefaultAllocator)
		if err != nil {
			t.Fatal(err)
		}
		d := retype(a.Data(), s.arrow.Field(i).Type)
		out = append(out, array.MakeFromData(d))
		d.Release()
		a.Release()
	}
	return out, nil
}

// retype gives nested data the type t, which differs in metadata of inner fields.
func retype(d arrow.ArrayData, t arrow.DataType) arrow.ArrayData {
	var inner []arrow.DataType
	switch t := t.(type) {
	case *arrow.StructType:
		for _, f := range t.Fields() {
			inner = append(inner, f.Type)
		}
	case arrow.ListLikeType:
		inner = []arrow.DataType{t.Elem()}
	}
	if len(inner) != len(d.Children()) {
		d.Retain()
		return d
	}
	kids := make([]arrow.ArrayData, len(inner))
	for i, k := range d.Children() {
		kids[i] = retype(k, inner[i])
		defer kids[i].Release()
	}
	return array.NewData(t, d.Len(), d.Buffers(), kids, d.NullN(), d.Offset())
}

// bytesWindows are windows over the chunks of fields of a file in memory.
func bytesWindows(b []byte, s *fileSchema, g *rowGroup, fields []int, alloc memory.Allocator, step int64) map[int]*window {
	wins := map[int]*window{}
	for _, i := range fields {
		for _, l := range s.fields[i].leaves {
			c := &g.chunks[l]
			wins[l] = &window{f: &input{blob: bytesBlob(b)}, alloc: alloc, runs: []blobio.Range{{Off: c.start, Len: c.size}}, step: step}
		}
	}
	return wins
}

// TestEqualsOracle: whatever the types, nesting, nulls, encodings, codecs, versions and
// sizes of pages, and whatever rows are wanted or chosen of them, columns are those that pqarrow reads; also where
// reads are repeated with fewer rows, and where columns share a page.
func TestEqualsOracle(t *testing.T) {
	retried, shared, ahead, chose, groups, blind := 0, 0, 0, 0, 0, 0
	for seed := range uint64(*oracleSeeds) {
		rng := rand.New(rand.NewPCG(seed, 77))
		var fs []arrow.Field
		for i := range 1 + rng.IntN(5) {
			fs = append(fs, randomField(rng, fmt.Sprint("c", i), 3))
		}
		sc := arrow.NewSchema(fs, nil)
		rb := array.NewRecordBuilder(memory.DefaultAllocator, sc)
		nulls, few := []int{0, 1, 8, 16}[rng.IntN(4)], []int{1, 3, 300, 1 << 20}[rng.IntN(4)]
		for range 1 + rng.IntN(2500) {
			for i, f := range fs {
				appendRandom(rng, rb.Field(i), f.Nullable, nulls, few)
			}
		}
		rec := rb.NewRecordBatch()
		out, what, err := randomFile(t, rng, rec)
		name := fmt.Sprintf("seed %d, %v: %s", seed, sc, what)
		if err != nil {
			t.Logf("%s: arrow-go cannot write this: %v", name, err)
			continue
		}
		b := out.Bytes()
		ft, err := readFooter(t.Context(), bytesBlob(b), make([]byte, tailBytes), &schemaCache{int96: "ns"})
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		for gi := range ft.groups {
			g := ft.group(gi)
			want, err := oracle(t, b, ft.schema, gi)
			if groups++; err != nil {
				t.Logf("%s: the oracle says %v", name, err)
				blind++
				continue
			}
			for try := range 4 {
				alloc := memtest.New(t)
				fields := rng.Perm(len(ft.schema.fields))[:1+rng.IntN(len(ft.schema.fields))]
				wins := bytesWindows(b, ft.schema, g, fields, alloc, int64(64<<rng.IntN(16)))
				var pages map[int][]pageLoc
				if try%2 == 1 {
					var all []int
					for l := range g.chunks {
						all = append(all, l)
					}
					if pages, _, err = g.indexes(t.Context(), &input{blob: bytesBlob(b)}, ft.schema, all, false); err != nil {
						t.Fatal(err)
					}
				}
				d, err := newDecoder(ft.schema, g, fields, wins, pages, alloc)
				if err != nil {
					t.Fatalf("%s: %v", name, err)
				}
				if rng.IntN(3) == 0 {
					d.keep = int64(rng.IntN(20 << 10))
				}
				places := make([]int, len(fields))
				for k := range places {
					places[k] = k
				}
				most := 1 + rng.IntN([]int{10, 300, 3000}[rng.IntN(3)])
				steady := rng.IntN(2) == 0
				for row := int64(0); row < g.rows; {
					if !steady && rng.IntN(3) == 0 {
						row += rng.Int64N(g.rows - row)
					}
					n := int(min(int64(most), g.rows-row))
					if !steady {
						n = int(min(int64(1+rng.IntN(most)), g.rows-row))
					}
					limit := int64(1 << 30)
					if rng.IntN(8) == 0 {
						limit = int64(rng.IntN(20 << 10))
					}
					keep := randomChoice(rng, n)
					got, err := d.readFields(t.Context(), places, row, n, keep, limit)
					if errors.As(err, new(errTooLarge)) {
						if retried++; limit == 1<<30 {
							t.Fatalf("%s: %v", name, err)
						}
						n = max(1, n/4)
						keep = keep.part(0, n)
						got, err = d.readFields(t.Context(), places, row, n, keep, 1<<30)
					}
					if keep != nil {
						chose++
					}
					for _, c := range d.cols {
						ahead += len(c.ready)
					}
					if err != nil {
						t.Fatalf("%s: group %d, fields %v, rows %d to %d: %v", name, gi, fields, row, row+int64(n), err)
					}
					for k, i := range fields {
						w := array.NewSlice(want[i], row, row+int64(n))
						if keep != nil {
							all := w
							if w, err = rowgather.Column(memory.DefaultAllocator, []arrow.Array{all}, keep.runs()); err != nil {
								t.Fatal(err)
							}
							all.Release()
						}
						if !array.Equal(got[k], w) {
							t.Fatalf("%s: group %d, column %d, rows %d to %d, index %t:\n%v, want\n%v", name, gi, i, row, row+int64(n), pages != nil, got[k], w)
						}
						if keep != nil && !d.chooses(&d.fields[k]) {
							// a part of what was decoded
						} else if err := validateArray(got[k]); err != nil {
							t.Fatalf("%s: group %d, column %d: %v", name, gi, i, err)
						}
						w.Release()
						got[k].Release()
					}
					row += int64(n)
				}
				for _, c := range d.cols {
					if c.sharer {
						shared++
					}
				}
				d.close()
				alloc.AssertSize(t, 0)
			}
			for _, a := range want {
				a.Release()
			}
		}
		rec.Release()
		rb.Release()
	}
	t.Logf("%d row groups, %d of them not read by the oracle, %d reads repeated, %d columns shared a page, %d pieces decoded ahead, %d reads of chosen rows", groups, blind, retried, shared, ahead, chose)
	if retried == 0 || shared == 0 || ahead == 0 || chose == 0 || blind*20 > groups {
		t.Error("not all was tested")
	}
}

// randomChoice chooses among n rows: single ones, stretches, few or most; nil: all.
func randomChoice(rng *rand.Rand, n int) *chosen {
	if rng.IntN(3) == 0 {
		return nil
	}
	mask := make([]byte, n)
	share, stretch := rng.Float64(), 1+rng.IntN([]int{1, 10, 2000}[rng.IntN(3)])
	for i := 0; i < n; i += stretch {
		if rng.Float64() < share {
			setAll(mask[i:min(i+stretch, n)], 1)
		}
	}
	return chooseFrom(mask)
}

// validateArray checks the number of nulls, and that no bits are set behind the last.
func validateArray(a arrow.Array) error {
	d := a.Data()
	if len(d.Buffers()) > 0 && d.Buffers()[0] != nil {
		b := d.Buffers()[0].Bytes()
		set := 0
		for _, x := range b {
			for ; x > 0; x &= x - 1 {
				set++
			}
		}
		if len(b) != (d.Len()+7)/8 || set != d.Len()-d.NullN() {
			return fmt.Errorf("%v: a bitmap of %d bytes with %d bits for %d rows with %d nulls", a.DataType(), len(b), set, d.Len(), d.NullN())
		}
	} else if d.NullN() != 0 && a.DataType().ID() != arrow.NULL {
		return fmt.Errorf("%v: nulls without a bitmap", a.DataType())
	}
	for _, k := range d.Children() {
		ka := array.MakeFromData(k)
		err := validateArray(ka)
		ka.Release()
		if err != nil {
			return err
		}
	}
	return nil
}
