package ops

import (
	"slices"
	"strings"

	"github.com/penstock-data/penstock/internal/cell"
	"github.com/penstock-data/penstock/ops/expr"
)

// pushProjection leaves out columns that no later step reads: reads do not decode them, projections
// do not compute them (unless computing them may fail). Functions and exec read
// all of their input.
func pushProjection(root Node) (Node, []Applied, error) {
	p := &pruner{}
	n, err := p.need(root, nil)
	return n, p.did, err
}

type pruner struct{ did []Applied }

// set is what is needed of a node's columns; nil means all.
type set map[string]bool

func (s set) with(cols ...string) set {
	if s == nil {
		return nil
	}
	c := make(set, len(s)+len(cols))
	for k := range s {
		c[k] = true
	}
	for _, k := range cols {
		c[k] = true
	}
	return c
}

// need rewrites n so that it makes at least the columns in s, in unchanged order.
func (p *pruner) need(n Node, s set) (Node, error) {
	switch n := n.(type) {
	case *Read:
		if s == nil {
			return n, nil
		}
		cols := make([]string, 0, len(s))
		for _, f := range n.schema.Fields() {
			if s[f.Name] {
				cols = append(cols, f.Name)
			}
		}
		if len(cols) == n.schema.NumFields() {
			return n, nil
		}
		p.did = append(p.did, Applied{"projection", n.Step(), "reads only [" + abbreviate(cell.Words(cols), 12) + "]"})
		return n.pushed(cols, n.Predicate, n.Limit), nil
	case *Filter:
		if n.Func != nil {
			s = nil
		} else {
			s = s.with(n.Expr.Columns()...)
		}
	case *Sample:
		s = s.with(n.Key...)
	case *Explode:
		s = s.with(n.Column)
	case *Limit:
	case *Project:
		return p.project(n, s)
	case *Union:
		return p.union(n, s)
	case *Pack: // whatever is needed of it
		s = set{}.with(n.Needs()...)
	default: // functions and child processes see every column; a mix is the root
		s = nil
	}
	return mapInputs(n, func(in Node) (Node, error) { return p.need(in, s) })
}

func (p *pruner) project(n *Project, s set) (Node, error) {
	items := n.Items
	if s != nil {
		items = slices.DeleteFunc(slices.Clone(items), func(it Named) bool {
			_, plain := it.Expr.IsCol()
			return !s[it.Name] && (plain || !it.Expr.MayFail(n.In.Schema()))
		})
		if len(items) < len(n.Items) {
			var gone []string
			for _, it := range n.Items {
				if !slices.ContainsFunc(items, func(k Named) bool { return k.Name == it.Name }) {
					gone = append(gone, it.Name)
				}
			}
			p.did = append(p.did, Applied{"projection", n.Step(), "leaves out " + strings.Join(gone, ", ")})
		}
	}
	below := set{}
	for _, it := range items {
		for _, c := range it.Expr.Columns() {
			below[c] = true
		}
	}
	in, err := p.need(n.In, below)
	if err != nil || in == n.In && len(items) == len(n.Items) {
		return n, err
	}
	return NewProject(in, items, n.Meta)
}

// union needs the same columns of every input: one that cannot leave out a column gets a
// projection on top.
func (p *pruner) union(n *Union, s set) (Node, error) {
	if s == nil {
		return mapInputs(n, func(in Node) (Node, error) { return p.need(in, nil) })
	}
	var want []string
	for _, f := range n.schema.Fields() {
		if s[f.Name] {
			want = append(want, f.Name)
		}
	}
	if len(want) == n.schema.NumFields() {
		return mapInputs(n, func(in Node) (Node, error) { return p.need(in, s) })
	}
	ins := make([]Node, len(n.Ins))
	for i, in := range n.Ins {
		c, err := p.need(in, s)
		if err != nil {
			return nil, err
		}
		if !slices.Equal(fieldNames(c.Schema()), want) {
			items := make([]Named, len(want))
			for k, name := range want {
				items[k] = Named{name, expr.Col(name)}
			}
			if c, err = NewProject(c, items, n.Meta); err != nil {
				return nil, err
			}
		}
		ins[i] = c
	}
	return n.WithInputs(ins)
}
