package sink

import (
	"context"
	"encoding/json"
	"io"
	"sync/atomic"
	"time"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
	"golang.org/x/sync/errgroup"
)

// receiptTimeout bounds the request that decides a part, which is not broken off
// when the run is cancelled.
const receiptTimeout = 30 * time.Second

const (
	partShare = 8       // a part holds no more than this fraction of the budget
	minBuffer = 8 << 20 // but this, where BufferBytes allows it

	uploadBuffer = 64 << 10 // of a blobio.Writer
	leaseStep    = 1 << 20
)

// partWriter is one attempt at a part: it stages files, then writes the receipt.
type partWriter struct {
	files *partFiles
	hive  *hiveWriter // nil without PartitionBy
	dead  *deadFile   // nil until a row was skipped
	env   *exec.Env
	rows  int64
}

func newPartWriter(ctx context.Context, s *Files, part int, env *exec.Env) *partWriter {
	alloc := env.Alloc
	if alloc == nil {
		alloc = memory.DefaultAllocator
	}
	w := &partWriter{files: newPartFiles(ctx, s, part, alloc), env: env}
	if s.split != nil {
		w.hive = newHiveWriter(w.files, s.split)
	}
	return w
}

// Write implements exec.PartWriter.
func (w *partWriter) Write(ctx context.Context, b *exec.Block) error {
	defer w.files.guard(ctx)()
	for i := range b.Skipped {
		if w.files.s.dead == nil {
			break
		}
		if w.dead == nil {
			name := deadName(w.files.s.job.DeadLetter.Tag, w.files.part)
			d, err := w.files.createDead(name)
			if err != nil {
				return err
			}
			w.dead = d
		}
		if err := w.dead.add(&b.Skipped[i]); err != nil {
			return err
		}
	}
	if b.Batch == nil || b.Batch.NumRows() == 0 {
		return nil
	}
	w.rows += b.Batch.NumRows()
	if w.hive != nil {
		return w.hive.write(ctx, b.Batch)
	}
	f := w.files.current("")
	if f == nil {
		var err error
		if f, err = w.files.open(""); err != nil {
			return err
		}
	}
	return w.files.write(f, b.Batch)
}

// Finish implements exec.PartWriter. The part is finished when its receipt is
// there; if another process finished it first, that one's files count.
func (w *partWriter) Finish(ctx context.Context, t exec.Tally) error {
	defer w.files.end()
	s := w.files.s
	r := &receipt{Version: Version, Job: s.job.Job, Digest: s.job.Digest, Tag: s.job.Tag, Part: w.files.part, Attempt: w.files.attempt, Rows: w.rows, Skipped: t.AllSkipped(), Tally: t}
	pr := s.job.ranges()[r.Part]
	r.First, r.End = pr.First, pr.End
	err := w.close(ctx)
	var data []byte
	if err == nil {
		r.Files = w.files.done
		if w.dead != nil {
			r.Dead = &w.dead.file
		}
		if data, err = json.Marshal(r); err == nil && len(data) > maxSmall {
			err = fault.New(fault.Unsupported, "part %d has too many files: partition by columns with fewer values", r.Part)
		}
	}
	if err != nil {
		w.abort(ctx)
		return err
	}
	// From here on the files may count: nothing removes them but the one who knows
	// that they do not. A cancelled run still waits for the answer.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), receiptTimeout)
	defer cancel()
	for range 3 {
		won, err := s.out.rec.putNew(ctx, s.job.dir()+receiptName(r.Part), data)
		if err != nil {
			return err
		}
		if won {
			s.won(r)
			return nil
		}
		have, err := s.readReceipt(ctx, r.Part)
		if err != nil {
			return err
		}
		if have == nil {
			continue // it was removed: the job was committed, or it was of an earlier one
		}
		if have.Attempt != r.Attempt {
			w.files.discard(ctx)
			if have.Rows != r.Rows || have.Skipped != r.Skipped {
				return fault.New(fault.Invalid, "part %d: another run of job %q wrote %d rows and skipped %d, this one %d and %d: "+
					"the job is not a function of its data (a random function without seed, or data that changed?)", r.Part, s.job.Job, have.Rows, have.Skipped, r.Rows, r.Skipped)
			}
		}
		s.won(have)
		return nil
	}
	return fault.New(fault.Unavailable, "part %d: its receipt comes and goes", r.Part)
}

func (w *partWriter) close(ctx context.Context) error {
	defer w.files.guard(ctx)()
	if w.hive != nil {
		if err := w.hive.flush(ctx); err != nil {
			return err
		}
	}
	for len(w.files.opened) > 0 {
		if err := w.files.closeFile(w.files.opened[0]); err != nil {
			return err
		}
	}
	if err := w.files.closing.Wait(); err != nil {
		return err
	}
	if w.dead != nil {
		return w.dead.finish()
	}
	return nil
}

// Abort implements exec.PartWriter.
func (w *partWriter) Abort(ctx context.Context) error {
	w.abort(ctx)
	w.files.end()
	return nil
}

func (w *partWriter) abort(ctx context.Context) {
	if w.hive != nil {
		w.hive.release()
	}
	if w.dead != nil {
		w.dead.abort()
	}
	w.files.discard(ctx)
}

// partFiles are the files of one attempt: some open, the others closed.
type partFiles struct {
	s       *Files
	part    int
	attempt string // <process>/<part>-<random>
	alloc   memory.Allocator
	create  func(r *root, rel string) (*blobio.Writer, error)
	cancel  context.CancelCauseFunc
	limit   int64 // of held
	held    int64 // by the encoders of opened

	sharers int      // files expected to be open at once
	outside int64    // by encoders and uploads of opened, beyond alloc
	leases  []func() // for outside, each of leaseStep

	opened  []*outFile // least recently used first
	rolls   map[string]int
	done    []partFile     // staged once closing has ended without an error
	closing errgroup.Group // what waits for disks and services, one file beside the other
}

// outFile is one file being written.
type outFile struct {
	dir  string // partition folders, ending in '/'; "" without
	path string
	w    *blobio.Writer
	n    counter
	enc  driver.Encoder
	mem  *countAlloc
	rows int64
	held int64 // by enc

	outside int64 // by enc and w, beyond the allocator
}

// newPartFiles begins an attempt, whose uploads end when ctx does. end must be called.
func newPartFiles(ctx context.Context, s *Files, part int, alloc memory.Allocator) *partFiles {
	// An upload outlives the call that began it, but not the attempt: while a call
	// is at work its context counts (guard).
	ctx, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	limit := s.o.BufferBytes
	if a, ok := alloc.(interface{ Limit() int64 }); ok {
		limit = min(limit, max(a.Limit()/partShare, minBuffer))
	}
	p := &partFiles{s: s, limit: limit, part: part, attempt: s.proc + "/" + pad5(part) + "-" + randomHex(), alloc: alloc, cancel: cancel, rolls: make(map[string]int),
		create: func(r *root, rel string) (*blobio.Writer, error) {
			return r.b.Create(ctx, r.prefix+rel, nil)
		}}
	p.closing.SetLimit(inFlight)
	return p
}

// guard makes the attempt end when ctx does, until the function it returns is called.
func (p *partFiles) guard(ctx context.Context) func() {
	stop := context.AfterFunc(ctx, func() { p.cancel(context.Cause(ctx)) })
	return func() { stop() }
}

func (p *partFiles) end() {
	p.cancel(context.Canceled)
	_ = p.closing.Wait() // what matters was told by close
	p.outside = 0
	p.lease()
}

// lease pays for what is held outside the allocator, or gives back what is too much.
func (p *partFiles) lease() {
	a, ok := p.alloc.(interface {
		Borrow(n int64) (release func())
	})
	for ok && int64(len(p.leases))*leaseStep < p.outside {
		p.leases = append(p.leases, a.Borrow(leaseStep))
	}
	keep := p.outside
	if keep > 0 {
		keep += 2 * leaseStep // so that what goes up and down is not paid for again and again
	}
	for n := len(p.leases); int64(n)*leaseStep > keep; n-- {
		p.leases[n-1]()
		p.leases = p.leases[:n-1]
	}
}

// current is the open file of a partition folder; nil if there is none.
func (p *partFiles) current(dir string) *outFile {
	for i := len(p.opened) - 1; i >= 0; i-- {
		if f := p.opened[i]; f.dir == dir {
			copy(p.opened[i:], p.opened[i+1:])
			p.opened[len(p.opened)-1] = f
			return f
		}
	}
	return nil
}

// open begins the next file of a partition folder.
func (p *partFiles) open(dir string) (*outFile, error) {
	if len(p.done)+len(p.opened) >= maxPartFiles {
		return nil, fault.New(fault.Unsupported, "part %d has more than %d files: partition by columns with fewer values, or write larger files", p.part, maxPartFiles)
	}
	f := &outFile{dir: dir, path: dir + partName(p.s.job.Tag, p.part, p.rolls[dir], p.s.o.Encoding.Extension()), mem: &countAlloc{Allocator: p.alloc}}
	if len(f.path) > maxKey {
		return nil, fault.New(fault.Invalid, "the path %.100q... has more than %d bytes: partition by shorter values", f.path, maxKey)
	}
	w, err := p.create(p.s.out.rec, stagedPath(p.s.job.dir(), p.attempt, f.path))
	if err != nil {
		return nil, p.at(f, err)
	}
	f.w, f.n.w = w, w
	encoding := p.s.o.Encoding
	if e, ok := encoding.(driver.FrugalEncoding); ok && p.sharers > 1 {
		encoding = e.Frugal(p.limit / int64(p.sharers))
	}
	if f.enc, err = encoding.NewEncoder(&f.n, p.s.file, f.mem); err != nil {
		w.Abort()
		return nil, p.at(f, err)
	}
	p.rolls[dir]++
	p.opened = append(p.opened, f)
	return f, nil
}

// write adds rows to f and ends the file when it has its size.
func (p *partFiles) write(f *outFile, rec arrow.RecordBatch) error {
	// Where rows collected take too much, files that have the most write them out now.
	if c, ok := f.enc.(driver.Cutter); ok {
		if p.held > p.limit && f.held*int64(len(p.opened)) >= p.held {
			c.Cut()
		}
	}
	if err := f.enc.Write(rec); err != nil {
		return p.at(f, err)
	}
	f.rows += rec.NumRows()
	target := p.s.o.TargetBytes
	if target == 0 {
		target = DefaultTargetBytes
	}
	if f.enc.Size() >= target {
		return p.closeFile(f)
	}
	p.count(f)
	return nil
}

// closeFile completes f, which is staged once closing has ended without an error.
func (p *partFiles) closeFile(f *outFile) error {
	p.forget(f)
	if err := f.enc.Close(); err != nil {
		f.w.Abort()
		return p.at(f, err)
	}
	p.s.out.at("stage", f.path)
	p.closing.Go(func() error {
		err := f.w.Close()
		if err != nil {
			p.cancel(err) // no more of this attempt is of use
		}
		return p.at(f, err)
	})
	p.done = append(p.done, partFile{Path: f.path, Rows: f.rows, Bytes: f.n.n})
	return nil
}

func (p *partFiles) forget(f *outFile) {
	for i, g := range p.opened {
		if g == f {
			p.opened = append(p.opened[:i], p.opened[i+1:]...)
			p.held -= f.held
			p.outside -= f.outside
			f.held, f.outside = 0, 0
			return
		}
	}
}

// discard ends what is open and removes what is staged. What cannot be removed
// now is out of sight, and goes with the commit.
func (p *partFiles) discard(ctx context.Context) {
	p.cancel(context.Canceled)
	_ = p.closing.Wait()
	for _, f := range p.opened {
		f.enc.Abort()
		f.w.Abort()
	}
	p.opened, p.done, p.held, p.outside = nil, nil, 0, 0
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	_ = p.s.out.rec.removeTree(ctx, p.s.job.dir()+"stage/"+p.attempt+"/")
	if p.s.dead != nil {
		_ = p.s.dead.rec.removeTree(ctx, p.s.job.deadDir()+"stage/"+p.attempt+"/")
	}
}

// count brings held up to date after a change of f.
func (p *partFiles) count(f *outFile) {
	n, outside := f.mem.n.Load(), int64(uploadBuffer)
	if c, ok := f.enc.(driver.Cutter); ok {
		n = c.Held()
		outside += c.Outside()
	}
	p.held += n - f.held
	p.outside += outside - f.outside
	f.held, f.outside = n, outside
	p.lease()
}

func (p *partFiles) at(f *outFile, err error) error {
	return fault.Wrap(err, fault.Place{File: p.s.out.path(f.path)})
}

func (p *partFiles) createDead(name string) (*deadFile, error) {
	w, err := p.create(p.s.dead.rec, stagedPath(p.s.job.deadDir(), p.attempt, name))
	if err != nil {
		return nil, err
	}
	return newDeadFile(w, name, p.alloc, p.s.o.Mask)
}

// counter counts the bytes that go through it.
type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(b []byte) (int, error) {
	n, err := c.w.Write(b)
	c.n += int64(n)
	return n, err
}

// countAlloc counts what one encoder holds.
type countAlloc struct {
	memory.Allocator
	n atomic.Int64
}

func (a *countAlloc) Allocate(n int) []byte {
	b := a.Allocator.Allocate(n)
	a.n.Add(int64(len(b)))
	return b
}

func (a *countAlloc) Reallocate(n int, b []byte) []byte {
	a.n.Add(-int64(len(b)))
	b = a.Allocator.Reallocate(n, b)
	a.n.Add(int64(len(b)))
	return b
}

func (a *countAlloc) Free(b []byte) {
	a.n.Add(-int64(len(b)))
	a.Allocator.Free(b)
}
