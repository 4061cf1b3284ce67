package typename_test

import (
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/typename"
)

func TestNames(t *testing.T) {
	for _, c := range []struct {
		name, canon string // canon "" is name
		want        arrow.DataType
	}{
		{"int", "int64", arrow.PrimitiveTypes.Int64},
		{"int8", "", arrow.PrimitiveTypes.Int8},
		{"uint64", "", arrow.PrimitiveTypes.Uint64},
		{"float16", "", arrow.FixedWidthTypes.Float16},
		{"float", "", arrow.PrimitiveTypes.Float32},
		{"float32", "float", arrow.PrimitiveTypes.Float32},
		{"float64", "double", arrow.PrimitiveTypes.Float64},
		{"bool", "", arrow.FixedWidthTypes.Boolean},
		{"string", "", arrow.BinaryTypes.String},
		{"large_binary", "", arrow.BinaryTypes.LargeBinary},
		{"binary", "", arrow.BinaryTypes.Binary},
		{"date", "", arrow.FixedWidthTypes.Date32},
		{"timestamp", "", &arrow.TimestampType{Unit: arrow.Microsecond}},
		{"timestamp[us]", "timestamp", &arrow.TimestampType{Unit: arrow.Microsecond}},
		{"timestamp[ms]", "", &arrow.TimestampType{Unit: arrow.Millisecond}},
		{"timestamp[ns, tz=UTC]", "timestamp[ns, UTC]", &arrow.TimestampType{Unit: arrow.Nanosecond, TimeZone: "UTC"}},
		{"timestamp[s, +02:00]", "", &arrow.TimestampType{Unit: arrow.Second, TimeZone: "+02:00"}},
		{"time64[us]", "", &arrow.Time64Type{Unit: arrow.Microsecond}},
		{"duration[ms]", "", &arrow.DurationType{Unit: arrow.Millisecond}},
		{"decimal(18,2)", "decimal(18, 2)", &arrow.Decimal128Type{Precision: 18, Scale: 2}},
		{"decimal256(76, -3)", "", &arrow.Decimal256Type{Precision: 76, Scale: -3}},
		{"fixed_size_binary(16)", "", &arrow.FixedSizeBinaryType{ByteWidth: 16}},
		{"list<list<int>>", "list<list<int64>>", arrow.ListOf(arrow.ListOf(arrow.PrimitiveTypes.Int64))},
		{"fixed_size_list<float>(3)", "", arrow.FixedSizeListOf(3, arrow.PrimitiveTypes.Float32)},
		{"map<string, double>", "", arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Float64)},
		{`struct<a: int64, "b c": list<string>>`, "", arrow.StructOf(
			arrow.Field{Name: "a", Type: arrow.PrimitiveTypes.Int64, Nullable: true},
			arrow.Field{Name: "b c", Type: arrow.ListOf(arrow.BinaryTypes.String), Nullable: true})},
		{"struct<>", "", arrow.StructOf()},
	} {
		got, err := typename.Parse(c.name)
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if !arrow.TypeEqual(got, c.want) {
			t.Errorf("%s: got %v, want %v", c.name, got, c.want)
		}
		if c.canon == "" {
			c.canon = c.name
		}
		if n := typename.Name(got); n != c.canon {
			t.Errorf("%s: name is %q, want %q", c.name, n, c.canon)
		}
	}
}

func TestBadNames(t *testing.T) {
	for name, want := range map[string]string{
		"":                           "missing",
		"integer":                    `unknown type "integer"`,
		"int64 x":                    "unexpected",
		"list":                       "missing",
		"list<int":                   "missing",
		"timestamp[h]":               "unit",
		"timestamp[ms, Mars]":        "time zone",
		"decimal":                    "precision",
		"decimal(40, 2)":             "1 to 38",
		"time32[us]":                 "s or ms",
		"struct<a int>":              "expected",
		"fixed_size_list<int>(0)":    "at least 1",
		strings.Repeat("list<", 100): "deeper",
	} {
		_, err := typename.Parse(name)
		if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: got %v, want Invalid with %q", name, err, want)
		}
	}
}

func FuzzParse(f *testing.F) {
	for _, s := range []string{"int", "list<struct<a: decimal(3, 1)>>", "timestamp[ms, UTC]", `struct<"\x00": map<string, int>>`, "fixed_size_list<int>(9)"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := typename.Parse(s)
		if err != nil {
			return
		}
		b, err := typename.Parse(typename.Name(a))
		if err != nil || !arrow.TypeEqual(a, b) {
			t.Fatalf("%q is %v, whose name %q is %v, %v", s, a, typename.Name(a), b, err)
		}
	})
}
