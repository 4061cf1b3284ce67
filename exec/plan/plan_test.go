package plan_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/google/go-cmp/cmp"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/plan"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/memtest"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/ops/expr"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// chain builds plans step by step.
type chain struct {
	t   testing.TB
	n   ops.Node
	pos int
}

func start(t testing.TB, name string, splits ...int) *chain {
	return &chain{t: t, n: read(name, 1, splits...)}
}

func (c *chain) meta(verb string) ops.Meta {
	c.pos++
	return ops.Meta{Pos: c.pos, Verb: verb}
}

func (c *chain) then(n ops.Node, err error) *chain {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
	c.n = n
	return c
}

func (c *chain) filter(s string) *chain {
	c.t.Helper()
	e, err := expr.Parse(s)
	if err != nil {
		c.t.Fatal(err)
	}
	return c.then(ops.NewFilter(c.n, e, c.meta("filter")))
}
func (c *chain) with(s ...string) *chain {
	return c.then(ops.WithColumns(c.n, s, c.meta("with_columns")))
}
func (c *chain) sel(s ...string) *chain { return c.then(ops.Select(c.n, s, c.meta("select"))) }
func (c *chain) none() *chain           { return c.then(ops.NewProject(c.n, nil, c.meta("select"))) }
func (c *chain) limit(n int64) *chain   { return c.then(ops.NewLimit(c.n, n, c.meta("limit"))) }
func (c *chain) explode(s string) *chain {
	return c.then(ops.NewExplode(c.n, s, false, c.meta("explode")))
}
func (c *chain) union(others ...*chain) *chain {
	ins := []ops.Node{c.n}
	for _, o := range others {
		ins = append(ins, o.n)
	}
	return c.then(ops.NewUnion(ins, c.meta("union")))
}
func (c *chain) exec() *chain {
	m := c.meta("exec")
	m.OnError = &ops.OnError{Policy: "retry"}
	return c.then(ops.NewExec(c.n, &ops.ExecSpec{Command: []string{"python3", "score.py"}, Workers: 3, Out: c.n.Schema()}, m))
}
func (c *chain) mapped() *chain {
	m := c.meta("map_batches")
	m.OnError = &ops.OnError{Policy: "skip", Retries: 1}
	return c.then(ops.NewMap(c.t.Context(), c.n, ops.MapOf(same), 64, m))
}

// TestDescribe keeps what explain shows, in testdata/describe.
func TestDescribe(t *testing.T) {
	plans := map[string]func() *chain{
		"taxi": func() *chain {
			return start(t, "taxi", 1000, 2000, 500000).filter("a > 3 && b < 5.0").with("d = b * 2.0").sel("d", "i")
		},
		"pruned":  func() *chain { return start(t, "t", 3, 0, 5).filter("a > 1000").sel("a") },
		"limit":   func() *chain { return start(t, "t", 10, 10).sel("a", "b").limit(5) },
		"behind":  func() *chain { return start(t, "t", 10, 10).limit(5).filter("a > 1").limit(3) },
		"explode": func() *chain { return start(t, "t", 10, 10).explode("l").filter("l > 1").mapped().exec() },
		"union": func() *chain {
			return start(t, "t", 10).sel("a", "b").union(start(t, "u", 10).sel("a"), start(t, "v", 5).limit(2)).filter("a > 1").exec()
		},
		"union limit": func() *chain { return start(t, "t", 10).union(start(t, "u", 10)).limit(5) },
		"count":       func() *chain { return start(t, "t", 10, 20).filter("b > 1.0").none() },
	}
	datadriven.RunTest(t, "testdata/describe", func(t *testing.T, d *datadriven.TestData) string {
		make, ok := plans[strings.TrimSpace(d.Input)]
		if !ok {
			t.Fatalf("no plan %q", d.Input)
		}
		n := make().n
		if d.Cmd == "optimized" {
			var err error
			if n, _, err = ops.Optimize(n, nil); err != nil {
				t.Fatal(err)
			}
		}
		g, err := plan.Translate(t.Context(), n, nil)
		if err != nil {
			return err.Error()
		}
		return plan.Describe(g, false)
	})
}

// One operator serves all inputs of a union: a pool of child processes is one pool.
func TestUnionSharesOperators(t *testing.T) {
	g, err := plan.Translate(t.Context(), start(t, "t", 10).union(start(t, "u", 10)).exec().n, nil)
	if err != nil {
		t.Fatal(err)
	}
	in := g.Root.Inputs
	if len(in) != 2 || len(in[0].Ops) != 1 || in[0].Ops[0].Operator != in[1].Ops[0].Operator {
		t.Errorf("%s", plan.Describe(g, false))
	}
}

// random() draws other numbers at every step and in every computed column, and the same ones whatever
// the rules leave out.
func TestSites(t *testing.T) {
	alloc := memtest.New(t)
	c := start(t, "t", 50).with("p = random()", "q = random()").with("r = random()")
	whole, err := evaluate(t, c.n, alloc, 1024, nil)
	if err != nil {
		t.Fatal(err)
	}
	col := func(r result, k int) []string {
		var out []string
		for _, l := range r.Rows {
			f := strings.Fields(l)
			out = append(out, f[len(f)-k])
		}
		return out
	}
	p, q, r := col(whole, 3), col(whole, 2), col(whole, 1)
	if slices.Equal(p, q) || slices.Equal(p, r) || slices.Equal(q, r) {
		t.Error("two columns have the same random numbers")
	}
	n, _, err := ops.Optimize(c.sel("q").n, nil)
	if err != nil {
		t.Fatal(err)
	}
	alone, err := evaluate(t, n, alloc, 7, nil)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(q, col(alone, 1)); d != "" {
		t.Error(d)
	}

	// A step of a union's input and a step behind the union may have the same position.
	u := start(t, "u", 50).with("x = a").with("s = random()")
	m := &chain{t: t, n: start(t, "t", 50).with("y = a").n}
	m.pos = 0
	m.union(u).with("r = random()")
	if m.pos != 2 {
		t.Fatal("the test is wrong")
	}
	both, err := evaluate(t, m.n, alloc, 1024, nil)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Equal(col(both, 1)[50:], col(both, 2)[50:]) {
		t.Error("two steps of one position draw the same numbers")
	}
}

func TestPolicies(t *testing.T) {
	g, err := plan.Translate(t.Context(), start(t, "t", 10).filter("a > 1").mapped().exec().n, nil)
	if err != nil {
		t.Fatal(err)
	}
	want := []*exec.OnError{nil, {Policy: exec.Skip, Retries: 1}, {Policy: exec.Fail, Retries: 3}}
	for i, op := range g.Root.Ops {
		if d := cmp.Diff(want[i], op.OnError); d != "" {
			t.Errorf("operator %d: %s", i, d)
		}
	}
}

// Inputs of a union that differ in nullability give blocks of one schema.
func TestUnionRelabels(t *testing.T) {
	alloc := memtest.New(t)
	a := start(t, "t", 10).sel("a") // not null
	b := start(t, "u", 10).with("a = a * 2").sel("a")
	a.union(b)
	if !a.n.Schema().Field(0).Nullable {
		t.Errorf("got %v", a.n.Schema())
	}
	got, err := evaluate(t, a.n, alloc, 1024, nil) // checks the schema of every block
	if err != nil || len(got.Rows) != 20 {
		t.Errorf("%d rows, %v", len(got.Rows), err)
	}
}

// Rows without columns are still counted.
func TestNoColumns(t *testing.T) {
	alloc := memtest.New(t)
	for _, rules := range []bool{false, true} {
		n := start(t, "t", 30, 30).filter("a > 9").sel("a").n
		want, err := evaluate(t, n, alloc, 7, nil)
		if err != nil {
			t.Fatal(err)
		}
		n = start(t, "t", 30, 30).filter("a > 9").none().n
		if rules {
			if n, _, err = ops.Optimize(n, nil); err != nil {
				t.Fatal(err)
			}
		}
		got, err := evaluate(t, n, alloc, 7, nil)
		if err != nil || len(got.Rows) != len(want.Rows) || len(got.Rows) == 0 {
			t.Errorf("%d rows, want %d (%v)", len(got.Rows), len(want.Rows), err)
		}
	}
}

func TestPrunerErrors(t *testing.T) {
	n := start(t, "t", 10).filter("a > 1").n
	n, _, err := ops.Optimize(n, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := ops.Reads(n)[0]
	broken := *r
	broken.Table = badPruner{r.Table}
	if _, err := plan.Translate(t.Context(), &broken, nil); fault.CodeOf(err) != fault.Unavailable || !strings.Contains(err.Error(), "source (test)") {
		t.Errorf("got %v", err)
	}
	if _, err := plan.Translate(t.Context(), &broken, &plan.Options{NoPrune: true}); err != nil {
		t.Error(err)
	}
}

type badPruner struct{ driver.Table }

func (badPruner) Keep(context.Context, driver.Predicate) ([]bool, error) {
	return nil, fault.WithCode(fault.Unavailable, errors.New("no statistics today"))
}
