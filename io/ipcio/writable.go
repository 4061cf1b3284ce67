package ipcio

import (
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal"

	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
)

// checkSchema reports the first column that a file cannot hold so that others read it.
func checkSchema(s *arrow.Schema) error {
	seen := map[string]bool{}
	for _, f := range s.Fields() {
		at := driver.Place{Column: f.Name}
		if seen[f.Name] {
			return driver.Errorf(driver.Invalid, "two columns have this name").At(at)
		}
		seen[f.Name] = true
		if err := writable(f); err != nil {
			return driver.Wrap(err, at)
		}
	}
	return nil
}

func writable(f arrow.Field) error {
	if !utf8.ValidString(f.Name) {
		return driver.Errorf(driver.Invalid, "the name %q is not UTF-8; rename it", f.Name)
	}
	bad := func(why string) error {
		return driver.Errorf(driver.Invalid, "type %s cannot be written as Arrow IPC%s", typename.Name(f.Type), why)
	}
	switch t := f.Type.(type) {
	case arrow.ExtensionType:
		return writable(arrow.Field{Type: t.StorageType()})
	case *arrow.DictionaryType:
		return writable(arrow.Field{Type: t.ValueType})
	case arrow.DecimalType:
		_, most := decimalOf(0, 0, int32(t.BitWidth()))
		if p, s := t.GetPrecision(), t.GetScale(); p < 1 || p > most || s < 0 || s > p {
			return bad(fmt.Sprintf(": a decimal of %d bits has 1 to %d digits, and a scale of 0 to as many; cast it first", t.BitWidth(), most))
		}
	case *arrow.FixedSizeBinaryType:
		if t.ByteWidth < 0 || t.ByteWidth > math.MaxInt32 {
			return bad("; cast it first")
		}
	case *arrow.TimestampType:
		if !utf8.ValidString(t.TimeZone) {
			return bad(": the time zone is not UTF-8")
		}
	case *arrow.ListViewType, *arrow.LargeListViewType, *arrow.RunEndEncodedType, arrow.UnionType:
		return bad("; cast it first")
	case arrow.NestedType:
		for _, c := range t.Fields() {
			if err := writable(c); err != nil {
				return err
			}
		}
	}
	return nil
}

// allowed is a check of all values: others refuse files with such that are not.
var allowed = check{of: isChecked, in: allowedIn, dicts: true}

func isChecked(t arrow.DataType) bool {
	switch t.ID() {
	case arrow.DATE64, arrow.TIME32, arrow.TIME64, arrow.DECIMAL32, arrow.DECIMAL64, arrow.DECIMAL128, arrow.DECIMAL256:
		return true
	}
	return isText(t)
}

func allowedIn(d arrow.ArrayData, from, to int64, bad found) {
	const day = 24 * time.Hour
	b := d.Buffers()[1].Bytes()
	switch t := d.DataType().(type) {
	case *arrow.Date64Type:
		const ms = arrow.Date64(day / time.Millisecond)
		unfit(d, arrow.GetData[arrow.Date64](b), from, to, bad, func(v arrow.Date64) bool { return v%ms == 0 },
			"a date64 that is not midnight, which Arrow does not allow; cast the column to timestamp[ms], or to date")
	case *arrow.Time32Type:
		most := arrow.Time32(day / t.Unit.Multiplier())
		unfit(d, arrow.GetData[arrow.Time32](b), from, to, bad, func(v arrow.Time32) bool { return v >= 0 && v < most },
			"a time of day is at least 00:00:00 and below 24:00:00; cast the column to duration")
	case *arrow.Time64Type:
		most := arrow.Time64(day / t.Unit.Multiplier())
		unfit(d, arrow.GetData[arrow.Time64](b), from, to, bad, func(v arrow.Time64) bool { return v >= 0 && v < most },
			"a time of day is at least 00:00:00 and below 24:00:00; cast the column to duration")
	case *arrow.Decimal32Type:
		unfit(d, arrow.GetData[decimal.Decimal32](b), from, to, bad, fits[decimal.Decimal32](t), tooManyDigits(t))
	case *arrow.Decimal64Type:
		unfit(d, arrow.GetData[decimal.Decimal64](b), from, to, bad, fits[decimal.Decimal64](t), tooManyDigits(t))
	case *arrow.Decimal128Type:
		unfit(d, arrow.GetData[decimal.Decimal128](b), from, to, bad, fits[decimal.Decimal128](t), tooManyDigits(t))
	case *arrow.Decimal256Type:
		unfit(d, arrow.GetData[decimal.Decimal256](b), from, to, bad, fits[decimal.Decimal256](t), tooManyDigits(t))
	default:
		textIn(d, from, to, bad)
	}
}

// fits looks at the sign first: the smallest value has no Abs, and FitsInPrecision takes it for one that fits.
func fits[T interface {
	Abs() T
	Sign() int
	FitsInPrecision(int32) bool
}](t arrow.DecimalType) func(T) bool {
	return func(v T) bool { return v.Abs().Sign() >= 0 && v.FitsInPrecision(t.GetPrecision()) }
}

func tooManyDigits(t arrow.DecimalType) string {
	return fmt.Sprintf("a decimal of more than %d digits; cast the column to one of more", t.GetPrecision())
}

// unfit finds slots [from, to) that are not null and of which ok is false.
func unfit[T any](d arrow.ArrayData, values []T, from, to int64, bad found, ok func(T) bool, why string) {
	for i, v := range values[from:to] {
		if !ok(v) && !isNull(d, from+int64(i)) {
			bad(from+int64(i), func() error { return driver.Errorf(driver.RowError, "%s", why) })
		}
	}
}
