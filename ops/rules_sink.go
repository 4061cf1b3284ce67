package ops

import (
	"slices"

	"github.com/penstock-data/penstock/ops/expr"
)

// pushFilters moves filters below the steps before them, where they then see the same
// rows: below a projection and a function for conditions on columns that these only pass on
// (a computed column would be computed twice), and into the inputs of a union. Never
// below a step that may fail (rows would be dropped before they fail), nor below
// limit, sample, explode and flat map. Filters do not overtake one another.
//
// What lies below a filter is gone through once for all filters on the way, and each is checked again only where
// it arrives: so plans of many steps are no worse than their length.
func pushFilters(root Node) (Node, []Applied, error) {
	var did []Applied
	var visit func(Node) (Node, error)
	visit = func(n Node) (Node, error) {
		if f, ok := n.(*Filter); ok && f.Expr != nil && !f.random {
			m, more, err := sink(f, visit)
			did = append(did, more...)
			return m, err
		}
		return mapInputs(n, visit)
	}
	n, err := visit(root)
	return n, did, err
}

// sinking is a filter on its way down, or a part of one.
type sinking struct {
	from  *Filter // as it was
	e     *expr.Expr
	cols  []string
	parts bool // some conjunct has no column: it stays, so that the filter goes down in parts only
	moved bool
	what  string // its first move; of the whole filter only
	whole *sinking
}

// level is a step that filters have passed, and those that had to stay above it, highest first.
type level struct {
	stay []*sinking
	step Node
}

// sink moves f, and the filters that it meets, down as far as they go. visit rewrites what is below.
func sink(f *Filter, visit func(Node) (Node, error)) (Node, []Applied, error) {
	var all, run []*sinking // the run falls; highest first
	var levels []level
	var in Node = f
	for {
		if g, ok := in.(*Filter); ok && g.Expr != nil && !g.random {
			s := &sinking{from: g, e: g.Expr, cols: g.Expr.Columns(), parts: slices.ContainsFunc(g.Expr.Conjuncts(), constant)}
			s.whole = s
			all, run = append(all, s), append(run, s)
			in = g.In
			continue
		}
		if len(run) == 0 || !passable(in) {
			break
		}
		var stay []*sinking
		stay, run = pass(run, in)
		levels = append(levels, level{stay, in})
		in = in.Inputs()[0]
	}
	cur, err := visit(in)
	if err != nil {
		return nil, nil, err
	}
	for _, s := range slices.Backward(run) {
		if cur, err = s.place(cur); err != nil {
			return nil, nil, err
		}
	}
	for _, l := range slices.Backward(levels) {
		if cur != l.step.Inputs()[0] {
			cur, err = l.step.WithInputs([]Node{cur})
		} else {
			cur = l.step
		}
		for _, s := range slices.Backward(l.stay) {
			if err == nil {
				cur, err = s.put(cur)
			}
		}
		if err != nil {
			return nil, nil, err
		}
	}
	var did []Applied
	for _, s := range slices.Backward(all) {
		if s.what != "" {
			did = append(did, Applied{"filter", s.from.Step(), s.what})
		}
	}
	return cur, did, nil
}

// pass divides a run before a step: the lowest filters pass it, up to one that does not, or in part.
func pass(run []*sinking, step Node) (stay, down []*sinking) {
	i := len(run)
	for i > 0 && run[i-1].pass(step) {
		i--
	}
	if i == 0 {
		return nil, run
	}
	if low := run[i-1].split(step); low != nil {
		return slices.Clone(run[:i]), append([]*sinking{low}, run[i:]...)
	}
	return slices.Clone(run[:i]), run[i:]
}

// pass moves all of s below a step, if it can go there.
func (s *sinking) pass(step Node) bool {
	if s.parts {
		return false
	}
	same := true
	for _, c := range s.cols {
		at, passes := source(step, c)
		if !passes {
			return false
		}
		same = same && at == c
	}
	if !same {
		s.e = s.e.Substitute(sources(step, s.cols))
		s.cols = s.e.Columns()
	}
	s.moves(s.e, step)
	return true
}

// split moves the conjuncts that can go below a step, and returns them; all or nothing where s may fail.
func (s *sinking) split(step Node) *sinking {
	var down, stay []*expr.Expr
	for _, c := range s.e.Conjuncts() {
		if cols := c.Columns(); len(cols) > 0 && !slices.ContainsFunc(cols, func(c string) bool { _, ok := source(step, c); return !ok }) {
			down = append(down, c)
		} else {
			stay = append(stay, c)
		}
	}
	if len(down) == 0 || s.from.fails {
		return nil
	}
	e := expr.And(down...)
	low := &sinking{from: s.from, e: e.Substitute(sources(step, e.Columns())), whole: s.whole}
	low.cols = low.e.Columns()
	low.moves(low.e, step)
	s.e, s.moved = expr.And(stay...), true
	return low
}

func constant(e *expr.Expr) bool { return len(e.Columns()) == 0 }

func (s *sinking) moves(e *expr.Expr, step Node) {
	s.moved = true
	if s.whole.what == "" {
		s.whole.what = e.String() + " runs before " + step.Step()
	}
}

// put makes s a filter over in.
func (s *sinking) put(in Node) (Node, error) {
	switch {
	case s.moved:
		return NewFilter(in, s.e, s.from.Meta)
	case s.from.In == in:
		return s.from, nil
	}
	return s.from.WithInputs([]Node{in})
}

// place puts s where it has come to rest: over in, or into all inputs of a union.
func (s *sinking) place(in Node) (Node, error) {
	u, ok := in.(*Union)
	if !ok {
		return s.put(in)
	}
	ins := make([]Node, len(u.Ins))
	for i, in := range u.Ins {
		c, err := NewFilter(in, s.e, s.from.Meta)
		if err != nil {
			return s.put(u) // an input differs in nullability only; still, keep what is right
		}
		if ins[i], _, err = sink(c, func(n Node) (Node, error) { return n, nil }); err != nil {
			return nil, err
		}
	}
	if s.whole.what == "" {
		s.whole.what = "runs in every input of " + u.Step()
	}
	return u.WithInputs(ins)
}

// passable reports whether a filter may run before a step.
func passable(n Node) bool {
	switch n := n.(type) {
	case *Project:
		return !n.random && !n.fails
	case *Map:
		return n.Func.Map != nil && !n.Func.UsesRandom
	}
	return false
}

// source is the name that a column of a step's output has in its input, if the step passes it on.
func source(n Node, col string) (name string, passes bool) {
	switch n := n.(type) {
	case *Project:
		for _, i := range n.altered {
			if n.Items[i].Name == col {
				return n.Items[i].Expr.IsCol()
			}
		}
		return col, true
	case *Map:
		return col, slices.Contains(n.Func.Passes, col)
	}
	return "", false
}

// sources are those of columns that all pass.
func sources(n Node, cols []string) map[string]*expr.Expr {
	defs := make(map[string]*expr.Expr, len(cols))
	for _, c := range cols {
		name, _ := source(n, c)
		defs[c] = expr.Col(name)
	}
	return defs
}
