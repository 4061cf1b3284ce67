package store

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/trust"
	"github.com/penstock-data/penstock/io/blobio"
	"golang.org/x/sys/unix"
)

// cacheDir is the folder of one run in a cache of downloads, NAME-ID:
//
//	lock            held by who looks, downloads or removes
//	TRY-SUM/        a download; the sum is of the boot of this machine, the folder of the run, and what the manifest says of the files
//	TRY-SUM.use     a shared lock on it is a lease: the download is in use
//	tmp-HEX/        a download under way, of the one who holds the lock, or who died with it
//
// Other names in it are nobody's, and are left alone. All is done below the folder: no link leads
// out. The system drops the locks of a process that dies.
type cacheDir struct {
	path string
	root *os.Root
	held *os.File
}

var (
	downloadRE = regexp.MustCompile(`^[0-9]{6,10}-[0-9]{1,10}-[0-9a-f]{8}-[0-9a-f]{32}$`)
	halfRE     = regexp.MustCompile(`^tmp-[0-9a-f]{8}$`)
)

// downloadName of the files of a checkpoint of the run. What was not forced to disk is not trusted
// after a boot; what a manifest says that was read without a key is not what one says that has the
// same name and a seal; and what came from another folder is another's, whatever it says of itself:
// sums without a key can be forged.
func (r *Run) downloadName(m *Manifest) string {
	from := r.url
	if p, local := r.b.Local(r.prefix); local {
		if real, err := filepath.EvalSymlinks(p); err == nil {
			p = real
		}
		if from, _ = filepath.Abs(p); from == "" {
			from = p
		}
	}
	h := sha256.New()
	fmt.Fprintf(h, "%s\n%q\n", bootID(), from)
	for i := range m.Files {
		f := &m.Files[i]
		fmt.Fprintf(h, "%q %d %s\n", f.Path, f.Size, f.Sum)
	}
	return m.Try + "-" + hex.EncodeToString(h.Sum(nil)[:16])
}

func halfName() string { return "tmp-" + randomHex(4) }

// openCache opens, and makes, the folder of a run in a cache. It must be this user's own: what lies
// there is loaded by programs of this user.
func openCache(cache, name string) (*cacheDir, error) {
	c := &cacheDir{path: filepath.Join(cache, name)}
	if err := os.MkdirAll(cache, 0o700); err != nil {
		return nil, blobio.HostError(cache, err)
	}
	base, err := os.OpenRoot(cache)
	if err != nil {
		return nil, blobio.HostError(cache, err)
	}
	defer base.Close()
	if err := base.Mkdir(name, 0o700); err != nil && !errors.Is(err, fs.ErrExist) {
		return nil, blobio.HostError(c.path, err)
	}
	fi, err := base.Lstat(name)
	if err == nil && !fi.IsDir() {
		return nil, fault.New(fault.Denied, "this must be a folder of downloads, and is %s: remove it, or choose another cache", fi.Mode().Type()).At(fault.Place{File: c.path})
	}
	if err == nil {
		c.root, err = base.OpenRoot(name)
	}
	if err != nil {
		return nil, blobio.HostError(c.path, err)
	}
	if err := trust.File(c.path); err != nil {
		c.root.Close()
		return nil, fault.New(fault.CodeOf(err), "no downloads of checkpoints are kept here, as others could put something else in their place: %w; remove it, or choose a cache of your own", err)
	}
	is, err := c.root.Stat(".")
	if err == nil && !os.SameFile(is, fi) {
		err = fault.New(fault.Denied, "the folder was replaced while it was opened")
	}
	if err != nil {
		c.root.Close()
		return nil, fault.Wrap(blobio.HostError(c.path, err), fault.Place{})
	}
	return c, nil
}

// fail is err with its code, at a name in the folder.
func (c *cacheDir) fail(name string, err error) error {
	return blobio.HostError(filepath.Join(c.path, name), bare(err))
}

func (c *cacheDir) close() {
	if c.held != nil {
		c.held.Close() // locks only
	}
	c.root.Close()
}

// lease keeps a download; nil keeps nothing.
type lease struct{ f *os.File }

func (l *lease) release() {
	if l != nil {
		l.f.Close() // locks only
	}
}

// lock is held until close.
func (c *cacheDir) lock(ctx context.Context) error {
	f, err := c.root.OpenFile("lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return c.fail("lock", err)
	}
	for wait := time.Millisecond; ; wait = min(2*wait, 100*time.Millisecond) {
		got, err := flock(f, unix.LOCK_EX)
		if err != nil || got {
			if err != nil {
				f.Close()
				return c.lockError("lock", err)
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
			return fault.New(fault.Canceled, "%w", context.Cause(ctx)).At(fault.Place{File: filepath.Join(c.path, "lock")})
		}
	}
}

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

func (c *cacheDir) lockError(name string, err error) error {
	switch err {
	case unix.ENOLCK, unix.ENOTSUP, unix.ENOSYS, unix.EINVAL:
		return fault.New(fault.Unsupported, "files cannot be locked here (%w): choose a cache on a local disk", err).At(fault.Place{File: filepath.Join(c.path, name)})
	}
	return c.fail(name, err)
}

// spared is what a download leaves free of a disk, but of a small one a twentieth.
const spared = 1 << 30

// room is an error where the disk has none for a download: what a manifest of somebody else says, and
// a file with holes costs its author nothing.
func (c *cacheDir) room(m *Manifest) error {
	f, err := c.root.Open(".")
	if err != nil {
		return c.fail("", err)
	}
	defer f.Close() // read only
	free, all, known := disk(f)
	if rest := min(spared, all/20); known && m.Bytes > free-rest {
		return fault.New(fault.Exhausted, "checkpoint %d has %d bytes, and %d are free on this disk, of which %d must stay: make room, or choose another cache (XDG_CACHE_HOME)", m.Number, m.Bytes, free, rest).
			At(fault.Place{File: c.path})
	}
	return nil
}

// lease takes a download for use. The lock is held.
func (c *cacheDir) lease(name string) (*lease, error) {
	use := name + ".use"
	f, err := c.root.OpenFile(use, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, c.fail(use, err)
	}
	if got, err := flock(f, unix.LOCK_SH); err != nil || !got {
		f.Close()
		if err == nil { // who removes it holds the lock of the folder as well
			err = unix.EWOULDBLOCK
		}
		return nil, c.lockError(use, err)
	}
	return &lease{f}, nil
}

// removeOthers removes downloads that nobody uses, but for name, and half ones. The lock is held.
func (c *cacheDir) removeOthers(name string) error {
	entries, err := fs.ReadDir(c.root.FS(), ".")
	if err != nil {
		return c.fail("", err)
	}
	for _, e := range entries {
		other, isUse := strings.CutSuffix(e.Name(), ".use")
		if other == name || isUse && e.IsDir() || !downloadRE.MatchString(other) && (isUse || !halfRE.MatchString(other)) {
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
	use := name + ".use"
	f, err := c.root.OpenFile(use, os.O_RDWR, 0)
	if err == nil {
		got, err := flock(f, unix.LOCK_EX)
		defer f.Close()
		if err != nil {
			return c.lockError(use, err)
		}
		if !got {
			return nil
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return c.fail(use, err)
	}
	// Renamed first: what is half removed must not be taken for a download.
	gone := halfName()
	if err = c.root.Rename(name, gone); err == nil {
		err = c.root.RemoveAll(gone)
	}
	if err == nil || errors.Is(err, fs.ErrNotExist) {
		err = c.root.Remove(use)
	}
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return c.fail(name, err)
}
