package ops_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/ops"
)

// nodeTypes are the types with a method logical, from the source.
func nodeTypes(t *testing.T) []string {
	f, err := parser.ParseFile(token.NewFileSet(), "node.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == "logical" {
			names = append(names, fn.Recv.List[0].Type.(*ast.StarExpr).X.(*ast.Ident).Name)
		}
	}
	slices.Sort(names)
	return names
}

// cases are the types of the cases of all type switches in fn of file.
func cases(t *testing.T, file, fn string) []string {
	f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, d := range f.Decls {
		fd, ok := d.(*ast.FuncDecl)
		if !ok || fd.Name.Name != fn {
			continue
		}
		ast.Inspect(fd, func(n ast.Node) bool {
			ts, ok := n.(*ast.TypeSwitchStmt)
			if !ok {
				return true
			}
			for _, c := range ts.Body.List {
				for _, e := range c.(*ast.CaseClause).List {
					if star, ok := e.(*ast.StarExpr); ok {
						switch x := star.X.(type) {
						case *ast.Ident:
							names = append(names, x.Name)
						case *ast.SelectorExpr:
							names = append(names, x.Sel.Name)
						}
					}
				}
			}
			return true
		})
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// A new type of node must be known to the codec, to exec/plan, and to the plan that the tests of
// both use.
func TestEveryNodeTypeIsHandled(t *testing.T) {
	want := nodeTypes(t)
	if len(want) < 11 {
		t.Fatalf("only %v found", want)
	}
	for _, sw := range []struct{ file, fn string }{{"codec.go", "encodeNode"}, {"../exec/plan/plan.go", "build"}} {
		if got := cases(t, sw.file, sw.fn); !slices.Equal(got, want) {
			t.Errorf("%s in %s has cases for %v; node types are %v", sw.fn, sw.file, got, want)
		}
	}
	seen := map[string]bool{}
	for _, root := range everyPlan(t) {
		ops.Walk(root, func(n ops.Node) {
			name := strings.TrimPrefix(fmt.Sprintf("%T", n), "*ops.")
			seen[name] = true
			if s := n.String(); s == "" || strings.Contains(s, "\n") || strings.Contains(s, "0x") {
				t.Errorf("%s is shown as %q", name, s)
			}
		})
	}
	for _, name := range want {
		if !seen[name] {
			t.Errorf("the test plan has no %s", name)
		}
	}
}
