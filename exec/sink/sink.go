// Package sink holds the ends of a run that is written: [Files] writes files to
// a folder or bucket and commits them as one, [Count] only counts, [DeadLetter]
// keeps the rows that were left out. [ReadManifest] tells readers what is committed.
//
// The engine (exec.Runner) drives them through exec.Sink; dataset and the
// command line make them. docs/design/0002-commit.md has the commit protocol
// and why every point at which a process may die is safe.
//
//	s, err := sink.New(sink.Options{Path: "s3://bucket/out", Encoding: enc, Job: id})
//	stats, err := runner.Write(ctx, graph, s, nil)
//	fmt.Println(s.Result().Rows)
package sink

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"path"
	"strings"
	"sync"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/units"
	"github.com/penstock-data/penstock/io/blobio"
	"github.com/penstock-data/penstock/io/driver"
)

// Modes of an output: what to do where another job's output is.
const (
	ModeError     = "error"     // fail with Exists (default)
	ModeAppend    = "append"    // add to it
	ModeOverwrite = "overwrite" // replace it: its files go once the new manifest is there
)

// Defaults and limits.
const (
	DefaultTargetBytes = 256 << 20
	DefaultBufferBytes = 64 << 20

	maxOpen      = 64      // files open at once per part, local
	maxOpenBlob  = 8       // the same in buckets, where an open upload holds several MiB
	maxPartFiles = 100_000 // files of one part
	maxFiles     = 1 << 20 // files of one output
)

// Options of a file sink. Path, Encoding and Job are required.
type Options struct {
	// Path is the folder to write to: a local path or a bucket URL.
	Path     string
	Encoding driver.Encoding
	// Job names the job: equal ids promise equal rows. A fingerprint of plan and data,
	// or a name the user gave. Letters, digits, '.', '-' and '_', at most 128.
	Job string
	// Mode is ModeError, ModeAppend or ModeOverwrite; "" means ModeError.
	Mode string
	// TargetBytes is the size at which a file ends and the next begins, and up to which small neighbours in a folder
	// become one at the end of the job; 0 means DefaultTargetBytes. Parts are made of splits of about as many decoded bytes; where it is 0, of
	// fewer in small outputs, so that there is something to do in parallel.
	TargetBytes int64
	// PartitionBy names columns whose values become folders, `col=value/`, and
	// which are left out of the files.
	PartitionBy []string
	// BufferBytes bounds what one part being written holds back in rows and
	// encoders when it has several files open (PartitionBy); 0 means DefaultBufferBytes.
	BufferBytes int64
	// DeadLetter is a folder (path or URL) that gets the rows left out by an
	// on_error policy, as Parquet; "" drops them. Neither of it and Path lies in the other.
	DeadLetter string
	// Mask is applied to what the dead letter says of a row, but not to the row; it may be nil. It
	// is for what must not be kept, such as secrets in paths.
	Mask func(string) string `json:"-"`
	// Metadata is kept in the manifest.
	Metadata map[string]string
	Blob     *blobio.Options
}

// Result of a committed job.
type Result struct {
	Job      string
	Already  bool   // it was committed before this run
	Manifest int    // number of the manifest that says so
	List     []File // of this job, in canonical order
	Files    int64
	Rows     int64
	Bytes    int64 // of the files
	RowsIn   int64 // rows read from the sources
	Skipped  int64 // rows left out
}

// OccupiedError is in the Exists error of an output that holds what this job has not written, and may write beside or instead of it in other modes.
type OccupiedError struct {
	Modes []string // that help
	text  string
}

func (e *OccupiedError) Error() string { return e.text }

func occupied(modes []string, format string, args ...any) error {
	return fault.New(fault.Exists, "%w", &OccupiedError{modes, fmt.Sprintf(format, args...)})
}

var appendOrReplace = []string{ModeAppend, ModeOverwrite}

// Files is a sink that writes files. Use it for one run. It is an exec.Sink;
// Begin, Commit and Abort are called by one goroutine, NewPart by any.
type Files struct {
	o    Options
	mode string
	proc string // names this process's staged files
	hook func(step, rel string)

	out, dead *output // nil unless between Begin and Commit or Abort
	lock      *stageLock
	job       *jobRecord
	plan      *exec.SinkPlan
	schema    *arrow.Schema // of the rows
	split     *partitioning // nil without PartitionBy
	file      *arrow.Schema // of the files
	begun     int           // newest manifest at Begin
	vacant    int           // a manifest whose files were removed, all of them

	mu       sync.Mutex
	receipts []*receipt // by part; nil: unfinished
	result   *Result
}

var _ exec.Joint = (*Files)(nil)

// New checks o. No I/O.
func New(o Options) (*Files, error) {
	switch {
	case o.Path == "":
		return nil, fault.New(fault.Invalid, "a file sink needs a path")
	case o.Encoding == nil:
		return nil, fault.New(fault.Invalid, "a file sink needs an encoding")
	case strings.ContainsAny(o.Path, "*?[") && !strings.Contains(o.Path, "://"), strings.ContainsAny(o.DeadLetter, "*"):
		return nil, fault.New(fault.Invalid, "output path %q: a glob cannot be written to", o.Path)
	case o.TargetBytes < 0 || o.BufferBytes < 0:
		return nil, fault.New(fault.Invalid, "sizes must not be negative")
	}
	for _, path := range []string{o.Path, o.DeadLetter} {
		if path != "" {
			err := blobio.Check(path)
			if err == nil {
				err = checkName(path)
			}
			if err != nil {
				return nil, err
			}
		}
	}
	if o.DeadLetter != "" {
		if err := Apart(o.Path, o.DeadLetter); err != nil {
			return nil, err
		}
	}
	if err := checkJobID(o.Job); err != nil {
		return nil, err
	}
	mode := o.Mode
	switch mode {
	case "":
		mode = ModeError
	case ModeError, ModeAppend, ModeOverwrite:
	default:
		return nil, fault.New(fault.Invalid, "unknown mode %q; use error, append or overwrite", o.Mode)
	}
	if o.BufferBytes == 0 {
		o.BufferBytes = DefaultBufferBytes
	}
	return &Files{o: o, mode: mode}, nil
}

// checkJobID: the id is a folder name.
func checkJobID(id string) error {
	ok := id != "" && len(id) <= 128 && strings.Trim(id, ".") != ""
	for _, c := range id {
		ok = ok && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '-' || c == '_')
	}
	if !ok {
		return fault.New(fault.Invalid, "job id %q: use 1 to 128 letters, digits, '.', '-' or '_'", id)
	}
	return nil
}

func randomHex() string {
	var b [8]byte
	rand.Read(b[:]) // never fails
	return hex.EncodeToString(b[:])
}

// Begin implements exec.Sink.
func (s *Files) Begin(ctx context.Context, schema *arrow.Schema, splits []exec.SinkSplit) (_ *exec.SinkPlan, err error) {
	if s.plan != nil {
		return nil, fault.New(fault.Internal, "a sink serves one run")
	}
	defer func() {
		if err != nil && s.out != nil {
			err = s.out.advise(err)
			s.close()
		}
	}()
	if err := s.open(ctx, schema); err != nil {
		return nil, err
	}
	for try := 0; ; try++ {
		m, err := settle(ctx, s.out, s.dead, "")
		if err != nil {
			return nil, err
		}
		s.begun = 0
		if m != nil {
			s.begun = m.Number
		}
		gone, err := s.out.vacated(ctx, m)
		if err != nil {
			return nil, err
		}
		if gone {
			if again, err := s.changed(ctx, try); err != nil || again {
				if err != nil {
					return nil, err
				}
				continue
			}
			s.vacant, m = m.Number, m.vacate()
		}
		lost := error(nil)
		if m != nil && m.has(s.o.Job) {
			if lost, err = s.lost(ctx, m); err != nil {
				return nil, err
			}
		}
		if lost != nil {
			again, err := s.changed(ctx, try)
			switch {
			case err != nil:
				return nil, err
			case again:
				continue
			case s.mode != ModeOverwrite:
				return nil, lost
			}
		} else if m != nil && m.has(s.o.Job) && !(s.mode == ModeOverwrite && len(m.Jobs) > 1) {
			defer s.close()
			by, err := s.committer(ctx, m)
			if err != nil {
				return nil, err
			}
			s.result = s.resultOf(m, by)
			s.result.Already = true
			s.plan = &exec.SinkPlan{Committed: true, Parts: []exec.PartRange{{End: len(splits), Done: true, Rows: s.result.Rows,
				Tally: exec.Tally{Read: s.result.RowsIn, Skipped: map[string]int64{"": s.result.Skipped}}}}}
			return s.plan, s.sweep(ctx, m)
		}
		err = s.enter(ctx, m, splits)
		if err == nil {
			break
		}
		// What is in the way may be a commit that another process makes just now.
		st, serr := s.out.rec.state(ctx)
		if serr != nil || st.newest == s.begun && !st.pending || try == 10 {
			return nil, err
		}
	}
	if s.lock, err = lockStage(ctx, s.out.rec, s.job.dir()+"stage/", s.proc); err != nil {
		return nil, err
	}
	if err := s.loadReceipts(ctx); err != nil {
		return nil, err
	}
	if err := s.cleanStage(ctx); err != nil {
		return nil, err
	}
	s.plan = &exec.SinkPlan{Parts: s.job.ranges()}
	for i, r := range s.receipts {
		if r != nil {
			p := &s.plan.Parts[i]
			p.Done, p.Rows, p.Tally = true, r.Rows, r.Tally
		}
	}
	return s.plan, nil
}

// changed reports that files may be gone since another job replaces them just now; not again and again.
func (s *Files) changed(ctx context.Context, try int) (bool, error) {
	st, err := s.out.rec.state(ctx)
	return (st.newest != s.begun || st.pending) && try < 10, err
}

// open finds the output and the dead letter's folder, and checks what can be checked of them.
func (s *Files) open(ctx context.Context, schema *arrow.Schema) (err error) {
	s.schema, s.file = schema, schema
	if len(s.o.PartitionBy) > 0 {
		if s.split, err = newPartitioning(schema, s.o.PartitionBy); err != nil {
			return err
		}
		s.file = s.split.file
	}
	if err := s.o.Encoding.Check(s.file); err != nil {
		return err
	}
	if s.out, err = openOutput(ctx, s.o.Path, s.o.Blob); err != nil {
		return err
	}
	s.out.hook, s.out.rec.hook = s.hook, s.hook
	if err := s.out.check(); err != nil || s.o.DeadLetter == "" {
		return err
	}
	if s.dead, err = openOutput(ctx, s.o.DeadLetter, s.o.Blob); err != nil {
		return err
	}
	return s.dead.check()
}

// lost is an error if files of the committed job are gone or have another size than
// m, the newest manifest, says. err is that of looking.
func (s *Files) lost(ctx context.Context, m *Manifest) (lost, err error) {
	want := make(map[string]int64)
	for _, f := range m.Files {
		if f.Job == s.o.Job {
			want[f.Path] = f.Bytes
		}
	}
	all := len(want)
	if all == 0 {
		return nil, nil
	}
	for info, err := range s.out.list(ctx, "") {
		if err != nil {
			return nil, err
		}
		rel := strings.TrimPrefix(info.Key, s.out.prefix)
		if n, ok := want[rel]; ok && n == info.Size && !info.Dir {
			delete(want, rel)
		}
	}
	for _, f := range m.Files { // the first in order
		if _, ok := want[f.Path]; ok && f.Job == s.o.Job {
			return fault.New(fault.NotFound, "job %q finished before, but %d of its %d files are missing or have another size, this one first: put them back, "+
				"or run with mode overwrite to write the output anew, or remove all files of the output and run again", s.o.Job, len(want), all).
				At(fault.Place{File: s.out.path(f.Path)}), nil
		}
	}
	return nil, nil
}

// sweep removes what a process left of the job that was late to notice its commit.
func (s *Files) sweep(ctx context.Context, m *Manifest) error {
	job := &jobRecord{Job: s.o.Job}
	if s.dead != nil && m.Job == s.o.Job {
		d, err := s.out.rec.decision(ctx, m.Number)
		if err != nil {
			return err
		}
		if d.Dead != nil && d.Dead.is(s.dead) {
			job.DeadLetter = &d.Dead.deadRecord
		}
	}
	return removeJob(ctx, s.out, s.dead, job, "")
}

// enter checks that the job may write beside newest manifest m (nil: none), and
// finds or makes its record. What it refuses it has written nothing to.
func (s *Files) enter(ctx context.Context, m *Manifest, splits []exec.SinkSplit) error {
	if err := s.checkMode(ctx, m); err != nil {
		return err
	}
	return s.openJob(ctx, m, splits)
}

// checkMode compares what newest manifest m (nil: none) holds with the mode.
func (s *Files) checkMode(ctx context.Context, m *Manifest) error {
	if m != nil && m.Number != s.vacant {
		if s.mode == ModeError {
			return occupied(appendOrReplace, "%s holds the output of job %q (%s, %s): set mode append to add to it, overwrite to replace it, "+
				"or keep mode error and write elsewhere", s.out.path(""), m.Job, units.Count(len(m.Files), "file"), units.Count(m.Rows, "row"))
		}
		if s.mode == ModeAppend && len(m.Files) > 0 {
			if m.Format != s.o.Encoding.Kind() {
				return fault.New(fault.Invalid, "%s holds %s files: %s files cannot be appended; write elsewhere or overwrite", s.out.path(""), m.Format, s.o.Encoding.Kind())
			}
			if strings.Join(m.PartitionBy, "\x00") != strings.Join(s.o.PartitionBy, "\x00") {
				return fault.New(fault.Invalid, "%s is partitioned by %q: files partitioned by %q cannot be appended", s.out.path(""), m.PartitionBy, s.o.PartitionBy)
			}
		}
	}
	if s.mode != ModeError {
		return nil
	}
	for info, err := range s.out.rec.listDir(ctx, jobsDir) {
		if err != nil {
			return err
		}
		job := path.Base(info.Key)
		if !info.Dir || job == s.o.Job {
			continue
		}
		if _, err := s.out.b.Stat(ctx, s.out.rec.prefix+jobsDir+job+"/job.json"); fault.CodeOf(err) == fault.NotFound {
			continue
		} else if err != nil {
			return err
		}
		return occupied(appendOrReplace, "%s holds unfinished output of job %q: run that job again to finish it, or remove %s, or set mode append or overwrite (mode is error)",
			s.out.path(""), job, s.out.rec.path(jobsDir+job))
	}
	return nil
}

// checkForeign looks for visible files that no manifest lists; tag is in the names of those that the job will make.
func (s *Files) checkForeign(ctx context.Context, m *Manifest, tag string) error {
	known := make(map[string]struct{})
	if m != nil {
		for _, f := range m.Files {
			known[f.Path] = struct{}{}
		}
	}
	for info, err := range s.out.list(ctx, "") {
		if err != nil {
			return err
		}
		rel := strings.TrimPrefix(info.Key, s.out.prefix)
		if _, ok := known[rel]; ok || info.Dir || hidden(rel) {
			continue
		}
		switch {
		case s.mode == ModeError:
			return occupied([]string{ModeAppend}, "%s is not empty: %s was not written by this job: set mode append to keep it, or write elsewhere "+
				"(mode is error; overwrite replaces only what a manifest lists)", s.out.path(""), s.out.path(rel))
		case s.mode == ModeOverwrite && strings.HasSuffix(rel, s.o.Encoding.Extension()):
			return fault.New(fault.Exists, "%s is listed by no manifest, and overwrite removes only files that one lists: move it away, or set mode append", s.out.path(rel))
		case strings.HasPrefix(path.Base(rel), "part-"+tag+"-"):
			return fault.New(fault.Exists, "%s is in the way of this job and no manifest lists it: move it away", s.out.path(rel))
		}
	}
	return nil
}

// hidden reports whether readers of a folder skip rel.
func hidden(rel string) bool {
	for seg := range strings.SplitSeq(rel, "/") {
		if strings.HasPrefix(seg, "_") || strings.HasPrefix(seg, ".") {
			return true
		}
	}
	return false
}

// NewPart implements exec.Sink.
func (s *Files) NewPart(ctx context.Context, part int, env *exec.Env) (exec.PartWriter, error) {
	if s.job == nil || s.out == nil || part < 0 || part >= len(s.receipts) {
		return nil, fault.New(fault.Internal, "part %d: no such part", part)
	}
	return newPartWriter(ctx, s, part, env), nil
}

// won keeps the receipt of a finished part.
func (s *Files) won(r *receipt) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.receipts[r.Part] = r
}

// Abort implements exec.Sink. Finished parts stay for the next run of the job;
// where there are none, nothing stays.
func (s *Files) Abort(ctx context.Context) error {
	if s.out == nil {
		return nil
	}
	defer s.close()
	if s.job == nil {
		return nil
	}
	s.mu.Lock()
	any := false
	for _, r := range s.receipts {
		any = any || r != nil
	}
	s.mu.Unlock()
	if any {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()
	live, err := atWork(ctx, s.out.rec, s.job.dir()+"stage/", s.proc)
	if err != nil || len(live) > 0 {
		return err // another process is at the same job
	}
	return removeJob(ctx, s.out, s.dead, s.job, s.proc)
}

// Result is what was committed; nil before Commit (or Begin, for a job that was
// committed before).
func (s *Files) Result() *Result { return s.result }

// committer is the manifest that the job committed, where m is a later one that has it too.
func (s *Files) committer(ctx context.Context, m *Manifest) (*Manifest, error) {
	for m.Job != s.o.Job && m.Number > 1 {
		var err error
		if m, err = s.out.rec.manifest(ctx, m.Number-1); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// resultOf is the job's, by manifest m, which has it, and the one that it committed.
func (s *Files) resultOf(m, by *Manifest) *Result {
	r := &Result{Job: s.o.Job, Manifest: m.Number, RowsIn: by.RowsIn, Skipped: by.Skipped}
	for _, f := range m.Files {
		if f.Job == s.o.Job {
			r.List = append(r.List, f)
			r.Files++
			r.Rows += f.Rows
			r.Bytes += f.Bytes
		}
	}
	return r
}

func (s *Files) close() {
	s.lock.unlock()
	var errs []error
	for _, r := range []*output{s.out, s.dead} {
		if r != nil {
			errs = append(errs, r.b.Close())
		}
	}
	_ = errors.Join(errs...) // connections only: nothing of the output hangs on them
	s.lock, s.out, s.dead = nil, nil, nil
}

func partName(tag string, part, roll int, ext string) string {
	return fmt.Sprintf("part-%s-%05d-%03d%s", tag, part, roll, ext)
}
