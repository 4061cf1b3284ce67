package ipcio_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/datatest"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/drivertest"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/ipcio"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(t testing.TB, w io.Writer, o *ipcio.EncodingOptions, recs []arrow.RecordBatch) {
	t.Helper()
	e, err := ipcio.NewEncoding(o)
	if err != nil {
		t.Fatal(err)
	}
	alloc := memtest.New(t)
	enc, err := e.NewEncoder(w, recs[0].Schema(), alloc)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range recs {
		if err := enc.Write(r); err != nil {
			t.Fatal(err)
		}
	}
	if err := enc.Close(); err != nil {
		t.Fatal(err)
	}
	alloc.AssertSize(t, 0)
}

func writeFile(t testing.TB, path string, o *ipcio.EncodingOptions, recs []arrow.RecordBatch) {
	t.Helper()
	var b bytes.Buffer
	write(t, &b, o, recs)
	if err := os.WriteFile(path, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

func source(noMap bool) func(paths ...string) driver.Source {
	return func(paths ...string) driver.Source {
		return ipcio.New(ipcio.Options{Options: fileset.Options{Paths: paths}, NoMap: noMap})
	}
}

func TestConformance(t *testing.T) {
	for _, c := range []struct {
		name  string
		o     ipcio.EncodingOptions
		noMap bool
	}{
		{"file", ipcio.EncodingOptions{}, false},
		{"file/read", ipcio.EncodingOptions{}, true},
		{"file/zstd", ipcio.EncodingOptions{Compression: "zstd"}, false},
		{"file/lz4/read", ipcio.EncodingOptions{Compression: "lz4"}, true},
		{"stream", ipcio.EncodingOptions{Layout: "stream"}, false},
		{"stream/zstd/read", ipcio.EncodingOptions{Layout: "stream", Compression: "zstd"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			drivertest.Run(t, drivertest.Harness{
				Ext:       ".arrow",
				Write:     func(t testing.TB, path string, recs []arrow.RecordBatch) { writeFile(t, path, &c.o, recs) },
				Source:    source(c.noMap),
				Open:      ipcio.Format().Open,
				FileRows:  []int64{100, 1, 300},
				KnownRows: c.o.Layout != "stream",
				Shortens:  c.o.Layout == "stream",
				Maps:      !c.noMap && c.o.Compression == "",
			}, 0)
		})
	}
}

// encoded makes a record whose columns are dictionaries and views, also nested,
// and the plain record that must be read.
func encoded(t testing.TB, seed uint64, rows int64) (rec, want arrow.RecordBatch) {
	t.Helper()
	word := arrow.Field{Name: "word", Type: arrow.BinaryTypes.String, Nullable: true}
	words := arrow.Field{Name: "words", Type: arrow.ListOf(arrow.BinaryTypes.String), Nullable: true}
	pair := arrow.Field{Name: "pair", Type: arrow.StructOf(word, arrow.Field{Name: "n", Type: arrow.PrimitiveTypes.Int32, Nullable: true}), Nullable: true}
	view := arrow.Field{Name: "view", Type: arrow.BinaryTypes.String, Nullable: true}
	want = drivertest.Records(arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}, word, words, pair, view}, nil), seed, 0, rows)
	t.Cleanup(want.Release)

	dict := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int16, ValueType: arrow.BinaryTypes.String}
	s := arrow.NewSchema([]arrow.Field{
		{Name: "id", Type: arrow.PrimitiveTypes.Int64},
		{Name: "word", Type: dict, Nullable: true},
		{Name: "words", Type: arrow.ListOf(dict), Nullable: true},
		{Name: "pair", Type: arrow.StructOf(arrow.Field{Name: "word", Type: dict, Nullable: true}, pair.Type.(*arrow.StructType).Field(1)), Nullable: true},
		{Name: "view", Type: arrow.BinaryTypes.StringView, Nullable: true},
	}, nil)
	js, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	rec, _, err = array.RecordFromJSON(memory.DefaultAllocator, s, bytes.NewReader(js))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rec.Release)
	return rec, want
}

func TestDictionariesAndViews(t *testing.T) {
	for _, layout := range []string{"file", "stream"} {
		for _, codec := range []string{"", "zstd"} {
			rec, want := encoded(t, 3, 500)
			path := filepath.Join(t.TempDir(), "x.arrow")
			writeFile(t, path, &ipcio.EncodingOptions{Layout: layout, Compression: codec}, []arrow.RecordBatch{rec})
			for _, o := range []driver.ScanOptions{{}, {BatchRows: 7, FromRow: 3}, {BatchBytes: 300}, {Columns: []string{"words", "id"}}, {Columns: []string{"pair"}}} {
				compare(t, source(o.FromRow > 0)(path), o, want)
			}
		}
	}
}

// compare reads the source and checks every batch against want.
func compare(t *testing.T, src driver.Source, o driver.ScanOptions, want arrow.RecordBatch) {
	t.Helper()
	tab, err := src.Resolve(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	alloc := memtest.New(t)
	o.Alloc = alloc
	var base int64
	for i := range tab.Splits() {
		r, err := tab.Open(t.Context(), i, &o)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		row := o.FromRow
		for {
			b, err := r.Next(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, f := range b.Record.Schema().Fields() {
				got, w := b.Record.Column(b.Record.Schema().FieldIndices(f.Name)[0]), want.Column(want.Schema().FieldIndices(f.Name)[0])
				if !arrow.TypeEqual(got.DataType(), w.DataType()) || !array.SliceEqual(got, 0, int64(got.Len()), w, base+row, base+row+int64(got.Len())) {
					t.Fatalf("%+v, column %q from row %d: %v, want %v of type %v", o, f.Name, row, got, w, w.DataType())
				}
			}
			row += b.Record.NumRows()
			b.Record.Release()
		}
		base += row
	}
	if base != want.NumRows() {
		t.Fatalf("%d rows, want %d", base, want.NumRows())
	}
}

// A stream may add to its dictionaries, and replace them.
func TestStreamDictionaryDeltas(t *testing.T) {
	dict := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int8, ValueType: arrow.BinaryTypes.String}
	s := arrow.NewSchema([]arrow.Field{{Name: "w", Type: dict}}, nil)
	plain := arrow.NewSchema([]arrow.Field{{Name: "w", Type: arrow.BinaryTypes.String}}, nil)
	for _, deltas := range []bool{true, false} {
		var buf bytes.Buffer
		w := ipc.NewWriter(&buf, ipc.WithSchema(s), ipc.WithDictionaryDeltas(deltas))
		db, pb := array.NewDictionaryBuilder(memory.DefaultAllocator, dict).(*array.BinaryDictionaryBuilder), array.NewStringBuilder(memory.DefaultAllocator)
		for _, words := range [][]string{{"a", "b"}, {"a", "c", "d"}, {"d", "a", "e"}} {
			for _, x := range words {
				if err := db.AppendString(x); err != nil {
					t.Fatal(err)
				}
				pb.Append(x)
			}
			a := db.NewDictionaryArray()
			rec := array.NewRecordBatch(s, []arrow.Array{a}, int64(a.Len()))
			if !deltas {
				db.ResetFull()
			}
			if err := w.Write(rec); err != nil {
				t.Fatal(err)
			}
			rec.Release()
			a.Release()
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		db.Release()
		col := pb.NewArray()
		want := array.NewRecordBatch(plain, []arrow.Array{col}, int64(col.Len()))
		path := filepath.Join(t.TempDir(), "x.arrows")
		if err := os.WriteFile(path, buf.Bytes(), 0o600); err != nil {
			t.Fatal(err)
		}
		for _, noMap := range []bool{false, true} {
			compare(t, source(noMap)(path), driver.ScanOptions{BatchRows: 2}, want)
		}
		want.Release()
		col.Release()
		pb.Release()
	}
}

func TestFlights(t *testing.T) {
	path := datatest.Dir(t, "flights", "flights-200k.arrow")
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var first [6]byte
	if _, err := f.ReadAt(first[:], 0); err != nil {
		t.Fatal(err)
	}
	tab, err := source(false)(path).Resolve(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	var rows int64
	for i := range tab.Splits() {
		r, err := tab.Open(t.Context(), i, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		for {
			b, err := r.Next(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			rows += b.Record.NumRows()
			b.Record.Release()
		}
	}
	if rows != 200000 {
		t.Errorf("%d rows of %v, want 200000", rows, tab.Schema())
	}
	// The same rows as the library's own reader gives.
	var recs []arrow.RecordBatch
	if string(first[:]) == "ARROW1" {
		lib, err := ipc.NewFileReader(f)
		if err != nil {
			t.Fatal(err)
		}
		defer lib.Close()
		for i := range lib.NumRecords() {
			rec, err := lib.RecordBatchAt(i)
			if err != nil {
				t.Fatal(err)
			}
			defer rec.Release()
			recs = append(recs, rec)
		}
	} else {
		lib, err := ipc.NewReader(f)
		if err != nil {
			t.Fatal(err)
		}
		defer lib.Release()
		for lib.Next() {
			rec := lib.RecordBatch()
			rec.Retain()
			defer rec.Release()
			recs = append(recs, rec)
		}
	}
	if len(recs) == 1 {
		compare(t, source(false)(path), driver.ScanOptions{}, recs[0])
	}
}

func TestEncoding(t *testing.T) {
	for _, o := range []ipcio.EncodingOptions{{Layout: "parquet"}, {Compression: "gzip"}} {
		if _, err := ipcio.NewEncoding(&o); fault.CodeOf(err) != fault.Invalid {
			t.Errorf("%+v gives %v", o, err)
		}
	}
	e, err := ipcio.NewEncoding(&ipcio.EncodingOptions{Layout: "stream", Compression: "lz4"})
	if err != nil {
		t.Fatal(err)
	}
	again, err := ipcio.OpenEncoding(e.Config())
	if err != nil || !bytes.Equal(e.Config(), again.Config()) || again.Extension() != ".arrows" || again.Kind() != "ipc" {
		t.Errorf("%s became %v, %v", e.Config(), again, err)
	}
	rec := drivertest.Records(drivertest.Schema(), 1, 0, 100)
	defer rec.Release()
	var a, b bytes.Buffer
	write(t, &a, nil, []arrow.RecordBatch{rec})
	write(t, &b, nil, []arrow.RecordBatch{rec})
	if !bytes.Equal(a.Bytes(), b.Bytes()) {
		t.Error("the same batches give other bytes")
	}
	alloc := memtest.New(t)
	enc, err := e.NewEncoder(io.Discard, rec.Schema(), alloc)
	if err != nil {
		t.Fatal(err)
	}
	if err := enc.Write(rec); err != nil || enc.Size() == 0 {
		t.Errorf("%v, size %d", err, enc.Size())
	}
	enc.Abort()
	broken, err := e.NewEncoder(brokenWriter{}, rec.Schema(), alloc)
	if err != nil {
		t.Fatal(err)
	}
	if err := broken.Write(rec); err != io.ErrClosedPipe {
		t.Errorf("the writer's error became %v", err)
	}
	broken.Abort()
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }

// A file of another format is said to be one, with its first bytes.
func TestOtherFormat(t *testing.T) {
	for _, text := range []string{"h", "hello\n", "a,b\n1,2\n", "PAR1 and so on", strings.Repeat("some text\n", 1000)} {
		path := filepath.Join(t.TempDir(), "x.arrow")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := source(false)(path).Resolve(t.Context(), nil)
		if want := fmt.Sprintf("not an Arrow file or stream: it begins with %q", text[:min(len(text), 8)]); fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A column of nulls only stays one, whatever memory the encoder gets.
func TestEncodeAllNull(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{{Name: "a", Type: arrow.PrimitiveTypes.Int64, Nullable: true}}, nil)
	col := array.MakeArrayOfNull(memory.DefaultAllocator, arrow.PrimitiveTypes.Int64, 100)
	defer col.Release()
	rec := array.NewRecordBatch(s, []arrow.Array{col}, 100)
	defer rec.Release()
	for _, layout := range []string{"file", "stream"} {
		e, err := ipcio.NewEncoding(&ipcio.EncodingOptions{Layout: layout})
		if err != nil {
			t.Fatal(err)
		}
		var buf bytes.Buffer
		w, err := e.NewEncoder(&buf, s, memtest.New(t)) // whose memory is not zero
		if err != nil {
			t.Fatal(err)
		}
		if err := w.Write(rec); err != nil {
			t.Fatal(err)
		}
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		var back arrow.RecordBatch
		if layout == "stream" {
			r, err := ipc.NewReader(&buf)
			if err != nil {
				t.Fatal(err)
			}
			defer r.Release()
			back, err = r.Read()
			if err != nil {
				t.Fatal(err)
			}
		} else {
			r, err := ipc.NewFileReader(bytes.NewReader(buf.Bytes()))
			if err != nil {
				t.Fatal(err)
			}
			defer r.Close()
			back, err = r.RecordBatchAt(0)
			if err != nil {
				t.Fatal(err)
			}
			defer back.Release()
		}
		for i := range 100 {
			if !back.Column(0).IsNull(i) {
				t.Fatalf("%s: row %d is not null any more", layout, i)
			}
		}
	}
}

// The row column counts through the record batches of a file, and begins anew in the next, wherever reading begins.
func TestRowColumn(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{{Name: "v", Type: arrow.PrimitiveTypes.Int64}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	var recs []arrow.RecordBatch
	for _, n := range []int64{3, 0, 2} {
		for i := range n {
			b.Field(0).(*array.Int64Builder).Append(i)
		}
		rec := b.NewRecordBatch()
		defer rec.Release()
		recs = append(recs, rec)
	}
	const all = "0 1 2 3 4 0 1 2 3 4 "
	for layout, want := range map[string][]string{"file": {all, "1 2 4 1 2 4 "}, "stream": {all, "1 2 3 4 1 2 3 4 "}} { // from row 0 and 1 of each split
		dir := t.TempDir()
		for _, name := range []string{"a.arrow", "b.arrow"} {
			writeFile(t, filepath.Join(dir, name), &ipcio.EncodingOptions{Layout: layout}, recs)
		}
		tab, err := ipcio.New(ipcio.Options{Options: fileset.Options{Paths: []string{dir}, RowColumn: "row"}}).Resolve(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		defer tab.Close()
		for from, want := range want {
			got := ""
			for i := range tab.Splits() {
				r, err := tab.Open(t.Context(), i, &driver.ScanOptions{Alloc: memtest.New(t), BatchRows: 2, FromRow: int64(from)})
				if err != nil {
					t.Fatal(err)
				}
				defer r.Close()
				for {
					b, err := r.Next(t.Context())
					if err == io.EOF {
						break
					}
					if err != nil {
						t.Fatal(err)
					}
					for _, row := range b.Record.Column(1).(*array.Int64).Int64Values() {
						got += fmt.Sprint(row, " ")
					}
					b.Record.Release()
				}
			}
			if got != want {
				t.Errorf("%s, from row %d: %q, want %q", layout, from, got, want)
			}
		}
	}
}

// TestCompression: buffers are compressed with the codec that was asked for, and with no other.
func TestCompression(t *testing.T) {
	rec := drivertest.Records(drivertest.Schema(), 1, 0, 2000)
	defer rec.Release()
	frames := map[string][]byte{"lz4": {0x04, 0x22, 0x4d, 0x18}, "zstd": {0x28, 0xb5, 0x2f, 0xfd}}
	for _, layout := range []string{"file", "stream"} {
		var none bytes.Buffer
		write(t, &none, &ipcio.EncodingOptions{Layout: layout, Compression: "none"}, []arrow.RecordBatch{rec})
		for _, codec := range []string{"", "none", "lz4", "zstd"} {
			var b bytes.Buffer
			write(t, &b, &ipcio.EncodingOptions{Layout: layout, Compression: codec}, []arrow.RecordBatch{rec})
			for name, frame := range frames {
				if n := bytes.Count(b.Bytes(), frame); n > 1 != (name == codec) { // one may be by chance
					t.Errorf("%s, %q: %d frames of %s", layout, codec, n, name)
				}
			}
			if frames[codec] != nil && b.Len() > none.Len()*9/10 {
				t.Errorf("%s, %s: %d bytes of %d", layout, codec, b.Len(), none.Len())
			}
		}
	}
}
