package dataset

import (
	"context"
	"io"
	"iter"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	arrays "github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/shard"
)

// BatchOptions of IterBatches; nil means defaults.
type BatchOptions struct {
	RunOptions
	// Rows of every batch but the last; 0: 1024.
	Rows int
	// DropLast leaves out a last batch that is not full.
	DropLast bool
	// Tensors asks for one contiguous array per column instead of Arrow records.
	Tensors bool
	// DTypes casts tensors, by column; others keep their own type. A value that an
	// integer type cannot hold is an error; fractions are cut off, floats rounded.
	DTypes map[string]shard.DType
}

// form is the options' form of batches: all columns, some cast.
func (o *BatchOptions) form(schema *arrow.Schema) shard.Form {
	f := shard.Form{Tensors: o.Tensors}
	if o.DTypes == nil {
		return f
	}
	f.Columns = map[string]shard.Column{}
	if o.Tensors {
		for _, field := range schema.Fields() {
			f.Columns[field.Name] = shard.Column{}
		}
	}
	for name, d := range o.DTypes {
		f.Columns[name] = shard.Column{DType: d}
	}
	return f
}

// IterBatches runs the plan and gives its rows in batches of equal size, in
// canonical order. A batch is valid until the next turn; Retain to keep it.
// Leaving the loop ends the run and frees everything.
func (d *Dataset) IterBatches(ctx context.Context, o *BatchOptions) iter.Seq2[*shard.Batch, error] {
	return func(yield func(*shard.Batch, error) bool) {
		if o == nil {
			o = &BatchOptions{}
		}
		fail := func(err error) { yield(nil, err) }
		rows := o.Rows
		if rows == 0 {
			rows = 1024
		}
		s, err := d.Stream(ctx, &o.RunOptions)
		if err != nil {
			fail(err)
			return
		}
		defer s.Close()
		a, err := shard.NewAssembler(s.Schema(), shard.AssembleOptions{Rows: rows, Form: o.form(s.Schema())}, allocOf(s))
		if err != nil {
			fail(err)
			return
		}
		defer a.Close()
		for last := false; !last; {
			b, err := s.Next(ctx)
			switch {
			case err == io.EOF:
				last = true
			case err != nil:
				fail(err)
				return
			default:
				a.Add(b)
			}
			for {
				batch, err := a.Next(last && !o.DropLast)
				if err != nil {
					fail(err)
					return
				}
				if batch == nil {
					break
				}
				more := yield(batch, nil)
				batch.Release()
				if !more {
					return
				}
			}
		}
	}
}

// allocOf is the allocator for what a consumer makes of a stream's blocks: that
// of the stream's budget, where it offers one.
func allocOf(s exec.Stream) memory.Allocator {
	if a, ok := s.(interface{ Alloc() memory.Allocator }); ok {
		return a.Alloc()
	}
	return memory.DefaultAllocator
}

// Take returns the first n rows (fewer, if there are no more) as one record, in
// canonical order, reading no more than it must. The caller releases it.
func (d *Dataset) Take(ctx context.Context, n int64, o *RunOptions) (arrow.RecordBatch, error) {
	if err := d.plain(ctx); err != nil {
		return nil, err
	}
	t, err := d.Limit(n).Collect(ctx, o)
	if err != nil {
		return nil, err
	}
	defer t.Release()
	cols := make([]arrow.Array, t.NumCols())
	defer func() {
		for _, c := range cols {
			if c != nil {
				c.Release()
			}
		}
	}()
	for i := range cols {
		chunks := t.Column(i).Data().Chunks()
		if len(chunks) == 0 {
			cols[i] = arrays.Nulls(memory.DefaultAllocator, t.Schema().Field(i).Type, 0)
		} else if cols[i], err = array.Concatenate(chunks, memory.DefaultAllocator); err != nil {
			return nil, fault.New(fault.Internal, "joining chunks: %w", err)
		}
	}
	return array.NewRecordBatch(t.Schema(), cols, t.NumRows()), nil
}

// Collect returns all rows as a table on the Go heap, outside the budget. The
// caller releases it.
func (d *Dataset) Collect(ctx context.Context, o *RunOptions) (arrow.Table, error) {
	schema, err := d.Schema(ctx)
	if err != nil {
		return nil, err
	}
	var recs []arrow.RecordBatch
	dicts := map[int]dictCopy{}
	defer func() {
		for _, r := range recs {
			r.Release()
		}
		for _, d := range dicts {
			d.to.Release()
		}
	}()
	for rec, err := range d.Records(ctx, o) {
		if err != nil {
			return nil, err
		}
		c, err := copyRecord(rec, dicts)
		if err != nil {
			return nil, err
		}
		recs = append(recs, c)
	}
	return array.NewTableFromRecords(schema, recs), nil
}

// dictCopy is the dictionary of a column, and its copy.
type dictCopy struct{ from, to arrow.ArrayData }

// copyRecord moves a record out of the budget's memory. dicts, by column, are the dictionaries copied last: batches share them.
func copyRecord(rec arrow.RecordBatch, dicts map[int]dictCopy) (arrow.RecordBatch, error) {
	cols := make([]arrow.Array, rec.NumCols())
	defer func() {
		for _, c := range cols {
			if c != nil {
				c.Release()
			}
		}
	}()
	for i := range cols {
		// Concatenate copies even a single array.
		c, err := array.Concatenate([]arrow.Array{rec.Column(i)}, memory.DefaultAllocator)
		if err != nil {
			return nil, fault.New(fault.Internal, "copying a batch: %w", err)
		}
		cols[i] = c
		if c.DataType().ID() != arrow.DICTIONARY {
			continue
		}
		d := dicts[i]
		if from := c.Data().Dictionary(); d.from != from { // Concatenate copied the indices only
			values := array.MakeFromData(from)
			all, err := array.Concatenate([]arrow.Array{values}, memory.DefaultAllocator)
			values.Release()
			if err != nil {
				return nil, fault.New(fault.Internal, "copying a dictionary: %w", err)
			}
			if d.to != nil {
				d.to.Release()
			}
			d = dictCopy{from, all.Data()}
			d.to.Retain()
			all.Release()
			dicts[i] = d
		}
		own := array.NewDataWithDictionary(c.DataType(), c.Len(), c.Data().Buffers(), c.NullN(), c.Data().Offset(), d.to.(*array.Data))
		cols[i] = array.MakeFromData(own)
		own.Release()
		c.Release()
	}
	return array.NewRecordBatch(rec.Schema(), cols, rec.NumRows()), nil
}

// Count is the number of rows. Where no step changes it and the source knows its
// own, only metadata is read.
func (d *Dataset) Count(ctx context.Context, o *RunOptions) (int64, error) {
	n, err := d.plan(ctx)
	if err != nil {
		return 0, err
	}
	if rows, ok := countFromMetadata(n, o.or().OnError); ok {
		return rows, nil
	}
	st, err := d.Drain(ctx, o)
	return st.RowsOut, err
}
