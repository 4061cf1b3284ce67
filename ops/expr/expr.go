// Package expr is the language of expressions: CEL syntax parsed by cel-go,
// resolved against an Arrow schema, executed as kernels on whole columns.
//
// docs/expressions.md lists every operator and function with an example that a
// test of this package runs.
package expr

import (
	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/io/driver"
)

// Expr is a parsed expression, not yet bound to columns. Immutable.
type Expr struct{}

// Parse reads an expression. An Invalid error shows the text with a mark under
// the place.
func Parse(text string) (*Expr, error) { panic("stub") }

// Col is the expression that reads a column.
func Col(name string) *Expr { panic("stub") }

// Cast is cast(e, t); type names are those of ParseType.
func Cast(e *Expr, t arrow.DataType) *Expr { panic("stub") }

// And joins with &&; no argument gives true.
func And(es ...*Expr) *Expr { panic("stub") }

// String is the canonical text: Parse(e.String()) equals e.
func (e *Expr) String() string { panic("stub") }

// Columns are the top-level columns that e reads, sorted.
func (e *Expr) Columns() []string { panic("stub") }

// IsCol reports whether e is just a column, and which.
func (e *Expr) IsCol() (string, bool) { panic("stub") }

// Conjuncts splits at top-level &&.
func (e *Expr) Conjuncts() []*Expr { panic("stub") }

// Substitute replaces columns by expressions: what moving a filter below a
// projection needs.
func (e *Expr) Substitute(m map[string]*Expr) *Expr { panic("stub") }

// Random reports whether e calls random().
func (e *Expr) Random() bool { panic("stub") }

// MayFail reports whether evaluating e can give a row error (overflow, cast,
// parse): such an expression must not be moved to rows it would not have seen.
func (e *Expr) MayFail(s *arrow.Schema) bool { panic("stub") }

// Fold evaluates constant parts; e unless something changed. What fails to
// evaluate stays as it is.
func (e *Expr) Fold(s *arrow.Schema) *Expr { panic("stub") }

// Predicate returns the conjuncts of e that compare a column of s with literals,
// in the form drivers understand; the rest is left out, so it is never stronger
// than e.
func (e *Expr) Predicate(s *arrow.Schema) driver.Predicate { panic("stub") }

// ParseType reads a type name of expressions and specs: int8..int64, uint8..,
// float16, float, double, bool, string, binary, date, timestamp, timestamp[ms],
// decimal(p,s), list<T>, ...; "int" is int64, "float64" is double.
func ParseType(name string) (arrow.DataType, error) { panic("stub") }

// TypeName is the inverse of ParseType where it has one, else t.String().
func TypeName(t arrow.DataType) string { panic("stub") }

// Program is an expression bound to a schema. Immutable; safe for concurrent use.
type Program struct{}

// Bind resolves names and types. site numbers this expression's place in the
// plan: it keys random(). A type error says which operand, its type, and what would work;
// an unknown column lists what there is and suggests the nearest.
func (e *Expr) Bind(s *arrow.Schema, site int) (*Program, error) { panic("stub") }

// Type of the result.
func (p *Program) Type() arrow.DataType { panic("stub") }

// Rows says which rows a batch holds, for random(): keys are (Seed, Epoch,
// Source, Split, row, ord, site).
type Rows struct {
	Seed, Epoch uint64
	Source      int
	Split       string
	Row         int64    // split position of row 0, when At is nil
	At          []int64  // split position of each row
	Ords        []uint64 // ordinal of each row after explode; nil means 0
}

// Eval evaluates on a batch whose schema equals the bound one; the caller
// releases the result, an array of Type with one value per row. An *Error of code
// RowError names the first failing row (its index in the batch as Place.Row). Borrows rec.
func (p *Program) Eval(rec arrow.RecordBatch, rows *Rows, alloc memory.Allocator) (arrow.Array, error) {
	panic("stub")
}

// Filter keeps the rows for which mask is true (not null) and returns them with
// their indices; idx is nil if all rows stay (rec itself, retained). Borrows both.
func Filter(rec arrow.RecordBatch, mask *array.Boolean, alloc memory.Allocator) (out arrow.RecordBatch, idx []int32, err error) {
	panic("stub")
}

// Take gathers rows by index, in any order, repeats allowed. Borrows rec.
func Take(rec arrow.RecordBatch, idx []int32, alloc memory.Allocator) (arrow.RecordBatch, error) {
	panic("stub")
}
