package csvio

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/google/go-cmp/cmp"
	"github.com/penstock-data/penstock/internal/datatest"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/drivertest"
	"github.com/penstock-data/penstock/io/fileset"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func write(t testing.TB, path string, o EncodingOptions, recs ...arrow.RecordBatch) {
	t.Helper()
	e, err := NewEncoding(&o)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	enc, err := e.NewEncoder(f, recs[0].Schema(), memory.DefaultAllocator)
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
	if st, err := f.Stat(); err != nil || st.Size() != enc.Size() {
		t.Fatalf("the file has %d bytes, Size says %d (%v)", st.Size(), enc.Size(), err)
	}
}

func testSchema() *arrow.Schema {
	var fs []arrow.Field
	for _, f := range drivertest.Schema().Fields() {
		if canRead(f.Type) {
			fs = append(fs, f)
		}
	}
	for _, n := range []string{"large_string", "large_binary", "timestamp[ns]", "timestamp[s]", "int32", "uint16", "time32[s]", "time32[ms]", "time64[us]", "time64[ns]"} {
		typ, _ := typename.Parse(n)
		fs = append(fs, arrow.Field{Name: n, Type: typ, Nullable: true})
	}
	return arrow.NewSchema(fs, nil)
}

func typesOf(s *arrow.Schema) map[string]string {
	m := map[string]string{}
	for _, f := range s.Fields() {
		m[f.Name] = typename.Name(f.Type)
	}
	return m
}

// oneLine replaces line breaks, which only multiline files can hold.
func oneLine(schema *arrow.Schema, seed uint64, first, rows int64) arrow.RecordBatch {
	rec := drivertest.Records(schema, seed, first, rows)
	defer rec.Release()
	cols := make([]arrow.Array, rec.NumCols())
	for i, c := range rec.Columns() {
		b := array.NewBuilder(memory.DefaultAllocator, c.DataType())
		defer b.Release()
		switch c := c.(type) {
		case *array.Timestamp:
			for r := range c.Len() {
				if c.IsNull(r) {
					b.AppendNull()
				} else if y := c.Value(r).ToTime(c.DataType().(*arrow.TimestampType).Unit).Year(); y < 0 || y > 9999 {
					b.(*array.TimestampBuilder).Append(0)
				} else {
					b.(*array.TimestampBuilder).Append(c.Value(r))
				}
			}
		case array.StringLike:
			for r := range c.Len() {
				if c.IsNull(r) {
					b.AppendNull()
				} else {
					b.(array.StringLikeBuilder).Append(strings.ReplaceAll(c.Value(r), "\n", " "))
				}
			}
		default:
			cols[i] = c
			c.Retain()
			defer c.Release()
			continue
		}
		cols[i] = b.NewArray()
		defer cols[i].Release()
	}
	return array.NewRecordBatch(schema, cols, rec.NumRows())
}

func TestConformance(t *testing.T) {
	schema := testSchema()
	for _, c := range []struct {
		name, ext string
		o         Options
		e         EncodingOptions
	}{
		{"ranges", ".csv", Options{SplitBytes: 20_000}, EncodingOptions{}},
		{"multiline", ".csv", Options{Multiline: true}, EncodingOptions{}},
		{"gzip", ".csv.gz", Options{}, EncodingOptions{Compression: "gzip"}},
		{"zstd", ".csv.zst", Options{Multiline: true}, EncodingOptions{Compression: "zstd", Level: 1}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.o.Types, c.o.Binary.Binary = typesOf(schema), "base64"
			h := drivertest.Harness{
				FileRows: []int64{300, 1, 900},
				Ext:      c.ext,
				Write:    func(t testing.TB, path string, recs []arrow.RecordBatch) { write(t, path, c.e, recs...) },
				Source: func(paths ...string) driver.Source {
					o := c.o
					o.Paths = paths
					return New(o)
				},
				Open:     Format().Open,
				Schema:   schema,
				Shortens: c.e.Compression == "",
			}
			if c.name != "ranges" {
				h.FileRows = []int64{90, 1, 300}
			}
			if !c.o.Multiline {
				h.Gen = oneLine
			}
			if c.name == "ranges" {
				h.Damage = damage
			}
			drivertest.Run(t, h, 0)
		})
	}
}

func damage(t testing.TB, path string, rec arrow.RecordBatch, bad []int64) {
	write(t, path, EncodingOptions{}, rec)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.SplitAfter(string(b), "\n")
	for i, r := range bad {
		l := &lines[1+r]
		*l = []string{"x" + *l, "1,2\n", strings.TrimSuffix(*l, "\n") + ",extra\n", "1,\"open" + *l}[i%4]
	}
	if err := os.WriteFile(path, []byte(strings.Join(lines, "")), 0o600); err != nil {
		t.Fatal(err)
	}
}

// files writes name, text, name, text, ... and returns a source of the folder.
func files(t testing.TB, o Options, kv ...string) driver.Source {
	t.Helper()
	dir := t.TempDir()
	for i := 0; i < len(kv); i += 2 {
		p := filepath.Join(dir, kv[i])
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(kv[i+1]), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	o.Paths = []string{dir}
	return New(o)
}

// read returns the schema and all rows as text; bad rows are errors.
func read(t testing.TB, src driver.Source, so driver.ScanOptions) (schema, rows string, err error) {
	t.Helper()
	so.Alloc = memtest.New(t)
	tab, err := src.Resolve(t.Context(), nil)
	if err != nil {
		return "", "", err
	}
	defer tab.Close()
	var s []string
	for _, f := range tab.Schema().Fields() {
		s = append(s, f.Name+" "+typename.Name(f.Type))
	}
	var out []string
	for i := range tab.Splits() {
		r, err := tab.Open(t.Context(), i, &so)
		if err != nil {
			return strings.Join(s, ", "), strings.Join(out, " "), err
		}
		for {
			b, err := r.Next(t.Context())
			if err == io.EOF {
				break
			}
			if err != nil {
				r.Close()
				return strings.Join(s, ", "), strings.Join(out, " "), err
			}
			for k := range int(b.Record.NumRows()) {
				var vs []string
				for _, c := range b.Record.Columns() {
					v := c.ValueStr(k)
					if c.IsNull(k) {
						v = "-"
					}
					vs = append(vs, v)
				}
				out = append(out, strings.Clone(strings.Join(vs, "|"))) // one value is not copied by Join
			}
			b.Record.Release()
		}
		r.Close()
	}
	return strings.Join(s, ", "), strings.Join(out, " "), nil
}

func TestRead(t *testing.T) {
	for _, c := range []struct {
		name         string
		o            Options
		text         string
		schema, rows string // rows beginning with ! are an error
	}{
		{"types", Options{}, "i,f,b,d,t,s\n1,1.5,true,2024-02-29,2024-01-01 10:00,x\n-2,2,False,1969-12-31,2024-01-01T10:00:00.5,\n",
			"i int64, f double, b bool, d date, t timestamp, s string",
			"1|1.5|true|2024-02-29|2024-01-01T10:00:00|x -2|2|false|1969-12-31|2024-01-01T10:00:00.5|-"},
		{"zones", Options{}, "a,b\n2024-01-01T00:00:00Z,2024-01-01T00:00:00\n2024-01-01T00:00:00+01:30,2024-01-01T00:00:00Z\n",
			"a timestamp[us, UTC], b string", "2024-01-01T00:00:00Z|2024-01-01T00:00:00 2023-12-31T22:30:00Z|2024-01-01T00:00:00Z"},
		{"zone in a column without one", Options{Options: fileset.Options{Types: map[string]string{"a": "timestamp"}}}, "a\n2024-01-01T00:00:00+01:30\n2024-01-01\n",
			"a timestamp", "2023-12-31T22:30:00 2024-01-01T00:00:00"},
		{"date and time", Options{}, "a\n2024-01-01\n2024-01-01 00:00:01.123456789\n", "a timestamp[ns]", "2024-01-01T00:00:00 2024-01-01T00:00:01.123456789"},
		{"numbers", Options{}, "a,b,c,d,e\n7,9223372036854775807,9223372036854775808,1e3,.5\n1,-9223372036854775808,1,nan,-inf\n",
			"a int64, b int64, c uint64, d double, e double", "7|9223372036854775807|9223372036854775808|1000|0.5 1|-9223372036854775808|1|NaN|-Inf"},
		{"names of digits", Options{}, "zip,tel,id,n\n00501,+4930,18446744073709551616,1\n10115,1,1,0\n", "zip string, tel string, id string, n int64",
			"00501|+4930|18446744073709551616|1 10115|1|1|0"},
		{"digits of a type", Options{Options: fileset.Options{Types: map[string]string{"zip": "int", "tel": "uint64"}}}, "zip,tel\n00501,+4930\n", "zip int64, tel uint64", "501|4930"},
		{"zones given", Options{Options: fileset.Options{Types: map[string]string{"t": "timestamp[us, Europe/Berlin]"}}},
			"t\n2024-01-01 00:00:00\n2024-03-31 02:30:00\n2024-10-27 02:30:00\n2024-07-01 00:00:00Z\n2024-07-01\n", "t timestamp[us, Europe/Berlin]",
			"2024-01-01T00:00:00+01:00 2024-03-31T03:30:00+02:00 2024-10-27T02:30:00+01:00 2024-07-01T02:00:00+02:00 2024-07-01T00:00:00+02:00"},
		{"spaces of other kinds", Options{}, "a,b,c\n\u00a01,\u30001.5\u3000,\u2003NA\n", "a int64, b double, c string", "1|1.5|\u2003NA"},
		{"not numbers", Options{}, "a,b,c\n1_000,0x10,1-2\n", "a string, b string, c string", "1_000|0x10|1-2"},
		{"nulls", Options{}, "a,b,c\n1,NA,x\n,NULL,NA\nnull,NA,\"\"\n", "a int64, b string, c string", "1|NA|x -|NULL|NA -|NA|"},
		{"nulls given", Options{Nulls: []string{"NA", "?"}}, "a,b\n1,NA\n?,\n,x\n3,\"NA\"\n", "a int64, b string", "1|- -| -|x 3|NA"},
		{"spaces", Options{}, "a, b\n 1 , x \n  , \n", "a int64,  b string", "1| x  -| "},
		{"quotes", Options{}, "a,\"b,\"\"x\"\n\"1\",\"say \"\"hi\"\", you\"\n2,in\"side\n\"3\",\"\"\n", `a int64, b,"x string`, `1|say "hi", you 2|in"side 3|`},
		{"crlf", Options{}, "a,b\r\n1,x\r\n\r\n2,\"y\"\r\n3,", "a int64, b string", "1|x 2|y 3|-"},
		{"bom", Options{}, "\xef\xbb\xbfa,b\n1,2\n", "a int64, b int64", "1|2"},
		{"blank lines and comments", Options{Comment: "#"}, "# made by\n\na,b\n#1,1\n1,2\n\n\n", "a int64, b int64", "1|2"},
		{"one column", Options{}, "a\n1\n\n3\n", "a int64", "1 - 3"},
		{"no header", Options{NoHeader: true}, "1,x\n2,y\n", "column_1 int64, column_2 string", "1|x 2|y"},
		{"names", Options{NoHeader: true, Names: []string{"p", "q"}}, "1,x\n", "p int64, q string", "1|x"},
		{"other names", Options{Names: []string{"p", "q"}}, "a,b\n1,x\n", "p int64, q string", "1|x"},
		{"empty names", Options{}, ",b,\n1,2,3\n", "column_1 int64, b int64, column_3 int64", "1|2|3"},
		{"delimiter", Options{Delimiter: ";", Quote: "'"}, "a;b\n1,5;'x;y'\n", "a string, b string", "1,5|x;y"},
		{"no quotes", Options{Quote: "none"}, "a,b\n\"x,y\"\n", "a string, b string", `"x|y"`},
		{"given types", Options{Options: fileset.Options{Types: map[string]string{"a": "decimal(5,2)", "b": "float", "c": "binary", "d": "timestamp[ms, UTC]"}}},
			"a,b,c,d\n-1.5,1,hi,2024-01-01T00:00:00.123\n100,,,\n", "a decimal(5, 2), b float, c binary, d timestamp[ms, UTC]", "-1.5|1|aGk=|2024-01-01T00:00:00.123Z 100|-|-|-"},
		{"base64", Options{Binary: fileset.Binary{Binary: "base64"}, Options: fileset.Options{Types: map[string]string{"a": "binary", "b": "fixed_size_binary(2)"}}},
			"a,b\naGk=,aGk=\n\"\",\n", "a binary, b fixed_size_binary(2)", "aGk=|aGk= |-"},
		{"bytes", Options{Options: fileset.Options{Types: map[string]string{"a": "binary", "b": "fixed_size_binary(2)", "c": "large_binary"}}},
			"a,b,c\n\xff,h\xff,\"a\"\"b\"\n", "a binary, b fixed_size_binary(2), c large_binary", "/w==|aP8=|YSJi"},
		{"bytes of another length", Options{Options: fileset.Options{Types: map[string]string{"a": "fixed_size_binary(2)"}}}, "a\nhi\nabc\n", "", `!row 1, column "a": "abc" is no fixed_size_binary(2): it has 3 bytes`},
		{"bools given", Options{Options: fileset.Options{Types: map[string]string{"a": "bool"}}}, "a\n1\n0\ntrue\nFalse\nt\nF\nyes\nN\nNA\n", "a bool", "true false true false true false true false -"},
		{"no bool", Options{Options: fileset.Options{Types: map[string]string{"a": "bool"}}}, "a\n1\n2\n", "", `!row 1, column "a": "2" is no bool`},
		{"date64", Options{Options: fileset.Options{Types: map[string]string{"a": "date64"}}}, "a\n2024-02-29\n", "a date64", "2024-02-29"},
		{"a large integer among doubles", Options{}, "a\n1.5\n9007199254740992\n-9007199254740993\n", "", `!row 2, column "a": "-9007199254740993" is no double: a double does not hold all of its digits`},
		{"a larger one", Options{}, "a\n1.5\n100000000000000000000\n100000000000000000001\n", "", `!row 2, column "a": "100000000000000000001" is no double: a double does not hold all of its digits`},
		{"a large integer in a double that is given", Options{Options: fileset.Options{Types: map[string]string{"a": "double"}}}, "a\n9007199254740993\n", "a double", "9.007199254740992e+15"},
		{"times of day", Options{Options: fileset.Options{Types: map[string]string{"a": "time32[s]", "b": "time32[ms]", "c": "time64[us]", "d": "time64[ns]"}}},
			"a,b,c,d\n00:00:00,23:59:59.999,01:02:03.000004, 12:30 \n,,NA,\n", "a time32[s], b time32[ms], c time64[us], d time64[ns]",
			"00:00:00|23:59:59.999|01:02:03.000004|12:30:00.000000000 -|-|-|-"},
		{"missing fields", Options{AllowMissing: true}, "a,b,c\n1\n1,2\n", "a int64, b int64, c string", "1|-|- 1|2|-"},
		{"multiline", Options{Multiline: true}, "a,b\n1,\"x\ny\"\n2,\"\n\"\n", "a int64, b string", "1|x\ny 2|\n"},
		{"header only", Options{}, "a,b\n", "a string, b string", ""},
		{"header without line end", Options{}, "a,b", "a string, b string", ""},

		{"too many", Options{}, "a,b\n1,2\n1,2,3\n", "", `!row 1: the record has 3 fields, not 2: "1,2,3"`},
		{"too few", Options{}, "a,b\n1\n", "", "!allow_missing"},
		{"unparsable", Options{Options: fileset.Options{Types: map[string]string{"b": "int"}}}, "a,b\n1," + strings.Repeat("z", 120) + "\n", "", `!row 0, column "b": "` + strings.Repeat("z", 100) + `"... is no int64`},
		{"out of range", Options{Options: fileset.Options{Types: map[string]string{"a": "int8"}}}, "a\n128\n", "", `!"128" is no int8`},
		{"no time of day", Options{Options: fileset.Options{Types: map[string]string{"a": "time32[s]"}}}, "a\n24:00:00\n", "", `!"24:00:00" is no time32[s]`},
		{"time too fine", Options{Options: fileset.Options{Types: map[string]string{"a": "time32[ms]"}}}, "a\n00:00:00.0001\n", "", `!"00:00:00.0001" is no time32[ms]`},
		{"time with a zone", Options{Options: fileset.Options{Types: map[string]string{"a": "time64[us]"}}}, "a\n00:00:00Z\n", "", `!"00:00:00Z" is no time64[us]`},
		{"not exact", Options{Options: fileset.Options{Types: map[string]string{"a": "decimal(5,2)"}}}, "a\n1.234\n", "", `!"1.234" is no decimal(5, 2)`},
		{"open quote", Options{}, "a,b\n1,\"x\ny\"\n", "", "!set multiline: true"},
		{"open quote to the end", Options{Multiline: true}, "a,b\n1,\"x\ny\n", "", "!a quoted field does not end:"},
		{"after the quote", Options{}, "a,b\n1,\"x\"y\n", "", "!text follows the end of a quoted field"},
		{"utf-8", Options{}, "a,b\n1,caf\xe9\n", "", `!column "b": "caf\xe9" is not valid UTF-8`},
		{"utf-16", Options{}, "\xff\xfea\x00\n\x001\x00\n\x00", "a int64", "1"},
		{"latin-1", Options{Text: fileset.Text{Encoding: "latin-1"}}, "\xe9,b\ncaf\xe9,1\ncaf\xe9,2\n", "é string, b int64", "café|1 café|2"},
		{"no encoding", Options{Text: fileset.Text{Encoding: "x"}}, "a\n", "", "!encoding: "},
		{"empty", Options{}, "", "", "!no header"},
		{"twice, refused", Options{DuplicateNames: "error"}, "a,a\n", "", `!two columns have the name "a"`},
		{"too many columns", Options{}, strings.Repeat(",", 100_000) + "\n", "", "!more than 65536 fields"},
		{"names do not fit", Options{Names: []string{"x"}}, "a,b\n", "", "!the file has 2 columns, but names lists 1"},
		{"type of nothing", Options{Options: fileset.Options{Types: map[string]string{"x": "int"}}}, "a,b\n", "", `!no column "x"; have a, b`},
		{"type that cannot be", Options{Options: fileset.Options{Types: map[string]string{"x": "list<int>"}}}, "a,b\n", "", "!csv cannot hold list<int64>"},
		{"delimiter too long", Options{Delimiter: "ab"}, "a,b\n", "", "!one ASCII character"},
		{"same", Options{Delimiter: "\""}, "a,b\n", "", "!must differ"},
	} {
		for _, split := range []int64{0, 7} {
			t.Run(fmt.Sprintf("%s/%d", c.name, split), func(t *testing.T) {
				o := c.o
				o.SplitBytes = split
				schema, rows, err := read(t, files(t, o, "x.csv", c.text), driver.ScanOptions{})
				if want, bad := strings.CutPrefix(c.rows, "!"); bad {
					if split > 0 && strings.HasPrefix(want, "row") {
						want = want[strings.IndexAny(want, ":,")+2:] // counted from the range's begin
					}
					if err == nil || fault.CodeOf(err) == fault.Unknown || !strings.Contains(err.Error(), want) || fault.CodeOf(err) == fault.RowError && !strings.Contains(err.Error(), "x.csv") {
						t.Errorf("got %v, %s; want %s", err, rows, want)
					}
					return
				}
				if err != nil || schema != c.schema || rows != c.rows {
					t.Errorf("got  %s: %s (%v)\nwant %s: %s", schema, rows, err, c.schema, c.rows)
				}
			})
		}
	}
}

func TestFiles(t *testing.T) {
	for _, c := range []struct {
		name         string
		o            Options
		files        []string
		schema, rows string
	}{
		{"by name", Options{}, []string{"1.csv", "a,b\n1,x\n", "2.csv", "b,a\ny,2.5\n", "3.tsv", "a\n3\n"}, "a double, b string", "1|x 2.5|y 3|-"},
		{"hive", Options{}, []string{"p=1/1.csv", "a,p\n1,1\n", "p=2/1.csv", "a\n2\n"}, "a int64, p int64", "1|1 2|2"},
		{"path", Options{Options: fileset.Options{RowColumn: "row"}}, []string{"1.csv", "a\n1\n2\n", "2.csv", "a\n3\n"}, "a int64, row int64", "1|0 2|1 3|0"},
		{"null in the first", Options{}, []string{"1.csv", "a,b\n1,\n", "2.csv", "a,b\n2,3\n"}, "a int64, b int64", "1|- 2|3"},
		{"empty ones", Options{}, []string{"1.csv", "", "2.csv", "a,b\n2,3\n", "3.csv", "\n\n"}, "a int64, b int64", "2|3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			schema, rows, err := read(t, files(t, c.o, c.files...), driver.ScanOptions{})
			if err != nil || schema != c.schema || rows != c.rows {
				t.Errorf("got  %s: %s (%v)\nwant %s: %s", schema, rows, err, c.schema, c.rows)
			}
		})
	}
	// A column that only a file beyond the sample has.
	var fs []string
	for i := range 60 {
		text := "a\n1\n"
		if i == 2 {
			text = "a,extra\n1,2\n"
		}
		fs = append(fs, fmt.Sprintf("%02d.csv", i), text)
	}
	_, _, err := read(t, files(t, Options{}, fs...), driver.ScanOptions{})
	if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), `02.csv, column "extra"`) || !strings.Contains(err.Error(), "ignore_extra") {
		t.Errorf("an extra column gives %v", err)
	}
	if _, rows, err := read(t, files(t, Options{IgnoreExtra: true}, fs...), driver.ScanOptions{}); err != nil || len(rows) != 2*60-1 {
		t.Errorf("with ignore_extra: %q, %v", rows, err)
	}
	o := Options{SplitBytes: 10}
	o.RowColumn = "r"
	if _, _, err := read(t, files(t, o, "x.csv", "a\n"+strings.Repeat("1\n", 50)), driver.ScanOptions{}); fault.CodeOf(err) != fault.Unsupported {
		t.Errorf("row column over splits gives %v", err)
	}
}

// A value behind the sample that would have changed the type is a bad row.
func TestLate(t *testing.T) {
	for _, c := range []struct{ name, early, late, typ, want string }{
		{"offset", "2024-01-01 00:00:00", "2024-01-01 00:00:00+02:00", "timestamp", "it has an offset from UTC"},
		{"no offset", "2024-01-01 00:00:00Z", "2024-01-01 00:00:00", "timestamp[us, UTC]", "it has no offset from UTC"},
		{"date among offsets", "2024-01-01 00:00:00Z", "2024-01-01", "timestamp[us, UTC]", "it has no offset from UTC"},
		{"time among dates", "2024-01-01", "2024-01-01 00:00:01", "date", "write YYYY-MM-DD"},
		{"finer", "2024-01-01 00:00:00", "2024-01-01 00:00:00.0000001", "timestamp", "more precise than the unit"},
		{"leading zero", "10115", "00501", "int64", "it has a leading zero or +"},
		{"leading plus", "4930", "+4930", "int64", "it has a leading zero or +"},
		{"leading zero, uint64", "18446744073709551615", "01", "uint64", "it has a leading zero or +"},
		{"leading zero, double", "0.5", "007", "double", "it has a leading zero or +"},
		{"fraction", "1", "1.5", "int64", ""},
	} {
		text := "a,b\n" + strings.Repeat(c.early+",x\n", 3) + c.late + ",x\n" + c.early + ",y\n"
		for _, split := range []int64{0, 20} {
			var bad []string
			so := driver.ScanOptions{OnBadRow: func(err error) error { bad = append(bad, err.Error()); return nil }}
			schema, rows, err := read(t, files(t, Options{SampleBytes: int64(len(c.early) + 7), SplitBytes: split}, "x.csv", text), so)
			if err != nil || schema != "a "+c.typ+", b string" || strings.Count(rows, "|") != 4 || len(bad) != 1 ||
				!strings.Contains(bad[0], `column "a": "`+c.late+`" is no `+c.typ) || !strings.Contains(bad[0], c.want) || !strings.Contains(bad[0], "types: {a: string}") {
				t.Errorf("%s: %s: %s (%v), bad rows %q", c.name, schema, rows, err, bad)
			}
		}
	}
}

// Whatever the splits, chunks and batches, the rows are the same.
func TestSplitsAgree(t *testing.T) {
	var b strings.Builder
	b.WriteString("a,b,c\n")
	for i := range 3000 {
		fmt.Fprintf(&b, "%d,\"x%d,\"\"\",%s\n", i, i%7, strings.Repeat("y", i%50))
		if i%100 == 50 {
			b.WriteString("\n")
		}
	}
	_, want, err := read(t, files(t, Options{}, "x.csv", b.String()), driver.ScanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, split := range []int64{1, 3, 100, 4096, 50_000} {
		if split < 100 && testing.Short() {
			continue
		}
		text := b.String()
		if split < 100 {
			text = text[:3000]
			text = text[:strings.LastIndexByte(text, '\n')+1]
			_, want, _ := read(t, files(t, Options{}, "x.csv", text), driver.ScanOptions{})
			_, got, err := read(t, files(t, Options{SplitBytes: split}, "x.csv", text), driver.ScanOptions{})
			if err != nil || got != want {
				t.Errorf("split %d: %v\n%s", split, err, cmp.Diff(want, got))
			}
			continue
		}
		_, got, err := read(t, files(t, Options{SplitBytes: split}, "x.csv", text), driver.ScanOptions{BatchRows: 100})
		if err != nil || got != want {
			t.Errorf("split %d: %v", split, err)
		}
	}
	if _, got, err := read(t, files(t, Options{Multiline: true}, "x.csv", b.String()), driver.ScanOptions{}); err != nil || got != want {
		t.Errorf("multiline: %v", err)
	}
}

// A quoted field much longer than a chunk.
func TestMultilineLong(t *testing.T) {
	long := strings.Repeat("line\n", 1_000_000)
	_, rows, err := read(t, files(t, Options{Multiline: true}, "x.csv", "a,b\n1,\""+long+"\"\n2,\"\nx\"\n"), driver.ScanOptions{})
	if err != nil || rows != "1|"+long+" 2|\nx" {
		t.Errorf("%d bytes, %v", len(rows), err)
	}
}

// Where the split begins the file, errors say which line it is; they show the record.
func TestBadRowLine(t *testing.T) {
	long := strings.Repeat("z", 2000)
	text := "\xef\xbb\xbfa,b\n1,2\n\n3,\"x\ny\"\n4,5,6\n7," + long + "\nx,8\n"
	var got []string
	so := driver.ScanOptions{BatchRows: 2, OnBadRow: func(err error) error { got = append(got, err.Error()); return nil }}
	o := Options{Multiline: true, Options: fileset.Options{Types: map[string]string{"a": "int", "b": "int"}}}
	if _, rows, err := read(t, files(t, o, "x.csv", text), so); err != nil || rows != "1|2" {
		t.Fatalf("%s, %v", rows, err)
	}
	want := []string{`"x\ny" is no int64`, `(line 6 of the file)`, `(line 7 of the file: "7,` + long[:998] + `"...)`, `(line 8 of the file: "x,8")`}
	if len(got) != len(want) {
		t.Fatalf("%q", got)
	}
	for i, w := range want {
		if !strings.Contains(got[i], w) {
			t.Errorf("error %d is %s, want %s", i, got[i], w)
		}
	}
	if !strings.Contains(got[0], "line 4 of the file") || !strings.Contains(got[1], `"4,5,6"`) {
		t.Errorf("%q", got[:2])
	}
	got, o.SplitBytes, o.Multiline = nil, 64, false
	if _, _, err := read(t, files(t, o, "x.csv", "a,b\n"+strings.Repeat("1,2\n", 100)+"x,6\n"), so); err != nil || len(got) != 1 ||
		!strings.Contains(got[0], `(the line is "x,6")`) {
		t.Errorf("split: %q, %v", got, err)
	}
}

func TestBadRows(t *testing.T) {
	var n int
	so := driver.ScanOptions{OnBadRow: func(err error) error {
		n++
		if fault.CodeOf(err) != fault.RowError {
			return err
		}
		return nil
	}}
	o := Options{Options: fileset.Options{Types: map[string]string{"a": "int", "b": "int"}}}
	_, rows, err := read(t, files(t, o, "x.csv", "a,b\nx,y\n1,2\n3\n4,5\n\"6\n7,z\n"), so)
	if err != nil || rows != "1|2 4|5" || n != 4 {
		t.Errorf("%s, %d bad, %v", rows, n, err)
	}
	// All rows bad: the cost must not be quadratic.
	n = 0
	if _, rows, err := read(t, files(t, o, "x.csv", "a,b\n"+strings.Repeat("1,x\n", 100_000)), so); err != nil || rows != "" || n != 100_000 {
		t.Errorf("%q, %d bad, %v", rows, n, err)
	}
	stop := errors.New("stop")
	so.OnBadRow = func(error) error { return stop }
	if _, rows, err := read(t, files(t, o, "x.csv", "a,b\n1,2\nx,1\n"), so); !errors.Is(err, stop) || rows != "1|2" {
		t.Errorf("%q, %v", rows, err)
	}
}

func TestHousing(t *testing.T) {
	src := New(Options{Options: fileset.Options{Paths: []string{datatest.Dir(t, "california-housing")}}, SplitBytes: 300_000})
	schema, rows, err := read(t, src, driver.ScanOptions{Columns: []string{"ocean_proximity", "longitude"}})
	if err != nil {
		t.Fatal(err)
	}
	if want := "longitude double, latitude double, housing_median_age double, total_rooms double, total_bedrooms double, population double, households double, median_income double, median_house_value double, ocean_proximity string"; schema != want {
		t.Errorf("schema %s", schema)
	}
	if n := strings.Count(rows, "|"); n != 20640 || !strings.HasPrefix(rows, "NEAR BAY|-122.23 ") || !strings.HasSuffix(rows, "INLAND|-121.24") {
		t.Errorf("%d rows", n)
	}
}

func TestSize(t *testing.T) {
	src := New(Options{Options: fileset.Options{Paths: []string{datatest.Dir(t, "california-housing")}}})
	tab, err := src.Resolve(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	fetch, mem := tab.(driver.Sizer).Size(0, []string{"longitude"})
	if fetch != 1423529 || math.Abs(float64(mem)/(20640*8)-1) > 0.1 {
		t.Errorf("%d, %d", fetch, mem)
	}
}

// No words for null is not the default words.
func TestConfigKeepsNoNulls(t *testing.T) {
	src := files(t, Options{Nulls: []string{}}, "x.csv", "a,b\nx,\n")
	config, err := src.Config()
	if err != nil {
		t.Fatal(err)
	}
	again, err := Format().Open(config)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []driver.Source{src, again} {
		if _, rows, err := read(t, s, driver.ScanOptions{}); err != nil || rows != "x|" {
			t.Errorf("%s: %q, %v", config, rows, err)
		}
	}
}
