package fileset

import (
	"math"
	"math/big"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/io/driver"
)

// narrow makes of a term over a column of the table, whose type is to, one over the column of a file,
// whose type is from and of which castTo makes the other: it is true of a value exactly if the first is
// of what is made of the value. never says that no row can match; ok is false where no term says so.
func narrow(t driver.Term, from, to arrow.DataType) (out driver.Term, never, ok bool) {
	if arrow.TypeEqual(from, to) || t.Op == driver.IsNull || t.Op == driver.NotNull {
		return t, false, true
	}
	if t.Op == driver.In && len(t.Values) == 0 {
		return t, true, true
	}
	if d, ok := from.(*arrow.DictionaryType); ok {
		from = d.ValueType
	}
	if d, ok := to.(*arrow.DictionaryType); ok {
		to = d.ValueType
	}
	convert := conversion(from, to)
	if convert == nil {
		return t, false, false
	}
	out = driver.Term{Column: t.Column, Op: t.Op}
	for _, v := range t.Values {
		at := convert(v)
		if at.unknown {
			return t, false, false
		}
		switch op := t.Op; {
		case op == driver.In || op == driver.Eq:
			if at.exact {
				out.Values = append(out.Values, at.value)
			}
			continue
		case at.nan:
			if op == driver.Ne {
				return driver.Term{Column: t.Column, Op: driver.NotNull}, false, true
			}
			return t, true, false
		case op == driver.Ne:
			if !at.exact {
				return driver.Term{Column: t.Column, Op: driver.NotNull}, false, true
			}
		case at.below || at.above: // beyond all values of the file's type
			if at.below == (op == driver.Gt || op == driver.Ge) {
				return driver.Term{Column: t.Column, Op: driver.NotNull}, false, true
			}
			return t, true, false
		case at.exact:
		case op == driver.Lt: // at.value is the last before the literal
			out.Op = driver.Le
		case op == driver.Ge:
			out.Op = driver.Gt
		}
		out.Values = append(out.Values, at.value)
	}
	return out, len(out.Values) == 0, len(out.Values) > 0
}

// landing is where a literal lies among the values of a file's type.
type landing struct {
	value        any // the largest that is not above it
	exact        bool
	below, above bool // all values
	nan, unknown bool
}

// conversion says where a literal of type to lands; nil if values of from keep no order in to, or are not known to.
func conversion(from, to arrow.DataType) func(v any) landing {
	switch {
	case isInteger(from) && numberOf(to).bits > 0:
		lo, hi := rangeOf(numberOf(from))
		return func(v any) landing { return land(v, nil, lo, hi, numberOf(from).signed) }
	case numberOf(from).float && numberOf(to).float && numberOf(from).bits > 16 && numberOf(from).bits <= numberOf(to).bits:
		// Readers compare floats as double.
		return func(v any) landing {
			f, ok := v.(float64)
			return landing{value: v, exact: f == f, nan: f != f, unknown: !ok}
		}
	case timeOf(from).kind != noTime && timeOf(to).kind != noTime:
		f, t := timeOf(from), timeOf(to)
		if (zoneOf(from) == "") != (zoneOf(to) == "") || f.kind == stamp && t.kind == date {
			return nil
		}
		scale := big.NewRat(t.unit, f.unit)
		lo, hi := rangeOf(num{bits: from.(arrow.FixedWidthDataType).BitWidth(), signed: true})
		return func(v any) landing { return land(v, scale, lo, hi, true) }
	case (isText(from) || isBytes(from)) && (isText(to) || isBytes(to)) && from.ID() != arrow.FIXED_SIZE_BINARY && to.ID() != arrow.FIXED_SIZE_BINARY:
		return func(v any) landing {
			_, ok := v.(string)
			return landing{value: v, exact: true, unknown: !ok}
		}
	}
	return nil
}

// rangeOf is that of integers.
func rangeOf(n num) (lo, hi *big.Int) {
	one := big.NewInt(1)
	if !n.signed {
		return new(big.Int), new(big.Int).Sub(new(big.Int).Lsh(one, uint(n.bits)), one)
	}
	hi = new(big.Int).Lsh(one, uint(n.bits-1))
	return new(big.Int).Neg(hi), hi.Sub(hi, one)
}

// land finds v, times scale, among the integers of a range.
func land(v any, scale *big.Rat, lo, hi *big.Int, signed bool) landing {
	r := new(big.Rat)
	switch v := v.(type) {
	case int64:
		r.SetInt64(v)
	case uint64:
		r.SetUint64(v)
	case float64:
		switch {
		case v != v:
			return landing{nan: true}
		case math.IsInf(v, 0):
			return landing{below: v < 0, above: v > 0}
		}
		r.SetFloat64(v)
	default:
		return landing{unknown: true}
	}
	if scale != nil {
		r.Mul(r, scale)
	}
	n := new(big.Int).Div(r.Num(), r.Denom()) // rounds down
	l := landing{exact: r.IsInt(), below: n.Cmp(lo) < 0, above: n.Cmp(hi) > 0}
	switch {
	case l.below || l.above:
		l.exact = false
	case signed:
		l.value = n.Int64()
	default:
		l.value = n.Uint64()
	}
	return l
}
