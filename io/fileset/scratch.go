package fileset

import (
	"sync"

	"github.com/penstock-data/penstock/internal/mem"
)

// Looks is for who looks at the beginnings of many files at once, before there is a budget: what does not fit their small buffers lies
// outside the Go heap, for one file at a time. The zero value is ready.
type Looks struct{ mu sync.Mutex }

// Scratch is an allocator for one file, to be closed once all its memory is freed. Not safe for concurrent use.
func (l *Looks) Scratch() *Scratch { return &Scratch{of: l} }

// Scratch is a memory.Allocator.
type Scratch struct {
	of   *Looks
	pool *mem.Pool // nil: nothing was allocated
}

// Allocate waits for the other files at first.
func (s *Scratch) Allocate(n int) []byte {
	if s.pool == nil {
		s.of.mu.Lock()
		s.pool = mem.New(0)
	}
	return s.pool.Allocate(n)
}

// Reallocate gives the memory of b, which may also be of the Go heap, back.
func (s *Scratch) Reallocate(n int, b []byte) []byte {
	p := s.Allocate(n)
	copy(p, b)
	s.Free(b)
	return p
}

// Free ignores memory of the Go heap.
func (s *Scratch) Free(b []byte) {
	if s.pool != nil && s.pool.Owns(b) {
		s.pool.Free(b)
	}
}

// Close lets the next file have memory.
func (s *Scratch) Close() {
	if s.pool != nil {
		s.pool.Close()
		s.pool = nil
		s.of.mu.Unlock()
	}
}
