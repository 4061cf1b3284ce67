package expr

import (
	"bytes"
	"cmp"
	"math"

	"github.com/apache/arrow-go/v18/arrow"
)

// compare returns the kernel of a comparison of two values of layout p.
func compare(p phys, op string) kernel {
	switch p {
	case pBool:
		return func(x *exec, a []vec) vec { return compareBools(x, op, a) }
	case pString, pLarge, pFixed:
		return func(x *exec, a []vec) vec { return compareStrings(x, op, a) }
	case pDec:
		return func(x *exec, a []vec) vec { return compareDecimals(x, op, a) }
	}
	return numCompare[p](op)
}

var numCompare = perNum(cmpOp[int8], cmpOp[int16], cmpOp[int32], cmpOp[int64], cmpOp[uint8], cmpOp[uint16], cmpOp[uint32], cmpOp[uint64], cmpOp[float32], cmpOp[float64])

var boolType = arrow.FixedWidthTypes.Boolean

// flip is the operator for swapped operands.
var flip = map[string]string{"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}

func cmpOp[T number](op string) kernel {
	neg := op == "!="
	base := op
	if neg {
		base = "=="
	}
	return func(x *exec, a []vec) vec {
		n := a[0].n
		buf, out := allocBits(x.mem, n)
		p, lp := values[T](a[0])
		q, lq := values[T](a[1])
		switch {
		case p == nil && a[0].lit != nil:
			cmpCL(out, q, lp, flip[base])
		case a[1].lit != nil:
			cmpCL(out, p, lq, base)
		default:
			cmpCC(out, p, q, base)
		}
		if neg {
			for k := range out {
				out[k] = ^out[k]
			}
		}
		return x.array(boolType, n, x.valid(n, a...), buf)
	}
}

func b2u(b bool) uint64 {
	var u uint64
	if b {
		u = 1
	}
	return u
}

// cmpCC writes the bits of p op q, 64 at a time; op is not !=. Bits of a last
// word beyond the rows are undefined.
func cmpCC[T number](out []uint64, p, q []T, op string) {
	switch op {
	case ">":
		p, q, op = q, p, "<"
	case ">=":
		p, q, op = q, p, "<="
	}
	for k := range out {
		u := p[k*64 : min(k*64+64, len(p))]
		v := q[k*64 : k*64+len(u)]
		v = v[:len(u)]
		var w uint64
		switch op {
		case "==":
			for j := range u {
				w |= b2u(u[j] == v[j]) << (j & 63)
			}
		case "<":
			for j := range u {
				w |= b2u(u[j] < v[j]) << (j & 63)
			}
		case "<=":
			for j := range u {
				w |= b2u(u[j] <= v[j]) << (j & 63)
			}
		}
		out[k] = w
	}
}

// cmpCL writes the bits of p op lit.
func cmpCL[T number](out []uint64, p []T, lit T, op string) {
	for k := range out {
		u := p[k*64 : min(k*64+64, len(p))]
		var w uint64
		switch op {
		case "==":
			for j, v := range u {
				w |= b2u(v == lit) << (j & 63)
			}
		case "<":
			for j, v := range u {
				w |= b2u(v < lit) << (j & 63)
			}
		case "<=":
			for j, v := range u {
				w |= b2u(v <= lit) << (j & 63)
			}
		case ">":
			for j, v := range u {
				w |= b2u(v > lit) << (j & 63)
			}
		case ">=":
			for j, v := range u {
				w |= b2u(v >= lit) << (j & 63)
			}
		}
		out[k] = w
	}
}

// opHolds says whether an order of c (as of cmp.Compare) satisfies op.
func opHolds(op string, c int) bool {
	switch op {
	case "==":
		return c == 0
	case "!=":
		return c != 0
	case "<":
		return c < 0
	case "<=":
		return c <= 0
	case ">":
		return c > 0
	}
	return c >= 0
}

// compareBits fills a boolean by calling f for every row: for comparisons that
// cost more than the call.
func compareBits(x *exec, a []vec, f func(i int) bool) vec {
	n := a[0].n
	buf, out := allocBits(x.mem, n)
	for k := range out {
		var w uint64
		for i := k * 64; i < min(k*64+64, n); i++ {
			w |= b2u(f(i)) << (i & 63)
		}
		out[k] = w
	}
	return x.array(boolType, n, x.valid(n, a...), buf)
}

// mixed compares an integer with a float, or a signed with an unsigned integer,
// exactly.
func mixed[A, B number](op string, order func(A, B) int) kernel {
	return func(x *exec, a []vec) vec {
		p, lp := values[A](a[0])
		q, lq := values[B](a[1])
		return compareBits(x, a, func(i int) bool {
			c := order(at(p, lp, i), at(q, lq, i))
			if c == unordered {
				return op == "!="
			}
			return opHolds(op, c)
		})
	}
}

const unordered = 2

func orderIntUint(a int64, b uint64) int {
	if a < 0 {
		return -1
	}
	return cmp.Compare(uint64(a), b)
}

func orderIntFloat(a int64, b float64) int {
	switch {
	case math.IsNaN(b):
		return unordered
	case b >= 1<<63:
		return -1
	case b < -1<<63:
		return 1
	}
	t := math.Trunc(b)
	if c := cmp.Compare(a, int64(t)); c != 0 {
		return c
	}
	return cmp.Compare(t, b)
}

func orderUintFloat(a uint64, b float64) int {
	switch {
	case math.IsNaN(b):
		return unordered
	case b >= 1<<64:
		return -1
	case b < 0:
		return 1
	}
	t := math.Trunc(b)
	if c := cmp.Compare(a, uint64(t)); c != 0 {
		return c
	}
	return cmp.Compare(t, b)
}

func compareBools(x *exec, op string, a []vec) vec {
	n := a[0].n
	buf, out := allocBits(x.mem, n)
	p, q := boolBits(a[0]), boolBits(a[1])
	for k := range out {
		u, v := p.word(k), q.word(k)
		switch op {
		case "==":
			out[k] = ^(u ^ v)
		case "!=":
			out[k] = u ^ v
		case "<":
			out[k] = ^u & v
		case "<=":
			out[k] = ^u | v
		case ">":
			out[k] = u &^ v
		case ">=":
			out[k] = u | ^v
		}
	}
	return x.array(boolType, n, x.valid(n, a...), buf)
}

// compareStrings orders by bytes, which for UTF-8 is the order of code points.
func compareStrings(x *exec, op string, a []vec) vec {
	p, q := textsOf(a[0]), textsOf(a[1])
	switch op {
	case "==":
		return compareBits(x, a, func(i int) bool { return bytes.Equal(p.at(i), q.at(i)) })
	case "!=":
		return compareBits(x, a, func(i int) bool { return !bytes.Equal(p.at(i), q.at(i)) })
	}
	return compareBits(x, a, func(i int) bool { return opHolds(op, bytes.Compare(p.at(i), q.at(i))) })
}

// compareDecimals: both have the same scale.
func compareDecimals(x *exec, op string, a []vec) vec {
	p, q := decimals(a[0]), decimals(a[1])
	return compareBits(x, a, func(i int) bool { return opHolds(op, p(i).Cmp(q(i))) })
}

// boolBits are the values of a boolean, literal or not.
func boolBits(v vec) bitmap {
	if v.lit != nil {
		return bitmap{none: v.lit.i == 0}
	}
	return v.bools()
}
