package expr

import (
	"os"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
)

// corpus adds every example of the documentation and the golden tests.
func corpus(f *testing.F) {
	for _, path := range []string{"../../docs/expressions.md", "testdata/print", "testdata/errors"} {
		text, err := os.ReadFile(path)
		if err != nil {
			f.Fatal(err)
		}
		for _, line := range strings.Split(string(text), "\n") {
			before, _, _ := strings.Cut(line, " =>")
			f.Add(before)
		}
	}
}

// FuzzParse: no text panics, and what parses reads back from its canonical text.
func FuzzParse(f *testing.F) {
	corpus(f)
	f.Fuzz(func(t *testing.T, text string) {
		e, err := Parse(text)
		if err != nil {
			if fault.CodeOf(err) != fault.Invalid {
				t.Fatalf("%q: %v", text, err)
			}
			return
		}
		canon := e.String()
		if len(canon) > maxText { // a long text may grow in writing
			return
		}
		back, err := Parse(canon)
		if err != nil {
			t.Fatalf("%q: canonical text %q: %v", text, canon, err)
		}
		if !sameNode(back.root, e.root) || back.String() != canon {
			t.Fatalf("%q: %q reads back as %q", text, canon, back)
		}
	})
}

// FuzzEval: nothing that binds panics or leaks, folding keeps the result, and
// predicates are never stronger.
func FuzzEval(f *testing.F) {
	corpus(f)
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 1000 {
			return // short ones find more
		}
		e, err := Parse(text)
		if err != nil {
			return
		}
		mem := memtest.New(t)
		rec := table(t, mem)
		defer rec.Release()
		want, err := eval(t, rec, mem, e.String())
		if c := fault.CodeOf(err); err != nil && c != fault.Invalid && c != fault.RowError && c != fault.Unsupported {
			t.Fatalf("%q: %s: %v", text, c, err)
		}
		folded, ferr := eval(t, rec, mem, e.Fold(tableSchema).String())
		if err == nil && (ferr != nil || folded != want) {
			t.Fatalf("%q: %s (%v), folded to %s: %s", text, want, err, e.Fold(tableSchema), folded)
		}
		if err != nil && ferr == nil && fault.CodeOf(err) != fault.RowError {
			t.Fatalf("%q: folding hides %v", text, err)
		}
		if err != nil && fault.CodeOf(err) == fault.RowError && !e.MayFail(tableSchema) {
			t.Fatalf("%q cannot fail, but %v", text, err)
		}
		e.Predicate(tableSchema)
		e.Columns()
		// Two rows cut out of the middle, and none.
		for _, part := range [][2]int64{{1, 3}, {1, 1}} {
			slice := rec.NewSlice(part[0], part[1])
			if _, serr := eval(t, slice, mem, text); err == nil && serr != nil {
				t.Errorf("%q: fails on a slice: %v", text, serr)
			}
			slice.Release()
		}
	})
}
