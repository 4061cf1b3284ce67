package ops

import (
	"slices"

	"github.com/penstock-data/penstock/ops/expr"
)

// foldNode computes constant parts of expressions, and removes filters that are always
// true. Expressions with random() stay as they are: their draws are numbered.
func foldNode(n Node) (Node, string, error) {
	switch n := n.(type) {
	case *Filter:
		if n.Expr == nil || n.Expr.Random() {
			return n, "", nil
		}
		e := n.Expr.Fold(n.In.Schema())
		if e.String() == "true" {
			return n.In, "always true: removed", nil
		}
		if e == n.Expr {
			return n, "", nil
		}
		m, err := NewFilter(n.In, e, n.Meta)
		if err != nil {
			return n, "", nil // folding lost a type: keep what is known to be right
		}
		return m, e.String(), nil
	case *Project:
		var items []Named
		what := ""
		for i, it := range n.Items {
			if _, plain := it.Expr.IsCol(); plain || it.Expr.Random() {
				continue
			}
			if e := it.Expr.Fold(n.In.Schema()); e != it.Expr {
				if items == nil {
					items = slices.Clone(n.Items)
				}
				items[i].Expr = e
				if what != "" {
					what += ", "
				}
				what += it.Name + " = " + e.String()
			}
		}
		if items == nil {
			return n, "", nil
		}
		m, err := NewProject(n.In, items, n.Meta)
		if err != nil || !m.schema.Equal(n.schema) {
			return n, "", nil
		}
		return m, what, nil
	}
	return n, "", nil
}

// merge makes one step of two where that duplicates no work and moves no failure from
// one step's policy to another's. A run of filters becomes one at once: two by two, the
// growing expression would be checked each time.
func merge(root Node) (Node, []Applied, error) {
	root, did, err := mergeFilters(root)
	if err != nil {
		return nil, nil, err
	}
	n, more, err := bottomUp("merge", mergeNode)(root)
	return n, append(did, more...), err
}

// mergeFilters merges runs of filters that draw no random numbers and cannot fail, each into its lowest.
func mergeFilters(n Node) (Node, []Applied, error) {
	plain := func(n Node) (*Filter, bool) {
		f, ok := n.(*Filter)
		return f, ok && f.Expr != nil && !f.Props().Random && !mayFail(f)
	}
	var did []Applied
	var visit func(Node) (Node, error)
	visit = func(n Node) (Node, error) {
		var run []*Filter // from the highest
		in := n
		for f, ok := plain(in); ok; f, ok = plain(in) {
			run = append(run, f)
			in = f.In
		}
		if len(run) < 2 {
			return mapInputs(n, visit)
		}
		in, err := visit(in)
		if err != nil {
			return nil, err
		}
		slices.Reverse(run)
		exprs := make([]*expr.Expr, len(run))
		for i, f := range run {
			exprs[i] = f.Expr
		}
		m, err := NewFilter(in, expr.And(exprs...), run[0].Meta)
		if err != nil { // together they are too large
			if in == run[0].In {
				return n, nil
			}
			for _, f := range run {
				if in, err = f.WithInputs([]Node{in}); err != nil {
					return nil, err
				}
			}
			return in, nil
		}
		for _, f := range run[1:] {
			did = append(did, Applied{"merge", f.Step(), "merged into " + run[0].Step()})
		}
		return m, nil
	}
	n, err := visit(n)
	return n, did, err
}

// mergeNode merges a limit or projection with the one below it.
func mergeNode(n Node) (Node, string, error) {
	switch n := n.(type) {
	case *Limit:
		if below, ok := n.In.(*Limit); ok {
			m := *below
			m.N = min(m.N, n.N)
			return &m, "merged into " + below.Step(), nil
		}
	case *Project:
		if identity(n) {
			return n.In, "changes nothing: removed", nil
		}
		if below, ok := n.In.(*Project); ok {
			return mergeProjects(n, below)
		}
	}
	return n, "", nil
}

// identity reports whether n gives its input as it is.
func identity(n *Project) bool {
	s := n.In.Schema()
	if len(n.Items) != s.NumFields() {
		return false
	}
	for i, it := range n.Items {
		if c, ok := it.Expr.IsCol(); !ok || c != it.Name || c != s.Field(i).Name {
			return false
		}
	}
	return s.Equal(n.schema) // metadata is part of it
}

func mergeProjects(n, below *Project) (Node, string, error) {
	nf, bf := mayFail(n), mayFail(below)
	if n.Props().Random || below.Props().Random || nf && bf {
		return n, "", nil
	}
	defs := make(map[string]*expr.Expr, len(below.Items))
	computed := map[string]int{} // times that a computed column is used
	for _, it := range below.Items {
		defs[it.Name] = it.Expr
		if _, plain := it.Expr.IsCol(); !plain {
			computed[it.Name] = 0
		}
	}
	items := make([]Named, len(n.Items))
	for i, it := range n.Items {
		_, plain := it.Expr.IsCol()
		for _, c := range it.Expr.Columns() {
			uses, comp := computed[c]
			if comp && (!plain || uses > 0) {
				return n, "", nil // would be computed twice
			}
			if comp {
				computed[c] = uses + 1
			}
		}
		items[i] = Named{it.Name, it.Expr.Substitute(defs)}
	}
	meta := n.Meta
	if bf {
		meta = below.Meta
		for _, it := range below.Items {
			if uses, comp := computed[it.Name]; comp && uses == 0 && it.Expr.MayFail(below.In.Schema()) {
				return n, "", nil // its failures must not go away
			}
		}
	}
	m, err := NewProject(below.In, items, meta)
	if err != nil || !m.schema.Equal(n.schema) {
		return n, "", nil
	}
	return m, "merged with " + below.Step(), nil
}
