package fileset

import (
	"math"
	"math/bits"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/float16"
	"github.com/penstock-data/penstock/internal/typename"
)

type numeric interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float32 | ~float64
}

// castNumber converts integers and floats.
func castNumber(from, to arrow.DataType) *caster {
	switch from.ID() {
	case arrow.INT8:
		return numberTo[int8](to)
	case arrow.INT16:
		return numberTo[int16](to)
	case arrow.INT32:
		return numberTo[int32](to)
	case arrow.INT64:
		return numberTo[int64](to)
	case arrow.UINT8:
		return numberTo[uint8](to)
	case arrow.UINT16:
		return numberTo[uint16](to)
	case arrow.UINT32:
		return numberTo[uint32](to)
	case arrow.UINT64:
		return numberTo[uint64](to)
	case arrow.FLOAT32:
		return numberTo[float32](to)
	case arrow.FLOAT64:
		return numberTo[float64](to)
	}
	wide := mapped(arrow.PrimitiveTypes.Float32, false, func(v float16.Num) (float32, bool) { return v.Float32(), true }, nil)
	if to.ID() == arrow.FLOAT32 {
		return wide
	}
	return wide.then(numberTo[float32](to))
}

func numberTo[A numeric](to arrow.DataType) *caster {
	switch to.ID() {
	case arrow.INT8:
		return numbers[A, int8](to)
	case arrow.INT16:
		return numbers[A, int16](to)
	case arrow.INT32:
		return numbers[A, int32](to)
	case arrow.INT64:
		return numbers[A, int64](to)
	case arrow.UINT8:
		return numbers[A, uint8](to)
	case arrow.UINT16:
		return numbers[A, uint16](to)
	case arrow.UINT32:
		return numbers[A, uint32](to)
	case arrow.UINT64:
		return numbers[A, uint64](to)
	case arrow.FLOAT32:
		return numbers[A, float32](to)
	case arrow.FLOAT64:
		return numbers[A, float64](to)
	}
	const largest = 65504
	isInt := !isFloat[A]()
	return mapped(to, true, func(v A) (float16.Num, bool) {
		f := float64(v)
		n := float16.New(float32(f))
		return n, isInt && digitsOf(v) <= mantissa[16] && math.Abs(f) <= largest || !isInt && (!n.IsInf() || math.IsInf(f, 0))
	}, func(v A) string { return unfit(v, "float16") })
}

func isFloat[T numeric]() bool { one := T(1); return one/2 != 0 }

// digitsOf counts the binary digits of an integer from the first to the last that is not 0.
func digitsOf[A numeric](v A) int {
	u := uint64(v)
	if v < 0 {
		u = uint64(-int64(v))
	}
	return bits.Len64(u) - bits.TrailingZeros64(u|1<<63)
}

// numbers converts with a check where a value may be lost.
func numbers[A, B numeric](to arrow.DataType) *caster {
	var a A
	var b B
	wa, wb := int(unsafe.Sizeof(a))*8, int(unsafe.Sizeof(b))*8
	negA, negB := a-1 < a, b-1 < b // signed, or wrapped around
	exact := func(A) bool { return true }
	checked := true
	switch {
	case !isFloat[A]() && !isFloat[B]():
		checked = !(negA == negB && wa <= wb || !negA && wa < wb)
		exact = func(v A) bool { w := B(v); return A(w) == v && (w < 0) == (v < 0) }
	case !isFloat[A]():
		checked = wa > mantissa[wb]
		exact = func(v A) bool { return digitsOf(v) <= mantissa[wb] }
	case !isFloat[B]():
		lo, hi := 0.0, math.Ldexp(1, wb)
		if negB {
			lo, hi = -math.Ldexp(1, wb-1), math.Ldexp(1, wb-1)
		}
		exact = func(v A) bool { f := float64(v); return f == math.Trunc(f) && f >= lo && f < hi }
	default:
		checked = wa > wb
		exact = func(v A) bool { return !math.IsInf(float64(float32(v)), 0) || math.IsInf(float64(v), 0) }
	}
	if !checked {
		return mapped(to, false, func(v A) (B, bool) { return B(v), true }, nil)
	}
	return mapped(to, true, func(v A) (B, bool) { return B(v), exact(v) }, func(v A) string {
		if !isFloat[A]() && isFloat[B]() {
			return unfit(v, typename.Name(to)) + ", which has fewer digits"
		}
		return unfit(v, typename.Name(to))
	})
}
