package exec

import (
	"cmp"
	"container/list"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/mem"
)

// Budget is the one byte budget. What it counts is held in two ways: by an
// [Account], which is an Arrow allocator, or by a [Lease], for memory that comes
// from elsewhere. Safe for concurrent use.
//
// Waiting is first come, first served. To stay free of deadlock a request is
// granted beyond the limit where nothing else is held, and to an account of
// priority Overdraw. See docs/design/0001-memory.md.
type Budget struct {
	pool *mem.Pool

	mu      sync.Mutex
	limit   int64
	share   int64 // what accounts of priority Ahead may use of limit
	used    int64
	granted int64 // of used, to those that wait and have not noticed yet
	peak    int64
	leased  int64      // of used
	waiting *list.List // of *waiter, oldest first
	owners  map[*owner]struct{}
}

// owner is who holds memory, for messages.
type owner struct {
	name string
	held int64
}

type waiter struct {
	n     int64
	acct  *Account // or
	lease *Lease
	quits bool // AllocateOrQuit
	quit  bool // it was given up; before ready is closed
	ready chan struct{}
}

// NewBudget returns a budget of limit bytes. Close it.
func NewBudget(limit int64) *Budget {
	return &Budget{
		pool: mem.New(limit), limit: limit, share: limit - limit/4,
		waiting: list.New(), owners: make(map[*owner]struct{}),
	}
}

// Limit in bytes.
func (b *Budget) Limit() int64 { return b.limit }

// Used returns the bytes held now.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used - b.granted
}

// Leased returns the part of Used that is held by leases.
func (b *Budget) Leased() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.leased
}

// Allocated returns what the allocator has handed out: Used less Leased.
func (b *Budget) Allocated() int64 { return b.pool.Live() }

// Peak returns the most bytes ever held.
func (b *Budget) Peak() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.peak
}

// Reserve notes that a task needed n bytes at once. The largest need of late is
// kept from accounts of priority Ahead, at least a quarter of the limit.
func (b *Budget) Reserve(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	kept := b.limit - b.share
	kept = max(n, kept-kept/64, b.limit/4)
	grew := b.limit-kept > b.share
	b.share = max(b.limit-kept, 0)
	if grew && b.waiting.Len() > 0 {
		b.wake()
	}
}

// Close gives cached memory to the next budget or back to the system, and the rest once it is freed.
// Idempotent. Accounts stay usable.
func (b *Budget) Close() { b.pool.Close() }

// Owns reports whether p lies in memory that an account of b allocated. Blocks
// of less than 4 KiB are not told apart from other memory.
func (b *Budget) Owns(p []byte) bool { return b.pool.Owns(p) }

// OffHeap reports whether accounts allocate outside the Go heap, so that Owns can tell.
func (b *Budget) OffHeap() bool { return b.pool.OffHeap() }

// Holders says how much is held, and by whom, the largest first:
// `412 MiB of 512 MiB held by scan taxi.parquet#3 (300 MiB), sort (100 MiB), 3 others`.
func (b *Budget) Holders() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.holders()
}

func (b *Budget) holders() string {
	sums := make(map[string]int64)
	for o := range b.owners {
		if o.held > 0 {
			sums[o.name] += o.held
		}
	}
	type entry struct {
		name string
		held int64
	}
	var all []entry
	for n, h := range sums {
		all = append(all, entry{n, h})
	}
	slices.SortFunc(all, func(x, y entry) int {
		return cmp.Or(cmp.Compare(y.held, x.held), cmp.Compare(x.name, y.name))
	})
	var s strings.Builder
	fmt.Fprintf(&s, "%s of %s held", Bytes(b.used), Bytes(b.limit))
	for i, e := range all {
		switch i {
		case 0:
			s.WriteString(" by ")
		case 3:
			fmt.Fprintf(&s, ", %d others", len(all)-3)
			return s.String()
		default:
			s.WriteString(", ")
		}
		fmt.Fprintf(&s, "%s (%s)", e.name, Bytes(e.held))
	}
	return s.String()
}

// Bytes prints a size: `412 MiB`, `1.5 GiB`.
func Bytes(n int64) string {
	v, unit := float64(n), "B"
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if v < 1024 {
			break
		}
		v, unit = v/1024, u
	}
	if v < 10 && unit != "B" {
		return fmt.Sprintf("%.1f %s", v, unit)
	}
	return fmt.Sprintf("%.0f %s", v, unit)
}

// Lease is memory that was paid for. Safe for concurrent use.
type Lease struct {
	b     *Budget
	owner owner
}

// Acquire waits for n bytes. It fails only when ctx ends, with its cause and
// who holds the memory.
func (b *Budget) Acquire(ctx context.Context, who string, n int64) (*Lease, error) {
	l := &Lease{b: b, owner: owner{name: who}}
	w := &waiter{n: n, lease: l, ready: make(chan struct{})}
	b.mu.Lock()
	if b.waiting.Len() == 0 && b.admits(nil, n) {
		b.grant(w)
		b.mu.Unlock()
		b.pool.Outside(n)
		return l, nil
	}
	e := b.waiting.PushBack(w)
	b.mu.Unlock()
	select {
	case <-w.ready:
		b.pool.Outside(n)
		return l, nil
	case <-ctx.Done():
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	held := b.holders()
	select {
	case <-w.ready:
		b.pool.Outside(n)
		b.release(l)
	default:
		b.waiting.Remove(e)
		b.wake()
	}
	return nil, fault.New(fault.Canceled, "%s waited for %s of memory, %s: %w", who, Bytes(n), held, context.Cause(ctx))
}

// TryGrow adds n bytes to l if they are free. After false: give something back, then ask again.
func (b *Budget) TryGrow(l *Lease, n int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.waiting.Len() > 0 || b.used+n > b.limit && b.used > l.owner.held {
		return false
	}
	b.grant(&waiter{n: n, lease: l})
	b.pool.Outside(n)
	return true
}

// Charge takes n bytes whether they are free or not: for memory that exists already.
func (b *Budget) Charge(who string, n int64) *Lease {
	l := &Lease{b: b, owner: owner{name: who}}
	b.mu.Lock()
	b.grant(&waiter{n: n, lease: l})
	b.mu.Unlock()
	b.pool.Outside(n)
	return l
}

// Bytes returns what l holds.
func (l *Lease) Bytes() int64 {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	return l.owner.held
}

// Release gives everything back. Idempotent.
func (l *Lease) Release() {
	l.b.mu.Lock()
	defer l.b.mu.Unlock()
	l.b.release(l)
}

// release needs b.mu.
func (b *Budget) release(l *Lease) {
	b.used -= l.owner.held
	b.leased -= l.owner.held
	b.pool.Outside(-l.owner.held)
	l.owner.held = 0
	delete(b.owners, &l.owner)
	b.wake()
}

// admits needs b.mu. A nil account is a lease.
func (b *Budget) admits(a *Account, n int64) bool {
	if b.used == 0 {
		return true
	}
	if a == nil {
		return b.used+n <= b.limit
	}
	switch {
	case a.prio == Overdraw || a.ctx.Err() != nil:
		return true
	case a.prio == First:
		return b.used+n <= b.limit
	}
	return b.used+n <= b.share
}

// wake grants, in order, what can be granted; it needs b.mu. Who is refused
// makes those behind him of the same or a lower priority wait.
func (b *Budget) wake() {
	refused := -1
	for e := b.waiting.Front(); e != nil; {
		w, next := e.Value.(*waiter), e.Next()
		prio := int(First)
		if w.acct != nil {
			prio = int(w.acct.prio)
			if w.acct.ctx.Err() != nil {
				prio = int(Overdraw)
			}
		}
		switch {
		case w.quits && w.acct.ctx.Err() != nil:
			w.quit = true
			b.waiting.Remove(e)
			close(w.ready)
		case prio <= refused:
		case b.admits(w.acct, w.n):
			b.grant(w)
			if w.acct != nil {
				b.granted += w.n
			}
			b.waiting.Remove(e)
			close(w.ready)
		default:
			refused = prio
		}
		e = next
	}
}

// grant needs b.mu.
func (b *Budget) grant(w *waiter) {
	if w.acct != nil {
		w.acct.hold(w.n)
		return
	}
	b.used += w.n
	b.peak = max(b.peak, b.used)
	b.leased += w.n
	w.lease.owner.held += w.n
	b.owners[&w.lease.owner] = struct{}{}
}

// Priority says how far an account may use the budget.
type Priority uint8

const (
	Ahead    Priority = iota // its output is wanted later: may use the limit less the reserve
	First                    // its output is wanted next: may use the limit
	Overdraw                 // everything waits for it: never waits
)

// Account is an Arrow allocator that charges a budget for exactly what the pool
// hands out, and gives it back when it is freed, from whatever goroutine. Made
// by [Budget.Account]; safe for concurrent use.
//
// Allocate waits while memory is short; once the context of the account is done
// it does not wait any more, so that the caller gets to see that. AllocateOrQuit
// takes nothing then.
type Account struct {
	b       *Budget
	ctx     context.Context // ends waiting; the allocator interface has no other way in
	owner   owner
	prio    Priority // guarded by b.mu
	peak    int64    // guarded by b.mu
	closed  bool     // guarded by b.mu
	waited  atomic.Int64
	waiting atomic.Int32
}

// Account opens an account, of priority Ahead. Close it when its task is over;
// memory that outlives the task stays charged until it is freed. Consumers of a
// run that allocate from its budget set Overdraw: the memory that others hold is
// freed only when they move on.
func (b *Budget) Account(ctx context.Context, who string) *Account {
	a := &Account{b: b, ctx: ctx, owner: owner{name: who}}
	b.mu.Lock()
	b.owners[&a.owner] = struct{}{}
	b.mu.Unlock()
	return a
}

// SetPriority changes the priority; who waits is looked at again.
func (a *Account) SetPriority(p Priority) {
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	if a.prio != p {
		a.prio = p
		a.b.wake()
	}
}

// Limit of the budget in bytes.
func (a *Account) Limit() int64 { return a.b.Limit() }

// Held returns the bytes allocated and not yet freed.
func (a *Account) Held() int64 {
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	return a.owner.held
}

// TakePeak returns the most bytes held since the last call.
func (a *Account) TakePeak() int64 {
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	p := a.peak
	a.peak = a.owner.held
	return p
}

// Waited returns how long Allocate has waited, over all goroutines.
func (a *Account) Waited() time.Duration { return time.Duration(a.waited.Load()) }

// Waiting reports whether a goroutine waits in Allocate now.
func (a *Account) Waiting() bool { return a.waiting.Load() > 0 }

// Close ends the account's use by its task. Idempotent.
func (a *Account) Close() {
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	a.closed = true
	if a.owner.held == 0 {
		delete(a.b.owners, &a.owner)
	}
}

// Urgent is a without the waiting: for who holds something that other tasks wait for, of
// which one may be the task that memory waits for.
func (a *Account) Urgent() memory.Allocator { return urgent{a} }

type urgent struct{ *Account }

func (u urgent) Allocate(n int) []byte {
	u.overcharge(int64(mem.Size(n)))
	return u.allocate(n)
}

func (u urgent) Reallocate(n int, p []byte) []byte { return u.reallocate(n, p, u.Allocate) }

// overcharge is charge that never waits.
func (a *Account) overcharge(n int64) {
	a.b.mu.Lock()
	defer a.b.mu.Unlock()
	a.hold(n)
}

func (a *Account) Allocate(n int) []byte {
	a.charge(int64(mem.Size(n)), false)
	return a.allocate(n)
}

// AllocateOrQuit is Allocate for what nobody wants once the context of the account is
// done: nothing is taken then, and ok is false.
func (a *Account) AllocateOrQuit(n int) (p []byte, ok bool) {
	if !a.charge(int64(mem.Size(n)), true) {
		return nil, false
	}
	return a.allocate(n), true
}

// allocate hands out n bytes that are charged.
func (a *Account) allocate(n int) []byte {
	ok := false
	defer func() {
		if !ok { // the pool panics when the system has no more
			a.refund(int64(mem.Size(n)))
		}
	}()
	p := a.b.pool.Allocate(n)
	ok = true
	return p
}

func (a *Account) Free(p []byte) {
	size := int64(a.b.pool.SizeOf(p))
	a.b.pool.Free(p)
	a.refund(size)
}

func (a *Account) Reallocate(n int, p []byte) []byte { return a.reallocate(n, p, a.Allocate) }

func (a *Account) reallocate(n int, p []byte, allocate func(int) []byte) []byte {
	if mem.InPlace(n, a.b.pool.SizeOf(p)) {
		return p[:n]
	}
	r := allocate(n)
	copy(r, p)
	a.Free(p)
	return r
}

// charge waits for n bytes; false: quits, and a.ctx is done, so none are taken.
func (a *Account) charge(n int64, quits bool) bool {
	b := a.b
	b.mu.Lock()
	if quits && a.ctx.Err() != nil {
		b.mu.Unlock()
		return false
	}
	if (b.waiting.Len() == 0 || a.prio > Ahead || a.ctx.Err() != nil) && b.admits(a, n) {
		a.hold(n)
		b.mu.Unlock()
		return true
	}
	w := &waiter{n: n, acct: a, quits: quits, ready: make(chan struct{})}
	b.waiting.PushBack(w)
	b.mu.Unlock()
	defer context.AfterFunc(a.ctx, func() {
		b.mu.Lock()
		b.wake()
		b.mu.Unlock()
	})()
	start := time.Now()
	a.waiting.Add(1)
	<-w.ready // closed too when a.ctx is done
	a.waiting.Add(-1)
	a.waited.Add(int64(time.Since(start)))
	if w.quit {
		return false
	}
	b.mu.Lock()
	b.granted -= n
	b.mu.Unlock()
	return true
}

// Borrow charges n bytes that do not come from the allocator, waiting like
// Allocate, and returns what gives them back.
func (a *Account) Borrow(n int64) (release func()) {
	a.charge(n, false)
	b := a.b
	b.mu.Lock()
	b.leased += n
	b.mu.Unlock()
	b.pool.Outside(n)
	return func() {
		b.mu.Lock()
		b.leased -= n
		b.mu.Unlock()
		b.pool.Outside(-n)
		a.refund(n)
	}
}

// hold needs b.mu.
func (a *Account) hold(n int64) {
	a.b.used += n
	a.b.peak = max(a.b.peak, a.b.used)
	a.owner.held += n
	a.peak = max(a.peak, a.owner.held)
}

func (a *Account) refund(n int64) {
	if n == 0 {
		return
	}
	b := a.b
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= n
	a.owner.held -= n
	if a.closed && a.owner.held == 0 {
		delete(b.owners, &a.owner)
	}
	if b.waiting.Len() > 0 {
		b.wake()
	}
}
