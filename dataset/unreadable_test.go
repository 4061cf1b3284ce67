package dataset_test

import (
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
)

// A column that cannot be read is in the schema, and an error only where its values are asked for.
func TestUnreadableColumn(t *testing.T) {
	const path = "../io/parquetio/testdata/odd/int128.parquet"
	ds := dataset.ReadParquet(path)
	s, err := ds.Schema(t.Context())
	if err != nil || s.NumFields() != 2 {
		t.Fatal(s, err)
	}
	var text strings.Builder
	if err := dataset.FprintSchema(&text, s); err != nil || text.String() != "id  int64\nx   unsupported (int128)\n" {
		t.Errorf("%q, %v", text.String(), err)
	}
	if n, err := ds.Count(t.Context(), nil); n != 3 || err != nil {
		t.Errorf("%d rows, %v", n, err)
	}
	for name, ds := range map[string]*dataset.Dataset{
		"select":       ds.Select("id"),
		"drop":         ds.Drop("x"),
		"after others": ds.Filter("id > 0").WithColumns("y = id + 1").Drop("x", "y"),
		"renamed":      ds.Rename(map[string]string{"x": "z"}).Select("id"),
	} {
		rec, err := ds.Take(t.Context(), 10, nil)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if rec.NumRows() != 3 || rec.NumCols() != 1 || rec.Column(0).(*array.Int64).Value(2) != 3 {
			t.Errorf("%s: %v", name, rec)
		}
		rec.Release()
	}
	for name, ds := range map[string]*dataset.Dataset{
		"all":       ds,
		"selected":  ds.Select("x"),
		"renamed":   ds.Rename(map[string]string{"x": "z"}),
		"looked at": ds.Filter("is_null(x)").Select("id"),
		"computed":  ds.WithColumns("y = hash(x)").Select("y"),
	} {
		rec, err := ds.Take(t.Context(), 10, nil)
		if err == nil {
			rec.Release()
		}
		if p := fault.PlaceOf(err); fault.CodeOf(err) != fault.Unsupported || p.File != path || p.Column != "x" || p.Step == "" {
			t.Errorf("%s: %v: %v", name, fault.CodeOf(err), err)
		}
	}
}
