package expr

import (
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/near"
	"github.com/penstock-data/penstock/io/driver"
)

// bound is a node with its type and the code that computes it.
type bound struct {
	src  *node
	typ  arrow.DataType
	args []*bound
	// Exactly one of the following is set, col if none of the others is.
	lit  *scalar
	eval kernel                           // of the values of args; null if a literal argument is
	form func(x *exec, args []*bound) vec // evaluates args itself
	col  int

	untyped bool // a number literal, which takes the type of what it meets
	fails   bool // rows can fail, here or below
	pure    bool // has neither columns nor random() below
}

// Program is an expression bound to a schema. Immutable; safe for concurrent use.
type Program struct {
	root *bound
	text string
}

// binder resolves an expression against a schema.
type binder struct {
	schema *arrow.Schema
	site   int
	rand   int // calls of random() so far
	mem    memory.Allocator
	root   *node
}

const (
	maxSize  = 64 << 10 // nodes of a tree
	maxConst = 64 << 10 // bytes of a constant string computed at plan time
)

// Bind resolves names and types. site numbers this expression's place in the
// plan: it keys random(). A type error says which operand, its type, and what would work;
// an unknown column lists what there is and suggests the nearest.
func (e *Expr) Bind(s *arrow.Schema, site int) (*Program, error) {
	if e.root.depth >= maxDepth {
		return nil, fault.New(fault.Invalid, "expression nests %d deep; at most %d", e.root.depth, maxDepth)
	}
	if e.root.size > maxSize {
		return nil, fault.New(fault.Invalid, "expression has more than %d parts", maxSize)
	}
	b := &binder{schema: s, site: site, mem: memory.DefaultAllocator, root: e.root}
	root, err := b.bind(e.root)
	if err != nil {
		return nil, err
	}
	return &Program{root: root, text: e.String()}, nil
}

// String is the text of the expression.
func (p *Program) String() string { return p.text }

// Type of the result.
func (p *Program) Type() arrow.DataType { return p.root.typ }

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
// nil rows are those of a split "" from row 0 on.
func (p *Program) Eval(rec arrow.RecordBatch, rows *Rows, alloc memory.Allocator) (arrow.Array, error) {
	x := &exec{cols: make([]arrow.ArrayData, rec.NumCols()), n: int(rec.NumRows()), rows: rows, mem: alloc}
	for i, c := range rec.Columns() {
		x.cols[i] = c.Data()
	}
	if rows == nil {
		x.rows = &Rows{}
	} else if rows.At != nil {
		if err := checkLen("row positions", rec.NumRows(), int64(len(rows.At))); err != nil {
			return nil, err
		}
	}
	if x.rows.Ords != nil {
		if err := checkLen("row ordinals", rec.NumRows(), int64(len(x.rows.Ords))); err != nil {
			return nil, err
		}
	}
	v := x.expand(p.root.run(x))
	defer v.release()
	switch {
	case x.err != nil:
		return nil, x.err
	case x.row != nil:
		return nil, x.row
	}
	return array.MakeFromData(v.data), nil
}

// run computes a node for all rows of the batch; the caller releases the vec.
func (b *bound) run(x *exec) vec {
	switch {
	case b.lit != nil:
		return vec{typ: b.typ, n: x.n, lit: b.lit}
	case b.form != nil:
		return b.form(x, b.args)
	case b.eval != nil:
		var few [4]vec
		vs := few[:0]
		null, lits := false, true
		for _, a := range b.args {
			v := a.run(x)
			null = null || v.isNull()
			lits = lits && v.lit != nil
			vs = append(vs, v)
		}
		var out vec
		if null {
			out = x.nulls(b.typ, x.n)
		} else {
			if lits {
				vs[0] = x.expand(vs[0])
			}
			out = b.eval(x, vs)
		}
		for _, v := range vs {
			v.release()
		}
		return out
	}
	d := x.cols[b.col]
	d.Retain()
	return vec{typ: b.typ, n: x.n, data: d}
}

func (b *binder) bind(n *node) (*bound, error) {
	switch n.kind {
	case kColumn:
		v, err := b.column(n)
		if err == nil && n != b.root { // a column as a whole may be passed on, to a step that drops it
			err = driver.CheckReadable(b.schema, []string{n.name})
		}
		return v, err
	case kLiteral:
		return literal(n), nil
	case kList:
		return nil, invalid("a list literal stands only to the right of in: x in %s", short(n))
	case kField:
		v, err := b.bind(n.args[0])
		if err != nil {
			return nil, err
		}
		return b.field(n, v)
	}
	f := functions[n.name]
	if f == nil {
		return nil, invalid("unknown function %s", n.name)
	}
	if len(n.args) < f.min || len(n.args) > f.max {
		return nil, invalid("%s takes %s, not %d: %s", n.name, f.takes(), len(n.args), f.usage)
	}
	if f.raw != nil {
		return f.raw(b, n)
	}
	args := make([]*bound, len(n.args))
	for i, a := range n.args {
		v, err := b.bind(a)
		if err != nil {
			return nil, err
		}
		args[i] = decoded(v)
	}
	out, err := f.bind(b, n, args)
	if err != nil {
		return nil, err
	}
	return b.fold(out), nil
}

// fold replaces what has only literals below by its value. What fails to
// evaluate stays: it is an error of the rows that need it. So do strings that grow larger
// than maxConst, with all that is made of them.
func (b *binder) fold(v *bound) *bound {
	if v.lit != nil || !v.pure || !scalarType(v.typ) {
		return v
	}
	x := &exec{n: 1, rows: &Rows{}, mem: b.mem, most: maxConst}
	out := v.run(x)
	defer out.release()
	if x.row != nil || x.err != nil {
		v.pure = v.pure && x.err == nil
		return v
	}
	c := *v
	c.args, c.eval, c.form, c.fails = nil, nil, nil, false
	c.lit = out.lit
	if c.lit == nil {
		c.lit = scalarAt(out, 0)
	}
	hide(v.src, c.lit)
	return &c
}

func invalid(format string, args ...any) error { return fault.New(fault.Invalid, format, args...) }

// op makes a node computed by a kernel.
func op(n *node, t arrow.DataType, k kernel, args ...*bound) *bound {
	v := &bound{src: n, typ: t, eval: k, args: args, pure: true}
	for _, a := range args {
		v.fails = v.fails || a.fails
		v.pure = v.pure && a.pure
	}
	return v
}

// failing marks a node whose own rows can fail.
func failing(v *bound) *bound { v.fails = true; return v }

func form(n *node, t arrow.DataType, f func(x *exec, args []*bound) vec, args ...*bound) *bound {
	v := op(n, t, nil, args...)
	v.form = f
	return v
}

func (b *binder) column(n *node) (*bound, error) {
	idx := b.schema.FieldIndices(n.name)
	switch len(idx) {
	case 1:
		return &bound{src: n, typ: b.schema.Field(idx[0]).Type, col: idx[0]}, nil
	case 0:
		return nil, invalid("unknown column %q%s", n.name, near.Column(n.name, b.schema))
	}
	return nil, invalid("column %q is there %d times: rename one", n.name, len(idx))
}

func (b *binder) field(n *node, v *bound) (*bound, error) {
	if v.typ.ID() == arrow.EXTENSION {
		v = decoded(v)
	}
	st, ok := v.typ.(*arrow.StructType)
	if !ok {
		return nil, invalid("%s has no fields: only structs have, read by .name", describe(v))
	}
	idx, ok := st.FieldIdx(n.name)
	if !ok {
		return nil, invalid("%s has no field %q%s", describeShort(v), n.name, near.Column(n.name, arrow.NewSchema(st.Fields(), nil)))
	}
	return op(n, st.Field(idx).Type, fieldKernel(idx), v), nil
}

// literal gives a literal its type; numbers adapt to what they meet.
func literal(n *node) *bound {
	s := &scalar{valid: true}
	v := &bound{src: n, lit: s, pure: true}
	switch c := n.val.(type) {
	case nil:
		s.typ, s.valid = arrow.Null, false
	case bool:
		s.typ, s.i = boolType, int64(b2u(c))
	case int64:
		s.typ, s.i, v.untyped = arrow.PrimitiveTypes.Int64, c, true
	case uint64:
		s.typ, s.i, v.untyped = arrow.PrimitiveTypes.Uint64, int64(c), true
	case float64:
		s.typ, s.f, v.untyped = arrow.PrimitiveTypes.Float64, c, true
	case string:
		s.typ, s.s = arrow.BinaryTypes.String, c
	case blob:
		s.typ, s.s = arrow.BinaryTypes.Binary, string(c)
	}
	v.typ = s.typ
	return v
}

// describe names an operand in an error: `column fare (string)`, `0 (int)`.
func describe(v *bound) string { return describeShort(v) + " (" + userType(v) + ")" }

func describeShort(v *bound) string {
	if v.src.kind == kColumn {
		return "column " + short(v.src)
	}
	return short(v.src)
}

func userType(v *bound) string {
	if v.untyped && v.lit != nil && isInt(v.typ) {
		return "int"
	}
	return TypeName(v.typ)
}

// short is the text of a node, cut in the middle of errors.
func short(n *node) string {
	if n.size > 200 {
		return "(...)"
	}
	s := n.String()
	if r := []rune(s); len(r) > 60 {
		return string(r[:57]) + "..."
	}
	return s
}

func functionNames() []string {
	names := make([]string, 0, len(functions))
	for f := range functions {
		if isIdent(f) {
			names = append(names, f)
		}
	}
	slices.Sort(names)
	return names
}
