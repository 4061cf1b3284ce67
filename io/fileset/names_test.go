package fileset_test

import (
	"strings"
	"testing"

	"github.com/penstock-data/penstock/io/fileset"
)

func TestDistinct(t *testing.T) {
	for in, want := range map[string]string{
		"a b":         "a b",
		"a a a":       "a a_1 a_2",
		"a a_1 a":     "a a_1 a_2",
		"a a a_1 a_1": "a a_2 a_1 a_1_1",
		"a a_1 a a_1": "a a_1 a_2 a_1_1",
		"  ":          " _1 _2",
	} {
		if got := strings.Join(fileset.Distinct(strings.Split(in, " "), nil), " "); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
	// What is made gives way, wherever it stands.
	made := func(i int) bool { return i < 2 }
	if got := strings.Join(fileset.Distinct([]string{"a", "b", "b", "a_1", "b"}, made), " "); got != "a b_1 b a_1 b_2" {
		t.Error(got)
	}
}
