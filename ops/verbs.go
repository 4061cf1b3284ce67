package ops

import (
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/near"
	"github.com/penstock-data/penstock/ops/expr"
)

// The verbs below all make a Project.

// Select keeps the columns, in the order given.
func Select(in Node, columns []string, m Meta) (*Project, error) {
	if len(columns) == 0 {
		return nil, m.wrong("no columns given%s", near.Column("", in.Schema()))
	}
	items := make([]Named, len(columns))
	for i, c := range columns {
		items[i] = Named{c, expr.Col(c)}
	}
	return NewProject(in, items, m)
}

// Drop leaves the columns out.
func Drop(in Node, columns []string, m Meta) (*Project, error) {
	s := in.Schema()
	for _, c := range columns {
		if _, err := column(s, c); err != nil {
			return nil, fault.Wrap(err, m.place())
		}
	}
	items := slices.DeleteFunc(passAll(s), func(it Named) bool { return slices.Contains(columns, it.Name) })
	if len(items) == 0 {
		return nil, m.wrong("no column would be left")
	}
	return NewProject(in, items, m)
}

// Rename gives columns new names; names maps old to new. Columns keep their place.
func Rename(in Node, names map[string]string, m Meta) (*Project, error) {
	s := in.Schema()
	items := passAll(s)
	for _, from := range slices.Sorted(maps.Keys(names)) {
		if _, err := column(s, from); err != nil {
			return nil, fault.Wrap(err, m.place())
		}
		items[s.FieldIndices(from)[0]].Name = names[from]
	}
	return NewProject(in, items, m)
}

// Cast changes types; types maps columns to the names of [expr.ParseType].
// Columns keep their place.
func Cast(in Node, types map[string]string, m Meta) (*Project, error) {
	s := in.Schema()
	items := passAll(s)
	var errs []error
	for _, c := range slices.Sorted(maps.Keys(types)) {
		f, err := column(s, c)
		if err != nil {
			errs = append(errs, fault.Wrap(err, fault.Place{Step: m.Step(), Column: c}))
			continue
		}
		t, err := expr.ParseType(types[c])
		if err != nil {
			errs = append(errs, fault.Wrap(err, fault.Place{Step: m.Step(), Column: c}))
			continue
		}
		if !arrow.TypeEqual(f.Type, t) {
			items[s.FieldIndices(c)[0]].Expr = expr.Cast(expr.Col(c), t)
		}
	}
	if err := fault.Join(errs...); err != nil {
		return nil, err
	}
	return NewProject(in, items, m)
}

// WithColumns adds columns, each written "name = expression"; see [WithItems].
func WithColumns(in Node, entries []string, m Meta) (*Project, error) {
	items := make([]Named, len(entries))
	for i, text := range entries {
		it, err := ParseNamed(text)
		if err != nil {
			return nil, fault.Wrap(err, m.place())
		}
		items[i] = it
	}
	return WithItems(in, items, m)
}

// WithItems adds computed columns: one that has the name of a column takes its
// place, the others are appended in order. Each sees the columns of in, not what
// other items compute.
func WithItems(in Node, items []Named, m Meta) (*Project, error) {
	if len(items) == 0 {
		return nil, m.wrong("no columns given")
	}
	s := in.Schema()
	all := passAll(s)
	seen := map[string]bool{}
	for _, it := range items {
		if seen[it.Name] {
			return nil, m.wrong("column %q is given twice", it.Name)
		}
		seen[it.Name] = true
		if idx := s.FieldIndices(it.Name); len(idx) > 0 {
			all[idx[0]] = it
		} else {
			all = append(all, it)
		}
	}
	return NewProject(in, all, m)
}

// ParseNamed reads "name = expression". A name that is not a word may be quoted as in Go: `"a b" = c`.
func ParseNamed(text string) (Named, error) {
	bad := func() (Named, error) {
		return Named{}, fault.New(fault.Invalid, "%q: want name = expression, as in \"rate = tip / fare\"", text)
	}
	s := strings.TrimSpace(text)
	var name string
	if s != "" && (s[0] == '"' || s[0] == '`') {
		q, err := strconv.QuotedPrefix(s)
		if err != nil {
			return bad()
		}
		if name, err = strconv.Unquote(q); err != nil {
			return bad()
		}
		s = strings.TrimSpace(s[len(q):])
		if !strings.HasPrefix(s, "=") {
			return bad()
		}
		s = s[1:]
	} else {
		var ok bool
		if name, s, ok = strings.Cut(s, "="); !ok || strings.ContainsAny(name, "<>!()\"'`") {
			return bad()
		}
		name = strings.TrimSpace(name)
	}
	if name == "" || strings.HasPrefix(s, "=") {
		return bad()
	}
	e, err := expr.Parse(strings.TrimSpace(s))
	if err != nil {
		return Named{}, fault.Wrap(err, fault.Place{Column: name})
	}
	return Named{name, e}, nil
}

// passAll are the items that pass every column of s on.
func passAll(s *arrow.Schema) []Named {
	items := make([]Named, s.NumFields())
	for i := range items {
		name := s.Field(i).Name
		items[i] = Named{name, expr.Col(name)}
	}
	return items
}
