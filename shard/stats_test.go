package shard_test

import (
	"math"
	"testing"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/internal/order"
)

// Stats says how many rows and splits the windows had in fact: all that the order has where nothing is filtered, and
// what is left of them otherwise, in one go and behind a restore.
func TestWindowStats(t *testing.T) {
	rows := []int{40, 30, 50}
	near := func(what string, got, want float64) {
		t.Helper()
		if math.Abs(got-want) > 1e-9 {
			t.Errorf("%s: %v, want %v", what, got, want)
		}
	}
	ds := dataset.Read(cells{0, rows})
	for name, c := range map[string]struct {
		ds           *dataset.Dataset
		rows, splits float64 // per window of 16 rows of 120, in order
	}{
		"all":      {ds, 120.0 / 8, 10.0 / 8}, // 40 and 70 lie within windows
		"one":      {ds.Filter("id < 40"), 40.0 / 3, 1},
		"few":      {ds.Filter("id >= 39 && id < 41"), 2, 2}, // of one window, on both sides of its edge
		"ruled":    {ds.Filter("id == 39"), 1, 1},
		"none":     {ds.Filter("id < 0"), 0, 0},
		"function": {ds.FlatMapBatches(copyRows, nil), -1, 10.0 / 8},
	} {
		o := jobOptions(7)
		o.Epochs, o.Tail, o.Shuffle = 1, shard.TailPad, &shard.Shuffle{Mode: shard.ModeNone, WindowRows: 16}
		it := open(t, c.ds, 1, o)[0]
		if s := it.Stats(); s.WindowRows != 0 || s.WindowSplits != 0 {
			t.Errorf("%s: before the first window %+v", name, s)
		}
		digests(t, []*shard.Iterator{it}, 1000)
		s := it.Stats()
		if c.rows < 0 { // as many as it gives
			c.rows = float64(s.Samples) / 8
		}
		near(name, s.WindowRows, c.rows)
		near(name+", splits", s.WindowSplits, c.splits)
	}

	// Shuffled, as the order says.
	o := jobOptions(7)
	o.Epochs, o.Tail, o.Shuffle.Lanes = 1, shard.TailPad, 2 // windows across splits
	it := open(t, ds, 1, o)[0]
	src := it.State().Sources[0]
	pass, err := order.NewPass(order.Key{Seed: 7, Source: src.Name}, order.Shape{Mode: order.Window, Lanes: src.Lanes, Window: src.Window}, []int64{40, 30, 50})
	if err != nil {
		t.Fatal(err)
	}
	windows, segments := 0.0, 0.0
	for lane := range src.Lanes {
		windows += float64(pass.Windows(lane))
		for w := range pass.Windows(lane) {
			segments += float64(len(pass.Segments(lane, w, nil)))
		}
	}
	digests(t, []*shard.Iterator{it}, 1000)
	near("shuffled", it.Stats().WindowRows, 120/windows)
	near("shuffled, splits", it.Stats().WindowSplits, segments/windows)
	if n := it.Stats().Windows; n != int64(windows) {
		t.Errorf("%d windows, want %v", n, windows)
	}
	q := order.Expect([]int64{40, 30, 50}, order.Shape{Mode: order.Window, Lanes: src.Lanes, Window: src.Window})
	if got := it.Stats().WindowRows * float64(min(src.Lanes, len(rows))); got > float64(q.ResidentUnits) || got < float64(q.ResidentUnits)/2 {
		t.Errorf("%v resident rows, %d were expected", got, q.ResidentUnits)
	}
}
