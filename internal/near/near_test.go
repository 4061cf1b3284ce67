package near

import (
	"strings"
	"testing"
)

func TestName(t *testing.T) {
	have := []string{"filter", "memory", "seed", "skip", "a"}
	for in, want := range map[string]string{"filtr": "filter", "Memroy": "memory", "sed": "seed", "skp": "skip", "zzz": "", "s": "", "": "", strings.Repeat("x", 1<<20): ""} {
		if got := Name(in, have); got != want {
			t.Errorf("%.20q: %q, want %q", in, got, want)
		}
	}
}
