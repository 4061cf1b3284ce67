package dataset_test

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
)

// Columns of which a part is always null, and so of type null, are read, dealt, computed with and written like others.
func TestNullsInside(t *testing.T) {
	null := arrow.Field{Name: "b", Type: arrow.Null, Nullable: true}
	holder := arrow.StructOf(arrow.Field{Name: "a", Type: arrow.PrimitiveTypes.Int64, Nullable: true}, null)
	for n, c := range []struct {
		typ  arrow.DataType
		json string
	}{
		{holder, `[{"a": 1, "b": null}, {"a": 2, "b": null}, null]`},
		{arrow.StructOf(arrow.Field{Name: "x", Type: arrow.StructOf(null), Nullable: true}), `[{"x": {"b": null}}, null, {"x": null}]`},
		{arrow.ListOf(holder), `[[{"a": 1, "b": null}], [], null]`},
		{arrow.FixedSizeListOf(2, arrow.Null), `[[null, null], [null, null], null]`},
		{arrow.FixedSizeListOf(2, holder), `[[{"a": 1, "b": null}, null], null, null]`},
		{arrow.MapOf(arrow.BinaryTypes.String, arrow.Null), `[[{"key": "k", "value": null}], [], null]`},
		{&arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.Null}, ""},
	} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			dir := t.TempDir()
			id, _, err := array.FromJSON(memory.DefaultAllocator, arrow.PrimitiveTypes.Int64, strings.NewReader("[1, 2, 3]"))
			if err != nil {
				t.Fatal(err)
			}
			var col arrow.Array
			if d, ok := c.typ.(*arrow.DictionaryType); ok {
				index := array.NewInt32Builder(memory.DefaultAllocator)
				index.AppendValues([]int32{0, 0, 0}, []bool{true, false, true})
				col = array.NewDictionaryArray(d, index.NewArray(), array.NewNull(1))
			} else if col, _, err = array.FromJSON(memory.DefaultAllocator, c.typ, strings.NewReader(c.json)); err != nil {
				t.Fatal(err)
			}
			schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: id.DataType()}, {Name: "c", Type: c.typ, Nullable: true}}, nil)
			mem := dataset.FromRecords(schema, array.NewRecordBatch(schema, []arrow.Array{id, col}, 3))
			var want []string
			for i := range 3 {
				want = append(want, id.ValueStr(i)+" "+col.ValueStr(i)+" true")
			}
			o := dataset.WriteOptions{RunID: "nulls"}
			ipc, parquet := filepath.Join(dir, "ipc"), filepath.Join(dir, "parquet")
			if _, err := mem.WriteIPC(t.Context(), ipc, &o); err != nil {
				t.Fatal(err)
			}
			if _, err := mem.WriteParquet(t.Context(), parquet, &o); err != nil {
				t.Fatal(err)
			}
			for name, ds := range map[string]*dataset.Dataset{"memory": mem, "ipc": dataset.ReadIPC(ipc), "parquet": dataset.ReadParquet(parquet)} {
				for _, s := range []shard.Shuffle{{Mode: shard.ModeNone}, {Lanes: 1, WindowRows: 2}} {
					got, _ := dealt(t, ds, dataset.ShardOptions{Options: shard.Options{GlobalBatch: 2, Tail: shard.TailPad, Shuffle: &s}}, 0)
					if slices.Sort(got); !slices.Equal(got, want) {
						t.Errorf("%s: dealt %q, want %q", name, got, want)
					}
				}
				if rec, err := ds.Filter("id > 5").Take(t.Context(), 2, nil); err != nil || rec.NumRows() != 0 {
					t.Errorf("%s: %v, %v", name, rec, err)
				}
				if n, err := ds.WithColumns("d = id > 1 ? c : null").Filter("is_not_null(d) || id < 9").Drain(t.Context(), nil); err != nil || n.RowsOut != 3 {
					t.Errorf("%s: %+v, %v", name, n, err)
				}
				if _, err := ds.WriteJSON(t.Context(), filepath.Join(dir, "json", name), &o); err != nil {
					t.Errorf("%s: %v", name, err)
				}
				if _, err := ds.WriteCSV(t.Context(), filepath.Join(dir, "csv", name), &o); err == nil || !strings.Contains(err.Error(), "csv cannot hold ") {
					t.Errorf("%s: %v", name, err)
				}
			}
		})
	}
}
