package expr

import (
	"fmt"
	"math"
	"math/big"
	"strconv"
	"strings"
	"unicode/utf8"
	"unsafe"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	arrays "github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/textvalue"
)

// caster converts a vec, which is no null literal, to a type. Rows that do not
// convert fail, or become null if try is set.
type caster func(x *exec, v vec, try bool) vec

// castTo is cast(v, t), or try_cast.
func (b *binder) castTo(n *node, v *bound, t arrow.DataType, try bool) (*bound, error) {
	v = decoded(v)
	if arrow.TypeEqual(v.typ, t) {
		c := *v
		c.untyped = false
		return &c, nil
	}
	if v.typ.ID() == arrow.NULL {
		return op(n, t, func(x *exec, a []vec) vec { return x.nulls(t, a[0].n) }, v), nil
	}
	f, fails := castFunc(v.typ, t)
	if f == nil {
		return nil, invalid("cannot cast %s to %s", describe(v), TypeName(t))
	}
	out := op(n, t, func(x *exec, a []vec) vec { return f(x, a[0], try) }, v)
	out.fails = out.fails || fails && !try
	return out, nil
}

// settle looks at the valid rows that bad says: the first one that matters fails,
// or all become null if try is set. It takes over valid and returns what it is then.
func (x *exec) settle(valid *memory.Buffer, n int, try bool, bad func(i int) bool, why func(i int) string) *memory.Buffer {
	ok := bitmap{}
	if valid != nil {
		ok.b = valid.Bytes()
	}
	if !try {
		for i := range n {
			if ok.bit(i) && x.selected(i) && bad(i) {
				x.failRow(i, why)
				return valid
			}
		}
		return valid
	}
	buf, out := allocBits(x.mem, n)
	for k := range out {
		w := ok.word(k)
		for i := k * 64; i < min(k*64+64, n); i++ {
			if w>>(i&63)&1 == 1 && bad(i) {
				w &^= 1 << (i & 63)
			}
		}
		out[k] = w
	}
	if valid != nil {
		valid.Release()
	}
	return buf
}

// castFunc returns how to convert, and whether rows can fail; nil if there is no way.
func castFunc(from, to arrow.DataType) (f caster, fails bool) {
	p, q := physOf(from), physOf(to)
	switch {
	case to.ID() == arrow.FLOAT16:
		inner, fails := castFunc(from, arrow.PrimitiveTypes.Float32)
		if from.ID() == arrow.FLOAT32 {
			inner, fails = func(_ *exec, v vec, _ bool) vec { v.data.Retain(); return v }, false
		}
		if inner == nil {
			return nil, false
		}
		return func(x *exec, v vec, try bool) vec { return halve(x, inner(x, v, try)) }, fails
	case isList(from) && isList(to):
		return castList(from, to)
	case isTime(from) || isTime(to):
		return castTime(from, to)
	case from.ID() == arrow.DECIMAL32 || from.ID() == arrow.DECIMAL64:
		return castSmall(from.(arrow.DecimalType), to)
	case isDecimal(from) || isDecimal(to):
		return castDecimal(from, to)
	case p <= pF64 && q <= pF64:
		return func(x *exec, v vec, try bool) vec { return convTable[p][q](x, v, to, try) }, !fits(from, to)
	case p <= pF64 && q == pBool:
		return func(x *exec, v vec, _ bool) vec {
			zero := vec{typ: from, n: v.n, lit: &scalar{typ: from, valid: true}}
			return numCompare[p]("!=")(x, []vec{v, zero})
		}, false
	case p == pBool && q <= pF64:
		return func(x *exec, v vec, _ bool) vec { return boolTo[q](x, v, to) }, false
	case isText(from) && q <= pF64:
		return parseNum[q](to), true
	case isText(from) && q == pBool:
		return parseBool, true
	case isText(to) && p <= pF64:
		return formatted(to, formatNum[p]), false
	case isText(to) && p == pBool:
		return formatted(to, func(v vec) func([]byte, int) []byte {
			b := v.bools()
			return func(dst []byte, i int) []byte { return strconv.AppendBool(dst, b.bit(i)) }
		}), false
	case isString(from) && isString(to):
		return castString(from, to)
	}
	return nil, false
}

// fits reports whether every value of from is one of to, floats rounded.
func fits(from, to arrow.DataType) bool {
	if isFloating(to) {
		return true
	}
	if isFloating(from) {
		return false
	}
	lo, hi := intRange(from)
	tlo, thi := intRange(to)
	return lo.Cmp(tlo) >= 0 && hi.Cmp(thi) <= 0
}

type conv func(x *exec, v vec, t arrow.DataType, try bool) vec

var convTable = perNum(convFrom[int8](), convFrom[int16](), convFrom[int32](), convFrom[int64](), convFrom[uint8](), convFrom[uint16](),
	convFrom[uint32](), convFrom[uint64](), convFrom[float32](), convFrom[float64]())

func convFrom[A number]() [pF64 + 1]conv {
	return perNum[conv](convNum[A, int8], convNum[A, int16], convNum[A, int32], convNum[A, int64], convNum[A, uint8], convNum[A, uint16],
		convNum[A, uint32], convNum[A, uint64], convNum[A, float32], convNum[A, float64])
}

// convNum converts numbers; to an integer it truncates and fails out of range.
func convNum[A, B number](x *exec, v vec, t arrow.DataType, try bool) vec {
	n := v.n
	buf, out := allocOf[B](x.mem, n)
	src := fixed[A](v)[:len(out)]
	for i, a := range src {
		out[i] = B(a)
	}
	valid := x.valid(n, v)
	if !isFloat[B]() {
		lost := false
		for _, a := range src {
			lost = lost || !holds[B](a)
		}
		if lost {
			valid = x.settle(valid, n, try, func(i int) bool { return !holds[B](src[i]) },
				func(i int) string { return fmt.Sprintf("%v does not fit %s", src[i], TypeName(t)) })
		}
	}
	return x.array(t, n, valid, buf)
}

// holds reports whether the whole part of a is a value of B.
func holds[B, A number](a A) bool {
	if !isFloat[A]() {
		b := B(a)
		return A(b) == a && (b < 0) == (a < 0)
	}
	var z B
	w := 8 * unsafe.Sizeof(z)
	one, zero := B(1), B(0)
	t := math.Trunc(float64(a))
	if zero-one < zero { // signed
		lim := math.Ldexp(1, int(w)-1)
		return t >= -lim && t < lim
	}
	return t >= 0 && t < math.Ldexp(1, int(w))
}

var boolTo = perNum(fromBool[int8], fromBool[int16], fromBool[int32], fromBool[int64], fromBool[uint8], fromBool[uint16], fromBool[uint32],
	fromBool[uint64], fromBool[float32], fromBool[float64])

func fromBool[T number](x *exec, v vec, t arrow.DataType) vec {
	buf, out := allocOf[T](x.mem, v.n)
	b := v.bools()
	for i := range out {
		out[i] = T(b2u(b.bit(i)))
	}
	return x.array(t, v.n, x.valid(v.n, v), buf)
}

// parsed is the caster that reads texts one by one.
func parsed[T any](t arrow.DataType, read func(s string) (T, bool)) caster {
	return parsedAs(t, TypeName(t), read)
}

func parsedAs[T any](t arrow.DataType, name string, read func(s string) (T, bool)) caster {
	return func(x *exec, v vec, try bool) vec {
		n := v.n
		in := textsOf(v)
		buf, out := allocOf[T](x.mem, n)
		valid := x.valid(n, v)
		ok := bitmap{}
		if valid != nil {
			ok.b = valid.Bytes()
		}
		text := func(i int) string { s := in.at(i); return unsafe.String(unsafe.SliceData(s), len(s)) }
		bad := make([]uint64, words(n))
		any := false
		for i := range out {
			var c T
			if ok.bit(i) {
				var good bool
				if c, good = read(text(i)); !good {
					bad[i>>6] |= 1 << (i & 63)
					any = true
				}
			}
			out[i] = c
		}
		if any {
			valid = x.settle(valid, n, try, func(i int) bool { return bad[i>>6]>>(i&63)&1 == 1 },
				func(i int) string { return fmt.Sprintf("cannot read %s as %s", cut(text(i)), name) })
		}
		return x.array(t, n, valid, buf)
	}
}

// cut quotes a value for an error.
func cut(s string) string {
	if len(s) > 60 {
		s = strings.ToValidUTF8(s[:57], "") + "..."
	}
	return strconv.Quote(s)
}

var parseNum = perNum(parseInt[int8], parseInt[int16], parseInt[int32], parseInt[int64], parseUint[uint8], parseUint[uint16], parseUint[uint32],
	parseUint[uint64], parseFloat[float32], parseFloat[float64])

func parseInt[T integer](t arrow.DataType) caster {
	w := bitsOf(t)
	return parsed(t, func(s string) (T, bool) {
		v, err := strconv.ParseInt(strings.TrimSpace(s), 10, w)
		return T(v), err == nil
	})
}

func parseUint[T integer](t arrow.DataType) caster {
	w := bitsOf(t)
	return parsed(t, func(s string) (T, bool) {
		s = strings.TrimSpace(s)
		digits := strings.TrimPrefix(s, "+")
		if digits == s {
			digits = strings.TrimPrefix(s, "-")
		}
		v, err := strconv.ParseUint(digits, 10, w)
		return T(v), err == nil && (v == 0 || s[0] != '-') // "-0" is what a float of that value is as text
	})
}

func parseFloat[T float](t arrow.DataType) caster {
	w := bitsOf(t)
	return parsed(t, func(s string) (T, bool) {
		s = strings.TrimSpace(s)
		if strings.ContainsAny(s, "xX_") {
			return 0, false
		}
		v, err := strconv.ParseFloat(s, w)
		return T(v), err == nil || math.IsInf(v, 0) // beyond the range is infinite, as in arithmetic
	})
}

// parseBool reads what columns that are said to hold booleans do.
func parseBool(x *exec, v vec, try bool) vec {
	u := parsedAs(arrow.PrimitiveTypes.Uint8, "bool", func(s string) (uint8, bool) {
		v, ok := textvalue.GivenBool([]byte(strings.TrimSpace(s)))
		return uint8(b2u(v)), ok
	})(x, v, try)
	defer u.release()
	zero := vec{typ: u.typ, n: u.n, lit: &scalar{typ: u.typ, valid: true}}
	return numCompare[pU8]("!=")(x, []vec{u, zero})
}

// formatted is the caster that writes values as text, appending to dst.
func formatted(t arrow.DataType, with func(v vec) func(dst []byte, i int) []byte) caster {
	return func(x *exec, v vec, _ bool) vec {
		write := with(v)
		valid := x.valid(v.n, v)
		ok := bitmap{}
		if valid != nil {
			ok.b = valid.Bytes()
		}
		o := newStrings(x, t, v.n, valid)
		var room [64]byte
		dst := room[:0]
		for i := range v.n {
			if ok.bit(i) {
				dst = write(dst[:0], i)
				put(o, dst)
			}
			o.end()
		}
		return o.done()
	}
}

var formatNum = perNum(formatInt[int8], formatInt[int16], formatInt[int32], formatInt[int64], formatUint[uint8], formatUint[uint16],
	formatUint[uint32], formatUint[uint64], formatFloat[float32], formatFloat[float64])

func formatInt[T integer](v vec) func([]byte, int) []byte {
	p := fixed[T](v)
	return func(dst []byte, i int) []byte { return strconv.AppendInt(dst, int64(p[i]), 10) }
}

func formatUint[T integer](v vec) func([]byte, int) []byte {
	p := fixed[T](v)
	return func(dst []byte, i int) []byte { return strconv.AppendUint(dst, uint64(p[i]), 10) }
}

// formatFloat writes the shortest text that reads back the same.
func formatFloat[T float](v vec) func([]byte, int) []byte {
	var z T
	p, w := fixed[T](v), 8*int(unsafe.Sizeof(z))
	return func(dst []byte, i int) []byte { return strconv.AppendFloat(dst, float64(p[i]), 'g', -1, w) }
}

// retyped is the caster for types that share a layout.
func retyped(t arrow.DataType) caster {
	return func(_ *exec, v vec, _ bool) vec {
		d := v.data
		return vec{typ: t, n: v.n, data: array.NewData(t, d.Len(), d.Buffers(), nil, d.NullN(), d.Offset())}
	}
}

// castString converts between text and bytes and between sizes of offsets. Bytes
// that are no UTF-8 are no text.
func castString(from, to arrow.DataType) (caster, bool) {
	check := isText(to) && !isText(from)
	if f, ok := to.(*arrow.FixedSizeBinaryType); ok {
		return func(x *exec, v vec, try bool) vec {
			in := textsOf(v)
			valid := x.settle(x.valid(v.n, v), v.n, try, func(i int) bool { return len(in.at(i)) != f.ByteWidth },
				func(i int) string { return fmt.Sprintf("%d bytes do not fit %s", len(in.at(i)), TypeName(to)) })
			o := newStrings(x, to, v.n, valid)
			for i := range v.n {
				o.reserve(f.ByteWidth)
				row := o.buf[o.used : o.used+f.ByteWidth]
				clear(row)
				copy(row, in.at(i))
				o.used += f.ByteWidth
				o.end()
			}
			return o.done()
		}, true
	}
	return func(x *exec, v vec, try bool) vec {
		if physOf(from) == physOf(to) && !(check && try) { // the same bytes
			if in := textsOf(v); check {
				valid := x.settle(x.valid(v.n, v), v.n, false, func(i int) bool { return !utf8.Valid(in.at(i)) }, notUTF8(in))
				if valid != nil {
					valid.Release()
				}
			}
			return retyped(to)(x, v, try)
		}
		in := textsOf(v)
		valid := x.valid(v.n, v)
		if check {
			valid = x.settle(valid, v.n, try, func(i int) bool { return !utf8.Valid(in.at(i)) }, notUTF8(in))
		}
		ok := bitmap{}
		if valid != nil {
			ok.b = valid.Bytes()
		}
		o := newStrings(x, to, v.n, valid)
		o.reserve(in.bytes(v.n))
		for i := range v.n {
			if ok.bit(i) {
				put(o, in.at(i))
			}
			o.end()
		}
		return o.done()
	}, check
}

func notUTF8(in texts) func(i int) string {
	return func(i int) string { return fmt.Sprintf("%s is not valid UTF-8", cut(string(in.at(i)))) }
}

// castDecimal converts to and from decimal128, by exact arithmetic. To fewer
// digits behind the point it rounds half away from zero.
func castDecimal(from, to arrow.DataType) (caster, bool) {
	if t, ok := from.(*arrow.Decimal128Type); ok {
		num := func(v vec) []decimal128.Num { return fixed[decimal128.Num](v) }
		switch q := physOf(to); {
		case isText(to):
			return formatted(to, func(v vec) func([]byte, int) []byte {
				p := num(v)
				return func(dst []byte, i int) []byte { return append(dst, p[i].ToString(t.Scale)...) }
			}), false
		case isFloating(to):
			return func(x *exec, v vec, try bool) vec {
				buf, out := allocOf[float64](x.mem, v.n)
				for i, d := range num(v) {
					out[i] = decimalFloat(d, t.Scale)
				}
				d := x.array(arrow.PrimitiveTypes.Float64, v.n, x.valid(v.n, v), buf)
				if q == pF64 {
					return d
				}
				defer d.release()
				return convTable[pF64][q](x, d, to, try)
			}, false
		case isInt(to):
			return func(x *exec, v vec, try bool) vec {
				p := num(v)
				lo, hi := intRange(to)
				whole := func(i int) *big.Int {
					r := decimalRat(p[i], t.Scale)
					return new(big.Int).Quo(r.Num(), r.Denom())
				}
				valid := x.settle(x.valid(v.n, v), v.n, try,
					func(i int) bool { w := whole(i); return w.Cmp(lo) < 0 || w.Cmp(hi) > 0 },
					func(i int) string { return fmt.Sprintf("%s does not fit %s", p[i].ToString(t.Scale), TypeName(to)) })
				buf, out := allocOf[uint64](x.mem, v.n)
				for i := range out {
					w := whole(i)
					if w.IsUint64() {
						out[i] = w.Uint64()
					} else {
						out[i] = uint64(w.Int64())
					}
				}
				wide := x.array(arrow.PrimitiveTypes.Uint64, v.n, valid, buf)
				if q == pU64 {
					return wide
				}
				defer wide.release()
				return narrow[q](x, wide, to)
			}, true
		case isDecimal(to):
			return decimalCast(to.(*arrow.Decimal128Type), func(v vec) func(i int) (*big.Rat, string) {
				p := num(v)
				return func(i int) (*big.Rat, string) { return decimalRat(p[i], t.Scale), p[i].ToString(t.Scale) }
			}), true
		}
		return nil, false
	}
	t := to.(*arrow.Decimal128Type)
	switch p := physOf(from); {
	case isText(from):
		return decimalCast(t, func(v vec) func(i int) (*big.Rat, string) {
			in := textsOf(v)
			return func(i int) (*big.Rat, string) {
				s := strings.TrimSpace(string(in.at(i)))
				return parseDecimal(s), cut(s)
			}
		}), true
	case isFloating(from):
		return decimalCast(t, func(v vec) func(i int) (*big.Rat, string) {
			f := formatNum[p](v)
			return func(i int) (*big.Rat, string) {
				s := string(f(nil, i))
				return parseDecimal(s), s
			}
		}), true
	case isInt(from):
		return decimalCast(t, func(v vec) func(i int) (*big.Rat, string) {
			f := formatNum[p](v)
			return func(i int) (*big.Rat, string) {
				s := string(f(nil, i))
				return parseDecimal(s), s
			}
		}), true
	}
	return nil, false
}

// castSmall converts from decimals of 32 or 64 bits, through decimal128.
func castSmall(from arrow.DecimalType, to arrow.DataType) (caster, bool) {
	t := &arrow.Decimal128Type{Precision: from.GetPrecision(), Scale: from.GetScale()}
	widen := func(x *exec, v vec, _ bool) vec {
		d := arrays.Wider(x.mem, v.data)
		defer d.Release()
		values := d.Buffers()[1]
		values.Retain()
		return x.array(t, v.n, x.valid(v.n, v), values)
	}
	if arrow.TypeEqual(t, to) {
		return widen, false
	}
	inner, fails := castFunc(t, to)
	if inner == nil {
		return nil, false
	}
	return func(x *exec, v vec, try bool) vec {
		d := widen(x, v, try)
		defer d.release()
		return inner(x, d, try)
	}, fails
}

// parseDecimal reads a decimal text; nil if it is none or out of any proportion.
func parseDecimal(s string) *big.Rat {
	if len(s) > 100 || strings.ContainsAny(s, "xXoObB_/pPiInN") {
		return nil
	}
	if e := strings.IndexAny(s, "eE"); e >= 0 {
		if x, err := strconv.Atoi(s[e+1:]); err != nil || x > 400 || x < -400 {
			return nil
		}
	}
	r, ok := new(big.Rat).SetString(s)
	if !ok {
		return nil
	}
	return r
}

// decimalFloat is the double nearest to a decimal: one division where both sides
// are exact.
func decimalFloat(d decimal128.Num, scale int32) float64 {
	const exact = 1 << 53
	if lo := int64(d.LowBits()); scale >= 0 && scale <= 22 && d.HighBits() == lo>>63 && lo > -exact && lo < exact {
		return float64(lo) / math.Pow10(int(scale))
	}
	f, _ := decimalRat(d, scale).Float64()
	return f
}

func decimalRat(d decimal128.Num, scale int32) *big.Rat {
	r := new(big.Rat).SetInt(d.BigInt())
	if scale >= 0 {
		return r.Quo(r, new(big.Rat).SetInt(pow10(int(scale))))
	}
	return r.Mul(r, new(big.Rat).SetInt(pow10(-int(scale))))
}

func decimalCast(t *arrow.Decimal128Type, with func(v vec) func(i int) (*big.Rat, string)) caster {
	return func(x *exec, v vec, try bool) vec {
		read := with(v)
		valid := x.valid(v.n, v)
		ok := bitmap{}
		if valid != nil {
			ok.b = valid.Bytes()
		}
		buf, out := allocOf[decimal128.Num](x.mem, v.n)
		bad, any := make([]uint64, words(v.n)), false
		for i := range out {
			out[i] = decimal128.Num{}
			if !ok.bit(i) {
				continue
			}
			r, _ := read(i)
			d, fine := roundDecimal(r, t)
			if !fine {
				bad[i>>6] |= 1 << (i & 63)
				any = true
			}
			out[i] = d
		}
		if any {
			valid = x.settle(valid, v.n, try, func(i int) bool { return bad[i>>6]>>(i&63)&1 == 1 },
				func(i int) string { _, s := read(i); return fmt.Sprintf("%s does not fit %s", s, TypeName(t)) })
		}
		return x.array(t, v.n, valid, buf)
	}
}

func roundDecimal(r *big.Rat, t *arrow.Decimal128Type) (decimal128.Num, bool) {
	if r == nil {
		return decimal128.Num{}, false
	}
	s := new(big.Rat).SetInt(pow10(max(int(t.Scale), -int(t.Scale))))
	if t.Scale >= 0 {
		s.Mul(r, s)
	} else {
		s.Quo(r, s)
	}
	// Half away from zero: (2|n| + d) / 2d.
	num, den := new(big.Int).Abs(s.Num()), s.Denom()
	num.Lsh(num, 1).Add(num, den).Quo(num, new(big.Int).Lsh(den, 1))
	if num.Cmp(pow10(int(t.Precision))) >= 0 {
		return decimal128.Num{}, false
	}
	if s.Sign() < 0 {
		num.Neg(num)
	}
	return decimal128.FromBigInt(num), true
}

var narrow = perNum(narrowTo[int8], narrowTo[int16], narrowTo[int32], narrowTo[int64], narrowTo[uint8], narrowTo[uint16], narrowTo[uint32], narrowTo[uint64],
	nil, nil)

// narrowTo keeps the low bits of 64 bit values known to fit.
func narrowTo[T integer](x *exec, v vec, t arrow.DataType) vec {
	buf, out := allocOf[T](x.mem, v.n)
	for i, u := range fixed[uint64](v) {
		out[i] = T(u)
	}
	return x.array(t, v.n, x.valid(v.n, v), buf)
}
