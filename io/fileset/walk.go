package fileset

import (
	"context"
	"errors"
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

	mu       sync.Mutex
	guesses  map[string]*guess
	excluded map[string]bool // keys of folders that were not entered
	found    []found
	counts   map[*root]*count
}

type found struct {
	info blobio.Info
	root *root
}

// count is what an error says about a root that gives nothing.
type count struct {
	files, others, dirs, hidden, pruned int
	exists                              bool
	sample                              []string
}

// task is a folder to list, or (prefix "?") a root to look at.
type task struct {
	root   *root
	prefix string
}

func (l *lister) run(ctx context.Context, roots []*root) ([]found, error) {
	l.guesses, l.excluded, l.found, l.counts = map[string]*guess{}, map[string]bool{}, nil, map[*root]*count{}
	q := &queue{}
	q.cond.L = &q.mu
	for _, r := range slices.Backward(roots) {
		l.counts[r] = new(count)
		q.push(task{root: r, prefix: "?"})
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
	if first != nil {
		return nil, first
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
			if t.prefix == r.dir && fault.CodeOf(err) == fault.NotFound {
				return nil // run reports it
			}
			return fault.Wrap(err, fault.Place{File: r.path})
		}
		c.exists = true
		name := strings.TrimSuffix(info.Key[min(len(t.prefix), len(info.Key)):], "/")
		if name == "" || !info.Dir && strings.HasSuffix(info.Key, "/") {
			continue // the marker of a folder
		}
		if !l.opts.Hidden && hidden(name) && !r.named(depth, name) {
			c.hidden++
			continue
		}
		rel := info.Key[len(r.dir):]
		if info.Dir {
			c.dirs++
			rel = strings.TrimSuffix(rel, "/")
			if !r.enter(rel) {
				continue
			}
			if l.prune(name) {
				c.pruned++
				continue
			}
			q.push(task{r, strings.TrimSuffix(info.Key, "/") + "/"})
			continue
		}
		if r.pattern != "" {
			if ok, err := doublestar.Match(r.pattern, rel); err != nil {
				return fault.New(fault.Invalid, "bad glob: %w", err).At(fault.Place{File: r.path})
			} else if !ok {
				continue
			}
		}
		if !r.anyExt && !hasExt(name, l.ext) {
			if c.others++; len(c.sample) < 3 {
				c.sample = append(c.sample, name)
			}
			continue
		}
		files = append(files, found{info, r})
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.found = append(l.found, files...)
	n := l.counts[r]
	n.files += len(files)
	n.others += c.others
	n.dirs += c.dirs
	n.hidden += c.hidden
	n.pruned += c.pruned
	n.exists = n.exists || c.exists
	n.sample = append(n.sample, c.sample[:min(len(c.sample), 3-len(n.sample))]...)
	return nil
}

// prune reports whether a folder's name alone excludes what is below it.
func (l *lister) prune(name string) bool {
	if len(l.pred) == 0 || l.opts.Partitions == "none" {
		return false
	}
	k, v, null, ok := hivePart(name)
	if !ok {
		return false
	}
	for _, t := range l.pred {
		if t.Column == k && excludes(t, v, null, l.types[k]) {
			l.mu.Lock()
			l.excluded[k] = true
			l.guess(k, v, null)
			l.mu.Unlock()
			return true
		}
	}
	return false
}

// guess notes a value of a partition. Call with mu held, or alone.
func (l *lister) guess(key, val string, null bool) {
	g := l.guesses[key]
	if g == nil {
		g = new(guess)
		l.guesses[key] = g
	}
	g.add(val, null)
}

func (l *lister) excludedKeys() []string {
	var ks []string
	for k := range l.excluded {
		ks = append(ks, k)
	}
	slices.Sort(ks)
	return ks
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
