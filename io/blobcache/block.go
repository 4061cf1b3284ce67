package blobcache

import (
	"bytes"
	"encoding/binary"
	"os"
	"time"

	"github.com/zeebo/xxh3"
)

const (
	entryBytes  = 48
	touchAfter  = int64(time.Minute)    // between two notes that a block was used
	keepUnused  = int64(24 * time.Hour) // what was not used for so long gives way
	lettingIn   = 64                    // one block of so many finds room although all is in use
	noteInEntry = 16                    // offset of used
)

// key names a block of an object.
type key struct {
	id    ID
	block uint32
}

// cut is the block of an offset, and the place in it.
func cut(off int64) (block uint32, from int) { return uint32(off / blockSize), int(off % blockSize) }

// entry says what a slot holds: bytes [from, from+n) of a block; n is 0 of an empty one.
// On disk: id, used (ns), sum, block, from, n, 4 bytes of 0; little endian.
type entry struct {
	key
	used int64
	sum  uint64
	from int
	n    int
}

func (e *entry) end() int { return e.from + e.n }

// parse returns an empty entry for one that cannot be.
func parse(b []byte) (e entry) {
	from, n := binary.LittleEndian.Uint32(b[36:]), binary.LittleEndian.Uint32(b[40:])
	if n == 0 || n > blockSize || from > blockSize-n {
		return e
	}
	e.id = ID(b[:16])
	e.used = int64(binary.LittleEndian.Uint64(b[noteInEntry:]))
	e.sum = binary.LittleEndian.Uint64(b[24:])
	e.block = binary.LittleEndian.Uint32(b[32:])
	e.from, e.n = int(from), int(n)
	return e
}

func (e *entry) append(b []byte) []byte {
	b = append(b, e.id[:]...)
	b = binary.LittleEndian.AppendUint64(b, uint64(e.used))
	b = binary.LittleEndian.AppendUint64(b, e.sum)
	b = binary.LittleEndian.AppendUint32(b, e.block)
	b = binary.LittleEndian.AppendUint32(b, uint32(e.from))
	b = binary.LittleEndian.AppendUint32(b, uint32(e.n))
	return append(b, 0, 0, 0, 0)
}

// sumOf covers the bytes, and what they are said to be.
func (e *entry) sumOf(data []byte) uint64 {
	var b [entryBytes]byte
	c := entry{key: e.key, from: e.from, n: e.n}
	return xxh3.HashSeed(data, xxh3.Hash(c.append(b[:0])))
}

// scratch is what one call works with.
type scratch struct {
	pages [2][ways * entryBytes]byte
	at    [2]int64 // offsets of the sets
	key   key
	block [blockSize]byte
	stale []int64 // offsets of notes of use to be renewed
}

// load reads the entries of the two sets that may hold a block. Pages beyond the end of the file are empty.
func (s *scratch) load(f *os.File, sets int64, k key) {
	s.key = k
	var b [20]byte
	copy(b[:], k.id[:])
	binary.LittleEndian.PutUint32(b[16:], k.block)
	h := xxh3.Hash128(b[:])
	i := jump(h.Lo, sets)
	j := jump(h.Hi, sets)
	if i == j {
		j = (j + 1) % sets
	}
	for p, set := range [2]int64{i, j} {
		s.at[p] = headerBytes + set*setBytes
		n, _ := f.ReadAt(s.pages[p][:], s.at[p])
		clear(s.pages[p][n:])
	}
}

// jump is the jump consistent hash of Lamping and Veach.
func jump(key uint64, n int64) int64 {
	b, j := int64(-1), int64(0)
	for j < n {
		b = j
		key = key*2862933555777941757 + 1
		j = int64(float64(b+1) * (float64(1<<31) / float64(key>>33+1)))
	}
	return b
}

// slot is where an entry is: page and number.
type slot struct{ page, i int }

func (s *scratch) raw(at slot) []byte { return s.pages[at.page][at.i*entryBytes:][:entryBytes] }

// entryAt and dataAt are offsets in the file.
func (s *scratch) entryAt(at slot) int64 { return s.at[at.page] + int64(at.i)*entryBytes }
func (s *scratch) dataAt(at slot) int64 {
	return s.at[at.page] + pageBytes + int64(at.i)*blockSize
}

// each calls f for the entries of the block that was loaded.
func (s *scratch) each(f func(e entry, at slot)) {
	for p := range s.pages {
		for i := range ways {
			at := slot{p, i}
			if b := s.raw(at); bytes.Equal(b[:16], s.key.id[:]) {
				if e := parse(b); e.n > 0 && e.key == s.key {
					f(e, at)
				}
			}
		}
	}
}

// covers finds the entry that holds the byte at pos and most of what follows.
func (s *scratch) covers(pos int) (best entry, where slot) {
	s.each(func(e entry, at slot) {
		if e.from <= pos && pos < e.end() && e.end() > best.end() {
			best, where = e, at
		}
	})
	return best, where
}

// readBlock fills dst from offset from of a block, and returns how much of it.
func (c *Cache) readBlock(f *os.File, s *scratch, k key, from int, dst []byte) (n int) {
	for range 2 {
		s.load(f, c.sets.Load(), k)
		n = 0
		for n < len(dst) {
			e, at := s.covers(from + n)
			if e.n == 0 {
				return n
			}
			want := dst[n:min(len(dst), e.end()-from)]
			buf, whole := want, e.from == from+n && e.n == len(want)
			if !whole {
				buf = s.block[:e.n]
			}
			k, _ := f.ReadAt(buf, s.dataAt(at)+int64(e.from))
			if k < len(buf) || e.sumOf(buf) != e.sum {
				if c.forget(f, s, at) {
					return n
				}
				break // it was replaced meanwhile: look again
			}
			if !whole {
				copy(want, buf[from+n-e.from:])
			}
			n += len(want)
			if now := time.Now().UnixNano(); e.used < c.birth || now-e.used > touchAfter {
				s.stale = append(s.stale, s.entryAt(at))
			}
		}
		if n == len(dst) {
			return n
		}
	}
	return n
}

// forget clears an entry whose bytes are not what it says. It is false if the entry is another one by now.
func (c *Cache) forget(f *os.File, s *scratch, at slot) bool {
	var b [entryBytes]byte
	same := func(f *os.File) bool {
		n, _ := f.ReadAt(b[:], s.entryAt(at))
		old := s.raw(at)
		return n == len(b) && bytes.Equal(b[:noteInEntry], old[:noteInEntry]) && bytes.Equal(b[noteInEntry+8:], old[noteInEntry+8:])
	}
	if !same(f) {
		return false
	}
	if g := c.lock(); g != nil {
		defer c.unlock(g)
		if !same(g) {
			return false
		}
		clear(b[:])
		if _, err := g.WriteAt(b[:], s.entryAt(at)); err != nil {
			c.stop(err)
		}
	}
	c.corrupt.Add(1)
	return true
}

// touch notes that blocks were used: their entries are at these offsets. One that was replaced
// meanwhile stays a little longer for it.
func (c *Cache) touch(at []int64) {
	if len(at) == 0 || c.noWrite.Load() {
		return
	}
	f := c.lock()
	if f == nil {
		return
	}
	defer c.unlock(f)
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], uint64(time.Now().UnixNano()))
	end := fileSize(c.sets.Load())
	for _, off := range at {
		if off >= end { // the file has become smaller
			continue
		}
		if _, err := f.WriteAt(b[:], off+noteInEntry); err != nil {
			c.stop(err)
			return
		}
	}
}

// insert puts data, bytes [from, from+len(data)) of a block, into a slot, together with what is there of
// the block and touches it. The lock is held.
func (c *Cache) insert(f *os.File, s *scratch, k key, from int, data []byte) error {
	s.load(f, c.sets.Load(), k)
	var lo, hi int
	var parts []slot
	var bad error
	there := false
	for damaged := true; damaged; {
		damaged, parts, lo, hi = false, parts[:0], from, from+len(data)
		s.each(func(e entry, at slot) {
			if e.from <= from && e.end() >= from+len(data) {
				there = true
			}
			if there || damaged || e.from > from+len(data) || e.end() < from {
				return
			}
			buf := s.block[e.from:e.end()]
			if n, _ := f.ReadAt(buf, s.dataAt(at)+int64(e.from)); n < len(buf) || e.sumOf(buf) != e.sum {
				// It may lie over bytes of others, which are thus read again, without it.
				c.corrupt.Add(1)
				damaged, bad = true, s.put(f, at, entry{})
				return
			}
			parts = append(parts, at)
			lo, hi = min(lo, e.from), max(hi, e.end())
		})
		if there || bad != nil {
			return bad
		}
	}
	now := time.Now().UnixNano()
	at, ok := slot{}, len(parts) > 0
	if ok {
		at = parts[0]
		copy(s.block[from:], data)
		data = s.block[lo:hi]
	} else if at, ok = c.room(s, now); !ok {
		c.refused.Add(int64(len(data)))
		return nil
	}
	for _, p := range append(parts, at) {
		if parse(s.raw(p)).n > 0 {
			if err := s.put(f, p, entry{}); err != nil {
				return err
			}
		}
	}
	if _, err := f.WriteAt(data, s.dataAt(at)+int64(lo)); err != nil {
		return err
	}
	e := entry{key: k, used: now, from: lo, n: hi - lo}
	e.sum = e.sumOf(data)
	if err := s.put(f, at, e); err != nil {
		return err
	}
	c.stored.Add(int64(len(data)))
	return nil
}

// put writes an entry, on disk and in the page.
func (s *scratch) put(f *os.File, at slot, e entry) error {
	b := e.append(s.raw(at)[:0])
	_, err := f.WriteAt(b, s.entryAt(at))
	return err
}

// room chooses the slot for a new block among those of its two sets: see the package comment.
func (c *Cache) room(s *scratch, now int64) (slot, bool) {
	var best [2]slot // of the set, to be used next: empty, or else used least recently
	var age [2]int64
	var loose [2]int // slots that may be taken
	for p := range s.pages {
		age[p] = 1<<63 - 1
		for i := range ways {
			at := slot{p, i}
			used := int64(-1)
			if e := parse(s.raw(at)); e.n > 0 {
				used = max(e.used, 0)
				if used > now { // the clock was set back
					used = 0
				}
			}
			if used < c.birth || now-used > keepUnused {
				loose[p]++
			}
			if used < age[p] {
				best[p], age[p] = at, used
			}
		}
	}
	p := 0
	switch {
	case loose[0] != loose[1]:
		if loose[1] > loose[0] {
			p = 1
		}
	case age[1] < age[0]:
		p = 1
	}
	if loose[p] == 0 {
		if c.turns++; c.turns%lettingIn != 0 {
			return slot{}, false
		}
	}
	if age[p] >= 0 {
		c.evicted.Add(1)
	}
	return best[p], true
}
