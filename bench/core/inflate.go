package main

import (
	"context"
	"fmt"
	"iter"
	"math/rand/v2"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/io/memio"
	"github.com/penstock-data/penstock/ops"
)

var blobs = arrow.NewSchema([]arrow.Field{{Name: "b", Type: arrow.BinaryTypes.LargeBinary}}, nil)

// inflate runs rows of 1 KiB to the given size through a map that makes them 20
// times as large, into a consumer that is too slow, within 512 MiB.
func inflate(args []string) error {
	limit, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	const budget = 512 << 20
	splits, rowsPer := 16, 40
	if limit > 16<<20 {
		splits, rowsPer = 6, 2
	}
	largest := 0
	src, err := memio.Generator(blobs, func(_ context.Context, split int) iter.Seq2[arrow.RecordBatch, error] {
		return func(yield func(arrow.RecordBatch, error) bool) {
			rng := rand.New(rand.NewPCG(7, uint64(split)))
			for range rowsPer {
				col := zeros(sizes(rng, limit))
				rec := array.NewRecordBatch(blobs, []arrow.Array{col}, 1)
				col.Release()
				more := yield(rec, nil)
				rec.Release()
				if !more {
					return
				}
			}
		}
	}, &memio.GeneratorOptions{Splits: splits})
	if err != nil {
		return err
	}
	for s := range splits {
		rng := rand.New(rand.NewPCG(7, uint64(s)))
		for range rowsPer {
			largest = max(largest, 20*sizes(rng, limit))
		}
	}
	ds := dataset.Read(src).MapBatches(twentyfold, &dataset.MapOptions{Schema: blobs})
	var stats func() exec.Stats
	before := runtime.NumGoroutine()
	start := time.Now()
	rows, bytes := 0, 0
	for rec, err := range ds.Records(context.Background(), &dataset.RunOptions{Memory: budget, CPUs: 2, Observe: func(f func() exec.Stats) { stats = f }}) {
		if err != nil {
			return err
		}
		col := rec.Column(0).(*array.LargeBinary)
		for i := range col.Len() {
			bytes += len(col.Value(i))
		}
		rows += col.Len()
		time.Sleep(2 * time.Millisecond) // the consumer is the workload here
	}
	st := stats()
	report(map[string]any{"rows": rows, "bytes": bytes, "seconds": time.Since(start).Seconds(), "budget": budget, "largest_output": largest,
		"peak_budget_bytes": st.PeakBytes, "held_after": st.HeldBytes, "peak_rss_bytes": peakRSS(), "goroutines_left": runtime.NumGoroutine() - before})
	return nil
}

// zeros is a column of one value of n bytes, made without a copy: what is measured is the engine's memory.
func zeros(n int) arrow.Array {
	offsets := memory.NewBufferBytes(arrow.Int64Traits.CastToBytes([]int64{0, int64(n)}))
	data := memory.NewBufferBytes(make([]byte, n))
	d := array.NewData(arrow.BinaryTypes.LargeBinary, 1, []*memory.Buffer{nil, offsets, data}, nil, 0, 0)
	defer d.Release()
	return array.MakeFromData(d)
}

func twentyfold(ctx context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
	col := in.Column(0).(*array.LargeBinary)
	n, total := col.Len(), 0
	for i := range n {
		total += 20 * len(col.Value(i))
	}
	offsets, data := memory.NewResizableBuffer(ops.Allocator(ctx)), memory.NewResizableBuffer(ops.Allocator(ctx))
	defer offsets.Release()
	defer data.Release()
	offsets.Resize(8 * (n + 1))
	data.Resize(total)
	offs, at := arrow.Int64Traits.CastFromBytes(offsets.Bytes()), 0
	offs[0] = 0
	for i := range n {
		for range 20 {
			at += copy(data.Bytes()[at:], col.Value(i))
		}
		offs[i+1] = int64(at)
	}
	d := array.NewData(arrow.BinaryTypes.LargeBinary, n, []*memory.Buffer{nil, offsets, data}, nil, 0, 0)
	defer d.Release()
	out := array.MakeFromData(d)
	defer out.Release()
	return array.NewRecordBatch(blobs, []arrow.Array{out}, int64(n)), nil
}

// peakRSS reads VmHWM.
func peakRSS() int64 {
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for _, l := range strings.Split(string(text), "\n") {
		var kb int64
		if n, _ := fmt.Sscanf(l, "VmHWM: %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	return 0
}
