package store

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
	"unicode/utf8"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
)

// maxFiles of a checkpoint.
const maxFiles = 1 << 20

// source is a file to be uploaded, as it was found.
type source struct {
	file    File
	part    *part
	modTime time.Time
}

// part is the folder that a rank gave. Nothing outside of it can be opened through root.
type part struct {
	rank int
	dir  string
	is   os.FileInfo // the folder
	root *os.Root
}

func (p *part) fail(name string, err error) error {
	err = blobio.HostError(filepath.Join(p.dir, filepath.FromSlash(name)), err)
	return fault.Wrap(fmt.Errorf("rank %d: %w", p.rank, err), fault.Place{})
}

func (p *part) bad(name, format string, args ...any) error {
	return fault.New(fault.Invalid, "rank %d: "+format, append([]any{p.rank}, args...)...).At(fault.Place{File: filepath.Join(p.dir, filepath.FromSlash(name))})
}

// scan opens the parts and finds their files: by path, each path once. Close the parts, also after an error.
func scan(ctx context.Context, given []Part) (parts []*part, files []source, err error) {
	given = slices.Clone(given)
	slices.SortFunc(given, func(a, b Part) int { return cmp.Compare(a.Rank, b.Rank) })
	for i, g := range given {
		if g.Rank < 0 || i > 0 && g.Rank == given[i-1].Rank {
			return parts, nil, fault.New(fault.Invalid, "rank %d gave two folders: %s and %s", g.Rank, given[max(0, i-1)].Dir, g.Dir)
		}
		p := &part{rank: g.Rank, dir: g.Dir}
		if p.root, err = openPart(p); err != nil {
			return parts, nil, err
		}
		for _, o := range parts {
			if os.SameFile(o.is, p.is) { // to name the first of their files would not say why
				p.root.Close()
				return parts, nil, fault.New(fault.Invalid, "ranks %d and %d both gave the folder %s: give each its own, or save on one rank only", o.rank, p.rank, p.dir)
			}
		}
		parts = append(parts, p)
		n := len(files)
		if files, err = p.walk(ctx, files); err != nil {
			return parts, nil, err
		}
		if len(files) == n {
			return parts, nil, p.bad(".", "the folder has no files: save to it before the report, or report without it")
		}
	}
	slices.SortFunc(files, func(a, b source) int { return byPath(a.file, b.file) })
	found := make([]File, len(files))
	for i, f := range files {
		found[i] = f.file
	}
	return parts, files, oneTree(found)
}

func byPath(a, b File) int { return cmp.Or(strings.Compare(a.Path, b.Path), a.Rank-b.Rank) }

// oneTree sorts the files of all ranks by path, and refuses those that are no tree.
func oneTree(files []File) error {
	slices.SortFunc(files, byPath)
	for i, f := range files {
		if i > 0 && files[i-1].Path == f.Path {
			return fault.New(fault.Invalid, "ranks %d and %d both gave a file %q: files of all ranks go into one folder, so give each its own name, or save on one rank only",
				files[i-1].Rank, f.Rank, f.Path)
		}
	}
	if a, b, found := clash(files); found {
		return fault.New(fault.Invalid, "rank %d gave a file %q, and rank %d a folder of this name, with %q: files of all ranks go into one folder, so give each its own name",
			a.Rank, a.Path, b.Rank, b.Path)
	}
	return nil
}

func openPart(p *part) (*os.Root, error) {
	if p.dir == "" {
		return nil, fault.New(fault.Invalid, "rank %d gave a folder without a name", p.rank)
	}
	fi, err := os.Stat(p.dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, fault.New(fault.NotFound, "rank %d: there is no such folder: save to it before the report, and keep it until the report returns", p.rank).At(fault.Place{File: p.dir})
	case err != nil:
		return nil, p.fail(".", err)
	case !fi.IsDir():
		return nil, p.bad(".", "not a folder: a checkpoint is a folder of files; put this one into a folder of its own")
	}
	p.is = fi
	root, err := os.OpenRoot(p.dir)
	if err != nil {
		return nil, p.fail(".", err)
	}
	return root, nil
}

// walk appends the part's files. A link to a file inside the folder is a file of its own, with the same contents; other links, and what is neither a
// file nor a folder, are errors. Folders without files are left out: buckets have none.
func (p *part) walk(ctx context.Context, files []source) ([]source, error) {
	err := fs.WalkDir(p.root.FS(), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return p.fail(name, err)
		}
		if ctx.Err() != nil {
			return fault.New(fault.Canceled, "%w", context.Cause(ctx))
		}
		if d.IsDir() {
			return nil
		}
		s, err := p.find(name, d)
		if err != nil {
			return err
		}
		if files = append(files, s); len(files) > maxFiles {
			return p.bad(".", "more than %d files: a checkpoint of so many takes too long to restore; pack them", maxFiles)
		}
		return nil
	})
	return files, err
}

func (p *part) find(name string, d fs.DirEntry) (source, error) {
	var s source
	if !utf8.ValidString(name) {
		return s, p.bad(name, "the name %q is not UTF-8: rename the file", name)
	}
	fi, err := d.Info()
	if err == nil && d.Type()&fs.ModeSymlink != 0 {
		fi, err = p.root.Stat(name)
		switch {
		case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ELOOP):
			return s, p.bad(name, "a link to nothing: remove it, or save the file")
		case errors.Is(err, syscall.EACCES):
			return s, p.fail(name, err)
		case err != nil:
			return s, p.bad(name, "a link that leads out of the folder: save the file itself (%v)", err)
		case fi.IsDir():
			return s, p.bad(name, "a link to a folder: save the files themselves")
		}
	}
	if err != nil {
		return s, p.fail(name, err)
	}
	if !fi.Mode().IsRegular() {
		return s, p.bad(name, "neither a file nor a folder (%s): a checkpoint holds files only", fi.Mode().Type())
	}
	return source{file: File{Path: name, Size: fi.Size(), Rank: p.rank}, part: p, modTime: fi.ModTime()}, nil
}

func closeParts(parts []*part) {
	for _, p := range parts {
		p.root.Close() // read only
	}
}

// open opens the file again, if it still is what was found.
func (s *source) open() (*os.File, error) {
	// What became a pipe meanwhile must not block.
	f, err := s.part.root.OpenFile(s.file.Path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) {
			return nil, s.part.bad(s.file.Path, "the file was removed while it was uploaded: keep the folder until the report returns")
		}
		if _, ok := errors.AsType[syscall.Errno](err); !ok {
			return nil, s.part.bad(s.file.Path, "it became a link that leads out of the folder: %w", err)
		}
		return nil, s.part.fail(s.file.Path, err)
	}
	if err := s.same(f); err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// same is an error where f is not the file any more that was found.
func (s *source) same(f *os.File) error {
	fi, err := f.Stat()
	if err != nil {
		return s.part.fail(s.file.Path, err)
	}
	if !fi.Mode().IsRegular() || fi.Size() != s.file.Size || !fi.ModTime().Equal(s.modTime) {
		return s.changed(fi.Size())
	}
	return nil
}

func (s *source) changed(size int64) error {
	return s.part.bad(s.file.Path, "the file changed while it was uploaded (%d bytes, then %d): it must be complete before the report, and stay as it is until the report returns", s.file.Size, size)
}
