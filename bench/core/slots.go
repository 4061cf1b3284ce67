package main

import (
	"context"
	"fmt"
	"iter"
	"strconv"
	"sync"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/io/memio"
	"github.com/penstock-data/penstock/ops"
)

const (
	cpuSlots = 8
	gpuSlots = 4
	perVideo = 5
)

var frames = arrow.NewSchema([]arrow.Field{{Name: "frame", Type: arrow.BinaryTypes.LargeBinary}}, nil)

// slots is the memory-limited pipeline of arXiv 2501.12407: load waits 10 units on one
// of 8 slots and gives 5 frames, one by one; transform waits 1 unit on one of the same slots and makes a new frame
// of each; infer waits 1 unit on one of 4 other slots. The budget is so many frames.
//
//	core slots VIDEOS UNIT_MS FRAME_MIB FRAMES
func slots(args []string) error {
	if len(args) != 4 {
		return fmt.Errorf("usage: core slots VIDEOS UNIT_MS FRAME_MIB FRAMES")
	}
	n := make([]int, 4)
	for i := range n {
		var err error
		if n[i], err = strconv.Atoi(args[i]); err != nil {
			return err
		}
	}
	videos, unit, size := n[0], time.Duration(n[1])*time.Millisecond, n[2]<<20
	var busy [2]meter // loads and transforms; infers
	wait := func(ctx context.Context, m *meter, units int) error {
		defer m.enter()()
		select {
		case <-time.After(time.Duration(units) * unit):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	src, err := memio.Generator(frames, func(ctx context.Context, video int) iter.Seq2[arrow.RecordBatch, error] {
		return func(yield func(arrow.RecordBatch, error) bool) {
			if err := wait(ctx, &busy[0], 2*perVideo); err != nil {
				yield(nil, err)
				return
			}
			for range perVideo {
				rec := frame(ops.Allocator(ctx), size, byte(video))
				more := yield(rec, nil)
				rec.Release()
				if !more {
					return
				}
			}
		}
	}, &memio.GeneratorOptions{Splits: videos})
	if err != nil {
		return err
	}
	ds := dataset.Read(src).MapBatches(func(ctx context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
		if err := wait(ctx, &busy[0], int(in.NumRows())); err != nil {
			return nil, err
		}
		return frame(ops.Allocator(ctx), size, first(in)), nil
	}, &dataset.MapOptions{Schema: frames, BatchRows: 1})

	// The consumer has the other slots.
	ctx := context.Background()
	work := make(chan arrow.RecordBatch)
	var infers sync.WaitGroup
	for range gpuSlots {
		infers.Go(func() {
			for rec := range work {
				_ = wait(ctx, &busy[1], 1) // ctx does not end
				rec.Release()
			}
		})
	}
	var stats func() exec.Stats
	start := time.Now()
	got := 0
	for rec, err := range ds.Records(ctx, &dataset.RunOptions{CPUs: cpuSlots, Memory: int64(n[3]) * int64(size), Observe: func(f func() exec.Stats) { stats = f }}) {
		if err != nil {
			return err
		}
		rec.Retain()
		work <- rec
		got++
	}
	close(work)
	infers.Wait()
	wall, ideal := time.Since(start), unit*time.Duration(videos*3*perVideo)/cpuSlots
	report(map[string]any{"frames": got, "seconds": wall.Seconds(), "ideal": ideal.Seconds(), "ratio": wall.Seconds() / ideal.Seconds(),
		"most_cpu": busy[0].most, "most_gpu": busy[1].most, "peak_budget_mib": stats().PeakBytes >> 20, "limit_mib": n[3] * n[2], "peak_rss_mib": peakRSS() >> 20})
	return nil
}

// meter counts how many are inside.
type meter struct {
	mu        sync.Mutex
	now, most int
}

func (m *meter) enter() (leave func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.now++
	m.most = max(m.most, m.now)
	return func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.now--
	}
}

func first(rec arrow.RecordBatch) byte {
	if rec.NumRows() == 0 {
		return 0
	}
	return rec.Column(0).(*array.LargeBinary).Value(0)[0]
}

// frame is a record of one row, every page of it written.
func frame(alloc memory.Allocator, size int, fill byte) arrow.RecordBatch {
	offsets, data := memory.NewResizableBuffer(alloc), memory.NewResizableBuffer(alloc)
	defer offsets.Release()
	defer data.Release()
	offsets.Resize(16)
	data.Resize(size)
	o := arrow.Int64Traits.CastFromBytes(offsets.Bytes())
	o[0], o[1] = 0, int64(size)
	for b := data.Bytes(); len(b) > 0; b = b[min(4096, len(b)):] {
		b[0] = fill
	}
	d := array.NewData(arrow.BinaryTypes.LargeBinary, 1, []*memory.Buffer{nil, offsets, data}, nil, 0, 0)
	defer d.Release()
	col := array.MakeFromData(d)
	defer col.Release()
	return array.NewRecordBatch(frames, []arrow.Array{col}, 1)
}
