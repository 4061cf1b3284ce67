package parquetio

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock-data/penstock/internal/datatest"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

func TestDump(t *testing.T) {
	dir := datatest.Dir(t, "parquet-testing")
	filepath.Walk(dir, func(p string, fi os.FileInfo, err error) error {
		if fi.IsDir() || filepath.Ext(p) == ".md" || filepath.Ext(p) == ".csv" {
			return nil
		}
		t.Run(filepath.Base(p), func(t *testing.T) {
			alloc := memtest.New(t)
			tab, err := open(t, nil, p)
			if err != nil {
				fmt.Printf("%-50s RESOLVE %v\n", filepath.Base(p), err)
				return
			}
			rows := int64(0)
			want := int64(0)
			for i, s := range tab.Splits() {
				want += s.Rows
				err := readAll(t.Context(), tab, i, &driver.ScanOptions{Alloc: alloc}, func(b driver.Batch) { rows += b.Record.NumRows() })
				if err != nil {
					fmt.Printf("%-50s READ %v\n", filepath.Base(p), err)
					return
				}
			}
			fmt.Printf("%-50s ok %d\n", filepath.Base(p), rows)
			if rows != want {
				t.Errorf("rows %d want %d", rows, want)
			}
		})
		return nil
	})
}
