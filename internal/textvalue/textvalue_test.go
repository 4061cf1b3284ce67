package textvalue

import (
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
)

func TestGuess(t *testing.T) {
	for _, c := range []struct{ texts, want string }{
		{"", "utf8"},
		{"1 -2 0", "int64"},
		{"1 2.5", "float64"},
		{"1 nan", "float64"},
		{"true FALSE", "bool"},
		{"true 1", "utf8"},
		{"9223372036854775807 -9223372036854775808", "int64"},
		{"1 9223372036854775808", "uint64"},
		{"18446744073709551615", "uint64"},
		{"18446744073709551616", "utf8"},
		{"-1 9223372036854775808", "utf8"},
		{"-9223372036854775809", "utf8"},
		{"-9223372036854775809 0.5", "float64"},
		{"0.5 -9223372036854775809", "float64"},
		{"nan 9223372036854775808", "utf8"},
		// What looks like a number and is a name.
		{"1 007", "utf8"}, {"00", "utf8"}, {"0 10", "int64"}, {"+4930", "utf8"}, {"1 +1", "utf8"}, {"-07", "utf8"},
		{"0.5 007", "utf8"}, {"+0.5 -00.5", "float64"}, {"+", "utf8"}, {"00000000000000000000000000000", "utf8"},
		{"2024-01-01 2024-02-29", "date32"},
		{"2024-02-30", "utf8"},
		{"2024-01-01 2024-01-01T00:00", "timestamp[us]"},
		{"2024-01-01T00:00:00Z 2024-01-01T00:00:00+02:00", "timestamp[us, tz=UTC]"},
		{"2024-01-01T00:00:00Z 2024-01-01T00:00:00", "utf8"},
		{"2024-01-01T00:00:00.123456789", "timestamp[ns]"},
		{"9999-01-01T00:00:00", "timestamp[us]"},
		{"9999-01-01T00:00:00 2024-01-01T00:00:00.123456789", "utf8"},
		{"12:00:00", "utf8"},
	} {
		texts := strings.Fields(c.texts)
		var g, m Guess
		for _, s := range texts {
			g.Add([]byte(s))
			var one Guess
			one.Add([]byte(s))
			m.Merge(&one)
		}
		if got := g.Type().String(); got != c.want || m.Type().String() != c.want {
			t.Errorf("%s: %s, merged %s; want %s", c.texts, got, m.Type(), c.want)
		}
	}
}

func TestTrim(t *testing.T) {
	for in, want := range map[string]string{"": "", "1": "1", " 1\t": "1", "\u00a01\u3000": "1", "\u2009-1": "-1", " \u00a0": "", "caf\xe9": "caf\xe9", "\ufeff1": "\ufeff1", "\x7f": "\x7f"} {
		if got := string(Trim([]byte(in))); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestStamps(t *testing.T) {
	for _, c := range []struct {
		unit       arrow.TimeUnit
		zone       string
		guessed    bool
		text, want string // an instant, or an error
	}{
		{arrow.Microsecond, "Europe/Berlin", false, "2024-01-01 00:00:00", "2023-12-31T23:00:00Z"},
		{arrow.Microsecond, "Europe/Berlin", false, "2024-07-01", "2024-06-30T22:00:00Z"},
		{arrow.Microsecond, "Europe/Berlin", false, "2024-01-01T00:00:00+05:00", "2023-12-31T19:00:00Z"},
		{arrow.Microsecond, "Europe/Berlin", false, "2024-03-31T01:59:59.5", "2024-03-31T00:59:59.5Z"},
		{arrow.Microsecond, "Europe/Berlin", false, "2024-03-31T02:30:00", "2024-03-31T01:30:00Z"}, // a gap: as 03:30
		{arrow.Microsecond, "Europe/Berlin", false, "2024-03-31T03:30:00", "2024-03-31T01:30:00Z"},
		{arrow.Microsecond, "Europe/Berlin", false, "2024-10-27T01:59:59", "2024-10-26T23:59:59Z"},
		{arrow.Microsecond, "Europe/Berlin", false, "2024-10-27T02:30:00", "2024-10-27T01:30:00Z"}, // a fold: the second
		{arrow.Microsecond, "America/New_York", false, "2024-03-10T02:30:00", "2024-03-10T07:30:00Z"},
		{arrow.Microsecond, "America/New_York", false, "2024-11-03T01:30:00", "2024-11-03T06:30:00Z"},
		{arrow.Microsecond, "America/New_York", false, "2024-11-03T00:59:59", "2024-11-03T04:59:59Z"},
		{arrow.Microsecond, "Pacific/Apia", false, "2011-12-30T12:00:00", "2011-12-30T22:00:00Z"}, // a day that never was
		{arrow.Microsecond, "Pacific/Apia", false, "2011-12-31T00:00:00", "2011-12-30T10:00:00Z"},
		{arrow.Second, "Asia/Kolkata", false, "0000-01-01", "-0001-12-31T18:06:32Z"},
		{arrow.Microsecond, "", false, "2024-01-01T00:00:00+02:00", "2023-12-31T22:00:00Z"},
		{arrow.Microsecond, "", true, "2024-01-01T00:00:00+02:00", ErrOffset.Error()},
		{arrow.Microsecond, "", true, "2024-01-01T00:00:00Z", ErrOffset.Error()},
		{arrow.Microsecond, "UTC", true, "2024-01-01T00:00:00", ErrNoOffset.Error()},
		{arrow.Microsecond, "UTC", true, "2024-01-01", ErrNoOffset.Error()},
		{arrow.Microsecond, "UTC", false, "2024-01-01", "2024-01-01T00:00:00Z"},
		{arrow.Millisecond, "", true, "2024-01-01T00:00:00.0001", ErrFine.Error()},
		{arrow.Nanosecond, "", true, "2262-04-11T23:47:16.854775807", "2262-04-11T23:47:16.854775807Z"},
		{arrow.Nanosecond, "", true, "2262-04-11T23:47:16.854775808", ErrRange.Error()},
		{arrow.Nanosecond, "", true, "1677-09-21T00:12:43.145224192", "1677-09-21T00:12:43.145224192Z"},
		{arrow.Nanosecond, "", true, "1677-09-21T00:12:43.145224191", ErrRange.Error()},
		{arrow.Nanosecond, "", true, "1969-12-31T23:59:59.999999999", "1969-12-31T23:59:59.999999999Z"},
		{arrow.Second, "", true, "1969-13-01", ErrStamp.Error()},
		{arrow.Second, "", true, "2024-01-01T00:00:00+24:00", ErrStamp.Error()},
	} {
		s, err := NewStamps(&arrow.TimestampType{Unit: c.unit, TimeZone: c.zone}, nil, c.guessed)
		if err != nil {
			t.Fatal(err)
		}
		for range 2 { // the second time from what the first one found
			v, err := s.Read([]byte(c.text))
			got := ""
			if err != nil {
				got = err.Error()
			} else {
				got = arrow.Timestamp(v).ToTime(c.unit).UTC().Format(time.RFC3339Nano)
			}
			if got != c.want {
				t.Errorf("%s in %q: %s, want %s", c.text, c.zone, got, c.want)
			}
		}
	}
	if _, err := NewStamps(&arrow.TimestampType{TimeZone: "Europe/Nowhere"}, nil, false); err == nil {
		t.Error("an unknown zone is taken")
	}
}

// The time around the last one changes nothing, and where the clock is not moved Local is what time.Date says.
func TestZoneRemembers(t *testing.T) {
	for _, name := range []string{"Europe/Berlin", "America/New_York", "Australia/Lord_Howe", "Africa/Casablanca", "Pacific/Kiritimati", "Asia/Tehran"} {
		loc, err := time.LoadLocation(name)
		if err != nil {
			t.Fatal(err)
		}
		z := zone{loc: loc}
		for sec := int64(-3e9); sec < 6e9; sec += 7*86400 + 1799 {
			want := Local(sec, loc)
			if got := z.utc(sec); got != want {
				t.Fatalf("%s at %d: %d, want %d", name, sec, got, want)
			}
			shown := time.Unix(want, 0).In(loc)
			_, off := shown.Zone()
			u := time.Unix(sec, 0).UTC()
			if d := time.Date(u.Year(), u.Month(), u.Day(), u.Hour(), u.Minute(), u.Second(), 0, loc).Unix(); d != want && want+int64(off) == sec && d > want {
				t.Fatalf("%s at %v: %v is not the last", name, u, shown)
			}
		}
	}
}

func TestNoAllocations(t *testing.T) {
	loc, _ := time.LoadLocation("Europe/Berlin")
	s := &Stamps{unit: arrow.Microsecond, zone: zone{loc: loc}}
	texts := [][]byte{[]byte("2024-05-01T12:00:00.5"), []byte("2024-11-01T12:00:00Z"), []byte("2024-11-01"), []byte("text")}
	n := testing.AllocsPerRun(10, func() {
		var g Guess
		for _, b := range texts {
			s.Read(b)
			Date(b)
			Float(b[:4], 64)
			g.Add(b)
		}
	})
	if n > 0 {
		t.Errorf("%v allocations", n)
	}
}

// FuzzGuess: a text parses as the type that was found for it, and numbers and times are what the
// standard library makes of them.
func FuzzGuess(f *testing.F) {
	for _, s := range []string{"1", "-0.5e3", "true", "2024-02-30", "2024-01-01T23:59:59.999999999+23:59", "nan", "0000-01-01", "9223372036854775808", "+1", "007"} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if b = Trim(b); len(b) == 0 || len(b) > 1000 {
			return
		}
		var g Guess
		g.Add(b)
		ok := true
		switch x := g.Type().(type) {
		case *arrow.Int64Type:
			var v int64
			v, ok = Int(b)
			if std, err := strconv.ParseInt(string(b), 10, 64); err != nil || std != v || Padded(b) {
				t.Fatalf("%q: %d, %d, %v", b, v, std, err)
			}
		case *arrow.Uint64Type:
			_, ok = Uint(b)
		case *arrow.Float64Type:
			var v float64
			v, ok = Float(b, 64)
			if std, err := strconv.ParseFloat(string(b), 64); err != nil || math.Float64bits(std) != math.Float64bits(v) && !math.IsNaN(v) {
				t.Fatalf("%q: %v, %v, %v", b, v, std, err)
			}
		case *arrow.BooleanType:
			_, ok = Bool(b)
		case *arrow.Date32Type:
			v, err := Date(b)
			if std, e := time.Parse("2006-01-02", string(b)); err != nil || e != nil || std.Unix() != v*86400 {
				t.Fatalf("%q: %d, %v, %v", b, v, err, e)
			}
		case *arrow.TimestampType:
			s, err := NewStamps(x, nil, true)
			if err != nil {
				t.Fatal(err)
			}
			v, err := s.Read(b)
			ok = err == nil
			if std, e := time.Parse(time.RFC3339Nano, string(b)); e == nil && !std.Equal(arrow.Timestamp(v).ToTime(x.Unit)) {
				t.Fatalf("%q: %d, want %v", b, v, std)
			}
		}
		if !ok {
			t.Fatalf("%q does not parse as %v", b, g.Type())
		}
		for u := arrow.Second; u <= arrow.Nanosecond; u++ {
			Clock(b, u)
		}
		Decimal(b, 38, 5)
	})
}
