package expr

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// tri are the rows of a boolean vec that are true and those that are false, as
// words; null rows are in neither.
func tri(v vec, k int) (yes, no uint64) {
	if v.lit != nil {
		switch {
		case !v.lit.valid:
			return 0, 0
		case v.lit.i != 0:
			return ^uint64(0), 0
		}
		return 0, ^uint64(0)
	}
	b, ok := v.bools().word(k), v.valid().word(k)
	return b & ok, ok &^ b
}

// fromTri makes a boolean of rows that are true and rows that are false.
func fromTri(x *exec, n int, f func(k int) (yes, no uint64)) vec {
	buf, out := allocBits(x.mem, n)
	vbuf, valid := allocBits(x.mem, n)
	for k := range out {
		yes, no := f(k)
		out[k], valid[k] = yes, yes|no
	}
	return x.array(boolType, n, vbuf, buf)
}

// evalJunction is && and || by Kleene: what a false (or true) side decides needs
// no other side. Sides are evaluated from the left; a row that is decided no
// longer fails.
func evalJunction(x *exec, args []*bound, and bool) vec {
	acc := args[0].run(x)
	for _, b := range args[1:] {
		next := x.narrowed(b, func(k int) uint64 {
			yes, no := tri(acc, k)
			if and {
				return ^no
			}
			return ^yes
		})
		if acc.lit != nil && next.lit != nil {
			p, q := acc.lit, next.lit
			s := &scalar{typ: boolType}
			if decided := int64(b2u(!and)); p.valid && p.i == decided || q.valid && q.i == decided {
				s.valid, s.i = true, decided
			} else if p.valid && q.valid {
				s.valid, s.i = true, 1-decided
			}
			acc.lit = s
			continue
		}
		joined := fromTri(x, x.n, func(k int) (uint64, uint64) {
			y1, n1 := tri(acc, k)
			y2, n2 := tri(next, k)
			if and {
				return y1 & y2, n1 | n2
			}
			return y1 | y2, n1 & n2
		})
		acc.release()
		next.release()
		acc = joined
	}
	return acc
}

// narrowed evaluates b where only the rows in keep matter.
func (x *exec) narrowed(b *bound, keep func(k int) uint64) vec {
	if !b.fails {
		return b.run(x)
	}
	outer := x.sel
	x.sel = make([]uint64, words(x.n))
	for k := range x.sel {
		x.sel[k] = keep(k)
		if outer != nil {
			x.sel[k] &= outer[k]
		}
	}
	v := b.run(x)
	x.sel = outer
	return v
}

func notKernel(x *exec, a []vec) vec {
	n := a[0].n
	buf, out := allocBits(x.mem, n)
	b := a[0].bools()
	for k := range out {
		out[k] = ^b.word(k)
	}
	return x.array(boolType, n, x.valid(n, a[0]), buf)
}

// isNull is the kernel of is_null, or is_not_null.
func isNull(x *exec, a vec, want bool) vec {
	n := a.n
	if a.lit != nil || a.typ.ID() == arrow.NULL {
		null := a.typ.ID() == arrow.NULL || !a.lit.valid
		return vec{typ: boolType, n: n, lit: &scalar{typ: boolType, valid: true, i: int64(b2u(null == want))}}
	}
	ok := a.valid()
	switch a.typ.ID() {
	case arrow.DENSE_UNION, arrow.SPARSE_UNION, arrow.RUN_END_ENCODED: // nulls lie in children
		arr := array.MakeFromData(a.data)
		defer arr.Release()
		return compareBits(x, []vec{{n: n, lit: &scalar{valid: true}}}, func(i int) bool { return logicalNull(arr, i) == want })
	case arrow.DICTIONARY: // an index may point to a null
		arr := array.MakeFromData(a.data)
		defer arr.Release()
		if d := arr.(*array.Dictionary); d.Dictionary().NullN() > 0 {
			return compareBits(x, []vec{{n: n, lit: &scalar{valid: true}}}, func(i int) bool { return logicalNull(arr, i) == want })
		}
	}
	buf, out := allocBits(x.mem, n)
	for k := range out {
		w := ok.word(k)
		if want {
			w = ^w
		}
		out[k] = w
	}
	return x.array(boolType, n, nil, buf)
}

func logicalNull(arr arrow.Array, i int) bool {
	switch a := arr.(type) {
	case array.Union:
		f := a.Field(a.ChildID(i))
		if d, ok := a.(*array.DenseUnion); ok {
			i = int(d.ValueOffset(i))
		}
		return logicalNull(f, i)
	case *array.RunEndEncoded:
		return logicalNull(a.Values(), a.GetPhysicalIndex(i))
	case *array.Dictionary:
		return a.IsNull(i) || a.Dictionary().IsNull(a.GetValueIndex(i))
	}
	return arr.IsNull(i)
}

// choose builds a vec that takes row i from the first of vs whose bit i is in
// pick; rows of none are null. All have type t. It borrows vs.
func choose(x *exec, t arrow.DataType, vs []vec, pick [][]uint64) vec {
	n := x.n
	switch p := physOf(t); p {
	case pBool:
		return fromTri(x, n, func(k int) (yes, no uint64) {
			for j, v := range vs {
				y, z := tri(v, k)
				yes, no = yes|y&pick[j][k], no|z&pick[j][k]
			}
			return yes, no
		})
	case pString, pLarge, pFixed:
		return chooseStrings(x, t, vs, pick)
	case pDec:
		return chooseFixed(x, t, vs, pick, func(s *scalar) [2]uint64 { return [2]uint64{s.d.LowBits(), uint64(s.d.HighBits())} })
	case pI8, pU8:
		return chooseFixed(x, t, vs, pick, func(s *scalar) uint8 { return uint8(s.i) })
	case pI16, pU16:
		return chooseFixed(x, t, vs, pick, func(s *scalar) uint16 { return uint16(s.i) })
	case pI32, pU32:
		return chooseFixed(x, t, vs, pick, func(s *scalar) uint32 { return uint32(s.i) })
	case pF32:
		return chooseFixed(x, t, vs, pick, func(s *scalar) float32 { return float32(s.f) })
	case pF64:
		return chooseFixed(x, t, vs, pick, func(s *scalar) float64 { return s.f })
	case pOther:
		return chooseTake(x, t, vs, pick)
	default:
		return chooseFixed(x, t, vs, pick, func(s *scalar) uint64 { return uint64(s.i) })
	}
}

// picked is the validity of what choose makes; nil for all.
func picked(x *exec, vs []vec, pick [][]uint64) ([]uint64, bool) {
	out := make([]uint64, words(x.n))
	full := true
	for k := range out {
		for j, v := range vs {
			out[k] |= v.valid().word(k) & pick[j][k]
		}
		full = full && out[k]|^tailMask(k, x.n) == ^uint64(0)
	}
	return out, full
}

func chooseFixed[T any](x *exec, t arrow.DataType, vs []vec, pick [][]uint64, lit func(*scalar) T) vec {
	buf, out := allocOf[T](x.mem, x.n)
	var zero T
	for i := range out {
		out[i] = zero
	}
	for j, v := range vs {
		p := pick[j]
		if v.lit != nil {
			if !v.lit.valid {
				continue
			}
			c := lit(v.lit)
			for i := range out {
				if p[i>>6]>>(i&63)&1 == 1 {
					out[i] = c
				}
			}
			continue
		}
		src := fixed[T](v)[:len(out)]
		for i := range out {
			if p[i>>6]>>(i&63)&1 == 1 {
				out[i] = src[i]
			}
		}
	}
	vbuf, valid := allocBits(x.mem, x.n)
	ok, _ := picked(x, vs, pick)
	copy(valid, ok)
	return x.array(t, x.n, vbuf, buf)
}

// evalTernary takes b where cond is true, else c.
func evalTernary(x *exec, t arrow.DataType, args []*bound) vec {
	cond := args[0].run(x)
	defer cond.release()
	if cond.lit != nil {
		if cond.lit.valid && cond.lit.i != 0 {
			return args[1].run(x)
		}
		return args[2].run(x)
	}
	yes := make([]uint64, words(x.n))
	rest := make([]uint64, words(x.n))
	for k := range yes {
		yes[k], _ = tri(cond, k)
		rest[k] = ^yes[k]
	}
	b := x.narrowed(args[1], func(k int) uint64 { return yes[k] })
	defer b.release()
	c := x.narrowed(args[2], func(k int) uint64 { return rest[k] })
	defer c.release()
	return choose(x, t, []vec{b, c}, [][]uint64{yes, rest})
}

// evalCoalesce takes the first value that is not null. Of the arguments, those
// behind the one that decides a row do not fail for it.
func evalCoalesce(x *exec, t arrow.DataType, args []*bound) vec {
	open := make([]uint64, words(x.n)) // rows without a value so far
	for k := range open {
		open[k] = tailMask(k, x.n)
	}
	var vs []vec
	var pick [][]uint64
	defer func() {
		for _, v := range vs {
			v.release()
		}
	}()
	for j, b := range args {
		v := x.narrowed(b, func(k int) uint64 { return open[k] })
		if j == 0 && v.valid().all() {
			return v
		}
		vs = append(vs, v)
		ok := v.valid()
		take, left := make([]uint64, words(x.n)), uint64(0)
		for k := range take {
			take[k] = open[k] & ok.word(k)
			open[k] &^= take[k]
			left |= open[k]
		}
		pick = append(pick, take)
		if left == 0 {
			break
		}
	}
	return choose(x, t, vs, pick)
}
