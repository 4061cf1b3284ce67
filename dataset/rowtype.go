package dataset

import (
	"reflect"
	"strings"
	"time"
	"unicode"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
)

// rowType maps a struct type to columns. The copying in and out is by column:
// one type switch per column and batch, then plain loops over field addresses.
type rowType struct {
	fields []rowField
	size   uintptr
	schema *arrow.Schema
}

type rowField struct {
	name, goName string
	typ          arrow.DataType
	goType       reflect.Type // without pointer
	offset       uintptr
	pointer      bool
}

var (
	timeType  = reflect.TypeFor[time.Time]()
	bytesType = reflect.TypeFor[[]byte]()
)

func rowTypeOf(t reflect.Type) (*rowType, error) {
	if t.Kind() != reflect.Struct || t == timeType {
		return nil, fault.New(fault.Invalid, "rows are Go structs, not %s", t)
	}
	rt := &rowType{size: t.Size()}
	var fs []arrow.Field
	for i := range t.NumField() {
		sf := t.Field(i)
		name := sf.Tag.Get("arrow")
		if !sf.IsExported() || name == "-" {
			continue
		}
		if name == "" {
			name = snake(sf.Name)
		}
		f := rowField{name: name, goName: t.Name() + "." + sf.Name, goType: sf.Type, offset: sf.Offset}
		if sf.Type.Kind() == reflect.Pointer {
			f.pointer, f.goType = true, sf.Type.Elem()
		}
		if f.typ = arrowType(f.goType); f.typ == nil {
			return nil, fault.New(fault.Invalid, "field %s has type %s, which no column can hold; see dataset.MapRows", f.goName, sf.Type)
		}
		rt.fields = append(rt.fields, f)
		fs = append(fs, arrow.Field{Name: name, Type: f.typ, Nullable: f.pointer || f.typ.ID() == arrow.LIST})
	}
	if len(fs) == 0 {
		return nil, fault.New(fault.Invalid, "struct %s has no exported field that stands for a column", t)
	}
	rt.schema = arrow.NewSchema(fs, nil)
	return rt, nil
}

func snake(s string) string {
	var b strings.Builder
	rs := []rune(s)
	for i, r := range rs {
		if unicode.IsUpper(r) {
			if i > 0 && (unicode.IsLower(rs[i-1]) || unicode.IsDigit(rs[i-1]) || i+1 < len(rs) && unicode.IsLower(rs[i+1]) && unicode.IsUpper(rs[i-1])) {
				b.WriteByte('_')
			}
			r = unicode.ToLower(r)
		}
		b.WriteRune(r)
	}
	return b.String()
}

func arrowType(t reflect.Type) arrow.DataType {
	switch {
	case t == timeType:
		return &arrow.TimestampType{Unit: arrow.Microsecond, TimeZone: "UTC"}
	case t == bytesType:
		return arrow.BinaryTypes.Binary
	}
	switch t.Kind() {
	case reflect.Bool:
		return arrow.FixedWidthTypes.Boolean
	case reflect.Int8:
		return arrow.PrimitiveTypes.Int8
	case reflect.Int16:
		return arrow.PrimitiveTypes.Int16
	case reflect.Int32:
		return arrow.PrimitiveTypes.Int32
	case reflect.Int64, reflect.Int:
		return arrow.PrimitiveTypes.Int64
	case reflect.Uint8:
		return arrow.PrimitiveTypes.Uint8
	case reflect.Uint16:
		return arrow.PrimitiveTypes.Uint16
	case reflect.Uint32:
		return arrow.PrimitiveTypes.Uint32
	case reflect.Uint64, reflect.Uint:
		return arrow.PrimitiveTypes.Uint64
	case reflect.Float32:
		return arrow.PrimitiveTypes.Float32
	case reflect.Float64:
		return arrow.PrimitiveTypes.Float64
	case reflect.String:
		return arrow.BinaryTypes.String
	case reflect.Slice:
		if e := t.Elem(); e.Kind() != reflect.Slice && e != timeType || e == bytesType {
			if et := arrowType(e); et != nil {
				return arrow.ListOf(et)
			}
		}
	}
	return nil
}

// decodeRows copies a batch into structs. Strings and slices share one copy of
// the column, on the Go heap: they may be kept.
func decodeRows[T any](rt *rowType, rec arrow.RecordBatch) ([]T, error) {
	rows := make([]T, rec.NumRows())
	if len(rows) == 0 {
		return rows, nil
	}
	base := unsafe.Pointer(&rows[0])
	for _, f := range rt.fields {
		col := rec.Column(rec.Schema().FieldIndices(f.name)[0])
		if !f.pointer && f.typ.ID() != arrow.LIST && col.NullN() > 0 {
			for i := range len(rows) {
				if col.IsNull(i) {
					return nil, fault.New(fault.RowError, "null in a field of type %s: make %s a pointer, or filter nulls out", f.goType, f.goName).
						At(fault.Place{Column: f.name, Row: fault.N(int64(i))})
				}
			}
		}
		if l, ok := col.(*array.List); ok && l.ListValues().NullN() > 0 {
			return nil, fault.New(fault.RowError, "null inside a list: field %s cannot hold it", f.goName).At(fault.Place{Column: f.name})
		}
		f.decode(col, unsafe.Add(base, f.offset), rt.size)
	}
	return rows, nil
}

func (f *rowField) decode(col arrow.Array, at unsafe.Pointer, stride uintptr) {
	switch c := col.(type) {
	case *array.Boolean:
		vs := make([]bool, c.Len())
		for i := range vs {
			vs[i] = c.Value(i)
		}
		scatter(f, c, vs, at, stride)
	case *array.Int8:
		scatter(f, c, c.Int8Values(), at, stride)
	case *array.Int16:
		scatter(f, c, c.Int16Values(), at, stride)
	case *array.Int32:
		scatter(f, c, c.Int32Values(), at, stride)
	case *array.Int64:
		scatter(f, c, c.Int64Values(), at, stride)
	case *array.Uint8:
		scatter(f, c, c.Uint8Values(), at, stride)
	case *array.Uint16:
		scatter(f, c, c.Uint16Values(), at, stride)
	case *array.Uint32:
		scatter(f, c, c.Uint32Values(), at, stride)
	case *array.Uint64:
		scatter(f, c, c.Uint64Values(), at, stride)
	case *array.Float32:
		scatter(f, c, c.Float32Values(), at, stride)
	case *array.Float64:
		scatter(f, c, c.Float64Values(), at, stride)
	case *array.Timestamp:
		vs := make([]time.Time, c.Len())
		for i, v := range c.TimestampValues() {
			vs[i] = v.ToTime(arrow.Microsecond)
		}
		scatter(f, c, vs, at, stride)
	case *array.String:
		scatter(f, c, heapStrings(c), at, stride)
	case *array.Binary:
		vs := make([][]byte, c.Len())
		all := append([]byte(nil), c.ValueBytes()...)
		offs := c.ValueOffsets()
		for i := range vs {
			lo, hi := offs[i]-offs[0], offs[i+1]-offs[0]
			vs[i] = all[lo:hi:hi]
		}
		scatter(f, c, vs, at, stride)
	case *array.List:
		f.decodeList(c, at, stride)
	}
}

// heapStrings copies the column's bytes once; the strings are parts of the copy.
func heapStrings(c *array.String) []string {
	vs := make([]string, c.Len())
	if len(vs) == 0 {
		return vs
	}
	offs, all := c.ValueOffsets(), string(c.ValueBytes())
	for i := range vs {
		vs[i] = all[offs[i]-offs[0] : offs[i+1]-offs[0]]
	}
	return vs
}

// scatter stores vs into the field of every row. With a pointer field vs is
// copied (it may be column memory) and nulls stay nil.
func scatter[V any](f *rowField, c arrow.Array, vs []V, at unsafe.Pointer, stride uintptr) {
	if f.pointer {
		vs = append([]V(nil), vs...)
		for i := range vs {
			if c.IsValid(i) {
				*(**V)(element(at, i, stride)) = &vs[i]
			}
		}
		return
	}
	for i, v := range vs {
		*(*V)(element(at, i, stride)) = v
	}
}

// element points to the i-th field of an array of structs: never one behind the last, which would not be
// a pointer into the array.
func element(at unsafe.Pointer, i int, stride uintptr) unsafe.Pointer {
	return unsafe.Add(at, uintptr(i)*stride)
}

// decodeList makes a slice per row: parts of one slice that holds the column.
func (f *rowField) decodeList(c *array.List, at unsafe.Pointer, stride uintptr) {
	n := c.Len()
	lo, hi := 0, 0
	if n > 0 {
		a, _ := c.ValueOffsets(0)
		_, b := c.ValueOffsets(n - 1)
		lo, hi = int(a), int(b)
	}
	slice := f.goType
	all := reflect.MakeSlice(slice, hi-lo, hi-lo)
	if hi > lo {
		part := array.NewSlice(c.ListValues(), int64(lo), int64(hi))
		elem := rowField{goType: slice.Elem()}
		elem.decode(part, all.UnsafePointer(), slice.Elem().Size())
		part.Release()
	}
	for i := range n {
		if c.IsValid(i) {
			a, b := c.ValueOffsets(i)
			v := all.Slice3(int(a)-lo, int(b)-lo, int(b)-lo)
			dst := element(at, i, stride)
			if f.pointer {
				p := reflect.New(slice)
				p.Elem().Set(v)
				*(*unsafe.Pointer)(dst) = p.UnsafePointer()
			} else {
				reflect.NewAt(slice, dst).Elem().Set(v)
			}
		}
	}
}

// encodeRows makes a batch of structs.
func encodeRows[U any](rt *rowType, rows []U, alloc memory.Allocator) (arrow.RecordBatch, error) {
	b := array.NewRecordBuilder(alloc, rt.schema)
	defer b.Release()
	if len(rows) > 0 {
		base := unsafe.Pointer(&rows[0])
		for i, f := range rt.fields {
			b.Field(i).Reserve(len(rows))
			f.encode(b.Field(i), unsafe.Add(base, f.offset), rt.size, len(rows))
		}
	}
	return b.NewRecordBatch(), nil
}

func (f *rowField) encode(b array.Builder, at unsafe.Pointer, stride uintptr, n int) {
	switch b := b.(type) {
	case *array.BooleanBuilder:
		gather(f, b, b.Append, at, stride, n)
	case *array.Int8Builder:
		gather(f, b, b.Append, at, stride, n)
	case *array.Int16Builder:
		gather(f, b, b.Append, at, stride, n)
	case *array.Int32Builder:
		gather(f, b, b.Append, at, stride, n)
	case *array.Int64Builder:
		gather(f, b, b.Append, at, stride, n)
	case *array.Uint8Builder:
		gather(f, b, b.Append, at, stride, n)
	case *array.Uint16Builder:
		gather(f, b, b.Append, at, stride, n)
	case *array.Uint32Builder:
		gather(f, b, b.Append, at, stride, n)
	case *array.Uint64Builder:
		gather(f, b, b.Append, at, stride, n)
	case *array.Float32Builder:
		gather(f, b, b.Append, at, stride, n)
	case *array.Float64Builder:
		gather(f, b, b.Append, at, stride, n)
	case *array.TimestampBuilder:
		gather(f, b, func(t time.Time) { b.Append(arrow.Timestamp(t.UnixMicro())) }, at, stride, n)
	case *array.StringBuilder:
		gather(f, b, b.Append, at, stride, n)
	case *array.BinaryBuilder:
		gather(f, b, func(v []byte) { b.Append(v) }, at, stride, n)
	case *array.ListBuilder:
		elem := rowField{goType: f.goType.Elem()}
		for i := range n {
			p := element(at, i, stride)
			if f.pointer {
				p = *(*unsafe.Pointer)(p)
			}
			var v reflect.Value
			if p != nil {
				v = reflect.NewAt(f.goType, p).Elem()
			}
			if p == nil || v.IsNil() {
				b.AppendNull()
			} else {
				b.Append(true)
				elem.encode(b.ValueBuilder(), v.UnsafePointer(), f.goType.Elem().Size(), v.Len())
			}
		}
	}
}

func gather[V any](f *rowField, b array.Builder, add func(V), at unsafe.Pointer, stride uintptr, n int) {
	for i := range n {
		x := element(at, i, stride)
		if !f.pointer {
			add(*(*V)(x))
		} else if p := *(**V)(x); p != nil {
			add(*p)
		} else {
			b.AppendNull()
		}
	}
}
