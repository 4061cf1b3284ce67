package fileset

import (
	"cmp"
	"sync"
	"sync/atomic"

	"github.com/penstock-data/penstock/internal/mem"
)

// Looks is for who looks at the beginnings of many files at once, before there is a budget: what
// does not fit their small buffers lies outside the Go heap, for one file at a time, and their text
// is bounded for all of them together. The zero value has no bound.
type Looks struct {
	mu   sync.Mutex
	seen atomic.Int64
	most int64 // 0: no bound
	max  int64
}

// Bound lets the text of these files that is looked at be as much as one row of a file of their
// size may be. What is looked at before does not count.
func (l *Looks) Bound(s *Set, files []int) {
	var size float64
	for _, i := range files {
		size += float64(s.Files[i].Info.Size)
	}
	l.max = cmp.Or(s.opts.MaxGrowth, DefaultTextGrowth)
	l.most = rowMost(size, l.max, DefaultTextGrowth) + int64(len(files)) // a byte more shows that there is more
	l.seen.Store(0)
}

// Take counts n bytes of text that are looked at. More than the bound is a Corrupt error.
func (l *Looks) Take(n int64) error {
	if seen := l.seen.Add(n); l.most > 0 && seen > l.most {
		return largeRow("the first rows of the files that are looked at have together", l.most, l.max)
	}
	return nil
}

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
