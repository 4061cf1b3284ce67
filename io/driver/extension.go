package driver

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
)

// A column of an extension type is of the type of its storage wherever it goes, and the metadata of
// its field says what it is, under keys of our own: libraries on the way look for Arrow's, and make
// another type of the column. Encoders of formats with metadata write Arrow's: see
// [WithExtensions].
const (
	ExtensionName     = "penstock.extension.name"
	ExtensionMetadata = "penstock.extension.metadata"
)

var extensionKeys = map[string]string{
	ExtensionName: ipc.ExtensionTypeKeyName, ExtensionMetadata: ipc.ExtensionMetadataKeyName,
	ipc.ExtensionTypeKeyName: ExtensionName, ipc.ExtensionMetadataKeyName: ExtensionMetadata,
}

// Extension says in the metadata of a field of which extension type it is: Arrow's keys become
// ours, or the other way round. Unless keep, they are left out.
func Extension(m arrow.Metadata, keep bool) arrow.Metadata {
	var keys, values []string
	for i, k := range m.Keys() {
		if other, ok := extensionKeys[k]; ok {
			if !keep {
				continue
			}
			k = other
		}
		keys, values = append(keys, k), append(values, m.Values()[i])
	}
	return arrow.NewMetadata(keys, values)
}

// WithExtensions is the schema as a file has it, whose fields, nested ones too, say under Arrow's
// keys of which extension types they are, where their types are what others want of these: others
// refuse files with JSON that is a dictionary.
func WithExtensions(s *arrow.Schema) *arrow.Schema {
	md := s.Metadata()
	return arrow.NewSchema(withExtensions(s.Fields()), &md)
}

func withExtensions(fields []arrow.Field) []arrow.Field {
	for i := range fields {
		f := &fields[i]
		if name, ok := f.Metadata.GetValue(ExtensionName); ok {
			f.Metadata = Extension(f.Metadata, HoldsExtension(name, f.Type))
		}
		n, ok := f.Type.(arrow.NestedType)
		if !ok {
			continue
		}
		in := withExtensions(append([]arrow.Field(nil), n.Fields()...))
		switch t := f.Type.(type) {
		case *arrow.StructType:
			f.Type = arrow.StructOf(in...)
		case *arrow.ListType:
			f.Type = arrow.ListOfField(in[0])
		case *arrow.LargeListType:
			f.Type = arrow.LargeListOfField(in[0])
		case *arrow.FixedSizeListType:
			f.Type = arrow.FixedSizeListOfField(t.Len(), in[0])
		case *arrow.MapType:
			pair := in[0].Type.(*arrow.StructType)
			m := arrow.MapOfFields(pair.Field(0), pair.Field(1))
			m.KeysSorted = t.KeysSorted
			f.Type = m
		}
	}
	return fields
}

// HoldsExtension reports whether t is a storage of the extension type of this name, as far as that
// is known.
func HoldsExtension(name string, t arrow.DataType) bool {
	switch name {
	case "":
		return false
	case "arrow.json":
		return t.ID() == arrow.STRING || t.ID() == arrow.LARGE_STRING || t.ID() == arrow.STRING_VIEW
	case "arrow.uuid":
		b, ok := t.(*arrow.FixedSizeBinaryType)
		return ok && b.ByteWidth == 16
	case "arrow.bool8":
		return t.ID() == arrow.INT8
	}
	return true
}

// SameExtension reports whether two fields say the same of extension types.
func SameExtension(a, b arrow.Field) bool {
	for _, k := range []string{ExtensionName, ExtensionMetadata} {
		x, inA := a.Metadata.GetValue(k)
		y, inB := b.Metadata.GetValue(k)
		if inA != inB || x != y {
			return false
		}
	}
	return true
}
