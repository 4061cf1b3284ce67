package dataset_test

import (
	"context"
	"fmt"
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
	"github.com/penstock-data/penstock/ops"
)

// fileFormats are those whose files have columns of names.
var fileFormats = []struct {
	kind  string
	write func(ds *dataset.Dataset, dir string) error
	open  func(o fileset.Options) driver.Source
}{
	{"parquet", func(ds *dataset.Dataset, d string) error {
		_, err := ds.WriteParquet(context.Background(), d, nil)
		return err
	},
		func(o fileset.Options) driver.Source { return parquetio.New(parquetio.Options{Options: o}) }},
	{"ipc", func(ds *dataset.Dataset, d string) error {
		_, err := ds.WriteIPC(context.Background(), d, nil)
		return err
	},
		func(o fileset.Options) driver.Source { return ipcio.New(ipcio.Options{Options: o}) }},
	{"csv", func(ds *dataset.Dataset, d string) error {
		_, err := ds.WriteCSV(context.Background(), d, nil)
		return err
	},
		func(o fileset.Options) driver.Source { return csvio.New(csvio.Options{Options: o}) }},
	{"json", func(ds *dataset.Dataset, d string) error {
		_, err := ds.WriteJSON(context.Background(), d, nil)
		return err
	},
		func(o fileset.Options) driver.Source { return jsonio.New(jsonio.Options{Options: o}) }},
}

// skipped checks that ds fails in a row's value, and leaves out just the bad rows under skip, with
// their dead letters.
func skipped(t *testing.T, name string, ds *dataset.Dataset, rows, bad int64) {
	t.Helper()
	ctx := t.Context()
	if _, err := ds.Drain(ctx, nil); fault.CodeOf(err) != fault.RowError {
		t.Errorf("%s: %v (%v)", name, err, fault.CodeOf(err))
	} else if p := fault.PlaceOf(err); p.File == "" || p.Column == "" || p.Row == 0 {
		t.Errorf("%s: %v has no place", name, err)
	}
	dir := filepath.Join(t.TempDir(), "bad")
	st, err := ds.Drain(ctx, &dataset.RunOptions{OnError: &ops.OnError{Policy: "skip"}, DeadLetter: dir, Memory: 64 << 20})
	if err != nil || st.RowsOut != rows-bad || st.Skipped != bad || st.RowsIn != rows-bad {
		t.Errorf("%s: %v, %+v; want %d rows without %d", name, err, st, rows, bad)
		return
	}
	n, places := letters(t, dir)
	slices.Sort(places)
	if n != bad || rows <= 100 && len(slices.Compact(places)) != int(bad) {
		t.Errorf("%s: %d letters, of rows %v", name, n, places)
	}
	st, err = ds.Limit(rows-bad-1).Drain(ctx, &dataset.RunOptions{OnError: &ops.OnError{Policy: "skip"}})
	if err != nil || st.RowsOut != rows-bad-1 {
		t.Errorf("%s: a limit gives %+v, %v", name, st, err)
	}
	if _, err = ds.Drain(ctx, &dataset.RunOptions{OnError: &ops.OnError{Policy: "skip", MaxRows: bad - 1}}); fault.CodeOf(err) != fault.Exhausted {
		t.Errorf("%s: max_rows: %v", name, err)
	}
}

// A value that the type of types does not hold is of its row, in every format: it can be skipped.
func TestCastsUnderSkip(t *testing.T) {
	for _, f := range fileFormats {
		for _, c := range []struct {
			what, expr, typ string
			kinds           string // of formats; "": all
		}{
			{"a text", `id % 20 == 3 || id % 20 == 4 ? "no" : cast(id, "string")`, "int64", ""},
			{"a range", `id % 20 == 3 || id % 20 == 4 ? id + 1000 : id`, "int8", ""},
			{"digits", `id % 20 == 3 || id % 20 == 4 ? 9007199254740993 + id * 2 : id`, "double", "parquet ipc"},
			{"a fraction", `id % 20 == 3 || id % 20 == 4 ? 0.5 : cast(id, "double")`, "uint16", ""},
			{"precision", `timestamp("2024-01-01T00:00:00") + duration("1ms") * (id % 20 == 3 || id % 20 == 4 ? 1 : 0)`, "timestamp[s]", "parquet ipc"},
			{"a list", `id % 20 == 3 || id % 20 == 4 ? split("1,1000", ",") : split("1,2", ",")`, "list<int8>", "parquet ipc json"},
			{"a length", `id % 20 == 3 || id % 20 == 4 ? split("1", ",") : split("1,2", ",")`, "fixed_size_list<int64>(2)", "parquet ipc json"},
			{"all", `"x"`, "int64", ""},
		} {
			if c.kinds != "" && !strings.Contains(c.kinds, f.kind) {
				continue
			}
			name := f.kind + ", " + c.what
			dir := t.TempDir()
			if err := f.write(dataset.Range(100).WithColumns("x = "+c.expr), dir); err != nil {
				t.Fatal(name, err)
			}
			ds := dataset.Read(f.open(fileset.Options{Paths: []string{dir}, Types: map[string]string{"x": c.typ}}))
			bad := int64(10)
			if c.what == "all" {
				if st, err := ds.Drain(t.Context(), &dataset.RunOptions{OnError: &ops.OnError{Policy: "skip"}}); err != nil || st.Skipped != 100 || st.RowsOut != 0 {
					t.Errorf("%s: %+v, %v", name, st, err)
				}
				continue
			}
			skipped(t, name, ds, 100, bad)
		}
	}
	dir := t.TempDir()
	if err := writeFile(filepath.Join(dir, "a.txt"), "1\n2\nno\n4\nnone\n"); err != nil {
		t.Fatal(err)
	}
	skipped(t, "text", dataset.Read(textio.New(textio.Options{Options: fileset.Options{Paths: []string{dir}, Types: map[string]string{"text": "int64"}}})), 5, 2)
	dir = t.TempDir()
	for i, b := range []string{"a", "\xff", "c", "\xfe"} {
		if err := writeFile(filepath.Join(dir, fmt.Sprint(i, ".bin")), b); err != nil {
			t.Fatal(err)
		}
	}
	skipped(t, "binary", dataset.Read(binio.New(binio.Options{Options: fileset.Options{Paths: []string{dir}, Types: map[string]string{"bytes": "string"}}})), 4, 2)
}

// Rows of a file in which a column is not what the folder says are bad ones, in every format; all
// of them, if the folder is wrong.
func TestFolderDiffersUnderSkip(t *testing.T) {
	for _, f := range fileFormats {
		dir := t.TempDir()
		tmp := filepath.Join(dir, "_w")
		if err := f.write(dataset.Range(100).WithColumns("k = id % 20 == 3 ? 8 : 7"), tmp); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(dir, "k=7")); err != nil {
			t.Fatal(err)
		}
		read := func() *dataset.Dataset { return dataset.Read(f.open(fileset.Options{Paths: []string{dir}})) }
		skipped(t, f.kind, read(), 100, 5)
		// The column is looked at also where only a filter uses it.
		skipped(t, f.kind+", filter", read().Filter("k > 1").Select("id"), 100, 5)
		skipped(t, f.kind+", filter of both", read().Filter("k > 1 && id >= 0").Select("id"), 100, 5)
		if err := os.Rename(filepath.Join(dir, "k=7"), filepath.Join(dir, "k=6")); err != nil {
			t.Fatal(err)
		}
		st, err := read().Drain(t.Context(), &dataset.RunOptions{OnError: &ops.OnError{Policy: "skip"}})
		if err != nil || st.Skipped != 100 || st.RowsOut != 0 {
			t.Errorf("%s: %+v, %v", f.kind, st, err)
		}
		// A folder that the filter leaves out is not read, and not judged.
		if st, err := read().Filter("k > 6").Drain(t.Context(), nil); err != nil || st.RowsOut != 0 {
			t.Errorf("%s: %+v, %v", f.kind, st, err)
		}
	}
}

// Pieces of a row group that are read at once leave out each bad row once, also at their ends, and
// with a filter that is pushed down.
func TestCastsUnderSkipInPieces(t *testing.T) {
	dir := t.TempDir()
	const rows = 300_000
	if _, err := dataset.Range(rows).WithColumns(`x = id % 1024 == 0 || id % 1024 == 1023 ? "no" : cast(id, "string")`).WriteParquet(t.Context(), dir, nil); err != nil {
		t.Fatal(err)
	}
	ds := dataset.Read(parquetio.New(parquetio.Options{Options: fileset.Options{Paths: []string{dir}, Types: map[string]string{"x": "int64"}}}))
	const bad = (rows+1023)/1024 + rows/1024 // the first and the last of so many, as pieces have
	for name, ds := range map[string]*dataset.Dataset{"all": ds, "filter": ds.Filter("id >= 0")} {
		for _, cpus := range []int{1, 7} {
			st, err := ds.Drain(t.Context(), &dataset.RunOptions{CPUs: cpus, OnError: &ops.OnError{Policy: "skip"}})
			if err != nil || st.Skipped != bad || st.RowsOut != rows-bad {
				t.Errorf("%s, %d CPUs: %+v, %v", name, cpus, st, err)
			}
		}
	}
}
