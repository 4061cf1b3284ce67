package parquetio

import (
	"runtime"
	"strings"

	"github.com/penstock-data/penstock/internal/fault"
)

var (
	errFooter = fault.New(fault.Corrupt, "the footer is damaged; write the file anew")
	errStored = fault.New(fault.Corrupt, "the stored Arrow schema (key ARROW:schema) is damaged; write the file anew")
)

// onPanic, which tests set, is told of panics that recovered makes errors of: what they said, and whether
// code of this module did it rather than a library.
var onPanic func(p any, own bool)

// recovered, deferred, turns a panic over outside bytes into a Corrupt error that says of what, and a memory fault into an
// errFault. What the panic says helps nobody who has a file, and is left out.
func recovered(err *error, what string) {
	switch p := recover().(type) {
	case nil:
	case errTooLarge:
		*err = p
	case *fault.Error:
		*err = p
	case interface{ Addr() uintptr }: // debug.SetPanicOnFault
		*err = errFault(p.Addr())
	default:
		if onPanic != nil {
			onPanic(p, ownPanic())
		}
		*err = fault.New(fault.Corrupt, "%s is damaged: its parts do not fit together; write the file anew", what)
	}
}

// ownPanic reports whether code of this module is the innermost on the stack of the panic that the caller's caller recovers, the
// standard library apart.
func ownPanic() bool {
	pcs := make([]uintptr, 64)
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs)])
	for more, behind := true, false; more; {
		var f runtime.Frame
		f, more = frames.Next()
		host, _, _ := strings.Cut(f.Function, "/")
		switch {
		case f.Function == "runtime.gopanic":
			behind = true
		case behind && strings.Contains(f.Function, "/") && strings.Contains(host, "."):
			return strings.HasPrefix(f.Function, "github.com/penstock-data/penstock/")
		}
	}
	return false
}
