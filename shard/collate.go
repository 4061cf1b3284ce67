package shard

import (
	"maps"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/near"
	"github.com/penstock-data/penstock/shard/internal/lanes"
	"github.com/penstock-data/penstock/shard/internal/pack"
	"github.com/penstock-data/penstock/shard/internal/rows"
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
	outs    []*output    // in the order of the schema
	count   int          // tensors of a batch without the mask
	dims    int          // of all their shapes
	layout  *rows.Layout // of packed rows; nil: nothing packs
	used    []bool       // by record: whether a run needs it
	tile    []byte       // values on their way through a conversion
	srcs    []arrow.RecordBatch
	blocks  [][]byte
	bins    []*pack.Packed
	binned  bool     // some of bins are there
	whole   []byte   // a row of bins on its way through a conversion
	parts   [][]byte // by tensor of the layout: where it is written
	mixed   mixture

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
	// Memory of the tensors; nil: the collator's.
	Memory memory.Allocator
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
	if err := c.outputs(f); err != nil {
		return nil, err
	}
	seen := map[string]*output{} // by name of tensor
	for _, out := range c.outs {
		for _, name := range out.names() {
			if other, ok := seen[name]; ok {
				return nil, fault.New(fault.Invalid, "two tensors would be called %q, of %s and %s: rename one", name, other.text(), out.text())
			}
			seen[name] = out
			c.count++
		}
		c.dims += 3 + len(out.inner)
	}
	return c, nil
}

// outputs finds the tensors that the form asks for, in the order of the schema: a stack comes where its first
// column would, behind a tensor of that column and in the order of names. What has a fixed size is laid out for packed rows.
func (c *Collator) outputs(f Form) error {
	stacks := map[string][]string{} // names by first column
	for _, name := range slices.Sorted(maps.Keys(f.Columns)) {
		o := f.Columns[name]
		switch {
		case o.Stack == nil && !c.schema.HasField(name):
			return fault.New(fault.Invalid, "no such column%s", near.Column(name, c.schema)).At(fault.Place{Column: name})
		case o.Stack != nil && len(o.Stack) == 0:
			return fault.New(fault.Invalid, "a stack of no columns: name some").At(fault.Place{Column: name})
		case o.Stack != nil && !c.schema.HasField(o.Stack[0]):
			return fault.New(fault.Invalid, "stack: unknown column %q%s", o.Stack[0], near.Column(o.Stack[0], c.schema)).At(fault.Place{Column: name})
		case o.Stack != nil:
			stacks[o.Stack[0]] = append(stacks[o.Stack[0]], name)
		}
	}
	for i, field := range c.schema.Fields() {
		if o, ok := f.Columns[field.Name]; f.Columns == nil || ok && o.Stack == nil {
			out, err := newOutput(c.schema, i, o)
			if err != nil {
				return err
			}
			c.outs = append(c.outs, out)
		}
		for _, name := range stacks[field.Name] {
			out, err := newStack(c.schema, name, f.Columns[name])
			if err != nil {
				return err
			}
			c.outs = append(c.outs, out)
		}
		delete(stacks, field.Name) // more columns of that name are an error above
	}
	var tensors [][]rows.Field
	for _, out := range c.outs {
		out.part = -1
		if col := out.cols[0]; col.second != "" || col.width == 0 {
			continue
		}
		out.part = len(tensors)
		fields := make([]rows.Field, len(out.cols))
		for i, col := range out.cols {
			fields[i] = col.field
		}
		tensors = append(tensors, fields)
	}
	if tensors != nil {
		c.layout = rows.New(tensors, len(tensors) < len(c.outs))
		c.parts = make([][]byte, len(tensors))
	}
	return nil
}

// Layout is how rows are packed for [Collator.BatchOf]: all parts of batches that have a fixed size. It is nil where
// there are none, or in Arrow form, and the same for all collators of one schema and form.
func (c *Collator) Layout() *rows.Layout { return c.layout }

// CheckMask returns the error that every batch with Masked would end in, if the
// name of the mask is taken.
func (c *Collator) CheckMask() error {
	taken := !c.tensors && c.schema.HasField(MaskName)
	for _, out := range c.outs {
		for _, name := range out.names() {
			taken = taken || name == MaskName
		}
	}
	if taken {
		return fault.New(fault.Invalid, "padded batches add a column %q, which is there already: rename yours, or take tail drop or repeat", MaskName).
			At(fault.Place{Column: MaskName})
	}
	return nil
}

// Rows are what batches are made of: a record, rows packed by the collator's Layout, or both, then in the same
// order. Where rows are packed, the record is only read for what does not pack; it may be nil if all does.
type Rows struct {
	Rec    arrow.RecordBatch
	Packed []byte

	bins *pack.Packed // in place of both: documents that are put together in the batch
}

func rowsOf(r *lanes.Rec) Rows { return Rows{r.Batch, r.Packed, r.Bins} }

// Batch makes a batch of the rows of runs, in their order. Records are borrowed;
// in Arrow form a batch that is one run without pads shares their memory. The
// caller owns the batch. A null, a value that its dtype cannot hold and a list
// that is too long are RowErrors that name the column.
func (c *Collator) Batch(recs []arrow.RecordBatch, runs []gather.Run, o BatchShape) (*Batch, error) {
	return c.batch(recs, nil, runs, o)
}

// BatchOf is Batch for sources some or all of which are packed.
func (c *Collator) BatchOf(srcs []Rows, runs []gather.Run, o BatchShape) (*Batch, error) {
	defer c.forget()
	packed := c.sources(srcs)
	return c.batch(c.srcs, packed, runs, o)
}

// sources takes sources apart: into c.srcs, c.bins, and packed rows; nil where nothing is packed.
func (c *Collator) sources(srcs []Rows) (packed [][]byte) {
	c.srcs, c.blocks, c.bins, c.binned = c.srcs[:0], c.blocks[:0], c.bins[:0], false
	for _, s := range srcs {
		c.srcs, c.blocks, c.bins = append(c.srcs, s.Rec), append(c.blocks, s.Packed), append(c.bins, s.bins)
		c.binned = c.binned || s.bins != nil
		if s.Packed != nil {
			packed = c.blocks
		}
	}
	if packed != nil {
		packed = c.blocks
	}
	return packed
}

// forget lets go of sources.
func (c *Collator) forget() {
	clear(c.srcs)
	clear(c.blocks)
	clear(c.bins)
	c.binned = false
}

func (c *Collator) batch(recs []arrow.RecordBatch, packed [][]byte, runs []gather.Run, o BatchShape) (*Batch, error) {
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
		err = c.fill(b, recs, packed, runs, o)
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
	for _, out := range c.outs {
		col := out.cols[0]
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

// LongestOf is Longest for sources.
func (c *Collator) LongestOf(srcs []Rows, runs []gather.Run) map[string]int {
	defer c.forget()
	c.sources(srcs)
	return c.Longest(c.srcs, runs)
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

// emptyRow is one row of nulls, or zero values where there must be none.
func emptyRow(schema *arrow.Schema) arrow.RecordBatch {
	cols := make([]arrow.Array, schema.NumFields())
	for i, f := range schema.Fields() {
		if f.Nullable {
			cols[i] = gather.Nulls(memory.DefaultAllocator, f.Type, 1)
		} else {
			b := array.NewBuilder(memory.DefaultAllocator, f.Type)
			defer b.Release()
			b.AppendEmptyValue()
			cols[i] = b.NewArray()
		}
		defer cols[i].Release()
	}
	return array.NewRecordBatch(schema, cols, 1)
}
