package fileset

import (
	"fmt"
	"net/url"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
)

func parts(s *Set) string {
	var b []string
	for _, p := range s.parts {
		b = append(b, p.name+" "+typename.Name(p.typ))
	}
	for i := range s.Files {
		var vs []string
		for _, v := range s.Files[i].parts {
			vs = append(vs, fmt.Sprint(v.v))
		}
		b = append(b, strings.Join(vs, ","))
	}
	return strings.Join(b, "; ")
}

// What folders are guessed to be: as CSV does, but for floats, and months.
func TestPartitionGuess(t *testing.T) {
	for _, c := range []struct{ a, b, want string }{
		{"k=501", "k=00501", "k string; 00501; 501"},
		{"k=+49", "k=1", "k string; +49; 1"},
		{"k=01", "k=12", "k int64; 1; 12"},
		{"k=00", "k=23", "k int64; 0; 23"},
		{"k=01", "k=1", "k string; 01; 1"},
		{"k=001", "k=012", "k string; 001; 012"},
		{"k=1", "k=18446744073709551615", "k uint64; 1; 18446744073709551615"},
		{"k=1.10", "k=1.1", "k string; 1.1; 1.10"},
		{"k=true", "k=false", "k bool; false; true"},
		{"k=2024-01-02", "k=__HIVE_DEFAULT_PARTITION__", "k date; 19724; <nil>"},
		{"k=%5F_HIVE_DEFAULT_PARTITION__", "k=__HIVE_DEFAULT_PARTITION__", "k string; __HIVE_DEFAULT_PARTITION__; <nil>"},
		{"k=1970-01-01T00%3A00%3A01", "k=1970-01-01 00:00:02", "k timestamp; 2000000; 1000000"},
		{"k=1970-01-01T00%3A00%3A01Z", "k=__HIVE_DEFAULT_PARTITION__", "k timestamp[us, UTC]; 1000000; <nil>"},
		{"k=", "k=1", "k string; ; 1"},
	} {
		s, err := list(t, &Options{Paths: []string{tree(t, c.a+"/f", c.b+"/f")}}, nil, nil)
		if err != nil {
			t.Errorf("%s, %s: %v", c.a, c.b, err)
		} else if got := parts(s); got != c.want {
			t.Errorf("%s, %s: got %s, want %s", c.a, c.b, got, c.want)
		}
	}
}

// A name that is not UTF-8 is no text, and no two folders become one value.
func TestPartitionText(t *testing.T) {
	for _, dir := range []string{"k=caf\xe9", "k\xe9=1", "k=caf%E9"} {
		if _, err := list(t, &Options{Paths: []string{tree(t, dir+"/f")}}, nil, nil); fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), "UTF-8") {
			t.Errorf("%q: %v", dir, err)
		}
		if _, err := list(t, &Options{Paths: []string{tree(t, dir+"/f")}, Partitions: "none"}, nil, nil); err != nil {
			t.Errorf("%q: %v", dir, err)
		}
	}
	if s, err := list(t, &Options{Paths: []string{tree(t, "k=1/k=1/f")}}, nil, nil); err != nil || parts(s) != "k int64; 1" {
		t.Errorf("%v", err)
	}
	for _, dir := range []string{"k=1/k=2", "k=__HIVE_DEFAULT_PARTITION__/k=%5F_HIVE_DEFAULT_PARTITION__"} {
		if _, err := list(t, &Options{Paths: []string{tree(t, dir+"/f")}}, nil, nil); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), dir) {
			t.Errorf("%v", err)
		}
	}
}

// Files say which types their folders have.
func TestPartitionClaims(t *testing.T) {
	x, own := schemaOf(t, "x int"), schemaOf(t, "k string, x int")
	for _, c := range []struct {
		o       Options
		files   []*arrow.Schema
		stored  []string
		want    string
		problem string
	}{
		{Options{}, []*arrow.Schema{x, x}, nil, "k int64; 501; 7", ""},
		{Options{}, []*arrow.Schema{x, x}, []string{`{"k":"string"}`, `{"k":"string"}`}, "k string; 501; 7", ""},
		{Options{}, []*arrow.Schema{x, x}, []string{`{"k":"int32","z":"date"}`, ``}, "k int32; 501; 7", ""},
		{Options{}, []*arrow.Schema{x, x}, []string{`{"k":"int16"}`, `{"k":"uint16"}`}, "k int32; 501; 7", ""},
		{Options{}, []*arrow.Schema{x, x}, []string{`{"k":"null"}`, `{"k":"int8"}`}, "", `"501" is no int8, which is the column's type in`},
		{Options{}, []*arrow.Schema{own, x}, nil, "k string; 501; 7", ""},
		{Options{}, []*arrow.Schema{x, x}, []string{`{"k":"string"}`, `{"k":"int64"}`}, "", "set partition_types: {k: string}"},
		{Options{PartitionTypes: map[string]string{"k": "double"}}, []*arrow.Schema{own, x}, []string{`{"k":"string"}`, `{"k":"int64"}`}, "k double; 501; 7", ""},
		{Options{}, []*arrow.Schema{x, x}, []string{`{"k":"date"}`, ``}, "", `"501" is no date`},
		{Options{}, []*arrow.Schema{x, x}, []string{`{`, ``}, "", "damaged"},
		{Options{}, []*arrow.Schema{x, x}, []string{`{"k":"list<int>"}`, ``}, "", "damaged"},
		{Options{}, []*arrow.Schema{x, x}, []string{`{"k":"int","k":"string"}`, ``}, "", `"k" twice`},
		{Options{}, []*arrow.Schema{x, x}, []string{`{"k":"int"} `, `{"k":"int"}{}`}, "", "no JSON object of texts"},
		{Options{}, []*arrow.Schema{x, x}, []string{`{"k":null}`, ``}, "", "no JSON object of texts"},
		{Options{}, []*arrow.Schema{x, x}, []string{`{"k":{"a":"int"}}`, ``}, "", "no JSON object of texts"},
		{Options{}, []*arrow.Schema{x, x}, []string{`["k"]`, ``}, "", "no JSON object of texts"},
	} {
		o := c.o
		o.Paths = []string{tree(t, "k=501/f", "k=7/f")}
		s, err := list(t, &o, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		_, err = s.Unify(c.files, c.stored)
		if c.problem != "" {
			if err == nil || !strings.Contains(err.Error(), c.problem) {
				t.Errorf("%v: %v", c.stored, err)
			}
			continue
		}
		if got := parts(s); err != nil || got != c.want {
			t.Errorf("%v: got %s, %v, want %s", c.stored, got, err, c.want)
		}
	}
}

// Of what a file says of the types of its folders no more is read than a path has room for, and no
// more is shown.
func TestPartitionClaimsAreShort(t *testing.T) {
	long := strings.Repeat("x", 100<<10)
	many := make([]string, mostKeys+1)
	for i := range many {
		many[i] = fmt.Sprintf(`"k%d":"int"`, i)
	}
	for _, text := range []string{
		long + long, long, `{"k":"` + long + `"}`, `{"k":` + strings.Repeat("1", 100<<10) + `}`, `{"k":"int ` + long + `"}`, `{"k":"list ` + long + `"}`,
		`{"k":"decimal(` + long + `"}`, `{"k":"timestamp[us,` + long + `]"}`, `{"k":"struct<` + long + `"}`, `{"k":"struct<a:int` + long + `>"}`,
		`{"k":"struct<!` + long + `"}`, `{"k":"` + strings.Repeat("list<", 1000) + `"}`, `{"k":"!` + long + `"}`, `{"k":"struct<` + strings.Repeat("a:int,", 10_000) + `b:int>"}`,
		`{"` + long + `":"int","` + long[:1] + `":"date","` + long + `":"int"}`, `{"k":"struct<\"` + long + `"}`,
		"{" + strings.Join(many, ",") + "}",
	} {
		if _, err := storedTypes(text); fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), "partition_types") || len(err.Error()) > 1000 {
			t.Errorf("%.60s: %.2000v", text, err)
		}
	}
	if types, err := storedTypes("{" + strings.Join(many[1:], ",") + "}"); err != nil || len(types) != mostKeys {
		t.Error(err)
	}
}

// The values of all columns that folders give are kept for each file, so that they are bounded.
func TestManyPartitionColumns(t *testing.T) {
	var names []string
	for i := range mostKeys + 1 {
		names = append(names, fmt.Sprintf("k%03d=%d/f", i, i))
	}
	if s, err := list(t, &Options{Paths: []string{tree(t, names[1:]...)}}, nil, nil); err != nil || len(s.parts) != mostKeys {
		t.Error(err)
	}
	dir := tree(t, names...)
	_, err := list(t, &Options{Paths: []string{dir}}, nil, nil)
	if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "partitions: none") || fault.PlaceOf(err).File == "" {
		t.Error(err)
	}
	if _, err := list(t, &Options{Paths: []string{dir}, Partitions: "none"}, nil, nil); err != nil {
		t.Error(err)
	}
}

// No type makes one value of two folders that say different things, whoever names it: the user, the
// files' metadata or a column of theirs. A folder that a type does not hold exactly is an error
// that names folder, type and what to do.
func TestPartitionsAreExact(t *testing.T) {
	for _, c := range []struct{ typ, dir, problem string }{
		{"double", "9007199254740993", "it would be 9.007199254740992e+15"},
		{"double", "9007199254740992", ""},
		{"double", "-9007199254740993", "is not exactly a double"},
		{"double", "0.1", ""},
		{"double", "1.10", ""},
		{"double", "0.30000000000000001", "it would be 0.3"},
		{"double", "1e22", ""},
		{"double", "1E+2", ""},
		{"double", "-0", ""},
		{"double", "1e-999999999999999999999", "it would be 0"},
		{"double", "1e999", "is no double"},
		{"double", "NaN", ""},
		{"double", "-inf", ""},
		{"float", "16777217", "it would be 1.6777216e+07"},
		{"float", "16777216", ""},
		{"float", "0.1", ""},
		{"float", "0.123456789", "is not exactly a float"},
		{"int8", "128", "is no int8"},
		{"uint8", "-1", "is no uint8"},
		{"uint64", "18446744073709551616", "is no uint64"},
		{"int64", "9223372036854775808", "is no int64"},
		{"int64", "1.0", ""},
		{"int64", "1.5", "is no int64"},
		{"bool", "2", "is no bool"},
		{"date", "2024-01-02T00:00:00", "is no date"},
		{"date", "2023-02-29", "is no date"},
		{"date64", "2024-01-02", ""},
		{"timestamp[s]", "2024-01-02T03:04:05.5", "more precise"},
		{"timestamp[ms]", "2024-01-02T03:04:05.0001", "more precise"},
		{"timestamp[s]", "1969-12-31T23:59:59", ""},
		{"timestamp[ns]", "2024-01-02T03:04:05.123456789", ""},
		{"timestamp[ns]", "2300-01-01", "out of range"},
		{"timestamp", "2024-01-02T03:04:05Z", "offset from UTC, and the type has none"},
		{"timestamp", "2024-01-02", ""},
		{"timestamp[us, UTC]", "2024-01-02T03:04:05Z", ""},
		{"timestamp[us, UTC]", "2024-01-02T03:04:05", ""},
		{"timestamp[s, Europe/Berlin]", "2024-03-31T03:30:00", ""},
		{"timestamp[s, Europe/Berlin]", "2024-03-31T02:30:00", "never shows it"},
		{"timestamp[s, Europe/Berlin]", "2024-03-31T02:30:00+01:00", ""},
		{"timestamp[s, Europe/Berlin]", "1893-03-31T23:59:59", ""},
		{"timestamp[ms, Europe/Berlin]", "1969-03-31T02:30:00.5", ""},
		{"string", "9007199254740993", ""},
		{"large_string", "01", ""},
	} {
		dir := tree(t, "k="+url.PathEscape(c.dir)+"/f")
		check := func(err error, what string) {
			t.Helper()
			if (err == nil) != (c.problem == "") || err != nil && (fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.problem) ||
				!strings.Contains(err.Error(), c.dir) || !strings.Contains(err.Error(), "set partition_types") || !strings.Contains(fault.PlaceOf(err).File, "k=")) {
				t.Errorf("%s of %s, %s: %v", c.typ, c.dir, what, err)
			}
		}
		_, err := list(t, &Options{Paths: []string{dir}, PartitionTypes: map[string]string{"k": c.typ}}, nil, nil)
		check(err, "declared")
		for what, own := range map[string]string{"stored": "x int", "own column": "k " + c.typ + ", x int"} {
			s, err := list(t, &Options{Paths: []string{dir}}, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			var stored []string
			if what == "stored" {
				stored = []string{`{"k":"` + c.typ + `"}`}
			}
			_, err = s.Unify([]*arrow.Schema{schemaOf(t, own)}, stored)
			check(err, what)
		}
	}
}

// A file's own column of a partition's name has the folder's value in all rows, or it is an error.
func TestPartitionInTheFile(t *testing.T) {
	alloc := memtest.New(t)
	for _, c := range []struct{ dir, typ, rows, want, folder string }{
		{"k=7", "int32", `[{"k":7},{"k":7}]`, "", ""},
		{"k=7", "int32", `[{"k":7},{"k":8}]`, "the value is 8, and the folder says 7", ""},
		{"k=7", "int32", `[{"k":7},{"k":null}]`, "the value is null, and the folder says 7", ""},
		{"k=__HIVE_DEFAULT_PARTITION__", "int32", `[{"k":null},{"k":null}]`, "", ""},
		{"k=__HIVE_DEFAULT_PARTITION__", "int32", `[{"k":null},{"k":0}]`, "the value is 0, and the folder says null", ""},
		{"k=007", "string", `[{"k":"007"},{"k":"7"}]`, "the value is 7, and the folder says 007", ""},
		{"k=2024-01-01", "date64", `[{"k":"2024-01-01"},{"k":"2024-01-01"}]`, "", ""},
		{"k=x", "large_string", `[{"k":"x"},{"k":"x"}]`, "", ""},
		{"k=1.5", "float", `[{"k":1.5},{"k":1.25}]`, "the value is 1.25", ""},
		{"k=NaN", "double", `[{"k":1},{"k":1}]`, "the folder says NaN", ""},
		{"k=7", "null", `[{"k":null},{"k":null}]`, "the value is null", ""},
		{"k=7", "list<int>", `[{"k":null},{"k":null}]`, "they cannot be compared", ""},
		{"k=0.1", "double", `[{"k":0.1},{"k":0.1}]`, "", "float"},
		{"k=16777216", "double", `[{"k":16777216},{"k":16777217}]`, "the value is 1.6777217e+07, and the folder says 16777216", "float"},
		{"k=nan", "double", `[{"k":1},{"k":1}]`, "the folder says NaN", "float"},
		{"k=1.5", "decimal(20, 3)", `[{"k":"1.5"},{"k":"1.500"}]`, "", "double"},
		{"k=9007199254740992", "decimal(20, 0)", `[{"k":"9007199254740992"},{"k":"9007199254740993"}]`, "the value is 9007199254740993, and", "double"},
		{"k=9007199254740992", "int64", `[{"k":9007199254740992},{"k":9007199254740993}]`, "9007199254740993 does not fit double", "double"},
		{"k=7", "double", `[{"k":7},{"k":7.5}]`, "7.5 does not fit int64", "int64"},
		{"k=2024-01-01", "timestamp[s]", `[{"k":"2024-01-01"},{"k":"2024-01-01T01:00:00"}]`, "is more precise than date", "date"},
	} {
		o := Options{Paths: []string{tree(t, c.dir+"/f") + "/" + c.dir + "/f"}} // a single file
		if c.folder != "" {
			o.PartitionTypes = map[string]string{"k": c.folder}
		}
		s, err := list(t, &o, nil, nil)
		if err != nil {
			t.Fatal(err)
		}
		file := schemaOf(t, "k "+c.typ+", x int")
		table, err := s.Schema([]*arrow.Schema{file}, nil)
		if err != nil {
			t.Fatal(c, err)
		}
		ad, err := s.Adapter(0, table, file, []string{"x"}, nil, 0)
		if err != nil || len(ad.FileColumns) != 1 {
			t.Errorf("%v: what is not wanted is read: %v", c, err)
		}
		ad.Release()
		if ad, err = s.Adapter(0, table, file, []string{"k"}, nil, 0); err == nil {
			rec := record(t, alloc, schemaOf(t, "k "+c.typ), c.rows)
			var out arrow.RecordBatch
			if out, err = apply(ad, driver.Batch{Record: rec, Row: 10}, alloc); err == nil {
				if !out.Schema().Field(0).Equal(table.Field(table.FieldIndices("k")[0])) {
					t.Errorf("%v: %v", c, out)
				}
				out.Release()
			} else if p := fault.PlaceOf(err); p.Row != fault.N(10) && p.Row != fault.N(11) || p.Column != "k" || p.File == "" {
				t.Errorf("%v: %v", c, err)
			}
			rec.Release()
			ad.Release()
		}
		code := fault.RowError
		if strings.HasPrefix(c.want, "they cannot") {
			code = fault.Invalid
		}
		if (err == nil) != (c.want == "") || err != nil && (!strings.Contains(err.Error(), c.want) || fault.CodeOf(err) != code) {
			t.Errorf("%v: %v", c, err)
		}
	}
}

// A date is no number of days to a filter where the folders are of times in another unit, and times that
// are written in two ways are one.
func TestPruneOfTimes(t *testing.T) {
	dir := tree(t, "k=2024-01-01T00:00:00/f", "k=2024-01-02T00:00:00/f")
	for _, p := range []driver.Predicate{
		{{Column: "k", Op: driver.Ge, Values: []any{int64(19724)}}},
		{{Column: "k", Op: driver.Eq, Values: []any{"2024-01-02"}}},
		{{Column: "k", Op: driver.Eq, Values: []any{"2024-01-02 00:00:00"}}},
	} {
		s, err := list(t, &Options{Paths: []string{dir}}, nil, p)
		if err != nil || !strings.Contains(rels(s), "2024-01-02") {
			t.Errorf("%v: %v, %v", p, s, err)
		}
	}
}
