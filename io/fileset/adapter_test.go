package fileset

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
)

// schemaOf reads "a int32, b list<string>".
func schemaOf(t testing.TB, text string) *arrow.Schema {
	t.Helper()
	var fs []arrow.Field
	depth := 0
	for _, c := range strings.FieldsFunc(text, func(r rune) bool {
		if strings.ContainsRune("<([", r) {
			depth++
		} else if strings.ContainsRune(">)]", r) {
			depth--
		}
		return r == ',' && depth == 0
	}) {
		c = strings.TrimSpace(c)
		name, typ, _ := strings.Cut(c, " ")
		dt, err := typename.Parse(typ)
		if err != nil {
			t.Fatal(err)
		}
		fs = append(fs, arrow.Field{Name: name, Type: dt, Nullable: true})
	}
	return arrow.NewSchema(fs, nil)
}

func schemaText(s *arrow.Schema) string {
	var b []string
	for _, f := range s.Fields() {
		b = append(b, f.Name+" "+typename.Name(f.Type))
	}
	return strings.Join(b, ", ")
}

func hiveSet(t testing.TB, o Options) *Set {
	t.Helper()
	o.Paths = []string{tree(t, "p=1/a", "p=2/b")}
	s, err := list(t, &o, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestSchema(t *testing.T) {
	for _, c := range []struct{ a, b, want string }{
		{"x int32, y string", "x int32, y string", "x int32, y string, p int64"},
		{"x int32", "y string, x int64", "x int64, y string, p int64"},
		{"x float", "x double", "x double, p int64"},
		{"x int16", "x float", "x float, p int64"},
		{"x int32", "x float", "x double, p int64"},
		{"x uint32", "x int8", "x int64, p int64"},
		{"x uint8", "x uint64", "x uint64, p int64"},
		{"x float16", "x int8", "x float16, p int64"},
		{"x string", "x large_string", "x large_string, p int64"},
		{"x null", "x date", "x date, p int64"},
		{"x list<int>", "x list<int>", "x list<int64>, p int64"},
		{"p string, x int", "x int", "x int64, p string"},
		{"x int64", "x double", "x double, p int64"},
		{"x uint64", "x float", "x double, p int64"},
		{"x list<int>", "x list<int32>", "x list<int64>, p int64"},
		{"x list<int>", "x large_list<int8>", "x large_list<int64>, p int64"},
		{"x fixed_size_list<int>(2)", "x fixed_size_list<double>(2)", "x fixed_size_list<double>(2), p int64"},
		{"x fixed_size_list<int>(2)", "x fixed_size_list<int>(3)", "x list<int64>, p int64"},
		{"x struct<a: int, b: string>", "x struct<c: date, b: string, a: double>", "x struct<a: double, b: string, c: date>, p int64"},
		{"x list<struct<a: int8>>", "x list<struct<b: int>>", "x list<struct<a: int8, b: int64>>, p int64"},
		{"x map<string, int8>", "x map<large_string, int>", "x map<large_string, int64>, p int64"},
		{"x timestamp[ms]", "x timestamp[ns]", "x timestamp[ns], p int64"},
		{"x timestamp[s, Europe/Berlin]", "x timestamp[us, UTC]", "x timestamp[us, Europe/Berlin], p int64"},
		{"x date64", "x date", "x date, p int64"},
		{"x time32[ms]", "x time64[ns]", "x time64[ns], p int64"},
		{"x duration[s]", "x duration[ms]", "x duration[ms], p int64"},
		{"x decimal(10, 2)", "x decimal(8, 4)", "x decimal(12, 4), p int64"},
		{"x decimal(38, 0)", "x decimal(38, 10)", "x decimal256(48, 10), p int64"},
		{"x fixed_size_binary(4)", "x fixed_size_binary(5)", "x binary, p int64"},
		{"x uint64", "x int8", `!type is int8, but uint64 in files before it, and no type holds both; give it one, e.g. types: {"x": "decimal(20, 0)"} of the source`},
		{"x date", "x timestamp", "!type is timestamp, but date"},
		{"x timestamp", "x timestamp[us, UTC]", `!give it one, e.g. types: {"x": "timestamp"}`},
		{"x string", "x binary", `!give it one, e.g. types: {"x": "binary"}`},
		{"x string", "x int", `!column "x": type is int64, but string in files before it`},
		{"x list<int>", "x int", "!leave the column out"},
		{"x decimal256(76, 0)", "x decimal(10, 9)", "!type is decimal(10, 9)"},
		{"x int, x int", "x int", "!two columns"},
	} {
		s := hiveSet(t, Options{})
		got, err := s.Schema([]*arrow.Schema{schemaOf(t, c.a), schemaOf(t, c.b)}, nil)
		if want, bad := strings.CutPrefix(c.want, "!"); bad {
			if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), s.Files[0].Path[:10]) {
				t.Errorf("%s with %s: %v, want %s", c.a, c.b, err, want)
			}
			continue
		}
		if err != nil || schemaText(got) != c.want {
			t.Errorf("%s with %s: %v, %v; want %s", c.a, c.b, got, err, c.want)
		}
	}
	s := hiveSet(t, Options{PathColumn: "file", RowColumn: "row"})
	x := schemaOf(t, "x int")
	if got, err := s.Schema([]*arrow.Schema{x, x}, nil); err != nil || schemaText(got) != "x int64, p int64, file string, row int64" {
		t.Errorf("%v %v", got, err)
	}
	file := schemaOf(t, "file int")
	if _, err := s.Schema([]*arrow.Schema{x, file}, nil); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), `column "file" is in the file already`) {
		t.Errorf("%v", err)
	}
	s = hiveSet(t, Options{PathColumn: "p"})
	if _, err := s.Schema([]*arrow.Schema{x, x}, nil); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("path column named as a partition: %v", err)
	}
	if err := hiveSet(t, Options{RowColumn: "r"}).CheckRows(0, 2); fault.CodeOf(err) != fault.Unsupported {
		t.Errorf("rows of two splits: %v", err)
	}
}

func record(t testing.TB, alloc memory.Allocator, schema *arrow.Schema, json string) arrow.RecordBatch {
	t.Helper()
	rec, _, err := array.RecordFromJSON(alloc, schema, strings.NewReader(json))
	if err != nil {
		t.Fatal(err)
	}
	return rec
}

func recordJSON(t testing.TB, rec arrow.RecordBatch) string {
	t.Helper()
	b, err := rec.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(strings.TrimSpace(string(b)), "\n", "")
}

func TestAdapter(t *testing.T) {
	alloc := memtest.New(t)
	s := hiveSet(t, Options{PathColumn: "file", RowColumn: "row", PartitionTypes: map[string]string{"p": "string"}})
	file := schemaOf(t, "a int32, b float, c string, n null, l list<int>")
	other := schemaOf(t, "a int64, b double, c large_string, z list<struct<k: int>>, n date, l list<int>")
	table, err := s.Schema([]*arrow.Schema{file, other}, nil)
	if err != nil {
		t.Fatal(err)
	}
	rec := record(t, alloc, file, `[{"a":1,"b":1.5,"c":"x","n":null,"l":[1]},{"a":null,"b":-2,"c":null,"n":null,"l":null},{"a":3,"b":null,"c":"zz","n":null,"l":[]}]`)
	defer rec.Release()
	ad, err := s.Adapter(0, table, file, nil, nil, 100)
	if err != nil {
		t.Fatal(err)
	}
	defer ad.Release()
	if got := strings.Join(ad.FileColumns, " "); got != "a b c l" {
		t.Fatalf("file columns %s", got)
	}
	pick := func(r arrow.RecordBatch, cols ...int) arrow.RecordBatch {
		var fs []arrow.Field
		var as []arrow.Array
		for _, c := range cols {
			fs, as = append(fs, r.Schema().Field(c)), append(as, r.Column(c))
		}
		return array.NewRecordBatch(arrow.NewSchema(fs, nil), as, r.NumRows())
	}
	in := pick(rec, 0, 1, 2, 4)
	defer in.Release()
	for _, from := range []int64{0, 1, 2} {
		part := in.NewSlice(from, 3)
		out, err := apply(ad, driver.Batch{Record: part, Row: 10 + from}, alloc)
		part.Release()
		if err != nil {
			t.Fatal(err)
		}
		p := s.Files[0].Path
		rows := []string{
			fmt.Sprintf(`{"a":1,"b":1.5,"c":"x","n":null,"l":[1],"z":null,"p":"1","file":"%s","row":110}`, p),
			fmt.Sprintf(`{"a":null,"b":-2,"c":null,"n":null,"l":null,"z":null,"p":"1","file":"%s","row":111}`, p),
			fmt.Sprintf(`{"a":3,"b":null,"c":"zz","n":null,"l":[],"z":null,"p":"1","file":"%s","row":112}`, p),
		}
		want := record(t, alloc, table, "["+strings.Join(rows[from:], ",")+"]")
		if !array.RecordEqual(out, want) || !out.Schema().Equal(table) {
			t.Errorf("got  %s\nwant %s", recordJSON(t, out), recordJSON(t, want))
		}
		want.Release()
		out.Release()
	}

	// A projection in another order, and one without any column of the file.
	ad2, err := s.Adapter(1, table, file, []string{"p", "c"}, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer ad2.Release()
	c := pick(rec, 2)
	defer c.Release()
	out, err := apply(ad2, driver.Batch{Record: c, Row: 0}, alloc)
	if err != nil {
		t.Fatal(err)
	}
	if got := recordJSON(t, out); schemaText(out.Schema()) != "p string, c large_string" || got != `[{"c":"x","p":"2"},{"c":null,"p":"2"},{"c":"zz","p":"2"}]` {
		t.Errorf("got %s", got)
	}
	out.Release()
	ad3, err := s.Adapter(1, table, file, []string{}, nil, 0)
	if err != nil || len(ad3.FileColumns) != 0 {
		t.Fatal(err, ad3)
	}
	empty := array.NewRecordBatch(arrow.NewSchema(nil, nil), nil, 7)
	defer empty.Release()
	if out, err = apply(ad3, driver.Batch{Record: empty, Row: 0}, alloc); err != nil || out.NumRows() != 7 || out.NumCols() != 0 {
		t.Errorf("%v %v", out, err)
	}
	out.Release()

	if _, err := s.Adapter(0, table, file, []string{"size"}, nil, 0); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), `unknown column "size"; have a, b`) {
		t.Errorf("%v", err)
	}
	if _, err := s.Adapter(0, table, schemaOf(t, "a string"), nil, nil, 0); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "a") {
		t.Errorf("%v", err)
	}
}

// Every pair of numeric types that widen must keep every value, whatever slice.
func TestWidenValues(t *testing.T) {
	alloc := memtest.New(t)
	names := []string{"int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float", "double"}
	rng := rand.New(rand.NewPCG(1, 1))
	for _, x := range names {
		for _, y := range names {
			from, _ := typename.Parse(x)
			with, _ := typename.Parse(y)
			to, ok := widen(from, with)
			back, ok2 := widen(with, from)
			if ok != ok2 || ok && !arrow.TypeEqual(to, back) {
				t.Fatalf("%s and %s: %v, the other way %v", x, y, to, back)
			}
			if !ok || arrow.TypeEqual(from, to) {
				continue
			}
			b := array.NewBuilder(alloc, from)
			var want []string
			for range 70 {
				if rng.IntN(4) == 0 {
					b.AppendNull()
					want = append(want, "(null)")
					continue
				}
				v := fmt.Sprint(rng.IntN(128)) // what float16 holds exactly
				if !strings.HasPrefix(x, "u") && rng.IntN(2) == 0 {
					v = "-" + v
				}
				if err := b.AppendValueFromString(v); err != nil {
					t.Fatal(err)
				}
				want = append(want, strings.TrimPrefix(v, "-0"))
			}
			a := b.NewArray()
			b.Release()
			sl := array.NewSlice(a, 3, 66)
			w, err := convert(castTo(from, to), sl, alloc)
			if err != nil {
				t.Fatal(err)
			}
			for i := range w.Len() {
				got := w.ValueStr(i)
				if want := want[3+i]; got != want && !(want == "" && strings.HasSuffix(got, "0")) {
					t.Fatalf("%s to %v: row %d is %s, want %s", x, to, i, got, want)
				}
			}
			w.Release()
			sl.Release()
			a.Release()
		}
	}
}

func TestNestedShape(t *testing.T) {
	alloc := memtest.New(t)
	a := arrow.NewSchema([]arrow.Field{{Name: "l", Type: arrow.ListOfField(arrow.Field{Name: "element", Type: arrow.StructOf(arrow.Field{Name: "k", Type: arrow.PrimitiveTypes.Int64})}), Nullable: true},
		{Name: "m", Type: arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int64), Nullable: true}}, nil)
	b := schemaOf(t, "l list<struct<k: int64>>")
	b = arrow.NewSchema(append(b.Fields(), arrow.Field{Name: "m", Type: func() arrow.DataType {
		m := arrow.MapOf(arrow.BinaryTypes.String, arrow.PrimitiveTypes.Int64)
		m.SetItemNullable(false)
		return m
	}(), Nullable: true}), nil)
	s := hiveSet(t, Options{Partitions: "none"})
	table, err := s.Schema([]*arrow.Schema{a, b}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ad, err := s.Adapter(0, table, a, nil, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	rec := record(t, alloc, a, `[{"l":[{"k":1},{"k":2}],"m":[{"key":"a","value":1}]},{"l":null,"m":null}]`)
	defer rec.Release()
	out, err := apply(ad, driver.Batch{Record: rec, Row: 0}, alloc)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Release()
	if recordJSON(t, out) != recordJSON(t, rec) || !out.Schema().Equal(table) {
		t.Errorf("%v became %v", rec, out)
	}
}

func TestPredicates(t *testing.T) {
	s := hiveSet(t, Options{PathColumn: "file"})
	file := schemaOf(t, "i int32, u uint8, f float, s string")
	table, err := s.Schema([]*arrow.Schema{file, schemaOf(t, "i double, u int64, f double, s large_string, z int")}, nil)
	if err != nil {
		t.Fatal(err)
	}
	term := func(c string, op driver.Op, vs ...any) driver.Term {
		return driver.Term{Column: c, Op: op, Values: vs}
	}
	for _, c := range []struct {
		in    driver.Term
		want  string
		never bool
	}{
		{term("p", driver.Eq, int64(1)), "", false},
		{term("p", driver.Eq, int64(2)), "", true},
		{term("p", driver.IsNull), "", true},
		{term("file", driver.Eq, s.Files[0].Path), "", false},
		{term("file", driver.Ne, s.Files[0].Path), "", true},
		{term("z", driver.NotNull), "", true},
		{term("z", driver.IsNull), "", false},
		{term("z", driver.Ne, int64(1)), "", true},
		{term("i", driver.Gt, 3.0), "i > 3", false},
		{term("i", driver.Gt, 3.5), "i > 3", false},
		{term("i", driver.Lt, 3.5), "i <= 3", false},
		{term("i", driver.Eq, 3.5), "", true},
		{term("i", driver.Ne, 3.5), "i is not null", false},
		{term("i", driver.Lt, 1e30), "i is not null", false},
		{term("i", driver.Lt, -1e30), "", true},
		{term("i", driver.Ne, nan()), "i is not null", false},
		{term("i", driver.Ge, nan()), "", true},
		{term("u", driver.Gt, int64(-1)), "u is not null", false},
		{term("u", driver.Lt, int64(-1)), "", true},
		{term("u", driver.Eq, int64(7)), "u == 7", false},
		{term("u", driver.In, int64(-1), int64(7)), "u in [7]", false},
		{term("u", driver.In, int64(-1)), "", true},
		{term("f", driver.Le, 0.1), "f <= 0.1", false},
		{term("s", driver.Eq, "x"), `s == "x"`, false},
		{term("s", driver.IsNull), "s is null", false},
	} {
		a, err := s.Adapter(0, table, file, []string{"i"}, driver.Predicate{c.in}, 0)
		if err != nil {
			t.Fatal(err)
		}
		if a.Never != c.never || !c.never && a.Predicate.String() != c.want {
			t.Errorf("%v: %v, never=%v", c.in, a.Predicate, a.Never)
		}
		if d := cmp.Diff([]string{"i"}, a.FileColumns); d != "" {
			t.Error(d)
		}
		for _, x := range a.Predicate {
			if x.Column == "u" && slices.ContainsFunc(x.Values, func(v any) bool { _, ok := v.(uint64); return !ok }) {
				t.Errorf("%v: literal of the wrong kind", x)
			}
		}
	}
}

func TestApplyIsCheap(t *testing.T) {
	s := hiveSet(t, Options{Partitions: "none"})
	file := schemaOf(t, "a int, b string")
	table, err := s.Schema([]*arrow.Schema{file, file}, nil)
	if err != nil {
		t.Fatal(err)
	}
	a, err := s.Adapter(0, table, file, nil, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	rec := record(t, memory.DefaultAllocator, file, `[{"a":1,"b":"x"}]`)
	defer rec.Release()
	bad := new(BadRows)
	base := testing.AllocsPerRun(100, func() { array.NewRecordBatch(table, rec.Columns(), 1).Release() })
	if n := testing.AllocsPerRun(100, func() {
		out, err := a.Apply(driver.Batch{Record: rec, Row: 0}, memory.DefaultAllocator, bad)
		if err != nil {
			t.Fatal(err)
		}
		out.Release()
	}); n > base {
		t.Errorf("%v allocations, NewRecordBatch alone takes %v", n, base)
	}
}
