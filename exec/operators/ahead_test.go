package operators

import (
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
)

// slow is an allocator that memory is waited for.
type slow struct{ memory.Allocator }

func (s slow) Allocate(n int) []byte {
	for from := time.Now(); time.Since(from) < 5*time.Millisecond; {
	}
	return s.Allocator.Allocate(n)
}

// A child's time goes on while it answers, however much it says: only waits for memory are added to
// it.
func TestWaitsAreNotTheChilds(t *testing.T) {
	var s switching
	var added time.Duration
	s.use(memory.DefaultAllocator, func(d time.Duration) { added += d })
	from := time.Now()
	for range 1000 {
		s.Free(s.Allocate(64))
	}
	if most := time.Since(from); added > most/2 {
		t.Errorf("%v were added in %v of allocations that did not wait", added, most)
	}
	added = 0
	s.use(slow{memory.DefaultAllocator}, func(d time.Duration) { added += d })
	s.Free(s.Allocate(64))
	if added < 5*time.Millisecond {
		t.Errorf("%v were added for a wait of 5ms", added)
	}
}
