// Package driver holds the interfaces that a format implements: [Source],
// [Table] and [Reader] to be read, [Encoding] and [Encoder] to be written.
//
// It is for implementers. Users build datasets with package dataset; the engine
// calls drivers. io/drivertest is the conformance suite that every driver runs.
//
// A Source is a description (paths and options); it does no I/O until Resolve.
// A Table is what was found: a schema and the canonical list of splits. A Reader
// is one pass over one split.
package driver

import (
	"context"
	"encoding/json"
	"slices"
	"sync/atomic"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Source describes rows that can be found and read. Immutable; safe for
// concurrent use.
type Source interface {
	// Kind is the name of the format in specs and plans: "parquet", "csv", "range".
	Kind() string
	// Config returns everything that defines what is read (paths, options) as
	// one JSON object, such that a [Format] of the same kind can rebuild the
	// source. A source that lives in this process only (in-memory records, a
	// generator function) returns an Unsupported error.
	Config() (json.RawMessage, error)
	// Resolve lists the splits and resolves the schema. It reads listings,
	// footers and, for formats without a schema, the first bytes of files; never
	// data. The caller owns the Table until Close. A missing path is a NotFound
	// error naming it; no file at all is one too.
	Resolve(ctx context.Context, o *ResolveOptions) (Table, error)
}

// Placed is implemented by sources of files.
type Placed interface {
	// Meets returns the first of the source's paths, as the user wrote it, that shares files with folder, a path
	// or URL to write to: it would give files that are written below folder, or those that it names lie there. root is
	// the folder of the path. Links of local paths are followed. "", "" where none does.
	Meets(folder string) (path, root string)
}

// Format rebuilds sources from their configuration: the decoding side of
// Source.Config.
type Format struct {
	Kind string
	Open func(config json.RawMessage) (Source, error)
}

// ResolveOptions may be nil.
type ResolveOptions struct {
	// Files is a predicate over hive partition columns. Files that it excludes by
	// their partition values are no splits, and are not opened: columns that only they
	// have are missing, but types of partition columns are those without a predicate.
	// Terms over other columns are ignored.
	Files Predicate
	// Concurrency bounds parallel requests while listing and reading footers;
	// 0 means 32.
	Concurrency int
}

// Table is a resolved source. Immutable; safe for concurrent use. Once resolved,
// a file that changes is an error of the read that notices it (pinned by size
// and ETag or modification time).
type Table interface {
	// Schema of every batch, before projection.
	Schema() *arrow.Schema
	// Splits in canonical order: by file, then position. The list and every
	// Split depend on the data alone, not on options of the scan. The caller
	// must not modify it.
	Splits() []Split
	// Open starts a pass over split i (index into Splits). ctx bounds this call and
	// no later one.
	Open(ctx context.Context, i int, o *ScanOptions) (Reader, error)
	// Fingerprint identifies the data: paths below the source's root, sizes and
	// ETags (for local files a hash of the footer, for text of the first and last
	// 64 KiB). Equal data gives equal fingerprints on any machine. Sources without
	// identity (a generator function) return Unsupported.
	Fingerprint(ctx context.Context) (string, error)
	// Close frees handles and caches. No Reader may be open. Idempotent.
	Close() error
}

// Pruner is implemented by tables that can tell from metadata (statistics, bloom
// filters) that a split holds no row for which p is true. A pruned split stays
// in the list; opened with the same predicate, it yields nothing and reads
// nothing.
type Pruner interface {
	// Keep reports, per split, whether it may hold a matching row.
	Keep(ctx context.Context, p Predicate) ([]bool, error)
}

// Sizer is implemented by tables that know what a projection costs.
type Sizer interface {
	// Size returns for split i the bytes to be fetched and the expected bytes of
	// decoded Arrow memory for these top-level columns (nil: all).
	Size(i int, columns []string) (fetch, decoded int64)
}

// Seeker is implemented by tables whose readers begin in the middle of a split
// (ScanOptions.FromRow) about as fast as at its begin: where splits are fewer than CPUs, parts of one
// are read at once.
type Seeker interface {
	// Seeks reports whether that holds for split i, whose Rows are known.
	Seeks(i int) bool
}

// Stopper is implemented by tables whose readers heed ScanOptions.StopEvery.
type Stopper interface{ Stops() bool }

// Offsetter is implemented by tables of text, where rows are found by reading and
// bytes stand for them: a split is known by its bytes before its rows are.
type Offsetter interface {
	// Offsets reports whether split i, whose Rows are -1, can say at which of its
	// bytes every row begins (ScanOptions.Offsets) and be entered at a byte
	// (FromByte). Split.Bytes is then exactly the length of the split's byte range,
	// and a row belongs to the range that holds its first byte, so every offset is
	// in [0, Bytes), though the last row may end behind it. It is false where that
	// is not known from metadata: compressed files, JSON arrays, CSV whose fields
	// hold line breaks. FromByte and Offsets are then Invalid errors of Open.
	Offsets(i int) bool
}

// Partitioned is implemented by tables whose files lie in key=value folders:
// conditions on these columns decide which files are listed (ResolveOptions.Files).
type Partitioned interface{ PartitionColumns() []string }

// Remote is implemented by tables whose reads may wait for a network: more splits
// are read at once than there are CPUs.
type Remote interface{ Remote() bool }

// Metered is implemented by tables that read files for no Reader: to be resolved, to prune.
type Metered interface {
	// TakeRead returns the bytes read so since the last call. The run that asks first counts them as its own.
	TakeRead() int64
}

// Split is the unit of I/O and of recovery: a row group, a byte range, a frame,
// a 65,536-row slice of generated data.
type Split struct {
	ID    string // unique in the table, stable across runs and machines: "a/b.parquet#3"
	File  string // path or URL for messages; "" where there is no file
	Index int64  // ordinal of the row group, frame or byte range in the file
	Rows  int64  // -1 if unknown until read
	Bytes int64  // encoded bytes of all columns; 0 if unknown
}

// ScanOptions may be nil: all columns, all rows, default batches, Go memory.
type ScanOptions struct {
	// Columns are the top-level columns wanted, in this order; nil means all of
	// the schema. Empty and not nil: batches without columns, whose NumRows counts.
	Columns []string
	// Predicate is a hint: rows for which it is not true may be left out, and must
	// not be relied on to be. It may name columns outside Columns.
	Predicate Predicate
	// Limit is a hint: no more than this many rows (after Predicate) will be used;
	// 0 means no limit.
	Limit int64
	// FromRow skips that many rows of the split, decoding as few as possible.
	FromRow int64
	// FromByte leaves out the rows that begin before this byte of the split, looking for
	// no more in them than their ends: they are numbered (Batch.Row goes on counting
	// from the split's begin), and one that does not parse is not noticed. For splits
	// of which Offsetter says yes.
	FromByte int64
	// Offsets asks for Batch.Offsets. For splits of which Offsetter says yes.
	Offsets bool
	// BatchRows and BatchBytes bound a batch: it ends at whichever comes first,
	// and holds at least one row. 0 means 16384 rows and 4 MiB. The boundaries are
	// a function of the split, the columns, the predicate and these two: a second
	// pass gives the same batches.
	BatchRows  int
	BatchBytes int64
	// Gaps allows batches of which the predicate left out rows in their midst: Batch.Rows. Without it what is left out
	// lies between batches only.
	Gaps bool
	// StopEvery, if not 0, ends batches also before every row that is StopRow or lies a multiple of StopEvery from it: there
	// whoever reads takes a pause. Only tables that are Stoppers heed it.
	StopRow, StopEvery int64
	// AheadBytes, if not 0, is a hint for how many encoded bytes a reader may hold that are not decoded
	// yet: less than it would by itself, for many readers that are open at once.
	AheadBytes int64
	// Alloc provides all column memory; nil means memory.DefaultAllocator. Its
	// Allocate may block while memory is short.
	Alloc memory.Allocator
	// Own asks for batches that may be used long after they were read, on whatever goroutine: no memory of theirs is that of a file
	// that is mapped, which somebody may write to or cut short.
	Own bool
	// OnBadRow is called for a row whose bytes do not parse, with an error of code
	// RowError or Corrupt that names file, split and row. If it returns nil the row is left
	// out and reading goes on; otherwise Next returns what it returned. nil: fail.
	// A left-out row keeps its number. In columnar formats only a value that its type does not hold
	// (text that is not UTF-8) is of one row; other damage is an error of Next.
	OnBadRow func(err error) error
	// Stats, if not nil, is added to while reading.
	Stats *ScanStats
}

// ScanStats counts what a scan did. Safe for concurrent use.
type ScanStats struct {
	BytesRead atomic.Int64 // bytes fetched from storage
	Requests  atomic.Int64 // reads issued to storage, retries and hedges included
	Retries   atomic.Int64 // of those, repeated after an error
	Rows      atomic.Int64 // rows handed out
	Pruned    atomic.Int64 // rows never decoded because of the predicate
}

// Batch is a run of rows that are neighbours in the split, but for those that the predicate left out.
type Batch struct {
	Record arrow.RecordBatch
	Row    int64 // position in the split of the first row
	// Rows are the positions of all rows, ascending, where some between them are left out; nil: Row and those after it. nil
	// unless ScanOptions.Gaps. They are the caller's, in Go memory.
	Rows []int64
	// Offsets are the bytes of the split at which the rows begin, ascending: one per
	// row, the caller's, in Go memory. nil unless ScanOptions.Offsets.
	Offsets []int64
}

// End is the position behind the last row.
func (b *Batch) End() int64 {
	if n := len(b.Rows); n > 0 {
		return b.Rows[n-1] + 1
	}
	return b.Row + b.Record.NumRows()
}

// Before is the number of rows whose position is before row.
func (b *Batch) Before(row int64) int64 {
	if b.Rows != nil {
		n, _ := slices.BinarySearch(b.Rows, row)
		return int64(n)
	}
	return min(max(row-b.Row, 0), b.Record.NumRows())
}

// Slice is rows [i, j), i < j, of b with a reference of its own.
func (b *Batch) Slice(i, j int64) Batch {
	s := Batch{Record: b.Record.NewSlice(i, j), Row: b.Row + i}
	if b.Rows != nil {
		s.Rows, s.Row = b.Rows[i:j:j], b.Rows[i]
	}
	if b.Offsets != nil {
		s.Offsets = b.Offsets[i:j:j]
	}
	return s
}

// Reader is one pass over one split. Not safe for concurrent use. Calls of Next may
// have different contexts, and may lie any time apart: what a reader reads ahead
// is bound to none of them, and is ended and joined by Close.
type Reader interface {
	// Next returns a batch whose Record the caller must Release, or io.EOF after
	// the last. Records are never empty. After an error every call returns it; after
	// Close it is an error.
	// It obeys ctx within a second.
	Next(ctx context.Context) (Batch, error)
	// Close frees everything; batches handed out stay valid until released.
	// Idempotent; must be called also after io.EOF.
	Close() error
}

// Rester is a Reader that is cheap to hold while nobody calls it. Both are called between calls of Next.
type Rester interface {
	Reader
	// Kept is the memory that Shrink would give back, in bytes.
	Kept() int64
	// Shrink gives back what can be read from local disk or decoded again, at that cost.
	Shrink()
}

// Defaults for ScanOptions.
const (
	DefaultBatchRows  = 16384
	DefaultBatchBytes = 4 << 20
)

// WithDefaults returns a copy of o (nil allowed) with defaults filled in.
func (o *ScanOptions) WithDefaults() ScanOptions {
	var r ScanOptions
	if o != nil {
		r = *o
	}
	if r.BatchRows <= 0 {
		r.BatchRows = DefaultBatchRows
	}
	if r.BatchBytes <= 0 {
		r.BatchBytes = DefaultBatchBytes
	}
	if r.Alloc == nil {
		r.Alloc = memory.DefaultAllocator
	}
	if r.Stats == nil {
		r.Stats = new(ScanStats)
	}
	return r
}
