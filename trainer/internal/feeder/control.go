package feeder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/penstock-data/penstock/internal/fault"
)

// request is a line of the controller. Each but a notice is answered, in order.
type request struct {
	ID     int            `json:"id,omitempty"` // from 1; 0: a notice
	Start  *startRequest  `json:"start,omitempty"`
	Ledger *ledgerRequest `json:"ledger,omitempty"`
	Stop   *struct{}      `json:"stop,omitempty"`
	Notice *struct{}      `json:"notice,omitempty"`
}

type startRequest struct {
	Dir   string        `json:"dir"` // for sockets
	Ranks int           `json:"ranks"`
	At    map[string]At `json:"at,omitempty"`
}

type ledgerRequest struct {
	Name string `json:"name"`
}

// reply is a line of the data process: the answer to request ID, or, where ID is 0, a failure of what request Of started; without Of, that
// the process cannot do anything.
type reply struct {
	ID      int               `json:"id,omitempty"`
	Of      int               `json:"of,omitempty"`
	Sockets map[string]string `json:"sockets,omitempty"`
	Ledger  []byte            `json:"ledger,omitempty"`
	Error   *Error            `json:"error,omitempty"`
}

// Error is a fault on its way to another process.
type Error struct {
	Code    string `json:"code"` // of package fault
	Text    string `json:"text"`
	Refused string `json:"refused,omitempty"` // see Refused
}

// ErrorOf is err, for another process.
func ErrorOf(err error) *Error {
	if err == nil {
		return nil
	}
	name, _ := Refused(err)
	return &Error{Code: fault.CodeOf(err).String(), Text: err.Error(), Refused: name}
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
	return err
}

// Control is the data process's side of [Process]: it does what in says, and answers on out, until in ends (nil), ctx does, or one of them fails. Then
// nothing is served any more.
func Control(ctx context.Context, in io.Reader, out io.Writer, sets []Set) (err error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	c := &control{sets: sets, out: json.NewEncoder(out), end: end}
	requests := make(chan request)
	go func() { // ends with in; or with the process, where in does not end
		for dec := json.NewDecoder(in); ; {
			var r request
			if err := dec.Decode(&r); err != nil {
				if err != io.EOF {
					end(fault.New(fault.Unavailable, "the controller's line cannot be read: %w", err))
				} else {
					end(errOver)
				}
				return
			}
			if r.Notice != nil { // also while another is answered
				c.notice()
				continue
			}
			select {
			case requests <- r:
			case <-ctx.Done():
				return
			}
		}
	}()
	defer func() { err = errors.Join(err, c.stop()) }()
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

var errOver = errors.New("the controller has closed its line")

// control is the state of Control.
type control struct {
	sets []Set
	end  context.CancelCauseFunc

	writing sync.Mutex
	out     *json.Encoder

	mu  sync.Mutex
	f   Feeder         // between a start and a stop
	fwd sync.WaitGroup // of the failure of f
	off chan struct{}  // closed to end fwd
	dir string
}

func (c *control) send(r reply) {
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.out.Encode(r); err != nil {
		c.end(fault.New(fault.Unavailable, "the controller is not there any more: %w", err))
	}
}

// feeder is made once: sockets of one folder have names of their own.
func (c *control) feeder(dir string) (Feeder, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.f == nil {
		c.f, c.dir = Local(dir, c.sets), dir
	}
	if dir != c.dir {
		return nil, fault.New(fault.Internal, "sockets in %s, and before in %s", dir, c.dir)
	}
	return c.f, nil
}

func (c *control) notice() {
	c.mu.Lock()
	f := c.f
	c.mu.Unlock()
	if f != nil {
		f.Notice()
	}
}

func (c *control) stop() error {
	c.mu.Lock()
	f := c.f
	c.mu.Unlock()
	if f == nil {
		return nil
	}
	if c.off != nil {
		close(c.off)
		c.off = nil
	}
	c.fwd.Wait()
	return f.Stop()
}

func (c *control) do(ctx context.Context, r request) (a reply) {
	a.ID = r.ID
	var err error
	switch {
	case r.Start != nil:
		var f Feeder
		var failed <-chan error
		if f, err = c.feeder(r.Start.Dir); err != nil {
			break
		}
		if a.Sockets, failed, err = f.Start(ctx, r.Start.Ranks, r.Start.At); err != nil {
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
		c.mu.Lock()
		f := c.f
		c.mu.Unlock()
		if f == nil {
			err = fault.New(fault.Invalid, "no data set is served")
			break
		}
		a.Ledger, err = f.Ledger(ctx, r.Ledger.Name)
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
	b, _ := json.Marshal(reply{Error: ErrorOf(err)}) // of strings: cannot fail
	fmt.Fprintf(out, "%s\n", b)
}
