package ipcio

import (
	"encoding/json"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/ipc"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/internal/mem"
	"github.com/penstock-data/penstock/internal/strict"
	"github.com/penstock-data/penstock/io/driver"
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

// Check lets every type pass: this is Arrow's own format.
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
	f, err := ipc.NewFileWriter(&enc.w, opts...)
	if err != nil {
		return nil, driver.Errorf(driver.Invalid, "ipc: %w", err)
	}
	enc.ipc = f
	return enc, nil
}

type encoder struct {
	ipc interface {
		Write(arrow.RecordBatch) error
		Close() error
	}
	w counter
}

// Write writes one frame.
func (e *encoder) Write(rec arrow.RecordBatch) error { return e.fail(e.ipc.Write(rec)) }

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
