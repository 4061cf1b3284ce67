package ipcio

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// fileOf is a file of these columns, once in each of some frames, compressed if asked. Takes the
// columns.
func fileOf(t *testing.T, frames int, zstd bool, cols ...arrow.Array) []byte {
	t.Helper()
	fields := make([]arrow.Field, len(cols))
	for i, c := range cols {
		defer c.Release()
		fields[i] = arrow.Field{Name: string(rune('a' + i)), Type: c.DataType(), Nullable: true}
	}
	schema := arrow.NewSchema(fields, nil)
	rec := array.NewRecordBatch(schema, cols, int64(cols[0].Len()))
	defer rec.Release()
	o := []ipc.Option{ipc.WithSchema(schema)}
	if zstd {
		o = append(o, ipc.WithZstd())
	}
	var b bytes.Buffer
	w, err := ipc.NewFileWriter(&b, o...)
	for range frames {
		if err == nil {
			err = w.Write(rec)
		}
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// readAll reads a file of these bytes, and says how many rows came before the error; io.EOF: all.
func readAll(t *testing.T, file []byte) (rows int64, err error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "a.arrow")
	if err := os.WriteFile(path, file, 0o600); err != nil {
		t.Fatal(err)
	}
	table, err := New(Options{Options: fileset.Options{Paths: []string{path}}}).Resolve(t.Context(), nil)
	if err != nil {
		return 0, err
	}
	defer table.Close()
	for i := range table.Splits() {
		r, err := table.Open(t.Context(), i, &driver.ScanOptions{Alloc: memtest.New(t)})
		if err != nil {
			return rows, err
		}
		for err == nil {
			var b driver.Batch
			if b, err = r.Next(t.Context()); err == nil {
				rows += b.Record.NumRows()
				b.Record.Release()
			}
		}
		r.Close()
		if err != io.EOF {
			return rows, err
		}
	}
	return rows, io.EOF
}

// zeros are n bytes of memory, as an array of type t with rows rows.
func zeros(t arrow.DataType, n, rows int) arrow.Array {
	b := memory.NewBufferBytes(make([]byte, n))
	d := array.NewData(t, rows, []*memory.Buffer{nil, b}, nil, 0, 0)
	defer d.Release()
	return array.MakeFromData(d)
}

// TestEqualValuesBeforeOthers: a buffer that decompresses to a hundred times its size and more is
// read as a stream, and the ones behind it are read too.
func TestEqualValuesBeforeOthers(t *testing.T) {
	few := array.NewInt64Builder(memory.DefaultAllocator)
	defer few.Release()
	for i := range 1 << 17 {
		few.Append(int64(i * i))
	}
	file := fileOf(t, 2, true, zeros(arrow.PrimitiveTypes.Int64, 8<<17, 1<<17), few.NewArray())
	type result struct {
		rows int64
		err  error
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	done := make(chan result, 1)
	go func() {
		rows, err := readAll(t, file)
		done <- result{rows, err}
	}()
	select {
	case r := <-done:
		if r.err != io.EOF || r.rows != 2<<17 {
			t.Errorf("%d rows, %v", r.rows, r.err)
		}
	case <-ctx.Done():
		t.Fatal("the file is not read to its end")
	}
}

// TestSmallFileManyDictionaries: a dictionary that is decompressed again for each of a thousand
// frames of a row is counted.
func TestSmallFileManyDictionaries(t *testing.T) {
	typ := &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: arrow.PrimitiveTypes.Int8}
	entries, index := zeros(typ.ValueType, 64<<20, 64<<20), zeros(typ.IndexType, 4, 1)
	defer entries.Release()
	defer index.Release()
	file := fileOf(t, 1000, true, array.NewDictionaryArray(typ, index, entries))
	rows, err := readAll(t, file)
	if fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), "max_growth") || rows > 10 {
		t.Errorf("%d bytes gave %d rows, then %v; want an error that names max_growth", len(file), rows, err)
	}
}

// TestSmallFileMuchMemory: a buffer that claims gigabytes is refused before any of it is taken.
func TestSmallFileMuchMemory(t *testing.T) {
	file := fileOf(t, 1, true, zeros(arrow.PrimitiveTypes.Int64, 8<<10, 1<<10))
	old, claimed := binary.LittleEndian.AppendUint64(nil, 8<<10), binary.LittleEndian.AppendUint64(nil, 4<<30)
	file = bytes.ReplaceAll(file, old, claimed)
	if rows, err := readAll(t, file); fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), "max_growth") {
		t.Errorf("%d bytes gave %d rows, then %v; want an error that names max_growth", len(file), rows, err)
	}
}

// TestSmallFileLongLists: elements of lists that take no bytes are counted.
func TestSmallFileLongLists(t *testing.T) {
	const n = 1 << 30
	nulls := array.NewNull(n)
	defer nulls.Release()
	wide := arrow.FixedSizeListOf(1<<20, arrow.Null)
	d := array.NewData(wide, n>>20, []*memory.Buffer{nil}, []arrow.ArrayData{nulls.Data()}, 0, 0)
	defer d.Release()
	ends := memory.NewBufferBytes(binary.LittleEndian.AppendUint32(make([]byte, 4), n))
	one := array.NewData(arrow.ListOf(arrow.Null), 1, []*memory.Buffer{nil, ends}, []arrow.ArrayData{nulls.Data()}, 0, 0)
	defer one.Release()
	for _, d := range []arrow.ArrayData{d, one} {
		file := fileOf(t, 1, false, array.MakeFromData(d))
		if rows, err := readAll(t, file); fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), "max_growth") {
			t.Errorf("%v: %d bytes gave %d rows, then %v; want an error that names max_growth", d.DataType(), len(file), rows, err)
		}
	}
}

// TestWidthOfRows: rows times their width is not computed where it passes 64 bits.
func TestWidthOfRows(t *testing.T) {
	b := memory.NewBufferBytes(make([]byte, 64))
	for _, c := range []struct{ width, rows int64 }{{1<<29 + 1, 1<<31 - 1}, {1<<31 - 1, 1 << 30}, {65, 1}, {33, 2}} {
		if err := width(b, c.rows, &arrow.FixedSizeBinaryType{ByteWidth: int(c.width)}); fault.CodeOf(err) != fault.Corrupt {
			t.Errorf("%d rows of %d bytes in 64: %v", c.rows, c.width, err)
		}
	}
	if err := width(b, 2, &arrow.FixedSizeBinaryType{ByteWidth: 32}); err != nil {
		t.Error(err)
	}
}
