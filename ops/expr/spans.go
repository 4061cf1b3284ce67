package expr

import (
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// spans are runs of elements, which lists that are gathered consist of: what lies
// side by side is copied at once, without an index per element.
type spans struct {
	parts []span
	n     int // elements in all
}

type span struct{ from, n int }

// add appends n elements from from on.
func (s *spans) add(from, n int) {
	if n == 0 {
		return
	}
	s.n += n
	if k := len(s.parts); k > 0 && s.parts[k-1].from+s.parts[k-1].n == from {
		s.parts[k-1].n += n
		return
	}
	s.parts = append(s.parts, span{from, n})
}

// takeSpans gathers elements of d. It borrows d.
func takeSpans(d arrow.ArrayData, s *spans, mem memory.Allocator) (arrow.ArrayData, error) {
	if s.n > math.MaxInt32 {
		return nil, tooLarge(d.DataType())
	}
	switch t := d.DataType().(type) {
	case *arrow.BooleanType, *arrow.DictionaryType:
	case *arrow.StringType, *arrow.BinaryType:
		return stringSpans[int32](d, s, mem)
	case *arrow.LargeStringType, *arrow.LargeBinaryType:
		return stringSpans[int64](d, s, mem)
	case *arrow.ListType, *arrow.MapType:
		return listSpans[int32](d, s, mem)
	case *arrow.LargeListType:
		return listSpans[int64](d, s, mem)
	case *arrow.FixedSizeListType:
		var in spans
		for _, p := range s.parts {
			in.add((d.Offset()+p.from)*int(t.Len()), p.n*int(t.Len()))
		}
		child, err := takeSpans(d.Children()[0], &in, mem)
		if err != nil {
			return nil, err
		}
		return makeData(t, s.n, spanBits(validBits(d), s, mem), []arrow.ArrayData{child}), nil
	case *arrow.StructType:
		var kids []arrow.ArrayData
		for _, c := range d.Children() {
			part := array.NewSliceData(c, int64(d.Offset()), int64(d.Offset()+d.Len()))
			k, err := takeSpans(part, s, mem)
			part.Release()
			if err != nil {
				for _, k := range kids {
					k.Release()
				}
				return nil, err
			}
			kids = append(kids, k)
		}
		return makeData(t, s.n, spanBits(validBits(d), s, mem), kids), nil
	case arrow.FixedWidthDataType:
		width := t.Bytes()
		buf := allocBuffer(mem, width*s.n)
		out := buf.Bytes()
		if b := d.Buffers()[1]; b != nil {
			src := b.Bytes()[d.Offset()*width:]
			for _, p := range s.parts {
				out = out[copy(out[:p.n*width], src[p.from*width:]):]
			}
		}
		return makeData(t, s.n, spanBits(validBits(d), s, mem), nil, buf), nil
	}
	if d.Len() > math.MaxInt32 {
		return nil, tooLarge(d.DataType())
	}
	idx := make([]int32, 0, s.n)
	for _, p := range s.parts {
		for i := p.from; i < p.from+p.n; i++ {
			idx = append(idx, int32(i))
		}
	}
	return take(d, picksOf(idx), mem)
}

func stringSpans[O int32 | int64](d arrow.ArrayData, s *spans, mem memory.Allocator) (arrow.ArrayData, error) {
	src := offsets[O](d)
	total := int64(0)
	for _, p := range s.parts {
		total += int64(src[p.from+p.n] - src[p.from])
	}
	if int64(O(total)) != total {
		return nil, tooLarge(d.DataType())
	}
	obuf, offs := allocOf[O](mem, s.n+1)
	dbuf := allocBuffer(mem, int(total))
	out, at, k := dbuf.Bytes(), O(0), 0
	offs[0] = 0
	for _, p := range s.parts {
		lo, hi := src[p.from], src[p.from+p.n]
		for _, o := range src[p.from+1 : p.from+p.n+1] {
			k++
			offs[k] = at + o - lo
		}
		if hi > lo {
			copy(out[at:], d.Buffers()[2].Bytes()[lo:hi])
		}
		at += hi - lo
	}
	return makeData(d.DataType(), s.n, spanBits(validBits(d), s, mem), nil, obuf, dbuf), nil
}

func listSpans[O int32 | int64](d arrow.ArrayData, s *spans, mem memory.Allocator) (arrow.ArrayData, error) {
	src, valid := offsets[O](d), validBits(d)
	obuf, offs := allocOf[O](mem, s.n+1)
	offs[0] = 0
	var in spans
	k := 0
	for _, p := range s.parts {
		for i := p.from; i < p.from+p.n; i++ {
			if valid.bit(i) {
				in.add(int(src[i]), int(src[i+1]-src[i]))
			}
			k++
			offs[k] = O(in.n)
		}
	}
	child, err := takeSpans(d.Children()[0], &in, mem)
	if err != nil {
		obuf.Release()
		return nil, err
	}
	return makeData(d.DataType(), s.n, spanBits(valid, s, mem), []arrow.ArrayData{child}, obuf), nil
}

// spanBits gathers bits; nil if all are one.
func spanBits(b bitmap, s *spans, mem memory.Allocator) *memory.Buffer {
	if b.all() {
		return nil
	}
	buf, out := allocBits(mem, s.n)
	clear(out)
	at := 0
	for _, p := range s.parts {
		from := bitmap{b: b.b, off: b.off + p.from, none: b.none}
		for k := range words(p.n) {
			w := from.word(k) & tailMask(k, p.n)
			i, shift := at>>6, at&63
			out[i] |= w << shift
			n := min(64, p.n-k*64)
			if shift+n > 64 {
				out[i+1] |= w >> (64 - shift)
			}
			at += n
		}
	}
	return buf
}
