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
