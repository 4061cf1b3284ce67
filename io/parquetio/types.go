package parquetio

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"github.com/penstock-data/penstock/internal/fault"
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
