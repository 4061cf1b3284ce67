package mem

import (
	"math"
	"os"
	"slices"
	"sync"

	"github.com/penstock-data/penstock/internal/fault"
)

const (
	page  = 4 << 10
	chunk = 64 << 10 // shared memory is counted, and given back, by so much
)

// Shared is memory that another process can map too: a file without a name, whose size is only addresses until they are used.
// Shrinking it is impossible, for whoever has it. Blocks are 64-byte aligned, those of 4 KiB and more lie on pages. The lowest
// address is given out first, so that the same pages are used again: a fresh one costs several times what it takes to fill it.
// Pages of free blocks go back to the system beyond half of the most that was in use of late.
//
// It is a memory.Allocator, safe for concurrent use; blocks never move, but for Reallocate. Where no addresses are left, Allocate
// panics with an Exhausted *fault.Error. Close it.
type Shared struct {
	file *os.File
	size int
	held func(delta int64)

	mu       sync.Mutex
	base     uintptr     // 0: unmapped
	free     []extent    // by address; no two touch
	blocks   map[int]int // handed out: size by offset
	touched  []bool      // chunks with pages behind them, as far as there are some
	live     int         // bytes of blocks
	peak     int         // the most of late
	resident int         // bytes of touched chunks
	pinned   bool
	closed   bool
}

// extent is free addresses.
type extent struct{ at, end int }

// NewShared makes shared memory of size bytes of addresses, fewer where limits of this process are lower. held, where it is not nil,
// is told how many bytes more (or less) it takes; it must not call back. Unsupported on systems other than Linux.
func NewShared(size int64, held func(delta int64)) (*Shared, error) {
	if held == nil {
		held = func(int64) {}
	}
	f, base, n, err := newShared(int(min(max(size, chunk), math.MaxInt>>8)) &^ (chunk - 1))
	if err != nil {
		return nil, err
	}
	return &Shared{file: f, base: base, size: n, held: held, free: []extent{{0, n}}, blocks: map[int]int{}}, nil
}

// File is what another process maps, with [MapShared]; the memory's own until Close.
func (s *Shared) File() *os.File { return s.file }

// Size in bytes of addresses.
func (s *Shared) Size() int64 { return int64(s.size) }

// Resident is how many bytes of memory it takes: blocks handed out, and free ones that are kept.
func (s *Shared) Resident() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.resident)
}

// Live is how many bytes are handed out.
func (s *Shared) Live() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return int64(s.live)
}

// Pin keeps all pages from now on, whatever is free: somebody knows where they are.
func (s *Shared) Pin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pinned = true
}

// Offset of a block that was handed out, or false if b is none: not of this memory, or empty.
func (s *Shared) Offset(b []byte) (int64, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.find(b)
	return int64(at), ok
}

// find needs s.mu.
func (s *Shared) find(b []byte) (at int, ok bool) {
	if a := addr(b); cap(b) > 0 && s.base != 0 && a >= s.base && a < s.base+uintptr(s.size) {
		return int(a - s.base), true
	}
	return 0, false
}

// sharedSize is what n bytes take, and how they are aligned.
func sharedSize(n int) (size, to int) {
	if to = align; n >= page {
		to = page
	}
	return (n + to - 1) &^ (to - 1), to
}

// Allocate returns n bytes with undefined contents.
func (s *Shared) Allocate(n int) []byte {
	if n < 0 {
		panic(fault.New(fault.Internal, "allocate %d bytes", n))
	}
	if n == 0 {
		return []byte{}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return mangled(goBytes(n), 0xAA)
	}
	at, size := -1, s.size
	if n <= s.size {
		var to int
		size, to = sharedSize(n)
		at = s.take(size, to)
	}
	if at < 0 {
		panic(fault.New(fault.Exhausted, "no room for %d bytes in shared memory of %d bytes, of which %d are in use: give batches back sooner, or take smaller ones", n, s.size, s.live))
	}
	s.blocks[at] = size
	s.live += size
	s.peak = max(s.live, s.peak-s.peak/64)
	s.touch(at, at+size)
	return mangled(bytesAt(s.base+uintptr(at), size), 0xAA)[:n]
}

// take cuts the lowest room for size bytes out of what is free; -1: there is none. It needs s.mu.
func (s *Shared) take(size, to int) int {
	for i := range s.free {
		f := s.free[i]
		at := (f.at + to - 1) &^ (to - 1)
		if at > f.end-size {
			continue
		}
		switch left := (extent{at + size, f.end}); {
		case at > f.at && left.at < left.end:
			s.free[i].end = at
			s.free = slices.Insert(s.free, i+1, left)
		case at > f.at:
			s.free[i].end = at
		case left.at < left.end:
			s.free[i] = left
		default:
			s.free = slices.Delete(s.free, i, i+1)
		}
		return at
	}
	return -1
}

// give adds an extent to what is free; it needs s.mu.
func (s *Shared) give(x extent) {
	i, _ := slices.BinarySearchFunc(s.free, x, func(a, b extent) int { return a.at - b.at })
	before, after := i > 0 && s.free[i-1].end == x.at, i < len(s.free) && s.free[i].at == x.end
	switch {
	case before && after:
		s.free[i-1].end = s.free[i].end
		s.free = slices.Delete(s.free, i, i+1)
	case before:
		s.free[i-1].end = x.end
	case after:
		s.free[i].at = x.at
	default:
		s.free = slices.Insert(s.free, i, x)
	}
}

// touch counts the memory behind [from, to); it needs s.mu.
func (s *Shared) touch(from, to int) {
	last := (to - 1) / chunk
	if more := last + 1 - len(s.touched); more > 0 {
		s.touched = append(s.touched, make([]bool, more)...)
	}
	n := 0
	for c := from / chunk; c <= last; c++ {
		if !s.touched[c] {
			s.touched[c] = true
			n += chunk
		}
	}
	s.count(n)
}

// count needs s.mu.
func (s *Shared) count(n int) {
	if n != 0 {
		s.resident += n
		s.held(int64(n))
	}
}

// Free takes back what Allocate or Reallocate returned, of any length.
func (s *Shared) Free(b []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.find(b)
	if !ok {
		mangled(b[:cap(b)], 0xCC) // of the heap, after Close
		return
	}
	size, ok := s.blocks[at]
	if !ok {
		panic(fault.New(fault.Internal, "shared memory freed twice, or not where it was allocated (at %d)", at))
	}
	delete(s.blocks, at)
	s.live -= size
	if s.closed { // another process may still look at it
		s.leave()
		return
	}
	mangled(bytesAt(s.base+uintptr(at), size), 0xCC)
	s.give(extent{at, at + size})
	s.trim()
}

// Reallocate resizes b; smaller ones stay where they are.
func (s *Shared) Reallocate(n int, b []byte) []byte {
	if r, ok := s.shrink(n, b); ok {
		return r
	}
	r := s.Allocate(n)
	copy(r, b)
	s.Free(b)
	return r
}

func (s *Shared) shrink(n int, b []byte) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ok := s.find(b)
	if !ok || n <= 0 || s.closed {
		return b, ok && n > 0 && n <= len(b)
	}
	had, ok := s.blocks[at]
	size, _ := sharedSize(n)
	if !ok || size > had {
		return nil, false
	}
	if size < had {
		s.blocks[at] = size
		s.live -= had - size
		s.give(extent{at + size, at + had})
		s.trim()
	}
	return bytesAt(s.base+uintptr(at), size)[:n], true
}

// trim gives pages back, the highest addresses first, until half of the peak of late is free; it needs s.mu.
func (s *Shared) trim() {
	most := s.peak + s.peak/2 + 1<<20
	if s.pinned || s.resident <= most {
		return
	}
	for i := len(s.free) - 1; i >= 0 && s.resident > most; i-- {
		lo, hi := (s.free[i].at+chunk-1)/chunk, min(s.free[i].end/chunk, len(s.touched))
		for hi > lo && s.resident > most {
			if !s.touched[hi-1] {
				hi--
				continue
			}
			from := hi // of the chunks to give back, which follow each other
			for from > lo && s.touched[from-1] && s.resident-(hi-from)*chunk > most {
				from--
			}
			if punch(s.file, int64(from)*chunk, int64(hi-from)*chunk) != nil {
				return // it stays, and stays counted
			}
			clear(s.touched[from:hi])
			s.count(-(hi - from) * chunk)
			hi = from
		}
	}
	for n := len(s.touched); n > 0 && !s.touched[n-1]; n-- {
		s.touched = s.touched[:n-1]
	}
}

// Close gives the memory up. Blocks handed out stay valid until they are freed, and what another process has mapped is not
// written to, or taken from it, any more; the file is closed. Blocks asked for later come from the Go heap. Idempotent.
func (s *Shared) Close() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.closed = true
	s.file.Close()
	s.count(-s.resident)
	s.free, s.touched = nil, nil
	s.leave()
}

// leave unmaps memory that is closed, and has no block left; it needs s.mu.
func (s *Shared) leave() {
	if len(s.blocks) == 0 && s.base != 0 {
		unmap(s.base, uintptr(s.size))
		s.base = 0
	}
}
