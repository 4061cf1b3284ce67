package blobcache

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/zeebo/xxh3"
	"golang.org/x/sys/unix"

	"github.com/penstock-data/penstock/internal/fault"
)

const (
	blockSize   = 128 << 10
	ways        = 64
	pageBytes   = 4096 // of a set's entries
	headerBytes = 4096
	setBytes    = pageBytes + ways*blockSize
	maxSets     = 1 << 32 // 32 PiB

	perLock  = 16 // blocks put in under one lock
	patience = 100 * time.Millisecond
	sulk     = 10 * time.Second // after a lock that was not to be had

	folderName, fileName = "penstock-cache", "blocks"
	magic                = "penstock cache 1"
	headerUsed           = len(magic) + 16 // then the number of sets and a checksum
)

// setsFor is how many sets a file of max bytes has.
func setsFor(most int64) int64 { return min((most-headerBytes)/setBytes, maxSets) }

// opened returns the file, opened at the first call; nil if it cannot be used.
func (c *Cache) opened() *os.File {
	c.once.Do(func() {
		f, err := c.openFile()
		if err == nil {
			c.sets.Store(setsFor(c.o.Max))
			c.file.Store(f)
			c.resize()
		} else {
			c.stop(err)
		}
	})
	return c.file.Load()
}

// openFile makes what is missing, and refuses what others could have put there.
func (c *Cache) openFile() (*os.File, error) {
	dir := filepath.Join(c.o.Dir, folderName)
	if err := os.MkdirAll(c.o.Dir, 0o700); err != nil {
		return nil, err
	}
	if err := os.Mkdir(dir, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return nil, err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != os.Geteuid() {
		return nil, fmt.Errorf("%s is not a folder of this user: give every user a cache of its own", dir)
	}
	path := filepath.Join(dir, fileName)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, err
	}
	mode := st.Mode
	if err = unix.Fstat(int(f.Fd()), &st); err == nil {
		switch {
		case st.Mode&unix.S_IFMT != unix.S_IFREG || int(st.Uid) != os.Geteuid():
			err = fmt.Errorf("%s is not a file of this user: remove it", path)
		case foreign(f, st.Size):
			err = errForeign(path)
		case st.Mode&0o077 != 0:
			err = f.Chmod(0o600)
		}
	}
	if err == nil && mode&0o077 != 0 {
		err = os.Chmod(dir, 0o700)
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// foreign reports a file that no cache has written. One that is empty is about to become a cache, here or in another process.
func foreign(f *os.File, size int64) bool {
	var b [len(magic)]byte
	n, _ := f.ReadAt(b[:], 0)
	return size > 0 && string(b[:n]) != magic
}

func errForeign(path string) error {
	return fmt.Errorf("%s holds something else than a cache, and is left as it is: move it away", path)
}

// resize gives the file the size that the options say: with the next lock, if somebody holds it now. Until then
// the size that it has will do, to read.
func (c *Cache) resize() {
	c.mu.Lock()
	c.anew = true
	c.mu.Unlock()
	if f := c.lock(); f != nil {
		c.unlock(f)
	} else if sets, ok := readHeader(c.file.Load()); ok {
		c.sets.Store(sets)
	}
}

// lock locks the cache for writing, and returns its file; nil if that is not possible now.
// It looks whether the file is still the one in the folder, and takes over its size.
func (c *Cache) lock() *os.File {
	c.mu.Lock()
	begin := time.Now()
	for wait := 50 * time.Microsecond; !c.noWrite.Load() && begin.After(c.busy); {
		f := c.file.Load()
		if f == nil {
			break
		}
		err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EWOULDBLOCK:
			if time.Since(begin) > patience {
				c.busy = time.Now().Add(sulk)
				c.mu.Unlock()
				return nil
			}
			time.Sleep(wait)
			wait = min(2*wait, 5*time.Millisecond)
			continue
		}
		replaced := false
		if err == nil {
			replaced, err = c.check(f)
		}
		if want := setsFor(c.o.Max); err == nil && !replaced && c.anew {
			if c.anew = false; c.sets.Load() != want {
				err = c.writeHeader(f, want)
			}
		}
		if err != nil {
			unlockFile(f)
			c.stop(fmt.Errorf("lock: %w", err))
			break
		}
		if replaced {
			unlockFile(f)
			continue
		}
		return f
	}
	c.mu.Unlock()
	return nil
}

func (c *Cache) unlock(f *os.File) {
	unlockFile(f)
	c.mu.Unlock()
}

// unlockFile cannot fail in a way that matters: closing f unlocks it too.
func unlockFile(f *os.File) { _ = unix.Flock(int(f.Fd()), unix.LOCK_UN) }

// check looks at the file under its lock. One that was deleted is replaced by a new one;
// one whose header is damaged is emptied, and one that is no cache refused.
func (c *Cache) check(f *os.File) (replaced bool, err error) {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return false, err
	}
	if st.Nlink == 0 {
		n, err := c.openFile()
		if err != nil {
			return false, err
		}
		c.sets.Store(setsFor(c.o.Max))
		c.file.Store(n)
		f.Close() // unlocks; readers that are at it find nothing
		return true, nil
	}
	if sets, ok := readHeader(f); ok && st.Size <= fileSize(sets) {
		c.sets.Store(sets)
		return false, nil
	}
	if foreign(f, st.Size) { // somebody has put it there meanwhile
		return false, errForeign(filepath.Join(c.o.Dir, folderName, fileName))
	}
	if st.Size > 0 {
		c.corrupt.Add(1)
	}
	if err := f.Truncate(0); err != nil {
		return false, err
	}
	if err := c.writeHeader(f, setsFor(c.o.Max)); err != nil {
		return false, err
	}
	return false, f.Sync() // without its header it would not be known as a cache after a loss of power
}

// fileSize is the most that a file of so many sets takes.
func fileSize(sets int64) int64 { return headerBytes + sets*setBytes }

// readHeader returns the number of sets; false if there is no header that can be right.
func readHeader(f *os.File) (sets int64, ok bool) {
	var h [headerUsed]byte
	if f == nil {
		return 0, false
	}
	if n, _ := f.ReadAt(h[:], 0); n < len(h) || string(h[:len(magic)]) != magic ||
		binary.LittleEndian.Uint64(h[len(magic)+8:]) != xxh3.Hash(h[:len(magic)+8]) {
		return 0, false
	}
	sets = int64(binary.LittleEndian.Uint64(h[len(magic):]))
	return sets, sets >= 2 && sets <= maxSets
}

// writeHeader makes the file one of so many sets.
func (c *Cache) writeHeader(f *os.File, sets int64) error {
	var h [headerUsed]byte
	copy(h[:], magic)
	binary.LittleEndian.PutUint64(h[len(magic):], uint64(sets))
	binary.LittleEndian.PutUint64(h[len(magic)+8:], xxh3.Hash(h[:len(magic)+8]))
	fi, err := f.Stat()
	if err == nil && fi.Size() > fileSize(sets) {
		err = f.Truncate(fileSize(sets))
	}
	if err == nil {
		_, err = f.WriteAt(h[:], 0)
	}
	if err == nil {
		c.sets.Store(sets)
	}
	return err
}

// stop ends the writing, with the one warning.
func (c *Cache) stop(err error) {
	c.noWrite.Store(true)
	what := "nothing is cached; all is read from the bucket"
	if c.file.Load() != nil {
		what = "nothing more is cached; what is not there is read from the bucket"
	}
	err = fault.New(fault.Unavailable, "cache: %s: %w; make the folder writable, free some space, name another folder, or leave cache out", what, err).
		At(fault.Place{File: c.o.Dir})
	if c.failed.CompareAndSwap(nil, &err) && c.o.Warn != nil {
		c.o.Warn(err)
	}
}
