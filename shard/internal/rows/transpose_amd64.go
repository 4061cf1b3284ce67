//go:build !purego

package rows

import (
	"slices"
	"unsafe"

	"golang.org/x/sys/cpu"
)

// wide reports whether the kernels of 16 columns can be called, avx2 whether the others can.
var (
	wide = cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ
	avx2 = cpu.X86.HasAVX2
)

// interleave16 writes 16 columns of 4-byte values, side by side, to n rows that are size bytes apart. n is a multiple of
// 16; of every row only the values that mask has bits for are written.
//
//go:noescape
func interleave16(dst *byte, size int, srcs *[block]unsafe.Pointer, n, mask int)

// deinterleave16 writes 16 values of 4 bytes of each of n rows, which are size bytes apart, to 16 columns. n is a
// multiple of 16; of every row only the values that mask has bits for are read.
//
//go:noescape
func deinterleave16(dsts *[block]unsafe.Pointer, src *byte, size, n, mask int)

// interleave8 writes 8 columns of 4-byte values, side by side, to n rows that are size bytes apart. n is a multiple of 8.
//
//go:noescape
func interleave8(dst *byte, size int, srcs *[square]unsafe.Pointer, n int)

// deinterleave8 writes 8 values of 4 bytes of each of n rows, which are size bytes apart, to 8 columns. n is a multiple
// of 8.
//
//go:noescape
func deinterleave8(dsts *[square]unsafe.Pointer, src *byte, size, n int)

// scatter writes rows of size bytes to their places in dst, which are there. Negative places leave rows out.
func scatter(dst []byte, places []int32, rows []byte, size int) {
	if !avx2 || size < 32 || len(places) <= soon || size > 2<<10 || slices.Min(places) < 0 {
		scatterGo(dst, places, rows, size)
		return
	}
	n := len(places) - soon // the kernel looks as far ahead
	_ = rows[len(places)*size-1]
	scatterAVX2(&dst[0], &places[0], &rows[0], n, size)
	scatterGo(dst, places[n:], rows[n*size:], size)
}

const soon = 16

//go:noescape
func scatterAVX2(dst *byte, places *int32, src *byte, n, size int)
