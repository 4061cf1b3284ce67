package parquetio

import (
	"bytes"
	"encoding/base64"
	"sync"
	"sync/atomic"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/metadata"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"
	"github.com/apache/arrow-go/v18/parquet/schema"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

const arrowSchemaKey = "ARROW:schema"

// fileSchema is what files of one schema share. Immutable.
type fileSchema struct {
	base     *metadata.FileMetaData // without row groups
	manifest *pqarrow.SchemaManifest
	arrow    *arrow.Schema // dictionaries replaced by their values, no metadata
	fields   []field       // top-level columns
	leaves   []leaf
	gate     *gate // of the table
}

// field is a top-level column.
type field struct {
	leaves   []int // in order
	repeated bool  // some leaf is in a list
	root     node
}

// leaf is a Parquet column.
type leaf struct {
	name     string // dotted path
	physical parquet.Type
	width    int // of FIXED_LEN_BYTE_ARRAY
	maxDef   int16
	maxRep   int16
	anc      uint8 // definition levels from here on have an element of the list around, if there is one
	kind     kind  // how statistics compare; kindNone unless a top-level column
	ordered  bool  // the file says that they do so
	arrow    arrow.DataType
	key      bool // of a map, and optional in the file: none is to be null
}

// schemaKey is the part of a footer that decides the schema.
type schemaKey struct {
	schema, arrow, orders string
	cut                   func() []byte // a footer without row groups
}

// schemaCache shares schemas between the files of a table. Safe for concurrent use.
type schemaCache struct {
	mu sync.Mutex
	m  map[[3]string]*fileSchema

	int96   string                                               // Options.Int96
	asBytes func(column string, t arrow.DataType) arrow.DataType // fileset.Set's, nil: none is

	tail atomic.Int64 // how much of the next file's end to read
	gate gate         // of all files
}

func (c *schemaCache) get(k schemaKey) (*fileSchema, error) {
	key := [3]string{k.schema, k.arrow, k.orders}
	c.mu.Lock()
	defer c.mu.Unlock()
	if s := c.m[key]; s != nil {
		return s, nil
	}
	s, err := newFileSchema(k.cut(), k.arrow, c.int96, c.asBytes)
	if err != nil {
		return nil, err
	}
	s.gate = &c.gate
	orders := ordersOf(k.orders)
	for i := range s.leaves {
		s.leaves[i].ordered = len(orders) == len(s.leaves) && orders[i]
	}
	if c.m == nil {
		c.m = map[[3]string]*fileSchema{}
	}
	c.m[key] = s
	return s, nil
}

// ordersOf reads the list of column orders: true for columns in the order of their types, which is the only one that is known here.
func ordersOf(raw string) (orders []bool) {
	r := &thriftReader{b: []byte(raw)}
	r.each(tStruct, func(int) {
		known := false
		r.fields(func(id int16, typ byte) {
			known = id == 1
			r.skip(typ, false)
		})
		orders = append(orders, known)
	})
	return orders
}

func newFileSchema(raw []byte, stored, int96 string, asBytes func(string, arrow.DataType) arrow.DataType) (s *fileSchema, err error) {
	defer recovered(&err, "the schema")
	unit, err := unitOf(int96)
	if err != nil {
		return nil, err
	}
	md, err := metadata.NewFileMetaData(raw, nil)
	if err != nil {
		return nil, errFooter
	}
	sc := md.Schema
	for i := range sc.NumColumns() {
		if name := sc.Column(i).Path(); !utf8.ValidString(name) {
			return nil, fault.New(fault.Corrupt, "the name of column %d, %.1000q, is not UTF-8; rename it where the file is made", i, name)
		}
	}
	if nested(sc) {
		if sc, err = ruled(raw); err != nil {
			return nil, err
		}
	}
	man, err := pqarrow.NewSchemaManifest(sc, nil, nil)
	odd, ext := map[int]*driver.Unreadable{}, map[int]marks{}
	if err == nil && stored != "" {
		var kv metadata.KeyValueMetadata
		if kv, odd, ext, err = plainSchema(stored, man.Fields); err != nil {
			return nil, err
		}
		man, err = pqarrow.NewSchemaManifest(sc, kv, nil)
	}
	if err != nil {
		return nil, fault.New(fault.Unsupported, "the type has no Arrow equivalent: %w; write the column as another type, where the file is made", err).
			At(fault.Place{Column: withoutEquivalent(sc)})
	}
	md.FileMetaData.KeyValueMetadata = nil // may be large, and is used up
	s = &fileSchema{base: md, manifest: man}
	names := make([]string, len(man.Fields))
	for i := range man.Fields {
		names[i] = man.Fields[i].Field.Name
	}
	names = fileset.Distinct(names, nil)
	fields := make([]arrow.Field, len(man.Fields))
	for i := range man.Fields {
		mf := &man.Fields[i]
		ownTypes(mf, sc, unit)
		if asBytes != nil && len(mf.Children) == 0 {
			mf.Field.Type = asBytes(names[i], mf.Field.Type)
		}
		fields[i] = arrow.Field{Name: names[i], Type: plainType(mf.Field.Type), Nullable: mf.Field.Nullable}
		f := field{}
		if err := s.walk(mf, &f, 0); err != nil {
			return nil, err
		}
		if odd[i] == nil {
			odd[i] = tooWide(mf, names[i])
		}
		if u := odd[i]; u != nil {
			fields[i].Type = u
		} else if len(f.leaves) == 1 && len(mf.Children) == 0 {
			l := &s.leaves[f.leaves[0]]
			l.kind = kindOf(l, mf.Field.Type, md.Schema.Column(f.leaves[0]))
			if ext[i].of.Len() == 0 {
				ext[i] = marks{of: extensionOf(md.Schema.Column(f.leaves[0]))}
			}
		}
		if odd[i] == nil {
			fields[i].Type = ext[i].inside(fields[i].Type, mf, md.Schema)
			s.extend(&fields[i], &f, ext[i].of)
		}
		f.root = newNode(mf, new(int))
		s.fields = append(s.fields, f)
	}
	if len(s.leaves) != md.Schema.NumColumns() {
		return nil, fault.New(fault.Corrupt, "the schema has %d columns, not %d", md.Schema.NumColumns(), len(s.leaves))
	}
	s.arrow = arrow.NewSchema(fields, nil)
	return s, nil
}

// nested reports whether a column is more than one value a row.
func nested(s *schema.Schema) bool {
	for i := range s.Root().NumFields() {
		if f := s.Root().Field(i); f.Type() == schema.Group || f.RepetitionType() == parquet.Repetitions.Repeated {
			return true
		}
	}
	return false
}

// ruled is the schema of a footer with its lists in the one shape of which arrow-go makes what the format's rules for all of them say
// (LogicalTypes.md, "Lists", with those for files of older writers): leaves and their levels stay what they are.
func ruled(raw []byte) (*schema.Schema, error) {
	md, err := metadata.NewFileMetaData(raw, nil) // a copy, as its nodes get other parents
	if err != nil {
		return nil, errFooter
	}
	root, err := withFields(md.Schema.Root(), parquet.Repetitions.Required, schema.NoLogicalType{}, ruledField)
	if err != nil {
		return nil, fault.New(fault.Corrupt, "the schema is damaged: a group in it is none that Parquet has; write the file anew")
	}
	return schema.NewSchema(root), nil
}

func withFields(g *schema.GroupNode, rep parquet.Repetition, l schema.LogicalType, f func(schema.Node) (schema.Node, error)) (*schema.GroupNode, error) {
	fields := make(schema.FieldList, g.NumFields())
	for i := range fields {
		var err error
		if fields[i], err = f(g.Field(i)); err != nil {
			return nil, err
		}
	}
	if l.IsNone() {
		return schema.NewGroupNode(g.Name(), rep, fields, g.FieldID())
	}
	return schema.NewGroupNodeLogical(g.Name(), rep, fields, l, g.FieldID())
}

// ruledField is a column or a field of a group: one that is repeated is a list that must be there, of elements that must.
// What is in a VARIANT is read as it lies there, with or without columns of its own.
func ruledField(n schema.Node) (schema.Node, error) {
	g, group := n.(*schema.GroupNode)
	if group && g.LogicalType().Equals(schema.VariantLogicalType{}) {
		var err error
		if g, err = withFields(g, g.RepetitionType(), schema.NoLogicalType{}, func(n schema.Node) (schema.Node, error) { return n, nil }); err != nil {
			return nil, err
		}
		n = g
	}
	repeated := n.RepetitionType() == parquet.Repetitions.Repeated
	switch {
	case group && (!repeated || !g.LogicalType().IsNone()):
		return ruledGroup(g, n.RepetitionType())
	case !repeated:
		return n, nil
	}
	elem := n
	if group {
		var err error
		if elem, err = ruledElement(g); err != nil {
			return nil, err
		}
	}
	return schema.NewGroupNodeLogical(n.Name(), parquet.Repetitions.Required, schema.FieldList{elem}, schema.NewListLogicalType(), n.FieldID())
}

// ruledElement is a repeated group around g, which is the type of the elements: of several fields, a struct, whatever else it says to be.
func ruledElement(g *schema.GroupNode) (schema.Node, error) {
	var e *schema.GroupNode
	var err error
	if g.NumFields() > 1 {
		e, err = withFields(g, parquet.Repetitions.Required, schema.NoLogicalType{}, ruledField)
	} else {
		e, err = ruledGroup(g, parquet.Repetitions.Required)
	}
	if err != nil {
		return nil, err
	}
	return schema.NewGroupNode("list", parquet.Repetitions.Repeated, schema.FieldList{e}, -1)
}

func ruledGroup(g *schema.GroupNode, rep parquet.Repetition) (*schema.GroupNode, error) {
	list, isMap := g.LogicalType().Equals(schema.NewListLogicalType()), g.LogicalType().Equals(schema.MapLogicalType{})
	return withFields(g, rep, g.LogicalType(), func(n schema.Node) (schema.Node, error) {
		r, group := n.(*schema.GroupNode)
		switch {
		case !list && !isMap:
			return ruledField(n)
		case !group || r.RepetitionType() != parquet.Repetitions.Repeated:
			return n, nil
		case list && (r.NumFields() != 1 || r.Field(0).RepetitionType() == parquet.Repetitions.Repeated || r.Name() == "array" || r.Name() == g.Name()+"_tuple"):
			return ruledElement(r)
		}
		at := 0
		return withFields(r, parquet.Repetitions.Repeated, r.LogicalType(), func(n schema.Node) (schema.Node, error) {
			if at++; isMap && at == 1 && r.NumFields() == 2 {
				return ruledKey(n)
			}
			return ruledField(n)
		})
	})
}

// ruledKey is the key of a map, which must be there: an optional one may be null in no row that is
// read.
func ruledKey(n schema.Node) (schema.Node, error) {
	if p, ok := n.(*schema.PrimitiveNode); ok && n.RepetitionType() == parquet.Repetitions.Optional {
		return schema.NewPrimitiveNodeLogical(n.Name(), parquet.Repetitions.Required, n.LogicalType(), p.PhysicalType(), p.TypeLength(), n.FieldID())
	}
	return ruledField(n)
}

// withoutEquivalent is the first top-level column that arrow-go makes nothing of; "" if none by itself.
func withoutEquivalent(s *schema.Schema) string {
	for i := range s.Root().NumFields() {
		f := s.Root().Field(i)
		root, err := schema.NewGroupNode(s.Root().Name(), parquet.Repetitions.Required, schema.FieldList{f}, -1)
		if err == nil {
			_, err = pqarrow.NewSchemaManifest(schema.NewSchema(root), nil, nil)
		}
		if err != nil {
			return f.Name()
		}
	}
	return ""
}

// walk collects leaves, and refuses trees on which arrow-go would panic.
func (s *fileSchema) walk(mf *pqarrow.SchemaField, f *field, depth int) error {
	if len(mf.Children) == 0 {
		if mf.ColIndex != len(s.leaves) {
			return fault.New(fault.Unsupported, "column %q has no values", mf.Field.Name)
		}
		d := s.base.Schema.Column(mf.ColIndex)
		s.leaves = append(s.leaves, leaf{
			name: d.Path(), physical: d.PhysicalType(), width: d.TypeLength(),
			maxDef: d.MaxDefinitionLevel(), maxRep: d.MaxRepetitionLevel(),
			anc: uint8(mf.LevelInfo.RepeatedAncestorDefLevel), arrow: mf.Field.Type,
			key: int(d.MaxDefinitionLevel()) > int(mf.LevelInfo.DefLevel),
		})
		if d.PhysicalType() == parquet.Types.FixedLenByteArray && d.TypeLength() <= 0 {
			return fault.New(fault.Corrupt, "column %q has values of %d bytes", d.Path(), d.TypeLength())
		}
		f.leaves = append(f.leaves, mf.ColIndex)
		f.repeated = f.repeated || d.MaxRepetitionLevel() > 0
		return nil
	}
	for i := range mf.Children {
		if err := s.walk(&mf.Children[i], f, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// plainSchema decodes a stored Arrow schema and returns it, as arrow-go takes
// it, with dictionary types replaced by their value types and timestamps in the
// units of file, the columns as Parquet alone describes them. Of odd columns there is nothing to read; ext are the extension types of others.
func plainSchema(stored string, file []pqarrow.SchemaField) (kv metadata.KeyValueMetadata, odd map[int]*driver.Unreadable, ext map[int]marks, err error) {
	defer recovered(&err, "the stored Arrow schema (key ARROW:schema)")
	raw, err := base64.StdEncoding.DecodeString(stored)
	if err != nil {
		raw, err = base64.RawStdEncoding.DecodeString(stored)
	}
	if err != nil {
		return nil, nil, nil, errStored
	}
	meta, odd, err := checkArrowSchema(raw)
	if err != nil {
		return nil, nil, nil, err
	}
	rd, err := ipc.NewReaderFromMessageReader(&oneMessage{meta})
	if err != nil {
		return nil, nil, nil, errStored
	}
	defer rd.Release()
	fields := rd.Schema().Fields()
	ext = map[int]marks{}
	for i := range fields {
		ext[i] = storedMarks(fields[i])
		fields[i] = plainField(fields[i])
		if i < len(file) {
			fields[i] = fileUnits(fields[i], file[i].Field.Type)
		}
	}
	kv = metadata.NewKeyValueMetadata()
	var plain bytes.Buffer
	w := ipc.NewWriter(&plain, ipc.WithSchema(arrow.NewSchema(fields, nil)))
	if err := w.Close(); err != nil {
		return nil, nil, nil, err
	}
	err = kv.Append(arrowSchemaKey, base64.StdEncoding.EncodeToString(plain.Bytes()))
	return kv, odd, ext, err
}

func plainField(f arrow.Field) arrow.Field {
	f.Type = plainType(f.Type)
	f.Metadata = arrow.Metadata{}
	return f
}

func plainType(t arrow.DataType) arrow.DataType {
	switch t := t.(type) {
	case *arrow.DictionaryType:
		return plainType(t.ValueType)
	case *arrow.ListType:
		return arrow.ListOfField(plainField(t.ElemField()))
	case *arrow.LargeListType:
		return arrow.LargeListOfField(plainField(t.ElemField()))
	case *arrow.FixedSizeListType:
		return arrow.FixedSizeListOfField(t.Len(), plainField(t.ElemField()))
	case *arrow.MapType:
		m := arrow.MapOfFields(plainField(t.KeyField()), plainField(t.ItemField()))
		m.KeysSorted = t.KeysSorted
		return m
	case *arrow.StructType:
		fields := t.Fields()
		for i := range fields {
			fields[i] = plainField(fields[i])
		}
		return arrow.StructOf(fields...)
	}
	return t
}

// fileUnits gives the timestamps with a zone in f the units that they have in the
// file's type t: Parquet has no seconds and no zones, and arrow-go takes a stored
// zone only with the unit of the file. Where f and t have another shape, f stays.
func fileUnits(f arrow.Field, t arrow.DataType) arrow.Field {
	switch old := f.Type.(type) {
	case *arrow.TimestampType:
		if t, ok := t.(*arrow.TimestampType); ok && old.TimeZone != "" {
			f.Type = &arrow.TimestampType{Unit: t.Unit, TimeZone: old.TimeZone}
		}
	case *arrow.MapType:
		if t, ok := t.(*arrow.MapType); ok {
			m := arrow.MapOfFields(fileUnits(old.KeyField(), t.KeyType()), fileUnits(old.ItemField(), t.ItemType()))
			m.KeysSorted = old.KeysSorted
			f.Type = m
		}
	case arrow.ListLikeType:
		l, ok := t.(arrow.ListLikeType)
		if !ok {
			break
		}
		elem := fileUnits(old.ElemField(), l.Elem())
		switch old := old.(type) {
		case *arrow.ListType:
			f.Type = arrow.ListOfField(elem)
		case *arrow.LargeListType:
			f.Type = arrow.LargeListOfField(elem)
		case *arrow.FixedSizeListType:
			f.Type = arrow.FixedSizeListOfField(old.Len(), elem)
		}
	case *arrow.StructType:
		t, ok := t.(*arrow.StructType)
		if !ok || t.NumFields() != old.NumFields() {
			break
		}
		fields := old.Fields()
		for i := range fields {
			fields[i] = fileUnits(fields[i], t.Field(i).Type)
		}
		f.Type = arrow.StructOf(fields...)
	}
	return f
}
