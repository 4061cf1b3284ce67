package parquetio

import (
	"context"
	"errors"
	"io"
	"sort"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/file"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/penstock-data/penstock/internal/fault"
)

// decoder is the seam behind which values are decoded: rows of one row group,
// top-level columns as chosen when it was made. Not safe for concurrent use.
type decoder interface {
	// read returns the columns of rows [row, row+n), which belong to the ranges
	// that the decoder was made for; rows never go back, except that the last read
	// may be repeated with fewer rows after an error of type errTooLarge.
	// It takes at most limit bytes beyond the pages being read.
	read(ctx context.Context, row int64, n int, limit int64) ([]arrow.Array, error)
	close()
}

// Layout of the file that arrow-go sees: every column has a span of its own,
// which begins with the dictionary; data page i begins at slot i. What follows a
// page in a sequential read is the next page.
const (
	slotBits = 31 // a page and its header are smaller
	bufBytes = 16 << 10
)

// virtual is one column's part of that file.
type virtual struct {
	pageReader
	base  int64 // of the span
	slots int64
	dict  int64     // slots of the dictionary: 0 or 1
	pages []pageLoc // nil: not known, no seeking
	more  bool      // others follow behind pages

	// The page being served: head and body at [at, at+len).
	at   int64
	head []byte
	body []byte
	gen  uint64 // of the decompressor, when body was made
	own  bool   // body is of rowStart, not of the decompressor
	from int64  // file offset of the page

	// After a seek the dictionary is read in between: where data pages go on.
	resumeAt     int64
	resumePos    int64
	resumeValues int64
}

// pqDecoder decodes with arrow-go's pqarrow. arrow-go opens a file that exists
// only here: of one row group, with the chosen pages, checked and uncompressed.
type pqDecoder struct {
	s      *fileSchema
	g      *rowGroup
	arena  *arena
	dec    decompressor
	cols   []*virtual // by base
	pages  map[int][]pageLoc
	fields []*pqField
	fr     *pqarrow.FileReader
	index  []byte // offset indexes of all columns, at indexBase
	ctx    context.Context
}

type pqField struct {
	i     int // of the schema
	cols  []*virtual
	flat  bool  // no lists: pages can be entered anywhere
	index bool  // all leaves have an offset index
	known int64 // rows that it covers
	cr    *pqarrow.ColumnReader
	row   int64 // next to be decoded
}

const indexBase = 1 << 61

// newDecoder prepares to decode fields of g. wins has a window for every leaf of
// these fields, pages the offset indexes that are known; of those in known the list covers
// only so many rows. The decoder owns wins.
func newDecoder(s *fileSchema, g *rowGroup, fields []int, wins map[int]*window, pages map[int][]pageLoc, known map[int]int64, alloc memory.Allocator) (_ *pqDecoder, err error) {
	d := &pqDecoder{s: s, g: g, pages: pages, arena: newArena(alloc), dec: decompressor{alloc: alloc}}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	defer recovered(&err, "the row group cannot be opened")
	next := int64(1) << slotBits
	for _, i := range fields {
		f := &pqField{i: i, flat: !s.fields[i].repeated, index: true, known: g.rows}
		for _, l := range s.fields[i].leaves {
			c := &g.chunks[l]
			v := &virtual{pageReader: pageReader{
				win: wins[l], c: c, leaf: &s.leaves[l], dec: &d.dec, pos: c.start, end: c.start + c.size,
			}, base: next, pages: pages[l]}
			if c.flags&hasDict != 0 || v.pages != nil && v.pages[0].off > c.start {
				v.dict = 1
			}
			v.slots = v.dict + int64(max(len(v.pages), 1))
			if rows, ok := known[l]; ok || v.pages == nil {
				v.slots += 1 << 16 // pages follow each other for as long as they will
				v.more = true
				f.known = min(f.known, rows)
			}
			f.index = f.index && v.pages != nil
			next += (v.slots + 1) << slotBits
			if next <= 0 || next >= indexBase {
				return nil, fault.New(fault.Unsupported, "the row group has too many pages")
			}
			d.cols = append(d.cols, v)
			f.cols = append(f.cols, v)
		}
		d.fields = append(d.fields, f)
	}
	return d, d.open()
}

// open builds the metadata of the virtual file and arrow-go's reader of it.
func (d *pqDecoder) open() error {
	md, err := d.s.base.Subset(nil)
	if err != nil {
		return err
	}
	md.NumRows = d.g.rows
	md.SetSourceFileSize(1 << 62)
	rg := newLike(md.RowGroups)
	rg.NumRows = d.g.rows
	byLeaf := map[*leaf]*virtual{}
	for _, v := range d.cols {
		byLeaf[v.leaf] = v
	}
	for i := range d.s.leaves {
		cc := newLike(rg.Columns)
		cc.MetaData = newOf(cc.MetaData)
		m := cc.MetaData
		setEnum(&m.Type, int64(d.s.leaves[i].physical))
		if v := byLeaf[&d.s.leaves[i]]; v != nil {
			m.NumValues = v.c.values
			m.DataPageOffset = v.base + v.dict<<slotBits
			m.TotalCompressedSize = v.slots << slotBits
			m.TotalUncompressedSize = v.c.raw
			if v.dict > 0 {
				m.DictionaryPageOffset = newOf(m.DictionaryPageOffset)
				*m.DictionaryPageOffset = v.base
			}
			if v.pages != nil {
				at := int64(indexBase + len(d.index))
				n := len(d.index)
				d.index = v.encodeIndex(d.index)
				size := int32(len(d.index) - n)
				cc.OffsetIndexOffset, cc.OffsetIndexLength = &at, &size
			}
		}
		rg.Columns = append(rg.Columns, cc)
	}
	md.RowGroups = append(md.RowGroups, rg)
	props := parquet.NewReaderProperties(d.arena)
	props.BufferedStreamEnabled = true
	props.BufferSize = bufBytes
	props.MaxCompressedPageSize = maxPage + 1
	props.MaxUncompressedPageSize = maxPage + 1
	pf, err := file.NewParquetReader(d, file.WithReadProps(props), file.WithMetadata(md))
	if err != nil {
		return err
	}
	if d.fr, err = pqarrow.NewFileReader(pf, pqarrow.ArrowReadProperties{BatchSize: 1}, d.arena); err != nil {
		return err
	}
	d.fr.Manifest = d.s.manifest
	return nil
}

// newLike and newOf make values of types that cannot be named here.
func newLike[T any]([]*T) *T { return new(T) }
func newOf[T any](*T) *T     { return new(T) }

func setEnum[T ~int32 | ~int64](to *T, v int64) { *to = T(v) }

// encodeIndex appends the offset index of the virtual pages.
func (v *virtual) encodeIndex(b []byte) []byte {
	w := &thriftWriter{b: b}
	w.list(1, tStruct, len(v.pages))
	for i, p := range v.pages {
		w.last = 0
		w.i64(1, v.base+(v.dict+int64(i))<<slotBits)
		w.i32(2, p.size)
		w.i64(3, p.row)
		w.b = append(w.b, tStop)
	}
	return append(w.b, tStop)
}

// read decodes field by field. A panic or error leaves nothing allocated after
// close.
func (d *pqDecoder) read(ctx context.Context, row int64, n int, limit int64) (out []arrow.Array, err error) {
	d.ctx = ctx
	d.arena.setLimit(limit)
	defer func() {
		d.ctx = nil
		if err != nil {
			for _, a := range out {
				a.Release()
			}
			out = nil
		}
	}()
	for _, f := range d.fields {
		if err := ctx.Err(); err != nil {
			return out, fault.WithCode(fault.Canceled, context.Cause(ctx))
		}
		a, err := d.column(f, row, n)
		if err != nil {
			return out, fault.Wrap(err, fault.Place{Column: d.s.arrow.Field(f.i).Name})
		}
		out = append(out, a)
	}
	return out, nil
}

func (d *pqDecoder) column(f *pqField, row int64, n int) (_ arrow.Array, err error) {
	defer recovered(&err, "damaged column")
	if err := d.seek(f, row, int64(n)); err != nil {
		return nil, err
	}
	data, err := d.next(f, n)
	if err != nil {
		return nil, err
	}
	if data.Len() != n {
		defer data.Release()
		return nil, fault.New(fault.Corrupt, "the column ends at row %d of %d", f.row-int64(n)+int64(data.Len()), d.g.rows)
	}
	if err := checkData(data, 0); err != nil {
		data.Release()
		return nil, err
	}
	data = d.arena.adopt(data)
	defer data.Release()
	if len(data.Children()) > 0 {
		plain := retype(data, d.s.arrow.Field(f.i).Type)
		defer plain.Release()
		data = plain
	}
	return array.MakeFromData(data), nil
}

// retype gives nested data the type t, which differs in metadata of inner fields.
func retype(d arrow.ArrayData, t arrow.DataType) arrow.ArrayData {
	var inner []arrow.DataType
	switch t := t.(type) {
	case *arrow.StructType:
		for _, f := range t.Fields() {
			inner = append(inner, f.Type)
		}
	case arrow.ListLikeType:
		inner = []arrow.DataType{t.Elem()}
	}
	if len(inner) != len(d.Children()) {
		d.Retain()
		return d
	}
	kids := make([]arrow.ArrayData, len(inner))
	for i, k := range d.Children() {
		kids[i] = retype(k, inner[i])
		defer kids[i].Release()
	}
	return array.NewData(t, d.Len(), d.Buffers(), kids, d.NullN(), d.Offset())
}

// next decodes n rows of a field into one array.
func (d *pqDecoder) next(f *pqField, n int) (arrow.ArrayData, error) {
	row := f.row
	f.row = broken // until all went well
	chunked, err := f.cr.NextBatch(int64(n))
	if err != nil {
		if chunked != nil {
			chunked.Release()
		}
		if f.cols[0].leaf.physical == parquet.Types.Int96 && errors.Is(err, arrow.ErrInvalid) {
			return nil, fault.New(fault.Unsupported, "%w", err)
		}
		return nil, decodeError(err)
	}
	defer chunked.Release()
	f.row = row + int64(n)
	switch cs := chunked.Chunks(); len(cs) {
	case 0:
		a := array.MakeArrayOfNull(d.arena, chunked.DataType(), 0)
		defer a.Release()
		a.Data().Retain()
		return a.Data(), nil
	case 1:
		cs[0].Data().Retain()
		return cs[0].Data(), nil
	default:
		a, err := array.Concatenate(cs, d.arena)
		if err != nil {
			f.row = broken
			return nil, err
		}
		defer a.Release()
		a.Data().Retain()
		return a.Data(), nil
	}
}

// decodeError gives what arrow-go reports a code.
func decodeError(err error) error {
	if fault.CodeOf(err) != fault.Unknown {
		return err
	}
	if errors.Is(err, arrow.ErrNotImplemented) {
		return fault.New(fault.Unsupported, "%w", err)
	}
	return fault.New(fault.Corrupt, "%w", err)
}

// broken is the row of a field that must be opened again.
const broken = 1 << 62

// seek makes row the next one of f: through the offset index where there is one,
// else by decoding and dropping what is before, step rows at a time.
func (d *pqDecoder) seek(f *pqField, row, step int64) error {
	if f.cr == nil || row < f.row {
		if err := d.reopen(f); err != nil {
			return err
		}
	}
	if row == f.row {
		return nil
	}
	if to := d.entry(f, row); to > f.row {
		f.row = broken
		if err := f.cr.SeekToRow(to); err != nil {
			return decodeError(err)
		}
		f.row = to
	}
	for f.row < row {
		n := min(row-f.row, step)
		data, err := d.next(f, int(n))
		if err != nil {
			return err
		}
		got := data.Len()
		data.Release()
		if int64(got) != n {
			return fault.New(fault.Corrupt, "the column ends at row %d of %d", f.row-n+int64(got), d.g.rows)
		}
	}
	return nil
}

// entry is the last row, not after row, at which decoding of f can begin. In
// lists that is the begin of a page in every leaf: arrow-go cannot skip inside.
func (d *pqDecoder) entry(f *pqField, row int64) int64 {
	if !f.index {
		return 0
	}
	row = min(row, f.known-1)
	if f.flat {
		return row
	}
	return commonStart(d.s.fields[f.i].leaves, d.pages, row)
}

// reopen begins f again at row 0.
func (d *pqDecoder) reopen(f *pqField) error {
	if f.cr != nil {
		f.cr.Release()
		f.cr = nil
	}
	leaves := map[int]bool{}
	for _, l := range d.s.fields[f.i].leaves {
		leaves[l] = true
	}
	cr, err := d.fr.GetFieldReader(context.Background(), f.i, leaves, []int{0})
	if err != nil {
		return decodeError(err)
	}
	if cr == nil {
		return fault.New(fault.Unsupported, "the column has no values")
	}
	f.cr, f.row = cr, 0
	return nil
}

func (d *pqDecoder) close() {
	for _, f := range d.fields {
		if f.cr != nil {
			func() {
				defer func() { _ = recover() }() // the arena frees what this does not
				f.cr.Release()
			}()
			f.cr = nil
		}
	}
	for _, v := range d.cols {
		v.win.close()
	}
	d.dec.close()
	d.arena.close()
}

// Seek, for arrow-go, which needs it only to find footers.
func (d *pqDecoder) Seek(int64, int) (int64, error) {
	return 0, errors.New("not seekable")
}

// ReadAt serves the virtual file.
func (d *pqDecoder) ReadAt(p []byte, off int64) (int, error) {
	if off >= indexBase {
		return copy(p, d.index[off-indexBase:]), nil
	}
	i := sort.Search(len(d.cols), func(i int) bool { return d.cols[i].base > off }) - 1
	if i < 0 {
		return 0, io.EOF
	}
	return d.cols[i].readAt(d, p, off)
}

// readAt fills p with the rest of one page, or less. arrow-go peeks at headers
// with more than they take; it is stopped at the end of a page, which shows by a
// buffer that is not empty, so that one page is held at a time.
func (v *virtual) readAt(d *pqDecoder, p []byte, off int64) (n int, err error) {
	end := v.at + int64(len(v.head)+len(v.body))
	if off < v.at || off >= end {
		next := off == end && len(v.head) > 0
		if !next && off == v.resumeAt {
			next, v.pos, v.values = true, v.resumePos, v.resumeValues
		}
		if next && len(p) < bufBytes {
			return 0, io.EOF
		}
		if err := v.load(d, off, next); err != nil {
			return 0, err
		}
	} else if !v.own && v.gen != d.dec.gen {
		// Another column used the scratch memory in between.
		at := v.at
		if v.pos = v.from; v.values >= 0 && v.hdr.typ != pageDict {
			v.values -= int64(v.hdr.values)
		}
		if err := v.load(d, at, true); err != nil {
			return 0, err
		}
	}
	k := off - v.at
	if k < int64(len(v.head)) {
		n = copy(p, v.head[k:])
		k += int64(n)
	}
	if n < len(p) && k >= int64(len(v.head)) {
		n += copy(p[n:], v.body[k-int64(len(v.head)):])
	}
	return n, nil
}

// load makes the page at off the one being served: the next one, or the one that
// the slot says.
func (v *virtual) load(d *pqDecoder, off int64, next bool) error {
	if !next {
		slot := (off - v.base) >> slotBits
		switch {
		case off != v.base+slot<<slotBits:
			return fault.New(fault.Internal, "read at offset %d inside a page", off-v.base)
		case slot == 0:
			v.resumeAt, v.resumePos, v.resumeValues = v.at+int64(len(v.head)+len(v.body)), v.pos, v.values
			v.pos, v.values = v.c.start, 0
		case v.pages != nil:
			p := &v.pages[slot-v.dict]
			v.pos, v.values = p.off, -1
			if p.mid {
				h, body := rowStart(v.leaf)
				d.arena.allow(3 * bufBytes)
				v.at, v.head, v.body, v.own = off, h.encode(v.head[:0]), body, true
				return nil
			}
		default: // the first data page, behind the dictionary
			v.pos, v.values = v.c.start, 0
			if _, err := v.header(d.ctx); err != nil {
				return err
			}
			if v.hdr.typ == pageDict {
				if _, _, err := v.pageReader.next(d.ctx); err != nil {
					return err
				}
			}
		}
	} else if v.pages != nil && !v.more && v.pos != v.c.start {
		i := sort.Search(len(v.pages), func(i int) bool { return v.pages[i].off >= v.pos })
		if i == len(v.pages) {
			return io.EOF
		}
		v.pos = v.pages[i].off
	}
	v.from = v.pos
	body, ok, err := v.pageReader.next(d.ctx)
	if err != nil {
		return err
	}
	if !ok {
		return io.EOF
	}
	d.arena.allow(2*int64(len(body)) + 3*bufBytes)
	v.at, v.body, v.gen, v.own = off, body, d.dec.gen, false
	v.hdr.raw = int32(len(body))
	v.head = v.hdr.encode(v.head[:0])
	return nil
}

// checkData refuses arrays that are not consistent: a damaged file may have
// columns of a struct, or values of a list, that do not fit.
func checkData(d arrow.ArrayData, depth int) error {
	bad := fault.New(fault.Corrupt, "the column's nested values do not fit together")
	end := d.Offset() + d.Len()
	kids := d.Children()
	switch t := d.DataType().(type) {
	case *arrow.StructType:
		for _, k := range kids {
			if k.Len() < end {
				return bad
			}
		}
	case *arrow.ListType, *arrow.MapType:
		if d.Len() > 0 {
			offs := arrow.Int32Traits.CastFromBytes(d.Buffers()[1].Bytes())
			if len(offs) <= end || int(offs[end]) > kids[0].Len() || offs[d.Offset()] < 0 {
				return bad
			}
		}
	case *arrow.LargeListType:
		if d.Len() > 0 {
			offs := arrow.Int64Traits.CastFromBytes(d.Buffers()[1].Bytes())
			if len(offs) <= end || int(offs[end]) > kids[0].Len() || offs[d.Offset()] < 0 {
				return bad
			}
		}
	case *arrow.FixedSizeListType:
		if kids[0].Len() < end*int(t.Len()) {
			return bad
		}
	}
	for _, k := range kids {
		if err := checkData(k, depth+1); err != nil {
			return err
		}
	}
	return nil
}
