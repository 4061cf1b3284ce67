package fileset

import "fmt"

// Distinct gives other names to columns that have the name of one before: a, a_1, a_2, but for
// names that the columns have already.
func Distinct(names []string) []string {
	given := make(map[string]bool, len(names))
	for _, n := range names {
		given[n] = true
	}
	if len(given) == len(names) {
		return names
	}
	out := make([]string, len(names))
	seen := make(map[string]bool, len(names))
	last := map[string]int{}
	for i, n := range names {
		if seen[n] {
			base := n
			for k := last[base] + 1; given[n]; k++ {
				n, last[base] = fmt.Sprintf("%s_%d", base, k), k
			}
			given[n] = true
		}
		seen[n] = true
		out[i] = n
	}
	return out
}
