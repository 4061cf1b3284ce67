package feeder

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/penstock-data/penstock/cluster/gang"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/exchange"
	"github.com/penstock-data/penstock/shard/feed"
)

// Local serves sets from this process, on sockets in dir: a folder of mode 0700 with a short path, which is made where it is not there and
// belongs to the caller. g is how it meets the feeders of other nodes, and stays the caller's; nil: it is of no gang. All nodes have the same sets in the same order.
func Local(dir string, sets []Set, g *gang.Gang) Feeder {
	return &local{dir: dir, sets: sets, join: func() (*gang.Gang, error) { return g, nil }}
}

// socketPrefix begins the names of sockets.
const socketPrefix = "d-"

type local struct {
	dir  string
	sets []Set
	join func() (*gang.Gang, error) // called once

	mu     sync.Mutex
	gang   *gang.Gang // from Listen on
	serves *serving   // from Start to Stop
}

// serving is what goes on between Start and Stop.
type serving struct {
	Start
	gang   *gang.Gang
	ctx    context.Context
	stop   context.CancelFunc
	up     chan struct{} // closed when Start is through
	done   sync.WaitGroup
	failed chan error // room 1: the first

	// of training sets; constant once up
	notices map[string]*feed.Notice
	ledgers map[string]*shard.Ledger

	mu  sync.Mutex
	err error // of closing what was served
}

// opening is an open set.
type opening struct {
	its      []*shard.Iterator
	exchange *exchange.Exchange // with other nodes; nil: none
	n        int                // how often it was opened since Start
}

// close closes all of it that was not closed.
func (o *opening) close() error {
	var err error
	for _, it := range o.its {
		err = errors.Join(err, it.Close())
	}
	o.its = nil
	o.part()
	return err
}

// part closes the exchange, behind the iterators. What the others did not get they miss themselves.
func (o *opening) part() {
	if o.exchange != nil {
		_ = o.exchange.Close()
		o.exchange = nil
	}
}

func (f *local) Listen(context.Context) (string, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.gang == nil {
		g, err := f.join()
		if err != nil || g == nil {
			return "", err
		}
		f.gang = g
	}
	return f.gang.Address(), nil
}

func (f *local) Start(ctx context.Context, st Start) (map[string]string, <-chan error, error) {
	if err := check(f.sets, st); err != nil {
		return nil, nil, err
	}
	s := &serving{Start: st, up: make(chan struct{}), failed: make(chan error, 1), notices: map[string]*feed.Notice{}, ledgers: map[string]*shard.Ledger{}}
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	f.mu.Lock()
	s.gang = f.gang
	if f.serves != nil {
		f.mu.Unlock()
		return nil, nil, fault.New(fault.Internal, "a feeder that serves is started again: stop it first")
	}
	f.serves = s
	f.mu.Unlock()
	defer close(s.up)
	sockets, err := s.begin(ctx, f.dir, f.sets)
	if err != nil {
		s.stop()
		f.mu.Lock()
		f.serves = nil
		f.mu.Unlock()
		return nil, nil, err
	}
	return sockets, s.failed, nil
}

// begin opens all sets, and begins to serve them. After an error nothing is open.
func (s *serving) begin(ctx context.Context, dir string, sets []Set) (map[string]string, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	unbind := context.AfterFunc(ctx, s.stop)
	all, err := s.open(sets)
	if !unbind() && err == nil { // s.ctx has ended, and with it what was opened
		err = fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
	sockets := map[string]string{}
	listeners := make([]*net.UnixListener, len(sets))
	once := rand.Uint32() // a worker of an earlier group finds no socket of a later one
	for i, set := range sets {
		if err != nil {
			break
		}
		if all[i].its[0].Rank() < 0 { // nobody reads here
			continue
		}
		path := filepath.Join(dir, fmt.Sprintf("%s%08x-%d", socketPrefix, once, i))
		listeners[i], err = feed.Listen(path)
		sockets[set.Name] = path
	}
	if err != nil {
		s.stop()
		for i := range all {
			err = errors.Join(err, all[i].close())
			hangUp(listeners[i])
		}
		return nil, err
	}
	for i, set := range sets {
		if !set.Eval {
			s.ledgers[set.Name], s.notices[set.Name] = all[i].its[0].Ledger(), &feed.Notice{}
		}
	}
	for i, set := range sets {
		s.done.Go(func() { s.serve(i, set, listeners[i], all[i]) })
	}
	return sockets, nil
}

// check reports nodes that this one is not of.
func (s *serving) check() error {
	switch n := s.Nodes; {
	case n == nil:
		return nil
	case s.gang == nil:
		return fault.New(fault.Invalid, "data for the ranks of several nodes, but this process is of no gang, or does not listen")
	case len(n.Addresses) != s.gang.Nodes():
		return fault.New(fault.Internal, "the addresses of %d feeders for a gang of %d nodes", len(n.Addresses), s.gang.Nodes())
	}
	return nil
}

// open opens all sets side by side. What it returns is to be closed also where there is an error: the first of a
// set that was not only canceled because of it.
func (s *serving) open(sets []Set) ([]*opening, error) {
	all := make([]*opening, len(sets))
	errs := make([]error, len(sets))
	var g sync.WaitGroup
	for i, set := range sets {
		all[i] = &opening{}
		g.Go(func() {
			if errs[i] = s.openOne(i, set, all[i]); errs[i] != nil {
				s.stop()
			}
		})
	}
	g.Wait()
	var canceled error
	for _, err := range errs {
		if err != nil && fault.CodeOf(err) != fault.Canceled {
			return all, err
		}
		canceled = errors.Join(canceled, err)
	}
	return all, canceled
}

// openOne opens set i, the first time where Start says. Over several nodes it meets the others: all of them come to the n-th opening, as the one before
// ended on all when the last rank of all gave it up.
func (s *serving) openOne(i int, set Set, o *opening) error {
	var at *At
	if from, ok := s.At[set.Name]; ok && o.n == 0 {
		at = &from
	}
	var nodes *shard.Nodes
	want := s.Ranks
	if n := s.Nodes; n != nil {
		x, err := exchange.Connect(s.ctx, s.gang, fmt.Sprintf("exchange/%s/%d/%d", n.Opening, i, o.n), n.Addresses)
		if err != nil {
			return named(set.Name, &marked{err, shard.ErrElsewhere})
		}
		o.exchange, nodes = x, &shard.Nodes{Exchange: x, Ranks: n.Ranks, Lanes: n.Lanes}
		want = 0
		for _, node := range n.Ranks {
			if node == s.gang.Node() {
				want++
			}
		}
		want = max(want, 1) // the one that only feeds others
	}
	o.n++
	its, err := set.Open(s.ctx, s.Ranks, at, nodes)
	if o.its = its; err == nil && len(its) != want {
		err = fault.New(fault.Internal, "%d iterators for %d ranks", len(its), want)
	}
	if errors.Is(err, shard.ErrOtherJob) {
		err = &refused{set.Name, err}
	}
	return named(set.Name, err)
}

// serve serves set i until Stop or a failure; a training set also until all ranks have given it up.
func (s *serving) serve(i int, set Set, l *net.UnixListener, o *opening) {
	defer hangUp(l)
	for {
		err := s.serveOne(set, l, o.its) // which closes them
		o.part()
		if s.ctx.Err() != nil {
			s.mu.Lock()
			s.err = errors.Join(s.err, named(set.Name, notCanceled(err)))
			s.mu.Unlock()
			return
		}
		if err == nil && !set.Eval {
			return
		}
		if err == nil {
			if err = s.openOne(i, set, o); err != nil {
				err = errors.Join(err, o.close())
			}
		} else {
			err = named(set.Name, err)
		}
		if err != nil {
			if s.ctx.Err() == nil {
				s.fail(err)
			}
			return
		}
	}
}

// serveOne serves an opening until all ranks have given it up. Ranks that come late are the controller's affair, not the server's.
func (s *serving) serveOne(set Set, l *net.UnixListener, its []*shard.Iterator) error {
	if l == nil {
		err := its[0].Feed(s.ctx)
		return errors.Join(err, its[0].Close())
	}
	return feed.Serve(s.ctx, l, its, &feed.Options{Wait: -1, Again: set.Eval, Notice: s.notices[set.Name], Mask: set.Mask})
}

func (s *serving) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}

// serving is what is served; nil: nothing, or not yet.
func (f *local) serving() *serving {
	f.mu.Lock()
	defer f.mu.Unlock()
	if s := f.serves; s != nil {
		select {
		case <-s.up:
			return s
		default:
		}
	}
	return nil
}

func (f *local) Ledger(_ context.Context, name string) ([]byte, error) {
	s := f.serving()
	if s == nil {
		return nil, fault.New(fault.Invalid, "no data set is served")
	}
	l := s.ledgers[name]
	if l == nil {
		return nil, fault.New(fault.NotFound, "there is no training set %q; have %s", name, quoted(keys(s.ledgers)))
	}
	var b bytes.Buffer
	_, err := l.WriteTo(&b)
	return b.Bytes(), named(name, err)
}

func (f *local) Hold(context.Context) (map[string]feed.Step, error) {
	s := f.serving()
	if s == nil {
		return nil, nil
	}
	steps := map[string]feed.Step{}
	for name, n := range s.notices {
		steps[name] = n.Hold()
	}
	return steps, nil
}

func (f *local) Mark(_ context.Context, steps map[string]feed.Step) error {
	s := f.serving()
	if s == nil {
		return nil
	}
	var err error
	for name, n := range s.notices {
		if at, ok := steps[name]; ok {
			err = errors.Join(err, named(name, n.Mark(at)))
		} else {
			n.Release()
		}
	}
	return err
}

func (f *local) Stop() error {
	f.mu.Lock()
	s := f.serves
	f.mu.Unlock()
	if s == nil {
		return nil
	}
	s.stop()
	<-s.up
	s.done.Wait()
	f.mu.Lock()
	f.serves = nil
	f.mu.Unlock()
	return s.err
}

func (f *local) Close() error { return f.Stop() }

// hangUp closes a listener, and removes what feed.Listen left beside it.
func hangUp(l *net.UnixListener) {
	if l != nil {
		_ = l.Close() // removes the socket
		_ = os.Remove(l.Addr().String() + ".lock")
	}
}

// notCanceled is what is in err beside cancellations, and what came of those of other nodes.
func notCanceled(err error) error {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		var rest error
		for _, err := range all.Unwrap() {
			rest = errors.Join(rest, notCanceled(err))
		}
		return rest
	}
	if fault.CodeOf(err) == fault.Canceled || errors.Is(err, shard.ErrElsewhere) {
		return nil
	}
	return err
}

// named says which set an error is about.
func named(name string, err error) error {
	if err == nil {
		return nil
	}
	return fault.New(fault.CodeOf(err), "data set %q: %w", name, err)
}

func keys[V any](m map[string]V) (names []string) {
	for name := range m {
		names = append(names, name)
	}
	return names
}

// quoted lists names.
func quoted(names []string) string {
	if len(names) == 0 {
		return "none"
	}
	slices.Sort(names)
	var b strings.Builder
	for i, n := range names {
		if i > 0 {
			b.WriteString(", ")
		}
		fmt.Fprintf(&b, "%q", n)
	}
	return b.String()
}
