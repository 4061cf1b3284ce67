package jsonio

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
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// TestManyKeys: more different keys than there may be columns are refused where the first of them is seen, in
// one row, in many, in objects of objects, in several files; maps take any.
func TestManyKeys(t *testing.T) {
	keys := func(from, to int, each, between string) string {
		var b strings.Builder
		for i := from; i < to; i++ {
			if i > from {
				b.WriteString(between)
			}
			fmt.Fprintf(&b, each, i)
		}
		return b.String()
	}
	const n = fileset.MaxColumns
	for name, c := range map[string]struct {
		files []string
		types map[string]string
		ok    bool
	}{
		"one row":       {files: []string{"{" + keys(0, 4*n, `"k%d":1`, ",") + "}\n"}},
		"many rows":     {files: []string{keys(0, 2*n, `{"%d":1}`, "\n")}},
		"array":         {files: []string{"[" + keys(0, 2*n, `{"%d":1}`, ",") + "]"}},
		"within":        {files: []string{`{"a":[{"b":{` + keys(0, 2*n, `"k%d":1`, ",") + `}}]}`}},
		"several files": {files: []string{"{" + keys(0, n/2+1, `"k%d":1`, ",") + "}", "{" + keys(n/2+1, n+2, `"k%d":1`, ",") + "}"}},
		"a long key":    {files: []string{`{"` + strings.Repeat("k", fileset.MaxName+1) + `":1}`}},
		"map":           {files: []string{`{"a":{` + keys(0, 2*n, `"k%d":1`, ",") + `}}`}, types: map[string]string{"a": "map<string, int64>"}, ok: true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			for i, text := range c.files {
				if err := os.WriteFile(filepath.Join(dir, fmt.Sprint(i, ".json")), []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			table, err := New(Options{Options: fileset.Options{Paths: []string{dir}, Types: c.types}}).Resolve(t.Context(), nil)
			if c.ok {
				if err != nil {
					t.Fatal(err)
				}
				table.Close()
				return
			}
			if fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), "more than 65536") || len(err.Error()) > 1_000 {
				t.Errorf("%.2000v", err)
			}
		})
	}
}

// TestManyBlanks: the first row is not looked for without end.
func TestManyBlanks(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.json")
	if err := os.WriteFile(path, []byte(strings.Repeat(" \n", headBytes)+`{"a":1}`), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := New(Options{Options: fileset.Options{Paths: []string{path}}}).Resolve(t.Context(), nil)
	if fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), "white space") {
		t.Error(err)
	}
}

// Rows that each have another key are rows of as many columns, most of them null, and refused
// before they take minutes.
func TestSmallFileManyKeys(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.json")
	var text strings.Builder
	for i := range 4_000 {
		fmt.Fprintf(&text, "{\"k%d\":1}\n", i)
	}
	if err := os.WriteFile(path, []byte(text.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	table, err := New(Options{Options: fileset.Options{Paths: []string{path}, MaxGrowth: 5_000}}).Resolve(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Close()
	r, err := table.Open(t.Context(), 0, &driver.ScanOptions{Alloc: memtest.New(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	var rows int64
	for err == nil {
		var b driver.Batch
		if b, err = r.Next(t.Context()); err == nil {
			rows += b.Record.NumRows()
			b.Record.Release()
		}
	}
	if err == io.EOF || fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), "max_growth") {
		t.Errorf("%d rows, then %v; want an error that names max_growth", rows, err)
	}
}

// readAll reads files of these texts with this bound, and says how many rows came before the error;
// io.EOF: all.
func readAll(t *testing.T, files map[string][]byte, o Options, so driver.ScanOptions) (rows int64, most uint64, err error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		if err := os.WriteFile(filepath.Join(dir, name), text, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o.Paths = []string{dir}
	table, err := New(o).Resolve(t.Context(), nil)
	if err != nil {
		return 0, 0, err
	}
	defer table.Close()
	alloc := &peak{Allocator: memtest.New(t)}
	so.Alloc = alloc
	for i := range table.Splits() {
		r, err := table.Open(t.Context(), i, &so)
		if err != nil {
			return rows, alloc.most, err
		}
		var b driver.Batch
		for err == nil {
			if b, err = r.Next(t.Context()); err == nil {
				rows += b.Record.NumRows()
				b.Record.Release()
			}
		}
		r.Close()
		if err != io.EOF {
			return rows, alloc.most, err
		}
	}
	return rows, alloc.most, io.EOF
}

// peak remembers the most memory that was taken at once.
type peak struct {
	memory.Allocator
	used, most uint64
}

func (p *peak) Allocate(n int) []byte {
	p.used += uint64(n)
	p.most = max(p.most, p.used)
	return p.Allocator.Allocate(n)
}

func (p *peak) Reallocate(n int, b []byte) []byte {
	p.used += uint64(n)
	p.most = max(p.most, p.used)
	p.used -= uint64(len(b))
	return p.Allocator.Reallocate(n, b)
}

func (p *peak) Free(b []byte) {
	p.used -= uint64(len(b))
	p.Allocator.Free(b)
}

// TestSmallFileOneRow: one row of a small file that would be gigabytes of columns is refused before
// it is: objects that lack most keys of one of them, in lists of any depth, fixed lists of
// null, what a few bytes of a compressed file become.
func TestSmallFileOneRow(t *testing.T) {
	const n = 8_000
	var keys strings.Builder
	for i := range n {
		fmt.Fprintf(&keys, `"k%d":1,`, i)
	}
	many := "{" + strings.TrimSuffix(keys.String(), ",") + "}" + strings.Repeat(",{}", n)
	packed := func(kind string, mib int, begin, each, end string) []byte {
		var b bytes.Buffer
		w, err := fileset.Compress(kind, 0, &b)
		if err != nil {
			t.Fatal(err)
		}
		part := []byte(strings.Repeat(each, 1<<20/len(each)))
		io.WriteString(w, begin)
		for range mib {
			w.Write(part)
		}
		io.WriteString(w, end)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	for name, c := range map[string]struct {
		file  string
		text  []byte
		types map[string]string
	}{
		"objects":             {file: "a.json", text: []byte(`{"a":[` + many + `]}`)},
		"objects, deep":       {file: "a.json", text: []byte(`{"a":[[{"b":[` + many + `]}]]}`)},
		"objects in an array": {file: "a.json", text: []byte(`[{"a":[` + many + `]}]`)},
		"rows that are bad":   {file: "a.json", text: []byte(strings.Repeat(`{"a":[{"b":1}`+strings.Repeat(`,{}`, 3_000)+`],"c":"x"}`+"\n", 100)), types: map[string]string{"a": "list<struct<b: fixed_size_list<int64>(1000)>>", "c": "int64"}},
		"fixed lists":         {file: "a.json", text: []byte(`{"a":[[1]` + strings.Repeat(`,null`, 100) + `]}`), types: map[string]string{"a": "list<fixed_size_list<int64>(1000000)>"}},
		"numbers":             {file: "a.json.zst", text: packed("zstd", 20, `{"a":[`, "0,", "0]}")},
		"numbers in an array": {file: "a.json.gz", text: packed("gzip", 20, `[{"a":[`, "0,", "0]}]")},
	} {
		t.Run(name, func(t *testing.T) {
			o := Options{Options: fileset.Options{Types: c.types, MaxGrowth: 500}}
			so := driver.ScanOptions{OnBadRow: func(error) error { return nil }}
			rows, most, err := readAll(t, map[string][]byte{c.file: c.text}, o, so)
			if fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), "max_growth") || !strings.Contains(err.Error(), c.file) {
				t.Errorf("%d bytes gave %d rows, then %v; want an error that names the file and max_growth", len(c.text), rows, err)
			}
			if most > 512<<20 {
				t.Errorf("it took %d MiB", most>>20)
			}
		})
	}
}

// TestSmallFilesLongFirstRows: the first rows of small files are not looked at without end, neither
// of one file nor of many together.
func TestSmallFilesLongFirstRows(t *testing.T) {
	packed := func(mib int, end string) []byte {
		var b bytes.Buffer
		w, err := fileset.Compress("zstd", 0, &b)
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(w, `{"a":"`)
		for range mib {
			w.Write(bytes.Repeat([]byte("x"), 1<<20))
		}
		io.WriteString(w, end)
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		return b.Bytes()
	}
	many := map[string][]byte{}
	for i := range 8 {
		many[fmt.Sprint(i, ".json.zst")] = packed(24, `"}`)
	}
	for name, c := range map[string]struct {
		files map[string][]byte
		want  string
	}{
		"one":       {map[string][]byte{"a.json.zst": packed(140, `"}`)}, "the text of the first row has more than"},
		"no end":    {map[string][]byte{"a.json.zst": packed(140, "")}, "the text of the first row has more than"},
		"together":  {many, "the first rows of the files that are looked at have together more than"},
		"array":     {map[string][]byte{"a.json.zst": append(packed(0, `"}`+"\n"), packed(140, `"}`)...)}, "the line at byte 9 has more than"},
		"are right": {map[string][]byte{"a.json.zst": packed(40, `"}`), "b.json": packedText(20 << 20)}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			rows, _, err := readAll(t, c.files, Options{}, driver.ScanOptions{})
			if c.want == "" {
				if err != io.EOF || rows != int64(len(c.files)) {
					t.Errorf("%d rows, %v", rows, err)
				}
				return
			}
			if fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), c.want) || !strings.Contains(err.Error(), "max_growth") {
				t.Errorf("%d rows, %v; want %s", rows, err, c.want)
			}
		})
	}
}

func packedText(n int) []byte { return []byte(`{"a":"` + strings.Repeat("y", n) + `"}`) }

// TestLargeRow: one row of 50 MB that is as large in memory as its text is read.
func TestLargeRow(t *testing.T) {
	var b bytes.Buffer
	b.WriteString(`{"a":[`)
	for i := 0; b.Len() < 50<<20; i++ {
		fmt.Fprintf(&b, `{"k%d":%d,"t":"some text of this element"},`, i%20, i)
	}
	b.WriteString(`{}]}`)
	if rows, _, err := readAll(t, map[string][]byte{"a.json": b.Bytes()}, Options{}, driver.ScanOptions{}); err != io.EOF || rows != 1 {
		t.Errorf("%d rows, %v", rows, err)
	}
}

// TestLackingFields: what objects lack is null, wherever that is: in structs of structs, in fixed
// lists, behind rows that are bad.
func TestLackingFields(t *testing.T) {
	s := &sink{alloc: memtest.New(t)}
	typ, err := typename.Parse("struct<a: struct<x: int64, l: list<int8>, t: string>, f: fixed_size_list<struct<y: bool, z: int32>>(2), n: int64>")
	if err != nil {
		t.Fatal(err)
	}
	c, err := newColumn(s, arrow.Field{Name: "c", Type: typ}, "c", given)
	if err != nil {
		t.Fatal(err)
	}
	p := &parser{root: &column{s: s, kind: kStruct, kids: []*column{c}, byName: map[string]int{"c": 0}, kidBits: c.nullBits}}
	defer p.root.release()
	for _, row := range []string{
		`{}`, `{"c":{}}`, `{"c":{"a":{"t":"u"}}}`, `{"c":{"a":{"l":[1,null]},"f":[{"z":1},{"y":true}]}}`, `{"c":null}`,
		`{"c":{"a":{"x":1,"l":[3],"t":"bad"},"n":"bad"}}`, `{"c":{"f":[{},null],"n":7}}`, `{"c":{"a":{"x":5}, "f":[{"y":false}]}}`, `{}`,
	} {
		p.text = text{b: []byte(row)}
		if err := p.row(); (err != nil) != (strings.Contains(row, "bad") || strings.Contains(row, "x\":5")) {
			t.Fatalf("%s: %v", row, err)
		}
	}
	d := c.finish(p.root.n)
	a := array.MakeFromData(d)
	d.Release()
	defer a.Release()
	got, err := json.Marshal(a)
	if err != nil {
		t.Fatal(err)
	}
	const want = `[null,{"a":null,"f":null,"n":null},{"a":{"l":null,"t":"u","x":null},"f":null,"n":null},` +
		`{"a":{"l":[1,null],"t":null,"x":null},"f":[{"y":null,"z":1},{"y":true,"z":null}],"n":null},null,` +
		`{"a":null,"f":[{"y":null,"z":null},null],"n":7},null]`
	if string(got) != want {
		t.Errorf("%s\nwant %s", got, want)
	}
}
