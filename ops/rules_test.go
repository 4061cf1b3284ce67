package ops_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/cockroachdb/datadriven"
	"github.com/penstock-data/penstock/ops"
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
	if _, _, err := ops.Optimize(must(t, "read t: a int"), map[string]bool{"fuse": true}); err == nil || !strings.Contains(err.Error(), `unknown rule "fuse"; have [fold filter`) {
		t.Errorf("got %v", err)
	}
}
