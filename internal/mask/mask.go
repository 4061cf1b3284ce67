// Package mask keeps secrets out of what Penstock writes down and shows.
package mask

import (
	"slices"
	"strings"
)

// least is how long a secret is that is looked for, or a line of one, or the begin of one: shorter
// ones are found in any text.
const least = 4

// Text is text with *** for what it has of secrets: of each the whole, its lines, as a text may
// have a few of them, the begin of the whole or of a line where a line of text ends, or "..."
// follows, and the end of one behind "...": there it may have been cut.
func Text(text string, secrets []string) string {
	hide := make([]bool, len(text)) // where secrets overlap, or one is the begin of another, all of both
	cover := func(from, n int) {
		for i := range n {
			hide[from+i] = true
		}
	}
	ends, begins := cuts(text)
	for _, part := range parts(secrets) {
		for from := 0; ; from++ {
			i := strings.Index(text[from:], part)
			if i < 0 {
				break
			}
			from += i
			cover(from, len(part))
		}
		for _, at := range begins {
			body := text[at:min(len(text), at+len(part)-1)]
			for n := len(body); n >= least; n-- {
				if strings.HasSuffix(part, body[:n]) {
					cover(at, n)
					break
				}
			}
		}
		for _, end := range ends {
			body := text[end.begin:end.at]
			for n := min(len(body), len(part)-1); n >= least; n-- {
				if strings.HasPrefix(part, body[len(body)-n:]) {
					cover(end.at-n, n)
					break
				}
			}
		}
	}
	var b strings.Builder
	for i := range len(text) {
		switch {
		case !hide[i]:
			b.WriteByte(text[i])
		case i == 0 || !hide[i-1]:
			b.WriteString("***")
		}
	}
	return b.String()
}

// parts are secrets and their lines, those that are long enough.
func parts(secrets []string) (all []string) {
	for _, s := range secrets {
		all = append(all, s)
		for line := range strings.FieldsFuncSeq(s, func(r rune) bool { return r == '\n' || r == '\r' }) {
			all = append(all, strings.TrimSpace(line))
		}
	}
	return slices.DeleteFunc(all, func(s string) bool { return len(s) < least })
}

// cut is where a text may have been cut, and where its line begins.
type cut struct{ begin, at int }

// cuts are the ends of lines, and what "..." follows; and what follows "...".
func cuts(text string) (all []cut, behind []int) {
	begin := 0
	for line := range strings.Lines(text) {
		body := strings.TrimRight(line, "\r\n")
		for from := 0; ; {
			i := strings.Index(body[from:], "...")
			if i < 0 {
				break
			}
			all = append(all, cut{begin, begin + from + i})
			from += i + 3
			behind = append(behind, begin+from)
		}
		all = append(all, cut{begin, begin + len(body)})
		begin += len(line)
	}
	return all, behind
}
