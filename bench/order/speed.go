package main

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"syscall"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
)

// cpuTime is what this process has used of all cores.
func cpuTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// shuffleOf reads a shuffle from words: MODE [LANES [ROWS]].
func shuffleOf(args []string) (*shard.Shuffle, error) {
	s := &shard.Shuffle{Mode: shard.Mode(args[0])}
	var err error
	if len(args) > 1 {
		if s.Lanes, err = strconv.Atoi(args[1]); err != nil {
			return nil, err
		}
	}
	if len(args) > 2 {
		s.WindowRows, err = strconv.ParseInt(args[2], 10, 64)
	}
	return s, err
}

// drain reads an epoch, counts its rows where they arrive, and closes the iterator.
func drain(it *shard.Iterator, each func(*shard.Batch)) (figures, error) {
	start, cpu := time.Now(), cpuTime()
	var rows, steps, bytes int64
	for {
		b, err := it.Next(context.Background())
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		rows += int64(b.Real())
		steps++
		for _, t := range b.Tensors() {
			bytes += int64(len(t.Data))
		}
		if each != nil {
			each(b)
		}
		b.Release()
	}
	f := figures{"rows": float64(rows), "steps": float64(steps), "seconds": time.Since(start).Seconds(), "cpu": (cpuTime() - cpu).Seconds(), "bytes": float64(bytes)}
	return f, it.Close()
}

// whole says that an epoch has all rows.
func whole(f figures, rows float64) error {
	if f["rows"] != rows {
		return fmt.Errorf("an epoch of %v rows, not %v", f["rows"], rows)
	}
	return nil
}

// batches of 1,024 samples, as tensors, of one epoch: the next one is not begun while it drains.
var batches = shard.Options{GlobalBatch: 1024, Form: shard.Form{Tensors: true}, Tail: shard.TailPad, Epochs: 1}

// manyEpochs is what a training run sees: the memory of the windows that are resident is touched for the first time in one of them.
const manyEpochs = 4

// epoch reads manyEpochs in batches of 1,024, as tensors.
//
//	epoch DIR DATA none | window [LANES [ROWS]]
func epoch(args []string) (figures, error) {
	o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 7, Memory: 1 << 30}, Options: batches}
	var err error
	if o.Shuffle, err = shuffleOf(args[2:]); err != nil {
		return nil, err
	}
	return wholeEpochs(dataset.ReadParquet(args[0]+"/"+args[1]), o)
}

// stepsEpoch is epoch behind a plan with expressions.
//
//	epoch-steps DIR none | window [LANES [ROWS]]
func stepsEpoch(args []string) (figures, error) {
	o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 7, Memory: 1 << 30}, Options: batches}
	var err error
	if o.Shuffle, err = shuffleOf(args[1:]); err != nil {
		return nil, err
	}
	ds := dataset.ReadParquet(args[0]+"/samples").WithColumns("x = log1p(a) * b", "y = sqrt(c * c + d * d)", "z = label == 3 ? a / (b + 1.0) : log(c + 2.0)")
	return wholeEpochs(ds.Select("x", "y", "z", "label"), o)
}

// wholeEpochs reads manyEpochs of all rows.
func wholeEpochs(ds *dataset.Dataset, o *dataset.ShardOptions) (figures, error) {
	o.Epochs, o.Endless = manyEpochs, true
	it, err := ds.Iterator(context.Background(), o)
	if err != nil {
		return nil, err
	}
	steps, ok := it.Len()
	f, err := drain(it, nil)
	if err == nil && (!ok || f["steps"] != float64(manyEpochs*steps)) {
		err = fmt.Errorf("%v steps, not %d times %d", f["steps"], manyEpochs, steps)
	}
	return f, err
}

// mixEpoch reads the files of samples as the sources of a mix, or as one source. The lanes and windows
// are as many: 16 of each source, or 64.
//
//	mix DIR mix|union
func mixEpoch(args []string) (figures, error) {
	o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 7, Memory: 1 << 30}, Options: batches}
	o.Shuffle = &shard.Shuffle{Mode: shard.ModeWindow, Lanes: 64, WindowRows: 16384}
	ds := dataset.ReadParquet(args[0] + "/samples")
	if args[1] == "mix" {
		o.Shuffle.Lanes /= sampleFiles
		var sources []dataset.MixSource
		for i := range sampleFiles {
			n := strconv.Itoa(i)
			sources = append(sources, dataset.MixSource{Name: "s" + n, Weight: 1, Data: dataset.ReadParquet(args[0] + "/samples/" + n)})
		}
		ds = dataset.Mix(sources...)
	}
	it, err := ds.Iterator(context.Background(), o)
	if err != nil {
		return nil, err
	}
	f, err := drain(it, nil)
	if err != nil {
		return nil, err
	}
	return f, whole(f, sampleRows)
}

// packEpoch reads an epoch of documents, packed to 2,048 tokens, with a loss mask.
//
//	pack DIR concat|best_fit
func packEpoch(args []string) (figures, error) {
	o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 7, Memory: 1 << 30}, Options: batches}
	o.GlobalBatch, o.Shuffle = 64, &shard.Shuffle{Mode: shard.ModeWindow, WindowRows: 1024}
	ds := dataset.ReadParquet(args[0]+"/texts").Pack("tokens", &dataset.PackOptions{Length: 2048, Method: args[1], LossMask: true})
	it, err := ds.Iterator(context.Background(), o)
	if err != nil {
		return nil, err
	}
	var tokens, slots float64
	f, err := drain(it, func(b *shard.Batch) {
		t, _ := b.Tensor("loss_mask")
		for _, v := range t.Data[:b.Real()*2048] {
			tokens += float64(v)
		}
		slots += float64(b.Real() * 2048)
	})
	if err != nil {
		return nil, err
	}
	f["tokens"], f["padding"] = tokens, 1-tokens/slots
	return f, nil
}

// windows finds for every row of ds, whose first column numbers them, the window that it is in, in the first epoch of o; windows
// count through all lanes, n in all. It reads the epoch sample by sample, and sees which lane each moved.
func windows(ds *dataset.Dataset, o dataset.ShardOptions, rows int64) (of []int32, n int32, err error) {
	o.GlobalBatch, o.Prefetch, o.Form = 1, 256, shard.Form{}
	it, err := ds.Iterator(context.Background(), &o)
	if err != nil {
		return nil, 0, err
	}
	at := it.State().Sources[0].Pos
	began := map[[2]int64]int32{} // by lane and window
	of = make([]int32, rows)
	_, err = drain(it, func(b *shard.Batch) {
		pos := it.State().Sources[0].Pos
		for v, p := range pos {
			if p == at[v] || p[1] == 0 { // a window that has given nothing began in its lane's time
				continue
			}
			w := [2]int64{int64(v), p[0]}
			if _, ok := began[w]; !ok {
				began[w] = n
				n++
			}
			of[b.Record().Column(0).(*array.Int64).Value(0)] = began[w]
		}
		at = pos
	})
	return of, n, err
}

// stragglers runs a map that sleeps 30 ms per 1,024 rows, as one that waits for a service, over windows
// of that size, on 8 tasks; the rows of one window in 100 take FACTOR times as long.
// It gives the share of the ideal throughput: of 8 tasks that never wait. There are 2,048 windows and more, so
// that what the last ones wait for does not weigh.
//
//	slow DIR FACTOR
func stragglers(args []string) (figures, error) {
	factor, err := strconv.ParseFloat(args[1], 64)
	if err != nil {
		return nil, err
	}
	const window, cpus = 1024, 8
	const perRow = 30 * time.Millisecond / window
	ds := dataset.ReadParquet(args[0] + "/sorted")
	rows, err := ds.Count(context.Background(), nil)
	if err != nil {
		return nil, err
	}
	o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 7, Memory: 1 << 30, CPUs: cpus}, Options: batches}
	o.Shuffle = &shard.Shuffle{Mode: shard.ModeWindow, Lanes: 64, WindowRows: window}
	of, all, err := windows(ds.Select("row"), *o, rows)
	if err != nil {
		return nil, err
	}
	slow := func(row int64) bool { return of[row]%100 == 37 }
	nap := func(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
		var d time.Duration
		for _, r := range in.Column(0).(*array.Int64).Int64Values() {
			if slow(r) {
				d += time.Duration(factor * float64(perRow))
			} else {
				d += perRow
			}
		}
		time.Sleep(d) // the workload
		in.Retain()
		return in, nil
	}
	var work time.Duration
	for r := range rows {
		if slow(r) {
			work += time.Duration(factor * float64(perRow))
		} else {
			work += perRow
		}
	}
	it, err := ds.MapBatches(nap, nil).Iterator(context.Background(), o)
	if err != nil {
		return nil, err
	}
	f, err := drain(it, nil)
	if err != nil {
		return nil, err
	}
	f["of_ideal"] = work.Seconds() / cpus / f["seconds"]
	f["windows"], f["slow_windows"] = float64(all), float64((all+62)/100)
	return f, whole(f, float64(rows))
}
