package textvalue

import "github.com/apache/arrow-go/v18/arrow"

// kinds are the types that a text may be read as.
type kinds uint8

const (
	isInt kinds = 1 << iota
	isUint
	isFloat
	isBool
	isDate
	isStamp
	isAny = isInt | isUint | isFloat | isBool | isDate | isStamp
)

// Guess is what texts have in common. The zero Guess has seen none.
type Guess struct {
	Format *Format // how they are written

	not         kinds
	some        bool
	fraction    bool // a number that is not written as an integer
	big         bool // an integer beyond int64
	zoned, bare bool // timestamps with and without an offset
	nano        bool // a timestamp that microseconds do not hold
	far         bool // one that nanoseconds do not hold
	buf         []byte
}

// Add looks at a text. An empty one is like no other type's.
func (g *Guess) Add(b []byte) {
	g.some = true
	if len(b) == 0 {
		g.not = isAny
	}
	if g.not == isAny {
		return
	}
	k := g.number(g.Format.Plain(b, &g.buf))
	if k&isInt == 0 || g.Format.layouts() {
		k |= g.time(b)
	}
	g.not |= isAny &^ k
}

// number is what a text may be as a number or bool.
func (g *Guess) number(b []byte) kinds {
	if Padded(b) {
		return 0
	}
	if _, ok := Bool(b); ok {
		return isBool
	}
	if v, ok := Int(b); ok {
		if v < 0 {
			return isInt | isFloat
		}
		return isInt | isUint | isFloat
	}
	if _, ok := Float(b, 64); !ok {
		return 0
	}
	k := isFloat
	switch {
	case whole(b):
		g.big = true
		if _, ok := Uint(b); ok {
			k |= isUint
		}
	case b[0] == '-' && whole(b[1:]):
		g.big = true
	case b[len(b)-1]|0x20 >= 'a' && b[len(b)-1]|0x20 <= 'z': // nan, inf
	default:
		g.fraction = true
	}
	return k
}

// time is what a text may be as a date or timestamp.
func (g *Guess) time(b []byte) kinds {
	k, t := g.Format.times(b)
	if k&isStamp != 0 {
		_, err := t.in(arrow.Nanosecond)
		g.far = g.far || err != nil
		g.nano = g.nano || t.nanos%1000 != 0
		g.zoned = g.zoned || t.zoned
		g.bare = g.bare || !t.zoned
	}
	return k
}

// Merge adds what another has seen.
func (g *Guess) Merge(o *Guess) {
	g.not |= o.not
	g.some = g.some || o.some
	g.fraction = g.fraction || o.fraction
	g.big = g.big || o.big
	g.zoned = g.zoned || o.zoned
	g.bare = g.bare || o.bare
	g.nano = g.nano || o.nano
	g.far = g.far || o.far
}

// Type is that of the texts; string where they have none in common, or there were none. Integers
// are uint64 where int64 does not hold them, and text where neither does, as float would lose digits.
// So are those that one of is Padded, and timestamps of which some have an offset and some have none.
func (g *Guess) Type() arrow.DataType {
	can := isAny &^ g.not
	if g.Format.layouts() && g.TimeType() != nil { // which may be of digits alone
		return g.TimeType()
	}
	switch {
	case !g.some:
	case can&isInt != 0:
		return arrow.PrimitiveTypes.Int64
	case can&isUint != 0:
		return arrow.PrimitiveTypes.Uint64
	case can&isFloat != 0 && (g.fraction || !g.big):
		return arrow.PrimitiveTypes.Float64
	case can&isBool != 0:
		return arrow.FixedWidthTypes.Boolean
	}
	if t := g.TimeType(); t != nil {
		return t
	}
	return arrow.BinaryTypes.String
}

// TimeType is Type of texts that are known to be no numbers: a date, a timestamp or nil.
func (g *Guess) TimeType() arrow.DataType {
	can := isAny &^ g.not
	switch {
	case !g.some:
	case can&isDate != 0:
		return arrow.FixedWidthTypes.Date32
	case can&isStamp != 0 && !(g.zoned && g.bare) && !(g.nano && g.far):
		t := &arrow.TimestampType{Unit: arrow.Microsecond}
		if g.nano {
			t.Unit = arrow.Nanosecond
		}
		if g.zoned {
			t.TimeZone = "UTC"
		}
		return t
	}
	return nil
}
