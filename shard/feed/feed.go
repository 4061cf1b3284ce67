// Package feed gives the batches of a job to consumers in other processes: through memory that they
// share, and a unix socket that says where in it. Nothing is copied on the way. It needs Linux.
//
// One data process owns the iterators of all ranks and calls [Serve]; a consumer calls [Dial] with
// its rank and gets a [Client], which is used as an iterator is: Next, State, Restore, Close.
// Samples, their order and the states are those of the iterators.
//
// All ranks begin together: the first batch leaves when every rank has asked for one, so a
// restored state is that of all ranks before anything is given.
//
// Nobody goes on alone after a loss. When the data process dies, every consumer gets an
// Unavailable error. When a consumer's connection ends without [Client.Close], Serve ends with a
// WorkerLost error, which all other consumers get too (before it has restored a state or
// asked for a batch, its rank is merely free again). Either way whoever supervises starts
// the data process and all ranks again, and they restore the last committed state: the same on
// every rank, on any number of ranks. A consumer that closes gives its rank up for good.
//
// What is ahead of a consumer is bounded: 4 MiB of batches that it was told of (DialOptions.Prefetch), and what the
// iterator makes ahead. A consumer that does not read blocks its producer, as a local one does. The
// memory of batches is the data process's, and counts against its budget until the consumer has released them, or is gone.
//
// Only processes of the same user are served. Nothing listens on a network.
package feed

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"golang.org/x/sys/unix"
)

// Options of Serve; nil means defaults.
type Options struct {
	// Wait is how long ranks that have asked for their first batch wait for those that have
	// not; 0: 5 minutes, negative: without end.
	Wait time.Duration
	// Notice that the ranks are to stop, from whoever gives it: the first step that no rank was sent yet, and all later ones, are marked; see [Client.Noticed]. nil:
	// never. Each Serve has one of its own.
	Notice *Notice
	// Again says that the listener is served again once all ranks have been given up: a rank that was is Exists until then, which Dial waits for, in
	// place of Invalid.
	Again bool
	// Mask is applied to the errors for consumers, as secrets may be in paths; nil: they are sent
	// as they are.
	Mask func(string) string
}

// DialOptions of Dial; nil means defaults.
type DialOptions struct {
	// Prefetch is how many batches are read ahead of Next, from 1 to 1023; 0: so many that they take 4 MiB (or an eighth of the data process's budget, over all ranks, where that is
	// less), at least 2 and at most 16, and no more than are used in 0.2 s. A notice counts after what was read ahead.
	Prefetch int
	// Wait is how long Dial waits for a data process that is not there yet, or a rank that is not free; 0: 10 seconds,
	// negative: not at all.
	Wait time.Duration
	// MaxBatch is the most bytes that a batch may have, all of which lie in memory that is shared with the data
	// process; 0: 1 GiB.
	MaxBatch int64
}

// maxPath is what a socket's address has room for.
const maxPath = 103

// Listen makes a unix socket that only this user can reach: its file has mode 0600, in a folder of
// mode 0700 that is made where it is not there. A socket that nobody answers, left by a process
// that was killed, is removed; one that is answered is an Exists error. The caller closes the
// listener, which removes the file.
func Listen(path string) (*net.UnixListener, error) {
	at := fault.Place{File: path}
	if path == "" || path[0] == '@' || path[0] == 0 {
		return nil, fault.New(fault.Invalid, "a socket needs the path of a file: one without has no permissions").At(at)
	}
	if len(path) > maxPath {
		return nil, fault.New(fault.Invalid, "the path of a socket has at most %d bytes, this one %d: take a shorter folder", maxPath, len(path)).At(at)
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, unmade(err).At(at)
	}
	if err := private(dir); err != nil {
		return nil, err.At(at)
	}
	// Of several that find the same stale socket only one removes it.
	lock, err := os.OpenFile(path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, unmade(err).At(at)
	}
	defer lock.Close()
	for err = unix.EINTR; err == unix.EINTR; {
		err = unix.Flock(int(lock.Fd()), unix.LOCK_EX)
	}
	if err != nil {
		return nil, fault.New(fault.Unsupported, "a folder whose files cannot be locked (%w): take a local one", err).At(at)
	}
	if err := clear(path); err != nil {
		return nil, fault.Wrap(err, at)
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, unmade(err).At(at)
	}
	if err := os.Chmod(path, 0o600); err != nil {
		l.Close()
		return nil, unmade(err).At(at)
	}
	return l, nil
}

// unmade is what the system says against a socket, with a code.
func unmade(err error) *fault.Error {
	code := fault.Invalid
	switch {
	case errors.Is(err, fs.ErrPermission):
		code = fault.Denied
	case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.EDQUOT), errors.Is(err, unix.EMFILE), errors.Is(err, unix.ENFILE):
		code = fault.Exhausted
	}
	return fault.New(code, "no socket can be made here (%w): take another folder", err)
}

// private reports a folder that others can reach.
func private(dir string) *fault.Error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return unmade(err)
	}
	switch {
	case int(st.Uid) != os.Geteuid():
		return fault.New(fault.Invalid, "the folder of a socket must be its user's, %s belongs to user %d: take one of your own", dir, st.Uid)
	case st.Mode&0o077 != 0:
		return fault.New(fault.Invalid, "the folder of a socket must be closed to others, %s has mode %04o: take one of its own (mode 0700)", dir, st.Mode&0o7777)
	}
	return nil
}

// clear removes a socket that nobody answers.
func clear(path string) error {
	st, err := os.Lstat(path)
	if os.IsNotExist(err) {
		return nil
	}
	if err != nil {
		return unmade(err)
	}
	if st.Mode()&os.ModeSocket == 0 {
		return fault.New(fault.Exists, "there is a file that is no socket: take another name")
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
		return fault.New(fault.Exists, "another process serves this socket: end it, or take another name")
	}
	if !isRefused(err) {
		return fault.New(fault.Exists, "a socket that is not answered, but not refused either (%w): end its process, or take another name", err)
	}
	if err := os.Remove(path); err != nil {
		return unmade(err)
	}
	return nil
}

// samePeer refuses a connection with a process of another user.
func samePeer(c *net.UnixConn) error {
	uid, pid, ok, err := peer(c)
	if err != nil {
		return fault.New(fault.Unavailable, "who is at the other end of the socket: %w", err)
	}
	if ok && uid != os.Geteuid() {
		return fault.New(fault.Invalid, "process %d at the other end of the socket belongs to user %d, this one to user %d: both must be of one user", pid, uid, os.Geteuid())
	}
	return nil
}

// pause waits, or until ctx ends.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
}

// list names ranks: "rank 1", "ranks 0, 2".
func list(ranks []int) string {
	s := "rank"
	if len(ranks) != 1 {
		s = "ranks"
	}
	for i, r := range ranks {
		if i > 0 {
			s += ","
		}
		s += fmt.Sprintf(" %d", r)
	}
	return s
}
