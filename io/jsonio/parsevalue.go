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
	"github.com/penstock-data/penstock/internal/textvalue"
	"github.com/penstock-data/penstock/internal/typename"
)

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

// word2 appends what numbers take as a string: where their type is given what CSV takes, else of
// floats and decimals what is no number in JSON.
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
