package ipcio

import (
	"fmt"
	"slices"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"

	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// Numbers of types in the format.
const (
	kindNull          = 1
	kindInt           = 2
	kindFloat         = 3
	kindBinary        = 4
	kindUTF8          = 5
	kindBool          = 6
	kindDecimal       = 7
	kindDate          = 8
	kindTime          = 9
	kindTimestamp     = 10
	kindInterval      = 11
	kindList          = 12
	kindStruct        = 13
	kindUnion         = 14
	kindFixedBinary   = 15
	kindFixedSizeList = 16
	kindMap           = 17
	kindDuration      = 18
	kindLargeBinary   = 19
	kindLargeUTF8     = 20
	kindLargeList     = 21
	kindRunEndEncoded = 22
	kindBinaryView    = 23
	kindUTF8View      = 24
	kindListView      = 25
	kindLargeListView = 26
)

// field mirrors a field of the schema: how its values lie in the file.
type field struct {
	dict     int64 // id of the dictionary, -1 if it is not encoded
	kind     int8
	dense    bool // of a union
	bool8    bool // booleans, a byte each
	children []field
}

// schemaOf reads a Schema table. A column that cannot be read, or has something in it that cannot,
// is of a type driver.Unreadable. Columns of one name are told apart as fileset.Distinct does it. Of
// the schema's metadata driver.PartitionTypes is kept.
func schemaOf(t table) (*arrow.Schema, []field, error) {
	if t.int16(0, 0) != 0 {
		return nil, nil, driver.Errorf(driver.Unsupported, "the numbers of the file are big-endian, which is not read here; "+
			"write it again on another machine: pyarrow reads it, and writes it in the order of the machine that it is on")
	}
	r := schemaReader{fields: maxFields, text: 4*len(t.b) + 1<<20}
	fs, fields, err := r.all(t.tables(1), "", 0)
	if err != nil {
		return nil, nil, err
	}
	keys, values, err := r.metadata(t.tables(2))
	if err != nil {
		return nil, nil, err
	}
	var meta arrow.Metadata
	if i := slices.Index(keys, driver.PartitionTypes); i >= 0 {
		meta = arrow.NewMetadata(keys[i:i+1], values[i:i+1])
	}
	return arrow.NewSchema(fs, &meta), fields, nil
}

// schemaReader bounds what a schema claims: tables may be shared, and so claim more than there are
// bytes.
type schemaReader struct {
	fields int // that there may be
	text   int // bytes of names and metadata that there may be
}

// str is a string of a table.
func (r *schemaReader) str(b []byte) (string, error) {
	if r.text -= len(b); r.text < 0 {
		return "", driver.Errorf(driver.Corrupt, "the schema has the same names again and again: it is damaged")
	}
	return string(b), nil
}

// all reads fields of one parent, which is at path, with a dot at its end.
func (r *schemaReader) all(ts []table, path string, depth int) ([]arrow.Field, []field, error) {
	if r.fields -= len(ts); r.fields < 0 || depth > maxDepth {
		return nil, nil, driver.Errorf(driver.Corrupt, "the schema has more than %d fields, or is nested deeper than %d", maxFields, maxDepth)
	}
	as, fs, names := make([]arrow.Field, len(ts)), make([]field, len(ts)), make([]string, len(ts))
	for i, t := range ts {
		name, err := r.str(t.text(0))
		if err == nil && !utf8.ValidString(name) {
			err = driver.Errorf(driver.Corrupt, "the name of column %d, %q, is not UTF-8; rename it where the file is made",
				i+1, path+name)
		}
		if err == nil {
			as[i], fs[i], err = r.field(t, path+name, depth)
		}
		if err != nil {
			return nil, nil, err
		}
		names[i] = name
	}
	for i, name := range fileset.Distinct(names, nil) {
		as[i].Name = name
	}
	return as, fs, nil
}

// field reads a field, but for its name.
func (r *schemaReader) field(t table, path string, depth int) (a arrow.Field, f field, err error) {
	at := driver.Place{Column: path}
	if r.text -= len(path); r.text < 0 {
		return a, f, driver.Errorf(driver.Corrupt, "the names of nested fields are too long: the schema is damaged")
	}
	f.dict, f.kind = -1, t.int8(2)
	a.Nullable = t.int8(1) != 0
	typ, ok := t.table(3)
	if !ok {
		return a, f, driver.Errorf(driver.Corrupt, "the schema says no type").At(at)
	}
	var children []arrow.Field
	if children, f.children, err = r.all(t.tables(5), path+".", depth+1); err != nil {
		return a, f, err
	}
	if a.Type, err = f.typeOf(typ, path, children); err != nil {
		return a, f, driver.Wrap(err, at)
	}
	_, odd := a.Type.(*driver.Unreadable)
	if d, ok := t.table(4); ok {
		f.dict = d.int64(0)
		if f.dict < 0 {
			return a, f, driver.Errorf(driver.Corrupt, "the dictionary has the number %d", f.dict).At(at)
		}
		var index arrow.DataType = arrow.PrimitiveTypes.Int32
		if n, ok := d.table(1); ok {
			if index = intOf(n); index == nil {
				return a, f, driver.Errorf(driver.Corrupt, "the dictionary is looked up with numbers of %d bits", n.int32(0, 0)).At(at)
			}
		}
		if !odd {
			a.Type = &arrow.DictionaryType{IndexType: index, ValueType: a.Type, Ordered: d.int8(2) != 0}
		}
	}
	keys, values, err := r.metadata(t.tables(6))
	if err == nil && !odd {
		a.Type, a.Metadata = f.extension(a.Type, keys, values)
	}
	if f.kind == kindRunEndEncoded && !odd { // what its values are
		a.Nullable = a.Nullable || children[1].Nullable
		if !driver.SameExtension(children[1], arrow.Field{}) {
			a.Metadata = children[1].Metadata
		}
	}
	return a, f, err
}

// metadata are keys and values of a field, or of a schema.
func (r *schemaReader) metadata(pairs []table) (keys, values []string, err error) {
	for _, kv := range pairs {
		var k, v string
		if k, err = r.str(kv.text(0)); err == nil {
			v, err = r.str(kv.text(1))
		}
		if err != nil {
			return nil, nil, err
		}
		keys, values = append(keys, k), append(values, v)
	}
	return keys, values, nil
}

// extension gives a column of an extension type the type of its storage, t, and its metadata, by
// which whoever knows the extension finds it: where they say what the values are not any more, they
// are left out. Booleans of a byte each become booleans.
func (f *field) extension(t arrow.DataType, keys, values []string) (arrow.DataType, arrow.Metadata) {
	md := arrow.NewMetadata(keys, values)
	name, ok := md.GetValue(ipc.ExtensionTypeKeyName)
	if !ok {
		return t, md
	}
	keep := arrow.TypeEqual(plain(t), t)
	switch name {
	case "arrow.json":
		keep = plain(t).ID() == arrow.STRING || plain(t).ID() == arrow.LARGE_STRING
	case "arrow.uuid":
		b, ok := plain(t).(*arrow.FixedSizeBinaryType)
		keep = ok && b.ByteWidth == 16
	case "arrow.bool8":
		keep = false
		if t.ID() == arrow.INT8 {
			t, f.bool8 = arrow.FixedWidthTypes.Boolean, true
		} else if d, ok := t.(*arrow.DictionaryType); ok && d.ValueType.ID() == arrow.INT8 {
			t, f.bool8 = &arrow.DictionaryType{IndexType: d.IndexType, ValueType: arrow.FixedWidthTypes.Boolean, Ordered: d.Ordered}, true
		}
	}
	return t, driver.Extension(md, keep)
}

// typeOf reads a type, with its children.
func (f *field) typeOf(t table, path string, children []arrow.Field) (arrow.DataType, error) {
	odd := func(advice, what string, args ...any) (arrow.DataType, error) {
		return driver.NewUnreadable("", path, fmt.Sprintf(what, args...), advice), nil
	}
	want := map[int8]int{kindList: 1, kindLargeList: 1, kindFixedSizeList: 1, kindMap: 1, kindListView: 1, kindLargeListView: 1,
		kindRunEndEncoded: 2, kindStruct: len(children), kindUnion: len(children)}[f.kind]
	if f.kind <= kindLargeListView && len(children) != want {
		return nil, driver.Errorf(driver.Corrupt, "the schema has %d fields in it, of %d", len(children), want)
	}
	if f.kind == kindUnion {
		f.dense = t.int16(0, 0) == 1
		return odd("a struct", "a union")
	}
	for _, c := range children {
		if _, odd := c.Type.(*driver.Unreadable); odd {
			return c.Type, nil
		}
	}
	bad := func(what string) (arrow.DataType, error) {
		return nil, driver.Errorf(driver.Corrupt, "the schema says that it is %s", what)
	}
	switch f.kind {
	case kindNull:
		return arrow.Null, nil
	case kindInt:
		if i := intOf(t); i != nil {
			return i, nil
		}
		sign := "uint"
		if t.int8(1) != 0 {
			sign = "int"
		}
		return odd("int64, double or decimal(38, 0)", "%s%d", sign, t.int32(0, 0))
	case kindFloat:
		switch p := t.int16(0, 0); p {
		case 0:
			return arrow.FixedWidthTypes.Float16, nil
		case 1:
			return arrow.PrimitiveTypes.Float32, nil
		case 2:
			return arrow.PrimitiveTypes.Float64, nil
		default:
			return odd("double", "a float of precision %d", p)
		}
	case kindBinary:
		return arrow.BinaryTypes.Binary, nil
	case kindUTF8:
		return arrow.BinaryTypes.String, nil
	case kindBool:
		return arrow.FixedWidthTypes.Boolean, nil
	case kindDecimal:
		p, s, bits := t.int32(0, 0), t.int32(1, 0), t.int32(2, 128)
		d, most := decimalOf(p, s, bits)
		if d == nil {
			return odd("double or string", "a decimal of %d bits", bits)
		}
		if p < 1 || p > most || s < 0 || s > p {
			return odd("another decimal, double or string",
				"decimal%d(%d, %d), with a precision beyond 1 to %d or a scale beyond 0 to the precision", bits, p, s, most)
		}
		return d, nil
	case kindDate:
		switch u := t.int16(0, 1); u {
		case 0:
			return arrow.FixedWidthTypes.Date32, nil
		case 1:
			return arrow.FixedWidthTypes.Date64, nil
		default:
			return bad(fmt.Sprintf("a date of unit %d", u))
		}
	case kindTime:
		switch u, bits := unitOf(t, 1), t.int32(1, 32); {
		case bits == 32 && (u == arrow.Second || u == arrow.Millisecond):
			return &arrow.Time32Type{Unit: u}, nil
		case bits == 64 && (u == arrow.Microsecond || u == arrow.Nanosecond):
			return &arrow.Time64Type{Unit: u}, nil
		default:
			return bad(fmt.Sprintf("a time of unit %d and %d bits", int(u), bits))
		}
	case kindTimestamp:
		u, zone := unitOf(t, 0), string(t.text(1))
		if u > arrow.Nanosecond || len(zone) > 200 || !utf8.ValidString(zone) {
			return bad(fmt.Sprintf("a timestamp of unit %d in the time zone %.200q", int(u), zone))
		}
		return &arrow.TimestampType{Unit: u, TimeZone: zone}, nil
	case kindDuration:
		u := unitOf(t, 1)
		if u > arrow.Nanosecond {
			return bad(fmt.Sprintf("a duration of unit %d", int(u)))
		}
		return &arrow.DurationType{Unit: u}, nil
	case kindInterval:
		switch u := t.int16(0, 0); u {
		case 0:
			return arrow.FixedWidthTypes.MonthInterval, nil
		case 1:
			return arrow.FixedWidthTypes.DayTimeInterval, nil
		case 2:
			return arrow.FixedWidthTypes.MonthDayNanoInterval, nil
		default:
			return bad(fmt.Sprintf("an interval of unit %d", u))
		}
	case kindList:
		return arrow.ListOfField(children[0]), nil
	case kindLargeList:
		return arrow.LargeListOfField(children[0]), nil
	case kindStruct:
		return arrow.StructOf(children...), nil
	case kindFixedBinary:
		w := t.int32(0, 0)
		if w < 0 {
			return bad(fmt.Sprintf("a binary of %d bytes", w))
		}
		return &arrow.FixedSizeBinaryType{ByteWidth: int(w)}, nil
	case kindFixedSizeList:
		switch n := t.int32(0, 0); {
		case n < 0:
			return bad(fmt.Sprintf("a list of %d values", n))
		case n == 0: // Arrow's Go types have no such list
			return arrow.ListOfField(children[0]), nil
		default:
			return arrow.FixedSizeListOfField(n, children[0]), nil
		}
	case kindMap:
		pair, ok := children[0].Type.(*arrow.StructType)
		if !ok || pair.NumFields() != 2 || f.children[0].dict >= 0 {
			return bad("a map, but not of pairs")
		}
		key := pair.Field(0)
		key.Nullable = false
		m := arrow.MapOfFields(key, pair.Field(1))
		m.KeysSorted = t.int8(0) != 0
		return m, nil
	case kindLargeBinary:
		return arrow.BinaryTypes.LargeBinary, nil
	case kindLargeUTF8:
		return arrow.BinaryTypes.LargeString, nil
	case kindRunEndEncoded:
		switch children[0].Type.ID() {
		case arrow.INT16, arrow.INT32, arrow.INT64:
			return arrow.RunEndEncodedOf(children[0].Type, children[1].Type), nil
		}
		return bad("run-end encoded, with ends that are no integers of 16, 32 or 64 bits")
	case kindBinaryView:
		return arrow.BinaryTypes.BinaryView, nil
	case kindUTF8View:
		return arrow.BinaryTypes.StringView, nil
	case kindListView:
		return arrow.ListViewOfField(children[0]), nil
	case kindLargeListView:
		return arrow.LargeListViewOfField(children[0]), nil
	}
	return nil, driver.Errorf(driver.Unsupported, "the type has number %d in the format, which is not known here, so that "+
		"the columns behind it are not found; leave the column out, or cast it to one of the older types, where the file is made", f.kind)
}

// intOf is the type of an Int table; nil if there is none.
func intOf(t table) arrow.DataType {
	types := map[int32][2]arrow.DataType{
		8:  {arrow.PrimitiveTypes.Uint8, arrow.PrimitiveTypes.Int8},
		16: {arrow.PrimitiveTypes.Uint16, arrow.PrimitiveTypes.Int16},
		32: {arrow.PrimitiveTypes.Uint32, arrow.PrimitiveTypes.Int32},
		64: {arrow.PrimitiveTypes.Uint64, arrow.PrimitiveTypes.Int64},
	}[t.int32(0, 0)]
	return types[min(1, uint8(t.int8(1)))]
}

// decimalOf is the decimal of so many bits, nil if there is none, and how many digits it holds.
func decimalOf(p, s, bits int32) (t arrow.DataType, most int32) {
	switch bits {
	case 32:
		return &arrow.Decimal32Type{Precision: p, Scale: s}, 9
	case 64:
		return &arrow.Decimal64Type{Precision: p, Scale: s}, 18
	case 128:
		return &arrow.Decimal128Type{Precision: p, Scale: s}, 38
	case 256:
		return &arrow.Decimal256Type{Precision: p, Scale: s}, 76
	}
	return nil, 0
}

func unitOf(t table, absent int16) arrow.TimeUnit { return arrow.TimeUnit(uint16(t.int16(0, absent))) }
