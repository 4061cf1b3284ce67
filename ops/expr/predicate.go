package expr

import (
	"math"
	"math/big"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/io/driver"
)

// verdict says that a comparison with a literal is the same for all values.
type verdict int8

const (
	perhaps verdict = iota
	always          // true unless null
	never           // false unless null
)

// versus brings a literal into the domain of type t: values of t compare with
// the result by op exactly as with the literal. ok is false if they do not compare,
// or only by a kernel of both types.
func versus(op string, t arrow.DataType, lit *bound) (opOut string, s *scalar, v verdict, ok bool) {
	from := lit.lit
	if !from.valid {
		return op, nil, perhaps, false
	}
	exact := func(r *big.Rat, lo, hi *big.Int) {
		opOut, s, v = within(op, r, lo, hi, t)
		ok = true
	}
	switch {
	case isFloating(t) && isNumeric(from.typ):
		f := from.f
		if !isFloating(from.typ) {
			if isDecimal(from.typ) {
				return op, nil, perhaps, false
			}
			var is bool
			if f, is = ratOf(from).Float64(); !is {
				return op, nil, perhaps, false
			}
		}
		if r := float64(float32(f)); t.ID() == arrow.FLOAT32 && r != f && f == f {
			// A literal takes the column's precision; a computed value does not.
			if !lit.untyped || !isFloating(from.typ) || math.IsInf(r, 0) {
				return op, nil, perhaps, false
			}
			f = r
		}
		return op, &scalar{typ: t, valid: true, f: f}, perhaps, true
	case isInt(t) && isNumeric(from.typ):
		lo, hi := intRange(t)
		switch {
		case isDecimal(from.typ):
			exact(decimalRat(from.d, from.typ.(*arrow.Decimal128Type).Scale), lo, hi)
		case isFloating(from.typ) && math.IsNaN(from.f):
			v = never
			if op == "!=" {
				v = always
			}
			return op, nil, v, true
		case isFloating(from.typ) && math.IsInf(from.f, 0):
			beyond := new(big.Rat).SetInt(new(big.Int).Add(hi, big.NewInt(1)))
			if from.f < 0 {
				beyond.SetInt(new(big.Int).Sub(lo, big.NewInt(1)))
			}
			exact(beyond, lo, hi)
		default:
			exact(ratOf(from), lo, hi)
		}
		return opOut, s, v, ok
	case isDecimal(t) && isNumeric(from.typ):
		d := t.(*arrow.Decimal128Type)
		var r *big.Rat
		switch {
		case isDecimal(from.typ):
			r = decimalRat(from.d, from.typ.(*arrow.Decimal128Type).Scale)
		case !isFloating(from.typ):
			r = ratOf(from)
		case lit.untyped:
			r = shortRat(from.f)
		}
		if r == nil || d.Scale < 0 {
			return op, nil, perhaps, false
		}
		r = new(big.Rat).Mul(r, new(big.Rat).SetInt(pow10(int(d.Scale))))
		hi := new(big.Int).Sub(pow10(int(d.Precision)), big.NewInt(1))
		exact(r, new(big.Int).Neg(hi), hi)
		return opOut, s, v, ok
	case isTime(t):
		var r *big.Rat
		switch {
		case isText(from.typ):
			var err error
			if r, err = timeRat(from.s, t); err != nil {
				return op, nil, perhaps, false
			}
		case timesCompare(from.typ, t) == nil:
			r = new(big.Rat).SetFrac(new(big.Int).Mul(big.NewInt(from.i), new(big.Int).SetUint64(nanosPer(from.typ))), new(big.Int).SetUint64(nanosPer(t)))
		default:
			return op, nil, perhaps, false
		}
		lo, hi := intRange(rawInt(t))
		exact(r, lo, hi)
		return opOut, s, v, ok
	case isText(t) && isText(from.typ), isBytes(t) && isBytes(from.typ), isBytes(t) && isText(from.typ) && lit.src.kind == kLiteral:
		return op, &scalar{typ: t, valid: true, s: from.s}, perhaps, true
	case t.ID() == arrow.BOOL && from.typ.ID() == arrow.BOOL:
		return op, &scalar{typ: t, valid: true, i: from.i}, perhaps, true
	}
	return op, nil, perhaps, false
}

// within compares whole numbers of [lo, hi] with any number.
func within(op string, r *big.Rat, lo, hi *big.Int, t arrow.DataType) (string, *scalar, verdict) {
	fl := new(big.Int).Div(r.Num(), r.Denom()) // rounds down: the denominator is positive
	truth := func(b bool) verdict {
		if b {
			return always
		}
		return never
	}
	if !r.IsInt() {
		switch op {
		case "==", "!=":
			return op, nil, truth(op == "!=")
		case "<":
			op = "<="
		case ">=":
			op = ">"
		}
	}
	switch {
	case fl.Cmp(lo) < 0:
		return op, nil, truth(op == "!=" || op == ">" || op == ">=")
	case fl.Cmp(hi) > 0:
		return op, nil, truth(op == "!=" || op == "<" || op == "<=")
	}
	s := &scalar{typ: t, valid: true}
	switch {
	case isDecimal(t):
		s.d = decimal128.FromBigInt(fl)
	case isUint(t):
		s.i = int64(fl.Uint64())
	default:
		s.i = fl.Int64()
	}
	return op, s, perhaps
}

var driverOps = map[string]driver.Op{"==": driver.Eq, "!=": driver.Ne, "<": driver.Lt, "<=": driver.Le, ">": driver.Gt, ">=": driver.Ge}

// Predicate returns the conjuncts of e that compare a column of s with literals,
// in the form drivers understand; the rest is left out, so it is never stronger
// than e.
func (e *Expr) Predicate(s *arrow.Schema) driver.Predicate {
	var out driver.Predicate
	b := &binder{schema: s, mem: memory.DefaultAllocator}
	for _, c := range e.Conjuncts() {
		if t, ok := b.term(c.root, false); ok {
			out = append(out, t)
		}
	}
	return out
}

// term makes a Term of a conjunct, or of its negation.
func (b *binder) term(n *node, not bool) (driver.Term, bool) {
	none := driver.Term{}
	switch {
	case n.kind == kColumn:
		if v := b.plainColumn(n); v != nil && v.typ.ID() == arrow.BOOL {
			return driver.Term{Column: n.name, Op: driver.Eq, Values: []any{!not}}, true
		}
	case n.is("!"):
		return b.term(n.args[0], !not)
	case n.is("is_null") || n.is("is_not_null"):
		if len(n.args) != 1 || n.args[0].kind != kColumn || b.plainColumn(n.args[0]) == nil {
			return none, false
		}
		if n.is("is_null") != not {
			return driver.Term{Column: n.args[0].name, Op: driver.IsNull}, true
		}
		return driver.Term{Column: n.args[0].name, Op: driver.NotNull}, true
	case n.is("in") && !not && n.args[1].kind == kList:
		return b.inTerm(n)
	case n.kind == kCall && flip[n.name] != "" && len(n.args) == 2:
		cmp, l, r := n.name, n.args[0], n.args[1]
		if not {
			// Only == and != have an opposite under NaN.
			opposite, ok := map[string]string{"==": "!=", "!=": "=="}[cmp]
			if !ok {
				return none, false
			}
			cmp = opposite
		}
		if l.kind != kColumn {
			cmp, l, r = flip[cmp], r, l
		}
		col := b.plainColumn(l)
		lit, err := b.bind(r)
		if col == nil || err != nil || lit.lit == nil {
			return none, false
		}
		return b.cmpTerm(cmp, col, decoded(lit))
	}
	return none, false
}

// plainColumn is a column of a type that drivers compare; nil for others.
func (b *binder) plainColumn(n *node) *bound {
	if n.kind != kColumn {
		return nil
	}
	v, err := b.column(n)
	if err != nil {
		return nil
	}
	return v
}

func (b *binder) cmpTerm(cmp string, col, lit *bound) (driver.Term, bool) {
	t := driver.Term{Column: col.src.name, Op: driverOps[cmp]}
	typ := domain(col.typ)
	if typ == nil {
		return t, false
	}
	cmp, s, v, ok := versus(cmp, typ, lit)
	switch {
	case !ok:
		return t, false
	case v == always:
		return driver.Term{Column: t.Column, Op: driver.NotNull}, true
	case v == never:
		return driver.Term{Column: t.Column, Op: driver.In}, true
	}
	t.Op, t.Values = driverOps[cmp], []any{driverValue(s)}
	return t, true
}

// domain is the type whose values stand in Terms for a column; nil if none.
func domain(t arrow.DataType) arrow.DataType {
	if d, ok := t.(*arrow.DictionaryType); ok {
		t = d.ValueType
	}
	if p := physOf(t); p == pDec || p == pOther || p == pFixed {
		return nil
	}
	return t
}

func driverValue(s *scalar) any {
	switch {
	case s.typ.ID() == arrow.BOOL:
		return s.i != 0
	case isFloating(s.typ):
		return s.f
	case isString(s.typ):
		return s.s
	case isUint(s.typ):
		return uint64(s.i)
	}
	return s.i
}

func (b *binder) inTerm(n *node) (driver.Term, bool) {
	col := b.plainColumn(n.args[0])
	if col == nil || domain(col.typ) == nil {
		return driver.Term{}, false
	}
	t := driver.Term{Column: col.src.name, Op: driver.In}
	for _, e := range n.args[1].args {
		lit, err := b.bind(e)
		if err != nil || lit.lit == nil {
			return t, false
		}
		if !lit.lit.valid { // x in [null] is never true
			continue
		}
		_, s, v, ok := versus("==", domain(col.typ), lit)
		switch {
		case !ok:
			return t, false
		case v == perhaps:
			t.Values = append(t.Values, driverValue(s))
		}
	}
	return t, true
}

// MayFail reports whether evaluating e can give a row error (overflow, cast,
// parse): such an expression must not be moved to rows it would not have seen.
func (e *Expr) MayFail(s *arrow.Schema) bool {
	p, err := e.Bind(s, 0)
	return err != nil || p.MayFail()
}

// MayFail is that of the expression, for rows of the schema that it is bound to.
func (p *Program) MayFail() bool { return p.root.fails }

// Fold evaluates constant parts; e unless something changed. What fails to
// evaluate stays as it is.
func (e *Expr) Fold(s *arrow.Schema) *Expr {
	b := &binder{schema: s, mem: memory.DefaultAllocator}
	root := e.root.rewrite(b.foldNode, map[*node]*node{})
	if root == e.root {
		return e
	}
	// A part that stands alone may mean something else in its place: check the whole.
	was, err1 := e.Bind(s, 0)
	is, err2 := (&Expr{root}).Bind(s, 0)
	if err1 != nil || err2 != nil || !arrow.TypeEqual(was.Type(), is.Type()) {
		return e
	}
	return &Expr{root}
}

func (b *binder) foldNode(n *node) *node {
	if n.kind != kCall {
		return n
	}
	if n.is("&&") || n.is("||") {
		return b.foldJunction(n)
	}
	if n.is("?:") && n.args[0].kind == kLiteral {
		taken := n.args[2]
		if n.args[0].val == true {
			taken = n.args[1]
		}
		if v, err := b.bind(n); err == nil {
			if w, err := b.bind(taken); err == nil && arrow.TypeEqual(v.typ, w.typ) && !w.untyped {
				return taken
			}
		}
		return n
	}
	for _, a := range n.args {
		if a.kind != kLiteral && a.kind != kList {
			return n
		}
	}
	v, err := b.bind(n)
	if err != nil || v.lit == nil || !v.lit.valid {
		return n
	}
	switch s := v.lit; {
	case s.typ.ID() == arrow.BOOL:
		return litNode(s.i != 0)
	case s.typ.ID() == arrow.STRING:
		return litNode(s.s)
	case v.untyped && s.typ.ID() == arrow.INT64:
		return litNode(s.i)
	case v.untyped && s.typ.ID() == arrow.FLOAT64 && !math.IsNaN(s.f) && !math.IsInf(s.f, 0):
		return litNode(s.f)
	}
	return n
}

// foldJunction drops sides that are true (of &&) and cuts after one that is false.
func (b *binder) foldJunction(n *node) *node {
	neutral := n.name == "&&"
	var keep []*node
	for _, a := range n.args {
		if a.kind == kLiteral && a.val == neutral {
			continue
		}
		keep = append(keep, a)
		if a.kind == kLiteral && a.val == !neutral {
			break
		}
	}
	switch {
	case len(keep) == 0:
		return litNode(neutral)
	case len(keep) == 1:
		return keep[0]
	case keep[0].kind == kLiteral: // false && x
		return keep[0]
	case len(keep) == len(n.args):
		return n
	}
	return junction(n.name, keep...)
}
