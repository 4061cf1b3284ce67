package fileset

import (
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
)

// widen gives the narrowest type that holds every value of both, but for two: integers of 64 bits and
// floats, and date64 and date, meet in a type that does not hold all of the first; what it does not
// hold is an error of the row. docs/schemas.md has the table.
func widen(a, b arrow.DataType) (arrow.DataType, bool) {
	if arrow.TypeEqual(a, b) {
		return a, true
	}
	if a.ID() == arrow.NULL {
		return b, true
	}
	if b.ID() == arrow.NULL {
		return a, true
	}
	if d, ok := a.(*arrow.DictionaryType); ok {
		return widen(d.ValueType, b)
	}
	if d, ok := b.(*arrow.DictionaryType); ok {
		return widen(a, d.ValueType)
	}
	if x, y := numberOf(a), numberOf(b); x.bits > 0 && y.bits > 0 {
		return x.join(y)
	}
	if x, ok := a.(arrow.DecimalType); ok {
		if y, ok := b.(arrow.DecimalType); ok {
			return widenDecimal(x, y)
		}
		return nil, false
	}
	if x, y := timeOf(a), timeOf(b); x.kind != noTime && x.kind == y.kind {
		return x.join(y)
	}
	switch {
	case isList(a) && isList(b):
		return widenList(a, b)
	case isText(a) && isText(b):
		return arrow.BinaryTypes.LargeString, true
	case isBytes(a) && isBytes(b):
		if a.ID() == arrow.LARGE_BINARY || b.ID() == arrow.LARGE_BINARY {
			return arrow.BinaryTypes.LargeBinary, true
		}
		return arrow.BinaryTypes.Binary, true
	case a.ID() == arrow.STRUCT && b.ID() == arrow.STRUCT:
		return widenStruct(a.(*arrow.StructType), b.(*arrow.StructType))
	case a.ID() == arrow.MAP && b.ID() == arrow.MAP:
		x, y := a.(*arrow.MapType), b.(*arrow.MapType)
		k, ok1 := widen(x.KeyType(), y.KeyType())
		v, ok2 := widen(x.ItemType(), y.ItemType())
		if !ok1 || !ok2 {
			return nil, false
		}
		m := arrow.MapOf(nullable(k), nullable(v))
		m.KeysSorted = x.KeysSorted && y.KeysSorted
		return m, true
	}
	return nil, false
}

func isText(t arrow.DataType) bool { return t.ID() == arrow.STRING || t.ID() == arrow.LARGE_STRING }

func isBytes(t arrow.DataType) bool {
	return t.ID() == arrow.BINARY || t.ID() == arrow.LARGE_BINARY || t.ID() == arrow.FIXED_SIZE_BINARY
}

func isList(t arrow.DataType) bool {
	return t.ID() == arrow.LIST || t.ID() == arrow.LARGE_LIST || t.ID() == arrow.FIXED_SIZE_LIST
}

func widenList(a, b arrow.DataType) (arrow.DataType, bool) {
	e, ok := widen(a.(arrow.ListLikeType).Elem(), b.(arrow.ListLikeType).Elem())
	if !ok {
		return nil, false
	}
	e = nullable(e)
	x, ok1 := a.(*arrow.FixedSizeListType)
	y, ok2 := b.(*arrow.FixedSizeListType)
	switch {
	case ok1 && ok2 && x.Len() == y.Len():
		return arrow.FixedSizeListOf(x.Len(), e), true
	case a.ID() == arrow.LARGE_LIST || b.ID() == arrow.LARGE_LIST:
		return arrow.LargeListOf(e), true
	}
	return arrow.ListOf(e), true
}

// widenStruct has the fields of both, in order of first appearance. Fields of one name twice do not meet.
func widenStruct(a, b *arrow.StructType) (arrow.DataType, bool) {
	fs := slices.Clone(a.Fields())
	at := make(map[string]int, len(fs))
	for i := range fs {
		at[fs[i].Name] = i
		fs[i].Nullable = true
	}
	if len(at) < len(fs) {
		return nil, false
	}
	seen := map[string]bool{}
	for _, f := range b.Fields() {
		if seen[f.Name] {
			return nil, false
		}
		seen[f.Name] = true
		i, ok := at[f.Name]
		if !ok {
			f.Nullable = true
			fs = append(fs, f)
			continue
		}
		t, ok := widen(fs[i].Type, f.Type)
		if !ok {
			return nil, false
		}
		fs[i].Type = t
	}
	for i := range fs {
		fs[i].Type = nullable(fs[i].Type)
	}
	return arrow.StructOf(fs...), true
}

// widenDecimal has the larger scale and the larger number of digits before the point.
func widenDecimal(a, b arrow.DecimalType) (arrow.DataType, bool) {
	scale := max(a.GetScale(), b.GetScale())
	p := max(a.GetPrecision()-a.GetScale(), b.GetPrecision()-b.GetScale()) + scale
	switch {
	case p <= 0 || p > 76:
		return nil, false
	case p > 38 || a.BitWidth() == 256 || b.BitWidth() == 256:
		return &arrow.Decimal256Type{Precision: p, Scale: scale}, true
	}
	return &arrow.Decimal128Type{Precision: p, Scale: scale}, true
}

// num is a numeric type: its bits.
type num struct {
	bits          int
	signed, float bool
}

func numberOf(t arrow.DataType) num {
	switch t.ID() {
	case arrow.INT8, arrow.INT16, arrow.INT32, arrow.INT64:
		return num{t.(arrow.FixedWidthDataType).BitWidth(), true, false}
	case arrow.UINT8, arrow.UINT16, arrow.UINT32, arrow.UINT64:
		return num{t.(arrow.FixedWidthDataType).BitWidth(), false, false}
	case arrow.FLOAT16, arrow.FLOAT32, arrow.FLOAT64:
		return num{t.(arrow.FixedWidthDataType).BitWidth(), true, true}
	}
	return num{}
}

// mantissa is the bits of the integers that a type of this many bits holds all of.
var mantissa = map[int]int{16: 11, 32: 24, 64: 53}

func (a num) join(b num) (arrow.DataType, bool) {
	if b.float && !a.float {
		a, b = b, a
	}
	if a.float {
		bits := max(a.bits, b.bits)
		if !b.float {
			for bits = a.bits; bits < 64 && mantissa[bits] < b.bits; bits *= 2 {
			}
		}
		return map[int]arrow.DataType{16: arrow.FixedWidthTypes.Float16, 32: arrow.PrimitiveTypes.Float32, 64: arrow.PrimitiveTypes.Float64}[bits], true
	}
	if a.signed == b.signed {
		return intType(max(a.bits, b.bits), a.signed)
	}
	if a.signed {
		a, b = b, a
	}
	return intType(max(2*a.bits, b.bits), true) // a unsigned, b signed
}

func intType(bits int, signed bool) (arrow.DataType, bool) {
	if bits > 64 {
		return nil, false
	}
	i := map[int]int{8: 0, 16: 1, 32: 2, 64: 3}[bits]
	if signed {
		return []arrow.DataType{arrow.PrimitiveTypes.Int8, arrow.PrimitiveTypes.Int16, arrow.PrimitiveTypes.Int32, arrow.PrimitiveTypes.Int64}[i], true
	}
	return []arrow.DataType{arrow.PrimitiveTypes.Uint8, arrow.PrimitiveTypes.Uint16, arrow.PrimitiveTypes.Uint32, arrow.PrimitiveTypes.Uint64}[i], true
}

type timeKind uint8

const (
	noTime timeKind = iota
	date
	clock
	stamp
	span
)

// when is a type of times: what one unit is in nanoseconds.
type when struct {
	kind timeKind
	unit int64
	typ  arrow.DataType
}

const dayNanos = 86_400_000_000_000

func timeOf(t arrow.DataType) when {
	switch x := t.(type) {
	case *arrow.Date32Type:
		return when{date, dayNanos, t}
	case *arrow.Date64Type:
		return when{date, 1_000_000, t}
	case *arrow.Time32Type:
		return when{clock, int64(x.Unit.Multiplier()), t}
	case *arrow.Time64Type:
		return when{clock, int64(x.Unit.Multiplier()), t}
	case *arrow.TimestampType:
		return when{stamp, int64(x.Unit.Multiplier()), t}
	case *arrow.DurationType:
		return when{span, int64(x.Unit.Multiplier()), t}
	}
	return when{}
}

func zoneOf(t arrow.DataType) string {
	if t, ok := t.(*arrow.TimestampType); ok {
		return t.TimeZone
	}
	return ""
}

// join has the finer unit; of dates it is the day. Of timestamps both have a zone or neither, and the first's stays.
func (a when) join(b when) (arrow.DataType, bool) {
	za, zb := zoneOf(a.typ), zoneOf(b.typ)
	switch {
	case a.kind == date:
		return arrow.FixedWidthTypes.Date32, true
	case a.kind == stamp && (za == "") != (zb == ""):
		return nil, false
	case a.unit <= b.unit:
		return a.typ, true
	case a.kind == stamp:
		return &arrow.TimestampType{Unit: b.typ.(*arrow.TimestampType).Unit, TimeZone: za}, true
	}
	return b.typ, true
}

// sameShape reports whether two nested types differ in nullability, metadata or
// the names of list elements only.
func sameShape(a, b arrow.DataType) bool {
	x, ok1 := a.(arrow.NestedType)
	y, ok2 := b.(arrow.NestedType)
	if !ok1 || !ok2 {
		return arrow.TypeEqual(a, b)
	}
	if a.ID() != b.ID() || x.NumFields() != y.NumFields() {
		return false
	}
	switch a := a.(type) {
	case *arrow.FixedSizeListType:
		if a.Len() != b.(*arrow.FixedSizeListType).Len() {
			return false
		}
	case *arrow.MapType, *arrow.ListType, *arrow.LargeListType, *arrow.StructType:
	default:
		return false
	}
	for i, f := range x.Fields() {
		g := y.Fields()[i]
		if a.ID() == arrow.STRUCT && f.Name != g.Name || !sameShape(f.Type, g.Type) {
			return false
		}
	}
	return true
}

// nullable is t with every nested field allowed to be null (but keys of maps).
func nullable(t arrow.DataType) arrow.DataType {
	switch t := t.(type) {
	case *arrow.ListType:
		return arrow.ListOf(nullable(t.Elem()))
	case *arrow.LargeListType:
		return arrow.LargeListOf(nullable(t.Elem()))
	case *arrow.FixedSizeListType:
		return arrow.FixedSizeListOf(t.Len(), nullable(t.Elem()))
	case *arrow.MapType:
		m := arrow.MapOf(nullable(t.KeyType()), nullable(t.ItemType()))
		m.KeysSorted = t.KeysSorted
		return m
	case *arrow.StructType:
		fs := slices.Clone(t.Fields())
		for i := range fs {
			fs[i].Type, fs[i].Nullable = nullable(fs[i].Type), true
		}
		return arrow.StructOf(fs...)
	}
	return t
}
