package sink

import (
	"encoding/json"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/near"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
)

// hiveNull is the folder value of null. A string that looks like it is escaped.
const hiveNull = "__HIVE_DEFAULT_PARTITION__"

// maxSegment is what file systems allow for the name of a folder.
const maxSegment = 255

// partitioning says which columns become folders. Immutable.
type partitioning struct {
	cols []int    // partition columns
	name []string // escaped, with '='
	rest []int    // columns that stay
	file *arrow.Schema
}

// CheckPartitions reports what is wrong with folders of these columns for rows of this schema, and gives the schema of the files in them.
func CheckPartitions(schema *arrow.Schema, by []string) (*arrow.Schema, error) {
	p, err := newPartitioning(schema, by)
	if err != nil {
		return nil, err
	}
	return p.file, nil
}

func newPartitioning(schema *arrow.Schema, by []string) (*partitioning, error) {
	p := new(partitioning)
	for _, name := range by {
		at := schema.FieldIndices(name)
		switch {
		case len(at) == 0:
			return nil, fault.New(fault.Invalid, "partition_by: unknown column %q%s", name, near.Column(name, schema))
		case len(at) > 1:
			return nil, fault.New(fault.Invalid, "partition_by: %d columns have the name %q", len(at), name).At(fault.Place{Column: name})
		case slices.Contains(p.cols, at[0]):
			return nil, fault.New(fault.Invalid, "partition_by: column %q is named twice", name).At(fault.Place{Column: name})
		case !utf8.ValidString(name):
			return nil, fault.New(fault.Invalid, "partition_by: the column's name %q is not UTF-8: rename it", name)
		case name == "":
			return nil, fault.New(fault.Invalid, "partition_by: a column without a name cannot name a folder")
		}
		if t := schema.Field(at[0]).Type; !partitionType(t) {
			return nil, fault.New(fault.Unsupported, "partition_by: a column of type %s: use integers, booleans, strings, dates or timestamps, or cast it", typename.Name(t)).
				At(fault.Place{Column: name})
		}
		p.cols = append(p.cols, at[0])
		p.name = append(p.name, escape(name, true)+"=")
	}
	var fields []arrow.Field
	for i, f := range schema.Fields() {
		if !slices.Contains(p.cols, i) {
			p.rest = append(p.rest, i)
			fields = append(fields, f)
		}
	}
	if len(fields) == 0 {
		return nil, fault.New(fault.Invalid, "partition_by: no column would be left for the files")
	}
	meta, err := partitionTypes(schema, p.cols)
	if err != nil {
		return nil, err
	}
	p.file = arrow.NewSchema(fields, &meta)
	for _, f := range fields { // can rows of this type be picked?
		b := array.NewBuilder(memory.DefaultAllocator, f.Type)
		b.AppendNull()
		a := b.NewArray()
		b.Release()
		t, err := gather.Column(memory.DefaultAllocator, []arrow.Array{a}, runsOf([]int32{0, 0}))
		a.Release()
		if err != nil {
			return nil, fault.New(fault.Unsupported, "rows with a column of type %s cannot be partitioned: %w", typename.Name(f.Type), err).At(fault.Place{Column: f.Name})
		}
		t.Release()
	}
	return p, nil
}

// partitionTypes is the metadata of schema and the types of its columns cols, which the source reads back from the files.
func partitionTypes(schema *arrow.Schema, cols []int) (arrow.Metadata, error) {
	types := make(map[string]string, len(cols))
	for _, c := range cols {
		f := schema.Field(c)
		if d, ok := f.Type.(*arrow.DictionaryType); ok {
			f.Type = d.ValueType
		}
		types[f.Name] = typename.Name(f.Type)
	}
	text, err := json.Marshal(types)
	if err != nil {
		return arrow.Metadata{}, fault.New(fault.Internal, "types of partitions: %w", err)
	}
	m := schema.Metadata().ToMap()
	m[driver.PartitionTypes] = string(text)
	return arrow.MetadataFrom(m), nil
}

func partitionType(t arrow.DataType) bool {
	switch t.ID() {
	case arrow.INT8, arrow.INT16, arrow.INT32, arrow.INT64, arrow.UINT8, arrow.UINT16, arrow.UINT32, arrow.UINT64,
		arrow.BOOL, arrow.STRING, arrow.LARGE_STRING, arrow.DATE32, arrow.DATE64, arrow.TIMESTAMP, arrow.NULL:
		return true
	case arrow.DICTIONARY:
		return partitionType(t.(*arrow.DictionaryType).ValueType)
	}
	return false
}

// escape makes s the part of a file name: letters, digits, '-', '.' and '_' stay, all else
// becomes %XX. first also escapes what would hide the folder.
func escape(s string, first bool) string {
	var b strings.Builder
	for i := range len(s) {
		c := s[i]
		plain := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '.' || c == '_'
		if plain && !(first && i == 0 && (c == '.' || c == '_')) {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "%%%02X", c)
		}
	}
	return b.String()
}

func escapeValue(v string) string { return escape(v, v == hiveNull) }

// grouped are rows in order of their partition: those of keys[i] end before ends[i].
type grouped struct {
	rec  arrow.RecordBatch // without the partition columns
	keys []string          // folders, "a=1/b=x/"
	ends []int64
}

// group sorts the rows of rec by partition; within one they keep their order. The
// record of the result is a reference; its memory is a copy if that was needed, or copied is set.
func (p *partitioning) group(alloc memory.Allocator, rec arrow.RecordBatch) (g grouped, copied bool, err error) {
	n := int(rec.NumRows())
	ids, keys, err := p.assign(rec)
	if err != nil {
		return g, false, err
	}
	ends := make([]int64, len(keys)+1)
	runs := 1
	for i, id := range ids {
		ends[id+1]++
		if i > 0 && id != ids[i-1] {
			runs++
		}
	}
	used := 0
	for _, c := range ends {
		if c > 0 {
			used++
		}
	}
	if runs == used { // every partition is one run: the rows stay where they are
		for i, id := range ids {
			if i+1 == n || ids[i+1] != id {
				g.keys, g.ends = append(g.keys, keys[id]), append(g.ends, int64(i)+1)
			}
		}
		g.rec = p.pick(rec)
		return g, false, nil
	}
	for i := 1; i < len(ends); i++ {
		ends[i] += ends[i-1]
	}
	order := make([]int32, n)
	next := slices.Clone(ends)
	for i, id := range ids {
		order[next[id]] = int32(i)
		next[id]++
	}
	for id, k := range keys {
		if ends[id+1] > ends[id] {
			g.keys, g.ends = append(g.keys, k), append(g.ends, ends[id+1])
		}
	}
	body := p.pick(rec)
	defer body.Release()
	g.rec, err = takeRecord(alloc, body, order)
	return g, true, err
}

// pick drops the partition columns.
func (p *partitioning) pick(rec arrow.RecordBatch) arrow.RecordBatch {
	cols := make([]arrow.Array, len(p.rest))
	for i, c := range p.rest {
		cols[i] = rec.Column(c)
	}
	return array.NewRecordBatch(p.file, cols, rec.NumRows())
}

// copyRows gives g memory of its own.
func (g *grouped) copyRows(alloc memory.Allocator) error {
	order := make([]int32, g.rec.NumRows())
	for i := range order {
		order[i] = int32(i)
	}
	rec, err := takeRecord(alloc, g.rec, order)
	if err != nil {
		return err
	}
	g.rec.Release()
	g.rec = rec
	return nil
}

func takeRecord(alloc memory.Allocator, rec arrow.RecordBatch, order []int32) (arrow.RecordBatch, error) {
	cols := make([]arrow.Array, 0, rec.NumCols())
	defer func() {
		for _, c := range cols {
			c.Release()
		}
	}()
	runs := runsOf(order)
	for i, c := range rec.Columns() {
		t, err := gather.Column(alloc, []arrow.Array{c}, runs)
		if err != nil {
			return nil, fault.Wrap(err, fault.Place{Column: rec.ColumnName(i)})
		}
		cols = append(cols, t)
	}
	return array.NewRecordBatch(rec.Schema(), cols, int64(len(order))), nil
}

// runsOf are the rows one by one. One run at the end has none: rows of a single run would not be copied.
func runsOf(order []int32) []gather.Run {
	runs := make([]gather.Run, len(order)+1)
	for i, r := range order {
		runs[i] = gather.Run{Row: r, N: 1}
	}
	return runs
}

// assign gives every row the number of its partition, in order of first
// appearance (dictionaries: of their entries), and the folders of each.
func (p *partitioning) assign(rec arrow.RecordBatch) (ids []int32, keys []string, err error) {
	n := int(rec.NumRows())
	ids = make([]int32, n) // all in partition 0, whose folder is the root
	keys = []string{""}
	codes := make([]int32, n)
	for c, col := range p.cols {
		values := encode(rec.Column(col), codes)
		segments := make([]string, len(values)) // made when used: a dictionary may have long entries that no row has
		type pair struct{ id, code int32 }
		seen := make(map[pair]int32)
		var next []string
		last, lastID := pair{-1, -1}, int32(0)
		for i, code := range codes {
			at := pair{ids[i], code}
			if at != last {
				id, ok := seen[at]
				if !ok {
					if segments[code] == "" {
						seg := p.name[c] + values[code] + "/"
						if err := checkValue(values[code], len(seg), rec.Column(col).DataType()); err != nil {
							return nil, nil, err.At(fault.Place{Column: rec.ColumnName(col)})
						}
						segments[code] = seg
					}
					id = int32(len(next))
					seen[at] = id
					next = append(next, keys[at.id]+segments[code])
				}
				last, lastID = at, id
			}
			ids[i] = lastID
		}
		keys = next
	}
	return ids, keys, nil
}

// checkValue reports what keeps a value of type t, as a folder of size bytes spells it, from being read back. Only values that rows have are checked.
func checkValue(v string, size int, t arrow.DataType) *fault.Error {
	if d, ok := t.(*arrow.DictionaryType); ok {
		t = d.ValueType
	}
	switch t.ID() {
	case arrow.DATE32, arrow.DATE64, arrow.TIMESTAMP:
		if year, _, _ := strings.Cut(v, "-"); v != hiveNull && len(year) != 4 {
			return fault.New(fault.Invalid, "partition_by: the value %.50q is outside the years 0 to 9999, which folders can spell: filter such rows, or partition by another column", v)
		}
	}
	if size > maxSegment+1 {
		return fault.New(fault.Invalid, "partition_by: the value %.50q... is too long for the name of a folder", v)
	}
	text, err := url.PathUnescape(v)
	if err != nil {
		return fault.New(fault.Internal, "partition_by: the value %.50q: %w", v, err)
	}
	if !utf8.ValidString(text) {
		return fault.New(fault.Corrupt, "partition_by: the value %.50q is not UTF-8", text)
	}
	return nil
}

// encode numbers the distinct values of a and fills codes with each row's; it
// returns the values as folders spell them.
func encode(a arrow.Array, codes []int32) []string {
	switch a := a.(type) {
	case *array.Int8:
		return encodeSlice(a, a.Int8Values(), codes, signed)
	case *array.Int16:
		return encodeSlice(a, a.Int16Values(), codes, signed)
	case *array.Int32:
		return encodeSlice(a, a.Int32Values(), codes, signed)
	case *array.Int64:
		return encodeSlice(a, a.Int64Values(), codes, signed)
	case *array.Uint8:
		return encodeSlice(a, a.Uint8Values(), codes, unsigned)
	case *array.Uint16:
		return encodeSlice(a, a.Uint16Values(), codes, unsigned)
	case *array.Uint32:
		return encodeSlice(a, a.Uint32Values(), codes, unsigned)
	case *array.Uint64:
		return encodeSlice(a, a.Uint64Values(), codes, unsigned)
	case *array.Date32:
		return encodeSlice(a, a.Date32Values(), codes, func(v arrow.Date32) string { return v.ToTime().Format(time.DateOnly) })
	case *array.Date64:
		days := make([]int64, a.Len()) // equal days are one partition, whatever their milliseconds
		for i, v := range a.Date64Values() {
			days[i] = int64(v) / 86_400_000
			if int64(v)%86_400_000 < 0 {
				days[i]--
			}
		}
		return encodeSlice(a, days, codes, func(v int64) string { return time.Unix(v*86400, 0).UTC().Format(time.DateOnly) })
	case *array.Timestamp:
		t := a.DataType().(*arrow.TimestampType)
		unit, layout := t.Unit, "2006-01-02T15:04:05.999999999"
		if t.TimeZone != "" {
			layout += "Z" // of UTC: the zone is in the type
		}
		return encodeSlice(a, a.TimestampValues(), codes, func(v arrow.Timestamp) string {
			return escapeValue(v.ToTime(unit).UTC().Format(layout))
		})
	case *array.Boolean:
		vs := make([]bool, a.Len())
		for i := range vs {
			vs[i] = a.Value(i)
		}
		return encodeSlice(a, vs, codes, strconv.FormatBool)
	case *array.String:
		vs := make([]string, a.Len())
		for i := range vs {
			vs[i] = a.Value(i)
		}
		return encodeSlice(a, vs, codes, escapeValue)
	case *array.LargeString:
		vs := make([]string, a.Len())
		for i := range vs {
			vs[i] = a.Value(i)
		}
		return encodeSlice(a, vs, codes, escapeValue)
	case *array.Dictionary:
		return encodeDictionary(a, codes)
	}
	clear(codes) // *array.Null: newPartitioning lets nothing else through
	return []string{hiveNull}
}

func signed[T int8 | int16 | int32 | int64](v T) string { return strconv.FormatInt(int64(v), 10) }
func unsigned[T uint8 | uint16 | uint32 | uint64](v T) string {
	return strconv.FormatUint(uint64(v), 10)
}

func encodeSlice[T comparable](a arrow.Array, vs []T, codes []int32, text func(T) string) (values []string) {
	seen := make(map[T]int32)
	null := int32(-1)
	nulls := a.NullN() > 0
	var last T
	lastCode := int32(-1)
	for i, v := range vs {
		if nulls && a.IsNull(i) {
			if null < 0 {
				null = int32(len(values))
				values = append(values, hiveNull)
			}
			codes[i] = null
			continue
		}
		if lastCode < 0 || v != last {
			code, ok := seen[v]
			if !ok {
				code = int32(len(values))
				seen[v] = code
				values = append(values, text(v))
			}
			last, lastCode = v, code
		}
		codes[i] = lastCode
	}
	return values
}

func encodeDictionary(a *array.Dictionary, codes []int32) []string {
	entries := make([]int32, a.Dictionary().Len())
	values := encode(a.Dictionary(), entries) // equal entries get one number
	null := int32(slices.Index(values, hiveNull))
	for i := range codes {
		if a.IsNull(i) {
			if null < 0 {
				null = int32(len(values))
				values = append(values, hiveNull)
			}
			codes[i] = null
			continue
		}
		codes[i] = entries[a.GetValueIndex(i)]
	}
	return values
}
