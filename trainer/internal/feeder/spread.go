package feeder

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/feed"
)

const (
	// noticeTime is how long one feeder may take for half a notice: the ranks of all others wait meanwhile.
	noticeTime = 10 * time.Second
	// causeTime is how long after the first failure that is about another node that node's own is waited for.
	causeTime = time.Second
)

// Spread is the feeders of all nodes of a run as one. Safe for concurrent use as a [Feeder] is.
type Spread struct {
	fs     []Feeder
	nodeOf []int
	lanes  []int
	run    string // no other Spread has it

	notices sync.Mutex // one notice at a time

	mu       sync.Mutex
	openings int
	off      chan struct{} // closed to end watch; nil: nothing is served
	watch    sync.WaitGroup
}

// Over is fs as one: the feeder of each node, the node of each rank, and the nodes that read (Nodes.Lanes). With one feeder there are no nodes to speak of, and neither is looked at.
func Over(fs []Feeder, nodeOf, lanes []int) *Spread {
	return &Spread{fs: fs, nodeOf: nodeOf, lanes: lanes, run: rand.Text()}
}

// Start starts all feeders for so many ranks; at is Start.At. It returns the sockets of each node. The first failure of a feeder is the failure: it says of which node; one that
// only says that another node is gone gives way to what that node's feeder says. All else is as with [Feeder.Start]: where one feeder does not start, none is left serving.
func (s *Spread) Start(ctx context.Context, ranks int, at map[string]At) (sockets []map[string]string, failed <-chan error, err error) {
	st := Start{Ranks: ranks, At: at}
	sockets = make([]map[string]string, len(s.fs))
	if len(s.fs) == 1 {
		sockets[0], failed, err = s.fs[0].Start(ctx, st)
		return sockets, failed, err
	}
	if len(s.nodeOf) != ranks {
		return nil, nil, fault.New(fault.Internal, "the nodes of %d ranks are known, there are %d", len(s.nodeOf), ranks)
	}
	s.mu.Lock()
	s.openings++
	st.Nodes = &Nodes{Ranks: s.nodeOf, Lanes: s.lanes, Addresses: make([]string, len(s.fs)), Opening: fmt.Sprintf("%s.%d", s.run, s.openings)}
	s.mu.Unlock()
	err = s.each(ctx, func(ctx context.Context, k int, f Feeder) (err error) {
		st.Nodes.Addresses[k], err = f.Listen(ctx)
		if err == nil && st.Nodes.Addresses[k] == "" {
			err = fault.New(fault.Invalid, "what feeds it is of no gang, so other nodes cannot reach it: is PENSTOCK_GANG in its environment?")
		}
		return err
	})
	if err != nil {
		return nil, nil, err
	}
	failures := make([]<-chan error, len(s.fs))
	err = s.each(ctx, func(ctx context.Context, k int, f Feeder) (err error) {
		sockets[k], failures[k], err = f.Start(ctx, st)
		return err
	})
	if err != nil {
		return nil, nil, errors.Join(err, s.all(func(k int, f Feeder) error {
			if failures[k] == nil {
				return nil
			}
			return f.Stop()
		}))
	}
	first, off := make(chan error, 1), make(chan struct{})
	s.mu.Lock()
	s.off = off
	s.mu.Unlock()
	heard := make(chan error, len(s.fs))
	for k, c := range failures {
		s.watch.Go(func() {
			select {
			case err := <-c:
				heard <- ofNode(k, err)
			case <-off:
			}
		})
	}
	s.watch.Go(func() { cause(heard, first, off) })
	return sockets, first, nil
}

// cause gives first what failed first of what is heard, or what that came of.
func cause(heard <-chan error, first chan<- error, off <-chan struct{}) {
	var err error
	var late <-chan time.Time
	for err == nil || errors.Is(err, shard.ErrElsewhere) {
		select {
		case next := <-heard:
			if err == nil {
				late = time.After(causeTime)
			}
			if err == nil || !errors.Is(next, shard.ErrElsewhere) {
				err = next
			}
			continue
		case <-late:
		case <-off:
			return
		}
		break
	}
	first <- err
}

// ofNode says of which node an error is.
func ofNode(k int, err error) error {
	if err == nil {
		return nil
	}
	return fault.New(fault.CodeOf(err), "node %d: %w", k, err)
}

// each does something with all feeders at once, and waits for all. The first failure is returned; it ends the context of the others.
func (s *Spread) each(ctx context.Context, do func(ctx context.Context, k int, f Feeder) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var g sync.WaitGroup
	var once sync.Once
	var first error
	for k, f := range s.fs {
		g.Go(func() {
			if err := do(ctx, k, f); err != nil {
				once.Do(func() {
					first = ofNode(k, err)
					cancel(first)
				})
			}
		})
	}
	g.Wait()
	return first
}

// all does something with all feeders at once, whatever becomes of it with others.
func (s *Spread) all(do func(k int, f Feeder) error) error {
	errs := make([]error, len(s.fs))
	var g sync.WaitGroup
	for k, f := range s.fs {
		g.Go(func() {
			if errs[k] = do(k, f); len(s.fs) > 1 {
				errs[k] = ofNode(k, errs[k])
			}
		})
	}
	g.Wait()
	return errors.Join(errs...)
}

// Ledger is Feeder.Ledger, of node 0: all nodes have the same.
func (s *Spread) Ledger(ctx context.Context, name string) ([]byte, error) {
	return s.fs[0].Ledger(ctx, name)
}

// Notice tells the ranks of every training set that they are to stop, all of them at the same step: the latest of those that no rank of a node was sent. Ranks get nothing new
// while that is agreed. After an error, which is that of a feeder, nobody was told, or the feeder is gone.
func (s *Spread) Notice(ctx context.Context) error {
	s.notices.Lock()
	defer s.notices.Unlock()
	var mu sync.Mutex
	var from map[string]feed.Step
	limited, cancel := context.WithTimeout(ctx, noticeTime)
	defer cancel()
	err := s.each(limited, func(ctx context.Context, _ int, f Feeder) error {
		steps, err := f.Hold(ctx)
		mu.Lock()
		defer mu.Unlock()
		for name, at := range steps {
			if from == nil {
				from = map[string]feed.Step{}
			}
			if last, ok := from[name]; !ok || last.Before(at) {
				from[name] = at
			}
		}
		return err
	})
	if err != nil {
		from = nil
	}
	final, cancelMark := context.WithTimeout(context.WithoutCancel(ctx), noticeTime)
	defer cancelMark()
	return errors.Join(err, s.all(func(_ int, f Feeder) error { return f.Mark(final, from) }))
}

// Stop is Feeder.Stop, of all.
func (s *Spread) Stop() error {
	s.ignore()
	return s.all(func(_ int, f Feeder) error { return f.Stop() })
}

// Close is Feeder.Close, of all.
func (s *Spread) Close() error {
	s.ignore()
	return s.all(func(_ int, f Feeder) error { return f.Close() })
}

// ignore ends the watch over what is served: what fails from here on is nobody's.
func (s *Spread) ignore() {
	s.mu.Lock()
	off := s.off
	s.off = nil
	s.mu.Unlock()
	if off != nil {
		close(off)
	}
	s.watch.Wait()
}
