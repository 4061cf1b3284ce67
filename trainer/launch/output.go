package launch

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/penstock-data/penstock/internal/term"
)

const (
	maxLine   = 64 << 10    // bytes of a line: longer ones are split
	idleAfter = time.Second // what a worker printed without ending the line is shown after that
	barEvery  = time.Second // states of a progress bar are shown so often at most
	keepLogs  = 3           // files of a worker
	tailBytes = 8 << 10     // of Exit.Tail
	tailLine  = 1 << 10     // of the begin of a line of it
)

// output is where the streams of a worker go: file, terminal, and the last lines.
type output struct {
	term *terminal // nil: none
	slot int       // of the worker, in term

	mu    sync.Mutex // orders the streams
	file  *logFile   // nil: none
	lacks error      // the first of file: it lacks lines
	tail  tail
	watch *watch // of stderr; nil: nobody watches
}

func (o *output) closeFile() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.file != nil {
		o.failed(o.file.close())
		o.file = nil
	}
}

// failed keeps the first error of the file.
func (o *output) failed(err error) {
	if o.lacks == nil {
		o.lacks = err
	}
}

// watch collects what comes from now on.
type watch struct {
	buf  []byte
	more chan struct{} // gets one when something came
}

const maxWatch = 1 << 20

func (o *output) startWatch() *watch {
	w := &watch{more: make(chan struct{}, 1)}
	o.mu.Lock()
	o.watch = w
	o.mu.Unlock()
	return w
}

// endWatch returns what came.
func (o *output) endWatch(w *watch) string {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.watch == w {
		o.watch = nil
	}
	return string(w.buf)
}

// stream reads stdout or stderr of a worker, or both, until it is closed, or drained.
type stream struct {
	o      *output
	r      *os.File
	stderr bool          // it has stderr
	done   chan struct{} // closed when it has ended

	mu  sync.Mutex
	end time.Time // reads end then; zero: with the stream

	// of the goroutine that reads
	bar     bool      // what follows overwrites the last line
	state   string    // of a progress bar, not shown yet
	pending bool      // there is such a state
	shown   string    // the last state shown
	barAt   time.Time // when
}

func newStream(o *output, r *os.File, stderr bool) *stream {
	return &stream{o: o, r: r, stderr: stderr, done: make(chan struct{})}
}

// drain lets the stream end at a time, though a process may hold its other end.
func (s *stream) drain(end time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.end = end
	s.r.SetReadDeadline(end)
}

// wait sets the deadline of the next read, and reports whether the stream is being drained.
func (s *stream) wait(held bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case !s.end.IsZero():
		s.r.SetReadDeadline(s.end)
	case held:
		s.r.SetReadDeadline(time.Now().Add(idleAfter))
	default:
		s.r.SetReadDeadline(time.Time{})
	}
	return !s.end.IsZero()
}

// read is the goroutine of the stream.
func (s *stream) read() {
	defer close(s.done)
	defer s.r.Close()
	buf := make([]byte, maxLine)
	held := 0 // bytes at the front of buf that end no line yet
	for {
		drained := s.wait(held > 0 || s.pending)
		n, err := s.r.Read(buf[held:])
		have := buf[:held+n]
		cut := bytes.LastIndexAny(have, "\r\n") + 1 // whole lines, and states of progress bars
		late := errors.Is(err, os.ErrDeadlineExceeded)
		if err != nil || cut == 0 && len(have) == len(buf) {
			cut = whole(have, err != nil)
		}
		s.take(have[:cut])
		held = copy(buf, have[cut:])
		if err != nil {
			s.flush()
			if !late || drained {
				return
			}
		}
	}
}

// whole is the length of b without the begin of a character at its end, unless no more comes.
func whole(b []byte, last bool) int {
	if last {
		return len(b)
	}
	for i := 1; i < utf8.UTFMax && i < len(b); i++ {
		if c := b[len(b)-i]; utf8.RuneStart(c) {
			if !utf8.FullRune(b[len(b)-i:]) {
				return len(b) - i
			}
			break
		}
	}
	return len(b)
}

// take has whole lines written and shown. b is the caller's again.
func (s *stream) take(b []byte) {
	if len(b) == 0 {
		return
	}
	o := s.o
	o.mu.Lock()
	if o.file != nil {
		if err := o.file.write(b); err != nil {
			o.failed(err)
			if o.term != nil {
				defer o.term.say(o.slot, "its log cannot be written, and lacks lines: "+err.Error())
			}
		}
	}
	if w := o.watch; w != nil && s.stderr {
		w.buf = append(w.buf, b[:min(len(b), maxWatch-len(w.buf))]...)
		select {
		case w.more <- struct{}{}:
		default:
		}
	}
	o.tail.add(b)
	o.mu.Unlock()
	if o.term != nil {
		s.show(b)
	}
}

// show has lines shown, and states of a progress bar from time to time.
func (s *stream) show(b []byte) {
	for len(b) > 0 {
		i := bytes.IndexAny(b, "\r\n")
		line, bar := b, false
		switch {
		case i < 0:
			b = nil
			bar = s.bar // printed after a carriage return, and nothing since
		case b[i] == '\n':
			line, b = b[:i], b[i+1:]
		case i+1 < len(b) && b[i+1] == '\n':
			line, b = b[:i], b[i+2:]
		default:
			line, b, bar = b[:i], b[i+1:], true
		}
		switch {
		case bar:
			s.bar = true
			if len(line) == 0 {
				continue
			}
			s.state, s.pending = term.Printed(string(line), s.o.term.colour), true
			if time.Since(s.barAt) >= barEvery {
				s.showState()
			}
		case s.bar && len(line) == 0: // the line end after a last state
			s.showState()
			s.bar, s.shown = false, ""
		default: // overwrites the states before
			s.bar, s.pending = false, false
			if text := term.Printed(string(line), s.o.term.colour); text != s.shown || text == "" {
				s.o.term.line(s.o.slot, text)
			}
			s.shown = ""
		}
	}
}

func (s *stream) showState() {
	if s.pending && s.state != s.shown {
		s.o.term.line(s.o.slot, s.state)
		s.shown, s.barAt = s.state, time.Now()
	}
	s.pending = false
}

// flush shows what waits to be.
func (s *stream) flush() {
	if s.o.term != nil {
		s.showState()
	}
}

// tail is the last lines, raw; progress bars by their last state. Empty lines are left out.
type tail struct {
	lines []string // a ring, once it is full
	next  int
	open  bool // the last line has not ended
	back  bool // what comes next overwrites it
}

// add costs time by the lines kept, not by those in b.
func (t *tail) add(b []byte) {
	from := len(b)
	for n := 0; from > 0 && n <= tailLines; n++ { // a line too many, for the one that ends b
		from = bytes.LastIndexByte(b[:from-1], '\n') + 1
	}
	if from > 0 {
		t.open, t.back = false, false
	}
	for b = b[from:]; len(b) > 0; {
		line, rest, ended := bytes.Cut(b, []byte{'\n'})
		b = rest
		body := bytes.TrimRight(line, "\r")
		if i := bytes.LastIndexByte(body, '\r'); i >= 0 {
			body, t.back = body[i+1:], true
		}
		if len(bytes.TrimSpace(body)) > 0 {
			t.put(body)
			t.back = false
		}
		t.back = t.back || bytes.HasSuffix(line, []byte{'\r'})
		if ended {
			t.open, t.back = false, false
		}
	}
}

// put adds to the last line, overwrites it, or begins a new one.
func (t *tail) put(body []byte) {
	last := len(t.lines) - 1
	if last >= 0 {
		last = (t.next + last) % len(t.lines)
	}
	room := tailLine
	if t.open && !t.back {
		room -= len(t.lines[last])
	}
	if len(body) > room { // what is kept of it is its begin, and a whole one: who looks for words in it finds them
		body = body[:room]
		body = body[:whole(body, false)]
	}
	text := string(body)
	switch {
	case t.open && t.back:
		t.lines[last] = text
	case t.open:
		t.lines[last] += text
	case len(t.lines) < tailLines:
		t.lines = append(t.lines, text)
	default:
		t.lines[t.next] = text
		t.next = (t.next + 1) % tailLines
	}
	t.open = true
}

// last returns the lines, the oldest first, as they can be shown.
func (t *tail) last() []string {
	var out []string
	size := 0
	for i := len(t.lines) - 1; i >= 0; i-- {
		text := term.Printed(t.lines[(t.next+i)%len(t.lines)], false)
		if size += len(text); size > tailBytes {
			break
		}
		out = append(out, text)
	}
	slices.Reverse(out)
	return out
}

// folder is where files are found by name: anywhere, or in an os.Root, which no link leads out of.
type folder interface {
	OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error)
	Lstat(name string) (fs.FileInfo, error)
	MkdirAll(name string, perm fs.FileMode) error
	Rename(from, to string) error
	Remove(name string) error
	Close() error
}

// anywhere is the folder of all files by their paths.
type anywhere struct{}

func (anywhere) OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(name, flag, perm)
}
func (anywhere) Lstat(name string) (fs.FileInfo, error)       { return os.Lstat(name) }
func (anywhere) MkdirAll(name string, perm fs.FileMode) error { return os.MkdirAll(name, perm) }
func (anywhere) Rename(from, to string) error                 { return os.Rename(from, to) }
func (anywhere) Remove(name string) error                     { return os.Remove(name) }
func (anywhere) Close() error                                 { return nil }

// openLog opens a log file of this launcher.
func (p *processes) openLog(name string) (*logFile, error) {
	name = filepath.Join(p.Logs, name)
	if p.Within == "" {
		return openLog(name, p.Rotate)
	}
	rel, err := filepath.Rel(p.Within, name)
	if err != nil {
		return nil, err
	}
	in, err := os.OpenRoot(p.Within + "/") // of a pipe that is no wait, but an error
	if err != nil {
		return nil, err
	}
	l, err := openLogIn(in, rel, name, p.Rotate)
	if err != nil {
		return nil, fmt.Errorf("%w; in %s no link is followed, and no pipe is written to: remove what is there, or keep logs elsewhere", err, p.Within)
	}
	return l, nil
}

// logFile is a file that begins anew when it is full.
type logFile struct {
	in    folder
	name  string // in it
	path  string // the same file's
	limit int64
	f     *os.File
	size  int64
	bad   error // of the writes in a row that failed, up to the last one, the first; nil: that did not
}

// openLog appends to a file, whose folder is made.
func openLog(path string, limit int64) (*logFile, error) {
	return openLogIn(anywhere{}, path, path, limit)
}

// openLogIn closes in with the file, or if there is none.
func openLogIn(in folder, name, path string, limit int64) (*logFile, error) {
	l := &logFile{in: in, name: name, path: path, limit: limit}
	err := in.MkdirAll(filepath.Dir(name), 0o755)
	if err == nil {
		err = l.open()
	}
	if err != nil {
		in.Close()
		return nil, err
	}
	return l, nil
}

// open waits for nobody who reads a pipe that is there instead: it is an error.
func (l *logFile) open() error {
	f, err := l.in.OpenFile(l.name, os.O_WRONLY|os.O_CREATE|os.O_APPEND|syscall.O_NONBLOCK, 0o644)
	if err != nil {
		return err
	}
	st, err := f.Stat()
	if err == nil && st.Mode()&(fs.ModeNamedPipe|fs.ModeSocket) != 0 {
		err = &fs.PathError{Op: "open", Path: l.path, Err: errors.New("a pipe is in the place of the file")}
	}
	if err != nil {
		f.Close()
		return err
	}
	l.f, l.size = f, st.Size()
	return nil
}

// write returns the first error of those in a row: a full disk is said once. Where the file can be written again, it says first that it lacks lines.
func (l *logFile) write(b []byte) error {
	was := l.bad
	if was != nil {
		b = append(fmt.Appendf(nil, "\npenstock: lines are missing here: %v\n", was), b...)
	}
	switch err := l.put(b); {
	case err == nil:
		l.bad = nil
	case was == nil:
		l.bad = err
		return err
	}
	return nil
}

func (l *logFile) put(b []byte) error {
	if l.size > 0 && l.size+int64(len(b)) > l.limit {
		if err := l.rotate(); err != nil {
			return err
		}
	}
	n, err := l.f.Write(b)
	l.size += int64(n)
	return err
}

// rotate may be cut off anywhere, by the end of this process too: Rotated and the files that are there always tell where these begin.
func (l *logFile) rotate() error {
	if err := l.forget(); err != nil {
		return err
	}
	for i := keepLogs - 1; i > 0; i-- {
		from := l.name
		if i > 1 {
			from += "." + strconv.Itoa(i-1)
		}
		if err := l.in.Rename(from, l.name+"."+strconv.Itoa(i)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	old := l.f
	if err := l.open(); err != nil {
		return err
	}
	return old.Close()
}

// forget gives up the oldest file. One rename both takes it from those that are kept and says that it is gone; what follows only frees its room.
func (l *logFile) forget() error {
	oldest := l.name + "." + strconv.Itoa(keepLogs-1)
	st, err := l.in.Lstat(oldest)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	was, err := Rotated(l.path)
	if err != nil {
		return err
	}
	mark := l.name + gone + strconv.FormatInt(was+st.Size(), 10)
	if err := l.in.Rename(oldest, mark); err != nil {
		return err
	}
	if st.Mode().IsRegular() { // else it is nobody's room
		f, err := l.in.OpenFile(mark, os.O_WRONLY|os.O_TRUNC|syscall.O_NONBLOCK, 0)
		if err != nil {
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	if before := l.name + gone + strconv.FormatInt(was, 10); before != mark {
		if err := l.in.Remove(before); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return nil
}

// gone is between the name of a log file and how many bytes of it are gone, in the name of what was its oldest file.
const gone = ".gone."

// Rotated is how many bytes went to the log file path before the oldest of the files that are kept of it. It changes before one of these is removed or renamed.
func Rotated(path string) (n int64, err error) {
	entries, err := os.ReadDir(filepath.Dir(path))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return 0, err
	}
	for _, e := range entries {
		if text, ok := strings.CutPrefix(e.Name(), filepath.Base(path)+gone); ok {
			if k, err := strconv.ParseInt(text, 10, 64); err == nil {
				n = max(n, k)
			}
		}
	}
	return n, nil
}

// close returns what the file system says no earlier than now.
func (l *logFile) close() error {
	if l.bad != nil {
		_ = l.write(nil)
	}
	_ = l.in.Close() // read only
	return l.f.Close()
}
