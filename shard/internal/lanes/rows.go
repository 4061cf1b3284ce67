package lanes

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/shard/internal/order"
)

// Rec is a record whose rows are samples, with where they come from.
type Rec struct {
	Batch  arrow.RecordBatch
	Origin func(row int) Origin // of each row; may be nil without Config.Lineage

	Slot  int32  // scratch of whoever collects records for a batch
	Stamp uint64 // of the batch that Slot is of

	release func()
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

// blockRec takes over b.
func blockRec(source string, b *exec.Block) *Rec {
	return &Rec{Batch: b.Batch, release: b.Release, Origin: func(row int) Origin {
		o := b.Origin
		return Origin{Source: source, Split: o.Split, File: o.File, RowGroup: o.Index, Row: b.RowAt(row)}
	}}
}

// Window is a published window of which samples are left to give.
type Window struct {
	Lane   int
	Window int64
	Rows

	first []int64 // Runs[i] begins with sample first[i]; nil where each run is one sample
	left  int64   // samples not yet taken
	size  int64   // bytes in memory
	spill *spill  // where the samples are if they did not fit; nil: in memory
}

// free gives everything up.
func (w *Window) free() {
	w.Release()
	if w.spill != nil {
		w.spill.close()
		w.spill = nil
	}
}

// Sample names the record and row of sample i; the n samples from it on are rows from there on.
func (w *Window) Sample(i int64) (rec *Rec, row, n int32) {
	if s := w.spill; s != nil {
		return s.loaded[i/s.rows], int32(i % s.rows), 1
	}
	k, row, n := w.place(i)
	return w.Recs[k], row, n
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

// permute orders the rows of blocks as the permutation orders the source rows that they
// come from. base[i] is the place in the window of the source row at position 0 of
// block i's split; rank the place of a source row in the permutation; nil: as it is.
type permuter struct {
	perm, rank []int32
	count      []int32
}

// order gives the rows of blocks, of n source rows, in the order of the permutation by key.
func (p *permuter) order(blocks []*exec.Block, base []int64, n int, key [32]byte) []gather.Run {
	p.perm = grow(p.perm, n)
	order.Perm(key, p.perm)
	if runs := p.whole(blocks, base, p.perm); runs != nil {
		return runs
	}
	p.rank = grow(p.rank, n)
	for k, s := range p.perm {
		p.rank[s] = int32(k)
	}
	return p.sort(blocks, base, p.rank)
}

func grow(s []int32, n int) []int32 {
	if cap(s) < n {
		return make([]int32, n)
	}
	return s[:n]
}

// sort gives the rows of blocks in order of the ranks of their source rows, rows of the same
// source row in the order in which they are.
func (p *permuter) sort(blocks []*exec.Block, base []int64, rank []int32) []gather.Run {
	n := len(rank)
	p.count = grow(p.count, n+1)
	clear(p.count)
	total := 0
	for i, b := range blocks {
		rows := int(b.Batch.NumRows())
		total += rows
		for r := range rows {
			p.count[rank[base[i]+b.RowAt(r)]+1]++
		}
	}
	for i := range n {
		p.count[i+1] += p.count[i]
	}
	out := make([]gather.Run, total)
	for i, b := range blocks {
		for r := range int(b.Batch.NumRows()) {
			k := rank[base[i]+b.RowAt(r)]
			out[p.count[k]] = gather.Run{Rec: int32(i), Row: int32(r), N: 1}
			p.count[k]++
		}
	}
	return out
}

// whole gives the rows of blocks as the permutation orders them, where the blocks are all source rows of the
// window as they follow each other, as when no step changes the number of rows; nil otherwise.
func (p *permuter) whole(blocks []*exec.Block, base []int64, perm []int32) []gather.Run {
	next := int64(0)
	for i, b := range blocks {
		if b.Rows != nil || b.Ords != nil || base[i]+b.Row != next {
			return nil
		}
		next += b.Batch.NumRows()
	}
	if next != int64(len(perm)) {
		return nil
	}
	p.count = p.count[:0] // first row of each block, and the end
	for i, b := range blocks {
		p.count = append(p.count, int32(base[i]+b.Row))
	}
	out := make([]gather.Run, len(perm))
	for k, s := range perm {
		lo, hi := 0, len(p.count)
		for hi-lo > 1 {
			if m := int(uint(lo+hi) / 2); p.count[m] <= s {
				lo = m
			} else {
				hi = m
			}
		}
		out[k] = gather.Run{Rec: int32(lo), Row: s - p.count[lo], N: 1}
	}
	return out
}

// inOrder gives the rows of blocks as they are.
func inOrder(blocks []*exec.Block) []gather.Run {
	out := make([]gather.Run, 0, len(blocks))
	for i, b := range blocks {
		out = append(out, gather.Run{Rec: int32(i), N: int32(b.Batch.NumRows())})
	}
	return out
}
