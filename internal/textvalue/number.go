// Package textvalue reads values that are written as text: numbers, booleans, decimals, dates, times
// of day and timestamps. A Guess finds the type that texts have in common, with the same functions:
// what it has seen parses as what it says.
//
// Nothing here allocates per value. Texts come without the white space around them: see Trim.
package textvalue

import (
	"bytes"
	"errors"
	"math/big"
	"math/bits"
	"strconv"
	"strings"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow/decimal128"
)

// Trim cuts off the white space around a text, of Unicode's kinds too: a no-break or an ideographic
// space is no part of a number.
func Trim(b []byte) []byte {
	if n := len(b); n == 0 || b[0]-'!' < 0x7F-'!' && b[n-1]-'!' < 0x7F-'!' {
		return b
	}
	return bytes.TrimSpace(b)
}

// text is b as a string for the length of a call.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// Int reads an optional sign and digits.
func Int(b []byte) (int64, bool) {
	neg := false
	if len(b) > 0 && (b[0] == '-' || b[0] == '+') {
		neg = b[0] == '-'
		b = b[1:]
	}
	v, ok := digits(b)
	if neg {
		return -int64(v), ok && v <= 1<<63
	}
	return int64(v), ok && v < 1<<63
}

// Uint reads digits, behind a + perhaps.
func Uint(b []byte) (uint64, bool) {
	if len(b) > 0 && b[0] == '+' {
		b = b[1:]
	}
	return digits(b)
}

// GivenInt reads what Int does, and with a fraction of zeros: of a column that is said to hold
// integers.
func GivenInt(b []byte) (int64, bool) {
	if v, ok := Int(b); ok {
		return v, true
	}
	return Int(noFraction(b))
}

// GivenUint reads what Uint does, and with a fraction of zeros.
func GivenUint(b []byte) (uint64, bool) {
	if v, ok := Uint(b); ok {
		return v, true
	}
	return Uint(noFraction(b))
}

// noFraction cuts off a fraction of zeros.
func noFraction(b []byte) []byte {
	i := bytes.IndexByte(b, '.')
	if i < 0 || i == len(b)-1 || len(bytes.Trim(b[i+1:], "0")) > 0 {
		return nil
	}
	return b[:i]
}

// maxNumber is the length of a text from which on it is no number: strconv would copy it into its error.
const maxNumber = 4096

func digits(b []byte) (v uint64, ok bool) {
	if len(b) >= maxNumber || len(b) > 19 && !whole(b) {
		return 0, false
	}
	if len(b) > 19 {
		v, err := strconv.ParseUint(text(b), 10, 64)
		return v, err == nil
	}
	for _, c := range b {
		c -= '0'
		if c > 9 {
			return 0, false
		}
		v = v*10 + uint64(c)
	}
	return v, len(b) > 0
}

// Padded reports digits with a leading zero or a leading +: a phone number, a postal code, or
// another name that looks like a number.
func Padded(b []byte) bool {
	if len(b) < 2 || b[0] > '0' {
		return false
	}
	plus := b[0] == '+'
	if plus || b[0] == '-' {
		b = b[1:]
	}
	return (plus || b[0] == '0' && len(b) > 1) && whole(b)
}

// whole reports digits and nothing else.
func whole(b []byte) bool {
	for _, c := range b {
		if c-'0' > 9 {
			return false
		}
	}
	return len(b) > 0
}

var pow10 = [...]float64{1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}

// Float reads a decimal number, NaN or an infinity, rounded as strconv does; overflow is no number.
// Short numbers are exact by one division.
func Float(b []byte, width int) (float64, bool) {
	i, neg := 0, false
	if len(b) >= maxNumber {
		return 0, false
	}
	if len(b) > 0 && (b[0] == '-' || b[0] == '+') {
		neg = b[0] == '-'
		i = 1
	}
	var mant uint64
	digits, point := 0, -1
	for ; i < len(b); i++ {
		c := b[i] - '0'
		if c <= 9 {
			mant = mant*10 + uint64(c)
			digits++
		} else if b[i] == '.' && point < 0 {
			point = digits
		} else {
			break
		}
	}
	if i == len(b) && digits > 0 && digits <= 19 {
		exp := 0
		if point >= 0 {
			exp = digits - point
		}
		if width == 64 && mant < 1<<53 && exp <= 22 || mant < 1<<24 && exp <= 10 {
			f := float64(mant)
			if exp > 0 {
				if width == 32 {
					f = float64(float32(f) / float32(pow10[exp]))
				} else {
					f /= pow10[exp]
				}
			}
			if neg {
				f = -f
			}
			return f, true
		}
	}
	if i < len(b) { // an exponent, or a word: what else strconv takes are Go's literals
		if c := b[i] | 0x20; digits > 0 && c != 'e' || digits == 0 && c != 'n' && c != 'i' || bytes.IndexByte(b, '_') >= 0 {
			return 0, false
		}
	}
	f, err := strconv.ParseFloat(text(b), width)
	return f, err == nil
}

// Bool reads true or false, in one of three cases.
func Bool(b []byte) (v, ok bool) {
	switch len(b) {
	case 4:
		return true, string(b) == "true" || string(b) == "True" || string(b) == "TRUE"
	case 5:
		return false, string(b) == "false" || string(b) == "False" || string(b) == "FALSE"
	}
	return false, false
}

// GivenBool reads a text of a column that is said to hold booleans: true and false, t and f, yes
// and no, y and n, in any case, 1 and 0.
func GivenBool(b []byte) (v, ok bool) {
	if len(b) > len("false") {
		return false, false
	}
	switch s := text(b); {
	case s == "1", strings.EqualFold(s, "true"), strings.EqualFold(s, "t"), strings.EqualFold(s, "yes"), strings.EqualFold(s, "y"):
		return true, true
	case s == "0", strings.EqualFold(s, "false"), strings.EqualFold(s, "f"), strings.EqualFold(s, "no"), strings.EqualFold(s, "n"):
		return false, true
	}
	return false, false
}

// ErrRounded is of an integer in a column of doubles that nobody said to hold such.
var ErrRounded = errors.New("a double does not hold all of its digits")

// Rounded reports an integer, written without a point or exponent, that no double is.
func Rounded(b []byte) bool {
	if len(b) > 0 && (b[0] == '-' || b[0] == '+') {
		b = b[1:]
	}
	if len(b) < 16 || !whole(b) { // 2^53 has 16 digits
		return false
	}
	if v, ok := digits(b); ok {
		return bits.Len64(v)-bits.TrailingZeros64(v|1<<63) > 53
	}
	f, ok := Float(b, 64)
	n, _ := new(big.Int).SetString(text(b), 10)
	if !ok || n == nil {
		return false // it is no double at all
	}
	near, _ := big.NewFloat(f).Int(nil)
	return near.Cmp(n) != 0
}

// Decimal reads digits with a point that fit exactly.
func Decimal(b []byte, precision, scale int) (decimal128.Num, bool) {
	neg := false
	if len(b) > 0 && (b[0] == '-' || b[0] == '+') {
		neg = b[0] == '-'
		b = b[1:]
	}
	var hi, lo uint64
	digits, after, seen, some := 0, 0, false, false
	push := func(d uint64) {
		if digits > 0 || d > 0 {
			digits++
		}
		h, l := bits.Mul64(lo, 10)
		var carry uint64
		lo, carry = bits.Add64(l, d, 0)
		hi = hi*10 + h + carry
	}
	for _, c := range b {
		switch {
		case c == '.' && !seen:
			seen = true
		case c < '0' || c > '9':
			return decimal128.Num{}, false
		case seen && after == scale:
			if c != '0' {
				return decimal128.Num{}, false
			}
		default:
			some = true
			if seen {
				after++
			}
			if push(uint64(c - '0')); digits > precision {
				return decimal128.Num{}, false
			}
		}
	}
	for ; after < scale; after++ {
		if push(0); digits > precision {
			return decimal128.Num{}, false
		}
	}
	n := decimal128.New(int64(hi), lo)
	if neg {
		n = n.Negate()
	}
	return n, some
}
