package expr

import (
	"strings"
	"testing"

	"github.com/penstock-data/penstock/internal/fault"
)

// A number or an escape that cannot be is said in words of ours.
func TestLiterals(t *testing.T) {
	for text, want := range map[string]string{
		`a == 1e999`:                 "the number is beyond double",
		`a == -1e999`:                "the number is beyond double",
		`s == "\ud83d"`:              "the escape in the text is no character",
		`s == "\U00110000"`:          "the escape in the text is no character",
		`s == "\777"`:                "text that does not end, or has a \\",
		`s == "x`:                    "text that does not end",
		"s == 'x":                    "text that does not end",
		`a == 18446744073709551616u`: "the number is beyond uint64",
	} {
		if _, err := Parse(text); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}
