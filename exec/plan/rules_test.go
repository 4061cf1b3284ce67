package plan_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/google/go-cmp/cmp"
	"github.com/penstock-data/penstock/exec/plan"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/ops/expr"
)

// generator makes random plans.
type generator struct {
	t   testing.TB
	rng *rand.Rand
	pos int
	lim bool // the plan has a limit: which failing rows are seen is not fixed
	off bool // no limits
}

func (g *generator) oneOf(s ...string) string { return s[g.rng.IntN(len(s))] }

// column picks a column, and its type name.
func (g *generator) column(n ops.Node) (string, string) {
	f := n.Schema().Field(g.rng.IntN(n.Schema().NumFields()))
	return expr.Col(f.Name).String(), expr.TypeName(f.Type)
}

// condition makes an expression that is true or false. Some fail on some rows.
func (g *generator) condition(n ops.Node) string {
	if g.rng.IntN(4) == 0 {
		return "(" + g.condition(n) + g.oneOf(" && ", " && ", " || ") + g.condition(n) + ")"
	}
	if g.rng.IntN(12) == 0 {
		return g.oneOf("random() < 0.7", "true", "1 + 1 == 2", "random() < 0.5 + 0.25")
	}
	c, typ := g.column(n)
	switch typ {
	case "int64":
		return fmt.Sprintf(g.oneOf("%s > 5", "%s <= 11", "%s %% 3 != 1", "%s in [1, 2, 3, 5, 8, 13]", "%s + 9223372036854775790 > 0", "%s + 1 > 3", "%s != 4", "%s == 2 + 1"), c)
	case "int32":
		return fmt.Sprintf(g.oneOf("%s > 2", "is_null(%s)", "%s < 2.5", "%s >= 1"), c)
	case "double":
		return fmt.Sprintf(g.oneOf("%s < 7.0", "%s * 2.0 >= 5.0", "is_null(%s)", "!is_null(%s)", "%s != 3.5", "%s > 2"), c)
	case "string":
		return fmt.Sprintf(g.oneOf(`%s == "3"`, `%s >= "2"`, "size(%s) == 1", "int(%s) < 9", `%s in ["1", "2", "x", "7"]`), c)
	}
	return fmt.Sprintf(g.oneOf("size(%s) > 1", "is_null(%s)"), c)
}

// value makes an expression of any type.
func (g *generator) value(n ops.Node) string {
	if g.rng.IntN(10) == 0 {
		return g.oneOf("random()", "3", "1.5 * 2.0", `"k"`)
	}
	c, typ := g.column(n)
	switch typ {
	case "int64":
		return fmt.Sprintf(g.oneOf("%s", "%s + 1", "%s + 9223372036854775790", "double(%s) / 2.0", "%s % 7"), c)
	case "double":
		return fmt.Sprintf(g.oneOf("%s", "%s * 2.0", "sqrt(%s)", "coalesce(%s, 0.0)"), c)
	case "string":
		return fmt.Sprintf(g.oneOf("%s", "size(%s)", "int(%s)", `%s + "z"`), c)
	case "int32":
		return fmt.Sprintf(g.oneOf("%s", "double(%s)"), c)
	}
	return c
}

// plan makes a plan of a few steps, or the same again if a step is not possible.
func (g *generator) plan(depth int) ops.Node {
	n := read(g.oneOf("t", "u"), g.rng.Uint64N(3), g.rng.IntN(30), 1+g.rng.IntN(25), g.rng.IntN(40))
	for range 1 + g.rng.IntN(6) {
		g.pos++
		m := ops.Meta{Pos: g.pos, Verb: "step"}
		var next ops.Node
		var err error
		ctx := g.t.Context()
		name := func() string { f := n.Schema().Field(g.rng.IntN(n.Schema().NumFields())); return f.Name }
		switch k := g.rng.IntN(18); {
		case k < 5:
			e, perr := expr.Parse(g.condition(n))
			if perr != nil {
				g.t.Fatal(perr)
			}
			next, err = ops.NewFilter(n, e, m)
		case k < 8:
			next, err = ops.WithColumns(n, []string{fmt.Sprintf("n%d = %s", g.pos, g.value(n)), name() + " = " + g.value(n)}, m)
		case k < 10:
			var cols []string
			for range 1 + g.rng.IntN(3) {
				if c := name(); !slices.Contains(cols, c) {
					cols = append(cols, c)
				}
			}
			next, err = ops.Select(n, cols, m)
		case k == 10:
			next, err = ops.Drop(n, []string{name()}, m)
		case k == 11:
			next, err = ops.Rename(n, map[string]string{name(): fmt.Sprint("r", g.pos)}, m)
		case k == 12:
			if g.off {
				continue
			}
			next, err = ops.NewLimit(n, g.rng.Int64N(40), m)
			g.lim = true
		case k == 13:
			next, err = ops.NewExplode(n, name(), g.rng.IntN(2) == 0, m)
		case k == 14:
			var key []string
			if g.rng.IntN(2) == 0 {
				key = []string{name()}
			}
			next, err = ops.NewSample(n, 0, 0.3+g.rng.Float64()*0.7, g.rng.Uint64N(3), key, m)
		case k == 15:
			f := &ops.Func{Map: same, Passes: []string{name()}}
			if g.rng.IntN(2) == 0 {
				f = &ops.Func{Map: noise, UsesRandom: true}
			}
			next, err = ops.NewMap(ctx, n, f, g.rng.IntN(4), m)
		case k == 16:
			next, err = ops.NewMap(ctx, n, ops.FlatMapOf(twice), g.rng.IntN(4), m)
		default:
			if depth > 1 {
				continue
			}
			next, err = ops.NewUnion([]ops.Node{n, g.plan(depth + 1)}, m)
		}
		if err == nil {
			n = next
		}
	}
	return n
}

func same(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
	in.Retain()
	return in, nil
}

func noise(ctx context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
	b := array.NewFloat64Builder(ops.Allocator(ctx))
	defer b.Release()
	for i := range int(in.NumRows()) {
		b.Append(ops.RandFor(ctx, i).Float64())
	}
	r := b.NewArray()
	defer r.Release()
	for k := 0; ; k++ {
		if name := fmt.Sprint("noise", k); !in.Schema().HasField(name) {
			f := append(in.Schema().Fields(), arrow.Field{Name: name, Type: arrow.PrimitiveTypes.Float64})
			return array.NewRecordBatch(arrow.NewSchema(f, nil), append(slices.Clone(in.Columns()), r), in.NumRows()), nil
		}
	}
}

func twice(ctx context.Context, in arrow.RecordBatch) (arrow.RecordBatch, []int32, error) {
	var parents []int32
	for i := range int32(in.NumRows()) {
		parents = append(parents, i, i)
	}
	out, err := expr.Take(in, parents, ops.Allocator(ctx))
	return out, parents, err
}

// Random plans give the same rows in the same order, and skip the same failing rows, with every rule on
// or off, by any batch size, with and without pruning.
func TestRulesKeepRows(t *testing.T) {
	plans := 120
	if s := os.Getenv("PENSTOCK_TEST_PLANS"); s != "" {
		plans, _ = strconv.Atoi(s)
	}
	if testing.Short() {
		plans = 60
	}
	applied := map[string]int{}
	rows, skipped := 0, 0
	for seed := range uint64(plans) {
		g := &generator{t: t, rng: rand.New(rand.NewPCG(seed, 77))}
		n := g.plan(0)
		alloc := memtest.New(t)
		off := map[string]bool{}
		for _, r := range ops.RuleNames() {
			off[r] = true
		}
		want, err := evaluate(t, n, alloc, 1024, &plan.Options{NoPrune: true})
		if err != nil {
			t.Fatalf("seed %d: %v\n%s", seed, err, ops.Format(n))
		}
		rows += len(want.Rows)
		skipped += len(want.Skipped)
		variants := []map[string]bool{nil}
		for _, r := range ops.RuleNames() {
			only := map[string]bool{}
			for k := range off {
				only[k] = k != r
			}
			for k := range only {
				if !only[k] {
					delete(only, k)
				}
			}
			variants = append(variants, only, map[string]bool{r: true})
		}
		for _, v := range variants {
			m, did, err := ops.Optimize(n, v)
			if err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, ops.Format(n))
			}
			if v[ops.Fuse] {
				applied[ops.Fuse]++
			} else if len(did) == 0 && v != nil {
				continue
			}
			for _, d := range did {
				applied[d.Rule]++
			}
			got, err := evaluate(t, m, alloc, []int{1, 7, 1024}[g.rng.IntN(3)], &plan.Options{NoFuse: v[ops.Fuse]})
			if err != nil {
				t.Fatalf("seed %d, without %v: %v\n%s\n%s", seed, v, err, ops.Format(n), ops.Format(m))
			}
			if g.lim {
				got.Skipped = want.Skipped
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Fatalf("seed %d, without %v:\n%s\n%s\n%s", seed, v, ops.Format(n), ops.Format(m), d)
			}
		}
	}
	t.Logf("%d rows, %d skipped, applied %v", rows, skipped, applied)
	for _, r := range ops.RuleNames() {
		if applied[r] == 0 {
			t.Errorf("rule %s was never applied", r)
		}
	}
	if rows < plans || skipped < plans/10 {
		t.Errorf("the plans give too little: %d rows, %d skipped", rows, skipped)
	}
}

// Every source of a mix of random plans, packed or not, gives the same rows with the same origins under its
// own name, and skips the same failing ones, when it is rewritten by itself.
func TestRulesKeepSources(t *testing.T) {
	mixes, unions, packs := 0, 0, 0
	for seed := range uint64(100) {
		g := &generator{t: t, rng: rand.New(rand.NewPCG(seed, 78)), off: true}
		pack := g.rng.IntN(2) == 0
		var spec ops.MixSpec
		var ins []ops.Node
		for i := range 2 + g.rng.IntN(2) {
			n := g.plan(0)
			if g.rng.IntN(3) == 0 {
				if u, err := ops.NewUnion([]ops.Node{n, g.plan(1)}, ops.Meta{Pos: 8, Verb: "union"}); err == nil {
					n = u
				}
			}
			if pack {
				for _, f := range n.Schema().Fields() {
					if p, err := ops.NewPack(n, ops.PackSpec{Column: f.Name, Length: 4}, ops.Meta{Pos: 9, Verb: "pack"}); err == nil {
						n = p
						break
					}
				}
			}
			ins = append(ins, n)
			spec.Names = append(spec.Names, fmt.Sprint("s", i))
			spec.Weights = append(spec.Weights, 1)
		}
		mix, err := ops.NewMix(ins, spec, ops.Meta{Pos: 10, Verb: "mix"})
		if err != nil {
			continue // columns that do not agree
		}
		mixes++
		sources, _, err := ops.Sources(mix)
		if err != nil {
			t.Fatal(err)
		}
		alloc := memtest.New(t)
		for i, s := range sources {
			if s.Pack != nil {
				packs++
			}
			if len(ops.Reads(s.Plan)) > 1 && i > 0 {
				unions++
			}
			want, err := evaluate(t, s.Plan, alloc, 1024, &plan.Options{NoPrune: true})
			if err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, ops.Format(mix))
			}
			m, _, err := ops.Optimize(s.Plan, nil)
			if err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, ops.Format(s.Plan))
			}
			got, err := evaluate(t, m, alloc, 7, nil)
			if err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, ops.Format(m))
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Fatalf("seed %d, source %d:\n%s\n%s\n%s", seed, i, ops.Format(s.Plan), ops.Format(m), d)
			}
		}
		if whole, _, err := ops.Optimize(mix, nil); err != nil || !whole.Schema().Equal(mix.Schema()) {
			t.Fatalf("seed %d: %v\n%s", seed, err, ops.Format(mix))
		}
		if _, err := plan.Translate(t.Context(), mix, nil); fault.CodeOf(err) != fault.Unsupported {
			t.Fatalf("a mix is translated: %v", err)
		}
	}
	t.Logf("%d mixes, %d packs, %d unions behind the first source", mixes, packs, unions)
	if mixes < 30 || packs < 10 || unions < 5 {
		t.Errorf("the plans give too little: %d mixes, %d packs, %d unions behind the first source", mixes, packs, unions)
	}
}
