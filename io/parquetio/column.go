package parquetio

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"math/bits"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/parquetio/internal/kernel"
)

// column is a cursor in one column chunk. Between calls it is at the begin of a
// row, or behind the last.
//
// Pages are stepped over by what their headers say where that tells their rows:
// pages of version 2, and those of columns without lists. Others are
// decompressed and their repetition levels are looked at; values before the row wanted
// are passed, not decoded, where the encoding allows it.
type column struct {
	pageReader
	layout
	d               *decoder
	way             way
	large, nullable bool      // wayList: the list has 64-bit offsets; it may be null
	locs            []pageLoc // offset index; nil: pages are found one after the other
	row             int64     // rows that begin before the cursor
	seen            int64     // levels of pages opened; not known with locs
	next            int       // of locs: the page to be opened

	dict   *dictionary
	sought bool // with locs: the dictionary was looked for

	// The open page.
	page     pagePos
	head     int            // bytes of its header
	left     int            // levels behind the cursor; 0: no page is open
	mid      bool           // the cursor may be inside a row: after a way back, or a page of lists that was stepped over
	body     []byte         // nil: to be decompressed (again)
	mem      []byte         // of body, if it is the column's own
	lent     *memory.Buffer // mem, once batches have parts of it
	kept     []byte         // the levels of a page that is read directly
	front    int            // bytes of the levels in the last page
	sharer   bool           // used the decoder's shared page
	out      pageFile
	rep, def kernel.Hybrid
	vals     values

	mark   pagePos   // the page in which the last read began
	slices slicing   // of the open page, if it is read in slices
	slice  sliceMark // the one in which the last read began; rest 0: none
	ready  []ready   // decoded ahead
	spare  *leafOut
	perRow float64 // slots, as an estimate of what follows
	sparse bool    // the last read had nulls
}

// pagePos is a place at which pages can be read on.
type pagePos struct {
	pos       int64 // file offset
	row, seen int64
	next      int
}

// ready is what was decoded ahead of a read.
type ready struct {
	row int64
	n   int
	o   *leafOut
}

func (c *column) here() pagePos { return pagePos{c.pos, c.row, c.seen, c.next} }

// open steps to the next data page; false at the end of what can be read.
func (c *column) open(ctx context.Context) (bool, error) {
	c.left, c.body = 0, nil
	if c.slices.more() {
		return true, c.nextSlice(ctx)
	}
	c.slices.open = false
	for {
		if err := ctx.Err(); err != nil {
			return false, fault.WithCode(fault.Canceled, context.Cause(ctx))
		}
		if c.locs != nil {
			if c.next >= len(c.locs) {
				return false, nil
			}
			loc := &c.locs[c.next]
			if loc.row != c.row {
				return false, fault.New(fault.Corrupt, "the page index has row %d where row %d begins", loc.row, c.row)
			}
			if c.pos = loc.off; c.win.runEnd(c.pos) == c.pos {
				return false, nil
			}
		} else if c.pos >= c.end || c.seen >= c.c.values || c.win.runEnd(c.pos) == c.pos {
			return false, nil
		}
		at := c.here()
		n, err := c.header(ctx)
		if err != nil {
			return false, err
		}
		h := &c.hdr
		if err := h.check(c.c, c.end-c.pos-int64(n)); err != nil {
			return false, err
		}
		switch {
		case h.typ == pageDict:
			if c.locs != nil { // findDict reads the one in front of them
				return false, fault.New(fault.Corrupt, "the page index says that a page of data is where the dictionary is")
			}
			if err := c.loadDict(ctx, n); err != nil {
				return false, err
			}
		case (h.typ == pageData || h.typ == pageV2) && h.values > 0:
			c.pos += int64(n) + int64(h.comp)
			c.page, c.head, c.left = at, n, int(h.values)
			c.seen += int64(h.values)
			c.next++
			return true, nil
		default: // an index page, or one without values
			c.next++
		}
		c.pos += int64(n) + int64(h.comp)
	}
}

// loadDict reads the dictionary page at pos.
func (c *column) loadDict(ctx context.Context, head int) error {
	if c.dict != nil {
		if c.seen == 0 { // again from the begin
			return nil
		}
		return fault.New(fault.Corrupt, "the column chunk has two dictionaries")
	}
	body, err := c.content(ctx, c.pos, head)
	if err != nil {
		return err
	}
	c.dict, err = c.newDictionary(body, int(c.hdr.values))
	return err
}

// content returns the body of the page whose header, of head bytes, is at pos.
func (c *column) content(ctx context.Context, pos int64, head int) ([]byte, error) {
	h := &c.hdr
	size := int64(head) + int64(h.comp)
	if body := c.out.bytes(pos); body != nil {
		return body, nil
	}
	codec, plain := c.c.codec, 0
	if h.typ == pageV2 {
		plain = int(h.defLen + h.repLen)
		if h.plainBody {
			codec = codecNone
		}
	}
	var comp []byte
	var err error
	if codec != codecNone && c.staged(pos, size, codec) {
		comp, err = c.d.readStage(ctx, c.win, pos, size)
	} else if comp, err = c.win.bytes(ctx, pos, size); c.win.f.fetch == nil && h.typ != pageDict {
		c.win.hint = size + size/16 // the next page is read together with its header
	}
	if err != nil {
		return nil, err
	}
	if unmappable(codec) && c.win.holds(comp) {
		stage := c.d.stageOf(size)
		copy(stage, comp)
		comp = stage
	}
	if len(c.d.stage) > maxStage {
		defer c.d.freeStage()
	}
	comp = comp[head:]
	if h.hasCRC && crc32.ChecksumIEEE(comp) != h.crc {
		return nil, errChecksum
	}
	raw := int(h.raw)
	if codec == codecNone {
		if len(comp) != raw {
			return nil, fault.New(fault.Corrupt, "a page of %d bytes claims %d", len(comp), raw)
		}
		return comp, nil
	}
	c.d.pages++
	put := raw > hugePage && c.d.ahead < maxAhead && h.typ != pageDict
	if h.typ != pageDict {
		c.out.close() // another page
	}
	if put {
		huge.Lock()
		defer huge.Unlock()
	}
	body, err := c.d.pageMemory(c, raw, c.lead())
	if err != nil {
		return nil, err
	}
	copy(body, comp[:plain])
	if raw == plain {
		return body, nil // some writers leave out what is empty
	}
	n, err := decompress(codec, body[plain:], comp[plain:])
	if err != nil {
		return nil, notDecompressed(err)
	}
	if n != raw-plain {
		return nil, fault.New(fault.Corrupt, "a page of %d bytes has %d", raw-plain, n)
	}
	c.win.shrink()
	if put {
		body = c.putPage(pos, body)
	}
	return body, nil
}

// load makes the open page ready to be decoded at the cursor.
func (c *column) load(ctx context.Context) error {
	if c.body != nil {
		return nil
	}
	switch {
	case c.slices.open:
		return c.loadSlice(ctx)
	case c.sliced():
		if err := c.slicePage(ctx); err != nil || c.body != nil {
			return err
		}
		return c.loadSlice(ctx)
	}
	h := &c.hdr
	loaded, err := false, error(nil)
	if c.direct() {
		loaded, err = c.loadDirect(ctx)
	}
	if !loaded && err == nil {
		err = c.loadBody(ctx)
	}
	if err != nil {
		return err
	}
	passed := int(h.values) - c.left
	if passed == 0 {
		return nil
	}
	if c.leaf.maxRep > 0 && !c.rep.Skip(passed) {
		return errLevels
	}
	c.left = int(h.values)
	return c.pass(passed)
}

// loadBody decompresses the open page.
func (c *column) loadBody(ctx context.Context) error {
	body, err := c.content(ctx, c.page.pos, c.head)
	if err != nil {
		return err
	}
	rest, err := c.levels(body)
	if err != nil {
		return err
	}
	c.vals = values{c: c, enc: c.hdr.enc, src: rest}
	c.front = len(body) - len(rest)
	if c.body = body[:len(body):len(body)]; body == nil {
		c.body = []byte{}
	}
	return nil
}

var (
	errLevels   = fault.New(fault.Corrupt, "a page has damaged levels")
	errChecksum = fault.New(fault.Corrupt, "the checksum of a page is wrong")
)

// levels sets the levels of the open page, and returns what is behind them.
func (c *column) levels(body []byte) ([]byte, error) {
	h := &c.hdr
	if h.typ == pageV2 {
		rep, def := body[:h.repLen], body[h.repLen:h.repLen+h.defLen]
		if !c.rep.Reset(rep, uint(bits.Len16(uint16(c.leaf.maxRep)))) || !c.def.Reset(def, uint(bits.Len16(uint16(c.leaf.maxDef)))) {
			return nil, errLevels
		}
		return body[h.repLen+h.defLen:], nil
	}
	var err error
	if c.leaf.maxRep > 0 {
		if body, err = h.levelsV1(&c.rep, h.repEnc, uint(bits.Len16(uint16(c.leaf.maxRep))), body); err != nil {
			return nil, err
		}
	}
	if c.leaf.maxDef > 0 {
		if body, err = h.levelsV1(&c.def, h.defEnc, uint(bits.Len16(uint16(c.leaf.maxDef))), body); err != nil {
			return nil, err
		}
	}
	return body, nil
}

// levelsV1 sets to the levels at the front of body, and returns the rest.
func (h *pageHeader) levelsV1(to *kernel.Hybrid, enc int32, width uint, body []byte) ([]byte, error) {
	switch enc {
	case encRLE:
		if len(body) < 4 {
			return nil, errLevels
		}
		n := int64(binary.LittleEndian.Uint32(body))
		if n > int64(len(body)-4) || !to.Reset(body[4:4+n], width) {
			return nil, errLevels
		}
		return body[4+n:], nil
	case encBitPacked:
		src, dst := kernel.BitPackedSize(int(h.values), width)
		if src > len(body) {
			return nil, errLevels
		}
		run := make([]byte, dst)
		if !kernel.FromBitPacked(run, body[:src], int(h.values), width) || !to.Reset(run, width) {
			return nil, errLevels
		}
		return body[src:], nil
	}
	return nil, fault.New(fault.Unsupported, "levels in encoding %d are not supported", enc)
}

// pass moves the cursor over k levels of the loaded page, whose repetition levels
// are passed already.
func (c *column) pass(k int) error {
	defined := k
	if c.leaf.maxDef > 0 {
		var ok bool
		if defined, ok = c.def.Count(k, uint32(c.leaf.maxDef)); !ok {
			return errLevels
		}
	}
	c.left -= k
	return c.vals.skip(defined)
}

// seek moves the cursor to the begin of row.
func (c *column) seek(ctx context.Context, row int64) error {
	if row < c.row && !c.backTo(&c.slice, c.mark.pos, row) {
		at := c.mark
		if at.row > row {
			at = pagePos{pos: c.c.start}
		}
		c.pos, c.row, c.seen, c.next = at.pos, at.row, at.seen, at.next
		c.mid = at.row > 0
		c.leave()
	}
	if c.locs != nil {
		if !c.sought && c.locs[0].off > c.c.start {
			if err := c.findDict(ctx); err != nil {
				return err
			}
		}
		if k := pageOf(c.locs, row); k >= c.next { // else it is the open one
			if err := c.finish(ctx); err != nil {
				return err
			}
			c.next, c.row = k, c.locs[k].row
			c.mid = false
			c.leave()
		}
	}
	for c.row < row || c.mid {
		if c.left == 0 {
			ok, err := c.open(ctx)
			if err != nil {
				return err
			}
			if !ok {
				if c.row == row {
					return nil
				}
				return c.ends()
			}
		}
		k, begun := c.left, int64(c.left)
		switch {
		case c.leaf.maxRep == 0:
			if c.mid = false; row-c.row < begun {
				if err := c.load(ctx); err != nil {
					return err
				}
				begun = min(row-c.row, int64(c.left))
				k = int(begun)
			}
		case c.hdr.typ == pageV2 && k == int(c.hdr.values) && row-c.row >= int64(c.hdr.rows):
			c.mid, begun = false, int64(c.hdr.rows)
		default:
			if err := c.load(ctx); err != nil {
				return err
			}
			levels, rows, ok := c.rep.Rows(int(min(row-c.row, begun)), c.left)
			if !ok {
				return errLevels
			}
			k, begun = levels, int64(rows)
			c.mid = levels == c.left
		}
		c.row += begun
		if k == c.left { // nothing of the rest is needed
			c.win.hint = 0
			c.left, c.body = 0, nil
			continue
		}
		if err := c.load(ctx); err != nil {
			return err
		}
		if err := c.pass(k); err != nil {
			return err
		}
	}
	return nil
}

// findDict reads the dictionary in front of the indexed pages, if it is there.
func (c *column) findDict(ctx context.Context) error {
	c.pos, c.sought = c.c.start, true
	n, err := c.header(ctx)
	if err != nil || c.hdr.typ != pageDict {
		return err
	}
	if err := c.hdr.check(c.c, c.end-c.pos-int64(n)); err != nil {
		return err
	}
	err = c.loadDict(ctx, n)
	c.win.freeDict()
	c.left, c.body = 0, nil
	return err
}

func (c *column) ends() error {
	return fault.New(fault.Corrupt, "the column ends at row %d of %d", c.row, c.d.g.rows)
}

// take returns rows [row, row+n), or of these the chosen ones, which only a column that can choose may be asked for. The
// caller frees what it returns.
func (c *column) take(ctx context.Context, row int64, n int, keep *chosen) (*leafOut, error) {
	for len(c.ready) > 0 && c.ready[0].row < row { // rows that were not wanted
		c.ready[0].o.free(&account{alloc: c.d.acct.alloc})
		c.ready = c.ready[1:]
	}
	if len(c.ready) > 0 {
		r := c.ready[0]
		if r.row == row && r.n == n {
			c.ready = c.ready[1:]
			c.d.acct.used += r.o.bytes()
			return r.o, nil
		}
		c.dropReady()
	}
	if err := c.seek(ctx, row); err != nil {
		return nil, err
	}
	c.mark, c.slice = c.page, sliceMark{}
	switch {
	case c.left == 0 && !c.slices.more():
		c.mark = c.here()
	case c.slices.open && c.left == 0:
		c.slice = c.slices.sliceMark
		c.slice.rep, c.slice.row = c.rep, c.row
	case c.slices.open:
		c.slice = c.slices.begin
	}
	o, err := c.read(ctx, n, keep)
	if err != nil || c.d.user != c || c.left == 0 {
		return o, err
	}
	return o, c.ahead(ctx, row+int64(n), n, o)
}

// ahead decodes what follows first, in the same number of rows, out of the page that other
// columns are about to overwrite.
func (c *column) ahead(ctx context.Context, row int64, n int, first *leafOut) error {
	acct := &c.d.acct
	used, limit := acct.used, acct.limit
	defer func() { acct.used, acct.limit = used, limit }()
	most := c.d.ahead / c.d.sharing()
	total := first.bytes()
	acct.limit = used + most
	for page := c.page.pos; c.left > 0 && c.page.pos == page && total < most; {
		k := int(min(int64(n), c.d.g.rows-row))
		if c.leaf.maxRep == 0 && k > c.left {
			return nil // these rows end in the next page
		}
		if k == 0 {
			return nil
		}
		o, err := c.read(ctx, k, nil)
		if err != nil {
			o.free(acct)
			c.dropReady()
			return nil // not wanted yet: the read that does will report it
		}
		c.ready = append(c.ready, ready{row, k, o})
		total += o.bytes()
		row += int64(k)
	}
	return nil
}

func (c *column) dropReady() {
	for _, r := range c.ready {
		r.o.free(&c.d.acct)
	}
	c.ready = nil
}

func (c *column) close() {
	c.dropReady()
	c.dropSlices()
	c.d.freePage(c)
	c.out.close()
	c.dict.free(c.d.acct.alloc)
	c.dict = nil
	c.win.close()
}
