package cell

import (
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for _, c := range []struct {
		in   string
		max  int
		want string
	}{
		{"", 0, ""},
		{"plain text", 0, "plain text"},
		{"a\nb\tc\rd", 0, `a\nb\tc\rd`},
		{"\x1b[31mred\x7f", 0, `\x1b[31mred\x7f`},
		{"a\u200bb\u202ec\u00a0d", 0, `a\u200bb\u202ec\u00a0d`},
		{"\xff\x02 \xc3", 0, `\xff\x02 \xc3`},
		{`back\slash "it's"`, 0, `back\slash "it's"`},
		{"'", 0, "'"},
		{"日本語", 6, "日本語"},
		{"日本語", 5, "日..."},
		{"0123456789", 10, "0123456789"},
		{"01234567890", 10, "0123456..."},
		{"0123456\n89", 10, "0123456..."},
		{"e\u0301e\u0301", 2, "e\u0301e\u0301"},
		{"👩\u200d🚀 می\u200cخواهم", 0, "👩\u200d🚀 می\u200cخواهم"},
		{"pay\u200dload\u200c", 0, `pay\u200dload\u200c`},
	} {
		if got := Text(c.in, c.max); got != c.want {
			t.Errorf("Text(%q, %d) = %q, want %q", c.in, c.max, got, c.want)
		}
	}
}

func TestName(t *testing.T) {
	for in, want := range map[string]string{
		"fare": "fare", "a b": "a b", "": `""`, " x": `" x"`, "x ": `"x "`, "a\nb": `"a\nb"`, `"x"`: `"\"x\""`, "日本": "日本", "\xff": `"\xff"`, "it's": "it's",
	} {
		if got := Name(in, 0); got != want {
			t.Errorf("Name(%q) = %s, want %s", in, got, want)
		}
	}
	if got := Name(strings.Repeat("n", 100), 10); got != "nnnnnnn..." {
		t.Error(got)
	}
}

// No more of a text is looked at than is shown of it: names and marks of many bytes cost what short ones do.
func TestLongNames(t *testing.T) {
	for _, part := range []string{"\x00", "n", "e\u0301", "\u0301", "日", "\xff", "\u202e", `"`, " ", "\x80"} {
		long := strings.Repeat(part, 1<<20)
		for name, f := range map[string]func(string) string{
			"name":  func(s string) string { return Name(s, 40) },
			"whole": func(s string) string { return Name(s, 0) },
			"word":  Word,
			"text":  func(s string) string { return Text(s, 40) },
		} {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			got := f(long)
			runtime.ReadMemStats(&after)
			if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 || len(got) > 1<<15 || !strings.HasSuffix(got, "...") {
				t.Errorf("%s of %q: %d bytes of memory for %d bytes", name, part, n, len(got))
			}
			if short := long[:len(part)*1100]; f(short) != got && !strings.Contains(got, "\u0301") {
				t.Errorf("%s of %q: %q, and of 1,100 %q", name, part, got, f(short))
			}
		}
	}
}

func TestWords(t *testing.T) {
	if got := strings.Join(Words([]string{"plain", "", "a b", "a,b", "a=b", `a"b`, "a\nb", "ä", "\u202e"}), " "); got != `plain "" "a b" "a,b" "a=b" "a\"b" "a\nb" ä "\u202e"` {
		t.Error(got)
	}
}

func TestWidth(t *testing.T) {
	for in, want := range map[string]int{"": 0, "abc": 3, "é": 1, "e\u0301": 1, "日本語": 6, "ｱｲ": 2, "Ａ": 2, "한": 2, "🚀": 2, "✓": 1, "م": 1} {
		if got := Width(in); got != want {
			t.Errorf("Width(%q) = %d, want %d", in, got, want)
		}
	}
	if got := Pad("日", 4, false) + "|" + Pad("日", 4, true) + "|" + Pad("long", 2, false); got != "日  |  日|long" {
		t.Errorf("%q", got)
	}
}

// Whatever goes in, what comes out is one line of what prints, and never wider than asked for.
func TestTextPrints(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	for range 20_000 {
		var b []byte
		for range rng.IntN(30) {
			switch rng.IntN(4) {
			case 0:
				b = append(b, byte(rng.Uint32()))
			case 1:
				b = append(b, byte(rng.IntN(32)))
			case 2:
				b = utf8.AppendRune(b, rune(rng.IntN(unicode.MaxRune+1)))
			default:
				b = append(b, byte('a'+rng.IntN(26)))
			}
		}
		bound := 3 + rng.IntN(20)
		for _, got := range []string{Text(string(b), bound), Name(string(b), bound)} {
			bad := strings.IndexFunc(got, func(r rune) bool { return !unicode.IsPrint(r) })
			if bad >= 0 || Width(got) > bound {
				t.Fatalf("seed %d: %q at most %d wide gives %q of %d", seed, b, bound, got, Width(got))
			}
		}
	}
}
