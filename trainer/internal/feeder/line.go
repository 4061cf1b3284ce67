package feeder

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard/feed"
)

const (
	stopTime   = 20 * time.Second // for the other side to stop what it serves, to give up a start, or to end when it is told so
	answerTime = 30 * time.Second // for the other side to give a ledger
)

// line is the controller's end of a line to a [Control] or a [Relay]: it asks, and hears the answers.
type line struct {
	out      io.Writer
	cut      func()        // makes the other side end what it says, however it does
	most     int           // bytes of a line
	patience time.Duration // for a ledger
	stopping time.Duration // for an end
	ended    chan struct{} // closed by end
	died     error         // why; set before ended is closed

	writing sync.Mutex // of out

	mu     sync.Mutex
	last   int                // number of the last request
	waits  map[int]chan reply // room 1 each
	begun  int                // the request that began what is served; 0: nothing is
	failed chan error         // of it; room 1
	refuse error              // it said that it cannot do anything
	broken error              // it said something else, or did not answer
}

func newLine(out io.Writer, cut func()) *line {
	return &line{out: out, cut: cut, most: maxLine, patience: answerTime, stopping: stopTime, ended: make(chan struct{}), waits: map[int]chan reply{}}
}

// read gives replies to those who wait, until no more come. It returns why: io.EOF is an end.
func (l *line) read(r io.Reader) error {
	for in := newLines(r, l.most); ; {
		var a reply
		err := in.next(&a)
		if err != nil && fault.CodeOf(err) != fault.Invalid { // not heard
			return err
		}
		l.mu.Lock()
		switch {
		case err != nil:
			l.broken = fault.New(fault.Corrupt, "what it says cannot be read (%v): is it a penstock of this release?", err)
		case a.ID == 0 && a.Of == 0:
			l.refuse = a.Error.fault()
		case a.ID == 0 && a.Of == l.begun && l.failed != nil:
			give(l.failed, a.Error.fault())
		case a.ID != 0 && l.waits[a.ID] != nil:
			l.waits[a.ID] <- a
			delete(l.waits, a.ID)
		}
		l.mu.Unlock()
		if err != nil {
			l.cut()
			return err
		}
	}
}

// end tells everybody that the other side is gone, once all that it said was heard. why is what is known of it.
func (l *line) end(why error) {
	l.mu.Lock()
	switch {
	case l.refuse != nil:
		l.died = l.refuse
	case l.broken != nil:
		l.died = fault.New(fault.WorkerLost, "%w: %w", ErrDied, l.broken)
	default:
		l.died = fault.New(fault.CodeOf(why), "%w: %w", ErrDied, why)
	}
	if l.failed != nil {
		give(l.failed, l.died)
	}
	l.mu.Unlock()
	close(l.ended)
}

// give hands over a failure, if it is the first.
func give(failed chan error, err error) {
	select {
	case failed <- err:
	default:
	}
}

// send sends a request; what comes of it is given to the channel, which is nil where it was not sent. failed is of what a start begins.
func (l *line) send(r request, failed chan error) (id int, answer chan reply, err error) {
	answer = make(chan reply, 1)
	l.mu.Lock()
	l.last++
	r.ID = l.last
	b, err := lineOf(r, l.most)
	if err != nil {
		l.mu.Unlock()
		return 0, nil, err
	}
	l.waits[r.ID] = answer
	if r.Start != nil { // what is said of it may come with the answer
		l.begun, l.failed = r.ID, failed
	}
	l.mu.Unlock()
	return r.ID, answer, l.write(b)
}

// ask sends a request and waits for its answer.
func (l *line) ask(ctx context.Context, r request) (reply, error) {
	id, answer, err := l.send(r, nil)
	if answer == nil {
		return reply{}, err
	}
	if err == nil {
		select {
		case a := <-answer:
			return a, a.Error.fault()
		case <-l.ended:
		case <-ctx.Done():
			l.mu.Lock()
			delete(l.waits, id)
			l.mu.Unlock()
			return reply{}, fault.WithCode(fault.Canceled, context.Cause(ctx))
		}
	}
	return l.lastWord(answer)
}

// lastWord waits for an answer, or the end.
func (l *line) lastWord(answer chan reply) (reply, error) {
	select {
	case a := <-answer:
		return a, a.Error.fault()
	case <-l.ended:
	}
	select { // what was heard last
	case a := <-answer:
		return a, a.Error.fault()
	default:
		return reply{}, l.died
	}
}

// write sends a line. Where it cannot the other side is ending, or is ended.
func (l *line) write(b []byte) error {
	l.writing.Lock()
	defer l.writing.Unlock()
	_, err := l.out.Write(b)
	if err != nil {
		l.cut()
	}
	return err
}

// tell sends a request that is not waited for.
func (l *line) tell(r request) {
	if b, err := lineOf(r, l.most); err == nil { // short
		_ = l.write(b) // a side that is gone is seen by who reads
	}
}

// giveUp cuts off a side that does not answer: a checkpoint waits for it, and all ranks for that.
func (l *line) giveUp(after time.Duration) {
	l.mu.Lock()
	l.broken = fault.New(fault.Stalled, "it did not answer for %v, and was given up", after)
	l.mu.Unlock()
	l.cut()
}

// forget lets go of what was begun: its failure is nobody's any more.
func (l *line) forget() {
	l.mu.Lock()
	l.begun, l.failed = 0, nil
	l.mu.Unlock()
}

func (l *line) gone() bool {
	select {
	case <-l.ended:
		return true
	default:
		return false
	}
}

func (l *line) listen(ctx context.Context, dir string) (string, error) {
	a, err := l.ask(ctx, request{Dir: dir, Listen: &struct{}{}})
	return a.Address, err
}

// start is Feeder.Start. A start that is given up is undone by the other side; one that does not do so is cut off.
func (l *line) start(ctx context.Context, dir string, st Start) (map[string]string, <-chan error, error) {
	failed := make(chan error, 1)
	_, answer, err := l.send(request{Dir: dir, Start: &st}, failed)
	if answer == nil {
		return nil, nil, err
	}
	over := ctx.Done()
	if err != nil {
		over = nil
	}
	var a reply
	select {
	case a = <-answer:
		err = a.Error.fault()
	case <-l.ended:
		a, err = l.lastWord(answer)
	case <-over:
		l.tell(request{Cancel: &struct{}{}})
		late := time.AfterFunc(l.stopping, func() { l.giveUp(l.stopping) })
		if a, err = l.lastWord(answer); fault.CodeOf(err) == fault.Canceled || l.gone() {
			err = fault.WithCode(fault.Canceled, context.Cause(ctx))
		}
		late.Stop()
	}
	if err != nil {
		l.forget()
		return nil, nil, err
	}
	return a.Sockets, failed, nil
}

func (l *line) ledger(ctx context.Context, name string) ([]byte, error) {
	late := time.AfterFunc(l.patience, func() { l.giveUp(l.patience) })
	defer late.Stop()
	a, err := l.ask(ctx, request{Ledger: &ledgerRequest{Name: name}})
	return a.Ledger, err
}

func (l *line) hold(ctx context.Context) (map[string]feed.Step, error) {
	a, err := l.ask(ctx, request{Hold: &struct{}{}})
	if err != nil { // it may come to it later
		l.tell(request{Mark: &markRequest{}})
	}
	return a.Steps, err
}

func (l *line) mark(ctx context.Context, steps map[string]feed.Step) error {
	_, err := l.ask(ctx, request{Mark: &markRequest{Steps: steps}})
	return err
}

// stop is Feeder.Stop; a side that does not come to an end is cut off.
func (l *line) stop() error {
	l.forget()
	late := time.AfterFunc(l.stopping, func() { l.giveUp(l.stopping) })
	defer late.Stop()
	l.tell(request{Cancel: &struct{}{}}) // a start that goes on
	_, err := l.ask(context.Background(), request{Stop: &struct{}{}})
	if l.gone() { // and whoever waits for its failure was told
		err = nil
	}
	return err
}
