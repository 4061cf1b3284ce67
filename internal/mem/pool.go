// Package mem is the allocator behind the byte budget: Arrow buffers in memory
// that the garbage collector neither scans nor doubles.
//
// A [Pool] rounds sizes up to classes, four per doubling, so at most a fifth is
// lost. Blocks of 4 KiB and more lie outside the Go heap, in one reserved range
// of addresses with a part per class; so the class of a block, and whether the
// pool owns an address at all, follow from the address. Freed blocks are kept
// for reuse until live and kept bytes together pass the limit, then their pages
// go back to the system. Smaller blocks come from the Go heap and are counted.
// A closed pool leaves its addresses and some pages to the next one of the same shape.
//
// Where no addresses can be reserved (systems other than Linux, tight
// RLIMIT_AS) all blocks come from the Go heap, counted the same way.
package mem

import (
	"math/bits"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/penstock-data/penstock/internal/fault"
)

const (
	minOff   = 4 << 10 // smallest block outside the Go heap
	minShift = 12
	numSmall = 8  // classes below 16 KiB: 16 blocks are cut from one block of ...
	hostOff  = 16 // ... the class 16 above, which is exactly 16 times as large
	perSlab  = 16
	align    = 64
)

// Pool is a memory.Allocator. Safe for concurrent use. Allocate never blocks.
type Pool struct {
	limit   int64
	live    atomic.Int64 // bytes handed out, by class
	outside atomic.Int64 // bytes that share the limit
	closed  atomic.Bool
	left    sync.Once   // the arena was given up, which may be another pool's now:
	gone    atomic.Bool // it is not touched any more
	*arena

	hugeN  atomic.Int64
	hugeMu sync.Mutex
	huge   map[uintptr]int // blocks with a mapping of their own, by size
}

// arena is a reserved range of addresses and which of its blocks are free.
type arena struct {
	cached  atomic.Int64 // bytes of free blocks with pages behind them
	base    uintptr      // 0: nothing reserved
	end     uintptr
	shift   uint // log2 of the addresses of a class
	classes []class
	small   [numSmall]smallClass
}

// class is the blocks of one size, numbered from the start of its addresses.
type class struct {
	mu    sync.Mutex
	size  int
	base  uintptr
	hosts bool     // small classes cut its blocks
	state []state  // per block that was ever used
	slabs []*slab  // per block: set where state is slabbed
	dirty []uint32 // free, with pages; last in, first out
	clean []uint32 // free, without pages
}

type state uint8

const (
	freeClean state = iota
	freeDirty
	live
	slabbed // live, and cut into 16 blocks of a small class
)

// smallClass hands out sixteenths of host blocks.
type smallClass struct {
	mu      sync.Mutex
	partial []*slab // with at least one free block
}

type slab struct {
	at   uintptr
	free uint16 // bit per block
	pos  int    // in partial, -1 if full
}

// New returns a pool that keeps live and cached bytes together within limit as
// far as live ones allow. Close it.
func New(limit int64) *Pool {
	p := &Pool{limit: max(limit, 0), huge: make(map[uintptr]int)}
	p.arena = newArena(p.limit)
	p.fit(0)
	if p.base != 0 {
		pace()
	}
	return p
}

// classOf returns the class of n bytes, n >= 1: class 0 is 4 KiB, 4 is 8 KiB.
func classOf(n int) int {
	if n <= minOff {
		return 0
	}
	e := bits.Len(uint(n-1)) - 1
	return (e-minShift)*4 + (n-1)>>(e-2) - 4 + 1
}

func classSize(c int) int { return (4 + c&3) << (minShift - 2 + c>>2) }

// Size returns how many bytes a request for n takes.
func Size(n int) int {
	switch {
	case n <= 0:
		return 0
	case n <= minOff-align:
		return (n + align - 1) &^ (align - 1)
	}
	return classSize(classOf(n))
}

// Live returns the bytes handed out and not freed.
func (p *Pool) Live() int64 { return p.live.Load() }

// Cached returns the bytes of freed blocks that still take memory.
func (p *Pool) Cached() int64 {
	if p.gone.Load() {
		return 0
	}
	return p.cached.Load()
}

// Allocate returns n bytes, 64-byte aligned, with undefined contents and a
// capacity of Size(n).
func (p *Pool) Allocate(n int) []byte {
	if n < 0 {
		panic(fault.New(fault.Internal, "allocate %d bytes", n))
	}
	if n == 0 {
		return []byte{}
	}
	size := Size(n)
	p.live.Add(int64(size))
	if size < minOff || p.base == 0 || p.closed.Load() {
		return mangled(goBytes(size), 0xAA)[:n]
	}
	c := classOf(n)
	var at uintptr
	switch {
	case c < numSmall:
		at = p.allocSmall(c)
	case c < len(p.classes):
		at = p.allocBlock(c, live)
	}
	if at == 0 {
		at = p.allocHuge(size)
	}
	p.fit(p.live.Load())
	return mangled(bytesAt(at, size), 0xAA)[:n]
}

// Free takes back what Allocate or Reallocate returned, of any length.
func (p *Pool) Free(b []byte) {
	size := p.SizeOf(b)
	if size == 0 {
		return
	}
	at := addr(b)
	switch {
	case p.within(at):
		c := int((at - p.base) >> p.shift)
		p.freeBlock(c, at)
	case p.ownsHuge(at):
		p.freeHuge(at)
	default:
		mangled(b[:cap(b)], 0xCC)
	}
	p.fit(p.live.Load() - int64(size))
	if l := p.live.Add(-int64(size)); l == 0 && p.closed.Load() {
		p.leave()
	}
}

// Reallocate resizes b, in place where that wastes less than a third.
func (p *Pool) Reallocate(n int, b []byte) []byte {
	if InPlace(n, p.SizeOf(b)) {
		return b[:n]
	}
	r := p.Allocate(n)
	copy(r, b)
	p.Free(b)
	return r
}

// InPlace reports whether Reallocate to n bytes leaves a block of size bytes where it is.
func InPlace(n, size int) bool { return n <= size && n > 0 && (size-Size(n))*3 < size }

// SizeOf returns the bytes that b, which must come from p, takes.
func (p *Pool) SizeOf(b []byte) int {
	if cap(b) == 0 {
		return 0
	}
	at := addr(b)
	if !p.within(at) {
		return cap(b)
	}
	c := &p.classes[(at-p.base)>>p.shift]
	if i := int((at - c.base) / uintptr(c.size)); c.slabAt(i) != nil {
		return c.size / perSlab
	}
	return c.size
}

// Owns reports whether b lies in memory of p outside the Go heap: always so for
// blocks of 4 KiB and more while anything is reserved.
func (p *Pool) Owns(b []byte) bool {
	at := addr(b)
	if p.within(at) {
		return true
	}
	if p.hugeN.Load() == 0 {
		return false
	}
	p.hugeMu.Lock()
	defer p.hugeMu.Unlock()
	for base, size := range p.huge { // few
		if at >= base && at < base+uintptr(size) {
			return true
		}
	}
	return false
}

func (p *Pool) within(at uintptr) bool { return at >= p.base && at < p.end && !p.gone.Load() }

// OffHeap reports whether large blocks lie outside the Go heap at all.
func (p *Pool) OffHeap() bool { return p.base != 0 }

// Outside tells the pool of n bytes more (or less) that share its limit.
func (p *Pool) Outside(n int64) {
	p.outside.Add(n)
	p.fit(p.live.Load())
}

// fit trims what is cached to what the limit leaves beside live bytes, and a little more.
func (p *Pool) fit(live int64) {
	used := live + p.outside.Load()
	if c := p.Cached(); c > 0 && used+c > p.limit {
		p.trim(max(p.limit-used-p.limit/32, 0))
	}
}

// Trim gives all cached pages back to the system.
func (p *Pool) Trim() {
	if !p.gone.Load() {
		p.trim(0)
	}
}

// Close gives everything back as soon as the last block is freed, but for what
// the next pool may take over (see arena.go). Blocks handed out stay valid; new
// ones come from the Go heap. Idempotent.
func (p *Pool) Close() {
	p.closed.Store(true)
	if p.live.Load() == 0 {
		p.leave()
	} else {
		p.Trim()
	}
}

func (p *Pool) leave() {
	p.left.Do(func() {
		p.gone.Store(true)
		p.park(min(p.limit/2, keepBytes))
	})
}

// allocBlock returns 0 when the addresses of the class are used up.
func (p *Pool) allocBlock(k int, s state) uintptr {
	c := &p.classes[k]
	c.mu.Lock()
	defer c.mu.Unlock()
	var i uint32
	switch {
	case len(c.dirty) > 0:
		i = pop(&c.dirty)
		p.cached.Add(-int64(c.size))
	case len(c.clean) > 0:
		i = pop(&c.clean)
	case (len(c.state)+1)*c.size <= 1<<p.shift:
		i = uint32(len(c.state))
		c.state = append(c.state, 0)
		if c.hosts {
			c.slabs = append(c.slabs, nil)
		}
	default:
		return 0
	}
	c.state[i] = s
	return c.base + uintptr(i)*uintptr(c.size)
}

func (p *Pool) freeBlock(k int, at uintptr) {
	c := &p.classes[k]
	i := int((at - c.base) / uintptr(c.size))
	if s := c.slabAt(i); s != nil {
		p.freeSmall(k-hostOff, s, at)
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if i >= len(c.state) || c.state[i] != live || at != c.base+uintptr(i)*uintptr(c.size) {
		panic(fault.New(fault.Internal, "memory freed twice, or not where it was allocated (class of %d bytes)", c.size))
	}
	p.putBlock(c, i)
}

// putBlock needs c.mu.
func (a *arena) putBlock(c *class, i int) {
	mangled(bytesAt(c.base+uintptr(i)*uintptr(c.size), c.size), 0xCC)
	c.state[i] = freeDirty
	c.dirty = append(c.dirty, uint32(i))
	a.cached.Add(int64(c.size))
}

func (c *class) slabAt(i int) *slab {
	if !c.hosts {
		return nil
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if i >= len(c.slabs) {
		return nil
	}
	return c.slabs[i]
}

func (p *Pool) allocSmall(k int) uintptr {
	sc := &p.small[k]
	sc.mu.Lock()
	defer sc.mu.Unlock()
	if len(sc.partial) == 0 {
		at := p.allocBlock(k+hostOff, slabbed)
		if at == 0 {
			return 0
		}
		c := &p.classes[k+hostOff]
		s := &slab{at: at, free: 1<<perSlab - 1}
		c.mu.Lock()
		c.slabs[(at-c.base)/uintptr(c.size)] = s
		c.mu.Unlock()
		p.cached.Add(int64(c.size))
		sc.partial = append(sc.partial, s)
	}
	s := sc.partial[len(sc.partial)-1]
	i := bits.TrailingZeros16(s.free)
	s.free &^= 1 << i
	if s.free == 0 {
		s.pos = -1
		pop(&sc.partial)
	}
	p.cached.Add(-int64(classSize(k)))
	return s.at + uintptr(i*classSize(k))
}

func (p *Pool) freeSmall(k int, s *slab, at uintptr) {
	size := classSize(k)
	sc := &p.small[k]
	sc.mu.Lock()
	defer sc.mu.Unlock()
	i := int(at-s.at) / size
	if s.free&(1<<i) != 0 || at != s.at+uintptr(i*size) {
		panic(fault.New(fault.Internal, "memory freed twice, or not where it was allocated (class of %d bytes)", size))
	}
	mangled(bytesAt(at, size), 0xCC)
	p.cached.Add(int64(size))
	s.free |= 1 << i
	if s.pos < 0 {
		s.pos = len(sc.partial)
		sc.partial = append(sc.partial, s)
	}
	if s.free != 1<<perSlab-1 || len(sc.partial) == 1 && !p.closed.Load() {
		return // in use, or the one empty slab that is kept
	}
	last := pop(&sc.partial)
	if last != s {
		sc.partial[s.pos] = last
		last.pos = s.pos
	}
	c := &p.classes[k+hostOff]
	p.cached.Add(-int64(c.size))
	c.mu.Lock()
	defer c.mu.Unlock()
	b := int((s.at - c.base) / uintptr(c.size))
	c.slabs[b] = nil
	p.putBlock(c, b)
}

func (p *Pool) allocHuge(size int) uintptr {
	at, ok := reserve(uintptr(size))
	if !ok {
		p.trim(0)
		if at, ok = reserve(uintptr(size)); !ok {
			p.live.Add(-int64(size))
			panic(fault.New(fault.Exhausted, "the system has no memory for %d bytes more", size))
		}
	}
	p.hugeMu.Lock()
	p.huge[at] = size
	p.hugeMu.Unlock()
	p.hugeN.Add(1)
	return at
}

// ownsHuge is true of the start of a block only.
func (p *Pool) ownsHuge(at uintptr) bool {
	if p.hugeN.Load() == 0 {
		return false
	}
	p.hugeMu.Lock()
	defer p.hugeMu.Unlock()
	return p.huge[at] != 0
}

func (p *Pool) freeHuge(at uintptr) {
	p.hugeMu.Lock()
	size := p.huge[at]
	delete(p.huge, at)
	p.hugeMu.Unlock()
	p.hugeN.Add(-1)
	unmap(at, uintptr(size))
}

func pop[T any](s *[]T) T {
	n := len(*s) - 1
	v := (*s)[n]
	*s = (*s)[:n]
	return v
}

func goBytes(size int) []byte {
	b := make([]byte, size+align)
	skip := int(-addr(b) & (align - 1))
	return b[skip : skip+size : skip+size]
}

func addr(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

func mangled(b []byte, v byte) []byte {
	if mangle && len(b) > 0 {
		b[0] = v
		for n := 1; n < len(b); n *= 2 {
			copy(b[n:], b[:n])
		}
	}
	return b
}
