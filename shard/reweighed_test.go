package shard_test

import (
	"io"
	"slices"
	"testing"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/internal/order"
	"github.com/penstock-data/penstock/shard/internal/order/ordertest"
)

// Weights decide which source gives a sample, and nothing else: a job that goes on twice with other weights, another schedule and
// another global batch gives of each source what one that never stopped does, in its order, and takes them as the weights of its state say.
func TestReweighedSources(t *testing.T) {
	names := []string{"a", "b", "c"}
	plan := func(weights []int64, later ...ops.WeightsAt) *dataset.Dataset {
		return dataset.MixWith(dataset.MixOptions{Schedule: later},
			dataset.MixSource{Name: "a", Weight: weights[0], Data: dataset.Read(cells{10_000, []int{90, 70, 40, 100}}).Filter("id % 3 != 0")},
			dataset.MixSource{Name: "b", Weight: weights[1], Data: dataset.Read(cells{20_000, []int{200, 100}})},
			dataset.MixSource{Name: "c", Weight: weights[2], Data: dataset.Read(cells{30_000, []int{9, 14}}), Repeat: true})
	}
	options := func(global int, from *shard.State) *dataset.ShardOptions {
		o := jobOptions(7)
		o.GlobalBatch, o.Tail, o.State, o.Lineage, o.Epochs = global, shard.TailPad, from, true, 1
		return o
	}
	// read gives the samples of some steps, as place of their source and key; steps < 0: all that are left.
	read := func(ds *dataset.Dataset, o *dataset.ShardOptions, steps int) (of []int, keys []string, s shard.State) {
		t.Helper()
		it := open(t, ds, 1, o)[0]
		for ; steps != 0; steps-- {
			b, err := it.Next(t.Context())
			if err == io.EOF && steps < 0 {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			s = it.State()
			for i, l := range b.Lineage() {
				of = append(of, slices.Index(names, l.Place.Source))
				keys = append(keys, keyOf(b.Record(), i))
			}
			b.Release()
		}
		return of, keys, s
	}
	split := func(of []int, keys []string) (out [3][]string) {
		for n, i := range of {
			out[i] = append(out[i], keys[n])
		}
		return out
	}
	first := plan([]int64{1, 1, 1}, ops.WeightsAt{At: 100, Weights: []int64{1, 3, 2}})
	ofAll, all, _ := read(first, options(16, nil), -1)
	want := split(ofAll, all)
	of, keys, s := read(first, options(16, nil), 4)
	for _, c := range []struct {
		ds            *dataset.Dataset
		global, steps int
	}{
		{plan([]int64{5, 1, 1}, ops.WeightsAt{At: 120, Weights: []int64{2, 2, 1}}), 7, 10},
		{plan([]int64{1, 4, 2}, ops.WeightsAt{At: 200, Weights: []int64{1, 1, 3}}), 23, -1},
	} {
		from := s
		var moreOf []int
		var more []string
		moreOf, more, s = read(c.ds, options(c.global, &from), c.steps)
		of, keys = append(of, moreOf...), append(keys, more...)
	}
	got := split(of, keys)
	for i, g := range got {
		n := min(len(g), len(want[i]))
		if n < 60 || !slices.Equal(g[:n], want[i][:n]) {
			t.Errorf("source %s: %d samples\n%v\nwant %d\n%v", names[i], len(g), g, len(want[i]), want[i])
		}
		if once := slices.Compact(slices.Sorted(slices.Values(g))); names[i] != "c" && len(once) != len(g) {
			t.Errorf("source %s gives %d rows in %d samples", names[i], len(once), len(g))
		}
	}
	if len(got[0]) != 200 && len(got[1]) != 300 {
		t.Errorf("the epoch ends after %d and %d samples of the sources that end it", len(got[0]), len(got[1]))
	}
	var sched order.Schedule
	for _, w := range s.Weights {
		sched = append(sched, order.Stage(w))
	}
	if len(sched) < 4 {
		t.Errorf("the state says weights %v", s.Weights)
	}
	if turns := ordertest.Mix(sched, int64(len(of))); !slices.Equal(turns, of) {
		t.Errorf("by the weights %v the sources come as\n%v\nthey come as\n%v", s.Weights, turns, of)
	}
}
