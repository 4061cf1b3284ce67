package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
	"golang.org/x/sync/errgroup"
)

// Fetch makes the files of a checkpoint a folder on this machine, below cache, and returns it. One process downloads it, others that ask for the same wait and share it; each file is
// checked against its sum on the way, and the folder is there whole or not at all. Files are read only, and must not be written to. Where the disk has no room for it, nothing is written: Exhausted.
//
// The folder stays until this Run fetches another checkpoint or is closed, and longer: it is removed when some process then fetches another checkpoint of the run. So a
// cache holds, of each run, what is in use and the last. It must be on a file system with locks (not every network one has them).
//
// A file that is missing or altered is a Corrupt error that names it, and says which earlier checkpoint has all of its files. A checkpoint that was removed meanwhile is NotFound.
func (r *Run) Fetch(ctx context.Context, m *Manifest, cache string) (dir string, err error) {
	if err := r.checkManifest(m); err != nil {
		return "", err
	}
	if cache, err = filepath.Abs(cache); err != nil {
		return "", blobio.HostError(cache, err)
	}
	c, err := openCache(cache, r.rec.Name+"-"+r.rec.ID)
	if err != nil {
		return "", err
	}
	defer c.close()
	if err := c.lock(ctx); err != nil {
		return "", err
	}
	name := r.downloadName(m)
	dir = filepath.Join(c.path, name)
	if !c.whole(name, m) {
		if err := c.remove(name); err != nil {
			return "", err
		}
		if _, err := c.root.Lstat(name); err == nil {
			return "", fault.New(fault.Corrupt, "files of this download were removed or altered, and a process uses it: end that one first").At(fault.Place{File: dir})
		}
		if err := c.room(m); err != nil {
			return "", err
		}
		tmp := halfName()
		err := r.download(ctx, m, c, tmp)
		if err == nil {
			err = c.fail(name, c.root.Rename(tmp, name))
		}
		if err != nil {
			_ = c.root.RemoveAll(tmp) // what stays the next one removes
			return "", r.explain(ctx, m, err)
		}
	}
	l, err := c.lease(name)
	if err != nil {
		return "", err
	}
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		l.release()
		return "", fault.New(fault.Canceled, "run %q was closed while its checkpoint %d was fetched", r.rec.Name, m.Number)
	}
	l, r.lease = r.lease, l
	r.mu.Unlock()
	l.release()
	return dir, c.removeOthers(name)
}

// Verify reads a checkpoint whole, and is a Corrupt error where a file is missing or altered.
func (r *Run) Verify(ctx context.Context, m *Manifest) error {
	if err := r.checkManifest(m); err != nil {
		return err
	}
	err := r.eachFile(ctx, m, func(f *File) (io.WriteCloser, error) { return discard{}, nil })
	for name := range m.Data {
		if err == nil {
			_, err = r.Ledger(ctx, m, name)
		}
	}
	return r.explain(ctx, m, err)
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
func (discard) Close() error                { return nil }

// whole reports that all files of a download are there with their sizes.
func (c *cacheDir) whole(name string, m *Manifest) bool {
	if fi, err := c.root.Lstat(name); err != nil || !fi.IsDir() {
		return false
	}
	for _, f := range m.Files {
		if fi, err := c.root.Lstat(path.Join(name, f.Path)); err != nil || !fi.Mode().IsRegular() || fi.Size() != f.Size {
			return false
		}
	}
	return true
}

// download writes the files into a new folder of the cache.
func (r *Run) download(ctx context.Context, m *Manifest, c *cacheDir, name string) error {
	if err := c.root.Mkdir(name, 0o700); err != nil {
		return c.fail(name, err)
	}
	dirs := map[string]bool{".": true}
	for _, f := range m.Files {
		if d := path.Dir(f.Path); !dirs[d] {
			dirs[d] = true
			if err := c.root.MkdirAll(path.Join(name, d), 0o700); err != nil {
				return c.fail(path.Join(name, d), err)
			}
		}
	}
	return r.eachFile(ctx, m, func(f *File) (io.WriteCloser, error) {
		w, err := c.root.OpenFile(path.Join(name, f.Path), os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o444)
		if err != nil {
			return nil, c.fail(path.Join(name, f.Path), err)
		}
		return hostFile{w}, nil
	})
}

// hostFile has errors with a code.
type hostFile struct{ f *os.File }

func (h hostFile) Write(p []byte) (int, error) {
	n, err := h.f.Write(p)
	return n, blobio.HostError(h.f.Name(), bare(err))
}

func (h hostFile) Close() error { return blobio.HostError(h.f.Name(), bare(h.f.Close())) }

// bare is err without the path, which is said already.
func bare(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}

// eachFile reads the files in parallel into what open gives, and checks them.
func (r *Run) eachFile(ctx context.Context, m *Manifest, open func(*File) (io.WriteCloser, error)) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(parallelDownloads)
	for i := range m.Files {
		if gctx.Err() != nil {
			break
		}
		g.Go(func() error {
			f := &m.Files[i]
			w, err := open(f)
			if err != nil {
				return err
			}
			err = r.readFile(gctx, checkpointsDir+m.Try+"/"+objectName(f.Path), f, w)
			if cerr := w.Close(); err == nil {
				err = cerr
			}
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fault.New(fault.Canceled, "%w", context.Cause(ctx))
	}
	return nil
}

// errDamaged is in the tree of errors of files that are not what the manifest says.
var errDamaged = errors.New("the file of a checkpoint")

func (r *Run) readFile(ctx context.Context, rel string, f *File, w io.Writer) error {
	damaged := func(format string, args ...any) error {
		return fault.New(fault.Corrupt, "%w %s", errDamaged, fmt.Sprintf(format, args...)).At(r.place(rel))
	}
	info, err := r.b.Stat(ctx, r.prefix+rel)
	if fault.CodeOf(err) == fault.NotFound {
		return damaged("is missing")
	}
	if err != nil {
		return err
	}
	if info.Size != f.Size {
		return damaged("was altered: it has %d bytes, not %d", info.Size, f.Size)
	}
	s := r.b.Object(info, nil).Stream(ctx, 0, info.Size)
	defer s.Close() // read only
	h := sumLike(f.Sum)
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	// Not io.Copy: its writer would be asked to read by itself.
	for n := int64(0); n < f.Size; {
		k, err := s.Read((*buf)[:chunk])
		if k > 0 {
			h.Write((*buf)[:k])
			if _, err := w.Write((*buf)[:k]); err != nil {
				return err
			}
		}
		if n += int64(k); err == io.EOF && n < f.Size {
			return damaged("ended after %d bytes of %d", n, f.Size)
		} else if err != nil && err != io.EOF {
			return err
		}
	}
	if sum := h.text(); sum != f.Sum {
		return damaged("was altered: its sum is %s, not %s", sum, f.Sum)
	}
	return nil
}

// explain adds to the error of a damaged checkpoint where to go on from, and finds out whether it was removed while it was read.
func (r *Run) explain(ctx context.Context, m *Manifest, err error) error {
	if err == nil || fault.CodeOf(err) != fault.Corrupt || ctx.Err() != nil {
		return err
	}
	if _, serr := r.b.Stat(ctx, r.prefix+entryName(m.Number)); fault.CodeOf(serr) == fault.NotFound {
		return fault.New(fault.NotFound, "checkpoint %d was removed while it was read: what is kept is set by the run's policy; take a later one", m.Number).At(r.place(entryName(m.Number)))
	}
	list, lerr := r.Checkpoints(ctx)
	if lerr != nil {
		return err
	}
	for i := len(list) - 1; i >= 0; i-- {
		if list[i].Number < m.Number && r.seemsWhole(ctx, &list[i]) {
			return fault.Wrap(fmt.Errorf("%w; checkpoint %d of report %d, made at %s, has all of its files: go on from it, or begin a new run with it", err,
				list[i].Number, list[i].Report, list[i].Time.Format("2006-01-02 15:04:05")), fault.Place{})
		}
	}
	return fault.Wrap(fmt.Errorf("%w; there is no earlier checkpoint that has all of its files", err), fault.Place{})
}

// seemsWhole reports that all files of a checkpoint are in the storage, with their sizes.
func (r *Run) seemsWhole(ctx context.Context, m *Manifest) bool {
	prefix := r.prefix + checkpointsDir + m.Try + "/"
	sizes := make(map[string]int64)
	for info, err := range r.b.List(ctx, prefix) {
		if err != nil {
			return false
		}
		sizes[strings.TrimPrefix(info.Key, prefix)] = info.Size
	}
	for _, f := range m.Files {
		if size, ok := sizes[objectName(f.Path)]; !ok || size != f.Size {
			return false
		}
	}
	return true
}
