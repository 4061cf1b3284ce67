package driver

import (
	"fmt"
	"strconv"
	"strings"
)

// Op is a comparison of a column with literals.
type Op uint8

const (
	Eq Op = iota
	Ne
	Lt
	Le
	Gt
	Ge
	In
	IsNull
	NotNull
)

var opNames = [...]string{"==", "!=", "<", "<=", ">", ">=", "in", "is null", "is not null"}

func (o Op) String() string { return opNames[o] }

// Predicate is a conjunction: a row may be left out if any Term is not true for
// it (false or null). nil is always true.
type Predicate []Term

// Term compares a top-level column with literals. Except for IsNull, a null in
// the column makes it not true. Floats compare as IEEE: with NaN only Ne is true.
type Term struct {
	Column string
	Op     Op
	// Values holds one literal (In: any number; IsNull, NotNull: none), in the
	// domain of the column's type: bool, int64, uint64, float64, string (string and
	// binary types); int64 for dates, times and timestamps, in the column's own
	// unit. An integer column may meet a float64 where the literal is no integer.
	Values []any
}

func (t Term) String() string {
	column := t.Column
	if q := strconv.Quote(column); q[1:len(q)-1] != column || column == "" {
		column = q // it would not show as it is
	}
	switch t.Op {
	case IsNull, NotNull:
		return column + " " + t.Op.String()
	case In:
		vs := make([]string, len(t.Values))
		for i, v := range t.Values {
			vs[i] = lit(v)
		}
		return column + " in [" + strings.Join(vs, ", ") + "]"
	}
	return column + " " + t.Op.String() + " " + lit(t.Values[0])
}

func lit(v any) string {
	if s, ok := v.(string); ok {
		return fmt.Sprintf("%q", s)
	}
	return fmt.Sprint(v)
}

func (p Predicate) String() string {
	ts := make([]string, len(p))
	for i, t := range p {
		ts[i] = t.String()
	}
	return strings.Join(ts, " && ")
}
