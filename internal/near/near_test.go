package near

import (
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
)

func TestName(t *testing.T) {
	have := []string{"filter", "memory", "seed", "skip", "a"}
	for in, want := range map[string]string{"filtr": "filter", "Memroy": "memory", "sed": "seed", "skp": "skip", "zzz": "", "s": "", "": "", strings.Repeat("x", 1<<20): ""} {
		if got := Name(in, have); got != want {
			t.Errorf("%.20q: %q, want %q", in, got, want)
		}
	}
}

func TestAmong(t *testing.T) {
	many := make([]string, 22)
	for i := range many {
		many[i] = string(rune('a' + i))
	}
	for _, c := range []struct {
		s    string
		have []string
		want string
	}{
		{"idd", []string{"id", "text"}, `; did you mean "id"?; have id, text`},
		{"zzz", []string{"id", "text"}, "; have id, text"},
		{"zzz", nil, "; there are none"},
		{"zzz", many, "; have a, b, c, d, e, f, g, h, i, j, k, l, m, n, o, p, q, r, s, t and 2 more"},
	} {
		if got := Among(c.s, c.have); got != c.want {
			t.Errorf("%q among %q: %q, want %q", c.s, c.have, got, c.want)
		}
	}
	s := arrow.NewSchema([]arrow.Field{{Name: "id", Type: arrow.PrimitiveTypes.Int64}}, nil)
	if got, want := Column("ID", s), `; did you mean "id"?; have id`; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
