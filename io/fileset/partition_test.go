package fileset

import (
	"fmt"
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

// A file's own column of a partition's name has the folder's value in all rows, or it is an error.
func TestPartitionInTheFile(t *testing.T) {
	alloc := memtest.New(t)
	for _, c := range []struct{ dir, typ, rows, want string }{
		{"k=7", "int32", `[{"k":7},{"k":7}]`, ""},
		{"k=7", "int32", `[{"k":7},{"k":8}]`, "the value is 8, and the folder says 7"},
		{"k=7", "int32", `[{"k":7},{"k":null}]`, "the value is null, and the folder says 7"},
		{"k=__HIVE_DEFAULT_PARTITION__", "int32", `[{"k":null},{"k":null}]`, ""},
		{"k=__HIVE_DEFAULT_PARTITION__", "int32", `[{"k":null},{"k":0}]`, "the value is 0, and the folder says null"},
		{"k=007", "string", `[{"k":"007"},{"k":"7"}]`, "the value is 7, and the folder says 007"},
		{"k=2024-01-01", "date64", `[{"k":"2024-01-01"},{"k":"2024-01-01"}]`, ""},
		{"k=x", "large_string", `[{"k":"x"},{"k":"x"}]`, ""},
		{"k=1.5", "float", `[{"k":1.5},{"k":1.25}]`, "the value is 1.25"},
		{"k=NaN", "double", `[{"k":1},{"k":1}]`, "the folder says NaN"},
		{"k=7", "null", `[{"k":null},{"k":null}]`, "the value is null"},
		{"k=7", "list<int>", `[{"k":null},{"k":null}]`, "they cannot be compared"},
	} {
		s, err := list(t, &Options{Paths: []string{tree(t, c.dir+"/f") + "/" + c.dir + "/f"}}, nil, nil) // a single file
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
