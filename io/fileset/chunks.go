package fileset

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow/memory"
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
// of the (decompressed and decoded) file. A line ends with \n (see SetLineEnd), which is part of it; the last may lack it.
// Chunks of lines lie in one buffer of Go memory; a line that is longer than it comes alone, in memory of the allocator,
// which the next call gives back. Not safe for concurrent use.
type Chunks struct {
	obj      *Object
	size     int64 // of the file; -1 where the text is not its bytes
	end      int64 // lines beginning at or after it are not ours
	in       io.ReadCloser
	lazy     *Stream // in, until it is opened
	cancel   context.CancelFunc
	alloc    memory.Allocator
	small    []byte         // Go memory
	long     *memory.Buffer // nil unless a line is longer than small
	buf      []byte         // the memory of one of them
	lo, hi   int            // what of buf is not handed out yet
	least    int            // bytes that More asked for
	off      int64          // of buf[hi] in the file
	skip     bool           // the end of a line that is not ours comes first
	eof      bool           // of in
	err      error
	maxLine  int
	growth   *Growth // of a line of what is no bytes of the file
	chunk    int     // bytes of a chunk
	tailOnce int     // size of the next read beyond end
	lineEnd  byte
	detect   bool // lineEnd is to be found
	quote    byte // for that
}

// chunkDefault is the size of chunks, and of single reads of a longer line: what is read beyond its end fits a chunk.
const chunkDefault = 1 << 20

// OpenChunks starts reading. Chunks are at most chunkBytes (0: 1 MiB), never cut inside a line. Longer lines lie in memory of o.Alloc.
// Nothing is read before Next.
func (s *Set) OpenChunks(ctx context.Context, p Part, chunkBytes int, o *driver.ScanOptions) *Chunks {
	if chunkBytes <= 0 {
		chunkBytes = chunkDefault
	}
	r := p.Range
	obj := s.Object(p.File, o.Stats)
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // Next has its own
	c := &Chunks{obj: obj, size: obj.Size(), end: r.Off + r.Len, off: r.Off, cancel: cancel, alloc: o.Alloc, maxLine: MaxLine, chunk: chunkBytes, lineEnd: '\n', growth: s.TextGrowth(p)}
	if c.end > c.size {
		c.end = c.size
	}
	switch {
	case p.form == nil || !p.form.lines():
		c.lazy = s.OpenStream(ctx, p, o)
		c.in = c.lazy
		return c
	case p.form.enc != "":
		lines := p
		lines.form = &form{}
		c.in, c.size = newRecoder(p.form.enc, &lineReader{ctx, s.OpenChunks(ctx, lines, chunkBytes, o), nil}), -1
	default:
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
	c.room(r.Len)
	return c
}

// room makes the buffer for what begins in n bytes.
func (c *Chunks) room(n int64) {
	if c.size >= 0 {
		c.chunk = int(min(int64(c.chunk), n+1))
	}
	c.small = make([]byte, c.chunk)
	c.buf = c.small
}

// lineReader gives the lines of chunks as bytes.
type lineReader struct {
	ctx  context.Context
	c    *Chunks
	rest []byte
}

func (l *lineReader) Read(p []byte) (int, error) {
	if len(l.rest) == 0 {
		var err error
		if l.rest, _, err = l.c.Next(l.ctx); err != nil {
			return 0, err
		}
	}
	n := copy(p, l.rest)
	l.rest = l.rest[n:]
	return n, nil
}

func (l *lineReader) Close() error { return l.c.Close() }

// Bytewise says that offsets are those of the file. It is known once something is read.
func (c *Chunks) Bytewise() bool { return c.size >= 0 }

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

// SetLineEnd says before the first Next with what byte lines end: \n or \r.
func (c *Chunks) SetLineEnd(b byte) { c.lineEnd = b }

// DetectLineEnd has the first Next find out with what byte lines end, where it begins the file: \r if
// the first MiB has no \n, and a \r with more behind it. What is between two of quote, if that is not 0, does not count.
func (c *Chunks) DetectLineEnd(quote byte) { c.detect, c.quote = true, quote }

// LineEnd is what ends lines.
func (c *Chunks) LineEnd() byte { return c.lineEnd }

// findLineEnd looks at buf[:hi], the first bytes of the file.
func (c *Chunks) findLineEnd() {
	all := c.eof && (c.size < 0 || c.off >= c.size)
	b := c.buf[:min(c.hi, chunkDefault)]
	lf := indexOutside(b, '\n', c.quote)
	if at := indexOutside(b, '\r', c.quote); at >= 0 && (at+1 < len(b) || all) && lf < 0 {
		c.lineEnd = '\r'
	}
	c.detect = c.lineEnd == '\n' && !all && len(b) < chunkDefault && lf < 0
}

// indexOutside is where the first x in b is that is not between two of quote; 0 is no quote.
func indexOutside(b []byte, x, quote byte) int {
	for from := 0; ; {
		at := bytes.IndexByte(b[from:], x)
		if at < 0 {
			return -1
		}
		open := -1
		if quote != 0 {
			open = bytes.IndexByte(b[from:from+at], quote)
		}
		if open < 0 {
			return from + at
		}
		from += open + 1
		shut := bytes.IndexByte(b[from:], quote)
		if shut < 0 {
			return -1
		}
		from += shut + 1
	}
}

// More is Next for who needs more lines in one piece: the last n bytes that the last call returned come again, and about as many
// behind them, if there are.
func (c *Chunks) More(ctx context.Context, n int) (lines []byte, off int64, err error) {
	c.lo -= n
	c.least = max(n+1, min(2*n, n/2+c.maxLine/2))
	defer func() { c.least = 0 }()
	return c.Next(ctx)
}

// Last reports that there is nothing behind the lines that the last call returned.
func (c *Chunks) Last() bool { return c.eof && c.lo == c.hi }

// Long reports that the last call returned one line alone, in memory of the allocator.
func (c *Chunks) Long() bool { return c.long != nil }

// Lend returns a reference to the memory of b, a part of the lines that the last call returned. It is nil where that is Go memory, or
// where used, the bytes of the lines that are wanted, are less than half of what would be kept for them: who wants b later must copy it then.
// (It is nil of other memory, too.)
func (c *Chunks) Lend(b []byte, used int) *memory.Buffer {
	if c.long == nil || used < len(c.buf)/2 {
		return nil
	}
	at := uintptr(unsafe.Pointer(unsafe.SliceData(b))) - uintptr(unsafe.Pointer(unsafe.SliceData(c.buf)))
	if at >= uintptr(len(c.buf)) {
		return nil
	}
	return memory.SliceBuffer(c.long, int(at), len(b))
}

// Done says that the lines that the last call returned are not needed any more: what a long one takes is given back now.
func (c *Chunks) Done() {
	if c.long == nil {
		return
	}
	if rest := c.buf[c.lo:c.hi]; len(rest) <= len(c.small) {
		c.lo, c.hi = 0, copy(c.small, rest)
		c.drop()
	}
}

// drop goes back to the small buffer.
func (c *Chunks) drop() {
	c.long.Release()
	c.long, c.buf = nil, c.small
}

// grow gives buf[lo:hi] n bytes of room, in memory of the allocator. It never resizes what may have been lent.
func (c *Chunks) grow(n int) {
	long := memory.NewResizableBuffer(c.alloc)
	long.ResizeNoShrink(n)
	c.hi = copy(long.Buf(), c.buf[c.lo:c.hi])
	c.lo = 0
	if c.long != nil {
		c.drop()
	}
	c.long, c.buf = long, long.Buf()[:n]
}

// whole returns how many bytes of buf[:hi] to give out, 0 if no line to give out ends behind seen: up to the last line's end, or
// in a long buffer to the first one.
func (c *Chunks) whole(seen int) int {
	n := 0
	if c.long == nil {
		n = seen + bytes.LastIndexByte(c.buf[seen:c.hi], c.lineEnd) + 1
	} else if seen = max(seen, c.least-1); seen < c.hi {
		n = seen + bytes.IndexByte(c.buf[seen:c.hi], c.lineEnd) + 1
	}
	if n == seen || n < c.least {
		return 0
	}
	return n
}

// next makes buf[lo:] begin with n > 0 bytes of whole lines.
func (c *Chunks) next(ctx context.Context) (n int, err error) {
	if c.lazy != nil {
		if err := c.lazy.Start(); err != nil {
			return 0, err
		}
		if !c.lazy.form.bytewise() {
			c.size = -1
			c.maxLine = int(min(int64(c.maxLine), c.growth.Row()))
		}
		c.lazy = nil
		c.room(c.end)
	}
	if c.Done(); c.long == nil {
		c.hi = copy(c.buf, c.buf[c.lo:c.hi])
		c.lo = 0
	} else if c.lo > 0 { // More, of what somebody may have been lent
		c.grow(len(c.buf))
	}
	seen := 0 // buf[:seen] has no line's end to give out
	for {
		if c.skip {
			if i := bytes.IndexByte(c.buf[:c.hi], c.lineEnd); i >= 0 {
				c.hi = copy(c.buf, c.buf[i+1:c.hi])
				c.skip = false
			} else {
				c.hi = 0
			}
		}
		full := c.hi == len(c.buf)
		if c.detect && (full || c.eof) {
			if c.findLineEnd(); c.lineEnd != '\n' {
				seen = 0
			}
		}
		if full || c.eof || c.long != nil {
			if n := c.whole(seen); n > 0 {
				return n, nil
			}
			seen = c.hi
			switch {
			case c.eof && (c.hi == 0 || c.skip):
				return 0, io.EOF
			case c.eof && (c.size < 0 || c.off >= c.size || c.buf[c.hi-1] == c.lineEnd):
				return c.hi, nil // the last line of the file may be without \n
			case c.hi > c.maxLine && c.size < 0 && c.maxLine < MaxLine:
				return 0, c.growth.LargeRow(fmt.Sprintf("the line at byte %d has", c.off-int64(c.hi)))
			case c.hi > c.maxLine:
				return 0, fault.New(fault.Corrupt, "the line at byte %d is longer than %d bytes", c.off-int64(c.hi), c.maxLine)
			case full && ctx.Err() != nil:
				return 0, context.Cause(ctx)
			case full:
				c.grow(min(2*len(c.buf), c.maxLine+1))
			}
			if c.eof {
				if err := c.tail(ctx); err != nil {
					return 0, err
				}
				continue
			}
		}
		m, err := c.in.Read(c.buf[c.hi:min(len(c.buf), c.hi+len(c.small))])
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
	if i := bytes.IndexByte(p, c.lineEnd); i >= 0 {
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
	c.cancel()
	if c.long != nil {
		c.drop()
	}
	c.in, c.lazy, c.small, c.buf, c.lo, c.hi = nil, nil, nil, nil, 0, 0
	c.err = fault.New(fault.Internal, "read after close")
	return err
}
