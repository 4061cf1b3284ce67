package csvio

import (
	"strings"
	"testing"

	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/drivertest"
	"github.com/penstock-data/penstock/io/fileset"
)

func TestLongRecord(t *testing.T) {
	long := drivertest.LongText(27 << 20)
	quotes := strings.ReplaceAll(long, "text", `te"t`)
	lines := strings.ReplaceAll(long, "text", "te\nt")
	quote := func(s string) string { return `"` + strings.ReplaceAll(s, `"`, `""`) + `"` }
	for _, c := range []struct {
		name, long, written string
		multiline           bool
		times               float64
	}{
		{"plain.csv", long, long, false, 2},
		{"quotes.csv", quotes, quote(quotes), false, 2},
		{"lines.csv", lines, quote(lines), true, 4}, // lines are read until there are twice as many
	} {
		file := []byte("id,s,more\n1,a,x\n2," + c.written + ",y\n3,b,z\n4," + c.written + ",z\n5,c,z\n")
		drivertest.LongRow(t, c.name, file, "s", []string{"a", c.long, "b", c.long, "c"}, c.times, func(path string) driver.Source {
			return New(Options{Options: fileset.Options{Paths: []string{path}}, SplitBytes: 1 << 30, Multiline: c.multiline})
		})
	}
}

// A long line of which little is wanted is not kept for it, nor copied into Go memory.
func TestLongRecordNarrow(t *testing.T) {
	a, b := strings.Repeat("some text ", 4<<20/10), drivertest.LongText(27<<20)
	drivertest.LongRow(t, "x.csv", []byte("id,a,b,c\n1,"+a+","+b+","+b+"\n"), "b", []string{b}, 4, func(path string) driver.Source {
		return New(Options{Options: fileset.Options{Paths: []string{path}}, SplitBytes: 1 << 30})
	})
}
