package fileset

import "fmt"

// Distinct gives other names to columns that have the name of one before: a, a_1, a_2, but for
// names that the columns have already. made (nil: none) are names that files do not have: they give
// way to those of any column.
func Distinct(names []string, made func(i int) bool) []string {
	given := make(map[string]bool, len(names))
	for i, n := range names {
		if made == nil || !made(i) {
			given[n] = true
		}
	}
	if len(given) == len(names) {
		return names
	}
	out := make([]string, len(names))
	seen := make(map[string]bool, len(names))
	last := map[string]int{}
	for i, n := range names {
		if seen[n] || made != nil && made(i) && given[n] {
			base := n
			for k := last[base] + 1; given[n] || seen[n]; k++ {
				n, last[base] = fmt.Sprintf("%s_%d", base, k), k
			}
		}
		seen[n] = true
		out[i] = n
	}
	return out
}
