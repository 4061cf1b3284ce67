package csvio

import (
	"bytes"
	"cmp"
	"context"
	"io"
	"slices"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// Open checks the file's columns against the table's.
func (t *table) Open(ctx context.Context, i int, o *driver.ScanOptions) (driver.Reader, error) {
	r, err := t.open(ctx, i, o.WithDefaults())
	if err != nil {
		return nil, fault.Wrap(err, fault.Place{File: t.splits[i].File})
	}
	return r, nil
}

func (t *table) open(ctx context.Context, i int, o driver.ScanOptions) (*reader, error) {
	if ctx.Err() != nil {
		return nil, fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
	if err := fileset.CheckBytes(&o, t.Offsets(i), &t.splits[i]); err != nil {
		return nil, err
	}
	file := t.parts[i].File
	h, err := t.head(ctx, file)
	if err != nil {
		return nil, err
	}
	if off := t.parts[i].Range.Off; off > 0 && h.data > off && !t.set.Bytewise(t.parts[i]) { // data is in bytes of the decoded text
		return nil, fault.New(fault.Unsupported, "the header and what is before it are longer than a split, of a file in %s; set split_bytes to more than %d", t.Encoding, h.data)
	}
	fields := make([]arrow.Field, len(h.names))
	for k, n := range h.names {
		at := t.file.FieldIndices(n)
		switch {
		case len(at) > 0:
			fields[k] = t.file.Field(at[0])
		case t.IgnoreExtra:
			fields[k] = arrow.Field{Name: n, Type: arrow.Null}
		default:
			return nil, fault.New(fault.Invalid, "the column is not in the files that the schema was made from; set ignore_extra to leave it out").
				At(fault.Place{Column: n})
		}
	}
	ad, err := t.set.Adapter(file, t.schema, arrow.NewSchema(fields, nil), o.Columns, o.Predicate, 0)
	if err != nil {
		return nil, err
	}
	r := &reader{t: t, split: i, ad: ad, o: o, left: -1, from: o.FromRow, data0: h.data, fields: len(fields)}
	if ad.Never {
		r.err = io.EOF
	}
	if o.Limit > 0 && len(o.Predicate) == 0 { // of rows that are handed out
		r.left = o.Limit
	}
	r.tok = tokenizer{dialect: h.dialect, missing: t.AllowMissing, places: o.Offsets}
	r.want, r.fixed = make([]bool, len(fields)), ad.RowBytes()
	k := 0
	for _, c := range ad.FileColumns { // in the order of names
		for h.names[k] != c {
			k++
		}
		r.want[k] = true
		f := fields[k]
		if grows(f.Type) {
			r.vars = append(r.vars, len(r.cols))
			r.fixed += 4
		} else {
			r.fixed += int64(f.Type.(arrow.FixedWidthDataType).BitWidth()+7) / 8
		}
		r.cols = append(r.cols, f)
	}
	r.schema = arrow.NewSchema(r.cols, nil)
	if !t.Multiline { // records are lines, which are skipped without a look inside
		r.least, r.skipped = t.parts[i].Range.Off+o.FromByte, o.FromRow
		r.from = 0
	}
	if r.from == 0 {
		r.tok.setWant(r.want, r.vars, r.fixed)
	} else {
		r.tok.setWant(make([]bool, len(fields)), nil, 0)
	}
	r.growth = t.set.TextGrowth(t.parts[i])
	r.chunks = t.set.OpenChunks(ctx, t.parts[i], 0, &o)
	r.chunks.SetLineEnd(h.eol)
	return r, nil
}

// reader is one pass over a split. A chunk of lines becomes segments, each a
// record of at most one batch, from which runs without bad rows are handed out.
type reader struct {
	t      *table
	split  int
	o      driver.ScanOptions
	ad     *fileset.Adapter
	chunks *fileset.Chunks
	growth *fileset.Growth
	tok    tokenizer
	want   []bool
	vars   []int
	fixed  int64
	cols   []arrow.Field // of the file, wanted, in the file's order
	schema *arrow.Schema
	data0  int64 // offset of the first record in the file
	fields int   // that a record has

	data []byte // of the chunk, from the next record on
	off  int64  // of data in the file
	last bool   // no chunk follows
	utf8 bool
	line int64 // number of data's first line in the file, from 1; 0: unknown, as the split does not begin the file
	row  int64 // split position of the next record
	from int64 // records still to be skipped by tokenizing them

	// Lines are passed over whose record has a lower number, or begins before byte least of the file.
	skipped, least int64

	left int64 // rows that the limit still allows; -1: no limit

	rec   arrow.RecordBatch // segment being handed out; nil: none
	at    int64             // position in rec of the next row
	first int64             // split position of rec's first row
	bad   []badRow          // of rec, not yet reported
	offs  []int64           // where rec's rows begin in the split; nil unless asked for
	err   error
}

func (r *reader) Next(ctx context.Context) (driver.Batch, error) {
	if r.err == nil && ctx.Err() != nil {
		r.fail(fault.WithCode(fault.Canceled, context.Cause(ctx)))
	}
	for r.err == nil {
		if r.rec == nil {
			if r.left == 0 {
				r.fail(io.EOF)
			} else if err := r.segment(ctx); err != nil {
				r.fail(err)
			}
			continue
		}
		end := r.rec.NumRows()
		if len(r.bad) > 0 {
			end = int64(r.bad[0].row)
		}
		if r.at < end {
			return r.hand(end), nil
		}
		if len(r.bad) == 0 {
			r.rec.Release()
			r.rec = nil
			continue
		}
		e := r.bad[0].err.At(fault.Place{File: r.t.splits[r.split].File, RowGroup: fault.N(r.t.splits[r.split].Index), Row: fault.N(r.first + r.at)})
		var err error = e
		if r.o.OnBadRow != nil {
			err = r.o.OnBadRow(e)
		}
		if err != nil {
			r.fail(err)
		}
		r.at++
		r.bad = r.bad[1:]
	}
	return driver.Batch{}, r.err
}

// hand gives out rows of rec up to end.
func (r *reader) hand(end int64) driver.Batch {
	if r.left >= 0 {
		end = min(end, r.at+r.left)
		r.left -= end - r.at
	}
	b := driver.Batch{Row: r.first + r.at}
	if r.offs != nil {
		b.Offsets = r.offs[r.at:end:end]
	}
	if r.at == 0 && end == r.rec.NumRows() {
		b.Record = r.rec
		r.rec = nil
	} else {
		b.Record = r.rec.NewSlice(r.at, end)
		if r.at = end; r.left == 0 {
			r.rec.Release()
			r.rec = nil
		}
	}
	r.o.Stats.Rows.Add(b.Record.NumRows())
	return b
}

func (r *reader) fail(err error) {
	r.err = err
	if r.rec != nil {
		r.rec.Release()
		r.rec = nil
	}
}

// segment makes the next rec; there may be none if only skipped records were left in the chunk.
func (r *reader) segment(ctx context.Context) error {
	if len(r.data) == 0 {
		if err := r.chunk(ctx); err != nil {
			return err
		}
		if !r.tok.multiline && r.skip() {
			return nil
		}
	}
	rows := int64(r.o.BatchRows)
	if r.from > 0 {
		rows = min(r.from, 1<<20)
	} else if r.left >= 0 && r.o.OnBadRow == nil {
		rows = min(rows, r.left)
	}
	next, more := r.tok.scan(r.data, 0, int(rows), r.o.BatchBytes, r.last)
	n := r.tok.rows
	s := segment{rules: r.t.rules, data: r.data, fields: r.tok.fields, stride: len(r.cols), rows: n, dialect: &r.tok.dialect,
		utf8: r.utf8, alloc: r.o.Alloc, chunks: r.chunks, bad: r.tok.bad}
	line, off := r.line, r.off
	r.advance(next)
	if more {
		if n == 0 {
			return r.extend(ctx)
		}
	}
	first := r.row
	r.row += int64(n)
	if r.from > 0 {
		if r.from -= int64(n); r.from == 0 {
			r.tok.setWant(r.want, r.vars, r.fixed)
		}
		return nil
	}
	if n == 0 {
		return nil
	}
	cols := make([]arrow.Array, len(r.cols))
	for c, f := range r.cols {
		cols[c] = s.column(c, f)
		defer cols[c].Release()
	}
	if r.offs = nil; r.o.Offsets {
		r.offs = make([]int64, n)
		for k, at := range r.tok.at {
			r.offs[k] = off - r.t.parts[r.split].Range.Off + int64(at)
		}
	}
	file := array.NewRecordBatch(r.schema, cols, int64(n))
	defer file.Release()
	err := r.growth.AddRecord(file)
	if err != nil {
		return fault.Wrap(err, fault.Place{File: r.t.splits[r.split].File, RowGroup: fault.N(r.t.splits[r.split].Index), Row: fault.N(first)})
	}
	var found fileset.BadRows
	if r.rec, err = r.ad.Apply(driver.Batch{Record: file, Row: first}, r.o.Alloc, &found); err != nil {
		return err
	}
	r.bad = s.bad
	for row, err := range found.All { // behind what the row itself has, of which there is null here
		r.bad = append(r.bad, badRow{row, s.start(row), err})
	}
	slices.SortStableFunc(r.bad, func(a, b badRow) int { return cmp.Compare(a.row, b.row) })
	r.bad = slices.CompactFunc(r.bad, func(a, b badRow) bool { return a.row == b.row })
	r.tok.bad = nil // r.bad may be its memory
	from := 0
	for _, b := range r.bad {
		if line > 0 {
			line += int64(bytes.Count(s.data[from:b.pos], oneByte[r.tok.eol:int(r.tok.eol)+1]))
			from = b.pos
		}
		r.tok.tell(b, s.data, line)
	}
	if len(r.data) == 0 {
		r.chunks.Done()
	}
	r.first, r.at = first, 0
	return nil
}

// advance moves data on by n bytes and counts their lines.
func (r *reader) advance(n int) {
	if r.line > 0 {
		r.line += int64(bytes.Count(r.data[:n], oneByte[r.tok.eol:int(r.tok.eol)+1]))
	}
	r.data, r.off = r.data[n:], r.off+int64(n)
}

// skip passes over the lines that are left out by number or by byte. It reports
// whether that was all of data.
func (r *reader) skip() bool {
	pos := 0
	for pos < len(r.data) && (r.row < r.skipped || r.off+int64(pos) < r.least) {
		end, after := r.tok.lineEnd(r.data, pos)
		if !r.tok.skip(r.data[pos:end], r.fields) {
			r.row++
		}
		pos = after
	}
	r.advance(pos)
	if len(r.data) == 0 {
		return true
	}
	r.look()
	return false
}

// chunk reads the next lines.
func (r *reader) chunk(ctx context.Context) error {
	for {
		b, off, err := r.chunks.Next(ctx)
		if err != nil {
			return err
		}
		if off == 0 {
			r.line = 1
		}
		r.data, r.off, r.last = b, off, !r.tok.multiline
		if off < r.data0 {
			r.advance(int(min(r.data0-off, int64(len(b)))))
		}
		if len(r.data) > 0 {
			if r.tok.multiline {
				r.look()
			}
			return nil
		}
	}
}

func (r *reader) look() {
	r.utf8 = utf8.Valid(r.data)
	r.tok.look(r.data)
}

// extend adds lines to data, which ends inside a record, until it is about twice as
// long, or the file ends.
func (r *reader) extend(ctx context.Context) (err error) {
	if len(r.data) > fileset.MaxLine {
		return fault.New(fault.Corrupt, "a record is longer than %d bytes: is a quote not closed?", fileset.MaxLine).
			At(fault.Place{File: r.t.splits[r.split].File, RowGroup: fault.N(r.t.splits[r.split].Index), Row: fault.N(r.row)})
	}
	if r.data, _, err = r.chunks.More(ctx, len(r.data)); err != nil {
		return err
	}
	r.last = r.chunks.Last()
	r.look()
	return nil
}

// Close is idempotent.
func (r *reader) Close() error {
	if r.err == nil {
		r.fail(fault.New(fault.Invalid, "the reader is closed"))
	}
	r.ad.Release()
	err := r.chunks.Close()
	r.data, r.tok.fields = nil, nil
	return err
}
