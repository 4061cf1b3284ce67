package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/exec"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/internal/near"
	"github.com/penstock-data/penstock/internal/spec"
	"github.com/penstock-data/penstock/shard"
)

// explainShards describes the shards of a spec. It reads metadata only, but of formats whose rows must be counted.
func explainShards(cmd *cobra.Command, s *spec.Spec, ds *dataset.Dataset, label string) error {
	ranks, o, err := s.ShardOptions()
	if err != nil {
		return err
	}
	ofWorkers := ""
	if s.Train != nil {
		ranks, ofWorkers = s.Train.Ranks(), " (train.workers)"
	}
	o.Ranks = []int{0}
	its, err := ds.Shards(cmd.Context(), ranks, o)
	if err != nil {
		return s.AtShards(err)
	}
	out, g, tail := cmd.OutOrStdout(), o.GlobalBatch, o.Tail
	if g == 0 {
		g = o.BatchPerRank * ranks
	}
	if tail == "" {
		tail = shard.TailDrop
	}
	fmt.Fprintf(out, "shards\n  %s%s, steps of %s, tail %s, seed %d", some(int64(ranks), "rank"), ofWorkers, some(int64(g), "sample"), tail, o.Seed)
	if n, ok := its[0].Len(); ok {
		fmt.Fprintf(out, ", %s per epoch", some(n, "step"))
	}
	fmt.Fprintf(out, "\n  %s\n", strings.ReplaceAll(strings.TrimRight(its[0].Explain(), "\n"), "\n", "\n  "))
	if err := its[0].Close(); err != nil {
		return err
	}
	width, all := its[0].SampleBytes()
	explainBounds(out, o, int64(g)*width, all)
	if label == "" {
		return nil
	}
	return explainLabel(cmd.Context(), out, ds, label, ranks, o)
}

// explainSink says what a run of the spec writes.
func explainSink(out io.Writer, s *spec.Spec) {
	if s.Sink == nil {
		return
	}
	all := ""
	if s.Shards != nil && s.Shards.Columns != nil {
		all = "; written by run, with all columns"
	}
	fmt.Fprintf(out, "sink\n  %s%s\n", s.Sink, all)
}

// explainBounds says what the settings keep in memory, where a step takes so many bytes, and, if that is not all, its texts and
// lists.
func explainBounds(out io.Writer, o *dataset.ShardOptions, step int64, all bool) {
	var f shard.Shuffle
	if o.Shuffle != nil {
		f = *o.Shuffle
	}
	if f.Mode == "" || f.Mode == shard.ModeWindow {
		switch {
		case f.Lanes > 0:
			fmt.Fprintf(out, "  resident setting: not used, as the spec names the lanes\n")
		case f.Resident == 0:
			fmt.Fprintf(out, "  resident setting: 512 MiB (default); chooses the lanes\n")
		default:
			fmt.Fprintf(out, "  resident setting: %s; chooses the lanes\n", exec.Bytes(f.Resident))
		}
	}
	steps := o.Prefetch
	switch {
	case steps == 0:
		steps = 2
	case steps < 0:
		fmt.Fprintf(out, "  prefetch: none\n")
		return
	}
	fmt.Fprintf(out, "  prefetch: %s, %s", some(int64(steps), "step"), exec.Bytes(int64(steps)*step))
	if !all {
		fmt.Fprint(out, " and what their texts and lists take")
	}
	fmt.Fprintln(out)
}

func explainLabel(ctx context.Context, out io.Writer, ds *dataset.Dataset, label string, ranks int, o *dataset.ShardOptions) error {
	o.Ranks = nil
	schema, err := ds.Schema(ctx)
	if err != nil {
		return err
	}
	if !schema.HasField(label) {
		return usageError{fault.New(fault.Invalid, "--label %s: unknown column%s", label, near.Column(label, schema))}
	}
	q, err := ds.LabelEntropy(ctx, label, ranks, o)
	if err != nil {
		return err
	}
	share := ""
	if q.Full > 0 {
		share = fmt.Sprintf(", %.1f %% of it", 100*q.Entropy/q.Full)
	}
	fmt.Fprintf(out, "  label %s: %d values; entropy of a step %.4f bits, of a full shuffle %.4f%s (%s steps read)\n", label, q.Labels, q.Entropy, q.Full, share, count(q.Steps))
	return nil
}
