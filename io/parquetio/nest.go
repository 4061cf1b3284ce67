package parquetio

import (
	"math"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/penstock-data/penstock/internal/fault"
	arrays "github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/io/parquetio/internal/kernel"
)

// node is a part of a top-level column. A slot of it, that is an element of its array, is a
// level of any leaf beneath with a repetition level of at most rep (for lists: less
// than rep) and a definition level of at least anc.
type node struct {
	kind     nodeKind
	nullable bool
	def      uint8 // from here on it is not null (lists: not empty)
	rep      uint8
	anc      uint8 // from here on the element of the list around it is there
	kids     []node
	leaf     int  // the first beneath, counted in the column
	lists    bool // struct: all kids are or hold lists
}

type nodeKind uint8

const (
	nodeLeaf nodeKind = iota
	nodeStruct
	nodeList // with 32-bit offsets; maps too
	nodeLargeList
	nodeFixedList
)

// newNode describes mf, whose first leaf is number *leaf of the column.
func newNode(mf *pqarrow.SchemaField, leaf *int) node {
	n := node{
		nullable: mf.Field.Nullable, leaf: *leaf,
		def: uint8(mf.LevelInfo.DefLevel), rep: uint8(mf.LevelInfo.RepLevel), anc: uint8(mf.LevelInfo.RepeatedAncestorDefLevel),
	}
	if len(mf.Children) == 0 {
		*leaf++
		return n
	}
	switch storageType(mf.Field.Type).(type) {
	case *arrow.StructType:
		n.kind, n.lists = nodeStruct, true
	case *arrow.LargeListType:
		n.kind = nodeLargeList
	case *arrow.FixedSizeListType:
		n.kind = nodeFixedList
	default:
		n.kind = nodeList
	}
	for i := range mf.Children {
		k := newNode(&mf.Children[i], leaf)
		n.lists = n.lists && (k.kind > nodeStruct || k.lists)
		n.kids = append(n.kids, k)
	}
	return n
}

// setWay chooses how the levels of a leaf under root are read.
func (c *column) setWay(root *node) {
	switch {
	case root.kind == nodeLeaf:
		c.way = wayFlat
	case c.leaf.maxRep == 0:
		c.way = wayStruct
	case root.kind > nodeStruct && root.kids[0].kind == nodeLeaf:
		c.way, c.large, c.nullable = wayList, root.kind == nodeLargeList, root.nullable
	default:
		c.way = wayNested
	}
}

// assembly puts the leaves of a top-level column together.
type assembly struct {
	acct *account
	cols []*column
	outs []*leafOut
}

var errNested = fault.New(fault.Corrupt, "the column's nested values do not fit together")

// build makes the array of n, of type t. The caller releases it.
func (a *assembly) build(n *node, t arrow.DataType) (arrow.ArrayData, error) {
	switch n.kind {
	case nodeLeaf:
		if form := a.cols[n.leaf].form; t.ID() == arrow.BOOL && form != formBool && form != formNull {
			return a.truths(n)
		}
		return a.leaf(n, t), nil
	case nodeStruct:
		return a.structs(n, t)
	}
	return a.lists(n, t)
}

func (a *assembly) leaf(n *node, t arrow.DataType) arrow.ArrayData {
	c, o := a.cols[n.leaf], a.outs[n.leaf]
	bufs := make([]*memory.Buffer, 2, 3)
	if o.nulls > 0 && c.form != formNull {
		bufs[0] = a.acct.bitmap(&o.valid, o.n)
	}
	nulls := o.nulls
	switch c.form {
	case formDict:
		return a.dictionaryData(c, o, t, bufs[0])
	case formNull:
		bufs, nulls = bufs[:1], o.n
	case formBool:
		bufs[1] = a.acct.bitmap(&o.data, o.n)
	case formString, formLarge:
		width, size := 4, 0
		if c.form == formLarge {
			width = 8
		}
		if o.n > 0 {
			if width == 4 {
				size = int(castTo[int32](o.offs)[o.n])
			} else {
				size = int(castTo[int64](o.offs)[o.n])
			}
			bufs[1] = a.acct.buffer(&o.offs, (o.n+1)*width)
		}
		bufs = append(bufs, a.acct.buffer(&o.data, size))
	default:
		if bufs[1] = o.lent; o.lent != nil {
			o.lent = nil
			break
		}
		bufs[1] = a.acct.buffer(&o.data, o.n*c.ow)
	}
	return newData(t, o.n, bufs, nil, nulls)
}

// newData takes over the buffers and the kids.
func newData(t arrow.DataType, n int, bufs []*memory.Buffer, kids []arrow.ArrayData, nulls int) arrow.ArrayData {
	d := array.NewData(t, n, bufs, kids, nulls, 0)
	for _, b := range bufs {
		if b != nil {
			b.Release()
		}
	}
	for _, k := range kids {
		k.Release()
	}
	return d
}

func (a *assembly) structs(n *node, t arrow.DataType) (_ arrow.ArrayData, err error) {
	st, ok := storageType(t).(*arrow.StructType)
	if !ok || st.NumFields() != len(n.kids) {
		return nil, errNested
	}
	kids := make([]arrow.ArrayData, 0, len(n.kids))
	var valid []byte
	defer func() {
		if err != nil {
			for _, k := range kids {
				k.Release()
			}
			a.acct.put(valid)
		}
	}()
	nulls := 0
	if n.nullable || n.lists { // as pqarrow does it
		if valid, nulls, err = a.validity(n); err != nil {
			return nil, err
		}
	}
	for i := range n.kids {
		k, err := a.build(&n.kids[i], st.Field(i).Type)
		if err != nil {
			return nil, err
		}
		kids = append(kids, k)
		if k.Len() != kids[0].Len() {
			return nil, errNested
		}
	}
	length := kids[0].Len()
	bufs := []*memory.Buffer{nil}
	if nulls > 0 {
		if len(valid) < (length+7)/8 {
			return nil, errNested
		}
		bufs[0] = a.acct.bitmap(&valid, length)
	}
	a.acct.put(valid)
	return newData(t, length, bufs, kids, nulls), nil
}

// validity is the bitmap of a struct; nil if none is null.
func (a *assembly) validity(n *node) (valid []byte, nulls int, err error) {
	o := a.outs[n.leafFor()]
	def := o.def
	if def == nil {
		return nil, 0, nil
	}
	def = def[:o.levels]
	if countAtLeast(def, n.def) == len(def) {
		return nil, 0, nil
	}
	if n.anc > 0 || o.rep != nil {
		def = a.slots(n, o)
	}
	if valid, err = a.acct.get((len(def) + 7) / 8); err != nil {
		return nil, 0, err
	}
	return valid, len(def) - kernel.AtLeast(valid, 0, def, n.def), nil
}

// leafFor is a leaf with as few levels as can be: one without lists below n, if there is one.
func (n *node) leafFor() int {
	for i := range n.kids {
		if k := &n.kids[i]; k.kind == nodeLeaf {
			return k.leaf
		} else if k.kind == nodeStruct && !k.lists {
			return k.leafFor()
		}
	}
	return n.leaf
}

// slots are the definition levels of the slots of a struct.
func (a *assembly) slots(n *node, o *leafOut) []byte {
	d := a.cols[0].d
	def, rep := o.def[:o.levels], o.rep[:o.levels]
	out := scratch(&d.some, o.levels)
	k := 0
	for i, l := range def {
		out[k] = l
		if l >= n.anc && rep[i] <= n.rep {
			k++
		}
	}
	return out[:k]
}

func (a *assembly) lists(n *node, t arrow.DataType) (_ arrow.ArrayData, err error) {
	lt, ok := storageType(t).(arrow.ListLikeType)
	if !ok || len(n.kids) != 1 {
		return nil, errNested
	}
	o := a.outs[n.leaf]
	if a.cols[n.leaf].way != wayList {
		if o, err = a.offsets(n, o); err != nil {
			return nil, err
		}
		defer o.free(a.acct)
	}
	if n.kind == nodeFixedList {
		return a.fixedLists(n, t, o)
	}
	item, err := a.build(&n.kids[0], lt.Elem())
	if err != nil {
		return nil, err
	}
	if item.Len() != o.n {
		item.Release()
		return nil, errNested
	}
	width := 4
	if n.kind == nodeLargeList {
		width = 8
	}
	bufs := []*memory.Buffer{nil, nil}
	if o.nullLists > 0 {
		bufs[0] = a.acct.bitmap(&o.listValid, o.lists)
	}
	bufs[1] = a.acct.buffer(&o.listOffs, (o.lists+1)*width)
	return newData(t, o.lists, bufs, []arrow.ArrayData{item}, o.nullLists), nil
}

// offsets makes the offsets and the bitmap of n out of the levels of a leaf.
func (a *assembly) offsets(n *node, leaf *leafOut) (_ *leafOut, err error) {
	o := &leafOut{}
	def, rep := leaf.def[:leaf.levels], leaf.rep[:leaf.levels]
	for i, r := range rep {
		if r < n.rep && def[i] >= n.anc {
			o.lists++
		}
	}
	o.rows = o.lists
	if n.kind == nodeLargeList {
		err = listOffsets[int64](a, n, o, def, rep)
	} else {
		err = listOffsets[int32](a, n, o, def, rep)
	}
	if err != nil {
		o.free(a.acct)
		return nil, err
	}
	return o, nil
}

func listOffsets[O int32 | int64](a *assembly, n *node, o *leafOut, def, rep []byte) error {
	var err error
	if o.listOffs, err = a.acct.get((o.lists + 1) * offsetWidth[O]()); err != nil {
		return err
	}
	offs := castTo[O](o.listOffs)
	k, at := 0, int64(0)
	for i, r := range rep {
		d := def[i]
		if r > n.rep || d < n.anc {
			continue
		}
		if r < n.rep { // a list begins
			offs[k] = O(at)
			if n.nullable && d+1 < n.def {
				if err := o.nullList(a.acct, k); err != nil {
					return err
				}
			}
			k++
		} else if k == 0 {
			return errNested
		}
		if d >= n.def {
			at++
		}
	}
	if offsetWidth[O]() == 4 && at > math.MaxInt32 {
		return errTooLarge{at, math.MaxInt32}
	}
	offs[k] = O(at)
	o.n = int(at)
	return nil
}

// fixedLists makes lists of one size, out of the offsets in o. Null ones have null elements.
func (a *assembly) fixedLists(n *node, t arrow.DataType, o *leafOut) (arrow.ArrayData, error) {
	size := int(storageType(t).(*arrow.FixedSizeListType).Len())
	elem := storageType(t).(*arrow.FixedSizeListType).Elem()
	offs := castTo[int32](o.listOffs)[:o.lists+1]
	for i := range o.lists {
		want := size
		if o.listValid != nil && o.listValid[i/8]>>(i%8)&1 == 0 {
			want = 0
		}
		if int(offs[i+1]-offs[i]) != want {
			return nil, fault.New(fault.Corrupt, "a list of %d elements in a column of lists of %d", offs[i+1]-offs[i], size)
		}
	}
	bufs := []*memory.Buffer{nil}
	var item arrow.ArrayData
	var err error
	leaf := &n.kids[0]
	if leaf.kind == nodeLeaf && o.nullLists > 0 && a.cols[leaf.leaf].ow > 0 && a.cols[leaf.leaf].form != formBool {
		if err := a.spread(a.outs[leaf.leaf], a.cols[leaf.leaf].ow, o, size); err != nil {
			return nil, err
		}
	}
	if item, err = a.build(leaf, elem); err != nil {
		return nil, err
	}
	if item.Len() == o.n && o.nullLists > 0 && o.n != o.lists*size {
		if item, err = a.padded(item, o, size); err != nil {
			return nil, err
		}
	}
	if item.Len() != o.lists*size {
		item.Release()
		return nil, errNested
	}
	if o.nullLists > 0 {
		bufs[0] = a.acct.bitmap(&o.listValid, o.lists)
	}
	return newData(t, o.lists, bufs, []arrow.ArrayData{item}, o.nullLists), nil
}

// spread moves elements of w bytes apart, so that null lists of size have some.
func (a *assembly) spread(e *leafOut, w int, o *leafOut, size int) error {
	n := o.lists * size
	if n > math.MaxInt32 { // n*w could be too large for an int
		return errTooLarge{int64(n), math.MaxInt32}
	}
	data, err := a.acct.get(n * w)
	if err != nil {
		return err
	}
	dense := e.data[:e.n*w]
	if !kernel.ExpandBytes(data, dense, size*w, o.listValid, 0) {
		a.acct.put(data)
		return errNested
	}
	a.acct.put(e.data)
	e.data = data
	valid, err := a.acct.get((n + 7) / 8)
	if err != nil {
		return err
	}
	from := 0
	for i := range o.lists {
		switch {
		case o.listValid[i/8]>>(i%8)&1 == 0:
			kernel.FillBits(valid, i*size, size, false)
			continue
		case e.valid != nil:
			kernel.CopyBits(valid, i*size, e.valid, from, size)
		default:
			kernel.FillBits(valid, i*size, size, true)
		}
		from += size
	}
	a.acct.put(e.valid)
	e.valid = valid
	e.nulls += n - e.n
	e.n = n
	return nil
}

// padded does so for elements of any type. It takes over item.
func (a *assembly) padded(item arrow.ArrayData, o *leafOut, size int) (arrow.ArrayData, error) {
	all := array.MakeFromData(item)
	item.Release()
	defer all.Release()
	if int64(o.lists)*int64(size) > math.MaxInt32 {
		return nil, errTooLarge{int64(o.lists) * int64(size), math.MaxInt32}
	}
	// The nulls, and then all together, take memory that is not the account's.
	if want := 2 * float64(o.lists*size) * nullBytes(all.DataType()); want > float64(a.acct.limit-a.acct.used) {
		return nil, errTooLarge{int64(min(want, 1<<62)), a.acct.limit}
	}
	var pieces []arrow.Array
	defer func() {
		for _, p := range pieces {
			p.Release()
		}
	}()
	valid := func(i int) bool { return o.listValid[i/8]>>(i%8)&1 == 1 }
	from := 0
	for i := 0; i < o.lists; {
		to := i + 1
		for to < o.lists && valid(to) == valid(i) {
			to++
		}
		if k := (to - i) * size; valid(i) {
			pieces = append(pieces, array.NewSlice(all, int64(from), int64(from+k)))
			from += k
		} else {
			pieces = append(pieces, arrays.Nulls(a.acct.alloc, all.DataType(), k))
		}
		i = to
	}
	out, err := array.Concatenate(pieces, a.acct.alloc)
	if err != nil {
		return nil, fault.New(fault.Corrupt, "lists of a fixed size do not fit together: %w", err)
	}
	defer out.Release()
	out.Data().Retain()
	return out.Data(), nil
}

// nullBytes is what a null of type t takes in an array.
func nullBytes(t arrow.DataType) float64 {
	n := 1. / 8
	switch t := storageType(t).(type) {
	case *arrow.FixedSizeListType:
		return n + float64(t.Len())*nullBytes(t.Elem())
	case *arrow.StructType:
		for _, f := range t.Fields() {
			n += nullBytes(f.Type)
		}
	case *arrow.LargeListType, *arrow.LargeStringType, *arrow.LargeBinaryType:
		n += 8
	case arrow.FixedWidthDataType:
		n += float64(t.BitWidth()) / 8
	default: // offsets
		n += 4
	}
	return n
}
