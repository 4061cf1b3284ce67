package badvalue

import (
	"fmt"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal"

	"github.com/penstock-data/penstock/internal/fault"
)

// Bounded is a check of dates, times and decimals, dictionaries too.
var Bounded = Check{Of: IsBounded, In: BoundedIn, Dicts: true}

// IsBounded reports whether a type, not nested, has a width for more values than it allows.
func IsBounded(t arrow.DataType) bool {
	switch t.ID() {
	case arrow.DATE64, arrow.TIME32, arrow.TIME64, arrow.DECIMAL32, arrow.DECIMAL64, arrow.DECIMAL128, arrow.DECIMAL256:
		return true
	}
	return false
}

// BoundedIn is In of Bounded: date64 with a part of a day, times out of a day, decimals of more
// digits than the type has. Each is a RowError that says what to cast to.
func BoundedIn(d arrow.ArrayData, from, to int64, bad Found) {
	const day = 24 * time.Hour
	b := d.Buffers()[1].Bytes()
	switch t := d.DataType().(type) {
	case *arrow.Date64Type:
		const ms = arrow.Date64(day / time.Millisecond)
		unfit(d, arrow.GetData[arrow.Date64](b), from, to, bad, func(v arrow.Date64) bool { return v%ms == 0 },
			func(v arrow.Date64) string {
				return fmt.Sprintf("a date64 has a part of a day, %d ms; cast the column to timestamp[ms], or to date where days are meant", v%ms)
			})
	case *arrow.Time32Type:
		most := arrow.Time32(day / t.Unit.Multiplier())
		unfit(d, arrow.GetData[arrow.Time32](b), from, to, bad, func(v arrow.Time32) bool { return v >= 0 && v < most }, noClock[arrow.Time32](t.Unit))
	case *arrow.Time64Type:
		most := arrow.Time64(day / t.Unit.Multiplier())
		unfit(d, arrow.GetData[arrow.Time64](b), from, to, bad, func(v arrow.Time64) bool { return v >= 0 && v < most }, noClock[arrow.Time64](t.Unit))
	case *arrow.Decimal32Type:
		digits[decimal.Decimal32](t, d, b, from, to, bad)
	case *arrow.Decimal64Type:
		digits[decimal.Decimal64](t, d, b, from, to, bad)
	case *arrow.Decimal128Type:
		digits[decimal.Decimal128](t, d, b, from, to, bad)
	case *arrow.Decimal256Type:
		digits[decimal.Decimal256](t, d, b, from, to, bad)
	}
}

func noClock[T arrow.Time32 | arrow.Time64](u arrow.TimeUnit) func(T) string {
	return func(v T) string {
		return fmt.Sprintf("a time of day is at least 00:00:00 and below 24:00:00, not %d %s; cast the column to duration", v, u)
	}
}

// digits looks at the sign first: the smallest value has no Abs, and FitsInPrecision takes it for
// one that fits.
func digits[T interface {
	decimal.DecimalTypes
	Abs() T
	Sign() int
	FitsInPrecision(int32) bool
}](t arrow.DecimalType, d arrow.ArrayData, b []byte, from, to int64, bad Found) {
	p := t.GetPrecision()
	unfit(d, arrow.GetData[T](b), from, to, bad, func(v T) bool { return v.Abs().Sign() >= 0 && v.FitsInPrecision(p) },
		func(T) string {
			return fmt.Sprintf("a decimal of more than %d digits; cast the column to one of more", p)
		})
}

// unfit finds slots [from, to) that are not null and of which ok is false.
func unfit[T any](d arrow.ArrayData, values []T, from, to int64, bad Found, ok func(T) bool, why func(T) string) {
	for i, v := range values[from:to] {
		if !ok(v) && !IsNull(d, from+int64(i)) {
			bad(from+int64(i), func() error { return fault.New(fault.RowError, "%s", why(v)) })
		}
	}
}
