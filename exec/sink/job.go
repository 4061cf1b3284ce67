package sink

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net/url"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"golang.org/x/sync/errgroup"
)

// jobRecord is what all runs of a job must agree on: `jobs/<job>/job.json`,
// written by the first.
type jobRecord struct {
	Version     int             `json:"version"`
	Job         string          `json:"job"`
	Base        int             `json:"base"` // newest manifest when the job began
	Tag         string          `json:"tag"`  // in file names
	Parts       []int           `json:"parts"`
	Splits      int             `json:"splits"`
	Digest      string          `json:"digest"` // of the splits
	Schema      string          `json:"schema"` // its hash
	Format      string          `json:"format"`
	Config      json.RawMessage `json:"config,omitempty"`
	PartitionBy []string        `json:"partition_by,omitempty"`
	DeadLetter  *deadRecord     `json:"dead_letter,omitempty"`
}

// deadRecord says where the rows that were left out go.
type deadRecord struct {
	URL    string `json:"url"` // of the bucket
	Prefix string `json:"prefix"`
	Tag    string `json:"tag"` // in file names
}

// receipt says that a part is finished: `jobs/<job>/part-00007.json`,
// create-only. Its files lie in stage/<Attempt>/ of the job's folder, under their later names.
type receipt struct {
	Version int        `json:"version"`
	Job     string     `json:"job"`
	Digest  string     `json:"digest"` // of the job's splits
	Tag     string     `json:"tag"`    // the job's
	Part    int        `json:"part"`
	First   int        `json:"first"` // splits
	End     int        `json:"end"`
	Attempt string     `json:"attempt"`
	Rows    int64      `json:"rows"`
	Skipped int64      `json:"skipped,omitempty"`
	Files   []partFile `json:"files"`
	Dead    *partFile  `json:"dead,omitempty"`
	Tally   exec.Tally `json:"tally"` // what the part's rows came from
}

type partFile struct {
	Path  string `json:"path"`
	Rows  int64  `json:"rows"`
	Bytes int64  `json:"bytes"`
}

func (j *jobRecord) dir() string { return jobsDir + j.Job + "/" }

// deadDir is the job's folder below the dead letter's: two outputs may have jobs of one name.
func (j *jobRecord) deadDir() string { return jobsDir + j.Job + "-" + j.DeadLetter.Tag + "/" }

func receiptName(part int) string { return "part-" + pad5(part) + ".json" }

func pad5(n int) string {
	s := strconv.Itoa(n)
	return strings.Repeat("0", max(0, 5-len(s))) + s
}

func (j *jobRecord) ranges() []exec.PartRange {
	rs := make([]exec.PartRange, len(j.Parts))
	for i, first := range j.Parts {
		rs[i] = exec.PartRange{First: first, End: j.Splits}
		if i+1 < len(j.Parts) {
			rs[i].End = j.Parts[i+1]
		}
	}
	return rs
}

// record is what this process would have the job be.
func (s *Files) record(splits []exec.SinkSplit) *jobRecord {
	want := &jobRecord{Version: Version, Job: s.o.Job, Base: s.begun, Splits: len(splits), Digest: digestSplits(splits),
		Parts: group(splits, s.o.TargetBytes), Schema: schemaHash(s.schema), Format: s.o.Encoding.Kind(), Config: s.o.Encoding.Config(),
		PartitionBy: s.o.PartitionBy}
	var config bytes.Buffer
	if err := json.Compact(&config, want.Config); err == nil {
		want.Config = config.Bytes() // as it comes back
	}
	return want
}

// openJob agrees with earlier and concurrent runs of the job on its record, which it makes where no files
// are in the way. m is the newest manifest; the job is not in it, or has lost files of it.
func (s *Files) openJob(ctx context.Context, m *Manifest, splits []exec.SinkSplit) error {
	s.proc = randomHex()
	want := s.record(splits)
	// A job that was replaced and runs again uses new names: whoever still removes the old
	// files does not hit the new ones.
	want.Tag = tagOf(s.o.Job)
	if s.begun > 0 {
		want.Tag = short(s.o.Job, strconv.Itoa(s.begun))
	}
	if s.dead != nil {
		want.DeadLetter = &deadRecord{URL: s.dead.url, Prefix: s.dead.prefix, Tag: short(s.o.Job, s.out.id(), strconv.Itoa(s.begun))}
	}
	name := want.dir() + "job.json"
	looked := "" // the tag with which foreign files were looked for
	for range 3 {
		data, err := s.out.b.ReadAll(ctx, s.out.rec.prefix+name, maxSmall)
		if fault.CodeOf(err) == fault.NotFound {
			if err := s.checkForeign(ctx, m, want.Tag); err != nil { // before anything is written
				return err
			}
			looked = want.Tag
			if data, err = json.Marshal(want); err == nil {
				_, err = s.out.rec.putNew(ctx, name, data) // and read it again: another process may have been first
			}
			if err != nil {
				return err
			}
			continue
		}
		if err != nil {
			return err
		}
		have, err := decodeJob(data)
		if err == nil && have.Job != s.o.Job {
			err = fault.New(fault.Corrupt, "it is of job %q", have.Job)
		}
		if err != nil {
			return fault.Wrap(err, fault.Place{File: s.out.rec.path(name)})
		}
		s.job = have
		old, err := s.committed(ctx, m)
		if err != nil {
			return err
		}
		if old != nil { // and replaced since: this run is a new life of the job
			if err := removeJob(ctx, s.out, s.dead, have, ""); err != nil {
				return err
			}
			s.job = nil
			continue
		}
		if err := want.agrees(have); err != nil {
			return err.(*fault.Error).At(fault.Place{File: s.out.rec.path(want.dir())})
		}
		if have.Tag != looked {
			if err := s.checkForeign(ctx, m, have.Tag); err != nil {
				return err
			}
		}
		s.receipts = make([]*receipt, len(have.Parts))
		return nil
	}
	return fault.New(fault.Unavailable, "the job's record comes and goes: is another process removing it?").At(fault.Place{File: s.out.rec.path(name)})
}

// is reports that it is the folder r, which may be nil.
func (d *deadRecord) is(r *output) bool { return r != nil && d.URL == r.url && d.Prefix == r.prefix }

// String is how a user would write the folder.
func (d *deadRecord) String() string {
	u, err := url.Parse(d.URL)
	if err != nil {
		return d.URL + " " + d.Prefix
	}
	if u.Scheme == "file" {
		return path.Join(u.Path, d.Prefix)
	}
	place, query, has := strings.Cut(d.URL, "?")
	if has {
		query = "?" + query
	}
	return strings.TrimSuffix(place, "/") + "/" + d.Prefix + query
}

// agrees: other options of a run may differ, not what the output is made of.
func (j *jobRecord) agrees(have *jobRecord) error {
	differ := ""
	deadOf := func(j *jobRecord) string {
		if j.DeadLetter == nil {
			return ""
		}
		return j.DeadLetter.URL + "\x00" + j.DeadLetter.Prefix
	}
	switch {
	case j.Splits != have.Splits || j.Digest != have.Digest:
		differ = "data"
	case j.Schema != have.Schema:
		differ = "schema"
	case j.Format != have.Format || string(j.Config) != string(have.Config):
		differ = "format or its options"
	case !slices.Equal(j.PartitionBy, have.PartitionBy):
		differ = "partition columns"
	case deadOf(j) != deadOf(have) && have.DeadLetter == nil:
		return fault.New(fault.Exists, "an unfinished run of job %q had no dead letter folder: leave it out to go on, or remove the folder to start over", j.Job)
	case deadOf(j) != deadOf(have):
		return fault.New(fault.Exists, "an unfinished run of job %q had the dead letter folder %s: set that to go on, or remove the folder to start over", j.Job, have.DeadLetter)
	default:
		return nil
	}
	return fault.New(fault.Exists, "an unfinished run of job %q had another %s: change it back to go on, or remove the folder to start over; with mode append or overwrite another id will do, too", j.Job, differ)
}

func (s *Files) loadReceipts(ctx context.Context) error {
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(inFlight)
	for info, err := range s.out.rec.listDir(ctx, s.job.dir()) {
		if err != nil {
			g.Go(func() error { return err })
			break
		}
		var part int
		if name := path.Base(info.Key); !info.Dir && strings.HasPrefix(name, "part-") {
			part, err = strconv.Atoi(strings.TrimSuffix(name[len("part-"):], ".json"))
			if err != nil || name != receiptName(part) || part >= len(s.receipts) {
				continue
			}
		} else {
			continue
		}
		g.Go(func() error {
			r, err := s.readReceipt(gctx, part)
			if err == nil && r != nil {
				s.won(r)
			}
			return err
		})
	}
	return g.Wait()
}

// readReceipt returns nil if there is none. One of an earlier life of the job, committed and
// replaced since, comes from a process that was late to notice: it is removed.
func (s *Files) readReceipt(ctx context.Context, part int) (*receipt, error) {
	name := s.job.dir() + receiptName(part)
	data, err := s.out.b.ReadAll(ctx, s.out.rec.prefix+name, maxSmall)
	if fault.CodeOf(err) == fault.NotFound {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	r, err := decodeReceipt(data)
	if err == nil && r.Tag != s.job.Tag {
		return nil, s.out.b.Delete(ctx, s.out.rec.prefix+name)
	}
	if pr := s.job.ranges()[part]; err == nil && (r.Job != s.job.Job || r.Part != part || r.Digest != s.job.Digest || r.First != pr.First || r.End != pr.End) {
		err = fault.New(fault.Corrupt, "it is of another part (%d of job %q)", r.Part, r.Job)
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Place{File: s.out.rec.path(name)})
	}
	return r, nil
}

// cleanStage removes what killed runs of the job left half written, where it can be told
// that they are dead: in local folders. Elsewhere it goes at commit.
func (s *Files) cleanStage(ctx context.Context) error {
	stage := s.job.dir() + "stage/"
	folder, err := s.out.rec.folder()
	if folder == nil || err != nil {
		return err
	}
	defer folder.Close()
	for info, err := range s.out.rec.listDir(ctx, stage) {
		if err != nil {
			return err
		}
		proc := path.Base(info.Key)
		if !info.Dir || proc == s.proc || !isHex(proc, 8) {
			continue
		}
		l, _, err := tryLock(folder, stage+proc+"/lock", 0)
		if err != nil {
			return s.out.rec.fail(stage+proc+"/lock", err)
		}
		if l == nil {
			continue // at work
		}
		err = s.cleanProc(ctx, proc)
		l.unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// cleanProc removes the attempts of a dead process that no receipt names. Its
// folders below the dead letter go too.
func (s *Files) cleanProc(ctx context.Context, proc string) error {
	clean := func(r *root, dir string) error {
		kept := false
		for info, err := range r.listDir(ctx, dir+"stage/"+proc+"/") {
			if err != nil {
				return err
			}
			attempt := path.Base(info.Key)
			num, _, _ := strings.Cut(attempt, "-")
			part, err := strconv.Atoi(num)
			if !info.Dir || err != nil || part < 0 || part >= len(s.receipts) {
				continue
			}
			// It may have finished after receipts were loaded, just before it died.
			rc, err := s.readReceipt(ctx, part)
			if err != nil {
				return err
			}
			if rc != nil {
				s.won(rc)
				if rc.Attempt == proc+"/"+attempt {
					kept = true
					continue
				}
			}
			if err := r.removeTree(ctx, dir+"stage/"+proc+"/"+attempt+"/"); err != nil {
				return err
			}
		}
		if kept {
			return nil
		}
		return r.removeTree(ctx, dir+"stage/"+proc+"/")
	}
	if err := clean(s.out.rec, s.job.dir()); err != nil {
		return err
	}
	if s.dead == nil {
		return nil
	}
	return clean(s.dead.rec, s.job.deadDir())
}

func decodeJob(data []byte) (*jobRecord, error) {
	j := new(jobRecord)
	if err := decode(data, j); err != nil {
		return nil, err
	}
	bad := func(what string) (*jobRecord, error) { return nil, fault.New(fault.Corrupt, "bad %s", what) }
	if err := checkJobID(j.Job); err != nil {
		return bad("job")
	}
	if !isHex(j.Tag, 4) || j.DeadLetter != nil && !isHex(j.DeadLetter.Tag, 4) {
		return bad("tag")
	}
	if j.Base < 0 || j.Splits < 0 || len(j.Parts) > maxParts || (j.Splits == 0) != (len(j.Parts) == 0) {
		return bad("number")
	}
	for i, first := range j.Parts {
		if i == 0 && first != 0 || i > 0 && first <= j.Parts[i-1] || first >= j.Splits {
			return bad("parts")
		}
	}
	return j, nil
}

func decodeReceipt(data []byte) (*receipt, error) {
	r := new(receipt)
	if err := decode(data, r); err != nil {
		return nil, err
	}
	bad := func(what string) (*receipt, error) { return nil, fault.New(fault.Corrupt, "bad %s", what) }
	if part, err := attemptPart(r.Attempt); err != nil || part != r.Part || !isHex(r.Tag, 4) {
		return bad("attempt")
	}
	if r.Part < 0 || r.Part >= maxParts || r.First < 0 || r.End <= r.First || r.Skipped < 0 || len(r.Files) > maxPartFiles {
		return bad("number")
	}
	files := r.Files
	if r.Dead != nil {
		files = append(slices.Clip(files), *r.Dead)
	}
	var rows int64
	for i, f := range files {
		if err := checkPath(f.Path); err != nil {
			return nil, err
		}
		if f.Rows < 0 || f.Bytes < 0 || rows+f.Rows < rows {
			return bad("number")
		}
		if i < len(r.Files) {
			rows += f.Rows
		}
	}
	if rows != r.Rows || rows+r.Skipped < rows {
		return bad("sum of rows")
	}
	skipped := int64(0)
	for _, n := range r.Tally.Skipped {
		if n < 1 || skipped+n < skipped {
			return bad("tally")
		}
		skipped += n
	}
	if r.Tally.Read < 0 || r.Tally.Span < 0 || r.Tally.Span == 0 && rows+r.Skipped > 0 || skipped != r.Skipped {
		return bad("tally")
	}
	return r, nil
}

// attemptPart is the part of an attempt, by its place below stage/: PROCESS/PART-RANDOM.
func attemptPart(attempt string) (int, error) {
	proc, name, _ := strings.Cut(attempt, "/")
	num, rnd, _ := strings.Cut(name, "-")
	part, err := strconv.Atoi(num)
	if err != nil || part < 0 || num != pad5(part) || !isHex(proc, 8) || !isHex(rnd, 8) {
		return 0, fault.New(fault.Corrupt, "bad attempt %q", attempt)
	}
	return part, nil
}

func isHex(s string, n int) bool {
	b, err := hex.DecodeString(s)
	return err == nil && len(b) == n
}

func schemaHash(s *arrow.Schema) string {
	h := sha256.Sum256([]byte(s.String()))
	return hex.EncodeToString(h[:])
}
