package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"time"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
)

// quantile of values, which it sorts.
func quantile(v []float64, q float64) float64 {
	slices.Sort(v)
	return v[min(int(q*float64(len(v))), len(v)-1)]
}

// capture takes the state after every step of an epoch of 64 lanes.
//
//	capture DIR
func capture(args []string) (figures, error) {
	o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 7}, Options: batches}
	o.Shuffle = &shard.Shuffle{Mode: shard.ModeWindow, Lanes: 64, WindowRows: 16384}
	it, err := dataset.ReadParquet(args[0]+"/samples").Iterator(context.Background(), o)
	if err != nil {
		return nil, err
	}
	var micros []float64
	size := 0
	f, err := drain(it, func(*shard.Batch) {
		start := time.Now()
		s := it.State()
		micros = append(micros, float64(time.Since(start))/1e3)
		b, err := json.Marshal(s)
		if err != nil {
			panic(err)
		}
		size = max(size, len(b))
	})
	if err != nil {
		return nil, err
	}
	f["median_us"], f["p99_us"], f["max_bytes"] = quantile(micros, 0.5), quantile(micros, 0.99), float64(size)
	return f, nil
}

// steps reads a small epoch of 64 lanes and takes the state after each step of 256 samples, or never.
// For counting instructions.
//
//	steps DIR every|never
func steps(args []string) (figures, error) {
	o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 7, CPUs: 1}, Options: batches}
	o.GlobalBatch, o.Shuffle = 256, &shard.Shuffle{Mode: shard.ModeWindow, Lanes: 64, WindowRows: 2048}
	it, err := dataset.ReadParquet(args[0]+"/small").Iterator(context.Background(), o)
	if err != nil {
		return nil, err
	}
	given := 0.0
	f, err := drain(it, func(*shard.Batch) {
		if args[1] == "every" {
			given = float64(it.State().Sample)
		}
	})
	if err != nil {
		return nil, err
	}
	f["given"] = given
	return f, nil
}

// resume takes the time from opening the files to the first batch, at the beginning and at 20 random
// steps of an epoch, in turn: the best of 3 each. The page cache is warm; nothing else is kept.
//
//	resume DIR LANES ROWS
func resume(args []string) (figures, error) {
	ctx := context.Background()
	s, err := shuffleOf(append([]string{"window"}, args[1:]...))
	if err != nil {
		return nil, err
	}
	first := func(state *shard.State) (wall, cpu float64, err error) {
		o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 7, Memory: 1 << 30}, Options: batches}
		o.Shuffle, o.State = s, state
		start, used := time.Now(), cpuTime()
		it, err := dataset.ReadParquet(args[0]+"/samples").Iterator(ctx, o)
		if err != nil {
			return 0, 0, err
		}
		b, err := it.Next(ctx)
		if err != nil {
			return 0, 0, err
		}
		wall, cpu = time.Since(start).Seconds(), (cpuTime() - used).Seconds()
		b.Release()
		return wall, cpu, it.Close()
	}
	const stops, tries = 20, 3
	rng := rand.New(rand.NewPCG(7, 20))
	states := make([]*shard.State, stops)
	for i := range states {
		o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 7}, Options: batches}
		o.Shuffle = s
		at, err := dataset.ReadParquet(args[0]+"/samples").StateAt(ctx, 1, o, shard.At{Step: rng.Int64N(sampleRows/1024-1) + 1})
		if err != nil {
			return nil, err
		}
		states[i] = &at
	}
	best := func(v *float64, x float64) {
		if *v == 0 || x < *v {
			*v = x
		}
	}
	var begin, beginCPU, after, afterCPU [stops]float64
	for range tries {
		for i, state := range states {
			w, c, err := first(nil)
			if err != nil {
				return nil, err
			}
			best(&begin[i], w)
			best(&beginCPU[i], c)
			if w, c, err = first(state); err != nil {
				return nil, err
			}
			best(&after[i], w)
			best(&afterCPU[i], c)
		}
	}
	base, baseCPU := quantile(begin[:], 0.5), quantile(beginCPU[:], 0.5)
	return figures{
		"begin_ms": 1e3 * base, "begin_worst": begin[stops-1] / base, "begin_cpu_ms": 1e3 * baseCPU,
		"median": quantile(after[:], 0.5) / base, "worst": after[stops-1] / base,
		"median_cpu": quantile(afterCPU[:], 0.5) / baseCPU, "worst_cpu": afterCPU[stops-1] / baseCPU,
	}, nil
}

// replay gives the step that holds sample 10,000,000: finds its state, restores it, makes the batch.
// With a filter by the ledger of a run, which is not part of the time.
//
//	replay DIR metadata|ledger
func replay(args []string) (figures, error) {
	ctx := context.Background()
	const sample, g = 10_000_000, 256
	ds := dataset.ReadParquet(args[0] + "/samples")
	o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 7, Memory: 1 << 30}, Options: batches}
	o.GlobalBatch, o.Shuffle = g, &shard.Shuffle{Mode: shard.ModeWindow, Lanes: 64, WindowRows: 16384}
	at := shard.At{Step: sample / g}
	var want [32]byte
	if args[1] == "ledger" {
		ds = ds.Filter("label != 3")
		it, err := ds.Iterator(ctx, o)
		if err != nil {
			return nil, err
		}
		for step := range int64(sample/g + 1) {
			b, err := it.Next(ctx)
			if err != nil {
				return nil, err
			}
			if step == sample/g {
				want = b.Digest()
			}
			b.Release()
		}
		var file bytes.Buffer
		if _, err := it.Ledger().WriteTo(&file); err != nil {
			return nil, err
		}
		if at.Ledger, err = shard.ReadLedger(&file); err != nil {
			return nil, err
		}
		if err := it.Close(); err != nil {
			return nil, err
		}
	}
	start, cpu := time.Now(), cpuTime()
	state, err := ds.StateAt(ctx, 1, o, at)
	if err != nil {
		return nil, err
	}
	found := time.Since(start)
	o.State = &state
	it, err := ds.Iterator(ctx, o)
	if err != nil {
		return nil, err
	}
	b, err := it.Next(ctx)
	if err != nil {
		return nil, err
	}
	f := figures{"find_seconds": found.Seconds(), "seconds": time.Since(start).Seconds(), "cpu": (cpuTime() - cpu).Seconds(), "rows": float64(state.Sample)}
	if at.Ledger != nil && b.Digest() != want {
		return nil, fmt.Errorf("step %d is another one than when it came in its turn", at.Step)
	}
	b.Release()
	return f, it.Close()
}

// budget reads two shuffled epochs of samples within a budget.
//
//	memory DIR MIB
func budget(args []string) (figures, error) {
	mib, err := strconv.ParseInt(args[1], 10, 64)
	if err != nil {
		return nil, err
	}
	o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 7, Memory: mib << 20}, Options: batches}
	o.Shuffle, o.Epochs, o.Endless = &shard.Shuffle{Mode: shard.ModeWindow}, 2, true // the second begins while the first drains
	it, err := dataset.ReadParquet(args[0]+"/samples").Iterator(context.Background(), o)
	if err != nil {
		return nil, err
	}
	f, err := drain(it, nil)
	if err != nil {
		return nil, err
	}
	if peakRSS() == 0 {
		return nil, fmt.Errorf("this system does not say how much memory a process takes")
	}
	f["peak_rss"], f["peak_budget"] = peakRSS(), float64(it.Stats().Engine.PeakBytes)
	return f, whole(f, 2*sampleRows)
}
