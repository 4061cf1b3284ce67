// Package cut slices records into batches bounded in rows and bytes, and picks
// columns. For drivers that decode more at once than a scan asked for.
package cut

import (
	"iter"
	"sort"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/near"
)

// Columns resolves a projection: the index of each name in s (nil: all) and the
// schema of what is left. An unknown name is an Invalid error that lists the names there are.
func Columns(s *arrow.Schema, names []string) ([]int, *arrow.Schema, error) {
	if names == nil {
		idx := make([]int, s.NumFields())
		for i := range idx {
			idx[i] = i
		}
		return idx, s, nil
	}
	idx := make([]int, len(names))
	fields := make([]arrow.Field, len(names))
	for i, n := range names {
		at := s.FieldIndices(n)
		if len(at) == 0 {
			return nil, nil, fault.New(fault.Invalid, "unknown column %q%s", n, near.Column(n, s))
		}
		idx[i], fields[i] = at[0], s.Field(at[0])
	}
	return idx, arrow.NewSchema(fields, nil), nil
}

// Pick returns a record of schema with the columns idx of rows [from, to) of rec,
// without copying. Borrows rec.
func Pick(rec arrow.RecordBatch, schema *arrow.Schema, idx []int, from, to int64) arrow.RecordBatch {
	cols := make([]arrow.Array, len(idx))
	whole := from == 0 && to == rec.NumRows()
	for i, c := range idx {
		cols[i] = rec.Column(c)
		if !whole {
			cols[i] = array.NewSlice(rec.Column(c), from, to)
			defer cols[i].Release()
		}
	}
	return array.NewRecordBatch(schema, cols, to-from)
}

// Next returns the end of the batch that begins at row from of these columns:
// at most maxRows rows and maxBytes of decoded memory, at least one row, never
// beyond end.
func Next(cols []arrow.Array, from, end int64, maxRows int, maxBytes int64) int64 {
	to := min(end, from+int64(maxRows))
	size := func(to int64) (n int64) {
		for _, c := range cols {
			n += Bytes(c.Data(), from, to)
		}
		return n
	}
	if to <= from+1 || size(to) <= maxBytes {
		return to
	}
	// The largest number of rows that fits; size is monotone.
	n := sort.Search(int(to-from), func(k int) bool { return size(from+int64(k)+1) > maxBytes })
	return from + max(1, int64(n))
}

// Bytes is the memory that rows [from, to) of d take: offsets, values and validity, counted for
// these rows alone whatever the buffers hold. Of run-end encoded values and of list views it is
// what each row takes by itself, as values and as lists.
func Bytes(d arrow.ArrayData, from, to int64) int64 {
	if to <= from {
		return 0
	}
	n := to - from
	bufs := d.Buffers()
	var total int64
	if len(bufs) > 0 && bufs[0] != nil {
		total = (n + 7) / 8
	}
	off := int64(d.Offset())
	switch dt := d.DataType().(type) {
	case *arrow.NullType:
		return 0
	case arrow.ExtensionType:
		s := array.NewData(dt.StorageType(), d.Len(), bufs, d.Children(), array.UnknownNullCount, d.Offset())
		defer s.Release()
		return Bytes(s, from, to)
	case *arrow.DictionaryType:
		return total + n*int64(dt.IndexType.(arrow.FixedWidthDataType).BitWidth())/8
	case *arrow.StringType, *arrow.BinaryType:
		a, b := offsets32(bufs[1], off+from, off+to)
		return total + 4*n + b - a
	case *arrow.LargeStringType, *arrow.LargeBinaryType:
		a, b := offsets64(bufs[1], off+from, off+to)
		return total + 8*n + b - a
	case arrow.BinaryViewDataType:
		total += 16 * n
		if bufs[1] != nil && bufs[1].Len() > 0 {
			for _, h := range arrow.ViewHeaderTraits.CastFromBytes(bufs[1].Bytes())[off+from : off+to] {
				if !h.IsInline() {
					total += int64(h.Len())
				}
			}
		}
		return total
	case *arrow.ListType, *arrow.MapType:
		a, b := offsets32(bufs[1], off+from, off+to)
		return total + 4*n + Bytes(d.Children()[0], a, b)
	case *arrow.LargeListType:
		a, b := offsets64(bufs[1], off+from, off+to)
		return total + 8*n + Bytes(d.Children()[0], a, b)
	case *arrow.FixedSizeListType:
		w := int64(dt.Len())
		return total + Bytes(d.Children()[0], (off+from)*w, (off+to)*w)
	case *arrow.StructType:
		for _, c := range d.Children() {
			total += Bytes(c, off+from, off+to)
		}
		return total
	case *arrow.ListViewType, *arrow.LargeListViewType:
		each := int64(4)
		if dt.ID() == arrow.LARGE_LIST_VIEW {
			each = 8
		}
		total += each * n
		for i := off + from; i < off+to; i++ {
			a, b := View(d, i)
			total += Bytes(d.Children()[0], a, b)
		}
		return total
	case *arrow.RunEndEncodedType:
		values := d.Children()[1]
		for k, run := range Runs(d, from, to) {
			total += run * Bytes(values, k, k+1)
		}
		return total
	case arrow.FixedWidthDataType:
		return total + (n*int64(dt.BitWidth())+7)/8
	}
	// Unions: an even share of the whole.
	if d.Len() == 0 {
		return total
	}
	return total + int64(d.SizeInBytes())*n/int64(d.Len())
}

// Runs are the values of rows [from, to) of run-end encoded d, by number, and how many of the rows
// have each.
func Runs(d arrow.ArrayData, from, to int64) iter.Seq2[int64, int64] {
	ends := d.Children()[0]
	switch ends.DataType().ID() {
	case arrow.INT16:
		return runs(arrow.GetValues[int16](ends, 1), d, from, to)
	case arrow.INT32:
		return runs(arrow.GetValues[int32](ends, 1), d, from, to)
	}
	return runs(arrow.GetValues[int64](ends, 1), d, from, to)
}

func runs[T int16 | int32 | int64](ends []T, d arrow.ArrayData, from, to int64) iter.Seq2[int64, int64] {
	at, end := int64(d.Offset())+from, int64(d.Offset())+to
	return func(yield func(int64, int64) bool) {
		k := int64(sort.Search(len(ends), func(k int) bool { return int64(ends[k]) > at }))
		for at := at; at < end; k++ {
			to := min(end, int64(ends[k]))
			if !yield(k, to-at) {
				return
			}
			at = to
		}
	}
}

// View is where the list in slot i of the memory of d, list views, lies among the elements. A null
// one has none.
func View(d arrow.ArrayData, i int64) (from, to int64) {
	bufs := d.Buffers()
	if bufs[0] != nil && bufs[0].Len() > 0 && !bitutil.BitIsSet(bufs[0].Bytes(), int(i)) {
		return 0, 0
	}
	if d.DataType().ID() == arrow.LARGE_LIST_VIEW {
		from = arrow.Int64Traits.CastFromBytes(bufs[1].Bytes())[i]
		return from, from + arrow.Int64Traits.CastFromBytes(bufs[2].Bytes())[i]
	}
	from = int64(arrow.Int32Traits.CastFromBytes(bufs[1].Bytes())[i])
	return from, from + int64(arrow.Int32Traits.CastFromBytes(bufs[2].Bytes())[i])
}

// Hollow counts the elements of lists in rows [from, to) of d that Bytes counts nothing for: nulls
// of the null type, values of no bytes.
func Hollow(d arrow.ArrayData, from, to int64) int64 { return hollow(d, from, to, false) }

func hollow(d arrow.ArrayData, from, to int64, listed bool) (total int64) {
	if to <= from {
		return 0
	}
	bufs, off := d.Buffers(), int64(d.Offset())
	var self bool // whether d has no bytes of its own
	switch dt := d.DataType().(type) {
	case *arrow.NullType:
		self = true
	case arrow.ExtensionType:
		s := array.NewData(dt.StorageType(), d.Len(), bufs, d.Children(), array.UnknownNullCount, d.Offset())
		defer s.Release()
		return hollow(s, from, to, listed)
	case *arrow.FixedSizeBinaryType:
		self = dt.ByteWidth == 0
	case *arrow.ListType, *arrow.MapType:
		a, b := offsets32(bufs[1], off+from, off+to)
		return hollow(d.Children()[0], a, b, true)
	case *arrow.LargeListType:
		a, b := offsets64(bufs[1], off+from, off+to)
		return hollow(d.Children()[0], a, b, true)
	case *arrow.FixedSizeListType:
		w := int64(dt.Len())
		self = w == 0
		total = hollow(d.Children()[0], (off+from)*w, (off+to)*w, true)
	case *arrow.StructType:
		self = len(d.Children()) == 0
		for _, c := range d.Children() {
			total += hollow(c, off+from, off+to, listed)
		}
	}
	if self && listed {
		total += to - from
	}
	return total
}

func offsets32(b *memory.Buffer, i, j int64) (int64, int64) {
	o := arrow.Int32Traits.CastFromBytes(b.Bytes())
	if j >= int64(len(o)) {
		return 0, 0 // an empty array may have no offsets
	}
	return int64(o[i]), int64(o[j])
}

func offsets64(b *memory.Buffer, i, j int64) (int64, int64) {
	o := arrow.Int64Traits.CastFromBytes(b.Bytes())
	if j >= int64(len(o)) {
		return 0, 0
	}
	return o[i], o[j]
}
