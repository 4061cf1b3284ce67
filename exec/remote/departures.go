package remote

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/internal/fault"
)

// serviceLeft is what a process dials that makes no more runs: the connection alone says so.
const serviceLeft = "plan/left"

// goodbye is how long a process that ends tries to say so.
const goodbye = time.Second

// Departures is how the processes of a gang hear which of them have ended in order, and make no more runs: whoever waits for one of these would do so in vain, and its program does not make the same
// calls as theirs. Safe for concurrent use. Close it.
type Departures struct {
	g    *gang.Gang
	l    *gang.Listener
	work sync.WaitGroup

	mu      sync.Mutex
	gone    map[int]bool
	changed chan struct{} // closed when another one has gone
}

// NewDepartures begins to listen; every process of the gang does, before its first run.
func NewDepartures(g *gang.Gang) (*Departures, error) {
	l, err := g.Listen(serviceLeft)
	if err != nil {
		return nil, err
	}
	d := &Departures{g: g, l: l, gone: map[int]bool{}, changed: make(chan struct{})}
	d.work.Go(func() {
		for {
			c, node, err := l.Accept(context.Background())
			if err != nil {
				return // closed
			}
			c.Close()
			d.mu.Lock()
			d.gone[node] = true
			close(d.changed)
			d.changed = make(chan struct{})
			d.mu.Unlock()
		}
	})
	return d, nil
}

// Close ends the listening. Idempotent.
func (d *Departures) Close() error {
	d.l.Close()
	d.work.Wait()
	return nil
}

// Leave says that this process makes no more runs: to node 0, or, if it is that, to all that have not left before. It tries for a second.
func (d *Departures) Leave() {
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	var all sync.WaitGroup
	for node := range d.g.Nodes() {
		if node == d.g.Node() || d.g.Node() > 0 && node > 0 {
			continue
		}
		all.Go(func() {
			ctx, stop := d.watch(ctx, node) // who has gone need not know
			defer stop()
			if context.Cause(ctx) != nil {
				return
			}
			if c, err := d.g.Dial(ctx, node, serviceLeft); err == nil {
				c.Close()
			}
		})
	}
	all.Wait()
}

// departed is that a node has left whose work is waited for.
type departed struct{ node int }

func (d *departed) Error() string {
	return fmt.Sprintf("node %d has ended its program, so this plan would wait for it in vain: all nodes make the same calls, and where a call returns exec.ErrServed the program goes on to the next one", d.node)
}

// watch is ctx, which ends with *departed as its cause when a node has left: this one, or for -1 any. Call stop. d may be nil.
func (d *Departures) watch(ctx context.Context, node int) (_ context.Context, stop func()) {
	if d == nil {
		return ctx, func() {}
	}
	ctx, cancel := context.WithCancelCause(ctx)
	look := func() (changed chan struct{}, who int) {
		d.mu.Lock()
		defer d.mu.Unlock()
		for k := range d.g.Nodes() {
			if d.gone[k] && (node < 0 || node == k) {
				return d.changed, k
			}
		}
		return d.changed, -1
	}
	changed, who := look()
	if who >= 0 {
		cancel(&departed{who})
		return ctx, func() {}
	}
	var watching sync.WaitGroup
	watching.Go(func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-changed:
			}
			if changed, who = look(); who >= 0 {
				cancel(&departed{who})
				return
			}
		}
	})
	return ctx, func() {
		cancel(nil)
		watching.Wait()
	}
}

// departure is err, or why ctx ended if a node has left.
func departure(ctx context.Context, err error) error {
	if d, ok := context.Cause(ctx).(*departed); ok && err != nil {
		return fault.New(fault.Invalid, "%w", d)
	}
	return err
}

func isDeparture(err error) bool {
	_, ok := errors.AsType[*departed](err)
	return ok
}
