package ipcio

import (
	"context"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// loader builds the columns of one batch. Everything that a kernel relies on is
// checked: lengths against rows, offsets against what they point into, dictionary
// indices against the dictionary.
type loader struct {
	batch
	layout
	body   body
	dicts  map[int64]arrow.Array
	codecs *codecs
	alloc  memory.Allocator
	ctx    context.Context // of the call that loads; a loader does not outlive it

	growth   *fileset.Growth
	inflated int64 // bytes that buffers claim to decompress to
	overlap  bool  // lists of the column at hand lie on each other
}

// whole is column with a bound for what lists in it that lie on each other become together.
func (l *loader) whole(t arrow.DataType, f field, n int64) (arrow.ArrayData, error) {
	l.overlap = false
	d, err := l.column(t, f, n)
	if err == nil && l.overlap {
		if err = l.growth.Hold(l.body.size, times(nodes(d), slotCost)); err != nil {
			d.Release()
			d = nil
		}
	}
	return d, err
}

// column returns a reference to the column of type t with n rows.
func (l *loader) column(t arrow.DataType, f field, n int64) (arrow.ArrayData, error) {
	rows, claimed := i64(l.nodes, 16*l.node), i64(l.nodes, 16*l.node+8)
	l.node++
	if rows < n || rows > maxRows {
		return nil, driver.Errorf(driver.Corrupt, "%d rows of %v where %d are needed", rows, t, n)
	}
	n = rows
	if _, ok := t.(*arrow.NullType); ok {
		return array.NewData(t, int(n), []*memory.Buffer{nil}, nil, int(n), 0), nil
	}
	if t, ok := t.(*arrow.RunEndEncodedType); ok {
		return l.runs(t, f, n)
	}
	bufs := make([]*memory.Buffer, 0, 4)
	defer func() { memory.ReleaseBuffers(bufs) }()
	next := func() (*memory.Buffer, error) {
		b, err := l.buffer()
		if err == nil {
			bufs = append(bufs, b)
		}
		return b, err
	}
	// Validity. The nulls are counted: what is claimed may be wrong.
	nulls := 0
	if claimed == 0 {
		l.buf++
		bufs = append(bufs, nil)
	} else if b, err := next(); err != nil {
		return nil, err
	} else if b.Len() > 0 {
		if int64(b.Len()) < (n+7)/8 {
			return nil, driver.Errorf(driver.Corrupt, "validity of %d rows in %d bytes", n, b.Len())
		}
		nulls = int(n) - bitutil.CountSetBits(b.Bytes(), 0, int(n))
	} else if claimed > 0 {
		return nil, driver.Errorf(driver.Corrupt, "%d nulls and no validity", claimed)
	} else {
		bufs[0] = nil
	}
	var kids []arrow.ArrayData
	defer func() {
		for _, k := range kids {
			k.Release()
		}
	}()
	child := func(t arrow.DataType, f field, n int64) error {
		k, err := l.column(t, f, n)
		if err == nil {
			kids = append(kids, k)
		}
		return err
	}
	switch t := t.(type) {
	case *arrow.DictionaryType:
		b, err := next()
		if err != nil {
			return nil, err
		}
		if err := width(b, n, t.IndexType); err != nil {
			return nil, err
		}
		d, ok := l.dicts[f.dict]
		if !ok {
			return nil, driver.Errorf(driver.Corrupt, "dictionary %d comes after the batch that needs it, or not at all", f.dict)
		}
		if !arrow.TypeEqual(d.DataType(), plain(t.ValueType)) {
			return nil, driver.Errorf(driver.Corrupt, "dictionary %d holds %v, not %v", f.dict, d.DataType(), t.ValueType)
		}
		idx := array.NewData(t.IndexType, int(n), bufs, nil, nulls, 0)
		defer idx.Release()
		if err := indices(idx, int64(d.Len())); err != nil {
			return nil, err
		}
		return array.NewDataWithDictionary(&arrow.DictionaryType{IndexType: t.IndexType, ValueType: d.DataType(), Ordered: t.Ordered}, int(n), bufs, nulls, 0, d.Data().(*array.Data)), nil
	case *arrow.StructType:
		for i, c := range t.Fields() {
			if err := child(c.Type, f.children[i], n); err != nil {
				return nil, err
			}
		}
	case *arrow.FixedSizeListType:
		if t.Len() < 0 || int64(t.Len())*n > maxRows {
			return nil, driver.Errorf(driver.Corrupt, "%d lists of %d", n, t.Len())
		}
		if err := child(t.Elem(), f.children[0], n*int64(t.Len())); err != nil {
			return nil, err
		}
	case *arrow.ListType, *arrow.MapType:
		if f.kind == kindFixedSizeList { // of 0 values, which Arrow's Go types do not have
			b := memory.NewResizableBuffer(l.alloc)
			bufs = append(bufs, b)
			b.Resize(4 * int(n+1))
			clear(b.Bytes())
			if err := child(t.(*arrow.ListType).Elem(), f.children[0], 0); err != nil {
				return nil, err
			}
			break
		}
		b, err := next()
		if err != nil {
			return nil, err
		}
		end, err := offsets[int32](b, n)
		if err == nil {
			err = child(t.(arrow.NestedType).Fields()[0].Type, f.children[0], end)
		}
		if err != nil {
			return nil, err
		}
	case *arrow.LargeListType:
		b, err := next()
		if err != nil {
			return nil, err
		}
		end, err := offsets[int64](b, n)
		if err == nil {
			err = child(t.Elem(), f.children[0], end)
		}
		if err != nil {
			return nil, err
		}
	case *arrow.ListViewType, *arrow.LargeListViewType:
		for range 2 {
			if _, err := next(); err != nil {
				return nil, err
			}
		}
		if err := child(t.(arrow.ListLikeType).Elem(), f.children[0], 0); err != nil {
			return nil, err
		}
		end, total := int64(kids[0].Len()), int64(0)
		var err error
		if t.ID() == arrow.LIST_VIEW {
			total, err = listViews[int32](bufs, n, end)
		} else {
			total, err = listViews[int64](bufs, n, end)
		}
		if err != nil {
			return nil, err
		}
		l.overlap = l.overlap || total > end
	case *arrow.StringType, *arrow.BinaryType, *arrow.LargeStringType, *arrow.LargeBinaryType:
		o, err := next()
		if err != nil {
			return nil, err
		}
		v, err := next()
		if err != nil {
			return nil, err
		}
		var end int64
		if t.ID() == arrow.STRING || t.ID() == arrow.BINARY {
			end, err = offsets[int32](o, n)
		} else {
			end, err = offsets[int64](o, n)
		}
		if err == nil && end > int64(v.Len()) {
			err = driver.Errorf(driver.Corrupt, "text ends at %d of %d bytes", end, v.Len())
		}
		if err != nil {
			return nil, err
		}
	case *arrow.StringViewType, *arrow.BinaryViewType:
		h, err := next()
		if err != nil {
			return nil, err
		}
		more := int(i64(l.variadic, 8*l.vari))
		l.vari++
		for range more {
			if _, err := next(); err != nil {
				return nil, err
			}
		}
		if err := views(h, bufs[2:], bufs[0], n); err != nil {
			return nil, err
		}
	default:
		b, err := next()
		if err != nil {
			return nil, err
		}
		if f.bool8 {
			if err := width(b, n, arrow.PrimitiveTypes.Int8); err != nil {
				return nil, err
			}
			bufs[1] = l.bools(b, n)
			break
		}
		if err := width(b, n, t); err != nil {
			return nil, err
		}
	}
	return array.NewData(t, int(n), bufs, kids, nulls, 0), nil
}

// runs returns a reference to the run-end encoded column of type t with n rows.
func (l *loader) runs(t *arrow.RunEndEncodedType, f field, n int64) (arrow.ArrayData, error) {
	ends, err := l.column(t.RunEnds(), f.children[0], 0)
	if err != nil {
		return nil, err
	}
	defer ends.Release()
	values, err := l.column(t.Encoded(), f.children[1], 0)
	if err != nil {
		return nil, err
	}
	defer values.Release()
	ok := ends.NullN() == 0 && ends.Len() <= values.Len()
	switch t.RunEnds().ID() {
	case arrow.INT16:
		ok = ok && ascend(arrow.GetValues[int16](ends, 1), n)
	case arrow.INT32:
		ok = ok && ascend(arrow.GetValues[int32](ends, 1), n)
	case arrow.INT64:
		ok = ok && ascend(arrow.GetValues[int64](ends, 1), n)
	}
	if !ok {
		return nil, driver.Errorf(driver.Corrupt, "the ends of runs are null, do not ascend to the %d rows, or are more than the %d values", n, values.Len())
	}
	return array.NewData(t, int(n), []*memory.Buffer{nil}, []arrow.ArrayData{ends, values}, 0, 0), nil
}

// ascend says that ends of runs do, up to n rows at least.
func ascend[T int16 | int32 | int64](ends []T, n int64) bool {
	last := T(0)
	for _, e := range ends {
		if e <= last {
			return false
		}
		last = e
	}
	return int64(last) >= n
}

// listViews checks the n views of bufs, of lists of end elements, and returns how many elements
// they have together.
func listViews[T int32 | int64](bufs []*memory.Buffer, n, end int64) (total int64, err error) {
	o, sizes := arrow.GetData[T](bufs[1].Bytes()), arrow.GetData[T](bufs[2].Bytes())
	if int64(len(o)) < n || int64(len(sizes)) < n {
		return 0, driver.Errorf(driver.Corrupt, "%d list views with %d offsets and %d sizes", n, len(o), len(sizes))
	}
	for i := range n {
		if bufs[0] != nil && !bitutil.BitIsSet(bufs[0].Bytes(), int(i)) {
			continue
		}
		at, size := int64(o[i]), int64(sizes[i])
		if at < 0 || size < 0 || at > end || size > end-at {
			return 0, driver.Errorf(driver.Corrupt, "a list view of %d elements from %d on, of %d", size, at, end)
		}
		if total += size; total > math.MaxInt64/16 {
			return 0, driver.Errorf(driver.Corrupt, "list views of more elements than can be counted")
		}
	}
	return total, nil
}

// bools turns n bytes, which are true if they are not 0, into bits. It takes over b.
func (l *loader) bools(b *memory.Buffer, n int64) *memory.Buffer {
	bits := memory.NewResizableBuffer(l.alloc)
	bits.Resize(int(bitutil.BytesForBits(n)))
	clear(bits.Bytes())
	for i, x := range b.Bytes()[:n] {
		if x != 0 {
			bitutil.SetBit(bits.Bytes(), i)
		}
	}
	b.Release()
	return bits
}

// width checks that b holds n values of t.
func width(b *memory.Buffer, n int64, t arrow.DataType) error {
	bits := int64(t.(arrow.FixedWidthDataType).BitWidth())
	if have := 8 * int64(b.Len()); bits > 0 && n > have/bits {
		return driver.Errorf(driver.Corrupt, "%d rows of %v in %d bytes", n, t, b.Len())
	}
	return nil
}

// offsets checks n+1 offsets and returns the last.
func offsets[T int32 | int64](b *memory.Buffer, n int64) (int64, error) {
	if n == 0 {
		return 0, nil
	}
	o := arrow.GetData[T](b.Bytes())
	if int64(len(o)) < n+1 {
		return 0, driver.Errorf(driver.Corrupt, "%d rows with %d offsets", n, len(o))
	}
	bad := o[0] < 0
	for i := range n {
		bad = bad || o[i+1] < o[i]
	}
	if bad {
		return 0, driver.Errorf(driver.Corrupt, "offsets that do not ascend")
	}
	return int64(o[n]), nil
}

// views checks n view headers.
func views(h *memory.Buffer, data []*memory.Buffer, valid *memory.Buffer, n int64) error {
	if int64(h.Len()) < 16*n {
		return driver.Errorf(driver.Corrupt, "%d views in %d bytes", n, h.Len())
	}
	for i, v := range arrow.ViewHeaderTraits.CastFromBytes(h.Bytes())[:n] {
		if valid != nil && !bitutil.BitIsSet(valid.Bytes(), i) {
			continue
		}
		if v.Len() < 0 {
			return driver.Errorf(driver.Corrupt, "a view of %d bytes", v.Len())
		}
		if !v.IsInline() {
			k, off := int(v.BufferIndex()), int64(v.BufferOffset())
			if k < 0 || k >= len(data) || off < 0 || off+int64(v.Len()) > int64(data[k].Len()) {
				return driver.Errorf(driver.Corrupt, "a view outside its buffers")
			}
		}
	}
	return nil
}

// indices checks that every valid index is below n.
func indices(d arrow.ArrayData, n int64) error {
	a := array.MakeFromData(d)
	defer a.Release()
	ok := true
	switch a := a.(type) {
	case *array.Int8:
		ok = below(a.Values(), a, n)
	case *array.Int16:
		ok = below(a.Values(), a, n)
	case *array.Int32:
		ok = below(a.Values(), a, n)
	case *array.Int64:
		ok = below(a.Values(), a, n)
	case *array.Uint8:
		ok = below(a.Values(), a, n)
	case *array.Uint16:
		ok = below(a.Values(), a, n)
	case *array.Uint32:
		ok = below(a.Values(), a, n)
	case *array.Uint64:
		ok = below(a.Values(), a, n)
	default:
		return driver.Errorf(driver.Corrupt, "dictionary indices of type %v", a.DataType())
	}
	if !ok {
		return driver.Errorf(driver.Corrupt, "an index beyond the %d values of its dictionary", n)
	}
	return nil
}

func below[T int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64](v []T, a arrow.Array, n int64) bool {
	for i, x := range v {
		if uint64(x) >= uint64(n) && a.IsValid(i) {
			return false
		}
	}
	return true
}
