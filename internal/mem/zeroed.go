package mem

import "github.com/apache/arrow-go/v18/arrow/memory"

// Zeroed is an allocator whose memory is zero, around one that promises nothing. arrow-go's IPC
// writer counts on it: a column of nulls only is written with a bitmap that it allocates and never sets.
type Zeroed struct{ memory.Allocator }

func (z Zeroed) Allocate(n int) []byte {
	b := z.Allocator.Allocate(n)
	clear(b)
	return b
}

func (z Zeroed) Reallocate(n int, b []byte) []byte {
	had := len(b)
	b = z.Allocator.Reallocate(n, b)
	if n > had {
		clear(b[had:])
	}
	return b
}
