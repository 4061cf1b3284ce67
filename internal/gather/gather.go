// Package gather collects rows of several record batches into new ones: the
// kernels behind batches. One call per column, a loop per run of rows, nothing per
// row that calls an interface or allocates.
package gather

// Run is N rows of record Rec, from Row on. Shuffled rows are runs of one.
type Run struct{ Rec, Row, N int32 }

// Count is the rows of all runs.
func Count(runs []Run) int {
	n := 0
	for _, r := range runs {
		n += int(r.N)
	}
	return n
}
