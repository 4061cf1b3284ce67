package term

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/penstock-data/penstock/internal/cell"
)

func TestClean(t *testing.T) {
	for in, want := range map[string]string{
		"plain\ttext\nüñ 日本 😀 é": "plain\ttext\nüñ 日本 😀 é",
		"\x1b]0;title\x07":       `\x1b]0;title\x07`,
		"\x1b[2J":                `\x1b[2J`,
		"\u009b31m":              `\u009b31m`,
		"\x9b31m":                `\x9b31m`,
		"a\u202eb\u2066c\u200fd": `a\u202eb\u2066c\u200fd`,
		"a\rb\r\nc":              "a\nb\nc",
		"\x7f\x00\x08":           `\x7f\x00\x08`,
		"\ufffd\xff":             "\ufffd" + `\xff`,
		"\u2028\U000e0041":       `\u2028\U000e0041`,
		"👩\u200d👩🏽\u200d🚀 ❤\ufe0f\u200d🔥 می\u200cخواهم क्\u200dष": "👩\u200d👩🏽\u200d🚀 ❤\ufe0f\u200d🔥 می\u200cخواهم क्\u200dष",
		"pay\u200dload \u200cx é\u200dи\u200c中\u200d":             `pay\u200dload \u200cx é\u200dи\u200c中\u200d`,
		"👩\u200d\u200d\u200b": "👩\u200d" + `\u200d\u200b`,
	} {
		if got := Clean(in); got != want {
			t.Errorf("Clean(%q) = %q, want %q", in, got, want)
		}
		if got, want := Line(in), strings.NewReplacer("\n", " ", "\t", " ").Replace(want); in != "a\rb\r\nc" && got != want {
			t.Errorf("Line(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestWriterColors(t *testing.T) {
	for _, c := range []struct{ in, colors, plain string }{
		{"\x1b[31mred\x1b[0m", "\x1b[31mred\x1b[0m\x1b[0m", "red"},
		{"\x1b[38;5;9mx\ny", "\x1b[38;5;9mx\x1b[0m\ny", "x\ny"},
		{"\x1b[8mhidden", `\x1b[8mhidden`, `\x1b[8mhidden`},
		{"\x1b[31", `\x1b[31`, `\x1b[31`},
		{"\x1b[1;2H", `\x1b[1;2H`, `\x1b[1;2H`},
		{"\x1b[38mx", `\x1b[38mx`, `\x1b[38mx`},
		{"50%\x1b[K\r\x1b[2A100%\x1b[?25h\n", "50%\n100%\n", "50%\n100%\n"},
	} {
		for _, colors := range []bool{true, false} {
			want := c.plain
			if colors {
				want = c.colors
			}
			for cut := range len(c.in) + 1 {
				var b bytes.Buffer
				w := NewWriter(&b, colors)
				for _, part := range []string{c.in[:cut], c.in[cut:]} {
					if n, err := w.Write([]byte(part)); err != nil || n != len(part) {
						t.Fatal(n, err)
					}
				}
				if err := w.Flush(); err != nil || b.String() != want {
					t.Errorf("%q with colours %v, cut at %d: %q, want %q", c.in, colors, cut, b.String(), want)
				}
			}
		}
	}
}

// A screen shows what Clean has, also where a rune comes in two parts; its sequences are its own.
func TestScreen(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "screen"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := NewScreen(f)
	const text = "\x1b[31mä\x1b[2J\u009b\u202e\r\n\x1b"
	for i := range len(text) {
		if n, err := s.Write([]byte(text[i : i+1])); n != 1 || err != nil {
			t.Fatal(n, err)
		}
	}
	s.Redraw("50%\x1b[2J\n")
	if err := s.Page("a\x1b[2Jb\n"); err != nil {
		t.Fatal(err)
	}
	s.Write([]byte("\xc3"))
	if err := s.Flush(); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(f.Name())
	if want := Clean(text) + "\r\x1b[K50%\\x1b[2J \x1b[H\x1b[2Ja\\x1b[2Jb\n\\xc3"; err != nil || string(b) != want {
		t.Errorf("%q, want %q, %v", b, want, err)
	}
	if IsTerminal(s) || Colors(s) || s.Width() != 80 || !Colors(Output(s, true)) {
		t.Error("a file is no terminal")
	}
}

// JSON prints, and has the same values.
func TestJSON(t *testing.T) {
	for _, v := range []string{"plain", "ä日", "\x1b[2J\u009b\u202e\x7f\U000e0041😀\u2028\n"} {
		b, err := json.Marshal(map[string]string{v: v})
		if err != nil {
			t.Fatal(err)
		}
		var got map[string]string
		if b = JSON(b); json.Unmarshal(b, &got) != nil || got[v] != v || Clean(string(b)) != string(b) {
			t.Errorf("%q: %s", v, b)
		}
	}
	if got := string(JSON([]byte("{\r\n}\xff"))); got != "{ \n}\\ufffd" {
		t.Errorf("%q", got)
	}
}

// FuzzWriter: whatever is written in two parts prints, and is what Clean makes of it where no
// colours are in it.
func FuzzWriter(f *testing.F) {
	f.Add("a\x1b[31mb\r\nc\u202e\xff", 4)
	f.Fuzz(func(t *testing.T, in string, cut int) {
		cut = min(max(cut, 0), len(in))
		var b bytes.Buffer
		w := NewWriter(&b, false)
		w.Write([]byte(in[:cut]))
		w.Write([]byte(in[cut:]))
		w.Flush()
		got := b.String()
		before := rune(0)
		for _, r := range got {
			if r != '\n' && r != '\t' && !unicode.IsGraphic(r) && !cell.Joins(before, r) {
				t.Fatalf("%q became %q, with %U", in, got, r)
			}
			before = r
		}
		if !utf8.ValidString(got) {
			t.Fatalf("%q became %q", in, got)
		}
		if !strings.Contains(in, "\x1b[") && got != Clean(in) {
			t.Fatalf("%q became %q, and by Clean %q", in, got, Clean(in))
		}
	})
}
