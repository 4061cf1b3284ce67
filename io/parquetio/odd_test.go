package parquetio

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// What other writers make and Arrow's Go types cannot hold is refused, and it is said which column that is.
func TestUnreadableTypes(t *testing.T) {
	for name, want := range map[string]string{
		"int128":        `column "x": the type is int128`,
		"uint128":       `column "x": the type is uint128`,
		"nested_int128": `column "x.item.a": the type is int128`,
		"no_width":      `column "x": the type is a fixed-size list of 0 values`,
	} {
		path := filepath.Join("testdata", "odd", name+".parquet")
		_, err := open(t, nil, path)
		if fault.CodeOf(err) != fault.Unsupported || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "cast the column to") {
			t.Errorf("%s: %v: %v", name, fault.CodeOf(err), err)
		}
	}
}

// A group that says that it is a map, and has three fields.
func TestColumnWithoutEquivalent(t *testing.T) {
	leaf := func(name string) schema.Node { return schema.NewInt32Node(name, parquet.Repetitions.Required, -1) }
	group := func(name string, r parquet.Repetition, kids ...schema.Node) *schema.GroupNode {
		return schema.Must(schema.NewGroupNode(name, r, kids, -1)).(*schema.GroupNode)
	}
	odd := schema.MustGroup(schema.NewGroupNodeLogical("odd", parquet.Repetitions.Optional, schema.FieldList{
		group("key_value", parquet.Repetitions.Repeated, leaf("a"), leaf("b"), leaf("c"))}, schema.MapLogicalType{}, -1))
	path := filepath.Join(t.TempDir(), "f.parquet")
	out, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	w := file.NewParquetWriter(out, group("schema", parquet.Repetitions.Required, leaf("id"), odd))
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	_, err = open(t, nil, path)
	if fault.CodeOf(err) != fault.Unsupported || !strings.Contains(err.Error(), `column "odd": the type has no Arrow equivalent`) {
		t.Errorf("%v: %v", fault.CodeOf(err), err)
	}
}

// A file without columns is one of rows that hold nothing: they count, and steps can make columns of them.
func TestNoColumns(t *testing.T) {
	path := filepath.Join("testdata", "odd", "no_columns.parquet")
	o := &Options{}
	o.RowColumn = "row"
	for _, c := range []struct {
		o      *Options
		fields int
	}{{nil, 0}, {o, 1}} {
		tab := mustOpen(t, c.o, path)
		if n := tab.Schema().NumFields(); n != c.fields || len(tab.Splits()) != 1 || tab.Splits()[0].Rows != 5 {
			t.Errorf("%d columns, splits %+v", n, tab.Splits())
		}
		rows := int64(0)
		err := readAll(t.Context(), tab, 0, &driver.ScanOptions{Alloc: memtest.New(t), FromRow: 2, BatchRows: 2}, func(b driver.Batch) {
			if int(b.Record.NumCols()) != c.fields || b.Row != 2+rows {
				t.Errorf("%d columns at row %d", b.Record.NumCols(), b.Row)
			}
			rows += b.Record.NumRows()
		})
		if err != nil || rows != 3 {
			t.Errorf("%d rows, %v", rows, err)
		}
	}
}

// A damaged page is not a bad row: nobody knows which rows it holds. Its error ends the reading whatever is done with bad rows, and says which file,
// row group and column it is.
func TestDamagedPageIsNamed(t *testing.T) {
	schema := schemaOf("id", arrow.PrimitiveTypes.Int64, "x", arrow.PrimitiveTypes.Float64)
	rb := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer rb.Release()
	for i := range 4000 {
		rb.Field(0).(*array.Int64Builder).Append(int64(i))
		rb.Field(1).(*array.Float64Builder).Append(float64(i * i))
	}
	rec := rb.NewRecordBatch()
	defer rec.Release()
	path := filepath.Join(t.TempDir(), "f.parquet")
	writeFile(t, path, &EncodingOptions{RowGroupRows: 1000}, memtest.New(t), rec)
	tab := mustOpen(t, nil, path).(*table)
	c := tab.footers[0].group(2).chunks[1]
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for i := c.start + c.size/2; i < c.start+c.size; i++ {
		b[i] ^= 0x55
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	tab = mustOpen(t, nil, path).(*table)
	for split := range tab.Splits() {
		bad := 0
		o := &driver.ScanOptions{Alloc: memtest.New(t), OnBadRow: func(error) error { bad++; return nil }}
		err := readAll(t.Context(), tab, split, o, func(driver.Batch) {})
		if split != 2 {
			if err != nil {
				t.Errorf("split %d: %v", split, err)
			}
			continue
		}
		p := fault.PlaceOf(err)
		if group, _ := p.RowGroup.Get(); fault.CodeOf(err) != fault.Corrupt || p.File != path || group != 2 || p.Column != "x" || bad > 0 {
			t.Errorf("%v: %v; %d bad rows", fault.CodeOf(err), err, bad)
		}
		if !strings.Contains(err.Error(), path+", row group 2, row ") || !strings.Contains(err.Error(), `column "x": a page does not decompress`) {
			t.Error(err)
		}
	}
}
