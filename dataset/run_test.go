package dataset_test

import (
	"io"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
)

// A budget that cannot work is refused by every call that runs a plan, before it reads anything, and says what is wrong.
func TestImpossibleBudgets(t *testing.T) {
	ctx := t.Context()
	ds := dataset.Range(1000)
	for memory, want := range map[int64]string{512: "memory must be at least 64 KiB, not 512 B: it is in bytes", shard.MinMemory - 1: "at least 64 KiB", -1: "must not be negative"} {
		run := dataset.RunOptions{Memory: memory}
		out := t.TempDir()
		for name, call := range map[string]func() error{
			"drain":   func() error { _, err := ds.Drain(ctx, &run); return err },
			"collect": func() error { _, err := ds.Collect(ctx, &run); return err },
			"take":    func() error { _, err := ds.Take(ctx, 1, &run); return err },
			"write":   func() error { _, err := ds.WriteCSV(ctx, out, &dataset.WriteOptions{RunOptions: run}); return err },
			"explain": func() error {
				_, err := ds.Explain(ctx, &dataset.ExplainOptions{RunOptions: run})
				return err
			},
			"batches": func() error {
				for _, err := range ds.IterBatches(ctx, &dataset.BatchOptions{RunOptions: run}) {
					return err
				}
				return nil
			},
			"iterator": func() error {
				_, err := ds.Iterator(ctx, &dataset.ShardOptions{RunOptions: run, Options: shard.Options{GlobalBatch: 1}})
				return err
			},
			"shards": func() error {
				_, err := ds.Shards(ctx, 2, &dataset.ShardOptions{RunOptions: run, Options: shard.Options{GlobalBatch: 2}})
				return err
			},
			"check": func() error {
				_, err := ds.CheckShards(ctx, 2, &dataset.ShardOptions{RunOptions: run, Options: shard.Options{GlobalBatch: 2}})
				return err
			},
			"state": func() error {
				_, err := ds.StateAt(ctx, 2, &dataset.ShardOptions{RunOptions: run, Options: shard.Options{GlobalBatch: 2}}, shard.At{})
				return err
			},
		} {
			if err := call(); fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "run options") {
				t.Errorf("%s with %d bytes: %v", name, memory, err)
			}
		}
	}
	// Nor is a window that no lane can hold left to fail when it is read.
	_, err := ds.Shards(ctx, 1, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 1, Shuffle: &shard.Shuffle{Mode: shard.ModeWindow, WindowRows: 1 << 20, Resident: 1 << 20}}})
	if fault.CodeOf(err) != fault.Invalid || !strings.Contains(err.Error(), "make the window smaller, or raise resident") {
		t.Errorf("a window of 8 MiB, resident 1 MiB: %v", err)
	}
}

// The smallest budget runs whatever there is, also steps and windows that are many times as large.
func TestSmallestBudget(t *testing.T) {
	const step = 100_000 // 16 bytes each
	its, err := dataset.Range(350_000).WithColumns("x = double(id)").Shards(t.Context(), 1, &dataset.ShardOptions{RunOptions: dataset.RunOptions{Memory: shard.MinMemory},
		Options: shard.Options{GlobalBatch: step, Epochs: 1, Form: shard.Form{Tensors: true}, Shuffle: &shard.Shuffle{Mode: shard.ModeWindow, WindowRows: 1 << 16, Lanes: 2}}})
	if err != nil {
		t.Fatal(err)
	}
	seen := make([]bool, 350_000)
	n := 0
	for {
		b, err := its[0].Next(t.Context())
		if err == io.EOF {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		x, _ := b.Tensor("x")
		for i, id := range shard.Values[int64](b.Tensors()[0]) {
			if seen[id] || shard.Values[float64](x)[i] != float64(id) {
				t.Fatalf("row %d twice, or wrong", id)
			}
			seen[id] = true
		}
		n += b.Real()
		b.Release()
	}
	if err := its[0].Close(); err != nil || n != 3*step {
		t.Errorf("%d samples, %v", n, err)
	}
}
