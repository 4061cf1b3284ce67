package sink

import (
	"context"
	"os"

	"github.com/penstock-data/penstock/internal/fault"
	"golang.org/x/sys/unix"
)

// stageLock marks a folder of staged files as in use: a lock on a file in it,
// which the system drops when the process dies. Local folders only. Its only
// purpose is to let the next run remove what a killed one left; nothing else depends on it.
type stageLock struct{ f *os.File }

// lockStage locks dir+proc/lock, creating it. nil, nil where r is not local.
func lockStage(ctx context.Context, r *root, dir, proc string) (*stageLock, error) {
	p, ok := r.b.Local(r.prefix + dir + proc)
	if !ok {
		return nil, nil
	}
	for range 10 {
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err := os.MkdirAll(p, 0o777); err != nil {
			return nil, fault.Wrap(err, fault.Place{File: r.path(dir)})
		}
		l, err := tryLock(p+"/lock", os.O_CREATE)
		if err != nil {
			return nil, fault.Wrap(err, fault.Place{File: r.path(dir)})
		}
		if l != nil {
			return l, nil
		}
	}
	return nil, fault.New(fault.Unavailable, "the folder is being removed by another process").At(fault.Place{File: r.path(dir + proc)})
}

// tryLock locks the file without waiting; nil if another process has it or it was
// removed meanwhile. A file system without locks gives a lock that locks nothing.
func tryLock(name string, flag int) (*stageLock, error) {
	f, err := os.OpenFile(name, os.O_RDWR|flag, 0o666)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err {
	case nil:
	case unix.ENOLCK, unix.ENOTSUP, unix.ENOSYS, unix.EINVAL:
		if flag&os.O_CREATE == 0 { // cannot tell whether its owner lives
			f.Close()
			return nil, nil
		}
		return &stageLock{f}, nil
	default:
		f.Close()
		return nil, nil
	}
	a, err := f.Stat()
	if err == nil {
		if b, berr := os.Stat(name); berr == nil && os.SameFile(a, b) {
			return &stageLock{f}, nil
		}
	}
	f.Close()
	return nil, nil
}

func (l *stageLock) unlock() {
	if l != nil && l.f != nil {
		l.f.Close()
		l.f = nil
	}
}
