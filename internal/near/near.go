// Package near finds what a misspelt name was meant to be.
package near

import (
	"fmt"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
)

// shown is how many names a message lists.
const shown = 20

// Among is the end of a message about an unknown name: the nearest of names, if one is near, and a list of them, at most 20:
// `; did you mean "id"?; have id, text`.
func Among(s string, names []string) string {
	if len(names) == 0 {
		return "; there are none"
	}
	hint, more := "", ""
	if n := Name(s, names); n != "" {
		hint = fmt.Sprintf("; did you mean %q?", n)
	}
	if len(names) > shown {
		more = fmt.Sprintf(" and %d more", len(names)-shown)
		names = names[:shown]
	}
	return hint + "; have " + strings.Join(names, ", ") + more
}

// Column is Among the names of a schema's columns.
func Column(s string, schema *arrow.Schema) string {
	names := make([]string, schema.NumFields())
	for i, f := range schema.Fields() {
		names[i] = f.Name
	}
	return Among(s, names)
}

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
