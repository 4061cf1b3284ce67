package shard

import (
	"fmt"
	"math"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/near"
)

// MaskName is the column or tensor that tells real rows from padded ones; see
// [BatchShape].
const MaskName = "mask"

// Collator makes batches of one form out of rows of records. It keeps scratch
// memory between batches and is not safe for concurrent use; batches it made are
// independent of it.
type Collator struct {
	schema *arrow.Schema
	alloc  memory.Allocator

	// Tensor form.
	tensors bool
	cols    []*column // in the order of the schema
	outs    int       // tensors of a batch without the mask
	dims    int       // of all their shapes
	used    []bool    // by record: whether a run needs it
	tile    []byte    // values on their way through a conversion

	// Arrow form.
	masked *arrow.Schema     // schema with the mask
	empty  arrow.RecordBatch // the row that pads, on the Go heap
	recs   []arrow.RecordBatch
	runs   []gather.Run
}

// BatchShape is what one batch has beside its rows.
type BatchShape struct {
	// Rows of the batch, at least those of the runs. The rest are pads at the end:
	// in tensors zero bytes, where lists vary in length an empty list; in Arrow form
	// a null, or the zero value of a column that cannot be null.
	Rows int
	// Masked adds the column [MaskName] (bool, last), true for rows that are no
	// pads. Set it for every batch of a run that may pad, so that all look alike.
	Masked bool
	// Lengths to which lists are padded, by column, in place of the longest of
	// this batch: what [Collator.Longest] found for all ranks.
	Lengths map[string]int
}

// NewCollator checks that the form fits the schema; what does not is an Invalid
// error that names the column. Batches take their memory from alloc.
func NewCollator(schema *arrow.Schema, f Form, alloc memory.Allocator) (*Collator, error) {
	for _, field := range schema.Fields() {
		if strings.ContainsRune(field.Name, 0) {
			return nil, fault.New(fault.Invalid, "the name of column %q holds a zero byte: rename it", field.Name)
		}
	}
	c := &Collator{schema: schema, alloc: alloc, tensors: f.Tensors}
	if !f.Tensors {
		if f.Columns != nil {
			return nil, fault.New(fault.Invalid, "columns are given a tensor form, but batches are asked for in Arrow form: set tensors, or select columns in a step")
		}
		return c, nil
	}
	for name := range f.Columns {
		if !schema.HasField(name) {
			return nil, fault.New(fault.Invalid, "tensor of unknown column %q%s", name, haveText(name, schema))
		}
	}
	seen := map[string]string{} // tensor name -> column
	for i, field := range schema.Fields() {
		o, ok := f.Columns[field.Name]
		if !ok && f.Columns != nil {
			continue
		}
		col, err := newColumn(field, o)
		if err != nil {
			return nil, fault.Wrap(err, fault.Place{Column: field.Name})
		}
		col.index = i
		c.cols = append(c.cols, col)
		for _, name := range col.names() {
			if other, ok := seen[name]; ok {
				return nil, fault.New(fault.Invalid, "two tensors would be called %q, of columns %q and %q: rename one", name, other, field.Name)
			}
			seen[name] = field.Name
			c.outs++
		}
		c.dims += 3 + len(col.inner)
	}
	return c, nil
}

// CheckMask returns the error that every batch with Masked would end in, if the
// name of the mask is taken.
func (c *Collator) CheckMask() error {
	taken := !c.tensors && c.schema.HasField(MaskName)
	for _, col := range c.cols {
		for _, name := range col.names() {
			taken = taken || name == MaskName
		}
	}
	if taken {
		return fault.New(fault.Invalid, "padded batches add a column %q, which is there already: rename yours, or take tail drop or repeat", MaskName).
			At(fault.Place{Column: MaskName})
	}
	return nil
}

// Batch makes a batch of the rows of runs, in their order. Records are borrowed;
// in Arrow form a batch that is one run without pads shares their memory. The
// caller owns the batch. A null, a value that its dtype cannot hold and a list
// that is too long are RowErrors that name the column.
func (c *Collator) Batch(recs []arrow.RecordBatch, runs []gather.Run, o BatchShape) (*Batch, error) {
	b := &Batch{rows: o.Rows, real: gather.Count(runs)}
	b.refs.Store(1)
	if b.real > b.rows {
		return nil, fault.New(fault.Internal, "%d rows for a batch of %d", b.real, b.rows)
	}
	if o.Masked {
		if err := c.CheckMask(); err != nil {
			return nil, err
		}
	}
	var err error
	if c.tensors {
		err = c.fill(b, recs, runs, o)
	} else {
		b.record, err = c.record(recs, runs, o)
	}
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Longest is the length of the longest list of the runs, for every column that
// all ranks pad to one length; nil if there is none. It reads offsets only.
func (c *Collator) Longest(recs []arrow.RecordBatch, runs []gather.Run) map[string]int {
	var m map[string]int
	for _, col := range c.cols {
		if col.lists != ListsPadGlobal || col.length > 0 {
			continue
		}
		if m == nil {
			m = map[string]int{}
			c.mark(len(recs), runs)
		}
		col.load(recs, c.used)
		m[col.name] = col.longest(runs)
		col.unload()
	}
	return m
}

// mark notes which records the runs need.
func (c *Collator) mark(n int, runs []gather.Run) {
	c.used = append(c.used[:0], make([]bool, n)...)
	for _, r := range runs {
		c.used[r.Rec] = true
	}
}

// record makes a batch in Arrow form.
func (c *Collator) record(recs []arrow.RecordBatch, runs []gather.Run, o BatchShape) (arrow.RecordBatch, error) {
	real := gather.Count(runs)
	if real < o.Rows {
		if c.empty == nil {
			c.empty = emptyRow(c.schema)
		}
		c.recs = append(append(c.recs[:0], recs...), c.empty)
		c.runs = append(c.runs[:0], runs...)
		for range o.Rows - real {
			c.runs = append(c.runs, gather.Run{Rec: int32(len(recs)), N: 1})
		}
		defer func() { clear(c.recs) }()
		recs, runs = c.recs, c.runs
	}
	rec, err := gather.Record(c.alloc, c.schema, recs, runs)
	if err != nil {
		return nil, err
	}
	if !o.Masked {
		return rec, nil
	}
	defer rec.Release()
	if c.masked == nil {
		md := c.schema.Metadata()
		c.masked = arrow.NewSchema(append(c.schema.Fields(), arrow.Field{Name: MaskName, Type: arrow.FixedWidthTypes.Boolean}), &md)
	}
	bits := memory.NewResizableBuffer(c.alloc)
	bits.Resize(int(bitutil.BytesForBits(int64(o.Rows))))
	clear(bits.Bytes())
	bitutil.SetBitsTo(bits.Bytes(), 0, int64(real), true)
	data := array.NewData(arrow.FixedWidthTypes.Boolean, o.Rows, []*memory.Buffer{nil, bits}, nil, 0, 0)
	bits.Release()
	mask := array.NewBooleanData(data)
	data.Release()
	defer mask.Release()
	return array.NewRecordBatch(c.masked, append(rec.Columns()[:rec.NumCols():rec.NumCols()], mask), int64(o.Rows)), nil
}

// haveText suggests the nearest column and lists them all.
func haveText(name string, schema *arrow.Schema) string {
	names := make([]string, schema.NumFields())
	for i, f := range schema.Fields() {
		names[i] = f.Name
	}
	hint := ""
	if n := near.Name(name, names); n != "" {
		hint = fmt.Sprintf("; did you mean %q?", n)
	}
	return hint + "; have " + strings.Join(names, ", ")
}

// emptyRow is one row of nulls, or zero values where there must be none.
func emptyRow(schema *arrow.Schema) arrow.RecordBatch {
	b := array.NewRecordBuilder(memory.DefaultAllocator, schema)
	defer b.Release()
	for i, f := range schema.Fields() {
		if f.Nullable {
			b.Field(i).AppendNull()
		} else {
			b.Field(i).AppendEmptyValue()
		}
	}
	return b.NewRecordBatch()
}

const align = 64

// maxBytes bounds one tensor: what a single endless list would make of a padded
// batch is refused before anything is allocated.
const maxBytes = 1 << 38

// fill makes a batch in tensor form: the sizes of all tensors, one buffer, then
// the values.
func (c *Collator) fill(b *Batch, recs []arrow.RecordBatch, runs []gather.Run, o BatchShape) error {
	c.mark(len(recs), runs)
	defer func() {
		for _, col := range c.cols {
			col.unload()
		}
	}()
	b.tensors = make([]Tensor, 0, c.outs+1)
	dims := make([]int, 0, c.dims+1)
	size := 0
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
	for _, col := range c.cols {
		col.load(recs, c.used)
		if err := col.nulls(runs); err != nil {
			return err
		}
		var err error
		switch col.lists {
		case "":
			err = add(col.name, col.to, []int{b.rows}, col.inner)
		case ListsRagged:
			if err = add(col.name, col.to, []int{col.total(runs)}, col.inner); err == nil {
				err = add(col.second, Int64, []int{b.rows + 1}, nil)
			}
		default:
			var n int
			if n, err = col.padded(runs, o.Lengths); err == nil {
				if err = add(col.name, col.to, []int{b.rows, n}, col.inner); err == nil {
					err = add(col.second, Int32, []int{b.rows}, nil)
				}
			}
		}
		if err != nil {
			return err
		}
	}
	if o.Masked {
		if err := add(MaskName, Bool, []int{b.rows}, nil); err != nil {
			return err
		}
	}
	buf := memory.NewResizableBuffer(c.alloc)
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
	i := 0
	for _, col := range c.cols {
		var err error
		switch col.lists {
		case "":
			real := b.real * col.width * col.to.Size()
			clear(b.tensors[i].Data[real:])
			err = c.fixed(col, b.tensors[i].Data[:real], recs, runs)
			i++
		case ListsRagged:
			err = col.ragged(b.tensors[i].Data, Values[int64](b.tensors[i+1]), recs, runs)
			i += 2
		default:
			err = col.pad(b.tensors[i].Data, Values[int32](b.tensors[i+1]), b.tensors[i].Shape[1], recs, runs)
			i += 2
		}
		if err != nil {
			buf.Release()
			return err
		}
	}
	if o.Masked {
		m := b.tensors[i].Data
		for j := range m[:b.real] {
			m[j] = 1
		}
		clear(m[b.real:])
	}
	b.buf = buf
	return nil
}

// tileBytes is how much is gathered before it is converted: it stays in the
// fastest cache.
const tileBytes = 8 << 10

// fixed writes a column whose rows all have the same shape: one copy, or a tile
// gathered and then converted. Runs as large as a tile are converted in place.
func (c *Collator) fixed(col *column, dst []byte, recs []arrow.RecordBatch, runs []gather.Run) error {
	if len(dst) == 0 {
		return nil
	}
	from, to := col.width*col.from.Size(), col.width*col.to.Size()
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
		if col.from == Bool || k <= 1 {
			r := runs[0]
			n, k = int(r.N), 1
			if i := col.put(dst[:n*to], int(r.Rec), int(r.Row)*col.width, n*col.width); i >= 0 {
				return col.misfit(recs[r.Rec], col.width*int(r.Row)+i)
			}
		} else {
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

// roundUp to a multiple of m, if m is positive.
func roundUp(n, m int) int {
	if m <= 0 || n > math.MaxInt-m {
		return n
	}
	return (n + m - 1) / m * m
}
