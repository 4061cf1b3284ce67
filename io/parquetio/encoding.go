package parquetio

import (
	"context"
	"encoding/json"
	"fmt"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/apache/arrow-go/v18/parquet"
	"github.com/apache/arrow-go/v18/parquet/compress"
	"github.com/apache/arrow-go/v18/parquet/pqarrow"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// EncodingOptions of files that are written; nil means defaults.
type EncodingOptions struct {
	// Compression is "zstd" (default), "snappy", "gzip", "lz4_raw" or "none".
	Compression string `json:"compression,omitempty" doc:"zstd (default), snappy, gzip, lz4_raw or none" enum:"zstd|snappy|gzip|lz4_raw|none"`
	// Level of zstd (1 to 22) or gzip (1 to 9); 0 means the codec's default.
	Level int `json:"level,omitempty" doc:"of zstd (1 to 22) or gzip (1 to 9); default: the codec's"`
	// A row group ends at whichever comes first: encoded bytes (default 64 MiB) or
	// rows (default no limit).
	RowGroupBytes int64 `json:"row_group_bytes,omitempty" doc:"encoded bytes of a row group; default 64 MiB"`
	RowGroupRows  int64 `json:"row_group_rows,omitempty" doc:"most rows of a row group; default: no limit"`
	// PageBytes is the size of a page before compression; default 64 KiB. Readers
	// skip whole pages.
	PageBytes int64 `json:"page_bytes,omitempty" doc:"size of a page before compression; default 64 KiB"`
	// NoStatistics leaves out minima and maxima, of row groups and of pages.
	NoStatistics bool `json:"no_statistics,omitempty" doc:"leave out minima and maxima, of row groups and of pages"`
	// Bloom names top-level columns that get a bloom filter.
	Bloom []string `json:"bloom,omitempty" doc:"columns that get a bloom filter"`
}

const (
	defaultRowGroupBytes = 64 << 20
	defaultPageBytes     = 64 << 10
	leastPage            = 8 << 10
	maxPlainText         = 64 // average bytes from which text gets no dictionary
	maxWriteBytes        = 8 << 20
)

var codecs = map[string]compress.Compression{
	"zstd": compress.Codecs.Zstd, "snappy": compress.Codecs.Snappy, "gzip": compress.Codecs.Gzip,
	"lz4_raw": compress.Codecs.Lz4Raw, "none": compress.Codecs.Uncompressed,
}

// Encoding writes Parquet. It implements driver.Encoding. Floats, binary and long
// text are written without dictionary. The Arrow schema is stored only where
// Parquet's types cannot express it. Dictionaries are written as their values.
type Encoding struct {
	o     EncodingOptions // with defaults
	given EncodingOptions
	most  int64 // see Frugal; 0: no limit
}

// NewEncoding checks the options.
func NewEncoding(o *EncodingOptions) (*Encoding, error) {
	e := new(Encoding)
	if o != nil {
		e.given = *o
	}
	e.o = e.given
	d := &e.o
	if d.Compression == "" {
		d.Compression = "zstd"
	}
	if d.RowGroupBytes == 0 {
		d.RowGroupBytes = defaultRowGroupBytes
	}
	if d.PageBytes == 0 {
		d.PageBytes = defaultPageBytes
	}
	top := map[string]int{"zstd": 22, "gzip": 9}[d.Compression]
	switch _, ok := codecs[d.Compression]; {
	case !ok:
		return nil, fault.New(fault.Invalid, "compression: %q is unknown; use zstd, snappy, gzip, lz4_raw or none", d.Compression)
	case d.Level != 0 && top == 0:
		return nil, fault.New(fault.Invalid, "level: %s has no levels", d.Compression)
	case d.Level < 0 || d.Level > top:
		return nil, fault.New(fault.Invalid, "level: %d is not one of %s, 1 to %d", d.Level, d.Compression, top)
	case d.RowGroupBytes < 0 || d.RowGroupRows < 0:
		return nil, fault.New(fault.Invalid, "row_group_bytes and row_group_rows must not be negative")
	case d.PageBytes < 1<<10 || d.PageBytes > 64<<20:
		return nil, fault.New(fault.Invalid, "page_bytes: %d is not between 1 KiB and 64 MiB", d.PageBytes)
	}
	return e, nil
}

// OpenEncoding rebuilds an encoding from its Config.
func OpenEncoding(config json.RawMessage) (*Encoding, error) {
	var o EncodingOptions
	if err := unmarshal(config, &o); err != nil {
		return nil, err
	}
	return NewEncoding(&o)
}

// Frugal implements driver.FrugalEncoding: pages and dictionaries are smaller.
func (e *Encoding) Frugal(most int64) driver.Encoding {
	f := *e
	f.most = max(most, 1)
	return &f
}

// Kind is "parquet".
func (e *Encoding) Kind() string { return Kind }

// Extension is ".parquet".
func (e *Encoding) Extension() string { return ".parquet" }

// Config returns the options.
func (e *Encoding) Config() json.RawMessage {
	b, err := json.Marshal(&e.given)
	if err != nil {
		panic(err) // plain data
	}
	return b
}

// Check implements driver.Encoding.
func (e *Encoding) Check(schema *arrow.Schema) error {
	_, err := e.writable(schema)
	if err != nil {
		return err
	}
	for _, b := range e.o.Bloom {
		if !schema.HasField(b) {
			return fault.New(fault.Invalid, "bloom: there is no such column").At(fault.Place{Column: b})
		}
	}
	return nil
}

// writable returns the schema as it is written: of its metadata driver.PartitionTypes alone, of those of fields what extension types say.
func (e *Encoding) writable(schema *arrow.Schema) (*arrow.Schema, error) {
	if schema.NumFields() == 0 {
		return nil, fault.New(fault.Invalid, "a Parquet file needs at least one column")
	}
	seen := map[string]bool{}
	fields := make([]arrow.Field, schema.NumFields())
	for i, f := range schema.Fields() {
		at := fault.Place{Column: f.Name}
		if seen[f.Name] {
			return nil, fault.New(fault.Invalid, "two columns have this name").At(at)
		}
		seen[f.Name] = true
		if err := writableType(f.Type, f.Nullable); err != nil {
			return nil, fault.Wrap(err, at)
		}
		fields[i] = arrow.Field{Name: f.Name, Type: f.Type, Nullable: f.Nullable, Metadata: extensionOnly(f.Metadata)}
		one := arrow.NewSchema([]arrow.Field{{Name: f.Name, Type: asWritten(f.Type), Nullable: f.Nullable}}, nil)
		if err := convertible(one); err != nil {
			return nil, fault.New(fault.Invalid, "type %s cannot be written as Parquet: %w", typename.Name(f.Type), err).At(at)
		}
	}
	var meta *arrow.Metadata
	if types, ok := schema.Metadata().GetValue(driver.PartitionTypes); ok {
		m := arrow.NewMetadata([]string{driver.PartitionTypes}, []string{types})
		meta = &m
	}
	return arrow.NewSchema(fields, meta), nil
}

func convertible(s *arrow.Schema) (err error) {
	defer recovered(&err, "no equivalent")
	_, err = pqarrow.ToParquet(s, parquet.NewWriterProperties(), pqarrow.DefaultWriterProps())
	return err
}

// writableType refuses what arrow-go would lose or fail on only when it writes.
func writableType(t arrow.DataType, nullable bool) error {
	bad := func(why string) error {
		return fault.New(fault.Invalid, "type %s cannot be written as Parquet%s", typename.Name(t), why)
	}
	switch t := t.(type) {
	case *arrow.NullType:
		if !nullable {
			return bad(": it must be nullable")
		}
	case *arrow.StructType:
		if t.NumFields() == 0 {
			return bad(": it has no fields")
		}
		for _, f := range t.Fields() {
			if err := writableType(f.Type, f.Nullable); err != nil {
				return err
			}
		}
	case *arrow.MapType:
		for _, f := range []arrow.Field{t.KeyField(), t.ItemField()} {
			if err := writableType(f.Type, f.Nullable); err != nil {
				return err
			}
		}
	case *arrow.ListType, *arrow.LargeListType, *arrow.FixedSizeListType:
		f := t.(arrow.ListLikeType).ElemField()
		return writableType(f.Type, f.Nullable)
	case *arrow.DictionaryType:
		return writableType(t.ValueType, nullable)
	case *driver.Unreadable:
		return t.Err()
	case arrow.ExtensionType:
		return writableType(t.StorageType(), nullable)
	case *arrow.FixedSizeBinaryType:
		if t.ByteWidth <= 0 {
			return bad(": its values have no bytes")
		}
	case *arrow.Decimal32Type:
		return decimalDigits(bad, t, 9)
	case *arrow.Decimal64Type:
		return decimalDigits(bad, t, 18)
	case *arrow.Decimal128Type:
		return decimalDigits(bad, t, 38)
	case *arrow.Decimal256Type:
		return decimalDigits(bad, t, maxDigits)
	case *arrow.StringViewType, *arrow.BinaryViewType, *arrow.ListViewType, *arrow.LargeListViewType,
		*arrow.RunEndEncodedType, *arrow.SparseUnionType, *arrow.DenseUnionType,
		*arrow.MonthIntervalType, *arrow.DayTimeIntervalType, *arrow.MonthDayNanoIntervalType:
		return bad("; cast it first")
	}
	return nil
}

func decimalDigits(bad func(string) error, t arrow.DecimalType, most int32) error {
	if p, s := t.GetPrecision(), t.GetScale(); p < 1 || p > most || s < 0 || s > p {
		return bad(fmt.Sprintf(": it must have 1 to %d digits, and 0 to as many of them behind the point; cast it to such a decimal, double or string", most))
	}
	return nil
}

// extensionOnly is what a field's metadata say of extension types.
func extensionOnly(m arrow.Metadata) arrow.Metadata {
	name, ok := m.GetValue(driver.ExtensionName)
	if !ok {
		return arrow.Metadata{}
	}
	meta, _ := m.GetValue(driver.ExtensionMetadata)
	return extension(name, meta)
}

// stored reports whether the Arrow schema must be kept beside Parquet's.
func stored(s *arrow.Schema) bool {
	pq, err := pqarrow.ToParquet(s, parquet.NewWriterProperties(), pqarrow.DefaultWriterProps())
	if err != nil {
		return true
	}
	back, err := pqarrow.FromParquet(pq, nil, nil)
	if err != nil {
		return true
	}
	for i, f := range s.Fields() {
		if f.HasMetadata() || marked(f.Type) || !arrow.TypeEqual(plainType(f.Type), back.Field(i).Type) {
			return true
		}
	}
	return false
}

// NewEncoder implements driver.Encoding. Encoded pages of the open row group are
// held in memory from alloc.
func (e *Encoding) NewEncoder(w io.Writer, schema *arrow.Schema, alloc memory.Allocator) (driver.Encoder, error) {
	if err := e.Check(schema); err != nil {
		return nil, err
	}
	s, err := e.writable(schema)
	if err != nil {
		return nil, err
	}
	if alloc == nil {
		alloc = memory.DefaultAllocator
	}
	return &encoder{o: &e.o, most: e.most, schema: s, arena: newArena(alloc), out: countingWriter{w: w}}, nil
}

// Joins implements driver.JoiningEncoding.
func (e *Encoding) Joins(*arrow.Schema) bool { return true }

// Join implements driver.JoiningEncoding.
func (e *Encoding) Join(ctx context.Context, w io.Writer, o *driver.JoinOptions) error {
	src := New(Options{Options: fileset.JoinOptions(o, nil)})
	frugal := e.Frugal(o.Most)
	return fileset.JoinRows(ctx, src, func(s *arrow.Schema, alloc memory.Allocator) (driver.Encoder, error) {
		return frugal.NewEncoder(w, s, alloc)
	}, o)
}
