package parquetio

import (
	"fmt"
	"testing"

	"github.com/penstock-data/penstock/io/driver"
)

// TestStoredUnits: testdata/hints.py writes types whose unit in the stored Arrow
// schema is not Parquet's: the unit is Parquet's, and the zone is kept.
func TestStoredUnits(t *testing.T) {
	want := map[string]string{
		"ts_s": "timestamp[ms, tz=Europe/Berlin]", "ts_us": "timestamp[us, tz=Europe/Berlin]", "ts_ns": "timestamp[ns, tz=Europe/Berlin]",
		"local_s": "timestamp[ms]", "t32_s": "time32[ms]", "dur_s": "duration[s]", "dict_s": "timestamp[ms, tz=Europe/Berlin]",
		"list_s":   "list<element: timestamp[ms, tz=Europe/Berlin], nullable>",
		"struct_s": "struct<x: timestamp[ms, tz=Europe/Berlin] nullable>",
		"map_s":    "map<utf8, timestamp[ms, tz=Europe/Berlin], items_nullable>",
	}
	tab := mustOpen(t, nil, "testdata/hints.parquet")
	var columns []string
	for _, f := range tab.Schema().Fields() {
		if got := f.Type.String(); got != want[f.Name] {
			t.Errorf("%s is %s, want %s", f.Name, got, want[f.Name])
		}
		if f.Name != "dur_s" { // durations are not read
			columns = append(columns, f.Name)
		}
	}
	values := map[string]string{
		"ts_s": "[0 1720000000000 (null) -1000]", "ts_us": "[0 1720000000 (null) -1]", "ts_ns": "[0 1720000000 (null) -1]",
		"local_s": "[0 1720000000000 (null) -1000]", "t32_s": "[0 86399000 (null) 1000]", "dict_s": "[0 1720000000000 (null) -1000]",
		"list_s": "[[0 1720000000000 (null) -1000] [] (null) [1000]]", "struct_s": "{[0 1720000000000 (null) -1000]}",
		"map_s": `[{["k"] [1720000000000]} {[] []} (null) {[] []}]`,
	}
	err := readAll(t.Context(), tab, 0, &driver.ScanOptions{Columns: columns}, func(b driver.Batch) {
		for i, c := range b.Record.Columns() {
			name := b.Record.ColumnName(i)
			if got := fmt.Sprint(c); got != values[name] {
				t.Errorf("%s has %s, want %s", name, got, values[name])
			}
			delete(values, name)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(values) > 0 {
		t.Errorf("not read: %v", values)
	}
}
