package dataset_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"

	"github.com/penstock-data/penstock/dataset"
)

// Whatever columns are called, a plan prints as lines of what shows as it is.
func TestExplainOddNames(t *testing.T) {
	path := filepath.Join(t.TempDir(), "odd\x07.csv")
	if err := os.WriteFile(path, []byte("\"c\x1b[31md\",\"x, y\",plain,back\u202ewards,two words\n1,2,3,4,5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	names := []string{"c\x1b[31md", "x, y", "back\u202ewards", "two words"}
	parts := dataset.ReadCSV(path).
		Filter(`col("c\u001b[31md") > 0 && col("back\u202ewards") in [4, 5]`).
		WithColumns(`new = col("two words") + 1`).
		Select(append(names, "new")...).
		Split(dataset.SplitOptions{Fractions: []float64{0.5, 0.5}, Key: names})
	text, err := parts[0].Explain(t.Context(), nil)
	if err != nil {
		t.Fatal(err)
	}
	if bad := strings.IndexFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); bad >= 0 {
		t.Errorf("%q in %q", text[bad], text[max(bad-60, 0):min(bad+20, len(text))])
	}
	for _, want := range []string{`columns: 4 of 5 ["c\x1b[31md", "x, y", "back\u202ewards", "two words"]`, `by "c\x1b[31md", "x, y"`, `where "c\x1b[31md" > 0`, `odd\a.csv`} {
		if !strings.Contains(text, want) {
			t.Errorf("%s is not in\n%s", want, text)
		}
	}
}
