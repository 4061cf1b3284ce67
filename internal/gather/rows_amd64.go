//go:build !purego

package gather

import (
	"unsafe"

	"golang.org/x/sys/cpu"
)

var hasAVX2 = cpu.X86.HasAVX2

// copyRows writes rows of width bytes, at least minRow, one behind the other until dst is full: those at from[0], from[1] and
// so on. What from holds beyond them are rows that will be copied next: row i+ahead is fetched, up to fetch bytes of it,
// while row i is copied.
func copyRows(dst []byte, from []unsafe.Pointer, width, fetch int) {
	if !hasAVX2 {
		copyRowsGo(dst, from, width, fetch)
		return
	}
	n := len(dst) / width
	copyRowsAVX2(unsafe.SliceData(dst), unsafe.SliceData(from), n, width, len(from)-n, fetch)
}

//go:noescape
func copyRowsAVX2(dst *byte, from *unsafe.Pointer, n, width, ahead, fetch int)
