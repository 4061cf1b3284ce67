package pack

import (
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow/memory"
)

// scratch is memory for as long as something is made, or held: of an allocator, so that it is paid for and the garbage
// collector has no part in it; nil: of the Go heap.
type scratch struct {
	alloc memory.Allocator
	bufs  [][]byte
	size  int64
}

// take gives n values, whatever they are. They are valid until free.
func take[T uint8 | int32 | int64 | Piece | span](s *scratch, n int) []T {
	if s == nil {
		return make([]T, n)
	}
	if n == 0 {
		return nil
	}
	var z T
	b := s.alloc.Allocate(n * int(unsafe.Sizeof(z)))
	s.bufs = append(s.bufs, b)
	s.size += int64(len(b))
	return view[T](b)
}

// free gives all of it back. Idempotent.
func (s *scratch) free() {
	for _, b := range s.bufs {
		s.alloc.Free(b)
	}
	s.bufs, s.size = nil, 0
}
