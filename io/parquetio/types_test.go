package parquetio

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"github.com/penstock-data/penstock/internal/fault"
	arrays "github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

func mustWrite(t testing.TB, path string, b []byte) {
	t.Helper()
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// allTypes is every type that Arrow has in Go, in forms that ought to be written and in forms that cannot be.
func allTypes() []arrow.DataType {
	types := []arrow.DataType{
		arrow.Null, arrow.FixedWidthTypes.Boolean,
		arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Int16, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64,
		arrow.PrimitiveTypes.Uint8, arrow.PrimitiveTypes.Uint16, arrow.PrimitiveTypes.Uint32, arrow.PrimitiveTypes.Uint64,
		arrow.FixedWidthTypes.Float16, arrow.PrimitiveTypes.Float32, arrow.PrimitiveTypes.Float64,
		arrow.BinaryTypes.String, arrow.BinaryTypes.LargeString, arrow.BinaryTypes.StringView,
		arrow.BinaryTypes.Binary, arrow.BinaryTypes.LargeBinary, arrow.BinaryTypes.BinaryView,
		&arrow.FixedSizeBinaryType{ByteWidth: 0}, &arrow.FixedSizeBinaryType{ByteWidth: 3},
		arrow.FixedWidthTypes.Date32, arrow.FixedWidthTypes.Date64,
		arrow.FixedWidthTypes.Time32s, arrow.FixedWidthTypes.Time32ms, arrow.FixedWidthTypes.Time64us, arrow.FixedWidthTypes.Time64ns,
		arrow.FixedWidthTypes.MonthInterval, arrow.FixedWidthTypes.DayTimeInterval, arrow.FixedWidthTypes.MonthDayNanoInterval,
		&arrow.Decimal32Type{Precision: 9, Scale: 2}, &arrow.Decimal64Type{Precision: 18, Scale: 2},
		extensions.NewUUIDType(), extensions.NewBool8Type(),
		arrow.StructOf(), arrow.StructOf(arrow.Field{Name: "a", Type: arrow.BinaryTypes.String, Nullable: true}),
		driver.NewUnreadable("", "x", "int128", "int64"),
	}
	for _, u := range []arrow.TimeUnit{arrow.Second, arrow.Millisecond, arrow.Microsecond, arrow.Nanosecond} {
		types = append(types, &arrow.TimestampType{Unit: u}, &arrow.TimestampType{Unit: u, TimeZone: "Europe/Berlin"}, &arrow.DurationType{Unit: u})
	}
	for _, p := range []int32{0, 1, 9, 18, 38, 39, 76, 77} {
		for _, s := range []int32{-1, 0, p, p + 1} {
			types = append(types, &arrow.Decimal128Type{Precision: p, Scale: s}, &arrow.Decimal256Type{Precision: p, Scale: s})
		}
	}
	for _, t := range slices.Clone(types[:30]) {
		types = append(types, arrow.ListOf(t), arrow.LargeListOf(t), arrow.FixedSizeListOf(2, t), arrow.ListViewOf(t),
			arrow.StructOf(arrow.Field{Name: "a", Type: t, Nullable: true}), arrow.MapOf(arrow.BinaryTypes.String, t), arrow.MapOf(t, arrow.PrimitiveTypes.Int8),
			arrow.RunEndEncodedOf(arrow.PrimitiveTypes.Int32, t),
			arrow.DenseUnionOf([]arrow.Field{{Name: "a", Type: t}}, []arrow.UnionTypeCode{0}))
		if t.ID() != arrow.NULL && !arrow.IsNested(t.ID()) {
			types = append(types, &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: t})
		}
	}
	return types
}

// TestEveryTypeIsWrittenOrRefused: what Check lets pass is written and comes back with its values; what cannot be written is refused by
// Check, in words about the column.
func TestEveryTypeIsWrittenOrRefused(t *testing.T) {
	enc, err := NewEncoding(nil)
	if err != nil {
		t.Fatal(err)
	}
	wrote, refused := 0, 0
	for _, typ := range allTypes() {
		for _, nullable := range []bool{true, false} {
			s := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}, {Name: "x", Type: typ, Nullable: nullable}}, nil)
			where := fmt.Sprintf("%v nullable=%v", typ, nullable)
			err := check(enc, s)
			if err != nil {
				refused++
				if c := fault.CodeOf(err); c != fault.Invalid && c != fault.Unsupported || insideText(err) != "" || fault.PlaceOf(err).Column != "x" {
					t.Errorf("%s: %v: %v", where, c, err)
				}
				continue
			}
			wrote++
			if err := roundTrip(t, enc, s); err != nil {
				t.Errorf("%s: %v", where, err)
			}
		}
	}
	if wrote < 100 || refused < 100 {
		t.Errorf("%d were written, %d refused", wrote, refused)
	}
}

// check is Check, a panic being an error.
func check(enc *Encoding, s *arrow.Schema) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	return enc.Check(s)
}

// empties are n values of a field: what a builder appends for none, and nulls.
func empties(f arrow.Field, n int) arrow.Array {
	if d, ok := f.Type.(*arrow.DictionaryType); ok {
		indexes, values := empties(arrow.Field{Type: d.IndexType, Nullable: f.Nullable}, n), empties(arrow.Field{Type: d.ValueType}, 1)
		defer indexes.Release()
		defer values.Release()
		return array.NewDictionaryArray(d, indexes, values)
	}
	b := array.NewBuilder(memory.DefaultAllocator, f.Type)
	defer b.Release()
	for i := range n {
		if f.Nullable && i%3 == 0 {
			b.AppendNull()
		} else {
			b.AppendEmptyValue()
		}
	}
	return b.NewArray()
}

func roundTrip(t *testing.T, enc *Encoding, s *arrow.Schema) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %v", p)
		}
	}()
	const rows = 20
	numbers := empties(arrow.Field{Type: arrow.PrimitiveTypes.Int64}, rows)
	defer numbers.Release()
	values := empties(s.Field(1), rows)
	defer values.Release()
	rec := array.NewRecordBatch(s, []arrow.Array{numbers, values}, rows)
	defer rec.Release()
	var out bytes.Buffer
	alloc := memtest.New(t)
	e, err := enc.NewEncoder(&out, s, alloc)
	if err != nil {
		return err
	}
	if err := e.Write(rec); err != nil {
		e.Abort()
		return err
	}
	if err := e.Close(); err != nil {
		return err
	}
	path := filepath.Join(t.TempDir(), "x.parquet")
	mustWrite(t, path, out.Bytes())
	tab, err := open(t, nil, path)
	if err != nil {
		return err
	}
	got := allOfSplit(t, tab, 0, driver.ScanOptions{Alloc: memory.DefaultAllocator})
	defer got.Release()
	for c := range 2 {
		want := rec.Column(c)
		if d, ok := want.(*array.Dictionary); ok {
			if want, err = arrays.Values(memory.DefaultAllocator, d); err != nil {
				return err
			}
			defer want.Release()
		}
		a, x, y := got.Column(c), text(got.Column(c)), text(want)
		for i := range y {
			if a.DataType().ID() == arrow.BOOL && y[i] == "0" { // of bool8
				y[i] = "false"
			}
		}
		if a.Len() != rows || a.NullN() != want.NullN() || !slices.Equal(x, y) {
			return fmt.Errorf("%v came back as %v: %.200v, want %.200v", s.Field(c).Type, a.DataType(), x, y)
		}
	}
	return nil
}

// A date64 with a part of a day, wherever it is, is an error that says so; one behind a slice or a null is none.
func TestPartsOfDays(t *testing.T) {
	for _, typ := range []arrow.DataType{arrow.FixedWidthTypes.Date64, arrow.ListOf(arrow.FixedWidthTypes.Date64),
		arrow.StructOf(arrow.Field{Name: "a", Type: arrow.FixedWidthTypes.Date64, Nullable: true})} {
		s := arrow.NewSchema([]arrow.Field{{Name: "x", Type: typ, Nullable: true}}, nil)
		rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, s, strings.NewReader(map[arrow.Type]string{
			arrow.DATE64: `[{"x": 86400000}, {"x": -86400000}, {"x": 1}]`, arrow.LIST: `[{"x": [86400000]}, {"x": []}, {"x": [0, -1]}]`,
			arrow.STRUCT: `[{"x": {"a": 86400000}}, {"x": null}, {"x": {"a": 3600000}}]`}[typ.ID()]))
		if err != nil {
			t.Fatal(err)
		}
		defer rec.Release()
		for rows, want := range map[int64]fault.Code{3: fault.RowError, 2: fault.Unknown} {
			enc, err := NewEncoding(nil)
			if err != nil {
				t.Fatal(err)
			}
			e, err := enc.NewEncoder(io.Discard, s, memtest.New(t))
			if err != nil {
				t.Fatal(err)
			}
			part := rec.NewSlice(0, rows)
			err = e.Write(part)
			part.Release()
			if err == nil {
				err = e.Close()
			} else {
				e.Abort()
			}
			if fault.CodeOf(err) != want || want != fault.Unknown && (fault.PlaceOf(err).Column != "x" || !strings.Contains(err.Error(), "part of a day")) {
				t.Errorf("%v, %d rows: %v", typ, rows, err)
			}
		}
	}
}

// texts of a column, and what its field says of its extension type.
func column0(t *testing.T, tab driver.Table, name string) (texts []string, f arrow.Field) {
	t.Helper()
	i := tab.Schema().FieldIndices(name)
	if len(i) != 1 {
		t.Fatalf("%q: %v", name, tab.Schema())
	}
	for k := range tab.Splits() {
		rec := allOfSplit(t, tab, k, driver.ScanOptions{Alloc: memory.DefaultAllocator, Columns: []string{name}})
		texts = append(texts, text(rec.Column(0))...)
		rec.Release()
	}
	return texts, tab.Schema().Field(i[0])
}

// A decimal of more digits than Arrow has is an error where it is read, and no other column's.
func TestWideDecimal(t *testing.T) {
	wide := handColumn{name: "d", physical: pBytes, pages: [][]*string{strs("\x01", "\x02")},
		kind: []thriftField{i32At(6, 5), i32At(7, 38), i32At(8, 77), structAt(10, structAt(5, i32At(1, 38), i32At(2, 77)))}}
	f := handFile{columns: []handColumn{{name: "a", physical: pInt32, pages: [][]*string{le32(7, 8)}}, wide}}
	tab := mustOpen(t, nil, f.write(t))
	if got, _ := column0(t, tab, "a"); !slices.Equal(got, []string{"7", "8"}) {
		t.Error(got)
	}
	_, err := tab.Open(t.Context(), 0, &driver.ScanOptions{})
	if fault.CodeOf(err) != fault.Unsupported || !strings.Contains(err.Error(), `column "d": the type is decimal(77, 38)`) {
		t.Errorf("%v: %v", fault.CodeOf(err), err)
	}
}

// Columns of one name are told apart as those of CSV.
func TestColumnsOfOneName(t *testing.T) {
	f := handFile{columns: []handColumn{{name: "a", physical: pInt32, pages: [][]*string{le32(1)}}, {name: "a_1", physical: pInt32, pages: [][]*string{le32(2)}},
		{name: "a", physical: pInt32, pages: [][]*string{le32(3)}}}}
	path := f.write(t)
	for name, want := range map[string]string{"a": "1", "a_1": "2", "a_2": "3"} {
		tab := mustOpen(t, nil, path)
		if got, _ := column0(t, tab, name); !slices.Equal(got, []string{want}) {
			t.Errorf("%s: %v", name, got)
		}
		for v := range int64(5) {
			rows := int64(0)
			o := driver.ScanOptions{Predicate: driver.Predicate{{Column: name, Op: driver.Eq, Values: []any{v}}}}
			if err := readAll(t.Context(), tab, 0, &o, func(b driver.Batch) { rows += b.Record.NumRows() }); err != nil || rows == 0 && fmt.Sprint(v) == want {
				t.Errorf("%s == %d: %d rows, %v", name, v, rows, err)
			}
		}
	}
}

// JSON, enumerations and UUIDs by Parquet's own types.
func TestParquetsOwnExtensions(t *testing.T) {
	uuid := "0123456789abcdef"
	f := handFile{columns: []handColumn{
		{name: "j", physical: pBytes, kind: []thriftField{i32At(6, 19)}, pages: [][]*string{strs(`{"a": 1}`)}},
		{name: "e", physical: pBytes, kind: []thriftField{i32At(6, 4)}, pages: [][]*string{strs("red")}},
		{name: "u", physical: pFixed, width: 16, kind: []thriftField{structAt(10, structAt(14))}, pages: [][]*string{{&uuid}}}}}
	tab := mustOpen(t, nil, f.write(t))
	for name, want := range map[string]struct {
		text, ext string
		typ       arrow.DataType
	}{"j": {`{"a": 1}`, "arrow.json", arrow.BinaryTypes.String}, "e": {"red", "", arrow.BinaryTypes.String},
		"u": {uuid, "arrow.uuid", &arrow.FixedSizeBinaryType{ByteWidth: 16}}} {
		got, f := column0(t, tab, name)
		ext, _ := f.Metadata.GetValue(driver.ExtensionName)
		if !slices.Equal(got, []string{fmt.Sprintf("%x", want.text)}) || ext != want.ext || !arrow.TypeEqual(f.Type, want.typ) {
			t.Errorf("%s: %v, %v", name, got, f)
		}
	}
}

// What a stored Arrow schema says of extension types is kept, and written again; booleans of a byte become booleans.
func TestStoredExtensions(t *testing.T) {
	field := func(name, ext string, typ arrow.DataType) arrow.Field {
		return arrow.Field{Name: name, Type: typ, Nullable: true, Metadata: extension(ext, "meta of "+name)}
	}
	s := arrow.NewSchema([]arrow.Field{
		field("j", "arrow.json", arrow.BinaryTypes.String), field("no", "arrow.json", arrow.BinaryTypes.Binary),
		field("u", "arrow.uuid", &arrow.FixedSizeBinaryType{ByteWidth: 16}), field("b", "arrow.bool8", arrow.PrimitiveTypes.Int8),
		field("o", "arrow.opaque", arrow.BinaryTypes.Binary), field("t", "arrow.fixed_shape_tensor", arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Float32)),
		field("x", "mine.own", arrow.PrimitiveTypes.Int64)}, nil)
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, s, strings.NewReader(`[{"j": "1", "no": "AAA=", "u": "MDEyMzQ1Njc4OWFiY2RlZg==", "b": 3, "o": "AAE=", "t": [1, 2], "x": 5},
		{"j": null, "no": null, "u": null, "b": 0, "o": null, "t": null, "x": null}, {"b": null}]`))
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	path := filepath.Join(t.TempDir(), "a.parquet")
	writeFile(t, path, nil, memtest.New(t), rec)
	for try := range 2 {
		tab := mustOpen(t, nil, path)
		for _, f := range s.Fields() {
			_, got := column0(t, tab, f.Name)
			want := f
			switch f.Name {
			case "no":
				want.Metadata = arrow.Metadata{}
			case "b":
				want.Type, want.Metadata = arrow.FixedWidthTypes.Boolean, arrow.Metadata{}
			}
			if !got.Equal(want) {
				t.Errorf("%d: %v, want %v", try, got, want)
			}
		}
		if got, _ := column0(t, tab, "b"); !slices.Equal(got, []string{"true", "false", "null"}) {
			t.Errorf("%d: %v", try, got)
		}
		got := allOfSplit(t, tab, 0, driver.ScanOptions{Alloc: memory.DefaultAllocator})
		got = array.NewRecordBatch(tab.Schema(), got.Columns(), got.NumRows())
		path = filepath.Join(t.TempDir(), "b.parquet") // again, from what was read
		writeFile(t, path, nil, memtest.New(t), got)
	}
}

// Booleans of a byte each are booleans also in what is nested, beside nulls.
func TestNestedBool8(t *testing.T) {
	b := arrow.Field{Name: "element", Type: arrow.PrimitiveTypes.Int8, Nullable: true, Metadata: extension("arrow.bool8", "")}
	in := arrow.StructOf(arrow.Field{Name: "b", Type: b.Type, Nullable: true, Metadata: b.Metadata}, arrow.Field{Name: "n", Type: b.Type, Nullable: true})
	s := arrow.NewSchema([]arrow.Field{
		{Name: "s", Type: in, Nullable: true}, {Name: "l", Type: arrow.ListOfField(b), Nullable: true},
		{Name: "f", Type: arrow.FixedSizeListOfField(2, b), Nullable: true},
		{Name: "m", Type: arrow.MapOfFields(arrow.Field{Name: "key", Type: arrow.BinaryTypes.String}, arrow.Field{Name: "value", Type: b.Type, Nullable: true, Metadata: b.Metadata}), Nullable: true},
		{Name: "ls", Type: arrow.ListOf(in), Nullable: true}}, nil)
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, s, strings.NewReader(`[
		{"s": {"b": 3, "n": 3}, "l": [0, null, -1], "f": [1, 0], "m": [{"key": "x", "value": 2}], "ls": [{"b": 0, "n": 0}, null, {"b": null, "n": 1}]},
		{"s": null, "l": [], "f": null, "m": null, "ls": null}, {"s": {"b": null}, "l": null, "f": [null, 5], "m": [], "ls": []}]`))
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	path := filepath.Join(t.TempDir(), "a.parquet")
	writeFile(t, path, nil, memtest.New(t), rec)
	tab := mustOpen(t, nil, path)
	got := allOfSplit(t, tab, 0, driver.ScanOptions{Alloc: memory.DefaultAllocator})
	text, err := got.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	want := `[{"f":[true,false],"l":[false,null,true],"ls":[{"b":false,"n":0},null,{"b":null,"n":1}],"m":[{"key":"x","value":true}],"s":{"b":true,"n":3}}
,{"f":null,"l":[],"ls":null,"m":null,"s":null}
,{"f":[null,true],"l":null,"ls":[],"m":[],"s":{"b":null,"n":null}}
]`
	if string(text) != want {
		t.Errorf("%s, want %s", text, want)
	}
	if marked(arrow.StructOf(tab.Schema().Fields()...)) {
		t.Errorf("%v", tab.Schema())
	}
}

// A filter on booleans of a byte each does not take the statistics of the bytes for theirs.
func TestFilterOnBool8(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{{Name: "b", Type: arrow.PrimitiveTypes.Int8, Metadata: extension("arrow.bool8", "")}}, nil)
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, s, strings.NewReader(`[{"b": 2}, {"b": 3}]`))
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	path := filepath.Join(t.TempDir(), "a.parquet")
	writeFile(t, path, nil, memtest.New(t), rec)
	rows := int64(0)
	o := driver.ScanOptions{Predicate: driver.Predicate{{Column: "b", Op: driver.Eq, Values: []any{true}}}}
	if err := readAll(t.Context(), mustOpen(t, nil, path), 0, &o, func(b driver.Batch) { rows += b.Record.NumRows() }); err != nil || rows != 2 {
		t.Errorf("%d rows, %v", rows, err)
	}
}

// A VARIANT is read as it lies in the file, also shredded, in optional groups and with metadata that may be null.
func TestVariants(t *testing.T) {
	leaf := func(name string, r parquet.Repetition, p parquet.Type) schema.Node {
		return schema.MustPrimitive(schema.NewPrimitiveNode(name, r, p, -1, -1))
	}
	group := func(name string, r parquet.Repetition, l schema.LogicalType, kids ...schema.Node) *schema.GroupNode {
		if l.IsNone() {
			return schema.MustGroup(schema.NewGroupNode(name, r, kids, -1))
		}
		return schema.MustGroup(schema.NewGroupNodeLogical(name, r, kids, l, -1))
	}
	opt, req := parquet.Repetitions.Optional, parquet.Repetitions.Required
	v := group("v", opt, schema.VariantLogicalType{}, leaf("metadata", opt, parquet.Types.ByteArray), leaf("value", opt, parquet.Types.ByteArray),
		group("typed_value", opt, schema.NoLogicalType{}, group("a", opt, schema.NoLogicalType{}, leaf("value", opt, parquet.Types.ByteArray), leaf("typed_value", opt, parquet.Types.Int64))))
	one := group("w", req, schema.VariantLogicalType{}, leaf("metadata", req, parquet.Types.ByteArray))
	var out bytes.Buffer
	w := file.NewParquetWriter(&out, group("schema", req, schema.NoLogicalType{}, v, one))
	rg, err := w.AppendRowGroupChecked()
	if err != nil {
		t.Fatal(err)
	}
	for i, levels := range [][]int16{{2, 0}, {2, 0}, {4, 0}, {4, 0}, nil} {
		c, err := rg.NextColumn()
		if err != nil {
			t.Fatal(err)
		}
		switch c := c.(type) {
		case *file.ByteArrayColumnChunkWriter:
			vs := []parquet.ByteArray{[]byte("m"), []byte("n")}
			if levels != nil {
				vs = vs[:map[int]int{0: 1, 1: 1, 2: 1}[i]]
			}
			_, err = c.WriteBatch(vs, levels, nil)
		case *file.Int64ColumnChunkWriter:
			_, err = c.WriteBatch([]int64{42}, levels, nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "v.parquet")
	mustWrite(t, path, out.Bytes())
	tab := mustOpen(t, nil, path)
	got, f := column0(t, tab, "v")
	if f.Type.String() != "struct<metadata: binary nullable, value: binary nullable, typed_value: struct<a: struct<value: binary nullable, typed_value: int64 nullable> nullable> nullable>" || len(got) != 2 || !strings.Contains(got[0], "42") || got[1] != "null" {
		t.Errorf("%v: %v", f, got)
	}
	if got, _ := column0(t, tab, "w"); len(got) != 2 {
		t.Error(got)
	}
}

// A list of the fixed size 0, which the stored Arrow schema of other writers has, is a list.
func TestListsOfNone(t *testing.T) {
	tab := mustOpen(t, nil, filepath.Join("testdata", "odd", "no_width.parquet"))
	got, f := column0(t, tab, "x")
	if f.Type.ID() != arrow.LIST || len(got) != 3 {
		t.Errorf("%v: %v", f, got)
	}
}
