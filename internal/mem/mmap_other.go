//go:build !linux

package mem

func reserve(uintptr) (uintptr, bool) { return 0, false }
func unmap(at, n uintptr)             {}
func discard(at, n uintptr)           {}
func bytesAt(uintptr, int) []byte     { panic("unreachable: nothing is reserved") }
