package sink

import (
	"context"
	"os"
	"path"
	"strings"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"golang.org/x/sys/unix"
)

// stageLock marks a folder of staged files as in use: a lock on a file in it,
// which the system drops when the process dies. Local folders only. Its only
// purpose is to let the next run remove what a killed one left; nothing else depends on it.
type stageLock struct{ f *os.File }

// lockStage locks dir+proc/lock, creating it. nil, nil where r is not local.
func lockStage(ctx context.Context, r *root, dir, proc string) (*stageLock, error) {
	folder, err := r.folder()
	if folder == nil || err != nil {
		return nil, err
	}
	defer folder.Close()
	for try := range 100 {
		// A process that looks whether this one is dead may have the lock, or be
		// removing the folder, because it came before the lock.
		if err := pause(ctx, time.Duration(2*try+1)*time.Millisecond); err != nil {
			return nil, err
		}
		if err := folder.MkdirAll(dir+proc, 0o777); err != nil {
			return nil, r.fail(dir+proc, err)
		}
		l, _, err := tryLock(folder, dir+proc+"/lock", os.O_CREATE)
		if err != nil {
			return nil, r.fail(dir+proc+"/lock", err)
		}
		if l != nil {
			return l, nil
		}
	}
	return nil, fault.New(fault.Unavailable, "another process removes it again and again").At(fault.Place{File: r.path(dir + proc)})
}

// tryLock locks the file without waiting. No lock and not held: the file is not
// there (any more). On a file system without locks one's own lock locks nothing, and
// others always count as held.
func tryLock(in *os.Root, name string, flag int) (l *stageLock, held bool, err error) {
	f, err := in.OpenFile(name, os.O_RDWR|flag, 0o666)
	if os.IsNotExist(err) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, err
	}
	switch err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err {
	case nil:
	case unix.ENOLCK, unix.ENOTSUP, unix.ENOSYS, unix.EINVAL:
		if flag&os.O_CREATE != 0 {
			return &stageLock{f}, false, nil
		}
		fallthrough
	default:
		f.Close()
		return nil, true, nil
	}
	a, err := f.Stat()
	if err == nil {
		if b, berr := in.Lstat(name); berr == nil && os.SameFile(a, b) {
			return &stageLock{f}, false, nil
		}
	}
	f.Close() // removed meanwhile
	return nil, false, err
}

func (l *stageLock) unlock() {
	if l != nil && l.f != nil {
		l.f.Close()
		l.f = nil
	}
}

// atWork lists the processes whose stage folders below dir are locked. Not own's.
func atWork(ctx context.Context, r *root, dir, own string) (map[string]bool, error) {
	live := make(map[string]bool)
	folder, err := r.folder()
	if fault.CodeOf(err) == fault.NotFound {
		return live, nil
	}
	if folder == nil || err != nil {
		return live, err
	}
	defer folder.Close()
	for info, err := range r.listDir(ctx, dir) {
		if err != nil {
			return nil, err
		}
		proc := path.Base(info.Key)
		if !info.Dir || proc == own {
			continue
		}
		l, held, err := tryLock(folder, dir+proc+"/lock", 0)
		if err != nil {
			return nil, r.fail(dir+proc+"/lock", err)
		}
		l.unlock()
		if held {
			live[proc] = true
		}
	}
	return live, nil
}

// removeJob removes the records of a job and what it staged, but not the stage
// folders of processes still at work on it, own's excepted: they find out by
// themselves. dead may be nil.
func removeJob(ctx context.Context, out, dead *output, job *jobRecord, own string) error {
	live, err := atWork(ctx, out.rec, job.dir()+"stage/", own)
	if err != nil {
		return err
	}
	if dead != nil && job.DeadLetter != nil {
		if err := dead.rec.removeStage(ctx, job.deadDir(), live); err != nil {
			return err
		}
	}
	return out.rec.removeStage(ctx, job.dir(), live)
}

// abandoned is the age from which a file that was being written belongs to nobody
// who lives: records are small.
const abandoned = time.Minute

// removeAbandoned removes the hidden files that killed processes were writing in dir.
func removeAbandoned(in *os.Root, dir string) {
	d, err := openDir(in, dir)
	if err != nil {
		return // what stays the next one removes
	}
	all, _ := d.ReadDir(-1)
	d.Close()
	for _, e := range all {
		if st, err := e.Info(); err == nil && !e.IsDir() && strings.HasPrefix(e.Name(), ".penstock-tmp-") && time.Since(st.ModTime()) > abandoned {
			_ = in.Remove(path.Join(dir, e.Name()))
		}
	}
}

func (r *root) removeStage(ctx context.Context, dir string, live map[string]bool) error {
	folder, err := r.folder()
	if fault.CodeOf(err) == fault.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	if folder == nil {
		return r.removeTree(ctx, dir)
	}
	defer folder.Close()
	for info, err := range r.listDir(ctx, dir+"stage/") {
		if err != nil {
			return err
		}
		if proc := path.Base(info.Key); info.Dir && isHex(proc, 8) && !live[proc] {
			if err := r.removeTree(ctx, dir+"stage/"+proc+"/"); err != nil {
				return err
			}
		}
	}
	for info, err := range r.listDir(ctx, dir) {
		if err != nil {
			return err
		}
		if name := path.Base(info.Key); !info.Dir && (name == "job.json" || strings.HasPrefix(name, "part-")) {
			if err := r.b.Delete(ctx, info.Key); err != nil {
				return err
			}
		}
	}
	removeAbandoned(folder, path.Clean(dir))
	// Only if they are empty: a process may have begun meanwhile.
	_ = folder.Remove(dir + "stage")
	_ = folder.Remove(path.Clean(dir))
	return nil
}
