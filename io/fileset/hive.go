package fileset

import (
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/textvalue"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
)

// partition is a column that folders give.
type partition struct {
	name     string
	typ      arrow.DataType
	declared bool   // by the user
	by       string // a file that says the type
}

// value is a partition's value in one file: null, or in the domain of predicates.
type value struct {
	v any // nil: null; bool, int64 (dates and timestamps: units of the type), uint64, float64 or string
}

func (v value) String() string { return fmt.Sprintf("%T:%v", v.v, v.v) }

// raw is a partition's value as a folder has it, unescaped.
type raw struct {
	text string
	null bool
}

func (r raw) String() string {
	if r.null {
		return hiveNull
	}
	return strconv.Quote(r.text)
}

// hiveNull is the folder value of null; a text that looks like it is escaped.
const hiveNull = "__HIVE_DEFAULT_PARTITION__"

// hivePart reads one folder's name. Percent escapes are undone; where one is no escape, none is. What
// comes out may be no UTF-8.
func hivePart(elem string) (key string, val raw, ok bool) {
	k, v, found := strings.Cut(elem, "=")
	if !found || k == "" {
		return "", raw{}, false
	}
	unescape := func(s string) string {
		if u, err := url.PathUnescape(s); err == nil {
			return u
		}
		return s
	}
	if v == hiveNull {
		return unescape(k), raw{null: true}, true
	}
	return unescape(k), raw{text: unescape(v)}, true
}

// guess is what the values of one partition have in common. More values make a type only wider:
// what is text stays text.
type guess struct {
	textvalue.Guess
	some, other bool // values, and such that are not two digits
}

func (g *guess) add(v raw) {
	if v.null {
		return
	}
	g.some = true
	g.other = g.other || len(v.text) != 2 || v.text[0]-'0' > 9 || v.text[1]-'0' > 9
	g.Add([]byte(v.text))
}

// typ is that of the texts, but text for what is float, as 1.10 is another folder than 1.1, and a
// number where all have two digits: months and hours.
func (g *guess) typ() arrow.DataType {
	if g.some && !g.other {
		return arrow.PrimitiveTypes.Int64
	}
	if t := g.Type(); t.ID() != arrow.FLOAT64 {
		return t
	}
	return arrow.BinaryTypes.String
}

// text reports that more values do not change the type.
func (g *guess) text() bool { return g.some && g.typ().ID() == arrow.STRING }

func partitionType(t arrow.DataType) bool {
	switch t.ID() {
	case arrow.INT8, arrow.INT16, arrow.INT32, arrow.INT64, arrow.UINT8, arrow.UINT16, arrow.UINT32, arrow.UINT64,
		arrow.FLOAT32, arrow.FLOAT64, arrow.BOOL, arrow.STRING, arrow.LARGE_STRING, arrow.DATE32, arrow.DATE64, arrow.TIMESTAMP, arrow.NULL:
		return true
	}
	return false
}

// parseAs reads a folder's value as a type that partitionType allows. The type must hold it
// exactly, so that two folders that say different things never become one value.
func parseAs(t arrow.DataType, r raw) (value, error) {
	if r.null {
		return value{}, nil
	}
	if isText(t) {
		return value{r.text}, nil
	}
	parse := newParser(t)
	err := errNot
	if parse != nil {
		var v value
		if v, err = parse([]byte(r.text)); err == nil {
			if why := inexact(t, r.text, v); why != "" {
				return value{}, fmt.Errorf("partition value %s is not exactly a %s: %s", quoted([]byte(r.text)), typename.Name(t), why)
			}
			return v, nil
		}
	}
	return value{}, fmt.Errorf("partition value %s is no %s%w", quoted([]byte(r.text)), typename.Name(t), err)
}

// inexact says why v, which is what text was read as, is not what it says; "" if it is. Integers,
// dates and bools always are.
func inexact(t arrow.DataType, text string, v value) string {
	switch t := t.(type) {
	case *arrow.Float32Type, *arrow.Float64Type:
		f := v.v.(float64)
		short := strconv.FormatFloat(f, 'g', -1, t.(arrow.FixedWidthDataType).BitWidth())
		if !math.IsNaN(f) && !math.IsInf(f, 0) && !sameDecimal(text, short) {
			return "it would be " + short
		}
	case *arrow.TimestampType:
		clock, zoned, err := textvalue.ReadClock([]byte(text))
		switch {
		case err != nil:
			return err.Error()
		case zoned && t.TimeZone == "":
			return "it has an offset from UTC, and the type has none"
		case zoned || t.TimeZone == "":
			return ""
		}
		loc, err := t.GetZone()
		if err != nil {
			return err.Error()
		}
		secs := v.v.(int64) / int64(time.Second/t.Unit.Multiplier())
		if v.v.(int64)%int64(time.Second/t.Unit.Multiplier()) < 0 {
			secs--
		}
		if _, off := time.Unix(secs, 0).In(loc).Zone(); secs+int64(off) != clock {
			return "a clock there never shows it"
		}
	}
	return ""
}

// sameDecimal reports that two texts are the same finite number, however they are written.
func sameDecimal(a, b string) bool {
	da, ea := decimalDigits(a)
	db, eb := decimalDigits(b)
	return da == db && ea == eb
}

// decimalDigits gives a number that is written in decimal as its sign and digits, without zeros at
// either end, and the power of ten of the last one. 0 has no digits.
func decimalDigits(s string) (digits string, exp int64) {
	sign := ""
	if s != "" && (s[0] == '-' || s[0] == '+') {
		sign, s = strings.TrimPrefix(s[:1], "+"), s[1:]
	}
	if i := strings.IndexAny(s, "eE"); i >= 0 {
		exp, _ = strconv.ParseInt(s[i+1:], 10, 64) // out of range: the largest, which is no float's
		exp, s = max(-1<<40, min(exp, 1<<40)), s[:i]
	}
	whole, fraction, _ := strings.Cut(s, ".")
	exp -= int64(len(fraction))
	digits = strings.TrimLeft(whole+fraction, "0")
	n := len(digits)
	digits = strings.TrimRight(digits, "0")
	if digits == "" {
		return "", 0
	}
	return sign + digits, exp + int64(n-len(digits))
}

// excludes reports whether a folder's raw value surely makes t not true, where the type of the column
// is not known yet (typ nil) but that of the literals is: a number, a date or text.
func excludes(t driver.Term, r raw, typ arrow.DataType) bool {
	if r.null {
		return !holds(t, value{})
	}
	if t.Op == driver.IsNull || t.Op == driver.NotNull {
		return !holds(t, value{r.text})
	}
	// A term of numbers is made for integers: it says nothing of 0.1, nor does one without values.
	if _, whole := textvalue.Int([]byte(r.text)); !whole && (len(t.Values) == 0 || typ != nil && numberOf(typ).float) {
		return false
	}
	if typ != nil {
		if id := typ.ID(); id == arrow.TIMESTAMP || id == arrow.DATE64 { // in another unit than literals
			return false
		}
		v, err := parseAs(typ, r)
		return err == nil && !holds(t, v)
	}
	text := []byte(r.text)
	for _, l := range t.Values {
		var v any
		switch l := l.(type) {
		case string:
			// Times that are written in two ways may be equal.
			if isTime(text) && isTime([]byte(l)) && !(isDate(text) && isDate([]byte(l))) {
				return false
			}
			v = r.text
		case int64, float64:
			if n, ok := textvalue.Int(text); ok {
				v = n
			} else if d, err := textvalue.Date(text); err == nil {
				v = d
			} else {
				return false
			}
		default:
			return false
		}
		if holds(driver.Term{Op: t.Op, Values: []any{l}}, value{v}) {
			return false
		}
	}
	return true
}

func isDate(b []byte) bool {
	_, err := textvalue.Date(b)
	return err == nil
}

func isTime(b []byte) bool {
	var g textvalue.Guess
	g.Add(b)
	return g.TimeType() != nil
}

// holds evaluates t for a constant. Values that cannot be compared leave it
// undecided, which counts as true.
func holds(t driver.Term, c value) bool {
	switch {
	case t.Op == driver.IsNull:
		return c.v == nil
	case c.v == nil:
		return false
	case t.Op == driver.NotNull:
		return true
	}
	for _, l := range t.Values {
		o, ordered, ok := compare(c.v, l)
		if !ok {
			return true
		}
		var is bool
		switch t.Op {
		case driver.Eq, driver.In:
			is = ordered && o == 0
		case driver.Ne:
			is = !ordered || o != 0
		case driver.Lt:
			is = ordered && o < 0
		case driver.Le:
			is = ordered && o <= 0
		case driver.Gt:
			is = ordered && o > 0
		case driver.Ge:
			is = ordered && o >= 0
		}
		if is {
			return true
		}
	}
	return false
}

// compare orders two values of predicates; ordered is false with NaN, ok for kinds
// that have no order between them.
func compare(a, b any) (order int, ordered, ok bool) {
	switch a := a.(type) {
	case string:
		b, ok := b.(string)
		return strings.Compare(a, b), true, ok
	case bool:
		b, ok := b.(bool)
		switch {
		case a == b:
			return 0, true, ok
		case a:
			return 1, true, ok
		}
		return -1, true, ok
	}
	x, fx, ok1 := number(a)
	y, fy, ok2 := number(b)
	if !ok1 || !ok2 {
		return 0, false, false
	}
	if fx != fx || fy != fy {
		return 0, false, true
	}
	switch {
	case x.less(y, fx, fy):
		return -1, true, true
	case y.less(x, fy, fx):
		return 1, true, true
	}
	return 0, true, true
}

// integer is a 65-bit number; isInt is false if only the float says what it is.
type integer struct {
	neg   bool
	mag   uint64
	isInt bool
}

// number gives v as a float and, if it is one of 64 bits, as an integer.
func number(v any) (integer, float64, bool) {
	switch v := v.(type) {
	case int64:
		if v < 0 {
			return integer{true, uint64(-v), true}, float64(v), true
		}
		return integer{false, uint64(v), true}, float64(v), true
	case uint64:
		return integer{false, v, true}, float64(v), true
	case float64:
		if v == math.Trunc(v) && math.Abs(v) < 1<<64 {
			return integer{v < 0, uint64(math.Abs(v)), true}, v, true
		}
		return integer{}, v, true
	}
	return integer{}, 0, false
}

func (x integer) less(y integer, fx, fy float64) bool {
	switch {
	case !x.isInt || !y.isInt: // one has a fraction (so is below 2^53) or is beyond all integers
		return fx < fy
	case x.neg != y.neg:
		return x.neg
	case x.neg:
		return x.mag > y.mag
	}
	return x.mag < y.mag
}

// SamePartition reports whether files i and j have the same partition values.
func (s *Set) SamePartition(i, j int) bool {
	return slices.Equal(s.Files[i].parts, s.Files[j].parts)
}
