package packs

import (
	"archive/tar"
	"context"
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/klauspost/compress/zstd"
	"github.com/penstock-data/penstock/internal/fault"
)

// entryCost is how many bytes of the tar an entry may take beside its content: two headers, and long names.
const entryCost = 8 << 10

func unpack(ctx context.Context, r io.Reader, dir string, l Limits) (err error) {
	if _, err := os.Lstat(dir); err == nil {
		return fault.New(fault.Exists, "is there already; a pack is unpacked to a new folder").At(fault.Place{File: dir})
	} else if !errors.Is(err, fs.ErrNotExist) {
		return place(dir, err)
	}
	tmp, err := os.MkdirTemp(filepath.Dir(dir), temp)
	if err != nil {
		return place(dir, full(err))
	}
	defer func() {
		if err != nil {
			os.RemoveAll(tmp)
		}
	}()
	root, err := os.OpenRoot(tmp)
	if err != nil {
		return place(dir, err)
	}
	u := &unpacker{root: root, limits: l, tree: tree{}, folders: map[string]bool{".": true}}
	err = u.all(ctx, r)
	root.Close()
	if err != nil {
		return place(dir, err)
	}
	return place(dir, os.Rename(tmp, dir))
}

type unpacker struct {
	root     *os.Root
	limits   Limits
	tree     tree
	folders  map[string]bool
	links    []string
	unpacked int64
	copyBuf  [64 << 10]byte
}

func (u *unpacker) all(ctx context.Context, r io.Reader) error {
	packed := &capped{r: reader{ctx, r}, left: u.limits.Packed, what: "packed"}
	err := u.stream(packed)
	if packed.err != nil { // the decoder may have made something else of it
		return packed.err
	}
	if err == nil && packed.left == u.limits.Packed {
		return fault.New(fault.Corrupt, "the pack is empty")
	}
	return err
}

func (u *unpacker) stream(packed io.Reader) error {
	z, err := zstd.NewReader(packed,
		zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(2*window))
	if err != nil {
		return damaged(err)
	}
	defer z.Close()
	plain := &capped{r: z, left: u.limits.Unpacked + (u.limits.Files+1)*entryCost, what: "unpacked"}
	t := tar.NewReader(plain)
	for {
		h, err := t.Next()
		if err == io.EOF {
			break
		}
		if err != nil {
			return damaged(err)
		}
		if err := u.entry(h, t); err != nil {
			return err
		}
	}
	// The end of the tar must be that of the pack; whoever verifies its hash sees all of it.
	if n, err := io.Copy(io.Discard, plain); err != nil {
		return damaged(err)
	} else if n > 0 {
		return fault.New(fault.Corrupt, "the pack goes on after its end")
	}
	for _, p := range u.links {
		if err := u.tree.inside(p); err != nil {
			return fault.New(fault.Denied, "the pack has %q: %w", p, err)
		}
	}
	return nil
}

func (u *unpacker) entry(h *tar.Header, content io.Reader) error {
	name := h.Name
	if h.Typeflag == tar.TypeDir {
		name = strings.TrimSuffix(name, "/")
	}
	refuse := func(code fault.Code, err error) error { return fault.New(code, "the pack has %.200q: %w", h.Name, err) }
	if err := checkPath(name); err != nil {
		return refuse(fault.Denied, err)
	}
	if !u.folders[path.Dir(name)] {
		return refuse(fault.Denied, errors.New("its folder does not come before it"))
	}
	if _, twice := u.tree[name]; twice {
		return refuse(fault.Denied, errors.New("twice"))
	}
	for k := range h.PAXRecords {
		if k != "path" && k != "linkpath" && k != "size" {
			return refuse(fault.Denied, errors.New("an attribute that packs do not have: "+k))
		}
	}
	if int64(len(u.tree)) == u.limits.Files {
		return fault.New(fault.Exhausted, "the pack has more than %d files", u.limits.Files)
	}
	u.tree[name] = ""
	switch h.Typeflag {
	case tar.TypeDir:
		u.folders[name] = true
		return full(u.root.Mkdir(name, 0o755))
	case tar.TypeSymlink:
		if err := checkLink(h.Linkname); err != nil {
			return refuse(fault.Denied, err)
		}
		u.tree[name] = h.Linkname
		u.links = append(u.links, name)
		return full(u.root.Symlink(h.Linkname, name))
	case tar.TypeReg:
		if h.Size < 0 || h.Size > u.limits.Unpacked-u.unpacked {
			return fault.New(fault.Exhausted, "the pack has more than %d bytes unpacked", u.limits.Unpacked)
		}
		u.unpacked += h.Size
		mode := fs.FileMode(0o644)
		if h.Mode&0o100 != 0 {
			mode = 0o755
		}
		return u.file(name, mode, h.Size, content)
	}
	return refuse(fault.Denied, errors.New("neither file, folder nor link"))
}

func (u *unpacker) file(name string, mode fs.FileMode, size int64, content io.Reader) error {
	f, err := u.root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return full(err)
	}
	in := &source{r: content}
	n, err := io.CopyBuffer(struct{ io.Writer }{f}, in, u.copyBuf[:])
	if e := f.Close(); err == nil {
		err = e
	}
	switch {
	case in.err != nil:
		return damaged(in.err)
	case err != nil:
		return full(err)
	case n != size:
		return fault.New(fault.Corrupt, "the pack has %d bytes of %q where it says %d", n, name, size)
	}
	return nil
}

// source keeps an error of reading apart from those of writing.
type source struct {
	r   io.Reader
	err error
}

func (s *source) Read(b []byte) (int, error) {
	n, err := s.r.Read(b)
	if err != nil && err != io.EOF {
		s.err = err
	}
	return n, err
}

// capped reads at most left bytes; what is beyond is an error.
type capped struct {
	r    io.Reader
	left int64
	what string
	err  error // what Read gave, but for io.EOF
}

func (c *capped) Read(b []byte) (n int, err error) {
	if c.err != nil {
		return 0, c.err
	}
	defer func() {
		if err != nil && err != io.EOF {
			c.err = err
		}
	}()
	if int64(len(b)) > c.left+1 {
		b = b[:c.left+1]
	}
	n, err = c.r.Read(b)
	if c.left -= int64(n); c.left < 0 {
		return 0, fault.New(fault.Exhausted, "the pack has too many bytes %s", c.what)
	}
	return n, err
}

// damaged is an error of the bytes, unless it says otherwise.
func damaged(err error) error {
	if fault.CodeOf(err) != fault.Unknown {
		return err
	}
	return fault.New(fault.Corrupt, "the pack is damaged: %w", err)
}

// full gives an error of this machine's disk, where it has no more room, the code that says so.
func full(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fault.New(fault.Exhausted, "no space for the pack: %w", err)
	}
	return err
}
