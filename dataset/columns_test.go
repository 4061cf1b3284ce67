package dataset_test

import (
	"context"
	"os"
	"path/filepath"
	"slices"
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

// Every source of files has the columns that its option names, in that order, and reads no others.
func TestColumnsOption(t *testing.T) {
	ctx := context.Background()
	ds := dataset.Range(100).WithColumns("day = id % 2", `a = concat("a ", string(id))`, "b = id * 2")
	parts := &dataset.WriteOptions{PartitionBy: []string{"day"}}
	for _, c := range []struct {
		kind  string
		write func(dir string) error
		open  func(o fileset.Options) driver.Source
		names string
		close string // to a column
	}{
		{"parquet", func(d string) error { _, err := ds.WriteParquet(ctx, d, parts); return err },
			func(o fileset.Options) driver.Source { return parquetio.New(parquetio.Options{Options: o}) }, "file day b", "fil"},
		{"csv", func(d string) error { _, err := ds.WriteCSV(ctx, d, parts); return err },
			func(o fileset.Options) driver.Source { return csvio.New(csvio.Options{Options: o}) }, "file day b", "fil"},
		{"json", func(d string) error { _, err := ds.WriteJSON(ctx, d, parts); return err },
			func(o fileset.Options) driver.Source { return jsonio.New(jsonio.Options{Options: o}) }, "file day b", "fil"},
		{"ipc", func(d string) error { _, err := ds.WriteIPC(ctx, d, parts); return err },
			func(o fileset.Options) driver.Source { return ipcio.New(ipcio.Options{Options: o}) }, "file day b", "fil"},
		{"text", func(d string) error { return writeFile(filepath.Join(d, "day=0", "x.txt"), "one\ntwo\n") },
			func(o fileset.Options) driver.Source { return textio.New(textio.Options{Options: o}) }, "file day text", "tex"},
		{"binary", func(d string) error { return writeFile(filepath.Join(d, "day=0", "x.bin"), "one") },
			func(o fileset.Options) driver.Source { o.PathColumn = ""; return binio.New(binio.Options{Options: o}) }, "path day", "byte"},
	} {
		t.Run(c.kind, func(t *testing.T) {
			dir := t.TempDir()
			if err := c.write(dir); err != nil {
				t.Fatal(err)
			}
			names := strings.Fields(c.names)
			o := fileset.Options{Paths: []string{dir}, PathColumn: "file", Columns: names}
			tab, err := c.open(o).Resolve(ctx, nil)
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range tab.Schema().Fields() {
				got = append(got, f.Name)
			}
			if !slices.Equal(got, names) {
				t.Errorf("columns %v, want %v", got, names)
			}
			chosen, err := tab.Fingerprint(ctx)
			if err != nil {
				t.Error(err)
			}
			tab.Close()
			rows, err := rowsOf(dataset.Read(c.open(o)), dataset.RunOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(strings.ReplaceAll(rows[0], " ", ""), dir) {
				t.Errorf("the first row is %q", rows[0])
			}
			o.Columns = nil
			if tab, err = c.open(o).Resolve(ctx, nil); err != nil {
				t.Fatal(err)
			}
			if all, err := tab.Fingerprint(ctx); err != nil || all == chosen {
				t.Errorf("the fingerprint %s does not depend on the columns, %v", all, err)
			}
			tab.Close()
			for _, bad := range []string{c.close, "day"} {
				o.Columns = []string{"day", bad}
				_, err := c.open(o).Resolve(ctx, nil)
				want := "did you mean"
				if bad == "day" {
					want = "is there twice"
				}
				if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) {
					t.Errorf("%v: %v", o.Columns, err)
				}
			}
		})
	}
}

func writeFile(path, text string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), 0o644)
}
