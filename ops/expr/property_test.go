package expr

import (
	"cmp"
	"flag"
	"math"
	"math/big"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/decimal128"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
)

var (
	seedFlag  = flag.Uint64("expr.seed", 0, "run the property test with this seed only")
	casesFlag = flag.Int("expr.cases", 1200, "cases of the property test")
)

var randomSchema = arrow.NewSchema([]arrow.Field{
	{Name: "i8", Type: arrow.PrimitiveTypes.Int8}, {Name: "i16", Type: arrow.PrimitiveTypes.Int16},
	{Name: "i32", Type: arrow.PrimitiveTypes.Int32}, {Name: "i64", Type: arrow.PrimitiveTypes.Int64}, {Name: "j64", Type: arrow.PrimitiveTypes.Int64},
	{Name: "u8", Type: arrow.PrimitiveTypes.Uint8}, {Name: "u16", Type: arrow.PrimitiveTypes.Uint16},
	{Name: "u32", Type: arrow.PrimitiveTypes.Uint32}, {Name: "u64", Type: arrow.PrimitiveTypes.Uint64},
	{Name: "f32", Type: arrow.PrimitiveTypes.Float32}, {Name: "f64", Type: arrow.PrimitiveTypes.Float64},
	{Name: "b", Type: arrow.FixedWidthTypes.Boolean}, {Name: "c", Type: arrow.FixedWidthTypes.Boolean},
	{Name: "s", Type: arrow.BinaryTypes.String}, {Name: "ls", Type: arrow.BinaryTypes.LargeString},
	{Name: "d", Type: arrow.FixedWidthTypes.Date32},
	{Name: "us", Type: &arrow.TimestampType{Unit: arrow.Microsecond}}, {Name: "sec", Type: &arrow.TimestampType{Unit: arrow.Second}},
	{Name: "zoned", Type: &arrow.TimestampType{Unit: arrow.Millisecond, TimeZone: "America/New_York"}},
	{Name: "dec", Type: &arrow.Decimal128Type{Precision: 12, Scale: 3}}, {Name: "dec0", Type: &arrow.Decimal128Type{Precision: 6, Scale: 0}},
	{Name: "li", Type: arrow.ListOf(arrow.PrimitiveTypes.Int32)}, {Name: "ll", Type: arrow.LargeListOf(arrow.BinaryTypes.String)},
	{Name: "fl", Type: arrow.FixedSizeListOf(2, arrow.PrimitiveTypes.Float64)},
}, nil)

type gen struct{ *rand.Rand }

func pickOf[T any](g gen, vs ...T) T { return vs[g.IntN(len(vs))] }

// number is a random integer of a width: small, extreme or any.
func (g gen) number(bits int, unsigned bool) int64 {
	switch g.IntN(6) {
	case 0:
		if unsigned {
			return pickOf(g, int64(-1), 0, 1) // all ones
		}
		return pickOf(g, int64(-1)<<(bits-1), int64(1)<<(bits-1)-1, -1)
	case 1:
		return int64(g.Uint64())
	}
	v := g.Int64N(7) - 2
	if unsigned {
		v &= 7
	}
	return v
}

func (g gen) float() float64 {
	return pickOf(g, 0, math.Copysign(0, -1), 1, -1, 0.1, 2.5, -2.5, 3, 1e10, 16777217, 9007199254740993, 1e300, -1e300, 9223372036854775808, math.NaN(), math.Inf(1), math.Inf(-1), g.NormFloat64())
}

func (g gen) text() string {
	return pickOf(g, "", "a", "b", "ab", "aba", "Ä", "äb", " a ", "12", "-7", "1e3", "999", "true", "日本", "x,y,,z", "NaN", "0.1", "abc abc abc abc abc")
}

// batch is a slice of a random record batch.
func (g gen) batch(mem memory.Allocator) arrow.RecordBatch {
	n := pickOf(g, 0, 1, 2, 7, 63, 64, 65, 130)
	off := pickOf(g, 0, 0, 1, 3, 8, 64)
	rb := array.NewRecordBuilder(mem, randomSchema)
	defer rb.Release()
	for i, f := range randomSchema.Fields() {
		nulls := pickOf(g, 0, 0.2, 0.2, 0.9)
		for range n + off {
			if g.Float64() < nulls {
				rb.Field(i).AppendNull()
			} else {
				g.append(rb.Field(i), f.Type)
			}
		}
	}
	all := rb.NewRecordBatch()
	defer all.Release()
	return all.NewSlice(int64(off), int64(off+n))
}

func (g gen) append(b array.Builder, t arrow.DataType) {
	switch b := b.(type) {
	case *array.Int8Builder:
		b.Append(int8(g.number(8, false)))
	case *array.Int16Builder:
		b.Append(int16(g.number(16, false)))
	case *array.Int32Builder:
		b.Append(int32(g.number(32, false)))
	case *array.Int64Builder:
		b.Append(g.number(64, false))
	case *array.Uint8Builder:
		b.Append(uint8(g.number(8, true)))
	case *array.Uint16Builder:
		b.Append(uint16(g.number(16, true)))
	case *array.Uint32Builder:
		b.Append(uint32(g.number(32, true)))
	case *array.Uint64Builder:
		b.Append(uint64(g.number(64, true)))
	case *array.Float32Builder:
		b.Append(float32(g.float()))
	case *array.Float64Builder:
		b.Append(g.float())
	case *array.BooleanBuilder:
		b.Append(g.IntN(2) == 0)
	case *array.StringBuilder:
		b.Append(g.text())
	case *array.LargeStringBuilder:
		b.Append(g.text())
	case *array.Date32Builder:
		b.Append(arrow.Date32(pickOf(g, -1, 0, 1, 19000, 19782, -719162, int(g.Int32N(40000)))))
	case *array.TimestampBuilder:
		sec := pickOf(g, -1, 0, 1, 1709210730, 1711850400, g.Int64N(2e9))
		v := sec * perSecond(unitOf(t))
		if per := perSecond(unitOf(t)); per > 1 {
			v += g.Int64N(per)
		}
		b.Append(arrow.Timestamp(v))
	case *array.Decimal128Builder:
		b.Append(decimal128.FromI64(pickOf(g, 0, 1, -1, 1000, 2500, -999, 100000, g.Int64N(999999))))
	case *array.ListBuilder:
		b.Append(true)
		for range g.IntN(4) {
			g.appendOrNull(b.ValueBuilder(), arrow.PrimitiveTypes.Int32)
		}
	case *array.LargeListBuilder:
		b.Append(true)
		for range g.IntN(4) {
			g.appendOrNull(b.ValueBuilder(), arrow.BinaryTypes.String)
		}
	case *array.FixedSizeListBuilder:
		b.Append(true)
		for range 2 {
			g.appendOrNull(b.ValueBuilder(), arrow.PrimitiveTypes.Float64)
		}
	default:
		panic(t.String())
	}
}

func (g gen) appendOrNull(b array.Builder, t arrow.DataType) {
	if g.IntN(4) == 0 {
		b.AppendNull()
	} else {
		g.append(b, t)
	}
}

func colNode(name string) *node { return newNode(kColumn, name) }

// num, boolean, str and the others make random well-typed expressions.
func (g gen) num(depth int) *node {
	if depth == 0 || g.IntN(6) == 0 {
		if g.IntN(3) == 0 {
			if g.IntN(2) == 0 {
				return litNode(pickOf[int64](g, 0, 1, 2, -1, 3, 100, 127, 128, -129, 1<<31, math.MaxInt64, math.MinInt64, 1<<53+1))
			}
			return litNode(pickOf(g, 0.0, 0.1, 2.5, -1.0, 1e300, 3.0, 16777217.0, 1e-3))
		}
		return colNode(pickOf(g, "i8", "i16", "i32", "i64", "j64", "u8", "u16", "u32", "u64", "f32", "f64"))
	}
	depth--
	switch g.IntN(16) {
	case 0, 1, 2, 3, 4:
		return call(pickOf(g, "+", "-", "*", "/", "%"), g.num(depth), g.num(depth))
	case 5:
		return operator("neg", []*node{g.num(depth)})
	case 6:
		return call("abs", g.num(depth))
	case 7:
		return call(pickOf(g, "floor", "ceil", "round", "sqrt"), g.num(depth))
	case 8:
		return call("?:", g.boolean(depth), g.num(depth), g.num(depth))
	case 9:
		return call("coalesce", g.num(depth), g.num(depth))
	case 10:
		return call(pickOf(g, "min", "max"), g.num(depth), g.num(depth))
	case 11:
		return call("clip", g.num(depth), g.num(depth), g.num(depth))
	case 12:
		return call(pickOf(g, "int", "double"), g.num(depth))
	case 13:
		return call(pickOf(g, "cast", "try_cast"), pickOf(g, g.num(depth), g.str(depth), g.boolean(depth)),
			litNode(pickOf(g, "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float", "double")))
	case 14:
		return pickOf(g, call("size", g.str(depth)), call("size", colNode("li")), call("[]", colNode("li"), litNode(g.Int64N(5)-2)), call("[]", colNode("fl"), litNode(g.Int64N(3))))
	}
	return call(pickOf(g, "year", "month", "day", "weekday", "hour", "minute", "second"), colNode(pickOf(g, "us", "sec", "zoned")))
}

func (g gen) boolean(depth int) *node {
	if depth == 0 {
		return pickOf(g, colNode("b"), colNode("c"), litNode(true), litNode(false), call("is_null", colNode("s")))
	}
	depth--
	ops := []string{"==", "!=", "<", "<=", ">", ">="}
	switch g.IntN(15) {
	case 0, 1, 2:
		return call(pickOf(g, ops...), g.num(depth), g.num(depth))
	case 14:
		return call(pickOf(g, ops...), g.num(0), g.num(0))
	case 3:
		return call(pickOf(g, ops...), g.str(depth), g.str(depth))
	case 4:
		return call(pickOf(g, ops...), g.boolean(depth), g.boolean(depth))
	case 5:
		a := []*node{colNode("d"), colNode("us"), colNode("sec")}
		if g.IntN(2) == 0 {
			a = []*node{colNode("zoned"), colNode("us"), colNode("sec")}
		} else {
			a = append(a, litNode(pickOf(g, "2024-02-29", "1970-01-01", "1969-12-31T23:59:59.5", "2024-02-29T12:45:30")))
		}
		l := pickOf(g, a[:3]...)
		return call(pickOf(g, ops...), l, pickOf(g, a...))
	case 6:
		return call(pickOf(g, ops...), colNode(pickOf(g, "dec", "dec0")), pickOf(g, colNode("dec"), colNode("dec0"), colNode("i16"), colNode("i64"), litNode(0.001), litNode(2.5), litNode(int64(1)), litNode(0.0005), litNode(1e30)))
	case 7, 8:
		return junction(pickOf(g, "&&", "||"), g.boolean(depth), g.boolean(depth))
	case 9:
		return call("!", g.boolean(depth))
	case 10:
		return call(pickOf(g, "is_null", "is_not_null"), pickOf(g, g.num(depth), g.str(depth), g.boolean(depth), colNode("li")))
	case 11:
		if g.IntN(3) == 0 {
			return pickOf(g, call("in", g.num(0), colNode("li")), call("in", g.str(depth), colNode("ll")), call("contains", colNode("fl"), pickOf(g, litNode(2.5), litNode(int64(3)), colNode("f64"))))
		}
		if g.IntN(2) == 0 {
			list := newNode(kList, "", g.str(0), g.str(0), pickOf(g, litNode(nil), litNode("ab")))
			return call("in", g.str(depth), list)
		}
		var es []*node
		for range g.IntN(12) {
			es = append(es, pickOf(g, g.num(0), litNode(g.Int64N(5)), litNode(0.5), litNode(nil), g.num(depth)))
		}
		return call("in", g.num(depth), newNode(kList, "", es...))
	case 12:
		return call(pickOf(g, "contains", "startsWith", "endsWith"), g.str(depth), g.str(depth))
	}
	return pickOf(g, call("isnan", g.num(depth)), call("bool", g.num(depth)), call("?:", g.boolean(depth), g.boolean(depth), g.boolean(depth)), call("coalesce", g.boolean(depth), g.boolean(depth)))
}

func (g gen) str(depth int) *node {
	if depth == 0 {
		return pickOf(g, colNode("s"), colNode("ls"), litNode(g.text()))
	}
	depth--
	switch g.IntN(9) {
	case 0, 1:
		return call("+", g.str(depth), g.str(depth))
	case 2:
		return call(pickOf(g, "lower", "upper", "trim"), g.str(depth))
	case 3:
		return call("replace", g.str(depth), g.str(depth), g.str(depth))
	case 4:
		return call("substr", g.str(depth), litNode(g.Int64N(7)-3), litNode(g.Int64N(5)-1))
	case 5:
		return call("concat", g.str(depth), g.str(depth))
	case 6:
		return call("string", pickOf(g, g.num(depth), g.boolean(depth)))
	case 7:
		return call("?:", g.boolean(depth), g.str(depth), g.str(depth))
	}
	return call(pickOf(g, "coalesce", "min", "max"), g.str(depth), g.str(depth))
}

// kept are seeds that failed once: text "-0" as an unsigned integer.
var kept = []uint64{12521235431815928728}

// TestAgainstReference compares kernels with the reference interpreter on random
// expressions and batches.
func TestAgainstReference(t *testing.T) {
	seeds, cases := []uint64{*seedFlag}, *casesFlag
	if *seedFlag == 0 {
		seeds = slices.Clone(kept)
		first := rand.Uint64()
		for i := range uint64(cases) {
			seeds = append(seeds, first+i)
		}
	}
	failures, bad := 0, 0
	for _, seed := range seeds {
		ok, failed := againstReference(t, seed)
		if !ok {
			if bad++; bad > 3 {
				t.Fatal("and so on")
			}
		}
		if failed {
			failures++
		}
	}
	if *seedFlag == 0 && (failures < cases/50 || failures > cases*3/4) {
		t.Errorf("%d of %d cases had row errors: the generator tests too few of one kind", failures, cases)
	}
}

func againstReference(t *testing.T, seed uint64) (ok, failed bool) {
	t.Helper()
	g := gen{rand.New(rand.NewPCG(seed, 1))}
	mem := memtest.New(t)
	rec := g.batch(mem)
	defer rec.Release()
	depth := g.IntN(4) + 1
	root := pickOf(g, g.num, g.boolean, g.boolean, g.str)(depth)
	e := &Expr{root}
	back, err := Parse(e.String())
	if err != nil || !sameNode(back.root, root) {
		t.Errorf("seed %d: %s does not read back: %v", seed, e, err)
		return false, false
	}
	p, err := e.Bind(randomSchema, 0)
	if err != nil {
		t.Errorf("seed %d: %s: %v", seed, e, err)
		return false, false
	}
	r := &ref{schema: randomSchema, rec: rec, types: map[*node]arrow.DataType{}}
	first := -1
	want := make([]any, rec.NumRows())
	for i := range want {
		if want[i], err = r.as(root, p.Type(), i); err != nil {
			first = i
			break
		}
	}
	arr, err := p.Eval(rec, nil, mem)
	if first >= 0 {
		row, _ := fault.PlaceOf(err).Row.Get()
		if arr != nil {
			arr.Release()
		}
		if fault.CodeOf(err) != fault.RowError || row != int64(first) || !e.MayFail(randomSchema) {
			t.Errorf("seed %d: %s: want a row error at %d, not %v", seed, e, first, err)
			return false, true
		}
		return true, true
	}
	if err != nil {
		t.Errorf("seed %d: %s: %v", seed, e, err)
		return false, false
	}
	defer arr.Release()
	for i, w := range want {
		if got := cell(arr, i); !sameValue(got, w) {
			t.Errorf("seed %d: row %d of %s (%s): %v, want %v", seed, i, e, p.Type(), got, w)
			return false, false
		}
	}
	if !foldsSame(t, seed, e, rec, arr, mem) || p.Type().ID() == arrow.BOOL && !neverStronger(t, seed, e, rec, arr.(*array.Boolean), mem) {
		return false, false
	}
	return true, false
}

// foldsSame: folding changes no value and no type.
func foldsSame(t *testing.T, seed uint64, e *Expr, rec arrow.RecordBatch, want arrow.Array, mem memory.Allocator) bool {
	t.Helper()
	f := e.Fold(randomSchema)
	p, err := f.Bind(randomSchema, 0)
	if err != nil || !arrow.TypeEqual(p.Type(), want.DataType()) {
		t.Errorf("seed %d: %s folds to %s: %v", seed, e, f, err)
		return false
	}
	got, err := p.Eval(rec, nil, mem)
	if err != nil {
		t.Errorf("seed %d: %s folds to %s: %v", seed, e, f, err)
		return false
	}
	defer got.Release()
	for i := range want.Len() {
		if !sameValue(cell(got, i), cell(want, i)) {
			t.Errorf("seed %d: row %d of %s: %v, folded to %s: %v", seed, i, e, cell(want, i), f, cell(got, i))
			return false
		}
	}
	return true
}

// neverStronger: the predicate keeps every row that the expression keeps, and a
// single conjunct that gives a term keeps no other; and Filter keeps just those.
func neverStronger(t *testing.T, seed uint64, e *Expr, rec arrow.RecordBatch, keep *array.Boolean, mem memory.Allocator) bool {
	t.Helper()
	pred := e.Predicate(randomSchema)
	exact := len(pred) == len(e.Conjuncts())
	var rows []int32
	for i := range keep.Len() {
		in := true
		for _, term := range pred {
			in = in && holdsTerm(term, cell(rec.Column(randomSchema.FieldIndices(term.Column)[0]), i))
		}
		yes := keep.IsValid(i) && keep.Value(i)
		if yes && !in || exact && yes != in {
			t.Errorf("seed %d: row %d of %s is %v, of its predicate %s %v", seed, i, e, yes, pred, in)
			return false
		}
		if yes {
			rows = append(rows, int32(i))
		}
	}
	sel := Select(keep)
	out, err := Filter(rec, sel, mem)
	if err != nil {
		t.Errorf("seed %d: filter: %v", seed, err)
		return false
	}
	defer out.Release()
	if out.NumRows() != int64(len(rows)) || sel.All() != (len(rows) == keep.Len()) || !slices.Equal(sel.Rows(), rows) {
		t.Errorf("seed %d: filter keeps %v, want %v", seed, sel.Rows(), rows)
		return false
	}
	for c := range rec.NumCols() {
		for j, i := range rows {
			if got, want := cell(out.Column(int(c)), j), cell(rec.Column(int(c)), int(i)); !sameValue(got, want) {
				t.Errorf("seed %d: column %s row %d: %v, want %v", seed, rec.ColumnName(int(c)), i, got, want)
				return false
			}
		}
	}
	return true
}

// holdsTerm reports whether a value makes a term true, as drivers evaluate it.
func holdsTerm(t driver.Term, v any) bool {
	switch {
	case t.Op == driver.IsNull:
		return v == nil
	case v == nil:
		return false
	case t.Op == driver.NotNull:
		return true
	}
	for _, w := range t.Values {
		var c int
		switch w := w.(type) {
		case bool:
			c = int(b2u(v.(bool))) - int(b2u(w))
		case string:
			c = strings.Compare(v.(string), w)
		case int64:
			c = v.(*big.Int).Cmp(big.NewInt(w))
		case uint64:
			c = v.(*big.Int).Cmp(new(big.Int).SetUint64(w))
		case float64:
			f := v.(float64)
			if f != f || w != w {
				if t.Op == driver.Ne {
					return true
				}
				continue
			}
			c = cmp.Compare(f+0, w+0)
		}
		if opHolds(map[driver.Op]string{driver.Eq: "==", driver.Ne: "!=", driver.Lt: "<", driver.Le: "<=", driver.Gt: ">", driver.Ge: ">=", driver.In: "=="}[t.Op], c) {
			return true
		}
	}
	return false
}

// sameNode reports whether two trees are equal.
func sameNode(a, b *node) bool {
	if a.kind != b.kind || a.name != b.name || len(a.args) != len(b.args) {
		return false
	}
	if f, ok := a.val.(float64); ok {
		g, ok := b.val.(float64)
		if !ok || math.Float64bits(f) != math.Float64bits(g) {
			return false
		}
	} else if a.val != b.val {
		return false
	}
	for i := range a.args {
		if !sameNode(a.args[i], b.args[i]) {
			return false
		}
	}
	return true
}
