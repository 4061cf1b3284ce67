package expr

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
)

// The reference interpreter: one row at a time, integers of any size, nothing
// shared with the kernels but the syntax tree and the types of results.
//
// Values are nil, bool, *big.Int (integers, dates and times in their unit),
// *big.Rat (decimals), float64, string and []any.

var errRef = errors.New("row error")

type ref struct {
	schema *arrow.Schema
	rec    arrow.RecordBatch
	types  map[*node]arrow.DataType
}

// typ is the type of a part by itself.
func (r *ref) typ(n *node) arrow.DataType {
	if t, ok := r.types[n]; ok {
		return t
	}
	p, err := (&Expr{n}).Bind(r.schema, 0)
	if err != nil {
		panic(fmt.Sprintf("%s: %v", n, err))
	}
	r.types[n] = p.Type()
	return p.Type()
}

// untyped: numbers written in the text, and what is computed of them alone.
func (r *ref) untyped(n *node) bool {
	switch {
	case n.kind == kLiteral:
		return n.isNumber()
	case n.is("?:"):
		return r.constant(n.args[0]) && r.untyped(n.args[1]) && r.untyped(n.args[2])
	case n.is("+"), n.is("-"), n.is("*"), n.is("/"), n.is("%"), n.is("neg"):
		for _, a := range n.args {
			if !r.untyped(a) {
				return false
			}
		}
	case n.is("coalesce"):
		for _, a := range n.args {
			if !r.untyped(a) && !(a.kind == kLiteral && a.val == nil) {
				return false
			}
		}
	default:
		return false
	}
	v, err := r.eval(n, 0)
	return err == nil && v != nil
}

func (r *ref) constant(n *node) bool {
	out := true
	n.walk(func(m *node) { out = out && m.kind != kColumn && !m.is("random") }, map[*node]bool{})
	return out
}

func (r *ref) eval(n *node, row int) (any, error) {
	switch n.kind {
	case kColumn:
		return cell(r.rec.Column(r.schema.FieldIndices(n.name)[0]), row), nil
	case kLiteral:
		switch v := n.val.(type) {
		case int64:
			return big.NewInt(v), nil
		case uint64:
			return new(big.Int).SetUint64(v), nil
		}
		return n.val, nil
	}
	// What does not look at all of its arguments.
	switch n.name {
	case "&&", "||":
		decided := n.name == "||"
		var out any = !decided
		for _, a := range n.args {
			v, err := r.eval(a, row)
			if err != nil {
				return nil, err
			}
			if v == decided {
				return v, nil
			}
			if v == nil {
				out = nil
			}
		}
		return out, nil
	case "?:":
		v, err := r.eval(n.args[0], row)
		if err != nil {
			return nil, err
		}
		if v == true {
			return r.as(n.args[1], r.typ(n), row)
		}
		return r.as(n.args[2], r.typ(n), row)
	case "coalesce":
		for _, a := range n.args {
			if v, err := r.as(a, r.typ(n), row); err != nil || v != nil {
				return v, err
			}
		}
		return nil, nil
	case "in":
		return r.in(n, row)
	}
	args := make([]any, len(n.args))
	var failed error
	for i, a := range n.args {
		var err error
		if args[i], err = r.eval(a, row); err != nil && failed == nil {
			failed = err
		}
	}
	if failed != nil {
		return nil, failed
	}
	switch n.name {
	case "is_null":
		return args[0] == nil, nil
	case "is_not_null":
		return args[0] != nil, nil
	case "concat":
		s := ""
		for _, a := range args {
			if a != nil {
				s += a.(string)
			}
		}
		return s, nil
	case "min", "max":
		return r.extreme(n, r.typ(n), row)
	case "clip":
		return r.clip(n, row)
	}
	if t := r.typ(n); (n.is("+") || n.is("-") || n.is("*") || n.is("/") || n.is("%")) && isNumeric(t) {
		for i, a := range args { // a value that does not fit fails, null beside it or not
			if a == nil {
				continue
			}
			var err error
			if args[i], err = into(a, r.typ(n.args[i]), t); err != nil {
				return nil, err
			}
		}
	}
	for _, a := range args {
		if a == nil {
			return nil, nil
		}
	}
	return r.strict(n, args, row)
}

// as is a part's value as type t, which it fits or fails.
func (r *ref) as(n *node, t arrow.DataType, row int) (any, error) {
	v, err := r.eval(n, row)
	if err != nil || v == nil {
		return v, err
	}
	return into(v, r.typ(n), t)
}

func into(v any, from, t arrow.DataType) (any, error) {
	switch {
	case isFloating(t):
		f := toFloat(v)
		if t.ID() == arrow.FLOAT32 {
			f = float64(float32(f))
		}
		return f, nil
	case isInt(t):
		i, ok := v.(*big.Int)
		if f, isF := v.(float64); isF {
			if math.IsNaN(f) || math.IsInf(f, 0) {
				return nil, errRef
			}
			i, _ = big.NewFloat(math.Trunc(f)).Int(nil)
			ok = true
		}
		if !ok {
			return v, nil
		}
		lo, hi := big.NewInt(0), new(big.Int).Lsh(big.NewInt(1), uint(bitsOf(t)))
		if !strings.HasPrefix(t.Name(), "u") {
			lo = new(big.Int).Neg(new(big.Int).Rsh(hi, 1))
			hi = new(big.Int).Rsh(hi, 1)
		}
		if i.Cmp(lo) < 0 || i.Cmp(hi) >= 0 {
			return nil, errRef
		}
		return i, nil
	case t.ID() == arrow.TIMESTAMP && from.ID() != arrow.STRING:
		ns := new(big.Int).Mul(v.(*big.Int), new(big.Int).SetUint64(nanosPer(from)))
		ns.Div(ns, new(big.Int).SetUint64(nanosPer(t)))
		if !ns.IsInt64() {
			return nil, errRef
		}
		return ns, nil
	}
	return v, nil
}

func toFloat(v any) float64 {
	switch v := v.(type) {
	case *big.Int:
		f, _ := new(big.Rat).SetInt(v).Float64()
		return f
	case *big.Rat:
		f, _ := v.Float64()
		return f
	}
	return v.(float64)
}

func (r *ref) strict(n *node, a []any, row int) (any, error) {
	t := r.typ(n)
	switch n.name {
	case "+", "-", "*", "/", "%":
		if s, ok := a[0].(string); ok {
			return s + a[1].(string), nil
		}
		if isInt(t) {
			return intRef(n.name, a[0].(*big.Int), a[1].(*big.Int), t)
		}
		u, v := a[0].(float64), a[1].(float64)
		var w float64
		switch n.name {
		case "+":
			w = u + v
		case "-":
			w = u - v
		case "*":
			w = u * v
		case "/":
			w = u / v
		case "%":
			w = math.Mod(u, v)
		}
		if t.ID() == arrow.FLOAT32 {
			w = float64(float32(w)) // rounding twice is harmless for these on float
		}
		return w, nil
	case "neg":
		if isInt(t) {
			return into(new(big.Int).Neg(a[0].(*big.Int)), t, t)
		}
		return -toFloat(a[0]), nil
	case "abs":
		if isInt(t) {
			return into(new(big.Int).Abs(a[0].(*big.Int)), t, t)
		}
		return math.Abs(toFloat(a[0])), nil
	case "==", "!=", "<", "<=", ">", ">=":
		c, ordered := r.compare(n.args[0], n.args[1], a[0], a[1])
		if !ordered {
			return n.name == "!=", nil
		}
		return map[string]bool{"==": c == 0, "!=": c != 0, "<": c < 0, "<=": c <= 0, ">": c > 0, ">=": c >= 0}[n.name], nil
	case "!":
		return !a[0].(bool), nil
	case "floor", "ceil", "round", "sqrt":
		if isInt(t) {
			return a[0], nil
		}
		f := map[string]func(float64) float64{"floor": math.Floor, "ceil": math.Ceil, "round": math.Round, "sqrt": math.Sqrt}[n.name](toFloat(a[0]))
		if t.ID() == arrow.FLOAT32 {
			f = float64(float32(f))
		}
		return f, nil
	case "isnan":
		f, ok := a[0].(float64)
		return ok && f != f, nil
	case "int", "double", "string", "bool", "cast", "try_cast":
		v, err := r.cast(n.args[0], a[0], t)
		if n.name == "try_cast" && err != nil {
			return nil, nil
		}
		return v, err
	case "size":
		if l, ok := a[0].([]any); ok {
			return big.NewInt(int64(len(l))), nil
		}
		return big.NewInt(int64(utf8.RuneCountInString(a[0].(string)))), nil
	case "contains":
		if l, ok := a[0].([]any); ok {
			return r.among(n.args[1], a[1], l, elemType(r.typ(n.args[0])))
		}
		return strings.Contains(a[0].(string), a[1].(string)), nil
	case "startsWith":
		return strings.HasPrefix(a[0].(string), a[1].(string)), nil
	case "endsWith":
		return strings.HasSuffix(a[0].(string), a[1].(string)), nil
	case "lower":
		return strings.ToLower(a[0].(string)), nil
	case "upper":
		return strings.ToUpper(a[0].(string)), nil
	case "trim":
		return strings.TrimSpace(a[0].(string)), nil
	case "replace":
		if a[1] == "" {
			return a[0], nil
		}
		return strings.ReplaceAll(a[0].(string), a[1].(string), a[2].(string)), nil
	case "substr":
		return substrRef(a), nil
	case "split":
		var out []any
		for _, s := range strings.Split(a[0].(string), a[1].(string)) {
			out = append(out, s)
		}
		return out, nil
	case "[]":
		l, i := a[0].([]any), a[1].(*big.Int)
		if i.Sign() < 0 {
			i = new(big.Int).Add(i, big.NewInt(int64(len(l))))
		}
		if !i.IsInt64() || i.Sign() < 0 || i.Int64() >= int64(len(l)) {
			return nil, nil
		}
		return l[i.Int64()], nil
	case "year", "month", "day", "weekday", "hour", "minute", "second":
		ns := new(big.Int).Mul(a[0].(*big.Int), new(big.Int).SetUint64(nanosPer(r.typ(n.args[0]))))
		sec := new(big.Int).Div(ns, big.NewInt(1e9)).Int64()
		tm := time.Unix(sec, 0).UTC()
		if ts, ok := r.typ(n.args[0]).(*arrow.TimestampType); ok && ts.TimeZone != "" {
			loc, err := time.LoadLocation(ts.TimeZone)
			if err != nil {
				return nil, err
			}
			tm = tm.In(loc)
		}
		return big.NewInt(int64(map[string]int{"year": tm.Year(), "month": int(tm.Month()), "day": tm.Day(), "weekday": int(tm.Weekday()),
			"hour": tm.Hour(), "minute": tm.Minute(), "second": tm.Second()}[n.name])), nil
	}
	panic("reference has no " + n.name)
}

func intRef(op string, p, q *big.Int, t arrow.DataType) (any, error) {
	z := new(big.Int)
	switch op {
	case "+":
		z.Add(p, q)
	case "-":
		z.Sub(p, q)
	case "*":
		z.Mul(p, q)
	default:
		if q.Sign() == 0 {
			return nil, nil
		}
		if op == "%" {
			return z.Rem(p, q), nil
		}
		z.Quo(p, q)
	}
	return into(z, t, t)
}

func substrRef(a []any) string {
	s := []rune(a[0].(string))
	from, to := a[1].(*big.Int), big.NewInt(int64(len(s)))
	if from.Sign() < 0 {
		from = new(big.Int).Add(from, to)
	}
	if len(a) == 3 {
		to = new(big.Int).Add(from, a[2].(*big.Int))
	}
	clip := func(v *big.Int) int {
		switch {
		case v.Sign() < 0:
			return 0
		case v.Cmp(big.NewInt(int64(len(s)))) > 0:
			return len(s)
		}
		return int(v.Int64())
	}
	i, j := clip(from), clip(to)
	return string(s[i:max(i, j)])
}

// compare orders two values that are not null.
func (r *ref) compare(na, nb *node, a, b any) (c int, ordered bool) {
	ta, tb := r.typ(na), r.typ(nb)
	switch p := a.(type) {
	case string:
		if isTime(tb) {
			c, _ := r.compare(nb, na, b, a)
			return -c, true
		}
		return strings.Compare(p, b.(string)), true
	case bool:
		return map[[2]bool]int{{false, true}: -1, {true, false}: 1}[[2]bool{p, b.(bool)}], true
	}
	if isTime(ta) {
		if s, ok := b.(string); ok {
			tm, err := time.Parse("2006-01-02T15:04:05.999999999", s)
			if err != nil {
				tm, err = time.Parse("2006-01-02", s)
			}
			if err != nil {
				panic(err)
			}
			x := new(big.Int).Mul(a.(*big.Int), new(big.Int).SetUint64(nanosPer(ta)))
			y := new(big.Int).Add(new(big.Int).Mul(big.NewInt(tm.Unix()), big.NewInt(1e9)), big.NewInt(int64(tm.Nanosecond())))
			return x.Cmp(y), true
		}
		x := new(big.Int).Mul(a.(*big.Int), new(big.Int).SetUint64(nanosPer(ta)))
		y := new(big.Int).Mul(b.(*big.Int), new(big.Int).SetUint64(nanosPer(tb)))
		return x.Cmp(y), true
	}
	// A double written in the text takes the precision of the float it meets.
	round := func(v any, n *node, other arrow.DataType) any {
		if f, ok := v.(float64); ok && other.ID() == arrow.FLOAT32 && r.untyped(n) && !math.IsInf(float64(float32(f)), 0) {
			return float64(float32(f))
		}
		return v
	}
	x, xs := exactRef(round(a, na, tb), isDecimal(tb))
	y, ys := exactRef(round(b, nb, ta), isDecimal(ta))
	switch {
	case xs != xs || ys != ys:
		return 0, false
	case xs != 0 || ys != 0: // infinite
		return cmp.Compare(xs, ys), true
	}
	return x.Cmp(y), true
}

// exactRef is a number as a fraction, or as an infinity or NaN.
func exactRef(v any, decimal bool) (*big.Rat, float64) {
	switch v := v.(type) {
	case *big.Int:
		return new(big.Rat).SetInt(v), 0
	case *big.Rat:
		return v, 0
	}
	f := v.(float64)
	if math.IsNaN(f) || math.IsInf(f, 0) {
		return nil, f
	}
	if decimal {
		q, _ := new(big.Rat).SetString(strconv.FormatFloat(f, 'g', -1, 64))
		return q, 0
	}
	return new(big.Rat).SetFloat64(f), 0
}

func (r *ref) in(n *node, row int) (any, error) {
	v, err := r.eval(n.args[0], row)
	if err != nil {
		return nil, err
	}
	if n.args[1].kind != kList {
		l, err := r.eval(n.args[1], row)
		if err != nil || v == nil || l == nil {
			return nil, err
		}
		return r.among(n.args[0], v, l.([]any), elemType(r.typ(n.args[1])))
	}
	var out any = false
	for _, e := range n.args[1].args {
		w, err := r.eval(e, row)
		if err != nil {
			return nil, err
		}
		if v == nil || w == nil {
			out = nil
			continue
		}
		if c, ordered := r.compare(n.args[0], e, v, w); ordered && c == 0 {
			return true, nil
		}
	}
	if v == nil {
		return nil, nil
	}
	return out, nil
}

func (r *ref) among(n *node, v any, l []any, t arrow.DataType) (any, error) {
	elem := newNode(kColumn, "\x00elem")
	r.types[elem] = t
	var out any = false
	for _, e := range l {
		if e == nil {
			out = nil
		} else if c, ordered := r.compare(elem, n, e, v); ordered && c == 0 {
			return true, nil
		}
	}
	return out, nil
}

func (r *ref) extreme(n *node, t arrow.DataType, row int) (any, error) {
	var best any
	same := newNode(kColumn, "\x00same")
	r.types[same] = t
	for _, a := range n.args {
		v, err := r.as(a, t, row)
		if err != nil {
			return nil, err
		}
		if v == nil {
			continue
		}
		if best == nil {
			best = v
			continue
		}
		c, ordered := r.compare(same, same, v, best)
		switch f, _ := best.(float64); {
		case !ordered && f != f: // NaN wins
		case !ordered, n.name == "min" && c < 0, n.name == "max" && c > 0:
			best = v
		}
	}
	return best, nil
}

func (r *ref) clip(n *node, row int) (any, error) {
	for _, a := range n.args {
		if _, err := r.as(a, r.typ(n), row); err != nil {
			return nil, err
		}
	}
	v, err := r.as(n.args[0], r.typ(n), row)
	if err != nil || v == nil {
		return v, err
	}
	up, err := r.extreme(call("max", n.args[0], n.args[1]), r.typ(n), row)
	if err != nil {
		return nil, err
	}
	hi, err := r.as(n.args[2], r.typ(n), row)
	if err != nil || hi == nil {
		return up, err
	}
	same := newNode(kColumn, "\x00same")
	r.types[same] = r.typ(n)
	c, ordered := r.compare(same, same, hi, up)
	if ordered && c < 0 {
		return hi, nil
	}
	if f, _ := hi.(float64); !ordered && f != f {
		if g, _ := up.(float64); g == g {
			return hi, nil
		}
	}
	return up, nil
}

func (r *ref) cast(n *node, v any, t arrow.DataType) (any, error) {
	from := r.typ(n)
	switch s, isStr := v.(string); {
	case arrow.TypeEqual(from, t):
		return v, nil
	case isStr && isInt(t):
		i, ok := new(big.Int).SetString(strings.TrimSpace(s), 10)
		if !ok || strings.Contains(s, "_") {
			return nil, errRef
		}
		return into(i, t, t)
	case isStr && isFloating(t):
		f, err := strconv.ParseFloat(strings.TrimSpace(s), bitsOf(t))
		if err != nil && !errors.Is(err, strconv.ErrRange) || strings.ContainsAny(s, "_xX") {
			return nil, errRef
		}
		return f, nil
	case isStr:
		return v, nil
	case isText(t):
		if f, ok := v.(float64); ok {
			return strconv.FormatFloat(f, 'g', -1, bitsOf(from)), nil
		}
		return fmt.Sprint(v), nil
	}
	if b, ok := v.(bool); ok {
		if t.ID() == arrow.BOOL {
			return v, nil
		}
		return into(big.NewInt(int64(b2u(b))), arrow.PrimitiveTypes.Int64, t)
	}
	if t.ID() == arrow.BOOL {
		if i, ok := v.(*big.Int); ok {
			return i.Sign() != 0, nil
		}
		return v.(float64) != 0, nil
	}
	return into(v, from, t)
}

// cell is a value of an array.
func cell(arr arrow.Array, i int) any {
	if arr.IsNull(i) {
		return nil
	}
	switch a := arr.(type) {
	case *array.Boolean:
		return a.Value(i)
	case *array.Uint64:
		return new(big.Int).SetUint64(a.Value(i))
	case *array.Float32:
		return float64(a.Value(i))
	case *array.Float64:
		return a.Value(i)
	case *array.String:
		return a.Value(i)
	case *array.LargeString:
		return a.Value(i)
	case *array.Timestamp:
		return big.NewInt(int64(a.Value(i)))
	case *array.Date32:
		return big.NewInt(int64(a.Value(i)))
	case *array.Decimal128:
		return new(big.Rat).SetFrac(a.Value(i).BigInt(), pow10(int(a.DataType().(*arrow.Decimal128Type).Scale)))
	case array.ListLike:
		p, q := a.ValueOffsets(i)
		out := make([]any, 0, q-p)
		for k := p; k < q; k++ {
			out = append(out, cell(a.ListValues(), int(k)))
		}
		return out
	}
	v, ok := new(big.Int).SetString(arr.ValueStr(i), 10)
	if !ok {
		panic(fmt.Sprintf("%s of %s", arr.ValueStr(i), arr.DataType()))
	}
	return v
}

// sameValue compares what kernels and the reference gave; NaN equals NaN.
func sameValue(a, b any) bool {
	switch p := a.(type) {
	case *big.Int:
		q, ok := b.(*big.Int)
		return ok && p.Cmp(q) == 0
	case *big.Rat:
		q, ok := b.(*big.Rat)
		return ok && p.Cmp(q) == 0
	case float64:
		q, ok := b.(float64)
		return ok && (p == q || p != p && q != q)
	case []any:
		q, ok := b.([]any)
		return ok && slices.EqualFunc(p, q, sameValue)
	}
	return a == b
}
