package typename_test

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/typename"
)

// random is a type that Parse has a name for.
func random(r *rand.Rand, depth int) arrow.DataType {
	units := []arrow.TimeUnit{arrow.Second, arrow.Millisecond, arrow.Microsecond, arrow.Nanosecond}
	ints := []arrow.DataType{arrow.PrimitiveTypes.Int16, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64}
	leaves := []func() arrow.DataType{
		func() arrow.DataType {
			return &arrow.TimestampType{Unit: units[r.IntN(4)], TimeZone: []string{"", "UTC", "Europe/Berlin", "+05:30"}[r.IntN(4)]}
		},
		func() arrow.DataType { return &arrow.DurationType{Unit: units[r.IntN(4)]} },
		func() arrow.DataType { return &arrow.Time32Type{Unit: units[r.IntN(2)]} },
		func() arrow.DataType { return &arrow.Time64Type{Unit: units[2+r.IntN(2)]} },
		func() arrow.DataType {
			return &arrow.Decimal128Type{Precision: r.Int32N(38) + 1, Scale: r.Int32N(77) - 38}
		},
		func() arrow.DataType {
			return &arrow.Decimal256Type{Precision: r.Int32N(76) + 1, Scale: r.Int32N(153) - 76}
		},
		func() arrow.DataType { return &arrow.FixedSizeBinaryType{ByteWidth: r.IntN(1000) + 1} },
		func() arrow.DataType {
			all := []arrow.DataType{arrow.Null, arrow.FixedWidthTypes.Boolean, arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Uint8, arrow.PrimitiveTypes.Uint16,
				arrow.PrimitiveTypes.Uint32, arrow.PrimitiveTypes.Uint64, arrow.FixedWidthTypes.Float16, arrow.PrimitiveTypes.Float32, arrow.PrimitiveTypes.Float64,
				arrow.BinaryTypes.String, arrow.BinaryTypes.LargeString, arrow.BinaryTypes.StringView, arrow.BinaryTypes.Binary, arrow.BinaryTypes.LargeBinary,
				arrow.BinaryTypes.BinaryView, arrow.FixedWidthTypes.Date32, arrow.FixedWidthTypes.Date64, arrow.FixedWidthTypes.MonthInterval,
				arrow.FixedWidthTypes.DayTimeInterval, arrow.FixedWidthTypes.MonthDayNanoInterval}
			return append(all, ints...)[r.IntN(len(all)+3)]
		},
	}
	if depth == 0 || r.IntN(3) == 0 {
		return leaves[r.IntN(len(leaves))]()
	}
	in := func() arrow.DataType { return random(r, depth-1) }
	switch r.IntN(9) {
	case 0:
		return arrow.ListOf(in())
	case 1:
		return arrow.LargeListOf(in())
	case 2:
		return arrow.ListViewOf(in())
	case 3:
		return arrow.LargeListViewOf(in())
	case 4:
		return arrow.FixedSizeListOf(r.Int32N(1<<30)+1, in())
	case 5:
		return arrow.MapOf(in(), in())
	case 6:
		return &arrow.DictionaryType{IndexType: ints[r.IntN(3)], ValueType: in()}
	case 7:
		return arrow.RunEndEncodedOf(ints[r.IntN(3)], in())
	}
	var fs []arrow.Field
	of := []string{"a", "b c", "", "ü", "1", "x:y", `q"uote`, "<>", "tab\t", "int64", " ", "a,b", "nul\x00"}
	for _, i := range r.Perm(len(of))[:r.IntN(4)] {
		fs = append(fs, arrow.Field{Name: of[i], Type: in(), Nullable: true})
	}
	return arrow.StructOf(fs...)
}

// What is printed of a type is what is accepted, and means that type; and nothing else prints the same.
func TestEveryNameIsAccepted(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	seen := map[string]arrow.DataType{}
	for range 20_000 {
		want := random(r, 4)
		name := typename.Name(want)
		got, err := typename.Parse(name)
		if err != nil || !arrow.TypeEqual(got, want) {
			t.Fatalf("%v is printed as %s, which is %v, %v", want, name, got, err)
		}
		if other := seen[name]; other != nil && !arrow.TypeEqual(other, want) {
			t.Fatalf("%v and %v are both printed as %s", want, other, name)
		}
		seen[name] = want
		// White space does not matter.
		if loose, err := typename.Parse(" " + strings.NewReplacer("<", " < ", ", ", " ,\t").Replace(name) + " "); !strings.Contains(name, `"`) && (err != nil || !arrow.TypeEqual(loose, want)) {
			t.Fatalf("%s with white space: %v, %v", name, loose, err)
		}
	}
}

// docs/types.md has exactly the names that are accepted.
func TestDocumentedNames(t *testing.T) {
	var table strings.Builder
	table.WriteString("| type | also written | what it is |\n|---|---|---|\n")
	for _, d := range names {
		is, err := typename.Parse(d.example)
		if err != nil || typename.Name(is) != d.example {
			t.Errorf("%s: %v, %v", d.example, is, err)
		}
		also := []string{}
		for _, a := range strings.Split(d.also, ", ") {
			if strings.Contains(d.also, "[") || strings.Contains(d.also, "(") {
				a = d.also
			}
			if a == "" {
				continue
			}
			if other, err := typename.Parse(a); err != nil || !arrow.TypeEqual(other, is) {
				t.Errorf("%s is not %s: %v, %v", a, d.example, other, err)
			}
			if also = append(also, "`"+a+"`"); a == d.also {
				break
			}
		}
		var shown []string
		if strings.ContainsAny(d.name, "(<[") && !strings.HasPrefix(d.name, "list_view") {
			shown = []string{"`" + d.name + "`"}
		} else {
			for _, n := range strings.Split(d.name, ", ") {
				shown = append(shown, "`"+n+"`")
			}
		}
		fmt.Fprintf(&table, "| %s | %s | %s |\n", strings.Join(shown, ", "), strings.Join(also, ", "), d.meaning)
	}
	doc, err := os.ReadFile("../../docs/types.md")
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(doc), table.String()) {
		t.Errorf("docs/types.md lacks this table:\n%s", table.String())
	}
	for name := range typename.Simple() {
		if !strings.Contains(string(doc), "`"+name+"`") {
			t.Errorf("docs/types.md does not have %s", name)
		}
	}
}

// documented is a name of docs/types.md: others that mean the same, and what it is.
type documented struct {
	name    string // as Name writes it, with n, p, s, T, K, V and unit for what varies
	example string // of that name, which Parse takes
	also    string // other spellings, which Parse takes as the same as Example
	meaning string
}

// names are all that Parse takes, in the order of docs/types.md.
var names = []documented{
	{"null", "null", "", "no value but null"},
	{"bool", "bool", "boolean", "true or false"},
	{"int8, int16, int32, int64", "int64", "int", "whole numbers with a sign, of so many bits"},
	{"uint8, uint16, uint32, uint64", "uint64", "", "whole numbers from 0, of so many bits"},
	{"float16", "float16", "", "half precision; read, written and made a tensor, not computed with"},
	{"float", "float", "float32", "single precision"},
	{"double", "double", "float64", "double precision"},
	{"decimal(p, s)", "decimal(18, 2)", "decimal128(18, 2)", "p digits, at most 38, s of them behind the point"},
	{"decimal256(p, s)", "decimal256(50, 2)", "", "the same with at most 76 digits"},
	{"string", "string", "str, utf8", "text in UTF-8"},
	{"large_string", "large_string", "", "text of more than 2 GiB a batch"},
	{"string_view", "string_view", "", "text as Arrow's views have it"},
	{"binary", "binary", "bytes", "bytes"},
	{"large_binary", "large_binary", "", "bytes of more than 2 GiB a batch"},
	{"binary_view", "binary_view", "", "bytes as Arrow's views have them"},
	{"fixed_size_binary(n)", "fixed_size_binary(16)", "", "n bytes each, at least 1"},
	{"date", "date", "date32", "a day"},
	{"date64", "date64", "", "a day, in milliseconds"},
	{"time32[unit]", "time32[ms]", "", "a time of day in s or ms"},
	{"time64[unit]", "time64[us]", "", "a time of day in us or ns"},
	{"timestamp", "timestamp", "timestamp[us]", "a day and a time without a zone, in microseconds"},
	{"timestamp[unit]", "timestamp[ms]", "", "the same in s, ms or ns"},
	{"timestamp[unit, zone]", "timestamp[us, Europe/Berlin]", "timestamp[us, tz=Europe/Berlin]", "a moment, shown in a zone: a name of the time zone database, or +hh:mm"},
	{"duration", "duration", "duration[us]", "a length of time, in microseconds"},
	{"duration[unit]", "duration[s]", "", "the same in s, ms or ns"},
	{"month_interval, day_time_interval, month_day_nano_interval", "month_interval", "", "intervals of the calendar; read and written, not computed with"},
	{"list<T>", "list<string>", "", "lists of any length"},
	{"large_list<T>", "large_list<string>", "", "lists of more than 2,147,483,647 items a batch"},
	{"list_view<T>, large_list_view<T>", "list_view<string>", "", "lists as Arrow's views have them"},
	{"fixed_size_list<T>(n)", "fixed_size_list<uint8>(3)", "", "lists of n items each, at least 1"},
	{"map<K, V>", "map<string, double>", "", "pairs of a key and a value"},
	{"struct<name: T, ...>", "struct<a: int64, \"b c\": string>", "", "fields; names that are not words are quoted"},
	{"dictionary<I, T>", "dictionary<int32, string>", "", "values of T, each stored once, and integers I that point to them"},
	{"run_end_encoded<I, T>", "run_end_encoded<int32, string>", "", "runs of equal values of T, and where each ends"},
}
