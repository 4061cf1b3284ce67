package jsonio_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/datatest"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/drivertest"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/jsonio"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func encode(t testing.TB, o *jsonio.EncodingOptions, recs ...arrow.RecordBatch) []byte {
	t.Helper()
	e, err := jsonio.NewEncoding(o)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	enc, err := e.NewEncoder(&b, recs[0].Schema(), memory.DefaultAllocator)
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
	if enc.Size() != int64(b.Len()) {
		t.Errorf("size %d, wrote %d", enc.Size(), b.Len())
	}
	return b.Bytes()
}

func save(t testing.TB, name string, b []byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// typesOf gives every column its type, so that nothing is left to the sample.
func typesOf(s *arrow.Schema) map[string]string {
	types := map[string]string{}
	for _, f := range s.Fields() {
		types[f.Name] = typename.Name(f.Type)
	}
	return types
}

func TestConformance(t *testing.T) {
	lines := func(o *jsonio.EncodingOptions) func(t testing.TB, path string, recs []arrow.RecordBatch) {
		return func(t testing.TB, path string, recs []arrow.RecordBatch) {
			if err := os.WriteFile(path, encode(t, o, recs...), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	array := func(t testing.TB, path string, recs []arrow.RecordBatch) {
		b := bytes.TrimSuffix(encode(t, nil, recs...), []byte("\n"))
		b = []byte("[" + strings.ReplaceAll(string(b), "\n", " ,\n") + "]")
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	damage := func(t testing.TB, path string, rec arrow.RecordBatch, bad []int64) {
		rows := bytes.Split(bytes.TrimSuffix(encode(t, nil, rec), []byte("\n")), []byte("\n"))
		for k, i := range bad {
			rows[i] = [][]byte{[]byte(`{"id": 1, "str": "cut`), []byte(`{"id": "no number"}`), []byte(`{"id": 1} {"id": 2}`), []byte(`[1]`)}[k%4]
		}
		if err := os.WriteFile(path, bytes.Join(rows, []byte("\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	source := func(paths ...string) driver.Source {
		return jsonio.New(jsonio.Options{Options: fileset.Options{Paths: paths, Types: typesOf(drivertest.Schema())}, Binary: fileset.Binary{Binary: "base64"}, SplitBytes: 20_000})
	}
	for _, h := range []struct {
		name string
		h    drivertest.Harness
	}{
		{"lines", drivertest.Harness{Ext: ".jsonl", Write: lines(nil), Shortens: true, Damage: damage}},
		{"lines/gzip", drivertest.Harness{Ext: ".jsonl.gz", Write: lines(&jsonio.EncodingOptions{Compression: "gzip"}), FileRows: []int64{100, 1, 200}}},
		{"lines/zstd", drivertest.Harness{Ext: ".jsonl.zst", Write: lines(&jsonio.EncodingOptions{Compression: "zstd"}), FileRows: []int64{100, 1, 200}}},
		{"array", drivertest.Harness{Ext: ".json", Write: array, EmptyFile: true, FileRows: []int64{200, 1, 400}}},
	} {
		t.Run(h.name, func(t *testing.T) {
			h.h.Source, h.h.Open = source, jsonio.Format().Open
			drivertest.Run(t, h.h, 0)
		})
	}
}

// readAll reads a file into one record.
func readAll(t testing.TB, o jsonio.Options, so *driver.ScanOptions) (arrow.RecordBatch, error) {
	t.Helper()
	tab, err := jsonio.New(o).Resolve(t.Context(), nil)
	if err != nil {
		return nil, err
	}
	defer tab.Close()
	var parts []arrow.RecordBatch
	defer func() {
		for _, p := range parts {
			p.Release()
		}
	}()
	for i := range tab.Splits() {
		r, err := tab.Open(t.Context(), i, so)
		if err != nil {
			return nil, err
		}
		defer r.Close()
		for {
			b, err := r.Next(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil {
				return nil, err
			}
			parts = append(parts, b.Record)
		}
	}
	if len(parts) == 0 {
		return array.NewRecordBuilder(memory.DefaultAllocator, tab.Schema()).NewRecordBatch(), nil
	}
	cols := make([]arrow.Array, parts[0].NumCols())
	var n int64
	for _, p := range parts {
		n += p.NumRows()
	}
	for c := range cols {
		var as []arrow.Array
		for _, p := range parts {
			as = append(as, p.Column(c))
		}
		if cols[c], err = array.Concatenate(as, memory.DefaultAllocator); err != nil {
			return nil, err
		}
	}
	return array.NewRecordBatch(parts[0].Schema(), cols, n), nil
}

func paths(p ...string) jsonio.Options { return jsonio.Options{Options: fileset.Options{Paths: p}} }

// value gives row i of a as encoding/json would.
func value(a arrow.Array, i int) any {
	if a.IsNull(i) {
		return nil
	}
	switch a := a.(type) {
	case *array.Boolean:
		return a.Value(i)
	case *array.Int64:
		return float64(a.Value(i))
	case *array.Float64:
		return a.Value(i)
	case *array.String:
		return a.Value(i)
	case *array.List:
		from, to := a.ValueOffsets(i)
		out := []any{}
		for k := from; k < to; k++ {
			out = append(out, value(a.ListValues(), int(k)))
		}
		return out
	case *array.Struct:
		out := map[string]any{}
		for k, f := range a.DataType().(*arrow.StructType).Fields() {
			out[f.Name] = value(a.Field(k), i)
		}
		return out
	}
	panic(a.DataType())
}

func TestFlights(t *testing.T) {
	path := datatest.Dir(t, "flights", "flights-20k.json")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var want []map[string]any
	if err := json.Unmarshal(b, &want); err != nil {
		t.Fatal(err)
	}
	var lines bytes.Buffer
	for _, w := range want {
		x, _ := json.Marshal(w)
		lines.Write(append(x, '\n'))
	}
	for _, p := range []string{path, save(t, "flights.jsonl", lines.Bytes())} {
		o := paths(p)
		o.SplitBytes = 300_000
		rec, err := readAll(t, o, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer rec.Release()
		if rec.NumRows() != 20000 {
			t.Fatalf("%d rows", rec.NumRows())
		}
		if got := typename.Name(rec.Column(rec.Schema().FieldIndices("delay")[0]).DataType()); got != "int64" {
			t.Errorf("delay is %s", got)
		}
		for i, w := range want {
			for c, f := range rec.Schema().Fields() {
				if got := value(rec.Column(c), i); !reflect.DeepEqual(got, w[f.Name]) {
					t.Fatalf("%s: row %d, %s is %v, want %v", p, i, f.Name, got, w[f.Name])
				}
			}
		}
	}
}

func TestInference(t *testing.T) {
	for _, c := range []struct{ in, want, err string }{
		{`{"a": 1, "b": 1.5, "c": true, "d": "x", "e": null}`, "a: int64, b: double, c: bool, d: string, e: string", ""},
		{"{\"a\": 1}\n{\"a\": 2.5}", "a: double", ""},
		{"{\"a\": 1e3}", "a: double", ""},
		{"{\"a\": null}\n\n {\"b\": [1, null]}\n{\"a\": {\"x\": []}}", "a: struct<x: list<string>>, b: list<int64>", ""},
		{"[{\"a\": [[1], [2.5]]}, {\"z\": {}}]", "a: list<list<double>>, z: struct<>", ""},
		{"{\"a\": 1}\n{\"a\": \"x\"}", "", `a holds numbers and strings; give it a type, e.g. types: {a: string}`},
		{"{\"a\": {\"b\": [1, true]}}", "", `a.b[] holds bools and numbers; give it a type, e.g. types: {a: string}`},
		{"{\"a\": 9223372036854775807, \"b\": 9223372036854775808}\n{\"a\": -9223372036854775808, \"b\": 18446744073709551615}", "a: int64, b: uint64", ""},
		{"{\"a\": 18446744073709551616}", "", "a holds integers that neither int64 nor uint64 holds; give it a type, e.g. types: {a: string}"},
		{"{\"a\": [-9223372036854775809]}", "", "a[] holds integers that neither"},
		{"{\"a\": -1}\n{\"a\": 9223372036854775808}", "", "a holds integers that neither"},
		{"{\"a\": 9223372036854775808}\n{\"a\": 0.5}", "a: double", ""},
		{`{"d": "2024-02-29", "t": "2024-01-01T00:00:00.5", "z": "2024-01-01 00:00Z", "n": "1", "f": "true", "e": ""}`,
			"d: date, t: timestamp, z: timestamp[us, UTC], n: string, f: string, e: string", ""},
		{`{"s": {"t": ["2024-01-01", "2024-01-01 12:00:00"]}}`, "s: struct<t: list<timestamp>>", ""},
		{"{\"a\": \"2024-01-01T00:00:00\"}\n{\"a\": \"2024-01-01T00:00:00Z\"}", "a: string", ""},
		{"{\"a\": \"2024-01-01\"}\n{\"a\": \"\"}", "a: string", ""},
		{"{\"a\": \"2024-01-01\"}\n{\"a\": null}", "a: date", ""},
		{"{}", "", "no columns"},
		{"", "value: string", ""},
		{"{\"a\": 1", "", "no row of the sample can be read: "},
	} {
		tab, err := jsonio.New(paths(save(t, "x.json", []byte(c.in)))).Resolve(t.Context(), nil)
		if c.err != "" {
			if err == nil || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s gives %v, want %q", c.in, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.in, err)
			continue
		}
		var got []string
		for _, f := range tab.Schema().Fields() {
			got = append(got, f.Name+": "+typename.Name(f.Type))
		}
		if g := strings.Join(got, ", "); g != c.want {
			t.Errorf("%s gives %s, want %s", c.in, g, c.want)
		}
		tab.Close()
	}
}

// A conflict can be lifted, and columns added.
func TestTypes(t *testing.T) {
	o := paths(save(t, "x.jsonl", []byte("{\"a\": 1, \"t\": \"2024-02-29T12:00:00.5+02:00\"}\n{\"a\": {\"x\": [1, 2]}, \"m\": {\"k\": 1, \"l\": null}}\n{\"a\": \"s\"}\n")))
	o.Types = map[string]string{"a": "string", "t": "timestamp[ms, UTC]", "m": "map<string, int>", "more": "double"}
	rec, err := readAll(t, o, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer rec.Release()
	got := string(encode(t, nil, rec))
	want := `{"a":"1","t":"2024-02-29T10:00:00.500Z","m":null,"more":null}
{"a":"{\"x\": [1, 2]}","t":null,"m":{"k":1,"l":null},"more":null}
{"a":"s","t":null,"m":null,"more":null}
`
	if got != want {
		t.Errorf("got %s\nwant %s", got, want)
	}
	o.Types["a"] = "no such type"
	if _, err := jsonio.New(o).Resolve(t.Context(), nil); fault.CodeOf(err) != fault.Invalid || fault.PlaceOf(err).Column != "a" {
		t.Errorf("a bad type gives %v", err)
	}
}

// A value behind the sample that would have changed the type is a bad row.
func TestLate(t *testing.T) {
	for _, c := range []struct{ early, late, want string }{
		{`"2024-01-01 00:00:00"`, `"2024-01-01 00:00:00+02:00"`, "is no timestamp: it has an offset from UTC, and those before it have none; set types for the column"},
		{`"2024-01-01 00:00:00Z"`, `"2024-01-01 00:00:00"`, "is no timestamp[us, UTC]: it has no offset from UTC, and those before it have one; set types for the column"},
		{`"2024-01-01"`, `"soon"`, "is no date: write YYYY-MM-DD; set types for the column"},
		{`9223372036854775807`, `9223372036854775808`, "does not fit int64; set types for the column"},
		{`18446744073709551615`, `-1`, "does not fit uint64; set types for the column"},
		{`1.0`, `9007199254740993`, "9007199254740993: a double does not hold all of its digits; give the column a type"},
		{`1.0`, `-18446744073709551617`, "-18446744073709551617: a double does not hold all of its digits"},
	} {
		row := fmt.Sprintf("{\"a\": %s, \"b\": %q}\n", c.early, strings.Repeat("x", 1000))
		text := strings.Repeat(row, 2<<20/len(row)) + fmt.Sprintf("{\"a\": %s}\n", c.late)
		_, err := readAll(t, paths(save(t, "x.jsonl", []byte(text))), nil)
		if fault.CodeOf(err) != fault.RowError || fault.PlaceOf(err).Column != "a" || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s and then %s: %v, want %s", c.early, c.late, err, c.want)
		}
	}
}

func TestValues(t *testing.T) {
	for _, c := range []struct{ typ, in, want string }{ // want: as JSON, or an error
		{"int64", "9223372036854775807", "9223372036854775807"},
		{"int64", "-9223372036854775808", "-9223372036854775808"},
		{"int64", "9223372036854775808", "does not fit int64"},
		{"int64", "1e400", "does not fit int64"},
		{"int64", "12e2", "1200"},
		{"int64", "1.50", "does not fit"},
		{"int64", "-0", "0"},
		{"uint64", "18446744073709551615", "18446744073709551615"},
		{"uint64", "18446744073709551616", "does not fit"},
		{"uint64", "-1", "does not fit"},
		{"int8", "-128", "-128"},
		{"int8", "128", "does not fit int8"},
		{"uint8", "256", "does not fit"},
		{"double", "1e400", "beyond the range"},
		{"double", "5e-324", "5e-324"},
		{"double", "0.1", "0.1"},
		{"double", "123456789012345678901234567890", "1.2345678901234568e+29"},
		{"double", `"NaN"`, "null"}, // written as null
		{"double", `"x"`, `"x" is no double`},
		{"double", `" 1.5 "`, "1.5"},
		{"double", "9007199254740993", "9.007199254740992e+15"}, // as said
		{"float", `"0.1"`, "0.1"},
		{"int64", `"5"`, "5"},
		{"int64", `"-00501"`, "-501"},
		{"int64", `"5.00"`, "5"},
		{"int64", `"5.01"`, `"5.01" is no int64`},
		{"int64", `"5."`, `"5." is no int64`},
		{"int64", `""`, `"" is no int64`},
		{"int8", `"128"`, `"128" is no int8`},
		{"int8", `"-128"`, "-128"},
		{"uint8", `"256"`, `"256" is no uint8`},
		{"uint64", `"18446744073709551615"`, "18446744073709551615"},
		{"list<int8>", `["1", 2]`, "[1,2]"},
		{"date", `" 2024-02-29 "`, `"2024-02-29"`},
		{"float", "1e39", "beyond the range"},
		{"bool", "1", "true"},
		{"bool", "0", "false"},
		{"bool", "10", `"10" is no bool`},
		{"bool", "2", "a number where bool is needed"},
		{"bool", `"TRUE"`, "true"},
		{"bool", `"f"`, "false"},
		{"bool", `"Yes"`, "true"},
		{"bool", `" n "`, "false"},
		{"bool", `"on"`, `"on" is no bool`},
		{"string", `"\u00e9\ud83d\ude42\n"`, `"é🙂\n"`},
		{"map<string, int>", `{"a": 1, "\u0061": 2}`, `the key "a" is there twice`},
		{"base64 binary", `"aGk="`, `"aGk="`},
		{"base64 binary", `"aGk"`, "is no binary"},
		{"base64 fixed_size_binary(2)", `"aGk="`, `"aGk="`},
		{"base64 fixed_size_binary(3)", `"aGk="`, "it has 2 bytes, not 3"},
		{"binary", `"hi"`, `"aGk="`},
		{"binary", "\"h\xff\"", `"aP8="`},
		{"large_binary", `"\u00e9"`, `"w6k="`},
		{"binary", `"\ud83d"`, "half of a surrogate pair"},
		{"list<binary>", "[\"\xff\", null]", `["/w==",null]`},
		{"fixed_size_binary(2)", "\"\xfe\xff\"", `"/v8="`},
		{"fixed_size_binary(3)", `"hi"`, "it has 2 bytes"},
		{"date", `"2024-02-29"`, `"2024-02-29"`},
		{"date", `"2023-02-29"`, "write YYYY-MM-DD"},
		{"date64", `"1969-12-31"`, `"1969-12-31"`},
		{"time32[ms]", `"23:59:59.999"`, `"23:59:59.999"`},
		{"time32[s]", `"23:59:59.9"`, "more precise"},
		{"time64[ns]", `"00:00"`, `"00:00:00.000000000"`},
		{"timestamp[s]", `"1969-12-31 23:59:59"`, `"1969-12-31T23:59:59"`},
		{"timestamp[ns, UTC]", `"2262-04-11T23:47:16.854775807Z"`, `"2262-04-11T23:47:16.854775807Z"`},
		{"timestamp[ns]", `"2263-01-01T00:00:00Z"`, "out of range"},
		{"timestamp[us]", `"2024-01-01T00:00:00+0130"`, `"2023-12-31T22:30:00.000000"`},
		{"timestamp[us, Europe/Berlin]", `"2024-01-01 00:00:00"`, `"2023-12-31T23:00:00.000000Z"`},
		{"timestamp[us, Europe/Berlin]", `"2024-03-31T02:30:00"`, `"2024-03-31T01:30:00.000000Z"`},
		{"timestamp[us, Europe/Berlin]", `"2024-10-27T02:30:00"`, `"2024-10-27T01:30:00.000000Z"`},
		{"timestamp[us, Europe/Berlin]", `"2024-07-01T00:00:00Z"`, `"2024-07-01T00:00:00.000000Z"`},
		{"timestamp[us]", `"2024-01-01T00:00:00 Europe"`, "write YYYY-MM-DDThh:mm:ssZ"},
		{"decimal(5, 2)", "123.45", `"123.45"`},
		{"decimal(5, 2)", `"-1.5e1"`, `"-15.00"`},
		{"decimal(5, 2)", "123.456", "more than 2 digits behind the point"},
		{"decimal(5, 2)", "1234.5", "more than 5 digits"},
		{"decimal(5, 2)", "1e999999999", "more than 5 digits"},
		{"decimal(38, 0)", "99999999999999999999999999999999999999", `"99999999999999999999999999999999999999"`},
		{"decimal256(50, 1)", "-0.10", `"-0.1"`},
		{"list<int8>", "[1, null, 2]", "[1,null,2]"},
		{"list<int8>", "[1, 300]", "does not fit int8"},
		{"fixed_size_list<bool>(2)", "[true, false]", "[true,false]"},
		{"fixed_size_list<bool>(2)", "[true]", "a list of 1 where 2"},
		{"map<string, list<int>>", `{"a": [1], "b": []}`, `{"a":[1],"b":[]}`},
		{"struct<a: int, b: string>", `{"b": "x", "c": 1, "c": 2}`, `{"a":null,"b":"x"}`},
		{"struct<a: int, b: string>", `{"b": "x", "c": 1, "b": "y"}`, `the key "b" is there twice`},
		{"struct<a: int>", `[]`, "an array where"},
	} {
		o := paths(save(t, "x.jsonl", []byte(`{"v": `+c.in+"}\n")))
		if typ, ok := strings.CutPrefix(c.typ, "base64 "); ok {
			o.Binary.Binary, c.typ = "base64", typ
		}
		o.Types = map[string]string{"v": c.typ}
		alloc := memtest.New(t)
		rec, err := readAll(t, o, &driver.ScanOptions{Alloc: alloc})
		if err != nil {
			if !strings.Contains(err.Error(), c.want) || fault.CodeOf(err) != fault.RowError {
				t.Errorf("%s %s gives %v (%v), want %s", c.typ, c.in, err, fault.CodeOf(err), c.want)
			}
			if p := fault.PlaceOf(err); !strings.HasPrefix(p.Column, "v") {
				t.Errorf("%s %s: the error names column %q", c.typ, c.in, p.Column)
			}
			continue
		}
		got := string(encode(t, nil, rec))
		if got != `{"v":`+c.want+"}\n" {
			t.Errorf("%s %s gives %s want %s", c.typ, c.in, got, c.want)
		}
		rec.Release()
	}
}

func TestArrays(t *testing.T) {
	for _, c := range []struct {
		in   string
		want int64 // rows; -1 an error
	}{
		{"[]", 0}, {" [ ] \n", 0}, {"\xEF\xBB\xBF[{\"a\":1}]", 1}, {`[{"a":1},{"a":2} , {"a":3}]`, 3},
		{`[{"a":1}`, -1}, {`[{"a":1},`, -1}, {`[{"a":1},]`, -1}, {`[{"a":1}] x`, -1}, {`[{"a":1}][`, -1}, {`[{"a":1} {"a":1}]`, -1},
		{`[{"a":1}, 5]`, -1}, {`[{"a":1}, {"a":tru}]`, -1}, {`[,{"a":1}]`, -1},
	} {
		o := paths(save(t, "x.json", []byte(c.in)))
		o.Types = map[string]string{"a": "int"}
		rec, err := readAll(t, o, nil)
		if c.want < 0 {
			if err == nil {
				t.Errorf("%s gives no error", c.in)
			}
			continue
		}
		if err != nil || rec.NumRows() != c.want {
			t.Errorf("%s: %v, %v", c.in, rec, err)
		}
	}
}

// An element larger than the buffer, and one that is read in many pieces.
func TestLargeElements(t *testing.T) {
	big := strings.Repeat("a long text, ", 300_000)
	var b bytes.Buffer
	b.WriteString(`[{"s": "first"}`)
	for i := range 3 {
		fmt.Fprintf(&b, `, {"s": %q, "n": %d}`, big, i)
	}
	b.WriteString("]")
	o := paths(save(t, "x.json", b.Bytes()))
	o.Types = map[string]string{"n": "int"} // beyond the sample
	rec, err := readAll(t, o, &driver.ScanOptions{BatchBytes: 5 << 20})
	if err != nil || rec.NumRows() != 4 {
		t.Fatalf("%v", err)
	}
	defer rec.Release()
	for i := range 3 {
		if rec.Column(0).(*array.String).Value(i+1) != big || rec.Column(1).(*array.Int64).Value(i+1) != int64(i) {
			t.Errorf("row %d differs", i+1)
		}
	}
}

func TestStrict(t *testing.T) {
	path := save(t, "x.jsonl", []byte("{\"a\": 1, \"b\": {\"x\": 1}}\n"+strings.Repeat("{\"a\": 2}\n", 200_000)+"{\"a\": 3, \"new\": 1}\n{\"b\": {\"y\": 1}}\n"))
	rec, err := readAll(t, paths(path), nil)
	if err != nil {
		t.Fatal(err)
	}
	rec.Release()
	o := paths(path)
	o.Strict = true
	var bad []error
	rec, err = readAll(t, o, &driver.ScanOptions{Columns: []string{"b"}, OnBadRow: func(err error) error { bad = append(bad, err); return nil }})
	if err != nil {
		t.Fatal(err)
	}
	rec.Release()
	if len(bad) != 2 || !strings.Contains(bad[0].Error(), `unknown field "new"`) || !strings.Contains(bad[1].Error(), `unknown field "y"`) {
		t.Errorf("bad rows: %v", bad)
	}
}

// Memory does not grow with the file: the largest batch bounds it.
func TestBounded(t *testing.T) {
	row := `{"id": 12345, "text": "` + strings.Repeat("x", 100) + `"}`
	var b bytes.Buffer
	b.WriteString("[" + row)
	for b.Len() < 8<<20 {
		b.WriteString("," + row)
	}
	b.WriteString("]")
	alloc := &peak{Allocator: memory.DefaultAllocator}
	tab, err := jsonio.New(paths(save(t, "x.json", b.Bytes()))).Resolve(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	r, err := tab.Open(t.Context(), 0, &driver.ScanOptions{Alloc: alloc, BatchBytes: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for {
		x, err := r.Next(context.Background())
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		x.Record.Release()
	}
	if alloc.most > 300<<10 {
		t.Errorf("%d bytes for batches of 64 KiB", alloc.most)
	}
}

type peak struct {
	memory.Allocator
	now, most int
}

func (p *peak) Allocate(n int) []byte { p.count(n); return p.Allocator.Allocate(n) }
func (p *peak) Free(b []byte)         { p.count(-len(b)); p.Allocator.Free(b) }
func (p *peak) Reallocate(n int, b []byte) []byte {
	p.count(n - len(b))
	return p.Allocator.Reallocate(n, b)
}
func (p *peak) count(n int) { p.now += n; p.most = max(p.most, p.now) }

// Errors of rows show the row, and its line where the split begins the file.
func TestBadRowLine(t *testing.T) {
	long := strings.Repeat("z", 2000)
	text := "\xef\xbb\xbf{\"v\": 1}\n\n{\"v\": \"" + long + "\"}\n{\"v\": 2}\n{\"v\": \n"
	for _, c := range []struct {
		name, text string
		want       []string
	}{
		{"x.jsonl", text, []string{`(line 3 of the file: "{\"v\": \"` + long[:993] + `"...)`, `(line 5 of the file: "{\"v\":")`}},
		{"y.jsonl", "{\"v\": 1, \"t\": \"s\"}\n{\"v\": 2, \"t\": \"" + strings.Repeat(`word\n`, 400_000) + "\"}\n{\"v\": \"z\"}\n", []string{"(line 3 of the file: "}}, // escapes of a long line are undone where it lies
		{"x.json", `[{"v": 1}, {"v": "z"}]`, []string{`(the element is "{\"v\": \"z\"}")`}},
	} {
		o := paths(save(t, c.name, []byte(c.text)))
		o.Types = map[string]string{"v": "int"}
		var got []string
		rec, err := readAll(t, o, &driver.ScanOptions{Alloc: memtest.New(t), OnBadRow: func(err error) error { got = append(got, err.Error()); return nil }})
		if err != nil {
			t.Fatal(err)
		}
		rec.Release()
		if len(got) != len(c.want) {
			t.Fatalf("%s: %q", c.name, got)
		}
		for i, w := range c.want {
			if !strings.Contains(got[i], w) {
				t.Errorf("%s: %s, want %s", c.name, got[i], w)
			}
		}
	}
}

func TestEncoding(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{{Name: "f\"", Type: arrow.PrimitiveTypes.Float64}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, s)
	defer b.Release()
	b.Field(0).(*array.Float64Builder).AppendValues([]float64{math.NaN(), math.Inf(1), math.Inf(-1), 1, 1e20, 1e-7, 0.5}, nil)
	rec := b.NewRecordBatch()
	defer rec.Release()
	if got, want := string(encode(t, nil, rec)), `{"f\"":null}
{"f\"":null}
{"f\"":null}
{"f\"":1.0}
{"f\"":1e+20}
{"f\"":1e-07}
{"f\"":0.5}
`; got != want {
		t.Errorf("got %s want %s", got, want)
	}
	if got := string(encode(t, &jsonio.EncodingOptions{NonFinite: "string"}, rec)); !strings.HasPrefix(got, "{\"f\\\"\":\"NaN\"}\n{\"f\\\"\":\"Infinity\"}\n{\"f\\\"\":\"-Infinity\"}\n") {
		t.Errorf("got %s", got)
	}
	for _, o := range []jsonio.EncodingOptions{{Compression: "lz4"}, {NonFinite: "x"}, {Level: 3}} {
		if _, err := jsonio.NewEncoding(&o); err == nil {
			t.Errorf("%+v gives no error", o)
		}
	}
	e, err := jsonio.NewEncoding(&jsonio.EncodingOptions{Compression: "zstd"})
	if err != nil {
		t.Fatal(err)
	}
	if again, err := jsonio.OpenEncoding(e.Config()); err != nil || again.Extension() != ".jsonl.zst" || !bytes.Equal(again.Config(), e.Config()) {
		t.Errorf("%v, %v", again, err)
	}
	union := arrow.NewSchema([]arrow.Field{{Name: "ok", Type: arrow.Null}, {Name: "u", Type: arrow.ListOf(arrow.SparseUnionOf(nil, nil))}}, nil)
	if err := e.Check(union); fault.CodeOf(err) != fault.Invalid || fault.PlaceOf(err).Column != "u" {
		t.Errorf("a union gives %v", err)
	}
	enc, err := e.NewEncoder(io.Discard, s, memory.DefaultAllocator)
	if err != nil {
		t.Fatal(err)
	}
	if err := enc.Write(rec); err != nil {
		t.Error(err)
	}
	enc.Abort()
}

// The row column counts what the file holds, bad rows too; over several splits it is refused with what to do.
func TestRowColumn(t *testing.T) {
	lines := strings.Repeat("{\"v\": 1}\n\n", 3) + "{\"v\": \"z\"}\n{\"v\": 2}\n"
	elements := `[{"v": 1}, {"v": 1}, {"v": 1}, {"v": "z"}, {"v": 2}]`
	for name, text := range map[string]string{"x.jsonl": lines, "x.json": elements} {
		o := paths(save(t, name, []byte(text)))
		o.Types, o.RowColumn = map[string]string{"v": "int"}, "row"
		for _, batch := range []int{0, 1, 2} {
			rec, err := readAll(t, o, &driver.ScanOptions{BatchRows: batch, OnBadRow: func(error) error { return nil }})
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(rec.Column(int(rec.NumCols()) - 1)); got != "[0 1 2 4]" {
				t.Errorf("%s, batches of %d: rows %s", name, batch, got)
			}
			rec.Release()
		}
		o.SplitBytes = 10
		_, err := readAll(t, o, &driver.ScanOptions{OnBadRow: func(error) error { return nil }})
		want := fmt.Sprintf("x.jsonl: row_column \"row\": rows of a text file of %d splits are not known before it is read; set split_bytes to %d or more to read it as one", (len(lines)+9)/10, len(lines))
		if name == "x.json" && err != nil || name == "x.jsonl" && (fault.CodeOf(err) != fault.Unsupported || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s in splits: %v, want %s", name, err, want)
		}
	}
}

// TestCompression: a file is what its options and its name say, and a level is more than a word.
func TestCompression(t *testing.T) {
	rec := drivertest.Records(drivertest.Schema(), 1, 0, 2000)
	defer rec.Release()
	size := map[string]int{}
	for _, c := range []struct {
		kind  string
		level int
		magic string
	}{{"", 0, "{\""}, {"none", 0, "{\""}, {"gzip", 1, "\x1f\x8b"}, {"gzip", 9, "\x1f\x8b"}, {"zstd", 1, "\x28\xb5\x2f\xfd"}, {"zstd", 19, "\x28\xb5\x2f\xfd"}} {
		b := encode(t, &jsonio.EncodingOptions{NonFinite: "string", Compression: c.kind, Level: c.level}, rec)
		if !strings.HasPrefix(string(b), c.magic) {
			t.Errorf("%q begins with %q", c.kind, b[:4])
		}
		if before := size[c.kind]; before > 0 && len(b) >= before {
			t.Errorf("%q: %d bytes with level 1, %d with %d", c.kind, before, len(b), c.level)
		}
		size[c.kind] = len(b)
	}
	if size["gzip"] > size["none"]*9/10 || size["zstd"] > size["none"]*9/10 {
		t.Errorf("bytes: %v", size)
	}
}
