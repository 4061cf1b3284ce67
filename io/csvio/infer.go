package csvio

import (
	"bytes"
	"context"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
)

// kinds are the types that a text may be read as.
type kinds uint8

const (
	isInt kinds = 1 << iota
	isFloat
	isBool
	isDate
	isTime
	isAny = isInt | isFloat | isBool | isDate | isTime
)

// guess is what the fields of one column have in common.
type guess struct {
	can         kinds
	some        bool // a value that is not null
	fraction    bool // a number that is not written as an integer
	big         bool // an integer beyond int64
	zoned, bare bool // timestamps with and without a zone
	nano        bool
	bytes, rows int64
}

// classify says what a field's text, without white space around it, may be.
func (g *guess) add(b []byte) {
	g.some = true
	if g.can == 0 {
		return
	}
	var k kinds
	switch c := b[0]; {
	case c >= '0' && c <= '9', c == '-', c == '+', c == '.':
		if _, ok := parseInt(b); ok {
			k = isInt | isFloat
		} else if _, ok := parseFloat(b, 64); ok {
			k = isFloat
			if allDigits(b) {
				g.big = true
			} else {
				g.fraction = true
			}
		} else if _, ok := parseDate(b); ok {
			k = isDate | isTime
			g.bare = true
		} else if t, ok := parseTime(b); ok && t.fits(arrow.Microsecond) {
			k = isTime
			g.zoned = g.zoned || t.zoned
			g.bare = g.bare || !t.zoned
			g.nano = g.nano || t.nanos%1000 != 0
		}
	default:
		if _, ok := parseBool(b); ok {
			k = isBool
		} else if _, ok := parseFloat(b, 64); ok { // nan, inf
			k = isFloat
		}
	}
	g.can &= k
}

// allDigits reports an integer.
func allDigits(b []byte) bool {
	if b[0] == '-' || b[0] == '+' {
		b = b[1:]
	}
	for _, c := range b {
		if c < '0' || c > '9' {
			return false
		}
	}
	return true
}

func (g *guess) merge(o *guess) {
	g.can &= o.can
	g.some = g.some || o.some
	g.fraction = g.fraction || o.fraction
	g.big = g.big || o.big
	g.zoned = g.zoned || o.zoned
	g.bare = g.bare || o.bare
	g.nano = g.nano || o.nano
	g.bytes += o.bytes
	g.rows += o.rows
}

func (g *guess) typ() arrow.DataType {
	switch {
	case !g.some:
	case g.can&isInt != 0:
		return arrow.PrimitiveTypes.Int64
	case g.can&isFloat != 0 && (g.fraction || !g.big): // else digits would be lost
		return arrow.PrimitiveTypes.Float64
	case g.can&isBool != 0:
		return arrow.FixedWidthTypes.Boolean
	case g.can&isDate != 0:
		return arrow.FixedWidthTypes.Date32
	case g.can&isTime != 0 && !(g.zoned && g.bare):
		t := &arrow.TimestampType{Unit: arrow.Microsecond}
		if g.nano {
			t.Unit = arrow.Nanosecond
		}
		if g.zoned {
			t.TimeZone = "UTC"
		}
		return t
	}
	return arrow.BinaryTypes.String
}

// width is the mean length of the text.
func (g *guess) width() float64 { return float64(g.bytes) / float64(max(g.rows, 1)) }

// sample looks at the first bytes of a file. Records that do not parse are left
// for the scan to report.
func (t *table) sample(ctx context.Context, file int, limit int64) (*head, []*guess, error) {
	b, err := t.begin(ctx, file, limit)
	if err != nil {
		return nil, nil, err
	}
	defer b.close()
	h, data := b.head, b.data
	gs := make([]*guess, len(h.names))
	want := make([]bool, len(gs))
	for i := range gs {
		gs[i] = &guess{can: isAny}
		want[i] = true
	}
	if len(data) == 0 || len(gs) == 0 {
		return h, gs, nil
	}
	tok := tokenizer{dialect: t.dialect(t.set.Files[file].Info.Key), missing: true}
	tok.setWant(want, nil, int64(len(want))*8)
	tok.look(data)
	// A field that is there has a byte. Short rows of many columns would cost what is not in the
	// sample.
	left := 4*len(data) + 1<<20
	for pos := 0; pos < len(data) && left > 0; {
		if err := ctx.Err(); err != nil {
			return nil, nil, fault.WithCode(fault.Canceled, context.Cause(ctx))
		}
		next, more := tok.scan(data, pos, 4096, 4<<20, b.whole)
		if more {
			break
		}
		pos = next
		left -= tok.rows * len(gs)
		for r := 0; r < tok.rows; r++ {
			for c, g := range gs {
				f := tok.fields[r*len(gs)+c]
				if f == missing {
					continue
				}
				b := f.of(data)
				g.rows++
				g.bytes += int64(len(b))
				if t.nullWord(b, f, false) {
					continue
				}
				if b = bytes.TrimSpace(b); len(b) > 0 { // else null in anything but text
					g.add(b)
				}
			}
		}
	}
	return h, gs, nil
}

// nullWord reports whether a field means null; text says that its column is text.
func (r *rules) nullWord(b []byte, f field, text bool) bool {
	if f == missing || len(b) == 0 && (!text || !r.given && f&quoted == 0) {
		return true
	}
	if f&quoted != 0 || text && !r.given {
		return false
	}
	for _, w := range r.nulls {
		if string(b) == w {
			return true
		}
	}
	return false
}
