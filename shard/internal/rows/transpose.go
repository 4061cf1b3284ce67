package rows

// interleave4 writes columns of 4-byte values side by side to the rows at places of dst, off bytes into each.
func interleave4(dst []byte, off int, at []int, srcs [][]byte) {
	for i, src := range srcs {
		put[uint32](dst, off+4*i, at, src)
	}
}
