package parquetio

import (
	"os"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/drivertest"
	"github.com/penstock-data/penstock/io/fileset"
)

// writeFile encodes recs into a file.
func writeFile(t testing.TB, path string, o *EncodingOptions, alloc memory.Allocator, recs ...arrow.RecordBatch) {
	t.Helper()
	e, err := NewEncoding(o)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w, err := e.NewEncoder(f, recs[0].Schema(), alloc)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range recs {
		if err := w.Write(r); err != nil {
			w.Abort()
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func harness(o *EncodingOptions) drivertest.Harness {
	return drivertest.Harness{
		Ext: ".parquet",
		Write: func(t testing.TB, path string, recs []arrow.RecordBatch) {
			writeFile(t, path, o, nil, recs...)
		},
		Source: func(paths ...string) driver.Source {
			return &Source{Options{Options: fileset.Options{Paths: paths}}}
		},
		Open:      Format().Open,
		KnownRows: true,
		Prunes:    true,
	}
}

func TestDriver(t *testing.T) {
	for name, o := range map[string]*EncodingOptions{
		"small pages": {RowGroupRows: 500, PageBytes: 1 << 10, Bloom: []string{"id"}},
		"no stats":    {RowGroupRows: 300, NoStatistics: true, Compression: "none"},
	} {
		t.Run(name, func(t *testing.T) {
			h := harness(o)
			h.Prunes = !o.NoStatistics
			h.FileRows = []int64{300, 1, 1200}
			drivertest.Run(t, h, 0)
		})
	}
	t.Run("dictionaries", func(t *testing.T) {
		h := harness(&EncodingOptions{RowGroupRows: 500, PageBytes: 1 << 10})
		h.FileRows = []int64{300, 1, 1200}
		h.Dictionaries = true
		h.Source = func(paths ...string) driver.Source {
			return New(Options{Options: fileset.Options{Paths: paths}, Dictionary: Dictionary{All: true}})
		}
		drivertest.Run(t, h, 0)
	})
}
