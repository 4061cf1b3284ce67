package expr

import (
	"math"
	"math/bits"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
)

// Filter keeps the rows for which mask is true (not null) and returns them with
// their indices; idx is nil if all rows stay (rec itself, retained). Borrows both.
func Filter(rec arrow.RecordBatch, mask *array.Boolean, alloc memory.Allocator) (out arrow.RecordBatch, idx []int32, err error) {
	n := int(rec.NumRows())
	if err := checkLen("filter mask", int64(n), int64(mask.Len())); err != nil {
		return nil, nil, err
	}
	t := triOf(vec{typ: boolType, n: n, data: mask.Data()})
	count := 0
	for k := range words(n) {
		yes, _ := t.word(k)
		count += bits.OnesCount64(yes & tailMask(k, n))
	}
	if count == n {
		rec.Retain()
		return rec, nil, nil
	}
	idx = make([]int32, count)
	p := 0
	for k := range words(n) {
		yes, _ := t.word(k)
		if yes == ^uint64(0) && k*64+64 <= n {
			for j := range idx[p : p+64] {
				idx[p+j] = int32(k*64 + j)
			}
			p += 64
			continue
		}
		for w := yes & tailMask(k, n); w != 0; w &= w - 1 {
			idx[p] = int32(k*64 + bits.TrailingZeros64(w))
			p++
		}
	}
	out, err = takeBatch(rec, picks{idx: idx, ascending: true}, alloc)
	if err != nil {
		return nil, nil, err
	}
	return out, idx, nil
}

// Take gathers rows by index, in any order, repeats allowed; index -1 gives a row
// of nulls. Borrows rec.
func Take(rec arrow.RecordBatch, idx []int32, alloc memory.Allocator) (arrow.RecordBatch, error) {
	n := rec.NumRows()
	for _, i := range idx {
		if i < -1 || int64(i) >= n {
			return nil, fault.New(fault.Internal, "take: row %d of %d", i, n)
		}
	}
	return takeBatch(rec, picksOf(idx), alloc)
}

func takeBatch(rec arrow.RecordBatch, idx picks, alloc memory.Allocator) (arrow.RecordBatch, error) {
	cols := make([]arrow.Array, 0, rec.NumCols())
	defer func() {
		for _, c := range cols {
			c.Release()
		}
	}()
	for i, c := range rec.Columns() {
		d, err := take(c.Data(), idx, alloc)
		if err != nil {
			return nil, fault.Wrap(err, fault.Place{Column: rec.ColumnName(i)})
		}
		cols = append(cols, array.MakeFromData(d))
		d.Release()
	}
	return array.NewRecordBatch(rec.Schema(), cols, int64(idx.len())), nil
}

// picks are rows to gather.
type picks struct {
	idx       []int32
	ascending bool // each is larger than the one before, and none is -1
	none      bool // some are -1, which stands for null
}

func (p picks) len() int { return len(p.idx) }

// picksOf looks for -1.
func picksOf(idx []int32) picks {
	var acc int32
	for _, i := range idx {
		acc |= i
	}
	return picks{idx: idx, none: acc < 0}
}

// take gathers values of d. It borrows d.
func take(d arrow.ArrayData, idx picks, mem memory.Allocator) (arrow.ArrayData, error) {
	t, n := d.DataType(), idx.len()
	if e, ok := t.(arrow.ExtensionType); ok {
		storage := array.NewData(e.StorageType(), d.Len(), d.Buffers(), d.Children(), d.NullN(), d.Offset())
		defer storage.Release()
		s, err := take(storage, idx, mem)
		if err != nil {
			return nil, err
		}
		defer s.Release()
		return array.NewData(t, s.Len(), s.Buffers(), s.Children(), s.NullN(), 0), nil
	}
	switch t.ID() {
	case arrow.NULL:
		return array.NewData(t, n, []*memory.Buffer{nil}, nil, n, 0), nil
	case arrow.DICTIONARY:
		it := t.(*arrow.DictionaryType).IndexType
		codes := array.NewData(it, d.Len(), d.Buffers(), nil, d.NullN(), d.Offset())
		defer codes.Release()
		c, err := take(codes, idx, mem)
		if err != nil {
			return nil, err
		}
		defer c.Release()
		return array.NewDataWithDictionary(t, n, c.Buffers(), c.NullN(), 0, d.Dictionary().(*array.Data)), nil
	case arrow.BOOL:
		return makeData(t, n, takeBits(validBits(d), idx, mem), nil, takeValues(d, idx, mem)), nil
	case arrow.STRING, arrow.BINARY:
		return takeStrings[int32](d, idx, mem)
	case arrow.LARGE_STRING, arrow.LARGE_BINARY:
		return takeStrings[int64](d, idx, mem)
	case arrow.LIST, arrow.MAP:
		return takeLists[int32](d, idx, mem)
	case arrow.LARGE_LIST:
		return takeLists[int64](d, idx, mem)
	case arrow.FIXED_SIZE_LIST:
		return takeFixedLists(d, idx, mem)
	case arrow.STRUCT:
		valid := takeBits(validBits(d), idx, mem)
		var kids []arrow.ArrayData
		for _, c := range d.Children() {
			part := array.NewSliceData(c, int64(d.Offset()), int64(d.Offset()+d.Len()))
			k, err := take(part, idx, mem)
			part.Release()
			if err != nil {
				for _, k := range kids {
					k.Release()
				}
				if valid != nil {
					valid.Release()
				}
				return nil, err
			}
			kids = append(kids, k)
		}
		return makeData(t, n, valid, kids), nil
	}
	if _, ok := t.(arrow.UnionType); ok && !idx.none {
		return takeUnion(d, idx, mem)
	}
	if f, ok := t.(arrow.FixedWidthDataType); ok {
		return makeData(t, n, takeBits(validBits(d), idx, mem), nil, takeWidth(d, f.Bytes(), idx, mem)), nil
	}
	return takeRuns(d, idx, mem)
}

// takeBits gathers bits; nil if all are one.
func takeBits(b bitmap, p picks, mem memory.Allocator) *memory.Buffer {
	if b.all() && !p.none {
		return nil
	}
	buf, out := allocBits(mem, p.len())
	for k := range out {
		idx := p.idx[k*64 : min(k*64+64, p.len())]
		var w uint64
		switch last := len(idx) - 1; {
		case p.none || b.b == nil:
			for j, i := range idx {
				w |= b2u(i >= 0 && b.bit(int(i))) << (j & 63)
			}
		case p.ascending && int(idx[last]-idx[0]) == last:
			w = bitmap{b: b.b, off: b.off + int(idx[0])}.word(0)
		default:
			for j, i := range idx {
				at := b.off + int(i)
				w |= uint64(b.b[at>>3]>>(at&7)&1) << (j & 63)
			}
		}
		out[k] = w
	}
	return buf
}

func takeValues(d arrow.ArrayData, idx picks, mem memory.Allocator) *memory.Buffer {
	b := bitmap{none: true}
	if v := d.Buffers()[1]; v != nil {
		b = bitmap{b: v.Bytes(), off: d.Offset()}
	}
	if buf := takeBits(b, idx, mem); buf != nil {
		return buf
	}
	return allocBuffer(mem, 0) // no rows
}

func takeWidth(d arrow.ArrayData, width int, idx picks, mem memory.Allocator) *memory.Buffer {
	switch width {
	case 1:
		return gather[uint8](d, idx, mem)
	case 2:
		return gather[uint16](d, idx, mem)
	case 4:
		return gather[uint32](d, idx, mem)
	case 8:
		return gather[uint64](d, idx, mem)
	case 16:
		return gather[[2]uint64](d, idx, mem)
	}
	buf := allocBuffer(mem, width*idx.len())
	out := buf.Bytes()
	var src []byte
	if b := d.Buffers()[1]; b != nil {
		src = b.Bytes()[d.Offset()*width:]
	}
	for j, i := range idx.idx {
		if i < 0 {
			clear(out[j*width : (j+1)*width])
		} else {
			copy(out[j*width:(j+1)*width], src[int(i)*width:])
		}
	}
	return buf
}

func gather[T any](d arrow.ArrayData, p picks, mem memory.Allocator) *memory.Buffer {
	buf, out := allocOf[T](mem, p.len())
	src, idx := fixedOf[T](d), p.idx
	out = out[:len(idx)]
	switch {
	case p.none:
		var zero T
		for j, i := range idx {
			if i < 0 {
				out[j] = zero
			} else {
				out[j] = src[i]
			}
		}
	case p.ascending:
		// Eight rows that follow one another are one copy.
		j := 0
		for ; j+8 <= len(idx); j += 8 {
			q := idx[j : j+8 : j+8]
			o := out[j : j+8 : j+8]
			if i := int(q[0]); q[7]-q[0] == 7 {
				*(*[8]T)(o) = *(*[8]T)(src[i : i+8])
				continue
			}
			for k, i := range q {
				o[k] = src[i]
			}
		}
		for ; j < len(idx); j++ {
			out[j] = src[idx[j]]
		}
	default:
		for j, i := range idx {
			out[j] = src[i]
		}
	}
	return buf
}

func tooLarge(t arrow.DataType) error {
	return fault.New(fault.Exhausted, "values of one batch are too many for %s: use smaller batches, or large_%s", TypeName(t), TypeName(t))
}

func takeStrings[O int32 | int64](d arrow.ArrayData, p picks, mem memory.Allocator) (arrow.ArrayData, error) {
	src, idx := offsets[O](d), p.idx
	obuf, offs := allocOf[O](mem, len(idx)+1)
	offs[0] = 0
	total := int64(0)
	for j, i := range idx {
		if i >= 0 {
			total += int64(src[i+1] - src[i])
		}
		offs[j+1] = O(total)
	}
	if int64(O(total)) != total {
		obuf.Release()
		return nil, tooLarge(d.DataType())
	}
	dbuf := allocBuffer(mem, int(total))
	out := dbuf.Bytes()
	var data []byte
	if b := d.Buffers()[2]; b != nil {
		data = b.Bytes()
	}
	for j := 0; j < len(idx); {
		i := idx[j]
		if i < 0 {
			j++
			continue
		}
		// Rows that follow one another are one copy.
		end := j + 1
		for end < len(idx) && idx[end] == idx[end-1]+1 {
			end++
		}
		copy(out[offs[j]:offs[end]], data[src[i]:])
		j = end
	}
	return makeData(d.DataType(), len(idx), takeBits(validBits(d), p, mem), nil, obuf, dbuf), nil
}

// offsets of an array of strings or lists, one more than rows.
func offsets[O int32 | int64](d arrow.ArrayData) []O {
	b := d.Buffers()[1]
	if b == nil || b.Len() == 0 {
		return make([]O, d.Len()+1)
	}
	return cast[O](b.Bytes())[d.Offset() : d.Offset()+d.Len()+1]
}

func takeLists[O int32 | int64](d arrow.ArrayData, p picks, mem memory.Allocator) (arrow.ArrayData, error) {
	src, idx := offsets[O](d), p.idx
	total := int64(0)
	valid := validBits(d)
	for _, i := range idx {
		if i >= 0 && valid.bit(int(i)) {
			total += int64(src[i+1] - src[i])
		}
	}
	if total > math.MaxInt32 || d.Children()[0].Len() > math.MaxInt32 {
		return nil, tooLarge(d.DataType())
	}
	obuf, offs := allocOf[O](mem, len(idx)+1)
	offs[0] = 0
	elems := make([]int32, 0, total)
	for j, i := range idx {
		if i >= 0 && valid.bit(int(i)) {
			for e := src[i]; e < src[i+1]; e++ {
				elems = append(elems, int32(e))
			}
		}
		offs[j+1] = O(len(elems))
	}
	child, err := take(d.Children()[0], picks{idx: elems, ascending: p.ascending}, mem)
	if err != nil {
		obuf.Release()
		return nil, err
	}
	return makeData(d.DataType(), len(idx), takeBits(valid, p, mem), []arrow.ArrayData{child}, obuf), nil
}

func takeFixedLists(d arrow.ArrayData, p picks, mem memory.Allocator) (arrow.ArrayData, error) {
	idx := p.idx
	width := int(d.DataType().(*arrow.FixedSizeListType).Len())
	if (d.Offset()+d.Len())*width > math.MaxInt32 || len(idx)*width > math.MaxInt32 {
		return nil, tooLarge(d.DataType())
	}
	elems := make([]int32, 0, len(idx)*width)
	for _, i := range idx {
		for e := range width {
			at := int32(-1)
			if i >= 0 {
				at = int32((d.Offset()+int(i))*width + e)
			}
			elems = append(elems, at)
		}
	}
	child, err := take(d.Children()[0], picks{idx: elems, ascending: p.ascending, none: p.none}, mem)
	if err != nil {
		return nil, err
	}
	return makeData(d.DataType(), len(idx), takeBits(validBits(d), p, mem), []arrow.ArrayData{child}), nil
}

// takeUnion gathers type codes, and of a dense union the places in the children;
// the children of a sparse one are gathered themselves.
func takeUnion(d arrow.ArrayData, p picks, mem memory.Allocator) (arrow.ArrayData, error) {
	bufs := []*memory.Buffer{takeWidth(d, 1, p, mem)}
	var kids []arrow.ArrayData
	if d.DataType().ID() == arrow.DENSE_UNION {
		at := array.NewData(arrow.PrimitiveTypes.Int32, d.Len(), []*memory.Buffer{nil, d.Buffers()[2]}, nil, 0, d.Offset())
		defer at.Release()
		bufs = append(bufs, gather[int32](at, p, mem))
		for _, c := range d.Children() {
			c.Retain()
			kids = append(kids, c)
		}
		return makeData(d.DataType(), p.len(), nil, kids, bufs...), nil
	}
	for _, c := range d.Children() {
		part := array.NewSliceData(c, int64(d.Offset()), int64(d.Offset()+d.Len()))
		k, err := take(part, p, mem)
		part.Release()
		if err != nil {
			for _, k := range kids {
				k.Release()
			}
			bufs[0].Release()
			return nil, err
		}
		kids = append(kids, k)
	}
	return makeData(d.DataType(), p.len(), nil, kids, bufs...), nil
}

// takeRuns gathers the rare types (views, run-end encoded) as slices of rows that
// follow one another.
func takeRuns(d arrow.ArrayData, p picks, mem memory.Allocator) (arrow.ArrayData, error) {
	idx := p.idx
	var parts []arrow.Array
	defer func() {
		for _, p := range parts {
			p.Release()
		}
	}()
	for j := 0; j < len(idx); {
		end := j + 1
		if idx[j] < 0 {
			parts = append(parts, buildNulls(d.DataType(), 1, mem))
			j = end
			continue
		}
		for end < len(idx) && idx[end] == idx[end-1]+1 {
			end++
		}
		part := array.NewSliceData(d, int64(idx[j]), int64(idx[end-1])+1)
		parts = append(parts, array.MakeFromData(part))
		part.Release()
		j = end
	}
	if len(parts) == 0 {
		parts = append(parts, buildNulls(d.DataType(), 0, mem))
	}
	all, err := array.Concatenate(parts, mem)
	if err != nil {
		return nil, fault.New(fault.Unsupported, "rows of %s: %w", TypeName(d.DataType()), err)
	}
	defer all.Release()
	all.Data().Retain()
	return all.Data(), nil
}

// nullData is n nulls of type t. (array.MakeArrayOfNull takes memory for zeroed.)
func nullData(t arrow.DataType, n int, mem memory.Allocator) (arrow.ArrayData, error) {
	empty := buildNulls(t, 0, mem)
	defer empty.Release()
	idx := make([]int32, n)
	for i := range idx {
		idx[i] = -1
	}
	return take(empty.Data(), picks{idx: idx, none: true}, mem)
}

func buildNulls(t arrow.DataType, n int, mem memory.Allocator) arrow.Array {
	b := array.NewBuilder(mem, t)
	defer b.Release()
	b.AppendNulls(n)
	return b.NewArray()
}
