package feeder

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard/feed"
	"github.com/penstock-data/penstock/trainer/internal/oom"
	"github.com/penstock-data/penstock/trainer/internal/wire"
)

const (
	tailLines = 12 // of what it said last, for messages
	tailBytes = 4 << 10
	lookEvery = time.Second // at what the kernel says of memory
)

// Process serves the sets of a data process: a child that argv starts, and which calls [Control]. Its sockets are in dir, as those of
// [Local]; what it writes to stderr goes to log too (nil: nowhere else), and env, NAME=value, is beside
// what it inherits. It is started by the first Listen or Start, lives until Close, and when it dies
// the next one starts another, which has to find out about the data again. It dies with this process, however that ends.
func Process(dir string, argv, env []string, log io.Writer) Feeder {
	return &process{dir: dir, argv: argv, env: env, log: log, patience: answerTime, stopping: stopTime}
}

type process struct {
	dir                string
	argv, env          []string
	log                io.Writer
	patience, stopping time.Duration // see line

	mu    sync.Mutex
	child *child // nil: none was started, or the last one was put away
	heard *child // that others were told the address of; nil: none
}

// child is a data process.
type child struct {
	*line
	cmd   *exec.Cmd
	in    *os.File
	tail  tail
	heard chan struct{} // closed when all that it said was heard

	death  sync.Mutex
	killed bool // by us; guarded by death
}

// running is a data process that has not ended, as far as is known.
func (p *process) running() (*child, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.child != nil && p.child.gone() {
		p.child = nil
	}
	if p.child == nil {
		c, err := spawn(p.argv, p.env, p.log, p.patience, p.stopping)
		if err != nil {
			return nil, err
		}
		p.child = c
	}
	return p.child, nil
}

// sweepUp puts a data process away that has ended, and what it has left behind.
func (p *process) sweepUp(c *child) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c.gone() && (p.child == c || p.child == nil) {
		p.child = nil
		sweep(p.dir)
	}
}

func (p *process) Listen(ctx context.Context) (string, error) {
	c, err := p.running()
	if err != nil {
		return "", err
	}
	defer p.sweepUp(c)
	address, err := c.listen(ctx, p.dir)
	if err == nil {
		p.mu.Lock()
		p.heard = c
		p.mu.Unlock()
	}
	return address, err
}

func (p *process) Start(ctx context.Context, st Start) (map[string]string, <-chan error, error) {
	p.mu.Lock()
	c := p.heard
	p.mu.Unlock()
	if st.Nodes == nil || c == nil {
		var err error
		if c, err = p.running(); err != nil {
			return nil, nil, err
		}
	} // else others would not reach another one
	sockets, failed, err := c.start(ctx, p.dir, st)
	if err != nil {
		p.sweepUp(c)
	}
	return sockets, failed, err
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
	return c.ledger(ctx, name)
}

func (p *process) Hold(ctx context.Context) (map[string]feed.Step, error) {
	c := p.current()
	if c == nil {
		return nil, nil
	}
	return c.hold(ctx)
}

func (p *process) Mark(ctx context.Context, steps map[string]feed.Step) error {
	c := p.current()
	if c == nil {
		return nil
	}
	return c.mark(ctx, steps)
}

func (p *process) Stop() error {
	c := p.current()
	if c == nil {
		return nil
	}
	defer p.sweepUp(c)
	return c.stop()
}

func (p *process) Close() error {
	c := p.current()
	if c == nil {
		return nil
	}
	c.forget()
	_ = c.in.Close() // it ends by that
	select {
	case <-c.ended:
	case <-time.After(p.stopping):
		c.kill()
	}
	p.sweepUp(c)
	return nil
}

// spawn starts a data process.
func spawn(argv, env []string, log io.Writer, patience, stopping time.Duration) (*child, error) {
	c := &child{cmd: exec.Command(argv[0], argv[1:]...), heard: make(chan struct{}), tail: tail{to: log}}
	in, w, err := os.Pipe()
	if err != nil {
		return nil, fault.New(fault.Exhausted, "a pipe to the data process: %w", err)
	}
	r, out := io.Pipe()
	c.in = w
	c.line = newLine(w, func() { _ = c.cmd.Process.Kill() }) // gone is fine
	c.patience, c.stopping = patience, stopping
	c.cmd.Stdin, c.cmd.Stdout, c.cmd.Stderr = in, out, &c.tail
	c.cmd.Env = slices.DeleteFunc(append(os.Environ(), env...), func(kv string) bool { return strings.HasPrefix(kv, wire.EnvKey+"=") })
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
	go c.hear(r)
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

// end says how the process has ended.
func (c *child) end(waited error) {
	_ = c.in.Close()
	code, text := fault.WorkerLost, "unasked"
	if s := c.cmd.ProcessState; s != nil {
		text = exitText(s)
	} else if waited != nil {
		text = waited.Error()
	}
	if memory, why := c.memory(); memory {
		code, text = fault.Exhausted, text+": "+why+"; give it less to do at once (run.memory, run.cpus), or the machine more"
	}
	if said := c.tail.String(); said != "" {
		text += "; it said last:\n" + said
	}
	c.line.end(fault.New(code, "%s", text))
}

// memory reports whether the kernel ended the process for memory, after its end.
func (c *child) memory() (bool, string) {
	c.death.Lock()
	defer c.death.Unlock()
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

// hear takes in what the process says.
func (c *child) hear(r io.Reader) {
	defer close(c.heard)
	_ = c.read(r)
	_, _ = io.Copy(io.Discard, r) // so that nobody waits who writes
}

// kill kills the process, and waits for its end. Processes that it has started die with it, or at the end of their input.
func (c *child) kill() {
	c.death.Lock()
	c.killed = true
	c.death.Unlock()
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
