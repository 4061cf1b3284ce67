package binio_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/datatest"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/binio"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/drivertest"
	"github.com/penstock-data/penstock/io/fileset"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func source(paths ...string) driver.Source {
	return binio.New(binio.Options{Options: fileset.Options{Paths: paths}})
}

// The suite's rows become files, named by their number.
func TestConformance(t *testing.T) {
	schema := arrow.NewSchema([]arrow.Field{{Name: "path", Type: arrow.BinaryTypes.String}, {Name: "bytes", Type: arrow.BinaryTypes.Binary}}, nil)
	drivertest.Run(t, drivertest.Harness{
		Make: func(t testing.TB, files [][]arrow.RecordBatch) driver.Source {
			t.Chdir(t.TempDir())
			if err := os.Mkdir("rows", 0o755); err != nil {
				t.Fatal(err)
			}
			for _, f := range files {
				for _, rec := range f {
					for i := range int(rec.NumRows()) {
						if err := os.WriteFile(rec.Column(0).(*array.String).Value(i), rec.Column(1).(*array.Binary).Value(i), 0o600); err != nil {
							t.Fatal(err)
						}
					}
				}
			}
			return source("rows")
		},
		Open:   binio.Format().Open,
		Schema: schema,
		Gen: func(schema *arrow.Schema, seed uint64, first, rows int64) arrow.RecordBatch {
			rec := drivertest.Records(schema, seed, first, rows)
			defer rec.Release()
			b := array.NewStringBuilder(memory.DefaultAllocator)
			defer b.Release()
			for i := range rows {
				b.Append(fmt.Sprintf("rows/%06d", first+i))
			}
			paths := b.NewArray()
			defer paths.Release()
			return array.NewRecordBatch(schema, []arrow.Array{paths, rec.Column(1)}, rows)
		},
		FileRows:  []int64{60, 1, 240},
		KnownRows: true,
	}, 0)
}

func drain(t *testing.T, tab driver.Table, o *driver.ScanOptions, each func(driver.Batch)) error {
	t.Helper()
	for i := range tab.Splits() {
		r, err := tab.Open(t.Context(), i, o)
		if err != nil {
			return err
		}
		defer r.Close()
		for {
			b, err := r.Next(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil {
				return err
			}
			each(b)
			b.Record.Release()
		}
	}
	return nil
}

func TestImages(t *testing.T) {
	dir := datatest.Dir(t, "imagenet-sample")
	tab, err := source(dir).Resolve(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	var total int64
	for i, s := range tab.Splits() {
		total += s.Rows
		if s.Bytes > 16<<20 || s.Rows > 256 {
			t.Errorf("split %d has %d files, %d bytes", i, s.Rows, s.Bytes)
		}
	}
	n := int64(0)
	var st driver.ScanStats
	err = drain(t, tab, &driver.ScanOptions{Alloc: memtest.New(t), Stats: &st}, func(b driver.Batch) {
		for i := range int(b.Record.NumRows()) {
			path := b.Record.Column(0).(*array.String).Value(i)
			want, err := os.ReadFile(path)
			if err != nil || !bytes.Equal(want, b.Record.Column(1).(*array.Binary).Value(i)) || filepath.Dir(path) != filepath.Clean(dir) {
				t.Errorf("%s differs (%v)", path, err)
			}
			n++
		}
	})
	if err != nil || n != total || n < 200 || st.BytesRead.Load() == 0 {
		t.Errorf("%d files of %d, %v", n, total, err)
	}
	st.BytesRead.Store(0)
	if err := drain(t, tab, &driver.ScanOptions{Columns: []string{"path"}, Stats: &st}, func(driver.Batch) {}); err != nil || st.BytesRead.Load() != 0 {
		t.Errorf("paths alone read %d bytes, %v", st.BytesRead.Load(), err)
	}
}

func TestSplits(t *testing.T) {
	dir := t.TempDir()
	put := func(name string, n int64) {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(p, n); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 300 {
		put(fmt.Sprintf("p=1/a%03d", i), 10)
	}
	put("p=1/b", 20<<20)
	put("p=1/c", 9<<20)
	put("p=1/d", 9<<20)
	put("p=2/a", 1)
	put("p=2/huge", 3<<30) // a hole
	tab, err := source(dir).Resolve(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	var got []string
	for _, s := range tab.Splits() {
		got = append(got, fmt.Sprintf("%s:%d", s.ID, s.Rows))
	}
	if want := "p=1/a000:256 p=1/a256:44 p=1/b:1 p=1/c:1 p=1/d:1 p=2/a:1 p=2/huge:1"; strings.Join(got, " ") != want {
		t.Errorf("got  %s\nwant %s", strings.Join(got, " "), want)
	}
	r, err := tab.Open(t.Context(), 6, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Next(t.Context()); fault.CodeOf(err) != fault.Unsupported || !strings.Contains(err.Error(), "huge") {
		t.Errorf("a file of 3 GiB gives %v", err)
	}
	var rows []string
	err = drain(t, tab, &driver.ScanOptions{Columns: []string{"p"}, Predicate: driver.Predicate{{Column: "p", Op: driver.Eq, Values: []any{int64(2)}}}}, func(b driver.Batch) {
		rows = append(rows, b.Record.Column(0).ValueStr(0))
	})
	if err != nil || strings.Join(rows, " ") != "2 2" {
		t.Errorf("%v %v", rows, err)
	}
}

func TestRefused(t *testing.T) {
	for _, o := range []fileset.Options{{Paths: []string{"."}, PathColumn: "p"}, {Paths: []string{"."}, RowColumn: "r"}, {}} {
		if tab, err := binio.New(binio.Options{Options: o}).Resolve(t.Context(), nil); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%+v gives %v, %v", o, tab, err)
		}
	}
}

func BenchmarkImages(b *testing.B) {
	tab, err := source(datatest.Dir(b, "imagenet-sample")).Resolve(b.Context(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer tab.Close()
	var n int64
	for _, s := range tab.Splits() {
		n += s.Bytes
	}
	b.SetBytes(n)
	b.ReportAllocs()
	for b.Loop() {
		for i := range tab.Splits() {
			r, err := tab.Open(b.Context(), i, nil)
			if err != nil {
				b.Fatal(err)
			}
			for {
				x, err := r.Next(b.Context())
				if err != nil {
					break
				}
				x.Record.Release()
			}
			r.Close()
		}
	}
}
