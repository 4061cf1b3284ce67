package ops

import (
	"slices"
	"strings"

	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/ops/expr"
)

// pushFilter moves a filter below the step before it, where it then sees the same
// rows: below a projection and a function for conditions on columns that these only pass on
// (a computed column would be computed twice), and into the inputs of a union. Never
// below a step that may fail (rows would be dropped before they fail), nor below
// limit, sample, explode and flat map.
func pushFilter(n Node) (Node, string, error) {
	f, ok := n.(*Filter)
	if !ok || f.Expr == nil || f.Props().Random {
		return n, "", nil
	}
	switch below := f.In.(type) {
	case *Union:
		ins := make([]Node, len(below.Ins))
		for i, in := range below.Ins {
			c, err := NewFilter(in, f.Expr, f.Meta)
			if err != nil {
				return n, "", nil // an input differs in nullability only; still, keep what is right
			}
			if ins[i], _, err = pushFilter(c); err != nil {
				return nil, "", err
			}
		}
		m, err := below.WithInputs(ins)
		return m, "runs in every input of " + below.Step(), err
	case *Project:
		if below.Props().Random || mayFail(below) {
			return n, "", nil
		}
		defs := map[string]*expr.Expr{}
		for _, it := range below.Items {
			if _, plain := it.Expr.IsCol(); plain {
				defs[it.Name] = it.Expr
			}
		}
		return splitFilter(f, below, defs)
	case *Map:
		if below.Func.Map == nil || below.Func.UsesRandom {
			return n, "", nil
		}
		defs := map[string]*expr.Expr{}
		for _, c := range below.Func.Passes {
			defs[c] = expr.Col(c)
		}
		return splitFilter(f, below, defs)
	}
	return n, "", nil
}

// splitFilter moves the conjuncts of f that read only columns in defs below
// the step; all or nothing where f may fail.
func splitFilter(f *Filter, below Node, defs map[string]*expr.Expr) (Node, string, error) {
	var down, stay []*expr.Expr
	for _, c := range f.Expr.Conjuncts() {
		if cols := c.Columns(); !slices.ContainsFunc(cols, func(col string) bool { return defs[col] == nil }) && len(cols) > 0 {
			down = append(down, c)
		} else {
			stay = append(stay, c)
		}
	}
	if len(down) == 0 || len(stay) > 0 && mayFail(f) {
		return f, "", nil
	}
	e := f.Expr
	if len(stay) > 0 {
		e = expr.And(down...)
	}
	in, err := NewFilter(below.Inputs()[0], e.Substitute(defs), f.Meta)
	if err != nil {
		return nil, "", err
	}
	low, _, err := pushFilter(in)
	if err != nil {
		return nil, "", err
	}
	m, err := below.WithInputs([]Node{low})
	if err == nil && len(stay) > 0 {
		m, err = NewFilter(m, expr.And(stay...), f.Meta)
	}
	return m, in.Expr.String() + " runs before " + below.Step(), err
}

// pushToRead gives a read what the filters above it say about its columns. The filters stay.
// Rows that a read leaves out because of one filter are not seen by the steps
// between, so none of these may fail.
func pushToRead(n Node) (Node, string, error) {
	f, ok := n.(*Filter)
	if !ok || f.Expr == nil || f.Props().Random || mayFail(f) {
		return n, "", nil
	}
	var path []Node // from below f down to above the read
	in := f.In
	for {
		switch below := in.(type) {
		case *Filter:
			if mayFail(below) {
				return n, "", nil
			}
			path = append(path, below)
			in = below.In
			continue
		case *Sample:
			path = append(path, below)
			in = below.In
			continue
		case *Read:
			p := below.Predicate
			terms := f.Expr.Predicate(below.schema)
			for _, t := range terms {
				if !slices.ContainsFunc(p, func(u driver.Term) bool {
					return t.Column == u.Column && t.Op == u.Op && slices.Equal(t.Values, u.Values)
				}) {
					p = append(p[:len(p):len(p)], t)
				}
			}
			if len(p) == len(below.Predicate) {
				return n, "", nil
			}
			var m Node = below.pushed(below.Columns, p, below.Limit)
			for _, step := range slices.Backward(path) {
				var err error
				if m, err = step.WithInputs([]Node{m}); err != nil {
					return nil, "", err
				}
			}
			m, err := f.WithInputs([]Node{m})
			return m, terms.String() + " is known to " + below.Step(), err
		}
		return n, "", nil
	}
}

// pushLimit tells a read how many rows of each split are of use: through steps that keep rows and
// cannot fail (a failed row may be skipped, and then another one is needed).
func pushLimit(n Node) (Node, string, error) {
	l, ok := n.(*Limit)
	if !ok {
		return n, "", nil
	}
	limit := max(l.N, 1) // 0 would mean no limit
	var told []string
	var visit func(Node) (Node, error)
	visit = func(n Node) (Node, error) {
		switch n := n.(type) {
		case *Read:
			if n.Limit > 0 && n.Limit <= limit {
				return n, nil
			}
			told = append(told, n.Step())
			return n.pushed(n.Columns, n.Predicate, limit), nil
		case *Project:
			if mayFail(n) {
				return n, nil
			}
			return mapInputs(n, visit)
		case *Union:
			return mapInputs(n, visit)
		}
		return n, nil
	}
	m, err := mapInputs(l, visit)
	return m, "is known to " + strings.Join(told, ", "), err
}
