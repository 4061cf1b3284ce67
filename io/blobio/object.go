package blobio

import (
	"context"
	"io"
	"os"
	"slices"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobcache"
	"golang.org/x/sync/errgroup"
)

// Object is one version of one object. Safe for concurrent use.
type Object struct {
	b     *Bucket
	info  Info
	pin   *pin
	stats []*Stats

	id     blobcache.ID // in the bucket's cache
	cached bool         // reads go through the cache
}

func (o *Object) Info() Info   { return o.info }
func (o *Object) Path() string { return o.b.Path(o.info.Key) }
func (o *Object) Size() int64  { return o.info.Size }

// With returns the same object counting into s as well.
func (o *Object) With(s *Stats) *Object {
	c := *o
	c.stats = append(slices.Clip(o.stats), s)
	return &c
}

func (o *Object) count(f func(*Stats)) {
	for _, s := range o.stats {
		f(s)
	}
}

// ReadAt fills p from offset off, in parallel pieces if p is large. Fewer bytes
// than len(p) only with io.EOF (or an error, and then p holds nothing of use).
func (o *Object) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fault.New(fault.Invalid, "read at negative offset %d", off).At(o.b.place(o.info.Key))
	}
	n := max(0, min(int64(len(p)), o.info.Size-off))
	if err := o.fill(ctx, o.cut(nil, p[:n], off)); err != nil {
		return 0, err
	}
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

// piece is one request: dst is filled from off.
type piece struct {
	dst []byte
	off int64
}

// cut appends to ps the pieces of MaxRequest or less that fill dst from off.
func (o *Object) cut(ps []piece, dst []byte, off int64) []piece {
	n := (int64(len(dst)) + o.b.o.MaxRequest - 1) / o.b.o.MaxRequest
	for ; n > 0; n-- { // of equal size, so that all end at about the same time
		k := (int64(len(dst)) + n - 1) / n
		ps = append(ps, piece{dst[:k:k], off})
		dst, off = dst[k:], off+k
	}
	return ps
}

// fill reads pieces, in parallel; all or an error.
func (o *Object) fill(ctx context.Context, ps []piece) error {
	if err := o.b.canceled(ctx, o.info.Key); err != nil {
		return err
	}
	if o.b.root != "" && len(ps) > 0 {
		f, err := o.openLocal()
		if err != nil {
			return err
		}
		defer f.Close()
		return o.fillLocal(ctx, f, ps)
	}
	return o.fillBy(ctx, o.read, ps)
}

// fillLocal is fill out of an open file.
func (o *Object) fillLocal(ctx context.Context, f *os.File, ps []piece) error {
	read := func(ctx context.Context, dst []byte, off int64) error { return o.pread(ctx, f, dst, off) }
	if totalOf(ps) >= parallelLocal {
		return o.fillBy(ctx, read, ps)
	}
	for _, p := range ps {
		if err := read(ctx, p.dst, p.off); err != nil {
			return err
		}
	}
	return nil
}

// fillBy reads pieces in parallel.
func (o *Object) fillBy(ctx context.Context, read func(ctx context.Context, dst []byte, off int64) error, ps []piece) error {
	switch len(ps) {
	case 0:
		return nil
	case 1:
		return read(ctx, ps[0].dst, ps[0].off)
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(o.b.o.Concurrency)
	for _, p := range ps {
		if gctx.Err() != nil {
			break
		}
		g.Go(func() error { return read(gctx, p.dst, p.off) })
	}
	if err := g.Wait(); err != nil {
		return err
	}
	return o.b.canceled(ctx, o.info.Key)
}

func totalOf(ps []piece) (n int64) {
	for _, p := range ps {
		n += int64(len(p.dst))
	}
	return n
}

// Range is [Off, Off+Len).
type Range struct{ Off, Len int64 }

// Gap is how many bytes there may be between two ranges that Fetch reads at once: Options.Gap.
func (o *Object) Gap() int64 { return o.b.o.Gap }

// Fetch reads ranges (any order, may overlap), coalesced and in parallel, into
// one allocation from alloc, gaps included (where all is in the cache there are none). Each run keeps its file offset modulo
// 64, so that what is aligned in the file is aligned in memory. A range outside
// the object is an Invalid error. Release the result when done.
func (o *Object) Fetch(ctx context.Context, rs []Range, alloc memory.Allocator) (*Fetched, error) {
	runs, err := o.coalesce(rs)
	if err != nil {
		return nil, err
	}
	size := int64(0)
	for i := range runs {
		size += (runs[i].Off - size) & 63
		runs[i].at = size
		size += runs[i].Len
	}
	f := &Fetched{runs: runs, alloc: alloc}
	if size == 0 {
		return f, nil
	}
	f.buf = alloc.Allocate(int(size))
	var ps []piece
	for _, r := range runs {
		ps = o.cut(ps, f.buf[r.at:r.at+r.Len:r.at+r.Len], r.Off)
	}
	if err := o.fill(ctx, ps); err != nil {
		f.Release()
		return nil, err
	}
	return f, nil
}

// run is a coalesced range that lies at buf[at:].
type run struct {
	Range
	at int64
}

// coalesce returns disjoint runs in order that cover rs and join what lies
// closer than Gap.
func (o *Object) coalesce(rs []Range) ([]run, error) {
	sorted := make([]Range, 0, len(rs))
	for _, r := range rs {
		if r.Off < 0 || r.Len < 0 || r.Off > o.info.Size || r.Len > o.info.Size-r.Off {
			return nil, fault.New(fault.Invalid, "range [%d, +%d) is not inside the object of %d bytes", r.Off, r.Len, o.info.Size).
				At(o.b.place(o.info.Key))
		}
		if r.Len > 0 {
			sorted = append(sorted, r)
		}
	}
	slices.SortFunc(sorted, func(a, b Range) int {
		if a.Off < b.Off {
			return -1
		} else if a.Off > b.Off {
			return 1
		}
		return 0
	})
	gap := o.b.o.Gap
	if o.inCache(sorted) {
		gap = 0
	}
	var runs []run
	for _, r := range sorted {
		if n := len(runs) - 1; n >= 0 && r.Off-(runs[n].Off+runs[n].Len) <= gap {
			runs[n].Len = max(runs[n].Len, r.Off+r.Len-runs[n].Off)
			continue
		}
		runs = append(runs, run{Range: r})
	}
	return runs, nil
}

// Fetched holds ranges in memory. Bytes is safe for concurrent use.
type Fetched struct {
	runs  []run
	buf   []byte
	alloc memory.Allocator
}

// Bytes returns the bytes of a range inside one of those fetched; valid until
// Release. ok is false if they are not there.
func (f *Fetched) Bytes(off, n int64) (b []byte, ok bool) {
	i, found := slices.BinarySearchFunc(f.runs, off, func(r run, off int64) int {
		if r.Off < off {
			return -1
		} else if r.Off > off {
			return 1
		}
		return 0
	})
	if !found {
		i--
	}
	if n < 0 || i < 0 || off > f.runs[i].Off+f.runs[i].Len || n > f.runs[i].Off+f.runs[i].Len-off {
		return nil, n == 0
	}
	at := f.runs[i].at + off - f.runs[i].Off
	return f.buf[at : at+n : at+n], true
}

// Release frees the memory. Idempotent.
func (f *Fetched) Release() {
	if f.buf != nil {
		f.alloc.Free(f.buf)
	}
	f.buf, f.runs = nil, nil
}

// ReaderAt binds ctx to o for libraries without contexts.
func ReaderAt(ctx context.Context, o *Object) io.ReaderAt { return readerAt{ctx, o} }

type readerAt struct {
	ctx context.Context
	o   *Object
}

func (r readerAt) ReadAt(p []byte, off int64) (int, error) { return r.o.ReadAt(r.ctx, p, off) }
