package csvio

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// TestDialect reads what others write. Each file is read as it is, in small splits and compressed.
func TestDialect(t *testing.T) {
	for _, c := range []struct {
		name, file   string
		o            Options
		text         string
		schema, rows string // rows beginning with ! are an error
	}{
		// The delimiter.
		{"semicolon", "x.csv", Options{}, "a;b\n1;x\n2;y\n", "a int64, b string", "1|x 2|y"},
		{"bar", "x.csv", Options{}, "a|b\n1|x\n", "a int64, b string", "1|x"},
		{"tab", "x.csv", Options{}, "a\tb\n1\tx\n", "a int64, b string", "1|x"},
		{"comma in a tsv", "x.tsv", Options{}, "a,b\n1,x\n", "a int64, b string", "1|x"},
		{"tab in a tsv", "x.tsv", Options{}, "a,b\tc,d\n1,2\t3,4\n", "a,b string, c,d string", "1,2|3,4"},
		{"comma before others", "x.csv", Options{}, "a;b,c\n1;2,3\n", "a;b string, c int64", "1;2|3"},
		{"more fields", "x.csv", Options{}, "a;b;c,d\n1;2;3,4\n", "a int64, b int64, c,d string", "1|2|3,4"},
		{"decimal commas", "x.csv", Options{}, "a;b\n1,5;2,5\n3,5;4,5\n", "a string, b string", "1,5|2,5 3,5|4,5"},
		{"a header of one field with commas in rows", "x.csv", Options{}, "text\n\"a,b\"\n\"c;d\"\n", "text string", "a,b c;d"},
		{"in quotes", "x.csv", Options{}, "a;b\n\"1;2\";\"x,y\"\n", "a string, b string", "1;2|x,y"},
		{"header alone", "x.csv", Options{}, "a;b;c\n", "a string, b string, c string", ""},
		{"most rows", "x.csv", Options{AllowMissing: true}, "a;b\n1;2\n3\n4;5\n", "a int64, b int64", "1|2 3|- 4|5"},
		{"a bad row", "x.csv", Options{}, "a;b\n1;2\n3;4;5\n6;7\n", "", "!the record has 3 fields, not 2"},
		{"names say how many", "x.csv", Options{NoHeader: true, Names: []string{"p", "q"}}, "1,2,3;4\n5,6,7;8\n", "p string, q int64", "1,2,3|4 5,6,7|8"},
		{"not the comment's", "x.csv", Options{Comment: ";"}, "a,b\n;1;2\n3,4\n", "a int64, b int64", "3|4"},
		{"given", "x.csv", Options{Delimiter: ","}, "a;b\n1;2\n", "a;b string", "1;2"},

		// The ends of lines.
		{"CR", "x.csv", Options{}, "a,b\r1,x\r\r2,\"y, z\"\r3,w", "a int64, b string", "1|x 2|y, z 3|w"},
		{"CR and one column", "x.csv", Options{}, "a\r1\r\r2\r", "a int64", "1 - 2"},
		{"CR and lines in quotes", "x.csv", Options{Multiline: true}, "a,b\r1,\"x\ry\"\r2,\"\r\"\r", "a int64, b string", "1|x\ry 2|\r"},
		{"CR and a comment", "x.csv", Options{Comment: "#"}, "# by\ra;b\r#\r1;2\r", "a int64, b int64", "1|2"},
		{"CR and no header", "x.csv", Options{NoHeader: true}, "1,2\r3,4", "column_1 int64, column_2 int64", "1|2 3|4"},
		{"CR and then LF", "x.csv", Options{}, "a,b\r1,2\r" + strings.Repeat("3,4\r", 400_000) + "5,6\r\n7,8\r", "", "!lines end in CR alone at the begin of the file"},
		{"header of CR", "x.csv", Options{}, "a,b\r", "a string, b string", ""},

		// Names.
		{"twice", "x.csv", Options{}, "a,a,b,a\n1,2,3,4\n", "a int64, a_1 int64, b int64, a_2 int64", "1|2|3|4"},
		{"twice and taken", "x.csv", Options{}, "a,a,a_1,a\n1,2,3,4\n", "a int64, a_2 int64, a_1 int64, a_3 int64", "1|2|3|4"},
		{"twice and taken before", "x.csv", Options{}, "a_1,a,a\n1,2,3\n", "a_1 int64, a int64, a_2 int64", "1|2|3"},
		{"a name like those without", "x.csv", Options{}, ",column_1\n1,2\n", "column_1_1 int64, column_1 int64", "1|2"},
		{"name of other bytes", "x.csv", Options{}, "pr\xe9nom,b\n1,2\n", "", `!x.csv: the name of column 1, "pr\xe9nom", is not valid UTF-8`},
		{"name of other bytes that does not count", "x.csv", Options{Names: []string{"a", "b"}}, "pr\xe9nom,b\n1,2\n", "a int64, b int64", "1|2"},
		{"row of other bytes without a header", "x.csv", Options{NoHeader: true}, "pr\xe9nom,2\n", "", `!column "column_1": "pr\xe9nom" is not valid UTF-8`},

		// Headers of several lines, and lines before them.
		{"skip_rows", "x.csv", Options{SkipRows: 2}, "report, of\n\na,b\n1,2\n", "a int64, b int64", "1|2"},
		{"skip_rows without a header", "x.csv", Options{SkipRows: 1, NoHeader: true}, "report\n1\n\n2\n", "column_1 int64", "1 - 2"},
		{"skip_rows of all", "x.csv", Options{SkipRows: 9}, "a,b\n1,2\n", "", "!no header"},
		{"header_rows", "x.csv", Options{HeaderRows: 2}, "speed,,t\nm/s,id,\n1.5,2,3\n", "speed_m/s double, id int64, t int64", "1.5|2|3"},
		{"header_rows of other length", "x.csv", Options{HeaderRows: 2}, "a,b\nc\n1,2\n", "", "!header: line 2 has 1 fields, and line 1 has 2"},
		{"header_rows missing", "x.csv", Options{HeaderRows: 3}, "a,b\nc,d\n", "", "!the header has 2 lines, not 3"},
		{"header_rows and none", "x.csv", Options{HeaderRows: 3, NoHeader: true}, "a,b\n", "", "!not for the same files"},

		{"CR and LF in quotes", "x.csv", Options{Multiline: true}, "a,\"b\"\r1,\"x\ny\"\r2,\"\"\"\n\"\r", "a int64, b string", "1|x\ny 2|\"\n"},
		{"CR and LF in quotes of a header", "x.csv", Options{Multiline: true}, "a,\"b\nc\"\r1,x\r", "a int64, b\nc string", "1|x"},
		{"LF and CR in quotes", "x.csv", Options{Multiline: true}, "a,\"b\rc\"\n1,\"x\ry\"\n", "a int64, b\rc string", "1|x\ry"},

		// Quotes.
		{"escape", "x.csv", Options{Escape: `\`}, `a,b` + "\n" + `1,"say \"hi\", \\ \n and ""you"""` + "\n" + `"2","\\"` + "\n" + `3,a\"b` + "\n", "a int64, b string",
			`1|say "hi", \ \n and "you" 2|\ 3|a\"b`},
		{"escape at the end", "x.csv", Options{Escape: `\`}, "a,b\n1,\"x\\\"\n", "", "!a quoted field does not end"},
		{"escape before lines", "x.csv", Options{Escape: `\`, Multiline: true}, "a,b\n1,\"x\\\"\ny\\\\\"\n2,z\n", "a int64, b string", "1|x\"\ny\\ 2|z"},
		{"escape like the quote", "x.csv", Options{Escape: `"`}, "a,b\n1,\"x\"\"\"\n", "a int64, b string", `1|x"`},
		{"escape without quotes", "x.csv", Options{Escape: `\`, Quote: "none"}, "a,b\n", "", "!there are no quotes"},
		{"no escape", "x.csv", Options{}, "a,b\n1,\"x\\\"\n", "a int64, b string", `1|x\`},
		{"text after a quote", "x.csv", Options{TextAfterQuote: true}, "a,b,c\n\"1\" ,\"x\"y\"z\",\"p\"\"q\"r\n2, \"w\",\n", "a int64, b string, c string", `1|xy"z"|p"qr 2| "w"|-`},
		{"text after a quote at the end", "x.csv", Options{TextAfterQuote: true}, "a,b\n\"1\",\"x\" \n", "a int64, b string", `1|x `},

		// Numbers and times.
		{"decimal", "x.csv", Options{Decimal: ",", Options: fileset.Options{Types: map[string]string{"d": "decimal(5,2)", "f": "float"}}}, "a;b;c;d;f\n1,5;2;1.5;-3,25;0,5\n-,5;+3,0e1;x;7;1\n",
			"a double, b double, c string, d decimal(5, 2), f float", "1.5|2|1.5|-3.25|0.5 -0.5|30|x|7|1"},
		{"decimal in quotes", "x.csv", Options{Decimal: ","}, "a,b\n\"1,5\",2\n", "a double, b int64", "1.5|2"},
		{"decimal and no header", "x.csv", Options{Decimal: ",", NoHeader: true}, "1,5;2,5;3\n", "column_1 double, column_2 double, column_3 int64", "1.5|2.5|3"},
		{"a point for a decimal comma", "x.csv", Options{Decimal: ",", Options: fileset.Options{Types: map[string]string{"a": "double"}}}, "a;b\n1.5;2\n", "", `!"1.5" is no double`},
		{"thousands", "x.csv", Options{Thousands: ","}, "a,b,c\n\"1,234,567\",\"-1,234.5\",\"12,34\"\n1234,0.5,\"1,2345\"\n", "a int64, b double, c string", "1234567|-1234.5|12,34 1234|0.5|1,2345"},
		{"thousands and decimal", "x.csv", Options{Thousands: ".", Decimal: ","}, "a;b\n1.234,5;1.234\n", "a double, b int64", "1234.5|1234"},
		{"thousands where they are not", "x.csv", Options{Thousands: ".", Decimal: ",", Options: fileset.Options{Types: map[string]string{"a": "double"}}}, "a;b\n1.5;2\n", "", `!"1.5" is no double`},
		{"thousands of a padded number", "x.csv", Options{Thousands: ".", Decimal: ","}, "a;b\n01.234;2\n", "a string, b int64", "01.234|2"},
		{"thousands like the decimal", "x.csv", Options{Thousands: "."}, "a;b\n", "", "!decimal and thousands must differ"},
		{"a decimal that is none", "x.csv", Options{Decimal: "x"}, "a;b\n", "", "!neither . nor a comma"},
		{"date_format", "x.csv", Options{DateFormat: "%d.%m.%y"}, "a,b\n31.12.99,1\n1.2.24,2\n", "a date, b int64", "1999-12-31|1 2024-02-01|2"},
		{"date_format of digits", "x.csv", Options{DateFormat: "%Y%m%d"}, "a,b\n20240229,20240230\n", "a date, b int64", "2024-02-29|20240230"},
		{"date_format late", "x.csv", Options{DateFormat: "%b %d, %Y", Options: fileset.Options{Types: map[string]string{"a": "date"}}}, "a\n\"Feb 29, 2024\"\n2024-02-29\n", "", `!"2024-02-29" is no date: write it like date_format says: %b %d, %Y`},
		{"timestamp_format", "x.csv", Options{TimeFormat: "%d/%m/%Y %I:%M:%S.%f %p"}, "a\n29/02/2024 12:00:00.5 AM\n1/3/2024 12:30:00.25 pm\n", "a timestamp", "2024-02-29T00:00:00.5 2024-03-01T12:30:00.25"},
		{"timestamp_format with a zone", "x.csv", Options{TimeFormat: "%Y%m%dT%H%M%S%z"}, "a\n20240229T120000+0130\n20240229T120000Z\n", "a timestamp[us, UTC]", "2024-02-29T10:30:00Z 2024-02-29T12:00:00Z"},
		{"timestamp_format in a zone", "x.csv", Options{TimeFormat: "%d.%m.%Y %H:%M", Options: fileset.Options{Types: map[string]string{"a": "timestamp[s, Europe/Berlin]"}}}, "a\n01.07.2024 12:00\n", "a timestamp[s, Europe/Berlin]", "2024-07-01T12:00:00+02:00"},
		{"a format without a day", "x.csv", Options{DateFormat: "%m/%Y"}, "a\n", "", "!needs a year"},
		{"a format with an unknown code", "x.csv", Options{TimeFormat: "%Y-%m-%d %X"}, "a\n", "", "!has a code that is not known"},
		{"a date with a clock", "x.csv", Options{DateFormat: "%Y-%m-%d %H"}, "a\n", "", "!use timestamp_format"},
		{"half a clock", "x.csv", Options{TimeFormat: "%Y-%m-%d %I:%M"}, "a\n", "", "!needs both %I and %p"},
	} {
		for _, kind := range []string{"whole", "splits", "gzip"} {
			t.Run(c.name+"/"+kind, func(t *testing.T) {
				o, file, text := c.o, c.file, c.text
				switch kind {
				case "splits":
					if len(text) > 1000 {
						o.SplitBytes = 100_000
					} else {
						o.SplitBytes = 5
					}
				case "gzip":
					var b bytes.Buffer
					z := gzip.NewWriter(&b)
					z.Write([]byte(text))
					z.Close()
					file, text = file+".gz", b.String()
				}
				schema, rows, err := read(t, files(t, o, file, text), driver.ScanOptions{})
				if want, bad := strings.CutPrefix(c.rows, "!"); bad {
					if err == nil || fault.CodeOf(err) == fault.Unknown || !strings.Contains(strings.ReplaceAll(err.Error(), "x.csv.gz", "x.csv"), want) {
						t.Errorf("got %s: %.200s (%v); want %s", schema, rows, err, want)
					}
				} else if err != nil || schema != c.schema || rows != c.rows {
					t.Errorf("got  %s: %s (%v)\nwant %s: %s", schema, rows, err, c.schema, c.rows)
				}
			})
		}
	}
}

// Files of a source may have delimiters and line ends of their own.
func TestDialectPerFile(t *testing.T) {
	schema, rows, err := read(t, files(t, Options{}, "1.csv", "a,b\n1,x\n", "2.csv", "b;a\r\ny;2\r\n", "3.csv", "a|b\r3|z\r", "4.tsv", "a\tb\n4\tw\n"), driver.ScanOptions{})
	if err != nil || schema != "a int64, b string" || rows != "1|x 2|y 3|z 4|w" {
		t.Errorf("%s: %s (%v)", schema, rows, err)
	}
}

// A row whose text is not UTF-8 is skipped where bad rows are, and its error says where it is.
func TestBadText(t *testing.T) {
	var bad []string
	so := driver.ScanOptions{OnBadRow: func(err error) error { bad = append(bad, err.Error()); return nil }}
	_, rows, err := read(t, files(t, Options{}, "x.csv", "a,b\n1,x\n2,caf\xe9\n3,\"\xed\xa0\xbd\"\n4,y\n"), so)
	if err != nil || rows != "1|x 4|y" || len(bad) != 2 {
		t.Fatalf("%s, %q, %v", rows, bad, err)
	}
	for i, want := range []string{`row 1, column "b": "caf\xe9" is not valid UTF-8`, `row 2, column "b": "\xed\xa0\xbd" is not valid UTF-8`} {
		if !strings.Contains(bad[i], want) || !strings.Contains(bad[i], "x.csv") {
			t.Errorf("%s, want %s", bad[i], want)
		}
	}
}

// What was found out of the first file is shown.
func TestReadBy(t *testing.T) {
	for text, want := range map[string]string{
		"a;b\n1;2\n":   "CSV, delimiter ; (found in the first file)",
		"a\n1\n":       "CSV, delimiter comma (found in the first file)",
		"a\tb\r1\t2\r": "CSV, delimiter tab (found in the first file), lines end in CR",
	} {
		tab, err := files(t, Options{}, "x.csv", text).Resolve(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := tab.(*table).ReadBy(); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
		tab.Close()
	}
}

// Lines that end in CR alone are split like others, wherever the splits are.
func TestSplitsOfCR(t *testing.T) {
	var b strings.Builder
	b.WriteString("a,b\r")
	for i := range 2000 {
		fmt.Fprintf(&b, "%d,%s\r", i, strings.Repeat("y", i%50))
	}
	_, want, err := read(t, files(t, Options{}, "x.csv", strings.ReplaceAll(b.String(), "\r", "\n")), driver.ScanOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, split := range []int64{37, 4096, 1 << 20} {
		for _, sample := range []int64{3, 0} {
			_, got, err := read(t, files(t, Options{SplitBytes: split, SampleBytes: sample, Options: fileset.Options{Types: map[string]string{"a": "int", "b": "string"}}}, "x.csv", b.String()), driver.ScanOptions{BatchRows: 100})
			if w := strings.ReplaceAll(want, "|-", "|"); err != nil || strings.ReplaceAll(got, "|-", "|") != w {
				t.Errorf("split %d, sample %d: %d bytes, want %d, %v", split, sample, len(got), len(w), err)
			}
		}
	}
}

func TestOffsetsOfCR(t *testing.T) {
	const text = "a,b\r1,x\r\r2,y\r3,z\r"
	tab, err := files(t, Options{Options: fileset.Options{}, SplitBytes: 1 << 20}, "x.csv", text).Resolve(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tab.Close()
	for from, rows := range map[int64]int64{4: 3, 5: 2, 9: 2, 10: 1, 17: 0} {
		r, err := tab.Open(t.Context(), 0, &driver.ScanOptions{FromByte: from})
		if err != nil {
			t.Fatal(err)
		}
		n := int64(0)
		for {
			b, err := r.Next(t.Context())
			if err != nil {
				break
			}
			n += b.Record.NumRows()
			b.Record.Release()
		}
		r.Close()
		if n != rows {
			t.Errorf("from byte %d: %d rows, want %d", from, n, rows)
		}
	}
}
