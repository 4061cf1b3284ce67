package shard

import (
	"bufio"
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/penstock-data/penstock/internal/typename"
)

// Digest is the SHA-256 of the batch as it is, pads and mask included. It depends
// on names, types and values only, not on their layout in memory.
//
// Hashed is, for each tensor or column in byte order of its name (equal names in
// the order they come in):
//
//	name 0x00 dtype 0x00 dims 0x00 values
//
// dims are decimal numbers joined by ','. A tensor has its dtype, its shape, and
// its data. A column in Arrow form has its number of rows and the lengths of its
// outermost fixed-size lists as dims, the type below those as dtype, and as values:
//
//	bool                        one byte each, 0 or 1
//	numbers, dates, times       little-endian, as wide as they are
//	decimals, binary of a width the same
//	string, binary              rows + 1 offsets (int64, little-endian, from 0), then the bytes
//	list, map                   rows + 1 offsets, then the values of the elements, hashed as a column is;
//	                            those of a map are struct<key, value>
//	fixed_size_list             the values of the elements
//	struct                      the values of its fields, one after the other
//	union                       one byte of type code each, then the values of each member in turn
//	null                        nothing
//
// and then, where the column (element, field) can be null by its schema, one byte
// per value: 1, or 0 for null. A null is zero bytes, an empty string or an empty list;
// what lies below a null list of fixed size or a null struct is null too.
// A dictionary, a view, a run-end encoding, an extension and an encoding with
// long offsets are hashed as the plain values.
//
// Names of dtypes in Arrow form: bool, int8 to int64, uint8 to uint64, float16, float32,
// float64, string, binary, fixed_size_binary(w), date32, date64, time32[s], time64[us],
// timestamp[us], timestamp[us, UTC], duration[us], decimal32(p, s) to decimal256(p, s),
// list<T>, fixed_size_list<T>(n), map<K, V>, struct<name: T, name: T>, null.
// So a batch of numbers that cannot be null has one digest in both forms.
func (b *Batch) Digest() [sha256.Size]byte {
	if b.record != nil {
		return DigestRecord(b.record)
	}
	return DigestTensors(b.tensors)
}

// DigestTensors is the [Batch.Digest] of tensors.
func DigestTensors(ts []Tensor) [sha256.Size]byte {
	d := newDigest()
	for _, i := range byName(len(ts), func(i int) string { return ts[i].Name }) {
		t := ts[i]
		d.header(t.Name, t.DType.String(), t.Shape)
		d.Write(t.Data)
	}
	return d.sum()
}

// DigestRecord is the [Batch.Digest] of a record.
func DigestRecord(rec arrow.RecordBatch) [sha256.Size]byte {
	d := newDigest()
	for _, i := range byName(int(rec.NumCols()), rec.ColumnName) {
		data := rec.Column(i).Data()
		dims := []int{data.Len()}
		t := plain(data.DataType())
		for {
			l, ok := t.(*arrow.FixedSizeListType)
			if !ok {
				break
			}
			dims = append(dims, int(l.Len()))
			t = plain(l.Elem())
		}
		d.header(rec.ColumnName(i), digestType(t), dims)
		d.values(data, rec.Schema().Field(i).Nullable, spans{}.add(data.Offset(), data.Len()))
	}
	return d.sum()
}

// byName is the order of n names by their bytes.
func byName(n int, name func(int) string) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortStableFunc(order, func(i, j int) int { return cmp.Compare(name(i), name(j)) })
	return order
}

// plain is the type of the values, without extensions and encodings.
func plain(t arrow.DataType) arrow.DataType {
	for {
		switch x := t.(type) {
		case arrow.ExtensionType:
			t = x.StorageType()
		case *arrow.DictionaryType:
			t = x.ValueType
		case *arrow.RunEndEncodedType:
			t = x.Encoded()
		default:
			return t
		}
	}
}

func digestType(t arrow.DataType) string {
	switch t := plain(t).(type) {
	case *arrow.Float32Type:
		return "float32"
	case *arrow.Float64Type:
		return "float64"
	case *arrow.LargeStringType, *arrow.StringViewType:
		return "string"
	case *arrow.LargeBinaryType, *arrow.BinaryViewType:
		return "binary"
	case *arrow.Date32Type:
		return "date32"
	case *arrow.TimestampType:
		if t.TimeZone == "" {
			return "timestamp[" + t.Unit.String() + "]"
		}
		return "timestamp[" + t.Unit.String() + ", " + t.TimeZone + "]"
	case *arrow.DurationType:
		return "duration[" + t.Unit.String() + "]"
	case arrow.DecimalType:
		return fmt.Sprintf("decimal%d(%d, %d)", t.BitWidth(), t.GetPrecision(), t.GetScale())
	case *arrow.MapType:
		return "map<" + digestType(t.KeyType()) + ", " + digestType(t.ItemType()) + ">"
	case *arrow.FixedSizeListType:
		return fmt.Sprintf("fixed_size_list<%s>(%d)", digestType(t.Elem()), t.Len())
	case arrow.ListLikeType:
		return "list<" + digestType(t.Elem()) + ">"
	case *arrow.StructType:
		return "struct<" + digestFields(t.Fields()) + ">"
	case arrow.UnionType:
		return "union<" + digestFields(t.Fields()) + ">"
	default:
		return typename.Name(t)
	}
}

func digestFields(fields []arrow.Field) string {
	parts := make([]string, len(fields))
	for i, f := range fields {
		parts[i] = f.Name + ": " + digestType(f.Type)
	}
	return strings.Join(parts, ", ")
}

// digest is a hash behind a buffer: its writes never fail.
type digest struct {
	*bufio.Writer
	sum func() [sha256.Size]byte
}

func newDigest() *digest {
	h := sha256.New()
	d := &digest{Writer: bufio.NewWriterSize(h, 32<<10)}
	d.sum = func() (out [sha256.Size]byte) {
		d.Flush()
		h.Sum(out[:0])
		return out
	}
	return d
}

func (d *digest) header(name, dtype string, dims []int) {
	d.WriteString(name)
	d.WriteByte(0)
	d.WriteString(dtype)
	d.WriteByte(0)
	for i, n := range dims {
		if i > 0 {
			d.WriteByte(',')
		}
		d.WriteString(strconv.Itoa(n))
	}
	d.WriteByte(0)
}

// span is n values from index at of a column's buffers on (the data's offset
// included), or n nulls if at is negative.
type span struct{ at, n int }

// spans are values of a column in the order they are hashed: one for a column that
// lies in one piece and has no nulls.
type spans []span

// add appends, and joins what continues the last span.
func (s spans) add(at, n int) spans {
	if n == 0 {
		return s
	}
	if k := len(s) - 1; k >= 0 && (at < 0 && s[k].at < 0 || s[k].at >= 0 && s[k].at+s[k].n == at) {
		s[k].n += n
		return s
	}
	return append(s, span{at, n})
}

// nulls makes the values that data says are null so.
func (s spans) nulls(data arrow.ArrayData) spans {
	bufs := data.Buffers()
	if data.NullN() == 0 || len(bufs) == 0 || bufs[0] == nil || bufs[0].Len() == 0 {
		return s
	}
	bits := bufs[0].Bytes()
	out := make(spans, 0, len(s))
	for _, x := range s {
		if x.at < 0 {
			out = out.add(-1, x.n)
			continue
		}
		for i := x.at; i < x.at+x.n; i++ {
			if bitutil.BitIsSet(bits, i) {
				out = out.add(i, 1)
			} else {
				out = out.add(-1, 1)
			}
		}
	}
	return out
}

// each is s with every value replaced by what f appends for it; nulls stay.
func (s spans) each(f func(out spans, i int) spans) spans {
	var out spans
	for _, x := range s {
		if x.at < 0 {
			out = out.add(-1, x.n)
			continue
		}
		for i := x.at; i < x.at+x.n; i++ {
			out = f(out, i)
		}
	}
	return out
}

// shift moves spans that count from the first value of data to its buffers.
func (s spans) shift(data arrow.ArrayData) spans {
	out := make(spans, len(s))
	for i, x := range s {
		if x.at >= 0 {
			x.at += data.Offset()
		}
		out[i] = x
	}
	return out
}

// values hashes a column, or what a list or struct has below it.
func (d *digest) values(data arrow.ArrayData, nullable bool, s spans) {
	kids, bufs := data.Children(), data.Buffers()
	t := data.DataType()
	for e, ok := t.(arrow.ExtensionType); ok; e, ok = t.(arrow.ExtensionType) {
		t = e.StorageType()
	}
	switch t := t.(type) {
	case *arrow.DictionaryType:
		dict := data.Dictionary()
		s = s.nulls(data).each(func(out spans, i int) spans { return out.add(integer(bufs[1].Bytes(), t.IndexType, i), 1) })
		d.values(dict, nullable, s.shift(dict))
		return
	case *arrow.RunEndEncodedType:
		s = s.each(func(out spans, i int) spans {
			return out.add(sort.Search(kids[0].Len(), func(k int) bool {
				return integer(kids[0].Buffers()[1].Bytes(), t.RunEnds(), kids[0].Offset()+k) > i
			}), 1)
		})
		d.values(kids[1], nullable, s.shift(kids[1]))
		return
	case arrow.UnionType:
		d.union(data, t, s)
	case *arrow.NullType:
		s = s.each(func(out spans, _ int) spans { return out.add(-1, 1) })
	case *arrow.BooleanType:
		s = s.nulls(data)
		d.fixed(s, 1, func(x span) {
			for i := x.at; i < x.at+x.n; i++ {
				d.WriteByte(bufs[1].Bytes()[i>>3] >> (i & 7) & 1)
			}
		})
	case *arrow.StringType, *arrow.BinaryType, *arrow.LargeStringType, *arrow.LargeBinaryType:
		s = s.nulls(data)
		for _, x := range d.offsets(s, extents(data, t)) {
			d.Write(bufs[2].Bytes()[x.at : x.at+x.n])
		}
	case *arrow.StringViewType, *arrow.BinaryViewType:
		s = s.nulls(data)
		value := views(data)
		d.offsets(s, func(i int) (int, int) { return 0, len(value(i)) })
		s.each(func(_ spans, i int) spans { d.Write(value(i)); return nil })
	case *arrow.FixedSizeListType:
		s = s.nulls(data)
		elems := spans{}
		for _, x := range s {
			elems = elems.add(x.at*int(t.Len()), x.n*int(t.Len()))
		}
		d.values(kids[0], t.ElemField().Nullable, elems.shift(kids[0]))
	case arrow.ListLikeType:
		s = s.nulls(data)
		d.values(kids[0], t.ElemField().Nullable, d.offsets(s, extents(data, t)).shift(kids[0]))
	case *arrow.StructType:
		s = s.nulls(data)
		for i, f := range t.Fields() {
			d.values(kids[i], f.Nullable, s.shift(kids[i]))
		}
	case arrow.FixedWidthDataType:
		s = s.nulls(data)
		w := t.BitWidth() / 8
		d.fixed(s, w, func(x span) { d.Write(bufs[1].Bytes()[x.at*w : (x.at+x.n)*w]) })
	}
	if nullable {
		for _, x := range s {
			v := byte(1)
			if x.at < 0 {
				v = 0
			}
			for range x.n {
				d.WriteByte(v)
			}
		}
	}
}

// fixed calls write for the values, and writes the zeros of nulls, w bytes each.
func (d *digest) fixed(s spans, w int, write func(span)) {
	for _, x := range s {
		if x.at >= 0 {
			write(x)
			continue
		}
		for range x.n * w {
			d.WriteByte(0)
		}
	}
}

// offsets writes where every value begins and the last one ends, and returns what
// lies there.
func (d *digest) offsets(s spans, extent func(i int) (lo, hi int)) spans {
	var out spans
	var b [8]byte
	d.Write(b[:])
	end := 0
	for _, x := range s {
		for i := range x.n {
			if x.at >= 0 {
				lo, hi := extent(x.at + i)
				out = out.add(lo, hi-lo)
				end += hi - lo
			}
			binary.LittleEndian.PutUint64(b[:], uint64(end))
			d.Write(b[:])
		}
	}
	return out
}

// extents returns where value i of strings or lists lies.
func extents(data arrow.ArrayData, t arrow.DataType) func(i int) (lo, hi int) {
	bufs := data.Buffers()
	switch t.ID() {
	case arrow.LIST_VIEW:
		return func(i int) (int, int) {
			at, n := view[int32](bufs[1].Bytes()), view[int32](bufs[2].Bytes())
			return int(at[i]), int(at[i] + n[i])
		}
	case arrow.LARGE_LIST_VIEW:
		return func(i int) (int, int) {
			at, n := view[int64](bufs[1].Bytes()), view[int64](bufs[2].Bytes())
			return int(at[i]), int(at[i] + n[i])
		}
	case arrow.LARGE_STRING, arrow.LARGE_BINARY, arrow.LARGE_LIST:
		at := from[int64](bufs[1], 0)
		return func(i int) (int, int) { return int(at[i]), int(at[i+1]) }
	}
	at := from[int32](bufs[1], 0)
	return func(i int) (int, int) { return int(at[i]), int(at[i+1]) }
}

// views returns the bytes of value i of a view array.
func views(data arrow.ArrayData) func(i int) []byte {
	bufs := data.Buffers()
	return func(i int) []byte {
		h := &view[arrow.ViewHeader](bufs[1].Bytes())[i]
		if h.IsInline() {
			return h.InlineBytes()
		}
		return bufs[2+h.BufferIndex()].Bytes()[h.BufferOffset():][:h.Len()]
	}
}

// union hashes codes, and of every member the values that are in use.
func (d *digest) union(data arrow.ArrayData, t arrow.UnionType, s spans) {
	codes := data.Buffers()[1].Bytes()
	d.fixed(s, 1, func(x span) { d.Write(codes[x.at : x.at+x.n]) })
	for k, kid := range data.Children() {
		mine := spans{}
		for _, x := range s {
			for i := x.at; i >= 0 && i < x.at+x.n; i++ {
				switch {
				case t.ChildIDs()[codes[i]] != k:
				case t.Mode() == arrow.DenseMode:
					mine = mine.add(int(view[int32](data.Buffers()[2].Bytes())[i]), 1)
				default:
					mine = mine.add(i, 1)
				}
			}
		}
		d.values(kid, t.Fields()[k].Nullable, mine.shift(kid))
	}
}

// integer is value i of an integer type.
func integer(b []byte, t arrow.DataType, i int) int {
	switch t.ID() {
	case arrow.INT8:
		return int(int8(b[i]))
	case arrow.UINT8:
		return int(b[i])
	case arrow.INT16:
		return int(view[int16](b)[i])
	case arrow.UINT16:
		return int(view[uint16](b)[i])
	case arrow.INT32:
		return int(view[int32](b)[i])
	case arrow.UINT32:
		return int(view[uint32](b)[i])
	}
	return int(view[int64](b)[i])
}
