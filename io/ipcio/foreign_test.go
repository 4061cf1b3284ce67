package ipcio

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	flatbuffers "github.com/google/flatbuffers/go"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// libraryFile is a file or a stream that arrow-go writes: two batches of these rows.
func libraryFile(t testing.TB, stream bool, s *arrow.Schema, rows string) []byte {
	t.Helper()
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, s, strings.NewReader(rows))
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	var b bytes.Buffer
	var w interface {
		Write(arrow.RecordBatch) error
		Close() error
	} = ipc.NewWriter(&b, ipc.WithSchema(s))
	if !stream {
		b.Reset()
		if w, err = ipc.NewFileWriter(&b, ipc.WithSchema(s)); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := w.Write(rec); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func resolve(t testing.TB, paths ...string) (driver.Table, error) {
	table, err := New(Options{Options: fileset.Options{Paths: paths}}).Resolve(t.Context(), nil)
	if err == nil {
		t.Cleanup(func() { table.Close() })
	}
	return table, err
}

// A column of a type that is not read is in the schema, and an error where it is asked for; the others are read.
func TestUnreadableColumns(t *testing.T) {
	union := []arrow.Field{{Name: "a", Type: arrow.PrimitiveTypes.Int32, Nullable: true}, {Name: "b", Type: arrow.BinaryTypes.String, Nullable: true}}
	for _, c := range []struct {
		typ          arrow.DataType
		row          string
		column, what string
	}{
		{arrow.SparseUnionOf(union, []arrow.UnionTypeCode{0, 5}), `[5, "x"]`, "odd", "a union"},
		{arrow.DenseUnionOf(union, []arrow.UnionTypeCode{0, 5}), `[5, "x"]`, "odd", "a union"},
		{arrow.StructOf(arrow.Field{Name: "in", Type: arrow.ListOf(arrow.DenseUnionOf(union, []arrow.UnionTypeCode{0, 1}))}), `{"in": [[0, 1]]}`, "odd.in.item", "a union"},
		{arrow.ListViewOf(arrow.SparseUnionOf(union, []arrow.UnionTypeCode{0, 1})), `[[0, 1]]`, "odd.item", "a union"},
		{&arrow.Decimal256Type{Precision: 77, Scale: 38}, `null`, "odd", "decimal256(77, 38), with a precision beyond 1 to 76 or a scale beyond 0 to the precision"},
		{&arrow.Decimal128Type{Precision: 5, Scale: -2}, `null`, "odd", "decimal128(5, -2), with a precision beyond 1 to 38 or a scale beyond 0 to the precision"},
	} {
		s := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}, {Name: "odd", Type: c.typ, Nullable: true},
			{Name: "w", Type: arrow.BinaryTypes.String}}, nil)
		for _, stream := range []bool{false, true} {
			path := handWrite(t, fmt.Sprintf("odd-%s-%v.arrow", c.typ.Name(), stream),
				libraryFile(t, stream, s, fmt.Sprintf(`[{"n": 1, "odd": %s, "w": "one"}, {"n": 2, "odd": %s, "w": "two"}]`, c.row, c.row)))
			table, err := resolve(t, path)
			if err != nil {
				t.Errorf("%v: %v", c.typ, err)
				continue
			}
			if got := table.Schema().Field(1).Type.String(); got != "unsupported ("+c.what+")" {
				t.Errorf("%v is %s", c.typ, got)
			}
			if got, err := rowsOfTable(t, table, []string{"w", "n"}); got != "one 1\ntwo 2\none 1\ntwo 2\n" || err != nil {
				t.Errorf("%v: %q, %v", c.typ, got, err)
			}
			for _, columns := range [][]string{nil, {"n", "odd"}} {
				_, err := rowsOfTable(t, table, columns)
				if p := fault.PlaceOf(err); fault.CodeOf(err) != fault.Unsupported || p.File != path || p.Column != c.column ||
					!strings.Contains(err.Error(), "the type is "+c.what+", which cannot be read; leave the column out, or, where the file is made, cast it to ") {
					t.Errorf("%v, columns %v: %v", c.typ, columns, err)
				}
			}
			if got := table.(*data).ReadBy(); got != fmt.Sprintf("native decoder; cannot read column %q: the type is %s", c.column, c.what) {
				t.Error(got)
			}
		}
	}
}

func handTable(fields ...any) func(*flatbuffers.Builder) flatbuffers.UOffsetT {
	return func(b *flatbuffers.Builder) flatbuffers.UOffsetT {
		b.StartObject(len(fields))
		for i, f := range fields {
			switch f := f.(type) {
			case int16:
				b.PrependInt16(f)
				b.Slot(i)
			case int32:
				b.PrependInt32(f)
				b.Slot(i)
			case bool:
				b.PrependBool(f)
				b.Slot(i)
			}
		}
		return b.EndObject()
	}
}

// Unions of the metadata's version 4 have validity, and integers of 128 bits a width: what is behind them is found.
func TestColumnsBehindUnreadableOnes(t *testing.T) {
	for name, c := range map[string]struct {
		odd     handField
		nodes   []int64
		buffers [][]byte
	}{
		"sparse": {handField{typ: kindUnion, table: handTable(int16(0)), children: []handField{handInt32.called("a"), handUTF8.called("b")}},
			[]int64{2, 0, 2, 0, 2, 0}, [][]byte{nil, {0, 1}, nil, le32s(7, 7), nil, le32s(0, 1, 2), []byte("xy")}},
		"dense": {handField{typ: kindUnion, table: handTable(int16(1)), children: []handField{handInt32.called("a"), handUTF8.called("b")}},
			[]int64{2, 0, 1, 0, 1, 0}, [][]byte{nil, {0, 1}, le32s(0, 0), nil, le32s(7), nil, le32s(0, 1), []byte("x")}},
		"int128":  {handInt(128), []int64{2, 0}, [][]byte{nil, make([]byte, 32)}},
		"decimal": {handField{typ: kindDecimal, table: handTable(int32(90), int32(0), int32(512))}, []int64{2, 0}, [][]byte{nil, make([]byte, 128)}},
		"float":   {handField{typ: kindFloat, table: handTable(int16(3))}, []int64{2, 0}, [][]byte{nil, make([]byte, 32)}},
	} {
		batch := handBatch{rows: 2, nodes: append(c.nodes, 2, 0), buffers: append(c.buffers, nil, le32s(4, 5))}
		table, err := resolve(t, handWrite(t, "behind-"+name+".arrow", handFile(false, []handField{c.odd.called("odd"), handInt32.called("n")}, batch)))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if got, err := rowsOfTable(t, table, []string{"n"}); got != "4\n5\n" || err != nil {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
	_, err := resolve(t, handWrite(t, "new.arrow", handFile(false, []handField{handInt32.called("n"), {name: "odd", typ: 99}})))
	if p := fault.PlaceOf(err); fault.CodeOf(err) != fault.Unsupported || p.Column != "odd" || !strings.Contains(p.File, "new.arrow") || !strings.Contains(err.Error(), "number 99") {
		t.Error(err)
	}
}

func TestBigEndian(t *testing.T) {
	file := libraryFile(t, false, arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int64}}, nil).WithEndianness(1-arrow.NewSchema(nil, nil).Endianness()), `[{"n": 1}]`)
	_, err := resolve(t, handWrite(t, "big.arrow", file))
	if fault.CodeOf(err) != fault.Unsupported || !strings.Contains(err.Error(), "big.arrow") || !strings.Contains(err.Error(), "big-endian") {
		t.Error(err)
	}
}

// Feather's version 1 is another format: the error says what to do.
func TestFeather1(t *testing.T) {
	_, err := resolve(t, handWrite(t, "old.feather", []byte("FEA1 and so on, to FEA1")))
	if fault.CodeOf(err) != fault.Unsupported || !strings.Contains(err.Error(), "old.feather") || !strings.Contains(err.Error(), "version 1") || !strings.Contains(err.Error(), "pyarrow.feather") {
		t.Error(err)
	}
}

// Lists of no values are lists.
func TestFixedSizeListOfNothing(t *testing.T) {
	empty := handField{typ: kindFixedSizeList, table: handTable(int32(0)), children: []handField{handUTF8.called("item")}}
	in := handField{name: "s", typ: kindStruct, children: []handField{empty.called("l")}}
	file := handFile(false, []handField{empty.called("l"), in, handInt32.called("n")}, handBatch{rows: 3,
		nodes:   []int64{3, 1, 0, 0, 3, 0, 3, 0, 0, 0, 3, 0},
		buffers: [][]byte{{0b101}, nil, nil, nil, nil, nil, nil, nil, nil, nil, le32s(1, 2, 3)}})
	path := handWrite(t, "nothing.arrow", file)
	if got, err := rowsOf(t, path); got != "[] {\"l\":[]} 1\n(null) {\"l\":[]} 2\n[] {\"l\":[]} 3\n" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// Columns of one name are told apart, and so are fields of one struct.
func TestDuplicateNames(t *testing.T) {
	pair := handField{name: "s", typ: kindStruct, children: []handField{handInt32.called("x"), handInt32.called("x")}}
	ints := func(v int32) [][]byte { return [][]byte{nil, le32s(v, v)} }
	buffers := append(ints(1), ints(2)...)
	buffers = append(append(append(buffers, ints(3)...), nil), append(ints(4), ints(5)...)...)
	file := handFile(false, []handField{handInt32.called("a"), handInt32.called("a"), handInt32.called("a_1"), pair},
		handBatch{rows: 2, nodes: []int64{2, 0, 2, 0, 2, 0, 2, 0, 2, 0, 2, 0}, buffers: buffers})
	table, err := resolve(t, handWrite(t, "twice.arrow", file))
	if err != nil {
		t.Fatal(err)
	}
	if got := table.Schema().String(); !strings.Contains(got, "- a: type=int32") || !strings.Contains(got, "- a_2: type=int32") || !strings.Contains(got, "- a_1: type=int32") {
		t.Error(got)
	}
	const row = "2 3 1 {\"x\":4,\"x_1\":5}\n"
	if got, err := rowsOfTable(t, table, []string{"a_2", "a_1", "a", "s"}); got != row+row || err != nil {
		t.Errorf("%q, %v", got, err)
	}
}

// A column of an extension type is one of its storage, and says still what it is, where the storage holds it as the extension wants.
func TestExtensionTypes(t *testing.T) {
	ext := func(f handField, name, column string) handField {
		f.name, f.meta = column, [][2]string{{"ARROW:extension:name", name}, {"ARROW:extension:metadata", "{}"}, {"mine", "too"}}
		return f
	}
	binary16 := handField{typ: kindFixedBinary, table: handTable(int32(16))}
	tensor := handField{typ: kindFixedSizeList, table: handTable(int32(2)), children: []handField{handInt32.called("item")}}
	coded := handUTF8
	coded.dict = 3
	file := handFile(false, []handField{
		ext(handUTF8, "arrow.json", "json"), ext(binary16, "arrow.uuid", "uuid"), ext(handInt(8), "arrow.bool8", "bool8"),
		ext(handInt32, "arrow.opaque", "opaque"), ext(tensor, "arrow.fixed_shape_tensor", "tensor"), ext(handInt32, "my.own", "own"),
		ext(handInt32, "arrow.json", "wrong"), ext(coded, "my.own", "coded"),
		{name: "in", typ: kindStruct, children: []handField{ext(handInt(8), "arrow.bool8", "bool8"), ext(handUTF8, "arrow.json", "json")}},
	}, handBatch{dict: 3, rows: 1, nodes: []int64{1, 0}, buffers: [][]byte{nil, le32s(0, 1), []byte("x")}}, handBatch{rows: 2,
		nodes: []int64{2, 0, 2, 0, 2, 1, 2, 0, 2, 0, 4, 0, 2, 0, 2, 0, 2, 0, 2, 0, 2, 0, 2, 0},
		buffers: [][]byte{nil, le32s(0, 2, 4), []byte("{}[]"), nil, []byte("0123456789abcdef0123456789abcdef"), {0b01}, {2, 1}, nil, le32s(1, 2),
			nil, nil, le32s(1, 2, 3, 4), nil, le32s(5, 6), nil, le32s(7, 8), nil, {0, 0}, nil, nil, {0, 255}, nil, le32s(0, 2, 4), []byte("{}[]")}})
	table, err := resolve(t, handWrite(t, "extensions.arrow", file))
	if err != nil {
		t.Fatal(err)
	}
	const uuid = "MDEyMzQ1Njc4OWFiY2RlZg=="
	want := "{} " + uuid + " true 1 [1,2] 5 7 x {\"bool8\":false,\"json\":\"{}\"}\n[] " + uuid + " (null) 2 [3,4] 6 8 x {\"bool8\":true,\"json\":\"[]\"}\n"
	if got, err := rowsOfTable(t, table, nil); got != want || err != nil {
		t.Errorf("%v\n%s\nwant\n%s", err, got, want)
	}
	kept := ""
	fields := table.Schema().Fields()
	for _, f := range append(fields, fields[8].Type.(*arrow.StructType).Fields()...) {
		name, _ := f.Metadata.GetValue(driver.ExtensionName)
		meta, _ := f.Metadata.GetValue(driver.ExtensionMetadata)
		mine, _ := f.Metadata.GetValue("mine")
		if f.Metadata.FindKey("ARROW:extension:name") >= 0 || f.Metadata.FindKey("ARROW:extension:metadata") >= 0 {
			t.Errorf("%s has Arrow's keys", f.Name)
		}
		kept += fmt.Sprintf("%s: %v %s%s %s\n", f.Name, f.Type, name, meta, mine)
	}
	if want := `json: utf8 arrow.json{} too
uuid: fixed_size_binary[16] arrow.uuid{} too
bool8: bool  too
opaque: int32 arrow.opaque{} too
tensor: fixed_size_list<item: int32, nullable>[2] arrow.fixed_shape_tensor{} too
own: int32 my.own{} too
wrong: int32  too
coded: utf8  too
in: struct<bool8: bool nullable, json: utf8 nullable>  
bool8: bool  too
json: utf8 arrow.json{} too
`; kept != want {
		t.Errorf("%s\nwant\n%s", kept, want)
	}
}

// What says of which extension type a column is, is in files under Arrow's keys, and in memory under ours.
func TestExtensionsAreWritten(t *testing.T) {
	md := arrow.NewMetadata([]string{driver.ExtensionName, driver.ExtensionMetadata, "mine"}, []string{"arrow.opaque", `{"type_name": "t", "vendor_name": "v"}`, "too"})
	field := arrow.Field{Name: "o", Type: arrow.PrimitiveTypes.Int32, Nullable: true, Metadata: md}
	s := arrow.NewSchema([]arrow.Field{field, {Name: "s", Type: arrow.StructOf(field), Nullable: true}, {Name: "l", Type: arrow.ListOfField(field), Nullable: true}}, nil)
	for _, layout := range []string{"file", "stream"} {
		b, err := written(t, layout, s, `[{"o": 1, "s": {"o": 2}, "l": [3]}]`)
		if err != nil {
			t.Fatal(err)
		}
		if got := bytes.Count(b, []byte("ARROW:extension:name")); got < 3 || bytes.Contains(b, []byte("penstock.extension")) {
			t.Errorf("%s: %d of Arrow's keys", layout, got)
		}
		table, err := resolve(t, handWrite(t, "extensions-"+layout+".arrow", b))
		if err != nil {
			t.Fatal(err)
		}
		if !table.Schema().Equal(s) {
			t.Errorf("%s: %v, want %v", layout, table.Schema(), s)
		}
	}
	// A file whose values are plain: those of both are no more than that.
	plain := arrow.NewSchema([]arrow.Field{{Name: "o", Type: arrow.PrimitiveTypes.Int32, Nullable: true}}, nil)
	one, err := written(t, "file", arrow.NewSchema([]arrow.Field{field}, nil), `[{"o": 1}]`)
	if err != nil {
		t.Fatal(err)
	}
	other, err := written(t, "file", plain, `[{"o": 1}]`)
	if err != nil {
		t.Fatal(err)
	}
	for _, second := range [][]byte{one, other} {
		table, err := resolve(t, handWrite(t, "one.arrow", one), handWrite(t, "two.arrow", second))
		if err != nil {
			t.Fatal(err)
		}
		if kept := table.Schema().Field(0).Metadata.FindKey(driver.ExtensionName) >= 0; kept != bytes.Equal(one, second) {
			t.Error(table.Schema())
		}
	}
}

// foreign are files that arrow-go does not write: of Arrow 0.17, and of what it has no types for.
func foreign(t testing.TB, stream bool) [][]byte {
	empty := handField{name: "l", typ: kindFixedSizeList, table: handTable(int32(0)), children: []handField{handUTF8.called("item")}}
	union := handField{name: "u", typ: kindUnion, table: handTable(int16(1)), children: []handField{handInt32.called("a"), handUTF8.called("b")}}
	bool8 := handInt(8).called("b")
	bool8.meta = [][2]string{{"ARROW:extension:name", "arrow.bool8"}}
	odd := handFile(stream, []handField{empty, union, bool8}, handBatch{rows: 2, nodes: []int64{2, 0, 0, 0, 2, 0, 1, 0, 1, 0, 2, 1},
		buffers: [][]byte{nil, nil, nil, nil, nil, {0, 1}, le32s(0, 0), nil, le32s(7), nil, le32s(0, 1), []byte("x"), {0b10}, {0, 7}}})
	ree := handField{name: "r", typ: kindRunEndEncoded, children: []handField{handInt(32).called("run_ends"), handUTF8.called("values")}}
	views := handField{name: "v", typ: kindListView, children: []handField{handInt(8).called("item")}}
	runs := handFile(stream, []handField{ree, views}, handBatch{rows: 3, nodes: []int64{3, 0, 2, 0, 2, 0, 3, 1, 2, 0},
		buffers: [][]byte{nil, le32s(2, 3), nil, le32s(0, 1, 2), []byte("ab"), {0b101}, le32s(1, 0, 0), le32s(1, 0, 2), nil, {7, 8}}})
	return [][]byte{earlyFile(t, stream, "zstd"), odd, runs}
}

// JSON that is a dictionary is JSON in files, which have its values, and text in streams, as others
// refuse streams in which it says to be JSON.
func TestCodedJSONIsWritten(t *testing.T) {
	coded := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}
	md := arrow.NewMetadata([]string{driver.ExtensionName, driver.ExtensionMetadata}, []string{"arrow.json", ""})
	s := arrow.NewSchema([]arrow.Field{{Name: "j", Type: coded, Nullable: true, Metadata: md}}, nil)
	for layout, want := range map[string]string{"file": "arrow.json", "stream": ""} {
		file, err := written(t, layout, s, `[{"j": "{}"}]`)
		if err != nil {
			t.Fatal(err)
		}
		table, err := resolve(t, handWrite(t, "coded-"+layout+".arrow", file))
		if err != nil {
			t.Fatal(err)
		}
		if got, _ := table.Schema().Field(0).Metadata.GetValue(driver.ExtensionName); got != want {
			t.Errorf("%s: %q, want %q", layout, got, want)
		}
	}
}
