package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	_ "gocloud.dev/blob/fileblob"

	"github.com/penstock-data/penstock/bench/internal/kit"
	"github.com/penstock-data/penstock/dataset"
)

// TestParts: every part runs, with little data, and prints lines of the table.
func TestParts(t *testing.T) {
	for _, p := range parts {
		t.Run(p.Name, func(t *testing.T) {
			var out strings.Builder
			p.Run(t, &report{&out}, 100)
			kit.CheckTable(t, out.String(), 3)
		})
	}
}

// gets counts the bytes of data files below a prefix, and fails where the list does.
func TestGets(t *testing.T) {
	dir := t.TempDir()
	for name, size := range map[string]int64{"a/one": 9 << 20, "a/two": 5, "a/_manifest": 7, "b/three": 11} {
		name = filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, make([]byte, size), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := gets(t.Context(), "file://"+dir, "a/"); err != nil || n != 9<<20+5 {
		t.Errorf("%d bytes, %v", n, err)
	}
	if n, err := gets(t.Context(), start(t).URL("none"), "a/"); err == nil || n != 0 {
		t.Errorf("a bucket that is not there gives %d bytes, %v", n, err)
	}
}

func TestDrain(t *testing.T) {
	if err := drain(t.Context(), dataset.Range(10), 10); err != nil {
		t.Error(err)
	}
	if err := drain(t.Context(), dataset.Range(10), 11); err == nil || !strings.HasPrefix(err.Error(), "10 rows, not the 11") {
		t.Errorf("rows that are missing give %v", err)
	}
}
