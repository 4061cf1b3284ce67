package spec

import (
	"slices"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
)

// Columns to be read as dictionaries are all or some; what is neither is a mistake with its place.
func TestDictionary(t *testing.T) {
	for _, c := range []struct {
		value   string
		all     bool
		columns []string
		err     string
	}{
		{"true", true, nil, ""},
		{"false", false, nil, ""},
		{"[kind, true]", false, []string{"kind", "true"}, ""},
		{"[]", false, []string{}, ""},
		{"kind", false, nil, `s:2:44: source.parquet.dictionary: want true or a list of columns, not "kind": put it in brackets, such as [a]`},
		{`"true"`, false, nil, `want true or a list of columns, not "true"`},
		{"{a: b}", false, nil, "want true or a list of columns, not a mapping"},
		{"[[a]]", false, nil, "source.parquet.dictionary[1]: want text, not a list"},
	} {
		s, err := parse(t, "s", []byte("version: 1\nsource: {parquet: {paths: [x], dictionary: "+c.value+"}}\n"), nil)
		if c.err != "" {
			if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), c.err) {
				t.Errorf("%s: %v, want %s", c.value, err, c.err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", c.value, err)
			continue
		}
		if d := s.Source.Parquet.Dictionary; d.All != c.all || !slices.Equal(d.Columns, c.columns) {
			t.Errorf("%s: %+v", c.value, d)
		}
		if _, err := s.Dataset(); err != nil {
			t.Errorf("%s: %v", c.value, err)
		}
	}
	s, err := parse(t, "s", []byte("version: 1\nsource: {parquet: {paths: [x]}}\n"), []string{"source.parquet.dictionary=[a, b]"})
	if err != nil || !slices.Equal(s.Source.Parquet.Dictionary.Columns, []string{"a", "b"}) {
		t.Errorf("--set: %+v, %v", s, err)
	}
}
