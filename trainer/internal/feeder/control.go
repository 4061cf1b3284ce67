package feeder

import (
	"context"
	"errors"
	"io"
	"sync"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/feed"
)

// request is a line of the controller. Each but Cancel is answered, in order.
type request struct {
	ID     int            `json:"id,omitempty"`  // from 1
	Dir    string         `json:"dir,omitempty"` // for sockets, of Listen and Start; always the same
	Listen *struct{}      `json:"listen,omitempty"`
	Start  *Start         `json:"start,omitempty"`
	Cancel *struct{}      `json:"cancel,omitempty"` // the starts before it; at once
	Ledger *ledgerRequest `json:"ledger,omitempty"`
	Hold   *struct{}      `json:"hold,omitempty"`
	Mark   *markRequest   `json:"mark,omitempty"`
	Stop   *struct{}      `json:"stop,omitempty"`

	ctx context.Context // of Start
}

type ledgerRequest struct {
	Name string `json:"name"`
}

type markRequest struct {
	Steps map[string]feed.Step `json:"steps"`
}

// reply is a line of the data process: the answer to request ID, or, where ID is 0, a failure of what request Of started; without Of, that
// the process cannot do anything.
type reply struct {
	ID      int                  `json:"id,omitempty"`
	Of      int                  `json:"of,omitempty"`
	Address string               `json:"address,omitempty"`
	Sockets map[string]string    `json:"sockets,omitempty"`
	Ledger  []byte               `json:"ledger,omitempty"`
	Steps   map[string]feed.Step `json:"steps,omitempty"`
	Error   *Error               `json:"error,omitempty"`
}

// Error is a fault on its way to another process.
type Error struct {
	Code      string `json:"code"` // of package fault
	Text      string `json:"text"`
	Refused   string `json:"refused,omitempty"`   // see Refused
	Died      bool   `json:"died,omitempty"`      // ErrDied is in its tree
	Elsewhere bool   `json:"elsewhere,omitempty"` // shard.ErrElsewhere is
}

// ErrorOf is err, for another process.
func ErrorOf(err error) *Error {
	if err == nil {
		return nil
	}
	name, _ := Refused(err)
	return &Error{Code: fault.CodeOf(err).String(), Text: err.Error(), Refused: name, Died: errors.Is(err, ErrDied), Elsewhere: errors.Is(err, shard.ErrElsewhere)}
}

// fault is the error that was sent; nil stays nil.
func (e *Error) fault() error {
	if e == nil {
		return nil
	}
	var err error = fault.New(fault.ParseCode(e.Code), "%s", e.Text)
	if e.Refused != "" {
		err = &refused{e.Refused, err}
	}
	if e.Died {
		err = &marked{err, ErrDied}
	}
	if e.Elsewhere {
		err = &marked{err, shard.ErrElsewhere}
	}
	return err
}

// marked is an error with another in its tree, which its text does not say.
type marked struct {
	error
	is error
}

func (m *marked) Unwrap() error        { return m.error }
func (m *marked) Is(target error) bool { return target == m.is }

// Control is the data process's side of [Process]: it does what in says, and answers on out, until in ends (nil), ctx does, or one of them fails. Then
// nothing is served any more. join makes it one of a gang, when it is to listen; Control closes that. A nil gang, or a nil join: it is of none.
func Control(ctx context.Context, in io.Reader, out io.Writer, sets []Set, join func() (*gang.Gang, error)) error {
	var g *gang.Gang
	c := &control{out: out, most: maxLine}
	c.open = func(dir string) Feeder {
		return &local{dir: dir, sets: sets, join: func() (_ *gang.Gang, err error) {
			if g == nil && join != nil {
				g, err = join()
			}
			return g, err
		}}
	}
	err := c.run(ctx, in)
	if g != nil {
		err = errors.Join(err, g.Close())
	}
	return err
}

// Relay serves f to the [Remote] at the other end of conn, which it closes, until that ends (nil) or ctx does. Then f serves nothing any more; it stays the caller's.
func Relay(ctx context.Context, conn io.ReadWriteCloser, f Feeder) error {
	c := &control{out: conn, most: maxLine, open: func(string) Feeder { return f }, hangUp: conn.Close}
	return c.run(ctx, conn)
}

// control is the state of Control and Relay.
type control struct {
	open   func(dir string) Feeder
	hangUp func() error // ends the reading; nil: it ends with in, or with the process where in does not end
	end    context.CancelCauseFunc

	most    int // bytes of a line
	writing sync.Mutex
	out     io.Writer

	f   Feeder // from the first Listen or Start on
	dir string
	fwd sync.WaitGroup // of the failure of f
	off chan struct{}  // closed to end fwd
}

var errOver = errors.New("the controller has closed its line")

// backlog is how many requests may wait for one that is being done: controllers have as many parts that ask.
const backlog = 256

func (c *control) run(ctx context.Context, in io.Reader) (err error) {
	ctx, c.end = context.WithCancelCause(ctx)
	defer c.end(nil)
	requests := make(chan request, backlog)
	heard := make(chan struct{})
	go func() {
		defer close(heard)
		c.hear(ctx, in, requests)
	}()
	defer func() {
		err = errors.Join(err, c.stop())
		if c.hangUp != nil {
			_ = c.hangUp() // as it may be already
			<-heard
		}
	}()
	for {
		select {
		case r := <-requests:
			c.send(c.do(ctx, r))
		case <-ctx.Done():
			if err := context.Cause(ctx); err != errOver {
				return err
			}
			return nil
		}
	}
}

// hear reads requests until in or ctx ends.
func (c *control) hear(ctx context.Context, in io.Reader, requests chan<- request) {
	var starts struct { // those that go on, or wait
		ctx    context.Context
		cancel context.CancelFunc
	}
	starts.ctx, starts.cancel = context.WithCancel(ctx)
	defer func() { starts.cancel() }()
	for in := newLines(in, c.most); ; {
		var r request
		if err := in.next(&r); err != nil {
			if err != io.EOF {
				c.end(fault.New(fault.Unavailable, "the controller's line cannot be read: %w", err))
			} else {
				c.end(errOver)
			}
			return
		}
		if r.Cancel != nil { // also while a start goes on
			starts.cancel()
			starts.ctx, starts.cancel = context.WithCancel(ctx)
			continue
		}
		r.ctx = starts.ctx
		select {
		case requests <- r:
		case <-ctx.Done():
			return
		}
	}
}

func (c *control) send(r reply) {
	c.writing.Lock()
	defer c.writing.Unlock()
	b, err := lineOf(r, c.most)
	if err != nil {
		b, _ = lineOf(reply{ID: r.ID, Of: r.Of, Error: ErrorOf(err)}, c.most)
	}
	if _, err := c.out.Write(b); err != nil {
		c.end(fault.New(fault.Unavailable, "the controller is not there any more: %w", err))
	}
}

// feeder is made once: sockets of one folder have names of their own.
func (c *control) feeder(dir string) (Feeder, error) {
	if c.f == nil {
		c.f, c.dir = c.open(dir), dir
	}
	if dir != c.dir {
		return nil, fault.New(fault.Internal, "sockets in %s, and before in %s", dir, c.dir)
	}
	return c.f, nil
}

func (c *control) stop() error {
	if c.f == nil {
		return nil
	}
	if c.off != nil {
		close(c.off)
		c.off = nil
	}
	c.fwd.Wait()
	return c.f.Stop()
}

func (c *control) do(ctx context.Context, r request) (a reply) {
	a.ID = r.ID
	var err error
	switch {
	case r.Listen != nil:
		var f Feeder
		if f, err = c.feeder(r.Dir); err == nil {
			a.Address, err = f.Listen(ctx)
		}
	case r.Start != nil:
		var f Feeder
		var failed <-chan error
		if f, err = c.feeder(r.Dir); err != nil {
			break
		}
		if a.Sockets, failed, err = f.Start(r.ctx, *r.Start); err != nil {
			break
		}
		off := make(chan struct{})
		c.off = off
		c.fwd.Go(func() {
			select {
			case err := <-failed:
				c.send(reply{Of: r.ID, Error: ErrorOf(err)})
			case <-off:
			}
		})
	case r.Ledger != nil:
		if c.f == nil {
			err = fault.New(fault.Invalid, "no data set is served")
		} else {
			a.Ledger, err = c.f.Ledger(ctx, r.Ledger.Name)
		}
	case r.Hold != nil:
		if c.f != nil {
			a.Steps, err = c.f.Hold(ctx)
		}
	case r.Mark != nil:
		if c.f != nil {
			err = c.f.Mark(ctx, r.Mark.Steps)
		}
	case r.Stop != nil:
		err = c.stop()
	default:
		err = fault.New(fault.Unsupported, "a request that this release does not know: use one release for the controller and the data process")
	}
	a.Error = ErrorOf(err)
	return a
}

// Refuse is what a data process says in place of Control when it has nothing to serve because of err: the first Start returns it.
func Refuse(out io.Writer, err error) {
	b, err := lineOf(reply{Error: ErrorOf(err)}, maxLine)
	if err == nil { // an error is no longer than that
		_, _ = out.Write(b) // who does not listen need not know
	}
}
