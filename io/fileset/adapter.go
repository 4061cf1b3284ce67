package fileset

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
)

// Adapter turns what a file holds into what the scan wants. Not safe for
// concurrent use: one per Reader. Release frees what it keeps.
type Adapter struct {
	// FileColumns are the columns to read from the file, in its own order.
	FileColumns []string
	// Predicate is the part of the scan's predicate over columns of the file, literals converted
	// to the file's types; Never says that partition values exclude the whole file.
	Predicate driver.Predicate
	Never     bool

	file     string
	schema   *arrow.Schema
	cols     []column
	scratch  []arrow.Array
	firstRow int64
}

// column says how one wanted column is made.
type column struct {
	kind   colKind
	src    int // index in FileColumns
	typ    arrow.DataType
	cast   *caster     // converted, agreed
	said   bool        // the type is one of Options.Types
	val    value       // constant, agreed
	folder string      // agreed: what the folder says
	made   arrow.Array // constant, at least as long as any batch so far
}

type colKind uint8

const (
	asIs colKind = iota
	converted
	agreed // a constant that the file has, too
	constant
	rowNumber
)

// Adapter prepares file i: schema is the table's (from Schema), file the file's
// own, columns and p as in driver.ScanOptions. firstRow is the row number in the file of row 0 of the split
// (for RowColumn). A file column that cannot be converted to the schema's type is an Invalid error.
func (s *Set) Adapter(i int, schema, file *arrow.Schema, columns []string, p driver.Predicate, firstRow int64) (*Adapter, error) {
	at := fault.Place{File: s.Files[i].Path}
	idx, err := Select(schema, columns)
	if err != nil {
		return nil, err
	}
	consts := map[string]value{}
	folders := map[string]string{}
	for k, c := range s.parts {
		consts[c.name], folders[c.name] = s.Files[i].parts[k], s.Files[i].raw[k].text
	}
	if c := s.opts.PathColumn; c != "" {
		consts[c] = value{s.Files[i].Path}
	}
	a := &Adapter{file: at.File, cols: make([]column, len(idx)), scratch: make([]arrow.Array, len(idx)), firstRow: firstRow}
	want := make([]arrow.Field, len(idx))
	need := make([]bool, file.NumFields())
	inFile := func(name string) int {
		if is := file.FieldIndices(name); len(is) > 0 {
			return is[0]
		}
		return -1
	}
	for k, j := range idx {
		f := schema.Field(j)
		want[k] = f
		c := &a.cols[k]
		c.typ = f.Type
		own := inFile(f.Name)
		if v, ok := consts[f.Name]; ok {
			if c.kind, c.val = constant, v; own < 0 {
				continue
			}
			c.kind, c.folder = agreed, folders[f.Name]
		} else if f.Name == s.opts.RowColumn && f.Name != "" {
			c.kind = rowNumber
			continue
		} else if own < 0 || file.Field(own).Type.ID() == arrow.NULL {
			c.kind = constant
			continue
		}
		from := file.Field(own).Type
		if !arrow.TypeEqual(from, f.Type) || c.kind == agreed {
			if c.cast, err = s.caster(f.Name, from, f.Type, c.kind == agreed); err != nil {
				return nil, fault.Wrap(err, fault.Place{File: at.File, Column: f.Name})
			}
			if c.kind == asIs {
				c.kind, c.said = converted, s.types[f.Name] != nil
			}
		}
		c.src = own
		need[own] = true
	}
	pos := make([]int, len(need))
	for j, n := range need {
		if n {
			pos[j] = len(a.FileColumns)
			a.FileColumns = append(a.FileColumns, file.Field(j).Name)
		}
	}
	for k := range a.cols {
		if c := &a.cols[k]; c.kind <= agreed {
			c.src = pos[c.src]
		}
	}
	a.schema = arrow.NewSchema(want, nil)

	for _, t := range p {
		if v, ok := consts[t.Column]; ok {
			a.Never = a.Never || !holds(t, v)
			continue
		}
		if t.Column == s.opts.RowColumn && t.Column != "" {
			continue
		}
		j := inFile(t.Column)
		if j < 0 || file.Field(j).Type.ID() == arrow.NULL {
			a.Never = a.Never || t.Op != driver.IsNull
			continue
		}
		to, never, ok := narrow(t, file.Field(j).Type, schema.Field(schema.FieldIndices(t.Column)[0]).Type)
		a.Never = a.Never || never
		if ok && !never {
			a.Predicate = append(a.Predicate, to)
		}
	}
	return a, nil
}

// caster converts a file's column to the type of the table's; folder says that the latter is a partition's.
func (s *Set) caster(name string, from, to arrow.DataType, folder bool) (*caster, error) {
	c := castTo(from, to)
	if wide, ok := widen(to, from); c != nil && (folder || s.types[name] != nil || ok && arrow.TypeEqual(wide, to)) {
		return c, nil
	}
	if folder {
		return nil, fault.New(fault.Invalid, "the file has a column of type %s, and its folder one of type %s: they cannot be compared; set partitions: none, or leave the column out",
			typename.Name(from), typename.Name(to))
	}
	return nil, fault.New(fault.Invalid, "type is %s, but the table has %s; the file changed since it was looked at: run again", typename.Name(from), typename.Name(to))
}

// Schema of the records that Apply returns.
func (a *Adapter) Schema() *arrow.Schema { return a.schema }

// Apply makes the wanted record from a batch whose record holds FileColumns. Borrows it, returns a
// reference. Rows that cannot be converted are added to bad: they have any values in the record,
// and the caller leaves them out.
func (a *Adapter) Apply(b driver.Batch, alloc memory.Allocator, bad *BadRows) (arrow.RecordBatch, error) {
	rec := b.Record
	n := int(rec.NumRows())
	if int(rec.NumCols()) != len(a.FileColumns) {
		return nil, fault.New(fault.Internal, "record of %d columns where %d were asked for", rec.NumCols(), len(a.FileColumns))
	}
	for k := range a.cols {
		var err error
		var to report
		if kind := a.cols[k].kind; kind == converted || kind == agreed {
			to = a.report(k, b, bad)
		}
		if a.scratch[k], err = a.cols[k].make(b, a.firstRow, alloc, to); err != nil {
			a.drop(k)
			return nil, fault.Wrap(err, fault.Place{File: a.file, Column: a.schema.Field(k).Name})
		}
	}
	out := array.NewRecordBatch(a.schema, a.scratch, int64(n))
	a.drop(len(a.scratch))
	return out, nil
}

// drop gives back the first n columns that were made.
func (a *Adapter) drop(n int) {
	for k := range n {
		if a.cols[k].kind != asIs {
			a.scratch[k].Release()
		}
		a.scratch[k] = nil
	}
}

// report takes what cannot be converted of column k of a batch.
func (a *Adapter) report(k int, b driver.Batch, bad *BadRows) report {
	return report{has: bad.Has, add: func(row int, why string) { bad.Add(row, a.bad(k, &b, row, why)) }}
}

// bad says what a row of a batch has in column k that cannot be converted, and what can be done.
func (a *Adapter) bad(k int, b *driver.Batch, row int, why string) *fault.Error {
	at := fault.Place{File: a.file, Column: a.schema.Field(k).Name, Row: fault.N(b.Row + int64(row))}
	if b.Rows != nil {
		at.Row = fault.N(b.Rows[row])
	}
	switch c := &a.cols[k]; {
	case c.kind == agreed:
		return fault.New(fault.RowError, "%s; set partitions: none to read the file's own column, or mend the file", why).At(at)
	case c.said:
		return fault.New(fault.RowError, "%s, which is the column's type as types says; give it another, or mend the file", why).At(at)
	}
	return fault.New(fault.RowError, "%s, which is the type that the column has in all files together; give it another, types: {%q: ...} of the source, or mend the file",
		why, at.Column).At(at)
}

// Release frees constant columns. Records handed out stay valid. Idempotent.
func (a *Adapter) Release() {
	for k := range a.cols {
		if c := &a.cols[k]; c.made != nil {
			c.made.Release()
			c.made = nil
		}
	}
}

// make returns a reference, but for asIs, which is borrowed.
func (c *column) make(b driver.Batch, firstRow int64, alloc memory.Allocator, bad report) (arrow.Array, error) {
	rec := b.Record
	n := int(rec.NumRows())
	switch c.kind {
	case asIs:
		return rec.Column(c.src), nil
	case converted:
		return c.cast.array(rec.Column(c.src), alloc, bad)
	case agreed:
		return c.agree(b, alloc, bad)
	case rowNumber:
		buf := memory.NewResizableBuffer(alloc)
		buf.Resize(8 * n)
		vs := arrow.Int64Traits.CastFromBytes(buf.Bytes())
		for i := range vs {
			vs[i] = firstRow + b.Row + int64(i)
		}
		for i, row := range b.Rows {
			vs[i] = firstRow + row
		}
		return fromBuffers(c.typ, n, 0, nil, buf), nil
	}
	return c.constant(n, alloc), nil
}

// constant returns a reference.
func (c *column) constant(n int, alloc memory.Allocator) arrow.Array {
	if c.made == nil || c.made.Len() < n {
		if c.made != nil {
			c.made.Release()
		}
		c.made = repeat(c.val, c.typ, n, alloc)
	}
	if c.made.Len() == n {
		c.made.Retain()
		return c.made
	}
	return array.NewSlice(c.made, 0, int64(n))
}

// fromBuffers makes an array of buffers, whose references it takes over.
func fromBuffers(t arrow.DataType, n, nulls int, bufs ...*memory.Buffer) arrow.Array {
	d := array.NewData(t, n, bufs, nil, nulls, 0)
	defer d.Release()
	for _, b := range bufs {
		if b != nil {
			b.Release()
		}
	}
	return array.MakeFromData(d)
}

// repeat makes n times v, which is of a type that partitions may have, or null.
func repeat(v value, t arrow.DataType, n int, alloc memory.Allocator) arrow.Array {
	if v.v == nil {
		return gather.Nulls(alloc, t, n)
	}
	b := array.NewBuilder(alloc, t)
	defer b.Release()
	b.Reserve(n)
	switch b := b.(type) {
	case *array.StringBuilder:
		b.ReserveData(n * len(v.v.(string)))
	case *array.LargeStringBuilder:
		b.ReserveData(n * len(v.v.(string)))
	}
	for range n {
		appendValue(b, v)
	}
	return b.NewArray()
}

func appendValue(b array.Builder, v value) {
	switch b := b.(type) {
	case *array.Int8Builder:
		b.Append(int8(v.v.(int64)))
	case *array.Int16Builder:
		b.Append(int16(v.v.(int64)))
	case *array.Int32Builder:
		b.Append(int32(v.v.(int64)))
	case *array.Int64Builder:
		b.Append(v.v.(int64))
	case *array.Uint8Builder:
		b.Append(uint8(v.v.(uint64)))
	case *array.Uint16Builder:
		b.Append(uint16(v.v.(uint64)))
	case *array.Uint32Builder:
		b.Append(uint32(v.v.(uint64)))
	case *array.Uint64Builder:
		b.Append(v.v.(uint64))
	case *array.Float32Builder:
		b.Append(float32(v.v.(float64)))
	case *array.Float64Builder:
		b.Append(v.v.(float64))
	case *array.BooleanBuilder:
		b.Append(v.v.(bool))
	case *array.Date32Builder:
		b.Append(arrow.Date32(v.v.(int64)))
	case *array.Date64Builder:
		b.Append(arrow.Date64(v.v.(int64)))
	case *array.Time32Builder:
		b.Append(arrow.Time32(v.v.(int64)))
	case *array.Time64Builder:
		b.Append(arrow.Time64(v.v.(int64)))
	case *array.TimestampBuilder:
		b.Append(arrow.Timestamp(v.v.(int64)))
	case *array.Decimal128Builder:
		b.Append(v.v.(decimal128.Num))
	case *array.StringBuilder:
		b.Append(v.v.(string))
	case *array.LargeStringBuilder:
		b.Append(v.v.(string))
	default:
		panic("fileset: constant of type " + b.Type().String())
	}
}

// RowBytes is the memory that each row takes of columns that the file does not
// hold: constants and row numbers.
func (a *Adapter) RowBytes() (n int64) {
	for k := range a.cols {
		switch c := &a.cols[k]; c.kind {
		case rowNumber:
			n += 8
		case constant, agreed:
			if w, ok := c.typ.(arrow.FixedWidthDataType); ok {
				n += int64(w.BitWidth()+7) / 8
			} else if s, ok := c.val.v.(string); ok {
				n += 4 + int64(len(s))
			} else {
				n += 4
			}
		}
	}
	return n
}
