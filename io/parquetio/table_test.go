package parquetio

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/drivertest"
	"github.com/penstock-data/penstock/io/fileset"
)

// fromJSON makes a record of one-letter columns.
func fromJSON(t testing.TB, schema *arrow.Schema, js string) arrow.RecordBatch {
	t.Helper()
	rec, _, err := array.RecordFromJSON(memory.DefaultAllocator, schema, strings.NewReader(js))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rec.Release)
	return rec
}

func schemaOf(cols ...any) *arrow.Schema {
	var fields []arrow.Field
	for i := 0; i < len(cols); i += 2 {
		fields = append(fields, arrow.Field{Name: cols[i].(string), Type: cols[i+1].(arrow.DataType), Nullable: true})
	}
	return arrow.NewSchema(fields, nil)
}

// lines reads everything as JSON lines.
func lines(t testing.TB, tab driver.Table, o driver.ScanOptions) string {
	t.Helper()
	o.Alloc = memtest.New(t)
	var out bytes.Buffer
	for i := range tab.Splits() {
		err := readAll(t.Context(), tab, i, &o, func(b driver.Batch) {
			if err := array.RecordToJSON(b.Record, &out); err != nil {
				t.Fatal(err)
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	return out.String()
}

func TestManyFiles(t *testing.T) {
	i32, i64, f64, str := arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64, arrow.PrimitiveTypes.Float64, arrow.BinaryTypes.String
	dir := t.TempDir()
	write := func(name string, s *arrow.Schema, js string) string {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		writeFile(t, p, nil, memtest.New(t), fromJSON(t, s, js))
		return p
	}
	write("y=1/a.parquet", schemaOf("a", i32, "b", str), `[{"a":1,"b":"x"},{"a":2,"b":null}]`)
	write("y=1/b.parquet", schemaOf("b", str, "a", i64, "c", f64), `[{"a":3000000000,"b":"y","c":0.5}]`)
	write("y=2/c.parquet", schemaOf("a", i32), `[{"a":4},{"a":5}]`)
	tab := mustOpen(t, &Options{}, dir)
	want := `{"a":1,"b":"x","c":null,"y":1}
{"a":2,"b":null,"c":null,"y":1}
{"a":3000000000,"b":"y","c":0.5,"y":1}
{"a":4,"b":null,"c":null,"y":2}
{"a":5,"b":null,"c":null,"y":2}
`
	if got := lines(t, tab, driver.ScanOptions{}); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	p := driver.Predicate{{Column: "a", Op: driver.Gt, Values: []any{int64(2)}}, {Column: "y", Op: driver.Eq, Values: []any{int64(1)}}}
	keep, err := tab.(driver.Pruner).Keep(t.Context(), p)
	if err != nil || fmt.Sprint(keep) != "[false true false]" {
		t.Errorf("keep %v, %v", keep, err)
	}
	if got := lines(t, tab, driver.ScanOptions{Columns: []string{"y", "a"}, Predicate: p}); got != "{\"a\":3000000000,\"y\":1}\n" {
		t.Error(got)
	}
	if got := lines(t, tab, driver.ScanOptions{Columns: []string{"y"}, FromRow: 1}); got != "{\"y\":1}\n{\"y\":2}\n" {
		t.Error(got)
	}
	fetch, decoded := tab.(driver.Sizer).Size(0, []string{"a"})
	all, _ := tab.(driver.Sizer).Size(0, nil)
	if fetch <= 0 || fetch >= all || decoded <= 0 {
		t.Errorf("size %d, %d of %d", fetch, decoded, all)
	}

	// Columns of the source, in their order, with a path column.
	o := &Options{Options: fileset.Options{Columns: []string{"row", "c", "a"}}}
	o.RowColumn = "row"
	if got := lines(t, mustOpen(t, o, dir), driver.ScanOptions{}); !strings.HasPrefix(got, "{\"a\":1,\"c\":null,\"row\":0}\n{\"a\":2,\"c\":null,\"row\":1}\n") {
		t.Error(got)
	}
	if _, err := open(t, &Options{Options: fileset.Options{Columns: []string{"nope"}}}, dir); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "nope") {
		t.Errorf("error %v", err)
	}

	bad := write("y=2/d.parquet", schemaOf("a", str), `[{"a":"text"}]`)
	_, err = open(t, nil, dir)
	if fault.CodeOf(err) != fault.Invalid || fault.PlaceOf(err).File != bad || fault.PlaceOf(err).Column != "a" {
		t.Errorf("error %v", err)
	}
}

// TestRemote reads through requests ahead of need, from process memory.
func TestRemote(t *testing.T) {
	rec := wide(30_000)
	defer rec.Release()
	e, err := NewEncoding(&EncodingOptions{RowGroupRows: 20_000, PageBytes: 4 << 10})
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	b, err := blobio.Open(ctx, "mem://parquetio", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer b.Close()
	out, err := b.Create(ctx, "d/wide.parquet", nil)
	if err != nil {
		t.Fatal(err)
	}
	w, err := e.NewEncoder(out, rec.Schema(), memtest.New(t))
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(w.Write(rec), w.Close(), out.Close()); err != nil {
		t.Fatal(err)
	}
	tab := mustOpen(t, nil, "mem://parquetio/d")
	if in := tab.(*table).input(0, nil); in.fetch == nil {
		t.Fatal("not read as a remote file")
	}
	st := new(driver.ScanStats)
	for try, p := range []driver.Predicate{nil, {{Column: "k", Op: driver.Ge, Values: []any{int64(25_000)}}}} {
		var rows int64
		for i := range tab.Splits() {
			o := &driver.ScanOptions{Alloc: memtest.New(t), Stats: st, Predicate: p}
			err := readAll(ctx, tab, i, o, func(b driver.Batch) {
				first := int64(i)*20_000 + b.Row
				want := rec.NewSlice(first, first+b.Record.NumRows())
				defer want.Release()
				for c, a := range b.Record.Columns() {
					if !array.Equal(a, want.Column(c)) {
						t.Fatalf("column %d differs at row %d", c, first)
					}
				}
				rows += b.Record.NumRows()
			})
			if err != nil {
				t.Fatal(err)
			}
		}
		if try == 0 && rows != 30_000 || try == 1 && (rows < 5000 || rows > 7000) {
			t.Errorf("%d rows", rows)
		}
		t.Logf("%d rows: %d bytes in %d requests", rows, st.BytesRead.Load(), st.Requests.Load())
	}
	// Abandoned and canceled passes free everything.
	for cancelAt := range 3 {
		ctx, cancel := context.WithCancel(t.Context())
		r, err := tab.Open(ctx, 0, &driver.ScanOptions{Alloc: memtest.New(t), BatchRows: 100})
		if err != nil {
			t.Fatal(err)
		}
		for range cancelAt {
			b, err := r.Next(ctx)
			if err != nil {
				t.Fatal(err)
			}
			b.Record.Release()
		}
		cancel()
		if _, err := r.Next(ctx); fault.CodeOf(err) != fault.Canceled {
			t.Errorf("error %v", err)
		}
		r.Close()
	}
}

// TestBounded: a row group much larger than a batch is read in windows, and what
// is held stays far below it.
func TestBounded(t *testing.T) {
	rec := wide(100_000) // about 60 MB decoded, one row group
	defer rec.Release()
	path := filepath.Join(t.TempDir(), "f.parquet")
	writeFile(t, path, &EncodingOptions{Compression: "none"}, nil, rec)
	alloc := &peak{Allocator: memory.NewGoAllocator()}
	tab := mustOpen(t, nil, path)
	err := readAll(t.Context(), tab, 0, &driver.ScanOptions{Alloc: alloc, BatchBytes: 1 << 20}, func(b driver.Batch) {
		var n int64
		for _, c := range b.Record.Columns() {
			n += int64(c.Data().SizeInBytes())
		}
		if n > 2<<20 {
			t.Errorf("a batch of %d bytes", n)
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("at most %d KiB of %d KiB", alloc.most>>10, tab.Splits()[0].Bytes>>10)
	if alloc.most > 24<<20 || alloc.now != 0 {
		t.Errorf("%d bytes held, %d left", alloc.most, alloc.now)
	}
}

// peak counts bytes; for one goroutine.
type peak struct {
	memory.Allocator
	now, most int64
}

func (p *peak) Allocate(n int) []byte {
	p.now += int64(n)
	p.most = max(p.most, p.now)
	return p.Allocator.Allocate(n)
}

func (p *peak) Free(b []byte) {
	p.now -= int64(len(b))
	p.Allocator.Free(b)
}

// TestLongText: a dictionary of long values, which take a thousand times more
// memory decoded than the footer suggests, is read in small batches.
func TestLongText(t *testing.T) {
	schema := schemaOf("s", arrow.BinaryTypes.String)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	sb := b.Field(0).(*array.StringBuilder)
	long := strings.Repeat("0123456789", 3000)
	for i := range 5_000 {
		if i < 1000 { // so that the writer keeps a dictionary
			sb.Append("x")
		} else {
			sb.Append(long)
		}
	}
	rec := b.NewRecordBatch()
	defer rec.Release()
	head := rec.NewSlice(0, 1000)
	defer head.Release()
	tail := rec.NewSlice(1000, 5_000)
	defer tail.Release()
	path := filepath.Join(t.TempDir(), "f.parquet")
	writeFile(t, path, nil, nil, head, tail)
	tab := mustOpen(t, nil, path)
	alloc := &peak{Allocator: memory.NewGoAllocator()}
	var rows int64
	err := readAll(t.Context(), tab, 0, &driver.ScanOptions{Alloc: alloc}, func(b driver.Batch) { rows += b.Record.NumRows() })
	if err != nil || rows != 5_000 {
		t.Fatalf("%d rows, %v", rows, err)
	}
	t.Logf("file of %d KiB, at most %d MiB held of 120 MB decoded", tab.Splits()[0].Bytes>>10, alloc.most>>20)
	if alloc.most > 128<<20 {
		t.Errorf("%d MiB were held", alloc.most>>20)
	}
}

func TestFingerprint(t *testing.T) {
	rec := drivertest.Records(drivertest.Schema(), 1, 0, 100)
	defer rec.Release()
	print := func(o *Options, dir string) string {
		s, err := mustOpen(t, o, dir).Fingerprint(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	a, b := t.TempDir(), t.TempDir()
	writeFile(t, filepath.Join(a, "x.parquet"), nil, nil, rec)
	writeFile(t, filepath.Join(b, "x.parquet"), nil, nil, rec)
	if print(nil, a) != print(nil, b) {
		t.Error("equal data in another place has another fingerprint")
	}
	if print(nil, a) == print(&Options{Options: fileset.Options{Columns: []string{"id"}}}, a) {
		t.Error("other columns have the same fingerprint")
	}
	part := rec.NewSlice(0, 99)
	defer part.Release()
	writeFile(t, filepath.Join(b, "x.parquet"), nil, nil, part)
	if print(nil, a) == print(nil, b) {
		t.Error("other data has the same fingerprint")
	}
}
