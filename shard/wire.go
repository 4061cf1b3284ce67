package shard

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Parts are what a batch is made of that came from another process.
type Parts struct {
	Rows, Real int
	Epoch      uint64
	Step       int64
	Rank       int
	Samples    []int64
	Lineage    []Lineage
	// Arrow form, or the tensors and the buffer that they lie in.
	Record  arrow.RecordBatch
	Tensors []Tensor
	Buffer  *memory.Buffer
}

// NewBatch makes a batch, which the caller owns. It takes over the references to the
// record and the buffer, and all slices. Nothing is checked.
func NewBatch(p Parts) *Batch {
	b := &Batch{rows: p.Rows, real: p.Real, epoch: p.Epoch, step: p.Step, rank: p.Rank, samples: p.Samples, lineage: p.Lineage,
		record: p.Record, tensors: p.Tensors, buf: p.Buffer}
	b.refs.Store(1)
	return b
}

// Buffer is what all tensors lie in, in their order, each at the next multiple of 64
// bytes; borrowed until Release. nil in Arrow form.
func (b *Batch) Buffer() []byte {
	if b.buf == nil {
		return nil
	}
	return b.buf.Bytes()
}

// Allocator is what the batches of the iterator's job are allocated from: memory that its budget
// pays. It may be used until the iterator is closed, and to free at any time.
func (it *Iterator) Allocator() memory.Allocator { return it.j.memory }

// SetMemory makes the tensors of batches that are begun from now on lie in memory of alloc, which the caller
// pays for ([Iterator.Charge]); nil: in the job's again. alloc may panic with a *fault.Error, which fails the job. It must be
// safe for concurrent use, and outlive the batches.
func (it *Iterator) SetMemory(alloc memory.Allocator) {
	it.j.mu.Lock()
	defer it.j.mu.Unlock()
	it.memory = alloc
}

// Charge takes n bytes of the budget of the iterator's job for memory that is not the Allocator's, whether they
// are free or not; release gives them back, at any time.
func (it *Iterator) Charge(n int64) (release func()) { return it.j.memory.Borrow(n) }

// Budget is the limit of that budget, in bytes.
func (it *Iterator) Budget() int64 { return it.j.budget.Limit() }
