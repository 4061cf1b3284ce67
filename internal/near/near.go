// Package near finds what a misspelt name was meant to be.
package near

import "strings"

// Name is the name closest to s by edit distance (Levenshtein), whatever the case; "" if none is
// close, or s is long or one letter.
func Name(s string, names []string) string {
	best, at := "", max(1, len(s)/3)+1
	if len(s) > 64 || len(s) < 2 {
		return ""
	}
	for _, n := range names {
		if len(n) > 64 {
			continue
		}
		if d := distance(strings.ToLower(s), strings.ToLower(n)); d < at {
			best, at = n, d
		}
	}
	return best
}

func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		prev := row[0]
		row[0] = i + 1
		for j := range len(b) {
			d := prev
			if a[i] != b[j] {
				d++
			}
			prev = row[j+1]
			row[j+1] = min(d, row[j]+1, prev+1)
		}
	}
	return row[len(b)]
}
