package launch

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/penstock-data/penstock/internal/fault"
)

// Try is why processes could not be confined so; nil: they can.
func (c Confine) Try() error {
	return OnThread(c.enter)
}

// OnThread runs f on a thread that ends with it, so that nothing else runs with what f has changed
// of it: its user, its mounts.
func OnThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		if hasChildren() { // it must not end: another one does this
			defer runtime.UnlockOSThread()
			done <- OnThread(f)
			return
		}
		done <- f() // the thread stays locked: it ends with the goroutine
	}()
	return <-done
}

// hasChildren says that this thread has started processes that live. Such a thread must not end:
// the kernel signals its death to those that asked for that (Pdeathsig), whoever started them.
func hasChildren() bool {
	b, err := os.ReadFile(fmt.Sprintf("/proc/self/task/%d/children", unix.Gettid()))
	return err == nil && len(b) > 0
}

// enter confines this thread (runtime.LockOSThread), and what is started from it, for good. Its
// user stays.
func (c Confine) enter() error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fault.New(fault.Unsupported, "processes without new privileges: %w", err)
	}
	if c.Temp == "" && !c.HideProcesses {
		return nil
	}
	if err := unix.Unshare(unix.CLONE_NEWNS); err != nil {
		return fault.New(fault.Unsupported, "mounts of their own: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_SLAVE, ""); err != nil {
		return fault.New(fault.Unsupported, "mounts of their own: %w", err)
	}
	if c.Temp != "" {
		if err := c.mountTemp(); err != nil {
			return fault.New(fault.Unsupported, "a /tmp of their own: %w", err)
		}
	}
	if c.HideProcesses {
		if err := hideProcesses(); err != nil {
			return fault.New(fault.Unsupported, "a /proc without others' processes: %w", err)
		}
	}
	return nil
}

// mountTemp puts Temp where temps are. What is to be seen is opened first, by paths that are
// covered afterwards.
func (c Confine) mountTemp() error {
	temp, err := openPath(c.Temp)
	if err != nil {
		return err
	}
	defer temp.Close()
	var kept []*os.File
	for _, path := range c.Keep {
		f, err := openPath(path)
		if err != nil {
			return err
		}
		defer f.Close()
		kept = append(kept, f)
	}
	for _, dir := range temps {
		switch st, err := os.Lstat(dir); {
		case errors.Is(err, fs.ErrNotExist), err == nil && !st.IsDir(): // a link leads to where it is covered, or to a folder that is not shared
			continue
		case err != nil:
			return err
		}
		if err := bind(temp, dir); err != nil {
			return err
		}
	}
	for i, f := range kept {
		path := c.Keep[i]
		if !belowAny(path, temps) {
			continue
		}
		st, err := f.Stat()
		if err != nil {
			return err
		}
		if err := placeFor(path, st.IsDir()); err != nil {
			return err
		}
		if err := bind(f, path); err != nil {
			return err
		}
	}
	return nil
}

// placeFor makes something at path that can be mounted on.
func placeFor(path string, dir bool) error {
	folder := path
	if !dir {
		folder = filepath.Dir(path)
	}
	if err := os.MkdirAll(folder, 0o755); err != nil || dir {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	return f.Close()
}

// openPath opens what has a path for mounting it elsewhere.
func openPath(path string) (*os.File, error) {
	fd, err := unix.Open(path, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, &fs.PathError{Op: "open", Path: path, Err: err}
	}
	return os.NewFile(uintptr(fd), path), nil
}

// bind mounts a file or folder at a path, too.
func bind(f *os.File, at string) error {
	if err := unix.Mount(fmt.Sprintf("/proc/self/fd/%d", f.Fd()), at, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("mount %s at %s: %w", f.Name(), at, err)
	}
	return nil
}

// hideProcesses mounts a /proc of its own. Kernels that would take the word for all of the
// machine's do not know it: they have numbers.
func hideProcesses() error {
	if err := unix.Mount("proc", "/proc", "proc", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "hidepid=invisible"); err != nil {
		return fmt.Errorf("mount /proc: %w", err)
	}
	return nil
}

// as is attr for processes of User.
func (c *Confine) as(attr *syscall.SysProcAttr) *syscall.SysProcAttr {
	if c != nil && c.User != nil {
		attr.Credential = &syscall.Credential{Uid: c.User.UID, Gid: c.User.GID, Groups: c.User.Groups}
	}
	return attr
}
