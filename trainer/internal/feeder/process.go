package feeder

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/internal/oom"
)

const (
	stopTime   = 20 * time.Second // for a data process to stop what it serves, or to end when it is told so
	answerTime = 30 * time.Second // for a data process to give a ledger
	tailLines  = 12               // of what it said last, for messages
	tailBytes  = 4 << 10
	lookEvery  = time.Second // at what the kernel says of memory
)

// Process serves the sets of a data process: a child that argv starts, and which calls [Control]. Its sockets are in dir, as those of
// [Local]; what it writes to stderr goes to log too (nil: nowhere else), and env, NAME=value, is beside
// what it inherits. It is started by the first Start, lives until Close, and when it dies
// the next Start starts another one, which has to find out about the data again. It dies with this process, however that ends.
func Process(dir string, argv, env []string, log io.Writer) Feeder {
	return &process{dir: dir, argv: argv, env: env, log: log, patience: answerTime}
}

type process struct {
	dir       string
	argv, env []string
	log       io.Writer
	patience  time.Duration // for a ledger

	mu    sync.Mutex
	child *child // nil: none was started, or the last one was put away
}

// child is a data process.
type child struct {
	cmd   *exec.Cmd
	in    *os.File
	tail  tail
	heard chan struct{} // closed when all that it said was heard
	ended chan struct{} // closed when it has been waited for
	died  error         // why; set before ended is closed

	writing sync.Mutex // of in

	mu     sync.Mutex
	last   int                // number of the last request
	waits  map[int]chan reply // room 1 each
	begun  int                // the request that began what is served; 0: nothing is
	failed chan error         // of it; room 1
	refuse error              // it said that it cannot do anything
	broken error              // it said something else
	killed bool               // by us
}

func (p *process) Start(ctx context.Context, ranks int, at map[string]At) (map[string]string, <-chan error, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child != nil && p.child.gone() {
		p.child = nil
	}
	if p.child == nil {
		c, err := spawn(p.argv, p.env, p.log)
		if err != nil {
			return nil, nil, err
		}
		p.child = c
	}
	c := p.child
	failed := make(chan error, 1)
	c.mu.Lock()
	c.begun, c.failed = c.last+1, failed // what it says of this start may come with the answer
	c.mu.Unlock()
	r, err := c.ask(ctx, request{Start: &startRequest{Dir: p.dir, Ranks: ranks, At: at}})
	if err != nil {
		c.forget()
		if ctx.Err() != nil { // it may be opening still
			c.kill()
		}
		if c.gone() {
			p.child = nil
			sweep(p.dir)
		}
		return nil, nil, err
	}
	return r.Sockets, failed, nil
}

func (p *process) current() *child {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.child
}

func (p *process) Ledger(ctx context.Context, name string) ([]byte, error) {
	c := p.current()
	if c == nil {
		return nil, fault.New(fault.Invalid, "no data set is served")
	}
	late := time.AfterFunc(p.patience, func() { c.giveUp(p.patience) })
	defer late.Stop()
	r, err := c.ask(ctx, request{Ledger: &ledgerRequest{Name: name}})
	return r.Ledger, err
}

func (p *process) Notice() {
	if c := p.current(); c != nil {
		_ = c.write(request{Notice: &struct{}{}}) // a process that is gone has said so
	}
}

func (p *process) Stop() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.child
	if c == nil {
		return nil
	}
	c.forget()
	ctx, cancel := context.WithTimeout(context.Background(), stopTime)
	defer cancel()
	_, err := c.ask(ctx, request{Stop: &struct{}{}})
	if c.gone() { // and whoever waits for its failure was told
		p.child, err = nil, nil
	} else if ctx.Err() != nil {
		c.kill()
		p.child, err = nil, nil
	}
	if p.child == nil {
		sweep(p.dir)
	}
	return err
}

func (p *process) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := p.child
	if c == nil {
		return nil
	}
	p.child = nil
	c.forget()
	_ = c.in.Close() // it ends by that
	select {
	case <-c.ended:
	case <-time.After(stopTime):
		c.kill()
	}
	sweep(p.dir)
	return nil
}

// spawn starts a data process.
func spawn(argv, env []string, log io.Writer) (*child, error) {
	c := &child{cmd: exec.Command(argv[0], argv[1:]...), heard: make(chan struct{}), ended: make(chan struct{}), waits: map[int]chan reply{}, tail: tail{to: log}}
	in, w, err := os.Pipe()
	if err != nil {
		return nil, fault.New(fault.Exhausted, "a pipe to the data process: %w", err)
	}
	r, out := io.Pipe()
	c.in = w
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = in, out, &c.tail
	c.cmd.Env = append(os.Environ(), env...)
	c.cmd.WaitDelay = time.Second // where a process of its own holds its output open
	c.cmd.SysProcAttr = procAttr()
	started := make(chan error, 1)
	go c.run(started, out)
	err = <-started
	_ = in.Close()
	if err != nil {
		_ = w.Close()
		return nil, fault.New(fault.CodeOf(err), "the data process cannot be started: %w", err)
	}
	go c.watch()
	go c.listen(r)
	return c, nil
}

// run starts the process and waits for it, on one thread: the process dies when the thread does that started it, and here
// that is with this process.
func (c *child) run(started chan<- error, out *io.PipeWriter) {
	runtime.LockOSThread()
	err := c.cmd.Start()
	started <- err
	if err != nil {
		_ = out.Close()
		runtime.UnlockOSThread()
		return
	}
	err = c.cmd.Wait()
	runtime.UnlockOSThread()
	_ = out.Close()
	<-c.heard
	c.end(err)
}

// end tells everybody that the process has ended.
func (c *child) end(waited error) {
	_ = c.in.Close()
	c.mu.Lock()
	text := "unasked"
	if s := c.cmd.ProcessState; s != nil {
		text = exitText(s)
	} else if waited != nil {
		text = waited.Error()
	}
	switch {
	case c.refuse != nil:
		c.died = c.refuse
	case c.broken != nil:
		c.died = fault.New(fault.WorkerLost, "%w: %w", ErrDied, c.broken)
	default:
		code := fault.WorkerLost
		if memory, why := c.memory(); memory {
			code, text = fault.Exhausted, text+": "+why+"; give it less to do at once (run.memory, run.cpus), or the machine more"
		}
		if said := c.tail.String(); said != "" {
			text += "; it said last:\n" + said
		}
		c.died = fault.New(code, "%w: %s", ErrDied, text)
	}
	if c.failed != nil {
		give(c.failed, c.died)
	}
	c.mu.Unlock()
	close(c.ended)
}

// memory reports whether the kernel ended the process for memory. Under mu, after its end.
func (c *child) memory() (bool, string) {
	s := c.cmd.ProcessState
	if s == nil || c.killed {
		return false, ""
	}
	if w, ok := s.Sys().(syscall.WaitStatus); !ok || w.Signal() != syscall.SIGKILL {
		return false, ""
	}
	return oom.Killed()
}

// watch keeps what the kernel says of memory fresh until the process has ended.
func (c *child) watch() {
	t := time.NewTicker(lookEvery)
	defer t.Stop()
	for {
		oom.Look()
		select {
		case <-t.C:
		case <-c.ended:
			return
		}
	}
}

// exitText says how a process ended.
func exitText(s *os.ProcessState) string {
	if w, ok := s.Sys().(syscall.WaitStatus); ok && w.Signaled() {
		return "signal " + w.Signal().String()
	}
	return fmt.Sprintf("exit code %d", s.ExitCode())
}

// listen gives replies to those who wait.
func (c *child) listen(r *io.PipeReader) {
	defer close(c.heard)
	defer io.Copy(io.Discard, r) // so that nobody waits who writes
	for dec := json.NewDecoder(r); ; {
		var a reply
		err := dec.Decode(&a)
		if err == io.EOF {
			return
		}
		c.mu.Lock()
		switch {
		case err != nil:
			c.broken = fault.New(fault.Corrupt, "what it says cannot be read (%v): is it a penstock of this release?", err)
		case a.ID == 0 && a.Of == 0:
			c.refuse = a.Error.fault()
		case a.ID == 0 && a.Of == c.begun && c.failed != nil:
			give(c.failed, a.Error.fault())
		case a.ID != 0 && c.waits[a.ID] != nil:
			c.waits[a.ID] <- a
			delete(c.waits, a.ID)
		}
		c.mu.Unlock()
		if err != nil {
			_ = c.cmd.Process.Kill()
			return
		}
	}
}

// give hands over a failure, if it is the first.
func give(failed chan error, err error) {
	select {
	case failed <- err:
	default:
	}
}

// ask sends a request and waits for its answer.
func (c *child) ask(ctx context.Context, r request) (reply, error) {
	answer := make(chan reply, 1)
	c.mu.Lock()
	c.last++
	r.ID = c.last
	c.waits[r.ID] = answer
	c.mu.Unlock()
	err := c.write(r)
	if err == nil {
		select {
		case a := <-answer:
			return a, a.Error.fault()
		case <-c.ended:
			select { // its last word
			case a := <-answer:
				return a, a.Error.fault()
			default:
			}
		case <-ctx.Done():
			c.mu.Lock()
			delete(c.waits, r.ID)
			c.mu.Unlock()
			return reply{}, fault.WithCode(fault.Canceled, context.Cause(ctx))
		}
	}
	<-c.ended
	return reply{}, c.died
}

// giveUp kills a process that does not answer: a checkpoint waits for it, and all ranks for that.
func (c *child) giveUp(after time.Duration) {
	c.mu.Lock()
	c.broken = fault.New(fault.Stalled, "it did not answer for %v, and was killed", after)
	c.mu.Unlock()
	_ = c.cmd.Process.Kill() // gone is fine
}

// write sends a line. Where it cannot the process is ending, or is ended.
func (c *child) write(r request) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fault.New(fault.Internal, "a request: %w", err)
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if _, err = c.in.Write(append(b, '\n')); err != nil {
		_ = c.cmd.Process.Kill() // it is ending
	}
	return err
}

// forget lets go of what was begun: its failure is nobody's any more.
func (c *child) forget() {
	c.mu.Lock()
	c.begun, c.failed = 0, nil
	c.mu.Unlock()
}

func (c *child) gone() bool {
	select {
	case <-c.ended:
		return true
	default:
		return false
	}
}

// kill kills the process, and waits for its end. Processes that it has started die with it, or at the end of their input.
func (c *child) kill() {
	c.mu.Lock()
	c.killed = true
	c.mu.Unlock()
	_ = c.cmd.Process.Kill() // gone is fine
	<-c.ended
}

// sweep removes the sockets of a data process that could not.
func sweep(dir string) {
	left, _ := filepath.Glob(filepath.Join(dir, socketPrefix+"*"))
	for _, path := range left {
		_ = os.Remove(path)
	}
}

// tail keeps the last lines that were written to it. Safe for concurrent use.
type tail struct {
	to io.Writer

	mu sync.Mutex
	b  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	if t.b = append(t.b, p...); len(t.b) > tailBytes {
		t.b = append(t.b[:0], t.b[len(t.b)-tailBytes:]...)
	}
	t.mu.Unlock()
	if t.to != nil {
		_, _ = t.to.Write(p) // who cannot log goes on
	}
	return len(p), nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	lines := strings.Split(strings.TrimSpace(string(t.b)), "\n")
	return strings.ToValidUTF8(strings.Join(lines[max(len(lines)-tailLines, 0):], "\n"), "?")
}
