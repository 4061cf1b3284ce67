package expr

import (
	"math"
	"math/big"
	"strconv"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
)

func isInt(t arrow.DataType) bool {
	switch t.ID() {
	case arrow.INT8, arrow.INT16, arrow.INT32, arrow.INT64:
		return true
	}
	return isUint(t)
}

func isUint(t arrow.DataType) bool {
	switch t.ID() {
	case arrow.UINT8, arrow.UINT16, arrow.UINT32, arrow.UINT64:
		return true
	}
	return false
}

func isFloating(t arrow.DataType) bool {
	return t.ID() == arrow.FLOAT32 || t.ID() == arrow.FLOAT64
}

func isDecimal(t arrow.DataType) bool { return t.ID() == arrow.DECIMAL128 }

func isNumeric(t arrow.DataType) bool { return isInt(t) || isFloating(t) || isDecimal(t) }

func isString(t arrow.DataType) bool { return isText(t) || isBytes(t) }

// isTime reports a date, time of day, timestamp or duration.
func isTime(t arrow.DataType) bool {
	switch t.ID() {
	case arrow.DATE32, arrow.DATE64, arrow.TIME32, arrow.TIME64, arrow.TIMESTAMP, arrow.DURATION:
		return true
	}
	return false
}

func isDate(t arrow.DataType) bool { return t.ID() == arrow.DATE32 || t.ID() == arrow.DATE64 }

func isList(t arrow.DataType) bool {
	switch t.ID() {
	case arrow.LIST, arrow.LARGE_LIST, arrow.FIXED_SIZE_LIST:
		return true
	}
	return false
}

// scalarType reports whether a scalar can hold a value of t.
func scalarType(t arrow.DataType) bool { return physOf(t) != pOther || t.ID() == arrow.NULL }

func bitsOf(t arrow.DataType) int { return t.(arrow.FixedWidthDataType).BitWidth() }

var signed = map[int]arrow.DataType{8: arrow.PrimitiveTypes.Int8, 16: arrow.PrimitiveTypes.Int16, 32: arrow.PrimitiveTypes.Int32, 64: arrow.PrimitiveTypes.Int64}

// widen is the type that arithmetic on two numbers has; nil if they are none.
// Integers take the wider; signed and unsigned the smallest signed type that holds
// both, at most int64; integers of up to 16 bits with float stay float, others
// become double. Decimals compute as double.
func widen(a, b arrow.DataType) arrow.DataType {
	if !isNumeric(a) || !isNumeric(b) {
		return nil
	}
	if arrow.TypeEqual(a, b) && !isDecimal(a) {
		return a
	}
	switch {
	case isInt(a) && isInt(b):
		wa, wb := bitsOf(a), bitsOf(b)
		if isUint(a) == isUint(b) {
			if wa > wb {
				return a
			}
			return b
		}
		if isUint(a) {
			wa *= 2
		} else {
			wb *= 2
		}
		return signed[min(max(wa, wb), 64)]
	case isFloating(a) && isInt(b):
		a, b = b, a
		fallthrough
	case isInt(a) && isFloating(b):
		if b.ID() == arrow.FLOAT32 && bitsOf(a) <= 16 {
			return b
		}
	}
	return arrow.PrimitiveTypes.Float64
}

// unify is the type that holds the values of a and b unchanged, for ?: coalesce
// min max; nil if there is none.
func unify(a, b arrow.DataType) arrow.DataType {
	switch {
	case arrow.TypeEqual(a, b):
		return a
	case a.ID() == arrow.NULL:
		return b
	case b.ID() == arrow.NULL:
		return a
	case isDecimal(a) && isDecimal(b):
		p, q := a.(*arrow.Decimal128Type), b.(*arrow.Decimal128Type)
		scale := max(p.Scale, q.Scale)
		digits := max(p.Precision-p.Scale, q.Precision-q.Scale) + scale
		return &arrow.Decimal128Type{Precision: min(digits, 38), Scale: scale}
	case isNumeric(a) && isNumeric(b):
		return widen(a, b)
	case isText(a) && isText(b):
		return arrow.BinaryTypes.LargeString
	case isBytes(a) && isBytes(b):
		if physOf(a) == pLarge || physOf(b) == pLarge {
			return arrow.BinaryTypes.LargeBinary
		}
		return arrow.BinaryTypes.Binary
	case isDate(a) && isDate(b):
		return arrow.FixedWidthTypes.Date32
	case a.ID() == arrow.TIMESTAMP && isDate(b):
		return a
	case isDate(a) && b.ID() == arrow.TIMESTAMP:
		return b
	case a.ID() == arrow.TIMESTAMP && b.ID() == arrow.TIMESTAMP:
		p, q := a.(*arrow.TimestampType), b.(*arrow.TimestampType)
		zone := p.TimeZone
		if zone == "" {
			zone = q.TimeZone
		}
		return &arrow.TimestampType{Unit: max(p.Unit, q.Unit), TimeZone: zone}
	case a.ID() == arrow.DURATION && b.ID() == arrow.DURATION:
		return &arrow.DurationType{Unit: max(unitOf(a), unitOf(b))}
	case isClock(a) && isClock(b):
		return clockType(max(unitOf(a), unitOf(b)))
	}
	return nil
}

func isClock(t arrow.DataType) bool { return t.ID() == arrow.TIME32 || t.ID() == arrow.TIME64 }

func clockType(u arrow.TimeUnit) arrow.DataType {
	if u <= arrow.Millisecond {
		return &arrow.Time32Type{Unit: u}
	}
	return &arrow.Time64Type{Unit: u}
}

// unitOf is the unit that values of a time type count, other than date32's days.
func unitOf(t arrow.DataType) arrow.TimeUnit {
	switch t := t.(type) {
	case *arrow.TimestampType:
		return t.Unit
	case *arrow.DurationType:
		return t.Unit
	case *arrow.Time32Type:
		return t.Unit
	case *arrow.Time64Type:
		return t.Unit
	case *arrow.Date64Type:
		return arrow.Millisecond
	}
	return arrow.Second
}

// perSecond is how many of a unit make a second.
func perSecond(u arrow.TimeUnit) int64 {
	return [...]int64{1, 1e3, 1e6, 1e9}[u]
}

// perDay is how many of the values of a date or timestamp type make a day.
func perDay(t arrow.DataType) int64 {
	if t.ID() == arrow.DATE32 {
		return 1
	}
	return 86400 * perSecond(unitOf(t))
}

// adapt gives a literal the type t of what it meets, or returns false if its
// value would change: numbers to numbers where they fit (floats are rounded to
// float), texts to dates and times, null to anything.
func adapt(v *bound, t arrow.DataType) (*bound, bool) {
	if v.lit == nil {
		return nil, false
	}
	out := *v
	out.typ, out.untyped = t, false
	s := *v.lit
	out.lit = &s
	s.typ = t
	switch {
	case v.typ.ID() == arrow.NULL:
		return &out, true
	case !v.lit.valid:
		return nil, false
	case v.untyped && isInt(v.typ) && isInt(t):
		r := ratOf(v.lit)
		lo, hi := intRange(t)
		return &out, r.Num().Cmp(lo) >= 0 && r.Num().Cmp(hi) <= 0
	case v.untyped && isFloating(t):
		f := v.lit.f
		if isInt(v.typ) {
			f, _ = ratOf(v.lit).Float64()
		}
		if t.ID() == arrow.FLOAT32 {
			r := float64(float32(f))
			if math.IsInf(r, 0) && !math.IsInf(f, 0) {
				return nil, false
			}
			f = r
		}
		s.f, s.i = f, 0
		return &out, true
	case v.untyped && isDecimal(t):
		d, exact := decimalOf(ratOf(v.lit), t.(*arrow.Decimal128Type))
		s.d = d
		return &out, exact
	case isText(v.typ) && isTime(t):
		i, err := parseTime(v.lit.s, t)
		s.i, s.s = i, ""
		return &out, err == nil
	case isText(v.typ) && (isText(t) || isBytes(t)), isBytes(v.typ) && isBytes(t):
		return &out, t.ID() != arrow.FIXED_SIZE_BINARY || len(s.s) == t.(*arrow.FixedSizeBinaryType).ByteWidth
	}
	return nil, false
}

// ratOf is the exact value of a valid number literal; nil for NaN and infinities.
func ratOf(s *scalar) *big.Rat {
	switch {
	case isFloating(s.typ):
		return new(big.Rat).SetFloat64(s.f)
	case isUint(s.typ):
		return new(big.Rat).SetInt(new(big.Int).SetUint64(uint64(s.i)))
	}
	return new(big.Rat).SetInt64(s.i)
}

func intRange(t arrow.DataType) (lo, hi *big.Int) {
	w := uint(bitsOf(t))
	one := big.NewInt(1)
	if isUint(t) {
		return new(big.Int), new(big.Int).Sub(new(big.Int).Lsh(one, w), one)
	}
	hi = new(big.Int).Lsh(one, w-1)
	return new(big.Int).Neg(hi), new(big.Int).Sub(hi, one)
}

// decimalOf is r in units of t, and whether that is exact and fits.
func decimalOf(r *big.Rat, t *arrow.Decimal128Type) (decimal128.Num, bool) {
	if r == nil {
		return decimal128.Num{}, false
	}
	scaled := new(big.Rat).Mul(r, new(big.Rat).SetInt(pow10(int(t.Scale))))
	if t.Scale < 0 {
		scaled = new(big.Rat).Quo(r, new(big.Rat).SetInt(pow10(-int(t.Scale))))
	}
	if !scaled.IsInt() || scaled.Num().CmpAbs(pow10(int(t.Precision))) >= 0 {
		return decimal128.Num{}, false
	}
	return decimal128.FromBigInt(scaled.Num()), true
}

func pow10(n int) *big.Int { return new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(n)), nil) }

// shortRat is the value of a float as its shortest decimal text says it: 0.1 is
// one tenth. Decimals compare with literals by that.
func shortRat(f float64) *big.Rat {
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil
	}
	r, _ := new(big.Rat).SetString(strconv.FormatFloat(f, 'g', -1, 64))
	return r
}

// convert returns v as type t: a literal adapted, else a cast that cannot fail
// but for uint64 to int64.
func (b *binder) convert(v *bound, t arrow.DataType) *bound {
	if arrow.TypeEqual(v.typ, t) {
		if v.untyped {
			c := *v
			c.untyped = false
			return &c
		}
		return v
	}
	if c, ok := adapt(v, t); ok {
		return c
	}
	c, err := b.castTo(v.src, v, t, false)
	if err != nil {
		return v // unreachable: callers convert to what unify or widen gave
	}
	return b.fold(c)
}

// commonType is the type of several operands: literals adapt to the others where
// they fit. join is widen or unify. It returns nil and the two that do not go
// together, or the type.
func commonType(args []*bound, join func(a, b arrow.DataType) arrow.DataType) (t arrow.DataType, p, q *bound) {
	var first *bound
	step := func(v *bound) bool {
		if t == nil {
			t, first = v.typ, v
			return true
		}
		u := join(t, v.typ)
		if u == nil {
			p, q = first, v
			return false
		}
		t = u
		return true
	}
	for _, v := range args { // what has a type of its own
		if v.lit == nil || !v.untyped && !(isText(v.lit.typ) && v.src.kind == kLiteral) && v.typ.ID() != arrow.NULL {
			if !step(v) {
				return nil, p, q
			}
		}
	}
	for _, v := range args { // then literals
		if v.lit == nil || !v.untyped && !(isText(v.lit.typ) && v.src.kind == kLiteral) && v.typ.ID() != arrow.NULL {
			continue
		}
		if t != nil {
			if _, ok := adapt(v, t); ok {
				continue
			}
			if v.untyped && isDecimal(t) && v.lit.valid { // a literal with more digits
				continue
			}
		}
		if v.typ.ID() == arrow.NULL && t == nil {
			continue
		}
		if !step(v) {
			return nil, p, q
		}
	}
	if t == nil {
		t = arrow.Null
	}
	return t, nil, nil
}
