package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// Ear reads what a worker of this machine says: its lines, and the reports that it leaves in a pipe, each in its place.
//
// A line wakes who reads it, and that costs a loop of short steps more than all else of its report: the system starts a thread, as often as not on the worker's own processor and ahead of it. So a worker may
// give one end of a pair of sockets, its pipe, along with the first byte of its Hello, and leave a report there that is like the last one it sent as a line: of the same metrics and the same one data set, without a folder.
// Nobody waits at the pipe. An ear looks there every quietTick, with every line, and when the connection ends, so that what a worker left is read after its death too.
//
// A report in the pipe is its N, epoch, step and At as uint64, and its metrics as float64 in the order of their names: little endian, written at once, at most [MaxQuiet] bytes.
//
// Where answers are waited for, a line gets them at once. [Pipe] is the other end. Not safe for concurrent use, but for Want and Finish. Call Close.
type Ear struct {
	conn  *net.UnixConn
	lines *Lines
	began bool  // the first line was read
	pipe  int   // descriptor; -1: none
	bad   error // what came with the first line is none

	held   []byte  // a line that was read, and waits for the reports before it
	report *Report // that it is; nil: another message
	end    error   // as held, of the connection

	left []byte // read from the pipe
	next int64  // number of the report that comes next; 0: none was sent yet
	like likeness

	mu      sync.Mutex
	waiting bool // for the connection, which a deadline of reads ends
	wanted  int64
	since   time.Time // when it was wanted
	over    bool
}

const (
	quietTick = 100 * time.Millisecond
	wantTick  = 2 * time.Millisecond
	mostLeft  = 1 << 20 // bytes that lie in a pipe, or wait for a line: a worker has some KiB there
)

// NewEar reads from conn. Deadlines for its reads are the caller's until the first line was read, then the ear's.
func NewEar(conn *net.UnixConn) *Ear {
	e := &Ear{conn: conn, pipe: -1}
	e.lines = NewLines(&opening{Ear: e}, MaxLine, longHint)
	return e
}

// Want says that others wait for the worker's report n: until it is there the ear looks so often that they wait little longer for it. Any goroutine may call it.
func (e *Ear) Want(n int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.wanted, e.since = n, time.Now()
	e.wake()
}

// Finish says that the worker has ended: what it said is there, and the end of that is the end, though a process that it left behind holds the connection. Any goroutine may call it.
func (e *Ear) Finish() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = true
	e.wake()
}

// wake has wait look at what has changed. It needs mu.
func (e *Ear) wake() {
	if e.waiting {
		e.conn.SetReadDeadline(time.Unix(1, 0))
	}
}

// Close lets go of the pipe, not of the connection.
func (e *Ear) Close() {
	if e.pipe >= 0 {
		syscall.Close(e.pipe)
		e.pipe = -1
	}
}

// opening reads from a connection, and takes the descriptor that comes with its first byte.
type opening struct {
	*Ear
	began bool
}

func (o *opening) Read(b []byte) (int, error) {
	if o.began {
		return o.conn.Read(b)
	}
	rights := make([]byte, syscall.CmsgSpace(4*8))
	n, size, _, _, err := o.conn.ReadMsgUnix(b, rights)
	if err != nil {
		return n, err
	}
	if n == 0 {
		return 0, io.EOF
	}
	o.began = true
	var fds []int
	all, err := syscall.ParseSocketControlMessage(rights[:size])
	for _, m := range all {
		some, _ := syscall.ParseUnixRights(&m) // of another kind: none
		fds = append(fds, some...)
	}
	var st syscall.Stat_t
	switch {
	case err != nil || len(fds) > 1:
		o.bad = fault.New(fault.Corrupt, "a worker gives one pipe, not %d", len(fds))
	case len(fds) == 1 && (syscall.Fstat(fds[0], &st) != nil || st.Mode&syscall.S_IFMT != syscall.S_IFSOCK || syscall.SetNonblock(fds[0], true) != nil):
		o.bad = fault.New(fault.Corrupt, "what a worker gives is no pipe")
	case len(fds) == 1:
		o.pipe = fds[0]
		return n, nil
	}
	for _, fd := range fds {
		syscall.Close(fd)
	}
	return n, nil
}

// FromWorker is as [Reader.FromWorker]. Reports that were left in the pipe come before the end of the connection.
func (e *Ear) FromWorker() (m ToController, err error) {
	line, r, err := e.hear()
	switch {
	case r != nil:
		m.Report = r
	case err == nil:
		err = m.decode(line)
	}
	return m, err
}

// Line is as FromWorker, but gives a line with its end, which is valid until the next call.
func (e *Ear) Line() ([]byte, error) {
	line, r, err := e.hear()
	if r != nil {
		return Append(nil, ToController{Report: r})
	}
	return line, err
}

// hear gives what comes next: a line, or a report of the pipe.
func (e *Ear) hear() (line []byte, r *Report, err error) {
	if !e.began {
		line, err = e.lines.Next()
		e.began = true
		if e.bad != nil {
			err = e.bad
		}
		return line, nil, err
	}
	for {
		switch r, err := e.quiet(); {
		case r != nil || err != nil:
			return nil, r, err
		case e.held != nil:
			line, e.held = e.held, nil
			if e.report != nil {
				e.next, e.like = e.report.N+1, likenessOf(e.report)
			}
			return line, nil, nil
		case e.end != nil && len(e.left) > 0:
			return nil, nil, fault.New(fault.Corrupt, "%d bytes in the pipe of a worker that are no report after number %d", len(e.left), e.next-1)
		case e.end != nil:
			return nil, nil, e.end
		}
		if e.wait() {
			e.held, e.end = e.lines.Next()
			e.report = reportOf(e.held)
		}
		if err := e.look(); err != nil { // what was left before the line, or the end, is there by now
			return nil, nil, err
		}
	}
}

// wait waits for more of the connection, or its end; false: there is nothing so far, or ever.
func (e *Ear) wait() bool {
	var until time.Time
	if e.pipe >= 0 {
		until = time.Now().Add(quietTick)
	}
	e.mu.Lock()
	over := e.over
	switch {
	case over: // nothing more comes: what there is was there before
		until = time.Now().Add(wantTick)
	case e.pipe >= 0 && e.wanted >= e.next && e.next > 0:
		until = time.Now().Add(min(max(time.Since(e.since)/8, wantTick), quietTick))
	}
	e.conn.SetReadDeadline(until)
	e.waiting = !over
	e.mu.Unlock()

	there, err := e.lines.Wait()

	e.mu.Lock()
	e.waiting = false
	e.conn.SetReadDeadline(time.Time{}) // a long line comes in pieces
	e.mu.Unlock()
	if there || !errors.Is(err, os.ErrDeadlineExceeded) {
		return true // reading says why
	}
	if over {
		e.end = io.EOF
	}
	return false
}

// look takes what is in the pipe.
func (e *Ear) look() error {
	if e.pipe < 0 {
		return nil
	}
	var b [4 << 10]byte
	for {
		n, err := syscall.Read(e.pipe, b[:])
		switch {
		case err == syscall.EINTR:
		case err == syscall.EAGAIN || err == nil && n == 0:
			return nil
		case err != nil:
			return fault.New(fault.Unavailable, "the pipe of a worker: %w", err)
		case len(e.left)+n > mostLeft:
			return fault.New(fault.Corrupt, "more than %d bytes in the pipe of a worker that are no report after number %d", mostLeft, e.next-1)
		default:
			e.left = append(e.left, b[:n]...)
		}
	}
}

// reportOf is the report in a line; nil: it is another message, or none, which who reads it says.
func reportOf(line []byte) *Report {
	var m ToController
	if !bytes.HasPrefix(line, []byte(`{"report":`)) || json.Unmarshal(line, &m) != nil {
		return nil
	}
	return m.Report
}

// quiet is the next report in the pipe; nil: a line comes first, or none is there.
func (e *Ear) quiet() (*Report, error) {
	n, ok := numberOf(e.left)
	if !ok || e.next == 0 || n > e.next || e.held != nil && e.report != nil && e.report.N == e.next {
		return nil, nil
	}
	if n < e.next {
		return nil, fault.New(fault.Corrupt, "report %d is in the pipe of a worker, where report %d is due", n, e.next)
	}
	r, err := e.like.report(e.left)
	if err == nil {
		e.left, e.next = e.left[e.like.size():], n+1
	}
	return r, err
}
