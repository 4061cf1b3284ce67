package fileset

import (
	"errors"
	"fmt"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/textvalue"
)

// errNot adds nothing to "x is no int64".
var errNot = errors.New("")

// newParser makes a function that reads a text, without white space around it, as a value of t; nil if
// there is no way. Its errors are what follows "x is no int64" in a sentence. Not safe for concurrent
// use.
func newParser(t arrow.DataType) func(b []byte) (value, error) {
	bits := 64
	if f, ok := t.(arrow.FixedWidthDataType); ok {
		bits = f.BitWidth()
	}
	is := func(v any, ok bool) (value, error) {
		if !ok {
			return value{}, errNot
		}
		return value{v}, nil
	}
	because := func(v any, err error) (value, error) {
		if err != nil {
			return value{}, fmt.Errorf(": %w", err)
		}
		return value{v}, nil
	}
	switch t := t.(type) {
	case *arrow.Int8Type, *arrow.Int16Type, *arrow.Int32Type, *arrow.Int64Type:
		return func(b []byte) (value, error) {
			n, ok := textvalue.GivenInt(b)
			return is(n, ok && n>>(bits-1) == n>>63)
		}
	case *arrow.Uint8Type, *arrow.Uint16Type, *arrow.Uint32Type, *arrow.Uint64Type:
		return func(b []byte) (value, error) {
			n, ok := textvalue.GivenUint(b)
			return is(n, ok && (bits == 64 || n>>bits == 0))
		}
	case *arrow.Float32Type, *arrow.Float64Type:
		return func(b []byte) (value, error) {
			f, ok := textvalue.Float(b, bits)
			return is(f, ok)
		}
	case *arrow.BooleanType:
		return func(b []byte) (value, error) {
			v, ok := textvalue.GivenBool(b)
			return is(v, ok)
		}
	case *arrow.Date32Type:
		return func(b []byte) (value, error) {
			d, err := textvalue.Date(b)
			return because(d, err)
		}
	case *arrow.Date64Type:
		return func(b []byte) (value, error) {
			d, err := textvalue.Date(b)
			return because(d*86_400_000, err)
		}
	case *arrow.Time32Type, *arrow.Time64Type:
		unit := t.(arrow.TemporalWithUnit).TimeUnit()
		return func(b []byte) (value, error) {
			v, err := textvalue.Clock(b, unit)
			return because(v, err)
		}
	case *arrow.TimestampType:
		s, err := textvalue.NewStamps(t, nil, false)
		if err != nil {
			return nil
		}
		return func(b []byte) (value, error) {
			v, err := s.Read(b)
			return because(v, err)
		}
	case *arrow.Decimal128Type:
		return func(b []byte) (value, error) {
			n, ok := textvalue.Decimal(b, int(t.Precision), int(t.Scale))
			return is(n, ok)
		}
	}
	return nil
}
