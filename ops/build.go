package ops

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/near"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/ops/expr"
)

// NewRead makes a leaf of a resolved source. The node does not own t: whoever
// resolved it closes it (see [Close]).
func NewRead(src driver.Source, t driver.Table, ordinal int, m Meta) (*Read, error) {
	if m.Verb == "" {
		m.Verb = src.Kind()
	}
	if err := m.OnError.Check(); err != nil {
		return nil, fault.Wrap(err, m.place())
	}
	s := t.Schema()
	if name, dup := duplicate(fieldNames(s)); dup {
		return nil, m.wrong("column %q is there twice; penstock needs unique names", name)
	}
	return &Read{Meta: m, Source: src, Table: t, Ordinal: ordinal, schema: s}, nil
}

// pushed returns n with other pushdowns; columns nil means all.
func (n *Read) pushed(columns []string, p driver.Predicate, limit int64) *Read {
	c := *n
	c.Columns, c.Predicate, c.Limit = columns, p, limit
	c.schema = n.Table.Schema()
	if columns != nil {
		c.schema = pick(c.schema, columns)
	}
	return &c
}

// NewFilter keeps the rows for which e is true.
func NewFilter(in Node, e *expr.Expr, m Meta) (*Filter, error) {
	if err := m.follows(in); err != nil {
		return nil, err
	}
	p, err := e.Bind(in.Schema(), 0)
	if err != nil {
		return nil, fault.Wrap(err, m.place())
	}
	if id := p.Type().ID(); id != arrow.BOOL {
		return nil, m.wrong("a filter needs an expression that is true or false; %s is %s", e, expr.TypeName(p.Type()))
	}
	return &Filter{Meta: m, In: in, Expr: e, fails: p.MayFail(), random: e.Random()}, nil
}

// NewFilterFunc keeps the rows for which f says true.
func NewFilterFunc(in Node, f *Func, m Meta) (*Filter, error) {
	if err := m.follows(in); err != nil {
		return nil, err
	}
	if f == nil || f.kind() != "filter" {
		return nil, m.wrong("a filter needs a Func of which exactly Filter is set")
	}
	return &Filter{Meta: m, In: in, Func: f}, nil
}

// NewProject computes items over in; they become the columns. A plain column
// keeps its nullability and metadata, under the new name; computed columns are nullable.
func NewProject(in Node, items []Named, m Meta) (*Project, error) {
	if err := m.follows(in); err != nil {
		return nil, err
	}
	s := in.Schema()
	n := &Project{Meta: m, In: in, Items: items}
	names := make([]string, len(items))
	fields := make([]arrow.Field, len(items))
	var errs []error
	for i, it := range items {
		names[i] = it.Name
		if it.Name == "" {
			return nil, m.wrong("column %d has no name", i+1)
		}
		if c, ok := it.Expr.IsCol(); ok {
			f, err := column(s, c)
			if err != nil {
				errs = append(errs, fault.Wrap(err, m.place()))
				continue
			}
			if f.Name = it.Name; c != it.Name {
				n.altered = append(n.altered, i)
			}
			fields[i] = f
			continue
		}
		n.altered = append(n.altered, i)
		p, err := it.Expr.Bind(s, 0)
		if err != nil {
			errs = append(errs, fault.Wrap(err, fault.Place{Step: m.Step(), Column: it.Name}))
			continue
		}
		fields[i] = arrow.Field{Name: it.Name, Type: p.Type(), Nullable: true}
		n.fails = n.fails || p.MayFail()
		n.random = n.random || it.Expr.Random()
	}
	if err := fault.Join(errs...); err != nil {
		return nil, err
	}
	if name, dup := duplicate(names); dup {
		return nil, m.wrong("column %q is there twice", name)
	}
	n.schema = arrow.NewSchema(fields, nil)
	return n, nil
}

// NewLimit passes the first n rows.
func NewLimit(in Node, n int64, m Meta) (*Limit, error) {
	if err := m.follows(in); err != nil {
		return nil, err
	}
	if n < 0 {
		return nil, m.wrong("the limit must not be negative, have %d", n)
	}
	return &Limit{Meta: m, In: in, N: n}, nil
}

// NewExplode makes a row of every element of the list column. The column becomes
// one of the element type, in its place.
func NewExplode(in Node, col string, keepEmpty bool, m Meta) (*Explode, error) {
	if err := m.follows(in); err != nil {
		return nil, err
	}
	s := in.Schema()
	f, err := column(s, col)
	if err != nil {
		return nil, fault.Wrap(err, m.place())
	}
	var elem arrow.Field
	switch t := f.Type.(type) {
	case *arrow.ListType:
		elem = t.ElemField()
	case *arrow.LargeListType:
		elem = t.ElemField()
	case *arrow.FixedSizeListType:
		elem = t.ElemField()
	default:
		return nil, m.wrong("column %q is %s; explode needs a list, large_list or fixed_size_list", col, expr.TypeName(f.Type))
	}
	fields := slices.Clone(s.Fields())
	md := s.Metadata()
	fields[s.FieldIndices(col)[0]] = arrow.Field{Name: col, Type: elem.Type, Nullable: elem.Nullable || keepEmpty}
	return &Explode{Meta: m, In: in, Column: col, KeepEmpty: keepEmpty, schema: arrow.NewSchema(fields, &md)}, nil
}

// NewMap runs f over batches of at most batchRows rows (0: as they come). Where
// f declares no schema it is called once, without rows.
func NewMap(ctx context.Context, in Node, f *Func, batchRows int, m Meta) (*Map, error) {
	if err := m.follows(in); err != nil {
		return nil, err
	}
	if f == nil || f.kind() != "map" && f.kind() != "flat_map" {
		return nil, m.wrong("a map needs a Func of which exactly one of Map and FlatMap is set")
	}
	if batchRows < 0 {
		return nil, m.wrong("batch_rows must not be negative, have %d", batchRows)
	}
	out := f.Schema
	if out == nil {
		var err error
		if out, err = f.probe(ctx, in.Schema()); err != nil {
			return nil, fault.Wrap(err, m.place())
		}
	}
	if name, dup := duplicate(fieldNames(out)); dup {
		return nil, m.wrong("the function returns column %q twice", name)
	}
	for _, c := range f.Passes {
		a, err := column(in.Schema(), c)
		if err != nil {
			return nil, fault.Wrap(err, m.place())
		}
		b, err := column(out, c)
		if err != nil || !arrow.TypeEqual(a.Type, b.Type) {
			return nil, m.wrong("the function is declared to pass column %q on, but does not return it as it is", c)
		}
	}
	return &Map{Meta: m, In: in, Func: f, BatchRows: batchRows, schema: out}, nil
}

// ParentColumn is what a flat exec step's child adds: the row of its input batch
// that a row comes from, int64, ascending.
const ParentColumn = "__parent"

// NewExec passes batches through child processes. The program is not started.
func NewExec(in Node, spec *ExecSpec, m Meta) (*Exec, error) {
	if err := m.follows(in); err != nil {
		return nil, err
	}
	switch {
	case len(spec.Command) == 0 || spec.Command[0] == "":
		return nil, m.wrong("exec needs a command")
	case spec.Out == nil:
		return nil, m.wrong("exec needs the schema of what the command returns")
	case spec.Workers < 0 || spec.BatchRows < 0 || spec.TimeoutMS < 0:
		return nil, m.wrong("workers, batch_rows and timeout must not be negative")
	case spec.Workers > 4096:
		return nil, m.wrong("%d workers; at most 4096", spec.Workers)
	case spec.TimeoutMS > 30*24*3600*1000:
		return nil, m.wrong("a timeout of more than 30 days")
	}
	for _, e := range slices.Concat(spec.Env, spec.Local) {
		if name, _, _ := strings.Cut(e, "="); name == "" {
			return nil, m.wrong("environment entry %q has no name", e)
		}
	}
	for _, arg := range slices.Concat(spec.Command, spec.Env, spec.Local, []string{spec.Program}) {
		if strings.IndexByte(arg, 0) >= 0 {
			return nil, m.wrong("%q holds a zero byte", arg)
		}
	}
	if name, dup := duplicate(fieldNames(spec.Out)); dup {
		return nil, m.wrong("column %q is there twice", name)
	}
	if spec.Flat && spec.Out.HasField(ParentColumn) {
		return nil, m.wrong("column %q belongs to the protocol and is not part of the schema", ParentColumn)
	}
	return &Exec{Meta: m, In: in, ExecSpec: *spec}, nil
}

// NewSample keeps the rows whose hash is in [lo, hi) of [0, 1).
func NewSample(in Node, lo, hi float64, seed uint64, key []string, m Meta) (*Sample, error) {
	if err := m.follows(in); err != nil {
		return nil, err
	}
	if !(lo >= 0 && lo <= hi && hi <= 1) {
		return nil, m.wrong("a sample is a range within 0 and 1, have %v to %v", lo, hi)
	}
	for _, k := range key {
		if _, err := column(in.Schema(), k); err != nil {
			return nil, fault.Wrap(err, m.place())
		}
		h, err := KeyHash(k)
		if err == nil {
			_, err = h.Bind(in.Schema(), 0)
		}
		if err != nil {
			return nil, fault.Wrap(err, fault.Place{Step: m.Step(), Column: k})
		}
	}
	return &Sample{Meta: m, In: in, Lo: lo, Hi: hi, Seed: seed, Key: key}, nil
}

// KeyHash is the expression whose value stands for a key column in [Sample].
func KeyHash(col string) (*expr.Expr, error) {
	return expr.Parse("hash(" + expr.Col(col).String() + ")")
}

// NewSplit makes one sample per fraction; each row is in exactly one of them if
// they sum to 1, in at most one if they sum to less.
func NewSplit(in Node, fractions []float64, seed uint64, key []string, m Meta) ([]*Sample, error) {
	if len(fractions) == 0 {
		return nil, m.wrong("split needs at least one fraction")
	}
	edges := make([]float64, len(fractions)+1)
	for i, f := range fractions {
		if !(f > 0 && f <= 1) {
			return nil, m.wrong("fraction %d of the split is %v; must be between 0 and 1", i+1, f)
		}
		edges[i+1] = edges[i] + f
	}
	last := &edges[len(fractions)]
	if *last > 1+1e-9 {
		return nil, m.wrong("the fractions sum to %v, more than 1", *last)
	}
	if math.Abs(*last-1) <= 1e-9 {
		*last = 1
	}
	out := make([]*Sample, len(fractions))
	for i := range out {
		s, err := NewSample(in, min(edges[i], 1), min(edges[i+1], 1), seed, key, m)
		if err != nil {
			return nil, err
		}
		out[i] = s
	}
	return out, nil
}

// column finds the field, or says what there is.
func column(s *arrow.Schema, name string) (arrow.Field, error) {
	idx := s.FieldIndices(name)
	switch len(idx) {
	case 0:
		return arrow.Field{}, fault.New(fault.Invalid, "unknown column %q%s", name, near.Column(name, s))
	case 1:
		return s.Field(idx[0]), nil
	}
	return arrow.Field{}, fault.New(fault.Invalid, "column %q is there %d times", name, len(idx))
}

func abbreviate(names []string, most int) string {
	if len(names) > most {
		return strings.Join(names[:most], ", ") + fmt.Sprintf(", ... %d more", len(names)-most)
	}
	return strings.Join(names, ", ")
}

func fieldNames(s *arrow.Schema) []string {
	names := make([]string, s.NumFields())
	for i := range names {
		names[i] = s.Field(i).Name
	}
	return names
}

func duplicate(names []string) (string, bool) {
	seen := make(map[string]bool, len(names))
	for _, n := range names {
		if seen[n] {
			return n, true
		}
		seen[n] = true
	}
	return "", false
}

// pick is s with the given columns only, in the given order.
func pick(s *arrow.Schema, columns []string) *arrow.Schema {
	fields := make([]arrow.Field, len(columns))
	for i, c := range columns {
		fields[i] = s.Field(s.FieldIndices(c)[0])
	}
	md := s.Metadata()
	return arrow.NewSchema(fields, &md)
}

// SameColumns reports whether a and b have the same names and types in the same
// order; nullability and metadata may differ.
func SameColumns(a, b *arrow.Schema) bool {
	if a == b {
		return true
	}
	if a.NumFields() != b.NumFields() {
		return false
	}
	for i := range a.NumFields() {
		if x, y := a.Field(i), b.Field(i); x.Name != y.Name || !arrow.TypeEqual(x.Type, y.Type) {
			return false
		}
	}
	return true
}
