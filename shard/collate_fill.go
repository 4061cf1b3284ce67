package shard

import (
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
)

const align = 64

// maxBytes bounds one tensor: what a single endless list would make of a padded
// batch is refused before anything is allocated.
const maxBytes = 1 << 38

// fill makes a batch in tensor form: the sizes of all tensors, one buffer, then
// the values. packed is nil, or has the packed rows of sources that are.
func (c *Collator) fill(b *Batch, recs []arrow.RecordBatch, packed [][]byte, runs []gather.Run, o BatchShape) error {
	defer func() {
		for _, out := range c.outs {
			for _, col := range out.cols {
				col.unload()
			}
		}
	}()
	mine := runs // those that have to be read from columns that could be packed
	if packed != nil {
		defer c.mixed.drop()
		mine = c.mixed.split(packed, runs)
	}
	size, err := c.shapes(b, recs, runs, mine, o)
	if err != nil {
		return err
	}
	pack := packed != nil && c.mixed.pack(c, recs)
	alloc := c.alloc
	if o.Memory != nil {
		alloc = o.Memory
	}
	buf := memory.NewResizableBuffer(alloc)
	buf.Resize(size)
	all, at := buf.Bytes(), 0
	for i := range b.tensors {
		t := &b.tensors[i]
		k := t.DType.Size()
		for _, d := range t.Shape {
			k *= d
		}
		t.Data = all[at : at+k : at+k]
		at += (k + align - 1) / align * align
	}
	ts := b.tensors
	for _, out := range c.outs {
		var err error
		switch col := out.cols[0]; col.lists {
		case "":
			data := ts[0].Data
			real := 0
			if b.rows > 0 {
				real = len(data) / b.rows * b.real
			}
			clear(data[real:])
			if pack && out.part >= 0 {
				c.parts[out.part] = data[:real]
			} else {
				err = c.fixed(out, data[:real], recs, mineOr(out, mine, runs))
			}
			ts = ts[1:]
		case ListsRagged:
			err = col.ragged(ts[0].Data, Values[int64](ts[1]), recs, runs)
			ts = ts[2:]
		default:
			err = col.pad(ts[0].Data, Values[int32](ts[1]), ts[0].Shape[1], recs, runs)
			ts = ts[2:]
		}
		if err != nil {
			buf.Release()
			return err
		}
	}
	if packed != nil {
		if !pack {
			buf.Release()
			return fault.New(fault.Internal, "rows do not pack, but nothing is wrong with them")
		}
		if b.real > 0 {
			c.layout.Take(c.parts, c.mixed.blocks, c.mixed.runs)
		}
		clear(c.parts)
	}
	if o.Masked {
		m := ts[0].Data
		for j := range m[:b.real] {
			m[j] = 1
		}
		clear(m[b.real:])
	}
	b.buf = buf
	return nil
}

// mineOr are the runs that an output is read from, column by column.
func mineOr(out *output, mine, runs []gather.Run) []gather.Run {
	if out.part >= 0 {
		return mine
	}
	return runs
}

// shapes loads the columns, looks for nulls, and adds all tensors to b, without data. It returns their size.
func (c *Collator) shapes(b *Batch, recs []arrow.RecordBatch, runs, mine []gather.Run, o BatchShape) (size int, err error) {
	b.tensors = make([]Tensor, 0, c.count+1)
	dims := make([]int, 0, c.dims+1)
	add := func(name string, t DType, lead []int, inner []int) error {
		n := float64(t.Size())
		k := t.Size()
		at := len(dims)
		dims = append(append(dims, lead...), inner...)
		for _, d := range dims[at:] {
			n *= float64(d)
			k *= d
		}
		if n > maxBytes {
			return fault.New(fault.Exhausted, "a tensor of shape %v would take %.0f GiB: take smaller batches, cut long lists, or ask for lists: ragged", dims[at:], n/(1<<30)).
				At(fault.Place{Column: name})
		}
		b.tensors = append(b.tensors, Tensor{Name: name, DType: t, Shape: dims[at:len(dims):len(dims)]})
		size += (k + align - 1) / align * align
		return nil
	}
	marked := -1
	for _, out := range c.outs {
		from := mineOr(out, mine, runs)
		if marked != len(from) { // mine is a part of runs: as many are the same
			c.mark(len(recs), from)
			marked = len(from)
		}
		if out.stack == nil && (len(from) > 0 || out.part < 0) {
			col := out.cols[0]
			col.load(recs, c.used)
			if err := col.nulls(from); err != nil {
				return 0, err
			}
		}
		var err error
		switch col := out.cols[0]; col.lists {
		case "":
			err = add(out.name, out.to, []int{b.rows}, out.inner)
		case ListsRagged:
			if err = add(out.name, out.to, []int{col.total(runs)}, out.inner); err == nil {
				err = add(col.second, Int64, []int{b.rows + 1}, nil)
			}
		default:
			var n int
			if n, err = col.padded(runs, o.Lengths); err == nil {
				if err = add(out.name, out.to, []int{b.rows, n}, out.inner); err == nil {
					err = add(col.second, Int32, []int{b.rows}, nil)
				}
			}
		}
		if err != nil {
			return 0, err
		}
	}
	if o.Masked {
		if err := add(MaskName, Bool, []int{b.rows}, nil); err != nil {
			return 0, err
		}
	}
	return size, nil
}

// tileBytes is how much is gathered before it is converted: it stays in the
// fastest cache.
const tileBytes = 8 << 10

// fixed writes a tensor whose rows all have the same shape.
func (c *Collator) fixed(out *output, dst []byte, recs []arrow.RecordBatch, runs []gather.Run) error {
	if len(dst) == 0 || len(runs) == 0 {
		return nil
	}
	if out.stack == nil {
		if c.binned {
			return c.fromBins(out.cols[0], dst, recs, runs)
		}
		return c.column(out.cols[0], dst, recs, runs)
	}
	if out.stack.PackRuns(dst, recs, runs) {
		return nil
	}
	c.mark(len(recs), runs)
	for _, col := range out.cols { // which one is it?
		col.load(recs, c.used)
		if err := col.nulls(runs); err != nil {
			return err
		}
		if err := c.column(col, dst, recs, runs); err != nil {
			return err
		}
	}
	return fault.New(fault.Internal, "rows do not pack, but nothing is wrong with them")
}

// column writes the values of a column: one copy, or a tile
// gathered and then converted. Runs as large as a tile are converted in place.
func (c *Collator) column(col *column, dst []byte, recs []arrow.RecordBatch, runs []gather.Run) error {
	from, to := col.width*col.from.Size(), col.width*col.to.Size()
	dst = dst[:gather.Count(runs)*to]
	if col.from != Bool && col.conv == nil {
		gather.Fixed(dst, from, col.vals, runs)
		return nil
	}
	per := tileBytes / from // rows of a tile
	for len(runs) > 0 {
		n, k := 0, 0
		for k < len(runs) && n+int(runs[k].N) <= per {
			n += int(runs[k].N)
			k++
		}
		switch {
		case col.from == Bool || k <= 1:
			r := runs[0]
			n, k = int(r.N), 1
			if i := col.put(dst[:n*to], int(r.Rec), int(r.Row)*col.width, n*col.width); i >= 0 {
				return col.misfit(recs[r.Rec], col.width*int(r.Row)+i)
			}
		case n > 0:
			if c.tile == nil {
				c.tile = make([]byte, tileBytes)
			}
			tile := c.tile[:n*from]
			gather.Fixed(tile, from, col.vals, runs[:k])
			if i := col.conv(dst[:n*to], tile); i >= 0 {
				row := i / col.width
				for _, r := range runs[:k] {
					if row < int(r.N) {
						return col.misfit(recs[r.Rec], (int(r.Row)+row)*col.width+i%col.width)
					}
					row -= int(r.N)
				}
			}
		}
		dst, runs = dst[n*to:], runs[k:]
	}
	return nil
}

// fromBins is column where rows of some records are bins.
func (c *Collator) fromBins(col *column, dst []byte, recs []arrow.RecordBatch, runs []gather.Run) error {
	from, to := col.width*col.from.Size(), col.width*col.to.Size()
	for i, r := range runs {
		row, n := int(r.Row), int(r.N)
		b := c.bins[r.Rec]
		switch {
		case b == nil:
			if err := c.column(col, dst, recs, runs[i:i+1]); err != nil {
				return err
			}
		case col.conv == nil:
			b.Column(dst[:n*to], col.index, row, row+n)
		default:
			c.whole = sized(c.whole, from)
			for k := range n {
				b.Column(c.whole, col.index, row+k, row+k+1)
				if bad := col.conv(dst[k*to:(k+1)*to], c.whole); bad >= 0 {
					rec := b.Record(memory.DefaultAllocator, row+k, row+k+1)
					defer rec.Release()
					return col.misfit(rec, bad)
				}
			}
		}
		dst = dst[n*to:]
	}
	return nil
}

// roundUp to a multiple of m, if m is positive.
func roundUp(n, m int) int {
	if m <= 0 || n > math.MaxInt-m {
		return n
	}
	return (n + m - 1) / m * m
}

// mixture is the runs of a batch of which some rows are packed.
type mixture struct {
	blocks [][]byte     // packed rows by source, and behind them those that were packed for this batch
	runs   []gather.Run // all, as rows of blocks
	mine   []gather.Run // those of sources that are not packed
	buf    *memory.Buffer
}

// split finds the runs that are not packed: they become those of one more block.
func (m *mixture) split(packed [][]byte, runs []gather.Run) []gather.Run {
	m.blocks = append(append(m.blocks[:0], packed...), nil)
	m.runs, m.mine = m.runs[:0], m.mine[:0]
	row := int32(0)
	for _, r := range runs {
		if packed[r.Rec] == nil {
			m.mine = append(m.mine, r)
			r.Rec, r.Row = int32(len(packed)), row
			row += r.N
		}
		m.runs = append(m.runs, r)
	}
	return m.mine
}

// pack packs the runs that are not; false if they have what does not fit.
func (m *mixture) pack(c *Collator, recs []arrow.RecordBatch) bool {
	if len(m.mine) == 0 {
		return true
	}
	m.buf = memory.NewResizableBuffer(c.alloc)
	m.buf.Resize(gather.Count(m.mine) * c.layout.Size)
	m.blocks[len(m.blocks)-1] = m.buf.Bytes()
	return c.layout.PackRuns(m.buf.Bytes(), recs, m.mine)
}

// drop gives everything back.
func (m *mixture) drop() {
	clear(m.blocks)
	if m.buf != nil {
		m.buf.Release()
		m.buf = nil
	}
}
