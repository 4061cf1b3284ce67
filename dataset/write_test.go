package dataset_test

import (
	"context"
	"os"
	"path/filepath"
	"testing"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
)

// Appending to what is read would never end; overwriting it is a job like any other.
func TestWriteIntoItself(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	if _, err := dataset.Range(100).WriteParquet(ctx, dir, nil); err != nil {
		t.Fatal(err)
	}
	ds := dataset.ReadParquet(dir).Filter("id % 2 == 0")
	if _, err := ds.WriteParquet(ctx, dir+"/", &dataset.WriteOptions{Mode: "append"}); fault.CodeOf(err) != fault.Invalid {
		t.Errorf("append: %v", err)
	}
	if _, err := ds.WriteParquet(ctx, dir, &dataset.WriteOptions{Mode: "overwrite"}); err != nil {
		t.Fatal(err)
	}
	if n, err := ds.Refresh().Count(ctx, nil); err != nil || n != 50 {
		t.Errorf("%d rows, %v", n, err)
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
