package dataset_test

import (
	"context"
	"testing"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/exec"
)

// What is read to resolve a source counts once, in the run that it was read for.
func TestFootersCount(t *testing.T) {
	ctx := context.Background()
	all := dataset.Range(1000).WithColumns(`s = concat("row ", string(id))`)
	for _, c := range []struct {
		kind  string
		write func(dir string) error
		read  func(paths ...string) *dataset.Dataset
	}{
		{"parquet", func(d string) error { _, err := all.WriteParquet(ctx, d, nil); return err }, dataset.ReadParquet},
		{"csv", func(d string) error { _, err := all.WriteCSV(ctx, d, nil); return err }, dataset.ReadCSV},
		{"json", func(d string) error { _, err := all.WriteJSON(ctx, d, nil); return err }, dataset.ReadJSON},
		{"ipc", func(d string) error { _, err := all.WriteIPC(ctx, d, nil); return err }, dataset.ReadIPC},
	} {
		t.Run(c.kind, func(t *testing.T) {
			dir := t.TempDir()
			if err := c.write(dir); err != nil {
				t.Fatal(err)
			}
			ds := c.read(dir)
			defer ds.Close()
			drain := func(ds *dataset.Dataset) int64 {
				var stats func() exec.Stats
				if _, err := ds.Drain(ctx, &dataset.RunOptions{Observe: func(f func() exec.Stats) { stats = f }}); err != nil {
					t.Fatal(err)
				}
				return stats().BytesRead
			}
			first, second := drain(ds), drain(ds)
			if first <= second || second == 0 {
				t.Errorf("the first run read %d bytes, the second %d", first, second)
			}
			if c.kind != "parquet" {
				return
			}
			ds = c.read(dir)
			defer ds.Close()
			if n := drain(ds.Filter("id < 0")); n == 0 || n >= first {
				t.Errorf("a run that reads nothing but footers counts %d bytes, one of all %d", n, first)
			}
		})
	}
}
