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

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/feed"
)

// Local serves sets from this process, on sockets in dir: a folder of mode 0700 with a short path, which is made where it is not there and
// belongs to the caller.
func Local(dir string, sets []Set) Feeder { return &local{dir: dir, sets: sets} }

// socketPrefix begins the names of sockets.
const socketPrefix = "d-"

type local struct {
	dir  string
	sets []Set

	mu     sync.Mutex
	serves *serving // between Start and Stop
}

// serving is what goes on between Start and Stop.
type serving struct {
	ranks  int
	ctx    context.Context
	stop   context.CancelFunc
	done   sync.WaitGroup
	failed chan error // room 1: the first
	notice chan struct{}
	once   sync.Once // closes notice

	ledgers map[string]*shard.Ledger // of training sets; constant

	mu  sync.Mutex
	err error // of closing what was served
}

func (f *local) Start(ctx context.Context, ranks int, at map[string]At) (map[string]string, <-chan error, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.serves != nil {
		return nil, nil, fault.New(fault.Internal, "a feeder that serves is started again: stop it first")
	}
	if err := check(f.sets, ranks, at); err != nil {
		return nil, nil, err
	}
	s := &serving{ranks: ranks, failed: make(chan error, 1), notice: make(chan struct{}), ledgers: map[string]*shard.Ledger{}}
	s.ctx, s.stop = context.WithCancel(context.WithoutCancel(ctx))
	unbind := context.AfterFunc(ctx, s.stop)
	all, err := s.open(f.sets, at)
	if !unbind() && err == nil { // s.ctx has ended, and with it what was opened
		err = fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
	sockets := map[string]string{}
	listeners := make([]*net.UnixListener, len(f.sets))
	once := rand.Uint32() // a worker of an earlier group finds no socket of a later one
	for i := range f.sets {
		if err != nil {
			break
		}
		path := filepath.Join(f.dir, fmt.Sprintf("%s%08x-%d", socketPrefix, once, i))
		listeners[i], err = feed.Listen(path)
		sockets[f.sets[i].Name] = path
	}
	if err != nil {
		s.stop()
		for i := range all {
			err = errors.Join(err, closeAll(all[i]))
			hangUp(listeners[i])
		}
		return nil, nil, err
	}
	for i, set := range f.sets {
		if !set.Eval {
			s.ledgers[set.Name] = all[i][0].Ledger()
		}
	}
	for i, set := range f.sets {
		s.done.Go(func() { s.serve(set, listeners[i], all[i]) })
	}
	f.serves = s
	return sockets, s.failed, nil
}

// open opens all sets side by side. What it returns is to be closed also where there is an error: the first of a
// set that was not only canceled because of it.
func (s *serving) open(sets []Set, at map[string]At) ([][]*shard.Iterator, error) {
	all := make([][]*shard.Iterator, len(sets))
	errs := make([]error, len(sets))
	var g sync.WaitGroup
	for i, set := range sets {
		g.Go(func() {
			var from *At
			if st, ok := at[set.Name]; ok {
				from = &st
			}
			if all[i], errs[i] = s.openOne(set, from); errs[i] != nil {
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

func (s *serving) openOne(set Set, at *At) ([]*shard.Iterator, error) {
	its, err := set.Open(s.ctx, s.ranks, at)
	if err == nil && len(its) != s.ranks {
		err = fault.New(fault.Internal, "%d iterators for %d ranks", len(its), s.ranks)
	}
	if errors.Is(err, shard.ErrOtherJob) {
		err = &refused{set.Name, err}
	}
	return its, named(set.Name, err)
}

// serve serves a set until Stop or a failure; a training set also until all ranks have given it up.
func (s *serving) serve(set Set, l *net.UnixListener, its []*shard.Iterator) {
	defer hangUp(l)
	for {
		err := feed.Serve(s.ctx, l, its, s.options(set))
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
			its, err = s.openOne(set, nil)
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

// options of a set's server. Ranks that come late are the controller's affair, not the server's.
func (s *serving) options(set Set) *feed.Options {
	o := &feed.Options{Wait: -1, Again: set.Eval}
	if !set.Eval {
		o.Notice = s.notice
	}
	return o
}

func (s *serving) fail(err error) {
	select {
	case s.failed <- err:
	default:
	}
}

func (f *local) Ledger(_ context.Context, name string) ([]byte, error) {
	f.mu.Lock()
	s := f.serves
	f.mu.Unlock()
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

func (f *local) Notice() {
	f.mu.Lock()
	s := f.serves
	f.mu.Unlock()
	if s != nil {
		s.once.Do(func() { close(s.notice) })
	}
}

func (f *local) Stop() error {
	f.mu.Lock()
	s := f.serves
	f.serves = nil
	f.mu.Unlock()
	if s == nil {
		return nil
	}
	s.stop()
	s.done.Wait()
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

func closeAll(its []*shard.Iterator) error {
	var err error
	for _, it := range its {
		err = errors.Join(err, it.Close())
	}
	return err
}

// notCanceled is what is in err beside cancellations.
func notCanceled(err error) error {
	if all, ok := err.(interface{ Unwrap() []error }); ok {
		var rest error
		for _, err := range all.Unwrap() {
			rest = errors.Join(rest, notCanceled(err))
		}
		return rest
	}
	if fault.CodeOf(err) == fault.Canceled {
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
