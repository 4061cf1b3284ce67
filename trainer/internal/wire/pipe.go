package wire

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// Pipe is the worker's end of what an [Ear] describes: a place for reports that need wake nobody. Not safe for concurrent use. Call Close.
type Pipe struct {
	read, write *os.File

	like  likeness  // of the last line of a report
	at    time.Time // of that
	quiet bool      // something was left since
	buf   []byte
}

const (
	quietTime = time.Second // after a line, so that what goes wrong with the pipe is not for long
	maxQuiet  = 48          // reports that were not answered: fewer than a worker makes ahead, so that it does not wait for an ear's next look
)

// NewPipe makes one.
func NewPipe() (*Pipe, error) {
	syscall.ForkLock.RLock()
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(fds[0])
		syscall.CloseOnExec(fds[1])
	}
	syscall.ForkLock.RUnlock()
	if err == nil {
		err = errors.Join(syscall.SetNonblock(fds[0], true), syscall.SetNonblock(fds[1], true))
	}
	if err != nil {
		return nil, fault.New(fault.Unavailable, "a pipe for reports: %w", err)
	}
	return &Pipe{read: os.NewFile(uintptr(fds[0]), "pipe"), write: os.NewFile(uintptr(fds[1]), "pipe")}, nil
}

// Hello writes the first line to conn, and gives the other side its end.
func (p *Pipe) Hello(conn *net.UnixConn, line []byte) error {
	_, _, err := conn.WriteMsgUnix(line, syscall.UnixRights(int(p.read.Fd())), nil)
	p.read.Close()
	return err
}

// Close lets go of the pipe. What was left is found.
func (p *Pipe) Close() {
	p.read.Close() // again, as a rule
	p.write.Close()
}

// Quiet reports whether reports were left since the last line: an answer to them is soonest after another one.
func (p *Pipe) Quiet() bool { return p.quiet }

// Said notes that a line was sent; r: it is that report.
func (p *Pipe) Said(r *Report) {
	p.quiet = false
	if r == nil {
		return
	}
	p.like, p.at = likenessOf(r), time.Now()
}

// Leave leaves r in the pipe. False: it is to be a line. unanswered are reports before it without an answer.
func (p *Pipe) Leave(r *Report, unanswered int64) bool {
	if unanswered >= maxQuiet || time.Since(p.at) >= quietTime {
		return false
	}
	b, ok := p.like.append(p.buf[:0], r)
	p.buf = b
	if !ok {
		return false
	}
	raw, err := p.write.SyscallConn()
	if err != nil {
		return false
	}
	n := 0
	err = raw.Write(func(fd uintptr) bool {
		n, _ = syscall.Write(int(fd), b)
		return true // where it is full a line says so
	})
	p.quiet = p.quiet || n == len(b)
	return err == nil && n == len(b)
}
