package store

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"path"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

const (
	parallelUploads   = 8
	parallelDownloads = 8
	chunk             = 1 << 20 // bytes that are read, hashed and sent at once; files up to this size are one request

	uploadTries    = 4 // of a file
	cleanupTimeout = 10 * time.Second
)

// Commit is a checkpoint to be made.
type Commit struct {
	Attempt int   // that made it; 0: the one that was begun last. Of an earlier one nothing is committed any more
	Report  int64 // that it belongs to
	Metrics map[string]float64
	World   int // workers
	// Parts are the folders that ranks gave; their files become one tree. None: a checkpoint of the positions in the data only.
	Parts     []Part
	Elsewhere []Elsewhere     // folders of ranks of other machines, which belong to the same tree
	Data      map[string]Data // training data sets by name
	Parallel  int             // uploads at once; 0: 8
}

// Part is the folder of a rank. It is read and left as it is; nothing in it may change before Commit returns.
type Part struct {
	Rank int
	Dir  string
}

// Elsewhere is the folders of ranks of another machine.
type Elsewhere struct {
	Ranks []int
	// Upload has a process of that machine upload them into the try ([Run.Upload] there), and gives their files. When it returns nothing is written any more.
	Upload func(ctx context.Context, try string) ([]File, error)
}

// Commit uploads the files, then makes the checkpoint: before it returns nil nobody sees anything of it, afterwards it is there for whoever comes, and the run's metrics up to it are.
// Files are streamed: memory is one buffer per upload, and the parts of a large file that the service's client sends at once. An upload that the service failed is tried again. After any error
// there is no checkpoint, unless the answer to the last request was lost: then it may be there, whole.
//
// One Commit goes on at a time; others wait.
func (r *Run) Commit(ctx context.Context, c Commit) (*Manifest, error) {
	if err := r.log.lock(ctx); err != nil {
		return nil, err
	}
	defer r.log.unlock()
	own, err := r.owned()
	if err != nil {
		return nil, err
	}
	if c.Attempt != 0 && c.Attempt != own.attempt {
		return nil, fault.New(fault.Invalid, "attempt %d is over, attempt %d has begun: its checkpoints are not committed any more", c.Attempt, own.attempt)
	}
	for name := range c.Data {
		if err := CheckSet(name); err != nil {
			return nil, err
		}
	}
	if c.World < 1 || c.World > maxWorkers || c.Report < 0 || c.Report > maxReports {
		return nil, fault.New(fault.Internal, "a checkpoint of report %d and %d workers", c.Report, c.World)
	}
	if err := r.stillOwner(ctx); err != nil {
		return nil, err
	}
	parts, files, err := scan(ctx, c.Parts)
	defer closeParts(parts)
	if err != nil {
		return nil, err
	}
	m := &Manifest{Number: own.next, Attempt: own.attempt, Try: tryName(own.next, own.attempt), Report: c.Report, World: c.World,
		Metrics: maps.Clone(c.Metrics), Data: make(map[string]Data, len(c.Data))}
	dir := checkpointsDir + m.Try + "/"
	if err := r.upload(ctx, m, dir, files, c); err != nil {
		r.cleanup(ctx, dir)
		return nil, err
	}
	if err := r.decide(ctx, m, own); err != nil {
		return nil, err
	}
	return m, nil
}

// Upload writes the folders of ranks of this machine into a try to commit that the process which has begun the run made ([Elsewhere]), and gives their files, by path. Nothing of it counts until that one
// has committed: an upload for a try that was given up harms nobody. After an error what is there is removed by whoever commits. parallel uploads at once; 0: 8.
func (r *Run) Upload(ctx context.Context, try string, given []Part, parallel int) ([]File, error) {
	if _, _, ok := parseTry(try); !ok {
		return nil, fault.New(fault.Internal, "%q is no try of a checkpoint", try)
	}
	parts, sources, err := scan(ctx, given)
	defer closeParts(parts)
	if err != nil {
		return nil, err
	}
	dir := checkpointsDir + try + "/"
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(cmp.Or(max(0, parallel), parallelUploads))
	files := make([]File, len(sources))
	r.uploadFiles(gctx, g, dir, sources, files)
	if err := g.Wait(); err != nil {
		return nil, err
	}
	if ctx.Err() != nil {
		return nil, fault.New(fault.Canceled, "%w", context.Cause(ctx))
	}
	return files, r.syncTree(dir)
}

// uploadFiles has g upload sources into dir, and sets files, one each.
func (r *Run) uploadFiles(ctx context.Context, g *errgroup.Group, dir string, sources []source, files []File) {
	order := make([]int, len(sources)) // the largest first, so that none is left to the end
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(sources[b].file.Size, sources[a].file.Size) })
	for _, i := range order {
		if ctx.Err() != nil {
			break
		}
		g.Go(func() error {
			r.at("upload", sources[i].file.Path)
			sum, err := r.uploadFile(ctx, dir+objectName(sources[i].file.Path), &sources[i])
			files[i] = sources[i].file
			files[i].Sum = sum
			return err
		})
	}
}

// upload writes all that a manifest refers to, and fills it in. Parts elsewhere are uploaded there, meanwhile. It returns when nothing is written any more.
func (r *Run) upload(ctx context.Context, m *Manifest, dir string, sources []source, c Commit) error {
	all, actx := errgroup.WithContext(ctx)
	there := make([][]File, len(c.Elsewhere))
	for i, e := range c.Elsewhere {
		all.Go(func() (err error) {
			if there[i], err = e.Upload(actx, m.Try); err == nil {
				err = e.check(there[i], r.sealed)
			}
			return err
		})
	}
	m.Files = make([]File, len(sources))
	all.Go(func() error { return r.uploadHere(actx, m, dir, sources, c) })
	if err := all.Wait(); err != nil {
		return err
	}
	if ctx.Err() != nil {
		return fault.New(fault.Canceled, "%w", context.Cause(ctx))
	}
	for _, files := range there {
		m.Files = append(m.Files, files...)
	}
	if err := oneTree(m.Files); err != nil {
		return err
	}
	for _, f := range m.Files {
		m.Bytes += f.Size
	}
	return r.syncTree(dir)
}

// check refuses what is no result of an upload.
func (e *Elsewhere) check(files []File, strong bool) error {
	if strong {
		if err := (&Manifest{Files: files}).strongSums(); err != nil {
			return fault.New(fault.Internal, "the upload of ranks %v: %w", e.Ranks, err)
		}
	}
	seen := map[int]bool{}
	for i := range files {
		if err := files[i].check(); err != nil {
			return fault.New(fault.Internal, "the upload of ranks %v gave %+v: %w", e.Ranks, files[i], err)
		}
		if !slices.Contains(e.Ranks, files[i].Rank) {
			return fault.New(fault.Internal, "the upload of ranks %v gave a file %q of rank %d", e.Ranks, files[i].Path, files[i].Rank)
		}
		seen[files[i].Rank] = true
	}
	if len(seen) != len(e.Ranks) {
		return fault.New(fault.Internal, "the upload of ranks %v gave files of %d of them", e.Ranks, len(seen))
	}
	return nil
}

// uploadHere is upload's part of this process.
func (r *Run) uploadHere(ctx context.Context, m *Manifest, dir string, sources []source, c Commit) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(cmp.Or(max(0, c.Parallel), parallelUploads))
	g.Go(func() error { return r.flushMetrics(gctx) })
	r.uploadFiles(gctx, g, dir, sources, m.Files)
	var mu sync.Mutex
	for name, d := range c.Data {
		if len(d.State) > 0 && !json.Valid(d.State) {
			g.Go(func() error { return fault.New(fault.Internal, "the state of data set %q is no JSON", name) })
			break
		}
		g.Go(func() error {
			if d.Ledger != nil {
				f := &File{Path: ledgerName(name), Size: int64(len(d.Ledger)), Sum: newSum(r.sealed).of(d.Ledger)}
				if err := r.b.Put(gctx, r.prefix+dir+f.Path, d.Ledger, nil); err != nil {
					return err
				}
				d.Ledger, d.LedgerFile = nil, f
			}
			mu.Lock()
			defer mu.Unlock()
			m.Data[name] = d
			return nil
		})
	}
	return g.Wait()
}

var chunks = sync.Pool{New: func() any { b := make([]byte, chunk+1); return &b }}

// uploadFile writes a file under rel, and returns the sum of what was sent.
func (r *Run) uploadFile(ctx context.Context, rel string, s *source) (sum string, err error) {
	buf := chunks.Get().(*[]byte)
	defer chunks.Put(buf)
	for try := 1; ; try++ {
		if sum, err = r.uploadOnce(ctx, rel, s, *buf); fault.CodeOf(err) != fault.Unavailable || try == uploadTries || ctx.Err() != nil {
			return sum, err
		}
		t := time.NewTimer(rand.N(100 * time.Millisecond << try))
		select {
		case <-t.C:
		case <-ctx.Done():
			t.Stop()
		}
	}
}

func (r *Run) uploadOnce(ctx context.Context, rel string, s *source, buf []byte) (string, error) {
	f, err := s.open()
	if err != nil {
		return "", err
	}
	defer f.Close() // read only
	r.at("read", s.file.Path)
	h := newSum(r.sealed)
	if s.file.Size <= chunk {
		n, err := io.ReadFull(f, buf[:s.file.Size+1])
		switch {
		case errors.Is(err, io.EOF) && s.file.Size == 0, errors.Is(err, io.ErrUnexpectedEOF) && int64(n) == s.file.Size:
		case err == nil, errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
			return "", s.changed(int64(n))
		default:
			return "", s.part.fail(s.file.Path, err)
		}
		if err := s.same(f); err != nil {
			return "", err
		}
		h.Write(buf[:n])
		return h.text(), r.b.Put(ctx, r.prefix+rel, buf[:n], &blobio.PutOptions{Size: s.file.Size})
	}
	w, err := r.b.Create(ctx, r.prefix+rel, &blobio.PutOptions{Size: s.file.Size})
	if err != nil {
		return "", err
	}
	defer w.Abort()
	var sent int64
	for sent <= s.file.Size {
		n, err := f.Read(buf[:chunk])
		if sent += int64(n); sent > s.file.Size {
			break
		}
		h.Write(buf[:n])
		if n > 0 {
			if _, err := w.Write(buf[:n]); err != nil {
				return "", err
			}
		}
		if err == io.EOF {
			break
		}
		if err != nil {
			return "", s.part.fail(s.file.Path, err)
		}
	}
	if sent != s.file.Size {
		return "", s.changed(sent)
	}
	if err := s.same(f); err != nil {
		return "", err
	}
	return h.text(), w.Close()
}

// decide makes the checkpoint: its manifest is the next entry of the log, and nobody else's.
func (r *Run) decide(ctx context.Context, m *Manifest, own owner) error {
	for {
		m.Time = time.Now().UTC().Round(0)
		data, err := r.encode(entryName(m.Number), "checkpoint", m)
		if err != nil {
			r.cleanup(ctx, checkpointsDir+m.Try+"/")
			return err
		}
		won, err := r.putNew(ctx, entryName(m.Number), data)
		if err != nil {
			return err // it may be there, so its files stay: Sweep knows
		}
		if won {
			r.appended(m)
			return nil
		}
		e, err := r.after(ctx, own, m.Number)
		switch {
		case errors.Is(err, ErrSuperseded): // ours is not there and never will be
			r.cleanup(ctx, checkpointsDir+m.Try+"/")
			return err
		case err != nil:
			return err
		case e == nil:
			continue // removed: can only be seen by one who was replaced long ago, which the next round tells
		case e.ckpt != nil && e.ckpt.Try == m.Try:
			r.appended(m) // ours: the answer was lost
			return nil
		}
		// Ours of another try, whose answer never came. The folder of this one keeps its name: manifests say where their files are.
		r.appended(e.ckpt)
		m.Number++
	}
}

func (r *Run) appended(m *Manifest) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.own.next = m.Number + 1
	r.seen[m.Number] = &entry{number: m.Number, ckpt: m}
}

// cleanup removes what a try uploaded that will never have a manifest. What it leaves Sweep removes.
func (r *Run) cleanup(ctx context.Context, dir string) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	_ = r.removeTree(ctx, dir)
}

// removeTree deletes all below rel, which ends in '/'.
func (r *Run) removeTree(ctx context.Context, rel string) error {
	r.at("remove tree", rel)
	if root, err := r.root(); err != nil || root != nil {
		if err == nil {
			err = root.RemoveAll(path.Clean(rel))
			root.Close()
		}
		if err = r.b.HostError(r.prefix+rel, err); fault.CodeOf(err) == fault.NotFound {
			return nil
		}
		return err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(inFlight)
	for info, err := range r.b.List(gctx, r.prefix+rel) {
		if err != nil {
			g.Go(func() error { return err })
			break
		}
		g.Go(func() error {
			r.at("remove", info.Key)
			return r.b.Delete(gctx, info.Key)
		})
	}
	return g.Wait()
}

// syncTree makes the folders of a try durable, where the storage is a folder: a manifest must not outlive them. Files are when they have been written.
func (r *Run) syncTree(rel string) error {
	root, err := r.root()
	if root == nil || err != nil {
		return err
	}
	defer root.Close()
	err = fs.WalkDir(root.FS(), path.Clean(rel), func(name string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = syncDir(root, name)
		}
		return err
	})
	if errors.Is(err, fs.ErrNotExist) { // a checkpoint without files
		err = nil
	}
	for _, up := range []string{checkpointsDir, "."} {
		if err == nil {
			err = syncDir(root, path.Clean(up))
		}
	}
	if err == nil {
		err = r.syncStorage()
	}
	return r.b.HostError(r.prefix+rel, err)
}

// syncStorage makes the name of the run's folder durable.
func (r *Run) syncStorage() error {
	dir, _ := r.Local()
	f, err := os.Open(filepath.Dir(dir))
	if err != nil {
		return err
	}
	return syncAndClose(f)
}

// syncFolder makes the names in a folder of the run durable, where the storage is one.
func (r *Run) syncFolder(rel string) error {
	root, err := r.root()
	if root == nil || err != nil {
		return err
	}
	defer root.Close()
	return r.b.HostError(r.prefix+rel, syncDir(root, path.Clean(rel)))
}

// root is the run's folder where its storage is one, for what is no reading or writing of objects;
// else nil. No link in it leads out. The caller closes it.
func (r *Run) root() (*os.Root, error) { return r.b.Folder(r.prefix) }

// syncDir syncs a folder; one that is not there has no names.
func syncDir(root *os.Root, name string) error {
	f, err := openDir(root, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	return syncAndClose(f)
}

// openDir opens a folder. What others put in its place, such as a pipe, does not block.
func openDir(root *os.Root, name string) (*os.File, error) {
	return root.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY|unix.O_NONBLOCK, 0)
}

func syncAndClose(f *os.File) error {
	defer f.Close()
	err := f.Sync()
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOTSUP) { // file systems that cannot
		return nil
	}
	return err
}

// Ledger reads the ledger of a data set as of a checkpoint; nil where it has none.
func (r *Run) Ledger(ctx context.Context, m *Manifest, data string) ([]byte, error) {
	d, ok := m.Data[data]
	if !ok {
		return nil, fault.New(fault.NotFound, "checkpoint %d has no data set %q", m.Number, data).At(r.place(entryName(m.Number)))
	}
	f := d.LedgerFile
	if f == nil {
		return nil, nil
	}
	rel := checkpointsDir + m.Try + "/" + f.Path
	raw, err := r.b.ReadAll(ctx, r.prefix+rel, max(f.Size, 1))
	if err != nil {
		return nil, err
	}
	if sum := sumLike(f.Sum).of(raw); sum != f.Sum {
		return nil, fault.New(fault.Corrupt, "the ledger of data set %q in checkpoint %d was altered: %d bytes with sum %s, not %d with %s", data, m.Number, len(raw), sum, f.Size, f.Sum).At(r.place(rel))
	}
	return raw, nil
}
