// Command regress notices when Penstock gets slower: it measures a few workloads as multiples of a
// calibration kernel, which takes about as long on another machine as they do, and compares them with
// the last results. `make bench` runs it.
//
//	regress [-update] [-tolerance X] [-noise X] [-rounds N] RESULTS DIR
//
// RESULTS is a JSON file of multiples; DIR keeps the data. Without a regression the better of last and now is
// written of each workload, so that small losses add up until they are seen; with one the file stays and the exit
// code is 1. Where rounds are too far apart to tell, that is said, nothing is written of the workload, and the exit
// code is 2. -update writes what was measured, whatever it is.
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
	"strings"

	"github.com/klauspost/compress/snappy"
	"golang.org/x/sys/unix"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/shard"
)

const rows = 1_000_000

func main() {
	log.SetFlags(0)
	update := flag.Bool("update", false, "write what was measured, whatever it is")
	tolerance := flag.Float64("tolerance", 1.25, "how much slower is a regression")
	noise := flag.Float64("noise", 1.2, "how far apart rounds may be")
	rounds := flag.Int("rounds", 7, "rounds of workloads in turn")
	flag.Parse()
	if flag.NArg() != 2 || *rounds < 1 {
		log.Fatal("usage: regress [-update] [-tolerance X] [-noise X] [-rounds N] RESULTS DIR")
	}
	data := filepath.Join(flag.Arg(1), "regress")
	if err := os.MkdirAll(flag.Arg(1), 0o755); err != nil {
		log.Fatal("regress: ", err)
	}
	if err := makeData(data); err != nil {
		log.Fatal("regress: ", err)
	}
	c := &checker{meter: meter{works: workloads, kernel: newCalibration().run, cpu: cpuSeconds, data: data, rounds: *rounds}, file: flag.Arg(0), tolerance: *tolerance, noise: *noise, update: *update}
	slower, noisy, err := c.check()
	if err != nil {
		log.Fatal("regress: ", err)
	}
	if len(slower) > 0 {
		log.Fatalf("regress: slower than the last results: %s; if that is right, run it with -update", strings.Join(slower, ", "))
	}
	if len(noisy) > 0 {
		log.Printf("regress: too noisy to tell: %s; run it again where the machine has little else to do", strings.Join(noisy, ", "))
		os.Exit(2)
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

func (c *calibration) run() error {
	for range 8 {
		if _, err := snappy.Decode(c.plain, c.packed); err != nil {
			return err
		}
		copy(c.copied, c.plain)
	}
	return nil
}

func cpuSeconds() float64 {
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return float64(u.Utime.Nano()+u.Stime.Nano()) / 1e9
}

// checker compares what a meter says with the last results.
type checker struct {
	meter
	file             string
	tolerance, noise float64
	update           bool
}

// check measures, prints a table, and names the workloads that are slower, and those of which that cannot be told.
// It writes the file as told above.
func (c *checker) check() (slower, noisy []string, err error) {
	last := map[string]float64{}
	if b, err := os.ReadFile(c.file); err == nil {
		if err := json.Unmarshal(b, &last); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", c.file, err)
		}
	} else if !errors.Is(err, os.ErrNotExist) {
		return nil, nil, err
	}
	now, err := c.measure()
	if err != nil {
		return nil, nil, err
	}
	keep := map[string]float64{} // is written
	fmt.Printf("Regression check, CPU as multiples of a calibration kernel (snappy and copies), %s, %d rounds:\n\n", runtime.Version(), c.rounds)
	fmt.Println("| what | now | rounds apart | last | now / last | |\n|---|---|---|---|---|---|")
	for _, w := range c.works {
		f, old := now[w.name], last[w.name]
		before, text, verdict := "-", "-", "new"
		keep[w.name] = f.multiple
		if old > 0 {
			r := f.multiple / old
			before = fmt.Sprintf("%.2f", old)
			text, verdict = fmt.Sprintf("%.2f", math.Ceil(100*r)/100), "ok"
			if r > c.tolerance {
				verdict = "**slower**"
			}
			keep[w.name] = min(f.multiple, old)
		}
		switch {
		case f.apart > c.noise && (old == 0 || f.multiple <= old*c.tolerance*f.apart): // what is slower than noise explains is slower
			verdict = "**too noisy to tell**"
			noisy = append(noisy, w.name)
			if keep[w.name] = old; old == 0 {
				delete(keep, w.name)
			}
		case verdict == "**slower**":
			slower = append(slower, w.name)
		}
		if c.update {
			keep[w.name] = f.multiple
		}
		fmt.Printf("| %s | %.2f | x%.2f | %s | %s | %s |\n", w.name, f.multiple, f.apart, before, text, verdict)
	}
	if c.update {
		slower, noisy = nil, nil
	}
	if slower != nil {
		return slower, noisy, nil
	}
	b, err := json.MarshalIndent(keep, "", "  ")
	if err != nil {
		return nil, nil, err
	}
	return nil, noisy, os.WriteFile(c.file, append(b, '\n'), 0o644)
}

// meter measures workloads beside the kernel.
type meter struct {
	works  []work
	kernel func() error
	cpu    func() float64 // seconds that this process has used
	data   string
	rounds int
}

// figure of a workload: the median multiple, and how far apart rounds are: the kernel before it and after it (the
// median), or the middle half of the multiples, whichever is more.
type figure struct{ multiple, apart float64 }

func (m *meter) measure() (map[string]figure, error) {
	timed := func(f func() error) (float64, error) {
		start := m.cpu()
		err := f()
		return m.cpu() - start, err
	}
	if err := m.kernel(); err != nil {
		return nil, err
	}
	multiples, kernels := map[string][]float64{}, map[string][]float64{}
	for round := range m.rounds + 1 { // the first one warms
		for _, w := range m.works {
			before, err := timed(m.kernel)
			if err != nil {
				return nil, err
			}
			runtime.GC()
			var n int64
			cpu, err := timed(func() (err error) {
				n, err = w.run(m.data)
				return err
			})
			if err != nil {
				return nil, fmt.Errorf("%s: %w", w.name, err)
			}
			if w.rows != 0 && n != w.rows || n == 0 {
				return nil, fmt.Errorf("%s: %d rows", w.name, n)
			}
			after, err := timed(m.kernel)
			if err != nil {
				return nil, err
			}
			if round > 0 {
				multiples[w.name] = append(multiples[w.name], 2*cpu/(before+after))
				kernels[w.name] = append(kernels[w.name], max(before/after, after/before))
			}
		}
	}
	now := map[string]figure{}
	for name, v := range multiples {
		now[name] = figure{math.Round(1e4*median(v)) / 1e4, max(median(kernels[name]), v[len(v)-1-len(v)/4]/v[len(v)/4])} // median sorts
	}
	return now, nil
}

func median(v []float64) float64 {
	slices.Sort(v)
	return (v[(len(v)-1)/2] + v[len(v)/2]) / 2
}
