package main

import (
	"context"
	"fmt"
	"iter"
	"math"
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
	"github.com/penstock-data/penstock/exec/local"
	"github.com/penstock-data/penstock/io/memio"
	"github.com/penstock-data/penstock/ops"
)

var blobs = arrow.NewSchema([]arrow.Field{{Name: "b", Type: arrow.BinaryTypes.LargeBinary}}, nil)

const (
	inflateBudget = 512 << 20
	tooSlow       = 10 // times as long as the pipeline takes is what the consumer takes
)

// inflate runs rows of 1 KiB to the given size through a map that makes them 20
// times as large, within 512 MiB: first as fast as it goes, which says how long the
// pipeline takes per byte of output, then into a consumer that takes 10 times as long
// for every record. Both runs count for what is the most: resident memory, and bytes of the budget.
func inflate(args []string) error {
	limit, err := strconv.Atoi(args[0])
	if err != nil {
		return err
	}
	splits, rowsPer := 16, 40
	if limit > 16<<20 {
		splits, rowsPer = 6, 2 // 8 of the 12 rows are of that size
	}
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
	largest := 0
	for s := range splits {
		rng := rand.New(rand.NewPCG(7, uint64(s)))
		for range rowsPer {
			largest = max(largest, 20*sizes(rng, limit))
		}
	}
	ds := dataset.Read(src).MapBatches(twentyfold, &dataset.MapOptions{Schema: blobs})
	fast, err := inflated(ds, 0)
	if err != nil {
		return err
	}
	slow, err := inflated(ds, tooSlow*fast.seconds/float64(fast.bytes))
	if err != nil {
		return err
	}
	report(map[string]any{"rows": slow.rows, "bytes": slow.bytes, "fast_seconds": fast.seconds, "seconds": slow.seconds, "budget": inflateBudget, "largest_output": largest,
		"peak_budget_bytes": max(fast.peak, slow.peak), "peak_rss_bytes": peakRSS(), "skew_percent": 100 * max(fast.skew, slow.skew),
		"held_after": fast.held + slow.held, "goroutines_left": fast.goroutines + slow.goroutines})
	return nil
}

// inflation is what one run of inflate did.
type inflation struct {
	rows, bytes int
	seconds     float64
	peak, held  int64   // bytes of the budget: the most, and after the run
	skew        float64 // most by which the reported bytes differed from those that the allocator had handed out, of these
	goroutines  int     // after the run, more than before
}

// inflated runs ds into a consumer that pauses for so many seconds per byte: the pause is the workload here.
func inflated(ds *dataset.Dataset, pause float64) (r inflation, err error) {
	budget := exec.NewBudget(inflateBudget)
	defer budget.Close()
	var stats func() exec.Stats
	before := runtime.NumGoroutine()
	start := time.Now()
	for rec, err := range ds.Records(context.Background(), &dataset.RunOptions{CPUs: 2, Runner: within{local.New(nil), budget},
		Observe: func(f func() exec.Stats) { stats = f }}) {
		if err != nil {
			return r, err
		}
		col, n := rec.Column(0).(*array.LargeBinary), 0
		for i := range col.Len() {
			n += len(col.Value(i))
		}
		r.rows += col.Len()
		r.bytes += n
		time.Sleep(time.Duration(pause * float64(n) * float64(time.Second)))
		r.skew = max(r.skew, skew(budget, stats))
	}
	r.seconds = time.Since(start).Seconds()
	r.peak, r.held = budget.Peak(), stats().HeldBytes
	for range 100 { // one that has said that it is done may still be seen
		if r.goroutines = runtime.NumGoroutine() - before; r.goroutines <= 0 {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	return r, nil
}

// skew is by how much the bytes that a run reports differ from those that its allocator has handed out, as a
// share of these. Tasks go on meanwhile and an allocation is charged just before it is made, so the least of a few looks counts.
func skew(b *exec.Budget, stats func() exec.Stats) float64 {
	least := math.Inf(1)
	for range 5 {
		reported, allocated := stats().HeldBytes, b.Allocated()
		least = min(least, math.Abs(float64(reported-allocated))/float64(max(allocated, 1)))
	}
	return least
}

// within runs everything on one budget, which can be asked what its allocator has handed out.
type within struct {
	exec.Runner
	budget *exec.Budget
}

func (w within) Run(ctx context.Context, g *exec.Graph, o *exec.Options) (exec.Stream, error) {
	o.Budget = w.budget
	return w.Runner.Run(ctx, g, o)
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
