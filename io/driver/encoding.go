package driver

import (
	"encoding/json"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// PartitionTypes is the key of a schema's metadata that encoders of formats with metadata keep in their files: the
// columns that the folders of a file give it, as a JSON object of names to names of types.
const PartitionTypes = "penstock.partition_types"

// Encoding is a file format that can be written, with its options. Immutable.
type Encoding interface {
	// Kind is the name of the format in specs: "parquet", "csv", "json", "ipc".
	Kind() string
	// Extension of the files, with the dot: ".parquet", ".csv.gz".
	Extension() string
	// Config returns the options as JSON; equal options give equal bytes.
	Config() json.RawMessage
	// Check reports whether the format can hold schema: an Invalid error names
	// the column.
	Check(schema *arrow.Schema) error
	// NewEncoder starts a file on w. Column memory held back by the encoder comes
	// from alloc.
	NewEncoder(w io.Writer, schema *arrow.Schema, alloc memory.Allocator) (Encoder, error)
}

// Encoder writes one file. Not safe for concurrent use. Exactly one of Close or
// Abort ends it. The same batches give the same bytes.
type Encoder interface {
	// Write borrows rec.
	Write(rec arrow.RecordBatch) error
	// Size estimates the size of the file if it were closed now: bytes written
	// plus what is buffered, encoded.
	Size() int64
	// Close completes the file; it does not close the io.Writer.
	Close() error
	// Abort frees what the encoder holds; the file is not valid.
	Abort()
}

// Cutter is an Encoder that collects rows before it writes them.
type Cutter interface {
	// Held is about the memory of the rows collected, in bytes: of the allocator and beyond.
	Held() int64
	// Outside is the part of it beyond the allocator.
	Outside() int64
	// Cut makes the next Write write out first what is held.
	Cut()
}

// FrugalEncoding is an Encoding whose encoders can do with less memory.
type FrugalEncoding interface {
	Encoding
	// Frugal is the same encoding, whose encoders hold about most bytes outside the allocator, as far as
	// they can: where many are open at once. The rows in the files are the same.
	Frugal(most int64) Encoding
}
