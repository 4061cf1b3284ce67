package sink

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"os"
	"path"
	"strings"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// cleanupTimeout bounds the removal of what a failed run leaves.
const cleanupTimeout = 10 * time.Second

// inFlight bounds parallel requests for small objects.
const inFlight = 16

// root is a folder in a bucket; names below are relative to it.
type root struct {
	b      *blobio.Bucket
	url    string // of the bucket
	prefix string // "" or ending in '/'
	// hook is called around every step that changes something; tests die in it.
	hook func(step, rel string)
}

func (r *root) at(step, rel string) {
	if r.hook != nil {
		r.hook(step, rel)
	}
}

func openRoot(ctx context.Context, p string, o *blobio.Options) (*root, error) {
	url, key, err := blobio.Split(p)
	if err != nil {
		return nil, err
	}
	if key != "" && !strings.HasSuffix(key, "/") {
		key += "/"
	}
	b, err := blobio.Open(ctx, url, o)
	if err != nil {
		return nil, err
	}
	return &root{b: b, url: url, prefix: key}, nil
}

// folder is the root where it is local, for what is no reading or writing of objects; else nil. No
// link in it leads out. The caller closes it.
func (r *root) folder() (*os.Root, error) { return r.b.Folder(r.prefix) }

// openDir opens a folder. What others put in its place, such as a pipe, does not block.
func openDir(in *os.Root, name string) (*os.File, error) {
	return in.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
}

// fail is err of the operating system about rel with its code and place.
func (r *root) fail(rel string, err error) error { return r.b.HostError(r.prefix+rel, err) }

// id names the folder whatever the working directory.
func (r *root) id() string {
	if p, ok := r.b.Local(r.prefix); ok {
		return "file://" + p + "/"
	}
	return strings.TrimSuffix(r.b.Path(r.prefix), "?")
}

// Apart refuses a dead letter folder that lies in the output's, or has it in it. It follows links.
func Apart(output, deadLetter string) error {
	outs, err := blobio.Names(output)
	if err != nil {
		return err
	}
	deads, err := blobio.Names(deadLetter)
	if err != nil {
		return err
	}
	for _, out := range outs {
		for _, dead := range deads {
			if strings.HasPrefix(dead, out) || strings.HasPrefix(out, dead) {
				return fault.New(fault.Invalid, "the dead letter folder %s and the output %s must lie apart", deadLetter, output)
			}
		}
	}
	return nil
}

// path is how a user would write rel.
func (r *root) path(rel string) string { return r.b.Path(r.prefix + rel) }

// checkDir: a local folder may be missing, but not be a file, nor lie below one.
func (r *root) checkDir() error {
	p, ok := r.b.Local(r.prefix)
	if !ok {
		return nil
	}
	fi, err := os.Stat(path.Clean(p))
	switch {
	case err == nil && !fi.IsDir():
		return fault.New(fault.Invalid, "this is a file, not a folder: an output is a folder of files; name another").
			At(fault.Place{File: strings.TrimSuffix(r.path(""), "/")})
	case errors.Is(err, unix.ENOTDIR):
		return fault.New(fault.Invalid, "a part of this path is a file, not a folder: name another output folder").
			At(fault.Place{File: r.path("")})
	}
	return nil
}

func (r *root) list(ctx context.Context, rel string) iter.Seq2[blobio.Info, error] {
	return r.b.List(ctx, r.prefix+rel)
}

func (r *root) listDir(ctx context.Context, rel string) iter.Seq2[blobio.Info, error] {
	return r.b.ListDir(ctx, r.prefix+rel)
}

func (r *root) has(ctx context.Context, rel string) (bool, error) {
	_, err := r.b.Stat(ctx, r.prefix+rel)
	if fault.CodeOf(err) == fault.NotFound {
		return false, nil
	}
	return err == nil, err
}

// putNew writes a small object that must not exist; won is false if it does. What has its name and
// is no file, such as a pipe, stays, and is an error.
func (r *root) putNew(ctx context.Context, rel string, data []byte) (won bool, err error) {
	r.at("put", rel)
	defer r.at("was put", rel)
	err = r.b.Put(ctx, r.prefix+rel, data, &blobio.PutOptions{IfNotExist: true, ContentType: "application/json"})
	if fault.CodeOf(err) != fault.Exists {
		return err == nil, err
	}
	p, local := r.b.Local(r.prefix + rel)
	if !local {
		return false, nil
	}
	fi, lerr := os.Lstat(p)
	switch {
	case lerr != nil && !errors.Is(lerr, fs.ErrNotExist):
		return false, err // a file is in the place of one of its folders
	case lerr == nil && !fi.Mode().IsRegular():
		return false, fault.New(fault.Exists, "this has the name of a record, and is none (%v): remove it", fi.Mode().Type()).At(fault.Place{File: r.path(rel)})
	}
	return false, nil
}

// removeTree deletes all below rel, which ends in '/'.
func (r *root) removeTree(ctx context.Context, rel string) error {
	r.at("remove tree", rel)
	if f, err := r.folder(); err != nil || f != nil {
		if err == nil {
			err = r.removeAll(ctx, f, path.Clean(rel))
			f.Close()
		}
		if fault.CodeOf(err) == fault.NotFound {
			return nil
		}
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(inFlight)
	for info, err := range r.list(ctx, rel) {
		if err != nil {
			g.Go(func() error { return err })
			break
		}
		g.Go(func() error { return r.b.Delete(ctx, info.Key) })
	}
	return g.Wait()
}

// removeAll removes a local folder and what is in it, as long as ctx lives.
func (r *root) removeAll(ctx context.Context, in *os.Root, name string) error {
	if fi, err := in.Lstat(name); err != nil || !fi.IsDir() { // such as a link, which goes itself
		return r.fail(name, errors.Join(err, in.RemoveAll(name)))
	}
	d, err := openDir(in, name)
	if err != nil {
		return r.fail(name, err)
	}
	entries, err := d.ReadDir(-1)
	if err = errors.Join(err, d.Close()); err != nil {
		return r.fail(name, err)
	}
	for _, e := range entries {
		if ctx.Err() != nil {
			return fault.Wrap(context.Cause(ctx), fault.Place{File: r.path(name)})
		}
		if e.IsDir() {
			err = r.removeAll(ctx, in, path.Join(name, e.Name()))
		} else {
			err = r.fail(name, in.RemoveAll(path.Join(name, e.Name())))
		}
		if err != nil && fault.CodeOf(err) != fault.NotFound {
			return err
		}
	}
	return r.fail(name, in.RemoveAll(name))
}

// remove deletes files, and local folders that it emptied.
func (r *root) remove(ctx context.Context, files []string) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(inFlight)
	for _, f := range files {
		g.Go(func() error {
			r.at("remove", f)
			return r.b.Delete(gctx, r.prefix+f)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	dirs := make(map[string]struct{})
	for _, f := range files {
		if d := path.Dir(f); d != "." {
			dirs[d] = struct{}{}
		}
	}
	folder, err := r.folder()
	if folder == nil || err != nil {
		return err
	}
	defer folder.Close()
	for d := range dirs {
		for ; d != "."; d = path.Dir(d) {
			if fi, err := folder.Lstat(d); err != nil || !fi.IsDir() || folder.Remove(d) != nil { // not empty, or gone: either is fine
				break
			}
		}
	}
	return nil
}

// move is one file to be made visible.
type move struct {
	From  string `json:"from"` // below the records
	To    string `json:"to"`   // below the output
	Bytes int64  `json:"bytes"`
}

var errMissing = errors.New("the staged file is missing")

// publish makes staged files visible under their names. It may be repeated, and
// run by several processes at once: what From holds never changes, and nothing else is ever
// written to To.
func (o *output) publish(ctx context.Context, moves []move) error {
	if p, local := o.b.Local(o.prefix); local { // of a partitioned output without rows it is all there is
		if err := os.MkdirAll(p, 0o777); err != nil {
			return o.fail("", err)
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(inFlight)
	for _, m := range moves {
		g.Go(func() error {
			o.at("publish", m.To)
			err := o.publishOne(gctx, m)
			return fault.Wrap(err, fault.Place{File: o.path(m.To)})
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return o.syncDirs(ctx, moves)
}

func (o *output) publishOne(ctx context.Context, m move) error {
	staged, err := o.rec.folder()
	if err != nil {
		return err
	}
	if staged != nil {
		defer staged.Close()
		err := o.rename(ctx, staged, m)
		if !errors.Is(err, unix.EXDEV) { // a folder of the output may be another file system
			return o.fail(m.To, err)
		}
	} else if err := o.published(ctx, m); !errors.Is(err, errMissing) {
		return err
	}
	err = o.copy(ctx, m)
	if fault.CodeOf(err) == fault.NotFound {
		return o.published(ctx, m)
	}
	return err
}

func (o *output) rename(ctx context.Context, staged *os.Root, m move) error {
	for try := 0; ; try++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := o.renameOnce(staged, m)
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := o.published(ctx, m); !errors.Is(err, errMissing) {
			return err
		}
		// Either From is gone, or another job's clean-up took the empty folder.
		if _, err := staged.Lstat(m.From); err != nil || try == 3 {
			return o.published(ctx, m)
		}
	}
}

// renameOnce renames between folders that were opened, so that links in them lead nowhere else.
func (o *output) renameOnce(staged *os.Root, m move) error {
	from, err := openDir(staged, path.Dir(m.From))
	if err != nil {
		return err
	}
	defer from.Close()
	out, err := o.folder()
	if err != nil {
		return err
	}
	defer out.Close()
	dir := path.Dir(m.To)
	if err := out.MkdirAll(dir, 0o777); err != nil {
		return err
	}
	to, err := openDir(out, dir)
	if err != nil {
		return err
	}
	defer to.Close()
	return unix.Renameat(int(from.Fd()), path.Base(m.From), int(to.Fd()), path.Base(m.To))
}

// published reports nil if m.To is there, and errMissing if not.
func (r *root) published(ctx context.Context, m move) error {
	info, err := r.b.Stat(ctx, r.prefix+m.To)
	switch {
	case fault.CodeOf(err) == fault.NotFound:
		return fault.New(fault.Corrupt, "%w", errMissing)
	case err != nil:
		return err
	case info.Size != m.Bytes:
		return fault.New(fault.Exists, "a file of this name with other contents is in the way: move it away and run the job again")
	}
	return nil
}

// maxCopy is what every service copies in one request (S3: 5 GiB).
const maxCopy = 4 << 30

func (o *output) copy(ctx context.Context, m move) error {
	if m.Bytes <= maxCopy {
		return o.b.Copy(ctx, o.prefix+m.To, o.rec.prefix+m.From)
	}
	info, err := o.b.Stat(ctx, o.rec.prefix+m.From)
	if err != nil {
		return err
	}
	w, err := o.b.Create(ctx, o.prefix+m.To, nil)
	if err != nil {
		return err
	}
	src := o.b.Object(info, nil).Stream(ctx, 0, info.Size)
	n, err := io.Copy(w, src)
	src.Close()
	if err == nil && n != m.Bytes {
		err = fault.New(fault.Corrupt, "the staged file %s has %d bytes, not %d", o.rec.path(m.From), n, m.Bytes)
	}
	if err != nil {
		w.Abort()
		return err
	}
	return w.Close()
}

// syncDirs makes local renames durable: the manifest must not outlive them.
func (o *output) syncDirs(ctx context.Context, moves []move) error {
	folder, err := o.folder()
	if folder == nil || err != nil {
		return err
	}
	defer folder.Close()
	dirs := make(map[string]struct{})
	for _, m := range moves {
		for d := path.Dir(m.To); ; d = path.Dir(d) {
			if _, ok := dirs[d]; ok {
				break
			}
			dirs[d] = struct{}{}
			if d == "." {
				break
			}
		}
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(inFlight)
	for d := range dirs {
		g.Go(func() error {
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			o.at("sync", d)
			f, err := openDir(folder, d)
			if err == nil {
				err = syncDir(f)
			}
			return o.fail(d, err)
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	p, _ := o.b.Local(o.prefix) // the folder may be new
	f, err := os.Open(path.Dir(p))
	if err == nil {
		err = syncDir(f)
	}
	return o.fail("", err)
}

// syncDir makes durable what a folder lists, and closes it.
func syncDir(f *os.File) error {
	err := f.Sync()
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) {
		err = nil // file systems that cannot sync directories
	}
	return errors.Join(err, f.Close())
}
