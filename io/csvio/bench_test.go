package csvio

import (
	"bytes"
	"context"
	"encoding/csv"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/datatest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/drivertest"
)

func benchmark(b *testing.B, o Options, columns []string) {
	path := filepath.Join(datatest.Dir(b, "california-housing"), "housing.csv")
	data, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	line := bytes.IndexByte(data, '\n') + 1
	big := append([]byte{}, data...)
	for range 15 {
		big = append(big, data[line:]...)
	}
	p := filepath.Join(b.TempDir(), "x.csv")
	if err := os.WriteFile(p, big, 0o600); err != nil {
		b.Fatal(err)
	}
	o.Paths = []string{p}
	tab, err := New(o).Resolve(context.Background(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer tab.Close()
	b.SetBytes(int64(len(big)))
	b.ReportAllocs()
	for b.Loop() {
		rows := int64(0)
		for i := range tab.Splits() {
			r, err := tab.Open(context.Background(), i, &driver.ScanOptions{Columns: columns})
			if err != nil {
				b.Fatal(err)
			}
			for {
				x, err := r.Next(context.Background())
				if err == io.EOF {
					break
				}
				if err != nil {
					b.Fatal(err)
				}
				rows += x.Record.NumRows()
				x.Record.Release()
			}
			r.Close()
		}
		if rows != 16*20640 {
			b.Fatal(rows)
		}
	}
}

func BenchmarkReadAll(b *testing.B)       { benchmark(b, Options{}, nil) }
func BenchmarkReadTwo(b *testing.B)       { benchmark(b, Options{}, []string{"latitude", "ocean_proximity"}) }
func BenchmarkCount(b *testing.B)         { benchmark(b, Options{}, []string{}) }
func BenchmarkReadMultiline(b *testing.B) { benchmark(b, Options{Multiline: true}, nil) }

func BenchmarkEncodingCSV(b *testing.B) { // what the standard library needs for records of strings
	path := filepath.Join(datatest.Dir(b, "california-housing"), "housing.csv")
	data, err := os.ReadFile(path)
	if err != nil {
		b.Fatal(err)
	}
	b.SetBytes(int64(len(data)))
	b.ReportAllocs()
	for b.Loop() {
		r := csv.NewReader(bytes.NewReader(data))
		r.ReuseRecord = true
		for {
			if _, err := r.Read(); err == io.EOF {
				break
			}
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	rec := drivertest.Records(testSchema(), 1, 0, 2000)
	defer rec.Release()
	e, _ := NewEncoding(nil)
	var n int64
	for b.Loop() {
		enc, err := e.NewEncoder(io.Discard, rec.Schema(), memory.DefaultAllocator)
		if err != nil {
			b.Fatal(err)
		}
		if err := enc.Write(rec); err != nil {
			b.Fatal(err)
		}
		enc.Close()
		n = enc.Size()
	}
	b.SetBytes(n)
	b.ReportAllocs()
}
