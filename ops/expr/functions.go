package expr

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"regexp"
	"regexp/syntax"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
)

// function is an operator or function of the language. bind gets plain arguments
// of a number between min and max; raw does everything itself.
type function struct {
	min, max int
	usage    string
	bind     func(b *binder, n *node, args []*bound) (*bound, error)
	raw      func(b *binder, n *node) (*bound, error)
}

func (f *function) takes() string {
	switch {
	case f.max >= manyArgs:
		return fmt.Sprintf("%d or more arguments", f.min)
	case f.min == f.max && f.min == 1:
		return "1 argument"
	case f.min == f.max:
		return fmt.Sprintf("%d arguments", f.min)
	}
	return fmt.Sprintf("%d to %d arguments", f.min, f.max)
}

const manyArgs = 1 << 16

// functions are all operators and functions by name; written once, by init,
// because binding a call refers to it.
var functions map[string]*function

func init() {
	type fn = function
	arith := &fn{min: 2, max: 2, bind: (*binder).arithmetic}
	compare := &fn{min: 2, max: 2, bind: (*binder).comparison}
	logic := &fn{min: 2, max: manyArgs, bind: (*binder).logic}
	functions = map[string]*function{
		"+": arith, "-": arith, "*": arith, "/": arith, "%": arith,
		"==": compare, "!=": compare, "<": compare, "<=": compare, ">": compare, ">=": compare,
		"&&": logic, "||": logic, "!": {min: 1, max: 1, bind: (*binder).logic}, "neg": {min: 1, max: 1, bind: (*binder).negation},
		"?:": {min: 3, max: 3, bind: (*binder).ternary}, "in": {min: 2, max: 2, raw: (*binder).in},
		"[]": {min: 2, max: 2, bind: (*binder).index},

		"is_null":     {1, 1, "is_null(x)", nil, nullTest(true)},
		"is_not_null": {1, 1, "is_not_null(x)", nil, nullTest(false)},
		"coalesce":    {1, manyArgs, "coalesce(x, ...)", (*binder).coalesce, nil},
		"cast":        {2, 2, `cast(x, "type")`, nil, castNamed(false)},
		"try_cast":    {2, 2, `try_cast(x, "type")`, nil, castNamed(true)},
		"int":         castAs("int", "int64"),
		"double":      castAs("double", "double"),
		"string":      castAs("string", "string"),
		"bool":        castAs("bool", "bool"),
		"timestamp":   castAs("timestamp", "timestamp"),
		"date":        castAs("date", "date"),
		"duration":    castAs("duration", "duration"),
		"binary":      castAs("binary", "binary"),

		"abs":   {1, 1, "abs(x)", (*binder).abs, nil},
		"sqrt":  mathFn("sqrt", math.Sqrt, nil),
		"exp":   mathFn("exp", math.Exp, nil),
		"log":   mathFn("log", math.Log, log32),
		"log1p": mathFn("log1p", math.Log1p, log1p32),
		"pow":   {2, 2, "pow(x, y)", (*binder).pow, nil},
		"floor": {1, 1, "floor(x)", rounding(math.Floor), nil},
		"ceil":  {1, 1, "ceil(x)", rounding(math.Ceil), nil},
		"round": {1, 2, "round(x[, digits])", (*binder).round, nil},
		"min":   {1, manyArgs, "min(x, ...)", extreme(true), nil},
		"max":   {1, manyArgs, "max(x, ...)", extreme(false), nil},
		"clip":  {3, 3, "clip(x, low, high)", (*binder).clip, nil},
		"isnan": {1, 1, "isnan(x)", (*binder).isNaN, nil},

		"contains":   {2, 2, "contains(s, part)", (*binder).containsAny, nil},
		"startsWith": {2, 2, "startsWith(s, prefix)", textTest(bytes.HasPrefix), nil},
		"endsWith":   {2, 2, "endsWith(s, suffix)", textTest(bytes.HasSuffix), nil},
		"matches":    {2, 2, `matches(s, "regexp")`, (*binder).matches, nil},
		"lower":      {1, 1, "lower(s)", textMap(lowerRow), nil},
		"upper":      {1, 1, "upper(s)", textMap(upperRow), nil},
		"trim":       {1, 1, "trim(s)", textMap(trimRow), nil},
		"replace":    {3, 3, "replace(s, old, new)", textMap(replaceRow), nil},
		"concat":     {1, manyArgs, "concat(s, ...)", (*binder).concat, nil},
		"split":      {2, 2, "split(s, separator)", (*binder).split, nil},
		"substr":     {2, 3, "substr(s, from[, count])", (*binder).substr, nil},
		"size":       {1, 1, "size(x)", (*binder).size, nil},

		"slice": {2, 3, "slice(list, from[, to])", (*binder).slice, nil},

		"hash":   {1, manyArgs, "hash(x, ...)", (*binder).hash, nil},
		"random": {0, 0, "random()", (*binder).random, nil},
	}
	for _, name := range []string{"year", "month", "day", "weekday", "hour", "minute", "second", "epoch"} {
		functions[name] = &fn{1, 1, name + "(t)", (*binder).datePart, nil}
	}
}

// want reports an argument of the wrong type.
func want(n *node, what string, v *bound) error {
	hint := ""
	switch {
	case what == "a number" && isText(v.typ):
		hint = fmt.Sprintf(": use double(%s)", short(v.src))
	case what == "a string" && (isNumeric(v.typ) || isTime(v.typ) || v.typ.ID() == arrow.BOOL || isBytes(v.typ)):
		hint = fmt.Sprintf(": use string(%s)", short(v.src))
	case what == "a date or timestamp" && isText(v.typ):
		hint = fmt.Sprintf(": use timestamp(%s)", short(v.src))
	case what == "an integer" && isFloating(v.typ):
		hint = fmt.Sprintf(": use int(%s)", short(v.src))
	}
	return invalid("%s needs %s, not %s%s", n.name, what, describe(v), hint)
}

func nullTyped(v *bound) bool { return v.typ.ID() == arrow.NULL }

func nullTest(null bool) func(b *binder, n *node) (*bound, error) {
	return func(b *binder, n *node) (*bound, error) {
		v, err := b.bind(n.args[0])
		if err != nil {
			return nil, err
		}
		return b.fold(form(n, boolType, func(x *exec, args []*bound) vec {
			a := args[0].run(x)
			defer a.release()
			return isNull(x, a, null)
		}, v)), nil
	}
}

func (b *binder) coalesce(n *node, args []*bound) (*bound, error) {
	t, err := b.alike(n, args, "coalesce")
	if err != nil {
		return nil, err
	}
	same := make([]*bound, len(args))
	untyped := true
	for i, v := range args {
		same[i] = b.convert(v, t)
		untyped = untyped && (v.untyped || nullTyped(v))
	}
	out := form(n, t, func(x *exec, args []*bound) vec { return evalCoalesce(x, t, args) }, same...)
	if out = b.fold(out); out.lit != nil && out.lit.valid && isNumeric(t) {
		out.untyped = untyped
	}
	return out, nil
}

func castNamed(try bool) func(b *binder, n *node) (*bound, error) {
	return func(b *binder, n *node) (*bound, error) {
		name, ok := stringArg(n.args, 1)
		if !ok {
			return nil, invalid(`the second argument of %s is a type in quotes, such as "float32", not %s`, n.name, short(n.args[1]))
		}
		v, err := b.bind(n.args[0])
		if err != nil {
			return nil, err
		}
		t, err := ParseType(name)
		switch {
		case err != nil && name == TypeName(v.typ): // a type that only Cast can name
			t = v.typ
		case err != nil:
			return nil, invalid("%s: %v", short(n), err)
		}
		return b.castChecked(n, v, t, try)
	}
}

func castAs(name, typ string) *function {
	return &function{1, 1, name + "(x)", nil, func(b *binder, n *node) (*bound, error) {
		t, err := ParseType(typ)
		if err != nil {
			return nil, err
		}
		v, err := b.bind(n.args[0])
		if err != nil {
			return nil, err
		}
		return b.castChecked(n, v, t, false)
	}}
}

func (b *binder) castChecked(n *node, v *bound, t arrow.DataType, try bool) (*bound, error) {
	if arrow.TypeEqual(v.typ, t) {
		c := *v
		c.untyped = false
		return &c, nil
	}
	for _, z := range []*bound{v, {src: n, typ: t}} {
		if err := checkZone(z); err != nil {
			return nil, err
		}
	}
	out, err := b.castTo(n, v, t, try)
	if err != nil {
		return nil, err
	}
	return b.fold(out), nil
}

func (b *binder) abs(n *node, args []*bound) (*bound, error) {
	v := args[0]
	t := v.typ
	switch {
	case nullTyped(v):
		return v, nil
	case isDecimal(t):
		t = arrow.PrimitiveTypes.Float64
	case isUint(t):
		return v, nil
	case t.ID() != arrow.DURATION && !isNumeric(t):
		return nil, want(n, "a number", v)
	}
	p := physOf(t)
	out := op(n, t, absKernel(p, t), b.convert(v, t))
	out.fails = out.fails || p != pF32 && p != pF64
	return out, nil
}

// floatOf is the type that math functions compute in: float stays, else double.
func floatOf(t arrow.DataType) arrow.DataType {
	if t.ID() == arrow.FLOAT32 {
		return t
	}
	return arrow.PrimitiveTypes.Float64
}

// mathFn is a function of doubles; of floats f32, if there is one.
func mathFn(name string, f func(float64) float64, f32 func(float32) float32) *function {
	return &function{1, 1, name + "(x)", func(b *binder, n *node, args []*bound) (*bound, error) {
		v := args[0]
		if nullTyped(v) {
			return v, nil
		}
		if !isNumeric(v.typ) {
			return nil, want(n, "a number", v)
		}
		t := floatOf(v.typ)
		k := floatMap(t, f)
		if t.ID() == arrow.FLOAT32 && f32 != nil {
			k = mapFloat(t, f32)
		}
		return op(n, t, k, b.convert(v, t)), nil
	}, nil}
}

// floatMap applies a function of doubles to floats of either size.
func floatMap(t arrow.DataType, f func(float64) float64) kernel {
	if t.ID() == arrow.FLOAT32 {
		return mapFloat(t, func(v float32) float32 { return float32(f(float64(v))) })
	}
	return mapFloat(t, f)
}

func (b *binder) pow(n *node, args []*bound) (*bound, error) {
	for _, v := range args {
		if !isNumeric(v.typ) && !nullTyped(v) {
			return nil, want(n, "a number", v)
		}
	}
	t, _, _ := commonType(args, widen)
	if t = floatOf(t); args[0].typ.ID() == arrow.NULL || args[1].typ.ID() == arrow.NULL {
		return op(n, arrow.Null, nullKernel(arrow.Null), args...), nil
	}
	k := powKernel[float64](t)
	if t.ID() == arrow.FLOAT32 {
		k = powKernel[float32](t)
	}
	return op(n, t, k, b.convert(args[0], t), b.convert(args[1], t)), nil
}

func powKernel[T float](t arrow.DataType) kernel {
	return func(x *exec, a []vec) vec {
		buf, r := allocOf[T](x.mem, a[0].n)
		p, lp := values[T](a[0])
		q, lq := values[T](a[1])
		for i := range r {
			r[i] = T(math.Pow(float64(at(p, lp, i)), float64(at(q, lq, i))))
		}
		return x.array(t, a[0].n, x.valid(a[0].n, a...), buf)
	}
}

func rounding(f func(float64) float64) func(b *binder, n *node, args []*bound) (*bound, error) {
	return func(b *binder, n *node, args []*bound) (*bound, error) {
		v := args[0]
		switch {
		case nullTyped(v) || isInt(v.typ):
			return v, nil
		case !isNumeric(v.typ):
			return nil, want(n, "a number", v)
		}
		t := floatOf(v.typ)
		return op(n, t, floatMap(t, f), b.convert(v, t)), nil
	}
}

func (b *binder) round(n *node, args []*bound) (*bound, error) {
	if len(args) == 1 {
		return rounding(math.Round)(b, n, args)
	}
	d := args[1]
	if d.lit == nil || !d.lit.valid || !isInt(d.typ) || d.lit.i < -300 || d.lit.i > 300 {
		return nil, invalid("the digits of round are an integer literal from -300 to 300, not %s", short(d.src))
	}
	digits := int(d.lit.i)
	if isInt(args[0].typ) && digits >= 0 {
		return args[0], nil
	}
	return rounding(func(v float64) float64 { return roundTo(v, digits) })(b, n, []*bound{b.convertIf(args[0])})
}

// convertIf makes an integer a double.
func (b *binder) convertIf(v *bound) *bound {
	if isInt(v.typ) {
		return b.convert(v, arrow.PrimitiveTypes.Float64)
	}
	return v
}

// roundTo rounds half away from zero to a number of decimal digits.
func roundTo(v float64, digits int) float64 {
	s := math.Pow(10, float64(max(digits, -digits)))
	r := math.Round(v*s) / s
	if digits < 0 {
		r = math.Round(v/s) * s
	}
	if math.IsNaN(r) || math.IsInf(r, 0) {
		return v // too large to have digits there
	}
	return r
}

func (b *binder) isNaN(n *node, args []*bound) (*bound, error) {
	v := args[0]
	switch {
	case nullTyped(v):
		return op(n, boolType, nullKernel(boolType), v), nil
	case isInt(v.typ) || isDecimal(v.typ):
		return op(n, boolType, constant(false), v), nil
	case !isFloating(v.typ):
		return nil, want(n, "a number", v)
	}
	cmp := numCompare[physOf(v.typ)]("!=")
	return op(n, boolType, func(x *exec, a []vec) vec { return cmp(x, []vec{a[0], a[0]}) }, v), nil
}

// texts checks that all of args are texts or null; those are then null texts.
func (b *binder) texts(n *node, args []*bound) (null bool, err error) {
	for _, v := range args {
		if nullTyped(v) {
			null = true
		} else if !isText(v.typ) {
			return false, want(n, "a string", v)
		}
	}
	return null, nil
}

func textTest(f func(s, by []byte) bool) func(b *binder, n *node, args []*bound) (*bound, error) {
	return func(b *binder, n *node, args []*bound) (*bound, error) {
		if isBytes(args[0].typ) && isString(args[1].typ) { // bytes may be tested too
			return op(n, boolType, stringTest(f), args...), nil
		}
		if null, err := b.texts(n, args); err != nil {
			return nil, err
		} else if null {
			return op(n, boolType, nullKernel(boolType), args...), nil
		}
		return op(n, boolType, stringTest(f), args...), nil
	}
}

func (b *binder) containsAny(n *node, args []*bound) (*bound, error) {
	if isList(args[0].typ) {
		return b.contains(n, args[0], args[1])
	}
	if !isString(args[0].typ) && !nullTyped(args[0]) {
		return nil, want(n, "a string or a list", args[0])
	}
	return textTest(bytes.Contains)(b, n, args)
}

func (b *binder) matches(n *node, args []*bound) (*bound, error) {
	if null, err := b.texts(n, args); err != nil {
		return nil, err
	} else if null {
		return op(n, boolType, nullKernel(boolType), args...), nil
	}
	pat := args[1]
	if pat.lit == nil {
		return nil, invalid("matches needs a literal pattern, not %s", describe(pat))
	}
	if !pat.lit.valid {
		return op(n, boolType, nullKernel(boolType), args...), nil
	}
	if len(pat.lit.s) > maxRegex {
		return nil, invalid("regular expression of %d bytes; at most %d", len(pat.lit.s), maxRegex)
	}
	re, err := regexp.Compile(pat.lit.s)
	if err != nil {
		return nil, invalid("matches: the pattern %s is no regular expression, in the syntax of RE2: %s", cut(pat.lit.s), whyRegexp(err))
	}
	return op(n, boolType, matchKernel(re), args[0]), nil
}

// whyRegexp is what is wrong with a pattern, and where.
func whyRegexp(err error) string {
	e, ok := errors.AsType[*syntax.Error](err)
	if !ok {
		return err.Error()
	}
	switch why := e.Code; why {
	case syntax.ErrInvalidPerlOp:
		return fmt.Sprintf("%s is not there, as there is no looking ahead or behind", cut(e.Expr))
	case syntax.ErrMissingRepeatArgument:
		return fmt.Sprintf("nothing stands before %s; write \\ before it for the character itself", cut(e.Expr))
	case syntax.ErrLarge:
		return "it is too large when its repetitions are written out"
	default:
		return fmt.Sprintf("%s at %s", why, cut(e.Expr))
	}
}

func textMap(f func(o *stringsOut, in []texts, i int)) func(b *binder, n *node, args []*bound) (*bound, error) {
	return func(b *binder, n *node, args []*bound) (*bound, error) {
		if null, err := b.texts(n, args); err != nil {
			return nil, err
		} else if null {
			return op(n, arrow.BinaryTypes.String, nullKernel(arrow.BinaryTypes.String), args...), nil
		}
		t := args[0].typ
		return op(n, t, stringMap(t, f), args...), nil
	}
}

func (b *binder) concat(n *node, args []*bound) (*bound, error) {
	t := arrow.DataType(arrow.BinaryTypes.String)
	for _, v := range args {
		if !isText(v.typ) && !nullTyped(v) {
			return nil, want(n, "a string", v)
		}
		if v.typ.ID() == arrow.LARGE_STRING {
			t = v.typ
		}
	}
	k := concatKernel(t)
	return form(n, t, func(x *exec, args []*bound) vec {
		vs := make([]vec, len(args))
		for i, a := range args {
			vs[i] = a.run(x)
		}
		out := k(x, vs)
		for _, v := range vs {
			v.release()
		}
		return out
	}, args...), nil
}

func (b *binder) split(n *node, args []*bound) (*bound, error) {
	t := arrow.ListOf(arrow.BinaryTypes.String)
	if null, err := b.texts(n, args); err != nil {
		return nil, err
	} else if null {
		return op(n, t, nullKernel(t), args...), nil
	}
	return op(n, t, splitKernel(arrow.BinaryTypes.String), args...), nil
}

// ints checks that args are integers and makes them int64.
func (b *binder) ints(n *node, args []*bound) error {
	for i, v := range args {
		if !isInt(v.typ) && !nullTyped(v) {
			return want(n, "an integer", v)
		}
		args[i] = b.convert(v, arrow.PrimitiveTypes.Int64)
	}
	return nil
}

func (b *binder) substr(n *node, args []*bound) (*bound, error) {
	if err := b.ints(n, args[1:]); err != nil {
		return nil, err
	}
	if null, err := b.texts(n, args[:1]); err != nil {
		return nil, err
	} else if null {
		return op(n, arrow.BinaryTypes.String, nullKernel(arrow.BinaryTypes.String), args...), nil
	}
	t := args[0].typ
	return op(n, t, substrKernel(t), args...), nil
}

func (b *binder) size(n *node, args []*bound) (*bound, error) {
	v, t := args[0], arrow.PrimitiveTypes.Int64
	switch {
	case nullTyped(v):
		return op(n, t, nullKernel(t), v), nil
	case isString(v.typ):
		return op(n, t, sizeText, v), nil
	case isList(v.typ) || v.typ.ID() == arrow.MAP:
		return op(n, t, sizeList, v), nil
	}
	return nil, want(n, "a string or a list", v)
}

func (b *binder) index(n *node, args []*bound) (*bound, error) {
	if !isList(args[0].typ) {
		return nil, invalid("only lists have elements, not %s%s", describe(args[0]), indexHint(args[0]))
	}
	if err := b.ints(&node{name: "list[i]"}, args[1:]); err != nil {
		return nil, err
	}
	t := elemType(args[0].typ)
	return op(n, t, indexList(t), args...), nil
}

func indexHint(v *bound) string {
	if isText(v.typ) {
		return fmt.Sprintf(": use substr(%s, i, 1)", short(v.src))
	}
	return ""
}

func (b *binder) slice(n *node, args []*bound) (*bound, error) {
	if !isList(args[0].typ) {
		return nil, want(n, "a list", args[0])
	}
	if err := b.ints(n, args[1:]); err != nil {
		return nil, err
	}
	t := arrow.ListOfField(args[0].typ.(arrow.ListLikeType).ElemField())
	return op(n, t, sliceList(t), args...), nil
}

func (b *binder) datePart(n *node, args []*bound) (*bound, error) {
	v := args[0]
	clock := n.name == "hour" || n.name == "minute" || n.name == "second"
	switch t := v.typ.ID(); {
	case nullTyped(v):
		return op(n, arrow.Null, nullKernel(arrow.Null), v), nil
	case t == arrow.TIMESTAMP || isDate(v.typ), isClock(v.typ) && clock, t == arrow.DURATION && n.name == "epoch":
	default:
		return nil, want(n, "a date or timestamp", v)
	}
	if err := checkZone(v); err != nil {
		return nil, err
	}
	t := arrow.PrimitiveTypes.Int64
	if n.name == "epoch" {
		t = arrow.PrimitiveTypes.Float64
	}
	return op(n, t, datePart(n.name, v.typ), v), nil
}

func (b *binder) hash(n *node, args []*bound) (*bound, error) {
	for _, v := range args {
		if physOf(v.typ) == pOther && !nullTyped(v) {
			return nil, fault.New(fault.Invalid, "hash takes no %s: %s", TypeName(v.typ), describe(v))
		}
	}
	return form(n, arrow.PrimitiveTypes.Uint64, func(x *exec, args []*bound) vec {
		vs := make([]vec, len(args))
		for i, a := range args {
			vs[i] = a.run(x)
		}
		out := hashKernel(x, vs)
		for _, v := range vs {
			v.release()
		}
		return out
	}, args...), nil
}

func (b *binder) random(n *node, _ []*bound) (*bound, error) {
	site, nth := b.site, b.rand
	b.rand++
	v := form(n, arrow.PrimitiveTypes.Float64, func(x *exec, _ []*bound) vec { return evalRandom(x, site, nth) })
	v.pure = false
	return v, nil
}
