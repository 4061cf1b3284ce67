// Package fault is the one error type of the module: a code that programs act
// on, and the place where it happened.
//
// Programs decide by code, never by text. Every layer wraps once, with what
// this layer knows ([Wrap]); what an inner layer said is never overwritten.
// io/driver re-exports what implementers outside the module need.
package fault

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-data/penstock/internal/term"
)

// Code says what kind of failure it is. The zero Code is Unknown.
type Code uint8

const (
	Unknown     Code = iota
	Canceled         // the caller gave up, or a deadline of the caller's passed
	Invalid          // the request is wrong: bad option, unknown column, type error
	NotFound         // a path, column or name that does not exist
	Exists           // something is there already, or another writer was first
	Corrupt          // outside bytes that do not decode: damaged file, bad CRC
	RowError         // a function of one row's bytes: overflow, failed cast, unparsable line
	UserCode         // a user's function or child process returned an error or panicked
	Exhausted        // out of memory, disk or quota
	Unavailable      // transient: network, 5xx, timeout of a read
	WorkerLost       // the process or node that ran it is gone
	Stalled          // no progress for the watchdog's time
	Unsupported      // understood, but not something this build can do
	Internal         // a bug in Penstock
	Denied           // there, but this user may not: credentials, policy, permissions
	Changed          // what is read is not what it was when it was listed or looked at
)

var names = [...]string{"unknown", "canceled", "invalid", "not_found", "exists", "corrupt", "row_error", "user_code",
	"exhausted", "unavailable", "worker_lost", "stalled", "unsupported", "internal", "denied", "changed"}

// Known reports whether c is one of the codes, which follow each other from Unknown on.
func (c Code) Known() bool { return int(c) < len(names) }

func (c Code) String() string {
	if c.Known() {
		return names[c]
	}
	return fmt.Sprintf("code(%d)", uint8(c))
}

// ParseCode is the code that String gives so; Unknown for other texts.
func ParseCode(name string) Code { return Code(max(slices.Index(names[:], name), 0)) }

// Retryable reports whether running the same thing again may help.
func (c Code) Retryable() bool { return c == Exhausted || c == Unavailable || c == WorkerLost }

// Skippable reports whether the failure is a function of bytes that were read,
// so that an on_error: skip policy may drop the rows it concerns.
func (c Code) Skippable() bool { return c == RowError || c == UserCode || c == Corrupt }

// Num is an optional number; the zero value means unknown.
type Num int64

// N makes a known number.
func N(v int64) Num { return Num(v + 1) }

// Get returns the number and whether it is known.
func (n Num) Get() (int64, bool) { return int64(n) - 1, n != 0 }

// Place says where. Empty fields are unknown.
type Place struct {
	File     string // path or URL of a file, as the user would write it
	RowGroup Num    // row group, frame or byte-range ordinal in the file
	Row      Num    // row within the split (row group, byte range)
	Column   string
	Step     string // "step 3 (filter)"
	Node     string
	Attempt  int // 1 for the first; 0 unknown
}

// Error is a coded error with its place.
type Error struct {
	Code Code
	Place
	Err error // never nil
}

// New makes an error; format may use %w.
func New(c Code, format string, args ...any) *Error {
	return &Error{Code: c, Err: fmt.Errorf(format, args...)}
}

// At returns e with the unknown parts of its place filled in from p.
func (e *Error) At(p Place) *Error { e.fill(p); return e }

func (e *Error) fill(p Place) {
	if e.File == "" {
		e.File = p.File
	}
	if e.RowGroup == 0 {
		e.RowGroup = p.RowGroup
	}
	if e.Row == 0 {
		e.Row = p.Row
	}
	if e.Column == "" {
		e.Column = p.Column
	}
	if e.Step == "" {
		e.Step = p.Step
	}
	if e.Node == "" {
		e.Node = p.Node
	}
	if e.Attempt == 0 {
		e.Attempt = p.Attempt
	}
}

// Wrap gives err a place. An *Error found by unwrapping is copied, its own
// place first; any other error becomes one with code CodeOf(err). Wrap(nil) is
// nil.
func Wrap(err error, p Place) error {
	if err == nil {
		return nil
	}
	if e, ok := err.(*Error); ok {
		c := *e
		c.fill(p)
		return &c
	}
	e := &Error{Code: CodeOf(err), Err: err}
	if inner, ok := errors.AsType[*Error](err); ok {
		// The text of inner is part of err's text already: keep its code only.
		e.Code = inner.Code
		p.hide(inner.Place)
	}
	e.fill(p)
	return e
}

// hide blanks in p what inner already says.
func (p *Place) hide(inner Place) {
	if inner.File != "" {
		p.File = ""
	}
	if inner.RowGroup != 0 {
		p.RowGroup = 0
	}
	if inner.Row != 0 {
		p.Row = 0
	}
	if inner.Column != "" {
		p.Column = ""
	}
	if inner.Step != "" {
		p.Step = ""
	}
}

// Join is several errors as one, whose text has one a line: Invalid if one of them is, else with the first one's code. Nils are left out, and what says the same as one
// before; one error is given as it is.
func Join(errs ...error) error {
	var all []error
	said := map[string]bool{}
	for _, err := range errs {
		for _, err := range All(err) {
			if !said[err.Error()] {
				said[err.Error()] = true
				all = append(all, err)
			}
		}
	}
	switch len(all) {
	case 0:
		return nil
	case 1:
		return all[0]
	}
	c := CodeOf(all[0])
	for _, err := range all {
		if CodeOf(err) == Invalid {
			c = Invalid
		}
	}
	return &Error{Code: c, Err: joined(all)}
}

// All are the errors that Join made err of, or err itself; none of nil.
func All(err error) []error {
	if e, ok := err.(*Error); ok && e.Place == (Place{}) {
		if j, ok := e.Err.(joined); ok {
			return slices.Clone(j)
		}
	}
	if err == nil {
		return nil
	}
	return []error{err}
}

// Each applies f to all of the errors that Join made err of, or to err itself; nil stays nil.
func Each(err error, f func(error) error) error {
	all := All(err)
	for i, err := range all {
		all[i] = f(err)
	}
	return Join(all...)
}

type joined []error

func (j joined) Error() string   { return errors.Join(j...).Error() }
func (j joined) Unwrap() []error { return j }

// WithCode marks err with a code unless it carries one. WithCode(nil) is nil.
func WithCode(c Code, err error) error {
	if err == nil {
		return nil
	}
	if _, ok := errors.AsType[*Error](err); ok {
		return err
	}
	return &Error{Code: c, Err: err}
}

// CodeOf returns the code of the outermost *Error in err's tree. Context errors
// are Canceled, fs.ErrNotExist is NotFound, fs.ErrExist is Exists; anything else is Unknown.
func CodeOf(err error) Code {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Code
	}
	switch {
	case err == nil:
		return Unknown
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return Canceled
	case errors.Is(err, fs.ErrNotExist):
		return NotFound
	case errors.Is(err, fs.ErrExist):
		return Exists
	}
	return Unknown
}

// PlaceOf returns the place of the outermost *Error in err's tree.
func PlaceOf(err error) Place {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Place
	}
	return Place{}
}

func (p Place) String() string {
	var b strings.Builder
	add := func(k, v string) {
		if v == "" {
			return
		}
		if b.Len() > 0 {
			b.WriteString(", ")
		}
		b.WriteString(k)
		b.WriteString(v)
	}
	num := func(n Num) string {
		if v, ok := n.Get(); ok {
			return fmt.Sprint(v)
		}
		return ""
	}
	add("", term.Line(p.Step))
	add("", term.Line(p.File))
	add("row group ", num(p.RowGroup))
	add("row ", num(p.Row))
	if p.Column != "" {
		add("column ", quoted(p.Column))
	}
	add("node ", term.Line(p.Node))
	if p.Attempt > 1 {
		add("attempt ", fmt.Sprint(p.Attempt))
	}
	return b.String()
}

// nameBytes is how much of a column's name is said.
const nameBytes = 1000

func quoted(name string) string {
	if len(name) <= nameBytes {
		return strconv.Quote(name)
	}
	return strconv.Quote(strings.ToValidUTF8(name[:nameBytes], "")) + "..."
}

// Error gives "place: message"; the code is not part of the text. It prints, and does nothing else
// to a terminal, whatever the names and values in it are.
func (e *Error) Error() string {
	text := term.Clean(e.Err.Error())
	if p := e.Place.String(); p != "" {
		return p + ": " + text
	}
	return text
}

func (e *Error) Unwrap() error { return e.Err }
