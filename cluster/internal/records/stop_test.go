package records

import (
	"bufio"
	"context"
	"fmt"
	mrand "math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// calls are all calls there are.
func calls(s *Store) map[string]func(context.Context) error {
	things := In[thing](s, "things")
	return map[string]func(context.Context) error{
		"get":       func(ctx context.Context) error { _, err := things.Get(ctx, "a"); return err },
		"list":      func(ctx context.Context) error { _, _, err := things.List(ctx, Cursor{}, 1); return err },
		"put":       func(ctx context.Context) error { _, err := things.Put(ctx, Record[thing]{ID: "p"}); return err },
		"delete":    func(ctx context.Context) error { return things.Delete(ctx, "a", 1) },
		"txn":       func(ctx context.Context) error { _, err := s.Txn(ctx, things.CheckOp("a", 1)); return err },
		"next":      func(ctx context.Context) error { _, err := s.Next(ctx, "n"); return err },
		"grant":     func(ctx context.Context) error { _, err := s.Grant(ctx, time.Second); return err },
		"keepalive": func(ctx context.Context) error { _, err := s.KeepAlive(ctx, 1); return err },
		"revoke":    func(ctx context.Context) error { return s.Revoke(ctx, 1) },
	}
}

// all makes all calls at once, each with a context of its own, and checks their codes and that none takes longer than most.
func all(t *testing.T, s *Store, ctx func() (context.Context, context.CancelFunc), code fault.Code, most time.Duration) {
	t.Helper()
	var wg sync.WaitGroup
	for name, call := range calls(s) {
		wg.Go(func() {
			ctx, cancel := ctx()
			defer cancel()
			began := time.Now()
			err := call(ctx)
			if took := time.Since(began); fault.CodeOf(err) != code || took > most {
				t.Errorf("%s: %v (%v) after %v", name, err, fault.CodeOf(err), took)
			}
		})
	}
	wg.Wait()
}

// Calls end with their contexts, and with the store's own time, while an external etcd is stopped; it goes on where it was.
func TestStopped(t *testing.T) {
	dir := t.TempDir()
	etcd, endpoint := external(t, dir)
	s := open(t, Options{Endpoints: []string{endpoint}, Timeout: 700 * time.Millisecond})
	things := In[thing](s, "things")
	put(t, things, Record[thing]{ID: "a"})
	w := watch(t, things, 0)
	w.expect(t, "reset", "changed a 0", "current")

	if err := etcd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	short := func() (context.Context, context.CancelFunc) {
		return context.WithTimeout(t.Context(), 100*time.Millisecond)
	}
	none := func() (context.Context, context.CancelFunc) { return t.Context(), func() {} }
	over := func() (context.Context, context.CancelFunc) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		return ctx, cancel
	}
	all(t, s, short, fault.Canceled, 1100*time.Millisecond)
	all(t, s, over, fault.Canceled, time.Second)
	all(t, s, none, fault.Unavailable, 1700*time.Millisecond)
	began := time.Now()
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	_, err := Open(ctx, Options{Endpoints: []string{endpoint}})
	cancel()
	wantCode(t, err, fault.Canceled)
	ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	_, err = Open(ctx, Options{Endpoints: []string{endpoint}, Username: "u", Password: "p"})
	cancel()
	wantCode(t, err, fault.Canceled)
	if took := time.Since(began); took > 2200*time.Millisecond {
		t.Errorf("Open took %v", took)
	}
	if err := etcd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	retry(t, func() error { _, err := things.Put(t.Context(), Record[thing]{ID: "b"}); return err })
	for w.next(t) != "changed b 0" { // p, perhaps, which was put while it was stopped; or that comes later
	}

	// It ends, and comes back.
	etcd.kill()
	all(t, s, none, fault.Unavailable, 1700*time.Millisecond)
	start(t, "etcd", "RECORDS_DIR="+dir, "RECORDS_SOCKET="+strings.TrimPrefix(endpoint, "unix://")).line(t)
	retry(t, func() error { _, err := things.Put(t.Context(), Record[thing]{ID: "c"}); return err })
	for got := w.next(t); got != "changed c 0"; got = w.next(t) {
		if got != "changed p 0" {
			t.Fatalf("the watch says %q", got)
		}
	}

	// Closing ends what is under way.
	if err := closeWatched(t, s); err != nil {
		t.Fatal(err)
	}
}

// retry calls f until it does not fail with Unavailable, or says that it is done already.
func retry(t *testing.T, f func() error) {
	t.Helper()
	for ctx := within(t); ; {
		err := f()
		if err == nil || fault.CodeOf(err) == fault.Exists {
			return
		}
		if wantCode(t, err, fault.Unavailable); ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}

// closeWatched closes a store while a watch runs, and checks that all ends in time.
func closeWatched(t *testing.T, s *Store) error {
	t.Helper()
	watching, done := make(chan struct{}), make(chan error, 1)
	go func() {
		done <- In[thing](s, "other").Watch(t.Context(), 0, func(e Event[thing]) error {
			if e.Kind == Current {
				close(watching)
			}
			return nil
		})
	}()
	<-watching
	began := time.Now()
	s.Close()
	if err := <-done; fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "the store is closed") {
		return fmt.Errorf("the watch ended with %w", err)
	}
	all(t, s, func() (context.Context, context.CancelFunc) { return t.Context(), func() {} }, fault.Unavailable, time.Second)
	if took := time.Since(began); took > 2*time.Second {
		return fmt.Errorf("closing took %v", took)
	}
	return nil
}

func TestClosed(t *testing.T) {
	s := open(t, Options{Dir: t.TempDir()})
	other := open(t, Options{Endpoints: []string{"unix://" + s.server.socket}}) // somebody else's, which goes on to watch
	watch(t, In[thing](other, "things"), 0).expect(t, "reset", "current")
	if err := closeWatched(t, s); err != nil {
		t.Fatal(err)
	}
}

// An external etcd that nobody runs: an error in time, that says where.
func TestNobodyThere(t *testing.T) {
	_, err := Open(t.Context(), Options{Endpoints: []string{"unix:///nowhere/etcd.sock"}, Timeout: 300 * time.Millisecond})
	wantCode(t, err, fault.Unavailable)
	has(t, err, "the store at unix:///nowhere/etcd.sock", "no answer in 300ms")
}

// Nothing that was acknowledged is lost when the process is killed; a transaction is there or not; no number is given twice.
func TestKilled(t *testing.T) {
	dir := t.TempDir()
	numbers, acked := map[int64]bool{}, map[string]bool{}
	for seed := range uint64(10) {
		rng := mrand.New(mrand.NewPCG(seed, 1))
		c := start(t, "writer", "RECORDS_DIR="+dir, "RECORDS_SEED="+fmt.Sprint(seed))
		for lines := 1 + rng.IntN(150); lines > 0; lines-- {
			take(t, c.line(t), numbers, acked)
		}
		c.Process.Kill()
		for c.Lines.Scan() { // what it said before it died counts
			take(t, c.Lines.Text(), numbers, acked)
		}
		c.kill()

		s, err := Open(t.Context(), Options{Dir: dir})
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		left, right := In[thing](s, "left"), In[thing](s, "right")
		for id := range acked {
			l, lerr := left.Get(t.Context(), id)
			r, rerr := right.Get(t.Context(), id)
			if lerr != nil || rerr != nil || l.Revision != r.Revision {
				t.Fatalf("seed %d: %s was acknowledged: %v, %v", seed, id, lerr, rerr)
			}
		}
		there, err := ids(left)
		if err != nil {
			t.Fatal(err)
		}
		for id := range there {
			if _, err := right.Get(t.Context(), id); err != nil {
				t.Fatalf("seed %d: half of a transaction: %v", seed, err)
			}
		}
		if both, err := ids(right); err != nil || len(both) != len(there) {
			t.Fatalf("seed %d: %d on one side, %d on the other, %v", seed, len(there), len(both), err)
		}
		s.Close()
	}
	t.Logf("%d numbers, %d transactions", len(numbers), len(acked))
}

func ids(table Table[thing]) (map[string]bool, error) {
	out := map[string]bool{}
	for at := (Cursor{}); ; {
		page, next, err := table.List(context.Background(), at, 1000)
		if err != nil {
			return nil, err
		}
		for _, r := range page {
			out[r.ID] = true
		}
		if at = next; at.After == "" {
			return out, nil
		}
	}
}

func take(t *testing.T, line string, numbers map[int64]bool, acked map[string]bool) {
	t.Helper()
	what, rest, _ := strings.Cut(line, " ")
	switch what {
	case "number":
		n, err := strconv.ParseInt(rest, 10, 64)
		if err != nil || numbers[n] {
			t.Fatalf("number %q is given twice", rest)
		}
		numbers[n] = true
	case "acked":
		acked[rest] = true
	default:
		t.Fatal(line)
	}
}

// childWriter writes until it is killed, from four goroutines.
func childWriter() {
	ctx, seed := context.Background(), os.Getenv("RECORDS_SEED")
	s, err := Open(ctx, Options{Dir: os.Getenv("RECORDS_DIR")})
	if err != nil {
		say("%v", err)
		return
	}
	left, right := In[thing](s, "left"), In[thing](s, "right")
	for g := range 4 {
		go func() {
			for i := 0; ; i++ {
				if n, err := s.Next(ctx, "n"); err == nil {
					say("number %d", n)
				}
				id := fmt.Sprintf("%s-%d-%d", seed, g, i)
				if _, err := s.Txn(ctx, left.PutOp(Record[thing]{ID: id}), right.PutOp(Record[thing]{ID: id})); err == nil {
					say("acked %s", id)
				}
			}
		}()
	}
	bufio.NewReader(os.Stdin).ReadByte()
}
