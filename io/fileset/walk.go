package fileset

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/bmatcuk/doublestar/v4"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
)

// lister finds files below roots, one folder per task, with conc workers.
type lister struct {
	opts  *Options
	ext   []string
	pred  driver.Predicate
	conc  int
	types map[string]arrow.DataType // given by the user

	mu      sync.Mutex
	guesses map[string]*guess
	skipped []task // folders that pred excludes
	whole   bool   // these were entered, too
	found   []found
	counts  map[*root]*count
}

type found struct {
	info blobio.Info
	root *root
}

// count is what an error says about a root that gives nothing.
type count struct {
	files, pruned int
	exists        bool
	hiddenFiles   names // that are meant but for that
	hiddenFolders names // that could hold what is meant
	others        names // meant but for their extensions
	unlike        names // files that the glob does not match
	folders       names // that it does match
}

// names is a number of names, and some of them.
type names struct {
	n      int
	sample []string
}

func (s *names) add(name string) {
	if s.n++; len(s.sample) < 3 {
		s.sample = append(s.sample, name)
	}
}

func (s *names) merge(o *names) {
	s.n += o.n
	s.sample = append(s.sample, o.sample[:min(len(o.sample), 3-len(s.sample))]...)
}

// String is "a, b, c, ... (7 in all)".
func (s *names) String() string {
	slices.Sort(s.sample)
	if s.n > len(s.sample) {
		return fmt.Sprintf("%s, ... (%d in all)", strings.Join(s.sample, ", "), s.n)
	}
	return strings.Join(s.sample, ", ")
}

// task is a folder to list, or (prefix "?") a root to look at.
type task struct {
	root   *root
	prefix string
}

func (l *lister) run(ctx context.Context, roots []*root) ([]found, error) {
	l.guesses, l.skipped, l.found, l.counts = map[string]*guess{}, nil, nil, map[*root]*count{}
	tasks := make([]task, len(roots))
	for i, r := range roots {
		l.counts[r] = new(count)
		tasks[i] = task{root: r, prefix: "?"}
	}
	if err := l.walk(ctx, tasks); err != nil {
		return nil, err
	}
	if l.hides() {
		l.whole = true
		if err := l.walk(ctx, l.skipped); err != nil {
			return nil, err
		}
	}
	for _, r := range roots {
		if c := l.counts[r]; c.files == 0 && c.pruned == 0 {
			if r.pattern != "" { // a name that only looks like a glob
				if info, err := r.bucket.Stat(ctx, r.key); err == nil && !info.Dir {
					l.take(found{info, r})
					continue
				}
			}
			return nil, r.notFound(c, l.ext)
		}
	}
	return l.found, nil
}

// walk lists what is below tasks.
func (l *lister) walk(ctx context.Context, tasks []task) error {
	q := &queue{}
	q.cond.L = &q.mu
	for _, t := range slices.Backward(tasks) {
		q.push(t)
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	var once sync.Once
	var first error
	for range l.conc {
		wg.Go(func() {
			for {
				t, ok := q.pop()
				if !ok {
					return
				}
				if err := l.step(ctx, q, t); err != nil {
					once.Do(func() { first = err; cancel(err); q.stop() })
				}
				q.done()
			}
		})
	}
	wg.Wait()
	return first
}

// hides reports whether files below skipped folders could change the type of a
// partition that the files found have, or have one that is missing but for them. A key that the
// path of a skipped folder names is not below it, too; more values do not change a type that is declared, or text already.
func (l *lister) hides() bool {
	if len(l.skipped) == 0 {
		return false
	}
	for _, f := range l.found {
		for _, el := range f.root.elems(f.info.Key) {
			if k, v, ok := hivePart(el); ok {
				l.guess(k, v)
			}
		}
	}
	for k := range l.types {
		if l.guesses[k] == nil {
			return true
		}
	}
	more := map[string]*guess{} // with the values of skipped folders, below which there may be files
	for k, g := range l.guesses {
		c := *g
		more[k] = &c
	}
	for _, t := range l.skipped {
		named := map[string]bool{}
		for _, el := range t.root.elems(t.prefix) {
			k, v, ok := hivePart(el)
			if !ok {
				continue
			}
			if named[k] = true; more[k] == nil {
				return true
			}
			more[k].add(v)
		}
		for k, g := range l.guesses {
			if !named[k] && l.types[k] == nil && !g.text() {
				return true
			}
		}
	}
	for k, g := range l.guesses {
		if l.types[k] == nil && !arrow.TypeEqual(g.typ(), more[k].typ()) {
			return true
		}
	}
	return false
}

// queue is a stack of tasks that ends when it is empty and nobody works.
type queue struct {
	mu      sync.Mutex
	cond    sync.Cond
	tasks   []task
	working int
	stopped bool
}

func (q *queue) push(t task) {
	q.mu.Lock()
	q.tasks = append(q.tasks, t)
	q.mu.Unlock()
	q.cond.Signal()
}

func (q *queue) pop() (task, bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for len(q.tasks) == 0 && q.working > 0 && !q.stopped {
		q.cond.Wait()
	}
	if len(q.tasks) == 0 || q.stopped {
		return task{}, false
	}
	t := q.tasks[len(q.tasks)-1]
	q.tasks = q.tasks[:len(q.tasks)-1]
	q.working++
	return t, true
}

func (q *queue) done() {
	q.mu.Lock()
	q.working--
	end := q.working == 0 && len(q.tasks) == 0
	q.mu.Unlock()
	if end {
		q.cond.Broadcast()
	}
}

func (q *queue) stop() {
	q.mu.Lock()
	q.stopped = true
	q.mu.Unlock()
	q.cond.Broadcast()
}

func (l *lister) step(ctx context.Context, q *queue, t task) error {
	r := t.root
	if t.prefix != "?" {
		return l.folder(ctx, q, t)
	}
	if r.pattern == "" && r.key != "" && !strings.HasSuffix(r.key, "/") {
		info, err := r.bucket.Stat(ctx, r.key)
		if err == nil && !info.Dir {
			l.take(found{info, r})
			return nil
		}
		if err != nil && fault.CodeOf(err) != fault.NotFound {
			return fault.Wrap(err, fault.Place{File: r.path})
		}
	}
	if r.pattern == "" {
		r.folder()
	}
	t.prefix = r.dir
	return l.folder(ctx, q, t)
}

func (l *lister) take(f found) {
	l.mu.Lock()
	l.counts[f.root].files++
	l.found = append(l.found, f)
	l.mu.Unlock()
}

// folder lists one folder.
func (l *lister) folder(ctx context.Context, q *queue, t task) error {
	r := t.root
	depth := strings.Count(t.prefix[len(r.dir):], "/")
	var files []found
	var c count
	for info, err := range r.bucket.ListDir(ctx, t.prefix) {
		if err != nil {
			if errors.Is(err, context.Canceled) && ctx.Err() != nil {
				return context.Cause(ctx)
			}
			if _, local := r.bucket.Local(""); local && t.prefix == r.dir && fault.CodeOf(err) == fault.NotFound {
				return nil // run reports it
			}
			return fault.Wrap(err, fault.Place{File: r.path})
		}
		c.exists = true
		name := strings.TrimSuffix(info.Key[min(len(t.prefix), len(info.Key)):], "/")
		if !info.Dir && (name == "" || strings.HasSuffix(info.Key, "/")) {
			continue // the marker of a folder
		}
		rel := strings.TrimSuffix(info.Key[len(r.dir):], "/")
		out := !l.opts.Hidden && hidden(name) && !r.named(depth, name)
		match := true
		if r.pattern != "" {
			var err error
			if match, err = doublestar.Match(r.pattern, rel); err != nil {
				return fault.New(fault.Invalid, "bad glob: %w", err).At(fault.Place{File: r.path})
			}
		}
		if info.Dir {
			if match && !out && !strings.HasSuffix(r.pattern, "**") {
				c.folders.add(name)
			}
			sub := task{r, strings.TrimSuffix(info.Key, "/") + "/"}
			switch {
			case !r.enter(rel):
			case out:
				c.hiddenFolders.add(name)
			case l.prune(name, sub):
				c.pruned++
			default:
				q.push(sub)
			}
			continue
		}
		switch like := r.anyExt || hasExt(name, l.ext); {
		case !match:
			if !out {
				c.unlike.add(name)
			}
			continue
		case out:
			if like {
				c.hiddenFiles.add(name)
			}
			continue
		case !like:
			c.others.add(name)
			continue
		}
		files = append(files, found{info, r})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.found = append(l.found, files...)
	n := l.counts[r]
	n.files += len(files)
	n.pruned += c.pruned
	n.exists = n.exists || c.exists
	n.hiddenFiles.merge(&c.hiddenFiles)
	n.hiddenFolders.merge(&c.hiddenFolders)
	n.others.merge(&c.others)
	n.unlike.merge(&c.unlike)
	n.folders.merge(&c.folders)
	return nil
}

// prune reports whether the name of a folder, t, alone excludes what is below it.
func (l *lister) prune(name string, t task) bool {
	if len(l.pred) == 0 || l.whole || l.opts.Partitions == "none" {
		return false
	}
	k, v, ok := hivePart(name)
	if !ok {
		return false
	}
	for _, p := range l.pred {
		if p.Column == k && excludes(p, v, l.types[k]) {
			l.mu.Lock()
			l.skipped = append(l.skipped, t)
			l.mu.Unlock()
			return true
		}
	}
	return false
}

// guess notes a value of a partition.
func (l *lister) guess(key string, v raw) {
	g := l.guesses[key]
	if g == nil {
		g = new(guess)
		l.guesses[key] = g
	}
	g.add(v)
}

func hasExt(name string, ext []string) bool {
	if len(ext) == 0 {
		return true
	}
	name = strings.ToLower(path.Base(name))
	for _, e := range ext {
		e = strings.ToLower(e)
		if e != "" && e[0] != '.' {
			e = "." + e
		}
		if strings.HasSuffix(name, e) {
			return true
		}
	}
	return false
}
