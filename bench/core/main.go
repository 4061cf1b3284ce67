// Command core holds the workloads by which the streaming core is measured;
// bench/run.sh runs them and writes bench/results/core.md.
//
//	core gen DIR [ROWS]      taxi-like Parquet, two files
//	core engine FILE...      filter, two columns, batches of 1024 float32 rows, through the engine with one task
//	core bare FILE...        the same kernels called in a bare loop
//	core scan CPUS PASSES FILE...   the engine with that many tasks, over the files that many times after a pass that warms up
//	core inflate BYTES       rows of up to BYTES, a map that inflates 20 times, a consumer that is too slow
//	core many DIR [make]     1,000 files of 10 row groups: time to the first batch
//	core wide DIR            a sorted file of 50 columns with a page index
//	core narrow DIR          1 % of its rows by the key, 3 columns: the bytes that the process reads for that
//	core rows42 ...          filter, two columns, batches of 1024 x 42 float32; see rows42.go
//	core slots ...           the memory-limited pipeline of arXiv 2501.12407; see slots.go
//	core partitioned ...     Parquet in key=value folders, within a budget; see memory.go
//	core large ...           shuffled batches of rows of 1 MB; see memory.go
//	core tiny ...            20,000 row groups of one row; see memory.go
//	core bigstep SAMPLES     one step of so many samples
//	core compare N CMD...    commands in turn: median wall s, CPU s, peak MiB
//
// With CPUPROFILE=FILE in the environment, a workload writes a profile there.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strconv"
	"time"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/shard"
)

const (
	filterText = "distance < 30.0 && passengers > 1"
	colA       = "tip_rate = tip / fare"
	colB       = "log_dist = log1p(distance)"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) < 3 {
		log.Fatal("usage: core gen|engine|bare|scan|inflate|many ...; see the comment in bench/core/main.go")
	}
	args := os.Args[2:]
	if name := os.Getenv("CPUPROFILE"); name != "" {
		f, err := os.Create(name)
		if err != nil {
			log.Fatal(err)
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			log.Fatal(err)
		}
	}
	var err error
	switch os.Args[1] {
	case "gen":
		err = generate(args)
	case "engine":
		err = engine(1, 0, args)
	case "bare":
		err = bare(args)
	case "scan":
		var n []int
		if n, err = numbers(args[:min(2, len(args))], 1, 1); err == nil {
			err = engine(n[0], n[1], args[min(2, len(args)):])
		}
	case "inflate":
		err = inflate(args)
	case "many":
		err = many(args)
	case "wide":
		err = wide(args)
	case "narrow":
		err = narrow(args)
	case "rows42":
		err = rows42(args)
	case "slots":
		err = slots(args)
	case "partitioned":
		err = partitioned(args)
	case "large":
		err = large(args)
	case "tiny":
		err = tiny(args)
	case "bigstep":
		err = bigstep(args)
	case "compare":
		err = compare(args)
	default:
		err = fmt.Errorf("no workload %q", os.Args[1])
	}
	pprof.StopCPUProfile()
	if err != nil {
		log.Fatal(err)
	}
}

// report prints one JSON object.
func report(kv map[string]any) {
	b, err := json.Marshal(kv)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(b))
}

func generate(args []string) error {
	rows := int64(2_000_000)
	if len(args) > 1 {
		n, err := strconv.ParseInt(args[1], 10, 64)
		if err != nil {
			return err
		}
		rows = n
	}
	enc, err := parquetio.NewEncoding(&parquetio.EncodingOptions{Compression: "snappy"})
	if err != nil {
		return err
	}
	for i := range 2 {
		ds := dataset.Range(rows/2).WithColumns(
			"distance = -3.0 * log(1.0 - random())",
			"fare = 2.5 + 40.0 * random()",
			"passengers = int(random() * 6.0)",
			"pickup = id * 7 + int(random() * 1000.0)",
			"vendor = random() < 0.5 ? 1 : 2",
		).WithColumns("tip = fare * 0.3 * random()", "total = fare * 1.1", `flag = passengers > 3 ? "Y" : "N"`)
		_, err := ds.Write(context.Background(), filepath.Join(args[0], fmt.Sprintf("part%d", i)), enc,
			&dataset.WriteOptions{RunOptions: dataset.RunOptions{Seed: uint64(i)}, Mode: "overwrite", TargetBytes: 1 << 30})
		if err != nil {
			return err
		}
	}
	return nil
}

// engine goes through the files once, and then so many times more; the first pass is among what is told.
func engine(cpus, more int, paths []string) error {
	start := time.Now()
	rows, sum := 0, 0.0
	for range 1 + more {
		ds := dataset.ReadParquet(paths...).Filter(filterText).WithColumns(colA, colB).Select("tip_rate", "log_dist")
		for b, err := range ds.IterBatches(context.Background(), &dataset.BatchOptions{
			RunOptions: dataset.RunOptions{CPUs: cpus, Memory: 256 << 20}, Rows: 1024, Tensors: true,
			DTypes: map[string]shard.DType{"tip_rate": shard.Float32, "log_dist": shard.Float32}}) {
			if err != nil {
				return err
			}
			sum += consume(b)
			rows += b.Rows()
		}
	}
	report(map[string]any{"rows": rows, "sum": sum, "seconds": time.Since(start).Seconds()})
	return nil
}

// consume looks at one value per column, so that both forms do the same little work.
func consume(b *shard.Batch) float64 {
	s := 0.0
	for _, t := range b.Tensors() {
		s += float64(shard.Values[float32](t)[0])
	}
	return s
}

func many(args []string) error {
	dir := args[0]
	if len(args) > 1 {
		enc, err := parquetio.NewEncoding(&parquetio.EncodingOptions{RowGroupRows: 100, Compression: "snappy"})
		if err != nil {
			return err
		}
		one := filepath.Join(dir, "one")
		if _, err := dataset.Range(1000).WithColumns("x = random()", "y = id * 2", `s = "abc"`).Write(context.Background(), one, enc,
			&dataset.WriteOptions{Mode: "overwrite"}); err != nil {
			return err
		}
		src, err := filepath.Glob(filepath.Join(one, "*.parquet"))
		if err != nil || len(src) != 1 {
			return fmt.Errorf("one file expected, have %d: %w", len(src), err)
		}
		data, err := os.ReadFile(src[0])
		if err != nil {
			return err
		}
		for i := range 1000 {
			if err := os.MkdirAll(filepath.Join(dir, "many"), 0o755); err != nil {
				return err
			}
			if err := os.WriteFile(filepath.Join(dir, "many", fmt.Sprintf("f%04d.parquet", i)), data, 0o644); err != nil {
				return err
			}
		}
		return nil
	}
	start := time.Now()
	first, rows := time.Duration(0), 0
	for b, err := range dataset.ReadParquet(filepath.Join(dir, "many")).IterBatches(context.Background(), nil) {
		if err != nil {
			return err
		}
		if rows == 0 {
			first = time.Since(start)
		}
		rows += b.Rows()
	}
	report(map[string]any{"rows": rows, "first_batch_seconds": first.Seconds(), "seconds": time.Since(start).Seconds(), "goroutines_after": runtime.NumGoroutine()})
	return nil
}

func writeWide(dir string, rows int64, cols []string) error {
	enc, err := parquetio.NewEncoding(&parquetio.EncodingOptions{Compression: "snappy"})
	if err != nil {
		return err
	}
	_, err = dataset.Range(rows).WithColumns(cols...).Write(context.Background(), dir, enc, &dataset.WriteOptions{Mode: "overwrite", TargetBytes: 4 << 30})
	return err
}

// sizes draws row sizes from 1 KiB to limit: most of them small, or for very
// large ones every other one of that size.
func sizes(rng *rand.Rand, limit int) int {
	if limit > 16<<20 && rng.IntN(2) == 0 {
		return limit
	}
	n := 1 << 10
	for n < limit && rng.IntN(3) != 0 {
		n *= 2
	}
	return min(n, limit)
}
