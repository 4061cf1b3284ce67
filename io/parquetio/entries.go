package parquetio

import (
	"bytes"
	"encoding/binary"
	"hash/maphash"
	"math"
	"math/bits"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"

	"github.com/penstock-data/penstock/io/parquetio/internal/kernel"
)

// Columns of form formDict are read as indexes into a dictionary. Rows of a batch
// whose pages all use the dictionary page point into that: its array is shared by the batches of the
// column chunk. A batch with a page in another encoding has a dictionary of its own, of the values
// that occur in it, in the order of their first row.

const (
	maxSlots     = 1 << 17 // of the hash table; half as many entries are found again
	blockEntries = 1024    // values decoded before they are looked up
	leastEntries = 64      // offsets that are allocated first
)

// lookup finds values that a batch's dictionary has. It is scratch, used for one batch at a time. What it
// finds depends on the values alone, not on their hashes.
type lookup struct {
	slots []uint64 // the upper half of the hash, and the entry's number plus one; 0: free
}

var hashSeed = maphash.MakeSeed()

// reset prepares for up to n values.
func (l *lookup) reset(n int) {
	slots := min(1<<bits.Len(uint(2*max(n, leastEntries)-1)), maxSlots)
	l.slots = scratch(&l.slots, slots)
	clear(l.slots)
}

// entry returns the number of value v in o's own dictionary, where it is put if it is not found.
func (c *column) entry(o *leafOut, v []byte) (uint32, error) {
	l := &c.d.lookup
	h := maphash.Bytes(hashSeed, v)
	mask := uint64(len(l.slots) - 1)
	i := h & mask
	for ; l.slots[i] != 0; i = (i + 1) & mask {
		if s := l.slots[i]; s>>32 == h>>32 {
			e := uint32(s) - 1
			offs := castTo[int32](o.entryOffs)
			if bytes.Equal(o.entryData[offs[e]:offs[e+1]], v) {
				return e, nil
			}
		}
	}
	e, err := c.addEntry(o, v)
	if err == nil && 2*o.entries <= len(l.slots) {
		l.slots[i] = h&^math.MaxUint32 | uint64(e+1)
	}
	return e, err
}

// addEntry appends v to o's own dictionary, or refuses it.
func (c *column) addEntry(o *leafOut, v []byte) (uint32, error) {
	if c.text && !utf8.Valid(v) {
		return 0, refusal{0, errText}
	}
	acct, e := &c.d.acct, o.entries
	if 4*(e+2) > len(o.entryOffs) {
		if err := acct.grow(&o.entryOffs, 4*(e+1), 4*(max(e, leastEntries)+2)); err != nil {
			return 0, err
		}
		if e == 0 {
			castTo[int32](o.entryOffs)[0] = 0
		}
	}
	offs := castTo[int32](o.entryOffs)
	begin := int(offs[e])
	end := begin + len(v)
	if end > math.MaxInt32 {
		return 0, errTooLarge{int64(end), math.MaxInt32}
	}
	if end > len(o.entryData) {
		if err := acct.grow(&o.entryData, begin, end); err != nil {
			return 0, err
		}
	}
	copy(o.entryData[begin:end], v)
	offs[e+1] = int32(end)
	o.entries++
	return uint32(e), nil
}

// appendCodes appends the indexes of k slots at slot at, of which those that o.valid says, defined in
// number, have a value.
func (c *column) appendCodes(o *leafOut, at, k, defined int) error {
	if err := c.d.acct.grow(&o.data, 4*at, 4*(at+k)); err != nil {
		return err
	}
	dst := kernel.Cast[uint32](o.data)[at : at+k : at+k]
	// The indexes of values come to the end of dst, and are spread from there.
	tail := dst[k-defined:]
	if defined > 0 {
		if err := c.codes(o, tail, at); err != nil {
			return err
		}
	}
	switch {
	case defined == 0:
		clear(dst)
	case defined < k:
		return orDamaged(kernel.Expand(dst, tail, o.valid, at))
	}
	return nil
}

// codes writes the indexes of the next len(dst) values. The slots of o before at have theirs.
func (c *column) codes(o *leafOut, dst []uint32, at int) error {
	v := &c.vals
	if err := v.begin(); err != nil {
		return err
	}
	if v.enc == encRLEDict {
		if err := orDamaged(v.codes.Indexes(dst, c.dict.n)); err != nil {
			return err
		}
		if err := c.dict.check(dst); err != nil || !o.own {
			return err
		}
		return c.toEntries(o, dst, nil)
	}
	if !o.own {
		o.own = true
		c.d.lookup.reset(o.expect)
		if err := c.toEntries(o, kernel.Cast[uint32](o.data)[:at], o.valid); err != nil {
			return err
		}
	}
	if v.enc == encPlain {
		return v.plainEntries(o, dst)
	}
	for done := 0; len(dst) > 0; {
		n := min(len(dst), blockEntries)
		if err := v.blockOfEntries(o, dst[:n]); err != nil {
			return behind(err, done)
		}
		dst, done = dst[n:], done+n
	}
	return nil
}

// toEntries replaces indexes into the dictionary page by those of o's own dictionary. Slots that are
// not valid stay as they are; valid nil: all are.
func (c *column) toEntries(o *leafOut, idx []uint32, valid []byte) error {
	for i, x := range idx {
		if valid != nil && valid[i/8]>>(i%8)&1 == 0 {
			continue
		}
		offs := c.dict.texts.Offsets
		e, err := c.entry(o, c.dict.texts.Data[offs[x]:offs[x+1]])
		if err != nil {
			return err
		}
		idx[i] = e
	}
	return nil
}

// plainEntries looks up the values as they stand in the page.
func (v *values) plainEntries(o *leafOut, dst []uint32) error {
	src := v.src
	for i := range dst {
		if len(src) < 4 {
			return errValues
		}
		n := int64(binary.LittleEndian.Uint32(src))
		if src = src[4:]; n > int64(len(src)) {
			return errValues
		}
		e, err := v.c.entry(o, src[:n])
		if err != nil {
			return behind(err, i)
		}
		dst[i], src = e, src[n:]
	}
	v.src = src
	return nil
}

// blockOfEntries decodes values of the other encodings, and looks them up.
func (v *values) blockOfEntries(o *leafOut, dst []uint32) error {
	size, err := v.textSize(len(dst))
	if err != nil {
		return err
	}
	if size > math.MaxInt32-kernel.Slack {
		return errTooLarge{size, math.MaxInt32}
	}
	acct := &v.c.d.acct
	data, err := acct.get(int(size) + kernel.Slack)
	if err != nil {
		return err
	}
	defer acct.put(data)
	offs := scratch(&v.c.d.offs, len(dst)+1)
	offs[0] = 0
	if err := texts(v, offs, data); err != nil {
		return err
	}
	for i := range dst {
		if dst[i], err = v.c.entry(o, data[offs[i]:offs[i+1]]); err != nil {
			return behind(err, i)
		}
	}
	return nil
}

// dictionaryData makes the array of indexes of type t, with the dictionary page's values or o's own.
func (a *assembly) dictionaryData(c *column, o *leafOut, t arrow.DataType, valid *memory.Buffer) arrow.ArrayData {
	dt := storageType(t).(*arrow.DictionaryType)
	var dict arrow.ArrayData
	switch {
	case !o.own && c.dict != nil && c.dict.values != nil:
		dict = c.dict.values
		dict.Retain()
	case o.entries > 0:
		end := int(castTo[int32](o.entryOffs)[o.entries])
		dict = entriesData(dt.ValueType, o.entries, a.acct.buffer(&o.entryOffs, 4*(o.entries+1)), a.acct.buffer(&o.entryData, end), a.acct.alloc)
	default: // all rows are null
		offs := a.acct.alloc.Allocate(4)
		clear(offs)
		dict = entriesData(dt.ValueType, 0, memory.NewBufferWithAllocator(offs, a.acct.alloc), nil, a.acct.alloc)
	}
	defer dict.Release()
	bufs := []*memory.Buffer{valid, a.acct.buffer(&o.data, 4*o.n)}
	defer memory.ReleaseBuffers(bufs)
	return array.NewDataWithDictionary(t, o.n, bufs, o.nulls, 0, dict.(*array.Data))
}

// entriesData makes n values of a dictionary, of a type of strings or binary. It takes over the
// buffers; offsets are of 32 bits, and are widened where t has 64.
func entriesData(t arrow.DataType, n int, offs, data *memory.Buffer, alloc memory.Allocator) arrow.ArrayData {
	if id := t.ID(); id == arrow.LARGE_STRING || id == arrow.LARGE_BINARY {
		wide := memory.NewBufferWithAllocator(alloc.Allocate(8*(n+1)), alloc)
		out := castTo[int64](wide.Bytes())
		for i, x := range castTo[int32](offs.Bytes())[:n+1] {
			out[i] = int64(x)
		}
		offs.Release()
		offs = wide
	}
	return newData(t, n, []*memory.Buffer{nil, offs, data}, nil, 0)
}
