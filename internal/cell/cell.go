// Package cell makes text fit for a line of a table on a terminal: one line, nothing that moves the
// cursor or hides, and as wide as it says.
package cell

import (
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"
)

// textBytes is how many bytes a column may take.
const textBytes = 16

// Text is s with everything escaped that does not show as itself: control characters, breaks, marks of direction,
// spaces other than the blank, joiners where they join nothing, bytes that are no UTF-8 (as \n, \t, \u200b, \xff). What is wider than max columns is cut and
// ends in three points, and so is what has more than 16 bytes for each column, of marks upon marks; 0 means no bound. A backslash
// stays one, so what was escaped cannot be read back.
func Text(s string, max int) string {
	var b strings.Builder
	width, keep := 0, 0 // keep: bytes of b that leave room for the points
	var before rune
	for i := 0; i < len(s); {
		r, n := utf8.DecodeRuneInString(s[i:])
		part := s[i : i+n]
		switch {
		case r == utf8.RuneError && n == 1:
			part = `\x` + strconv.FormatUint(uint64(s[i])|0x100, 16)[1:]
		case !unicode.IsPrint(r) && !Joins(before, r):
			part = strings.Trim(strconv.QuoteRune(r), "'")
		}
		i, before = i+n, r
		width += Width(part)
		if max > 0 && (width > max || b.Len() > textBytes*max) {
			return b.String()[:keep] + "..."
		}
		b.WriteString(part)
		if width <= max-3 {
			keep = b.Len()
		}
	}
	return b.String()
}

// nameWidth is how wide a name may be where nothing else is said: nobody reads more.
const nameWidth = 1000

// Name is Text for a name, where 0 means at most 1,000 columns. One that would not show as it is, or is hard to
// see (empty, blanks at an end), is quoted as in Go.
func Name(s string, max int) string {
	s, max = named(s, max)
	if t := Text(s, 0); s == "" || t != s || strings.TrimSpace(s) != s || s[0] == '"' {
		return Text(strconv.Quote(s), max)
	}
	return Text(s, max)
}

// Word is Name for a name among others: one with blanks, commas, quotes or = is quoted, too.
func Word(s string) string {
	s, max := named(s, 0)
	if strings.ContainsAny(s, " \",=") {
		return Text(strconv.Quote(s), max)
	}
	return Name(s, max)
}

// named is what may be shown of a name, and the columns for it.
func named(s string, max int) (string, int) {
	if max == 0 {
		max = nameWidth
	}
	if n := textBytes*max + 4*utf8.UTFMax; len(s) > n {
		for range utf8.UTFMax - 1 {
			if !utf8.RuneStart(s[n]) {
				n--
			}
		}
		s = s[:n]
	}
	return s, max
}

// Words are those of a list.
func Words(names []string) []string {
	out := make([]string, len(names))
	for i, s := range names {
		out[i] = Word(s)
	}
	return out
}

// Width is the columns of a terminal that s, as Text gives it, takes.
func Width(s string) int {
	n := 0
	for _, r := range s {
		switch {
		case r < 0x300:
			n++
		case r == 0x200c || r == 0x200d || unicode.In(r, unicode.Mn, unicode.Me): // drawn over the one before
		case unicode.Is(wide, r):
			n += 2
		default:
			n++
		}
	}
	return n
}

// Pad fills s up with blanks to width columns: before it if right.
func Pad(s string, width int, right bool) string {
	fill := strings.Repeat(" ", max(width-Width(s), 0))
	if right {
		return fill + s
	}
	return s + fill
}

// wide are the characters of two columns: those of East Asian scripts, full-width forms, pictures.
var wide = &unicode.RangeTable{
	R16: []unicode.Range16{
		{Lo: 0x1100, Hi: 0x115f, Stride: 1}, {Lo: 0x231a, Hi: 0x231b, Stride: 1}, {Lo: 0x2329, Hi: 0x232a, Stride: 1}, {Lo: 0x23e9, Hi: 0x23ec, Stride: 1},
		{Lo: 0x2614, Hi: 0x2615, Stride: 1}, {Lo: 0x2648, Hi: 0x2653, Stride: 1}, {Lo: 0x2705, Hi: 0x2705, Stride: 1}, {Lo: 0x270a, Hi: 0x270b, Stride: 1},
		{Lo: 0x274c, Hi: 0x274e, Stride: 2}, {Lo: 0x2b1b, Hi: 0x2b1c, Stride: 1}, {Lo: 0x2b50, Hi: 0x2b55, Stride: 5}, {Lo: 0x2e80, Hi: 0x303e, Stride: 1},
		{Lo: 0x3041, Hi: 0xa4cf, Stride: 1}, {Lo: 0xa960, Hi: 0xa97f, Stride: 1}, {Lo: 0xac00, Hi: 0xd7a3, Stride: 1}, {Lo: 0xf900, Hi: 0xfaff, Stride: 1},
		{Lo: 0xfe10, Hi: 0xfe19, Stride: 1}, {Lo: 0xfe30, Hi: 0xfe6f, Stride: 1}, {Lo: 0xff01, Hi: 0xff60, Stride: 1}, {Lo: 0xffe0, Hi: 0xffe6, Stride: 1},
	},
	R32: []unicode.Range32{
		{Lo: 0x17000, Hi: 0x18cff, Stride: 1}, {Lo: 0x1b000, Hi: 0x1b2ff, Stride: 1}, {Lo: 0x1f18e, Hi: 0x1f18e, Stride: 1}, {Lo: 0x1f191, Hi: 0x1f19a, Stride: 1},
		{Lo: 0x1f200, Hi: 0x1f64f, Stride: 1}, {Lo: 0x1f680, Hi: 0x1f6ff, Stride: 1}, {Lo: 0x1f7e0, Hi: 0x1f7eb, Stride: 1}, {Lo: 0x1f900, Hi: 0x1faff, Stride: 1},
		{Lo: 0x20000, Hi: 0x3fffd, Stride: 1},
	},
}
