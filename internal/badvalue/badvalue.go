// Package badvalue finds values that their Arrow type does not allow: text that is not UTF-8, times
// out of a day, decimals of too many digits. Libraries write them as other values, or as files that
// others refuse.
package badvalue

import (
	"slices"
	"sort"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"

	"github.com/penstock-data/penstock/internal/cut"
)

// Check looks for values that their type does not allow, also in what is nested, run-end encoded or
// viewed. It keeps nothing: safe for concurrent use, as far as its functions are.
type Check struct {
	// Of reports whether a type, not nested, is looked at.
	Of func(arrow.DataType) bool
	// In finds such values in slots [from, to), not empty, of memory of such a type, that are not
	// null.
	In func(d arrow.ArrayData, from, to int64, bad Found)
	// Dicts has dictionaries looked into: all slots have a bad value, if one is in the dictionary.
	Dicts bool
	// Refused are the entries of a dictionary that are bad, a bit for each, nil: none. Who refers
	// to one is bad, too.
	Refused func(dict arrow.ArrayData) []uint64
}

// Found takes a slot or row with a bad value, maybe more than once, in no order; why says what is
// wrong.
type Found func(slot int64, why func() error)

// Rows finds the rows [from, to) of d with such a value, not hidden by a null.
func (c *Check) Rows(d arrow.ArrayData, from, to int64, bad Found) {
	off := int64(d.Offset())
	c.slots(d, off+from, off+to, func(slot int64, why func() error) { bad(slot-off, why) })
}

// First is the first of rows [from, to) of d with such a value, and what is wrong; -1 if there is
// none.
func (c *Check) First(d arrow.ArrayData, from, to int64) (row int64, err error) {
	row = -1
	var first func() error
	c.Rows(d, from, to, func(at int64, why func() error) {
		if row < 0 || at < row {
			row, first = at, why
		}
	})
	if first != nil {
		err = first()
	}
	return row, err
}

func (c *Check) slots(d arrow.ArrayData, from, to int64, bad Found) {
	if from >= to || !c.holds(d.DataType()) {
		return
	}
	if d.DataType().ID() == arrow.RUN_END_ENCODED {
		c.runs(d, from, to, bad)
		return
	}
	if bs := d.Buffers(); len(bs) > 1 && (bs[1] == nil || bs[1].Len() == 0) { // all null, or no values
		return
	}
	switch t := d.DataType().(type) {
	case *arrow.DictionaryType:
		c.entries(d, from, to, bad)
	case arrow.ExtensionType:
		s := array.NewData(t.StorageType(), d.Len(), d.Buffers(), d.Children(), d.NullN(), d.Offset())
		defer s.Release()
		c.slots(s, from, to, bad)
	case *arrow.ListType, *arrow.MapType:
		c.under(d, from, to, ends(arrow.GetData[int32](d.Buffers()[1].Bytes())), bad)
	case *arrow.LargeListType:
		c.under(d, from, to, ends(arrow.GetData[int64](d.Buffers()[1].Bytes())), bad)
	case *arrow.ListViewType, *arrow.LargeListViewType:
		c.views(d, from, to, bad)
	case *arrow.FixedSizeListType:
		c.under(d, from, to, func(i int64) int64 { return i * int64(t.Len()) }, bad)
	case *arrow.StructType:
		c.under(d, from, to, func(i int64) int64 { return i }, bad)
	default:
		c.In(d, from, to, bad)
	}
}

// entries finds slots of a dictionary column.
func (c *Check) entries(d arrow.ArrayData, from, to int64, bad Found) {
	if c.Refused == nil {
		if k, err := c.First(d.Dictionary(), 0, int64(d.Dictionary().Len())); k >= 0 {
			bad(from, func() error { return err })
		}
		return
	}
	refused := c.Refused(d.Dictionary())
	if refused == nil {
		return
	}
	a := array.NewDictionaryData(d)
	defer a.Release()
	off := int64(d.Offset())
	for i := from; i < to; i++ {
		if IsNull(d, i) {
			continue
		}
		if k := int64(a.GetValueIndex(int(i - off))); refused[k/64]>>(k%64)&1 != 0 {
			bad(i, func() error { _, err := c.First(d.Dictionary(), k, k+1); return err })
		}
	}
}

func ends[T int32 | int64](offsets []T) func(int64) int64 {
	return func(i int64) int64 { return int64(offsets[i]) }
}

// under finds slots of a nested column, the children of slot i of which are [at(i), at(i+1)).
func (c *Check) under(d arrow.ArrayData, from, to int64, at func(int64) int64, bad Found) {
	for _, child := range d.Children() {
		off := int64(child.Offset())
		c.slots(child, off+at(from), off+at(to), func(k int64, why func() error) {
			i := from + int64(sort.Search(int(to-from), func(i int) bool { return at(from+int64(i)+1) > k-off }))
			if !IsNull(d, i) {
				bad(i, why)
			}
		})
	}
}

// runs finds slots of a run-end encoded column.
func (c *Check) runs(d arrow.ArrayData, from, to int64, bad Found) {
	at, off := from, int64(d.Offset())
	for k, run := range cut.Runs(d, from-off, to-off) {
		c.Rows(d.Children()[1], k, k+1, func(_ int64, why func() error) {
			for i := range run {
				bad(at+i, why)
			}
		})
		at += run
	}
}

// views finds slots of list views. They may lie in any order, and on each other: where no element
// that any may have is bad, they are not looked at one by one.
func (c *Check) views(d arrow.ArrayData, from, to int64, bad Found) {
	child := d.Children()[0]
	first, last := int64(child.Len()), int64(0)
	for i := from; i < to; i++ {
		if a, b := cut.View(d, i); a < b {
			first, last = min(first, a), max(last, b)
		}
	}
	if k, _ := c.First(child, first, last); k < 0 {
		return
	}
	for i := from; i < to; i++ {
		a, b := cut.View(d, i)
		if k, err := c.First(child, a, b); k >= 0 {
			bad(i, func() error { return err })
		}
	}
}

func (c *Check) holds(t arrow.DataType) bool {
	if e, ok := t.(arrow.ExtensionType); ok {
		return c.holds(e.StorageType())
	}
	if d, ok := t.(*arrow.DictionaryType); ok {
		return (c.Dicts || c.Refused != nil) && c.holds(d.ValueType)
	}
	if n, ok := t.(arrow.NestedType); ok && slices.ContainsFunc(n.Fields(), func(f arrow.Field) bool { return c.holds(f.Type) }) {
		return true
	}
	return c.Of(t)
}

// IsNull is about slot i of d's memory.
func IsNull(d arrow.ArrayData, i int64) bool {
	b := d.Buffers()[0]
	return b != nil && b.Len() > 0 && !bitutil.BitIsSet(b.Bytes(), int(i))
}
