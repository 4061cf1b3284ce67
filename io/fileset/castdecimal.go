package fileset

import (
	"math/big"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/decimal256"
	"github.com/penstock-data/penstock/internal/typename"
)

// castDecimal converts decimals to others, which hold all digits, to floats, and to integers and text.
func castDecimal(from arrow.DecimalType, to arrow.DataType) *caster {
	if t, ok := to.(arrow.DecimalType); ok && t.BitWidth() == from.BitWidth() && t.GetScale() == from.GetScale() && t.GetPrecision() >= from.GetPrecision() {
		return retyped(to)
	}
	switch from.BitWidth() {
	case 32:
		return decimalTo(from, to, func(v decimal.Decimal32) decimal256.Num { return decimal256.FromI64(int64(v)) })
	case 64:
		return decimalTo(from, to, func(v decimal.Decimal64) decimal256.Num { return decimal256.FromI64(int64(v)) })
	case 128:
		return decimalTo(from, to, decimal256.FromDecimal128)
	}
	return decimalTo(from, to, func(v decimal256.Num) decimal256.Num { return v })
}

func decimalTo[A any](from arrow.DecimalType, to arrow.DataType, wide func(A) decimal256.Num) *caster {
	why := func(v A) string { return unfit(wide(v).ToString(from.GetScale()), typename.Name(to)) }
	switch n := numberOf(to); {
	case isDecimal(to):
		return decimals(to.(arrow.DecimalType), from.GetScale(), wide, why)
	case n.float:
		return mapped(arrow.PrimitiveTypes.Float64, false, func(v A) (float64, bool) {
			f, _ := ratOf(wide(v), from.GetScale()).Float64()
			return f, true
		}, nil).then(castTo(arrow.PrimitiveTypes.Float64, to))
	case n.bits > 0 && n.signed:
		return mapped(arrow.PrimitiveTypes.Int64, true, func(v A) (int64, bool) {
			r := ratOf(wide(v), from.GetScale())
			return r.Num().Int64(), r.IsInt() && r.Num().IsInt64()
		}, why).then(castTo(arrow.PrimitiveTypes.Int64, to))
	case n.bits > 0:
		return mapped(arrow.PrimitiveTypes.Uint64, true, func(v A) (uint64, bool) {
			r := ratOf(wide(v), from.GetScale())
			return r.Num().Uint64(), r.IsInt() && r.Num().IsUint64()
		}, why).then(castTo(arrow.PrimitiveTypes.Uint64, to))
	case isText(to):
		return formatted(from, to)
	}
	return nil
}

func ratOf(v decimal256.Num, scale int32) *big.Rat {
	r := new(big.Rat).SetInt(v.BigInt())
	by := new(big.Rat).SetInt(new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(scale, -scale))), nil))
	if scale < 0 {
		return r.Mul(r, by)
	}
	return r.Quo(r, by)
}

// decimals makes decimals of what wide gives, at a scale.
func decimals[A any](to arrow.DecimalType, scale int32, wide func(A) decimal256.Num, why func(A) string) *caster {
	fit := func(v A) (decimal256.Num, bool) {
		r := ratOf(wide(v), scale-to.GetScale())
		if !r.IsInt() || r.Num().BitLen() > 255 {
			return decimal256.Num{}, false
		}
		d := decimal256.FromBigInt(r.Num())
		return d, d.FitsInPrecision(to.GetPrecision())
	}
	low := func(v decimal256.Num) int64 { return int64(v.Array()[0]) }
	switch to.BitWidth() {
	case 32:
		return mapped(to, true, func(v A) (decimal.Decimal32, bool) { d, ok := fit(v); return decimal.Decimal32(low(d)), ok }, why)
	case 64:
		return mapped(to, true, func(v A) (decimal.Decimal64, bool) { d, ok := fit(v); return decimal.Decimal64(low(d)), ok }, why)
	case 128:
		return mapped(to, true, func(v A) (decimal128.Num, bool) {
			d, ok := fit(v)
			return decimal128.New(int64(d.Array()[1]), d.Array()[0]), ok
		}, why)
	}
	return mapped(to, true, fit, why)
}

// decimalOf makes decimals of integers.
func decimalOf(from arrow.DataType, to arrow.DecimalType) *caster {
	if !numberOf(from).signed {
		return castTo(from, arrow.PrimitiveTypes.Uint64).then(decimals(to, 0, decimal256.FromU64,
			func(v uint64) string { return unfit(v, typename.Name(to)) }))
	}
	return castTo(from, arrow.PrimitiveTypes.Int64).then(decimals(to, 0, decimal256.FromI64,
		func(v int64) string { return unfit(v, typename.Name(to)) }))
}
