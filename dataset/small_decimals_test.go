package dataset_test

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/dataset"
)

// Decimals of 32 and 64 bits can be cast to all that decimals can, and come out of files as
// decimals of 128, from where every sink takes them.
func TestSmallDecimals(t *testing.T) {
	small := arrow.NewSchema([]arrow.Field{
		{Name: "a", Type: &arrow.Decimal32Type{Precision: 7, Scale: 2}, Nullable: true},
		{Name: "b", Type: &arrow.Decimal64Type{Precision: 18, Scale: 2}, Nullable: true},
		{Name: "c", Type: arrow.ListOf(&arrow.Decimal32Type{Precision: 7, Scale: 2}), Nullable: true}}, nil)
	rows := `[{"a": "1.25", "b": "9999999999999999.99", "c": ["0.5", null]}, {"a": null, "b": null, "c": null}, {"a": "-99999.99", "b": "-0.01", "c": []}]`
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, small, strings.NewReader(rows))
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	ds := dataset.FromRecords(small, rec)
	same := func(what string, ds *dataset.Dataset, schema *arrow.Schema, rows string) {
		t.Helper()
		got, err := ds.Collect(t.Context(), nil)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		defer got.Release()
		want, err := array.TableFromJSON(memory.DefaultAllocator, schema, []string{rows})
		if err != nil {
			t.Fatal(err)
		}
		defer want.Release()
		if !array.TableEqual(got, want) {
			t.Errorf("%s: %v\nwant %v", what, got, want)
		}
	}
	of := func(types ...arrow.DataType) *arrow.Schema {
		s := arrow.NewSchema(nil, nil)
		for i, typ := range types {
			s, _ = s.AddField(i, arrow.Field{Name: string('a' + rune(i)), Type: typ, Nullable: true})
		}
		return s
	}
	two := ds.Select("a", "b")
	d7, d18 := &arrow.Decimal128Type{Precision: 7, Scale: 2}, &arrow.Decimal128Type{Precision: 18, Scale: 2}
	same("cast to decimals", two.Cast(map[string]string{"a": "decimal(7, 2)", "b": "decimal(20, 3)"}), of(d7, &arrow.Decimal128Type{Precision: 20, Scale: 3}),
		`[{"a": "1.25", "b": "9999999999999999.99"}, {"a": null, "b": null}, {"a": "-99999.99", "b": "-0.01"}]`)
	same("cast to others", two.Cast(map[string]string{"a": "double", "b": "string"}), of(arrow.PrimitiveTypes.Float64, arrow.BinaryTypes.String),
		`[{"a": 1.25, "b": "9999999999999999.99"}, {"a": null, "b": null}, {"a": -99999.99, "b": "-0.01"}]`)
	for name, write := range map[string]func(dir string) error{
		"ipc": func(dir string) error {
			_, err := ds.WriteIPC(t.Context(), dir, &dataset.WriteOptions{RunID: "x"})
			return err
		},
		"parquet": func(dir string) error {
			_, err := ds.WriteParquet(t.Context(), dir, &dataset.WriteOptions{RunID: "x"})
			return err
		},
	} {
		dir := filepath.Join(t.TempDir(), "out")
		if err := write(dir); err != nil {
			t.Fatal(err)
		}
		read := dataset.ReadIPC
		if name == "parquet" {
			read = dataset.ReadParquet
		}
		same(name, read(dir).Select("a", "b", "c"), of(d7, d18, arrow.ListOf(d7)), rows)
		for format, write := range map[string]func(*dataset.Dataset, string) (*dataset.WriteResult, error){
			"json": func(ds *dataset.Dataset, dir string) (*dataset.WriteResult, error) {
				return ds.WriteJSON(t.Context(), dir, nil)
			},
			"csv": func(ds *dataset.Dataset, dir string) (*dataset.WriteResult, error) {
				return ds.Select("a", "b").WriteCSV(t.Context(), dir, nil)
			},
		} {
			if res, err := write(read(dir), filepath.Join(t.TempDir(), format)); err != nil || res.Rows != 3 {
				t.Errorf("%s to %s: %+v, %v", name, format, res, err)
			}
		}
	}
}
