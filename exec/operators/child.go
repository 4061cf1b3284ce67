package operators

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	osexec "os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/ipcmeta"
	"github.com/penstock-data/penstock/internal/mem"
)

const (
	maxAnswer     = 1 << 30                // bytes of one message of a child
	maxAnswerMeta = 64 << 20               // of its header
	keepStderr    = 4 << 10                // of stderr, the last
	graceExit     = 500 * time.Millisecond // for a child to end after its stdin was closed, or to die after its stdout was; less than a run has to close
)

// child is one process. One goroutine at a time uses it.
type child struct {
	cmd    *command
	number int // among those of its pool that live
	proc   *osexec.Cmd
	stdin  *os.File
	stdout *os.File
	stderr tail
	mem    switching

	out *bufio.Writer
	w   *ipc.Writer
	br  *bufio.Reader
	r   *ipc.Reader // made at the first answer

	gone chan struct{} // closed when the process was waited for
	mu   sync.Mutex    // orders kill and the wait that frees the process id
	dead bool
}

// EnvNumber is the variable with the number of a child: 0 for the first, and below the number of workers. No two that live at a time have the same.
const EnvNumber = "PENSTOCK_WORKER"

// start runs the command as child number. Its process group dies with it, and with this process.
func start(cmd *command, number int) (*child, error) {
	fail := func(err error) (*child, error) {
		code := fault.Invalid // no such program, not executable
		if errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.ENOMEM) || errors.Is(err, syscall.EMFILE) || errors.Is(err, syscall.ENFILE) {
			code = fault.Exhausted
		}
		return nil, fault.New(code, "%s: cannot start: %w", cmd, err)
	}
	inR, inW, err := os.Pipe()
	if err != nil {
		return fail(err)
	}
	outR, outW, err := os.Pipe()
	if err != nil {
		inR.Close()
		inW.Close()
		return fail(err)
	}
	c := &child{cmd: cmd, number: number, stdin: inW, stdout: outR, gone: make(chan struct{})}
	c.proc = osexec.Command(cmd.program, cmd.args[1:]...)
	c.proc.Env = append(environment(cmd.env), EnvNumber+"="+strconv.Itoa(number))
	c.proc.Stdin, c.proc.Stdout, c.proc.Stderr = inR, outW, &c.stderr
	c.proc.WaitDelay = time.Second // for stderr, should a grandchild hold it
	c.proc.SysProcAttr = procAttr()

	started := make(chan error, 1)
	go c.run(started) // joined through gone
	err = <-started
	inR.Close()
	outW.Close()
	if err != nil {
		inW.Close()
		outR.Close()
		return fail(err)
	}
	c.out = bufio.NewWriterSize(inW, 64<<10)
	c.br = bufio.NewReaderSize(outR, 64<<10)
	c.mem.use(memory.DefaultAllocator, nil)
	c.w = ipc.NewWriter(c.out, ipc.WithSchema(cmd.told), ipc.WithAllocator(mem.Zeroed{Allocator: &c.mem}))
	return c, nil
}

// run starts the process and waits for it, all on one thread: the kernel kills the child when the thread that
// started it ends.
func (c *child) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := c.proc.Start()
	started <- err
	if err != nil {
		return
	}
	bury := func() {
		c.mu.Lock()
		c.dead = true
		c.mu.Unlock()
	}
	if waitExit(c.proc.Process.Pid) {
		c.kill() // what else is in its group, while the id still is ours
		bury()
	}
	_ = c.proc.Wait() // ProcessState says it all
	bury()
	close(c.gone)
}

// kill kills the process group.
func (c *child) kill() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.dead {
		killGroup(c.proc.Process)
	}
}

func environment(names []string) []string {
	env := []string{}
	for _, n := range append([]string{"PATH", "HOME"}, names...) {
		if strings.Contains(n, "=") {
			env = append(env, n)
		} else if v, ok := os.LookupEnv(n); ok {
			env = append(env, n+"="+v)
		}
	}
	return env
}

// call sends rec and returns the answer, whose schema is right. After an error the child is gone, unless that is a [refused].
func (c *child) call(ctx context.Context, rec arrow.RecordBatch, alloc memory.Allocator) (arrow.RecordBatch, error) {
	deadline := time.Now().Add(c.cmd.timeout)
	c.stdin.SetWriteDeadline(deadline)
	c.stdout.SetReadDeadline(deadline)
	fired := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(fired)
		c.kill()
		c.stdin.SetWriteDeadline(time.Unix(1, 0)) // should another process hold the pipes
		c.stdout.SetReadDeadline(time.Unix(1, 0))
	})
	var mu sync.Mutex                             // the send allocates, too
	c.mem.use(alloc, func(waited time.Duration) { // for memory, which is not the child's time
		mu.Lock()
		defer mu.Unlock()
		if ctx.Err() == nil {
			deadline = deadline.Add(waited)
			c.stdout.SetReadDeadline(deadline)
		}
	})
	err := c.ahead()
	var out arrow.RecordBatch
	if err == nil {
		out, err = c.exchange(rec)
	}
	c.mem.done()
	if !stop() {
		<-fired
		if err == nil {
			out.Release()
			err = context.Cause(ctx)
		}
	}
	if r, ok := errors.AsType[*refused](err); ok && ctx.Err() == nil {
		if r.err.Code == fault.Invalid { // there is no function: it ends, and no batch will do better
			c.drop()
			return nil, r.err
		}
		return nil, err
	}
	if err == nil {
		return out, nil
	}
	err = c.explain(ctx, err)
	c.drop()
	return nil, err
}

// ahead is an error if there is another answer already, which would be taken for that to the next
// batch. What a child says before its first answer is the schema.
func (c *child) ahead() error {
	if c.r == nil {
		return nil
	}
	if c.br.Buffered() == 0 && !readable(c.stdout) {
		return nil
	}
	b, err := c.br.Peek(8)
	if err != nil || binary.LittleEndian.Uint32(b) == 0 || binary.LittleEndian.Uint64(b) == 0xffffffff { // the end, or half of a message
		return nil // the exchange says what it is
	}
	return errAnswer{fault.New(fault.Invalid, "more batches than it was given: each batch has exactly one answer")}
}

// errAnswer marks what a child wrote, as opposed to that it wrote.
type errAnswer struct{ error }

func (e errAnswer) Unwrap() error { return e.error }

// pipeBytes fit a pipe, and what else is sent with them: a child that reads them later does not keep who writes them.
const pipeBytes = 32 << 10

func (c *child) exchange(rec arrow.RecordBatch) (arrow.RecordBatch, error) {
	if exec.SizeOf(rec) <= pipeBytes {
		if err := c.send(rec); err != nil {
			return nil, err
		}
		return c.answer()
	}
	sent := make(chan error, 1) // a child may answer while it reads, as cat does
	go func() { sent <- c.send(rec) }()
	answered := false
	defer func() {
		if !answered { // there was no memory
			c.stdin.SetWriteDeadline(time.Unix(1, 0))
			<-sent
		}
	}()
	out, err := c.answer()
	answered = true
	given := err != nil && !isRefused(err)
	if given {
		c.stdin.SetWriteDeadline(time.Unix(1, 0))
	}
	serr := <-sent
	if given || serr == nil {
		return out, err
	}
	if err == nil {
		out.Release()
	}
	return nil, serr
}

func (c *child) send(rec arrow.RecordBatch) (err error) {
	defer func() {
		switch p := recover().(type) {
		case nil:
		case *fault.Error: // of the allocator
			err = p
		default:
			err = fault.New(fault.Internal, "a batch for %s: %v", c.cmd.program, p)
		}
	}()
	if err := c.w.Write(rec); err != nil {
		return err
	}
	return c.out.Flush()
}

// answer reads one batch, which the caller releases.
func (c *child) answer() (arrow.RecordBatch, error) {
	if c.r == nil {
		mem := ipcmeta.Bounded{Allocator: &c.mem, Max: c.cmd.limit}
		mr := ipcmeta.NewReader(c.br, ipcmeta.Limits{Meta: maxAnswerMeta, Body: int64(c.cmd.limit)}, mem)
		r, err := ipc.NewReaderFromMessageReader(mr, ipc.WithAllocator(mem))
		if err != nil {
			return nil, err
		}
		c.r = r
		if err := checkColumns(r.Schema(), c.cmd.answer); err != nil {
			return nil, errAnswer{fault.New(fault.Invalid, "other columns than it should: %w; where the command changes columns, declare those it gives back in schema", err)}
		}
	}
	if !c.r.Next() {
		if err := c.r.Err(); err != nil {
			return nil, err
		}
		return nil, io.EOF
	}
	out := c.r.RecordBatch()
	if err := validate(out); err != nil {
		return nil, errAnswer{fmt.Errorf("a batch that is damaged: %w", err)}
	}
	if err := c.cmd.refusal(out); err != nil {
		return nil, err
	}
	out.Retain()
	return out, nil
}

// validate checks offsets, lengths and text, so that nothing later reads outside of buffers.
func validate(rec arrow.RecordBatch) (err error) {
	defer func() {
		if p := recover(); p != nil { // some checks of arrow-go read what they are to check
			err = fmt.Errorf("%v", p)
		}
	}()
	return array.ValidateRecordFull(rec)
}

// explain says why an exchange failed, and ends the process.
func (c *child) explain(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		c.kill()
		return context.Cause(ctx)
	}
	if ea, ok := errors.AsType[errAnswer](err); ok {
		c.kill()
		code := fault.CodeOf(ea.error)
		if code == fault.Unknown {
			code = fault.UserCode
		}
		return c.report(code, "answered with %v", ea.error)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.kill()
		return c.report(fault.WorkerLost, "gave no answer for %v", c.cmd.timeout)
	}
	closed := errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) || errors.Is(err, syscall.EPIPE)
	if !closed {
		c.kill()
		return c.report(fault.UserCode, "does not answer with an Arrow IPC stream (only that may be written to stdout): %v", err)
	}
	select { // its own way to die tells more than our kill
	case <-c.gone:
		return c.report(fault.WorkerLost, "died: %s", c.proc.ProcessState)
	case <-time.After(graceExit):
		c.kill()
		return c.report(fault.WorkerLost, "closed its stdin or stdout without an answer")
	}
}

// report waits for the process and adds what it said last.
func (c *child) report(code fault.Code, format string, args ...any) error {
	<-c.gone
	text := fmt.Sprintf(format, args...)
	if said := c.stderr.String(); said != "" {
		text += "; stderr: " + said
		if strings.Contains(said, "No module named 'penstock'") {
			text += "; install the package for " + c.cmd.program + ", or name an interpreter that has it (python of the step, or $PENSTOCK_PYTHON)"
		}
	}
	return fault.New(code, "%s: %s", c.cmd, text)
}

// drop frees everything; the process was told to end.
func (c *child) drop() {
	c.kill()
	<-c.gone
	c.stdin.Close()
	c.stdout.Close()
	c.free()
}

// free gives back the memory of the stream, but for the answers handed out.
func (c *child) free() {
	if c.r != nil {
		c.r.Release()
	}
	c.mem.reap()
}

// finish ends an idle child: end of stream, then a grace, then by force.
func (c *child) finish() {
	c.mem.use(memory.DefaultAllocator, nil)
	c.stdin.SetWriteDeadline(time.Now().Add(graceExit))
	if c.w.Close() == nil {
		_ = c.out.Flush() // a child that is gone already has ended as wanted
	}
	c.stdin.Close()
	select {
	case <-c.gone:
	case <-time.After(graceExit):
	}
	c.drop()
}

// tail keeps the end of what is written. Safe for concurrent use.
type tail struct {
	mu  sync.Mutex
	buf []byte
	cut bool
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := len(p)
	if n > keepStderr {
		p, t.cut = p[n-keepStderr:], true
	}
	if over := len(t.buf) + len(p) - keepStderr; over > 0 {
		t.buf = t.buf[:copy(t.buf, t.buf[over:])]
		t.cut = true
	}
	t.buf = append(t.buf, p...)
	return n, nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := strings.TrimSpace(strings.ToValidUTF8(string(t.buf), "?"))
	if t.cut {
		s = "..." + s
	}
	return s
}

// switching charges each buffer of a child's stream to the task that it is for, and frees it
// there. Safe for concurrent use, as buffers are freed anywhere.
type switching struct {
	mu   sync.Mutex
	cur  memory.Allocator
	did  func(waited time.Duration) // called after an allocation that took long; may be nil
	call int                        // counts use
	from map[*byte]owned
}

type owned struct {
	alloc memory.Allocator
	buf   []byte
	call  int
}

// use begins a call.
func (s *switching) use(a memory.Allocator, did func(time.Duration)) {
	s.mu.Lock()
	s.cur, s.did = a, did
	s.call++
	s.mu.Unlock()
}

// done ends a call.
func (s *switching) done() {
	s.mu.Lock()
	s.did = nil
	s.mu.Unlock()
}

// reap frees what the last call allocated and lost, which handed nothing out: arrow-go's reader
// loses buffers of batches that turn out to be damaged.
func (s *switching) reap() {
	s.mu.Lock()
	var lost []owned
	for at, o := range s.from {
		if o.call == s.call {
			lost = append(lost, o)
			delete(s.from, at)
		}
	}
	s.mu.Unlock()
	for _, o := range lost {
		o.alloc.Free(o.buf)
	}
}

func (s *switching) Allocate(n int) []byte {
	s.mu.Lock()
	a := s.cur
	s.mu.Unlock()
	b := s.timed(func() []byte { return a.Allocate(n) })
	s.own(b, a)
	return b
}

// timed calls f, which may wait for memory: not under the lock.
func (s *switching) timed(f func() []byte) []byte {
	s.mu.Lock()
	did := s.did
	s.mu.Unlock()
	from := time.Now()
	b := f()
	if d := time.Since(from); did != nil && d > time.Millisecond {
		did(d)
	}
	return b
}

func (s *switching) own(b []byte, a memory.Allocator) {
	if cap(b) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.from == nil {
		s.from = map[*byte]owned{}
	}
	s.from[&b[:1][0]] = owned{a, b, s.call}
}

// disown finds who b was allocated from.
func (s *switching) disown(b []byte) memory.Allocator {
	s.mu.Lock()
	defer s.mu.Unlock()
	if cap(b) == 0 {
		return s.cur // nothing to give back
	}
	at := &b[:1][0]
	o := s.from[at]
	delete(s.from, at)
	return o.alloc
}

func (s *switching) Reallocate(n int, b []byte) []byte {
	a := s.disown(b)
	b = s.timed(func() []byte { return a.Reallocate(n, b) })
	s.own(b, a)
	return b
}

func (s *switching) Free(b []byte) {
	if cap(b) > 0 {
		s.disown(b).Free(b)
	}
}
