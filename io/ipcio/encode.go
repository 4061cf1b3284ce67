package ipcio

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/mem"
	"github.com/penstock-data/penstock/internal/strict"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/fileset"
)

// EncodingOptions of files; nil means defaults.
type EncodingOptions struct {
	Layout      string `json:"layout,omitempty" doc:"file (default) or stream" enum:"file|stream"`
	Compression string `json:"compression,omitempty" doc:"of buffers: lz4, zstd or none (default)" enum:"none|lz4|zstd"`
}

// NewEncoding returns the encoding, or an Invalid error about its options.
func NewEncoding(o *EncodingOptions) (driver.Encoding, error) {
	var e encoding
	if o != nil {
		e.o = *o
	}
	if l := e.o.Layout; l != "" && l != "file" && l != "stream" {
		return nil, driver.Errorf(driver.Invalid, "ipc: the layout is %q; it must be file or stream", l)
	}
	if e.o.Compression == "none" {
		e.o.Compression = ""
	}
	if c := e.o.Compression; c != "" && c != "lz4" && c != "zstd" {
		return nil, driver.Errorf(driver.Invalid, "ipc: the compression is %q; it must be lz4, zstd or none", c)
	}
	return &e, nil
}

// OpenEncoding rebuilds an encoding from its Config.
func OpenEncoding(config json.RawMessage) (driver.Encoding, error) {
	var o EncodingOptions
	if err := strict.JSON("ipc", config, &o); err != nil {
		return nil, err
	}
	return NewEncoding(&o)
}

type encoding struct{ o EncodingOptions }

func (*encoding) Kind() string { return "ipc" }

func (e *encoding) Extension() string {
	if e.o.Layout == "stream" {
		return ".arrows"
	}
	return ".arrow"
}

func (e *encoding) Config() json.RawMessage {
	b, err := json.Marshal(e.o)
	if err != nil {
		panic(err) // two strings
	}
	return b
}

// Check refuses types that others could not read. In files, which have one dictionary per column
// where batches may have different ones, dictionaries are written as their values.
func (*encoding) Check(s *arrow.Schema) error { return checkSchema(s) }

func (e *encoding) NewEncoder(w io.Writer, schema *arrow.Schema, alloc memory.Allocator) (driver.Encoder, error) {
	if err := e.Check(schema); err != nil {
		return nil, err
	}
	enc := &encoder{w: counter{w: w}, schema: schema, alloc: alloc, plain: e.o.Layout != "stream"}
	if enc.plain {
		enc.schema = valuesSchema(enc.schema)
	}
	enc.schema = driver.WithExtensions(enc.schema)
	opts := []ipc.Option{ipc.WithSchema(enc.schema), ipc.WithAllocator(mem.Zeroed{Allocator: alloc})}
	switch e.o.Compression {
	case "lz4":
		opts = append(opts, ipc.WithLZ4())
	case "zstd":
		opts = append(opts, ipc.WithZstd())
	}
	if !enc.plain {
		enc.ipc = ipc.NewWriter(&enc.w, opts...)
		return enc, nil
	}
	f, err := ipc.NewFileWriter(&enc.w, opts...)
	if err != nil {
		return nil, enc.fail("the file does not begin", err)
	}
	enc.ipc = f
	return enc, nil
}

// Joins implements driver.JoiningEncoding: dictionaries that files keep are read as their values.
func (e *encoding) Joins(schema *arrow.Schema) bool {
	if e.o.Layout != "stream" {
		schema = valuesSchema(schema)
	}
	return !slices.ContainsFunc(schema.Fields(), hasDictionary)
}

func hasDictionary(f arrow.Field) bool {
	t := f.Type
	if x, ok := t.(arrow.ExtensionType); ok {
		t = x.StorageType()
	}
	n, nested := t.(arrow.NestedType)
	return t.ID() == arrow.DICTIONARY || nested && slices.ContainsFunc(n.Fields(), hasDictionary)
}

// Join implements driver.JoiningEncoding.
func (e *encoding) Join(ctx context.Context, w io.Writer, o *driver.JoinOptions) error {
	src := New(Options{Options: fileset.JoinOptions(o, nil)})
	return fileset.JoinRows(ctx, src, func(s *arrow.Schema, alloc memory.Allocator) (driver.Encoder, error) {
		return e.NewEncoder(w, s, alloc)
	}, o)
}

type encoder struct {
	ipc interface {
		Write(arrow.RecordBatch) error
		Close() error
	}
	w      counter
	schema *arrow.Schema // as written
	plain  bool          // without dictionaries
	alloc  memory.Allocator
	frames int64
	rows   int64
}

// Write writes one frame.
func (e *encoder) Write(rec arrow.RecordBatch) error {
	for i, c := range rec.Columns() {
		if row, err := allowed.First(c.Data(), 0, int64(c.Len())); row >= 0 {
			return driver.Wrap(err, driver.Place{Row: fault.N(e.rows + row), Column: rec.ColumnName(i)})
		}
	}
	rec, err := e.written(rec)
	if err != nil {
		return err
	}
	defer rec.Release()
	if err := e.ipc.Write(rec); err != nil {
		return e.fail(fmt.Sprintf("record batch %d, of %d rows from row %d on, is not written", e.frames, rec.NumRows(), e.rows), err)
	}
	e.frames, e.rows = e.frames+1, e.rows+rec.NumRows()
	return nil
}

// written returns a reference to rec as it is written.
func (e *encoder) written(rec arrow.RecordBatch) (arrow.RecordBatch, error) {
	cols := slices.Clone(rec.Columns())
	if len(cols) != e.schema.NumFields() {
		return nil, driver.Errorf(driver.Invalid, "a batch has %d columns, the file %d", len(cols), e.schema.NumFields())
	}
	for i, c := range cols {
		f := e.schema.Field(i)
		at := driver.Place{Column: f.Name}
		if e.plain && coded(c.DataType()) {
			d, err := plainer{alloc: e.alloc}.flatten(c.Data())
			if err != nil {
				return nil, driver.Wrap(err, at)
			}
			cols[i] = array.MakeFromData(d)
			d.Release()
			defer cols[i].Release()
		}
		if have := cols[i].DataType(); !arrow.TypeEqual(have, f.Type) {
			return nil, driver.Errorf(driver.Invalid, "type is %s, the file has %s", typename.Name(have), typename.Name(f.Type)).At(at)
		}
	}
	return array.NewRecordBatch(e.schema, cols, rec.NumRows()), nil
}

// valuesSchema is s with columns that have dictionaries in plain types; s itself where there are none.
func valuesSchema(s *arrow.Schema) *arrow.Schema {
	fields, some := s.Fields(), false
	for i := range fields {
		if coded(fields[i].Type) {
			fields[i], some = plainField(fields[i]), true
		}
	}
	if !some {
		return s
	}
	meta := s.Metadata()
	return arrow.NewSchema(fields, &meta)
}

// coded reports whether there is a dictionary in a type.
func coded(t arrow.DataType) bool {
	return t.ID() == arrow.DICTIONARY || slices.ContainsFunc(children(t), func(f arrow.Field) bool { return coded(f.Type) })
}

func (e *encoder) Size() int64  { return e.w.n }
func (e *encoder) Close() error { return e.fail("the file does not end", e.ipc.Close()) }

// Abort closes the writer, for what it holds, into nothing.
func (e *encoder) Abort() {
	e.w.w = io.Discard
	e.ipc.Close()
}

// fail prefers the error of the io.Writer to what the library makes of it.
func (e *encoder) fail(what string, err error) error {
	if e.w.err != nil {
		return e.w.err
	}
	if err != nil {
		return driver.Errorf(driver.Invalid, "ipc: %s: %w", what, err)
	}
	return nil
}

type counter struct {
	w   io.Writer
	n   int64
	err error
}

func (c *counter) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n += int64(n)
	if err != nil {
		c.err = err
	}
	return n, err
}
