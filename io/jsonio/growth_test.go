package jsonio

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
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
