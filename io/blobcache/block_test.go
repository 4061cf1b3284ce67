package blobcache

import (
	"bytes"
	"fmt"
	"testing"
)

// A damaged entry that overlaps others, as when a block's sets moved and moved back, is dropped: its bytes never
// take the place of theirs, wherever it lies among them.
func TestDamageUnderOverlap(t *testing.T) {
	type span struct{ from, n int }
	spans := []span{{0, 2000}, {1000, 1000}, {500, 1500}}
	for bad := range spans {
		for first := range spans {
			t.Run(fmt.Sprintf("%d damaged, %d first", bad, first), func(t *testing.T) {
				c := open(t, t.TempDir(), MinMax)
				read(t, c, "x", 0, 1) // opens it
				func() {
					s := c.take()
					defer c.give(s)
					f, k := c.lock(), key{MakeID("x"), 0}
					defer c.unlock(f)
					s.load(f, c.sets.Load(), k)
					for i := range spans {
						n := (first + i) % len(spans)
						e, at := entry{key: k, used: c.birth, from: spans[n].from, n: spans[n].n}, slot{0, i}
						data := content("x", int64(e.from), e.n)
						e.sum = e.sumOf(data)
						if n == bad {
							data[0] ^= 1
							data[e.n-1] ^= 1
						}
						if _, err := f.WriteAt(data, s.dataAt(at)+int64(e.from)); err != nil {
							t.Fatal(err)
						}
						if err := s.put(f, at, e); err != nil {
							t.Fatal(err)
						}
					}
				}()
				write(c, "x", 2000, 1000)
				from := 0
				if bad == 0 { // nothing else has what comes before
					from = 500
				}
				got := make([]byte, 3000-from)
				if missing := c.Read(t.Context(), MakeID("x"), got, int64(from)); len(missing) != 0 {
					t.Errorf("missing: %v", missing)
				}
				if !bytes.Equal(got, content("x", int64(from), 3000-from)) {
					t.Error("damaged bytes were served")
				}
				if from > 0 && c.Has(MakeID("x"), 0, 1) {
					t.Error("the damaged entry is still there")
				}
				if s := c.Stats(); s.Corrupt != 1 {
					t.Error(s)
				}
			})
		}
	}
}
