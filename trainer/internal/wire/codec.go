package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strings"

	"github.com/penstock-data/penstock/internal/fault"
)

// Reader reads lines. Not safe for concurrent use.
type Reader struct{ lines *Lines }

// NewReader reads from r.
func NewReader(r io.Reader) *Reader { return &Reader{NewLines(r, MaxLine, longHint)} }

const longHint = ": reports hold numbers, larger things are files"

// FromWorker reads what a worker says: io.EOF at the end of a line, and of all.
func (r *Reader) FromWorker() (m ToController, err error) {
	line, err := r.lines.Next()
	if err == nil {
		err = m.decode(line)
	}
	return m, err
}

func (m *ToController) decode(line []byte) error {
	return decode(line, m, func() int {
		return count(m.Hello != nil, m.Report != nil, m.Alive != nil, m.Restore != nil, m.Meet != nil, m.Done != nil)
	})
}

// FromController reads what the controller says.
func (r *Reader) FromController() (m ToWorker, err error) {
	err = r.read(&m, func() int {
		return count(m.Welcome != nil, m.Reported != nil, m.Restored != nil, m.Met != nil, m.Preempt != nil, m.Refused != nil)
	})
	return m, err
}

func count(set ...bool) (n int) {
	for _, s := range set {
		if s {
			n++
		}
	}
	return n
}

func (r *Reader) read(m any, fields func() int) error {
	line, err := r.lines.Next()
	if err != nil {
		return err
	}
	return decode(line, m, fields)
}

// decode decodes a line in which exactly one field is set.
func decode(line []byte, m any, fields func() int) error {
	if err := json.Unmarshal(line, m); err != nil {
		if e, ok := errors.AsType[*fault.Error](err); ok {
			return e
		}
		return fault.New(fault.Corrupt, "a line that is no message: %.80q: %w", line, err)
	}
	if n := fields(); n != 1 {
		return fault.New(fault.Unsupported, "a message with %d kinds that this release knows: %.80q; use one release on both sides", n, line)
	}
	return nil
}

// Append appends the line of a [ToController] or [ToWorker].
func Append(b []byte, m any) ([]byte, error) {
	buf := bytes.NewBuffer(b)
	e := json.NewEncoder(buf) // ends with a line feed, and has none inside
	e.SetEscapeHTML(false)
	if err := e.Encode(m); err != nil {
		return b, fault.New(fault.Internal, "a message: %w", err)
	}
	if buf.Len()-len(b) > MaxLine {
		return b, fault.New(fault.Invalid, "a message of %d bytes, at most %d%s", buf.Len()-len(b), MaxLine, longHint)
	}
	return buf.Bytes(), nil
}

// FromError makes an error one that crosses the socket; nil stays nil.
func FromError(err error) *Error {
	if err == nil {
		return nil
	}
	return &Error{Code: fault.CodeOf(err).String(), Text: cut(err.Error(), 64<<10)}
}

// Err is the error that crossed; nil for nil. A code that is not known is Unknown.
func (e *Error) Err() error {
	if e == nil {
		return nil
	}
	text := cut(e.Text, 64<<10)
	if text == "" {
		text = "an error without a text"
	}
	if t := strings.TrimSpace(cut(e.Trace, 64<<10)); t != "" {
		text += "\n" + t
	}
	return &fault.Error{Code: fault.ParseCode(e.Code), Err: errors.New(text)}
}

// cut is the beginning of s, of at most n bytes.
func cut(s string, n int) string {
	if len(s) > n {
		return strings.ToValidUTF8(s[:n], "")
	}
	return s
}
