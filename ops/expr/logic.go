package expr

import (
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// tri tells rows of a boolean vec that are true from those that are false; null
// rows are neither.
type tri struct{ value, valid bitmap }

func triOf(v vec) tri {
	if v.lit != nil {
		return tri{value: bitmap{none: v.lit.i == 0}, valid: bitmap{none: !v.lit.valid}}
	}
	return tri{value: v.bools(), valid: v.valid()}
}

func (t tri) word(k int) (yes, no uint64) {
	b, ok := t.value.word(k), t.valid.word(k)
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
		left := triOf(acc)
		next := x.narrowed(b, func(k int) uint64 {
			yes, no := left.word(k)
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
		right := triOf(next)
		joined := fromTri(x, x.n, func(k int) (uint64, uint64) {
			y1, n1 := left.word(k)
			y2, n2 := right.word(k)
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
		ts := make([]tri, len(vs))
		for j, v := range vs {
			ts[j] = triOf(v)
		}
		return fromTri(x, n, func(k int) (yes, no uint64) {
			for j, t := range ts {
				y, z := t.word(k)
				yes, no = yes|y&pick[j][k], no|z&pick[j][k]
			}
			return yes, no
		})
	case pString, pLarge, pFixed:
		return chooseStrings(x, t, vs, pick)
	case pDec:
		return chooseDecimals(x, t, vs, pick)
	case pI8, pU8:
		return chooseFixed(x, t, vs, pick, func(s *scalar) uint8 { return uint8(s.i) })
	case pI16, pU16:
		return chooseFixed(x, t, vs, pick, func(s *scalar) uint16 { return uint16(s.i) })
	case pI32, pU32:
		return chooseFixed(x, t, vs, pick, func(s *scalar) uint32 { return uint32(s.i) })
	case pF32:
		return chooseFixed(x, t, vs, pick, func(s *scalar) uint32 { return math.Float32bits(float32(s.f)) })
	case pF64:
		return chooseFixed(x, t, vs, pick, func(s *scalar) uint64 { return math.Float64bits(s.f) })
	case pOther:
		return chooseTake(x, t, vs, pick)
	default:
		return chooseFixed(x, t, vs, pick, func(s *scalar) uint64 { return uint64(s.i) })
	}
}

// picked is the validity of what choose makes.
func picked(x *exec, vs []vec, pick [][]uint64) *memory.Buffer {
	buf, out := allocBits(x.mem, x.n)
	clear(out)
	for j, v := range vs {
		ok := v.valid()
		for k := range out {
			out[k] |= ok.word(k) & pick[j][k]
		}
	}
	return buf
}

// chooseFixed works on bit patterns, without branches: which row takes what is
// hard to predict.
func chooseFixed[T uint8 | uint16 | uint32 | uint64](x *exec, t arrow.DataType, vs []vec, pick [][]uint64, lit func(*scalar) T) vec {
	buf, out := allocOf[T](x.mem, x.n)
	clear(out)
	for j, v := range vs {
		if v.isNull() {
			continue
		}
		var src []T
		var c T
		if v.lit != nil {
			c = lit(v.lit)
		} else {
			src = fixed[T](v)
		}
		for k, w := range pick[j] {
			o := out[k*64 : min(k*64+64, len(out))]
			switch {
			case w == 0:
			case src == nil:
				for i := range o {
					m := -T(w >> (i & 63) & 1)
					o[i] = o[i]&^m | c&m
				}
			default:
				s := src[k*64 : k*64+len(o)]
				s = s[:len(o)]
				for i := range o {
					m := -T(w >> (i & 63) & 1)
					o[i] = o[i]&^m | s[i]&m
				}
			}
		}
	}
	return x.array(t, x.n, picked(x, vs, pick), buf)
}

func chooseDecimals(x *exec, t arrow.DataType, vs []vec, pick [][]uint64) vec {
	buf, out := allocOf[decimal128.Num](x.mem, x.n)
	clear(out)
	for j, v := range vs {
		if v.isNull() {
			continue
		}
		d := decimals(v)
		for i := range out {
			if pick[j][i>>6]>>(i&63)&1 == 1 {
				out[i] = d(i)
			}
		}
	}
	return x.array(t, x.n, picked(x, vs, pick), buf)
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
	t3 := triOf(cond)
	for k := range yes {
		yes[k], _ = t3.word(k)
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
