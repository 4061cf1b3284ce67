// Package shard turns what a plan yields into batches for training loops, in an
// order that depends on nothing but the plan, the data, the seed and the epoch.
//
// An [Iterator] gives one rank its batches, step by step, and the [State] to go on
// from; docs/order.md explains the order. A [Collator] makes batches out of rows of
// records: Arrow records or named tensors, see [Form]. An [Assembler] cuts a plain
// stream of blocks into batches with it. A [Batch] knows which samples it holds, and
// its [Batch.Digest] is the same wherever and however often it is made.
package shard

import (
	"sync/atomic"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Batch is a number of rows in the form that was asked for. Whoever got it from
// an iterator's Next owns one reference; see Release. The contents are read
// only. Safe for concurrent use.
type Batch struct {
	rows    int
	real    int               // rows that are no pads
	record  arrow.RecordBatch // Arrow form; nil in tensor form
	tensors []Tensor          // tensor form
	buf     *memory.Buffer    // what the tensors lie in
	refs    atomic.Int32

	// Set by the iterator that gives it out.
	epoch   uint64
	step    int64
	rank    int
	samples []int64
	lineage []Lineage
}

// Tensor is one column, or a part of one, as a contiguous, row-major array, 64-byte
// aligned. All tensors of a batch lie in one buffer.
type Tensor struct {
	Name  string
	DType DType
	Shape []int // rows first
	Data  []byte
}

// Rows is the number of rows, padded ones included.
func (b *Batch) Rows() int { return b.rows }

// Real is the number of rows that are no pads; they come first.
func (b *Batch) Real() int { return b.real }

// Epoch that the batch belongs to.
func (b *Batch) Epoch() uint64 { return b.epoch }

// Step of the epoch, from 0: the same for the batches of all ranks that belong together.
func (b *Batch) Step() int64 { return b.step }

// Rank that the batch is for.
func (b *Batch) Rank() int { return b.rank }

// Samples are the numbers n of the real rows in the epoch's order, borrowed until
// Release; nil for a batch that is not of an ordered epoch.
func (b *Batch) Samples() []int64 { return b.samples }

// Lineage says where each real row comes from; nil unless [Options.Lineage] is set.
func (b *Batch) Lineage() []Lineage { return b.lineage }

// Record is the batch in Arrow form, borrowed until Release; nil if the batch
// was asked for as tensors.
func (b *Batch) Record() arrow.RecordBatch { return b.record }

// Tensors are all columns in tensor form, borrowed until Release; nil if the
// batch was asked for in Arrow form.
func (b *Batch) Tensors() []Tensor { return b.tensors }

// Tensor finds a column by name.
func (b *Batch) Tensor(name string) (Tensor, bool) {
	for _, t := range b.tensors {
		if t.Name == name {
			return t, true
		}
	}
	return Tensor{}, false
}

// Retain adds a reference.
func (b *Batch) Retain() { b.refs.Add(1) }

// Release gives up a reference; with the last one the memory goes back, and
// nothing of the batch may be used any more.
func (b *Batch) Release() {
	switch n := b.refs.Add(-1); {
	case n > 0:
		return
	case n < 0:
		panic("shard: batch released too often")
	}
	if b.record != nil {
		b.record.Release()
	}
	if b.buf != nil {
		b.buf.Release()
	}
	b.record, b.tensors, b.buf, b.samples = nil, nil, nil, nil
}

// Values views a tensor's data as a slice of T, which must have the size of the
// dtype: Values[float32](t). It panics otherwise.
func Values[T any](t Tensor) []T {
	var z T
	if int(unsafe.Sizeof(z)) != t.DType.Size() {
		panic("shard: element size does not match dtype " + t.DType.String())
	}
	if len(t.Data) == 0 {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&t.Data[0])), len(t.Data)/t.DType.Size())
}
