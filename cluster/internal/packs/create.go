package packs

import (
	"archive/tar"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"unicode/utf8"

	"github.com/klauspost/compress/zstd"
	"github.com/penstock-data/penstock/internal/fault"
)

// window of the compression: what whoever unpacks needs of memory.
const window = 4 << 20

// entry is a file, folder or link of a pack.
type entry struct {
	path string // from the top, with slashes
	mode fs.FileMode
	size int64
	link string
}

// maxNamed is how many files an error names.
const maxNamed = 10

type packer struct {
	root     *os.Root
	dir      string
	limits   Limits
	ignore   *Ignore
	entries  []entry
	tree     tree
	unpacked int64
	bad      []string // files that cannot be packed, and why
}

func create(ctx context.Context, dir string, w io.Writer, l Limits) (Info, error) {
	if fi, err := os.Stat(dir); err == nil && !fi.IsDir() {
		return Info{}, fault.New(fault.Invalid, "is no folder").At(fault.Place{File: dir})
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return Info{}, place(dir, err)
	}
	defer root.Close()
	p := &packer{root: root, dir: dir, limits: l, tree: tree{}}
	if p.ignore, err = readIgnore(root); err != nil {
		return Info{}, err
	}
	if err := p.list(ctx, "."); err != nil {
		return Info{}, err
	}
	for _, e := range p.entries {
		if e.link != "" {
			if err := p.tree.inside(e.path); err != nil {
				p.refuse(e.path, err)
			}
		}
	}
	if err := p.refused(); err != nil {
		return Info{}, err
	}
	sum := sha256.New()
	out := &counter{w: io.MultiWriter(w, sum), max: l.Packed}
	if err := p.write(ctx, out); err != nil {
		if errors.Is(err, errFull) {
			return Info{}, p.tooLarge(fmt.Sprintf("more than %d bytes when packed", l.Packed))
		}
		return Info{}, err
	}
	return Info{Hash: Hash(hex.EncodeToString(sum.Sum(nil))), Packed: out.n, Unpacked: p.unpacked, Files: int64(len(p.entries))}, nil
}

// refuse notes a file that cannot be packed: the error is to name all of them, or the first ten.
func (p *packer) refuse(name string, err error) {
	if len(p.bad) <= maxNamed {
		if e, ok := errors.AsType[*fs.PathError](err); ok {
			err = e.Err
		}
		p.bad = append(p.bad, fmt.Sprintf("%s (%v)", name, err))
	}
}

func (p *packer) refused() error {
	if len(p.bad) == 0 {
		return nil
	}
	more := ""
	if len(p.bad) > maxNamed {
		p.bad, more = p.bad[:maxNamed], " and others"
	}
	return fault.New(fault.Invalid, "these cannot be packed: %s%s; name them in %s if the job does not need them", strings.Join(p.bad, ", "), more, IgnoreFile).At(fault.Place{File: p.dir})
}

func (p *packer) tooLarge(why string) error {
	slices.SortFunc(p.entries, func(a, b entry) int { return cmp.Or(cmp.Compare(b.size, a.size), strings.Compare(a.path, b.path)) })
	var largest []string
	for _, e := range p.entries[:min(3, len(p.entries))] {
		largest = append(largest, fmt.Sprintf("%s (%d bytes)", e.path, e.size))
	}
	return fault.New(fault.Exhausted, "the working directory has %s: name what the job does not need in %s; the largest are %s", why, IgnoreFile, strings.Join(largest, ", ")).At(fault.Place{File: p.dir})
}

// list walks a folder in the order of names.
func (p *packer) list(ctx context.Context, dir string) error {
	if err := ctx.Err(); err != nil {
		return context.Cause(ctx)
	}
	list, err := readDir(p.root, dir)
	if err != nil {
		p.refuse(dir, err)
		return nil
	}
	for _, d := range list {
		name := path.Join(dir, d.Name())
		if p.ignore.Match(name, d.IsDir()) {
			continue
		}
		if err := checkPath(name); err != nil {
			p.refuse(fmt.Sprintf("%q", name), err)
			continue
		}
		fi, err := p.root.Lstat(name)
		if err != nil {
			p.refuse(name, err)
			continue
		}
		e := entry{path: name, mode: fi.Mode()}
		switch fi.Mode().Type() {
		case 0:
			e.size = fi.Size()
			err = p.readable(name)
		case fs.ModeDir:
		case fs.ModeSymlink:
			if e.link, err = p.root.Readlink(name); err == nil {
				err = checkLink(e.link)
			}
		default:
			err = errors.New("neither file, folder nor link")
		}
		if err != nil {
			p.refuse(name, err)
			continue
		}
		p.entries = append(p.entries, e)
		p.tree[name] = e.link
		if p.unpacked += e.size; p.unpacked > p.limits.Unpacked {
			return p.tooLarge(fmt.Sprintf("more than %d bytes", p.limits.Unpacked))
		}
		if int64(len(p.entries)) > p.limits.Files {
			return p.tooLarge(fmt.Sprintf("more than %d files", p.limits.Files))
		}
		if fi.IsDir() {
			if err := p.list(ctx, name); err != nil {
				return err
			}
		}
	}
	return nil
}

// readable says now what would stop the packing later, so that one error names all files.
func (p *packer) readable(name string) error {
	f, err := p.open(name)
	if err == nil {
		f.Close()
	}
	return err
}

// open waits for nothing, should it be a pipe by now.
func (p *packer) open(name string) (*os.File, error) {
	return p.root.OpenFile(name, os.O_RDONLY|syscall.O_NONBLOCK|syscall.O_NOFOLLOW, 0)
}

func readDir(root *os.Root, dir string) ([]fs.DirEntry, error) {
	f, err := root.Open(dir)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	list, err := f.ReadDir(-1)
	slices.SortFunc(list, func(a, b fs.DirEntry) int { return strings.Compare(a.Name(), b.Name()) })
	return list, err
}

func (p *packer) write(ctx context.Context, out io.Writer) error {
	// One worker: the bytes must not depend on how many cores there are.
	z, err := zstd.NewWriter(out, zstd.WithEncoderConcurrency(1), zstd.WithWindowSize(window), zstd.WithEncoderLevel(zstd.SpeedDefault))
	if err != nil {
		return err
	}
	t := tar.NewWriter(z)
	for _, e := range p.entries {
		if err := ctx.Err(); err != nil {
			z.Close()
			return context.Cause(ctx)
		}
		if err := p.writeEntry(ctx, t, e); err != nil {
			z.Close()
			return err
		}
	}
	err = t.Close()
	if e := z.Close(); err == nil {
		err = e
	}
	return err
}

func (p *packer) writeEntry(ctx context.Context, t *tar.Writer, e entry) error {
	h := &tar.Header{Name: e.path, Format: tar.FormatPAX, Mode: 0o644}
	switch {
	case e.mode.IsDir():
		h.Typeflag, h.Name, h.Mode = tar.TypeDir, e.path+"/", 0o755
		return t.WriteHeader(h)
	case e.link != "":
		h.Typeflag, h.Linkname, h.Mode = tar.TypeSymlink, e.link, 0o777
		return t.WriteHeader(h)
	}
	at := fault.Place{File: path.Join(p.dir, e.path)}
	f, err := p.open(e.path)
	if err != nil {
		return fault.Wrap(err, at)
	}
	defer f.Close()
	before, err := f.Stat()
	if err != nil {
		return fault.Wrap(err, at)
	}
	changed := fault.New(fault.Unavailable, "changed while it was packed: pack again when nobody writes there").At(at)
	if !before.Mode().IsRegular() || before.Size() != e.size {
		return changed
	}
	if e.mode&0o100 != 0 {
		h.Mode = 0o755
	}
	h.Typeflag, h.Size = tar.TypeReg, e.size
	if err := t.WriteHeader(h); err != nil {
		return err
	}
	n, err := io.CopyN(t, reader{ctx, f}, e.size)
	if errors.Is(err, io.EOF) {
		return changed
	}
	if err != nil {
		return fault.Wrap(err, at)
	}
	after, err := f.Stat()
	if err != nil || n != e.size || after.Size() != e.size || !after.ModTime().Equal(before.ModTime()) {
		return changed
	}
	return nil
}

// checkPath refuses what no path in a pack may be.
func checkPath(p string) error {
	switch {
	case len(p) > maxPath:
		return fmt.Errorf("a path of more than %d bytes", maxPath)
	case !utf8.ValidString(p):
		return errors.New("a name that is not UTF-8")
	case strings.ContainsAny(p, "\x00"):
		return errors.New("a name with a zero byte")
	case !fs.ValidPath(p) || p == ".":
		return errors.New("not a plain path from the top")
	case strings.Count(p, "/") >= maxDepth:
		return fmt.Errorf("more than %d folders deep", maxDepth)
	}
	for part := range strings.SplitSeq(p, "/") {
		if len(part) > maxName {
			return fmt.Errorf("a name of more than %d bytes", maxName)
		}
	}
	return nil
}

// checkLink refuses texts that no link may have; where it leads is for tree.inside to see.
func checkLink(to string) error {
	switch {
	case to == "" || len(to) > maxPath || !utf8.ValidString(to) || strings.Contains(to, "\x00"):
		return errors.New("a link to no path")
	case path.IsAbs(to):
		return fmt.Errorf("a link to the absolute path %s", to)
	}
	return nil
}

// tree has all paths of a pack, and where links lead ("" for what is none).
type tree map[string]string

// maxLinks is how many links one path may lead through, as in Linux.
const maxLinks = 40

// inside follows the link at p as a system would, through other links too, and refuses one that leaves the top folder on its way. It may lead to nothing.
func (t tree) inside(p string) error {
	var at []string // resolved so far: no links in it
	rest := strings.Split(p, "/")
	for hops := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			if len(at) == 0 {
				return fmt.Errorf("a link that leaves the folder (to %s)", t[p])
			}
			at = at[:len(at)-1]
			continue
		}
		at = append(at, part)
		to := t[strings.Join(at, "/")]
		if to == "" {
			continue
		}
		if hops++; hops > maxLinks {
			return errors.New("a link through more than 40 others, or to itself")
		}
		at = at[:len(at)-1]
		rest = append(strings.Split(to, "/"), rest...)
		if len(rest) > 4*maxPath {
			return errors.New("a link through too long a path")
		}
	}
	return nil
}

// errFull says that a counter has reached its most.
var errFull = errors.New("too many bytes")

// counter counts what is written, and refuses more than max.
type counter struct {
	w      io.Writer
	n, max int64
}

func (c *counter) Write(b []byte) (int, error) {
	if c.n += int64(len(b)); c.n > c.max {
		return 0, errFull
	}
	return c.w.Write(b)
}
