package dataset_test

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/apache/arrow-go/v18/arrow/array"
	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
)

// A list of paths is read in its order, a file as often as the list has it; so are shards, exactly,
// and a state of them leads on to the rest.
func TestPathsKeepTheirOrder(t *testing.T) {
	dir := t.TempDir()
	paths := []string{"easy.csv", "hard.csv", "a_last.csv", "easy.csv"}
	for id, name := range map[int]string{2: "easy.csv", 0: "hard.csv", 1: "a_last.csv"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("id\n"+string(rune('0'+id))+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for i, p := range paths {
		paths[i] = filepath.Join(dir, p)
	}
	ds := dataset.ReadCSV(paths...)
	want := []int64{2, 0, 1, 2}

	var got []int64
	for rec, err := range ds.Records(t.Context(), nil) {
		if err != nil {
			t.Fatal(err)
		}
		got = append(got, rec.Column(0).(*array.Int64).Int64Values()...)
	}
	if !slices.Equal(got, want) {
		t.Errorf("read %v, want %v", got, want)
	}

	o := &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 1, Shuffle: &shard.Shuffle{Mode: shard.ModeNone}}}
	for stop := range len(want) {
		its, err := ds.Shards(t.Context(), 1, o)
		if err != nil {
			t.Fatal(err)
		}
		for range stop {
			b, err := its[0].Next(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			b.Release()
		}
		state := its[0].State()
		its[0].Close()
		if its, err = ds.Shards(t.Context(), 1, o); err != nil {
			t.Fatal(err)
		}
		if err := its[0].Restore(state); err != nil {
			t.Fatal(err)
		}
		rest := map[int64]int64{}
		for n := stop; n < len(want); n++ {
			rest[int64(n)] = want[n]
		}
		if got := ids(t, its); !maps.Equal(got, rest) {
			t.Errorf("after %d steps: %v, want %v", stop, got, rest)
		}
		its[0].Close()
	}
}
