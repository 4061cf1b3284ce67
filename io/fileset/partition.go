package fileset

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
)

// typed makes values of what the folders of f say.
func (s *Set) typed(f *File) error {
	f.parts = make([]value, len(s.parts))
	for k := range s.parts {
		p := &s.parts[k]
		v, err := parseAs(p.typ, f.raw[k])
		if err != nil {
			said := ""
			if p.by != "" {
				said = ", which is the column's type in " + p.by
			}
			return fault.New(fault.Invalid, "column %q: %w%s; set partition_types, {%q: string} holds every folder's name", p.name, err, said, p.name).At(fault.Place{File: f.Path})
		}
		f.parts[k] = v
	}
	return nil
}

// retype gives partitions that the user gave no type those that files say: stored[i] is what file i
// has under driver.PartitionTypes ("": nothing; nil: no file has), and a column of the name in a
// file's own schema has one, too.
func (s *Set) retype(files []*arrow.Schema, stored []string) error {
	if len(s.parts) == 0 {
		return nil
	}
	found := make([]arrow.DataType, len(s.parts))
	claim := func(k, file int, t arrow.DataType) error {
		p := &s.parts[k]
		if d, ok := t.(*arrow.DictionaryType); ok {
			t = d.ValueType
		}
		switch {
		case p.declared || !partitionType(t) || t.ID() == arrow.NULL && found[k] != nil:
			return nil
		case found[k] == nil || found[k].ID() == arrow.NULL:
			found[k], p.by = t, s.Files[file].Path
			return nil
		}
		both, ok := widen(found[k], t)
		if !ok || !partitionType(both) {
			return fault.New(fault.Invalid, "the folders' column is %s, but %s in %s; set partition_types: {%s: %s}, or string",
				typename.Name(t), typename.Name(found[k]), p.by, p.name, typename.Name(found[k])).At(fault.Place{File: s.Files[file].Path, Column: p.name})
		}
		found[k] = both
		return nil
	}
	var lastText string
	var last map[string]arrow.DataType
	for i, f := range files {
		if stored != nil && stored[i] != "" {
			if stored[i] != lastText {
				types, err := storedTypes(stored[i])
				if err != nil {
					return fault.Wrap(err, fault.Place{File: s.Files[i].Path})
				}
				lastText, last = stored[i], types
			}
			for k := range s.parts {
				if t := last[s.parts[k].name]; t != nil {
					if err := claim(k, i, t); err != nil {
						return err
					}
				}
			}
		}
		if i > 0 && f == files[i-1] {
			continue
		}
		for k := range s.parts {
			if at := f.FieldIndices(s.parts[k].name); len(at) > 0 {
				if err := claim(k, i, f.Field(at[0]).Type); err != nil {
					return err
				}
			}
		}
	}
	changed := false
	for k, t := range found {
		if t != nil && !arrow.TypeEqual(t, s.parts[k].typ) && !(t.ID() == arrow.NULL && s.valued(k)) {
			s.parts[k].typ = t
			changed = true
		}
	}
	if !changed {
		return nil
	}
	for i := range s.Files {
		if err := s.typed(&s.Files[i]); err != nil {
			return err
		}
	}
	return nil
}

// valued reports whether a folder gives column k a value.
func (s *Set) valued(k int) bool {
	for i := range s.Files {
		if !s.Files[i].raw[k].null {
			return true
		}
	}
	return false
}

// Bounds of what folders and files say: the values of all of them are kept for each file.
const (
	mostStored = 128 << 10 // bytes of a file under driver.PartitionTypes
	mostKeys   = 256       // columns that folders give
)

// storedTypes reads what a file has under driver.PartitionTypes.
func storedTypes(text string) (map[string]arrow.DataType, error) {
	types, err := readStored(text)
	if err != nil {
		return nil, fault.New(fault.Corrupt, "what the file says of the types of its folders (%s) is damaged: %w; set partitions: none, or write the file again",
			driver.PartitionTypes, err)
	}
	return types, nil
}

func readStored(text string) (map[string]arrow.DataType, error) {
	if len(text) > mostStored {
		return nil, fmt.Errorf("it is longer than %d bytes", mostStored)
	}
	errForm := errors.New("it is no JSON object of texts")
	dec := json.NewDecoder(strings.NewReader(text))
	if d, err := dec.Token(); err != nil || d != json.Delim('{') {
		return nil, errForm
	}
	types := map[string]arrow.DataType{}
	for dec.More() {
		k, err := dec.Token()
		key, _ := k.(string) // what else it may be is an error of syntax
		if err != nil {
			return nil, errForm
		}
		v, err := dec.Token()
		name, ok := v.(string)
		if err != nil || !ok {
			return nil, errForm
		}
		t, err := typename.Parse(name)
		switch {
		case err != nil:
			return nil, err
		case !partitionType(t):
			return nil, fmt.Errorf("%s is no type of partitions", quoted([]byte(name)))
		case types[key] != nil:
			return nil, fmt.Errorf("it says %s twice", quoted([]byte(key)))
		case len(types) == mostKeys:
			return nil, fmt.Errorf("it has more than %d names", mostKeys)
		}
		types[key] = t
	}
	if _, err := dec.Token(); err != nil {
		return nil, errForm
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errForm
	}
	return types, nil
}

// differ reports the rows of a, which is of the type of constant c, in which it is not c.
func differ(a, c arrow.Array, bad report) {
	if array.Equal(a, c) {
		return
	}
	for i := range a.Len() {
		at := int64(i)
		if !bad.has(i) && !array.SliceEqual(a, at, at+1, c, at, at+1) && !(isNaN(a, i) && isNaN(c, i)) {
			bad.add(i, "the value is "+shown(a, i)+", and the folder says "+shown(c, i))
		}
	}
}

func isNaN(a arrow.Array, i int) bool {
	switch a := a.(type) {
	case *array.Float32:
		return a.IsValid(i) && a.Value(i) != a.Value(i)
	case *array.Float64:
		return a.IsValid(i) && a.Value(i) != a.Value(i)
	}
	return false
}

// agree makes the constant of a partition that the file has as a column, too, after it has looked
// whether the column says the same: a row in which it does not is reported.
func (c *column) agree(b driver.Batch, alloc memory.Allocator, bad report) (arrow.Array, error) {
	n := int(b.Record.NumRows())
	out := c.constant(n, alloc)
	own := b.Record.Column(c.src)
	if own.DataType().ID() == arrow.NULL && c.val.v == nil {
		return out, nil
	}
	a, err := c.cast.array(own, alloc, bad)
	if err != nil {
		out.Release()
		return nil, err
	}
	differ(a, out, bad)
	rounded(own, a, c.folder, bad)
	a.Release()
	return out, nil
}

// rounded reports the rows of a file's own column that are only what its folder says after they
// were rounded to the folder's type, of which cast are.
func rounded(own, cast arrow.Array, folder string, bad report) {
	from := own.DataType()
	if d, ok := from.(*arrow.DictionaryType); ok {
		from = d.ValueType
	}
	if to := numberOf(cast.DataType()); !to.float || !isDecimal(from) && !(numberOf(from).float && numberOf(from).bits > to.bits) {
		return
	}
	for i := range own.Len() {
		if own.IsValid(i) && !isNaN(cast, i) && !bad.has(i) {
			if s := own.ValueStr(i); !strings.ContainsAny(s, "fF") && !sameDecimal(s, folder) { // inf is inf
				bad.add(i, "the value is "+shown(own, i)+", and the folder says "+folder)
			}
		}
	}
}

// shown is a value for an error.
func shown(a arrow.Array, i int) string {
	if a.IsNull(i) {
		return "null"
	}
	s := a.ValueStr(i)
	if len(s) > 60 {
		s = s[:57] + "..."
	}
	return s
}
