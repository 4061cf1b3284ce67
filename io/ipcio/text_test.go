package ipcio

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// views are the headers of texts of at most 12 bytes.
func handViews(texts ...string) (b []byte) {
	for _, s := range texts {
		b = append(b, le32s(int32(len(s)))...)
		b = append(b, append([]byte(s), make([]byte, 12-len(s))...)...)
	}
	return b
}

// Text that is not UTF-8 is an error that says where, whatever holds it; it is none under a null, or in a binary column.
func TestTextThatIsNotUTF8(t *testing.T) {
	const bad = "caf\xe9"
	large, view, binary := handField{typ: kindLargeUTF8}, handField{typ: kindUTF8View}, handField{typ: kindBinary}
	ascii := strings.Repeat("long ", 40)
	text := func(offsets ...int32) [][]byte { return [][]byte{nil, le32s(offsets...), []byte(ascii + bad)} }
	n := int32(len(ascii))
	list := handField{typ: kindList, children: []handField{handUTF8.called("item")}}
	coded := handUTF8
	coded.dict = 5
	words := handBatch{dict: 5, rows: 2, nodes: []int64{2, 0}, buffers: text(0, n, n+4)}
	for name, c := range map[string]struct {
		f       handField
		nodes   []int64
		buffers [][]byte
		row     int64 // -1: none is bad
		dicts   []handBatch
	}{
		"utf8":               {handUTF8, []int64{3, 0}, text(0, n, n+4, n+4), 1, nil},
		"large":              {large, []int64{3, 0}, [][]byte{nil, le64s(0, 0, 0, int64(n)+4), []byte(ascii + bad)}, 2, nil},
		"view":               {view, []int64{3, 0}, [][]byte{nil, handViews("a", "b", bad)}, 2, nil},
		"view apart":         {view, []int64{3, 0}, [][]byte{nil, append(handViews("a"), append(append(le32s(n+4), append([]byte("long"), le32s(0, 0)...)...), handViews("b")...)...), []byte(ascii + bad)}, 1, nil},
		"cut":                {handUTF8, []int64{3, 0}, [][]byte{nil, le32s(0, 4, 5, 5), []byte("caf\u00e9")}, 0, nil},
		"list":               {list, []int64{3, 0, 3, 0}, append([][]byte{nil, le32s(0, 0, 1, 3)}, text(0, n, n, n+4)...), 2, nil},
		"struct":             {handField{typ: kindStruct, children: []handField{handInt32.called("a"), list.called("b")}}, []int64{3, 0, 3, 0, 3, 0, 3, 0}, append([][]byte{nil, nil, le32s(1, 2, 3), nil, le32s(0, 0, 3, 3)}, text(0, 0, n+4, n+4)...), 1, nil},
		"map":                {handField{typ: kindMap, children: []handField{{name: "entries", typ: kindStruct, children: []handField{handUTF8.called("key"), handInt32.called("value")}}}}, []int64{3, 0, 1, 0, 1, 0, 1, 0}, append(append([][]byte{nil, le32s(0, 0, 0, 1), nil}, text(0, n+4)...), nil, le32s(1)), 2, nil},
		"dictionary":         {coded, []int64{3, 0}, [][]byte{nil, {0, 0, 1}}, 2, []handBatch{words}},
		"list of dictionary": {handField{typ: kindList, children: []handField{coded.called("item")}}, []int64{3, 0, 4, 0}, [][]byte{nil, le32s(0, 2, 4, 4), nil, {0, 0, 0, 1}}, 1, []handBatch{words}},
		"entry of no row":    {coded, []int64{3, 0}, [][]byte{nil, {0, 0, 0}}, -1, []handBatch{words}},
		"null":               {handUTF8, []int64{3, 1}, [][]byte{{0b101}, le32s(0, 1, n+4, n+4), []byte(ascii + bad)}, -1, nil},
		"null list":          {list, []int64{3, 1, 2, 0}, append([][]byte{{0b101}, le32s(0, 1, 2, 2)}, text(0, n, n+4)...), -1, nil},
		"after a null list":  {list, []int64{3, 1, 3, 0}, append([][]byte{{0b110}, le32s(0, 1, 1, 3)}, nil, le32s(0, 4, 4, 8), []byte(bad+bad)), 2, nil},
		"null view":          {view, []int64{3, 1}, [][]byte{{0b011}, handViews("a", "b", bad)}, -1, nil},
		"binary":             {binary, []int64{3, 0}, text(0, n, n+4, n+4), -1, nil},
		"not used":           {handUTF8, []int64{3, 0}, text(0, 1, 2, n), -1, nil},
		"other chars":        {handUTF8, []int64{3, 0}, [][]byte{nil, le32s(0, 2, 5, 9), []byte("\u00e9\u20ac\U0001f600")}, -1, nil},
	} {
		b := handBatch{rows: 3, nodes: append([]int64{3, 0}, c.nodes...), buffers: append([][]byte{nil, le32s(1, 2, 3)}, c.buffers...)}
		if c.f.typ == kindUTF8View {
			b.variadic = []int64{int64(len(c.buffers) - 2)}
		}
		for _, stream := range []bool{false, true} {
			good := b // the first batch
			good.rows, good.nodes = 0, make([]int64, len(b.nodes))
			path := handWrite(t, "text.arrow", handFile(stream, []handField{handInt32.called("n"), c.f.called("t")}, append(c.dicts, good, b)...))
			got, err := rowsOf(t, path)
			if c.row < 0 {
				if err != nil {
					t.Errorf("%s: %v", name, err)
				}
				continue
			}
			p := fault.PlaceOf(err)
			frame, _ := p.RowGroup.Get()
			row, known := p.Row.Get()
			if fault.CodeOf(err) != fault.Corrupt || p.File != path || p.Column != "t" || !strings.Contains(err.Error(), "not UTF-8: \"") {
				t.Errorf("%s: %v, after %q", name, err, got)
			}
			if row != c.row || !known || frame != 1 {
				t.Errorf("%s: row %d of batch %d: %v", name, row, frame, err)
			}
			table, err := resolve(t, path)
			if err != nil {
				t.Fatal(err)
			}
			bads, want := []int64{c.row}, slices.Delete([]string{"1", "2", "3"}, int(c.row), int(c.row)+1)
			if name == "cut" { // within a character: neither is text
				bads, want = []int64{0, 1}, []string{"3"}
			}
			var left []string // without what is bad
			for k := range table.Splits() {
				bad := []int64{}
				o := &driver.ScanOptions{Limit: 2, Alloc: memtest.New(t), OnBadRow: func(err error) error {
					n, _ := fault.PlaceOf(err).Row.Get()
					bad = append(bad, n)
					return nil
				}}
				rd, err := table.Open(t.Context(), k, o)
				for err == nil {
					var b driver.Batch
					if b, err = rd.Next(t.Context()); err == nil {
						n := b.Record.Column(0)
						for i := range n.Len() {
							left = append(left, n.ValueStr(i))
						}
						b.Record.Release()
					}
				}
				if err != io.EOF || rd.Close() != nil || len(bad) > 0 && !slices.Equal(bad, bads) {
					t.Errorf("%s: %v, bad rows %v", name, err, bad)
				}
			}
			if !slices.Equal(left, want) {
				t.Errorf("%s: rows %v are left, want %v", name, left, want)
			}
		}
	}
}

// A row that is not asked for is not looked at, and one in a later batch of the frame has its number.
func TestTextIsCheckedWhereItIsRead(t *testing.T) {
	file := handFile(false, []handField{handUTF8.called("t")}, handBatch{rows: 5, nodes: []int64{5, 0}, buffers: [][]byte{nil, le32s(0, 1, 2, 3, 4, 5), []byte("abcd\xff")}})
	got, err := rowsOf(t, handWrite(t, "late.arrow", file)) // in batches of 3 rows
	if row, _ := fault.PlaceOf(err).Row.Get(); got != "a\nb\nc\nd\n" || row != 4 {
		t.Errorf("%q, %v", got, err)
	}
}

func TestNamesThatAreNotUTF8(t *testing.T) {
	for _, f := range []handField{handInt32.called("pr\xe9nom"), {name: "s", typ: kindStruct, children: []handField{handInt32.called("pr\xe9nom")}}} {
		_, err := resolve(t, handWrite(t, "names.arrow", handFile(true, []handField{handInt32.called("a"), f})))
		if fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), `pr\xe9nom"`) || !strings.Contains(err.Error(), "is not UTF-8; rename it") || !strings.Contains(err.Error(), "names.arrow") {
			t.Error(err)
		}
	}
}

// What was found to be text is not looked at again, what was not read to its end is.
func TestTextIsCheckedOnce(t *testing.T) {
	file := handFile(false, []handField{handUTF8.called("t"), handUTF8.called("u")}, handBatch{rows: 5, nodes: []int64{5, 0, 5, 0},
		buffers: [][]byte{nil, le32s(0, 1, 2, 3, 4, 5), []byte("abcde"), nil, le32s(0, 1, 2, 3, 4, 5), []byte("abcd\xff")}})
	table, err := resolve(t, handWrite(t, "once.arrow", file))
	if err != nil {
		t.Fatal(err)
	}
	f := table.(*data).files[0]
	for range 2 {
		if _, err := rowsOfTable(t, table, nil); fault.CodeOf(err) != fault.Corrupt || f.text.has(0, 0) || f.text.has(0, 1) {
			t.Error(err)
		}
	}
	for range 2 {
		if got, err := rowsOfTable(t, table, []string{"t"}); got != "a\nb\nc\nd\ne\n" || err != nil || !f.text.has(0, 0) || f.text.has(0, 1) {
			t.Errorf("%q, %v", got, err)
		}
	}
	if _, err := rowsOfTable(t, table, []string{"u", "t"}); fault.CodeOf(err) != fault.Corrupt {
		t.Error(err)
	}
	r, err := table.Open(t.Context(), 0, &driver.ScanOptions{Columns: []string{"u"}, FromRow: 5})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	if _, err := r.Next(t.Context()); err != io.EOF || f.text.has(0, 1) {
		t.Error(err)
	}
}

func TestValidUTF8(t *testing.T) {
	parts := []string{"a", "ascii of more than eight", "\u00e9", "\u20ac", "\U0001f600", "\ufffd", "\xe9", "\xc3", "\xc0\x80", "\xed\xa0\x80", "\x80", "\xf4\x90\x80\x80"}
	for _, x := range parts {
		for _, y := range parts {
			for _, z := range parts {
				if s := x + y + z; validUTF8([]byte(s)) != utf8.ValidString(s) {
					t.Errorf("%q", s)
				}
			}
		}
	}
}

func TestASCII(t *testing.T) {
	for n := range 200 {
		b := bytes.Repeat([]byte("x"), n)
		if got := ascii(b); got != n {
			t.Errorf("%d of %d", got, n)
		}
		for i := range b {
			b[i] = 0xc3
			if got := ascii(b); got > i {
				t.Errorf("%d of %d, where %d is none", got, n, i)
			}
			b[i] = 'x'
		}
	}
}

// BenchmarkText is the check alone.
func BenchmarkText(b *testing.B) {
	for _, word := range []string{"a text of ascii ", "ein Te\u00dft mit dem "} {
		build := array.NewStringBuilder(memory.DefaultAllocator)
		for range 100_000 {
			build.Append(word)
		}
		a := build.NewArray()
		build.Release()
		b.Run(fmt.Sprint(len(word)), func(b *testing.B) {
			b.SetBytes(int64(len(word)) * 100_000)
			for b.Loop() {
				if row, _ := texts.First(a.Data(), 0, 100_000); row >= 0 {
					b.Fatal(row)
				}
			}
		})
		a.Release()
	}
}

// A column of text that is to be read as bytes need not be UTF-8, whatever holds it.
func TestTextAsBytes(t *testing.T) {
	coded := handUTF8
	coded.dict = 5
	for name, c := range map[string]struct {
		f       handField
		buffers [][]byte
		dicts   []handBatch
	}{
		"utf8":       {handUTF8, [][]byte{nil, le32s(0, 1, 2, 2), []byte("a\xff")}, nil},
		"large":      {handField{typ: kindLargeUTF8}, [][]byte{nil, le64s(0, 1, 2, 2), []byte("a\xff")}, nil},
		"view":       {handField{typ: kindUTF8View}, [][]byte{nil, handViews("a", "\xff", "")}, nil},
		"dictionary": {coded, [][]byte{nil, {0, 1, 2}}, []handBatch{{dict: 5, rows: 3, nodes: []int64{3, 0}, buffers: [][]byte{nil, le32s(0, 1, 2, 2), []byte("a\xff")}}}},
	} {
		b := handBatch{rows: 3, nodes: []int64{3, 0}, buffers: c.buffers}
		if c.f.typ == kindUTF8View {
			b.variadic = []int64{0}
		}
		path := handWrite(t, "text.arrow", handFile(false, []handField{c.f.called("t")}, append(c.dicts, b)...))
		if _, err := rowsOf(t, path); fault.CodeOf(err) != fault.Corrupt {
			t.Errorf("%s as text: %v", name, err)
		}
		table, err := New(Options{Options: fileset.Options{Paths: []string{path}, Types: map[string]string{"t": "binary"}}}).Resolve(t.Context(), nil)
		if err != nil {
			t.Fatal(name, err)
		}
		if got, err := rowsOfTable(t, table, nil); err != nil || got != "YQ==\n/w==\n\n" {
			t.Errorf("%s: %q, %v", name, got, err)
		}
		table.Close()
	}
}
