package fileset

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
)

func typeOf(t testing.TB, name string) arrow.DataType {
	t.Helper()
	typ, err := typename.Parse(name)
	if err != nil {
		t.Fatal(err)
	}
	return typ
}

// What casts make of values, row by row, of a slice behind a null; "!" begins the error of the row.
func TestCasts(t *testing.T) {
	alloc := memtest.New(t)
	for _, c := range []struct{ from, to, in, want string }{
		{"int64", "int8", `127`, "127"},
		{"int64", "int8", `128`, "!128 does not fit int8"},
		{"int64", "uint64", `-1`, "!-1 does not fit uint64"},
		{"uint64", "int64", `9223372036854775808`, "!9223372036854775808 does not fit int64"},
		{"int64", "double", `9007199254740992`, "9.007199254740992e+15"},
		{"int64", "double", `9007199254740993`, "!9007199254740993 does not fit double"},
		{"int64", "double", `-9223372036854775808`, "-9.223372036854776e+18"},
		{"uint64", "double", `18446744073709551615`, "!does not fit double"},
		{"int32", "float", `16777217`, "!does not fit float"},
		{"double", "int64", `3`, "3"},
		{"double", "int64", `3.5`, "!3.5 does not fit int64"},
		{"double", "int64", `9223372036854775808`, "!does not fit int64"},
		{"double", "float", `0.1`, "0.1"},
		{"double", "float", `1e300`, "!1e+300 does not fit float"},
		{"float16", "double", `1.5`, "1.5"},
		{"int64", "float16", `2049`, "!2049 does not fit float16"},
		{"double", "float16", `70000`, "!70000 does not fit float16"},
		{"timestamp[s]", "timestamp[ns]", `"2024-01-01 00:00:00"`, "2024-01-01T00:00:00"},
		{"timestamp[s]", "timestamp[ns]", `"9999-01-01 00:00:00"`, "!9999-01-01T00:00:00 is out of the range of timestamp[ns]"},
		{"timestamp[ns]", "timestamp[s]", `"2024-01-01 00:00:00.5"`, "!is more precise than timestamp[s]"},
		{"timestamp[us]", "timestamp[us, Europe/Berlin]", `"2024-07-01 12:00:00"`, "2024-07-01T12:00:00+02:00"},
		{"timestamp[us, Europe/Berlin]", "timestamp[us]", `"2024-07-01 10:00:00Z"`, "2024-07-01T12:00:00"},
		{"timestamp[us, UTC]", "timestamp[ns, Europe/Berlin]", `"2024-07-01 10:00:00Z"`, "2024-07-01T12:00:00+02:00"},
		{"timestamp[us]", "date", `"2024-07-01 00:00:00"`, "2024-07-01"},
		{"timestamp[us]", "date", `"2024-07-01 00:00:01"`, "!more precise than date"},
		{"date", "timestamp[us, Europe/Berlin]", `"2024-07-01"`, "2024-07-01T00:00:00+02:00"},
		{"date", "timestamp[ns]", `"2600-07-01"`, "!out of the range of timestamp[ns]"},
		{"date", "date64", `"1969-12-31"`, "1969-12-31"},
		{"time32[s]", "time64[ns]", `"10:00:01"`, "10:00:01.000000000"},
		{"duration[ms]", "duration[s]", `"1500ms"`, "!more precise than duration[s]"},
		{"decimal(10, 2)", "decimal(12, 4)", `"1.50"`, "1.5"},
		{"decimal(10, 2)", "decimal(10, 1)", `"1.55"`, "!1.55 does not fit decimal(10, 1)"},
		{"decimal(10, 2)", "decimal256(70, 4)", `"-99999999.99"`, "-99999999.99"},
		{"decimal(10, 2)", "int64", `"-3.00"`, "-3"},
		{"decimal(10, 2)", "int64", `"3.10"`, "!3.10 does not fit int64"},
		{"decimal(10, 2)", "double", `"0.10"`, "0.1"},
		{"int64", "decimal(5, 2)", `999`, "999"},
		{"int64", "decimal(5, 2)", `1000`, "!1000 does not fit decimal(5, 2)"},
		{"string", "int64", `" 12 "`, "12"},
		{"string", "int64", `"x"`, `!"x" is no int64`},
		{"string", "bool", `"true"`, "true"},
		{"string", "date", `"2024-02-30"`, `!"2024-02-30" is no date: write YYYY-MM-DD`},
		{"string", "timestamp[us, Europe/Berlin]", `"2024-07-01 12:00:00"`, "2024-07-01T12:00:00+02:00"},
		{"string", "time32[ms]", `"10:00:00.5"`, "10:00:00.500"},
		{"string", "decimal(5, 2)", `"1.234"`, "!is no decimal(5, 2)"},
		{"int64", "string", `-5`, "-5"},
		{"double", "large_string", `0.1`, "0.1"},
		{"bool", "string", `true`, "true"},
		{"date", "string", `"2024-02-29"`, "2024-02-29"},
		{"timestamp[ms, UTC]", "string", `"2024-02-29 01:02:03.5Z"`, "2024-02-29T01:02:03.5Z"},
		{"binary", "string", `"YWI="`, "ab"},
		{"binary", "large_string", `"/w=="`, `!"\xff" is not UTF-8`},
		{"large_string", "string", `"ab"`, "ab"},
		{"fixed_size_binary(2)", "large_binary", `"YWI="`, "YWI="},
		{"binary", "fixed_size_binary(2)", `"YWJj"`, "!3 bytes do not fit fixed_size_binary(2)"},
		{"list<int64>", "list<int8>", `[1,null,3]`, "[1,null,3]"},
		{"list<int64>", "large_list<int8>", `[1,300]`, "!300 does not fit int8"},
		{"list<int8>", "fixed_size_list<double>(2)", `[1,2]`, "[1,2]"},
		{"list<int8>", "fixed_size_list<int8>(2)", `[1,2,3]`, "!a list of 3 does not fit"},
		{"fixed_size_list<int64>(2)", "list<int8>", `[1,2]`, "[1,2]"},
		{"fixed_size_list<int64>(2)", "list<int8>", `[1,200]`, "!200 does not fit int8"},
		{"struct<a: int64, b: string>", "struct<c: date, b: large_string, a: int8>", `{"a":1,"b":"x"}`, `{"a":1,"b":"x","c":null}`},
		{"struct<a: int64>", "struct<a: int8>", `{"a":1000}`, `!field "a": 1000 does not fit int8`},
		{"list<struct<a: int64>>", "list<struct<b: int64, a: int32>>", `[{"a":1},null]`, `[{"a":1,"b":null},null]`},
		{"map<string, int64>", "map<large_string, int8>", `[{"key":"a","value":1}]`, `[{"key":"a","value":1}]`},
		{"map<string, int64>", "map<string, int8>", `[{"key":"a","value":1000}]`, `!1000 does not fit int8`},
		{"null", "list<int>", `null`, "null"},
	} {
		from, to := typeOf(t, c.from), typeOf(t, c.to)
		cast := castTo(from, to)
		if cast == nil {
			t.Errorf("%s to %s: no way", c.from, c.to)
			continue
		}
		a, _, err := array.FromJSON(alloc, from, strings.NewReader("["+c.in+",null,"+c.in+","+c.in+"]"))
		if err != nil {
			t.Errorf("%s: %v", c.from, err)
			continue
		}
		s := array.NewSlice(a, 1, 3)
		out, err := convert(cast, s, alloc)
		if want, bad := strings.CutPrefix(c.want, "!"); bad {
			if e, ok := err.(badCast); !ok || e.row != 1 || !strings.Contains(e.why, want) || !cast.fails {
				t.Errorf("%s to %s: %v, %v; want row 1: %s", c.from, c.to, out, err, want)
			}
		} else if err != nil {
			t.Errorf("%s to %s: %v", c.from, c.to, err)
		} else {
			got := out.ValueStr(1)
			if b, _ := out.MarshalJSON(); strings.HasPrefix(c.in, "[") || strings.HasPrefix(c.in, "{") {
				got = strings.Join(strings.Fields(string(b)), "")
				got = strings.TrimSuffix(strings.TrimPrefix(got, "[null,"), "]")
			}
			if got != c.want && !(c.want == "null" && out.IsNull(1)) || out.IsValid(0) || out.Len() != 2 || !arrow.TypeEqual(out.DataType(), to) {
				t.Errorf("%s to %s: %s (%v), want %s", c.from, c.to, got, out, c.want)
			}
		}
		if out != nil {
			out.Release()
		}
		s.Release()
		a.Release()
	}
	for _, c := range [][2]string{{"double", "decimal(5, 2)"}, {"list<int>", "string"}, {"bool", "int64"}, {"int64", "timestamp"}, {"time32[s]", "date"}, {"string", "list<int>"}} {
		if castTo(typeOf(t, c[0]), typeOf(t, c[1])) != nil {
			t.Errorf("%s to %s: there is a way", c[0], c[1])
		}
	}
}

// What lies under a null is no value: it is not converted.
func TestCastUnderNulls(t *testing.T) {
	alloc := memtest.New(t)
	from := arrow.StructOf(arrow.Field{Name: "a", Type: arrow.PrimitiveTypes.Int64, Nullable: true})
	kid, _, err := array.FromJSON(alloc, arrow.PrimitiveTypes.Int64, strings.NewReader("[1,1000,3]"))
	if err != nil {
		t.Fatal(err)
	}
	defer kid.Release()
	bits := memory.NewBufferBytes([]byte{0b101})
	d := array.NewData(from, 3, []*memory.Buffer{bits}, []arrow.ArrayData{kid.Data()}, 1, 0)
	a := array.MakeFromData(d)
	d.Release()
	defer a.Release()
	out, err := convert(castTo(from, typeOf(t, "struct<a: int8>")), a, alloc)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Release()
	if got := out.String(); got != "{[1 (null) 3]}" {
		t.Error(got)
	}
	list := arrow.ListOf(arrow.PrimitiveTypes.Int64)
	offs := memory.NewBufferBytes(arrow.Int32Traits.CastToBytes([]int32{0, 1, 2, 3}))
	d = array.NewData(list, 3, []*memory.Buffer{bits, offs}, []arrow.ArrayData{kid.Data()}, 1, 0)
	l := array.MakeFromData(d)
	d.Release()
	defer l.Release()
	for _, to := range []string{"list<int8>", "fixed_size_list<int8>(1)", "large_list<int8>"} {
		out, err := convert(castTo(list, typeOf(t, to)), l, alloc)
		if err != nil {
			t.Fatal(to, err)
		}
		if got := out.String(); got != "[[1] (null) [3]]" {
			t.Error(to, got)
		}
		out.Release()
	}
}

// A term over the table is true of what a cast makes of a value exactly if the narrowed term is true of the value.
func TestNarrow(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	names := []string{"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float", "double",
		"date", "date64", "timestamp[s]", "timestamp[ms]", "timestamp[us]", "timestamp[ns]", "time32[s]", "time64[us]", "duration[s]", "duration[ns]"}
	edges := []float64{0, 1, -1, 0.5, -0.5, 127, 128, -128, -129, 255, 256, 65535, 1 << 31, -1 << 31, 1 << 53, 1<<53 + 2, 1 << 63, -1 << 63, 1 << 64,
		1e30, math.Inf(1), math.Inf(-1), math.NaN(), 0.1, 86400000, 86399999, 1000, 999, 1001, 1 << 40}
	literal := func(typ arrow.DataType) any {
		f := edges[rng.IntN(len(edges))]
		if rng.IntN(2) == 0 {
			f = float64(rng.IntN(600) - 300)
		}
		n := numberOf(typ)
		switch {
		case n.float:
			return f
		case n.bits > 0 && !n.signed:
			if !(f >= 0 && f < 1<<64) {
				return uint64(rng.Uint32())
			}
			return uint64(f)
		case n.bits > 0 && rng.IntN(8) == 0 && f == f && !math.IsInf(f, 0):
			return f
		}
		if !(f >= -1<<63 && f < 1<<63) {
			return int64(math.MaxInt64)
		}
		return int64(f)
	}
	valueOf := func(a arrow.Array) value {
		switch a.DataType().ID() {
		case arrow.FLOAT32:
			return value{float64(fixed[float32](a)[0])}
		case arrow.FLOAT64:
			return value{fixed[float64](a)[0]}
		case arrow.UINT8:
			return value{uint64(fixed[uint8](a)[0])}
		case arrow.UINT16:
			return value{uint64(fixed[uint16](a)[0])}
		case arrow.UINT32:
			return value{uint64(fixed[uint32](a)[0])}
		case arrow.UINT64:
			return value{fixed[uint64](a)[0]}
		case arrow.INT8:
			return value{int64(fixed[int8](a)[0])}
		case arrow.INT16:
			return value{int64(fixed[int16](a)[0])}
		}
		if a.DataType().(arrow.FixedWidthDataType).BitWidth() == 32 {
			return value{int64(fixed[int32](a)[0])}
		}
		return value{fixed[int64](a)[0]}
	}
	alloc := memory.DefaultAllocator
	tried, never := 0, 0
	for range 60_000 {
		from, to := typeOf(t, names[rng.IntN(len(names))]), typeOf(t, names[rng.IntN(len(names))])
		c := castTo(from, to)
		if c == nil {
			continue
		}
		// A value of the file: any bits that a literal of the type has.
		width := from.(arrow.FixedWidthDataType).BitWidth() / 8
		buf := make([]byte, 8)
		switch l := literal(from).(type) {
		case float64:
			switch {
			case from.ID() == arrow.FLOAT32:
				copy(buf, arrow.Float32Traits.CastToBytes([]float32{float32(l)}))
			case from.ID() == arrow.FLOAT64:
				copy(buf, arrow.Float64Traits.CastToBytes([]float64{l}))
			default:
				copy(buf, arrow.Int64Traits.CastToBytes([]int64{int64(l)}))
			}
		case int64:
			copy(buf, arrow.Int64Traits.CastToBytes([]int64{l}))
		case uint64:
			copy(buf, arrow.Uint64Traits.CastToBytes([]uint64{l}))
		}
		d := array.NewData(from, 1, []*memory.Buffer{nil, memory.NewBufferBytes(buf[:width])}, nil, 0, 0)
		a := array.MakeFromData(d)
		out, err := convert(c, a, alloc)
		if err != nil {
			continue
		}
		term := driver.Term{Column: "x", Op: driver.Op(rng.IntN(9))}
		switch n := 1; term.Op {
		case driver.In:
			n = rng.IntN(4)
			fallthrough
		default:
			for range n {
				term.Values = append(term.Values, literal(to))
			}
		case driver.IsNull, driver.NotNull:
		}
		if rng.IntN(3) == 0 && len(term.Values) > 0 { // at the value
			term.Values[0] = valueOf(out).v
		}
		narrowed, no, ok := narrow(term, from, to)
		if !no && !ok {
			continue
		}
		tried++
		want, got := holds(term, valueOf(out)), !no && holds(narrowed, valueOf(a))
		if no {
			never++
		}
		if want != got {
			t.Fatalf("%s to %s: %v of %v is %v; narrowed to %v (never %v) of %v", from, to, term, out, want, narrowed, no, a)
		}
	}
	if tried < 10_000 || never < 500 {
		t.Errorf("%d terms, %d never", tried, never)
	}
}

// A value that the type does not hold names the file, the row, the column and what can be done.
func TestCastErrorOfARow(t *testing.T) {
	alloc := memtest.New(t)
	ints, floats := schemaOf(t, "x int64"), schemaOf(t, "x double")
	for _, c := range []struct {
		types map[string]string
		want  string
	}{
		{nil, `9007199254740993 does not fit double, which has fewer digits, which is the type that the column has in all files together; give it another, types: {"x": ...} of the source`},
		{map[string]string{"x": "int8"}, "9007199254740993 does not fit int8, which is the column's type as types says"},
	} {
		s := hiveSet(t, Options{Types: c.types})
		table, err := s.Schema([]*arrow.Schema{ints, floats}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ad, err := s.Adapter(0, table, ints, []string{"x"}, nil, 7)
		if err != nil {
			t.Fatal(err)
		}
		rec := record(t, alloc, ints, `[{"x":1},{"x":9007199254740993}]`)
		for _, rows := range [][]int64{nil, {20, 41}} {
			want := int64(21)
			if rows != nil {
				want = 41
			}
			_, err = apply(ad, driver.Batch{Record: rec, Row: 20, Rows: rows}, alloc)
			p := fault.PlaceOf(err)
			if fault.CodeOf(err) != fault.RowError || p.File != s.Files[0].Path || p.Column != "x" || p.Row != fault.N(want) || !strings.Contains(fmt.Sprint(err), c.want) {
				t.Errorf("%v", err)
			}
		}
		rec.Release()
		ad.Release()
	}
}

// Types are of columns that files have, and of what can be made of them.
func TestTypesOption(t *testing.T) {
	x := schemaOf(t, "x int64, l list<int>")
	for _, c := range []struct {
		types map[string]string
		want  string
	}{
		{map[string]string{"x": "string"}, ""},
		{map[string]string{"y": "string"}, `types: no column "y"; have x, l`},
		{map[string]string{"p": "string"}, `types: the column "p" is one of folders; use partition_types`},
		{map[string]string{"l": "string"}, "types: list<int64> cannot be read as string"},
	} {
		s := hiveSet(t, Options{Types: c.types})
		if _, err := s.Schema([]*arrow.Schema{x, x}, nil); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v: %v", c.types, err)
		}
	}
	o := Options{Paths: []string{"x"}, Types: map[string]string{"x": "integer"}}
	if err := o.Validate(); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), `types: column "x"`) {
		t.Error(err)
	}
}

// Whatever types meet in a table, each of the files is read as it, in any order of the files.
func TestEveryFileOfATable(t *testing.T) {
	for _, types := range [][]string{
		{"timestamp[us, UTC]", "timestamp[us, Europe/Berlin]", "timestamp[ns, UTC]"},
		{"struct<a: int64, b: string>", "struct<b: string, a: int64>", "struct<c: double>"},
		{"struct<a: int32>", "struct<b: int64, a: int64>", "struct<b: double>"},
		{"list<struct<a: int64>>", "list<struct<b: int64>>", "large_list<struct<b: int8, a: int8>>"},
		{"map<string, struct<a: int64>>", "map<large_string, struct<b: int64>>"},
		{"int8", "uint8", "uint32", "double"},
		{"float", "int16", "int32"},
		{"decimal(5, 2)", "decimal(9, 0)", "decimal256(40, 3)"},
		{"string", "large_string", "null"},
		{"dictionary<int8, string>", "string", "dictionary<int32, large_string>"},
		{"binary", "large_binary", "fixed_size_binary(3)", "fixed_size_binary(4)"},
		{"fixed_size_list<int32>(2)", "fixed_size_list<int64>(3)", "list<double>"},
		{"date", "date64"},
		{"time32[s]", "time64[us]", "time32[ms]"},
		{"duration[s]", "duration[us]"},
	} {
		for from := range types {
			for to := range types {
				if from == to {
					continue
				}
				a, b := schemaOf(t, "x "+types[from]), schemaOf(t, "x "+types[to])
				s := hiveSet(t, Options{})
				table, err := s.Schema([]*arrow.Schema{a, b}, nil)
				if err != nil {
					t.Errorf("%s and %s: %v", types[from], types[to], err)
					continue
				}
				for i, f := range []*arrow.Schema{a, b} {
					ad, err := s.Adapter(i, table, f, []string{"x"}, nil, 0)
					if err != nil {
						t.Errorf("%s and %s, file %d: %v", types[from], types[to], i, err)
						continue
					}
					ad.Release()
				}
			}
		}
	}
}

// Where no type holds both, the error offers one that can be given.
func TestAdvice(t *testing.T) {
	for _, c := range [][3]string{
		{"int32", "decimal(10, 2)", "decimal(10, 2)"}, {"date", "timestamp[us]", "timestamp"}, {"string", "binary", "binary"},
		{"uint64", "int8", "decimal(20, 0)"}, {"int64", "string", "string"}, {"bool", "int64", "string"},
	} {
		for range 2 {
			s := hiveSet(t, Options{})
			_, err := s.Schema([]*arrow.Schema{schemaOf(t, "x "+c[0]), schemaOf(t, "x "+c[1])}, nil)
			if err == nil || !strings.Contains(err.Error(), fmt.Sprintf(`types: {"x": %q}`, c[2])) {
				t.Errorf("%s and %s: %v", c[0], c[1], err)
			}
			c[0], c[1] = c[1], c[0]
		}
	}
}

// badCast is the first row that cannot be converted.
type badCast struct {
	row int
	why string
}

func (e badCast) Error() string { return e.why }

// convert is a caster's result, or the first row that it reports.
func convert(c *caster, a arrow.Array, alloc memory.Allocator) (arrow.Array, error) {
	bad := map[int]string{}
	out, err := c.array(a, alloc, report{
		has: func(i int) bool { _, ok := bad[i]; return ok },
		add: func(i int, why string) { bad[i] = why },
	})
	for i := range a.Len() {
		if why, ok := bad[i]; ok && err == nil {
			out.Release()
			return nil, badCast{i, why}
		}
	}
	return out, err
}

// apply is what the adapter makes of a batch, or the first bad row.
func apply(a *Adapter, b driver.Batch, alloc memory.Allocator) (arrow.RecordBatch, error) {
	var bad BadRows
	out, err := a.Apply(b, alloc, &bad)
	for _, e := range bad.All {
		out.Release()
		return nil, e
	}
	return out, err
}
