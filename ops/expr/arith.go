package expr

import (
	"fmt"
	"math"
	"math/bits"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// kernel computes a vec of arguments of which at least one is no literal and
// none is a null literal. It borrows them.
type kernel func(x *exec, a []vec) vec

// arith returns the kernel of a binary operator on two values of layout p. out
// is the type of the result, of layout p as well.
func arith(p phys, op string, out arrow.DataType) kernel {
	if p == pF32 {
		return floatArith[float32](op, out)
	}
	if p == pF64 {
		return floatArith[float64](op, out)
	}
	return intArith[p](op, out)
}

var intArith = [...]func(string, arrow.DataType) kernel{
	intOp[int8], intOp[int16], intOp[int32], intOp[int64], intOp[uint8], intOp[uint16], intOp[uint32], intOp[uint64]}

func floatArith[T float](op string, out arrow.DataType) kernel {
	return func(x *exec, a []vec) vec {
		n := a[0].n
		buf, r := allocOf[T](x.mem, n)
		p, lp := values[T](a[0])
		q, lq := values[T](a[1])
		switch op {
		case "+":
			addFloat(r, p, q, lp, lq)
		case "-":
			subFloat(r, p, q, lp, lq)
		case "*":
			mulFloat(r, p, q, lp, lq)
		case "/":
			divFloat(r, p, q, lp, lq)
		case "%":
			for i := range r {
				r[i] = T(math.Mod(float64(at(p, lp, i)), float64(at(q, lq, i))))
			}
		}
		return x.array(out, n, x.valid(n, a...), buf)
	}
}

func at[T any](col []T, lit T, i int) T {
	if col == nil {
		return lit
	}
	return col[i]
}

func addFloat[T float](r, p, q []T, lp, lq T) {
	switch {
	case p == nil:
		p, lq = q, lp
		fallthrough
	case q == nil:
		p = p[:len(r)]
		for i := range r {
			r[i] = p[i] + lq
		}
	default:
		p, q = p[:len(r)], q[:len(r)]
		for i := range r {
			r[i] = p[i] + q[i]
		}
	}
}

func subFloat[T float](r, p, q []T, lp, lq T) {
	switch {
	case p == nil:
		q = q[:len(r)]
		for i := range r {
			r[i] = lp - q[i]
		}
	case q == nil:
		p = p[:len(r)]
		for i := range r {
			r[i] = p[i] - lq
		}
	default:
		p, q = p[:len(r)], q[:len(r)]
		for i := range r {
			r[i] = p[i] - q[i]
		}
	}
}

func mulFloat[T float](r, p, q []T, lp, lq T) {
	switch {
	case p == nil:
		p, lq = q, lp
		fallthrough
	case q == nil:
		p = p[:len(r)]
		for i := range r {
			r[i] = p[i] * lq
		}
	default:
		p, q = p[:len(r)], q[:len(r)]
		for i := range r {
			r[i] = p[i] * q[i]
		}
	}
}

func divFloat[T float](r, p, q []T, lp, lq T) {
	switch {
	case p == nil:
		q = q[:len(r)]
		for i := range r {
			r[i] = lp / q[i]
		}
	case q == nil:
		p = p[:len(r)]
		for i := range r {
			r[i] = p[i] / lq
		}
	default:
		p, q = p[:len(r)], q[:len(r)]
		for i := range r {
			r[i] = p[i] / q[i]
		}
	}
}

// intOp: rows that overflow fail; dividing by 0 gives null.
func intOp[T integer](op string, out arrow.DataType) kernel {
	return func(x *exec, a []vec) vec {
		n := a[0].n
		p, lp := values[T](a[0])
		q, lq := values[T](a[1])
		if op == "/" || op == "%" {
			return divInt(x, op, out, a, p, q, lp, lq)
		}
		buf, r := allocOf[T](x.mem, n)
		var over bool
		switch op {
		case "+":
			over = addInt(r, p, q, lp, lq)
		case "-":
			over = subInt(r, p, q, lp, lq)
		case "*":
			over = mulInt(r, p, q, lp, lq)
		}
		valid := x.valid(n, a...)
		if over {
			findOverflow(x, op, out, valid, p, q, lp, lq, n)
		}
		return x.array(out, n, valid, buf)
	}
}

// findOverflow looks for the first row that is to blame: what lies under a null
// may overflow at will.
func findOverflow[T integer](x *exec, op string, t arrow.DataType, valid *memory.Buffer, p, q []T, lp, lq T, n int) {
	ok := bitmap{}
	if valid != nil {
		ok.b = valid.Bytes()
	}
	for i := range n {
		if ok.bit(i) && x.selected(i) && overflows(op, at(p, lp, i), at(q, lq, i)) {
			x.failRow(i, func(i int) string { return overflowText(op, at(p, lp, i), at(q, lq, i), t) })
			return
		}
	}
}

func overflowText[T integer](op string, a, b T, t arrow.DataType) string {
	return fmt.Sprintf("integer overflow: %d %s %d does not fit %s", a, op, b, TypeName(t))
}

func overflows[T integer](op string, a, b T) bool {
	r, p, q := make([]T, 1), []T{a}, []T{b}
	switch op {
	case "+":
		return addInt(r, p, q, 0, 0)
	case "-":
		return subInt(r, p, q, 0, 0)
	case "*":
		return mulInt(r, p, q, 0, 0)
	}
	return divOverflows(a, b)
}

// divOverflows: only the smallest number by -1 does.
func divOverflows[T integer](a, b T) bool {
	return isSigned[T]() && b == ^T(0) && a == -a && a != 0
}

func isSigned[T integer]() bool { return ^T(0) < 0 }

// topBit reports whether the highest bit of v is set.
func topBit[T integer](v T) bool {
	if isSigned[T]() {
		return v < 0
	}
	return v > ^T(0)>>1
}

// addInt adds and reports whether some sum overflowed. The carry into and out of
// the highest bit is gathered over all rows.
func addInt[T integer](r, p, q []T, lp, lq T) bool {
	var acc T
	if p == nil {
		p, lq, q = q, lp, nil
	}
	p = p[:len(r)]
	switch signed := isSigned[T](); {
	case q == nil && signed:
		for i, a := range p {
			s := a + lq
			r[i] = s
			acc |= (s ^ a) & (s ^ lq)
		}
	case q == nil:
		for i, a := range p {
			s := a + lq
			r[i] = s
			acc |= a&lq | (a|lq)&^s
		}
	case signed:
		q = q[:len(r)]
		for i, a := range p {
			b := q[i]
			s := a + b
			r[i] = s
			acc |= (s ^ a) & (s ^ b)
		}
	default:
		q = q[:len(r)]
		for i, a := range p {
			b := q[i]
			s := a + b
			r[i] = s
			acc |= a&b | (a|b)&^s
		}
	}
	return topBit(acc)
}

func subInt[T integer](r, p, q []T, lp, lq T) bool {
	var acc T
	signed := isSigned[T]()
	switch {
	case q == nil && signed:
		p = p[:len(r)]
		for i, a := range p {
			s := a - lq
			r[i] = s
			acc |= (a ^ lq) & (a ^ s)
		}
	case q == nil:
		p = p[:len(r)]
		for i, a := range p {
			s := a - lq
			r[i] = s
			acc |= ^a&lq | (^a|lq)&s
		}
	case p == nil:
		q = q[:len(r)]
		for i, b := range q {
			s := lp - b
			r[i] = s
			if signed {
				acc |= (lp ^ b) & (lp ^ s)
			} else {
				acc |= ^lp&b | (^lp|b)&s
			}
		}
	case signed:
		p, q = p[:len(r)], q[:len(r)]
		for i, a := range p {
			b := q[i]
			s := a - b
			r[i] = s
			acc |= (a ^ b) & (a ^ s)
		}
	default:
		p, q = p[:len(r)], q[:len(r)]
		for i, a := range p {
			b := q[i]
			s := a - b
			r[i] = s
			acc |= ^a&b | (^a|b)&s
		}
	}
	return topBit(acc)
}

func mulInt[T integer](r, p, q []T, lp, lq T) bool {
	if p == nil {
		p, lq, q = q, lp, nil
	}
	p = p[:len(r)]
	if q != nil {
		q = q[:len(r)]
	}
	var z T
	switch {
	case unsafe.Sizeof(z) < 8:
		// The product of two halves fits 64 bits, or wraps to what no T equals.
		var acc int64
		if q == nil {
			for i, a := range p {
				w := int64(a) * int64(lq)
				r[i] = T(w)
				acc |= int64(T(w)) ^ w
			}
		} else {
			for i, a := range p {
				w := int64(a) * int64(q[i])
				r[i] = T(w)
				acc |= int64(T(w)) ^ w
			}
		}
		return acc != 0
	case isSigned[T]():
		var acc uint64
		for i, a := range p {
			b := lq
			if q != nil {
				b = q[i]
			}
			u, v := int64(a), int64(b)
			hi, lo := bits.Mul64(uint64(u), uint64(v))
			hi -= uint64(u>>63&v) + uint64(v>>63&u)
			r[i] = T(lo)
			acc |= hi ^ uint64(int64(lo)>>63)
		}
		return acc != 0
	default:
		var acc uint64
		for i, a := range p {
			b := lq
			if q != nil {
				b = q[i]
			}
			hi, lo := bits.Mul64(uint64(a), uint64(b))
			r[i] = T(lo)
			acc |= hi
		}
		return acc != 0
	}
}

// divInt truncates, as does the remainder that belongs to it.
func divInt[T integer](x *exec, op string, out arrow.DataType, a []vec, p, q []T, lp, lq T) vec {
	n := a[0].n
	if q == nil && lq == 0 {
		return x.nulls(out, n)
	}
	buf, r := allocOf[T](x.mem, n)
	if q == nil {
		p = p[:len(r)]
		if op == "/" {
			for i, v := range p {
				r[i] = v / lq
			}
		} else {
			for i, v := range p {
				r[i] = v % lq
			}
		}
		valid := x.valid(n, a...)
		if op == "/" && isSigned[T]() && lq == ^T(0) {
			findOverflow(x, op, out, valid, p, q, lp, lq, n)
		}
		return x.array(out, n, valid, buf)
	}
	zero, over := false, false
	for i := range r {
		u, v := at(p, lp, i), q[i]
		if v == 0 {
			r[i], zero = 0, true
			continue
		}
		if op == "/" {
			r[i] = u / v
			over = over || divOverflows(u, v)
		} else {
			r[i] = u % v
		}
	}
	valid := x.valid(n, a...)
	if zero {
		had := bitmap{}
		if valid != nil {
			had.b = valid.Bytes()
			defer valid.Release()
		}
		nonzero := make([]uint64, words(n))
		cmpCL(nonzero, q, 0, "==")
		for k := range nonzero {
			nonzero[k] = ^nonzero[k]
		}
		valid = x.andBits(n, had, bitmap{b: asBytes(nonzero)})
	}
	if over {
		findOverflow(x, op, out, valid, p, q, lp, lq, n)
	}
	return x.array(out, n, valid, buf)
}

func asBytes[T any](s []T) []byte {
	var z T
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(s))), len(s)*int(unsafe.Sizeof(z)))
}

// negate and absolute give unary kernels on values of layout p.
func negate(p phys, t arrow.DataType) kernel {
	switch p {
	case pF32:
		return mapFloat(t, func(v float32) float32 { return -v })
	case pF64:
		return mapFloat(t, func(v float64) float64 { return -v })
	}
	sub := arith(p, "-", t)
	zero := vec{typ: t, lit: &scalar{typ: t, valid: true}}
	return func(x *exec, a []vec) vec {
		zero := zero
		zero.n = a[0].n
		return sub(x, []vec{zero, a[0]})
	}
}

// mapFloat calls f for every row.
func mapFloat[T float](t arrow.DataType, f func(T) T) kernel {
	return func(x *exec, a []vec) vec {
		n := a[0].n
		buf, r := allocOf[T](x.mem, n)
		for i, v := range fixed[T](a[0]) {
			r[i] = f(v)
		}
		return x.array(t, n, x.valid(n, a...), buf)
	}
}
