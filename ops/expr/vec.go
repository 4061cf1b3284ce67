package expr

import (
	"encoding/binary"
	"math/bits"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
)

// scalar is one value of a type, known when the expression is bound.
type scalar struct {
	typ   arrow.DataType
	valid bool
	i     int64   // bool (0, 1), integers (uint64 by its bits), dates, times
	f     float64 // floats
	s     string  // string and binary types
	d     decimal128.Num
}

// vec is a column of values on the way through an expression: one value for all
// rows, or arrays of one value per row.
type vec struct {
	typ  arrow.DataType
	n    int
	lit  *scalar
	data arrow.ArrayData // an owned reference; nil if lit is set
}

func (v vec) release() {
	if v.data != nil {
		v.data.Release()
	}
}

func (v vec) isNull() bool { return v.lit != nil && !v.lit.valid }

// valid are the bits of rows that are not null, all ones for a valid literal.
func (v vec) valid() bitmap {
	if v.data == nil {
		return bitmap{none: v.isNull()}
	}
	return validBits(v.data)
}

func validBits(d arrow.ArrayData) bitmap {
	if d.DataType().ID() == arrow.NULL {
		return bitmap{none: true}
	}
	if b := d.Buffers(); d.NullN() != 0 && len(b) > 0 && b[0] != nil && b[0].Len() > 0 {
		return bitmap{b: b[0].Bytes(), off: d.Offset()}
	}
	return bitmap{}
}

// bools are the values of a boolean vec that is no literal.
func (v vec) bools() bitmap {
	if b := v.data.Buffers()[1]; b != nil {
		return bitmap{b: b.Bytes(), off: v.data.Offset()}
	}
	return bitmap{none: true}
}

// fixed are the values of a vec of fixed width that is no literal.
func fixed[T any](v vec) []T { return fixedOf[T](v.data) }

func fixedOf[T any](d arrow.ArrayData) []T {
	b := d.Buffers()[1]
	if b == nil || b.Len() == 0 {
		return make([]T, d.Len()) // an array of length 0 has no buffer
	}
	return cast[T](b.Bytes())[d.Offset() : d.Offset()+d.Len()]
}

// cast reads bytes as values of T; what is left over is dropped.
func cast[T any](b []byte) []T {
	var z T
	if len(b) < int(unsafe.Sizeof(z)) {
		return nil
	}
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(z)))
}

// bitmap is a sequence of bits that begins at bit off of b; without b all bits
// are one, or zero if none.
type bitmap struct {
	b    []byte
	off  int
	none bool
}

func (s bitmap) all() bool { return s.b == nil && !s.none }

// word returns bits 64k to 64k+63; those beyond the end of b are zero.
func (s bitmap) word(k int) uint64 {
	if s.b == nil {
		if s.none {
			return 0
		}
		return ^uint64(0)
	}
	p := s.off + k*64
	i, shift := p>>3, uint(p&7)
	if i+9 <= len(s.b) {
		w := binary.LittleEndian.Uint64(s.b[i:]) >> shift
		return w | uint64(s.b[i+8])<<(64-shift) // a shift by 64 gives 0
	}
	var tail [9]byte
	if i < len(s.b) {
		copy(tail[:], s.b[i:])
	}
	w := binary.LittleEndian.Uint64(tail[:]) >> shift
	return w | uint64(tail[8])<<(64-shift)
}

func (s bitmap) bit(i int) bool {
	if s.b == nil {
		return !s.none
	}
	i += s.off
	return s.b[i>>3]>>(i&7)&1 == 1
}

func words(n int) int { return (n + 63) / 64 }

// tailMask has ones for the rows of word k below n.
func tailMask(k, n int) uint64 {
	if left := n - k*64; left < 64 {
		return 1<<left - 1
	}
	return ^uint64(0)
}

// exec is one evaluation: a batch, where it comes from, and the first failure.
type exec struct {
	cols []arrow.ArrayData // of the batch, borrowed
	n    int
	rows *Rows
	mem  memory.Allocator
	most int // bytes of a string array; 0: no bound but that of its type
	// sel has a bit for each row whose result matters, nil for all: errors of other
	// rows are not errors. Only the right sides of && || ?: and coalesce narrow it.
	sel []uint64
	// at is the first row that failed, with why; err is a failure of the whole batch.
	at  int
	row error
	err error
}

// failRow reports that row i failed; the first row counts, and of one row the
// first failure.
func (x *exec) failRow(i int, why func(i int) string) {
	if x.row == nil || i < x.at {
		x.at, x.row = i, fault.New(fault.RowError, "%s", why(i)).At(fault.Place{Row: fault.N(int64(i))})
	}
}

func (x *exec) selected(i int) bool { return x.sel == nil || x.sel[i>>6]>>(i&63)&1 == 1 }

// failBatch reports a failure that no single row is to blame for.
func (x *exec) failBatch(err error) {
	if x.err == nil {
		x.err = err
	}
}

// alloc returns a buffer of size bytes, its contents undefined.
func (x *exec) alloc(size int) *memory.Buffer { return allocBuffer(x.mem, size) }

func allocBuffer(mem memory.Allocator, size int) *memory.Buffer {
	b := memory.NewResizableBuffer(mem)
	b.Resize(size)
	return b
}

// allocOf returns a buffer with room for n values of T, and the values.
func allocOf[T any](mem memory.Allocator, n int) (*memory.Buffer, []T) {
	var z T
	b := allocBuffer(mem, n*int(unsafe.Sizeof(z)))
	return b, cast[T](b.Bytes())
}

// allocBits returns a buffer for n bits as whole words.
func allocBits(mem memory.Allocator, n int) (*memory.Buffer, []uint64) {
	return allocOf[uint64](mem, words(n))
}

// array makes a vec of buffers and takes over the references to them. A nil
// validity means no nulls.
func (x *exec) array(t arrow.DataType, n int, valid *memory.Buffer, bufs ...*memory.Buffer) vec {
	return vec{typ: t, n: n, data: makeData(t, n, valid, nil, bufs...)}
}

// makeData takes over buffers and children.
func makeData(t arrow.DataType, n int, valid *memory.Buffer, children []arrow.ArrayData, bufs ...*memory.Buffer) arrow.ArrayData {
	nulls := 0
	if valid != nil {
		nulls = n - ones(cast[uint64](valid.Bytes()), n)
		if nulls == 0 {
			valid.Release()
			valid = nil
		}
	}
	all := append([]*memory.Buffer{valid}, bufs...)
	d := array.NewData(t, n, all, children, nulls, 0)
	for _, b := range all {
		if b != nil {
			b.Release()
		}
	}
	for _, c := range children {
		c.Release()
	}
	return d
}

// ones counts the bits below n.
func ones(ws []uint64, n int) int {
	c := 0
	for k := range words(n) {
		c += bits.OnesCount64(ws[k] & tailMask(k, n))
	}
	return c
}

// valid returns the bits of rows where every one of vs is valid: a reference to
// a buffer that begins at bit 0, whole words long, or nil for all.
func (x *exec) valid(n int, vs ...vec) *memory.Buffer {
	var have [4]bitmap
	in := have[:0]
	for _, v := range vs {
		if b := v.valid(); !b.all() {
			in = append(in, b)
		}
	}
	return x.andBits(n, in...)
}

// andBits is the conjunction of bitmaps as a new buffer; nil of none.
func (x *exec) andBits(n int, in ...bitmap) *memory.Buffer {
	if len(in) == 0 {
		return nil
	}
	buf, out := allocBits(x.mem, n)
	for k := range out {
		out[k] = in[0].word(k)
	}
	for _, b := range in[1:] {
		for k := range out {
			out[k] &= b.word(k)
		}
	}
	return buf
}

// nulls is a vec of n nulls.
func (x *exec) nulls(t arrow.DataType, n int) vec {
	return vec{typ: t, n: n, lit: &scalar{typ: t}}
}

// expand makes arrays of a literal; it takes over v.
func (x *exec) expand(v vec) vec {
	if v.data != nil {
		return v
	}
	n, s := v.n, v.lit
	if !s.valid {
		d, err := nullData(v.typ, n, x.mem)
		if err != nil {
			x.failBatch(err)
			d = array.NewData(arrow.Null, n, []*memory.Buffer{nil}, nil, n, 0)
		}
		return vec{typ: v.typ, n: n, data: d}
	}
	switch p := physOf(v.typ); p {
	case pBool:
		buf, out := allocBits(x.mem, n)
		for k := range out {
			out[k] = -uint64(s.i)
		}
		return x.array(v.typ, n, nil, buf)
	case pString, pLarge, pFixed:
		o := newStrings(x, v.typ, n, nil)
		for range n {
			o.add(s.s)
		}
		return o.done()
	case pDec:
		return x.repeat16(v, s.d)
	default:
		return expandNum[p](x, v)
	}
}

func (x *exec) repeat16(v vec, d decimal128.Num) vec {
	buf, out := allocOf[decimal128.Num](x.mem, v.n)
	for i := range out {
		out[i] = d
	}
	return x.array(v.typ, v.n, nil, buf)
}

var expandNum = perNum(
	repeat[int8], repeat[int16], repeat[int32], repeat[int64], repeat[uint8], repeat[uint16], repeat[uint32], repeat[uint64], repeat[float32], repeat[float64])

func repeat[T number](x *exec, v vec) vec {
	buf, out := allocOf[T](x.mem, v.n)
	t := litOf[T](v.lit)
	for i := range out {
		out[i] = t
	}
	return x.array(v.typ, v.n, nil, buf)
}

// phys is how values of a type lie in memory.
type phys uint8

const (
	pI8 phys = iota
	pI16
	pI32
	pI64
	pU8
	pU16
	pU32
	pU64
	pF32
	pF64
	pBool
	pString // 32 bit offsets
	pLarge  // 64 bit offsets
	pFixed  // fixed_size_binary
	pDec    // decimal128
	pOther
)

func physOf(t arrow.DataType) phys {
	switch t.ID() {
	case arrow.INT8:
		return pI8
	case arrow.INT16:
		return pI16
	case arrow.INT32, arrow.DATE32, arrow.TIME32:
		return pI32
	case arrow.INT64, arrow.DATE64, arrow.TIME64, arrow.TIMESTAMP, arrow.DURATION:
		return pI64
	case arrow.UINT8:
		return pU8
	case arrow.UINT16:
		return pU16
	case arrow.UINT32:
		return pU32
	case arrow.UINT64:
		return pU64
	case arrow.FLOAT32:
		return pF32
	case arrow.FLOAT64:
		return pF64
	case arrow.BOOL:
		return pBool
	case arrow.STRING, arrow.BINARY:
		return pString
	case arrow.LARGE_STRING, arrow.LARGE_BINARY:
		return pLarge
	case arrow.FIXED_SIZE_BINARY:
		return pFixed
	case arrow.DECIMAL128:
		return pDec
	}
	return pOther
}

// number are the types that arithmetic runs on.
type number interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64 | float32 | float64
}

type integer interface {
	int8 | int16 | int32 | int64 | uint8 | uint16 | uint32 | uint64
}

type float interface{ float32 | float64 }

// perNum is a table of one function per numeric layout, to be indexed by phys.
func perNum[F any](i8, i16, i32, i64, u8, u16, u32, u64, f32, f64 F) [pF64 + 1]F {
	return [...]F{i8, i16, i32, i64, u8, u16, u32, u64, f32, f64}
}

func isFloat[T number]() bool { var one T = 1; return one/2 != 0 }

// litOf is the value of a valid literal, which was converted to T's type when bound.
func litOf[T number](s *scalar) T {
	if isFloat[T]() {
		return T(s.f)
	}
	return T(s.i)
}

// values are a vec's as a slice, or one literal.
func values[T number](v vec) (col []T, lit T) {
	if v.lit != nil {
		if v.lit.valid {
			lit = litOf[T](v.lit)
		}
		return nil, lit
	}
	return fixed[T](v), 0
}

func checkLen(name string, want, got int64) error {
	if want != got {
		return fault.New(fault.Internal, "%s: %d rows instead of %d", name, got, want)
	}
	return nil
}
