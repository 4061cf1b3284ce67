package sink

import (
	"context"
	"errors"
	"io"
	"io/fs"
	"iter"
	"net/url"
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
	return reopenRoot(ctx, url, key, o)
}

func reopenRoot(ctx context.Context, url, prefix string, o *blobio.Options) (*root, error) {
	b, err := blobio.Open(ctx, url, o)
	if err != nil {
		return nil, err
	}
	b.Within(prefix) // others may have been here
	return &root{b: b, url: url, prefix: prefix}, nil
}

// folder is the root where it is local, for what is no reading or writing of objects; else nil. No
// link in it leads out. The caller closes it.
func (r *root) folder() (*os.Root, error) {
	p, ok := r.b.Local(r.prefix)
	if !ok {
		return nil, nil
	}
	f, err := os.OpenRoot(p)
	return f, r.fail("", err)
}

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

// Apart refuses a dead letter folder that lies in the output's, or has it in it. No I/O.
func Apart(output, deadLetter string) error {
	out, err := folderID(output)
	if err != nil {
		return err
	}
	dead, err := folderID(deadLetter)
	if err != nil {
		return err
	}
	if strings.HasPrefix(dead, out) || strings.HasPrefix(out, dead) {
		return fault.New(fault.Invalid, "the dead letter folder %s and the output %s must lie apart", deadLetter, output)
	}
	return nil
}

// folderID names the folder p whatever the working directory, and the options of its URL. It ends in '/'.
func folderID(p string) (string, error) {
	bucket, key, err := blobio.Split(p)
	if err != nil {
		return "", err
	}
	u, err := url.Parse(bucket)
	if err != nil {
		return "", fault.New(fault.Invalid, "bucket URL: %w", err)
	}
	id := u.Scheme + "://" + u.Host + "/" + key
	if u.Scheme == "file" {
		id = path.Join(u.Path, key)
	}
	return strings.TrimSuffix(id, "/") + "/", nil
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

// putNew writes a small object that must not exist; won is false if it does.
func (r *root) putNew(ctx context.Context, rel string, data []byte) (won bool, err error) {
	r.at("put", rel)
	defer r.at("was put", rel)
	err = r.b.Put(ctx, r.prefix+rel, data, &blobio.PutOptions{IfNotExist: true, ContentType: "application/json"})
	if fault.CodeOf(err) == fault.Exists {
		return false, nil
	}
	return err == nil, err
}

// removeTree deletes all below rel, which ends in '/'.
func (r *root) removeTree(ctx context.Context, rel string) error {
	r.at("remove tree", rel)
	if f, err := r.folder(); err != nil || f != nil {
		if err == nil {
			err = r.fail(rel, f.RemoveAll(path.Clean(rel)))
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
	From  string `json:"from"`
	To    string `json:"to"`
	Bytes int64  `json:"bytes"`
}

var errMissing = errors.New("the staged file is missing")

// publish makes staged files visible under their names. It may be repeated, and
// run by several processes at once: what From holds never changes, and nothing else is ever
// written to To.
func (r *root) publish(ctx context.Context, moves []move) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(inFlight)
	for _, m := range moves {
		g.Go(func() error {
			r.at("publish", m.To)
			err := r.publishOne(gctx, m)
			return fault.Wrap(err, fault.Place{File: r.path(m.To)})
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return r.syncDirs(moves)
}

func (r *root) publishOne(ctx context.Context, m move) error {
	folder, err := r.folder()
	if err != nil {
		return err
	}
	if folder != nil {
		defer folder.Close()
		err := r.rename(ctx, folder, m)
		if !errors.Is(err, unix.EXDEV) { // a folder of the output may be another file system
			return r.fail(m.To, err)
		}
	} else if err := r.published(ctx, m); !errors.Is(err, errMissing) {
		return err
	}
	err = r.copy(ctx, m)
	if fault.CodeOf(err) == fault.NotFound {
		return r.published(ctx, m)
	}
	return err
}

func (r *root) rename(ctx context.Context, in *os.Root, m move) error {
	for try := 0; ; try++ {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		err := in.MkdirAll(path.Dir(m.To), 0o777)
		if err == nil {
			err = in.Rename(m.From, m.To)
		}
		if !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err := r.published(ctx, m); !errors.Is(err, errMissing) {
			return err
		}
		// Either From is gone, or another job's clean-up took the empty folder.
		if _, err := in.Lstat(m.From); err != nil || try == 3 {
			return r.published(ctx, m)
		}
	}
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

func (r *root) copy(ctx context.Context, m move) error {
	if m.Bytes <= maxCopy {
		return r.b.Copy(ctx, r.prefix+m.To, r.prefix+m.From)
	}
	info, err := r.b.Stat(ctx, r.prefix+m.From)
	if err != nil {
		return err
	}
	w, err := r.b.Create(ctx, r.prefix+m.To, nil)
	if err != nil {
		return err
	}
	src := r.b.Object(info, nil).Stream(ctx, 0, info.Size)
	n, err := io.Copy(w, src)
	src.Close()
	if err == nil && n != m.Bytes {
		err = fault.New(fault.Corrupt, "the staged file %s has %d bytes, not %d", r.path(m.From), n, m.Bytes)
	}
	if err != nil {
		w.Abort()
		return err
	}
	return w.Close()
}

// syncDirs makes local renames durable: the manifest must not outlive them.
func (r *root) syncDirs(moves []move) error {
	folder, err := r.folder()
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
	for d := range dirs {
		f, err := openDir(folder, d)
		if err == nil {
			err = f.Sync()
			if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) {
				err = nil // file systems that cannot sync directories
			}
			f.Close()
		}
		if err != nil {
			return r.fail(d, err)
		}
	}
	return nil
}
