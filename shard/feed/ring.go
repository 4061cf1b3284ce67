package feed

import (
	"fmt"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/mem"
	"github.com/penstock-data/penstock/shard"
)

// ring is the memory that a connection's batches lie in, and what of it the consumer holds. The budget of the iterator's job pays
// for all of it that takes memory.
type ring struct {
	mem   *mem.Shared
	paid  *toll
	alloc memory.Allocator // scratch
	guess int              // bytes of the last stream

	mu    sync.Mutex
	held  map[uint64]func() // by offset: gives it back
	ended bool
}

// newRing makes a ring for the batches of an iterator. Batches that the budget admits are as large as the budget at most; four
// times as many addresses make up for what is free in pieces.
func newRing(it *shard.Iterator) (*ring, error) {
	paid := &toll{charge: it.Charge}
	m, err := mem.NewShared(min(max(4*it.Budget(), ringLeast), ringMost), paid.add)
	if err != nil {
		return nil, err
	}
	return &ring{mem: m, paid: paid, alloc: it.Allocator(), held: map[uint64]func(){}}, nil
}

// errEnded is what a batch for a ring that is closed ends in; nobody sees it.
var errEnded = fault.New(fault.Canceled, "the connection has ended")

// toll pays for a number of bytes that changes. What it is given out of, it gives back in the pieces that it was charged in.
type toll struct {
	charge func(n int64) (release func())
	paid   []payment // guarded by the ring's memory
}

type payment struct {
	n       int64
	release func()
}

func (t *toll) add(delta int64) {
	if delta > 0 {
		t.paid = append(t.paid, payment{delta, t.charge(delta)})
	}
	for delta < 0 {
		last := t.paid[len(t.paid)-1]
		t.paid = t.paid[:len(t.paid)-1]
		last.release()
		if delta += last.n; delta > 0 {
			t.paid = append(t.paid, payment{delta, t.charge(delta)})
		}
	}
}

// place puts a batch where its consumer can see it. Tensors lie there already, but for those of batches that were made
// before the iterator was served. done gives the memory back; b may be released before.
func (r *ring) place(b *shard.Batch) (in span, done func(), err error) {
	defer func() {
		if p := recover(); p != nil {
			f, ok := p.(*fault.Error) // the ring's
			if !ok {
				panic(p)
			}
			err = f
		}
	}()
	var block []byte
	if rec := b.Record(); rec != nil {
		if block, err = r.stream(rec); err != nil {
			return in, nil, err
		}
	} else {
		block = b.Buffer()
		if len(block) == 0 {
			return in, func() {}, nil
		}
		if at, ok := r.mem.Offset(block); ok {
			b.Retain()
			return span{uint64(at), uint64(len(block))}, b.Release, nil
		}
		block = r.mem.Allocate(len(block))
		copy(block, b.Buffer())
	}
	at, ok := r.mem.Offset(block)
	if !ok {
		return in, nil, errEnded
	}
	return span{uint64(at), uint64(len(block))}, func() { r.mem.Free(block) }, nil
}

// stream writes a record as an IPC stream of its own into a block of the ring, which the caller frees. Its size is guessed from the last
// one's; the second try has the right one.
func (r *ring) stream(rec arrow.RecordBatch) ([]byte, error) {
	for {
		out := filler{b: r.mem.Allocate(r.guess)}
		w := ipc.NewWriter(&out, ipc.WithSchema(rec.Schema()), ipc.WithAllocator(mem.Zeroed{Allocator: r.alloc}))
		err := w.Write(rec)
		if cerr := w.Close(); err == nil {
			err = cerr
		}
		switch {
		case err != nil:
			r.mem.Free(out.b)
			return nil, fault.WithCode(fault.Unsupported, fmt.Errorf("a batch that cannot be sent to another process: %w", err))
		case out.n <= len(out.b):
			r.guess = max(out.n+out.n/16, r.guess-r.guess/64)
			return r.mem.Reallocate(out.n, out.b), nil
		}
		r.mem.Free(out.b)
		r.guess = out.n
	}
}

// filler keeps what fits of what is written, and counts all of it.
type filler struct {
	b []byte
	n int
}

func (f *filler) Write(p []byte) (int, error) {
	if f.n < len(f.b) {
		copy(f.b[f.n:], p)
	}
	f.n += len(p)
	return len(p), nil
}

// hand notes that the consumer is told of a batch.
func (r *ring) hand(in span, done func()) {
	r.mu.Lock()
	if in.length > 0 && !r.ended {
		r.held[in.offset], done = done, nil
	}
	r.mu.Unlock()
	if done != nil {
		done()
	}
}

// free takes back what the consumer held; false: it held nothing there.
func (r *ring) free(offset uint64) bool {
	r.mu.Lock()
	done, ok := r.held[offset]
	delete(r.held, offset)
	r.mu.Unlock()
	if ok {
		done()
	}
	return ok
}

// close gives the ring up, with all that the consumer held. Its own views, if it lives, stay as they are.
func (r *ring) close() {
	r.mem.Close()
	r.mu.Lock()
	all := r.held
	r.held, r.ended = nil, true
	r.mu.Unlock()
	for _, done := range all {
		done()
	}
}
