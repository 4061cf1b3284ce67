package dataset

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/exec/sink"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/blobio"
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

// Write runs the plan into files below folder (a path or bucket URL), in any
// encoding. The output appears as a whole: a manifest names its files, and a job
// killed at any moment and run again leaves exactly the rows of one undisturbed run.
func (d *Dataset) Write(ctx context.Context, folder string, enc driver.Encoding, o *WriteOptions) (*WriteResult, error) {
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
	if err := fault.Join(d.CheckOutput(ctx, folder), d.CheckOutput(ctx, o.DeadLetter)); err != nil {
		return nil, err
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
	s, err := sink.New(sink.Options{Path: folder, Encoding: enc, Mode: o.Mode, PartitionBy: o.PartitionBy, TargetBytes: o.TargetBytes,
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

// CheckOutput refuses folder, a path or URL to write to, where it shares files with what the plan reads: it lies in a
// folder of a source, is one, or has files of one in it. Every run would find other data, and so be another job.
// "" is no folder. Write calls it for the output and the dead letter.
func (d *Dataset) CheckOutput(ctx context.Context, folder string) error {
	if folder == "" {
		return nil
	}
	outs, err := blobio.Names(folder)
	if err != nil {
		return err
	}
	n, err := d.plan(ctx)
	if err != nil {
		return err
	}
	reads := ops.Reads(n)
	real := make(map[string]bool) // by folder: whether it lies in the output
	for _, r := range reads {
		p, ok := r.Source.(driver.Placed)
		if !ok {
			continue
		}
		read, root := p.Meets(folder)
		for _, s := range r.Table.Splits() { // links below the source's paths may lead there, too
			if read != "" || s.File == "" {
				break
			}
			in, known := real[path.Dir(s.File)]
			if !known {
				names, err := blobio.Names(path.Dir(s.File))
				in = err == nil && slices.ContainsFunc(names, func(name string) bool {
					return slices.ContainsFunc(outs, func(out string) bool { return strings.HasPrefix(name, out) })
				})
				real[path.Dir(s.File)] = in
			}
			if in {
				read = s.File
			}
		}
		if read != "" {
			return fault.New(fault.Invalid, "%s is written to, and the plan reads %s: in, at and above the folder of a source nothing is written, as the next run would read it; write to %s",
				folder, read, elsewhere(root, reads))
		}
	}
	return nil
}

// elsewhere is where to write beside root, a folder of a source: to one that no source reads.
func elsewhere(root string, reads []*ops.Read) string {
	name := root + "-out"
	free := !strings.HasSuffix(root, ":") && root != "" && !slices.ContainsFunc(reads, func(r *ops.Read) bool {
		p, ok := r.Source.(driver.Placed)
		if !ok {
			return false
		}
		read, _ := p.Meets(name)
		return read != ""
	})
	if scheme, rest, ok := strings.Cut(root, "://"); free && (!ok || scheme != "" && strings.Contains(rest, "/")) {
		return "a folder beside it, such as " + name
	}
	return "a folder that no source reads"
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
