package fileset

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/bmatcuk/doublestar/v4"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
)

// List lists files in parallel. No path, a path that does not exist, or no file
// at all is a NotFound error naming it. Files that ro.Files excludes by partition
// values are not in the set; if that leaves none, the first file stays, for its schema ([Adapter.Never] is true for it).
// Types of partitions do not depend on ro.Files: a folder below which all files are excluded is listed nonetheless if
// its name, or one below it, could change a type; none can that PartitionTypes has, or that is text already.
// A partition that is only below such a folder, where the others are of types that are certain, is no column.
// ext are the format's extensions, with the dot; nil means any.
func List(ctx context.Context, o *Options, ext []string, ro *driver.ResolveOptions) (*Set, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	s := &Set{opts: *o, meta: new(driver.ScanStats), types: make(map[string]arrow.DataType, len(o.Types))}
	for c, n := range o.Types {
		s.types[c], _ = typename.Parse(n) // checked by Validate
	}
	if err := s.list(ctx, ext, ro); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *Set) list(ctx context.Context, ext []string, ro *driver.ResolveOptions) error {
	l := &lister{opts: &s.opts, ext: ext, conc: 32, types: map[string]arrow.DataType{}}
	if ro != nil {
		l.pred = ro.Files
		if ro.Concurrency > 0 {
			l.conc = ro.Concurrency
		}
	}
	if s.opts.Extensions != nil {
		l.ext = s.opts.Extensions
	}
	for c, n := range s.opts.PartitionTypes {
		l.types[c], _ = typename.Parse(n) // checked by Validate
	}
	opened, confined := map[string]*blobio.Bucket{}, map[string]bool{}
	var roots []*root
	for _, p := range s.opts.Paths {
		url, key, err := blobio.Split(p)
		if err != nil {
			return fault.Wrap(fault.WithCode(fault.Invalid, err), fault.Place{File: p})
		}
		b := opened[url]
		if b == nil {
			if b, err = blobio.Open(ctx, url, s.opts.Blob); err != nil {
				return fault.Wrap(err, fault.Place{File: p})
			}
			opened[url] = b
			s.buckets = append(s.buckets, b)
		}
		r := newRoot(p, url, key)
		r.bucket = b
		if s.opts.Exact {
			r = &root{path: p, url: url, key: key, dir: dirOf(path.Dir(key)), bucket: b}
			if !confined[url+r.dir] {
				b.Within(r.dir, false)
				confined[url+r.dir] = true
			}
		}
		r.at = len(roots)
		roots = append(roots, r)
	}
	found, err := l.run(ctx, roots)
	if err != nil {
		return err
	}
	s.excluded = len(l.skipped) > 0
	if err := s.assemble(l, found); err != nil {
		return err
	}
	if len(s.Files) > 0 {
		return nil
	}
	l.pred = nil
	if !l.whole {
		if found, err = l.run(ctx, roots); err != nil {
			return err
		}
	}
	if err := s.assemble(l, found); err != nil {
		return err
	}
	s.Files = slices.Clip(s.Files[:1])
	return nil
}

// root is one of the user's paths.
type root struct {
	at      int    // which of them
	path    string // as written
	url     string
	key     string // as Split gave it
	pattern string // what follows dir, if the key is a glob; else ""
	comps   []string
	dir     string // literal folder below which things are found: "" or ending in '/'
	anyExt  bool
	hive    string // the part of the user's text that stands for dir
	bucket  *blobio.Bucket
}

const metas = "*?[{"

func newRoot(p, url, key string) *root {
	r := &root{path: p, url: url, key: key}
	text := key // partitions may also be in what a relative path leaves out of key
	if !strings.Contains(p, "://") {
		if text = path.Clean(filepath.ToSlash(p)); text == "." {
			text = ""
		} else if strings.HasSuffix(key, "/") {
			text += "/"
		}
	}
	if strings.ContainsAny(r.key, metas) {
		var base string
		base, r.pattern = splitGlob(r.key)
		r.dir = unescapeGlob(base)
		r.comps = strings.Split(r.pattern, "/")
		last := r.comps[len(r.comps)-1]
		r.anyExt = strings.Contains(last[strings.LastIndexByte(last, '*')+1:], ".")
		base, _ = splitGlob(text)
		r.hive = unescapeGlob(base)
	} else if r.key == "" || strings.HasSuffix(r.key, "/") {
		r.dir, r.hive = r.key, text
	} else {
		r.dir = dirOf(r.key) // until it is known to be a folder
		r.hive = dirOf(text)
	}
	return r
}

// splitGlob cuts a glob behind the last slash before its first unescaped meta character.
func splitGlob(p string) (dir, pattern string) {
	at := 0
	for i := 0; i < len(p) && strings.IndexByte(metas, p[i]) < 0; i++ {
		switch p[i] {
		case '\\':
			i++
		case '/':
			at = i + 1
		}
	}
	return p[:at], p[at:]
}

var escapedMeta = regexp.MustCompile(`\\([*?[\]{}])`)

func unescapeGlob(p string) string { return escapedMeta.ReplaceAllString(p, "$1") }

// dirOf is the folder of a file: "" or ending in '/'.
func dirOf(key string) string { return key[:strings.LastIndexByte(key, '/')+1] }

// folder is r after its key turned out to be a folder.
func (r *root) folder() {
	if r.key != "" && !strings.HasSuffix(r.key, "/") {
		r.hive += r.key[len(r.dir):] + "/"
		r.dir = r.key + "/"
	}
}

// enter reports whether a folder may hold files of the glob; rel is its path below r.dir,
// without a slash at the end.
func (r *root) enter(rel string) bool {
	if r.pattern == "" || strings.Contains(r.pattern, "{") && slices.ContainsFunc(r.comps, func(c string) bool {
		return strings.Count(c, "{") != strings.Count(c, "}") // alternatives that hold a slash
	}) {
		return true
	}
	elems := strings.Split(rel, "/")
	for i, e := range elems {
		if i >= len(r.comps)-1 && r.comps[len(r.comps)-1] != "**" {
			return false
		}
		if strings.Contains(r.comps[i], "**") {
			return true
		}
		if ok, err := doublestar.Match(r.comps[i], e); err == nil && !ok {
			return false
		}
	}
	return true
}

// named reports whether the glob names the hidden element at depth i with its first byte.
func (r *root) named(i int, elem string) bool {
	c := ""
	switch {
	case r.pattern == "":
		return false
	case strings.Contains(r.pattern, "**"):
		for _, c := range r.comps {
			if ok, err := doublestar.Match(c, elem); ok && err == nil && c[0] == elem[0] {
				return true
			}
		}
		return false
	case i < len(r.comps):
		c = r.comps[i]
	}
	return c != "" && c[0] == elem[0]
}

func hidden(elem string) bool {
	return strings.HasPrefix(elem, ".") || strings.HasPrefix(elem, "_") && !strings.Contains(elem, "=")
}

// elems are the folders of a file that may be partitions.
func (r *root) elems(key string) []string {
	d := r.hive + dirOf(key[len(r.dir):])
	if !strings.Contains(d, "=") {
		return nil
	}
	return strings.Split(d, "/")
}

// assemble makes s.Files of what was found: in the order of the user's paths, the files of each
// sorted, with typed partitions, without those that the predicate excludes.
func (s *Set) assemble(l *lister, all []found) error {
	type place struct{ group, name string } // one file, however it was named
	where := func(f *found) place {
		if p, ok := f.root.bucket.Local(f.info.Key); ok {
			if abs, err := filepath.Abs(p); err == nil {
				p = abs
			}
			return place{"", filepath.ToSlash(p)}
		}
		u, _, _ := strings.Cut(f.root.url, "?")
		return place{u, f.info.Key}
	}
	type entry struct {
		File
		place
		root *root
		raw  map[string]raw
	}
	es := make([]entry, 0, len(all))
	for i := range all {
		f := &all[i]
		e := entry{File: File{Path: f.root.bucket.Path(f.info.Key), Info: f.info, bucket: f.root.bucket}, place: where(f), root: f.root}
		if s.opts.Partitions != "none" {
			for _, el := range f.root.elems(f.info.Key) {
				k, v, ok := hivePart(el)
				if !ok {
					continue
				}
				if !utf8.ValidString(k) || !utf8.ValidString(v.text) {
					return fault.New(fault.Corrupt, "the folder %q is not UTF-8, and would be a column; rename it, or set partitions: none", el).
						At(fault.Place{File: e.Path})
				}
				if old, twice := e.raw[k]; twice && old != v {
					return fault.New(fault.Invalid, "partition %q is in the path twice, as %s and %s; read the files below a folder that names it once, "+
						"or set partitions: none", k, old, v).At(fault.Place{File: e.Path})
				}
				if e.raw == nil {
					e.raw = map[string]raw{}
				}
				e.raw[k] = v
			}
		}
		es = append(es, e)
	}
	slices.SortFunc(es, func(a, b entry) int {
		return cmp.Or(cmp.Compare(a.root.at, b.root.at), strings.Compare(a.Info.Key, b.Info.Key))
	})

	// Partition columns in order of first appearance.
	s.parts = nil
	order := map[string]int{}
	add := func(k string) {
		if _, ok := order[k]; !ok {
			order[k] = len(s.parts)
			s.parts = append(s.parts, partition{name: k})
		}
	}
	for _, e := range es {
		for _, el := range e.root.elems(e.Info.Key) {
			if k, _, ok := hivePart(el); ok && e.raw != nil {
				if add(k); len(s.parts) > mostKeys {
					return fault.New(fault.Invalid, "the names of folders give more than %d columns (%s: one more); set partitions: none, or read folders that are of one table", mostKeys, quoted([]byte(k))).
						At(fault.Place{File: e.Path})
				}
				l.guess(k, e.raw[k])
			}
		}
	}
	for i := range s.parts {
		p := &s.parts[i]
		if p.typ = l.types[p.name]; p.typ != nil {
			p.declared = true
		} else {
			p.typ = l.guesses[p.name].typ()
		}
	}
	for c := range l.types {
		if _, ok := order[c]; !ok {
			return fault.New(fault.Invalid, "partition_types: no folder gives a column %q; have %s", c, partitionNames(s.parts))
		}
	}

	groups, common := map[string]int{}, map[string]string{}
	for _, e := range es {
		d := e.name[:len(e.name)-len(e.Info.Key)+len(e.root.dir)] // the root's folder, in terms of name
		if c, ok := common[e.group]; ok {
			d = commonDir(c, d)
		} else {
			groups[e.group] = 0
		}
		common[e.group] = d
	}
	keys := make([]string, 0, len(groups))
	for g := range groups {
		keys = append(keys, g)
	}
	slices.Sort(keys)
	for i, g := range keys {
		groups[g] = i
	}

	s.Files = make([]File, 0, len(es))
	again := map[string]int{} // by Rel: how many files have it, or had to take another
	for _, e := range es {
		f := e.File
		f.Rel = e.name[len(common[e.group]):]
		if len(keys) > 1 {
			f.Rel = fmt.Sprintf("%d/%s", groups[e.group], f.Rel)
		}
		for rel := f.Rel; again[f.Rel] > 0; {
			again[rel]++
			f.Rel = fmt.Sprintf("%s (%d)", rel, again[rel])
		}
		again[f.Rel]++
		f.raw = make([]raw, len(s.parts))
		for k := range f.raw {
			f.raw[k].null = true
		}
		for k, v := range e.raw {
			f.raw[order[k]] = v
		}
		if err := s.typed(&f); err != nil {
			return err
		}
		keep := true
		for _, t := range l.pred {
			if i, ok := order[t.Column]; ok && excludes(t, f.raw[i], l.types[t.Column]) {
				keep = false
			}
		}
		if keep {
			s.Files = append(s.Files, f)
		} else {
			s.excluded = true
		}
	}
	return nil
}

// PartitionColumns are the names that key=value folders give, in the order of the schema.
func (s *Set) PartitionColumns() []string {
	ns := make([]string, len(s.parts))
	for i, p := range s.parts {
		ns[i] = p.name
	}
	return ns
}

// Remote reports whether a file lies in a bucket.
func (s *Set) Remote() bool {
	for i := range s.Files {
		if _, local := s.Files[i].bucket.Local(s.Files[i].Info.Key); !local {
			return true
		}
	}
	return false
}

func partitionNames(ps []partition) string {
	if len(ps) == 0 {
		return "none"
	}
	ns := make([]string, min(len(ps), 10))
	for i := range ns {
		ns[i] = ps[i].name
	}
	if len(ns) < len(ps) {
		ns = append(ns, "...")
	}
	return strings.Join(ns, ", ")
}

// commonDir is the longest folder that holds both; all end in '/' or are "".
func commonDir(a, b string) string {
	i := 0
	for i < len(a) && i < len(b) && a[i] == b[i] {
		i++
	}
	return a[:strings.LastIndexByte(a[:i], '/')+1]
}

// notFound explains that r gave nothing: what was looked for, and what there is that is nearly it.
func (r *root) notFound(c *count, ext []string) error {
	var b strings.Builder
	kind := ""
	if e := slices.DeleteFunc(slices.Clone(ext), func(e string) bool { return e == "" }); !r.anyExt && len(e) > 0 && len(e) == len(ext) {
		kind = " with extension " + strings.Join(e, " or ")
	}
	switch {
	case !c.exists:
		b.WriteString(r.absent())
	case r.pattern != "":
		b.WriteString("no file" + kind + " matches")
	default:
		b.WriteString("the folder has no files" + kind)
	}
	also := func(format string, s *names) {
		if s.n > 0 {
			fmt.Fprintf(&b, "; "+format, s)
		}
	}
	also(`found with another extension: %s: name the extension or set extensions: [""]`, &c.others)
	also("hidden, as the name begins with _ or .: %s: set hidden: true to read it", &c.hiddenFiles)
	also("not looked into, as a name that begins with _ or . is hidden: %s: set hidden: true to read what is below", &c.hiddenFolders)
	if r.pattern != "" {
		also("the glob matches folders (%s), but gives files only: to read what is below them, end it in /**", &c.folders)
		also("not matched: %s", &c.unlike)
	}
	return fault.New(fault.NotFound, "%s", b.String()).At(fault.Place{File: r.path})
}

// absent says that there is nothing at all where r begins.
func (r *root) absent() string {
	local, ok := r.bucket.Local(strings.TrimSuffix(r.dir, "/"))
	empty := false
	if ok {
		_, err := os.Stat(local)
		empty = err == nil
	}
	switch {
	case r.pattern != "" && empty:
		return "no file matches: the folder is empty"
	case r.pattern != "" && r.dir != "":
		return fmt.Sprintf("no file matches: there is no folder %s", r.bucket.Path(strings.TrimSuffix(r.dir, "/")))
	case r.pattern != "" || r.key == "" && !ok:
		return "the bucket is empty"
	case empty:
		return "the folder is empty"
	case ok:
		return "no such file or folder"
	}
	return "no such object, and none below it"
}
