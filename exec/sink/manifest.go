package sink

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
)

// Version of all that is written beside outputs.
const Version = 2

const (
	jobsDir   = "jobs/"
	stagedExt = ".staged" // no reader takes a file for one of its format before it is decided

	maxManifest = 512 << 20 // bytes
	maxSmall    = 64 << 20  // bytes of a job record or receipt
	maxKey      = 1024
)

// Manifest lists all files of an output as of one commit.
type Manifest struct {
	Version     int               `json:"version"`
	Number      int               `json:"number"`
	Job         string            `json:"job"` // that committed it
	Mode        string            `json:"mode"`
	Format      string            `json:"format"`
	PartitionBy []string          `json:"partition_by,omitempty"`
	Metadata    map[string]string `json:"metadata,omitempty"`
	Jobs        []string          `json:"jobs"` // whose rows are here
	Rows        int64             `json:"rows"`
	Bytes       int64             `json:"bytes"`
	RowsIn      int64             `json:"rows_in,omitempty"` // rows that Job read from its sources
	Skipped     int64             `json:"skipped,omitempty"` // rows that Job left out
	Files       []File            `json:"files"`
}

// File is a file of an output.
type File struct {
	Path  string `json:"path"` // below the output's folder
	Job   string `json:"job"`
	Rows  int64  `json:"rows"`
	Bytes int64  `json:"bytes"`
}

func (m *Manifest) has(job string) bool { return slices.Contains(m.Jobs, job) }

// ReadManifest returns the newest manifest of the output in folder p, a path or
// bucket URL, and how a user would write that folder. An output without one is a NotFound error,
// one written by another version Unsupported.
func ReadManifest(ctx context.Context, p string, o *blobio.Options) (*Manifest, error) {
	out, err := openOutput(ctx, p, o)
	if err != nil {
		return nil, err
	}
	defer out.b.Close()
	st, err := out.rec.state(ctx)
	if err != nil {
		return nil, err
	}
	if st.newest == 0 {
		return nil, fault.New(fault.NotFound, "no manifest: nothing was committed to this folder").At(fault.Place{File: out.path("")})
	}
	return out.rec.manifest(ctx, st.newest)
}

// state is what the names of an output's records say.
type state struct {
	newest  int  // manifest; 0: none
	pending bool // newest+1 is decided, but not yet visible
	tidy    bool // nothing is left to be removed after newest
}

// state is that of the output whose records are in r.
func (r *root) state(ctx context.Context) (st state, err error) {
	pending, tidy := 0, 0
	for info, err := range r.listDir(ctx, "") {
		if err != nil {
			return st, err
		}
		switch n, kind := parseNumber(path.Base(info.Key)); kind {
		case "json":
			st.newest = max(st.newest, n)
		case "pending":
			pending = max(pending, n)
		case "tidy":
			tidy = max(tidy, n)
		}
	}
	st.pending, st.tidy = pending > st.newest, tidy >= st.newest
	if pending > st.newest+1 {
		return st, fault.New(fault.Corrupt, "manifest %s is missing", numbered(pending-1, "json")).At(fault.Place{File: r.path("")})
	}
	return st, nil
}

// numbered is the name of commit n's file of a kind: 0007.json.
func numbered(n int, kind string) string { return fmt.Sprintf("%04d.%s", n, kind) }

func parseNumber(name string) (n int, kind string) {
	num, kind, _ := strings.Cut(name, ".")
	if n, err := strconv.Atoi(num); err == nil && n > 0 && n < math.MaxInt32 && name == numbered(n, kind) {
		return n, kind
	}
	return 0, ""
}

func (r *root) manifest(ctx context.Context, n int) (*Manifest, error) {
	name := numbered(n, "json")
	data, err := r.b.ReadAll(ctx, r.prefix+name, maxManifest)
	if err != nil {
		return nil, err
	}
	m, err := decodeManifest(data)
	if err == nil && m.Number != n {
		err = fault.New(fault.Corrupt, "it says to be number %d", m.Number)
	}
	if err != nil {
		return nil, fault.Wrap(err, fault.Place{File: r.path(name)})
	}
	return m, nil
}

func decodeManifest(data []byte) (*Manifest, error) {
	m := new(Manifest)
	if err := decode(data, m); err != nil {
		return nil, err
	}
	return m, m.check()
}

// decode reads one JSON document strictly: this version, no unknown key, nothing after it.
func decode(data []byte, v any) error {
	var head struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(data, &head); err != nil {
		return fault.New(fault.Corrupt, "%w", err)
	}
	switch {
	case head.Version == nil || *head.Version < 1:
		return fault.New(fault.Corrupt, "no version")
	case *head.Version > Version:
		return fault.New(fault.Unsupported, "version %d, and this program reads %d: use a newer one", *head.Version, Version)
	case *head.Version < Version:
		return fault.New(fault.Unsupported, "version %d, and this program reads %d: use the one that wrote it", *head.Version, Version)
	}
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(v); err != nil {
		return fault.New(fault.Corrupt, "%w", err)
	}
	if _, err := d.Token(); err != io.EOF {
		return fault.New(fault.Corrupt, "data after the end")
	}
	return nil
}

func (m *Manifest) check() error {
	bad := func(format string, args ...any) error { return fault.New(fault.Corrupt, format, args...) }
	if m.Number < 1 || m.Rows < 0 || m.Bytes < 0 || m.RowsIn < 0 || m.Skipped < 0 || len(m.Files) > maxFiles || len(m.Jobs) > maxFiles {
		return bad("a number is out of range")
	}
	if !m.has(m.Job) {
		return bad("job %q is not among the jobs", m.Job)
	}
	jobs := make(map[string]struct{}, len(m.Jobs))
	for _, j := range m.Jobs {
		if err := checkJobID(j); err != nil {
			return bad("%w", err)
		}
		jobs[j] = struct{}{}
	}
	seen := make(map[string]struct{}, len(m.Files))
	var rows, size int64
	for _, f := range m.Files {
		if err := checkPath(f.Path); err != nil {
			return err
		}
		if hidden(f.Path) {
			return bad("file %q is hidden", f.Path)
		}
		if _, dup := seen[f.Path]; dup {
			return bad("file %q is there twice", f.Path)
		}
		seen[f.Path] = struct{}{}
		if _, ok := jobs[f.Job]; !ok {
			return bad("file %q is of job %q, which is not among the jobs", f.Path, f.Job)
		}
		if f.Rows < 0 || f.Bytes < 0 || rows+f.Rows < rows || size+f.Bytes < size {
			return bad("file %q: a number is out of range", f.Path)
		}
		rows, size = rows+f.Rows, size+f.Bytes
	}
	if rows != m.Rows || size != m.Bytes {
		return bad("rows and bytes of the files do not add up to %d and %d", m.Rows, m.Bytes)
	}
	return nil
}

// checkPath: p stays below the folder it is joined to.
func checkPath(p string) error {
	if p == "" || len(p) > maxKey || path.IsAbs(p) || path.Clean(p) != p || p == "." || p == ".." || strings.HasPrefix(p, "../") ||
		strings.ContainsAny(p, "\x00\\") {
		return fault.New(fault.Corrupt, "bad path %q", p)
	}
	return nil
}
