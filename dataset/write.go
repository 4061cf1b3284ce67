package dataset

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strings"
	"time"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/sink"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/csvio"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/io/ipcio"
	"github.com/penstock-data/penstock/io/jsonio"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/ops"
)

// WriteOptions say how files are written; nil means defaults.
type WriteOptions struct {
	RunOptions
	// Mode is "error" (default: another job's output there is an error), "append"
	// or "overwrite" (its files go once the new ones are committed).
	Mode string
	// PartitionBy makes key=value folders of these columns.
	PartitionBy []string
	// TargetBytes is the size of files to aim at; 0: 256 MiB.
	TargetBytes int64
	// RunID names the job. A job that was killed goes on where it was, and one that finished is not done
	// again. "": a fingerprint of plan, data, seed and format.
	RunID string
}

// WriteResult is what a write left.
type WriteResult struct {
	Job     string
	Files   int64
	Rows    int64
	Bytes   int64
	Already bool // the job had finished before: nothing was done
	Stats   exec.Stats
}

// Write runs the plan into files below path (a folder or bucket URL), in any
// encoding. The output appears as a whole: a manifest names its files, and a job
// killed at any moment and run again leaves exactly the rows of one undisturbed run.
func (d *Dataset) Write(ctx context.Context, path string, enc driver.Encoding, o *WriteOptions) (*WriteResult, error) {
	if o == nil {
		o = &WriteOptions{}
	}
	start := time.Now()
	_, g, err := d.optimized(ctx, o.RunOptions)
	if err != nil {
		return nil, err
	}
	e, err := o.exec()
	if err != nil {
		return nil, err
	}
	if o.Mode == sink.ModeAppend {
		if err := d.readsFrom(ctx, path); err != nil {
			return nil, err
		}
	}
	decides := map[string]any{
		"format": enc.Kind(), "options": enc.Config(), "partition_by": o.PartitionBy, "target": o.TargetBytes, "seed": o.Seed, "epoch": o.Epoch,
	}
	if o.Unordered && !g.InParts() { // else the files are the same
		decides["unordered"] = true
	}
	job, err := d.job(ctx, o.RunID, decides)
	if err != nil {
		return nil, err
	}
	s, err := sink.New(sink.Options{Path: path, Encoding: enc, Mode: o.Mode, PartitionBy: o.PartitionBy, TargetBytes: o.TargetBytes,
		Job: job, DeadLetter: o.DeadLetter, Mask: o.Mask})
	if err != nil {
		return nil, err
	}
	st, err := o.runner().Write(ctx, g, s, e)
	if err != nil {
		return nil, err
	}
	r := s.Result()
	st.Elapsed = max(st.Elapsed, time.Since(start))
	return &WriteResult{Job: job, Files: r.Files, Rows: r.Rows, Bytes: r.Bytes, Already: r.Already, Stats: st}, nil
}

// WriteParquet writes Parquet files (zstd, page index). For other options: Write
// with parquetio.NewEncoding.
func (d *Dataset) WriteParquet(ctx context.Context, path string, o *WriteOptions) (*WriteResult, error) {
	return writeAs(ctx, d, path, o, func() (driver.Encoding, error) { return parquetio.NewEncoding(nil) })
}

// WriteCSV writes CSV files with a header.
func (d *Dataset) WriteCSV(ctx context.Context, path string, o *WriteOptions) (*WriteResult, error) {
	return writeAs(ctx, d, path, o, func() (driver.Encoding, error) { return csvio.NewEncoding(nil) })
}

// WriteJSON writes JSON lines.
func (d *Dataset) WriteJSON(ctx context.Context, path string, o *WriteOptions) (*WriteResult, error) {
	return writeAs(ctx, d, path, o, func() (driver.Encoding, error) { return jsonio.NewEncoding(nil) })
}

// WriteIPC writes Arrow IPC files.
func (d *Dataset) WriteIPC(ctx context.Context, path string, o *WriteOptions) (*WriteResult, error) {
	return writeAs(ctx, d, path, o, func() (driver.Encoding, error) { return ipcio.NewEncoding(nil) })
}

func writeAs(ctx context.Context, d *Dataset, path string, o *WriteOptions, enc func() (driver.Encoding, error)) (*WriteResult, error) {
	e, err := enc()
	if err != nil {
		return nil, err
	}
	return d.Write(ctx, path, e, o)
}

// job identifies a run: id if given, else the fingerprint of plan, data and
// whatever else decides the rows.
func (d *Dataset) job(ctx context.Context, id string, more map[string]any) (string, error) {
	if id != "" {
		return id, nil
	}
	n, err := d.plan(ctx)
	if err != nil {
		return "", err
	}
	fp, err := ops.Fingerprint(n)
	if err != nil {
		return "", fault.New(fault.CodeOf(err), "this plan has no fingerprint, so the job needs a name: set RunID (run.id in specs): %w", err)
	}
	h := sha256.New()
	fmt.Fprintf(h, "penstock/job/1\n%s\n", fp)
	if err := eachRead(n, func(r *ops.Read) error {
		data, err := r.Table.Fingerprint(ctx)
		if err != nil {
			return fault.New(fault.CodeOf(err), "this source has no fingerprint, so the job needs a name: set RunID (run.id in specs): %w", err).
				At(fault.Place{Step: r.Step()})
		}
		fmt.Fprintln(h, data)
		return nil
	}); err != nil {
		return "", err
	}
	j, err := json.Marshal(more)
	if err != nil {
		return "", fault.New(fault.Internal, "job options: %w", err)
	}
	h.Write(j)
	return hex.EncodeToString(h.Sum(nil))[:32], nil
}

// readsFrom refuses an output to append to that holds what the plan reads: every
// run would find other data, and so be another job.
func (d *Dataset) readsFrom(ctx context.Context, path string) error {
	n, err := d.plan(ctx)
	if err != nil {
		return err
	}
	out := absolute(path) + "/"
	return eachRead(n, func(r *ops.Read) error {
		for _, s := range r.Table.Splits() {
			if s.File != "" && strings.HasPrefix(absolute(s.File), out) {
				return fault.New(fault.Invalid, "mode append: the plan reads %s, which lies in the output: write somewhere else", s.File).
					At(fault.Place{Step: r.Step()})
			}
		}
		return nil
	})
}

// absolute makes a path or URL comparable.
func absolute(path string) string {
	path, _, _ = strings.Cut(path, "?")
	if !strings.Contains(path, "://") {
		if abs, err := filepath.Abs(path); err == nil {
			path = abs
		}
	}
	return strings.TrimRight(strings.TrimPrefix(path, "file://"), "/")
}

func eachRead(n ops.Node, f func(*ops.Read) error) error {
	if r, ok := n.(*ops.Read); ok {
		return f(r)
	}
	for _, in := range n.Inputs() {
		if err := eachRead(in, f); err != nil {
			return err
		}
	}
	return nil
}
