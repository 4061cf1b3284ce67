package ipcio

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"sync/atomic"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/klauspost/compress/zstd"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/pierrec/lz4/v4"
)

// owner keeps memory that was not allocated buffer by buffer (a mapped file, one
// fetch) until the last buffer on it is released. It is the allocator of those
// buffers, of which only Free is called.
type owner struct {
	refs atomic.Int64
	done func() // called once, by whoever releases last
}

// newOwner holds one reference, for drop.
func newOwner(done func()) *owner {
	o := &owner{done: done}
	o.refs.Store(1)
	return o
}

func (o *owner) drop() {
	if o.refs.Add(-1) == 0 {
		o.done()
	}
}

// buffer returns a reference to a buffer on b, whose memory is o's.
func (o *owner) buffer(b []byte) *memory.Buffer {
	o.refs.Add(1)
	return memory.NewBufferWithAllocator(b, o)
}

func (o *owner) Free([]byte) { o.drop() }

func (*owner) Allocate(int) []byte           { panic("ipcio: the buffer is read only") }
func (*owner) Reallocate(int, []byte) []byte { panic("ipcio: the buffer is read only") }

// body gives the bytes of a message's body.
type body struct {
	owner *owner
	// bytes returns [off, off+n) of the body; the caller has checked the bounds.
	bytes func(off, n int64) []byte
	size  int64
}

// codecs decompress buffers. One user at a time.
type codecs struct {
	zstd *zstd.Decoder
	lz4  *lz4.Reader
}

func (c *codecs) close() {
	if c.zstd != nil {
		c.zstd.Close()
		c.zstd = nil
	}
}

// idle lets go of the stream at hand, whatever is left of it: it has the one decoder that blobs are
// decoded with, too.
func (c *codecs) idle() {
	if c.zstd != nil {
		_ = c.zstd.Reset(nil) // fails on closed decoders only
	}
}

func (c *codecs) reader(codec int8, src []byte) (io.Reader, error) {
	if codec == codecLZ4 {
		if c.lz4 == nil {
			c.lz4 = lz4.NewReader(nil)
		}
		c.lz4.Reset(bytes.NewReader(src))
		return c.lz4, nil
	}
	if err := c.decoder(); err != nil {
		return nil, err
	}
	return c.zstd, c.zstd.Reset(bytes.NewReader(src))
}

func (c *codecs) decoder() (err error) {
	if c.zstd == nil {
		c.zstd, err = zstd.NewReader(nil, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(64<<20), zstd.WithDecodeAllCapLimit(true))
	}
	return err
}

// maxBuffer bounds one decompressed buffer.
const maxBuffer = 1 << 34

// decompress returns a reference to a buffer with the contents of src, which
// begins with their length, of at most maxBuffer. Memory grows with what really comes out, not with
// what is claimed.
func (c *codecs) decompress(ctx context.Context, codec int8, src []byte, alloc memory.Allocator) (*memory.Buffer, error) {
	size := i64(src, 0)
	src = src[8:]
	buf := memory.NewResizableBuffer(alloc)
	first := min(size, max(64<<10, 64*int64(len(src))))
	if codec == codecZstd && first == size && size <= 128<<20 {
		// At once and without a window: what most buffers are.
		err := c.decoder()
		if err == nil {
			buf.Resize(int(size))
			var out []byte
			if out, err = c.zstd.DecodeAll(src, buf.Bytes()[:0:size]); err == nil && int64(len(out)) < size {
				err = io.ErrUnexpectedEOF
			}
		}
		if err != nil {
			buf.Release()
			return nil, driver.Errorf(driver.Corrupt, "a buffer does not decompress to %d bytes: %w", size, err)
		}
		return buf, nil
	}
	defer c.idle()
	r, err := c.reader(codec, src)
	n := int64(0)
	for err == nil && n < size {
		grown := max(first, min(size, 4*n))
		buf.Resize(int(grown))
		for n < grown && err == nil {
			if err = context.Cause(ctx); err == nil {
				var k int
				k, err = io.ReadFull(r, buf.Bytes()[n:min(grown, n+16<<20)])
				n += int64(k)
			}
		}
	}
	if err != nil {
		buf.Release()
		if ctx.Err() != nil {
			return nil, driver.Wrap(err, driver.Place{})
		}
		return nil, driver.Errorf(driver.Corrupt, "a buffer ends after %d of %d decompressed bytes: %w", n, size, err)
	}
	return buf, nil
}

// buffer returns a reference to buffer i of the batch: mapped memory where it
// can be, else memory from alloc.
func (l *loader) buffer() (*memory.Buffer, error) {
	i := l.buf
	l.buf++
	off, n := i64(l.buffers, 16*i), i64(l.buffers, 16*i+8)
	if off < 0 || n < 0 || n > l.body.size || off > l.body.size-n {
		return nil, driver.Errorf(driver.Corrupt, "a buffer lies at %d, %d bytes long, in a body of %d", off, n, l.body.size)
	}
	if n == 0 {
		return memory.NewBufferBytes(nil), nil
	}
	b := l.body.bytes(off, n)
	if l.codec != codecNone {
		if n < 8 {
			return nil, driver.Errorf(driver.Corrupt, "a compressed buffer has %d bytes", n)
		}
		if size := int64(binary.LittleEndian.Uint64(b)); size != -1 {
			if size < 0 || size > maxBuffer {
				return nil, driver.Errorf(driver.Corrupt, "a buffer of %d bytes claims to decompress to %d", n-8, size)
			}
			l.inflated += size
			err := l.growth.Hold(l.body.size, l.inflated)
			if err == nil {
				err = l.growth.Add(0, size)
			}
			if err != nil {
				return nil, err
			}
			return l.codecs.decompress(l.ctx, l.codec, b, l.alloc)
		}
		if b = b[8:]; len(b) == 0 {
			return memory.NewBufferBytes(nil), nil
		}
	}
	if uintptr(unsafe.Pointer(&b[0]))%8 == 0 {
		return l.body.owner.buffer(b), nil
	}
	// Kernels rely on natural alignment.
	buf := memory.NewResizableBuffer(l.alloc)
	buf.Resize(len(b))
	copy(buf.Bytes(), b)
	return buf, nil
}
