package csvio

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// TestWideSample: the types of a file of many columns and short rows are found in a time, and in
// memory, of its size.
func TestWideSample(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.csv")
	names := make([]string, 60_000)
	for i := range names {
		names[i] = fmt.Sprint(i)
	}
	text := strings.Join(names, ",") + "\n" + strings.Repeat("1\n", 1<<18)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	before := allocated()
	table, err := New(Options{Options: fileset.Options{Paths: []string{path}}}).Resolve(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	table.Close()
	if took := allocated() - before; took > 200<<20 {
		t.Errorf("%d bytes were allocated to find the types of %d bytes", took, len(text))
	}
}

func allocated() uint64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.TotalAlloc
}

// TestSmallFileManyFields: rows of two bytes that lack all but one of many columns become what
// these take, and are refused beyond the bound.
func TestSmallFileManyFields(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a.csv")
	text := strings.Repeat("a,", 2_000) + "a\n" + strings.Repeat("1\n", 1<<20)
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	names := make([]string, 2_001)
	for i := range names {
		names[i] = fmt.Sprintf("c%d", i)
	}
	o := Options{Options: fileset.Options{Paths: []string{path}, MaxGrowth: 10}, AllowMissing: true, Names: names}
	table, err := New(o).Resolve(t.Context(), nil)
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

// TestManyBlanks: the header is not looked for without end, nor are names of any length taken.
func TestManyBlanks(t *testing.T) {
	blank := strings.Repeat("\n", headBytes+1)
	for text, want := range map[string]string{
		blank + "a,b\n1,2\n": "16 MiB of blank lines",
		strings.Repeat("#\n", headBytes/2+1) + "a,b\n1,2\n":  "16 MiB of blank lines",
		strings.Repeat("n", fileset.MaxName+1) + ",b\n1,2\n": "more than 65536 bytes",
		"a,b\n" + blank + "1,2\n":                            "",
		strings.Repeat("n", fileset.MaxName) + ",b\n1,2\n":   "",
	} {
		path := filepath.Join(t.TempDir(), "a.csv")
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		table, err := New(Options{Options: fileset.Options{Paths: []string{path}}, Comment: "#"}).Resolve(t.Context(), nil)
		if want == "" {
			if err != nil {
				t.Errorf("%.40q: %v", text, err)
				continue
			}
			table.Close()
		} else if fault.CodeOf(err) != fault.Corrupt || !strings.Contains(err.Error(), want) {
			t.Errorf("%.40q: %v, want %q", text, err, want)
		}
	}
}
