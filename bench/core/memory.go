package main

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"time"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/shard"
)

// numbers reads arguments that may be left out: those of defaults.
func numbers(args []string, defaults ...int) ([]int, error) {
	out := append([]int(nil), defaults...)
	for i := range min(len(out), len(args)) {
		var err error
		if out[i], err = strconv.Atoi(args[i]); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// partitioned writes the files of gen as Parquet in key=value folders of so many values, which all come in turn. Allowed are 1.25 times
// the budget and 150 MiB.
//
//	core partitioned OUT IN [VALUES [BUDGET_MIB]]
func partitioned(args []string) error {
	if len(args) < 2 {
		return fmt.Errorf("usage: core partitioned OUT IN [VALUES [BUDGET_MIB]]")
	}
	n, err := numbers(args[2:], 50, 64)
	if err != nil {
		return err
	}
	enc, err := parquetio.NewEncoding(nil)
	if err != nil {
		return err
	}
	var stats func() exec.Stats
	start := time.Now()
	res, err := dataset.ReadParquet(filepath.Join(args[1], "**", "*.parquet")).WithColumns(fmt.Sprintf("bucket = id %% %d", n[0])).
		Write(context.Background(), args[0], enc, &dataset.WriteOptions{Mode: "overwrite", PartitionBy: []string{"bucket"}, RunID: strconv.FormatInt(start.UnixNano(), 36),
			RunOptions: dataset.RunOptions{Memory: int64(n[1]) << 20, Observe: func(f func() exec.Stats) { stats = f }}})
	if err != nil {
		return err
	}
	report(map[string]any{"rows": res.Rows, "files": res.Files, "bytes_mib": res.Bytes >> 20, "seconds": time.Since(start).Seconds(),
		"peak_budget_mib": stats().PeakBytes >> 20, "limit_mib": n[1], "peak_rss_mib": peakRSS() >> 20, "allowed_mib": n[1]*5/4 + 150})
	return nil
}

// large takes shuffled batches of rows of 1 MB that compress to almost nothing, 128 of them in a row group; or makes the file.
//
//	core large DIR make [ROWS]
//	core large DIR [BUDGET_MIB [BATCH [CPUS]]]
func large(args []string) error {
	if len(args) > 1 && args[1] == "make" {
		n, err := numbers(args[2:], 2048)
		if err != nil {
			return err
		}
		enc, err := parquetio.NewEncoding(&parquetio.EncodingOptions{RowGroupRows: 128, Compression: "zstd"})
		if err != nil {
			return err
		}
		text := `s = "0123456789abcdef"`
		double := make([]string, 0, 16)
		for range 16 { // 16 bytes, doubled 16 times
			double = append(double, `s = s + s`)
		}
		ds := dataset.Range(int64(n[0])).WithColumns(text)
		for _, d := range double {
			ds = ds.WithColumns(d)
		}
		_, err = ds.Write(context.Background(), args[0], enc, &dataset.WriteOptions{Mode: "overwrite", RunOptions: dataset.RunOptions{CPUs: 1, BatchRows: 16}})
		return err
	}
	n, err := numbers(args[1:], 64, 8, 0)
	if err != nil {
		return err
	}
	var stats func() exec.Stats
	start, rows, first := time.Now(), 0, time.Duration(0)
	its, err := dataset.ReadParquet(args[0]).Shards(context.Background(), 1, &dataset.ShardOptions{
		RunOptions: dataset.RunOptions{Memory: int64(n[0]) << 20, CPUs: n[2], Observe: func(f func() exec.Stats) { stats = f }},
		Options:    shard.Options{GlobalBatch: n[1]}})
	if err != nil {
		return err
	}
	defer its[0].Close()
	for b, err := range its[0].All(context.Background()) {
		if err != nil {
			return err
		}
		if rows == 0 {
			first = time.Since(start)
		}
		rows += b.Rows()
	}
	kv := map[string]any{"rows": rows, "seconds": time.Since(start).Seconds(), "first_batch_seconds": first.Seconds(), "limit_mib": n[0],
		"peak_rss_mib": peakRSS() >> 20, "allowed_mib": n[0]*5/4 + 150, "layout": its[0].Explain()}
	if stats != nil {
		kv["peak_budget_mib"] = stats().PeakBytes >> 20
	}
	report(kv)
	return nil
}

// tiny takes the first shuffled batch of a file of 20,000 row groups of one row; or makes it.
//
//	core tiny DIR make [GROUPS]
//	core tiny DIR [BATCH]
func tiny(args []string) error {
	if len(args) > 1 && args[1] == "make" {
		n, err := numbers(args[2:], 20_000)
		if err != nil {
			return err
		}
		enc, err := parquetio.NewEncoding(&parquetio.EncodingOptions{RowGroupRows: 1, Compression: "snappy"})
		if err != nil {
			return err
		}
		_, err = dataset.Range(int64(n[0])).WithColumns("x = random()", "y = id * 2").Write(context.Background(), args[0], enc, &dataset.WriteOptions{Mode: "overwrite"})
		return err
	}
	n, err := numbers(args[1:], 256)
	if err != nil {
		return err
	}
	start := time.Now()
	its, err := dataset.ReadParquet(args[0]).Shards(context.Background(), 1, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: n[0]}})
	if err != nil {
		return err
	}
	defer its[0].Close()
	opened := time.Since(start)
	b, err := its[0].Next(context.Background())
	if err != nil {
		return err
	}
	first := time.Since(start)
	rows := b.Rows()
	b.Release()
	for b, err := range its[0].All(context.Background()) {
		if err != nil {
			return err
		}
		rows += b.Rows()
	}
	report(map[string]any{"rows": rows, "opened_seconds": opened.Seconds(), "first_batch_seconds": first.Seconds(), "seconds": time.Since(start).Seconds()})
	return nil
}

// bigstep takes one shuffled step of so many samples of 8 bytes, and tells the Go memory that it took at most.
//
//	core bigstep SAMPLES
func bigstep(args []string) error {
	n, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	its, err := dataset.Range(int64(n)).Shards(context.Background(), 1, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: n}})
	if err != nil {
		return err
	}
	defer its[0].Close()
	var most uint64
	stop, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			var ms runtime.MemStats
			runtime.ReadMemStats(&ms)
			most = max(most, ms.HeapAlloc)
			select {
			case <-stop:
				return
			case <-time.After(20 * time.Millisecond):
			}
		}
	}()
	b, err := its[0].Next(context.Background())
	close(stop)
	<-done
	if err != nil {
		return err
	}
	debug.FreeOSMemory()
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	rows := b.Rows()
	report(map[string]any{"rows": rows, "heap_peak_mib": most >> 20, "heap_peak_per_sample": float64(most) / float64(rows), "heap_after_per_sample": float64(ms.HeapAlloc) / float64(rows),
		"peak_rss_mib": peakRSS() >> 20})
	b.Release()
	return nil
}
