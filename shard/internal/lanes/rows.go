package lanes

import (
	"math/bits"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/shard/internal/order"
	"github.com/penstock-data/penstock/shard/internal/pack"
)

// Rec is samples with where they come from: rows of a record, rows packed by Config.Layout, or bins of documents, which are
// put together where they are wanted. It has one of the three.
type Rec struct {
	Batch  arrow.RecordBatch
	Packed []byte
	Bins   *pack.Packed
	Origin func(row int) Origin // of each row; may be nil without Config.Lineage
	Places int64                // bytes of the Go heap that are kept to say where rows come from

	Slot  int32  // scratch of whoever collects records for a batch
	Stamp uint64 // of the batch that Slot is of

	release func()
	held    int64 // bytes of Bins, and of the documents that they borrow
}

// Origin is where a sample comes from: a row of a split, or, for a packed one, the rows
// whose tokens it holds.
type Origin struct {
	Source, Split, File string
	RowGroup, Row       int64
	Parts               []Origin // of a packed sample, in order
}

// Rows are the samples of a window, in the order of its permutation.
type Rows struct {
	Recs []*Rec
	// Runs name the samples, as rows of Recs.
	Runs []gather.Run
}

// Count is the number of samples.
func (r *Rows) Count() int64 { return int64(gather.Count(r.Runs)) }

// Release gives up all records.
func (r *Rows) Release() {
	for _, rec := range r.Recs {
		rec.release()
	}
	r.Recs, r.Runs = nil, nil
}

// NewRec takes over one reference to batch.
func NewRec(batch arrow.RecordBatch, origin func(row int) Origin) *Rec {
	return &Rec{Batch: batch, Origin: origin, release: batch.Release}
}

// NewBins takes over bins, unless it panics as memory is out, and the records of docs, which they are made of.
func NewBins(bins *pack.Packed, docs *Rows, origin func(row int) Origin) *Rec {
	r := &Rec{Bins: bins, Origin: origin, release: bins.Release}
	if bins.Settle() {
		docs.Release()
	} else {
		recs := docs.Recs
		for _, d := range recs {
			r.held += d.size()
			r.Places += d.Places
		}
		r.release = func() {
			bins.Release()
			(&Rows{Recs: recs}).Release()
		}
		docs.Recs, docs.Runs = nil, nil
	}
	r.held += bins.Size()
	return r
}

// newPacked takes over rows that were packed.
func newPacked(buf *memory.Buffer, origin func(row int) Origin) *Rec {
	return &Rec{Packed: buf.Bytes(), Origin: origin, release: buf.Release}
}

// size is the bytes that it holds.
func (r *Rec) size() int64 {
	if r.Batch == nil {
		return int64(len(r.Packed)) + r.held
	}
	return exec.SizeOf(r.Batch)
}

// blockRec takes over b.
func blockRec(source string, b *exec.Block) *Rec {
	return &Rec{Batch: b.Batch, release: b.Release, Places: int64(len(b.Rows)) * 8, Origin: func(row int) Origin {
		o := b.Origin
		return Origin{Source: source, Split: o.Split, File: o.File, RowGroup: o.Index, Row: b.RowAt(row)}
	}}
}

// Window is a published window of which samples are left to give.
type Window struct {
	Lane   int
	Window int64
	Rows

	first []int64     // Runs[i] begins with sample first[i]; nil where each run is one sample
	left  int64       // samples not yet taken
	size  int64       // bytes in memory, places included
	spill *spill      // where the samples are if they did not fit; nil: in memory
	paid  *exec.Lease // for the places of all records; nil: there are none
}

// places is what its records keep of the Go heap to say where rows come from.
func (w *Window) places() (n int64) {
	for _, r := range w.Recs {
		n += r.Places
	}
	return n
}

// measure finds the size of a window in memory, and has places paid for.
func (w *Window) measure(b *exec.Budget, who string) {
	n := w.places()
	w.size = n
	for _, r := range w.Recs {
		w.size += r.size()
	}
	if n > 0 {
		w.paid = b.Charge(who, n)
	}
}

// uniform reports whether all rows are packed, or none: a window of which some could not be has rows that
// batches refuse, and is not worth a place on disk.
func (w *Window) uniform() bool {
	for _, r := range w.Recs {
		if (r.Batch == nil) != (w.Recs[0].Batch == nil) {
			return false
		}
	}
	return true
}

// free gives everything up.
func (w *Window) free() {
	w.Release()
	if w.spill != nil {
		w.spill.close()
		w.spill = nil
	}
	if w.paid != nil {
		w.paid.Release()
		w.paid = nil
	}
}

// At names the record and row of sample i; the n samples from it on are rows from there on. They are to
// be taken, in the end.
func (w *Window) At(i int64) (rec *Rec, row, n int32, err error) {
	if s := w.spill; s != nil {
		return s.at(i)
	}
	k, row, n := w.place(i)
	return w.Recs[k], row, n, nil
}

// place finds sample i among the runs.
func (w *Window) place(i int64) (rec, row, n int32) {
	if len(w.Runs) == 1 {
		r := w.Runs[0]
		return r.Rec, r.Row + int32(i), r.N - int32(i)
	}
	if w.first == nil {
		r := w.Runs[i]
		return r.Rec, r.Row, 1
	}
	lo, hi := 0, len(w.first)
	for hi-lo > 1 {
		if m := (lo + hi) / 2; w.first[m] <= i {
			lo = m
		} else {
			hi = m
		}
	}
	r := w.Runs[lo]
	off := int32(i - w.first[lo])
	return r.Rec, r.Row + off, r.N - off
}

// index prepares place.
func (w *Window) index() {
	single := true
	for _, r := range w.Runs {
		single = single && r.N == 1
	}
	if single {
		return
	}
	w.first = make([]int64, len(w.Runs))
	var n int64
	for i, r := range w.Runs {
		w.first[i] = n
		n += int64(r.N)
	}
}

// permuter puts the rows of a window in the order of its permutation. Its memory is used again.
type permuter struct {
	perm, rank []int32 // rank is the place of a source row
	count      []int32
	out        []gather.Run
	left       []uint64 // ranks of source rows that have a row, by bits
	before     []int32  // how many come before each word of left
}

// begin makes the permutation of n source rows by key.
func (p *permuter) begin(n int, key [32]byte) {
	p.perm, p.rank = grow(p.perm, n), grow(p.rank, n)
	order.Perm(key, p.perm)
	for k, s := range p.perm {
		p.rank[s] = int32(k)
	}
}

// runs gives the rows of blocks in the order of the ranks of their source rows, those of the same source row in
// the order in which they are: one run each. They are valid until the next call.
func (p *permuter) runs(blocks []piece) []gather.Run {
	n := len(p.rank)
	p.count = grow(p.count, n+1)
	clear(p.count)
	total := 0
	for i := range blocks {
		total += blocks[i].n
		for _, k := range p.ranks(&blocks[i]) {
			p.count[k+1]++
		}
	}
	for i := range n {
		p.count[i+1] += p.count[i]
	}
	p.out = grow(p.out, total)
	out := p.out
	for i := range blocks {
		b := &blocks[i]
		for r, k := range p.ranks(b) {
			row := int32(r)
			if b.placed {
				row = k
			}
			out[p.count[k]] = gather.Run{Rec: b.rec, Row: row, N: 1}
			p.count[k]++
		}
	}
	return out
}

// choose finds the source rows that have a row in blocks, at most one each.
func (p *permuter) choose(blocks []piece) {
	words := (len(p.rank) + 63) / 64
	p.left, p.before = grow(p.left, words), grow(p.before, words)
	clear(p.left)
	for i := range blocks {
		for _, k := range p.ranks(&blocks[i]) {
			p.left[k>>6] |= 1 << (k & 63)
		}
	}
	n := int32(0)
	for i, w := range p.left {
		p.before[i] = n
		n += int32(bits.OnesCount64(w))
	}
}

// places of a block's rows among all that choose found, in the order of the ranks. They are valid until the next call.
func (p *permuter) places(b *piece) []int32 {
	ranks := p.ranks(b)
	p.count = grow(p.count, len(ranks))
	for i, k := range ranks {
		p.count[i] = p.before[k>>6] + int32(bits.OnesCount64(p.left[k>>6]&(1<<(k&63)-1)))
	}
	return p.count
}

// ranks of the source rows of a block's rows, valid until the next call.
func (p *permuter) ranks(b *piece) []int32 {
	if b.at == nil {
		return p.rank[b.base+b.row:][:b.n]
	}
	p.perm = grow(p.perm, b.n)
	for r, row := range b.at[:b.n] {
		p.perm[r] = p.rank[b.base+row]
	}
	return p.perm
}

func grow[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// inOrder gives the rows of blocks as they are.
func inOrder(blocks []piece) []gather.Run {
	out := make([]gather.Run, 0, len(blocks))
	for i := range blocks {
		out = append(out, gather.Run{Rec: int32(i), N: int32(blocks[i].n)})
	}
	return out
}
