package blobio

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"iter"
	"os"
	"path"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/penstock-data/penstock/internal/fault"
	"golang.org/x/sync/errgroup"
)

const (
	listers   = 16  // goroutines reading directories ahead of the caller
	listAhead = 64  // directories read and not yet reached
	statBatch = 256 // files of one directory described by one goroutine
)

// dirNode is a directory of the walk. Whoever comes first loads it.
type dirNode struct {
	key  string      // "" or ending in '/'
	up   *dirNode    // nil for the root of the walk
	self os.FileInfo // of the directory, once loaded

	once    sync.Once
	entries []entry
	err     error

	// Under walk.mu.
	walked bool // the walk is at it or past it
	helped bool // a helper loaded it, or is about to
}

type entry struct {
	Info
	dir  *dirNode // of a directory
	skip bool
}

// load reads the directory: entries in byte order of keys, described. base
// restricts it to names that begin so. Symbolic links are followed; one that
// leads nowhere, or to a directory that holds it, is left out, as are files
// that are neither regular nor directories.
func (b *Bucket) load(d *dirNode, base string) {
	d.once.Do(func() { d.entries, d.err = b.readDir(d, base) })
}

func (b *Bucket) readDir(d *dirNode, base string) ([]entry, error) {
	in, dir, err := b.files(d.key)
	if err != nil {
		return nil, err
	}
	defer in.Close()
	f, err := in.OpenFile(dir, openFlag, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if d.self, err = f.Stat(); err != nil {
		return nil, err
	}
	names, err := f.ReadDir(-1)
	if err != nil {
		return nil, err
	}
	names = slices.DeleteFunc(names, func(e fs.DirEntry) bool {
		return !strings.HasPrefix(e.Name(), base) || strings.HasPrefix(e.Name(), tempPrefix)
	})
	entries := make([]entry, len(names))
	describe := func(from, to int) error {
		for i := from; i < to; i++ {
			if err := b.describe(in, dir, d, names[i], &entries[i]); err != nil {
				return err
			}
		}
		return nil
	}
	var g errgroup.Group
	g.SetLimit(listers)
	for from := 0; from < len(names); from += statBatch {
		to := min(from+statBatch, len(names))
		if len(names) <= statBatch {
			err = describe(from, to)
			break
		}
		g.Go(func() error { return describe(from, to) })
	}
	if gerr := g.Wait(); err == nil {
		err = gerr
	}
	if err != nil {
		return nil, err
	}
	entries = slices.DeleteFunc(entries, func(e entry) bool { return e.skip })
	// Directories sort with their '/', so that a walk in this order is in byte
	// order of all keys.
	slices.SortFunc(entries, func(x, y entry) int { return cmp.Compare(x.Key, y.Key) })
	return entries, nil
}

func (b *Bucket) describe(in files, dir string, d *dirNode, de fs.DirEntry, e *entry) error {
	key := d.key + de.Name()
	var fi os.FileInfo
	var err error
	switch t := de.Type(); {
	case t.IsDir():
		*e = entry{Info: Info{Key: key + "/", Dir: true}, dir: &dirNode{key: key + "/", up: d}}
		return nil
	case t&fs.ModeSymlink != 0:
		if fi, err = in.Stat(path.Join(dir, de.Name())); err != nil {
			err = cmp.Or(b.leadsOut(key, err), err)
		}
	case t.IsRegular():
		fi, err = de.Info()
	default:
		e.skip = true
		return nil
	}
	switch {
	case err != nil:
		// Gone since, a link to nowhere, or a ring of links: there is no such object.
		e.skip = true
		if code := codeOf(err); code == fault.NotFound || isLoop(err) {
			return nil
		}
		return err
	case fi.IsDir():
		for up := d; up != nil; up = up.up {
			if up.self != nil && os.SameFile(up.self, fi) {
				e.skip = true
				return nil
			}
		}
		*e = entry{Info: Info{Key: key + "/", Dir: true}, dir: &dirNode{key: key + "/", up: d}}
	case fi.Mode().IsRegular():
		*e = entry{Info: Info{Key: key, Size: fi.Size(), ModTime: fi.ModTime(), inode: inodeOf(fi)}}
	default:
		e.skip = true
	}
	return nil
}

func isLoop(err error) bool { return errors.Is(err, syscall.ELOOP) }

// rootNode begins a walk at key. The directories above it are known too: a link
// to one of them is a cycle as well.
func (b *Bucket) rootNode(key string) *dirNode {
	var up *dirNode
	for p := b.file(key); p != "/"; {
		p = path.Dir(p)
		if fi, err := os.Stat(p); err == nil {
			up = &dirNode{up: up, self: fi}
		}
	}
	return &dirNode{key: key, up: up}
}

func (b *Bucket) listLocalDir(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		d := b.rootNode(prefix)
		if b.load(d, ""); d.err != nil {
			if err := b.wrap(prefix, d.err); fault.CodeOf(err) != fault.NotFound {
				yield(Info{}, err)
			}
			return
		}
		for _, e := range d.entries {
			if err := b.canceled(ctx, prefix); err != nil {
				yield(Info{}, err)
				return
			}
			if !yield(e.Info, nil) {
				return
			}
		}
	}
}

func (b *Bucket) listLocal(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	return func(yield func(Info, error) bool) {
		dir, base := path.Split(prefix)
		w := walk{b: b, yield: yield, ctxErr: func() error { return b.canceled(ctx, prefix) }}
		w.cond.L = &w.mu
		defer w.stop()
		w.dir(b.rootNode(dir), base)
	}
}

// walk hands out a tree in order, while helpers load directories that come next.
// Helpers take from queue the directory that the walk will reach first.
type walk struct {
	b      *Bucket
	yield  func(Info, error) bool
	ctxErr func() error

	mu      sync.Mutex
	cond    sync.Cond
	queue   []*dirNode // a stack: the next directory of the walk on top
	loaded  int        // by helpers, not yet reached by the walk
	helpers int
	stopped bool
	wg      sync.WaitGroup
}

// dir walks d; false ends the walk.
func (w *walk) dir(d *dirNode, base string) bool {
	w.mu.Lock()
	if d.walked = true; d.helped {
		w.loaded--
		w.cond.Signal()
	}
	w.mu.Unlock()
	if w.b.load(d, base); d.err != nil {
		err := w.b.wrap(d.key, d.err)
		if fault.CodeOf(err) == fault.NotFound { // never was, or is gone since
			return true
		}
		w.yield(Info{}, err)
		return false
	}
	w.ahead(d.entries)
	for i := range d.entries {
		if err := w.ctxErr(); err != nil {
			w.yield(Info{}, err)
			return false
		}
		e := &d.entries[i]
		if e.dir == nil {
			if !w.yield(e.Info, nil) {
				return false
			}
			continue
		}
		if !w.dir(e.dir, "") {
			return false
		}
		e.dir = nil // a walk of many directories keeps only a path of them
	}
	return true
}

// ahead queues the first of the directories among entries.
func (w *walk) ahead(entries []entry) {
	var next []*dirNode
	for i := range entries {
		if d := entries[i].dir; d != nil {
			next = append(next, d)
		}
	}
	if len(next) < 2 {
		return // the walk loads it itself
	}
	slices.Reverse(next)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.queue = append(w.queue, next...)
	for ; w.helpers < min(listers, len(w.queue)); w.helpers++ {
		w.wg.Go(w.help)
	}
	w.cond.Broadcast()
}

func (w *walk) help() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for {
		for (len(w.queue) == 0 || w.loaded >= listAhead) && !w.stopped {
			w.cond.Wait()
		}
		if w.stopped {
			return
		}
		d := w.queue[len(w.queue)-1]
		w.queue = w.queue[:len(w.queue)-1]
		if d.walked {
			continue
		}
		d.helped = true
		w.loaded++
		w.mu.Unlock()
		w.b.load(d, "")
		w.mu.Lock()
	}
}

func (w *walk) stop() {
	w.mu.Lock()
	w.stopped = true
	w.cond.Broadcast()
	w.mu.Unlock()
	w.wg.Wait()
}
