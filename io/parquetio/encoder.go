package parquetio

import (
	"cmp"
	"errors"
	"io"
	"slices"
	"sort"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"github.com/penstock-data/penstock/internal/badvalue"
	"github.com/penstock-data/penstock/internal/fault"
	arrays "github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
)

// encoder writes one file. The writer is made with the first rows, which
// decide on dictionaries.
type encoder struct {
	o      *EncodingOptions
	schema *arrow.Schema // of batches
	plain  *arrow.Schema // as arrow-go writes it
	arena  *arena
	out    countingWriter
	first  []arrow.RecordBatch // the rows so far, where too few to begin with
	most   int64               // to be held outside the allocator, about; 0: no limit
	cols   []float64           // columns as Parquet has them: bytes of a row in a page, by the first rows
	page   int64               // bytes of a page
	fw     *pqarrow.FileWriter
	rows   int64   // of the open row group
	given  int64   // rows of all batches
	dicts  []int64 // per column with a dictionary: most entries expected
	sorted int     // row groups whose metadata is in order
	err    error   // after it nothing works
	done   bool
}

// countingWriter hides io.Closer. before, if set, runs ahead of every write.
type countingWriter struct {
	w      io.Writer
	n      int64
	before func()
}

func (c *countingWriter) Write(p []byte) (int, error) {
	if c.before != nil {
		c.before()
	}
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// writeError gives a panic or error of the writer a code.
func writeError(err *error) {
	switch p := recover().(type) {
	case nil:
	case *fault.Error: // the allocator's
		*err = p
	default:
		*err = fault.New(fault.Internal, "the rows cannot be encoded as Parquet, which is a bug: please report it with the schema and this: %v", p)
	}
}

// Write implements driver.Encoder.
func (e *encoder) Write(rec arrow.RecordBatch) error {
	if e.err == nil && e.done {
		e.err = fault.New(fault.Internal, "write to a closed file")
	}
	if e.err == nil {
		e.err = e.write(rec)
	}
	return e.err
}

func (e *encoder) write(rec arrow.RecordBatch) (err error) {
	defer writeError(&err)
	if rec.NumRows() == 0 {
		return nil
	}
	if int(rec.NumCols()) != e.schema.NumFields() {
		return fault.New(fault.Invalid, "a batch has %d columns, the file %d", rec.NumCols(), e.schema.NumFields())
	}
	var size int64
	for i, f := range e.schema.Fields() {
		c := rec.Column(i)
		if !arrow.TypeEqual(c.DataType(), f.Type) {
			return fault.New(fault.Invalid, "type is %s, the file has %s", typename.Name(c.DataType()), typename.Name(f.Type)).
				At(fault.Place{Column: f.Name})
		}
		if !f.Nullable && c.NullN() > 0 {
			return fault.New(fault.Invalid, "a null where none is allowed").At(fault.Place{Column: f.Name})
		}
		if row, err := badvalue.Bounded.First(c.Data(), 0, int64(c.Len())); row >= 0 {
			return fault.Wrap(err, fault.Place{Row: fault.N(e.given + row), Column: f.Name})
		}
		if d, ok := c.(*array.Dictionary); ok {
			size += int64(d.Len()) * averageLength(d)
		} else {
			size += int64(c.Data().SizeInBytes())
		}
	}
	e.given += rec.NumRows()
	if e.fw == nil {
		n := rec.NumRows()
		for _, f := range e.first {
			n += f.NumRows()
		}
		if first, err := e.concat(append(e.first[:len(e.first):len(e.first)], rec)); err != nil {
			return err
		} else if n < minSample && e.arena.held() < maxFirst {
			e.drop()
			e.first = []arrow.RecordBatch{first}
			return nil
		} else {
			e.drop()
			defer first.Release()
			rec = first
		}
		if err := e.start(rec); err != nil {
			return err
		}
	}
	return e.pieces(rec, size)
}

// concat copies batches, which have rows, into one.
func (e *encoder) concat(recs []arrow.RecordBatch) (arrow.RecordBatch, error) {
	var runs []arrays.Run
	for i, r := range recs {
		last := int32(r.NumRows()) - 1 // on its own: a single run is no copy
		runs = append(runs, arrays.Run{Rec: int32(i), N: last}, arrays.Run{Rec: int32(i), Row: last, N: 1})
	}
	return arrays.Record(e.arena, e.schema, recs, runs)
}

// drop releases the rows of first.
func (e *encoder) drop() {
	for _, f := range e.first {
		f.Release()
	}
	e.first = nil
}

func (e *encoder) pieces(rec arrow.RecordBatch, size int64) error {
	// Large batches go in pieces, so that row groups end where they should.
	rows := rec.NumRows()
	step := max(rows*maxWriteBytes/max(size, maxWriteBytes), 1)
	for at := int64(0); at < rows; {
		n := min(step, rows-at)
		if e.o.RowGroupRows > 0 {
			n = min(n, e.o.RowGroupRows-e.rows)
		}
		if err := e.piece(rec, at, at+n); err != nil {
			return err
		}
		at += n
	}
	return nil
}

func (e *encoder) piece(rec arrow.RecordBatch, from, to int64) error {
	cols := make([]arrow.Array, rec.NumCols())
	for i := range cols {
		part := array.NewSlice(rec.Column(i), from, to)
		col, err := compact(part, e.plain.Field(i).Type, e.arena)
		part.Release()
		if err != nil {
			return err
		}
		cols[i] = col
		defer col.Release()
	}
	part := array.NewRecordBatch(e.plain, cols, to-from)
	defer part.Release()
	if e.rows == 0 {
		if err := e.fw.NewBufferedRowGroupChecked(); err != nil {
			return err
		}
	}
	if err := e.fw.WriteBuffered(part); err != nil {
		if errors.Is(err, arrow.ErrInvalid) { // a decimal, for one, of more digits than its type
			return fault.New(fault.Invalid, "a value cannot be written as Parquet: %w", err)
		}
		return err
	}
	e.rows += to - from
	if e.buffered() >= e.o.RowGroupBytes || e.rows == e.o.RowGroupRows {
		e.rows = 0
	}
	return nil
}

// buffered is the encoded size of the open row group.
func (e *encoder) buffered() int64 {
	if e.fw == nil || e.rows == 0 {
		return 0
	}
	return e.fw.RowGroupTotalCompressedBytes()
}

// Held implements driver.Cutter.
func (e *encoder) Held() int64 { return e.arena.held() + e.Outside() }

// Outside implements driver.Cutter: arrow-go has in Go memory the hash tables and pages of dictionaries, and of every column
// the page being filled and, from the first one on, room to put a page together and to compress it.
func (e *encoder) Outside() int64 {
	if e.rows == 0 {
		return 0
	}
	n := int64(0)
	if len(e.dicts) > 0 {
		n += e.buffered() * int64(len(e.dicts)) / int64(len(e.cols))
	}
	for _, most := range e.dicts {
		n += min(e.rows, most) * dictEntryBytes
	}
	for _, row := range e.cols {
		page := max(float64(e.page), row) // a row is not divided
		n += int64(min(pendingPage*float64(e.rows)*row, pageRooms*page))
	}
	return n
}

// Of a column writer: what is pending lies in a buffer of up to twice its size; with two pages more it holds that many.
const (
	pendingPage = 2
	pageRooms   = 4
)

// Cut implements driver.Cutter: the row group ends here.
func (e *encoder) Cut() { e.rows = 0 }

// pages returns the bytes of a page and of a dictionary: where little is to be held, each half of what there is for a column.
func (e *encoder) pages(cols int) (page, dict int64) {
	page, dict = e.o.PageBytes, max(e.o.PageBytes, dictBytes)
	if e.most > 0 {
		share := e.most / int64(2*max(cols, 1))
		page = min(page, max(share/pageRooms, leastPage))
		dict = min(dict, max(share/(dictEntryBytes/8), leastPage))
	}
	return page, dict
}

// start makes the writer, by what the first batch looks like.
func (e *encoder) start(first arrow.RecordBatch) (err error) {
	fields := e.schema.Fields()
	for i := range fields {
		fields[i].Type = fieldAsWritten(fields[i])
	}
	own := e.schema.Metadata()
	keys, values := slices.Clone(own.Keys()), slices.Clone(own.Values())
	if stored(e.schema) {
		m, err := storedSchema(driver.WithExtensions(arrow.NewSchema(e.schema.Fields(), nil)))
		if err != nil {
			return err
		}
		keys, values = append(keys, m.Keys()...), append(values, m.Values()...)
	}
	meta := arrow.NewMetadata(keys, values)
	e.plain = arrow.NewSchema(fields, &meta)
	pq, err := pqarrow.ToParquet(e.plain, parquet.NewWriterProperties(), pqarrow.DefaultWriterProps())
	if err != nil {
		return err
	}
	page, dictMost := e.pages(pq.NumColumns())
	props := []parquet.WriterProperty{
		parquet.WithAllocator(e.arena),
		parquet.WithCreatedBy("penstock"),
		parquet.WithVersion(parquet.V2_LATEST),
		parquet.WithCompression(codecs[e.o.Compression]),
		parquet.WithDataPageSize(page),
		parquet.WithDictionaryPageSizeLimit(dictMost),
		parquet.WithMaxRowGroupLength(1 << 60),
		parquet.WithStats(!e.o.NoStatistics),
		parquet.WithMaxStatsSize(256),
		parquet.WithPageIndexEnabled(true),
	}
	level := e.o.Level
	if level == 0 {
		level = compress.DefaultCompressionLevel
	}
	props = append(props, parquet.WithCompressionLevel(level))
	var leaves []arrow.Array
	if first != nil {
		for _, c := range first.Columns() {
			leaves = leafArrays(leaves, c)
		}
	}
	e.page, e.cols = page, make([]float64, pq.NumColumns())
	widest := int64(8)
	bloomRows := e.o.RowGroupRows // most values of a filter; 0: unknown
	for i := range pq.NumColumns() {
		d := pq.Column(i)
		var avg int64
		dict := dictLimit
		perRow := 1.0 // values
		if len(leaves) == pq.NumColumns() {
			avg = averageLength(leaves[i])
			dict = expectedEntries(leaves[i])
			perRow = float64(leaves[i].Len()) / float64(first.NumRows())
		}
		e.cols[i] = perRow * encodedWidth(d, avg)
		widest = max(widest, avg)
		top, _, _ := strings.Cut(d.Path(), ".")
		text := d.PhysicalType() == parquet.Types.ByteArray && (d.ConvertedType() == schema.ConvertedTypes.UTF8 || d.ConvertedType() == schema.ConvertedTypes.JSON)
		switch d.PhysicalType() {
		case parquet.Types.Boolean, parquet.Types.Float, parquet.Types.Double:
			dict = 0
		case parquet.Types.ByteArray, parquet.Types.FixedLenByteArray:
			if !text || avg > maxPlainText {
				dict = 0
			}
		}
		if dict == 0 {
			props = append(props, parquet.WithDictionaryFor(d.Path(), false))
		} else {
			e.dicts = append(e.dicts, min(dict, dictMost/8))
		}
		if slices.Contains(e.o.Bloom, top) && d.PhysicalType() != parquet.Types.Boolean {
			props = append(props, parquet.WithBloomFilterEnabledFor(d.Path(), true),
				parquet.WithAdaptiveBloomFilterEnabledFor(d.Path(), true))
			if d.MaxRepetitionLevel() > 0 {
				bloomRows = 0
			}
		}
	}
	if bloomRows > 0 { // filters are kept until the file ends
		props = append(props, parquet.WithMaxBloomFilterBytes(bloomBytes(bloomRows)))
	}
	// A page ends between batches of values.
	props = append(props, parquet.WithBatchSize(min(max(page/widest, 1), 1024)))
	e.fw, err = pqarrow.NewFileWriter(e.plain, &e.out, parquet.NewWriterProperties(props...),
		pqarrow.NewArrowWriterProperties(pqarrow.WithAllocator(e.arena)))
	return err
}

// Size implements driver.Encoder.
func (e *encoder) Size() int64 {
	const footer = 1 << 10
	if e.fw == nil {
		return e.arena.held() + footer
	}
	return e.out.n + e.buffered() + footer
}

// Close implements driver.Encoder.
func (e *encoder) Close() (err error) {
	defer e.arena.close()
	defer e.drop()
	if e.done {
		return e.err
	}
	e.done = true
	if e.err != nil {
		return e.err
	}
	defer func() { e.err = err }()
	defer writeError(&err)
	if e.fw == nil {
		if err := e.short(); err != nil {
			return err
		}
	}
	// arrow-go lists the encodings of a chunk in the order of a map; the page index
	// is written before the footer is made.
	md, err := e.fw.FileMetadata()
	if err != nil {
		return err
	}
	// Each leaf has a write of its own there: ordering before one of as many is enough.
	writes, leaves := 0, max(md.Schema.NumColumns(), 1)
	e.out.before = func() {
		if writes++; writes%leaves == 0 {
			e.order()
		}
	}
	return e.fw.Close()
}

// short begins a file of fewer rows than a sample has.
func (e *encoder) short() error {
	if len(e.first) == 0 {
		return e.start(nil)
	}
	defer e.drop()
	if err := e.start(e.first[0]); err != nil {
		return err
	}
	return e.pieces(e.first[0], 0)
}

// order sorts what is in no order, so that equal batches give equal bytes. Row groups but the last are complete,
// and sorted once.
func (e *encoder) order() {
	md, err := e.fw.FileMetadata()
	if err != nil {
		return // Close will find it, too
	}
	groups := md.RowGroups[min(e.sorted, len(md.RowGroups)):]
	e.sorted = max(len(md.RowGroups)-1, 0)
	for _, g := range groups {
		for _, c := range g.Columns {
			if c != nil && c.MetaData != nil {
				st := c.MetaData.EncodingStats
				sort.Slice(st, func(i, j int) bool {
					return cmp.Or(cmp.Compare(st[i].PageType, st[j].PageType), cmp.Compare(st[i].Encoding, st[j].Encoding)) < 0
				})
			}
		}
	}
}

// Abort implements driver.Encoder.
func (e *encoder) Abort() {
	e.done = true
	e.fw = nil
	e.drop()
	e.arena.close()
}
