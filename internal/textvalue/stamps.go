package textvalue

import (
	"errors"
	"math"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
)

// Why a text does not fit a column whose type was found from a sample.
var (
	ErrOffset   = errors.New("it has an offset from UTC, and those before it have none")
	ErrNoOffset = errors.New("it has no offset from UTC, and those before it have one")
	ErrPadded   = errors.New("it has a leading zero or +, and those before it have none")
)

// Stamps reads timestamps of one type. An offset in the text is applied, for a type without a zone
// too. Text without one is on the clock of the type's zone (see Local), which is UTC where there is
// none. Not safe for concurrent use.
type Stamps struct {
	unit   arrow.TimeUnit
	format *Format
	zone   zone
	exact  bool // the texts have an offset, or have none, as the type has a zone or not
	zoned  bool
}

// NewStamps is Invalid for a zone that is not known. guessed says that the type is one of a Guess:
// a text with an offset is an error then where the type has no zone, and one without where it has.
func NewStamps(t *arrow.TimestampType, f *Format, guessed bool) (*Stamps, error) {
	s := &Stamps{unit: t.Unit, format: f, exact: guessed, zoned: t.TimeZone != ""}
	if s.zoned && t.TimeZone != "UTC" {
		loc, err := t.GetZone()
		if err != nil {
			return nil, err
		}
		s.zone.loc = loc
	}
	return s, nil
}

// Read gives units since 1970.
func (s *Stamps) Read(b []byte) (int64, error) {
	t, err := s.format.parseStamp(b)
	if err != nil {
		return 0, err
	}
	if s.exact && t.zoned != s.zoned {
		if t.zoned {
			return 0, ErrOffset
		}
		return 0, ErrNoOffset
	}
	if !t.zoned && s.zone.loc != nil {
		t.secs = s.zone.utc(t.secs)
	}
	return t.in(s.unit)
}

// ReadClock gives what a timestamp says without regard to a type: the seconds since 1970 on the
// clock that it is of, and whether it has an offset from UTC, which is taken off.
func ReadClock(b []byte) (secs int64, zoned bool, err error) {
	t, ok := parseStamp(b)
	if !ok {
		return 0, false, ErrStamp
	}
	return t.secs, t.zoned, nil
}

// zone is a time zone with the time around the last one that was asked for.
type zone struct {
	loc      *time.Location
	from, to int64 // on the clock of the zone: it is off from UTC there
	off      int64
}

func (z *zone) utc(sec int64) int64 {
	if sec >= z.from && sec < z.to {
		return sec - z.off
	}
	utc := Local(sec, z.loc)
	at := time.Unix(utc, 0).In(z.loc)
	if _, off := at.Zone(); sec-utc != int64(off) { // the clock never shows it
		return utc
	}
	begin, end := at.ZoneBounds()
	z.off, z.from, z.to = sec-utc, math.MinInt64, math.MaxInt64
	if !begin.IsZero() {
		z.from = begin.Unix() + z.off + day
	}
	if !end.IsZero() {
		z.to = end.Unix() + z.off - day
	}
	return utc
}

// day is longer than any zone is off from UTC.
const day = 86400

// Local gives the seconds since 1970 at which a clock in the zone shows sec, seconds since 1970 on
// that clock. What a clock shows twice, when summer time ends, is the second time. What it never
// shows, when summer time begins, is as if it had not: 02:30 is 03:30.
func Local(sec int64, loc *time.Location) int64 {
	off := func(utc int64) int64 {
		_, n := time.Unix(utc, 0).In(loc).Zone()
		return int64(n)
	}
	before, after := off(sec-day), off(sec+day)
	if utc := sec - after; off(utc) == after {
		return utc
	}
	return sec - before
}
