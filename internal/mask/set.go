package mask

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"sync"
)

// Set are the secrets that a process has come to know. The zero Set is empty. Safe for concurrent
// use.
type Set struct {
	mu    sync.Mutex
	all   []string
	known map[string]bool // those of all
}

// Add adds secrets, also as JSON, quotes, JSON of quotes, quotes of bytes, and URLs write them,
// whole and line by line. What is shorter than four bytes is not looked for: see [Text].
func (s *Set) Add(secrets ...string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, secret := range secrets {
		for _, part := range append(parts([]string{secret}), secret) {
			for _, form := range forms(part) {
				if len(form) >= least && !s.known[form] && (form != part || part == secret) { // Text looks for lines
					if s.known == nil {
						s.known = map[string]bool{}
					}
					s.known[form] = true
					s.all = append(s.all, form)
				}
			}
		}
	}
}

// forms are the ways in which texts of this program write a secret, or a line of one.
func forms(secret string) []string {
	text := strings.ToValidUTF8(secret, "\uFFFD")
	quoted := strconv.Quote(secret)
	quoted = quoted[1 : len(quoted)-1]
	return []string{secret, quoted, asJSON(text, true), asJSON(text, false), asJSON(quoted, true), asJSON(quoted, false), url.QueryEscape(secret), url.PathEscape(secret), asBytes(secret)}
}

// asBytes is a text as a literal of bytes has it between quotes.
func asBytes(text string) string {
	var b strings.Builder
	for i := range len(text) {
		switch c := text[i]; {
		case c == '"' || c == '\\':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c >= 0x20 && c < 0x7f:
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, `\x%02x`, c)
		}
	}
	return b.String()
}

// asJSON is text as JSON has it between quotes.
func asJSON(text string, html bool) string {
	var b strings.Builder
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(html)
	_ = enc.Encode(text) // of a string: cannot fail
	return b.String()[1 : b.Len()-2]
}

// Text is [Text] with the secrets of the set.
func (s *Set) Text(text string) string {
	s.mu.Lock()
	all := s.all
	s.mu.Unlock()
	if len(all) == 0 {
		return text
	}
	return Text(text, all)
}

// Empty reports that there are no secrets.
func (s *Set) Empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.all) == 0
}

// Writer returns a writer to w that masks what is written by the time it is written, line by line:
// while there are secrets a line waits for its end, or for Flush.
func (s *Set) Writer(w io.Writer) *Writer { return &Writer{set: s, w: w} }

// Writer is of Set.Writer. Safe for concurrent use, but for writes to what is below it.
type Writer struct {
	set *Set
	w   io.Writer

	mu   sync.Mutex
	held []byte // of a line that has not ended
}

// mostHeld is how much of a line waits for its end.
const mostHeld = 1 << 20

// Write takes all of p, or returns an error of the writer below.
func (m *Writer) Write(p []byte) (int, error) {
	m.mu.Lock()
	if len(m.held) == 0 && m.set.Empty() {
		m.mu.Unlock()
		return m.w.Write(p)
	}
	defer m.mu.Unlock()
	m.held = append(m.held, p...)
	whole := bytes.LastIndexByte(m.held, '\n') + 1
	if len(m.held)-whole > mostHeld {
		whole = len(m.held)
	}
	return len(p), m.write(whole)
}

// Flush writes what waits, unless another write is stuck below.
func (m *Writer) Flush() error {
	if !m.mu.TryLock() {
		return nil
	}
	defer m.mu.Unlock()
	return m.write(len(m.held))
}

// write writes so many of the bytes that are held.
func (m *Writer) write(n int) error {
	if n == 0 {
		return nil
	}
	text := m.set.Text(string(m.held[:n]))
	m.held = append(m.held[:0], m.held[n:]...)
	_, err := io.WriteString(m.w, text)
	return err
}
