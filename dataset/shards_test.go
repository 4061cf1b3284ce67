package dataset_test

import (
	"fmt"
	"io"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
)

// ids reads one epoch of all ranks and returns the ids by step, in order of rank.
func ids(t *testing.T, its []*shard.Iterator) (out []string) {
	t.Helper()
	for step := 0; ; step++ {
		for _, it := range its {
			b, err := it.Next(t.Context())
			if err == io.EOF {
				if it == its[len(its)-1] {
					return out
				}
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			col := b.Record().Column(0).(*array.Int64)
			for i := range b.Real() {
				out = append(out, fmt.Sprintf("%d/%d", b.Samples()[i], col.Value(i)))
			}
			b.Release()
		}
	}
}

func TestShardsSmoke(t *testing.T) {
	ds := dataset.Range(1000000).Filter("id % 3 != 0")
	its, err := ds.Shards(t.Context(), 3, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 1000}, RunOptions: dataset.RunOptions{Seed: 7}})
	if err != nil {
		t.Fatal(err)
	}
	t.Log(its[0].Explain())
	got := ids(t, its)
	t.Log(len(got), got[:20])
	seen := map[string]bool{}
	for _, g := range got {
		if seen[g] {
			t.Fatal("twice", g)
		}
		seen[g] = true
	}
	t.Log(its[0].State())
	for _, it := range its {
		if err := it.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
