package expr

import (
	"fmt"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// table is the batch that docs/expressions.md shows: three rows of every kind of
// column. It comes as the middle of a larger batch, so that all offsets are odd.
const tableJSON = `[
 {"id": 1, "small": 100, "count": 7, "fare": 12.5, "score": 0.5, "ok": true, "name": "Ana", "city": "São Paulo", "raw": "YWI=", "day": "2024-02-29", "at": "2024-02-29T13:45:30.250", "local": "2024-02-29T13:45:30Z", "wait": 90, "price": "19.99", "tags": ["a", "b"], "nums": [1, 2, 3], "pos": {"x": 1.5, "y": 2.5}, "kind": "bus", "two words": 5, "in": 3, "clock": "13:45:30"},
 {"id": 2, "small": -100, "count": 0, "fare": -1.0, "score": 2.5, "ok": false, "name": " bob ", "city": "Oslo", "raw": "", "day": "1969-12-31", "at": "1969-12-31T23:59:59.500", "local": "1969-12-31T23:59:59Z", "wait": -1, "price": "-0.01", "tags": [], "nums": [4, null], "pos": {"x": 0.0, "y": -1.0}, "kind": "car", "two words": 6, "in": 4, "clock": "00:00:00"},
 {"id": null, "small": null, "count": null, "fare": null, "score": null, "ok": null, "name": null, "city": null, "raw": null, "day": null, "at": null, "local": null, "wait": null, "price": null, "tags": null, "nums": null, "pos": null, "kind": null, "two words": null, "in": null, "clock": null}
]`

var tableSchema = arrow.NewSchema([]arrow.Field{
	{Name: "id", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
	{Name: "small", Type: arrow.PrimitiveTypes.Int8, Nullable: true},
	{Name: "count", Type: arrow.PrimitiveTypes.Uint32, Nullable: true},
	{Name: "fare", Type: arrow.PrimitiveTypes.Float64, Nullable: true},
	{Name: "score", Type: arrow.PrimitiveTypes.Float32, Nullable: true},
	{Name: "ok", Type: arrow.FixedWidthTypes.Boolean, Nullable: true},
	{Name: "name", Type: arrow.BinaryTypes.String, Nullable: true},
	{Name: "city", Type: arrow.BinaryTypes.LargeString, Nullable: true},
	{Name: "raw", Type: arrow.BinaryTypes.Binary, Nullable: true},
	{Name: "day", Type: arrow.FixedWidthTypes.Date32, Nullable: true},
	{Name: "at", Type: &arrow.TimestampType{Unit: arrow.Microsecond}, Nullable: true},
	{Name: "local", Type: &arrow.TimestampType{Unit: arrow.Second, TimeZone: "Europe/Berlin"}, Nullable: true},
	{Name: "wait", Type: &arrow.DurationType{Unit: arrow.Second}, Nullable: true},
	{Name: "price", Type: &arrow.Decimal128Type{Precision: 10, Scale: 2}, Nullable: true},
	{Name: "tags", Type: arrow.ListOf(arrow.BinaryTypes.String), Nullable: true},
	{Name: "nums", Type: arrow.LargeListOf(arrow.PrimitiveTypes.Int32), Nullable: true},
	{Name: "pos", Type: arrow.StructOf(arrow.Field{Name: "x", Type: arrow.PrimitiveTypes.Float64, Nullable: true}, arrow.Field{Name: "y", Type: arrow.PrimitiveTypes.Float64, Nullable: true}), Nullable: true},
	{Name: "kind", Type: &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}, Nullable: true},
	{Name: "two words", Type: arrow.PrimitiveTypes.Int16, Nullable: true},
	{Name: "in", Type: arrow.PrimitiveTypes.Uint8, Nullable: true},
	{Name: "clock", Type: arrow.FixedWidthTypes.Time32s, Nullable: true},
}, nil)

func table(t testing.TB, mem memory.Allocator) arrow.RecordBatch {
	t.Helper()
	rows := tableJSON[1 : len(tableJSON)-1]
	one, _, err := array.RecordFromJSON(mem, tableSchema, strings.NewReader("["+rows+","+rows+","+rows+"]"))
	if err != nil {
		t.Fatal(err)
	}
	defer one.Release()
	return one.NewSlice(3, 6)
}

// eval evaluates text on rec and writes the result, one value per row.
func eval(t testing.TB, rec arrow.RecordBatch, mem memory.Allocator, text string) (string, error) {
	t.Helper()
	e, err := Parse(text)
	if err != nil {
		return "", err
	}
	p, err := e.Bind(rec.Schema(), 1)
	if err != nil {
		return "", err
	}
	arr, err := p.Eval(rec, nil, mem)
	if err != nil {
		return "", err
	}
	defer arr.Release()
	if int64(arr.Len()) != rec.NumRows() || !arrow.TypeEqual(arr.DataType(), p.Type()) {
		t.Errorf("%s: %d values of %s, want %d of %s", text, arr.Len(), arr.DataType(), rec.NumRows(), p.Type())
	}
	return show(arr), nil
}

// show writes the values of an array and its type.
func show(arr arrow.Array) string {
	var b strings.Builder
	for i := range arr.Len() {
		if i > 0 {
			b.WriteString(", ")
		}
		b.WriteString(value(arr, i))
	}
	return fmt.Sprintf("%s: %s", b.String(), TypeName(arr.DataType()))
}

func value(arr arrow.Array, i int) string {
	if arr.IsNull(i) {
		return "null"
	}
	switch a := arr.(type) {
	case *array.String, *array.LargeString, *array.Binary, *array.LargeBinary:
		if s, ok := a.(interface{ Value(int) string }); ok {
			return fmt.Sprintf("%q", s.Value(i))
		}
		return fmt.Sprintf("%q", a.(interface{ Value(int) []byte }).Value(i))
	case array.ListLike:
		p, q := a.ValueOffsets(i)
		var vs []string
		for k := p; k < q; k++ {
			vs = append(vs, value(a.ListValues(), int(k)))
		}
		return "[" + strings.Join(vs, ", ") + "]"
	case *array.Timestamp, *array.Duration:
		x := &exec{}
		return string(timeWriter(arr.DataType())(nil, times(vec{typ: arr.DataType(), data: arr.Data()})(i))) + strings.Repeat("", x.n)
	}
	return arr.ValueStr(i)
}
