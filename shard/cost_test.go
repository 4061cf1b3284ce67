package shard_test

import (
	"fmt"
	"io"
	"math/rand/v2"
	"path/filepath"
	"sync"
	"testing"

	"github.com/apache/arrow-go/v18/parquet/file"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/shard"
)

// groups writes Parquet files of random row groups with four columns, and returns their rows and the bytes of the column
// chunks of two of them, a and c.
func groups(t testing.TB, r *rand.Rand, dir string, files, most int) (rows, bytes int64) {
	t.Helper()
	for i := range files {
		enc, err := parquetio.NewEncoding(&parquetio.EncodingOptions{RowGroupRows: 500 + r.Int64N(3000), PageBytes: 8 << 10})
		if err != nil {
			t.Fatal(err)
		}
		n := int64(1 + r.IntN(most))
		ds := dataset.Range(n).WithColumns("a = random()", "b = random()", "c = random()", "d = id * 3").Drop("id")
		out := filepath.Join(dir, fmt.Sprint(i))
		if _, err := ds.Write(t.Context(), out, enc, &dataset.WriteOptions{RunOptions: dataset.RunOptions{Seed: r.Uint64()}}); err != nil {
			t.Fatal(err)
		}
		names, err := filepath.Glob(filepath.Join(out, "*.parquet"))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range names {
			f, err := file.OpenParquetFile(name, false)
			if err != nil {
				t.Fatal(err)
			}
			for g := range f.NumRowGroups() {
				for _, k := range []int{0, 2} {
					c, err := f.MetaData().RowGroup(g).ColumnChunk(k)
					if err != nil {
						t.Fatal(err)
					}
					bytes += c.TotalCompressedSize()
				}
			}
			rows += f.NumRows()
			if err := f.Close(); err != nil {
				t.Fatal(err)
			}
		}
	}
	return rows, bytes
}

// Guarantee 7: what an epoch fetches is what its columns need, at most 5 % more, in any layout and on any number of ranks.
func TestFetchedOnce(t *testing.T) {
	base := rand.Uint64()
	for i := range 12 {
		seed := base + uint64(i)
		r := rand.New(rand.NewPCG(seed, 0))
		dir := t.TempDir()
		rows, need := groups(t, r, dir, 1+r.IntN(4), 20_000)
		ranks := 1 + r.IntN(16)
		o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: seed, CPUs: 1 + r.IntN(3)}}
		o.GlobalBatch, o.Tail, o.Epochs, o.Form = ranks+r.IntN(500), shard.TailPad, 1, shard.Form{Tensors: true}
		o.Shuffle = &shard.Shuffle{Mode: shard.ModeWindow, Lanes: 1 + r.IntN(8), WindowRows: 1 + r.Int64N(2000)}
		if r.IntN(4) == 0 {
			o.Shuffle = &shard.Shuffle{Mode: []shard.Mode{shard.ModeNone, shard.ModeBlocks}[r.IntN(2)]}
		}
		its := open(t, dataset.ReadParquet(dir+"/*/*.parquet").Select("a", "c"), ranks, o)
		var mu sync.Mutex
		var g sync.WaitGroup
		var got int64
		for _, it := range its {
			g.Go(func() {
				for {
					b, err := it.Next(t.Context())
					if err != nil {
						if err != io.EOF {
							t.Errorf("seed %d: %v", seed, err)
						}
						return
					}
					mu.Lock()
					got += int64(b.Real())
					mu.Unlock()
					b.Release()
				}
			})
		}
		g.Wait()
		fetched := its[0].Stats().Engine.BytesRead
		if got != rows || fetched < need || float64(fetched) > 1.05*float64(need) {
			t.Errorf("seed %d: %d ranks, %+v: %d of %d rows, %d bytes fetched, %d needed", seed, ranks, *o.Shuffle, got, rows, fetched, need)
		}
	}
}

// Guarantee 4: the first batch after a restore costs a window per lane wherever the job stopped: windows are counted as they
// are needed, rows as the engine reads them, which is some tasks ahead.
func TestResumeCost(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	dir := t.TempDir()
	rows, _ := groups(t, r, dir, 8, 40_000)
	const lanes, window, global, ahead = 6, 128, 64, 80
	ds := dataset.ReadParquet(dir+"/*/*.parquet").Select("a", "c")
	options := func(s *shard.State) *dataset.ShardOptions {
		o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 7, CPUs: 1, Memory: 256 << 20}} // in which the engine has room for 64 tasks ahead
		o.GlobalBatch, o.Prefetch, o.Epochs, o.State, o.Form = global, -1, 1, s, shard.Form{Tensors: true}
		o.Shuffle = &shard.Shuffle{Mode: shard.ModeWindow, Lanes: lanes, WindowRows: window}
		return o
	}
	for range 20 {
		step := r.Int64N(rows / global)
		at, err := ds.StateAt(t.Context(), 1, options(nil), shard.At{Step: step})
		if err != nil {
			t.Fatal(err)
		}
		it := open(t, ds, 1, options(&at))[0]
		if b := next(t, it); b.Step() != step {
			t.Fatalf("step %d, want %d", b.Step(), step)
		}
		if n := it.Stats().Windows; n > 2*lanes { // the current ones, and those that begin in the step
			t.Errorf("seed %d: step %d of %d needs %d windows", seed, step, rows/global, n)
		}
		if err := it.Close(); err != nil {
			t.Fatal(err)
		}
		if n := it.Stats().Engine.RowsIn; n > (2*lanes+ahead)*window {
			t.Errorf("seed %d: step %d of %d read %d rows of %d", seed, step, rows/global, n, rows)
		}
	}
}
