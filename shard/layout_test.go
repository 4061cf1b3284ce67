package shard_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
)

// Default lanes and windows follow from the sizes of the splits.
func TestDefaultLayout(t *testing.T) {
	equal := func(n, rows int) (c cells) {
		for range n {
			c.rows = append(c.rows, rows)
		}
		return c
	}
	for _, c := range []struct {
		rows     cells
		resident int64
		lanes    int
	}{
		{equal(0, 0), 0, 1}, {equal(3, 10), 0, 1}, {equal(8, 10), 0, 2}, {equal(100, 10), 0, 16}, {equal(1000, 10), 0, 64},
		{equal(1000, 10), 40 << 20, 8}, {cells{0, []int{1_000_000, 10}}, 0, 1},
	} {
		it, err := dataset.Read(c.rows).Shards(t.Context(), 1, &dataset.ShardOptions{Options: shard.Options{GlobalBatch: 4,
			Shuffle: &shard.Shuffle{Mode: shard.ModeWindow, Resident: c.resident}}})
		if err != nil {
			t.Fatal(err)
		}
		s := it[0].State().Sources[0]
		if w := s.Window; s.Lanes != c.lanes || w < 1 || w&(w-1) != 0 || int64(len(s.Pos)) != int64(s.Lanes) {
			t.Errorf("%d splits, resident %d: %d lanes, window %d; want %d lanes", len(c.rows.rows), c.resident, s.Lanes, s.Window, c.lanes)
		}
		if text := it[0].Explain(); !strings.Contains(text, fmt.Sprintf("%d lane", s.Lanes)) || !strings.Contains(text, "resident") {
			t.Errorf("explained as %s", text)
		}
		closeAll(t, it)
	}
}
