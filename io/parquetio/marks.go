package parquetio

import (
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"github.com/penstock-data/penstock/io/driver"
)

// marks are what a column and the fields in it say of their extension types.
type marks struct {
	of   arrow.Metadata
	kids []marks
}

// storedMarks are those of a field of a checked Arrow schema.
func storedMarks(f arrow.Field) (m marks) {
	if name, ok := f.Metadata.GetValue(renamed); ok {
		meta, _ := f.Metadata.GetValue(ipc.ExtensionMetadataKeyName)
		m.of = extension(name, meta)
	}
	if n, ok := f.Type.(arrow.NestedType); ok {
		for _, k := range n.Fields() {
			m.kids = append(m.kids, storedMarks(k))
		}
	}
	return m
}

// inside is type t, of mf, whose nested fields say of which extension types they are: by m, else by
// Parquet's own types. Booleans of a byte each become booleans.
func (m marks) inside(t arrow.DataType, mf *pqarrow.SchemaField, s *schema.Schema) arrow.DataType {
	n, ok := t.(arrow.NestedType)
	if !ok || n.NumFields() != len(mf.Children) {
		return t
	}
	fields := slices.Clone(n.Fields())
	for i := range fields {
		f, child, own := &fields[i], &mf.Children[i], marks{}
		if len(m.kids) == len(fields) {
			own = m.kids[i]
		}
		f.Type = own.inside(f.Type, child, s)
		if own.of.Len() == 0 && len(child.Children) == 0 {
			own.of = extensionOf(s.Column(child.ColIndex))
		}
		name, _ := own.of.GetValue(driver.ExtensionName)
		if isBool8(name, f.Type) {
			f.Type = arrow.FixedWidthTypes.Boolean
		} else if driver.HoldsExtension(name, f.Type) {
			f.Metadata = own.of
		}
	}
	return withKids(t, fields)
}

// withKids is the nested type t of these fields.
func withKids(t arrow.DataType, fields []arrow.Field) arrow.DataType {
	switch t := t.(type) {
	case *arrow.StructType:
		return arrow.StructOf(fields...)
	case *arrow.ListType:
		return arrow.ListOfField(fields[0])
	case *arrow.LargeListType:
		return arrow.LargeListOfField(fields[0])
	case *arrow.FixedSizeListType:
		return arrow.FixedSizeListOfField(t.Len(), fields[0])
	case *arrow.MapType:
		pair := fields[0].Type.(*arrow.StructType)
		m := arrow.MapOfFields(pair.Field(0), pair.Field(1))
		m.KeysSorted = t.KeysSorted
		return m
	}
	return t
}

// marked says that a field in t is of an extension type.
func marked(t arrow.DataType) bool {
	n, ok := t.(arrow.NestedType)
	return ok && slices.ContainsFunc(n.Fields(), func(f arrow.Field) bool {
		return f.Metadata.FindKey(driver.ExtensionName) >= 0 || marked(f.Type)
	})
}
