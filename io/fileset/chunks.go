package fileset

import (
	"bytes"
	"context"
	"errors"
	"io"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
)

// DefaultSplitBytes is the size of byte-range splits of text formats.
const DefaultSplitBytes = 32 << 20

// MaxLine bounds one line (or one JSON value, one CSV record) of text: 256 MiB.
const MaxLine = 256 << 20

// Ranges cuts a file of size bytes into byte ranges of about splitBytes (0: the default), at least one.
func Ranges(size, splitBytes int64) []blobio.Range {
	if splitBytes <= 0 {
		splitBytes = DefaultSplitBytes
	}
	n := size / splitBytes
	if size%splitBytes > splitBytes/2 {
		n++
	}
	rs := make([]blobio.Range, max(n, 1))
	for i := range rs {
		rs[i].Off = int64(i) * splitBytes
		rs[i].Len = splitBytes
	}
	last := &rs[len(rs)-1]
	last.Len = size - last.Off
	return rs
}

// Chunks reads whole lines: those whose first byte lies in [r.Off, r.Off+r.Len)
// of the (decompressed) file. A line ends with \n, which is part of it; the last may lack it.
// Not safe for concurrent use.
type Chunks struct {
	obj      *Object
	size     int64 // of the file; -1 if compressed
	end      int64 // lines beginning at or after it are not ours
	in       io.ReadCloser
	raw      io.Closer // beneath in, if it is compressed
	cancel   context.CancelFunc
	buf      []byte
	lo, hi   int   // what of buf is not handed out yet
	off      int64 // of buf[hi] in the file
	skip     bool  // the end of a line that is not ours comes first
	eof      bool  // of in
	err      error
	maxLine  int
	tailOnce int // size of the next read beyond end
}

const chunkDefault = 1 << 20

// OpenChunks starts reading. Where the file is compressed r must be the whole
// file. Chunks are about chunkBytes (0: 1 MiB), never cut inside a line. Nothing is read before Next.
func (s *Set) OpenChunks(ctx context.Context, i int, r blobio.Range, chunkBytes int, st *driver.ScanStats) (*Chunks, error) {
	if chunkBytes <= 0 {
		chunkBytes = chunkDefault
	}
	obj := s.Object(i, st)
	kind := Compression(s.Files[i].Info.Key)
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // Next has its own
	c := &Chunks{obj: obj, size: obj.Size(), end: r.Off + r.Len, off: r.Off, cancel: cancel, maxLine: MaxLine}
	if c.end > c.size {
		c.end = c.size
	}
	if kind != "" {
		if r.Off != 0 || r.Len != c.size {
			cancel()
			return nil, fault.New(fault.Internal, "bytes %d+%d of a compressed file of %d", r.Off, r.Len, c.size)
		}
		raw := obj.Stream(ctx, 0, c.size)
		in, err := Decompress(kind, raw)
		if err != nil {
			cancel()
			raw.Close()
			return nil, err
		}
		c.in, c.raw, c.size = in, raw, -1
	} else {
		chunkBytes = int(min(int64(chunkBytes), r.Len+1))
		if c.off > 0 {
			c.off--
			c.skip = true
		}
		if c.off < c.end {
			c.in = obj.Stream(ctx, c.off, c.end-c.off)
		} else {
			c.in, c.skip, c.eof = io.NopCloser(bytes.NewReader(nil)), false, true
		}
	}
	c.buf = make([]byte, chunkBytes)
	return c, nil
}

// Next returns whole lines, valid until the next call, and the offset in the file (decompressed)
// of their first byte; io.EOF at the end. A line over MaxLine is a Corrupt error.
func (c *Chunks) Next(ctx context.Context) (lines []byte, off int64, err error) {
	if c.err != nil {
		return nil, 0, c.err
	}
	if ctx.Err() != nil {
		return nil, 0, fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
	stop := context.AfterFunc(ctx, c.cancel)
	n, err := c.next(ctx)
	if !stop() { // the stream is canceled, even if it gave this much
		err = fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
	if err != nil {
		if err != io.EOF {
			err = fault.Wrap(err, fault.Place{File: c.obj.Path()})
		}
		c.err = err
		return nil, 0, err
	}
	off = c.off - int64(c.hi-c.lo)
	lines = c.buf[c.lo : c.lo+n]
	c.lo += n
	return lines, off, nil
}

// next makes buf[lo:] begin with n > 0 bytes of whole lines.
func (c *Chunks) next(ctx context.Context) (n int, err error) {
	c.hi = copy(c.buf, c.buf[c.lo:c.hi])
	c.lo = 0
	seen := 0 // buf[:seen] has no \n
	for {
		if c.skip {
			if i := bytes.IndexByte(c.buf[:c.hi], '\n'); i >= 0 {
				c.hi = copy(c.buf, c.buf[i+1:c.hi])
				c.skip = false
			} else {
				c.hi = 0
			}
		}
		full := c.hi == len(c.buf)
		if full || c.eof {
			if i := bytes.LastIndexByte(c.buf[seen:c.hi], '\n'); i >= 0 {
				return seen + i + 1, nil
			}
			seen = c.hi
			switch {
			case c.eof && (c.hi == 0 || c.skip):
				return 0, io.EOF
			case c.eof && (c.size < 0 || c.off >= c.size):
				return c.hi, nil // the last line of the file, without \n
			case c.hi > c.maxLine:
				return 0, fault.New(fault.Corrupt, "the line at byte %d is longer than %d bytes", c.off-int64(c.hi), c.maxLine)
			case full:
				c.buf = append(c.buf, make([]byte, min(len(c.buf), c.maxLine+1-len(c.buf)))...)
			}
			if c.eof {
				if err := c.tail(ctx); err != nil {
					return 0, err
				}
			}
			continue
		}
		m, err := c.in.Read(c.buf[c.hi:])
		c.hi += m
		c.off += int64(m)
		if err == io.EOF {
			c.eof = true
			if c.size >= 0 && c.off < c.end {
				return 0, fault.New(fault.Corrupt, "the file ends at byte %d of %d", c.off, c.size)
			}
		} else if err != nil {
			return 0, err
		}
	}
}

// tail reads on beyond the range, in growing steps, for the end of its last line.
func (c *Chunks) tail(ctx context.Context) error {
	c.tailOnce = max(min(2*c.tailOnce, chunkDefault), 16<<10)
	want := int(min(int64(c.tailOnce), int64(len(c.buf)-c.hi), c.size-c.off))
	p := c.buf[c.hi : c.hi+want]
	m, err := c.obj.ReadAt(ctx, p, c.off)
	if m < want {
		if err == nil || errors.Is(err, io.EOF) {
			return fault.New(fault.Corrupt, "the file ends at byte %d of %d", c.off+int64(m), c.size)
		}
		return err
	}
	if i := bytes.IndexByte(p, '\n'); i >= 0 {
		p = p[:i+1]
	}
	c.hi += len(p)
	c.off += int64(len(p))
	return nil
}

// Close stops reading. Idempotent.
func (c *Chunks) Close() error {
	if c.in == nil {
		return nil
	}
	err := c.in.Close()
	if c.raw != nil {
		err = errors.Join(err, c.raw.Close())
	}
	c.cancel()
	c.in, c.raw, c.buf, c.lo, c.hi = nil, nil, nil, 0, 0
	c.err = fault.New(fault.Internal, "read after close")
	return err
}
