package ops

import (
	"slices"

	"github.com/penstock-data/penstock/internal/fault"
)

// Rule rewrites plans. A rule never changes rows, their order, which steps fail at which rows,
// nor the canonical list of splits: so it may be switched off at will. One thing does depend on rules: a
// read parses only the columns that are used, so under a policy that skips rows which do not parse, fold and
// projection are part of the plan (dataset.RunOptions.NoRules).
type Rule interface {
	Name() string
	// Rewrite returns root itself when there is nothing to do, and what it did
	// otherwise, in plan order.
	Rewrite(root Node) (Node, []Applied, error)
}

// Applied says what a rule did, for Explain.
type Applied struct {
	Rule string
	Step string // the step that changed
	What string // "fare > 0.0 runs before step 2 (with_columns)"
}

// rule is a Rule made of a function.
type rule struct {
	name    string
	rewrite func(root Node) (Node, []Applied, error)
}

func (r rule) Name() string                               { return r.name }
func (r rule) Rewrite(root Node) (Node, []Applied, error) { return r.rewrite(root) }

// Rules are all rules in the order in which they run.
func Rules() []Rule {
	return []Rule{
		rule{"fold", bottomUp("fold", foldNode)},             // constants are computed at plan time
		rule{"filter", pushFilters},                          // filters run before projections, unions and functions
		rule{"merge", merge},                                 // adjacent projections, filters and limits become one
		rule{"projection", pushProjection},                   // reads and projections make only columns that are used
		rule{"predicate", bottomUp("predicate", pushToRead)}, // reads get what filters say of their columns
		rule{"limit", bottomUp("limit", pushLimit)},          // reads get how many rows a limit needs
	}
}

// Fuse is the rule of which Optimize knows the name only: the translation of a plan (exec/plan) makes one task of the steps that follow a read.
const Fuse = "fuse"

// RuleNames are the names that Optimize knows.
func RuleNames() []string {
	var names []string
	for _, r := range Rules() {
		names = append(names, r.Name())
	}
	return append(names, Fuse)
}

// maxPasses bounds the rewriting. Each pass moves every filter as far as it goes, so
// real plans settle in two or three.
const maxPasses = 20

// Optimize runs the rules until nothing changes. disabled switches rules off by
// name; an unknown name is an error.
func Optimize(root Node, disabled map[string]bool) (Node, []Applied, error) {
	for name := range disabled {
		if !slices.Contains(RuleNames(), name) {
			return nil, nil, fault.New(fault.Invalid, "unknown rule %q; have %v", name, RuleNames())
		}
	}
	var all []Applied
	seen := map[Applied]bool{}
	for range maxPasses {
		before := root
		for _, r := range Rules() {
			if disabled[r.Name()] {
				continue
			}
			n, did, err := r.Rewrite(root)
			if err != nil {
				return nil, nil, fault.New(fault.Internal, "rule %s: %w", r.Name(), err)
			}
			root = n
			for _, a := range did {
				if !seen[a] {
					seen[a] = true
					all = append(all, a)
				}
			}
		}
		if root == before {
			break
		}
	}
	return root, all, nil
}

// bottomUp makes a rewrite of a function over single nodes, which returns its
// argument when there is nothing to do. Inputs come first.
func bottomUp(name string, f func(n Node) (Node, string, error)) func(Node) (Node, []Applied, error) {
	return func(root Node) (Node, []Applied, error) {
		var did []Applied
		var visit func(n Node) (Node, error)
		visit = func(n Node) (Node, error) {
			n, err := mapInputs(n, visit)
			if err != nil {
				return nil, err
			}
			m, what, err := f(n)
			if err == nil && m != n && what != "" {
				did = append(did, Applied{name, n.Step(), what})
			}
			return m, err
		}
		n, err := visit(root)
		return n, did, err
	}
}

// mayFail reports whether n can fail on some row: then what it sees must not
// change.
func mayFail(n Node) bool {
	switch n := n.(type) {
	case *Filter:
		return n.Func != nil || n.fails
	case *Project:
		return n.fails
	case *Map, *Exec:
		return true
	}
	return false
}
