package spec

import (
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
)

// A spec may be JSON, also of a writer that escapes all but ASCII.
func TestSpecIsJSON(t *testing.T) {
	s, err := Parse("s", []byte(`{"version": 1, "name": "\\\ud83d\ude00 \uD83D\uDE00 \\ud83d", "source": {"range": {"n": 1}}}`), nil, Trust{})
	if err != nil || s.Name != `\😀 😀 \ud83d` {
		t.Errorf("%q, %v", s.Name, err)
	}
}

// What is no YAML is said in words of ours, with the line and what to do.
func TestNoYAML(t *testing.T) {
	for text, want := range map[string]string{
		"version: 1\nsource:\n\trange: {n: 1}\n": "s:3: this is no YAML: there is a tab; YAML indents with spaces only",
		"version: 1\nsource: @x\n":               "s:2: this is no YAML: a value that begins with @",
		"version: 1\nname: \"\\ud83d\"\n":        "s:2: this is no YAML: in double quotes, a backslash",
		"version: 1\nname: \"\xff\"\n":           "s: this is no YAML: a spec is text in UTF-8",
		"version: 1\n\tsource: 3\n":              "s:2: this is no YAML: there is a tab; YAML indents with spaces only",
		"version: 1\nname: \"a\n":                "s:2: this is no YAML: a quote or a bracket is open at the end",
		"version: 1\nname: 'a\n---\n":            "s:2: this is no YAML: a quote or a bracket is open at the end",
		"version: 1\nname: *a\n":                 "s: this is no YAML: a value that begins with * stands for another",
		"%YAML 3.0\n---\nversion: 1\n":           "s: this is no YAML: lines that begin with % are directives",
		"version: 1\nname: !<a\n":                "s:2: this is no YAML: a value that begins with ! needs quotes",
	} {
		_, err := parse(t, "s", []byte(text), nil)
		if fault.CodeOf(err) != fault.Invalid || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// --set is YAML, too.
func TestSetNoYAML(t *testing.T) {
	for set, want := range map[string]string{"run.memory={": "--set run.memory={:1: this is no YAML: an expression that holds", `name="a`: `--set name="a: this is no YAML: a quote or a bracket is open`} {
		if _, err := parse(t, "s", []byte("version: 1\nsource: {range: {n: 1}}\n"), []string{set}); fault.CodeOf(err) != fault.Invalid || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %q", set, err, want)
		}
	}
}

// Steps that others have are answered with what to do, and a list in place of a mapping with how one is written.
func TestHints(t *testing.T) {
	for step, want := range map[string]string{
		"group_by: a":                       "no step aggregates yet",
		"sort: a":                           "no step sorts yet",
		"take: 3":                           `did you mean "limit"?`,
		"map: [a]":                          "want a mapping, not a list: as in {function: text}",
		"rename: [a]":                       "want a mapping, not a list: as in {name: text}",
		"with_columns: [a]":                 "want a mapping, not a list: as in {name: text}",
		"filter: 18446744073709551615 > id": "the number is beyond int64: one of uint64 has a u behind it",
	} {
		_, err := parse(t, "s", []byte("version: 1\nsource: {range: {n: 1}}\nsteps:\n  - "+step+"\n"), nil)
		if err == nil {
			s, _ := parse(t, "s", []byte("version: 1\nsource: {range: {n: 1}}\nsteps:\n  - "+step+"\n"), nil)
			_, err = s.Dataset()
		}
		if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", step, err, want)
		}
	}
}
