package wire

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"io"
	"maps"
	"math"
	"net"
	"os"
	"slices"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// Ear reads what a worker of this machine says: its lines, and the reports that it leaves in a pipe, which become lines in their places.
//
// A line wakes who reads it, and that costs a loop of short steps more than all else of its report: the system starts a thread, as often as not on the worker's own processor and ahead of it. So a worker may
// give one end of a pair of sockets, its pipe, along with the first byte of its Hello, and leave a report there that is like the last one it sent as a line: of the same metrics and the same one data set, without a folder.
// Nobody waits at the pipe. An ear looks there every quietTick while reports come, with every line, and when the connection ends, so that what a worker left is read after its death too.
//
// A report in the pipe is its N, epoch, step and At as uint64, and its metrics as float64 in the order of their names: little endian, written at once, at most [MaxQuiet] bytes.
//
// Where answers are waited for, a line gets them at once. [Pipe] is the other end. Not safe for concurrent use, but for Want and Finish. Call Close.
type Ear struct {
	conn   *net.UnixConn
	lines  *Lines
	began  bool         // the first line was read
	pipe   int          // descriptor; -1: none
	bad    error        // what came with the first line is none
	wanted atomic.Int64 // see Want
	since  atomic.Int64 // when it was wanted, in ns since the epoch
	over   atomic.Bool  // see Finish

	held   []byte  // a line that was read, and waits for the reports before it
	report *Report // that it is; nil: another message
	end    error   // as held, of the connection

	left  []byte // read from the pipe
	next  int64  // number of the report that comes next; 0: none was sent yet
	names []string
	data  string    // that reports in the pipe are of; "": there are none
	at    time.Time // of the last report
}

// MaxQuiet is the most bytes of a report in a pipe.
const MaxQuiet = 512

const (
	quietTick = 100 * time.Millisecond
	idleTick  = time.Second // where no report came for twice as long
	wantTick  = 2 * time.Millisecond
	mostLeft  = 1 << 20 // bytes: a pipe has room for 64 KiB
)

// NewEar reads from conn. Deadlines for its reads are the caller's until the first line was read, then the ear's.
func NewEar(conn *net.UnixConn) *Ear {
	e := &Ear{conn: conn, pipe: -1}
	e.lines = NewLines(&opening{Ear: e}, MaxLine, longHint)
	return e
}

// Reader reads messages.
func (e *Ear) Reader() *Reader { return &Reader{e} }

// Want says that others wait for the worker's report n: until it is there the ear looks so often that they wait little longer for it. Any goroutine may call it.
func (e *Ear) Want(n int64) {
	e.since.Store(time.Now().UnixNano())
	e.wanted.Store(n)
	e.wake()
}

// Finish says that the worker has ended: what it said is there, and the end of that is the end, though a process that it left behind holds the connection. Any goroutine may call it.
func (e *Ear) Finish() {
	e.over.Store(true)
	e.wake()
}

// wake has wait return.
func (e *Ear) wake() { e.conn.SetReadDeadline(time.Unix(1, 0)) }

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
	for o.began {
		n, err := o.conn.Read(b)
		if n == 0 && o.Ear.began && !o.over.Load() && errors.Is(err, os.ErrDeadlineExceeded) { // woken in the midst of a line
			o.conn.SetReadDeadline(time.Time{})
			continue
		}
		return n, err
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

// Next is as [Lines.Next]. Reports that were left in the pipe come before the end of the connection.
func (e *Ear) Next() ([]byte, error) {
	if !e.began {
		line, err := e.lines.Next()
		e.began = true
		if e.bad != nil {
			err = e.bad
		}
		return line, err
	}
	for {
		switch line, err := e.quiet(); {
		case line != nil || err != nil:
			return line, err
		case e.held != nil:
			e.hear()
			line, e.held = e.held, nil
			return line, nil
		case e.end != nil && len(e.left) > 0:
			return nil, fault.New(fault.Corrupt, "%d bytes in the pipe of a worker that are no report after number %d", len(e.left), e.next-1)
		case e.end != nil:
			return nil, e.end
		}
		if e.lines.Buffered() || e.wait() {
			e.conn.SetReadDeadline(time.Time{}) // a long line comes in pieces
			e.held, e.end = e.lines.Next()
			e.report = reportOf(e.held)
		}
		if err := e.look(); err != nil { // what was left before the line, or the end, is there by now
			return nil, err
		}
	}
}

// wait waits for more of the connection, or its end; false: there is nothing so far.
func (e *Ear) wait() bool {
	raw, err := e.conn.SyscallConn()
	if err != nil {
		return true // reading says why
	}
	var until time.Time
	switch {
	case e.pipe < 0:
	case time.Since(e.at) > 2*idleTick:
		until = time.Now().Add(idleTick)
	default:
		until = time.Now().Add(quietTick)
	}
	e.conn.SetReadDeadline(until)
	over := e.over.Load() // from the line before on: whoever sets it sets a deadline that has passed
	if e.pipe >= 0 && e.next > 0 && e.wanted.Load() >= e.next {
		waited := time.Duration(time.Now().UnixNano() - e.since.Load())
		e.conn.SetReadDeadline(time.Now().Add(min(max(waited/8, wantTick), quietTick)))
	}
	var b [1]byte
	nothing := false
	err = raw.Read(func(fd uintptr) bool {
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		nothing = err == syscall.EAGAIN
		return !nothing && err != syscall.EINTR || over
	})
	if over && nothing && err == nil {
		e.end = io.EOF
	}
	return !nothing && !errors.Is(err, os.ErrDeadlineExceeded)
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

// hear notes what reports in the pipe are like after the line that is held.
func (e *Ear) hear() {
	r := e.report
	if r == nil {
		return
	}
	e.next, e.at = r.N+1, time.Now()
	e.names = slices.Sorted(maps.Keys(r.Metrics))
	e.data = ""
	if len(r.Data) == 1 {
		for e.data = range r.Data {
		}
	}
}

// quiet is the line of the next report in the pipe; nil: another comes first, or none is there.
func (e *Ear) quiet() ([]byte, error) {
	if e.next == 0 || len(e.left) < 8 || e.held != nil && e.report != nil && e.report.N == e.next {
		return nil, nil
	}
	n, size := int64(binary.LittleEndian.Uint64(e.left)), quietSize(len(e.names))
	switch {
	case n > e.next:
		return nil, nil // after a line
	case n < e.next || e.data == "" || len(e.left) < size:
		return nil, fault.New(fault.Corrupt, "in the pipe of a worker are %d bytes of report %d, where report %d is due with %d metrics of data set %q", len(e.left), n, e.next, len(e.names), e.data)
	}
	number := func(i int) uint64 { return binary.LittleEndian.Uint64(e.left[8*i:]) }
	if number(2) > math.MaxInt64 || number(3) > math.MaxInt64 {
		return nil, fault.New(fault.Corrupt, "report %d in the pipe of a worker is of step %d, made at %d", n, number(2), number(3))
	}
	r := &Report{N: n, At: int64(number(3)), Metrics: make(Metrics, len(e.names)), Data: map[string]Place{e.data: {Epoch: number(1), Step: int64(number(2))}}}
	for i, name := range e.names {
		r.Metrics[name] = math.Float64frombits(number(4 + i))
	}
	e.left, e.next, e.at = e.left[size:], n+1, time.Now()
	return Append(nil, ToController{Report: r})
}
