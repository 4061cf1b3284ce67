package exec

import (
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
)

// Origin names the split that rows come from.
type Origin struct {
	Source int    // ordinal of the Read in the plan, through all sources
	Split  string // driver.Split.ID
	File   string // for messages; "" where there is no file
	Index  int64  // row group, frame or range in the file
	Task   int    // ordinal of the split in its scan, or of the slice of one that the table calls so
}

// Block is a run of rows of one split on their way through a chain. Its maker
// owns one reference to Batch; see [Emit] for hand-over.
type Block struct {
	Batch  arrow.RecordBatch
	Origin Origin
	// Row is the position in the split of the first source row that this block
	// covers, and Span how many source rows it covers: also those that were
	// filtered out. Rows that an explode made share the row of their source.
	Row, Span int64
	// Rows, if not nil, gives the split position of each row of Batch; nil means
	// they are Row, Row+1, ... Operators that drop or repeat rows set it when
	// Env.TrackRows, and may leave it nil otherwise.
	Rows []int64
	// Ords tells rows of equal position apart after an explode or flat map; nil means all 0.
	// Output j of a row with ordinal o has the ordinal NextOrd(o, j). Set under the same condition as Rows.
	Ords []uint64
	// Skipped are rows that an on_error policy left out of this block's span.
	Skipped []Skipped
	// End marks the last block of a task, which has no rows; see Options.Spans.
	End bool

	free func() // gives back what was charged for memory outside the pool; may be nil
}

// Skipped is a row that was left out, and why.
type Skipped struct {
	Err    error // *fault.Error: code, file, row group, row, column, step
	Origin Origin
	Row    int64
	Record arrow.RecordBatch // the row as the step saw it, one row; may be nil; owned by the Block
}

// By says which step left the row out: branches of a union have steps of the same name, but other sources.
func (s *Skipped) By() string { return ByStep(s.Origin.Source, fault.PlaceOf(s.Err).Step) }

// ByStep is [Skipped.By] of rows of a source and a step.
func ByStep(source int, step string) string { return strconv.Itoa(source) + " " + step }

// RowAt returns the split position of row i.
func (b *Block) RowAt(i int) int64 {
	if b.Rows != nil {
		return b.Rows[i]
	}
	return b.Row + int64(i)
}

// Release gives up the block's reference and what was charged for it. Call it
// once; b must not be used afterwards.
func (b *Block) Release() {
	if b.Batch != nil {
		b.Batch.Release()
		b.Batch = nil
	}
	for _, s := range b.Skipped {
		if s.Record != nil {
			s.Record.Release()
		}
	}
	b.Skipped = nil
	if b.free != nil {
		b.free()
		b.free = nil
	}
}

// OnRelease adds a function for Release to call, after the batch was released.
// For runners.
func (b *Block) OnRelease(f func()) {
	if g := b.free; g != nil {
		b.free = func() { g(); f() }
		return
	}
	b.free = f
}

// Lends reports whether Release gives back more than the batch.
func (b *Block) Lends() bool { return b.free != nil }

// Slice returns rows [i, j) as a block with a reference of its own. Its span
// begins where the rows before it end, so that the spans of successive slices
// follow each other and together are that of b. Skipped stays with b.
func (b *Block) Slice(i, j int) *Block {
	n := int(b.Batch.NumRows())
	from, to := b.Row, b.Row+b.Span
	switch {
	case i == n && n > 0:
		from = to // no rows: what is behind the last one
	case i > 0:
		from = b.RowAt(i)
	}
	if j < n {
		to = b.RowAt(j)
	}
	s := &Block{Batch: b.Batch.NewSlice(int64(i), int64(j)), Origin: b.Origin, Row: from, Span: to - from}
	if b.Rows != nil {
		s.Rows = b.Rows[i:j]
	}
	if b.Ords != nil {
		s.Ords = b.Ords[i:j]
	}
	return s
}

// NextOrd is the ordinal of the j-th row that a row of ordinal o becomes.
func NextOrd(o uint64, j int) uint64 { return (o+1)*0x9E3779B97F4A7C15 + uint64(j) }

// With returns a block of the same origin and span around batch, whose reference
// it takes over; rows and ords are taken as given. b keeps its own reference.
func (b *Block) With(batch arrow.RecordBatch, rows []int64, ords []uint64) *Block {
	return &Block{Batch: batch, Origin: b.Origin, Row: b.Row, Span: b.Span, Rows: rows, Ords: ords}
}
