package dataset_test

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/csvio"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/ipcio"
	"github.com/penstock-data/penstock/io/jsonio"
	"github.com/penstock-data/penstock/io/parquetio"
)

// What is written where a source reads would be read by the next run: it is refused in every mode, before anything is
// written, also through links, globs, unions and dead letters. The error says where to write.
func TestWriteIntoItself(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	at := func(rel string) string { return filepath.Join(dir, rel) }
	for _, folder := range []string{"in/a=1", "other", "third"} {
		if _, err := dataset.Range(100).WriteParquet(ctx, at(folder), nil); err != nil {
			t.Fatal(err)
		}
	}
	for link, to := range map[string]string{"link": "in", "to_deep": "in/a=1"} {
		if err := os.Symlink(at(to), at(link)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(at("linked"), 0o777); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(at("third"), at("linked/l")); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		source, out string
		refused     bool
		where       string // to write instead
	}{
		{"in", "in", true, "in-out"},
		{"in", "in/", true, "in-out"},
		{"in/", "in/new/rows", true, "in-out"},
		{"in", ".", true, "in-out"},
		{"in", "inner", false, ""},
		{"in", "in-out", false, ""},
		{"in/**/*.parquet", "in/new", true, "in-out"},
		{"in/*/*.parquet", "in/new", true, "in-out"},
		{"in/*/*.parquet", "in/new/rows", false, ""},
		{"in/a*/*.parquet", "in/new", false, ""},
		{"in/a=1/*.parquet", "in", true, "in/a=1-out"},
		{"in/a=1/*.parquet", "in/a=1", true, "in/a=1-out"},
		{"in/a=1/*.parquet", "in/a=1/new", false, ""},
		{"link", "in/new", true, "link-out"},
		{"in", "link/new", true, "in-out"},
		{"to_deep", "in", true, "to_deep-out"},
		{"linked", "third", true, "a folder that no source reads"},
	} {
		src := dataset.ReadParquet(at(c.source))
		for name, ds := range map[string]*dataset.Dataset{"source": src, "union": dataset.ReadParquet(at("other")).Select("id").Union(src.Select("id"))} {
			if name == "union" && c.out == "." {
				continue // above the first, too
			}
			for _, mode := range []string{"error", "append", "overwrite"} {
				_, err := ds.WriteParquet(ctx, at(c.out), &dataset.WriteOptions{Mode: mode})
				if !c.refused {
					if err != nil {
						t.Errorf("%s %s to %s, %s: %v", name, c.source, c.out, mode, err)
					}
					if err := os.RemoveAll(at(c.out)); err != nil {
						t.Fatal(err)
					}
					continue
				}
				where := c.where
				if filepath.Ext(where) == "" && !strings.Contains(where, " ") {
					where = "such as " + at(where)
				}
				if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), where) || strings.Contains(err.Error(), "append") {
					t.Errorf("%s %s to %s, %s: %v", name, c.source, c.out, mode, err)
				}
			}
			if !c.refused {
				continue
			}
			if _, err := ds.WriteParquet(ctx, at("x"), &dataset.WriteOptions{RunOptions: dataset.RunOptions{DeadLetter: at(c.out)}}); fault.CodeOf(err) != fault.Invalid {
				t.Errorf("%s %s, dead letter to %s: %v", name, c.source, c.out, err)
			}
			if _, err := ds.Drain(ctx, &dataset.RunOptions{DeadLetter: at(c.out)}); fault.CodeOf(err) != fault.Invalid {
				t.Errorf("drain %s %s, dead letter to %s: %v", name, c.source, c.out, err)
			}
		}
	}
	mix := dataset.Mix(dataset.MixSource{Name: "a", Data: dataset.Range(5), Weight: 1}, dataset.MixSource{Name: "b", Data: dataset.ReadParquet(at("in")).Select("id"), Weight: 1})
	if err := mix.CheckOutput(ctx, at("in/x")); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("mix: %v", err)
	}
	t.Chdir(at("in"))
	if _, err := dataset.ReadParquet(".").WriteCSV(ctx, "out", nil); err == nil || !strings.Contains(err.Error(), "such as "+at("in-out")) {
		t.Errorf("the working directory: %v", err)
	}
}

// A plan that cannot be named, such as one with a closure, needs a RunID; with one, a
// second run does nothing.
func TestWriteNeedsAName(t *testing.T) {
	ctx := context.Background()
	dir := filepath.Join(t.TempDir(), "out")
	ds := dataset.MapRows(dataset.Range(10), func(r struct{ ID int64 }) (struct{ X int64 }, error) { return struct{ X int64 }{r.ID}, nil })
	if _, err := ds.WriteCSV(ctx, dir, nil); fault.CodeOf(err) != fault.Unsupported {
		t.Errorf("without a name: %v", err)
	}
	for i := range 2 {
		r, err := ds.WriteCSV(ctx, dir, &dataset.WriteOptions{RunID: "mine"})
		if err != nil || r.Rows != 10 || r.Already != (i == 1) {
			t.Errorf("run %d: %+v, %v", i, r, err)
		}
	}
	if _, err := os.Stat(dir); err != nil {
		t.Error(err)
	}
}

// Four values of a partition column are four files, however many splits there are; and what a filter leaves of many parts is one.
func TestWriteFewFiles(t *testing.T) {
	ctx := context.Background()
	src := dataset.Range(20*65536).WithColumns("k = id % 4", "block = id / 65536").Select("k", "block")
	parquet, err := parquetio.NewEncoding(nil)
	if err != nil {
		t.Fatal(err)
	}
	csv, err := csvio.NewEncoding(&csvio.EncodingOptions{Compression: "gzip"})
	if err != nil {
		t.Fatal(err)
	}
	json, err := jsonio.NewEncoding(&jsonio.EncodingOptions{Compression: "zstd"})
	if err != nil {
		t.Fatal(err)
	}
	ipc, err := ipcio.NewEncoding(&ipcio.EncodingOptions{Compression: "zstd"})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		enc  driver.Encoding
		read func(...string) *dataset.Dataset
	}{
		"parquet": {parquet, dataset.ReadParquet}, "csv": {csv, dataset.ReadCSV}, "json": {json, dataset.ReadJSON}, "ipc": {ipc, dataset.ReadIPC},
	} {
		t.Run(name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "out")
			r, err := src.Write(ctx, out, c.enc, &dataset.WriteOptions{PartitionBy: []string{"k"}, TargetBytes: 600 << 10})
			if err != nil {
				t.Fatal(err)
			}
			if r.Files != 4 || r.Rows != 20*65536 {
				t.Errorf("%d files, %d rows", r.Files, r.Rows)
			}
			last := map[int64]int64{}
			for b, err := range c.read(out).Select("k", "block").Records(ctx, nil) {
				if err != nil {
					t.Fatal(err)
				}
				k, block := b.Column(0).(*array.Int64), b.Column(1).(*array.Int64)
				for i := range k.Len() {
					if block.Value(i) < last[k.Value(i)] {
						t.Fatalf("k %d: block %d behind %d", k.Value(i), block.Value(i), last[k.Value(i)])
					}
					last[k.Value(i)] = block.Value(i)
				}
			}
			if last[3] != 19 || len(last) != 4 {
				t.Errorf("%v", last)
			}
			few := filepath.Join(t.TempDir(), "few")
			r, err = src.Filter("k == 1 && block % 2 == 0").Write(ctx, few+"2", c.enc, &dataset.WriteOptions{TargetBytes: 600 << 10})
			if err != nil || r.Files != 1 || r.Rows != 10*16384 {
				t.Errorf("few rows in parts: %+v, %v", r, err)
			}
		})
	}
}

// A job in mode overwrite that finished before is written anew where another job has appended since: the output has its
// rows only.
func TestOverwriteAfterAppend(t *testing.T) {
	ctx := context.Background()
	out := filepath.Join(t.TempDir(), "out")
	write := func(n int64, mode string) *dataset.WriteResult {
		t.Helper()
		r, err := dataset.Range(n).WriteParquet(ctx, out, &dataset.WriteOptions{Mode: mode})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	rows := func() int64 {
		t.Helper()
		n, err := dataset.ReadParquet(out).Count(ctx, nil)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	write(3, "overwrite")
	write(2, "append")
	if n := rows(); n != 5 {
		t.Fatalf("%d rows", n)
	}
	if r := write(3, "overwrite"); r.Already || rows() != 3 {
		t.Errorf("%+v, %d rows", r, rows())
	}
	if r := write(3, "overwrite"); !r.Already || rows() != 3 {
		t.Errorf("again: %+v, %d rows", r, rows())
	}
}
