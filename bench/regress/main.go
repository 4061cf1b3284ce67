// Command regress notices when Penstock gets slower: it measures a few workloads as multiples of a
// calibration kernel, which takes about as long on another machine as they do, and compares them with
// the last results. `make bench` runs it.
//
//	regress [-update] [-tolerance X] [-rounds N] RESULTS DIR
//
// RESULTS is a JSON file of multiples; DIR keeps the data. Without a regression the file is written
// anew, and with one it stays and the exit code is 1; -update writes it in any case.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/klauspost/compress/snappy"
	"golang.org/x/sys/unix"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/shard"
)

const rows = 1_000_000

func main() {
	log.SetFlags(0)
	update := flag.Bool("update", false, "write the results whatever they are")
	tolerance := flag.Float64("tolerance", 1.25, "how much slower is a regression")
	rounds := flag.Int("rounds", 7, "rounds of workloads in turn")
	flag.Parse()
	if flag.NArg() != 2 {
		log.Fatal("usage: regress [-update] [-tolerance X] [-rounds N] RESULTS DIR")
	}
	slower, err := check(flag.Arg(0), flag.Arg(1), *rounds, *tolerance, *update)
	if err != nil {
		log.Fatal("regress: ", err)
	}
	if slower {
		log.Fatal("regress: slower than the last results; if that is right, run it with -update")
	}
}

// work is one workload: it returns the rows it gave.
type work struct {
	name string
	run  func(dir string) (int64, error)
	rows int64 // it must give; 0: not known before
}

var workloads = []work{
	{"scan", func(dir string) (n int64, err error) {
		for rec, err := range dataset.ReadParquet(dir).Records(context.Background(), &dataset.RunOptions{CPUs: 1}) {
			if err != nil {
				return 0, err
			}
			n += rec.NumRows()
		}
		return n, nil
	}, rows},
	{"filter and batches", func(dir string) (n int64, err error) {
		o := &dataset.BatchOptions{RunOptions: dataset.RunOptions{CPUs: 1}, Tensors: true, DTypes: types}
		for b, err := range pipeline(dir).IterBatches(context.Background(), o) {
			if err != nil {
				return 0, err
			}
			n += int64(b.Rows())
		}
		return n, nil
	}, 0},
	{"the same, shuffled", func(dir string) (n int64, err error) {
		ctx := context.Background()
		o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{CPUs: 1, Seed: 7}, Options: shard.Options{GlobalBatch: 1024,
			Shuffle: &shard.Shuffle{Mode: shard.ModeWindow}, Tail: shard.TailPad, Epochs: 1, Form: shard.Form{Tensors: true, Columns: map[string]shard.Column{}}}}
		for c, t := range types {
			o.Form.Columns[c] = shard.Column{DType: t}
		}
		it, err := pipeline(dir).Iterator(ctx, o)
		if err != nil {
			return 0, err
		}
		for b, err := range it.All(ctx) {
			if err != nil {
				return 0, err
			}
			n += int64(b.Real())
		}
		return n, it.Close()
	}, 0},
	{"plan and first row", func(dir string) (int64, error) {
		n := int64(0)
		for range 20 {
			rec, err := dataset.ReadParquet(dir).Take(context.Background(), 1, &dataset.RunOptions{CPUs: 1})
			if err != nil {
				return 0, err
			}
			n += rec.NumRows()
			rec.Release()
		}
		return n, nil
	}, 20},
}

var types = map[string]shard.DType{"tip_rate": shard.Float32, "log_dist": shard.Float32, "fare": shard.Float32, "passengers": shard.Float32}

func pipeline(dir string) *dataset.Dataset {
	return dataset.ReadParquet(dir).Filter("distance < 3.0 && passengers > 1").
		WithColumns("tip_rate = tip / fare", "log_dist = log1p(distance)").Select("tip_rate", "log_dist", "fare", "passengers")
}

// makeData writes the files once.
func makeData(dir string) error {
	if _, err := os.Stat(dir); err == nil {
		return nil
	}
	enc, err := parquetio.NewEncoding(&parquetio.EncodingOptions{Compression: "snappy", RowGroupRows: 1 << 16})
	if err != nil {
		return err
	}
	ds := dataset.Range(rows).WithColumns("distance = -3.0 * log(1.0 - random())", "fare = 2.5 + 40.0 * random()", "passengers = int(random() * 6.0)",
		"pickup = id * 7 + int(random() * 1000.0)", "vendor = random() < 0.5 ? 1 : 2").
		WithColumns("tip = fare * 0.3 * random()", `flag = passengers > 3 ? "Y" : "N"`)
	_, err = ds.Write(context.Background(), dir, enc, &dataset.WriteOptions{RunOptions: dataset.RunOptions{Seed: 7}, TargetBytes: 1 << 30})
	return err
}

// calibration is the kernel: what readers of Parquet mostly do, with code that does not change here:
// snappy and copies, within the caches and beyond them.
type calibration struct{ packed, plain, copied []byte }

func newCalibration() *calibration {
	c := &calibration{plain: make([]byte, 8<<20), copied: make([]byte, 8<<20)}
	x := uint64(88172645463325252)
	for i := range c.plain {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		c.plain[i] = byte(x) & 15 // half of it can be packed
		if i%16 > 9 {
			c.plain[i] = c.plain[i-7]
		}
	}
	c.packed = snappy.Encode(nil, c.plain)
	return c
}

func (c *calibration) run() (cpu float64, err error) {
	start := cpuSeconds()
	for range 8 {
		if _, err := snappy.Decode(c.plain, c.packed); err != nil {
			return 0, err
		}
		copy(c.copied, c.plain)
	}
	return cpuSeconds() - start, nil
}

func cpuSeconds() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// check measures, prints a table, and says whether something is slower.
func check(file, dir string, rounds int, tolerance float64, update bool) (slower bool, err error) {
	last := map[string]float64{}
	if b, err := os.ReadFile(file); err == nil {
		if err := json.Unmarshal(b, &last); err != nil {
			return false, fmt.Errorf("%s: %w", file, err)
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return false, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return false, err
	}
	data := filepath.Join(dir, "regress")
	if err := makeData(data); err != nil {
		return false, err
	}
	now, spread, err := measure(data, rounds)
	if err != nil {
		return false, err
	}
	fmt.Printf("Regression check, CPU as multiples of a calibration kernel (snappy and copies), %s, %d rounds:\n\n", runtime.Version(), rounds)
	fmt.Println("| what | now | kernel against itself | last | now / last | |\n|---|---|---|---|---|---|")
	for _, w := range workloads {
		before, text, verdict := "-", "-", "new"
		if old := last[w.name]; old > 0 {
			r := now[w.name] / old
			before = fmt.Sprintf("%.2f", old)
			text, verdict = fmt.Sprintf("%.2f", math.Ceil(100*r)/100), "ok"
			if r > tolerance*spread {
				verdict, slower = "**slower**", true
			}
		}
		fmt.Printf("| %s | %.2f | x%.2f | %s | %s | %s |\n", w.name, now[w.name], spread, before, text, verdict)
	}
	if slower && !update {
		return true, nil
	}
	b, err := json.MarshalIndent(now, "", "  ")
	if err != nil {
		return false, err
	}
	return false, os.WriteFile(file, append(b, '\n'), 0o644)
}

// measure gives the multiples, and how far the kernel's own times in the same rounds are apart.
func measure(data string, rounds int) (now map[string]float64, spread float64, err error) {
	kernel := newCalibration()
	if _, err := kernel.run(); err != nil {
		return nil, 0, err
	}
	multiples := map[string][]float64{}
	var apart []float64
	for round := range rounds + 1 { // the first one warms
		for _, w := range workloads {
			before, err := kernel.run()
			if err != nil {
				return nil, 0, err
			}
			runtime.GC()
			start := cpuSeconds()
			n, err := w.run(data)
			if err != nil {
				return nil, 0, fmt.Errorf("%s: %w", w.name, err)
			}
			cpu := cpuSeconds() - start
			if w.rows != 0 && n != w.rows || n == 0 {
				return nil, 0, fmt.Errorf("%s: %d rows", w.name, n)
			}
			after, err := kernel.run()
			if err != nil {
				return nil, 0, err
			}
			if round > 0 {
				multiples[w.name] = append(multiples[w.name], 2*cpu/(before+after))
				apart = append(apart, max(before/after, after/before))
			}
		}
	}
	now = map[string]float64{}
	for name, v := range multiples {
		now[name] = math.Round(1e4*median(v)) / 1e4
	}
	return now, median(apart), nil
}

func median(v []float64) float64 {
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}
