// Package gather collects rows of several record batches into new ones: the
// kernels behind batches. One call per column, a loop per run of rows, nothing per
// row that calls an interface or allocates.
//
// Sources are borrowed, results are owned by the caller, and what several calls read
// at the same time is only read, so any number of them may run at once. Runs must lie
// within their records: they are the caller's own arithmetic and are not checked again.
package gather

import (
	"errors"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
)

// Run is N rows of record Rec, from Row on. Shuffled rows are runs of one.
type Run struct{ Rec, Row, N int32 }

// Count is the rows of all runs.
func Count(runs []Run) int {
	n := 0
	for _, r := range runs {
		n += int(r.N)
	}
	return n
}

// Record gives the rows of runs, in that order, as one record of schema; the caller
// owns it. A single run is a slice of its record without a copy, and keeps all of that
// record's memory alive. Records whose column types are not those of schema are an
// Internal error; strings or lists beyond what 32-bit offsets can name an Exhausted one.
func Record(alloc memory.Allocator, schema *arrow.Schema, recs []arrow.RecordBatch, runs []Run) (arrow.RecordBatch, error) {
	for i, rec := range recs {
		if i > 0 && rec.Schema() == recs[i-1].Schema() || rec.Schema() == schema {
			continue
		}
		if err := sameTypes(schema, rec.Schema()); err != nil {
			return nil, err
		}
	}
	n := Count(runs)
	out := make([]arrow.Array, schema.NumFields())
	defer func() {
		for _, c := range out {
			if c != nil {
				c.Release()
			}
		}
	}()
	cols := make([]arrow.Array, len(recs))
	for i := range out {
		for j, rec := range recs {
			cols[j] = rec.Column(i)
		}
		var err error
		if len(cols) == 0 {
			out[i] = Nulls(alloc, schema.Field(i).Type, 0)
		} else if out[i], err = Column(alloc, cols, runs); err != nil {
			return nil, fault.Wrap(err, fault.Place{Column: schema.Field(i).Name})
		}
	}
	return array.NewRecordBatch(schema, out, int64(n)), nil
}

func sameTypes(want, have *arrow.Schema) error {
	if want.NumFields() != have.NumFields() {
		return fault.New(fault.Internal, "gathering records of %d columns into %d", have.NumFields(), want.NumFields())
	}
	for i, f := range want.Fields() {
		if t := have.Field(i).Type; !arrow.TypeEqual(f.Type, t) {
			return fault.New(fault.Internal, "gathering %s into %s", t, f.Type).At(fault.Place{Column: f.Name})
		}
	}
	return nil
}

// Column is Record for one column: cols, at least one and all of one type, are that
// column in each record.
func Column(alloc memory.Allocator, cols []arrow.Array, runs []Run) (arrow.Array, error) {
	if len(runs) == 1 {
		r := runs[0]
		return array.NewSlice(cols[r.Rec], int64(r.Row), int64(r.Row)+int64(r.N)), nil
	}
	srcs := make([]source, len(cols))
	for i, c := range cols {
		srcs[i] = source{c.Data(), c.Data().Offset()}
	}
	d, err := column(alloc, srcs, runs, Count(runs))
	if err != nil {
		return nil, err
	}
	defer d.Release()
	return array.MakeFromData(d), nil
}

// Copy gives the rows of c, which may be a slice, in memory of alloc alone. Dictionaries and views may share theirs.
func Copy(alloc memory.Allocator, c arrow.Array) (arrow.Array, error) {
	d, err := column(alloc, []source{{c.Data(), c.Data().Offset()}}, []Run{{N: int32(c.Len())}}, c.Len())
	if err != nil {
		return nil, err
	}
	defer d.Release()
	return array.MakeFromData(d), nil
}

// source is a column of one record: row 0 of the runs lies at index base of its
// buffers, which the slices of outer structs may have moved beyond the data's own offset.
type source struct {
	arrow.ArrayData
	base int
}

// layout is t without extensions.
func layout(t arrow.DataType) arrow.DataType {
	for {
		e, ok := t.(arrow.ExtensionType)
		if !ok {
			return t
		}
		t = e.StorageType()
	}
}

// column gathers one column and its children. The caller owns the data.
func column(alloc memory.Allocator, srcs []source, runs []Run, rows int) (_ arrow.ArrayData, err error) {
	dt := srcs[0].DataType()
	b := build{alloc: alloc, srcs: srcs, runs: runs, rows: rows}
	defer b.release()
	switch t := layout(dt).(type) {
	case *arrow.NullType:
		return array.NewData(dt, rows, []*memory.Buffer{nil}, nil, rows, 0), nil
	case *arrow.DictionaryType:
		b.validity()
		return b.dictionary(dt, t)
	case *arrow.BooleanType:
		b.validity()
		b.bools()
	case *arrow.StringType, *arrow.BinaryType:
		b.validity()
		err = binary[int32](&b, dt)
	case *arrow.LargeStringType, *arrow.LargeBinaryType:
		b.validity()
		err = binary[int64](&b, dt)
	case *arrow.ListType, *arrow.MapType:
		b.validity()
		err = list[int32](&b, dt)
	case *arrow.LargeListType:
		b.validity()
		err = list[int64](&b, dt)
	case *arrow.FixedSizeListType:
		b.validity()
		err = b.fixedSizeList(int(t.Len()))
	case *arrow.StructType:
		b.validity()
		err = b.fields(t.NumFields())
	case arrow.FixedWidthDataType:
		b.validity()
		b.fixed(t.BitWidth() / 8)
	default:
		return b.concatenate()
	}
	if errors.Is(err, errWide) {
		return b.concatenate()
	}
	if err != nil {
		return nil, err
	}
	return array.NewData(dt, rows, b.bufs, b.children, b.nulls, 0), nil
}

// errWide says that a child has rows which a Run cannot name.
var errWide = fault.New(fault.Internal, "child rows beyond 32 bits")

// build is a column in the making: it owns bufs and children.
type build struct {
	alloc    memory.Allocator
	srcs     []source
	runs     []Run
	rows     int
	bufs     []*memory.Buffer // validity first
	children []arrow.ArrayData
	nulls    int
}

func (b *build) release() {
	for _, x := range b.bufs {
		if x != nil {
			x.Release()
		}
	}
	for _, c := range b.children {
		c.Release()
	}
}

// buffer adds a buffer of n bytes, of any content.
func (b *build) buffer(n int) []byte {
	x := memory.NewResizableBuffer(b.alloc)
	x.Resize(n)
	b.bufs = append(b.bufs, x)
	return x.Bytes()
}

// bytes returns buffer i of every source, cut to begin at row 0 of values of this
// width; nil where there is none.
func (b *build) bytes(i, width int) [][]byte {
	out := make([][]byte, len(b.srcs))
	for k, s := range b.srcs {
		if bs := s.Buffers(); i < len(bs) && bs[i] != nil && bs[i].Len() > 0 {
			out[k] = bs[i].Bytes()[s.base*width:]
		}
	}
	return out
}

// validity adds the bitmap: nil if no row is null, and not even looked for where no
// source has nulls.
func (b *build) validity() {
	b.bufs = append(make([]*memory.Buffer, 0, 3), nil)
	var maps [][]byte
	for i, s := range b.srcs {
		if s.NullN() == 0 {
			continue
		}
		if bs := s.Buffers(); len(bs) > 0 && bs[0] != nil && bs[0].Len() > 0 {
			if maps == nil {
				maps = make([][]byte, len(b.srcs))
			}
			maps[i] = bs[0].Bytes()
		}
	}
	if maps == nil || b.rows == 0 {
		return
	}
	x := memory.NewResizableBuffer(b.alloc)
	x.Resize((b.rows + 7) / 8)
	b.bits(x.Bytes(), maps)
	if b.nulls = b.rows - bitutil.CountSetBits(x.Bytes(), 0, b.rows); b.nulls == 0 {
		x.Release()
		return
	}
	b.bufs[0] = x
}

func (b *build) bools() {
	maps := make([][]byte, len(b.srcs))
	for i, s := range b.srcs {
		if x := s.Buffers()[1]; x != nil {
			maps[i] = x.Bytes()
		}
	}
	b.bits(b.buffer((b.rows+7)/8), maps)
}

// bits gathers from bitmaps; a nil one is all ones.
func (b *build) bits(dst []byte, maps [][]byte) {
	clear(dst)
	o := 0
	for _, r := range b.runs {
		m, at, n := maps[r.Rec], b.srcs[r.Rec].base+int(r.Row), int(r.N)
		switch {
		case n == 1:
			v := byte(1)
			if m != nil {
				v = m[at>>3] >> (at & 7) & 1
			}
			dst[o>>3] |= v << (o & 7)
		case m == nil:
			bitutil.SetBitsTo(dst, int64(o), int64(n), true)
		case n > 0:
			bitutil.CopyBitmap(m, at, n, dst, o)
		}
		o += n
	}
}

func (b *build) fixed(width int) {
	Fixed(b.buffer(b.rows*width), width, b.bytes(1, width), b.runs)
}

// fields gathers the children of a struct, whose rows are those of the struct.
func (b *build) fields(n int) error {
	for i := range n {
		kids := make([]source, len(b.srcs))
		for k, s := range b.srcs {
			c := s.Children()[i]
			kids[k] = source{c, c.Offset() + s.base}
		}
		d, err := column(b.alloc, kids, b.runs, b.rows)
		if err != nil {
			return err
		}
		b.children = append(b.children, d)
	}
	return nil
}

func (b *build) fixedSizeList(width int) error {
	kids := make([]source, len(b.srcs))
	for k, s := range b.srcs {
		c := s.Children()[0]
		kids[k] = source{c, c.Offset() + s.base*width}
	}
	runs := make([]Run, len(b.runs))
	for i, r := range b.runs {
		if (int(r.Row)+int(r.N))*width > math.MaxInt32 {
			return errWide
		}
		runs[i] = Run{r.Rec, r.Row * int32(width), r.N * int32(width)}
	}
	d, err := column(b.alloc, kids, runs, b.rows*width)
	if err != nil {
		return err
	}
	b.children = append(b.children, d)
	return nil
}

// concatenate joins slices, one per run: for views, unions, run-end encoded values
// and children too long for a Run. Slow for short runs.
func (b *build) concatenate() (arrow.ArrayData, error) {
	dt := b.srcs[0].DataType()
	parts := make([]arrow.Array, 0, len(b.runs)+1)
	defer func() {
		for _, p := range parts {
			p.Release()
		}
	}()
	slice := func(r Run) {
		s := b.srcs[r.Rec]
		from := int64(s.base - s.Offset() + int(r.Row))
		d := array.NewSliceData(s.ArrayData, from, from+int64(r.N))
		defer d.Release()
		parts = append(parts, array.MakeFromData(d))
	}
	for _, r := range b.runs {
		if r.N > 0 {
			slice(r)
		}
	}
	if len(parts) == 0 {
		slice(Run{})
	}
	out, err := array.Concatenate(parts, b.alloc)
	if err != nil {
		return nil, fault.New(fault.Unsupported, "rows of type %s cannot be rearranged: convert the column, or drop it (%w)", dt, err)
	}
	defer out.Release()
	d := out.Data()
	d.Retain()
	return d, nil
}
