//go:build purego || !amd64

package gather

import "unsafe"

// copyRows writes rows of width bytes one behind the other until dst is full: those at from[0], from[1] and so on. What
// from holds beyond them are rows that will be copied next.
func copyRows(dst []byte, from []unsafe.Pointer, width, fetch int) {
	copyRowsGo(dst, from, width, fetch)
}
