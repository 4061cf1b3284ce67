package expr_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/ops/expr"
)

// Constant strings are computed at plan time up to 64 KiB; what would be larger stays an
// expression, and planning it takes little memory.
func TestFoldBoundsStrings(t *testing.T) {
	s := arrow.NewSchema([]arrow.Field{{Name: "x", Type: arrow.BinaryTypes.String}}, nil)
	doubled := func(times int, how func(string) string) string {
		e := `"aaaaaaaa"`
		for range times {
			e = how(e)
		}
		return e
	}
	replace := func(e string) string { return `replace(` + e + `, "a", "aa")` }
	for _, c := range []struct {
		name, text string
		size       int // of the literal that is left; -1: none
	}{
		{"64 KiB", doubled(13, replace), 64 << 10},
		{"128 KiB", doubled(14, replace), -1},
		{"exponential", doubled(60, replace), -1},
		{"plus", doubled(13, func(e string) string { return `replace(` + e + ` + "", "a", "aa")` }), 64 << 10},
		{"sum", doubled(13, replace) + ` + "b"`, -1},
		{"large by large", `replace("` + strings.Repeat("a", 20_000) + `", "a", "` + strings.Repeat("b", 20_000) + `")`, -1},
		{"upper of large", "upper(" + doubled(40, replace) + ")", -1},
	} {
		e, err := expr.Parse(c.text + " == x")
		if err != nil {
			t.Fatal(err)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f := e.Fold(s)
		if _, err := f.Bind(s, 0); err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if c.size >= 0 {
			if want := fmt.Sprintf("%q == x", strings.Repeat("a", c.size)); f.String() != want {
				t.Errorf("%s: got %d bytes of text, want %d", c.name, len(f.String()), len(want))
			}
		} else if len(f.String()) > len(e.String())+70<<10 || !strings.Contains(f.String(), "(") && !strings.Contains(f.String(), "+") {
			t.Errorf("%s: %d bytes of text became %d", c.name, len(e.String()), len(f.String()))
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 64<<20 {
			t.Errorf("%s: planning took %d MiB", c.name, took>>20)
		}
	}
}
