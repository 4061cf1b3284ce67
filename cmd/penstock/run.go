package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	library "github.com/penstock-data/penstock"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/exec"
	gangs "github.com/penstock-data/penstock/exec/remote"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/spec"
	"github.com/penstock-data/penstock/internal/term"
	"github.com/penstock-data/penstock/io/blobcache"
)

func runCommand() *cobra.Command {
	var sets []string
	var asJSON, quiet bool
	var r remote
	var may permission
	var name string
	wrong := func(cmd *cobra.Command, err error) error { // of a wrong command line
		if err != nil && asJSON {
			err = (&summary{start: time.Now()}).print(cmd, err)
		}
		return err
	}
	c := &cobra.Command{
		Use:   "run SPEC",
		Short: "Run a pipeline spec into its sink",
		Long: `Run reads a spec, runs it and commits its output. A job that was killed and is run again
goes on where it was; one that finished says so and changes nothing. On several nodes (--nodes) the output is the same: node 0 hands out the work, and commits what all have written.

` + remoteHelp + `

` + exitHelp + ` On several nodes
also 75: the other nodes are not reached, and another attempt may do better.`,
		Example: `  penstock run examples/flights.yaml
  penstock run examples/flights.yaml --set run.memory=1GiB --set sink.parquet.path=out/late/
  penstock run examples/flights.yaml --set sink='{count: {}}' --json | tail -n 1
  penstock run examples/flights.yaml --cluster local --set sink.parquet.path="$PWD/out/flights/"   # on a node of the cluster
  penstock run s3.yaml --cluster head.example.org:7071 --nodes 4 --cpus 8                          # on four of its nodes together`,
		Args: func(cmd *cobra.Command, a []string) error { return wrong(cmd, args("SPEC", 1, 1)(cmd, a)) },
		RunE: func(cmd *cobra.Command, a []string) (err error) {
			sum := summary{start: time.Now()}
			if asJSON {
				defer func() { err = sum.print(cmd, err) }()
			}
			if asJob, err := r.asked(cmd, "name", "color"); err != nil || asJob {
				if err == nil {
					err = r.run(cmd, a[0], name, sets, &may, asJSON, quiet)
					sum.elsewhere = r.submitted
					sum.silent = r.submitted && r.summed() // the job printed it
				}
				return err
			}
			s, err := load(cmd, a[0], sets, &may, false)
			if err != nil {
				return err
			}
			ds, err := s.Dataset()
			if err != nil {
				return err
			}
			o := s.Options()
			place, err := library.Init()
			if err != nil {
				return err
			}
			defer place.Close()
			if g := place.Gang(); g != nil {
				nodes, err := gangs.New(g, nil)
				if err != nil {
					return err
				}
				defer nodes.Close()
				o.Runner = nodes
				if place.Node() > 0 {
					sum.silent = true
					return serve(cmd.Context(), place, s, ds, o)
				}
			}
			p := newProgress(term.Err, quiet)
			o.Observe = p.start
			sum.result, err = s.Write(cmd.Context(), ds, o)
			p.stop()
			sum.stats = p.last()
			if code, _ := place.Code(err); code == exitPreempted {
				err = exitError{exitPreempted, err}
			}
			cache, cerr := s.Cache()
			if cerr != nil {
				return cerr
			}
			if cache != nil {
				defer cache.Close()
				c := cache.Stats()
				sum.cache = &c
			}
			if err != nil || asJSON {
				return err
			}
			name := s.Name
			if name == "" {
				name = a[0]
			}
			sum.write(cmd.OutOrStdout(), name)
			if sum.cache != nil {
				c := sum.cache
				if c.HitBytes+c.MissBytes == 0 && cache.Err() != nil {
					// That it cannot be used was said.
				} else if c.HitBytes+c.MissBytes == 0 {
					fmt.Fprintln(cmd.OutOrStdout(), "cache: not used: nothing was read from a bucket that it could keep")
				} else {
					fmt.Fprintf(cmd.OutOrStdout(), "cache: %s read from it, %s from buckets\n", exec.Bytes(c.HitBytes), exec.Bytes(c.MissBytes))
				}
			}
			return nil
		},
	}
	c.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return wrong(cmd, flagError(cmd, err)) })
	c.Flags().StringArrayVar(&sets, "set", nil, "override a key of the spec: `key=value`, such as run.memory=1GiB or steps.1.filter='x > 1'")
	c.Flags().BoolVar(&asJSON, "json", false, "print a summary as one JSON object on the last line")
	c.Flags().BoolVar(&quiet, "quiet", false, "no progress line, also on a terminal")
	may.flags(c)
	r.flags(c)
	colorFlag(c)
	c.Flags().StringVar(&name, "name", "", "of a job: what people call it; default: the spec's")
	return c
}

// serve is a run on a node that works for node 0, which has the result and prints it.
func serve(ctx context.Context, place *library.Process, s *spec.Spec, ds *dataset.Dataset, o dataset.RunOptions) error {
	_, err := s.Write(ctx, ds, o)
	switch code, said := place.Code(err); {
	case code == exitOK:
		return nil
	case code == exitPreempted:
		return exitError{exitPreempted, err}
	case said:
		return told{err}
	}
	return err
}

// summary is what a run says of itself at its end.
type summary struct {
	start  time.Time
	silent bool // another process prints the line of --json
	// elsewhere: another process was to print it, and did not: of its numbers nothing is known.
	elsewhere bool
	result    *dataset.WriteResult // nil: none
	stats     exec.Stats           // of a run that failed
	cache     *blobcache.Stats     // nil: none
}

// write is for people.
func (s *summary) write(out io.Writer, name string) {
	r, took := s.result, seconds(time.Since(s.start))
	switch {
	case r.Already:
		fmt.Fprintf(out, "%s: finished before (job %s): %s in %s; nothing to do (for another run give run.id another value, or the sink another path)\n", name, r.Job, some(r.Rows, "row"), some(r.Files, "file"))
	case r.Job == "":
		fmt.Fprintf(out, "%s: %s in, %s out in %s\n", name, some(r.Stats.RowsIn, "row"), some(r.Rows, "row"), took)
	default:
		fmt.Fprintf(out, "%s: %s in, %s in %s (%s) written in %s, peak memory %s of the budget\n", name,
			some(r.Stats.RowsIn, "row"), some(r.Rows, "row"), some(r.Files, "file"), exec.Bytes(r.Bytes), took, exec.Bytes(r.Stats.PeakBytes))
	}
	if r.Stats.Skipped > 0 {
		fmt.Fprintf(out, "%s skipped by on_error\n", some(r.Stats.Skipped, "row"))
	}
	if r.Stats.StorageRetries > 0 {
		fmt.Fprintf(out, "%s to storage made again after an error\n", some(r.Stats.StorageRetries, "request"))
	}
}

// print writes the line of --json, which docs/spec.md describes, and returns err, or that of writing.
func (s *summary) print(cmd *cobra.Command, err error) error {
	if s.silent {
		return err
	}
	r, st := s.result, s.stats
	out := map[string]any{"status": "ok"}
	switch {
	case cmd.Context().Err() != nil:
		out["status"] = "interrupted"
	case err != nil:
		out["status"], out["error"], out["code"] = "failed", err.Error(), fault.CodeOf(err).String()
		if _, ok := errors.AsType[usageError](err); ok {
			out["code"] = fault.Invalid.String()
		}
	case r != nil && r.Already:
		out["status"] = "already_done"
	}
	if s.elsewhere {
		return s.line(cmd, out, err)
	}
	rows := st.RowsOut
	if r != nil && err == nil {
		st, rows = r.Stats, r.Rows
		if r.Job != "" {
			out["job"], out["files"] = r.Job, r.Files
		}
	}
	out["rows_in"] = st.RowsIn
	out["rows_out"], out["skipped_rows"] = rows, st.Skipped
	out["bytes_read"], out["seconds"] = st.BytesRead, time.Since(s.start).Seconds()
	out["peak_budget_bytes"], out["peak_rss_bytes"] = st.PeakBytes, peakRSS()
	out["retries"], out["storage_retries"] = st.Retries, st.StorageRetries
	if c := s.cache; c != nil {
		out["cache_hit_bytes"], out["cache_miss_bytes"], out["cache_stored_bytes"] = c.HitBytes, c.MissBytes, c.Stored
		out["cache_corrupt_blocks"] = c.Corrupt
	}
	return s.line(cmd, out, err)
}

func (s *summary) line(cmd *cobra.Command, out map[string]any, err error) error {
	return cmp.Or(err, printJSON(cmd.OutOrStdout(), out))
}

// peakRSS is the most memory that the process had resident, where the system tells: what getrusage says begins with that of the process that started this one.
func peakRSS() int64 {
	if text, err := os.ReadFile("/proc/self/status"); err == nil {
		if _, rest, ok := strings.Cut(string(text), "\nVmHWM:"); ok {
			var kb int64
			if n, _ := fmt.Sscan(rest, &kb); n == 1 {
				return kb * 1024
			}
		}
	}
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return u.Maxrss * 1024
}
