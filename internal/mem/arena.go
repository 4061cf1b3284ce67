package mem

import (
	"math/bits"
	"runtime"
	"sync"
)

// keepBytes is the most of free blocks that a closed pool leaves to the next; half of its limit, if that is less. Runs follow
// each other, one per epoch or per query, and a fresh page costs several times what it takes to fill it. A scan has 25 to 160 MiB
// of blocks of the sizes that it needs in turn.
const keepBytes = 256 << 20

// spares holds arenas that no pool uses. As in every sync.Pool, what nobody takes is gone after two garbage collections.
var spares sync.Pool

// spare is an arena without blocks in use; its addresses are given back when the collector finds it.
type spare struct {
	*arena
	unmap runtime.Cleanup
}

// newArena returns the arena for a pool of limit bytes: one that a closed pool left, if it has the shape.
func newArena(limit int64) *arena {
	top := min(max(limit, 1<<20), 1<<30)
	n := classOf(int(top)) + 1
	want := uint(bits.Len64(uint64(min(max(2*limit, 64<<20), 64<<30) - 1)))
	if s, _ := spares.Get().(*spare); s != nil {
		s.unmap.Stop()
		if s.shift == want && len(s.classes) == min(n, classOf(1<<(want-1))+1) {
			return s.arena
		}
		s.arena.drop()
	}
	for shift := want; shift >= 26; shift-- {
		n = min(n, classOf(1<<(shift-1))+1)
		base, ok := reserve(uintptr(n) << shift)
		if !ok {
			continue
		}
		a := &arena{base: base, end: base + uintptr(n)<<shift, shift: shift, classes: make([]class, n)}
		for i := range a.classes {
			a.classes[i].size = classSize(i)
			a.classes[i].base = base + uintptr(i)<<shift
			a.classes[i].hosts = i >= hostOff && i < hostOff+numSmall
		}
		return a
	}
	return &arena{}
}

// park leaves a, none of whose blocks is in use, to the next pool, with at most keep bytes.
func (a *arena) park(keep int64) {
	if a.base == 0 {
		return
	}
	a.trim(keep)
	s := &spare{arena: a}
	s.unmap = runtime.AddCleanup(s, (*arena).drop, a)
	spares.Put(s)
}

// drop gives the addresses back. A pool that was closed while another goroutine trims it may still be at it: it finds nothing then.
func (a *arena) drop() {
	for i := range a.classes {
		c := &a.classes[i]
		c.mu.Lock()
		c.dirty, c.clean = nil, nil
		c.mu.Unlock()
	}
	a.cached.Store(0)
	unmap(a.base, a.end-a.base)
}

// trim gives pages back until no more than target bytes are cached, the largest
// blocks first. Free blocks of slabs in use stay.
func (a *arena) trim(target int64) {
	for k := len(a.classes) - 1; k >= numSmall && a.cached.Load() > target; k-- {
		c := &a.classes[k]
		c.mu.Lock()
		for len(c.dirty) > 0 && a.cached.Load() > target {
			i := pop(&c.dirty)
			discard(c.base+uintptr(i)*uintptr(c.size), uintptr(c.size))
			c.state[i] = freeClean
			c.clean = append(c.clean, i)
			a.cached.Add(-int64(c.size))
		}
		c.mu.Unlock()
	}
}
