package dataset

import (
	"math/big"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal256"
)

// maxScale is beyond what any writer gives decimals; a file may claim 1<<31, and texts and powers of ten be as long.
const maxScale = 1000

// decimals are what a summary has of decimals, in units of the column's scale. The sum is exact.
type decimals struct {
	sum      big.Int
	min, max decimal256.Num
}

// decimalsOf takes in the values that are not null; at least one.
func decimalsOf(p *summary, col arrow.Array) {
	p.scale = scaleOf(col.DataType())
	var at func(int) decimal256.Num
	narrow := true // a batch's sum fits 256 bits
	switch c := col.(type) {
	case *array.Decimal32:
		at = func(i int) decimal256.Num { return decimal256.FromI64(int64(c.Value(i))) }
	case *array.Decimal64:
		at = func(i int) decimal256.Num { return decimal256.FromI64(int64(c.Value(i))) }
	case *array.Decimal128:
		at = func(i int) decimal256.Num { return decimal256.FromDecimal128(c.Value(i)) }
	case *array.Decimal256:
		at, narrow = c.Value, false
	}
	d := &decimals{}
	var sum decimal256.Num
	first := true
	for i := range col.Len() {
		if col.IsNull(i) {
			continue
		}
		v := at(i)
		if first || v.Less(d.min) {
			d.min = v
		}
		if first || d.max.Less(v) {
			d.max = v
		}
		first = false
		if narrow {
			sum = sum.Add(v)
		} else {
			d.sum.Add(&d.sum, v.BigInt())
		}
	}
	if narrow {
		d.sum.Set(sum.BigInt())
	}
	p.dec = d
	p.mean = p.decimalMean()
	for i := range col.Len() {
		if col.IsValid(i) {
			x := at(i).ToFloat64(p.scale) - p.mean
			p.m2 += x * x
		}
	}
}

func (s *summary) decimalMean() float64 {
	den := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(s.scale, -s.scale))), nil)
	num := new(big.Int).Set(&s.dec.sum)
	if s.scale < 0 {
		num, den = num.Mul(num, den), big.NewInt(1)
	}
	f, _ := new(big.Rat).SetFrac(num, den.Mul(den, big.NewInt(s.count))).Float64()
	return f
}

// merge adds what o saw.
func (d *decimals) merge(o *decimals) *decimals {
	m := &decimals{min: d.min, max: d.max}
	m.sum.Add(&d.sum, &o.sum)
	if o.min.Less(m.min) {
		m.min = o.min
	}
	if m.max.Less(o.max) {
		m.max = o.max
	}
	return m
}

// decimalText writes an integer of a scale as 12.34.
func decimalText(v *big.Int, scale int32) string {
	digits := new(big.Int).Abs(v).String()
	switch {
	case scale < 0 && v.Sign() != 0:
		digits += strings.Repeat("0", int(-scale))
	case scale > 0:
		if lack := int(scale) + 1 - len(digits); lack > 0 {
			digits = strings.Repeat("0", lack) + digits
		}
		at := len(digits) - int(scale)
		digits = digits[:at] + "." + digits[at:]
	}
	if v.Sign() < 0 {
		return "-" + digits
	}
	return digits
}

func scaleOf(t arrow.DataType) int32 {
	if d, ok := t.(arrow.DecimalType); ok {
		return d.GetScale()
	}
	return 0
}
