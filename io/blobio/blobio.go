// Package blobio reads and writes objects in buckets: ranged, coalesced,
// parallel, retried and hedged reads, pinned to the version that was listed;
// whole or streamed writes that become visible at once, create-only by option.
//
// A bucket is anything gocloud.dev opens by URL (s3, gs, azblob; the program
// imports the driver it wants), the local file system (a plain path or file://),
// or process memory (mem://name). Local files do not go through gocloud's
// fileblob: it hashes every byte twice.
package blobio

import (
	"context"
	"io"
	"iter"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
)

// Bucket is an open bucket. Safe for concurrent use. Close when done.
type Bucket struct{}

// Options of a bucket; nil means defaults.
type Options struct {
	Concurrency int           // parallel requests of the bucket; 0 means 64
	Retries     int           // per request, beyond the first; 0 means 5, negative none
	Gap         int64         // ranges closer than this are fetched together; 0 means 1 MiB (local: 64 KiB)
	MaxRequest  int64         // larger ranges are fetched in pieces, in parallel; 0 means 8 MiB
	NoHedge     bool          // never send a second request for a slow one
	Timeout     time.Duration // of one attempt without a byte of progress; 0 means 30 s
}

// Split cuts a user's path into the bucket's URL and the key (or key prefix, or
// glob) below it: "s3://b/x/*.parquet?region=r" is "s3://b?region=r" and
// "x/*.parquet"; "data/x.csv" is "file:///abs/cwd" style root and key.
func Split(path string) (bucketURL, key string, err error) { panic("stub") }

// Open opens a bucket by URL, as Split returns it. A scheme whose driver the
// program does not import is an Unsupported error that names the import.
func Open(ctx context.Context, bucketURL string, o *Options) (*Bucket, error) { panic("stub") }

// Info describes an object (or, from ListDir, a directory).
type Info struct {
	Key     string // below the bucket; '/' separated; directories end in '/'
	Size    int64
	ModTime time.Time
	ETag    string // "" for local files: Size and ModTime pin them
	Dir     bool
}

// Path is how a user would write the object: a local path or a URL without
// query.
func (b *Bucket) Path(key string) string { panic("stub") }

// Local returns the file system path of key if the bucket is local.
func (b *Bucket) Local(key string) (string, bool) { panic("stub") }

// ListDir lists one level below prefix ("" or ending in '/'), in byte order of
// keys. Local symbolic links are followed.
func (b *Bucket) ListDir(ctx context.Context, prefix string) iter.Seq2[Info, error] { panic("stub") }

// List lists every object whose key begins with prefix, in byte order of keys.
// Directories are listed in parallel.
func (b *Bucket) List(ctx context.Context, prefix string) iter.Seq2[Info, error] { panic("stub") }

// Stat describes one object; NotFound if there is none.
func (b *Bucket) Stat(ctx context.Context, key string) (Info, error) { panic("stub") }

// Object gives access to an object as listed. Reading it after it changed is an
// error of code Invalid that says so. No I/O; nothing to close.
func (b *Bucket) Object(info Info, s *Stats) *Object { panic("stub") }

// ReadAll reads a small object whole; larger than limit is an Invalid error.
func (b *Bucket) ReadAll(ctx context.Context, key string, limit int64) ([]byte, error) {
	panic("stub")
}

// PutOptions may be nil.
type PutOptions struct {
	IfNotExist  bool // an existing object is an Exists error and stays as it is
	ContentType string
}

// Put writes a small object at once: it is visible whole or not at all. Retried;
// with IfNotExist an attempt whose answer was lost may report Exists though it won: compare.
func (b *Bucket) Put(ctx context.Context, key string, data []byte, o *PutOptions) error {
	panic("stub")
}

// Create starts a streamed object. Nothing is visible before Close returns nil.
func (b *Bucket) Create(ctx context.Context, key string, o *PutOptions) (*Writer, error) {
	panic("stub")
}

// Writer streams one object. Not safe for concurrent use. Exactly one of Close
// and Abort ends it; Abort leaves nothing behind.
type Writer struct{}

func (w *Writer) Write(p []byte) (int, error) { panic("stub") }
func (w *Writer) Close() error                { panic("stub") }
func (w *Writer) Abort()                      { panic("stub") }

// Delete removes an object; one that is not there is no error.
func (b *Bucket) Delete(ctx context.Context, key string) error { panic("stub") }

// Close frees connections. Objects must not be used afterwards. Idempotent.
func (b *Bucket) Close() error { panic("stub") }

// Stats counts requests. Safe for concurrent use; the zero value is ready.
type Stats struct{ Bytes, Requests, Retries, Hedges atomic.Int64 }

// Object is one version of one object. Safe for concurrent use.
type Object struct{}

func (o *Object) Info() Info   { panic("stub") }
func (o *Object) Path() string { panic("stub") }
func (o *Object) Size() int64  { panic("stub") }

// With returns the same object counting into s as well.
func (o *Object) With(s *Stats) *Object { panic("stub") }

// ReadAt fills p from offset off. Fewer bytes than len(p) only with io.EOF.
func (o *Object) ReadAt(ctx context.Context, p []byte, off int64) (int, error) { panic("stub") }

// Range is [Off, Off+Len).
type Range struct{ Off, Len int64 }

// Fetch reads ranges (any order, may overlap), coalesced and in parallel, into
// memory from alloc. Release the result when done.
func (o *Object) Fetch(ctx context.Context, rs []Range, alloc memory.Allocator) (*Fetched, error) {
	panic("stub")
}

// Fetched holds ranges in memory.
type Fetched struct{}

// Bytes returns the bytes of a range inside one of those fetched; valid until
// Release. ok is false if they are not there.
func (f *Fetched) Bytes(off, n int64) (b []byte, ok bool) { panic("stub") }
func (f *Fetched) Release()                               { panic("stub") }

// Stream reads from off to the end of [off, off+n) in order, with read-ahead of a
// few MaxRequest pieces where the bucket is remote.
func (o *Object) Stream(ctx context.Context, off, n int64) io.ReadCloser { panic("stub") }

// Map maps a local object into memory, read only; ok is false for other buckets
// and empty files. unmap must be called once, when nothing refers to b any more.
func (o *Object) Map() (b []byte, unmap func() error, ok bool, err error) { panic("stub") }

// ReaderAt binds ctx to o for libraries without contexts.
func ReaderAt(ctx context.Context, o *Object) io.ReaderAt { panic("stub") }
