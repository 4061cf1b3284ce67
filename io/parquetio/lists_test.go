package parquetio

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"github.com/penstock-data/penstock/io/driver"
)

// Lists as older writers and other formats' libraries make them are what the format's rules say, and what pyarrow 25 reads from these files (but where
// it refuses one). pqarrow is no oracle here: the schema that it makes of such a file has lists of structs and of lists that are none, nullable elements where none can be null, and
// other names; beside our own schema, as other tests use it, it cannot tell.
func TestRulesOfLists(t *testing.T) {
	req, opt, rep := parquet.Repetitions.Required, parquet.Repetitions.Optional, parquet.Repetitions.Repeated
	type levels struct{ defs, reps, values []int }
	leaf := func(name string, r parquet.Repetition) schema.Node { return schema.NewInt32Node(name, r, -1) }
	as := func(l schema.LogicalType) func(string, parquet.Repetition, ...schema.Node) schema.Node {
		return func(name string, r parquet.Repetition, kids ...schema.Node) schema.Node {
			return schema.Must(schema.NewGroupNodeLogical(name, r, kids, l, -1))
		}
	}
	group, list, aMap := as(nil), as(schema.NewListLogicalType()), as(schema.MapLogicalType{})
	flat := levels{[]int{0, 1, 2, 2}, []int{0, 0, 0, 1}, []int{1, 2}}
	inner := levels{[]int{0, 1, 2, 3}, []int{0, 0, 0, 1}, []int{7}}
	twice := levels{[]int{0, 1, 2, 3, 3, 3}, []int{0, 0, 0, 0, 2, 1}, []int{1, 2, 3}}
	for _, c := range []struct {
		name      string
		column    schema.Node
		leaves    []levels
		typ, text string
	}{
		{"repeated primitive", list("a", opt, leaf("element", rep)), []levels{flat}, "list<element: int32>", "null [] [1,2]"},
		{"several fields", list("a", opt, group("element", rep, leaf("s", req), leaf("n", opt))), []levels{flat, inner}, "list<element: struct<s: int32, n: int32 nullable>>", "null [] [{1,null},{2,7}]"},
		{"list of several fields in two levels", list("a", opt, list("element", rep, leaf("s", req), leaf("n", opt))), []levels{flat, inner}, "list<element: struct<s: int32, n: int32 nullable>>", "null [] [{1,null},{2,7}]"},
		{"list of several fields, one repeated, in two levels", list("a", opt, list("array", rep, leaf("s", req), leaf("x", rep))), []levels{flat, {[]int{0, 1, 2, 3, 3}, []int{0, 0, 0, 1, 2}, []int{7, 8}}},
			"list<array: struct<s: int32, x: list<x: int32>>>", "null [] [{1,[]},{2,[7,8]}]"},
		{"map of several fields in two levels", list("a", opt, aMap("element", rep, leaf("s", req), leaf("n", opt))), []levels{flat, inner}, "list<element: struct<s: int32, n: int32 nullable>>", "null [] [{1,null},{2,7}]"},
		{"array of one field", list("a", opt, group("array", rep, leaf("s", opt))), []levels{inner}, "list<array: struct<s: int32 nullable>>", "null [] [{null},{7}]"},
		{"tuple of one field", list("a", opt, group("a_tuple", rep, leaf("s", opt))), []levels{inner}, "list<a_tuple: struct<s: int32 nullable>>", "null [] [{null},{7}]"},
		{"three levels", list("a", opt, group("bag", rep, leaf("s", opt))), []levels{inner}, "list<s: int32, nullable>", "null [] [null,7]"},
		{"tuple of another list", list("a", opt, group("b_tuple", rep, leaf("s", opt))), []levels{inner}, "list<s: int32, nullable>", "null [] [null,7]"},
		{"list of two levels in two", list("a", opt, list("array", rep, leaf("array", rep))), []levels{twice}, "list<array: list<array: int32>>", "null [] [[]] [[1,2],[3]]"},
		{"list of two levels in two by another name", list("a", opt, list("element", rep, leaf("x", rep))), []levels{twice}, "list<element: list<x: int32>>", "null [] [[]] [[1,2],[3]]"},
		{"list of three levels in two", list("a", opt, list("element", rep, group("list", rep, leaf("x", opt)))),
			[]levels{{[]int{0, 2, 3, 4, 2}, []int{0, 0, 0, 2, 1}, []int{4}}}, "list<element: list<x: int32, nullable>>", "null [[]] [[null,4],[]]"},
		{"map in two levels", list("a", opt, aMap("array", rep, group("key_value", rep, leaf("key", req), leaf("value", opt)))),
			[]levels{{[]int{0, 2, 3, 3, 2}, []int{0, 0, 0, 2, 1}, []int{1, 2}}, {[]int{0, 2, 3, 4, 2}, []int{0, 0, 0, 2, 1}, []int{9}}},
			"list<array: map<int32, int32, items_nullable>>", "null [[]] [[(1:null),(2:9)],[]]"},
		{"one repeated field", list("a", opt, group("element", rep, leaf("x", rep))), []levels{twice}, "list<element: struct<x: list<x: int32>>>", "null [] [{[]}] [{[1,2]},{[3]}]"},
		{"no list around a primitive", leaf("a", rep), []levels{{[]int{0, 1, 1}, []int{0, 0, 1}, []int{1, 2}}}, "list<a: int32>", "[] [1,2]"},
		{"no list around a group", group("a", rep, leaf("x", opt)), []levels{{[]int{0, 1, 2}, []int{0, 0, 1}, []int{8}}}, "list<a: struct<x: int32 nullable>>", "[] [{null},{8}]"},
		{"beneath a struct", group("a", opt, list("b", opt, list("array", rep, leaf("x", rep)))), []levels{{[]int{0, 1, 2, 3, 4, 4, 4}, []int{0, 0, 0, 0, 0, 2, 1}, []int{1, 2, 3}}},
			"struct<b: list<array: list<x: int32>> nullable>", "null {null} {[]} {[[]]} {[[1,2],[3]]}"},
		{"beneath a map", aMap("a", opt, group("key_value", rep, leaf("key", req), list("value", opt, group("array", rep, leaf("x", opt))))),
			[]levels{{[]int{0, 2, 2}, []int{0, 0, 1}, []int{5, 6}}, {[]int{0, 2, 4, 5}, []int{0, 0, 1, 2}, []int{3}}},
			"map<int32, list<array: struct<x: int32 nullable>>, items_nullable>", "null [(5:null),(6:[{null},{3}])]"},
	} {
		path := filepath.Join(t.TempDir(), "f.parquet")
		out, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		w := file.NewParquetWriter(out, group("schema", req, c.column).(*schema.GroupNode))
		rg, err := w.AppendBufferedRowGroupChecked()
		if err != nil {
			t.Fatal(err)
		}
		for i, l := range c.leaves {
			cw, err := rg.Column(i)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := cw.(*file.Int32ColumnChunkWriter).WriteBatch(ints[int32](l.values), ints[int16](l.defs), ints[int16](l.reps)); err != nil {
				t.Fatal(err)
			}
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		f := mustOpen(t, nil, path).Schema().Field(0)
		if f.Name != "a" || f.Type.String() != c.typ || f.Nullable != (c.column.RepetitionType() == opt) {
			t.Errorf("%s: %v, want %s", c.name, f, c.typ)
		}
		for _, rows := range []int{0, 1} {
			_, cols, _, err := columns(t, path, driver.ScanOptions{BatchRows: rows})
			if err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if got := strings.Join(cols[0], " "); got != c.text {
				t.Errorf("%s: %s, want %s", c.name, got, c.text)
			}
		}
	}
}

func ints[T int16 | int32](of []int) []T {
	out := make([]T, len(of))
	for i, v := range of {
		out[i] = T(v)
	}
	return out
}
