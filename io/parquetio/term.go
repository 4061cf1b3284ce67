package parquetio

import (
	"bytes"
	"math"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/penstock-data/penstock/io/driver"
)

// maxLoops is how many literals of In are compared one after the other.
const maxLoops = 8

// rowTerm is a term that is held against decoded values: exactly, as driver.Term says.
type rowTerm struct {
	field int // of the decoder's
	op    driver.Op
	// clear makes 0 what m has of rows whose value makes the term not true. Rows that
	// are null may get anything. nil: only nulls count.
	clear func(m []byte, a arrow.ArrayData)
}

// newRowTerm prepares t over a column of type typ. ok is false where type or literals are not
// simple: the term is then not used.
func newRowTerm(t *driver.Term, typ arrow.DataType) (out rowTerm, ok bool) {
	out.op = t.Op
	if t.Op == driver.IsNull || t.Op == driver.NotNull {
		return out, true
	}
	if len(t.Values) == 0 || t.Op != driver.In && len(t.Values) != 1 {
		return out, false
	}
	if d, is := typ.(*arrow.DictionaryType); is {
		if out, ok = newRowTerm(t, d.ValueType); ok {
			out.clear = byEntry(out.clear)
		}
		return out, ok
	}
	switch typ.ID() {
	case arrow.INT8:
		out.clear, ok = integers[int8](t, true)
	case arrow.INT16:
		out.clear, ok = integers[int16](t, true)
	case arrow.INT32, arrow.DATE32, arrow.TIME32:
		out.clear, ok = integers[int32](t, true)
	case arrow.INT64, arrow.TIME64, arrow.TIMESTAMP, arrow.DURATION:
		out.clear, ok = integers[int64](t, true)
	case arrow.UINT8:
		out.clear, ok = integers[uint8](t, false)
	case arrow.UINT16:
		out.clear, ok = integers[uint16](t, false)
	case arrow.UINT32:
		out.clear, ok = integers[uint32](t, false)
	case arrow.UINT64:
		out.clear, ok = integers[uint64](t, false)
	case arrow.FLOAT32:
		out.clear, ok = floats[float32](t)
	case arrow.FLOAT64:
		out.clear, ok = floats[float64](t)
	case arrow.BOOL:
		out.clear, ok = booleans(t)
	case arrow.STRING, arrow.BINARY:
		out.clear, ok = chars[int32](t)
	case arrow.LARGE_STRING, arrow.LARGE_BINARY:
		out.clear, ok = chars[int64](t)
	}
	return out, ok
}

// mark makes 0 what m has of rows for which the term is not true.
func (t *rowTerm) mark(m []byte, a arrow.Array) {
	d := a.Data()
	if t.clear != nil {
		t.clear(m, d)
	}
	if a.NullN() == 0 {
		if t.op == driver.IsNull {
			clear(m)
		}
		return
	}
	valid, off := d.Buffers()[0].Bytes(), d.Offset()
	var flip byte
	if t.op == driver.IsNull {
		flip = 1
	}
	for i := range m {
		k := off + i
		m[i] &= valid[k/8]>>(k%8)&1 ^ flip
	}
}

// byEntry holds a term against the entries of a dictionary, once, and looks rows up by their indexes.
func byEntry(of func([]byte, arrow.ArrayData)) func([]byte, arrow.ArrayData) {
	var last arrow.ArrayData
	var holds []byte
	return func(m []byte, d arrow.ArrayData) {
		if dict := d.Dictionary(); dict != last {
			holds = scratch(&holds, dict.Len())
			setAll(holds, 1)
			of(holds, dict)
			last = dict
		}
		for i, x := range valuesOf[uint32](d, len(m)) {
			if int(x) < len(holds) { // else the row is null
				m[i] &= holds[x]
			}
		}
	}
}

func one(b bool) byte {
	if b {
		return 1
	}
	return 0
}

type integer interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64
}

// valuesOf are the n values of d.
func valuesOf[T integer | float32 | float64](d arrow.ArrayData, n int) []T {
	b := d.Buffers()[1].Bytes()
	size := int(unsafe.Sizeof(*new(T)))
	b = b[d.Offset()*size : (d.Offset()+n)*size]
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), n)
}

// whole brings a literal into 64 bits of the column's sign.
func whole(v any, signed bool) (uint64, bool) {
	switch v := v.(type) {
	case int64:
		return uint64(v), signed || v >= 0
	case uint64:
		return v, !signed || v <= math.MaxInt64
	}
	return 0, false
}

// integers compares with a span of numbers: x is in [lo, lo+width] if x-lo, which wraps, is at most width.
func integers[T integer](t *driver.Term, signed bool) (func([]byte, arrow.ArrayData), bool) {
	if t.Op == driver.In {
		is := make(map[uint64]bool, len(t.Values))
		lits := make([]uint64, len(t.Values))
		for i, v := range t.Values {
			l, ok := whole(v, signed)
			if !ok {
				return nil, false
			}
			is[l], lits[i] = true, l
		}
		if len(lits) > maxLoops {
			return func(m []byte, d arrow.ArrayData) {
				for i, x := range valuesOf[T](d, len(m)) {
					m[i] &= one(is[uint64(x)])
				}
			}, true
		}
		return func(m []byte, d arrow.ArrayData) {
			for i, x := range valuesOf[T](d, len(m)) {
				var in byte
				for _, l := range lits {
					in |= one(uint64(x) == l)
				}
				m[i] &= in
			}
		}, true
	}
	l, ok := whole(t.Values[0], signed)
	if !ok {
		return nil, false
	}
	lowest, highest := uint64(0), uint64(math.MaxUint64)
	if signed {
		lowest, highest = 1<<63, math.MaxInt64
	}
	lo, hi, not, empty := l, l, byte(0), false
	switch t.Op {
	case driver.Ne:
		not = 1
	case driver.Lt:
		lo, hi, empty = lowest, l-1, l == lowest
	case driver.Le:
		lo = lowest
	case driver.Gt:
		lo, hi, empty = l+1, highest, l == highest
	case driver.Ge:
		hi = highest
	}
	if empty {
		return func(m []byte, _ arrow.ArrayData) { clear(m) }, true
	}
	width := hi - lo
	return func(m []byte, d arrow.ArrayData) {
		for i, x := range valuesOf[T](d, len(m)) {
			m[i] &= one(uint64(x)-lo <= width) ^ not
		}
	}, true
}

// floats compares as IEEE says.
func floats[T float32 | float64](t *driver.Term) (func([]byte, arrow.ArrayData), bool) {
	lits := make([]float64, len(t.Values))
	for i, v := range t.Values {
		var ok bool
		if lits[i], ok = v.(float64); !ok {
			return nil, false
		}
	}
	l, op := lits[0], t.Op
	is := map[float64]bool{}
	for _, v := range lits {
		is[v] = true // a NaN is never found
	}
	return func(m []byte, d arrow.ArrayData) {
		v := valuesOf[T](d, len(m))
		switch op {
		case driver.Eq:
			for i, x := range v {
				m[i] &= one(float64(x) == l)
			}
		case driver.Ne:
			for i, x := range v {
				m[i] &= one(float64(x) != l)
			}
		case driver.Lt:
			for i, x := range v {
				m[i] &= one(float64(x) < l)
			}
		case driver.Le:
			for i, x := range v {
				m[i] &= one(float64(x) <= l)
			}
		case driver.Gt:
			for i, x := range v {
				m[i] &= one(float64(x) > l)
			}
		case driver.Ge:
			for i, x := range v {
				m[i] &= one(float64(x) >= l)
			}
		case driver.In:
			for i, x := range v {
				m[i] &= one(is[float64(x)])
			}
		}
	}, true
}

func booleans(t *driver.Term) (func([]byte, arrow.ArrayData), bool) {
	var is [2]byte // by value: whether the term is true
	for _, v := range t.Values {
		l, ok := v.(bool)
		if !ok {
			return nil, false
		}
		for x := range 2 {
			c := x - b2i(l)
			is[x] |= one(compared(t.Op, c))
		}
	}
	return func(m []byte, d arrow.ArrayData) {
		bits, off := d.Buffers()[1].Bytes(), d.Offset()
		for i := range m {
			k := off + i
			m[i] &= is[bits[k/8]>>(k%8)&1]
		}
	}, true
}

// compared reports whether op is true of a value that compares with the literal as c does with 0.
func compared(op driver.Op, c int) bool {
	switch op {
	case driver.Ne:
		return c != 0
	case driver.Lt:
		return c < 0
	case driver.Le:
		return c <= 0
	case driver.Gt:
		return c > 0
	case driver.Ge:
		return c >= 0
	}
	return c == 0
}

// chars compares bytewise.
func chars[O int32 | int64](t *driver.Term) (func([]byte, arrow.ArrayData), bool) {
	is := make(map[string]bool, len(t.Values))
	for _, v := range t.Values {
		s, ok := v.(string)
		if !ok {
			return nil, false
		}
		is[s] = true
	}
	l, in := []byte(t.Values[0].(string)), t.Op == driver.In
	equality := t.Op == driver.Eq || t.Op == driver.Ne
	var want [3]byte // by comparison
	for c := range want {
		want[c] = one(compared(t.Op, c-1))
	}
	return func(m []byte, d arrow.ArrayData) {
		bufs, n := d.Buffers(), len(m)
		if bufs[1] == nil || bufs[1].Len() == 0 {
			return
		}
		var text []byte
		if bufs[2] != nil {
			text = bufs[2].Bytes()
		}
		offs := unsafe.Slice((*O)(unsafe.Pointer(unsafe.SliceData(bufs[1].Bytes()))), d.Offset()+n+1)[d.Offset():]
		for i := range m {
			if m[i] == 0 {
				continue
			}
			s := text[offs[i]:offs[i+1]]
			switch {
			case in:
				m[i] = one(is[string(s)])
			case equality && len(s) != len(l):
				m[i] = want[0] // not equal
			default:
				m[i] = want[bytes.Compare(s, l)+1]
			}
		}
	}, true
}
