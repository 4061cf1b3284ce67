package textvalue

import (
	"errors"
	"fmt"
	"strings"
)

// Format is how numbers and times are written where that is not the usual way; nil is the usual way.
type Format struct {
	point, group byte // group 0: none
	date, stamp  *layout
}

// NewFormat takes the byte before a fraction, that between groups of three digits, and layouts of
// dates and timestamps in the codes of strptime. "" is the usual.
func NewFormat(decimal, thousands, date, stamp string) (*Format, error) {
	f := &Format{point: '.'}
	if decimal != "" {
		f.point = decimal[0]
	}
	if thousands != "" {
		f.group = thousands[0]
	}
	var errs [2]error
	if date != "" {
		if f.date, errs[0] = newLayout("date_format", date); errs[0] == nil && f.date.clock {
			errs[0] = fmt.Errorf("date_format: %q has a time of day: use timestamp_format", date)
		}
	}
	if stamp != "" {
		f.stamp, errs[1] = newLayout("timestamp_format", stamp)
	}
	if err := errors.Join(errs[:]...); err != nil {
		return nil, err
	}
	if *f == (Format{point: '.'}) {
		return nil, nil
	}
	return f, nil
}

// Plain gives a number as digits with a point, in buf; what is none in this format is no number then.
func (f *Format) Plain(b []byte, buf *[]byte) []byte {
	if f == nil || f.point == '.' && f.group == 0 {
		return b
	}
	out := (*buf)[:0]
	i := 0
	if len(b) > 0 && (b[0] == '-' || b[0] == '+') {
		out, i = append(out, b[0]), 1
	}
	run, groups := 0, 0
	for ; i < len(b); i++ {
		if c := b[i]; c-'0' <= 9 {
			out = append(out, c)
			run++
		} else if c == f.group && c != 0 {
			if run == 0 || run > 3 || groups > 0 && run != 3 {
				return noNumber
			}
			run = 0
			groups++
		} else {
			break
		}
	}
	if groups > 0 && run != 3 {
		return noNumber
	}
	for ; i < len(b); i++ {
		switch b[i] {
		case f.point:
			out = append(out, '.')
		case '.', f.group: // f.group may be 0, which no number has
			return noNumber
		default:
			out = append(out, b[i])
		}
	}
	*buf = out
	return out
}

var noNumber = []byte("?")

// Date reads a date as days since 1970.
func (f *Format) Date(b []byte) (int64, error) {
	if f == nil || f.date == nil {
		return Date(b)
	}
	t, ok := f.date.parse(b)
	if !ok {
		return 0, f.date.err
	}
	return t.secs / day, nil
}

func (f *Format) layouts() bool { return f != nil && (f.date != nil || f.stamp != nil) }

// times says what a text may be as a date or timestamp.
func (f *Format) times(b []byte) (k kinds, t instant) {
	if _, err := f.Date(b); err == nil {
		k = isDate
	}
	t, err := f.parseStamp(b)
	if err == nil {
		k |= isStamp
	}
	return k, t
}

// layout is a compiled format: code 0 is a byte of text.
type layout struct {
	parts []part
	clock bool
	zoned bool
	err   error
}

type part struct{ code, text byte }

var composite = strings.NewReplacer("%%", "%%", "%F", "%Y-%m-%d", "%T", "%H:%M:%S", "%R", "%H:%M", "%D", "%m/%d/%y")

const codes = "Y m d y b B H I M S f p z F T R D %"

func newLayout(option, s string) (*layout, error) {
	bad := func(format string, args ...any) (*layout, error) {
		return nil, fmt.Errorf("%s: %q %s", option, s, fmt.Sprintf(format, args...))
	}
	l := &layout{err: fmt.Errorf("write it like %s says: %s", option, s)}
	seen := map[byte]bool{}
	text := composite.Replace(s)
	for i := 0; i < len(text); i++ {
		c := text[i]
		if c != '%' {
			l.parts = append(l.parts, part{text: c})
			continue
		}
		if i++; i == len(text) || strings.IndexByte("YmdybBHIMSfpz%", text[i]) < 0 {
			return bad("has a code that is not known; have %%%s", strings.ReplaceAll(codes, " ", " %"))
		}
		if c = text[i]; c == '%' {
			l.parts = append(l.parts, part{text: c})
			continue
		}
		what := map[byte]byte{'y': 'Y', 'b': 'm', 'B': 'm', 'I': 'H'}[c]
		if what == 0 {
			what = c
		}
		if seen[what] {
			return bad("gives the same twice: %%%c", c)
		}
		seen[what] = true
		seen[c] = true
		l.clock = l.clock || strings.IndexByte("HIMSfpz", c) >= 0
		l.zoned = l.zoned || c == 'z'
		l.parts = append(l.parts, part{code: c})
	}
	switch {
	case !seen['Y'] || !seen['m'] || !seen['d']:
		return bad("needs a year (%%Y or %%y), a month (%%m, %%b or %%B) and a day (%%d)")
	case seen['I'] != seen['p']:
		return bad("needs both %%I and %%p, or neither")
	case seen['M'] && !seen['H'] || seen['S'] && !seen['M'] || seen['f'] && !seen['S'] || seen['z'] && !seen['H']:
		return bad("has a part of a time without the larger ones")
	}
	return l, nil
}

// parse reads a text that is written so from its begin to its end.
func (l *layout) parse(b []byte) (t instant, ok bool) {
	y, m, d, hour, minute, sec, half := 0, 0, 0, 0, 0, 0, -1
	var off int64
	for _, p := range l.parts {
		n, ok := 1, len(b) > 0
		switch p.code {
		case 0:
			ok = ok && b[0] == p.text
		case 'Y':
			y, ok = number(b, 4)
			n = 4
		case 'y':
			y, ok = number(b, 2)
			if n = 2; y < 69 {
				y += 100
			}
			y += 1900
		case 'm':
			m, n, ok = short(b)
		case 'd':
			d, n, ok = short(b)
		case 'b', 'B':
			m, n, ok = month(b, p.code == 'B')
		case 'H':
			hour, n, ok = short(b)
		case 'I':
			hour, n, ok = short(b)
			ok = ok && hour >= 1 && hour <= 12
		case 'M':
			minute, n, ok = short(b)
		case 'S':
			sec, n, ok = short(b)
		case 'f':
			t.nanos, n, ok = parseFraction(b)
		case 'p':
			if n, ok = 2, len(b) >= 2 && b[1]|0x20 == 'm' && (b[0]|0x20 == 'a' || b[0]|0x20 == 'p'); ok && b[0]|0x20 == 'a' {
				half = 0
			} else {
				half = 12
			}
		case 'z':
			if n = len(b); n > 0 && (b[0] == 'Z' || b[0] == 'z') {
				n = 1
			} else if n >= 6 && b[3] == ':' {
				n = 6
			} else if n = min(n, 5); n > 3 {
				if _, whole := number(b[3:], 2); !whole {
					n = 3
				}
			}
			if ok = n > 0; ok {
				off, ok = parseOffset(b[:n])
			}
		}
		if !ok {
			return t, false
		}
		b = b[n:]
	}
	if half >= 0 {
		hour = hour%12 + half
	}
	if len(b) > 0 || m < 1 || m > 12 || d < 1 || d > monthDays(y, m) || hour > 23 || minute > 59 || sec > 59 {
		return t, false
	}
	t.secs = daysOf(y, m, d)*day + int64(hour*3600+minute*60+sec) - off
	t.zoned = l.zoned
	return t, true
}

// short reads one or two digits.
func short(b []byte) (v, n int, ok bool) {
	for n < len(b) && n < 2 && b[n]-'0' <= 9 {
		v = v*10 + int(b[n]-'0')
		n++
	}
	return v, n, n > 0
}

var months = [...]string{"january", "february", "march", "april", "may", "june", "july", "august", "september", "october", "november", "december"}

// month reads an English name, or its first three letters.
func month(b []byte, full bool) (m, n int, ok bool) {
	for i, name := range months {
		if !full {
			name = name[:3]
		}
		if len(b) >= len(name) && strings.EqualFold(text(b[:len(name)]), name) {
			return i + 1, len(name), true
		}
	}
	return 0, 0, false
}

// parseStamp reads a timestamp.
func (f *Format) parseStamp(b []byte) (instant, error) {
	if f == nil || f.stamp == nil {
		if t, ok := parseStamp(b); ok {
			return t, nil
		}
		return instant{}, ErrStamp
	}
	if t, ok := f.stamp.parse(b); ok {
		return t, nil
	}
	return instant{}, f.stamp.err
}
