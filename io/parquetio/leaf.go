package parquetio

import (
	"context"
	"encoding/binary"
	"math"
	"math/bits"

	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/io/parquetio/internal/kernel"
)

// blockLevels are decoded at a time in columns with lists.
const blockLevels = 1 << 15

// way is how the levels of a column are read.
type way uint8

const (
	wayFlat   way = iota // a top-level column: definition levels become the bitmap
	wayStruct            // in structs only: definition levels are kept for them
	wayList              // the element of a top-level list: repetition levels become offsets
	wayNested            // all levels are kept
)

// leafOut is what a column gives for some rows. Its memory is the decoder's until an
// array takes it.
type leafOut struct {
	first  int64 // row of the row group
	n      int   // slots of values, null ones among them
	nulls  int   // of them
	rows   int
	expect int // slots there will be, by estimate
	valid  []byte
	data   []byte // of fixed width; or of strings
	offs   []byte // of strings: n+1

	lent      *memory.Buffer // in place of data: a part of the page
	own       bool           // formDict: data points into entries, not into the dictionary page
	entries   int
	entryOffs []byte // entries+1
	entryData []byte

	levels   int
	def, rep []byte // one byte each; def nil: all are the highest

	lists     int // wayList
	nullLists int
	listOffs  []byte // lists+1 at the end
	listValid []byte // nil: none is null
}

// bytes is the memory that o holds.
func (o *leafOut) bytes() int64 {
	return int64(len(o.valid) + len(o.data) + len(o.offs) + len(o.def) + len(o.rep) + len(o.listOffs) + len(o.listValid) + len(o.entryOffs) + len(o.entryData))
}

func (o *leafOut) free(a *account) {
	if o == nil {
		return
	}
	for _, b := range []*[]byte{&o.valid, &o.data, &o.offs, &o.def, &o.rep, &o.listOffs, &o.listValid, &o.entryOffs, &o.entryData} {
		a.put(*b)
		*b = nil
	}
	if o.lent != nil {
		o.lent.Release()
		o.lent = nil
	}
}

// broken is the row of a column whose cursor is nowhere, after an error.
const broken = 1 << 62

// read decodes the n rows at the cursor, or the chosen ones. After an error the cursor must be set again.
func (c *column) read(ctx context.Context, n int, keep *chosen) (o *leafOut, err error) {
	if o = c.spare; o == nil {
		o = new(leafOut)
	}
	c.spare = nil
	*o = leafOut{first: c.row, rows: n, expect: n}
	whole := false
	defer func() { // a panic, too, frees what was allocated
		if !whole {
			o.free(&c.d.acct)
			o, c.row = nil, broken
			c.leave()
		}
	}()
	switch {
	case keep != nil:
		err = c.readChosen(ctx, o, n, keep)
	case c.leaf.maxRep == 0:
		err = c.readFlat(ctx, o, n)
	default:
		err = c.readLists(ctx, o, n)
	}
	whole = err == nil
	return o, err
}

// readFlat reads a column without lists.
func (c *column) readFlat(ctx context.Context, o *leafOut, n int) error {
	defer func() { c.sparse = o.nulls > 0 }()
	for o.levels < n {
		if c.left == 0 {
			if ok, err := c.open(ctx); err != nil || !ok {
				return orEnds(c, err)
			}
		}
		if err := c.load(ctx); err != nil {
			return err
		}
		k := min(n-o.levels, c.left)
		defined, err := c.define(o, k, n)
		if err != nil {
			return err
		}
		begun := o.levels > 0
		o.levels += k
		c.left -= k
		c.row += int64(k)
		if !begun {
			if k == n && defined == n && c.lend(o) {
				return nil
			}
			if err := c.reserve(o, n); err != nil {
				return err
			}
		}
		if err := c.slots(o, k, defined); err != nil {
			return err
		}
	}
	return nil
}

func orEnds(c *column, err error) error {
	if err == nil {
		err = c.ends()
	}
	return err
}

// maxForeseen is the width of values for which memory is taken before they are seen.
const maxForeseen = 4 << 10

// reserve allocates values of a fixed width at once.
func (c *column) reserve(o *leafOut, n int) error {
	switch c.form {
	case formNull:
	case formBool:
		return c.d.acct.grow(&o.data, 0, (n+7)/8)
	case formString:
		return c.d.acct.grow(&o.offs, 0, 4*(n+1))
	case formLarge:
		return c.d.acct.grow(&o.offs, 0, 8*(n+1))
	default:
		if c.ow <= maxForeseen { // wider ones only if the page has them
			return c.d.acct.grow(&o.data, 0, n*c.ow)
		}
	}
	return nil
}

// define takes the definition levels of k rows of n into the bitmap, and keeps
// them if structs need them. It returns how many have a value.
func (c *column) define(o *leafOut, k, n int) (int, error) {
	most := uint32(c.leaf.maxDef)
	if most == 0 {
		return k, nil
	}
	if o.valid == nil && c.sparse { // as before
		if err := c.startNulls(o, n); err != nil {
			return 0, err
		}
	}
	if o.valid == nil { // nothing was null yet
		probe := c.def
		defined, ok := probe.Count(k, most)
		if !ok {
			return 0, errLevels
		}
		if defined == k {
			c.def = probe
			return k, nil
		}
		if err := c.startNulls(o, n); err != nil {
			return 0, err
		}
	}
	var defined int
	if c.way == wayFlat {
		var ok bool
		if defined, ok = c.def.Validity(o.valid, o.n, k); !ok {
			return 0, errLevels
		}
	} else {
		def := o.def[o.levels : o.levels+k]
		if !c.def.Levels8(def, most) {
			return 0, errLevels
		}
		defined = kernel.AtLeast(o.valid, o.n, def, uint8(most))
	}
	o.nulls += k - defined
	return defined, nil
}

// startNulls makes the bitmap of n rows, and the levels of those before.
func (c *column) startNulls(o *leafOut, n int) (err error) {
	if o.valid, err = c.d.acct.get((n + 7) / 8); err != nil {
		return err
	}
	kernel.FillBits(o.valid, 0, o.n, true)
	if c.way != wayFlat {
		if o.def, err = c.d.acct.get(n); err != nil {
			return err
		}
		setAll(o.def[:o.levels], byte(c.leaf.maxDef))
	}
	return nil
}

func setAll(b []byte, v byte) {
	for i := range b {
		b[i] = v
	}
}

// readLists reads a column with lists.
func (c *column) readLists(ctx context.Context, o *leafOut, n int) error {
	if c.perRow == 0 && c.d.g.rows > 0 {
		c.perRow = float64(c.c.values) / float64(c.d.g.rows)
	}
	// What the metadata claims is believed as far as a batch goes.
	o.expect = int(min(c.perRow*float64(n)*1.05, float64(4*n+1<<20))) + 1
	if err := c.reserve(o, min(o.expect, math.MaxInt32/32)); err != nil {
		return err
	}
	if c.way == wayList {
		width := 4
		if c.large {
			width = 8
		}
		if err := c.d.acct.grow(&o.listOffs, 0, (n+1)*width); err != nil {
			return err
		}
	}
	begun := 0
	for {
		if c.left == 0 {
			if begun == n && !c.slices.more() && (c.locs != nil || c.seen >= c.c.values) {
				break
			}
			ok, err := c.open(ctx)
			if err != nil {
				return err
			}
			if !ok {
				if begun == n {
					break
				}
				return c.ends()
			}
		}
		if err := c.load(ctx); err != nil {
			return err
		}
		most := min(c.left, blockLevels)
		reps := c.rep
		k, rows, ok := c.rep.Rows(n-begun, most)
		if !ok {
			return errLevels
		}
		if k == 0 { // the next row
			break
		}
		if err := c.block(o, &reps, k, rows); err != nil {
			return err
		}
		begun += rows
		c.row += int64(rows)
		c.left -= k
	}
	c.perRow = float64(o.n) / float64(n)
	if c.way == wayList {
		c.endLists(o)
	}
	return nil
}

// block takes k levels, among them the begins of some rows.
func (c *column) block(o *leafOut, reps *kernel.Hybrid, k, rows int) error {
	acct, most := &c.d.acct, uint8(c.leaf.maxDef)
	nested := c.way == wayNested
	if nested {
		if err := acct.grow(&o.rep, o.levels, o.levels+k); err != nil {
			return err
		}
		if !reps.Levels8(o.rep[o.levels:o.levels+k], uint32(c.leaf.maxRep)) {
			return errLevels
		}
		if o.levels == 0 && o.rep[0] != 0 {
			return errLevels
		}
		if err := acct.grow(&o.def, o.levels, o.levels+k); err != nil {
			return err
		}
	}
	probe := c.def
	defined, ok := probe.Count(k, uint32(most))
	if !ok {
		return errLevels
	}
	var def []byte // of the block; nil: all are the highest
	switch {
	case nested:
		def = o.def[o.levels : o.levels+k]
	case defined < k:
		def = scratch(&c.d.defs, k)
	}
	if defined == k {
		c.def = probe
		setAll(def, most)
	} else if !c.def.Levels8(def, uint32(most)) {
		return errLevels
	}
	o.levels += k
	slots := k
	if !nested {
		var err error
		if c.large {
			slots, err = listSlots[int64](c, o, reps, def, k, rows)
		} else {
			slots, err = listSlots[int32](c, o, reps, def, k, rows)
		}
		if err != nil {
			return err
		}
	} else if defined < k {
		slots = countAtLeast(def, c.leaf.anc)
	}
	if o.n+slots > math.MaxInt32 {
		return errTooLarge{int64(o.n + slots), math.MaxInt32}
	}
	if defined < slots || o.valid != nil {
		if err := c.elements(o, def, slots, defined); err != nil {
			return err
		}
	}
	return c.slots(o, slots, defined)
}

// elements appends the bitmap of slots elements, by the levels of their block.
func (c *column) elements(o *leafOut, def []byte, slots, defined int) error {
	acct := &c.d.acct
	first := o.valid == nil
	if err := acct.grow(&o.valid, (o.n+7)/8, (max(o.n+slots, o.expect)+7)/8); err != nil {
		return err
	}
	if first {
		kernel.FillBits(o.valid, 0, o.n, true)
	}
	o.nulls += slots - defined
	if def == nil || defined == slots {
		kernel.FillBits(o.valid, o.n, slots, true)
		return nil
	}
	if slots < len(def) { // leave out levels of lists without elements
		def = dropBelow(scratch(&c.d.some, len(def)), def, c.leaf.anc)
	}
	kernel.AtLeast(o.valid, o.n, def, uint8(c.leaf.maxDef))
	return nil
}

// listSlots appends the rows lists that begin in a block of k levels, and returns how many elements it has.
func listSlots[O int32 | int64](c *column, o *leafOut, reps *kernel.Hybrid, def []byte, k, rows int) (int, error) {
	offs := castTo[O](o.listOffs)[o.lists : o.lists+rows]
	first := O(o.n)
	if def != nil {
		first = 0
	}
	begun, ok := kernel.ListStarts(reps, k, first, offs)
	if !ok || begun != rows || o.lists == 0 && (rows == 0 || offs[0] != 0) {
		return 0, errLevels
	}
	none := 0 // lists without elements: they take a level, and no slot
	if def != nil {
		present := c.leaf.anc
		for j, at := range offs {
			offs[j] = O(o.n) + at - O(none)
			if d := def[at]; d < present {
				none++
				if c.nullable && d+1 < present {
					if err := o.nullList(&c.d.acct, o.lists+j); err != nil {
						return 0, err
					}
				}
			}
		}
		if countAtLeast(def, present) != k-none { // inside a list all levels are of elements
			return 0, errLevels
		}
	}
	o.lists += rows
	return k - none, nil
}

// nullList makes list j null.
func (o *leafOut) nullList(a *account, j int) (err error) {
	if o.listValid == nil {
		if o.listValid, err = a.get((o.rows + 7) / 8); err != nil {
			return err
		}
		setAll(o.listValid, 0xFF)
	}
	o.listValid[j/8] &^= 1 << (j % 8)
	o.nullLists++
	return nil
}

// endLists sets the last offset.
func (c *column) endLists(o *leafOut) {
	if c.large {
		castTo[int64](o.listOffs)[o.lists] = int64(o.n)
	} else {
		castTo[int32](o.listOffs)[o.lists] = int32(o.n)
	}
}

// countAtLeast counts levels of min or more. Levels are below 128.
func countAtLeast(levels []byte, min uint8) (n int) {
	if min == 0 {
		return len(levels)
	}
	add := uint64(128-min) * ones
	for ; len(levels) >= 8; levels = levels[8:] {
		n += bits.OnesCount64((binary.LittleEndian.Uint64(levels) + add) & (128 * ones))
	}
	for _, l := range levels {
		if l >= min {
			n++
		}
	}
	return n
}

const ones = 0x0101010101010101

// dropBelow copies the levels of min or more to dst, which is as long.
func dropBelow(dst, levels []byte, min uint8) []byte {
	n := 0
	for _, l := range levels {
		dst[n] = l
		if l >= min {
			n++
		}
	}
	return dst[:n]
}
