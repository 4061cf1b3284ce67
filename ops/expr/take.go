package expr

import (
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/sift"
)

// Selection is the rows of a batch for which a mask is true (not null). It holds no
// reference to the mask. Not safe for concurrent use.
type Selection struct {
	picks
	all int
}

// Select finds the rows for which mask is true. It borrows mask.
func Select(mask *array.Boolean) *Selection {
	all := mask.Len()
	t := triOf(vec{typ: boolType, n: all, data: mask.Data()})
	rows := make([]uint64, words(all))
	for k := range rows {
		rows[k], _ = t.word(k)
	}
	if len(rows) > 0 {
		rows[len(rows)-1] &= tailMask(len(rows)-1, all)
	}
	n := sift.Count(rows)
	return &Selection{picks{n: n, rows: rows, dense: n*16 >= all}, all}
}

// Len is how many rows are selected.
func (s *Selection) Len() int { return s.n }

// All reports whether every row is.
func (s *Selection) All() bool { return s.n == s.all }

// Rows are the numbers of the selected rows, ascending. The caller must not modify them.
func (s *Selection) Rows() []int32 { return s.index() }

// Positions writes the numbers of the selected rows, counted from first, to dst: one for each.
func (s *Selection) Positions(dst []int64, first int64) { sift.Index(dst, s.rows, first) }

// Filter returns the selected rows of rec: where all are, rec itself, retained.
// Borrows both.
func Filter(rec arrow.RecordBatch, s *Selection, alloc memory.Allocator) (arrow.RecordBatch, error) {
	if err := checkLen("filter mask", rec.NumRows(), int64(s.all)); err != nil {
		return nil, err
	}
	if s.All() {
		rec.Retain()
		return rec, nil
	}
	return takeBatch(rec, &s.picks, alloc)
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

func takeBatch(rec arrow.RecordBatch, idx *picks, alloc memory.Allocator) (arrow.RecordBatch, error) {
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

// picks are rows to gather: by index, or by a bitmap of which indices are made where
// they are asked for.
type picks struct {
	n     int
	idx   []int32
	rows  []uint64 // bitmap; nil: there is none
	dense bool     // enough of rows are set that the bitmap is the faster way
	none  bool     // some are -1, which stands for null
}

func (p *picks) len() int { return p.n }

func (p *picks) index() []int32 {
	if p.idx == nil && p.n > 0 {
		p.idx = make([]int32, p.n)
		sift.Index(p.idx, p.rows, 0)
	}
	return p.idx
}

// picksOf looks for -1.
func picksOf(idx []int32) *picks {
	var acc int32
	for _, i := range idx {
		acc |= i
	}
	return &picks{n: len(idx), idx: idx, none: acc < 0}
}

// take gathers values of d. It borrows d.
func take(d arrow.ArrayData, idx *picks, mem memory.Allocator) (arrow.ArrayData, error) {
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
func takeBits(b bitmap, p *picks, mem memory.Allocator) *memory.Buffer {
	if b.all() && !p.none {
		return nil
	}
	buf, out := allocBits(mem, p.len())
	if p.dense {
		sift.Bits(out, b.word, p.rows)
		return buf
	}
	all := p.index()
	for k := range out {
		idx := all[k*64 : min(k*64+64, len(all))]
		var w uint64
		if p.none || b.b == nil {
			for j, i := range idx {
				w |= b2u(i >= 0 && b.bit(int(i))) << (j & 63)
			}
		} else {
			for j, i := range idx {
				at := b.off + int(i)
				w |= uint64(b.b[at>>3]>>(at&7)&1) << (j & 63)
			}
		}
		out[k] = w
	}
	return buf
}

func takeValues(d arrow.ArrayData, idx *picks, mem memory.Allocator) *memory.Buffer {
	b := bitmap{none: true}
	if v := d.Buffers()[1]; v != nil {
		b = bitmap{b: v.Bytes(), off: d.Offset()}
	}
	if buf := takeBits(b, idx, mem); buf != nil {
		return buf
	}
	return allocBuffer(mem, 0) // no rows
}

func takeWidth(d arrow.ArrayData, width int, idx *picks, mem memory.Allocator) *memory.Buffer {
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
	var src []byte
	if b := d.Buffers()[1]; b != nil {
		src = b.Bytes()[d.Offset()*width:]
	}
	return gatherWide(src, width, idx, mem)
}

// gatherWide gathers values of any width.
func gatherWide(src []byte, width int, p *picks, mem memory.Allocator) *memory.Buffer {
	buf := allocBuffer(mem, width*p.len())
	out := buf.Bytes()
	for i, n := range p.runs {
		if i < 0 {
			clear(out[:width])
		} else {
			copy(out[:n*width], src[i*width:])
		}
		out = out[n*width:]
	}
	return buf
}

// runs are the rows as runs of n that follow one another from i on, or one that is -1.
func (p *picks) runs(yield func(i, n int) bool) {
	idx := p.index()
	for j := 0; j < len(idx); {
		end := j + 1
		if idx[j] >= 0 {
			for end < len(idx) && idx[end] == idx[end-1]+1 {
				end++
			}
		}
		if !yield(int(idx[j]), end-j) {
			return
		}
		j = end
	}
}

func gather[T sift.Width](d arrow.ArrayData, p *picks, mem memory.Allocator) *memory.Buffer {
	buf, out := allocOf[T](mem, p.len())
	src := fixedOf[T](d)
	if p.dense {
		sift.Keep(out[:p.n], src, p.rows)
		return buf
	}
	idx := p.index()
	out = out[:len(idx)]
	if p.none {
		var zero T
		for j, i := range idx {
			if i < 0 {
				out[j] = zero
			} else {
				out[j] = src[i]
			}
		}
		return buf
	}
	for j, i := range idx {
		out[j] = src[i]
	}
	return buf
}

func tooLarge(t arrow.DataType) error {
	return fault.New(fault.Exhausted, "values of one batch are too many for %s: use smaller batches, or large_%s", TypeName(t), TypeName(t))
}

func takeStrings[O int32 | int64](d arrow.ArrayData, p *picks, mem memory.Allocator) (arrow.ArrayData, error) {
	src, idx := offsets[O](d), p.index()
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
	var data []byte
	if b := d.Buffers()[2]; b != nil {
		data = b.Bytes()
	}
	out := dbuf.Bytes()
	for j := 0; j < len(idx); {
		i, first := idx[j], j
		j++
		if i < 0 {
			continue
		}
		for j < len(idx) && idx[j] == idx[j-1]+1 { // rows that follow one another are one copy
			j++
		}
		copy(out[offs[first]:offs[j]], data[src[i]:])
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

func takeLists[O int32 | int64](d arrow.ArrayData, p *picks, mem memory.Allocator) (arrow.ArrayData, error) {
	src, idx, valid := offsets[O](d), p.index(), validBits(d)
	obuf, offs := allocOf[O](mem, len(idx)+1)
	offs[0] = 0
	var parts spans
	for j, i := range idx {
		if i >= 0 && valid.bit(int(i)) {
			parts.add(int(src[i]), int(src[i+1]-src[i]))
		}
		offs[j+1] = O(parts.n)
	}
	child, err := takeSpans(d.Children()[0], &parts, mem)
	if err != nil {
		obuf.Release()
		return nil, err
	}
	return makeData(d.DataType(), len(idx), takeBits(valid, p, mem), []arrow.ArrayData{child}, obuf), nil
}

func takeFixedLists(d arrow.ArrayData, p *picks, mem memory.Allocator) (arrow.ArrayData, error) {
	width := int(d.DataType().(*arrow.FixedSizeListType).Len())
	var child arrow.ArrayData
	var err error
	if p.none {
		if (d.Offset()+d.Len())*width > math.MaxInt32 {
			return nil, tooLarge(d.DataType())
		}
		elems := make([]int32, 0, p.len()*width)
		for _, i := range p.index() {
			for e := range width {
				at := int32(-1)
				if i >= 0 {
					at = int32((d.Offset()+int(i))*width + e)
				}
				elems = append(elems, at)
			}
		}
		child, err = take(d.Children()[0], &picks{n: len(elems), idx: elems, none: true}, mem)
	} else {
		var parts spans
		for i, n := range p.runs {
			parts.add((d.Offset()+i)*width, n*width)
		}
		child, err = takeSpans(d.Children()[0], &parts, mem)
	}
	if err != nil {
		return nil, err
	}
	return makeData(d.DataType(), p.len(), takeBits(validBits(d), p, mem), []arrow.ArrayData{child}), nil
}

// takeUnion gathers type codes, and of a dense union the places in the children;
// the children of a sparse one are gathered themselves.
func takeUnion(d arrow.ArrayData, p *picks, mem memory.Allocator) (arrow.ArrayData, error) {
	bufs := []*memory.Buffer{takeWidth(d, 1, p, mem)}
	var kids []arrow.ArrayData
	if d.DataType().ID() == arrow.DENSE_UNION {
		at := array.NewData(arrow.PrimitiveTypes.Int32, d.Len(), []*memory.Buffer{nil, d.Buffers()[2]}, nil, 0, d.Offset())
		defer at.Release()
		bufs = append(bufs, gather[uint32](at, p, mem))
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
func takeRuns(d arrow.ArrayData, p *picks, mem memory.Allocator) (arrow.ArrayData, error) {
	var parts []arrow.Array
	defer func() {
		for _, p := range parts {
			p.Release()
		}
	}()
	for i, n := range p.runs {
		if i < 0 {
			parts = append(parts, buildNulls(d.DataType(), 1, mem))
			continue
		}
		part := array.NewSliceData(d, int64(i), int64(i+n))
		parts = append(parts, array.MakeFromData(part))
		part.Release()
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
	return take(empty.Data(), &picks{n: n, idx: idx, none: n > 0}, mem)
}

func buildNulls(t arrow.DataType, n int, mem memory.Allocator) arrow.Array {
	b := array.NewBuilder(mem, t)
	defer b.Release()
	b.AppendNulls(n)
	return b.NewArray()
}
