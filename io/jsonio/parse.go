package jsonio

import (
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/big"
	"strconv"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/decimal256"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/textvalue"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
)

// parser appends the rows of a text to columns.
type parser struct {
	text
	root   *column
	alone  bool    // nothing but white space follows a row in the text
	scalar bool    // a row is a value of the only column, if that is read, not an object of columns
	seen   *shape  // nil: rows are appended to root; else they are only looked at
	fields *fields // of seen
	strict bool
	known  map[string]bool // strict: columns of the file, also those not read
	raw    map[string]bool // columns that are not read, whose strings need not be UTF-8
	base64 bool            // so bytes are written
	bad    *driver.Error   // first value of the row that its column cannot hold
	b64    []byte
	lend   func(b []byte, used int) *memory.Buffer // of the memory of the text, nil: it is copied
}

// row parses one value at the text's position as a row. It returns errMore or a
// *syntaxError, with nothing appended and the position where the row begins; or a
// *driver.Error of code RowError about a value, with nothing appended and the
// position behind the row.
func (p *parser) row() error {
	if p.seen != nil {
		return p.look()
	}
	s := p.root.s
	n, begin := p.root.n, p.i
	s.begin = s.bytes
	p.bad, p.wrong, p.odds = nil, nil, p.odds[:0]
	c, err := p.space()
	if err == nil {
		switch {
		case p.scalar:
			err = p.single()
		case c == '{':
			err = p.object(p.root, 0)
		default:
			if err = p.skip(0); err == nil {
				p.reject(p.root, "a row is an object, not %s; to read rows of both kinds as text set mixed: text", kindName(c))
			}
		}
	}
	if err == nil {
		err = p.ends()
	}
	if err == nil {
		err = s.take(0)
	}
	if err == nil {
		p.judge(p.root)
		if p.bad == nil {
			return nil
		}
		s.lost += s.bytes - s.begin
	}
	p.root.truncate(n)
	s.bytes = s.begin
	if err != nil {
		p.i = begin
		return err
	}
	return p.bad
}

// reject notes that the row is bad; the first reason stands.
func (p *parser) reject(c *column, format string, args ...any) {
	if p.bad == nil {
		p.bad = driver.Errorf(driver.RowError, format, args...).At(driver.Place{Column: c.path})
	}
}

// judge rejects the row if a string in or before the value of c is no text.
func (p *parser) judge(c *column) {
	if p.wrong != nil {
		p.reject(c, "%w", p.wrong)
	}
}

func kindName(c byte) string {
	switch c {
	case '{':
		return "an object"
	case '[':
		return "an array"
	case '"':
		return "a string"
	case 't', 'f':
		return "a bool"
	case 'n':
		return "null"
	}
	return "a number"
}

// single appends the value at the position as a row of the only column.
func (p *parser) single() error {
	if len(p.root.kids) == 0 {
		if err := p.skip(0); err != nil {
			return err
		}
	} else if err := p.value(p.root.kids[0], 0); err != nil {
		return err
	}
	p.root.added()
	return nil
}

// look is row of a sample.
func (p *parser) look() error {
	begin := p.i
	p.wrong, p.odds = nil, p.odds[:0]
	err := p.checked(0)
	if err == nil {
		err = p.ends()
	}
	if err != nil {
		p.i = begin
		return err
	}
	if p.wrong != nil {
		return driver.Errorf(driver.RowError, "%w", p.wrong)
	}
	end := p.i
	p.i = begin
	err = p.seen.observe(&p.text, 0, p.fields)
	p.i = end
	return err
}

// ends refuses text behind the value of a row that is to be alone.
func (p *parser) ends() error {
	if p.alone && !p.blank() {
		return p.fail("%q after the end of the value; write one on each line, or set layout: elements", p.b[p.i])
	}
	return nil
}

// object appends the object at the position to a struct. Fields that it lacks are counted, and appended
// once something follows.
func (p *parser) object(c *column, depth int) error {
	at, next, lacks := c.n, 0, c.kidBits
	err := p.each(depth, '{', func(key []byte) error {
		i := next
		if i >= len(c.kids) || c.kids[i].name != string(key) {
			var ok bool
			if i, ok = c.byName[string(key)]; !ok {
				if p.strict && (c != p.root || !p.known[string(key)]) {
					p.reject(c, "unknown field %q; the schema comes from the first rows and from types", key)
				}
				p.bytes = c == p.root && p.raw[string(key)]
				err := p.skip(depth + 1)
				p.bytes = false
				return err
			}
		}
		next = i + 1
		if c.kids[i].n > at {
			p.reject(c.kids[i], "the key %q is there twice in one object", key)
			return p.skip(depth + 1)
		}
		c.kids[i].pad(at)
		lacks -= c.kids[i].nullBits
		err := p.value(c.kids[i], depth+1)
		p.judge(c.kids[i])
		return err
	})
	if err != nil {
		return err
	}
	if err := c.s.take(lacks / 8); err != nil {
		return err
	}
	c.added()
	return nil
}

// value appends the value at the position to c: one row, null if it does not fit.
func (p *parser) value(c *column, depth int) error {
	ch, err := p.space()
	if err != nil {
		return err
	}
	if err := c.s.take(0); err != nil {
		return err
	}
	if ch == 'n' {
		if err := p.word("null"); err != nil {
			return err
		}
		c.null()
		return nil
	}
	begin := p.i
	if p.isOdd(ch) {
		return p.oddValue(c)
	}
	switch c.kind {
	case kBool:
		if ch == 't' || ch == 'f' {
			w := "true"
			if ch == 'f' {
				w = "false"
			}
			if err := p.word(w); err != nil {
				return err
			}
			c.boolean(ch == 't')
			c.added()
			return nil
		}
		if c.from == given && (ch == '"' || ch == '0' || ch == '1') {
			return p.written(c, ch)
		}
	case kInt, kUint, kFloat32, kFloat64, kDecimal:
		if ch == '-' || ch-'0' < 10 {
			n, err := p.num()
			if err != nil {
				return err
			}
			p.number(c, n)
			return nil
		}
		if ch == '"' && (c.kind >= kFloat32 || c.from == given) {
			s, err := p.str()
			if err != nil {
				return err
			}
			p.word2(c, s)
			return nil
		}
	case kText:
		if ch == '"' {
			s, err := p.once()
			if err != nil {
				return err
			}
			p.variable(c, s)
			return nil
		}
		if c.from != guessed {
			if err := p.skip(depth); err != nil {
				return err
			}
			p.variable(c, p.json(begin))
			return nil
		}
	case kBinary, kFixed, kDate, kTime, kTimestamp:
		if ch == '"' {
			p.bytes = c.kind <= kFixed && !p.base64
			s, err := p.once()
			p.bytes = false
			if err != nil {
				return err
			}
			p.coded(c, s)
			return nil
		}
	case kList, kFixedList:
		if ch == '[' {
			return p.list(c, depth)
		}
	case kStruct:
		if ch == '{' {
			return p.object(c, depth)
		}
	case kMap:
		if ch == '{' {
			return p.mapping(c, depth)
		}
	}
	if err := p.skip(depth); err != nil {
		return err
	}
	p.reject(c, "%s where %s is needed%s", kindName(ch), typename.Name(c.typ), c.both())
	c.null()
	return nil
}

// written appends a bool that is written as a string or number.
func (p *parser) written(c *column, ch byte) (err error) {
	var s []byte
	if ch == '"' {
		s, err = p.str()
	} else {
		var n number
		n, err = p.num()
		s = n.text
	}
	if err != nil {
		return err
	}
	v, ok := textvalue.GivenBool(textvalue.Trim(s))
	if !ok {
		p.reject(c, "%q is no bool", clip(s))
		c.null()
		return nil
	}
	c.boolean(v)
	c.added()
	return nil
}

// oddValue appends NaN or an infinity.
func (p *parser) oddValue(c *column) error {
	n, err := p.num()
	switch {
	case err != nil:
		return err
	case p.odd != oddKeep:
		c.null() // of a row that is bad, or as is wanted
	case kInt <= c.kind && c.kind <= kFloat64 || c.kind == kDecimal:
		p.number(c, n)
	case c.kind == kText && c.from != guessed:
		p.variable(c, n.text)
	default:
		p.reject(c, "%s where %s is needed%s", n.text, typename.Name(c.typ), c.both())
		c.null()
	}
	return nil
}

// json is the text from begin to the position, with null where NaN and infinities are to be that.
func (p *parser) json(begin int) []byte {
	s := p.b[begin:p.i]
	var out []byte
	for _, at := range p.odds {
		if at[0] >= begin {
			out = append(append(out, p.b[begin:at[0]]...), "null"...)
			begin = at[1]
		}
	}
	if out == nil {
		return s
	}
	return append(out, p.b[begin:p.i]...)
}

func (p *parser) list(c *column, depth int) error {
	k := c.kids[0]
	if c.kind == kFixedList {
		k.pad(c.n * c.width)
	}
	at := k.n
	if err := p.each(depth, '[', func([]byte) error { return p.value(k, depth+1) }); err != nil {
		return err
	}
	if c.kind == kList {
		if c.width == 4 && k.n > math.MaxInt32 {
			p.reject(c, "more than 2^31 elements in a batch; set the type large_list")
		}
		c.end(k.n)
		c.added()
		return nil
	}
	if n := k.n - at; n != c.width {
		p.reject(c, "a list of %d where %d elements are needed", n, c.width)
		k.truncate(at)
		c.null()
		return nil
	}
	c.added()
	return nil
}

func (p *parser) mapping(c *column, depth int) error {
	keys := c.kids[0]
	from := keys.n
	err := p.each(depth, '{', func(key []byte) error {
		p.variable(keys, key)
		return p.value(c.kids[1], depth+1)
	})
	if err != nil {
		return err
	}
	if key, twice := keys.twice(from); twice {
		p.reject(c, "the key %q is there twice in one object", key)
	}
	c.end(keys.n)
	c.added()
	return nil
}

// variable appends s to a column of text or bytes.
func (p *parser) variable(c *column, s []byte) {
	if c.width == 4 && c.vals.n+len(s) > math.MaxInt32 {
		p.reject(c, "more than 2 GiB in a batch; set the type large_string or large_binary")
		c.null()
		return
	}
	if p.lend != nil && c.kind == kText && c.n == 0 {
		if c.lent = p.lend(s, len(s)); c.lent != nil {
			c.s.bytes += int64(c.width + len(s))
			c.added()
			return
		}
	}
	if c.s.full(int64(len(s))) {
		c.null()
		return
	}
	c.settle()
	copy(c.vals.extend(len(s), c.hint[1], c.s.alloc), s)
	c.s.bytes += int64(len(s))
	c.end(c.vals.n)
	c.added()
}

// put appends a fixed-width value by its bits.
func put(c *column, v uint64) {
	d := c.fixed()
	switch c.width {
	case 1:
		d[0] = byte(v)
	case 2:
		binary.LittleEndian.PutUint16(d, uint16(v))
	case 4:
		binary.LittleEndian.PutUint32(d, uint32(v))
	default:
		binary.LittleEndian.PutUint64(d, v)
	}
	c.added()
}

// number appends n to a column of numbers.
func (p *parser) number(c *column, n number) {
	switch c.kind {
	case kInt, kUint:
		if v, ok := integer(c, n); ok {
			put(c, v)
			return
		}
		p.reject(c, "%s does not fit %s%s", clip(n.text), typename.Name(c.typ), c.advice())
	case kFloat64:
		if c.from != given && n.whole && textvalue.Rounded(n.text) {
			p.reject(c, "%s: %w; give the column a type, types: {...: string}, or double to have it rounded", clip(n.text), textvalue.ErrRounded)
			break
		}
		if v, ok := n.float64(); ok {
			put(c, math.Float64bits(v))
			return
		}
		p.reject(c, "%s is beyond the range of double", clip(n.text))
	case kFloat32:
		if v, err := strconv.ParseFloat(str(n.text), 32); err == nil {
			put(c, uint64(math.Float32bits(float32(v))))
			return
		}
		p.reject(c, "%s is beyond the range of float", clip(n.text))
	case kDecimal:
		if v, ok := small(c.typ.(arrow.DecimalType), n); ok && c.width == 16 {
			d := c.fixed()
			binary.LittleEndian.PutUint64(d, uint64(v))
			binary.LittleEndian.PutUint64(d[8:], uint64(v>>63))
			c.added()
			return
		}
		p.decimal(c, n.text)
		return
	}
	c.null()
}

// small gives decimals of up to 18 digits that need no rounding to check.
func small(t arrow.DecimalType, n number) (int64, bool) {
	shift := n.exp + int(t.GetScale())
	if !n.exact || shift < 0 || shift > 18 || n.mant > math.MaxInt64 {
		return 0, false
	}
	most := uint64(pow10[min(18, t.GetPrecision())])
	v := n.mant
	for ; shift > 0 && v < most; shift-- {
		v *= 10
	}
	if v >= most {
		return 0, false
	}
	if n.neg {
		return -int64(v), true
	}
	return int64(v), true
}

func clip(b []byte) string {
	if len(b) > 40 {
		return string(b[:40]) + "..."
	}
	return string(b)
}

// str is b as a string, for as long as b does not change.
func str(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// integer gives the bits of n in c's type. Fractions and exponents are fine where
// they leave an integer: 1.0, 5e3.
func integer(c *column, n number) (uint64, bool) {
	if !n.whole {
		if !n.exact {
			return 0, false
		}
		for ; n.exp < 0 && n.mant != 0; n.exp++ {
			if n.mant%10 != 0 {
				return 0, false
			}
			n.mant /= 10
		}
		for ; n.exp > 0 && n.mant != 0; n.exp-- {
			if n.mant > math.MaxUint64/10 {
				return 0, false
			}
			n.mant *= 10
		}
	} else if !n.exact {
		// 20 digits may still fit uint64.
		v, err := strconv.ParseUint(str(n.text), 10, 64)
		if err != nil {
			return 0, false
		}
		n.mant = v
	}
	if n.neg {
		return -n.mant, n.mant <= uint64(-c.min) // 0 where unsigned
	}
	return n.mant, n.mant <= c.max
}

var pow10 = [...]float64{1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}

// float64 gives the nearest double.
func (n number) float64() (float64, bool) {
	// Exact operands and one rounding give the nearest (Clinger).
	if n.exact && n.mant < 1<<53 && -22 <= n.exp && n.exp <= 22 {
		v := float64(n.mant)
		if n.exp < 0 {
			v /= pow10[-n.exp]
		} else {
			v *= pow10[n.exp]
		}
		if n.neg {
			v = -v
		}
		return v, true
	}
	v, err := strconv.ParseFloat(str(n.text), 64)
	return v, err == nil
}

// word2 appends what numbers take as a string: where their type is given what CSV takes, else of floats and
// decimals what is no number in JSON.
func (p *parser) word2(c *column, s []byte) {
	if c.from == given {
		s = textvalue.Trim(s)
	}
	if c.kind == kDecimal {
		p.decimal(c, s)
		return
	}
	if c.from == given {
		p.numeral(c, s)
		return
	}
	var v float64
	switch string(s) {
	case "NaN":
		v = math.NaN()
	case "Infinity", "Inf":
		v = math.Inf(1)
	case "-Infinity", "-Inf":
		v = math.Inf(-1)
	default:
		p.reject(c, `a string where a number is needed; only "NaN", "Infinity" and "-Infinity" are numbers in quotes`)
		c.null()
		return
	}
	if c.kind == kFloat32 {
		put(c, uint64(math.Float32bits(float32(v))))
	} else {
		put(c, math.Float64bits(v))
	}
}

// numeral appends a text that is a number.
func (p *parser) numeral(c *column, s []byte) {
	var bits uint64
	ok := false
	switch c.kind {
	case kInt:
		var v int64
		v, ok = textvalue.GivenInt(s)
		bits, ok = uint64(v), ok && v >= c.min && (v < 0 || uint64(v) <= c.max)
	case kUint:
		bits, ok = textvalue.GivenUint(s)
		ok = ok && bits <= c.max
	case kFloat32:
		var v float64
		v, ok = textvalue.Float(s, 32)
		bits = uint64(math.Float32bits(float32(v)))
	default:
		var v float64
		v, ok = textvalue.Float(s, 64)
		bits = math.Float64bits(v)
	}
	if !ok {
		p.reject(c, "%q is no %s%s", clip(s), typename.Name(c.typ), said)
		c.null()
		return
	}
	put(c, bits)
}

// decimal appends a decimal that is written exactly; digits beyond the scale
// must be zeros.
func (p *parser) decimal(c *column, s []byte) {
	t := c.typ.(arrow.DecimalType)
	v, err := scaled(s, int(t.GetScale()), int(t.GetPrecision()))
	if err == nil {
		d := c.fixed()
		if c.width == 16 {
			x := decimal128.FromBigInt(v)
			binary.LittleEndian.PutUint64(d, x.LowBits())
			binary.LittleEndian.PutUint64(d[8:], uint64(x.HighBits()))
		} else {
			for i, w := range decimal256.FromBigInt(v).Array() {
				binary.LittleEndian.PutUint64(d[8*i:], w)
			}
		}
	}
	if err != nil {
		p.reject(c, "%q does not fit %s: %w", clip(s), typename.Name(c.typ), err)
		c.null()
		return
	}
	c.added()
}

// scaled reads s * 10^scale as an integer of at most precision digits.
func scaled(s []byte, scale, precision int) (*big.Int, error) {
	t := text{b: s}
	n, err := t.num()
	if err != nil || n.odd || t.i != len(s) {
		return nil, errors.New("not a number")
	}
	digits := make([]byte, 1, len(s)+1)
	digits[0] = '0'
	for _, c := range n.text {
		if c|0x20 == 'e' {
			break
		}
		if c-'0' < 10 && (len(digits) > 1 || c != '0') {
			digits = append(digits, c)
		}
	}
	// n.exp counts the exponent and the digits behind the point.
	exp := n.exp + scale
	for ; exp < 0 && len(digits) > 1; exp++ {
		if digits[len(digits)-1] != '0' {
			return nil, fmt.Errorf("more than %d digits behind the point", scale)
		}
		digits = digits[:len(digits)-1]
	}
	if len(digits) > 1 && len(digits)-1+exp > precision {
		return nil, fmt.Errorf("more than %d digits", precision)
	}
	for ; exp > 0 && len(digits) > 1; exp-- {
		digits = append(digits, '0')
	}
	v, _ := new(big.Int).SetString(str(digits), 10)
	if n.neg {
		v.Neg(v)
	}
	return v, nil
}

// advice says how to read what does not fit a type that was found from a sample.
func (c *column) advice() string {
	if c.from == given {
		return said
	}
	return "; set types for the column, e.g. string"
}

// said is what follows an error of a value in a column whose type is given.
const said = ", which is the column's type as types says"

// both says how to read what is of another kind than the column.
func (c *column) both() string {
	if c.from == given {
		return said
	}
	return "; set types for the column if both occur"
}

// coded appends what is written as text: bytes, dates and times.
func (p *parser) coded(c *column, s []byte) {
	var v int64
	var err error
	if c.from == given && c.kind >= kDate {
		s = textvalue.Trim(s)
	}
	switch c.kind {
	case kBinary:
		if !p.base64 {
			p.variable(c, s)
			return
		}
		n, at := base64.StdEncoding.DecodedLen(len(s)), c.vals.n
		if c.width == 4 && at+n > math.MaxInt32 {
			p.reject(c, "more than 2 GiB of bytes in a batch; set the type large_binary")
			c.null()
			return
		}
		if c.s.full(int64(n)) {
			c.null()
			return
		}
		n, err = base64.StdEncoding.Decode(c.vals.extend(n, c.hint[1], c.s.alloc), s)
		if c.vals.n = at; err == nil {
			c.vals.n += n
			c.s.bytes += int64(n)
			c.end(c.vals.n)
			c.added()
			return
		}
	case kFixed:
		if !p.base64 {
			if len(s) != c.width {
				err = fmt.Errorf("it has %d bytes", len(s))
				break
			}
			copy(c.fixed(), s)
			c.added()
			return
		}
		n := base64.StdEncoding.DecodedLen(len(s))
		if n > 2*c.width+64 { // with line breaks, perhaps
			err = fmt.Errorf("it has more than %d bytes", c.width)
			break
		}
		if cap(p.b64) < n {
			p.b64 = make([]byte, n+n/4)
		}
		if n, err = base64.StdEncoding.Decode(p.b64[:cap(p.b64)], s); err != nil {
			break
		}
		if n != c.width {
			err = fmt.Errorf("it has %d bytes, not %d", n, c.width)
			break
		}
		copy(c.fixed(), p.b64[:n])
		c.added()
		return
	case kDate:
		if v, err = textvalue.Date(s); err == nil && c.width == 8 {
			v *= 86_400_000
		}
	case kTime:
		v, err = textvalue.Clock(s, c.unit)
	case kTimestamp:
		v, err = c.stamps.Read(s)
	}
	if err != nil {
		p.reject(c, "%q is no %s: %w%s", clip(s), typename.Name(c.typ), err, c.advice())
		c.null()
		return
	}
	put(c, uint64(v))
}
