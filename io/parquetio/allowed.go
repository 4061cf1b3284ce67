package parquetio

import (
	"slices"
	"sort"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal"

	"github.com/penstock-data/penstock/internal/fault"
)

const msPerDay = 86_400_000

// allowed refuses values that their types do not allow, and that would be written as others: date64 with parts of
// days, times out of a day, decimals of more digits than the type has. What a null hides is not looked at. shown says
// which slots of a are; nil is all.
func allowed(a arrow.Array, shown func(i int) bool) error {
	if !holdsBounded(a.DataType()) || a.Len() == 0 {
		return nil
	}
	seen := func(i int) bool { return a.IsValid(i) && (shown == nil || shown(i)) }
	const day = 24 * time.Hour
	switch a := a.(type) {
	case *array.Date64:
		if v, ok := notAllowed(a.Date64Values(), seen, func(v arrow.Date64) bool { return v%msPerDay == 0 }); ok {
			return fault.New(fault.RowError, "a date64 has a part of a day, %d ms; cast the column to timestamp, or to date32 where days are meant", v%msPerDay)
		}
	case *array.Time32:
		u := a.DataType().(*arrow.Time32Type).Unit
		most := arrow.Time32(day / u.Multiplier())
		if v, ok := notAllowed(a.Time32Values(), seen, func(v arrow.Time32) bool { return v >= 0 && v < most }); ok {
			return noClock(int64(v), u)
		}
	case *array.Time64:
		u := a.DataType().(*arrow.Time64Type).Unit
		most := arrow.Time64(day / u.Multiplier())
		if v, ok := notAllowed(a.Time64Values(), seen, func(v arrow.Time64) bool { return v >= 0 && v < most }); ok {
			return noClock(int64(v), u)
		}
	case *array.Decimal32:
		return digits(a.DataType(), a.Values(), seen)
	case *array.Decimal64:
		return digits(a.DataType(), a.Values(), seen)
	case *array.Decimal128:
		return digits(a.DataType(), a.Values(), seen)
	case *array.Decimal256:
		return digits(a.DataType(), a.Values(), seen)
	case *array.Dictionary:
		return allowed(a.Dictionary(), nil)
	case array.ExtensionArray:
		return allowed(a.Storage(), shown)
	case *array.Struct:
		for i := range a.NumField() {
			if err := allowed(a.Field(i), seen); err != nil {
				return err
			}
		}
	case array.ListLike: // of which slots follow each other: views are not written
		from, _ := a.ValueOffsets(0)
		_, to := a.ValueOffsets(a.Len() - 1)
		values := array.NewSlice(a.ListValues(), from, to)
		defer values.Release()
		return allowed(values, func(k int) bool {
			return seen(sort.Search(a.Len(), func(i int) bool { _, end := a.ValueOffsets(i); return end > from+int64(k) }))
		})
	}
	return nil
}

// notAllowed is the first value that is seen, and not ok.
func notAllowed[T any](vs []T, seen func(int) bool, ok func(T) bool) (v T, found bool) {
	for i, v := range vs {
		if !ok(v) && seen(i) {
			return v, true
		}
	}
	return v, false
}

func noClock(v int64, u arrow.TimeUnit) error {
	return fault.New(fault.RowError, "a time of day is at least 00:00:00 and below 24:00:00, not %d %s; cast the column to duration", v, u)
}

// digits looks at the sign first: the smallest value has no Abs, and FitsInPrecision takes it for one that fits.
func digits[T interface {
	decimal.DecimalTypes
	Abs() T
	Sign() int
	FitsInPrecision(int32) bool
}](t arrow.DataType, vs []T, seen func(int) bool) error {
	p := t.(arrow.DecimalType).GetPrecision()
	if _, ok := notAllowed(vs, seen, func(v T) bool { return v.Abs().Sign() >= 0 && v.FitsInPrecision(p) }); ok {
		return fault.New(fault.RowError, "a decimal of more than %d digits; cast the column to one of more", p)
	}
	return nil
}

// holdsBounded reports whether a type has values that it does not allow.
func holdsBounded(t arrow.DataType) bool {
	switch t := storageType(t).(type) {
	case *arrow.Date64Type, *arrow.Time32Type, *arrow.Time64Type, arrow.DecimalType:
		return true
	case *arrow.DictionaryType:
		return holdsBounded(t.ValueType)
	case arrow.NestedType:
		return slices.ContainsFunc(t.Fields(), func(f arrow.Field) bool { return holdsBounded(f.Type) })
	}
	return false
}
