package parquetio

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// TestOptionalKeys: a map whose keys may be null in the file, as Hive and others write it, is read;
// a key that is null is an error of its row, which can be left out.
func TestOptionalKeys(t *testing.T) {
	leaf := func(name string) schema.Node { return schema.NewInt32Node(name, parquet.Repetitions.Optional, -1) }
	pair := schema.MustGroup(schema.NewGroupNode("key_value", parquet.Repetitions.Repeated, schema.FieldList{leaf("key"), leaf("value")}, -1))
	m := schema.MustGroup(schema.NewGroupNodeLogical("m", parquet.Repetitions.Optional, schema.FieldList{pair}, schema.MapLogicalType{}, -1))
	path := filepath.Join(t.TempDir(), "f.parquet")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := file.NewParquetWriter(out, schema.MustGroup(schema.NewGroupNode("schema", parquet.Repetitions.Required, schema.FieldList{m}, -1)))
	rg, err := w.AppendRowGroupChecked()
	if err != nil {
		t.Fatal(err)
	}
	// {1: 1, 2: null}, null, {3: 2, null: 3}, {}, {4: 4}
	for _, c := range []struct {
		values []int32
		def    []int16
	}{{[]int32{1, 2, 3, 4}, []int16{3, 3, 0, 3, 2, 1, 3}}, {[]int32{1, 2, 3, 4}, []int16{3, 2, 0, 3, 3, 1, 3}}} {
		cw, err := rg.NextColumn()
		if err == nil {
			_, err = cw.(*file.Int32ColumnChunkWriter).WriteBatch(c.values, c.def, []int16{0, 1, 0, 0, 1, 0, 0})
		}
		if err == nil {
			err = cw.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	tab := mustOpen(t, nil, path)
	var rows []string
	var told []error
	o := driver.ScanOptions{Alloc: memtest.New(t), OnBadRow: func(err error) error { told = append(told, err); return nil }}
	if err := readAll(t.Context(), tab, 0, &o, func(b driver.Batch) {
		for i := range int(b.Record.NumRows()) {
			rows = append(rows, b.Record.Column(0).ValueStr(i))
		}
	}); err != nil {
		t.Fatal(err)
	}
	if got, want := strings.Join(rows, " "), `[{"key":1,"value":1},{"key":2,"value":null}] (null) [] [{"key":4,"value":4}]`; got != want || len(told) != 1 {
		t.Errorf("%s, want %s; %v", got, want, told)
	}
	o.OnBadRow = nil
	err = readAll(t.Context(), tab, 0, &o, nil)
	if p := fault.PlaceOf(err); fault.CodeOf(err) != fault.RowError || p.File != path || p.RowGroup != fault.N(0) || p.Row != fault.N(2) || !strings.HasPrefix(p.Column, "m") {
		t.Errorf("%v", err)
	}
}
