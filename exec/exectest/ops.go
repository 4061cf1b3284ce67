package exectest

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
)

// Op is an operator over tables of [Schema] made of one function per batch.
// Order and rows kept as its constructor says.
type Op struct {
	Label   string
	Rows    bool // NeedsRows
	Process func(ctx context.Context, env *exec.Env, in *exec.Block, emit exec.Emit) error
	Out     *arrow.Schema // nil: Schema
	Workers int           // Parallel
	OnClose func() error
	Open    atomic.Int64 // tasks not closed
}

func (o *Op) Name() string { return o.Label }
func (o *Op) Step() string { return "step (" + o.Label + ")" }
func (o *Op) Schema() *arrow.Schema {
	if o.Out != nil {
		return o.Out
	}
	return Schema
}
func (o *Op) NeedsRows() bool { return o.Rows }
func (o *Op) Tasks() int      { return o.Workers }
func (o *Op) Close() error {
	if o.OnClose != nil {
		return o.OnClose()
	}
	return nil
}

func (o *Op) NewTask(env *exec.Env) (exec.Task, error) {
	o.Open.Add(1)
	return &opTask{op: o, env: env}, nil
}

type opTask struct {
	op     *Op
	env    *exec.Env
	closed bool
}

func (t *opTask) Process(ctx context.Context, in *exec.Block, emit exec.Emit) error {
	return t.op.Process(ctx, t.env, in, emit)
}

func (t *opTask) Close() error {
	if !t.closed {
		t.closed = true
		t.op.Open.Add(-1)
	}
	return nil
}

// same emits in itself again.
func same(in *exec.Block, emit exec.Emit) error {
	in.Batch.Retain()
	return emit(in.With(in.Batch, in.Rows, in.Ords))
}

// Pass emits what it is given.
func Pass() *Op {
	return &Op{Label: "pass", Process: func(_ context.Context, _ *exec.Env, in *exec.Block, emit exec.Emit) error {
		return same(in, emit)
	}}
}

// Count counts batches and rows on their way.
func Count(batches, rows *atomic.Int64) *Op {
	return &Op{Label: "count", Process: func(_ context.Context, _ *exec.Env, in *exec.Block, emit exec.Emit) error {
		batches.Add(1)
		rows.Add(in.Batch.NumRows())
		return same(in, emit)
	}}
}

// Ids returns the id column.
func Ids(b arrow.RecordBatch) []int64 { return b.Column(0).(*array.Int64).Int64Values() }

// gather emits the rows of in named by idx, ascending, repeats allowed.
func gather(env *exec.Env, in *exec.Block, idx []int, track bool, emit exec.Emit) error {
	ids := array.NewInt64Builder(env.Alloc)
	defer ids.Release()
	data := array.NewBinaryBuilder(env.Alloc, arrow.BinaryTypes.Binary)
	defer data.Release()
	src, d := Ids(in.Batch), in.Batch.Column(1).(*array.Binary)
	var rows []int64
	var ords []uint64
	rep := 0
	for k, i := range idx {
		if k > 0 && idx[k-1] == i {
			rep++
		} else {
			rep = 0
		}
		ids.Append(src[i])
		data.Append(d.Value(i))
		if track {
			rows = append(rows, in.RowAt(i))
			o := uint64(0)
			if in.Ords != nil {
				o = in.Ords[i]
			}
			ords = append(ords, exec.NextOrd(o, rep))
		}
	}
	cols := []arrow.Array{ids.NewArray(), data.NewArray()}
	rec := array.NewRecordBatch(Schema, cols, int64(len(idx)))
	cols[0].Release()
	cols[1].Release()
	if track && rows == nil {
		rows = []int64{}
	}
	return emit(in.With(rec, rows, ords))
}

// Filter keeps the rows whose id keep is true of.
func Filter(keep func(id int64) bool) *Op {
	return &Op{Label: "filter", Process: func(_ context.Context, env *exec.Env, in *exec.Block, emit exec.Emit) error {
		var idx []int
		for i, id := range Ids(in.Batch) {
			if keep(id) {
				idx = append(idx, i)
			}
		}
		return gather(env, in, idx, env.TrackRows, emit)
	}}
}

// Repeat makes id%n rows of each row.
func Repeat(n int64) *Op {
	return &Op{Label: "repeat", Process: func(_ context.Context, env *exec.Env, in *exec.Block, emit exec.Emit) error {
		var idx []int
		for i, id := range Ids(in.Batch) {
			for range id % n {
				idx = append(idx, i)
			}
		}
		return gather(env, in, idx, env.TrackRows, emit)
	}}
}

// Halves emits its input in two blocks.
func Halves() *Op {
	return &Op{Label: "halves", Process: func(_ context.Context, _ *exec.Env, in *exec.Block, emit exec.Emit) error {
		n := int(in.Batch.NumRows())
		if n < 2 {
			return same(in, emit)
		}
		if err := emit(in.Slice(0, n/2)); err != nil {
			return err
		}
		return emit(in.Slice(n/2, n))
	}}
}

// Inflate replaces data by something factor times as long, allocated from the
// budget or, if heap, from the Go heap as a careless function would.
func Inflate(factor int, heap bool) *Op {
	return &Op{Label: fmt.Sprintf("inflate %d", factor), Process: func(_ context.Context, env *exec.Env, in *exec.Block, emit exec.Emit) error {
		alloc := env.Alloc
		if heap {
			alloc = memory.NewGoAllocator()
		}
		d := in.Batch.Column(1).(*array.Binary)
		total := 0
		for i := range d.Len() {
			total += d.ValueLen(i) * factor
		}
		col := binary(alloc, d.Len(), total, func(i int, b []byte) []byte {
			for range factor {
				b = append(b, d.Value(i)...)
			}
			return b
		})
		rec := array.NewRecordBatch(Schema, []arrow.Array{in.Batch.Column(0), col}, in.Batch.NumRows())
		col.Release()
		return emit(in.With(rec, in.Rows, in.Ords))
	}}
}

// FailRows fails a batch that holds a row for which bad is true, with code.
func FailRows(code fault.Code, bad func(id int64) bool) *Op {
	return &Op{Label: "fail rows", Process: func(_ context.Context, _ *exec.Env, in *exec.Block, emit exec.Emit) error {
		for _, id := range Ids(in.Batch) {
			if bad(id) {
				return fault.New(code, "bad id %d", id)
			}
		}
		return same(in, emit)
	}}
}

// PanicRows panics at a row for which bad is true, after having emitted the rows before it.
func PanicRows(bad func(id int64) bool) *Op {
	return &Op{Label: "panic", Process: func(_ context.Context, _ *exec.Env, in *exec.Block, emit exec.Emit) error {
		for i, id := range Ids(in.Batch) {
			if !bad(id) {
				continue
			}
			if i > 0 {
				if err := emit(in.Slice(0, i)); err != nil {
					return err
				}
			}
			panic(fmt.Sprintf("id %d", id))
		}
		return same(in, emit)
	}}
}

// Flaky fails with code, every n-th call, for as long as times lasts.
func Flaky(code fault.Code, n int64, times *atomic.Int64) *Op {
	var calls atomic.Int64
	return &Op{Label: "flaky", Process: func(_ context.Context, _ *exec.Env, in *exec.Block, emit exec.Emit) error {
		if calls.Add(1)%n == 0 && times.Add(-1) >= 0 {
			return fault.New(code, "flaky")
		}
		return same(in, emit)
	}}
}

// Block waits at a row for which at is true until its context ends, or, if
// stubborn is not nil, until that is closed, whatever its context says.
func Block(at func(id int64) bool, stubborn <-chan struct{}) *Op {
	return &Op{Label: "block", Process: func(ctx context.Context, _ *exec.Env, in *exec.Block, emit exec.Emit) error {
		for _, id := range Ids(in.Batch) {
			if at(id) {
				if stubborn != nil {
					<-stubborn
				} else {
					<-ctx.Done()
					return context.Cause(ctx)
				}
			}
		}
		return same(in, emit)
	}}
}

// Slow takes d per batch.
func Slow(d time.Duration) *Op {
	return &Op{Label: "slow", Process: func(ctx context.Context, _ *exec.Env, in *exec.Block, emit exec.Emit) error {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		return same(in, emit)
	}}
}

// Barrier lets batches pass only when n tasks are in it at once.
func Barrier(n int) *Op {
	in := make(chan struct{}, n)
	open := make(chan struct{})
	return &Op{Label: "barrier", Workers: n, Process: func(ctx context.Context, _ *exec.Env, b *exec.Block, emit exec.Emit) error {
		select {
		case in <- struct{}{}:
			if len(in) == n {
				select {
				case <-open:
				default:
					close(open)
				}
			}
		case <-open:
		}
		select {
		case <-open:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		return same(b, emit)
	}}
}
