package shard_test

import (
	"context"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/apache/arrow-go/v18/arrow"
	"github.com/apache/arrow-go/v18/arrow/array"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/internal/fault"
	"github.com/penstock-data/penstock/ops"
	"github.com/penstock-data/penstock/shard"
)

// A function that is declared to keep the number of rows, and in one window of many does not, is an error of the job that
// names the step; what came before it stays, and so does the state.
func TestRowsNotKept(t *testing.T) {
	for name, c := range map[string]struct {
		rows func(in arrow.RecordBatch) arrow.RecordBatch // of the batch that has row 70
		says string
	}{
		"fewer": {func(in arrow.RecordBatch) arrow.RecordBatch { return in.NewSlice(1, in.NumRows()) }, "rows of"},
		"none":  {func(in arrow.RecordBatch) arrow.RecordBatch { return in.NewSlice(0, 0) }, "made 0 rows of"},
		"more":  {func(in arrow.RecordBatch) arrow.RecordBatch { return rowsFrom(5000, int(in.NumRows())+1) }, "rows of"},
	} {
		t.Run(name, func(t *testing.T) {
			ds := dataset.Read(cells{0, []int{40, 30, 50, 20, 60, 10}}).Filter("id % 5 != 0 || id == 70").MapBatches(func(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, error) {
				if slices.Contains(in.Column(0).(*array.Int64).Int64Values(), 70) {
					return c.rows(in), nil
				}
				in.Retain()
				return in, nil
			}, nil)
			o := jobOptions(7)
			o.Prefetch = -1
			it := open(t, ds, 1, o)[0]
			seen := map[string]bool{}
			var at shard.State
			var err error
			for err == nil {
				at = it.State()
				var b *shard.Batch
				if b, err = it.Next(t.Context()); err == nil {
					for i := range b.Real() {
						if key := keyOf(b.Record(), i); seen[key] || key == "70" {
							t.Errorf("row %s is given", key)
						} else {
							seen[key] = true
						}
					}
					b.Release()
				}
			}
			wantError(t, err, fault.Invalid, c.says, "use a flat map")
			if s := fault.PlaceOf(err).Step; !strings.Contains(s, "map_batches") || !strings.Contains(err.Error(), s) {
				t.Errorf("the step is %q in %v", s, err)
			}
			if s := it.State(); !reflect.DeepEqual(s, at) || s.Sample != int64(len(seen)) {
				t.Errorf("%d samples were given; the state is %+v", len(seen), s)
			}
			if _, again := it.Next(t.Context()); fault.CodeOf(again) != fault.Invalid {
				t.Errorf("then %v", again)
			}
		})
	}
}

// windowSamples are the samples of all windows of an epoch, as its ledger has them, by lane and window.
func windowSamples(t *testing.T, ds *dataset.Dataset, o *dataset.ShardOptions) (all []int64) {
	t.Helper()
	it := open(t, ds, 1, o)[0]
	digests(t, []*shard.Iterator{it}, 1000)
	l := it.Ledger()
	for lane := range o.Shuffle.Lanes {
		for w := int64(0); ; w++ {
			n, ok := l.Samples(0, 0, 0, lane, w)
			if !ok {
				all = append(all, -1) // the lane's end
				break
			}
			all = append(all, n)
		}
	}
	return all
}

// How many rows a flat map makes of a window does not depend on how they come to it, if it looks at each row by itself. That one
// which does not is another order with other batches is why docs/order.md forbids it.
func TestRowsOfWindows(t *testing.T) {
	for name, c := range map[string]struct {
		f    ops.FlatMapFunc
		same bool
	}{
		"row by row": {copyRows, true},
		"all but the first": {func(_ context.Context, in arrow.RecordBatch) (arrow.RecordBatch, []int32, error) {
			var parents []int32
			for i := range max(int(in.NumRows())-1, 0) {
				parents = append(parents, int32(i+1))
			}
			return in.NewSlice(min(1, in.NumRows()), in.NumRows()), parents, nil
		}, false},
	} {
		var got [2][]int64
		for k, rows := range []int{3, 7} {
			ds := dataset.Read(cells{0, []int{40, 30, 50, 20, 60, 10}}).FlatMapBatches(c.f, &dataset.MapOptions{BatchRows: rows})
			o := jobOptions(7)
			o.Epochs, o.Shuffle.WindowRows = 1, 16
			got[k] = windowSamples(t, ds, o)
		}
		if len(got[0]) < 4+210/16 || slices.Equal(got[0], got[1]) != c.same {
			t.Errorf("%s: in batches of 3 the windows have %v samples, in batches of 7 %v", name, got[0], got[1])
		}
	}
}
