package typename

import (
	"strings"
	"testing"
)

// An error quotes the begin of a name that has no end.
func TestLongNamesInErrors(t *testing.T) {
	for _, name := range []string{strings.Repeat("list<", 1e5) + "int" + strings.Repeat(">", 1e5), strings.Repeat("x", 1e6)} {
		if _, err := Parse(name); err == nil || len(err.Error()) > 2000 {
			t.Errorf("%.50s...: %.300v", name, err)
		}
	}
}
