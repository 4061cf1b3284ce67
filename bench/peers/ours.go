package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"math"
	"os"
	"path/filepath"
	"runtime"
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
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/feed"
)

// ours are the workloads as a user of the library writes them, each in a process of its own.
var ours = map[string]func(args []string) (figures, error){
	"table":         func(a []string) (figures, error) { return tableOrdered(a[0]) },
	"table-shuffle": func(a []string) (figures, error) { return tableShuffled(a[0]) },
	"tokens":        func(a []string) (figures, error) { return tokens(a[0], a[1]) },
	"many":          func(a []string) (figures, error) { return many(a[0]) },
	"inflate":       func(a []string) (figures, error) { return inflate(a[0]) },
	"slots":         slots,
	"resume":        func(a []string) (figures, error) { return resume(a[0]) },
	"handoff":       handoff,
	"memcpy":        copyLimit,
	"ten":           func(a []string) (figures, error) { return tenRows(a[0]) },
}

// clock marks the work of a process for the supervisor; see py/peer.py.
type clock struct {
	began time.Time
	first float64
	in    *bufio.Reader
}

var watch = clock{in: bufio.NewReader(os.Stdin)}

func (c *clock) start() error {
	fmt.Println("@start")
	_, err := c.in.ReadString('\n')
	c.began = time.Now()
	return err
}

// batch notes when the first one came.
func (c *clock) batch() {
	if c.first == 0 {
		c.first = time.Since(c.began).Seconds()
	}
}

func (c *clock) end(f figures) error {
	if _, ok := f["wall"]; !ok {
		f["wall"] = time.Since(c.began).Seconds()
	}
	if _, ok := f["first"]; !ok && c.first > 0 {
		f["first"] = c.first
	}
	b, err := json.Marshal(f)
	if err != nil {
		return err
	}
	fmt.Printf("@end %s\n", b)
	_, err = c.in.ReadString('\n')
	return err
}

// runCase is a whole process: case NAME ARG...
func runCase(args []string) error {
	if len(args) > 1 && args[1] == "serve" { // the other end of a hand-off, under a case
		return serve(context.Background(), args[2:])
	}
	f, ok := ours[args[0]]
	if !ok {
		return fmt.Errorf("no case %q", args[0])
	}
	if err := watch.start(); err != nil {
		return err
	}
	got, err := f(args[1:])
	if err != nil {
		return err
	}
	return watch.end(got)
}

const tableColumns = 42

// table is the plan of the filter workload: 40 columns and two computed ones.
func table(dir string) (*dataset.Dataset, map[string]shard.DType) {
	names := make([]string, 0, tableColumns)
	for j := range 38 {
		names = append(names, fmt.Sprintf("f%02d", j))
	}
	names = append(names, "distance", "fare", "tip_rate", "log_dist")
	types := map[string]shard.DType{}
	for _, n := range names {
		types[n] = shard.Float32
	}
	return dataset.ReadParquet(dir).Filter("distance < 2.9 && passengers > 1").
		WithColumns("tip_rate = tip / fare", "log_dist = log1p(distance)").Select(names...), types
}

// look counts a batch's rows and sums its computed columns.
func look(b *shard.Batch, f figures) {
	watch.batch()
	for _, n := range []string{"tip_rate", "log_dist"} {
		t, _ := b.Tensor(n)
		sum := 0.0
		for _, v := range shard.Values[float32](t)[:b.Real()] {
			sum += float64(v)
		}
		f["sum"] += sum
	}
	f["rows"] += float64(b.Real())
	f["batches"]++
}

func tableOrdered(dir string) (figures, error) {
	f := figures{}
	ds, types := table(dir)
	for b, err := range ds.IterBatches(context.Background(), &dataset.BatchOptions{Rows: 1024, Tensors: true, DTypes: types}) {
		if err != nil {
			return nil, err
		}
		look(b, f)
	}
	return f, nil
}

// shuffled are the options of an epoch in the order that shards have by default.
func shuffled(types map[string]shard.DType) *dataset.ShardOptions {
	o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 7}}
	o.Options = shard.Options{GlobalBatch: 1024, Shuffle: &shard.Shuffle{Mode: shard.ModeWindow}, Tail: shard.TailPad, Epochs: 1,
		Form: shard.Form{Tensors: true, Columns: map[string]shard.Column{}}}
	for n, t := range types {
		o.Form.Columns[n] = shard.Column{DType: t}
	}
	return o
}

func tableShuffled(dir string) (figures, error) {
	ctx, f := context.Background(), figures{}
	ds, types := table(dir)
	it, err := ds.Iterator(ctx, shuffled(types))
	if err != nil {
		return nil, err
	}
	for b, err := range it.All(ctx) {
		if err != nil {
			return nil, err
		}
		look(b, f)
	}
	return f, it.Close()
}

// tokens packs documents into samples of 2,048 tokens.
func tokens(dir, method string) (figures, error) {
	ctx, f := context.Background(), figures{}
	o := &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 8, Tail: shard.TailPad, Epochs: 1,
		Shuffle: &shard.Shuffle{Mode: shard.ModeNone, WindowRows: 1000}, Form: shard.Form{Tensors: true}}}
	it, err := dataset.ReadParquet(dir).Pack("tokens", &dataset.PackOptions{Length: 2048, Method: method}).Iterator(ctx, o)
	if err != nil {
		return nil, err
	}
	for b, err := range it.All(ctx) {
		if err != nil {
			return nil, err
		}
		watch.batch()
		ids, _ := b.Tensor("input_ids")
		tokens := 0
		for _, v := range shard.Values[int32](ids)[:b.Real()*2048] {
			if v != 0 { // ids are from 1 on; 0 fills what is left
				tokens++
			}
		}
		f["tokens"] += float64(tokens)
		f["rows"] += float64(b.Real())
	}
	f["padding"] = 1 - f["tokens"]/(2048*f["rows"])
	return f, it.Close()
}

// many reads small files as record batches.
func many(dir string) (figures, error) {
	f := figures{}
	for rec, err := range dataset.ReadParquet(dir).Records(context.Background(), nil) {
		if err != nil {
			return nil, err
		}
		watch.batch()
		f["rows"] += float64(rec.NumRows())
	}
	return f, nil
}

const inflated = 4 << 20

// inflate makes 4 MiB of every row of 4 KiB, for a consumer that takes 2 ms per row.
func inflate(path string) (figures, error) {
	f := figures{}
	ds := dataset.ReadParquet(path).MapBatches(repeat, nil)
	for rec, err := range ds.Records(context.Background(), &dataset.RunOptions{Memory: 512 << 20}) {
		if err != nil {
			return nil, err
		}
		watch.batch()
		col := rec.Column(0).(*array.LargeBinary)
		for i := range col.Len() {
			if len(col.Value(i)) != inflated {
				return nil, fmt.Errorf("a row of %d bytes", len(col.Value(i)))
			}
			time.Sleep(2 * time.Millisecond) // the work of the consumer
			f["rows"]++
		}
	}
	return f, nil
}

var inflatedSchema = arrow.NewSchema([]arrow.Field{{Name: "blob", Type: arrow.BinaryTypes.LargeBinary}}, nil)

func repeat(ctx context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
	col, n := in.Column(0).(*array.Binary), int(in.NumRows())
	offsets, data := memory.NewResizableBuffer(ops.Allocator(ctx)), memory.NewResizableBuffer(ops.Allocator(ctx))
	defer offsets.Release()
	defer data.Release()
	offsets.Resize(8 * (n + 1))
	data.Resize(n * inflated)
	offs := arrow.Int64Traits.CastFromBytes(offsets.Bytes())
	offs[0] = 0
	for i := range n {
		dst := data.Bytes()[i*inflated : (i+1)*inflated]
		for at := copy(dst, col.Value(i)); at < inflated; {
			at += copy(dst[at:], dst[:at])
		}
		offs[i+1] = int64((i + 1) * inflated)
	}
	d := array.NewData(arrow.BinaryTypes.LargeBinary, n, []*memory.Buffer{nil, offsets, data}, nil, 0, 0)
	defer d.Release()
	out := array.MakeFromData(d)
	defer out.Release()
	return array.NewRecordBatch(inflatedSchema, []arrow.Array{out}, int64(n)), nil
}

// slots is the memory-limited pipeline: 8 tasks load videos (10 units of time, then 5 frames one by
// one) and transform each frame (1 unit, a new frame); 4 consumers infer (1 unit). Everything sleeps;
// frames are real memory.
//
//	slots VIDEOS UNIT_MS FRAME_MIB FRAMES
func slots(args []string) (figures, error) {
	n := make([]int, 4)
	for i := range n {
		var err error
		if n[i], err = strconv.Atoi(args[i]); err != nil {
			return nil, err
		}
	}
	videos, unit, frame, frames := n[0], time.Duration(n[1])*time.Millisecond, n[2]<<20, n[3]
	const perVideo, cpuSlots, gpuSlots = 5, 8, 4
	wait := func(ctx context.Context, units int) error {
		select {
		case <-time.After(time.Duration(units) * unit):
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	schema := arrow.NewSchema([]arrow.Field{{Name: "frame", Type: arrow.BinaryTypes.LargeBinary}}, nil)
	source, err := memio.Generator(schema, func(ctx context.Context, video int) iter.Seq2[arrow.RecordBatch, error] {
		return func(yield func(arrow.RecordBatch, error) bool) {
			err := wait(ctx, 2*perVideo)
			for range perVideo {
				if err != nil {
					yield(nil, err)
					return
				}
				rec := frameOf(schema, ops.Allocator(ctx), frame, byte(video))
				more := yield(rec, nil)
				rec.Release()
				if !more {
					return
				}
			}
		}
	}, &memio.GeneratorOptions{Splits: videos})
	if err != nil {
		return nil, err
	}
	ds := dataset.Read(source).MapBatches(func(ctx context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
		if in.NumRows() == 0 {
			in.Retain()
			return in, nil
		}
		if err := wait(ctx, 1); err != nil {
			return nil, err
		}
		return frameOf(schema, ops.Allocator(ctx), frame, in.Column(0).(*array.LargeBinary).Value(0)[0]), nil
	}, &dataset.MapOptions{Schema: schema, BatchRows: 1})
	ctx := context.Background()
	work, ids := make(chan arrow.RecordBatch), make(chan int, 64)
	var gpus sync.WaitGroup
	for range gpuSlots {
		gpus.Go(func() {
			for rec := range work {
				if wait(ctx, 1) == nil {
					ids <- int(rec.Column(0).(*array.LargeBinary).Value(0)[0])
				}
				rec.Release()
			}
		})
	}
	f := figures{"ideal": float64(videos*15) / cpuSlots * unit.Seconds()}
	got := make(chan int)
	go func() {
		n := 0
		for range ids {
			if n++; n == 1 {
				watch.batch()
			}
		}
		got <- n
	}()
	var stats func() exec.Stats
	for rec, err := range ds.Records(ctx, &dataset.RunOptions{CPUs: cpuSlots, Unordered: true, Memory: int64(frames) * int64(frame),
		Observe: func(s func() exec.Stats) { stats = s }}) {
		if err != nil {
			return nil, err
		}
		rec.Retain()
		work <- rec
	}
	close(work)
	gpus.Wait()
	close(ids)
	f["rows"] = float64(<-got)
	f["peak_budget"] = float64(stats().PeakBytes)
	if want := videos * perVideo; int(f["rows"]) != want {
		return nil, fmt.Errorf("%v frames of %d", f["rows"], want)
	}
	return f, nil
}

// frameOf is a record of one frame, every page of it written.
func frameOf(schema *arrow.Schema, alloc memory.Allocator, size int, fill byte) arrow.RecordBatch {
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
	return array.NewRecordBatch(schema, []arrow.Array{col}, 1)
}

// resume stops a shuffled epoch at 90 % and goes on in place: in this process from the files anew,
// with the page cache warm as for the beginning. The next 8 batches must be the same, and on 3 ranks.
func resume(dir string) (figures, error) {
	ctx, f := context.Background(), figures{}
	open := func(ranks int, s *shard.State) ([]*shard.Iterator, error) {
		ds, types := table(dir) // looks everything up again
		o := shuffled(types)
		o.State = s
		return ds.Shards(ctx, ranks, o)
	}
	first := func(s *shard.State) (float64, error) {
		start := time.Now()
		its, err := open(1, s)
		if err != nil {
			return 0, err
		}
		b, err := its[0].Next(ctx)
		if err != nil {
			return 0, err
		}
		b.Release()
		d := time.Since(start).Seconds()
		return d, its[0].Close()
	}
	its, err := open(1, nil)
	if err != nil {
		return nil, err
	}
	var steps int
	for b, err := range its[0].All(ctx) {
		if err != nil {
			return nil, err
		}
		watch.batch()
		f["rows"] += float64(b.Real())
		steps++
	}
	if err := its[0].Close(); err != nil {
		return nil, err
	}
	f["epoch"] = time.Since(watch.began).Seconds()
	stop := steps * 9 / 10
	if its, err = open(1, nil); err != nil {
		return nil, err
	}
	begin := time.Now()
	for range stop {
		b, err := its[0].Next(ctx)
		if err != nil {
			return nil, err
		}
		b.Release()
	}
	f["to90"] = time.Since(begin).Seconds()
	state := its[0].State()
	text, err := json.Marshal(state)
	if err != nil {
		return nil, err
	}
	f["state_bytes"] = float64(len(text))
	var want []figures
	for range 8 {
		b, err := its[0].Next(ctx)
		if err == io.EOF {
			break
		}
		if err != nil {
			return nil, err
		}
		g := figures{}
		look(b, g)
		want = append(want, g)
		b.Release()
	}
	if err := its[0].Close(); err != nil {
		return nil, err
	}
	f["t0"], f["t90"] = math.Inf(1), math.Inf(1)
	for range 3 {
		t0, err := first(nil)
		if err != nil {
			return nil, err
		}
		t90, err := first(&state)
		if err != nil {
			return nil, err
		}
		f["t0"], f["t90"] = min(f["t0"], t0), min(f["t90"], t90)
	}
	for _, ranks := range []int{1, 3} {
		its, err := open(ranks, &state)
		if err != nil {
			return nil, err
		}
		for step, w := range want {
			g := figures{}
			for _, it := range its {
				b, err := it.Next(ctx)
				if err != nil {
					return nil, err
				}
				look(b, g)
				b.Release()
			}
			if g["rows"] != w["rows"] || math.Abs(g["sum"]-w["sum"]) > 1e-6*math.Abs(w["sum"]) {
				return nil, fmt.Errorf("%d steps after the restore on %d ranks: another batch", step, ranks)
			}
		}
		for _, it := range its {
			if err := it.Close(); err != nil {
				return nil, err
			}
		}
	}
	f["exact"], f["other_ranks"], f["left"] = 1, 1, float64(steps-stop)
	return f, nil
}

// handoff gives batches of a size to another process through the memory that a feed shares with it. The producer is a child
// process of the consumer, which counts and measures; the consumer in Python (py/handoff.py) has the same one.
//
//	handoff BYTES BATCHES; of the child: handoff serve SOCKET BYTES BATCHES
func handoff(args []string) (figures, error) {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "peers")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "feed.sock")
	child, err := spawn(append([]string{"case", "handoff", "serve", socket}, args...)...)
	if err != nil {
		return nil, err
	}
	c, err := feed.Dial(ctx, socket, 0, &feed.DialOptions{Wait: 30 * time.Second})
	if err != nil {
		return nil, err
	}
	f := figures{}
	var began time.Time
	for b, err := range c.All(ctx) {
		if err != nil {
			return nil, err
		}
		watch.batch()
		if began.IsZero() {
			began = time.Now() // the first batch is the start of the producer
		} else {
			f["steady_bytes"] += float64(len(b.Buffer()))
		}
		f["bytes"] += float64(len(b.Buffer()))
		f["batches"]++
		for i := 0; i < len(b.Buffer()); i += 4000 { // every page is looked at
			f["sum"] += float64(b.Buffer()[i])
		}
	}
	f["steady"] = time.Since(began).Seconds()
	if err := c.Close(); err != nil {
		return nil, err
	}
	return f, child.Wait()
}

func serve(ctx context.Context, args []string) error {
	size, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	n, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	const width = 1024 // float32 of a row
	rows := max(1, size/(4*width))
	schema := arrow.NewSchema([]arrow.Field{{Name: "x", Type: arrow.FixedSizeListOfNonNullable(width, arrow.PrimitiveTypes.Float32)}}, nil)
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	for i := range rows {
		l := b.Field(0).(*array.FixedSizeListBuilder)
		l.Append(true)
		for j := range width {
			l.ValueBuilder().(*array.Float32Builder).Append(float32(i*width + j))
		}
	}
	rec := b.NewRecordBatch()
	b.Release()
	defer rec.Release()
	recs := make([]arrow.RecordBatch, n)
	for i := range recs {
		recs[i] = rec
	}
	it, err := dataset.FromRecords(schema, recs...).Iterator(ctx, &dataset.ShardOptions{RunOptions: dataset.RunOptions{BatchRows: rows},
		Options: shard.Options{GlobalBatch: rows, Epochs: 1, Form: shard.Form{Tensors: true}}})
	if err != nil {
		return err
	}
	l, err := feed.Listen(args[0])
	if err != nil {
		return err
	}
	defer l.Close()
	return feed.Serve(ctx, l, []*shard.Iterator{it}, nil)
}

// tenRows reads the first batch of a file: what a process takes from its start to the first batch.
func tenRows(path string) (figures, error) {
	rec, err := dataset.ReadParquet(path).Take(context.Background(), 10, nil)
	if err != nil {
		return nil, err
	}
	watch.batch()
	defer rec.Release()
	return figures{"rows": float64(rec.NumRows()), "goroutines": float64(runtime.NumGoroutine())}, nil
}
