package jsonio

import (
	"bytes"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/textvalue"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// kind says how a column takes values.
type kind uint8

const (
	kNull kind = iota
	kBool
	kInt
	kUint
	kFloat32
	kFloat64
	kText   // string, large_string
	kBinary // binary, large_binary
	kFixed  // fixed_size_binary
	kDate
	kTime // time32, time64
	kTimestamp
	kDecimal
	kList // list, large_list
	kFixedList
	kStruct
	kMap // an object, of any keys
)

// growing is memory from the allocator that grows by doubling.
type growing struct {
	b *memory.Buffer // nil until something is appended
	p []byte         // its memory
	n int            // bytes in use
}

// extend makes room for k more bytes and counts them in.
func (g *growing) extend(k, hint int, alloc memory.Allocator) []byte {
	at := g.n
	g.n += k
	if g.n > len(g.p) {
		if g.b == nil {
			g.b = memory.NewResizableBuffer(alloc)
		}
		g.b.Reserve(max(g.n, 2*at, hint))
		g.p = g.b.Buf()
	}
	return g.p[at:g.n]
}

// bits makes room for n bits in all.
func (g *growing) bits(n, hint int, alloc memory.Allocator) {
	if need := (n + 7) / 8; need > g.n {
		g.extend(need-g.n, hint, alloc)
	}
}

// take hands the buffer over; one of much more memory than bytes is cut.
func (g *growing) take() *memory.Buffer {
	b := g.b
	if b == nil {
		return memory.NewBufferBytes(nil)
	}
	b.ResizeNoShrink(g.n)
	if g.n < len(g.p)-len(g.p)/4 {
		b.Resize(g.n)
	}
	*g = growing{}
	return b
}

func (g *growing) release() {
	if g.b != nil {
		g.b.Release()
	}
	*g = growing{}
}

// sink is what the columns of one reader share.
type sink struct {
	alloc  memory.Allocator
	bytes  int64 // Arrow memory of what was appended since the last batch
	begin  int64 // bytes before the row at hand
	lost   int64 // of what was taken back since a bad row was counted
	growth *fileset.Growth
	over   bool // something was not appended as it is too much
}

// full says whether n more bytes are more than a row may take; the row ends with an error then.
func (s *sink) full(n int64) bool {
	s.over = s.over || s.bytes-s.begin+n > s.growth.Row()
	return s.over
}

// take counts n bytes of which the memory is taken later.
func (s *sink) take(n int64) error {
	if s.full(n) {
		return s.growth.LargeRow("the row takes")
	}
	s.bytes += n
	return nil
}

// column collects values of one type. Values are appended at the end only;
// truncate takes the last ones back, so a row that fails leaves nothing.
type column struct {
	s    *sink
	name string
	path string // for messages: "a.b"
	typ  arrow.DataType
	kind kind

	width  int   // bytes of a fixed-width value; of an offset for variable ones; 0 for bits
	min    int64 // kInt
	max    uint64
	unit   arrow.TimeUnit    // kTime
	stamps *textvalue.Stamps // kTimestamp
	from   origin            // of typ

	n, nulls int
	valid    growing        // bitmap; empty while there are no nulls
	vals     growing        // fixed-width values, text
	offs     growing        // n+1 offsets, of variable-size kinds; empty while n is 0
	lent     *memory.Buffer // kText: the text of the only row, in memory that it was parsed in; vals and offs are empty then
	kids     []*column      // of structs and fixed lists they may be behind: what they lack are nulls, see pad
	byName   map[string]int // kStruct
	nullBits int64          // bits that a null takes
	kidBits  int64          // of all kids, each once
	hint     [3]int         // bytes of valid, vals, offs in the last batch
}

// origin is where a column has its type from.
type origin uint8

const (
	guessed origin = iota // the sample
	mixed                 // the sample, and text takes what is no string as its JSON text
	given                 // types; text does so, too
)

// newColumn makes the column of a field; from as for the column, and for what it
// nests. A type that JSON does not give is an Unsupported error.
func newColumn(s *sink, f arrow.Field, path string, from origin) (*column, error) {
	c := &column{s: s, name: f.Name, path: path, typ: f.Type, from: from}
	kid := func(f arrow.Field, name string) error {
		k, err := newColumn(s, f, path+name, from)
		c.kids = append(c.kids, k)
		c.kidBits += k.nullBits
		return err
	}
	if w, ok := f.Type.(arrow.FixedWidthDataType); ok {
		c.width = w.BitWidth() / 8
	}
	var err error
	switch t := f.Type.(type) {
	case *arrow.NullType:
		c.kind = kNull
	case *arrow.BooleanType:
		c.kind = kBool
	case *arrow.Int8Type, *arrow.Int16Type, *arrow.Int32Type, *arrow.Int64Type, *arrow.DurationType:
		c.kind, c.min, c.max = kInt, -1<<(8*c.width-1), 1<<(8*c.width-1)-1
	case *arrow.Uint8Type, *arrow.Uint16Type, *arrow.Uint32Type, *arrow.Uint64Type:
		c.kind, c.max = kUint, 1<<(8*c.width)-1
	case *arrow.Float32Type:
		c.kind = kFloat32
	case *arrow.Float64Type:
		c.kind = kFloat64
	case *arrow.StringType:
		c.kind, c.width = kText, 4
	case *arrow.LargeStringType:
		c.kind, c.width = kText, 8
	case *arrow.BinaryType:
		c.kind, c.width = kBinary, 4
	case *arrow.LargeBinaryType:
		c.kind, c.width = kBinary, 8
	case *arrow.FixedSizeBinaryType:
		c.kind = kFixed
	case *arrow.Date32Type, *arrow.Date64Type:
		c.kind = kDate
	case *arrow.Time32Type:
		c.kind, c.unit = kTime, t.Unit
	case *arrow.Time64Type:
		c.kind, c.unit = kTime, t.Unit
	case *arrow.TimestampType:
		c.kind = kTimestamp
		c.stamps, err = textvalue.NewStamps(t, nil, from != given)
	case *arrow.Decimal128Type, *arrow.Decimal256Type:
		c.kind = kDecimal
	case *arrow.ListType:
		c.kind, c.width = kList, 4
		err = kid(t.ElemField(), "[]")
	case *arrow.LargeListType:
		c.kind, c.width = kList, 8
		err = kid(t.ElemField(), "[]")
	case *arrow.FixedSizeListType:
		c.kind, c.width = kFixedList, int(t.Len())
		err = kid(t.ElemField(), "[]")
	case *arrow.MapType:
		if t.KeyType().ID() != arrow.STRING {
			return c, driver.Errorf(driver.Unsupported, "the keys of a map in JSON are strings, not %s", typename.Name(t.KeyType())).At(driver.Place{Column: path})
		}
		c.kind, c.width = kMap, 4
		if err = kid(t.KeyField(), "{}"); err == nil {
			err = kid(t.ItemField(), "{}")
		}
	case *arrow.StructType:
		c.kind = kStruct
		c.byName = make(map[string]int, t.NumFields())
		for i, f := range t.Fields() {
			if err == nil {
				err = kid(f, "."+f.Name)
			}
			c.byName[f.Name] = i
		}
	default:
		err = driver.Errorf(driver.Unsupported, "JSON has no values of type %s", typename.Name(t)).At(driver.Place{Column: path})
	}
	switch c.kind {
	case kNull:
	case kBool:
		c.nullBits = 2
	case kStruct:
		c.nullBits = 1 + c.kidBits
	case kFixedList:
		c.nullBits = 1 + c.kidBits*int64(c.width)
	default:
		c.nullBits = 1 + 8*int64(c.width)
	}
	return c, err
}

// added counts the row that was appended in, as valid.
func (c *column) added() {
	if c.valid.b != nil {
		c.bit(true)
	}
	c.n++
}

func (c *column) bit(v bool) {
	c.valid.bits(c.n+1, c.hint[0], c.s.alloc)
	bitutil.SetBitTo(c.valid.p, c.n, v)
}

// fixed appends room for a value of the column's width.
func (c *column) fixed() []byte {
	c.s.bytes += int64(c.width)
	return c.vals.extend(c.width, c.hint[1], c.s.alloc)
}

// end appends the offset at which the row ends.
func (c *column) end(at int) {
	c.s.bytes += int64(c.width)
	if c.n == 0 {
		clear(c.offs.extend(c.width, c.hint[2], c.s.alloc))
	}
	p := c.offs.extend(c.width, c.hint[2], c.s.alloc)
	if c.width == 4 {
		arrow.Int32Traits.CastFromBytes(p)[0] = int32(at)
	} else {
		arrow.Int64Traits.CastFromBytes(p)[0] = int64(at)
	}
}

// settle copies text that was lent, as more comes behind it.
func (c *column) settle() {
	if b := c.lent; b != nil {
		c.lent, c.n = nil, 0
		c.s.bytes -= int64(c.width)
		copy(c.vals.extend(b.Len(), c.hint[1], c.s.alloc), b.Bytes())
		c.end(c.vals.n)
		c.n = 1
		b.Release()
	}
}

// unlend forgets it.
func (c *column) unlend() {
	if c.lent != nil {
		c.lent.Release()
		c.lent = nil
	}
}

// offset is where row i ends in vals or in the child.
func (c *column) offset(i int) int {
	switch {
	case i < 0 || c.offs.n == 0:
		return 0
	case c.width == 4:
		return int(arrow.Int32Traits.CastFromBytes(c.offs.p[:c.offs.n])[i+1])
	}
	return int(arrow.Int64Traits.CastFromBytes(c.offs.p[:c.offs.n])[i+1])
}

// fewKeys are compared with each other; more are looked up.
const fewKeys = 16

// twice finds a text that is there more than once among rows of a column of texts, from row from on.
func (c *column) twice(from int) (string, bool) {
	c.settle()
	text := func(i int) []byte { return c.vals.p[c.offset(i-1):c.offset(i)] }
	if c.n-from <= fewKeys {
		for i := from + 1; i < c.n; i++ {
			for j := from; j < i; j++ {
				if bytes.Equal(text(i), text(j)) {
					return string(text(i)), true
				}
			}
		}
		return "", false
	}
	seen := make(map[string]bool, c.n-from)
	for i := from; i < c.n; i++ {
		if k := text(i); !seen[string(k)] {
			seen[string(k)] = true
		} else {
			return string(k), true
		}
	}
	return "", false
}

// null appends a null.
func (c *column) null() {
	c.s.bytes += c.nullBits / 8
	c.pad(c.n + 1)
}

// pad appends nulls, which are counted already, until there are n rows.
func (c *column) pad(n int) {
	k := n - c.n
	if k <= 0 {
		return
	}
	if c.kind == kNull {
		c.n = n
		return
	}
	c.settle()
	if c.valid.b == nil {
		p := c.valid.extend((c.n+7)/8, max(c.hint[0], (n+7)/8, c.n/4), c.s.alloc)
		for i := range p {
			p[i] = 0xFF
		}
	}
	c.valid.bits(n, c.hint[0], c.s.alloc)
	bitutil.SetBitsTo(c.valid.p, int64(c.n), int64(k), false)
	switch c.kind {
	case kBool:
		c.vals.bits(n, c.hint[1], c.s.alloc)
		bitutil.SetBitsTo(c.vals.p, int64(c.n), int64(k), false)
	case kText, kBinary:
		c.ends(c.vals.n, k)
	case kList, kMap:
		c.ends(c.kids[0].n, k)
	case kFixedList, kStruct:
	default:
		clear(c.vals.extend(k*c.width, c.hint[1], c.s.alloc))
	}
	c.nulls += k
	c.n = n
}

// ends appends k offsets of the same.
func (c *column) ends(at, k int) {
	if c.n == 0 {
		k++
	}
	p := c.offs.extend(k*c.width, c.hint[2], c.s.alloc)
	if c.width == 4 {
		fill(arrow.Int32Traits.CastFromBytes(p), int32(at))
	} else {
		fill(arrow.Int64Traits.CastFromBytes(p), int64(at))
	}
	if c.n == 0 {
		clear(p[:c.width])
	}
}

func fill[T any](p []T, v T) {
	for i := range p {
		p[i] = v
	}
}

// boolean appends a bit to vals, not the row.
func (c *column) boolean(v bool) {
	if c.n%8 == 0 {
		c.s.bytes++
		clear(c.vals.extend(1, c.hint[1], c.s.alloc))
	}
	bitutil.SetBitTo(c.vals.p, c.n, v)
}

// truncate keeps the first n rows, all of which there may not be yet. Rows beyond may be half
// appended.
func (c *column) truncate(n int) {
	n = min(n, c.n)
	if c.valid.b != nil {
		for i := n; i < c.n; i++ {
			if !bitutil.BitIsSet(c.valid.p, i) {
				c.nulls--
			}
		}
		c.valid.n = min(c.valid.n, (n+7)/8)
	}
	switch c.kind {
	case kNull:
	case kBool:
		c.vals.n = min(c.vals.n, (n+7)/8)
	case kText, kBinary:
		if n == 0 {
			c.unlend()
		}
		c.vals.n = c.offset(n - 1)
		c.offs.n = min(c.offs.n, offsetBytes(n, c.width))
	case kList, kMap:
		at := c.offset(n - 1)
		for _, k := range c.kids {
			k.truncate(at)
		}
		c.offs.n = min(c.offs.n, offsetBytes(n, c.width))
	case kFixedList:
		c.kids[0].truncate(n * c.width)
	case kStruct:
		for _, k := range c.kids {
			k.truncate(n)
		}
	default:
		c.vals.n = min(c.vals.n, n*c.width)
	}
	c.n = n
}

func offsetBytes(n, width int) int {
	if n == 0 {
		return 0
	}
	return (n + 1) * width
}

// finish returns a reference to an array of n rows, nulls behind those that there are, and empties
// the column.
func (c *column) finish(n int) arrow.ArrayData {
	c.pad(n)
	c.hint = [3]int{c.valid.n, c.vals.n, c.offs.n}
	bufs := []*memory.Buffer{nil}
	if c.nulls > 0 {
		bufs[0] = c.valid.take()
	} else {
		c.valid.release()
	}
	var kids []arrow.ArrayData
	switch c.kind {
	case kNull, kStruct, kFixedList:
	case kText, kBinary:
		if b := c.lent; b != nil {
			c.lent, c.n = nil, 0
			c.end(b.Len())
			c.n = 1
			bufs = append(bufs, c.offs.take(), b)
			break
		}
		bufs = append(bufs, c.offs.take(), c.vals.take())
	case kList, kMap:
		bufs = append(bufs, c.offs.take())
	default:
		bufs = append(bufs, c.vals.take())
	}
	for _, k := range c.kids {
		size := k.n
		switch c.kind {
		case kStruct:
			size = n
		case kFixedList:
			size = n * c.width
		}
		kids = append(kids, k.finish(size))
	}
	nulls := c.nulls
	c.n, c.nulls = 0, 0
	switch c.kind {
	case kNull:
		nulls = n
	case kMap:
		entries := array.NewData(c.typ.(*arrow.MapType).Elem(), kids[0].Len(), []*memory.Buffer{nil}, kids, 0, 0)
		kids[0].Release()
		kids[1].Release()
		kids = []arrow.ArrayData{entries}
	}
	d := array.NewData(c.typ, n, bufs, kids, nulls, 0)
	memory.ReleaseBuffers(bufs)
	for _, k := range kids {
		k.Release()
	}
	return d
}

func (c *column) release() {
	c.unlend()
	c.valid.release()
	c.vals.release()
	c.offs.release()
	c.n, c.nulls = 0, 0
	for _, k := range c.kids {
		k.release()
	}
}
