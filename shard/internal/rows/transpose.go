package rows

import "unsafe"

// interleave4 writes columns of 4-byte values side by side to n rows of size bytes, off bytes into each.
func interleave4(rows []byte, off, size, n int, srcs [][]byte) {
	if len(srcs) < minColumns || n < block || !wide {
		interleaveSquares(rows, off, size, n, srcs)
		return
	}
	_ = rows[n*size-1]
	whole := n &^ (block - 1)
	var from [block]unsafe.Pointer
	for i := 0; i < len(srcs); i += block {
		k := min(block, len(srcs)-i)
		for j := range from {
			from[j] = unsafe.Pointer(unsafe.SliceData(srcs[i+min(j, k-1)][:4*n]))
		}
		interleave16(&rows[off+4*i], size, &from, whole, 1<<k-1)
	}
	if whole < n {
		for i, src := range srcs {
			put[uint32](rows[whole*size:], off+4*i, size, n-whole, src[4*whole:])
		}
	}
}

// interleaveSquares is interleave4 with what AVX2 has: 8 columns at a time, the last 8 with some of those before.
func interleaveSquares(rows []byte, off, size, n int, srcs [][]byte) {
	if len(srcs) < square || n < square || !avx2 {
		interleave4Go(rows, off, size, n, srcs)
		return
	}
	_ = rows[n*size-1]
	whole := n &^ (square - 1)
	var from [square]unsafe.Pointer
	for i := 0; i < len(srcs); i += square {
		first := min(i, len(srcs)-square)
		for j := range from {
			from[j] = unsafe.Pointer(unsafe.SliceData(srcs[first+j][:4*n]))
		}
		interleave8(&rows[off+4*first], size, &from, whole)
	}
	if whole < n {
		for i, src := range srcs {
			put[uint32](rows[whole*size:], off+4*i, size, n-whole, src[4*whole:])
		}
	}
}

func interleave4Go(rows []byte, off, size, n int, srcs [][]byte) {
	for i, src := range srcs {
		put[uint32](rows, off+4*i, size, n, src)
	}
}

// deinterleave4 writes the 4-byte values that lie side by side in n rows of size bytes, off bytes into each, to one
// column each. sink is for what is too much: as many bytes as each column.
func deinterleave4(dsts [][]byte, rows []byte, off, size, n int, sink []byte) {
	if len(dsts) < minColumns || n < block || !wide {
		deinterleaveSquares(dsts, rows, off, size, n)
		return
	}
	_ = rows[n*size-1]
	whole := n &^ (block - 1)
	var to [block]unsafe.Pointer
	for i := 0; i < len(dsts); i += block {
		k := min(block, len(dsts)-i)
		for j := range to {
			if j < k {
				to[j] = unsafe.Pointer(unsafe.SliceData(dsts[i+j][:4*n]))
			} else {
				to[j] = unsafe.Pointer(unsafe.SliceData(sink[:4*n]))
			}
		}
		deinterleave16(&to, &rows[off+4*i], size, whole, 1<<k-1)
	}
	if whole < n {
		for i, dst := range dsts {
			pick[uint32](dst[4*whole:], rows[whole*size:], off+4*i, size, n-whole)
		}
	}
}

// deinterleaveSquares is deinterleave4 as interleaveSquares is interleave4.
func deinterleaveSquares(dsts [][]byte, rows []byte, off, size, n int) {
	if len(dsts) < square || n < square || !avx2 {
		deinterleave4Go(dsts, rows, off, size, n)
		return
	}
	_ = rows[n*size-1]
	whole := n &^ (square - 1)
	var to [square]unsafe.Pointer
	for i := 0; i < len(dsts); i += square {
		first := min(i, len(dsts)-square)
		for j := range to {
			to[j] = unsafe.Pointer(unsafe.SliceData(dsts[first+j][:4*n]))
		}
		deinterleave8(&to, &rows[off+4*first], size, whole)
	}
	if whole < n {
		for i, dst := range dsts {
			pick[uint32](dst[4*whole:], rows[whole*size:], off+4*i, size, n-whole)
		}
	}
}

func deinterleave4Go(dsts [][]byte, rows []byte, off, size, n int) {
	for i, dst := range dsts {
		pick[uint32](dst, rows, off+4*i, size, n)
	}
}

const (
	block      = 16 // rows and columns that are transposed at a time
	square     = 8  // the same with AVX2
	minColumns = 4  // fewer are faster one by one
)

func scatterGo(dst []byte, places []int32, rows []byte, size int) {
	for i, p := range places {
		if p >= 0 {
			copy(dst[int(p)*size:int(p+1)*size], rows[i*size:])
		}
	}
}
