package fileset

import (
	"fmt"
	"math"
	"sort"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/typename"
)

// elements casts what lies in the rows of a, whose row i has [at(i), at(i+1)) of the child, and
// returns that of all rows. What lies under a null is not reported; what is, is for its row, with
// name before why.
func elements(a, child arrow.Array, at func(i int) int64, c *caster, name string, alloc memory.Allocator, bad report) (arrow.Array, error) {
	n := a.Len()
	first, last := at(0), at(n)
	part := array.NewSlice(child, first, last)
	defer part.Release()
	if c.fails && a.NullN() > 0 && part.DataType().ID() != arrow.NULL {
		masked := maskNulls(part, func(hide func(from, to int)) {
			for i := range n {
				if a.IsNull(i) {
					hide(int(at(i)-first), int(at(i+1)-first))
				}
			}
		}, alloc)
		defer masked.Release()
		part = masked
	}
	rowOf := func(k int) int { return sort.Search(n, func(i int) bool { return at(i+1)-first > int64(k) }) }
	return c.array(part, alloc, report{
		has: func(k int) bool { return bad.has(rowOf(k)) },
		add: func(k int, why string) { bad.add(rowOf(k), name+why) },
	})
}

// maskNulls is a with more nulls.
func maskNulls(a arrow.Array, each func(hide func(from, to int)), alloc memory.Allocator) arrow.Array {
	d := a.Data()
	bits := newBuffer(alloc, int(bitutil.BytesForBits(int64(d.Offset()+d.Len()))))
	if b := d.Buffers()[0]; b != nil && b.Len() > 0 {
		copy(bits.Bytes(), b.Bytes())
	} else {
		bitutil.SetBitsTo(bits.Bytes(), 0, int64(d.Offset()+d.Len()), true)
	}
	each(func(from, to int) { bitutil.SetBitsTo(bits.Bytes(), int64(d.Offset()+from), int64(to-from), false) })
	bufs := append([]*memory.Buffer{bits}, d.Buffers()[1:]...)
	defer bits.Release()
	var m *array.Data
	if d.DataType().ID() == arrow.DICTIONARY {
		m = array.NewDataWithDictionary(d.DataType(), d.Len(), bufs, array.UnknownNullCount, d.Offset(), d.Dictionary().(*array.Data))
	} else {
		m = array.NewData(d.DataType(), d.Len(), bufs, d.Children(), array.UnknownNullCount, d.Offset())
	}
	defer m.Release()
	return array.MakeFromData(m)
}

// castList converts lists of any layout. Of a fixed size all must have it that are not null.
func castList(from, to arrow.ListLikeType) *caster {
	elem := castTo(from.Elem(), to.Elem())
	if elem == nil {
		return nil
	}
	size, fixedSize := int64(0), false
	if t, ok := to.(*arrow.FixedSizeListType); ok {
		size, fixedSize = int64(t.Len()), true
	}
	return &caster{to: to, fails: elem.fails || fixedSize, array: func(a arrow.Array, alloc memory.Allocator, bad report) (arrow.Array, error) {
		n, at := a.Len(), offsets(a)
		if n == 0 {
			return gather.Nulls(alloc, to, 0), nil
		}
		same := true
		for i := 0; fixedSize && i < n; i++ {
			if have := at(i+1) - at(i); have != size {
				if same = false; a.IsValid(i) && !bad.has(i) {
					bad.add(i, fmt.Sprintf("a list of %d does not fit %s", have, typename.Name(to)))
				}
			}
		}
		values, err := elements(a, a.(array.ListLike).ListValues(), at, elem, "", alloc, bad)
		if err != nil {
			return nil, err
		}
		defer func() { values.Release() }()
		var bufs []*memory.Buffer
		switch {
		case fixedSize && !same:
			all, err := padded(values, a, at, size, alloc)
			if err != nil {
				return nil, err
			}
			values.Release()
			values = all
		case fixedSize:
		case to.ID() == arrow.LARGE_LIST:
			bufs = append(bufs, offsetsOf[int64](n, at(0), at, alloc))
		case at(n)-at(0) > math.MaxInt32:
			return nil, fault.New(fault.Unsupported, "%d rows have more than 2^31 values; use the type large_list", n)
		default:
			bufs = append(bufs, offsetsOf[int32](n, at(0), at, alloc))
		}
		return nested(to, a, bufs, []arrow.ArrayData{values.Data()}, alloc), nil
	}}
}

// nested makes an array with the nulls of a.
func nested(to arrow.DataType, a arrow.Array, bufs []*memory.Buffer, kids []arrow.ArrayData, alloc memory.Allocator) arrow.Array {
	bufs = append([]*memory.Buffer{validity(a, alloc)}, bufs...)
	d := array.NewData(to, a.Len(), bufs, kids, a.NullN(), 0)
	defer d.Release()
	for _, b := range bufs {
		if b != nil {
			b.Release()
		}
	}
	return array.MakeFromData(d)
}

// padded gives lists of another size, which are null or bad, their values, as a list of a fixed
// size has them.
func padded(values, a arrow.Array, at func(i int) int64, size int64, alloc memory.Allocator) (arrow.Array, error) {
	none := gather.Nulls(alloc, values.DataType(), int(size))
	defer none.Release()
	var runs []gather.Run
	for i := range a.Len() {
		if at(i+1)-at(i) != size {
			runs = append(runs, gather.Run{Rec: 1, N: int32(size)})
		} else {
			runs = append(runs, gather.Run{Row: int32(at(i) - at(0)), N: int32(size)})
		}
	}
	return gather.Column(alloc, []arrow.Array{values, none}, runs)
}

// castStruct matches fields by name: what from lacks is null, what to lacks is left out.
func castStruct(from, to *arrow.StructType) *caster {
	src := make([]int, to.NumFields())
	casts := make([]*caster, to.NumFields())
	fails := false
	for k, f := range to.Fields() {
		at := from.FieldIndices(f.Name)
		switch {
		case len(at) > 1:
			return nil
		case len(at) == 0:
			src[k] = -1
			continue
		}
		src[k] = at[0]
		if casts[k] = castTo(from.Field(at[0]).Type, f.Type); casts[k] == nil {
			return nil
		}
		fails = fails || casts[k].fails
	}
	return fields(to, to, src, casts, fails)
}

// fields makes structs of type to (with the fields of typ) from those of src.
func fields(to arrow.DataType, typ *arrow.StructType, src []int, casts []*caster, fails bool) *caster {
	return &caster{to: to, fails: fails, array: func(a arrow.Array, alloc memory.Allocator, bad report) (arrow.Array, error) {
		n := a.Len()
		kids := make([]arrow.ArrayData, 0, len(src))
		defer func() {
			for _, k := range kids {
				k.Release()
			}
		}()
		s := a.(*array.Struct)
		for k, j := range src {
			var kid arrow.Array
			if j < 0 {
				kid = gather.Nulls(alloc, typ.Field(k).Type, n)
			} else {
				own := array.MakeFromData(s.Data().Children()[j])
				begin := int64(a.Data().Offset())
				var err error
				kid, err = elements(a, own, func(i int) int64 { return begin + int64(i) }, casts[k], fmt.Sprintf("field %q: ", typ.Field(k).Name), alloc, bad)
				own.Release()
				if err != nil {
					return nil, err
				}
			}
			kid.Data().Retain()
			kids = append(kids, kid.Data())
			kid.Release()
		}
		return nested(to, a, nil, kids, alloc), nil
	}}
}

// castMap converts keys and values.
func castMap(from, to *arrow.MapType) *caster {
	k, v := castTo(from.KeyType(), to.KeyType()), castTo(from.ItemType(), to.ItemType())
	if k == nil || v == nil {
		return nil
	}
	pair := fields(to.Elem(), to.Elem().(*arrow.StructType), []int{0, 1}, []*caster{k, v}, k.fails || v.fails)
	return &caster{to: to, fails: pair.fails, array: func(a arrow.Array, alloc memory.Allocator, bad report) (arrow.Array, error) {
		n, at := a.Len(), offsets(a)
		if n == 0 {
			return gather.Nulls(alloc, to, 0), nil
		}
		entries := array.MakeFromData(a.Data().Children()[0])
		defer entries.Release()
		out, err := elements(a, entries, at, pair, "", alloc, bad)
		if err != nil {
			return nil, err
		}
		defer out.Release()
		return nested(to, a, []*memory.Buffer{offsetsOf[int32](n, at(0), at, alloc)}, []arrow.ArrayData{out.Data()}, alloc), nil
	}}
}
