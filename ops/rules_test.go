package ops_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/ops/expr"
)

// TestPlans runs the files of testdata: `build` shows a plan and its schema, or the error;
// `optimize` shows it after the rules (only=a,b or off=a,b choose) and what they did.
func TestPlans(t *testing.T) {
	for _, dir := range []string{"testdata/rules", "testdata/errors"} {
		datadriven.Walk(t, dir, func(t *testing.T, path string) {
			p := &plans{t: t, named: map[string]ops.Node{}}
			datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
				n, err := p.build(d.Input)
				if err != nil {
					return err.Error()
				}
				switch d.Cmd {
				case "def":
					p.named[d.CmdArgs[0].Key] = n
					return "ok"
				case "build":
					return ops.Format(n) + ops.FormatSchema(n)
				case "optimize":
					off := map[string]bool{}
					for _, a := range d.CmdArgs {
						for _, name := range ops.RuleNames() {
							named := false
							for _, v := range a.Vals {
								named = named || v == name
							}
							if named == (a.Key == "off") {
								off[name] = true
							}
						}
					}
					m, did, err := ops.Optimize(n, off)
					if err != nil {
						return err.Error()
					}
					if again, more, err := ops.Optimize(m, off); err != nil || again != m || len(more) > 0 {
						t.Errorf("%s: a second run changes the plan again: %v, %v\n%s", d.Pos, more, err, ops.Format(again))
					}
					if !m.Schema().Equal(n.Schema()) {
						t.Errorf("%s: the schema changed from %v to %v", d.Pos, n.Schema(), m.Schema())
					}
					var b strings.Builder
					b.WriteString(ops.Format(m))
					for _, a := range did {
						fmt.Fprintf(&b, "%s: %s: %s\n", a.Rule, a.Step, a.What)
					}
					return b.String()
				}
				t.Fatalf("unknown command %q", d.Cmd)
				return ""
			})
		})
	}
}

func TestOptimizeUnknownRule(t *testing.T) {
	if _, _, err := ops.Optimize(must(t, "read t: a int"), map[string]bool{"no such rule": true}); err == nil || !strings.Contains(err.Error(), `unknown rule "no such rule"; have [fold filter`) {
		t.Errorf("got %v", err)
	}
}

// Filters that are too large together stay apart.
func TestMergeTooLarge(t *testing.T) {
	list := make([]string, 20_000)
	for i := range list {
		list[i] = "7"
	}
	e, err := expr.Parse("a in [" + strings.Join(list, ",") + "]")
	if err != nil {
		t.Fatal(err)
	}
	n := must(t, "read t: a int")
	for i := range 5 {
		if n, err = ops.NewFilter(n, e, ops.Meta{Pos: i + 1, Verb: "filter"}); err != nil {
			t.Fatal(err)
		}
	}
	off := map[string]bool{"fold": true, "filter": true, "projection": true, "predicate": true, "limit": true}
	m, did, err := ops.Optimize(n, off)
	if err != nil || strings.Contains(fmt.Sprint(did), "merged") {
		t.Fatalf("%v", err)
	}
	if again, _, err := ops.Optimize(m, off); err != nil || again != m {
		t.Errorf("a second run changes the plan again: %v", err)
	}
}

// Planning takes time in proportion to the filters: BenchmarkFilters/1000 takes about 10 times
// BenchmarkFilters/100.
func BenchmarkFilters(b *testing.B) {
	for _, k := range []int{100, 1000} {
		n := must(b, "read t: a int, b double\n"+strings.Repeat("filter a > 1 && b < 7.0\n", k))
		b.Run(fmt.Sprint(k), func(b *testing.B) {
			for b.Loop() {
				if _, _, err := ops.Optimize(n, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// alternating is a plan of k filters, each behind columns computed of others: every filter runs before all of them.
func alternating(t testing.TB, k int) ops.Node {
	var b strings.Builder
	for i := range k {
		fmt.Fprintf(&b, "filter a > %d\nwith_columns b = b * 2.0\n", i)
	}
	return must(t, "read t: a int, b double\n"+b.String())
}

// Filters that alternate with computed columns are planned with work that grows about as the steps do: each filter goes
// down in one move, and is checked once.
func TestAlternatingFilters(t *testing.T) {
	allocs := func(k int) float64 {
		n := alternating(t, k)
		return testing.AllocsPerRun(1, func() {
			m, _, err := ops.Optimize(n, nil)
			if err != nil || strings.Count(ops.Format(m), "  filter a") != 1 {
				t.Fatalf("%v, or more than one filter is left", err)
			}
		})
	}
	few, many := allocs(100), allocs(400)
	t.Logf("%.0f and %.0f allocations", few, many)
	if many > 8*few {
		t.Errorf("100 filters take %.0f allocations, 400 take %.0f", few, many)
	}
}

func BenchmarkAlternating(b *testing.B) {
	for _, k := range []int{50, 500} {
		n := alternating(b, k)
		b.Run(fmt.Sprint(2*k), func(b *testing.B) {
			for b.Loop() {
				if _, _, err := ops.Optimize(n, nil); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
