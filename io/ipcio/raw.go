package ipcio

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"slices"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
	"golang.org/x/sync/errgroup"
)

// raw gives the bytes of one file: out of a mapping, or by ranged reads. Not
// safe for concurrent use, but for readAt.
type raw struct {
	obj    *fileset.Object
	size   int64
	mapped []byte         // nil: not mapped
	owner  *owner         // of mapped
	file   *fileset.Local // that is mapped
	st     *driver.ScanStats
	ahead  int64  // bytes that peek reads at least
	window []byte // what peek read last, from winOff on
	winOff int64
}

func (t *data) raw(i int, st *driver.ScanStats) (*raw, error) {
	if st == nil {
		st = t.set.Meta()
	}
	obj := t.set.Object(i, st)
	r := &raw{obj: obj, size: obj.Size(), st: st}
	if t.o.NoMap {
		return r, nil
	}
	b, unmap, ok, err := obj.Map()
	if err != nil {
		return nil, err
	}
	if ok {
		if r.file, err = obj.Open(); err != nil {
			_ = unmap()
			return nil, err
		}
		r.mapped = b[:len(b):len(b)]
		r.owner = newOwner(func() { unmap() })
		st.Requests.Add(1)
	}
	return r, nil
}

func (r *raw) close() {
	if r.owner != nil {
		r.owner.drop()
		r.owner, r.mapped = nil, nil
	}
	if r.file != nil {
		_ = r.file.Close() // it was only read
		r.file = nil
	}
	r.window = nil
}

// use calls read, which reads out of the mapping, and returns its error; or, in place of it, that the file is not the version
// any more that was listed. What came without an error was then read of that version.
func (r *raw) use(read func() error) error {
	err := guard("frame", read)
	if at, ok := errors.AsType[errFault](err); ok {
		if r.file != nil && r.within(uintptr(at)) {
			return r.file.Fault(int64(uintptr(at) - address(r.mapped)))
		}
		return fault.New(fault.Internal, "%w at %#x, where no file is mapped: memory was used after its release", at, uintptr(at))
	}
	if r.file != nil {
		if changed := r.file.Check(); changed != nil {
			return changed
		}
	}
	return err
}

// holds reports whether memory of d is mapped.
func (r *raw) holds(d arrow.ArrayData) bool {
	for _, b := range d.Buffers() {
		if b != nil && b.Len() > 0 && r.within(address(b.Bytes())) {
			return true
		}
	}
	return slices.ContainsFunc(d.Children(), r.holds)
}

// within reports whether an address is in the mapping, of whole pages.
func (r *raw) within(at uintptr) bool {
	page := os.Getpagesize()
	return r.mapped != nil && at-address(r.mapped) < uintptr((len(r.mapped)+page-1)/page*page)
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

func (r *raw) count(n int64) {
	r.st.BytesRead.Add(n)
}

// inside reports whether [off, off+n) lies in the file.
func (r *raw) inside(off, n int64) bool {
	return off >= 0 && n >= 0 && off <= r.size && n <= r.size-off
}

var errShort = driver.Errorf(driver.Corrupt, "the file ends inside a message: it was cut short")

// peek returns n bytes at off, valid until the next call.
func (r *raw) peek(ctx context.Context, off, n int64) ([]byte, error) {
	if !r.inside(off, n) {
		return nil, errShort
	}
	if r.mapped != nil {
		r.count(n)
		return r.mapped[off : off+n : off+n], nil
	}
	if off < r.winOff || off+n > r.winOff+int64(len(r.window)) {
		b := make([]byte, min(max(n, r.ahead), r.size-off))
		if err := r.readAt(ctx, b, off); err != nil {
			return nil, err
		}
		r.window, r.winOff = b, off
	}
	return r.window[off-r.winOff : off-r.winOff+n : off-r.winOff+n], nil
}

func (r *raw) readAt(ctx context.Context, b []byte, off int64) error {
	n, err := r.obj.ReadAt(ctx, b, off)
	if n == len(b) && err == io.EOF {
		err = nil
	}
	return err
}

// body gives access to ranges (offsets in the file) of the body at off. The
// caller drops the owner.
func (r *raw) body(ctx context.Context, off, size int64, ranges []blobio.Range, alloc memory.Allocator) (body, error) {
	if !r.inside(off, size) {
		return body{}, errShort
	}
	if r.mapped != nil {
		for _, x := range ranges {
			r.count(x.Len)
		}
		r.owner.refs.Add(1)
		return body{owner: r.owner, size: size, bytes: func(o, n int64) []byte { return r.mapped[off+o : off+o+n : off+o+n] }}, nil
	}
	if off >= r.winOff && off+size <= r.winOff+int64(len(r.window)) {
		// Already here. A copy, as batches must hold memory of alloc only.
		b := alloc.Allocate(int(size))
		copy(b, r.window[off-r.winOff:])
		return body{owner: newOwner(func() { alloc.Free(b) }), size: size, bytes: func(o, n int64) []byte { return b[o : o+n : o+n] }}, nil
	}
	f, err := r.obj.Fetch(ctx, ranges, alloc)
	if err != nil {
		return body{}, err
	}
	return body{owner: newOwner(f.Release), size: size, bytes: func(o, n int64) []byte {
		b, ok := f.Bytes(off+o, n)
		if !ok {
			panic("a buffer outside the ranges of its column")
		}
		return b
	}}, nil
}

// next finds the message at off: its metadata, valid until the next peek, and
// where its body begins. io.EOF at the end of the stream.
func (r *raw) next(ctx context.Context, off int64) (meta []byte, body int64, err error) {
	if off == r.size {
		return nil, 0, io.EOF // streams need not end in a marker
	}
	head, err := r.peek(ctx, off, 4)
	if err != nil {
		return nil, 0, err
	}
	n, at := int64(u32(head, 0)), off+4
	if n == 0xFFFFFFFF {
		if head, err = r.peek(ctx, at, 4); err != nil {
			return nil, 0, err
		}
		n, at = int64(u32(head, 0)), at+4
	}
	if n == 0 {
		return nil, 0, io.EOF
	}
	if n > maxMeta || n < 8 {
		return nil, 0, driver.Errorf(driver.Corrupt, "a message at byte %d claims %d bytes of metadata", off, n)
	}
	meta, err = r.peek(ctx, at, n)
	return meta, at + n, err
}

var magic = []byte("ARROW1")

// open learns what file i holds.
func (t *data) open(ctx context.Context, i, limit int) (*file, error) {
	r, err := t.raw(i, nil)
	if err != nil {
		return nil, err
	}
	defer r.close()
	var f *file
	err = r.use(func() (err error) {
		f, err = learn(ctx, r, limit)
		return err
	})
	if err != nil {
		return nil, err
	}
	f.as(t.set.AsBytes)
	return f, nil
}

// as gives the columns the types by which they are read, of those that the file says.
func (f *file) as(typ func(column string, t arrow.DataType) arrow.DataType) {
	md := f.raw.Metadata()
	fs, plain := f.raw.Fields(), make([]arrow.Field, f.raw.NumFields())
	for i := range fs {
		fs[i].Type = typ(fs[i].Name, fs[i].Type)
		plain[i] = plainField(fs[i])
	}
	f.raw, f.plain = arrow.NewSchema(fs, &md), arrow.NewSchema(plain, nil)
}

// learn reads the schema and, for files, where the frames are.
func learn(ctx context.Context, r *raw, limit int) (f *file, err error) {
	if r.size == 0 {
		return nil, driver.Errorf(driver.Corrupt, "the file is empty")
	}
	err = guard("Arrow file", func() error {
		r.ahead = 64 << 10
		head, err := r.peek(ctx, 0, min(r.size, 8))
		if err != nil {
			return err
		}
		if bytes.HasPrefix(head, magic) {
			f, err = footer(ctx, r, limit)
			return err
		}
		if bytes.HasPrefix(head, []byte("FEA1")) {
			return driver.Errorf(driver.Unsupported, "a Feather file of version 1, which is another format than Arrow's; convert it: "+
				"in Python, pyarrow.feather.write_feather(pyarrow.feather.read_table(OLD), NEW)")
		}
		if bytes.HasPrefix(head, []byte{0x1f, 0x8b}) || bytes.HasPrefix(head, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
			return driver.Errorf(driver.Unsupported, "the file is compressed as a whole: Arrow files are read from any place; decompress it (the batches in it may be compressed)")
		}
		if len(head) < 8 || u32(head, 0) != 0xFFFFFFFF && int64(u32(head, 0)) > r.size { // no message: it would be longer than the file
			return driver.Errorf(driver.Corrupt, "not an Arrow file or stream: it begins with %q", head)
		}
		f, err = stream(ctx, r)
		return err
	})
	if err != nil {
		return nil, err
	}
	return f, nil
}

func stream(ctx context.Context, r *raw) (*file, error) {
	meta, body, err := r.next(ctx, 0)
	if err == io.EOF {
		err = driver.Errorf(driver.Corrupt, "the stream has no schema")
	}
	if err != nil {
		return nil, err
	}
	m, t, err := messageOf(meta)
	if err != nil {
		return nil, err
	}
	if m.header != headerSchema {
		return nil, driver.Errorf(driver.Corrupt, "not an Arrow file or stream: it does not begin with a schema")
	}
	f := &file{stream: true, start: body + m.bodyLen}
	f.raw, f.fields, err = schemaOf(t)
	return f, err
}

// footer reads the footer of a file and the heads of its frames, which know
// their rows.
func footer(ctx context.Context, r *raw, limit int) (*file, error) {
	const tail = 10 // length and magic
	if r.size < 8+tail {
		return nil, errShort
	}
	// One read gets the end of the file, and mostly the whole footer.
	from := max(0, r.size-(64<<10))
	end, err := r.peek(ctx, from, r.size-from)
	if err != nil {
		return nil, err
	}
	if !bytes.HasSuffix(end, magic) {
		return nil, driver.Errorf(driver.Corrupt, "the file does not end like an Arrow file: it was cut short, or is still being written")
	}
	n := int64(u32(end, len(end)-tail))
	if n > maxMeta || n < 8 || n > r.size-8-tail {
		return nil, driver.Errorf(driver.Corrupt, "the footer claims %d bytes of %d", n, r.size)
	}
	foot, err := r.peek(ctx, r.size-tail-n, n)
	if err != nil {
		return nil, err
	}
	f := &file{sum: sha256.Sum256(foot)}
	t := root(foot)
	s, ok := t.table(1)
	if !ok {
		return nil, driver.Errorf(driver.Corrupt, "the footer has no schema")
	}
	if f.raw, f.fields, err = schemaOf(s); err != nil {
		return nil, err
	}
	var total int64
	blocks := func(v []byte) ([]block, error) {
		bs := make([]block, len(v)/24)
		for i := range bs {
			b := block{off: i64(v, 24*i), meta: int64(int32(u32(v, 24*i+8))), body: i64(v, 24*i+16)}
			if b.meta < 12 || b.meta > maxMeta || !r.inside(b.off, b.meta) || !r.inside(b.off+b.meta, b.body) {
				return nil, driver.Errorf(driver.Corrupt, "frame %d lies at %d, %d + %d bytes long, in a file of %d", i, b.off, b.meta, b.body, r.size)
			}
			if total += b.meta + b.body; total > r.size {
				return nil, driver.Errorf(driver.Corrupt, "the frames of the footer overlap")
			}
			bs[i] = b
		}
		return bs, nil
	}
	if f.dicts, err = blocks(t.vector(2, 24)); err != nil {
		return nil, err
	}
	if f.frames, err = blocks(t.vector(3, 24)); err != nil {
		return nil, err
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(limit)
	if r.mapped != nil {
		g.SetLimit(1)
	}
	for i := range f.frames {
		if gctx.Err() != nil {
			break
		}
		g.Go(func() error {
			return guard("frame", func() error {
				m, _, err := r.frame(gctx, f.frames[i])
				if err == nil && m.header != headerRecord {
					err = driver.Errorf(driver.Corrupt, "the message is no record batch")
				}
				f.frames[i].rows = m.rows
				return driver.Wrap(err, frameNo(i))
			})
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	return f, driver.Wrap(context.Cause(ctx), driver.Place{})
}

// frame reads the metadata of a frame and checks it against what the footer
// says. Safe for concurrent use.
func (r *raw) frame(ctx context.Context, b block) (m message, body int64, err error) {
	var meta []byte
	if r.mapped != nil {
		meta, err = r.peek(ctx, b.off, b.meta)
	} else {
		meta = make([]byte, b.meta)
		err = r.readAt(ctx, meta, b.off)
	}
	if err != nil {
		return m, 0, err
	}
	n, at := int64(u32(meta, 0)), int64(4)
	if n == 0xFFFFFFFF {
		n, at = int64(u32(meta, 4)), 8
	}
	if n < 8 || n > b.meta-at {
		return m, 0, driver.Errorf(driver.Corrupt, "a frame at byte %d claims %d bytes of metadata of %d", b.off, n, b.meta)
	}
	if m, _, err = messageOf(meta[at : at+n : at+n]); err == nil && m.bodyLen != b.body {
		err = driver.Errorf(driver.Corrupt, "a frame has a body of %d bytes, the footer says %d", m.bodyLen, b.body)
	}
	return m, b.off + b.meta, err
}
