package parquetio

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// thriftWriter writes Thrift's compact protocol.
type thriftWriter struct {
	b    []byte
	last []int16
}

func (w *thriftWriter) field(id int16, typ byte) {
	w.b = append(w.b, byte(id-w.last[len(w.last)-1])<<4|typ)
	w.last[len(w.last)-1] = id
}
func (w *thriftWriter) num(id int16, typ byte, v int64) {
	w.field(id, typ)
	w.b = binary.AppendVarint(w.b, v)
}
func (w *thriftWriter) text(id int16, s string) {
	w.field(id, tBinary)
	w.b = append(binary.AppendUvarint(w.b, uint64(len(s))), s...)
}
func (w *thriftWriter) list(id int16, typ byte, n int) {
	w.field(id, tList)
	w.b = binary.AppendUvarint(append(w.b, 0xF0|typ), uint64(n))
}
func (w *thriftWriter) begin() { w.last = append(w.last, 0) }
func (w *thriftWriter) end()   { w.b, w.last = append(w.b, tStop), w.last[:len(w.last)-1] }

// smallFile is a file with a column of texts that may be null, all entry, in groups row groups of
// rows rows that lie on one another: a dictionary page and, for all rows, two runs. With entry ""
// all are null; without columns the rows are all that there is.
func smallFile(entry string, rows int64, groups int, column bool) []byte {
	out := []byte("PAR1")
	page := func(typ, raw, details, values, enc int64) {
		w := &thriftWriter{last: []int16{0}}
		w.num(1, tI32, typ)
		w.num(2, tI32, raw)
		w.num(3, tI32, raw)
		w.field(int16(details), tStruct)
		w.begin()
		w.num(1, tI32, values)
		w.num(2, tI32, enc)
		if typ == pageData {
			w.num(3, tI32, encRLE)
			w.num(4, tI32, encRLE)
		}
		w.end()
		w.end()
		out = append(out, w.b...)
	}
	start := int64(len(out))
	dict := append(binary.LittleEndian.AppendUint32(nil, uint32(len(entry))), entry...)
	page(pageDict, int64(len(dict)), 7, 1, encPlain)
	out = append(out, dict...)
	data := int64(len(out))
	for left := rows; column && left > 0; left -= 1 << 30 {
		n := min(left, 1<<30)
		run := binary.AppendUvarint(nil, uint64(n)<<1)
		level := byte(1)
		if entry == "" {
			level = 0
		}
		levels := append(bytes.Clone(run), level)
		body := append(binary.LittleEndian.AppendUint32(nil, uint32(len(levels))), levels...)
		body = append(append(body, 1), append(run, 0)...)
		page(pageData, int64(len(body)), 5, n, encRLEDict)
		out = append(out, body...)
	}
	size := int64(len(out)) - start

	w := &thriftWriter{last: []int16{0}}
	w.num(1, tI32, 2)
	columns := 0
	if column {
		columns = 1
	}
	w.list(2, tStruct, 1+columns)
	w.begin()
	w.text(4, "schema")
	w.num(5, tI32, int64(columns))
	w.end()
	if column {
		w.begin()
		w.num(1, tI32, 6) // BYTE_ARRAY
		w.num(3, tI32, 1) // optional
		w.text(4, "a")
		w.num(6, tI32, 0) // UTF8
		w.end()
	}
	w.num(3, tI64, rows*int64(groups))
	w.list(4, tStruct, groups)
	for range groups {
		w.begin()
		w.list(1, tStruct, columns)
		if column {
			w.begin()
			w.num(2, tI64, start)
			w.field(3, tStruct)
			w.begin()
			w.num(1, tI32, 6)
			w.list(2, tI32, 1)
			w.b = binary.AppendVarint(w.b, encRLEDict)
			w.list(3, tBinary, 1)
			w.b = append(w.b, 1, 'a')
			w.num(4, tI32, codecNone)
			w.num(5, tI64, rows)
			w.num(6, tI64, size)
			w.num(7, tI64, size)
			w.num(9, tI64, data)
			w.num(11, tI64, start)
			w.end()
			w.end()
		}
		w.num(2, tI64, size)
		w.num(3, tI64, rows)
		w.end()
	}
	w.end()
	out = append(out, w.b...)
	return append(binary.LittleEndian.AppendUint32(out, uint32(len(w.b))), "PAR1"...)
}

// readRows reads a file of these bytes, and says how many rows came before the error; io.EOF: all.
func readRows(t *testing.T, file []byte, o Options, so driver.ScanOptions) (rows int64, err error) {
	t.Helper()
	o.Paths = []string{filepath.Join(t.TempDir(), "a.parquet")}
	if err := os.WriteFile(o.Paths[0], file, 0o600); err != nil {
		t.Fatal(err)
	}
	table, err := New(o).Resolve(t.Context(), nil)
	if err != nil {
		return 0, err
	}
	defer table.Close()
	so.Alloc = memtest.New(t)
	for i := range table.Splits() {
		r, err := table.Open(t.Context(), i, &so)
		if err != nil {
			return rows, err
		}
		for {
			var b driver.Batch
			if b, err = r.Next(t.Context()); err != nil {
				break
			}
			rows += b.Record.NumRows()
			b.Record.Release()
		}
		r.Close()
		if err != io.EOF {
			return rows, err
		}
	}
	return rows, io.EOF
}

// TestSmallFileManyRows: a file of some hundred bytes or some KiB that claims terabytes of rows is
// refused after about a GiB of them, wherever its rows come from, and says how it is read if it is
// right.
func TestSmallFileManyRows(t *testing.T) {
	long := string(bytes.Repeat([]byte("x"), 4<<10))
	terms := driver.Predicate{{Column: "a", Op: driver.Eq, Values: []any{"y"}}}
	for _, c := range []struct {
		name string
		file []byte
		scan driver.ScanOptions
	}{
		{"one entry", smallFile(long, 50_000_000, 1, true), driver.ScanOptions{}},
		{"one entry, none of which a filter wants", smallFile(long, 50_000_000, 1, true), driver.ScanOptions{Predicate: terms}},
		{"nulls", smallFile("", 1<<40, 1, true), driver.ScanOptions{BatchRows: 1 << 20, BatchBytes: 64 << 20}},
		{"rows alone", smallFile("", 1<<50, 1, false), driver.ScanOptions{BatchRows: 1 << 20}},
		{"no column wanted", smallFile(long, 1<<40, 1, true), driver.ScanOptions{Columns: []string{}, BatchRows: 1 << 20}},
		{"row groups on one another", smallFile(long, 5_000, 10_000, true), driver.ScanOptions{}},
	} {
		t.Run(c.name, func(t *testing.T) {
			rows, err := readRows(t, c.file, Options{Options: fileset.Options{MaxGrowth: 10}}, c.scan)
			if fault.CodeOf(err) != fault.Corrupt || !bytes.Contains([]byte(err.Error()), []byte("max_growth")) {
				t.Fatalf("%d bytes gave %d rows, then %v; want an error that names max_growth", len(c.file), rows, err)
			}
			if rows > 200_000_000 {
				t.Errorf("%d rows were read before it", rows)
			}
		})
	}
}

// TestSmallFileLongList: a row whose list has two thousand million nulls of the null type, which
// take no bytes, is refused.
func TestSmallFileLongList(t *testing.T) {
	const n = 2_000_000_000
	run := func(n uint64, v byte) []byte { return append(binary.AppendUvarint(nil, n<<1), v) }
	part := func(b []byte) []byte { return append(binary.LittleEndian.AppendUint32(nil, uint32(len(b))), b...) }
	body := append(part(append(run(1, 0), run(n-1, 1)...)), part(run(n, 2))...)
	w := &thriftWriter{last: []int16{0}}
	w.num(1, tI32, pageData)
	w.num(2, tI32, int64(len(body)))
	w.num(3, tI32, int64(len(body)))
	w.field(5, tStruct)
	w.begin()
	for i, v := range []int64{n, encPlain, encRLE, encRLE} {
		w.num(int16(i+1), tI32, v)
	}
	w.end()
	w.end()
	out := append(append([]byte("PAR1"), w.b...), body...)
	size := int64(len(out)) - 4

	w = &thriftWriter{last: []int16{0}}
	w.num(1, tI32, 2)
	w.list(2, tStruct, 4)
	element := func(typ, repetition, children, converted int64, name string, null bool) {
		w.begin()
		for _, f := range []struct{ id, v int64 }{{1, typ}, {3, repetition}} {
			if f.v >= 0 {
				w.num(int16(f.id), tI32, f.v)
			}
		}
		w.text(4, name)
		for _, f := range []struct{ id, v int64 }{{5, children}, {6, converted}} {
			if f.v >= 0 {
				w.num(int16(f.id), tI32, f.v)
			}
		}
		if null {
			w.field(10, tStruct)
			w.begin()
			w.field(11, tStruct)
			w.begin()
			w.end()
			w.end()
		}
		w.end()
	}
	element(-1, -1, 1, -1, "schema", false)
	element(-1, 1, 1, 3, "a", false)
	element(-1, 2, 1, -1, "list", false)
	element(1, 1, -1, -1, "element", true)
	w.num(3, tI64, 1)
	w.list(4, tStruct, 1)
	w.begin()
	w.list(1, tStruct, 1)
	w.begin()
	w.num(2, tI64, 4)
	w.field(3, tStruct)
	w.begin()
	w.num(1, tI32, 1)
	w.list(2, tI32, 1)
	w.b = binary.AppendVarint(w.b, encPlain)
	w.list(3, tBinary, 3)
	for _, s := range []string{"a", "list", "element"} {
		w.b = append(append(w.b, byte(len(s))), s...)
	}
	w.num(4, tI32, codecNone)
	w.num(5, tI64, n)
	w.num(6, tI64, size)
	w.num(7, tI64, size)
	w.num(9, tI64, 4)
	w.end()
	w.end()
	w.num(2, tI64, size)
	w.num(3, tI64, 1)
	w.end()
	w.end()
	out = append(out, w.b...)
	out = append(binary.LittleEndian.AppendUint32(out, uint32(len(w.b))), "PAR1"...)
	rows, err := readRows(t, out, Options{}, driver.ScanOptions{})
	if fault.CodeOf(err) != fault.Corrupt || !bytes.Contains([]byte(err.Error()), []byte("max_growth")) {
		t.Fatalf("%d bytes gave %d rows, then %v; want an error that names max_growth", len(out), rows, err)
	}
}

// TestConstantColumn: what a writer makes of a constant column is read: a million rows in a hundred
// bytes. Counting, and rows that are passed over, cost nothing.
func TestConstantColumn(t *testing.T) {
	if rows, err := readRows(t, smallFile("penstock", 1_000_000, 1, true), Options{}, driver.ScanOptions{}); err != io.EOF || rows != 1_000_000 {
		t.Errorf("%d rows, %v", rows, err)
	}
	far := driver.ScanOptions{FromRow: 1<<40 - 10}
	if rows, err := readRows(t, smallFile("penstock", 1<<40, 1, true), Options{Options: fileset.Options{MaxGrowth: 1}}, far); err != io.EOF || rows != 10 {
		t.Errorf("from a late row on: %d rows, %v", rows, err)
	}
}

// TestSmallFileOneRow: one row of a small file that would take gigabytes is refused before it is
// decoded: a list of as many equal numbers, one text, an entry of a dictionary, or a page that
// decompresses to that.
func TestSmallFileOneRow(t *testing.T) {
	write := func(a arrow.Array, p ...parquet.WriterProperty) []byte {
		defer a.Release()
		rec := array.NewRecordBatch(arrow.NewSchema([]arrow.Field{{Name: "a", Type: a.DataType(), Nullable: true}}, nil), []arrow.Array{a}, int64(a.Len()))
		defer rec.Release()
		var b bytes.Buffer
		p = append(p, parquet.WithCompression(compress.Codecs.Zstd))
		w, err := pqarrow.NewFileWriter(rec.Schema(), &b, parquet.NewWriterProperties(p...), pqarrow.DefaultWriterProps())
		if err == nil {
			err = w.Write(rec)
		}
		if err == nil {
			err = w.Close()
		}
		if err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	list := func(n int) arrow.Array {
		lb := array.NewListBuilder(memory.DefaultAllocator, arrow.PrimitiveTypes.Int64)
		defer lb.Release()
		lb.Append(true)
		vb := lb.ValueBuilder().(*array.Int64Builder)
		vb.Reserve(n)
		for range n {
			vb.UnsafeAppend(7)
		}
		return lb.NewArray()
	}
	text := func(size, n int) arrow.Array {
		sb := array.NewStringBuilder(memory.DefaultAllocator)
		defer sb.Release()
		for range n {
			sb.Append(string(bytes.Repeat([]byte("x"), size)))
		}
		return sb.NewArray()
	}
	for _, c := range []struct {
		name string
		file []byte
		ok   bool
	}{
		{"list", write(list(20_000_000)), false},
		{"text", write(text(140<<20, 1), parquet.WithDictionaryDefault(false)), false},
		{"dictionary", write(text(140<<20, 2)), false},
		{"page", write(text(14<<20, 10), parquet.WithDictionaryDefault(false), parquet.WithDataPageSize(1<<30)), false},
		{"a list that is right", write(list(4_000_000)), true},
		{"a text that is right", write(text(100<<20, 1)), true},
	} {
		t.Run(c.name, func(t *testing.T) {
			rows, err := readRows(t, c.file, Options{}, driver.ScanOptions{})
			if c.ok {
				if err != io.EOF || rows != 1 {
					t.Errorf("%d rows, %v", rows, err)
				}
				return
			}
			if fault.CodeOf(err) != fault.Corrupt || !bytes.Contains([]byte(err.Error()), []byte("max_growth")) || rows > 0 {
				t.Errorf("%d bytes gave %d rows, then %v; want an error that names max_growth", len(c.file), rows, err)
			}
			if rows, err := readRows(t, c.file, Options{Options: fileset.Options{MaxGrowth: 100_000_000}}, driver.ScanOptions{}); err != io.EOF {
				t.Errorf("with the limit raised: %d rows, %v", rows, err)
			}
		})
	}
}
