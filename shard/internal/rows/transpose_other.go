//go:build purego || !amd64

package rows

import "unsafe"

const wide = false

func interleave16(_ *byte, _ int, _ *[block]unsafe.Pointer, _, _ int) { panic("no kernel") }

func deinterleave16(_ *[block]unsafe.Pointer, _ *byte, _, _, _ int) { panic("no kernel") }

// scatter writes rows of size bytes to their places in dst, which are there. Negative places leave rows out.
func scatter(dst []byte, places []int32, rows []byte, size int) { scatterGo(dst, places, rows, size) }
