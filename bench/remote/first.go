package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/penstock-data/penstock/bench/internal/kit"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/shard"
)

// first measures the time to the first shuffled batch of 1,000 files of 100 row groups of 10 columns.
func first(t testing.TB, r *report, small int64) {
	files := int(1000 / small)
	s := start(t)
	ctx := t.Context()
	local := t.TempDir()
	cols := []string{}
	for i := range 9 {
		cols = append(cols, fmt.Sprintf("c%d = id * %d + 1", i, i))
	}
	enc := must(parquetio.NewEncoding(&parquetio.EncodingOptions{RowGroupRows: 10_000 / small}))(t)
	must(dataset.Range(1_000_000/small).WithColumns(cols...).Write(ctx, filepath.Join(local, "one"), enc, &dataset.WriteOptions{TargetBytes: 1 << 40}))(t)
	name := must(filepath.Glob(filepath.Join(local, "one", "*.parquet")))(t)
	data := must(os.ReadFile(name[0]))(t)
	// All files are links to one, here and in the server's folder.
	b := must(blobio.Open(ctx, s.url(false), nil))(t)
	defer b.Close()
	if err := b.Put(ctx, "one", data, nil); err != nil {
		t.Fatal(err)
	}
	many := filepath.Join(local, "many")
	for dir, one := range map[string]string{many: name[0], filepath.Join(s.Dir(), "bench", "many"): filepath.Join(s.Dir(), "bench", "one")} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		for i := range files {
			if err := os.Link(one, filepath.Join(dir, fmt.Sprintf("f%04d.parquet", i))); err != nil {
				t.Fatal(err)
			}
		}
	}
	measure := func(path string, rounds int) (plan, batch, used time.Duration) {
		var plans, batches, cpus []time.Duration
		for range rounds {
			runtime.GC()
			begin, before := time.Now(), kit.CPU()
			ds := dataset.ReadParquet(path)
			if _, err := ds.Schema(ctx); err != nil {
				t.Fatal(err)
			}
			plans = append(plans, time.Since(begin))
			its := must(ds.Shards(ctx, 1, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 1024}}))(t)
			bt := must(its[0].Next(ctx))(t)
			batches, cpus = append(batches, time.Since(begin)), append(cpus, kit.CPU()-before)
			if bt.Rows() != 1024 {
				t.Fatalf("%d rows", bt.Rows())
			}
			bt.Release()
			its[0].Close()
			ds.Close()
		}
		return kit.Median(plans), kit.Median(batches), kit.Median(cpus)
	}
	what := fmt.Sprintf("%d files x 100 row groups x 10 columns (%.0f GB): plan and first shuffled batch, ", files, float64(files*len(data))/1e9)
	plan, batch, used := measure(many, 3)
	r.add(what+"local, warm page cache", "<= 1.5 s", "%.2f s (plan %.2f s; CPU %.2f s)", batch.Seconds(), plan.Seconds(), used.Seconds())
	var m0, m1 runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m0)
	ds := dataset.ReadParquet(many)
	must(ds.Schema(ctx))(t)
	runtime.GC()
	runtime.ReadMemStats(&m1)
	ds.Close()
	r.add("memory of the plan per column chunk, splits and all", "<= 100 bytes", "%.0f bytes", float64(m1.HeapAlloc-m0.HeapAlloc)/float64(files*100*10))
	s.late(20 * time.Millisecond)
	before := s.proxy.Requests.Load()
	plan, batch, used = measure(s.path(true, "many"), 3)
	r.add(what+"S3 with 20 ms", "<= 5 s", "%.2f s (plan %.2f s; CPU %.2f s; %d requests)", batch.Seconds(), plan.Seconds(), used.Seconds(), (s.proxy.Requests.Load()-before)/3)
}
