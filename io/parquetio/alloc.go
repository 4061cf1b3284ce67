package parquetio

import (
	"sync"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow/memory"
)

// arena is the allocator given to arrow-go's writer. It knows what is live, so
// that memory which the writer loses on an error path is given back by close.
// Safe for concurrent use.
type arena struct {
	alloc memory.Allocator

	mu    sync.Mutex
	live  map[*byte][]byte // as the allocator gave it
	bytes int64
}

func newArena(alloc memory.Allocator) *arena {
	return &arena{alloc: alloc, live: map[*byte][]byte{}}
}

// held is the memory live.
func (a *arena) held() int64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.bytes
}

// Allocate returns n bytes.
func (a *arena) Allocate(n int) []byte {
	if n <= 0 {
		return []byte{}
	}
	b := a.alloc.Allocate(n)
	clear(b[:min(n, 8)]) // arrow-go relies on the first offset of a list being zero
	a.mu.Lock()
	a.live[unsafe.SliceData(b)] = b
	a.bytes += int64(len(b))
	a.mu.Unlock()
	return b
}

// Reallocate keeps no more than a quarter of b unused.
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
	whole, ok := a.live[p]
	if ok {
		delete(a.live, p)
		a.bytes -= int64(len(whole))
	}
	a.mu.Unlock()
	if ok {
		a.alloc.Free(whole)
	}
}

// close frees whatever is live.
func (a *arena) close() {
	a.mu.Lock()
	lost := a.live
	a.live, a.bytes = map[*byte][]byte{}, 0
	a.mu.Unlock()
	for _, b := range lost {
		a.alloc.Free(b)
	}
}
