package rows

import "unsafe"

// interleave4 writes columns of 4-byte values side by side to n rows of size bytes, off bytes into each.
func interleave4(rows []byte, off, size, n int, srcs [][]byte) {
	done := interleaveBlocks(rows, off, size, n, srcs)
	if done == 0 {
		done = interleaveSquares(rows, off, size, n, srcs)
	}
	interleave4Go(rows, off, size, done, n, srcs)
}

// interleaveBlocks does with AVX-512 as many of n rows as it can, and says how many: none where there are too few, or of
// too few columns.
func interleaveBlocks(rows []byte, off, size, n int, srcs [][]byte) int {
	if len(srcs) < minColumns || n < block || !wide {
		return 0
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
	return whole
}

// interleaveSquares is interleaveBlocks with AVX2: the last 8 columns are written with some of those before.
func interleaveSquares(rows []byte, off, size, n int, srcs [][]byte) int {
	if len(srcs) < square || n < square || !avx2 {
		return 0
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
	return whole
}

// interleave4Go is interleave4 for the rows from first on.
func interleave4Go(rows []byte, off, size, first, n int, srcs [][]byte) {
	if first == n {
		return
	}
	for i, src := range srcs {
		put[uint32](rows[first*size:], off+4*i, size, n-first, src[4*first:])
	}
}

// deinterleave4 writes the 4-byte values that lie side by side in n rows of size bytes, off bytes into each, to one
// column each. sink is for what is too much: as many bytes as each column.
func deinterleave4(dsts [][]byte, rows []byte, off, size, n int, sink []byte) {
	done := deinterleaveBlocks(dsts, rows, off, size, n, sink)
	if done == 0 {
		done = deinterleaveSquares(dsts, rows, off, size, n)
	}
	deinterleave4Go(dsts, rows, off, size, done, n)
}

// deinterleaveBlocks is to deinterleave4 what interleaveBlocks is to interleave4.
func deinterleaveBlocks(dsts [][]byte, rows []byte, off, size, n int, sink []byte) int {
	if len(dsts) < minColumns || n < block || !wide {
		return 0
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
	return whole
}

// deinterleaveSquares is to deinterleave4 what interleaveSquares is to interleave4.
func deinterleaveSquares(dsts [][]byte, rows []byte, off, size, n int) int {
	if len(dsts) < square || n < square || !avx2 {
		return 0
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
	return whole
}

// deinterleave4Go is deinterleave4 for the rows from first on.
func deinterleave4Go(dsts [][]byte, rows []byte, off, size, first, n int) {
	if first == n {
		return
	}
	for i, dst := range dsts {
		pick[uint32](dst[4*first:], rows[first*size:], off+4*i, size, n-first)
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
