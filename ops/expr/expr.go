// Package expr is the language of expressions: CEL syntax parsed by cel-go,
// resolved against an Arrow schema, executed as kernels on whole columns.
//
// docs/expressions.md lists every operator and function with an example that a
// test of this package runs.
//
// An [Expr] is text without types; [Expr.Bind] gives it those of a schema and makes
// a [Program]; [Program.Eval] runs it on a batch. Exprs and Programs are immutable and
// may be used from several goroutines. Arguments are borrowed, results are owned by
// the caller, and all memory of results and of what lies between comes from the given allocator,
// but for bitmaps and indices of a few bytes per row.
package expr

import (
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/typename"
)

// Expr is a parsed expression, not yet bound to columns. Immutable.
type Expr struct{ root *node }

// Col is the expression that reads a column.
func Col(name string) *Expr { return &Expr{newNode(kColumn, name)} }

// Cast is cast(e, t); type names are those of ParseType.
func Cast(e *Expr, t arrow.DataType) *Expr {
	return &Expr{call("cast", e.root, litNode(TypeName(t)))}
}

// And joins with &&; no argument gives true.
func And(es ...*Expr) *Expr {
	switch len(es) {
	case 0:
		return &Expr{litNode(true)}
	case 1:
		return es[0]
	}
	args := make([]*node, len(es))
	for i, e := range es {
		args[i] = e.root
	}
	return &Expr{junction("&&", args...)}
}

// Columns are the top-level columns that e reads, sorted.
func (e *Expr) Columns() []string {
	var out []string
	e.root.walk(func(n *node) {
		if n.kind == kColumn {
			out = append(out, n.name)
		}
	}, map[*node]bool{})
	slices.Sort(out)
	return slices.Compact(out)
}

// IsCol reports whether e is just a column, and which.
func (e *Expr) IsCol() (string, bool) { return e.root.name, e.root.kind == kColumn }

// Conjuncts splits at top-level &&.
func (e *Expr) Conjuncts() []*Expr {
	if !e.root.is("&&") {
		return []*Expr{e}
	}
	out := make([]*Expr, len(e.root.args))
	for i, a := range e.root.args {
		out[i] = &Expr{a}
	}
	return out
}

// Substitute replaces columns by expressions: what moving a filter below a
// projection needs. Size tells how large the result is.
func (e *Expr) Substitute(m map[string]*Expr) *Expr {
	root := e.root.rewrite(func(n *node) *node {
		if n.kind == kColumn {
			if r, ok := m[n.name]; ok {
				return r.root
			}
		}
		return n
	}, map[*node]*node{})
	if root == e.root {
		return e
	}
	return &Expr{root}
}

// Size is the number of operators, literals and columns, and how deep they nest.
// Repeated Substitute can make both explode: Bind refuses depths over 256 and
// sizes over 65536.
func (e *Expr) Size() (nodes, depth int) { return e.root.size, e.root.depth }

// Random reports whether e calls random().
func (e *Expr) Random() bool {
	found := false
	e.root.walk(func(n *node) { found = found || n.is("random") }, map[*node]bool{})
	return found
}

// ParseType reads a type name of expressions and specs: int8..int64, uint8..,
// float16, float, double, bool, string, binary, date, timestamp, timestamp[ms],
// decimal(p,s), list<T>, ...; "int" is int64, "float64" is double.
func ParseType(name string) (arrow.DataType, error) { return typename.Parse(name) }

// TypeName is the inverse of ParseType where it has one, else t.String().
func TypeName(t arrow.DataType) string { return typename.Name(t) }
