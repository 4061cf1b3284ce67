package ipcio_test

import (
	"io"
	"path/filepath"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/drivertest"
	"github.com/penstock-data/penstock/io/ipcio"
)

func BenchmarkRead(b *testing.B) {
	rec := drivertest.Records(drivertest.Schema(), 1, 0, 100_000)
	defer rec.Release()
	for _, c := range []struct {
		name, codec string
		noMap       bool
		columns     []string
	}{
		{"mapped", "", false, nil},
		{"read", "", true, nil},
		{"zstd", "zstd", false, nil},
		{"lz4", "lz4", false, nil},
		{"zstd/one column", "zstd", false, []string{"f64"}},
	} {
		b.Run(c.name, func(b *testing.B) {
			path := filepath.Join(b.TempDir(), "x.arrow")
			writeFile(b, path, &ipcio.EncodingOptions{Compression: c.codec}, []arrow.RecordBatch{rec})
			benchmarkRead(b, source(c.noMap)(path), &driver.ScanOptions{Columns: c.columns, BatchRows: 100_000, BatchBytes: 1 << 30})
		})
	}
	b.Run("dictionaries", func(b *testing.B) {
		enc, _ := encoded(b, 1, 100_000)
		path := filepath.Join(b.TempDir(), "x.arrow")
		writeFile(b, path, nil, []arrow.RecordBatch{enc})
		benchmarkRead(b, source(false)(path), nil)
	})
}

func benchmarkRead(b *testing.B, src driver.Source, o *driver.ScanOptions) {
	b.Helper()
	tab, err := src.Resolve(b.Context(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer tab.Close()
	b.SetBytes(tab.Splits()[0].Bytes)
	b.ReportAllocs()
	for b.Loop() {
		for i := range tab.Splits() {
			r, err := tab.Open(b.Context(), i, o)
			if err != nil {
				b.Fatal(err)
			}
			for {
				x, err := r.Next(b.Context())
				if err == io.EOF {
					break
				}
				if err != nil {
					b.Fatal(err)
				}
				x.Record.Release()
			}
			r.Close()
		}
	}
}
