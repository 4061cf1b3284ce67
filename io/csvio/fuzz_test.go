package csvio

import (
	"bytes"
	"encoding/csv"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/textvalue"
	"github.com/penstock-data/penstock/io/driver"
)

// FuzzRead compares with encoding/csv where that takes the text, and checks that
// splits change nothing.
func FuzzRead(f *testing.F) {
	for _, s := range []string{"a,b\n1,2\n", "a,b\n\"x\"\"y\",\n", "a,b\n\"x\ny\",2\n\n3,4", "a,b\r\n1,2\r\n", "a,b\n1,2,3\n\"", "\xef\xbb\xbfa,b\n"} {
		f.Add([]byte(s), int64(5), true)
	}
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, data []byte, split int64, multiline bool) {
		if len(data) > 4096 || split <= 0 || int64(len(data))/split > 100 {
			return
		}
		p := filepath.Join(dir, "x.csv")
		if err := os.WriteFile(p, data, 0o600); err != nil {
			t.Fatal(err)
		}
		o := Options{NoHeader: true, Multiline: multiline, SplitBytes: split, Nulls: []string{}}
		o.Paths = []string{p}
		inferred, _, err := read(t, New(o), driver.ScanOptions{OnBadRow: func(error) error { return nil }})
		if err != nil {
			if fault.CodeOf(err) == fault.Unknown {
				t.Fatal(err)
			}
			return
		}
		cols := strings.Count(inferred, "column_")
		o.Types = map[string]string{}
		for i := range cols {
			o.Types[fmt.Sprintf("column_%d", i+1)] = "string"
		}
		_, got, gotErr := read(t, New(o), driver.ScanOptions{})
		o.SplitBytes = 0
		if _, whole, err := read(t, New(o), driver.ScanOptions{}); (err == nil) != (gotErr == nil) || err == nil && whole != got {
			t.Fatalf("split %d: %q (%v), whole: %q (%v)", split, got, gotErr, whole, err)
		}
		if cols < 2 || bytes.ContainsRune(data, '\r') || bytes.HasPrefix(data, []byte("\xef\xbb\xbf")) {
			return
		}
		r := csv.NewReader(bytes.NewReader(data))
		recs, err := r.ReadAll()
		if err != nil {
			return
		}
		var want []string
		for _, rec := range recs {
			for _, f := range rec {
				if !multiline && strings.Contains(f, "\n") {
					return
				}
			}
			want = append(want, strings.Join(rec, "|"))
		}
		if gotErr != nil && strings.Contains(gotErr.Error(), "UTF-8") {
			return
		}
		if w := strings.Join(want, " "); gotErr != nil || got != w {
			t.Fatalf("got  %q (%v)\nwant %q", got, gotErr, w)
		}
	})
}

// FuzzInfer checks that every value parses as what was found for it alone.
func FuzzInfer(f *testing.F) {
	for _, s := range []string{"1", "-0.5e3", "true", "2024-02-30", "2024-01-01T23:59:59.999999999+23:59", "nan", "0000-01-01", "9223372036854775808"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if b = bytes.TrimSpace(b); len(b) == 0 || len(b) > 1000 {
			return
		}
		var g textvalue.Guess
		g.Add(b)
		s := segment{rules: &rules{given: true}, data: b, fields: []field{span(0, len(b))}, stride: 1, rows: 1, alloc: memory.DefaultAllocator, utf8: true}
		a := s.column(0, arrow.Field{Name: "x", Type: g.Type()})
		defer a.Release()
		if len(s.bad) > 0 {
			t.Fatalf("%q was taken for %v: %v", b, g.Type(), s.bad[0].err)
		}
	})
}
