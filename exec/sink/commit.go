package sink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"time"

	"github.com/apache/arrow-go/v18/arrow/memory"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
)

// maxTries bounds the commits of other jobs that one commit waits out.
const maxTries = 100

// decision is what decides a commit: `000N.pending`, create-only, the
// first wins, never removed. It says all that is to be done, so any process can do it.
type decision struct {
	Version  int      `json:"version"`
	Manifest Manifest `json:"manifest"`
	Moves    []move   `json:"moves"`
	Dead     *struct {
		deadRecord
		Moves []move `json:"moves"`
	} `json:"dead,omitempty"`
}

func decodeDecision(data []byte) (*decision, error) {
	d := new(decision)
	if err := decode(data, d); err != nil {
		return nil, err
	}
	if d.Manifest.Version != Version {
		return nil, fault.New(fault.Corrupt, "bad manifest version")
	}
	if err := d.Manifest.check(); err != nil {
		return nil, err
	}
	check := func(dir string, ms []move) error {
		if len(ms) > maxFiles {
			return fault.New(fault.Corrupt, "%d moves", len(ms))
		}
		for _, m := range ms {
			if err := errors.Join(checkPath(m.From), checkPath(m.To)); err != nil {
				return err
			}
			attempt, staged := strings.CutPrefix(m.From, dir+"stage/")
			attempt, same := strings.CutSuffix(attempt, "/"+m.To+stagedExt)
			if _, err := attemptPart(attempt); !staged || !same || err != nil || hidden(m.To) || m.Bytes < 0 {
				return fault.New(fault.Corrupt, "bad move of %q to %q", m.From, m.To)
			}
		}
		return nil
	}
	if d.Dead != nil {
		if !isHex(d.Dead.Tag, 4) {
			return nil, fault.New(fault.Corrupt, "bad tag")
		}
		job := &jobRecord{Job: d.Manifest.Job, DeadLetter: &d.Dead.deadRecord}
		if err := check(job.deadDir(), d.Dead.Moves); err != nil {
			return nil, err
		}
	}
	return d, check((&jobRecord{Job: d.Manifest.Job}).dir(), d.Moves)
}

func (r *root) decision(ctx context.Context, n int) (*decision, error) {
	name := numbered(n, "pending")
	data, err := r.b.ReadAll(ctx, r.prefix+name, maxManifest)
	if err != nil {
		return nil, err
	}
	d, err := decodeDecision(data)
	if err == nil && d.Manifest.Number != n {
		err = fault.New(fault.Corrupt, "it says to be number %d", d.Manifest.Number)
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Place{File: r.path(name)})
	}
	return d, nil
}

// settle carries out what is decided but not done, whoever decided it, and
// returns the newest manifest, nil if there is none. dead is the dead letter folder that this run names, nil if it names none: what a record names
// is not gone to. own is this process's stage folder, for removeJob.
func settle(ctx context.Context, out, dead *output, own string) (*Manifest, error) {
	st, err := out.rec.state(ctx)
	if err != nil {
		return nil, err
	}
	if st.pending {
		if err := carryOut(ctx, out, dead, st.newest+1); err != nil {
			return nil, err
		}
		if st, err = out.rec.state(ctx); err != nil {
			return nil, err
		}
	}
	if st.newest == 0 {
		return nil, nil
	}
	if !st.tidy {
		if err := tidy(ctx, out, dead, st.newest, own); err != nil {
			return nil, err
		}
	}
	return out.rec.manifest(ctx, st.newest)
}

// carryOut makes decided commit n visible: first its files, then the manifest.
func carryOut(ctx context.Context, out, dead *output, n int) error {
	d, err := out.rec.decision(ctx, n)
	if err != nil {
		return err
	}
	err = out.publish(ctx, d.Moves)
	if err == nil && d.Dead != nil && len(d.Dead.Moves) > 0 {
		if d.Dead.is(dead) {
			err = dead.publish(ctx, d.Dead.Moves)
		} else {
			err = fault.New(fault.Exists, "the rows that it left out go to the dead letter folder %s, which a record names and this run does not: run the job with it", &d.Dead.deadRecord)
		}
	}
	name := numbered(n, "json")
	if err != nil {
		// Another process may have been faster, and have removed what we missed.
		if done, herr := out.rec.has(ctx, name); herr == nil && done {
			return nil
		}
		return fmt.Errorf("commit %d of job %q is decided, but its files are not all in place yet (run a job on this output again): %w", n, d.Manifest.Job, err)
	}
	data, err := json.MarshalIndent(&d.Manifest, "", " ")
	if err != nil {
		return fault.New(fault.Internal, "manifest: %w", err)
	}
	_, err = out.rec.putNew(ctx, name, data) // existing: written by another process from the same decision
	return err
}

// tidy removes what commit n made superfluous: the files it replaced and the
// job's own records. It may be repeated and run by several processes.
func tidy(ctx context.Context, out, dead *output, n int, own string) error {
	d, err := out.rec.decision(ctx, n)
	if err != nil {
		return err
	}
	m := &d.Manifest
	if m.Mode == ModeOverwrite && n > 1 {
		prev, err := out.rec.manifest(ctx, n-1)
		if err != nil {
			return err
		}
		keep := make(map[string]struct{}, len(m.Files))
		for _, f := range m.Files {
			keep[f.Path] = struct{}{}
		}
		var gone []string
		for _, f := range prev.Files {
			if _, ok := keep[f.Path]; !ok {
				gone = append(gone, f.Path)
			}
		}
		if err := out.remove(ctx, gone); err != nil {
			return err
		}
	}
	job := &jobRecord{Job: m.Job}
	if d.Dead != nil && d.Dead.is(dead) { // elsewhere it stays, out of sight
		job.DeadLetter = &d.Dead.deadRecord
	}
	if err := removeJob(ctx, out, dead, job, own); err != nil {
		return err
	}
	_, err = out.rec.putNew(ctx, numbered(n, "tidy"), []byte("{}\n"))
	return err
}

// Commit implements exec.Sink: it decides the job's commit, or finds that
// another process did, and makes it visible.
func (s *Files) Commit(ctx context.Context, env *exec.CommitEnv) error {
	if s.result != nil {
		return nil
	}
	if s.out == nil || s.job == nil {
		return fault.New(fault.Internal, "Commit without Begin")
	}
	defer s.close()
	for part, r := range s.receipts {
		if r == nil {
			return fault.New(fault.Internal, "Commit with part %d unfinished", part)
		}
	}
	var files []staged // nil: not known yet
	for try := range maxTries {
		if try > 0 {
			if err := pause(ctx, time.Duration(try)*20*time.Millisecond); err != nil {
				return err
			}
		}
		m, err := settle(ctx, s.out, s.dead, s.proc)
		if err != nil {
			return err
		}
		mine, err := s.committed(ctx, m)
		if err != nil {
			return err
		}
		if mine != nil {
			s.result = s.resultOf(mine, mine)
			if !m.has(s.o.Job) {
				return nil // replaced by another job already: what is there may be a new life of this one
			}
			return removeJob(ctx, s.out, s.dead, s.job, s.proc)
		}
		if m != nil && m.Number == s.vacant {
			m = m.vacate()
		}
		if m != nil && m.Number != s.begun {
			if err := s.checkMode(ctx, m); err != nil { // another job was faster
				return err
			}
		}
		if files == nil {
			files, err = s.joined(ctx, env)
		}
		var d *decision
		if err == nil {
			d, err = s.decide(ctx, m, files)
		}
		if err != nil {
			// Another process of this job may have committed since the look above, and taken the files away.
			if now, serr := settle(ctx, s.out, s.dead, s.proc); serr == nil && now != nil && (m == nil || now.Number != m.Number) {
				continue
			}
			return err
		}
		data, err := json.Marshal(d)
		if err != nil {
			return fault.New(fault.Internal, "commit: %w", err)
		}
		if len(data) > maxManifest {
			return fault.New(fault.Unsupported, "the manifest would take %d bytes: write to another folder, or fewer and larger files", len(data))
		}
		if _, err := s.out.rec.putNew(ctx, numbered(d.Manifest.Number, "pending"), data); err != nil {
			return err
		}
		// Won or lost, what is decided is carried out at the top of the loop.
	}
	return fault.New(fault.Unavailable, "other jobs commit to %s all the time; run again", s.out.path(""))
}

// committed looks for the manifest that the job became part of since it began; nil
// if there is none up to m, the newest.
func (s *Files) committed(ctx context.Context, m *Manifest) (*Manifest, error) {
	if m == nil || m.Job == s.o.Job && m.Number > s.job.Base {
		return m, nil
	}
	for n := m.Number - 1; n > s.job.Base; n-- {
		old, err := s.out.rec.manifest(ctx, n)
		if err != nil {
			return nil, err
		}
		if old.Job == s.o.Job {
			return old, nil
		}
	}
	return nil, nil
}

// pause waits a random time up to d.
func pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(rand.N(d))
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// decide writes down the commit of files that follows newest manifest prev (nil: none).
// Everything it refers to is there.
func (s *Files) decide(ctx context.Context, prev *Manifest, files []staged) (*decision, error) {
	d := &decision{Version: Version, Manifest: Manifest{Version: Version, Number: 1, Job: s.o.Job, Mode: s.mode, Format: s.o.Encoding.Kind(),
		PartitionBy: s.o.PartitionBy, Metadata: s.o.Metadata}}
	m := &d.Manifest
	taken := make(map[string]struct{})
	if prev != nil {
		m.Number = prev.Number + 1
		for _, f := range prev.Files {
			taken[f.Path] = struct{}{}
		}
		if s.mode == ModeAppend {
			m.Jobs = append(m.Jobs, prev.Jobs...)
			m.Files = append(m.Files, prev.Files...)
			m.Rows, m.Bytes = prev.Rows, prev.Bytes
		}
	}
	m.Jobs = append(m.Jobs, s.o.Job)
	add := func(attempt string, f partFile) error {
		if _, ok := taken[f.Path]; ok {
			return fault.New(fault.Exists, "another job has a file of this name: run this job under another id").At(fault.Place{File: s.out.path(f.Path)})
		}
		m.Files = append(m.Files, File{Path: f.Path, Job: s.o.Job, Rows: f.Rows, Bytes: f.Bytes})
		m.Rows, m.Bytes = m.Rows+f.Rows, m.Bytes+f.Bytes
		d.Moves = append(d.Moves, move{From: stagedPath(s.job.dir(), attempt, f.Path), To: f.Path, Bytes: f.Bytes})
		return nil
	}
	for _, f := range files {
		if err := add(f.attempt, f.partFile); err != nil {
			return nil, err
		}
	}
	var dead []move
	for _, r := range s.receipts {
		m.RowsIn, m.Skipped = m.RowsIn+r.Tally.Read, m.Skipped+r.Skipped
		if r.Dead != nil {
			dead = append(dead, move{From: stagedPath(s.job.deadDir(), r.Attempt, r.Dead.Path), To: r.Dead.Path, Bytes: r.Dead.Bytes})
		}
	}
	if len(m.Files) == 0 && s.split == nil {
		f, attempt, err := s.writeEmpty(ctx)
		if err != nil {
			return nil, err
		}
		if err := add(attempt, f); err != nil {
			return nil, err
		}
	}
	if len(m.Files) > maxFiles {
		return nil, fault.New(fault.Unsupported, "%d files in one output, more than %d: write to another folder, or larger files", len(m.Files), maxFiles)
	}
	if err := s.out.rec.staged(ctx, s.job.dir(), d.Moves); err != nil {
		return nil, err
	}
	if s.job.DeadLetter != nil {
		d.Dead = &struct {
			deadRecord
			Moves []move `json:"moves"`
		}{*s.job.DeadLetter, dead}
		if err := s.dead.rec.staged(ctx, s.job.deadDir(), dead); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// stagedPath is where an attempt stages the file that will be p, below the records; job is its job's folder there.
func stagedPath(job, attempt, p string) string { return job + "stage/" + attempt + "/" + p + stagedExt }

// staged checks that everything to be moved from r is there; job is the job's folder in it.
func (r *root) staged(ctx context.Context, job string, moves []move) error {
	have := make(map[string]int64)
	for info, err := range r.list(ctx, job+"stage/") {
		if err != nil {
			return err
		}
		have[strings.TrimPrefix(info.Key, r.prefix)] = info.Size
	}
	for _, m := range moves {
		if n, ok := have[m.From]; !ok || n != m.Bytes {
			return fault.New(fault.Corrupt, "a finished file of the job is missing or has changed: remove %s and run the job again",
				r.path(path.Clean(job))).At(fault.Place{File: r.path(m.From)})
		}
	}
	return nil
}

// writeEmpty stages a file without rows: an output has at least one file, from
// which readers know its schema.
func (s *Files) writeEmpty(ctx context.Context) (partFile, string, error) {
	w := newPartFiles(ctx, s, 0, memory.DefaultAllocator)
	defer w.end()
	f, err := w.open("")
	if err == nil {
		err = w.closeFile(f)
	}
	if err == nil {
		err = w.closing.Wait()
	}
	if err != nil {
		w.discard(ctx)
		return partFile{}, "", err
	}
	return w.done[0], w.attempt, nil
}
