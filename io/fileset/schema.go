package fileset

import (
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/near"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
)

// Schema is what Unify gives, with the columns that the options choose.
func (s *Set) Schema(files []*arrow.Schema) (*arrow.Schema, error) {
	all, err := s.Unify(files)
	if err != nil {
		return nil, err
	}
	return s.Project(all)
}

// Project leaves the columns that the options choose, in their order.
func (s *Set) Project(all *arrow.Schema) (*arrow.Schema, error) {
	idx, err := Select(all, s.opts.Columns)
	if err != nil {
		return nil, fault.New(fault.Invalid, "columns: %w", err)
	}
	fields := make([]arrow.Field, len(idx))
	for k, i := range idx {
		fields[k] = all.Field(i)
	}
	return arrow.NewSchema(fields, nil), nil
}

// Unify unifies the schemas of the files (files[i] belongs to Files[i]; equal
// ones may share a pointer) and appends partition, path and row columns. The rules: columns in order
// of first appearance; a column that a file lacks is filled with null; numbers widen where
// no value is lost (int to wider int, float32 to float64, int32 to float64), 32-bit strings and
// binaries to 64-bit ones, null to anything; everything else that differs (date32 and timestamp, too) is an
// Invalid error naming file, column and both types. A column with the name of a partition is left out.
// Metadata of the schemas is dropped, that of fields is the first file's, but for an extension type
// (driver.ExtensionName) that is not that of all files.
func (s *Set) Unify(files []*arrow.Schema) (*arrow.Schema, error) {
	if len(files) != len(s.Files) {
		return nil, fault.New(fault.Internal, "%d schemas for %d files", len(files), len(s.Files))
	}
	u := unifier{at: map[string]int{}, part: map[string]bool{}}
	for _, p := range s.parts {
		u.part[p.name] = true
	}
	var last *arrow.Schema
	for i, f := range files {
		if f == last || last != nil && f.Equal(last) {
			continue
		}
		last = f
		if err := u.add(f, i); err != nil {
			return nil, fault.Wrap(err, fault.Place{File: s.Files[i].Path})
		}
	}
	for _, f := range s.Columns() {
		if j, ok := u.at[f.Name]; ok {
			return nil, fault.New(fault.Invalid, "column %q is in the file already; name the path or row column otherwise", f.Name).
				At(fault.Place{File: s.Files[u.from[j]].Path})
		}
		if slices.ContainsFunc(u.fields, func(g arrow.Field) bool { return g.Name == f.Name }) {
			return nil, fault.New(fault.Invalid, "column %q is a partition and the path or row column; name the latter otherwise", f.Name)
		}
		u.fields = append(u.fields, f)
	}
	return arrow.NewSchema(u.fields, nil), nil
}

type unifier struct {
	fields []arrow.Field
	at     map[string]int // column -> index in fields
	from   []int          // file that gave the type
	part   map[string]bool
	files  int
}

func (u *unifier) add(s *arrow.Schema, file int) error {
	have := make(map[string]bool, s.NumFields())
	for _, f := range s.Fields() {
		if have[f.Name] {
			return fault.New(fault.Invalid, "two columns have the name %q", f.Name)
		}
		have[f.Name] = true
		if u.part[f.Name] {
			continue
		}
		j, ok := u.at[f.Name]
		if !ok {
			u.at[f.Name] = len(u.fields)
			f.Nullable = f.Nullable || u.files > 0
			u.fields = append(u.fields, f)
			u.from = append(u.from, file)
			continue
		}
		g := &u.fields[j]
		t, ok := widen(g.Type, f.Type)
		if !ok {
			return fault.New(fault.Invalid, "type is %s, but %s in files before it; cast one of them, or read the files apart",
				typename.Name(f.Type), typename.Name(g.Type)).At(fault.Place{Column: f.Name})
		}
		if !driver.SameExtension(*g, f) || !arrow.TypeEqual(g.Type, t) {
			g.Metadata = driver.Extension(g.Metadata, false)
		}
		g.Type = t
		g.Nullable = g.Nullable || f.Nullable
	}
	for j := range u.fields {
		if !have[u.fields[j].Name] {
			u.fields[j].Nullable = true
		}
	}
	u.files++
	return nil
}

// widen gives the narrowest type that holds every value of both.
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
	if na, nb := numberOf(a), numberOf(b); na.bits > 0 && nb.bits > 0 {
		return na.join(nb)
	}
	switch {
	case either(a, b, arrow.STRING, arrow.LARGE_STRING):
		return arrow.BinaryTypes.LargeString, true
	case either(a, b, arrow.BINARY, arrow.LARGE_BINARY):
		return arrow.BinaryTypes.LargeBinary, true
	case sameShape(a, b):
		return nullable(a), true
	}
	return nil, false
}

func either(a, b arrow.DataType, x, y arrow.Type) bool {
	return a.ID() == x && b.ID() == y || a.ID() == y && b.ID() == x
}

// num is a numeric type: bits of the exact integers it holds, all its bits.
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

func (a num) join(b num) (arrow.DataType, bool) {
	if b.float && !a.float {
		a, b = b, a
	}
	if a.float {
		bits := max(a.bits, b.bits)
		if !b.float { // the mantissa must hold the integer
			switch {
			case b.bits <= 8:
				bits = max(a.bits, 16)
			case b.bits <= 16:
				bits = max(a.bits, 32)
			case b.bits <= 32:
				bits = 64
			default:
				return nil, false
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
	case *arrow.MapType:
		if a.KeysSorted != b.(*arrow.MapType).KeysSorted {
			return false
		}
	case *arrow.ListType, *arrow.LargeListType, *arrow.StructType:
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

// Select resolves the columns of a scan (nil: all) in schema; an unknown one is an
// Invalid error that suggests one and lists what there is.
func Select(schema *arrow.Schema, columns []string) ([]int, error) {
	if columns == nil {
		idx := make([]int, schema.NumFields())
		for i := range idx {
			idx[i] = i
		}
		return idx, nil
	}
	idx := make([]int, len(columns))
	for k, c := range columns {
		is := schema.FieldIndices(c)
		if len(is) == 0 {
			return nil, fault.New(fault.Invalid, "unknown column %q%s", c, near.Column(c, schema))
		}
		idx[k] = is[0]
	}
	return idx, nil
}
