package jsonio

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"io"
	"math"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/badvalue"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/strict"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// EncodingOptions of JSON lines; nil means defaults. Null is null, also where a
// whole struct or list is. Timestamps are RFC 3339, in UTC if the column has a
// zone and without zone if not; dates YYYY-MM-DD, times hh:mm:ss.fff, durations
// numbers of their unit; binary is base64, decimals are strings, maps objects.
// NaN and infinities, which JSON has no numbers for, are null, or strings that
// this package reads as floats. A string that is not UTF-8 is a Corrupt error.
type EncodingOptions struct {
	Compression string `json:"compression,omitempty" doc:"gzip, zstd or none (default)" enum:"none|gzip|zstd"`
	Level       int    `json:"level,omitempty" doc:"of compression: 1 to 9 (gzip) or 22 (zstd)"`
	NonFinite   string `json:"non_finite,omitempty" doc:"NaN and infinities: null (default) or string" enum:"null|string"`
}

// NewEncoding checks the options.
func NewEncoding(o *EncodingOptions) (driver.Encoding, error) {
	var e encoding
	if o != nil {
		e.o = *o
	}
	if e.o.Compression == "none" {
		e.o.Compression = ""
	}
	if n := e.o.NonFinite; n != "" && n != "null" && n != "string" {
		return nil, driver.Errorf(driver.Invalid, "non_finite: %q must be null or string", n)
	}
	w, err := fileset.Compress(e.o.Compression, e.o.Level, io.Discard)
	if err != nil {
		return nil, err
	}
	return &e, w.Close()
}

// OpenEncoding rebuilds an encoding from its Config.
func OpenEncoding(config json.RawMessage) (driver.Encoding, error) {
	var o EncodingOptions
	if err := strict.JSON("json", config, &o); err != nil {
		return nil, err
	}
	return NewEncoding(&o)
}

type encoding struct{ o EncodingOptions }

func (*encoding) Kind() string { return "json" }
func (e *encoding) Extension() string {
	return ".jsonl" + fileset.CompressionExtension(e.o.Compression)
}

func (e *encoding) Config() json.RawMessage {
	b, err := json.Marshal(e.o)
	if err != nil {
		panic(err) // strings and numbers only
	}
	return b
}

func (e *encoding) Check(schema *arrow.Schema) error {
	seen := map[string]bool{}
	for _, f := range schema.Fields() {
		if seen[f.Name] {
			return driver.Errorf(driver.Invalid, "two columns are called %q; rename one", f.Name).At(driver.Place{Column: f.Name})
		}
		seen[f.Name] = true
		if !writable(f.Type) {
			return driver.Errorf(driver.Invalid, "JSON cannot hold %s; cast or drop the column", typename.Name(f.Type)).At(driver.Place{Column: f.Name})
		}
		if err := checkNames(f); err != nil {
			return driver.Wrap(err, driver.Place{Column: f.Name})
		}
	}
	return nil
}

// checkNames refuses names that are no keys of JSON, here and in structs.
func checkNames(f arrow.Field) error {
	if !utf8.ValidString(f.Name) {
		return driver.Errorf(driver.Invalid, "the name %q is not valid UTF-8; rename it", f.Name)
	}
	n, ok := f.Type.(arrow.NestedType)
	if !ok {
		return nil
	}
	seen := map[string]bool{}
	for _, k := range n.Fields() {
		if seen[k.Name] {
			return driver.Errorf(driver.Invalid, "two fields of a struct are called %q; rename one", k.Name)
		}
		seen[k.Name] = true
		if err := checkNames(k); err != nil {
			return err
		}
	}
	return nil
}

func writable(t arrow.DataType) bool {
	switch t := t.(type) {
	case *arrow.NullType, *arrow.BooleanType,
		*arrow.Int8Type, *arrow.Int16Type, *arrow.Int32Type, *arrow.Int64Type, *arrow.Uint8Type, *arrow.Uint16Type, *arrow.Uint32Type, *arrow.Uint64Type,
		*arrow.Float16Type, *arrow.Float32Type, *arrow.Float64Type, *arrow.Decimal128Type, *arrow.Decimal256Type,
		*arrow.StringType, *arrow.LargeStringType, *arrow.BinaryType, *arrow.LargeBinaryType, *arrow.FixedSizeBinaryType,
		*arrow.Date32Type, *arrow.Date64Type, *arrow.Time32Type, *arrow.Time64Type, *arrow.TimestampType, *arrow.DurationType:
		return true
	case *arrow.DictionaryType:
		return writable(t.ValueType)
	case *arrow.MapType:
		return (t.KeyType().ID() == arrow.STRING || t.KeyType().ID() == arrow.LARGE_STRING) && writable(t.ItemType())
	case *arrow.ListType, *arrow.LargeListType, *arrow.FixedSizeListType:
		return writable(t.(arrow.ListLikeType).Elem())
	case *arrow.StructType:
		for _, f := range t.Fields() {
			if !writable(f.Type) {
				return false
			}
		}
		return true
	}
	return false
}

func (e *encoding) NewEncoder(w io.Writer, schema *arrow.Schema, _ memory.Allocator) (driver.Encoder, error) {
	if err := e.Check(schema); err != nil {
		return nil, err
	}
	enc := &encoder{nonFinite: e.o.NonFinite == "string"}
	enc.out.w = w
	z, err := fileset.Compress(e.o.Compression, e.o.Level, &enc.out)
	if err != nil {
		return nil, err
	}
	enc.z = z
	for i, f := range schema.Fields() {
		lead := []byte{','}
		if i == 0 {
			lead[0] = '{'
		}
		enc.names = append(enc.names, f.Name)
		enc.keys = append(enc.keys, append(quote(enc, lead, f.Name), ':'))
	}
	return enc, nil
}

// Joins implements driver.JoiningEncoding.
func (*encoding) Joins(*arrow.Schema) bool { return true }

// Join implements driver.JoiningEncoding.
func (e *encoding) Join(ctx context.Context, w io.Writer, o *driver.JoinOptions) error {
	return fileset.JoinText(ctx, w, e.o.Compression, e.o.Level, 0, o)
}

type encoder struct {
	z         io.WriteCloser
	out       counter
	names     []string
	keys      [][]byte // {"name": or ,"name":
	buf       []byte
	nonFinite bool
	notText   bool  // a string of the row is not UTF-8
	rows      int64 // written
}

const flushBytes = 64 << 10

func (e *encoder) Write(rec arrow.RecordBatch) error {
	cols := make([]appender, rec.NumCols())
	for i, c := range rec.Columns() {
		if row, err := badvalue.Bounded.First(c.Data(), 0, int64(c.Len())); row >= 0 {
			return driver.Wrap(err, driver.Place{Row: fault.N(e.rows + row), Column: e.names[i]})
		}
		cols[i] = e.column(c)
	}
	for row := range int(rec.NumRows()) {
		if len(cols) == 0 {
			e.buf = append(e.buf, '{')
		}
		for i, c := range cols {
			e.buf = append(e.buf, e.keys[i]...)
			if e.buf = c(e.buf, row); e.notText {
				return driver.Errorf(driver.Corrupt, "a string is not valid UTF-8, and JSON holds nothing else; cast the column to binary").
					At(driver.Place{Row: fault.N(e.rows + int64(row)), Column: e.names[i]})
			}
		}
		e.buf = append(e.buf, '}', '\n')
		if len(e.buf) >= flushBytes {
			if err := e.flush(); err != nil {
				return err
			}
		}
	}
	e.rows += rec.NumRows()
	return nil
}

func (e *encoder) flush() error {
	_, err := e.z.Write(e.buf)
	e.buf = e.buf[:0]
	return err
}

func (e *encoder) Size() int64 { return e.out.n + int64(len(e.buf)) }

func (e *encoder) Close() error {
	if err := e.flush(); err != nil {
		e.Abort()
		return err
	}
	return e.z.Close()
}

// Abort closes the compressor into nothing.
func (e *encoder) Abort() {
	e.out.w = io.Discard
	e.z.Close()
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	return n, err
}

// appender appends the JSON text of a row of its column.
type appender func(b []byte, row int) []byte

func (e *encoder) column(a arrow.Array) appender {
	v := e.values(a)
	if a.NullN() == 0 && a.DataType().ID() != arrow.NULL {
		return v
	}
	return func(b []byte, row int) []byte {
		if a.IsNull(row) {
			return append(b, "null"...)
		}
		return v(b, row)
	}
}

func (e *encoder) values(a arrow.Array) appender {
	switch a := a.(type) {
	case *array.Null:
		return func(b []byte, _ int) []byte { return append(b, "null"...) }
	case *array.Boolean:
		return func(b []byte, i int) []byte { return strconv.AppendBool(b, a.Value(i)) }
	case *array.Int8:
		return ints(a.Values())
	case *array.Int16:
		return ints(a.Values())
	case *array.Int32:
		return ints(a.Values())
	case *array.Int64:
		return ints(a.Values())
	case *array.Duration:
		return ints(a.Values())
	case *array.Uint8:
		return uints(a.Values())
	case *array.Uint16:
		return uints(a.Values())
	case *array.Uint32:
		return uints(a.Values())
	case *array.Uint64:
		return uints(a.Values())
	case *array.Float16:
		return func(b []byte, i int) []byte { return e.float(b, float64(a.Value(i).Float32()), 32) }
	case *array.Float32:
		v := a.Float32Values()
		return func(b []byte, i int) []byte { return e.float(b, float64(v[i]), 32) }
	case *array.Float64:
		v := a.Float64Values()
		return func(b []byte, i int) []byte { return e.float(b, v[i], 64) }
	case *array.Decimal128:
		s := a.DataType().(*arrow.Decimal128Type).Scale
		return func(b []byte, i int) []byte {
			v := a.Value(i)
			if x := int64(v.LowBits()); s >= 0 && v.HighBits() == x>>63 && x != math.MinInt64 {
				return smallDecimal(b, x, int(s))
			}
			return quote(e, b, v.ToString(s))
		}
	case *array.Decimal256:
		s := a.DataType().(*arrow.Decimal256Type).Scale
		return func(b []byte, i int) []byte { return quote(e, b, a.Value(i).ToString(s)) }
	case *array.String:
		return func(b []byte, i int) []byte { return quote(e, b, a.Value(i)) }
	case *array.LargeString:
		return func(b []byte, i int) []byte { return quote(e, b, a.Value(i)) }
	case *array.Binary:
		return func(b []byte, i int) []byte { return encode64(b, a.Value(i)) }
	case *array.LargeBinary:
		return func(b []byte, i int) []byte { return encode64(b, a.Value(i)) }
	case *array.FixedSizeBinary:
		return func(b []byte, i int) []byte { return encode64(b, a.Value(i)) }
	case *array.Date32:
		return func(b []byte, i int) []byte {
			return stamp(b, time.Unix(int64(a.Value(i))*86400, 0).UTC(), time.DateOnly)
		}
	case *array.Date64:
		return func(b []byte, i int) []byte {
			return stamp(b, time.UnixMilli(int64(a.Value(i))).UTC(), time.DateOnly)
		}
	case *array.Time32:
		u := a.DataType().(*arrow.Time32Type).Unit
		return func(b []byte, i int) []byte { return stamp(b, at(int64(a.Value(i)), u), clockLayouts[u]) }
	case *array.Time64:
		u := a.DataType().(*arrow.Time64Type).Unit
		return func(b []byte, i int) []byte { return stamp(b, at(int64(a.Value(i)), u), clockLayouts[u]) }
	case *array.Timestamp:
		t := a.DataType().(*arrow.TimestampType)
		layout := "2006-01-02T" + clockLayouts[t.Unit]
		if t.TimeZone != "" {
			layout += "Z"
		}
		return func(b []byte, i int) []byte { return stamp(b, at(int64(a.Value(i)), t.Unit), layout) }
	case *array.Dictionary:
		v := e.column(a.Dictionary())
		return func(b []byte, i int) []byte { return v(b, a.GetValueIndex(i)) }
	case *array.Map:
		keys, items := e.values(a.Keys()), e.column(a.Items())
		return func(b []byte, i int) []byte {
			b = append(b, '{')
			from, to := a.ValueOffsets(i)
			for k := from; k < to; k++ {
				if k > from {
					b = append(b, ',')
				}
				b = append(keys(b, int(k)), ':')
				b = items(b, int(k))
			}
			return append(b, '}')
		}
	case array.ListLike: // list, large list, fixed-size list
		v := e.column(a.ListValues())
		return func(b []byte, i int) []byte {
			b = append(b, '[')
			from, to := a.ValueOffsets(i)
			for k := from; k < to; k++ {
				if k > from {
					b = append(b, ',')
				}
				b = v(b, int(k))
			}
			return append(b, ']')
		}
	case *array.Struct:
		fs := a.DataType().(*arrow.StructType).Fields()
		keys, vals := make([][]byte, len(fs)), make([]appender, len(fs))
		for k, f := range fs {
			keys[k] = append(quote(e, nil, f.Name), ':')
			vals[k] = e.column(a.Field(k))
		}
		return func(b []byte, i int) []byte {
			b = append(b, '{')
			for k := range vals {
				if k > 0 {
					b = append(b, ',')
				}
				b = vals[k](append(b, keys[k]...), i)
			}
			return append(b, '}')
		}
	}
	panic("jsonio: Check lets " + a.DataType().String() + " through")
}

func ints[T ~int8 | ~int16 | ~int32 | ~int64](v []T) appender {
	return func(b []byte, i int) []byte { return strconv.AppendInt(b, int64(v[i]), 10) }
}

func uints[T ~uint8 | ~uint16 | ~uint32 | ~uint64](v []T) appender {
	return func(b []byte, i int) []byte { return strconv.AppendUint(b, uint64(v[i]), 10) }
}

func (e *encoder) float(b []byte, v float64, bits int) []byte {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		switch {
		case !e.nonFinite:
			return append(b, "null"...)
		case v > 0:
			return append(b, `"Infinity"`...)
		case v < 0:
			return append(b, `"-Infinity"`...)
		}
		return append(b, `"NaN"`...)
	case v == math.Trunc(v) && math.Abs(v) < 1e15:
		// With a point (or, below, an exponent): a column of whole doubles stays one of doubles.
		return append(strconv.AppendFloat(b, v, 'f', -1, bits), ".0"...)
	case math.Abs(v) >= 1e-6 && math.Abs(v) < 1e15:
		return strconv.AppendFloat(b, v, 'f', -1, bits)
	}
	return strconv.AppendFloat(b, v, 'e', -1, bits)
}

// smallDecimal appends v / 10^scale in quotes.
func smallDecimal(b []byte, v int64, scale int) []byte {
	b = append(b, '"')
	if v < 0 {
		b = append(b, '-')
		v = -v
	}
	var buf [20]byte
	d := strconv.AppendInt(buf[:0], v, 10)
	if len(d) > scale {
		b, d = append(b, d[:len(d)-scale]...), d[len(d)-scale:]
	} else {
		b = append(b, '0')
	}
	if scale > 0 {
		b = append(b, '.')
		for range scale - len(d) {
			b = append(b, '0')
		}
		b = append(b, d...)
	}
	return append(b, '"')
}

func encode64(b, v []byte) []byte {
	b = append(b, '"')
	b = base64.StdEncoding.AppendEncode(b, v)
	return append(b, '"')
}

var clockLayouts = map[arrow.TimeUnit]string{arrow.Second: "15:04:05", arrow.Millisecond: "15:04:05.000", arrow.Microsecond: "15:04:05.000000", arrow.Nanosecond: "15:04:05.000000000"}

// at is the time v units after 1970 in UTC.
func at(v int64, u arrow.TimeUnit) time.Time {
	per := int64(time.Second / u.Multiplier())
	sec, rest := v/per, v%per
	if rest < 0 {
		sec, rest = sec-1, rest+per
	}
	return time.Unix(sec, rest*int64(u.Multiplier())).UTC()
}

func stamp(b []byte, t time.Time, layout string) []byte {
	return append(t.AppendFormat(append(b, '"'), layout), '"')
}

const hexDigits = "0123456789abcdef"

// quote appends s as a JSON string, or sets notText.
func quote[T string | []byte](e *encoder, b []byte, s T) []byte {
	b = append(b, '"')
	from := 0
	for i := 0; i < len(s); {
		c := s[i]
		if c >= 0x20 && c < utf8.RuneSelf && c != '"' && c != '\\' {
			i++
			continue
		}
		if c >= utf8.RuneSelf {
			r, n := utf8.DecodeRuneInString(string(s[i:min(len(s), i+4)]))
			if r != utf8.RuneError || n > 1 {
				i += n
				continue
			}
			e.notText = true
			return b
		}
		b = append(b, s[from:i]...)
		switch c {
		case '"', '\\':
			b = append(b, '\\', c)
		case '\n':
			b = append(b, '\\', 'n')
		case '\r':
			b = append(b, '\\', 'r')
		case '\t':
			b = append(b, '\\', 't')
		default:
			b = append(b, '\\', 'u', '0', '0', hexDigits[c>>4], hexDigits[c&15])
		}
		i++
		from = i
	}
	return append(append(b, s[from:]...), '"')
}
