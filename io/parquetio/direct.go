package parquetio

import (
	"context"
	"math/bits"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Values that are in the file as they are in an array take no more copies than they must. Pages of local files that are not
// compressed are read into the batch (direct); out of decompressed ones batches get slices (lend), unless they would keep
// much more in memory than they hold. Compressed pages come through one buffer for all columns (staged), which stays in the
// second cache. Those of codecs that cannot be decompressed out of a mapping come through it, too, however large.

const (
	maxStage  = 1 << 20  // bytes of the compressed pages that are staged: they and what becomes of them are in the caches
	maxLevels = 64 << 10 // bytes of the levels of a page that is read so
	maxLent   = 8        // how many times as large as a batch's part the memory of a page may be that is lent
)

// plain reports whether the values of the open page are those of the array, one behind the other, without lists.
func (c *column) plain() bool {
	return c.hdr.enc == encPlain && c.form == formSame && c.leaf.maxRep == 0 && c.hdr.typ != pageDict
}

// staged reports whether the compressed page at pos is to be read beside the window.
func (c *column) staged(pos, size int64, codec int8) bool {
	return c.win.f.local != nil && size >= minBeside && (size <= maxStage || unmappable(codec)) && !c.win.has(pos, size)
}

// unmappable reports whether the decoder of a codec must not be given a mapping: its assembly calls memmove with a frame that the runtime
// cannot look through, so that the fault of a file that was truncated ends the process, whatever SetPanicOnFault says.
func unmappable(codec int8) bool {
	return codec == codecSnappy || codec == codecLZ4 || codec == codecLZ4Raw
}

// stageOf is memory for a page of n bytes, valid until the next call.
func (d *decoder) stageOf(n int64) []byte {
	if int64(len(d.stage)) < n {
		d.freeStage()
		d.stage = d.acct.alloc.Allocate(int(max(n, min(n+n/8, maxStage))))
	}
	return d.stage[:n]
}

// readStage reads [off, off+n) of w's file; what it returns is valid until the next call for whatever window.
func (d *decoder) readStage(ctx context.Context, w *window, off, n int64) ([]byte, error) {
	b := d.stageOf(n)
	return b, w.fill(ctx, b, off)
}

// freeStage gives the stage back: one of many readers needs it no longer than it reads.
func (d *decoder) freeStage() {
	if d.stage != nil {
		d.acct.alloc.Free(d.stage)
		d.stage = nil
	}
}

// direct reports whether the values of the open page are to be read into batches, and not before.
func (c *column) direct() bool {
	h := &c.hdr
	return c.win.f.local != nil && c.plain() && c.pw > 0 && !h.hasCRC && h.comp == h.raw && (c.c.codec == codecNone || h.typ == pageV2 && h.plainBody) &&
		int64(h.comp) >= minBeside && !c.win.has(c.page.pos, int64(c.head)+int64(h.comp))
}

// loadDirect reads the levels of the open page; false if there are too many of them.
func (c *column) loadDirect(ctx context.Context) (bool, error) {
	at := c.page.pos + int64(c.head)
	n, err := c.levelBytes(ctx, at)
	if err != nil || n > maxLevels {
		return false, err
	}
	src, err := c.win.bytes(ctx, at, n)
	if err != nil {
		return false, err
	}
	c.kept = append(c.kept[:0], src...) // what the window has changes
	if _, err := c.levels(c.kept); err != nil {
		return false, err
	}
	c.vals = values{c: c, enc: encPlain, at: at + n, rest: int64(c.hdr.comp) - n}
	c.body = []byte{}
	return true, nil
}

// readDirect reads the next len(dst) bytes of values, which there are.
func (v *values) readDirect(dst []byte) error {
	ctx := context.Background() // a piece of a local file: nothing to wait for
	w, at := v.c.win, v.at
	v.pass(len(dst))
	if len(dst) >= probeBytes {
		return w.fill(ctx, dst, at)
	}
	src, err := w.bytes(ctx, at, int64(len(dst))) // few rows: what follows is read with them
	copy(dst, src)
	return err
}

// left is the bytes of PLAIN values of a width that were not taken.
func (v *values) left() int64 {
	if v.at > 0 {
		return v.rest
	}
	return int64(len(v.src))
}

// pass takes n bytes of them, which there are.
func (v *values) pass(n int) {
	if v.at > 0 {
		v.at, v.rest = v.at+int64(n), v.rest-int64(n)
		return
	}
	v.src = v.src[n:]
}

// lead is how far behind its begin the values of the page are expected that is to be decompressed, if they may be lent.
func (c *column) lead() int {
	h := &c.hdr
	switch {
	case !c.plain():
		return 0
	case h.typ == pageV2:
		return int(h.defLen)
	case c.leaf.maxDef > 0 && c.front == 0: // the first: one run, most likely
		return 4 + (bits.Len32(uint32(h.values)<<1)+6)/7 + 1
	}
	return c.front
}

// lend makes the next o.rows values, all of which there are, those of o: they stay where the page was decompressed. False if
// that cannot be, or if the page is much larger than its part that the batch would keep alive.
func (c *column) lend(o *leafOut) bool {
	v, d := &c.vals, c.d
	size := o.rows * c.ow
	if v.enc != encPlain || c.form != formSame || size == 0 || size > len(v.src) || len(c.mem) > maxLent*size || d.keep < maxKept {
		return false
	}
	at := address(v.src) - address(c.mem)
	if at >= uintptr(len(c.mem)) || address(v.src)&7 != 0 {
		return false // not in the column's own memory; or levels of another length than was expected
	}
	if c.lent == nil {
		c.lent = memory.NewBufferWithAllocator(c.mem, d.acct.alloc)
	}
	o.lent, o.n = memory.SliceBuffer(c.lent, int(at), size), o.rows
	v.pass(size)
	return true
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
