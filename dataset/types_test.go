package dataset_test

import (
	"context"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/binio"
	"github.com/penstock-data/penstock/io/csvio"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
	"github.com/penstock-data/penstock/io/ipcio"
	"github.com/penstock-data/penstock/io/jsonio"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/io/textio"
)

// Every source of files has the option types, and says where a value is that a type does not hold.
func TestTypesOfEverySource(t *testing.T) {
	ctx := context.Background()
	ds := dataset.Range(400).WithColumns("x = id")
	for _, c := range []struct {
		kind   string
		write  func(dir string) error
		open   func(o fileset.Options) driver.Source
		column string
		good   string // type to the text of row 7
		bad    string // type that does not hold a value, column and row
	}{
		{"parquet", func(d string) error { _, err := ds.WriteParquet(ctx, d, nil); return err },
			func(o fileset.Options) driver.Source { return parquetio.New(parquetio.Options{Options: o}) }, "x", "string 7", "int8 128"},
		{"ipc", func(d string) error { _, err := ds.WriteIPC(ctx, d, nil); return err },
			func(o fileset.Options) driver.Source { return ipcio.New(ipcio.Options{Options: o}) }, "x", "double 7", "uint8 248"}, // of its batch,
		{"csv", func(d string) error { _, err := ds.WriteCSV(ctx, d, nil); return err },
			func(o fileset.Options) driver.Source { return csvio.New(csvio.Options{Options: o}) }, "x", "double 7", "uint8 256"},
		{"json", func(d string) error { _, err := ds.WriteJSON(ctx, d, nil); return err },
			func(o fileset.Options) driver.Source { return jsonio.New(jsonio.Options{Options: o}) }, "x", "string 7", "int8 128"},
		{"text", func(d string) error {
			return writeFile(filepath.Join(d, "x.txt"), "0\n1\n2\n3\n4\n5\n6\n 7 \n8\n9\n2024-01-01\n")
		}, func(o fileset.Options) driver.Source { return textio.New(textio.Options{Options: o}) }, "text", "large_string \" 7 \"", "int64 10"},
		{"binary", func(d string) error { return writeFile(filepath.Join(d, "x.bin"), "\xff") },
			func(o fileset.Options) driver.Source { return binio.New(binio.Options{Options: o}) }, "bytes", "", "string 0"},
	} {
		t.Run(c.kind, func(t *testing.T) {
			dir := t.TempDir()
			if err := c.write(dir); err != nil {
				t.Fatal(err)
			}
			read := func(typ string) (rows []string, err error) {
				tab, err := c.open(fileset.Options{Paths: []string{dir}, Types: map[string]string{c.column: typ}}).Resolve(ctx, nil)
				if err != nil {
					return nil, err
				}
				defer tab.Close()
				for i := range tab.Splits() {
					r, err := tab.Open(ctx, i, &driver.ScanOptions{Columns: []string{c.column}})
					if err != nil {
						return nil, err
					}
					defer r.Close()
					for {
						b, err := r.Next(ctx)
						if err == io.EOF {
							break
						}
						if err != nil {
							return nil, err
						}
						for k := range b.Record.Column(0).Len() {
							rows = append(rows, b.Record.Column(0).ValueStr(k))
						}
						b.Record.Release()
					}
				}
				return rows, nil
			}
			if typ, want, ok := strings.Cut(c.good, " "); ok {
				if want[0] == '"' {
					want = want[1 : len(want)-1]
				}
				if rows, err := read(typ); err != nil || len(rows) < 8 || rows[7] != want {
					t.Errorf("%s: %q, %v", typ, rows, err)
				}
			}
			typ, row, _ := strings.Cut(c.bad, " ")
			_, err := read(typ)
			p := fault.PlaceOf(err)
			n, known := p.Row.Get()
			if err == nil || p.Column != c.column || !strings.HasPrefix(p.File, dir) || !known || fmt.Sprint(n) != row {
				t.Errorf("%s: %v", typ, err)
			}
			if _, err := read("struct<a: int>"); c.kind != "json" && fault.CodeOf(err) != fault.Invalid {
				t.Errorf("what cannot be: %v", err)
			}
		})
	}
}
