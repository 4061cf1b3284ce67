package blobio

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

const (
	hedgeSamples = 128 // remembered per size class
	hedgeMin     = 32  // samples needed before any hedge
	hedgePercent = 3   // of requests, at most
)

// hedger decides when a slow request gets a second one beside it: later than 95 %
// of recent requests of its size class took, and than twice the median (where all
// take about as long, the slowest 5 % are not worth it).
type hedger struct {
	mu       sync.Mutex
	classes  [4]latencies
	requests int64
	hedges   int64
}

type latencies struct {
	ring  [hedgeSamples]time.Duration
	n     int
	delay time.Duration // for n samples, renewed every few
}

func sizeClass(n int) int {
	switch {
	case n <= 64<<10:
		return 0
	case n <= 512<<10:
		return 1
	case n <= 4<<20:
		return 2
	}
	return 3
}

// record remembers how long a request for n bytes took.
func (h *hedger) record(n int, d time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := &h.classes[sizeClass(n)]
	l.ring[l.n%hedgeSamples] = d
	l.n++
	if l.n >= hedgeMin && l.n%8 == 0 {
		s := slices.Clone(l.ring[:min(l.n, hedgeSamples)])
		slices.Sort(s)
		l.delay = max(s[len(s)*95/100], 2*s[len(s)/2])
	}
}

// begin counts a request for n bytes and returns when to hedge it; 0 is never.
func (h *hedger) begin(n int) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.requests++
	return h.classes[sizeClass(n)].delay
}

// take asks for a hedge.
func (h *hedger) take() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	if (h.hedges+1)*100 > h.requests*hedgePercent {
		return false
	}
	h.hedges++
	return true
}

type answer struct {
	n   int
	err error
}

// hedged is attempt, with a second request for the rest if the first is slow. The
// first to finish wins; the other is canceled and joined, since it may be writing
// to dst. Takes over a slot.
func (o *Object) hedged(ctx context.Context, dst []byte, off int64) (int, error) {
	b := o.b
	delay := time.Duration(0)
	if !b.o.NoHedge {
		delay = b.hedge.begin(len(dst))
	}
	if delay == 0 {
		return o.attempt(ctx, dst, off, nil)
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	var reached atomic.Int64
	ctx1, cancel1 := context.WithCancel(ctx)
	defer cancel1()
	first := make(chan answer, 1)
	wg.Go(func() {
		n, err := o.attempt(ctx1, dst, off, &reached)
		first <- answer{n, err}
	})
	timer := time.NewTimer(delay)
	defer timer.Stop()
	for hedge := false; !hedge; {
		select {
		case a := <-first:
			return a.n, a.err
		case <-timer.C:
		}
		if b.slots.TryAcquire(1) {
			if hedge = b.hedge.take(); !hedge {
				b.slots.Release(1)
			}
		}
		// No leave now: ask again. Those that are merely a little late end meanwhile, and what
		// the allowance has then is for those that are stuck.
		timer.Reset(delay)
	}
	o.count(func(s *Stats) { s.Hedges.Add(1) })
	from := int(reached.Load())
	rest := make([]byte, len(dst)-from)
	ctx2, cancel2 := context.WithCancel(ctx)
	defer cancel2()
	second := make(chan answer, 1)
	wg.Go(func() {
		n, err := o.attempt(ctx2, rest, off+int64(from), nil)
		second <- answer{n, err}
	})
	win := func() (int, error) { // by the second, with the first at rest
		copy(dst[from:], rest)
		return len(dst), nil
	}
	select {
	case a := <-first:
		if a.err == nil {
			cancel2()
			return a.n, nil
		}
		if s := <-second; s.err == nil {
			return win()
		}
		return a.n, a.err
	case s := <-second:
		if s.err == nil {
			cancel1()
			<-first
			return win()
		}
		a := <-first
		return a.n, a.err
	}
}
