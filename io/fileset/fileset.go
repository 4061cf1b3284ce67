// Package fileset is what all file formats share: from the user's paths to a
// canonical list of files, the schema they have in common, hive partitions, path
// and row-number columns, compression, and whole lines out of byte ranges.
//
// It is for formats in this module; nothing of it reaches users but [Options],
// which every format's options embed.
//
// A format resolves with [List], [Set.Schema] and [Ranges]; it reads with
// [Set.Object] or [Set.OpenChunks] and hands every record to [Adapter.Apply].
package fileset

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"maps"
	"slices"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/typename"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
	"golang.org/x/sync/errgroup"
)

// Options are common to all file formats.
type Options struct {
	// Paths are files, folders (read recursively) and globs (with **), local or
	// bucket URLs, read in this order; what one of them gives is read in byte order of path. What
	// two of them give is read twice.
	// A glob gives files only, not what is below folders that it matches.
	Paths []string `json:"paths" doc:"files, folders (read recursively) and globs (with **), local or bucket URLs; read in this order, the files of each in byte order of path. A file that two of them give is read twice" required:"true"`
	// Extensions of the files that folders and globs give, case ignored; nil means
	// the format's, [""] any. A file named outright is always read, and so are the
	// files of a glob that ends in an extension of its own ("x/*.dat").
	Extensions []string `json:"extensions,omitzero" doc:"of the files that folders and globs give; default: the format's; [\"\"] means any"`
	// Partitions is "hive" (default: key=value folders become columns) or "none".
	// Folders that the user's path itself names count too. A column of the files that has the name of a
	// partition must have the partition's value in every row that is read.
	// Files that a filter on partitions excludes are not opened, and have no say in the columns of files.
	Partitions string `json:"partitions,omitempty" doc:"key=value folders: hive (default) makes columns of them, none does not. A column of that name in a file must have the folder's value in every row that is read. Files that a filter right behind the source excludes by such columns are not opened: columns that only they have are unknown, and types that are found in files are those of the others" enum:"hive|none"`
	// PartitionTypes overrides, by column, in the names of expressions ("int", "string", "date", ...), the types that
	// files say themselves (see driver.PartitionTypes; or by a column of that name), and of other files those that the
	// values suggest: integers, bool, dates, timestamps, else string. Folders that a filter
	// excludes are listed for what they suggest, unless the types of all partitions below them are here.
	PartitionTypes map[string]string `json:"partition_types,omitempty" doc:"types of partition columns; default: those that files which Penstock wrote say, or a column of that name in the files, else those that the values suggest: integers, bool, dates, timestamps, or string, which digits with a leading zero are, too, unless all values have two digits, as months. With those of all partitions below the folders that a filter excludes, these need not be listed"`
	// Types gives columns of files a type, by name, in the names of expressions. Each file is converted while it is read;
	// a value that the type does not hold is an error of the row. Text formats parse such a column as this type.
	Types map[string]string `json:"types,omitempty" doc:"column to type, e.g. {id: int64, at: \"timestamp[us, UTC]\"}; default: the type that the files have in common, of text what a sample suggests. Each file is converted while it is read, and a value that the type does not hold is an error with its file, row and column (of text: a bad row). Of json it adds columns that the sample lacks. docs/schemas.md says which types meet, and which are cast"`
	// PathColumn and RowColumn, if set, name extra columns: the file's path
	// (string) and the row's number in its file (int64; where splits of unknown
	// rows precede it, an Unsupported error at plan time).
	PathColumn string `json:"path_column,omitempty" doc:"name of an extra column: the file's path"`
	RowColumn  string `json:"row_column,omitempty" doc:"name of an extra column: the row's number in its file. Refused for a CSV, JSON lines or text file of more than split_bytes, whose rows are not counted: raise that"`
	// Hidden includes files and folders that begin with '_' or '.'. Otherwise only
	// those are read that a path or a part of a glob names with its first byte;
	// "_key=value" folders are never hidden.
	Hidden bool `json:"hidden,omitempty" doc:"read files and folders that begin with _ or ., too"`
	// Columns are the columns that the table has, in this order; nil means all. Only they are read. Partition, path and row columns
	// are among those that can be named.
	Columns []string `json:"columns,omitempty" doc:"columns to read, in this order; default: all"`
	// MaxGrowth bounds what a file may become, in bytes of rows for each byte of the file, beyond a
	// GiB (of text 64 MiB); 0 means DefaultMaxGrowth, of text DefaultTextGrowth. More is a Corrupt
	// error of the read: see Growth.
	MaxGrowth int64 `json:"max_growth,omitempty" doc:"most bytes of decoded rows for each byte of a file, beyond a GiB (of text 64 MiB) that any file may become; a row counts 8 more. One row may take a thousandth of it (of text a hundredth), beyond 128 MiB. More is an error of the read, as of a damaged file. Default 100000, of CSV, JSON and text 10000: files of a billion equal rows may need more"`
	// Exact takes Paths for files, whatever their names look like, of which no link leads out of its folder: they may
	// lie where others have written to.
	Exact bool `json:"-"`
	// Blob is how buckets are read (with a cache, for one); nil: defaults. It is not part of what is read, nor of
	// Config and Fingerprint. A cache stays the caller's, who closes it after the Table.
	Blob *blobio.Options `json:"-"`
}

// File is one listed file.
type File struct {
	Path string // as a user would write it
	// Rel is the path below the folder that all the user's paths have in common, with a number at
	// its end where the file is not there for the first time: unique in the set, the same on any
	// machine, the identity of the data.
	Rel  string
	Info blobio.Info

	bucket *blobio.Bucket
	raw    []raw   // per Set.parts
	parts  []value // the same, typed
}

// Set is a listed set of files, in canonical order: that of Options.Paths, and below each of them
// byte order of Path.
// Immutable after Unify and safe for concurrent use.
type Set struct {
	Files []File

	opts     Options
	types    map[string]arrow.DataType // of Options.Types
	excluded bool                      // some files are not in the set, for their partition values
	parts    []partition
	buckets  []*blobio.Bucket
	meta     *driver.ScanStats
}

// Meta counts what is read of the files for no scan: footers, samples.
func (s *Set) Meta() *driver.ScanStats { return s.meta }

// TakeRead is driver.Metered's.
func (s *Set) TakeRead() int64 { return s.meta.BytesRead.Swap(0) }

// Validate checks what can be checked without I/O; List does it too.
func (o *Options) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fault.New(fault.Invalid, format, args...)) }
	if len(o.Paths) == 0 {
		bad("paths: at least one file, folder or glob is needed")
	}
	for _, p := range o.Paths {
		if p == "" {
			bad("paths: one is empty; write . for the current folder")
		}
	}
	if o.MaxGrowth < 0 {
		bad("max_growth: %d must be at least 1", o.MaxGrowth)
	}
	if o.Partitions != "" && o.Partitions != "hive" && o.Partitions != "none" {
		bad("partitions: %q must be hive or none", o.Partitions)
	}
	for c, n := range o.PartitionTypes {
		t, err := typename.Parse(n)
		if err == nil && !partitionType(t) {
			err = errors.New("not a type for partitions; use an integer, double, bool, string, date or timestamp")
		}
		if err != nil {
			bad("partition_types: column %q: %w", c, err)
		}
	}
	for _, c := range slices.Sorted(maps.Keys(o.Types)) {
		if _, err := typename.Parse(o.Types[c]); err != nil {
			bad("types: column %q: %w", c, err)
		}
	}
	if o.Columns != nil && len(o.Columns) == 0 {
		bad("columns: there are none: leave them out for all")
	}
	for i, c := range o.Columns {
		if slices.Contains(o.Columns[:i], c) {
			bad("columns: %q is there twice", c)
		}
	}
	if o.PathColumn != "" && o.PathColumn == o.RowColumn {
		bad("path_column and row_column are both %q", o.PathColumn)
	}
	if len(errs) == 1 {
		return errs[0]
	}
	return fault.WithCode(fault.Invalid, errors.Join(errs...))
}

// Columns returns the columns that are appended to those of files: partitions,
// path, row.
func (s *Set) Columns() []arrow.Field {
	var fs []arrow.Field
	for _, p := range s.parts {
		fs = append(fs, arrow.Field{Name: p.name, Type: p.typ, Nullable: true})
	}
	if s.opts.PathColumn != "" {
		fs = append(fs, arrow.Field{Name: s.opts.PathColumn, Type: arrow.BinaryTypes.String})
	}
	if s.opts.RowColumn != "" {
		fs = append(fs, arrow.Field{Name: s.opts.RowColumn, Type: arrow.PrimitiveTypes.Int64})
	}
	return fs
}

// CheckRows is for formats whose splits have unknown rows: more than one split in
// file i is an Unsupported error if a row column is asked for.
func (s *Set) CheckRows(i, splits int) error {
	if s.opts.RowColumn == "" || splits < 2 {
		return nil
	}
	return fault.New(fault.Unsupported, "row_column %q: rows of a text file of %d splits are not known before it is read; set split_bytes to %d or more to read it as one",
		s.opts.RowColumn, splits, s.Files[i].Info.Size).At(fault.Place{File: s.Files[i].Path})
}

// Fingerprint hashes kind, config (options that change the rows, without the
// paths) and for every file Rel, partition values, Size and ETag; for files without
// ETag (local ones) hash(ctx, i) stands for it, called in parallel.
func (s *Set) Fingerprint(ctx context.Context, kind string, config []byte, hash func(ctx context.Context, i int) ([]byte, error)) (string, error) {
	ids := make([][]byte, len(s.Files))
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(16)
	for i := range s.Files {
		if f := &s.Files[i]; f.Info.ETag != "" {
			ids[i] = []byte(f.Info.ETag)
			continue
		}
		if gctx.Err() != nil {
			break
		}
		g.Go(func() (err error) {
			ids[i], err = hash(gctx, i)
			return fault.Wrap(err, fault.Place{File: s.Files[i].Path})
		})
	}
	if err := g.Wait(); err != nil {
		return "", err
	}
	if err := ctx.Err(); err != nil {
		return "", fault.WithCode(fault.Canceled, context.Cause(ctx))
	}
	h := sha256.New()
	put := func(b []byte) {
		h.Write(binary.AppendUvarint(nil, uint64(len(b))))
		h.Write(b)
	}
	put([]byte("penstock/data/1"))
	put([]byte(kind))
	put(config)
	for i := range s.Files {
		f := &s.Files[i]
		put([]byte(f.Rel))
		for k, p := range s.parts {
			put([]byte(p.name))
			put([]byte(typename.Name(p.typ)))
			put([]byte(f.parts[k].String()))
		}
		put(binary.AppendUvarint(nil, uint64(f.Info.Size)))
		put(ids[i])
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Close closes the buckets. Idempotent.
func (s *Set) Close() error {
	var errs []error
	for _, b := range s.buckets {
		errs = append(errs, b.Close())
	}
	return errors.Join(errs...)
}
