package ipcio

import (
	"bytes"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	canonical "github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

// written is a file of these batches, each in rows as JSON.
func written(t *testing.T, layout string, s *arrow.Schema, batches ...string) ([]byte, error) {
	t.Helper()
	e, err := NewEncoding(&EncodingOptions{Layout: layout})
	if err != nil {
		t.Fatal(err)
	}
	if err := e.Check(s); err != nil {
		return nil, err
	}
	alloc := memtest.New(t)
	var b bytes.Buffer
	w, err := e.NewEncoder(&b, s, alloc)
	if err != nil {
		t.Fatal(err)
	}
	for _, rows := range batches {
		rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, s, strings.NewReader(rows))
		if err != nil {
			t.Fatal(err)
		}
		defer rec.Release()
		if err := w.Write(rec); err != nil {
			w.Abort()
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	alloc.AssertSize(t, 0)
	return b.Bytes(), nil
}

// Every type of Arrow is written so that it is read again with its values, or refused before the first row.
func TestEveryType(t *testing.T) {
	pair := []arrow.Field{{Name: "a", Type: arrow.PrimitiveTypes.Int32, Nullable: true}, {Name: "b", Type: arrow.BinaryTypes.String, Nullable: true}}
	coded := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}
	types := []struct {
		t      arrow.DataType
		values [3]string // JSON
		want   string    // of the first two values, where it is not how they are written; "": refused
	}{
		{arrow.Null, [3]string{`null`, `null`, `null`}, "(null) (null)"},
		{arrow.FixedWidthTypes.Boolean, [3]string{`true`, `false`, `null`}, "true false"},
		{arrow.PrimitiveTypes.Int8, [3]string{`-128`, `127`, `null`}, "-128 127"},
		{arrow.PrimitiveTypes.Uint16, [3]string{`0`, `65535`, `null`}, "0 65535"},
		{arrow.PrimitiveTypes.Uint64, [3]string{`0`, `18446744073709551615`, `null`}, "0 18446744073709551615"},
		{arrow.FixedWidthTypes.Float16, [3]string{`1.5`, `-2`, `null`}, "1.5 -2"},
		{arrow.PrimitiveTypes.Float32, [3]string{`1.5`, `-2`, `null`}, "1.5 -2"},
		{arrow.PrimitiveTypes.Float64, [3]string{`1.5`, `-2`, `null`}, "1.5 -2"},
		{arrow.BinaryTypes.String, [3]string{`"x"`, `""`, `null`}, "x "},
		{arrow.BinaryTypes.LargeString, [3]string{`"x"`, `""`, `null`}, "x "},
		{arrow.BinaryTypes.StringView, [3]string{`"x"`, `"more than twelve bytes"`, `null`}, "x more than twelve bytes"},
		{arrow.BinaryTypes.Binary, [3]string{`"/w=="`, `""`, `null`}, "/w== "},
		{arrow.BinaryTypes.LargeBinary, [3]string{`"/w=="`, `""`, `null`}, "/w== "},
		{arrow.BinaryTypes.BinaryView, [3]string{`"/w=="`, `""`, `null`}, "/w== "},
		{&arrow.FixedSizeBinaryType{ByteWidth: 1}, [3]string{`"/w=="`, `"AA=="`, `null`}, "/w== AA=="},
		{&arrow.FixedSizeBinaryType{}, [3]string{`""`, `""`, `null`}, " "},
		{arrow.FixedWidthTypes.Date32, [3]string{`"2024-02-29"`, `"1969-12-31"`, `null`}, "2024-02-29 1969-12-31"},
		{arrow.FixedWidthTypes.Date64, [3]string{`"2024-02-29"`, `"1969-12-31"`, `null`}, "2024-02-29 1969-12-31"},
		{arrow.FixedWidthTypes.Time32ms, [3]string{`"00:00:00.001"`, `"23:59:59.999"`, `null`}, "00:00:00.001 23:59:59.999"},
		{arrow.FixedWidthTypes.Time64ns, [3]string{`"00:00:00.000000001"`, `"23:59:59.999999999"`, `null`}, "00:00:00.000000001 23:59:59.999999999"},
		{&arrow.TimestampType{Unit: arrow.Second}, [3]string{`"2024-02-29 01:02:03"`, `"0001-01-01 00:00:00"`, `null`}, "2024-02-29T01:02:03 0001-01-01T00:00:00"},
		{&arrow.TimestampType{Unit: arrow.Nanosecond, TimeZone: "Europe/Berlin"}, [3]string{`"2024-02-29 01:02:03Z"`, `"1969-12-31 23:59:59Z"`, `null`}, "2024-02-29T02:02:03+01:00 1970-01-01T00:59:59+01:00"},
		{arrow.FixedWidthTypes.Duration_us, [3]string{`"1us"`, `"-5us"`, `null`}, "1us -5us"},
		{arrow.FixedWidthTypes.MonthInterval, [3]string{`{"months": 1}`, `{"months": -2}`, `null`}, "1 -2"},
		{arrow.FixedWidthTypes.DayTimeInterval, [3]string{`{"days": 1, "milliseconds": 2}`, `{"days": 0, "milliseconds": 0}`, `null`}, `{"days":1,"milliseconds":2} {"days":0,"milliseconds":0}`},
		{arrow.FixedWidthTypes.MonthDayNanoInterval, [3]string{`{"months": 1, "days": 2, "nanoseconds": 3}`, `{"months": 0, "days": 0, "nanoseconds": 0}`, `null`}, `{"months":1,"days":2,"nanoseconds":3} {"months":0,"days":0,"nanoseconds":0}`},
		{&arrow.Decimal32Type{Precision: 9, Scale: 2}, [3]string{`"9999999.99"`, `"-1.5"`, `null`}, "9999999.99 -1.5"},
		{&arrow.Decimal64Type{Precision: 18, Scale: 2}, [3]string{`"1.25"`, `"-1.5"`, `null`}, "1.25 -1.5"},
		{&arrow.Decimal128Type{Precision: 38, Scale: 38}, [3]string{`"0.5"`, `"-0.25"`, `null`}, "0.5 -0.25"},
		{&arrow.Decimal256Type{Precision: 76, Scale: 0}, [3]string{`"5"`, `"-7"`, `null`}, "5 -7"},
		{&arrow.Decimal128Type{Precision: 39, Scale: 0}, [3]string{}, ""},
		{&arrow.Decimal256Type{Precision: 77, Scale: 38}, [3]string{}, ""},
		{&arrow.Decimal128Type{Precision: 5, Scale: -1}, [3]string{}, ""},
		{&arrow.Decimal128Type{Precision: 5, Scale: 6}, [3]string{}, ""},
		{arrow.ListOf(arrow.PrimitiveTypes.Int32), [3]string{`[1, null]`, `[]`, `null`}, "[1,null] []"},
		{arrow.LargeListOf(arrow.BinaryTypes.String), [3]string{`["x"]`, `[]`, `null`}, `["x"] []`},
		{arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Int32), [3]string{`[1, 2]`, `[3, null]`, `null`}, "[1,2] [3,null]"},
		{arrow.StructOf(pair...), [3]string{`{"a": 1, "b": "x"}`, `{"a": null, "b": "y"}`, `null`}, `{"a":1,"b":"x"} {"a":null,"b":"y"}`},
		{arrow.StructOf(), [3]string{`{}`, `{}`, `null`}, `{} {}`},
		{arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int32), [3]string{`[{"key": "k", "value": 1}]`, `[]`, `null`}, `[{"key":"k","value":1}] []`},
		{coded, [3]string{`"x"`, `"y"`, `null`}, "x y"},
		{arrow.ListOf(coded), [3]string{`["x", null]`, `["y"]`, `null`}, `["x",null] ["y"]`},
		{arrow.StructOf(arrow.Field{Name: "c", Type: coded, Nullable: true}), [3]string{`{"c": "x"}`, `{"c": "y"}`, `null`}, `{"c":"x"} {"c":"y"}`},
		{canonical.NewUUIDType(), [3]string{`"00000000-0000-0000-0000-000000000001"`, `"00000000-0000-0000-0000-000000000000"`, `null`}, "AAAAAAAAAAAAAAAAAAAAAQ== AAAAAAAAAAAAAAAAAAAAAA=="},
		{canonical.NewBool8Type(), [3]string{`true`, `false`, `null`}, "true false"},
		{arrow.ListViewOf(arrow.PrimitiveTypes.Int32), [3]string{}, ""},
		{arrow.LargeListViewOf(arrow.PrimitiveTypes.Int32), [3]string{}, ""},
		{arrow.RunEndEncodedOf(arrow.PrimitiveTypes.Int32, arrow.BinaryTypes.String), [3]string{}, ""},
		{arrow.SparseUnionOf(pair, []arrow.UnionTypeCode{0, 1}), [3]string{}, ""},
		{arrow.DenseUnionOf(pair, []arrow.UnionTypeCode{0, 1}), [3]string{}, ""},
		{arrow.ListOf(arrow.StructOf(arrow.Field{Name: "u", Type: arrow.DenseUnionOf(pair, []arrow.UnionTypeCode{0, 1})})), [3]string{}, ""},
	}
	for i, c := range types {
		s := arrow.NewSchema([]arrow.Field{{Name: "n", Type: arrow.PrimitiveTypes.Int8}, {Name: "c", Type: c.t, Nullable: true}}, nil)
		for _, layout := range []string{"file", "stream"} {
			rows := fmt.Sprintf(`[{"n": 1, "c": %s}, {"n": 2, "c": %s}, {"n": 3, "c": %s}]`, c.values[0], c.values[1], c.values[2])
			other := fmt.Sprintf(`[{"n": 4, "c": %s}]`, c.values[1]) // with another dictionary
			if c.want == "" {
				rows, other = "[]", "[]"
			}
			file, err := written(t, layout, s, rows, other)
			if c.want == "" {
				if fault.CodeOf(err) != fault.Invalid || fault.PlaceOf(err).Column != "c" || !strings.Contains(err.Error(), "cannot be written as Arrow IPC") {
					t.Errorf("%v: %v", c.t, err)
				}
				continue
			}
			if err != nil {
				t.Errorf("%v: %v", c.t, err)
				continue
			}
			got, err := rowsOf(t, handWrite(t, fmt.Sprintf("type-%d-%v.arrow", i, layout == "stream"), file))
			if err != nil {
				t.Errorf("%v: %v", c.t, err)
			}
			lines := strings.Split(got, "\n")
			if len(lines) != 5 || strings.TrimPrefix(lines[0], "1 ")+" "+strings.TrimPrefix(lines[1], "2 ") != c.want || lines[2] != "3 (null)" || lines[3][2:] != lines[1][2:] {
				t.Errorf("%v, %s: %q, want %q", c.t, layout, lines, c.want)
			}
		}
	}
}

// A batch of other columns than the file's is an error with a sentence of ours.
func TestBatchOfOtherColumns(t *testing.T) {
	field := func(t arrow.DataType) arrow.Field { return arrow.Field{Name: "c", Type: t, Nullable: true} }
	s := arrow.NewSchema([]arrow.Field{field(arrow.PrimitiveTypes.Int8)}, nil)
	for want, other := range map[string]*arrow.Schema{
		"2 columns, the file 1":            arrow.NewSchema([]arrow.Field{field(arrow.PrimitiveTypes.Int8), {Name: "d", Type: arrow.Null, Nullable: true}}, nil),
		"type is int16, the file has int8": arrow.NewSchema([]arrow.Field{field(arrow.PrimitiveTypes.Int16)}, nil),
	} {
		rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, other, strings.NewReader(`[{"c": 1}]`))
		if err != nil {
			t.Fatal(err)
		}
		defer rec.Release()
		for _, layout := range []string{"file", "stream"} {
			e, err := NewEncoding(&EncodingOptions{Layout: layout})
			if err != nil {
				t.Fatal(err)
			}
			w, err := e.NewEncoder(new(bytes.Buffer), s, memtest.New(t))
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Write(rec); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) {
				t.Error(err)
			}
			w.Abort()
		}
	}
}

// Values that their types do not allow are not written; nor is text that is none.
func TestValuesThatAreNotAllowed(t *testing.T) {
	day := int64(86_400_000)
	decimals := array.NewDecimal128Builder(memory.DefaultAllocator, &arrow.Decimal128Type{Precision: 38, Scale: 0})
	defer decimals.Release()
	if err := decimals.UnmarshalJSON([]byte(`["1", "999", "1000"]`)); err != nil {
		t.Fatal(err)
	}
	wide := decimals.NewArray()
	defer wide.Release()
	narrow := func() arrow.Array {
		d := array.NewData(&arrow.Decimal128Type{Precision: 3, Scale: 0}, 3, wide.Data().Buffers(), nil, 0, 0)
		defer d.Release()
		return array.MakeFromData(d)
	}
	text := array.NewStringBuilder(memory.DefaultAllocator)
	defer text.Release()
	text.AppendValues([]string{"a", "b", "caf\xe9"}, nil)
	dates := array.NewDate64Builder(memory.DefaultAllocator)
	defer dates.Release()
	dates.AppendValues([]arrow.Date64{arrow.Date64(day), 1, arrow.Date64(day + 1)}, []bool{true, false, true})
	times := array.NewTime64Builder(memory.DefaultAllocator, &arrow.Time64Type{Unit: arrow.Microsecond})
	defer times.Release()
	times.AppendValues([]arrow.Time64{0, 86_400_000_000 - 1, 86_400_000_000}, nil)
	short := array.NewTime32Builder(memory.DefaultAllocator, &arrow.Time32Type{Unit: arrow.Second})
	defer short.Release()
	short.AppendValues([]arrow.Time32{0, 86399, -1}, nil)
	lists := array.NewListBuilder(memory.DefaultAllocator, arrow.FixedWidthTypes.Date64)
	defer lists.Release()
	for i := range 3 {
		lists.Append(true)
		lists.ValueBuilder().(*array.Date64Builder).Append(arrow.Date64(max(0, i-1)))
	}
	least := array.NewDecimal128Builder(memory.DefaultAllocator, &arrow.Decimal128Type{Precision: 5})
	defer least.Release()
	least.AppendValues([]decimal128.Num{decimal128.FromI64(1), decimal128.FromI64(-99999), decimal128.New(math.MinInt64, 0)}, nil) // which has no absolute value
	for name, a := range map[string]arrow.Array{"more than 5 digits": least.NewArray(), "a date64": dates.NewArray(), "a time of day": times.NewArray(), "below 24:00:00": short.NewArray(), "more than 3 digits": narrow(),
		"\"caf\\xe9\"": text.NewArray(), "part of a day": lists.NewArray()} {
		s := arrow.NewSchema([]arrow.Field{{Name: "c", Type: a.DataType(), Nullable: true}}, nil)
		rec := array.NewRecordBatch(s, []arrow.Array{a}, 3)
		good, bad := rec.NewSlice(0, 2), rec.NewSlice(1, 3)
		for _, layout := range []string{"file", "stream"} {
			e, err := NewEncoding(&EncodingOptions{Layout: layout})
			if err != nil {
				t.Fatal(err)
			}
			w, err := e.NewEncoder(new(bytes.Buffer), s, memtest.New(t))
			if err != nil {
				t.Fatal(err)
			}
			if err := w.Write(good); err != nil {
				t.Error(name, err)
			}
			err = w.Write(bad)
			p := fault.PlaceOf(err)
			if row, _ := p.Row.Get(); !fault.CodeOf(err).Skippable() || p.Column != "c" || row != 3 || !strings.Contains(err.Error(), name) {
				t.Errorf("%s: %v: row %d: %v", name, fault.CodeOf(err), row, err)
			}
			w.Abort()
		}
		good.Release()
		bad.Release()
		rec.Release()
		a.Release()
	}
}
