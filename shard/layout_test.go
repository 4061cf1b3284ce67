package shard_test

import (
	"fmt"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
	"github.com/penstock-data/penstock/shard/internal/order"
)

var (
	explainedQuality = regexp.MustCompile(`samples come from (\d+) resident rows of about (\d+) splits \(([0-9.]+) per window\)`)
	explainedBound   = regexp.MustCompile(`correlate by at most ([0-9.]+)`)
)

// Default lanes and windows follow from the sizes of the splits, and Explain says what order.Expect does of them.
func TestDefaultLayout(t *testing.T) {
	type splits []int
	equal := func(n, rows int) splits { return slices.Repeat(splits{rows}, n) }
	dense := filepath.Join(t.TempDir(), "dense.parquet")
	writeDense(t, dense, 0, equal(20, 300))
	mix := func(rows splits) *dataset.Dataset {
		return dataset.Mix(dataset.MixSource{Name: "a", Weight: 1, Data: dataset.Read(cells{0, rows})}, dataset.MixSource{Name: "b", Weight: 1, Data: dataset.Read(cells{1e9, rows})})
	}
	const cellRows = 1 << 15 // of about 112 bytes each, 32 of them for a text or list: as many as take 4 MiB at most, a power of two
	for name, c := range map[string]struct {
		ds       *dataset.Dataset
		rows     splits // of each source
		resident int64
		lanes    int
		window   int64
	}{
		"nothing":          {nil, equal(0, 0), 0, 1, 4 << 20},
		"3 splits":         {nil, equal(3, 10), 0, 1, cellRows},
		"8 splits":         {nil, equal(8, 10), 0, 2, cellRows},
		"100 splits":       {nil, equal(100, 10), 0, 16, cellRows},
		"1000 splits":      {nil, equal(1000, 10), 0, 64, cellRows},
		"large splits":     {nil, equal(200, 1000), 0, 32, cellRows},
		"little room":      {nil, equal(1000, 10), 40 << 20, 8, cellRows},
		"half of the room": {mix(equal(1000, 10)), equal(1000, 10), 40 << 20, 4, cellRows},
		"huge beside tiny": {nil, splits{1_000_000, 10}, 0, 1, cellRows},
		"empty splits":     {nil, append(equal(16, 10), equal(16, 0)...), 0, 4, cellRows},
		"parquet":          {dataset.ReadParquet(dense), equal(20, 300), 0, 4, 1 << 18}, // ids of 9 bytes with what says that they are not null; they take less than one in the file
	} {
		if c.ds == nil {
			c.ds = dataset.Read(cells{0, c.rows})
		}
		it := open(t, c.ds, 1, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 4, Shuffle: &shard.Shuffle{Mode: shard.ModeWindow, Resident: c.resident}}})
		state := it[0].State()
		for _, s := range state.Sources {
			if s.Lanes != c.lanes || s.Window != c.window || len(s.Pos) != s.Lanes {
				t.Errorf("%s: source %s has %d lanes and windows of %d, want %d and %d", name, s.Name, s.Lanes, s.Window, c.lanes, c.window)
			}
		}
		var units []int64
		for _, n := range c.rows {
			units = append(units, int64(n))
		}
		q := order.Expect(units, order.Shape{Mode: order.Window, Lanes: c.lanes, Window: c.window})
		text := it[0].Explain()
		want := []string{fmt.Sprint(q.ResidentUnits), fmt.Sprintf("%.0f", q.ResidentSplits), fmt.Sprintf("%.1f", q.SplitsPerWindow)}
		said := explainedQuality.FindAllStringSubmatch(text, -1)
		for _, m := range said {
			if !slices.Equal(m[1:], want) {
				t.Errorf("%s: explained as %q, want %q", name, m[1:], want)
			}
		}
		bounds := explainedBound.FindAllStringSubmatch(text, -1)
		for _, m := range bounds {
			if b := fmt.Sprintf("%.3f", q.Correlation); m[1] != b {
				t.Errorf("%s: explained to correlate by %s, want %s", name, m[1], b)
			}
		}
		if n := len(state.Sources); len(said) != n || len(bounds) != n && q.Correlation < 1 || len(bounds) > 0 && q.Correlation >= 1 ||
			!strings.Contains(text, fmt.Sprintf("%d lane", c.lanes)) || !strings.Contains(text, fmt.Sprintf("windows of %d rows", c.window)) {
			t.Errorf("%s: explained as %s", name, text)
		}
	}
	// The numbers of one of them by hand: 32 lanes of 6,250 rows, each a window; 6.25 splits in each; 3/sqrt(200) + (1000/6250)^2.
	q := order.Expect(slices.Repeat([]int64{1000}, 200), order.Shape{Mode: order.Window, Lanes: 32, Window: cellRows})
	if got := fmt.Sprintf("%d %.0f %.2f %.3f", q.ResidentUnits, q.ResidentSplits, q.SplitsPerWindow, q.Correlation); got != "200000 200 6.25 0.238" {
		t.Error(got)
	}
}
