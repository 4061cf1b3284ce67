package expr

import (
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/memtest"
)

var rewrite = flag.Bool("docs.rewrite", false, "write the results into docs/expressions.md")

var docLine = regexp.MustCompile(`^(.+?) +=>(?: (.*))?$`)

// TestDocs runs every example of the documentation, and finds one for every
// operator and function.
func TestDocs(t *testing.T) {
	const path = "../../docs/expressions.md"
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	mem := memtest.New(t)
	rec := table(t, mem)
	defer rec.Release()
	seen := map[string]bool{}
	lines := strings.Split(string(text), "\n")
	inside, examples := false, 0
	for i, line := range lines {
		if strings.HasPrefix(line, "```") {
			inside = !inside
			continue
		}
		m := docLine.FindStringSubmatch(line)
		if !inside || m == nil {
			continue
		}
		examples++
		got, err := eval(t, rec, mem, m[1])
		if err != nil {
			got = "error: " + strings.Split(err.Error(), "\n")[0]
			if cut := strings.Index(got, "; have "); cut > 0 {
				got = got[:cut] + "; have ..."
			}
		}
		if e, err := Parse(m[1]); err == nil {
			e.root.walk(func(n *node) {
				if n.kind == kCall {
					seen[n.name] = true
				}
			}, map[*node]bool{})
		}
		if *rewrite {
			lines[i] = m[1] + " => " + got
		} else if got != m[2] {
			t.Errorf("line %d: %s => %s, but the page says %s", i+1, m[1], got, m[2])
		}
	}
	for name := range functions {
		if !seen[name] {
			t.Errorf("no example of %s", name)
		}
	}
	if examples < len(functions) {
		t.Errorf("found only %d examples", examples)
	}
	if *rewrite {
		if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}
