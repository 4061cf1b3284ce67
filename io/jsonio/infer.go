package jsonio

import (
	"bytes"
	"errors"
	"slices"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/textvalue"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// shape is what was seen of a value in the sample.
type shape struct {
	bools, ints, floats, strings, arrays, objects bool

	neg, big, huge bool            // integers below 0, beyond int64, and beyond uint64 or below int64
	text           textvalue.Guess // of strings

	names  []string // of fields, in order of first appearance
	fields map[string]*shape
	elem   *shape
}

// fields counts those of the rows of a sample, in all objects: they become columns.
type fields struct {
	n     int
	types map[string]arrow.DataType // given: of what is in such a column nothing is noted
	err   error                     // there are too many
}

// add counts one in.
func (f *fields) add(name []byte) error {
	if len(name) > fileset.MaxName {
		return driver.Errorf(driver.Corrupt, "a key has %d bytes, more than %d: %q...", len(name), fileset.MaxName, name[:100])
	}
	if f.n++; f.n > fileset.MaxColumns {
		return tooMany(name)
	}
	return nil
}

func tooMany(name []byte) error {
	return driver.Errorf(driver.Corrupt, "the first rows have more than %d different keys, %q among them, and each would be a column; "+
		"give types, where objects of any keys are maps: {column: \"map<string, int64>\"}", fileset.MaxColumns, clip(name))
}

// observe notes the value at the position.
func (s *shape) observe(t *text, depth int, seen *fields) error {
	c, err := t.space()
	if err != nil {
		return err
	}
	switch c {
	case '{':
		s.objects = true
		return t.each(depth, c, func(key []byte) error {
			f, given := s.fields[string(key)], depth == 0 && seen.types[string(key)] != nil
			if f == nil {
				if seen.err = seen.add(key); seen.err != nil {
					return seen.err
				}
				if s.fields == nil {
					s.fields = map[string]*shape{}
				}
				f = &shape{}
				s.fields[string(key)] = f
				s.names = append(s.names, string(key))
			}
			if given {
				return t.skip(depth + 1)
			}
			return f.observe(t, depth+1, seen)
		})
	case '[':
		s.arrays = true
		return t.each(depth, c, func([]byte) error {
			if s.elem == nil {
				s.elem = &shape{}
			}
			return s.elem.observe(t, depth+1, seen)
		})
	case '"':
		s.strings = true
		b, err := t.str()
		if err == nil {
			s.text.Add(b)
		}
		return err
	case 't', 'f':
		s.bools = true
	case 'n':
	default:
		n, err := t.num()
		if n.odd && t.odd == oddNull {
			return err
		}
		if s.floats = s.floats || !n.whole; n.whole && err == nil {
			s.integer(n)
		}
		return err
	}
	return t.skip(depth)
}

func (s *shape) integer(n number) {
	s.ints = true
	v, ok := textvalue.Uint(bytes.TrimPrefix(n.text, []byte("-")))
	switch {
	case !ok, n.neg && v > 1<<63:
		s.huge = true
	case n.neg:
		s.neg = true
	case v >= 1<<63:
		s.big = true
	}
}

// merge adds what was seen in rows behind those of s.
func (s *shape) merge(o *shape) {
	s.bools = s.bools || o.bools
	s.ints = s.ints || o.ints
	s.floats = s.floats || o.floats
	s.strings = s.strings || o.strings
	s.arrays = s.arrays || o.arrays
	s.objects = s.objects || o.objects
	s.neg = s.neg || o.neg
	s.big = s.big || o.big
	s.huge = s.huge || o.huge
	s.text.Merge(&o.text)
	for _, n := range o.names {
		if f := s.fields[n]; f != nil {
			f.merge(o.fields[n])
			continue
		}
		if s.fields == nil {
			s.fields = map[string]*shape{}
		}
		s.fields[n] = o.fields[n]
		s.names = append(s.names, n)
	}
	switch {
	case s.elem == nil:
		s.elem = o.elem
	case o.elem != nil:
		s.elem.merge(o.elem)
	}
}

// count is how many fields there are.
func (s *shape) count() int {
	n := len(s.names)
	for _, f := range s.fields {
		n += f.count()
	}
	if s.elem != nil {
		n += s.elem.count()
	}
	return n
}

// kinds names what was seen.
func (s *shape) kinds() (seen []string) {
	for _, k := range []struct {
		is   bool
		name string
	}{{s.bools, "bools"}, {s.ints || s.floats, "numbers"}, {s.strings, "strings"}, {s.arrays, "arrays"}, {s.objects, "objects"}} {
		if k.is {
			seen = append(seen, k.name)
		}
	}
	return seen
}

// typ is the type that holds all values seen. Nothing but nulls gives string.
// Where text, values of several types do, too.
func (s *shape) typ(path string, text bool) (arrow.DataType, error) {
	seen := s.kinds()
	top, _, _ := strings.Cut(path, ".")
	top, _, _ = strings.Cut(top, "[")
	switch {
	case len(seen) > 1 && text:
		return arrow.BinaryTypes.String, nil
	case len(seen) > 1:
		return nil, fault.New(fault.Invalid, "%s holds %s; give it a type, e.g. types: {%s: string}, or set mixed: text, to keep what is not a string as JSON text",
			path, strings.Join(seen, " and "), top).At(fault.Place{Column: path})
	case s.bools:
		return arrow.FixedWidthTypes.Boolean, nil
	case s.floats:
		return arrow.PrimitiveTypes.Float64, nil
	case s.huge || s.big && s.neg:
		return nil, fault.New(fault.Invalid, "%s holds integers that neither int64 nor uint64 holds; give it a type, e.g. types: {%s: string} to keep them as they are written, or double",
			path, top).At(fault.Place{Column: path})
	case s.big:
		return arrow.PrimitiveTypes.Uint64, nil
	case s.ints:
		return arrow.PrimitiveTypes.Int64, nil
	case s.strings:
		if t := s.text.TimeType(); t != nil {
			return t, nil
		}
	case s.arrays:
		e := s.elem
		if e == nil {
			e = &shape{}
		}
		t, err := e.typ(path+"[]", text)
		if err != nil {
			return nil, err
		}
		return arrow.ListOf(t), nil
	case s.objects:
		fs := make([]arrow.Field, len(s.names))
		for i, n := range s.names {
			t, err := s.fields[n].typ(path+"."+n, text)
			if err != nil {
				return nil, err
			}
			fs[i] = arrow.Field{Name: n, Type: t, Nullable: true}
		}
		return arrow.StructOf(fs...), nil
	}
	return arrow.BinaryTypes.String, nil
}

// Column is the name of the column of rows that are no objects.
const Column = "value"

// schema gives the columns of that many rows of this shape, and says whether rows are values of the only one. types stand over
// what was seen; columns that were not seen come last, by name. text as for typ.
func (s *shape) schema(types map[string]arrow.DataType, rows int, text bool) (_ *arrow.Schema, scalar bool, err error) {
	kinds := len(s.kinds())
	switch {
	case s.objects:
		scalar = text && kinds > 1
	case kinds == 0: // nulls at most
		scalar = len(types) == 0 || rows > 0 && types[Column] != nil
	default:
		scalar = true
	}
	columns := s
	if scalar {
		columns = &shape{names: []string{Column}, fields: map[string]*shape{Column: s}}
	}
	schema, err := columns.columns(types, text)
	if err == nil && scalar && schema.NumFields() > 1 {
		return nil, false, driver.Errorf(driver.Invalid, "types: no column %q: rows are not objects, or not all of them, and have the one column %s", schema.Field(1).Name, Column)
	}
	return schema, scalar, err
}

func (s *shape) columns(types map[string]arrow.DataType, text bool) (*arrow.Schema, error) {
	var fs []arrow.Field
	var errs []error
	for _, n := range s.names {
		t := types[n]
		if t == nil {
			var err error
			if t, err = s.fields[n].typ(n, text); err != nil {
				errs = append(errs, err)
				continue
			}
		}
		fs = append(fs, arrow.Field{Name: n, Type: t, Nullable: true})
	}
	var more []string
	for n := range types {
		if s.fields[n] == nil {
			more = append(more, n)
		}
	}
	slices.Sort(more)
	for _, n := range more {
		fs = append(fs, arrow.Field{Name: n, Type: types[n], Nullable: true})
	}
	if len(errs) == 1 {
		return nil, errs[0]
	}
	if len(errs) > 1 {
		return nil, fault.WithCode(fault.Invalid, errors.Join(errs...))
	}
	if len(fs) == 0 {
		return nil, driver.Errorf(driver.Invalid, "no columns: the first rows of the files are empty objects; give types")
	}
	return arrow.NewSchema(fs, nil), nil
}
