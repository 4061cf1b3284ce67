package shard

import (
	"math"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/shard/internal/rows"
)

// column is how one column becomes a tensor. An item is a row, or, where lists
// vary in length, an element of a list; it has width values.
type column struct {
	name     string
	second   string // name of its lengths or offsets, where lists vary in length
	index    int    // in the schema
	from, to DType
	inner    []int // shape of an item
	width    int   // product of inner
	scaled   bool
	large    bool // offsets of 64 bits
	lists    Lists
	length   int // fixed length of padded lists; 0: the longest, rounded up
	multiple int
	fill     float64      // value behind the end of a list
	empty    []byte       // the same as bytes
	conv     rows.Convert // nil where the bytes stay
	field    rows.Field   // where lists do not vary in length

	// Of the batch in the making, by record; of records that no run uses, nothing.
	levels []level
	offs32 [][]int32 // lists: offsets of row 0 on
	offs64 [][]int64 // the same of large lists
	vals   [][]byte  // values of item 0 on; of bools the bitmap
	bit    []int     // bools: position of item 0
}

// level is a list or the values themselves: what can be null, outermost first.
type level struct {
	list  bool     // varies in length: its rows are rows, below are items
	per   int      // fixed: values of this level per item
	bits  [][]byte // by record: validity, nil if none is null
	at    []int    // by record: the bit of item (or row) 0
	nulls bool     // any of bits
}

func newColumn(f arrow.Field, index int, o Column) (*column, error) {
	c := &column{name: f.Name, index: index, width: 1, lists: o.Lists, length: o.Length, multiple: o.Multiple, fill: o.Fill}
	t := f.Type
	varying := t.ID() == arrow.LIST || t.ID() == arrow.LARGE_LIST
	switch {
	case varying:
		c.levels = append(c.levels, level{list: true})
		c.large = t.ID() == arrow.LARGE_LIST
		t = t.(arrow.ListLikeType).Elem()
		switch o.Lists {
		case ListsPad, ListsPadGlobal:
			c.second = c.name + ".lengths"
		case ListsRagged:
			c.second = c.name + ".offsets"
		case "":
			return nil, fault.New(fault.Invalid, "lists of varying length have no tensor form by themselves: set lists to %s, %s or %s, or drop the column", ListsPad, ListsPadGlobal, ListsRagged)
		default:
			return nil, fault.New(fault.Invalid, "lists cannot be %q: have %s, %s, %s", o.Lists, ListsPad, ListsPadGlobal, ListsRagged)
		}
	case o.Lists != "":
		return nil, fault.New(fault.Invalid, "lists: %s is for lists of varying length, not for type %s: leave it out", o.Lists, typename.Name(f.Type))
	}
	switch padded := varying && o.Lists != ListsRagged; {
	case !padded && (o.Length != 0 || o.Multiple != 0 || o.Fill != 0):
		return nil, fault.New(fault.Invalid, "length, multiple and fill are for padded lists: leave them out, or set lists to %s", ListsPad)
	case o.Length < 0 || o.Multiple < 0:
		return nil, fault.New(fault.Invalid, "length and multiple must not be negative")
	case o.Length > 0 && o.Multiple > 0:
		return nil, fault.New(fault.Invalid, "length fixes the length of padded lists, multiple rounds the longest up: set one of them")
	}
	for t.ID() == arrow.FIXED_SIZE_LIST {
		l := t.(*arrow.FixedSizeListType)
		c.levels = append(c.levels, level{per: c.width})
		c.inner = append(c.inner, int(l.Len()))
		c.width *= int(l.Len())
		t = l.Elem()
	}
	c.levels = append(c.levels, level{per: c.width})
	var err error
	if c.from, err = dtypeOf(t); err != nil {
		return nil, fault.New(fault.Invalid, "%w: drop the column, convert it, or take batches in Arrow form", err)
	}
	if int(o.DType) >= len(dtypes) {
		return nil, fault.New(fault.Invalid, "no dtype %d: take one of the constants", o.DType)
	}
	if c.to = o.DType; c.to == Auto {
		c.to = c.from
	}
	if bad := o.Scale + o.Offset; math.IsNaN(bad) || math.IsInf(bad, 0) {
		return nil, fault.New(fault.Invalid, "scale %v and offset %v must be finite", o.Scale, o.Offset)
	}
	c.scaled = o.Scale != 0 && o.Scale != 1 || o.Offset != 0
	if c.from != c.to || c.scaled {
		c.conv = rows.Converter(rows.Type(c.from), rows.Type(c.to), o.Scale, o.Offset)
	}
	c.field = rows.Field{From: rows.Type(c.from), To: rows.Type(c.to), Column: index, Width: c.width, Scale: o.Scale, Offset: o.Offset}
	if c.second != "" {
		c.empty = make([]byte, c.to.Size())
		if rows.Cast(rows.Type(c.to), c.empty, []float64{o.Fill}) >= 0 {
			return nil, fault.New(fault.Invalid, "fill %v does not fit %s", o.Fill, c.to)
		}
	}
	return c, nil
}

// load finds the memory of the column in every record that is used.
func (c *column) load(recs []arrow.RecordBatch, used []bool) {
	n := len(recs)
	for i := range c.levels {
		l := &c.levels[i]
		l.bits, l.at, l.nulls = sized(l.bits, n), sized(l.at, n), false
	}
	c.vals = sized(c.vals, n)
	switch {
	case c.second == "":
	case c.large:
		c.offs64 = sized(c.offs64, n)
	default:
		c.offs32 = sized(c.offs32, n)
	}
	if c.from == Bool {
		c.bit = sized(c.bit, n)
	}
	for r, rec := range recs {
		if !used[r] || rec == nil { // its rows are not those of a record
			continue
		}
		data := rec.Column(c.index).Data()
		at := data.Offset() // of item 0 in data's buffers
		for i := range c.levels {
			l := &c.levels[i]
			bufs := data.Buffers()
			// NullN of an array would count and write; that of its data is -1 where unknown.
			if data.NullN() != 0 && bufs[0] != nil && bufs[0].Len() > 0 {
				l.bits[r], l.at[r], l.nulls = bufs[0].Bytes(), at, true
			}
			switch {
			case l.list:
				if c.large {
					c.offs64[r] = from[int64](bufs[1], at)
				} else {
					c.offs32[r] = from[int32](bufs[1], at)
				}
				data = data.Children()[0]
				at = data.Offset()
			case i < len(c.levels)-1:
				w := int(data.DataType().(*arrow.FixedSizeListType).Len())
				data = data.Children()[0]
				at = data.Offset() + at*w
			case bufs[1] == nil || bufs[1].Len() == 0: // no values at all
			case c.from == Bool:
				c.vals[r], c.bit[r] = bufs[1].Bytes(), at
			default:
				c.vals[r] = bufs[1].Bytes()[at*c.from.Size():]
			}
		}
	}
}

// from views b as elements, from element at on.
func from[T any](b *memory.Buffer, at int) []T {
	if b == nil || b.Len() == 0 {
		return nil
	}
	return view[T](b.Bytes())[at:]
}

// view gives bytes as values; there must be some.
func view[T any](b []byte) []T {
	var z T
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), len(b)/int(unsafe.Sizeof(z)))
}

// sized is s with n elements.
func sized[T any](s []T, n int) []T {
	if cap(s) < n {
		return make([]T, n)
	}
	return s[:n]
}

// unload forgets the records, so that nothing reaches memory that is given back.
func (c *column) unload() {
	for i := range c.levels {
		clear(c.levels[i].bits)
	}
	clear(c.offs32)
	clear(c.offs64)
	clear(c.vals)
}

// span is the items of n rows: the rows themselves, or the elements of their lists.
func (c *column) span(rec, row, n int) (lo, hi int) {
	switch {
	case c.second == "":
		return row, row + n
	case n == 0:
		return 0, 0
	case c.large:
		o := c.offs64[rec]
		return int(o[row]), int(o[row+n])
	}
	o := c.offs32[rec]
	return int(o[row]), int(o[row+n])
}

// nulls is an error if a value of the runs is null.
func (c *column) nulls(runs []gather.Run) error {
	for i := range c.levels {
		l := &c.levels[i]
		if !l.nulls {
			continue
		}
		for _, r := range runs {
			bits := l.bits[r.Rec]
			if bits == nil {
				continue
			}
			lo, hi := int(r.Row), int(r.Row+r.N)
			if !l.list {
				lo, hi = c.span(int(r.Rec), lo, int(r.N))
				lo, hi = lo*l.per, hi*l.per
			}
			at := l.at[r.Rec]
			if hi-lo == 1 && bitutil.BitIsSet(bits, at+lo) || bitutil.CountSetBits(bits, at+lo, hi-lo) == hi-lo {
				continue
			}
			what := "null has no tensor form"
			if i > 0 {
				what = "null in a list has no tensor form"
			}
			return fault.New(fault.RowError, "%s: filter it out, or use coalesce(%s, ...)", what, c.name).At(fault.Place{Column: c.name})
		}
	}
	return nil
}

// misfit is the error for value i, counted from item 0 of rec.
func (c *column) misfit(rec arrow.RecordBatch, i int) error {
	arr := rec.Column(c.index)
	data := arr.Data()
	at := data.Offset()
	for _, l := range c.levels[:len(c.levels)-1] {
		w := 1
		if !l.list {
			w = int(data.DataType().(*arrow.FixedSizeListType).Len())
		} else {
			at = 0
		}
		data = data.Children()[0]
		at = data.Offset() + at*w
	}
	leaf := array.MakeFromData(data)
	defer leaf.Release()
	text := leaf.ValueStr(at - data.Offset() + i)
	if c.scaled {
		text += ", scaled,"
	}
	return fault.New(fault.RowError, "%s does not fit %s: clip or filter it, or ask for a wider dtype", text, c.to).
		At(fault.Place{Column: c.name})
}

// put writes n values from value i of a record on; the index of one that does not
// fit, or -1.
func (c *column) put(dst []byte, rec, i, n int) int {
	switch {
	case n == 0:
		return -1
	case c.from == Bool && c.conv == nil:
		unpack(dst, c.vals[rec], c.bit[rec]+i, n)
	case c.from == Bool:
		var tmp [512]byte
		size := c.to.Size()
		for done := 0; done < n; done += len(tmp) {
			k := min(n-done, len(tmp))
			unpack(tmp[:k], c.vals[rec], c.bit[rec]+i+done, k)
			if bad := c.conv(dst[done*size:(done+k)*size], tmp[:k]); bad >= 0 {
				return done + bad
			}
		}
	default:
		size := c.from.Size()
		src := c.vals[rec][i*size : (i+n)*size]
		if c.conv != nil {
			return c.conv(dst, src)
		}
		copy(dst, src)
	}
	return -1
}

// unpack writes n bits as bytes of 0 and 1.
func unpack(dst, bits []byte, at, n int) {
	dst = dst[:n]
	for i := range dst {
		dst[i] = bits[(at+i)>>3] >> ((at + i) & 7) & 1
	}
}

// longest list of the runs.
func (c *column) longest(runs []gather.Run) int {
	n := 0
	for _, r := range runs {
		for row := int(r.Row); row < int(r.Row+r.N); row++ {
			lo, hi := c.span(int(r.Rec), row, 1)
			n = max(n, hi-lo)
		}
	}
	return n
}

// total length of the lists of the runs.
func (c *column) total(runs []gather.Run) int {
	n := 0
	for _, r := range runs {
		lo, hi := c.span(int(r.Rec), int(r.Row), int(r.N))
		n += hi - lo
	}
	return n
}

// padded is the length of padded lists.
func (c *column) padded(runs []gather.Run, forced map[string]int) (int, error) {
	n := c.longest(runs)
	limit, ok := c.length, c.length > 0
	if !ok {
		limit, ok = forced[c.name]
	}
	switch {
	case !ok:
		limit = n
	case n > limit:
		return 0, fault.New(fault.RowError, "a list of %d values is longer than %d: cut or filter it, or ask for a greater length", n, limit).
			At(fault.Place{Column: c.name})
	}
	return roundUp(limit, c.multiple), nil
}

// pad writes lists of the runs to rows of n items each, and their lengths; what
// is behind the end of a list, or of the runs, is filled.
func (c *column) pad(dst []byte, lengths []int32, n int, recs []arrow.RecordBatch, runs []gather.Run) error {
	item := c.width * c.to.Size()
	size := n * item
	i := 0
	for _, r := range runs {
		for row := int(r.Row); row < int(r.Row+r.N); row++ {
			lo, hi := c.span(int(r.Rec), row, 1)
			cut := (hi - lo) * item
			if bad := c.put(dst[:cut], int(r.Rec), lo*c.width, (hi-lo)*c.width); bad >= 0 {
				return c.misfit(recs[r.Rec], lo*c.width+bad)
			}
			fill(dst[cut:size], c.empty)
			lengths[i] = int32(hi - lo)
			dst, i = dst[size:], i+1
		}
	}
	fill(dst, c.empty)
	clear(lengths[i:])
	return nil
}

// fill repeats v over dst.
func fill(dst, v []byte) {
	for k := copy(dst, v); 0 < k && k < len(dst); k *= 2 {
		copy(dst[k:], dst[:k])
	}
}

// ragged writes the lists of the runs one behind the other, and where each begins.
func (c *column) ragged(dst []byte, offsets []int64, recs []arrow.RecordBatch, runs []gather.Run) error {
	item := c.width * c.to.Size()
	offsets[0] = 0
	i, end := 0, int64(0)
	for _, r := range runs {
		for row := int(r.Row); row < int(r.Row+r.N); row++ {
			lo, hi := c.span(int(r.Rec), row, 1)
			end += int64(hi - lo)
			i++
			offsets[i] = end
		}
		lo, hi := c.span(int(r.Rec), int(r.Row), int(r.N))
		k := (hi - lo) * item
		if bad := c.put(dst[:k], int(r.Rec), lo*c.width, (hi-lo)*c.width); bad >= 0 {
			return c.misfit(recs[r.Rec], lo*c.width+bad)
		}
		dst = dst[k:]
	}
	for i++; i < len(offsets); i++ {
		offsets[i] = end
	}
	return nil
}
