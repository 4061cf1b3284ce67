package collective

import (
	"context"
	"unsafe"

	"github.com/penstock-data/penstock/internal/fault"
)

const (
	// segment is how much at most is received before it is computed with and sent on, in bytes: it fits a core's cache, and takes longer to copy than to wake the next rank. Smaller
	// chunks are halved, so that a rank sends one part while it gets the other.
	segment = 512 << 10
	// leastSegment is the least of a segment, in bytes.
	leastSegment = 64 << 10
	// plainMost is the size of a chunk of x up to which a rank sends before it receives, which saves a goroutine and its wake-ups: half of the time at this size. Where all ranks write at once,
	// no socket has more than a chunk in it on average, so not all of them are full.
	plainMost = 128 << 10
)

// AllReduce replaces x on every rank by the sum, minimum, maximum or mean of all ranks' x, element by element. All ranks get the same bits, and get them again from the same input: what is added to
// what depends on the number of ranks and the length only. After an error x holds anything.
func AllReduce[T Number](ctx context.Context, g *Group, x []T, op Op) error {
	h := head{kind: callReduce, op: op, typ: typeOf[T](), count: len(x)}
	switch {
	case op < Sum || op > Mean:
		return fault.New(fault.Invalid, "%s: ranks can reduce by sum, min, max and mean", op)
	case op == Mean && h.typ >= 2:
		return fault.New(fault.Invalid, "the mean of integers is not one: take their sum, or make them floats")
	}
	leave, err := g.enter(ctx, &h)
	if err != nil || g.world == 1 {
		return done(leave, err)
	}
	defer leave()
	r := ring[T]{g: g, x: x, op: op}
	if len(x)/g.world*size[T]() <= g.small {
		return r.plain(&h)
	}
	return r.overlapped(&h)
}

func typeOf[T Number]() byte {
	var v T
	switch any(v).(type) {
	case float32:
		return 0
	case float64:
		return 1
	case int32:
		return 2
	}
	return 3
}

func size[T Number]() int {
	var v T
	return int(unsafe.Sizeof(v))
}

// view is the memory of x.
func view[T Number](x []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), len(x)*size[T]())
}

// ring is one all-reduce. x is cut into as many chunks as there are ranks. In step s a rank sends chunk rank-s and receives chunk rank-s-1. In the first world-1 steps what comes is added
// to the rank's own, so that chunk c, which begins at rank c, is complete at rank c-1; in the following world-1 steps complete chunks go around and replace.
type ring[T Number] struct {
	g  *Group
	x  []T
	op Op
}

func (r *ring[T]) steps() int { return 2 * (r.g.world - 1) }

// chunk i, counted around.
func (r *ring[T]) chunk(i int) []T {
	n := r.g.world
	i = ((i % n) + n) % n
	// i*len/n without overflow
	at := func(i int) int { return len(r.x)/n*i + len(r.x)%n*i/n }
	return r.x[at(i):at(i+1)]
}

// part is how many of the n numbers of a chunk a segment has.
func part[T Number](n int) int {
	return min(max((n+1)/2, leastSegment/size[T]()), segment/size[T]())
}

// segments calls f with the parts of c.
func segments[T Number](c []T, f func([]T) error) error {
	for step := part[T](len(c)); len(c) > 0; {
		n := min(len(c), step)
		if err := f(c[:n]); err != nil {
			return err
		}
		c = c[n:]
	}
	return nil
}

func (r *ring[T]) count(c []T) int {
	step := part[T](len(c))
	return (len(c) + step - 1) / step
}

// take receives part p of step s.
func (r *ring[T]) take(s int, p []T) error {
	if s >= r.g.world-1 {
		return r.g.read(view(p))
	}
	in := unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(r.g.scratch))), len(p))
	if err := r.g.read(view(in)); err != nil {
		return err
	}
	r.add(s, p, in)
	return nil
}

// add puts what came in step s into p.
func (r *ring[T]) add(s int, p, in []T) {
	combine(p, in, r.op)
	if r.op == Mean && s == r.g.world-2 {
		divide(p, r.g.world)
	}
}

// plain sends, then receives. What is called goes with the first chunk, and is compared before anything else.
func (r *ring[T]) plain(h *head) error {
	b := h.encode()
	if err := r.g.writev(b[:], view(r.chunk(r.g.rank))); err != nil {
		return err
	}
	if err := r.first(h, r.chunk(r.g.rank-1)); err != nil {
		return err
	}
	for s := 1; s < r.steps(); s++ {
		if out := r.chunk(r.g.rank - s); len(out) > 0 {
			if err := r.g.write(view(out)); err != nil {
				return err
			}
		}
		if in := r.chunk(r.g.rank - s - 1); len(in) > 0 {
			if err := r.take(s, in); err != nil {
				return err
			}
		}
	}
	return nil
}

// first receives what the left neighbour calls, and p of step 0 as far as it is there in the same read.
func (r *ring[T]) first(h *head, p []T) error {
	g := r.g
	b := unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(g.scratch))), headSize+len(p)*size[T]())
	n, err := g.readSome(b, headSize)
	if err != nil {
		return err
	}
	if err := g.compare(h, decodeHead((*[headSize]byte)(b))); err != nil {
		return err
	}
	if err := g.read(b[n:]); err != nil {
		return err
	}
	if len(p) > 0 {
		r.add(0, p, unsafe.Slice((*T)(unsafe.Pointer(&g.scratch[headSize/8])), len(p)))
	}
	return nil
}

// overlapped has a goroutine send what is ready. Tokens tell it so, and tell the receiver, who overwrites chunks in the second half, that they are sent. What is
// called goes with the first segment.
func (r *ring[T]) overlapped(h *head) error {
	g := r.g
	total := 0
	for s := range r.steps() {
		total += r.count(r.chunk(g.rank - s - 1))
	}
	ready := make(chan struct{}, total) // a token per segment received and computed
	away := make(chan struct{}, r.steps())
	sent := make(chan error, 1)
	wait := func(c chan struct{}) error {
		select {
		case <-c:
			return nil
		case <-g.failed:
			return g.err
		}
	}
	go func() {
		sent <- func() error {
			b := h.encode()
			first := true
			for s := range r.steps() {
				err := segments(r.chunk(g.rank-s), func(p []T) error {
					if first {
						first = false
						return g.writev(b[:], view(p))
					}
					if s > 0 {
						if err := wait(ready); err != nil {
							return err
						}
					}
					return g.write(view(p))
				})
				if err != nil {
					return err
				}
				away <- struct{}{}
			}
			return nil
		}()
	}()
	err := func() error {
		first := true
		for s := range r.steps() {
			if s >= g.world-1 {
				if err := wait(away); err != nil { // the chunk of step s was sent in step s-world+1
					return err
				}
			}
			err := segments(r.chunk(g.rank-s-1), func(p []T) error {
				var err error
				if first {
					first, err = false, r.first(h, p)
				} else {
					err = r.take(s, p)
				}
				if err != nil {
					return err
				}
				ready <- struct{}{}
				return nil
			})
			if err != nil {
				return err
			}
		}
		return nil
	}()
	if serr := <-sent; err == nil {
		err = serr
	}
	return err
}

// combine puts b into a.
func combine[T Number](a, b []T, op Op) {
	b = b[:len(a)]
	switch op {
	case Min:
		for i, v := range b {
			a[i] = min(a[i], v)
		}
	case Max:
		for i, v := range b {
			a[i] = max(a[i], v)
		}
	default:
		for i, v := range b {
			a[i] += v
		}
	}
}

func divide[T Number](a []T, n int) {
	for i := range a {
		a[i] /= T(n)
	}
}
