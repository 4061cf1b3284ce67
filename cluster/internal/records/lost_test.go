package records

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// proxy stands between a store and etcd's socket. While it is deaf, what the store says arrives, and what etcd answers does not.
type proxy struct {
	to    func(context.Context) (net.Conn, error)
	mu    sync.Mutex
	deaf  bool
	on    string // what makes it deaf
	down  bool   // nobody is let in
	conns map[net.Conn]bool
	wg    sync.WaitGroup
}

func newProxy(t *testing.T, to func(context.Context) (net.Conn, error)) *proxy {
	p := &proxy{to: to, conns: map[net.Conn]bool{}}
	t.Cleanup(func() { p.cut(true); p.wg.Wait() })
	return p
}

func (p *proxy) dial(ctx context.Context) (net.Conn, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.down {
		return nil, io.ErrClosedPipe
	}
	there, err := p.to(ctx)
	if err != nil {
		return nil, err
	}
	here, ours := net.Pipe()
	p.conns[here], p.conns[ours], p.conns[there] = true, true, true
	p.wg.Go(func() { io.Copy(io.MultiWriter(writerFunc(p.hear), there), ours); ours.Close(); there.Close() })
	p.wg.Go(func() {
		defer ours.Close()
		defer there.Close()
		b := make([]byte, 32<<10)
		for {
			n, err := there.Read(b)
			if err != nil {
				return
			}
			p.mu.Lock()
			deaf := p.deaf
			p.mu.Unlock()
			if !deaf {
				if _, err := ours.Write(b[:n]); err != nil {
					return
				}
			}
		}
	})
	return here, nil
}

// setDeaf makes it deaf, or once the store has said a text.
func (p *proxy) setDeaf(on ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deaf, p.on = len(on) == 0, strings.Join(on, "")
}

// hear passes on what the store says.
func (p *proxy) hear(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.on != "" && bytes.Contains(b, []byte(p.on)) {
		p.deaf, p.on = true, ""
	}
	return len(b), nil
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(b []byte) (int, error) { return f(b) }

// cut ends all connections; down: and lets nobody in again.
func (p *proxy) cut(down bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.deaf, p.on, p.down = false, "", down
	for c := range p.conns {
		c.Close()
	}
	clear(p.conns)
}

// Every write is done once, and said to be done, though its answer was lost.
func TestLostAnswer(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	p := newProxy(t, s.server.dial)
	far := open(t, Options{Endpoints: []string{"proxy"}, dial: p.dial})
	ctx, here, there := within(t), In[thing](s, "things"), In[thing](far, "things")

	// lose runs op, waits until happened is true in etcd, calls meanwhile, and cuts the connection before the answer. The answers to what came before on are not lost.
	lose := func(op func() error, happened func() bool, meanwhile func(), on ...string) error {
		t.Helper()
		p.setDeaf(on...)
		done := make(chan error, 1)
		go func() { done <- op() }()
		for !happened() {
			select {
			case err := <-done:
				t.Fatalf("it ended without an answer: %v", err)
			case <-ctx.Done():
				t.Fatal("it did not happen")
			case <-time.After(time.Millisecond):
			}
		}
		if meanwhile != nil {
			meanwhile()
		}
		p.cut(false)
		return <-done
	}
	value := func(id string, n int) func() bool {
		return func() bool { r, err := here.Get(ctx, id); return err == nil && r.Value.N == n }
	}
	gone := func(id string) func() bool {
		return func() bool { _, err := here.Get(ctx, id); return fault.CodeOf(err) == fault.NotFound }
	}

	var a Record[thing]
	if err := lose(func() (err error) {
		a, err = there.Put(ctx, Record[thing]{ID: "a", Value: thing{N: 1}})
		return err
	}, value("a", 1), nil); err != nil {
		t.Fatalf("create: %v", err)
	}
	first := a.Revision
	a.Value.N = 2
	if err := lose(func() (err error) { a, err = there.Put(ctx, a); return err }, value("a", 2), nil); err != nil {
		t.Fatalf("put: %v", err)
	}
	if got, err := here.Get(ctx, "a"); err != nil || got != a || a.Revision <= first {
		t.Fatalf("%+v, %v, want %+v", got, err, a)
	}
	b := put(t, here, Record[thing]{ID: "b"})
	if err := lose(func() error {
		_, err := far.Txn(ctx, there.PutOp(Record[thing]{ID: "c", Value: thing{N: 1}}), there.DeleteOp("b", b.Revision), there.CheckOp("a", a.Revision))
		return err
	}, value("c", 1), nil); err != nil {
		t.Fatalf("txn: %v", err)
	}
	if err := lose(func() error { return there.Delete(ctx, "a", a.Revision) }, gone("a"), nil); err != nil {
		t.Fatalf("delete: %v", err)
	}

	// Another writer changed the record before the call could ask again: it must not be told that its own value is there.
	err := lose(func() error {
		_, err := there.Put(ctx, Record[thing]{ID: "d", Value: thing{"far", 1}})
		return err
	}, value("d", 1), func() {
		r, err := here.Get(ctx, "d")
		if err != nil {
			t.Fatal(err)
		}
		r.Value.Name = "here"
		put(t, here, r)
	})
	wantCode(t, err, fault.Exists)
	// And equal bytes of another writer are not its own.
	put(t, here, Record[thing]{ID: "e", Value: thing{"same", 1}})
	p.cut(false)
	_, err = there.Put(ctx, Record[thing]{ID: "e", Value: thing{"same", 1}})
	wantCode(t, err, fault.Exists)

	// Numbers are not given twice; one may stay away.
	seq, last := In[int64](s, "seq"), int64(0)
	for i := range 4 {
		var n int64
		next := func() (err error) { n, err = far.Next(ctx, "n"); return err }
		if i%2 == 0 { // the answer to the read is lost
			p.setDeaf()
			done := make(chan error, 1)
			go func() { done <- next() }()
			p.cut(false)
			err = <-done
		} else { // that to the write
			err = lose(next, func() bool { r, err := seq.Get(ctx, "n"); return err == nil && r.Value > last }, nil, `"w":`)
		}
		if err != nil || n <= last {
			t.Fatalf("number %d after %d, %v", n, last, err)
		}
		last = n
	}

	// Leases.
	leases := func() int {
		r, err := s.client.Leases(ctx)
		if err != nil {
			t.Fatal(err)
		}
		return len(r.Leases)
	}
	var l Lease
	if err := lose(func() (err error) { l, err = far.Grant(ctx, time.Minute); return err }, func() bool { return leases() == 1 }, nil); err != nil {
		t.Fatal(err)
	}
	if leases() != 1 || l.TTL != time.Minute {
		t.Fatalf("%d leases, %v", leases(), l)
	}
	if ttl, err := far.KeepAlive(ctx, l.ID); err != nil || ttl != time.Minute {
		t.Fatal(ttl, err)
	}
	if err := lose(func() error { return far.Revoke(ctx, l.ID) }, func() bool { return leases() == 0 }, nil); err != nil {
		t.Fatal(err)
	}
}

// When its time is over before it could ask again, a call says that a write may have happened; what it wrote is there once.
func TestLostForGood(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	p := newProxy(t, s.server.dial)
	far := open(t, Options{Endpoints: []string{"proxy"}, dial: p.dial, Timeout: 300 * time.Millisecond})
	ctx, here, there := within(t), In[thing](s, "things"), In[thing](far, "things")
	p.setDeaf()
	_, err := there.Put(ctx, Record[thing]{ID: "a", Value: thing{N: 1}})
	wantCode(t, err, fault.Unavailable)
	has(t, err, "writing things/a (it may have happened: read it again)", "no answer in 300ms")
	p.cut(true)
	a, err := here.Get(ctx, "a")
	if err != nil || a.Value.N != 1 {
		t.Fatal(a, err)
	}
	_, err = there.Put(ctx, a) // nobody lets it in
	wantCode(t, err, fault.Unavailable)
	if got, err := here.Get(ctx, "a"); err != nil || got != a {
		t.Fatal(got, err)
	}
	p.mu.Lock()
	p.down = false
	p.mu.Unlock()
	_, err = there.Put(ctx, Record[thing]{ID: "a", Value: thing{N: 1}}) // again, as it was
	for fault.CodeOf(err) == fault.Unavailable {                        // it dials again
		_, err = there.Put(ctx, Record[thing]{ID: "a", Value: thing{N: 1}})
	}
	wantConflict(t, err, Conflict{"things", "a", 0, a.Revision})
}

// A watch goes on where it was after its connection broke, and misses nothing.
func TestWatchThroughCuts(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	p := newProxy(t, s.server.dial)
	far := open(t, Options{Endpoints: []string{"proxy"}, dial: p.dial})
	things := In[thing](s, "things")
	w := watch(t, In[thing](far, "things"), 0)
	w.expect(t, "reset", "current")
	var r Record[thing]
	for i := range 20 {
		r.ID, r.Value.N = "a", i
		r = put(t, things, r)
		if i%3 == 0 {
			p.cut(false)
		}
		if i%5 == 4 {
			for j := i - 4; j <= i; j++ {
				w.expect(t, fmt.Sprint("changed a ", j))
			}
		}
	}
}
