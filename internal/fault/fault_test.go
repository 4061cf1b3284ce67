package fault

import "testing"

func TestParseCode(t *testing.T) {
	for c := Unknown; c <= Denied; c++ {
		if got := ParseCode(c.String()); got != c {
			t.Errorf("%v is read as %v", c, got)
		}
	}
	for _, s := range []string{"", "Denied", "code(15)"} {
		if got := ParseCode(s); got != Unknown {
			t.Errorf("%q is read as %v", s, got)
		}
	}
}
