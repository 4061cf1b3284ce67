// Package store keeps what is durable of a training run, in a folder or any bucket: what the run is, where it stands, its checkpoints
// and its metrics. docs/design/0004-trainers.md shows the layout.
//
// A run is a folder below its storage, named after it. [Create] claims the name. Everything that decides is an object which is created at most once, so that two
// controllers that take each other for dead cannot harm the run: RUN/checkpoints is a log whose entries are numbered without a choice, and an entry
// is either a checkpoint or the start of a group of workers ([Run.Begin]). A controller appends to it after the last entry that it knows; who finds another
// controller's start there has been replaced, and everything it does from then on is an [ErrSuperseded] error. So a commit that was acknowledged is seen by the controller that comes next, and one that was not can not appear after it.
//
// Errors are fault errors with the path. Nothing runs in the background: all goroutines of a call have ended when it returns, and there are never
// more than the call's parallelism.
package store

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/near"
	"github.com/penstock-data/penstock/io/blobio"
)

// Version of all records of a run.
const Version = 1

// ErrSuperseded is in the tree of errors of a controller that another one has replaced: it must end its workers and itself. Their code is Exists.
var ErrSuperseded = errors.New("another controller goes on with this run")

const (
	runFile        = "run.json"
	statusDir      = "status/"
	checkpointsDir = "checkpoints/"
	metricsDir     = "metrics/"

	// MaxRecord is how many bytes run.json and a status have at most.
	MaxRecord   = 64 << 20
	maxManifest = 256 << 20 // bytes
	inFlight    = 16        // parallel requests for small objects
	maxName     = 100       // bytes
)

// Record is what a run is. It never changes.
type Record struct {
	// Name of the run: letters, digits, and _ . - inside.
	Name    string          `json:"name"`
	ID      string          `json:"id"`                // told apart from another run of this name; made by Create
	Created time.Time       `json:"created"`           // zero: now
	Command []string        `json:"command,omitempty"` // of workers; none for goroutines
	Dir     string          `json:"dir,omitempty"`     // the working directory of Command
	Workers int             `json:"workers"`
	Config  json.RawMessage `json:"config,omitempty"` // what the loop gets
	Spec    string          `json:"spec,omitempty"`   // resolved, from which penstock resume starts the run again; UTF-8
	From    string          `json:"from,omitempty"`   // the checkpoint of another run that it began with
	Host    string          `json:"host,omitempty"`   // where it was created; "": this host
	Program string          `json:"program"`          // that created it: "penstock 0.1.0"
}

// Run is an open run. Safe for concurrent use. Close when done.
type Run struct {
	b      *blobio.Bucket
	prefix string // of all keys of the run; ends in '/'
	url    string // of the run's folder
	rec    Record
	key    []byte            // of EnvKey; nil: seals are not looked at
	sealed bool              // the run's record has a seal
	text   [sha256.Size]byte // digest of what the record was read from

	// hook is called around each step that changes something; tests die in it.
	hook func(step, key string)

	log  semaphore // held by what appends to the log, or deletes from it
	stat semaphore // held by SetStatus

	mu      sync.Mutex
	seen    map[int]*entry // of the log, which never changes
	own     owner
	metrics *MetricsWriter // of the attempt that runs
	lease   *lease         // of what Fetch returned last
	closed  bool
}

// semaphore is a lock that can be given up waiting for.
type semaphore chan struct{}

func (s semaphore) lock(ctx context.Context) error {
	select {
	case s <- struct{}{}:
		return nil
	case <-ctx.Done():
		return fault.New(fault.Canceled, "%w", context.Cause(ctx))
	}
}

func (s semaphore) unlock() { <-s }

// Create makes a run in storage, a folder or bucket URL. A run of this name that is there already is an Exists error.
func Create(ctx context.Context, storage string, rec Record) (*Run, error) {
	return create(ctx, storage, rec, nil)
}

func create(ctx context.Context, storage string, rec Record, o *blobio.Options) (*Run, error) {
	if err := CheckName(rec.Name); err != nil {
		return nil, err
	}
	if !utf8.ValidString(rec.Spec) {
		return nil, fault.New(fault.Invalid, "the spec of run %q is not UTF-8: save it as such", rec.Name)
	}
	if rec.Workers < 1 {
		return nil, fault.New(fault.Invalid, "run %q has %d workers: 1 is the least", rec.Name, rec.Workers)
	}
	rec.ID = randomHex(8)
	if rec.Created.IsZero() {
		rec.Created = time.Now()
	}
	rec.Created = rec.Created.UTC().Round(0)
	if rec.Host == "" {
		rec.Host, _ = os.Hostname() // for people
	}
	if err := rec.check(); err != nil {
		return nil, fault.New(fault.Invalid, "run %q: %w", rec.Name, err)
	}
	r, err := openFolder(ctx, storage, rec.Name, o)
	if err != nil {
		return nil, err
	}
	r.rec, r.sealed = rec, r.key != nil
	err = r.checkStorage()
	if err == nil {
		err = r.claimName(ctx, storage)
	}
	if err != nil {
		r.b.Close()
		return nil, err
	}
	return r, nil
}

func (r *Run) claimName(ctx context.Context, storage string) error {
	data, err := r.encode(runFile, "run", r.rec)
	if err != nil {
		return err
	}
	won, err := r.putNew(ctx, runFile, data)
	if err != nil {
		return err
	}
	if !won {
		// Ours, if the answer to the request was lost.
		if is, err := r.b.ReadAll(ctx, r.prefix+runFile, MaxRecord); err == nil && string(is) == string(data) {
			return nil
		}
		where := storage
		if strings.ContainsAny(where, "?&;$*()<>| \"") { // to a shell these are its own
			where = "'" + where + "'"
		}
		return fault.New(fault.Exists, "there is a run %q in %s: go on with it by penstock resume %s --storage %s (in a program by Config.Resume), or take another name", r.rec.Name, storage, r.rec.Name, where).At(r.place(runFile))
	}
	// Nobody begins before the name is claimed, so what is there is of a run whose record is gone.
	entries, err := r.readLog(ctx)
	if err == nil && len(entries) > 0 {
		err = fault.New(fault.Exists, "there are checkpoints of a run %q in %s whose %s is gone: bring it back and go on, or take another name", r.rec.Name, storage, runFile).At(r.place(checkpointsDir))
	}
	if err != nil {
		return errors.Join(err, r.b.Delete(context.WithoutCancel(ctx), r.prefix+runFile))
	}
	return nil
}

// Open opens a run that is there. One that is not is a NotFound error, with the name that was meant where that can be guessed.
func Open(ctx context.Context, storage, name string) (*Run, error) {
	return open(ctx, storage, name, nil)
}

func open(ctx context.Context, storage, name string, o *blobio.Options) (*Run, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	r, err := openFolder(ctx, storage, name, o)
	if err != nil {
		return nil, err
	}
	if err = r.checkStorage(); err == nil {
		err = r.readRecord(ctx, name)
	}
	if fault.CodeOf(err) == fault.NotFound {
		err = r.missing(ctx, storage, name)
	}
	if err != nil {
		r.b.Close()
		return nil, err
	}
	return r, nil
}

// readRecord reads and checks what the run called name is.
func (r *Run) readRecord(ctx context.Context, name string) error {
	r.rec.Name = name // which the seal is for
	data, done, err := r.load(ctx, runFile, MaxRecord)
	if err != nil {
		return err
	}
	defer done()
	var rec Record
	if err = r.decode(runFile, data, "run", &rec); err == nil {
		if err = CheckName(rec.Name); err == nil && rec.Name != name {
			err = fault.New(fault.Corrupt, "this is the record of a run %q: its folder was renamed or copied, which checkpoints do not survive; name it so again", rec.Name)
		} else if err != nil {
			err = corrupt("name", "is no name of a run: %w", err)
		} else {
			err = rec.check()
		}
	}
	r.rec, r.sealed, r.text = rec, sealRE.Match(data), sha256.Sum256(data)
	return fault.Wrap(err, r.place(runFile))
}

// missing is the error for a run that is not there.
func (r *Run) missing(ctx context.Context, storage, name string) error {
	names, lerr := folders(ctx, r.b, strings.TrimSuffix(r.prefix, name+"/"))
	if lerr != nil {
		return lerr // no such bucket, for one
	}
	switch like := near.Name(name, names); {
	case len(names) == 0:
		return fault.New(fault.NotFound, "there is no run %q: %s has no runs; check the storage", name, storage)
	case like != "":
		return fault.New(fault.NotFound, "there is no run %q in %s: is it %q?", name, storage, like)
	}
	return fault.New(fault.NotFound, "there is no run %q in %s: penstock runs --storage %s lists what is there", name, storage, storage)
}

// folders are the names of folders below prefix.
func folders(ctx context.Context, b *blobio.Bucket, prefix string) ([]string, error) {
	var names []string
	for info, err := range b.ListDir(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		if name := path.Base(info.Key); info.Dir && CheckName(name) == nil {
			names = append(names, name)
		}
	}
	return names, nil
}

func openFolder(ctx context.Context, storage, name string, o *blobio.Options) (*Run, error) {
	secret, err := keyOf()
	if err != nil {
		return nil, err
	}
	b, key, err := openStorage(ctx, storage, o)
	if err != nil {
		return nil, err
	}
	b.Within(key+name+"/", true) // others may write to the storage
	return &Run{b: b, key: secret, prefix: key + name + "/", url: join(storage, name), log: make(semaphore, 1), stat: make(semaphore, 1), seen: make(map[int]*entry)}, nil
}

func openStorage(ctx context.Context, storage string, o *blobio.Options) (b *blobio.Bucket, prefix string, err error) {
	bucket, key, err := blobio.Split(storage)
	if err != nil {
		return nil, "", err
	}
	if key != "" && !strings.HasSuffix(key, "/") {
		key += "/"
	}
	b, err = blobio.Open(ctx, bucket, o)
	return b, key, err
}

// join is the URL of the folder name below storage: a query stays at the end.
func join(storage, name string) string {
	rest, query := storage, ""
	if u, err := url.Parse(storage); err == nil && u.Scheme != "" && u.Host != "" && u.RawQuery != "" {
		rest, query = strings.TrimSuffix(storage, "?"+u.RawQuery), "?"+u.RawQuery
	}
	if strings.HasSuffix(rest, "/") {
		return rest + name + query
	}
	return rest + "/" + name + query
}

// Ref cuts the URL of a run, with #N for its checkpoint N or without, into what Open takes. checkpoint is 0 where there is no #N.
func Ref(ref string) (storage, name string, checkpoint int, err error) {
	bad := func() (string, string, int, error) {
		return "", "", 0, fault.New(fault.Invalid, "%q is not a run: write the folder or URL of the run, and #12 behind it for its checkpoint 12", ref)
	}
	rest, query := ref, ""
	if i := strings.LastIndexByte(rest, '#'); i >= 0 {
		n, nerr := strconv.Atoi(rest[i+1:])
		if nerr != nil || n < 1 {
			return bad()
		}
		rest, checkpoint = rest[:i], n
	}
	if u, uerr := url.Parse(rest); uerr == nil && u.Scheme != "" && u.Host != "" && u.RawQuery != "" {
		rest, query = strings.TrimSuffix(rest, "?"+u.RawQuery), "?"+u.RawQuery
	}
	storage, name = path.Split(strings.TrimSuffix(rest, "/"))
	if CheckName(name) != nil {
		return bad()
	}
	if storage == "" {
		storage = "."
	}
	if len(storage) > 1 && !strings.HasSuffix(storage, "://") {
		storage = strings.TrimSuffix(storage, "/")
	}
	if strings.HasSuffix(storage, "://") || strings.HasSuffix(storage, ":/") { // a bucket is no run
		return bad()
	}
	return storage + query, name, checkpoint, nil
}

// CheckName is an Invalid error for what cannot be the name of a run.
func CheckName(name string) error {
	ok := name != "" && len(name) <= maxName && name[0] != '-' && name[0] != '.' && name[len(name)-1] != '.'
	for i := range len(name) {
		c := name[i]
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '.' || c == '-')
	}
	if !ok {
		return fault.New(fault.Invalid, "%.120q cannot be the name of a run: names have up to %d letters, digits and _ . -, and begin with a letter, a digit or _", name, maxName)
	}
	return nil
}

// Record is what the run is.
func (r *Run) Record() Record { return r.rec }

// IsText reports whether the record of a run that was opened was read from this text: what its path
// leads to by now may be another file.
func (r *Run) IsText(text []byte) bool { return sha256.Sum256(text) == r.text }

// Name of the run.
func (r *Run) Name() string { return r.rec.Name }

// URL of the run's folder, as its storage was written.
func (r *Run) URL() string { return r.url }

// Local is the run's folder where its storage is one.
func (r *Run) Local() (dir string, ok bool) { return r.b.Local(r.prefix) }

// IsRun reports whether a local folder is that of a run.
func IsRun(dir string) bool {
	fi, err := os.Stat(filepath.Join(dir, runFile))
	return err == nil && fi.Mode().IsRegular()
}

// Close frees what the run holds in this process: other processes of this machine may go on with it, and what Fetch returned may be removed. What has not
// been flushed of its metrics is lost. Idempotent.
func (r *Run) Close() error {
	r.mu.Lock()
	closed, l, id := r.closed, r.lease, r.own.id
	r.closed, r.lease = true, nil
	r.mu.Unlock()
	if closed {
		return nil
	}
	l.release()
	atWork.remove(id)
	return r.b.Close()
}

// checkStorage: a local folder may be missing, but not be a file, nor lie below one.
func (r *Run) checkStorage() error {
	p, ok := r.b.Local(r.prefix)
	if !ok {
		return nil
	}
	for p = path.Clean(p); p != "/"; p = path.Dir(p) {
		fi, err := os.Stat(p)
		if err == nil && !fi.IsDir() {
			return fault.New(fault.Invalid, "this is a file: the storage of runs is a folder").At(fault.Place{File: p})
		}
		if err == nil {
			return nil
		}
	}
	return nil
}

func (r *Run) place(rel string) fault.Place { return fault.Place{File: r.path(rel)} }

// path is how a user would write rel.
func (r *Run) path(rel string) string { return r.b.Path(r.prefix + rel) }

func (r *Run) at(step, rel string) {
	if r.hook != nil {
		r.hook(step, rel)
	}
}

// putNew writes a record that must not exist; won is false if it does. What has its name and is no
// record, a link, a folder or a pipe, stays, and is an error.
func (r *Run) putNew(ctx context.Context, rel string, data []byte) (won bool, err error) {
	r.at("put", rel)
	defer r.at("was put", rel)
	err = r.b.Put(ctx, r.prefix+rel, data, &blobio.PutOptions{IfNotExist: true, ContentType: "application/json"})
	if fault.CodeOf(err) != fault.Exists {
		return err == nil, err
	}
	p, local := r.b.Local(r.prefix + rel)
	if !local {
		return false, nil
	}
	fi, lerr := os.Lstat(p)
	switch {
	case lerr != nil:
		return false, err // a file is in the place of one of its folders
	case !fi.Mode().IsRegular():
		return false, fault.New(fault.Exists, "%s has the name of the run's next record, and is none (%v): remove it", p, fi.Mode().Type())
	}
	return false, nil
}

// load reads a record or another small object. Of large ones, which only hostile runs have many of,
// one at a time is in memory: until done.
func (r *Run) load(ctx context.Context, rel string, limit int64) (data []byte, done func(), err error) {
	info, err := r.b.Stat(ctx, r.prefix+rel)
	if err != nil {
		return nil, nil, err
	}
	small := int64(large)
	done = func() {}
	if info.Size > large {
		if err := loading.lock(ctx); err != nil {
			return nil, nil, err
		}
		small, done = limit, loading.unlock
	}
	data, err = r.b.ReadAll(ctx, r.prefix+rel, min(small, limit))
	if err != nil {
		done()
		return nil, nil, err
	}
	return data, done, nil
}

// large is an object that is loaded alone.
const large = 4 << 20

var loading = make(semaphore, 1)

// head begins every record.
type head struct {
	Version int    `json:"version"`
	Kind    string `json:"kind"`
}

// encode writes the record at rel: v with a head, and a seal where there is a key.
func (r *Run) encode(rel, kind string, v any) ([]byte, error) {
	body, err := json.MarshalIndent(v, "", " ")
	if err != nil {
		return nil, fault.New(fault.Invalid, "the %s record cannot be written as JSON: %w", kind, err)
	}
	begin, rest := fmt.Appendf(nil, "{\n \"version\": %d,\n \"kind\": %q,", Version, kind), append(body[1:], '\n')
	if r.key != nil {
		seal := r.sealOf(rel, begin, rest)
		begin = fmt.Appendf(begin, "\n \"seal\": %q,", seal)
	}
	return append(begin, rest...), nil
}

func decodeHead(data []byte) (head, error) {
	var h head
	if err := json.Unmarshal(data, &h); err != nil {
		return h, fault.New(fault.Corrupt, "not a record of a run: %w", err)
	}
	if h.Version > Version {
		return h, fault.New(fault.Unsupported, "version %d, and this program reads up to %d: use a newer one", h.Version, Version)
	}
	if h.Version < 1 {
		return h, fault.New(fault.Corrupt, "not a record of a run: it has no version")
	}
	return h, nil
}

// decode reads the record at rel. Fields that it does not know are ignored.
func (r *Run) decode(rel string, data []byte, kind string, v any) error {
	if err := r.checkSeal(rel, data); err != nil {
		return err
	}
	h, err := decodeHead(data)
	if err != nil {
		return err
	}
	if h.Kind != kind {
		return fault.New(fault.Corrupt, "a record of kind %q where one of kind %q must be", h.Kind, kind)
	}
	if err := json.Unmarshal(data, v); err != nil {
		return fault.New(fault.Corrupt, "%w", err)
	}
	return nil
}

func randomHex(n int) string {
	b := make([]byte, n)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// Discard removes a run that came to nothing: its name is free again. Only who made it, or began it last, may; one that has checkpoints is an Invalid
// error, one that another controller has begun an ErrSuperseded. In a local storage the folder is left where it has other files.
func (r *Run) Discard(ctx context.Context) error {
	if err := r.log.lock(ctx); err != nil {
		return err
	}
	defer r.log.unlock()
	r.mu.Lock()
	id := r.own.id
	r.mu.Unlock()
	entries, err := r.readLog(ctx)
	if err != nil {
		return err
	}
	gone, err := r.statuses(ctx)
	if err != nil {
		return err
	}
	gone = append(gone, runFile) // from here on nobody can open it
	for _, e := range entries {
		if e.ckpt != nil {
			return fault.New(fault.Invalid, "run %q has checkpoints: it is not discarded", r.rec.Name).At(r.place(""))
		}
		gone = append(gone, entryName(e.number))
	}
	if all := starts(entries); len(all) > 0 && all[len(all)-1].Controller != id {
		return r.superseded(all[len(all)-1])
	}
	for _, rel := range gone {
		r.at("discard", rel)
		if err := r.b.Delete(ctx, r.prefix+rel); err != nil {
			return err
		}
	}
	if root, err := r.root(); err == nil && root != nil {
		for _, sub := range []string{checkpointsDir, metricsDir, statusDir} {
			_ = root.Remove(path.Clean(sub)) // not where there is something in it
		}
		root.Close()
		dir, _ := r.Local()
		_ = os.Remove(dir)
	}
	return nil
}
