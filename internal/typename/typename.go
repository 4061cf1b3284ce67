// Package typename reads and writes the names that types have in expressions,
// specs and options: "int", "double", "timestamp[ms, UTC]", "list<string>".
//
//	bool  int8 .. int64  uint8 .. uint64  float16  float  double
//	string  large_string  binary  large_binary  fixed_size_binary(n)
//	date  date64  time32[s|ms]  time64[us|ns]  timestamp  timestamp[unit]  timestamp[unit, zone]  duration[unit]
//	decimal(p, s)  decimal256(p, s)  null
//	list<T>  large_list<T>  fixed_size_list<T>(n)  map<K, V>  struct<name: T, ...>
//
// Other spellings: int is int64, float32 is float, float64 is double, boolean is
// bool, str and utf8 are string, bytes is binary, date32 is date, decimal128 is
// decimal. A timestamp without a unit has microseconds, as has a duration. Names
// of struct fields that are not words are quoted as in Go.
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
	"date64": arrow.FixedWidthTypes.Date64,
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
		return nil, fault.New(fault.Invalid, "type %q: %w", name, err)
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
	case "list", "large_list", "fixed_size_list", "map":
		ts, err := p.args(w, depth)
		if err != nil {
			return nil, err
		}
		switch w {
		case "list":
			return arrow.ListOf(ts[0]), nil
		case "large_list":
			return arrow.LargeListOf(ts[0]), nil
		case "map":
			return arrow.MapOf(ts[0], ts[1]), nil
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
	return nil, fmt.Errorf("unknown type %q; common ones are bool, int, int32, double, float, string, binary, date, timestamp, decimal(18, 2), list<int>", w)
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
	if w == "map" {
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

// Name is the inverse of Parse: the shortest name of t, or t.String() where there
// is none (dictionaries, unions, views).
func Name(t arrow.DataType) string {
	switch t := t.(type) {
	case *arrow.Float32Type:
		return "float"
	case *arrow.Float64Type:
		return "double"
	case *arrow.StringType:
		return "string"
	case *arrow.LargeStringType:
		return "large_string"
	case *arrow.Float16Type:
		return "float16"
	case *arrow.Date32Type:
		return "date"
	case *arrow.Date64Type:
		return "date64"
	case *arrow.TimestampType:
		switch {
		case t.TimeZone != "":
			return "timestamp[" + t.Unit.String() + ", " + t.TimeZone + "]"
		case t.Unit != arrow.Microsecond:
			return "timestamp[" + t.Unit.String() + "]"
		}
		return "timestamp"
	case *arrow.DurationType:
		if t.Unit == arrow.Microsecond {
			return "duration"
		}
		return "duration[" + t.Unit.String() + "]"
	case *arrow.Time32Type:
		return "time32[" + t.Unit.String() + "]"
	case *arrow.Time64Type:
		return "time64[" + t.Unit.String() + "]"
	case *arrow.Decimal128Type:
		return fmt.Sprintf("decimal(%d, %d)", t.Precision, t.Scale)
	case *arrow.Decimal256Type:
		return fmt.Sprintf("decimal256(%d, %d)", t.Precision, t.Scale)
	case *arrow.FixedSizeBinaryType:
		return fmt.Sprintf("fixed_size_binary(%d)", t.ByteWidth)
	case *arrow.ListType:
		return "list<" + Name(t.Elem()) + ">"
	case *arrow.LargeListType:
		return "large_list<" + Name(t.Elem()) + ">"
	case *arrow.FixedSizeListType:
		return fmt.Sprintf("fixed_size_list<%s>(%d)", Name(t.Elem()), t.Len())
	case *arrow.MapType:
		return "map<" + Name(t.KeyType()) + ", " + Name(t.ItemType()) + ">"
	case *arrow.StructType:
		var b strings.Builder
		b.WriteString("struct<")
		for i, f := range t.Fields() {
			if i > 0 {
				b.WriteString(", ")
			}
			n := f.Name
			if w := (&parser{rest: n}); n == "" || w.word() != n {
				n = strconv.Quote(n)
			}
			b.WriteString(n + ": " + Name(f.Type))
		}
		return b.String() + ">"
	case *arrow.BooleanType:
		return "bool"
	}
	return t.String()
}
