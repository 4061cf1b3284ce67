package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	library "github.com/penstock-data/penstock"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/exec"
	gangs "github.com/penstock-data/penstock/exec/remote"
	"github.com/penstock-data/penstock/internal/spec"
	"github.com/penstock-data/penstock/io/blobcache"
)

func runCommand() *cobra.Command {
	var sets []string
	var asJSON, quiet bool
	var r remote
	var name string
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
		Args: args("SPEC", 1, 1),
		RunE: func(cmd *cobra.Command, a []string) error {
			if asJob, err := r.asked(cmd, "name"); err != nil || asJob {
				if err == nil {
					err = r.run(cmd, a[0], name, sets, asJSON, quiet)
				}
				return err
			}
			start := time.Now()
			s, err := load(cmd, a[0], sets)
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
			if g := place.Gang(); g != nil { // of nodes that may be of several architectures, and have one version
				nodes, err := gangs.New(g, &gangs.Options{Version: version})
				if err != nil {
					return err
				}
				defer nodes.Close()
				o.Runner = nodes
				if place.Node() > 0 {
					return serve(cmd.Context(), place, s, ds, o)
				}
			}
			p := newProgress(os.Stderr, quiet)
			o.Observe = p.start
			r, err := s.Write(cmd.Context(), ds, o)
			p.stop()
			if code, _ := place.Code(err); code == exitPreempted {
				err = exitError{exitPreempted, err}
			}
			cache, cerr := s.Cache()
			if cerr != nil {
				return cerr
			}
			if cache != nil {
				defer cache.Close()
			}
			if asJSON {
				if jerr := printSummary(cmd, cache, r, p.last(), err, time.Since(start)); jerr != nil && err == nil {
					err = jerr
				}
				return err
			}
			if err != nil {
				return err
			}
			out := cmd.OutOrStdout()
			name := s.Name
			if name == "" {
				name = a[0]
			}
			switch {
			case r.Already:
				fmt.Fprintf(out, "%s: finished before (job %s): %s in %s; nothing to do\n", name, r.Job, some(r.Rows, "row"), some(int64(r.Files), "file"))
			case r.Job == "":
				fmt.Fprintf(out, "%s: %s in, %s out in %s\n", name, some(r.Stats.RowsIn, "row"), some(r.Rows, "row"), seconds(time.Since(start)))
			default:
				fmt.Fprintf(out, "%s: %s in, %s in %s (%s) written in %s, peak memory %s of the budget\n", name,
					some(r.Stats.RowsIn, "row"), some(r.Rows, "row"), some(int64(r.Files), "file"), exec.Bytes(r.Bytes), seconds(time.Since(start)), exec.Bytes(r.Stats.PeakBytes))
			}
			if r.Stats.Skipped > 0 {
				fmt.Fprintf(out, "%s skipped by on_error\n", some(r.Stats.Skipped, "row"))
			}
			if cache != nil {
				c := cache.Stats()
				if c.HitBytes+c.MissBytes == 0 && cache.Err() != nil {
					// That it cannot be used was said.
				} else if c.HitBytes+c.MissBytes == 0 {
					fmt.Fprintln(out, "cache: not used: nothing was read from a bucket that it could keep")
				} else {
					fmt.Fprintf(out, "cache: %s read from it, %s from buckets\n", exec.Bytes(c.HitBytes), exec.Bytes(c.MissBytes))
				}
			}
			return nil
		},
	}
	c.Flags().StringArrayVar(&sets, "set", nil, "override a key of the spec: `key=value`, such as run.memory=1GiB or steps.0.filter='x > 1'")
	c.Flags().BoolVar(&asJSON, "json", false, "print a summary as one JSON object on the last line")
	c.Flags().BoolVar(&quiet, "quiet", false, "no progress line, also on a terminal")
	r.flags(c)
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

// printSummary writes the JSON line of --json.
func printSummary(cmd *cobra.Command, cache *blobcache.Cache, r *dataset.WriteResult, st exec.Stats, err error, took time.Duration) error {
	out := map[string]any{"status": "ok"}
	switch {
	case cmd.Context().Err() != nil:
		out["status"] = "interrupted"
	case err != nil:
		out["status"], out["error"] = "failed", err.Error()
	case r.Already:
		out["status"] = "already_done"
	}
	rows := st.RowsOut
	if r != nil && err == nil {
		st, rows = r.Stats, r.Rows
		if r.Job != "" {
			out["job"], out["files"] = r.Job, r.Files
		}
	}
	out["rows_in"], out["rows_out"], out["bytes_read"] = st.RowsIn, rows, st.BytesRead
	out["seconds"] = took.Seconds()
	out["peak_budget_bytes"], out["peak_rss_bytes"] = st.PeakBytes, peakRSS()
	out["retries"], out["skipped_rows"] = st.Retries, st.Skipped
	if cache != nil {
		c := cache.Stats()
		out["cache_hit_bytes"], out["cache_miss_bytes"], out["cache_stored_bytes"] = c.HitBytes, c.MissBytes, c.Stored
		out["cache_corrupt_blocks"] = c.Corrupt
	}
	b, jerr := json.Marshal(out)
	if jerr != nil {
		return jerr
	}
	_, jerr = fmt.Fprintf(cmd.OutOrStdout(), "%s\n", b)
	return jerr
}

// peakRSS is the most memory that the process had resident.
func peakRSS() int64 {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return u.Maxrss * 1024
}
