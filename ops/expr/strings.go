package expr

import (
	"bytes"
	"math"
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
)

// texts gives the values of a string or binary vec, literal or not.
type texts struct {
	lit   []byte
	off32 []int32
	off64 []int64
	width int // of fixed size binaries
	data  []byte
}

func textsOf(v vec) texts {
	if v.lit != nil {
		return texts{lit: []byte(v.lit.s)}
	}
	return textsIn(v.data)
}

func textsIn(d arrow.ArrayData) texts {
	n, off := d.Len(), d.Offset()
	if t, ok := d.DataType().(*arrow.FixedSizeBinaryType); ok {
		s := texts{width: t.ByteWidth}
		if b := d.Buffers()[1]; b != nil {
			s.data = b.Bytes()[off*t.ByteWidth:]
		}
		return s
	}
	var s texts
	if b := d.Buffers()[2]; b != nil {
		s.data = b.Bytes()
	}
	ob := d.Buffers()[1]
	switch large := physOf(d.DataType()) == pLarge; {
	case ob == nil || ob.Len() == 0: // an empty array need not have offsets
		s.off32 = make([]int32, n+1)
	case large:
		s.off64 = cast[int64](ob.Bytes())[off : off+n+1]
	default:
		s.off32 = cast[int32](ob.Bytes())[off : off+n+1]
	}
	return s
}

func (s *texts) at(i int) []byte {
	switch {
	case s.off32 != nil:
		return s.data[s.off32[i]:s.off32[i+1]]
	case s.off64 != nil:
		return s.data[s.off64[i]:s.off64[i+1]]
	case s.data != nil:
		return s.data[i*s.width : (i+1)*s.width]
	}
	return s.lit
}

// bytes is the size of all values of n rows, 0 for a literal.
func (s *texts) bytes(n int) int {
	switch {
	case s.off32 != nil:
		return int(s.off32[n] - s.off32[0])
	case s.off64 != nil:
		return int(s.off64[n] - s.off64[0])
	case s.data != nil:
		return n * s.width
	}
	return len(s.lit)
}

// stringsOut builds a string or binary array row by row: offsets at once, data
// in a buffer that grows by doubling.
type stringsOut struct {
	x     *exec
	typ   arrow.DataType
	valid *memory.Buffer
	offs  *memory.Buffer
	off32 []int32
	off64 []int64
	data  *memory.Buffer
	buf   []byte // data, up to its capacity
	used  int
	i     int
}

// newStrings begins an array of n rows; it takes over valid.
func newStrings(x *exec, t arrow.DataType, n int, valid *memory.Buffer) *stringsOut {
	o := &stringsOut{x: x, typ: t, valid: valid, data: memory.NewResizableBuffer(x.mem)}
	switch physOf(t) {
	case pLarge:
		o.offs, o.off64 = allocOf[int64](x.mem, n+1)
		o.off64[0] = 0
	case pString:
		o.offs, o.off32 = allocOf[int32](x.mem, n+1)
		o.off32[0] = 0
	}
	return o
}

// reserve makes room for size more bytes.
func (o *stringsOut) reserve(size int) {
	need := o.used + size
	if need <= len(o.buf) {
		return
	}
	room := max(need, 2*len(o.buf), 64)
	if most := o.x.most; most > 0 && need <= most {
		room = min(room, most)
	} else if most > 0 {
		o.x.failBatch(fault.New(fault.Exhausted, "a constant string of more than %d bytes", most))
		if o.used = 0; size <= len(o.buf) { // what comes is of no use
			return
		}
		room = size
	}
	o.data.Resize(room)
	o.buf = o.data.Bytes()
}

func put[S []byte | string](o *stringsOut, v S) {
	if o.used+len(v) > len(o.buf) {
		o.reserve(len(v))
	}
	copy(o.buf[o.used:], v)
	o.used += len(v)
}

// end closes row i.
func (o *stringsOut) end() {
	o.i++
	switch {
	case o.off32 != nil:
		if o.used > math.MaxInt32 {
			o.x.failBatch(fault.New(fault.Exhausted, "strings of one batch are larger than 2 GiB: use smaller batches, or large_string"))
			o.used = 0
		}
		o.off32[o.i] = int32(o.used)
	case o.off64 != nil:
		o.off64[o.i] = int64(o.used)
	}
}

func (o *stringsOut) add(s string) { put(o, s); o.end() }

// abort frees what done would hand over.
func (o *stringsOut) abort() {
	o.data.Release()
	if o.offs != nil {
		o.offs.Release()
	}
	if o.valid != nil {
		o.valid.Release()
	}
}

func (o *stringsOut) done() vec {
	if o.x.err != nil { // offsets may be out of order
		n := o.i
		t := o.typ
		x := o.x
		o.abort()
		return x.nulls(t, n)
	}
	o.data.Resize(o.used)
	if o.offs == nil {
		return o.x.array(o.typ, o.i, o.valid, o.data)
	}
	return o.x.array(o.typ, o.i, o.valid, o.offs, o.data)
}

// stringTest is the kernel of a test of one string by another.
func stringTest(f func(s, by []byte) bool) kernel {
	return func(x *exec, a []vec) vec {
		p, q := textsOf(a[0]), textsOf(a[1])
		return compareBits(x, a, func(i int) bool { return f(p.at(i), q.at(i)) })
	}
}

func matchKernel(re *regexp.Regexp) kernel {
	return func(x *exec, a []vec) vec {
		p := textsOf(a[0])
		return compareBits(x, a, func(i int) bool { return re.Match(p.at(i)) })
	}
}

// stringMap is the kernel of a function of strings: f appends row i.
func stringMap(t arrow.DataType, f func(o *stringsOut, in []texts, i int)) kernel {
	return func(x *exec, a []vec) vec {
		n := a[0].n
		in := make([]texts, len(a))
		size := 0
		for j, v := range a {
			if physOf(v.typ) == pString || physOf(v.typ) == pLarge {
				in[j] = textsOf(v)
				size = max(size, in[j].bytes(n))
			}
		}
		valid := x.valid(n, a...)
		ok := bitmap{}
		if valid != nil {
			ok.b = valid.Bytes()
		}
		o := newStrings(x, t, n, valid)
		o.reserve(size)
		for i := range n {
			if ok.bit(i) {
				f(o, in, i)
			}
			o.end()
		}
		return o.done()
	}
}

func concatRow(o *stringsOut, in []texts, i int) {
	for j := range in {
		put(o, in[j].at(i))
	}
}

// concatKernel skips nulls, as concat does and + does not.
func concatKernel(t arrow.DataType) func(x *exec, a []vec) vec {
	return func(x *exec, a []vec) vec {
		in, ok := make([]texts, len(a)), make([]bitmap, len(a))
		for j, v := range a {
			if !v.isNull() {
				in[j] = textsOf(v)
			}
			ok[j] = v.valid()
		}
		o := newStrings(x, t, x.n, nil)
		for i := range x.n {
			for j := range in {
				if ok[j].bit(i) {
					put(o, in[j].at(i))
				}
			}
			o.end()
		}
		return o.done()
	}
}

func lowerRow(o *stringsOut, in []texts, i int) { mapCase(o, in[0].at(i), 'A', unicode.ToLower) }

func upperRow(o *stringsOut, in []texts, i int) { mapCase(o, in[0].at(i), 'a', unicode.ToUpper) }

// mapCase swaps the case of ASCII letters from first on in place, and maps other
// runes one by one.
func mapCase(o *stringsOut, s []byte, first byte, f func(rune) rune) {
	o.reserve(len(s))
	out := o.buf[o.used:]
	for i, c := range s {
		if c >= utf8.RuneSelf {
			o.used += i
			for _, r := range string(s[i:]) {
				var b [utf8.UTFMax]byte
				put(o, b[:utf8.EncodeRune(b[:], f(r))])
			}
			return
		}
		if c-first < 26 {
			c ^= 0x20
		}
		out[i] = c
	}
	o.used += len(s)
}

func trimRow(o *stringsOut, in []texts, i int) { put(o, bytes.TrimSpace(in[0].at(i))) }

// replaceRow replaces every in[1] by in[2]; an empty in[1] replaces nothing.
func replaceRow(o *stringsOut, in []texts, i int) {
	s, old, by := in[0].at(i), in[1].at(i), in[2].at(i)
	if len(old) > 0 {
		for {
			j := bytes.Index(s, old)
			if j < 0 {
				break
			}
			put(o, s[:j])
			put(o, by)
			s = s[j+len(old):]
		}
	}
	put(o, s)
}

// substr is the part of s from code point from (counted from the end if
// negative) of at most count code points; count < 0 gives nothing.
func substr(s []byte, from, count int64) []byte {
	if from < 0 {
		n := int64(utf8.RuneCount(s))
		from += n
		if from < 0 {
			count += from // what lies before the begin is used up
			from = 0
		}
	}
	if count <= 0 {
		return nil
	}
	for ; from > 0 && len(s) > 0; from-- {
		s = s[runeLen(s):]
	}
	if count >= int64(len(s)) {
		return s
	}
	end := 0
	for ; count > 0 && end < len(s); count-- {
		end += runeLen(s[end:])
	}
	return s[:end]
}

func runeLen(s []byte) int {
	if s[0] < utf8.RuneSelf {
		return 1
	}
	_, n := utf8.DecodeRune(s)
	return n
}

func substrKernel(t arrow.DataType) kernel {
	return func(x *exec, a []vec) vec {
		from, lf := values[int64](a[1])
		var count []int64
		lc := int64(math.MaxInt64)
		if len(a) == 3 {
			count, lc = values[int64](a[2])
		}
		return stringMap(t, func(o *stringsOut, in []texts, i int) {
			put(o, substr(in[0].at(i), at(from, lf, i), at(count, lc, i)))
		})(x, a)
	}
}

func sizeText(x *exec, a []vec) vec {
	p := textsOf(a[0])
	utf := isText(a[0].typ)
	return int64Rows(x, a, func(i int) int64 {
		s := p.at(i)
		if utf {
			return int64(utf8.RuneCount(s))
		}
		return int64(len(s))
	})
}

// int64Rows fills an int64 array by calling f for each row.
func int64Rows(x *exec, a []vec, f func(i int) int64) vec {
	n := a[0].n
	buf, out := allocOf[int64](x.mem, n)
	valid := x.valid(n, a...)
	ok := bitmap{}
	if valid != nil {
		ok.b = valid.Bytes()
	}
	for i := range out {
		out[i] = 0
		if ok.bit(i) {
			out[i] = f(i)
		}
	}
	return x.array(arrow.PrimitiveTypes.Int64, n, valid, buf)
}

// splitKernel makes a list of the parts between separators; an empty separator
// splits into code points.
func splitKernel(elem arrow.DataType) kernel {
	return func(x *exec, a []vec) vec {
		n := a[0].n
		p, q := textsOf(a[0]), textsOf(a[1])
		valid := x.valid(n, a...)
		ok := bitmap{}
		if valid != nil {
			ok.b = valid.Bytes()
		}
		parts := 0
		for i := range n {
			if ok.bit(i) {
				parts += countParts(p.at(i), q.at(i))
			}
		}
		offs, offsets := allocOf[int32](x.mem, n+1)
		offsets[0] = 0
		o := newStrings(x, elem, parts, nil)
		o.reserve(p.bytes(n))
		for i := range n {
			if ok.bit(i) {
				s, sep := p.at(i), q.at(i)
				for c := countParts(s, sep); c > 0; c-- {
					j, skip := len(s), 0
					switch {
					case len(sep) == 0:
						j = runeLen(s)
					case c > 1:
						j, skip = bytes.Index(s, sep), len(sep)
					}
					put(o, s[:j])
					o.end()
					s = s[j+skip:]
				}
			}
			offsets[i+1] = int32(o.i)
		}
		child := x.expand(o.done())
		d := makeData(arrow.ListOf(elem), n, valid, []arrow.ArrayData{child.data}, offs)
		return vec{typ: d.DataType(), n: n, data: d}
	}
}

func countParts(s, sep []byte) int {
	if len(sep) == 0 {
		return utf8.RuneCount(s)
	}
	return bytes.Count(s, sep) + 1
}

// chooseStrings is choose for strings.
func chooseStrings(x *exec, t arrow.DataType, vs []vec, pick [][]uint64) vec {
	vbuf := picked(x, vs, pick)
	ok := bitmap{b: vbuf.Bytes()}
	in := make([]texts, len(vs))
	for j, v := range vs {
		if !v.isNull() {
			in[j] = textsOf(v)
		}
	}
	o := newStrings(x, t, x.n, vbuf)
	zero := ""
	if f, isFixed := t.(*arrow.FixedSizeBinaryType); isFixed {
		zero = strings.Repeat("\x00", f.ByteWidth)
	}
	for i := range x.n {
		if !ok.bit(i) {
			put(o, zero)
			o.end()
			continue
		}
		for j := range vs {
			if pick[j][i>>6]>>(i&63)&1 == 1 {
				put(o, in[j].at(i))
				break
			}
		}
		o.end()
	}
	return o.done()
}

// isText reports whether t holds UTF-8.
func isText(t arrow.DataType) bool {
	return t.ID() == arrow.STRING || t.ID() == arrow.LARGE_STRING
}

func isBytes(t arrow.DataType) bool {
	switch t.ID() {
	case arrow.BINARY, arrow.LARGE_BINARY, arrow.FIXED_SIZE_BINARY:
		return true
	}
	return false
}

// chooseTake is choose for nested types: the candidates one behind the other,
// and a gather.
func chooseTake(x *exec, t arrow.DataType, vs []vec, pick [][]uint64) vec {
	arrs := make([]arrow.Array, 0, len(vs))
	base := make([]int, len(vs))
	total := 0
	for j, v := range vs {
		v := v
		if v.data != nil {
			v.data.Retain()
		}
		e := x.expand(v)
		base[j] = total
		total += e.n
		arr := array.MakeFromData(e.data)
		e.release()
		defer arr.Release()
		arrs = append(arrs, arr)
	}
	all, err := array.Concatenate(arrs, x.mem)
	if err != nil {
		x.failBatch(fault.New(fault.Unsupported, "values of %s: %w", TypeName(t), err))
		return x.nulls(t, x.n)
	}
	defer all.Release()
	idx := make([]int32, x.n)
	for i := range idx {
		idx[i] = -1
		for j := range vs {
			if pick[j][i>>6]>>(i&63)&1 == 1 {
				idx[i] = int32(base[j] + i)
				break
			}
		}
	}
	d, err := take(all.Data(), picksOf(idx), x.mem)
	if err != nil {
		x.failBatch(err)
		return x.nulls(t, x.n)
	}
	return vec{typ: t, n: x.n, data: d}
}
