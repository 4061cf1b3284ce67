package term

import (
	"io"
	"os"
	"sync"

	"golang.org/x/term"

	"github.com/penstock-data/penstock/internal/mask"
)

// Out and Err are the standard output and error of this process, and the one way to them.
var Out, Err = NewScreen(os.Stdout), NewScreen(os.Stderr)

// Screen is a file that may be a terminal. What is written to it prints, as Clean has it; the
// sequences that control a terminal are those of its methods, and text that is given to these
// cannot add any. Safe for concurrent use.
type Screen struct {
	f       *os.File
	mu      sync.Mutex
	text    *Writer
	secrets *mask.Set    // nil: none are hidden
	masked  *mask.Writer // to text
}

// NewScreen returns the Screen of a file.
func NewScreen(f *os.File) *Screen { return &Screen{f: f, text: &Writer{w: f, all: true}} }

// Hide has text that is written from now on show *** for secrets: see [mask.Writer].
func (s *Screen) Hide(secrets *mask.Set) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.secrets, s.masked = secrets, secrets.Writer(s.text)
}

// Write writes text.
func (s *Screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.masked != nil {
		return s.masked.Write(p)
	}
	return s.text.Write(p)
}

// Unmasked writes text that shows secrets: rows of data, as they are.
func (s *Screen) Unmasked() io.Writer { return unmasked{s} }

type unmasked struct{ s *Screen }

func (u unmasked) Write(p []byte) (int, error) {
	u.s.mu.Lock()
	defer u.s.mu.Unlock()
	return u.s.text.Write(p)
}

// Flush writes what is held back, the begin of a rune or a line that may have secrets: nothing
// comes after it. Where another write is under way, and perhaps stuck, that is left out.
func (s *Screen) Flush() error {
	if !s.mu.TryLock() {
		return nil
	}
	defer s.mu.Unlock()
	if s.masked != nil {
		if err := s.masked.Flush(); err != nil {
			return err
		}
	}
	return s.text.Flush()
}

// Redraw replaces the line that the cursor is in. A terminal that is gone takes no notice.
func (s *Screen) Redraw(line string) { _ = s.control("\r\x1b[K" + Line(s.hide(line))) }

// Page clears the screen, and writes text from its upper left corner on.
func (s *Screen) Page(text string) error { return s.control("\x1b[H\x1b[2J" + Clean(s.hide(text))) }

func (s *Screen) hide(text string) string {
	if s.secrets == nil {
		return text
	}
	return s.secrets.Text(text)
}

func (s *Screen) control(sequence string) error {
	_, err := s.Raw().Write([]byte(sequence))
	return err
}

// Raw writes bytes as they are: for what no person reads there.
func (s *Screen) Raw() io.Writer { return raw{s} }

type raw struct{ s *Screen }

func (r raw) Write(p []byte) (int, error) {
	r.s.mu.Lock()
	defer r.s.mu.Unlock()
	return r.s.f.Write(p)
}

// Width is the number of columns; 80 where it is not known.
func (s *Screen) Width() int {
	if width, _, err := term.GetSize(int(s.f.Fd())); err == nil && width >= 20 {
		return width
	}
	return 80
}

// Output returns a Writer to w for what other programs print: with the colours of these, if wanted.
func Output(w io.Writer, colors bool) *Writer {
	if s, ok := w.(*Screen); ok {
		w = s.Raw()
	}
	return NewWriter(w, colors)
}

// IsTerminal says that somebody sees what is written to w, and nobody keeps it.
func IsTerminal(w io.Writer) bool {
	if s, ok := w.(*Screen); ok {
		w = s.f
	}
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// Colors says whether colours may be written to w: those pass a Writer that was told so, and a
// terminal takes them, unless NO_COLOR is set or TERM is dumb.
func Colors(w io.Writer) bool {
	if t, ok := w.(*Writer); ok {
		return t.colors
	}
	return IsTerminal(w) && os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
}
