package gather

import "unsafe"

// Ahead is Fixed for the first n of runs, while the rows of those behind are on their way from memory: for rows
// that are taken in portions.
func Ahead(dst []byte, width int, srcs [][]byte, runs []Run, n int) {
	if width >= minRow {
		rows(dst, width, srcs, runs, n)
		return
	}
	Fixed(dst, width, srcs, runs[:n])
}

const (
	minRow    = 16      // bytes of the shortest row that copyRows copies
	lookahead = 16      // rows that are fetched before they are copied, where they are short
	portion   = 256     // rows of one call
	fetched   = 8 << 10 // bytes that are fetched before they are copied, at most
	fetchRow  = 2 << 10 // and of one row; what is behind, the processor foresees
)

// rows copies rows of at least minRow bytes each.
func rows(dst []byte, width int, srcs [][]byte, runs []Run, n int) {
	ahead := min(lookahead, max(fetched/width, 1))
	lines := min(width, fetchRow)
	var from [portion + lookahead]unsafe.Pointer
	for n > 0 {
		if r := runs[0]; r.N != 1 {
			at := int(r.Row) * width
			dst = dst[copy(dst, srcs[r.Rec][at:at+int(r.N)*width]):]
			runs, n = runs[1:], n-1
			continue
		}
		// Where the single rows are that follow each other, and those behind them.
		k := 0
		for k < min(n, portion) && runs[k].N == 1 {
			from[k] = row(srcs, &runs[k], width)
			k++
		}
		more := 0
		for k+more < len(runs) && more < ahead {
			if runs[k+more].N == 0 {
				break
			}
			from[k+more] = row(srcs, &runs[k+more], width)
			more++
		}
		for i := more; i < ahead; i++ {
			from[k+i] = from[k-1]
		}
		copyRows(dst[:k*width], from[:k+ahead], width, lines)
		dst, runs, n = dst[k*width:], runs[k:], n-k
	}
}

// row is the first row of r.
func row(srcs [][]byte, r *Run, width int) unsafe.Pointer {
	at := int(r.Row) * width
	return unsafe.Pointer(unsafe.SliceData(srcs[r.Rec][at : at+width]))
}

// copyRowsGo is copyRows without assembly, and without fetching ahead, which Go cannot say.
func copyRowsGo(dst []byte, from []unsafe.Pointer, width, _ int) {
	for i := 0; len(dst) > 0; i++ {
		copy(dst[:width], unsafe.Slice((*byte)(from[i]), width))
		dst = dst[width:]
	}
}
