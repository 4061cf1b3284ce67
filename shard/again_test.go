package shard_test

import (
	"context"
	"io"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/io/parquetio"
	"github.com/penstock-data/penstock/shard"
)

// TestReadAgain: a window of a Parquet file gives the same samples when an attempt at it failed after some of its rows, whatever
// of the rows that the filter drops the reader leaves out: it looks at less of what it reads where that did not pay before, so
// a reader that begins in the middle leaves out others.
func TestReadAgain(t *testing.T) {
	dir := t.TempDir()
	enc, err := parquetio.NewEncoding(&parquetio.EncodingOptions{RowGroupRows: 20_000, PageBytes: 8 << 10})
	if err != nil {
		t.Fatal(err)
	}
	// Stretches in which nearly all rows stay, and such in which few do.
	src := dataset.Range(60_000).WithColumns("x = id / 3000 % 2 == 0 ? id % 50 : id % 1000", "a = double(id)", "b = id * 3", "c = id * 5")
	if _, err := src.Write(t.Context(), filepath.Join(dir, "d"), enc, nil); err != nil {
		t.Fatal(err)
	}
	failed := 0
	read := func(seed uint64, faults bool) (got []int64) {
		rng := rand.New(rand.NewPCG(seed, 1))
		fail := map[int64]bool{} // rows at which an attempt fails, once
		for faults && len(fail) < 12 {
			fail[rng.Int64N(60_000)] = true
		}
		ds := dataset.ReadParquet(filepath.Join(dir, "d")).Filter("x < 47").MapBatches(func(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
			for _, id := range in.Column(0).(*array.Int64).Int64Values() {
				if fail[id] {
					delete(fail, id)
					failed++
					return nil, fault.New(fault.Unavailable, "a fault")
				}
			}
			in.Retain()
			return in, nil
		}, nil)
		o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 7, CPUs: 1, BatchRows: 256}}
		o.Options = shard.Options{GlobalBatch: 64, Epochs: 1, Tail: shard.TailPad, Form: shard.Form{Tensors: true}, Shuffle: &shard.Shuffle{Mode: shard.ModeWindow, Lanes: 2, WindowRows: 4096}}
		it, err := ds.Iterator(t.Context(), o)
		if err != nil {
			t.Fatal(err)
		}
		defer it.Close()
		for {
			b, err := it.Next(t.Context())
			if err == io.EOF {
				return got
			}
			if err != nil {
				t.Errorf("seed %d: %v", seed, err)
				return got
			}
			ids, _ := b.Tensor("id")
			got = append(got, shard.Values[int64](ids)[:b.Real()]...)
			b.Release()
		}
	}
	want := read(0, false)
	for seed := range uint64(8) {
		got := read(seed, true)
		for i := range min(len(got), len(want)) {
			if got[i] != want[i] {
				t.Fatalf("seed %d: sample %d is row %d, want %d", seed, i, got[i], want[i])
			}
		}
		if len(got) != len(want) {
			t.Errorf("seed %d: %d samples, want %d", seed, len(got), len(want))
		}
	}
}
