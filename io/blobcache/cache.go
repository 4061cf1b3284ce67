// Package blobcache keeps bytes that were fetched from buckets on local disk.
//
// A cache is one file, DIR/penstock-cache/blocks (folder 0700, file 0600), of at most Max
// bytes, which is never passed: the file is a table of slots, and there are no temporary
// files. Any number of processes of one user use it at once. What is in it is
// identified by an [ID] (bucket, key, version) and by offset, and checksummed; what
// cannot be right is forgotten and counted, and the caller fetches it again. A cache
// never fails a read: where the disk is full, or the folder cannot be used, it says so
// once ([Options].Warn), and goes on as one that has nothing and takes nothing. A file of that
// name that is not a cache is left as it is, and none is kept there.
//
// What several readers of a process miss at once, one of them fetches: see [Cache.Claim].
//
// # The file
//
// A header, then sets of 64 slots of 128 KiB with a page of entries before them. An entry says
// which bytes of which object its slot holds, and their checksum. An object is cut
// into blocks of 128 KiB; what was fetched of a block lies in one slot (in several, if
// it is not one run). A block may be in either of two sets, which a hash of
// object and block names, and goes where there is more room: so sets fill evenly, and the
// file is some 90 % full before anything has to go. When the number of sets changes (another
// Max), few blocks have to move (jump consistent hash); those are lost.
//
// # Concurrency and crashes
//
// Who writes holds flock on the file, for some blocks at a time; it clears the entry,
// writes the slot, writes the entry. Readers take no lock: an entry whose checksum does
// not fit, and which is another one when it is read again, was being replaced.
// A process that is killed leaves at most a slot without an entry; a machine that loses power leaves
// entries whose checksum does not fit. A lock that cannot be had within a tenth of a second (its holder
// is stopped) is not waited for: nothing is put in for some seconds.
//
// # What stays
//
// The block that gives way is the one not used for longest, of the 128 that are candidates. But epochs
// read the same bytes over and over, and of data that do not fit, the least recently used are the next to be read:
// so what was used since the cache was opened (and within a day) stays, and what finds no
// other room is not put in, but for one block in 64, so that a program
// that turns to other data gets room for them in time. A cache that holds a half of the data thus
// saves a half of the reads; under plain LRU it would save none.
package blobcache

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
)

// MinMax is the smallest Options.Max.
const MinMax = 32 << 20

// Options of a cache.
type Options struct {
	Dir string // made if need be; the cache is a folder in it
	Max int64  // bytes on disk, at least MinMax. Processes that share Dir should agree: what was opened last counts for all
	// Warn, if not nil, is called once if the cache cannot work, or not any more, with what is wrong and what to do:
	// by whoever uses it then, who waits for it. Err says so, too.
	Warn func(error)
}

// Cache is an open cache. Safe for concurrent use; caches of one folder share its contents.
type Cache struct {
	o     Options
	birth int64 // when it was opened, in ns: what was used since then stays

	once    sync.Once
	file    atomic.Pointer[os.File] // nil: it cannot be used
	sets    atomic.Int64            // of the file, as last seen
	noWrite atomic.Bool
	failed  atomic.Pointer[error]

	mu    sync.Mutex // one writer at a time; guards:
	busy  time.Time  // no lock is asked for before this
	turns uint64     // blocks for which there was no room
	anew  bool       // the file is yet to get the size that the options say

	free chan *scratch

	flying  sync.Mutex // guards:
	flights map[ID][]*flight

	hitBytes, missBytes, stored, refused, evicted, corrupt, skipped atomic.Int64
}

// scratches bounds the reads of the cache at once, and with them the memory that is not the caller's: 2 MiB.
const scratches = 16

// New describes a cache; the folder is opened when it is first used. Only options that
// make no sense are an error (Invalid). Close when done.
func New(o Options) (*Cache, error) {
	if o.Dir == "" {
		return nil, fault.New(fault.Invalid, "cache: dir is missing: name a folder on a local disk")
	}
	if o.Max < MinMax {
		return nil, fault.New(fault.Invalid, "cache: max is %d bytes: give at least %d (32MiB)", o.Max, int64(MinMax))
	}
	c := &Cache{o: o, birth: time.Now().UnixNano(), free: make(chan *scratch, scratches), flights: map[ID][]*flight{}}
	for range scratches {
		c.free <- nil // made when it is needed
	}
	return c, nil
}

// Close closes the file; what is in it stays. Reads and writes after it find nothing. Idempotent.
func (c *Cache) Close() error {
	c.once.Do(func() {}) // not to be opened any more
	c.mu.Lock()
	defer c.mu.Unlock()
	c.noWrite.Store(true)
	f := c.file.Swap(nil)
	if f == nil {
		return nil
	}
	if err := f.Close(); err != nil {
		return fault.New(fault.Unknown, "cache: close: %w", err)
	}
	return nil
}

// Err is what ended the writing, nil if nothing did. Reads go on to find what is there.
func (c *Cache) Err() error {
	if e := c.failed.Load(); e != nil {
		return *e
	}
	return nil
}

// ID identifies one version of one object.
type ID [16]byte

// MakeID is the ID of what these texts say together: bucket URL, server, key, version.
func MakeID(texts ...string) ID {
	h := sha256.New()
	for _, s := range texts {
		h.Write(binary.AppendUvarint(nil, uint64(len(s))))
		h.Write([]byte(s))
	}
	return ID(h.Sum(nil)[:len(ID{})])
}

// Span is [Off, Off+Len) of a buffer.
type Span struct{ Off, Len int }

// Read fills what it can of dst with the bytes of id from offset off, and returns the spans of
// dst, in order, that it could not: their contents are undefined. It stops early when ctx ends.
func (c *Cache) Read(ctx context.Context, id ID, dst []byte, off int64) (missing []Span) {
	f := c.opened()
	if f == nil {
		return append(missing, Span{0, len(dst)})
	}
	s := c.take()
	defer c.give(s)
	s.stale = s.stale[:0]
	lost := 0
	for at := 0; at < len(dst); {
		block, from := cut(off + int64(at))
		n := min(blockSize-from, len(dst)-at)
		got := 0
		if ctx.Err() == nil {
			got = c.readBlock(f, s, key{id, block}, from, dst[at:at+n])
		}
		if got < n {
			if k := len(missing) - 1; k >= 0 && missing[k].Off+missing[k].Len == at+got {
				missing[k].Len += n - got
			} else {
				missing = append(missing, Span{at + got, n - got})
			}
			lost += n - got
		}
		at += n
	}
	c.hitBytes.Add(int64(len(dst) - lost))
	c.missBytes.Add(int64(lost))
	c.touch(s.stale)
	return missing
}

// Has reports whether [off, off+n) of id is there, by its entries alone.
func (c *Cache) Has(id ID, off, n int64) bool {
	f := c.opened()
	if f == nil {
		return false
	}
	s := c.take()
	defer c.give(s)
	for end := off + n; off < end; {
		block, from := cut(off)
		to := int(min(int64(blockSize), int64(from)+end-off))
		s.load(f, c.sets.Load(), key{id, block})
		for pos := from; pos < to; {
			e, _ := s.covers(pos)
			if e.n == 0 {
				return false
			}
			pos = e.end()
		}
		off += int64(to - from)
	}
	return true
}

// Write puts data, the bytes of id from offset off, into the cache; data stays the caller's.
func (c *Cache) Write(id ID, data []byte, off int64) {
	if c.opened() == nil || c.noWrite.Load() {
		return
	}
	s := c.take()
	defer c.give(s)
	for len(data) > 0 {
		f := c.lock()
		if f == nil {
			c.skipped.Add(int64(len(data)))
			return
		}
		for i := 0; i < perLock && len(data) > 0; i++ {
			block, from := cut(off)
			n := min(blockSize-from, len(data))
			if err := c.insert(f, s, key{id, block}, from, data[:n]); err != nil {
				c.unlock(f)
				c.stop(err)
				return
			}
			data, off = data[n:], off+int64(n)
		}
		c.unlock(f)
	}
}

// Stats says what a cache did since it was opened, here.
type Stats struct {
	HitBytes  int64 // asked for and found
	MissBytes int64 // asked for and not found
	Stored    int64 // bytes put in
	Refused   int64 // bytes not put in, because what is there is in use
	Skipped   int64 // bytes not put in, because another process held the lock for long
	Evicted   int64 // blocks that gave way to others
	Corrupt   int64 // blocks that were damaged, and forgotten
}

// Stats are as of now.
func (c *Cache) Stats() Stats {
	return Stats{HitBytes: c.hitBytes.Load(), MissBytes: c.missBytes.Load(), Stored: c.stored.Load(), Refused: c.refused.Load(),
		Skipped: c.skipped.Load(), Evicted: c.evicted.Load(), Corrupt: c.corrupt.Load()}
}

func (s Stats) String() string {
	return fmt.Sprintf("hit=%d missed=%d stored=%d refused=%d skipped=%d evicted=%d corrupt=%d",
		s.HitBytes, s.MissBytes, s.Stored, s.Refused, s.Skipped, s.Evicted, s.Corrupt)
}

func (c *Cache) take() *scratch {
	s := <-c.free
	if s == nil {
		s = new(scratch)
	}
	return s
}

func (c *Cache) give(s *scratch) { c.free <- s }
