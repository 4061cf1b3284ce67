package store

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
	"golang.org/x/sys/unix"
)

// cacheDir is the folder of one run in a cache of downloads:
//
//	lock            held by who looks, downloads or removes
//	TRY-BOOT/       a download
//	TRY-BOOT.use    a shared lock on it is a lease: the download is in use
//	tmp-*/          a download under way, of the one who holds the lock, or who died with it
//
// The system drops the locks of a process that dies.
type cacheDir struct {
	path string
	held *os.File
}

// lease keeps a download; nil keeps nothing.
type lease struct{ f *os.File }

func (l *lease) release() {
	if l != nil {
		l.f.Close() // locks only
	}
}

func (c *cacheDir) lock(ctx context.Context) error {
	if err := os.MkdirAll(c.path, 0o777); err != nil {
		return blobio.HostError(c.path, err)
	}
	name := filepath.Join(c.path, "lock")
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return blobio.HostError(name, err)
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		got, err := flock(f, unix.LOCK_EX)
		if err != nil || got {
			if err != nil {
				f.Close()
				return lockError(name, err)
			}
			c.held = f
			return nil
		}
		t := time.NewTimer(wait)
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
			f.Close()
			return fault.New(fault.Canceled, "%w", context.Cause(ctx)).At(fault.Place{File: name})
		}
	}
}

func (c *cacheDir) unlock() { c.held.Close() }

// flock locks without waiting; got is false where another has it.
func flock(f *os.File, how int) (got bool, err error) {
	for {
		switch err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB); err {
		case nil:
			return true, nil
		case unix.EWOULDBLOCK:
			return false, nil
		case unix.EINTR:
		default:
			return false, err
		}
	}
}

func lockError(name string, err error) error {
	switch err {
	case unix.ENOLCK, unix.ENOTSUP, unix.ENOSYS, unix.EINVAL:
		return fault.New(fault.Unsupported, "files cannot be locked here (%w): choose a cache on a local disk", err).At(fault.Place{File: name})
	}
	return blobio.HostError(name, err)
}

// lease takes a download for use. The lock is held.
func (c *cacheDir) lease(name string) (*lease, error) {
	p := filepath.Join(c.path, name+".use")
	f, err := os.OpenFile(p, os.O_RDWR|os.O_CREATE, 0o666)
	if err != nil {
		return nil, blobio.HostError(p, err)
	}
	if got, err := flock(f, unix.LOCK_SH); err != nil || !got {
		f.Close()
		if err == nil { // who removes it holds the lock of the folder as well
			err = unix.EWOULDBLOCK
		}
		return nil, lockError(p, err)
	}
	return &lease{f}, nil
}

// removeOthers removes downloads that nobody uses, but for name, and half ones. The lock is held.
func (c *cacheDir) removeOthers(name string) error {
	entries, err := os.ReadDir(c.path)
	if err != nil {
		return blobio.HostError(c.path, err)
	}
	for _, e := range entries {
		other, isUse := strings.CutSuffix(e.Name(), ".use")
		if other == name || other == "lock" || isUse && e.IsDir() {
			continue
		}
		if err := c.remove(other); err != nil {
			return err
		}
	}
	return nil
}

// remove removes a download unless somebody uses it. The lock is held.
func (c *cacheDir) remove(name string) error {
	p := filepath.Join(c.path, name)
	use := p + ".use"
	f, err := os.OpenFile(use, os.O_RDWR, 0)
	if err == nil {
		got, err := flock(f, unix.LOCK_EX)
		defer f.Close()
		if err != nil {
			return lockError(use, err)
		}
		if !got {
			return nil
		}
	} else if !os.IsNotExist(err) {
		return blobio.HostError(use, err)
	}
	// Renamed first: what is half removed must not be taken for a download.
	gone := filepath.Join(c.path, "tmp-"+randomHex(4))
	if err = os.Rename(p, gone); err == nil {
		err = os.RemoveAll(gone)
	}
	if err == nil || os.IsNotExist(err) {
		err = os.Remove(use)
	}
	if os.IsNotExist(err) {
		return nil
	}
	return blobio.HostError(p, err)
}
