package ipcio

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/cut"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// plain is the type that rows are handed out in: dictionaries and run-end encoded become their
// values, views become strings and binaries, list views lists, small decimals those of 128 bits.
func plain(t arrow.DataType) arrow.DataType {
	switch t := t.(type) {
	case *arrow.DictionaryType:
		return plain(t.ValueType)
	case *arrow.StringViewType:
		return arrow.BinaryTypes.String
	case *arrow.BinaryViewType:
		return arrow.BinaryTypes.Binary
	case *arrow.Decimal32Type:
		return &arrow.Decimal128Type{Precision: t.Precision, Scale: t.Scale}
	case *arrow.Decimal64Type:
		return &arrow.Decimal128Type{Precision: t.Precision, Scale: t.Scale}
	case *arrow.RunEndEncodedType:
		return plain(t.Encoded())
	case *arrow.ListViewType:
		return arrow.ListOfField(plainField(t.ElemField()))
	case *arrow.LargeListViewType:
		return arrow.LargeListOfField(plainField(t.ElemField()))
	case *arrow.StructType:
		fs := make([]arrow.Field, t.NumFields())
		for i, f := range t.Fields() {
			fs[i] = plainField(f)
		}
		return arrow.StructOf(fs...)
	case *arrow.ListType:
		return arrow.ListOfField(plainField(t.ElemField()))
	case *arrow.LargeListType:
		return arrow.LargeListOfField(plainField(t.ElemField()))
	case *arrow.FixedSizeListType:
		return arrow.FixedSizeListOfField(t.Len(), plainField(t.ElemField()))
	case *arrow.MapType:
		m := arrow.MapOfFields(plainField(t.KeyField()), plainField(t.ItemField()))
		m.KeysSorted = t.KeysSorted
		return m
	}
	return t
}

// children are the fields of a nested type.
func children(t arrow.DataType) []arrow.Field {
	if n, ok := t.(arrow.NestedType); ok {
		return n.Fields()
	}
	return nil
}

func plainField(f arrow.Field) arrow.Field {
	f.Type = plain(f.Type)
	return f
}

// flat reports whether arrays of type t are in their plain type already. Nested
// types are rebuilt by plain, so they are compared.
func flat(t arrow.DataType) bool {
	switch t := t.(type) {
	case *arrow.DictionaryType, *arrow.StringViewType, *arrow.BinaryViewType, *arrow.Decimal32Type, *arrow.Decimal64Type,
		*arrow.RunEndEncodedType, *arrow.ListViewType, *arrow.LargeListViewType:
		return false
	case arrow.NestedType:
		for _, f := range t.Fields() {
			if !flat(f.Type) {
				return false
			}
		}
	}
	return true
}

// plainer makes rows plain, in memory of alloc. What takes more than the bytes of the file that
// hold it is judged by growth, for so many bytes of it.
type plainer struct {
	alloc  memory.Allocator
	growth *fileset.Growth
	bytes  int64
}

// flatten returns a reference to the rows of d, which may be a slice, in their
// plain type. Memory is taken for these rows alone.
func (p plainer) flatten(d arrow.ArrayData) (arrow.ArrayData, error) {
	if flat(d.DataType()) {
		d.Retain()
		return d, nil
	}
	n := d.Len()
	switch t := d.DataType().(type) {
	case *arrow.DictionaryType:
		return values(d, p.alloc)
	case *arrow.StringViewType, *arrow.BinaryViewType:
		return unview(d, p.alloc)
	case *arrow.Decimal32Type, *arrow.Decimal64Type:
		return gather.Wider(p.alloc, d), nil
	case *arrow.RunEndEncodedType:
		return p.runs(d)
	case *arrow.ListViewType:
		return listed[int32](p, d)
	case *arrow.LargeListViewType:
		return listed[int64](p, d)
	case *arrow.StructType, *arrow.FixedSizeListType:
		w := 1
		if l, ok := t.(*arrow.FixedSizeListType); ok {
			w = int(l.Len())
		}
		kids, err := p.flattenAll(d.Children(), int64(d.Offset()*w), int64((d.Offset()+n)*w))
		if err != nil {
			return nil, err
		}
		defer releaseAll(kids)
		valid := validity(d, p.alloc)
		defer memory.ReleaseBuffers(valid)
		return array.NewData(plain(t), n, valid, kids, d.NullN(), 0), nil
	case *arrow.ListType, *arrow.MapType:
		return rebase[int32](p, d)
	case *arrow.LargeListType:
		return rebase[int64](p, d)
	}
	return nil, driver.Errorf(driver.Unsupported, "the type %v is not read", d.DataType())
}

func (p plainer) flattenAll(ds []arrow.ArrayData, from, to int64) ([]arrow.ArrayData, error) {
	var out []arrow.ArrayData
	for _, c := range ds {
		s := array.NewSliceData(c, from, to)
		k, err := p.flatten(s)
		s.Release()
		if err != nil {
			releaseAll(out)
			return nil, err
		}
		out = append(out, k)
	}
	return out, nil
}

func releaseAll(ds []arrow.ArrayData) {
	for _, d := range ds {
		d.Release()
	}
}

// validity returns references: the bitmap of d's rows from bit 0 on, or nil.
func validity(d arrow.ArrayData, alloc memory.Allocator) []*memory.Buffer {
	b := d.Buffers()[0]
	if b == nil || b.Len() == 0 {
		return []*memory.Buffer{nil}
	}
	if d.Offset() == 0 {
		b.Retain()
		return []*memory.Buffer{b}
	}
	buf := memory.NewResizableBuffer(alloc)
	buf.Resize(int(bitutil.BytesForBits(int64(d.Len()))))
	clear(buf.Bytes())
	bitutil.CopyBitmap(b.Bytes(), d.Offset(), d.Len(), buf.Bytes(), 0)
	return []*memory.Buffer{buf}
}

// rebase flattens a list: the child is cut to what the rows need.
func rebase[T int32 | int64](p plainer, d arrow.ArrayData) (arrow.ArrayData, error) {
	n := d.Len()
	buf := memory.NewResizableBuffer(p.alloc)
	buf.Resize((n + 1) * arrow.GetDataType[T]().(arrow.FixedWidthDataType).BitWidth() / 8)
	out := arrow.GetData[T](buf.Bytes())
	out[0] = 0
	var first, last T
	if n > 0 {
		o := arrow.GetData[T](d.Buffers()[1].Bytes())[d.Offset() : d.Offset()+n+1]
		first, last = o[0], o[n]
		for i, x := range o {
			out[i] = x - first
		}
	}
	bufs := append(validity(d, p.alloc), buf)
	defer memory.ReleaseBuffers(bufs)
	kids, err := p.flattenAll(d.Children(), int64(first), int64(last))
	if err != nil {
		return nil, err
	}
	defer releaseAll(kids)
	return array.NewData(plain(d.DataType()), n, bufs, kids, d.NullN(), 0), nil
}

// values replaces dictionary indices by what they stand for.
func values(d arrow.ArrayData, alloc memory.Allocator) (arrow.ArrayData, error) {
	a := array.NewDictionaryData(d)
	defer a.Release()
	out, err := gather.Values(alloc, a)
	if err != nil {
		return nil, err
	}
	defer out.Release()
	out.Data().Retain()
	return out.Data(), nil
}

// unview copies views into a string or binary array.
func unview(d arrow.ArrayData, alloc memory.Allocator) (arrow.ArrayData, error) {
	n := d.Len()
	off := memory.NewResizableBuffer(alloc)
	defer off.Release()
	off.Resize(4 * (n + 1))
	out := arrow.Int32Traits.CastFromBytes(off.Bytes())
	out[0] = 0
	var heads []arrow.ViewHeader
	if n > 0 {
		heads = arrow.ViewHeaderTraits.CastFromBytes(d.Buffers()[1].Bytes())[d.Offset() : d.Offset()+n]
	}
	var valid []byte
	if b := d.Buffers()[0]; b != nil && b.Len() > 0 {
		valid = b.Bytes()
	}
	var total int64
	for i := range heads {
		if valid == nil || bitutil.BitIsSet(valid, d.Offset()+i) {
			total += int64(heads[i].Len())
		}
		if total > maxRows {
			return nil, tooLarge(n)
		}
		out[i+1] = int32(total)
	}
	data := memory.NewResizableBuffer(alloc)
	defer data.Release()
	data.Resize(int(total))
	for i := range heads {
		if out[i+1] == out[i] {
			continue
		}
		h := &heads[i]
		if h.IsInline() {
			copy(data.Bytes()[out[i]:], h.InlineBytes())
		} else {
			b := d.Buffers()[2+h.BufferIndex()].Bytes()
			copy(data.Bytes()[out[i]:out[i+1]], b[h.BufferOffset():])
		}
	}
	bufs := validity(d, alloc)
	defer memory.ReleaseBuffers(bufs[:1])
	return array.NewData(plain(d.DataType()), n, append(bufs, off, data), nil, d.NullN(), 0), nil
}

func tooLarge(rows int) error {
	return driver.Errorf(driver.Unsupported, "%d rows of one column take more than 2 GiB; set a smaller batch, or store the column as large_string", rows)
}

// entry is the largest memory that one value of a dictionary takes.
func entry(d arrow.ArrayData) (most int64) {
	for i := range int64(d.Len()) {
		most = max(most, cut.Bytes(d, i, i+1))
	}
	return most
}
