package expr

import (
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/textvalue"
)

// daysOf is the number of days from 1970-01-01 to a date of the proleptic
// Gregorian calendar.
func daysOf(y int64, m, d int) int64 {
	if m <= 2 {
		y--
		m += 12
	}
	era := floorDiv(y, 400)
	yoe := y - era*400
	doy := int64((153*(m-3)+2)/5 + d - 1)
	return era*146097 + yoe*365 + yoe/4 - yoe/100 + doy - 719468
}

// civil is the inverse of daysOf.
func civil(days int64) (y int64, m, d int) {
	z := days + 719468
	era := floorDiv(z, 146097)
	doe := z - era*146097
	yoe := (doe - doe/1460 + doe/36524 - doe/146096) / 365
	doy := doe - (365*yoe + yoe/4 - yoe/100)
	mp := (5*doy + 2) / 153
	d = int(doy - (153*mp+2)/5 + 1)
	m = int(mp + 3)
	y = yoe + era*400
	if m > 12 {
		m -= 12
		y++
	}
	return y, m, d
}

func floorDiv(a, b int64) int64 {
	q := a / b
	if a%b < 0 {
		q--
	}
	return q
}

// instant is a parsed text: seconds since 1970 as on a clock in UTC, or shifted
// by the offset given in the text.
type instant struct {
	sec    int64
	nanos  int64
	zoned  bool // the text gave an offset
	noTime bool // a date only
}

// parseInstant reads YYYY-MM-DD, then optionally a T or blank and
// HH:MM[:SS[.fraction]], then optionally Z or +HH[:MM].
func parseInstant(s string) (in instant, ok bool) {
	s = strings.TrimSpace(s)
	if len(s) < 10 || s[4] != '-' || s[7] != '-' {
		return in, false
	}
	y, ok1 := digits(s[:4])
	m, ok2 := digits(s[5:7])
	d, ok3 := digits(s[8:10])
	if !ok1 || !ok2 || !ok3 || m < 1 || m > 12 || d < 1 || d > daysIn(y, m) {
		return in, false
	}
	in.sec = daysOf(int64(y), m, d) * 86400
	if s = s[10:]; s == "" {
		in.noTime = true
		return in, true
	}
	if s[0] != 'T' && s[0] != 't' && s[0] != ' ' {
		return in, false
	}
	sec, nanos, s, ok := parseClock(s[1:])
	if !ok {
		return in, false
	}
	in.sec += sec
	in.nanos = nanos
	switch {
	case s == "":
		return in, true
	case s == "Z" || s == "z":
		in.zoned = true
		return in, true
	case s[0] != '+' && s[0] != '-':
		return in, false
	}
	h, ok1 := digits(s[1:min(3, len(s))])
	mm := 0
	ok2 = true
	if rest := s[min(3, len(s)):]; rest != "" {
		mm, ok2 = digits(strings.TrimPrefix(rest, ":"))
		ok2 = ok2 && len(strings.TrimPrefix(rest, ":")) == 2
	}
	if !ok1 || !ok2 || len(s) < 3 || h > 23 || mm > 59 {
		return in, false
	}
	shift := int64(h*3600 + mm*60)
	if s[0] == '-' {
		shift = -shift
	}
	in.sec -= shift
	in.zoned = true
	return in, true
}

func digits(s string) (int, bool) {
	v := 0
	for i := range len(s) {
		if s[i] < '0' || s[i] > '9' {
			return 0, false
		}
		v = v*10 + int(s[i]-'0')
	}
	return v, s != "" && len(s) <= 9
}

func daysIn(y, m int) int {
	if m == 2 && (y%4 == 0 && y%100 != 0 || y%400 == 0) {
		return 29
	}
	return [...]int{31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31}[m-1]
}

// parseClock reads HH:MM[:SS[.fraction]] and returns what follows.
func parseClock(s string) (sec, nanos int64, rest string, ok bool) {
	if len(s) < 5 || s[2] != ':' {
		return 0, 0, "", false
	}
	h, ok1 := digits(s[:2])
	m, ok2 := digits(s[3:5])
	if !ok1 || !ok2 || h > 23 || m > 59 {
		return 0, 0, "", false
	}
	sec = int64(h*3600 + m*60)
	if s = s[5:]; len(s) < 3 || s[0] != ':' {
		return sec, 0, s, true
	}
	c, ok := digits(s[1:3])
	if !ok || c > 59 {
		return 0, 0, "", false
	}
	sec += int64(c)
	if s = s[3:]; s == "" || s[0] != '.' {
		return sec, 0, s, true
	}
	end := 1
	for end < len(s) && s[end] >= '0' && s[end] <= '9' {
		end++
	}
	if end == 1 || end > 10 {
		return 0, 0, "", false
	}
	f, _ := digits(s[1:end])
	nanos = int64(f)
	for range 10 - end {
		nanos *= 10
	}
	return sec, nanos, s[end:], true
}

// timeRat is a text's value in units of t as an exact number: what lies between
// two units is kept. Texts without an offset are in t's zone.
func timeRat(s string, t arrow.DataType) (*big.Rat, error) {
	form := ""
	switch t.ID() {
	case arrow.DATE32, arrow.DATE64, arrow.TIMESTAMP:
		in, ok := parseInstant(s)
		if form = "2024-01-31 or 2024-01-31T12:30:00"; !ok {
			break
		}
		if ts, isStamp := t.(*arrow.TimestampType); isStamp && !in.zoned {
			sec, err := localSeconds(in.sec, ts)
			if err != nil {
				return nil, err
			}
			in.sec = sec
		}
		r := big.NewRat(in.nanos, 1e9)
		r.Add(r, new(big.Rat).SetInt64(in.sec))
		if t.ID() == arrow.DATE32 {
			return r.Quo(r, big.NewRat(86400, 1)), nil
		}
		return r.Mul(r, big.NewRat(perSecond(unitOf(t)), 1)), nil
	case arrow.TIME32, arrow.TIME64:
		sec, nanos, rest, ok := parseClock(strings.TrimSpace(s))
		if form = "12:30:00"; ok && rest == "" {
			r := big.NewRat(nanos, 1e9)
			r.Add(r, new(big.Rat).SetInt64(sec))
			return r.Mul(r, big.NewRat(perSecond(unitOf(t)), 1)), nil
		}
	case arrow.DURATION:
		d, err := time.ParseDuration(strings.TrimSpace(s))
		if form = "1h30m"; err == nil {
			return new(big.Rat).Mul(big.NewRat(int64(d), 1e9), big.NewRat(perSecond(unitOf(t)), 1)), nil
		}
	}
	return nil, invalid("cannot read %s as %s: write it like %s", cut(s), TypeName(t), form)
}

// localSeconds makes seconds of a clock in t's zone those of UTC.
func localSeconds(sec int64, t *arrow.TimestampType) (int64, error) {
	if t.TimeZone == "" {
		return sec, nil
	}
	loc, err := t.GetZone()
	if err != nil {
		return 0, invalid("time zone %q: %v", t.TimeZone, err)
	}
	return textvalue.Local(sec, loc), nil
}

// parseTime reads a text as a value of a time type; it must be one exactly.
func parseTime(s string, t arrow.DataType) (int64, error) {
	r, err := timeRat(s, t)
	if err != nil {
		return 0, err
	}
	lo, hi := int64(math.MinInt64), int64(math.MaxInt64)
	if physOf(t) == pI32 {
		lo, hi = math.MinInt32, math.MaxInt32
	}
	if !r.IsInt() || !r.Num().IsInt64() || r.Num().Int64() < lo || r.Num().Int64() > hi {
		return 0, invalid("%s does not fit %s", cut(s), TypeName(t))
	}
	return r.Num().Int64(), nil
}

// readTime is parseTime for a column of texts: fractions finer than the unit are
// cut off.
func readTime(t arrow.DataType) func(s string) (int64, bool) {
	per := perSecond(unitOf(t))
	stamp, _ := t.(*arrow.TimestampType)
	return func(s string) (int64, bool) {
		var sec, nanos int64
		switch t.ID() {
		case arrow.TIME32, arrow.TIME64:
			c, f, rest, ok := parseClock(strings.TrimSpace(s))
			if !ok || rest != "" {
				return 0, false
			}
			sec, nanos = c, f
		case arrow.DURATION:
			d, err := time.ParseDuration(strings.TrimSpace(s))
			if err != nil {
				return 0, false
			}
			return int64(d) / (1e9 / per), true
		default:
			in, ok := parseInstant(s)
			if !ok {
				return 0, false
			}
			sec, nanos = in.sec, in.nanos
			if stamp != nil && !in.zoned {
				var err error
				if sec, err = localSeconds(sec, stamp); err != nil {
					return 0, false
				}
			}
			if t.ID() == arrow.DATE32 {
				return floorDiv(sec, 86400), true
			}
			if t.ID() == arrow.DATE64 {
				sec, nanos = floorDiv(sec, 86400)*86400, 0
			}
		}
		v, ok := mulExact(sec, per)
		if !ok {
			return 0, false
		}
		return v + nanos/(1e9/per), true
	}
}

func mulExact(a, b int64) (int64, bool) {
	hi, lo := bits.Mul64(uint64(a), uint64(b))
	hi -= uint64(a>>63&b) + uint64(b>>63&a)
	return int64(lo), hi == uint64(int64(lo)>>63)
}

// times gives values of a time vec as int64.
func times(v vec) func(i int) int64 {
	if v.lit != nil {
		c := v.lit.i
		return func(int) int64 { return c }
	}
	if physOf(v.typ) == pI32 {
		p := fixed[int32](v)
		return func(i int) int64 { return int64(p[i]) }
	}
	p := fixed[int64](v)
	return func(i int) int64 { return p[i] }
}

// castTime converts to and from dates, times of day, timestamps and durations.
// Integers count the units of the type.
func castTime(from, to arrow.DataType) (caster, bool) {
	switch {
	case isText(from):
		read := readTime(to)
		if physOf(to) == pI32 {
			return parsed(to, func(s string) (int32, bool) {
				v, ok := read(s)
				return int32(v), ok && int64(int32(v)) == v
			}), true
		}
		return parsed(to, read), true
	case isText(to):
		return formatted(to, func(v vec) func([]byte, int) []byte {
			at, write := times(v), timeWriter(from)
			return func(dst []byte, i int) []byte { return write(dst, at(i)) }
		}), false
	case isInt(from):
		raw := rawInt(to)
		return viaInt(from, raw, retyped(to)), !fits(from, raw)
	case isInt(to):
		raw := rawInt(from)
		conv := convTable[physOf(raw)][physOf(to)]
		return func(x *exec, v vec, try bool) vec {
			u := retyped(raw)(x, v, try)
			if arrow.TypeEqual(raw, to) {
				return u
			}
			defer u.release()
			return conv(x, u, to, try)
		}, !fits(raw, to)
	}
	f := timeStep(from, to)
	if f == nil {
		return nil, false
	}
	return func(x *exec, v vec, try bool) vec {
		at := times(v)
		bad, any := make([]uint64, words(v.n)), false
		valid := x.valid(v.n, v)
		ok := bitmap{}
		if valid != nil {
			ok.b = valid.Bytes()
		}
		step := func(i int) int64 {
			if !ok.bit(i) {
				return 0
			}
			c, good := f(at(i))
			if !good {
				bad[i>>6] |= 1 << (i & 63)
				any = true
			}
			return c
		}
		buf := x.alloc(v.n * bitsOf(to) / 8)
		if physOf(to) == pI32 {
			out := cast[int32](buf.Bytes())
			for i := range out {
				c := step(i)
				if int64(int32(c)) != c {
					bad[i>>6] |= 1 << (i & 63)
					any = true
				}
				out[i] = int32(c)
			}
		} else {
			out := cast[int64](buf.Bytes())
			for i := range out {
				out[i] = step(i)
			}
		}
		if any {
			write := timeWriter(from)
			valid = x.settle(valid, v.n, try, func(i int) bool { return bad[i>>6]>>(i&63)&1 == 1 },
				func(i int) string { return fmt.Sprintf("%s does not fit %s", write(nil, at(i)), TypeName(to)) })
		}
		return x.array(to, v.n, valid, buf)
	}, true
}

// rawInt is the integer type of a time type's layout.
func rawInt(t arrow.DataType) arrow.DataType { return signed[bitsOf(t)] }

func viaInt(from, raw arrow.DataType, then caster) caster {
	if arrow.TypeEqual(from, raw) {
		return then
	}
	conv := convTable[physOf(from)][physOf(raw)]
	return func(x *exec, v vec, try bool) vec {
		u := conv(x, v, raw, try)
		defer u.release()
		return then(x, u, try)
	}
}

// timeStep converts one value of a time type to another; nil if that makes no sense.
func timeStep(from, to arrow.DataType) func(int64) (int64, bool) {
	zone := zoneOffset(from)
	switch {
	case isClock(from) && isClock(to), from.ID() == arrow.DURATION && to.ID() == arrow.DURATION, from.ID() == arrow.TIMESTAMP && to.ID() == arrow.TIMESTAMP:
		return rescale(perSecond(unitOf(from)), perSecond(unitOf(to)))
	case isDate(from) && isDate(to):
		return rescale(perDay(from), perDay(to))
	case isDate(from) && to.ID() == arrow.TIMESTAMP:
		stamp := to.(*arrow.TimestampType)
		days := rescale(perDay(from), 1)
		return func(v int64) (int64, bool) {
			d, _ := days(v)
			sec, ok := mulExact(d, 86400)
			if !ok {
				return 0, false
			}
			if sec, err := localSeconds(sec, stamp); err == nil {
				return mulExact(sec, perSecond(stamp.Unit))
			}
			return 0, false
		}
	case from.ID() == arrow.TIMESTAMP && isDate(to):
		per, day := perSecond(unitOf(from)), perDay(to)
		return func(v int64) (int64, bool) {
			sec := floorDiv(v, per)
			return mulExact(floorDiv(sec+zone(sec), 86400), day)
		}
	case from.ID() == arrow.TIMESTAMP && isClock(to):
		per := perSecond(unitOf(from))
		scale := rescale(per, perSecond(unitOf(to)))
		return func(v int64) (int64, bool) {
			sec := floorDiv(v, per)
			local := sec + zone(sec)
			return scale((local-floorDiv(local, 86400)*86400)*per + v - sec*per)
		}
	}
	return nil
}

// rescale changes units; to coarser ones it rounds down.
func rescale(from, to int64) func(int64) (int64, bool) {
	if to >= from {
		f := to / from
		return func(v int64) (int64, bool) { return mulExact(v, f) }
	}
	f := from / to
	return func(v int64) (int64, bool) { return floorDiv(v, f), true }
}

// zoneOffset gives seconds to add to UTC at a time. The zone was checked when bound.
func zoneOffset(t arrow.DataType) func(sec int64) int64 {
	if ts, ok := t.(*arrow.TimestampType); ok && ts.TimeZone != "" && ts.TimeZone != "UTC" {
		if loc, err := ts.GetZone(); err == nil && loc != time.UTC {
			return func(sec int64) int64 {
				_, off := time.Unix(sec, 0).In(loc).Zone()
				return int64(off)
			}
		}
	}
	return func(int64) int64 { return 0 }
}

// timeWriter appends a value of a time type as text: ISO 8601, with the zone's
// offset where there is a zone.
func timeWriter(t arrow.DataType) func(dst []byte, v int64) []byte {
	per, zone := perSecond(unitOf(t)), zoneOffset(t)
	switch t.ID() {
	case arrow.DATE32, arrow.DATE64:
		day := perDay(t)
		return func(dst []byte, v int64) []byte { return appendDate(dst, floorDiv(v, day)) }
	case arrow.TIME32, arrow.TIME64:
		return func(dst []byte, v int64) []byte {
			sec := floorDiv(v, per)
			return appendClock(dst, sec, v-sec*per, per)
		}
	case arrow.DURATION:
		return func(dst []byte, v int64) []byte {
			if ns, ok := mulExact(v, 1e9/per); ok {
				return append(dst, time.Duration(ns).String()...)
			}
			return append(strconv.AppendInt(dst, floorDiv(v, per), 10), 's')
		}
	}
	zoned := t.(*arrow.TimestampType).TimeZone != ""
	return func(dst []byte, v int64) []byte {
		sec := floorDiv(v, per)
		frac := v - sec*per
		off := zone(sec)
		local := sec + off
		days := floorDiv(local, 86400)
		dst = append(appendDate(dst, days), 'T')
		dst = appendClock(dst, local-days*86400, frac, per)
		switch {
		case !zoned:
		case off == 0:
			dst = append(dst, 'Z')
		default:
			sign := byte('+')
			if off < 0 {
				sign, off = '-', -off
			}
			dst = pad2(append(dst, sign), off/3600)
			dst = pad2(append(dst, ':'), off/60%60)
		}
		return dst
	}
}

func appendDate(dst []byte, days int64) []byte {
	y, m, d := civil(days)
	if y < 0 {
		dst = append(dst, '-')
		y = -y
	}
	for w := int64(1000); w > 1 && y < w; w /= 10 {
		dst = append(dst, '0')
	}
	dst = strconv.AppendInt(dst, y, 10)
	dst = pad2(append(dst, '-'), int64(m))
	return pad2(append(dst, '-'), int64(d))
}

// appendClock writes a fraction only where there is one.
func appendClock(dst []byte, sec, frac, per int64) []byte {
	dst = pad2(dst, sec/3600)
	dst = pad2(append(dst, ':'), sec/60%60)
	dst = pad2(append(dst, ':'), sec%60)
	if frac == 0 {
		return dst
	}
	dst = append(dst, '.')
	for w := per / 10; w > 0; w /= 10 {
		dst = append(dst, byte('0'+frac/w%10))
	}
	return dst
}

func pad2(dst []byte, v int64) []byte { return append(dst, byte('0'+v/10), byte('0'+v%10)) }

// datePart is the kernel of year, month ... epoch. Parts are those on the clock
// of the value's zone.
func datePart(name string, t arrow.DataType) kernel {
	per, zone := perSecond(unitOf(t)), zoneOffset(t)
	if name == "epoch" {
		scale := float64(perDay(t)) / 86400
		if t.ID() == arrow.DURATION {
			scale = float64(per)
		}
		return func(x *exec, a []vec) vec {
			at := times(a[0])
			buf, out := allocOf[float64](x.mem, a[0].n)
			for i := range out {
				out[i] = float64(at(i)) / scale
			}
			return x.array(arrow.PrimitiveTypes.Float64, a[0].n, x.valid(a[0].n, a[0]), buf)
		}
	}
	seconds := func(v int64) int64 { s := floorDiv(v, per); return s + zone(s) }
	if isDate(t) {
		day := perDay(t)
		seconds = func(v int64) int64 { return floorDiv(v, day) * 86400 }
	}
	var part func(sec int64) int64
	switch name {
	case "year":
		part = func(s int64) int64 { y, _, _ := civil(floorDiv(s, 86400)); return y }
	case "month":
		part = func(s int64) int64 { _, m, _ := civil(floorDiv(s, 86400)); return int64(m) }
	case "day":
		part = func(s int64) int64 { _, _, d := civil(floorDiv(s, 86400)); return int64(d) }
	case "weekday": // 1970-01-01 was a Thursday
		part = func(s int64) int64 { w := (floorDiv(s, 86400) + 4) % 7; return w + w>>63&7 }
	case "hour":
		part = func(s int64) int64 { return (s - floorDiv(s, 86400)*86400) / 3600 }
	case "minute":
		part = func(s int64) int64 { return (s - floorDiv(s, 3600)*3600) / 60 }
	default:
		part = func(s int64) int64 { return s - floorDiv(s, 60)*60 }
	}
	return func(x *exec, a []vec) vec {
		at := times(a[0])
		return int64Rows(x, a, func(i int) int64 { return part(seconds(at(i))) })
	}
}

// checkZone says before any row is read that a zone is unknown.
func checkZone(v *bound) error {
	if ts, ok := v.typ.(*arrow.TimestampType); ok && ts.TimeZone != "" {
		if _, err := ts.GetZone(); err != nil {
			return fault.New(fault.Invalid, "%s: unknown time zone %q", describe(v), ts.TimeZone)
		}
	}
	return nil
}

// nanosPer is how many nanoseconds a unit of a time type has.
func nanosPer(t arrow.DataType) uint64 {
	if isDate(t) {
		return uint64(86400e9 / float64(perDay(t)))
	}
	return uint64(1e9 / perSecond(unitOf(t)))
}

// compareTimes orders values of different units exactly.
func compareTimes(opName string, p, q arrow.DataType) kernel {
	fp, fq := nanosPer(p), nanosPer(q)
	return func(x *exec, a []vec) vec {
		u, v := times(a[0]), times(a[1])
		return compareBits(x, a, func(i int) bool { return opHolds(opName, orderScaled(u(i), fp, v(i), fq)) })
	}
}

// orderScaled compares a*fa with b*fb in 128 bits.
func orderScaled(a int64, fa uint64, b int64, fb uint64) int {
	ah, al := mulSigned(a, fa)
	bh, bl := mulSigned(b, fb)
	switch {
	case ah < bh || ah == bh && al < bl:
		return -1
	case ah == bh && al == bl:
		return 0
	}
	return 1
}

func mulSigned(a int64, f uint64) (hi int64, lo uint64) {
	h, l := bits.Mul64(uint64(a), f)
	if a < 0 {
		h -= f
	}
	return int64(h), l
}
