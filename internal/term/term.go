// Package term writes text that others wrote (logs of jobs, names, paths, errors, records) so that
// a terminal only prints it: it moves no cursor, sets no title or clipboard, reorders and hides
// nothing.
//
// What prints is graphic Unicode (letters, marks, numbers, punctuation, symbols, spaces), joiners
// in emoji and in scripts that have them, a newline and a tab. Everything else, control characters
// of C0 and C1, bidirectional and other format characters, and bytes that are not UTF-8, is written
// as an escape that people can read: \x1b, \u202e, \xff. A carriage return becomes a newline.
//
// Programs print through Out and Err, which let nothing else through.
package term

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/penstock-data/penstock/internal/cell"
)

// Clean returns a text of one or more lines as it may be printed.
func Clean(s string) string { return printed(s, true) }

// Line returns s as part of one line: a newline, a tab and a carriage return are blanks.
func Line(s string) string { return printed(s, false) }

func printed(s string, lines bool) string {
	if clean(s, lines) {
		return s
	}
	var b strings.Builder
	var before rune
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		switch {
		case !lines && (r == '\n' || r == '\t' || r == '\r'):
			b.WriteByte(' ')
		case r == '\r':
			if i+1 >= len(s) || s[i+1] != '\n' {
				b.WriteByte('\n')
			}
		case r == '\n' || r == '\t' || prints(before, r, n):
			b.WriteString(s[i : i+n])
		default:
			escape(&b, s[i:i+n], r)
		}
		i, before = i+n, r
	}
	return b.String()
}

// Printed returns what a Writer makes of the whole of s.
func Printed(s string, colors bool) string {
	if clean(s, true) {
		return s
	}
	var b strings.Builder
	w := NewWriter(&b, colors)
	_ = w.write([]byte(s), true) // memory takes it
	return b.String()
}

// Paint returns s, which prints, in a colour of a terminal: 31 to 36.
func Paint(s string, color int) string { return fmt.Sprintf("\x1b[%dm%s\x1b[0m", color, s) }

// JSON returns JSON with the same values that prints: what does not is \u and four digits in its
// strings.
func JSON(b []byte) []byte {
	if clean(string(b), true) {
		return b
	}
	var out strings.Builder
	var before rune
	for s := string(b); len(s) > 0; {
		r, n := utf8.DecodeRuneInString(s)
		switch {
		case r == '\r': // between values
			out.WriteByte(' ')
		case r == '\n' || r == '\t' || prints(before, r, n):
			out.WriteString(s[:n])
		case r > 0xffff:
			high, low := utf16.EncodeRune(r)
			fmt.Fprintf(&out, `\u%04x\u%04x`, high, low)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
		s, before = s[n:], r
	}
	return []byte(out.String())
}

// clean reports that s prints as it is.
func clean(s string, lines bool) bool { return cleanBehind(0, s, lines) }

// cleanBehind is clean of what follows a rune.
func cleanBehind(before rune, s string, lines bool) bool {
	for i, r := range s {
		switch {
		case r >= ' ' && r < 0x7f:
		case r == '\n' || r == '\t':
			if !lines {
				return false
			}
		case r == utf8.RuneError:
			if _, n := utf8.DecodeRuneInString(s[i:]); n == 1 {
				return false
			}
		case !prints(before, r, 0):
			return false
		}
		before = r
	}
	return true
}

// prints reports that a rune of n bytes prints behind another.
func prints(before, r rune, n int) bool {
	if r == utf8.RuneError && n == 1 {
		return false
	}
	return r >= ' ' && r < 0x7f || r >= 0xa0 && (unicode.IsGraphic(r) || cell.Joins(before, r))
}

func escape(b *strings.Builder, raw string, r rune) {
	switch {
	case len(raw) == 1: // ASCII, or not UTF-8
		fmt.Fprintf(b, `\x%02x`, raw[0])
	case r <= 0xffff:
		fmt.Fprintf(b, `\u%04x`, r)
	default:
		fmt.Fprintf(b, `\U%08x`, r)
	}
}

// Writer writes what Clean would make of the whole of what is written to it. Colors (SGR sequences
// of ECMA-48 that choose colours, bold, italic or underline) pass where they are wanted, and end
// with their line; otherwise they are left out, as are sequences that progress bars redraw their
// lines with, which carry no text. A rune or a sequence that is cut between two writes is held back
// until the next one, or Flush. Not safe for concurrent use.
type Writer struct {
	w      io.Writer
	all    bool // sequences are written as escapes, and none is left out
	colors bool
	held   []byte // the begin of a rune or of a sequence
	lit    bool   // a colour is on
	cr     bool   // the last byte was a carriage return, which is a newline already
	before rune   // the last one
}

// NewWriter returns a Writer to w. Colors says whether colours pass.
func NewWriter(w io.Writer, colors bool) *Writer { return &Writer{w: w, colors: colors} }

// maxSequence is the length of the longest sequence that is taken for one.
const maxSequence = 32

// Write writes p, or holds back the end of it. It returns len(p), or an error of the writer below.
func (t *Writer) Write(p []byte) (int, error) { return len(p), t.write(p, false) }

// Flush writes what is held back, and ends a colour.
func (t *Writer) Flush() error { return t.write(nil, true) }

func (t *Writer) write(p []byte, all bool) error {
	if !all && len(t.held) == 0 && !t.cr && !t.lit && cleanBehind(t.before, string(p), true) {
		if len(p) > 0 {
			t.before, _ = utf8.DecodeLastRune(p)
		}
		_, err := t.w.Write(p)
		return err
	}
	s := string(t.held) + string(p)
	t.held = nil
	var b strings.Builder
	for len(s) > 0 {
		if !all && !utf8.FullRuneInString(s) {
			break
		}
		r, n := utf8.DecodeRuneInString(s)
		was := t.cr
		t.cr = r == '\r'
		switch {
		case r == '\n' && was:
		case r == '\r' || r == '\n':
			t.dark(&b)
			b.WriteByte('\n')
		case r == 0x1b && !t.all:
			k, redraws, cut := sequence(s)
			if cut && !all {
				t.held = []byte(s)
				n, s = 0, ""
				break
			}
			if k == 0 {
				escape(&b, s[:n], r)
				break
			}
			if n = k; t.colors && !redraws {
				b.WriteString(s[:k])
				t.lit = true
			}
		case r == '\t' || prints(t.before, r, n):
			b.WriteString(s[:n])
		default:
			escape(&b, s[:n], r)
		}
		s, t.before = s[n:], r
	}
	if s != "" {
		t.held = []byte(s)
	}
	if all {
		t.dark(&b)
	}
	if b.Len() == 0 {
		return nil
	}
	_, err := io.WriteString(t.w, b.String())
	return err
}

func (t *Writer) dark(b *strings.Builder) {
	if t.lit {
		b.WriteString("\x1b[0m")
		t.lit = false
	}
}

// sequence is the length of the colour, or of the sequence of a progress bar, that s, which begins
// with an escape, begins with; 0: none. cut: it may be one, but ends too early to tell.
func sequence(s string) (n int, redraws, cut bool) {
	if len(s) > 1 && s[1] != '[' {
		return 0, false, false
	}
	for i := 2; i < len(s) && i < maxSequence; i++ {
		switch c := s[i]; {
		case c == 'm' && chooses(s[2:i]):
			return i + 1, false, false
		case strings.IndexByte("ABCDGJKhl", c) >= 0: // moves up or along the line, erases, shows the cursor
			return i + 1, true, false
		case c != ';' && c != '?' && (c < '0' || c > '9'):
			return 0, false, false
		}
	}
	return 0, false, len(s) < maxSequence
}

// chooses reports that the parameters of an SGR sequence choose colours, bold, faint, italic or
// underline, or end them: they blink, reverse or hide nothing.
func chooses(params string) bool {
	if params == "" {
		return true
	}
	ps := strings.Split(params, ";")
	for i := 0; i < len(ps); i++ {
		n, err := strconv.Atoi(ps[i])
		if ps[i] == "" {
			n, err = 0, nil
		}
		switch {
		case err != nil:
			return false
		case n == 38 || n == 48: // 5;N or 2;R;G;B follows
			switch {
			case i+2 < len(ps) && ps[i+1] == "5":
				i += 2
			case i+4 < len(ps) && ps[i+1] == "2":
				i += 4
			default:
				return false
			}
		case n <= 4 || n >= 22 && n <= 24 || n >= 30 && n <= 49 || n >= 90 && n <= 107:
		default:
			return false
		}
	}
	return true
}
