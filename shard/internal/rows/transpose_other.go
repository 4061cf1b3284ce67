//go:build purego || !amd64

package rows

import "unsafe"

const wide, avx2 = false, false

func interleave16(_ *byte, _ int, _ *[block]unsafe.Pointer, _, _ int) { panic("no kernel") }

func deinterleave16(_ *[block]unsafe.Pointer, _ *byte, _, _, _ int) { panic("no kernel") }

func interleave8(_ *byte, _ int, _ *[square]unsafe.Pointer, _ int) { panic("no kernel") }

func deinterleave8(_ *[square]unsafe.Pointer, _ *byte, _, _ int) { panic("no kernel") }

// scatter writes rows of size bytes to their places in dst, which are there. Negative places leave rows out.
func scatter(dst []byte, places []int32, rows []byte, size int) { scatterGo(dst, places, rows, size) }
