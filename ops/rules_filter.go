package ops

import (
	"slices"
	"strings"

	"github.com/penstock-data/penstock/io/driver"
)

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
