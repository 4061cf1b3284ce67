package driver

import "github.com/penstock-data/penstock/internal/fault"

// Error, Place and Code are the module's error type, for drivers outside it.
type (
	Error = fault.Error
	Place = fault.Place
	Code  = fault.Code
)

// Codes that drivers return. See package fault for their meaning.
const (
	Invalid     = fault.Invalid
	NotFound    = fault.NotFound
	Corrupt     = fault.Corrupt
	RowError    = fault.RowError
	UserCode    = fault.UserCode
	Canceled    = fault.Canceled
	Exhausted   = fault.Exhausted
	Unavailable = fault.Unavailable
	Unsupported = fault.Unsupported
	Denied      = fault.Denied
	Changed     = fault.Changed
)

// Errorf makes a coded error; format may use %w.
func Errorf(c Code, format string, args ...any) *Error { return fault.New(c, format, args...) }

// Wrap gives err a place; see fault.Wrap.
func Wrap(err error, p Place) error { return fault.Wrap(err, p) }
