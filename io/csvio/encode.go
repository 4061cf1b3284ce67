package csvio

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/badvalue"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// EncodingOptions of CSV files. Fields are quoted where they must be: text that is empty,
// or holds the delimiter, a quote or a line break (files with line breaks need multiline to be
// read). Null is an empty field. Binary is base64, timestamps with a zone are UTC.
type EncodingOptions struct {
	NoHeader    bool   `json:"no_header,omitempty" doc:"write no header line"`
	Delimiter   string `json:"delimiter,omitempty" doc:"one byte between fields; default ,"`
	Compression string `json:"compression,omitempty" doc:"gzip, zstd or none (default)" enum:"none|gzip|zstd"`
	Level       int    `json:"level,omitempty" doc:"of compression: 1 to 9 (gzip) or 22 (zstd)"`
}

// NewEncoding checks the options; nil means defaults.
func NewEncoding(given *EncodingOptions) (driver.Encoding, error) {
	var o EncodingOptions
	if given != nil {
		o = *given
	}
	if o.Compression == "none" {
		o.Compression = ""
	}
	if len(o.Delimiter) > 1 || o.Delimiter != "" && (o.Delimiter[0] >= 0x80 || strings.ContainsAny(o.Delimiter, "\r\n\"\x00")) {
		return nil, fault.New(fault.Invalid, "delimiter: %q must be one ASCII character", o.Delimiter)
	}
	w, err := fileset.Compress(o.Compression, o.Level, io.Discard)
	if err != nil {
		return nil, err
	}
	return encoding{o}, w.Close()
}

type encoding struct{ o EncodingOptions }

func (encoding) Kind() string        { return "csv" }
func (e encoding) Extension() string { return ".csv" + fileset.CompressionExtension(e.o.Compression) }

func (e encoding) Config() json.RawMessage {
	b, err := json.Marshal(e.o)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return b
}

func (encoding) Check(schema *arrow.Schema) error {
	if schema.NumFields() == 0 {
		return fault.New(fault.Invalid, "csv needs at least one column")
	}
	for _, f := range schema.Fields() {
		t := f.Type
		if d, ok := t.(*arrow.DictionaryType); ok { // written as its values
			t = d.ValueType
		}
		if !canRead(t) {
			return fault.New(fault.Invalid, "csv cannot hold %s; cast the column to another type, or drop it", typename.Name(f.Type)).At(fault.Place{Column: f.Name})
		}
	}
	return nil
}

func (e encoding) NewEncoder(w io.Writer, schema *arrow.Schema, _ memory.Allocator) (driver.Encoder, error) {
	if err := e.Check(schema); err != nil {
		return nil, err
	}
	out := &counted{w: w}
	z, err := fileset.Compress(e.o.Compression, e.o.Level, out)
	if err != nil {
		return nil, err
	}
	enc := &encoder{schema: schema, delim: ',', out: out, z: z, packed: e.o.Compression != "", cells: make([]cells, schema.NumFields())}
	if e.o.Delimiter != "" {
		enc.delim = e.o.Delimiter[0]
	}
	if !e.o.NoHeader {
		enc.header()
	}
	return enc, nil
}

// header begins buf with the names of the columns.
func (e *encoder) header() {
	for i, f := range e.schema.Fields() {
		if i > 0 {
			e.buf = append(e.buf, e.delim)
		}
		e.buf = e.text(e.buf, []byte(f.Name))
	}
	e.buf = append(e.buf, '\n')
}

// Joins implements driver.JoiningEncoding.
func (encoding) Joins(*arrow.Schema) bool { return true }

// Join implements driver.JoiningEncoding.
func (e encoding) Join(ctx context.Context, w io.Writer, o *driver.JoinOptions) error {
	first, err := e.NewEncoder(io.Discard, o.Schema, o.Alloc)
	if err != nil {
		return err
	}
	header := int64(len(first.(*encoder).buf))
	first.Abort()
	return fileset.JoinText(ctx, w, e.o.Compression, e.o.Level, header, o)
}

type counted struct {
	w io.Writer
	n int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// encoder formats columns one by one, then joins rows.
type encoder struct {
	schema *arrow.Schema
	delim  byte
	out    *counted
	z      io.WriteCloser
	packed bool
	cells  []cells
	buf    []byte
	rows   int64 // written
	in     int64 // bytes given to z
	inAt   int64 // in when out last grew
	outAt  int64
	err    error
}

// cells are the texts of a run of rows of one column.
type cells struct {
	text []byte
	ends []int
}

// run is how many rows are formatted at once.
const run = 512

func (e *encoder) Write(rec arrow.RecordBatch) error {
	if e.err != nil {
		return e.err
	}
	for i, c := range rec.Columns() {
		if row, err := badvalue.Bounded.First(c.Data(), 0, int64(c.Len())); row >= 0 {
			return e.fail(fault.Wrap(err, fault.Place{Column: e.schema.Field(i).Name, Row: fault.N(e.rows + row)}))
		}
	}
	for from := 0; from < int(rec.NumRows()); from += run {
		to := min(from+run, int(rec.NumRows()))
		for c := range e.cells {
			if row, err := e.column(&e.cells[c], rec.Column(c), from, to); err != nil {
				return e.fail(fault.Wrap(err, fault.Place{Column: e.schema.Field(c).Name, Row: fault.N(e.rows + int64(row))}))
			}
		}
		for r := range to - from {
			for c := range e.cells {
				if c > 0 {
					e.buf = append(e.buf, e.delim)
				}
				x := &e.cells[c]
				begin := 0
				if r > 0 {
					begin = x.ends[r-1]
				}
				e.buf = append(e.buf, x.text[begin:x.ends[r]]...)
			}
			e.buf = append(e.buf, '\n')
		}
		if len(e.buf) >= 256<<10 {
			if err := e.flush(); err != nil {
				return err
			}
		}
	}
	e.rows += rec.NumRows()
	return nil
}

func (e *encoder) flush() error {
	n, err := e.z.Write(e.buf)
	e.in += int64(n)
	e.buf = e.buf[:0]
	if e.out.n != e.outAt {
		e.inAt, e.outAt = e.in, e.out.n
	}
	if err != nil {
		return e.fail(err)
	}
	return nil
}

func (e *encoder) fail(err error) error {
	e.err = err
	return err
}

// Size takes what is not compressed yet to shrink to a third.
func (e *encoder) Size() int64 {
	pending := int64(len(e.buf))
	if e.packed {
		pending = (pending + e.in - e.inAt) / 3
	}
	return e.out.n + pending
}

func (e *encoder) Close() error {
	if e.err != nil {
		return e.err
	}
	if err := e.flush(); err != nil {
		return err
	}
	err := e.z.Close()
	e.inAt = e.in
	e.err = fault.New(fault.Internal, "write after close")
	return err
}

func (e *encoder) Abort() {
	e.err = fault.New(fault.Internal, "write after abort")
	e.z, e.buf, e.cells = nil, nil, nil
}

// column formats rows [from, to) of a; an error is that of the row returned.
func (e *encoder) column(x *cells, a arrow.Array, from, to int) (row int, err error) {
	x.text, x.ends = x.text[:0], x.ends[:0]
	switch a := a.(type) {
	case *array.Int8:
		ints64(x, a, a.Int8Values()[from:to], from)
	case *array.Int16:
		ints64(x, a, a.Int16Values()[from:to], from)
	case *array.Int32:
		ints64(x, a, a.Int32Values()[from:to], from)
	case *array.Int64:
		ints64(x, a, a.Int64Values()[from:to], from)
	case *array.Uint8:
		uints64(x, a, a.Uint8Values()[from:to], from)
	case *array.Uint16:
		uints64(x, a, a.Uint16Values()[from:to], from)
	case *array.Uint32:
		uints64(x, a, a.Uint32Values()[from:to], from)
	case *array.Uint64:
		uints64(x, a, a.Uint64Values()[from:to], from)
	case *array.Float32:
		floats64(x, a, a.Float32Values()[from:to], from, 32)
	case *array.Float64:
		floats64(x, a, a.Float64Values()[from:to], from, 64)
	case *array.Boolean:
		for i := from; i < to; i++ {
			if a.IsValid(i) {
				x.text = strconv.AppendBool(x.text, a.Value(i))
			}
			x.end()
		}
	case *array.String:
		for i := from; i < to; i++ {
			if a.IsValid(i) {
				s := a.Value(i)
				x.text = e.text(x.text, bytesOf(s))
			}
			x.end()
		}
	case *array.LargeString:
		for i := from; i < to; i++ {
			if a.IsValid(i) {
				s := a.Value(i)
				x.text = e.text(x.text, bytesOf(s))
			}
			x.end()
		}
	case *array.Binary:
		bytesText(x, a, from, to)
	case *array.LargeBinary:
		bytesText(x, a, from, to)
	case *array.FixedSizeBinary:
		bytesText(x, a, from, to)
	case *array.Date32:
		return datesText(x, a, from, to, func(i int) time.Time { return time.Unix(int64(a.Value(i))*86400, 0) })
	case *array.Date64:
		return datesText(x, a, from, to, func(i int) time.Time { return time.UnixMilli(int64(a.Value(i))) })
	case *array.Timestamp:
		t := a.DataType().(*arrow.TimestampType)
		layout := "2006-01-02T" + clocks[t.Unit]
		if t.TimeZone != "" {
			layout += "Z"
		}
		for i := from; i < to; i++ {
			if a.IsValid(i) {
				if err := x.time(a.Value(i).ToTime(t.Unit), layout); err != nil {
					return i, err
				}
			}
			x.end()
		}
	case *array.Time32:
		timesText(x, a, a.Time32Values(), a.DataType().(*arrow.Time32Type).Unit, from, to)
	case *array.Time64:
		timesText(x, a, a.Time64Values(), a.DataType().(*arrow.Time64Type).Unit, from, to)
	case *array.Decimal128:
		scale := a.DataType().(*arrow.Decimal128Type).Scale
		for i := from; i < to; i++ {
			if a.IsValid(i) {
				x.text = append(x.text, a.Value(i).ToString(scale)...)
			}
			x.end()
		}
	case *array.Dictionary:
		part := array.NewSlice(a, int64(from), int64(to))
		defer part.Release()
		values, err := gather.Values(memory.DefaultAllocator, part.(*array.Dictionary))
		if err != nil {
			return from, err
		}
		defer values.Release()
		row, err := e.column(x, values, 0, to-from)
		return from + row, err
	default:
		return from, fault.New(fault.Invalid, "csv cannot hold %v", a.DataType())
	}
	return 0, nil
}

func (x *cells) end() { x.ends = append(x.ends, len(x.text)) }

// binary writes base64; what is empty is quoted, to tell it from null.
func (x *cells) binary(b []byte) {
	if len(b) == 0 {
		x.text = append(x.text, `""`...)
		return
	}
	x.text = base64.StdEncoding.AppendEncode(x.text, b)
}

func (x *cells) time(t time.Time, layout string) error {
	t = t.UTC()
	if y := t.Year(); y < 0 || y > 9999 {
		return fault.New(fault.RowError, "csv holds the years 0 to 9999 only, not %d", y)
	}
	x.text = t.AppendFormat(x.text, layout)
	return nil
}

// clocks are the layouts of times of day, by unit.
var clocks = [...]string{arrow.Second: "15:04:05", arrow.Millisecond: "15:04:05.000", arrow.Microsecond: "15:04:05.000000", arrow.Nanosecond: "15:04:05.000000000"}

func bytesText(x *cells, a interface {
	arrow.Array
	Value(i int) []byte
}, from, to int) {
	for i := from; i < to; i++ {
		if a.IsValid(i) {
			x.binary(a.Value(i))
		}
		x.end()
	}
}

// datesText formats dates; an error is that of the row returned.
func datesText(x *cells, a arrow.Array, from, to int, at func(i int) time.Time) (row int, err error) {
	for i := from; i < to; i++ {
		if a.IsValid(i) {
			if err := x.time(at(i), time.DateOnly); err != nil {
				return i, err
			}
		}
		x.end()
	}
	return 0, nil
}

// timesText formats times of day.
func timesText[T arrow.Time32 | arrow.Time64](x *cells, a arrow.Array, vs []T, u arrow.TimeUnit, from, to int) {
	for i := from; i < to; i++ {
		if a.IsValid(i) {
			x.text = time.Unix(0, int64(vs[i])*int64(u.Multiplier())).UTC().AppendFormat(x.text, clocks[u])
		}
		x.end()
	}
}

func ints64[T int8 | int16 | int32 | int64](x *cells, a arrow.Array, vs []T, from int) {
	for i, v := range vs {
		if a.IsValid(from + i) {
			x.text = strconv.AppendInt(x.text, int64(v), 10)
		}
		x.end()
	}
}

func uints64[T uint8 | uint16 | uint32 | uint64](x *cells, a arrow.Array, vs []T, from int) {
	for i, v := range vs {
		if a.IsValid(from + i) {
			x.text = strconv.AppendUint(x.text, uint64(v), 10)
		}
		x.end()
	}
}

func floats64[T float32 | float64](x *cells, a arrow.Array, vs []T, from, bits int) {
	for i, v := range vs {
		if a.IsValid(from + i) {
			if f := float64(v); f == math.Trunc(f) && math.Abs(f) < 1e15 {
				x.text = strconv.AppendFloat(x.text, f, 'f', 1, bits) // 3.0, so that it is read as a float
			} else {
				x.text = strconv.AppendFloat(x.text, f, 'g', -1, bits)
			}
		}
		x.end()
	}
}

// text appends s, in quotes where they are needed.
func (e *encoder) text(dst, s []byte) []byte {
	need := len(s) == 0 || s[0] == 0xEF
	for _, c := range s {
		if c == '"' || c == '\n' || c == '\r' || c == e.delim {
			need = true
			break
		}
	}
	if !need {
		return append(dst, s...)
	}
	dst = append(dst, '"')
	for _, c := range s {
		if c == '"' {
			dst = append(dst, '"')
		}
		dst = append(dst, c)
	}
	return append(dst, '"')
}
