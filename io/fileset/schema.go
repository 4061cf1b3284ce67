package fileset

import (
	"fmt"
	"maps"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/near"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
)

// Schema is what Unify gives, with the columns that the options choose.
func (s *Set) Schema(files []*arrow.Schema, stored []string) (*arrow.Schema, error) {
	all, err := s.Unify(files, stored)
	if err != nil {
		return nil, err
	}
	return s.Project(all)
}

// Project leaves the columns that the options choose, in their order.
func (s *Set) Project(all *arrow.Schema) (*arrow.Schema, error) {
	idx, err := Select(all, s.opts.Columns)
	if err != nil {
		return nil, fault.New(fault.Invalid, "columns: %w", err)
	}
	fields := make([]arrow.Field, len(idx))
	for k, i := range idx {
		fields[k] = all.Field(i)
	}
	return arrow.NewSchema(fields, nil), nil
}

// Unify unifies the schemas of the files (files[i] belongs to Files[i]; equal
// ones may share a pointer) and appends partition, path and row columns. stored[i] is what file i has
// under driver.PartitionTypes, or nil for formats without metadata; it is called once, before any Adapter. The rules: columns in order
// of first appearance, of the type that Options.Types says, else the one that those of the files have in common (see widen); a
// column that a file lacks is filled with null; what has no type in common is an
// Invalid error naming file, column and both types. A column with the name of a partition is left out.
// Metadata of the schemas is dropped, that of fields is the first file's, but for an extension type
// (driver.ExtensionName) that is not that of all files.
func (s *Set) Unify(files []*arrow.Schema, stored []string) (*arrow.Schema, error) {
	if len(files) != len(s.Files) || stored != nil && len(stored) != len(files) {
		return nil, fault.New(fault.Internal, "%d schemas for %d files", len(files), len(s.Files))
	}
	if err := s.retype(files, stored); err != nil {
		return nil, err
	}
	u := unifier{at: map[string]int{}, part: map[string]bool{}, types: s.types}
	for _, p := range s.parts {
		u.part[p.name] = true
	}
	var last *arrow.Schema
	for i, f := range files {
		if f == last || last != nil && f.Equal(last) {
			continue
		}
		last = f
		if err := u.add(f, i); err != nil {
			return nil, fault.Wrap(err, fault.Place{File: s.Files[i].Path})
		}
	}
	for _, c := range slices.Sorted(maps.Keys(s.types)) {
		switch _, ok := u.at[c]; {
		case u.part[c]:
			return nil, fault.New(fault.Invalid, "types: the column %q is one of folders; use partition_types", c)
		case !ok && !s.excluded:
			return nil, fault.New(fault.Invalid, "types: no column %q%s", c, near.Column(c, arrow.NewSchema(u.fields, nil)))
		}
	}
	for _, f := range s.Columns() {
		if j, ok := u.at[f.Name]; ok {
			return nil, fault.New(fault.Invalid, "column %q is in the file already; name the path or row column otherwise", f.Name).
				At(fault.Place{File: s.Files[u.from[j]].Path})
		}
		if slices.ContainsFunc(u.fields, func(g arrow.Field) bool { return g.Name == f.Name }) {
			return nil, fault.New(fault.Invalid, "column %q is a partition and the path or row column; name the latter otherwise", f.Name)
		}
		u.fields = append(u.fields, f)
	}
	return arrow.NewSchema(u.fields, nil), nil
}

type unifier struct {
	fields []arrow.Field
	at     map[string]int // column -> index in fields
	from   []int          // file that gave the type
	part   map[string]bool
	types  map[string]arrow.DataType
	files  int
}

func (u *unifier) add(s *arrow.Schema, file int) error {
	have := make(map[string]bool, s.NumFields())
	for _, f := range s.Fields() {
		if have[f.Name] {
			return fault.New(fault.Invalid, "two columns have the name %q", f.Name)
		}
		have[f.Name] = true
		if u.part[f.Name] {
			continue
		}
		if to := u.types[f.Name]; to != nil {
			if castTo(f.Type, to) == nil {
				return fault.New(fault.Invalid, "types: %s cannot be read as %s; see docs/schemas.md for what can", typename.Name(f.Type), typename.Name(to)).
					At(fault.Place{Column: f.Name})
			}
			f.Type = to
		}
		j, ok := u.at[f.Name]
		if !ok {
			u.at[f.Name] = len(u.fields)
			f.Nullable = f.Nullable || u.files > 0
			u.fields = append(u.fields, f)
			u.from = append(u.from, file)
			continue
		}
		g := &u.fields[j]
		t, ok := widen(g.Type, f.Type)
		if !ok {
			return fault.New(fault.Invalid, "type is %s, but %s in files before it, and no type holds both; %s",
				typename.Name(f.Type), typename.Name(g.Type), advice(f.Name, g.Type, f.Type)).At(fault.Place{Column: f.Name})
		}
		if !driver.SameExtension(*g, f) || !arrow.TypeEqual(g.Type, t) {
			g.Metadata = driver.Extension(g.Metadata, false)
		}
		g.Type = t
		g.Nullable = g.Nullable || f.Nullable
	}
	for j := range u.fields {
		if !have[u.fields[j].Name] {
			u.fields[j].Nullable = true
		}
	}
	u.files++
	return nil
}

// AsBytes is the type by which a file's column of type t is read: bytes, where Types makes bytes of text, so
// that it need not be UTF-8; else t.
func (s *Set) AsBytes(column string, t arrow.DataType) arrow.DataType {
	if to := s.types[column]; to == nil || !isBytes(to) {
		return t
	}
	switch t.ID() {
	case arrow.STRING:
		return arrow.BinaryTypes.Binary
	case arrow.LARGE_STRING:
		return arrow.BinaryTypes.LargeBinary
	case arrow.STRING_VIEW:
		return arrow.BinaryTypes.BinaryView
	case arrow.DICTIONARY:
		d := *t.(*arrow.DictionaryType)
		d.ValueType = s.AsBytes(column, d.ValueType)
		return &d
	case arrow.RUN_END_ENCODED:
		r := t.(*arrow.RunEndEncodedType)
		return arrow.RunEndEncodedOf(r.RunEnds(), s.AsBytes(column, r.Encoded()))
	}
	return t
}

// advice says which type to give a column that is a in one file and b in another: the one of them that is more
// likely to hold the other's values.
func advice(name string, a, b arrow.DataType) string {
	if breadth(b) > breadth(a) {
		a, b = b, a
	}
	types := []arrow.DataType{a, b, arrow.BinaryTypes.String}
	if isInteger(a) && isInteger(b) { // of 64 bits, one with a sign
		types = []arrow.DataType{&arrow.Decimal128Type{Precision: 20}}
	}
	for _, t := range types {
		if castTo(a, t) != nil && castTo(b, t) != nil {
			return fmt.Sprintf("give it one, e.g. types: {%q: %q} of the source, or read the files apart", name, typename.Name(t))
		}
	}
	return "leave the column out with columns, or read the files apart"
}

// breadth orders kinds of types by what they can hold.
func breadth(t arrow.DataType) int {
	switch {
	case isBytes(t):
		return 5
	case isText(t):
		return 4
	case t.ID() == arrow.TIMESTAMP:
		return 3
	case isDecimal(t):
		return 2
	case numberOf(t).float:
		return 1
	}
	return 0
}

// Select resolves the columns of a scan (nil: all) in schema; an unknown one is an
// Invalid error that suggests one and lists what there is.
func Select(schema *arrow.Schema, columns []string) ([]int, error) {
	if columns == nil {
		idx := make([]int, schema.NumFields())
		for i := range idx {
			idx[i] = i
		}
		return idx, nil
	}
	idx := make([]int, len(columns))
	for k, c := range columns {
		is := schema.FieldIndices(c)
		if len(is) == 0 {
			return nil, fault.New(fault.Invalid, "unknown column %q%s", c, near.Column(c, schema))
		}
		idx[k] = is[0]
	}
	return idx, nil
}
