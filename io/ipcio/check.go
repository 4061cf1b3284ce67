package ipcio

import (
	"sort"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"

	"github.com/penstock-data/penstock/internal/cut"
)

// check looks for the first value that its type does not allow.
type check struct {
	// of reports whether a type, not nested, is looked at.
	of func(arrow.DataType) bool
	// in is the first such value of slots [from, to), not empty, of memory of such a type, which is
	// not null, and what is wrong with it; -1 if there is none.
	in func(d arrow.ArrayData, from, to int64) (int64, error)
	// dicts has dictionaries looked into: all slots have a bad value, if one is in the dictionary.
	dicts bool
}

// texts is a check of strings: they are UTF-8.
var texts = check{of: isText, in: textIn}

// rows is the first of rows [from, to) of d with such a value, not hidden by a null, and what is
// wrong; -1 if there is none.
func (c *check) rows(d arrow.ArrayData, from, to int64) (int64, error) {
	off := int64(d.Offset())
	at, err := c.slots(d, off+from, off+to)
	return max(at-off, -1), err
}

func (c *check) slots(d arrow.ArrayData, from, to int64) (int64, error) {
	if from >= to || !c.holds(d.DataType()) {
		return -1, nil
	}
	if d.DataType().ID() == arrow.RUN_END_ENCODED {
		return c.runs(d, from, to)
	}
	if bs := d.Buffers(); len(bs) > 1 && (bs[1] == nil || bs[1].Len() == 0) { // all null, or no values
		return -1, nil
	}
	switch t := d.DataType().(type) {
	case *arrow.DictionaryType:
		if k, err := c.rows(d.Dictionary(), 0, int64(d.Dictionary().Len())); k >= 0 {
			return from, err
		}
		return -1, nil
	case arrow.ExtensionType:
		s := array.NewData(t.StorageType(), d.Len(), d.Buffers(), d.Children(), d.NullN(), d.Offset())
		defer s.Release()
		return c.slots(s, from, to)
	case *arrow.ListType, *arrow.MapType:
		return c.under(d, from, to, ends(arrow.GetData[int32](d.Buffers()[1].Bytes())))
	case *arrow.LargeListType:
		return c.under(d, from, to, ends(arrow.GetData[int64](d.Buffers()[1].Bytes())))
	case *arrow.ListViewType, *arrow.LargeListViewType:
		return c.views(d, from, to)
	case *arrow.FixedSizeListType:
		return c.under(d, from, to, func(i int64) int64 { return i * int64(t.Len()) })
	case *arrow.StructType:
		return c.under(d, from, to, func(i int64) int64 { return i })
	}
	return c.in(d, from, to)
}

func ends[T int32 | int64](offsets []T) func(int64) int64 {
	return func(i int64) int64 { return int64(offsets[i]) }
}

// under is slots of a nested column, the children of slot i of which are [at(i), at(i+1)).
func (c *check) under(d arrow.ArrayData, from, to int64, at func(int64) int64) (slot int64, err error) {
	slot = -1
	for _, child := range d.Children() {
		off := int64(child.Offset())
		for first := at(from); ; {
			k, bad := c.slots(child, off+first, off+at(to))
			if k < 0 {
				break
			}
			i := from + int64(sort.Search(int(to-from), func(i int) bool { return at(from+int64(i)+1) > k-off }))
			if isNull(d, i) {
				first = at(i + 1)
				continue
			}
			if slot < 0 || i < slot {
				slot, err = i, bad
			}
			break
		}
	}
	return slot, err
}

// runs is slots of a run-end encoded column.
func (c *check) runs(d arrow.ArrayData, from, to int64) (int64, error) {
	at, off := from, int64(d.Offset())
	for k, run := range cut.Runs(d, from-off, to-off) {
		if bad, err := c.rows(d.Children()[1], k, k+1); bad >= 0 {
			return at, err
		}
		at += run
	}
	return -1, nil
}

// views is slots of list views. They may lie in any order, and on each other: where no element that any may
// have is bad, they are not looked at one by one.
func (c *check) views(d arrow.ArrayData, from, to int64) (int64, error) {
	child := d.Children()[0]
	first, last := int64(child.Len()), int64(0)
	for i := from; i < to; i++ {
		if a, b := cut.View(d, i); a < b {
			first, last = min(first, a), max(last, b)
		}
	}
	if k, _ := c.rows(child, first, last); k < 0 {
		return -1, nil
	}
	for i := from; i < to; i++ {
		a, b := cut.View(d, i)
		if k, err := c.rows(child, a, b); k >= 0 {
			return i, err
		}
	}
	return -1, nil
}

func (c *check) holds(t arrow.DataType) bool {
	if e, ok := t.(arrow.ExtensionType); ok {
		return c.holds(e.StorageType())
	}
	if d, ok := t.(*arrow.DictionaryType); ok {
		return c.dicts && c.holds(d.ValueType)
	}
	for _, f := range children(t) {
		if c.holds(f.Type) {
			return true
		}
	}
	return c.of(t)
}

// isNull is about slot i of d's memory.
func isNull(d arrow.ArrayData, i int64) bool {
	b := d.Buffers()[0]
	return b != nil && b.Len() > 0 && !bitutil.BitIsSet(b.Bytes(), int(i))
}
