package ipcio

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// Run-end encoded columns and list views of pyarrow (testdata/runs.py), in slices and in each
// other, have the values that it reads.
func TestRunsAndListViews(t *testing.T) {
	golden, err := os.ReadFile("testdata/runs.json")
	if err != nil {
		t.Fatal(err)
	}
	var want []map[string]any
	for line := range bytes.Lines(golden) {
		var row map[string]any
		if err := json.Unmarshal(line, &row); err != nil {
			t.Fatal(err)
		}
		want = append(want, row)
	}
	for _, file := range []string{"testdata/runs.arrow", "testdata/runs.arrows"} {
		table, err := resolve(t, file)
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range table.Schema().Fields() {
			if !flat(f.Type) {
				t.Errorf("%s is of %v", f.Name, f.Type)
			}
		}
		for _, o := range []driver.ScanOptions{{}, {BatchRows: 1}, {BatchRows: 3, Own: true}, {BatchBytes: 100}} {
			o.Alloc = memtest.New(t)
			row := 0
			for i := range table.Splits() {
				r, err := table.Open(t.Context(), i, &o)
				if err != nil {
					t.Fatal(err)
				}
				for b, err := r.Next(t.Context()); err == nil; b, err = r.Next(t.Context()) {
					all := array.RecordToStructArray(b.Record)
					js, err := json.Marshal(all)
					all.Release()
					var got []map[string]any
					if err == nil {
						err = json.Unmarshal(js, &got)
					}
					if err != nil {
						t.Fatal(err)
					}
					for _, g := range got {
						if !reflect.DeepEqual(g, want[row]) {
							t.Errorf("%s, row %d:\n%v\nwant\n%v", file, row, g, want[row])
						}
						row++
					}
					b.Record.Release()
				}
				r.Close()
			}
			if row != len(want) {
				t.Errorf("%s: %d rows, want %d", file, row, len(want))
			}
		}
	}
}

// runsOf is an array of one run of a value. Takes the value.
func runsOf(n int64, value arrow.Array) arrow.Array {
	defer value.Release()
	ends := array.NewData(arrow.PrimitiveTypes.Int32, 1, []*memory.Buffer{nil, memory.NewBufferBytes(le32s(int32(n)))}, nil, 0, 0)
	defer ends.Release()
	d := array.NewData(arrow.RunEndEncodedOf(arrow.PrimitiveTypes.Int32, value.DataType()), int(n), []*memory.Buffer{nil}, []arrow.ArrayData{ends, value.Data()}, 0, 0)
	defer d.Release()
	return array.MakeFromData(d)
}

// TestSmallFileOneRun: one value for all rows that a batch may have, in one list, or in a view for
// each row, is refused before it takes memory.
func TestSmallFileOneRun(t *testing.T) {
	long := array.NewStringBuilder(memory.DefaultAllocator)
	defer long.Release()
	long.Append(strings.Repeat("x", 10_000))
	text := long.NewArray()
	listOf := func(a arrow.Array) arrow.Array {
		defer a.Release()
		offs := memory.NewBufferBytes(le32s(0, int32(a.Len())))
		d := array.NewData(arrow.ListOf(a.DataType()), 1, []*memory.Buffer{nil, offs}, []arrow.ArrayData{a.Data()}, 0, 0)
		defer d.Release()
		return array.MakeFromData(d)
	}
	const n = 100_000 // views of all of n elements
	var sizes []byte
	for range n {
		sizes = binary.LittleEndian.AppendUint32(sizes, n)
	}
	elems := zeros(arrow.PrimitiveTypes.Int8, n, n)
	view := array.NewData(arrow.ListViewOf(elems.DataType()), n, []*memory.Buffer{nil, memory.NewBufferBytes(make([]byte, 4*n)), memory.NewBufferBytes(sizes)},
		[]arrow.ArrayData{elems.Data()}, 0, 0)
	elems.Release()
	defer view.Release()
	nested := zeros(arrow.PrimitiveTypes.Int8, 200, 200)
	for range 6 { // each of 200 views has all 200 of the level below
		offs, sizes := make([]int32, 200), make([]int32, 200)
		for i := range sizes {
			sizes[i] = 200
		}
		d := array.NewData(arrow.ListViewOf(nested.DataType()), 200, []*memory.Buffer{nil, memory.NewBufferBytes(le32s(offs...)), memory.NewBufferBytes(le32s(sizes...))},
			[]arrow.ArrayData{nested.Data()}, 0, 0)
		nested.Release()
		nested = array.MakeFromData(d)
		d.Release()
	}
	for _, a := range []arrow.Array{
		nested, runsOf(math.MaxInt32, zeros(arrow.PrimitiveTypes.Int64, 8, 1)), runsOf(math.MaxInt32, array.NewNull(1)),
		listOf(runsOf(math.MaxInt32, zeros(arrow.PrimitiveTypes.Int8, 1, 1))), listOf(runsOf(1_000_000, text)),
		array.MakeFromData(view),
	} {
		typ := a.DataType()
		path := handWrite(t, "bomb.arrow", fileOf(t, 1, true, a))
		table, err := resolve(t, path)
		if err != nil {
			t.Fatal(err)
		}
		alloc := &peak{Allocator: memtest.New(t)}
		r, err := table.Open(t.Context(), 0, &driver.ScanOptions{Alloc: alloc, BatchRows: 1 << 20, BatchBytes: 1 << 24})
		if err != nil {
			t.Fatal(err)
		}
		var b driver.Batch
		for b, err = r.Next(t.Context()); err == nil; b, err = r.Next(t.Context()) {
			b.Record.Release()
		}
		r.Close()
		if p := fault.PlaceOf(err); fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), "max_growth") || p.File != path || alloc.most > 64<<20 {
			t.Errorf("%v: %v, after %d bytes; want an error that names max_growth", typ, err, alloc.most)
		}
	}
}

// TestNodes: what lists that lie on each other become is known before they do, and no more is
// counted.
func TestNodes(t *testing.T) {
	read := func(typ arrow.DataType, rows string) arrow.Array {
		t.Helper()
		a, _, err := array.FromJSON(memory.DefaultAllocator, typ, strings.NewReader(rows))
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	elems := read(arrow.ListOf(arrow.PrimitiveTypes.Int8), "[[1, 2, 3], [], [4]]") // 4, 1 and 2 nodes
	defer elems.Release()
	views := array.NewData(arrow.ListViewOf(elems.DataType()), 3, []*memory.Buffer{nil, memory.NewBufferBytes(le32s(0, 0, 2)), memory.NewBufferBytes(le32s(3, 2, 1))},
		[]arrow.ArrayData{elems.Data()}, 0, 0) // 8, 6 and 3
	defer views.Release()
	ends := read(arrow.PrimitiveTypes.Int32, "[2, 3, 5]")
	defer ends.Release()
	runs := array.NewData(arrow.RunEndEncodedOf(ends.DataType(), views.DataType()), 5, []*memory.Buffer{nil}, []arrow.ArrayData{ends.Data(), views}, 0, 0)
	defer runs.Release() // 2 of 9, one of 7, 2 of 4
	fixed := array.NewData(arrow.FixedSizeListOf(2, views.DataType()), 1, []*memory.Buffer{nil}, []arrow.ArrayData{views}, 0, 0)
	defer fixed.Release()
	null := array.NewNull(math.MaxInt32)
	defer null.Release()
	for _, c := range []struct {
		d    arrow.ArrayData
		want int64
	}{{elems.Data(), 7}, {views, 17}, {runs, 33}, {fixed, 15}, {null.Data(), math.MaxInt32}} {
		if got := nodes(c.d); got != c.want {
			t.Errorf("%v: %d nodes, want %d", c.d.DataType(), got, c.want)
		}
	}
}

// TestDamagedRuns: ends and views that do not fit are errors with file, batch and column.
func TestDamagedRuns(t *testing.T) {
	ends := handInt(32).called("run_ends")
	ree := handField{name: "c", typ: kindRunEndEncoded, children: []handField{ends, handInt32.called("values")}}
	views := handField{name: "c", typ: kindListView, children: []handField{handInt32.called("item")}}
	for name, file := range map[string][]byte{
		"short": handFile(false, []handField{ree}, handBatch{rows: 3, nodes: []int64{3, 0, 2, 0, 2, 0}, buffers: [][]byte{nil, le32s(1, 2), nil, le32s(7, 8)}}),
		"back":  handFile(false, []handField{ree}, handBatch{rows: 3, nodes: []int64{3, 0, 2, 0, 2, 0}, buffers: [][]byte{nil, le32s(3, 2), nil, le32s(7, 8)}}),
		"zero":  handFile(false, []handField{ree}, handBatch{rows: 3, nodes: []int64{3, 0, 2, 0, 2, 0}, buffers: [][]byte{nil, le32s(0, 3), nil, le32s(7, 8)}}),
		"few":   handFile(false, []handField{ree}, handBatch{rows: 3, nodes: []int64{3, 0, 2, 0, 1, 0}, buffers: [][]byte{nil, le32s(1, 3), nil, le32s(7)}}),
		"null": handFile(false, []handField{ree}, handBatch{rows: 3, nodes: []int64{3, 0, 2, 1, 2, 0},
			buffers: [][]byte{{1}, le32s(1, 3), nil, le32s(7, 8)}}),
		"outside":  handFile(false, []handField{views}, handBatch{rows: 1, nodes: []int64{1, 0, 2, 0}, buffers: [][]byte{nil, le32s(1), le32s(2), nil, le32s(7, 8)}}),
		"negative": handFile(false, []handField{views}, handBatch{rows: 1, nodes: []int64{1, 0, 2, 0}, buffers: [][]byte{nil, le32s(-1), le32s(1), nil, le32s(7, 8)}}),
		"size":     handFile(false, []handField{views}, handBatch{rows: 1, nodes: []int64{1, 0, 2, 0}, buffers: [][]byte{nil, le32s(1), le32s(-1), nil, le32s(7, 8)}}),
		"sizes":    handFile(false, []handField{views}, handBatch{rows: 2, nodes: []int64{2, 0, 2, 0}, buffers: [][]byte{nil, le32s(1, 1), le32s(1), nil, le32s(7, 8)}}),
	} {
		path := handWrite(t, name+".arrow", file)
		table, err := resolve(t, path)
		if err != nil {
			t.Fatal(err)
		}
		_, err = rowsOfTable(t, table, nil)
		if p := fault.PlaceOf(err); fault.CodeOf(err) != fault.Corrupt || p.File != path || p.RowGroup != fault.N(0) || p.Column != "c" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Text that is not UTF-8 is found in runs and views, in the row that has it.
func TestTextInRunsAndViews(t *testing.T) {
	ree := handField{name: "c", typ: kindRunEndEncoded, children: []handField{handInt(32).called("run_ends"), handUTF8.called("values")}}
	views := handField{name: "c", typ: kindListView, children: []handField{handUTF8.called("item")}}
	text := func(b string) [][]byte { return [][]byte{nil, le32s(0, 1, 2, 3), []byte(b)} }
	for _, c := range []struct {
		file []byte
		row  int64
	}{
		{handFile(false, []handField{ree}, handBatch{rows: 9, nodes: []int64{9, 0, 3, 0, 3, 0}, buffers: append([][]byte{nil, le32s(4, 5, 9)}, text("ab\xff")...)}), 5},
		{handFile(false, []handField{views}, handBatch{rows: 3, nodes: []int64{3, 0, 3, 0}, buffers: append([][]byte{nil, le32s(1, 0, 2), le32s(1, 2, 1)}, text("a\xffb")...)}), 0},
		{handFile(false, []handField{views}, handBatch{rows: 3, nodes: []int64{3, 0, 3, 0}, buffers: append([][]byte{nil, le32s(2, 2, 0), le32s(1, 1, 1)}, text("a\xffb")...)}), -1},
	} {
		path := handWrite(t, filepath.Base(t.Name())+".arrow", c.file)
		table, err := resolve(t, path)
		if err != nil {
			t.Fatal(err)
		}
		if table.Schema().Field(0).Type.ID() == arrow.STRING { // as bytes it may be anything
			o := Options{Options: fileset.Options{Paths: []string{path}, Types: map[string]string{"c": "binary"}}}
			bytes, err := New(o).Resolve(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			defer bytes.Close()
			if got, err := rowsOfTable(t, bytes, nil); !strings.HasSuffix(got, "/w==\n") || err != nil {
				t.Errorf("%q, %v", got, err)
			}
		}
		_, err = rowsOfTable(t, table, nil)
		if p := fault.PlaceOf(err); c.row < 0 && err != nil || c.row >= 0 && (fault.CodeOf(err) != fault.Corrupt || p.File != path || p.Row != fault.N(c.row) || p.Column != "c") {
			t.Errorf("row %d: %v", c.row, err)
		}
	}
}
