package parquetio

import (
	"slices"

	"github.com/apache/arrow-go/v18/arrow"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/fileset"
)

// asDictionaries gives the columns that are to be dictionaries their type, in the table's schema, which it
// returns, and in those of the files.
func (t *table) asDictionaries(full *arrow.Schema) (*arrow.Schema, error) {
	d := &t.o.Dictionary
	if !d.All && len(d.Columns) == 0 {
		return full, nil
	}
	if _, err := fileset.Select(full, append([]string{}, d.Columns...)); err != nil {
		return nil, fault.New(fault.Invalid, "dictionary: %w", err)
	}
	types := map[string]*arrow.DictionaryType{}
	fields := full.Fields()
	of := len(fields) - len(t.set.Columns()) // the rest is not read from files
	for i := range fields {
		f := &fields[i]
		named := slices.Contains(d.Columns, f.Name)
		if !d.All && !named {
			continue
		}
		switch can := i < of && indexable(f.Type); {
		case can && t.converted(f) && named:
			return nil, fault.New(fault.Invalid, "dictionary: the column is converted to %s, as files or types have different types; leave it out", typename.Name(f.Type)).
				At(fault.Place{Column: f.Name})
		case can && t.converted(f):
		case can:
			types[f.Name] = &arrow.DictionaryType{IndexType: arrow.PrimitiveTypes.Int32, ValueType: f.Type}
			f.Type = types[f.Name]
		case named && i >= of:
			return nil, fault.New(fault.Invalid, "dictionary: the column is not read from the files; leave it out").At(fault.Place{Column: f.Name})
		case named:
			return nil, fault.New(fault.Invalid, "dictionary: the column is %s, and only strings and binary can be; leave it out", typename.Name(f.Type)).
				At(fault.Place{Column: f.Name})
		}
	}
	made := map[*fileSchema]*fileSchema{}
	for _, f := range t.footers {
		s := made[f.schema]
		if s == nil {
			s = f.schema.withDictionaries(types)
			made[f.schema] = s
		}
		f.schema = s
	}
	meta := full.Metadata()
	return arrow.NewSchema(fields, &meta), nil
}

// converted reports whether a file has a column of strings in another type, or one of binary.
func (t *table) converted(f *arrow.Field) bool {
	text := f.Type.ID() == arrow.STRING || f.Type.ID() == arrow.LARGE_STRING
	var last *fileSchema
	for _, of := range t.footers {
		if of.schema == last {
			continue
		}
		last = of.schema
		for _, i := range last.arrow.FieldIndices(f.Name) {
			switch last.arrow.Field(i).Type.ID() {
			case arrow.NULL:
			case arrow.STRING, arrow.LARGE_STRING:
				if !text {
					return true
				}
			case arrow.BINARY, arrow.LARGE_BINARY:
				if text {
					return true
				}
			default:
				return true
			}
		}
	}
	return false
}

// indexable reports whether columns of type t can be dictionaries.
func indexable(t arrow.DataType) bool {
	switch t.ID() {
	case arrow.STRING, arrow.LARGE_STRING, arrow.BINARY, arrow.LARGE_BINARY:
		return true
	}
	return false
}

// withDictionaries returns s with other types of some columns. (A file may have 32-bit offsets where the
// table has 64, and nothing but nulls, which stay as they are.)
func (s *fileSchema) withDictionaries(types map[string]*arrow.DictionaryType) *fileSchema {
	out := *s
	out.leaves = slices.Clone(s.leaves)
	fields := s.arrow.Fields()
	for i := range fields {
		if t := types[fields[i].Name]; t != nil && indexable(fields[i].Type) {
			fields[i].Type = t
			out.leaves[s.fields[i].leaves[0]].arrow = t
		}
	}
	out.arrow = arrow.NewSchema(fields, nil)
	return &out
}

// shares reports whether dict is the values of a dictionary page, which batches share.
func (d *decoder) shares(dict arrow.ArrayData) bool {
	if d == nil { // no column is read
		return false
	}
	for _, c := range d.cols {
		if c.dict != nil && c.dict.values == dict {
			return true
		}
	}
	return false
}
