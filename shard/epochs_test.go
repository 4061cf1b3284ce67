package shard_test

import (
	"context"
	"io"
	"sync"
	"testing"
	"time"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/io/driver"
	"github.com/penstock-data/penstock/shard"
)

// openings is a source that knows how often it was listed, and which of its splits were opened.
type openings struct {
	cells
	mu     sync.Mutex
	listed int
	opened map[int]int
	begun  map[int]int   // how often a split was read from its begin
	again  chan struct{} // closed when one is for the second time
}

func (o *openings) Resolve(context.Context, *driver.ResolveOptions) (driver.Table, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.listed++
	return &openingsTable{cellsTable{o.cells}, o}, nil
}

type openingsTable struct {
	cellsTable
	o *openings
}

func (t *openingsTable) Open(ctx context.Context, i int, so *driver.ScanOptions) (driver.Reader, error) {
	t.o.mu.Lock()
	t.o.opened[i]++
	if so.FromRow == 0 {
		if t.o.begun[i]++; t.o.begun[i] == 2 && t.o.again != nil {
			close(t.o.again)
			t.o.again = nil
		}
	}
	t.o.mu.Unlock()
	return t.cellsTable.Open(ctx, i, so)
}

func newOpenings(splits, rows int) *openings {
	o := &openings{opened: map[int]int{}, begun: map[int]int{}}
	for range splits {
		o.rows = append(o.rows, rows)
	}
	return o
}

// What lies before the windows of a state is not opened: of 60 splits in order, those from the position on
// only; of lanes, those that they stand in or come to.
func TestOpenedAfterRestore(t *testing.T) {
	const splits, rows = 60, 40
	for _, shuffle := range []shard.Shuffle{{Mode: shard.ModeNone, WindowRows: 16}, {Mode: shard.ModeWindow, Lanes: 4, WindowRows: 16}} {
		o := jobOptions(7)
		o.Shuffle, o.Epochs = &shuffle, 1
		all := newOpenings(splits, rows)
		at, err := dataset.Read(all).StateAt(t.Context(), 1, o, shard.At{Step: splits * rows / 16 * 3 / 4})
		if err != nil {
			t.Fatal(err)
		}
		if len(all.opened) > 0 {
			t.Errorf("%s: %d splits opened to find a state", shuffle.Mode, len(all.opened))
		}
		rest := newOpenings(splits, rows)
		o.State = &at
		its := open(t, dataset.Read(rest), 1, o)
		n := len(digests(t, its, 1000))
		if want := splits*rows/16 - splits*rows/16*3/4; n != want {
			t.Errorf("%s: %d steps after the state, want %d", shuffle.Mode, n, want)
		}
		rest.mu.Lock()
		if most := splits/4 + 4; len(rest.opened) > most || len(rest.opened) < splits/4 {
			t.Errorf("%s: %d of %d splits opened for the last quarter", shuffle.Mode, len(rest.opened), splits)
		}
		rest.mu.Unlock()
	}
}

// The next epoch begins for a rank while another is still in this one, up to its prefetch, and is read before the last step of this
// one is taken; the data are listed once, and batches are those of ranks that advance together.
func TestNoBarrier(t *testing.T) {
	const steps = 10
	o := jobOptions(7)
	o.Prefetch = 4
	read := func(its []*shard.Iterator, order []int) (got [2][][32]byte) {
		for _, r := range order {
			b, err := its[r].Next(t.Context())
			if err == io.EOF {
				continue
			}
			if err != nil {
				t.Fatal(err)
			}
			got[r] = append(got[r], b.Digest())
			b.Release()
		}
		return got
	}
	var together, apart []int
	for range 2*steps + 1 {
		together = append(together, 0, 1)
	}
	for range steps - 1 {
		apart = append(apart, 0, 1)
	}
	src := newOpenings(4, 40)
	ds := dataset.Read(src)
	first := open(t, ds, 2, o)
	want := read(first, together)
	closeAll(t, first)
	one := *o
	one.Epochs = 1
	src.begun = map[int]int{} // nobody reads it now
	first = open(t, ds, 2, &one)
	read(first, together[:2*steps+2])
	closeAll(t, first)
	for i, n := range src.begun {
		if n != 1 {
			t.Fatalf("an epoch reads split %d from its begin %d times", i, n)
		}
	}
	again := make(chan struct{})
	src.begun, src.again = map[int]int{}, again
	its := open(t, ds, 2, o)
	got := read(its, apart)
	select {
	case <-again:
	case <-time.After(20 * time.Second):
		t.Fatal("the next epoch is not read before the last step of this one is taken")
	}
	late := read(its, []int{0, 0, 0}) // the last step, the end, a step of the next epoch
	got[0] = append(got[0], late[0]...)
	if a, b := its[0].Epoch(), its[1].Epoch(); a != 1 || b != 0 || its[0].Step() != 1 {
		t.Errorf("rank 0 is at epoch %d, rank 1 at %d", a, b)
	}
	more := read(its, []int{1, 1, 1})
	for r := range got {
		all := append(got[r], more[r]...)
		for i, d := range all {
			if d != want[r][i] {
				t.Errorf("rank %d: batch %d is another one", r, i)
			}
		}
		if len(all) != steps+1 {
			t.Errorf("rank %d: %d batches", r, len(all))
		}
	}
	if src.listed != 1 {
		t.Errorf("listed %d times", src.listed)
	}
}
