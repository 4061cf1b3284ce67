package expr

import (
	"fmt"
	"math/big"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
)

var verbs = map[string]string{"+": "add", "-": "subtract", "*": "multiply", "/": "divide", "%": "take the remainder of"}

func (b *binder) arithmetic(n *node, args []*bound) (*bound, error) {
	l, r := args[0], args[1]
	if v, err := b.timeArith(n, l, r); v != nil || err != nil {
		return v, err
	}
	if n.name == "+" && isString(l.typ) && isString(r.typ) {
		return b.join(n, l, r)
	}
	t, p, _ := commonType(args, widen)
	if t == nil || !isNumeric(t) && t.ID() != arrow.NULL {
		if p == nil {
			p = l
		}
		hint := ""
		switch {
		case isNumeric(l.typ) && numberIn(r):
			hint = fmt.Sprintf(": use %s %s %s", short(l.src), n.name, strings.TrimSpace(r.lit.s))
		case numberIn(l) && isNumeric(r.typ):
			hint = fmt.Sprintf(": use %s %s %s", strings.TrimSpace(l.lit.s), n.name, short(r.src))
		case n.name != "+" && (isNumeric(l.typ) && isText(r.typ) && r.lit != nil || isText(l.typ) && l.lit != nil && isNumeric(r.typ)):
			hint = ": that text is no number"
		case n.name == "+" && isNumeric(l.typ) && isText(r.typ) && r.lit != nil:
			hint = fmt.Sprintf(": use string(%s) + %s to join texts", short(l.src), short(r.src))
		case n.name == "+" && isText(l.typ) && l.lit != nil && isNumeric(r.typ):
			hint = fmt.Sprintf(": use %s + string(%s) to join texts", short(l.src), short(r.src))
		case isText(l.typ) && isNumeric(r.typ):
			hint = fmt.Sprintf(": use double(%s) %s %s", short(l.src), n.name, short(r.src))
		case isNumeric(l.typ) && isText(r.typ):
			hint = fmt.Sprintf(": use double(%s)", short(r.src))
			if n.name == "+" {
				hint += fmt.Sprintf(", or string(%s) to join texts", short(l.src))
			}
		case isText(l.typ) && isText(r.typ) && l.lit == nil && r.lit == nil:
			hint = fmt.Sprintf(": use double(%s) %s double(%s)", short(l.src), n.name, short(r.src))
		case l.typ.ID() == arrow.BOOL || r.typ.ID() == arrow.BOOL:
			hint = ": use int(x) of a bool"
		}
		return nil, invalid("cannot %s %s and %s%s", verbs[n.name], describe(l), describe(r), hint)
	}
	if t.ID() == arrow.NULL {
		return op(n, arrow.Null, nullKernel(arrow.Null), l, r), nil
	}
	if isDecimal(t) {
		t = arrow.PrimitiveTypes.Float64
	}
	untyped := l.untyped && r.untyped
	out := op(n, t, arith(physOf(t), n.name, t), b.convert(l, t), b.convert(r, t))
	switch {
	case !isInt(t) || n.name == "%":
	case n.name == "/": // only the smallest number by -1 overflows
		out.fails = out.fails || !isUint(t) && (r.lit == nil || r.lit.valid && r.lit.i == -1)
	default:
		out.fails = true
	}
	if untyped {
		if out = b.fold(out); out.lit != nil {
			out.untyped = out.lit.valid
		}
	}
	return out, nil
}

func nullKernel(t arrow.DataType) kernel {
	return func(x *exec, a []vec) vec { return x.nulls(t, a[0].n) }
}

// join is + of texts or bytes.
func (b *binder) join(n *node, l, r *bound) (*bound, error) {
	t := unify(l.typ, r.typ)
	if t == nil {
		return nil, invalid("cannot join %s and %s: use string(x) or binary(x)", describe(l), describe(r))
	}
	if t.ID() == arrow.FIXED_SIZE_BINARY {
		t = arrow.BinaryTypes.Binary
	}
	return op(n, t, stringMap(t, concatRow), b.plainText(l), b.plainText(r)), nil
}

// plainText makes bytes of fixed size ones of any size.
func (b *binder) plainText(v *bound) *bound {
	if v.typ.ID() == arrow.FIXED_SIZE_BINARY {
		return b.convert(v, arrow.BinaryTypes.Binary)
	}
	return v
}

// timeArith is + and - of times and durations, and durations times integers; nil
// if it is none of them.
func (b *binder) timeArith(n *node, l, r *bound) (*bound, error) {
	if !isTime(l.typ) && !isTime(r.typ) {
		return nil, nil
	}
	dur := func(t arrow.DataType) bool { return t.ID() == arrow.DURATION }
	if isTime(l.typ) && isText(r.typ) && r.lit != nil && n.name == "-" && !dur(l.typ) {
		if c, ok := adapt(r, l.typ); ok { // t - "2024-01-01"
			r = c
		}
	}
	unit := max(unitOf(l.typ), unitOf(r.typ))
	stamp := func(t arrow.DataType) arrow.DataType { // dates count in seconds here
		if isDate(t) {
			return &arrow.TimestampType{Unit: unit}
		}
		return &arrow.TimestampType{Unit: unit, TimeZone: t.(*arrow.TimestampType).TimeZone}
	}
	moment := func(t arrow.DataType) bool { return isDate(t) || t.ID() == arrow.TIMESTAMP }
	du := &arrow.DurationType{Unit: unit}
	var t arrow.DataType
	switch {
	case n.name == "-" && moment(l.typ) && moment(r.typ):
		if err := timesCompare(l.typ, r.typ); err != nil {
			break
		}
		l, r, t = b.convert(l, stamp(l.typ)), b.convert(r, stamp(r.typ)), du
	case (n.name == "+" || n.name == "-") && moment(l.typ) && dur(r.typ):
		t = stamp(l.typ)
		l, r = b.convert(l, t), b.convert(r, du)
	case n.name == "+" && dur(l.typ) && moment(r.typ):
		t = stamp(r.typ)
		l, r = b.convert(l, du), b.convert(r, t)
	case (n.name == "+" || n.name == "-") && dur(l.typ) && dur(r.typ):
		l, r, t = b.convert(l, du), b.convert(r, du), du
	case (n.name == "*" || n.name == "/") && dur(l.typ) && isInt(r.typ):
		t, r = l.typ, b.convert(r, arrow.PrimitiveTypes.Int64)
	case n.name == "*" && isInt(l.typ) && dur(r.typ):
		t, l = r.typ, b.convert(l, arrow.PrimitiveTypes.Int64)
	case l.typ.ID() == arrow.NULL || r.typ.ID() == arrow.NULL:
		return op(n, arrow.Null, nullKernel(arrow.Null), l, r), nil
	}
	if t == nil {
		hint := `: what works is time - time, time + duration("1h"), duration * int`
		return nil, invalid("cannot %s %s and %s%s", verbs[n.name], describe(l), describe(r), hint)
	}
	return failing(op(n, t, arith(pI64, n.name, t), l, r)), nil
}

// timesCompare tells why values of two time types do not compare; nil if they do.
func timesCompare(p, q arrow.DataType) error {
	zoned := func(t arrow.DataType) bool {
		ts, ok := t.(*arrow.TimestampType)
		return ok && ts.TimeZone != "" && ts.TimeZone != "UTC"
	}
	moment := func(t arrow.DataType) bool { return isDate(t) || t.ID() == arrow.TIMESTAMP }
	switch {
	case isDate(p) && zoned(q), zoned(p) && isDate(q):
		return invalid("a date is not a moment in a time zone: use date(t)")
	case moment(p) && moment(q), isClock(p) && isClock(q), p.ID() == q.ID():
		return nil
	}
	return invalid("different kinds of time")
}

func (b *binder) negation(n *node, args []*bound) (*bound, error) {
	v := args[0]
	t := v.typ
	switch {
	case t.ID() == arrow.NULL:
		return v, nil
	case t.ID() == arrow.DURATION:
		return failing(op(n, t, negate(pI64, t), v)), nil
	case !isNumeric(t):
		return nil, invalid("cannot negate %s", describe(v))
	case isDecimal(t):
		t = arrow.PrimitiveTypes.Float64
	case isUint(t):
		t = signed[min(2*bitsOf(t), 64)]
	}
	out := op(n, t, negate(physOf(t), t), b.convert(v, t))
	out.fails = out.fails || isInt(t)
	if v.untyped {
		if out = b.fold(out); out.lit != nil {
			out.untyped = true
		}
	}
	return out, nil
}

func (b *binder) logic(n *node, args []*bound) (*bound, error) {
	for i, v := range args {
		if v.typ.ID() == arrow.NULL {
			args[i], _ = adapt(v, boolType)
			if args[i] == nil {
				args[i] = b.convert(v, boolType)
			}
		} else if v.typ.ID() != arrow.BOOL {
			return nil, invalid("%s needs bool, not %s%s", n.name, describe(v), truthHint(v))
		}
	}
	switch n.name {
	case "!":
		return op(n, boolType, notKernel, args[0]), nil
	}
	and := n.name == "&&"
	return form(n, boolType, func(x *exec, args []*bound) vec { return evalJunction(x, args, and) }, args...), nil
}

// truthHint suggests how to make a bool of an operand.
func truthHint(v *bound) string {
	switch {
	case isNumeric(v.typ):
		return fmt.Sprintf(": use %s != 0", short(v.src))
	case isString(v.typ):
		return fmt.Sprintf(`: use %s != ""`, short(v.src))
	}
	return ": use is_not_null(x)"
}

func (b *binder) comparison(n *node, args []*bound) (*bound, error) {
	out := b.compareTwo(n, n.name, args[0], args[1])
	if out == nil {
		l, r := args[0], args[1]
		return nil, invalid("cannot compare %s with %s%s", describe(l), describe(r), compareHint(n.name, l, r))
	}
	return out, nil
}

func compareHint(op string, l, r *bound) string {
	use := func(f, x, y string) string { return fmt.Sprintf(": use %s(%s) %s %s", f, x, op, y) }
	p, q := short(l.src), short(r.src)
	switch {
	case isNumeric(l.typ) && numberIn(r):
		return fmt.Sprintf(": use %s %s %s", p, op, strings.TrimSpace(r.lit.s))
	case numberIn(l) && isNumeric(r.typ):
		return fmt.Sprintf(": use %s %s %s", strings.TrimSpace(l.lit.s), op, q)
	case isNumeric(l.typ) && isText(r.typ) && r.lit != nil, isText(l.typ) && l.lit != nil && isNumeric(r.typ):
		return ": that text is no number"
	case isText(l.typ) && isNumeric(r.typ):
		return use("double", p, q)
	case isNumeric(l.typ) && isText(r.typ):
		return fmt.Sprintf(": use %s %s double(%s)", p, op, q)
	case l.typ.ID() == arrow.BOOL && isNumeric(r.typ):
		return use("int", p, q)
	case isNumeric(l.typ) && r.typ.ID() == arrow.BOOL:
		return fmt.Sprintf(": use %s %s int(%s)", p, op, q)
	case isTime(l.typ) && isText(r.typ):
		if r.lit != nil {
			if _, err := timeRat(r.lit.s, l.typ); err != nil {
				return ": " + err.Error()
			}
		}
		return fmt.Sprintf(`: use %s %s cast(%s, %q)`, p, op, q, TypeName(l.typ))
	case isText(l.typ) && isTime(r.typ):
		return fmt.Sprintf(`: use cast(%s, %q) %s %s`, p, TypeName(r.typ), op, q)
	case isDate(l.typ) && r.typ.ID() == arrow.TIMESTAMP:
		return fmt.Sprintf(": use %s %s date(%s)", p, op, q)
	case l.typ.ID() == arrow.TIMESTAMP && isDate(r.typ):
		return use("date", p, q)
	case isTime(l.typ) && isNumeric(r.typ):
		return fmt.Sprintf(": use epoch(%s), or a text such as \"2024-01-31\"", p)
	case isNumeric(l.typ) && isTime(r.typ):
		return fmt.Sprintf(": use epoch(%s)", q)
	case isBytes(l.typ) && isText(r.typ):
		return fmt.Sprintf(`: use string(%s)`, p)
	case isText(l.typ) && isBytes(r.typ):
		return fmt.Sprintf(`: use string(%s)`, q)
	case l.typ.ID() == arrow.STRUCT:
		return fmt.Sprintf(": use a field of %s", p)
	case isList(l.typ):
		return fmt.Sprintf(": use contains(%s, x) or an element, %s[0]", p, p)
	}
	return ""
}

// numberIn reports whether v is a text literal that would be a number without its quotes.
func numberIn(v *bound) bool {
	if v.lit == nil || !v.lit.valid || !isText(v.typ) {
		return false
	}
	e, err := Parse(v.lit.s)
	if err != nil || e.root.kind != kLiteral {
		return false
	}
	switch e.root.val.(type) {
	case int64, uint64, float64:
		return true
	}
	return false
}

// lookupHint suggests how to write element e of a list in which v is looked up.
func lookupHint(v, e *bound) string {
	switch {
	case isText(v.typ) && e.lit != nil && isNumeric(e.typ):
		return fmt.Sprintf(": use %q", short(e.src))
	case isNumeric(v.typ) && numberIn(e):
		return ": use " + strings.TrimSpace(e.lit.s)
	}
	return compareHint("==", v, e)
}

// compareTwo makes a comparison; nil if the types do not compare.
func (b *binder) compareTwo(n *node, cmp string, l, r *bound) *bound {
	if l.lit != nil && r.lit == nil {
		return b.compareTwo(n, flip[cmp], r, l)
	}
	if l.typ.ID() == arrow.NULL || r.typ.ID() == arrow.NULL {
		return op(n, boolType, nullKernel(boolType), l, r)
	}
	if r.lit != nil && r.lit.valid {
		o, s, v, ok := versus(cmp, l.typ, r)
		switch {
		case v != perhaps:
			return op(n, boolType, constant(v == always), l)
		case ok:
			lit := *r
			lit.typ, lit.lit, lit.untyped = l.typ, s, false
			return op(n, boolType, compare(physOf(l.typ), o), l, &lit)
		}
	}
	lt, rt := l.typ, r.typ
	i64, u64, f64 := arrow.PrimitiveTypes.Int64, arrow.PrimitiveTypes.Uint64, arrow.PrimitiveTypes.Float64
	wide := func(t arrow.DataType) bool { return isInt(t) && bitsOf(t) == 64 }
	both := func(t arrow.DataType) *bound {
		return op(n, boolType, compare(physOf(t), cmp), b.convert(l, t), b.convert(r, t))
	}
	switch {
	case isDecimal(lt) && isDecimal(rt):
		p, q := lt.(*arrow.Decimal128Type).Scale, rt.(*arrow.Decimal128Type).Scale
		if p == q {
			return op(n, boolType, compare(pDec, cmp), l, r)
		}
		return op(n, boolType, compareScaled(cmp, p, q), l, r)
	case isDecimal(lt) && isInt(rt), isInt(lt) && isDecimal(rt):
		whole := &arrow.Decimal128Type{Precision: 20}
		if isInt(lt) {
			l = b.convert(l, whole)
		} else {
			r = b.convert(r, whole)
		}
		return b.compareTwo(n, cmp, l, r)
	case isNumeric(lt) && isNumeric(rt):
		switch {
		case wide(lt) && isUint(lt) && isInt(rt) && !isUint(rt):
			return op(n, boolType, mixed(flip[cmp], orderIntUint), b.convert(r, i64), l)
		case isInt(lt) && !isUint(lt) && wide(rt) && isUint(rt):
			return op(n, boolType, mixed(cmp, orderIntUint), b.convert(l, i64), r)
		case wide(lt) && isFloating(rt) && isUint(lt):
			return op(n, boolType, mixed(cmp, orderUintFloat), l, b.convert(r, f64))
		case wide(lt) && isFloating(rt):
			return op(n, boolType, mixed(cmp, orderIntFloat), l, b.convert(r, f64))
		case isFloating(lt) && wide(rt) && isUint(rt):
			return op(n, boolType, mixed(flip[cmp], orderUintFloat), b.convert(r, u64), b.convert(l, f64))
		case isFloating(lt) && wide(rt):
			return op(n, boolType, mixed(flip[cmp], orderIntFloat), b.convert(r, i64), b.convert(l, f64))
		case isFloating(lt) != isFloating(rt): // up to 32 bits: exact as double
			return both(f64)
		}
		return both(widen(lt, rt))
	case isTime(lt) && isTime(rt):
		switch {
		case timesCompare(lt, rt) != nil:
			return nil
		case nanosPer(lt) == nanosPer(rt) && physOf(lt) == physOf(rt):
			return op(n, boolType, compare(physOf(lt), cmp), l, r)
		}
		return op(n, boolType, compareTimes(cmp, lt, rt), l, r)
	case lt.ID() == arrow.BOOL && rt.ID() == arrow.BOOL:
		return both(boolType)
	case isText(lt) && isText(rt), isBytes(lt) && isBytes(rt):
		return op(n, boolType, compare(pString, cmp), l, r)
	}
	return nil
}

// constant is a bool for every row that is not null.
func constant(v bool) kernel {
	return func(x *exec, a []vec) vec {
		buf, out := allocBits(x.mem, a[0].n)
		for k := range out {
			out[k] = -b2u(v)
		}
		return x.array(boolType, a[0].n, x.valid(a[0].n, a[0]), buf)
	}
}

// compareScaled orders decimals of different scales.
func compareScaled(cmp string, p, q int32) kernel {
	return func(x *exec, a []vec) vec {
		l, r := decimals(a[0]), decimals(a[1])
		up, down := big.NewInt(1), big.NewInt(1)
		if p < q {
			up = pow10(int(q - p))
		} else {
			down = pow10(int(p - q))
		}
		return compareBits(x, a, func(i int) bool {
			u, v := l(i).BigInt(), r(i).BigInt()
			return opHolds(cmp, u.Mul(u, up).Cmp(v.Mul(v, down)))
		})
	}
}

// in is x in [literals] or x in list.
func (b *binder) in(n *node) (*bound, error) {
	v, err := b.bind(n.args[0])
	if err != nil {
		return nil, err
	}
	v = decoded(v)
	if n.args[1].kind != kList {
		list, err := b.bind(n.args[1])
		if err != nil {
			return nil, err
		}
		list = decoded(list)
		if !isList(list.typ) {
			return nil, invalid("in needs a list to its right, not %s: x in [1, 2]", describe(list))
		}
		out, err := b.contains(n, list, v)
		if err != nil {
			return nil, err
		}
		return b.fold(out), nil
	}
	var set []*scalar
	null, simple := v.typ.ID() == arrow.NULL, true
	elems := make([]*bound, len(n.args[1].args))
	for i, a := range n.args[1].args {
		e, err := b.bind(a)
		if err != nil {
			return nil, err
		}
		e = decoded(e)
		elems[i] = e
		if e.lit == nil {
			simple = false
			continue
		}
		if !e.lit.valid {
			null = true
			continue
		}
		if v.typ.ID() == arrow.NULL {
			continue
		}
		_, s, known, ok := versus("==", v.typ, e)
		switch {
		case !ok && b.compareTwo(n, "==", v, e) == nil:
			return nil, invalid("cannot look up %s among %s%s", describe(v), describe(e), lookupHint(v, e))
		case !ok:
			simple = false
		case known == perhaps:
			set = append(set, s)
		}
	}
	switch {
	case v.typ.ID() == arrow.NULL:
		return op(n, boolType, nullKernel(boolType), v), nil
	case simple && physOf(v.typ) == pOther:
		return nil, invalid("cannot look up %s in a list", describe(v))
	case simple:
		return b.fold(op(n, boolType, inSet(physOf(v.typ), set, null), v)), nil
	}
	// Elements that are no literals, or only compare by a kernel: an || of ==.
	args := make([]*bound, len(elems))
	for i, e := range elems {
		if args[i] = b.compareTwo(n, "==", v, e); args[i] == nil {
			return nil, invalid("cannot compare %s with %s%s", describe(v), describe(e), compareHint("==", v, e))
		}
	}
	return form(n, boolType, func(x *exec, args []*bound) vec { return evalJunction(x, args, false) }, args...), nil
}

// contains is v in list.
func (b *binder) contains(n *node, list, v *bound) (*bound, error) {
	if v.typ.ID() == arrow.NULL {
		return op(n, boolType, nullKernel(boolType), list, v), nil
	}
	et := elemType(list.typ)
	if plainType(et) != nil {
		return nil, invalid("contains of %s is not supported: cast the list first", describe(list))
	}
	if v.lit != nil && v.lit.valid && et.ID() != arrow.NULL {
		_, s, known, ok := versus("==", et, v)
		switch {
		case known == never:
			return op(n, boolType, listContains(func(x *exec, a []vec) vec { return constant(false)(x, a[:1]) }), list, v), nil
		case ok:
			lit := *v
			lit.typ, lit.lit, lit.untyped = et, s, false
			return op(n, boolType, listContains(compare(physOf(et), "==")), list, &lit), nil
		}
	}
	// Elements and values side by side are columns 0 and 1 of a batch of their own.
	same := b.compareTwo(n, "==", &bound{src: n, typ: et, col: 0}, &bound{src: v.src, typ: v.typ, col: 1})
	if same == nil || same.fails {
		return nil, invalid("cannot look up %s in a list of %s: use cast(%s, %q)", describe(v), TypeName(et), short(v.src), TypeName(et))
	}
	return op(n, boolType, listContains(func(x *exec, a []vec) vec {
		sub := &exec{n: a[0].n, rows: x.rows, mem: x.mem}
		val := sub.expand(retain(vec{typ: a[1].typ, n: a[0].n, lit: a[1].lit, data: a[1].data}))
		defer val.release()
		sub.cols = []arrow.ArrayData{a[0].data, val.data}
		out := sub.expand(same.run(sub))
		if sub.err != nil {
			x.failBatch(sub.err)
		}
		return out
	}), list, v), nil
}

func (b *binder) ternary(n *node, args []*bound) (*bound, error) {
	c := args[0]
	if c.typ.ID() == arrow.NULL {
		c, _ = adapt(c, boolType)
	}
	if c == nil || c.typ.ID() != arrow.BOOL {
		return nil, invalid("the condition of ?: must be bool, not %s%s", describe(args[0]), truthHint(args[0]))
	}
	t, err := b.alike(n, args[1:], "choose between")
	if err != nil {
		return nil, err
	}
	out := form(n, t, func(x *exec, args []*bound) vec { return evalTernary(x, t, args) }, c, b.convert(args[1], t), b.convert(args[2], t))
	if args[1].untyped && args[2].untyped {
		out.untyped = c.lit != nil
	}
	return out, nil
}

// alike is the type that all of args become.
func (b *binder) alike(n *node, args []*bound, verb string) (arrow.DataType, error) {
	t, p, q := commonType(args, unify)
	if t == nil {
		return nil, invalid("cannot %s %s and %s: cast one to the other's type", verb, describe(p), describe(q))
	}
	return t, nil
}
