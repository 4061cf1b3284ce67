// Package typename reads and writes the names that types have in expressions,
// specs, options and messages: "int", "double", "timestamp[ms, UTC]", "list<string>".
// docs/types.md lists them.
package typename

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
)

var simple = map[string]arrow.DataType{
	"null": arrow.Null,
	"bool": arrow.FixedWidthTypes.Boolean, "boolean": arrow.FixedWidthTypes.Boolean,
	"int8": arrow.PrimitiveTypes.Int8, "int16": arrow.PrimitiveTypes.Int16, "int32": arrow.PrimitiveTypes.Int32,
	"int64": arrow.PrimitiveTypes.Int64, "int": arrow.PrimitiveTypes.Int64,
	"uint8": arrow.PrimitiveTypes.Uint8, "uint16": arrow.PrimitiveTypes.Uint16,
	"uint32": arrow.PrimitiveTypes.Uint32, "uint64": arrow.PrimitiveTypes.Uint64,
	"float16": arrow.FixedWidthTypes.Float16,
	"float":   arrow.PrimitiveTypes.Float32, "float32": arrow.PrimitiveTypes.Float32,
	"double": arrow.PrimitiveTypes.Float64, "float64": arrow.PrimitiveTypes.Float64,
	"string": arrow.BinaryTypes.String, "str": arrow.BinaryTypes.String, "utf8": arrow.BinaryTypes.String,
	"large_string": arrow.BinaryTypes.LargeString,
	"binary":       arrow.BinaryTypes.Binary, "bytes": arrow.BinaryTypes.Binary,
	"large_binary": arrow.BinaryTypes.LargeBinary,
	"date":         arrow.FixedWidthTypes.Date32, "date32": arrow.FixedWidthTypes.Date32,
	"date64":         arrow.FixedWidthTypes.Date64,
	"string_view":    arrow.BinaryTypes.StringView,
	"binary_view":    arrow.BinaryTypes.BinaryView,
	"month_interval": arrow.FixedWidthTypes.MonthInterval, "day_time_interval": arrow.FixedWidthTypes.DayTimeInterval,
	"month_day_nano_interval": arrow.FixedWidthTypes.MonthDayNanoInterval,
}

var units = map[string]arrow.TimeUnit{"s": arrow.Second, "ms": arrow.Millisecond, "us": arrow.Microsecond, "ns": arrow.Nanosecond}

const maxDepth = 64

// Parse reads a type name. An Invalid error shows the name and what is wrong
// with it.
func Parse(name string) (arrow.DataType, error) {
	p := parser{rest: name}
	t, err := p.typ(0)
	if err == nil && p.next() != "" {
		err = fmt.Errorf("unexpected %q after the type", p.rest)
	}
	if err != nil {
		return nil, fault.New(fault.Invalid, "type %.200q: %w", name, err)
	}
	return t, nil
}

type parser struct{ rest string }

// next drops white space and returns what is left.
func (p *parser) next() string {
	p.rest = strings.TrimLeft(p.rest, " \t")
	return p.rest
}

func (p *parser) take(c byte) bool {
	if s := p.next(); s != "" && s[0] == c {
		p.rest = s[1:]
		return true
	}
	return false
}

func (p *parser) want(c byte) error {
	if p.take(c) {
		return nil
	}
	if p.rest == "" {
		return fmt.Errorf("%q is missing at the end", c)
	}
	return fmt.Errorf("expected %q before %q", c, p.rest)
}

func (p *parser) word() string {
	s := p.next()
	i := 0
	for i < len(s) && (s[i] == '_' || s[i] >= '0' && s[i] <= '9' || s[i]|0x20 >= 'a' && s[i]|0x20 <= 'z') {
		i++
	}
	p.rest = s[i:]
	return s[:i]
}

func (p *parser) typ(depth int) (arrow.DataType, error) {
	if depth > maxDepth {
		return nil, fmt.Errorf("nested deeper than %d", maxDepth)
	}
	w := p.word()
	if t, ok := simple[w]; ok {
		return t, nil
	}
	switch w {
	case "timestamp", "duration", "time32", "time64":
		return p.temporal(w)
	case "decimal", "decimal128", "decimal256":
		if p.next() == "" {
			return nil, fmt.Errorf("precision and scale are missing; write %s(18, 2)", w)
		}
		ns, err := p.numbers(2)
		if err != nil {
			return nil, err
		}
		max := 38
		if w == "decimal256" {
			max = 76
		}
		if ns[0] < 1 || ns[0] > max || ns[1] < -max || ns[1] > max {
			return nil, fmt.Errorf("precision must be 1 to %d and scale at most that", max)
		}
		if w == "decimal256" {
			return &arrow.Decimal256Type{Precision: int32(ns[0]), Scale: int32(ns[1])}, nil
		}
		return &arrow.Decimal128Type{Precision: int32(ns[0]), Scale: int32(ns[1])}, nil
	case "fixed_size_binary":
		ns, err := p.numbers(1)
		if err != nil {
			return nil, err
		}
		if ns[0] < 1 {
			return nil, fmt.Errorf("width must be at least 1")
		}
		return &arrow.FixedSizeBinaryType{ByteWidth: ns[0]}, nil
	case "list", "large_list", "list_view", "large_list_view", "fixed_size_list", "map", "dictionary", "run_end_encoded":
		ts, err := p.args(w, depth)
		if err != nil {
			return nil, err
		}
		switch w {
		case "list":
			return arrow.ListOf(ts[0]), nil
		case "large_list":
			return arrow.LargeListOf(ts[0]), nil
		case "list_view":
			return arrow.ListViewOf(ts[0]), nil
		case "large_list_view":
			return arrow.LargeListViewOf(ts[0]), nil
		case "map":
			return arrow.MapOf(ts[0], ts[1]), nil
		case "dictionary":
			if !arrow.IsInteger(ts[0].ID()) {
				return nil, fmt.Errorf("the first type of a dictionary, of its indices, must be an integer")
			}
			return &arrow.DictionaryType{IndexType: ts[0], ValueType: ts[1]}, nil
		case "run_end_encoded":
			if id := ts[0].ID(); id != arrow.INT16 && id != arrow.INT32 && id != arrow.INT64 {
				return nil, fmt.Errorf("the first type of run_end_encoded, of its run ends, must be int16, int32 or int64")
			}
			return arrow.RunEndEncodedOf(ts[0], ts[1]), nil
		}
		ns, err := p.numbers(1)
		if err != nil {
			return nil, err
		}
		if ns[0] < 1 {
			return nil, fmt.Errorf("size must be at least 1")
		}
		return arrow.FixedSizeListOf(int32(ns[0]), ts[0]), nil
	case "struct":
		return p.structure(depth)
	case "":
		if p.rest == "" {
			return nil, fmt.Errorf("a type name is missing")
		}
		return nil, fmt.Errorf("expected a type name before %q", p.rest)
	}
	return nil, fmt.Errorf("unknown type %.200q; common ones are bool, int, int32, double, float, string, binary, date, timestamp, decimal(18, 2), list<int>", w)
}

func (p *parser) temporal(w string) (arrow.DataType, error) {
	unit, zone := arrow.Microsecond, ""
	if p.take('[') {
		u, ok := units[p.word()]
		if !ok {
			return nil, fmt.Errorf("unit of %s must be s, ms, us or ns", w)
		}
		unit = u
		if w == "timestamp" && p.take(',') {
			s := p.next()
			zone = strings.TrimRight(s[:max(strings.IndexByte(s, ']'), 0)], " \t")
			zone = strings.TrimPrefix(zone, "tz=") // as Arrow prints it
			p.rest = s[max(strings.IndexByte(s, ']'), 0):]
			if zone == "" {
				return nil, fmt.Errorf("time zone is missing")
			}
			if err := checkZone(zone); err != nil {
				return nil, err
			}
		}
		if err := p.want(']'); err != nil {
			return nil, err
		}
	} else if w == "time32" || w == "time64" {
		return nil, fmt.Errorf("unit is missing; write time32[ms] or time64[us]")
	}
	switch w {
	case "duration":
		return &arrow.DurationType{Unit: unit}, nil
	case "time32":
		if unit != arrow.Second && unit != arrow.Millisecond {
			return nil, fmt.Errorf("unit of time32 must be s or ms")
		}
		return &arrow.Time32Type{Unit: unit}, nil
	case "time64":
		if unit != arrow.Microsecond && unit != arrow.Nanosecond {
			return nil, fmt.Errorf("unit of time64 must be us or ns")
		}
		return &arrow.Time64Type{Unit: unit}, nil
	}
	return &arrow.TimestampType{Unit: unit, TimeZone: zone}, nil
}

// checkZone takes what Arrow takes: a name of the time zone database, or +hh:mm.
func checkZone(z string) error {
	if _, err := time.Parse("-07:00", z); err == nil {
		return nil
	}
	if _, err := time.LoadLocation(z); err != nil || z == "Local" {
		return fmt.Errorf("unknown time zone %q", z)
	}
	return nil
}

func (p *parser) numbers(n int) ([]int, error) {
	if err := p.want('('); err != nil {
		return nil, err
	}
	ns := make([]int, n)
	for i := range ns {
		if i > 0 {
			if err := p.want(','); err != nil {
				return nil, err
			}
		}
		minus := p.take('-')
		w := p.word()
		v, err := strconv.ParseInt(w, 10, 32)
		if err != nil {
			return nil, fmt.Errorf("expected a number, have %q", w+p.rest)
		}
		if minus {
			v = -v
		}
		ns[i] = int(v)
	}
	return ns, p.want(')')
}

func (p *parser) args(w string, depth int) ([]arrow.DataType, error) {
	n := 1
	switch w {
	case "map", "dictionary", "run_end_encoded":
		n = 2
	}
	if err := p.want('<'); err != nil {
		return nil, err
	}
	ts := make([]arrow.DataType, n)
	for i := range ts {
		if i > 0 {
			if err := p.want(','); err != nil {
				return nil, err
			}
		}
		t, err := p.typ(depth + 1)
		if err != nil {
			return nil, err
		}
		ts[i] = t
	}
	return ts, p.want('>')
}

func (p *parser) structure(depth int) (arrow.DataType, error) {
	if err := p.want('<'); err != nil {
		return nil, err
	}
	var fs []arrow.Field
	for !p.take('>') {
		if len(fs) > 0 {
			if err := p.want(','); err != nil {
				return nil, err
			}
		}
		var name string
		if s := p.next(); strings.HasPrefix(s, `"`) {
			q, err := strconv.QuotedPrefix(s)
			if err != nil {
				return nil, fmt.Errorf("field name: %w", err)
			}
			if name, err = strconv.Unquote(q); err != nil {
				return nil, fmt.Errorf("field name: %w", err)
			}
			p.rest = s[len(q):]
		} else if name = p.word(); name == "" {
			return nil, fmt.Errorf("expected a field name before %q", p.rest)
		}
		if err := p.want(':'); err != nil {
			return nil, err
		}
		t, err := p.typ(depth + 1)
		if err != nil {
			return nil, err
		}
		fs = append(fs, arrow.Field{Name: name, Type: t, Nullable: true})
	}
	return arrow.StructOf(fs...), nil
}
