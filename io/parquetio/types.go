package parquetio

import (
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
)

// unitOf is the unit that Options.Int96 names.
func unitOf(int96 string) (arrow.TimeUnit, error) {
	switch int96 {
	case "", "us":
		return arrow.Microsecond, nil
	case "ns":
		return arrow.Nanosecond, nil
	case "ms":
		return arrow.Millisecond, nil
	}
	return 0, fault.New(fault.Invalid, "int96: %q is unknown; use ns, us or ms", int96)
}

// ownTypes gives mf and what is in it the types that are read where arrow-go has others: INT96 has no zone, whatever the stored
// Arrow schema says, and the unit of the option; text that is JSON or of an enumeration is text; extension types are their storage.
func ownTypes(mf *pqarrow.SchemaField, s *schema.Schema, int96 arrow.TimeUnit) {
	f := mf.Field
	if len(mf.Children) == 0 {
		f.Type = ownType(f.Type, s.Column(mf.ColIndex), int96)
		return
	}
	for i := range mf.Children {
		ownTypes(&mf.Children[i], s, int96)
	}
	kid := func(i int) arrow.Field { return *mf.Children[i].Field }
	switch t := storageType(f.Type).(type) {
	case *arrow.StructType:
		fields := t.Fields()
		for i := range fields {
			fields[i].Type = kid(i).Type
		}
		f.Type = arrow.StructOf(fields...)
	case *arrow.MapType:
		key, item := t.KeyField(), t.ItemField()
		key.Type, item.Type = mf.Children[0].Children[0].Field.Type, mf.Children[0].Children[1].Field.Type
		m := arrow.MapOfFields(key, item)
		m.KeysSorted = t.KeysSorted
		f.Type = m
	case *arrow.ListType:
		f.Type = arrow.ListOfField(ofType(t.ElemField(), kid(0).Type))
	case *arrow.LargeListType:
		f.Type = arrow.LargeListOfField(ofType(t.ElemField(), kid(0).Type))
	case *arrow.FixedSizeListType:
		f.Type = arrow.FixedSizeListOfField(t.Len(), ofType(t.ElemField(), kid(0).Type))
	}
}

func ofType(f arrow.Field, t arrow.DataType) arrow.Field {
	f.Type = t
	return f
}

func ownType(t arrow.DataType, c *schema.Column, int96 arrow.TimeUnit) arrow.DataType {
	if c.PhysicalType() == parquet.Types.Int96 && t.ID() == arrow.TIMESTAMP {
		return &arrow.TimestampType{Unit: int96}
	}
	t = storageType(t)
	switch c.LogicalType().(type) {
	case schema.JSONLogicalType, schema.EnumLogicalType:
		switch t.ID() {
		case arrow.BINARY:
			return arrow.BinaryTypes.String
		case arrow.LARGE_BINARY:
			return arrow.BinaryTypes.LargeString
		}
	}
	return t
}

// tooWide says that mf, or what is in it, is a decimal of more digits than Arrow's have.
func tooWide(mf *pqarrow.SchemaField, path string) *driver.Unreadable {
	for i := range mf.Children {
		if u := tooWide(&mf.Children[i], path+"."+mf.Children[i].Field.Name); u != nil {
			return u
		}
	}
	d, ok := mf.Field.Type.(*arrow.Decimal256Type)
	if !ok || d.Precision <= maxDigits {
		return nil
	}
	return driver.NewUnreadable("", path, fmt.Sprintf("decimal(%d, %d)", d.Precision, d.Scale), fmt.Sprintf("a decimal of at most %d digits, double or string", maxDigits))
}

const maxDigits = 76 // of a decimal256

// extension is what a field says of its extension type.
func extension(name, meta string) arrow.Metadata {
	return arrow.NewMetadata([]string{driver.ExtensionName, driver.ExtensionMetadata}, []string{name, meta})
}

// extensionOf is that of a column by Parquet's own types, if it is one.
func extensionOf(c *schema.Column) arrow.Metadata {
	switch c.LogicalType().(type) {
	case schema.JSONLogicalType:
		return extension("arrow.json", "")
	case schema.UUIDLogicalType:
		return extension("arrow.uuid", "")
	}
	return arrow.Metadata{}
}

// extend gives a column of an extension type, whose type is that of the storage, its metadata, by which whoever knows the extension
// finds it, where the storage is what the extension wants. Booleans of a byte each become booleans.
func (s *fileSchema) extend(a *arrow.Field, f *field, ext arrow.Metadata) {
	name, _ := ext.GetValue(driver.ExtensionName)
	if isBool8(name, a.Type) {
		a.Type = arrow.FixedWidthTypes.Boolean
		s.leaves[f.leaves[0]].kind = kindNone // what is said of its numbers is not said of booleans
		return
	}
	if driver.HoldsExtension(name, a.Type) {
		a.Metadata = ext
	}
}

// isBool8 says that values of type t, of the extension type of that name, are booleans of a byte
// each.
func isBool8(name string, t arrow.DataType) bool {
	return name == "arrow.bool8" && t.ID() == arrow.INT8
}

// truths are the booleans that the bytes of a leaf stand for: all but 0 are true.
func (a *assembly) truths(n *node) (arrow.ArrayData, error) {
	bytes := a.leaf(n, arrow.PrimitiveTypes.Int8)
	defer bytes.Release()
	rows := bytes.Len()
	bits, err := a.acct.get((rows + 7) / 8)
	if err != nil {
		return nil, err
	}
	clear(bits)
	for i, v := range arrow.GetValues[int8](bytes, 1) {
		if v != 0 {
			bits[i/8] |= 1 << (i % 8)
		}
	}
	b := a.acct.buffer(&bits, len(bits))
	if b != nil {
		defer b.Release()
	}
	return array.NewData(arrow.FixedWidthTypes.Boolean, rows, []*memory.Buffer{bytes.Buffers()[0], b}, nil, bytes.NullN(), 0), nil
}
