package ops

import (
	"context"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/ops/expr"
)

// Resolve resolves src and makes a read of it. filters are the expressions of the
// filters that follow the read directly: files that they exclude by hive values are
// not listed. The caller closes Table, or uses [Close].
func Resolve(ctx context.Context, src driver.Source, filters []*expr.Expr, ordinal int, m Meta, o *driver.ResolveOptions) (*Read, error) {
	return resolve(ctx, src, FilesPredicate(filters), ordinal, m, o)
}

func resolve(ctx context.Context, src driver.Source, files driver.Predicate, ordinal int, m Meta, o *driver.ResolveOptions) (*Read, error) {
	if m.Verb == "" {
		m.Verb = src.Kind()
	}
	ro := driver.ResolveOptions{}
	if o != nil {
		ro = *o
	}
	ro.Files = append(ro.Files[:len(ro.Files):len(ro.Files)], files...)
	t, err := src.Resolve(ctx, &ro)
	if err != nil {
		return nil, fault.Wrap(err, m.place())
	}
	n, err := NewRead(src, t, ordinal, m)
	if err != nil {
		_ = t.Close() // what went wrong first counts
		return nil, err
	}
	var parts []string
	if p, ok := t.(driver.Partitioned); ok {
		parts = p.PartitionColumns()
	}
	for _, term := range ro.Files { // the others say nothing about what was listed
		if slices.Contains(parts, term.Column) {
			n.Files = append(n.Files, term)
		}
	}
	return n, nil
}

// FilesPredicate gives what filters say about hive partition columns, for
// driver.ResolveOptions.Files. The schema is not known yet, and with it neither which
// columns are partitions (drivers ignore the others) nor their types: a term
// has the type that the expression's literals ask for, of those that partition
// columns can have (int64, string, date).
func FilesPredicate(filters []*expr.Expr) driver.Predicate {
	var p driver.Predicate
	types := []arrow.DataType{arrow.PrimitiveTypes.Int64, arrow.BinaryTypes.String, arrow.FixedWidthTypes.Date32}
	for _, f := range filters {
		for _, c := range f.Conjuncts() {
			cols := c.Columns()
			if len(cols) != 1 || c.Random() {
				continue
			}
			for _, t := range types {
				s := arrow.NewSchema([]arrow.Field{{Name: cols[0], Type: t, Nullable: true}}, nil)
				if _, err := c.Bind(s, 0); err != nil {
					continue
				}
				if terms := c.Predicate(s); terms != nil {
					p = append(p, terms...)
					break
				}
			}
		}
	}
	return p
}
