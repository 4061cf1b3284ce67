package fault

import (
	"errors"
	"testing"
)

func TestParseCode(t *testing.T) {
	for c := Unknown; c.Known(); c++ {
		if got := ParseCode(c.String()); got != c {
			t.Errorf("%v is read as %v", c, got)
		}
	}
	for _, s := range []string{"", "Denied", "code(16)"} {
		if got := ParseCode(s); got != Unknown {
			t.Errorf("%q is read as %v", s, got)
		}
	}
}

func TestJoin(t *testing.T) {
	a, b, c := New(NotFound, "a"), New(Invalid, "b"), New(Corrupt, "c").At(Place{File: "f"})
	if Join() != nil || Join(nil, nil) != nil || Join(nil, a) != error(a) || All(nil) != nil || len(All(a)) != 1 {
		t.Error("none, or one")
	}
	err := Join(a, Join(b, c), nil, New(Invalid, "b"))
	if err.Error() != "a\nb\nf: c" || CodeOf(err) != Invalid || len(All(err)) != 3 || !errors.Is(err, c) || CodeOf(Join(a, c)) != NotFound {
		t.Errorf("%q %v %v", err, CodeOf(err), All(err))
	}
	each := Each(err, func(err error) error { return Wrap(err, Place{Step: "s"}) })
	if each.Error() != "s: a\ns: b\ns, f: c" {
		t.Errorf("%q", each)
	}
	if Each(nil, nil) != nil {
		t.Error("nil does not stay nil")
	}
}
