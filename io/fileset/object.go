package fileset

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
)

// Object is one listed file: a [blobio.Object] whose reads are counted in a
// driver.ScanStats. Safe for concurrent use; nothing to close.
type Object struct {
	*blobio.Object
	c *counter
}

// Object opens file i, counting reads into st (nil: Meta).
func (s *Set) Object(i int, st *driver.ScanStats) *Object {
	if st == nil {
		st = s.meta
	}
	c := &counter{st: st}
	return &Object{s.Files[i].bucket.Object(s.Files[i].Info, &c.from), c}
}

type counter struct {
	from blobio.Stats
	st   *driver.ScanStats
}

// move adds what was counted since the last call.
func (c *counter) move() {
	c.st.BytesRead.Add(c.from.Bytes.Swap(0))
	c.st.Requests.Add(c.from.Requests.Swap(0))
	c.st.Retries.Add(c.from.Retries.Swap(0))
}

// ReadAt is blobio's.
func (o *Object) ReadAt(ctx context.Context, p []byte, off int64) (int, error) {
	defer o.c.move()
	return o.Object.ReadAt(ctx, p, off)
}

// Fetch is blobio's.
func (o *Object) Fetch(ctx context.Context, rs []blobio.Range, alloc memory.Allocator) (*blobio.Fetched, error) {
	defer o.c.move()
	return o.Object.Fetch(ctx, rs, alloc)
}

// Open is blobio's.
func (o *Object) Open() (*Local, error) {
	f, err := o.Object.Open()
	if err != nil {
		return nil, err
	}
	return &Local{f, o.c}, nil
}

// Local is an Object that is held open: a [blobio.File] whose reads are counted.
type Local struct {
	*blobio.File
	c *counter
}

// ReadAt is blobio's.
func (f *Local) ReadAt(ctx context.Context, p []byte, off int64) error {
	defer f.c.move()
	return f.File.ReadAt(ctx, p, off)
}

// Map is blobio's.
func (f *Local) Map(ctx context.Context, off, n, fresh int64) (blobio.Mapping, error) {
	defer f.c.move()
	return f.File.Map(ctx, off, n, fresh)
}

// Stream is blobio's.
func (o *Object) Stream(ctx context.Context, off, n int64) io.ReadCloser {
	return &stream{o.Object.Stream(ctx, off, n), o.c}
}

type stream struct {
	io.ReadCloser
	c *counter
}

func (s *stream) Read(p []byte) (int, error) {
	n, err := s.ReadCloser.Read(p)
	s.c.move()
	return n, err
}

func (s *stream) Close() error {
	err := s.ReadCloser.Close()
	s.c.move()
	return err
}

// ReaderAt binds ctx to o for libraries without contexts.
func (o *Object) ReaderAt(ctx context.Context) io.ReaderAt {
	return countedReaderAt{blobio.ReaderAt(ctx, o.Object), o.c}
}

type countedReaderAt struct {
	r io.ReaderAt
	c *counter
}

func (r countedReaderAt) ReadAt(p []byte, off int64) (int, error) {
	defer r.c.move()
	return r.r.ReadAt(p, off)
}

const edge = 64 << 10

// EdgeHash hashes the first and last 64 KiB of file i: the identity of text.
func (s *Set) EdgeHash(ctx context.Context, i int) ([]byte, error) {
	o := s.Object(i, nil)
	h := sha256.New()
	size := o.Size()
	buf := make([]byte, min(edge, size))
	for _, off := range []int64{0, max(size-edge, 0)} {
		if n, err := o.ReadAt(ctx, buf, off); n < len(buf) && err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		} else if n < len(buf) {
			return nil, io.ErrUnexpectedEOF
		}
		h.Write(buf)
	}
	return h.Sum(nil), nil
}
