package mask

import (
	"strings"
	"testing"
)

func TestText(t *testing.T) {
	key := "-----BEGIN KEY-----\nMIIEvQIBADAN\n  BgkqhkiG9w0B\r\nab\n-----END KEY-----\n"
	for name, x := range map[string]struct {
		text, want string
		secrets    []string
	}{
		"nothing":                        {"no rows", "no rows", nil},
		"whole, twice":                   {"worth is wrong: worth", "*** is wrong: ***", []string{"worth"}},
		"side by side":                   {"worthworth", "***", []string{"worth"}},
		"too short to be looked for":     {"it is on\n", "it is on\n", []string{"on", "", "a\nis\nit"}},
		"one is the begin of another":    {"prefix-1234-TAILLEAK prefix-1234.", "*** ***.", []string{"prefix-1234", "prefix-1234-TAILLEAK"}},
		"in another order":               {"prefix-1234-TAILLEAK prefix-1234.", "*** ***.", []string{"prefix-1234-TAILLEAK", "prefix-1234"}},
		"one overlaps another":           {"say abcdefgh.", "say ***.", []string{"abcdef", "cdefgh"}},
		"one overlaps itself":            {"abababa!", "***!", []string{"abab", "baba"}},
		"lines of one":                   {"exit code 3: -----END KEY-----\nMIIEvQIBADAN\n  BgkqhkiG9w0B\nab\n-----END KEY-----", "exit code 3: ***\n***\n  ***\nab\n***", []string{key}},
		"all lines of one":               {"key " + key + "end", "key ***end", []string{key}},
		"one with a line end":            {"worth is wrong", "*** is wrong", []string{"worth\n"}},
		"lines quoted":                   {`"MIIEvQIBADAN\n  BgkqhkiG9w0B\r\nab"`, `"***\n  ***\r\nab"`, []string{key}},
		"cut, where a line ends":         {"says MIIEvQI\r\nsays hid\nsays hidd\nhidd is begun\nsays hiddens", "says ***\r\nsays hid\nsays ***\nhidd is begun\nsays ***s", []string{key, "hidden"}},
		"cut, and said so":               {"not \"MIIEvQI...\", hid... hidd...", "not \"***...\", hid... ***...", []string{key, "hidden"}},
		"cut before it":                  {"...ddens = 1 ...idden, ...den", "...***s = 1 ...***, ...den", []string{"hidden", "hiddens hidde"}},
		"has the stars":                  {"*** stars *****", "*** stars ***", []string{"*****"}},
		"more than one byte a character": {"ä pässwörd ä pässw", "ä *** ä ***", []string{"pässwörd"}},
	} {
		if got := Text(x.text, x.secrets); got != x.want {
			t.Errorf("%s: %q, want %q", name, got, x.want)
		}
	}
}

// However much a node says, and a job hides.
func TestTextIsFast(t *testing.T) {
	if got := Text(strings.Repeat("a", 4<<10), []string{strings.Repeat("a", 2<<10), strings.Repeat("aaaab\n", 8<<10)}); got != "***" {
		t.Errorf("%q", got)
	}
}
