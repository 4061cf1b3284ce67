package blobio

import (
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"path"
	"strconv"

	"github.com/penstock-data/penstock/internal/fault"
	"golang.org/x/sys/unix"
)

// Below this many bytes pieces of a local file are read one after another.
const parallelLocal = 1 << 20

// file is the path of key in the file system, absolute.
func (b *Bucket) file(key string) string { return path.Join(b.root, key) }

func (b *Bucket) statLocal(ctx context.Context, key string) (Info, error) {
	if err := b.canceled(ctx, key); err != nil {
		return Info{}, err
	}
	f, name, err := b.files(key)
	if err != nil {
		return Info{}, b.wrap(key, err)
	}
	defer f.Close()
	fi, err := f.Stat(name)
	if err != nil {
		return Info{}, b.wrap(key, err)
	}
	switch {
	case fi.IsDir():
		return Info{}, fault.New(fault.NotFound, "this is a directory, not a file").At(b.place(key))
	case !fi.Mode().IsRegular():
		return Info{}, fault.New(fault.Unsupported, "not a regular file (%s): copy it to one first", fi.Mode().Type()).At(b.place(key))
	}
	return Info{Key: key, Size: fi.Size(), ModTime: fi.ModTime(), inode: inodeOf(fi)}, nil
}

// openLocal opens the file and checks that it is the version that was listed: of the same
// size and modification time, and no other file that was put in its place with both. (The clock behind
// them ticks every few milliseconds: a file rewritten within one tick at the same size goes unseen, as
// does one that is rewritten in place and has its time set back.)
func (o *Object) openLocal() (*os.File, error) {
	in, name, err := o.b.files(o.info.Key)
	if err != nil {
		return nil, o.b.wrap(o.info.Key, err)
	}
	defer in.Close()
	f, err := in.OpenFile(name, openFlag, 0)
	if err == nil {
		if err = o.checkLocal(f); err == nil {
			return f, nil
		}
		f.Close()
	}
	return nil, o.b.wrap(o.info.Key, err)
}

func (o *Object) checkLocal(f *os.File) error {
	fi, err := f.Stat()
	is := &o.info
	if err == nil && (!fi.Mode().IsRegular() || fi.Size() != is.Size || !is.ModTime.IsZero() && !fi.ModTime().Equal(is.ModTime) ||
		inodeOf(fi).replaces(is.inode)) {
		err = errChanged
	}
	return err
}

// pread fills dst from off, and looks again whether the file is still the same:
// it may have been written to while it was read.
func (o *Object) pread(ctx context.Context, f *os.File, dst []byte, off int64) error {
	if err := o.b.canceled(ctx, o.info.Key); err != nil {
		return err
	}
	o.count(func(s *Stats) { s.Requests.Add(1); s.Bytes.Add(int64(len(dst))) })
	_, err := f.ReadAt(dst, off)
	if err == io.EOF {
		err = errChanged // shorter than it was
	}
	if err == nil {
		err = o.checkLocal(f)
	}
	return o.b.wrap(o.info.Key, err)
}

func (b *Bucket) deleteLocal(ctx context.Context, key string) error {
	if err := b.canceled(ctx, key); err != nil {
		return err
	}
	f, name, err := b.files(key)
	if err == nil {
		defer f.Close()
		var fi os.FileInfo
		if fi, err = f.Lstat(name); err == nil && !fi.IsDir() { // a directory is no object
			err = f.Remove(name)
		}
	}
	if err = b.wrap(key, err); fault.CodeOf(err) == fault.NotFound {
		return nil
	}
	return err
}

// tempPrefix begins the names of files that are being written; listings leave
// them out. A process that is killed leaves its own behind.
const tempPrefix = ".penstock-tmp-"

// localSink writes a hidden file beside the target, which becomes the target at
// once: by rename, or, where the target must not exist, by a rename that refuses
// to replace (Linux) or a hard link.
type localSink struct {
	b      *Bucket
	key    string
	in     files
	tmp    *os.File
	name   string // of tmp
	target string
	fresh  bool // must not exist
	check  func() error
}

func (b *Bucket) createLocal(ctx context.Context, key string, o *PutOptions) (*localSink, error) {
	check := func() error { return b.canceled(ctx, key) }
	if err := check(); err != nil {
		return nil, err
	}
	var err error
	if c, _, inside := b.inside(key); inside {
		err = os.MkdirAll(c.path, 0o777)
	}
	var in files
	var target string
	if err == nil {
		in, target, err = b.files(key)
	}
	if err == nil {
		if err = in.MkdirAll(path.Dir(target), 0o777); err != nil {
			in.Close()
		}
	}
	if errors.Is(err, unix.ENOTDIR) {
		return nil, fault.New(fault.Exists, "a file is where a directory must be: %w", err).At(b.place(key))
	} else if err != nil {
		return nil, b.wrap(key, err)
	}
	for {
		name := path.Join(path.Dir(target), tempPrefix+strconv.FormatUint(rand.Uint64(), 36))
		tmp, err := in.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o666)
		if os.IsExist(err) {
			continue
		}
		if err != nil {
			in.Close()
			return nil, b.wrap(key, err)
		}
		return &localSink{b: b, key: key, in: in, tmp: tmp, name: name, target: target, fresh: o.IfNotExist, check: check}, nil
	}
}

func (s *localSink) Write(p []byte) (int, error) {
	if err := s.check(); err != nil {
		return 0, err
	}
	n, err := s.tmp.Write(p)
	return n, s.b.wrap(s.key, err)
}

func (s *localSink) commit() error {
	defer s.in.Close()
	err := s.tmp.Sync()
	if cerr := s.tmp.Close(); err == nil {
		err = cerr
	}
	if err == nil {
		err = s.check()
	}
	if err == nil {
		err = s.rename()
	}
	if err != nil {
		s.in.Remove(s.name)
		return s.b.wrap(s.key, err)
	}
	// The name must survive a crash too. The object is there whatever happens now,
	// so an error only says that it may not last.
	dir, err := s.in.OpenFile(path.Dir(s.target), openFlag, 0)
	if err != nil {
		return s.b.wrap(s.key, err)
	}
	defer dir.Close()
	if err = dir.Sync(); err == unix.EINVAL || err == unix.ENOTSUP {
		err = nil // file systems that cannot sync directories
	}
	return s.b.wrap(s.key, err)
}

// rename makes the hidden file the target.
func (s *localSink) rename() error {
	if !s.fresh {
		return s.in.Rename(s.name, s.target)
	}
	dir, err := s.in.OpenFile(path.Dir(s.target), openFlag, 0)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err = renameNoReplace(dir, path.Base(s.name), path.Base(s.target)); err != errors.ErrUnsupported {
		return err
	}
	if err = s.in.Link(s.name, s.target); err == nil { // which refuses as well
		err = s.in.Remove(s.name)
	}
	return err
}

func (s *localSink) abort() {
	s.tmp.Close()
	s.in.Remove(s.name)
	s.in.Close()
}

// Map maps a local object into memory, read only; ok is false for other buckets
// and empty files. unmap must be called once, when nothing refers to b any more.
// A file that is truncated while it is mapped kills the process on access
// (SIGBUS): replace files by rename, as Put and Create do.
func (o *Object) Map() (b []byte, unmap func() error, ok bool, err error) {
	if o.b.root == "" || o.info.Size == 0 {
		return nil, nil, false, nil
	}
	f, err := o.openLocal()
	if err != nil {
		return nil, nil, false, err
	}
	defer f.Close() // the mapping stays
	b, err = unix.Mmap(int(f.Fd()), 0, int(o.info.Size), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		return nil, nil, false, o.b.wrap(o.info.Key, err)
	}
	o.count(func(s *Stats) { s.Requests.Add(1) })
	return b, func() error { return unix.Munmap(b) }, true, nil
}
