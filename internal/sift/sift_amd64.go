//go:build !purego

package sift

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

// fast says that the CPU has what the assembly needs. (Where it has AVX-512, PEXT
// is fast as well.) Tests turn it off.
var fast = cpu.X86.HasAVX512F && cpu.X86.HasBMI2 && cpu.X86.HasPOPCNT

// keep32 keeps values of 4 bytes of n words of rows, as long as dst has room for 64
// more: it writes whole vectors. It returns how many words it did, and how many
// values they gave.
//
//go:noescape
func keep32(dst, src unsafe.Pointer, rows *uint64, n, room int) (words, values int)

//go:noescape
func keep64(dst, src unsafe.Pointer, rows *uint64, n, room int) (words, values int)

//go:noescape
func pext(v, mask uint64) uint64

// head does as much of Keep as there is assembly for.
func head[T Width](dst, src []T, rows []uint64) (words, values int) {
	n := min(len(rows), len(src)/64)
	if !fast || n == 0 || len(dst) < 64 {
		return 0, 0
	}
	d, s := unsafe.Pointer(unsafe.SliceData(dst)), unsafe.Pointer(unsafe.SliceData(src))
	var z T
	switch unsafe.Sizeof(z) {
	case 4:
		return keep32(d, s, &rows[0], n, len(dst))
	case 8:
		return keep64(d, s, &rows[0], n, len(dst))
	}
	return 0, 0
}

func extract(v, mask uint64) uint64 {
	if fast {
		return pext(v, mask)
	}
	return extractGo(v, mask)
}
