package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/trainer/launch"
)

// Lock makes the node's folder, and takes it for this process. Exists: another agent has it. With unlock(false) a folder that it has made, and in which nothing was kept, is removed.
func Lock(dir string) (unlock func(keep bool), err error) {
	_, err = os.Lstat(dir)
	made := errors.Is(err, fs.ErrNotExist)
	path := filepath.Join(dir, "lock")
	for {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, fault.New(fault.Denied, "the node's folder: %w", err)
		}
		f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
		if err != nil {
			return nil, err
		}
		if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
			f.Close()
			return nil, fault.New(fault.Exists, "another agent has the folder %s: give this one another with --dir", dir)
		}
		if !isAt(f, path) { // another agent removed it meanwhile, with the folder that it had made
			f.Close()
			continue
		}
		return func(keep bool) {
			if in, err := os.ReadDir(dir); made && !keep && err == nil && len(in) == 1 {
				_ = os.Remove(path)
				_ = os.Remove(dir)
			}
			_ = syscall.Flock(int(f.Fd()), syscall.LOCK_UN) // closing alone leaves it to a child that this process is just about to start
			f.Close()
		}, nil
	}
}

// envFolder marks the processes of a node, and their descendants, by its folder: whatever id the node had.
const envFolder = "PENSTOCK_NODE_DIR"

// sweep ends the processes that an agent of this folder left which was killed, and removes their files. The kernel ended those that it had started itself: their descendants may run on, and use what is booked for others.
func (a *agent) sweep() error {
	n, err := launch.Sweep(envFolder, a.folder)
	if n > 0 {
		a.Log.Warn(fmt.Sprintf("%d processes were ended that an agent before this one, which was killed, had left", n))
	}
	if err != nil {
		return err
	}
	return a.clear()
}

// realPath is the one path of a folder, however it is called.
func realPath(dir string) (string, error) {
	abs, err := filepath.Abs(dir)
	if err != nil {
		return "", err
	}
	return filepath.EvalSymlinks(abs)
}

// isAt reports whether an open file is the one that has a path.
func isAt(f *os.File, path string) bool {
	open, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Lstat(path)
	return err == nil && os.SameFile(open, there)
}

// NameIn is the name under which the node of a folder was attached last; "": it never was.
func NameIn(dir string) string {
	b, err := os.ReadFile(nameFile(dir))
	if err != nil {
		return ""
	}
	return strings.TrimSuffix(string(b), "\n")
}

func nameFile(dir string) string { return filepath.Join(dir, "name") }

// keepName writes the name that the head has taken: the node has it, until it is given another.
func (a *agent) keepName() {
	name := a.Inventory.GetName()
	if NameIn(a.Dir) == name {
		return
	}
	path := nameFile(a.Dir)
	err := os.WriteFile(path+".new", []byte(name+"\n"), 0o600)
	if err == nil {
		err = os.Rename(path+".new", path)
	}
	if err != nil {
		a.Log.Warn("the node's name is not kept: give it again when the node joins again", "err", err)
	}
}
