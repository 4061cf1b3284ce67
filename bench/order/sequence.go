package main

import (
	"context"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/parquet/file"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
)

// procField reads a number from a file of /proc/self; 0 where there is none.
func procField(name, field string) float64 {
	text, err := os.ReadFile("/proc/self/" + name)
	if err != nil {
		return 0
	}
	for _, l := range strings.Split(string(text), "\n") {
		if rest, ok := strings.CutPrefix(l, field+":"); ok {
			n, _ := strconv.ParseFloat(strings.Fields(rest)[0], 64)
			return n
		}
	}
	return 0
}

func peakRSS() float64 { return procField("status", "VmHWM") * 1024 }

// readBytes reads an epoch of two of four columns on all ranks, and compares what the process read from
// files, footers and indexes included, with the column chunks of these columns. It also gives what the
// engine counts, and the ranks that got rows.
//
//	bytes DIR DATA RANKS
func readBytes(args []string) (figures, error) {
	ctx := context.Background()
	ranks, err := strconv.Atoi(args[2])
	if err != nil {
		return nil, err
	}
	columns := []string{"label", "a"}
	dir := filepath.Join(args[0], args[1])
	needed, err := chunks(dir, columns)
	if err != nil {
		return nil, err
	}
	o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 7, Memory: 1 << 30}, Options: batches}
	o.GlobalBatch, o.Shuffle = 32*ranks, &shard.Shuffle{WindowRows: 2048}
	before := procField("io", "rchar")
	its, err := dataset.ReadParquet(dir).Select(columns...).Shards(ctx, ranks, o)
	if err != nil {
		return nil, err
	}
	rows := make([]float64, ranks)
	for ended := 0; ended < ranks; {
		for r, it := range its {
			b, err := it.Next(ctx)
			if err == io.EOF {
				ended++
				continue
			}
			if err != nil {
				return nil, err
			}
			rows[r] += float64(b.Real())
			b.Release()
		}
	}
	fetched := procField("io", "rchar") - before
	counted := its[0].Stats().Engine.BytesRead
	for _, it := range its {
		if err := it.Close(); err != nil {
			return nil, err
		}
	}
	if fetched < needed || float64(counted) < needed {
		return nil, fmt.Errorf("%v bytes read, %d counted, but %v are needed: this system does not count what is read", fetched, counted, needed)
	}
	all := 0.0
	for _, n := range rows {
		all += n
	}
	return figures{"needed": needed, "fetched": fetched, "counted": float64(counted), "least_rows": quantile(rows, 0), "most_rows": quantile(rows, 1), "rows": all}, nil
}

// chunks sums the column chunks of some columns of all files of a folder.
func chunks(dir string, columns []string) (n float64, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.parquet"))
	if err != nil {
		return 0, err
	}
	for _, p := range paths {
		f, err := file.OpenParquetFile(p, false)
		if err != nil {
			return 0, err
		}
		for g := range f.NumRowGroups() {
			for _, c := range columns {
				m, err := f.MetaData().RowGroup(g).ColumnChunk(f.MetaData().Schema.ColumnIndexByName(c))
				if err != nil {
					return 0, err
				}
				n += float64(m.TotalCompressedSize())
			}
		}
		if err := f.Close(); err != nil {
			return 0, err
		}
	}
	return n, nil
}

// column reads an int64 column of an epoch in its order, and what Explain says of the order.
func column(ds *dataset.Dataset, name string, epoch uint64, seed uint64, g int, s *shard.Shuffle) (vals []int64, explain string, err error) {
	o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: seed, Epoch: epoch}, Options: batches}
	o.GlobalBatch, o.Shuffle = g, s
	it, err := ds.Select(name).Iterator(context.Background(), o)
	if err != nil {
		return nil, "", err
	}
	explain = it.Explain()
	_, err = drain(it, func(b *shard.Batch) {
		t, _ := b.Tensor(name)
		vals = append(vals, shard.Values[int64](t)[:b.Real()]...)
	})
	return vals, explain, err
}

// entropy compares the label entropy of steps of 256 samples, from rows sorted by label, with
// that of a full shuffle.
//
//	entropy DIR MODE [LANES [ROWS]]
func entropy(args []string) (figures, error) {
	s, err := shuffleOf(args[1:])
	if err != nil {
		return nil, err
	}
	labels, _, err := column(dataset.ReadParquet(args[0]+"/sorted"), "label", 0, 7, 256, s)
	if err != nil {
		return nil, err
	}
	got := meanEntropy(labels, 256)
	rand.New(rand.NewPCG(7, 1)).Shuffle(len(labels), func(i, k int) { labels[i], labels[k] = labels[k], labels[i] })
	full := meanEntropy(labels, 256)
	return figures{"bits": got, "full_bits": full, "of_full": got / full, "rows": float64(len(labels))}, nil
}

func meanEntropy(labels []int64, g int) float64 {
	sum, steps := 0.0, 0
	for ; len(labels) >= g; labels = labels[g:] {
		var count [10]int
		for _, l := range labels[:g] {
			count[l]++
		}
		for _, c := range count {
			if c > 0 {
				p := float64(c) / float64(g)
				sum -= p * math.Log2(p)
			}
		}
		steps++
	}
	return sum / float64(steps)
}

var bound = regexp.MustCompile(`correlate by at most ([0-9.]+)`)

// correlate gives the rank correlation of two epochs that follow each other, the largest of 8
// seeds, and the bound that Explain states.
//
//	ranks DIR DATA MODE [LANES [ROWS]]
func correlate(args []string) (figures, error) {
	s, err := shuffleOf(args[2:])
	if err != nil {
		return nil, err
	}
	ds := dataset.ReadParquet(filepath.Join(args[0], args[1]))
	f := figures{}
	for seed := range uint64(8) {
		var at [2][]int64 // by row: its place in the epoch
		for e := range at {
			rows, explain, err := column(ds, "row", uint64(e), seed, 1024, s)
			if err != nil {
				return nil, err
			}
			m := bound.FindStringSubmatch(explain)
			if m == nil {
				return nil, fmt.Errorf("no bound in %q", explain)
			}
			if f["bound"], err = strconv.ParseFloat(m[1], 64); err != nil {
				return nil, err
			}
			at[e] = make([]int64, len(rows))
			for n, row := range rows {
				at[e][row] = int64(n)
			}
		}
		f["largest"] = max(f["largest"], math.Abs(pearson(at[0], at[1])))
	}
	return f, nil
}

// pearson is the correlation of two permutations.
func pearson(a, b []int64) float64 {
	n := float64(len(a))
	mean := (n - 1) / 2
	sum := 0.0
	for i := range a {
		sum += (float64(a[i]) - mean) * (float64(b[i]) - mean)
	}
	return sum / (n * (n*n - 1) / 12)
}
