//go:build !purego

package rows

import "unsafe"

// All of these convert n values, a multiple of 16.

//go:noescape
func float32Int8(dst, src unsafe.Pointer, n int)

//go:noescape
func float32Uint8(dst, src unsafe.Pointer, n int)

//go:noescape
func float32Int16(dst, src unsafe.Pointer, n int)

//go:noescape
func float32Uint16(dst, src unsafe.Pointer, n int)

//go:noescape
func float32Int32(dst, src unsafe.Pointer, n int)

//go:noescape
func float32Uint32(dst, src unsafe.Pointer, n int)

//go:noescape
func float32Int64(dst, src unsafe.Pointer, n int)

//go:noescape
func float32Uint64(dst, src unsafe.Pointer, n int)

//go:noescape
func float32Float64(dst, src unsafe.Pointer, n int)

//go:noescape
func float32Odd(dst, src unsafe.Pointer, n int)

//go:noescape
func float16Float32(dst, src unsafe.Pointer, n int)

//go:noescape
func bfloat16Float32(dst, src unsafe.Pointer, n int)

// These multiply by scale and add offset.

//go:noescape
func float64Int8(dst, src unsafe.Pointer, n int, scale, offset float64)

//go:noescape
func float64Uint8(dst, src unsafe.Pointer, n int, scale, offset float64)

//go:noescape
func float64Int16(dst, src unsafe.Pointer, n int, scale, offset float64)

//go:noescape
func float64Uint16(dst, src unsafe.Pointer, n int, scale, offset float64)

//go:noescape
func float64Int32(dst, src unsafe.Pointer, n int, scale, offset float64)

//go:noescape
func float64Uint32(dst, src unsafe.Pointer, n int, scale, offset float64)

//go:noescape
func float64Int64(dst, src unsafe.Pointer, n int, scale, offset float64)

//go:noescape
func float64Uint64(dst, src unsafe.Pointer, n int, scale, offset float64)

//go:noescape
func float64Float32(dst, src unsafe.Pointer, n int, scale, offset float64)

//go:noescape
func float64Float64(dst, src unsafe.Pointer, n int, scale, offset float64)

// toFloat32 converts n values as they are.
func toFloat32(from Type, dst, src unsafe.Pointer, n int) {
	switch from {
	case Int8:
		float32Int8(dst, src, n)
	case Bool, Uint8:
		float32Uint8(dst, src, n)
	case Int16:
		float32Int16(dst, src, n)
	case Uint16:
		float32Uint16(dst, src, n)
	case Int32:
		float32Int32(dst, src, n)
	case Uint32:
		float32Uint32(dst, src, n)
	case Int64:
		float32Int64(dst, src, n)
	case Uint64:
		float32Uint64(dst, src, n)
	default:
		float32Float64(dst, src, n)
	}
}

// toFloat64 converts n values, times scale plus offset.
func toFloat64(from Type, dst, src unsafe.Pointer, n int, scale, offset float64) {
	switch from {
	case Int8:
		float64Int8(dst, src, n, scale, offset)
	case Bool, Uint8:
		float64Uint8(dst, src, n, scale, offset)
	case Int16:
		float64Int16(dst, src, n, scale, offset)
	case Uint16:
		float64Uint16(dst, src, n, scale, offset)
	case Int32:
		float64Int32(dst, src, n, scale, offset)
	case Uint32:
		float64Uint32(dst, src, n, scale, offset)
	case Int64:
		float64Int64(dst, src, n, scale, offset)
	case Uint64:
		float64Uint64(dst, src, n, scale, offset)
	case Float32:
		float64Float32(dst, src, n, scale, offset)
	default:
		float64Float64(dst, src, n, scale, offset)
	}
}

// vector returns a function that converts a multiple of 16 values, as Converter says it; nil where Go does it.
func vector(from, to Type, scale, offset float64) func(dst, src unsafe.Pointer, n int) {
	scaled := scale != 1 || offset != 0
	if !wide || from == Float16 || from == BFloat16 {
		return nil
	}
	small := from.Size() <= 2 || from == Float32 // each of its values is a float32
	switch {
	case to == Float64 && scaled:
		return func(dst, src unsafe.Pointer, n int) { toFloat64(from, dst, src, n, scale, offset) }
	case to == Float32 && !scaled && from != Float32:
		return func(dst, src unsafe.Pointer, n int) { toFloat32(from, dst, src, n) }
	case to == Float32 && scaled:
		return func(dst, src unsafe.Pointer, n int) {
			var tmp [vectorTile]float64
			vectorTiles(dst, src, n, from.Size(), 4, func(dst, src unsafe.Pointer, n int) {
				toFloat64(from, unsafe.Pointer(&tmp), src, n, scale, offset)
				float32Float64(dst, unsafe.Pointer(&tmp), n)
			})
		}
	case to != Float16 && to != BFloat16:
		return nil
	}
	return func(dst, src unsafe.Pointer, n int) {
		var tmp [vectorTile]float64
		var short [vectorTile]float32
		vectorTiles(dst, src, n, from.Size(), 2, func(dst, src unsafe.Pointer, n int) {
			floats := unsafe.Pointer(&short)
			switch {
			case scaled || !small && from != Float64:
				toFloat64(from, unsafe.Pointer(&tmp), src, n, scale, offset)
				float32Odd(floats, unsafe.Pointer(&tmp), n)
			case from == Float64:
				float32Odd(floats, src, n)
			case from == Float32:
				floats = src
			default:
				toFloat32(from, floats, src, n)
			}
			if to == Float16 {
				float16Float32(dst, floats, n)
			} else {
				bfloat16Float32(dst, floats, n)
			}
		})
	}
}

// vectorTile is how many values go through two kernels at a time.
const vectorTile = 128

func vectorTiles(dst, src unsafe.Pointer, n, in, out int, f func(dst, src unsafe.Pointer, n int)) {
	for done := 0; done < n; done += vectorTile {
		f(unsafe.Add(dst, done*out), unsafe.Add(src, done*in), min(vectorTile, n-done))
	}
}
