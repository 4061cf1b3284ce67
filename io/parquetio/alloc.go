package parquetio

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// errTooLarge is the panic value of an arena whose limit is reached.
type errTooLarge struct{ want, limit int64 }

func (e errTooLarge) Error() string {
	return fmt.Sprintf("decoding takes more than %d bytes of memory", e.limit)
}

// arena is the allocator given to the decoder. It knows what is live, so that
//   - memory which the decoder loses on an error path is given back by close;
//   - a batch that grows beyond its limit is stopped before it is allocated;
//   - batches end up in the caller's allocator even where the decoder used Go
//     memory.
//
// Safe for concurrent use: batches are released by anybody, also after close.
type arena struct {
	alloc memory.Allocator

	mu    sync.Mutex
	live  map[*byte]block
	bytes int64 // live, not handed out
	limit int64 // of bytes
}

// block is one live allocation.
type block struct {
	b   []byte // as the allocator gave it
	out bool   // handed out with a batch
}

func newArena(alloc memory.Allocator) *arena {
	return &arena{alloc: alloc, live: map[*byte]block{}, limit: 1 << 62}
}

// setLimit allows n bytes more than what is live now.
func (a *arena) setLimit(n int64) {
	a.mu.Lock()
	a.limit = a.bytes + n
	a.mu.Unlock()
}

// allow raises the limit, for a page whose size has been checked.
func (a *arena) allow(n int64) {
	a.mu.Lock()
	a.limit += n
	a.mu.Unlock()
}

func (a *arena) reserve(n int) {
	a.mu.Lock()
	over := a.bytes+int64(n) > a.limit
	limit := a.limit
	if !over {
		a.bytes += int64(n)
	}
	a.mu.Unlock()
	if over {
		panic(errTooLarge{int64(n), limit})
	}
}

// held is the memory live and not handed out.
func (a *arena) held() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bytes
}

// Allocate panics with errTooLarge beyond the limit.
func (a *arena) Allocate(n int) []byte {
	if n <= 0 {
		return []byte{}
	}
	a.reserve(n)
	b := a.alloc.Allocate(n)
	clear(b[:min(n, 8)]) // arrow-go relies on the first offset of a list being zero
	a.mu.Lock()
	a.live[unsafe.SliceData(b)] = block{b: b}
	a.mu.Unlock()
	return b
}

// Reallocate never shrinks in place: what a batch holds must be what it needs.
func (a *arena) Reallocate(n int, b []byte) []byte {
	switch {
	case cap(b) == 0:
		return a.Allocate(n)
	case n == len(b):
		return b
	case n <= cap(b) && n > cap(b)-cap(b)/4:
		return b[:n]
	}
	out := a.Allocate(n)
	copy(out, b)
	a.Free(b)
	return out
}

// Free ignores what is not live: an error path may free twice.
func (a *arena) Free(b []byte) {
	if cap(b) == 0 {
		return
	}
	p := unsafe.SliceData(b)
	a.mu.Lock()
	e, ok := a.live[p]
	if ok {
		delete(a.live, p)
		if !e.out {
			a.bytes -= int64(len(e.b))
		}
	}
	a.mu.Unlock()
	if ok {
		a.alloc.Free(e.b)
	}
}

// take marks the memory of p as handed out; false if it is not of this arena.
func (a *arena) take(b []byte) bool {
	if cap(b) == 0 {
		return true
	}
	p := unsafe.SliceData(b)
	a.mu.Lock()
	defer a.mu.Unlock()
	e, ok := a.live[p]
	if ok && !e.out {
		e.out = true
		a.live[p] = e
		a.bytes -= int64(len(e.b))
	}
	return ok
}

// close frees whatever is live and not part of a batch handed out.
func (a *arena) close() {
	a.mu.Lock()
	var lost [][]byte
	for p, e := range a.live {
		if !e.out {
			delete(a.live, p)
			lost = append(lost, e.b)
		}
	}
	a.bytes, a.limit = 0, 1<<62
	a.mu.Unlock()
	for _, b := range lost {
		a.alloc.Free(b)
	}
}

// adopt returns arr with every buffer in the arena and handed out: the few that
// the decoder made in Go memory are copied. Takes over the reference.
func (a *arena) adopt(d arrow.ArrayData) arrow.ArrayData {
	foreign := false
	var visit func(d arrow.ArrayData)
	visit = func(d arrow.ArrayData) {
		for _, b := range d.Buffers() {
			if b != nil && !a.take(b.Buf()) {
				foreign = true
			}
		}
		for _, c := range d.Children() {
			visit(c)
		}
	}
	visit(d)
	if !foreign {
		return d
	}
	out := a.rehome(d)
	d.Release()
	return out
}

func (a *arena) rehome(d arrow.ArrayData) arrow.ArrayData {
	bufs := make([]*memory.Buffer, len(d.Buffers()))
	for i, b := range d.Buffers() {
		switch {
		case b == nil:
		case a.take(b.Buf()):
			b.Retain()
			bufs[i] = b
		default:
			nb := memory.NewResizableBuffer(a)
			nb.Resize(b.Len())
			copy(nb.Bytes(), b.Bytes())
			a.take(nb.Buf())
			bufs[i] = nb
		}
	}
	kids := make([]arrow.ArrayData, len(d.Children()))
	for i, c := range d.Children() {
		kids[i] = a.rehome(c)
	}
	out := array.NewData(d.DataType(), d.Len(), bufs, kids, d.NullN(), d.Offset())
	for _, b := range bufs {
		if b != nil {
			b.Release()
		}
	}
	for _, c := range kids {
		c.Release()
	}
	return out
}
