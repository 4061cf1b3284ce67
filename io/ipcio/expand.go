package ipcio

import (
	"math"
	"sort"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/internal/cut"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/io/driver"
)

// Run-end encoded values and list views say of many rows in a few bytes what they are: how much
// memory that takes is known, and judged, before it is taken.

// slotCost is what a row or an element counts beside its bytes: the run that it is gathered by
// takes memory, too.
const slotCost = int64(unsafe.Sizeof(gather.Run{}))

// runs gives each row of run-end encoded d its value.
func (p plainer) runs(d arrow.ArrayData) (arrow.ArrayData, error) {
	n := d.Len()
	first, last, longest := int64(0), int64(0), int64(1)
	for k, run := range cut.Runs(d, 0, int64(n)) {
		if last == 0 {
			first = k
		}
		last, longest = k+1, max(longest, run)
	}
	kids, err := p.flattenAll(d.Children()[1:], first, last)
	if err != nil || longest == 1 {
		return one(kids), err
	}
	defer releaseAll(kids)
	if kids[0].DataType().ID() == arrow.NULL {
		return array.NewData(arrow.Null, n, []*memory.Buffer{nil}, nil, n, 0), nil
	}
	size := slotCost * int64(n)
	for k, run := range cut.Runs(d, 0, int64(n)) {
		size = plus(size, run, cut.Bytes(kids[0], k-first, k-first+1))
	}
	return p.gather(kids[0], n, size, func(runs []gather.Run) {
		i := 0
		for k, run := range cut.Runs(d, 0, int64(n)) {
			for range run {
				runs[i] = gather.Run{Row: int32(k - first), N: 1}
				i++
			}
		}
	})
}

// listed makes lists of list views. Elements are copied where they do not lie in the order of the
// rows.
func listed[T int32 | int64](p plainer, d arrow.ArrayData) (arrow.ArrayData, error) {
	n := d.Len()
	offs := memory.NewResizableBuffer(p.alloc)
	defer offs.Release()
	offs.Resize((n + 1) * arrow.GetDataType[T]().(arrow.FixedWidthDataType).BitWidth() / 8)
	out := arrow.GetData[T](offs.Bytes())
	out[0] = 0
	first, last, total, inOrder := int64(0), int64(0), int64(0), true // elements [first, last) hold all lists
	for i := range n {
		a, b := cut.View(d, int64(d.Offset()+i))
		if a < b {
			if total == 0 {
				first, last = a, a
			}
			inOrder = inOrder && a == last
			first, last = min(first, a), max(last, b)
		}
		if total += b - a; total > math.MaxInt32 {
			return nil, driver.Errorf(driver.Unsupported, "%d rows of list views lie on each other, and are more than %d elements; set a smaller batch", n, math.MaxInt32)
		}
		out[i+1] = T(total)
	}
	kids, err := p.flattenAll(d.Children(), first, last)
	if err != nil {
		return nil, err
	}
	defer func() { releaseAll(kids) }()
	if !inOrder {
		size := slotCost * int64(n)
		for i := range n {
			if a, b := cut.View(d, int64(d.Offset()+i)); a < b {
				size = plus(plus(size, slotCost, b-a), 1, cut.Bytes(kids[0], a-first, b-first))
			}
		}
		elems, err := p.gather(kids[0], n, size, func(runs []gather.Run) {
			for i := range runs {
				a, b := cut.View(d, int64(d.Offset()+i))
				runs[i] = gather.Run{Row: int32(max(a-first, 0)), N: int32(b - a)}
			}
		})
		if err != nil {
			return nil, err
		}
		releaseAll(kids)
		kids = []arrow.ArrayData{elems}
	}
	bufs := append(validity(d, p.alloc), offs)
	defer memory.ReleaseBuffers(bufs[:1])
	return array.NewData(plain(d.DataType()), n, bufs, kids, d.NullN(), 0), nil
}

// gather returns a reference to n runs of the rows of d, which are set by set, and take size bytes.
func (p plainer) gather(d arrow.ArrayData, n int, size int64, set func([]gather.Run)) (arrow.ArrayData, error) {
	if err := p.growth.Hold(p.bytes, size); err != nil {
		return nil, err
	}
	b := p.alloc.Allocate(n * int(slotCost))
	defer p.alloc.Free(b)
	runs := unsafe.Slice((*gather.Run)(unsafe.Pointer(unsafe.SliceData(b))), n)
	clear(runs)
	set(runs)
	from := array.MakeFromData(d)
	defer from.Release()
	out, err := gather.Column(p.alloc, []arrow.Array{from}, runs)
	if err != nil {
		return nil, err
	}
	defer out.Release()
	out.Data().Retain()
	return out.Data(), nil
}

// mostNodes is more than any file may become.
const mostNodes = 1 << 50

// nodes is how many values and lists d is of once each of its rows has its own, as plain makes
// them: at most mostNodes. d is as it was loaded, without an offset.
func nodes(d arrow.ArrayData) int64 {
	before, ok := nodesBefore(d)
	if !ok {
		return mostNodes
	}
	return before(int64(d.Len()))
}

// nodesBefore gives the nodes of the rows of d before a row. It takes no memory for rows that take
// none in the file. false: they are more than mostNodes.
func nodesBefore(d arrow.ArrayData) (before func(row int64) int64, ok bool) {
	n := int64(d.Len())
	kids := make([]func(int64) int64, len(d.Children()))
	for k, c := range d.Children() {
		if kids[k], ok = nodesBefore(c); !ok {
			return nil, false
		}
	}
	under := func(row int64) (all int64) { // in the children
		for _, f := range kids {
			all = min(all+f(row), mostNodes+1)
		}
		return all
	}
	before = func(row int64) int64 { return row }
	switch t := d.DataType().(type) {
	case *arrow.StructType:
		before = func(row int64) int64 { return row + under(row) }
	case *arrow.FixedSizeListType:
		before = func(row int64) int64 { return row + under(row*int64(t.Len())) }
	case *arrow.ListType, *arrow.MapType:
		if n > 0 {
			offs := arrow.GetData[int32](d.Buffers()[1].Bytes())
			before = func(row int64) int64 { return row + under(int64(offs[row])) - under(int64(offs[0])) }
		}
	case *arrow.LargeListType:
		if n > 0 {
			offs := arrow.GetData[int64](d.Buffers()[1].Bytes())
			before = func(row int64) int64 { return row + under(offs[row]) - under(offs[0]) }
		}
	case *arrow.ListViewType, *arrow.LargeListViewType:
		sums := make([]int64, n+1)
		for i := range n {
			from, to := cut.View(d, i)
			if sums[i+1] = sums[i] + 1 + under(to) - under(from); sums[i+1] > mostNodes {
				return nil, false
			}
		}
		before = func(row int64) int64 { return sums[row] }
	case *arrow.RunEndEncodedType:
		var starts, sums, each []int64 // of runs
		at, sum := int64(0), int64(0)
		for k, run := range cut.Runs(d, 0, n) {
			starts, sums, each = append(starts, at), append(sums, sum), append(each, 1+kids[1](k+1)-kids[1](k))
			at, sum = at+run, min(plus(sum, run, each[len(each)-1]), mostNodes+1)
		}
		before = func(row int64) int64 {
			k := sort.Search(len(starts), func(k int) bool { return starts[k] >= row }) - 1 // the run of the row before
			if k < 0 {
				return 0
			}
			return min(plus(sums[k], row-starts[k], each[k]), mostNodes+1)
		}
	}
	return before, before(n) <= mostNodes
}

// times is n*each, or the largest number.
func times(n, each int64) int64 { return plus(0, n, each) }

// plus is size + n*each, or the largest number.
func plus(size, n, each int64) int64 {
	if each > 0 && n > (math.MaxInt64-size)/each {
		return math.MaxInt64
	}
	return size + n*each
}

// one is the first of ds, nil if there is none.
func one(ds []arrow.ArrayData) arrow.ArrayData {
	if len(ds) == 0 {
		return nil
	}
	return ds[0]
}
