package fileset

import (
	"path"
	"slices"
	"strings"

	"github.com/bmatcuk/doublestar/v4"
	"github.com/penstock-data/penstock/io/blobio"
)

// Meets is that of driver.Placed. A folder whose path cannot be read meets nothing: whoever writes there says why.
func (o *Options) Meets(folder string) (path, root string) {
	outs, err := blobio.Names(folder)
	if err != nil {
		return "", ""
	}
	for _, p := range o.Paths {
		url, key, err := blobio.Split(p)
		if err != nil {
			continue
		}
		r := newRoot(p, url, key)
		base := p
		if r.pattern != "" {
			if base, _ = doublestar.SplitPattern(p); strings.Contains(p, "://") {
				url, _, _ = strings.Cut(url, "?")
				base = strings.TrimSuffix(url, "/") + "/" + r.dir
			}
		}
		names, err := blobio.Names(base)
		if err != nil {
			continue
		}
		if slices.ContainsFunc(names, func(name string) bool {
			return slices.ContainsFunc(outs, func(out string) bool { return r.meets(name, out) })
		}) {
			return p, r.above(base, names[0])
		}
	}
	return "", ""
}

// meets reports whether the root, whose folder or file is called name, and folder out share files.
func (r *root) meets(name, out string) bool {
	if strings.HasPrefix(name, out) {
		return true
	}
	rel, ok := strings.CutPrefix(out, name)
	return ok && r.enter(strings.TrimSuffix(rel, "/"))
}

// above is the folder that base, the root's folder or file, is or lies in, without a '/' at its end: what has an
// extension is taken for a file. name is base whatever the working directory; it stands for one that has no name.
func (r *root) above(base, name string) string {
	base, _, _ = strings.Cut(base, "?")
	file := r.pattern == "" && !strings.HasSuffix(base, "/") && path.Ext(strings.TrimLeft(path.Base(base), ".")) != ""
	base, name = strings.TrimSuffix(base, "/"), strings.TrimSuffix(name, "/")
	if file {
		base, name = path.Dir(base), name[:strings.LastIndexByte(name, '/')]
	}
	if last := path.Base(base); last == "." || last == ".." || last == "/" || strings.Contains(base, ":/") {
		return name
	}
	return path.Clean(base)
}
