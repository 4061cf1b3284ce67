package fileset

import (
	"fmt"
	"math"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/textvalue"
	"github.com/penstock-data/penstock/internal/typename"
)

// castTime converts dates, times of day, timestamps and durations to others of their kind, and dates
// and timestamps to each other: a date is its midnight on the clock of the timestamp's zone. Between a
// zone and none a time of the clock stays what it is (see textvalue.Local).
func castTime(from, to when) *caster {
	zf, zt := zoneOf(from.typ), zoneOf(to.typ)
	switch {
	case from.kind == to.kind && (zf == "") == (zt == ""):
		return scaled(from, to)
	case from.kind == stamp && to.kind == stamp && zf == "":
		there := &arrow.TimestampType{Unit: from.typ.(*arrow.TimestampType).Unit, TimeZone: zt}
		return zoned(from, there, zt, func(sec int64, loc *time.Location) int64 { return textvalue.Local(sec, loc) - sec }).then(castTo(there, to.typ))
	case from.kind == stamp && zf != "" && (to.kind == stamp || to.kind == date):
		there := &arrow.TimestampType{Unit: from.typ.(*arrow.TimestampType).Unit}
		return zoned(from, there, zf, func(sec int64, loc *time.Location) int64 {
			_, off := time.Unix(sec, 0).In(loc).Zone()
			return int64(off)
		}).then(castTo(there, to.typ))
	case from.kind == date && to.kind == stamp && zt != "":
		there := &arrow.TimestampType{Unit: arrow.Second}
		return scaled(from, timeOf(there)).then(castTo(there, to.typ))
	case from.kind == date && to.kind == stamp:
		return scaled(from, to)
	case from.kind == stamp && to.typ.ID() == arrow.DATE64:
		return scaled(from, timeOf(arrow.FixedWidthTypes.Date32)).then(castTo(arrow.FixedWidthTypes.Date32, to.typ))
	case from.kind == stamp && to.kind == date:
		return scaled(from, to)
	}
	return nil
}

// scaled changes the unit.
func scaled(from, to when) *caster {
	f32, t32 := narrowTime(from.typ), narrowTime(to.typ)
	switch {
	case f32 && t32:
		return scaledAs[int32, int32](from, to)
	case f32:
		return scaledAs[int32, int64](from, to)
	case t32:
		return scaledAs[int64, int32](from, to)
	}
	return scaledAs[int64, int64](from, to)
}

func narrowTime(t arrow.DataType) bool { return t.(arrow.FixedWidthDataType).BitWidth() == 32 }

func scaledAs[A, B int32 | int64](from, to when) *caster {
	why := func(v A) string {
		if from.unit >= to.unit {
			return fmt.Sprintf("%s is out of the range of %s", timeText(int64(v), from), typename.Name(to.typ))
		}
		return fmt.Sprintf("%s is more precise than %s, or out of its range", timeText(int64(v), from), typename.Name(to.typ))
	}
	if from.unit >= to.unit {
		by := from.unit / to.unit
		return mapped(to.typ, true, func(v A) (B, bool) {
			w := int64(v) * by
			return B(w), w/by == int64(v) && int64(B(w)) == w
		}, why)
	}
	by := to.unit / from.unit
	return mapped(to.typ, true, func(v A) (B, bool) {
		w := int64(v) / by
		return B(w), w*by == int64(v) && int64(B(w)) == w
	}, why)
}

// timeText is v in units of a type, for errors.
func timeText(v int64, t when) string {
	per := int64(time.Second) / max(t.unit, 1)
	switch {
	case t.kind == date && t.typ.ID() == arrow.DATE32:
		return time.Unix(v*86400, 0).UTC().Format(time.DateOnly)
	case t.kind == date || t.kind == stamp:
		return time.Unix(v/per, v%per*t.unit).UTC().Format("2006-01-02T15:04:05.999999999")
	}
	return fmt.Sprintf("%d %v", v, t.typ.(arrow.TemporalWithUnit).TimeUnit())
}

// zoned shifts timestamps by what shift says of their seconds.
func zoned(from when, to *arrow.TimestampType, zone string, shift func(sec int64, loc *time.Location) int64) *caster {
	loc, err := (&arrow.TimestampType{TimeZone: zone}).GetZone()
	if err != nil {
		return nil
	}
	per := int64(time.Second) / from.unit
	return mapped(to, true, func(v int64) (int64, bool) {
		sec := v / per
		if v%per < 0 {
			sec--
		}
		by := shift(sec, loc) * per
		return v + by, !(by > 0 && v > math.MaxInt64-by) && !(by < 0 && v < math.MinInt64-by)
	}, func(v int64) string {
		return fmt.Sprintf("%s is out of the range of %s", timeText(v, from), typename.Name(to))
	})
}
