package exec_test

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const mib = 1 << 20

func TestLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := exec.NewBudget(10 * mib)
		defer b.Close()
		ctx := t.Context()
		must := func(l *exec.Lease, err error) *exec.Lease {
			t.Helper()
			if err != nil {
				t.Fatal(err)
			}
			return l
		}
		big := must(b.Acquire(ctx, "big", 50*mib)) // alone, anything goes
		var order []string
		var mu sync.Mutex
		var wg sync.WaitGroup
		for _, w := range []struct {
			name string
			n    int64
		}{{"first", 4 * mib}, {"second", 8 * mib}, {"third", 5 * mib}} {
			wg.Go(func() {
				l := must(b.Acquire(ctx, w.name, w.n))
				mu.Lock()
				order = append(order, w.name)
				mu.Unlock()
				time.Sleep(time.Second)
				l.Release()
			})
			synctest.Wait()
		}
		if b.TryGrow(big, 1) {
			t.Error("grew while others wait")
		}
		big.Release()
		big.Release()
		synctest.Wait()
		mu.Lock()
		got := strings.Join(order, " ")
		mu.Unlock()
		if got != "first" { // third fits beside it, but is not next in line
			t.Errorf("admitted %q", got)
		}
		wg.Wait()
		if got := strings.Join(order, " "); got != "first second third" {
			t.Errorf("admitted %q", got)
		}
		if b.Used() != 0 || b.Leased() != 0 || b.Peak() != 50*mib {
			t.Errorf("used %d leased %d peak %d", b.Used(), b.Leased(), b.Peak())
		}
	})
}

func TestAcquireCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := exec.NewBudget(10 * mib)
		defer b.Close()
		l, _ := b.Acquire(t.Context(), "sort", 9*mib)
		why := errors.New("why")
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, why)
		defer cancel()
		_, err := b.Acquire(ctx, "join", 2*mib)
		if fault.CodeOf(err) != fault.Canceled || !errors.Is(err, why) || !strings.Contains(err.Error(), "9.0 MiB of 10 MiB held by sort (9.0 MiB)") {
			t.Errorf("got %v", err)
		}
		l.Release()
		if l, err := b.Acquire(t.Context(), "join", 10*mib); err != nil {
			t.Error(err)
		} else {
			l.Release()
		}
	})
}

func TestAccountPriorities(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := exec.NewBudget(64 * mib)
		defer b.Close()
		a, z := b.Account(t.Context(), "ahead"), b.Account(t.Context(), "head")
		p := a.Allocate(40 * mib)
		got := make(chan []byte)
		try := func(a *exec.Account, n int) bool {
			go func() { got <- a.Allocate(n) }()
			synctest.Wait()
			return !a.Waiting()
		}
		if try(a, 16*mib) { // 56 of 64, but a quarter is kept
			t.Fatal("ahead got the reserve")
		}
		if !strings.HasPrefix(b.Holders(), "40 MiB of 64 MiB held by ahead (40 MiB)") {
			t.Error(b.Holders())
		}
		z.SetPriority(exec.First)
		if !try(z, 20*mib) {
			t.Fatal("the head waits within the limit")
		}
		q := <-got
		if try(z, 20*mib) {
			t.Fatal("the head is over the limit without need")
		}
		z.SetPriority(exec.Overdraw)
		r := <-got // the head's
		if b.Used() != 80*mib || b.Allocated() != 80*mib || b.Peak() != 80*mib {
			t.Errorf("used %d allocated %d", b.Used(), b.Allocated())
		}
		z.Free(q)
		z.Free(r)
		synctest.Wait()
		if !a.Waiting() {
			t.Fatal("56 MiB of 64 are more than three quarters")
		}
		a.Free(p)
		s := <-got // ahead's
		if a.Waited() != 0 || a.Held() != 16*mib || a.TakePeak() != 40*mib {
			t.Errorf("waited %v, holds %d", a.Waited(), a.Held())
		}
		b.Reserve(60 * mib)
		z.SetPriority(exec.First)
		if try(a, 8*mib) {
			t.Error("ahead got what is reserved")
		}
		z.Close()
		a.Free(s) // nothing else held
		a.Free(<-got)
		a.Close()
		if b.Used() != 0 {
			t.Error(b.Holders())
		}
	})
}

func TestAccountCanceled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := exec.NewBudget(8 * mib)
		defer b.Close()
		ctx, cancel := context.WithCancel(t.Context())
		a := b.Account(ctx, "a")
		p := a.Allocate(6 * mib)
		got := make(chan []byte)
		go func() { got <- a.Allocate(6 * mib) }()
		synctest.Wait()
		if !a.Waiting() {
			t.Fatal("does not wait")
		}
		cancel()
		q := <-got
		r := a.Allocate(6 * mib) // does not wait any more
		a.Close()
		for _, x := range [][]byte{p, q, r} {
			a.Free(x)
		}
		if b.Used() != 0 {
			t.Error(b.Holders())
		}
	})
}

// TestBudgetRandom: what is charged is what is allocated, nothing is lost, and
// accounts that are ahead keep to their share.
func TestBudgetRandom(t *testing.T) {
	for seed := range uint64(10) {
		b := exec.NewBudget(4 * mib)
		var wg sync.WaitGroup
		for w := range uint64(4) {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(seed, w))
				a := b.Account(t.Context(), "w")
				defer a.Close()
				var all [][]byte
				for range 500 {
					// One block at most while others wait: else they could all wait for each other.
					if len(all) > 0 && (r.IntN(3) > 0 || len(all) > 8) {
						i := r.IntN(len(all))
						a.Free(all[i])
						all = append(all[:i], all[i+1:]...)
						continue
					}
					n := 1 + r.IntN(32<<10)
					p := a.Allocate(n)
					p[0], p[n-1] = 1, 1
					all = append(all, a.Reallocate(1+r.IntN(2*n), p))
				}
				for _, p := range all {
					a.Free(p)
				}
			})
		}
		wg.Wait()
		if b.Used() != 0 || b.Allocated() != 0 {
			t.Fatalf("seed %d: used %d, allocated %d", seed, b.Used(), b.Allocated())
		}
		if b.Peak() > b.Limit() {
			t.Errorf("seed %d: peak %d", seed, b.Peak())
		}
		b.Close()
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 412 << 20: "412 MiB", 5 << 30: "5.0 GiB"} {
		if got := exec.Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %q, want %q", n, got, want)
		}
	}
}

func BenchmarkAccount(b *testing.B) {
	bud := exec.NewBudget(1 << 30)
	defer bud.Close()
	a := bud.Account(b.Context(), "bench")
	b.ReportAllocs()
	for b.Loop() {
		a.Free(a.Allocate(128 << 10))
	}
}

// TestUrgent: who must not wait is charged at once, also beyond the limit, and pays it back like everybody.
func TestUrgent(t *testing.T) {
	b := exec.NewBudget(1 << 20)
	defer b.Close()
	a := b.Account(t.Context(), "a")
	defer a.Close()
	full := a.Allocate(1 << 20)
	more := a.Urgent().Allocate(1 << 20) // would wait for ever
	more = a.Urgent().Reallocate(3<<20, more)
	if a.Held() < 4<<20 || b.Used() != a.Held() {
		t.Errorf("%d bytes are held, of the budget %d", a.Held(), b.Used())
	}
	a.Urgent().Free(more)
	a.Free(full)
	if a.Held() != 0 {
		t.Errorf("%d bytes are left", a.Held())
	}
}

// TestQuits: who waits for what nobody wants once its context is done gets nothing then, however many there are, and those behind get their turn.
func TestQuits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := exec.NewBudget(8 * mib)
		defer b.Close()
		ctx, cancel := context.WithCancel(t.Context())
		a, other := b.Account(ctx, "a"), b.Account(t.Context(), "other")
		p, ok := a.AllocateOrQuit(4 * mib)
		if !ok {
			t.Fatal("nothing, though it was free")
		}
		var wg sync.WaitGroup
		for range 100 {
			wg.Go(func() {
				if _, ok := a.AllocateOrQuit(4 * mib); ok {
					t.Error("memory for what nobody wants")
				}
			})
		}
		synctest.Wait()
		var q []byte
		wg.Go(func() { q = other.Allocate(2 * mib) })
		synctest.Wait()
		if !other.Waiting() {
			t.Error("it is not behind the others")
		}
		cancel()
		wg.Wait()
		if _, ok := a.AllocateOrQuit(1); ok {
			t.Error("memory after the end")
		}
		if b.Used() != 6*mib || b.Peak() != 6*mib {
			t.Errorf("%d bytes are held, at most %d", b.Used(), b.Peak())
		}
		a.Free(p)
		other.Free(q)
		a.Close()
		other.Close()
	})
}
