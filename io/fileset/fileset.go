// Package fileset is what all file formats share: from the user's paths to a
// canonical list of files, the schema they have in common, hive partitions, path
// and row-number columns, compression, and whole lines out of byte ranges.
//
// It is for formats in this module; nothing of it reaches users but [Options],
// which every format's options embed.
package fileset

import (
	"context"
	"io"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
)

// Options are common to all file formats.
type Options struct {
	// Paths are files, folders (read recursively) and globs (with **), local or
	// bucket URLs. Together they are read in byte order of path, each file once.
	Paths []string `json:"paths"`
	// Extensions of the files that folders and globs give; nil means the format's. A file named
	// outright is always read. [""] means any.
	Extensions []string `json:"extensions,omitempty"`
	// Partitions is "hive" (default: key=value folders become columns) or "none".
	Partitions string `json:"partitions,omitempty"`
	// PartitionTypes overrides what values suggest (int64, date32 or string), by
	// column, in the names of expressions: "int", "string", "date", ...
	PartitionTypes map[string]string `json:"partition_types,omitempty"`
	// PathColumn and RowColumn, if set, name extra columns: the file's path
	// (string) and the row's number in its file (int64; where splits of unknown
	// rows precede it, an Unsupported error at plan time).
	PathColumn string `json:"path_column,omitempty"`
	RowColumn  string `json:"row_column,omitempty"`
	// Hidden includes files and folders that begin with '_' or '.'.
	Hidden bool `json:"hidden,omitempty"`
}

// File is one listed file.
type File struct {
	Path   string // as a user would write it
	Rel    string // below the root that its path, folder or glob has: identity of the data
	Info   blobio.Info
	bucket *blobio.Bucket
}

// Set is a listed set of files, in canonical order. Immutable after List and
// safe for concurrent use.
type Set struct{ Files []File }

// List lists files in parallel. No path, a path that does not exist, or no file
// at all is a NotFound error naming it.
func List(ctx context.Context, o *Options, ext []string, ro *driver.ResolveOptions) (*Set, error) {
	panic("stub")
}

// Object opens file i, counting reads into s (may be nil).
func (s *Set) Object(i int, st *driver.ScanStats) *blobio.Object { panic("stub") }

// Fingerprint hashes kind, config and for every file Rel, Size and ETag; for
// local files hash(ctx, i) stands for the ETag.
func (s *Set) Fingerprint(ctx context.Context, kind string, config []byte, hash func(ctx context.Context, i int) ([]byte, error)) (string, error) {
	panic("stub")
}

// EdgeHash hashes the first and last 64 KiB of file i: the identity of text.
func (s *Set) EdgeHash(ctx context.Context, i int) ([]byte, error) { panic("stub") }

// Close closes the buckets. Idempotent.
func (s *Set) Close() error { panic("stub") }

// Schema unifies the schemas of the files (files[i] belongs to Files[i]; equal
// ones may share a pointer) and appends partition, path and row columns. The rules: columns in order
// of first appearance; a column that a file lacks is filled with null; numbers widen where
// no value is lost (int to wider int, float32 to float64, int32 to float64), date32 to timestamp no; everything
// else that differs is an Invalid error naming file, column and both types.
func (s *Set) Schema(files []*arrow.Schema) (*arrow.Schema, error) { panic("stub") }

// Adapter turns what a file holds into what the scan wants.
type Adapter struct {
	// FileColumns are the columns to read from the file, in its own order.
	FileColumns []string
	// Predicate is the part of the scan's predicate over columns of the file, literals converted
	// to the file's types; Never says that partition values exclude the whole file.
	Predicate driver.Predicate
	Never     bool
}

// Adapter prepares file i: schema is the table's (from Schema), file the file's
// own, columns and p as in driver.ScanOptions. firstRow is the row number in the file of row 0 of the split
// (for RowColumn).
func (s *Set) Adapter(i int, schema, file *arrow.Schema, columns []string, p driver.Predicate, firstRow int64) (*Adapter, error) {
	panic("stub")
}

// Apply makes the wanted record from one that holds FileColumns (rows rows of it, as there
// may be no column); row is the split position of its first row. Borrows rec, returns a reference.
func (a *Adapter) Apply(rec arrow.RecordBatch, row int64, alloc memory.Allocator) (arrow.RecordBatch, error) {
	panic("stub")
}

// Compression of a file by its name: "gzip" (.gz), "zstd" (.zst, .zstd) or "".
func Compression(name string) string { panic("stub") }

// Decompress wraps r. Output is bounded by the caller's reads; a decoder never
// allocates more than a window of 64 MiB.
func Decompress(kind string, r io.Reader) (io.ReadCloser, error) { panic("stub") }

// Compress is the other direction, for encoders: level 0 means default.
func Compress(kind string, level int, w io.Writer) (io.WriteCloser, error) { panic("stub") }

// DefaultSplitBytes is the size of byte-range splits of text formats.
const DefaultSplitBytes = 32 << 20

// MaxLine bounds one line (or one JSON value, one CSV record) of text: 256 MiB.
const MaxLine = 256 << 20

// Ranges cuts a file of size bytes into byte ranges of about splitBytes (0: the default), at least one.
func Ranges(size, splitBytes int64) []blobio.Range { panic("stub") }

// Chunks reads whole lines: those whose first byte lies in [r.Off, r.Off+r.Len)
// of the (decompressed) file. A line ends with \n, which is part of it; the last may lack it.
type Chunks struct{}

// OpenChunks starts reading. Where the file is compressed r must be the whole
// file. Chunks are about chunkBytes (0: 1 MiB), never cut inside a line.
func (s *Set) OpenChunks(ctx context.Context, i int, r blobio.Range, chunkBytes int, st *driver.ScanStats) (*Chunks, error) {
	panic("stub")
}

// Next returns whole lines, valid until the next call, and the offset in the file (decompressed)
// of their first byte; io.EOF at the end. A line over MaxLine is a Corrupt error.
func (c *Chunks) Next(ctx context.Context) (lines []byte, off int64, err error) { panic("stub") }
func (c *Chunks) Close() error                                                  { panic("stub") }
