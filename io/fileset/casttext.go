package fileset

import (
	"fmt"
	"math"
	"strconv"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/float16"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/textvalue"
	"github.com/penstock-data/penstock/internal/typename"
)

// texts gives the bytes of each row of a string or binary array.
func texts(a arrow.Array) func(i int) []byte {
	d := a.Data()
	if t, ok := d.DataType().(*arrow.FixedSizeBinaryType); ok {
		w := t.ByteWidth
		b := d.Buffers()[1]
		return func(i int) []byte { i += d.Offset(); return b.Bytes()[i*w : i*w+w] }
	}
	at := offsets(a)
	var b []byte
	if d.Buffers()[2] != nil {
		b = d.Buffers()[2].Bytes()
	}
	return func(i int) []byte { return b[at(i):at(i+1)] }
}

// offsets gives where row i of a list, string or binary array begins; that of row Len is its end.
func offsets(a arrow.Array) func(i int) int64 {
	d := a.Data()
	switch t := d.DataType().(type) {
	case *arrow.FixedSizeListType:
		return func(i int) int64 { return int64(d.Offset()+i) * int64(t.Len()) }
	case *arrow.LargeListType, *arrow.LargeStringType, *arrow.LargeBinaryType:
		if d.Buffers()[1] == nil || d.Buffers()[1].Len() == 0 {
			return func(int) int64 { return 0 }
		}
		o := valuesIn[int64](d.Buffers()[1].Bytes())[d.Offset():]
		return func(i int) int64 { return o[i] }
	}
	if d.Buffers()[1] == nil || d.Buffers()[1].Len() == 0 {
		return func(int) int64 { return 0 }
	}
	o := valuesIn[int32](d.Buffers()[1].Bytes())[d.Offset():]
	return func(i int) int64 { return int64(o[i]) }
}

// quoted is a text for an error.
func quoted(b []byte) string {
	if len(b) > 60 {
		return strconv.Quote(string(b[:57])) + "..."
	}
	return strconv.Quote(string(b))
}

// castBytes converts between strings and binary, of any sizes of offsets. Strings are UTF-8.
func castBytes(from, to arrow.DataType) *caster {
	check := isText(to) && !isText(from)
	c := &caster{to: to, fails: check}
	width := -1
	if t, ok := to.(*arrow.FixedSizeBinaryType); ok {
		width, c.fails = t.ByteWidth, true
	}
	c.array = func(a arrow.Array, alloc memory.Allocator, bad report) (arrow.Array, error) {
		n, at := a.Len(), texts(a)
		if n == 0 {
			return gather.Nulls(alloc, to, 0), nil
		}
		for i := 0; c.fails && i < n; i++ {
			switch b := at(i); {
			case a.IsNull(i), bad.has(i):
			case check && !utf8.Valid(b):
				bad.add(i, quoted(b)+" is not UTF-8")
			case width >= 0 && len(b) != width:
				bad.add(i, fmt.Sprintf("%d bytes do not fit %s", len(b), typename.Name(to)))
			}
		}
		valid := validity(a, alloc)
		d := a.Data()
		if width >= 0 {
			out := newBuffer(alloc, n*width)
			clear(out.Bytes())
			for i := range n {
				if b := at(i); a.IsValid(i) && len(b) == width {
					copy(out.Bytes()[i*width:], b)
				}
			}
			return fromBuffers(to, n, a.NullN(), valid, out), nil
		}
		data := d.Buffers()[len(d.Buffers())-1] // of a fixed size, and of others
		if data != nil {
			data.Retain()
		} else {
			data = newBuffer(alloc, 0)
		}
		where := func(i int) int64 { return int64(d.Offset()+i) * int64(widthOf(from)) }
		if widthOf(from) < 0 {
			where = offsets(a)
		}
		if to.ID() == arrow.LARGE_STRING || to.ID() == arrow.LARGE_BINARY {
			return fromBuffers(to, n, a.NullN(), valid, offsetsOf[int64](n, 0, where, alloc), data), nil
		}
		if where(n) > math.MaxInt32 {
			data.Release()
			if valid != nil {
				valid.Release()
			}
			return nil, fault.New(fault.Unsupported, "%d rows take more than 2 GiB; use the type large_%s", n, typename.Name(to))
		}
		return fromBuffers(to, n, a.NullN(), valid, offsetsOf[int32](n, 0, where, alloc), data), nil
	}
	return c
}

func widthOf(t arrow.DataType) int {
	if t, ok := t.(*arrow.FixedSizeBinaryType); ok {
		return t.ByteWidth
	}
	return -1
}

// offsetsOf makes the buffer of the offsets of n rows, less base.
func offsetsOf[T int32 | int64](n int, base int64, at func(i int) int64, alloc memory.Allocator) *memory.Buffer {
	var z T
	buf := newBuffer(alloc, (n+1)*arrow.GetDataType[T]().(arrow.FixedWidthDataType).BitWidth()/8)
	out := valuesIn[T](buf.Bytes())
	out[0] = z
	for i := range n + 1 {
		out[i] = T(at(i) - base)
	}
	return buf
}

// parsed reads texts as values.
func parsed(from, to arrow.DataType) *caster {
	if newParser(to) == nil {
		return nil
	}
	return &caster{to: to, fails: true, array: func(a arrow.Array, alloc memory.Allocator, bad report) (arrow.Array, error) {
		b := array.NewBuilder(alloc, to)
		defer b.Release()
		b.Reserve(a.Len())
		parse := newParser(to)
		for i, at := 0, texts(a); i < a.Len(); i++ {
			if a.IsNull(i) || bad.has(i) {
				b.AppendNull()
				continue
			}
			text := at(i)
			v, err := parse(textvalue.Trim(text))
			if err != nil {
				bad.add(i, quoted(text)+" is no "+typename.Name(to)+err.Error())
				b.AppendNull()
				continue
			}
			appendValue(b, v)
		}
		return b.NewArray(), nil
	}}
}

// formatted writes values as text, which reads back as the same value.
func formatted(from, to arrow.DataType) *caster {
	write := writer(from)
	if write == nil {
		return nil
	}
	c := &caster{to: arrow.BinaryTypes.LargeString, array: func(a arrow.Array, alloc memory.Allocator, _ report) (arrow.Array, error) {
		b := array.NewLargeStringBuilder(alloc)
		defer b.Release()
		b.Reserve(a.Len())
		text := write(a)
		for i := range a.Len() {
			if a.IsNull(i) {
				b.AppendNull()
			} else {
				b.Append(text(i))
			}
		}
		return b.NewArray(), nil
	}}
	return c.then(castTo(c.to, to))
}

func writer(t arrow.DataType) func(a arrow.Array) func(i int) string {
	switch n := numberOf(t); {
	case n.float:
		return func(a arrow.Array) func(i int) string {
			float := func(v float64, bits int) string { return strconv.FormatFloat(v, 'g', -1, bits) }
			switch t.ID() {
			case arrow.FLOAT64:
				v := fixed[float64](a)
				return func(i int) string { return float(v[i], 64) }
			case arrow.FLOAT32:
				v := fixed[float32](a)
				return func(i int) string { return float(float64(v[i]), 32) }
			}
			v := fixed[float16.Num](a)
			return func(i int) string { return float(float64(v[i].Float32()), 32) }
		}
	case n.bits > 0, t.ID() == arrow.DATE32:
		return func(a arrow.Array) func(i int) string { return a.ValueStr }
	case t.ID() == arrow.DECIMAL128:
		return func(a arrow.Array) func(i int) string {
			v, scale := fixed[decimal128.Num](a), t.(arrow.DecimalType).GetScale()
			return func(i int) string { return v[i].ToString(scale) }
		}
	case t.ID() == arrow.BOOL:
		return func(a arrow.Array) func(i int) string {
			return func(i int) string { return strconv.FormatBool(a.(*array.Boolean).Value(i)) }
		}
	case t.ID() == arrow.TIMESTAMP:
		w := timeOf(t)
		end := ""
		if zoneOf(t) != "" {
			end = "Z"
		}
		return func(a arrow.Array) func(i int) string {
			v := fixed[int64](a)
			return func(i int) string { return timeText(v[i], w) + end }
		}
	}
	return nil
}
