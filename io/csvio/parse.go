package csvio

import (
	"bytes"
	"math"
	"math/bits"
	"strconv"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
)

// text is b as a string for the length of a call.
func text(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }

// bytesOf is s as bytes that must not be changed.
func bytesOf(s string) []byte { return unsafe.Slice(unsafe.StringData(s), len(s)) }

// parseInt reads an optional sign and digits.
func parseInt(b []byte) (int64, bool) {
	neg := false
	if len(b) > 0 && (b[0] == '-' || b[0] == '+') {
		neg = b[0] == '-'
		b = b[1:]
	}
	v, ok := parseUint(b)
	if neg {
		return -int64(v), ok && v <= 1<<63
	}
	return int64(v), ok && v < 1<<63
}

// maxNumber is the length of a text from which on it is no number: strconv would copy it into its error.
const maxNumber = 4096

func parseUint(b []byte) (v uint64, ok bool) {
	if len(b) >= maxNumber {
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

var pow10 = [...]float64{1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22}

// parseFloat reads a decimal number, NaN or an infinity, rounded as strconv does;
// overflow is no number. Short numbers are exact by one division.
func parseFloat(b []byte, width int) (float64, bool) {
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
	if i < len(b) && (b[i]|0x20 == 'x' || bytes.IndexByte(b, '_') >= 0) { // only Go's literals
		return 0, false
	}
	f, err := strconv.ParseFloat(text(b), width)
	return f, err == nil
}

func parseBool(b []byte) (v, ok bool) {
	switch len(b) {
	case 4:
		return true, string(b) == "true" || string(b) == "True" || string(b) == "TRUE"
	case 5:
		return false, string(b) == "false" || string(b) == "False" || string(b) == "FALSE"
	}
	return false, false
}

// number reads exactly n digits.
func number(b []byte, n int) (v int, ok bool) {
	if len(b) < n {
		return 0, false
	}
	for _, c := range b[:n] {
		c -= '0'
		if c > 9 {
			return 0, false
		}
		v = v*10 + int(c)
	}
	return v, true
}

// parseDate reads 2006-01-02 as days since 1970.
func parseDate(b []byte) (int64, bool) {
	if len(b) != 10 || b[4] != '-' || b[7] != '-' {
		return 0, false
	}
	y, ok1 := number(b, 4)
	m, ok2 := number(b[5:], 2)
	d, ok3 := number(b[8:], 2)
	if !ok1 || !ok2 || !ok3 || m < 1 || m > 12 || d < 1 || d > monthDays(y, m) {
		return 0, false
	}
	if m <= 2 { // the year begins in March
		y--
		m += 12
	}
	era := y / 400
	if y < 0 {
		era = -1
	}
	yoe := y - era*400
	doe := yoe*365 + yoe/4 - yoe/100 + (153*(m-3)+2)/5 + d - 1
	return int64(era*146097 + doe - 719468), true
}

func monthDays(y, m int) int {
	switch {
	case m == 2 && y%4 == 0 && (y%100 != 0 || y%400 == 0):
		return 29
	case m == 2:
		return 28
	case m == 4 || m == 6 || m == 9 || m == 11:
		return 30
	}
	return 31
}

// instant is a parsed timestamp.
type instant struct {
	secs, nanos int64
	zoned       bool
}

// parseTime reads a date, and after T or a space hh:mm[:ss[.fraction]] and perhaps Z,
// +hh, +hhmm or +hh:mm.
func parseTime(b []byte) (t instant, ok bool) {
	if len(b) < 10 {
		return t, false
	}
	days, ok := parseDate(b[:10])
	if !ok || len(b) == 10 {
		return instant{secs: days * 86400}, ok
	}
	if b[10] != 'T' && b[10] != ' ' && b[10] != 't' {
		return t, false
	}
	t, b, ok = parseClock(b[11:])
	if !ok {
		return t, false
	}
	t.secs += days * 86400
	if len(b) == 0 {
		return t, true
	}
	t.zoned = true
	if len(b) == 1 {
		return t, b[0] == 'Z' || b[0] == 'z'
	}
	sign := int64(0)
	switch b[0] {
	case '+':
		sign = 1
	case '-':
		sign = -1
	}
	zh, ok1 := number(b[1:], 2)
	zm, ok2 := 0, true
	switch {
	case len(b) == 5:
		zm, ok2 = number(b[3:], 2)
	case len(b) == 6 && b[3] == ':':
		zm, ok2 = number(b[4:], 2)
	case len(b) != 3:
		return t, false
	}
	t.secs -= sign * int64(zh*3600+zm*60)
	return t, sign != 0 && ok1 && ok2 && zh < 24 && zm < 60
}

// parseClock reads hh:mm[:ss[.fraction]] at the start of b as an instant of the first day, and returns what follows.
func parseClock(b []byte) (t instant, rest []byte, ok bool) {
	if len(b) < 5 || b[2] != ':' {
		return t, nil, false
	}
	h, ok1 := number(b, 2)
	m, ok2 := number(b[3:], 2)
	if !ok1 || !ok2 || h > 23 || m > 59 {
		return t, nil, false
	}
	t.secs = int64(h*3600 + m*60)
	if b = b[5:]; len(b) == 0 || b[0] != ':' {
		return t, b, true
	}
	s, ok := number(b[1:], 2)
	if !ok || s > 59 {
		return t, nil, false
	}
	t.secs += int64(s)
	if b = b[3:]; len(b) < 2 || b[0] != '.' && b[0] != ',' {
		return t, b, true
	}
	unit, i := int64(1e8), 1
	for ; i < len(b) && b[i] >= '0' && b[i] <= '9'; i++ {
		if unit == 0 && b[i] != '0' {
			return t, nil, false // finer than nanoseconds
		}
		t.nanos += unit * int64(b[i]-'0')
		unit /= 10
	}
	return t, b[i:], i > 1
}

// parseTimeOfDay reads hh:mm[:ss[.fraction]] in units since midnight; not ok if it is finer than the unit.
func parseTimeOfDay(b []byte, u arrow.TimeUnit) (int64, bool) {
	t, rest, ok := parseClock(b)
	if !ok || len(rest) > 0 {
		return 0, false
	}
	return t.in(u)
}

// in gives t in units since 1970; not ok if it is finer than the unit, or beyond int64.
func (t instant) in(u arrow.TimeUnit) (int64, bool) {
	per := int64(1e9) / int64(u.Multiplier()) // units in a second
	sub := int64(1e9) / per
	if t.nanos%sub != 0 {
		return 0, false
	}
	hi, lo := bits.Mul64(uint64(max(t.secs, -t.secs)), uint64(per))
	if hi != 0 || lo > math.MaxInt64-1e9 {
		return 0, false
	}
	return t.secs*per + t.nanos/sub, true
}

func (t instant) fits(u arrow.TimeUnit) bool {
	t.nanos = 0
	_, ok := t.in(u)
	return ok
}
