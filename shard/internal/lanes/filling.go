package lanes

import (
	"math"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/shard/internal/order"
	"github.com/penstock-data/penstock/shard/internal/rows"
)

// smallRow is the size of rows up to which a window is copied into its order, so that its samples are read one
// behind the other; larger ones are copied once only, into batches.
const smallRow = 1 << 10

// runBytes is the size of a run.
const runBytes = 12

// filling is a window that is being collected. Where its rows are to be packed, they are packed at their places in the window's
// order: every block as soon as it comes, while the caches hold it, if no step changes the number of rows; else when all are
// there, as a row's place depends on which others are left. What has no single place, or does not pack, is packed
// one behind the other, or stays as it is, and is put in order afterwards.
type filling struct {
	p      *Pass
	w      *Window
	layout *rows.Layout // nil: blocks stay records
	blocks []piece
	dst    *memory.Buffer // of rows at their places: that of record 0; nil: none
	filled int64          // rows at their places are those of the first so many source rows
}

// piece is the rows of a block: those of record rec, or, where placed, rows of it at the places of their source rows.
type piece struct {
	base   int64   // of the source row at position 0 of the block's split, in the window
	row    int64   // position of the first row
	at     []int64 // positions of all, where they do not follow each other
	n      int
	rec    int32
	placed bool
	copies bool // several rows may be of one source row
}

// window collects the rows of a window and puts them in order.
func (p *Pass) window(plan *winPlan) (_ *Window, err error) {
	f := &filling{p: p, w: &Window{Lane: plan.lane, Window: plan.window}}
	done := false
	defer func() {
		if !done { // also where memory is out
			f.w.Release()
		}
	}()
	c := &p.s.c
	shuffled := c.Shape.Mode == order.Window
	if l := c.Layout; shuffled && c.Transform == nil && l != nil && !l.Rest && l.Size < smallRow {
		f.layout = l
		if c.Known() && !c.Lineage {
			f.place(plan)
		}
	}
	n, err := f.collect(plan)
	if err == nil && n > math.MaxInt32 {
		err = internal("a window of %d rows", n)
	}
	if err != nil {
		return nil, err
	}
	if err := f.finish(n, shuffled); err != nil {
		return nil, err
	}
	done = true
	return f.w, nil
}

// place makes room for all rows of the window at their places.
func (f *filling) place(plan *winPlan) {
	from, to := f.p.order.Bounds(plan.lane, plan.window)
	if to-from > math.MaxInt32 {
		return
	}
	f.p.permute.begin(int(to-from), f.p.key.Rows(plan.lane, plan.window))
	f.dst = memory.NewResizableBuffer(f.p.s.alloc)
	f.w.Recs = append(f.w.Recs, &Rec{release: f.dst.Release})
	f.dst.Resize(int(to-from) * f.layout.Size)
	f.w.Recs[0].Packed = f.dst.Bytes()
}

// collect takes the blocks of a window, n source rows.
func (f *filling) collect(w *winPlan) (n int64, err error) {
	p := f.p
	var rows, splits int64 // of the blocks; each segment is of another split
	for _, s := range w.segs {
		var first, end int64
		bytes := p.s.bytes(s.leaf)
		if s.task >= 0 {
			feed := p.now.feeds[s.leaf]
			had := len(f.blocks)
			base := n - s.from // known once all is read, of bytes
			err = feed.take(p.ctx, s.task, s.edge, func(b *exec.Block) error { return f.add(b, base) }, &p.skipped)
			if err != nil {
				return n, err
			}
			if had < len(f.blocks) {
				splits++
			}
			for _, b := range f.blocks[had:] {
				rows += int64(b.n)
			}
			passed := s.rows
			first, end = s.from, s.from+s.rows
			if bytes {
				if first, end, passed, err = feed.tasks[s.task].window(s.edge); err != nil {
					return n, err
				}
				for i := range f.blocks[had:] {
					f.blocks[had+i].base = n - first
				}
			}
			p.skipped.rows += passed
		} else if !bytes {
			first, end = s.from, s.from+s.rows
		}
		n += end - first
	}
	if rows > 0 {
		p.s.c.Meter.window(rows, splits)
	}
	return n, nil
}

// add takes over a block.
func (f *filling) add(b *exec.Block, base int64) error {
	x := piece{base: base, row: b.Row, at: b.Rows, n: int(b.Batch.NumRows()), copies: b.Ords != nil}
	rec := blockRec(f.p.s.c.Name, b)
	if f.dst != nil {
		if x.at == nil && !x.copies && base+x.row == f.filled && f.filled+int64(x.n) <= int64(len(f.p.permute.rank)) {
			if f.layout.Pack(f.dst.Bytes(), b.Batch, f.p.permute.rank[f.filled:][:x.n]) {
				x.placed = true
				f.filled += int64(x.n)
				f.blocks = append(f.blocks, x)
				rec.release()
				return nil
			}
		}
	}
	x.rec = int32(len(f.w.Recs))
	f.w.Recs = append(f.w.Recs, rec)
	f.blocks = append(f.blocks, x)
	return nil
}

// packLeft packs the rows of all blocks, of a window of n source rows, at the places that they have among those that are left. It
// is false, and all is as before, where that cannot be.
func (f *filling) packLeft(n int64) bool {
	total := 0
	for i := range f.blocks {
		if f.blocks[i].copies {
			return false
		}
		total += f.blocks[i].n
	}
	w, p := f.w, &f.p.permute
	p.begin(int(n), f.p.key.Rows(w.Lane, w.Window))
	p.choose(f.blocks)
	dst := memory.NewResizableBuffer(f.p.s.alloc)
	dst.Resize(total * f.layout.Size)
	for i := range f.blocks {
		b := &f.blocks[i]
		if !f.layout.Pack(dst.Bytes(), w.Recs[b.rec].Batch, p.places(b)) {
			dst.Release()
			return false
		}
	}
	w.Rows.Release()
	w.Recs, w.Runs = []*Rec{newPacked(dst, nil)}, []gather.Run{{N: int32(total)}}
	return true
}

// pack packs the rows of every record as they are, but of those not all of whose rows can be: the batch that needs such a
// row says why.
func (f *filling) pack() {
	for i, rec := range f.w.Recs {
		if rec.Batch == nil {
			continue
		}
		buf := memory.NewResizableBuffer(f.p.s.alloc)
		buf.Resize(int(rec.Batch.NumRows()) * f.layout.Size)
		if !f.layout.Pack(buf.Bytes(), rec.Batch, nil) {
			buf.Release()
			continue
		}
		f.w.Recs[i] = newPacked(buf, rec.Origin)
		f.w.Recs[i].Places = rec.Places
		rec.release()
	}
}

// finish puts the rows in order: a window of n source rows.
func (f *filling) finish(n int64, shuffled bool) error {
	w, c, alloc := f.w, &f.p.s.c, f.p.s.alloc
	switch {
	case len(f.blocks) == 0:
		w.Release()
		return nil
	case f.dst != nil && f.filled == n && len(w.Recs) == 1:
		w.Runs = []gather.Run{{N: int32(n)}}
		return nil
	}
	if f.layout != nil {
		if f.dst == nil && !c.Lineage && f.packLeft(n) {
			return nil
		}
		f.pack()
	}
	if shuffled {
		if f.dst == nil {
			f.p.permute.begin(int(n), f.p.key.Rows(w.Lane, w.Window))
		}
		w.Runs = f.p.permute.runs(f.blocks)
		if c.Lineage && c.Transform == nil {
			w.Runs = slices.Clone(w.Runs)
		}
	} else {
		w.Runs = inOrder(f.blocks)
	}
	if c.Transform != nil {
		docs := w.Rows
		w.Rows = Rows{}
		rows, err := c.Transform(alloc, &docs)
		if err != nil {
			return err
		}
		w.Rows = *rows
		return nil
	}
	if !shuffled {
		return nil
	}
	var size int64
	packed, recs := 0, 0
	for _, r := range w.Recs {
		if r.Batch == nil {
			packed++
		} else {
			recs++
		}
		size += r.size()
	}
	switch {
	case recs == 0:
		w.inlinePacked(alloc, f.layout.Size, c.Lineage)
	case packed == 0 && size/int64(len(w.Runs)) < smallRow:
		return w.inline(alloc, c.Lineage)
	case !c.Lineage:
		w.Runs = slices.Clone(w.Runs)
	}
	return nil
}

// origins says where the rows of runs come from, also when the records are gone.
func (w *Window) origins(runs []gather.Run) func(int) Origin {
	origins := make([]func(int) Origin, len(w.Recs))
	for i, r := range w.Recs {
		origins[i] = r.Origin
	}
	return func(i int) Origin { return origins[runs[i].Rec](int(runs[i].Row)) }
}

// inline copies the samples, one per run, into one record in their order.
func (w *Window) inline(alloc memory.Allocator, lineage bool) error {
	recs := make([]arrow.RecordBatch, len(w.Recs))
	for i, r := range w.Recs {
		recs[i] = r.Batch
	}
	rec, err := gather.Record(alloc, recs[0].Schema(), recs, w.Runs)
	if err != nil {
		return err
	}
	w.replace(NewRec(rec, nil), lineage)
	return nil
}

// inlinePacked is inline for packed rows of size bytes.
func (w *Window) inlinePacked(alloc memory.Allocator, size int, lineage bool) {
	srcs := make([][]byte, len(w.Recs))
	for i, r := range w.Recs {
		srcs[i] = r.Packed
	}
	buf := memory.NewResizableBuffer(alloc)
	buf.Resize(len(w.Runs) * size)
	gather.Fixed(buf.Bytes(), size, srcs, w.Runs)
	w.replace(newPacked(buf, nil), lineage)
}

// replace makes rec, the samples in their order, the only record.
func (w *Window) replace(rec *Rec, lineage bool) {
	if lineage {
		rec.Origin, rec.Places = w.origins(w.Runs), w.places()+int64(len(w.Runs))*runBytes
	}
	n := w.Count()
	w.Rows.Release()
	w.Recs = []*Rec{rec}
	w.Runs = []gather.Run{{N: int32(n)}}
}
