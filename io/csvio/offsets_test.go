package csvio

import (
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// TestOffsets: rows begin where their lines do, whatever lies between them, and numbers stay
// those of the split from wherever it is entered.
func TestOffsets(t *testing.T) {
	const text = "\xef\xbb\xbf# c\na,b\n1,x\n\n# 2,y\n3,\"q, q\"\r\n4\nzz,z\n5,\n6,w"
	want := []int64{11, 22, 39, 42} // bytes of the file at which rows begin
	p := filepath.Join(t.TempDir(), "x.csv")
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for size := int64(1); size <= int64(len(text))+1; size++ {
		tab, err := New(Options{Comment: "#", Types: map[string]string{"a": "int64"}, Options: fileset.Options{Paths: []string{p}}, SplitBytes: size}).Resolve(t.Context(), nil)
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
				each(t, tab, i, o, func(b driver.Batch) {
					for k, off := range b.Offsets {
						if from == 0 {
							got, rows[off] = append(got, begin+off), b.Row+int64(k)
						}
						if row, ok := rows[off]; !ok || row != b.Row+int64(k) || off < from {
							t.Fatalf("split %d of %d bytes from %d: row %d at %d, before %v", i, sp.Bytes, from, b.Row+int64(k), off, rows)
						}
						n++
					}
				})
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

func each(t testing.TB, tab driver.Table, i int, o *driver.ScanOptions, f func(driver.Batch)) {
	t.Helper()
	r, err := tab.Open(t.Context(), i, o)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	for {
		b, err := r.Next(t.Context())
		if err == io.EOF {
			return
		}
		if err != nil {
			t.Fatal(err)
		}
		f(b)
		b.Record.Release()
	}
}

// BenchmarkFromByte passes over a split of 32 MiB to its last byte, counts its rows, and
// reads it.
func BenchmarkFromByte(b *testing.B) {
	line := `1234567,0.25,some text here,2024-01-31,true,"quoted, text"` + "\n"
	text := []byte("a,b,c,d,e,f\n" + strings.Repeat(line, 32<<20/len(line)))
	p := filepath.Join(b.TempDir(), "x.csv")
	if err := os.WriteFile(p, text, 0o600); err != nil {
		b.Fatal(err)
	}
	tab, err := New(Options{Options: fileset.Options{Paths: []string{p}}}).Resolve(b.Context(), nil)
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
				each(b, tab, 0, o, func(driver.Batch) {})
			}
		})
	}
}
