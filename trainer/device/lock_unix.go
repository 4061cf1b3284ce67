//go:build unix

package device

import (
	"errors"
	"io/fs"
	"os"
	"syscall"

	"github.com/penstock-data/penstock/internal/fault"
	"golang.org/x/sys/unix"
)

// lock opens path, and makes it if need be; ok says whether the lock on it is ours now. Closing the file gives it back, and so does the end of the process: children do not
// inherit it.
func lock(path string) (f *os.File, ok bool, err error) {
	f, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, false, fault.Wrap(err, fault.Place{File: path})
	}
	return flock(f, unix.LOCK_EX)
}

// lockFolder locks a folder together with whoever else does.
func lockFolder(path string) (f *os.File, ok bool, err error) {
	f, err = os.Open(path)
	if err != nil {
		return nil, false, fault.Wrap(err, fault.Place{File: path})
	}
	return flock(f, unix.LOCK_SH)
}

func flock(f *os.File, how int) (*os.File, bool, error) {
	for {
		err := unix.Flock(int(f.Fd()), how|unix.LOCK_NB)
		switch {
		case err == nil:
			return f, true, nil
		case errors.Is(err, unix.EWOULDBLOCK):
			return f, false, nil
		case !errors.Is(err, unix.EINTR):
			f.Close()
			return nil, false, fault.Wrap(err, fault.Place{File: f.Name()})
		}
	}
}

// mine reports whether a file is of this user.
func mine(fi fs.FileInfo) bool {
	st, ok := fi.Sys().(*syscall.Stat_t)
	return ok && int(st.Uid) == os.Getuid()
}
