package dataset

import (
	"cmp"
	"math"
	"math/big"
	"math/bits"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/bitutil"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/typename"
)

type kind uint8

const (
	kindNone kind = iota
	kindInt
	kindUint
	kindFloat
	kindBool
	kindTime
	kindString
	kindDecimal
)

func kindOf(t arrow.DataType) kind {
	switch t.ID() {
	case arrow.INT8, arrow.INT16, arrow.INT32, arrow.INT64:
		return kindInt
	case arrow.UINT8, arrow.UINT16, arrow.UINT32, arrow.UINT64:
		return kindUint
	case arrow.FLOAT32, arrow.FLOAT64:
		return kindFloat
	case arrow.BOOL:
		return kindBool
	case arrow.DATE32, arrow.DATE64, arrow.TIME32, arrow.TIME64, arrow.TIMESTAMP, arrow.DURATION:
		return kindTime
	case arrow.STRING, arrow.LARGE_STRING:
		return kindString
	case arrow.DECIMAL32, arrow.DECIMAL64, arrow.DECIMAL128, arrow.DECIMAL256:
		return kindDecimal
	}
	return kindNone
}

// summary is what one pass over (a part of) a column leaves. Mean and variance
// are Welford's, merged as by Chan, Golub and LeVeque (1979), so that they stay
// exact for large offsets.
type summary struct {
	kind  kind
	count int64 // not null
	nulls int64

	sumHi, sumLo uint64 // 128-bit two's complement: sums of integers cannot overflow it
	sumF, comp   float64
	mean, m2     float64

	minI, maxI int64
	minU, maxU uint64
	minF, maxF float64
	minS, maxS string

	scale int32 // of decimals
	dec   *decimals
}

func (s *summary) add(col arrow.Array) error {
	n, nulls := int64(col.Len()), int64(col.NullN())
	if col.DataType().ID() == arrow.NULL {
		nulls = n
	}
	if t, ok := col.DataType().(arrow.DecimalType); ok && (t.GetScale() > maxScale || t.GetScale() < -maxScale) {
		return fault.New(fault.Unsupported, "values of %s cannot be summed up: the scale may be -%d to %d", typename.Name(t), maxScale, maxScale)
	}
	s.nulls += nulls
	p := summary{kind: kindOf(col.DataType()), count: n - nulls}
	if s.kind == kindNone {
		s.kind, s.scale = p.kind, scaleOf(col.DataType())
	}
	if p.count == 0 {
		return nil
	}
	switch c := col.(type) {
	case *array.Int8:
		ints(&p, c, c.Int8Values())
	case *array.Int16:
		ints(&p, c, c.Int16Values())
	case *array.Int32:
		ints(&p, c, c.Int32Values())
	case *array.Int64:
		ints(&p, c, c.Int64Values())
	case *array.Date32:
		ints(&p, c, c.Date32Values())
	case *array.Date64:
		ints(&p, c, c.Date64Values())
	case *array.Time32:
		ints(&p, c, c.Time32Values())
	case *array.Time64:
		ints(&p, c, c.Time64Values())
	case *array.Timestamp:
		ints(&p, c, c.TimestampValues())
	case *array.Duration:
		ints(&p, c, c.DurationValues())
	case *array.Uint8:
		uints(&p, c, c.Uint8Values())
	case *array.Uint16:
		uints(&p, c, c.Uint16Values())
	case *array.Uint32:
		uints(&p, c, c.Uint32Values())
	case *array.Uint64:
		uints(&p, c, c.Uint64Values())
	case *array.Float32:
		floats(&p, c, c.Float32Values())
	case *array.Float64:
		floats(&p, c, c.Float64Values())
	case *array.Boolean:
		t := int64(0)
		for i := range c.Len() {
			if c.IsValid(i) && c.Value(i) {
				t++
			}
		}
		p.minI, p.maxI = b2i(t == p.count), b2i(t > 0)
	case *array.String:
		texts(&p, c, c.Value)
	case *array.LargeString:
		texts(&p, c, c.Value)
	case *array.Decimal32, *array.Decimal64, *array.Decimal128, *array.Decimal256:
		decimalsOf(&p, col)
	default: // only counted
	}
	return s.merge(&p)
}

func b2i(b bool) int64 {
	if b {
		return 1
	}
	return 0
}

// each calls f for every run of values that are not null.
func each[V any](c arrow.Array, vs []V, f func(vs []V)) {
	if c.NullN() == 0 {
		f(vs)
		return
	}
	bm, off := c.NullBitmapBytes(), c.Data().Offset()
	for i := 0; i < len(vs); {
		for i < len(vs) && !bitutil.BitIsSet(bm, off+i) {
			i++
		}
		j := i
		for j < len(vs) && bitutil.BitIsSet(bm, off+j) {
			j++
		}
		if j > i {
			f(vs[i:j])
		}
		i = j
	}
}

func ints[V ~int8 | ~int16 | ~int32 | ~int64](p *summary, c arrow.Array, vs []V) {
	p.minI, p.maxI = math.MaxInt64, math.MinInt64
	each(c, vs, func(vs []V) {
		for _, v := range vs {
			x := int64(v)
			p.minI, p.maxI = min(p.minI, x), max(p.maxI, x)
			var carry uint64
			p.sumLo, carry = bits.Add64(p.sumLo, uint64(x), 0)
			p.sumHi += uint64(x>>63) + carry
		}
	})
	p.mean = p.int128() / float64(p.count)
	each(c, vs, func(vs []V) {
		for _, v := range vs {
			d := float64(v) - p.mean
			p.m2 += d * d
		}
	})
}

func uints[V ~uint8 | ~uint16 | ~uint32 | ~uint64](p *summary, c arrow.Array, vs []V) {
	p.minU = math.MaxUint64
	each(c, vs, func(vs []V) {
		for _, v := range vs {
			x := uint64(v)
			p.minU, p.maxU = min(p.minU, x), max(p.maxU, x)
			var carry uint64
			p.sumLo, carry = bits.Add64(p.sumLo, x, 0)
			p.sumHi += carry
		}
	})
	p.mean = p.int128() / float64(p.count)
	each(c, vs, func(vs []V) {
		for _, v := range vs {
			d := float64(v) - p.mean
			p.m2 += d * d
		}
	})
}

func floats[V ~float32 | ~float64](p *summary, c arrow.Array, vs []V) {
	p.minF, p.maxF = math.Inf(1), math.Inf(-1)
	each(c, vs, func(vs []V) {
		for _, v := range vs {
			x := float64(v)
			p.minF, p.maxF = min(p.minF, x), max(p.maxF, x) // NaN stays
			p.addFloat(x)
		}
	})
	p.mean = (p.sumF + p.comp) / float64(p.count)
	each(c, vs, func(vs []V) {
		for _, v := range vs {
			d := float64(v) - p.mean
			p.m2 += d * d
		}
	})
}

// addFloat is Neumaier's compensated sum (1974).
func (s *summary) addFloat(x float64) {
	t := s.sumF + x
	if math.Abs(s.sumF) >= math.Abs(x) {
		s.comp += (s.sumF - t) + x
	} else {
		s.comp += (x - t) + s.sumF
	}
	s.sumF = t
}

func texts(p *summary, c arrow.Array, value func(int) string) {
	first := true
	for i := range c.Len() {
		if c.IsNull(i) {
			continue
		}
		v := value(i)
		if first || v < p.minS {
			p.minS = v
		}
		if first || v > p.maxS {
			p.maxS = v
		}
		first = false
	}
	// The values point into column memory.
	p.minS, p.maxS = clone(p.minS), clone(p.maxS)
}

func clone(s string) string { return string(append([]byte(nil), s...)) }

// merge adds what p saw after s.
func (s *summary) merge(p *summary) error {
	s.nulls += p.nulls
	if s.kind == kindNone {
		s.kind, s.scale = p.kind, p.scale
	}
	if p.count == 0 {
		return nil
	}
	if s.count == 0 {
		nulls := s.nulls
		*s = *p
		s.nulls = nulls
		return nil
	}
	n, m := float64(s.count), float64(p.count)
	d := p.mean - s.mean
	s.mean += d * m / (n + m)
	s.m2 += p.m2 + d*d*n*m/(n+m)
	s.count += p.count
	var carry uint64
	s.sumLo, carry = bits.Add64(s.sumLo, p.sumLo, 0)
	s.sumHi, _ = bits.Add64(s.sumHi, p.sumHi, carry)
	s.addFloat(p.sumF)
	s.comp += p.comp
	s.minI, s.maxI = min(s.minI, p.minI), max(s.maxI, p.maxI)
	s.minU, s.maxU = min(s.minU, p.minU), max(s.maxU, p.maxU)
	s.minF, s.maxF = min(s.minF, p.minF), max(s.maxF, p.maxF)
	if cmp.Compare(p.minS, s.minS) < 0 {
		s.minS = p.minS
	}
	if cmp.Compare(p.maxS, s.maxS) > 0 {
		s.maxS = p.maxS
	}
	if p.dec != nil {
		s.dec = s.dec.merge(p.dec)
	}
	return nil
}

// int128 is the integer sum as a float.
func (s *summary) int128() float64 {
	if int64(s.sumHi) < 0 { // negate, convert, negate: no cancellation of two large parts
		lo, c := bits.Add64(^s.sumLo, 1, 0)
		return -(float64(^s.sumHi+c)*0x1p64 + float64(lo))
	}
	return float64(s.sumHi)*0x1p64 + float64(s.sumLo)
}

func (s *summary) result(fn string) (any, error) {
	switch fn {
	case "count":
		return s.count, nil
	case "nulls":
		return s.nulls, nil
	case "sum":
		switch s.kind {
		case kindInt:
			if s.sumHi != uint64(int64(s.sumLo)>>63) {
				return nil, fault.New(fault.RowError, "the sum %g does not fit int64: sum a cast to double", s.int128())
			}
			return int64(s.sumLo), nil
		case kindUint:
			if s.sumHi != 0 {
				return nil, fault.New(fault.RowError, "the sum %g does not fit uint64: sum a cast to double", s.int128())
			}
			return s.sumLo, nil
		case kindDecimal:
			if s.dec == nil {
				return decimalText(new(big.Int), s.scale), nil
			}
			return decimalText(&s.dec.sum, s.scale), nil
		}
		if sum := s.sumF + s.comp; !math.IsNaN(sum) {
			return sum, nil
		}
		return s.sumF, nil // infinities: the compensation is NaN, the plain sum is right
	}
	if s.count == 0 {
		return nil, nil
	}
	switch fn {
	case "mean":
		if s.kind == kindDecimal {
			return s.decimalMean(), nil
		}
		if s.kind == kindFloat {
			sum, _ := s.result("sum")
			return sum.(float64) / float64(s.count), nil
		}
		return s.int128() / float64(s.count), nil
	case "std":
		if s.count < 2 {
			return nil, nil
		}
		return math.Sqrt(s.m2 / float64(s.count-1)), nil
	case "min":
		if s.kind == kindDecimal {
			return decimalText(s.dec.min.BigInt(), s.scale), nil
		}
		return s.pick(s.minI, s.minU, s.minF, s.minS), nil
	case "max":
		if s.kind == kindDecimal {
			return decimalText(s.dec.max.BigInt(), s.scale), nil
		}
		return s.pick(s.maxI, s.maxU, s.maxF, s.maxS), nil
	}
	return nil, fault.New(fault.Invalid, "no aggregate %q; have count, nulls, sum, mean, std, min, max", fn)
}

func (s *summary) pick(i int64, u uint64, f float64, str string) any {
	switch s.kind {
	case kindUint:
		return u
	case kindFloat:
		return f
	case kindBool:
		return i != 0
	case kindString:
		return str
	}
	return i
}
