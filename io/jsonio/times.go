package jsonio

import (
	"errors"
	"math"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
)

var (
	errDate  = errors.New("write YYYY-MM-DD")
	errClock = errors.New("write hh:mm:ss, or with a fraction of a second")
	errStamp = errors.New("write YYYY-MM-DDThh:mm:ssZ, or with a fraction or another zone")
	errFine  = errors.New("it is more precise than the unit")
	errRange = errors.New("it is out of range")
)

// digits reads n decimal digits.
func digits(s []byte, n int) (v int, ok bool) {
	if len(s) < n {
		return 0, false
	}
	for _, c := range s[:n] {
		if c-'0' > 9 {
			return 0, false
		}
		v = v*10 + int(c-'0')
	}
	return v, true
}

// day reads YYYY-MM-DD at the start of s, as days since 1970-01-01.
func day(s []byte) (int64, bool) {
	y, ok1 := digits(s, 4)
	if !ok1 || len(s) < 10 || s[4] != '-' || s[7] != '-' {
		return 0, false
	}
	m, ok2 := digits(s[5:], 2)
	d, ok3 := digits(s[8:], 2)
	if !ok2 || !ok3 || m < 1 || m > 12 || d < 1 || d > 31 {
		return 0, false
	}
	t := time.Date(y, time.Month(m), d, 0, 0, 0, 0, time.UTC)
	if t.Day() != d { // February 30
		return 0, false
	}
	return t.Unix() / 86400, true
}

func date(s []byte) (int64, error) {
	d, ok := day(s)
	if !ok || len(s) != 10 {
		return 0, errDate
	}
	return d, nil
}

// seconds reads hh:mm[:ss[.fraction]] at the start of s: seconds, nanoseconds and
// what follows.
func seconds(s []byte) (sec, nanos int64, rest []byte, ok bool) {
	h, ok1 := digits(s, 2)
	if !ok1 || len(s) < 5 || s[2] != ':' || h > 23 {
		return 0, 0, nil, false
	}
	m, ok2 := digits(s[3:], 2)
	if !ok2 || m > 59 {
		return 0, 0, nil, false
	}
	sec, rest = int64(h*3600+m*60), s[5:]
	if len(rest) == 0 || rest[0] != ':' {
		return sec, 0, rest, true
	}
	x, ok3 := digits(rest[1:], 2)
	if !ok3 || x > 59 {
		return 0, 0, nil, false
	}
	sec, rest = sec+int64(x), rest[3:]
	if len(rest) == 0 || rest[0] != '.' {
		return sec, 0, rest, true
	}
	rest = rest[1:]
	n := 0
	for scale := int64(100_000_000); n < len(rest) && rest[n]-'0' <= 9; n++ {
		if scale == 0 && rest[n] != '0' {
			return 0, 0, nil, false
		}
		nanos += int64(rest[n]-'0') * scale
		scale /= 10
	}
	return sec, nanos, rest[n:], n > 0
}

// in converts to a count of units.
func in(sec, nanos int64, u arrow.TimeUnit) (int64, error) {
	per := int64(time.Second / u.Multiplier())
	step := int64(u.Multiplier())
	if nanos%step != 0 {
		return 0, errFine
	}
	if sec > math.MaxInt64/per || sec < math.MinInt64/per {
		return 0, errRange
	}
	v := sec * per
	if w := v + nanos/step; w >= v {
		return w, nil
	}
	return 0, errRange
}

func clock(s []byte, u arrow.TimeUnit) (int64, error) {
	sec, nanos, rest, ok := seconds(s)
	if !ok || len(rest) > 0 {
		return 0, errClock
	}
	return in(sec, nanos, u)
}

// timestamp reads RFC 3339, and forms without seconds or zone (then UTC), as the
// instant in UTC.
func timestamp(s []byte, u arrow.TimeUnit) (int64, error) {
	d, ok := day(s)
	if !ok {
		return 0, errStamp
	}
	sec := d * 86400
	if len(s) == 10 {
		return in(sec, 0, u)
	}
	if c := s[10]; c != 'T' && c != 't' && c != ' ' {
		return 0, errStamp
	}
	x, nanos, rest, ok := seconds(s[11:])
	if !ok {
		return 0, errStamp
	}
	sec += x
	switch {
	case len(rest) == 0 || len(rest) == 1 && rest[0]|0x20 == 'z':
	case rest[0] == '+' || rest[0] == '-':
		h, ok1 := digits(rest[1:], 2)
		m, ok2 := 0, true
		switch {
		case len(rest) == 3:
		case len(rest) == 5:
			m, ok2 = digits(rest[3:], 2)
		case len(rest) == 6 && rest[3] == ':':
			m, ok2 = digits(rest[4:], 2)
		default:
			ok2 = false
		}
		if !ok1 || !ok2 || h > 23 || m > 59 {
			return 0, errStamp
		}
		if rest[0] == '-' {
			h, m = -h, -m
		}
		sec -= int64(h*3600 + m*60)
	default:
		return 0, errStamp
	}
	return in(sec, nanos, u)
}
