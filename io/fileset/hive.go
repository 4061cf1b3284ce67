package fileset

import (
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
)

// partition is a column that folders give.
type partition struct {
	name string
	typ  arrow.DataType
}

// value is a partition's value in one file: null, or in the domain of predicates.
type value struct {
	v any // nil: null; bool, int64 (dates: days), uint64, float64 or string
}

func (v value) String() string { return fmt.Sprintf("%T:%v", v.v, v.v) }

const hiveNull = "__HIVE_DEFAULT_PARTITION__"

// hivePart reads one folder's name. Percent escapes are undone where they give
// valid text.
func hivePart(elem string) (key, val string, null, ok bool) {
	k, v, found := strings.Cut(elem, "=")
	if !found || k == "" {
		return "", "", false, false
	}
	unescape := func(s string) string {
		if u, err := url.PathUnescape(s); err == nil && utf8.ValidString(u) {
			return u
		}
		return strings.ToValidUTF8(s, "\uFFFD")
	}
	return unescape(k), unescape(v), v == hiveNull, true
}

// guess is what the values of one partition have in common.
type guess struct{ some, notInt, notDate bool }

func (g *guess) add(val string, null bool) {
	if null {
		return
	}
	g.some = true
	if _, err := strconv.ParseInt(val, 10, 64); err != nil {
		g.notInt = true
	}
	if _, ok := parseDate(val); !ok {
		g.notDate = true
	}
}

func (g *guess) typ() arrow.DataType {
	switch {
	case g.some && !g.notInt:
		return arrow.PrimitiveTypes.Int64
	case g.some && !g.notDate:
		return arrow.FixedWidthTypes.Date32
	}
	return arrow.BinaryTypes.String
}

func parseDate(s string) (days int64, ok bool) {
	if len(s) != len("2006-01-02") {
		return 0, false
	}
	t, err := time.Parse("2006-01-02", s)
	return t.Unix() / 86400, err == nil
}

func partitionType(t arrow.DataType) bool {
	switch t.ID() {
	case arrow.INT8, arrow.INT16, arrow.INT32, arrow.INT64, arrow.UINT8, arrow.UINT16, arrow.UINT32, arrow.UINT64,
		arrow.FLOAT32, arrow.FLOAT64, arrow.BOOL, arrow.STRING, arrow.LARGE_STRING, arrow.DATE32:
		return true
	}
	return false
}

// parseAs reads a folder's value as a type that partitionType allows.
func parseAs(t arrow.DataType, s string) (value, error) {
	bits := 64
	if f, ok := t.(arrow.FixedWidthDataType); ok {
		bits = f.BitWidth()
	}
	var v any
	var err error
	switch t.ID() {
	case arrow.INT8, arrow.INT16, arrow.INT32, arrow.INT64:
		v, err = strconv.ParseInt(s, 10, bits)
	case arrow.UINT8, arrow.UINT16, arrow.UINT32, arrow.UINT64:
		v, err = strconv.ParseUint(s, 10, bits)
	case arrow.FLOAT32, arrow.FLOAT64:
		v, err = strconv.ParseFloat(s, bits)
	case arrow.BOOL:
		v, err = strconv.ParseBool(s)
	case arrow.DATE32:
		d, ok := parseDate(s)
		if v = d; !ok {
			err = fmt.Errorf("not a date")
		}
	default:
		v = s
	}
	if err != nil {
		return value{}, fmt.Errorf("partition value %q is no %s", s, typename.Name(t))
	}
	return value{v}, nil
}

// excludes reports whether a folder's raw value surely makes t not true, where
// the type of the column is not known yet (typ nil) but that of the literals is.
func excludes(t driver.Term, raw string, null bool, typ arrow.DataType) bool {
	if null {
		return !holds(t, value{})
	}
	if typ != nil {
		v, err := parseAs(typ, raw)
		return err == nil && !holds(t, v)
	}
	if t.Op == driver.IsNull || t.Op == driver.NotNull {
		return !holds(t, value{raw})
	}
	for _, l := range t.Values {
		switch l.(type) {
		case string:
			if holds(driver.Term{Op: t.Op, Values: []any{l}}, value{raw}) {
				return false
			}
		case int64, float64:
			var v any
			if n, err := strconv.ParseInt(raw, 10, 64); err == nil {
				v = n
			} else if d, ok := parseDate(raw); ok {
				v = d
			} else {
				return false
			}
			if holds(driver.Term{Op: t.Op, Values: []any{l}}, value{v}) {
				return false
			}
		default:
			return false
		}
	}
	return true
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
