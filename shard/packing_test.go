package shard_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/shard"
)

// TestPackedDTypes: packed documents become tensors of other types as lists of a fixed length do, in memory and from disk, and
// what does not fit is an error that names the value and the column.
func TestPackedDTypes(t *testing.T) {
	docs := dataset.Read(cells{0, []int{1000, 500, 1500, 1000}}).Select("t").Pack("t", &dataset.PackOptions{Length: 64, LossMask: true})
	spilled := int64(0)
	read := func(ids shard.DType, memory int64) ([][]float64, error) {
		o := &dataset.ShardOptions{RunOptions: dataset.RunOptions{Seed: 3, Memory: memory}}
		o.Options = shard.Options{GlobalBatch: 10, Epochs: 1, Tail: shard.TailPad, Form: shard.Form{Tensors: true, Columns: map[string]shard.Column{
			"input_ids": {DType: ids}, "segment_ids": {DType: shard.Float32}, "loss_mask": {}}}, Shuffle: &shard.Shuffle{Mode: shard.ModeWindow, Lanes: 1, WindowRows: 1024}}
		it := open(t, docs, 1, o)[0]
		var out [][]float64
		for b, err := range it.All(t.Context()) {
			if err != nil {
				return nil, err
			}
			x, _ := b.Tensor("input_ids")
			var row []float64
			switch ids {
			case shard.Int32:
				for _, v := range shard.Values[int32](x) {
					row = append(row, float64(v))
				}
			case shard.Int64:
				for _, v := range shard.Values[int64](x) {
					row = append(row, float64(v))
				}
			}
			seg, _ := b.Tensor("segment_ids")
			for _, v := range shard.Values[float32](seg) {
				row = append(row, float64(v))
			}
			out = append(out, row)
		}
		spilled = it.Stats().Spilled
		return out, nil
	}
	want, err := read(shard.Int32, 0)
	if err != nil || len(want) < 18 {
		t.Fatal(len(want), err)
	}
	for _, memory := range []int64{0, 64 << 10} {
		if got, err := read(shard.Int64, memory); err != nil || !slices.EqualFunc(got, want, slices.Equal) {
			t.Errorf("memory %d: int64 differs from int32 (%v)", memory, err)
		} else if spilled > 0 != (memory > 0) {
			t.Errorf("memory %d: %d windows went to disk", memory, spilled)
		}
	}
	if _, err := read(shard.Uint8, 0); fault.CodeOf(err) != fault.RowError || !strings.Contains(err.Error(), "does not fit uint8") || fault.PlaceOf(err).Column != "input_ids" {
		t.Errorf("large tokens as uint8: %v", err)
	}
}
