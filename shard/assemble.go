package shard

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
)

// AssembleOptions say what batches look like.
type AssembleOptions struct {
	Rows int // rows per batch
	Form Form
}

// Assembler cuts a stream of blocks into batches, in order. Not safe for
// concurrent use.
type Assembler struct {
	rows    int
	collate *Collator

	blocks []*exec.Block // waiting, in order
	skip   int           // rows of blocks[0] that were given out
	have   int           // rows waiting
	recs   []arrow.RecordBatch
	runs   []gather.Run
}

// NewAssembler checks that the options fit the schema. Batches take their
// memory from alloc.
func NewAssembler(schema *arrow.Schema, o AssembleOptions, alloc memory.Allocator) (*Assembler, error) {
	if o.Rows <= 0 {
		return nil, fault.New(fault.Invalid, "rows per batch must be positive, not %d", o.Rows)
	}
	c, err := NewCollator(schema, o.Form, alloc)
	if err != nil {
		return nil, err
	}
	return &Assembler{rows: o.Rows, collate: c}, nil
}

// Add takes over a block.
func (a *Assembler) Add(b *exec.Block) {
	n := int(b.Batch.NumRows())
	if n == 0 {
		b.Release()
		return
	}
	a.blocks = append(a.blocks, b)
	a.have += n
}

// Next returns a full batch, or with last also one that is not; nil if there is
// none. The caller owns it.
func (a *Assembler) Next(last bool) (*Batch, error) {
	n := a.rows
	if a.have < n {
		if !last || a.have == 0 {
			return nil, nil
		}
		n = a.have
	}
	defer func() { clear(a.recs) }()
	a.recs, a.runs = a.recs[:0], a.runs[:0]
	skip, left := a.skip, n
	for i := 0; left > 0; i++ {
		rec := a.blocks[i].Batch
		k := min(left, int(rec.NumRows())-skip)
		a.recs = append(a.recs, rec)
		a.runs = append(a.runs, gather.Run{Rec: int32(i), Row: int32(skip), N: int32(k)})
		left -= k
		skip = 0
	}
	b, err := a.collate.Batch(a.recs, a.runs, BatchShape{Rows: n})
	if err != nil {
		return nil, err
	}
	a.drop(n)
	return b, nil
}

// Close releases what waits.
func (a *Assembler) Close() {
	a.drop(a.have)
}

// drop gives up the first n rows.
func (a *Assembler) drop(n int) {
	a.have -= n
	for n > 0 {
		left := int(a.blocks[0].Batch.NumRows()) - a.skip
		if n < left {
			a.skip += n
			return
		}
		n -= left
		a.blocks[0].Release()
		a.blocks[0] = nil
		a.blocks = a.blocks[1:]
		a.skip = 0
	}
}
