// Package blobio reads and writes objects in buckets: ranged, coalesced,
// parallel, retried and hedged reads, pinned to the version that was listed, and
// kept on local disk if a cache is given;
// whole or streamed writes that become visible at once, create-only by option.
//
// A bucket is anything gocloud.dev opens by URL (s3, gs, azblob; the program
// imports the driver it wants), the local file system (a plain path or file://),
// or process memory (mem://name). Local files do not go through gocloud's
// fileblob: it hashes every byte twice.
//
// What a user writes becomes a bucket and a key by [Split]; [Bucket.Path] is the
// way back. Errors are fault.Error with a code and the path: NotFound (also: no such
// bucket), Exists, Denied (credentials, policies, permissions of files), Invalid, Changed
// (an object, since it was listed), Unavailable (network, 5xx, no progress; after all retries), Exhausted
// (disk full), Canceled (the caller's context ended), Unsupported.
package blobio

import (
	"context"
	"fmt"
	"iter"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobcache"
	"gocloud.dev/blob"
	"gocloud.dev/blob/memblob"
	"golang.org/x/sync/semaphore"
)

// Bucket is an open bucket. Safe for concurrent use. Close when done.
type Bucket struct {
	o      Options // defaults filled in
	scheme string
	base   string       // what Path puts before keys
	root   string       // file system root; "" unless local
	remote *blob.Bucket // nil if local
	shared bool         // remote belongs to the process (mem)
	closed atomic.Bool
	slots  *semaphore.Weighted // one per request in flight
	hedge  hedger
	cache  *blobcache.Cache // nil: none
	url    string           // as opened: with server, the bucket's part in the names of what is cached
	server string           // which one the URL means, by serverOf
	sdk    sdk

	within []*confinement
}

// Options of a bucket; nil means defaults.
type Options struct {
	Concurrency int           // parallel requests of the bucket (local: of a call); 0 means 64
	Retries     int           // per request, beyond the first; 0 means 5, negative none
	Gap         int64         // ranges closer than this are fetched together; 0 means 1 MiB (local: 64 KiB), negative none
	MaxRequest  int64         // larger ranges are fetched in pieces, in parallel; 0 means 8 MiB
	NoHedge     bool          // never send a second request for a slow one
	Timeout     time.Duration // of one attempt without a byte of progress; 0 means 30 s
	// Cache, if not nil, keeps on local disk what reads of Objects fetch, and is asked first.
	// Local buckets and mem:// have no use for it. It is the caller's.
	Cache *blobcache.Cache
}

func (o *Options) withDefaults(local bool) Options {
	var r Options
	if o != nil {
		r = *o
	}
	if r.Concurrency <= 0 {
		r.Concurrency = 64
	}
	switch {
	case r.Retries == 0:
		r.Retries = 5
	case r.Retries < 0:
		r.Retries = 0
	}
	switch {
	case r.Gap < 0:
		r.Gap = 0
	case r.Gap == 0 && local:
		r.Gap = 64 << 10
	case r.Gap == 0:
		r.Gap = 1 << 20
	}
	if r.MaxRequest <= 0 {
		r.MaxRequest = 8 << 20
	}
	if r.Timeout <= 0 {
		r.Timeout = 30 * time.Second
	}
	return r
}

// drivers tells which import opens a scheme.
var drivers = map[string]string{
	"s3":     "gocloud.dev/blob/s3blob",
	"gs":     "gocloud.dev/blob/gcsblob",
	"azblob": "gocloud.dev/blob/azureblob",
}

// memBuckets holds the buckets of mem:// URLs by name, for the life of the process:
// what one Open wrote the next one sees. It is the only state of the package.
var memBuckets struct {
	sync.Mutex
	byName map[string]*blob.Bucket
}

func openMemory(name string) *blob.Bucket {
	memBuckets.Lock()
	defer memBuckets.Unlock()
	b := memBuckets.byName[name]
	if b == nil {
		b = memblob.OpenBucket(&memblob.Options{NoMD5: true})
		if memBuckets.byName == nil {
			memBuckets.byName = make(map[string]*blob.Bucket)
		}
		memBuckets.byName[name] = b
	}
	return b
}

// Open opens a bucket by URL, as Split returns it. A scheme whose driver the
// program does not import is an Unsupported error that names the import. No
// request is sent: a bucket that does not exist is an error of its first use.
func Open(ctx context.Context, bucketURL string, o *Options) (*Bucket, error) {
	bad := func(format string, args ...any) (*Bucket, error) {
		return nil, fault.New(fault.Invalid, format, args...).At(fault.Place{File: bucketURL})
	}
	u, err := url.Parse(bucketURL)
	if err != nil {
		return nil, fault.New(fault.Invalid, "bucket URL: %w", err)
	}
	switch {
	case u.Scheme == "file" && u.Host != "":
		return bad("a file URL has no host: write file:///path")
	case u.Scheme != "file" && u.Host == "":
		return bad("not a bucket URL: it lacks a scheme or a bucket name")
	case u.Scheme != "file" && u.Path != "" && u.Path != "/":
		return bad("a bucket URL has no path: cut the key off with blobio.Split")
	}
	b := &Bucket{scheme: u.Scheme, o: o.withDefaults(u.Scheme == "file")}
	b.slots = semaphore.NewWeighted(int64(b.o.Concurrency))
	switch u.Scheme {
	case "file":
		q := u.Query()
		relative := q.Get("relative") == "true"
		if q.Del("relative"); len(q) > 0 || !strings.HasPrefix(u.Path, "/") {
			return bad("want file:///path or file:///path?relative=true")
		}
		b.root = u.Path
		if !relative {
			b.base = strings.TrimSuffix(u.Path, "/") + "/"
		}
		return b, nil
	case "mem":
		if u.RawQuery != "" {
			return bad("mem buckets have no options")
		}
		b.remote, b.shared = openMemory(u.Host), true
		b.o.NoHedge = true
	default:
		if err := checkScheme(u.Scheme); err != nil {
			return nil, fault.Wrap(err, fault.Place{File: bucketURL})
		}
		if q := u.Query(); q.Has("prefix") || q.Has("key") {
			return bad("write prefixes and keys as a path, not as a parameter")
		} else if u.Scheme == "s3" && !q.Has("response_checksum_validation") {
			// The checksum of an object cannot be checked on a range of it; asked to
			// try, the SDK says so on stderr for every request.
			q.Set("response_checksum_validation", "when_required")
			u.RawQuery = q.Encode()
		}
		if b.remote, err = blob.DefaultURLMux().OpenBucketURL(ctx, u); err != nil {
			if isNoCredentials(err) {
				return nil, fault.New(fault.Denied, "open bucket: %w", b.advise(fault.Denied, err)).At(fault.Place{File: bucketURL})
			}
			return bad("open bucket: %w", err)
		}
		if err := keepToServer(u.Scheme, b.remote); err != nil {
			return nil, fault.Wrap(err, fault.Place{File: bucketURL})
		}
	}
	b.base = u.Scheme + "://" + u.Host + "/"
	b.sdk = sdkOf(b.scheme, b.remote)
	if !b.shared && b.o.Cache != nil {
		b.cache, b.url, b.server = b.o.Cache, bucketURL, serverOf(b.scheme, b.remote)
	}
	return b, nil
}

// checkScheme refuses one for which the program has no driver.
func checkScheme(scheme string) error {
	switch {
	case scheme == "file" || scheme == "mem" || blob.DefaultURLMux().ValidBucketScheme(scheme):
		return nil
	case drivers[scheme] != "":
		return fault.New(fault.Unsupported, "the driver of %s:// is not part of this program: import _ %q", scheme, drivers[scheme])
	}
	return fault.New(fault.Unsupported, "unknown scheme %q: use a path, s3://, gs://, azblob:// or mem://", scheme)
}

// Info describes an object (or, from ListDir, a directory).
type Info struct {
	Key     string // below the bucket; '/' separated; directories end in '/'
	Size    int64
	ModTime time.Time
	// ETag changes when the object does; the same from List and Stat. S3: the
	// ETag. Others: the MD5 of the contents if the service knows it, else the time
	// of the last change. "" for local files.
	ETag string
	Dir  bool

	// What else tells versions apart: of gs the generation, of azblob the ETag.
	version string
	inode   inode // of a local file
}

// inode is which file of a system a name means, and when anything about it changed last, in
// nanoseconds, which nobody can set back; zero where it is not known.
type inode struct {
	number  uint64
	changed int64
}

// replaces reports that i is another file than was there. Some systems number files anew while they stay what they are, and
// a file that is linked, renamed or given to others is changed: so both must differ.
func (i inode) replaces(was inode) bool {
	return was.changed != 0 && i.number != was.number && i.changed != was.changed
}

// Path is how a user would write the object: a local path (relative if it was
// given so) or a URL without query. Split takes it back to key.
func (b *Bucket) Path(key string) string {
	if b.root != "" {
		if key == "" && b.base == "" {
			return "."
		}
		return b.base + key
	}
	if p, _ := cutQuery(key); p != key {
		key += "?" // an empty query, so that the key's end is not taken for one
	}
	return b.base + key
}

// Local returns the file system path of key if the bucket is local.
func (b *Bucket) Local(key string) (string, bool) {
	if b.root == "" {
		return "", false
	}
	return b.file(key), true
}

// ListDir lists one level below prefix ("" or ending in '/'), in byte order of
// keys. Local symbolic links are followed. A directory that is not there is
// empty.
func (b *Bucket) ListDir(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	if prefix != "" && !strings.HasSuffix(prefix, "/") {
		return func(yield func(Info, error) bool) {
			yield(Info{}, fault.New(fault.Invalid, "the prefix of a directory ends in '/'").At(b.place(prefix)))
		}
	}
	if b.root != "" {
		return b.listLocalDir(ctx, prefix)
	}
	return b.listRemote(ctx, prefix, "/")
}

// List lists every object whose key begins with prefix, in byte order of keys,
// as it goes: nothing is held back but a page. Local directories are listed in
// parallel, ahead of the caller; symbolic links are followed, but not into a
// directory that contains them. Directory markers (keys ending in '/') of object
// stores, and files that a Writer has not finished, are left out.
func (b *Bucket) List(ctx context.Context, prefix string) iter.Seq2[Info, error] {
	if b.root != "" {
		return b.listLocal(ctx, prefix)
	}
	return b.listRemote(ctx, prefix, "")
}

// Stat describes one object; NotFound if there is none (a directory is none).
func (b *Bucket) Stat(ctx context.Context, key string) (Info, error) {
	if err := b.checkKey(key); err != nil {
		return Info{}, err
	}
	if b.root != "" {
		return b.statLocal(ctx, key)
	}
	var info Info
	err := b.try(ctx, key, func(ctx context.Context) error {
		var err error
		info, err = b.attributes(ctx, key)
		return err
	})
	return info, err
}

// Object gives access to an object as listed. Reading it after it changed is an
// error of code Invalid that says so. s may be nil. No I/O; nothing to close.
func (b *Bucket) Object(info Info, s *Stats) *Object {
	o := &Object{b: b, info: info, pin: new(pin)}
	o.name()
	if s != nil {
		o.stats = []*Stats{s}
	}
	return o
}

// ReadAll reads a small object whole; larger than limit is an Invalid error. An
// object that is replaced at that moment is read again.
func (b *Bucket) ReadAll(ctx context.Context, key string, limit int64) ([]byte, error) {
	for tries := 0; ; tries++ {
		info, err := b.Stat(ctx, key)
		if err != nil {
			return nil, err
		}
		if info.Size > limit {
			return nil, fault.New(fault.Invalid, "%d bytes, more than the %d allowed here", info.Size, limit).At(b.place(key))
		}
		buf := make([]byte, info.Size)
		_, err = b.Object(info, nil).ReadAt(ctx, buf, 0)
		if err == nil {
			return buf, nil
		}
		if !isChanged(err) || tries == 3 {
			return nil, err
		}
	}
}

// Delete removes an object; one that is not there is no error.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	if err := b.checkKey(key); err != nil {
		return err
	}
	if b.root != "" {
		return b.deleteLocal(ctx, key)
	}
	err := b.try(ctx, key, func(ctx context.Context) error { return b.deleteRemote(ctx, key) })
	if fault.CodeOf(err) == fault.NotFound {
		return nil
	}
	return err
}

// Close frees the bucket. Objects must not be used afterwards. Idempotent. Idle
// connections belong to the driver, which drops them after a while.
func (b *Bucket) Close() error {
	if b.closed.Swap(true) || b.remote == nil || b.shared {
		return nil
	}
	if err := b.remote.Close(); err != nil {
		return fault.New(fault.Unknown, "close bucket %s: %w", b.base, err)
	}
	return nil
}

func (b *Bucket) place(key string) fault.Place { return fault.Place{File: b.Path(key)} }

// checkKey rejects keys that no object can have.
func (b *Bucket) checkKey(key string) error {
	if key == "" || strings.HasSuffix(key, "/") || strings.IndexByte(key, 0) >= 0 {
		return fault.New(fault.Invalid, "%q is not the key of an object", key).At(b.place(key))
	}
	return nil
}

// Stats counts requests. Safe for concurrent use; the zero value is ready.
type Stats struct {
	Bytes    atomic.Int64 // received, those of lost hedges included
	Requests atomic.Int64 // reads sent, retries and hedges included
	Retries  atomic.Int64 // of those, repeated after an error
	Hedges   atomic.Int64 // of those, sent because another one was slow
	Cached   atomic.Int64 // bytes that came out of Options.Cache; not in Bytes
}

func (s *Stats) String() string {
	return fmt.Sprintf("bytes=%d requests=%d retries=%d hedges=%d cached=%d",
		s.Bytes.Load(), s.Requests.Load(), s.Retries.Load(), s.Hedges.Load(), s.Cached.Load())
}
