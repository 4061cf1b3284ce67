package gather

import (
	"math"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/mem"
)

// view reads bytes as values of a type without pointers. Processors that Penstock
// runs on read such values at any address.
func view[T any](b []byte) []T {
	if len(b) == 0 {
		return nil
	}
	var z T
	return unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(b))), len(b)/int(unsafe.Sizeof(z)))
}

// Fixed gathers values of width bytes into dst, which must hold the rows of all runs;
// srcs[i] begins at row 0 of record i.
func Fixed(dst []byte, width int, srcs [][]byte, runs []Run) {
	switch width {
	case 1:
		fixed[uint8](dst, srcs, runs)
	case 2:
		fixed[uint16](dst, srcs, runs)
	case 4:
		fixed[uint32](dst, srcs, runs)
	case 8:
		fixed[uint64](dst, srcs, runs)
	case 16:
		fixed[[2]uint64](dst, srcs, runs)
	default:
		if width > minRow {
			rows(dst, width, srcs, runs, len(runs))
			return
		}
		o := 0
		for _, r := range runs {
			at := int(r.Row) * width
			o += copy(dst[o:], srcs[r.Rec][at:at+int(r.N)*width])
		}
	}
}

func fixed[T any](dst []byte, srcs [][]byte, runs []Run) {
	to := view[T](dst)
	from := make([][]T, len(srcs))
	for i, s := range srcs {
		from[i] = view[T](s)
	}
	for len(runs) > 0 {
		// Single rows, as long as they come: into places of which the compiler knows that they are there.
		n := 0
		for n < len(runs) && runs[n].N == 1 {
			n++
		}
		out := to[:n]
		for i := range out {
			r := &runs[i]
			out[i] = from[r.Rec][r.Row]
		}
		to, runs = to[n:], runs[n:]
		if len(runs) > 0 {
			r := runs[0]
			n := copy(to, from[r.Rec][r.Row:int(r.Row)+int(r.N)])
			to, runs = to[n:], runs[1:]
		}
	}
}

type offset interface{ int32 | int64 }

// offsets returns the offsets of every source from row 0 on; nil where there are none.
func offsets[O offset](b *build) [][]O {
	out := make([][]O, len(b.srcs))
	for i, s := range b.bytes(1, int(unsafe.Sizeof(O(0)))) {
		out[i] = view[O](s)
	}
	return out
}

// ends adds the buffer of offsets from the lengths of all rows, and returns their sum.
func ends[O offset](b *build, offs [][]O, dt arrow.DataType) (int, error) {
	out := view[O](b.buffer((b.rows + 1) * int(unsafe.Sizeof(O(0)))))
	out[0] = 0
	var total int64
	o := 1
	for _, r := range b.runs {
		if r.N == 0 {
			continue
		}
		from := offs[r.Rec][r.Row : int(r.Row)+int(r.N)+1]
		if r.N == 1 {
			total += int64(from[1] - from[0])
			out[o] = O(total)
			o++
			continue
		}
		shift := O(total) - from[0] // where it does not fit, the sum below says so
		to := out[o : o+len(from)-1]
		for i, end := range from[1:] {
			to[i] = end + shift
		}
		o += len(to)
		total += int64(from[len(from)-1] - from[0])
	}
	if total > math.MaxInt32 && unsafe.Sizeof(O(0)) == 4 {
		return 0, fault.New(fault.Exhausted, "%d rows of %s hold %d bytes or values, more than the %d that 32-bit offsets can name: make batches smaller, or cast the column to its large type",
			b.rows, dt, total, math.MaxInt32)
	}
	return int(total), nil
}

func binary[O offset](b *build, dt arrow.DataType) error {
	offs := offsets[O](b)
	total, err := ends(b, offs, dt)
	if err != nil {
		return err
	}
	vals := make([][]byte, len(b.srcs))
	for i, s := range b.srcs {
		if x := s.Buffers()[2]; x != nil {
			vals[i] = x.Bytes()
		}
	}
	dst := b.buffer(total)
	o := 0
	for _, r := range b.runs {
		if r.N == 0 {
			continue
		}
		f := offs[r.Rec]
		o += copy(dst[o:], vals[r.Rec][f[r.Row]:f[int(r.Row)+int(r.N)]])
	}
	return nil
}

// list gathers lists and maps: every run of lists is one run of their child's rows.
func list[O offset](b *build, dt arrow.DataType) error {
	offs := offsets[O](b)
	total, err := ends(b, offs, dt)
	if err != nil {
		return err
	}
	kids := make([]source, len(b.srcs))
	for i, s := range b.srcs {
		c := s.Children()[0]
		kids[i] = source{c, c.Offset()}
	}
	runs := make([]Run, 0, len(b.runs))
	for _, r := range b.runs {
		if r.N == 0 {
			continue
		}
		f := offs[r.Rec]
		from, to := f[r.Row], f[int(r.Row)+int(r.N)]
		if int64(to) > math.MaxInt32 {
			return errWide
		}
		if to > from {
			runs = append(runs, Run{r.Rec, int32(from), int32(to - from)})
		}
	}
	d, err := column(b.alloc, kids, runs, total)
	if err != nil {
		return err
	}
	b.children = append(b.children, d)
	return nil
}

// Lengths writes the length of every row of runs to dst: values of lists and maps,
// bytes of strings and binaries. A null has the length that its offsets give, 0 as a
// rule. dst must hold the rows of all runs. Columns of other types are an Internal error.
func Lengths[T int32 | int64](dst []T, cols []arrow.Array, runs []Run) error {
	b := build{srcs: make([]source, len(cols)), runs: runs}
	for i, c := range cols {
		b.srcs[i] = source{c.Data(), c.Data().Offset()}
	}
	if len(cols) == 0 {
		return nil
	}
	switch t := layout(cols[0].DataType()).(type) {
	case *arrow.StringType, *arrow.BinaryType, *arrow.ListType, *arrow.MapType:
		lengths(dst, offsets[int32](&b), runs)
	case *arrow.LargeStringType, *arrow.LargeBinaryType, *arrow.LargeListType:
		lengths(dst, offsets[int64](&b), runs)
	default:
		return fault.New(fault.Internal, "rows of %s have no lengths", t)
	}
	return nil
}

func lengths[T int32 | int64, O offset](dst []T, offs [][]O, runs []Run) {
	o := 0
	for _, r := range runs {
		if r.N == 0 {
			continue
		}
		f := offs[r.Rec][r.Row : int(r.Row)+int(r.N)+1]
		for i, end := range f[1:] {
			dst[o+i] = T(end - f[i])
		}
		o += int(r.N)
	}
}

// dictionary gathers indices. Where the records that the runs name have different
// dictionaries, these are merged first, whole, in the order of the records: that costs
// a lookup per entry and call, so unify before where the same records are gathered often.
func (b *build) dictionary(dt arrow.DataType, t *arrow.DictionaryType) (arrow.ArrayData, error) {
	width := t.IndexType.(arrow.FixedWidthDataType).BitWidth() / 8
	dicts, same := b.dicts()
	if same {
		b.fixed(width)
		var dict *array.Data
		for _, d := range dicts {
			if d != nil {
				dict = d.(*array.Data)
				break
			}
		}
		return array.NewDataWithDictionary(dt, b.rows, b.bufs, b.nulls, 0, dict), nil
	}
	if t.ValueType.ID() == arrow.NULL { // the unifier panics
		return nulls(mem.Zeroed{Allocator: b.alloc}, dt, b.rows), nil
	}
	u, err := array.NewDictionaryUnifier(b.alloc, t.ValueType)
	if err != nil {
		return nil, fault.New(fault.Unsupported, "dictionaries of %s that differ cannot be merged: cast the column to %s (%w)", t.ValueType, t.ValueType, err)
	}
	defer u.Release()
	to := make([][]int32, len(b.srcs))
	for i, d := range dicts {
		if d == nil {
			continue
		}
		values := array.MakeFromData(d)
		x, err := u.UnifyAndTranspose(values)
		values.Release()
		if err != nil {
			return nil, fault.New(fault.Unsupported, "dictionaries of %s that differ cannot be merged: cast the column to %s (%w)", t.ValueType, t.ValueType, err)
		}
		defer x.Release()
		to[i] = view[int32](x.Bytes())
	}
	merged, err := u.GetResultWithIndexType(t.IndexType)
	if err != nil {
		return nil, fault.New(fault.Exhausted, "the merged dictionary has more values than %s can name: cast the column to %s (%w)", t.IndexType, t.ValueType, err)
	}
	defer merged.Release()
	dst, srcs := b.buffer(b.rows*width), b.bytes(1, width)
	switch width {
	case 1:
		transpose[uint8](dst, srcs, to, b.runs)
	case 2:
		transpose[uint16](dst, srcs, to, b.runs)
	case 4:
		transpose[uint32](dst, srcs, to, b.runs)
	default:
		transpose[uint64](dst, srcs, to, b.runs)
	}
	return array.NewDataWithDictionary(dt, b.rows, b.bufs, b.nulls, 0, merged.Data().(*array.Data)), nil
}

// transpose gathers indices through the table of their record. What stands under a
// null may be any number; one outside of the table becomes 0.
func transpose[T uint8 | uint16 | uint32 | uint64](dst []byte, srcs [][]byte, tables [][]int32, runs []Run) {
	to := view[T](dst)
	from := make([][]T, len(srcs))
	for i, s := range srcs {
		from[i] = view[T](s)
	}
	o := 0
	for _, r := range runs {
		if r.N == 0 {
			continue
		}
		table := tables[r.Rec]
		for _, v := range from[r.Rec][r.Row : int(r.Row)+int(r.N)] {
			to[o] = 0
			if uint64(v) < uint64(len(table)) {
				to[o] = T(table[v])
			}
			o++
		}
	}
}

// dicts returns the dictionaries of the records that runs name (of the first, if they
// name none), nil for others, and whether they are all the same.
func (b *build) dicts() ([]arrow.ArrayData, bool) {
	used := make([]bool, len(b.srcs))
	for _, r := range b.runs {
		used[r.Rec] = used[r.Rec] || r.N > 0
	}
	out := make([]arrow.ArrayData, len(b.srcs))
	var first arrow.ArrayData
	same := true
	for i, s := range b.srcs {
		if !used[i] {
			continue
		}
		out[i] = s.Dictionary()
		if first == nil {
			first = out[i]
		} else if same && !sameData(first, out[i]) {
			same = false
		}
	}
	if first == nil {
		out[0] = b.srcs[0].Dictionary()
	}
	return out, same
}

func sameData(a, b arrow.ArrayData) bool {
	if a == b || a.Len() == b.Len() && a.Offset() == b.Offset() && sameBuffers(a.Buffers(), b.Buffers()) && len(a.Children()) == 0 && len(b.Children()) == 0 {
		return true
	}
	x, y := array.MakeFromData(a), array.MakeFromData(b)
	defer x.Release()
	defer y.Release()
	return array.Equal(x, y)
}

func sameBuffers(a, b []*memory.Buffer) bool {
	for i := range a {
		if i >= len(b) || a[i] != b[i] {
			return false
		}
	}
	return len(a) == len(b)
}
