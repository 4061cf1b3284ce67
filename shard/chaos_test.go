package shard_test

import (
	"context"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/ops"
)

// chaos is what goes wrong with reads, switched on for some runs of a graph.
type chaos struct {
	mu      sync.Mutex
	rng     *rand.Rand // nil: nothing goes wrong
	failed  map[string]bool
	faults  int
	inSteps int // of those since it was switched on
}

func (c *chaos) on(seed uint64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.inSteps = 0
	c.rng, c.failed = rand.New(rand.NewPCG(seed, 9)), map[string]bool{}
}

func (c *chaos) off() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.rng = nil
}

// wild passes a source through a chaos.
type wild struct {
	driver.Source
	c *chaos
}

func (w wild) Resolve(ctx context.Context, o *driver.ResolveOptions) (driver.Table, error) {
	t, err := w.Source.Resolve(ctx, o)
	if err != nil {
		return nil, err
	}
	return &wildTable{t, w.c}, nil
}

type wildTable struct {
	driver.Table
	c *chaos
}

func (t *wildTable) Offsets(i int) bool {
	o, ok := t.Table.(driver.Offsetter)
	return ok && o.Offsets(i)
}

func (t *wildTable) Size(i int, cols []string) (fetch, decoded int64) {
	if s, ok := t.Table.(driver.Sizer); ok {
		return s.Size(i, cols)
	}
	return t.Splits()[i].Bytes, t.Splits()[i].Bytes
}

func (t *wildTable) Keep(ctx context.Context, p driver.Predicate) ([]bool, error) {
	if k, ok := t.Table.(driver.Pruner); ok {
		return k.Keep(ctx, p)
	}
	keep := make([]bool, len(t.Splits()))
	for i := range keep {
		keep[i] = true
	}
	return keep, nil
}

func (t *wildTable) Open(ctx context.Context, i int, o *driver.ScanOptions) (driver.Reader, error) {
	r, err := t.Table.Open(ctx, i, o)
	if err != nil {
		return nil, err
	}
	c := t.c
	c.mu.Lock()
	defer c.mu.Unlock()
	w := &wildReader{Reader: r, c: c, fail: -1}
	if c.rng != nil {
		w.slow = c.rng.IntN(3) * c.rng.IntN(40)
		if id := t.Splits()[i].ID; !c.failed[id] && c.rng.IntN(3) == 0 {
			c.failed[id] = true
			w.fail = c.rng.IntN(4)
		}
	}
	return w, nil
}

type wildReader struct {
	driver.Reader
	c    *chaos
	slow int // others go first so often
	fail int // batches until a failure
	err  error
}

func (r *wildReader) Next(ctx context.Context) (driver.Batch, error) {
	if r.err != nil {
		return driver.Batch{}, r.err
	}
	for range r.slow {
		runtime.Gosched()
	}
	if r.fail == 0 {
		r.c.mu.Lock()
		r.c.faults++
		r.c.mu.Unlock()
		r.err = fault.New(fault.Unavailable, "injected")
		return driver.Batch{}, r.err
	}
	r.fail--
	return r.Reader.Next(ctx)
}

// Registered functions of the graphs.
var (
	copies = ops.RegisterFlatMap("order_test/copies", "1", func([]byte) (ops.FlatMapFunc, error) { return copyRows, nil })
	echo   = ops.RegisterMap("order_test/echo", "1", func([]byte) (ops.MapFunc, error) { return echoRows, nil })
	masks  = ops.RegisterMap("order_test/masks", "1", func(kind []byte) (ops.MapFunc, error) { return maskRows(string(kind)), nil })
	faulty = ops.RegisterMap("order_test/faulty", "1", func(graph []byte) (ops.MapFunc, error) { return failRows(string(graph)), nil })
)

// chaoses are those of graphs, by seed: a registered function knows no more of its graph.
var chaoses sync.Map

// failRows passes rows on, and fails at some of them, once each, while the graph's chaos is on.
func failRows(graph string) ops.MapFunc {
	return func(ctx context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
		x, _ := chaoses.Load(graph)
		c := x.(*chaos)
		c.mu.Lock()
		defer c.mu.Unlock()
		for i := range int(in.NumRows()) {
			if c.rng == nil || c.inSteps == 2 { // with a read that fails as often as a task is tried again
				break
			}
			if k := keyOf(in, i); !c.failed[k] && c.rng.IntN(12) == 0 {
				c.failed[k] = true
				c.inSteps++
				c.faults++
				return nil, fault.New(fault.Unavailable, "injected at %s", k)
			}
		}
		in.Retain()
		return in, nil
	}
}

// maskOf is the mask of a token.
func maskOf(kind string, token int32) uint8 {
	if token%3 == 0 {
		return 0
	}
	if kind == "bool" {
		return 1
	}
	return uint8(token % 3)
}

// maskRows adds a column m of lists as long as those of t, of bool or uint8.
func maskRows(kind string) ops.MapFunc {
	return func(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
		typ := arrow.DataType(arrow.PrimitiveTypes.Uint8)
		if kind == "bool" {
			typ = arrow.FixedWidthTypes.Boolean
		}
		b := array.NewListBuilder(memory.DefaultAllocator, typ)
		defer b.Release()
		l := in.Column(in.Schema().FieldIndices("t")[0]).(*array.List)
		for i := range l.Len() {
			b.Append(true)
			from, to := l.ValueOffsets(i)
			for _, token := range l.ListValues().(*array.Int32).Int32Values()[from:to] {
				switch v := b.ValueBuilder().(type) {
				case *array.BooleanBuilder:
					v.Append(maskOf(kind, token) == 1)
				case *array.Uint8Builder:
					v.Append(maskOf(kind, token))
				}
			}
		}
		m := b.NewArray()
		defer m.Release()
		schema := arrow.NewSchema(append(in.Schema().Fields(), arrow.Field{Name: "m", Type: m.DataType()}), nil)
		return array.NewRecordBatch(schema, append(slices.Clone(in.Columns()), m), in.NumRows()), nil
	}
}

func echoRows(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
	in.Retain()
	return in, nil
}

// copyRows gives each row 0 to 3 times, by its key.
func copyRows(ctx context.Context, in arrow.RecordBatch) (arrow.RecordBatch, []int32, error) {
	var parents []int32
	var runs []gather.Run
	for i := range int(in.NumRows()) {
		h := uint64(0)
		for _, b := range []byte(keyOf(in, i)) {
			h = mix64(h + uint64(b))
		}
		for range h % 4 {
			parents = append(parents, int32(i))
			runs = append(runs, gather.Run{Row: int32(i), N: 1})
		}
	}
	out, err := gather.Record(memory.DefaultAllocator, in.Schema(), []arrow.RecordBatch{in}, runs)
	return out, parents, err
}
