package expr

import (
	"fmt"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/float16"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
)

// decoded is v in a plain layout: dictionaries, views and runs as values, half
// floats as floats, extensions as their storage. Passing a column through does
// not decode it.
func decoded(v *bound) *bound {
	t := plainType(v.typ)
	if t == nil {
		return v
	}
	out := op(v.src, t, func(x *exec, a []vec) vec {
		d, err := plain(a[0].data, x.mem)
		if err != nil {
			x.failBatch(err)
			return x.nulls(t, a[0].n)
		}
		return vec{typ: t, n: a[0].n, data: d}
	}, v)
	return decoded(out)
}

// plainType is the type that values of t decode to, nil if it is plain already.
func plainType(t arrow.DataType) arrow.DataType {
	switch t := t.(type) {
	case *arrow.DictionaryType:
		return t.ValueType
	case *arrow.RunEndEncodedType:
		return t.Encoded()
	case *arrow.StringViewType:
		return arrow.BinaryTypes.String
	case *arrow.BinaryViewType:
		return arrow.BinaryTypes.Binary
	case *arrow.Float16Type:
		return arrow.PrimitiveTypes.Float32
	case arrow.ExtensionType:
		return t.StorageType()
	}
	return nil
}

// plain decodes one level. It borrows d and returns a reference.
func plain(d arrow.ArrayData, mem memory.Allocator) (arrow.ArrayData, error) {
	n := d.Len()
	switch t := d.DataType().(type) {
	case arrow.ExtensionType:
		return array.NewData(t.StorageType(), n, d.Buffers(), d.Children(), d.NullN(), d.Offset()), nil
	case *arrow.Float16Type:
		buf, out := allocOf[float32](mem, n)
		for i, h := range fixedOf[float16.Num](d) {
			out[i] = h.Float32()
		}
		x := &exec{mem: mem}
		valid := x.valid(n, vec{data: d})
		return makeData(arrow.PrimitiveTypes.Float32, n, valid, nil, buf), nil
	}
	arr := array.MakeFromData(d)
	defer arr.Release()
	idx := make([]int32, n)
	switch a := arr.(type) {
	case *array.Dictionary:
		for i := range idx {
			idx[i] = -1
			if a.IsValid(i) {
				idx[i] = int32(a.GetValueIndex(i))
			}
		}
		return take(a.Dictionary().Data(), picksOf(idx), mem)
	case *array.RunEndEncoded:
		for i := range idx {
			idx[i] = int32(a.GetPhysicalIndex(i))
		}
		return take(a.Values().Data(), picksOf(idx), mem)
	case array.ViewLike:
		x := &exec{n: n, mem: mem}
		valid := x.valid(n, vec{data: d})
		o := newStrings(x, plainType(d.DataType()), n, valid)
		for i := range n {
			if arr.IsValid(i) {
				switch v := arr.(type) {
				case *array.StringView:
					put(o, v.Value(i))
				case *array.BinaryView:
					put(o, v.Value(i))
				}
			}
			o.end()
		}
		out := o.done()
		if x.err != nil {
			return nil, x.err
		}
		return out.data, nil
	}
	return nil, fault.New(fault.Internal, "decode %s", d.DataType())
}

// halve makes half floats of floats; it takes over v.
func halve(x *exec, v vec) vec {
	defer v.release()
	buf, out := allocOf[float16.Num](x.mem, v.n)
	for i, f := range fixed[float32](v) {
		out[i] = float16.New(f)
	}
	return x.array(arrow.FixedWidthTypes.Float16, v.n, x.valid(v.n, v), buf)
}

// fieldKernel reads a field of a struct; a null struct has null fields.
func fieldKernel(idx int) kernel {
	return func(x *exec, a []vec) vec {
		d := a[0].data
		child := array.NewSliceData(d.Children()[idx], int64(d.Offset()), int64(d.Offset()+d.Len()))
		outer := validBits(d)
		t := child.DataType()
		if outer.all() || t.ID() == arrow.NULL {
			return vec{typ: t, n: a[0].n, data: child}
		}
		defer child.Release()
		if hasValidity(t) {
			valid := x.andBits(a[0].n, outer, validBits(child))
			return vec{typ: t, n: a[0].n, data: withValidity(x, child, valid)}
		}
		idx := make([]int32, a[0].n)
		for i := range idx {
			idx[i] = int32(i)
			if !outer.bit(i) {
				idx[i] = -1
			}
		}
		out, err := take(child, picksOf(idx), x.mem)
		if err != nil {
			x.failBatch(err)
			return x.nulls(t, a[0].n)
		}
		return vec{typ: t, n: a[0].n, data: out}
	}
}

// hasValidity reports whether arrays of t have a bitmap of their own.
func hasValidity(t arrow.DataType) bool {
	switch t.ID() {
	case arrow.NULL, arrow.SPARSE_UNION, arrow.DENSE_UNION, arrow.RUN_END_ENCODED:
		return false
	}
	return true
}

// withValidity is d with other validity, which begins at bit 0; it takes that over.
func withValidity(x *exec, d arrow.ArrayData, valid *memory.Buffer) arrow.ArrayData {
	if d.Offset() != 0 { // the bitmap must begin where the values do
		buf, out := allocBits(x.mem, d.Offset()+d.Len())
		clear(out)
		src := bitmap{b: valid.Bytes()}
		for i := range d.Len() {
			if src.bit(i) {
				p := d.Offset() + i
				out[p>>6] |= 1 << (p & 63)
			}
		}
		valid.Release()
		valid = buf
	}
	bufs := append([]*memory.Buffer{valid}, d.Buffers()[1:]...)
	defer valid.Release()
	if dict := d.Dictionary(); d.DataType().ID() == arrow.DICTIONARY {
		return array.NewDataWithDictionary(d.DataType(), d.Len(), bufs, array.UnknownNullCount, d.Offset(), dict.(*array.Data))
	}
	return array.NewData(d.DataType(), d.Len(), bufs, d.Children(), array.UnknownNullCount, d.Offset())
}

// ranges gives begin and end of each list in the child array.
func ranges(d arrow.ArrayData) func(i int) (int, int) {
	switch t := d.DataType().(type) {
	case *arrow.FixedSizeListType:
		w := int(t.Len())
		return func(i int) (int, int) { return (d.Offset() + i) * w, (d.Offset() + i + 1) * w }
	case *arrow.LargeListType:
		o := offsets[int64](d)
		return func(i int) (int, int) { return int(o[i]), int(o[i+1]) }
	}
	o := offsets[int32](d)
	return func(i int) (int, int) { return int(o[i]), int(o[i+1]) }
}

func elemType(t arrow.DataType) arrow.DataType { return t.(arrow.ListLikeType).Elem() }

func sizeList(x *exec, a []vec) vec {
	r := ranges(a[0].data)
	return int64Rows(x, a, func(i int) int64 { p, q := r(i); return int64(q - p) })
}

// indexList is list[i], from 0, or from the end if negative; null outside.
func indexList(t arrow.DataType) kernel {
	return func(x *exec, a []vec) vec {
		list := x.expand(retain(a[0]))
		defer list.release()
		r, ok := ranges(list.data), list.valid()
		pos, lp := values[int64](a[1])
		pok := a[1].valid()
		if list.data.Children()[0].Len() > math.MaxInt32 {
			x.failBatch(tooLarge(list.typ))
			return x.nulls(t, x.n)
		}
		idx := make([]int32, list.n)
		for i := range idx {
			idx[i] = -1
			if !ok.bit(i) || !pok.bit(i) {
				continue
			}
			p, q := r(i)
			k := at(pos, lp, i)
			if k < 0 {
				k += int64(q - p)
			}
			if k >= 0 && k < int64(q-p) {
				idx[i] = int32(p + int(k))
			}
		}
		d, err := take(list.data.Children()[0], picksOf(idx), x.mem)
		if err != nil {
			x.failBatch(err)
			return x.nulls(t, list.n)
		}
		return vec{typ: t, n: list.n, data: d}
	}
}

func retain(v vec) vec {
	if v.data != nil {
		v.data.Retain()
	}
	return v
}

// sliceList is slice(list, from[, to]): as in Python, positions from the end if
// negative, cut to the list.
func sliceList(t arrow.DataType) kernel {
	return func(x *exec, a []vec) vec {
		list := x.expand(retain(a[0]))
		defer list.release()
		n := list.n
		r := ranges(list.data)
		from, lf := values[int64](a[1])
		var to []int64
		lt := int64(math.MaxInt64)
		if len(a) == 3 {
			to, lt = values[int64](a[2])
		}
		valid := x.valid(n, append([]vec{list}, a[1:]...)...)
		ok := bitmap{}
		if valid != nil {
			ok.b = valid.Bytes()
		}
		buf, offs := allocOf[int32](x.mem, n+1)
		offs[0] = 0
		var idx []int32
		for i := range n {
			if ok.bit(i) {
				p, q := r(i)
				size := int64(q - p)
				lo, hi := clipPos(at(from, lf, i), size), clipPos(at(to, lt, i), size)
				for k := lo; k < hi; k++ {
					idx = append(idx, int32(p+int(k)))
				}
			}
			offs[i+1] = int32(len(idx))
		}
		d, err := take(list.data.Children()[0], picksOf(idx), x.mem)
		if err == nil && (len(idx) > math.MaxInt32 || list.data.Children()[0].Len() > math.MaxInt32) {
			d.Release()
			err = tooLarge(list.typ)
		}
		if err != nil {
			buf.Release()
			if valid != nil {
				valid.Release()
			}
			x.failBatch(err)
			return x.nulls(t, n)
		}
		return vec{typ: t, n: n, data: makeData(t, n, valid, []arrow.ArrayData{d}, buf)}
	}
}

func clipPos(p, size int64) int64 {
	if p < 0 {
		p = max(p+size, 0)
	}
	return min(p, size)
}

// listContains is value in list: null if one of them is, true if an element
// equals the value, else null if an element is null, else false. equal compares elements with values.
func listContains(equal kernel) kernel {
	return func(x *exec, a []vec) vec {
		list := x.expand(retain(a[0]))
		defer list.release()
		n := list.n
		r, ok := ranges(list.data), list.valid()
		elems := vec{typ: elemType(list.typ), n: list.data.Children()[0].Len(), data: list.data.Children()[0]}
		val := a[1]
		if val.data != nil { // one copy of the value beside each element
			idx := make([]int32, elems.n)
			for i := range idx {
				idx[i] = -1
			}
			for i := range n {
				if p, q := r(i); ok.bit(i) {
					for k := p; k < q; k++ {
						idx[k] = int32(i)
					}
				}
			}
			d, err := take(val.data, picksOf(idx), x.mem)
			if err != nil {
				x.failBatch(err)
				return x.nulls(boolType, n)
			}
			defer d.Release()
			val = vec{typ: val.typ, n: elems.n, data: d}
		} else {
			val.n = elems.n
		}
		if val.lit != nil && elems.typ.ID() == arrow.NULL {
			return x.nulls(boolType, n)
		}
		same := equal(x, []vec{elems, val})
		defer same.release()
		hit, known := same.bools(), same.valid()
		vok := a[1].valid()
		return fromTri(x, n, func(k int) (yes, no uint64) {
			for i := k * 64; i < min(k*64+64, n); i++ {
				if !ok.bit(i) || !vok.bit(i) {
					continue
				}
				p, q := r(i)
				found, unknown := false, false
				for e := p; e < q; e++ {
					found = found || known.bit(e) && hit.bit(e)
					unknown = unknown || !known.bit(e)
				}
				yes |= b2u(found) << (i & 63)
				no |= b2u(!found && !unknown) << (i & 63)
			}
			return yes, no
		})
	}
}

// castList converts the elements. Elements of null lists do not matter.
func castList(from, to arrow.DataType) (caster, bool) {
	ft, tt := elemType(from), elemType(to)
	same := arrow.TypeEqual(ft, tt)
	var inner caster
	fails := false
	if !same {
		if plainType(ft) != nil || ft.ID() == arrow.NULL {
			return nil, false
		}
		if inner, fails = castFunc(ft, tt); inner == nil {
			return nil, false
		}
	}
	width, wide := 0, to.ID() == arrow.LARGE_LIST
	if f, ok := to.(*arrow.FixedSizeListType); ok {
		width = int(f.Len())
	}
	return func(x *exec, v vec, try bool) vec {
		// Gather the elements that count into a child that begins at 0.
		n, r, ok := v.n, ranges(v.data), v.valid()
		valid := x.valid(n, v)
		if width > 0 {
			valid = x.settle(valid, n, try, func(i int) bool { p, q := r(i); return q-p != width },
				func(i int) string {
					p, q := r(i)
					return fmt.Sprintf("list of %d elements does not fit %s", q-p, TypeName(to))
				})
			if ok = (bitmap{}); valid != nil {
				ok.b = valid.Bytes()
			}
		}
		var idx, parent []int32
		ends := make([]int64, n+1)
		for i := range n {
			p, q := r(i)
			switch {
			case width > 0 && (!ok.bit(i) || q-p != width):
				for range width {
					idx, parent = append(idx, -1), append(parent, int32(i))
				}
			case ok.bit(i):
				for e := p; e < q; e++ {
					idx, parent = append(idx, int32(e)), append(parent, int32(i))
				}
			}
			ends[i+1] = int64(len(idx))
		}
		fail := func(err error) vec {
			if valid != nil {
				valid.Release()
			}
			x.failBatch(err)
			return x.nulls(to, n)
		}
		if len(idx) > math.MaxInt32 || v.data.Children()[0].Len() > math.MaxInt32 {
			return fail(tooLarge(from))
		}
		child, err := take(v.data.Children()[0], picksOf(idx), x.mem)
		if err != nil {
			return fail(err)
		}
		if inner != nil {
			sub := &exec{n: len(idx), rows: x.rows, mem: x.mem, sel: make([]uint64, words(len(idx)))}
			for e, i := range parent {
				if x.selected(int(i)) {
					sub.sel[e>>6] |= 1 << (e & 63)
				}
			}
			out := sub.expand(inner(sub, vec{typ: ft, n: len(idx), data: child}, try))
			child.Release()
			child = out.data
			if sub.err != nil {
				x.failBatch(sub.err)
			}
			if sub.row != nil {
				msg := sub.row.(*fault.Error).Err.Error()
				x.failRow(int(parent[sub.at]), func(int) string { return msg })
			}
		}
		var bufs []*memory.Buffer
		switch {
		case width > 0 || to.ID() == arrow.FIXED_SIZE_LIST:
		case wide:
			b, o := allocOf[int64](x.mem, n+1)
			copy(o, ends)
			bufs = append(bufs, b)
		default:
			b, o := allocOf[int32](x.mem, n+1)
			for i, e := range ends {
				o[i] = int32(e)
			}
			bufs = append(bufs, b)
		}
		return vec{typ: to, n: n, data: makeData(to, n, valid, []arrow.ArrayData{child}, bufs...)}
	}, fails || width > 0
}

// scalarAt is row i of a vec as a scalar.
func scalarAt(v vec, i int) *scalar {
	s := &scalar{typ: v.typ}
	if s.valid = v.valid().bit(i); !s.valid {
		return s
	}
	switch physOf(v.typ) {
	case pBool:
		s.i = int64(b2u(v.bools().bit(i)))
	case pI8:
		s.i = int64(fixed[int8](v)[i])
	case pI16:
		s.i = int64(fixed[int16](v)[i])
	case pI32:
		s.i = int64(fixed[int32](v)[i])
	case pI64:
		s.i = fixed[int64](v)[i]
	case pU8:
		s.i = int64(fixed[uint8](v)[i])
	case pU16:
		s.i = int64(fixed[uint16](v)[i])
	case pU32:
		s.i = int64(fixed[uint32](v)[i])
	case pU64:
		s.i = int64(fixed[uint64](v)[i])
	case pF32:
		s.f = float64(fixed[float32](v)[i])
	case pF64:
		s.f = fixed[float64](v)[i]
	case pDec:
		s.d = fixed[decimal128.Num](v)[i]
	default:
		t := textsOf(v)
		s.s = string(t.at(i))
	}
	return s
}

// inSet is the kernel of x in [literals], which are of x's type. With a null
// among them, what is not found is unknown.
func inSet(p phys, set []*scalar, null bool) kernel {
	var found kernel
	switch {
	case p == pBool:
		var yes, no bool
		for _, s := range set {
			yes, no = yes || s.i != 0, no || s.i == 0
		}
		found = func(x *exec, a []vec) vec {
			b := a[0].bools()
			buf, out := allocBits(x.mem, a[0].n)
			for k := range out {
				w := b.word(k)
				out[k] = w&-b2u(yes) | ^w&-b2u(no)
			}
			return x.array(boolType, a[0].n, x.valid(a[0].n, a[0]), buf)
		}
	case p == pString || p == pLarge || p == pFixed:
		m := make(map[string]struct{}, len(set))
		for _, s := range set {
			m[s.s] = struct{}{}
		}
		found = func(x *exec, a []vec) vec {
			in := textsOf(a[0])
			return compareBits(x, a, func(i int) bool { _, ok := m[string(in.at(i))]; return ok })
		}
	case p == pDec:
		m := make(map[decimal128.Num]struct{}, len(set))
		for _, s := range set {
			m[s.d] = struct{}{}
		}
		found = func(x *exec, a []vec) vec {
			in := fixed[decimal128.Num](a[0])
			return compareBits(x, a, func(i int) bool { _, ok := m[in[i]]; return ok })
		}
	default:
		found = numSet[p](set)
	}
	if !null {
		return found
	}
	return func(x *exec, a []vec) vec {
		f := found(x, a)
		defer f.release()
		t := triOf(f)
		return fromTri(x, f.n, func(k int) (uint64, uint64) { yes, _ := t.word(k); return yes, 0 })
	}
}

var numSet = perNum(setOf[int8], setOf[int16], setOf[int32], setOf[int64], setOf[uint8], setOf[uint16], setOf[uint32], setOf[uint64], setOf[float32], setOf[float64])

// setOf compares with up to 8 literals one by one, and looks up more in a table.
func setOf[T number](set []*scalar) kernel {
	vals := make([]T, len(set))
	m := make(map[T]struct{}, len(set))
	for i, s := range set {
		vals[i] = litOf[T](s)
		m[vals[i]] = struct{}{}
	}
	return func(x *exec, a []vec) vec {
		p := fixed[T](a[0])
		if len(vals) > 8 {
			return compareBits(x, a, func(i int) bool { _, ok := m[p[i]]; return ok })
		}
		buf, out := allocBits(x.mem, a[0].n)
		clear(out)
		one := make([]uint64, len(out))
		for _, v := range vals {
			cmpCL(one, p, v, "==")
			for k := range out {
				out[k] |= one[k]
			}
		}
		return x.array(boolType, a[0].n, x.valid(a[0].n, a[0]), buf)
	}
}
