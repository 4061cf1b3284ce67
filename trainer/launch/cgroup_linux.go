package launch

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// cgroup is a control group for the processes of one worker: the kernel ends one of them rather than let them have more memory together than
// is theirs, at once, and without harm to others. See cgroups(7), and admin-guide/cgroup-v2.rst of the kernel.
type cgroup struct {
	dir   string
	ctl   controller
	limit int64    // bytes
	fd    *os.File // of dir; nil with version 1
}

// controller are the names of what a version of control groups has for memory.
type controller struct {
	name        string
	limit, swap string // files of bytes; swap is not there where the kernel does not count it
	events      string // file with a line "oom_kill N": processes that the kernel has ended
	peak        string // file of the most bytes that there were; it may not be there
	all         string // file for "1": it ends all processes of a group; "": one
}

var (
	memory1 = controller{"memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.oom_control", "memory.max_usage_in_bytes", ""}
	memory2 = controller{"memory", "memory.max", "memory.swap.max", "memory.events", "memory.peak", "memory.oom.group"}
)

const (
	cgroupPrefix  = "penstock-"
	cgroupsFolder = "/sys/fs/cgroup"
)

// cgroupHost is where workers get their groups. The zero value has none: then memory is only looked at.
type cgroupHost struct {
	parent string
	ctl    controller
	v2     bool
}

// cgroups is where those of this process's workers are.
var cgroups = sync.OnceValue(func() cgroupHost {
	b, _ := os.ReadFile("/proc/self/cgroup")
	return findCgroups(string(b))
})

// findCgroups says where this process may make groups with a limit of memory, from what /proc/self/cgroup says. With version 1 that is below its own.
// With version 2 a group has either processes or groups that are limited: it is below ours if that is the root, and beside ours if systemd
// has delegated what we are in (Delegate= with DelegateSubgroup=); elsewhere a sibling would be free of the limits that are ours.
func findCgroups(self string) cgroupHost {
	for line := range strings.Lines(self) {
		f := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(f) == 3 && slices.Contains(strings.Split(f[1], ","), memory1.name) {
			h := cgroupHost{parent: filepath.Join(cgroupsFolder, "memory", f[2]), ctl: memory1}
			if h.works() {
				return h
			}
		}
	}
	for line := range strings.Lines(self) {
		own, ok := strings.CutPrefix(strings.TrimSpace(line), "0::")
		if !ok {
			continue
		}
		for _, mount := range []string{cgroupsFolder, filepath.Join(cgroupsFolder, "unified")} {
			for _, parent := range []string{filepath.Join(mount, own), filepath.Dir(filepath.Join(mount, own))} {
				h := cgroupHost{parent: parent, ctl: memory2, v2: true}
				if (parent == filepath.Join(mount, own) || delegated(parent)) && h.works() {
					return h
				}
			}
		}
	}
	return cgroupHost{}
}

// delegated reports whether systemd leaves a group to whom it runs in it.
func delegated(dir string) bool {
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		b := make([]byte, 8)
		if n, err := unix.Getxattr(dir, name, b); err == nil && string(b[:n]) == "1" {
			return true
		}
	}
	return false
}

// works makes a group and removes it, and those that processes have left which were killed.
func (h cgroupHost) works() bool {
	if _, err := os.Stat(filepath.Join(h.parent, "cgroup.procs")); err != nil {
		return false
	}
	left, _ := filepath.Glob(filepath.Join(h.parent, cgroupPrefix+pidSpace()+".*")) // see newTree
	for _, dir := range left {
		var id procID
		if _, err := fmt.Sscanf(filepath.Base(dir), cgroupPrefix+pidSpace()+".%d.%d.", &id.pid, &id.start); err != nil {
			continue
		}
		if s, ok := readStat(id.pid, make([]byte, 4<<10)); !ok || s.id != id {
			_ = removeTree(dir) // what runs in it keeps it
		}
	}
	c, err := h.new(newTree().token+"try", 1<<30)
	if err != nil {
		return false
	}
	c.remove()
	return true
}

// new makes a group whose processes have so many bytes together, of memory and swap.
func (h cgroupHost) new(name string, limit int64) (*cgroup, error) {
	if h.parent == "" {
		return nil, errors.ErrUnsupported
	}
	c := &cgroup{dir: filepath.Join(h.parent, cgroupPrefix+name), ctl: h.ctl, limit: limit}
	if err := os.Mkdir(c.dir, 0o755); err != nil {
		return nil, err
	}
	err := c.set(h, limit)
	if err == nil && h.v2 {
		c.fd, err = os.Open(c.dir)
	}
	if err != nil {
		c.remove()
		return nil, err
	}
	return c, nil
}

func (c *cgroup) set(h cgroupHost, limit int64) error {
	bytes := strconv.FormatInt(limit, 10)
	err := c.write(c.ctl.limit, bytes)
	if errors.Is(err, os.ErrNotExist) && h.v2 { // the parent does not hand the controller on yet
		_ = writeExisting(filepath.Join(h.parent, "cgroup.subtree_control"), "+"+c.ctl.name) // what follows says whether it could
		err = c.write(c.ctl.limit, bytes)
	}
	if err != nil {
		return err
	}
	swap := bytes // with memory
	if h.v2 {
		swap = "0"
	}
	if err := c.write(c.ctl.swap, swap); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if c.ctl.all != "" {
		return c.write(c.ctl.all, "1")
	}
	return nil
}

func (c *cgroup) write(file, text string) error {
	return writeExisting(filepath.Join(c.dir, file), text)
}

// writeExisting: nobody can make files in a control group, and os.WriteFile says of one that is not there that it is denied.
func writeExisting(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(text)
	return errors.Join(err, f.Close())
}

// newCgroup is a group for a worker, by the name that its tree has for it; nil: its memory is looked at only.
func newCgroup(name string, limit int64) *cgroup {
	c, err := cgroups().new(name, limit)
	if err != nil {
		return nil
	}
	return c
}

// born calls start, which starts a process with attr from this thread (runtime.LockOSThread), so that the process begins in the group.
func (c *cgroup) born(attr *syscall.SysProcAttr, start func() error) error {
	switch {
	case c == nil:
	case c.fd != nil:
		attr.UseCgroupFD, attr.CgroupFD = true, int(c.fd.Fd())
	default: // a thread goes there, and its children begin where it is; what the process has in memory stays where its first thread is
		tid := strconv.Itoa(unix.Gettid())
		back, err := os.OpenFile(filepath.Join(filepath.Dir(c.dir), "tasks"), os.O_WRONLY, 0) // before it goes: then there may be no room for another open file
		if err != nil {
			return err
		}
		defer back.Close()
		if err := c.write("tasks", tid); err != nil {
			return err
		}
		defer back.WriteString(tid) // where it was: it may go back
	}
	return start()
}

// firstThread reports whether this thread is the one that the process began with.
func firstThread() bool { return unix.Gettid() == os.Getpid() }

// killed reports whether the kernel has ended a process of the group for memory.
func (c *cgroup) killed() bool {
	if c == nil {
		return false
	}
	b, _ := os.ReadFile(filepath.Join(c.dir, c.ctl.events))
	for line := range strings.Lines(string(b)) {
		if n, ok := strings.CutPrefix(line, "oom_kill "); ok {
			return strings.TrimSpace(n) != "0"
		}
	}
	return false
}

// full reports whether the group came near its limit, as far as is known: else what was killed was killed for that of a group around it, or of the machine.
func (c *cgroup) full() bool {
	b, err := os.ReadFile(filepath.Join(c.dir, c.ctl.peak))
	most, perr := strconv.ParseInt(strings.TrimSpace(string(b)), 10, 64)
	return err != nil || perr != nil || most >= c.limit/8*7
}

// remove removes the group, whose processes have ended: the kernel may need a moment. One that cannot be removed is left to who looks next.
func (c *cgroup) remove() {
	if c == nil {
		return
	}
	if c.fd != nil {
		_ = c.fd.Close()
	}
	for range 50 {
		if err := removeTree(c.dir); !errors.Is(err, syscall.EBUSY) {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// removeTree removes a group with those below it, which launchers have left that ran in it.
func removeTree(dir string) error {
	below, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, e := range below {
		if e.IsDir() {
			if err := removeTree(filepath.Join(dir, e.Name())); err != nil {
				return err
			}
		}
	}
	return os.Remove(dir)
}
