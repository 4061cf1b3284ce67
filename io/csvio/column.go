package csvio

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"unicode/utf8"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/textvalue"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/fileset"
)

// canRead says which types columns may have.
func canRead(t arrow.DataType) bool {
	switch t := t.(type) {
	case *arrow.Decimal128Type:
		return t.Scale >= 0
	case *arrow.TimestampType:
		return true
	}
	switch t.ID() {
	case arrow.FIXED_SIZE_BINARY, arrow.DATE64, arrow.BOOL, arrow.INT8, arrow.INT16, arrow.INT32, arrow.INT64, arrow.UINT8, arrow.UINT16, arrow.UINT32, arrow.UINT64,
		arrow.FLOAT32, arrow.FLOAT64, arrow.STRING, arrow.LARGE_STRING, arrow.BINARY, arrow.LARGE_BINARY, arrow.DATE32,
		arrow.TIME32, arrow.TIME64:
		return true
	}
	return false
}

func isText(t arrow.DataType) bool { return t.ID() == arrow.STRING || t.ID() == arrow.LARGE_STRING }

// grows reports a type whose memory is that of the text.
func grows(t arrow.DataType) bool { _, ok := t.(arrow.BinaryDataType); return ok }

// segment is a run of tokenized rows on their way to columns.
type segment struct {
	*rules
	data   []byte
	fields []field
	stride int
	rows   int
	*dialect
	utf8    bool // data is valid
	alloc   memory.Allocator
	chunks  *fileset.Chunks // where data is from
	bad     []badRow        // in order of column, then row
	nulls   []int32         // rows of the column being made
	exact   bool            // its type was found from the sample: Padded digits are no numbers
	buf     []byte          // scratch
	plain   []byte          // scratch
	written []byte          // the last number as it is in the file, if there is a format
}

// value returns the text of a field of a column that is not text; nil if it is null.
func (s *segment) value(f field) []byte { return s.rules.value(s.dialect, f.of(s.data), f, &s.buf) }

// number is value of a number: digits with a point, however that is written.
func (s *segment) number(f field) []byte {
	b := s.value(f)
	if s.format == nil || b == nil {
		return b
	}
	s.written = b
	return s.format.Plain(b, &s.plain)
}

// start is where the first field of a row that is there begins in data.
func (s *segment) start(row int) int {
	for _, f := range s.fields[row*s.stride : (row+1)*s.stride] {
		if f != missing {
			return int(f >> lenBits & (1<<32 - 1))
		}
	}
	return 0 // unreachable: what is missing does not fail
}

// fail notes that b is no value of the column; why may be nil.
func (s *segment) fail(row int, col arrow.Field, b []byte, why error) {
	s.nulls = append(s.nulls, int32(row))
	if s.written != nil {
		b = s.written
	}
	because := ""
	if why != nil {
		because = ": " + why.Error()
	}
	e := fault.New(fault.RowError, "%s is no %s%s; to give the column another type: types: {%s: string}", show(b), typename.Name(col.Type), because, col.Name)
	e.Column = col.Name
	s.bad = append(s.bad, badRow{row, s.start(row), e})
}

// padded says why digits are no number.
func (s *segment) padded(b []byte) error {
	switch {
	case s.exact && textvalue.Padded(b):
		return textvalue.ErrPadded
	case s.exact && textvalue.Rounded(b):
		return textvalue.ErrRounded
	}
	return nil
}

// column makes column c (an ordinal of the wanted ones) of all rows; those that do not
// parse are null and noted in bad. Returns a reference.
func (s *segment) column(c int, col arrow.Field) arrow.Array {
	s.nulls = s.nulls[:0]
	s.exact, s.written = s.types[col.Name] == nil, nil
	switch t := col.Type.(type) {
	case *arrow.Int64Type:
		return ints[int64](s, c, col)
	case *arrow.Int32Type:
		return ints[int32](s, c, col)
	case *arrow.Int16Type:
		return ints[int16](s, c, col)
	case *arrow.Int8Type:
		return ints[int8](s, c, col)
	case *arrow.Uint64Type:
		return uints[uint64](s, c, col)
	case *arrow.Uint32Type:
		return uints[uint32](s, c, col)
	case *arrow.Uint16Type:
		return uints[uint16](s, c, col)
	case *arrow.Uint8Type:
		return uints[uint8](s, c, col)
	case *arrow.Float64Type:
		out, buf := values[float64](s)
		for r := range out {
			b := s.number(s.fields[r*s.stride+c])
			v, ok := 0.0, false
			if b == nil {
				s.nulls = append(s.nulls, int32(r))
			} else if v, ok = textvalue.Float(b, 64); !ok || s.exact && (textvalue.Padded(b) || textvalue.Rounded(b)) {
				s.fail(r, col, b, s.padded(b))
				v = 0
			}
			out[r] = v
		}
		return s.done(col, buf)
	case *arrow.Float32Type:
		out, buf := values[float32](s)
		for r := range out {
			b := s.number(s.fields[r*s.stride+c])
			v, ok := 0.0, false
			if b == nil {
				s.nulls = append(s.nulls, int32(r))
			} else if v, ok = textvalue.Float(b, 32); !ok {
				s.fail(r, col, b, nil)
			}
			out[r] = float32(v)
		}
		return s.done(col, buf)
	case *arrow.Date32Type:
		return parsed[int32](s, c, col, s.format.Date)
	case *arrow.Date64Type:
		return parsed[int64](s, c, col, func(b []byte) (int64, error) {
			d, err := s.format.Date(b)
			return d * 86_400_000, err
		})
	case *arrow.TimestampType:
		stamps, err := textvalue.NewStamps(t, s.format, s.exact)
		if err != nil { // the zone was checked
			panic(err)
		}
		return parsed[int64](s, c, col, stamps.Read)
	case *arrow.Time32Type:
		return parsed[int32](s, c, col, func(b []byte) (int64, error) { return textvalue.Clock(b, t.Unit) })
	case *arrow.Time64Type:
		return parsed[int64](s, c, col, func(b []byte) (int64, error) { return textvalue.Clock(b, t.Unit) })
	case *arrow.BooleanType:
		buf := newBuffer(s.alloc, int(bitutil.BytesForBits(int64(s.rows))))
		clear(buf.Bytes())
		for r := range s.rows {
			b := s.value(s.fields[r*s.stride+c])
			if b == nil {
				s.nulls = append(s.nulls, int32(r))
			} else if v, ok := s.bool(b); !ok {
				s.fail(r, col, b, nil)
			} else if v {
				bitutil.SetBit(buf.Bytes(), r)
			}
		}
		return s.done(col, buf)
	case *arrow.Decimal128Type:
		return s.decimals(c, col, t)
	case *arrow.FixedSizeBinaryType:
		return s.fixed(c, col, t.ByteWidth)
	case *arrow.StringType, *arrow.BinaryType:
		return texts[int32](s, c, col)
	}
	return texts[int64](s, c, col)
}

// int reads a value of a column of integers with a sign.
func (s *segment) int(b []byte) (int64, bool) {
	if s.exact {
		return textvalue.Int(b)
	}
	return textvalue.GivenInt(b)
}

// uint does so of integers without.
func (s *segment) uint(b []byte) (uint64, bool) {
	if s.exact {
		return textvalue.Uint(b)
	}
	return textvalue.GivenUint(b)
}

// bool reads a value of a column of booleans.
func (s *segment) bool(b []byte) (v, ok bool) {
	if s.exact {
		return textvalue.Bool(b)
	}
	return textvalue.GivenBool(b)
}

// binary is the bytes of a field that is not null, in scratch perhaps.
func (s *segment) binary(f field) ([]byte, error) {
	b := f.of(s.data)
	if f&escaped != 0 {
		s.buf = s.unquote(s.buf[:0], b, f)
		b = s.buf
	}
	if !s.Binary.Base64() {
		return b, nil
	}
	out, err := base64.StdEncoding.AppendDecode(s.plain[:0], bytes.TrimSpace(b))
	s.plain = out
	return out, err
}

// fixed makes columns of bytes of one length.
func (s *segment) fixed(c int, col arrow.Field, width int) arrow.Array {
	buf := newBuffer(s.alloc, s.rows*width)
	clear(buf.Bytes())
	for r := range s.rows {
		f := s.fields[r*s.stride+c]
		if s.nullWord(f.of(s.data), f, true) {
			s.nulls = append(s.nulls, int32(r))
			continue
		}
		b, err := s.binary(f)
		if err == nil && len(b) != width {
			err = fmt.Errorf("it has %d bytes", len(b))
		}
		if err != nil {
			s.fail(r, col, f.of(s.data), err)
			continue
		}
		copy(buf.Bytes()[r*width:], b)
	}
	return s.done(col, buf)
}

// values allocates one value for every row.
func values[T any](s *segment) ([]T, *memory.Buffer) {
	return allocate[T](s.alloc, s.rows)
}

func allocate[T any](alloc memory.Allocator, n int) ([]T, *memory.Buffer) {
	buf := newBuffer(alloc, n*int(unsafe.Sizeof(*new(T))))
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(buf.Bytes()))), n), buf
}

func newBuffer(alloc memory.Allocator, n int) *memory.Buffer {
	b := memory.NewResizableBuffer(alloc)
	b.Resize(n)
	return b
}

// done makes the array of bufs, whose references it takes over.
func (s *segment) done(col arrow.Field, bufs ...*memory.Buffer) arrow.Array {
	all := append(make([]*memory.Buffer, 1, 3), bufs...)
	if len(s.nulls) > 0 {
		v := newBuffer(s.alloc, int(bitutil.BytesForBits(int64(s.rows))))
		memory.Set(v.Bytes(), 0xFF)
		for _, r := range s.nulls {
			bitutil.ClearBit(v.Bytes(), int(r))
		}
		all[0] = v
	}
	d := array.NewData(col.Type, s.rows, all, nil, len(s.nulls), 0)
	defer d.Release()
	for _, b := range all {
		if b != nil {
			b.Release()
		}
	}
	return array.MakeFromData(d)
}

func ints[T int8 | int16 | int32 | int64](s *segment, c int, col arrow.Field) arrow.Array {
	out, buf := values[T](s)
	for r := range out {
		b := s.number(s.fields[r*s.stride+c])
		v, ok := int64(0), false
		if b == nil {
			s.nulls = append(s.nulls, int32(r))
		} else if v, ok = s.int(b); !ok || int64(T(v)) != v || s.exact && textvalue.Padded(b) {
			s.fail(r, col, b, s.padded(b))
			v = 0
		}
		out[r] = T(v)
	}
	return s.done(col, buf)
}

func uints[T uint8 | uint16 | uint32 | uint64](s *segment, c int, col arrow.Field) arrow.Array {
	out, buf := values[T](s)
	for r := range out {
		b := s.number(s.fields[r*s.stride+c])
		v, ok := uint64(0), false
		if b == nil {
			s.nulls = append(s.nulls, int32(r))
		} else if v, ok = s.uint(b); !ok || uint64(T(v)) != v || s.exact && textvalue.Padded(b) {
			s.fail(r, col, b, s.padded(b))
			v = 0
		}
		out[r] = T(v)
	}
	return s.done(col, buf)
}

// parsed is a column of numbers that parse makes of fields.
func parsed[T int32 | int64](s *segment, c int, col arrow.Field, parse func([]byte) (int64, error)) arrow.Array {
	out, buf := values[T](s)
	for r := range out {
		b := s.value(s.fields[r*s.stride+c])
		var v int64
		var err error
		if b == nil {
			s.nulls = append(s.nulls, int32(r))
		} else if v, err = parse(b); err != nil {
			s.fail(r, col, b, err)
			v = 0
		}
		out[r] = T(v)
	}
	return s.done(col, buf)
}

func (s *segment) decimals(c int, col arrow.Field, t *arrow.Decimal128Type) arrow.Array {
	out, buf := values[decimal128.Num](s)
	for r := range out {
		b := s.number(s.fields[r*s.stride+c])
		out[r] = decimal128.Num{}
		if b == nil {
			s.nulls = append(s.nulls, int32(r))
		} else if v, ok := textvalue.Decimal(b, int(t.Precision), int(t.Scale)); !ok {
			s.fail(r, col, b, nil)
		} else {
			out[r] = v
		}
	}
	return s.done(col, buf)
}

// texts makes columns of strings and binaries, with 32- or 64-bit offsets.
func texts[T int32 | int64](s *segment, c int, col arrow.Field) arrow.Array {
	total := 0
	for r := range s.rows {
		total += s.fields[r*s.stride+c].len()
	}
	str := isText(col.Type)
	out, offs := allocate[T](s.alloc, s.rows+1)
	out[0] = 0
	if data := s.lent(c, str); data != nil {
		out[1] = T(data.Len())
		return s.done(col, offs, data)
	}
	data := newBuffer(s.alloc, total)
	mem := data.Bytes()
	n := 0
	for r := range s.rows {
		f := s.fields[r*s.stride+c]
		b := f.of(s.data)
		if s.nullWord(b, f, true) {
			s.nulls = append(s.nulls, int32(r))
			out[r+1] = T(n)
			continue
		}
		switch {
		case !str:
			if b, err := s.binary(f); err == nil {
				n += copy(mem[n:], b)
			} else {
				s.fail(r, col, f.of(s.data), err)
			}
		case !s.utf8 && !utf8.Valid(b):
			s.nulls = append(s.nulls, int32(r))
			e := fault.New(fault.RowError, "%s is not valid UTF-8; say with encoding what it is, read the column as bytes (types: {%s: binary}), or convert the file", show(b), col.Name)
			e.Column = col.Name
			s.bad = append(s.bad, badRow{r, s.start(r), e})
		case f&escaped != 0:
			n += len(s.unquote(mem[n:n], b, f))
		default:
			n += copy(mem[n:], b)
		}
		out[r+1] = T(n)
	}
	if n < total {
		data.ResizeNoShrink(n)
	}
	return s.done(col, offs, data)
}

// lent is the memory of the text of the only row, if that is in a line so long that it is not copied: what needs to be undone of quotes is
// undone where it lies. nil: it is to be copied.
func (s *segment) lent(c int, str bool) *memory.Buffer {
	if s.rows != 1 || !str || s.fields[c].len() < lendBytes {
		return nil
	}
	f := s.fields[c]
	b := f.of(s.data)
	if s.nullWord(b, f, true) || !s.utf8 && !utf8.Valid(b) {
		return nil
	}
	used := 0
	for _, f := range s.fields {
		used += f.len()
	}
	buf := s.chunks.Lend(b, used)
	if buf != nil && f&escaped != 0 {
		buf.ResizeNoShrink(len(s.unquote(b[:0], b, f)))
	}
	return buf
}

// lendBytes is what a field has at least that is not copied from a long line.
const lendBytes = 64 << 10

// bytesOf is s as bytes that must not be changed.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }
