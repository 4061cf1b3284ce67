// Package units says sizes and numbers of things to people.
package units

import (
	"fmt"
	"strings"
)

// Bytes is a size in the largest unit that it has one of, with one decimal where it is not whole: "64 MiB", "2.1 GiB".
func Bytes(n int64) string {
	v, unit := float64(n), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v < 1023.95 { // what would be printed as 1024.0 is one of the next
			break
		}
		v, unit = v/1024, u
	}
	return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0") + " " + unit
}

// Count is a number of things: "1 file", "3 files".
func Count[N int | int64](n N, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}
