//go:build !purego

package rows

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// wide reports whether the kernels can be called: they need AVX-512.
var wide = cpu.X86.HasAVX512F && cpu.X86.HasAVX512DQ

// interleave16 writes 16 columns of 4-byte values, side by side, to the rows at offsets at[0] to at[n-1] of dst. n is a
// multiple of 16; of every row only the values that mask has bits for are written.
//
//go:noescape
func interleave16(dst *byte, at *int, srcs *[block]unsafe.Pointer, n, mask int)

// deinterleave16 writes 16 values of 4 bytes of each of n rows, which are size bytes apart, to 16 columns. n is a
// multiple of 16; of every row only the values that mask has bits for are read.
//
//go:noescape
func deinterleave16(dsts *[block]unsafe.Pointer, src *byte, size, n, mask int)
