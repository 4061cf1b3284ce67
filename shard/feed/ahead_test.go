package feed

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/penstock-data/penstock/dataset"
	"github.com/penstock-data/penstock/shard"
)

// What is ahead is counted in bytes, in time and in batches; python/tests/test_units.py has the same table.
func TestAhead(t *testing.T) {
	for _, c := range []struct {
		offered, size int64
		pace          time.Duration
		want          int
	}{
		{1 << 20, 64 << 10, time.Millisecond, 16},
		{1 << 20, 64<<10 + 1, time.Millisecond, 15},
		{1 << 20, 100, time.Millisecond, 16},
		{1 << 20, 300 << 10, time.Millisecond, 3},
		{1 << 20, 4 << 20, time.Millisecond, 2},
		{100 << 10, 20 << 10, time.Millisecond, 5},
		{0, 100, time.Millisecond, 2},
		{-5, 100, time.Millisecond, 2},
		{1 << 20, 100, 20 * time.Millisecond, 10},
		{1 << 20, 100, 2 * time.Second, 2},
		{1 << 20, 0, time.Millisecond, 2}, // no bytes: nothing is known
	} {
		a := ahead{n: aheadLeast, bytes: c.offered}
		now := time.Unix(1000, 0)
		for i := range 5 {
			if i < 2 && a.n != aheadLeast {
				t.Errorf("%+v: %d ahead before the pace is known", c, a.n)
			}
			a.ask()
			a.take(c.size, now)
			now = now.Add(c.pace)
		}
		if a.n != c.want {
			t.Errorf("%+v: %d ahead", c, a.n)
		}
	}
	// A pause is not the pace.
	a := ahead{n: aheadLeast, bytes: aheadBytes}
	now := time.Unix(1000, 0)
	for range 10 {
		a.take(100, now)
		now = now.Add(time.Millisecond)
	}
	a.take(100, now.Add(10*time.Second))
	if a.n != aheadLeast {
		t.Errorf("%d ahead after a pause", a.n)
	}
	for i := range 50 {
		a.take(100, now.Add(10*time.Second+time.Duration(i)*time.Millisecond))
	}
	if a.n != aheadMost {
		t.Errorf("%d ahead when it is over", a.n)
	}
}

// Asked for is what is taken next, and n more at most; and never so little that half of n is not there.
func TestAsk(t *testing.T) {
	for n := 1; n <= 20; n++ {
		a := ahead{fixed: true, n: n}
		calls := 0
		for range 100 {
			if a.ask() > 0 {
				calls++
			}
			if a.asked > n+1 || a.asked < n/2+2 && n > 1 || a.asked < 1 {
				t.Fatalf("%d ahead: %d asked for", n, a.asked)
			}
			a.take(1<<20, time.Unix(1000, 0))
		}
		if most := 100/max(n/2, 1) + 1; calls > most {
			t.Errorf("%d ahead: asked %d times in 100", n, calls)
		}
	}
}

// A client without a number of batches reads small ones ahead by bytes, and no further: the rest stays with the iterator. What a small budget has no
// room for is not read ahead.
func TestReadAhead(t *testing.T) {
	for _, c := range []struct {
		rows, want int
		budget     int64
	}{{1000, 16, 64 << 20}, {1 << 17, 4, 64 << 20}, {1 << 20, 2, 512 << 20}, {1000, 2, 100 << 10}, {1000, 8, 512_000}} {
		t.Run(fmt.Sprint(c.rows, "/", c.budget), func(t *testing.T) {
			its, err := dataset.Range(int64(c.rows)*60).Shards(t.Context(), 1, &dataset.ShardOptions{RunOptions: dataset.RunOptions{Memory: c.budget},
				Options: shard.Options{GlobalBatch: c.rows, Endless: true, Form: shard.Form{Tensors: true}, Shuffle: &shard.Shuffle{Mode: shard.ModeNone}}})
			must(t, err)
			path := socket(t)
			wait := serving(t, t.Context(), path, its, nil)
			cl := dialTest(t, path, 0, nil)
			if cl.ahead.bytes != min(c.budget/8, aheadBytes) {
				t.Errorf("%d bytes are offered", cl.ahead.bytes)
			}
			for i := range 40 {
				cl.ahead.pace, cl.ahead.last = 1, time.Time{} // as if the machine were never busy
				b, err := cl.Next(context.Background())
				must(t, err)
				b.Release()
				if given := its[0].State(); given.Step+60*int64(given.Epoch) > int64(i+1+aheadMost) {
					t.Fatalf("%d steps left the iterator for %d read", given.Step, i+1)
				}
			}
			if cl.ahead.n != c.want {
				t.Errorf("%d ahead, not %d", cl.ahead.n, c.want)
			}
			must(t, cl.Close())
			must(t, wait())
		})
	}
}
