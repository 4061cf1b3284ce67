package parquetio

import (
	"context"
	"io"
	"testing"

	"go.uber.org/goleak"

	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

func TestMain(m *testing.M) {
	minMap, minBeside = 1, 1 // of small files, too
	onPanic = func(p any, own bool) {
		if own { // a bug here: no file may bring it about
			panic(p)
		}
	}
	goleak.VerifyTestMain(m)
}

// open resolves paths with default options; the table is closed at the end.
func open(t testing.TB, o *Options, paths ...string) (driver.Table, error) {
	t.Helper()
	if o == nil {
		o = new(Options)
	}
	o.Paths = paths
	o.Extensions = []string{""}
	tab, err := New(*o).Resolve(t.Context(), nil)
	if err == nil {
		t.Cleanup(func() { tab.Close() })
	}
	return tab, err
}

func mustOpen(t testing.TB, o *Options, paths ...string) driver.Table {
	t.Helper()
	tab, err := open(t, o, paths...)
	if err != nil {
		t.Fatal(err)
	}
	return tab
}

// readAll reads a split and hands every batch to each, which must not keep it.
func readAll(ctx context.Context, tab driver.Table, i int, o *driver.ScanOptions, each func(driver.Batch)) error {
	r, err := tab.Open(ctx, i, o)
	if err != nil {
		return err
	}
	defer r.Close()
	for {
		b, err := r.Next(ctx)
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if each != nil {
			each(b)
		}
		b.Record.Release()
	}
}

func fileOptions(paths ...string) fileset.Options { return fileset.Options{Paths: paths} }
