package jsonio_test

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/jsonio"
)

// described are the columns and rows of a file, or its error.
func described(t *testing.T, o jsonio.Options, so *driver.ScanOptions) (columns, rows string, err error) {
	t.Helper()
	rec, err := readAll(t, o, so)
	if err != nil {
		return "", "", err
	}
	defer rec.Release()
	var names []string
	for _, f := range rec.Schema().Fields() {
		names = append(names, f.Name+": "+typename.Name(f.Type))
	}
	if rec.NumRows() > 0 {
		rows = strings.ReplaceAll(strings.TrimSuffix(string(encode(t, &jsonio.EncodingOptions{NonFinite: "string"}, rec)), "\n"), "\n", " ")
	}
	return strings.Join(names, ", "), rows, nil
}

// TestLayouts: rows lie in files as others write them: over several lines, several on a line, in arrays, as
// values that are no objects; plain, compressed and in UTF-16.
func TestLayouts(t *testing.T) {
	pad := strings.Repeat("x", 5000)
	for _, c := range []struct{ in, columns, rows string }{
		{"{\n  \"a\": 1,\n  \"b\": [\n    1,\n    2\n  ]\n}\n{\n  \"a\": 2\n}\n", "a: int64, b: list<int64>", `{"a":1,"b":[1,2]} {"a":2,"b":null}`},
		{"{\"a\":1}{\"a\":2}\n", "a: int64", `{"a":1} {"a":2}`},
		{"{\"a\":1} {\"a\":2}\n{\"a\":3}", "a: int64", `{"a":1} {"a":2} {"a":3}`},
		{"{\"a\":1}\n{\n\"a\":2\n}", "a: int64", `{"a":1} {"a":2}`},
		{"{\"a\":1}\r{\"a\":2}\r", "a: int64", `{"a":1} {"a":2}`},
		{"\n\n {\"a\":1}\n\n\t{\"a\":2}\r\n", "a: int64", `{"a":1} {"a":2}`},
		{strings.Repeat(" \n", 5000) + "{\n\"a\":1}{\"a\":2}\n", "a: int64", `{"a":1} {"a":2}`},
		{"{\"p\":\"" + pad + "\",\n\"a\":1}", "p: string, a: int64", `{"p":"` + pad + `","a":1}`},
		{"{\"p\":\"" + pad + "\"}{\"p\":1}", "", "p holds numbers and strings"},
		{"{\"a\":1}\n{\"p\":\"" + pad + "\",\n\"a\":1}", "", "the text ends inside a value; for values over several lines set layout: elements (byte 5017)"}, // behind 4 KiB
		{"[{\"a\":1},\n{\"a\":2}]\n", "a: int64", `{"a":1} {"a":2}`},
		{"[{\"a\":1}]\n[{\"a\":2}, {\"a\":3}]\n", "value: list<struct<a: int64>>", `{"value":[{"a":1}]} {"value":[{"a":2},{"a":3}]}`},
		{"[1,2]\n[3]\n", "value: list<int64>", `{"value":[1,2]} {"value":[3]}`},
		{"[1,2][3]", "value: list<int64>", `{"value":[1,2]} {"value":[3]}`},
		{"[[1],\n[2,3]]", "value: list<int64>", `{"value":[1]} {"value":[2,3]}`},
		{"[1, null, 3]", "value: int64", `{"value":1} {"value":null} {"value":3}`},
		{"[\"a\", \"b\"]", "value: string", `{"value":"a"} {"value":"b"}`},
		{"[\n\"2024-01-01\",\n\"2024-01-02\"\n]", "value: date", `{"value":"2024-01-01"} {"value":"2024-01-02"}`},
		{"1\n2.5\nnull\n", "value: double", `{"value":1.0} {"value":2.5} {"value":null}`},
		{"1 2 3", "value: int64", `{"value":1} {"value":2} {"value":3}`},
		{"true\nfalse", "value: bool", `{"value":true} {"value":false}`},
		{"[null]", "value: string", `{"value":null}`},
		{"", "value: string", ""},
		{" \r\n\t \n", "value: string", ""},
		{"\xef\xbb\xbf", "value: string", ""},
		{"\xef\xbb\xbf \n{\n\"a\":1}", "a: int64", `{"a":1}`},
		{"[]", "value: string", ""},
		{"[ \n]\n", "value: string", ""},
		{"[\n  ,\n]", "", "no row of the sample can be read: "},
		{"{\"a\":1}\n{\"a\":2}TRAILER\n{\"a\":3}\n", "", `'T' after the end of the value; write one on each line`},
		{"{\"b\":[\n{\"a\":1}\n{\"a\":2}\n", "", `the text ends inside a value`}, // lines, of which the first is cut
		{"{\n\"a\":1,\n\"b\": oops\n}", "", `the text is damaged: 'o' does not begin a value (byte 14)`},
		{"{\"a\":1}]", "", "']' after the end of the value"},
		{"[{\"a\":1}] x", "", "'x' behind the array; for several arrays set layout: elements"},
		{"[1,\"x\"]", "", "value holds numbers and strings; give it a type, e.g. types: {value: string}, or set mixed: text"},
		{"{\"a\":1}\n3", "", "a row is an object, not a number; to read rows of both kinds as text set mixed: text"},
		{"[1,{\"a\":1}]", "", "a row is an object, not a number"},
		{"x", "", "no row of the sample can be read: "},
	} {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		w.Write([]byte(c.in))
		w.Close()
		wide := []byte("\xff\xfe")
		for _, r := range strings.TrimPrefix(c.in, "\xef\xbb\xbf") {
			wide = append(wide, byte(r), byte(r>>8))
		}
		for name, b := range map[string][]byte{"x.json": []byte(c.in), "x.jsonl.gz": packed.Bytes(), "wide.json": wide} {
			columns, rows, err := described(t, paths(save(t, name, b)), &driver.ScanOptions{Alloc: memtest.New(t)})
			switch {
			case err != nil && (c.columns != "" || !strings.Contains(err.Error(), c.rows)):
				t.Errorf("%s of %.60q: %.400s, want %s", name, c.in, err.Error(), c.rows)
			case err == nil && (columns != c.columns || rows != c.rows):
				t.Errorf("%s of %.60q: %s: %s, want %s: %s", name, c.in, columns, rows, c.columns, c.rows)
			}
		}
	}
}

// TestLayoutOption: it stands over what is found.
func TestLayoutOption(t *testing.T) {
	for _, c := range []struct{ layout, in, want string }{
		{"lines", "[1]\n", `{"value":[1]}`},
		{"elements", "[1]\n", `{"value":[1]}`},
		{"array", "[1]\n", `{"value":1}`},
		{"elements", "{\"a\":0}\n{\"p\":\"" + strings.Repeat("x", 5000) + "\",\n\"a\":1}", `"a":1`},
		{"lines", "{\n\"a\":1\n}", "the text ends inside a value; for values over several lines set layout: elements"},
		{"lines", "{\"a\":1} {\"a\":2}", "'{' after the end of the value; write one on each line, or set layout: elements"},
		{"array", "{\"a\":1}", "'{' where an array begins; set layout: lines or elements"},
		{"elements", "{\"a\":1},{\"a\":2}", "',' does not begin a value"},
		{"array", " ", "the text ends inside a value"},
		{"object", "1", `layout: "object" must be lines, array or elements`},
	} {
		o := paths(save(t, "x.json", []byte(c.in)))
		o.Layout = c.layout
		_, rows, err := described(t, o, nil)
		if err != nil {
			rows = err.Error()
		}
		if !strings.Contains(rows, c.want) {
			t.Errorf("%s, %.40q: %s, want %s", c.layout, c.in, rows, c.want)
		}
	}
}

// TestElementsSplits: only lines are cut into splits, and values one behind another are read with bounded memory,
// whatever the batches.
func TestElementsSplits(t *testing.T) {
	var text strings.Builder
	for i := range 20_000 {
		fmt.Fprintf(&text, "{\n  \"a\": %d,\n  \"s\": \"%s\"\n}\n", i, strings.Repeat("y", i%300))
	}
	o := paths(save(t, "x.json", []byte(text.String())))
	o.SplitBytes = 100_000
	for _, so := range []driver.ScanOptions{{}, {BatchRows: 7}, {BatchBytes: 1000}, {FromRow: 100}} {
		so.Alloc = memtest.New(t)
		rec, err := readAll(t, o, &so)
		if err != nil {
			t.Fatal(err)
		}
		if rec.NumRows() != 20_000-so.FromRow {
			t.Errorf("%+v: %d rows", so, rec.NumRows())
		}
		for i := range int(rec.NumRows()) {
			if got := value(rec.Column(0), i); got != float64(int64(i)+so.FromRow) {
				t.Fatalf("row %d is %v", i, got)
			}
		}
		rec.Release()
	}
	tab, err := jsonio.New(o).Resolve(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	if n := len(tab.Splits()); n != 1 || tab.(driver.Offsetter).Offsets(0) {
		t.Errorf("%d splits", n)
	}
}

// TestFilesOfLayouts: each file has its own.
func TestFilesOfLayouts(t *testing.T) {
	o := paths(save(t, "a.json", []byte("{\"a\":1}\n{\"a\":2}\n")), save(t, "b.json", []byte("[{\"a\":3}]")), save(t, "c.json", []byte("{\n\"a\":4}")), save(t, "d.json", []byte(" \n")))
	columns, rows, err := described(t, o, nil)
	if want := `{"a":1} {"a":2} {"a":3} {"a":4}`; err != nil || columns != "a: int64" || rows != want {
		t.Errorf("%s: %s, %v", columns, rows, err)
	}
	o = paths(save(t, "a.json", []byte("{\"a\":1}\n")), save(t, "b.json", []byte("[3]")))
	if _, _, err = described(t, o, nil); fault.CodeOf(err) != fault.RowError || !strings.Contains(err.Error(), "a row is an object, not a number") {
		t.Errorf("objects and numbers: %v", err)
	}
}

// TestScalarColumns: the types, columns and names of rows that are no objects.
func TestScalarColumns(t *testing.T) {
	path := save(t, "x.json", []byte("[1, \"x\", {\"k\": [2]}, null]"))
	o := paths(path)
	o.Types = map[string]string{"value": "string"}
	if _, _, err := described(t, o, nil); err == nil || !strings.Contains(err.Error(), "a row is an object, not a number") {
		t.Errorf("objects among others: %v", err)
	}
	o = paths(save(t, "y.json", []byte("1\n\"x\"\nnull\n")))
	o.Types = map[string]string{"value": "string"}
	if _, rows, err := described(t, o, nil); err != nil || rows != `{"value":"1"} {"value":"x"} {"value":null}` {
		t.Errorf("%s, %v", rows, err)
	}
	o.Types["w"] = "int"
	if _, _, err := described(t, o, nil); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), `types: no column "w": rows are not objects`) {
		t.Errorf("%v", err)
	}
	o = paths(save(t, "z.json", []byte("[1, 2, \"x\", 3]")))
	o.Types = map[string]string{"value": "int"}
	var bad []string
	_, rows, err := described(t, o, &driver.ScanOptions{OnBadRow: func(err error) error { bad = append(bad, err.Error()); return nil }})
	if err != nil || rows != `{"value":1} {"value":2} {"value":3}` || len(bad) != 1 || !strings.Contains(bad[0], "\"x\" is no int64") {
		t.Errorf("%s, %v, %q", rows, err, bad)
	}
	tab, err := jsonio.New(o).Resolve(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	r, err := tab.Open(t.Context(), 0, &driver.ScanOptions{Columns: []string{}})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	b, err := r.Next(t.Context())
	if err != nil || b.Record.NumRows() != 4 || b.Record.NumCols() != 0 {
		t.Errorf("no column: %v, %v", b.Record, err)
	}
	b.Record.Release()
}

// TestMixed: values of several types in a column are an error that names the option, or text.
func TestMixed(t *testing.T) {
	for _, c := range []struct{ in, columns, rows string }{
		{"{\"a\":1}\n{\"a\":\"x\"}\n{\"a\":{\"k\": [1]}}\n{\"a\":null}\n", "a: string", `{"a":"1"} {"a":"x"} {"a":"{\"k\": [1]}"} {"a":null}`},
		{"{\"a\":{\"b\":[1,true]}}", "a: struct<b: list<string>>", `{"a":{"b":["1","true"]}}`},
		{"{\"a\":1}\n3\n[4]\nnull\n", "value: string", `{"value":"{\"a\":1}"} {"value":"3"} {"value":"[4]"} {"value":null}`},
		{"[1,\"x\"]", "value: string", `{"value":"1"} {"value":"x"}`},
		{"[1,{\"a\":1}]", "value: string", `{"value":"1"} {"value":"{\"a\":1}"}`},
		{"{\"a\":1,\"b\":\"x\"}", "a: int64, b: string", `{"a":1,"b":"x"}`},
	} {
		o := paths(save(t, "x.json", []byte(c.in)))
		o.Mixed = "text"
		if columns, rows, err := described(t, o, nil); err != nil || columns != c.columns || rows != c.rows {
			t.Errorf("%q: %s: %s, %v", c.in, columns, rows, err)
		}
	}
	// Behind the sample, too.
	row := fmt.Sprintf("{\"b\":%q}\n", strings.Repeat("x", 1000))
	o := paths(save(t, "x.json", []byte(strings.Repeat(row, 2<<20/len(row))+"{\"b\":[ 1 ]}\n")))
	o.Mixed = "text"
	if _, rows, err := described(t, o, nil); err != nil || !strings.HasSuffix(rows, `{"b":"[ 1 ]"}`) {
		t.Errorf("late: %v", err)
	}
	o.Mixed = "json"
	if _, _, err := described(t, o, nil); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("an unknown mixed: %v", err)
	}
}

// TestNonFinite: the words NaN and Infinity are a bad row that names the option, null, or what they say.
func TestNonFinite(t *testing.T) {
	const in = "{\"a\":NaN,\"t\":[1, NaN],\"i\":1}\n{\"a\":-Infinity,\"t\":{\"k\":-Infinity , \"l\":[NaN]}, \"u\":NaN}\n{\"a\":Infinity,\"t\":NaN}\n{\"a\":1}\n"
	rows := strings.Split(strings.TrimSpace(in), "\n")
	for _, text := range []string{in, "[" + strings.Join(rows, ",") + "]", strings.Join(rows, " ")} {
		o := paths(save(t, "x.json", []byte(text)))
		o.Types = map[string]string{"t": "string"}
		for _, o.NonFinite = range []string{"", "error"} {
			var bad []string
			_, got, err := described(t, o, &driver.ScanOptions{OnBadRow: func(err error) error { bad = append(bad, err.Error()); return nil }})
			if err != nil || got != `{"a":1,"t":null}` || len(bad) != 3 || !strings.Contains(bad[0], "NaN and Infinity are not JSON; set non_finite") {
				t.Errorf("%s: %s, %v, %q", text, got, err, bad)
			}
		}
		o.NonFinite = "keep"
		columns, got, err := described(t, o, &driver.ScanOptions{Alloc: memtest.New(t)})
		want := `{"a":"NaN","t":"[1, NaN]","i":1,"u":null} {"a":"-Infinity","t":"{\"k\":-Infinity , \"l\":[NaN]}","i":null,"u":"NaN"} {"a":"Infinity","t":"NaN","i":null,"u":null} {"a":1.0,"t":null,"i":null,"u":null}`
		if err != nil || columns != "a: double, t: string, i: int64, u: double" || got != want {
			t.Errorf("keep %s: %s: %s, %v", text, columns, got, err)
		}
		o.NonFinite = "null"
		columns, got, err = described(t, o, &driver.ScanOptions{Alloc: memtest.New(t)})
		want = `{"a":null,"t":"[1, null]","i":1,"u":null} {"a":null,"t":"{\"k\":null , \"l\":[null]}","i":null,"u":null} {"a":null,"t":null,"i":null,"u":null} {"a":1,"t":null,"i":null,"u":null}`
		if err != nil || columns != "a: int64, t: string, i: int64, u: string" || got != want {
			t.Errorf("null %s: %s: %s, %v", text, columns, got, err)
		}
	}
	for _, c := range []struct{ typ, in, want string }{
		{"float", "NaN", `"NaN"`}, {"double", "-Infinity", `"-Infinity"`}, {"int", "NaN", "does not fit int64"}, {"decimal(5, 2)", "Infinity", "not a number"},
		{"bool", "NaN", "NaN where bool is needed"}, {"list<double>", "[NaN]", `["NaN"]`}, {"double", "-NaN", "does not begin a value"}, {"double", "Infinit", "an unknown word"}, {"double", "nan", "an unknown word"},
	} {
		o := paths(save(t, "x.json", []byte("{\"v\":"+c.in+"}")))
		o.Types, o.NonFinite = map[string]string{"v": c.typ}, "keep"
		_, got, err := described(t, o, nil)
		if err != nil {
			got = err.Error()
		}
		if !strings.Contains(got, c.want) {
			t.Errorf("%s %s: %s, want %s", c.typ, c.in, got, c.want)
		}
	}
}
