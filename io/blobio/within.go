package blobio

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"

	"github.com/penstock-data/penstock/internal/fault"
)

// confinement is a folder of a local bucket that links do not lead out of.
type confinement struct {
	prefix string
	path   string                      // of the folder, which is no link
	is     atomic.Pointer[fs.FileInfo] // the folder, once it was there
}

// Within makes links below a folder of a local bucket lead nowhere else: what is at a key that
// begins with prefix ("" or ending in '/') is read, listed, written and removed inside the folder
// prefix, and a link on the way that leads out of it is a Corrupt error that names the link. With
// link the folder itself is where its path leads now, without it is no link either; one that takes
// its place later is no more gone to. It returns the folder's path. It is for folders that others may have written
// to. Call it before the bucket is used, for each such folder, none in another; other buckets have no links.
func (b *Bucket) Within(prefix string, link bool) (folder string) {
	if b.root == "" {
		return ""
	}
	c := &confinement{prefix: prefix, path: b.file(prefix)}
	if fi, err := os.Lstat(c.path); link && err == nil && fi.Mode()&fs.ModeSymlink != 0 {
		if real, err := filepath.EvalSymlinks(c.path); err == nil {
			c.path = real
		}
	}
	b.within = append(b.within, c)
	return c.path
}

// Folder opens a folder that Within was called for, for what is no reading or writing of objects; nil
// in other buckets than local ones. The caller closes it.
func (b *Bucket) Folder(prefix string) (*os.Root, error) {
	for _, c := range b.within {
		if c.prefix == prefix {
			root, err := b.enter(c)
			return root, b.wrap(prefix, err)
		}
	}
	return nil, nil
}

// enter opens the folder of c.
func (b *Bucket) enter(c *confinement) (*os.Root, error) {
	root, err := os.OpenRoot(c.path + "/") // of a pipe that is no wait, but an error
	if err != nil {
		return nil, err
	}
	is, err := root.Stat(".")
	if err == nil {
		err = b.same(c, is)
	}
	if err != nil {
		root.Close()
		return nil, err
	}
	return root, nil
}

// same is an error where what was opened is not the folder of c.
func (b *Bucket) same(c *confinement, is fs.FileInfo) error {
	named, err := os.Lstat(c.path)
	if err != nil {
		return err
	}
	if !os.SameFile(is, named) {
		return fault.New(fault.Corrupt, "this is a link that leads out of %s, and is not followed: remove it", path.Dir(c.path)).At(b.place(strings.TrimSuffix(c.prefix, "/")))
	}
	if !c.is.CompareAndSwap(nil, &is) && !os.SameFile(is, *c.is.Load()) {
		return fault.New(fault.Changed, "another folder took the place of this one while it was used: see who else writes here, and run again").At(b.place(strings.TrimSuffix(c.prefix, "/")))
	}
	return nil
}

// HostError is err, of the operating system about the file of a key in a local bucket, with its
// code and place.
func (b *Bucket) HostError(key string, err error) error { return b.wrap(key, err) }

// files is where the files of a local bucket are found by name: anywhere, or in an os.Root.
type files interface {
	OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error)
	Stat(name string) (fs.FileInfo, error)
	Lstat(name string) (fs.FileInfo, error)
	Remove(name string) error
	Rename(oldname, newname string) error
	Link(oldname, newname string) error
	MkdirAll(name string, perm fs.FileMode) error
	Close() error
}

// anywhere are the files of this machine by their absolute path.
type anywhere struct{}

func (anywhere) OpenFile(name string, flag int, perm fs.FileMode) (*os.File, error) {
	return os.OpenFile(name, flag, perm)
}
func (anywhere) Stat(name string) (fs.FileInfo, error)        { return os.Stat(name) }
func (anywhere) Lstat(name string) (fs.FileInfo, error)       { return os.Lstat(name) }
func (anywhere) Remove(name string) error                     { return os.Remove(name) }
func (anywhere) Rename(oldname, newname string) error         { return os.Rename(oldname, newname) }
func (anywhere) Link(oldname, newname string) error           { return os.Link(oldname, newname) }
func (anywhere) MkdirAll(name string, perm fs.FileMode) error { return os.MkdirAll(name, perm) }
func (anywhere) Close() error                                 { return nil }

// files is where the file of a key is, and its name there. The caller closes it.
func (b *Bucket) files(key string) (f files, name string, err error) {
	c, rel, inside := b.inside(key)
	if !inside {
		return anywhere{}, b.file(key), nil
	}
	root, err := b.enter(c)
	return root, rel, err
}

// inside is the folder that the bucket keeps to and a key is in, and the key's name below that. Of
// two it is the one with the longer prefix: "", a working directory's, begins keys of all folders.
func (b *Bucket) inside(key string) (in *confinement, below string, ok bool) {
	for _, c := range b.within {
		rel, is := strings.CutPrefix(key, c.prefix)
		if !is && key+"/" == c.prefix {
			rel, is = "", true
		}
		if is && (in == nil || len(c.prefix) > len(in.prefix)) {
			in, below, ok = c, strings.TrimLeft(path.Clean(rel), "/"), true
		}
	}
	return in, below, ok
}

// openFlag of files that are read: what became a pipe since it was looked at must not block.
const openFlag = os.O_RDONLY | syscall.O_NONBLOCK

// leadsOut makes the error of a link that leads out of the folder that the bucket keeps to one that
// names it; nil for other errors.
func (b *Bucket) leadsOut(key string, err error) error {
	c, rel, inside := b.inside(key)
	if !inside || !isEscape(err) {
		return nil
	}
	root, rerr := b.enter(c)
	if rerr != nil {
		return nil
	}
	defer root.Close()
	link := c.prefix
	for at := ""; rel != ""; {
		first, rest, _ := strings.Cut(rel, "/")
		at, rel = path.Join(at, first), rest
		if fi, lerr := root.Lstat(at); lerr == nil && fi.Mode()&fs.ModeSymlink != 0 {
			link = c.prefix + at
			break
		}
	}
	return fault.New(fault.Corrupt, "this is a link that leads out of %s, and is not followed: remove it, or put in its place what it leads to",
		strings.TrimSuffix(b.Path(c.prefix), "/")).At(b.place(link))
}

// isEscape reports that an os.Root refused a name. It has no exported error for that, and one that
// is not of the system.
func isEscape(err error) bool {
	for e := err; e != nil; e = errors.Unwrap(e) {
		if e.Error() == "path escapes from parent" {
			return true
		}
	}
	return false
}
