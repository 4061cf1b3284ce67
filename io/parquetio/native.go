package parquetio

import (
	"context"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/fileset"
)

const (
	maxKept  = 32 << 20 // bytes of decompressed pages that the columns of a decoder keep together, unless told to hold less
	maxAhead = 32 << 20 // bytes that columns without a page of their own decode ahead, together; the same
)

// decoder decodes columns of one row group, chosen when it is made, into Arrow
// arrays. Not safe for concurrent use.
//
// Every leaf is a column with a cursor, which goes over its pages; the leaves of
// a nested field are put together by their levels afterwards (nest.go).
//
// Memory comes from the allocator alone. A column keeps its page decompressed
// while it is used, as long as all pages of the decoder stay within keep.
// Columns beyond that share one page: what it held for another column is
// decompressed again. So that this is seldom, they decode rows ahead, within ahead.
type decoder struct {
	s      *fileSchema
	g      *rowGroup
	acct   account
	growth *fileset.Growth
	cols   []*column
	fields []decodedField

	keep    int64 // bytes of pages that columns may keep together
	ahead   int64 // bytes that columns may decode ahead together
	kept    int64 // that they do
	shared  []byte
	stage   []byte  // a compressed page, while it is decompressed
	user    *column // whose page is in shared
	sharers int     // columns that ever used shared
	pages   int64   // decompressed, those without values too

	// Scratch, in Go memory: blocks of some thousand values.
	tmp, dense, texts, defs, some []byte
	whole                         []byte // values of which some are chosen
	chosen, valued                []uint64
	valid, keptValid              []uint64
	offs                          []int32
	idx, codes                    []uint32
	outs                          []*leafOut
	lookup                        lookup
}

// decodedField is a top-level column.
type decodedField struct {
	i    int // of the schema
	cols []*column
}

// errTooLarge says that a read would take more memory than it may.
type errTooLarge struct{ want, limit int64 }

func (e errTooLarge) Error() string {
	return fmt.Sprintf("decoding takes more than %d bytes of memory", e.limit)
}

// account bounds the memory of the arrays being decoded. Pages and
// dictionaries, whose sizes have been checked, do not count.
type account struct {
	alloc       memory.Allocator
	used, limit int64
	made        int64 // bytes of arrays since growth was told, also those that were given back
}

// get returns n bytes with undefined contents.
func (a *account) get(n int) ([]byte, error) {
	if int64(n) > a.limit-a.used || n < 0 {
		return nil, errTooLarge{int64(n), a.limit}
	}
	a.used += int64(n)
	a.made += int64(n)
	return a.alloc.Allocate(n), nil
}

func (a *account) put(b []byte) {
	if cap(b) > 0 {
		a.used -= int64(len(b))
		a.alloc.Free(b)
	}
}

// grow makes *b at least want bytes long, of which used are kept.
func (a *account) grow(b *[]byte, used, want int) error {
	if want <= len(*b) {
		return nil
	}
	if len(*b) > 0 {
		want = max(want, len(*b)+len(*b)/2)
	}
	nb, err := a.get(want)
	if err != nil {
		return err
	}
	copy(nb, (*b)[:min(used, len(*b))])
	a.put(*b)
	*b = nb
	return nil
}

// buffer makes of b, of which n bytes are used, a buffer of an array; nil if b is nil.
// The batch's memory is no more than a quarter larger than what it holds.
func (a *account) buffer(b *[]byte, n int) *memory.Buffer {
	m := *b
	if m == nil {
		return nil
	}
	if spare := len(m) - n; spare > 4<<10 && spare > len(m)/4 {
		small := a.alloc.Allocate(n)
		copy(small, m[:n])
		a.put(m)
		m = small
	} else {
		a.used -= int64(len(m))
	}
	*b = nil
	out := memory.NewBufferWithAllocator(m, a.alloc)
	out.ResizeNoShrink(n)
	return out
}

// bitmap does so for n bits; those behind become 0.
func (a *account) bitmap(b *[]byte, n int) *memory.Buffer {
	if *b != nil && n%8 != 0 {
		(*b)[n/8] &= 1<<(n%8) - 1
	}
	return a.buffer(b, (n+7)/8)
}

// newDecoder prepares to decode fields of g. wins has a window for every leaf of
// these fields, pages the offset indexes that are known. The decoder owns wins once it
// is returned.
func newDecoder(s *fileSchema, g *rowGroup, fields []int, wins map[int]*window, pages map[int][]pageLoc, alloc memory.Allocator) (*decoder, error) {
	d := &decoder{s: s, g: g, acct: account{alloc: alloc}, keep: maxKept, ahead: maxAhead}
	for _, i := range fields {
		f := decodedField{i: i}
		indexed := true
		for _, l := range s.fields[i].leaves {
			indexed = indexed && pages[l] != nil
		}
		for _, l := range s.fields[i].leaves {
			lf := &s.leaves[l]
			lay, err := layoutOf(lf)
			if err != nil {
				return nil, fault.Wrap(err, fault.Place{Column: lf.name})
			}
			c := &column{
				pageReader: pageReader{win: wins[l], c: &g.chunks[l], leaf: lf, pos: g.chunks[l].start, end: g.chunks[l].start + g.chunks[l].size},
				d:          d, layout: lay,
			}
			if indexed { // else the window holds all, and pages are passed by their headers
				c.locs = pages[l]
			}
			c.setWay(&s.fields[i].root)
			c.mark = c.here()
			d.cols = append(d.cols, c)
			f.cols = append(f.cols, c)
		}
		d.fields = append(d.fields, f)
	}
	return d, nil
}

// read returns the columns of rows [row, row+n), which belong to the ranges
// that the decoder was made for; rows never go back, except that the last read
// may be repeated with fewer rows after an error of type errTooLarge.
// It takes at most limit bytes beyond the pages being read.
func (d *decoder) read(ctx context.Context, row int64, n int, limit int64) (out []arrow.Array, err error) {
	return d.readFields(ctx, nil, row, n, nil, limit)
}

// readFields does so for some of the fields (nil: all) and some of the rows. What holds of rows holds of every
// field by itself.
func (d *decoder) readFields(ctx context.Context, which []int, row int64, n int, keep *chosen, limit int64) (out []arrow.Array, err error) {
	d.acct.used, d.acct.limit = 0, limit
	if d.keep < maxKept {
		defer d.freeStage()
	}
	defer func() {
		if err != nil {
			for _, a := range out {
				a.Release()
			}
			out = nil
		}
	}()
	k := len(which)
	if which == nil {
		k = len(d.fields)
	}
	out = make([]arrow.Array, 0, k)
	for i := range k {
		if which != nil {
			i = which[i]
		}
		f := &d.fields[i]
		if err := ctx.Err(); err != nil {
			return out, fault.WithCode(fault.Canceled, context.Cause(ctx))
		}
		a, err := d.field(ctx, f, row, n, keep)
		for _, c := range f.cols {
			c.out.forget()
		}
		if err != nil {
			return out, fault.Wrap(err, fault.Place{Column: d.s.arrow.Field(f.i).Name})
		}
		out = append(out, a)
		d.acct.made += fileset.Hollow(a)
	}
	if len(d.cols) > 0 {
		err = d.cols[0].win.f.unchanged()
	}
	if err == nil {
		err = d.growth.Add(int64(n), d.acct.made)
		d.acct.made = 0
	}
	return out, err
}

// field decodes n rows of a top-level column, or of these the chosen ones.
func (d *decoder) field(ctx context.Context, f *decodedField, row int64, n int, keep *chosen) (a arrow.Array, err error) {
	late := keep != nil && !d.chooses(f)
	err = f.use(func() (err error) {
		if late {
			a, err = d.decodeField(ctx, f, row, n, nil)
		} else {
			a, err = d.decodeField(ctx, f, row, n, keep)
		}
		return err
	})
	if err == nil && late {
		all := a
		defer all.Release()
		a, err = keep.of(all, &d.acct)
	}
	if err != nil && a != nil {
		a.Release()
		a = nil
	}
	return a, err
}

func (d *decoder) decodeField(ctx context.Context, f *decodedField, row int64, n int, keep *chosen) (_ arrow.Array, err error) {
	defer recovered(&err, "the column")
	outs := scratch(&d.outs, len(f.cols))
	defer func() {
		for k, o := range outs {
			o.free(&d.acct)
			f.cols[k].spare, outs[k] = o, nil
		}
	}()
	for k, c := range f.cols {
		if outs[k], err = c.take(ctx, row, n, keep); err != nil {
			return nil, err
		}
	}
	nest := assembly{acct: &d.acct, cols: f.cols, outs: outs}
	data, err := nest.build(&d.s.fields[f.i].root, d.s.arrow.Field(f.i).Type)
	if err != nil {
		return nil, err
	}
	defer data.Release()
	if data.Len() != keep.count(n) {
		return nil, fault.New(fault.Corrupt, "the column's nested values do not fit together")
	}
	return array.MakeFromData(data), nil
}

// pageSlack is what decompress may write behind a page.
const pageSlack = 16

// pageMemory returns n bytes for a page of c, with a capacity of pageSlack more: its own, or those that are shared.
// What is lead bytes behind the begin of its own is at a multiple of 64.
func (d *decoder) pageMemory(c *column, n, lead int) ([]byte, error) {
	if int64(n) > d.growth.Row() {
		return nil, d.growth.LargeRow("a page claims to decompress to")
	}
	if d.user == c {
		d.user = nil
	}
	d.acct.made += int64(n)
	lead = -lead & 63
	want := lead + n + pageSlack
	if want <= len(c.mem) && c.lent == nil {
		return c.mem[lead : lead+n : want], nil
	}
	if n < 4<<20 { // the next may be a little larger
		want = (want + n/8 + 4095) &^ 4095
	}
	d.freePage(c)
	if d.kept+int64(want) <= d.keep {
		c.mem = d.acct.alloc.Allocate(want)
		d.kept += int64(want)
		return c.mem[lead : lead+n : lead+n+pageSlack], nil
	}
	if !c.sharer {
		c.sharer = true
		d.sharers++
	}
	if d.user != nil {
		d.user.body = nil
	}
	if len(d.shared) < n+pageSlack {
		if d.shared != nil {
			d.acct.alloc.Free(d.shared)
		}
		d.shared = d.acct.alloc.Allocate(n + pageSlack)
	}
	d.user = c
	return d.shared[: n : n+pageSlack], nil
}

// sharing is how many columns use the shared page: those that did, and those that have not read a page yet for which there may be no room.
func (d *decoder) sharing() (n int64) {
	for _, c := range d.cols {
		if c.sharer || c.mem == nil && c.c.codec != codecNone && c.c.raw > d.keep-d.kept {
			n++
		}
	}
	return n // at least that of who asks
}

// freePage gives back the memory of c's page.
func (d *decoder) freePage(c *column) {
	if c.mem != nil {
		d.kept -= int64(len(c.mem))
		if c.lent != nil {
			c.lent.Release()
			c.lent = nil
		} else {
			d.acct.alloc.Free(c.mem)
		}
		c.mem = nil
	}
	if d.user == c {
		d.user = nil
	}
	c.body = nil
}

// scratch returns *b with a length of n.
func scratch[T any](b *[]T, n int) []T {
	if cap(*b) < n {
		*b = make([]T, n)
	}
	return (*b)[:n]
}

func (d *decoder) close() {
	for _, c := range d.cols {
		c.close()
	}
	d.freeShared()
}
