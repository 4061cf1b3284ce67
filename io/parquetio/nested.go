package parquetio

import (
	"bytes"
	"encoding/base64"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/extensions"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"

	arrays "github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/io/driver"
)

// arrow-go cannot write a null list that has values behind it, which every null
// of a fixed-size list has, nor durations, which Parquet does not know. Such lists are
// written as plain lists without those values, durations as integers; the stored Arrow schema says what they were.
// Dictionaries are written as their values: batches have different ones, and arrow-go's way to decode them fails
// on allocators that give more than they were asked for.

// asWritten replaces fixed-size lists, durations, dictionaries, small decimals and extension types
// in t, and makes of fields that say to be UUIDs or JSON what Parquet has types of its own for.
func asWritten(t arrow.DataType) arrow.DataType {
	field := func(f arrow.Field) arrow.Field {
		return arrow.Field{Name: f.Name, Type: fieldAsWritten(f), Nullable: f.Nullable}
	}
	switch t := t.(type) {
	case *arrow.FixedSizeListType:
		return arrow.ListOfField(field(t.ElemField()))
	case *arrow.ListType:
		return arrow.ListOfField(field(t.ElemField()))
	case *arrow.LargeListType:
		return arrow.LargeListOfField(field(t.ElemField()))
	case *arrow.MapType:
		m := arrow.MapOfFields(field(t.KeyField()), field(t.ItemField()))
		m.KeysSorted = t.KeysSorted
		return m
	case *arrow.StructType:
		fields := t.Fields()
		for i := range fields {
			fields[i] = field(fields[i])
		}
		return arrow.StructOf(fields...)
	case *arrow.DictionaryType:
		return asWritten(t.ValueType)
	case *arrow.DurationType:
		return arrow.PrimitiveTypes.Int64
	case *arrow.Decimal32Type:
		return &arrow.Decimal128Type{Precision: t.Precision, Scale: t.Scale}
	case *arrow.Decimal64Type:
		return &arrow.Decimal128Type{Precision: t.Precision, Scale: t.Scale}
	case arrow.ExtensionType:
		return asWritten(t.StorageType())
	}
	return t
}

// fieldAsWritten is asWritten of a field's type: of UUIDs and JSON it is the extension type by
// which arrow-go knows Parquet's.
func fieldAsWritten(f arrow.Field) arrow.DataType {
	t := asWritten(f.Type)
	name, _ := f.Metadata.GetValue(driver.ExtensionName)
	switch {
	case !driver.HoldsExtension(name, t):
	case name == "arrow.uuid":
		return extensions.NewUUIDType()
	case name == "arrow.json":
		if j, err := extensions.NewJSONType(t); err == nil {
			return j
		}
	}
	return t
}

// storedSchema is the metadata that keeps schema s in a file.
func storedSchema(s *arrow.Schema) (arrow.Metadata, error) {
	var b bytes.Buffer
	w := ipc.NewWriter(&b, ipc.WithSchema(s))
	if err := w.Close(); err != nil {
		return arrow.Metadata{}, err
	}
	return arrow.NewMetadata([]string{arrowSchemaKey}, []string{base64.StdEncoding.EncodeToString(b.Bytes())}), nil
}

// noOffsets are the offsets of no values.
var noOffsets = memory.NewBufferBytes(make([]byte, arrow.Int64SizeBytes))

// compact returns a as type t, which is asWritten of its own, with no values
// behind null lists, and with offsets where it has no values: the format lets them be left out, arrow-go's writer does not. The caller releases it.
func compact(a arrow.Array, t arrow.DataType, alloc memory.Allocator) (arrow.Array, error) {
	if x, ok := t.(arrow.ExtensionType); ok {
		s, err := compact(a, x.StorageType(), alloc)
		if err != nil {
			return nil, err
		}
		defer s.Release()
		return array.NewExtensionArrayWithStorage(x, s), nil
	}
	switch a := a.(type) {
	case array.ExtensionArray:
		return compact(a.Storage(), t, alloc)
	case *array.Decimal32, *array.Decimal64:
		d := arrays.Wider(alloc, a.Data())
		defer d.Release()
		return array.MakeFromData(d), nil
	case *array.Struct:
		return compactStruct(a, t, alloc)
	case *array.Map:
		return compactList(a, t, t.(*arrow.MapType).Elem(), alloc)
	case array.ListLike:
		return compactList(a, t, t.(arrow.ListLikeType).Elem(), alloc)
	case *array.Duration:
		return retyped(a.Data(), t), nil
	case *array.Dictionary:
		values, err := arrays.Values(alloc, a)
		if err != nil {
			return nil, err
		}
		defer values.Release()
		return compact(values, t, alloc)
	case *array.String, *array.Binary, *array.LargeString, *array.LargeBinary:
		if a.Len() == 0 {
			d := array.NewData(a.DataType(), 0, []*memory.Buffer{nil, noOffsets, nil}, nil, 0, 0)
			defer d.Release()
			return array.MakeFromData(d), nil
		}
	}
	a.Retain()
	return a, nil
}

// retyped is the array of the same buffers as type t, with another dictionary if there is one.
func retyped(a arrow.ArrayData, t arrow.DataType) arrow.Array {
	d := array.NewData(t, a.Len(), a.Buffers(), nil, a.NullN(), a.Offset())
	defer d.Release()
	return array.MakeFromData(d)
}

func compactStruct(a *array.Struct, t arrow.DataType, alloc memory.Allocator) (arrow.Array, error) {
	fields := t.(*arrow.StructType).Fields()
	kids := make([]arrow.ArrayData, len(fields))
	same := true
	defer func() {
		for _, k := range kids {
			if k != nil {
				k.Release()
			}
		}
	}()
	for i, f := range fields {
		k, err := compact(a.Field(i), f.Type, alloc)
		if err != nil {
			return nil, err
		}
		same = same && k == a.Field(i)
		k.Data().Retain()
		kids[i] = k.Data()
		k.Release()
	}
	if same {
		a.Retain()
		return a, nil
	}
	valid := validity(a, alloc)
	d := array.NewData(t, a.Len(), []*memory.Buffer{valid}, kids, a.NullN(), 0)
	defer d.Release()
	if valid != nil {
		valid.Release()
	}
	return array.MakeFromData(d), nil
}

// validity is the bitmap of a from its first value on; nil without nulls.
func validity(a arrow.Array, alloc memory.Allocator) *memory.Buffer {
	if a.NullN() == 0 {
		return nil
	}
	b := memory.NewResizableBuffer(alloc)
	b.Resize(int(bitutil.BytesForBits(int64(a.Len()))))
	clear(b.Bytes())
	bitutil.CopyBitmap(a.NullBitmapBytes(), a.Data().Offset(), a.Len(), b.Bytes(), 0)
	return b
}

func compactList(a array.ListLike, t, elem arrow.DataType, alloc memory.Allocator) (arrow.Array, error) {
	values, err := compact(a.ListValues(), elem, alloc)
	if err != nil {
		return nil, err
	}
	defer values.Release()
	_, fixed := a.(*array.FixedSizeList)
	behind := false
	for i := 0; a.NullN() > 0 && i < a.Len() && !behind; i++ {
		from, to := a.ValueOffsets(i)
		behind = a.IsNull(i) && from < to
	}
	if !fixed && !behind && values == a.ListValues() && arrow.TypeEqual(a.DataType(), t) { // of large lists it compares names, too
		a.Retain()
		return a, nil
	}
	// Runs of neighbouring lists are kept together.
	var pieces []arrow.Array
	defer func() {
		for _, p := range pieces {
			p.Release()
		}
	}()
	_, large := t.(*arrow.LargeListType)
	offs := memory.NewResizableBuffer(alloc)
	defer offs.Release()
	if large {
		offs.Resize(arrow.Int64Traits.BytesRequired(a.Len() + 1))
	} else {
		offs.Resize(arrow.Int32Traits.BytesRequired(a.Len() + 1))
	}
	var at, runFrom, runTo int64
	flush := func() {
		if runFrom < runTo {
			pieces = append(pieces, array.NewSlice(values, runFrom, runTo))
		}
	}
	for i := 0; ; i++ {
		if large {
			arrow.Int64Traits.CastFromBytes(offs.Bytes())[i] = at
		} else {
			arrow.Int32Traits.CastFromBytes(offs.Bytes())[i] = int32(at)
		}
		if i == a.Len() {
			break
		}
		from, to := a.ValueOffsets(i)
		if a.IsNull(i) || from == to {
			continue
		}
		if from != runTo {
			flush()
			runFrom = from
		}
		runTo = to
		at += to - from
	}
	flush()
	var kept arrow.Array
	switch len(pieces) {
	case 0:
		kept = array.NewSlice(values, 0, 0)
	case 1:
		kept = pieces[0]
		kept.Retain()
	default:
		if kept, err = array.Concatenate(pieces, alloc); err != nil {
			return nil, err
		}
	}
	defer kept.Release()
	valid := validity(a, alloc)
	d := array.NewData(t, a.Len(), []*memory.Buffer{valid, offs}, []arrow.ArrayData{kept.Data()}, a.NullN(), 0)
	defer d.Release()
	if valid != nil {
		valid.Release()
	}
	return array.MakeFromData(d), nil
}
