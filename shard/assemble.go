package shard

import (
	"math"
	"math/bits"
	"strings"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/float16"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
)

// AssembleOptions say what batches look like.
type AssembleOptions struct {
	Rows    int              // rows per batch
	Tensors bool             // tensor form instead of Arrow
	DTypes  map[string]DType // element types by column, in tensor form; others keep their own
}

// Assembler cuts a stream of blocks into batches. Not safe for concurrent use.
type Assembler struct {
	schema *arrow.Schema
	o      AssembleOptions
	alloc  memory.Allocator
	cols   []column // tensor form
	row    int      // bytes of one row of all tensors

	blocks []*exec.Block // waiting, in order
	skip   int           // rows of blocks[0] that were given out
	have   int           // rows waiting
}

type column struct {
	name  string
	from  DType // of the values in Arrow memory
	to    DType
	inner []int // shape of one row
	width int   // product of inner
}

// NewAssembler checks that the options fit the schema. Batches take their
// memory from alloc.
func NewAssembler(schema *arrow.Schema, o AssembleOptions, alloc memory.Allocator) (*Assembler, error) {
	if o.Rows <= 0 {
		return nil, fault.New(fault.Invalid, "rows per batch must be positive, not %d", o.Rows)
	}
	a := &Assembler{schema: schema, o: o, alloc: alloc}
	for name := range o.DTypes {
		if !o.Tensors {
			return nil, fault.New(fault.Invalid, "dtypes are given, but batches are asked for in Arrow form: set Tensors")
		}
		if len(schema.FieldIndices(name)) == 0 {
			return nil, fault.New(fault.Invalid, "dtype for unknown column %q; have %s", name, names(schema))
		}
	}
	if !o.Tensors {
		return a, nil
	}
	for _, f := range schema.Fields() {
		c := column{name: f.Name, width: 1}
		t := f.Type
		for t.ID() == arrow.FIXED_SIZE_LIST {
			l := t.(*arrow.FixedSizeListType)
			c.inner = append(c.inner, int(l.Len()))
			c.width *= int(l.Len())
			t = l.Elem()
		}
		var err error
		if c.from, err = dtypeOf(t); err != nil {
			return nil, fault.New(fault.Invalid, "%w: drop the column, convert it, or take batches in Arrow form", err).At(fault.Place{Column: f.Name})
		}
		if c.to = o.DTypes[f.Name]; c.to == Auto {
			c.to = c.from
		}
		a.cols = append(a.cols, c)
		a.row += c.width * c.to.Size()
	}
	return a, nil
}

func names(s *arrow.Schema) string {
	ns := make([]string, s.NumFields())
	for i, f := range s.Fields() {
		ns[i] = f.Name
	}
	return strings.Join(ns, ", ")
}

// Add takes over a block.
func (a *Assembler) Add(b *exec.Block) {
	n := int(b.Batch.NumRows())
	if n == 0 {
		b.Release()
		return
	}
	a.blocks = append(a.blocks, b)
	a.have += n
}

// Next returns a full batch, or with last also one that is not; nil if there is
// none. The caller owns it.
func (a *Assembler) Next(last bool) (*Batch, error) {
	n := a.o.Rows
	if a.have < n {
		if !last || a.have == 0 {
			return nil, nil
		}
		n = a.have
	}
	b := &Batch{rows: n}
	b.refs.Store(1)
	var err error
	if a.o.Tensors {
		err = a.tensors(b)
	} else {
		b.record, err = a.record(n)
	}
	if err != nil {
		return nil, err
	}
	a.drop(n)
	return b, nil
}

// Close releases what waits.
func (a *Assembler) Close() {
	a.drop(a.have)
}

// drop gives up the first n rows.
func (a *Assembler) drop(n int) {
	a.have -= n
	for n > 0 {
		left := int(a.blocks[0].Batch.NumRows()) - a.skip
		if n < left {
			a.skip += n
			return
		}
		n -= left
		a.blocks[0].Release()
		a.blocks[0] = nil
		a.blocks = a.blocks[1:]
		a.skip = 0
	}
}

// spans calls f for the pieces of blocks that make up the first n rows.
func (a *Assembler) spans(n int, f func(rec arrow.RecordBatch, from, to int) error) error {
	skip := a.skip
	for _, b := range a.blocks {
		if n == 0 {
			return nil
		}
		k := min(n, int(b.Batch.NumRows())-skip)
		if err := f(b.Batch, skip, skip+k); err != nil {
			return err
		}
		n -= k
		skip = 0
	}
	return nil
}

// record gives n rows in Arrow form: a slice where one block holds them, else a copy.
func (a *Assembler) record(n int) (arrow.RecordBatch, error) {
	var parts []arrow.RecordBatch
	defer func() {
		for _, p := range parts {
			p.Release()
		}
	}()
	_ = a.spans(n, func(rec arrow.RecordBatch, from, to int) error {
		parts = append(parts, rec.NewSlice(int64(from), int64(to)))
		return nil
	})
	if len(parts) == 1 {
		parts[0].Retain()
		return parts[0], nil
	}
	cols := make([]arrow.Array, a.schema.NumFields())
	defer func() {
		for _, c := range cols {
			if c != nil {
				c.Release()
			}
		}
	}()
	pieces := make([]arrow.Array, len(parts))
	for i := range cols {
		for j, p := range parts {
			pieces[j] = p.Column(i)
		}
		c, err := array.Concatenate(pieces, a.alloc)
		if err != nil {
			return nil, fault.New(fault.Internal, "joining blocks: %w", err).At(fault.Place{Column: a.schema.Field(i).Name})
		}
		cols[i] = c
	}
	return array.NewRecordBatch(a.schema, cols, int64(n)), nil
}

const align = 64

// tensors fills b with its rows, cast and copied once.
func (a *Assembler) tensors(b *Batch) error {
	n := b.rows
	size := 0
	for _, c := range a.cols {
		size += (n*c.width*c.to.Size() + align - 1) / align * align
	}
	buf := memory.NewResizableBuffer(a.alloc)
	buf.Resize(size)
	all := buf.Bytes()
	b.tensors = make([]Tensor, len(a.cols))
	at := 0
	for i, c := range a.cols {
		k := n * c.width * c.to.Size()
		b.tensors[i] = Tensor{Name: c.name, DType: c.to, Shape: append([]int{n}, c.inner...), Data: all[at : at+k : at+k]}
		at += (k + align - 1) / align * align
	}
	done := 0
	err := a.spans(n, func(rec arrow.RecordBatch, from, to int) error {
		for i, c := range a.cols {
			sz := c.width * c.to.Size()
			if err := c.copy(b.tensors[i].Data[done*sz:(done+to-from)*sz], rec.Column(i), from, to); err != nil {
				return err
			}
		}
		done += to - from
		return nil
	})
	if err != nil {
		buf.Release()
		return err
	}
	b.buf = buf
	return nil
}

// copy casts rows [from, to) of arr into dst.
func (c *column) copy(dst []byte, arr arrow.Array, from, to int) error {
	for {
		if arr.NullN() > 0 {
			for i := from; i < to; i++ {
				if arr.IsNull(i) {
					return fault.New(fault.RowError, "null has no tensor form: filter it out, or use coalesce(%s, ...)", c.name).
						At(fault.Place{Column: c.name})
				}
			}
		}
		l, ok := arr.(*array.FixedSizeList)
		if !ok {
			break
		}
		w := int(l.DataType().(*arrow.FixedSizeListType).Len())
		off := l.Data().Offset()
		arr, from, to = l.ListValues(), (off+from)*w, (off+to)*w
	}
	data := arr.Data()
	lo, hi := data.Offset()+from, data.Offset()+to
	if lo == hi {
		return nil
	}
	raw := data.Buffers()[1].Bytes()
	if c.from == Bool {
		return c.copyBools(dst, raw, lo, hi)
	}
	src := raw[lo*c.from.Size() : hi*c.from.Size()]
	if c.from == c.to {
		copy(dst, src)
		return nil
	}
	bad := -1
	switch c.from {
	case Int8:
		bad = castTo(c.to, dst, view[int8](src))
	case Int16:
		bad = castTo(c.to, dst, view[int16](src))
	case Int32:
		bad = castTo(c.to, dst, view[int32](src))
	case Int64:
		bad = castTo(c.to, dst, view[int64](src))
	case Uint8:
		bad = castTo(c.to, dst, view[uint8](src))
	case Uint16:
		bad = castTo(c.to, dst, view[uint16](src))
	case Uint32:
		bad = castTo(c.to, dst, view[uint32](src))
	case Uint64:
		bad = castTo(c.to, dst, view[uint64](src))
	case Float32:
		bad = castTo(c.to, dst, view[float32](src))
	case Float64:
		bad = castTo(c.to, dst, view[float64](src))
	case Float16:
		halves := view[uint16](src)
		tmp := make([]float32, len(halves))
		for i, h := range halves {
			tmp[i] = float16.FromBits(h).Float32()
		}
		bad = castTo(c.to, dst, tmp)
	}
	if bad >= 0 {
		return fault.New(fault.RowError, "%s does not fit %s: clip or filter it, or ask for a wider dtype", arr.ValueStr(from+bad), c.to).
			At(fault.Place{Column: c.name})
	}
	return nil
}

func (c *column) copyBools(dst, bits []byte, lo, hi int) error {
	tmp := dst
	if c.to != Bool {
		tmp = make([]byte, hi-lo)
	}
	for i := range tmp[:hi-lo] {
		tmp[i] = 0
		if bitutil.BitIsSet(bits, lo+i) {
			tmp[i] = 1
		}
	}
	if c.to != Bool {
		castTo(c.to, dst, tmp) // 0 and 1 fit everywhere
	}
	return nil
}

func view[T any](b []byte) []T {
	var z T
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), len(b)/int(unsafe.Sizeof(z)))
}

type number interface {
	~int8 | ~int16 | ~int32 | ~int64 | ~uint8 | ~uint16 | ~uint32 | ~uint64 | ~float32 | ~float64
}

// castTo converts, and returns the index of the first value that an integer type
// cannot hold (NaN included), or -1. Fractions are cut off; floats are rounded, to
// infinity where they are too large. To Bool, everything but 0 is true.
func castTo[S number](to DType, dst []byte, src []S) int {
	switch to {
	case Bool:
		for i, v := range src {
			dst[i] = 0
			if v != 0 {
				dst[i] = 1
			}
		}
	case Int8:
		return castInt(view[int8](dst), src, math.MinInt8, math.MaxInt8)
	case Int16:
		return castInt(view[int16](dst), src, math.MinInt16, math.MaxInt16)
	case Int32:
		return castInt(view[int32](dst), src, math.MinInt32, math.MaxInt32)
	case Int64:
		return castInt(view[int64](dst), src, math.MinInt64, math.MaxInt64)
	case Uint8:
		return castInt(view[uint8](dst), src, 0, math.MaxUint8)
	case Uint16:
		return castInt(view[uint16](dst), src, 0, math.MaxUint16)
	case Uint32:
		return castInt(view[uint32](dst), src, 0, math.MaxUint32)
	case Uint64:
		return castInt(view[uint64](dst), src, 0, math.MaxUint64)
	case Float32:
		cast(view[float32](dst), src)
	case Float64:
		cast(view[float64](dst), src)
	case Float16:
		d := view[uint16](dst)
		for i, v := range src {
			d[i] = float16.New(float32(v)).Uint16()
		}
	case BFloat16:
		d := view[uint16](dst)
		for i, v := range src {
			d[i] = bfloat16(float32(v))
		}
	}
	return -1
}

func cast[D, S number](dst []D, src []S) {
	dst = dst[:len(src)]
	for i, v := range src {
		dst[i] = D(v)
	}
}

// castInt checks every value before the conversion: what Go does with one that
// does not fit differs between machines.
func castInt[D, S number](dst []D, src []S, lo int64, hi uint64) int {
	dst = dst[:len(src)]
	var z S
	switch any(z).(type) {
	case float32, float64:
		// The first float above hi and, but for 0 and MinInt64 themselves, lo - 1 are exact or beyond.
		top := math.Ldexp(1, bits.Len64(hi))
		for i, v := range src {
			if f := math.Trunc(float64(v)); !(f >= float64(lo) && f < top) {
				return i
			}
			dst[i] = D(v)
		}
	default:
		for i, v := range src {
			if v < 0 && int64(v) < lo || v > 0 && uint64(v) > hi {
				return i
			}
			dst[i] = D(v)
		}
	}
	return -1
}

// bfloat16 rounds to nearest even; NaN stays NaN.
func bfloat16(f float32) uint16 {
	u := math.Float32bits(f)
	if u&0x7fffffff > 0x7f800000 {
		return uint16(u>>16) | 0x40
	}
	return uint16((u + 0x7fff + u>>16&1) >> 16)
}
