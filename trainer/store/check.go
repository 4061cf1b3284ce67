package store

import (
	"encoding/json"
	"regexp"
	"strings"
	"unicode"

	"github.com/penstock-data/penstock/internal/fault"
)

// What a record says is checked where it is read, and where it is written, so that nothing is
// written that cannot be read: what comes from a record is of the form that this package gives it,
// within these bounds.
const (
	maxNumber   = 1 << 30 // of an entry, and of all that is counted by hand: more than any run has
	maxWorkers  = 1 << 20
	maxArgs     = 1 << 16 // of a command
	maxText     = 4 << 10 // bytes of a path, an argument's name, a URL
	maxWord     = 256     // bytes of the name of a host, a program, a process, a job
	maxSets     = 1 << 12 // data sets
	maxPosition = 16 << 20
	maxLedger   = 1 << 30
	maxKinds    = 1 << 10 // of failures
	maxLog      = 2 << 30 // bytes of the log
)

var idRE = regexp.MustCompile(`^[0-9a-f]{16}$`)

// corrupt is the error of a field of a record that is not what was written.
func corrupt(field, format string, args ...any) error {
	return fault.New(fault.Corrupt, `the field "`+field+`" `+format, args...)
}

// word checks a name of one line: "" is one.
func word(field, s string, most int) error {
	if len(s) > most {
		return corrupt(field, "has %d bytes, at most %d", len(s), most)
	}
	if i := strings.IndexFunc(s, func(r rune) bool { return !unicode.IsPrint(r) }); i >= 0 {
		return corrupt(field, "is %.80q: it has characters that do not print", s)
	}
	return nil
}

func between[T int | int64](field string, n, least, most T) error {
	if n < least || n > most {
		return corrupt(field, "is %d: it is out of range", n)
	}
	return nil
}

// first is the first error.
func first(errs ...error) error {
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// check of a record whose name is checked.
func (rec *Record) check() error {
	if !idRE.MatchString(rec.ID) {
		return corrupt("id", "is %.80q: an id has 16 hexadecimal digits", rec.ID)
	}
	if len(rec.Command) > maxArgs {
		return corrupt("command", "has %d words, at most %d", len(rec.Command), maxArgs)
	}
	for _, a := range rec.Command {
		if strings.IndexByte(a, 0) >= 0 {
			return corrupt("command", "has a zero byte in %.80q", a)
		}
	}
	if len(rec.Dir) > maxText || strings.IndexByte(rec.Dir, 0) >= 0 {
		return corrupt("dir", "is no folder: %.80q", rec.Dir)
	}
	return first(
		between("workers", rec.Workers, 1, maxWorkers),
		word("from", rec.From, maxText),
		word("host", rec.Host, maxWord),
		word("program", rec.Program, maxWord))
}

func (p *Process) check() error {
	return first(word("host", p.Host, maxWord), between("pid", p.PID, 0, maxNumber), word("started", p.Started, maxWord))
}

var states = map[string]bool{Queued: true, Starting: true, Running: true, Restarting: true, Preempting: true, Preempted: true, Finished: true, Failed: true}

func (s *Status) check() error {
	if !states[s.State] {
		return corrupt("state", "is %.80q, which is no state of a run", s.State)
	}
	err := first(
		between("attempt", s.Attempt, 1, maxNumber),
		s.Process.check(),
		word("job", s.Job, maxWord),
		between("workers", s.Workers, 0, maxWorkers),
		between("reports", s.Reports, 0, maxReports),
		between("checkpoint", s.Checkpoint, 0, maxNumber),
		between("preemptions", s.Preemptions, 0, maxNumber))
	if err == nil && s.Error != nil {
		err = word("error.code", s.Error.Code, maxWord)
	}
	if err == nil && len(s.Failures) > maxKinds {
		err = corrupt("failures", "has %d kinds, at most %d", len(s.Failures), maxKinds)
	}
	for class, n := range s.Failures {
		err = first(err, word("failures", class, maxWord), between("failures", n, 0, maxNumber))
	}
	return err
}

// maxReports is more than any run makes, and leaves room to count on.
const maxReports int64 = 1 << 60

func (s *start) check() error {
	if !idRE.MatchString(s.Controller) {
		return corrupt("controller", "is %.80q: an id has 16 hexadecimal digits", s.Controller)
	}
	return first(
		between("number", s.Number, 0, maxNumber),
		between("attempt", s.Attempt, 1, maxNumber),
		between("from", s.From, 0, s.Number),
		between("report", s.Report, 0, maxReports),
		s.Process.check(),
		word("job", s.Job, maxWord),
		between("job_attempt", s.JobAttempt, 0, maxReports))
}

func (m *Manifest) check() error {
	err := first(
		between("number", m.Number, 1, maxNumber),
		between("attempt", m.Attempt, 1, maxNumber),
		between("report", m.Report, 0, maxReports),
		between("world", m.World, 1, maxWorkers))
	if err != nil {
		return err
	}
	if n, a, ok := parseTry(m.Try); !ok || n > m.Number || a != m.Attempt {
		return corrupt("try", "is %.80q, which is no try of checkpoint %d", m.Try, m.Number)
	}
	if len(m.Files) > maxFiles {
		return corrupt("files", "has %d files, at most %d", len(m.Files), maxFiles)
	}
	total, last := int64(0), ""
	for i := range m.Files {
		f := &m.Files[i]
		if err := f.check(); err != nil {
			return err
		}
		if f.Path <= last {
			return corrupt("files", "has %q twice, or in the wrong place", f.Path)
		}
		if last, total = f.Path, total+f.Size; total < 0 {
			return corrupt("files", "are larger than there can be files")
		}
	}
	if a, _, ok := clash(m.Files); ok {
		return corrupt("files", "has %q as a file and as a folder", a.Path)
	}
	if total != m.Bytes {
		return corrupt("bytes", "is %d, and the files have %d", m.Bytes, total)
	}
	if len(m.Data) > maxSets {
		return corrupt("data", "has %d data sets, at most %d", len(m.Data), maxSets)
	}
	for name, d := range m.Data {
		if err := d.check(name); err != nil {
			return err
		}
	}
	return nil
}

func (d *Data) check(name string) error {
	if err := CheckSet(name); err != nil {
		return corrupt("data", "has a data set: %w", err)
	}
	if len(d.State) > maxPosition || len(d.State) > 0 && !json.Valid(d.State) {
		return corrupt("data", "has no state of data set %q: %d bytes", name, len(d.State))
	}
	f := d.LedgerFile
	if f == nil {
		return nil
	}
	if err := f.check(); err != nil {
		return err
	}
	if f.Path != ledgerName(name) || f.Size > maxLedger {
		return corrupt("data", "has as the ledger of data set %q a file %q of %d bytes", name, f.Path, f.Size)
	}
	return nil
}

// CheckSet is an Invalid error for what cannot be the name of a data set: it is part of the names
// of files.
func CheckSet(name string) error {
	if name == "" || len(name) > 80 || strings.IndexFunc(name, func(r rune) bool { return !unicode.IsPrint(r) }) >= 0 {
		return fault.New(fault.Invalid, "a data set cannot have the name %.80q: up to 80 bytes that print", name)
	}
	return nil
}

func (row *Row) check() error {
	return first(between("report", row.Report, 0, maxReports), between("step", row.Step, 0, maxReports))
}
