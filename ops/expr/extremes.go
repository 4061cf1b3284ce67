package expr

import (
	"bytes"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
)

// absKernel fails for the smallest integer.
func absKernel(p phys, t arrow.DataType) kernel {
	switch p {
	case pI8:
		return absInt[int8](t)
	case pI16:
		return absInt[int16](t)
	case pI32:
		return absInt[int32](t)
	case pF32:
		return mapFloat(t, func(v float32) float32 { return max(v, -v) + 0 })
	case pF64:
		return mapFloat(t, func(v float64) float64 { return max(v, -v) + 0 })
	}
	return absInt[int64](t)
}

func absInt[T integer](t arrow.DataType) kernel {
	return func(x *exec, a []vec) vec {
		n := a[0].n
		buf, r := allocOf[T](x.mem, n)
		var acc T
		src := fixed[T](a[0])
		for i, v := range src {
			if v < 0 {
				v = -v
			}
			r[i] = v
			acc |= v
		}
		valid := x.valid(n, a[0])
		if acc < 0 {
			valid = x.settle(valid, n, false, func(i int) bool { return r[i] < 0 },
				func(i int) string {
					return fmt.Sprintf("integer overflow: abs(%d) does not fit %s", src[i], TypeName(t))
				})
		}
		return x.array(t, n, valid, buf)
	}
}

// extreme is the least or greatest of several; nulls are left out, NaN wins.
func extreme(least bool) func(b *binder, n *node, args []*bound) (*bound, error) {
	return func(b *binder, n *node, args []*bound) (*bound, error) {
		t, err := b.alike(n, args, "take the "+n.name+" of")
		if err != nil {
			return nil, err
		}
		if t.ID() == arrow.NULL {
			return args[0], nil
		}
		if physOf(t) == pOther {
			return nil, invalid("%s takes no %s: %s", n.name, TypeName(t), describe(args[0]))
		}
		same := make([]*bound, len(args))
		for i, v := range args {
			same[i] = b.convert(v, t)
		}
		return form(n, t, func(x *exec, args []*bound) vec { return evalExtreme(x, t, args, least) }, same...), nil
	}
}

func evalExtreme(x *exec, t arrow.DataType, args []*bound, least bool) vec {
	acc := args[0].run(x)
	for _, a := range args[1:] {
		next := a.run(x)
		out := fold2(x, t, acc, next, least)
		acc.release()
		next.release()
		acc = out
	}
	return acc
}

// fold2 takes the smaller or larger of two values, or the one that is not null.
func fold2(x *exec, t arrow.DataType, p, q vec, least bool) vec {
	first := x.better(p, q, least)
	pick := [][]uint64{make([]uint64, words(x.n)), make([]uint64, words(x.n))}
	u, v := p.valid(), q.valid()
	for k := range pick[0] {
		pick[0][k] = first[k]&u.word(k)&v.word(k) | u.word(k)&^v.word(k)
		pick[1][k] = ^pick[0][k]
	}
	return choose(x, t, []vec{p, q}, pick)
}

// better has a bit for each row where p is to be taken before q, both being valid.
func (x *exec) better(p, q vec, least bool) []uint64 {
	out := make([]uint64, words(x.n))
	if p.isNull() || q.isNull() {
		return out
	}
	rows := func(f func(i int) bool) {
		for i := range x.n {
			out[i>>6] |= b2u(f(i)) << (i & 63)
		}
	}
	switch ph := physOf(p.typ); ph {
	case pBool:
		u, v := boolBits(p), boolBits(q)
		for k := range out {
			if least {
				out[k] = ^u.word(k) | v.word(k)
			} else {
				out[k] = u.word(k) | ^v.word(k)
			}
		}
	case pString, pLarge, pFixed:
		u, v := textsOf(p), textsOf(q)
		rows(func(i int) bool { c := bytes.Compare(u.at(i), v.at(i)); return c == 0 || c < 0 == least })
	case pDec:
		u, v := decimals(p), decimals(q)
		rows(func(i int) bool { c := u(i).Cmp(v(i)); return c == 0 || c < 0 == least })
	default:
		betterNum[ph](out, p, q, least)
	}
	return out
}

func decimals(v vec) func(i int) decimal128.Num {
	if v.lit != nil {
		d := v.lit.d
		return func(int) decimal128.Num { return d }
	}
	d := fixed[decimal128.Num](v)
	return func(i int) decimal128.Num { return d[i] }
}

var betterNum = perNum(betterOf[int8], betterOf[int16], betterOf[int32], betterOf[int64], betterOf[uint8], betterOf[uint16], betterOf[uint32],
	betterOf[uint64], betterOf[float32], betterOf[float64])

func betterOf[T number](out []uint64, p, q vec, least bool) {
	u, lu := values[T](p)
	v, lv := values[T](q)
	for i := range p.n {
		a, b := at(u, lu, i), at(v, lv, i)
		first := a >= b
		if least {
			first = a <= b
		}
		out[i>>6] |= b2u(first || a != a) << (i & 63)
	}
}

// clip is x kept within low and high; null limits do not limit.
func (b *binder) clip(n *node, args []*bound) (*bound, error) {
	for _, v := range args {
		if !isNumeric(v.typ) && !isTime(v.typ) && !nullTyped(v) {
			return nil, want(n, "a number", v)
		}
	}
	t, err := b.alike(n, args, "clip")
	if err != nil {
		return nil, err
	}
	if nullTyped(args[0]) {
		return args[0], nil
	}
	same := make([]*bound, len(args))
	for i, v := range args {
		same[i] = b.convert(v, t)
	}
	return form(n, t, func(x *exec, args []*bound) vec {
		v, lo, hi := args[0].run(x), args[1].run(x), args[2].run(x)
		defer v.release()
		defer lo.release()
		defer hi.release()
		up := fold2(x, t, v, lo, false)
		defer up.release()
		out := fold2(x, t, up, hi, true)
		if ok := v.valid(); !ok.all() { // a null stays null
			all := make([]uint64, words(x.n))
			for k := range all {
				all[k] = ok.word(k)
			}
			defer out.release()
			return choose(x, t, []vec{out}, [][]uint64{all})
		}
		return out
	}, same...), nil
}
