package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

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

// large takes shuffled batches of rows of 1 MB that compress to almost nothing, 128 of them in a row group; or makes the file, with pages
// of values or of the entries of a dictionary, which say little of what they decode to. Allowed are 1.25 times the budget,
// 150 MiB and a batch.
//
//	core large DIR make ROWS plain|dictionary
//	core large DIR [BUDGET_MIB [BATCH [CPUS [WINDOW_ROWS [LANES]]]]]
func large(args []string) error {
	if len(args) == 4 && args[1] == "make" {
		n, err := numbers(args[2:3], 0)
		if err != nil {
			return err
		}
		return makeLarge(args[0], n[0], args[3] == "dictionary")
	}
	n, err := numbers(args[1:], 64, 8, 0, 0, 0)
	if err != nil {
		return err
	}
	var stats func() exec.Stats
	start, rows, first := time.Now(), 0, time.Duration(0)
	its, err := dataset.ReadParquet(args[0]).Shards(context.Background(), 1, &dataset.ShardOptions{
		RunOptions: dataset.RunOptions{Memory: int64(n[0]) << 20, CPUs: n[2], Observe: func(f func() exec.Stats) { stats = f }},
		Options:    shard.Options{GlobalBatch: n[1], Shuffle: &shard.Shuffle{Mode: shard.ModeWindow, WindowRows: int64(n[3]), Lanes: n[4]}}})
	if err != nil {
		return err
	}
	defer its[0].Close()
	bytes := 0
	for b, err := range its[0].All(context.Background()) {
		if err != nil {
			return err
		}
		if rows == 0 {
			first = time.Since(start)
		}
		rows += b.Rows()
		bytes += len(b.Record().Column(1).(*array.String).ValueBytes())
	}
	kv := map[string]any{"rows": rows, "mib": bytes >> 20, "seconds": time.Since(start).Seconds(), "first_batch_seconds": first.Seconds(), "limit_mib": n[0],
		"peak_rss_mib": peakRSS() >> 20, "allowed_mib": n[0]*5/4 + 150 + n[1], "layout": its[0].Explain()}
	if stats != nil {
		kv["peak_budget_mib"] = stats().PeakBytes >> 20
	}
	report(kv)
	return nil
}

func makeLarge(dir string, rows int, dictionary bool) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "rows.parquet"))
	if err != nil {
		return err
	}
	defer f.Close()
	schema := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}, {Name: "s", Type: arrow.BinaryTypes.String}}, nil)
	w, err := pqarrow.NewFileWriter(schema, f, parquet.NewWriterProperties(parquet.WithCompression(compress.Codecs.Zstd), parquet.WithMaxRowGroupLength(128),
		parquet.WithDictionaryDefault(dictionary), parquet.WithDictionaryPageSizeLimit(1<<30)), pqarrow.DefaultWriterProps())
	if err != nil {
		return err
	}
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for at := 0; at < rows; at += 128 {
		for i := range 128 {
			b.Field(0).(*array.Int64Builder).Append(int64(at + i))
			b.Field(1).(*array.StringBuilder).Append(strings.Repeat(fmt.Sprintf("%04d", i%4), 1<<18))
		}
		rec := b.NewRecordBatch()
		err := w.Write(rec)
		rec.Release()
		if err != nil {
			return err
		}
	}
	return w.Close()
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

// bigstep takes one shuffled step of so many samples of 8 bytes on so many ranks, and tells the Go memory that it took at most.
//
//	core bigstep SAMPLES [RANKS]
func bigstep(args []string) error {
	arg, err := numbers(args, 1<<24, 1)
	if err != nil {
		return err
	}
	n := arg[0]
	its, err := dataset.Range(int64(n)).Shards(context.Background(), arg[1], &dataset.ShardOptions{Options: shard.Options{GlobalBatch: n}})
	if err != nil {
		return err
	}
	for _, it := range its {
		defer it.Close()
	}
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
	rows := 0
	var batches []*shard.Batch
	for _, it := range its {
		b, err := it.Next(context.Background())
		if err != nil {
			return err
		}
		rows += b.Rows()
		batches = append(batches, b)
	}
	close(stop)
	<-done
	debug.FreeOSMemory()
	var ms runtime.MemStats
	runtime.ReadMemStats(&ms)
	report(map[string]any{"rows": rows, "heap_peak_mib": most >> 20, "heap_peak_per_sample": float64(most) / float64(rows), "heap_after_per_sample": float64(ms.HeapAlloc) / float64(rows),
		"peak_rss_mib": peakRSS() >> 20})
	for _, b := range batches {
		b.Release()
	}
	return nil
}
