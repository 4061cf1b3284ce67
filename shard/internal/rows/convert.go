package rows

import (
	"math"
	"math/bits"
	"unsafe"
)

// Convert writes the values of src, which must be some, to dst as another type. It returns the index of the first one
// that does not fit, or -1.
type Convert func(dst, src []byte) int

// Converter returns the function that converts values from one element type to another: times scale (0 meaning 1)
// plus offset in float64 first, if they change anything. Bools come as bytes of 0 and 1.
func Converter(from, to Type, scale, offset float64) Convert {
	if scale == 0 {
		scale = 1
	}
	slow := converter(from, to, scale, offset)
	fast := vector(from, to, scale, offset)
	if fast == nil {
		return slow
	}
	in, out := from.Size(), to.Size()
	return func(dst, src []byte) int { // all values fit
		n := len(src) / in &^ 15
		if n > 0 {
			_ = dst[n*out-1]
			fast(unsafe.Pointer(&dst[0]), unsafe.Pointer(&src[0]), n)
		}
		if n*in < len(src) {
			slow(dst[n*out:], src[n*in:])
		}
		return -1
	}
}

// converter is Converter in plain Go.
func converter(from, to Type, scale, offset float64) Convert {
	switch from {
	case Int8:
		return convert[int8](to, scale, offset)
	case Int16:
		return convert[int16](to, scale, offset)
	case Int32:
		return convert[int32](to, scale, offset)
	case Int64:
		return convert[int64](to, scale, offset)
	case Bool, Uint8:
		return convert[uint8](to, scale, offset)
	case Uint16:
		return convert[uint16](to, scale, offset)
	case Uint32:
		return convert[uint32](to, scale, offset)
	case Uint64:
		return convert[uint64](to, scale, offset)
	case Float32:
		return convert[float32](to, scale, offset)
	case Float64:
		return convert[float64](to, scale, offset)
	}
	wide := convert[float32](to, scale, offset)
	return func(dst, src []byte) int { // Float16
		var tmp [256]float32
		return tiles(dst, view[uint16](src), to.Size(), func(dst []byte, src []uint16) int {
			for i, h := range src {
				tmp[i] = halfToFloat(h)
			}
			return wide(dst, raw(tmp[:len(src)]))
		})
	}
}

func convert[S Number](to Type, scale, offset float64) Convert {
	if scale == 1 && offset == 0 {
		return func(dst, src []byte) int { return Cast(to, dst, view[S](src)) }
	}
	return func(dst, src []byte) int {
		var tmp [256]float64
		return tiles(dst, view[S](src), to.Size(), func(dst []byte, src []S) int {
			for i, v := range src {
				tmp[i] = float64(float64(v)*scale) + offset // not fused: the same bits on every machine
			}
			return Cast(to, dst, tmp[:len(src)])
		})
	}
}

// tiles calls f for 256 values at a time.
func tiles[S any](dst []byte, src []S, size int, f func(dst []byte, src []S) int) int {
	for done := 0; done < len(src); done += 256 {
		k := min(256, len(src)-done)
		if bad := f(dst[done*size:(done+k)*size], src[done:done+k]); bad >= 0 {
			return done + bad
		}
	}
	return -1
}

// view gives bytes as values; there must be some.
func view[T any](b []byte) []T {
	var z T
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), len(b)/int(unsafe.Sizeof(z)))
}

// raw gives values as bytes; there must be some.
func raw[T any](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}

// Number is what is computed with.
type Number interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float32 | ~float64
}

// Cast converts, and returns the index of the first value that an integer type
// cannot hold (NaN included), or -1. Fractions are cut off; floats are rounded to
// nearest even, to infinity where they are too large. To Bool, everything but 0 is true.
func Cast[S Number](to Type, dst []byte, src []S) int {
	switch to {
	case Bool:
		for i, v := range src {
			dst[i] = 0
			if v != 0 {
				dst[i] = 1
			}
		}
	case Int8:
		return castInt(view[int8](dst), src, math.MinInt8, math.MaxInt8)
	case Int16:
		return castInt(view[int16](dst), src, math.MinInt16, math.MaxInt16)
	case Int32:
		return castInt(view[int32](dst), src, math.MinInt32, math.MaxInt32)
	case Int64:
		return castInt(view[int64](dst), src, math.MinInt64, math.MaxInt64)
	case Uint8:
		return castInt(view[uint8](dst), src, 0, math.MaxUint8)
	case Uint16:
		return castInt(view[uint16](dst), src, 0, math.MaxUint16)
	case Uint32:
		return castInt(view[uint32](dst), src, 0, math.MaxUint32)
	case Uint64:
		return castInt(view[uint64](dst), src, 0, math.MaxUint64)
	case Float32:
		cast(view[float32](dst), src)
	case Float64:
		cast(view[float64](dst), src)
	case Float16:
		d := view[uint16](dst)
		for i, v := range src {
			d[i] = half(narrow(v))
		}
	case BFloat16:
		d := view[uint16](dst)
		for i, v := range src {
			d[i] = bfloat16(narrow(v))
		}
	}
	return -1
}

func cast[D, S Number](dst []D, src []S) {
	dst = dst[:len(src)]
	for i, v := range src {
		dst[i] = D(v)
	}
}

// castInt checks every value before the conversion: what Go does with one that
// does not fit differs between machines.
func castInt[D, S Number](dst []D, src []S, lo int64, hi uint64) int {
	dst = dst[:len(src)]
	var z S
	switch any(z).(type) {
	case float32, float64:
		// The first float above hi and, but for 0 and MinInt64 themselves, lo - 1 are exact or beyond.
		top := math.Ldexp(1, bits.Len64(hi))
		for i, v := range src {
			if f := math.Trunc(float64(v)); !(f >= float64(lo) && f < top) {
				return i
			}
			dst[i] = D(v)
		}
	default:
		for i, v := range src {
			if v < 0 && int64(v) < lo || v > 0 && uint64(v) > hi {
				return i
			}
			dst[i] = D(v)
		}
	}
	return -1
}

// bfloat16 rounds to nearest even; NaN stays NaN.
func bfloat16(f float32) uint16 {
	u := math.Float32bits(f)
	if u&0x7fffffff > 0x7f800000 {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}

// narrow is v as a float32 that still rounds to 16 bits as v would: what it loses
// is kept as its last bit (round to odd).
func narrow[S Number](v S) float32 {
	f := float32(v)
	d := float64(v)
	if float64(f) == d || f != f {
		return f
	}
	u := math.Float32bits(f)
	if math.Abs(float64(f)) > math.Abs(d) {
		u--
	}
	return math.Float32frombits(u | 1)
}

// half rounds to nearest even, to subnormals too; NaN stays NaN.
func half(f float32) uint16 {
	u := math.Float32bits(f)
	sign := uint16(u >> 16 & 0x8000)
	u &= 0x7fffffff
	switch {
	case u > 0x7f800000:
		return sign | 0x7e00
	case u >= 0x47800000: // 2^16 and beyond; less rounds up to infinity by itself
		return sign | 0x7c00
	case u < 0x38800000: // below 2^-14: the sum lines its bits up with the half's last one, rounded
		return sign | uint16(math.Float32bits(math.Float32frombits(u)+0.5)-0x3f000000)
	}
	return sign | uint16((u-0x38000000+0xfff+u>>13&1)>>13)
}

// halfToFloat is exact.
func halfToFloat(h uint16) float32 {
	sign, e, m := uint32(h&0x8000)<<16, uint32(h>>10&0x1f), uint32(h&0x3ff)
	switch e {
	case 0:
		return math.Float32frombits(sign | math.Float32bits(float32(m)*0x1p-24))
	case 0x1f:
		return math.Float32frombits(sign | 0x7f800000 | m<<13)
	}
	return math.Float32frombits(sign | (e+112)<<23 | m<<13)
}
