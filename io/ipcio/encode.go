package ipcio

import (
	"context"
	"encoding/json"
	"io"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/gather"
	"github.com/penstock-data/penstock/internal/mem"
	"github.com/penstock-data/penstock/internal/strict"
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

// Check lets every type pass: this is Arrow's own format. In files, which have one dictionary per column
// where batches may have different ones, columns of dictionaries are written as their values.
func (*encoding) Check(*arrow.Schema) error { return nil }

func (e *encoding) NewEncoder(w io.Writer, schema *arrow.Schema, alloc memory.Allocator) (driver.Encoder, error) {
	opts := []ipc.Option{ipc.WithSchema(schema), ipc.WithAllocator(mem.Zeroed{Allocator: alloc})}
	switch e.o.Compression {
	case "lz4":
		opts = append(opts, ipc.WithLZ4())
	case "zstd":
		opts = append(opts, ipc.WithZstd())
	}
	enc := &encoder{w: counter{w: w}}
	if e.o.Layout == "stream" {
		enc.ipc = ipc.NewWriter(&enc.w, opts...)
		return enc, nil
	}
	if s := valuesSchema(schema); s != schema {
		enc.schema, enc.alloc = s, alloc
		opts[0] = ipc.WithSchema(s)
	}
	f, err := ipc.NewFileWriter(&enc.w, opts...)
	if err != nil {
		return nil, driver.Errorf(driver.Invalid, "ipc: %w", err)
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
	schema *arrow.Schema // without dictionaries; nil: there are none, or they stay
	alloc  memory.Allocator
}

// Write writes one frame.
func (e *encoder) Write(rec arrow.RecordBatch) error {
	if e.schema == nil {
		return e.fail(e.ipc.Write(rec))
	}
	cols := rec.Columns()
	cols = append(cols[:0:0], cols...)
	for i, c := range cols {
		if d, ok := c.(*array.Dictionary); ok {
			v, err := gather.Values(e.alloc, d)
			if err != nil {
				return driver.Wrap(err, driver.Place{Column: e.schema.Field(i).Name})
			}
			defer v.Release()
			cols[i] = v
		}
	}
	plain := array.NewRecordBatch(e.schema, cols, rec.NumRows())
	defer plain.Release()
	return e.fail(e.ipc.Write(plain))
}

// valuesSchema is s with columns of dictionaries as their values; s itself where there are none.
func valuesSchema(s *arrow.Schema) *arrow.Schema {
	fields, some := s.Fields(), false
	for i := range fields {
		if d, ok := fields[i].Type.(*arrow.DictionaryType); ok {
			fields[i].Type, some = d.ValueType, true
		}
	}
	if !some {
		return s
	}
	meta := s.Metadata()
	return arrow.NewSchema(fields, &meta)
}

func (e *encoder) Size() int64  { return e.w.n }
func (e *encoder) Close() error { return e.fail(e.ipc.Close()) }

// Abort closes the writer, for what it holds, into nothing.
func (e *encoder) Abort() {
	e.w.w = io.Discard
	e.ipc.Close()
}

// fail prefers the error of the io.Writer to what the library makes of it.
func (e *encoder) fail(err error) error {
	if e.w.err != nil {
		return e.w.err
	}
	if err != nil {
		return driver.Errorf(driver.Invalid, "ipc: %w", err)
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
