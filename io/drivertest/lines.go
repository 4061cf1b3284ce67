package drivertest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

// Lines checks a format of lines against a file whose rows begin at the bytes want: rows begin where their lines
// do, whatever lies between them and however the file is split, and numbers stay those of the split from
// wherever it is entered. open makes a source of a file, in splits of size bytes; rows that do not parse are
// left out.
func Lines(t *testing.T, name, text string, want []int64, open func(path string, size int64) driver.Source) {
	p := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for size := int64(1); size <= int64(len(text))+1; size++ {
		tab, err := open(p, size).Resolve(t.Context(), nil)
		if err != nil {
			t.Fatal(err)
		}
		var got []int64
		begin := int64(0)
		for i, sp := range tab.Splits() {
			if !tab.(driver.Offsetter).Offsets(i) {
				t.Fatalf("split %d has no offsets", i)
			}
			rows := map[int64]int64{} // number of each row in the split, by offset
			for from := int64(0); from <= sp.Bytes; from++ {
				o := &driver.ScanOptions{FromByte: from, Offsets: true, BatchRows: 2, OnBadRow: func(error) error { return nil }, Alloc: memtest.New(t)}
				n := 0
				err := scan(t.Context(), tab, i, o, func(b driver.Batch) error {
					for k, off := range b.Offsets {
						if from == 0 {
							got, rows[off] = append(got, begin+off), b.Row+int64(k)
						}
						if row, ok := rows[off]; !ok || row != b.Row+int64(k) || off < from {
							t.Fatalf("split %d of %d bytes from %d: row %d at %d, before %v", i, sp.Bytes, from, b.Row+int64(k), off, rows)
						}
						n++
					}
					return nil
				})
				if err != nil {
					t.Fatal(err)
				}
				for off := range rows {
					if off >= from {
						n--
					}
				}
				if n != 0 {
					t.Fatalf("split %d of %d bytes from %d: rows are missing", i, sp.Bytes, from)
				}
			}
			begin += sp.Bytes
		}
		if begin != int64(len(text)) || !slices.Equal(got, want) {
			t.Errorf("splits of %d bytes: rows at %d, want %d", size, got, want)
		}
		tab.Close()
	}
}

// BenchFromByte passes over a split of one file to its last byte, counts its rows, and reads it.
func BenchFromByte(b *testing.B, name, text string, open func(path string, size int64) driver.Source) {
	p := filepath.Join(b.TempDir(), name)
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		b.Fatal(err)
	}
	tab, err := open(p, 0).Resolve(b.Context(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer tab.Close()
	for name, o := range map[string]*driver.ScanOptions{
		"skip":  {FromByte: int64(len(text)) - 1},
		"count": {Columns: []string{}},
		"read":  {Offsets: true},
	} {
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(text)))
			for b.Loop() {
				if err := scan(b.Context(), tab, 0, o, func(driver.Batch) error { return nil }); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
