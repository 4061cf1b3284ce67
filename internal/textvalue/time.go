package textvalue

import (
	"errors"
	"math"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
)

// Why a text is no date, time of day or timestamp.
var (
	ErrDate  = errors.New("write YYYY-MM-DD")
	ErrClock = errors.New("write hh:mm:ss, or with a fraction of a second")
	ErrStamp = errors.New("write YYYY-MM-DDThh:mm:ssZ, or with a fraction or another zone")
	ErrFine  = errors.New("it is more precise than the unit")
	ErrRange = errors.New("it is out of range")
)

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

// Date reads 2006-01-02 as days since 1970.
func Date(b []byte) (int64, error) {
	if d, ok := date(b); ok {
		return d, nil
	}
	return 0, ErrDate
}

func date(b []byte) (int64, bool) {
	if len(b) != 10 || b[4] != '-' || b[7] != '-' {
		return 0, false
	}
	y, ok1 := number(b, 4)
	m, ok2 := number(b[5:], 2)
	d, ok3 := number(b[8:], 2)
	if !ok1 || !ok2 || !ok3 || m < 1 || m > 12 || d < 1 || d > monthDays(y, m) {
		return 0, false
	}
	return daysOf(y, m, d), true
}

// daysOf counts from 1970 in the proleptic Gregorian calendar.
func daysOf(y, m, d int) int64 {
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
	return int64(era*146097 + doe - 719468)
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

// instant is a parsed timestamp: seconds since 1970 on a clock in UTC; if it is zoned its offset is
// taken off, else whose clock that is is not known.
type instant struct {
	secs, nanos int64
	zoned       bool
}

// parseStamp reads a date, and after T or a space hh:mm[:ss[.fraction]] and perhaps Z, +hh, +hhmm
// or +hh:mm.
func parseStamp(b []byte) (t instant, ok bool) {
	if len(b) < 10 {
		return t, false
	}
	days, ok := date(b[:10])
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
	off, ok := parseOffset(b)
	t.zoned = true
	t.secs -= off
	return t, ok
}

// parseOffset reads Z, +hh, +hhmm or +hh:mm as seconds.
func parseOffset(b []byte) (int64, bool) {
	if len(b) == 1 {
		return 0, b[0] == 'Z' || b[0] == 'z'
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
		return 0, false
	}
	return sign * int64(zh*3600+zm*60), sign != 0 && ok1 && ok2 && zh < 24 && zm < 60
}

// parseClock reads hh:mm[:ss[.fraction]] at the start of b as an instant of the first day, and
// returns what follows.
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
	n, ok := 0, false
	t.nanos, n, ok = parseFraction(b[1:])
	return t, b[1+n:], ok
}

// parseFraction reads the digits of a fraction of a second at the start of b, and says how many
// those are. What is finer than nanoseconds is not ok.
func parseFraction(b []byte) (nanos int64, n int, ok bool) {
	for unit := int64(1e8); n < len(b) && b[n]-'0' <= 9; n++ {
		if unit == 0 && b[n] != '0' {
			return 0, 0, false
		}
		nanos += unit * int64(b[n]-'0')
		unit /= 10
	}
	return nanos, n, n > 0
}

// Clock reads hh:mm[:ss[.fraction]] in units since midnight.
func Clock(b []byte, u arrow.TimeUnit) (int64, error) {
	t, rest, ok := parseClock(b)
	if !ok || len(rest) > 0 {
		return 0, ErrClock
	}
	return t.in(u)
}

// in gives t in units since 1970.
func (t instant) in(u arrow.TimeUnit) (int64, error) {
	per := int64(time.Second / u.Multiplier())
	sub := int64(u.Multiplier())
	if t.nanos%sub != 0 {
		return 0, ErrFine
	}
	secs, part := t.secs, t.nanos/sub
	if secs < 0 { // both have one sign then
		secs, part = secs+1, part-per
	}
	if secs > math.MaxInt64/per || secs < math.MinInt64/per {
		return 0, ErrRange
	}
	v := secs * per
	if w := v + part; part < 0 == (w < v) {
		return w, nil
	}
	return 0, ErrRange
}
