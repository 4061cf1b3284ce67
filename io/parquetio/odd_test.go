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
	"github.com/penstock-data/penstock/io/fileset"
)

// What other writers make and Arrow's Go types cannot hold is in the schema; it is said which column that is if it is read, and
// the others are.
func TestUnreadableTypes(t *testing.T) {
	for name, want := range map[string]struct{ typ, text string }{
		"int128":        {"unsupported (int128)", `column "x": the type is int128`},
		"uint128":       {"unsupported (uint128)", `column "x": the type is uint128`},
		"nested_int128": {"unsupported (int128)", `column "x.item.a": the type is int128`},
	} {
		path := filepath.Join("testdata", "odd", name+".parquet")
		tab := mustOpen(t, nil, path)
		s := tab.Schema()
		if s.NumFields() != 2 || s.Field(0).Type.ID() != arrow.INT64 || s.Field(1).Type.String() != want.typ {
			t.Errorf("%s: %v", name, s)
		}
		if _, decoded := tab.(driver.Sizer).Size(0, []string{"id"}); decoded <= 0 {
			t.Errorf("%s: %d bytes", name, decoded)
		}
		for _, columns := range [][]string{nil, {"x"}, {"id", "x"}} {
			_, err := tab.Open(t.Context(), 0, &driver.ScanOptions{Columns: columns, Alloc: memtest.New(t)})
			if fault.CodeOf(err) != fault.Unsupported || !strings.Contains(err.Error(), want.text) || !strings.Contains(err.Error(), path) || !strings.Contains(err.Error(), "cast it to") {
				t.Errorf("%s, %q: %v: %v", name, columns, fault.CodeOf(err), err)
			}
		}
		for _, o := range []*driver.ScanOptions{{Columns: []string{"id"}}, {Columns: []string{}},
			{Columns: []string{"id"}, Predicate: driver.Predicate{{Column: "id", Op: driver.Ge, Values: []any{int64(1)}}}}} {
			o.Alloc = memtest.New(t)
			rows := int64(0)
			err := readAll(t.Context(), tab, 0, o, func(b driver.Batch) {
				rows += b.Record.NumRows()
				if b.Record.NumCols() > 0 && b.Record.Column(0).(*array.Int64).Value(2) != 3 {
					t.Errorf("%s: %v", name, b.Record)
				}
			})
			if err != nil || rows != 3 {
				t.Errorf("%s, %q: %d rows, %v", name, o.Columns, rows, err)
			}
		}
		if by := tab.(*table).ReadBy(); by != "native decoder; cannot read "+want.text {
			t.Errorf("%s is read by %s", name, by)
		}
		o := &Options{Options: fileset.Options{Columns: []string{"id"}}}
		if tab := mustOpen(t, o, path); tab.Schema().NumFields() != 1 || tab.(*table).ReadBy() != "native decoder" {
			t.Errorf("%s: %v, read by %s", name, tab.Schema(), tab.(*table).ReadBy())
		}
	}
}

// Of several files the error names one that has the column, and what is odd about it may be at different places in it.
func TestUnreadableTypesOfFiles(t *testing.T) {
	dir := t.TempDir()
	b, err := os.ReadFile(filepath.Join("testdata", "odd", "int128.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	rb := array.NewRecordBuilder(memory.DefaultAllocator, schemaOf("id", arrow.PrimitiveTypes.Int64))
	defer rb.Release()
	rb.Field(0).(*array.Int64Builder).Append(7)
	rec := rb.NewRecordBatch()
	defer rec.Release()
	writeFile(t, filepath.Join(dir, "a.parquet"), &EncodingOptions{}, memtest.New(t), rec)
	nested, err := os.ReadFile(filepath.Join("testdata", "odd", "nested_int128.parquet"))
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"b.parquet": b, "c.parquet": b, "d.parquet": nested} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	tab := mustOpen(t, nil, dir)
	for split := range tab.Splits() {
		_, err := tab.Open(t.Context(), split, &driver.ScanOptions{Alloc: memtest.New(t)})
		if fault.CodeOf(err) != fault.Unsupported || fault.PlaceOf(err).File != filepath.Join(dir, "b.parquet") {
			t.Errorf("%v: %v", fault.CodeOf(err), err)
		}
		if err := readAll(t.Context(), tab, split, &driver.ScanOptions{Columns: []string{"id"}, Alloc: memtest.New(t)}, func(driver.Batch) {}); err != nil {
			t.Error(err)
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
