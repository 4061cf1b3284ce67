package main

import (
	"context"
	"fmt"
	"path/filepath"
	"runtime"
	"strconv"
	"time"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/shard"
)

// The filter of rows42 keeps 0.9 x 0.46 = 41 % of the rows.
const (
	rows42Files  = 8
	rows42Filter = "f00 > 0.1 && f01 < 0.46"
	rows42A      = "ratio = f02 / (f03 + 1.0)"
	rows42B      = "log = log1p(f04)"
)

// rows42 filters rows of 40 float32, computes 2 columns more, and takes batches
// of 1024 x 42 float32; or makes the files for it.
//
//	core rows42 gen DIR CODEC [ROWS]      8 files of random float32; 5,000,000 rows are 800 MB
//	core rows42 DIR [CPUS [MEMORY_MIB [BATCH_ROWS]]]   in order
func rows42(args []string) error {
	if args[0] == "gen" && len(args) > 2 {
		return rows42Gen(args[1:])
	}
	n := make([]int, 3)
	for i := range min(len(n), len(args)-1) {
		var err error
		if n[i], err = strconv.Atoi(args[i+1]); err != nil {
			return err
		}
	}
	o := dataset.RunOptions{CPUs: n[0], Memory: int64(n[1]) << 20, BatchRows: n[2]}
	var stats func() exec.Stats
	o.Observe = func(f func() exec.Stats) { stats = f }
	start := time.Now()
	first := time.Duration(0)
	ds := dataset.ReadParquet(filepath.Join(args[0], "*", "*.parquet")).Filter(rows42Filter).WithColumns(rows42A, rows42B)
	rows, sum := 0, 0.0
	for b, err := range ds.IterBatches(context.Background(), &dataset.BatchOptions{RunOptions: o, Rows: 1024, Tensors: true,
		DTypes: map[string]shard.DType{"ratio": shard.Float32, "log": shard.Float32}}) {
		if err != nil {
			return err
		}
		if rows == 0 {
			first = time.Since(start)
		}
		sum += consume(b)
		rows += b.Rows()
	}
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	st := stats()
	report(map[string]any{"rows": rows, "sum": sum, "seconds": time.Since(start).Seconds(), "first_batch_seconds": first.Seconds(),
		"read_mib": st.BytesRead >> 20, "peak_budget_mib": st.PeakBytes >> 20, "peak_rss_mib": peakRSS() >> 20, "mallocs": ms.Mallocs, "alloc_mib": ms.TotalAlloc >> 20, "gcs": ms.NumGC})
	return nil
}

func rows42Gen(args []string) error {
	rows := int64(5_000_000)
	if len(args) > 2 {
		n, err := strconv.ParseInt(args[2], 10, 64)
		if err != nil {
			return err
		}
		rows = n
	}
	enc, err := parquetio.NewEncoding(&parquetio.EncodingOptions{Compression: args[1]})
	if err != nil {
		return err
	}
	cols, names := make([]string, 40), make([]string, 40)
	for i := range cols {
		names[i] = fmt.Sprintf("f%02d", i)
		cols[i] = names[i] + ` = cast(random(), "float")`
	}
	for i := range rows42Files {
		ds := dataset.Range(rows / rows42Files).WithColumns(cols...).Select(names...)
		if _, err := ds.Write(context.Background(), filepath.Join(args[0], fmt.Sprintf("part%d", i)), enc,
			&dataset.WriteOptions{RunOptions: dataset.RunOptions{Seed: uint64(i)}, Mode: "overwrite", TargetBytes: 1 << 30}); err != nil {
			return err
		}
	}
	return nil
}
