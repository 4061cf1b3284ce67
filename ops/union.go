package ops

import (
	"fmt"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/ops/expr"
)

// NewUnion gives the rows of its inputs, one input after another. Columns come in
// order of first appearance; what an input lacks is filled with null; numbers widen where no
// value is lost (int to wider int, float to double, 32-bit int to double); anything else that
// differs is an error that names input and column. Inputs that differ from the union
// get a Project on top. Reads are numbered anew, in canonical order.
func NewUnion(in []Node, m Meta) (*Union, error) { return newUnion(in, 0, m) }

// newUnion numbers the reads from ordinal first on.
func newUnion(in []Node, first int, m Meta) (*Union, error) {
	if len(in) == 0 {
		return nil, m.wrong("union needs at least one input")
	}
	if err := m.follows(in...); err != nil {
		return nil, err
	}
	s, err := unified(in, m, func(i int) string { return fmt.Sprintf("input %d", i+1) })
	if err != nil {
		return nil, err
	}
	u := &Union{Meta: m, schema: s}
	u.Ins, err = alike(in, s, first, m)
	return u, err
}

// unified is the schema that holds the rows of all inputs; name says what errors call one.
func unified(in []Node, m Meta, name func(i int) string) (*arrow.Schema, error) {
	var fields []arrow.Field
	at := map[string]int{}
	for i, n := range in {
		for _, f := range n.Schema().Fields() {
			k, ok := at[f.Name]
			if !ok {
				at[f.Name] = len(fields)
				f.Nullable = f.Nullable || i > 0
				fields = append(fields, f)
				continue
			}
			t, ok := unify(fields[k].Type, f.Type)
			if !ok {
				return nil, m.wrong("%s has %s in column %q, the inputs before it %s; cast one of them",
					name(i), expr.TypeName(f.Type), f.Name, expr.TypeName(fields[k].Type))
			}
			fields[k].Type = t
			fields[k].Nullable = fields[k].Nullable || f.Nullable
		}
	}
	for k := range fields {
		for _, n := range in {
			fields[k].Nullable = fields[k].Nullable || !n.Schema().HasField(fields[k].Name)
		}
	}
	md := in[0].Schema().Metadata()
	return arrow.NewSchema(fields, &md), nil
}

// alike gives the inputs the columns of s, and their reads the ordinals from next on.
func alike(in []Node, s *arrow.Schema, next int, m Meta) ([]Node, error) {
	out := make([]Node, len(in))
	for i, n := range in {
		n, err := renumber(n, &next)
		if err != nil {
			return nil, err
		}
		if out[i], err = adapt(n, s, m); err != nil {
			return nil, err
		}
	}
	return out, nil
}

// adapt makes n's columns those of s.
func adapt(n Node, s *arrow.Schema, m Meta) (Node, error) {
	if SameColumns(n.Schema(), s) {
		return n, nil
	}
	items := make([]Named, s.NumFields())
	for i, f := range s.Fields() {
		items[i] = Named{f.Name, expr.Col(f.Name)}
		idx := n.Schema().FieldIndices(f.Name)
		if len(idx) == 0 {
			null, err := expr.Parse("null")
			if err != nil {
				return nil, fault.Wrap(err, m.place())
			}
			items[i].Expr = expr.Cast(null, f.Type)
		} else if !arrow.TypeEqual(n.Schema().Field(idx[0]).Type, f.Type) {
			items[i].Expr = expr.Cast(items[i].Expr, f.Type)
		}
	}
	return NewProject(n, items, m)
}

// unify is the type that holds every value of both.
func unify(a, b arrow.DataType) (arrow.DataType, bool) {
	switch {
	case arrow.TypeEqual(a, b), widens(b.ID(), a.ID()):
		return a, true
	case widens(a.ID(), b.ID()):
		return b, true
	}
	return nil, false
}

// widens reports whether every value of type from is one of type to.
func widens(from, to arrow.Type) bool {
	if from == arrow.NULL {
		return true
	}
	fb, fu := intBits(from)
	tb, tu := intBits(to)
	switch {
	case fb > 0 && tb > 0:
		return fb < tb && (fu || !tu)
	case to == arrow.FLOAT64:
		return from == arrow.FLOAT32 || from == arrow.FLOAT16 || fb > 0 && fb <= 32
	case to == arrow.FLOAT32:
		return from == arrow.FLOAT16
	}
	return false
}

// intBits is the width of an integer type, 0 for others.
func intBits(t arrow.Type) (bits int, unsigned bool) {
	signed := []arrow.Type{arrow.INT8, arrow.INT16, arrow.INT32, arrow.INT64}
	if i := slices.Index(signed, t); i >= 0 {
		return 8 << i, false
	}
	uns := []arrow.Type{arrow.UINT8, arrow.UINT16, arrow.UINT32, arrow.UINT64}
	if i := slices.Index(uns, t); i >= 0 {
		return 8 << i, true
	}
	return 0, false
}

// renumber gives the reads below n the ordinals from *next on.
func renumber(n Node, next *int) (Node, error) {
	if r, ok := n.(*Read); ok {
		ord := *next
		*next++
		if r.Ordinal == ord {
			return r, nil
		}
		c := *r
		c.Ordinal = ord
		return &c, nil
	}
	return mapInputs(n, func(in Node) (Node, error) { return renumber(in, next) })
}

// mapInputs applies f to the inputs of n; n itself unless one changed.
func mapInputs(n Node, f func(Node) (Node, error)) (Node, error) {
	var out []Node
	for i, in := range n.Inputs() {
		c, err := f(in)
		if err != nil {
			return nil, err
		}
		if c != in && out == nil {
			out = slices.Clone(n.Inputs())
		}
		if out != nil {
			out[i] = c
		}
	}
	if out == nil {
		return n, nil
	}
	return n.WithInputs(out)
}
