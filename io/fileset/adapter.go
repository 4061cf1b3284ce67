package fileset

import (
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
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

	schema   *arrow.Schema
	cols     []column
	scratch  []arrow.Array
	firstRow int64
}

// column says how one wanted column is made.
type column struct {
	kind colKind
	src  int // index in FileColumns
	typ  arrow.DataType
	val  value       // constant
	made arrow.Array // constant, at least as long as any batch so far
}

type colKind uint8

const (
	asIs colKind = iota
	cast
	constant // null, too
	rowNumber
)

// Adapter prepares file i: schema is the table's (from Schema), file the file's
// own, columns and p as in driver.ScanOptions. firstRow is the row number in the file of row 0 of the split
// (for RowColumn). A file column that schema does not hold in a narrower or equal type is an Invalid error.
func (s *Set) Adapter(i int, schema, file *arrow.Schema, columns []string, p driver.Predicate, firstRow int64) (*Adapter, error) {
	at := fault.Place{File: s.Files[i].Path}
	idx, err := Select(schema, columns)
	if err != nil {
		return nil, err
	}
	consts := map[string]value{}
	for k, c := range s.parts {
		consts[c.name] = s.Files[i].parts[k]
	}
	if c := s.opts.PathColumn; c != "" {
		consts[c] = value{s.Files[i].Path}
	}
	a := &Adapter{cols: make([]column, len(idx)), scratch: make([]arrow.Array, len(idx)), firstRow: firstRow}
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
		if v, ok := consts[f.Name]; ok {
			c.kind, c.val = constant, v
			continue
		}
		if f.Name == s.opts.RowColumn && f.Name != "" {
			c.kind = rowNumber
			continue
		}
		j := inFile(f.Name)
		if j < 0 || file.Field(j).Type.ID() == arrow.NULL {
			c.kind = constant
			continue
		}
		from := file.Field(j).Type
		if !arrow.TypeEqual(from, f.Type) {
			if to, ok := widen(from, f.Type); !ok || !arrow.TypeEqual(to, f.Type) {
				return nil, fault.New(fault.Invalid, "type is %s, but the table has %s; the file changed, or read it apart",
					typename.Name(from), typename.Name(f.Type)).At(fault.Place{File: at.File, Column: f.Name})
			}
			c.kind = cast
		}
		c.src = j
		need[j] = true
	}
	pos := make([]int, len(need))
	for j, n := range need {
		if n {
			pos[j] = len(a.FileColumns)
			a.FileColumns = append(a.FileColumns, file.Field(j).Name)
		}
	}
	for k := range a.cols {
		if c := &a.cols[k]; c.kind <= cast {
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
		to, never, ok := narrow(t, file.Field(j).Type)
		a.Never = a.Never || never
		if ok && !never {
			a.Predicate = append(a.Predicate, to)
		}
	}
	return a, nil
}

// narrow converts the literals of a term over a widened column to the domain of
// the file's type. never says that no row can match; ok is false where the term says nothing.
func narrow(t driver.Term, typ arrow.DataType) (out driver.Term, never, ok bool) {
	n := numberOf(typ)
	if n.bits == 0 || n.float || len(t.Values) == 0 {
		return t, t.Op == driver.In && len(t.Values) == 0, true
	}
	vs := make([]any, 0, len(t.Values))
	for _, v := range t.Values {
		switch x := v.(type) {
		case float64:
			if x == math.Trunc(x) && x >= -(1<<63) && x < 1<<63 {
				v = int64(x)
			}
		case uint64:
			if n.signed && x <= math.MaxInt64 {
				v = int64(x)
			}
		}
		if x, is := v.(int64); is && !n.signed {
			if x >= 0 {
				v = uint64(x)
			} else { // below every value of the column
				switch t.Op {
				case driver.Eq, driver.Lt, driver.Le:
					return t, true, false
				case driver.In:
					continue
				default:
					return driver.Term{Column: t.Column, Op: driver.NotNull}, false, true
				}
			}
		}
		if x, is := v.(uint64); is && n.signed { // above every value
			switch t.Op {
			case driver.Eq, driver.Gt, driver.Ge:
				return t, true, false
			case driver.In:
				continue
			default:
				_ = x
				return driver.Term{Column: t.Column, Op: driver.NotNull}, false, true
			}
		}
		vs = append(vs, v)
	}
	return driver.Term{Column: t.Column, Op: t.Op, Values: vs}, len(vs) == 0, true
}

// Schema of the records that Apply returns.
func (a *Adapter) Schema() *arrow.Schema { return a.schema }

// Apply makes the wanted record from a batch whose record holds FileColumns. Borrows it, returns a reference.
func (a *Adapter) Apply(b driver.Batch, alloc memory.Allocator) (arrow.RecordBatch, error) {
	rec := b.Record
	n := int(rec.NumRows())
	if int(rec.NumCols()) != len(a.FileColumns) {
		return nil, fault.New(fault.Internal, "record of %d columns where %d were asked for", rec.NumCols(), len(a.FileColumns))
	}
	for k := range a.cols {
		a.scratch[k] = a.cols[k].make(&b, a.firstRow, alloc)
	}
	out := array.NewRecordBatch(a.schema, a.scratch, int64(n))
	for k := range a.scratch {
		if a.cols[k].kind != asIs {
			a.scratch[k].Release()
		}
		a.scratch[k] = nil
	}
	return out, nil
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
func (c *column) make(b *driver.Batch, firstRow int64, alloc memory.Allocator) arrow.Array {
	rec := b.Record
	n := int(rec.NumRows())
	switch c.kind {
	case asIs:
		return rec.Column(c.src)
	case cast:
		return widenArray(rec.Column(c.src), c.typ, alloc)
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
		return fromBuffers(c.typ, n, 0, nil, buf)
	}
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
		case constant:
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
